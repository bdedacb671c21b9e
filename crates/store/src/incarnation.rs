//! The backing store of nodes that share it: each start of a node publishes and removes only by
//! renames out of, and into, a directory of its own, `nodes/OWNER.EPOCH.RANDOM` in the private area.
//!
//! Whoever takes its place has that directory emptied and removed first ([`DirBacking::shut_out`]).
//! What the one before was about to do then finds no source, or no target, whenever it comes: after a
//! stop of its process, or sent once more by the client of a network file system. No look before
//! an operation could do that, for the stop may come between the two.
//!
//! What is written in place (files of several names), made beside its target on another mount, and
//! changes of names and attributes don't go that way: before each of them the node asks whether it may
//! ([`crate::copy::Permit`]), which leaves the one system call that is under way when it is stopped.

use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{self, AtFlags, OFlags};
use rustix::io::Errno;

use crate::backing::{BackingStore, Cleaned, Dir, Temporary};
use crate::dir_backing::{DirBacking, open_beneath};
use crate::dir_tier::random;
use crate::private::{Area, swap_name};
use crate::rename::rename_no_replace;
use crate::{FileKind, Fingerprint, Result, StoreError};

/// Rounds in which a directory is emptied that somebody may still be filling.
const ROUNDS: u32 = 64;

/// What a file that is about to be removed is called.
const REMOVED: &str = "d.";
/// What a directory that is about to be removed is called: anything else of that name came along, and is
/// of others. (Earlier versions called it as files.)
const DIRECTORY: &str = "e.";

/// The directory of this start of a node.
pub(crate) struct Own {
    dir: Dir,
    name: OsString,
    /// It was found gone.
    shut_out: bool,
}

impl DirBacking {
    /// From now on this daemon is one of several nodes on the backing store, in its start `epoch`: what
    /// it publishes and removes goes by a new directory of its own.
    ///
    /// # Errors
    /// When that can't be made.
    pub fn act_as(&self, epoch: u64) -> Result<()> {
        let name = format!("{}.{epoch:x}.{:x}", self.owner, u64::from_le_bytes(random()?));
        let dir = self.in_area(Area::Nodes, |nodes| self.make_area(nodes, &name))?;
        *self.own.write() = Some(Own { dir, name: name.into(), shut_out: false });
        Ok(())
    }

    /// As [`DirBacking::shut_out`], of what earlier daemons of this node have under way.
    ///
    /// # Errors
    /// As [`DirBacking::shut_out`].
    pub fn shut_out_former(&self) -> Result<Cleaned> {
        self.shut_out(&self.owner, None)
    }

    /// Whether others have taken the directory of [`DirBacking::act_as`] away, as far as was noticed:
    /// until it acts anew, nothing can be published.
    #[must_use]
    pub fn is_shut_out(&self) -> bool {
        self.own.read().as_ref().is_some_and(|own| own.shut_out)
    }

    /// Sees to it that nothing comes any more of what the node `owner` has under way here, from its start
    /// `epoch` or from earlier ones (all, if it is `None`), also if it is alive. Spill files that it was
    /// about to publish go back to their place.
    ///
    /// # Errors
    /// When its directory is not gone: then something may come still.
    pub fn shut_out(&self, owner: &str, epoch: Option<u64>) -> Result<Cleaned> {
        crate::dir_backing::check_owner(owner, &self.path)?;
        let mut cleaned = Cleaned::default();
        let Some(nodes) = self.existing_area(Area::Nodes)? else { return Ok(cleaned) };
        let own = self.own.read().as_ref().map(|own| own.name.clone());
        let mut names = Vec::new();
        self.list(&nodes, &mut |batch| {
            let fits = batch.iter().map(|entry| &entry.name);
            let fits = fits.filter(|name| {
                Some(*name) != own.as_ref()
                    && start_of(name, owner).is_some_and(|start| epoch.is_none_or(|e| start <= e))
            });
            names.extend(fits.cloned());
            ControlFlow::Continue(())
        })?;
        for name in &names {
            self.remove_start(&nodes, name, owner, &mut cleaned)?;
        }
        if !names.is_empty() {
            self.sync_now(&[nodes])?;
        }
        Ok(cleaned)
    }

    fn remove_start(
        &self,
        nodes: &Dir,
        name: &OsStr,
        owner: &str,
        cleaned: &mut Cleaned,
    ) -> Result<()> {
        for _ in 0..ROUNDS {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let dir = match open_beneath(nodes.as_fd(), name, flags) {
                Ok(fd) => Dir(Arc::new(fd)),
                Err(Errno::NOENT) => return Ok(()),
                Err(e) => return Err(self.err("shut out a node:", nodes, name, e)),
            };
            let mut found = Vec::new();
            self.list(&dir, &mut |batch| {
                found.extend(batch.iter().map(|entry| entry.name.clone()));
                ControlFlow::Continue(())
            })?;
            for name in &found {
                match self.clean_one(&dir, name, owner, cleaned) {
                    Err(e) if e.errno() != libc::ENOENT => return Err(e),
                    _ => {}
                }
            }
            match fs::unlinkat(nodes, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                Err(e) => return Err(self.err("shut out a node:", nodes, name, e)),
            }
        }
        Err(self.err("shut out a node that goes on writing:", nodes, name, Errno::BUSY))
    }

    /// The directory by which this daemon publishes, if it is one of several nodes.
    pub(crate) fn own_dir(&self) -> Option<Dir> {
        self.own.read().as_ref().map(|own| own.dir.clone())
    }

    /// An error of an operation by the own directory, as what it is if that directory is gone.
    pub(crate) fn or_shut_out(&self, error: StoreError) -> StoreError {
        if error.errno() != libc::ENOENT && error.errno() != libc::ESTALE {
            return error;
        }
        let mut own = self.own.write();
        let Some(own) = own.as_mut() else { return error };
        if !own.shut_out && !matches!(self.has_start(own), Ok(false)) {
            return error;
        }
        own.shut_out = true;
        StoreError::errno_of(
            "write back, from where other nodes have shut this one out:",
            self.path.join(&own.name),
            libc::ESTALE,
        )
    }

    fn has_start(&self, own: &Own) -> Result<bool> {
        let Some(nodes) = self.existing_area(Area::Nodes)? else { return Ok(false) };
        let Some(found) = self.stat_if(&nodes, &own.name)? else { return Ok(false) };
        let held = fs::fstat(&own.dir).map_err(|e| self.err("stat", &own.dir, "".as_ref(), e))?;
        Ok(found.ino == held.st_ino)
    }

    /// Brings a spill file to where a node publishes from.
    pub(crate) fn spill_to_own(&self, temporary: &mut Temporary) -> Result<()> {
        let Some(own) = self.own_dir().filter(|_| temporary.place.spill) else { return Ok(()) };
        let found = temporary.file.stat()?;
        let name = swap_name(&temporary.place, &self.owner, found.ino, &Fingerprint::default());
        self.move_place(temporary, &own, &name)
    }

    /// Takes that back for one that was not published.
    pub(crate) fn spill_from_own(&self, temporary: &mut Temporary) -> Result<()> {
        if self.own_dir().is_none() || !temporary.place.spill || temporary.place.published {
            return Ok(());
        }
        let name = self.spill_name(temporary.place.ino);
        let spill = self.area(Area::Spill)?;
        self.move_place(temporary, &spill, &name)
    }

    fn move_place(&self, temporary: &mut Temporary, dir: &Dir, name: &OsStr) -> Result<()> {
        let place = &temporary.place;
        if let Err(e) = rename_no_replace(&place.dir, &place.name, dir, name) {
            // Whoever wants the spill file next looks for it.
            self.leave_swapped(place, name);
            return Err(self.err("rename", &place.dir, &place.name, e));
        }
        temporary.place.dir = dir.clone();
        temporary.place.name = name.to_owned();
        Ok(())
    }

    /// Removes a name that is no directory, through the own directory: a node that was shut out
    /// removes nothing.
    pub(crate) fn unlink_by_own(&self, own: &Dir, dir: &Dir, name: &OsStr) -> Result<()> {
        let away = OsString::from(format!("{REMOVED}{:x}", u64::from_le_bytes(random()?)));
        match fs::renameat(dir, name, own, &away) {
            Ok(()) => {}
            // Below it lies another mount.
            Err(Errno::XDEV) => {
                let removed = fs::unlinkat(dir, name, AtFlags::empty());
                return removed.map_err(|e| self.err("remove", dir, name, e));
            }
            Err(e) => return Err(self.or_shut_out(self.err("remove", dir, name, e))),
        }
        match fs::unlinkat(own, &away, AtFlags::empty()) {
            // Whoever shuts this one out removes it, too.
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => {
                // A directory that others put there right then, say.
                let back = rename_no_replace(own, &away, dir, name);
                Err(self.err("remove", dir, name, back.err().unwrap_or(e)))
            }
        }
    }

    /// As [`DirBacking::unlink_by_own`], of an empty directory.
    pub(crate) fn rmdir_by_own(&self, own: &Dir, dir: &Dir, name: &OsStr) -> Result<()> {
        let refused = |e| self.err("remove directory", dir, name, e);
        let plainly = || fs::unlinkat(dir, name, AtFlags::REMOVEDIR).map_err(refused);
        // One with something in it stays where it is, also for a moment.
        let mut empty = true;
        let listed = self.list(&self.open_dir(dir, name)?, &mut |entries| {
            empty &= entries.is_empty();
            if empty { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        match listed {
            Ok(()) if empty => {}
            Ok(()) => return Err(refused(Errno::NOTEMPTY)),
            // Who may not read it may remove it.
            Err(e) if e.errno() == libc::EACCES => return plainly(),
            Err(e) => return Err(e),
        }
        let away = OsString::from(format!("{DIRECTORY}{:x}", u64::from_le_bytes(random()?)));
        match fs::renameat(dir, name, own, &away) {
            Ok(()) => {}
            // It is on another mount; or this user may remove it, and not move it elsewhere.
            Err(Errno::XDEV | Errno::BUSY | Errno::ACCESS | Errno::PERM) => return plainly(),
            Err(e) => return Err(self.or_shut_out(refused(e))),
        }
        match fs::unlinkat(own, &away, AtFlags::REMOVEDIR) {
            // Whoever shuts this one out removes it, too.
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => {
                // Others have put something there since. If they have taken the name as well, the clean-up
                // keeps it.
                if rename_no_replace(own, &away, dir, name).is_err() {
                    self.strays.add(own, away);
                }
                Err(refused(e))
            }
        }
    }

    /// Ends what [`DirBacking::act_as`] has begun.
    pub(crate) fn leave_own(&self, private: &Dir) {
        let Some(own) = self.own.write().take() else { return };
        if let Ok(nodes) = self.open_area(private, Area::Nodes.name()) {
            // What is left in it the next start looks at.
            let _ = fs::unlinkat(&nodes, &own.name, AtFlags::REMOVEDIR);
        }
    }
}

/// Which start of a node a directory belongs to.
fn start_of(name: &OsStr, owner: &str) -> Option<u64> {
    let mut parts = name.to_str()?.strip_prefix(owner)?.strip_prefix('.')?.split('.');
    let (epoch, random) = (parts.next()?, parts.next()?);
    u64::from_str_radix(random, 16).ok()?;
    u64::from_str_radix(epoch, 16).ok().filter(|_| parts.next().is_none())
}

/// Whether what stands in the directory of a start is one that was moved there and is no file.
pub(crate) fn is_kept(name: &OsStr, kind: FileKind) -> bool {
    let name = name.as_encoded_bytes();
    match kind {
        FileKind::Directory => {
            name.starts_with(REMOVED.as_bytes()) || name.starts_with(DIRECTORY.as_bytes())
        }
        _ => name.starts_with(DIRECTORY.as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backing::{Commit, Expect};

    fn node(dir: &tempfile::TempDir, owner: &str) -> DirBacking {
        let store = DirBacking::open(dir.path(), owner).expect("opened");
        store.act_as(1).expect("made");
        store
    }

    fn temporary(store: &DirBacking, ino: u64, bytes: &[u8]) -> Temporary {
        let made = store.make_temporary(ino).expect("made");
        made.file.write_at(bytes, 0).expect("written");
        made
    }

    fn is_stale<T>(done: Result<T>) -> bool {
        done.is_err_and(|error| error.errno() == libc::ESTALE)
    }

    fn left(dir: &tempfile::TempDir) -> Vec<String> {
        let found = std::fs::read_dir(dir.path().join(".forebay/nodes")).expect("listed");
        found.map(|entry| entry.expect("").file_name().to_string_lossy().into()).collect()
    }

    #[test]
    fn node_when_shut_out_then_nothing_of_it_is_published_or_removed_any_more() {
        let dir = tempfile::tempdir().expect("a directory");
        let (one, two) = (node(&dir, "one"), node(&dir, "two"));
        let (root, name) = (one.root(), OsStr::new("f"));
        let made = one.commit(&mut temporary(&one, 7, b"first"), &root, name, Expect::Absent);
        let Ok(Commit::Done(version)) = made else { panic!("{made:?}") };
        std::fs::create_dir(dir.path().join("made since")).expect("made");
        let made_since = OsStr::new("made since");
        let mut newer = temporary(&one, 7, b"late");
        let mut new = temporary(&one, 8, b"late");
        let mut spill = one.make_spill(9).expect("made");
        spill.file.write_at(b"the only copy", 0).expect("written");
        two.shut_out("one", Some(1)).expect("shut out");
        assert!(is_stale(one.commit(&mut newer, &root, name, Expect::Version(version))));
        assert!(is_stale(one.commit(&mut new, &root, OsStr::new("g"), Expect::Absent)));
        assert!(is_stale(one.commit(&mut spill, &root, OsStr::new("h"), Expect::Absent)));
        assert!(is_stale(one.unlink(&root, name)));
        assert!(is_stale(one.rmdir(&root, made_since)));
        assert!(is_stale(one.make_temporary(10)));
        assert!(one.is_shut_out() && !two.is_shut_out());
        assert_eq!(std::fs::read(dir.path().join("f")).expect("there"), b"first");
        let names = std::fs::read_dir(dir.path()).expect("listed").count();
        assert_eq!(names, 3, "the file, the directory and the private area");
        // If it counts after all, it goes on, with what only it has.
        one.act_as(1).expect("made");
        let mut spill = one.find_spill(9).expect("looked").expect("there");
        let done = one.commit(&mut spill, &root, OsStr::new("h"), Expect::Absent);
        assert!(matches!(done, Ok(Commit::Done(_))), "{done:?}");
        assert_eq!(std::fs::read(dir.path().join("h")).expect("there"), b"the only copy");
        one.unlink(&root, name).expect("removed");
        one.rmdir(&root, made_since).expect("removed");
        assert!(!dir.path().join("f").exists() && !dir.path().join(made_since).exists());
        assert_eq!(left(&dir).len(), 2);
        one.tidy().expect("tidied");
        two.tidy().expect("tidied");
        assert!(!dir.path().join(".forebay/nodes").exists());
    }

    #[test]
    fn spill_file_when_its_node_is_shut_out_in_the_middle_then_it_is_back_in_its_place() {
        let dir = tempfile::tempdir().expect("a directory");
        let (one, two) = (node(&dir, "one"), node(&dir, "two"));
        let mut spill = one.make_spill(9).expect("made");
        spill.file.write_at(b"the only copy", 0).expect("written");
        one.spill_to_own(&mut spill).expect("moved");
        let place = dir.path().join(".forebay/spill/one.9");
        assert!(!place.exists());
        two.shut_out("one", Some(0)).expect("nobody");
        assert!(!place.exists(), "a later start");
        assert_eq!(two.shut_out("one", Some(1)).expect("shut out").spills, [9]);
        assert_eq!(std::fs::read(place).expect("there"), b"the only copy");
        assert_eq!(left(&dir).len(), 1);
    }

    #[test]
    fn directory_when_its_node_is_shut_out_while_it_removes_it_then_it_goes_and_a_filled_one_is_kept()
     {
        let dir = tempfile::tempdir().expect("a directory");
        let (one, two) = (node(&dir, "one"), node(&dir, "two"));
        let own = dir
            .path()
            .join(".forebay/nodes")
            .join(left(&dir).into_iter().find(|name| name.starts_with("one.")).expect("its own"));
        std::fs::create_dir_all(own.join("d.1")).expect("made");
        std::fs::create_dir_all(own.join("d.2/of others")).expect("made");
        let cleaned = two.shut_out("one", Some(1)).expect("shut out");
        assert_eq!((cleaned.removed, cleaned.kept), (1, vec![OsString::from("d.2")]));
        assert!(dir.path().join(".forebay/limbo/d.2/of others").exists());
        drop(one);
    }

    #[test]
    fn name_when_it_is_a_directory_then_a_node_removes_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let one = node(&dir, "one");
        std::fs::create_dir(dir.path().join("d")).expect("made");
        std::fs::write(dir.path().join("d/file"), b"kept").expect("written");
        let filled = one.rmdir(&one.root(), OsStr::new("d")).expect_err("there is something in it");
        assert_eq!(filled.errno(), libc::ENOTEMPTY);
        let error = one.unlink(&one.root(), OsStr::new("d")).expect_err("a directory");
        assert_eq!(error.errno(), libc::EISDIR);
        assert_eq!(std::fs::read(dir.path().join("d/file")).expect("there"), b"kept");
        let missing = one.unlink(&one.root(), OsStr::new("nothing")).expect_err("not there");
        assert_eq!(missing.errno(), libc::ENOENT);
        assert!(!one.is_shut_out());
    }
}
