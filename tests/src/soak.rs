//! Soak: for as long as one likes, programs work on a mount whose backing store fails now and then and
//! whose daemons are replaced and killed. What was acknowledged must be there, and what the daemon takes
//! up (memory, descriptors, threads) and leaves behind must not grow.
//!
//! Work comes in eras, with a load of its own each. Between two of them all is brought to rest, so that
//! like is compared with like. The load of the first era stays to the end, and must then be in the
//! backing store.

mod curves;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use curves::{Curves, Sample};

use crate::crash::{Load, same_tree, snapshot};
use crate::failure::{Failure, Outcome};
use crate::process::{Child, eventually};
use crate::programs;
use crate::random::Random;
use crate::subject::{binary, is_mounted, run_checked, run_command};
use crate::watchdog;

/// What may go wrong in the backing store, and how often: before something is done, half-way, and after
/// it was done, when only the answer is an error.
const FAULTS: &[&str] = &[
    "node.flush.begin",
    "node.flush.copied",
    "node.flush.publish",
    "node.flush.published",
    "node.reconcile.before_rename",
    "node.reconcile.after_rename",
    "node.reconcile.before_link",
    "node.reconcile.before_unlink",
    "node.reconcile.before_make",
    "node.reconcile.before_sync",
    "node.reconcile.before_report",
    "store.commit.before_sync",
    "store.commit.before_rename",
    "store.commit.before_exchange",
    "store.commit.answer_of_rename",
    "store.commit.answer_of_exchange",
    "store.commit.answer_of_unlink",
    "store.sync_held.before",
];
const FAULT_PERCENT: u32 = 3;

const WRITERS: usize = 4;
/// Programs that are run in each era, besides.
const PROGRAMS: &[&str] = &["cp", "listing", "dd", "flock", "sqlite", "git", "rsync", "tar"];
const TIER: &str = "64M";
/// Longer than any single step takes.
const STEP_LIMIT: Duration = Duration::from_secs(240);
const COMMAND_LIMIT: Duration = Duration::from_secs(120);
/// A supervisor gives a daemon up that dies more often.
const BETWEEN_KILLS: Duration = Duration::from_secs(15);
const BETWEEN_SAMPLES: Duration = Duration::from_secs(1);

/// How long, and where the results go.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The whole run, but for the drain at its end.
    pub length: Duration,
    /// Repeats the steps of a run (not its timing).
    pub seed: u64,
    /// A directory for `soak.csv` and `soak.svg`; without it nothing is written.
    pub results: Option<PathBuf>,
}

/// Directories and commands of one run; ends its mount and its daemons, however it ends.
struct Site {
    root: tempfile::TempDir,
    memory: tempfile::TempDir,
    has_faults: bool,
}

impl Site {
    fn new() -> Outcome<Self> {
        binary()?;
        let in_memory = tempfile::Builder::new().prefix("forebay-soak-").tempdir_in("/dev/shm")?;
        let mut site = Self { root: tempfile::tempdir()?, memory: in_memory, has_faults: false };
        for dir in ["backing", "mnt", "run"] {
            fs::create_dir(site.path(dir))?;
        }
        let known = run_checked(site.forebay().args(["debug", "failpoints"]), COMMAND_LIMIT)?;
        site.has_faults = !known.trim().is_empty();
        Ok(site)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn tier(&self) -> PathBuf {
        self.memory.path().join("tier")
    }

    fn forebay(&self) -> Command {
        let mut command = Command::new(binary().unwrap_or_else(|_| "forebay".into()));
        command.env("FOREBAY_RUNTIME_DIR", self.path("run")).stdin(Stdio::null());
        command
    }

    fn mount(&self, with_faults: bool) -> Outcome {
        let tier = format!("{}={TIER}", self.tier().display());
        let mut command = self.forebay();
        command.arg("mount").args([self.path("backing"), self.path("mnt")]);
        command.args(["--tier", &tier, "--writeback", "1s"]);
        if with_faults && self.has_faults {
            let fault = |name: &&str| format!("{name}={FAULT_PERCENT}%return");
            let faults: Vec<_> = FAULTS.iter().map(fault).collect();
            command.env("FAILPOINTS", faults.join(";"));
        }
        run_checked(&mut command, COMMAND_LIMIT)?;
        Ok(())
    }

    /// The daemon that serves now.
    fn daemon(&self) -> Option<i32> {
        let mut command = self.forebay();
        command.args(["debug", "pid"]).arg(self.path("mnt"));
        run_checked(&mut command, COMMAND_LIMIT).ok()?.trim().parse().ok()
    }

    fn upgrade(&self) -> Outcome {
        run_checked(self.forebay().arg("upgrade").arg(self.path("mnt")), COMMAND_LIMIT)?;
        Ok(())
    }

    /// kill -9 of the daemon; the next one serves when this returns.
    fn kill(&self) -> Outcome {
        let Some(daemon) = self.daemon() else { return Err(Failure::at("no daemon to kill")) };
        // SAFETY: numbers only; the process serves this run's own mount.
        unsafe { libc::kill(daemon, libc::SIGKILL) };
        let restarted = || self.daemon().is_some_and(|now| now != daemon);
        ensure!(eventually(COMMAND_LIMIT, restarted), "no daemon after a kill");
        Ok(())
    }

    fn status(&self) -> Outcome<serde_json::Value> {
        let mut command = self.forebay();
        let text =
            run_checked(command.args(["status", "--json"]).arg(self.path("mnt")), COMMAND_LIMIT)?;
        serde_json::from_str(&text).map_err(Failure::at)
    }

    fn umount(&self, more: &[&str]) -> Outcome {
        let mut command = self.forebay();
        run_checked(command.arg("umount").arg(self.path("mnt")).args(more), COMMAND_LIMIT)?;
        Ok(())
    }

    /// What the daemon takes up and has left behind at this moment.
    fn sample(&self) -> Option<[f64; 5]> {
        let process = Path::new("/proc").join(self.daemon()?.to_string());
        let status = fs::read_to_string(process.join("status")).ok()?;
        let number = |key: &str| -> Option<f64> {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            line.split_whitespace().next()?.parse().ok()
        };
        // Handles on the tier's own directories are kept, 256 of them at most.
        let objects = self.tier().join("objects");
        let is_kept = |target: &Path| target.starts_with(&objects) && target.is_dir();
        let open = fs::read_dir(process.join("fd")).ok()?.flatten();
        let targets = open.filter_map(|entry| fs::read_link(entry.path()).ok());
        let open = targets.filter(|target| !is_kept(target)).count();
        let strays = |dir: &Path, but: &[&str]| count_files(dir, but) as f64;
        Some([
            number("VmRSS:")? / 1024.0,
            open as f64,
            number("Threads:")?,
            strays(&self.path("backing/.forebay"), &["store"]),
            strays(&self.tier(), &["state"]),
        ])
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let mnt = self.path("mnt");
        for _ in 0..5 {
            if !is_mounted(&mnt) {
                break;
            }
            watchdog::unmount_lazily(&mnt);
        }
    }
}

/// Files below a directory, but for what lies under these names in it.
fn count_files(dir: &Path, but: &[&str]) -> usize {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let counted = entries.filter(|entry| !but.iter().any(|name| entry.file_name() == *name));
    counted
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => count_files(&entry.path(), &[]),
            _ => 1,
        })
        .sum()
}

/// A run.
struct Run {
    site: Site,
    random: Random,
    curves: Curves,
    began: Instant,
    upgrades: u32,
    kills: u32,
    steps: u64,
    last_kill: Option<Instant>,
}

/// Runs as long as the settings say; fails when something acknowledged is missing, a program fails, or a
/// curve rises.
pub fn run(settings: &Settings) -> Outcome {
    let site = Site::new()?;
    if !site.has_faults {
        println!("the binary has no fail points: the backing store will not fail");
    }
    let now = Instant::now();
    let mut run = Run {
        site,
        random: Random::new(settings.seed),
        curves: Curves::default(),
        began: now,
        upgrades: 0,
        kills: 0,
        steps: 0,
        last_kill: None,
    };
    let outcome = run.all(settings.length);
    if let Some(dir) = &settings.results {
        fs::create_dir_all(dir)?;
        fs::write(dir.join("soak.csv"), run.curves.to_csv())?;
        fs::write(dir.join("soak.svg"), run.curves.to_svg())?;
    }
    println!(
        "{} eras, {} upgrades, {} kills, {} steps acknowledged",
        run.curves.eras(),
        run.upgrades,
        run.kills,
        run.steps
    );
    print!("{}", run.curves.table());
    outcome?;
    let rising = run.curves.rising();
    ensure!(rising.is_empty(), "{}", rising.join("\n"));
    Ok(())
}

impl Run {
    fn all(&mut self, length: Duration) -> Outcome {
        let guard = watchdog::guard(STEP_LIMIT, "the soak's mount");
        self.site.mount(true)?;
        let era_length = (length / 10).clamp(Duration::from_secs(3), Duration::from_secs(40));
        let mut kept = None;
        let mut era = 0;
        while self.began.elapsed() < length {
            guard.renew(STEP_LIMIT + era_length);
            let load = self.era(era, era_length)?;
            match kept {
                None => kept = Some(load),
                Some(_) => fs::remove_dir_all(self.home(era))?,
            }
            guard.renew(STEP_LIMIT);
            self.rest(era)?;
            era += 1;
        }
        let Some(kept) = kept else { return Err(Failure::at("no era was run")) };
        guard.renew(STEP_LIMIT);
        kept.verify()?;
        let seen = snapshot(&self.home(0))?;
        // The store is well again, and everything drains by itself.
        self.site.umount(&["--no-drain"])?;
        guard.renew(STEP_LIMIT);
        self.site.mount(false)?;
        self.site.umount(&[])?;
        let there = snapshot(&self.site.path("backing/era0"))?;
        same_tree(&there, &seen, "the backing store at the end")?;
        let left = count_files(&self.site.path("backing/.forebay"), &["store"]);
        ensure!(left == 0, "{left} files are left in the backing store's private area");
        Ok(())
    }

    fn home(&self, era: usize) -> PathBuf {
        self.site.path("mnt").join(format!("era{era}"))
    }

    /// Programs work, and daemons come and go.
    fn era(&mut self, era: usize, length: Duration) -> Outcome<Load> {
        let home = self.home(era);
        fs::create_dir(&home)?;
        let mut load = Load::start(&home, self.random.bits(), WRITERS, 1)?;
        let began = Instant::now();
        let mut next = began + Duration::from_millis(self.random.between(500, 3000));
        let mut program = Some(self.start_program(era)?);
        while began.elapsed() < length || program.is_some() {
            std::thread::sleep(BETWEEN_SAMPLES);
            ensure!(!load.any_ended(), "a writer ended: {:?}", load.wait());
            if let Some(ended) = program.take_if(|program| program.has_ended()) {
                ended.join()?;
            }
            self.note(era, false);
            if Instant::now() >= next && began.elapsed() < length {
                self.change_daemons()?;
                next = Instant::now() + Duration::from_millis(self.random.between(1500, 6000));
            }
        }
        load.stop();
        load.wait()?;
        self.steps += load.acknowledged();
        load.verify()
            .map_err(|why| Failure::Failed(format!("era {era}, what was acknowledged: {why}")))?;
        Ok(load)
    }

    /// One of the programs in a process of its own, so that the daemons change under it.
    fn start_program(&mut self, era: usize) -> Outcome<Child> {
        let home = self.site.path("mnt").join(format!("programs{era}"));
        let name = *self.random.pick(PROGRAMS);
        Child::start(move || {
            fs::create_dir(&home)?;
            let failed = programs::run_some(&home, &[name]);
            fs::remove_dir_all(&home)?;
            ensure!(failed.is_empty(), "{failed:?}");
            Ok(())
        })
    }

    fn change_daemons(&mut self) -> Outcome {
        let may_kill = self.last_kill.is_none_or(|last| last.elapsed() >= BETWEEN_KILLS);
        // A short run has one of each.
        if may_kill && self.upgrades > 0 && (self.kills == 0 || self.random.one_in(2)) {
            self.site.kill()?;
            self.last_kill = Some(Instant::now());
            self.kills += 1;
        } else {
            self.site.upgrade()?;
            self.upgrades += 1;
        }
        Ok(())
    }

    /// Nothing is left to be done, though the store goes on failing.
    fn rest(&mut self, era: usize) -> Outcome {
        let mnt = self.site.path("mnt");
        let at_rest = || {
            // What failed is tried again.
            let _ = run_command(self.site.forebay().arg("sync").arg(&mnt), COMMAND_LIMIT);
            let status = self.site.status().unwrap_or_default();
            status["backlog"]["entries"] == 0 && status["dirty"]["files"] == 0
        };
        ensure!(
            eventually(COMMAND_LIMIT, at_rest),
            "not everything was written: {}",
            self.site.status().unwrap_or_default()["backlog"]
        );
        // What faults have left behind is looked for every two seconds.
        std::thread::sleep(Duration::from_secs(3));
        self.note(era, true);
        Ok(())
    }

    fn note(&mut self, era: usize, at_rest: bool) {
        if let Some(values) = self.site.sample() {
            let seconds = self.began.elapsed().as_secs_f64();
            self.curves.add(Sample { seconds, era, at_rest, values });
        }
    }
}
