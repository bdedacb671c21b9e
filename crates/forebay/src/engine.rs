//! The seam between the command line and the file system: what a node must offer to be mounted
//! and checked. The binary passes one [`Engine`] to [`crate::run`].

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_core::cluster::redundancy::Redundancy;
use serde::{Deserialize, Serialize};

use crate::config::{MountConfig, TierConfig};
use crate::control::{
    ClusterLook, ClusterTerms, Control, ControlError, ControlResult, ErrorKind, OnProgress,
    WirePath,
};

/// Something that can serve a mount.
pub trait Engine: Sync {
    /// Names of the replacement policies that it offers, the default first.
    fn policies(&self) -> &[&str];

    /// Checks that the tiers' directories can be used, without touching them.
    fn check_tiers(&self, config: &MountConfig) -> ControlResult<()> {
        let _ = config;
        Ok(())
    }

    /// Takes the tiers, recovers what an earlier daemon left and mounts; returns when programs
    /// can use the mount. Errors of kind `Locked`, `BadState` and `Unsupported` become exit codes.
    ///
    /// With a `keeper`, the mount can be [revived](Engine::revive) if this process dies.
    fn mount(
        &self,
        config: &MountConfig,
        keeper: Option<Keeper<'_>>,
    ) -> ControlResult<Arc<dyn Mounted>>;

    /// The newest version of the state that this engine takes over; 0 if it takes over none.
    fn state_version(&self) -> u32 {
        0
    }

    /// Goes on with a mount that was given away ([`Mounted::give_away`]), by another process or by
    /// this one. Takes the tiers; they are free again if this fails.
    fn adopt(
        &self,
        config: &MountConfig,
        handed: &HandOver,
        keeper: Option<Keeper<'_>>,
    ) -> ControlResult<Arc<dyn Mounted>> {
        let _ = (config, handed, keeper);
        Err(cannot_hand_over())
    }

    /// As [`Engine::adopt`], after another daemon has adopted the mount and failed. Believes nothing that
    /// was said of the tiers: it may have worked on them.
    fn take_back(
        &self,
        config: &MountConfig,
        handed: &HandOver,
        keeper: Option<Keeper<'_>>,
    ) -> ControlResult<Arc<dyn Mounted>> {
        let _ = (config, handed, keeper);
        Err(cannot_hand_over())
    }

    /// Goes on with a mount whose daemon has died, from what it had left with the keeper.
    fn revive(
        &self,
        config: &MountConfig,
        crash_state: CrashState,
        keeper: Keeper<'_>,
    ) -> ControlResult<Arc<dyn Mounted>> {
        let _ = (config, crash_state, keeper);
        Err(cannot_hand_over())
    }

    /// Checks the state on tiers that no daemon uses.
    fn fsck(&self, request: &FsckRequest, progress: OnProgress<'_>) -> ControlResult<FsckReport>;

    /// Stores what the nodes of a cluster agree on, on its metadata servers at an address as `--cluster`
    /// takes it.
    fn set_up_cluster(&self, address: &str, new: &ClusterSetUp) -> ControlResult<ClusterTerms> {
        let _ = (address, new);
        Err(no_clusters())
    }

    /// How a cluster is, seen from outside.
    fn look_at_cluster(&self, address: &str) -> ControlResult<ClusterLook> {
        let _ = address;
        Err(no_clusters())
    }

    /// This process dies of every panic from now on. Returns who is to hear of a panic first: he notes
    /// what the thread was at, so that the next daemon does not try it again, and says whether that is
    /// a request, whose number the engine notes before it ends the process itself.
    fn die_of_panics(&self) -> fn() -> bool {
        || false
    }

    /// Names of the fail points that this build has, for tests.
    fn fail_points(&self) -> Vec<&'static str> {
        Vec::new()
    }
}

/// A mount that is being served.
pub trait Mounted: Send + Sync {
    /// The handle through which it is controlled, also from other threads.
    fn control(&self) -> Arc<dyn Control>;

    /// Blocks until the kernel has let go of the mount, by [`Control::shutdown`] or by
    /// somebody's umount(8), or until it was given away.
    fn wait(&self) -> Ended;

    /// After the end: stops all workers and leaves the state ready for the next mount. Returns an
    /// error if the state could not be left so.
    fn finish(&self) -> ControlResult<()>;

    /// The version of the state that is handed on: what a successor must be able to take over.
    fn state_version(&self) -> u32 {
        0
    }

    /// Comes to rest and gives the live mount away: requests of programs wait until somebody has
    /// adopted it, and the tiers are free. If it does not come to rest within the limit, or can't
    /// be given away for another reason, it says so and serves on.
    fn give_away(&self, limit: Duration) -> ControlResult<HandOver> {
        let _ = limit;
        Err(cannot_hand_over())
    }

    /// After it was given away and adopted: does what could not be done while requests waited.
    fn after_hand_over(&self, limit: Duration) {
        let _ = limit;
    }
}

fn cannot_hand_over() -> ControlError {
    ControlError::new(ErrorKind::Unsupported, "this mount can't be handed over")
}

fn no_clusters() -> ControlError {
    ControlError::new(ErrorKind::Unsupported, "this build knows no clusters")
}

/// What the nodes of a cluster are to agree on; what is `None` stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterSetUp {
    /// Replicas of a metadata server that must have a change before it counts.
    pub replicas: Option<u32>,
    /// What other nodes keep of what a node writes.
    pub redundancy: Option<Redundancy>,
    /// The file with the secret of the nodes.
    pub secret: Option<PathBuf>,
}

/// How the service of a mount ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The file system is gone.
    Unmounted,
    /// Somebody else serves it.
    GivenAway,
}

/// Takes what must outlive the daemon: the connection to the kernel, a journal of what it must not
/// forget, and what holds the requests if they come by io_uring. It returns when all are safe.
pub type Keeper<'a> =
    &'a dyn Fn(BorrowedFd<'_>, BorrowedFd<'_>, Option<BorrowedFd<'_>>) -> std::io::Result<()>;

/// What a daemon that died had left with the keeper.
#[derive(Debug)]
pub struct CrashState {
    /// The connection to the kernel.
    pub device: OwnedFd,
    /// What it must not forget.
    pub journal: OwnedFd,
    /// What holds the requests, if they come by io_uring.
    pub rings: Option<OwnedFd>,
}

/// A live mount on its way from one daemon to the next.
#[derive(Debug)]
pub struct HandOver {
    /// The connection to the kernel. The mount lives as long as any copy of it is open.
    pub device: OwnedFd,
    /// What holds the requests, if they come by io_uring.
    pub rings: Option<OwnedFd>,
    /// What else the successor must know, in the form of [`Mounted::state_version`].
    pub state: Vec<u8>,
    /// How many files are open.
    pub open_files: usize,
    /// Since when requests have been waiting.
    pub since: Instant,
}

/// What to check.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FsckRequest {
    /// The tiers, fastest first; a size of zero means the recorded one.
    pub tiers: Vec<TierConfig>,
    /// The backing store to compare with, if given.
    pub backing: Option<PathBuf>,
    /// Where the state is, if not in the first tier.
    pub state_dir: Option<PathBuf>,
    /// Throw the index away and build it anew from what the tiers' files say about themselves.
    pub rebuild: bool,
    /// Repair what can be repaired without losing data.
    pub repair: bool,
    /// Repair, and give up what is lost: tiers that are not given, and what was only there.
    pub accept_loss: bool,
    /// In place of a check: have the tiers belong to the backing store that is given.
    pub accept_store: bool,
    /// In place of tiers: the address of a cluster's metadata servers, and how many replicas of each
    /// must have a repair.
    pub cluster: Option<(String, u32)>,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FsckReport {
    /// Objects that were looked at.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that are not yet in the backing store.
    pub dirty: u64,
    /// Number of problems found.
    pub problems: u64,
    /// Number of problems repaired.
    pub repaired: u64,
    /// Of the namespace of a cluster: inodes that were looked at.
    pub inodes: u64,
    /// Their names.
    pub names: u64,
    /// Objects that the next mount removes by itself: copies of older versions, and what was not
    /// finished when the daemon ended.
    pub leftovers: u64,
    /// Whether something else was in the place of the backing store: then nothing can be repaired.
    pub other_store: bool,
    /// Some of the problems, in words.
    pub details: Vec<String>,
    /// What was set aside for somebody to look at.
    pub set_aside: Vec<WirePath>,
}
