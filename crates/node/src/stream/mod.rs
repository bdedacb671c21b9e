//! Files that are played: a file with a rate (the extended attribute [`RATE`]) that is opened for
//! reading becomes a stream, if the device below the backing store carries it. The round machine of
//! the core reads it ahead at its rate; whatever else is read from the backing store takes turns in
//! the time that the streams leave.
//!
//! - [`admission`]: which opens become streams, and what is told of those that do not.
//! - [`window`]: which reads of a program go along its stream.
//! - [`reading`]: the bytes, from the stream and from the tier.
//! - [`keeping`]: popular files on the tier, whole or their beginnings.
//! - [`slack`]: all other reads of the backing store.
//! - [`hand_over`]: streams that another daemon had admitted.
//!
//! The machine is driven by `forebay_streams::Service`, which knows nothing of nodes.
//!
//! Owns: the streams of this mount with the threads that wait for them ([`Streams`]), what was
//! refused lately, and which titles are kept on a tier. Must not know: names, other nodes; nothing
//! below it knows of streams but by `ColdReads`, which `residency/seams.rs` defines.
//!
//! # Invariants
//! - An open is never refused for want of a stream: it works without a guarantee, and the reason is
//!   remembered (`tests/streams.rs`).
//! - A read that the stream does not serve, or not in time, goes the way of all others.
//! - A read that waits for its stream has a thread of the streams, and neither the file nor the
//!   handle in hand.
//! - As long as no stream is open, nothing takes turns.
//! - Admitted streams run without a glitch beside cold reads (`tests/streams.rs`).

mod admission;
mod hand_over;
mod keeping;
mod reading;
mod slack;
mod window;

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_core::streams::admission::Assurance;
use forebay_streams::device::{self, Device, Emulated};
use forebay_streams::{Rejected, Service, ServiceConfig, Status};
use parking_lot::Mutex;

use crate::config::StreamsConfig;
use crate::error::{NodeError, Result};
use crate::pool::Pool;

pub(crate) use admission::{RATE, STATE};
pub use hand_over::CarriedStream;
use keeping::KeptTitles;
pub(crate) use reading::OpenStream;

/// The memory of streams is handed out in pieces of this size.
const CHUNK: usize = 16 << 10;
/// Streams at once: each may keep a thread waiting.
const MAX: usize = 256;
/// Reads that wait for a thread.
const QUEUED: usize = 4096;
/// Refusals that are remembered.
const TOLD: usize = 32;

/// A stream that was not admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedStream {
    /// The file.
    pub path: Vec<u8>,
    /// Its rate, in bytes a second.
    pub rate: u64,
    /// Why, and what would help.
    pub why: Rejected,
}

/// What a node's streams are doing.
#[derive(Debug, Clone)]
pub struct StreamsReport {
    /// Of the service that reads them.
    pub status: Status,
    /// The opens that were refused last, the latest at the end.
    pub refused: Vec<RefusedStream>,
}

/// The streams of a node.
pub struct Streams {
    service: Service,
    readers: Pool,
    count: AtomicUsize,
    told: Mutex<Told>,
    kept: Option<Mutex<KeptTitles>>,
}

/// What [`STATE`] says.
#[derive(Default)]
struct Told {
    open: HashMap<u64, Open>,
    refused: VecDeque<(u64, RefusedStream)>,
}

/// A file with streams.
struct Open {
    streams: usize,
    rate: u64,
    first_byte_within: Duration,
}

impl Streams {
    /// Starts the service of the files below `backing`, which are kept on tiers in pieces of `extent`
    /// bytes.
    ///
    /// # Errors
    /// Memory that can't be had or makes no sense, no threads.
    pub fn start(config: &StreamsConfig, backing: &Path, extent: u64) -> Result<Arc<Self>> {
        let device: Arc<dyn Device> = match &config.emulate {
            Some(model) => Arc::new(Emulated::start(model.clone(), 1)?),
            None => device::real(),
        };
        let service = ServiceConfig {
            library: backing.to_owned(),
            memory: config.memory,
            chunk: CHUNK,
            assurance: Assurance::Deterministic,
            // They are kept on the tier.
            beginnings: 0,
            idle: config.idle,
        };
        let service = Service::start(service, device, config.profile.clone())
            .map_err(|error| NodeError::Config(format!("streams: {error}")))?;
        // Half of the threads are for reads aside of streams.
        let readers = Pool::new(2 * MAX, QUEUED);
        let (beginnings, titles) = (config.beginnings, config.titles);
        let kept = (beginnings > 0 || titles > 0)
            .then(|| Mutex::new(KeptTitles::new(beginnings, titles, extent)));
        let (count, told) = (AtomicUsize::new(0), Mutex::default());
        Ok(Arc::new(Streams { service, readers, count, told, kept }))
    }

    /// Streams that are open.
    pub fn open(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Threads that wait for streams.
    pub fn readers(&self) -> &Pool {
        &self.readers
    }

    /// Breaks all streams off; everything is read without them from now on.
    pub fn stop(&self) {
        self.service.stop();
    }

    /// What they are doing.
    pub fn report(&self) -> StreamsReport {
        let refused = self.told.lock().refused.iter().map(|(_, refused)| refused.clone()).collect();
        StreamsReport { status: self.service.status(), refused }
    }

    /// A place for one stream more, unless there are too many.
    fn enter(self: &Arc<Self>) -> Option<StreamPermit> {
        let more = |count: usize| (count < MAX).then_some(count + 1);
        self.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(StreamPermit(Arc::clone(self)))
    }

    fn tell_open(&self, ino: u64, rate: u64, first_byte_within: Duration) {
        let mut told = self.told.lock();
        let open = told.open.entry(ino).or_insert(Open { streams: 0, rate, first_byte_within });
        open.streams += 1;
        (open.rate, open.first_byte_within) = (rate, first_byte_within);
        told.refused.retain(|(refused, _)| *refused != ino);
    }

    fn tell_closed(&self, ino: u64) {
        let mut told = self.told.lock();
        if let Some(open) = told.open.get_mut(&ino) {
            open.streams -= 1;
            if open.streams == 0 {
                told.open.remove(&ino);
            }
        }
    }

    fn tell_refused(&self, ino: u64, refused: RefusedStream) {
        let mut told = self.told.lock();
        told.refused.retain(|(other, _)| *other != ino);
        if told.refused.len() >= TOLD {
            told.refused.pop_front();
        }
        told.refused.push_back((ino, refused));
    }
}

/// Counts one stream while it lives.
struct StreamPermit(Arc<Streams>);

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
    }
}
