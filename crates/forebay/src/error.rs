//! The one error type of the command line, and the exit code of each error.

use std::io;
use std::path::PathBuf;

use crate::control::{ControlError, ErrorKind};

/// What a run of `forebay` tells its caller; the table is also in `forebay help` and in
/// `docs/reference/exit-codes.md`, and a test keeps the three equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Everything asked for was done.
    Ok = 0,
    /// The operation failed.
    Failed = 1,
    /// Wrong command line, environment or configuration file; nothing was touched.
    Usage = 2,
    /// The path is not on a Forebay mount, or its daemon does not answer.
    NotMounted = 3,
    /// Not everything is in the backing store: a time limit passed, the daemon was dead, or the store
    /// can't have it.
    NotDrained = 4,
    /// A privilege or a kernel feature is missing.
    Unsupported = 5,
    /// The state on a tier is damaged or of an unknown format.
    BadState = 6,
    /// Another daemon uses the tier or the mount point, or a node the cluster to be checked.
    Locked = 7,
}

impl Exit {
    /// Every exit code with its documented meaning.
    pub const TABLE: [(Exit, &'static str); 8] = [
        (Exit::Ok, "everything asked for was done"),
        (Exit::Failed, "the operation failed"),
        (Exit::Usage, "wrong command line, environment or configuration; nothing was touched"),
        (Exit::NotMounted, "not a Forebay mount, or its daemon does not answer"),
        (
            Exit::NotDrained,
            "not everything is in the backing store: a time limit passed, the daemon was dead, or the store can't have it",
        ),
        (Exit::Unsupported, "a privilege or a kernel feature is missing"),
        (Exit::BadState, "the state on a tier is damaged or of an unknown format"),
        (
            Exit::Locked,
            "another daemon uses the tier or the mount point, or a node the cluster to be checked",
        ),
    ];

    /// The number given to the shell.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The exit code with this number; unknown numbers are failures.
    pub fn from_code(code: i32) -> Self {
        Self::TABLE
            .iter()
            .map(|(exit, _)| *exit)
            .find(|exit| i32::from(exit.code()) == code)
            .unwrap_or(Exit::Failed)
    }
}

/// Why a command could not be carried out. Messages say what happened and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting has a value that can't be used.
    #[error("{origin}: {message}")]
    Setting {
        /// Where the value came from: a flag, a variable, a file.
        origin: String,
        /// What is wrong and which values are right.
        message: String,
    },
    /// The command line is incomplete or contradicts itself.
    #[error("{0}")]
    Usage(String),
    /// One or more checks of the mount's directories failed.
    #[error("{}", .0.join("\n"))]
    Invalid(Vec<String>),
    /// A file named by the user could not be read.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The path is not on a Forebay mount.
    #[error("{}: not on a Forebay mount (see `findmnt -t fuse.forebay`)", .0.display())]
    NotMounted(PathBuf),
    /// There is a mount, but nobody answers for it.
    #[error(
        "{}: the daemon does not answer ({reason}); if it is dead, `forebay umount` removes the \
         mount and mounting again continues with the data on the tiers",
        mountpoint.display()
    )]
    NoDaemon {
        /// The mount point.
        mountpoint: PathBuf,
        /// What was tried and seen.
        reason: String,
    },
    /// There is a mount that somebody serves, whose control socket was not found.
    #[error(
        "{}: its daemon is alive, but its control socket is not in {}: set FOREBAY_RUNTIME_DIR or \
         XDG_RUNTIME_DIR as it was for `forebay mount`, or be the user who mounted it; nothing was \
         unmounted",
        mountpoint.display(), looked_in.display()
    )]
    NotFoundAlive {
        /// The mount point.
        mountpoint: PathBuf,
        /// Where sockets of this user are.
        looked_in: PathBuf,
    },
    /// The daemon's socket belongs to somebody else.
    #[error(
        "{}: only root and the user who mounted it may control this mount (socket {})",
        mountpoint.display(), socket.display()
    )]
    Denied {
        /// The mount point.
        mountpoint: PathBuf,
        /// The socket that refused.
        socket: PathBuf,
    },
    /// A time limit passed and not everything is in the backing store.
    #[error("{0}")]
    NotDrained(String),
    /// The kernel or the privileges of this process do not suffice.
    #[error("{0}")]
    Unsupported(String),
    /// Something else holds the mount point, tier or socket.
    #[error("{0}")]
    Locked(String),
    /// The state on a tier can't be used as it is.
    #[error("{0}")]
    BadState(String),
    /// Any other failure of an operation.
    #[error("{0}")]
    Failed(String),
    /// Peer sent something that is not the control protocol.
    #[error("control protocol: {0}")]
    Protocol(String),
    /// The daemon refused or failed.
    #[error("{0}")]
    Control(#[from] ControlError),
    /// A call to the system failed.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    /// Wraps a system error with what was being done, for use in `map_err`.
    pub fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Error::Io { doing, source }
    }

    /// The exit code that belongs to this error.
    pub fn exit(&self) -> Exit {
        match self {
            Error::Setting { .. } | Error::Usage(_) | Error::Invalid(_) | Error::File { .. } => {
                Exit::Usage
            }
            Error::NotMounted(_) | Error::NoDaemon { .. } | Error::NotFoundAlive { .. } => {
                Exit::NotMounted
            }
            Error::Denied { .. } | Error::Unsupported(_) => Exit::Unsupported,
            Error::NotDrained(_) => Exit::NotDrained,
            Error::Locked(_) => Exit::Locked,
            Error::BadState(_) => Exit::BadState,
            Error::Failed(_) | Error::Protocol(_) | Error::Io { .. } => Exit::Failed,
            Error::Control(error) => error.kind.exit(),
        }
    }
}

impl ErrorKind {
    /// The exit code that belongs to an error that a daemon or an engine reported.
    pub const fn exit(self) -> Exit {
        match self {
            ErrorKind::Failed | ErrorKind::Busy | ErrorKind::Cancelled => Exit::Failed,
            ErrorKind::Usage => Exit::Usage,
            ErrorKind::NotMounted => Exit::NotMounted,
            ErrorKind::NotDrained => Exit::NotDrained,
            ErrorKind::Unsupported => Exit::Unsupported,
            ErrorKind::BadState => Exit::BadState,
            ErrorKind::Locked => Exit::Locked,
        }
    }
}
