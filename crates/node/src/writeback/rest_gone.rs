//! Parts of files that are gone for good: others have changed or removed the version in the backing
//! store that a file changed here builds upon, so that zeros stand for what was not brought in.
//!
//! Whoever comes to such a file next is told, once, by an error of its open, its sync or a read that
//! the daemon serves; people are told by a conflict. Nobody takes the zeros for what there was.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_meta::{Error as MetaError, Link};
use forebay_types::{Fingerprint, Ino};
use parking_lot::Mutex;

use crate::config::WritebackPolicy;
use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::residency::files::File;
use crate::writeback::Writeback;

/// Files of which that is remembered until somebody is told.
const MAX_FILES: usize = 1000;

/// Where it is noted for the daemon that comes after this one.
const SETTING: &str = "rest-gone.";

/// What the conflict of such a file says, if no other one does.
const WHY: &str = "parts that were not here are gone, and zeros in the file: others have changed or \
    removed the version that was written over";

/// Files of which parts are gone, and whom nobody has been told of yet.
#[derive(Default)]
pub(crate) struct Untold {
    /// How many there are, for who only passes by.
    count: AtomicUsize,
    inos: Mutex<HashSet<u64>>,
}

impl Untold {
    fn change(&self, change: impl FnOnce(&mut HashSet<u64>) -> bool) -> bool {
        let mut inos = self.inos.lock();
        let changed = change(&mut inos);
        self.count.store(inos.len(), Ordering::Release);
        changed
    }
}

fn setting(ino: Ino) -> String {
    format!("{SETTING}{:x}", ino.0)
}

impl Writeback {
    /// Zeros stand for parts of a file from now on.
    pub(crate) fn note_rest_gone(&self, ino: Ino) {
        let untold = &self.reconciler.rest_gone;
        if untold.change(|inos| inos.len() < MAX_FILES && inos.insert(ino.0))
            && let Err(error) = self.meta.set_setting(&setting(ino), &[])
        {
            tracing::debug!(%ino, %error, "told by this daemon only");
        }
    }

    /// People hear of it as of a conflict.
    pub(crate) fn remember_rest_gone(&self, parent: Ino, name: &[u8]) {
        self.remember(&Link::new(parent, name), None, WHY);
    }

    /// Fails, once, if parts of a file are gone.
    ///
    /// # Errors
    /// [`NodeError::RestGone`].
    pub(crate) fn tell_rest_gone(&self, context: &Context, ino: Ino) -> Result<()> {
        let untold = &self.reconciler.rest_gone;
        if untold.count.load(Ordering::Acquire) == 0 || !untold.inos.lock().contains(&ino.0) {
            return Ok(());
        }
        context.wait()?;
        if self.forget_rest_gone(ino) { Err(NodeError::RestGone) } else { Ok(()) }
    }

    /// A file is gone, or nothing is left of what it had; says whether parts of it were gone.
    pub(crate) fn forget_rest_gone(&self, ino: Ino) -> bool {
        let untold = &self.reconciler.rest_gone;
        let known =
            untold.count.load(Ordering::Acquire) > 0 && untold.change(|inos| inos.remove(&ino.0));
        if known && let Err(error) = self.meta.remove_setting(&setting(ino)) {
            tracing::debug!(%ino, %error, "will be told once more");
        }
        known
    }

    /// Takes over what an earlier daemon could not tell.
    pub(crate) fn take_up_rest_gone(&self) -> Result<()> {
        if !self.residency.peers.changes_namespace_alone() {
            return Ok(());
        }
        for left in self.meta.settings_like(SETTING)? {
            let Ok(ino) = u64::from_str_radix(&left, 16) else { continue };
            match self.meta.get(Ino(ino)) {
                Err(MetaError::Stale(_)) => self.meta.remove_setting(&setting(Ino(ino)))?,
                _ => {
                    self.reconciler.rest_gone.change(|inos| inos.insert(ino));
                }
            }
        }
        Ok(())
    }

    /// The rest of a file that was changed here was found to be gone: only its write-back gets it out of
    /// that state, and on a mount that writes back to make room alone that has to be asked for.
    pub(crate) fn found_rest_gone(&self, ino: Ino) -> NodeError {
        if self.config.writeback == WritebackPolicy::OnEviction
            && self.reconciler.wanted.lock().insert(ino.0)
        {
            self.reconcile_later(ino, Duration::ZERO);
        }
        NodeError::RestGone
    }
}

impl File {
    /// The version below was just seen to be the one that is known.
    pub(crate) fn saw_below(&self, version: Fingerprint) {
        *self.writeback.below.lock() = Some(version);
    }

    /// Whether a version below, of a file in conflict, is still as it was when it was last the known one.
    pub(crate) fn is_still_below(&self, version: &Fingerprint) -> bool {
        self.writeback.below.lock().is_some_and(|seen| seen.same_content(version))
    }

    /// A worker has given the version below other times.
    pub(crate) fn below_has_other_times(&self, before: &Fingerprint, after: Fingerprint) {
        let mut below = self.writeback.below.lock();
        if below.is_some_and(|seen| seen.same_content(before)) {
            *below = Some(after);
        }
    }
}
