//! Renames, and what they do with what has the name.
//!
//! # Invariants
//! - No version that was not known is replaced where names can be exchanged: what comes out of an
//!   exchange is looked at before it is removed, and put back if it is another one
//!   (`tests/replace.rs`).

use std::ffi::OsStr;

use rustix::fs::{self, RenameFlags};
use rustix::io::Errno;

use crate::backing::{BackingStore, Dir, RenameMode};
use crate::dir_backing::{DirBacking, rename_no_replace};
use crate::failpoints::fail_at;
use crate::{Fingerprint, Result};

/// An exchange that others undo again and again is given up.
const TRIES: usize = 4;

/// A name in a directory.
type At<'a> = (&'a Dir, &'a OsStr);

fn exchange(one: At<'_>, other: At<'_>) -> rustix::io::Result<()> {
    fs::renameat_with(one.0, one.1, other.0, other.1, RenameFlags::EXCHANGE)
}

impl DirBacking {
    pub(crate) fn rename_as(&self, mode: RenameMode, from: At<'_>, to: At<'_>) -> Result<()> {
        let done = match mode {
            RenameMode::Replace => fs::renameat(from.0, from.1, to.0, to.1),
            RenameMode::Exchange => exchange(from, to),
            RenameMode::NoReplace => rename_no_replace(from.0, from.1, to.0, to.1),
            RenameMode::ReplaceVersion(version) => return self.replace(from, to, &version),
        };
        done.map_err(|e| self.err("rename", from.0, from.1, e))
    }

    /// Whether a version stands under a name; `None` if nothing does.
    fn has_version(&self, at: At<'_>, version: &Fingerprint) -> Result<Option<bool>> {
        let found = self.stat_if(at.0, at.1)?;
        Ok(found.map(|found| found.fingerprint().same_content(version)))
    }

    /// Replaces exactly one version. Between the exchange and the removal it stands under the old name:
    /// who dies there finds it by that.
    fn replace(&self, from: At<'_>, to: At<'_>, version: &Fingerprint) -> Result<()> {
        let err = |e: Errno| self.err("rename", from.0, from.1, e);
        for _ in 0..TRIES {
            fail_at!("store.replace.before_exchange", &self.path);
            match exchange(from, to) {
                Ok(()) => {}
                Err(Errno::NOENT) => {
                    return rename_no_replace(from.0, from.1, to.0, to.1).map_err(err);
                }
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                    if self.has_version(to, version)? == Some(false) {
                        return Err(err(Errno::EXIST));
                    }
                    return fs::renameat(from.0, from.1, to.0, to.1).map_err(err);
                }
                Err(e) => return Err(err(e)),
            }
            fail_at!("store.replace.after_exchange", &self.path);
            match self.has_version(from, version)? {
                // Others were quicker.
                None => return Ok(()),
                Some(true) => return self.unlink(from.0, from.1),
                // The system itself repeats what was answered with ESTALE, and an exchange that is carried
                // out twice is none.
                Some(false) if self.has_version(to, version)? == Some(true) => {}
                Some(false) => {
                    self.put_back(from, to)?;
                    return Err(err(Errno::EXIST));
                }
            }
        }
        Err(err(Errno::AGAIN))
    }

    /// What came out of an exchange is others' and gets its name back.
    fn put_back(&self, from: At<'_>, to: At<'_>) -> Result<()> {
        fail_at!("store.replace.before_swap_back", &self.path);
        let moved = self.stat_if(to.0, to.1)?;
        for _ in 0..TRIES {
            match exchange(from, to) {
                Ok(()) => {}
                // What was moved has been removed from under the name: what others have belongs there.
                Err(Errno::NOENT) => {
                    let back = rename_no_replace(from.0, from.1, to.0, to.1);
                    return back.map_err(|e| self.err("put back", to.0, to.1, e));
                }
                Err(e) => return Err(self.err("put back", to.0, to.1, e)),
            }
            let back = self.stat_if(from.0, from.1)?;
            let id = |found: Option<crate::Attributes>| found.map(|found| (found.dev, found.ino));
            if back.is_none() || id(back) == id(moved) {
                return Ok(());
            }
            // Someone renamed a newer file over it before it was back: that one belongs there.
        }
        Err(self.err("put back", to.0, to.1, Errno::AGAIN))
    }
}
