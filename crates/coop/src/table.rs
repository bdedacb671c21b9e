//! What a home knows about its pages: who has them, who has locked them, who waits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::Options;
use crate::message::{Cached, Grant, Held, Holder, Mode, Note, Page, Rank, Slot, Ticket};

/// A page at its home.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct PageState {
    holders: Vec<(Ticket, Mode)>,
    queue: VecDeque<(Ticket, Mode)>,
    owner: Option<Rank>,
    /// Where the owner has it, if that is known.
    slot: Option<Slot>,
    readers: BTreeSet<Rank>,
    /// Who has been told to drop copies and has not answered.
    asked: BTreeSet<Rank>,
    /// Who must not be heard by whom any more before the page is locked again.
    fences: BTreeSet<(Rank, Rank)>,
    version: u64,
    clean: u64,
    lost: bool,
    /// Reads since it was written.
    reads: u8,
    /// Whether what came before is not known: another process was its home, or one died with its
    /// lock.
    inherited: bool,
    /// The process with most accesses, and how many more than all others together.
    heavy: Option<(Rank, u8)>,
}

/// What is to be said after a change of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Say {
    Granted(Ticket, Page, Grant),
    Invalidate(Rank, Page),
    /// The first must hear the second no more.
    Fence(Rank, Rank),
    Lost(Page),
}

impl PageState {
    fn dirty(&self) -> bool {
        self.owner.is_some() && self.version > self.clean
    }

    /// The owner is gone. Gives whether something is lost.
    fn orphan(&mut self) -> bool {
        let lost = self.dirty();
        (self.owner, self.slot) = (None, None);
        self.lost |= lost;
        lost
    }

    fn count(&mut self, rank: Rank) {
        self.heavy = match self.heavy {
            Some((heavy, count)) if heavy == rank => Some((rank, count.saturating_add(1).min(64))),
            Some((heavy, count)) if count > 1 => Some((heavy, count - 1)),
            _ => Some((rank, 1)),
        };
    }

    fn idle(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty() && self.asked.is_empty()
    }
}

/// The pages that a process is the home of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Table {
    pages: BTreeMap<Page, PageState>,
}

impl Table {
    /// Someone wants a lock.
    pub(crate) fn lock(&mut self, ticket: Ticket, page: Page, mode: Mode) {
        let state = self.pages.entry(page).or_default();
        if mode != Mode::Alone {
            state.count(ticket.rank);
        }
        state.queue.push_back((ticket, mode));
    }

    /// Someone gives a lock back. Gives whether something is lost that nobody knows of yet.
    pub(crate) fn unlock(&mut self, ticket: Ticket, page: Page, note: &Note) -> bool {
        let Some(state) = self.pages.get_mut(&page) else { return false };
        let Some(at) = state.holders.iter().position(|(holder, _)| *holder == ticket) else {
            return false;
        };
        state.holders.remove(at);
        if note.heard {
            state.lost = false;
        }
        match note.holder {
            Holder::Same => {}
            Holder::Mine => (state.owner, state.slot) = (Some(ticket.rank), note.slot),
            Holder::Nobody => (state.owner, state.slot) = (None, None),
        }
        if note.reader {
            state.readers.insert(ticket.rank);
        }
        let Some(version) = note.version else { return false };
        state.version = state.version.max(version);
        if note.direct {
            state.clean = state.version;
        }
        // It was written to a page whose owner has died since.
        let lost = !note.direct && state.owner.is_none();
        state.lost |= lost;
        lost
    }

    /// Copies have been dropped.
    pub(crate) fn invalidated(&mut self, from: Rank, page: Page) {
        if let Some(state) = self.pages.get_mut(&page) {
            state.asked.remove(&from);
        }
    }

    /// The file has these versions.
    pub(crate) fn cleaned(&mut self, pages: &[(Page, u64)]) {
        for (page, version) in pages {
            if let Some(state) = self.pages.get_mut(page) {
                state.version = state.version.max(*version);
                state.clean = state.clean.max(*version);
            }
        }
    }

    /// Grants what can be granted.
    pub(crate) fn advance(&mut self, page: Page, options: &Options, length: u64) -> Vec<Say> {
        let mut said = Vec::new();
        let Some(state) = self.pages.get_mut(&page) else { return said };
        while let Some((ticket, mode)) = state.queue.front().copied() {
            if !state.asked.is_empty() || !state.fences.is_empty() {
                break;
            }
            let asked = mode;
            let mode = match mode {
                Mode::Read if options.read_copies.is_some() && state.owner.is_some() => Mode::Read,
                Mode::Read => Mode::Alone,
                mode => mode,
            };
            let reading = |(_, mode): &(Ticket, Mode)| *mode == Mode::Read;
            let shared = mode == Mode::Read && state.holders.iter().all(reading);
            if !state.holders.is_empty() && !shared {
                break;
            }
            if mode == Mode::Write && !state.readers.is_empty() {
                state.asked = std::mem::take(&mut state.readers);
                said.extend(state.asked.iter().map(|reader| Say::Invalidate(*reader, page)));
                break;
            }
            state.queue.pop_front();
            state.reads = match asked {
                Mode::Read => state.reads.saturating_add(1),
                Mode::Alone => state.reads,
                Mode::Write => 0,
            };
            let copies = options.read_copies.is_some_and(|least| state.reads >= least);
            state.holders.push((ticket, mode));
            let heavy = state.heavy.filter(|(rank, _)| *rank == ticket.rank);
            let wanted = options.migrate.zip(heavy).is_some_and(|(least, (_, n))| n >= least);
            let beyond = page.index.saturating_mul(u64::from(options.page_size)) >= length;
            let grant = Grant {
                mode,
                owner: state.owner,
                slot: state.slot,
                version: state.version,
                dirty: state.dirty(),
                lost: state.lost,
                absent: beyond && state.version == 0 && !state.inherited,
                take: wanted && mode == Mode::Write,
                copy: copies && asked == Mode::Read,
            };
            said.push(Say::Granted(ticket, page, grant));
        }
        if state.idle()
            && *state
                == (PageState { heavy: state.heavy, reads: state.reads, ..PageState::default() })
        {
            self.pages.remove(&page);
        }
        said
    }

    /// A process is gone: what it held, waited for, kept or had. Owners must not hear it any more
    /// before what it had locked is locked again.
    pub(crate) fn died(&mut self, dead: Rank, me: Rank) -> (Vec<Page>, Vec<Say>) {
        let mut said = Vec::new();
        for (page, state) in &mut self.pages {
            let held = state.holders.iter().any(|(ticket, _)| ticket.rank == dead);
            // It may have written the file, and its unlock not have come.
            state.inherited |= held;
            state.holders.retain(|(ticket, _)| ticket.rank != dead);
            state.queue.retain(|(ticket, _)| ticket.rank != dead);
            state.readers.remove(&dead);
            state.asked.remove(&dead);
            state.fences.retain(|(owner, _)| *owner != dead);
            if state.owner == Some(dead) {
                if state.orphan() {
                    said.push(Say::Lost(*page));
                    // Copies are newer than the file: nobody must see them from now on.
                    said.extend(state.readers.iter().map(|rank| Say::Invalidate(*rank, *page)));
                    state.asked.append(&mut state.readers);
                }
            } else if let Some(owner) = state.owner.filter(|owner| held && *owner != me) {
                state.fences.insert((owner, dead));
                said.push(Say::Fence(owner, dead));
            }
        }
        (self.pages.keys().copied().collect(), said)
    }

    /// `from` hears `dead` no more. Gives the pages that waited for it.
    pub(crate) fn fenced(&mut self, from: Rank, dead: Rank) -> Vec<Page> {
        let waited = self.pages.iter_mut();
        waited
            .filter_map(|(page, state)| state.fences.remove(&(from, dead)).then_some(*page))
            .collect()
    }

    /// Takes over what another process reports of pages whose home has died.
    pub(crate) fn inherit(&mut self, from: Rank, held: &[Held], cached: &[Cached]) {
        for Held { page, ticket, grant } in held {
            let state = self.pages.entry(*page).or_default();
            state.inherited = true;
            state.holders.push((*ticket, grant.mode));
            state.version = state.version.max(grant.version);
            state.lost |= grant.lost;
        }
        for Cached { page, owner, reader, version, dirty } in cached {
            let state = self.pages.entry(*page).or_default();
            state.inherited = true;
            state.version = state.version.max(*version);
            if *owner {
                (state.owner, state.slot) = (Some(from), None);
                state.clean = if *dirty { version.saturating_sub(1) } else { *version };
            }
            if *reader {
                state.readers.insert(from);
            }
        }
    }

    /// All have reported the pages that are picked.
    pub(crate) fn inherited(&mut self, mine: impl Fn(Page) -> bool) -> (Vec<Page>, Vec<Say>) {
        let mut said = Vec::new();
        let mut pages = Vec::new();
        for (page, state) in self.pages.iter_mut().filter(|(page, _)| mine(**page)) {
            pages.push(*page);
            if state.owner.is_none() {
                said.extend(state.readers.iter().map(|rank| Say::Invalidate(*rank, *page)));
                state.asked.append(&mut state.readers);
            }
        }
        (pages, said)
    }

    /// A page of another home that is not known here begins as one of which nothing is known.
    pub(crate) fn unknown(&mut self, page: Page) {
        self.pages
            .entry(page)
            .or_insert_with(|| PageState { inherited: true, ..PageState::default() });
    }

    /// A file is closed.
    pub(crate) fn forget(&mut self, file: crate::message::File) {
        self.pages.retain(|page, _| page.file != file);
    }

    /// Whether no lock is held or waited for.
    pub(crate) fn at_rest(&self) -> bool {
        self.pages.values().all(PageState::idle)
    }

    /// Who has a page, by the table.
    pub(crate) fn owner(&self, page: Page) -> Option<Rank> {
        self.pages.get(&page)?.owner
    }
}
