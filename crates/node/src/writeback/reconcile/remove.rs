//! Removed inodes: taking their names from the backing store, unless others changed them.

use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use forebay_meta::{Link, Record};
use forebay_store::backing::{Known, Removed};
use forebay_store::{Attributes, Dir, ErrorClass};
use forebay_types::{FileKind, Ino};
use std::ops::ControlFlow;

use super::MAX_NESTED;
use super::identity::{is_own, is_pending};
use super::names::os;
use super::work::{Step, Work};
use crate::config::Coherence;
use crate::error::{NodeError, Result};
use crate::writeback::Writeback;
use crate::writeback::import::LIMBO;
use crate::writeback::parked::parked_link;

impl Writeback {
    /// Takes the names of an inode that has none here.
    pub(super) fn remove<'a>(&'a self, work: &mut Work<'a>, depth: usize) -> Result<Step> {
        let is_file = work.record.attr.kind == FileKind::Regular;
        if work.record.orphan && is_file {
            // Its name goes, whoever writes it: what is written is within reach by the one in limbo.
            let hidden = self.hide(work)?;
            return match hidden {
                Step::Done => self.write_for_unseen_names(work, depth),
                Step::Again => Ok(Step::Again),
            };
        }
        if self.write_for_unseen_names(work, depth)? == Step::Again {
            return Ok(Step::Again);
        }
        for link in work.record.backing.links.clone() {
            // Deeper down, it is removed for the sake of the one that wants the name.
            if depth == 0 && self.is_wanted(work, &link)? {
                continue;
            }
            match self.look_at(&work.record, &link)? {
                None => self.was_never_there(work, &link),
                Some((dir, name, found)) => {
                    let sure = work.record.backing.fingerprint.is_some()
                        || is_pending(&work.record, &found);
                    if !is_own(&work.record, &found) {
                        self.stays_for_others(work, &link, &found)?;
                    } else if !sure && self.is_rather_anothers(work, &link, &found)? {
                        // Claimed, and never made.
                    } else if work.record.is_directory() {
                        if !sure {
                            // What is in it must be found.
                            let _kept = self.hold_made(work.ino(), &dir, &name, &found)?;
                        }
                        self.remove_directory(work, &link, (&dir, &name), &found, depth)?;
                        continue;
                    } else {
                        let known = Known::Version(found.fingerprint());
                        self.unlink_if(link.parent, (&dir, &name), known)?;
                        work.touched(link.parent, &dir);
                    }
                    work.went(&link);
                }
            }
        }
        Ok(Step::Done)
    }

    /// A removed inode is not under a name that it claims, as one that the store has refused: nothing is to be
    /// done there, and the directory has another time here since.
    fn was_never_there(&self, work: &mut Work<'_>, link: &Link) {
        if link.parent != LIMBO {
            self.entries_changed_here_alone(link.parent);
        }
        work.went(link);
    }

    /// What was changed here of a file shows under its names that nobody has looked at: it is written before
    /// the last one that is known goes.
    pub(super) fn write_for_unseen_names<'a>(
        &'a self,
        work: &mut Work<'a>,
        depth: usize,
    ) -> Result<Step> {
        if !work.record.has_unseen_names() {
            return Ok(Step::Done);
        }
        if work.record.backing.links.len() > 1 {
            // It may stand under one of them only: another was claimed, and its worker ended.
            self.survey(work)?;
        }
        if !work.record.is_dirty() && self.residency.settle_if_unsettled(work.ino())? {
            return Err(NodeError::Busy);
        }
        if self.write_bytes(work, depth)? == Step::Again {
            return Ok(Step::Again);
        }
        self.write_attributes(work)?;
        Ok(Step::Done)
    }

    /// A removed file in use leaves its name; its bytes stay within reach until the last close.
    fn hide(&self, work: &mut Work<'_>) -> Result<Step> {
        let limbo = parked_link(work.ino());
        for link in work.record.backing.links.clone() {
            if link == limbo || self.is_wanted(work, &link)? {
                continue;
            }
            let Some((dir, name, found)) = self.look_at(&work.record, &link)? else {
                self.was_never_there(work, &link);
                continue;
            };
            if !is_own(&work.record, &found) {
                self.stays_for_others(work, &link, &found)?;
                work.went(&link);
            } else if self.is_parked(work)? {
                let known = Known::Version(found.fingerprint());
                self.unlink_if(link.parent, (&dir, &name), known)?;
                work.touched(link.parent, &dir);
                work.went(&link);
            } else {
                work.note_version(&found.fingerprint());
                self.put_aside(work, &link, &dir)?;
                self.look_after_move(work)?;
            }
        }
        Ok(Step::Done)
    }

    /// What stands under a name of a removed inode is not its own: it stays, also if it is nobody's here.
    fn stays_for_others(&self, work: &mut Work<'_>, link: &Link, found: &Attributes) -> Result<()> {
        if self.is_anothers(work, link, found)? {
            return Ok(());
        }
        if self.is_overtaken(work, link, found)? {
            return Err(NodeError::Busy);
        }
        if link.parent == LIMBO {
            // Nobody would ever look for it there.
            if let Some(kept) = self.backing.set_parked_aside(work.ino().0)? {
                let kept = kept.into_os_string().into_vec();
                self.remember(link, Some(kept), "removed here, changed by others");
            }
            return Ok(());
        }
        if link.parent != Ino::ROOT
            && self.known(link.parent)?.is_none_or(|parent| parent.links.is_empty())
        {
            // Nor does its directory count, which sees to what others have in it; and perhaps it is the
            // next one of that name.
            return Ok(());
        }
        tracing::debug!(ino = %work.ino(), ?link, ?found, record = ?work.record, "not ours");
        self.keep_foreign(work, link, found, "removed here, changed by others");
        Ok(())
    }

    /// Whether a name of a removed inode belongs to a living one, which replaces what is there in
    /// one step when its turn comes.
    fn is_wanted(&self, work: &mut Work<'_>, link: &Link) -> Result<bool> {
        let Some(heir) = self.heir(link)? else { return Ok(false) };
        if heir.backing.links.contains(link) && heir.queued.is_none() {
            // It has the name already.
            work.went(link);
        } else {
            work.left_to_heir = true;
        }
        Ok(true)
    }

    /// Removes the directory that was found under a name of a removed one, and no other that others have
    /// put there since.
    fn remove_directory<'a>(
        &'a self,
        work: &mut Work<'a>,
        link: &Link,
        (dir, name): (&Dir, &[u8]),
        found: &Attributes,
        depth: usize,
    ) -> Result<()> {
        let known = found.fingerprint();
        let rmdir = || match self.config.coherence {
            Coherence::Exclusive => {
                Ok(self.backing.rmdir(dir, os(name)).map(|()| Removed::Done)?)
            }
            _ => Ok(self.backing.rmdir_known(dir, os(name), &known)?),
        };
        for _ in 0..3 {
            match self.own_change(&[(link.parent, dir)], rmdir) {
                Ok(removed) => {
                    self.after_removal_below(link, removed)?;
                    self.drop_handle(work.ino());
                    work.touched(link.parent, dir);
                    work.went(link);
                    return Ok(());
                }
                Err(error) => match error.class() {
                    Some(ErrorClass::NotFound) => {
                        work.went(link);
                        return Ok(());
                    }
                    Some(ErrorClass::Exists) => {}
                    _ => return Err(error),
                },
            }
            if !self.empty_directory(work, depth)? {
                let itself = self.backing.open_dir(dir, os(name))?;
                if self.has_entries(&itself)? {
                    if !self.is_made_again(work, link)? {
                        let now = self.backing.stat(&itself, os(b""))?;
                        let why = "directory removed here, filled by others";
                        self.keep_foreign(work, link, &now, why);
                    }
                    self.drop_handle(work.ino());
                    work.went(link);
                    return Ok(());
                }
            }
        }
        Err(NodeError::Busy)
    }

    /// Whether the directory under a name of a removed one is a new one of ours: the answer to the
    /// removal was lost, and what was made there next got the same inode number. What is in it is
    /// nobody's that was in the removed one: those are gone by now.
    fn is_made_again(&self, work: &Work<'_>, link: &Link) -> Result<bool> {
        let number = |record: &Record| record.backing.fingerprint.map(|print| print.ino);
        // It may have been renamed or removed since, too.
        let mut claimants = self.meta.stale_inodes_at(link.parent, &link.name)?;
        claimants.extend(self.heir(link)?.map(|heir| heir.ino));
        for ino in claimants.into_iter().filter(|ino| *ino != work.ino()) {
            if let Some(other) = self.known(ino)?
                && other.is_directory()
                && other.backing.links.contains(link)
                // Not known if that answer was lost, too.
                && number(&other).is_none_or(|known| Some(known) == number(&work.record))
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes what our own inodes still have in a removed directory; says whether there was any.
    fn empty_directory<'a>(&'a self, work: &mut Work<'a>, depth: usize) -> Result<bool> {
        if depth >= MAX_NESTED {
            work.too_deep = Some(work.ino());
            return Err(NodeError::Busy);
        }
        let (mut any, mut left) = (false, false);
        let stale_names = self.meta.stale_names(work.ino())?;
        for (name, ino) in &stale_names {
            if work.has_other(*ino) {
                // What was done to it is not reported, and it may have more names than one in here.
                left |= work.leaves_name(*ino, &Link::new(work.ino(), name.clone()));
                continue;
            }
            any = true;
            let timeout =
                if *ino > work.ino() { Duration::from_millis(200) } else { Duration::ZERO };
            let Some(owned) = self.own(*ino, timeout) else { return Err(NodeError::Busy) };
            let Some(record) = self.known(*ino)? else { continue };
            let mut other = Work::new(&record);
            let done = if record.links.is_empty() {
                self.remove(&mut other, depth + 1).map(drop)
            } else {
                work.followers.push(*ino);
                let here = |link: &&Link| link.parent == work.ino();
                let names: Vec<Link> = record.backing.links.iter().filter(here).cloned().collect();
                self.take_out(&mut other, &names)
            };
            work.also(owned, other);
            done?;
        }
        if left && !any {
            return Err(NodeError::Busy);
        }
        Ok(any)
    }

    pub(super) fn has_entries(&self, dir: &Dir) -> Result<bool> {
        let mut any = false;
        self.backing.list(dir, &mut |entries| {
            any |= !entries.is_empty();
            if any { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(any)
    }
}
