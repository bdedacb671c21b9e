//! What a node does for others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::body::Body;
use crate::buffer::Buffer;
use crate::message::{
    Answer, Conflict, Fault, Hello, Load, LockOp, ObjectId, Presence, Put, Read, ReadMap, Recall,
    Request, Sync, Truncate, Write, WriteBack, Written,
};

/// Who asks, and how long it waits.
#[derive(Clone, Debug)]
pub struct Call {
    /// Who the other node said it is.
    pub from: Arc<Hello>,
    /// A number of the connection, unique in this process.
    pub connection: u64,
    /// The version of the protocol that both sides speak on it.
    pub version: u16,
    /// When the caller stops waiting.
    pub deadline: Instant,
    pub(crate) cancelled: Arc<AtomicBool>,
}

impl Call {
    /// Whether nobody waits for the answer any more: the caller gave up or vanished.
    pub fn cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// How long the caller still waits.
    pub fn left(&self) -> Duration {
        match self.cancelled() {
            true => Duration::ZERO,
            false => self.deadline.saturating_duration_since(Instant::now()),
        }
    }
}

/// Bytes of a file and the version that they are of.
#[derive(Debug)]
pub struct Found {
    /// The version.
    pub version: u64,
    /// The bytes.
    pub body: Body,
}

type Reply<T> = Result<T, Fault>;

/// The node, as others see it. Called from several threads at a time; `read`, `read_map`, `put` and
/// `drop_object` from few, so that they should not wait for anybody.
///
/// What is not implemented is answered by [`Fault::Unsupported`].
pub trait Service: Send + std::marker::Sync + 'static {
    /// Whether to talk to this node at all; the text tells it why not. An incarnation that was
    /// fenced is refused here.
    fn admit(&self, _who: &Hello) -> Result<(), String> {
        Ok(())
    }

    /// A connection has ended: what its node holds by it alone is free.
    fn connection_ended(&self, _who: &Hello, _connection: u64) {}

    /// How busy this node is.
    fn load(&self) -> Load {
        Load::default()
    }

    /// See [`Read`].
    fn read(&self, _call: &Call, _read: &Read) -> Reply<Found> {
        Err(Fault::Unsupported)
    }

    /// See [`ReadMap`].
    fn read_map(&self, _call: &Call, _map: &ReadMap) -> Reply<Presence> {
        Err(Fault::Unsupported)
    }

    /// See [`WriteBack`].
    fn write_back(&self, _call: &Call, _what: &WriteBack) -> Reply<()> {
        Err(Fault::Unsupported)
    }

    /// See [`Write`].
    fn write(&self, _call: &Call, _write: &Write, _bytes: Buffer) -> Reply<Written> {
        Err(Fault::Unsupported)
    }

    /// See [`Truncate`].
    fn truncate(&self, _call: &Call, _truncate: &Truncate) -> Reply<()> {
        Err(Fault::Unsupported)
    }

    /// See [`Sync`].
    fn sync(&self, _call: &Call, _sync: &Sync) -> Reply<()> {
        Err(Fault::Unsupported)
    }

    /// See [`Recall`].
    fn recall(&self, _call: &Call, _recall: &Recall) -> Reply<()> {
        Err(Fault::Unsupported)
    }

    /// See [`LockOp`]. [`Fault::Locked`] if it can't be had; `LockKind::Test` answers who holds it.
    fn lock(&self, _call: &Call, _lock: &LockOp) -> Reply<Option<Conflict>> {
        Err(Fault::Unsupported)
    }

    /// See [`Put`].
    fn put(&self, _call: &Call, _put: &Put, _bytes: Buffer) -> Reply<()> {
        Err(Fault::Unsupported)
    }

    /// See [`Request::Drop`].
    fn drop_object(&self, _call: &Call, _object: &ObjectId) -> Reply<()> {
        Err(Fault::Unsupported)
    }

    /// See [`Request::Other`].
    fn other(&self, _call: &Call, _kind: u32, _bytes: Buffer) -> Reply<Body> {
        Err(Fault::Unsupported)
    }
}

/// Has `service` carry out a request.
pub(crate) fn carry_out(
    service: &dyn Service,
    call: &Call,
    request: &Request,
    bytes: Buffer,
) -> Reply<(Answer, Body)> {
    let plain = |answer: Answer| (answer, Body::Empty);
    let done = |()| plain(Answer::Done);
    match request {
        Request::Hello(_) => Err(Fault::Invalid("who you are was said already".into())),
        Request::Ping => Ok(plain(Answer::Load(service.load()))),
        Request::Read(read) => {
            let found = service.read(call, read)?;
            match found.body.len() <= read.len as usize {
                true => Ok((Answer::Bytes { version: found.version }, found.body)),
                false => Err(Fault::Io { errno: rustix::io::Errno::IO.raw_os_error() }),
            }
        }
        Request::ReadMap(map) => service.read_map(call, map).map(Answer::Presence).map(plain),
        Request::WriteBack(what) => service.write_back(call, what).map(done),
        Request::Write(write) => service.write(call, write, bytes).map(Answer::Written).map(plain),
        Request::Truncate(truncate) => service.truncate(call, truncate).map(done),
        Request::Sync(sync) => service.sync(call, sync).map(done),
        Request::Recall(recall) => service.recall(call, recall).map(done),
        Request::Lock(lock) => service.lock(call, lock).map(Answer::Lock).map(plain),
        Request::Put(put) => service.put(call, put, bytes).map(done),
        Request::Drop(object) => service.drop_object(call, object).map(done),
        Request::Other { kind, answer } => {
            let body = service.other(call, *kind, bytes)?;
            match body.len() <= *answer as usize {
                true => Ok((Answer::Bytes { version: 0 }, body)),
                false => Err(Fault::Io { errno: rustix::io::Errno::OVERFLOW.raw_os_error() }),
            }
        }
    }
}
