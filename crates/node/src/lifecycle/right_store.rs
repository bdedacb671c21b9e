//! Whether a check sees the backing store that the tiers belong to. Where its file system is not mounted, or
//! another one is, nothing of what it has can be seen: files that are not there are not gone, and nothing
//! is decided by it.
//!
//! Tests: `tests/right_store.rs`.

use std::path::{Path, PathBuf};

use forebay_store::{DirBacking, StoreError, StoreIdentity};

use crate::error::{NodeError, Result};
use crate::lifecycle::members::{Found, Members};

/// What a check sees at the place of the backing store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It, as far as anybody can tell.
    Store(PathBuf),
    /// Nobody says where it is.
    Nowhere,
    /// Not it: why.
    Not(String),
}

impl Seen {
    /// Where it is, if it is seen.
    pub(crate) fn store(&self) -> Option<&Path> {
        match self {
            Seen::Store(path) => Some(path),
            Seen::Nowhere | Seen::Not(_) => None,
        }
    }

    /// For what can't be done without it.
    ///
    /// # Errors
    /// [`NodeError::BadState`] if something else is in its place.
    pub(crate) fn refuse(&self) -> Result<()> {
        match self {
            Seen::Not(why) => Err(NodeError::BadState(why.clone())),
            Seen::Store(_) | Seen::Nowhere => Ok(()),
        }
    }
}

/// Looks at what is at a path, and compares it with what the state and the tiers know of the store.
pub(crate) fn look(backing: Option<&Path>, state: &Path, tiers: &[&Path]) -> Result<Seen> {
    let mut known = Vec::new();
    for place in std::iter::once(state).chain(tiers.iter().copied()) {
        if let Found::Sound(members) = Members::read(place)? {
            known.push(members);
        }
    }
    let Some(path) = backing else { return Ok(Seen::Nowhere) };
    let shown = path.display();
    let away = |why: &str| {
        Seen::Not(format!(
            "{shown} can't be looked at ({why}): nothing that depends on the backing store was checked \
             or changed. Mount its file system there, or name it with --backing"
        ))
    };
    let found = match identity(path) {
        Ok(found) => found,
        Err(error) => return Ok(away(&error.to_string())),
    };
    let differs = |members: &Members| {
        let store = members.store.as_ref().map(StoreIdentity::from);
        // Also of tiers that lack nothing: what is not there is not gone.
        store.is_some_and(|store| !store.is_same(&found, false))
    };
    if !known.iter().any(differs) {
        return Ok(Seen::Store(path.to_owned()));
    }
    let names: Vec<_> = tiers.iter().map(|tier| tier.display().to_string()).collect();
    let of_state = match tiers.iter().any(|tier| tier.join("state") == state) {
        true => String::new(),
        false => format!("--state-dir {} ", state.display()),
    };
    Ok(Seen::Not(format!(
        "{shown} is not the backing store that these tiers belong to: nothing that depends on it was \
         checked or changed. Mount its file system there, or name the right one with --backing. If this \
         is it (it was moved or restored): `forebay fsck --accept-store --backing {shown} {of_state}{}`",
        names.join(" "),
    )))
}

/// Which store is there; of one whose mark can't be read the rest tells.
fn identity(path: &Path) -> Result<StoreIdentity> {
    let store = DirBacking::open(path, "reader")?;
    match store.identity() {
        Err(StoreError::Damaged { .. }) => Ok(store.unmarked_identity()?),
        found => Ok(found?),
    }
}
