//! Noticing what others changed in the backing store.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use forebay_meta::{Attr, BytesHere, Error as MetaError, Found, Link, Record, Refreshed, Vanished};
use forebay_store::{BackingFile, Dir, ErrorClass};
use forebay_types::{FileKind, Fingerprint, Ino, Timestamp};
use rustix::io::Errno;

use super::dirs::MAX_PARENTS;
use super::names_seen::NamesSeen;
use super::{UNRESPONSIVE, is_unconfirmed};
use crate::after_refusal::is_denied;
use crate::clock;
use crate::config::Coherence;
use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::residency::data_location::{DataLocation, TierObject, Underlay};
use crate::residency::files::File;
use crate::writeback::Writeback;
use crate::writeback::published_open::AsPublished;
use crate::writeback::reconcile::{NAMES_DELAY, is_own};

const PAGE: usize = 1000;

/// So often a version is compared with its record, which a worker changes meanwhile.
const MAX_LOOKS: usize = 16;

/// How long whoever has met another version waits for a worker that is at the file.
const WORKER_TIMEOUT: Duration = Duration::from_secs(2);

/// Names of a file that are looked at to find one under which it stands.
const MAX_NAMES: usize = 16;

impl Writeback {
    /// Compares a clean object with the backing store when its freshness has run out; drops stale
    /// copies. The record that counts from now on.
    ///
    /// # Errors
    /// `ESTALE` if it is gone: whoever opens it by a name may be about to make it then, and the kernel finds
    /// out only by looking the name up again.
    pub(crate) fn revalidate(&self, context: &Context, record: Arc<Record>) -> Result<Arc<Record>> {
        if self.config.coherence == Coherence::Exclusive
            || record.attr.kind != FileKind::Regular
            || record.backing.links.is_empty()
            || record.differs()
            || self.imports.files.is_fresh(record.ino)
        {
            return Ok(record);
        }
        context.wait()?;
        if self.imports.health.is_unresponsive() {
            return Ok(record);
        }
        let now = self.compare(record.ino)?;
        now.ok_or_else(|| MetaError::Stale(record.ino).into())
    }

    /// What is about to be read below a file must be the version that is known here: its bytes beside
    /// those of another one would be a version that never was.
    ///
    /// # Errors
    /// `ESTALE`: see [`Writeback::takes_newer_version`]. [`NodeError::RestGone`] of a file that has changes
    /// here: nothing newer can be taken over then, and its write-back finds the conflict.
    pub(crate) fn check_known_version(&self, ino: Ino, opened: &dyn BackingFile) -> Result<()> {
        let file = self.residency.files.get(ino);
        for _ in 0..MAX_LOOKS {
            let record = self.meta.get(ino)?;
            let is_changed_here = record.differs() || self.residency.is_unsettled(ino);
            let found = opened.stat()?;
            if is_changed_here && record.backing.fingerprint.is_none() {
                // Of a file in conflict, for which it is held: none of the store's versions is its own,
                // and others may go on to write into this one, wherever it is.
                match file.is_still_below(&found.fingerprint()) {
                    true => return Ok(()),
                    false => break,
                }
            }
            if is_own(&record, &found) {
                file.saw_below(found.fingerprint());
                return Ok(());
            }
            if !is_changed_here {
                tracing::debug!(%ino, "others have changed the file since it was looked at");
                return Err(Errno::STALE.into());
            }
            // A worker may have set its times, or reported a new version, between the two looks.
            if self.meta.get(ino)?.backing == record.backing {
                break;
            }
        }
        Err(self.found_rest_gone(ino))
    }

    /// Opens the version of a file that is known, of which parts are not here.
    ///
    /// # Errors
    /// As [`Writeback::check_known_version`]; what the backing store says.
    pub(crate) fn open_known_version(&self, ino: Ino) -> Result<Arc<dyn BackingFile>> {
        let record = self.meta.get(ino)?;
        let is_changed_here = self.residency.peers.judges_store_alone()
            && (record.differs() || self.residency.is_unsettled(ino));
        if is_changed_here && !has_version(&record) {
            return Err(self.found_rest_gone(ino));
        }
        let opened = match self.open_version(ino) {
            Err(error) if is_changed_here && error.class() == Some(ErrorClass::NotFound) => {
                return Err(self.found_rest_gone(ino));
            }
            opened => opened?,
        };
        if is_changed_here && record.backing.fingerprint.is_none() {
            // What stands under its name may be of others.
            let (now, found) = (self.meta.get(ino)?, opened.stat()?);
            if !is_own(&now, &found) {
                return Err(self.found_rest_gone(ino));
            }
            self.residency.files.get(ino).saw_below(found.fingerprint());
            return Ok(opened);
        }
        self.residency.check_version(ino, &*opened)?;
        Ok(opened)
    }

    /// Whether only a part of a file is here, unchanged, so that the rest is below, where others may have
    /// put another version.
    pub(crate) fn needs_rest_below(&self, place: &TierObject) -> bool {
        !place.is_marked_whole()
            && !place.is_dirty()
            && self.residency.peers.judges_store_alone()
            && self.config.coherence == Coherence::Open
            && !self.imports.health.is_unresponsive()
    }

    /// Before an open, and before the first change, of a file of which only a part is here: the rest must
    /// be of the same version, or what is read, or written back, would be one that never was. What is
    /// opened for it stays so as long as the file is in use, whatever others put under its name.
    ///
    /// # Errors
    /// As [`Writeback::check_known_version`].
    pub(crate) fn check_rest_below(
        &self,
        file: &File,
        location: &DataLocation,
        place: &TierObject,
    ) -> Result<()> {
        let Underlay::Backing(opened) = location.base() else { return Ok(()) };
        if !self.needs_rest_below(place) {
            return Ok(());
        }
        let checked = self
            .residency
            .opened_base(file, opened)
            .and_then(|base| self.check_known_version(file.ino, &*base));
        match checked {
            Err(NodeError::Posix(Errno::STALE)) => checked,
            // What ails the store is told when it is needed.
            _ => Ok(()),
        }
    }

    /// After an error: whether the backing store had another version of a file than the known one, and
    /// that was taken over, so that what has failed may be tried again.
    pub(crate) fn takes_newer_version(&self, file: &File, error: &NodeError) -> bool {
        matches!(error, NodeError::Posix(Errno::STALE))
            && self.residency.peers.judges_store_alone()
            && matches!(self.compare_within(file.ino, WORKER_TIMEOUT), Ok(Some(_)))
    }

    /// After an error: whether others have removed a file from the backing store, which is known now.
    pub(crate) fn finds_gone(&self, file: &File, error: &NodeError) -> bool {
        error.class() == Some(ErrorClass::NotFound)
            && self.residency.peers.judges_store_alone()
            && matches!(self.compare_within(file.ino, WORKER_TIMEOUT), Ok(None))
    }

    /// Compares one clean object with what the backing store has under its name. `None`: it is gone.
    fn compare(&self, ino: Ino) -> Result<Option<Arc<Record>>> {
        self.compare_within(ino, Duration::ZERO)
    }

    fn compare_within(&self, ino: Ino, timeout: Duration) -> Result<Option<Arc<Record>>> {
        // A worker that is at it changes both sides; what it leaves behind is in line.
        let Some(_owned) = self.own(ino, timeout) else {
            return Ok(Some(self.meta.get(ino)?));
        };
        let record = self.meta.get(ino)?;
        // Nor is what still stands under a name that is only claimed for a new file.
        if record.differs() || is_unconfirmed(&record) {
            return Ok(Some(record));
        }
        let Some(link) = record.backing.links.first().cloned() else { return Ok(Some(record)) };
        let _asked = self.imports.health.begin();
        if record.backing.links.len() > 1 {
            return self.compare_one_of(&record).map(Some);
        }
        match self.look_under(&link) {
            Ok(found) => self.take_in(&record, &found).map(Some),
            Err(error) if error.class() == Some(ErrorClass::NotFound) => {
                if !self.is_gone(ino)? {
                    return Ok(Some(record));
                }
                self.take_away(&link, ino)?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Others changed a file before what was set here reached it: it is taken over as it is now.
    pub(crate) fn take_theirs(&self, ino: Ino) -> Result<()> {
        self.compare(ino).map(drop)
    }

    /// What the backing store has under a name.
    pub(super) fn look_under(&self, link: &Link) -> Result<Found> {
        self.in_directory(link.parent, |dir| {
            let attributes = self.backing.stat(dir, OsStr::from_bytes(&link.name))?;
            self.found(dir, &link.name, &attributes)
        })
    }

    /// As [`Writeback::compare`], of a file with several names: by one under which it still stands. What
    /// others did to the other names the listings of their directories find
    /// ([`Writeback::take_over_name`]).
    fn compare_one_of(&self, record: &Arc<Record>) -> Result<Arc<Record>> {
        let known = record.backing.fingerprint;
        let mut denied = None;
        for link in record.backing.links.iter().take(MAX_NAMES) {
            match self.look_under(link) {
                Ok(found) if known.is_some_and(|print| print.same_inode(&found.fingerprint)) => {
                    return self.take_in(record, &found);
                }
                Ok(_) => {}
                // Its user may have closed one of the directories to himself, and not the others.
                Err(error) if is_denied(&error) => denied = Some(error),
                Err(error) if error.class() == Some(ErrorClass::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        denied.map_or_else(|| Ok(record.clone()), Err)
    }

    /// Whether the backing store is without an inode that it had: looks again, with nothing on the
    /// way to it on the move. What was looked for while a worker renamed a directory above it was
    /// sought in two wrong places. The caller owns the inode.
    fn is_gone(&self, ino: Ino) -> Result<bool> {
        let Some(way) = self.way_at_rest(ino)? else { return Ok(false) };
        for (above, _) in &way {
            self.handle_is_dead(*above)?;
        }
        let looked = self.meta.get(ino).map_err(NodeError::from).and_then(|record| {
            let (dir, name) = self.backing_place(&record)?;
            let found = self.backing.stat(&dir, OsStr::from_bytes(&name))?;
            // Of another kind it is another.
            let same = found.kind == record.attr.kind;
            if same { Ok(()) } else { Err(Errno::NOENT.into()) }
        });
        match looked {
            Err(error) if error.class() == Some(ErrorClass::NotFound) => {
                Ok(self.way_at_rest(ino)?.is_some_and(|now| now == way))
            }
            Ok(()) | Err(NodeError::Meta(MetaError::Stale(_))) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// An inode and the directories above it, with the counts of their changes, if each stands in
    /// the backing store just where it should; `None` if one does not, or if the inode is removed.
    pub(super) fn way_at_rest(&self, ino: Ino) -> Result<Option<Vec<(Ino, u64)>>> {
        let mut way = Vec::new();
        let mut at = ino;
        while at != Ino::ROOT {
            let record = match self.meta.get(at) {
                Err(MetaError::Stale(_)) => return Ok(None),
                record => record?,
            };
            let Some(link) = record.links.only() else { return Ok(None) };
            if record.links != record.backing.links || is_unconfirmed(&record) {
                return Ok(None);
            }
            way.push((at, record.change));
            if way.len() > MAX_PARENTS {
                return Err(Errno::LOOP.into());
            }
            at = link.parent;
        }
        Ok(Some(way))
    }

    /// Takes over what the backing store says now about a clean inode that the caller owns.
    fn take_in(&self, record: &Arc<Record>, found: &Found) -> Result<Arc<Record>> {
        let ino = record.ino;
        // The kernel keeps which device it is for as long as the inode lives.
        let is_special = matches!(record.attr.kind, FileKind::BlockDevice | FileKind::CharDevice);
        // To whoever has a file open it stays the one that was opened. What was written to it here is kept
        // beside theirs by its write-back.
        let stays = || self.residency.is_held(ino) && !self.residency.is_unsettled(ino);
        let known = record.backing.fingerprint;
        let is_another = known.is_some_and(|known| !known.same_inode(&found.fingerprint))
            && self.residency.peers.judges_store_alone();
        if found.attr.kind != record.attr.kind || is_another && (is_special || stays()) {
            // Another object of the same name: the old one is gone.
            if let Some(link) = record.links.first() {
                self.take_away(link, ino)?;
                self.import_name(link.parent, &link.name)?;
            }
            return Err(Errno::STALE.into());
        }
        let now = if record.backing.fingerprint == Some(found.fingerprint) {
            record.clone()
        } else {
            // Our own changes are in the record with the change time that they left: whatever moved
            // it may have changed the bytes. First the copy goes, so that none is ever taken for the
            // version that the record names.
            tracing::debug!(?record, ?found.fingerprint, "another version is taken in");
            let is_file = record.attr.kind == FileKind::Regular;
            if is_file {
                // Who opens it from here on must not go on from pages of the version that goes.
                self.residency.pages_become_old(ino);
                self.copy_is_stale(ino);
            }
            let refreshed = self.meta.refresh(ino, found, &|ino| self.residency.is_unsettled(ino));
            let is_another = matches!(refreshed, Ok(Refreshed::Updated(_)));
            if is_file && is_another {
                // By its length the kernel would cut what an open reads that is answered before the notice.
                self.residency.forget_attributes_at_once(ino);
            }
            if is_file || is_another {
                // Of a link, too, the kernel keeps where it leads.
                self.residency.forget_object(ino, !record.is_directory());
            }
            match refreshed? {
                Refreshed::Unchanged(now) | Refreshed::Conflict(now) | Refreshed::Updated(now) => {
                    now
                }
            }
        };
        self.imports.files.set_fresh(ino, self.config.attr_timeout);
        Ok(now)
    }

    /// Takes over that others removed an inode, if it is for certain that they did. The caller owns it.
    pub(crate) fn take_away_if_gone(&self, ino: Ino) -> Result<bool> {
        let Some(record) = self.record_if_any(ino)? else { return Ok(false) };
        let Some(link) = record.links.only() else { return Ok(false) };
        if !self.is_gone(ino)? {
            return Ok(false);
        }
        self.take_away(link, ino)?;
        Ok(true)
    }

    /// The backing store no longer has an inode under a name that it had.
    fn take_away(&self, link: &Link, ino: Ino) -> Result<()> {
        self.take_away_with(link, ino, &self.bytes_of_those_gone(ino)?)
    }

    /// Others have removed or replaced one of several names of a file that nobody had changed: it goes, also
    /// if all that is here of the file counts as changed since. The caller owns the file.
    pub(crate) fn take_away_one_of(&self, link: &Link, ino: Ino) -> Result<()> {
        self.take_away_with(link, ino, &|_| BytesHere::AsPublished)
    }

    fn take_away_with(
        &self,
        link: &Link,
        ino: Ino,
        bytes: &dyn Fn(Ino) -> BytesHere,
    ) -> Result<()> {
        let (dir, name) = (link.parent, &link.name);
        let mut removed = Vec::new();
        let now = self.time_of_change(dir);
        let mut note = |ino, attr: &Attr| self.note_vanished(&mut removed, ino, attr);
        let vanished = self.meta.vanished(dir, name, ino, now, bytes, &mut note)?;
        self.after_vanishing(removed, vanished)?;
        self.forget_name(link.parent, &link.name);
        Ok(())
    }

    /// What is here of an inode that is gone from the backing store, and of those below it.
    fn bytes_of_those_gone(&self, ino: Ino) -> Result<impl Fn(Ino) -> BytesHere> {
        let record = self.record_if_any(ino)?;
        let taken = record.map(|record| self.as_published_below(&record)).unwrap_or_default();
        Ok(move |ino| match self.residency.is_unsettled(ino) {
            _ if taken.get(&ino).is_some_and(AsPublished::holds) => BytesHere::AsPublished,
            true => BytesHere::Unsettled,
            false => BytesHere::AsRecorded,
        })
    }

    /// When others have changed the entries of a directory, as the backing store has it.
    fn time_of_change(&self, dir: Ino) -> Timestamp {
        let below =
            self.in_directory(dir, |handle| Ok(self.backing.stat(handle, OsStr::new(""))?));
        below.map_or_else(|_| clock::wall_time(), |below| below.mtime)
    }

    /// What stood in a directory of the backing store went with it, or is the others' now.
    pub(crate) fn take_away_below(&self, dir: Ino) -> Result<()> {
        let mut removed = Vec::new();
        let bytes = self.bytes_of_those_gone(dir)?;
        let now = clock::wall_time();
        let mut note = |ino, attr: &Attr| self.note_vanished(&mut removed, ino, attr);
        let vanished = self.meta.emptied(dir, now, &bytes, &mut note)?;
        self.after_vanishing(removed, vanished)?;
        self.drop_handle(dir);
        self.residency.forget_object(dir, true);
        Ok(())
    }

    /// An inode has gone. What is asked for its attributes by those who are in it, or have it open, is
    /// answered from memory.
    fn note_vanished(&self, removed: &mut Vec<Ino>, ino: Ino, attr: &Attr) {
        removed.push(ino);
        let is_held = self.residency.is_held(ino);
        if is_held {
            self.residency.files.get(ino).vanished(attr);
        }
        if is_held || attr.kind == FileKind::Directory {
            self.above.has_vanished(ino, attr.clone());
        }
    }

    fn after_vanishing(&self, removed: Vec<Ino>, vanished: Vanished) -> Result<()> {
        for ino in removed {
            self.reconciler.published_open.let_go(ino);
            self.drop_handle(ino);
            self.imports.directories.expire(ino);
            self.imports.files.expire(ino);
            // Who has a file open keeps what is here of it, and what is open below, until its last close,
            // which discards it.
            let is_held = self.residency.is_held(ino);
            if is_held {
                self.residency.note_removed(ino);
            } else if self.residency.is_unsettled(ino) {
                // As it was published: nobody will write it back.
                self.residency.discard_soon(ino);
            } else {
                self.copy_is_stale(ino);
            }
            self.residency.forget_object(ino, !is_held);
        }
        for ino in vanished.kept {
            self.drop_handle(ino);
            self.residency.settle_if_unsettled(ino)?;
            self.reconcile_later(ino, NAMES_DELAY);
        }
        Ok(())
    }

    /// Compares a listed directory with the backing store if its freshness has run out, and takes
    /// over what others changed in it. What is known is served on when the store does not answer.
    pub(super) fn check_directory(&self, record: &Record) -> Result<()> {
        let dir = record.ino;
        if self.imports.health.is_unresponsive() {
            return Ok(());
        }
        let Some(_flight) = self.imports.in_flight.enter(dir, UNRESPONSIVE) else { return Ok(()) };
        if self.directory_is_fresh(dir) {
            return Ok(());
        }
        let mut asked = Some(self.imports.health.begin());
        let checked = self.in_directory(dir, |handle| {
            let (as_known, _) = self.looks_as_known(dir, handle)?;
            if !as_known {
                // It says by itself when it waits for the store.
                drop(asked.take());
                return self.list_again(dir, handle);
            }
            self.imports.directories.set_fresh(dir, self.config.attr_timeout);
            Ok(())
        });
        match checked {
            Err(error) if error.class() == Some(ErrorClass::NotFound) => {
                self.directory_not_found(dir)
            }
            checked => checked,
        }
    }

    /// Reads a directory anew, however fresh it is. One of which nothing is known is left for its first
    /// use.
    pub(crate) fn list_now(&self, dir: Ino) -> Result<()> {
        let record = self.meta.get(dir)?;
        if self.is_not_in_backing(&record) {
            return Ok(());
        }
        if !record.listed && !self.meta.entries_plus(dir, 0, 1)?.is_empty() {
            return self.list_directory(dir);
        }
        let until = clock::now() + self.config.backing_timeout;
        let _flight = loop {
            let left = until.saturating_duration_since(clock::now());
            match self.imports.in_flight.enter(dir, left) {
                Some(flight) => break flight,
                None if left.is_zero() => return Err(Errno::BUSY.into()),
                // Whoever was at it has ended, and may have begun before what is to be seen.
                None => {}
            }
        };
        let compare = |handle: &Dir| match record.listed {
            true => self.list_again(dir, handle),
            false => self.compare_listed_directory(dir, handle).map(drop),
        };
        match self.in_directory(dir, compare) {
            Err(error) if error.class() == Some(ErrorClass::NotFound) => {
                self.directory_not_found(dir)
            }
            listed => listed,
        }
    }

    /// The backing store was found without a directory. If that is for certain, it is removed, and
    /// stale for whoever asked for it; else what is known of it is served on.
    fn directory_not_found(&self, dir: Ino) -> Result<()> {
        // A worker that is at it makes, moves or removes it.
        let Some(_owned) = self.own(dir, Duration::ZERO) else { return Ok(()) };
        let record = match self.meta.get(dir) {
            Err(MetaError::Stale(_)) => return Ok(()), // Removed: it has no entries to be compared.
            record => record?,
        };
        let Some(link) = record.links.only() else { return Ok(()) };
        if record.queued.is_some() || !self.is_gone(dir)? {
            return Ok(());
        }
        self.take_away(link, dir)?;
        Err(Errno::STALE.into())
    }

    /// A worker did not find a directory: whether others have removed it. It is made again if
    /// something in it is to be kept.
    pub(crate) fn directory_is_gone(&self, dir: Ino) -> Result<bool> {
        match self.directory_not_found(dir) {
            Ok(()) => Ok(false),
            Err(NodeError::Posix(Errno::STALE)) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Reads a directory anew: what is new comes in, what changed is taken over, what is gone goes.
    fn list_again(&self, dir: Ino, handle: &Dir) -> Result<()> {
        // What could not be compared, for a worker may be at it: its record may be in line again, and the
        // directory look as it did, without anybody having looked at the name.
        let mut seen = NamesSeen::new();
        let mut open = !self.compare_listed_directory(dir, handle)?;
        let mut theirs = false;
        let complete = self.import_all(dir, handle, &mut |found| {
            for found in found {
                seen.add(&found.name);
                match self.meta.lookup(dir, &found.name)? {
                    Some(record) => {
                        theirs |= is_replaced(&record, found);
                        // The name here may go without ever having been there.
                        open |= self.hides(dir, &record, found)?;
                        open |= !self.compare_listed(dir, &record, found)?;
                    }
                    None => {
                        theirs |= self.meta.stale_inodes_at(dir, &found.name)?.is_empty();
                        // It is not imported while a removed inode still claims the name.
                        open |= self.is_hidden_by_stale_name(dir, found)?;
                        // The kernel may remember that there was no such name.
                        self.forget_name(dir, &found.name);
                    }
                }
            }
            Ok(())
        })?;
        open |= !complete;
        let mut cursor = 0;
        loop {
            let page = self.meta.entries_plus(dir, cursor, PAGE)?;
            let Some(last) = page.last() else { break };
            cursor = last.entry.cursor;
            for item in &page {
                let link = Link::new(dir, item.entry.name.clone());
                if !seen.may_contain(&link.name) && item.record.backing.links.contains(&link) {
                    open |= !self.confirm_gone(handle, &link, item.record.ino)?;
                    // Where some are gone, another may pass for one that is there.
                    open |= seen.is_crowded() && self.meta.lookup(dir, &link.name)?.is_none();
                }
            }
        }
        if theirs {
            self.take_over_time(dir, handle)?;
        }
        if open { self.doubt_listing(dir) } else { Ok(()) }
    }

    /// Whether an inode that the backing store does not have yet has the name of something there that
    /// is nobody's here, and not what it replaces.
    fn hides(&self, dir: Ino, record: &Record, found: &Found) -> Result<bool> {
        if record.backing.links.contains(&Link::new(dir, found.name.clone())) {
            return Ok(false);
        }
        Ok(!self.is_stale_name(&self.meta.stale_inodes_at(dir, &found.name)?, found))
    }

    fn is_hidden_by_stale_name(&self, dir: Ino, found: &Found) -> Result<bool> {
        let stale_names = self.meta.stale_inodes_at(dir, &found.name)?;
        Ok(!stale_names.is_empty() && !self.is_stale_name(&stale_names, found))
    }

    /// Whether something is for certain what one of these inodes has in the backing store. Where objects
    /// have no time of birth, the number of one that is removed and not reported yet may be that of the
    /// next one that others make: then all that is known has to be the same.
    fn is_stale_name(&self, stale_names: &[Ino], found: &Found) -> bool {
        stale_names.iter().any(|stale_name| {
            let Ok(stale_name) = self.meta.get(*stale_name) else { return false };
            let Some(known) = stale_name.backing.fingerprint else { return false };
            let born = known.born != Timestamp::default();
            stale_name.attr.kind == found.attr.kind
                && (known == found.fingerprint || born && known.same_inode(&found.fingerprint))
        })
    }

    /// Imports what others have under a name that was left to them. While an inode of ours has the name,
    /// or claims it, it can't be: then the next look at the directory lists it.
    pub(crate) fn import_foreign(&self, link: &Link) -> Result<()> {
        let imported = self.import_name(link.parent, &link.name)?;
        self.forget_name(link.parent, &link.name);
        let shown = match imported {
            Some(record) => record.backing.links.contains(link),
            None => self.meta.stale_inodes_at(link.parent, &link.name)?.is_empty(),
        };
        if shown { Ok(()) } else { self.doubt_listing(link.parent) }
    }

    /// Reads a directory for the first time. Some names in it may be known before: by themselves, or for
    /// they were made here.
    pub(super) fn list_first(&self, dir: Ino, handle: &Dir) -> Result<()> {
        let known = self.meta.entries_plus(dir, 0, PAGE)?;
        let link = |item: &forebay_meta::EntryPlus| Link::new(dir, item.entry.name.clone());
        let (there, elsewhere): (Vec<_>, Vec<_>) =
            known.iter().partition(|item| item.record.backing.links.contains(&link(item)));
        // Under the names of those that stand elsewhere others may have something.
        let mut open =
            known.len() == PAGE || !elsewhere.is_empty() || !self.meta.stale_names(dir)?.is_empty();
        open |= !self.compare_listed_directory(dir, handle)?;
        let mut absent: HashMap<Box<[u8]>, Arc<Record>> =
            there.iter().map(|item| (item.entry.name.clone(), item.record.clone())).collect();
        let complete = self.import_all(dir, handle, &mut |found| {
            for found in found {
                if let Some(record) = absent.remove(&found.name) {
                    open |= !self.compare_listed(dir, &record, found)?;
                }
            }
            Ok(())
        })?;
        open |= !complete;
        for (name, record) in absent {
            open |= !self.confirm_gone(handle, &Link::new(dir, name), record.ino)?;
        }
        if open { self.doubt_listing(dir) } else { Ok(()) }
    }

    /// A name was not in the listing: looks for it by itself before it goes. Says whether what is known
    /// of the name is as it is there.
    fn confirm_gone(&self, dir: &Dir, link: &Link, ino: Ino) -> Result<bool> {
        // A worker may be moving it right now.
        let Some(_owned) = self.own(ino, Duration::ZERO) else { return Ok(false) };
        let Ok(record) = self.meta.get(ino) else { return Ok(true) };
        if !record.links.contains(link) || !record.backing.links.contains(link) {
            return Ok(true);
        }
        let _asked = self.imports.health.begin();
        match self.backing.stat(dir, OsStr::from_bytes(&link.name)) {
            Err(error) if error.class() == ErrorClass::NotFound => {}
            Ok(_) => return Ok(true),
            Err(_) => return Ok(false),
        }
        // What is in the backlog may not be there yet, and not every worker looks.
        if record.queued.is_some() {
            return Ok(false);
        }
        // Not in a directory that was removed, moved or made anew since it was opened.
        let Some(way) = self.way_at_rest(link.parent)? else { return Ok(false) };
        self.handle_is_dead(link.parent)?;
        let again = self.in_directory(link.parent, |dir| {
            Ok(self.backing.stat(dir, OsStr::from_bytes(&link.name))?)
        });
        match again {
            Err(error) if error.class() == Some(ErrorClass::NotFound) => {
                if self.way_at_rest(link.parent)?.is_none_or(|now| now != way) {
                    return Ok(false);
                }
                self.take_away(link, ino)?;
                Ok(true)
            }
            again => Ok(again.is_ok()),
        }
    }

    /// A listed entry looks different from what is known: looks again with nobody at it, since the
    /// listing may be older than a worker's doing. False if it is of another type than what is known, or
    /// one of several names that others have given to another file, and that could not be taken over, as
    /// somebody is at it. (Of a file with one name, its next open compares.)
    pub(crate) fn compare_listed(&self, dir: Ino, record: &Record, found: &Found) -> Result<bool> {
        let same_kind = record.attr.kind == found.attr.kind;
        // The look at a directory's own entries has its times, but not its mode and owner.
        let as_known = match record.is_directory() && same_kind {
            true => self.is_directory_as_known(record, found)?,
            false => record.backing.fingerprint == Some(found.fingerprint),
        };
        // What was noted of something else under its name must not hide that for ever.
        if as_known && same_kind {
            return Ok(true);
        }
        let is_given_away = self.is_given_away(record, found)?;
        if record.differs() {
            return Ok(same_kind && !is_given_away);
        }
        let compared = if record.is_directory() && same_kind {
            self.compare_directory(record.ino)
        } else if is_given_away {
            self.take_over_name(&Link::new(dir, found.name.clone()), record.ino)
        } else {
            self.compare(record.ino).map(|_| same_kind)
        };
        match compared {
            // Another object took its place, and is imported; or a program has just removed it.
            Err(NodeError::Posix(Errno::STALE) | NodeError::Meta(MetaError::Stale(_))) => Ok(true),
            compared => compared,
        }
    }

    /// Whether a name of a file seems to be another inode's now, whose record can't be that of this one:
    /// the file stands under other names still, or the other inode is known by another name.
    fn is_given_away(&self, record: &Record, found: &Found) -> Result<bool> {
        let Some(known) = record.backing.fingerprint else { return Ok(false) };
        // What leaves a listed directory of a cluster does not come in again.
        let takes_over = !record.is_directory() && self.residency.peers.judges_store_alone();
        if !takes_over || known.same_inode(&found.fingerprint) {
            return Ok(false);
        }
        if record.backing.links.len() > 1 {
            return Ok(true);
        }
        if found.attr.nlink < 2 {
            return Ok(false);
        }
        let other = self.meta.known_by_number(found.fingerprint.ino)?;
        let Some(other) = other.filter(|other| *other != record.ino) else { return Ok(false) };
        let print = self.record_if_any(other)?.and_then(|other| other.backing.fingerprint);
        Ok(print.is_some_and(|print| print.same_inode(&found.fingerprint)))
    }

    /// Others have given a name of a file to another inode, as a rename over it does: the name goes, and
    /// comes again with what it means now. False if that is not for certain, or can't be done yet.
    fn take_over_name(&self, link: &Link, ino: Ino) -> Result<bool> {
        let Some(_owned) = self.own(ino, Duration::ZERO) else { return Ok(false) };
        let record = self.meta.get(ino)?;
        if record.differs() || record.queued.is_some() {
            return Ok(false);
        }
        if !record.backing.links.contains(link) {
            return Ok(true);
        }
        // Not in a directory that was removed, moved or made anew since it was opened.
        let Some(way) = self.way_at_rest(link.parent)? else { return Ok(false) };
        self.handle_is_dead(link.parent)?;
        match self.look_under(link) {
            Ok(found) if !self.is_given_away(&record, &found)? => return Ok(true),
            Ok(_) => {}
            Err(error) if error.class() == Some(ErrorClass::NotFound) => return Ok(false),
            Err(error) => return Err(error),
        }
        if self.way_at_rest(link.parent)?.is_none_or(|now| now != way) {
            return Ok(false);
        }
        tracing::debug!(%ino, "others have given one of its names to another file");
        self.take_away(link, ino)?;
        let imported = self.import_name(link.parent, &link.name)?;
        Ok(imported.is_some_and(|record| record.backing.links.contains(link)))
    }
}

/// Whether a listed name is another file's than the one that is known, which nobody here has changed.
fn is_replaced(record: &Record, found: &Found) -> bool {
    let known = record.backing.fingerprint.filter(|print| print.ino != 0);
    let is_another = known.is_some_and(|known| !known.same_inode(&found.fingerprint));
    is_another && record.queued.is_none() && !record.differs()
}

/// Whether the backing store has a version of a file, or is about to.
fn has_version(record: &Record) -> bool {
    record.backing.fingerprint.is_some() || record.backing.pending.is_some()
}

/// What is known of a directory whose entries are to be listed, whatever it looks like then.
pub(super) fn unlisted(print: Fingerprint) -> Fingerprint {
    let never = Timestamp::default();
    // The modification time tells whether others have set it; where there is no change time it has to differ.
    let mtime = if print.ctime == never { never } else { print.mtime };
    Fingerprint { mtime, ctime: never, ..print }
}
