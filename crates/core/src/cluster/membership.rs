//! Who is a node: leases, epochs, fencing.
//!
//! A node joins and gets an [`Epoch`] that no incarnation of any node had before, and a lease that
//! its heartbeats renew (Gray, Cheriton: "Leases: an efficient fault-tolerant mechanism for
//! distributed file cache consistency", SOSP 1989). The two sides measure the lease by their own
//! clocks, which are never compared: the node counts from when it *sent* a heartbeat that was
//! answered, the other side from when it *received* one, and waits longer by as much as clocks may
//! drift apart. So a node has stopped acting by itself before anybody else takes over what it owned,
//! whatever messages are lost or late.
//!
//! [`Membership`] is the other side. One server may keep it; or each observer keeps one of its own,
//! feeds it what it sees of a shared table of heartbeats (a heartbeat counts when its counter has
//! moved), and writes deaths back by compare-and-swap on the epoch. [`Holder`] is the node's side.
//!
//! # Invariants
//! - A node has stopped by itself before others take over, whatever is lost or late; epochs are
//!   unique and grow, and what carries an older one is refused (tests of this file).

use std::collections::{BTreeMap, BTreeSet};

use super::{Epoch, NodeId};
use crate::unit::Tick;

/// What both sides of a lease know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// How long a lease lasts by the node's clock, in nanoseconds.
    pub ttl: u64,
    /// By how many millionths any clock may run too fast or too slow.
    pub drift_ppm: u32,
}

impl Default for Terms {
    /// Ten seconds, and one per thousand: far more than quartz does.
    fn default() -> Self {
        Self { ttl: 10 * Tick::SECOND, drift_ppm: 1_000 }
    }
}

impl Terms {
    /// How long the other side waits, in nanoseconds: a fast clock here must not be done with the
    /// lease before a slow one there.
    #[must_use]
    pub fn timeout(&self) -> u64 {
        let drift = u128::from(self.drift_ppm.min(500_000));
        let waited = (u128::from(self.ttl) * (1_000_000 + drift)).div_ceil(1_000_000 - drift);
        u64::try_from(waited).unwrap_or(u64::MAX)
    }
}

/// What a node is to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It takes part.
    Up,
    /// It takes part, but gets nothing new: what it holds is moved away.
    Draining,
    /// Its lease has ended: others may take over what it owned.
    Dead,
    /// It left in order, and owned nothing.
    Left,
}

impl Standing {
    /// Whether its lease holds.
    #[must_use]
    pub fn is_alive(self) -> bool {
        matches!(self, Self::Up | Self::Draining)
    }
}

/// The refusal of what comes from a node that is no longer one, or from an earlier incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{node} acts with epoch {given}, the cluster knows {known}: it must join again")]
pub struct Fenced {
    /// The node.
    pub node: NodeId,
    /// The epoch it came with.
    pub given: Epoch,
    /// The epoch of its last joining; 0 if it never joined.
    pub known: Epoch,
}

#[derive(Debug, Clone, Copy)]
struct Member {
    epoch: Epoch,
    standing: Standing,
    until: Tick,
}

/// The nodes, as the side that gives leases sees them.
#[derive(Debug, Clone)]
pub struct Membership {
    terms: Terms,
    last: Epoch,
    members: BTreeMap<NodeId, Member>,
    ends: BTreeSet<(Tick, NodeId)>,
}

impl Membership {
    /// No nodes yet. Epochs go on after `last`, which whoever keeps the table must remember.
    #[must_use]
    pub fn new(terms: Terms, last: Epoch) -> Self {
        Self { terms, last, members: BTreeMap::new(), ends: BTreeSet::new() }
    }

    /// The epoch given last.
    #[must_use]
    pub fn last_epoch(&self) -> Epoch {
        self.last
    }

    /// A node begins, for the first time or again. What it did under an earlier epoch is fenced from
    /// now on.
    pub fn join(&mut self, now: Tick, node: NodeId) -> Epoch {
        self.forget_end(node);
        self.last = Epoch(self.last.0 + 1);
        let until = now.after(self.terms.timeout());
        self.members.insert(node, Member { epoch: self.last, standing: Standing::Up, until });
        self.ends.insert((until, node));
        self.last
    }

    /// A heartbeat was received: its lease begins again.
    ///
    /// # Errors
    /// [`Fenced`] if the lease has ended, or of another epoch: the node must join again.
    pub fn heartbeat(&mut self, now: Tick, node: NodeId, epoch: Epoch) -> Result<(), Fenced> {
        self.admit(node, epoch)?;
        self.forget_end(node);
        let until = now.after(self.terms.timeout());
        if let Some(member) = self.members.get_mut(&node) {
            member.until = until;
        }
        self.ends.insert((until, node));
        Ok(())
    }

    /// Whether a node may act under an epoch. Every message that changes something is held against
    /// this first.
    ///
    /// # Errors
    /// [`Fenced`] if not.
    pub fn admit(&self, node: NodeId, epoch: Epoch) -> Result<(), Fenced> {
        let member = self.members.get(&node);
        match member {
            Some(member) if member.epoch == epoch && member.standing.is_alive() => Ok(()),
            _ => {
                let known = member.map_or(Epoch(0), |member| member.epoch);
                Err(Fenced { node, given: epoch, known })
            }
        }
    }

    /// The node gets nothing new from now on. Returns whether it takes part at all.
    pub fn drain(&mut self, node: NodeId) -> bool {
        match self.members.get_mut(&node) {
            Some(member) if member.standing.is_alive() => {
                member.standing = Standing::Draining;
                true
            }
            _ => false,
        }
    }

    /// A node leaves in order.
    ///
    /// # Errors
    /// [`Fenced`] if it is no longer one.
    pub fn leave(&mut self, node: NodeId, epoch: Epoch) -> Result<(), Fenced> {
        self.admit(node, epoch)?;
        self.end(node, Standing::Left);
        Ok(())
    }

    /// Time passes: returns the nodes whose leases have ended, in order of node.
    pub fn step(&mut self, now: Tick) -> Vec<NodeId> {
        let mut dead = Vec::new();
        while let Some((until, node)) = self.ends.first().copied()
            && until <= now
        {
            self.end(node, Standing::Dead);
            dead.push(node);
        }
        dead.sort_unstable();
        dead
    }

    /// When the next lease ends, unless it is renewed.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Tick> {
        self.ends.first().map(|(until, _)| *until)
    }

    /// What a node is, and the epoch of its last joining.
    #[must_use]
    pub fn standing(&self, node: NodeId) -> Option<(Standing, Epoch)> {
        self.members.get(&node).map(|member| (member.standing, member.epoch))
    }

    /// All nodes that ever joined, in order.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, Standing)> + '_ {
        self.members.iter().map(|(node, member)| (*node, member.standing))
    }

    fn forget_end(&mut self, node: NodeId) {
        if let Some(member) = self.members.get(&node) {
            self.ends.remove(&(member.until, node));
        }
    }

    fn end(&mut self, node: NodeId, standing: Standing) {
        self.forget_end(node);
        if let Some(member) = self.members.get_mut(&node) {
            member.standing = standing;
        }
    }
}

/// The node's own side of its lease.
#[derive(Debug, Clone, Copy)]
pub struct Holder {
    terms: Terms,
    epoch: Epoch,
    until: Tick,
}

impl Holder {
    /// A lease whose request was sent at `sent` by this node's clock and answered with `epoch`.
    #[must_use]
    pub fn new(terms: Terms, epoch: Epoch, sent: Tick) -> Self {
        Self { terms, epoch, until: sent.after(terms.ttl) }
    }

    /// The epoch to act under.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// A heartbeat that was sent at `sent` has been accepted.
    pub fn renewed(&mut self, sent: Tick) {
        self.until = self.until.max(sent.after(self.terms.ttl));
    }

    /// A heartbeat was refused: nothing may be done any more under this epoch.
    pub fn fenced(&mut self) {
        self.until = Tick(0);
    }

    /// Whether the node may act as an owner now. It must ask before each acknowledgement, not only
    /// before it begins.
    #[must_use]
    pub fn may_act(&self, now: Tick) -> bool {
        now < self.until
    }

    /// When to send the next heartbeat: three may be lost before the lease ends.
    #[must_use]
    pub fn next_heartbeat(&self) -> Tick {
        Tick(self.until.0.saturating_sub(self.terms.ttl / 4 * 3))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    /// A clock that runs too fast or too slow and started at another time.
    fn clock(offset: u64, ppm: i64) -> impl Fn(u64) -> Tick {
        move |time| {
            let rate = i128::from(1_000_000 + ppm);
            Tick(offset + u64::try_from(i128::from(time) * rate / 1_000_000).expect("in range"))
        }
    }

    #[derive(Debug, Clone)]
    struct Beat {
        pause: u64,
        delay: u64,
        answer_delay: u64,
        lost: bool,
        answer_lost: bool,
    }

    fn beats() -> impl Strategy<Value = Vec<Beat>> {
        let beat = (0u64..6000, 0u64..9000, 0u64..9000, any::<[bool; 4]>());
        let beat = beat.prop_map(|(pause, delay, answer_delay, lost)| Beat {
            pause,
            delay,
            answer_delay,
            lost: lost[0] && lost[1],
            answer_lost: lost[2] && lost[3],
        });
        proptest::collection::vec(beat, 1..40)
    }

    proptest! {
        /// The heart of it: whatever is lost or late and however wrong the clocks are within the
        /// terms, a node that still believes in its lease has it.
        #[test]
        fn lease_any_delays_and_drift_then_the_node_stops_before_it_is_dead_to_others(
            beats in beats(),
            node_ppm in -1000i64..=1000,
            server_ppm in -1000i64..=1000,
            offsets: (u32, u32),
        ) {
            let terms = Terms::default();
            let node_clock = clock(u64::from(offsets.0), node_ppm);
            let server_clock = clock(u64::from(offsets.1), server_ppm);
            let node = NodeId(1);
            let mut table = Membership::new(terms, Epoch(0));
            let epoch = table.join(server_clock(0), node);
            let mut holder = Holder::new(terms, epoch, node_clock(0));
            // What happens, in true time: (when, order, what).
            let mut events: BTreeSet<(u64, usize, bool, u64)> = BTreeSet::new();
            let mut time = 0;
            for (at, beat) in beats.iter().enumerate() {
                time += beat.pause * MS;
                if !beat.lost {
                    events.insert((time + beat.delay * MS, at, false, time));
                }
            }
            let end = time + 20 * Tick::SECOND;
            let mut dead_since = None;
            let mut now = 0;
            while now < end {
                while let Some(event) = events.first().copied().filter(|event| event.0 <= now) {
                    events.remove(&event);
                    let (when, at, is_answer, sent) = event;
                    if is_answer {
                        holder.renewed(node_clock(sent));
                    } else if table.heartbeat(server_clock(now), node, epoch).is_ok()
                        && !beats[at].answer_lost
                    {
                        events.insert((when + beats[at].answer_delay * MS, at, true, sent));
                    }
                }
                if !table.step(server_clock(now)).is_empty() {
                    dead_since = Some(now);
                }
                if dead_since.is_some() {
                    prop_assert!(!holder.may_act(node_clock(now)), "two may act at {now}");
                }
                now += 37 * MS;
            }
            prop_assert!(dead_since.is_some(), "silence must end a lease");
        }

        #[test]
        fn epochs_any_history_then_unique_growing_and_old_ones_fenced(
            history in proptest::collection::vec((0u32..4, 0u8..5, 0u64..8), 1..200),
        ) {
            let mut table = Membership::new(Terms::default(), Epoch(5));
            let mut now = Tick(0);
            let mut given: Vec<(NodeId, Epoch)> = Vec::new();
            for (node, action, seconds) in history {
                now = now.after(seconds * Tick::SECOND);
                for node in table.step(now) {
                    prop_assert_eq!(table.standing(node).map(|(s, _)| s), Some(Standing::Dead));
                }
                let node = NodeId(node);
                let current = given.iter().rev().find(|(other, _)| *other == node).copied();
                match (action, current) {
                    (0, _) | (_, None) => {
                        let epoch = table.join(now, node);
                        prop_assert!(given.iter().all(|(_, old)| *old < epoch) && epoch > Epoch(5));
                        given.push((node, epoch));
                    }
                    (1, Some((_, epoch))) => {
                        let _ = table.leave(node, epoch);
                        prop_assert!(table.admit(node, epoch).is_err());
                    }
                    (2, _) => {
                        table.drain(node);
                    }
                    (_, Some((_, epoch))) => {
                        let alive = table.standing(node).is_some_and(|(s, _)| s.is_alive());
                        prop_assert_eq!(table.heartbeat(now, node, epoch).is_ok(), alive);
                    }
                }
                // At most one epoch of a node is good, and it is the last.
                for (at, (node, epoch)) in given.iter().enumerate() {
                    if given[at + 1..].iter().any(|(other, _)| other == node) {
                        prop_assert!(table.admit(*node, *epoch).is_err());
                    }
                }
            }
        }
    }

    #[test]
    fn heartbeat_after_the_lease_ended_then_refused_until_it_joins_again() {
        let mut table = Membership::new(Terms::default(), Epoch(0));
        let old = table.join(Tick(0), NodeId(3));
        let end = table.next_deadline().expect("a lease");
        assert!(end > Tick(10 * Tick::SECOND));
        assert_eq!(table.step(Tick(end.0 - 1)), []);
        assert_eq!(table.step(end), [NodeId(3)]);
        let fenced = Fenced { node: NodeId(3), given: old, known: old };
        assert_eq!(table.heartbeat(end, NodeId(3), old), Err(fenced));
        let new = table.join(end, NodeId(3));
        assert!(new > old && table.admit(NodeId(3), new).is_ok());
        let fenced = Fenced { node: NodeId(3), given: old, known: new };
        assert_eq!(table.admit(NodeId(3), old), Err(fenced));
    }

    #[test]
    fn holder_when_fenced_or_not_answered_then_it_stops() {
        let terms = Terms::default();
        let mut holder = Holder::new(terms, Epoch(1), Tick(0));
        assert_eq!(holder.next_heartbeat(), Tick(terms.ttl / 4));
        assert!(holder.may_act(Tick(terms.ttl - 1)) && !holder.may_act(Tick(terms.ttl)));
        holder.renewed(Tick(Tick::SECOND));
        holder.renewed(Tick(0));
        assert!(
            holder.may_act(Tick(terms.ttl)),
            "a late answer to an early beat takes nothing away"
        );
        holder.fenced();
        assert!(!holder.may_act(Tick(0)));
    }
}
