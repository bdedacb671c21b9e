//! What a run leaves in the runtime directory, for its owner alone: which jobs run, since when, which
//! have ended and how.

use std::fs::{self, DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::control::{WirePath, make_private_dir, runtime_dir};
use crate::error::Error;

/// Records of runs that have ended are kept, the newest so many.
const KEPT: usize = 50;
/// A record is written at most this often.
const PAUSE: Duration = Duration::from_millis(200);
/// Bytes of a command that are noted.
const COMMAND_MAX: usize = 300;
/// A record that is longer is not read: the longest run has a shorter one.
const MAX_BYTES: u64 = 256 << 20;

/// How a job is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It waits for cores, for memory, or for other jobs.
    #[default]
    Waiting,
    /// It runs.
    Running,
    /// It has ended well.
    Done,
    /// It has ended, and not well.
    Failed,
    /// It never ran: what it waits for failed.
    Skipped,
    /// It was ended, or never began, since the run was ended.
    Cancelled,
    /// The run is gone and has not said what became of the job.
    Lost,
}

impl State {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::Cancelled => "cancelled",
            Self::Lost => "lost",
        }
    }
}

/// A job of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobRecord {
    /// Its name.
    pub name: String,
    /// How it is.
    pub state: State,
    /// Its command, perhaps cut short.
    pub command: String,
    /// Its process while it runs, or its number with Slurm.
    pub pid: Option<i64>,
    /// The node that it was placed on, if there are several, or the mount that it was migrated to.
    pub node: Option<String>,
    /// When it began last, in milliseconds since 1970.
    pub began_ms: Option<u64>,
    /// When it ended.
    pub ended_ms: Option<u64>,
    /// How often it began.
    pub tries: u32,
    /// Its exit code when it ended last; 128 and the number of a signal that ended it.
    pub exit: Option<i32>,
    /// Why it failed, was skipped or cancelled.
    pub reason: Option<String>,
}

/// A run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunRecord {
    /// Its name.
    pub run: String,
    /// The process `forebay run`.
    pub pid: i32,
    /// When that process began, as the kernel counts: another one may get its number.
    pub process_began: u64,
    /// How jobs are started: `local` or `slurm`.
    pub via: String,
    /// The mount that it knows of.
    pub mountpoint: Option<WirePath>,
    /// When it began, in milliseconds since 1970.
    pub began_ms: u64,
    /// When it ended; nothing while it runs.
    pub ended_ms: Option<u64>,
    /// Whether the process is there.
    pub alive: bool,
    /// Its jobs, in the order in which they were named.
    pub jobs: Vec<JobRecord>,
}

impl RunRecord {
    /// Jobs in this state.
    pub fn count(&self, state: State) -> usize {
        self.jobs.iter().filter(|job| job.state == state).count()
    }
}

/// Now, in milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A command in one line, without what could play tricks on a terminal.
pub fn line_of(command: &[std::ffi::OsString]) -> String {
    let words: Vec<String> = command.iter().map(|word| WirePath(word.into()).to_string()).collect();
    let line = words.join(" ");
    match line.char_indices().nth(COMMAND_MAX) {
        Some((at, _)) => format!("{}...", &line[..at]),
        None => line,
    }
}

fn dir() -> PathBuf {
    runtime_dir(rustix::process::geteuid().as_raw()).join("jobs")
}

/// A run's record, as the run keeps it.
pub struct Keeper {
    /// What it says.
    pub record: RunRecord,
    path: PathBuf,
    written: Option<(Instant, Duration)>,
    changed: bool,
}

impl Keeper {
    /// A new one. Old records go.
    pub fn new(mut record: RunRecord) -> Result<Self, Error> {
        let uid = rustix::process::geteuid().as_raw();
        make_private_dir(&runtime_dir(uid), uid)?;
        let dir = dir();
        let wrong = || Error::io(dir.display().to_string());
        match DirBuilder::new().mode(0o700).create(&dir) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => made.map_err(wrong())?,
        }
        let found = fs::symlink_metadata(&dir).map_err(wrong())?;
        if !found.is_dir() || found.uid() != uid || found.mode() & 0o077 != 0 {
            return Err(Error::Usage(format!(
                "{}: must be a directory of user {uid} that nobody else can read; remove it",
                dir.display()
            )));
        }
        prune(&dir);
        record.pid = rustix::process::getpid().as_raw_nonzero().get();
        record.process_began = began(record.pid).unwrap_or(0);
        record.run = format!("{:x}-{}", record.began_ms, record.pid);
        let path = dir.join(format!("{}.json", record.run));
        let mut keeper = Self { record, path, written: None, changed: true };
        keeper.write()?;
        Ok(keeper)
    }

    /// A job to be changed.
    pub fn job(&mut self, number: usize) -> &mut JobRecord {
        self.changed = true;
        &mut self.record.jobs[number]
    }

    /// Writes it if it has changed and was not just written; many jobs are not written again and
    /// again. Says in how long it should be tried again.
    pub fn write_soon(&mut self) -> Option<Duration> {
        if !self.changed {
            return None;
        }
        if let Some((at, took)) = self.written {
            let left = PAUSE.max(took * 20).saturating_sub(at.elapsed());
            if !left.is_zero() {
                return Some(left);
            }
        }
        if let Err(error) = self.write() {
            crate::commands::warn(&format!("`forebay jobs` shows an old state: {error}"));
        }
        None
    }

    /// The run has ended.
    pub fn end(mut self) -> RunRecord {
        self.record.ended_ms = Some(now_ms());
        if let Err(error) = self.write() {
            crate::commands::warn(&format!("`forebay jobs` shows an old state: {error}"));
        }
        self.record
    }

    fn write(&mut self) -> Result<(), Error> {
        let began = Instant::now();
        let wrong = |error| Error::io(self.path.display().to_string())(error);
        let text = serde_json::to_vec(&self.record).map_err(|error| wrong(error.into()))?;
        let new = self.path.with_extension("new");
        let mut file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)
            .map_err(wrong)?;
        file.write_all(&text).map_err(wrong)?;
        fs::rename(&new, &self.path).map_err(wrong)?;
        self.written = Some((Instant::now(), began.elapsed()));
        self.changed = false;
        Ok(())
    }
}

/// When a process began; nothing if there is none.
pub(crate) fn began(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    fields.clone().next().filter(|state| *state != "Z")?;
    fields.nth(19)?.parse().ok()
}

/// The runs of this user, the newest last. Jobs of a run that is gone without a word are lost.
pub fn all() -> Result<Vec<RunRecord>, Error> {
    let dir = dir();
    let mut runs: Vec<RunRecord> = names(&dir).iter().filter_map(|path| read(path)).collect();
    runs.sort_by_key(|run| (run.began_ms, run.pid));
    Ok(runs)
}

fn names(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|end| end == "json")).collect()
}

fn read(path: &Path) -> Option<RunRecord> {
    let found = fs::symlink_metadata(path).ok()?;
    let own = found.uid() == rustix::process::geteuid().as_raw();
    if !found.is_file() || !own || found.len() > MAX_BYTES {
        return None;
    }
    let mut run: RunRecord = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    run.alive = run.ended_ms.is_none() && began(run.pid) == Some(run.process_began);
    if !run.alive && run.ended_ms.is_none() {
        for job in &mut run.jobs {
            if matches!(job.state, State::Waiting | State::Running) {
                job.state = State::Lost;
                job.pid = None;
            }
        }
    }
    Some(run)
}

fn prune(dir: &Path) {
    let ended = |path: &PathBuf| read(path).filter(|run| !run.alive).map(|run| run.began_ms);
    let mut old: Vec<(u64, PathBuf)> =
        names(dir).into_iter().filter_map(|path| Some((ended(&path)?, path))).collect();
    old.sort_unstable();
    let many = old.len().saturating_sub(KEPT);
    for (_, path) in old.into_iter().take(many) {
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_when_long_or_odd_then_one_line_of_limited_length() {
        let line = line_of(&["sh".into(), "-c".into(), "a\nb\u{1b}[1m".into()]);
        assert_eq!(line, "sh -c a\\nb\\u{1b}[1m");
        assert_eq!(line_of(&["x".repeat(1000).into()]).len(), COMMAND_MAX + 3);
    }

    #[test]
    fn process_when_it_is_there_then_its_begin_is_known() {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        assert!(began(own).is_some_and(|began| began > 0));
        assert_eq!(began(i32::MAX), None);
    }
}
