//! The thread that drives the machine: what happened goes in, what is to be done comes out.

mod behind;
mod causes;
mod reads;
mod refusals;
#[cfg(test)]
mod tests;
mod wants;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::model::{Action, Actions, ChunkId, Event, Machine, Rate, StreamId, Title};
use crossbeam_channel::{Receiver, Sender, select_biased, unbounded};
use forebay_core::unit::Tick;

use super::best_effort::BestEffort;
use super::status::{LINES_MAX, Status, StreamLine};
use super::stream::{Core, Piece, Stream, StreamError};
use super::{Answer, Command, OpenReply, Rejected};
use crate::device::{Completion, Device};
use crate::media::{FileKey, Media};
use crate::pool::{Pool, Span};
use crate::priority::ask_for_promptness;
use behind::DisplacedStream;
use causes::Causes;
use wants::Wanted;

/// Reads of a file that may fail one after the other before its streams break off.
const FAILURES_MAX: u32 = 5;
/// The driver looks at the clock at least so often.
const MAX_WAIT: Duration = Duration::from_millis(500);
/// Before a read for which there was no memory counts as failed.
const POSTPONED: Duration = Duration::from_millis(2);
/// Whoever takes less than this part of its rate counts as taking nothing.
const DROPS: f64 = 16.0;
/// Commands that are taken in before the device is looked at again.
const BATCH: usize = 256;

/// What a driver is made of.
pub(super) struct Parts {
    pub machine: Machine,
    /// Set apart in it is the machine's memory; the rest is for reads without a guarantee.
    pub pool: Arc<Pool>,
    pub device: Arc<dyn Device>,
    pub library: String,
    pub profile: String,
    pub commands: Sender<Command>,
    /// After so long streams of which nobody takes anything give their places back.
    pub idle: Duration,
    /// What time it is.
    pub clock: Box<dyn Fn() -> Instant + Send>,
}

/// A request for a stream, its file open.
pub(crate) struct OpenRequest {
    pub media: Arc<Media>,
    pub path: String,
    /// None without a guarantee.
    pub rate: Option<Rate>,
    pub start: u64,
    pub end: u64,
    pub max_startup: Option<Duration>,
    /// When what an earlier service has left at hand is used up, for a stream that goes on here.
    pub dry_at: Option<Instant>,
    /// If `rate` is more than it needs: what it needs, and for how long it may have more.
    pub burst: Option<Burst>,
    /// A stream of the same player whose place it gets, and with it this rate if no other fits.
    pub instead_of: Option<Arc<Core>>,
    pub least: Option<Rate>,
}

/// A rate that a stream has for a while, if there is room for it.
#[derive(Clone)]
pub(crate) struct Burst {
    /// What it needs.
    pub base: Rate,
    /// More than that, if what it asks for first is too much.
    pub less: Option<Rate>,
    /// It has more up to this byte.
    pub until: u64,
}

/// What is played by one or more streams: one version of a file up to one place.
struct Reading {
    key: (FileKey, u64),
    media: Arc<Media>,
    streams: usize,
    /// Reads that failed one after the other.
    failures: u32,
    /// The last that failed did so since there was no memory for it.
    crowded: bool,
}

/// A stream with a guarantee.
struct Guaranteed {
    core: Weak<Core>,
    title: Title,
    path: String,
    rate: Rate,
    start: u64,
    end: u64,
    /// The file is there up to here.
    filled: u64,
    /// And was handed to the reader's queue up to here.
    given: u64,
    /// The reader is done with what is before.
    consumed: u64,
    opened: Instant,
    /// As [`OpenRequest::dry_at`], until its first bytes are here.
    dry_at: Option<Instant>,
    playing: bool,
    paused: bool,
    degraded: bool,
    /// When it had its guarantee back.
    restored: Option<Instant>,
    failed: bool,
    glitches: u64,
    wanted: Option<Wanted>,
    /// It has no place: it has given it back, or waits for one.
    parked: bool,
    /// Since then it has something of which nobody takes enough, or is paused.
    touched: Instant,
    /// Bytes that were taken since then.
    dripped: u64,
    burst: Option<Burst>,
    /// Its burst ends as soon as its reader is done with what it has in hand.
    slowing: bool,
}

/// Streams of one title from one place at one rate share what is read, once something is read: those
/// that come before that wait for the first of them.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Crowd {
    title: Title,
    start: u64,
    rate: u64,
}

/// A stream that the machine was not told of yet.
struct Joining {
    wanted: Box<OpenRequest>,
    core: Arc<Core>,
    title: Title,
    reply: OpenReply,
    /// It has asked in vain, and asks again until then.
    until: Option<Instant>,
}

/// The first of a crowd, and who waits for it.
struct Awaited {
    first: StreamId,
    waiting: Vec<Joining>,
}

/// What a chunk of the machine holds.
#[derive(Clone, Copy, Default)]
struct Holding {
    title: Option<Title>,
    number: u64,
    /// Bytes from its start that were read.
    filled: usize,
}

/// A read under way.
pub(super) enum Flying {
    Machine { read: crate::model::machine::Read, chunks: Vec<ChunkId>, start: u64 },
    BestEffort { stream: StreamId, offset: u64 },
}

/// Who waits for the machine's answer.
enum Asked {
    Open(Joining),
    Seek { offset: u64, reply: Answer },
    Other { reply: Answer, rate: Option<Rate> },
    Wake,
    Behind,
}

pub(super) struct Driver {
    machine: Machine,
    pool: Arc<Pool>,
    pub(super) device: Arc<dyn Device>,
    begun: Instant,
    commands: Sender<Command>,
    done: Sender<Completion>,
    completions: Receiver<Completion>,
    streams: HashMap<StreamId, Guaranteed>,
    titles: HashMap<Title, Reading>,
    by_key: HashMap<(FileKey, u64), Title>,
    next_id: u64,
    holdings: Vec<Holding>,
    /// Where in the pool each of the machine's chunks is.
    places: Vec<u32>,
    /// Reads under way, and since when.
    flying: HashMap<u64, (Flying, Instant)>,
    next_token: u64,
    /// What happened and the machine was not told yet.
    events: VecDeque<Event>,
    /// What it is told the next time, not before others had a turn.
    postponed: Vec<Event>,
    asked: HashMap<StreamId, Asked>,
    /// Those whose first has no data yet.
    crowds: HashMap<Crowd, Awaited>,
    pub(super) best_effort: BestEffort,
    pub(super) tally: Status,
    causes: Causes,
    /// Since when the driver is at work.
    woken: Option<Instant>,
    /// Streams that have lost their places and wait for others, who waits longest first.
    displaced: VecDeque<DisplacedStream>,
    waiting_looked_at: Instant,
    /// Who asks again when the bursts of others have ended.
    retries: Vec<refusals::Retry>,
    idle: Duration,
    idle_looked_at: Instant,
    clock: Box<dyn Fn() -> Instant + Send>,
    stopped: bool,
}

impl Driver {
    pub fn new(parts: Parts) -> Self {
        let Parts { machine, pool, device, library, profile, commands, idle, clock } = parts;
        // As many completions as reads, whose number the machine keeps small.
        let (done, completions) = unbounded();
        let (chunks, memory_limit, begun) = (pool.apart(), pool.bytes(), clock());
        let best_effort = BestEffort::new(Arc::clone(&pool));
        let tally =
            Status { library, device: device.name(), profile, memory_limit, ..Status::default() };
        Self {
            machine,
            pool,
            device,
            begun,
            commands,
            done,
            completions,
            streams: HashMap::new(),
            titles: HashMap::new(),
            by_key: HashMap::new(),
            next_id: 1,
            holdings: vec![Holding::default(); chunks],
            places: (0..chunks as u32).collect(),
            flying: HashMap::new(),
            next_token: 0,
            events: VecDeque::new(),
            postponed: Vec::new(),
            asked: HashMap::new(),
            crowds: HashMap::new(),
            best_effort,
            tally,
            causes: Causes::default(),
            woken: None,
            displaced: VecDeque::new(),
            waiting_looked_at: begun,
            retries: Vec::new(),
            idle,
            idle_looked_at: begun,
            clock,
            stopped: false,
        }
    }

    /// Runs until it is told to stop, or nobody can tell it anything any more.
    pub fn run(mut self, commands: &Receiver<Command>) {
        self.tally.priority = ask_for_promptness("driver");
        let completions = self.completions.clone();
        let mut actions = Actions::default();
        while !self.stopped {
            let (since, wait) = ((self.clock)(), self.wait());
            select_biased! {
                recv(completions) -> completion => {
                    // It holds a sender of this channel itself, so that it never closes.
                    if let Ok(completion) = completion {
                        self.complete(completion);
                    }
                }
                recv(commands) -> command => {
                    match command {
                        Ok(command) => self.obey(command),
                        Err(_) => return,
                    }
                }
                default(wait) => {
                    // Whoever is woken late keeps the device waiting.
                    self.causes.note(since + wait, (self.clock)());
                    self.events.push_back(Event::Tick);
                }
            }
            self.woken = Some((self.clock)());
            while let Ok(completion) = completions.try_recv() {
                self.complete(completion);
            }
            for command in commands.try_iter().take(BATCH) {
                self.obey(command);
            }
            self.work(&mut actions);
            // The driver's own work, and what interrupted it.
            if let Some(woken) = self.woken.take() {
                self.causes.note(woken, (self.clock)());
            }
        }
        self.break_off_all(&StreamError::Stopped);
    }

    /// Tells the machine what has happened, and does what it wants done.
    fn work(&mut self, actions: &mut Actions) {
        self.events.extend(self.postponed.drain(..));
        self.best_effort_requests();
        self.park_idle();
        self.help_waiting();
        self.ask_again();
        if self.machine.next_deadline().is_some_and(|wake| wake <= self.now()) {
            self.events.push_back(Event::Tick);
        }
        while let Some(event) = self.events.pop_front() {
            self.step(event, actions);
        }
    }

    /// Keeps an event for the machine.
    pub(super) fn tell(&mut self, event: Event) {
        self.events.push_back(event);
    }

    fn now(&self) -> Tick {
        let passed = (self.clock)().saturating_duration_since(self.begun);
        Tick(u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX))
    }

    fn wait(&self) -> Duration {
        let now = self.now();
        let longest = if self.postponed.is_empty() { MAX_WAIT } else { POSTPONED };
        let next = self.machine.next_deadline().map(|wake| wake.0.saturating_sub(now.0));
        next.map_or(longest, |nanos| Duration::from_nanos(nanos).min(longest))
    }

    fn step(&mut self, mut event: Event, actions: &mut Actions) {
        actions.clear();
        if let Event::Consumed { stream, bytes } = &mut event {
            *bytes = self.due(*stream);
        }
        let concerned = match &event {
            Event::Resume(stream) | Event::SetRate { stream, .. } | Event::Seek { stream, .. } => {
                Some(*stream)
            }
            _ => None,
        };
        self.machine.step(self.now(), event, actions);
        for action in &actions.list {
            self.act(action, actions);
        }
        // What the machine did not refuse, it did.
        if let Some(stream) = concerned
            && let Some(asked) = self.asked.remove(&stream)
        {
            self.granted(stream, asked, Duration::ZERO);
        }
    }

    fn act(&mut self, action: &Action, actions: &Actions) {
        match action {
            Action::Admitted { stream, first_byte_by } => {
                let bound = Duration::from_nanos(first_byte_by.0.saturating_sub(self.now().0));
                match self.asked.remove(stream) {
                    Some(asked) => self.granted(*stream, asked, bound),
                    None => self.moved(*stream),
                }
            }
            Action::Refused { stream, refusal } => {
                if let Some(asked) = self.asked.remove(stream) {
                    self.refused(*stream, asked, refusal);
                }
                self.wait_for_a_place(*stream, refusal);
            }
            Action::Read(read) => self.read(*read, actions.chunks_of(read).to_vec()),
            Action::Filled { stream, up_to } => {
                let Some(entry) = self.streams.get_mut(stream) else { return };
                entry.filled = *up_to;
                if let Some(dry_at) = entry.dry_at.take() {
                    self.took_over(*stream, dry_at);
                }
                self.report_what_is_due(*stream);
                self.deliver(*stream);
                self.dissolve(*stream);
            }
            Action::Playing(stream) => {
                if let Some(entry) = self.streams.get_mut(stream) {
                    if !entry.playing {
                        let opened = entry.opened;
                        self.tally
                            .startup
                            .observe((self.clock)().saturating_duration_since(opened));
                    }
                    entry.playing = true;
                    self.deliver(*stream);
                }
            }
            Action::Glitch { stream, cause, late } => {
                self.glitch(*stream, *cause, Duration::from_nanos(*late));
            }
            Action::Degraded(stream) => {
                self.tally.degradations += 1;
                self.set_degraded(*stream, true);
            }
            Action::Restored(stream) => {
                self.tally.restorations += 1;
                self.set_degraded(*stream, false);
            }
            Action::BestEffort { id } => self.best_effort_turn(*id),
            Action::Declined { id } => self.best_effort.declined(*id),
        }
    }

    fn set_degraded(&mut self, stream: StreamId, degraded: bool) {
        let now = (self.clock)();
        if let Some(entry) = self.streams.get_mut(&stream) {
            entry.degraded = degraded;
            entry.restored = (!degraded).then_some(now);
            tracing::warn!(
                stream = stream.0,
                path = %entry.path,
                degraded,
                "a stream's guarantee was taken away (degraded), or given back"
            );
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Open { wanted, reply } => self.open(wanted, reply),
            Command::Consumed { stream, bytes } => self.consumed(stream, bytes),
            Command::Leave(stream) => self.leave(stream),
            Command::Pause(stream) => self.pause(stream),
            Command::Resume { stream, reply } => self.resume(stream, reply),
            Command::Wake(stream) => self.wake(stream),
            Command::SetRate { stream, rate, reply } => self.set_rate(stream, rate, reply),
            Command::Seek { stream, offset, reply } => self.seek(stream, offset, reply),
            Command::Turn { physical, bytes, reply } => {
                self.best_effort.ask_for_turn(physical, bytes, reply);
            }
            Command::TurnEnded { service, ended, added } => {
                self.tally.turns += 1;
                self.delayed(ended, added);
                let service = u64::try_from(service.as_nanos()).unwrap_or(u64::MAX);
                self.events.push_back(Event::BestEffortDone { service });
            }
            Command::Status(reply) => {
                let _ = reply.send(self.status());
            }
            Command::Stop => self.stopped = true,
        }
    }

    fn open(&mut self, mut wanted: OpenRequest, reply: OpenReply) {
        // Nobody comes between the one and the other.
        if let Some(before) = wanted.instead_of.take() {
            self.leave(before.id);
        }
        let stream = StreamId(self.next_id);
        self.next_id += 1;
        let core = Core::new(stream, self.commands.clone());
        let Some(rate) = wanted.rate.clone() else {
            self.tally.opened += 1;
            self.best_effort.open(&core, wanted.media, wanted.path, wanted.start, wanted.end);
            reply(Ok(Stream::new(core, Duration::ZERO)));
            return;
        };
        let title = self.title(&wanted);
        let crowd = Crowd { title, start: wanted.start, rate: rate.peak() as u64 };
        let joining = Joining { wanted: Box::new(wanted), core, title, reply, until: None };
        match self.crowds.get_mut(&crowd) {
            Some(crowd) => crowd.waiting.push(joining),
            None => {
                self.crowds.insert(crowd, Awaited { first: stream, waiting: Vec::new() });
                self.join(joining);
            }
        }
    }

    fn join(&mut self, joining: Joining) {
        let Joining { wanted, core, title, .. } = &joining;
        let (stream, title, offset) = (core.id, *title, wanted.start);
        let media = &self.titles[&title].media;
        // Nothing is read past the end of what is wanted.
        let (Some(layout), Some(rate)) = (media.layout_until(wanted.end), wanted.rate.clone())
        else {
            self.dissolve(stream);
            self.release(title);
            let why = Rejected::senseless("the stream would be empty".into());
            (joining.reply)(Err(why));
            return;
        };
        let nanos = |limit: Duration| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let max_startup = wanted.max_startup.map(nanos);
        self.asked.insert(stream, Asked::Open(joining));
        self.events.push_back(Event::Join { stream, title, rate, layout, offset, max_startup });
    }

    /// The first of a crowd has data, or never will: the others join.
    fn dissolve(&mut self, first: StreamId) {
        self.dissolve_those(|crowd| crowd.first == first);
    }

    fn dissolve_those(&mut self, which: impl Fn(&Awaited) -> bool) {
        let crowds = self.crowds.extract_if(|_, crowd| which(crowd));
        let waiting: Vec<Joining> = crowds.flat_map(|(_, crowd)| crowd.waiting).collect();
        for joining in waiting {
            self.join(joining);
        }
    }

    /// The title of a request, which counts it as one stream more.
    fn title(&mut self, wanted: &OpenRequest) -> Title {
        let key = (wanted.media.key(), wanted.end);
        let title = *self.by_key.entry(key).or_insert_with(|| {
            let title = Title(self.next_id);
            self.next_id += 1;
            let media = Arc::clone(&wanted.media);
            self.titles
                .insert(title, Reading { key, media, streams: 0, failures: 0, crowded: false });
            title
        });
        if let Some(reading) = self.titles.get_mut(&title) {
            reading.streams += 1;
        }
        title
    }

    fn release(&mut self, title: Title) {
        let Some(reading) = self.titles.get_mut(&title) else { return };
        reading.streams -= 1;
        if reading.streams == 0 {
            self.by_key.remove(&reading.key);
            self.titles.remove(&title);
            // The number is not used again, so what chunks still hold of it is never taken for
            // another title's.
        }
    }

    fn granted(&mut self, stream: StreamId, asked: Asked, bound: Duration) {
        match asked {
            Asked::Open(Joining { wanted, core, title, reply, .. }) => {
                if wanted.max_startup.is_some_and(|limit| bound > limit) {
                    self.dissolve(stream);
                    self.release(title);
                    self.events.push_back(Event::Leave(stream));
                    let message =
                        format!("it would start in {} ms at the latest", bound.as_millis());
                    let refusal = Rejected::plain("startup", message);
                    self.count_refusal(&refusal);
                    reply(Err(refusal));
                    return;
                }
                self.tally.opened += 1;
                let now = (self.clock)();
                let OpenRequest { path, rate, start, end, dry_at, burst, .. } = *wanted;
                let entry = Guaranteed {
                    core: Arc::downgrade(&core),
                    title,
                    path,
                    rate: rate.expect("only streams with a rate join the machine"),
                    start,
                    end,
                    filled: start,
                    given: start,
                    consumed: start,
                    opened: now,
                    dry_at,
                    playing: false,
                    paused: false,
                    degraded: false,
                    restored: None,
                    failed: false,
                    glitches: 0,
                    wanted: None,
                    parked: false,
                    touched: now,
                    dripped: 0,
                    burst,
                    slowing: false,
                };
                self.streams.insert(stream, entry);
                // If nobody waits any more, dropping it makes the stream leave.
                reply(Ok(Stream::new(core, bound)));
            }
            Asked::Seek { offset, reply } => {
                if let Some(entry) = self.streams.get_mut(&stream) {
                    (entry.given, entry.consumed) = (offset, offset);
                }
                self.replaced(stream);
                let _ = reply.send(Ok(bound));
            }
            Asked::Other { reply, rate: Some(rate) } => {
                if let Some(entry) = self.streams.get_mut(&stream) {
                    (entry.rate, entry.slowing) = (rate, false);
                }
                self.replaced(stream);
                let _ = reply.send(Ok(bound));
            }
            Asked::Other { reply, rate: None } => {
                if let Some(entry) = self.streams.get_mut(&stream) {
                    entry.paused = false;
                }
                self.back(stream);
                let _ = reply.send(Ok(bound));
            }
            Asked::Wake | Asked::Behind => self.back(stream),
        }
    }

    /// A stream plays again that was paused or idle.
    fn back(&mut self, stream: StreamId) {
        match self.streams.get_mut(&stream) {
            Some(entry) if entry.parked => self.replaced(stream),
            _ => self.deliver(stream),
        }
    }

    /// The machine has found another place for a stream: it starts there anew.
    fn replaced(&mut self, stream: StreamId) {
        let now = (self.clock)();
        let Some(entry) = self.streams.get_mut(&stream) else { return };
        let there = self.machine.status(stream).map_or(entry.consumed, |status| status.filled);
        if entry.parked && !entry.paused {
            // It has a place again, but the machine may think it paused.
            self.events.push_back(Event::Resume(stream));
        }
        (entry.filled, entry.playing, entry.parked) = (there, false, false);
        (entry.opened, entry.touched) = (now, now);
        self.displaced.retain(|displaced| displaced.stream != stream);
        let Some(entry) = self.streams.get(&stream) else { return };
        if let Some(core) = entry.core.upgrade() {
            core.update(|queue| queue.parked = false);
        }
    }

    fn consumed(&mut self, stream: StreamId, bytes: u64) {
        let Some(entry) = self.streams.get_mut(&stream) else {
            self.best_effort.consumed(stream, bytes);
            return;
        };
        entry.consumed += bytes;
        entry.dripped += bytes;
        // Who takes a drop now and then keeps nobody else from the place.
        if entry.dripped as f64 >= entry.rate.peak() * self.idle.as_secs_f64() / DROPS {
            (entry.touched, entry.dripped) = ((self.clock)(), 0);
        }
        self.events.push_back(Event::Consumed { stream, bytes });
        self.go_on_if_idle(stream);
        self.slow_down(stream);
    }

    fn leave(&mut self, stream: StreamId) {
        if let Some(entry) = self.streams.remove(&stream) {
            self.dissolve(stream);
            self.release(entry.title);
            self.displaced.retain(|displaced| displaced.stream != stream);
            self.help_now();
            self.events.push_back(Event::Leave(stream));
        } else {
            self.best_effort.leave(stream);
        }
    }

    /// Hands to the reader's queue what is there.
    fn deliver(&mut self, stream: StreamId) {
        let now = (self.clock)();
        let Some(entry) = self.streams.get_mut(&stream) else { return };
        if !entry.playing || entry.paused || entry.parked || entry.wanted.is_some() {
            return;
        }
        if entry.given == entry.consumed {
            entry.touched = now;
        }
        let Some(core) = entry.core.upgrade() else { return };
        let chunk_bytes = self.pool.chunk_bytes() as u64;
        let until = entry.filled.min(entry.end);
        let mut pieces = Vec::new();
        while entry.given < until {
            let Some(ChunkId(chunk)) = self.machine.chunk_at(stream, entry.given) else { break };
            let number = entry.given / chunk_bytes;
            let to = until.min((number + 1) * chunk_bytes);
            let (from, upto) = (entry.given % chunk_bytes, to - number * chunk_bytes);
            let place = self.places[chunk as usize];
            // SAFETY: these bytes are read completely; reads into the rest of the chunk begin behind
            // what is filled, and a chunk of which there are spans is not written anew (`unread`).
            let span = unsafe { Span::new(&self.pool, place, from as usize, upto as usize) };
            pieces.push(Piece::Guaranteed(span));
            entry.given = to;
        }
        let ended = entry.given >= entry.end;
        core.update(|queue| {
            queue.ready.extend(pieces);
            queue.ended = ended;
        });
    }

    /// Ends the streams of a title with an error. They leave when their readers have seen it.
    fn break_off(&mut self, title: Title, error: &StreamError) {
        // Whoever waits for one of them finds out for himself.
        let first = |crowd: &Awaited| crowd.waiting.iter().any(|joining| joining.title == title);
        self.dissolve_those(first);
        for (stream, entry) in &mut self.streams {
            if entry.title == title && !entry.failed {
                entry.failed = true;
                self.tally.broken += 1;
                // Nothing more is read for it, as soon as it has taken what is there.
                if entry.given == entry.consumed {
                    self.events.push_back(Event::Pause(*stream));
                } else {
                    entry.wanted = Some(Wanted::Pause);
                }
                if let Some(core) = entry.core.upgrade() {
                    core.update(|queue| queue.failed = Some(error.clone()));
                }
            }
        }
    }

    fn break_off_all(&mut self, error: &StreamError) {
        for entry in self.streams.values() {
            if let Some(core) = entry.core.upgrade() {
                core.update(|queue| queue.failed = Some(error.clone()));
            }
        }
        self.best_effort.break_off_all(error);
    }

    fn status(&self) -> Status {
        let counters = self.machine.counters();
        let plan = self.machine.plan();
        let (used, peak) = self.machine.memory();
        let chunk = self.pool.chunk_bytes() as u64;
        let mut lines: Vec<StreamLine> =
            self.streams.iter().map(|(id, entry)| entry.line(*id)).collect();
        for line in &mut lines {
            if self.displaced.iter().any(|displaced| displaced.stream.0 == line.id) {
                line.state = "waiting".into();
            }
        }
        lines.extend(self.best_effort.lines());
        lines.sort_by_key(|line| line.id);
        lines.truncate(LINES_MAX);
        let load = (plan.busy + plan.budget) as f64 / plan.cycle.max(1) as f64;
        Status {
            slowdown: self.machine.slowdown(),
            guaranteed: self.streams.len() as u64,
            guaranteed_rate: self.streams.values().map(|entry| entry.rate.peak() as u64).sum(),
            degraded: self.streams.values().filter(|entry| entry.degraded).count() as u64,
            idle: self.streams.values().filter(|entry| entry.parked).count() as u64,
            joining: self.crowds.values().map(|crowd| crowd.waiting.len() as u64).sum(),
            best_effort: self.best_effort.count() as u64,
            cycle_seconds: Duration::from_nanos(plan.cycle).as_secs_f64(),
            load: if self.streams.is_empty() { 0.0 } else { load },
            memory_used: used + self.pool.used() as u64 * chunk,
            memory_peak: peak + self.pool.peak() as u64 * chunk,
            bytes_read: counters.bytes,
            bytes_taken: counters.consumed,
            visits: counters.visits,
            early_visits: counters.early,
            shared: counters.shared,
            driver_seconds: processor_time(),
            streams: lines,
            ..self.tally.clone()
        }
    }
}

impl Guaranteed {
    fn line(&self, id: StreamId) -> StreamLine {
        let state = match self {
            Self { failed: true, .. } => "failed",
            Self { degraded: true, .. } => "degraded",
            Self { paused: true, .. } => "paused",
            Self { parked: true, .. } => "idle",
            Self { playing: true, .. } => "playing",
            _ => "starting",
        };
        let done = (self.given - self.start.min(self.given)) as f64;
        StreamLine {
            id: id.0,
            path: self.path.clone(),
            rate: self.rate.peak() as u64,
            state: state.into(),
            done: done / (self.end - self.start).max(1) as f64,
            glitches: self.glitches,
        }
    }
}

/// Seconds that this thread has kept a processor busy.
fn processor_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
