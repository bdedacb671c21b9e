//! Whose an object in the backing store is: what was known of it, and what workers intended.
//!
//! After an interruption several inodes may claim one name. At most one of them has it, and only
//! the object that stands there tells which.

use std::sync::Arc;

use forebay_meta::{Error as MetaError, Link, Record};
use forebay_store::Attributes;
use forebay_types::{FileKind, Fingerprint, Ino};

use super::work::Work;
use crate::error::{NodeError, Result};
pub(super) use crate::residency::taken_over::UNKNOWN;
use crate::writeback::Writeback;
use crate::writeback::import::LIMBO;

/// Whether `found` is the version that an interrupted worker was about to publish.
pub(crate) fn is_pending(record: &Record, found: &Attributes) -> bool {
    record.backing.pending.is_some_and(|pending| pending.same_content(&found.fingerprint()))
}

/// Whether `found` may be the object of this record: by its inode number if one is known, else by
/// what a worker would have made. Its contents may have been changed by others.
pub(super) fn may_be_ours(record: &Record, found: &Attributes) -> bool {
    if found.kind != record.attr.kind {
        return false;
    }
    if is_pending(record, found) {
        return true;
    }
    match record.backing.fingerprint {
        Some(print) if print.ino != 0 => found.same_inode(&print),
        _ => match record.attr.kind {
            // The times of files are set before they get their name.
            FileKind::Regular => found.size == record.attr.size && found.mtime == record.attr.mtime,
            FileKind::CharDevice | FileKind::BlockDevice => found.rdev == record.attr.rdev,
            _ => true,
        },
    }
}

/// Whether a worker may have moved the change time of the object of this record without having been
/// able to say so: it was interrupted at its names, at a change in place, or at a publication, which
/// moves the version that was known to another name and perhaps back.
fn is_under_way(record: &Record) -> bool {
    record.backing.pending.is_some() || record.queued.is_some() && record.backing.links.len() > 1
}

/// Whether the change time alone says that others have changed the object of this record: nothing
/// of ours can have moved it, nor has it got another name.
pub(crate) fn was_changed(record: &Record, found: &Attributes) -> bool {
    let print = found.fingerprint();
    record.backing.fingerprint.is_some_and(|known| {
        known.same_content(&print)
            && known.ctime != print.ctime
            && known.ctime != UNKNOWN
            && found.nlink == u64::from(record.attr.nlink)
            && !is_under_way(record)
    })
}

impl Work<'_> {
    /// Notes what stands in the backing store before a change of ours that moves its change time.
    pub(super) fn note_version(&mut self, found: &Fingerprint) {
        self.as_known = is_as_known(&self.record, found);
        // Also what our own work has made of it is known from here on: when its names are in line, nothing
        // says any more that somebody was interrupted at them.
        if is_under_way(&self.record)
            && let Some(known) = &mut self.record.backing.fingerprint
        {
            known.ctime = if self.as_known { found.ctime } else { UNKNOWN };
        }
    }

    /// What stands there after that change. If it was not the version that was known before, it is
    /// known again as the same file, but not as the same version.
    pub(super) fn note_change(&mut self, after: &Fingerprint) {
        let known = self.record.backing.fingerprint.map(|known| known.ctime);
        let ctime = known.filter(|_| !self.as_known);
        let after = *after;
        let as_known = self.as_known;
        self.print(Fingerprint { ctime: ctime.unwrap_or(after.ctime), ..after });
        self.as_known = as_known;
    }
}

/// Whether `found` is the version that was known, as far as can be said: for a copy that can be had
/// again any doubt counts, for bytes that are only here none that our own work may have caused.
fn is_as_known(record: &Record, found: &Fingerprint) -> bool {
    record.backing.fingerprint.is_some_and(|known| {
        known == *found
            || known.same_content(found)
                && is_under_way(record)
                && (record.is_dirty() || record.spilled)
    })
}

/// Whether `found` is the object of this record as it was known, or as a worker was about to make
/// it: nothing of others is in it. The change time is left out, for our own renames alter it: see
/// [`was_changed`].
pub(crate) fn is_own(record: &Record, found: &Attributes) -> bool {
    if !may_be_ours(record, found) {
        return false;
    }
    let Some(known) = record.backing.fingerprint.filter(|_| !record.is_directory()) else {
        return true;
    };
    // Of a change in place any part may be done.
    let in_place = record.backing.pending.is_some_and(|pending| pending.same_inode(&known));
    known.same_content(&found.fingerprint())
        || is_pending(record, found)
        || in_place && found.same_inode(&known)
}

impl Writeback {
    /// The inode that has a name now; none if the directory is gone with it.
    pub(super) fn heir(&self, link: &Link) -> Result<Option<Arc<Record>>> {
        if link.parent == LIMBO {
            return Ok(None);
        }
        match self.meta.lookup(link.parent, &link.name) {
            Ok(heir) => Ok(heir),
            Err(MetaError::Stale(_) | MetaError::NotDirectory) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether what stands under a name that `work` claims belongs to another inode of ours.
    pub(super) fn is_anothers(
        &self,
        work: &Work<'_>,
        link: &Link,
        found: &Attributes,
    ) -> Result<bool> {
        self.is_of_another(work, link, found, &|_, _| Ok(true))
    }

    /// As [`Writeback::is_anothers`], for one that can't tell whether it is its own. Of several of this kind one
    /// has it: if each left it to the others, as when all have their turns before any of them is reported,
    /// nobody would ever see to it. A removed directory leaves it only to one that is known by it: what
    /// the removed one has in it must go, and would be the other's. Nothing is made under a name that
    /// another one claims: so what stands there is not of the one that has the name now, whose claim is the
    /// latest. Else the largest number has it.
    ///
    /// # Errors
    /// [`NodeError::Busy`] while a worker has another one in hand, and may have made it for that.
    pub(super) fn is_rather_anothers(
        &self,
        work: &Work<'_>,
        link: &Link,
        found: &Attributes,
    ) -> Result<bool> {
        let is_removed_directory =
            |record: &Record| record.is_directory() && record.links.is_empty();
        let has_left = |record: &Record| !record.links.contains(link);
        self.is_of_another(work, link, found, &|other, in_other_hands| {
            let is_rather = other.backing.fingerprint.is_some()
                || !is_removed_directory(&work.record)
                    && (is_pending(other, found)
                        || is_removed_directory(other)
                        || (has_left(other), other.ino) > (has_left(&work.record), work.ino()));
            if !is_rather && in_other_hands { Err(NodeError::Busy) } else { Ok(is_rather) }
        })
    }

    /// `counts` is told of a claimant whether another worker had it in hand before its record was looked
    /// at.
    fn is_of_another(
        &self,
        work: &Work<'_>,
        link: &Link,
        found: &Attributes,
        counts: &dyn Fn(&Record, bool) -> Result<bool>,
    ) -> Result<bool> {
        let mut claimants = self.meta.stale_inodes_at(link.parent, &link.name)?;
        claimants.extend(self.heir(link)?.map(|heir| heir.ino));
        let own = |ino: &Ino| *ino == work.ino() || work.wanted_by == Some(*ino);
        for ino in claimants.into_iter().filter(|ino| !own(ino)) {
            let in_other_hands = self.is_in_other_hands(ino);
            if let Some(record) = self.known(ino)?
                && record.backing.links.contains(link)
                && is_own(&record, found)
                && counts(&record, in_other_hands)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Notes durably that `pending` is about to appear under a name where `found` stands now, so that
    /// it is known again after a failure or a crash, also one of the machine. Gives the version that may be replaced: `expect`,
    /// or one of our own that an interrupted worker could not report.
    ///
    /// # Errors
    /// If the namespace can't be written.
    pub(crate) fn intend(
        &self,
        ino: Ino,
        expect: Option<Fingerprint>,
        found: Option<&Attributes>,
        pending: Fingerprint,
    ) -> Result<Option<Fingerprint>> {
        let record = self.meta.get(ino)?;
        let unreported = |found: &&Attributes| {
            let known = record.backing.fingerprint.is_some() || record.backing.pending.is_some();
            expect != Some(found.fingerprint())
                && known
                && is_own(&record, found)
                && !was_changed(&record, found)
        };
        let own = found.filter(unreported).map(Attributes::fingerprint);
        self.entries_will_change(record.links.only().map(|link| link.parent).into_iter());
        in_hand(self.meta.intend(ino, own, pending))?;
        // Of a staged file it was noted before, together with others.
        if record.backing.pending != Some(pending) {
            self.meta.sync()?;
        }
        Ok(own.or(expect))
    }

    /// Notes that the attributes of a file in the backing store are about to be changed in place,
    /// and its times with them.
    pub(super) fn intend_in_place(&self, work: &mut Work<'_>) -> Result<()> {
        work.unsettled();
        let Some(known) = work.record.backing.fingerprint else { return Ok(()) };
        let pending = Fingerprint { mtime: work.record.attr.mtime, ..known };
        match self.meta.intend(work.ino(), None, pending) {
            Err(MetaError::Stale(_)) => return Ok(()),
            intended => in_hand(intended)?,
        };
        // Or a power cut leaves a version that nobody here knows of: others would seem to have made it.
        if work.record.backing.pending != Some(pending) {
            self.meta.sync()?;
        }
        Ok(())
    }
}

/// What another node has taken in hand meanwhile is looked at again later: it may be in line then.
pub(super) fn in_hand<T>(done: forebay_meta::Result<T>) -> Result<T> {
    done.map_err(|error| match error {
        MetaError::NotInHand(ino) => {
            tracing::info!(%ino, "another node has taken in hand what this one was working on");
            NodeError::Busy
        }
        error => error.into(),
    })
}
