//! The namespace: one metadata store above a narrow engine.
//!
//! [`MetaStore`] holds the tree that users see. The backing store (plain files on the slow store)
//! lags behind it. Every inode [`Record`] says where the inode stands logically ([`Record::links`],
//! [`Record::attr`]) *and* where it stands now in the backing store ([`Record::backing`]), so no
//! ordered log of operations is needed: the **backlog** is the set of records whose backing state
//! differs, ordered by the first change that is not reconciled yet. It coalesces by construction:
//! a file created and removed before its turn costs the backing store nothing.
//!
//! Below the store lies an [`Engine`]: keys in partitions, changed by mini-transactions
//! (Aguilera et al., *Sinfonia*, SOSP 2007). [`Embedded`] keeps them on a local disk,
//! [`Memory`] in memory for tests.
//!
//! - `types.rs` has the record; `keys.rs` and `codec.rs` say how it is stored; `links.rs` has the
//!   names of an inode.
//! - `store/` has the operations. `store/draft.rs` derives all other keys from the difference of a
//!   record before and after, `store/cached.rs` believes what is cached as long as the engine's
//!   stamps say so, `store/split.rs` spreads large directories, `store/check.rs` checks every rule.
//!   Nodes of a cluster agree by `members.rs`, `ownership.rs`, `recalls.rs`, `locks.rs` and
//!   `node_status.rs`.
//! - `engine/` has the trait and its engines: `embedded.rs` (a local disk), `redis/` (servers),
//!   `memory.rs` (tests). `engine/leased/` keeps partitions in memory in which this node alone
//!   works; `engine/spanning.rs` commits over several partitions. `clock.rs` counts while the
//!   machine sleeps; promises for a time are believed by it.
//!
//! # Locks
//! The store locks the inodes that an operation changes by 256 striped locks, in the order of
//! stripes. A move of a directory to another parent holds `tree` as well, so that ancestry stays
//! what was checked. Caches change only under the exclusive stripe, after the commit. The embedded
//! engine belongs to one process, so what was read under a stripe is not compared again at the
//! commit; debug builds do compare, and panic at a difference: it would be an operation that locks
//! too little. Between processes that share a cluster nothing is locked: transactions compare.
//!
//! # Invariants
//! - Every operation does what a plain tree would do (`tests/model.rs`), also on an engine of
//!   partitions.
//! - A mini-transaction takes effect as a whole or not at all, with any number of threads and
//!   across a kill (`tests/engines.rs`, `tests/crash.rs`). So does a transaction over partitions,
//!   for every observer, whenever a process dies (`tests/steps.rs`).
//! - A warm operation costs at most one round trip, also one that finds nothing where nobody else
//!   changes what the engine keeps (`tests/namespace.rs`). What is done to a file of a namespace on
//!   servers takes one, too (`tests/redis.rs`).
//! - What an operation on a name costs does not depend on how many names the file has
//!   (`tests/many_names.rs`, `links.rs`).
//! - Several processes on one namespace keep it sound, and each sees what the others do. A cluster
//!   of servers gives no wrong answer, whatever becomes of its servers, and executes nothing twice
//!   (`tests/redis.rs`).
//! - What has no record has no entries: nothing is imported into a removed directory
//!   (`tests/namespace.rs`).
//! - What was created and removed before its turn leaves nothing to be done (`tests/namespace.rs`).
#![forbid(unsafe_code)]

mod clock;
mod codec;
mod engine;
mod error;
mod keys;
mod links;
mod store;
mod types;

pub use clock::BootInstant;
pub use engine::{
    Compare, Embedded, EmbeddedOptions, Engine, EngineError, Expect, Key, LeaseObserver,
    LeaseOptions, Leased, LossReport, Losses, Memory, MiniTransaction, Outcome, Page, Redis,
    RedisOptions, ServerLog, ServerReport, Spanning, Stamp, Teller, Tenure, Write, look_at_servers,
};
pub use error::{Error, Result};
pub use forebay_core::cluster::lease::Terms as LeaseTerms;
pub use links::Links;
pub use store::{
    Accessed, Answer, BytesHere, ChangeRight, CopiesMade, Counts, Entry, EntryPlus, Found,
    LeaveOrder, Member, MetaStore, Moment, NewInode, NodeName, NodeStatus, Options, Owned,
    Ownership, Queue, RecallAim, RecallRequest, Refreshed, RenameFlags, Renamed, Report,
    RoundTrips, SPILL_OF_REMOVED, Times, Unlinked, Vanished, Violation, XattrFlags, XattrSizes,
    Xattrs, members_of, node_statuses_of, settings_of, spill_of_removed,
};
pub use types::{
    Attr, Backing, Coded, Copies, FileKind, Fingerprint, Incarnation, Ino, Link, NameIn, Record,
    Seq, Timestamp, XattrState,
};
