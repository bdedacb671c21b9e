//! The engine on a local disk, on fjall (a log-structured merge tree with a write-ahead log).

use std::ops::Bound;
use std::path::Path;

use fjall::config::{BlockSizePolicy, CompressionPolicy};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};
use parking_lot::Mutex;

use super::{Engine, EngineError, Key, MiniTransaction, Outcome, Page, Write};

const MIB: u64 = 1 << 20;

/// How the embedded engine uses memory and disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddedOptions {
    /// MiB of the write-ahead log before old parts must have been written to tables (at least 64).
    pub journal_mib: u64,
    /// MiB of recent changes in memory before they are written to a table. Up to five of these
    /// exist while tables are being written.
    pub write_buffer_mib: u64,
    /// MiB of table blocks kept in memory.
    pub block_cache_mib: u64,
    /// Threads that write and merge tables.
    pub workers: usize,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        EmbeddedOptions { journal_mib: 128, write_buffer_mib: 16, block_cache_mib: 32, workers: 2 }
    }
}

/// Keys and values in one directory of a local disk. Spans partitions.
///
/// A committed mini-transaction is in the operating system's hands (`write(2)` to the log) before
/// `execute` returns, so the death of the process loses nothing; [`Engine::sync`] makes it survive
/// the loss of power. A half-written transaction at the end of the log is dropped at recovery by
/// its checksum.
pub struct Embedded {
    database: Database,
    keys: Keyspace,
    /// Held from the comparisons to the end of the commit: makes transactions serial. Readers
    /// use snapshots instead.
    commit: Mutex<()>,
}

impl Embedded {
    /// Opens or creates the store in a directory.
    ///
    /// # Errors
    /// If the directory can't be used, or another process has it open.
    pub fn open(directory: &Path, options: &EmbeddedOptions) -> Result<Self, EngineError> {
        let failed = |error| open_error(directory, error);
        let database = Database::builder(directory)
            .cache_size(options.block_cache_mib * MIB)
            .max_journaling_size(options.journal_mib.max(64) * MIB)
            .worker_threads(options.workers.max(1))
            .open()
            .map_err(failed)?;
        let keys = database
            .keyspace("namespace", || {
                KeyspaceCreateOptions::default()
                    .max_memtable_size(options.write_buffer_mib.max(1) * MIB)
                    .data_block_size_policy(BlockSizePolicy::all(4096))
                    .data_block_compression_policy(CompressionPolicy::disabled())
            })
            .map_err(failed)?;
        Ok(Embedded { database, keys, commit: Mutex::new(()) })
    }

    fn check_and_read(&self, t: &MiniTransaction) -> fjall::Result<Outcome> {
        for compare in &t.compare {
            let found = self.keys.get(compare.key.raw())?;
            if !compare.expect.holds(found.as_deref()) {
                return Ok(Outcome::Conflict);
            }
        }
        let mut reads = Vec::with_capacity(t.read.len());
        for key in &t.read {
            reads.push(self.keys.get(key.raw())?.map(|value| value.to_vec()));
        }
        Ok(Outcome::Committed(reads))
    }

    fn commit(&self, t: &MiniTransaction) -> fjall::Result<Outcome> {
        let _serial = self.commit.lock();
        let outcome = self.check_and_read(t)?;
        if outcome != Outcome::Conflict {
            // `batch()` persists to the operating system's buffers on commit.
            let mut batch = self.database.batch();
            for write in &t.write {
                match write {
                    Write::Put(key, value) => {
                        batch.insert(&self.keys, key.raw(), value.as_slice());
                    }
                    Write::Delete(key) => batch.remove(&self.keys, key.raw()),
                }
            }
            batch.commit()?;
        }
        Ok(outcome)
    }

    fn read(&self, t: &MiniTransaction) -> fjall::Result<Outcome> {
        let snapshot = self.database.snapshot();
        for compare in &t.compare {
            let found = snapshot.get(&self.keys, compare.key.raw())?;
            if !compare.expect.holds(found.as_deref()) {
                return Ok(Outcome::Conflict);
            }
        }
        let mut reads = Vec::with_capacity(t.read.len());
        for key in &t.read {
            reads.push(snapshot.get(&self.keys, key.raw())?.map(|value| value.to_vec()));
        }
        Ok(Outcome::Committed(reads))
    }
}

impl Engine for Embedded {
    fn execute(&self, transaction: &MiniTransaction) -> Result<Outcome, EngineError> {
        if transaction.write.is_empty() {
            return self.read(transaction).map_err(io);
        }
        self.commit(transaction).map_err(io)
    }

    fn scan(
        &self,
        partition: u16,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Page, EngineError> {
        let start = Key::new(partition, prefix);
        let from = match after {
            Some(after) if after >= prefix => {
                Bound::Excluded(Key::new(partition, after).raw().to_vec())
            }
            _ => Bound::Included(start.raw().to_vec()),
        };
        let end = successor(start.raw()).map_or(Bound::Unbounded, Bound::Excluded);
        let mut page = Page::default();
        for guard in self.database.snapshot().range(&self.keys, (from, end)) {
            if page.items.len() == limit {
                page.more = true;
                break;
            }
            let (key, value) = guard.into_inner().map_err(io)?;
            page.items.push((key[2..].to_vec(), value.to_vec()));
        }
        Ok(page)
    }

    fn sweep(&self, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, Vec<u8>)>, EngineError> {
        let from = after.map_or(Bound::Unbounded, |key| Bound::Excluded(key.raw().to_vec()));
        let range = (from, Bound::Unbounded);
        let mut items = Vec::new();
        for guard in self.database.snapshot().range::<Vec<u8>, _>(&self.keys, range).take(limit) {
            let (key, value) = guard.into_inner().map_err(io)?;
            items.extend(Key::from_raw(&key).map(|key| (key, value.to_vec())));
        }
        Ok(items)
    }

    fn spans_partitions(&self) -> bool {
        true
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.database.persist(PersistMode::SyncAll).map_err(io)
    }
}

/// Why a store can't be opened: in use, a failing device, or damaged files.
fn open_error(directory: &Path, error: fjall::Error) -> EngineError {
    use std::io::ErrorKind;
    let path = directory.to_path_buf();
    if matches!(error, fjall::Error::Locked) {
        return EngineError::InUse { path };
    }
    let mut cause = Some(&error as &dyn std::error::Error);
    while let Some(at) = cause {
        if let Some(io) = at.downcast_ref::<std::io::Error>() {
            let lacking = [ErrorKind::NotFound, ErrorKind::UnexpectedEof, ErrorKind::InvalidData];
            if lacking.contains(&io.kind()) {
                break;
            }
            return EngineError::Open { path, source: Box::new(error) };
        }
        cause = at.source();
    }
    EngineError::Damaged { path, source: Box::new(error) }
}

fn io(error: fjall::Error) -> EngineError {
    EngineError::Io(Box::new(error))
}

/// The smallest byte string greater than all that begin with `prefix`.
fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}
