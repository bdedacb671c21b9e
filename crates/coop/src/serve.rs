//! What an owner does for others, and what comes of it for who asked.

use crate::Process;
use crate::call::Kind;
use crate::message::{
    Access, Action, ByteLocation, CallId, Message, Page, Piece, Rank, Slot, Span,
};

impl Process {
    /// Requests of others for pages that are here.
    pub(crate) fn serve(&mut self, from: Rank, message: Message, actions: &mut Vec<Action>) {
        match message {
            Message::Get { call, page, spans } => {
                let Some(resident) = self.pool.get(page).filter(|it| it.owner) else {
                    return self.send(from, Message::Absent { call, page }, Vec::new(), actions);
                };
                let slot = resident.slot;
                let piece = |span: &Span| Piece {
                    location: ByteLocation::Slot { slot, at: span.at },
                    len: u64::from(span.len),
                };
                let bytes = spans.iter().map(piece).collect();
                self.pool.touch(page);
                self.send(from, Message::Got { call, page }, bytes, actions);
            }
            Message::Put { call, page, spans, version } => {
                let Some(resident) = self.pool.get(page).filter(|it| it.owner) else {
                    return self.send(from, Message::Absent { call, page }, Vec::new(), actions);
                };
                let (slot, version) = (resident.slot, resident.version.max(version) + 1);
                let mut at = 0;
                for span in &spans {
                    let (from, len) = (ByteLocation::Message { at }, u64::from(span.len));
                    let to = ByteLocation::Slot { slot, at: span.at };
                    actions.push(Action::Copy { from, to, len });
                    at += len;
                }
                if let Some(span) = spans.into_iter().reduce(Span::with) {
                    self.pool.soil(page, span, version);
                }
                self.pool.touch(page);
                let stored = Message::Stored { call, page, version };
                self.send(from, stored, Vec::new(), actions);
                self.write_behind(actions);
            }
            Message::Fetch { call, page } => {
                let Some(resident) = self.pool.get(page).filter(|it| it.owner) else {
                    return self.send(from, Message::Absent { call, page }, Vec::new(), actions);
                };
                let version = resident.version;
                let bytes = vec![self.whole_page(resident.slot)];
                self.pool.touch(page);
                self.send(from, Message::Fetched { call, page, version }, bytes, actions);
            }
            Message::Take { call, page } => self.give(from, call, page, actions),
            Message::Invalidate { page } => {
                match self.pool.get_mut(page) {
                    Some(resident) if resident.owner => resident.reader = false,
                    Some(_) => drop(self.pool.remove(page)),
                    None => {}
                }
                self.send(from, Message::Invalidated { page }, Vec::new(), actions);
                self.admit(actions);
            }
            _ => {}
        }
    }

    fn whole_page(&self, slot: crate::message::Slot) -> Piece {
        let location = ByteLocation::Slot { slot, at: 0 };
        Piece { location, len: u64::from(self.options.page_size) }
    }

    /// Gives a page away. One that is being written to the file stays until that is over: the write
    /// could else come after a later one of the new owner.
    fn give(&mut self, from: Rank, call: CallId, page: Page, actions: &mut Vec<Action>) {
        let Some(resident) = self.pool.get(page).filter(|it| it.owner) else {
            return self.send(from, Message::Absent { call, page }, Vec::new(), actions);
        };
        if resident.flushing.is_some() {
            return self.deferred.push((from, Message::Take { call, page }));
        }
        let (version, dirty) = (resident.version, resident.dirty);
        let bytes = vec![self.whole_page(resident.slot)];
        self.pool.remove(page);
        self.send(from, Message::Taken { call, page, version, dirty }, bytes, actions);
        self.admit(actions);
    }

    /// Reads a page in the pool of its owner; it is locked, so that it stays there as it is. A copy that
    /// may be kept is.
    pub(crate) fn read_there(
        &mut self,
        id: CallId,
        index: u64,
        rank: Rank,
        slot: Slot,
        actions: &mut Vec<Action>,
    ) {
        let Some(call) = self.calls.get(&id) else { return };
        let (page, room) = (call.page(index), call.has_room());
        let grant = call.grants.get(&index).filter(|grant| grant.copy && room);
        let version = grant.map(|grant| grant.version);
        let whole = ByteLocation::Other { rank, slot, at: 0 };
        if version.is_some_and(|version| self.install(id, page, false, version, whole, actions)) {
            return self.here(id, index, actions);
        }
        let Some(call) = self.calls.get(&id) else { return };
        for part in call.parts_of(index) {
            let from = ByteLocation::Other { rank, slot, at: part.span.at };
            let to = ByteLocation::Call { call: call.buffer, at: part.buffer };
            actions.push(Action::Copy { from, to, len: u64::from(part.span.len) });
        }
    }

    /// Whether the call waits for this owner's answer about the page; it does so no longer.
    fn answered(&mut self, from: Rank, id: CallId, page: Page) -> bool {
        let Some(call) = self.calls.get_mut(&id).filter(|call| call.file == page.file) else {
            return false;
        };
        let awaited = call.remote.get(&page.index) == Some(&from);
        if awaited {
            call.stop_waiting(page.index);
        }
        awaited
    }

    pub(crate) fn got(&mut self, from: Rank, id: CallId, page: Page, actions: &mut Vec<Action>) {
        if self.answered(from, id, page) {
            self.copy_from_message(id, page, false, actions);
            self.settle(id, actions);
        }
    }

    /// Copies what came with a message to the buffer: the parts one after the other, or at their
    /// places in a page.
    fn copy_from_message(
        &mut self,
        id: CallId,
        page: Page,
        whole: bool,
        actions: &mut Vec<Action>,
    ) {
        let Some(call) = self.calls.get(&id) else { return };
        if call.kind == Kind::Ahead || call.access == Access::Write {
            return;
        }
        let mut next = 0;
        for part in call.parts_of(page.index) {
            let len = u64::from(part.span.len);
            let at = if whole { u64::from(part.span.at) } else { next };
            let to = ByteLocation::Call { call: call.buffer, at: part.buffer };
            actions.push(Action::Copy { from: ByteLocation::Message { at }, to, len });
            next += len;
        }
    }

    pub(crate) fn stored(
        &mut self,
        from: Rank,
        id: CallId,
        page: Page,
        version: u64,
        actions: &mut Vec<Action>,
    ) {
        if self.answered(from, id, page) {
            if let Some(call) = self.calls.get_mut(&id) {
                call.note(page.index).version = Some(version);
            }
            self.settle(id, actions);
        }
    }

    pub(crate) fn fetched(
        &mut self,
        from: Rank,
        id: CallId,
        page: Page,
        version: u64,
        actions: &mut Vec<Action>,
    ) {
        if !self.answered(from, id, page) {
            return;
        }
        let message = ByteLocation::Message { at: 0 };
        if self.install(id, page, false, version, message, actions) || self.pool.get(page).is_some()
        {
            self.here(id, page.index, actions);
        } else {
            self.copy_from_message(id, page, true, actions);
        }
        self.settle(id, actions);
    }

    /// Puts a page that lies elsewhere into the pool, as its owner or not.
    fn install(
        &mut self,
        id: CallId,
        page: Page,
        owner: bool,
        version: u64,
        from: ByteLocation,
        actions: &mut Vec<Action>,
    ) -> bool {
        let Some(call) = self.calls.get_mut(&id).filter(|call| call.reserved > 0) else {
            return false;
        };
        let Some(slot) = self.pool.insert(page, owner, version) else { return false };
        call.reserved -= 1;
        let (to, len) = (ByteLocation::Slot { slot, at: 0 }, u64::from(self.options.page_size));
        actions.push(Action::Copy { from, to, len });
        true
    }

    pub(crate) fn taken(
        &mut self,
        from: Rank,
        id: CallId,
        page: Page,
        version: u64,
        dirty: Option<Span>,
        actions: &mut Vec<Action>,
    ) {
        if !self.answered(from, id, page) {
            return;
        }
        if self.install(id, page, true, version, ByteLocation::Message { at: 0 }, actions) {
            self.counts.moved += 1;
            if let Some(span) = dirty {
                self.pool.soil(page, span, version);
            }
        }
        self.here(id, page.index, actions);
        self.settle(id, actions);
    }

    /// Who was asked does not have the page: it is as if nobody had it.
    pub(crate) fn absent(&mut self, from: Rank, id: CallId, page: Page, actions: &mut Vec<Action>) {
        if self.answered(from, id, page) {
            self.gone(id, page.index);
            self.fill(id, &[page.index], actions);
            self.settle(id, actions);
        }
    }
}
