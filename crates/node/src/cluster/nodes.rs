//! The nodes of the cluster, for people, and what this one says of itself.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use forebay_meta::{LeaveOrder, Member, NodeStatus};
use parking_lot::Mutex;

use super::Cluster;
use crate::error::Result;

/// Between two looks at what other nodes say.
const LOOK: Duration = Duration::from_secs(2);

/// As if a node that does not say how much room it has had so much.
const UNKNOWN_MIB: u64 = 1024;

/// What was last heard of all nodes.
#[derive(Default)]
pub(super) struct Nodes(Mutex<Heard>);

#[derive(Default)]
struct Heard {
    members: Vec<Member>,
    node_statuses: HashMap<u16, NodeStatus>,
    orders: HashMap<u16, LeaveOrder>,
    looked: Option<Instant>,
}

/// A node as this one sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeReport {
    /// Its number.
    pub node: u16,
    /// The machine that it runs on.
    pub host: String,
    /// Where it listens for other nodes; empty if it does not.
    pub reach: String,
    /// Its starts so far.
    pub epoch: u64,
    /// It has left in good order.
    pub left: bool,
    /// It counts as dead.
    pub dead: bool,
    /// It is to leave.
    pub leaving: bool,
    /// Why it did not leave when it was told to.
    pub refusal: Option<String>,
    /// How long it has given no sign of life.
    pub silence: Duration,
    /// What it has to bring to the backing store, as it said last.
    pub status: NodeStatus,
}

impl Nodes {
    /// Whether a node was told to leave, as was last heard.
    pub(super) fn is_told_to_leave(&self, node: u16) -> bool {
        self.0.lock().orders.get(&node) == Some(&LeaveOrder::Pending)
    }

    /// MiB that nodes have left for what must stay there, as they said last; at least one each.
    pub(super) fn free_room(&self, nodes: &[u16]) -> Vec<u64> {
        let heard = self.0.lock();
        let free = |node: &u16| match heard.node_statuses.get(node) {
            Some(status) if status.room > 0 => {
                (status.room.saturating_sub(status.held + status.bytes) >> 20).max(1)
            }
            _ => UNKNOWN_MIB,
        };
        nodes.iter().map(free).collect()
    }

    /// What a node said last that it has.
    pub(super) fn node_status_of(&self, node: u16) -> NodeStatus {
        self.0.lock().node_statuses.get(&node).copied().unwrap_or_default()
    }
}

impl Cluster {
    /// The number of this node in its cluster.
    pub fn number(&self) -> u16 {
        self.me.node
    }

    /// All nodes that have ever joined, as of the last heartbeat; asks nobody.
    pub fn nodes(&self) -> Vec<NodeReport> {
        let heard = self.nodes.0.lock();
        let report = |member: &Member| {
            let node = member.node;
            let order = heard.orders.get(&node);
            let dead = !member.left && node != self.me.node && self.is_silent(node);
            NodeReport {
                node,
                host: member.address.clone(),
                reach: member.reach.clone(),
                epoch: member.epoch,
                left: member.left,
                dead,
                leaving: !member.left && order == Some(&LeaveOrder::Pending),
                refusal: match order {
                    Some(LeaveOrder::Refused(why)) if !member.left => Some(why.clone()),
                    _ => None,
                },
                silence: self.silence_of(node),
                status: match member.left {
                    true => NodeStatus::default(),
                    false => heard.node_statuses.get(&node).copied().unwrap_or_default(),
                },
            }
        };
        heard.members.iter().map(report).collect()
    }

    /// What this node has to bring to the backing store.
    fn node_status(&self) -> NodeStatus {
        let (backlog, lost) = (self.meta.backlog_len(), self.meta.losses().changes);
        let mut status = NodeStatus { backlog, lost, ..NodeStatus::default() };
        status.room = self.residency.tiers.iter().map(|slot| slot.room.size()).sum();
        (status.held, status.moving) = self.kept_and_moving();
        self.residency.residents.for_each(|_, resident| {
            if resident.dirty {
                status.files += 1;
                status.bytes += resident.charged;
            }
        });
        status
    }

    /// Tells the others what this node has, and hears what it is told.
    pub(super) fn report_life(&self) {
        match self.meta.report_node_status(&self.node_status()) {
            Ok(leave) => self.orders.hear(leave),
            Err(error) => tracing::debug!(%error, "the others do not hear what this node has"),
        }
    }

    /// Keeps what is known of the other nodes.
    pub(super) fn hear(&self, members: Vec<Member>) {
        let due = {
            let mut heard = self.nodes.0.lock();
            heard.members = members;
            heard.looked.is_none_or(|looked| looked.elapsed() >= LOOK)
        };
        if due && let Err(error) = self.look_at_node_statuses() {
            tracing::debug!(%error, "what the other nodes have is not known");
        }
    }

    /// Asks anew who is there and what each has.
    ///
    /// # Errors
    /// If the metadata can't be read.
    pub fn refresh(&self) -> Result<()> {
        let members = self.meta.members()?;
        self.nodes.0.lock().members = members;
        self.look_at_node_statuses()
    }

    fn look_at_node_statuses(&self) -> Result<()> {
        let (node_statuses, orders) = (self.meta.node_statuses()?, self.meta.leave_orders()?);
        let mut heard = self.nodes.0.lock();
        (heard.node_statuses, heard.orders) = (node_statuses, orders);
        heard.looked = Some(Instant::now());
        Ok(())
    }
}
