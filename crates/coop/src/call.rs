//! A call: its pages are locked one by one in ascending order, then accessed, then unlocked.

use std::collections::{BTreeMap, BTreeSet};

use crate::Process;
use crate::message::{
    Access, Action, ByteLocation, CallId, Extent, File, Grant, Holder, Message, Mode, Note,
    Outcome, Page, Part, Piece, Rank, Span,
};
use crate::process::Doing;

/// What a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// A program's, or a piece of a collective one.
    Access,
    /// Reads ahead.
    Ahead,
    /// Makes room in the pool.
    Evict,
    /// Writes back; with `close`, forgets the file.
    Sync { close: bool },
    /// Collective: the homes of its pages do it.
    Ship,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// Waits for room in the pool.
    Waiting,
    /// Waits for the lock of its page with this number.
    Locking(usize),
    /// Has all locks.
    Working,
}

/// Another call, a segment of which is done by one of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Origin {
    /// Whose it is.
    pub(crate) rank: Rank,
    pub(crate) call: CallId,
    pub(crate) segment: Rank,
}

/// A call under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    pub(crate) file: File,
    pub(crate) access: Access,
    pub(crate) kind: Kind,
    pub(crate) stage: Stage,
    /// By page, ascending.
    pub(crate) parts: Vec<Part>,
    pub(crate) pages: Vec<u64>,
    /// Whether it goes past the pool.
    pub(crate) direct: bool,
    pub(crate) reserved: u32,
    pins: Vec<Page>,
    pub(crate) grants: BTreeMap<u64, Grant>,
    notes: BTreeMap<u64, Note>,
    /// Whose answer it waits for.
    pub(crate) remote: BTreeMap<u64, Rank>,
    /// Pages among them that come to stay, each in a slot that is promised.
    pub(crate) coming: BTreeSet<u64>,
    /// Accesses to the file that it waits for.
    pub(crate) ios: u32,
    pub(crate) lost: bool,
    pub(crate) failed: bool,
    /// For whom it is done, if for another call.
    pub(crate) origin: Option<Origin>,
    /// Whose buffer it uses.
    pub(crate) buffer: CallId,
    /// Of a collective call: what has been sent to the homes of which segments.
    pub(crate) ships: BTreeMap<Rank, Vec<Part>>,
    /// Of a sync: pages that it waits for, up to which version.
    pub(crate) targets: BTreeMap<Page, u64>,
}

const NOTHING: Note = Note {
    holder: Holder::Same,
    slot: None,
    version: None,
    direct: false,
    reader: false,
    heard: false,
};

impl Call {
    pub(crate) fn new(file: File, access: Access, kind: Kind, parts: Vec<Part>) -> Self {
        let mut pages: Vec<u64> = parts.iter().map(|part| part.index).collect();
        pages.dedup();
        Self {
            file,
            access,
            kind,
            stage: Stage::Waiting,
            parts,
            pages,
            direct: false,
            reserved: 0,
            pins: Vec::new(),
            grants: BTreeMap::new(),
            notes: BTreeMap::new(),
            remote: BTreeMap::new(),
            coming: BTreeSet::new(),
            ios: 0,
            lost: false,
            failed: false,
            origin: None,
            buffer: CallId(0),
            ships: BTreeMap::new(),
            targets: BTreeMap::new(),
        }
    }

    pub(crate) fn page(&self, index: u64) -> Page {
        Page { file: self.file, index }
    }

    pub(crate) fn parts_of(&self, index: u64) -> &[Part] {
        let first = self.parts.partition_point(|part| part.index < index);
        let last = self.parts.partition_point(|part| part.index <= index);
        &self.parts[first..last]
    }

    fn mode(&self) -> Mode {
        match (self.kind, self.access) {
            (Kind::Evict, _) => Mode::Alone,
            (_, Access::Read) => Mode::Read,
            (_, Access::Write) => Mode::Write,
        }
    }

    pub(crate) fn note(&mut self, index: u64) -> &mut Note {
        self.notes.entry(index).or_insert(NOTHING)
    }

    /// Whether there is a slot for one more page.
    pub(crate) fn has_room(&self) -> bool {
        !self.direct && self.reserved as usize > self.coming.len()
    }

    /// Whether what the call does with a page was left to this owner: it waits for the answer, or
    /// what it has written is nowhere else.
    pub(crate) fn went_to(&self, owner: Rank, index: u64) -> bool {
        let written = self.notes.get(&index).is_some_and(|note| {
            note.holder == Holder::Same && note.version.is_some() && !note.direct
        });
        let granted = self.grants.get(&index).is_some_and(|grant| grant.owner == Some(owner));
        self.remote.get(&index) == Some(&owner) || written && granted
    }

    /// An owner does not answer any more about a page, or has.
    pub(crate) fn stop_waiting(&mut self, index: u64) {
        self.remote.remove(&index);
        self.coming.remove(&index);
    }

    pub(crate) fn outcome(&self) -> Outcome {
        match (self.failed, self.lost) {
            (true, _) => Outcome::Failed,
            (false, true) => Outcome::Lost,
            (false, false) => Outcome::Done,
        }
    }
}

/// Where a page is for a call that has locked it.
enum Way {
    Here,
    There(Rank),
    Nowhere,
}

impl Process {
    /// The extents by page, ascending.
    pub(crate) fn cut(&self, extents: &[Extent]) -> Vec<Part> {
        let size = u64::from(self.options.page_size);
        let mut parts = Vec::new();
        let mut buffer = 0;
        for extent in extents {
            let (mut at, end) = (extent.offset, extent.offset.saturating_add(extent.len));
            while at < end {
                let index = at / size;
                let inside = at - index * size;
                let len = (size - inside).min(end - at);
                let span = Span { at: inside as u32, len: len as u32 };
                parts.push(Part { index, span, buffer });
                at += len;
                buffer += len;
            }
        }
        parts.sort_by_key(|part| part.index);
        parts
    }

    pub(crate) fn access(
        &mut self,
        id: CallId,
        file: File,
        access: Access,
        collective: bool,
        extents: &[Extent],
        actions: &mut Vec<Action>,
    ) {
        let parts = self.cut(extents);
        if parts.is_empty() || !self.files.contains_key(&file) || self.calls.contains_key(&id) {
            let known = parts.is_empty();
            let outcome = if known { Outcome::Done } else { Outcome::Failed };
            return self.done(id, outcome, actions);
        }
        let kind = if collective && self.options.ship { Kind::Ship } else { Kind::Access };
        let mut call = Call::new(file, access, kind, parts);
        call.buffer = id;
        if kind == Kind::Ship {
            return self.ship(id, call, actions);
        }
        if access == Access::Read && self.read_here(id, &call, actions) {
            return;
        }
        self.enter(id, call, actions);
    }

    /// Reads without a lock what nobody may be writing, as all of it is kept here for reading.
    fn read_here(&mut self, id: CallId, call: &Call, actions: &mut Vec<Action>) -> bool {
        let kept = |index: &u64| self.pool.get(call.page(*index)).is_some_and(|it| it.reader);
        if self.options.read_copies.is_none() || !call.pages.iter().all(kept) {
            return false;
        }
        for index in &call.pages {
            self.copy_parts(call, *index, actions);
            self.pool.touch(call.page(*index));
            self.counts.local += 1;
        }
        self.done(id, Outcome::Done, actions);
        self.look_ahead(call, actions);
        true
    }

    pub(crate) fn enter(&mut self, id: CallId, call: Call, actions: &mut Vec<Action>) {
        self.calls.insert(id, call);
        self.waiting.push_back(id);
        self.admit(actions);
    }

    /// Lets calls begin for which there is room in the pool, in their order.
    pub(crate) fn admit(&mut self, actions: &mut Vec<Action>) {
        while let Some(id) = self.waiting.front().copied() {
            let large = |call: &Call| call.pages.len() as u64 > u64::from(self.pool.slots());
            if let Some(large) = self.calls.get(&id).map(large) {
                let direct = large || std::mem::take(&mut self.jammed);
                if !direct && !self.has_room_for(id, actions) {
                    return;
                }
                self.begin(id, direct, actions);
            }
            self.waiting.pop_front();
        }
    }

    /// Whether there is room for a call; has pages leave if not. Copies leave at once, and may be
    /// of the call's own pages: then it needs more.
    fn has_room_for(&mut self, id: CallId, actions: &mut Vec<Action>) -> bool {
        loop {
            let Some(call) = self.calls.get(&id) else { return false };
            let absent = |index: &&u64| self.pool.get(call.page(**index)).is_none();
            let need = call.pages.iter().filter(absent).count() as u32;
            if self.pool.available() >= need {
                return true;
            }
            let before = self.pool.available();
            self.make_room(need, actions);
            if self.pool.available() == before {
                return false;
            }
        }
    }

    pub(crate) fn begin(&mut self, id: CallId, direct: bool, actions: &mut Vec<Action>) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        call.direct = direct;
        call.stage = Stage::Locking(0);
        if !direct && call.kind != Kind::Evict {
            for index in &call.pages {
                let page = Page { file: call.file, index: *index };
                if let Some(resident) = self.pool.get_mut(page) {
                    resident.pins += 1;
                    call.pins.push(page);
                } else {
                    call.reserved += 1;
                }
            }
            self.pool.reserved += call.reserved;
        }
        self.ask_for_lock(id, actions);
    }

    /// Asks the home of the page whose turn it is.
    pub(crate) fn ask_for_lock(&mut self, id: CallId, actions: &mut Vec<Action>) {
        let Some(call) = self.calls.get(&id) else { return };
        let Stage::Locking(at) = call.stage else { return };
        let Some(index) = call.pages.get(at) else { return };
        let page = call.page(*index);
        let lock = Message::Lock { ticket: self.ticket(id), page, mode: call.mode() };
        self.send(self.home(page), lock, Vec::new(), actions);
    }

    pub(crate) fn granted(
        &mut self,
        id: CallId,
        page: Page,
        grant: Grant,
        actions: &mut Vec<Action>,
    ) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        let Stage::Locking(at) = call.stage else { return };
        if call.pages.get(at) != Some(&page.index) || call.file != page.file {
            return;
        }
        call.grants.insert(page.index, grant);
        if at + 1 < call.pages.len() {
            call.stage = Stage::Locking(at + 1);
            self.ask_for_lock(id, actions);
        } else {
            call.stage = Stage::Working;
            self.work(id, actions);
        }
    }

    fn work(&mut self, id: CallId, actions: &mut Vec<Action>) {
        let Some(call) = self.calls.get(&id) else { return };
        if call.kind == Kind::Evict {
            return self.leave(id, actions);
        }
        let mut absent = Vec::new();
        for index in call.pages.clone() {
            match self.way(id, index) {
                Way::Here => {
                    self.counts.local += 1;
                    self.here(id, index, actions);
                }
                Way::There(owner) => {
                    self.counts.remote += 1;
                    self.there(id, index, owner, actions);
                }
                Way::Nowhere => absent.push(index),
            }
        }
        self.counts.missed += absent.len() as u64;
        self.fill(id, &absent, actions);
        self.settle(id, actions);
    }

    fn way(&mut self, id: CallId, index: u64) -> Way {
        let Some(call) = self.calls.get_mut(&id) else { return Way::Nowhere };
        let Some(grant) = call.grants.get(&index).copied() else { return Way::Nowhere };
        call.lost |= grant.lost;
        if grant.lost {
            call.note(index).heard = true;
        }
        let usable = |owner: bool| owner || call.access == Access::Read;
        if self.pool.get(call.page(index)).is_some_and(|resident| usable(resident.owner)) {
            return Way::Here;
        }
        match grant.owner {
            Some(owner) if owner != self.rank && !self.dead.contains(&owner) => Way::There(owner),
            Some(_) => {
                self.gone(id, index);
                Way::Nowhere
            }
            None => Way::Nowhere,
        }
    }

    /// Who should have the page does not have it.
    pub(crate) fn gone(&mut self, id: CallId, index: u64) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        let dirty = call.grants.get(&index).is_some_and(|grant| grant.dirty);
        call.lost |= dirty;
        let note = call.note(index);
        note.heard |= dirty;
        note.holder = Holder::Nobody;
    }

    /// Accesses a page that is in the pool.
    pub(crate) fn here(&mut self, id: CallId, index: u64, actions: &mut Vec<Action>) {
        let Some(mut call) = self.calls.remove(&id) else { return };
        let page = call.page(index);
        self.copy_parts(&call, index, actions);
        self.pool.touch(page);
        let grant = call.grants.get(&index);
        let (granted, copy) = grant.map_or((0, false), |grant| (grant.version, grant.copy));
        if let Some(resident) = self.pool.get_mut(page) {
            let version = resident.version.max(granted) + 1;
            resident.reader |= copy;
            let writes = call.access == Access::Write;
            let slot = self.options.shared_pools.then_some(resident.slot);
            let note = call.note(index);
            note.reader = copy;
            if resident.owner {
                (note.holder, note.slot) = (Holder::Mine, slot);
            }
            if writes {
                note.version = Some(version);
                let spans = call.parts_of(index).iter().map(|part| part.span);
                if let Some(span) = spans.reduce(Span::with) {
                    self.pool.soil(page, span, version);
                }
            }
        }
        self.calls.insert(id, call);
    }

    /// Copies the parts of a call in one page between pool and buffer.
    fn copy_parts(&self, call: &Call, index: u64, actions: &mut Vec<Action>) {
        let Some(resident) = self.pool.get(call.page(index)) else { return };
        if call.kind == Kind::Ahead {
            return;
        }
        for part in call.parts_of(index) {
            let slot = ByteLocation::Slot { slot: resident.slot, at: part.span.at };
            let buffer = ByteLocation::Call { call: call.buffer, at: part.buffer };
            let (from, to) = match call.access {
                Access::Read => (slot, buffer),
                Access::Write => (buffer, slot),
            };
            actions.push(Action::Copy { from, to, len: u64::from(part.span.len) });
        }
    }

    /// Asks the owner of a page.
    fn there(&mut self, id: CallId, index: u64, owner: Rank, actions: &mut Vec<Action>) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        let page = call.page(index);
        let Some(grant) = call.grants.get(&index) else { return };
        let room = call.has_room();
        let reads = call.access == Access::Read;
        if let Some(slot) = grant.slot.filter(|_| reads && call.kind != Kind::Ahead) {
            return self.read_there(id, index, owner, slot, actions);
        }
        let spans: Vec<Span> = call.parts_of(index).iter().map(|part| part.span).collect();
        let mut bytes = Vec::new();
        let message = if room && grant.take && grant.mode == Mode::Write {
            Message::Take { call: id, page }
        } else if call.kind == Kind::Ahead {
            // Another has it: it is brought when it is wanted.
            return;
        } else if room && reads && grant.copy {
            Message::Fetch { call: id, page }
        } else if reads {
            Message::Get { call: id, page, spans }
        } else {
            bytes.extend(call.parts_of(index).iter().map(|part| Piece {
                location: ByteLocation::Call { call: call.buffer, at: part.buffer },
                len: u64::from(part.span.len),
            }));
            Message::Put { call: id, page, spans, version: grant.version }
        };
        if matches!(message, Message::Take { .. } | Message::Fetch { .. }) {
            call.coming.insert(index);
        }
        call.remote.insert(index, owner);
        self.send(owner, message, bytes, actions);
    }

    /// Brings pages in from the file, or accesses the file itself where there is no room.
    pub(crate) fn fill(&mut self, id: CallId, absent: &[u64], actions: &mut Vec<Action>) {
        let (mut ready, mut loads, mut direct) = (Vec::new(), Vec::new(), Vec::new());
        for index in absent.iter().copied() {
            let Some(call) = self.calls.get_mut(&id) else { return };
            let page = call.page(index);
            let Some(grant) = call.grants.get(&index).copied() else { continue };
            let room = call.has_room() && grant.mode != Mode::Read;
            let slot = if room { self.pool.insert(page, true, grant.version) } else { None };
            let Some(slot) = slot else {
                direct.push(index);
                continue;
            };
            call.reserved -= 1;
            let covered: u64 =
                call.parts_of(index).iter().map(|part| u64::from(part.span.len)).sum();
            let writes = call.access == Access::Write;
            if writes && covered >= u64::from(self.options.page_size) {
                ready.push(index);
            } else if grant.absent && self.options.skip_absent {
                actions.push(Action::Zero { slot });
                ready.push(index);
            } else {
                loads.push((page, slot));
            }
        }
        for index in ready {
            self.here(id, index, actions);
        }
        self.load(id, &loads, actions);
        self.go_direct(id, &direct, actions);
    }

    fn load(
        &mut self,
        id: CallId,
        loads: &[(Page, crate::message::Slot)],
        actions: &mut Vec<Action>,
    ) {
        let size = u64::from(self.options.page_size);
        let most = if self.options.coalesce_reads { self.options.run.max(1) as usize } else { 1 };
        let mut rest = loads;
        while let Some((first, _)) = rest.first() {
            let beside = |at: usize| rest[at].0.index == first.index + at as u64;
            let run = (1..rest.len().min(most)).take_while(|at| beside(*at)).count() + 1;
            let (these, others) = rest.split_at(run);
            let pages = these.iter().map(|(page, _)| *page).collect();
            let io = self.io(Doing::Load { call: id, pages });
            let piece = |slot| Piece { location: ByteLocation::Slot { slot, at: 0 }, len: size };
            actions.push(Action::Read {
                io,
                file: first.file,
                offset: first.index * size,
                pieces: these.iter().map(|(_, slot)| piece(*slot)).collect(),
                range_lock: self.options.range_locks,
            });
            if let Some(call) = self.calls.get_mut(&id) {
                call.ios += 1;
            }
            rest = others;
        }
    }

    /// Accesses parts of the file past the pool.
    fn go_direct(&mut self, id: CallId, indices: &[u64], actions: &mut Vec<Action>) {
        let size = u64::from(self.options.page_size);
        let Some(mut call) = self.calls.remove(&id) else { return };
        let mut runs: Vec<(u64, u64, u64)> = Vec::new();
        let indices = if call.kind == Kind::Ahead { &[] } else { indices };
        for index in indices.iter().copied() {
            for part in call.parts_of(index) {
                let (at, len) = (index * size + u64::from(part.span.at), u64::from(part.span.len));
                match runs.last_mut() {
                    Some((start, buffer, run))
                        if *start + *run == at && *buffer + *run == part.buffer =>
                    {
                        *run += len;
                    }
                    _ => runs.push((at, part.buffer, len)),
                }
            }
            if call.access == Access::Write {
                let version = call.grants.get(&index).map_or(0, |grant| grant.version) + 1;
                let note = call.note(index);
                (note.version, note.direct) = (Some(version), true);
            }
        }
        for (offset, buffer, len) in runs {
            let io = self.io(Doing::Direct { call: id });
            let location = ByteLocation::Call { call: call.buffer, at: buffer };
            let (file, pieces) = (call.file, vec![Piece { location, len }]);
            let range_lock = self.options.range_locks;
            call.ios += 1;
            actions.push(match call.access {
                Access::Read => Action::Read { io, file, offset, pieces, range_lock },
                Access::Write => Action::Write { io, file, offset, pieces, range_lock },
            });
        }
        self.calls.insert(id, call);
    }

    /// Ends a call that waits for nothing any more.
    pub(crate) fn settle(&mut self, id: CallId, actions: &mut Vec<Action>) {
        let Some(call) = self.calls.get(&id) else { return };
        if call.stage == Stage::Working && call.ios == 0 && call.remote.is_empty() {
            self.finish(id, actions);
        }
    }

    pub(crate) fn finish(&mut self, id: CallId, actions: &mut Vec<Action>) {
        let Some(mut call) = self.calls.remove(&id) else { return };
        for page in std::mem::take(&mut call.pins) {
            if let Some(resident) = self.pool.get_mut(page) {
                resident.pins = resident.pins.saturating_sub(1);
            }
        }
        self.pool.reserved = self.pool.reserved.saturating_sub(call.reserved);
        let ticket = self.ticket(id);
        let elsewhere = |grant: &Grant| grant.dirty && grant.owner != Some(self.rank);
        let unsynced = call.access == Access::Write || call.grants.values().any(elsewhere);
        for index in call.pages.clone() {
            let (page, note) = (call.page(index), *call.note(index));
            let unlock = Message::Unlock { ticket, page, note };
            self.send(self.home(page), unlock, Vec::new(), actions);
        }
        if call.kind == Kind::Access {
            if let Some(opened) = self.files.get_mut(&call.file) {
                opened.unsynced |= unsynced;
            }
            match call.origin {
                Some(origin) => self.ship_back(id, &call, origin, actions),
                None => {
                    self.done(id, call.outcome(), actions);
                    self.look_ahead(&call, actions);
                }
            }
        }
        if call.kind == Kind::Ahead {
            let brought = call.notes.values().any(|note| note.holder == Holder::Mine);
            self.ahead_done(call.file, brought);
        }
        self.write_behind(actions);
        self.admit(actions);
        self.continue_syncs(true, actions);
    }
}
