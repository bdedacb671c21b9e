//! A name that is wanted is taken: by an inode that logically is elsewhere, or by others.

use std::time::Duration;

use forebay_meta::{Link, Record};
use forebay_store::backing::{Known, Removed};
use forebay_store::{Attributes, Dir, ErrorClass};
use forebay_types::{FileKind, Fingerprint, Ino};

use super::MAX_PARENTS;
use super::identity::{is_own, may_be_ours};
use super::names::os;
use super::owned::Owned;
use super::work::{Step, Work};
use crate::config::Coherence;
use crate::error::{NodeError, Result};
use crate::writeback::Writeback;
use crate::writeback::import::LIMBO;
use crate::writeback::parked::parked_link;

/// What is under a name that is wanted.
#[expect(clippy::large_enum_variant, reason = "lives on the stack for a moment")]
pub(super) enum Room<'a> {
    /// Nothing of ours.
    Free,
    /// A removed file, unchanged: replace it as it was looked at, and nothing else, then report that its
    /// name is gone.
    Replace(Owned<'a>, Work<'a>, Fingerprint),
    /// An inode that was taken from another name for the sake of the one in hand: what was done to
    /// it has to be reported before more is.
    Unreported,
}

impl Writeback {
    /// Clears a name for the inode in hand of what inodes of ours still have there.
    pub(super) fn clear_name<'a>(
        &'a self,
        work: &mut Work<'a>,
        link: &Link,
        dir: &Dir,
        depth: usize,
    ) -> Result<Room<'a>> {
        for stale_name in self.meta.stale_inodes_at(link.parent, &link.name)? {
            if stale_name == work.ino() {
                continue;
            }
            if work.has_other(stale_name) {
                return Ok(Room::Unreported);
            }
            if let Some(room) = self.clear_of(stale_name, work, link, dir, depth)? {
                return Ok(room);
            }
        }
        Ok(Room::Free)
    }

    /// Clears a name of one inode that claims it; `None` if it is not its object that stands there.
    fn clear_of<'a>(
        &'a self,
        stale_name: Ino,
        work: &mut Work<'a>,
        link: &Link,
        dir: &Dir,
        depth: usize,
    ) -> Result<Option<Room<'a>>> {
        // Two workers may want each other's inode: only one of them waits, and not for long.
        let timeout =
            if stale_name > work.ino() { Duration::from_millis(200) } else { Duration::ZERO };
        let Some(owned) = self.own(stale_name, timeout) else { return Err(NodeError::Busy) };
        let Some(record) = self.known(stale_name)? else { return Ok(None) };
        if !record.backing.links.contains(link) {
            return Ok(None);
        }
        let mut other = Work::new(&record);
        other.wanted_by = (!work.record.backing.links.contains(link)).then_some(work.ino());
        let Some(mut found) = self.own_object_at(&record, link, dir)? else {
            // Interrupted workers left the claim, or others changed what is there. Whoever makes
            // the name looks at what it is.
            other.went(link);
            work.also(owned, other);
            return Ok(None);
        };
        let is_directory = record.is_directory();
        let removed = record.links.is_empty() && (!record.orphan || is_directory);
        if removed && is_directory && self.leave(work, stale_name, link)? {
            return Ok(Some(Room::Unreported));
        }
        if removed && is_directory {
            let done = self.remove(&mut other, depth + 1);
            work.also(owned, other);
            done?;
            // The next one made here may get the same inode number.
            return Ok(Some(Room::Unreported));
        }
        if removed {
            let has_unseen_names = other.record.has_unseen_names();
            let written = self.write_for_unseen_names(&mut other, depth);
            if !matches!(written, Ok(Step::Done)) {
                work.also(owned, other);
                return written.map(|_| Some(Room::Unreported));
            }
            if has_unseen_names {
                let Some(written) = self.own_object_at(&other.record, link, dir)? else {
                    work.also(owned, other);
                    return Ok(Some(Room::Unreported));
                };
                found = written;
            }
            let found = found.fingerprint();
            return self.replace_or_remove(work, link, dir, (owned, other, found)).map(Some);
        }
        other.note_version(&found.fingerprint());
        let files = [&work.record, &*record].iter().all(|of| of.attr.kind == FileKind::Regular);
        if files && record.links.is_empty() && self.keep_parked(&mut other, link, dir)? {
            // What it takes away must be there until the new one is.
            if other.moved {
                let looked = self.look_after_move(&mut other);
                work.also(owned, other);
                return looked.map(|()| Some(Room::Unreported));
            }
            return Ok(Some(Room::Replace(owned, other, found.fingerprint())));
        }
        let aside =
            self.put_aside(&mut other, link, dir).and_then(|()| self.look_after_move(&mut other));
        work.followers.extend((!record.links.is_empty()).then_some(stale_name));
        work.also(owned, other);
        aside?;
        Ok(Some(Room::Free))
    }

    /// What stands under a name of an inode, if it is its object as it is known.
    fn own_object_at(&self, record: &Record, link: &Link, dir: &Dir) -> Result<Option<Attributes>> {
        match self.backing.stat(dir, os(&link.name)) {
            Ok(found) => Ok(Some(found).filter(|found| is_own(record, found))),
            Err(error) if error.class() == ErrorClass::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a name under which something was found, if that is still there: whoever looked may have
    /// waited since, for a device or for another worker.
    ///
    /// # Errors
    /// [`NodeError::Busy`] if something else stands there now, at which one has to look again; what the
    /// backing store says.
    pub(super) fn unlink_if(
        &self,
        parent: Ino,
        (dir, name): (&Dir, &[u8]),
        known: Known,
    ) -> Result<()> {
        if self.config.coherence == Coherence::Exclusive {
            let unlink = || Ok(self.backing.unlink(dir, os(name))?);
            return self.own_change(&[(parent, dir)], unlink);
        }
        let remove = || Ok(self.backing.unlink_known(dir, os(name), &known)?);
        let removed = self.own_change(&[(parent, dir)], remove)?;
        self.after_removal_below(&Link::new(parent, name), removed)
    }

    /// # Errors
    /// [`NodeError::Busy`] if something else stands under the name than what was to be removed.
    pub(super) fn after_removal_below(&self, link: &Link, removed: Removed) -> Result<()> {
        if removed == Removed::Done {
            return Ok(());
        }
        // It may have come and gone between two looks at its directory.
        self.doubt_listing(link.parent)?;
        Err(NodeError::Busy)
    }

    /// Takes the inode in hand out of a removed directory that stands where it is wanted: each would
    /// wait for the other. Says whether it was in there.
    fn leave(&self, work: &mut Work<'_>, removed: Ino, wanted: &Link) -> Result<bool> {
        let mut names = Vec::new();
        for link in &work.record.backing.links {
            if link != wanted && self.is_below(link.parent, removed)? {
                names.push(link.clone());
            }
        }
        self.take_out(work, &names)?;
        Ok(!names.is_empty())
    }

    /// Takes names of an inode away that lie in removed directories; it goes to limbo with the first.
    pub(super) fn take_out(&self, work: &mut Work<'_>, names: &[Link]) -> Result<()> {
        for link in names {
            match self.look_at(&work.record, link)? {
                Some((dir, _, found)) if may_be_ours(&work.record, &found) => {
                    if !work.record.is_directory() {
                        work.note_version(&found.fingerprint());
                    }
                    if self.is_parked(work)? {
                        self.take_name(work, link)?;
                    } else {
                        self.put_aside(work, link, &dir)?;
                    }
                    match self.look_after_move(work) {
                        // Others have it: who opens it looks what there is.
                        Err(error) if error.class() == Some(ErrorClass::NotFound) => {}
                        looked => looked?,
                    }
                }
                // Whatever stands there: the removal of the directory sees to it.
                _ => work.went(link),
            }
        }
        Ok(())
    }

    /// Whether an inode is another one, or below it, in the backing store.
    pub(crate) fn is_below(&self, dir: Ino, above: Ino) -> Result<bool> {
        let mut at = dir;
        for _ in 0..MAX_PARENTS {
            if at == above {
                return Ok(true);
            }
            if at == Ino::ROOT || at == LIMBO {
                return Ok(false);
            }
            let Some(record) = self.known(at)? else { return Ok(false) };
            let Some(link) = record.backing.links.newest_first().next() else { return Ok(false) };
            at = link.parent;
        }
        Err(rustix::io::Errno::LOOP.into())
    }

    /// Removes what a removed inode still has under a name that can't be replaced in one step.
    pub(super) fn clear<'a>(
        &self,
        work: &mut Work<'a>,
        link: &Link,
        dir: &Dir,
        (owned, mut other, found): (Owned<'a>, Work<'a>, Fingerprint),
    ) -> Result<()> {
        self.unlink_if(link.parent, (dir, &link.name), Known::Version(found))?;
        other.went(link);
        // What is to take the name may fail: the removal is durable before it is reported all the same.
        other.touched(link.parent, dir);
        work.also(owned, other);
        Ok(())
    }

    fn replace_or_remove<'a>(
        &self,
        work: &mut Work<'a>,
        link: &Link,
        dir: &Dir,
        (owned, other, found): (Owned<'a>, Work<'a>, Fingerprint),
    ) -> Result<Room<'a>> {
        if !work.record.is_directory() {
            return Ok(Room::Replace(owned, other, found));
        }
        self.clear(work, link, dir, (owned, other, found))?;
        Ok(Room::Free)
    }

    /// Sees to it that a removed file in use, which stands under `link`, has a name in limbo as well, so
    /// that it can be replaced there in one step. False where there are no hard links.
    fn keep_parked(&self, work: &mut Work<'_>, link: &Link, dir: &Dir) -> Result<bool> {
        if self.is_parked(work)? {
            return Ok(true);
        }
        let limbo = parked_link(work.ino());
        self.claim(work, &limbo)?;
        self.meta.sync()?;
        match self.backing.park_link(dir, os(&link.name), work.ino().0) {
            Ok(()) => {
                if self.look_at_second_parked(work)? {
                    return Err(NodeError::Busy);
                }
                work.came(&limbo, &self.backing_dir(LIMBO)?);
                Ok(true)
            }
            Err(error) if error.class() == ErrorClass::NotFound => Err(error.into()),
            Err(error) => {
                tracing::debug!(%error, ino = %work.ino(), "no second name in limbo");
                Ok(false)
            }
        }
    }

    /// Whether an inode stands in limbo. A name there may have been claimed only, by a worker that failed or
    /// was killed: then it has none.
    pub(super) fn is_parked(&self, work: &mut Work<'_>) -> Result<bool> {
        let limbo = parked_link(work.ino());
        if !work.record.backing.links.contains(&limbo) {
            return Ok(false);
        }
        let found = self.look_at(&work.record, &limbo)?;
        if found.is_some_and(|(_, _, found)| may_be_ours(&work.record, &found)) {
            return Ok(true);
        }
        work.went(&limbo);
        Ok(false)
    }

    /// Puts an inode that stands under `link` into limbo.
    pub(super) fn put_aside(&self, work: &mut Work<'_>, link: &Link, dir: &Dir) -> Result<()> {
        let limbo = parked_link(work.ino());
        self.claim(work, &limbo)?;
        let itself = match work.record.is_directory() {
            true => self.backing_dir(work.ino()).ok(),
            false => None,
        };
        let mut changed = vec![(link.parent, dir)];
        changed.extend(itself.as_ref().map(|dir| (work.ino(), dir)));
        self.entries_will_change(changed.iter().map(|(dir, _)| *dir));
        self.meta.sync()?;
        let park = || {
            let key = work.ino().0;
            self.own_change(&changed, || Ok(self.backing.park(dir, os(&link.name), key)?))
        };
        match park() {
            Err(error) if error.class() == Some(ErrorClass::Exists) => {
                let (here, parked) = self.stands_in_limbo(work, link, dir)?;
                if !parked {
                    if let Some(kept) = self.backing.set_parked_aside(work.ino().0)? {
                        tracing::warn!(ino = %work.ino(), kept = %kept.display(), "an older file in .forebay/limbo is set aside");
                    }
                    park()?;
                } else {
                    // Of two names of one file the other one goes.
                    self.unlink_if(link.parent, (dir, &link.name), Known::Object(here))?;
                }
            }
            parked => parked?,
        }
        if self.look_at_parked(work, (link, dir))? {
            return Ok(());
        }
        work.went(link);
        work.came(&limbo, &self.backing_dir(LIMBO)?);
        work.touched(link.parent, dir);
        Ok(())
    }

    /// What stands under `link`, and whether it has a name in limbo already: it was given one to be
    /// replaced, and what was to replace it did not come.
    fn stands_in_limbo(
        &self,
        work: &Work<'_>,
        link: &Link,
        dir: &Dir,
    ) -> Result<(Fingerprint, bool)> {
        let here = self.backing.stat(dir, os(&link.name))?.fingerprint();
        let there = self.found_under(&work.record, &parked_link(work.ino()))?;
        Ok((here, there.is_some_and(|there| there.same_inode(&here))))
    }
}
