//! The service: a thread that drives the machine of `forebay_core::streams` with a real device.

mod best_effort;
mod driver;
mod status;
mod stream;
mod turn;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::model::{
    AdmissionConfig, Assurance, DeviceProfile, Machine, MachineConfig, Rate, Refusal, Shortage,
    StreamId,
};
use crossbeam_channel::{Sender, bounded, unbounded};
use serde::{Deserialize, Serialize};

use crate::device::{CHUNKS_MAX, Device};
use crate::error::Error;
use crate::media::{Library, Media};
use crate::pool::Pool;
use driver::Driver;
pub(crate) use driver::Wish;
pub use status::{Histogram, Status, StreamLine};
pub use stream::{Stream, StreamError};
pub use turn::Turn;

/// How long the driver may take to answer; it decides within milliseconds.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Share of the memory for reads without a guarantee.
const BEST_EFFORT_SHARE: u64 = 8;
/// Bytes of a read at most: what a deadline may have to wait for.
const REQUEST_MAX: u64 = 1 << 20;
/// When to come again if nobody knows when a stream will end.
const RETRY_MS: u64 = 5_000;

/// What a service is made of.
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// The directory whose files are streamed.
    pub library: PathBuf,
    /// Bytes of memory for what is read ahead.
    pub memory: u64,
    /// Bytes of a piece of it; a multiple of 4096.
    pub chunk: usize,
    /// How sure admission is.
    pub assurance: Assurance,
}

/// What a reader wants to be sure of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// So many bytes a second, always.
    Guaranteed {
        /// Bytes a second.
        rate: u64,
    },
    /// What the device has left.
    BestEffort,
}

/// A wish for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamRequest {
    /// What is to be sure.
    pub class: Class,
    /// First byte.
    pub start: u64,
    /// Bytes; to the end of the file if none.
    pub length: Option<u64>,
    /// Refuse rather than start later than this.
    pub max_startup_ms: Option<u64>,
}

impl StreamRequest {
    /// A whole file at so many bytes a second.
    pub fn at_rate(rate: u64) -> Self {
        let class = Class::Guaranteed { rate };
        Self { class, start: 0, length: None, max_startup_ms: None }
    }
}

/// Why a stream is not admitted, and what would help.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Rejected {
    /// One word: `device`, `memory`, `throttle`, `rate`, `places`, `startup`, `stopped`, `senseless`.
    pub reason: String,
    /// The reason for people.
    pub message: String,
    /// When it may be worth while to come again.
    pub retry_after_ms: u64,
    /// The highest rate that would be admitted now, in bytes a second, if any.
    pub suggested_rate: Option<u64>,
}

impl Rejected {
    fn of(refusal: &Refusal) -> Self {
        let reason = match refusal.shortage {
            Shortage::Device => "device",
            Shortage::Memory => "memory",
            Shortage::Throttle => "throttle",
            Shortage::Alone => "rate",
            Shortage::Places => "places",
        };
        Self {
            reason: reason.into(),
            message: refusal.to_string(),
            retry_after_ms: refusal.retry_after.map_or(RETRY_MS, |nanos| nanos / 1_000_000),
            suggested_rate: refusal.fitting_rate,
        }
    }

    fn plain(reason: &str, message: String) -> Self {
        let reason = reason.into();
        Self { reason, message, retry_after_ms: RETRY_MS, suggested_rate: None }
    }

    fn stopped() -> Self {
        Self::plain("stopped", "the service has stopped or does not answer".into())
    }

    /// For what can't be a stream at all.
    pub fn senseless(message: String) -> Self {
        Self::plain("senseless", message)
    }

    /// For one stream more than `most`.
    pub fn of_places(most: usize) -> Self {
        Self::plain("places", format!("{most} streams are open, more can't"))
    }
}

/// Why a stream could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no room for it.
    #[error(transparent)]
    Rejected(#[from] Rejected),
    /// Something failed.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// Called once with the answer. A stream that nobody takes out of it is closed.
type OpenReply = Box<dyn FnOnce(Result<Stream, Rejected>) + Send>;
type Answer = Sender<Result<Duration, Rejected>>;

/// What the driver is asked for.
enum Command {
    Open { wish: driver::Wish, reply: OpenReply },
    Consumed { stream: StreamId, bytes: u64 },
    Leave(StreamId),
    Pause(StreamId),
    Resume { stream: StreamId, reply: Answer },
    Seek { stream: StreamId, offset: u64, reply: Answer },
    SetRate { stream: StreamId, rate: Rate, reply: Answer },
    Turn { physical: u64, bytes: u64, reply: Sender<()> },
    TurnEnded { service: Duration },
    Status(Sender<Status>),
    Stop,
}

/// Tells the driver to stop when nobody has the service any more.
#[derive(Debug)]
struct Handle {
    commands: Sender<Command>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Stop);
    }
}

/// A running service. Clones are the same service; it ends with [`Service::stop`] or when the last
/// clone is dropped.
#[derive(Clone, Debug)]
pub struct Service {
    handle: Arc<Handle>,
    library: Arc<Library>,
    device: Arc<dyn Device>,
}

impl Service {
    /// Starts a service of a device that is as `profile` says.
    ///
    /// # Errors
    /// If the library can't be opened, or memory and chunk make no sense.
    pub fn start(
        config: ServiceConfig,
        device: Arc<dyn Device>,
        profile: DeviceProfile,
    ) -> Result<Self, Error> {
        let at = |source| Error::File { path: config.library.clone(), source };
        let library = Arc::new(Library::open(&config.library).map_err(at)?);
        let chunk = config.chunk as u64;
        let spare = (config.memory / BEST_EFFORT_SHARE).max(chunk);
        let memory = config.memory.saturating_sub(spare);
        let pool = Pool::new(memory, config.chunk).map_err(Error::Memory)?;
        let spare = Pool::new(spare, config.chunk).map_err(Error::Memory)?;
        let admission = AdmissionConfig {
            assurance: config.assurance,
            memory: pool.bytes(),
            chunk,
            ..AdmissionConfig::default()
        };
        // One more chunk than the bytes fill if they begin and end within chunks.
        let request = REQUEST_MAX.min(chunk * (CHUNKS_MAX as u64 - 1)).max(chunk);
        let settings = MachineConfig { admission, request, ..MachineConfig::default() };
        let name = profile.name.clone();
        let machine =
            Machine::new(profile, settings).map_err(|error| Error::Settings(error.to_string()))?;
        // Bounded by what it carries: reports of memory that is given back, of which there is a
        // limited number, and questions of threads that wait for the answer.
        let (commands, receiver) = unbounded();
        let parts = driver::Parts {
            machine,
            pool,
            spare,
            device: Arc::clone(&device),
            library: config.library.display().to_string(),
            profile: name,
            commands: commands.clone(),
        };
        let work = move || Driver::new(parts).run(&receiver);
        let spawned = std::thread::Builder::new().name("stream-driver".into()).spawn(work);
        spawned.map_err(Error::Thread)?;
        Ok(Self { handle: Arc::new(Handle { commands }), library, device })
    }

    /// The directory whose files are streamed.
    pub fn library(&self) -> &Library {
        &self.library
    }

    /// Opens a stream of a file of the library.
    ///
    /// # Errors
    /// [`OpenError::Rejected`] if there is no room, else what failed.
    pub fn open_stream(&self, path: &Path, request: &StreamRequest) -> Result<Stream, OpenError> {
        let at = |source| Error::File { path: path.to_path_buf(), source };
        let file = self.library.file(path).map_err(at)?;
        self.open_file(file, path, request)
    }

    /// Opens a stream of a file that is open already; `path` is for people.
    ///
    /// # Errors
    /// As [`Service::open_stream`].
    pub fn open_file(
        &self,
        file: File,
        path: &Path,
        request: &StreamRequest,
    ) -> Result<Stream, OpenError> {
        let wish = self.wish(file, path, request)?;
        let (sender, replies) = bounded(1);
        // Whoever has stopped waiting has no use for the answer.
        self.ask(wish, Box::new(move |answer| drop(sender.send(answer))))?;
        Ok(replies.recv_timeout(ANSWER_LIMIT).map_err(|_| Rejected::stopped())??)
    }

    /// As [`Service::open_file`], without blocking.
    pub(crate) async fn open(&self, wish: driver::Wish) -> Result<Stream, Rejected> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.ask(wish, Box::new(move |answer| drop(sender.send(answer))))?;
        receiver.await.unwrap_or_else(|_| Err(Rejected::stopped()))
    }

    fn ask(&self, wish: driver::Wish, reply: OpenReply) -> Result<(), Rejected> {
        let sent = self.handle.commands.send(Command::Open { wish, reply });
        sent.map_err(|_| Rejected::stopped())
    }

    /// What an open file and a request come to. Asks the file system, and so may take its time.
    pub(crate) fn wish(
        &self,
        file: File,
        path: &Path,
        request: &StreamRequest,
    ) -> Result<driver::Wish, OpenError> {
        let at = |source| Error::File { path: path.to_path_buf(), source };
        let key = Media::key_of(&file).map_err(at)?;
        let layout = self.device.layout(&file, key);
        let media = Arc::new(Media::new(file, self.device.access(), layout).map_err(at)?);
        let end = request
            .length
            .map_or(media.size(), |length| request.start.saturating_add(length).min(media.size()));
        if request.start >= end {
            let message = "the stream would be empty".to_owned();
            return Err(Rejected::senseless(message).into());
        }
        let rate = match request.class {
            Class::Guaranteed { rate } => {
                Some(Rate::constant(rate).map_err(|error| Rejected::senseless(error.to_string()))?)
            }
            Class::BestEffort => None,
        };
        Ok(driver::Wish {
            media,
            path: path.display().to_string(),
            rate,
            start: request.start,
            end,
            max_startup: request.max_startup_ms.map(Duration::from_millis),
        })
    }

    /// What it does and has done. Empty if it has stopped.
    pub fn status(&self) -> Status {
        let (reply, replies) = bounded(1);
        if self.handle.commands.send(Command::Status(reply)).is_err() {
            return Status::default();
        }
        replies.recv_timeout(ANSWER_LIMIT).unwrap_or_default()
    }

    /// Ends it: all streams break off.
    pub fn stop(&self) {
        let _ = self.handle.commands.send(Command::Stop);
    }
}
