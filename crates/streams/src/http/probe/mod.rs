//! The rate of a file that nobody has said: of an MP4 file by its index, with its course; of all others
//! as ffprobe finds it, in a sandbox. On threads of its own, a few files at a time, each version of a
//! file once, kept over restarts.

mod rate_file;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::oneshot;

use crate::error::Error;
use crate::media::{FileKey, Version};
use crate::mp4::pace::Pace;
use crate::mp4::{Index, NoIndex};
use crate::sandbox::{self, Ended};
use rate_file::RateFile;

/// How long ffprobe may look at one file.
const LIMIT: Duration = Duration::from_secs(5);
/// How long a request waits for the rate of its file, those that were asked for before included.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Files that are looked at at once.
const AT_ONCE: usize = 2;
/// Files that wait for it.
const WAITING: usize = 64;
/// Files whose rates are remembered.
const REMEMBERED: usize = 16_384;
/// A file that took too long is looked at again after this time: the machine may have been busy.
const AGAIN: Duration = Duration::from_secs(600);
const ARGUMENTS: [&str; 11] = [
    "-v",
    "error",
    "-threads",
    "1",
    "-show_entries",
    "format=duration,bit_rate",
    "-of",
    "json",
    "-protocol_whitelist",
    "file",
    "file:/dev/stdin",
];

/// How rates are found.
#[derive(Clone, Debug, Default)]
pub struct ProbeConfig {
    /// The program that looks at media, an ffprobe; looked for along `PATH` if none is named.
    pub program: Option<PathBuf>,
    /// The file that keeps what was found out; without it that is for this run only.
    pub kept: Option<PathBuf>,
}

#[derive(Clone)]
struct Found {
    pace: Option<Pace>,
    /// Until then it counts; for good if none.
    until: Option<Instant>,
}

struct Job {
    file: File,
    key: FileKey,
}

#[derive(Default)]
struct Known {
    rates: HashMap<Version, Found>,
    /// Who waits for what is being looked at.
    waiting: HashMap<Version, Vec<oneshot::Sender<Option<Pace>>>>,
    file: Option<RateFile>,
}

/// Files that were looked at, and those of them that gave no rate.
#[derive(Debug, Default)]
pub struct Looks {
    all: AtomicU64,
    failed: AtomicU64,
}

/// Finds rates.
pub struct Probe {
    known: Arc<Mutex<Known>>,
    looks: Arc<Looks>,
    jobs: Sender<Job>,
}

/// Where a program is.
fn on_the_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let all = std::env::split_paths(&path).map(|dir| dir.join(OsStr::new(name)));
    all.into_iter().find(|file| file.is_absolute() && file.is_file())
}

impl Probe {
    /// Starts the threads that look at files, if there is anything to look with.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(config: ProbeConfig) -> Result<Self, Error> {
        let mut known = Known::default();
        if let Some(path) = &config.kept {
            match RateFile::open(path) {
                Ok((file, rates)) => {
                    let found = |pace| Found { pace, until: None };
                    known.rates =
                        rates.into_iter().map(|(version, pace)| (version, found(pace))).collect();
                    known.file = Some(file);
                }
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "rates of media are not kept");
                }
            }
        }
        let (known, looks) = (Arc::new(Mutex::new(known)), Arc::default());
        let program = config.program.or_else(|| on_the_path("ffprobe"));
        match &program {
            Some(program) => {
                let (program, sandbox) = (program.display(), sandbox::means());
                tracing::info!(%program, %sandbox, "media are probed");
            }
            None => tracing::info!("no ffprobe: rates are what requests, MP4 files and --rate say"),
        }
        let (jobs, receiver) = bounded(WAITING);
        for _ in 0..AT_ONCE {
            let worker = Worker {
                program: program.clone(),
                jobs: receiver.clone(),
                known: Arc::clone(&known),
                looks: Arc::clone(&looks),
            };
            let thread = std::thread::Builder::new().name("stream-probe".into());
            thread.spawn(move || worker.run()).map_err(Error::Thread)?;
        }
        Ok(Self { known, looks, jobs })
    }

    /// How fast a file is to be read; `None` if nobody knows it or finds out in time.
    pub async fn pace(&self, file: &File, key: FileKey) -> Option<Pace> {
        let version = key.lasting();
        let answer = {
            let mut known = self.known.lock();
            let fresh = |found: &&Found| found.until.is_none_or(|until| Instant::now() < until);
            if let Some(found) = known.rates.get(&version).filter(fresh) {
                return found.pace.clone();
            }
            let (sender, answer) = oneshot::channel();
            match known.waiting.get_mut(&version) {
                Some(waiting) => waiting.push(sender),
                None => {
                    // With too many before it the request is answered without.
                    let job = Job { file: file.try_clone().ok()?, key };
                    self.jobs.try_send(job).ok()?;
                    known.waiting.insert(version, vec![sender]);
                }
            }
            answer
        };
        tokio::time::timeout(ANSWER_TIMEOUT, answer).await.ok()?.ok()?
    }

    /// Files that were looked at, and those of them that gave no rate.
    pub fn counts(&self) -> (u64, u64) {
        (self.looks.all.load(Ordering::Relaxed), self.looks.failed.load(Ordering::Relaxed))
    }
}

/// A thread that looks at files; it ends with the probe.
struct Worker {
    program: Option<PathBuf>,
    jobs: Receiver<Job>,
    known: Arc<Mutex<Known>>,
    looks: Arc<Looks>,
}

impl Worker {
    fn run(&self) {
        for job in &self.jobs {
            self.look(job);
        }
    }

    /// How fast a file is to be read, and whether the answer may be another one later.
    fn pace(&self, job: Job) -> (Option<Pace>, bool) {
        let inode = job.key.lasting().inode;
        match by_index(&job) {
            Ok(pace) => return (Some(pace), false),
            Err(NoIndex::NotMp4) => {}
            Err(why) => tracing::info!(inode, %why, "the index of an MP4 file is not used"),
        }
        // Somebody may install one.
        let Some(program) = &self.program else { return (None, true) };
        let size = job.key.size();
        let output = sandbox::run(program, &ARGUMENTS, job.file, LIMIT);
        if let Err(why) = &output {
            tracing::warn!(inode, %why, "ffprobe gave no rate of a file");
        }
        // What is no medium stays none; what did not come to an end may do so another time.
        let passing = matches!(output, Err(Ended::TimedOut(_) | Ended::NotStarted(_)));
        (output.ok().and_then(|text| read(&text, size)), passing)
    }

    fn look(&self, job: Job) {
        let version = job.key.lasting();
        let (pace, passing) = self.pace(job);
        self.looks.all.fetch_add(1, Ordering::Relaxed);
        self.looks.failed.fetch_add(u64::from(pace.is_none()), Ordering::Relaxed);
        let until = passing.then(|| Instant::now() + AGAIN);
        let mut known = self.known.lock();
        if known.rates.len() >= REMEMBERED {
            // Any of them may go: asking again costs little.
            let some: Vec<Version> = known.rates.keys().take(REMEMBERED / 4).copied().collect();
            known.rates.retain(|version, _| !some.contains(version));
        }
        known.rates.insert(version, Found { pace: pace.clone(), until });
        if let Some(file) = known.file.as_mut().filter(|_| !passing) {
            file.add(version, pace.as_ref());
        }
        for waiting in known.waiting.remove(&version).unwrap_or_default() {
            let _ = waiting.send(pace.clone());
        }
    }
}

/// By the file's own index, if it has one that can be used.
fn by_index(job: &Job) -> Result<Pace, NoIndex> {
    Pace::of(&Index::read(&job.file, job.key.size())?)
}

#[derive(Deserialize)]
struct Output {
    format: Format,
}

#[derive(Deserialize)]
struct Format {
    duration: Option<String>,
    bit_rate: Option<String>,
}

fn read(text: &str, size: u64) -> Option<Pace> {
    let format = serde_json::from_str::<Output>(text).ok()?.format;
    let number = |text: Option<String>| text?.parse::<f64>().ok().filter(|n| *n > 0.0);
    let bytes_a_second = match number(format.duration) {
        Some(seconds) => size as f64 / seconds,
        None => number(format.bit_rate)? / 8.0,
    };
    Pace::mean(bytes_a_second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_ffprobe_when_read_then_bytes_a_second_with_the_margin() {
        let both = r#"{"format": {"duration": "10.000000", "bit_rate": "800000"}}"#;
        assert_eq!(read(both, 1_000_000), Some(Pace::constant(110_000)));
        let rate_only = r#"{"format": {"bit_rate": "800000"}}"#;
        assert_eq!(read(rate_only, 5), Some(Pace::constant(110_000)));
        for senseless in [
            "{}",
            "",
            r#"{"format": {}}"#,
            r#"{"format": {"duration": "N/A"}}"#,
            r#"{"format": {"duration": "0"}}"#,
            r#"{"format": {"duration": "inf"}}"#,
        ] {
            assert_eq!(read(senseless, 1_000_000), None, "{senseless}");
        }
    }
}
