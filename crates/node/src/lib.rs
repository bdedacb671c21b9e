//! A node: namespace, residency and workers put together, with their threads.
//!
//! [`Node`] offers the operations of a POSIX file system on inode numbers and handles. It decides
//! nothing by itself about what stays on the tiers (`forebay-core` does), knows no FUSE
//! (`forebay-fuse` does) and no format on disk (`forebay-meta` and `forebay-store` do).
//!
//! An operation that has to wait for the backing store, for room or for another node says so
//! ([`Context::wait`]) and goes on where it stands; on which thread that is, the [`Waiter`] knows that
//! its caller gave it.
//!
//! `ARCHITECTURE.md` has a table of the rooms. Each room's `mod.rs` says what it owns, what it must
//! not know and which invariants hold.
//!
//! Queues and tables are bounded: those of the pools (`pool.rs`), of the backlog
//! (`writeback/reconcile/queue.rs`), of what is known to be fresh (`writeback/import/freshness.rs`)
//! and of removed inodes (`namespace/removed_attributes.rs`). Each has a test in its file.

mod after_refusal;
mod busiest;
mod clock;
mod cluster;
mod config;
mod context;
mod defects;
mod error;
mod failpoints;
mod hand_over_state;
mod handles;
#[cfg(test)]
mod hot_path_tests;
mod kernel;
mod lifecycle;
#[cfg(test)]
mod lockstep;
pub mod metrics;
mod namespace;
mod node;
mod patterns;
mod pool;
mod report;
mod requests;
mod residency;
mod seams;
mod serving;
mod stat;
mod state_files;
mod stream;
mod trace;
mod waits;
mod writeback;

pub use clock::wall_time;
pub use cluster::{
    Cluster, ClusterReport, ClusterTerms, FileTotals, InTheWay, KernelGrant, LeaseBasis, LockDone,
    LockRequest, NewTerms, NodeReport, Renaming, SafetyReport, Shown, TaskHost, Waited,
    cluster_terms, look_at_cluster, set_cluster_terms,
};
pub use config::{
    ClusterConfig, Coherence, Durability, NodeConfig, Passthrough, PeerConfig, StreamsConfig,
    TierConfig, WritebackPolicy,
};
pub use context::{AtOnce, Context, Waiter};
pub use defects::{BackgroundKind, BackgroundWork, SetAsideWork, background_work_in_hand};
pub use error::{NodeError, Result};
pub use failpoints::{arm_fail_points, fail_points};
pub use forebay_core::cluster::grants::Fact;
pub use forebay_core::cluster::locks::{Family, Mode, Span};
pub use forebay_core::cluster::redundancy::Redundancy;
pub use forebay_meta::{
    Attr, EngineError, Error as MetaError, Moment, NameIn, NodeStatus, Owned, ServerLog,
    ServerReport, Teller,
};
pub use forebay_store::tier::check_dir as check_tier_dir;
pub use forebay_store::{ErrorClass, StoreError};
pub use forebay_types::{FileKind, Ino, Timestamp};
pub use handles::{OpenMode, Opened};
pub use lifecycle::check::{CheckRequest, Checked, accept_store, check};
pub use lifecycle::check_cluster::check_cluster;
pub use residency::Residency;
pub use residency::aside::{LostChanges, Named};
pub use residency::inode_alias::{node_id, of_node_id};

pub use hand_over_state::{
    HandOverState, HandleMode, LockOwner, Membership, OpenHandle, RemovedInode, ResidentObject,
    SetIdsSince,
};
pub use kernel::Kernel;
pub use lifecycle::members::{check_tiers, is_ahead_of_store};
pub use namespace::paths::{Coverage, Whereabouts};
pub use namespace::{DirEntry, NAME_MAX, NewFile, SetAttr, SetTime, Statfs};
pub use node::Node;
pub use patterns::{PatternRow, PatternTask, Patterns, RecordedTask, SimilarTasks};
pub use pool::{Pool, Refused, Urgency};
pub use report::{BusyFile, DirtyFile, LongWork, TierReport};
pub use requests::hints::{HintPart, HintReport, Hinted, MAX_JOBS, MAX_REFERENCES};
pub use requests::ranges::FilePosition;
pub use stat::Stat;
pub use stream::{CarriedStream, RefusedStream, StreamsReport};
pub use trace::{Opening, Recorded};
pub use writeback::import::Looked;
pub use writeback::reconcile::{Conflict, Refused as RefusedByStore, Remaining, Synced};

/// Policies that a mount can use: those that need no knowledge of the future, the default first.
pub const ONLINE_POLICIES: &[&str] = &[
    "s3fifo",
    "auto",
    "lru",
    "lfu",
    "sieve",
    "gdsf",
    "wtinylfu",
    "arc",
    "gittins",
    "heuristic",
    "min",
    "min-whole",
];
pub use writeback::Writeback;

#[cfg(test)]
mod tests {
    use super::ONLINE_POLICIES;

    #[test]
    fn choices_of_auto_then_a_mount_can_use_each_alone() {
        for choice in forebay_core::policy::CHOICES {
            assert!(ONLINE_POLICIES.contains(&choice), "{choice}");
        }
        for policy in ONLINE_POLICIES {
            assert!(forebay_core::policy::NAMES.contains(policy), "{policy}");
        }
    }
}
