//! A process of the group.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::Options;
use crate::call::{Call, Origin};
use crate::death::Recovery;
use crate::message::{
    Action, CallId, Event, File, Io, Message, Outcome, Page, Piece, Rank, Request, Span, Ticket,
};
use crate::pool::Pool;
use crate::table::{Say, Table};

/// What a process has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Counts {
    /// Pages that a call found in the own pool.
    pub local: u64,
    /// Pages that a call found in another one's.
    pub remote: u64,
    /// Pages that nobody had.
    pub missed: u64,
    /// Pages that left the pool to make room.
    pub evicted: u64,
    /// Pages that moved here.
    pub moved: u64,
}

/// An open file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Opened {
    pub(crate) length: u64,
    /// Whether this process has written, or read from others, what may not be in the file.
    pub(crate) unsynced: bool,
    /// Whether a process died meanwhile, and nobody has been told.
    pub(crate) lost: bool,
    /// Where the last read ended.
    pub(crate) last_end: Option<u64>,
    /// How many sequential reads are not read ahead of.
    pub(crate) reads_to_skip: u8,
}

/// What an access to the file is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Doing {
    Load { call: CallId, pages: Vec<Page> },
    Direct { call: CallId },
    Flush { pages: Vec<Page> },
    Sync { call: CallId },
}

/// The machine of a process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Process {
    pub(crate) rank: Rank,
    pub(crate) ranks: u32,
    pub(crate) options: Options,
    pub(crate) dead: BTreeSet<Rank>,
    pub(crate) files: BTreeMap<File, Opened>,
    pub(crate) pool: Pool,
    pub(crate) table: Table,
    pub(crate) calls: BTreeMap<CallId, Call>,
    /// Calls that wait for room in the pool.
    pub(crate) waiting: VecDeque<CallId>,
    /// Pages that are on their way out of the pool, and by which call.
    pub(crate) leaving: BTreeMap<Page, CallId>,
    /// Whether writing back has failed, so that the next call does without the pool.
    pub(crate) jammed: bool,
    /// Requests for pages that are being written to the file.
    pub(crate) deferred: Vec<(Rank, Message)>,
    pub(crate) ios: BTreeMap<Io, Doing>,
    pub(crate) recovery: Recovery,
    pub(crate) counts: Counts,
    /// Messages to itself. None of them carries bytes.
    inbox: VecDeque<Message>,
    next_io: u64,
    next_call: u64,
}

impl Process {
    /// A process of a group.
    #[must_use]
    pub fn new(rank: Rank, ranks: u32, options: Options) -> Self {
        Self {
            rank,
            ranks: ranks.max(1),
            pool: Pool::new(options.slots),
            options,
            dead: BTreeSet::new(),
            files: BTreeMap::new(),
            table: Table::default(),
            calls: BTreeMap::new(),
            waiting: VecDeque::new(),
            leaving: BTreeMap::new(),
            jammed: false,
            deferred: Vec::new(),
            ios: BTreeMap::new(),
            recovery: Recovery::default(),
            counts: Counts::default(),
            inbox: VecDeque::new(),
            next_io: 0,
            next_call: 1 << 63,
        }
    }

    /// Takes an event; what is to be done is added to `actions`.
    pub fn step(&mut self, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Open { file, length } => {
                let opened = Opened {
                    length,
                    unsynced: false,
                    lost: false,
                    last_end: None,
                    reads_to_skip: 0,
                };
                self.files.insert(file, opened);
            }
            Event::Start { call, request } => self.start(call, request, actions),
            Event::Message { from, message } => {
                if !self.dead.contains(&from) {
                    self.hear(from, message, actions);
                }
            }
            Event::Finished { io, ok } => self.finished(io, ok, actions),
            Event::Synced { file } => {
                if let Some(opened) = self.files.get_mut(&file) {
                    opened.unsynced = false;
                }
            }
            Event::Died { rank } => self.died(rank, actions),
        }
        self.drain(actions);
        debug_assert!(self.inbox.is_empty());
    }

    /// What it has done so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether it has no call, no access to a file and no lock at hand.
    #[must_use]
    pub fn at_rest(&self) -> bool {
        self.calls.is_empty()
            && self.ios.is_empty()
            && self.deferred.is_empty()
            && self.table.at_rest()
    }

    /// The pages that it has itself (not the copies), with whether they are dirty.
    pub fn owned(&self) -> impl Iterator<Item = (Page, bool)> {
        let pages = self.pool.iter().filter(|(_, resident)| resident.owner);
        pages.map(|(page, it)| (page, it.dirty.is_some() || it.flushing.is_some()))
    }

    /// The pages that it reads without asking, with their slots.
    pub fn readable(&self) -> impl Iterator<Item = (Page, crate::message::Slot)> {
        self.pool.iter().filter(|(_, it)| it.reader).map(|(page, it)| (page, it.slot))
    }

    /// Slots that are used, and those promised to calls.
    #[must_use]
    pub fn occupied(&self) -> (u32, u32) {
        (self.pool.iter().count() as u32, self.pool.reserved)
    }

    /// Who has a page of which this process is the home, by its table.
    #[must_use]
    pub fn owner_of(&self, page: Page) -> Option<Rank> {
        self.table.owner(page)
    }

    fn drain(&mut self, actions: &mut Vec<Action>) {
        while let Some(message) = self.inbox.pop_front() {
            self.hear(self.rank, message, actions);
        }
    }

    pub(crate) fn send(
        &mut self,
        to: Rank,
        message: Message,
        bytes: Vec<Piece>,
        actions: &mut Vec<Action>,
    ) {
        if to == self.rank {
            self.inbox.push_back(message);
        } else if !self.dead.contains(&to) {
            actions.push(Action::Send { to, message, bytes });
        }
    }

    /// The home of a page from the beginning.
    pub(crate) fn segment(&self, page: Page) -> Rank {
        Rank((page.index % u64::from(self.ranks)) as u32)
    }

    /// The first process alive from `segment` on.
    pub(crate) fn home_of_segment(&self, segment: Rank) -> Rank {
        let mut next = (0..self.ranks).map(|step| Rank((segment.0 + step) % self.ranks));
        next.find(|rank| !self.dead.contains(rank)).unwrap_or(self.rank)
    }

    pub(crate) fn home(&self, page: Page) -> Rank {
        self.home_of_segment(self.segment(page))
    }

    pub(crate) fn ticket(&self, call: CallId) -> Ticket {
        Ticket { rank: self.rank, call }
    }

    pub(crate) fn io(&mut self, doing: Doing) -> Io {
        self.next_io += 1;
        let io = Io(self.next_io);
        self.ios.insert(io, doing);
        io
    }

    pub(crate) fn own_call(&mut self) -> CallId {
        self.next_call += 1;
        CallId(self.next_call - 1)
    }

    fn start(&mut self, id: CallId, request: Request, actions: &mut Vec<Action>) {
        match request {
            Request::Access { file, access, collective, extents } => {
                self.access(id, file, access, collective, &extents, actions);
            }
            Request::Sync { file } => self.begin_sync(id, file, false, actions),
            Request::Close { file } => self.begin_sync(id, file, true, actions),
        }
    }

    pub(crate) fn hear(&mut self, from: Rank, message: Message, actions: &mut Vec<Action>) {
        if let Some(page) = page_for_home(&message)
            && self.not_yet_home(page, from, &message)
        {
            return;
        }
        match message {
            Message::Lock { ticket, page, mode } => {
                self.table.lock(ticket, page, mode);
                self.advance(page, actions);
            }
            Message::Unlock { ticket, page, note } => {
                if self.table.unlock(ticket, page, &note) {
                    actions.push(Action::Lost { page });
                }
                self.advance(page, actions);
            }
            Message::Invalidated { page } => {
                self.table.invalidated(from, page);
                self.advance(page, actions);
            }
            Message::Cleaned { pages } => self.table.cleaned(&pages),
            Message::Granted { call, page, grant } => self.granted(call, page, grant, actions),
            Message::Got { call, page } => self.got(from, call, page, actions),
            Message::Stored { call, page, version } => {
                self.stored(from, call, page, version, actions);
            }
            Message::Fetched { call, page, version } => {
                self.fetched(from, call, page, version, actions);
            }
            Message::Taken { call, page, version, dirty } => {
                self.taken(from, call, page, version, dirty, actions);
            }
            Message::Absent { call, page } => self.absent(from, call, page, actions),
            Message::Get { .. }
            | Message::Put { .. }
            | Message::Fetch { .. }
            | Message::Take { .. }
            | Message::Invalidate { .. } => self.serve(from, message, actions),
            Message::Ship { call, segment, file, access, parts } => {
                let origin = Origin { rank: from, call, segment };
                self.shipped_to(origin, file, access, parts, actions);
            }
            Message::Shipped { call, segment, outcome } => {
                self.shipped(from, call, segment, outcome, actions);
            }
            Message::Report { segment, dead, held, cached } => {
                self.reported(from, segment, &dead, &held, &cached, actions);
            }
            Message::Fence { dead } => {
                self.died(dead, actions);
                self.send(from, Message::Fenced { dead }, Vec::new(), actions);
            }
            Message::Fenced { dead } => self.fenced(from, dead, actions),
        }
    }

    pub(crate) fn advance(&mut self, page: Page, actions: &mut Vec<Action>) {
        let length = self.files.get(&page.file).map_or(u64::MAX, |opened| opened.length);
        let said = self.table.advance(page, &self.options, length);
        self.say(said, actions);
    }

    pub(crate) fn say(&mut self, said: Vec<Say>, actions: &mut Vec<Action>) {
        for say in said {
            let (to, message) = match say {
                Say::Granted(ticket, page, grant) => {
                    (ticket.rank, Message::Granted { call: ticket.call, page, grant })
                }
                Say::Invalidate(rank, page) => (rank, Message::Invalidate { page }),
                Say::Fence(rank, dead) => (rank, Message::Fence { dead }),
                Say::Lost(page) => {
                    actions.push(Action::Lost { page });
                    continue;
                }
            };
            self.send(to, message, Vec::new(), actions);
        }
    }

    /// The span of a whole page.
    pub(crate) fn whole(&self) -> Span {
        Span { at: 0, len: self.options.page_size }
    }

    /// A call is over.
    pub(crate) fn done(&mut self, call: CallId, outcome: Outcome, actions: &mut Vec<Action>) {
        actions.push(Action::Done { call, outcome });
    }
}

/// The page of a message that only its home can do something with.
fn page_for_home(message: &Message) -> Option<Page> {
    match message {
        Message::Lock { page, .. }
        | Message::Unlock { page, .. }
        | Message::Invalidated { page } => Some(*page),
        Message::Cleaned { pages } => pages.first().map(|(page, _)| *page),
        _ => None,
    }
}
