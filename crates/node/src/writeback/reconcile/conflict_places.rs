//! Where the versions of a conflict are now: their directories and names may be changed, here and by
//! others, as those of any file.

use std::collections::HashSet;
use std::path::PathBuf;

use forebay_meta::{EntryPlus, Link};
use forebay_store::ErrorClass;
use forebay_types::Ino;

use super::conflict::Conflict;
use super::names::os;
use crate::error::Result;
use crate::writeback::Writeback;

/// Entries of a directory that are looked at at a time.
const PAGE: usize = 1000;

/// What was noted with a conflict; 0 for what is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// The directory.
    pub dir: u64,
    /// Its number in the backing store.
    pub dir_below: u64,
    /// The number there of what the others made.
    pub theirs: u64,
}

/// A path as its directory and its name.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    }
}

/// The path of a name in a directory.
pub(super) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

impl Writeback {
    /// Whether this mount's version of a conflict is there still, as far as is known without asking
    /// anybody. One that has none counts until it is forgotten, and one whose directory is somewhere else
    /// until somebody has looked for it.
    pub fn is_unresolved(&self, conflict: &Conflict) -> bool {
        let kept_as = conflict.kept_as();
        let (dir, name) = split(&kept_as);
        let known = |at: Option<Ino>, name: &[u8]| {
            let record = self.meta.lookup(at?, name).ok().flatten()?;
            Some(record.ino)
        };
        let parts = dir.split(|&byte| byte == b'/').filter(|part| !part.is_empty());
        let dir = parts.fold(Some(Ino::ROOT), known);
        let clustered = self.residency.peers.is_clustered();
        conflict.ours.is_none() || clustered || dir.is_none() || known(dir, name).is_some()
    }

    /// The conflicts that are not resolved, each by the names that its versions have now; those of which
    /// this mount's version is gone for certain are forgotten first.
    pub fn conflicts_looked_after(&self) -> Vec<Conflict> {
        let (_, all) = self.conflicts();
        let (mut gone, mut listed) = (Vec::new(), HashSet::new());
        for conflict in all {
            let now = self.as_it_is_now(&conflict, &mut listed);
            let kept_as = now.kept_as();
            if !kept_as.is_empty() && self.is_missing(&kept_as) {
                gone.push(conflict);
            } else if now != conflict {
                self.reconciler.conflicts.lock().replace(&conflict, now);
            }
        }
        self.forget_conflicts(&mut |conflict| gone.contains(conflict));
        self.conflicts().1
    }

    /// What a conflict is found again by.
    pub(super) fn seen_under(&self, link: &Link) -> Seen {
        let dir_below = self.number_of(link.parent).unwrap_or_default();
        let theirs = || -> Result<u64> {
            Ok(self.backing.stat(&self.backing_dir(link.parent)?, os(&link.name))?.ino)
        };
        Seen { dir: link.parent.0, dir_below, theirs: theirs().unwrap_or_default() }
    }

    fn number_of(&self, ino: Ino) -> Option<u64> {
        Some(self.meta.get(ino).ok()?.backing.fingerprint?.ino)
    }

    /// Whether nothing has this name for certain.
    fn is_missing(&self, path: &[u8]) -> bool {
        let found = self.find_path(&PathBuf::from(os(path)));
        found.is_err_and(|error| error.class() == Some(ErrorClass::NotFound))
    }

    /// A conflict with the names that its versions have now, as far as they can be found.
    fn as_it_is_now(&self, conflict: &Conflict, listed: &mut HashSet<Ino>) -> Conflict {
        let mut now = conflict.clone();
        let kept_as = conflict.kept_as();
        let (was_in, name) = split(&conflict.path);
        let home = conflict.apart.as_deref().unwrap_or(was_in);
        // What marks the directory: this mount's version, which nobody else has the name of.
        let mark = conflict.ours.as_deref().unwrap_or(name);
        let is_home = |dir: &Vec<u8>| !self.is_missing(&join(dir, mark));
        let mut moved = None;
        if self.is_missing(if kept_as.is_empty() { &conflict.path } else { &kept_as }) {
            moved = self.directories_of(&conflict.seen, home, listed).into_iter().find(is_home);
        }
        let home = moved.as_deref().unwrap_or(home);
        if moved.is_some() {
            now.path = join(home, name);
        }
        if self.is_missing(&now.path) {
            now.path = self.theirs_now(&conflict.seen, home, listed).unwrap_or(now.path);
        }
        let together = conflict.ours.is_none() || split(&now.path).0 == home;
        now.apart = (!together).then(|| home.to_vec());
        now
    }

    /// Where a directory may be that is not at its path any more.
    fn directories_of(&self, seen: &Seen, was: &[u8], listed: &mut HashSet<Ino>) -> Vec<Vec<u8>> {
        let here = self.meta.path(Ino(seen.dir)).ok().flatten();
        let beside = self.renamed_beside(seen.dir_below, split(was).0, listed);
        let theirs = self.path_of_number(seen.theirs).map(|path| split(&path).0.to_vec());
        tracing::debug!(?seen, ?here, ?beside, ?theirs, "a conflict is not where it was");
        [here, beside, theirs].into_iter().flatten().collect()
    }

    /// The directory with a number in the backing store, if others gave it another name in its own one.
    fn renamed_beside(
        &self,
        number: u64,
        parent: &[u8],
        listed: &mut HashSet<Ino>,
    ) -> Option<Vec<u8>> {
        let dir = self.find_path(&PathBuf::from(os(parent))).ok().filter(|_| number != 0)?;
        self.list_once(dir, listed);
        let handle = self.backing_dir(dir).ok()?;
        let mut after = 0;
        loop {
            let page = self.meta.entries_plus(dir, after, PAGE).ok()?;
            after = page.last()?.entry.cursor;
            let is_it = |item: &&EntryPlus| {
                let record = &item.record;
                record.is_directory()
                    && match record.backing.fingerprint {
                        Some(print) => print.ino == number,
                        // Nobody has looked into it yet.
                        None => {
                            let found = self.backing.stat(&handle, os(&item.entry.name));
                            found.is_ok_and(|found| found.ino == number)
                        }
                    }
            };
            let same = page.iter().find(is_it);
            if let Some(same) = same {
                return self.meta.path(same.record.ino).ok().flatten();
            }
        }
    }

    /// The name that others gave what they made, or somebody here.
    fn theirs_now(&self, seen: &Seen, home: &[u8], listed: &mut HashSet<Ino>) -> Option<Vec<u8>> {
        if let Ok(dir) = self.find_path(&PathBuf::from(os(home))) {
            // Its new name may not have been seen yet.
            self.list_once(dir, listed);
        }
        self.path_of_number(seen.theirs)
    }

    /// Reads a directory anew, however many conflicts there are in it.
    fn list_once(&self, dir: Ino, listed: &mut HashSet<Ino>) {
        if listed.insert(dir)
            && let Err(error) = self.list_now(dir)
        {
            tracing::debug!(%dir, %error, "not looked at for what was moved from a conflict");
        }
    }

    /// The path of a file by its number in the backing store.
    fn path_of_number(&self, number: u64) -> Option<Vec<u8>> {
        let ino = self.meta.known_by_number(number).ok().flatten().filter(|_| number != 0)?;
        self.number_of(ino).filter(|found| *found == number)?;
        self.meta.path(ino).ok().flatten()
    }
}
