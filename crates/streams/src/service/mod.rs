//! The service: a thread that drives the machine of `forebay_core::streams` with a real device.

mod beginnings;
mod best_effort;
mod driver;
mod status;
mod stream;
#[cfg(test)]
mod tests;
mod turn;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::model::{
    AdmissionConfig, Assurance, DeviceProfile, Layout, Machine, MachineConfig, Rate, Refusal,
    Shortage, StreamId,
};
use bytes::Bytes;
use crossbeam_channel::{Sender, bounded, unbounded};
use serde::{Deserialize, Serialize};

use crate::device::{CHUNKS_MAX, Device};
use crate::error::Error;
use crate::media::{FileKey, Library, Media};
use crate::pool::Pool;
use beginnings::{Beginnings, Copier};
use driver::Driver;
pub(crate) use driver::{Burst, OpenRequest};
pub use status::{Histogram, Status, StreamLine};
pub use stream::{Stream, StreamError};
pub use turn::Turn;

/// How long the driver may take to answer; it decides within milliseconds.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// How long it may take to open a stream: whoever asks for the same as another one waits until that one
/// has its first bytes.
const OPEN_LIMIT: Duration = Duration::from_secs(60);
/// Share of the memory for reads without a guarantee.
const BEST_EFFORT_SHARE: u64 = 8;
/// Bytes of a read at most: what a deadline may have to wait for.
const REQUEST_MAX: u64 = 1 << 20;
/// [`ServiceConfig::idle`] unless somebody knows better: longer than players wait with full buffers.
pub const IDLE: Duration = Duration::from_secs(60);
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
    /// Bytes of memory for the beginnings of popular files, beside the other; 0 for none.
    pub beginnings: u64,
    /// Streams of which nobody takes anything for so long, though there is something to take, or that
    /// are paused for so long, give their places back; whoever reads one again is admitted again.
    pub idle: Duration,
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

impl Class {
    /// Bytes a second that are guaranteed.
    pub(crate) fn rate(self) -> u64 {
        match self {
            Self::Guaranteed { rate } => rate,
            Self::BestEffort => 0,
        }
    }
}

/// A request for a stream.
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
    /// One word: `device`, `memory`, `throttle`, `rate`, `places`, `startup`, `client`, `stopped`,
    /// `senseless`.
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

    /// For a client that has its share.
    pub(crate) fn of_client(message: &str, suggested_rate: Option<u64>) -> Self {
        Self { suggested_rate, ..Self::plain("client", message.into()) }
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
    Open { wanted: driver::OpenRequest, reply: OpenReply },
    Consumed { stream: StreamId, bytes: u64 },
    Leave(StreamId),
    Pause(StreamId),
    Resume { stream: StreamId, reply: Answer },
    Wake(StreamId),
    Seek { stream: StreamId, offset: u64, reply: Answer },
    SetRate { stream: StreamId, rate: Rate, reply: Answer },
    Turn { physical: u64, bytes: u64, reply: Sender<Instant> },
    TurnEnded { service: Duration, ended: Instant, added: Duration },
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
#[derive(Clone)]
pub struct Service {
    handle: Arc<Handle>,
    library: Arc<Library>,
    device: Arc<dyn Device>,
    beginnings: Option<Arc<Beginnings>>,
    /// Bytes of the device, by its profile.
    capacity: u64,
    /// Bytes a second that it reads where it is slowest.
    slowest: u64,
}

/// A layout on a device that the profile says to have so many bytes. If the file lies beyond them (of
/// several devices below one file system, nobody knows how large they are) it is taken to lie in one
/// piece somewhere on it: then its place says little.
fn within(layout: Layout, capacity: u64) -> Layout {
    let ends = layout.extents().iter().map(|extent| extent.physical.saturating_add(extent.bytes));
    if ends.max().is_none_or(|end| end <= capacity) {
        return layout;
    }
    let room = capacity.saturating_sub(layout.bytes()).max(1);
    let start = layout.extents()[0].physical % room;
    Layout::contiguous(start, layout.bytes()).unwrap_or(layout)
}

/// What is known of a stream before it is asked for.
struct Start {
    key: FileKey,
    start: u64,
    rate: u64,
    beginning: Option<Bytes>,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("library", &self.library).finish_non_exhaustive()
    }
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
        // Places beyond the end of the profile would have no distance from each other.
        let profile = profile.stretched(device.capacity(&config.library).unwrap_or(0));
        let chunk = config.chunk as u64;
        let spare = (config.memory / BEST_EFFORT_SHARE).max(chunk);
        let memory = config.memory.saturating_sub(spare);
        let pool = Pool::with_apart(config.memory, config.chunk, memory).map_err(Error::Memory)?;
        let admission = AdmissionConfig {
            assurance: config.assurance,
            memory: pool.apart() as u64 * chunk,
            chunk,
            ..AdmissionConfig::default()
        };
        // One more chunk than the bytes fill if they begin and end within chunks.
        let request = REQUEST_MAX.min(chunk * (CHUNKS_MAX as u64 - 1)).max(chunk);
        let settings = MachineConfig { admission, request, ..MachineConfig::default() };
        let (name, capacity) = (profile.name.clone(), profile.capacity);
        let throttle = profile.throttle.map_or(f64::INFINITY, |throttle| throttle.rate);
        let slowest = profile.slowest_in(0, capacity.saturating_sub(1)).min(throttle) as u64;
        let machine =
            Machine::new(profile, settings).map_err(|error| Error::Settings(error.to_string()))?;
        // Bounded by what it carries: reports of memory that is given back, of which there is a
        // limited number, and questions of threads that wait for the answer.
        let (commands, receiver) = unbounded();
        let parts = driver::Parts {
            machine,
            pool,
            device: Arc::clone(&device),
            library: config.library.display().to_string(),
            profile: name,
            commands: commands.clone(),
            idle: config.idle,
            clock: Box::new(Instant::now),
        };
        let work = move || Driver::new(parts).run(&receiver);
        let spawned = std::thread::Builder::new().name("stream-driver".into()).spawn(work);
        spawned.map_err(Error::Thread)?;
        let beginnings = (config.beginnings > 0).then(|| Beginnings::new(config.beginnings, chunk));
        let handle = Arc::new(Handle { commands });
        Ok(Self { handle, library, device, beginnings, capacity, slowest })
    }

    /// Bytes a second that the device reads where it is slowest, or that its throttle lets through.
    pub fn slowest_rate(&self) -> u64 {
        self.slowest
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
        let mut wanted = self.wanted(file, path, request)?;
        let start = self.start_of(&mut wanted);
        let (sender, replies) = bounded(1);
        // Whoever has stopped waiting has no use for the answer.
        self.ask(wanted, Box::new(move |answer| drop(sender.send(answer))))?;
        let stream = replies.recv_timeout(OPEN_LIMIT).map_err(|_| Rejected::stopped())??;
        Ok(self.begun(stream, start))
    }

    /// As [`Service::open_file`] for a stream that another service had admitted: `done` hears what
    /// came of it, on a thread that must not wait. All streams that are taken over one after the other
    /// come before those that are opened afterwards. If what was at hand there is used up at `dry_at`
    /// and nothing is here by then, that is a glitch with a cause of its own.
    ///
    /// # Errors
    /// As [`Service::open_file`], as far as that is known at once.
    pub fn take_over(
        &self,
        file: File,
        path: &Path,
        request: &StreamRequest,
        dry_at: Instant,
        done: impl FnOnce(Result<Stream, Rejected>) + Send + 'static,
    ) -> Result<(), OpenError> {
        let mut wanted = self.wanted(file, path, request)?;
        wanted.dry_at = Some(dry_at);
        Ok(self.ask(wanted, Box::new(done))?)
    }

    /// As [`Service::open_file`], without blocking.
    pub(crate) async fn open(&self, mut wanted: driver::OpenRequest) -> Result<Stream, Rejected> {
        let start = self.start_of(&mut wanted);
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.ask(wanted, Box::new(move |answer| drop(sender.send(answer))))?;
        let stream = receiver.await.unwrap_or_else(|_| Err(Rejected::stopped()))?;
        Ok(self.begun(stream, start))
    }

    /// Looks for the beginning of what is wished; what is there is not wished any more.
    fn start_of(&self, wanted: &mut driver::OpenRequest) -> Option<Start> {
        let beginnings = self.beginnings.as_ref()?;
        let (key, start, rate) =
            (wanted.media.key(), wanted.start, wanted.rate.as_ref()?.peak() as u64);
        let beginning = beginnings.of(key, start, wanted.end);
        if let Some(beginning) = &beginning {
            wanted.start += beginning.len() as u64;
            // It starts at once.
            wanted.max_startup = None;
        }
        Some(Start { key, start, rate, beginning })
    }

    /// An admitted stream begins with what is at hand, and shows what it reads to the beginnings.
    fn begun(&self, mut stream: Stream, start: Option<Start>) -> Stream {
        let (Some(beginnings), Some(start)) = (&self.beginnings, start) else { return stream };
        let Start { key, start, rate, beginning } = start;
        let had = beginning.as_ref().map_or(0, Bytes::len) as u64;
        // Who comes in the middle is no reason to keep the beginning.
        if start == 0 {
            beginnings.opened(key, rate, stream.first_byte_within, had > 0);
        }
        let at = start + had;
        if beginnings.wants(key, at) {
            let beginnings = Arc::clone(beginnings);
            stream.copier = Some(Copier { beginnings, key, at });
        }
        if beginning.is_some() {
            stream.first_byte_within = Duration::ZERO;
        }
        stream.beginning = beginning;
        stream
    }

    fn ask(&self, wanted: driver::OpenRequest, reply: OpenReply) -> Result<(), Rejected> {
        let sent = self.handle.commands.send(Command::Open { wanted, reply });
        sent.map_err(|_| Rejected::stopped())
    }

    /// What an open file and a request come to. Asks the file system, and so may take its time.
    pub(crate) fn wanted(
        &self,
        file: File,
        path: &Path,
        request: &StreamRequest,
    ) -> Result<driver::OpenRequest, OpenError> {
        let at = |source| Error::File { path: path.to_path_buf(), source };
        let key = Media::key_of(&file).map_err(at)?;
        let layout = within(self.device.layout(&file, key), self.capacity);
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
        Ok(driver::OpenRequest {
            media,
            path: path.display().to_string(),
            rate,
            start: request.start,
            end,
            max_startup: request.max_startup_ms.map(Duration::from_millis),
            dry_at: None,
            burst: None,
            instead_of: None,
            least: None,
        })
    }

    /// What it does and has done. Empty if it has stopped.
    pub fn status(&self) -> Status {
        let (reply, replies) = bounded(1);
        if self.handle.commands.send(Command::Status(reply)).is_err() {
            return Status::default();
        }
        let mut status: Status = replies.recv_timeout(ANSWER_LIMIT).unwrap_or_default();
        if let Some(beginnings) = &self.beginnings {
            (status.beginnings_bytes, status.beginnings_used) = beginnings.counts();
        }
        status
    }

    /// Ends it: all streams break off.
    pub fn stop(&self) {
        let _ = self.handle.commands.send(Command::Stop);
    }
}
