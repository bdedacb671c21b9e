//! Listing directories of the backing store into the namespace: streamed, one listing of a
//! directory at a time.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_meta::{Found, Link, MetaStore};
use forebay_store::Dir;
use forebay_store::backing::BackingEntry;
use forebay_types::{Fingerprint, Ino, Timestamp};
use parking_lot::{Condvar, Mutex};

use super::coherence::unlisted;
use super::is_hidden;
use super::spelling::Made;
use crate::clock;
use crate::error::Result;
use crate::residency::data::CLOCK_STEP;
use crate::waits::Wait;
use crate::writeback::Writeback;

/// Entries handed to the namespace at once.
const BATCH: usize = 1000;

/// Entries read before they are put in order and imported: some 15 MiB of memory.
const SORTED: usize = 65_536;

/// A directory whose listing took long is not listed again before this many times as long has
/// passed, so that constant changes of a huge directory cost a bounded share of the time.
const REST: u32 = 20;

/// The longest step of the clock of a file system of which nothing is known.
const COARSE_STEP: Duration = Duration::from_secs(2);

/// More names than these given up during one reading of a directory: it starts anew.
const MAX_GONE: usize = 100_000;

/// Directories being read, with the names that the backing store gave up meanwhile.
#[derive(Default)]
pub(super) struct Readings {
    table: Mutex<HashMap<u64, Vec<Arc<Mutex<Gone>>>>>,
}

#[derive(Default)]
struct Gone {
    names: HashSet<Box<[u8]>>,
    too_many: bool,
}

impl Readings {
    /// A reading of `dir` begins.
    pub(super) fn begin(&self, dir: Ino) -> Reading<'_> {
        let gone = Arc::<Mutex<Gone>>::default();
        self.table.lock().entry(dir.0).or_default().push(gone.clone());
        Reading {
            readings: self,
            dir,
            gone,
            made: Made::default(),
            incomplete: AtomicBool::new(false),
        }
    }

    pub(super) fn gone(&self, link: &Link) {
        let readings = self.table.lock().get(&link.parent.0).cloned();
        for gone in readings.into_iter().flatten() {
            let mut gone = gone.lock();
            if gone.names.len() < MAX_GONE {
                gone.names.insert(link.name.clone());
            } else {
                gone.too_many = true;
            }
        }
    }
}

/// A reading of a directory under way.
pub(super) struct Reading<'a> {
    readings: &'a Readings,
    dir: Ino,
    gone: Arc<Mutex<Gone>>,
    made: Made,
    /// Something was left out that may be somebody else's.
    incomplete: AtomicBool,
}

impl Reading<'_> {
    /// Imports what was read, but for names that were given up since they were read. A name given
    /// up later is still a stale name while this runs, which the namespace leaves out by itself.
    pub(super) fn import(&self, node: &Writeback, dir: Ino, mut found: Vec<Found>) -> Result<bool> {
        // This may wait for workers, who report there what they give up.
        if !node.leave_out_altered(dir, &self.made, &mut found)? {
            self.incomplete.store(true, Ordering::Relaxed);
        }
        let gone = self.gone.lock();
        if gone.too_many {
            return Ok(false);
        }
        found.retain(|found| !gone.names.contains(&found.name));
        match node.residency.peers.changes_namespace_alone() {
            true => node.meta.import(dir, &found)?,
            // Another node may have listed it, and then taken a name away.
            false => node.meta.import_unless_listed(dir, &found)?,
        };
        Ok(true)
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut table = self.readings.table.lock();
        if let Some(readings) = table.get_mut(&self.dir.0) {
            readings.retain(|gone| !Arc::ptr_eq(gone, &self.gone));
            if readings.is_empty() {
                table.remove(&self.dir.0);
            }
        }
    }
}

/// Work on a directory that only one does while the others wait for its end.
#[derive(Default)]
pub(super) struct Listings {
    under_way: Mutex<HashSet<u64>>,
    ended: Condvar,
    announced: Mutex<HashSet<u64>>,
}

impl Listings {
    /// Enters for `dir`, or waits until the one under way has ended, `limit` at most. `None`:
    /// somebody else was at it.
    pub(super) fn enter(&self, dir: Ino, limit: Duration) -> Option<ListingInFlight<'_>> {
        let mut under_way = self.under_way.lock();
        if under_way.insert(dir.0) {
            return Some(ListingInFlight { in_flight: self, dir });
        }
        let mut wait = Wait::until(Instant::now() + limit);
        while under_way.contains(&dir.0) && wait.goes_on(&self.ended, &mut under_way) {}
        None
    }

    /// Whether `dir` was not yet waiting for its background listing.
    pub(super) fn announce(&self, dir: Ino) -> bool {
        self.announced.lock().insert(dir.0)
    }

    pub(super) fn unannounce(&self, dir: Ino) {
        self.announced.lock().remove(&dir.0);
    }
}

/// The right to work on a directory.
pub(super) struct ListingInFlight<'a> {
    in_flight: &'a Listings,
    dir: Ino,
}

impl Drop for ListingInFlight<'_> {
    fn drop(&mut self) {
        self.in_flight.under_way.lock().remove(&self.dir.0);
        self.in_flight.ended.notify_all();
    }
}

/// Whether another change of a directory that looks so may leave the very same times, of which only the
/// store knows how exact they are. One that tells when an object was made is a local file system; others
/// may count seconds, two of them, or have a clock that is not quite this one.
fn is_young(print: &Fingerprint, now: Timestamp) -> bool {
    let step = if print.born == Timestamp::default() { COARSE_STEP } else { CLOCK_STEP };
    // The other time programs may set, also to one that is yet to come.
    let changed = if print.ctime == Timestamp::default() { print.mtime } else { print.ctime };
    let nanos = |time: Timestamp| i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec);
    let age = nanos(now) - nanos(changed);
    age < i128::try_from(step.as_nanos()).unwrap_or(0)
}

impl Writeback {
    /// Imports all entries of a directory, or waits for another thread that does.
    pub(crate) fn list_directory(&self, dir: Ino) -> Result<()> {
        self.list_through(dir, |list| self.in_directory(dir, list))
    }

    /// The same where nobody waits for it: a plain user's closed directory is not opened for that, which
    /// might be after the end of a drain.
    pub(super) fn list_if_open(&self, dir: Ino) -> Result<()> {
        self.list_through(dir, |list| self.in_directory_as_it_is(dir, list))
    }

    fn list_through(
        &self,
        dir: Ino,
        through: impl Fn(&mut dyn FnMut(&Dir) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        while !self.meta.get(dir)?.listed {
            let entered = self.imports.in_flight.enter(dir, self.config.backing_timeout);
            if let Some(_flight) = entered
                && !self.meta.get(dir)?.listed
            {
                through(&mut |handle| self.list_first(dir, handle))?;
            }
        }
        Ok(())
    }

    /// Reads a directory and imports what is new in it. `each` sees every batch. Says whether it is all
    /// that there is: of what a worker has in hand it can take too long to say whose it is.
    pub(crate) fn import_all(
        &self,
        dir: Ino,
        handle: &Dir,
        each: &mut dyn FnMut(&[Found]) -> Result<()>,
    ) -> Result<bool> {
        let began = clock::now();
        let now = clock::wall_time();
        let (_, before) = self.looks_as_known(dir, handle)?;
        // What others do in the same step of the store's clock gives it the same times: the next look has
        // to read it once more.
        let was_young = is_young(&before, now);
        let complete = loop {
            // Of a listing that takes long the store may answer each part at once: only the question that is
            // open tells whether it answers.
            let mut asked = Some(self.imports.health.begin());
            let reading = self.imports.reading.begin(dir);
            let mut pending = Vec::new();
            let mut outcome = Ok(true);
            self.backing.list_plus(handle, &mut |entries| {
                drop(asked.take());
                outcome = self.take_batch(dir, handle, entries, &mut pending, &reading, each);
                asked = Some(self.imports.health.begin());
                match outcome {
                    Ok(true) => ControlFlow::Continue(()),
                    _ => ControlFlow::Break(()),
                }
            })?;
            drop(asked);
            if outcome? && self.hand_over(dir, &mut pending, &reading, each)? {
                break !reading.incomplete.load(Ordering::Relaxed);
            }
        };
        self.meta.set_listed(dir, if was_young { unlisted(before) } else { before })?;
        self.imports.own_changes.lock(dir).remove(&dir.0);
        if complete {
            let rest = ((clock::now() - began) * REST).max(self.config.attr_timeout);
            self.imports.directories.set_fresh(dir, rest);
        }
        Ok(complete)
    }

    fn take_batch(
        &self,
        dir: Ino,
        handle: &Dir,
        entries: &[BackingEntry],
        pending: &mut Vec<Found>,
        reading: &Reading<'_>,
        each: &mut dyn FnMut(&[Found]) -> Result<()>,
    ) -> Result<bool> {
        for entry in entries {
            let Some(attributes) = &entry.attributes else { continue };
            if is_hidden(dir, OsStr::from_bytes(entry.name.as_bytes())) {
                continue;
            }
            self.tells_apart(handle, entry.name.as_bytes(), attributes);
            match self.found(handle, entry.name.as_bytes(), attributes) {
                Ok(found) => pending.push(found),
                // A symbolic link that vanished while the directory was read.
                Err(error) if error.class() == Some(forebay_store::ErrorClass::NotFound) => {}
                Err(error) => return Err(error),
            }
            if pending.len() >= SORTED && !self.hand_over(dir, pending, reading, each)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn hand_over(
        &self,
        dir: Ino,
        pending: &mut Vec<Found>,
        reading: &Reading<'_>,
        each: &mut dyn FnMut(&[Found]) -> Result<()>,
    ) -> Result<bool> {
        let mut found = std::mem::take(pending);
        // Numbered in the order in which they will be listed, their records lie side by side.
        found.sort_by_cached_key(|found| MetaStore::listing_order(&found.name));
        let mut found = found.into_iter().peekable();
        while found.peek().is_some() {
            let batch: Vec<Found> = found.by_ref().take(BATCH).collect();
            each(&batch)?;
            if !reading.import(self, dir, batch)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
