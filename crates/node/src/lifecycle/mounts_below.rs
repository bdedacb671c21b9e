//! File systems of their own that are mounted below the backing store's root: while one of them is away,
//! what belongs there would be written to the place where it is not mounted.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use crate::config::NodeConfig;
use crate::error::{NodeError, Result};
use crate::lifecycle::members::{Found, Members, StoreHas, absolute, tier_names};
use crate::node::Node;

/// Checks that what was mounted below the backing store's root still is, if the tiers may have files
/// that belong there: they would be written to the place where it is not mounted, and be hidden by it
/// when it is.
pub(crate) fn check(config: &NodeConfig, mine: &[Members]) -> Result<()> {
    let path = absolute(&config.backing);
    let mut noted = mine
        .iter()
        .filter(|members| !members.drained && members.backing == path.as_os_str().as_bytes())
        .flat_map(|members| &members.mounts)
        .map(|below| path.join(OsStr::from_bytes(below)));
    let Some(missing) = noted.find(|point| !forebay_store::identity::is_mounted(point)) else {
        return Ok(());
    };
    let (missing, backing) = (missing.display(), config.backing.display());
    let state = match &config.state_dir {
        Some(dir) => format!("--state-dir {} ", dir.display()),
        None => String::new(),
    };
    Err(NodeError::BadState(format!(
        "{missing}, below the backing store, had a file system of its own, which is not mounted there; \
         the tiers may hold files that belong to it: mount it. If it is to be without: \
         `forebay fsck --accept-store --backing {backing} {state}{}`",
        tier_names(config),
    )))
}

/// The mounts below a backing store's root, as they are noted.
pub(crate) fn of(backing: &Path) -> Vec<Vec<u8>> {
    let found = forebay_store::identity::mounts_below(backing).unwrap_or_else(|error| {
        tracing::warn!(
            %error,
            "can't find out what is mounted below the backing store: a mount that is missing there \
             will not be noticed"
        );
        Vec::new()
    });
    found.into_iter().map(|below| below.into_os_string().into_vec()).collect()
}

impl Node {
    /// Notes what was mounted below the backing store's root since the last look.
    pub(crate) fn note_new_mounts(&self) -> Result<()> {
        let now = of(&self.config.backing);
        let new = match Members::read(&self.state_dir)? {
            Found::Sound(known) => now.iter().any(|below| !known.mounts.contains(below)),
            Found::Nothing | Found::Damaged => false,
        };
        if new { self.note_members(StoreHas::NotKnown) } else { Ok(()) }
    }
}
