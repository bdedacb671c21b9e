//! A file that processes have open together, as one of them sees it: its machine, the bytes of its
//! pages, and its calls under way.
//!
//! Whoever gives the machine an event carries out what comes of it at once, under the group's lock,
//! but for accesses to the file. Those are jobs: a call that waits does them, or the worker.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use forebay_coop::message::{ByteLocation, CallId, File, Io, Outcome, Piece, Rank, Request};
use forebay_coop::{Action, Counts, Event, Message, Options, Process};

use crate::Error;
use crate::disk::{Doing, Job, Strip};
use crate::lanes::Lanes;
use crate::pool::Pool;
use crate::post::{Post, lock};
use crate::soil::Soil;
use crate::wire::{Ask, Envelope};

/// The bytes of a call, in the program's memory or not.
#[derive(Debug, Clone, Copy)]
pub struct Buffer {
    /// The first byte. It stays until the call is done.
    pub at: *mut u8,
    /// How many.
    pub len: u64,
}

// SAFETY: only the one who carries out the call's actions touches them.
unsafe impl Send for Buffer {}

/// What follows a call, outside of all locks.
pub type Then = Box<dyn FnOnce(Result<(), Error>) + Send>;

/// A call under way.
struct Running {
    buffer: Buffer,
    outcome: Option<Outcome>,
    then: Option<Then>,
}

/// What the first process knows for all.
#[derive(Debug, Clone, Copy, Default)]
struct FileState {
    length: u64,
    shared: i64,
}

struct State {
    machine: Process,
    pool: Pool,
    soil: Soil,
    calls: HashMap<u64, Running>,
    /// Buffers of the machine's own calls.
    own: HashMap<u64, Vec<u8>>,
    jobs: VecDeque<(Io, Job)>,
    /// What is being written, to be written again if that fails: slots and bytes of them.
    writing: HashMap<Io, Vec<(u32, std::ops::Range<u32>)>>,
    /// Calls that are ready for what follows them.
    ended: Vec<(Then, Result<(), Error>)>,
    /// Calls that wait and do jobs meanwhile.
    waiting: usize,
    /// Begun and not done.
    pending: usize,
    numbers: u64,
    answers: HashMap<u64, i64>,
    file_state: FileState,
    /// The file is at least so long.
    known: u64,
    /// Which opening of the file in the machine is in use.
    file: File,
    /// Whether a sync reaches the device.
    durable: bool,
    full: bool,
}

/// A group.
pub struct Group {
    /// Its number, the same in all processes.
    pub id: u64,
    post: Arc<Post>,
    me: usize,
    /// Ranks in the world.
    ranks: Vec<i32>,
    descriptor: OwnedFd,
    page_size: u64,
    /// The memory that all have in common, through which they talk then.
    lanes: Option<Lanes>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Group {
    /// A group of processes, by their ranks in the world. `None` if there is no memory.
    pub fn new(
        post: &Arc<Post>,
        id: u64,
        me: usize,
        ranks: Vec<i32>,
        descriptor: OwnedFd,
        lanes: Option<Lanes>,
        options: &Options,
    ) -> Option<Self> {
        let (slots, size) = (options.slots, options.page_size);
        let pool = match &lanes {
            Some(lanes) => {
                let (memory, shape) = lanes.memory();
                Pool::shared(slots, size, me as u32, memory, shape)?
            }
            None => Pool::new(slots, size)?,
        };
        let state = State {
            machine: Process::new(Rank(me as u32), ranks.len() as u32, options.clone()),
            pool,
            soil: Soil::default(),
            calls: HashMap::new(),
            own: HashMap::new(),
            jobs: VecDeque::new(),
            writing: HashMap::new(),
            ended: Vec::new(),
            waiting: 0,
            pending: 0,
            numbers: 0,
            answers: HashMap::new(),
            file_state: FileState::default(),
            known: 0,
            file: File(0),
            durable: false,
            full: false,
        };
        Some(Self {
            id,
            post: Arc::clone(post),
            me,
            ranks,
            descriptor,
            page_size: u64::from(options.page_size),
            lanes,
            state: Mutex::new(state),
            changed: Condvar::new(),
        })
    }

    /// The file as the system knows it.
    pub fn descriptor(&self) -> &OwnedFd {
        &self.descriptor
    }

    /// The memory that all have in common, if they do.
    pub fn lanes(&self) -> Option<&Lanes> {
        self.lanes.as_ref()
    }

    /// The ranks in the world.
    pub fn ranks(&self) -> &[i32] {
        &self.ranks
    }

    /// Sends an envelope to a process of the group.
    fn dispatch(&self, to: usize, envelope: Vec<u8>) {
        let Some(rank) = self.ranks.get(to) else { return };
        match &self.lanes {
            Some(lanes) => {
                lanes.send(to, &envelope[Post::FLAG..]);
                self.post.ring(*rank);
            }
            None => self.post.send(*rank, envelope),
        }
    }

    /// The file is open from now on, with this length, in all processes once all have done this.
    pub fn open(&self, length: u64) {
        let mut state = lock(&self.state);
        state.file = File(state.file.0.wrapping_add(1));
        (state.file_state.length, state.known) = (length, length);
        let file = state.file;
        self.step(&mut state, Event::Open { file, length }, &[], false);
    }

    /// What the machine has done.
    pub fn counts(&self) -> Counts {
        lock(&self.state).machine.counts()
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call and waits for its end.
    pub fn call(&self, request: Request, buffer: Buffer) -> Result<(), Error> {
        let mut state = lock(&self.state);
        let id = self.start(&mut state, request, buffer, None);
        loop {
            if state.calls.get(&id).is_none_or(|call| call.outcome.is_some()) {
                break;
            }
            state = self.wait_or_work(state);
        }
        let outcome = state.calls.remove(&id).and_then(|call| call.outcome);
        let result = result(&state, outcome.unwrap_or(Outcome::Failed));
        self.leave(state);
        result
    }

    /// Makes a call, which is followed by `then`.
    pub fn begin(&self, request: Request, buffer: Buffer, then: Then) {
        let mut state = lock(&self.state);
        self.start(&mut state, request, buffer, Some(then));
        self.leave(state);
    }

    /// Waits until all calls that were begun are done.
    pub fn finish(&self) {
        let mut state = lock(&self.state);
        while state.pending > 0 {
            state = self.wait_or_work(state);
        }
        self.leave(state);
    }

    fn start(
        &self,
        state: &mut State,
        request: Request,
        buffer: Buffer,
        then: Option<Then>,
    ) -> u64 {
        let id = state.numbers;
        state.numbers += 1;
        state.pending += usize::from(then.is_some());
        state.calls.insert(id, Running { buffer, outcome: None, then });
        self.step(state, Event::Start { call: CallId(id), request }, &[], false);
        id
    }

    /// Writes back; with `close`, forgets.
    pub fn flush(&self, close: bool, durable: bool) -> Result<(), Error> {
        let file = {
            let mut state = lock(&self.state);
            state.durable = durable;
            state.file
        };
        let request = if close { Request::Close { file } } else { Request::Sync { file } };
        self.call(request, Buffer { at: std::ptr::null_mut(), len: 0 })
    }

    /// All have written back.
    pub fn synced(&self) {
        let mut state = lock(&self.state);
        let file = state.file;
        self.step(&mut state, Event::Synced { file }, &[], false);
        self.leave(state);
    }

    /// The file as the machine knows it.
    pub fn file(&self) -> File {
        lock(&self.state).file
    }

    /// Bytes up to here were or will be written.
    pub fn grow(&self, end: u64) {
        let length = self.ask(Ask::Grow { end }) as u64;
        let mut state = lock(&self.state);
        state.known = state.known.max(length);
    }

    /// How long the file is.
    pub fn length(&self) -> u64 {
        self.grow(0);
        self.known()
    }

    /// How long the file is known to be without asking.
    pub fn known(&self) -> u64 {
        lock(&self.state).known
    }

    /// Asks the first process.
    pub fn ask(&self, ask: Ask) -> i64 {
        let mut state = lock(&self.state);
        if self.me == 0 {
            return answer(&mut state.file_state, &ask);
        }
        let number = state.numbers;
        state.numbers += 1;
        let envelope = Post::head(self.id, &Envelope::Question { number, ask });
        self.dispatch(0, envelope);
        loop {
            if let Some(value) = state.answers.remove(&number) {
                self.leave(state);
                return value;
            }
            state = self.wait_or_work(state);
        }
    }

    /// Does a job, or waits for something to happen.
    fn wait_or_work<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        if let Some((io, job)) = state.jobs.pop_front() {
            drop(state);
            let done = job.run(&self.descriptor);
            let mut state = lock(&self.state);
            self.finished(&mut state, io, done);
            self.follow(state);
            return lock(&self.state);
        }
        state.waiting += 1;
        let mut state = self.wait(state);
        state.waiting -= 1;
        state
    }

    /// Does all jobs.
    pub fn do_jobs(&self) {
        loop {
            let mut state = lock(&self.state);
            let Some((io, job)) = state.jobs.pop_front() else { return };
            drop(state);
            let done = job.run(&self.descriptor);
            let mut state = lock(&self.state);
            self.finished(&mut state, io, done);
            self.follow(state);
        }
    }

    fn finished(&self, state: &mut State, io: Io, done: std::io::Result<()>) {
        let written = state.writing.remove(&io).unwrap_or_default();
        if let Err(error) = &done {
            state.full |= error.raw_os_error() == Some(libc::ENOSPC);
            for (slot, range) in written {
                state.soil.add(slot, range);
            }
        }
        self.step(state, Event::Finished { io, ok: done.is_ok() }, &[], false);
        self.changed.notify_all();
    }

    /// Sees that jobs are done by somebody, and does what follows calls.
    fn leave(&self, state: MutexGuard<'_, State>) {
        if !state.jobs.is_empty() {
            if state.waiting > 0 {
                self.changed.notify_all();
            } else {
                self.post.hand_over(self.id);
            }
        }
        self.follow(state);
    }

    fn follow(&self, mut state: MutexGuard<'_, State>) {
        let ended = std::mem::take(&mut state.ended);
        drop(state);
        let count = ended.len();
        for (then, result) in ended {
            then(result);
        }
        if count > 0 {
            lock(&self.state).pending -= count;
            self.changed.notify_all();
        }
    }

    /// An envelope came.
    pub fn deliver(&self, from: i32, envelope: Envelope, bytes: &[u8]) {
        let Some(rank) = self.ranks.iter().position(|rank| *rank == from) else { return };
        let mut state = lock(&self.state);
        match envelope {
            Envelope::Machine { message } => {
                let stores = matches!(message, Message::Put { .. });
                let event = Event::Message { from: Rank(rank as u32), message };
                self.step(&mut state, event, bytes, stores);
            }
            Envelope::Question { number, ask } => {
                let value = answer(&mut state.file_state, &ask);
                let envelope = Post::head(self.id, &Envelope::Answer { number, value });
                self.dispatch(rank, envelope);
            }
            Envelope::Answer { number, value } => {
                state.answers.insert(number, value);
                self.changed.notify_all();
            }
        }
        self.leave(state);
    }

    /// Gives the machine an event, with the bytes that came with it, which are written ones if it
    /// `stores` them, and carries out what comes of it.
    fn step(&self, state: &mut State, event: Event, bytes: &[u8], stores: bool) {
        let mut actions = Vec::new();
        state.machine.step(event, &mut actions);
        for action in actions {
            self.act(state, action, bytes, stores);
        }
    }

    fn act(&self, state: &mut State, action: Action, bytes: &[u8], stores: bool) {
        match action {
            Action::Send { to, message, bytes: pieces } => self.send(state, to, message, &pieces),
            Action::Copy { from, to, len } => {
                if let ByteLocation::Slot { slot, at } = to {
                    match from {
                        ByteLocation::Message { .. } | ByteLocation::Other { .. } if !stores => {
                            state.soil.clear(slot.0);
                        }
                        _ => state.soil.add(slot.0, at..at + len as u32),
                    }
                }
                if let (Some(from), Some(to)) =
                    (state.at(from, len, bytes), state.at(to, len, bytes))
                {
                    // SAFETY: both are as long, see `at`; a page and a buffer do not overlap.
                    unsafe { from.copy_to_nonoverlapping(to, len as usize) };
                }
            }
            Action::Zero { slot } => {
                state.soil.clear(slot.0);
                if let Some(at) = state.pool.at(slot.0, 0, self.page_size) {
                    // SAFETY: a whole slot.
                    unsafe { at.write_bytes(0, self.page_size as usize) };
                }
            }
            Action::Read { io, offset, pieces, .. } => {
                for piece in &pieces {
                    if let ByteLocation::Slot { slot, .. } = piece.location {
                        state.soil.clear(slot.0);
                    }
                }
                let strips = state.strips(offset, &pieces);
                state.jobs.push_back((io, Job { doing: Doing::Read, strips }));
            }
            Action::Write { io, offset, pieces, .. } => {
                let strips = state.strips(offset, &pieces);
                let strips = state.only_written(io, strips, &pieces);
                state.jobs.push_back((io, Job { doing: Doing::Write, strips }));
            }
            Action::Sync { io, .. } => {
                // A write of nothing, where the device is not meant.
                let doing = if state.durable { Doing::Sync } else { Doing::Write };
                state.jobs.push_back((io, Job { doing, strips: Vec::new() }));
            }
            Action::Buffer { call, len } => {
                state.own.insert(call.0, vec![0; len as usize]);
            }
            Action::Free { call } => drop(state.own.remove(&call.0)),
            Action::Done { call, outcome } => {
                self.changed.notify_all();
                let result = result(state, outcome);
                let Some(running) = state.calls.get_mut(&call.0) else { return };
                running.outcome = Some(outcome);
                if let Some(then) = running.then.take() {
                    state.calls.remove(&call.0);
                    state.ended.push((then, result));
                }
            }
            // Processes do not die here without the whole job; whoever calls gets the outcome.
            Action::Lost { .. } => {}
        }
    }

    fn send(&self, state: &State, to: Rank, message: Message, pieces: &[Piece]) {
        let mut envelope = Post::head(self.id, &Envelope::Machine { message });
        envelope.reserve(pieces.iter().map(|piece| piece.len as usize).sum());
        for piece in pieces {
            if let Some(at) = state.at(piece.location, piece.len, &[]) {
                // SAFETY: so many bytes, see `at`.
                let bytes = unsafe { std::slice::from_raw_parts(at, piece.len as usize) };
                envelope.extend_from_slice(bytes);
            }
        }
        self.dispatch(to.0 as usize, envelope);
    }
}

impl State {
    /// Where so many bytes lie, if they do.
    fn at(&self, location: ByteLocation, len: u64, message: &[u8]) -> Option<*mut u8> {
        let within = |at: u64, all: u64| at.checked_add(len).is_some_and(|end| end <= all);
        match location {
            ByteLocation::Slot { slot, at } => self.pool.at(slot.0, at, len),
            ByteLocation::Other { rank, slot, at } => self.pool.of_other(rank.0, slot.0, at, len),
            ByteLocation::Message { at } => within(at, message.len() as u64)
                .then(|| message.as_ptr().wrapping_add(at as usize).cast_mut()),
            ByteLocation::Call { call, at } => {
                let (start, all) = match (self.own.get(&call.0), self.calls.get(&call.0)) {
                    (Some(own), _) => (own.as_ptr().cast_mut(), own.len() as u64),
                    (None, Some(running)) => (running.buffer.at, running.buffer.len),
                    (None, None) => return None,
                };
                within(at, all).then(|| start.wrapping_add(at as usize))
            }
        }
    }

    fn strips(&self, offset: u64, pieces: &[Piece]) -> Vec<Strip> {
        let mut offset = offset;
        let strip = |piece: &Piece| {
            let at = self.at(piece.location, piece.len, &[])?;
            offset += piece.len;
            Some(Strip { offset: offset - piece.len, at, len: piece.len })
        };
        pieces.iter().filter_map(strip).collect()
    }

    /// Of what is in slots, what was written there, which then counts as written to the file.
    fn only_written(&mut self, io: Io, strips: Vec<Strip>, pieces: &[Piece]) -> Vec<Strip> {
        let mut exact = Vec::new();
        let mut taken = Vec::new();
        for (strip, piece) in strips.into_iter().zip(pieces) {
            let ByteLocation::Slot { slot, at } = piece.location else {
                exact.push(strip);
                continue;
            };
            for range in self.soil.take(slot.0, at..at + piece.len as u32) {
                let skip = u64::from(range.start - at);
                exact.push(Strip {
                    offset: strip.offset + skip,
                    at: strip.at.wrapping_add(skip as usize),
                    len: u64::from(range.end - range.start),
                });
                taken.push((slot.0, range));
            }
        }
        self.writing.insert(io, taken);
        exact
    }
}

fn answer(file_state: &mut FileState, ask: &Ask) -> i64 {
    match ask {
        Ask::Grow { end } => {
            file_state.length = file_state.length.max(*end);
            file_state.length as i64
        }
        Ask::Advance { by } => {
            let at = file_state.shared;
            file_state.shared = at.saturating_add(*by);
            at
        }
        Ask::Point { at } => {
            file_state.shared = *at;
            *at
        }
    }
}

fn result(state: &State, outcome: Outcome) -> Result<(), Error> {
    match outcome {
        Outcome::Done => Ok(()),
        Outcome::Lost => Err(Error::Failed),
        Outcome::Failed if state.full => Err(Error::NoSpace),
        Outcome::Failed => Err(Error::Failed),
    }
}
