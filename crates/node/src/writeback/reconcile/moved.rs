//! What a worker has moved, linked or parked in the backing store is looked at where it arrived.
//!
//! Between the look of a worker at a name and what it does with the name, others may put something of
//! theirs there: then it is theirs that was moved. It gets its name back. If they have taken that as
//! well, it stays where it is, and the name is left to it; so it does where the system can't tell
//! whether it came along or was put there afterwards. What the worker meant to move is nowhere then, as
//! after a removal by others, and is made anew from what is here: also from a copy, if that has all of
//! it. A hard link is made by a handle, and can't be of another file.
//!
//! # Invariants
//! - No file of others is taken for ours or is removed, whichever two of the worker's operations they
//!   come between; and it has the name that they gave it, if they have replaced what had that before
//!   (`tests/moved.rs`).

use forebay_meta::Link;
use forebay_store::backing::RenameMode;
use forebay_store::{Attributes, Dir, ErrorClass};
use forebay_types::FileKind;

use super::identity::may_be_ours;
use super::names::os;
use super::work::{Step, Work};
use crate::config::Coherence;
use crate::error::Result;
use crate::writeback::Writeback;
use crate::writeback::import::LIMBO;
use crate::writeback::parked::parked_link;

/// Why there is a conflict.
const REPLACED: &str = "moved here, replaced by others";

/// Where something was moved from.
pub(super) struct Source {
    pub(super) dir: Dir,
    /// A handle on what had the name shortly before.
    pub(super) held: Option<Dir>,
}

impl Writeback {
    /// A handle on what is about to be moved; none where nobody else changes names.
    pub(super) fn hold_before_move(&self, dir: &Dir, name: &[u8]) -> Result<Option<Dir>> {
        Ok(match self.config.coherence {
            Coherence::Exclusive => None,
            _ => Some(self.backing.hold(dir, os(name))?),
        })
    }

    /// A rename of the inode in hand was carried out: looks at what it has brought. That of others goes
    /// back.
    pub(super) fn look_at_moved(
        &self,
        work: &mut Work<'_>,
        from: &Link,
        source: Option<&Source>,
        (to, to_dir): (&Link, &Dir),
    ) -> Result<Step> {
        work.touched(to.parent, to_dir);
        if let Some(source) = source {
            work.touched(from.parent, &source.dir);
        }
        let found = match self.config.coherence {
            Coherence::Exclusive => None,
            _ => self.shown_at(to_dir, &to.name)?,
        };
        let theirs = found.filter(|found| !may_be_ours(&work.record, found));
        if let Some(found) = theirs {
            if let Some(source) = source
                && self.has_come_along(from, source, &found)?
            {
                tracing::debug!(ino = %work.ino(), ?from, ?to, ?found, "others' goes back");
                self.move_back(work, (from, &source.dir), (to, to_dir))?;
            } else {
                tracing::debug!(ino = %work.ino(), ?to, ?found, "others have replaced what came");
                self.leave_arrived(work, from, to)?;
            }
            return Ok(Step::Again);
        }
        work.came(to, to_dir);
        work.went(from);
        if let Some(found) = found.filter(|_| !work.record.is_directory()) {
            self.note_after_move(work, &found.fingerprint());
        }
        Ok(Step::Done)
    }

    /// Whether what others have at the new name was under the old one when that was moved: it is what
    /// was held there, or what was held had been replaced there by then. Else they have put it where it
    /// is, after the move, and there it stays.
    fn has_come_along(&self, from: &Link, source: &Source, found: &Attributes) -> Result<bool> {
        let Some(held) = &source.held else { return Ok(false) };
        match self.backing.stat(held, os(b"")) {
            Ok(now) if now.same_inode(&found.fingerprint()) => return Ok(true),
            Ok(_) => {}
            // Over NFS a handle of what others have replaced is not valid any more.
            Err(error) if matches!(error.class(), ErrorClass::Stale | ErrorClass::NotFound) => {}
            Err(error) => return Err(error.into()),
        }
        let stood = self.backing.last_place(held);
        let old = self.backing.last_place(&source.dir).map(|dir| dir.join(os(&from.name)));
        Ok(stood.is_some() && stood == old)
    }

    /// What others have put under the new name is theirs, and what was moved there is gone.
    fn leave_arrived(&self, work: &mut Work<'_>, from: &Link, to: &Link) -> Result<()> {
        work.went(from);
        work.went(to);
        work.foreign(to);
        self.nowhere_any_more(work)
    }

    /// Gives what others have at `to` the name that they gave it.
    fn move_back(
        &self,
        work: &mut Work<'_>,
        (from, from_dir): (&Link, &Dir),
        (to, to_dir): (&Link, &Dir),
    ) -> Result<()> {
        let back = self.own_change(&[(to.parent, to_dir), (from.parent, from_dir)], || {
            let mode = RenameMode::NoReplace;
            Ok(self.backing.rename(to_dir, os(&to.name), from_dir, os(&from.name), mode)?)
        });
        match back {
            Ok(()) => {}
            // They have removed it by now.
            Err(error) if error.class() == Some(ErrorClass::NotFound) => {}
            // It stays, and whoever wants this one finds it there: they have taken the name as well, or it
            // can't be given back.
            Err(error) => {
                if error.class() != Some(ErrorClass::Exists) {
                    tracing::warn!(
                        from = %from.name.escape_ascii(),
                        to = %to.name.escape_ascii(),
                        %error,
                        "what others have put under the old name of a moved file has come to the new one, \
                         and can't be given back: move it"
                    );
                }
                work.foreign(to);
            }
        }
        work.went(from);
        work.went(to);
        work.foreign(from);
        self.nowhere_any_more(work)
    }

    /// Looks at what has come to limbo from `from`; that of others goes back. Says whether it was.
    pub(super) fn look_at_parked(
        &self,
        work: &mut Work<'_>,
        (from, from_dir): (&Link, &Dir),
    ) -> Result<bool> {
        let limbo = self.backing_dir(LIMBO)?;
        let key = work.ino().0;
        let name = self.backing.parked_name(key);
        let Some(found) = self.theirs_at(work, &limbo, name.as_encoded_bytes())? else {
            return Ok(false);
        };
        tracing::debug!(ino = %work.ino(), ?from, ?found, "others' was parked, and goes back");
        let back = self.own_change(&[(from.parent, from_dir)], || {
            Ok(self.backing.unpark(key, from_dir, os(&from.name))?)
        });
        if back.is_err() {
            // They have taken the name as well, or it can't be given back now.
            if let Some(kept) = self.backing.set_parked_aside(key)? {
                let kept = std::os::unix::ffi::OsStringExt::into_vec(kept.into_os_string());
                self.remember(from, Some(kept), REPLACED);
            }
        }
        work.touched(from.parent, from_dir);
        work.went(&parked_link(work.ino()));
        work.went(from);
        work.foreign(from);
        self.nowhere_any_more(work)?;
        Ok(true)
    }

    /// Looks at what a second name in limbo is of; one of others' goes. Says whether it was.
    pub(super) fn look_at_second_parked(&self, work: &mut Work<'_>) -> Result<bool> {
        let limbo = self.backing_dir(LIMBO)?;
        let name = self.backing.parked_name(work.ino().0);
        if self.theirs_at(work, &limbo, name.as_encoded_bytes())?.is_none() {
            return Ok(false);
        }
        // Nobody else has names there.
        self.backing.unlink(&limbo, &name)?;
        work.went(&parked_link(work.ino()));
        self.forget_replaced_names(work)?;
        Ok(true)
    }

    /// What stands under a name, if it can't be the object of the inode in hand.
    fn theirs_at(&self, work: &Work<'_>, dir: &Dir, name: &[u8]) -> Result<Option<Attributes>> {
        if self.config.coherence == Coherence::Exclusive {
            return Ok(None);
        }
        Ok(self.shown_at(dir, name)?.filter(|found| !may_be_ours(&work.record, found)))
    }

    /// Whether the store has the inode in hand under a name, as far as can be said.
    pub(super) fn has_at(&self, work: &Work<'_>, (dir, name): (&Dir, &[u8])) -> Result<bool> {
        let found = self.shown_at(dir, name)?;
        Ok(found.is_none_or(|found| may_be_ours(&work.record, &found)))
    }

    fn shown_at(&self, dir: &Dir, name: &[u8]) -> Result<Option<Attributes>> {
        match self.backing.stat(dir, os(name)) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.class() == ErrorClass::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Names of the inode in hand under which others have something now are theirs.
    pub(super) fn forget_replaced_names(&self, work: &mut Work<'_>) -> Result<()> {
        let before = work.record.backing.links.clone();
        for link in before.clone() {
            match self.look_at(&work.record, &link)? {
                Some((_, _, found)) if may_be_ours(&work.record, &found) => {}
                Some(_) => {
                    work.went(&link);
                    work.foreign(&link);
                }
                None => work.went(&link),
            }
        }
        let is_taken = |link: &&Link| !work.record.backing.links.contains(link);
        let taken: Vec<Link> = before.iter().filter(is_taken).cloned().collect();
        self.names_were_taken(work, &taken)
    }

    /// As [`Writeback::names_were_taken`], where nothing of the inode in hand is known to have stood.
    fn nowhere_any_more(&self, work: &mut Work<'_>) -> Result<()> {
        self.names_were_taken(work, &[])
    }

    /// Others have removed or replaced names under which the inode in hand stood: those of a file that nobody
    /// changed here are theirs, as for any other one. With its last name it has lost what the store had of it.
    fn names_were_taken(&self, work: &mut Work<'_>, taken: &[Link]) -> Result<()> {
        let (ino, record) = (work.ino(), &work.record);
        let is_nowhere = record.backing.links.is_empty();
        if is_nowhere && record.is_directory() && record.backing.fingerprint.is_some() {
            self.take_away_below(ino)?;
        }
        let is_recorded_clean =
            record.attr.kind == FileKind::Regular && !record.is_dirty() && !record.spilled;
        let is_clean = is_recorded_clean && !self.residency.is_unsettled(ino);
        let mut counts = Ok(true);
        if is_nowhere && is_recorded_clean && !record.links.is_empty() && record.attr.size > 0 {
            // Before that is reported: a start would take a copy of it for one of nothing.
            counts = self.residency.whole_copy_counts(record);
        }
        for link in taken.iter().filter(|_| is_clean) {
            // It is there again if the file has no other one by now.
            if work.record.links.len() > 1 && work.record.links.remove(link) {
                self.take_away_one_of(link, ino)?;
            }
        }
        match counts {
            Ok(false) if is_clean => drop(self.lost(work)?),
            Ok(_) => {}
            Err(error) => {
                work.awaits_its_copy();
                return Err(error);
            }
        }
        if is_nowhere {
            work.disowned();
        }
        Ok(())
    }
}
