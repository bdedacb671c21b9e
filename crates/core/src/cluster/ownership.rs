//! Who may write a file, and when another node may take it over.
//!
//! The owner of a file stands in its record, which changes by compare-and-swap alone: read, decide
//! here, write if the record is still what was read. Each change of owner has a [`Ownership::term`]
//! of its own, which what is written carries, so that what arrives late from an earlier owner is
//! refused wherever it arrives.
//!
//! # Invariants
//! - No two incarnations may write a file under one term, and no acknowledged write is lost by a
//!   change of owner (tests of this file).

use super::membership::{Fenced, Membership, Standing};
use super::{Epoch, NodeId};

/// One incarnation of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation {
    /// The node.
    pub node: NodeId,
    /// The epoch under which it acts.
    pub epoch: Epoch,
}

/// The part of a file's record that says who owns it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ownership {
    /// Grows with each change of owner, and never else.
    pub term: u64,
    /// Who may write; nobody if the file is clean and closed everywhere.
    pub owner: Option<Incarnation>,
    /// Whether there are acknowledged bytes that the backing store does not have.
    pub dirty: bool,
    /// Nodes other than the owner that have every acknowledged byte (synchronous replicas, or
    /// enough shards to make them).
    pub complete: Vec<NodeId>,
}

/// What becomes of the wish to own a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// Yours already, under this term.
    Yours,
    /// Write this in place of what was read, and it is yours. If `from` is given, fetch the bytes
    /// there first; nothing: they are in the backing store, or with the claimant itself.
    Granted {
        /// The record after it.
        next: Ownership,
        /// A live node that has every acknowledged byte.
        from: Option<NodeId>,
    },
    /// Forward to the owner, which lives.
    Forward(NodeId),
    /// Acknowledged bytes are with a dead node alone: wait for its return. Nobody else may own the
    /// file meanwhile, or they would be lost.
    Unreachable(NodeId),
}

impl Ownership {
    /// May `claimant` own the file?
    ///
    /// # Errors
    /// [`Fenced`] if the claimant is not a live node under its epoch.
    pub fn claim(&self, claimant: Incarnation, members: &Membership) -> Result<Claim, Fenced> {
        members.admit(claimant.node, claimant.epoch)?;
        let Some(owner) = self.owner else { return Ok(self.granted(claimant, None)) };
        if owner == claimant {
            return Ok(Claim::Yours);
        }
        if members.admit(owner.node, owner.epoch).is_ok() {
            return Ok(Claim::Forward(owner.node));
        }
        // The owner's lease has ended, so it has stopped by itself.
        let itself = owner.node == claimant.node || self.complete.contains(&claimant.node);
        if !self.dirty || itself {
            return Ok(self.granted(claimant, None));
        }
        let alive = |node: &NodeId| members.standing(*node).is_some_and(|(s, _)| s.is_alive());
        // The node of a dead owner that is back, with its tier, has the bytes as well.
        let mut with = std::iter::once(&owner.node).chain(&self.complete);
        match with.find(|node| alive(node)) {
            Some(from) => Ok(self.granted(claimant, Some(*from))),
            None => Ok(Claim::Unreachable(owner.node)),
        }
    }

    fn granted(&self, claimant: Incarnation, from: Option<NodeId>) -> Claim {
        let mut next = self.clone();
        next.term += 1;
        next.owner = Some(claimant);
        // The new owner is no replica of itself. The former owner's copy is complete only if the
        // record said so of it, as it may have written what nobody acknowledged.
        next.complete.retain(|node| *node != claimant.node);
        Claim::Granted { next, from }
    }

    /// The record when its owner gives the file up: clean, or with its bytes left where they are.
    ///
    /// # Errors
    /// [`Fenced`] if `by` is not the owner any more.
    pub fn release(&self, by: Incarnation, members: &Membership) -> Result<Self, Fenced> {
        self.check(by, self.term, members)?;
        // A dirty file keeps its owner: it is where the bytes are.
        let owner = self.owner.filter(|_| self.dirty);
        Ok(Self { owner, ..self.clone() })
    }

    /// Whether a write, a flush or an acknowledgement under `term` by `by` may take effect.
    ///
    /// # Errors
    /// [`Fenced`] if `by` is dead, was replaced, or acts under another term.
    pub fn check(&self, by: Incarnation, term: u64, members: &Membership) -> Result<(), Fenced> {
        members.admit(by.node, by.epoch)?;
        if self.owner == Some(by) && self.term == term {
            return Ok(());
        }
        let known = self.owner.map_or(Epoch(0), |owner| owner.epoch);
        Err(Fenced { node: by.node, given: by.epoch, known })
    }

    /// What a node that comes back is to do with the bytes that it has under `term`.
    #[must_use]
    pub fn on_return(&self, node: NodeId, term: u64) -> Returned {
        if self.owner.is_some_and(|owner| owner.node == node) && self.term == term {
            Returned::Resume
        } else if self.complete.contains(&node) && self.term == term {
            Returned::Replica
        } else {
            Returned::Stale
        }
    }
}

/// What the bytes of a returned node are worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returned {
    /// Still the authority: claim the file under the new epoch.
    Resume,
    /// A complete copy of the present term.
    Replica,
    /// Others went on without it: drop them.
    Stale,
}

/// Whether a node may be given new files to own.
#[must_use]
pub fn may_own(members: &Membership, node: NodeId) -> bool {
    members.standing(node).is_some_and(|(standing, _)| standing == Standing::Up)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::membership::Terms;
    use super::*;
    use crate::unit::Tick;

    const NODES: u32 = 4;

    /// A file, its record, and what each node's disk truly has: the last acknowledged write.
    struct World {
        members: Membership,
        record: Ownership,
        incarnations: Vec<Incarnation>,
        acting: Vec<Option<u64>>,
        bytes: Vec<u64>,
        backing: u64,
        acknowledged: u64,
        now: Tick,
    }

    impl World {
        fn new() -> Self {
            let mut members = Membership::new(Terms::default(), Epoch(0));
            let incarnations = (0..NODES).map(NodeId).map(|node| {
                let epoch = members.join(Tick(0), node);
                Incarnation { node, epoch }
            });
            Self {
                incarnations: incarnations.collect(),
                members,
                record: Ownership::default(),
                acting: vec![None; NODES as usize],
                bytes: vec![0; NODES as usize],
                backing: 0,
                acknowledged: 0,
                now: Tick(0),
            }
        }

        fn claim(&mut self, at: usize) {
            let Ok(claim) = self.record.claim(self.incarnations[at], &self.members) else {
                self.acting[at] = None;
                return;
            };
            match claim {
                Claim::Granted { next, from } => {
                    let dirty = self.record.dirty;
                    let source = from.map_or(self.bytes[at], |node| self.bytes[node.0 as usize]);
                    self.bytes[at] = if dirty { source } else { self.backing };
                    assert_eq!(next.term, self.record.term + 1);
                    self.record = next;
                    self.acting[at] = Some(self.record.term);
                }
                Claim::Yours => assert_eq!(self.acting[at], Some(self.record.term)),
                Claim::Forward(owner) => assert_ne!(owner.0 as usize, at),
                Claim::Unreachable(_) => assert!(self.record.dirty),
            }
        }

        /// A write by a node that believes that it owns the file, synchronously to `copies`.
        fn write(&mut self, at: usize, copies: &[usize]) {
            let Some(term) = self.acting[at] else { return };
            if self.record.check(self.incarnations[at], term, &self.members).is_err() {
                let replaced = self.record.term != term;
                if replaced {
                    // It tried, and its own disk may have it: it must never count.
                    self.bytes[at] = u64::MAX;
                }
                return;
            }
            // One version follows the other: nobody writes over what it has not seen.
            assert_eq!(self.bytes[at], self.acknowledged, "node {at} lacks acknowledged bytes");
            self.acknowledged += 1;
            self.bytes[at] = self.acknowledged;
            self.record.dirty = true;
            self.record.complete.clear();
            for copy in copies.iter().filter(|copy| **copy != at) {
                let alive =
                    self.members.admit(NodeId(*copy as u32), self.incarnations[*copy].epoch);
                if alive.is_ok() {
                    self.bytes[*copy] = self.acknowledged;
                    self.acting[*copy] = None;
                    self.record.complete.push(NodeId(*copy as u32));
                }
            }
        }

        fn restart(&mut self, at: usize) {
            let node = NodeId(at as u32);
            let term = self.acting[at].take();
            let epoch = self.members.join(self.now, node);
            self.incarnations[at] = Incarnation { node, epoch };
            if let Some(term) = term
                && self.record.on_return(node, term) == Returned::Resume
            {
                assert_eq!(self.bytes[at], self.acknowledged);
            }
        }

        fn step(&mut self, kind: u8, at: usize, mask: u8) {
            match kind {
                0 | 1 => self.claim(at),
                2..=4 => {
                    let copies: Vec<usize> = (0..4).filter(|bit| mask >> bit & 1 == 1).collect();
                    self.write(at, &copies);
                }
                5 => {
                    // Flush: the owner brings the backing store in line.
                    let acts = self.acting[at].is_some_and(|term| {
                        self.record.check(self.incarnations[at], term, &self.members).is_ok()
                    });
                    if acts {
                        self.backing = self.bytes[at];
                        self.record.dirty = false;
                    }
                }
                6 => {
                    if let Ok(next) = self.record.release(self.incarnations[at], &self.members) {
                        if next.owner.is_none() {
                            self.acting[at] = None;
                        }
                        self.record = next;
                    }
                }
                7 => self.restart(at),
                _ => {
                    // Time passes for all but those in the mask, which die.
                    self.now = self.now.after(Terms::default().timeout() / 2 + 1);
                    for node in (0..NODES as usize).filter(|node| mask >> node & 1 == 0) {
                        let Incarnation { node, epoch } = self.incarnations[node];
                        let _ = self.members.heartbeat(self.now, node, epoch);
                    }
                    self.members.step(self.now);
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// No acknowledged write is ever lost or overwritten unseen, and no two incarnations may
        /// write under one term.
        #[test]
        fn ownership_any_history_then_one_owner_a_term_and_no_acknowledged_write_lost(
            history in proptest::collection::vec((0u8..9, 0usize..4, 0u8..16), 1..120),
        ) {
            let mut world = World::new();
            let mut owners: std::collections::BTreeMap<u64, Incarnation> = Default::default();
            for (kind, at, mask) in history {
                world.step(kind, at, mask);
                if let Some(owner) = world.record.owner {
                    let first = *owners.entry(world.record.term).or_insert(owner);
                    prop_assert_eq!(first, owner, "two owners in one term");
                }
                let may_write = |at: &usize| world.acting[*at].is_some_and(|term| {
                    world.record.check(world.incarnations[*at], term, &world.members).is_ok()
                });
                prop_assert!((0..NODES as usize).filter(may_write).count() <= 1);
                // Somebody whom the record names has the last acknowledged bytes.
                let owner = world.record.owner.map(|owner| owner.node);
                let has = |node: NodeId| world.bytes[node.0 as usize] == world.acknowledged;
                if world.record.dirty {
                    prop_assert!(owner.is_some_and(has) || world.record.complete.iter().copied().any(has));
                } else {
                    prop_assert_eq!(world.backing, world.acknowledged);
                }
            }
        }
    }

    #[test]
    fn claim_of_a_dirty_file_of_a_dead_owner_then_only_with_its_bytes() {
        let mut members = Membership::new(Terms::default(), Epoch(0));
        let join = |members: &mut Membership, now, node| Incarnation {
            node: NodeId(node),
            epoch: members.join(now, NodeId(node)),
        };
        let dead = join(&mut members, Tick(0), 0);
        let end = members.next_deadline().expect("a lease");
        let other = join(&mut members, end, 1);
        let third = join(&mut members, end, 2);
        members.step(end);
        let mut record =
            Ownership { term: 4, owner: Some(dead), dirty: true, complete: Vec::new() };
        assert_eq!(record.claim(other, &members), Ok(Claim::Unreachable(NodeId(0))));
        record.complete = vec![NodeId(2)];
        let Ok(Claim::Granted { next, from }) = record.claim(other, &members) else { panic!() };
        assert_eq!((next.term, next.owner, from), (5, Some(other), Some(NodeId(2))));
        let Ok(Claim::Granted { next, from }) = record.claim(third, &members) else { panic!() };
        assert_eq!((next.complete, from), (Vec::new(), None));
        assert!(record.check(dead, 4, &members).is_err());
        let back = join(&mut members, end, 0);
        assert_eq!(record.on_return(NodeId(0), 4), Returned::Resume);
        assert!(matches!(record.claim(back, &members), Ok(Claim::Granted { from: None, .. })));
        assert!(record.claim(dead, &members).is_err(), "the old incarnation is fenced");
        assert!(may_own(&members, NodeId(0)) && members.drain(NodeId(0)));
        assert!(!may_own(&members, NodeId(0)));
    }
}
