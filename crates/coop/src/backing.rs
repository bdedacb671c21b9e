//! Pages and the file: writing back, making room, sync and close.

use std::collections::BTreeMap;

use crate::Process;
use crate::call::{Call, Kind, Stage};
use crate::message::{
    Access, Action, ByteLocation, CallId, File, Holder, Io, Message, Outcome, Page, Part, Piece,
    Rank, Span,
};
use crate::pool::Resident;
use crate::process::Doing;

impl Process {
    /// Has pages leave until so many slots are available, or on their way to be.
    pub(crate) fn make_room(&mut self, need: u32, actions: &mut Vec<Action>) {
        let coming = self.leaving.len() as u32;
        let mut short = need.saturating_sub(self.pool.available()).saturating_sub(coming);
        let mut copies = Vec::new();
        let mut owned = Vec::new();
        for (page, resident) in self.pool.victims() {
            if short == 0 {
                break;
            }
            if self.leaving.contains_key(&page) {
                continue;
            }
            if resident.owner {
                owned.push(page);
            } else {
                copies.push(page);
            }
            short -= 1;
        }
        for page in copies {
            self.pool.remove(page);
            self.counts.evicted += 1;
        }
        for page in owned {
            let id = self.own_call();
            let part = Part { index: page.index, span: self.whole(), buffer: 0 };
            let call = Call::new(page.file, Access::Read, Kind::Evict, vec![part]);
            self.calls.insert(id, call);
            self.leaving.insert(page, id);
            self.begin(id, true, actions);
        }
    }

    /// Has a page leave that is locked.
    pub(crate) fn leave(&mut self, id: CallId, actions: &mut Vec<Action>) {
        let Some(call) = self.calls.get(&id).filter(|call| call.stage == Stage::Working) else {
            return;
        };
        let page = call.page(call.pages.first().copied().unwrap_or(0));
        let stays = self.jammed;
        match self.pool.get(page) {
            Some(resident) if resident.flushing.is_some() => return,
            Some(resident) if resident.pins == 0 && resident.owner => {
                if resident.dirty.is_none() {
                    self.pool.remove(page);
                    self.counts.evicted += 1;
                    if let Some(call) = self.calls.get_mut(&id) {
                        call.note(page.index).holder = Holder::Nobody;
                    }
                } else if !stays {
                    return self.flush(page, actions);
                }
            }
            _ => {}
        }
        self.leaving.remove(&page);
        self.finish(id, actions);
    }

    /// What of a page is written to the file.
    fn to_write(&self, resident: &Resident) -> Option<Span> {
        let dirty = resident.dirty.filter(|_| resident.owner && resident.flushing.is_none())?;
        let first = if self.options.exact_dirty { dirty.at } else { 0 };
        Some(Span { at: first, len: dirty.end() - first })
    }

    /// The pages to write with a dirty one: those beside it, as far as one write can have them.
    fn run_around(&self, page: Page) -> Vec<Page> {
        let size = self.options.page_size;
        let span = |index| self.pool.get(Page { index, ..page }).and_then(|it| self.to_write(it));
        let most = self.options.run.max(1) as usize;
        let mut run = std::collections::VecDeque::from([page.index]);
        while run.len() < most {
            let Some(next) = run.back().and_then(|last| last.checked_add(1)) else { break };
            let ends = span(next - 1).is_some_and(|span| span.end() == size);
            if !ends || span(next).is_none_or(|span| span.at > 0) {
                break;
            }
            run.push_back(next);
        }
        while run.len() < most {
            let Some(first) = run.front().and_then(|first| first.checked_sub(1)) else { break };
            let begins = span(first + 1).is_some_and(|span| span.at == 0);
            if !begins || span(first).is_none_or(|span| span.end() < size) {
                break;
            }
            run.push_front(first);
        }
        run.into_iter().map(|index| Page { index, ..page }).collect()
    }

    /// Writes a dirty page to the file, with those beside it.
    pub(crate) fn flush(&mut self, page: Page, actions: &mut Vec<Action>) {
        let pages = self.run_around(page);
        let mut pieces = Vec::new();
        let mut offset = None;
        for page in &pages {
            let Some(span) = self.pool.get(*page).and_then(|it| self.to_write(it)) else {
                continue;
            };
            let Some((slot, _)) = self.pool.begin_flush(*page) else { continue };
            let start = page.index * u64::from(self.options.page_size) + u64::from(span.at);
            offset.get_or_insert(start);
            let location = ByteLocation::Slot { slot, at: span.at };
            pieces.push(Piece { location, len: u64::from(span.len) });
        }
        let Some(offset) = offset else { return };
        let io = self.io(Doing::Flush { pages });
        let (file, range_lock) = (page.file, self.options.range_locks);
        actions.push(Action::Write { io, file, offset, pieces, range_lock });
    }

    /// An access to the file has ended.
    pub(crate) fn finished(&mut self, io: Io, ok: bool, actions: &mut Vec<Action>) {
        match self.ios.remove(&io) {
            None => {}
            Some(Doing::Load { call: id, pages }) => {
                for page in pages {
                    if ok {
                        self.here(id, page.index, actions);
                        continue;
                    }
                    self.pool.remove(page);
                    if let Some(call) = self.calls.get_mut(&id) {
                        call.note(page.index).holder = Holder::Nobody;
                    }
                }
                self.io_of_call(id, ok, actions);
            }
            Some(Doing::Direct { call }) => self.io_of_call(call, ok, actions),
            Some(Doing::Flush { pages }) => self.flushed(&pages, ok, actions),
            Some(Doing::Sync { call }) => self.synced(call, ok, actions),
        }
    }

    fn io_of_call(&mut self, id: CallId, ok: bool, actions: &mut Vec<Action>) {
        if let Some(call) = self.calls.get_mut(&id) {
            call.ios = call.ios.saturating_sub(1);
            call.failed |= !ok;
        }
        self.settle(id, actions);
    }

    fn flushed(&mut self, pages: &[Page], ok: bool, actions: &mut Vec<Action>) {
        self.jammed |= !ok;
        let mut clean: BTreeMap<Rank, Vec<(Page, u64)>> = BTreeMap::new();
        for page in pages {
            if let Some(version) = self.pool.end_flush(*page, ok) {
                clean.entry(self.segment(*page)).or_default().push((*page, version));
            }
        }
        for (segment, pages) in clean {
            let home = self.home_of_segment(segment);
            self.send(home, Message::Cleaned { pages }, Vec::new(), actions);
        }
        self.continue_syncs(ok, actions);
        for page in pages {
            if let Some(id) = self.leaving.get(page).copied() {
                self.leave(id, actions);
            }
        }
        for (from, message) in std::mem::take(&mut self.deferred) {
            self.serve(from, message, actions);
        }
        self.write_behind(actions);
        self.admit(actions);
    }

    /// Writes in the background what was not used for longest, if too much is dirty.
    pub(crate) fn write_behind(&mut self, actions: &mut Vec<Action>) {
        let Some(most) = self.options.write_behind else { return };
        let busy = || self.ios.values().any(|doing| matches!(doing, Doing::Flush { .. }));
        if self.pool.dirty() <= most || self.jammed || busy() {
            return;
        }
        let dirty = |(page, it): (Page, &Resident)| self.to_write(it).map(|_| page);
        let oldest = self.pool.victims().find_map(dirty);
        if let Some(page) = oldest {
            self.flush(page, actions);
        }
    }

    pub(crate) fn begin_sync(
        &mut self,
        id: CallId,
        file: File,
        close: bool,
        actions: &mut Vec<Action>,
    ) {
        if !self.files.contains_key(&file) || self.calls.contains_key(&id) {
            return self.done(id, Outcome::Failed, actions);
        }
        let mut call = Call::new(file, Access::Write, Kind::Sync { close }, Vec::new());
        let of_file = self.pool.iter().filter(|(page, _)| page.file == file);
        let dirty = of_file.filter(|(_, it)| it.dirty.is_some() || it.flushing.is_some());
        call.targets = dirty.map(|(page, it)| (page, it.version)).collect();
        self.calls.insert(id, call);
        self.continue_sync(id, true, actions);
    }

    pub(crate) fn continue_syncs(&mut self, ok: bool, actions: &mut Vec<Action>) {
        let syncs = self.calls.iter().filter(|(_, call)| matches!(call.kind, Kind::Sync { .. }));
        for id in syncs.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.continue_sync(id, ok, actions);
        }
    }

    /// Writes what is still to be written, or ends the sync.
    fn continue_sync(&mut self, id: CallId, ok: bool, actions: &mut Vec<Action>) {
        let Some(mut call) = self.calls.remove(&id) else { return };
        call.failed |= !ok;
        let pool = &self.pool;
        let failed = call.failed;
        call.targets.retain(|page, version| {
            pool.get(*page).is_some_and(|it| {
                let open = it.dirty.is_some() && !failed || it.flushing.is_some();
                open && it.flushed < *version
            })
        });
        for page in call.targets.keys().copied().collect::<Vec<_>>() {
            if self.pool.get(page).is_some_and(|it| it.flushing.is_none()) {
                self.flush(page, actions);
            }
        }
        // Pages on their way out, and in, still have locks at their homes.
        let ended =
            |other: &Call| other.file != call.file || matches!(other.kind, Kind::Sync { .. });
        let ended = self.calls.values().all(ended);
        if call.targets.is_empty() && ended && call.stage == Stage::Waiting {
            call.stage = Stage::Working;
            let io = self.io(Doing::Sync { call: id });
            actions.push(Action::Sync { io, file: call.file });
        }
        self.calls.insert(id, call);
    }

    fn synced(&mut self, id: CallId, ok: bool, actions: &mut Vec<Action>) {
        let Some(mut call) = self.calls.remove(&id) else { return };
        call.failed |= !ok;
        if let Some(opened) = self.files.get_mut(&call.file) {
            call.lost = std::mem::take(&mut opened.lost);
        }
        if call.kind == (Kind::Sync { close: true }) {
            let of_file = self.pool.iter().filter(|(page, _)| page.file == call.file);
            for page in of_file.map(|(page, _)| page).collect::<Vec<_>>() {
                self.pool.remove(page);
            }
            self.table.forget(call.file);
            self.files.remove(&call.file);
        }
        self.done(id, call.outcome(), actions);
        self.admit(actions);
    }
}
