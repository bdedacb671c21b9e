//! A name that is wanted is taken: by an inode that logically is elsewhere, or by others.

use std::sync::Arc;
use std::time::Duration;

use forebay_meta::{FileKind, Ino, Link, Record};
use forebay_store::{Attributes, Dir, ErrorClass};

use super::names::{may_be_ours, os};
use super::owned::Owned;
use super::work::Work;
use crate::convert;
use crate::error::{NodeError, Result};
use crate::import::LIMBO;
use crate::node::Node;

/// What is under a name that is wanted.
#[expect(clippy::large_enum_variant, reason = "lives on the stack for a moment")]
pub(super) enum Room<'a> {
    /// Nothing, as far as is known here.
    Free,
    /// A removed file, unchanged: replace it, then report that its name is gone.
    Replace(Owned<'a>, Work<'a>),
    /// Something of others.
    Taken(Attributes),
    /// An inode that was taken from another name for the sake of the one in hand: what was done to
    /// it has to be reported before more is.
    Unreported,
}

/// The place of an inode in limbo.
pub(super) fn limbo_link(ino: Ino) -> Link {
    Link::new(LIMBO, ino.to_string().into_bytes())
}

impl Node {
    /// Clears a name for the inode in hand of what inodes of ours still have there.
    pub(super) fn clear_name<'a>(
        &'a self,
        work: &mut Work<'a>,
        link: &Link,
        dir: &Dir,
        depth: usize,
    ) -> Result<Room<'a>> {
        let ghost = self.meta.ghost(link.parent, &link.name)?;
        let Some(ghost) = ghost.filter(|ino| *ino != work.ino()) else {
            return Ok(Room::Free);
        };
        if work.has_other(ghost) {
            return Ok(Room::Unreported);
        }
        // Two workers may want each other's inode: only one of them waits, and not for long.
        let patience = if ghost > work.ino() { Duration::from_millis(200) } else { Duration::ZERO };
        let Some(owned) = self.own(ghost, patience) else { return Err(NodeError::Busy) };
        let Some(record) = self.known(ghost)? else { return Ok(Room::Free) };
        if !record.backing.links.contains(link) {
            return Ok(Room::Free);
        }
        let mut other = Work::new(&record);
        let found = match self.backing.stat(dir, os(&link.name)) {
            Ok(found) => found,
            Err(error) if error.class() == ErrorClass::NotFound => {
                other.went(link);
                work.also(owned, other);
                return Ok(Room::Free);
            }
            Err(error) => return Err(error.into()),
        };
        let is_file = record.attr.kind != FileKind::Directory;
        let removed = record.links.is_empty() && !(record.orphan && is_file);
        if removed && !is_file {
            let done = self.remove(&mut other, depth + 1);
            work.also(owned, other);
            done?;
            return self.still_taken(link, dir);
        }
        if is_unchanged(&record, &found) {
            if removed {
                return self.replace_or_remove(work, link, dir, owned, other);
            }
            let aside = self.put_aside(&mut other, link, dir);
            work.followers.extend((!record.links.is_empty()).then_some(ghost));
            work.also(owned, other);
            aside?;
            return Ok(Room::Free);
        }
        // Not what was known: others put it there, or changed it.
        other.went(link);
        work.also(owned, other);
        Ok(Room::Taken(found))
    }

    fn still_taken<'a>(&self, link: &Link, dir: &Dir) -> Result<Room<'a>> {
        match self.backing.stat(dir, os(&link.name)) {
            Ok(found) => Ok(Room::Taken(found)),
            Err(error) if error.class() == ErrorClass::NotFound => Ok(Room::Free),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes what a removed inode still has under a name that can't be replaced in one step.
    pub(super) fn clear<'a>(
        &self,
        work: &mut Work<'a>,
        link: &Link,
        dir: &Dir,
        owned: Owned<'a>,
        mut other: Work<'a>,
    ) -> Result<()> {
        self.own_change(&[(link.parent, dir)], || Ok(self.backing.unlink(dir, os(&link.name))?))?;
        other.went(link);
        work.also(owned, other);
        Ok(())
    }

    fn replace_or_remove<'a>(
        &self,
        work: &mut Work<'a>,
        link: &Link,
        dir: &Dir,
        owned: Owned<'a>,
        other: Work<'a>,
    ) -> Result<Room<'a>> {
        if !work.record.is_directory() {
            return Ok(Room::Replace(owned, other));
        }
        self.clear(work, link, dir, owned, other)?;
        Ok(Room::Free)
    }

    /// Puts an inode that stands under `link` into limbo.
    pub(super) fn put_aside(&self, work: &mut Work<'_>, link: &Link, dir: &Dir) -> Result<()> {
        let limbo = limbo_link(work.ino());
        self.claim(work, &limbo)?;
        let itself = match work.record.is_directory() {
            true => self.backing_dir(work.ino()).ok(),
            false => None,
        };
        let mut changed = vec![(link.parent, dir)];
        changed.extend(itself.as_ref().map(|dir| (work.ino(), dir)));
        self.own_change(&changed, || {
            Ok(self.backing.to_limbo(dir, os(&link.name), work.ino().0)?)
        })?;
        work.went(link);
        work.came(&limbo, &self.backing_dir(LIMBO)?);
        work.touched(link.parent, dir);
        Ok(())
    }
}

/// Whether the object under a name of `record` is as it was known. The change time is left out: our
/// own renames alter it.
pub(super) fn is_unchanged(record: &Arc<Record>, found: &Attributes) -> bool {
    match record.backing.fingerprint {
        _ if record.is_directory() => may_be_ours(record, found),
        Some(print) => convert::store_fingerprint(print).same_content(&found.fingerprint()),
        None => may_be_ours(record, found),
    }
}
