//! One connection of a server.

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::pool::Job;
use super::{Lanes, PeerServerState};
use crate::body::Body;
use crate::codec::Encoder;
use crate::error::{Error, Result};
use crate::message::{Answer, Fault, Hello, Request};
use crate::service::Call;
use crate::transport::{Arrival, Closer};
use crate::wire::{FrameSink, FrameSource, Head, Kind, Received, Trust};

/// When to ask again where there was no room.
const PAUSE: Duration = Duration::from_millis(20);

type Outcome = Result<(Answer, Body), Fault>;

/// A connection to a node that was let in.
pub(super) struct Connection {
    id: u64,
    pub who: Arc<Hello>,
    /// The version of the protocol that both sides speak.
    version: u16,
    closer: Arc<dyn Closer>,
    sink: Mutex<FrameSink>,
    /// Answers that wait until the sink is free; never more than calls are allowed.
    outbox: Mutex<VecDeque<(u64, Outcome)>>,
    running: Mutex<Running>,
}

/// What was asked and not answered yet.
#[derive(Default)]
struct Running {
    calls: HashMap<u64, RunningCall>,
    bytes: u64,
}

/// A call that is carried out.
struct RunningCall {
    cancelled: Arc<AtomicBool>,
    bytes: u64,
}

impl PeerServerState {
    /// Finds out who arrived, and whether it is welcome.
    pub(super) fn admit(
        &self,
        id: u64,
        arrival: Box<dyn Arrival>,
    ) -> Result<(Arc<Connection>, FrameSource)> {
        let wire = arrival.admit(self.timeout())?;
        let mut source = FrameSource::new(wire.source, self.limits.body);
        let mut sink = FrameSink::new(wire.sink, self.limits.sum_files);
        let introduced = self.introduce(&mut source, &mut sink);
        let (who, version) = introduced.inspect_err(|_| wire.closer.close())?;
        let connection = Arc::new(Connection {
            id,
            who: Arc::new(who),
            version,
            closer: wire.closer,
            sink: Mutex::new(sink),
            outbox: Mutex::default(),
            running: Mutex::default(),
        });
        if let Some(served) = self.connections.lock().get_mut(&id) {
            served.connection = Some(connection.clone());
        }
        // Whoever closes the server sees the connection, or is seen here.
        if self.closing.load(Ordering::Acquire) {
            connection.part();
            return Err(Error::Closed);
        }
        Ok((connection, source))
    }

    /// Hears who the other side is, judges, and says who we are. With the version of the protocol that
    /// both speak.
    fn introduce(&self, source: &mut FrameSource, sink: &mut FrameSink) -> Result<(Hello, u16)> {
        source.set_timeout(self.limits.handshake)?;
        let mut fields = Vec::new();
        let head = match source.head(&mut fields)? {
            Received::Frame(head) if head.kind == Kind::Request && head.body == 0 => head,
            Received::Frame(_) => return Err(Error::Protocol("it did not say hello".into())),
            Received::Idle => return Err(Error::TimedOut { sent: false }),
            Received::End => return Err(Error::Closed),
        };
        let hello = match Request::decode(head.code, &fields) {
            Ok(Request::Hello(hello)) => hello.up_to(head.newest),
            Ok(_) => return Err(Error::Protocol("it did not say hello".into())),
            Err(error) => return Err(error),
        };
        source.set_timeout(self.limits.stall)?;
        let judged = self.judge(&hello);
        let answer = match &judged {
            Ok(_) => Ok((Answer::Hello(self.me.hello(&self.limits)), Body::Empty)),
            Err(why) => Err(Fault::Refused(why.clone())),
        };
        send_answer(sink, head.id, &answer)?;
        match judged {
            Ok(version) => Ok((hello, version)),
            Err(why) => Err(Error::Refused { address: format!("node {}", hello.node), why }),
        }
    }

    /// The version of the protocol to speak with a node that is welcome.
    fn judge(&self, hello: &Hello) -> Result<u16, String> {
        if hello.cluster != self.me.cluster {
            return Err("this node belongs to another cluster".into());
        }
        let version = self.me.versions.agree(self.me.node, hello.versions, hello.node)?;
        self.service.admit(hello).map(|()| version)
    }
}

impl Connection {
    /// Takes requests until the other side goes, or breaks the rules.
    pub fn serve(
        self: &Arc<Self>,
        shared: &PeerServerState,
        mut source: FrameSource,
        lanes: &Lanes,
    ) -> Result<()> {
        let ended = self.take_requests(shared, &mut source, lanes);
        for call in self.running.lock().calls.values() {
            call.cancelled.store(true, Ordering::Release);
        }
        self.closer.close();
        ended
    }

    fn take_requests(
        self: &Arc<Self>,
        shared: &PeerServerState,
        source: &mut FrameSource,
        lanes: &Lanes,
    ) -> Result<()> {
        let mut fields = Vec::new();
        let mut heard = Instant::now();
        loop {
            let head = match source.head(&mut fields)? {
                Received::End => return Ok(()),
                Received::Idle if heard.elapsed() >= shared.limits.idle && self.is_quiet() => {
                    return Ok(());
                }
                Received::Idle => continue,
                Received::Frame(head) => head,
            };
            heard = Instant::now();
            match head.kind {
                Kind::Request => self.take(shared, source, lanes, head, &fields)?,
                Kind::Cancel => {
                    source.skip(head.body)?;
                    if let Some(call) = self.running.lock().calls.get(&head.id) {
                        call.cancelled.store(true, Ordering::Release);
                    }
                }
                Kind::Goodbye => return Ok(()),
                Kind::Answer | Kind::Fault => {
                    return Err(Error::Protocol("an answer to nothing".into()));
                }
            }
        }
    }

    /// Takes a request and gives it to a thread, or says why not.
    fn take(
        self: &Arc<Self>,
        shared: &PeerServerState,
        source: &mut FrameSource,
        lanes: &Lanes,
        head: Head,
        fields: &[u8],
    ) -> Result<()> {
        let arrived = Instant::now();
        let decoded = Request::decode(head.code, fields);
        let request = match decoded {
            Ok(request) => request,
            Err(why) => {
                source.skip(head.body)?;
                self.reply(head.id, &Err(Fault::Invalid(why.to_string())));
                return Ok(());
            }
        };
        if request == Request::Ping {
            // Answered however much is under way: it is how others learn that we are alive.
            source.skip(head.body)?;
            self.reply(head.id, &Ok((Answer::Load(shared.service.load()), Body::Empty)));
            return Ok(());
        }
        let Some(cancelled) = self.begin(shared, head, &request)? else {
            source.skip(head.body)?;
            self.reply(head.id, &Err(Fault::Busy { pause: PAUSE }));
            return Ok(());
        };
        let (bytes, trust) = match shared.memory.take(u64::from(head.body)) {
            Some(charge) => {
                let mut buffer = shared.buffers.take(head.body as usize).charged(charge);
                let trust = source.body(&mut buffer)?;
                (buffer, trust)
            }
            None => {
                source.skip(head.body)?;
                self.answer(head.id, Err(Fault::Busy { pause: PAUSE }));
                return Ok(());
            }
        };
        if trust == Trust::Bad || trust == Trust::Unsummed && shared.limits.sum_files {
            self.answer(head.id, Err(Fault::Corrupt));
            return Ok(());
        }
        if shared.closing.load(Ordering::Acquire) {
            self.answer(head.id, Err(Fault::Closing));
            return Ok(());
        }
        let call = Call {
            from: self.who.clone(),
            connection: self.id,
            version: self.version,
            deadline: arrived + head.timeout,
            cancelled,
        };
        self.dispatch(lanes, Job { connection: self.clone(), id: head.id, call, request, bytes });
        Ok(())
    }

    fn dispatch(&self, lanes: &Lanes, job: Job) {
        let id = job.id;
        let lane = if job.request.slow() { &lanes.slow } else { &lanes.quick };
        if lane.try_send(job).is_err() {
            self.answer(id, Err(Fault::Busy { pause: PAUSE }));
        }
    }

    /// Notes a call, if there may be one more.
    fn begin(
        &self,
        shared: &PeerServerState,
        head: Head,
        request: &Request,
    ) -> Result<Option<Arc<AtomicBool>>> {
        let mut running = self.running.lock();
        if running.calls.contains_key(&head.id) {
            return Err(Error::Protocol(format!("a second call {}", head.id)));
        }
        let bytes = u64::from(head.body) + u64::from(request.answer_limit());
        let limits = &shared.limits;
        let full = running.calls.len() >= limits.calls.max(1) as usize
            || running.bytes + bytes > u64::from(limits.bytes);
        if full {
            return Ok(None);
        }
        let cancelled = Arc::new(AtomicBool::new(false));
        running.bytes += bytes;
        running.calls.insert(head.id, RunningCall { cancelled: cancelled.clone(), bytes });
        Ok(Some(cancelled))
    }

    /// Whether nothing is asked that is not answered.
    pub fn is_quiet(&self) -> bool {
        self.running.lock().calls.is_empty() && self.outbox.lock().is_empty()
    }

    /// Answers a call that was noted.
    pub fn answer(&self, id: u64, outcome: Outcome) {
        self.outbox.lock().push_back((id, outcome));
        self.send_waiting();
    }

    /// Sends what waits, unless somebody is doing so.
    fn send_waiting(&self) {
        // Whoever sends looks again after the last answer, so none is left behind.
        while !self.outbox.lock().is_empty() {
            let Some(mut sink) = self.sink.try_lock() else { return };
            loop {
                let Some((id, outcome)) = self.outbox.lock().pop_front() else { break };
                self.forget(id);
                if let Err(error) = send_answer(&mut sink, id, &outcome) {
                    tracing::debug!(%error, node = self.who.node, "an answer could not be sent");
                    self.closer.close();
                }
            }
        }
    }

    /// Answers a call that was not noted. Only the reader does this, so that it can't be used to
    /// fill memory: who does not take his answers is not listened to.
    fn reply(&self, id: u64, outcome: &Outcome) {
        let sent = send_answer(&mut self.sink.lock(), id, outcome);
        if let Err(error) = sent {
            tracing::debug!(%error, node = self.who.node, "an answer could not be sent");
            self.closer.close();
        }
        self.send_waiting();
    }

    fn forget(&self, id: u64) {
        let mut running = self.running.lock();
        let bytes = running.calls.remove(&id).map_or(0, |call| call.bytes);
        running.bytes -= bytes;
    }

    /// Says goodbye and closes.
    pub fn part(&self) {
        if let Some(mut sink) = self.sink.try_lock_for(Duration::from_millis(100)) {
            let sent = sink.send(head(Kind::Goodbye, 0, 0), &[], &Body::Empty);
            tracing::debug!(?sent, node = self.who.node, "goodbye");
        }
        self.closer.close();
    }
}

fn head(kind: Kind, code: u16, id: u64) -> Head {
    Head { kind, code, id, body: 0, timeout: Duration::ZERO, newest: 0 }
}

fn send_answer(sink: &mut FrameSink, id: u64, outcome: &Outcome) -> Result<()> {
    let mut fields = Encoder::default();
    match outcome {
        Ok((answer, body)) => {
            answer.encode(&mut fields);
            let newest = answer.newest();
            sink.send(Head { newest, ..head(Kind::Answer, answer.code(), id) }, &fields.0, body)
        }
        Err(fault) => {
            fault.encode(&mut fields);
            sink.send(head(Kind::Fault, fault.code(), id), &fields.0, &Body::Empty)
        }
    }
}
