//! An engine and a control that keep everything in memory. What goes wrong is chosen by the
//! environment: `FAKE_MOUNT=locked|die|fail`, `FAKE_DIRTY=N`, `FAKE_DRAIN=stuck|slow`,
//! `FAKE_BUSY=1`.
#![allow(dead_code, missing_docs, reason = "each user of this module needs a part of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use forebay::config::MountConfig;
use forebay::control::{
    Conflict, Control, ControlError, ControlResult, Coverage, Dirty, DirtyFile, ErrorKind,
    HintPart, Location, OnProgress, Outcome, Progress, Recorded, Shutdown, Status, WirePath,
};
use forebay::{Ended, Engine, FsckReport, FsckRequest, Keeper, Mounted};

fn chosen(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

pub struct FakeEngine;

#[derive(Default)]
pub struct FakeControl {
    pub status: Mutex<Status>,
    pub dirty: AtomicU64,
    pub hints: Mutex<Vec<HintPart>>,
    pub worked: Mutex<Vec<String>>,
    pub cancelled: AtomicU64,
    pub busy: bool,
    pub drain_style: String,
    ended: Mutex<bool>,
    end: Condvar,
}

impl FakeControl {
    fn work(
        &self,
        what: &str,
        paths: &[WirePath],
        progress: OnProgress<'_>,
    ) -> ControlResult<Outcome> {
        self.worked.lock().unwrap().push(what.to_owned());
        let total = paths.len() as u64;
        for done in 0..total {
            let now = Progress { files_done: done, files_total: total, ..Progress::default() };
            if !progress(now) {
                self.cancelled.fetch_add(1, Ordering::SeqCst);
                return Err(ControlError::new(ErrorKind::Cancelled, "interrupted"));
            }
            if paths[done as usize].as_path().ends_with("slow") {
                std::thread::sleep(Duration::from_millis(150));
            }
        }
        let failures: Vec<_> = paths
            .iter()
            .filter(|path| path.as_path().ends_with("bad"))
            .map(|path| (path.clone(), "Input/output error".to_owned()))
            .collect();
        let failed = failures.len() as u64;
        Ok(Outcome {
            files: total - failed,
            complete: true,
            failures,
            failed,
            ..Outcome::default()
        })
    }
}

impl Control for FakeControl {
    fn status(&self) -> Status {
        let mut status = self.status.lock().unwrap().clone();
        let files = self.dirty.load(Ordering::SeqCst);
        status.dirty = Dirty { files, bytes: files * 4096, ..Dirty::default() };
        status
    }

    fn locate(&self, paths: &[WirePath]) -> ControlResult<Vec<Location>> {
        let locate = |path: &WirePath| Location {
            path: path.clone(),
            kind: "file".into(),
            residency: Coverage::Whole,
            ..Location::default()
        };
        Ok(paths.iter().map(locate).collect())
    }

    fn warm(&self, paths: &[WirePath], progress: OnProgress<'_>) -> ControlResult<Outcome> {
        self.work("warm", paths, progress)
    }
    fn evict(&self, paths: &[WirePath], progress: OnProgress<'_>) -> ControlResult<Outcome> {
        self.work("evict", paths, progress)
    }
    fn pin(&self, paths: &[WirePath], progress: OnProgress<'_>) -> ControlResult<Outcome> {
        self.work("pin", paths, progress)
    }
    fn unpin(&self, paths: &[WirePath], progress: OnProgress<'_>) -> ControlResult<Outcome> {
        self.work("unpin", paths, progress)
    }
    fn sync(&self, paths: &[WirePath], progress: OnProgress<'_>) -> ControlResult<Outcome> {
        self.work("sync", paths, progress)
    }
    fn refresh(&self, paths: &[WirePath], progress: OnProgress<'_>) -> ControlResult<Outcome> {
        self.work("refresh", paths, progress)
    }

    fn conflicts(&self) -> Vec<Conflict> {
        self.status.lock().unwrap().conflicts.clone()
    }

    fn forget_conflicts(&self, paths: &[WirePath]) -> ControlResult<u64> {
        let conflicts = &mut self.status.lock().unwrap().conflicts;
        let before = conflicts.len();
        conflicts.retain(|conflict| !paths.contains(&conflict.path));
        Ok((before - conflicts.len()) as u64)
    }

    fn hint(&self, part: &HintPart, _: OnProgress<'_>) -> ControlResult<Outcome> {
        self.hints.lock().unwrap().push(part.clone());
        Ok(Outcome { files: part.paths.len() as u64, complete: true, ..Outcome::default() })
    }

    fn withdraw(&self, job: &str) -> ControlResult<()> {
        self.hints.lock().unwrap().retain(|part| part.job != job);
        Ok(())
    }

    fn trace_start(&self) -> ControlResult<()> {
        Ok(())
    }

    fn trace_take(&self, _: usize, _: bool) -> ControlResult<Recorded> {
        Ok(Recorded { lost: 7, ..Recorded::default() })
    }

    fn drain(&self, limit: Option<Duration>, progress: OnProgress<'_>) -> ControlResult<Outcome> {
        let deadline = Instant::now() + limit.unwrap_or(Duration::from_secs(20));
        let total = self.dirty.load(Ordering::SeqCst);
        loop {
            let left = self.dirty.load(Ordering::SeqCst);
            let now =
                Progress { files_done: total - left, files_total: total, ..Progress::default() };
            let going = progress(now);
            if left == 0 || !going || Instant::now() > deadline {
                let list = (0..left.min(3)).map(|n| DirtyFile {
                    path: format!("dirty{n}").into(),
                    bytes: 4096,
                    ..DirtyFile::default()
                });
                return Ok(Outcome {
                    files: total - left,
                    complete: left == 0,
                    remaining: list.collect(),
                    remaining_files: left,
                    remaining_bytes: left * 4096,
                    ..Outcome::default()
                });
            }
            std::thread::sleep(Duration::from_millis(10));
            if self.drain_style != "stuck" {
                self.dirty.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    fn metrics(&self) -> String {
        "forebay_hits_total 3\n".into()
    }

    fn shutdown(&self, how: Shutdown) -> ControlResult<()> {
        if self.busy && how == Shutdown::IfIdle {
            return Err(ControlError::new(ErrorKind::Busy, "files are open"));
        }
        *self.ended.lock().unwrap() = true;
        self.end.notify_all();
        Ok(())
    }
}

struct FakeMount(Arc<FakeControl>);

impl Mounted for FakeMount {
    fn control(&self) -> Arc<dyn Control> {
        Arc::clone(&self.0) as Arc<dyn Control>
    }

    fn wait(&self) -> Ended {
        let mut ended = self.0.ended.lock().unwrap();
        while !*ended {
            ended = self.0.end.wait(ended).unwrap();
        }
        Ended::Unmounted
    }

    fn finish(&self) -> ControlResult<()> {
        Ok(())
    }
}

impl Engine for FakeEngine {
    fn policies(&self) -> &[&str] {
        &["s3fifo", "lru", "lfu"]
    }

    fn mount(
        &self,
        config: &MountConfig,
        _: Option<Keeper<'_>>,
    ) -> ControlResult<Arc<dyn Mounted>> {
        match chosen("FAKE_MOUNT").as_str() {
            "locked" => {
                return Err(ControlError::new(
                    ErrorKind::Locked,
                    "tier /t: another daemon (process 7) uses it",
                ));
            }
            "fail" => {
                return Err(ControlError::new(
                    ErrorKind::BadState,
                    "tier /t: format 99 is unknown",
                ));
            }
            "die" => std::process::exit(17),
            _ => {}
        }
        let status = Status {
            mountpoint: config.mountpoint.clone().into(),
            backing: config.backing.clone().into(),
            pid: std::process::id(),
            hits: 3,
            misses: 1,
            ..Status::default()
        };
        Ok(Arc::new(FakeMount(Arc::new(FakeControl {
            status: Mutex::new(status),
            dirty: AtomicU64::new(chosen("FAKE_DIRTY").parse().unwrap_or(0)),
            busy: !chosen("FAKE_BUSY").is_empty(),
            drain_style: chosen("FAKE_DRAIN"),
            ..FakeControl::default()
        }))))
    }

    fn fsck(&self, request: &FsckRequest, _: OnProgress<'_>) -> ControlResult<FsckReport> {
        let repaired = u64::from(request.repair);
        Ok(FsckReport {
            objects: 5,
            problems: 1,
            repaired,
            details: vec!["object 3: index says clean, file says dirty".into()],
            ..FsckReport::default()
        })
    }
}
