//! What a home knows about its pages: who has them, who has locked them, who waits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::Options;
use crate::message::{Cached, Grant, Held, Holder, Mode, Note, Page, Rank, Slot, Ticket};

/// A page at its home.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
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

impl Entry {
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
    entries: BTreeMap<Page, Entry>,
}

impl Table {
    /// Someone wants a lock.
    pub(crate) fn lock(&mut self, ticket: Ticket, page: Page, mode: Mode) {
        let entry = self.entries.entry(page).or_default();
        if mode != Mode::Alone {
            entry.count(ticket.rank);
        }
        entry.queue.push_back((ticket, mode));
    }

    /// Someone gives a lock back. Gives whether something is lost that nobody knows of yet.
    pub(crate) fn unlock(&mut self, ticket: Ticket, page: Page, note: &Note) -> bool {
        let Some(entry) = self.entries.get_mut(&page) else { return false };
        let Some(at) = entry.holders.iter().position(|(holder, _)| *holder == ticket) else {
            return false;
        };
        entry.holders.remove(at);
        if note.heard {
            entry.lost = false;
        }
        match note.holder {
            Holder::Same => {}
            Holder::Mine => (entry.owner, entry.slot) = (Some(ticket.rank), note.slot),
            Holder::Nobody => (entry.owner, entry.slot) = (None, None),
        }
        if note.reader {
            entry.readers.insert(ticket.rank);
        }
        let Some(version) = note.version else { return false };
        entry.version = entry.version.max(version);
        if note.direct {
            entry.clean = entry.version;
        }
        // It was written to a page whose owner has died since.
        let lost = !note.direct && entry.owner.is_none();
        entry.lost |= lost;
        lost
    }

    /// Copies have been dropped.
    pub(crate) fn invalidated(&mut self, from: Rank, page: Page) {
        if let Some(entry) = self.entries.get_mut(&page) {
            entry.asked.remove(&from);
        }
    }

    /// The file has these versions.
    pub(crate) fn cleaned(&mut self, pages: &[(Page, u64)]) {
        for (page, version) in pages {
            if let Some(entry) = self.entries.get_mut(page) {
                entry.version = entry.version.max(*version);
                entry.clean = entry.clean.max(*version);
            }
        }
    }

    /// Grants what can be granted.
    pub(crate) fn advance(&mut self, page: Page, options: &Options, length: u64) -> Vec<Say> {
        let mut said = Vec::new();
        let Some(entry) = self.entries.get_mut(&page) else { return said };
        while let Some((ticket, mode)) = entry.queue.front().copied() {
            if !entry.asked.is_empty() || !entry.fences.is_empty() {
                break;
            }
            let asked = mode;
            let mode = match mode {
                Mode::Read if options.read_copies.is_some() && entry.owner.is_some() => Mode::Read,
                Mode::Read => Mode::Alone,
                mode => mode,
            };
            let reading = |(_, mode): &(Ticket, Mode)| *mode == Mode::Read;
            let shared = mode == Mode::Read && entry.holders.iter().all(reading);
            if !entry.holders.is_empty() && !shared {
                break;
            }
            if mode == Mode::Write && !entry.readers.is_empty() {
                entry.asked = std::mem::take(&mut entry.readers);
                said.extend(entry.asked.iter().map(|reader| Say::Invalidate(*reader, page)));
                break;
            }
            entry.queue.pop_front();
            entry.reads = match asked {
                Mode::Read => entry.reads.saturating_add(1),
                Mode::Alone => entry.reads,
                Mode::Write => 0,
            };
            let copies = options.read_copies.is_some_and(|least| entry.reads >= least);
            entry.holders.push((ticket, mode));
            let heavy = entry.heavy.filter(|(rank, _)| *rank == ticket.rank);
            let wanted = options.migrate.zip(heavy).is_some_and(|(least, (_, n))| n >= least);
            let beyond = page.index.saturating_mul(u64::from(options.page_size)) >= length;
            let grant = Grant {
                mode,
                owner: entry.owner,
                slot: entry.slot,
                version: entry.version,
                dirty: entry.dirty(),
                lost: entry.lost,
                absent: beyond && entry.version == 0 && !entry.inherited,
                take: wanted && mode == Mode::Write,
                copy: copies && asked == Mode::Read,
            };
            said.push(Say::Granted(ticket, page, grant));
        }
        if entry.idle()
            && *entry == (Entry { heavy: entry.heavy, reads: entry.reads, ..Entry::default() })
        {
            self.entries.remove(&page);
        }
        said
    }

    /// A process is gone: what it held, waited for, kept or had. Owners must not hear it any more
    /// before what it had locked is locked again.
    pub(crate) fn died(&mut self, dead: Rank, me: Rank) -> (Vec<Page>, Vec<Say>) {
        let mut said = Vec::new();
        for (page, entry) in &mut self.entries {
            let held = entry.holders.iter().any(|(ticket, _)| ticket.rank == dead);
            // It may have written the file, and its unlock not have come.
            entry.inherited |= held;
            entry.holders.retain(|(ticket, _)| ticket.rank != dead);
            entry.queue.retain(|(ticket, _)| ticket.rank != dead);
            entry.readers.remove(&dead);
            entry.asked.remove(&dead);
            entry.fences.retain(|(owner, _)| *owner != dead);
            if entry.owner == Some(dead) {
                if entry.orphan() {
                    said.push(Say::Lost(*page));
                    // Copies are newer than the file: nobody must see them from now on.
                    said.extend(entry.readers.iter().map(|rank| Say::Invalidate(*rank, *page)));
                    entry.asked.append(&mut entry.readers);
                }
            } else if let Some(owner) = entry.owner.filter(|owner| held && *owner != me) {
                entry.fences.insert((owner, dead));
                said.push(Say::Fence(owner, dead));
            }
        }
        (self.entries.keys().copied().collect(), said)
    }

    /// `from` hears `dead` no more. Gives the pages that waited for it.
    pub(crate) fn fenced(&mut self, from: Rank, dead: Rank) -> Vec<Page> {
        let waited = self.entries.iter_mut();
        waited
            .filter_map(|(page, entry)| entry.fences.remove(&(from, dead)).then_some(*page))
            .collect()
    }

    /// Takes over what another process reports of pages whose home has died.
    pub(crate) fn inherit(&mut self, from: Rank, held: &[Held], cached: &[Cached]) {
        for Held { page, ticket, grant } in held {
            let entry = self.entries.entry(*page).or_default();
            entry.inherited = true;
            entry.holders.push((*ticket, grant.mode));
            entry.version = entry.version.max(grant.version);
            entry.lost |= grant.lost;
        }
        for Cached { page, owner, reader, version, dirty } in cached {
            let entry = self.entries.entry(*page).or_default();
            entry.inherited = true;
            entry.version = entry.version.max(*version);
            if *owner {
                (entry.owner, entry.slot) = (Some(from), None);
                entry.clean = if *dirty { version.saturating_sub(1) } else { *version };
            }
            if *reader {
                entry.readers.insert(from);
            }
        }
    }

    /// All have reported the pages that are picked.
    pub(crate) fn inherited(&mut self, mine: impl Fn(Page) -> bool) -> (Vec<Page>, Vec<Say>) {
        let mut said = Vec::new();
        let mut pages = Vec::new();
        for (page, entry) in self.entries.iter_mut().filter(|(page, _)| mine(**page)) {
            pages.push(*page);
            if entry.owner.is_none() {
                said.extend(entry.readers.iter().map(|rank| Say::Invalidate(*rank, *page)));
                entry.asked.append(&mut entry.readers);
            }
        }
        (pages, said)
    }

    /// A page of another home that is not known here begins as one of which nothing is known.
    pub(crate) fn unknown(&mut self, page: Page) {
        self.entries.entry(page).or_insert_with(|| Entry { inherited: true, ..Entry::default() });
    }

    /// A file is closed.
    pub(crate) fn forget(&mut self, file: crate::message::File) {
        self.entries.retain(|page, _| page.file != file);
    }

    /// Whether no lock is held or waited for.
    pub(crate) fn at_rest(&self) -> bool {
        self.entries.values().all(Entry::idle)
    }

    /// Who has a page, by the table.
    pub(crate) fn owner(&self, page: Page) -> Option<Rank> {
        self.entries.get(&page)?.owner
    }
}
