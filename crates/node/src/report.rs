//! What a node tells about itself: its tiers, what is not in the backing store, what takes long,
//! metrics.
//!
//! Owns nothing and changes nothing but gauges; it only tries each tier, whether that still takes
//! bytes. Must not know: how it is shown (`forebay` renders it).
//!
//! # Invariants
//! - It comes also while the backing store hangs: that is never asked, and no lock is waited for
//!   that is held over a wait for it.
//! - What is looked at is bounded ([`LOOKED_AT`] entries of the backlog).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use forebay_meta::{Record, Seq};
use forebay_types::Ino;

use crate::clock;
use crate::defects::{BackgroundKind, SetAsideWork};
use crate::error::{Result, is_undecodable};
use crate::metrics::{Metrics, Queue};
use crate::node::Node;
use crate::pool::Urgency;
use crate::residency::LOOKED_AT;
use crate::trace::Recorded;

/// One tier.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TierReport {
    /// Its directory.
    pub dir: PathBuf,
    /// Its configured size in bytes.
    pub size: u64,
    /// Bytes that objects take up.
    pub used: u64,
    /// Bytes promised to passthrough writers.
    pub promised: u64,
    /// Bytes of objects that the backing store lacks.
    pub dirty: u64,
    /// Bytes of objects that may not be evicted.
    pub pinned: u64,
    /// Objects.
    pub objects: u64,
    /// Objects that the backing store lacks.
    pub dirty_objects: u64,
    /// Bytes that its file system has free.
    pub fs_free: u64,
    /// What its file system says if it has failed.
    pub failed: Option<String>,
}

/// A file whose bytes are not in the backing store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirtyFile {
    /// Its path from the root.
    pub path: Vec<u8>,
    /// Bytes that it takes up on its tier.
    pub bytes: u64,
    /// Whether a program has it open.
    pub open: bool,
    /// Seconds since its last change.
    pub age_s: u64,
    /// Why the last attempt to write it back failed.
    pub last_error: Option<String>,
}

/// A file and how often it was opened lately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BusyFile {
    /// Its path from the root.
    pub path: Vec<u8>,
    /// Opens.
    pub opens: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether all of it is on a tier.
    pub resident: bool,
}

/// Work on the backing store that takes long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LongWork {
    /// The path concerned.
    pub path: Vec<u8>,
    /// For how long it has been under way.
    pub since: Duration,
}

/// Seconds since the last change of what is in the backlog. What is not there yet is being written
/// right now.
fn age_s(record: &Record) -> u64 {
    let age = clock::wall_time().sec - record.attr.ctime.sec;
    if record.queued.is_some() { u64::try_from(age).unwrap_or(0) } else { 0 }
}

impl Node {
    /// What is not tried again, as it has ended a daemon.
    pub fn set_aside_work(&self) -> Vec<SetAsideWork> {
        let told = self.defects.known().map(|work| {
            let about_inode =
                !matches!(work.kind(), BackgroundKind::Upkeep | BackgroundKind::Metrics);
            let path = about_inode.then(|| self.meta.path(Ino(work.number)).ok().flatten());
            SetAsideWork { path: path.flatten().unwrap_or_default(), what: work.kind().told() }
        });
        told.collect()
    }

    /// Begins to record opens.
    ///
    /// # Errors
    /// `EBUSY` while somebody else records.
    pub fn start_trace(&self) -> Result<()> {
        self.tracer.start()
    }

    /// What was recorded since the last call, at most `most` opens; with `stop` the recording ends.
    ///
    /// # Errors
    /// `ENOENT` if none is under way.
    pub fn take_trace(&self, most: usize, stop: bool) -> Result<Recorded> {
        self.tracer.take(most, stop, |ino| self.path_of(ino))
    }

    /// Calls of the metadata engine so far.
    pub fn engine_calls(&self) -> u64 {
        let calls = self.meta.round_trips();
        calls.executes + calls.scans
    }

    /// The tiers, fastest first.
    pub fn tier_reports(&self) -> Vec<TierReport> {
        let mut reports: Vec<TierReport> = self
            .residency
            .tiers
            .iter()
            .map(|slot| TierReport {
                dir: slot.tier.path().to_path_buf(),
                size: slot.room.size(),
                used: slot.room.used(),
                promised: slot.room.promised(),
                fs_free: slot.tier.usage().map_or(0, |usage| usage.free),
                ..TierReport::default()
            })
            .collect();
        self.residency.residents.for_each(|_, resident| {
            if let Some(report) = reports.get_mut(usize::from(resident.tier)) {
                report.objects += 1;
                if resident.dirty {
                    report.dirty_objects += 1;
                    report.dirty += resident.charged;
                }
            }
        });
        for (report, tier) in reports.iter_mut().zip(self.residency.steward.lock().snapshot()) {
            report.pinned = tier.pinned.0;
        }
        for (index, report) in reports.iter_mut().enumerate() {
            self.residency.try_tier(index);
            report.failed = self.residency.tier_failure(index).map(str::to_owned);
        }
        reports
    }

    /// Counters since the start. Gauges are as of the last [`Node::render_metrics`].
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// All metrics in the Prometheus text format.
    pub fn render_metrics(&self) -> String {
        let rendered = self.defects.attempt(BackgroundKind::Metrics, 0, || self.metrics_as_text());
        rendered.unwrap_or_else(|| "# to render metrics has ended a daemon by a defect\n".into())
    }

    fn metrics_as_text(&self) -> String {
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let (mut used, mut size, mut promised, mut objects) = (0, 0, 0, 0);
        let (mut dirty_bytes, mut dirty_files) = (0, 0);
        for tier in self.tier_reports() {
            used += tier.used;
            size += tier.size;
            promised += tier.promised;
            objects += tier.objects;
            dirty_bytes += tier.dirty;
            dirty_files += tier.dirty_objects;
        }
        let metrics = &self.metrics;
        metrics.tier_used_bytes.set(signed(used));
        metrics.tier_size_bytes.set(signed(size));
        metrics.tier_reserved_bytes.set(signed(promised));
        metrics.resident_files.set(signed(objects));
        metrics.dirty_bytes.set(signed(dirty_bytes));
        metrics.dirty_files.set(signed(dirty_files));
        metrics.backlog_entries.set(signed(self.writeback.backlog_len()));
        let (dirty, backlog) = self.oldest();
        metrics.dirty_oldest_seconds.set(signed(dirty));
        metrics.backlog_oldest_seconds.set(signed(backlog));
        let queued = signed(self.slow.queued_as(Urgency::Demand) as u64);
        metrics.pool_queued.of(Queue::Demand).set(queued);
        let background = signed(self.slow.queued_as(Urgency::Background) as u64);
        metrics.pool_queued.of(Queue::Background).set(background);
        let flushing = signed(self.writeback.flushers.queued() as u64);
        metrics.pool_queued.of(Queue::WriteBack).set(flushing);
        self.count_hints();
        let mut text = metrics.render();
        if let Some(streams) = self.streams_report() {
            text += &forebay_streams::metrics::render(&streams.status);
        }
        text
    }

    /// Takes over what the steward counted of hints and fetches ahead.
    fn count_hints(&self) {
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let (jobs, counts) = {
            let steward = self.residency.steward.lock();
            (steward.jobs(), steward.fetches_ahead())
        };
        let metrics = &self.metrics;
        metrics.hint_jobs.set(signed(jobs.len() as u64));
        metrics.hint_references.set(signed(jobs.iter().map(|job| job.progress.ahead).sum()));
        let waiting = jobs.iter().map(|job| job.outstanding.0).sum();
        metrics.prefetch_waiting_bytes.set(signed(waiting));
        metrics.prefetched.raise(counts.fetched);
        metrics.prefetched_bytes.raise(counts.fetched_bytes);
        metrics.prefetch_used.raise(counts.used);
        metrics.prefetch_late.raise(counts.late);
        metrics.prefetch_wasted.raise(counts.wasted);
        metrics.prefetch_wasted_bytes.raise(counts.wasted_bytes);
    }

    /// As [`Node::is_open`], but never waits: a status must come also while a store hangs. Where
    /// somebody opens or closes the file right now, it counts as open.
    fn seems_open(&self, ino: Ino) -> bool {
        let Some(file) = self.residency.files.peek(ino) else { return false };
        file.opens.try_lock().is_none_or(|opens| opens.count > 0)
    }

    /// Ages in seconds of the oldest file whose bytes are not in the backing store, and of the
    /// oldest entry of the backlog, among those that came to it first.
    pub fn oldest(&self) -> (u64, u64) {
        let (mut dirty, mut backlog) = (0, 0);
        for (_, ino) in self.meta.backlog(Seq(0), LOOKED_AT).unwrap_or_default() {
            let Ok(record) = self.meta.get(ino) else { continue };
            let age = age_s(&record);
            backlog = backlog.max(age);
            if record.is_dirty() || record.spilled {
                dirty = dirty.max(age);
            }
        }
        (dirty, backlog)
    }

    /// Paths of what only lacks names or attributes in the backing store, oldest first, at most
    /// `most`. What was removed and is still there counts by the path that it had.
    pub fn unwritten_names(&self, most: usize) -> Vec<Vec<u8>> {
        let backlog = self.meta.backlog(Seq(0), LOOKED_AT).unwrap_or_default();
        let only_names = backlog.into_iter().filter(|(_, ino)| {
            self.meta.get(*ino).is_ok_and(|record| !record.is_dirty() && !record.spilled)
        });
        let path = |ino| match self.meta.path(ino).ok().flatten() {
            Some(path) => Some(path),
            None => self.meta.backing_path(ino).ok().flatten(),
        };
        only_names.filter_map(|(_, ino)| path(ino)).take(most).collect()
    }

    /// Files whose bytes are not in the backing store, oldest first, at most `most` of them.
    pub fn dirty_files(&self, most: usize) -> Vec<DirtyFile> {
        let mut inodes: BTreeSet<u64> = self
            .meta
            .backlog(Seq(0), LOOKED_AT)
            .unwrap_or_default()
            .into_iter()
            .map(|(_, ino)| ino.0)
            .collect();
        self.residency.residents.for_each(|ino, resident| {
            if resident.dirty && inodes.len() < 2 * LOOKED_AT {
                inodes.insert(ino);
            }
        });
        let mut files: Vec<_> = inodes
            .into_iter()
            .filter_map(|ino| {
                let resident = self.residency.residents.get(ino).filter(|resident| resident.dirty);
                let record = match self.meta.get(Ino(ino)) {
                    Ok(record) => record,
                    // Nothing is known of it but that there is something to be written.
                    Err(error) if is_undecodable(&error) => {
                        return Some((0, ino, Err(error.to_string()), resident));
                    }
                    Err(_) => return None,
                };
                let dirty = record.is_dirty() || record.spilled || resident.is_some();
                dirty.then(|| (age_s(&record), ino, Ok(record.attr.size), resident))
            })
            .collect();
        files.sort_by_key(|(age, ..)| std::cmp::Reverse(*age));
        files.truncate(most);
        files
            .into_iter()
            .map(|(age_s, ino, size, resident)| DirtyFile {
                path: match size {
                    Ok(_) => self.path_of(Ino(ino)),
                    Err(_) => format!("inode {ino:x}").into_bytes(),
                },
                bytes: resident.map_or(size.clone().unwrap_or(0), |resident| resident.charged),
                open: self.seems_open(Ino(ino)),
                age_s,
                last_error: match size {
                    Err(error) => Some(error),
                    Ok(_) if self.residency.troubles.is_lost(Ino(ino)) => {
                        Some(self.residency.troubles.error_of(Ino(ino)).to_string())
                    }
                    Ok(_) => self.writeback.write_error(Ino(ino)),
                },
            })
            .collect()
    }

    /// The files that programs opened most often lately, busiest first.
    pub fn busiest_files(&self, most: usize) -> Vec<BusyFile> {
        let list = self.busiest.list(2 * most).into_iter();
        list.filter_map(|(ino, opens)| {
            let record = self.meta.get(Ino(ino)).ok()?;
            let path = self.meta.path(Ino(ino)).ok().flatten()?;
            let resident = self.residency.residents.get(ino).is_some_and(|resident| resident.whole);
            Some(BusyFile { path, opens, bytes: record.attr.size, resident })
        })
        .take(most)
        .collect()
    }

    /// Work on the backing store that has been under way for at least `least`, longest first.
    pub fn long_work(&self, least: Duration) -> Vec<LongWork> {
        let mut work: Vec<_> = self
            .writeback
            .owned_since()
            .into_iter()
            .filter(|(_, since)| *since >= least)
            .map(|(ino, since)| LongWork { path: self.path_of(ino), since })
            .collect();
        work.sort_by_key(|work| std::cmp::Reverse(work.since));
        work
    }

    /// Logs which policies are followed if that has changed since `seen` switches.
    pub(crate) fn log_switches(&self, seen: &mut u64) {
        let steward = self.residency.steward.lock();
        let switches = steward.switches();
        if std::mem::replace(seen, switches) == switches {
            return;
        }
        let tiers = steward.snapshot();
        drop(steward);
        for (tier, snapshot) in tiers.into_iter().enumerate() {
            let policy = snapshot.policy;
            let (follows, switches) = (policy.follows, policy.switches);
            tracing::info!(tier, follows, switches, "the policy follows what misses fewest bytes");
        }
    }

    /// What the policy says about itself: names and values.
    pub fn policy_figures(&self) -> Vec<(String, String)> {
        let mut figures = Vec::new();
        for (index, tier) in self.residency.steward.lock().snapshot().into_iter().enumerate() {
            let policy = tier.policy;
            if !policy.follows.is_empty() {
                figures.push((format!("tier {index} follows"), policy.follows.to_owned()));
                figures.push((format!("tier {index} switches"), policy.switches.to_string()));
            }
            for (name, value) in [
                ("objects", policy.objects),
                ("bytes", policy.bytes),
                ("ghosts", policy.ghosts),
                ("admitted", policy.admitted),
                ("bypassed", policy.bypassed),
                ("victims", policy.victims),
                ("ahead", policy.ahead),
            ] {
                figures.push((format!("tier {index} {name}"), value.to_string()));
            }
        }
        figures
    }
}
