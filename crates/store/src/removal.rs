//! Removing a name whose object somebody has looked at: that object goes, and no other.
//!
//! Others may put something of theirs under the name after the look. So the name is moved to where
//! nobody else moves anything, into the private area, and looked at there. A directory that is to go is
//! looked at right before: what is in it would not be found meanwhile, and only an empty one can go.
//!
//! # Invariants
//! - What others have put under the name gets it back, or is kept where the name is taken by then
//!   (`tests/removal.rs`).
//! - Who dies between leaves a name in the private area that says which version was to be removed: the
//!   next clean-up removes that one and keeps any other (`tests/crash.rs`).

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use rustix::fs::{self, AtFlags};
use rustix::io::Errno;

use crate::backing::{BackingStore, Dir};
use crate::dir_backing::{DirBacking, rename_no_replace};
use crate::dir_tier::random;
use crate::failpoints::{answer_at, fail_at};
use crate::private::Area;
use crate::{Attributes, FileKind, Fingerprint, Result, Timestamp};

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

    fn fingerprint(&self) -> &Fingerprint {
        match self {
            Known::Version(print) | Known::Object(print) => print,
        }
    }
}

/// What became of a name that was to be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removed {
    /// It is gone.
    Done,
    /// It shows something else, which stays.
    Other,
    /// It showed something else, and by now it shows yet another object: that one is kept here.
    Kept(PathBuf),
}

/// What begins the name of what is on its way out.
const LEAVING: &str = "r";

/// The name in the private area of what is about to be removed.
fn leaving_name(owner: &str, known: &Fingerprint) -> Result<OsString> {
    let Fingerprint { ino, size, mtime, .. } = known;
    let (seconds, nanos) = (mtime.sec as u64, mtime.nsec);
    let random = u64::from_le_bytes(random()?);
    let name = format!("{LEAVING}.{owner}.{random:x}.{ino:x}.{size:x}.{seconds:x}.{nanos:x}");
    Ok(name.into())
}

/// Whether a name in the private area is of what was about to be removed, and this is it.
pub(crate) fn is_leaving(name: &OsStr, found: &Attributes) -> Option<bool> {
    let mut parts = name.to_str()?.split('.');
    if parts.next()? != LEAVING {
        return None;
    }
    let mut number = parts.skip(2).map(|part| u64::from_str_radix(part, 16).ok());
    let mut next = || number.next().flatten();
    let (ino, size) = (next()?, next()?);
    let mtime = Timestamp::new(next()? as i64, u32::try_from(next()?).ok()?);
    let known = Fingerprint { ino, size, mtime, ..Fingerprint::default() };
    Some(Known::Version(known).is(found))
}

impl DirBacking {
    pub(crate) fn remove_known(&self, dir: &Dir, name: &OsStr, known: &Known) -> Result<Removed> {
        let leaving = leaving_name(&self.owner, known.fingerprint())?;
        let moved = match self.own_dir() {
            // Not made again: that it is gone says something.
            Some(own) => self
                .move_out((dir, name), (&own, &leaving))
                .map(|moved| moved.then_some(own))
                .map_err(|e| self.or_shut_out(e))?,
            None => self.in_area(Area::Tmp, |tmp| {
                let moved = self.move_out((dir, name), (tmp, &leaving))?;
                Ok(moved.then(|| tmp.clone()))
            })?,
        };
        let Some(place) = moved else { return self.remove_in_place(dir, name, known) };
        fail_at!("store.removal.after_move", &self.path);
        let later = || self.strays.add(&place, leaving.clone());
        let found = self.stat(&place, &leaving).inspect_err(|_| later())?;
        if known.is(&found) {
            let removed = answer_at!(
                "store.removal.answer_of_unlink",
                fs::unlinkat(&place, &leaving, AtFlags::empty())
            );
            // The name is gone in any case; and whoever shuts this node out removes it, too.
            if removed.is_err_and(|e| e != Errno::NOENT) {
                later();
            }
            return Ok(Removed::Done);
        }
        fail_at!("store.removal.before_back", &self.path);
        match rename_no_replace(&place, &leaving, dir, name) {
            Ok(()) => Ok(Removed::Other),
            // The name is taken, or its directory is gone.
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOENT | Errno::STALE) => {
                let first = OsString::from(format!("of-others-{:x}", found.ino));
                let kept = self.move_aside(&place, &leaving, first).inspect_err(|_| later())?;
                Ok(kept.map_or(Removed::Other, Removed::Kept))
            }
            Err(e) => {
                later();
                Err(self.err("give back", dir, name, e))
            }
        }
    }

    /// Moves a name out of the way; false if it can't be moved from there: it is on another mount, or a
    /// mount point, or this user may remove it at most.
    fn move_out(&self, from: (&Dir, &OsStr), to: (&Dir, &OsStr)) -> Result<bool> {
        let moved =
            answer_at!("store.removal.answer_of_move", fs::renameat(from.0, from.1, to.0, to.1));
        match moved {
            Ok(()) => Ok(true),
            Err(Errno::XDEV | Errno::BUSY | Errno::ACCESS | Errno::PERM) => Ok(false),
            // Whatever the answer says.
            Err(_) if self.stat_if(to.0, to.1)?.is_some() => Ok(true),
            Err(e) => Err(self.err("remove", from.0, from.1, e)),
        }
    }

    /// A look and then the removal, with nothing between the two.
    fn remove_in_place(&self, dir: &Dir, name: &OsStr, known: &Known) -> Result<Removed> {
        if !known.is(&self.stat(dir, name)?) {
            return Ok(Removed::Other);
        }
        fs::unlinkat(dir, name, AtFlags::empty()).map_err(|e| self.err("remove", dir, name, e))?;
        Ok(Removed::Done)
    }

    pub(crate) fn remove_known_directory(
        &self,
        dir: &Dir,
        name: &OsStr,
        known: &Fingerprint,
    ) -> Result<Removed> {
        let found = self.stat(dir, name)?;
        if found.kind != FileKind::Directory || !found.same_inode(known) {
            return Ok(Removed::Other);
        }
        if let Some(own) = self.own_dir() {
            return self.rmdir_by_own(&own, (dir, name), Some(known));
        }
        fs::unlinkat(dir, name, AtFlags::REMOVEDIR)
            .map_err(|e| self.err("remove directory", dir, name, e))?;
        Ok(Removed::Done)
    }
}
