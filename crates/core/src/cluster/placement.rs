//! On which nodes replicas and shards go: rendezvous hashing weighted by free space.
//!
//! Every node draws a number for every key; the highest gets it (Thaler, Ravishankar: "Using
//! name-based mappings to increase hit rates", IEEE/ACM Transactions on Networking 6(1), 1998). A
//! node of weight `w` draws `ln(u) / w`, so that it wins with a probability in proportion to `w`,
//! and a change of one weight moves keys only to or from that node ("straw2" of Ceph's CRUSH; Weil,
//! Brandt, Miller, Maltzahn, SC 2006). Failure domains draw first, then the nodes within, so that a
//! choice among 16,384 nodes in 512 racks takes about 550 draws.
//!
//! The choice is made once, when a copy is made, and recorded in the copy set; it is not recomputed
//! to find the copy. So weights may follow free space without anything having to move.

use std::collections::BTreeMap;

use super::NodeId;
use super::hash::{ln_unit, mix};

/// A node as placement sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// The node.
    pub node: NodeId,
    /// What fails together with others of the same number: a rack, a switch, a power supply.
    /// `None`: fails alone.
    pub domain: Option<u32>,
    /// Free bytes, in any unit that is the same for all; 0 takes nothing.
    pub weight: u64,
}

/// The nodes that may be chosen, by failure domain.
#[derive(Debug, Clone, Default)]
pub struct Topology {
    domains: Vec<Domain>,
    /// Of each node, its domain's and its own place.
    places: BTreeMap<NodeId, (usize, usize)>,
    by_name: BTreeMap<u64, usize>,
}

#[derive(Debug, Clone)]
struct Domain {
    name: u64,
    weight: u64,
    nodes: Vec<(NodeId, u64)>,
}

/// A node without a domain is one of its own, under a number that no domain has.
fn domain_name(site: &Site) -> u64 {
    site.domain.map_or(u64::from(site.node.0) | 1 << 32, u64::from)
}

/// The best of several draws.
#[derive(Debug)]
struct Best<T> {
    score: f64,
    hash: u64,
    weight: u64,
    what: Option<T>,
}

impl<T> Best<T> {
    fn none() -> Self {
        Self { score: 0.0, hash: 0, weight: 0, what: None }
    }

    /// Whether a draw can't be better, without its logarithm: that grows with the hash, so a smaller
    /// one wins only with a larger weight.
    fn beats(&self, hash: u64, weight: u64) -> bool {
        self.what.is_some() && hash <= self.hash && weight <= self.weight
    }

    /// One more draws.
    fn draw(&mut self, hash: u64, weight: u64, what: T) {
        if weight == 0 || self.beats(hash, weight) {
            return;
        }
        let score = ln_unit(hash) / weight as f64;
        if self.what.is_none() || score > self.score {
            *self = Self { score, hash, weight, what: Some(what) };
        }
    }
}

impl Topology {
    /// A topology of these nodes. Of a node that comes twice the last counts.
    #[must_use]
    pub fn new(sites: &[Site]) -> Self {
        let mut topology = Self::default();
        for site in sites {
            topology.put(site);
        }
        topology
    }

    /// Adds a node, or gives it another weight. A node's domain stays what it was first.
    pub fn put(&mut self, site: &Site) {
        if !self.places.contains_key(&site.node) {
            let name = domain_name(site);
            let at = *self.by_name.entry(name).or_insert_with(|| {
                self.domains.push(Domain { name, weight: 0, nodes: Vec::new() });
                self.domains.len() - 1
            });
            self.domains[at].nodes.push((site.node, 0));
            self.places.insert(site.node, (at, self.domains[at].nodes.len() - 1));
        }
        self.set_weight(site.node, site.weight);
    }

    /// Gives a node another weight: 0 for one that is dead, draining or full. Unknown ones are
    /// ignored.
    pub fn set_weight(&mut self, node: NodeId, weight: u64) {
        if let Some((domain, place)) = self.places.get(&node).copied() {
            let domain = &mut self.domains[domain];
            let old = std::mem::replace(&mut domain.nodes[place].1, weight);
            domain.weight = (domain.weight - old).saturating_add(weight);
        }
    }

    /// A node's weight; 0 if it is not known.
    #[must_use]
    pub fn weight(&self, node: NodeId) -> u64 {
        self.places.get(&node).map_or(0, |(domain, place)| self.domains[*domain].nodes[*place].1)
    }

    /// Whether the two fail together. A node fails with itself.
    #[must_use]
    pub fn together(&self, a: NodeId, b: NodeId) -> bool {
        let domain = |node| self.places.get(&node).map(|(domain, _)| *domain);
        a == b || (domain(a).is_some() && domain(a) == domain(b))
    }

    /// The nodes and their weights, in order.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, u64)> + '_ {
        self.places.iter().map(|(node, (domain, at))| (*node, self.domains[*domain].nodes[*at].1))
    }

    /// `count` nodes for the key, none of `taken` among them, in the order of preference: no two in
    /// one failure domain as long as there are others, and none in a domain of `taken` either;
    /// then other nodes. Fewer if there are no more with a weight.
    #[must_use]
    pub fn place(&self, key: u64, count: usize, taken: &[NodeId]) -> Vec<NodeId> {
        let mut chosen: Vec<NodeId> = Vec::with_capacity(count);
        let domain_of = |node: &NodeId| self.places.get(node).map(|(domain, _)| *domain);
        let mut used: Vec<usize> = taken.iter().filter_map(domain_of).collect();
        loop {
            let (all_domains, before) = (used.is_empty(), chosen.len());
            while chosen.len() < count {
                let domains = self.best_domains(key, count - chosen.len(), &used);
                if domains.is_empty() {
                    break;
                }
                for domain in domains {
                    used.push(domain);
                    chosen.extend(self.best_node(key, domain, taken, &chosen));
                }
            }
            let nothing_left = all_domains && chosen.len() == before;
            if chosen.len() == count || nothing_left {
                return chosen;
            }
            // Every domain has its copy: once more over all of them.
            used.clear();
        }
    }

    /// The first `count` domains by their draws, none of `used`; fewer if there are no more with a
    /// weight. All from one round of draws: with hundreds of domains those are what placing costs.
    fn best_domains(&self, key: u64, count: usize, used: &[usize]) -> Vec<usize> {
        let mut first: Vec<Best<usize>> = Vec::with_capacity(count + 1);
        for (at, domain) in self.domains.iter().enumerate() {
            let hash = mix(key, domain.name | 1 << 63);
            let full = first.len() == count;
            let hopeless = full && first.last().is_some_and(|last| last.beats(hash, domain.weight));
            if hopeless || domain.weight == 0 || used.contains(&at) {
                continue;
            }
            let score = ln_unit(hash) / domain.weight as f64;
            let place = first.partition_point(|other| other.score >= score);
            if place < count {
                first.truncate(count - 1);
                first.insert(place, Best { score, hash, weight: domain.weight, what: Some(at) });
            }
        }
        first.into_iter().filter_map(|best| best.what).collect()
    }

    fn best_node(
        &self,
        key: u64,
        domain: usize,
        taken: &[NodeId],
        chosen: &[NodeId],
    ) -> Option<NodeId> {
        let mut best = Best::none();
        for (node, weight) in &self.domains[domain].nodes {
            if !taken.contains(node) && !chosen.contains(node) {
                best.draw(mix(key, u64::from(node.0)), *weight, *node);
            }
        }
        best.what
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sites(weights: &[(u64, u32)]) -> Vec<Site> {
        let site = |(at, (weight, domain)): (usize, &(u64, u32))| Site {
            node: NodeId(at as u32),
            domain: (*domain > 0).then_some(*domain),
            weight: *weight,
        };
        weights.iter().enumerate().map(site).collect()
    }

    fn weights() -> impl Strategy<Value = Vec<(u64, u32)>> {
        proptest::collection::vec((0u64..5, 0u32..6), 1..24)
    }

    proptest! {
        #[test]
        fn place_any_topology_then_distinct_nodes_and_as_many_domains_as_there_are(
            weights in weights(),
            key: u64,
            count in 0usize..12,
            taken in proptest::collection::vec(0u32..24, 0..4),
        ) {
            let topology = Topology::new(&sites(&weights));
            let taken: Vec<NodeId> = taken.into_iter().map(NodeId).collect();
            let chosen = topology.place(key, count, &taken);
            let fit = |node: &NodeId| topology.weight(*node) > 0 && !taken.contains(node);
            prop_assert!(chosen.iter().all(fit));
            let all: Vec<NodeId> = topology.nodes().map(|(node, _)| node).filter(fit).collect();
            prop_assert_eq!(chosen.len(), count.min(all.len()));
            let mut distinct = chosen.clone();
            distinct.sort_unstable();
            distinct.dedup();
            prop_assert_eq!(distinct.len(), chosen.len());
            // A domain is used twice only when every domain that has nodes is used.
            let shared = |node: &NodeId, with: &[NodeId]| {
                with.iter().any(|other| topology.together(*node, *other))
            };
            for (at, node) in chosen.iter().enumerate() {
                let before = [&taken[..], &chosen[..at]].concat();
                if shared(node, &before) {
                    prop_assert!(all.iter().all(|other| shared(other, &before)));
                }
            }
        }

        #[test]
        fn place_when_one_weight_changes_then_keys_move_only_to_or_from_that_node(
            weights in weights(),
            which in any::<proptest::sample::Index>(),
            weight in 0u64..10,
            base: u64,
        ) {
            // Without domains: with them a node's weight counts in its domain's as well.
            let plain: Vec<(u64, u32)> = weights.iter().map(|(weight, _)| (*weight, 0)).collect();
            let before = Topology::new(&sites(&plain));
            let mut after = before.clone();
            let changed = NodeId(which.index(plain.len()) as u32);
            let grows = weight > before.weight(changed);
            after.set_weight(changed, weight);
            for key in (0..50).map(|at| base.wrapping_add(at)) {
                let (old, new) = (before.place(key, 3, &[]), after.place(key, 3, &[]));
                if !grows {
                    prop_assert!(old.contains(&changed) || old == new);
                } else {
                    prop_assert!(new.contains(&changed) || old == new);
                }
            }
        }
    }

    #[test]
    fn place_many_keys_then_in_proportion_to_the_weights() {
        let sites: Vec<Site> = (0..64)
            .map(|node| Site {
                node: NodeId(node),
                domain: (node >= 16).then_some(node / 8),
                weight: u64::from(node % 4 + 1) << 30,
            })
            .collect();
        let topology = Topology::new(&sites);
        let mut counts = [0u32; 64];
        const KEYS: u64 = 200_000;
        for key in 0..KEYS {
            counts[topology.place(key, 1, &[])[0].0 as usize] += 1;
        }
        for (node, count) in counts.into_iter().enumerate() {
            let expected = KEYS as f64 * (node % 4 + 1) as f64 / (64.0 * 2.5);
            let deviations = (f64::from(count) - expected) / expected.sqrt();
            assert!(deviations.abs() < 4.5, "{node}: {count} of {expected}");
        }
    }

    #[test]
    fn place_a_known_topology_then_the_golden_choice() {
        // Copies are recorded, but two versions of the program should not disagree for no reason.
        let topology = Topology::new(&sites(&[(4, 1), (4, 1), (2, 2), (2, 2), (1, 3), (9, 0)]));
        let chosen: Vec<u32> = topology.place(1, 6, &[]).into_iter().map(|node| node.0).collect();
        assert_eq!(chosen, [5, 1, 4, 3, 0, 2]);
    }
}
