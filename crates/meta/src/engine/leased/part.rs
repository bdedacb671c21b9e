//! A partition whose lease this process has: what it holds, and what has not been shipped yet.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::engine::redis::Batch;
use crate::engine::{Key, MiniTransaction, Outcome, Page, Write};

/// Writes and bytes of them that are shipped in one go: a server does nothing else meanwhile.
const BATCH_WRITES: usize = 1000;
const BATCH_BYTES: usize = 1 << 20;
/// What a key takes beside its bytes, about.
const KEY_BYTES: usize = 80;

/// A partition that is leased, or about to be. Times are nanoseconds since the engine's start.
pub(super) struct Part {
    pub partition: u16,
    /// Tells what was read under this lease from what was read under others; 0 if there is none.
    pub stamp: AtomicU64,
    /// Up to when this process may act on it.
    pub valid: AtomicU64,
    pub used: AtomicU64,
    /// Up to when others go by what was read here without asking, perhaps: by the clock of the kernel,
    /// as `inherited`, which stands still while the machine sleeps.
    pub relied: AtomicU64,
    /// Up to when others may go by what an earlier process read, and can't be told.
    pub inherited: u64,
    /// It is about to be given back: nobody else is to rely on it.
    pub leaving: AtomicBool,
    /// Nobody else relies on it any more.
    pub is_let_go: AtomicBool,
    /// The last transaction that has arrived at the servers.
    pub arrived: AtomicU64,
    /// Memory that it takes.
    pub bytes: AtomicUsize,
    /// Held by whoever ships. Locked before `state`.
    pub shipping: Mutex<()>,
    pub state: Mutex<Option<Held>>,
}

impl Part {
    pub fn new(partition: u16, inherited: u64) -> Self {
        Part {
            relied: AtomicU64::new(0),
            inherited,
            leaving: AtomicBool::new(false),
            is_let_go: AtomicBool::new(false),
            partition,
            stamp: AtomicU64::new(0),
            valid: AtomicU64::new(0),
            used: AtomicU64::new(0),
            arrived: AtomicU64::new(0),
            bytes: AtomicUsize::new(0),
            shipping: Mutex::default(),
            state: Mutex::default(),
        }
    }

    pub fn is_valid(&self, now: u64) -> bool {
        now < self.valid.load(Ordering::Acquire)
    }
}

/// The lease of a partition.
pub(super) struct Held {
    pub id: String,
    pub image: Image,
    pub log: Log,
}

/// All that a partition holds.
#[derive(Default)]
pub(super) struct Image {
    keys: BTreeMap<Vec<u8>, Vec<u8>>,
    bytes: usize,
}

impl Image {
    /// Adds a page of what the servers have; the last key.
    pub fn load(&mut self, page: Page) -> Option<Vec<u8>> {
        let last = page.items.last().map(|(key, _)| key.clone());
        for (key, value) in page.items {
            self.put(key, value);
        }
        last
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn has(&self, key: &Key) -> bool {
        self.keys.contains_key(key.bytes())
    }

    fn get(&self, key: &Key) -> Option<&Vec<u8>> {
        self.keys.get(key.bytes())
    }

    /// What comes of a transaction; its writes are not done.
    pub fn outcome(&self, transaction: &MiniTransaction) -> Outcome {
        for compare in &transaction.compare {
            if !compare.expect.holds(self.get(&compare.key).map(Vec::as_slice)) {
                return Outcome::Conflict;
            }
        }
        Outcome::Committed(transaction.read.iter().map(|key| self.get(key).cloned()).collect())
    }

    pub fn apply(&mut self, writes: &[Write]) {
        for write in writes {
            match write {
                Write::Put(key, value) => self.put(key.bytes().to_vec(), value.clone()),
                Write::Delete(key) => {
                    if let Some(value) = self.keys.remove(key.bytes()) {
                        self.bytes -= KEY_BYTES + key.bytes().len() + value.len();
                    }
                }
            }
        }
    }

    fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        let length = key.len();
        self.bytes += KEY_BYTES + length + value.len();
        if let Some(before) = self.keys.insert(key, value) {
            self.bytes -= KEY_BYTES + length + before.len();
        }
    }

    pub fn scan(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Page {
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let mut page = Page::default();
        for (key, value) in self.keys.range::<[u8], _>((from, Bound::Unbounded)) {
            if !key.starts_with(prefix) {
                break;
            }
            if page.items.len() == limit {
                page.more = true;
                break;
            }
            page.items.push((key.clone(), value.clone()));
        }
        page
    }

    pub fn count(&self, prefix: &[u8]) -> u64 {
        let range = self.keys.range::<[u8], _>((Bound::Included(prefix), Bound::Unbounded));
        range.take_while(|(key, _)| key.starts_with(prefix)).count() as u64
    }
}

/// What was committed and has not been shipped, in order. Transactions are numbered from 1.
#[derive(Default)]
pub(super) struct Log {
    last: u64,
    entries: VecDeque<Vec<Write>>,
    /// Sent, perhaps, and not known to have arrived: it is sent again as it is.
    under_way: Option<Batch>,
    /// The last transaction that is not in the journal.
    unnoted: u64,
}

impl Log {
    /// After so many transactions that an earlier process has committed and shipped.
    pub fn after(shipped: u64) -> Self {
        Log { last: shipped, ..Log::default() }
    }

    /// The number of the last transaction.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The number of the next transaction.
    pub fn next(&self) -> u64 {
        self.last + 1
    }

    pub fn push(&mut self, writes: Vec<Write>, noted: bool) {
        self.last += 1;
        if !noted {
            self.unnoted = self.last;
        }
        self.entries.push_back(writes);
    }

    /// Whether all that has not arrived is in the journal.
    pub fn is_noted(&self) -> bool {
        self.unnoted <= self.arrived()
    }

    /// Transactions that wait, or are under way.
    pub fn len(&self) -> usize {
        let under_way = self.under_way.as_ref().map_or(0, |batch| batch.last - batch.after);
        self.entries.len() + usize::try_from(under_way).unwrap_or(usize::MAX)
    }

    /// The last transaction that has arrived.
    pub fn arrived(&self) -> u64 {
        self.last - self.len() as u64
    }

    /// What is to be sent next: several transactions as one, of which the last write of a key
    /// counts. Without any it is a sign of life.
    pub fn batch(&mut self) -> Batch {
        if let Some(batch) = &self.under_way {
            return batch.clone();
        }
        let after = self.arrived();
        let mut batch = Batch { after, last: after, writes: Vec::new() };
        let mut places: HashMap<Key, usize> = HashMap::new();
        let mut bytes = 0;
        while batch.writes.len() < BATCH_WRITES
            && bytes < BATCH_BYTES
            && let Some(writes) = self.entries.pop_front()
        {
            batch.last += 1;
            for write in writes {
                if let Write::Put(_, value) = &write {
                    bytes += value.len();
                }
                match places.get(write.key()) {
                    Some(at) => batch.writes[*at] = write,
                    None => {
                        places.insert(write.key().clone(), batch.writes.len());
                        batch.writes.push(write);
                    }
                }
            }
        }
        if batch.last > batch.after {
            self.under_way = Some(batch.clone());
        }
        batch
    }

    /// All that has not arrived, as far as is known.
    pub fn rest(&mut self) -> Vec<Vec<Write>> {
        let under_way = self.under_way.take().map(|batch| batch.writes);
        under_way.into_iter().chain(self.entries.drain(..)).collect()
    }

    /// The batch has arrived.
    pub fn confirm(&mut self) {
        self.under_way = None;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn put(key: u8, value: u8) -> Write {
        Write::Put(Key::new(5, &[key]), vec![value])
    }

    proptest! {
        /// Whatever is pushed between whichever batches, they bring the same state in the same order.
        #[test]
        fn log_any_history_then_batches_bring_all_once_and_in_order(
            history in proptest::collection::vec((0u8..6, any::<u8>(), 0u8..10), 1..200),
        ) {
            let (mut log, mut here, mut there) = (Log::default(), Image::default(), Image::default());
            let mut arrived = 0;
            let mut ship = |log: &mut Log, there: &mut Image| {
                let batch = log.batch();
                // Sent twice, counted once.
                assert_eq!(log.batch(), batch);
                assert_eq!(batch.after, arrived);
                arrived = batch.last;
                there.apply(&batch.writes);
                log.confirm();
                assert_eq!(log.arrived(), arrived);
            };
            for (key, value, what) in history {
                let write = if what < 3 { Write::Delete(Key::new(5, &[key])) } else { put(key, value) };
                let writes = vec![write, put(100 + key, value)];
                here.apply(&writes);
                log.push(writes, true);
                if what == 9 {
                    ship(&mut log, &mut there);
                }
            }
            ship(&mut log, &mut there);
            prop_assert_eq!(log.len(), 0);
            prop_assert_eq!(&here.keys, &there.keys);
            prop_assert_eq!(here.bytes(), there.bytes());
            let bytes: usize = here.keys.iter().map(|(k, v)| KEY_BYTES + k.len() + v.len()).sum();
            prop_assert_eq!(here.bytes(), bytes);
        }
    }

    #[test]
    fn log_when_one_could_not_be_noted_then_none_counts_as_noted_until_that_has_arrived() {
        let mut log = Log::default();
        log.push(vec![put(1, 1)], true);
        assert!(log.is_noted());
        log.push(vec![put(1, 2)], false);
        log.push(vec![put(1, 3)], true);
        assert!(!log.is_noted(), "the journal has a gap: the third would be shipped without it");
        log.batch();
        log.confirm();
        assert!(log.is_noted());
        log.push(vec![put(1, 4)], true);
        assert!(log.is_noted());
    }

    #[test]
    fn log_when_long_then_shipped_in_bounded_batches() {
        let mut log = Log::default();
        for n in 0..10_000u32 {
            log.push(vec![Write::Put(Key::new(5, &n.to_be_bytes()), vec![0; 10])], true);
        }
        let mut batches = 0;
        while log.len() > 0 {
            assert!(log.batch().writes.len() <= BATCH_WRITES);
            log.confirm();
            batches += 1;
        }
        assert_eq!((batches, log.arrived()), (10, 10_000));
    }
}
