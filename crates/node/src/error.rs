//! What can go wrong in a node, and what each failure means to the caller.

use std::io;

use forebay_meta::Error as MetaError;
use forebay_store::ErrorClass;
use forebay_store::StoreError;
use rustix::io::Errno;

/// A failure of a node's operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// An ordinary refusal of the file system, as POSIX names it.
    #[error("{0}")]
    Posix(rustix::io::Errno),
    /// The namespace refused or failed.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// A tier or the backing store refused or failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The backing store did not answer within the time limit.
    #[error(
        "the backing store did not answer within {limit_s} s: check it, or raise --backing-timeout"
    )]
    BackingTimeout {
        /// The limit that passed, in seconds.
        limit_s: u64,
    },
    /// The node is shutting down.
    #[error("the mount is being taken down")]
    ShuttingDown,
    /// The operation has to wait, and can't: the waiting room of the worker pool is full.
    #[error("too many operations wait for the backing store: try again")]
    Busy,
    /// Work that must not be interrupted did not end within the time limit.
    #[error("{what} did not end within {limit_s} s: try again later, or give it more time")]
    NotAtRest {
        /// What goes on.
        what: String,
        /// The limit that passed, in seconds.
        limit_s: u64,
    },
    /// The configuration can't work.
    #[error("{0}")]
    Config(String),
    /// What is on disk does not go together, and something would be lost if it were used so.
    #[error("{0}")]
    BadState(String),
    /// A dirty file of which neither an object nor a spill file is there.
    #[error(
        "its bytes are gone: no tier has its object, and there is no spill file; the backing store has an older version at most. After `forebay umount --no-drain`, `forebay fsck --repair TIER...` brings it back if its object was set aside, `--accept-loss` gives it up"
    )]
    Lost,
    /// A dirty file of which a start could not look at what there is.
    #[error(
        "what there is of it could not be looked at when the mount started, for want of a right or of an answer of its device: nothing says that it is lost. See to that (the log has the reason), then `forebay umount --no-drain` and mount again"
    )]
    Unseen,
    /// To write an inode back has ended a daemon.
    #[error(
        "to write inode {ino} back has ended a daemon by a defect of Forebay: that is not tried again before the next mount or `forebay upgrade`; what of it is not in the backing store stays on its tier, and can be read and copied. Please report the defect, with the log"
    )]
    SetAside {
        /// The inode.
        ino: u64,
    },
    /// What changes made here build upon is not in the backing store any more.
    #[error(
        "parts of the file that were not brought in are gone: others have changed, replaced or removed the version in the backing store that what was written here builds upon. What was written is kept, and is written back beside theirs"
    )]
    RestGone,
    /// A node of the cluster lives, and what was asked for can be done without any only.
    #[error("node {node} on {address} uses the namespace: unmount all nodes first")]
    NodeLives {
        /// Its number.
        node: u16,
        /// Where it runs.
        address: String,
    },
}

/// The result of a node's operation.
pub type Result<T, E = NodeError> = std::result::Result<T, E>;

impl From<rustix::io::Errno> for NodeError {
    fn from(errno: rustix::io::Errno) -> Self {
        NodeError::Posix(errno)
    }
}

impl From<io::Error> for NodeError {
    fn from(error: io::Error) -> Self {
        NodeError::Posix(rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO))
    }
}

impl NodeError {
    /// Whether an error that a start meets says something of one file alone, and what: the others can be
    /// served.
    pub(crate) fn of_one_file(&self) -> Option<String> {
        match self {
            NodeError::Posix(_)
            | NodeError::Store(_)
            | NodeError::BackingTimeout { .. }
            | NodeError::Busy
            | NodeError::Lost
            | NodeError::Unseen
            | NodeError::RestGone => Some(self.to_string()),
            NodeError::Meta(error) if is_undecodable(error) => Some(self.to_string()),
            _ => None,
        }
    }
}

/// Whether there is a record that this program can't read: nothing is known of its inode, and all that
/// speaks of it stays.
pub(crate) fn is_undecodable(error: &MetaError) -> bool {
    error.is_undecodable()
}

/// Whether an error says that an inode is not there any more.
pub(crate) fn is_gone(error: &NodeError) -> bool {
    matches!(error.class(), Some(ErrorClass::NotFound | ErrorClass::Stale))
        || matches!(error, NodeError::Posix(Errno::STALE) | NodeError::Meta(MetaError::Stale(_)))
}
