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
    RoundTrips, Times, Unlinked, Vanished, Violation, XattrFlags, XattrSizes, Xattrs, members_of,
    node_statuses_of, settings_of,
};
pub use types::{
    Attr, Backing, Coded, Copies, FileKind, Fingerprint, Incarnation, Ino, Link, NameIn, Record,
    Seq, Timestamp, XattrState,
};
