//! Removing a name whose object somebody has looked at: that object goes, and no other.
//!
//! Whoever looked at the name may have waited since, and others may have put something of theirs under it.
//! So the name is looked at once more, right before it is removed. To move it out of the way first and look
//! at it there would leave no moment at all, but needs room and rights in the private area, takes the one
//! lock that a file system has for renames between directories, and can leave what is of others there.
//!
//! Tests: `tests/removal.rs`.

use std::ffi::OsStr;

use rustix::io::Errno;

use crate::backing::{BackingStore, Dir};
use crate::dir_backing::DirBacking;
use crate::{Attributes, FileKind, Fingerprint, Result};

/// What a name must show to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// This version of something that is no directory, as far as inode, size and mtime tell.
    Version(Fingerprint),
    /// This inode, whatever is in it.
    Object(Fingerprint),
}

impl Known {
    /// Whether this is it.
    #[must_use]
    pub fn is(&self, found: &Attributes) -> bool {
        match self {
            Known::Version(version) => {
                found.kind != FileKind::Directory && found.fingerprint().same_content(version)
            }
            Known::Object(object) => found.same_inode(object),
        }
    }
}

/// What became of a name that was to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    /// It is gone.
    Done,
    /// It shows something else, which stays.
    Other,
}

impl DirBacking {
    fn look_before(&self, dir: &Dir, name: &OsStr) -> Result<Attributes> {
        self.look(dir, name)?.ok_or_else(|| self.err("remove", dir, name, Errno::NOENT))
    }

    pub(crate) fn remove_known(&self, dir: &Dir, name: &OsStr, known: &Known) -> Result<Removed> {
        if !known.is(&self.look_before(dir, name)?) {
            return Ok(Removed::Other);
        }
        self.unlink(dir, name).map(|()| Removed::Done)
    }

    pub(crate) fn remove_known_directory(
        &self,
        dir: &Dir,
        name: &OsStr,
        known: &Fingerprint,
    ) -> Result<Removed> {
        let found = self.look_before(dir, name)?;
        if found.kind != FileKind::Directory || !found.same_inode(known) {
            return Ok(Removed::Other);
        }
        self.rmdir(dir, name).map(|()| Removed::Done)
    }
}
