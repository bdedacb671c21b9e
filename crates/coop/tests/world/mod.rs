//! A driver in memory: processes, channels that keep their order, and a file. Every delivery, every
//! end of an access to the file, every call and every death is a step of its own, so that a test can
//! take them in any order.
#![allow(dead_code, unused_imports)]

mod explorer;
pub mod serial;

pub use explorer::{found, read, sound, write};

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use forebay_coop::message::{
    Access, ByteLocation, CallId, Extent, File, Grant, Io, Mode, Outcome, Page, Piece, Rank,
    Request, Slot,
};
use forebay_coop::{Action, Event, Message, Options, Process};

pub const FILE: File = File(0);

/// What a program does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Op {
    Read(Vec<(u64, u64)>),
    /// Writes bytes of this value.
    Write(Vec<(u64, u64)>, u8),
    /// The same as collective calls.
    ReadAll(Vec<(u64, u64)>),
    WriteAll(Vec<(u64, u64)>, u8),
    Sync,
    Close,
}

/// A defect of the driver or of what the machines say, to see that it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mutation {
    None,
    /// Writes to the file are lost.
    WriteBackLost,
    /// Copies are not dropped, but said to be.
    InvalidationLost,
    /// Bytes are not stored in the owner's page, but said to be.
    PutLost,
    /// Rank 1 locks the first three pages in the other order.
    OtherOrder,
    /// Rank 1 takes another process for the home.
    TwoHomes,
    /// Rank 1 gets its locks at once.
    LockAtOnce,
    /// Unlocks say that the page is where it was before.
    OwnerForgotten,
    /// Only one process hears of a death.
    DeathUntold,
    /// A dead process is still heard by owners when its locks are given to others.
    FenceLost,
    /// What is lost is not said.
    LossUnsaid,
    /// Unlocks name another slot than the one in which the page lies.
    OtherSlot,
}

/// A call that has begun.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Record {
    pub rank: usize,
    pub op: Op,
    /// The calls that had ended before it began, by their numbers.
    pub before: BTreeSet<usize>,
    pub ended: bool,
    pub read: Vec<u8>,
    /// Whether it, or a later call of its process, was told that something is lost.
    pub told: bool,
    /// Whether a sync of all processes came after it, of which its own was told no loss.
    pub synced: bool,
}

/// Messages on their way, with their bytes.
type Channel = VecDeque<(Message, Vec<u8>)>;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Pending {
    Read(u64, Vec<Piece>),
    Write(u64, Vec<u8>),
    Sync,
}

impl Pending {
    fn range(&self) -> (u64, u64, bool) {
        match self {
            Self::Read(at, pieces) => {
                (*at, at + pieces.iter().map(|it| it.len).sum::<u64>(), false)
            }
            Self::Write(at, bytes) => (*at, at + bytes.len() as u64, true),
            Self::Sync => (0, 0, false),
        }
    }
}

/// What can happen next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Begin(usize),
    /// The first message on the way from one to another.
    Deliver(usize, usize),
    Finish(usize, Io),
    /// A process dies; what it was writing to the file has been written, or not.
    Kill(usize, bool),
    /// The first hears of the death of the second.
    Tell(usize, usize),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    pub processes: Vec<Process>,
    pub alive: Vec<bool>,
    scripts: Vec<VecDeque<Op>>,
    running: Vec<Option<usize>>,
    channels: BTreeMap<(usize, usize), Channel>,
    pools: Vec<Vec<u8>>,
    buffers: Vec<BTreeMap<CallId, Vec<u8>>>,
    ios: Vec<BTreeMap<Io, Pending>>,
    pub file: Vec<u8>,
    pub history: Vec<Record>,
    untold: BTreeSet<(usize, usize)>,
    /// Which processes may still die, one of them each time.
    pub mortal: Vec<usize>,
    /// How many of them may.
    deaths: usize,
    /// Pages that a dead process may have had alone.
    pub endangered: BTreeSet<u64>,
    /// Whether a loss was said.
    pub said: bool,
    /// Whether writes to the file fail.
    pub broken: bool,
    pub mutation: Mutation,
    pub page_size: u64,
    single_copy: bool,
}

impl World {
    pub fn new(options: &Options, file: usize, scripts: Vec<Vec<Op>>) -> Self {
        let count = scripts.len();
        let size = options.page_size as usize;
        let mut world = Self {
            processes: (0..count as u32)
                .map(|rank| Process::new(Rank(rank), count as u32, options.clone()))
                .collect(),
            alive: vec![true; count],
            scripts: scripts.into_iter().map(VecDeque::from).collect(),
            running: vec![None; count],
            channels: BTreeMap::new(),
            pools: vec![vec![0xee; size * options.slots as usize]; count],
            buffers: vec![BTreeMap::new(); count],
            ios: vec![BTreeMap::new(); count],
            file: vec![0; file],
            history: Vec::new(),
            untold: BTreeSet::new(),
            mortal: Vec::new(),
            deaths: 1,
            endangered: BTreeSet::new(),
            said: false,
            broken: false,
            mutation: Mutation::None,
            page_size: options.page_size.into(),
            single_copy: options.read_copies.is_none(),
        };
        let length = file as u64;
        for rank in 0..count {
            world.event(rank, Event::Open { file: FILE, length }, &[]).expect("an open is sound");
        }
        world
    }

    pub fn mutated(mut self, mutation: Mutation) -> Self {
        self.mutation = mutation;
        self
    }

    pub fn mortal(mut self, ranks: &[usize]) -> Self {
        self.mortal = ranks.to_vec();
        self
    }

    pub fn deaths(mut self, deaths: usize) -> Self {
        self.deaths = deaths;
        self
    }

    pub fn hash_of(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    fn living(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.alive.len()).filter(|rank| self.alive[*rank])
    }

    fn together(op: &Op) -> bool {
        matches!(op, Op::Sync | Op::Close)
    }

    /// Everything that can happen next.
    pub fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let gather = |rank: usize| {
            self.running[rank].is_none() && self.scripts[rank].front().is_none_or(Self::together)
        };
        let gathered = self.living().all(gather) && self.untold.is_empty();
        for rank in self.living() {
            for io in self.ios[rank].keys() {
                steps.push(Step::Finish(rank, *io));
            }
            let next = self.scripts[rank].front();
            if self.running[rank].is_none()
                && next.is_some_and(|op| !Self::together(op) || gathered && self.first(rank))
            {
                steps.push(Step::Begin(rank));
            }
        }
        steps.extend(self.channels.keys().map(|(from, to)| Step::Deliver(*from, *to)));
        for (survivor, dead) in &self.untold {
            steps.push(Step::Tell(*survivor, *dead));
        }
        // Deaths that no running call could notice are left out.
        if self.deaths > 0 && self.living().count() > 1 && self.running.iter().any(Option::is_some)
        {
            for rank in self.mortal.iter().copied().filter(|rank| self.alive[*rank]) {
                steps.push(Step::Kill(rank, false));
                if self.ios[rank].values().any(|io| matches!(io, Pending::Write(..))) {
                    steps.push(Step::Kill(rank, true));
                }
            }
        }
        steps
    }

    fn first(&self, rank: usize) -> bool {
        self.living().next() == Some(rank)
    }

    /// Does a step. An error is a violated invariant.
    pub fn step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Begin(rank) if self.scripts[rank].front().is_some_and(Self::together) => {
                for rank in self.living().collect::<Vec<_>>() {
                    self.begin(rank)?;
                }
            }
            Step::Begin(rank) => self.begin(rank)?,
            Step::Deliver(from, to) => self.deliver(from, to)?,
            Step::Finish(rank, io) => self.finish(rank, io)?,
            Step::Kill(rank, written) => self.kill(rank, written),
            Step::Tell(survivor, dead) => {
                self.untold.remove(&(survivor, dead));
                if let Some(cut) = self.channels.remove(&(dead, survivor)) {
                    self.endanger(cut.iter().map(|(message, _)| message));
                }
                let dead = Event::Died { rank: Rank(dead as u32) };
                self.event(survivor, dead, &[])?;
            }
        }
        self.check()
    }

    /// A step, and the message that it delivers.
    pub fn tell(&self, step: Step) -> (Step, Option<Message>) {
        let Step::Deliver(from, to) = step else { return (step, None) };
        let message = self.channels.get(&(from, to)).and_then(VecDeque::front);
        (step, message.map(|(message, _)| message.clone()))
    }

    fn begin(&mut self, rank: usize) -> Result<(), String> {
        let Some(op) = self.scripts[rank].pop_front() else { return Ok(()) };
        let number = self.history.len();
        let ended = |at: &usize| self.history[*at].ended;
        // Who has heard of a death is not surprised by the dead any more.
        let buried = |at: &usize| {
            let record = &self.history[*at];
            let known = !self.alive[record.rank] && !self.untold.contains(&(rank, record.rank));
            known && matches!(record.op, Op::Write(..))
        };
        let before = (0..number).filter(|at| ended(at) || buried(at)).collect();
        let extents = |list: &[(u64, u64)]| {
            list.iter().map(|(offset, len)| Extent { offset: *offset, len: *len }).collect()
        };
        let access = |access, collective, list: &[(u64, u64)]| Request::Access {
            file: FILE,
            access,
            collective,
            extents: extents(list),
        };
        let request = match &op {
            Op::Read(list) => access(Access::Read, false, list),
            Op::ReadAll(list) => access(Access::Read, true, list),
            Op::Write(list, _) => access(Access::Write, false, list),
            Op::WriteAll(list, _) => access(Access::Write, true, list),
            Op::Sync => Request::Sync { file: FILE },
            Op::Close => Request::Close { file: FILE },
        };
        let buffer = match &op {
            Op::Read(list) | Op::ReadAll(list) => vec![0xbb; total(list)],
            Op::Write(list, value) | Op::WriteAll(list, value) => vec![*value; total(list)],
            Op::Sync | Op::Close => Vec::new(),
        };
        let call = CallId(number as u64);
        self.buffers[rank].insert(call, buffer);
        self.running[rank] = Some(number);
        let record =
            Record { rank, op, before, ended: false, read: vec![], told: false, synced: false };
        self.history.push(record);
        self.event(rank, Event::Start { call, request }, &[])
    }

    fn deliver(&mut self, from: usize, to: usize) -> Result<(), String> {
        let Some(channel) = self.channels.get_mut(&(from, to)) else { return Ok(()) };
        let Some((message, bytes)) = channel.pop_front() else { return Ok(()) };
        if channel.is_empty() {
            self.channels.remove(&(from, to));
        }
        if !self.alive[to] {
            return Ok(());
        }
        let answer = match (&message, self.mutation) {
            (Message::Invalidate { page }, Mutation::InvalidationLost) => {
                Some(Message::Invalidated { page: *page })
            }
            (Message::Fence { dead }, Mutation::FenceLost) => Some(Message::Fenced { dead: *dead }),
            _ => None,
        };
        if let Some(answer) = answer {
            return self.post(to, from, answer, Vec::new());
        }
        let event = Event::Message { from: Rank(from as u32), message };
        self.event(to, event, &bytes)
    }

    fn finish(&mut self, rank: usize, io: Io) -> Result<(), String> {
        let Some(pending) = self.ios[rank].remove(&io) else { return Ok(()) };
        let mut ok = true;
        match pending {
            Pending::Read(at, pieces) => {
                let mut at = at as usize;
                for piece in pieces {
                    let len = piece.len as usize;
                    let byte = |at: usize| self.file.get(at).copied().unwrap_or(0);
                    let bytes: Vec<u8> = (at..at + len).map(byte).collect();
                    self.slice_at(rank, piece.location, len)?.copy_from_slice(&bytes);
                    at += len;
                }
            }
            Pending::Write(at, bytes) => {
                ok = !self.broken;
                if ok {
                    self.write(at, &bytes);
                }
            }
            Pending::Sync => {}
        }
        self.event(rank, Event::Finished { io, ok }, &[])
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        if self.mutation == Mutation::WriteBackLost {
            return;
        }
        let at = at as usize;
        if self.file.len() < at + bytes.len() {
            self.file.resize(at + bytes.len(), 0);
        }
        self.file[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn kill(&mut self, rank: usize, written: bool) {
        self.deaths -= 1;
        self.alive[rank] = false;
        // A sync that one of them does not live to end fails for all: the driver says so.
        let syncs = |call: usize| Self::together(&self.history[call].op);
        self.said |= self.running[rank].take().is_some_and(syncs);
        let dirty = self.processes[rank].owned().filter(|(_, dirty)| *dirty);
        self.endangered.extend(dirty.map(|(page, _)| page.index));
        for pending in std::mem::take(&mut self.ios[rank]).into_values() {
            if let (Pending::Write(at, bytes), true) = (pending, written) {
                self.write(at, &bytes);
            }
        }
        let to_it: Vec<_> = self.channels.keys().copied().filter(|(_, to)| *to == rank).collect();
        for key in to_it {
            let cut = self.channels.remove(&key).unwrap_or_default();
            self.endanger(cut.iter().map(|(message, _)| message));
        }
        let survivors = self.living().count();
        let told = if self.mutation == Mutation::DeathUntold { 1 } else { survivors };
        let told: Vec<_> = self.living().take(told).map(|survivor| (survivor, rank)).collect();
        self.untold.retain(|(survivor, _)| *survivor != rank);
        self.channels.retain(|(_, to), _| *to != rank);
        self.untold.extend(told);
        self.end_together();
    }

    fn endanger<'a>(&mut self, messages: impl Iterator<Item = &'a Message>) {
        for message in messages {
            if let Message::Taken { page, .. } = message {
                self.endangered.insert(page.index);
            }
        }
    }

    fn event(&mut self, rank: usize, event: Event, bytes: &[u8]) -> Result<(), String> {
        let mut actions = Vec::new();
        self.processes[rank].step(event, &mut actions);
        for action in actions {
            self.act(rank, action, bytes)?;
        }
        Ok(())
    }

    fn act(&mut self, rank: usize, action: Action, bytes: &[u8]) -> Result<(), String> {
        match action {
            Action::Send { to, message, bytes: pieces } => {
                let mut body = Vec::new();
                for piece in pieces {
                    body.extend(self.bytes(rank, piece.location, piece.len as usize, bytes)?);
                }
                self.post(rank, to.0 as usize, message, body)?;
            }
            Action::Copy { from, to, len } => {
                let from_message = matches!(from, ByteLocation::Message { .. });
                let into_pool = matches!(to, ByteLocation::Slot { .. });
                if self.mutation == Mutation::PutLost && from_message && into_pool {
                    return Ok(());
                }
                let source = self.bytes(rank, from, len as usize, bytes)?;
                self.slice_at(rank, to, len as usize)?.copy_from_slice(&source);
            }
            Action::Zero { slot } => {
                let location = ByteLocation::Slot { slot, at: 0 };
                self.slice_at(rank, location, self.page_size as usize)?.fill(0);
            }
            Action::Read { io, offset, pieces, .. } => {
                self.access(rank, io, Pending::Read(offset, pieces))?;
            }
            Action::Write { io, offset, pieces, .. } => {
                let mut body = Vec::new();
                for piece in pieces {
                    body.extend(self.bytes(rank, piece.location, piece.len as usize, bytes)?);
                }
                self.access(rank, io, Pending::Write(offset, body))?;
            }
            Action::Sync { io, .. } => self.access(rank, io, Pending::Sync)?,
            Action::Buffer { call, len } => {
                self.buffers[rank].insert(call, vec![0xcc; len as usize]);
            }
            Action::Free { call } => drop(self.buffers[rank].remove(&call)),
            Action::Done { call, outcome } => self.done(rank, call, outcome)?,
            Action::Lost { .. } => self.said |= self.mutation != Mutation::LossUnsaid,
        }
        Ok(())
    }

    /// No two accesses to the same bytes of the file are under way of which one writes.
    fn access(&mut self, rank: usize, io: Io, pending: Pending) -> Result<(), String> {
        let (start, end, writes) = pending.range();
        for other in self.ios.iter().flat_map(BTreeMap::values) {
            let (from, to, wrote) = other.range();
            if (writes || wrote) && from < end && start < to {
                return Err(format!("{pending:?} of rank {rank} while {other:?}"));
            }
        }
        self.ios[rank].insert(io, pending);
        Ok(())
    }

    fn post(
        &mut self,
        from: usize,
        to: usize,
        mut message: Message,
        bytes: Vec<u8>,
    ) -> Result<(), String> {
        let mut to = to;
        match (self.mutation, &mut message) {
            (Mutation::OtherOrder, Message::Lock { page, .. } | Message::Unlock { page, .. })
                if from == 1 =>
            {
                page.index = [2, 1, 0][page.index as usize % 3];
                to = page.index as usize % self.alive.len();
            }
            (Mutation::OtherOrder, Message::Granted { page, .. }) if to == 1 => {
                page.index = [2, 1, 0][page.index as usize % 3];
            }
            (Mutation::TwoHomes, Message::Lock { .. } | Message::Unlock { .. }) if from == 1 => {
                to = (to + 1) % self.alive.len();
                if to == 1 {
                    to = (to + 1) % self.alive.len();
                }
            }
            (Mutation::LockAtOnce, Message::Lock { ticket, page, .. }) if from == 1 => {
                let grant = Grant {
                    mode: Mode::Write,
                    owner: self.processes[to].owner_of(*page),
                    slot: None,
                    version: 0,
                    dirty: false,
                    lost: false,
                    absent: false,
                    take: false,
                    copy: false,
                };
                let granted = Message::Granted { call: ticket.call, page: *page, grant };
                return self.post(to, from, granted, Vec::new());
            }
            (Mutation::OwnerForgotten, Message::Unlock { note, .. }) => {
                note.holder = forebay_coop::message::Holder::Same;
            }
            (Mutation::OtherSlot, Message::Unlock { note, .. }) => {
                note.slot = note.slot.map(|slot| Slot(1 - slot.0));
            }
            _ => {}
        }
        if to == from {
            return self.event(to, Event::Message { from: Rank(from as u32), message }, &bytes);
        }
        if self.alive[to] {
            self.channels.entry((from, to)).or_default().push_back((message, bytes));
        }
        Ok(())
    }

    fn done(&mut self, rank: usize, call: CallId, outcome: Outcome) -> Result<(), String> {
        let number = call.0 as usize;
        if self.running[rank] != Some(number) {
            return Err(format!("call {number} of rank {rank} ended, but was not under way"));
        }
        self.running[rank] = None;
        let buffer = self.buffers[rank].remove(&call).unwrap_or_default();
        let record = &mut self.history[number];
        record.ended = true;
        if matches!(record.op, Op::Read(_) | Op::ReadAll(_)) {
            record.read = buffer;
        }
        if outcome == Outcome::Lost {
            self.history.iter_mut().filter(|it| it.rank == rank).for_each(|it| it.told = true);
        }
        self.said |= outcome == Outcome::Lost && self.mutation != Mutation::LossUnsaid;
        if outcome == Outcome::Failed && !self.broken {
            return Err(format!("call {number} of rank {rank} failed"));
        }
        self.end_together();
        Ok(())
    }

    /// Tells all of a sync that all have done.
    fn end_together(&mut self) {
        let Some(last) = self.history.iter().rposition(|it| Self::together(&it.op)) else { return };
        let first = self.history[..last].iter().rposition(|it| !Self::together(&it.op));
        let first = first.map_or(0, |at| at + 1);
        let all = self.history[first..=last].iter().all(|it| it.ended);
        if !all || last + 1 < self.history.len() || self.broken {
            return;
        }
        let sound = |it: &&Record| !it.told && self.alive[it.rank];
        let kept: BTreeSet<usize> =
            self.history[first..=last].iter().filter(sound).map(|it| it.rank).collect();
        for record in &mut self.history[..first] {
            record.synced |= record.ended && !record.told && kept.contains(&record.rank);
        }
        for rank in self.living().collect::<Vec<_>>() {
            let mut none = Vec::new();
            self.processes[rank].step(Event::Synced { file: FILE }, &mut none);
        }
    }

    fn slice_at(
        &mut self,
        rank: usize,
        location: ByteLocation,
        len: usize,
    ) -> Result<&mut [u8], String> {
        let size = self.page_size as usize;
        let missing = || format!("rank {rank} has no {location:?} of {len} bytes");
        match location {
            ByteLocation::Slot { slot, at } => {
                let start = slot.0 as usize * size + at as usize;
                self.pools[rank].get_mut(start..start + len).ok_or_else(missing)
            }
            ByteLocation::Call { call, at } => {
                let buffer = self.buffers[rank].get_mut(&call).ok_or_else(missing)?;
                buffer.get_mut(at as usize..at as usize + len).ok_or_else(missing)
            }
            ByteLocation::Other { rank: other, slot, at } => {
                let start = slot.0 as usize * size + at as usize;
                let pool =
                    self.pools.get_mut(other.0 as usize).filter(|_| other.0 as usize != rank);
                pool.and_then(|pool| pool.get_mut(start..start + len)).ok_or_else(missing)
            }
            ByteLocation::Message { .. } => Err(missing()),
        }
    }

    fn bytes(
        &mut self,
        rank: usize,
        location: ByteLocation,
        len: usize,
        message: &[u8],
    ) -> Result<Vec<u8>, String> {
        if let ByteLocation::Message { at } = location {
            let range = at as usize..at as usize + len;
            let missing = || format!("rank {rank}: no {location:?} of {len} bytes came");
            return message.get(range).map(<[u8]>::to_vec).ok_or_else(missing);
        }
        Ok(self.slice_at(rank, location, len)?.to_vec())
    }

    /// What holds at every moment.
    fn check(&self) -> Result<(), String> {
        let mut owners: BTreeMap<Page, usize> = BTreeMap::new();
        for rank in self.living() {
            let process = &self.processes[rank];
            let (used, reserved) = process.occupied();
            let slots = self.pools[rank].len() as u64 / self.page_size;
            if u64::from(used + reserved) > slots {
                return Err(format!("rank {rank}: {used} and {reserved} of {slots} slots"));
            }
            for (page, _) in process.owned() {
                if let Some(other) = owners.insert(page, rank) {
                    return Err(format!("ranks {other} and {rank} both have {page:?}"));
                }
            }
            if self.single_copy && process.readable().next().is_some() {
                return Err(format!("rank {rank} keeps a copy"));
            }
        }
        self.check_copies()
    }

    /// Whoever may read a page without asking has the same bytes as all others who may.
    fn check_copies(&self) -> Result<(), String> {
        let size = self.page_size as usize;
        let mut seen: BTreeMap<Page, (usize, &[u8])> = BTreeMap::new();
        for rank in self.living() {
            for (page, slot) in self.processes[rank].readable() {
                let start = slot.0 as usize * size;
                let bytes = &self.pools[rank][start..start + size];
                match seen.get(&page) {
                    Some((other, theirs)) if *theirs != bytes && self.untold.is_empty() => {
                        return Err(format!("ranks {other} and {rank} differ on {page:?}"));
                    }
                    _ => drop(seen.insert(page, (rank, bytes))),
                }
            }
        }
        Ok(())
    }

    /// What holds when nothing can happen any more.
    pub fn check_end(&self) -> Result<(), String> {
        for rank in self.living() {
            if let Some(call) = self.running[rank] {
                return Err(format!(
                    "stuck: call {call} of rank {rank}: {:?}",
                    self.history[call].op
                ));
            }
            if let Some(op) = self.scripts[rank].front() {
                return Err(format!("stuck: rank {rank} never comes to {op:?}"));
            }
            if !self.processes[rank].at_rest() {
                return Err(format!("rank {rank} is not at rest: {:?}", self.processes[rank]));
            }
        }
        serial::check(self)
    }
}

fn total(list: &[(u64, u64)]) -> usize {
    list.iter().map(|(_, len)| *len as usize).sum()
}
