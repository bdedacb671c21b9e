//! What is written here and not yet in the backing store is kept on other nodes, too, so that it is not
//! lost with this one.
//!
//! - [`policy`]: what is asked for, by file, directory or mount.
//! - [`level`]: whole copies, or fragments, and where the pieces of these lie.
//! - [`make`]: the owner makes copies at `fsync` and `close`, and tells the metadata where they are;
//!   [`send`] is how, and [`ahead`] what of it is done while a file is written.
//! - [`held`]: the copies that this node has for others.
//! - [`take_over`]: who has a copy takes a file over whose owner is gone; what the owner has when it is
//!   back does not count any more.
//! - [`gather`]: the bytes of a file from its fragments, for that and until then.
//! - [`keep`]: copies that are lost are made again, and those that nobody needs go.
//! - [`balance`]: copies move from nodes that are much fuller than others.
//!
//! What counts is decided in the metadata, each time in one transaction on record and copies: copies
//! count when they are told of, which the owner does when all nodes have them durably; they count no
//! longer when the record says that the backing store has all; and a file changes hands only as it was
//! when its copies were looked at.

mod ahead;
mod aside;
mod balance;
mod gather;
mod held;
mod keep;
mod level;
mod make;
mod policy;
mod send;
mod take_over;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_meta::{Copies, Error as MetaError, Record};
use forebay_peer::message::{Fault, ObjectId, Put};
use forebay_types::Ino;
use parking_lot::Mutex;
use rustix::io::Errno;

pub(crate) use self::ahead::Begun;
pub(crate) use self::balance::REBALANCE;
pub(crate) use self::gather::FRAGMENT;
pub use self::held::FileTotals;
use self::held::Held;
use self::keep::Keeper;
use self::level::Level;
use self::make::Outcome;
pub(crate) use self::policy::{ATTRIBUTE as REDUNDANCY, check_redundancy};
pub(crate) use self::take_over::TAKE_OVER;
use super::Cluster;
use crate::error::Result;
use crate::residency::Residency;
use crate::residency::files::FileRef;

/// Files that may wait for their copies where nobody waits for them.
const MAX_WAITING: usize = 4096;
/// Files that are put together from fragments at a time.
const MAX_ASSEMBLED: usize = 4;

/// The copies of a file that this node owns.
struct Made {
    /// Remembers what has changed since they were made.
    file: FileRef,
    copies: Copies,
    /// Whether bytes may be added to their end: only who made them may, and only as long as all that
    /// was sent was acknowledged.
    grows: bool,
}

/// A node's part in keeping what nodes write.
pub(super) struct Safety {
    held: Held,
    keeper: Keeper,
    made: Mutex<HashMap<u64, Made>>,
    pending_copies: Mutex<PendingCopies>,
    /// Files that are being put together from fragments.
    assembled: Mutex<HashSet<u64>>,
}

/// One at a time puts a file together.
struct Assembly<'a> {
    safety: &'a Safety,
    ino: u64,
}

impl Drop for Assembly<'_> {
    fn drop(&mut self) {
        self.safety.assembled.lock().remove(&self.ino);
    }
}

/// Files whose copies nobody waits for, and since when they wait for them.
#[derive(Default)]
struct PendingCopies {
    since: HashMap<u64, Instant>,
    /// Those whose copies are being made.
    under_way: Vec<(u64, Instant)>,
    /// Those that failed.
    again: Vec<u64>,
}

/// How safe is what is written here, and what this node does for others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SafetyReport {
    /// Files of others that this node has copies of.
    pub held: FileTotals,
    /// What others have taken over and this node keeps aside.
    pub aside: FileTotals,
    /// Files of this node that have copies elsewhere.
    pub copied: u64,
    /// Of these, files with fewer copies than they should have.
    pub lacking: u64,
    /// Bytes of the copies that are missing.
    pub missing_bytes: u64,
    /// Files that wait for their first copies, as nobody waits for these.
    pub waiting: u64,
    /// How long the first of them has waited.
    pub lag: Duration,
    /// Copies that are about to move to nodes with more room.
    pub moving: u64,
    /// Their bytes.
    pub moving_bytes: u64,
    /// Other nodes that it takes to keep what is written here as the mount asks for.
    pub wanted_nodes: usize,
    /// Other nodes that can be given something to keep.
    pub able_nodes: usize,
}

impl Safety {
    pub fn new(residency: Arc<Residency>, repair_rate: u64) -> Self {
        Safety {
            held: Held::new(residency),
            keeper: Keeper::new(repair_rate),
            made: Mutex::default(),
            pending_copies: Mutex::default(),
            assembled: Mutex::default(),
        }
    }

    /// `None` if somebody is at it, or if this node puts together as many files as it may: what others
    /// need for theirs is had of the same threads.
    fn begin_whole(&self, ino: Ino) -> Option<Assembly<'_>> {
        let mut assembled = self.assembled.lock();
        let begun = assembled.len() < MAX_ASSEMBLED && assembled.insert(ino.0);
        begun.then_some(Assembly { safety: self, ino: ino.0 })
    }

    /// The copies of a file, and whether bytes may be added to them.
    fn known(&self, ino: Ino) -> Option<(Copies, bool)> {
        self.made.lock().get(&ino.0).map(|made| (made.copies.clone(), made.grows))
    }

    fn made_of(&self, ino: Ino) -> Option<(FileRef, Copies, bool)> {
        let made = self.made.lock();
        made.get(&ino.0).map(|made| (made.file.clone(), made.copies.clone(), made.grows))
    }

    fn all_made(&self) -> Vec<(Ino, Copies)> {
        self.made.lock().iter().map(|(ino, made)| (Ino(*ino), made.copies.clone())).collect()
    }

    /// Nothing may be added to the copies of a file, until that is known to have arrived.
    fn grow_no_more(&self, ino: Ino) {
        if let Some(made) = self.made.lock().get_mut(&ino.0) {
            made.grows = false;
        }
    }

    /// Keeps in mind which copies a file has, of which there should be `level`.
    fn note(&self, me: u16, file: &FileRef, copies: &Copies, grows: bool, level: Option<Level>) {
        let new = Made { file: file.clone(), copies: copies.clone(), grows };
        let before = self.made.lock().insert(file.ino.0, new);
        let same = |made: &Made| {
            (made.copies.version, &made.copies.holders) == (copies.version, &copies.holders)
        };
        if !before.as_ref().is_some_and(same) {
            self.keeper.watch(file.ino.0, me, Some((copies, level)));
        }
    }

    /// As [`Safety::note`], of copies that the planner has moved.
    fn moved(&self, ino: Ino, copies: Copies) {
        if let Some(made) = self.made.lock().get_mut(&ino.0) {
            made.copies = copies;
        }
    }

    /// Forgets the copies of a file if they are these; whether they were.
    fn forget(&self, me: u16, ino: Ino, copies: &Copies) -> bool {
        let forgotten = {
            let mut made = self.made.lock();
            match made.get(&ino.0).is_some_and(|made| made.copies == *copies) {
                true => made.remove(&ino.0),
                false => None,
            }
        };
        if forgotten.is_some() {
            self.keeper.watch(ino.0, me, None);
        }
        // The file goes with it, and not under a lock.
        forgotten.is_some()
    }

    fn report(&self) -> SafetyReport {
        let progress = self.keeper.progress();
        let pending_copies = self.pending_copies.lock();
        let under_way = pending_copies
            .under_way
            .iter()
            .filter(|(ino, _)| !pending_copies.since.contains_key(ino));
        let count = pending_copies.since.len() + under_way.count();
        let begun = pending_copies.under_way.iter().map(|(_, since)| since);
        let oldest = pending_copies.since.values().chain(begun).map(Instant::elapsed).max();
        SafetyReport {
            held: self.held.totals(),
            aside: self.held.aside.totals(),
            copied: self.made.lock().len() as u64,
            lacking: progress.lacking,
            missing_bytes: progress.missing_bytes,
            waiting: count as u64,
            lag: oldest.unwrap_or_default(),
            ..SafetyReport::default()
        }
    }
}

impl Cluster {
    /// How safe what is written here is.
    pub fn safety(&self) -> SafetyReport {
        let all = self.peers.get().map(super::Peers::listening).unwrap_or_default();
        let (moving, moving_bytes) = self.safety.keeper.moves();
        SafetyReport {
            moving,
            moving_bytes,
            wanted_nodes: self.config.redundancy.others(),
            able_nodes: all.iter().filter(|node| self.can_hold(**node)).count(),
            ..self.safety.report()
        }
    }

    /// What this node keeps for others, in bytes, and what of its own is about to move.
    pub(super) fn kept_and_moving(&self) -> (u64, u64) {
        (self.safety.held.totals().bytes, self.safety.keeper.moves().1)
    }

    /// Waits until no other node needs a copy that this one has; false if that takes longer than
    /// `limit`.
    pub fn await_copies_moved(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        while self.has_needed_copies() {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        true
    }

    /// Finds what an earlier start keeps for others.
    pub(crate) fn recover_copies(&self) -> Result<()> {
        self.safety.held.find_copies()
    }

    /// Whether the backing store lacks bytes of a file that are here.
    fn is_unsaved(&self, record: &Record, file: &FileRef) -> bool {
        let without_bytes = || record.is_dirty() || record.backing.fingerprint.is_none();
        let resident = self.residency.residents.get(file.ino.0);
        resident.map_or_else(without_bytes, |resident| resident.dirty)
            || file.location.read().is_spilled()
    }

    /// Sees to it that what was written to a file before the call is as safe as is asked for; where that
    /// is left to later, to it that it will be.
    ///
    /// # Errors
    /// `ESTALE` if another node has taken the file over. If too few nodes can take copies, what the
    /// backing store says, to which the file is written then.
    pub(crate) fn safeguard(&self, file: &FileRef) -> Result<()> {
        // No round trip: only this node says that there are copies, and each look-up of a path brings
        // what its directories say.
        let record = match self.meta.get_believed(file.ino) {
            Ok(record) => record,
            Err(MetaError::Stale(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let asked = self.redundancy_of(&record)?;
        let (level, wait) = match Level::of(asked) {
            Some(level) => (level, asked.waits()),
            // Else the copies that there are would be taken for the newest.
            None if record.copied => (Level::Copies(1), true),
            None => return Ok(()),
        };
        if record.links.is_empty() || !self.is_unsaved(&record, file) {
            return Ok(());
        }
        if self.is_fenced() {
            return Err(Errno::STALE.into());
        }
        if !wait && self.copy_later(file.ino) {
            return Ok(());
        }
        self.make_safe(file, level)
    }

    fn make_safe(&self, file: &FileRef, level: Level) -> Result<()> {
        match self.make_copies(file, level)? {
            Outcome::Made => Ok(()),
            Outcome::Impossible => {
                tracing::debug!(ino = %file.ino, ?level, "too few nodes take copies: written back at once");
                self.metrics.written_through.inc();
                self.residency.settle(file)?;
                self.writeback.reconcile_as_it_is(file.ino)
            }
        }
    }

    /// Has copies of a file made sometime; false if too many files wait for that.
    fn copy_later(&self, ino: Ino) -> bool {
        {
            let mut pending_copies = self.safety.pending_copies.lock();
            if pending_copies.since.contains_key(&ino.0) {
                return true;
            }
            if pending_copies.since.len() >= MAX_WAITING {
                return false;
            }
            pending_copies.since.insert(ino.0, Instant::now());
        }
        let begun = self.later(move |cluster| cluster.copy_now(ino));
        if !begun {
            self.safety.pending_copies.lock().since.remove(&ino.0);
        }
        begun
    }

    fn copy_now(&self, ino: Ino) {
        let since = {
            let mut pending_copies = self.safety.pending_copies.lock();
            // From here on a close counts as one more.
            let since = pending_copies.since.remove(&ino.0).unwrap_or_else(Instant::now);
            pending_copies.under_way.push((ino.0, since));
            since
        };
        let file = self.residency.files.get(ino);
        let level = self.level_of(ino).unwrap_or(Level::Copies(1));
        let made = self.make_safe(&file, level);
        let failed = made.err().filter(|_| self.needs_copies(&file));
        let mut pending_copies = self.safety.pending_copies.lock();
        let this = pending_copies.under_way.iter().position(|entry| *entry == (ino.0, since));
        if let Some(at) = this {
            pending_copies.under_way.swap_remove(at);
        }
        if let Some(error) = failed {
            tracing::warn!(
                %ino,
                %error,
                "a file has no copies on other nodes yet and would be lost with this one; it will \
                 be tried again"
            );
            pending_copies.since.entry(ino.0).or_insert(since);
            pending_copies.again.push(ino.0);
        }
    }

    /// Whether a file that could not be copied has to be: not one that was removed meanwhile, or that
    /// the backing store has.
    fn needs_copies(&self, file: &FileRef) -> bool {
        match self.meta.get(file.ino) {
            Ok(record) => !record.links.is_empty() && self.is_unsaved(&record, file),
            Err(error) => !matches!(error, MetaError::Stale(_)),
        }
    }

    /// Tries again what has failed.
    fn copy_waiting_again(&self) {
        let again = std::mem::take(&mut self.safety.pending_copies.lock().again);
        for ino in again {
            if !self.later(move |cluster| cluster.copy_now(Ino(ino))) {
                self.safety.pending_copies.lock().again.push(ino);
            }
        }
    }

    /// Another node stores a part of a copy here.
    pub(crate) fn store_part(&self, put: &Put, bytes: &[u8]) -> Result<(), Fault> {
        self.safety.held.put_copy(put, bytes)
    }

    /// Another node needs a copy no longer.
    pub(crate) fn drop_part(&self, object: &ObjectId) -> Result<(), Fault> {
        let ObjectId { ino, version, part } = *object;
        let dropped = self.safety.held.drop_copy_held((ino, version, part));
        dropped.map_err(|error| Fault::Io { errno: error.raw_os_error().unwrap_or(libc::EIO) })
    }
}
