//! The seam between the command line and the file system: what a node must offer to be mounted
//! and checked. The binary passes one [`Engine`] to [`crate::run`].

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::config::{MountConfig, TierConfig};
use crate::control::{Control, ControlResult, OnProgress};

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
    fn mount(&self, config: &MountConfig) -> ControlResult<Box<dyn Mounted>>;

    /// Checks the state on tiers that no daemon uses.
    fn fsck(&self, request: &FsckRequest, progress: OnProgress<'_>) -> ControlResult<FsckReport>;

    /// Names of the fail points that this build has, for tests.
    fn fail_points(&self) -> Vec<&'static str> {
        Vec::new()
    }
}

/// A mount that is being served.
pub trait Mounted: Send {
    /// The handle through which it is controlled, also from other threads.
    fn control(&self) -> Arc<dyn Control>;

    /// Blocks until the kernel has let go of the mount, by [`Control::shutdown`] or by
    /// somebody's umount(8); then stops all workers and leaves the state ready for the next
    /// mount. Returns an error if the state could not be left so.
    fn wait(self: Box<Self>) -> ControlResult<()>;
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
    /// Objects that the next mount removes by itself: what a daemon that was killed left.
    pub leftovers: u64,
    /// Some of the problems, in words.
    pub details: Vec<String>,
}
