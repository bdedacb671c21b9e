//! Directories that their owner has closed to himself, where the mount is a plain user's.
//!
//! What `tar` or `chmod -R` does in an order that works, a worker may come to in another one: the mode of a
//! directory reaches the backing store before what is in it, and without `w` and `x` nothing can be made,
//! removed or looked up there any more. So the directory is opened to its owner until what is below is
//! written. Its record says from before that on that its mode is still to be set.

use std::collections::HashSet;
use std::ffi::OsStr;

use forebay_meta::{Error as MetaError, Queue, Record};
use forebay_store::ErrorClass;
use forebay_store::backing::SetAttributes;
use forebay_types::Ino;
use rustix::process::geteuid;

use super::MAX_PARENTS;
use super::queue::NAMES_DELAY;
use crate::error::Result;
use crate::writeback::Writeback;

/// What the owner of a directory needs to work in it.
const OPEN: u32 = 0o700;

impl Writeback {
    /// After a refusal: opens the directories on the way to an inode, and itself, if they are this user's
    /// and he has closed them. Says whether there were any.
    pub(super) fn open_closed_dirs(&self, record: &Record) -> Result<bool> {
        self.open_dirs(record, |_| OPEN)
    }

    /// The same where a program waits: as far as they are open here, and the backing store does not know it
    /// yet.
    pub(crate) fn open_as_here(&self, dir: Ino) -> Result<bool> {
        let Some(record) = self.known(dir)? else { return Ok(false) };
        self.open_dirs(
            &record,
            |dir| if dir.backing.attrs_differ { dir.attr.perm & OPEN } else { 0 },
        )
    }

    fn open_dirs(&self, record: &Record, wanted: impl Fn(&Record) -> u32) -> Result<bool> {
        let mut opened = false;
        // From the top: without `x` nothing below is reached.
        for dir in self.dirs_to(record)?.into_iter().rev() {
            if let Some(record) = self.known(dir)? {
                opened |= self.open_dir(dir, wanted(&record))?;
            }
        }
        Ok(opened)
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

    fn open_dir(&self, dir: Ino, wanted: u32) -> Result<bool> {
        let Ok(handle) = self.backing_dir(dir) else { return Ok(false) };
        let found = self.backing.stat(&handle, OsStr::new(""))?;
        if found.uid != geteuid().as_raw() || found.mode & wanted == wanted {
            return Ok(false);
        }
        let is_due = |record: &mut Record| {
            record.backing.attrs_differ = true;
            // Whoever has just set it does not report that it is as it should be.
            record.change += 1;
            Queue::Yes
        };
        match self.meta.update(dir, None, is_due) {
            Err(MetaError::Stale(_)) => {}
            updated => drop(updated?),
        }
        let set = SetAttributes { mode: Some(found.mode | wanted), ..SetAttributes::default() };
        let changed = self.own_change(&[(dir, &handle)], || {
            Ok(self.backing.set_attributes(&handle, OsStr::new(""), &set)?)
        });
        match changed {
            Err(error) if error.class() == Some(ErrorClass::Denied) => return Ok(false),
            changed => changed?,
        }
        self.settle_directory(dir)?;
        self.reconcile_later(dir, NAMES_DELAY);
        Ok(true)
    }
}
