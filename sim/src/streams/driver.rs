//! The round machine of the core with a modelled device and clients that consume at their rates:
//! what the service does, in virtual time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use forebay_core::streams::layout::Layout;
use forebay_core::streams::machine::{
    Action, Actions, Config, Event, GlitchCause, Machine, ReadId, StreamId, Title,
};
use forebay_core::streams::rate::Rate;
use forebay_core::unit::Tick;

use super::device::Device;

/// A client. Takes what its rate allows, and tells at every chunk.
#[derive(Debug, Clone)]
struct Player {
    rate: Rate,
    end: u64,
    offset: u64,
    filled: u64,
    /// Media time at a moment, while it plays.
    clock: Option<(u64, u64)>,
    joined: u64,
    waiting: bool,
    /// The rate that it asked for; its own once that is admitted.
    wanted: Option<Rate>,
    /// Reports that were planned before this count no more.
    generation: u32,
    /// It takes nothing since.
    stalled: Option<u64>,
}

impl Player {
    /// When it has taken what is before a byte.
    fn time_at(&self, byte: u64) -> Option<u64> {
        let (wall, media) = self.clock?;
        Some((wall + self.rate.time_of(byte)).saturating_sub(media))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Read(u32, u64),
    BestEffort(u64),
    Report(u64, u32, u64),
    Scripted(usize),
    Stall(u64, u64),
    TakesAgain(u64),
    Wake,
}

/// A glitch, as a client has seen it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Glitch {
    /// When it was over.
    pub at: Tick,
    /// Whose.
    pub stream: StreamId,
    /// The machine's reason.
    pub cause: GlitchCause,
    /// How long, in nanoseconds.
    pub late: u64,
}

/// What came out of a run.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// In order.
    pub glitches: Vec<Glitch>,
    /// Streams that began to play: which, when, and nanoseconds since its request.
    pub startups: Vec<(StreamId, Tick, u64)>,
    /// Streams that were admitted but began later than they were told: by how many nanoseconds.
    pub broken_promises: Vec<u64>,
    /// Requests that were refused.
    pub refused: u64,
    /// Streams admitted.
    pub admitted: u64,
    /// Streams that lost their guarantee, in order, and those that got it back.
    pub degraded: Vec<StreamId>,
    /// See `degraded`.
    pub restored: Vec<StreamId>,
    /// Streams that have played to their end.
    pub ended: u64,
    /// Best-effort reads done.
    pub best_effort: u64,
}

/// A machine, a device and clients.
#[derive(Debug)]
pub struct Driver {
    /// The machine.
    pub machine: Machine,
    /// The device.
    pub device: Device,
    /// What came out so far.
    pub outcome: Outcome,
    /// Clients that play take what is there at once, not by their clocks.
    pub hasty: bool,
    chunk: u64,
    now: Tick,
    heap: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    sequence: u64,
    players: BTreeMap<u64, Player>,
    promises: BTreeMap<u64, Tick>,
    best_effort: BTreeMap<u64, (u64, u64)>,
    script: Vec<Option<Event>>,
    actions: Actions,
}

impl Driver {
    /// A machine with chunks of this size, and its device.
    #[must_use]
    pub fn new(machine: Machine, device: Device, chunk: u64) -> Self {
        Self {
            machine,
            device,
            outcome: Outcome::default(),
            hasty: false,
            chunk,
            now: Tick(0),
            heap: BinaryHeap::new(),
            sequence: 0,
            players: BTreeMap::new(),
            promises: BTreeMap::new(),
            best_effort: BTreeMap::new(),
            script: Vec::new(),
            actions: Actions::default(),
        }
    }

    /// Something that a client does at a moment.
    pub fn at(&mut self, moment: Tick, event: Event) {
        self.script.push(Some(event));
        self.plan(moment.0, Happening::Scripted(self.script.len() - 1));
    }

    /// A client takes nothing from now on, and does not say so.
    pub fn stall(&mut self, stream: u64) {
        self.settle(stream);
        if let Some(player) = self.players.get_mut(&stream) {
            player.clock = None;
            player.generation += 1;
        }
    }

    /// From a moment on a client takes nothing for so many nanoseconds, and does not say so. Then it
    /// takes at once what it has missed, if it may.
    pub fn stall_at(&mut self, moment: Tick, stream: u64, nanos: u64) {
        self.plan(moment.0, Happening::Stall(stream, nanos));
    }

    fn stalls(&mut self, stream: u64, nanos: u64) {
        let now = self.now.0;
        self.settle(stream);
        let Some(player) = self.players.get_mut(&stream) else { return };
        if player.clock.is_some() && player.stalled.is_none() {
            player.stalled = Some(now);
            player.generation += 1;
            self.plan(now.saturating_add(nanos), Happening::TakesAgain(stream));
        }
    }

    fn takes_again(&mut self, stream: u64) {
        let now = self.now.0;
        let lag = Config::default().lag;
        let Some(player) = self.players.get_mut(&stream) else { return };
        let Some(since) = player.stalled.take() else { return };
        let Some((wall, media)) = player.clock else { return };
        if now - since > lag {
            // The rest of its claim is lost.
            let late = player.rate.time_of(player.offset) + lag;
            player.clock = Some((now, late.min(media + now - wall)));
        }
        self.settle(stream);
        self.next_report(stream);
    }

    /// A new stream from the start of a file.
    pub fn join_at(&mut self, moment: Tick, number: u64, title: u64, rate: &Rate, layout: &Layout) {
        let (stream, title) = (StreamId(number), Title(title));
        let (rate, layout) = (rate.clone(), layout.clone());
        let max_startup = None;
        self.at(moment, Event::Join { stream, title, rate, layout, offset: 0, max_startup });
    }

    fn plan(&mut self, at: u64, what: Happening) {
        self.sequence += 1;
        self.heap.push(Reverse((at, self.sequence, what)));
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Tick {
        self.now
    }

    /// Streams that play or wait to.
    #[must_use]
    pub fn playing(&self) -> usize {
        self.players.len()
    }

    /// Streams that have had no data yet.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.players.values().filter(|player| player.waiting).count()
    }

    /// Streams that neither play nor are paused: they wait for the machine.
    #[must_use]
    pub fn put_off(&self) -> usize {
        let silent = self.players.iter().filter(|(_, player)| player.clock.is_none());
        let status = silent.filter_map(|(stream, _)| self.machine.status(StreamId(*stream)));
        status.filter(|status| !status.paused).count()
    }

    /// Lets time pass.
    pub fn run_until(&mut self, end: Tick) {
        self.run_checked(end, |_| {});
    }

    /// Lets time pass; `check` sees the driver after each step.
    pub fn run_checked(&mut self, end: Tick, mut check: impl FnMut(&Self)) {
        while let Some(Reverse((at, _, _))) = self.heap.peek() {
            if *at > end.0 {
                break;
            }
            let Reverse((at, _, what)) = self.heap.pop().expect("it was just seen");
            self.now = self.now.max(Tick(at));
            if let Some(event) = self.event(what) {
                self.step(event);
                check(self);
            }
        }
        self.now = self.now.max(end);
    }

    fn event(&mut self, what: Happening) -> Option<Event> {
        match what {
            Happening::Read(read, service) => Some(Event::ReadDone { read: ReadId(read), service }),
            Happening::BestEffort(service) => {
                self.outcome.best_effort += 1;
                Some(Event::BestEffortDone { service })
            }
            Happening::Stall(stream, nanos) => {
                self.stalls(stream, nanos);
                None
            }
            Happening::TakesAgain(stream) => {
                self.takes_again(stream);
                None
            }
            Happening::Wake => {
                let due = self.machine.next_deadline().is_some_and(|wake| wake <= self.now);
                due.then_some(Event::Tick)
            }
            Happening::Scripted(at) => {
                let event = self.script[at].take()?;
                self.client_does(&event);
                Some(event)
            }
            Happening::Report(stream, generation, up_to) => {
                let player = self.players.get_mut(&stream)?;
                if player.generation != generation {
                    return None;
                }
                let bytes = up_to - player.offset;
                player.offset = up_to;
                if player.offset >= player.end {
                    self.players.remove(&stream);
                    self.outcome.ended += 1;
                    return Some(Event::Leave(StreamId(stream)));
                }
                self.next_report(stream);
                Some(Event::Consumed { stream: StreamId(stream), bytes })
            }
        }
    }

    /// The client's side of an event.
    fn client_does(&mut self, event: &Event) {
        let now = self.now.0;
        match event {
            Event::Join { stream, .. } if self.players.contains_key(&stream.0) => {}
            Event::Join { stream, rate, layout, offset, .. } => {
                let player = Player {
                    rate: rate.clone(),
                    end: layout.bytes(),
                    offset: *offset,
                    filled: *offset,
                    clock: None,
                    joined: now,
                    waiting: true,
                    wanted: None,
                    generation: 0,
                    stalled: None,
                };
                self.players.insert(stream.0, player);
            }
            Event::Leave(stream) => _ = self.players.remove(&stream.0),
            Event::Pause(stream) | Event::Park(stream) => {
                // Reports what it took since the last chunk, so that both know where it stopped.
                self.settle(stream.0);
                if let Some(player) = self.players.get_mut(&stream.0) {
                    (player.clock, player.stalled) = (None, None);
                    player.generation += 1;
                }
                // It was told the latest start of one who does not pause.
                self.promises.remove(&stream.0);
            }
            Event::Seek { stream, .. } => self.settle(stream.0),
            Event::SetRate { stream, rate } => {
                self.settle(stream.0);
                if let Some(player) = self.players.get_mut(&stream.0) {
                    player.wanted = Some(rate.clone());
                }
            }
            Event::BestEffort { id, physical, bytes } => {
                self.best_effort.insert(*id, (*physical, *bytes));
            }
            _ => {}
        }
    }

    /// Tells the machine of the part of a chunk that a client has taken by now.
    fn settle(&mut self, stream: u64) {
        let now = self.now.0;
        let Some(player) = self.players.get_mut(&stream) else { return };
        let Some((wall, media)) = player.clock.filter(|_| player.stalled.is_none()) else { return };
        let taken = player.rate.bytes_at((media + now).saturating_sub(wall));
        let taken = taken.clamp(player.offset, player.filled.max(player.offset));
        let bytes = taken - player.offset;
        player.offset = taken;
        if bytes > 0 {
            self.step(Event::Consumed { stream: StreamId(stream), bytes });
        }
    }

    fn next_report(&mut self, stream: u64) {
        let Some(player) = self.players.get_mut(&stream) else { return };
        if player.stalled.is_some() {
            return;
        }
        let up_to = (player.offset / self.chunk + 1).saturating_mul(self.chunk);
        let up_to = up_to.min(player.filled).min(player.end);
        player.generation += 1;
        let generation = player.generation;
        if let Some(at) = player.time_at(up_to).filter(|_| up_to > player.offset) {
            self.plan(at, Happening::Report(stream, generation, up_to));
        }
    }

    fn step(&mut self, event: Event) {
        let mut actions = std::mem::take(&mut self.actions);
        actions.clear();
        self.machine.step(self.now, event, &mut actions);
        for action in &actions.list {
            self.act(action);
        }
        self.actions = actions;
        if let Some(wake) = self.machine.next_deadline() {
            self.plan(wake.0.max(self.now.0), Happening::Wake);
        }
    }

    fn act(&mut self, action: &Action) {
        match action {
            Action::Read(read) => {
                let service = self.device.read(read.physical, read.bytes);
                self.plan(self.now.0 + service, Happening::Read(read.read.0, service));
            }
            Action::BestEffort { id } => {
                let (physical, bytes) = self.best_effort.remove(id).unwrap_or_default();
                let service = self.device.read(physical, bytes);
                self.plan(self.now.0 + service, Happening::BestEffort(service));
            }
            Action::Declined { id } => _ = self.best_effort.remove(id),
            Action::Admitted { stream, first_byte_by } => {
                self.outcome.admitted += 1;
                let paused = self.machine.status(*stream).is_some_and(|status| status.paused);
                if !paused {
                    self.promises.insert(stream.0, *first_byte_by);
                }
                self.moved(*stream);
            }
            Action::Refused { stream, .. } => {
                self.outcome.refused += 1;
                if self.machine.status(*stream).is_none() {
                    self.players.remove(&stream.0);
                } else if let Some(player) = self.players.get_mut(&stream.0) {
                    player.wanted = None;
                }
            }
            Action::Filled { stream, up_to } => self.fed(stream.0, *up_to),
            Action::Playing(stream) => self.playing_from_now(stream.0),
            Action::Glitch { stream, cause, late } => {
                let (stream, cause, late) = (*stream, *cause, *late);
                self.outcome.glitches.push(Glitch { at: self.now, stream, cause, late });
                if let Some(player) = self.players.get_mut(&stream.0) {
                    // It goes on from where it had to stop.
                    player.clock = Some((self.now.0, player.rate.time_of(player.offset)));
                }
            }
            Action::Degraded(stream) => self.outcome.degraded.push(*stream),
            Action::Restored(stream) => self.outcome.restored.push(*stream),
        }
    }

    /// An admission is also the answer to a seek: the client is where the machine says.
    fn moved(&mut self, stream: StreamId) {
        let Some(status) = self.machine.status(stream) else { return };
        if let Some(player) = self.players.get_mut(&stream.0) {
            (player.offset, player.filled) = (status.offset, status.filled);
            if let Some(rate) = player.wanted.take() {
                player.rate = rate;
            }
            (player.clock, player.stalled) = (None, None);
            player.generation += 1;
            (player.waiting, player.joined) = (true, self.now.0);
        }
    }

    fn fed(&mut self, stream: u64, up_to: u64) {
        let Some(player) = self.players.get_mut(&stream) else { return };
        player.filled = player.filled.max(up_to);
        self.take_at_once(stream);
        self.next_report(stream);
    }

    fn take_at_once(&mut self, stream: u64) {
        let Some(player) = self.players.get_mut(&stream) else { return };
        let bytes = player.filled - player.offset.min(player.filled);
        // What is left of the last chunk of a file is taken by the clock, as the end of it.
        if self.hasty && player.clock.is_some() && bytes > 0 && player.filled < player.end {
            player.offset = player.filled;
            self.step(Event::Consumed { stream: StreamId(stream), bytes });
        }
    }

    fn playing_from_now(&mut self, stream: u64) {
        let now = self.now;
        let Some(player) = self.players.get_mut(&stream) else { return };
        player.clock = Some((now.0, player.rate.time_of(player.offset)));
        if std::mem::take(&mut player.waiting) {
            let waited = now.0 - player.joined;
            self.outcome.startups.push((StreamId(stream), now, waited));
        }
        if let Some(promise) = self.promises.remove(&stream).filter(|by| *by < now) {
            self.outcome.broken_promises.push(now.0 - promise.0);
        }
        self.take_at_once(stream);
        self.next_report(stream);
    }
}
