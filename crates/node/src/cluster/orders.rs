//! Nodes that are to leave, and nodes that never come back.

use std::sync::atomic::{AtomicBool, Ordering};

use forebay_meta::{Error as MetaError, Owned};

use super::Cluster;
use crate::clock;
use crate::error::{NodeError, Result};

/// What this node was told to do.
#[derive(Default)]
pub(super) struct Orders(AtomicBool);

impl Orders {
    pub fn hear(&self, leave: bool) {
        self.0.store(leave, Ordering::Release);
    }
}

impl Cluster {
    /// Whether this node is told to write everything back and leave.
    pub fn is_to_leave(&self) -> bool {
        self.orders.0.load(Ordering::Acquire)
    }

    /// Says that this node stays, and why.
    ///
    /// # Errors
    /// If the metadata can't be changed.
    pub fn refuse_to_leave(&self, why: &str) -> Result<()> {
        self.meta.refuse_to_leave(why)?;
        self.orders.hear(false);
        Ok(())
    }

    /// Tells a node to write everything back and leave.
    ///
    /// # Errors
    /// `Config` if there is no such node, or if it is dead; if the metadata can't be changed.
    pub fn order_to_leave(&self, node: u16) -> Result<()> {
        self.refresh()?;
        let nodes = self.nodes();
        let told = nodes.iter().find(|report| report.node == node);
        let refused = match told {
            None => format!("there is no node {node} in this cluster"),
            Some(report) if report.dead => format!(
                "node {node} is dead: mount it again with the same tiers, or give up what it had"
            ),
            Some(report) if report.left => return Ok(()),
            Some(_) => {
                self.meta.order_to_leave(node)?;
                return self.refresh();
            }
        };
        Err(NodeError::Config(refused))
    }

    /// Calls `each` for all files that a dead node could write, and, if `really`, gives up all that
    /// it had.
    ///
    /// # Errors
    /// `Config` if there is no such node, or if it may live; if the metadata can't be changed.
    pub fn forget_node(&self, node: u16, really: bool, each: &mut dyn FnMut(Owned)) -> Result<()> {
        self.refresh()?;
        let nodes = self.nodes();
        let refused = match nodes.iter().find(|report| report.node == node) {
            None => Some(format!("there is no node {node} in this cluster")),
            Some(report) if !report.dead && !report.left => Some(format!(
                "node {node} is not dead: it has given a sign of life {} s ago; drain it",
                report.silence.as_secs()
            )),
            Some(_) => None,
        };
        if let Some(refused) = refused {
            return Err(NodeError::Config(refused));
        }
        self.meta.owned_by(node, each)?;
        if really {
            let last = self.meta.depose(node)?;
            self.shut_out(last)?;
            self.meta.remove_node(node, clock::wall_time())?;
            self.refresh()?;
        }
        Ok(())
    }

    /// Forgets what an earlier incarnation was told.
    pub(super) fn forget_orders(&self) {
        match self.meta.forget_order() {
            Ok(()) | Err(MetaError::Unsupported(_)) => {}
            Err(error) => tracing::warn!(
                %error,
                "can't remove an old order to leave: this node may leave the cluster once more. If \
                 it does, mount again"
            ),
        }
    }
}
