//! Renames, and what they do with what has the name.
//!
//! # Invariants
//! - No version that was not known is replaced where names can be exchanged: what comes out of an
//!   exchange is looked at before it is removed, and put back if it is another one
//!   (`tests/replace.rs`).

use std::ffi::OsStr;

use rustix::fs::{self, AtFlags, RenameFlags};
use rustix::io::Errno;

use crate::attributes::Births;
use crate::backing::{Dir, RenameMode};
use crate::dir_backing::DirBacking;
use crate::failpoints::{answer_at, fail_at};
use crate::local::retry;
use crate::removal::{Known, Removed};
use crate::{Attributes, Fingerprint, Result};

/// An exchange that others undo again and again is given up.
const TRIES: usize = 16;

/// A name in a directory.
type At<'a> = (&'a Dir, &'a OsStr);

fn exchange(one: At<'_>, other: At<'_>) -> rustix::io::Result<()> {
    fs::renameat_with(one.0, one.1, other.0, other.1, RenameFlags::EXCHANGE)
}

/// What tells an object from all others: device and inode number.
type Inode = (u64, u64);

/// How what others have got its name back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutBack {
    /// Our object has its old name again.
    OwnCameOut,
    /// Others have removed our object from under the name.
    OwnIsGone,
    /// Others have replaced our object. What came out before has our old name.
    TheirsStays,
}

/// Renames unless the target exists; a check and a rename where the flag is unknown.
pub(crate) fn rename_no_replace(
    dir: &Dir,
    name: &OsStr,
    to_dir: &Dir,
    to_name: &OsStr,
) -> rustix::io::Result<()> {
    match fs::renameat_with(dir, name, to_dir, to_name, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            match Births::default().look(to_dir, to_name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(_) => Err(Errno::EXIST),
                Err(Errno::NOENT) => fs::renameat(dir, name, to_dir, to_name),
                Err(e) => Err(e),
            }
        }
        other => other,
    }
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

    /// What stands under a name, for who is about to replace or remove it; `None` if nothing does.
    pub(crate) fn look(&self, dir: &Dir, name: &OsStr) -> Result<Option<Attributes>> {
        self.checked(dir, name)?;
        match retry(|| self.births.look(dir, name, AtFlags::SYMLINK_NOFOLLOW)) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(self.err("look at", dir, name, e)),
        }
    }

    /// Whether a version stands under a name; `None` if nothing does.
    fn has_version(&self, at: At<'_>, version: &Fingerprint) -> Result<Option<bool>> {
        let found = self.look(at.0, at.1)?;
        Ok(found.map(|found| found.fingerprint().same_content(version)))
    }

    /// Replaces exactly one version. Between the exchange and the removal it stands under the old name:
    /// who dies there finds it by that.
    fn replace(&self, from: At<'_>, to: At<'_>, version: &Fingerprint) -> Result<()> {
        let err = |e: Errno| self.err("rename", from.0, from.1, e);
        let own = self.inode_at(from)?.ok_or_else(|| err(Errno::NOENT))?;
        for _ in 0..TRIES {
            fail_at!("store.replace.before_exchange", &self.path);
            let exchanged = answer_at!("store.replace.answer_of_exchange", exchange(from, to));
            match exchanged {
                Ok(()) => {}
                Err(Errno::NOENT) => {
                    return rename_no_replace(from.0, from.1, to.0, to.1).map_err(err);
                }
                // Whatever the answer says: what stands there now tells whether it was carried out.
                Err(_) if self.inode_at(to)? == Some(own) => {}
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
                Some(true) => return self.remove_replaced(from, to, own, version),
                // The system itself repeats what was answered with ESTALE, and an exchange that is carried
                // out twice is none.
                Some(false) if self.has_version(to, version)? == Some(true) => {}
                Some(false) => {
                    self.put_back(from, to, own)?;
                    return Err(err(Errno::EXIST));
                }
            }
        }
        Err(err(Errno::AGAIN))
    }

    /// Removes what came out of an exchange for `own`; where the store refuses that, each gets its name
    /// back, as who is told of an error believes. What others have put under the old name stays.
    fn remove_replaced(
        &self,
        from: At<'_>,
        to: At<'_>,
        own: Inode,
        version: &Fingerprint,
    ) -> Result<()> {
        let removed = self.remove_known(from.0, from.1, &Known::Version(*version));
        let removed = removed.map_err(|error| Errno::from_raw_os_error(error.errno()));
        match answer_at!("store.replace.answer_of_unlink", removed) {
            Ok(Removed::Done | Removed::Other) => Ok(()),
            // Whatever the answer says.
            Err(e) if self.has_version(from, version)? == Some(true) => {
                self.put_back(from, to, own)?;
                Err(self.err("remove what was replaced,", from.0, from.1, e))
            }
            Err(_) => Ok(()),
        }
    }

    /// The object under a name; `None` if there is none.
    fn inode_at(&self, at: At<'_>) -> Result<Option<Inode>> {
        Ok(self.look(at.0, at.1)?.map(|found| (found.dev, found.ino)))
    }

    /// What came out of an exchange for `own` is others' and gets its name back. If they have replaced
    /// `own` meanwhile, theirs stays, and what came out stays under the old name: it may be the only copy.
    pub(crate) fn put_back(&self, from: At<'_>, to: At<'_>, own: Inode) -> Result<PutBack> {
        fail_at!("store.replace.before_swap_back", &self.path);
        let err = |e: Errno| self.err("put back", to.0, to.1, e);
        // What was put under the name last. What else comes out of an exchange is newer.
        let mut put = own;
        for _ in 0..TRIES {
            let held = self.inode_at(from)?;
            let exchanged = exchange(from, to);
            // What was put there has been removed: what others have belongs there.
            if exchanged == Err(Errno::NOENT) {
                rename_no_replace(from.0, from.1, to.0, to.1).map_err(err)?;
                return Ok(PutBack::OwnIsGone);
            }
            let out = self.inode_at(from)?;
            if out == Some(own) {
                return Ok(PutBack::OwnCameOut);
            }
            if out == Some(put) {
                return Ok(PutBack::TheirsStays);
            }
            // Whatever the answer says: what stands here now tells whether it was carried out.
            match (out == held, exchanged) {
                (true, Err(e)) => return Err(err(e)),
                (true, Ok(())) => {}
                (false, _) => put = held.unwrap_or(put),
            }
        }
        Err(err(Errno::AGAIN))
    }
}
