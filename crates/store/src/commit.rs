//! Publishing a temporary under its name.
//!
//! # Invariants
//! - An error is no proof that nothing happened: after a failed exchange or rename what stands
//!   there is looked at, by its inode (`crates/node/tests/past_the_tier_faults.rs`,
//!   `crates/node/tests/misbehaving_store.rs`).
//! - No version that was not known is replaced: both are kept (`tests/commit.rs`).

use std::ffi::OsStr;

use rustix::fs::{self, AtFlags, RenameFlags};
use rustix::io::Errno;

use crate::backing::{BackingStore, Commit, Dir, Expect, SetAttributes, Temporary};
use crate::copy::{Cancel, Limits, Priority, copy_range};
use crate::dir_backing::DirBacking;
use crate::failpoints::{answer_at, fail_at};
use crate::private::{TempPath, swap_name};
use crate::rename::{PutBack, rename_no_replace};
use crate::{Attributes, FileKind, Fingerprint, Result, StoreError};

/// How one attempt to publish ended.
enum Attempt {
    Published,
    Conflict(Option<Attributes>),
    /// Another mount lies below this directory: the temporary must be made there.
    OtherMount,
}

/// An exchange that is undone again and again is given up.
const SWAP_TRIES: usize = 4;

impl DirBacking {
    pub(crate) fn publish(
        &self,
        temporary: &mut Temporary,
        dir: &Dir,
        name: &OsStr,
        expect: Expect,
    ) -> Result<Commit> {
        if temporary.place.published {
            return Err(self.err("publish again", dir, name, Errno::STALE));
        }
        if temporary.place.spill {
            self.spill_to_own(temporary).map_err(|e| self.or_shut_out(e))?;
        }
        let done = self.publish_from_there(temporary, dir, name, expect);
        let done = done.map_err(|e| self.or_shut_out(e));
        if temporary.place.spill && !matches!(done, Ok(Commit::Done(_))) {
            let back = self.spill_from_own(temporary).map_err(|e| self.or_shut_out(e));
            return back.and(done);
        }
        done
    }

    fn publish_from_there(
        &self,
        temporary: &mut Temporary,
        dir: &Dir,
        name: &OsStr,
        expect: Expect,
    ) -> Result<Commit> {
        fail_at!("store.commit.before_sync", &self.path);
        if !temporary.sealed {
            temporary.file.sync(false)?;
        }
        fail_at!("store.commit.before_rename", &self.path);
        let mut before = temporary.file.stat()?.fingerprint();
        let mut attempt = self.attempt(temporary, dir, name, expect)?;
        if matches!(attempt, Attempt::OtherMount) {
            // The copy takes its place; a spill file stays where it is looked for.
            self.spill_from_own(temporary)?;
            fail_at!("store.commit.before_copy_beside", &self.path);
            self.move_beside(temporary, dir)?;
            before = temporary.file.stat()?.fingerprint();
            attempt = self.attempt(temporary, dir, name, expect)?;
        }
        match attempt {
            Attempt::Published => {}
            Attempt::Conflict(found) => return Ok(Commit::Conflict(found)),
            Attempt::OtherMount => return Err(self.err("publish", dir, name, Errno::XDEV)),
        }
        temporary.place.published = true;
        fail_at!("store.commit.after_rename", &self.path);
        // Whoever may write in that directory could have put a file of his own under the
        // temporary's name, whose bytes must not count as what was written.
        if temporary.place.beside && !self.stands_at(dir, name, &temporary.file.stat()?)? {
            return Err(self.err("find what was published as", dir, name, Errno::STALE));
        }
        // The rename has changed the ctime. Size and time are those from before it: should someone
        // have written since, the next look at the file shows the difference.
        let after = temporary.file.stat()?.fingerprint();
        Ok(Commit::Done(Fingerprint { ctime: after.ctime, ..before }))
    }

    fn attempt(
        &self,
        temporary: &mut Temporary,
        dir: &Dir,
        name: &OsStr,
        expect: Expect,
    ) -> Result<Attempt> {
        let place = &temporary.place;
        let done = match expect {
            Expect::Version(version) => return self.swap(temporary, dir, name, &version),
            Expect::Absent => rename_no_replace(&place.dir, &place.name, dir, name),
            Expect::Any => fs::renameat(&place.dir, &place.name, dir, name),
        };
        match done {
            Ok(()) => Ok(Attempt::Published),
            Err(Errno::XDEV) => Ok(Attempt::OtherMount),
            Err(Errno::EXIST) if expect == Expect::Absent => {
                Ok(Attempt::Conflict(self.look(dir, name)?))
            }
            Err(e) => Err(self.err("publish", dir, name, e)),
        }
    }

    /// Replaces exactly one version.
    fn swap(
        &self,
        temporary: &mut Temporary,
        dir: &Dir,
        name: &OsStr,
        version: &Fingerprint,
    ) -> Result<Attempt> {
        let found = match self.look(dir, name)? {
            Some(found) if found.kind == FileKind::Regular && found.fingerprint() == *version => {
                found
            }
            other => return Ok(Attempt::Conflict(other)),
        };
        let own = temporary.file.stat()?;
        let quiet_name = temporary.place.name.clone();
        let swap_name = swap_name(&temporary.place, &self.owner, own.ino, version);
        self.rename_place(temporary, &swap_name)?;
        fail_at!("store.commit.before_exchange", &self.path);
        let place = &temporary.place;
        let flags = RenameFlags::EXCHANGE;
        let exchanged = answer_at!(
            "store.commit.answer_of_exchange",
            fs::renameat_with(&place.dir, &place.name, dir, name, flags)
        );
        let e = match exchanged {
            Ok(()) => None,
            // Whatever the answer says: what stands here now tells whether it was carried out.
            Err(e) => match self.stands_at(&place.dir, &place.name, &own) {
                Ok(true) => Some(e),
                Ok(false) => None,
                Err(_) => {
                    // What stands here may be anybody's: neither a drop may remove it nor a retry
                    // take it for ours.
                    temporary.place.published = true;
                    self.leave_swapped(&temporary.place, &temporary.place.name);
                    return Err(self.err("publish", dir, name, e));
                }
            },
        };
        match e {
            None => {
                // From here the temporary's name is a foreign file's: no drop may remove it.
                temporary.place.published = true;
                self.after_swap(temporary, dir, name, &found, own, &quiet_name)
            }
            Some(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                let renamed = fs::renameat(&place.dir, &place.name, dir, name);
                if let Err(e) = renamed
                    && !self.stands_at(dir, name, &own).unwrap_or(false)
                {
                    drop(self.rename_place(temporary, &quiet_name));
                    return Err(self.err("publish", dir, name, e));
                }
                Ok(Attempt::Published)
            }
            Some(e) => {
                self.rename_place(temporary, &quiet_name)?;
                match e {
                    Errno::XDEV => Ok(Attempt::OtherMount),
                    Errno::NOENT => Ok(Attempt::Conflict(None)),
                    e => Err(self.err("publish", dir, name, e)),
                }
            }
        }
    }

    /// Whether a file of ours stands under a name.
    fn stands_at(&self, dir: &Dir, name: &OsStr, own: &Attributes) -> Result<bool> {
        let found = self.look(dir, name)?;
        Ok(found.is_some_and(|found| (found.dev, found.ino) == (own.dev, own.ino)))
    }

    /// Looks at what came out of the swap.
    fn after_swap(
        &self,
        temporary: &mut Temporary,
        dir: &Dir,
        name: &OsStr,
        expected: &Attributes,
        own: Attributes,
        quiet_name: &OsStr,
    ) -> Result<Attempt> {
        fail_at!("store.commit.after_exchange", &self.path);
        let place = &temporary.place;
        let look = || {
            let looked = answer_at!("store.commit.answer_of_stat", self.stat_errno(place));
            looked.map_err(|e| {
                self.leave_swapped(place, &place.name);
                self.err("look at what was replaced by", dir, name, e)
            })
        };
        let is_own = |found: &Attributes| (found.dev, found.ino) == (own.dev, own.ino);
        let mut displaced = look()?;
        // The system itself repeats what was answered with ESTALE, and an exchange that is carried out
        // twice is none: success says no more than an error does.
        let mut tries = 0;
        while is_own(&displaced) && tries < SWAP_TRIES {
            let flags = RenameFlags::EXCHANGE;
            let again = fs::renameat_with(&place.dir, &place.name, dir, name, flags);
            fail_at!("store.commit.after_exchange", &self.path);
            tracing::debug!(?again, name = %name.display(), "an exchange was undone; made again");
            displaced = look()?;
            tries += 1;
        }
        if is_own(&displaced) {
            temporary.place.published = false;
            self.rename_place(temporary, quiet_name)?;
            return Err(self.err("publish", dir, name, Errno::AGAIN));
        }
        if is_same(&displaced, expected) {
            fail_at!("store.commit.before_unlink", &self.path);
            let removed = answer_at!(
                "store.commit.answer_of_unlink",
                fs::unlinkat(&place.dir, &place.name, AtFlags::empty())
            );
            if removed.is_err() {
                // It is published: what was replaced goes when somebody comes by here again.
                self.leave_swapped(place, &place.name);
            }
            return Ok(Attempt::Published);
        }
        match self.put_back((&place.dir, &place.name), (dir, name), (own.dev, own.ino)) {
            Ok(PutBack::OwnCameOut) => {
                temporary.place.published = false;
                self.rename_place(temporary, quiet_name)?;
                Ok(Attempt::Conflict(Some(displaced)))
            }
            Ok(PutBack::OwnIsGone) => Ok(Attempt::Conflict(Some(displaced))),
            Ok(PutBack::TheirsStays) => Err(self.swap_lost(place, dir, name, Errno::AGAIN)),
            Err(error) => {
                let e = Errno::from_raw_os_error(error.errno());
                Err(self.swap_lost(place, dir, name, e))
            }
        }
    }

    fn stat_errno(&self, place: &TempPath) -> rustix::io::Result<Attributes> {
        self.births.look(&place.dir, &place.name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Gives up with a foreign file in hand: it stays where the next clean-up finds it and moves it to
    /// limbo, unless it is a version of ours after all.
    fn swap_lost(&self, place: &TempPath, dir: &Dir, name: &OsStr, e: Errno) -> StoreError {
        self.leave_swapped(place, &place.name);
        self.err("put back a file that was changed while it was being replaced:", dir, name, e)
    }

    fn rename_place(&self, temporary: &mut Temporary, name: &OsStr) -> Result<()> {
        let place = &temporary.place;
        let renamed = answer_at!(
            "store.commit.answer_of_rename",
            fs::renameat(&place.dir, &place.name, &place.dir, name)
        );
        if let Err(e) = renamed {
            let looked = temporary.file.stat();
            let looked = looked.map_err(|e| Errno::from_raw_os_error(e.errno()));
            let own = answer_at!("store.commit.answer_of_own", looked);
            // Carried out all the same? Where that can't be said it is looked at later.
            let done = own.is_ok_and(|own| self.stands_at(&place.dir, name, &own).unwrap_or(false));
            if !done {
                self.leave_swapped(place, name);
                return Err(self.err("rename", &place.dir, &place.name, e));
            }
        }
        temporary.place.name = name.to_owned();
        Ok(())
    }

    /// Copies a temporary into the directory of its target, on another mount.
    fn move_beside(&self, temporary: &mut Temporary, dir: &Dir) -> Result<()> {
        let beside = self.make_temporary_in(dir, temporary.place.ino)?;
        let stat = temporary.file.stat()?;
        let limits = Limits::plain(Priority::WriteBack);
        let (from, to) = (&*temporary.file, &*beside.file);
        to.set_len(stat.size)?;
        copy_range(from, to, 0..stat.size, &limits, &Cancel::default())?;
        for (attribute, value) in self.xattrs_of(temporary)? {
            to.set_xattr(&attribute, &value)?;
        }
        to.set_attributes(&SetAttributes {
            mode: Some(stat.mode),
            uid: Some(stat.uid),
            gid: Some(stat.gid),
            atime: Some(stat.atime),
            mtime: Some(stat.mtime),
        })?;
        to.sync(false)?;
        *temporary = beside;
        Ok(())
    }

    fn xattrs_of(&self, temporary: &Temporary) -> Result<Vec<(std::ffi::OsString, Vec<u8>)>> {
        let place = &temporary.place;
        let names = match self.list_xattrs(&place.dir, &place.name) {
            Err(e) if e.errno() == libc::EOPNOTSUPP => Vec::new(),
            other => other?,
        };
        names
            .into_iter()
            .map(|name| {
                let value = self.get_xattr(&place.dir, &place.name, &name)?;
                Ok((name, value))
            })
            .collect()
    }
}

/// Whether a displaced file is the one seen before the swap, which has changed its ctime.
fn is_same(displaced: &Attributes, seen: &Attributes) -> bool {
    let key =
        |a: &Attributes| (a.dev, a.ino, a.kind, a.mode, a.nlink, a.uid, a.gid, a.size, a.mtime);
    key(displaced) == key(seen)
}
