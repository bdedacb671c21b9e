//! The round machine: which stream is read when, into which buffers, for all schemes.
//!
//! Driven by [`Machine::step`] and [`Machine::next_deadline`]. Streams are in sweeps, in the order of
//! position; the current sweep is emptied from its first on, and who was visited goes into a later
//! one: the next for the elastic ring, that of the round in which its blocks are used up for rounds
//! of fixed length. So rounds, groups and rings differ in three things only: when a sweep may begin,
//! how far a visit reads, and into which sweep a stream goes.
//!
//! # The elastic ring
//! - *Order*: that of the sweep. A stream keeps its place when its file jumps to a place that comes
//!   later, unless all deadlines hold also with the new one.
//! - *Pace*: no visit begins before its stream is down to the headroom of the plan, so that buffers
//!   are full at different times and can be pooled.
//! - *Deadline check*: before each visit the latest moment is computed at which the sweep can go on
//!   in order. If it has passed, the stream that is behind it is visited early.
//! - *First data*: when the order comes to the place of a stream; with a statistical guarantee also out
//!   of turn, for as long as it takes until then, if all others have the spread of the plan left.
//! - *Best effort*: in the time in which nobody is due or waits to start, or from the budget of the
//!   plan; never if a deadline would be missed.
//! - *Guarantee*: with deterministic admission, an invariant that whatever clients do keeps (`sure`).
//! - *Sharing*: streams of a title within reach of each other have one reader. A later stream takes
//!   the chunks that the earlier one has not yet given back; if it starts further behind, the chunks
//!   from then on are kept for it until it arrives there (not with deterministic admission: how long
//!   that takes has no bound).
//! - *Degradation*: when the device takes longer than its profile says, the guarantee of the stream
//!   admitted last is taken away, one for each sweep, until the rest fits; they are given back in the
//!   order of admission. Streams without a guarantee are read out of turn.

mod config;
mod dispatch;
mod event;
mod membership;
mod memory;
mod reader;
mod startup;
mod sure;
mod visit;

use std::collections::{HashMap, VecDeque};

pub use config::{BadConfig, Config, Rounds, Scheme};
pub use event::{Action, Actions, Event, GlitchCause, Read, ReadId, StreamId, Title};
use membership::Wanted;
use reader::{Member, Reader};

use super::admission::{Admission, Demand, Plan};
use super::profile::DeviceProfile;
use super::ring::{ChunkId, Pool};
use super::sweep::Sweeps;
use crate::policy::Slab;
use crate::unit::Tick;

/// What a machine has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Streams admitted, seeks and new rates included.
    pub admitted: u64,
    /// Refused, seeks and new rates included.
    pub refused: u64,
    /// Visits that read something.
    pub visits: u64,
    /// Visits out of order since the order would have missed a deadline.
    pub early: u64,
    /// Sweeps or rounds begun.
    pub sweeps: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Bytes that clients took.
    pub consumed: u64,
    /// Streams that joined a reader which was there already, or came to share one.
    pub shared: u64,
    /// Times a client had nothing to take.
    pub glitches: u64,
    /// Reads that failed.
    pub failed: u64,
}

/// A stream at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamStatus {
    /// The next byte of the file that the client takes.
    pub offset: u64,
    /// The first byte that is not there.
    pub filled: u64,
    /// When the client runs dry if nothing is read, if its clock runs and there is more to read.
    pub dry_at: Option<Tick>,
    /// Whether it has a guarantee.
    pub guaranteed: bool,
    /// Whether it has had its first data.
    pub playing: bool,
    /// Whether it waits for its client to resume.
    pub paused: bool,
}

/// The machine. One for a device.
#[derive(Debug)]
pub struct Machine {
    config: Config,
    admission: Admission,
    pool: Pool,
    sweeps: Sweeps,
    /// The sweep that is being emptied.
    current: usize,
    /// Sweeps that streams go around in; one more holds those without a guarantee.
    wheel: usize,
    streams: Slab<()>,
    members: Vec<Option<Member>>,
    readers: Vec<Reader>,
    free_readers: Vec<u32>,
    titles: HashMap<Title, Vec<u32>>,
    /// Readers before their first visit.
    starters: VecDeque<u32>,
    /// Streams with a guarantee, for admission, and whose they are.
    demands: Vec<Demand>,
    owners: Vec<u32>,
    plan: Plan,
    /// Nanoseconds of media that a visit fills to; grows towards that of the plan.
    target: u64,
    /// Chunks that readers may hold, all together.
    reserved: u64,
    /// Streams whose clocks start as soon as nobody suffers.
    wakers: VecDeque<u32>,
    /// What of their memory streams really hold.
    looks: memory::Looks,
    /// Reads under way.
    flying: u32,
    /// A visit that is not done, between two of its reads.
    partial: Option<u32>,
    /// Where the device is, and the place in the order that the sweep has come to.
    head: u64,
    progress: u64,
    budget: i64,
    budget_at: Tick,
    /// Moving averages of service times, observed and expected.
    observed: f64,
    expected: f64,
    /// A read took longer than the longest by the profile.
    overlong: bool,
    /// What admission was told of it.
    slowdown: f64,
    /// Nanoseconds that this sweep took longer than planned for.
    excess: i64,
    requests: VecDeque<(u64, u64, u64)>,
    granted: u32,
    /// Rounds: when the next begins, visits and prefetches of this one, whose clocks start with the
    /// next, and blocks that wait in the device's buffer until a round.
    boundary: Tick,
    prefetched: u32,
    to_start: Vec<u32>,
    staged: Vec<u64>,
    staged_now: u64,
    staged_peak: u64,
    since: u64,
    wake: Option<Tick>,
    counters: Counters,
}

impl Machine {
    /// A machine for a device.
    ///
    /// # Errors
    /// [`BadConfig`] if it cannot work.
    pub fn new(profile: DeviceProfile, config: Config) -> Result<Self, BadConfig> {
        config.check()?;
        profile.check().map_err(|_| BadConfig("the profile of the device is damaged"))?;
        let wheel = match config.scheme {
            Scheme::Elastic => 2,
            Scheme::Rounds(rounds) => rounds.depth as usize + 2,
        };
        let mut config = config;
        let chunks = config.admission.memory / config.admission.chunk;
        // What is less than a chunk holds nothing.
        config.admission.memory = chunks * config.admission.chunk;
        let mut admission = Admission::new(profile, config.admission.clone());
        let plan = admission.unchecked(&[]);
        if config.depth == 0 {
            config.depth = admission.profile().parallel;
        }
        Ok(Self {
            pool: Pool::new(u32::try_from(chunks).unwrap_or(u32::MAX)),
            admission,
            sweeps: Sweeps::new(wheel + 1),
            current: 0,
            wheel,
            streams: Slab::default(),
            members: Vec::new(),
            readers: Vec::new(),
            free_readers: Vec::new(),
            titles: HashMap::new(),
            starters: VecDeque::new(),
            demands: Vec::new(),
            owners: Vec::new(),
            plan,
            target: 0,
            reserved: 0,
            wakers: VecDeque::new(),
            looks: memory::Looks::default(),
            flying: 0,
            partial: None,
            head: 0,
            progress: 0,
            budget: 0,
            budget_at: Tick(0),
            observed: 0.0,
            expected: 0.0,
            overlong: false,
            slowdown: 1.0,
            excess: 0,
            requests: VecDeque::new(),
            granted: 0,
            boundary: Tick(0),
            prefetched: 0,
            to_start: Vec::new(),
            staged: vec![0; wheel],
            staged_now: 0,
            staged_peak: 0,
            since: 0,
            wake: None,
            counters: Counters::default(),
            config,
        })
    }

    /// Takes in what happened at `now` and adds what is to be done to `out`. Moments must not go
    /// backwards.
    pub fn step(&mut self, now: Tick, event: Event, out: &mut Actions) {
        match event {
            Event::Join { stream, title, rate, layout, offset, max_startup } => {
                let max_startup = max_startup.unwrap_or(self.config.admission.startup);
                let wanted = Wanted { title, rate, layout, offset, max_startup };
                self.join(now, stream, wanted, out);
            }
            Event::Leave(stream) => self.leave(now, stream),
            Event::Pause(stream) => self.pause(now, stream),
            Event::Park(stream) => self.park(now, stream),
            Event::Resume(stream) => self.resume(now, stream, out),
            Event::Seek { stream, offset } => self.seek(now, stream, offset, out),
            Event::SetRate { stream, rate } => self.set_rate(now, stream, rate, out),
            Event::Consumed { stream, bytes } => self.consumed(now, stream, bytes),
            Event::ReadDone { read, service } => self.read_done(now, read, service, out),
            Event::ReadFailed { read, service } => self.read_failed(now, read, service),
            Event::BestEffort { id, physical, bytes } => {
                if self.requests.len() >= self.config.best_effort as usize {
                    out.push(Action::Declined { id });
                } else {
                    self.requests.push_back((id, physical, bytes));
                }
            }
            Event::BestEffortDone { service: _ } => {
                self.granted = self.granted.saturating_sub(1);
                self.flying = self.flying.saturating_sub(1);
            }
            Event::Tick => {}
        }
        self.dispatch(now, out);
    }

    /// When the driver is to step again, with [`Event::Tick`] if nothing else happened.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Tick> {
        self.wake
    }

    /// What it has done.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// How the admitted streams are carried.
    #[must_use]
    pub fn plan(&self) -> Plan {
        self.plan
    }

    /// Bytes of buffers in use, and the most that ever were.
    #[must_use]
    pub fn memory(&self) -> (u64, u64) {
        let chunk = self.config.admission.chunk;
        (self.pool.used() * chunk, self.pool.peak() * chunk)
    }

    /// Most bytes that waited in the device's own buffer; those are part of [`Self::memory`], and
    /// only rounds with prefetching have any.
    #[must_use]
    pub fn staged_peak(&self) -> u64 {
        self.staged_peak
    }

    /// Observed service times over those of the profile.
    #[must_use]
    pub fn slowdown(&self) -> f64 {
        // A sure profile is true until a read takes longer than it allows, however many take long.
        let known = self.expected > 0.0 && (self.overlong || !self.sure());
        if known { self.observed / self.expected } else { 1.0 }
    }

    /// Streams there are, and readers that have a guarantee for them.
    #[must_use]
    pub fn population(&self) -> (u64, u64) {
        (self.streams.len(), self.demands.len() as u64)
    }

    fn slot(&self, stream: StreamId) -> Option<u32> {
        self.streams.find(stream.0)
    }

    fn member(&self, slot: u32) -> &Member {
        self.members[slot as usize].as_ref().expect("a slot that is in use has a stream")
    }

    fn member_mut(&mut self, slot: u32) -> &mut Member {
        self.members[slot as usize].as_mut().expect("a slot that is in use has a stream")
    }

    /// A stream at a moment.
    #[must_use]
    pub fn status(&self, stream: StreamId) -> Option<StreamStatus> {
        let member = self.member(self.slot(stream)?);
        let reader = member.reader.map(|reader| &self.readers[reader as usize]);
        let filled = reader.map_or(member.offset, |reader| reader.filled);
        let more = filled < member.layout.bytes() && member.clock.running;
        Some(StreamStatus {
            offset: member.offset,
            filled: filled.max(member.offset),
            dry_at: more.then(|| Tick(member.dry_at(filled) as u64)),
            guaranteed: reader.is_some_and(|reader| reader.demand.is_some()),
            playing: member.started,
            paused: member.paused,
        })
    }

    /// The chunk that holds a byte of the file for a stream, if it is there. The byte is at `offset`
    /// modulo the size of a chunk.
    #[must_use]
    pub fn chunk_at(&self, stream: StreamId, offset: u64) -> Option<ChunkId> {
        let reader = &self.readers[self.member(self.slot(stream)?).reader? as usize];
        let number = offset / self.config.admission.chunk;
        if offset < reader.filled { reader.ring.chunk(number) } else { None }
    }

    /// Bytes that a stream may take at `now`: what is there and what its rate allows.
    #[must_use]
    pub fn allowance(&self, stream: StreamId, now: Tick) -> u64 {
        let Some(slot) = self.slot(stream) else { return 0 };
        let member = self.member(slot);
        let Some(reader) = member.reader else { return 0 };
        let filled = self.readers[reader as usize].filled;
        let ahead = self.config.lag / 4;
        let allowed = member.rate.bytes_at(member.clock.media(now).saturating_add(ahead));
        if member.started { allowed.min(filled).saturating_sub(member.offset) } else { 0 }
    }
}
