//! Directories and files that their owner has closed to himself, where the mount is a plain user's.
//!
//! What `tar` or `chmod -R` does in an order that works, a worker may come to in another one: the mode of a
//! directory reaches the backing store before what is in it, and without `w` and `x` nothing can be made,
//! removed or looked up there any more. In the same way a file can't be read or written in place, nor be
//! given extended attributes, once its mode says so. So both are opened to their owner until what is to be
//! done there is done. Their record says from before that on that their mode is still to be set.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_meta::{Error as MetaError, Queue, Record, Seq};
use forebay_store::ErrorClass;
use forebay_store::backing::SetAttributes;
use forebay_types::{FileKind, Fingerprint, Ino};
use rustix::process::geteuid;

use super::identity::{in_hand, is_own, was_changed};
use super::queue::NAMES_DELAY;
use super::{MAX_PARENTS, OWNER_WAIT};
use crate::defects::Step;
use crate::error::{NodeError, Result, is_undecodable};
use crate::writeback::Writeback;

/// So often the end of a sync closes directories that were opened to set times.
pub(super) const MAX_REOPENED: usize = 3;

/// Of the backlog at a time.
const PAGE: usize = 1000;

/// What the owner of a directory needs to work in it.
const OPEN: u32 = 0o700;
/// What the owner of a file needs to read and to write it.
const OPEN_FILE: u32 = 0o600;

impl Writeback {
    /// After a refusal: opens the directories on the way to an inode, and itself, if they are this user's
    /// and he has closed them. Says whether there were any.
    pub(crate) fn open_closed_dirs(&self, record: &Record) -> Result<bool> {
        let mut opened = false;
        // From the top: without `x` nothing below is reached.
        for dir in self.dirs_to(record)?.into_iter().rev() {
            opened |= self.open_dir(dir)?;
        }
        Ok(opened)
    }

    /// The same where a program waits. What it may do the kernel has seen; but to look a name up it needs no
    /// `r`, to list it no `x`, and to remove a directory neither of them there, all of which is needed here.
    pub(crate) fn open_to_program(&self, dir: Ino) -> Result<bool> {
        let Some(record) = self.known(dir)? else { return Ok(false) };
        self.open_closed_dirs(&record)
    }

    /// Itself, if it is a directory, and those above it, here and in the backing store.
    fn dirs_to(&self, record: &Record) -> Result<Vec<Ino>> {
        let mut dirs = Vec::from_iter(record.is_directory().then_some(record.ino));
        let mut seen = HashSet::new();
        let parents = |record: &Record| {
            let links = record.links.iter().chain(&record.backing.links);
            links.map(|link| link.parent).collect::<Vec<_>>()
        };
        let mut next = parents(record);
        while let Some(dir) = next.pop() {
            if !seen.insert(dir) || seen.len() > MAX_PARENTS {
                continue;
            }
            dirs.push(dir);
            if let Some(record) = self.known(dir)? {
                next.extend(parents(&record));
            }
        }
        Ok(dirs)
    }

    fn open_dir(&self, dir: Ino) -> Result<bool> {
        let Ok(handle) = self.backing_dir(dir) else { return Ok(false) };
        let found = self.backing.stat(&handle, OsStr::new(""))?;
        if found.uid != geteuid().as_raw() || found.mode & OPEN == OPEN {
            return Ok(false);
        }
        // Others may have closed it, which is to stay.
        self.mode_is_due(dir, Some(found.mode))?;
        let set = SetAttributes { mode: Some(found.mode | OPEN), ..SetAttributes::default() };
        let changed = self.own_change_of_attributes(&[(dir, &handle)], || {
            Ok(self.backing.set_attributes(&handle, OsStr::new(""), &set)?)
        });
        match changed {
            Err(error) if error.class() == Some(ErrorClass::Denied) => return Ok(false),
            changed => changed?,
        }
        self.settle_directory(dir)?;
        self.reconciler.opened_dirs.fetch_add(1, Ordering::AcqRel);
        self.reconcile_later(dir, NAMES_DELAY);
        Ok(true)
    }

    /// Sets the times of directories. Says whether some were opened for that, or meanwhile, which are to be
    /// closed again.
    pub(super) fn restore_times_by_opening(&self) -> bool {
        let opened = || self.reconciler.opened_dirs.load(Ordering::Acquire);
        let before = opened();
        self.keep_up(Step::Times);
        opened() != before
    }

    /// After files in use were written: closes directories that were opened for that, and sets their times.
    /// What fails stays in the backlog.
    pub(super) fn settle_directories(&self, until: Instant) -> Result<()> {
        let opened = || self.reconciler.opened_dirs.load(Ordering::Acquire);
        for _ in 0..MAX_REOPENED {
            let before = opened();
            // Where none was opened, they can wait for their turn.
            let behind = match before {
                0 => Vec::new(),
                _ => self.directories_behind()?,
            };
            for dir in behind {
                if Instant::now() >= until {
                    return Ok(());
                }
                if let Err(error) = self.reconcile_as_it_is(dir) {
                    tracing::debug!(%dir, %error, "a directory waits for its turn");
                }
            }
            // To close one may have opened another.
            self.keep_up(Step::Times);
            if opened() == before {
                break;
            }
        }
        Ok(())
    }

    /// How many directories a directory lies in.
    fn depth_of(&self, dir: Ino) -> Result<usize> {
        let (mut depth, mut at) = (0, dir);
        while at != Ino::ROOT && depth < MAX_PARENTS {
            let record = match self.known(at) {
                Err(NodeError::Meta(error)) if is_undecodable(&error) => break,
                known => known?,
            };
            let Some(record) = record else { break };
            let Some(link) = record.backing.links.newest_first().next() else { break };
            at = link.parent;
            depth += 1;
        }
        Ok(depth)
    }

    /// Directories that stand where they should and wait for something else, the deepest first.
    fn directories_behind(&self) -> Result<Vec<Ino>> {
        let (mut behind, mut after) = (Vec::new(), Seq(0));
        loop {
            let page = self.meta.backlog(after, PAGE)?;
            let Some((last, _)) = page.last() else {
                // To close one takes opening those above it.
                behind.sort_unstable_by_key(|(depth, ino)| (Reverse(*depth), *ino));
                return Ok(behind.into_iter().map(|(_, ino)| ino).collect());
            };
            after = *last;
            for (_, ino) in page {
                let record = match self.known(ino) {
                    Err(NodeError::Meta(error)) if is_undecodable(&error) => continue,
                    known => known?,
                };
                let stands = |record: &Record| record.links == record.backing.links;
                if record.is_some_and(|record| record.is_directory() && stands(&record)) {
                    behind.push((self.depth_of(ino)?, ino));
                }
            }
        }
    }

    /// After a refusal: opens a file in the backing store to its owner, if he is this user and has closed
    /// it. Says whether he had. Who calls this owns the inode.
    pub(super) fn open_closed_file(&self, ino: Ino) -> Result<bool> {
        let Some(record) = self.known(ino)? else { return Ok(false) };
        if record.attr.kind != FileKind::Regular {
            return Ok(false);
        }
        let (Some(known), Ok(object)) = (record.backing.fingerprint, self.standing_object(&record))
        else {
            return Ok(false);
        };
        let found = self.backing.stat(&object, OsStr::new(""))?;
        let is_closed = found.uid == geteuid().as_raw() && found.mode & OPEN_FILE != OPEN_FILE;
        if !is_closed || !is_own(&record, &found) || was_changed(&record, &found) {
            return Ok(false);
        }
        self.mode_is_due(ino, None)?;
        // The change time moves: others would seem to have changed it.
        match self.meta.intend(ino, None, Fingerprint { mtime: record.attr.mtime, ..known }) {
            Err(MetaError::Stale(_)) => return Ok(false),
            intended => in_hand(intended)?,
        };
        self.meta.sync()?;
        self.rights.may_change_store()?;
        let mode = Some(found.mode | OPEN_FILE);
        let set = SetAttributes { mode, ..SetAttributes::default() };
        match self.backing.set_attributes(&object, OsStr::new(""), &set) {
            Err(error) if error.class() == ErrorClass::Denied => return Ok(false),
            set => set?,
        }
        self.reconcile_later(ino, NAMES_DELAY);
        Ok(true)
    }

    /// The same for who reads it, also of the directories above it. True as well if a worker was at it, and
    /// it may be open by now.
    pub(crate) fn open_to_reader(&self, ino: Ino) -> Result<bool> {
        if self.is_in_own_hands(ino) {
            // After its refusal.
            return Ok(false);
        }
        let waits = self.is_in_other_hands(ino);
        let Some(_owned) = self.own(ino, OWNER_WAIT) else { return Ok(false) };
        let record = self.meta.get(ino)?;
        Ok(self.open_closed_dirs(&record)? || self.open_closed_file(ino)? || waits)
    }

    /// The mode in the backing store is about to be another one than the record says, or than was `found`
    /// where none was set here.
    fn mode_is_due(&self, ino: Ino, found: Option<u32>) -> Result<()> {
        let mut is_theirs = false;
        let due = |record: &mut Record| {
            if let Some(mode) = found.filter(|_| !record.backing.attrs_differ) {
                is_theirs = record.attr.perm != mode;
                record.attr.perm = mode;
            }
            record.backing.attrs_differ = true;
            // Whoever has just set it does not report that it is as it should be.
            record.change += 1;
            Queue::Yes
        };
        match self.meta.update(ino, None, due) {
            Err(MetaError::Stale(_)) => return Ok(()),
            updated => drop(updated?),
        }
        if is_theirs {
            self.residency.forget_object(ino, false);
        }
        Ok(())
    }
}
