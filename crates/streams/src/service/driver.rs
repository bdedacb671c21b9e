//! The thread that drives the machine: what happened goes in, what is to be done comes out.

mod reads;
mod wants;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::model::{
    Action, Actions, ChunkId, Event, GlitchCause, Machine, Rate, Refusal, StreamId, Title,
};
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
use wants::Wanted;

/// Reads of a file that may fail one after the other before its streams break off.
const FAILURES_MAX: u32 = 5;
/// The driver looks at the clock at least so often.
const LONGEST_WAIT: Duration = Duration::from_millis(500);
/// How long it is remembered that this host kept the device waiting.
const DELAYS_KEPT: Duration = Duration::from_secs(2);
/// Less than this in that time is no reason for a glitch.
const NOTICEABLE: Duration = Duration::from_millis(20);
/// The cause of a glitch that comes of one daemon taking the streams of another over.
const DAEMON_CHANGE: &str = "daemon-change";
/// Commands that are taken in before the device is looked at again.
const BATCH: usize = 256;

/// What a driver is made of.
pub(super) struct Parts {
    pub machine: Machine,
    /// The machine's memory, by the numbers of its chunks.
    pub pool: Arc<Pool>,
    /// Memory for reads without a guarantee.
    pub spare: Arc<Pool>,
    pub device: Arc<dyn Device>,
    pub library: String,
    pub profile: String,
    pub commands: Sender<Command>,
    /// After so long streams of which nobody takes anything give their places back.
    pub idle: Duration,
}

/// A wish for a stream, its file open.
pub(crate) struct Wish {
    pub media: Arc<Media>,
    pub path: String,
    /// None without a guarantee.
    pub rate: Option<Rate>,
    pub start: u64,
    pub end: u64,
    pub max_startup: Option<Duration>,
    /// When what an earlier service has left at hand is used up, for a stream that goes on here.
    pub dry_at: Option<Instant>,
}

/// What is played by one or more streams: one version of a file up to one place.
struct Reading {
    key: (FileKey, u64),
    media: Arc<Media>,
    streams: usize,
    /// Reads that failed one after the other.
    failures: u32,
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
    /// As [`Wish::dry_at`], until its first bytes are here.
    dry_at: Option<Instant>,
    playing: bool,
    paused: bool,
    degraded: bool,
    failed: bool,
    glitches: u64,
    wanted: Option<Wanted>,
    /// It has given its place back.
    parked: bool,
    /// Since then it has something that nobody takes, or is paused.
    touched: Instant,
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
    wish: Box<Wish>,
    core: Arc<Core>,
    title: Title,
    reply: OpenReply,
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
    BestEffort { stream: StreamId },
}

/// Who waits for the machine's answer.
enum Asked {
    Open(Joining),
    Seek { offset: u64, reply: Answer },
    Other { reply: Answer, rate: Option<Rate> },
    Wake,
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
    flying: HashMap<u64, Flying>,
    next_token: u64,
    /// What happened and the machine was not told yet.
    events: VecDeque<Event>,
    asked: HashMap<StreamId, Asked>,
    /// The first of each crowd that has no data yet, and who waits for it.
    crowds: HashMap<Crowd, (StreamId, Vec<Joining>)>,
    pub(super) best_effort: BestEffort,
    pub(super) tally: Status,
    /// What this host has cost the device lately: when, and how long.
    delays: VecDeque<(Instant, Duration)>,
    delays_sum: Duration,
    idle: Duration,
    idle_looked_at: Instant,
    stopped: bool,
}

impl Driver {
    pub fn new(parts: Parts) -> Self {
        let Parts { machine, pool, spare, device, library, profile, commands, idle } = parts;
        // As many completions as reads, whose number the machine keeps small.
        let (done, completions) = unbounded();
        let chunks = (pool.bytes() / pool.chunk_bytes() as u64) as usize;
        let memory_limit = pool.bytes() + spare.bytes();
        let tally =
            Status { library, device: device.name(), profile, memory_limit, ..Status::default() };
        Self {
            machine,
            pool,
            device,
            begun: Instant::now(),
            commands,
            done,
            completions,
            streams: HashMap::new(),
            titles: HashMap::new(),
            by_key: HashMap::new(),
            next_id: 1,
            holdings: vec![Holding::default(); chunks],
            flying: HashMap::new(),
            next_token: 0,
            events: VecDeque::new(),
            asked: HashMap::new(),
            crowds: HashMap::new(),
            best_effort: BestEffort::new(spare),
            tally,
            delays: VecDeque::new(),
            delays_sum: Duration::ZERO,
            idle,
            idle_looked_at: Instant::now(),
            stopped: false,
        }
    }

    /// Runs until it is told to stop, or nobody can tell it anything any more.
    pub fn run(mut self, commands: &Receiver<Command>) {
        self.tally.priority = ask_for_promptness("driver");
        let completions = self.completions.clone();
        let mut actions = Actions::default();
        while !self.stopped {
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
                default(self.wait()) => self.events.push_back(Event::Tick),
            }
            while let Ok(completion) = completions.try_recv() {
                self.complete(completion);
            }
            for command in commands.try_iter().take(BATCH) {
                self.obey(command);
            }
            self.best_effort_requests();
            self.park_idle();
            if self.machine.next_deadline().is_some_and(|wake| wake <= self.now()) {
                self.events.push_back(Event::Tick);
            }
            while let Some(event) = self.events.pop_front() {
                self.step(event, &mut actions);
            }
        }
        self.break_off_all(&StreamError::Stopped);
    }

    /// Keeps an event for the machine.
    pub(super) fn tell(&mut self, event: Event) {
        self.events.push_back(event);
    }

    fn now(&self) -> Tick {
        Tick(u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn wait(&self) -> Duration {
        let now = self.now();
        let next = self.machine.next_deadline().map(|wake| wake.0.saturating_sub(now.0));
        next.map_or(LONGEST_WAIT, |nanos| Duration::from_nanos(nanos).min(LONGEST_WAIT))
    }

    fn step(&mut self, event: Event, actions: &mut Actions) {
        actions.clear();
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
                if let Some(asked) = self.asked.remove(stream) {
                    self.granted(*stream, asked, bound);
                }
            }
            Action::Refused { stream, refusal } => {
                if let Some(asked) = self.asked.remove(stream) {
                    self.refused(*stream, asked, refusal);
                }
            }
            Action::Read(read) => self.read(*read, actions.chunks_of(read).to_vec()),
            Action::Filled { stream, up_to } => {
                if let Some(entry) = self.streams.get_mut(stream) {
                    entry.filled = *up_to;
                    if let Some(dry_at) = entry.dry_at.take() {
                        self.took_over(*stream, dry_at);
                    }
                    self.deliver(*stream);
                    self.dissolve(*stream);
                }
            }
            Action::Playing(stream) => {
                if let Some(entry) = self.streams.get_mut(stream) {
                    if !entry.playing {
                        self.tally.startup.observe(entry.opened.elapsed());
                    }
                    entry.playing = true;
                    self.deliver(*stream);
                }
            }
            Action::Glitch { stream, cause, late } => {
                let cause = self.cause(*cause, Duration::from_nanos(*late));
                *self.tally.glitches.entry(cause.into()).or_default() += 1;
                self.tally.glitch_seconds += Duration::from_nanos(*late).as_secs_f64();
                if let Some(entry) = self.streams.get_mut(stream) {
                    entry.glitches += 1;
                    let path = &entry.path;
                    tracing::warn!(stream = stream.0, %path, cause, late_ms = late / 1_000_000, "glitch");
                }
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

    /// A stream that began in an earlier service has its first bytes from this one: too late if what
    /// was at hand there is used up.
    fn took_over(&mut self, stream: StreamId, dry_at: Instant) {
        let late = Instant::now().saturating_duration_since(dry_at);
        let Some(entry) = self.streams.get_mut(&stream).filter(|_| !late.is_zero()) else { return };
        entry.glitches += 1;
        *self.tally.glitches.entry(DAEMON_CHANGE.into()).or_default() += 1;
        self.tally.glitch_seconds += late.as_secs_f64();
        let (path, late_ms) = (&entry.path, late.as_millis());
        tracing::info!(stream = stream.0, %path, cause = DAEMON_CHANGE, late_ms, "glitch");
    }

    /// Between the end of a read and now the device had nothing to do: this machine was busy.
    fn delayed(&mut self, delay: Duration) {
        self.tally.hand_over.observe(delay);
        let now = Instant::now();
        self.delays.push_back((now, delay));
        self.delays_sum += delay;
        while let Some((at, delay)) = self.delays.front().copied() {
            if now.duration_since(at) < DELAYS_KEPT {
                break;
            }
            self.delays.pop_front();
            self.delays_sum -= delay;
        }
    }

    /// The cause of a glitch: the machine's, unless the processors of this host have cost the device
    /// more time lately than the stream was late.
    fn cause(&self, cause: GlitchCause, late: Duration) -> &'static str {
        let theirs = matches!(cause, GlitchCause::SlowDevice | GlitchCause::Late);
        if theirs && self.delays_sum > late.max(NOTICEABLE) {
            return "host-busy";
        }
        cause_word(cause)
    }

    fn set_degraded(&mut self, stream: StreamId, degraded: bool) {
        if let Some(entry) = self.streams.get_mut(&stream) {
            entry.degraded = degraded;
            tracing::warn!(stream = stream.0, path = %entry.path, degraded, "guarantee");
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Open { wish, reply } => self.open(wish, reply),
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
                self.delayed(added + ended.elapsed());
                let service = u64::try_from(service.as_nanos()).unwrap_or(u64::MAX);
                self.events.push_back(Event::BestEffortDone { service });
            }
            Command::Status(reply) => {
                let _ = reply.send(self.status());
            }
            Command::Stop => self.stopped = true,
        }
    }

    fn open(&mut self, wish: Wish, reply: OpenReply) {
        let stream = StreamId(self.next_id);
        self.next_id += 1;
        let core = Core::new(stream, self.commands.clone());
        let Some(rate) = wish.rate.clone() else {
            self.tally.opened += 1;
            self.best_effort.open(&core, wish.media, wish.path, wish.start, wish.end);
            reply(Ok(Stream::new(core, Duration::ZERO)));
            return;
        };
        let title = self.title(&wish);
        let crowd = Crowd { title, start: wish.start, rate: rate.peak() as u64 };
        let joining = Joining { wish: Box::new(wish), core, title, reply };
        match self.crowds.get_mut(&crowd) {
            Some((_, waiting)) => waiting.push(joining),
            None => {
                self.crowds.insert(crowd, (stream, Vec::new()));
                self.join(joining);
            }
        }
    }

    fn join(&mut self, joining: Joining) {
        let Joining { wish, core, title, .. } = &joining;
        let (stream, title, offset) = (core.id, *title, wish.start);
        let media = &self.titles[&title].media;
        // Nothing is read past the end of what is wanted.
        let (Some(layout), Some(rate)) = (media.layout_until(wish.end), wish.rate.clone()) else {
            self.dissolve(stream);
            self.release(title);
            let why = Rejected::senseless("the stream would be empty".into());
            (joining.reply)(Err(why));
            return;
        };
        self.asked.insert(stream, Asked::Open(joining));
        self.events.push_back(Event::Join { stream, title, rate, layout, offset });
    }

    /// The first of a crowd has data, or never will: the others join.
    fn dissolve(&mut self, first: StreamId) {
        let crowds: Vec<Crowd> = self
            .crowds
            .iter()
            .filter(|(_, held)| held.0 == first)
            .map(|(c, _)| c.clone())
            .collect();
        for crowd in crowds {
            let Some((_, waiting)) = self.crowds.remove(&crowd) else { continue };
            for joining in waiting {
                self.join(joining);
            }
        }
    }

    /// The title of a wish, which counts it as one stream more.
    fn title(&mut self, wish: &Wish) -> Title {
        let key = (wish.media.key(), wish.end);
        let title = *self.by_key.entry(key).or_insert_with(|| {
            let title = Title(self.next_id);
            self.next_id += 1;
            let media = Arc::clone(&wish.media);
            self.titles.insert(title, Reading { key, media, streams: 0, failures: 0 });
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
            Asked::Open(Joining { wish, core, title, reply }) => {
                if wish.max_startup.is_some_and(|limit| bound > limit) {
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
                let Wish { path, rate, start, end, dry_at, .. } = *wish;
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
                    opened: Instant::now(),
                    dry_at,
                    playing: false,
                    paused: false,
                    degraded: false,
                    failed: false,
                    glitches: 0,
                    wanted: None,
                    parked: false,
                    touched: Instant::now(),
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
                    entry.rate = rate;
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
            Asked::Wake => self.back(stream),
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
        let Some(entry) = self.streams.get_mut(&stream) else { return };
        let there = self.machine.status(stream).map_or(entry.consumed, |status| status.filled);
        if entry.parked && !entry.paused {
            // It has a place again, but the machine may think it paused.
            self.events.push_back(Event::Resume(stream));
        }
        (entry.filled, entry.playing, entry.parked) = (there, false, false);
        (entry.opened, entry.touched) = (Instant::now(), Instant::now());
        if let Some(core) = entry.core.upgrade() {
            core.update(|queue| queue.parked = false);
        }
    }

    fn refused(&mut self, stream: StreamId, asked: Asked, refusal: &Refusal) {
        let rejected = Rejected::of(refusal);
        self.count_refusal(&rejected);
        match asked {
            Asked::Open(Joining { title, reply, .. }) => {
                self.dissolve(stream);
                self.release(title);
                reply(Err(rejected));
            }
            Asked::Seek { reply, .. } => {
                // Goes on where it was: what was taken out of the queue is given again.
                if let Some(entry) = self.streams.get_mut(&stream) {
                    entry.given = entry.consumed;
                }
                self.deliver(stream);
                let _ = reply.send(Err(rejected));
            }
            Asked::Other { reply, rate } => {
                if rate.is_some() {
                    self.deliver(stream);
                }
                let _ = reply.send(Err(rejected));
            }
            Asked::Wake => {
                if let Some(core) = self.streams.get(&stream).and_then(|entry| entry.core.upgrade())
                {
                    core.update(|queue| (queue.parked, queue.refused) = (true, Some(rejected)));
                }
            }
        }
    }

    fn count_refusal(&mut self, refusal: &Rejected) {
        *self.tally.refused.entry(refusal.reason.clone()).or_default() += 1;
        tracing::info!(reason = %refusal.reason, why = %refusal.message, "stream refused");
    }

    fn consumed(&mut self, stream: StreamId, bytes: u64) {
        let Some(entry) = self.streams.get_mut(&stream) else {
            self.best_effort.consumed(stream, bytes);
            return;
        };
        entry.consumed += bytes;
        entry.touched = Instant::now();
        self.events.push_back(Event::Consumed { stream, bytes });
        self.go_on_if_idle(stream);
    }

    fn leave(&mut self, stream: StreamId) {
        if let Some(entry) = self.streams.remove(&stream) {
            self.dissolve(stream);
            self.release(entry.title);
            self.events.push_back(Event::Leave(stream));
        } else {
            self.best_effort.leave(stream);
        }
    }

    /// Hands to the reader's queue what is there.
    fn deliver(&mut self, stream: StreamId) {
        let Some(entry) = self.streams.get_mut(&stream) else { return };
        if !entry.playing || entry.paused || entry.parked || entry.wanted.is_some() {
            return;
        }
        if entry.given == entry.consumed {
            entry.touched = Instant::now();
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
            // SAFETY: the machine keeps the chunk until this stream has consumed it, which it is
            // told when the span is dropped; these bytes are read completely, and reads into the
            // rest of the chunk begin behind what is filled.
            let span = unsafe { Span::new(&self.pool, chunk, from as usize, upto as usize) };
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
        let spare = &self.best_effort.memory;
        let mut lines: Vec<StreamLine> =
            self.streams.iter().map(|(id, entry)| entry.line(*id)).collect();
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
            best_effort: self.best_effort.count() as u64,
            cycle_seconds: Duration::from_nanos(plan.cycle).as_secs_f64(),
            load: if self.streams.is_empty() { 0.0 } else { load },
            memory_used: used + spare.used() as u64 * chunk,
            memory_peak: peak + spare.peak() as u64 * chunk,
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

/// A cause as metrics and status show it.
fn cause_word(cause: GlitchCause) -> &'static str {
    match cause {
        GlitchCause::ReadError => "read-error",
        GlitchCause::Degraded => "degraded",
        GlitchCause::SlowDevice => "device-slow",
        GlitchCause::Memory => "memory",
        GlitchCause::Late => "late",
    }
}
