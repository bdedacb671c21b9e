//! What happens on a mount, recorded: the opens of programs for whoever asks ([`Tracer`]), and every
//! event and decision of the steward from the start ([`EventLog`]), which the simulator replays.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_core::steward::{Action, Event, StewardConfig, log};
use forebay_core::unit::Tick;
use forebay_types::Ino;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::error::{NodeError, Result};

/// Opens that wait to be taken; more are only counted.
const WAITING: usize = 1 << 16;
/// Whoever records and does not ask for this long has gone away.
const SILENT: Duration = Duration::from_secs(30);

/// An open of a file by a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
    /// When, since the recording began.
    pub at: Duration,
    /// The inode number.
    pub ino: u64,
    /// The file's size in bytes; 0 for one that was made by this open.
    pub size: u64,
    /// Whether it may be written to.
    pub write: bool,
    /// Its path from the root; empty if it has none any more.
    pub path: Vec<u8>,
}

/// What was recorded since the last time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Opens in their order.
    pub opens: Vec<Opening>,
    /// Opens that were lost because nobody took them in time.
    pub lost: u64,
}

struct Recording {
    began: Instant,
    asked: Instant,
    opens: VecDeque<(Duration, u64, u64, bool)>,
    lost: u64,
}

/// Tells one listener of opens. Costs nothing while there is none.
#[derive(Default)]
pub struct Tracer {
    on: AtomicBool,
    recording: Mutex<Option<Recording>>,
}

impl Tracer {
    /// A file is opened.
    pub(crate) fn note(&self, ino: Ino, size: u64, write: bool) {
        if !self.on.load(Ordering::Relaxed) {
            return;
        }
        let mut recording = self.recording.lock();
        let Some(found) = &mut *recording else { return };
        if found.asked.elapsed() > SILENT {
            *recording = None;
            self.on.store(false, Ordering::Relaxed);
        } else if found.opens.len() >= WAITING {
            found.lost += 1;
        } else {
            found.opens.push_back((found.began.elapsed(), ino.0, size, write));
        }
    }

    /// Begins to record opens.
    ///
    /// # Errors
    /// `EBUSY` while somebody else records.
    pub(crate) fn start(&self) -> Result<()> {
        let mut recording = self.recording.lock();
        if recording.as_ref().is_some_and(|found| found.asked.elapsed() <= SILENT) {
            return Err(NodeError::Posix(Errno::BUSY));
        }
        let now = Instant::now();
        *recording = Some(Recording { began: now, asked: now, opens: VecDeque::new(), lost: 0 });
        self.on.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// What was recorded since the last call, at most `most` opens; with `stop` the recording ends.
    ///
    /// # Errors
    /// `ENOENT` if none is under way.
    pub(crate) fn take(
        &self,
        most: usize,
        stop: bool,
        path_of: impl Fn(Ino) -> Vec<u8>,
    ) -> Result<Recorded> {
        let mut recording = self.recording.lock();
        let found = recording.as_mut().ok_or(NodeError::Posix(Errno::NOENT))?;
        found.asked = Instant::now();
        let lost = std::mem::take(&mut found.lost);
        let count = found.opens.len().min(most);
        let opens: Vec<_> = found.opens.drain(..count).collect();
        if stop && found.opens.is_empty() {
            *recording = None;
            self.on.store(false, Ordering::Relaxed);
        }
        drop(recording);
        let opening =
            |(at, ino, size, write)| Opening { at, ino, size, write, path: path_of(Ino(ino)) };
        Ok(Recorded { opens: opens.into_iter().map(opening).collect(), lost })
    }
}

/// Bytes of a log that may wait to be written, and that it may have in all.
const LOG_WAITING: usize = 16 << 20;
const MAX_LOG: u64 = 1 << 30;

/// The steward's event log, written by a thread that nobody waits for.
pub struct EventLog {
    path: PathBuf,
    buffer: Mutex<LogBuffer>,
    file: Mutex<File>,
}

/// Steps that are not in the file yet.
#[derive(Default)]
struct LogBuffer {
    text: String,
    written: u64,
    /// The log is as long as it may be, or can't be written: it ends with a whole step.
    ended: bool,
}

impl EventLog {
    /// A new log in `path`, which must not be there yet or is replaced.
    ///
    /// # Errors
    /// When it can't be made.
    pub(crate) fn create(path: &Path, config: &StewardConfig) -> Result<Self> {
        let file = File::create(path).map_err(|error| {
            NodeError::Config(format!("--event-log {}: {error}", path.display()))
        })?;
        let mut buffer = LogBuffer::default();
        log::write_head(config, &mut buffer.text);
        Ok(Self { path: path.to_owned(), buffer: Mutex::new(buffer), file: Mutex::new(file) })
    }

    /// One step of the steward.
    pub(crate) fn record(&self, now: Tick, event: &Event, actions: &[Action]) {
        let mut buffer = self.buffer.lock();
        if buffer.ended {
            return;
        }
        log::write_step(now, event, actions, &mut buffer.text);
        let total = buffer.written + buffer.text.len() as u64;
        if buffer.text.len() > LOG_WAITING || total > MAX_LOG {
            buffer.ended = true;
            tracing::warn!(log = %self.path.display(), "the event log is full and ends here");
        }
    }

    /// Writes what waits.
    pub(crate) fn write_out(&self) {
        let mut file = self.file.lock();
        let text = {
            let mut buffer = self.buffer.lock();
            buffer.written += buffer.text.len() as u64;
            std::mem::take(&mut buffer.text)
        };
        if let Err(error) = file.write_all(text.as_bytes()) {
            tracing::warn!(log = %self.path.display(), %error, "the event log ends here");
            self.buffer.lock().ended = true;
        }
    }
}
