//! Collective calls in two phases: the pieces go to the homes of their pages, which access them.

use std::collections::BTreeMap;

use crate::Process;
use crate::call::{Call, Kind, Origin, Stage};
use crate::message::{
    Access, Action, ByteLocation, CallId, File, Message, Outcome, Page, Part, Piece, Rank,
};

impl Process {
    /// Begins a collective call.
    pub(crate) fn ship(&mut self, id: CallId, mut call: Call, actions: &mut Vec<Action>) {
        call.stage = Stage::Working;
        let mut ships: BTreeMap<Rank, Vec<Part>> = BTreeMap::new();
        for part in &call.parts {
            let page = Page { file: call.file, index: part.index };
            ships.entry(self.segment(page)).or_default().push(*part);
        }
        call.ships = ships;
        let segments: Vec<Rank> = call.ships.keys().copied().collect();
        self.calls.insert(id, call);
        for segment in segments {
            self.ship_segment(id, segment, actions);
        }
    }

    /// Sends the pieces of one segment to its home.
    pub(crate) fn ship_segment(&mut self, id: CallId, segment: Rank, actions: &mut Vec<Action>) {
        let Some(call) = self.calls.get(&id) else { return };
        let Some(parts) = call.ships.get(&segment).cloned() else { return };
        let piece = |part: &Part| Piece {
            location: ByteLocation::Call { call: id, at: part.buffer },
            len: u64::from(part.span.len),
        };
        let writes = call.access == Access::Write;
        let bytes = if writes { parts.iter().map(piece).collect() } else { Vec::new() };
        let (file, access) = (call.file, call.access);
        let message = Message::Ship { call: id, segment, file, access, parts };
        self.send(self.home_of_segment(segment), message, bytes, actions);
    }

    /// A home gets pieces of another's call. They become a call of its own.
    pub(crate) fn shipped_to(
        &mut self,
        origin: Origin,
        file: File,
        access: Access,
        mut parts: Vec<Part>,
        actions: &mut Vec<Action>,
    ) {
        let id = self.own_call();
        let own = origin.rank == self.rank;
        let len: u64 = parts.iter().map(|part| u64::from(part.span.len)).sum();
        if !own {
            let mut at = 0;
            for part in &mut parts {
                part.buffer = at;
                at += u64::from(part.span.len);
            }
            actions.push(Action::Buffer { call: id, len });
            if access == Access::Write {
                let (from, to) =
                    (ByteLocation::Message { at: 0 }, ByteLocation::Call { call: id, at: 0 });
                actions.push(Action::Copy { from, to, len });
            }
        }
        let mut call = Call::new(file, access, Kind::Access, parts);
        call.buffer = if own { origin.call } else { id };
        call.origin = Some(origin);
        self.enter(id, call, actions);
    }

    /// A home has done what another asked for.
    pub(crate) fn ship_back(
        &mut self,
        id: CallId,
        call: &Call,
        origin: Origin,
        actions: &mut Vec<Action>,
    ) {
        let Origin { rank, call: their, segment } = origin;
        let mut bytes = Vec::new();
        if rank != self.rank && call.access == Access::Read {
            let len = call.parts.iter().map(|part| u64::from(part.span.len)).sum();
            bytes.push(Piece { location: ByteLocation::Call { call: id, at: 0 }, len });
        }
        let message = Message::Shipped { call: their, segment, outcome: call.outcome() };
        self.send(rank, message, bytes, actions);
        if rank != self.rank {
            actions.push(Action::Free { call: id });
        }
    }

    /// A home has answered.
    pub(crate) fn shipped(
        &mut self,
        from: Rank,
        id: CallId,
        segment: Rank,
        outcome: Outcome,
        actions: &mut Vec<Action>,
    ) {
        let Some(call) = self.calls.get_mut(&id).filter(|call| call.kind == Kind::Ship) else {
            return;
        };
        let Some(parts) = call.ships.remove(&segment) else { return };
        if call.access == Access::Read && from != self.rank {
            let mut at = 0;
            for part in parts {
                let len = u64::from(part.span.len);
                let to = ByteLocation::Call { call: id, at: part.buffer };
                actions.push(Action::Copy { from: ByteLocation::Message { at }, to, len });
                at += len;
            }
        }
        call.lost |= outcome == Outcome::Lost;
        call.failed |= outcome == Outcome::Failed;
        // What was read or written may lie with others, and not in the file.
        if let Some(opened) = self.files.get_mut(&call.file) {
            opened.unsynced = true;
        }
        if !call.ships.is_empty() {
            return;
        }
        let outcome = call.outcome();
        self.calls.remove(&id);
        self.done(id, outcome, actions);
    }
}
