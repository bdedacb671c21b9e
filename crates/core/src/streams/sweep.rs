//! Streams in the order in which the head meets them: a treap (Seidel, Aragon: "Randomized search
//! trees", Algorithmica 16, 1996) that also knows the time to serve all of them and the least slack,
//! that is how much later the sweep can begin so that each is still served before its deadline.
//! All in O(log n), without allocation: nodes are the streams' own slots.

use crate::policy::slab::mix;

/// No node.
pub(crate) const NIL: u32 = u32::MAX;
/// No deadline: later than any, and far from overflow.
pub(crate) const NEVER: i64 = i64::MAX / 4;

#[derive(Debug, Clone, Copy)]
struct Node {
    position: u64,
    left: u32,
    right: u32,
    /// Nanoseconds to serve it.
    cost: i64,
    /// Nanoseconds on the clock.
    deadline: i64,
    /// Of the subtree.
    total: i64,
    slack: i64,
    /// The sweep that it is in, or [`NIL`].
    sweep: u32,
}

/// Several sweeps over the same slots; a slot is in one of them at most.
#[derive(Debug, Clone)]
pub(crate) struct Sweeps {
    nodes: Vec<Node>,
    roots: Vec<u32>,
    counts: Vec<u32>,
}

impl Sweeps {
    pub fn new(sweeps: usize) -> Self {
        Self { nodes: Vec::new(), roots: vec![NIL; sweeps], counts: vec![0; sweeps] }
    }

    /// Makes room for slots up to this one.
    pub fn reserve(&mut self, slot: u32) {
        let free = Node {
            position: 0,
            left: NIL,
            right: NIL,
            cost: 0,
            deadline: NEVER,
            total: 0,
            slack: NEVER,
            sweep: NIL,
        };
        if self.nodes.len() <= slot as usize {
            self.nodes.resize(slot as usize + 1, free);
        }
    }

    fn key(&self, at: u32) -> (u64, u32) {
        (self.nodes[at as usize].position, at)
    }

    fn summary(&self, at: u32) -> (i64, i64) {
        match self.nodes.get(at as usize) {
            Some(node) => (node.total, node.slack),
            None => (0, NEVER),
        }
    }

    fn update(&mut self, at: u32) {
        let Node { left, right, cost, deadline, .. } = self.nodes[at as usize];
        let ((before, first), (after, last)) = (self.summary(left), self.summary(right));
        let own = before + cost;
        let node = &mut self.nodes[at as usize];
        node.total = own + after;
        node.slack = first.min(deadline - own).min(last - own);
    }

    fn merge(&mut self, left: u32, right: u32) -> u32 {
        if left == NIL {
            return right;
        }
        if right == NIL {
            return left;
        }
        if mix(u64::from(left)) > mix(u64::from(right)) {
            let inner = self.nodes[left as usize].right;
            self.nodes[left as usize].right = self.merge(inner, right);
            self.update(left);
            left
        } else {
            let inner = self.nodes[right as usize].left;
            self.nodes[right as usize].left = self.merge(left, inner);
            self.update(right);
            right
        }
    }

    /// What is before `key`, and the rest.
    fn split(&mut self, at: u32, key: (u64, u32)) -> (u32, u32) {
        if at == NIL {
            return (NIL, NIL);
        }
        if self.key(at) < key {
            let (before, after) = self.split(self.nodes[at as usize].right, key);
            self.nodes[at as usize].right = before;
            self.update(at);
            (at, after)
        } else {
            let (before, after) = self.split(self.nodes[at as usize].left, key);
            self.nodes[at as usize].left = after;
            self.update(at);
            (before, at)
        }
    }

    /// Puts a slot into a sweep, out of the one that it is in.
    pub fn insert(&mut self, sweep: usize, slot: u32, position: u64, cost: i64, deadline: i64) {
        self.remove(slot);
        let node = &mut self.nodes[slot as usize];
        let deadline = deadline.min(NEVER);
        *node =
            Node { position, cost, deadline, left: NIL, right: NIL, sweep: sweep as u32, ..*node };
        self.update(slot);
        let (before, after) = self.split(self.roots[sweep], (position, slot));
        let joined = self.merge(before, slot);
        self.roots[sweep] = self.merge(joined, after);
        self.counts[sweep] += 1;
    }

    /// Takes a slot out of its sweep; whether it was in one.
    pub fn remove(&mut self, slot: u32) -> bool {
        let Some(node) = self.nodes.get(slot as usize).filter(|node| node.sweep != NIL) else {
            return false;
        };
        let (sweep, position) = (node.sweep as usize, node.position);
        let (before, rest) = self.split(self.roots[sweep], (position, slot));
        let (_, after) = self.split(rest, (position, slot + 1));
        self.roots[sweep] = self.merge(before, after);
        self.counts[sweep] -= 1;
        self.nodes[slot as usize].sweep = NIL;
        true
    }

    /// The sweep that a slot is in.
    pub fn sweep_of(&self, slot: u32) -> Option<usize> {
        let sweep = self.nodes.get(slot as usize)?.sweep;
        (sweep != NIL).then_some(sweep as usize)
    }

    pub fn is_empty(&self, sweep: usize) -> bool {
        self.roots[sweep] == NIL
    }

    /// How many are in a sweep.
    pub fn len(&self, sweep: usize) -> u32 {
        self.counts[sweep]
    }

    /// The first of a sweep.
    pub fn first(&self, sweep: usize) -> Option<u32> {
        let mut at = self.roots[sweep];
        while let Some(node) = self.nodes.get(at as usize) {
            if node.left == NIL {
                return Some(at);
            }
            at = node.left;
        }
        None
    }

    /// The first of a sweep from a position on.
    pub fn after(&self, sweep: usize, position: u64) -> Option<u32> {
        let (mut at, mut found) = (self.roots[sweep], None);
        while let Some(node) = self.nodes.get(at as usize) {
            if node.position < position {
                at = node.right;
            } else {
                (found, at) = (Some(at), node.left);
            }
        }
        found
    }

    /// The position of the last of a sweep.
    pub fn end(&self, sweep: usize) -> Option<u64> {
        let mut node = self.nodes.get(self.roots[sweep] as usize)?;
        while let Some(right) = self.nodes.get(node.right as usize) {
            node = right;
        }
        Some(node.position)
    }

    /// The position of the first of a sweep.
    pub fn start(&self, sweep: usize) -> Option<u64> {
        self.first(sweep).map(|at| self.nodes[at as usize].position)
    }

    /// Nanoseconds to serve a sweep, and the latest moment at which it can begin.
    pub fn outlook(&self, sweep: usize) -> (i64, i64) {
        self.summary(self.roots[sweep])
    }

    /// The slot of a sweep whose deadline decides when it must begin.
    pub fn tightest(&self, sweep: usize) -> Option<u32> {
        let mut at = self.roots[sweep];
        while let Some(node) = self.nodes.get(at as usize) {
            let (before, first) = self.summary(node.left);
            if node.left != NIL && first == node.slack {
                at = node.left;
            } else if node.deadline - before - node.cost == node.slack {
                return Some(at);
            } else {
                at = node.right;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn any_history_then_like_a_sorted_list(
            steps in prop::collection::vec(
                (0..40u32, 0..4usize, 0..50u64, 1..100i64, 0..5_000i64), 1..300),
        ) {
            let mut sweeps = Sweeps::new(3);
            sweeps.reserve(39);
            let mut model: [BTreeMap<(u64, u32), (i64, i64)>; 3] = Default::default();
            for (slot, sweep, position, cost, deadline) in steps {
                let before = model.iter_mut().map(|list| {
                    let count = list.len();
                    list.retain(|key, _| key.1 != slot);
                    count - list.len()
                }).sum::<usize>();
                if sweep < 3 {
                    sweeps.insert(sweep, slot, position, cost, deadline);
                    model[sweep].insert((position, slot), (cost, deadline));
                } else {
                    prop_assert_eq!(sweeps.remove(slot), before == 1);
                }
                for (at, list) in model.iter().enumerate() {
                    let (mut total, mut slack, mut tight) = (0, NEVER, None);
                    for (key, (cost, deadline)) in list {
                        total += cost;
                        if deadline - total < slack {
                            (slack, tight) = (deadline - total, Some(key.1));
                        }
                    }
                    prop_assert_eq!(sweeps.outlook(at), (total, slack));
                    prop_assert_eq!(sweeps.start(at), list.keys().next().map(|key| key.0));
                    prop_assert_eq!(sweeps.end(at), list.keys().last().map(|key| key.0));
                    prop_assert_eq!(sweeps.first(at), list.keys().next().map(|key| key.1));
                    prop_assert_eq!(sweeps.tightest(at), tight);
                    let behind = list.range((position, 0)..).next();
                    prop_assert_eq!(sweeps.after(at, position), behind.map(|(key, _)| key.1));
                    prop_assert_eq!(sweeps.is_empty(at), list.is_empty());
                    prop_assert_eq!(sweeps.len(at) as usize, list.len());
                }
            }
        }
    }
}
