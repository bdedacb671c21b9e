//! Many nodes: who is one, where copies go, who owns a file, from where a byte is read, what must
//! be repaired and moved.
//!
//! - [`placement`]: on which nodes replicas and shards go.
//! - [`membership`]: leases, epochs and fencing, on both sides.
//! - [`silence`]: for how long others have given no sign of life, as one who looks may say.
//! - [`lease`]: when a node takes a part of the namespace for itself, and gives it back.
//! - [`grants`]: what its kernel may keep of that part, and how it is taken back.
//! - [`ownership`]: who may write a file, and when another may take it over.
//! - [`source`]: own tier, peer or backing store, each byte from the backing store once.
//! - [`redundancy`]: what users ask for.
//! - [`repair`]: redundancy that is lacking, drains and moves, in order of risk and within a rate.
//! - [`deadlock`]: who of them waits for himself in the end.
//! - [`locks`]: what programs on several nodes have locked of a file.
//! - [`replay_cache`]: writes that one node asks another for, each carried out once at most.
//! - [`balance`]: which nodes have too much and which too little.
//!
//! All are state machines or functions: time comes in, actions come out.
//!
//! The daemon uses all of them but [`membership`], which the simulator alone uses: daemons count
//! heartbeats in the metadata, by [`silence`].

pub mod balance;
pub mod deadlock;
pub mod grants;
mod hash;
pub mod lease;
pub mod locks;
pub mod membership;
pub mod ownership;
pub mod placement;
pub mod redundancy;
pub mod repair;
pub mod replay_cache;
pub mod silence;
pub mod source;

use std::fmt;

pub use forebay_types::Epoch;

/// A node of the cluster, under the number that it got when it first joined. The number stands for
/// its tiers: a node that lost them joins under a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}
