//! A process dies: its locks are released, its pages forgotten, its part of the table rebuilt.
//!
//! The pages of which a dead process was the home go to the next process alive. Every survivor tells
//! it which of their locks it holds and which of the pages it has; requests wait until all have.

use std::collections::{BTreeMap, BTreeSet};

use crate::Process;
use crate::call::{Kind, Stage};
use crate::message::{Action, Cached, Held, Message, Page, Rank};

/// Of taking over the pages of dead homes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Recovery {
    /// By segment: who has reported, and whom they knew to be dead.
    heard: BTreeMap<Rank, BTreeMap<Rank, BTreeSet<Rank>>>,
    /// Segments that are taken over.
    ready: BTreeSet<Rank>,
    /// What came too early.
    queue: Vec<(Rank, Message)>,
    /// Who has been told of which death.
    told: BTreeSet<(Rank, Rank)>,
}

impl Process {
    /// Whether a message for a home has to wait until this process is that.
    pub(crate) fn not_yet_home(&mut self, page: Page, from: Rank, message: &Message) -> bool {
        let segment = self.segment(page);
        if segment == self.rank {
            return false;
        }
        if !self.recovery.ready.contains(&segment) {
            self.recovery.queue.push((from, message.clone()));
            return true;
        }
        self.table.unknown(page);
        false
    }

    pub(crate) fn died(&mut self, dead: Rank, actions: &mut Vec<Action>) {
        if dead == self.rank || dead.0 >= self.ranks || self.dead.contains(&dead) {
            return;
        }
        let all = (0..self.ranks).map(Rank);
        let changed: BTreeSet<Rank> =
            all.filter(|segment| self.home_of_segment(*segment) == dead).collect();
        self.dead.insert(dead);
        for opened in self.files.values_mut() {
            opened.lost |= opened.unsynced;
        }
        self.deferred.retain(|(from, _)| *from != dead);
        self.recovery.queue.retain(|(from, _)| *from != dead);
        for heard in self.recovery.heard.values_mut() {
            heard.remove(&dead);
        }
        let (pages, said) = self.table.died(dead, self.rank);
        self.say(said, actions);
        for segment in &changed {
            self.report(*segment, actions);
        }
        self.ask_again(dead, &changed, actions);
        for page in pages {
            self.advance(page, actions);
        }
        self.take_over(actions);
    }

    /// Tells the new home of a segment what this process has of it.
    fn report(&mut self, segment: Rank, actions: &mut Vec<Action>) {
        let mut held = Vec::new();
        for (id, call) in &self.calls {
            for (index, grant) in &call.grants {
                let page = call.page(*index);
                if self.segment(page) == segment {
                    held.push(Held { page, ticket: self.ticket(*id), grant: *grant });
                }
            }
        }
        let of_segment = self.pool.iter().filter(|(page, _)| self.segment(*page) == segment);
        let cached = of_segment.map(|(page, it)| Cached {
            page,
            owner: it.owner,
            reader: it.reader,
            version: it.version,
            dirty: it.dirty.is_some() || it.flushing.is_some(),
        });
        let cached = cached.collect();
        let report = Message::Report { segment, dead: self.dead.clone(), held, cached };
        self.send(self.home_of_segment(segment), report, Vec::new(), actions);
    }

    /// Does again what the dead process was asked for.
    fn ask_again(&mut self, dead: Rank, changed: &BTreeSet<Rank>, actions: &mut Vec<Action>) {
        for id in self.calls.keys().copied().collect::<Vec<_>>() {
            let Some(call) = self.calls.get_mut(&id) else { continue };
            if call.kind == Kind::Ship {
                for segment in changed {
                    self.ship_segment(id, *segment, actions);
                }
                continue;
            }
            if let Stage::Locking(at) = call.stage {
                let page = call.pages.get(at).map(|index| call.page(*index));
                if page.is_some_and(|page| changed.contains(&self.segment(page))) {
                    self.ask_for_lock(id, actions);
                }
                continue;
            }
            let absent: Vec<u64> =
                call.pages.iter().copied().filter(|index| call.went_to(dead, *index)).collect();
            for index in &absent {
                call.stop_waiting(*index);
            }
            if !absent.is_empty() {
                for index in &absent {
                    self.gone(id, *index);
                }
                self.fill(id, &absent, actions);
                self.settle(id, actions);
            }
        }
    }

    pub(crate) fn reported(
        &mut self,
        from: Rank,
        segment: Rank,
        dead: &BTreeSet<Rank>,
        held: &[Held],
        cached: &[Cached],
        actions: &mut Vec<Action>,
    ) {
        self.recovery.heard.entry(segment).or_default().insert(from, dead.clone());
        self.table.inherit(from, held, cached);
        self.take_over(actions);
    }

    /// `from` does not hear `dead` any more.
    pub(crate) fn fenced(&mut self, from: Rank, dead: Rank, actions: &mut Vec<Action>) {
        for heard in self.recovery.heard.values_mut() {
            if let Some(known) = heard.get_mut(&from) {
                known.insert(dead);
            }
        }
        for page in self.table.fenced(from, dead) {
            self.advance(page, actions);
        }
        self.take_over(actions);
    }

    /// Becomes the home of segments of which all have reported, and know who is dead: else somebody
    /// could still do what a dead process has asked for, under a lock that is given to another.
    fn take_over(&mut self, actions: &mut Vec<Action>) {
        let heard: Vec<Rank> = self.recovery.heard.keys().copied().collect();
        for segment in heard {
            if self.recovery.ready.contains(&segment) || self.home_of_segment(segment) != self.rank
            {
                continue;
            }
            let mut ready = true;
            for rank in (0..self.ranks).map(Rank) {
                if rank == self.rank || self.dead.contains(&rank) {
                    let own = rank == self.rank;
                    let reported = self.recovery.heard.get(&segment);
                    ready &= !own || reported.is_some_and(|all| all.contains_key(&rank));
                    continue;
                }
                let all = self.recovery.heard.get(&segment);
                let Some(known) = all.and_then(|all| all.get(&rank)) else {
                    ready = false;
                    continue;
                };
                let missing: Vec<Rank> = self.dead.difference(known).copied().collect();
                ready &= missing.is_empty();
                for dead in missing {
                    if self.recovery.told.insert((rank, dead)) {
                        self.send(rank, Message::Fence { dead }, Vec::new(), actions);
                    }
                }
            }
            if ready {
                self.become_home(segment, actions);
            }
        }
    }

    fn become_home(&mut self, segment: Rank, actions: &mut Vec<Action>) {
        self.recovery.ready.insert(segment);
        self.recovery.heard.remove(&segment);
        let ranks = u64::from(self.ranks);
        let of = |page: Page| page.index % ranks == u64::from(segment.0);
        let (pages, said) = self.table.inherited(of);
        self.say(said, actions);
        for (from, message) in std::mem::take(&mut self.recovery.queue) {
            // Those of other segments wait again.
            self.hear(from, message, actions);
        }
        for page in pages {
            self.advance(page, actions);
        }
    }
}
