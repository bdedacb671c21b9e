//! The pages that a process has in its memory, in the order of their use.

use std::collections::BTreeMap;

use crate::message::{Page, Slot, Span};

/// A page in a slot.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Resident {
    pub(crate) slot: Slot,
    /// Whether it is the page itself; else a copy of what another process has.
    pub(crate) owner: bool,
    /// Whether it may be read without asking the home.
    pub(crate) reader: bool,
    /// What the file does not have.
    pub(crate) dirty: Option<Span>,
    /// How often it was written.
    pub(crate) version: u64,
    /// What is being written to the file, and its version.
    pub(crate) flushing: Option<(Span, u64)>,
    /// The last version of which the file has everything.
    pub(crate) flushed: u64,
    /// Calls that count on it.
    pub(crate) pins: u32,
    used: u64,
}

/// The pool of a process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Pool {
    pages: BTreeMap<Page, Resident>,
    order: BTreeMap<u64, Page>,
    free: Vec<Slot>,
    slots: u32,
    /// Free slots that are promised to calls.
    pub(crate) reserved: u32,
    dirty: u32,
    clock: u64,
}

impl Pool {
    pub(crate) fn new(slots: u32) -> Self {
        Self {
            pages: BTreeMap::new(),
            order: BTreeMap::new(),
            free: (0..slots).rev().map(Slot).collect(),
            slots,
            reserved: 0,
            dirty: 0,
            clock: 0,
        }
    }

    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    /// Pages with bytes that the file does not have.
    pub(crate) fn dirty(&self) -> u32 {
        self.dirty
    }

    /// Slots that are neither used nor promised.
    pub(crate) fn available(&self) -> u32 {
        (self.free.len() as u32).saturating_sub(self.reserved)
    }

    pub(crate) fn get(&self, page: Page) -> Option<&Resident> {
        self.pages.get(&page)
    }

    pub(crate) fn get_mut(&mut self, page: Page) -> Option<&mut Resident> {
        self.pages.get_mut(&page)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Page, &Resident)> {
        self.pages.iter().map(|(page, resident)| (*page, resident))
    }

    /// A slot that was promised, for a page. `None` if there is none, or the page has one.
    pub(crate) fn insert(&mut self, page: Page, owner: bool, version: u64) -> Option<Slot> {
        if self.pages.contains_key(&page) {
            return None;
        }
        let slot = self.free.pop()?;
        self.reserved = self.reserved.saturating_sub(1);
        self.clock += 1;
        self.order.insert(self.clock, page);
        let resident = Resident {
            slot,
            owner,
            reader: false,
            dirty: None,
            version,
            flushing: None,
            flushed: 0,
            pins: 0,
            used: self.clock,
        };
        self.pages.insert(page, resident);
        Some(slot)
    }

    pub(crate) fn remove(&mut self, page: Page) -> Option<Resident> {
        let resident = self.pages.remove(&page)?;
        self.order.remove(&resident.used);
        self.free.push(resident.slot);
        self.dirty -= u32::from(resident.dirty.is_some());
        Some(resident)
    }

    /// The page was used.
    pub(crate) fn touch(&mut self, page: Page) {
        if let Some(resident) = self.pages.get_mut(&page) {
            self.order.remove(&resident.used);
            self.clock += 1;
            resident.used = self.clock;
            self.order.insert(self.clock, page);
        }
    }

    /// Bytes of the page were written.
    pub(crate) fn soil(&mut self, page: Page, span: Span, version: u64) {
        if let Some(resident) = self.pages.get_mut(&page) {
            self.dirty += u32::from(resident.dirty.is_none());
            resident.dirty = Some(resident.dirty.map_or(span, |dirty| dirty.with(span)));
            resident.version = resident.version.max(version);
        }
    }

    /// What is to be written to the file, from now on under way.
    pub(crate) fn begin_flush(&mut self, page: Page) -> Option<(Slot, Span)> {
        let resident = self.pages.get_mut(&page)?;
        let span = resident.dirty.take()?;
        self.dirty -= 1;
        resident.flushing = Some((span, resident.version));
        Some((resident.slot, span))
    }

    /// It was written, up to the version that is given back, or it was not.
    pub(crate) fn end_flush(&mut self, page: Page, ok: bool) -> Option<u64> {
        let resident = self.pages.get_mut(&page)?;
        let (span, version) = resident.flushing.take()?;
        if ok {
            resident.flushed = resident.flushed.max(version);
            return Some(version);
        }
        self.soil(page, span, 0);
        None
    }

    /// Pages that could leave, the one not used for longest first.
    pub(crate) fn victims(&self) -> impl Iterator<Item = (Page, &Resident)> {
        self.order
            .values()
            .filter_map(|page| Some((*page, self.pages.get(page)?)))
            .filter(|(_, resident)| resident.pins == 0)
    }
}
