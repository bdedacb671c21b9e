//! Writes and changes of length through owners: each is carried out once at most, however often it is
//! asked for, and none after this node has given it up. [`forebay_core::cluster::replay_cache`] decides.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use forebay_core::cluster::replay_cache::{Asker, Begin, CallId, Owner};
use forebay_meta::Incarnation;
use forebay_peer::message::{self, Fault};
use forebay_peer::{Body, Call, Client, Error as PeerError};
use forebay_types::Ino;
use parking_lot::{Condvar, Mutex};
use prost::Message;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::Cluster;
use super::faults::{asker, same_epoch};
use super::forwarding::{errno, within};
use crate::error::Result;

/// Opens a session, or tells what was given up.
pub(crate) const SETTLE: u32 = 17;
/// The longest answer to that, in bytes.
const SETTLED: u32 = 64;
/// For how long an owner is told that a call was given up, before its program is answered. Else it is
/// told before the next call about the file.
const GIVE_UP_LIMIT: Duration = Duration::from_secs(2);
/// When an asker is to ask again for what is under way.
const PAUSE: Duration = Duration::from_millis(20);

/// What came of a call: where bytes went, and how long the file is.
type Outcome = Result<(u64, u64), Fault>;

#[derive(Clone, PartialEq, Message)]
struct Settle {
    #[prost(uint64, tag = "1")]
    epoch: u64,
    /// The session that the calls are of; a new one is wanted if it is 0.
    #[prost(uint64, tag = "2")]
    session: u64,
    #[prost(message, repeated, tag = "3")]
    given_up: Vec<GivenUp>,
}

#[derive(Clone, PartialEq, Message)]
struct GivenUp {
    #[prost(uint32, tag = "1")]
    slot: u32,
    #[prost(uint64, tag = "2")]
    number: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Settled {
    /// The session that was opened.
    #[prost(uint64, tag = "1")]
    session: u64,
}

/// The calls of this node of owners, and of others of this one as an owner.
pub(super) struct ReplayCache {
    asked: Mutex<HashMap<u16, Asked>>,
    freed: Condvar,
    served: Mutex<Owner<Outcome>>,
    ended: Condvar,
}

/// What this node has asked another for.
struct Asked {
    owner: Incarnation,
    asker: Asker,
    /// Somebody is asking for a session.
    opening: bool,
}

/// What is to be done before a call, if not the call itself.
enum Next {
    Call(CallId),
    Open,
    Tell(Vec<CallId>),
}

impl ReplayCache {
    pub(super) fn new() -> Self {
        // Later than any number that a daemon of this incarnation before this one has given.
        let now = clock_gettime(ClockId::Boottime);
        let first = now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs();
        ReplayCache {
            asked: Mutex::default(),
            freed: Condvar::new(),
            served: Mutex::new(Owner::new(first.max(1))),
            ended: Condvar::new(),
        }
    }

    /// What is next for a call about a file; `None` if it can't be made until then, or of this owner.
    fn next(&self, owner: Incarnation, ino: Ino, until: Instant) -> Option<Next> {
        let mut all = self.asked.lock();
        loop {
            let new = || Asked { owner, asker: Asker::default(), opening: false };
            let asked = all.entry(owner.node).or_insert_with(new);
            if asked.owner.epoch < owner.epoch {
                *asked = new();
            }
            if asked.owner != owner {
                return None;
            }
            if asked.asker.is_open() {
                let told_first = asked.asker.untold(Some(ino.0));
                if !told_first.is_empty() {
                    return Some(Next::Tell(told_first));
                }
                if let Some(turn) = asked.asker.take() {
                    return Some(Next::Call(turn));
                }
                let untold = asked.asker.untold(None);
                if !untold.is_empty() {
                    return Some(Next::Tell(untold));
                }
            } else if !asked.opening {
                asked.opening = true;
                return Some(Next::Open);
            }
            if self.freed.wait_until(&mut all, until).timed_out() {
                return None;
            }
        }
    }

    /// Does something to what was asked of an owner, if that is still the one.
    fn of<T>(&self, owner: Incarnation, work: impl FnOnce(&mut Asked) -> T) -> Option<T> {
        let mut all = self.asked.lock();
        let done = all.get_mut(&owner.node).filter(|asked| asked.owner == owner).map(work);
        drop(all);
        self.freed.notify_all();
        done
    }
}

/// A change of a file that its owner is asked for, perhaps several times.
pub(crate) struct Asking<'a> {
    cluster: &'a Cluster,
    ino: Ino,
    /// Twice is not once, not even if nothing was asked for in between.
    once: bool,
    turn: Option<(Incarnation, CallId)>,
    /// The owner may have carried it out.
    doubt: bool,
}

impl<'a> Asking<'a> {
    pub(crate) fn new(cluster: &'a Cluster, ino: Ino, once: bool) -> Self {
        Asking { cluster, ino, once, turn: None, doubt: false }
    }

    /// Asks the owner; `None` if it does not own the file, or can't be asked, or has not answered.
    pub(crate) fn ask<T>(
        &mut self,
        owner: Incarnation,
        until: Instant,
        call: impl FnOnce(&Client, message::CallId, Duration) -> Result<T, PeerError>,
    ) -> Result<Option<T>> {
        let cluster = self.cluster;
        if self.turn.is_some_and(|(before, _)| before != owner) {
            self.leave();
            self.dare()?;
        }
        let Some(client) = cluster.peer(owner.node) else { return Ok(None) };
        let turn = match self.turn {
            Some((_, turn)) => turn,
            None => match cluster.turn_for(&client, owner, self.ino, until) {
                Some(turn) => turn,
                None => return Ok(None),
            },
        };
        self.turn = Some((owner, turn));
        let CallId { session, slot, number } = turn;
        let answer = call(&client, message::CallId { session, slot, number }, within(until));
        self.judge(owner, turn, answer)
    }

    fn judge<T>(
        &mut self,
        owner: Incarnation,
        turn: CallId,
        answer: Result<T, PeerError>,
    ) -> Result<Option<T>> {
        let known = match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(PeerError::Fault(Fault::Io { errno: raw })) => Err(errno(raw)),
            Err(PeerError::Fault(Fault::NoSpace)) => Err(Errno::NOSPC.into()),
            Err(PeerError::Fault(Fault::Cancelled)) => Err(Errno::IO.into()),
            Err(PeerError::Fault(Fault::NotHere)) => {
                // The owner's daemon was started anew: nothing that is on its way counts any more.
                self.cluster.replay_cache.of(owner, |asked| asked.asker.closed(turn.session));
                self.turn = None;
                self.dare()?;
                return Ok(None);
            }
            Err(error) => {
                // Of a call under this number the owner says for good that it was not its to do.
                let spent = matches!(error, PeerError::Fault(Fault::NotOwner { .. }));
                self.doubt = !spent && (self.doubt || !error.not_done());
                if !self.doubt {
                    let anew = self.cluster.replay_cache.of(owner, |asked| asked.asker.anew(turn));
                    self.turn = anew.flatten().map(|turn| (owner, turn));
                }
                return Ok(None);
            }
        };
        self.doubt = false;
        self.leave();
        known
    }

    /// Goes on without knowing what became of the call so far.
    fn dare(&mut self) -> Result<()> {
        if self.doubt && self.once {
            tracing::warn!(
                ino = %self.ino,
                "an append through the owner of a file got no answer and may have been done: it is \
                 not repeated, and the program gets EIO"
            );
            return Err(Errno::IO.into());
        }
        self.doubt = false;
        Ok(())
    }

    fn leave(&mut self) {
        let Some((owner, turn)) = self.turn.take() else { return };
        let (doubt, ino) = (self.doubt, self.ino.0);
        self.cluster.replay_cache.of(owner, |asked| match doubt {
            true => asked.asker.give_up(turn, ino),
            false => asked.asker.ended(turn),
        });
    }

    /// Gives it up, or says what came of it. It must not be done here either if the owner may have.
    pub(crate) fn close<T>(mut self, done: Result<Option<T>>) -> Result<Option<T>> {
        let doubt = self.doubt && !matches!(done, Ok(Some(_)));
        if let (Some((owner, _)), true) = (self.turn, doubt) {
            self.leave();
            let until = Instant::now() + GIVE_UP_LIMIT;
            if !self.cluster.tell_given_up(owner, self.ino, until) {
                tracing::warn!(
                    ino = %self.ino,
                    %owner,
                    "a write through the owner of a file was given up, and the owner can't be told \
                     yet: it is told before the next call"
                );
            }
        }
        match done {
            Ok(None) | Err(_) if doubt && self.once => Err(Errno::IO.into()),
            done => done,
        }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Cluster {
    fn turn_for(
        &self,
        client: &Client,
        owner: Incarnation,
        ino: Ino,
        until: Instant,
    ) -> Option<CallId> {
        loop {
            match self.replay_cache.next(owner, ino, until)? {
                Next::Call(turn) => return Some(turn),
                Next::Open => {
                    let opened = settle(client, owner, 0, &[], until);
                    self.replay_cache.of(owner, |asked| {
                        asked.opening = false;
                        if let Some(opened) = &opened {
                            asked.asker.opened(opened.session);
                        }
                    });
                    opened?;
                }
                Next::Tell(given_up) => {
                    let session = given_up.first()?.session;
                    settle(client, owner, session, &given_up, until)?;
                    self.replay_cache.of(owner, |asked| asked.asker.told(&given_up));
                }
            }
        }
    }

    /// Tells an owner which calls about a file were given up, if there are any; whether it knows, and
    /// none of them is under way.
    pub(crate) fn tell_given_up(&self, owner: Incarnation, ino: Ino, until: Instant) -> bool {
        let untold = |asked: &mut Asked| asked.asker.untold(Some(ino.0));
        let given_up = self.replay_cache.of(owner, untold).unwrap_or_default();
        let Some(session) = given_up.first().map(|turn| turn.session) else { return true };
        let told = self
            .peer(owner.node)
            .and_then(|client| settle(&client, owner, session, &given_up, until));
        if told.is_some() {
            self.replay_cache.of(owner, |asked| asked.asker.told(&given_up));
        }
        told.is_some()
    }

    /// Carries out what another node asks for, unless that was done or is too late.
    pub(crate) fn in_turn(
        &self,
        call: &Call,
        epoch: u64,
        turn: message::CallId,
        work: impl FnOnce() -> Outcome,
    ) -> Outcome {
        same_epoch(self, epoch)?;
        let from = u32::from(asker(call)?);
        let message::CallId { session, slot, number } = turn;
        let turn = CallId { session, slot, number };
        let (cache, until) = (&self.replay_cache, Instant::now() + call.left());
        let mut served = cache.served.lock();
        loop {
            match served.begin(from, turn) {
                Begin::Go => break,
                Begin::Wait if cache.ended.wait_until(&mut served, until).timed_out() => {
                    return Err(Fault::Busy { pause: PAUSE });
                }
                Begin::Wait => {}
                Begin::Was(outcome) => return outcome,
                Begin::Late => {
                    tracing::info!(
                        node = from,
                        ?turn,
                        "a write came too late: the node that asks for it had given it up, and it is \
                         not carried out"
                    );
                    return Err(Fault::Cancelled);
                }
                Begin::Unknown => return Err(Fault::NotHere),
            }
        }
        drop(served);
        // Also if the work panics, nobody may wait for its end for ever.
        let failed = Err(Fault::Io { errno: libc::EIO });
        let mut under_way = UnderWay { cache, from, turn, outcome: failed };
        under_way.outcome = work();
        under_way.outcome.clone()
    }

    /// Opens a session for another node, or hears what it has given up.
    pub(crate) fn settle_with(&self, call: &Call, bytes: &[u8]) -> Result<Settled, Fault> {
        let settle = Settle::decode(bytes).map_err(|error| Fault::Invalid(error.to_string()))?;
        same_epoch(self, settle.epoch)?;
        let from = u32::from(asker(call)?);
        let turn = |GivenUp { slot, number }: &GivenUp| {
            let slot = u16::try_from(*slot).ok()?;
            Some(CallId { session: settle.session, slot, number: *number })
        };
        let given_up: Vec<CallId> = settle.given_up.iter().filter_map(turn).collect();
        let (cache, until) = (&self.replay_cache, Instant::now() + call.left());
        let mut served = cache.served.lock();
        loop {
            let session = match settle.session {
                0 => served.open(from),
                known => served.give_up(from, &given_up).then_some(known),
            };
            if let Some(session) = session {
                return Ok(Settled { session });
            }
            if cache.ended.wait_until(&mut served, until).timed_out() {
                return Err(Fault::Busy { pause: PAUSE });
            }
        }
    }
}

/// A call that is being carried out.
struct UnderWay<'a> {
    cache: &'a ReplayCache,
    from: u32,
    turn: CallId,
    outcome: Outcome,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.cache.served.lock().ended(self.from, self.turn, self.outcome.clone());
        self.cache.ended.notify_all();
    }
}

/// Asks an owner for a session, or tells it what was given up in one; `None` if it has not answered.
fn settle(
    client: &Client,
    owner: Incarnation,
    session: u64,
    given_up: &[CallId],
    until: Instant,
) -> Option<Settled> {
    let one = |turn: &CallId| GivenUp { slot: turn.slot.into(), number: turn.number };
    let given_up = given_up.iter().map(one).collect();
    let settle = Settle { epoch: owner.epoch, session, given_up };
    let body = Body::Bytes(settle.encode_to_vec());
    match client.other(SETTLE, &body, SETTLED, within(until)) {
        Ok(settled) => Settled::decode(&*settled).ok().filter(|settled| settled.session != 0),
        Err(error) => {
            tracing::debug!(%owner, %error, "the owner of a file can't be asked");
            None
        }
    }
}
