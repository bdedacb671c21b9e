//! Hints: the reference sequences of jobs, given by path, held by inode.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_core::prefetch::JobSnapshot;
use forebay_core::steward::{Event, HintChange, Reference};
use forebay_core::unit::Bytes;
use forebay_types::FileKind;
use parking_lot::Mutex;

use crate::error::{NodeError, Result};
use crate::node::Node;

/// Jobs that may have hints at one time.
pub const MAX_JOBS: usize = 64;
/// References of all jobs that are remembered at one time, with one more for each file that they
/// name.
pub const MAX_REFERENCES: u64 = 1 << 22;
/// Refused paths that are listed; more are only counted.
const LISTED: usize = 50;

/// One part of a job's reference sequence.
#[derive(Debug, Clone, Copy)]
pub struct HintPart<'a> {
    /// The job's name.
    pub job: &'a str,
    /// What the job was given before is forgotten first.
    pub replace: bool,
    /// Nothing will follow: what was named and is past is not needed any more.
    pub last: bool,
    /// When the job is forgotten by itself, from now on.
    pub expires: Duration,
}

/// What came of one part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hinted {
    /// References taken.
    pub accepted: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Some of the paths that were not, each with the reason.
    pub refused: Vec<(PathBuf, String)>,
    /// All of them.
    pub refused_count: u64,
}

/// A job as status shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HintReport {
    /// Its name.
    pub job: String,
    /// Paths of its sequence that were not taken.
    pub refused: u64,
    /// When it is forgotten, from now.
    pub expires: Duration,
    /// What became of its sequence.
    pub state: JobSnapshot,
}

struct Job {
    name: String,
    id: u64,
    refused: u64,
    expires: Instant,
}

/// The jobs that have hints.
#[derive(Default)]
pub struct Hints(Mutex<Jobs>);

#[derive(Default)]
struct Jobs {
    list: Vec<Job>,
    next_id: u64,
}

impl Node {
    /// Takes a part of a job's reference sequence, in order. Paths are relative to the root; what is
    /// no regular file is left out and reported. `go_on` is called now and then, and stops the work
    /// by answering false.
    ///
    /// # Errors
    /// Too many jobs or references.
    pub fn hint(
        &self,
        part: &HintPart<'_>,
        paths: &mut dyn Iterator<Item = &Path>,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Hinted> {
        let mut hinted = Hinted::default();
        let mut references = Vec::new();
        for path in paths {
            match self.reference(path) {
                Ok(reference) => {
                    hinted.accepted += 1;
                    hinted.bytes += reference.size.0;
                    references.push(reference);
                }
                Err(why) => {
                    hinted.refused_count += 1;
                    if hinted.refused.len() < LISTED {
                        hinted.refused.push((path.to_owned(), why));
                    }
                }
            }
            let done = hinted.accepted + hinted.refused_count;
            if done.is_multiple_of(256) && !go_on(done) {
                return Err(NodeError::Posix(rustix::io::Errno::INTR));
            }
        }
        self.take_part(part, references, hinted.refused_count)?;
        Ok(hinted)
    }

    /// What a path stands for.
    fn reference(&self, path: &Path) -> std::result::Result<Reference, String> {
        let ino = self.find_path(path).map_err(|error| error.to_string())?;
        let record = self.meta.get(ino).map_err(|error| error.to_string())?;
        match record.attr.kind {
            FileKind::Regular => {
                Ok(Reference { object: ino, size: Bytes(self.residency.live_attr(&record).0.size) })
            }
            FileKind::Directory => Err("is a directory: name the files in it".into()),
            FileKind::Symlink => Err("is a symbolic link: name the file it leads to".into()),
            _ => Err("is not a regular file".into()),
        }
    }

    fn take_part(
        &self,
        part: &HintPart<'_>,
        references: Vec<Reference>,
        refused: u64,
    ) -> Result<()> {
        let mut jobs = self.hints.0.lock();
        if part.replace {
            self.withdraw_known(&mut jobs, part.job);
        }
        let remembered = self.residency.steward.lock().remembered();
        if remembered + 2 * references.len() as u64 > MAX_REFERENCES {
            return Err(NodeError::Config(format!(
                "hints name {remembered} files and references, {MAX_REFERENCES} are the most: \
                 withdraw finished jobs, or give the sequence in parts as the job goes along \
                 (--append --open)"
            )));
        }
        let known = jobs.list.iter().position(|job| job.name == part.job);
        let at = match known {
            Some(at) => at,
            None if jobs.list.len() >= MAX_JOBS => {
                return Err(NodeError::Config(format!(
                    "{MAX_JOBS} jobs have hints, more can't: withdraw finished ones"
                )));
            }
            None => {
                jobs.next_id += 1;
                let id = jobs.next_id;
                let name = part.job.to_owned();
                jobs.list.push(Job { name, id, refused: 0, expires: Instant::now() });
                jobs.list.len() - 1
            }
        };
        let job = &mut jobs.list[at];
        job.refused += refused;
        job.expires = Instant::now() + part.expires;
        // Under the lock of the jobs: two parts come in the order in which they were taken.
        self.residency.decide(Event::Hint { job: job.id, change: HintChange::Append(references) });
        if part.last {
            self.residency.decide(Event::Hint { job: job.id, change: HintChange::Close });
        }
        Ok(())
    }

    /// Forgets a job's sequence; false if there was none.
    pub fn withdraw_hint(&self, job: &str) -> bool {
        self.withdraw_known(&mut self.hints.0.lock(), job)
    }

    fn withdraw_known(&self, jobs: &mut Jobs, name: &str) -> bool {
        let Some(at) = jobs.list.iter().position(|job| job.name == name) else { return false };
        let job = jobs.list.remove(at);
        self.residency.decide(Event::Hint { job: job.id, change: HintChange::Withdraw });
        true
    }

    /// Forgets the jobs whose time is over.
    pub(crate) fn expire_hints(&self) {
        let now = Instant::now();
        let mut jobs = self.hints.0.lock();
        while let Some(at) = jobs.list.iter().position(|job| job.expires <= now) {
            let job = jobs.list.remove(at);
            tracing::info!(job = job.name, "the hints of a job have expired");
            self.residency.decide(Event::Hint { job: job.id, change: HintChange::Withdraw });
        }
    }

    /// The jobs that have hints, in the order in which they came.
    pub fn hint_reports(&self) -> Vec<HintReport> {
        let jobs = self.hints.0.lock();
        let states = self.residency.steward.lock().jobs();
        let now = Instant::now();
        let report = |job: &Job| {
            let state = *states.iter().find(|state| state.job == job.id)?;
            Some(HintReport {
                job: job.name.clone(),
                refused: job.refused,
                expires: job.expires.saturating_duration_since(now),
                state,
            })
        };
        jobs.list.iter().filter_map(report).collect()
    }
}
