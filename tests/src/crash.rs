//! The kill -9 test: what was acknowledged before the daemon died must be there after the next
//! mount, nothing torn, nothing left over, and after the drain in the backing store as plain files.

mod cold;
mod load;
mod points;

pub use load::{BLOCK, Plan, Progress, Step};
pub use points::{Tally, fail_point_round, fail_points};

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use crate::failure::{Failure, Outcome};
use crate::os::{self, FileType};
use crate::process::{Child, End};
use crate::random::Random;
use crate::subject::{ForebayMount, MountOptions, Subject};
use crate::watchdog;

/// Longer than a round takes.
const ROUND_LIMIT: Duration = Duration::from_secs(120);
/// How long writers may take to notice that the daemon is gone.
const WRITER_LIMIT: Duration = Duration::from_secs(20);
/// Writer processes at a time; those of large files come first.
const WRITERS: usize = 6;

/// The number of rounds: `FOREBAY_CRASH_ROUNDS`, else 5.
pub fn rounds() -> usize {
    std::env::var("FOREBAY_CRASH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(5)
}

/// Writers at work on one directory, and their progress, which outlives them.
pub struct Load {
    dir: PathBuf,
    plans: Vec<Plan>,
    children: Vec<Child>,
    progress: Progress,
    cold: Option<PathBuf>,
}

impl Load {
    /// Starts `writers` processes, each in its own directory below `dir`; `large` of them write files
    /// that fill a small tier.
    pub fn start(dir: &Path, seed: u64, writers: usize, large: usize) -> Outcome<Self> {
        Self::start_with(Progress::new(writers)?, dir, seed, writers, large)
    }

    /// The same for a daemon that dies by itself, perhaps at the first step.
    pub fn start_to_die(dir: &Path, seed: u64, writers: usize, large: usize) -> Outcome<Self> {
        let progress = Progress::new(writers)?;
        progress.expect_death();
        Self::start_with(progress, dir, seed, writers, large)
    }

    fn start_with(
        progress: Progress,
        dir: &Path,
        seed: u64,
        writers: usize,
        large: usize,
    ) -> Outcome<Self> {
        let mut load = Self {
            dir: dir.to_owned(),
            plans: Vec::new(),
            children: Vec::new(),
            progress,
            cold: None,
        };
        // All before the first writer makes the daemon die.
        for id in 0..writers {
            os::mkdir(load.home(id), 0o755)?;
        }
        for id in 0..writers {
            let plan = Plan::new(seed, id);
            let plan = if id < large { plan.large() } else { plan };
            let plan = if id + 1 == writers { plan.with_two_names() } else { plan };
            let home = load.home(id);
            let progress = &load.progress;
            let worker = plan.clone();
            load.children.push(Child::start(move || load::work(&home, &worker, progress, id))?);
            load.plans.push(plan);
        }
        Ok(load)
    }

    /// Starts a reader of the files that were laid into `dir` of the backing store.
    pub fn read_cold(&mut self, dir: PathBuf, seed: u64) -> Outcome {
        let (progress, home) = (&self.progress, dir.clone());
        self.children.push(Child::start(move || cold::read(&home, progress, seed))?);
        self.cold = Some(dir);
        Ok(())
    }

    fn home(&self, id: usize) -> PathBuf {
        self.dir.join(format!("writer{id}"))
    }

    /// From now on an error ends a writer instead of failing the test.
    pub fn expect_death(&self) {
        self.progress.expect_death();
    }

    /// Asks the writers to end after their present step.
    pub fn stop(&self) {
        self.progress.stop();
    }

    /// True when a writer has ended, which before the death of the daemon is a failure.
    pub fn any_ended(&self) -> bool {
        self.children.iter().any(Child::has_ended)
    }

    /// Waits for the writers' ends; one that hangs or complains is a failure.
    pub fn wait(&mut self) -> Outcome {
        for child in self.children.drain(..) {
            match child.end(WRITER_LIMIT)? {
                // A mapping of a dead mount raises SIGBUS.
                End::Returned(Ok(())) | End::Killed(libc::SIGBUS) => {}
                End::Returned(Err(failure)) => return Err(failure),
                End::Killed(signal) => {
                    return Err(Failure::at(format_args!("a writer died by signal {signal}")));
                }
            }
        }
        Ok(())
    }

    /// The steps that were acknowledged, of all writers.
    pub fn acknowledged(&self) -> u64 {
        (0..self.plans.len()).map(|id| self.progress.read(id).1).sum()
    }

    /// Compares what is there with what every writer's progress allows.
    pub fn verify(&self) -> Outcome {
        for (id, plan) in self.plans.iter().enumerate() {
            let (begun, done) = self.progress.read(id);
            load::verify(&self.home(id), plan, begun, done).map_err(|why| {
                Failure::Failed(format!("writer {id}, {done} of {begun} steps done: {why}"))
            })?;
        }
        self.cold.as_deref().map_or(Ok(()), cold::verify)
    }
}

impl Load {
    /// As [`Load::verify`], for contents alone, under whatever names they are in a tree: after a
    /// rebuild of the index names may be older.
    pub fn verify_contents(&self, tree: &Snapshot) -> Outcome {
        let found = tree.values().map(|(_, hash)| *hash).collect();
        for (id, plan) in self.plans.iter().enumerate() {
            let (begun, done) = self.progress.read(id);
            load::verify_contents(&found, plan, begun, done).map_err(|why| {
                Failure::Failed(format!("writer {id}, {done} of {begun} steps done: {why}"))
            })?;
        }
        Ok(())
    }
}

/// Every path below a directory with its type and a hash of its content.
pub type Snapshot = BTreeMap<PathBuf, (u32, u64)>;

/// Reads a whole tree.
pub fn snapshot(root: &Path) -> Outcome<Snapshot> {
    let mut found = Snapshot::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(dir) = pending.pop() {
        for name in os::names(root.join(&dir))? {
            let path = dir.join(name);
            let named = |why: os::Errno| Failure::at(format_args!("{}: {why:?}", path.display()));
            let kind = os::file_type(root.join(&path)).map_err(named)?;
            let hash = match kind {
                FileType::RegularFile => {
                    let named =
                        |why: Failure| Failure::at(format_args!("{}: {why}", path.display()));
                    xxh3_64(&os::read_all(root.join(&path)).map_err(Failure::from).map_err(named)?)
                }
                _ => 0,
            };
            if kind == FileType::Directory {
                pending.push(path.clone());
            }
            found.insert(path, (kind.as_raw_mode(), hash));
        }
    }
    Ok(found)
}

/// Fails with the first path in which two trees differ.
pub fn same_tree(got: &Snapshot, want: &Snapshot, what: &str) -> Outcome {
    for path in got.keys().chain(want.keys()) {
        let (a, b) = (got.get(path), want.get(path));
        ensure!(a == b, "{what}: {} is {a:?}, not {b:?}", path.display());
    }
    Ok(())
}

/// Two, if the tiers are as small as they must be for large files to fill them.
fn large_writers(options: &MountOptions) -> usize {
    let bytes: u64 = options.tiers.iter().map(|(_, bytes)| bytes).sum();
    if bytes < 100 << 20 { 2 } else { 0 }
}

/// Kills the daemon `rounds` times at random moments under load, and checks everything each time.
pub fn kill_rounds(options: MountOptions, seed: u64, rounds: usize) -> Outcome {
    let mut random = Random::new(seed);
    let mut mount = ForebayMount::new(options)?;
    let mut settled = Snapshot::new();
    let mut loads: Vec<Load> = Vec::new();
    for round in 0..rounds {
        let guard = watchdog::guard(ROUND_LIMIT, format!("crash round {round} of seed {seed}"));
        let dir = mount.dir().join(format!("round{round}"));
        os::mkdir(&dir, 0o755)?;
        let mut load =
            Load::start(&dir, random.bits(), WRITERS, large_writers(mount.options_mut()))?;
        std::thread::sleep(Duration::from_millis(random.between(30, 3000)));
        ensure!(!load.any_ended(), "a writer ended before the kill: {:?}", load.wait());
        load.expect_death();
        mount.kill_daemon();
        load.wait()?;
        settled = recover(&mut mount, &load, &settled).map_err(|why| {
            let evidence = evidence(&mount, &loads);
            Failure::Failed(format!("seed {seed}, round {round}: {why}{evidence}"))
        })?;
        loads.push(load);
        drop(guard);
    }
    ensure!(
        loads.iter().any(|load| load.acknowledged() > 0),
        "no step was acknowledged in {rounds} rounds: nothing was tested"
    );
    drained(&mut mount, &settled)
}

/// What a failure leaves, for whoever has to find its cause: what else differs, the end of the log,
/// and a copy of the state if it is to be kept.
fn evidence(mount: &ForebayMount, loads: &[Load]) -> String {
    let mut text = String::new();
    for (round, load) in loads.iter().enumerate() {
        if let Err(why) = load.verify() {
            text.push_str(&format!("\nof round {round}: {why}"));
        }
    }
    if let Some(kept) = mount.keep_state() {
        text.push_str(&format!("\nkept in {}", kept.display()));
    }
    text + "\nend of the daemon's log:\n" + &mount.log_tail()
}

/// Kills the daemon under load, throws its index away and has it rebuilt from the tiers: all contents
/// that were acknowledged must be there, and in the backing store after the drain.
pub fn rebuild_rounds(options: &MountOptions, seed: u64, rounds: usize) -> Outcome {
    let mut random = Random::new(seed);
    for round in 0..rounds {
        let _guard = watchdog::guard(ROUND_LIMIT, format!("rebuild round {round} of seed {seed}"));
        let mut mount = ForebayMount::new(options.clone())?;
        let mut load = Load::start(mount.dir(), random.bits(), WRITERS, 0)?;
        std::thread::sleep(Duration::from_millis(random.between(30, 3000)));
        load.expect_death();
        mount.kill_daemon();
        load.wait()?;
        let told = |why: Failure| Failure::Failed(format!("seed {seed}, round {round}: {why}"));
        mount.lose_index()?;
        mount.rebuild_index()?;
        mount.fsck_tiers()?;
        mount.mount()?;
        load.verify_contents(&snapshot(mount.dir())?).map_err(told)?;
        mount.unmount()?;
        load.verify_contents(&snapshot(mount.backing())?).map_err(told)?;
        ensure!(load.acknowledged() > 0, "no step was acknowledged: nothing was tested");
    }
    Ok(())
}

/// Checks the tiers, mounts again, verifies the load and that older rounds have not changed.
fn recover(mount: &mut ForebayMount, load: &Load, settled: &Snapshot) -> Outcome<Snapshot> {
    mount.fsck_tiers()?;
    mount.mount()?;
    load.verify()?;
    let now = snapshot(mount.dir())?;
    let old = now.iter().filter(|(path, _)| settled.contains_key(*path));
    same_tree(&old.map(|(k, v)| (k.clone(), *v)).collect(), settled, "an earlier round")?;
    Ok(now)
}

/// Unmounts and compares the backing store with what the mount showed.
fn drained(mount: &mut ForebayMount, settled: &Snapshot) -> Outcome {
    mount.unmount()?;
    mount.fsck_tiers()?;
    let mut left = snapshot(mount.backing())?;
    // The private area stays, and with it the mark of the store.
    left.retain(|path, _| ![".forebay", ".forebay/store"].map(Path::new).contains(&path.as_path()));
    let private: Vec<_> = left.keys().filter(|path| path.starts_with(".forebay")).collect();
    ensure!(private.is_empty(), "left in the backing store after the drain: {private:?}");
    same_tree(&left, settled, "the backing store after the drain")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::eventually;
    use crate::subject::NativeDir;

    /// A load on a native directory, stopped at some moment as by a crash.
    fn stopped_load(dir: &Path) -> Load {
        let mut load = Load::start(dir, 77, 3, 1).unwrap();
        assert!(eventually(Duration::from_secs(20), || load.acknowledged() > 300));
        load.progress.stop();
        load.wait().unwrap();
        load
    }

    #[test]
    fn verify_when_nothing_was_lost_then_it_passes() {
        let dir = NativeDir::in_memory().unwrap();
        stopped_load(dir.dir()).verify().unwrap();
    }

    #[test]
    fn verify_when_a_file_is_lost_or_torn_or_left_over_then_it_fails() {
        let dir = NativeDir::in_memory().unwrap();
        let load = stopped_load(dir.dir());
        let home = dir.dir().join("writer1");
        let file = os::names(&home).unwrap().into_iter().find(|name| {
            let path = home.join(name);
            os::file_type(&path) == Ok(FileType::RegularFile) && os::size(path).unwrap() > 0
        });
        let path = home.join(file.expect("300 steps leave a file"));
        let content = os::read_all(&path).unwrap();

        os::write_file(&path, &content[..content.len() / 2]).unwrap();
        assert!(load.verify().is_err(), "a torn file passed");
        let mut flipped = content.clone();
        flipped[5] ^= 1;
        os::write_file(&path, &flipped).unwrap();
        assert!(load.verify().is_err(), "a flipped bit passed");
        rustix::fs::unlink(&path).unwrap();
        assert!(load.verify().is_err(), "a lost file passed");
        os::write_file(&path, &content).unwrap();
        load.verify().unwrap();
        os::write_file(home.join(".tmp-123"), b"").unwrap();
        assert!(load.verify().is_err(), "a temporary passed");
    }
}
