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

use super::conflict::{Conflict, is_conflict_name};
use super::names::os;
use crate::writeback::Writeback;

/// Entries of a directory that are looked at at a time.
const PAGE: usize = 1000;

/// What was noted with a conflict.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// The directory; 0 if that is not known.
    pub dir: u64,
    /// Its number in the backing store, and those of the directories that it is in, from it up to the
    /// root, which is not among them; 0 for what is not known.
    pub below: Vec<u64>,
}

/// Where a conflict is.
enum ConflictLocation {
    /// In the directory that it was last found in.
    There,
    /// Elsewhere: as it is now.
    Moved(Conflict),
    /// Its directory is where it was, without this mount's version.
    Resolved,
    /// Nobody knows where its directory is.
    Unknown,
}

/// What is said of a conflict whose directory can't be found.
const NOT_FOUND: &str =
    "its directory was moved or removed in the backing store; look for this name there";

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
    /// forgotten; one whose directory is not where it was, until somebody asks where it is.
    pub fn is_unresolved(&self, conflict: &Conflict) -> bool {
        let kept_as = conflict.kept_as();
        let (dir, name) = split(&kept_as);
        let known = |at: Option<Ino>, name: &[u8]| {
            let record = self.meta.lookup(at?, name).ok().flatten()?;
            Some(record.ino)
        };
        let parts = dir.split(|&byte| byte == b'/').filter(|part| !part.is_empty());
        let dir = parts.fold(Some(Ino::ROOT), known);
        let may_be_elsewhere = !self.residency.peers.changes_namespace_alone();
        let is_home =
            dir.is_some_and(|dir| Self::is_home(dir, &conflict.seen, self.number_of(dir)));
        conflict.ours.is_none() || may_be_elsewhere || !is_home || known(dir, name).is_some()
    }

    /// The conflicts that are not resolved, each in the directory that it is in now. Those whose directory
    /// does not have this mount's version any more are forgotten first. One whose directory can't be found
    /// is kept, and says so.
    pub fn conflicts_looked_after(&self) -> Vec<Conflict> {
        let (_, all) = self.conflicts();
        let (mut gone, mut listed) = (Vec::new(), HashSet::new());
        let mut shown = Vec::new();
        for conflict in all {
            match self.location_of_conflict(&conflict, &mut listed) {
                ConflictLocation::There => shown.push(conflict),
                ConflictLocation::Moved(now) => {
                    self.reconciler.conflicts.lock().replace(&conflict, now.clone());
                    shown.push(now);
                }
                ConflictLocation::Resolved => gone.push(conflict),
                ConflictLocation::Unknown => {
                    let why = format!("{}; {NOT_FOUND}", conflict.why).into();
                    shown.push(Conflict { why, ..conflict });
                }
            }
        }
        self.forget_conflicts(&mut |conflict| gone.contains(conflict));
        self.write_conflicts();
        shown
    }

    /// A name was removed or changed through this mount: if it was that of this mount's version, the
    /// conflict is resolved. Afterwards its directory may go as well, and nobody could tell.
    pub(crate) fn conflict_name_went(&self, dir: Ino, name: &[u8]) {
        if is_conflict_name(name) {
            let ours = |conflict: &Conflict| {
                conflict.seen.dir == dir.0 && conflict.ours.as_deref() == Some(name)
            };
            self.reconciler.conflicts.lock().settle(&mut |conflict| ours(conflict));
        }
    }

    /// Has the list as it is now after a restart, too.
    pub(crate) fn write_conflicts(&self) {
        self.reconciler.conflicts.lock().write_if_behind();
    }

    /// What a conflict is found again by.
    pub(super) fn seen_under(&self, link: &Link) -> Seen {
        let mut below = Vec::new();
        let mut at = link.parent;
        while at != Ino::ROOT {
            below.push(self.number_below(at).unwrap_or_default());
            let above =
                self.meta.get(at).ok().and_then(|record| Some(record.links.first()?.parent));
            let Some(above) = above else { break };
            at = above;
        }
        Seen { dir: link.parent.0, below }
    }

    /// Whether a directory, `found` under this number, is the one in which a conflict was seen; older programs noted nothing by which
    /// it could be told from others.
    fn is_home(dir: Ino, seen: &Seen, found: Option<u64>) -> bool {
        let number = seen.below.first().copied().unwrap_or_default();
        (seen.dir, number) == (0, 0) || dir.0 == seen.dir || number != 0 && found == Some(number)
    }

    fn number_of(&self, ino: Ino) -> Option<u64> {
        Some(self.meta.get(ino).ok()?.backing.fingerprint?.ino)
    }

    /// As [`Writeback::number_of`], also of a directory into which nobody has looked yet.
    fn number_below(&self, ino: Ino) -> Option<u64> {
        let known = self.number_of(ino);
        known.or_else(|| {
            let record = self.meta.get(ino).ok()?;
            let link = record.backing.links.first()?;
            let dir = self.backing_dir(link.parent).ok()?;
            Some(self.backing.stat(&dir, os(&link.name)).ok()?.ino)
        })
    }

    /// Whether there is certainly nothing under this path.
    fn is_missing(&self, path: &[u8]) -> bool {
        let found = self.find_path(&PathBuf::from(os(path)));
        found.is_err_and(|error| error.class() == Some(ErrorClass::NotFound))
    }

    fn location_of_conflict(
        &self,
        conflict: &Conflict,
        listed: &mut HashSet<Ino>,
    ) -> ConflictLocation {
        let Some(ours) = &conflict.ours else { return ConflictLocation::There };
        if !self.is_missing(&conflict.kept_as()) {
            return ConflictLocation::There;
        }
        let (was_in, name) = split(&conflict.path);
        let here = self.meta.path(Ino(conflict.seen.dir)).ok().flatten();
        let below = self.followed_below(was_in, &conflict.seen, listed);
        let is_home = |dir: &Vec<u8>| !self.is_missing(&join(dir, ours));
        let Some(home) = [here, below].into_iter().flatten().find(is_home) else {
            return self.without_our_version(conflict, listed);
        };
        // Others may have given it another inode here by their rename.
        let Ok(dir) = self.find_path(&PathBuf::from(os(&home))) else {
            return ConflictLocation::Unknown;
        };
        let path = join(&home, name);
        let seen = self.seen_under(&Link::new(dir, name));
        ConflictLocation::Moved(Conflict { path, seen, ..conflict.clone() })
    }

    /// What becomes of a conflict of which this mount's version is nowhere to be found.
    fn without_our_version(
        &self,
        conflict: &Conflict,
        listed: &mut HashSet<Ino>,
    ) -> ConflictLocation {
        let was_in = split(&conflict.path).0;
        match self.find_path(&PathBuf::from(os(was_in))) {
            Ok(dir) if Self::is_home(dir, &conflict.seen, self.number_below(dir)) => {
                self.list_once(dir, listed);
                match self.is_missing(&conflict.kept_as()) {
                    true => ConflictLocation::Resolved,
                    false => ConflictLocation::There,
                }
            }
            _ => ConflictLocation::Unknown,
        }
    }

    /// Where a directory is by now, of which others have given it, or some that it is in, other names.
    fn followed_below(
        &self,
        path: &[u8],
        seen: &Seen,
        listed: &mut HashSet<Ino>,
    ) -> Option<Vec<u8>> {
        let names: Vec<&[u8]> =
            path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).collect();
        let mut at = Vec::new();
        for (depth, name) in names.iter().enumerate() {
            // Older programs noted the innermost alone.
            let number = seen.below.get(names.len() - 1 - depth).copied().unwrap_or_default();
            let same = join(&at, name);
            let found = self.find_path(&PathBuf::from(os(&same))).ok();
            at = match found {
                Some(dir) if number == 0 || self.number_below(dir) == Some(number) => same,
                _ => self.renamed_beside(number, &at, listed)?,
            };
        }
        Some(at)
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
