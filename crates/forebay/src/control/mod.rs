//! Control of a running daemon: what can be asked, how the questions travel, who may ask.
//!
//! [`Control`] is what a daemon implements; [`Server`] answers for it on a Unix socket, and
//! [`Client`] asks. Neither knows what a file system is.

mod address;
mod client;
mod cluster;
mod patterns;
mod server;
mod status;
mod wire;

pub(crate) use address::make_private_dir;
pub use address::{Address, record_of};
pub use client::Client;
pub use cluster::{
    AutoMigration, AutoMigrations, ClusterLook, ClusterNode, ClusterReply, ClusterRequest,
    ClusterServer, ClusterStatus, ClusterTerms, Forgotten, LostFile, NodeState, Safety, ServerLog,
    TaskHost,
};
pub use forebay_client::address::{mount_id, runtime_dir};
pub use patterns::{PatternRow, PatternTask, Patterns, SimilarTasks};
pub use server::{Current, OnUpgrade, Server, ServerLimits, UpgradeCall};
pub use status::{
    Backlog, BusyFile, BytesBySource, Conflict, Coverage, Dirty, DirtyFile, HintState, HintStatus,
    Location, LostChanges, Named, Opening, Outcome, Passthrough, Peer, PolicySnapshot, Progress,
    Recorded, Refusal, RefusedFile, RefusedStream, SetAsideWork, Status, Streams, StuckOperation,
    TierStatus, WirePath, WorkStatus,
};
pub use wire::{HintPart, PROTOCOL_VERSION, Reply, Request, Upgraded};

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The class of a failure, which decides the exit code of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operation failed.
    Failed,
    /// The mount point is in use.
    Busy,
    /// The one who asked went away or interrupted.
    Cancelled,
    /// The request makes no sense.
    Usage,
    /// The mount is gone.
    NotMounted,
    /// A deadline passed before everything was in the backing store.
    NotDrained,
    /// A privilege or a kernel feature is missing.
    Unsupported,
    /// State on a tier is damaged or of an unknown format.
    BadState,
    /// Another daemon holds the tier or the mount point.
    Locked,
}

/// A failure as it is told to the other side of the socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ControlError {
    /// Its class.
    pub kind: ErrorKind,
    /// What happened and what to do about it.
    pub message: String,
}

impl ControlError {
    /// An error of the given class.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// What came of a control request.
pub type ControlResult<T> = Result<T, ControlError>;

/// How a mount is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shutdown {
    /// Unmount if no file is open, else fail with [`ErrorKind::Busy`] and go on serving.
    IfIdle,
    /// Detach the mount even if files are open and end without waiting for them; dirty data
    /// stays on the tiers for the next mount.
    Detach,
}

/// What is called with each advance; its answer `false` asks the operation to stop soon.
pub type OnProgress<'a> = &'a mut dyn FnMut(Progress) -> bool;

/// What a daemon can be asked. Paths are relative to the mount point; the empty path is the root.
///
/// Methods block; the server calls them on a thread of their own. Operations on paths are
/// recursive and can be interrupted at any time without harm.
pub trait Control: Send + Sync {
    /// A snapshot of the mount. Must answer within a second whatever the backing store does.
    fn status(&self) -> Status;
    /// Where the bytes of each path are.
    fn locate(&self, paths: &[WirePath]) -> ControlResult<Vec<Location>>;
    /// Brings files into the tiers.
    fn warm(&self, paths: &[WirePath], progress: OnProgress<'_>) -> ControlResult<Outcome>;
    /// Removes clean copies from the tiers, after writing dirty ones back.
    fn evict(&self, paths: &[WirePath], progress: OnProgress<'_>) -> ControlResult<Outcome>;
    /// Forbids the eviction of files, and brings them in.
    fn pin(&self, paths: &[WirePath], progress: OnProgress<'_>) -> ControlResult<Outcome>;
    /// Allows the eviction of files again.
    fn unpin(&self, paths: &[WirePath], progress: OnProgress<'_>) -> ControlResult<Outcome>;
    /// Compares what is known with the backing store now. The outcome counts the files that were looked
    /// at, and the directories as skipped.
    fn refresh(&self, paths: &[WirePath], progress: OnProgress<'_>) -> ControlResult<Outcome>;
    /// Conflicts that nobody has resolved, oldest first.
    fn conflicts(&self) -> Vec<Conflict>;
    /// Forgets conflicts by either of their paths, and says how many they were.
    fn forget_conflicts(&self, paths: &[WirePath]) -> ControlResult<u64>;
    /// Writes dirty files and the backlog that concerns them to the backing store.
    fn sync(&self, paths: &[WirePath], progress: OnProgress<'_>) -> ControlResult<Outcome>;
    /// Takes a part of the reference sequence of a job. The outcome counts the paths that were taken
    /// and names those that were not.
    fn hint(&self, part: &HintPart, progress: OnProgress<'_>) -> ControlResult<Outcome>;
    /// Forgets the reference sequence of a job.
    fn withdraw(&self, job: &str) -> ControlResult<()>;
    /// Begins to record the opens of programs.
    fn trace_start(&self) -> ControlResult<()>;
    /// At most `most` of the opens that were recorded since the last call; with `stop` the recording
    /// ends when nothing is left.
    fn trace_take(&self, most: usize, stop: bool) -> ControlResult<Recorded>;
    /// Begins to record who accesses which pieces of which files.
    fn patterns_start(&self) -> ControlResult<()> {
        Err(ControlError::new(ErrorKind::Unsupported, "this mount records no access patterns"))
    }
    /// What was recorded so far.
    fn patterns(&self) -> ControlResult<Patterns> {
        Err(ControlError::new(ErrorKind::Unsupported, "this mount records no access patterns"))
    }
    /// Ends the recording and forgets what was recorded.
    fn patterns_stop(&self) -> ControlResult<()> {
        Err(ControlError::new(ErrorKind::Unsupported, "this mount records no access patterns"))
    }
    /// Writes everything dirty and the whole backlog to the backing store within the limit, or
    /// within the mount's own (`--drain-timeout`) if none is given. What could not be written is
    /// told in [`Outcome::remaining`].
    fn drain(&self, limit: Option<Duration>, progress: OnProgress<'_>) -> ControlResult<Outcome>;
    /// All metrics in the Prometheus text format.
    fn metrics(&self) -> String;
    /// Ends the mount; returns when the kernel has let go of it or says why it has not.
    fn shutdown(&self, how: Shutdown) -> ControlResult<()>;
    /// What concerns the cluster that the mount is part of.
    fn cluster(&self, request: &ClusterRequest) -> ControlResult<ClusterReply> {
        let _ = request;
        Err(ControlError::new(ErrorKind::Unsupported, "this mount is not part of a cluster"))
    }
    /// Changes what is logged, with the syntax of `--log-level`.
    fn set_log_level(&self, filter: &str) -> ControlResult<()> {
        crate::logging::set_filter(filter)
    }
}
