//! A partition whose lease this process has: what it holds, and what it has not been brought yet.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use parking_lot::Mutex;

use crate::engine::redis::Share;
use crate::engine::{Key, MiniTransaction, Outcome, Page, Write};

/// What a key takes beside its bytes, about.
const KEY_BYTES: usize = 80;

/// A partition that is leased, or about to be. Times are nanoseconds since the engine's start.
pub(super) struct Part {
    pub partition: u16,
    /// Tells what was read under this lease from what was read under others; 0 if there is none.
    pub stamp: AtomicU64,
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
    /// The last transaction that the partition has on the servers.
    pub arrived: AtomicU64,
    /// What has come to the session, each share with the last transaction that came with it, and not
    /// to the partition yet.
    pub due: Mutex<VecDeque<(u64, Share)>>,
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
            used: AtomicU64::new(0),
            arrived: AtomicU64::new(0),
            due: Mutex::default(),
            bytes: AtomicUsize::new(0),
            shipping: Mutex::default(),
            state: Mutex::default(),
        }
    }
}

/// The lease of a partition.
pub(super) struct Held {
    pub id: String,
    pub image: Image,
    /// The last transaction that was committed under it.
    pub last: u64,
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
