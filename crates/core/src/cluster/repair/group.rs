//! A group: its shards, what is missing, and what is under way.

use super::NodeId;
use crate::unit::Tick;

/// A group of replicas or shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u64);

/// How a group is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redundancy {
    /// So many copies, the owner's among them; at least one.
    Replicas(u8),
    /// Shards of an erasure code.
    Code {
        /// Shards needed.
        data: u8,
        /// Shards that may be lost.
        parity: u8,
    },
    /// The whole at its owner, which is shard 0, and fragments of an erasure code elsewhere.
    Whole {
        /// Fragments needed without the owner.
        data: u8,
        /// Fragments; not fewer.
        fragments: u8,
    },
}

impl Redundancy {
    /// Copies, or shards.
    #[must_use]
    pub fn shards(self) -> usize {
        match self {
            Self::Replicas(copies) => usize::from(copies.max(1)),
            Self::Code { data, parity } => usize::from(data) + usize::from(parity),
            Self::Whole { data, fragments } => usize::from(fragments.max(data)) + 1,
        }
    }

    /// How many give all others back, whichever they are.
    #[must_use]
    pub fn needed(self) -> usize {
        match self {
            Self::Replicas(_) => 1,
            Self::Code { data, .. } | Self::Whole { data, .. } => usize::from(data),
        }
    }

    /// How many may be lost, whichever they are.
    #[must_use]
    pub fn tolerates(self) -> usize {
        self.shards() - self.needed()
    }

    /// How many of the shards that are there may be lost, whichever they are; nothing if they do not
    /// give the others back. `there` has them in order.
    #[must_use]
    pub fn margin(self, there: &[bool]) -> Option<usize> {
        let left = there.iter().filter(|there| **there).count();
        match self {
            // The owner goes first, at worst; with it alone all can be made again.
            Self::Whole { .. } if there.first() == Some(&true) => {
                Some(left.saturating_sub(self.needed()))
            }
            _ => left.checked_sub(self.needed()),
        }
    }
}

/// How urgent: first how many more losses can be borne, then since when.
pub type Rank = (u8, Tick);

/// After everything that lacks shards.
const DRAIN: u8 = 254;
/// After that.
const MOVE: u8 = 255;

/// A transfer under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveTransfer {
    pub sources: Vec<NodeId>,
    pub target: NodeId,
    pub until: Tick,
}

#[derive(Debug, Clone)]
pub struct Group {
    pub redundancy: Redundancy,
    /// Of one shard.
    pub bytes: u64,
    pub held: Vec<Option<NodeId>>,
    pub active: Vec<Option<ActiveTransfer>>,
    /// A shard that should move, for balance, and where.
    pub wanted: Option<(u8, NodeId)>,
    /// Copies that are not needed any more, but are still being read.
    pub leaving: Vec<(u8, NodeId)>,
    /// When it last became worse.
    pub since: Tick,
}

impl Group {
    pub fn new(redundancy: Redundancy, bytes: u64, now: Tick) -> Self {
        let shards = redundancy.shards();
        let (held, active) = (vec![None; shards], vec![None; shards]);
        Self { redundancy, bytes, held, active, wanted: None, leaving: Vec::new(), since: now }
    }

    pub fn missing(&self) -> usize {
        self.held.iter().filter(|node| node.is_none()).count()
    }

    /// How many more losses it bears; nothing if it is unavailable.
    pub fn margin(&self) -> Option<u8> {
        let there: Vec<bool> = self.held.iter().map(Option::is_some).collect();
        self.redundancy.margin(&there).map(|margin| margin.min(200) as u8)
    }

    /// Whether a transfer reads there.
    pub fn is_read(&self, node: NodeId) -> bool {
        self.active.iter().flatten().any(|active| active.sources.contains(&node))
    }

    pub fn is_quiet(&self) -> bool {
        self.active.iter().all(Option::is_none)
    }

    /// The most urgent shard without a transfer, and how urgent it is.
    pub fn next(&self, is_draining: impl Fn(NodeId) -> bool) -> Option<(Rank, u8)> {
        let margin = self.margin()?;
        let find = |wanted: &dyn Fn(Option<NodeId>) -> bool| {
            let open = |at: &usize| self.active[*at].is_none() && wanted(self.held[*at]);
            (0..self.held.len()).find(open).map(|at| at as u8)
        };
        if let Some(shard) = find(&|node| node.is_none()) {
            return Some(((margin, self.since), shard));
        }
        if let Some(shard) = find(&|node| node.is_some_and(&is_draining)) {
            return Some(((DRAIN, self.since), shard));
        }
        let (shard, _) = self.wanted.filter(|_| self.missing() == 0 && self.is_quiet())?;
        Some(((MOVE, self.since), shard))
    }
}
