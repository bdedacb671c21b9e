//! The one error type of this crate.

use std::io;
use std::path::{Path, PathBuf};

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, StoreError>;

/// What went wrong with bytes on a tier or in the backing store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A system call failed.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// What was being done, as a verb ("open", "fsync").
        operation: &'static str,
        /// The file concerned, as far as known (a handle knows its path at opening time).
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another daemon works on this tier.
    #[error(
        "tier {} is in use by process {pid}: unmount the file system that uses it, or give this mount a tier directory of its own",
        path.display()
    )]
    Locked {
        /// The tier directory.
        path: PathBuf,
        /// The process that holds the lock; 0 when it left no number.
        pid: u32,
    },
    /// The directory is neither a tier nor empty.
    #[error(
        "{} holds files but is not a Forebay tier: name an empty or new directory",
        path.display()
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
    },
    /// A directory of Forebay's own that others can change.
    #[error("{} {why}", path.display())]
    Untrusted {
        /// The directory, or what is in it.
        path: PathBuf,
        /// Who can, and what to do.
        why: String,
    },
    /// The file system of a tier, or of the state, takes no changes.
    #[error(
        "{}: its file system is read-only, mostly after an error of its device (`dmesg` says which): unmount that file system, check it (`fsck`, `xfs_repair`), mount it writable, and run this again. What is on it stays as it is",
        path.display()
    )]
    ReadOnly {
        /// The directory.
        path: PathBuf,
    },
    /// The file system gives a file less room for extended attributes than a header takes.
    #[error(
        "{}: its file system has no room for extended attributes of {needed} bytes in a file (ext4 with blocks of 1 KiB has not): use one with blocks of 4 KiB (mkfs.ext4 -b 4096), XFS, Btrfs or tmpfs",
        path.display()
    )]
    SmallAttributes {
        /// The directory.
        path: PathBuf,
        /// The longest header.
        needed: usize,
    },
    /// The format on disk is newer than this program.
    #[error(
        "{} has format version {found}, this program knows versions up to {known}: use a newer Forebay, or empty the directory after `forebay sync` with the old one; if no newer one was there it is damaged, and `forebay fsck --repair` makes it usable again",
        path.display()
    )]
    Version {
        /// The file that carries the version.
        path: PathBuf,
        /// The version found.
        found: u32,
        /// The newest version known.
        known: u32,
    },
    /// Bytes on disk that do not decode.
    #[error("{}: damaged {what}; `forebay fsck --repair` makes it usable again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Which structure.
        what: &'static str,
    },
    /// The source of a copy ended before the range that was to be copied.
    #[error(
        "{} ended at byte {at} while bytes up to {wanted} were being copied: it was shortened by someone else; retry",
        path.display()
    )]
    Shrunk {
        /// The source.
        path: PathBuf,
        /// Where it ends now.
        at: u64,
        /// The end of the range asked for.
        wanted: u64,
    },
    /// The copy was cancelled by its caller.
    #[error("copy cancelled")]
    Cancelled,
}

/// Coarse classes of errors, for decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// No room: ENOSPC, EDQUOT.
    NoSpace,
    /// ENOENT, ENOTDIR, ENODATA.
    NotFound,
    /// EEXIST, ENOTEMPTY.
    Exists,
    /// The handle or version is out of date: ESTALE, or the source shrank.
    Stale,
    /// Not allowed: EACCES, EPERM, EROFS.
    Denied,
    /// The file system cannot do this: EOPNOTSUPP, ENOSYS.
    Unsupported,
    /// In use: EBUSY, EAGAIN, ETXTBSY, or a tier locked by another daemon.
    Busy,
    /// Too many files are open: EMFILE, ENFILE.
    Descriptors,
    /// The data on disk or the request do not make sense: EINVAL, foreign or damaged data.
    Invalid,
    /// The caller gave up.
    Cancelled,
    /// Everything else: EIO and its kin.
    Io,
}

impl StoreError {
    /// Wraps the error of a system call.
    pub fn io(
        operation: &'static str,
        path: impl AsRef<Path>,
        source: impl Into<io::Error>,
    ) -> Self {
        Self::Io { operation, path: path.as_ref().to_owned(), source: source.into() }
    }

    /// Makes an error out of an errno.
    pub fn errno_of(operation: &'static str, path: impl AsRef<Path>, errno: i32) -> Self {
        Self::io(operation, path, io::Error::from_raw_os_error(errno))
    }

    /// Of work in a directory of Forebay's own: that nothing can be changed there is its file system's trouble.
    #[must_use]
    pub fn or_read_only(self, dir: &Path) -> Self {
        match self.errno() {
            libc::EROFS => Self::ReadOnly { path: dir.to_owned() },
            _ => self,
        }
    }

    /// Of a read: what the device can't read is damaged, and mended as such.
    #[must_use]
    pub(crate) fn or_damaged(self, what: &'static str) -> Self {
        match self {
            Self::Io { path, source, .. } if source.raw_os_error() == Some(libc::EIO) => {
                Self::Damaged { path, what }
            }
            other => other,
        }
    }

    /// Whether the error passes by itself, and says nothing of the file: this process, or the machine, is
    /// short of something.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        use libc::{EAGAIN, EINTR, EMFILE, ENFILE, ENOBUFS, ENOMEM};
        [EMFILE, ENFILE, ENOMEM, EINTR, EAGAIN, ENOBUFS].contains(&self.errno())
    }

    /// Whether the error leaves it open what there is: neither that there is nothing, nor that it can't be
    /// read for ever.
    #[must_use]
    pub fn is_no_answer(&self) -> bool {
        use libc::{EACCES, ENODEV, ENOTCONN, EPERM, EROFS, ESTALE, ETIMEDOUT};
        let denied = [EACCES, EPERM, EROFS, ESTALE, ETIMEDOUT, ENOTCONN, ENODEV];
        let denied = denied.contains(&self.errno());
        matches!(self, Self::Io { .. }) && (denied || self.is_passing())
    }

    /// The errno to hand to a program.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            Self::Locked { .. } => libc::EBUSY,
            Self::Foreign { .. } | Self::Version { .. } => libc::EINVAL,
            Self::SmallAttributes { .. } => libc::EOPNOTSUPP,
            Self::Untrusted { .. } => libc::EPERM,
            Self::ReadOnly { .. } => libc::EROFS,
            Self::Damaged { .. } => libc::EIO,
            Self::Shrunk { .. } => libc::ESTALE,
            Self::Cancelled => libc::ECANCELED,
        }
    }

    /// The class of the error.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self.errno() {
            libc::ENOSPC | libc::EDQUOT => ErrorClass::NoSpace,
            libc::ENOENT | libc::ENOTDIR | libc::ENODATA => ErrorClass::NotFound,
            libc::EEXIST | libc::ENOTEMPTY => ErrorClass::Exists,
            libc::ESTALE => ErrorClass::Stale,
            libc::EACCES | libc::EPERM | libc::EROFS => ErrorClass::Denied,
            libc::EOPNOTSUPP | libc::ENOSYS => ErrorClass::Unsupported,
            libc::EBUSY | libc::EAGAIN | libc::ETXTBSY => ErrorClass::Busy,
            libc::EMFILE | libc::ENFILE => ErrorClass::Descriptors,
            libc::EINVAL => ErrorClass::Invalid,
            libc::ECANCELED => ErrorClass::Cancelled,
            _ if matches!(self, Self::Damaged { .. }) => ErrorClass::Invalid,
            _ => ErrorClass::Io,
        }
    }
}
