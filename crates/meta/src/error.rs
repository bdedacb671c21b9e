//! What can go wrong, and what to do about it.

use crate::engine::EngineError;
use crate::types::Ino;

/// Result of a namespace operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a namespace operation failed. The first group are the answers POSIX expects.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// ENOENT: no such name.
    #[error("no such file or directory")]
    NotFound,
    /// ESTALE: no inode of this number (any more).
    #[error("inode {0} does not exist any more")]
    Stale(Ino),
    /// EEXIST: the name is taken.
    #[error("file exists")]
    Exists,
    /// ENOTDIR.
    #[error("not a directory")]
    NotDirectory,
    /// EISDIR.
    #[error("is a directory")]
    IsDirectory,
    /// ENOTEMPTY.
    #[error("directory not empty")]
    NotEmpty,
    /// EPERM: the operation is not allowed on this kind of inode.
    #[error("operation not permitted: {0}")]
    NotPermitted(&'static str),
    /// EINVAL.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// ENAMETOOLONG: a name is longer than 255 bytes.
    #[error("file name too long")]
    NameTooLong,
    /// EMLINK: the link count is at its limit.
    #[error("too many links")]
    TooManyLinks,
    /// ENODATA: no such extended attribute.
    #[error("no such extended attribute")]
    NoXattr,
    /// The extended attributes were not read from the backing store yet: read them, hand them to
    /// `xattr_replace_all` and ask again.
    #[error("extended attributes of inode {0} are not imported yet")]
    XattrsUnknown(Ino),
    /// The engine failed.
    #[error("metadata engine: {0}")]
    Engine(#[from] EngineError),
    /// A value can't be read.
    #[error("metadata of {key} is damaged ({reason}); run `forebay fsck --repair`")]
    Corrupt {
        /// The key, printable.
        key: String,
        /// What is wrong.
        reason: String,
    },
    /// Written by a newer version.
    #[error(
        "metadata of {what} has format version {found}, this program knows up to {known}; \
         use the newer Forebay that wrote it"
    )]
    NewerFormat {
        /// What has the version.
        what: String,
        /// The version found.
        found: u32,
        /// The newest version known.
        known: u32,
    },
    /// Nodes that do not know this version's format are mounted.
    #[error(
        "this program keeps the cluster's metadata in format {known}, which these nodes do not know: \
         {nodes}; upgrade or unmount them first (`forebay cluster forget NODE` for one that is gone for \
         good)"
    )]
    HeldBack {
        /// The format.
        known: u32,
        /// Their numbers and machines.
        nodes: String,
    },
    /// Others changed the same records again and again.
    #[error("gave up after {0} conflicts with concurrent changes; try again")]
    Conflict(u32),
    /// Another node has the right to change the inode in the backing store, or owns its bytes.
    #[error("inode {0} is in the hands of another node")]
    NotInHand(Ino),
    /// EIO, once: what was acknowledged before is lost.
    #[error(
        "other nodes took this one for dead: changes of inode {0} that were acknowledged before are \
         lost; `forebay status` names them"
    )]
    Lost(Ino),
    /// The engine lacks something the store needs.
    #[error("this metadata engine can't be used: {0}")]
    Unsupported(&'static str),
}

impl Error {
    /// Whether there is a value that this program can't read: what speaks of it is kept.
    #[must_use]
    pub fn is_undecodable(&self) -> bool {
        matches!(self, Error::Corrupt { .. } | Error::NewerFormat { .. })
    }
}
