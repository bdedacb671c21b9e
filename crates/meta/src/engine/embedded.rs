//! The engine on a local disk, on fjall (a log-structured merge tree with a write-ahead log).

use std::cell::RefCell;
use std::ops::Bound;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use fjall::config::{BlockSizePolicy, CompressionPolicy};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};
use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;

use self::log::{DOUBTFUL, settled, wait_for_the_end};
use self::making::{make, refuse_without_keys};
use super::ballast::Ballast;
use super::{Engine, EngineError, Key, MiniTransaction, Outcome, Page, Write, successor};

mod log;
mod making;

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
///
/// The database under it refuses everything after one failed write. When that happens, most likely
/// because somebody filled the disk, it is opened anew, and a file kept for that, the ballast,
/// makes room first. A change that was refused is never made later, whatever the log has of it: what it
/// would have replaced is put back. The ballast comes back when the disk has room again. While there is none, changes
/// are refused before they are tried, and what is there can be read.
pub struct Embedded {
    directory: PathBuf,
    /// Which directory that is: it is opened anew by its path, where another one may be by then.
    identity: (u64, u64),
    options: EmbeddedOptions,
    /// `None` while it can't be opened again; every use tries.
    opened: RwLock<Option<Opened>>,
    /// Held from the comparisons to the end of the commit: makes transactions serial. Readers
    /// use snapshots instead.
    commit: Mutex<()>,
    ballast: Mutex<Ballast>,
    /// A sync of the log has failed, or may have: the kernel has forgotten which of it is not on the
    /// disk.
    doubtful: AtomicBool,
    /// Held by whoever syncs the log: the kernel tells of a failure once, and who waits must hear it.
    syncing: Mutex<()>,
    #[cfg(test)]
    failing_syncs: std::sync::atomic::AtomicU32,
    #[cfg(test)]
    failing_takes_ms: std::sync::atomic::AtomicU64,
    #[cfg(test)]
    failing_changes: std::sync::atomic::AtomicU32,
    /// It refuses changes since one has failed, and waits to be opened anew.
    refusing: AtomicBool,
    /// What was under the keys of a change that has failed. The change may be in a buffer of the database,
    /// or in its log, and would be made after all when that is read.
    refused: Mutex<Option<MiniTransaction>>,
    /// When it was last tried to open it anew.
    tried: Mutex<Option<Instant>>,
    /// Under the lock of commits.
    unsynced: Mutex<Unsynced>,
    /// Never to be opened again. Changed under the exclusive lock of `opened`.
    closed: AtomicBool,
}

/// Attempts to have a log synced that could not be. Each takes the namespace from all who use it, for as long
/// as the log is written and read.
#[derive(Default)]
struct Unsynced {
    /// Until when it is left alone since one has failed.
    until: Option<Instant>,
}

struct Opened {
    database: Database,
    keys: Keyspace,
}

impl Embedded {
    /// Whether somebody has the store in a directory open.
    ///
    /// # Errors
    /// If that can't be told.
    pub fn is_in_use(directory: &Path) -> std::io::Result<bool> {
        let lock = match std::fs::File::open(directory.join(LOCK)) {
            Ok(lock) => lock,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        // As the database itself: who has just closed it may not be done with it.
        for last in [false, false, true] {
            match lock.try_lock_shared() {
                Ok(()) => return Ok(false),
                Err(std::fs::TryLockError::WouldBlock) if last => {}
                Err(std::fs::TryLockError::WouldBlock) => {
                    std::thread::sleep(Duration::from_millis(100));
                }
                Err(std::fs::TryLockError::Error(error)) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Opens or creates the store in a directory.
    ///
    /// # Errors
    /// If the directory can't be used, or another process has it open.
    pub fn open(directory: &Path, options: &EmbeddedOptions) -> Result<Self, EngineError> {
        let mut ballast = Ballast::beside(directory);
        let doubtful = directory.with_extension(DOUBTFUL).exists() && !settled(directory);
        let open = || {
            make(directory, options)?;
            Opened::open(directory, options)
        };
        let opened = match open() {
            // A thread that has found it damaged may hold its lock for good.
            Err(error @ (EngineError::Damaged { .. } | EngineError::InUse { .. })) => {
                return Err(error);
            }
            Err(_) if ballast.drop_to_make_room() => open()?,
            other => other?,
        };
        ballast.keep();
        let path = || directory.to_path_buf();
        let identity = identity(directory)
            .map_err(|error| EngineError::Open { path: path(), source: Box::new(error) })?;
        Ok(Embedded {
            directory: path(),
            identity,
            options: options.clone(),
            opened: RwLock::new(Some(opened)),
            commit: Mutex::new(()),
            ballast: Mutex::new(ballast),
            doubtful: AtomicBool::new(doubtful),
            syncing: Mutex::new(()),
            refusing: AtomicBool::new(false),
            refused: Mutex::new(None),
            tried: Mutex::new(None),
            unsynced: Mutex::default(),
            #[cfg(test)]
            failing_syncs: Default::default(),
            #[cfg(test)]
            failing_takes_ms: Default::default(),
            #[cfg(test)]
            failing_changes: Default::default(),
            closed: AtomicBool::new(false),
        })
    }

    fn with<T>(
        &self,
        work: impl FnOnce(&Opened) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        if self.opened.read().is_none() {
            self.reopen_now_and_then()?;
        }
        match &*self.opened.read() {
            Some(opened) => work(opened),
            None => Err(EngineError::Io("the metadata could not be opened again".into())),
        }
    }

    /// As [`Embedded::reopen`], but not again and again: to read the log takes a processor.
    fn reopen_now_and_then(&self) -> Result<(), EngineError> {
        let tried = *self.tried.lock();
        if tried.is_some_and(|tried| tried.elapsed() < TRY_EVERY) {
            return Err(match self.ballast.lock().has_room(false) {
                true => EngineError::Io("a change has failed; it is tried again".into()),
                false => self.full(),
            });
        }
        self.reopen()
    }

    /// Before a change: whether the disk has room for it, and the database takes changes.
    fn prepare(&self, transaction: &MiniTransaction) -> Result<(), EngineError> {
        let removes = transaction.write.iter().any(|write| matches!(write, Write::Delete(_)));
        {
            let mut ballast = self.ballast.lock();
            ballast.keep_now_and_then();
            if !ballast.has_room(removes) {
                return Err(self.full());
            }
        }
        if self.refusing.load(Ordering::Acquire) { self.reopen_now_and_then() } else { Ok(()) }
    }

    /// Why something could not be read. Damage has a way out, which must be told.
    fn unreadable(&self, error: fjall::Error) -> EngineError {
        match open_error(&self.directory, error) {
            EngineError::Open { source, .. } => EngineError::Io(source),
            error => error,
        }
    }

    fn full(&self) -> EngineError {
        EngineError::NoSpace { path: self.directory.clone() }
    }

    /// After a change that has failed: by now the database refuses all changes. What is there can be
    /// read as long as it is not closed, which it must be to be opened anew.
    fn recover(&self) -> Result<(), EngineError> {
        self.refusing.store(true, Ordering::Release);
        if !self.ballast.lock().has_room(false) {
            return Err(self.full());
        }
        self.reopen_now_and_then()
    }

    /// A change has failed. No other one is tried before the database is opened anew.
    fn refuse(&self, transaction: &MiniTransaction) {
        self.refusing.store(true, Ordering::Release);
        let opened = self.opened.read();
        match opened.as_ref().map(|opened| opened.replaced_by(transaction)) {
            Some(Ok(before)) => *self.refused.lock() = Some(before),
            Some(Err(error)) => tracing::error!(
                %error,
                "a change of the namespace has failed, and may be found made later: check the device of \
                 the first tier"
            ),
            // It did not get as far as that.
            None => {}
        }
    }

    /// Ends the database, which writes out what is in its buffer. A thread of it may do so when the lock of
    /// the directory is gone already.
    fn end(&self, opened: &mut Option<Opened>) {
        *opened = None;
        if self.refused.lock().is_none() {
            return;
        }
        wait_for_the_end(&self.directory);
    }

    /// The database makes a new one where there is none. Whoever has moved it away has it, and what is said
    /// to be gone would be gone for all who ask here.
    fn refuse_another(&self) -> Result<(), EngineError> {
        let failed = |source| EngineError::Open { path: self.directory.clone(), source };
        let found = match identity(&self.directory) {
            Ok(found) => Some(found),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(Box::new(error))),
        };
        let has_one = self.directory.join(FIRST).try_exists();
        if found == Some(self.identity) && has_one.map_err(|error| failed(Box::new(error)))? {
            return Ok(());
        }
        let why =
            "it was moved away or replaced while it was in use: put it back, then this goes on";
        Err(failed(why.into()))
    }

    /// Opens the database anew after a failed write.
    fn reopen(&self) -> Result<(), EngineError> {
        let mut opened = self.opened.write();
        if self.closed.load(Ordering::Relaxed) {
            return Err(EngineError::Closed);
        }
        *self.tried.lock() = Some(Instant::now());
        // First: what is open can be read as long as it is not closed.
        self.refuse_another()?;
        self.ballast.lock().drop_to_make_room();
        // What has failed may have been a sync by the database itself, which does not tell; and it syncs
        // once more as it ends, and tells nobody.
        self.doubt();
        // The old one first: it holds the lock of the directory.
        self.end(&mut opened);
        self.settle_log();
        let anew = Opened::open(&self.directory, &self.options)?;
        let mut refused = self.refused.lock();
        if let Some(before) = &*refused {
            anew.restore(before).map_err(io)?;
        }
        *refused = None;
        *opened = Some(anew);
        self.refusing.store(false, Ordering::Release);
        Ok(())
    }
}

impl Embedded {
    fn apply(&self, transaction: &MiniTransaction) -> Result<(), EngineError> {
        #[cfg(test)]
        self.fail_as_told(&self.failing_changes)?;
        self.with(|opened| opened.apply(transaction).map_err(io))
    }

    fn persist(&self, opened: &Opened) -> Result<(), EngineError> {
        #[cfg(test)]
        self.fail_as_told(&self.failing_syncs)?;
        opened.database.persist(PersistMode::SyncAll).map_err(io)?;
        // A sync by the database itself may have failed just before, and heard of it instead of this one.
        // Then it refuses everything by now.
        opened.database.persist(PersistMode::Buffer).map_err(io)?;
        is_up(&self.directory).map_err(|error| EngineError::Io(Box::new(error)))
    }

    /// Syncs the log, unless one has failed since it was written last.
    fn sync_log(&self) -> Result<(), EngineError> {
        let _one = self.syncing.lock();
        if self.doubtful.load(Ordering::Acquire) {
            return Err(EngineError::Io("the log of the metadata can't be synced".into()));
        }
        self.with(|opened| self.persist(opened)).inspect_err(|_| self.doubt())
    }

    /// A sync may have failed. Also a daemon that comes after a kill must know, or it would be confirmed
    /// what is lost; after a power cut there is nothing to doubt.
    fn doubt(&self) {
        if !self.doubtful.swap(true, Ordering::AcqRel) {
            let noted = std::fs::File::create(self.directory.with_extension(DOUBTFUL));
            drop(noted.inspect_err(
                |error| tracing::warn!(%error, "can't note that the log of the namespace is in doubt"),
            ));
        }
    }

    /// Sees to it that all of the log gets to the disk with the next sync.
    fn settle_log(&self) {
        #[cfg(test)]
        if self.fail_as_told(&self.failing_syncs).is_err() {
            return;
        }
        if settled(&self.directory) {
            self.doubtful.store(false, Ordering::Release);
        }
    }

    #[cfg(test)]
    fn fail_as_told(&self, times: &std::sync::atomic::AtomicU32) -> Result<(), EngineError> {
        let left = |left: u32| left.checked_sub(1);
        match times.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left) {
            Ok(_) => {
                let takes = self.failing_takes_ms.load(Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(takes));
                Err(EngineError::Io("(injected fault)".into()))
            }
            Err(_) => Ok(()),
        }
    }
}

/// Whether the file system of a directory is up. One that goes down in the middle of a sync may confirm it
/// all the same, but gives no attributes from then on: XFS none at all, ext4 no extended ones.
fn is_up(directory: &Path) -> std::io::Result<()> {
    let found = std::fs::metadata(directory)?;
    // One that lies on no block device of this machine might ask a server, and has no log here.
    if rustix::fs::major(found.dev()) == 0 {
        return Ok(());
    }
    match rustix::fs::getxattr(directory, "user.forebay.none", &mut [0_u8; 0][..]) {
        Err(Errno::IO) => Err(Errno::IO.into()),
        _ => Ok(()),
    }
}

/// What tells a directory from others.
fn identity(directory: &Path) -> std::io::Result<(u64, u64)> {
    std::fs::metadata(directory).map(|found| (found.dev(), found.ino()))
}

/// The file that is locked as long as the database is open.
const LOCK: &str = "lock";

/// The file without which the database takes a directory for a new one.
const FIRST: &str = "version";

thread_local! {
    /// Of a thread that opens a store: who waits for it.
    static WAITS: RefCell<Option<Sender<Result<Opened, EngineError>>>> = const { RefCell::new(None) };
}

/// The database under a store panics at some damages, with a lock in hand at which its destructors
/// panic again. So a thread that opens a store and panics says so and stays where it is, for the short
/// life that the process has then.
fn spare_openers() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let waits = WAITS.with(|waits| waits.try_borrow_mut().ok()?.take());
            let Some(waits) = waits else { return usual(panic) };
            let source = format!("it can't be read: {panic}").into();
            drop(waits.send(Err(EngineError::Damaged { path: PathBuf::new(), source })));
            loop {
                std::thread::park();
            }
        }));
    });
}

impl Opened {
    fn open(directory: &Path, options: &EmbeddedOptions) -> Result<Self, EngineError> {
        spare_openers();
        let (path, options) = (directory.to_path_buf(), options.clone());
        let (result, wait) = std::sync::mpsc::channel();
        let dir = path.clone();
        let opener = std::thread::Builder::new().name("index-open".into()).spawn(move || {
            WAITS.with(|waits| *waits.borrow_mut() = Some(result.clone()));
            let opened = Opened::open_here(&dir, &options);
            WAITS.with(|waits| waits.borrow_mut().take());
            drop(result.send(opened));
        });
        if let Err(error) = opener {
            return Err(EngineError::Open { path, source: Box::new(error) });
        }
        match wait.recv() {
            Ok(Err(EngineError::Damaged { source, .. })) => {
                Err(EngineError::Damaged { path, source })
            }
            Ok(opened) => opened,
            Err(error) => Err(EngineError::Open { path, source: Box::new(error) }),
        }
    }

    fn open_here(directory: &Path, options: &EmbeddedOptions) -> Result<Self, EngineError> {
        let failed = |error| open_error(directory, error);
        refuse_without_keys(directory)?;
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
        Ok(Opened { database, keys })
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

    fn apply(&self, t: &MiniTransaction) -> fjall::Result<()> {
        // `batch()` persists to the operating system's buffers on commit.
        let mut batch = self.database.batch();
        for write in &t.write {
            match write {
                Write::Put(key, value) => batch.insert(&self.keys, key.raw(), value.as_slice()),
                Write::Delete(key) => batch.remove(&self.keys, key.raw()),
            }
        }
        batch.commit()
    }

    /// What is under the keys that a transaction writes: how to take it back.
    fn replaced_by(&self, t: &MiniTransaction) -> fjall::Result<MiniTransaction> {
        let before = |write: &Write| {
            let key = write.key().clone();
            Ok(match self.keys.get(key.raw())? {
                Some(value) => Write::Put(key, value.to_vec()),
                None => Write::Delete(key),
            })
        };
        let write = t.write.iter().map(before).collect::<fjall::Result<_>>()?;
        Ok(MiniTransaction { write, ..MiniTransaction::default() })
    }

    /// Puts back what [`Self::replaced_by`] has found, unless all of it is there.
    fn restore(&self, before: &MiniTransaction) -> fjall::Result<()> {
        for write in &before.write {
            let found = self.keys.get(write.key().raw())?;
            let is_there = match write {
                Write::Put(_, value) => found.as_deref() == Some(value),
                Write::Delete(_) => found.is_none(),
            };
            if !is_there {
                return self.apply(before);
            }
        }
        Ok(())
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
            return self
                .with(|opened| opened.read(transaction).map_err(|error| self.unreadable(error)));
        }
        let _serial = self.commit.lock();
        self.prepare(transaction)?;
        let outcome = self.with(|opened| {
            opened.check_and_read(transaction).map_err(|error| self.unreadable(error))
        })?;
        if outcome == Outcome::Conflict {
            return Ok(outcome);
        }
        if self.apply(transaction).is_err() {
            self.refuse(transaction);
            self.recover()?;
            self.apply(transaction).inspect_err(|_| self.refuse(transaction))?;
        }
        Ok(outcome)
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
        self.with(|opened| {
            let mut page = Page::default();
            for guard in opened.database.snapshot().range(&opened.keys, (from, end)) {
                if page.items.len() == limit {
                    page.more = true;
                    break;
                }
                let (key, value) = guard.into_inner().map_err(|error| self.unreadable(error))?;
                page.items.push((key[2..].to_vec(), value.to_vec()));
            }
            Ok(page)
        })
    }

    fn sweep(&self, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, Vec<u8>)>, EngineError> {
        let from = after.map_or(Bound::Unbounded, |key| Bound::Excluded(key.raw().to_vec()));
        let range = (from, Bound::Unbounded);
        self.with(|opened| {
            let mut items = Vec::new();
            let snapshot = opened.database.snapshot();
            for guard in snapshot.range::<Vec<u8>, _>(&opened.keys, range).take(limit) {
                let (key, value) = guard.into_inner().map_err(|error| self.unreadable(error))?;
                items.extend(Key::from_raw(&key).map(|key| (key, value.to_vec())));
            }
            Ok(items)
        })
    }

    fn spans_partitions(&self) -> bool {
        true
    }

    /// The directory is locked against other processes, and this is its only handle.
    fn exclusive(&self) -> bool {
        true
    }

    fn sync(&self) -> Result<(), EngineError> {
        if self.sync_log().is_ok() {
            return Ok(());
        }
        // All that was committed is in the log, which opening reads back.
        let _serial = self.commit.lock();
        // Another one may have opened it anew meanwhile.
        if self.sync_log().is_ok() {
            return Ok(());
        }
        if self.refusing.load(Ordering::Acquire) && !self.ballast.lock().has_room(false) {
            return Err(self.full());
        }
        let mut unsynced = self.unsynced.lock();
        if unsynced.until.is_some_and(|until| Instant::now() < until) {
            return Err(EngineError::Io("the log of the metadata can't be synced".into()));
        }
        let begun = Instant::now();
        let done = self.reopen().and_then(|()| self.sync_log());
        let pause = (begun.elapsed() * PAUSE_SHARE).min(PAUSE_MAX);
        unsynced.until = done.is_err().then(|| Instant::now() + pause);
        done
    }

    /// What was changed lately goes to a table on the disk.
    fn release_memory(&self) {
        let written = self.with(|opened| {
            if opened.database.write_buffer_size() < WORTH_WRITING {
                return Ok(());
            }
            opened.keys.rotate_memtable().map(drop).map_err(io)
        });
        if let Err(error) = written {
            tracing::debug!(%error, "recent changes of the metadata stay in memory");
        }
    }

    fn close(&self) {
        // In the order of a commit: none is under way when the last handle goes.
        let _serial = self.commit.lock();
        if self.closed.load(Ordering::Relaxed) {
            // What is there is another daemon's.
            return;
        }
        if self.refused.lock().is_some()
            && let Err(error) = self.reopen()
        {
            tracing::error!(
                %error,
                "a change of the namespace has failed, and may be found made by the next mount"
            );
        }
        let mut opened = self.opened.write();
        self.closed.store(true, Ordering::Relaxed);
        self.end(&mut opened);
        if self.doubtful.load(Ordering::Acquire) {
            // Who opens it next knows nothing of it.
            self.settle_log();
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.close();
    }
}

/// Why a store can't be opened or read: in use, a failing device, or damaged files.
fn open_error(directory: &Path, error: fjall::Error) -> EngineError {
    use std::io::ErrorKind;
    let path = directory.to_path_buf();
    match error {
        fjall::Error::Locked => return EngineError::InUse { path },
        fjall::Error::Poisoned => return EngineError::Open { path, source: Box::new(error) },
        _ => {}
    }
    let mut cause = Some(&error as &dyn std::error::Error);
    while let Some(at) = cause {
        if let Some(io) = at.downcast_ref::<std::io::Error>() {
            let lacking = [
                ErrorKind::NotFound,
                ErrorKind::UnexpectedEof,
                ErrorKind::InvalidData,
                // It takes a store that lacks its first file for a new one.
                ErrorKind::AlreadyExists,
            ];
            // What can't be read is of no more use than what makes no sense.
            let unreadable = io.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error());
            if unreadable || lacking.contains(&io.kind()) {
                break;
            }
            if io.kind() == ErrorKind::StorageFull {
                return EngineError::NoSpace { path };
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

/// Fewer bytes of recent changes are not worth a table.
const WORTH_WRITING: u64 = MIB;

/// How often it is tried to open a database anew whose changes fail.
const TRY_EVERY: Duration = Duration::from_secs(1);
/// How much longer than an attempt to have its log synced the pause is after one that failed, and at most.
const PAUSE_SHARE: u32 = 8;
const PAUSE_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
