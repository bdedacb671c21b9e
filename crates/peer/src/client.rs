//! The side that asks.
//!
//! A [`Client`] stands for one other node. It has up to two connections to it, which come about
//! when they are needed: one for what is small and should not wait, one for what carries many
//! bytes. Any number of threads may call at a time; on each connection as many calls are under way
//! as the other side takes, the rest waits.

mod link;

use crossbeam_channel::{Receiver, Sender};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

use crate::address::Address;
use crate::body::Body;
use crate::buffer::{Buffer, BufferPool};
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::message::{
    Answer, Conflict, Fault, Hello, Load, LockOp, ObjectId, Presence, Put, Read, ReadMap, Recall,
    Request, Sync, Truncate, Write, WriteBack, Written,
};
use crate::server::Identity;
use crate::transport::{TimeLimits, Transport};

use link::Link;
pub use link::Ticket;

/// What carries at most so many bytes is small.
const SMALL: u64 = 64 << 10;
/// The shortest and the longest pause between attempts to connect.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// How to talk to one node.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Which node asks.
    pub me: Identity,
    /// The node that is expected at the address; another one is not talked to.
    pub expected: Option<u64>,
    /// Bounds.
    pub limits: Limits,
    /// How often a call is made again where that is safe and may help.
    pub retries: u32,
}

impl ClientConfig {
    /// As `me`, whoever is at the address, with usual bounds and two retries.
    pub fn new(me: Identity) -> ClientConfig {
        ClientConfig { me, expected: None, limits: Limits::default(), retries: 2 }
    }
}

/// One other node.
pub struct Client {
    shared: Arc<LinkContext>,
    small: Lane,
    large: Lane,
}

/// What the connections of a client have in common.
struct LinkContext {
    transport: Arc<dyn Transport>,
    address: Address,
    config: ClientConfig,
    buffers: Arc<BufferPool>,
    /// What was said of the node last, so that nothing is said twice.
    told: Mutex<Told>,
}

/// What was said of a node in the log.
#[derive(Default)]
struct Told {
    version: u16,
    refusal: String,
}

/// A connection, or when the next attempt is due.
#[derive(Default)]
struct Lane {
    state: Mutex<LaneState>,
    changed: Condvar,
}

#[derive(Default)]
struct LaneState {
    link: Option<Arc<Link>>,
    connecting: bool,
    failures: u32,
    rest_until: Option<Instant>,
    closed: bool,
}

/// A call that was answered, or failed.
#[derive(Debug)]
pub struct Completed {
    /// What the caller gave.
    pub tag: u64,
    /// The answer and its body.
    pub result: Result<(Answer, Buffer)>,
}

/// A call under way. Dropping it cancels it.
pub struct Started {
    ticket: Ticket,
    completed: Receiver<Completed>,
    deadline: Instant,
}

impl Client {
    /// A client of the node at `address`; nothing is connected yet.
    pub fn new(transport: Arc<dyn Transport>, address: Address, config: ClientConfig) -> Client {
        let keep = config.limits.bytes as usize;
        let (buffers, told) = (BufferPool::new(keep), Mutex::default());
        let shared = LinkContext { transport, address, config, buffers, told };
        Client { shared: Arc::new(shared), small: Lane::default(), large: Lane::default() }
    }

    /// Where the node is.
    pub fn address(&self) -> &Address {
        &self.shared.address
    }

    /// Makes a call, and makes it again where that is safe and may help, until `within` is over.
    ///
    /// # Errors
    /// [`Error::Fault`] is what the other node answered. [`Error::not_done`] tells whether it is
    /// certain that nothing was done.
    pub fn call(
        &self,
        request: &Request,
        body: &Body,
        within: Duration,
    ) -> Result<(Answer, Buffer)> {
        let deadline = Instant::now() + within;
        let mut tries = 0;
        let mut before: Option<Error> = None;
        loop {
            let error = match self.start(request, body, deadline).and_then(Started::wait) {
                Ok(answered) => return Ok(answered),
                // That the second attempt was not even made says nothing about the first.
                Err(error) => match before.take() {
                    Some(before) if error.not_done() && !before.not_done() => return Err(before),
                    _ => error,
                },
            };
            let safe = request.repeatable() || error.not_done();
            if tries >= self.shared.config.retries || !safe || !error.passes() {
                return Err(error);
            }
            let pause = match &error {
                Error::Fault(Fault::Busy { pause }) => (*pause).min(Duration::from_secs(1)),
                _ => Duration::ZERO,
            };
            if Instant::now() + pause >= deadline {
                return Err(error);
            }
            std::thread::sleep(pause);
            tries += 1;
            before = Some(error);
        }
    }

    /// Makes a call once, and does not wait for the answer.
    ///
    /// # Errors
    /// The call could not be made; nothing was done.
    pub fn start(&self, request: &Request, body: &Body, deadline: Instant) -> Result<Started> {
        let (to, completed) = crossbeam_channel::bounded(1);
        let ticket = self.start_with(request, body, deadline, 0, &to)?;
        Ok(Started { ticket, completed, deadline })
    }

    /// Makes a call once; what becomes of it is sent to `to` under the name `tag`. The channel must
    /// have room for it, for nobody waits to send: an answer without room is lost.
    ///
    /// # Errors
    /// The call could not be made; nothing was done, and nothing will be sent.
    pub fn start_with(
        &self,
        request: &Request,
        body: &Body,
        deadline: Instant,
        tag: u64,
        to: &Sender<Completed>,
    ) -> Result<Ticket> {
        let bytes = body.len() as u64 + u64::from(request.answer_limit());
        let lane = if bytes <= SMALL { &self.small } else { &self.large };
        let link = lane.get(&self.shared, deadline)?;
        Link::begin(&link, request, body, deadline, tag, to)
    }

    /// Whether a call would have to wait for the next attempt to connect.
    pub fn is_resting(&self) -> bool {
        let resting =
            |lane: &Lane| lane.state.lock().rest_until.is_some_and(|until| Instant::now() < until);
        resting(&self.small) || resting(&self.large)
    }

    /// Ends all connections and calls; no new ones are made.
    pub fn close(&self) {
        for lane in [&self.small, &self.large] {
            let mut state = lane.state.lock();
            state.closed = true;
            if let Some(link) = state.link.take() {
                link.end(Error::Closed);
            }
            lane.changed.notify_all();
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({})", self.shared.address)
    }
}

impl Started {
    /// Waits for the answer until the call's deadline, then gives it up.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn wait(self) -> Result<(Answer, Buffer)> {
        let deadline = self.deadline;
        self.wait_until(deadline).unwrap_or(Err(Error::TimedOut { sent: true }))
    }

    /// Waits for the answer until `moment`. `None` if it is not there; the call goes on.
    pub fn wait_until(&self, moment: Instant) -> Option<Result<(Answer, Buffer)>> {
        self.completed.recv_deadline(moment).ok().map(|completed| completed.result)
    }

    /// Gives the call up: nothing will be answered.
    pub fn cancel(self) {
        self.ticket.cancel();
    }
}

impl Lane {
    /// The connection, made now if there is none.
    fn get(&self, shared: &Arc<LinkContext>, deadline: Instant) -> Result<Arc<Link>> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return Err(Error::Closed);
            }
            match &state.link {
                Some(link) if link.is_alive() => return Ok(link.clone()),
                // One that never answered anything is no better than none.
                Some(link) => {
                    let useful = link.has_answered();
                    state.link = None;
                    match useful {
                        true => state.failures = 0,
                        false => state.failed(&shared.address),
                    }
                }
                None => {}
            }
            let now = Instant::now();
            if let Some(until) = state.rest_until.filter(|until| now < *until) {
                return Err(Error::Resting {
                    address: shared.address.to_string(),
                    wait: until - now,
                });
            }
            if !state.connecting {
                break;
            }
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return Err(Error::TimedOut { sent: false });
            }
        }
        state.connecting = true;
        drop(state);
        let made = shared.connect(deadline);
        let mut state = self.state.lock();
        state.connecting = false;
        self.changed.notify_all();
        match made {
            Ok(link) if state.closed => {
                link.end(Error::Closed);
                Err(Error::Closed)
            }
            Ok(link) => {
                state.rest_until = None;
                state.link = Some(link.clone());
                Ok(link)
            }
            Err(error) => {
                state.failed(&shared.address);
                Err(error)
            }
        }
    }
}

impl LaneState {
    /// The next attempt is due after a pause that doubles, less up to half of it by chance, so that
    /// not all nodes come back to a restarted one at the same moment.
    fn failed(&mut self, address: &Address) {
        let (shortest, longest) = PAUSES;
        let pause = shortest.saturating_mul(1 << self.failures.min(10)).min(longest);
        let chance = xxh3_64(format!("{address} {:?}", Instant::now()).as_bytes());
        let less = pause.mul_f64((chance % 1000) as f64 / 2000.0);
        self.failures = self.failures.saturating_add(1);
        self.rest_until = Some(Instant::now() + pause - less);
    }
}

impl LinkContext {
    fn connect(self: &Arc<Self>, deadline: Instant) -> Result<Arc<Link>> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::TimedOut { sent: false });
        }
        let limits = &self.config.limits;
        let timeout = TimeLimits {
            connect: limits.connect.min(left),
            handshake: limits.handshake.min(left),
            stall: limits.stall,
        };
        let wire = self.transport.connect(&self.address, timeout)?;
        let made = Link::over(wire, self);
        self.tell(&made);
        made
    }

    /// Says for people which version is spoken, and why none is: once for each change.
    fn tell(&self, made: &Result<Arc<Link>>) {
        let mut told = self.told.lock();
        match made {
            Ok(link) => {
                if told.version != link.version() {
                    let version = link.version();
                    tracing::info!(node = link.node(), version, "the protocol spoken with a node");
                }
                *told = Told { version: link.version(), refusal: String::new() };
            }
            Err(Error::Refused { why, .. }) if told.refusal != *why => {
                tracing::warn!(address = %self.address, why, "a node can't be talked to");
                why.clone_into(&mut told.refusal);
            }
            Err(_) => {}
        }
    }

    /// Whether the node that answered is the one we want, and which version of the protocol to speak
    /// with it.
    fn judge(&self, hello: &Hello) -> Result<u16> {
        let wrong = |why: String| Error::Refused { address: self.address.to_string(), why };
        if hello.cluster != self.config.me.cluster {
            return Err(wrong("it belongs to another cluster".into()));
        }
        if let Some(node) = self.config.expected.filter(|node| *node != hello.node) {
            return Err(wrong(format!("node {} is there, not node {node}", hello.node)));
        }
        let me = &self.config.me;
        me.versions.agree(me.node, hello.versions, hello.node).map_err(wrong)
    }
}

/// An answer that does not belong to the question.
fn unfit(answer: &Answer) -> Error {
    Error::Protocol(format!("an unfit answer ({})", answer.code()))
}

/// One method for each request. `within` is the longest time that they take; errors are those of
/// [`Client::call`].
impl Client {
    /// How busy the node is.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn ping(&self, within: Duration) -> Result<Load> {
        match self.call(&Request::Ping, &Body::Empty, within)?.0 {
            Answer::Load(load) => Ok(load),
            other => Err(unfit(&other)),
        }
    }

    /// Bytes of a file, and the version that they are of.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn read(&self, read: Read, within: Duration) -> Result<(u64, Buffer)> {
        match self.call(&Request::Read(read), &Body::Empty, within)? {
            (Answer::Bytes { version }, bytes) => Ok((version, bytes)),
            (other, _) => Err(unfit(&other)),
        }
    }

    /// Which extents of a file the node has.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn read_map(&self, map: ReadMap, within: Duration) -> Result<Presence> {
        match self.call(&Request::ReadMap(map), &Body::Empty, within)?.0 {
            Answer::Presence(presence) => Ok(presence),
            other => Err(unfit(&other)),
        }
    }

    /// Has the owner write a file back.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn write_back(&self, what: WriteBack, within: Duration) -> Result<()> {
        self.done(&Request::WriteBack(what), &Body::Empty, within)
    }

    /// Writes through the owner.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn write(&self, write: Write, body: &Body, within: Duration) -> Result<Written> {
        match self.call(&Request::Write(write), body, within)?.0 {
            Answer::Written(written) => Ok(written),
            other => Err(unfit(&other)),
        }
    }

    /// Changes a length through the owner.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn truncate(&self, truncate: Truncate, within: Duration) -> Result<()> {
        self.done(&Request::Truncate(truncate), &Body::Empty, within)
    }

    /// Makes durable what was written through the owner.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn sync(&self, sync: Sync, within: Duration) -> Result<()> {
        self.done(&Request::Sync(sync), &Body::Empty, within)
    }

    /// Asks for something to be given back.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn recall(&self, recall: Recall, within: Duration) -> Result<()> {
        self.done(&Request::Recall(recall), &Body::Empty, within)
    }

    /// A lock operation; what it answers to `LockKind::Test` is who stands in the way.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn lock(&self, lock: LockOp, within: Duration) -> Result<Option<Conflict>> {
        match self.call(&Request::Lock(lock), &Body::Empty, within)?.0 {
            Answer::Lock(conflict) => Ok(conflict),
            other => Err(unfit(&other)),
        }
    }

    /// Stores a part of a replica or shard.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn put(&self, put: Put, body: &Body, within: Duration) -> Result<()> {
        self.done(&Request::Put(put), body, within)
    }

    /// Removes a replica or shard.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn drop_object(&self, object: ObjectId, within: Duration) -> Result<()> {
        self.done(&Request::Drop(object), &Body::Empty, within)
    }

    /// A request of the layer above, with an answer of at most `answer` bytes.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn other(&self, kind: u32, body: &Body, answer: u32, within: Duration) -> Result<Buffer> {
        match self.call(&Request::Other { kind, answer }, body, within)? {
            (Answer::Bytes { .. }, bytes) => Ok(bytes),
            (other, _) => Err(unfit(&other)),
        }
    }

    fn done(&self, request: &Request, body: &Body, within: Duration) -> Result<()> {
        match self.call(request, body, within)?.0 {
            Answer::Done => Ok(()),
            other => Err(unfit(&other)),
        }
    }
}
