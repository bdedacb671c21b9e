//! Copies and fragments move from nodes that are much fuller than others: from time to time, or when
//! somebody asks for it.
//!
//! Each owner plans for its own files, with what all nodes have said that they have; of what a node is
//! to give each takes the part that is its own. The planner that repairs carries it out, after
//! everything that is missing and within the same rate.

use forebay_core::cluster::NodeId;
use forebay_core::cluster::balance::{BalanceConfig, Level, Shift, plan};
use forebay_peer::Body;

use super::super::Cluster;
use super::send::WITHIN;
use crate::error::Result;

/// Have copies of your files move to nodes with more room.
pub(crate) const REBALANCE: u32 = 34;
/// Where it was asked for, what is fuller than the mean by so many per cent gives.
const ASKED_PERCENT: u32 = 5;

impl Cluster {
    /// How full the nodes are to which copies of this node's files can go: what each keeps for others,
    /// of the room that what it has written itself leaves.
    fn levels(&self) -> Vec<Level> {
        let Some(peers) = self.peers.get() else { return Vec::new() };
        let level = |node: u16| {
            let status = self.nodes.node_status_of(node);
            let left = status.room.saturating_sub(status.bytes);
            let capacity = if status.room > 0 { left.max(1) } else { 0 };
            Level { node: NodeId(node.into()), load: status.held, capacity }
        };
        let others = peers.listening().into_iter();
        others.filter(|node| self.can_hold(*node)).map(level).collect()
    }

    fn shift(&self, shifts: &[Shift]) -> u64 {
        let held = |node: u16| self.nodes.node_status_of(node).held;
        let bytes = self.safety.keeper.shift(shifts, held);
        if bytes > 0 {
            tracing::info!(bytes, "copies move to nodes with more room");
        }
        bytes
    }

    /// Looks whether it is time.
    pub(super) fn balance_sometimes(&self) {
        let shifts = self.safety.keeper.due(&self.levels());
        if !shifts.is_empty() {
            self.shift(&shifts);
        }
    }

    /// Has copies of this node's files move now; how many bytes it will be.
    pub(crate) fn balance_now(&self) -> u64 {
        if let Err(error) = self.refresh() {
            tracing::debug!(%error, "what the other nodes have is not known");
        }
        let config = BalanceConfig { tolerance_percent: ASKED_PERCENT, ..Default::default() };
        self.shift(&plan(&self.levels(), &config))
    }

    /// Has all nodes move copies to where there is more room; how many nodes were asked.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if this node is alone; if the metadata can't be read.
    pub fn rebalance(&self) -> Result<usize> {
        self.refresh()?;
        let mut asked = 1;
        self.balance_now();
        let Some(peers) = self.peers.get() else { return Ok(asked) };
        for node in self.within_reach(peers).into_iter().filter(|node| *node != self.me.node) {
            let Some(client) = self.peer(node) else { continue };
            match client.other(REBALANCE, &Body::Empty, 0, WITHIN) {
                Ok(_) => asked += 1,
                Err(error) => tracing::warn!(
                    node,
                    %error,
                    "a node could not be asked to move copies: `forebay cluster rebalance` asks \
                     again"
                ),
            }
        }
        Ok(asked)
    }
}
