//! Closed files of which the records do not say yet what was written to them, so that nothing has them
//! written back: a tier or the namespace failed, or somebody had them in hand who waits for a slow device.
//!
//! # Invariants
//! (`crates/node/tests/unsettled.rs`)
//! - Of so many only [`MAX_HELD`] have their objects open, however many there are; of the others the
//!   number is remembered.
//! - None is forgotten before its record says what was written, or it is removed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_types::Ino;
use parking_lot::Mutex;

use crate::residency::files::FileRef;

/// So many are held in use.
const MAX_HELD: usize = 64;

/// Why one could not be settled, where no error says it.
pub(crate) const IN_HAND: &str = "somebody waits for a slow device with the file in hand";

/// One of them.
struct Waiting {
    /// Holds it in use, and with it what it has open.
    file: Option<FileRef>,
    why: String,
    /// The number of the entry: one that is made meanwhile is of newer bytes.
    entry: u64,
}

/// What is told of one of them.
pub(crate) struct Told {
    pub(crate) ino: Ino,
    pub(crate) why: String,
    entry: u64,
}

/// Those that wait to be settled.
#[derive(Default)]
pub(crate) struct Unsettled {
    table: Mutex<Table>,
    /// How many there are: a look at an inode mostly need not ask for them.
    count: AtomicUsize,
}

#[derive(Default)]
struct Table {
    files: HashMap<u64, Waiting>,
    held: usize,
    entries: u64,
}

impl Table {
    fn remove(&mut self, ino: Ino) -> Option<Waiting> {
        let removed = self.files.remove(&ino.0)?;
        self.held -= usize::from(removed.file.is_some());
        Some(removed)
    }
}

impl Unsettled {
    /// Enters a file; says whether it was not there before.
    pub(crate) fn enter(&self, file: FileRef, why: String) -> bool {
        let ino = file.ino;
        let mut table = self.table.lock();
        let before = table.remove(ino);
        table.entries += 1;
        let (file, let_go) = match table.held < MAX_HELD {
            true => (Some(file), None),
            false => (None, Some(file)),
        };
        table.held += usize::from(file.is_some());
        let entry = table.entries;
        table.files.insert(ino.0, Waiting { file, why, entry });
        self.count(&table);
        drop(table);
        // Not with the table in hand: a file that goes closes what it has open.
        drop(let_go);
        before.is_none()
    }

    /// What was told of a file holds no more, unless it was entered anew since.
    pub(crate) fn leave(&self, told: &Told) {
        let mut table = self.table.lock();
        let same = table.files.get(&told.ino.0).is_some_and(|now| now.entry == told.entry);
        let removed = if same { table.remove(told.ino) } else { None };
        self.count(&table);
        drop(table);
        drop(removed);
    }

    fn count(&self, table: &Table) {
        self.count.store(table.files.len(), Ordering::Release);
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Told> {
        let table = self.table.lock();
        let told = |(ino, waiting): (&u64, &Waiting)| Told {
            ino: Ino(*ino),
            why: waiting.why.clone(),
            entry: waiting.entry,
        };
        table.files.iter().map(told).collect()
    }

    /// Whether a file waits.
    pub(crate) fn has(&self, ino: Ino) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.table.lock().files.contains_key(&ino.0)
    }
}
