//! Where a conflict is now: its directory may be moved, here and by others, as any other.
//!
//! The directory is known by this mount's version in it, the name of which nothing else has. What the
//! others made is not followed when it gets another name: nothing proves that what has its inode number
//! now is the same file, and whoever resolves a conflict removes one of two versions.

use std::collections::HashSet;
use std::path::PathBuf;

use forebay_meta::{EntryPlus, Link};
use forebay_store::ErrorClass;
use forebay_types::Ino;

use super::conflict::Conflict;
use super::names::os;
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
    /// Whether a conflict is to be shown, as far as is known without asking anybody: not if this mount's
    /// version is gone from its directory. A conflict without such a version is shown until it is
    /// forgotten; one whose directory was moved, until somebody asks where it is.
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

    /// The conflicts that are not resolved, each in the directory that it is in now. Those of which this
    /// mount's version can't be found are forgotten first.
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
        Seen { dir: link.parent.0, dir_below }
    }

    fn number_of(&self, ino: Ino) -> Option<u64> {
        Some(self.meta.get(ino).ok()?.backing.fingerprint?.ino)
    }

    /// Whether there is certainly nothing under this path.
    fn is_missing(&self, path: &[u8]) -> bool {
        let found = self.find_path(&PathBuf::from(os(path)));
        found.is_err_and(|error| error.class() == Some(ErrorClass::NotFound))
    }

    /// A conflict in the directory that it is in now, as far as that can be found.
    fn as_it_is_now(&self, conflict: &Conflict, listed: &mut HashSet<Ino>) -> Conflict {
        let Some(ours) = &conflict.ours else { return conflict.clone() };
        if !self.is_missing(&conflict.kept_as()) {
            return conflict.clone();
        }
        let (was_in, name) = split(&conflict.path);
        let here = self.meta.path(Ino(conflict.seen.dir)).ok().flatten();
        let beside = self.renamed_beside(conflict.seen.dir_below, split(was_in).0, listed);
        let is_home = |dir: &Vec<u8>| !self.is_missing(&join(dir, ours));
        let moved = [here, beside].into_iter().flatten().find(is_home);
        let Some(home) = moved else { return conflict.clone() };
        // Others may have given it another inode here by their rename.
        let dir = self.find_path(&PathBuf::from(os(&home))).map_or(conflict.seen.dir, |ino| ino.0);
        let seen = Seen { dir, ..conflict.seen };
        Conflict { path: join(&home, name), seen, ..conflict.clone() }
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

    /// Reads a directory anew, however many conflicts there are in it.
    fn list_once(&self, dir: Ino, listed: &mut HashSet<Ino>) {
        if listed.insert(dir)
            && let Err(error) = self.list_now(dir)
        {
            tracing::debug!(%dir, %error, "not looked at for what was moved from a conflict");
        }
    }
}
