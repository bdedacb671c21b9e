//! Handles on directories of the backing store, and telling our own changes of a directory from
//! those of others.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use forebay_meta::{Error as MetaError, Link, Record};
use forebay_store::backing::{Access, PRIVATE};
use forebay_store::{BackingFile, Dir, ErrorClass};
use forebay_types::{Fingerprint, Ino, Timestamp};
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;

use crate::after_refusal::{again_after_refusal, is_denied};
use crate::config::Coherence;
use crate::error::{NodeError, Result};
use crate::waits;
use crate::writeback::Writeback;

use super::coherence::unlisted;
use super::is_unconfirmed;

/// The parent of what stands in the backing store's limbo; the names in it are inode numbers.
pub(crate) const LIMBO: Ino = Ino(2);

/// Deeper trees are refused: a chain of parents this long is damage.
pub(super) const MAX_PARENTS: usize = 2000;
/// Directories that are sought for the sake of one another, each with a part of the stack: as a search goes
/// from the top down, more than a few only have names that were claimed in circles.
const MAX_SOUGHT: usize = 50;

const MAX_HANDLES: usize = 1024;

/// A worker renames in far less than so many looks at these intervals.
pub(super) const MAX_LOOKS: u32 = 20;
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Before another look.
pub(super) fn let_workers_go_on() {
    waits::pause(LOOK_AGAIN);
}

/// Open handles of directories, the least recently used dropped first.
#[derive(Default)]
pub(super) struct Handles {
    table: Mutex<HandleTable>,
}

#[derive(Default)]
struct HandleTable {
    uses: u64,
    open: HashMap<u64, (Dir, u64)>,
}

impl Handles {
    fn get(&self, ino: Ino) -> Option<Dir> {
        let mut table = self.table.lock();
        table.uses += 1;
        let now = table.uses;
        table.open.get_mut(&ino.0).map(|(dir, used)| {
            *used = now;
            dir.clone()
        })
    }

    fn insert(&self, ino: Ino, dir: Dir) {
        let mut table = self.table.lock();
        if table.open.len() >= MAX_HANDLES {
            // An eighth at a time, so that the search for the oldest is paid for once per many.
            let mut uses: Vec<u64> = table.open.values().map(|(_, used)| *used).collect();
            let (_, limit, _) = uses.select_nth_unstable(MAX_HANDLES / 8);
            let limit = *limit;
            table.open.retain(|_, (_, used)| *used > limit);
        }
        table.uses += 1;
        let now = table.uses;
        table.open.insert(ino.0, (dir, now));
    }

    fn remove(&self, ino: Ino) {
        self.table.lock().open.remove(&ino.0);
    }
}

/// What came of looking for a directory.
enum Sought {
    Found(Dir),
    /// None of its names is there.
    Absent,
    /// Nor are the directories that its names should be in.
    NoParent,
}

/// A search for a directory of the backing store.
#[derive(Default)]
struct Search {
    /// The directories for the sake of which another is sought: [`MAX_SOUGHT`] at most.
    sought: Vec<Ino>,
    /// Those that are not there, as long as these of the sought ones, as bits, are sought: a name that led
    /// to one of them was left out. What led to none is not there at all.
    absent: HashMap<Ino, u64>,
    /// To which of the sought ones names have led since the search for the last of them began.
    led_to: u64,
}

const _: () = assert!(MAX_SOUGHT <= u64::BITS as usize);

impl Search {
    /// Whether a directory need not be looked for: it was found not to be there, or it is one of the
    /// sought ones.
    fn is_answered(&mut self, dir: Ino) -> bool {
        let sought = self.sought.iter().position(|sought| *sought == dir).map(|at| 1 << at);
        let led_to = sought.or_else(|| self.absent.get(&dir).copied());
        self.led_to |= led_to.unwrap_or(0);
        led_to.is_some()
    }

    /// Looks for one directory for the sake of the sought ones.
    fn within(&mut self, dir: Ino, look: impl FnOnce(&mut Self) -> Result<Dir>) -> Result<Dir> {
        let itself = 1 << self.sought.len();
        let before = std::mem::take(&mut self.led_to);
        self.sought.push(dir);
        let found = look(self);
        self.sought.pop();
        // By way of this one they may be found after all.
        self.absent.retain(|_, led_to| *led_to & itself == 0);
        let led_to = self.led_to & !itself;
        self.led_to = before | led_to;
        if found.as_ref().is_err_and(|error| error.class() == Some(ErrorClass::NotFound)) {
            self.absent.insert(dir, led_to);
        }
        found
    }
}

impl Writeback {
    /// A handle on a directory as it stands now in the backing store.
    pub(crate) fn backing_dir(&self, dir: Ino) -> Result<Dir> {
        self.seek(dir, &mut Search::default())
    }

    /// Finds those above from the top down, so that the search for each goes no deeper than to the one
    /// above it, however deep the tree is.
    fn seek(&self, dir: Ino, search: &mut Search) -> Result<Dir> {
        if let Some(handle) = self.imports.handles.get(dir) {
            return Ok(handle);
        }
        for above in self.way_up(dir)?.into_iter().rev() {
            match self.resolve(above, search) {
                // The search remembers it.
                Err(error) if error.class() == Some(ErrorClass::NotFound) => {}
                found => drop(found?),
            }
        }
        self.resolve(dir, search)
    }

    /// The directories above one, by their newest names, up to where a handle is at hand.
    fn way_up(&self, dir: Ino) -> Result<Vec<Ino>> {
        let (mut way, mut seen) = (Vec::new(), HashSet::from([dir]));
        let mut next = dir;
        while !matches!(next, Ino::ROOT | LIMBO) && !self.has_handle(next) {
            let Some(record) = self.record_if_any(next)? else { break };
            // What is above one that is only claimed says nothing of it.
            let claimed = is_only_claimed(&record);
            let newest = record.backing.links.newest_first().next().filter(|_| !claimed);
            let Some(link) = newest else { break };
            next = link.parent;
            if seen.len() > MAX_PARENTS || !seen.insert(next) {
                break;
            }
            way.push(next);
        }
        Ok(way)
    }

    fn resolve(&self, dir: Ino, search: &mut Search) -> Result<Dir> {
        if dir == Ino::ROOT {
            return Ok(self.backing.root());
        }
        if dir == LIMBO {
            let private = self.backing.open_dir(&self.backing.root(), OsStr::new(PRIVATE))?;
            return Ok(self.backing.open_dir(&private, OsStr::new("limbo"))?);
        }
        if let Some(handle) = self.imports.handles.get(dir) {
            return Ok(handle);
        }
        if search.is_answered(dir) {
            // Names that lead in a circle were only claimed: it stands where another one says.
            return Err(Errno::NOENT.into());
        }
        if search.sought.len() >= MAX_SOUGHT {
            return Err(Errno::LOOP.into());
        }
        search.within(dir, |search| self.resolve_by_names(dir, search))
    }

    fn resolve_by_names(&self, dir: Ino, search: &mut Search) -> Result<Dir> {
        let mut absent = 0;
        for _ in 0..MAX_LOOKS {
            let Some(record) = self.record_if_any(dir)? else { break };
            if is_only_claimed(&record) {
                // What stands under its name is another, or not made yet; its maker has a handle.
                break;
            }
            let sought = self.open_one_of(&record, search)?;
            if let Sought::Found(handle) = &sought {
                self.imports.handles.insert(dir, handle.clone());
            }
            // A worker may have moved it, and put another in its place, between the look at its record
            // and the opening.
            let now = self.record_if_any(dir)?;
            if now.is_none_or(|now| now.backing.links != record.backing.links) {
                self.imports.handles.remove(dir);
                // What it was moved to may not have been there either.
                search.absent.clear();
                continue;
            }
            match sought {
                Sought::Found(handle) => return Ok(handle),
                // Twice, as one may also rename it after its new name was looked at and before its
                // old one.
                Sought::Absent if absent == 0 => absent += 1,
                Sought::Absent | Sought::NoParent => break,
            }
        }
        Err(Errno::NOENT.into())
    }

    pub(super) fn record_if_any(&self, ino: Ino) -> Result<Option<Arc<Record>>> {
        match self.meta.get(ino) {
            Ok(record) => Ok(Some(record)),
            Err(MetaError::Stale(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Keeps a handle on a directory that its worker has just made, and owns.
    pub(crate) fn keep_handle(&self, dir: Ino, handle: Dir) {
        self.imports.handles.insert(dir, handle);
    }

    /// Whether a handle on a directory is at hand.
    pub(crate) fn has_handle(&self, dir: Ino) -> bool {
        self.imports.handles.get(dir).is_some()
    }

    /// Whether a directory can't be found because it, or one above it, is only claimed: a worker that has
    /// made it could not say so.
    pub(crate) fn is_way_in_doubt(&self, dir: Ino) -> Result<bool> {
        let (mut seen, mut left) = (HashSet::new(), vec![dir]);
        while let Some(dir) = left.pop() {
            let is_known = matches!(dir, Ino::ROOT | LIMBO) || self.has_handle(dir);
            if is_known || seen.len() >= MAX_PARENTS || !seen.insert(dir) {
                continue;
            }
            let Some(record) = self.record_if_any(dir)? else { continue };
            if is_only_claimed(&record) {
                return Ok(true);
            }
            left.extend(record.backing.links.iter().map(|link| link.parent));
        }
        Ok(false)
    }

    /// Opens a directory under one of the names that the backing store may have it under.
    fn open_one_of(&self, record: &Record, search: &mut Search) -> Result<Sought> {
        let mut sought = Sought::NoParent;
        // Newest first: a name that was claimed for a rename may or may not be there yet.
        for link in record.backing.links.newest_first() {
            let (parent, name) = match self.place_of(record, link, search) {
                Err(error) if error.class() == Some(ErrorClass::NotFound) => continue,
                place => place?,
            };
            sought = Sought::Absent;
            let mut opened = self.backing.open_dir(&parent, OsStr::from_bytes(&name));
            if opened.as_ref().is_err_and(|error| error.class() == ErrorClass::Stale)
                && self.handle_is_dead(link.parent)?
            {
                // The directory above may still be there, and only the handle be of no use any more.
                let (parent, name) = self.place_of(record, link, search)?;
                opened = self.backing.open_dir(&parent, OsStr::from_bytes(&name));
            }
            match opened {
                Ok(handle) => {
                    // Of a removed one another may have the name: its removal may not be reported.
                    let sure = record.backing.links.len() == 1 && !record.links.is_empty();
                    if sure || self.is_its_own(record, link, &handle)? {
                        return Ok(Sought::Found(handle));
                    }
                }
                Err(error) if error.class() == ErrorClass::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(sought)
    }

    /// Whether what stands under one of several claimed names is this directory, and not what a
    /// move has not got out of the way yet.
    fn is_its_own(&self, record: &Record, link: &Link, handle: &Dir) -> Result<bool> {
        match record.backing.fingerprint {
            Some(print) if print.ino != 0 => {
                Ok(self.backing.stat(handle, OsStr::new(""))?.same_inode(&print))
            }
            _ => {
                let others = self.meta.stale_inodes_at(link.parent, &link.name)?;
                Ok(others.iter().all(|ino| *ino == record.ino))
            }
        }
    }

    /// Where one backing link of `record` is: a handle and a name.
    pub(crate) fn place_of_link(&self, record: &Record, link: &Link) -> Result<(Dir, Vec<u8>)> {
        self.name_in(record, link, self.backing_dir(link.parent)?)
    }

    fn place_of(
        &self,
        record: &Record,
        link: &Link,
        search: &mut Search,
    ) -> Result<(Dir, Vec<u8>)> {
        self.name_in(record, link, self.seek(link.parent, search)?)
    }

    fn name_in(&self, record: &Record, link: &Link, parent: Dir) -> Result<(Dir, Vec<u8>)> {
        if link.parent == LIMBO {
            let name = self.parked_name(&parent, record)?;
            return Ok((parent, name));
        }
        Ok((parent, link.name.to_vec()))
    }

    /// The name that the store gave to an object in limbo: it ends in the key, here the inode's
    /// number in hexadecimal, after the name of the mount that put it there.
    fn parked_name(&self, limbo: &Dir, record: &Record) -> Result<Vec<u8>> {
        // Nearly always this mount itself did: then nobody has to look at all that is there.
        let own = self.backing.parked_name(record.ino.0);
        match self.backing.stat(limbo, &own) {
            Ok(found)
                if record.backing.fingerprint.is_none_or(|print| found.same_inode(&print)) =>
            {
                return Ok(own.into_encoded_bytes());
            }
            Ok(_) => {}
            Err(error) if error.class() == ErrorClass::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        let suffix = format!(".{:x}", record.ino.0);
        let mut names = Vec::new();
        self.backing.list(limbo, &mut |entries| {
            let fits = entries.iter().map(|entry| entry.name.as_bytes());
            names.extend(fits.filter(|name| name.ends_with(suffix.as_bytes())).map(<[u8]>::to_vec));
            ControlFlow::Continue(())
        })?;
        let print = record.backing.fingerprint.filter(|_| names.len() > 1);
        let ours = names.into_iter().find(|name| {
            print.is_none_or(|print| {
                let found = self.backing.stat(limbo, OsStr::from_bytes(name));
                found.is_ok_and(|found| found.same_inode(&print))
            })
        });
        ours.ok_or_else(|| Errno::NOENT.into())
    }

    /// A directory and a name in it under which the backing store holds `record` now. `NOENT` if it
    /// does not hold it. For the root: itself and the empty name.
    pub(crate) fn backing_place(&self, record: &Record) -> Result<(Dir, Vec<u8>)> {
        if record.ino == Ino::ROOT {
            return Ok((self.backing.root(), Vec::new()));
        }
        let mut newest_first = record.backing.links.newest_first();
        let Some(first) = newest_first.next() else { return Err(Errno::NOENT.into()) };
        if record.backing.links.len() == 1 {
            return self.place_of_link(record, first);
        }
        // Its user may have closed one of the directories to himself, and not the others.
        let mut denied = None;
        for link in record.backing.links.newest_first() {
            let found = self.place_of_link(record, link).and_then(|(dir, name)| {
                let found = self.backing.stat(&dir, OsStr::from_bytes(&name))?;
                Ok((dir, name, found))
            });
            match found {
                Ok((dir, name, found))
                    if record.backing.fingerprint.is_none_or(|print| found.same_inode(&print)) =>
                {
                    return Ok((dir, name));
                }
                Ok(_) => {}
                Err(error) if is_denied(&error) => denied = Some(error),
                // Limbo and directories as well may be claimed only.
                Err(error) if error.class() == Some(ErrorClass::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Err(denied.unwrap_or_else(|| Errno::NOENT.into()))
    }

    /// Opens the file that the backing store holds for `record`.
    pub(crate) fn open_backing(
        &self,
        record: &Record,
        access: Access,
    ) -> Result<Arc<dyn BackingFile>> {
        let open = |node: &Writeback| {
            let (dir, name) = node.backing_place(record)?;
            Ok(node.backing.open_file(&dir, OsStr::from_bytes(&name), access)?)
        };
        let _asked = self.imports.health.begin();
        match open(self) {
            Err(error) if is_lost(&error) => {
                let Some(link) = record.backing.links.first() else { return Err(error) };
                if self.handle_is_dead(link.parent)? {
                    return open(self);
                }
                // Moved by a worker since the record was read.
                let record = self.meta.get(record.ino)?;
                let (dir, name) = self.backing_place(&record)?;
                Ok(self.backing.open_file(&dir, OsStr::from_bytes(&name), access)?)
            }
            opened => opened,
        }
    }

    /// Opens the version of a file that the backing store has, for reading. Workers of the backlog
    /// may move it, and put another in its place, between the look for it and the open: then it
    /// looks again, until the file is at rest. What others did there is taken as it is.
    ///
    /// A worker whose daemon has died may have published the file into a directory that it had made
    /// and not reported. Then nobody is at it, and that is done here.
    ///
    /// # Errors
    /// What the backing store says.
    pub(crate) fn open_version(&self, ino: Ino) -> Result<Arc<dyn BackingFile>> {
        let mut looks = 0;
        // It was at rest, with this count of changes, when the look before had ended.
        let mut rested = None;
        loop {
            if looks == MAX_LOOKS {
                self.place_above(ino)?;
            }
            let mut record = self.meta.get(ino)?;
            let opened = again_after_refusal(
                || {
                    record = self.meta.get(ino)?;
                    self.open_backing(&record, Access::Read)
                },
                || self.open_to_reader(ino),
            );
            let found = match &opened {
                Ok(opened) => {
                    let known = record.backing.fingerprint.filter(|print| print.ino != 0);
                    known.is_none_or(|print| {
                        opened.stat().is_ok_and(|found| found.same_inode(&print))
                    })
                }
                Err(error) => !is_lost(error),
            };
            looks += 1;
            if found || looks > MAX_LOOKS {
                return opened;
            }
            // A worker may have moved it during this look, and reported that since.
            let before = rested.replace(record.change);
            match self.is_at_rest(&record)? {
                true if before == rested => return opened,
                true => {}
                false => {
                    rested = None;
                    let_workers_go_on();
                }
            }
        }
    }

    /// Whether nobody has moved an inode, or anything above it, since the record was read, or is
    /// about to.
    pub(super) fn is_at_rest(&self, record: &Record) -> Result<bool> {
        let way = self.way_at_rest(record.ino)?;
        Ok(way.is_some_and(|way| way.first() == Some(&(record.ino, record.change))))
    }

    /// Does something with a directory's handle, and once more with a new handle if the old one
    /// turns out to be dead. Waits for the streams before.
    pub(crate) fn in_directory<T>(
        &self,
        dir: Ino,
        mut operation: impl FnMut(&Dir) -> Result<T>,
    ) -> Result<T> {
        self.residency.pace();
        again_after_refusal(
            || self.in_directory_as_it_is(dir, &mut operation),
            || self.open_to_program(dir),
        )
    }

    /// The same without opening what a plain user has closed to himself.
    pub(super) fn in_directory_as_it_is<T>(
        &self,
        dir: Ino,
        mut operation: impl FnMut(&Dir) -> Result<T>,
    ) -> Result<T> {
        let handle = self.backing_dir(dir)?;
        match operation(&handle) {
            Err(error) if is_lost(&error) && self.handle_is_dead(dir)? => {
                operation(&self.backing_dir(dir)?)
            }
            done => done,
        }
    }

    /// Drops the handles on the way to an inode, and its own, that are stale; says whether one was.
    ///
    /// # Errors
    /// What the backing store says of one that it can't look at.
    pub(crate) fn drops_stale_handles(&self, record: &Record) -> Result<bool> {
        if !record.is_directory()
            && self.residency.drops_stale_base(&self.residency.files.get(record.ino))
        {
            return Ok(true);
        }
        let links = record.links.iter().chain(record.backing.links.iter());
        let dirs: BTreeSet<Ino> = links.map(|link| link.parent).chain([record.ino]).collect();
        let mut any = false;
        for dir in dirs {
            any |= self.handle_is_dead(dir)?;
        }
        Ok(any)
    }

    /// Drops the handle of a directory that was removed or is stale; says whether it was.
    ///
    /// # Errors
    /// What the backing store says if it can't look at it: that is no word on the directory.
    pub(crate) fn handle_is_dead(&self, dir: Ino) -> Result<bool> {
        let Some(handle) = self.imports.handles.get(dir) else { return Ok(false) };
        match self.backing.stat(&handle, OsStr::new("")).map_err(NodeError::from) {
            Ok(found) if found.nlink > 0 => return Ok(false),
            Err(error) if !is_lost(&error) => return Err(error),
            _ => {}
        }
        self.imports.handles.remove(dir);
        Ok(true)
    }

    /// Drops the handle of a directory.
    pub(crate) fn drop_handle(&self, dir: Ino) {
        self.imports.handles.remove(dir);
    }
}

/// Whether a directory was made here, and is not known to have been made in the backing store: under
/// a name that a worker has claimed for it another may still stand. (An imported directory is not
/// listed, or has its fingerprint.)
pub(super) fn is_only_claimed(record: &Record) -> bool {
    record.is_directory() && record.listed && is_unconfirmed(record)
}

fn is_lost(error: &crate::error::NodeError) -> bool {
    matches!(error.class(), Some(ErrorClass::NotFound | ErrorClass::Stale))
}

const STRIPES: usize = 64;

/// What listed directories looked like after our own latest change, as long as the namespace was
/// not told: each stripe also serializes our changes of the directories in it.
pub(super) struct OwnChanges {
    stripes: [Mutex<HashMap<u64, Fingerprint>>; STRIPES],
}

impl Default for OwnChanges {
    fn default() -> Self {
        OwnChanges { stripes: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl OwnChanges {
    fn stripe(dir: Ino) -> usize {
        (dir.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize
    }

    pub(super) fn lock(&self, dir: Ino) -> MutexGuard<'_, HashMap<u64, Fingerprint>> {
        waits::lock(&self.stripes[Self::stripe(dir)])
    }
}

impl Writeback {
    /// Makes a change of entries of the given directories of the backing store, so that it is not
    /// taken for a change by others: if a directory looked as known before, what it looks like
    /// afterwards is known too.
    pub(crate) fn own_change<T>(
        &self,
        dirs: &[(Ino, &Dir)],
        operation: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.entries_will_change(dirs.iter().map(|(dir, _)| *dir));
        self.own_change_of_attributes(dirs, operation)
    }

    /// Entries of directories of the backing store are about to be changed, and with them the times, which are
    /// to be set again then. That is noted first: the next daemon would take the time of a change of which
    /// nobody has told it for one that others have set. Where a sync of the namespace comes before the change,
    /// this is called before that.
    pub(crate) fn entries_will_change(&self, dirs: impl Iterator<Item = Ino>) {
        if self.config.coherence != Coherence::Exclusive {
            self.times_are_due(dirs.filter(|dir| *dir != LIMBO).map(|dir| dir.0));
        }
    }

    /// As [`Writeback::own_change`], of nothing but what the directories are themselves.
    pub(crate) fn own_change_of_attributes<T>(
        &self,
        dirs: &[(Ino, &Dir)],
        operation: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.rights.may_change_store()?;
        if self.config.coherence == Coherence::Exclusive {
            return operation();
        }
        waits::step();
        // A change by others between the look before and the look after is taken for a part of it.
        let _unwatched = waits::unwatched();
        let mut order: Vec<usize> = dirs.iter().map(|(ino, _)| OwnChanges::stripe(*ino)).collect();
        order.sort_unstable();
        order.dedup();
        let mut stripes: Vec<_> = (order.iter())
            .map(|&stripe| (stripe, waits::lock(&self.imports.own_changes.stripes[stripe])))
            .collect();
        let mut tracked = Vec::with_capacity(dirs.len());
        for (ino, dir) in dirs {
            let stripe = stripes.iter_mut().find(|(at, _)| *at == OwnChanges::stripe(*ino));
            let (_, known) = stripe.expect("its stripe was locked above");
            let as_known = known.remove(&ino.0).or_else(|| self.listed_print(*ino));
            if as_known.is_some() && as_known == self.print_of(dir) {
                tracked.push((*ino, *dir));
            }
        }
        let done = operation();
        for (ino, dir) in tracked {
            let stripe = stripes.iter_mut().find(|(at, _)| *at == OwnChanges::stripe(ino));
            let (_, known) = stripe.expect("its stripe was locked above");
            if let Some(print) = self.print_of(dir) {
                known.insert(ino.0, print);
            }
        }
        done
    }

    /// A directory that we made looks like this: nothing of others is in it.
    pub(crate) fn made_directory(&self, dir: Ino, print: Fingerprint) {
        if self.config.coherence != Coherence::Exclusive {
            self.imports.own_changes.lock(dir).insert(dir.0, print);
        }
    }

    /// Tells the namespace what a directory looks like after our own changes.
    pub(crate) fn settle_directory(&self, dir: Ino) -> Result<()> {
        let mut stripe = self.imports.own_changes.lock(dir);
        if let Some(print) = stripe.remove(&dir.0)
            && self.meta.get(dir).is_ok_and(|record| record.listed)
        {
            match self.meta.set_listed(dir, print) {
                // Removed meanwhile, and reported by whoever took it from the backing store.
                Ok(_) | Err(MetaError::Stale(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// What is known of a listed directory may not be all that there is: the next look lists it again,
    /// whatever it looks like then.
    pub(crate) fn doubt_listing(&self, dir: Ino) -> Result<()> {
        // With nobody between two looks at it, after which it would be known.
        let mut stripe = self.imports.own_changes.lock(dir);
        let latest = stripe.remove(&dir.0);
        let Some(record) = self.record_if_any(dir)? else { return Ok(()) };
        let known = latest.or(record.backing.fingerprint).unwrap_or_default();
        match self.meta.set_listed(dir, unlisted(known)) {
            Ok(_) | Err(MetaError::Stale(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// What a listed directory looked like when it was last known to be as here.
    fn listed_print(&self, dir: Ino) -> Option<Fingerprint> {
        let record = self.meta.get(dir).ok()?;
        record.backing.fingerprint.filter(|_| record.listed)
    }

    /// Whether a listed directory of the backing store looks as it did when it was last known to be
    /// as here; and what it looks like.
    pub(crate) fn looks_as_known(&self, ino: Ino, dir: &Dir) -> Result<(bool, Fingerprint)> {
        let stripe = self.imports.own_changes.lock(ino);
        let known = match stripe.get(&ino.0) {
            Some(print) => Some(*print),
            None => self.listed_print(ino),
        };
        let attributes = self.backing.stat(dir, OsStr::new(""))?;
        if attributes.nlink == 0 {
            return Err(Errno::NOENT.into());
        }
        let print = attributes.fingerprint();
        Ok((known == Some(print), print))
    }

    /// What a directory of the backing store looks like if its time was changed, and not by this mount; and
    /// the time that it had when it was last known to be as here.
    pub(super) fn time_of_others(
        &self,
        dir: Ino,
        handle: &Dir,
    ) -> Result<Option<(Timestamp, Fingerprint)>> {
        let Some(known) = self.known_time(dir)? else { return Ok(None) };
        let now = self.backing.stat(handle, OsStr::new(""))?.fingerprint();
        // Not with a change of our own under way: that is known when it is done.
        let is_known = known != Timestamp::default() && self.known_time(dir)? == Some(known);
        Ok((is_known && now.mtime != known).then_some((known, now)))
    }

    /// The time that a directory of the backing store had when it was last known to be as here.
    fn known_time(&self, dir: Ino) -> Result<Option<Timestamp>> {
        let stripe = self.imports.own_changes.lock(dir);
        let record = self.meta.get(dir)?;
        Ok(match stripe.get(&dir.0).or(record.backing.fingerprint.as_ref()) {
            Some(print) => Some(print.mtime),
            // Nobody has changed anything in it here.
            None if !record.listed
                && self.meta.entries_plus(dir, 0, 1)?.is_empty()
                && self.meta.stale_names(dir)?.is_empty() =>
            {
                Some(record.attr.mtime)
            }
            None => None,
        })
    }

    fn print_of(&self, dir: &Dir) -> Option<Fingerprint> {
        let attributes = self.backing.stat(dir, OsStr::new("")).ok()?;
        Some(attributes.fingerprint())
    }
}
