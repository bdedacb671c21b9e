//! What this node does when other nodes ask: it stands above the requests of its own programs, and
//! carries out those of others by the same means.
//!
//! Owns: which requests of other nodes are carried out, and by whom. What they mean to the cluster
//! is in `cluster`; what they do to a file that this node owns is in `owner.rs`. Must not know: how
//! nodes are reached and who else does (`cluster/peers.rs`), transports.
//!
//! # Invariants
//! - A node at rest, or that ends, carries out nothing: it answers [`Fault::Closing`].
//! - An incarnation that was replaced or expelled is not let in.
//! - What names another epoch than this node's is refused, so that nobody acts on what an earlier
//!   start has promised.
//! - A write or a change of length is carried out once at most (`Cluster::in_turn`;
//!   `crates/forebay/tests/owners.rs`).

mod owner;

use std::sync::{Arc, Weak};

use forebay_meta::{Incarnation, RecallAim};
use forebay_peer::message::{
    Fault, Hello, ObjectId, Presence, Put, Read, ReadMap, Recall, RecallKind, Sync, Truncate,
    Write, WriteBack, Written,
};
use forebay_peer::{Body, Buffer, BufferPool, Call, Found, Service};
use forebay_types::Ino;
use prost::Message;

use crate::cluster::faults::{asker, fault, same_epoch};
use crate::cluster::{Cluster, forwarding, hosting, moved, redundancy, replay_cache, sources};
use crate::node::Node;

/// Bytes of buffers for what is lent that are kept for the next ones.
const KEEP: usize = 32 << 20;

/// The node, as others see it.
pub(crate) struct Serve {
    node: Weak<Node>,
    buffers: Arc<BufferPool>,
}

impl Serve {
    pub(crate) fn of(node: Weak<Node>) -> Self {
        Serve { node, buffers: BufferPool::new(KEEP) }
    }

    fn node(&self) -> Result<Arc<Node>, Fault> {
        let node = self.node.upgrade().ok_or(Fault::Closing)?;
        match node.cluster().is_none_or(Cluster::is_at_rest) {
            true => Err(Fault::Closing),
            false => Ok(node),
        }
    }
}

/// The cluster that a node which was asked by another is in.
fn cluster_of(node: &Node) -> Result<&Cluster, Fault> {
    node.cluster().ok_or(Fault::Unsupported)
}

impl Service for Serve {
    fn admit(&self, who: &Hello) -> Result<(), String> {
        let node = self.node().map_err(|fault| fault.to_string())?;
        let number = u16::try_from(who.node).map_err(|_| "there is no such node".to_string())?;
        let who = Incarnation { node: number, epoch: who.epoch };
        let gone = |cluster: &Cluster| cluster.has_followed(who) || cluster.is_expelled(who);
        match node.cluster().is_some_and(gone) {
            true => Err(format!("{who} was replaced by another daemon")),
            false => Ok(()),
        }
    }

    fn read(&self, _call: &Call, read: &Read) -> Result<Found, Fault> {
        let node = self.node()?;
        let Some(version) = read.version else {
            let bytes = node.read_as_owner(cluster_of(&node)?, read)?;
            return Ok(Found { version: 0, body: Body::Bytes(bytes) });
        };
        let (ino, buffers) = (Ino(read.ino), &self.buffers);
        let bytes =
            cluster_of(&node)?.read_for_peer(ino, version, read.offset, read.len, buffers)?;
        Ok(Found { version, body: Body::Buffer(bytes) })
    }

    fn read_map(&self, _call: &Call, map: &ReadMap) -> Result<Presence, Fault> {
        let version = map.version.ok_or(Fault::Unsupported)?;
        cluster_of(&*self.node()?)?.presence_for_peer(Ino(map.ino), version, map.from)
    }

    fn write_back(&self, _call: &Call, what: &WriteBack) -> Result<(), Fault> {
        let node = self.node()?;
        let cluster = cluster_of(&node)?;
        same_epoch(cluster, what.epoch)?;
        cluster.handle_recall(Ino(what.ino), RecallAim::Bytes, true).map_err(fault)
    }

    fn write(&self, call: &Call, write: &Write, bytes: Buffer) -> Result<Written, Fault> {
        let node = self.node()?;
        let cluster = cluster_of(&node)?;
        fail::fail_point!("node.owner.late");
        let (offset, size) = cluster.in_turn(call, write.epoch, write.turn, || {
            node.write_as_owner(cluster, write, &bytes)
        })?;
        Ok(Written { offset, size, version: 0 })
    }

    fn truncate(&self, call: &Call, truncate: &Truncate) -> Result<(), Fault> {
        let node = self.node()?;
        let cluster = cluster_of(&node)?;
        let done = cluster.in_turn(call, truncate.epoch, truncate.turn, || {
            node.truncate_as_owner(cluster, truncate).map(|()| (0, truncate.size))
        });
        done.map(drop)
    }

    fn sync(&self, _call: &Call, sync: &Sync) -> Result<(), Fault> {
        let node = self.node()?;
        node.sync_as_owner(cluster_of(&node)?, sync)
    }

    fn recall(&self, _call: &Call, recall: &Recall) -> Result<(), Fault> {
        let node = self.node()?;
        let cluster = cluster_of(&node)?;
        same_epoch(cluster, recall.epoch)?;
        if recall.kind != RecallKind::Ownership {
            return Err(Fault::Unsupported);
        }
        match cluster.give_up_unused(Ino(recall.ino)).map_err(fault)? {
            true => Ok(()),
            false => Err(Fault::Locked),
        }
    }

    fn put(&self, _call: &Call, put: &Put, bytes: Buffer) -> Result<(), Fault> {
        let node = self.node()?;
        cluster_of(&node)?.store_part(put, &bytes)
    }

    fn drop_object(&self, _call: &Call, object: &ObjectId) -> Result<(), Fault> {
        let node = self.node()?;
        cluster_of(&node)?.drop_part(object)
    }

    fn other(&self, call: &Call, kind: u32, bytes: Buffer) -> Result<Body, Fault> {
        let node = self.node()?;
        let cluster = cluster_of(&node)?;
        let asker = asker(call)?;
        match kind {
            sources::WANT | sources::HAVE | sources::FAILED => {
                cluster.answer_about_sources(asker, kind, &bytes)
            }
            redundancy::TAKE_OVER => {
                cluster.take_over_for(&bytes)?;
                Ok(Body::Empty)
            }
            redundancy::FRAGMENT => cluster.fragment_for(&bytes),
            redundancy::REBALANCE => {
                cluster.balance_now();
                Ok(Body::Empty)
            }
            moved::MOVED => {
                cluster.forget_moved(&bytes)?;
                Ok(Body::Empty)
            }
            hosting::TASKS => Ok(Body::Bytes(cluster.tell_of_tasks(asker, &bytes)?)),
            hosting::HOST => Ok(Body::Bytes(cluster.host_for(asker, &bytes)?)),
            replay_cache::SETTLE => {
                let settled = cluster.settle_with(call, &bytes)?;
                Ok(Body::Bytes(settled.encode_to_vec()))
            }
            forwarding::LOOK => {
                let looked = node.look_as_owner(cluster, &bytes)?;
                Ok(Body::Bytes(looked.encode_to_vec()))
            }
            _ => Err(Fault::Unsupported),
        }
    }
}
