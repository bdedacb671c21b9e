//! One connection of a client.

use crossbeam_channel::Sender;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{Completed, LinkContext};
use crate::body::Body;
use crate::buffer::{Buffer, BufferPool};
use crate::codec::Encoder;
use crate::error::{Error, Result};
use crate::message::{Answer, Fault, Hello, Request};
use crate::server::spawn;
use crate::transport::{Closer, Wire};
use crate::wire::{FrameSink, FrameSource, Head, Kind, Received, Trust};

/// The id of the calls by which a link finds out whether anybody is there.
const PROBE: u64 = u64::MAX;

/// A connection on which calls are made.
pub(super) struct Link {
    them: Hello,
    /// The version of the protocol that both sides speak.
    version: u16,
    closer: Arc<dyn Closer>,
    sink: Mutex<FrameSink>,
    calls: Mutex<Calls>,
    /// There is room for another call, or there never will be.
    room: Condvar,
    answered: AtomicBool,
}

#[derive(Default)]
struct Calls {
    next: u64,
    pending: HashMap<u64, PendingCall>,
    bytes: u64,
    /// Why the link takes no calls any more.
    ended: Option<Error>,
}

/// A call whose answer has not come.
struct PendingCall {
    tag: u64,
    /// Nobody, if the call was given up: its answer will still come, and counts until then.
    to: Option<Sender<Completed>>,
    /// The longest body that the answer may have.
    limit: u32,
    bytes: u64,
}

/// What to do with a call that was made. Dropping it gives the call up, unless it was answered.
pub struct Ticket {
    link: Arc<Link>,
    id: u64,
}

impl Link {
    /// Says hello over a wire, and starts the thread that takes answers.
    pub fn over(wire: Wire, shared: &Arc<LinkContext>) -> Result<Arc<Link>> {
        let limits = &shared.config.limits;
        let mut source = FrameSource::new(wire.source, limits.body);
        let mut sink = FrameSink::new(wire.sink, limits.sum_files);
        let heard = say_hello(&mut source, &mut sink, shared);
        let (them, version) = heard.inspect_err(|_| wire.closer.close())?;
        let link = Arc::new(Link {
            them,
            version,
            closer: wire.closer,
            sink: Mutex::new(sink),
            calls: Mutex::default(),
            room: Condvar::new(),
            answered: AtomicBool::new(false),
        });
        let (reader, buffers) = (link.clone(), shared.buffers.clone());
        let unsummed = !limits.sum_files;
        let started = spawn("peer-answers", move || {
            let why = reader.take_answers(&mut source, &buffers, unsummed);
            reader.end(why);
        });
        started.inspect_err(|_| link.closer.close())?;
        Ok(link)
    }

    pub fn version(&self) -> u16 {
        self.version
    }

    pub fn node(&self) -> u64 {
        self.them.node
    }

    pub fn is_alive(&self) -> bool {
        self.calls.lock().ended.is_none()
    }

    pub fn has_answered(&self) -> bool {
        self.answered.load(Ordering::Acquire)
    }

    /// Sends a request as soon as the other side has room for it.
    pub fn begin(
        link: &Arc<Link>,
        request: &Request,
        body: &Body,
        deadline: Instant,
        tag: u64,
        to: &Sender<Completed>,
    ) -> Result<Ticket> {
        let limit = request.answer_limit();
        let bytes = body.len() as u64 + u64::from(limit);
        link.check(body.len() as u64, u64::from(limit), bytes)?;
        let id = link.enter(PendingCall { tag, to: Some(to.clone()), limit, bytes }, deadline)?;
        // From here on dropping the ticket takes the call back.
        let ticket = Ticket { link: link.clone(), id };
        let Some(mut sink) = link.sink.try_lock_until(deadline) else {
            link.leave(id);
            return Err(Error::TimedOut { sent: false });
        };
        let mut fields = Encoder::default();
        request.encode(&mut fields);
        let timeout = deadline.saturating_duration_since(Instant::now());
        let head =
            Head { kind: Kind::Request, code: request.code(), id, body: 0, timeout, newest: 0 };
        let sent = sink.send(head, &fields.0, body);
        drop(sink);
        if let Err(error) = sent {
            // What was not sent as a whole is not carried out.
            let why = error.to_string();
            let told = link.leave(id).is_none();
            link.end(error);
            if !told {
                return Err(Error::Lost { why, sent: false });
            }
        }
        Ok(ticket)
    }

    fn check(&self, body: u64, answer: u64, bytes: u64) -> Result<()> {
        let each = u64::from(self.them.body);
        for (len, limit) in [(body, each), (answer, each), (bytes, u64::from(self.them.bytes))] {
            if len > limit {
                return Err(Error::TooLarge { len, limit });
            }
        }
        Ok(())
    }

    /// Waits for room, and takes it.
    fn enter(&self, call: PendingCall, deadline: Instant) -> Result<u64> {
        let mut calls = self.calls.lock();
        loop {
            if let Some(why) = &calls.ended {
                return Err(Error::Lost { why: why.to_string(), sent: false });
            }
            let room = calls.pending.len() < self.them.calls as usize
                && calls.bytes + call.bytes <= u64::from(self.them.bytes);
            if room {
                break;
            }
            if self.room.wait_until(&mut calls, deadline).timed_out() {
                return Err(Error::TimedOut { sent: false });
            }
        }
        let id = calls.next;
        calls.next += 1;
        calls.bytes += call.bytes;
        calls.pending.insert(id, call);
        Ok(id)
    }

    /// Gives a call's room to others.
    fn leave(&self, id: u64) -> Option<PendingCall> {
        let mut calls = self.calls.lock();
        let call = calls.pending.remove(&id)?;
        calls.bytes -= call.bytes;
        self.room.notify_all();
        Some(call)
    }

    /// Ends the connection; all calls fail.
    pub fn end(&self, why: Error) {
        let waiting = {
            let mut calls = self.calls.lock();
            if calls.ended.is_some() {
                return;
            }
            calls.ended = Some(why.clone());
            calls.bytes = 0;
            std::mem::take(&mut calls.pending)
        };
        self.closer.close();
        self.room.notify_all();
        for call in waiting.into_values() {
            let why = match &why {
                Error::Lost { why, .. } => why.clone(),
                other => other.to_string(),
            };
            call.complete(Err(Error::Lost { why, sent: true }));
        }
    }

    /// Takes answers until the connection ends, and tells why it did.
    fn take_answers(
        &self,
        source: &mut FrameSource,
        buffers: &Arc<BufferPool>,
        unsummed: bool,
    ) -> Error {
        let mut fields = Vec::new();
        let mut probed = false;
        loop {
            let taken = match source.head(&mut fields) {
                Ok(Received::Frame(head)) => {
                    probed = false;
                    self.take(source, head, &fields, buffers, unsummed)
                }
                Ok(Received::End) => return closed_by_them(),
                Ok(Received::Idle) if probed => {
                    return Error::Lost { why: "it is silent".into(), sent: true };
                }
                Ok(Received::Idle) => {
                    probed = self.probe();
                    Ok(())
                }
                Err(error) => Err(error),
            };
            if let Err(error) = taken {
                return error;
            }
        }
    }

    /// Asks whether anybody is there, if somebody waits for an answer.
    fn probe(&self) -> bool {
        let idle = self.calls.lock().pending.is_empty();
        let sink = self.sink.try_lock();
        match sink {
            Some(mut sink) if !idle => {
                let timeout = Duration::from_secs(1);
                let code = Request::Ping.code();
                let head =
                    Head { kind: Kind::Request, code, id: PROBE, body: 0, timeout, newest: 0 };
                sink.send(head, &[], &Body::Empty).is_ok()
            }
            _ => false,
        }
    }

    fn take(
        &self,
        source: &mut FrameSource,
        head: Head,
        fields: &[u8],
        buffers: &Arc<BufferPool>,
        unsummed: bool,
    ) -> Result<()> {
        match head.kind {
            Kind::Answer | Kind::Fault => {}
            Kind::Goodbye => return Err(closed_by_them()),
            Kind::Request | Kind::Cancel => {
                return Err(Error::Protocol("a request where answers are due".into()));
            }
        }
        self.answered.store(true, Ordering::Release);
        let wanted =
            self.calls.lock().pending.get(&head.id).map(|call| (call.limit, call.to.is_some()));
        let (limit, wanted) = match wanted {
            None if head.id == PROBE => (0, false),
            None => return Err(Error::Protocol("an answer to nothing".into())),
            Some(wanted) => wanted,
        };
        if head.body > limit {
            return Err(Error::TooLarge { len: head.body.into(), limit: limit.into() });
        }
        if !wanted {
            source.skip(head.body)?;
            self.leave(head.id);
            return Ok(());
        }
        let mut bytes = buffers.take(head.body as usize);
        let trust = source.body(&mut bytes)?;
        let good = trust == Trust::Whole || trust == Trust::Unsummed && unsummed;
        let result = match (head.kind, good) {
            (_, false) => Err(Error::Corrupt(format!("node {}", self.them.node))),
            (Kind::Fault, _) => {
                Fault::decode(head.code, fields).and_then(|fault| Err(Error::Fault(fault)))
            }
            _ => Answer::decode(head.code, fields).map(|answer| (answer, bytes)),
        };
        if let Some(call) = self.leave(head.id) {
            call.complete(result);
        }
        Ok(())
    }

    /// Nobody waits for a call's answer any more; the other side is told, if that is possible at
    /// once.
    fn abandon(&self, id: u64) {
        let known = {
            let mut calls = self.calls.lock();
            calls.pending.get_mut(&id).is_some_and(|call| call.to.take().is_some())
        };
        if !known {
            return;
        }
        if let Some(mut sink) = self.sink.try_lock_for(Duration::from_millis(1)) {
            let timeout = Duration::ZERO;
            let head = Head { kind: Kind::Cancel, code: 0, id, body: 0, timeout, newest: 0 };
            if let Err(error) = sink.send(head, &[], &Body::Empty) {
                drop(sink);
                self.end(error);
            }
        }
    }
}

impl PendingCall {
    fn complete(self, result: Result<(Answer, Buffer)>) {
        if let Some(to) = self.to {
            // A caller that went away does not want it.
            let _ = to.try_send(Completed { tag: self.tag, result });
        }
    }
}

impl Ticket {
    /// Gives the call up: nothing will be sent to its channel any more, unless it was already.
    pub fn cancel(&self) {
        self.link.abandon(self.id);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancel();
    }
}

fn closed_by_them() -> Error {
    Error::Lost { why: "the other node closed it".into(), sent: true }
}

/// Both sides say who they are, and agree on a version of the protocol.
fn say_hello(
    source: &mut FrameSource,
    sink: &mut FrameSink,
    shared: &LinkContext,
) -> Result<(Hello, u16)> {
    let limits = &shared.config.limits;
    let address = || shared.address.to_string();
    let failed = |why: String| Error::Connect { address: address(), why };
    let hello = Request::Hello(shared.config.me.hello(limits));
    let mut fields = Encoder::default();
    hello.encode(&mut fields);
    let timeout = limits.handshake;
    let newest = shared.config.me.versions.newest;
    let head = Head { kind: Kind::Request, code: hello.code(), id: 0, body: 0, timeout, newest };
    source.set_timeout(limits.handshake)?;
    sink.send(head, &fields.0, &Body::Empty).map_err(|error| failed(error.to_string()))?;
    let mut fields = Vec::new();
    let head = match source.head(&mut fields).map_err(|error| failed(error.to_string()))? {
        Received::Frame(head) if head.body == 0 => head,
        Received::Frame(_) => return Err(failed("it does not say hello".into())),
        Received::Idle => return Err(failed("it does not say who it is".into())),
        Received::End => return Err(failed("it closed the connection at once".into())),
    };
    source.set_timeout(limits.stall)?;
    match head.kind {
        Kind::Answer => match Answer::decode(head.code, &fields)? {
            // Whatever they would take, no more is kept here than our own settings say.
            Answer::Hello(them) => {
                let them = them.up_to(head.newest);
                let version = shared.judge(&them)?;
                let calls = them.calls.min(limits.calls.max(1));
                let bytes = them.bytes.min(limits.bytes.max(1));
                let body = them.body.min(limits.body);
                Ok((Hello { calls, bytes, body, ..them }, version))
            }
            _ => Err(failed("it does not say hello".into())),
        },
        Kind::Fault => match Fault::decode(head.code, &fields)? {
            Fault::Refused(why) => Err(Error::Refused { address: address(), why }),
            other => Err(failed(other.to_string())),
        },
        _ => Err(failed("it does not say hello".into())),
    }
}
