//! Which listings the kernel may keep, and give to programs without asking.
//!
//! It keeps what an open with `FOPEN_CACHE_DIR` reads of a directory, until a program changes the
//! directory through the mount or an open without `FOPEN_KEEP_CACHE` comes. It does not see to one thing:
//! an open that has asked before a change may put what it was told in place of what is dropped then. So
//! one open at a time may use and fill what is kept, and the others ask the daemon.
//!
//! What was kept is used as long as the namespace has the same entries, no file of the directory was
//! opened (a read makes the kernel ask for the times of the file, for each of them, and a listing brings
//! all of them), and for half of the time for which it may keep names and attributes.
//!
//! Owns: which open of a directory may use what the kernel keeps, and since when that is true. It must
//! never know what is in a directory.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_node::Moment;
use parking_lot::Mutex;

const SHARDS: usize = 16;
/// Directories that are remembered at most, in each part.
const MAX: usize = 2048;
/// Directories share counters of opened files.
const COUNTERS: usize = 4096;

/// How a directory is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grant {
    /// The daemon is asked for its entries.
    Ask,
    /// The kernel drops what it has, and keeps what this open, of this number, reads.
    Fill(u64),
    /// The kernel has it already.
    Keep(u64),
}

/// An open of a directory that may use what the kernel keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The directory's inode number.
    pub dir: u64,
    /// The number of the open.
    pub fh: u64,
}

/// A listing that the kernel has read and keeps.
struct CachedListing<M> {
    /// The open at which it began.
    by: u64,
    /// That open was closed: so the kernel has dropped what it had before.
    is_begun: bool,
    /// Taken before anything was read.
    since: M,
    at: Instant,
    files_opened: u64,
}

impl<M> CachedListing<M> {
    fn is_good_for(&self, limit: Duration) -> bool {
        self.is_begun && self.at.elapsed() < limit
    }
}

struct Listing<M> {
    holder: Option<u64>,
    cached: Option<CachedListing<M>>,
}

/// The listings of a mount.
pub struct Listings<M = Moment> {
    /// For how long what is kept is used; zero if nothing may be kept.
    limit: Duration,
    /// The number of the next open. Set when it is known which opens of an earlier daemon there are:
    /// as long as it is not, nothing is granted.
    next: OnceLock<AtomicU64>,
    shards: [Mutex<HashMap<u64, Listing<M>>>; SHARDS],
    /// How often files were opened, by directory.
    files_opened: Box<[AtomicU64]>,
}

impl<M: Copy> Listings<M> {
    /// Nothing is kept before [`Listings::begin`].
    pub fn new(limit: Duration) -> Self {
        Listings {
            limit,
            next: OnceLock::new(),
            shards: std::array::from_fn(|_| Mutex::default()),
            files_opened: (0..COUNTERS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Begins with the opens that an earlier daemon has granted, all of them.
    pub fn begin(&self, held: &[Held]) {
        for Held { dir, fh } in held {
            let listing = Listing { holder: Some(*fh), cached: None };
            self.shard(*dir).lock().insert(*dir, listing);
        }
        let last = held.iter().map(|held| held.fh).max().unwrap_or(0);
        let _ = self.next.set(AtomicU64::new(last + 1));
    }

    /// The opens that were granted and are not closed; `None` if there may be others.
    pub fn held(&self) -> Option<Vec<Held>> {
        self.next.get()?;
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let held = shard.iter().filter_map(|(dir, listing)| Some((*dir, listing.holder?)));
            all.extend(held.map(|(dir, fh)| Held { dir, fh }));
        }
        Some(all)
    }

    /// Whether what the kernel keeps of a directory may be used, if the directory is still the same.
    pub fn may_keep(&self, dir: u64) -> bool {
        self.shard(dir).lock().get(&dir).is_some_and(|listing| {
            let cached = listing.cached.as_ref();
            listing.holder.is_none() && cached.is_some_and(|cached| cached.is_good_for(self.limit))
        })
    }

    /// A directory is opened at the moment `now`. `changed` says whether its entries did since a moment.
    pub fn open(&self, dir: u64, now: M, changed: impl FnOnce(M) -> bool) -> Grant {
        let Some(next) = self.next.get().filter(|_| !self.limit.is_zero()) else {
            return Grant::Ask;
        };
        let files_opened = self.counter(dir).load(Ordering::Acquire);
        let mut shard = self.shard(dir).lock();
        if shard.len() >= MAX && !shard.contains_key(&dir) {
            shard.retain(|_, listing| listing.holder.is_some());
            if shard.len() >= MAX {
                return Grant::Ask;
            }
        }
        let listing = shard.entry(dir).or_insert(Listing { holder: None, cached: None });
        if listing.holder.is_some() {
            return Grant::Ask;
        }
        let fh = next.fetch_add(1, Ordering::Relaxed);
        listing.holder = Some(fh);
        let is_true = |cached: &CachedListing<M>| {
            cached.is_good_for(self.limit)
                && cached.files_opened == files_opened
                && !changed(cached.since)
        };
        if listing.cached.as_ref().is_some_and(is_true) {
            return Grant::Keep(fh);
        }
        let at = Instant::now();
        listing.cached =
            Some(CachedListing { by: fh, is_begun: false, since: now, at, files_opened });
        Grant::Fill(fh)
    }

    /// An open of a directory is closed, or never came to be.
    pub fn close(&self, dir: u64, fh: u64) {
        let mut shard = self.shard(dir).lock();
        let Some(listing) = shard.get_mut(&dir).filter(|listing| listing.holder == Some(fh)) else {
            return;
        };
        listing.holder = None;
        match &mut listing.cached {
            Some(cached) if cached.by == fh => cached.is_begun = true,
            Some(_) => {}
            None => drop(shard.remove(&dir)),
        }
    }

    /// The open of a directory that was granted never reached the kernel.
    pub fn undo(&self, dir: u64, fh: u64) {
        let mut shard = self.shard(dir).lock();
        if shard.get(&dir).is_some_and(|listing| listing.holder == Some(fh)) {
            shard.remove(&dir);
        }
    }

    /// A file of a directory was opened.
    pub fn file_opened(&self, dir: u64) {
        self.counter(dir).fetch_add(1, Ordering::AcqRel);
    }

    fn shard(&self, dir: u64) -> &Mutex<HashMap<u64, Listing<M>>> {
        &self.shards[spread(dir) % SHARDS]
    }

    fn counter(&self, dir: u64) -> &AtomicU64 {
        &self.files_opened[spread(dir) / SHARDS % COUNTERS]
    }
}

fn spread(dir: u64) -> usize {
    (dir.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: u64 = 7;
    const LIMIT: Duration = Duration::from_secs(3600);

    fn listings() -> Listings<u64> {
        let listings = Listings::new(LIMIT);
        listings.begin(&[]);
        listings
    }

    /// Opens the directory at a moment, when its last change was at another one.
    fn open(listings: &Listings<u64>, now: u64, last_change: u64) -> Grant {
        listings.open(DIR, now, |since| last_change > since)
    }

    /// Opens and closes it so that the kernel has it.
    fn read_through(listings: &Listings<u64>, now: u64) {
        let Grant::Fill(fh) = open(listings, now, now) else { panic!("not read anew") };
        assert!(!listings.may_keep(DIR));
        listings.close(DIR, fh);
        assert!(listings.may_keep(DIR));
    }

    #[test]
    fn directory_when_nothing_has_changed_then_kept() {
        let listings = listings();
        read_through(&listings, 5);
        for _ in 0..3 {
            let Grant::Keep(fh) = open(&listings, 9, 5) else { panic!("not kept") };
            listings.close(DIR, fh);
        }
        assert_eq!(listings.held(), Some(Vec::new()));
    }

    #[test]
    fn directory_when_its_entries_have_changed_then_read_anew() {
        let listings = listings();
        read_through(&listings, 5);
        read_through(&listings, 6);
        assert!(matches!(open(&listings, 9, 6), Grant::Keep(_)));
    }

    #[test]
    fn directory_when_a_file_of_it_was_opened_then_read_anew() {
        let listings = listings();
        read_through(&listings, 5);
        listings.file_opened(DIR);
        read_through(&listings, 5);
        assert!(matches!(open(&listings, 5, 5), Grant::Keep(_)));
    }

    #[test]
    fn directory_when_it_is_open_already_then_others_ask() {
        let listings = listings();
        let Grant::Fill(first) = open(&listings, 5, 5) else { panic!("not read anew") };
        assert_eq!(open(&listings, 5, 5), Grant::Ask);
        listings.close(DIR, first + 1);
        assert_eq!(open(&listings, 5, 5), Grant::Ask, "another was closed");
        listings.close(DIR, first);
        assert!(matches!(open(&listings, 5, 5), Grant::Keep(_)));
    }

    #[test]
    fn open_that_never_reached_the_kernel_then_the_next_reads_anew() {
        let listings = listings();
        read_through(&listings, 5);
        let Grant::Fill(fh) = open(&listings, 6, 6) else { panic!("not read anew") };
        listings.undo(DIR, fh);
        assert!(matches!(open(&listings, 6, 6), Grant::Fill(_)));
    }

    #[test]
    fn directory_when_the_time_is_over_then_read_anew() {
        let listings = Listings::<u64>::new(Duration::from_millis(1));
        listings.begin(&[]);
        let Grant::Fill(fh) = open(&listings, 5, 5) else { panic!("not read anew") };
        listings.close(DIR, fh);
        std::thread::sleep(Duration::from_millis(2));
        assert!(!listings.may_keep(DIR));
        assert!(matches!(open(&listings, 5, 5), Grant::Fill(_)));
    }

    #[test]
    fn opens_of_an_earlier_daemon_when_unknown_then_nothing_is_kept() {
        let listings = Listings::<u64>::new(LIMIT);
        assert_eq!((open(&listings, 5, 5), listings.held()), (Grant::Ask, None));
    }

    #[test]
    fn opens_of_an_earlier_daemon_when_known_then_others_ask_until_they_are_closed() {
        let before = listings();
        let Grant::Fill(fh) = open(&before, 5, 5) else { panic!("not read anew") };
        let held = before.held().unwrap();
        assert_eq!(held, [Held { dir: DIR, fh }]);
        let after = Listings::<u64>::new(LIMIT);
        after.begin(&held);
        assert_eq!(open(&after, 1, 1), Grant::Ask);
        after.close(DIR, fh);
        let Grant::Fill(newer) = open(&after, 1, 1) else { panic!("not read anew") };
        assert!(newer > fh);
    }

    #[test]
    fn directories_when_there_are_many_then_those_that_are_open_are_remembered() {
        let listings = listings();
        let Grant::Fill(fh) = open(&listings, 5, 5) else { panic!("not read anew") };
        for dir in 100..100 + 4 * (SHARDS * MAX) as u64 {
            match listings.open(dir, 5, |_| false) {
                Grant::Fill(fh) => listings.close(dir, fh),
                other => panic!("{other:?}"),
            }
        }
        let remembered: usize = listings.shards.iter().map(|shard| shard.lock().len()).sum();
        assert!(remembered <= SHARDS * MAX, "{remembered}");
        assert_eq!(listings.held().unwrap(), [Held { dir: DIR, fh }]);
    }
}
