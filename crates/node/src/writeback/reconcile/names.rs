//! Names: making, moving and adding them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use forebay_meta::{Link, Links, Record};
use forebay_store::backing::{Known, Node as Special, RenameMode};
use forebay_store::{Attributes, Dir, ErrorClass};
use forebay_types::{FileKind, Fingerprint, Ino, Timestamp};

use super::identity::{in_hand, is_pending, may_be_ours};
use super::moved::Source;
use super::occupied::Room;
use super::owned::Owned;
use super::refused::is_beyond_store;
use super::work::{Step, Work};
use crate::after_refusal::again_after_refusal;
use crate::config::Coherence;
use crate::error::{NodeError, Result};
use crate::failpoints::fail_at;
use crate::writeback::Writeback;
use crate::writeback::import::LIMBO;

pub(super) fn os(name: &[u8]) -> &OsStr {
    OsStr::from_bytes(name)
}

/// What is known of a directory that may have entries of others: the check of its freshness lists it.
fn unlisted(found: &Attributes) -> Fingerprint {
    Fingerprint { mtime: Timestamp::default(), ..found.fingerprint() }
}

impl Writeback {
    /// Looks which of the names that the record claims are there, if that is in doubt: a worker
    /// was interrupted, or could not report.
    pub(super) fn survey(&self, work: &mut Work<'_>) -> Result<()> {
        let record = &work.record;
        let was_published_empty =
            record.attr.kind == FileKind::Regular && record.attr.size == 0 && !record.is_dirty();
        let in_doubt = record.backing.links.len() > 1
            || record.backing.fingerprint.is_none()
            || was_published_empty;
        // What publishes its bytes looks by itself, if it is all that there is to do.
        let bytes_tell = record.is_dirty()
            && record.backing.pending.is_none()
            && record.backing.links.len() == 1
            && record.backing.links == record.links;
        if !in_doubt || bytes_tell {
            return Ok(());
        }
        // Of many names those that were claimed, if it is known which file it is.
        let doubtful = match record.backing.fingerprint {
            Some(_) => record.claims().clone(),
            None => record.backing.links.clone(),
        };
        // Made here, and not known to have got its attributes. (A file gets its name with all of them; an
        // imported directory has its own.)
        let perhaps_just_made = record.backing.fingerprint.is_none()
            && record.attr.kind != FileKind::Regular
            && (record.listed || !record.is_directory());
        let mut looked = self.look_under_claims(&work.record, doubtful)?;
        // By what was announced the inode is known, and then under its other names, too.
        looked.sort_by_key(|(_, ours)| !ours.is_some_and(|found| is_pending(&work.record, &found)));
        // Who was interrupted at its names may have moved the change time. As long as the record says that
        // they are in doubt; if none of them goes, it still does afterwards.
        if let Some(found) = looked.iter().find_map(|(_, ours)| *ours)
            && looked.iter().any(|(_, ours)| ours.is_none())
            && !work.record.is_directory()
        {
            work.note_version(&found.fingerprint());
        }
        let mut stands = false;
        for (link, ours) in looked {
            // It may be so for a moment only, until that is durable there.
            let place = self.place_of_link(&work.record, &link).ok();
            if let Some((dir, _)) = &place {
                work.touched(link.parent, dir);
            }
            // A directory has one name. Where it can't be told from another, it stands under the older of
            // those that were claimed one after the other: it has not been moved.
            let elsewhere = work.record.is_directory() && stands;
            let ours = ours.filter(|found| !elsewhere && may_be_ours(&work.record, found));
            let Some(found) = ours else {
                work.went(&link);
                continue;
            };
            let sure =
                work.record.backing.fingerprint.is_some() || is_pending(&work.record, &found);
            if !sure && self.is_rather_anothers(work, &link, &found)? {
                work.went(&link);
                continue;
            }
            if is_pending(&work.record, &found) {
                work.settled(found.fingerprint());
            } else if work.record.is_directory() && work.record.backing.fingerprint.is_none() {
                work.print(unlisted(&found));
                if let Some((dir, name)) = &place {
                    // What is in it is found by this handle as long as that is not reported.
                    let _kept = self.hold_made(work.ino(), dir, name, &found)?;
                }
            }
            if perhaps_just_made {
                work.made();
            }
            work.confirmed(&link);
            stands = true;
        }
        Ok(())
    }

    /// What stands under each of the names that a record claims, if it may be its own.
    fn look_under_claims(
        &self,
        record: &Record,
        claims: Links,
    ) -> Result<Vec<(Link, Option<Attributes>)>> {
        // A directory that is found has no other name, also where that can't be looked for: two of them may
        // each be claimed to be in the other.
        let is_known_directory =
            record.is_directory() && record.backing.fingerprint.is_some_and(|print| print.ino != 0);
        let (mut looked, mut unseen) = (Vec::new(), false);
        for link in claims {
            let found = match self.found_under(record, &link) {
                Err(NodeError::Busy) if is_known_directory => {
                    unseen = true;
                    None
                }
                found => found?,
            };
            looked.push((link, found.filter(|found| may_be_ours(record, found))));
        }
        if unseen && looked.iter().all(|(_, ours)| ours.is_none()) {
            return Err(NodeError::Busy);
        }
        Ok(looked)
    }

    /// What the backing store has under a name of `record`, and where.
    pub(super) fn look_at(
        &self,
        record: &Record,
        link: &Link,
    ) -> Result<Option<(Dir, Vec<u8>, Attributes)>> {
        let look = || {
            let (dir, name) = self.place_of_link(record, link)?;
            let found = self.backing.stat(&dir, os(&name))?;
            Ok((dir, name, found))
        };
        let is_absent = |looked: &Result<_>| {
            looked.as_ref().is_err_and(|error| error.class() == Some(ErrorClass::NotFound))
        };
        let mut looked = look();
        // Once: a store may call each new handle dead as well.
        if is_absent(&looked) && link.parent != LIMBO && self.handle_is_dead(link.parent)? {
            looked = look();
        }
        if !is_absent(&looked) {
            return looked.map(Some);
        }
        match self.is_way_in_doubt(link.parent)? {
            // Nobody could find it there, whether it is or not. Whoever has the directory in hand
            // looks which it is.
            true => Err(NodeError::Busy),
            false => Ok(None),
        }
    }

    /// What the backing store has under a name of `record`, if anything.
    pub(crate) fn found_under(&self, record: &Record, link: &Link) -> Result<Option<Attributes>> {
        let found =
            again_after_refusal(|| self.look_at(record, link), || self.open_closed_dirs(record))?;
        Ok(found.map(|(_, _, found)| found))
    }

    /// Gives the inode the names that it should have in the backing store, and takes the others.
    pub(super) fn place<'a>(&'a self, work: &mut Work<'a>, depth: usize) -> Result<Step> {
        loop {
            let mut missing = first_last(work.record.missing());
            let mut stale = first_last(work.record.stale_names());
            if missing.is_empty() && stale.is_empty() {
                return Ok(Step::Done);
            }
            while let Some(step) = self.place_next(work, &mut missing, &mut stale, depth)? {
                if step == Step::Again {
                    return Ok(Step::Again);
                }
            }
        }
    }

    /// Makes the last of the names that are missing, or takes the last of those that are stale;
    /// `None` if there is no such name any more.
    fn place_next<'a>(
        &'a self,
        work: &mut Work<'a>,
        missing: &mut Vec<Link>,
        stale: &mut Vec<Link>,
        depth: usize,
    ) -> Result<Option<Step>> {
        let (here, there) = (&work.record.links, &work.record.backing.links);
        // To place one name may have settled another.
        let wanted = last_of(missing, |link| here.contains(link) && !there.contains(link));
        let left = last_of(stale, |link| there.contains(link) && !here.contains(link));
        Ok(Some(match (wanted, left) {
            (None, None) => return Ok(None),
            (None, Some(left)) => {
                self.take_name(work, &left)?;
                Step::Done
            }
            (Some(wanted), _) if there.is_empty() => self.make_name(work, &wanted, depth)?,
            (Some(wanted), Some(left)) => self.move_name(work, &left, &wanted, depth)?,
            (Some(wanted), None) => self.add_name(work, &wanted, depth)?,
        }))
    }

    /// Moves the inode from one name to another.
    fn move_name<'a>(
        &'a self,
        work: &mut Work<'a>,
        from: &Link,
        to: &Link,
        depth: usize,
    ) -> Result<Step> {
        let to_dir = self.backing_dir(to.parent)?;
        self.claim(work, to)?;
        let mut replaced = match self.clear_name(work, to, &to_dir, depth)? {
            Room::Free => None,
            // Nothing comes out of limbo over another.
            Room::Replace(owned, other, found) if from.parent == LIMBO => {
                self.clear(work, to, &to_dir, (owned, other, found))?;
                None
            }
            Room::Replace(owned, other, found) => Some((owned, other, found)),
            Room::Unreported => return Ok(Step::Again),
        };
        let mode = self.how_to_move(from, replaced.as_mut())?;
        match self.rename_in_backing(work, from, to, &to_dir, mode) {
            Ok(moved) => {
                if let Some((owned, mut other, _)) = replaced {
                    other.went(to);
                    other.went(from);
                    work.also(owned, other);
                }
                self.look_at_moved(work, from, moved.as_ref(), (to, &to_dir))
            }
            Err(error) => match error.class() {
                // Also if others have changed what was to be replaced.
                Some(ErrorClass::Exists) => self.name_is_taken(work, to, &to_dir),
                Some(ErrorClass::NotFound) if self.look_at(&work.record, from)?.is_none() => {
                    // So a server answers, too, that was asked twice and had done it the first time.
                    if self.stands_at(work, to)? {
                        work.came(to, &to_dir);
                        if let Ok(from_dir) = self.backing_dir(from.parent) {
                            work.touched(from.parent, &from_dir);
                        }
                        if let Some((owned, mut other, _)) = replaced {
                            other.went(to);
                            work.also(owned, other);
                        }
                    }
                    work.went(from);
                    Ok(Step::Done)
                }
                _ => {
                    if is_beyond_store(&error) {
                        // It stands where it stood, and nowhere else.
                        work.went(to);
                    }
                    Err(error)
                }
            },
        }
    }

    /// What a move does with what has the name. Where others may change that at this very moment, the two
    /// are exchanged, and what is replaced stands under the other name until it is known to be what
    /// was looked at, and removed: if the worker ends between, its inode is found there.
    fn how_to_move(
        &self,
        from: &Link,
        replaced: Option<&mut (Owned<'_>, Work<'_>, Fingerprint)>,
    ) -> Result<RenameMode> {
        let Some((_, other, found)) = replaced else { return Ok(RenameMode::NoReplace) };
        if self.config.coherence == Coherence::Exclusive {
            return Ok(RenameMode::Replace);
        }
        self.claim(other, from)?;
        Ok(RenameMode::ReplaceVersion(*found))
    }

    /// Whether the very object that is known of an inode stands under a name.
    fn stands_at(&self, work: &Work<'_>, link: &Link) -> Result<bool> {
        let known = work.record.backing.fingerprint.filter(|print| print.ino != 0);
        let found = self.found_under(&work.record, link)?;
        Ok(known.zip(found).is_some_and(|(known, found)| found.same_inode(&known)))
    }

    fn rename_in_backing(
        &self,
        work: &Work<'_>,
        from: &Link,
        to: &Link,
        to_dir: &Dir,
        mode: RenameMode,
    ) -> Result<Option<Source>> {
        let itself = match work.record.is_directory() {
            true => self.backing_dir(work.ino()).ok(),
            false => None,
        };
        let mut changed = vec![(to.parent, to_dir)];
        changed.extend(itself.as_ref().map(|dir| (work.ino(), dir)));
        let dirs = changed.iter().map(|(dir, _)| *dir);
        self.entries_will_change(dirs.chain([from.parent]));
        self.meta.sync()?;
        if from.parent == LIMBO {
            let key = work.ino().0;
            self.own_change(&changed, || Ok(self.backing.unpark(key, to_dir, os(&to.name))?))?;
            return Ok(None);
        }
        let from_dir = self.backing_dir(from.parent)?;
        changed.push((from.parent, &from_dir));
        let held = self.hold_before_move(&from_dir, &from.name)?;
        fail_at!("node.reconcile.before_rename");
        self.own_change(&changed, || {
            Ok(self.backing.rename(&from_dir, os(&from.name), to_dir, os(&to.name), mode)?)
        })?;
        fail_at!("node.reconcile.after_rename");
        Ok(Some(Source { dir: from_dir, held }))
    }

    /// Adds a hard link.
    fn add_name<'a>(&'a self, work: &mut Work<'a>, to: &Link, depth: usize) -> Result<Step> {
        let to_dir = self.backing_dir(to.parent)?;
        let (dir, name) = self.backing_place(&work.record)?;
        self.claim(work, to)?;
        self.meta.arrive(work.ino())?;
        match self.clear_name(work, to, &to_dir, depth)? {
            Room::Free => {}
            // No link replaces a name: the removed file goes first.
            Room::Replace(owned, other, found) => {
                self.clear(work, to, &to_dir, (owned, other, found))?;
            }
            Room::Unreported => return Ok(Step::Again),
        }
        fail_at!("node.reconcile.before_link");
        // One handle for the look and the link: others may put another file under the name.
        let made = self.backing.hold(&dir, os(&name)).map_err(NodeError::from).and_then(|object| {
            if !self.has_at(work, (&object, b""))? {
                return Err(rustix::io::Errno::NOENT.into());
            }
            self.own_change(&[(to.parent, &to_dir)], || {
                Ok(self.backing.link(&object, OsStr::new(""), &to_dir, os(&to.name))?)
            })
        });
        match made {
            Ok(()) => {
                work.came(to, &to_dir);
                Ok(Step::Done)
            }
            Err(error) if error.class() == Some(ErrorClass::Exists) => {
                self.name_is_taken(work, to, &to_dir)
            }
            Err(error) if error.class() == Some(ErrorClass::NotFound) => {
                // The name that it stood under was removed by others, or given to something else.
                work.went(to);
                self.forget_replaced_names(work)?;
                if work.record.backing.links.is_empty() { Ok(Step::Again) } else { Err(error) }
            }
            Err(error) => {
                if is_beyond_store(&error) {
                    self.doubt_links();
                    work.went(to);
                }
                Err(error)
            }
        }
    }

    /// Removes a name that the inode has besides those that it should have.
    pub(super) fn take_name(&self, work: &mut Work<'_>, link: &Link) -> Result<()> {
        let Some((dir, name, found)) = self.look_at(&work.record, link)? else {
            work.went(link);
            return Ok(());
        };
        // A directory has one name, and stands where it should.
        if may_be_ours(&work.record, &found) && !work.record.is_directory() {
            fail_at!("node.reconcile.before_unlink");
            let known = Known::Object(found.fingerprint());
            self.unlink_if(link.parent, (&dir, &name), known)?;
            work.touched(link.parent, &dir);
        } else if !self.is_anothers(work, link, &found)? {
            work.foreign(link);
        }
        work.went(link);
        Ok(())
    }

    /// Makes an inode that the backing store does not have.
    fn make_name<'a>(&'a self, work: &mut Work<'a>, at: &Link, depth: usize) -> Result<Step> {
        fail_at!("node.reconcile.before_make");
        if work.record.attr.kind == FileKind::Regular {
            return self.publish(work, at, depth);
        }
        let dir = self.backing_dir(at.parent)?;
        let was_there = work.record.backing.fingerprint.is_some();
        self.claim(work, at)?;
        self.meta.arrive(work.ino())?;
        match self.clear_name(work, at, &dir, depth)? {
            Room::Free => {}
            Room::Replace(owned, other, found) => {
                self.clear(work, at, &dir, (owned, other, found))?;
            }
            Room::Unreported => return Ok(Step::Again),
        }
        match self.own_change(&[(at.parent, &dir)], || self.make_special(&work.record, at, &dir)) {
            Ok(()) => {
                work.came(at, &dir);
                work.made();
                let found = self.backing.stat(&dir, os(&at.name))?;
                if !self.is_as_made(&work.record, at, &dir, &found)? {
                    return self.yield_name(work, at, &found);
                }
                let print = found.fingerprint();
                work.print(print);
                if work.record.is_directory() {
                    if was_there {
                        // Others have removed it with what it had.
                        self.take_away_below(work.ino())?;
                    }
                    let handle = self.hold_made(work.ino(), &dir, &at.name, &found)?;
                    // Others may have been quick: then it is listed.
                    match self.has_entries(&handle)? {
                        true => work.print(unlisted(&found)),
                        false => self.made_directory(work.ino(), print),
                    }
                }
                Ok(Step::Done)
            }
            Err(error) if error.class() == Some(ErrorClass::Exists) => {
                self.name_is_taken(work, at, &dir)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether what stands under a name looks like what was made there right now, and not like something
    /// that others have put in its place.
    fn is_as_made(
        &self,
        record: &Record,
        at: &Link,
        dir: &Dir,
        found: &Attributes,
    ) -> Result<bool> {
        Ok(match record.attr.kind {
            kind if kind != found.kind => false,
            FileKind::Symlink => match self.backing.readlink(dir, os(&at.name)) {
                // It is none any more.
                Err(error) if error.errno() == libc::EINVAL => false,
                target => Some(target?.as_bytes()) == record.target.as_deref(),
            },
            FileKind::CharDevice | FileKind::BlockDevice => found.rdev == record.attr.rdev,
            _ => true,
        })
    }

    /// Opens a directory that was made right now. By this handle it is known until it is reported:
    /// its name tells of others, too.
    pub(super) fn hold_made(
        &self,
        ino: Ino,
        parent: &Dir,
        name: &[u8],
        found: &Attributes,
    ) -> Result<Dir> {
        let handle = self.backing.open_dir(parent, os(name))?;
        if self.backing.stat(&handle, os(b""))?.ino != found.ino {
            return Err(NodeError::Busy);
        }
        self.keep_handle(ino, handle.clone());
        Ok(handle)
    }

    fn make_special(&self, record: &Record, at: &Link, dir: &Dir) -> Result<()> {
        let (attr, name) = (&record.attr, os(&at.name));
        let special = match attr.kind {
            FileKind::Directory => return Ok(self.backing.mkdir(dir, name, attr.perm)?),
            FileKind::Symlink => {
                let target = record.target.as_deref().unwrap_or_default();
                return Ok(self.backing.symlink(os(target), dir, name)?);
            }
            FileKind::Regular => Special::Regular,
            FileKind::Fifo => Special::Fifo,
            FileKind::Socket => Special::Socket,
            FileKind::CharDevice => Special::CharDevice(attr.rdev),
            FileKind::BlockDevice => Special::BlockDevice(attr.rdev),
        };
        Ok(self.backing.mknod(dir, name, special, attr.perm)?)
    }

    /// Something is under the name that nobody here put there: takes it over if it is just what
    /// was to be made, else leaves the name to it.
    pub(super) fn name_is_taken<'a>(
        &'a self,
        work: &mut Work<'a>,
        at: &Link,
        dir: &Dir,
    ) -> Result<Step> {
        match self.backing.stat(dir, os(&at.name)) {
            Ok(found) => self.take_or_yield(work, at, dir, &found),
            Err(error) if error.class() == ErrorClass::NotFound => Ok(Step::Again),
            Err(error) => Err(error.into()),
        }
    }

    fn take_or_yield<'a>(
        &'a self,
        work: &mut Work<'a>,
        at: &Link,
        dir: &Dir,
        found: &Attributes,
    ) -> Result<Step> {
        self.refuse_other_spelling(work, at, found)?;
        if !self.is_the_same(work, at, dir, found)? {
            return self.yield_name(work, at, found);
        }
        if work.record.attr.kind == FileKind::Regular {
            self.announce_to_object(work.ino(), found.fingerprint())?;
        }
        work.came(at, dir);
        work.made();
        if !work.record.is_directory() {
            work.print(found.fingerprint());
        } else {
            // With entries of others perhaps: the check of its freshness lists it.
            let _kept = self.hold_made(work.ino(), dir, &at.name, found)?;
            work.print(unlisted(found));
        }
        Ok(Step::Done)
    }

    /// Whether what is there is what was to be made there.
    fn is_the_same(
        &self,
        work: &Work<'_>,
        at: &Link,
        dir: &Dir,
        found: &Attributes,
    ) -> Result<bool> {
        let record = &work.record;
        if !may_be_ours(record, found) {
            return Ok(false);
        }
        if !record.backing.links.is_empty() {
            // It stands elsewhere too: a hard link of it, or an equal number by chance.
            return Ok(record.attr.kind == FileKind::Regular && found.nlink > 1);
        }
        match record.attr.kind {
            FileKind::Regular => Ok(!record.is_dirty() && found.size == 0),
            _ => self.is_as_made(record, at, dir, found),
        }
    }

    /// Notes that the inode may be under `link` from now on. Who moves it there has the note durable
    /// before, or it would be somebody else's after a power cut.
    pub(super) fn claim(&self, work: &mut Work<'_>, link: &Link) -> Result<()> {
        work.claimed(link);
        in_hand(self.meta.claim(work.ino(), link)).map(drop)
    }

    /// Before the names of a file change, and with them its change time: whether it is the version
    /// that was known.
    pub(super) fn look_before_move(&self, work: &mut Work<'_>) -> Result<()> {
        let (record, backing) = (&work.record, &work.record.backing);
        // In whatever order: a rename puts a name elsewhere among several.
        let at_rest = record.links.same(&backing.links) || backing.links.is_empty();
        if at_rest || record.is_directory() || backing.fingerprint.is_none() {
            return Ok(());
        }
        let only = backing.links.only().cloned();
        match self.backing_place(record) {
            Ok((dir, name)) => match self.backing.stat(&dir, os(&name)) {
                Ok(found) => {
                    if !may_be_ours(&work.record, &found) {
                        // It is not there, and what is must not be moved for it.
                        return match only {
                            Some(link) if self.is_anothers(work, &link, &found)? => {
                                work.went(&link);
                                Ok(())
                            }
                            _ => self.forget_replaced_names(work),
                        };
                    }
                    work.note_version(&found.fingerprint());
                }
                Err(error) if error.class() == ErrorClass::NotFound => {}
                Err(error) => return Err(error.into()),
            },
            Err(error) if error.class() == Some(ErrorClass::NotFound) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// After a move the change time is another one: the fingerprint follows if the version was the
    /// one that was known. Else the next open has to look.
    pub(super) fn look_after_move(&self, work: &mut Work<'_>) -> Result<()> {
        if !work.moved || work.record.is_directory() || work.record.backing.links.is_empty() {
            return Ok(());
        }
        if work.record.backing.fingerprint.is_none() {
            return Ok(());
        }
        let (dir, name) = self.backing_place(&work.record)?;
        let found = self.backing.stat(&dir, os(&name))?.fingerprint();
        self.note_after_move(work, &found);
        Ok(())
    }

    /// That is what the object looks like after its names have changed.
    pub(super) fn note_after_move(&self, work: &mut Work<'_>, found: &Fingerprint) {
        let Some(known) = work.record.backing.fingerprint else { return };
        if known.same_content(found) {
            work.note_change(found);
        }
        if known != *found && !work.as_known {
            self.doubt_version(work.ino());
        }
    }
}

/// Names in reverse order.
fn first_last(links: Vec<&Link>) -> Vec<Link> {
    links.into_iter().rev().cloned().collect()
}

/// The last of the names for which something holds; those after it are dropped.
fn last_of(links: &mut Vec<Link>, holds: impl Fn(&Link) -> bool) -> Option<Link> {
    while links.pop_if(|link| !holds(link)).is_some() {}
    links.last().cloned()
}
