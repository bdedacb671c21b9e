//! The engine on a local disk, on fjall (a log-structured merge tree with a write-ahead log).

use std::cell::RefCell;
use std::ops::Bound;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use fjall::config::{BlockSizePolicy, CompressionPolicy};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};
use parking_lot::{Mutex, RwLock};

use super::ballast::Ballast;
use super::{Engine, EngineError, Key, MiniTransaction, Outcome, Page, Write, successor};

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
/// makes room first. The ballast comes back when the disk has room again. While there is none, changes
/// are refused before they are tried, and what is there can be read.
pub struct Embedded {
    directory: PathBuf,
    options: EmbeddedOptions,
    /// `None` while it can't be opened again; every use tries.
    opened: RwLock<Option<Opened>>,
    /// Held from the comparisons to the end of the commit: makes transactions serial. Readers
    /// use snapshots instead.
    commit: Mutex<()>,
    ballast: Mutex<Ballast>,
    /// A sync of the log has failed: the kernel has forgotten which of it is not on the disk.
    doubtful: AtomicBool,
    #[cfg(test)]
    failing_syncs: std::sync::atomic::AtomicU32,
    /// It refuses changes since one has failed, and waits to be opened anew.
    refusing: AtomicBool,
    /// When it was last tried to open it anew.
    tried: Mutex<Option<Instant>>,
    /// Never to be opened again. Changed under the exclusive lock of `opened`.
    closed: AtomicBool,
}

struct Opened {
    database: Database,
    keys: Keyspace,
}

impl Embedded {
    /// Opens or creates the store in a directory.
    ///
    /// # Errors
    /// If the directory can't be used, or another process has it open.
    pub fn open(directory: &Path, options: &EmbeddedOptions) -> Result<Self, EngineError> {
        let mut ballast = Ballast::beside(directory);
        let opened = match Opened::open(directory, options) {
            // A thread that has found it damaged may hold its lock for good.
            Err(error @ (EngineError::Damaged { .. } | EngineError::InUse { .. })) => {
                return Err(error);
            }
            Err(_) if ballast.drop_to_make_room() => Opened::open(directory, options)?,
            other => other?,
        };
        ballast.keep();
        Ok(Embedded {
            directory: directory.to_path_buf(),
            options: options.clone(),
            opened: RwLock::new(Some(opened)),
            commit: Mutex::new(()),
            ballast: Mutex::new(ballast),
            doubtful: AtomicBool::new(false),
            refusing: AtomicBool::new(false),
            tried: Mutex::new(None),
            #[cfg(test)]
            failing_syncs: Default::default(),
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

    /// Opens the database anew after a failed write.
    fn reopen(&self) -> Result<(), EngineError> {
        let mut opened = self.opened.write();
        if self.closed.load(Ordering::Relaxed) {
            return Err(EngineError::Closed);
        }
        *self.tried.lock() = Some(Instant::now());
        self.ballast.lock().drop_to_make_room();
        // The old one first: it holds the lock of the directory.
        *opened = None;
        if self.doubtful.load(Ordering::Acquire) {
            match self.rewrite_log() {
                Ok(()) => self.doubtful.store(false, Ordering::Release),
                // It goes on as well as it can, but no sync succeeds.
                Err(error) => tracing::error!(
                    %error,
                    "the log of the namespace can't be synced, so no sync succeeds: check the \
                     device of the first tier"
                ),
            }
        }
        *opened = Some(Opened::open(&self.directory, &self.options)?);
        self.refusing.store(false, Ordering::Release);
        Ok(())
    }
}

impl Embedded {
    fn persist(&self, opened: &Opened) -> Result<(), EngineError> {
        #[cfg(test)]
        self.fail_as_told()?;
        opened.database.persist(PersistMode::SyncAll).map_err(io)?;
        // A file system that goes down in the middle of it may confirm it all the same (XFS does), but
        // gives no attributes from then on.
        let looked = std::fs::metadata(&self.directory);
        looked.map(drop).map_err(|error| EngineError::Io(Box::new(error)))
    }

    /// Writes the log once more, as it was read back. A sync that fails tells so once, and the
    /// kernel takes what it could not write for written: the next sync would succeed without it.
    fn rewrite_log(&self) -> Result<(), EngineError> {
        #[cfg(test)]
        self.fail_as_told()?;
        let failed = |error: std::io::Error| EngineError::Io(Box::new(error));
        for entry in std::fs::read_dir(&self.directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|extension| extension == LOG) {
                rewrite(&path).map_err(failed)?;
            }
        }
        std::fs::File::open(&self.directory).and_then(|dir| dir.sync_all()).map_err(failed)
    }

    #[cfg(test)]
    fn fail_as_told(&self) -> Result<(), EngineError> {
        let left = |left: u32| left.checked_sub(1);
        match self.failing_syncs.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left) {
            Ok(_) => Err(EngineError::Io("(injected fault)".into())),
            Err(_) => Ok(()),
        }
    }
}

/// What the names of the parts of the log end in.
const LOG: &str = "jnl";

/// Writes a file over itself, and syncs it.
fn rewrite(path: &Path) -> std::io::Result<()> {
    let file = std::fs::File::options().read(true).write(true).open(path)?;
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let read = file.read_at(&mut buffer, at)?;
        if read == 0 {
            return file.sync_all();
        }
        file.write_all_at(&buffer[..read], at)?;
        at += read as u64;
    }
}

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
            return self.with(|opened| opened.read(transaction).map_err(io));
        }
        let _serial = self.commit.lock();
        self.prepare(transaction)?;
        let outcome = self.with(|opened| opened.check_and_read(transaction).map_err(io))?;
        if outcome == Outcome::Conflict {
            return Ok(outcome);
        }
        let applied = self.with(|opened| opened.apply(transaction).map_err(io));
        if applied.is_err() {
            // No other writer is here, so it does no harm if the log had kept the first attempt.
            self.recover()?;
            self.with(|opened| opened.apply(transaction).map_err(io)).inspect_err(|_| {
                self.refusing.store(true, Ordering::Release);
            })?;
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
                let (key, value) = guard.into_inner().map_err(io)?;
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
                let (key, value) = guard.into_inner().map_err(io)?;
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
        if !self.doubtful.load(Ordering::Acquire)
            && self.with(|opened| self.persist(opened)).is_ok()
        {
            return Ok(());
        }
        // All that was committed is in the log, which opening reads back.
        let _serial = self.commit.lock();
        if self.refusing.load(Ordering::Acquire) && !self.ballast.lock().has_room(false) {
            return Err(self.full());
        }
        self.doubtful.store(true, Ordering::Release);
        self.reopen()?;
        if self.doubtful.load(Ordering::Acquire) {
            return Err(EngineError::Io("the log of the metadata can't be synced".into()));
        }
        self.with(|opened| self.persist(opened)).inspect_err(|_| {
            self.doubtful.store(true, Ordering::Release);
        })
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
        let mut opened = self.opened.write();
        self.closed.store(true, Ordering::Relaxed);
        *opened = None;
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

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn put(engine: &Embedded, key: &[u8]) {
        let key = Key::new(0, key);
        let write = vec![Write::Put(key, b"value".to_vec())];
        let outcome = engine.execute(&MiniTransaction { write, ..MiniTransaction::default() });
        assert_eq!(outcome.expect("a commit"), Outcome::Committed(Vec::new()));
    }

    /// Makes the parts of the log look old; says how many there are.
    fn age(directory: &Path) -> Vec<PathBuf> {
        let parts =
            std::fs::read_dir(directory).expect("listed").map(|entry| entry.expect("").path());
        let parts: Vec<_> =
            parts.filter(|path| path.extension().is_some_and(|found| found == LOG)).collect();
        for part in &parts {
            let file = std::fs::File::options().write(true).open(part).expect("opened");
            file.set_modified(SystemTime::UNIX_EPOCH).expect("set");
        }
        parts
    }

    #[test]
    fn recent_changes_when_memory_is_released_then_go_to_the_disk_and_are_still_there() {
        let dir = tempfile::tempdir().expect("a directory");
        let engine = Embedded::open(&dir.path().join("meta"), &EmbeddedOptions::default());
        let engine = engine.expect("opened");
        let in_memory =
            || engine.with(|opened| Ok(opened.database.write_buffer_size())).expect("open");
        for index in 0..30_000_u32 {
            put(&engine, format!("a key that is somewhat long {index}").as_bytes());
        }
        assert!(in_memory() > WORTH_WRITING, "{}", in_memory());
        engine.release_memory();
        let until = Instant::now() + Duration::from_secs(60);
        while in_memory() > WORTH_WRITING {
            assert!(Instant::now() < until, "{} bytes stay in memory", in_memory());
            std::thread::sleep(Duration::from_millis(10));
        }
        let read = vec![Key::new(0, b"a key that is somewhat long 17")];
        let found = engine.execute(&MiniTransaction { read, ..MiniTransaction::default() });
        assert_eq!(found.expect("read"), Outcome::Committed(vec![Some(b"value".to_vec())]));
    }

    fn copy_of(dir: &Path, to: &Path) {
        std::fs::create_dir_all(to).expect("made");
        for entry in std::fs::read_dir(dir).expect("listed") {
            let entry = entry.expect("listed");
            let to = to.join(entry.file_name());
            match entry.file_type().expect("known").is_dir() {
                true => copy_of(&entry.path(), &to),
                false => drop(std::fs::copy(entry.path(), to).expect("copied")),
            }
        }
    }

    fn files_below(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).expect("listed") {
            let path = entry.expect("listed").path();
            match path.is_dir() {
                true => files_below(&path, found),
                false => found.push(path),
            }
        }
    }

    /// In a process of its own: threads that find damage stop in the hook of panics for good, and the
    /// harness would wait for that hook at its end.
    #[test]
    fn index_that_is_damaged_when_there_is_a_ballast_then_told_as_damaged() {
        const ALONE: &str = "FOREBAY_TEST_ALONE";
        if std::env::var_os(ALONE).is_some() {
            damage_each_file();
            // At once: nothing waits for anything.
            std::process::exit(0);
        }
        let name = std::thread::current().name().expect("the name of the test").to_owned();
        let ended = std::process::Command::new(std::env::current_exe().expect("a program"))
            .args(["--exact", &name, "--nocapture"])
            .env(ALONE, "1")
            .output()
            .expect("it runs");
        let told = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{told}");
    }

    fn damage_each_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("meta");
        let engine = Embedded::open(&path, &EmbeddedOptions::default()).expect("opened");
        put(&engine, b"one");
        drop(engine);
        assert!(path.with_extension("ballast").exists());
        let mut files = Vec::new();
        files_below(&path, &mut files);
        let (mut refused, mut at) = (0, 0);
        for file in files {
            for byte in [4, 9, 20] {
                // A thread that finds damage keeps the lock: each time another directory.
                at += 1;
                let copy = dir.path().join(format!("copy{at}"));
                copy_of(&path, &copy);
                std::fs::write(copy.with_extension("ballast"), [0; 4096]).expect("written");
                let damaged = copy.join(file.strip_prefix(&path).expect("below"));
                let mut bytes = std::fs::read(&damaged).expect("read");
                let Some(byte) = bytes.get_mut(byte) else { continue };
                *byte ^= 2;
                std::fs::write(&damaged, bytes).expect("written");
                if let Err(error) = Embedded::open(&copy, &EmbeddedOptions::default()) {
                    let told = error.to_string();
                    assert!(told.contains("fsck --rebuild"), "{damaged:?}: {told}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 3, "{refused}");
    }

    #[test]
    fn sync_when_it_has_failed_once_then_the_next_one_writes_the_log_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("meta");
        let engine = Embedded::open(&path, &EmbeddedOptions::default()).expect("opened");
        put(&engine, b"one");
        let parts = age(&path);
        assert!(!parts.is_empty());
        engine.failing_syncs.store(1, Ordering::Relaxed);
        engine.sync().expect("synced in the end");
        for part in &parts {
            let written = part.metadata().expect("there").modified().expect("a time");
            assert!(written.elapsed().expect("past") < Duration::from_secs(600), "{part:?}");
        }
        // As long as it can't be written, no sync is acknowledged.
        put(&engine, b"two");
        engine.failing_syncs.store(4, Ordering::Relaxed);
        for _ in 0..2 {
            engine.sync().expect_err("it fails");
        }
        engine.failing_syncs.store(0, Ordering::Relaxed);
        engine.sync().expect("the device is well again");
        drop(engine);
        let engine = Embedded::open(&path, &EmbeddedOptions::default()).expect("opened");
        let read = vec![Key::new(0, b"one"), Key::new(0, b"two")];
        let found = engine.execute(&MiniTransaction { read, ..MiniTransaction::default() });
        let value = || Some(b"value".to_vec());
        assert_eq!(found.expect("read"), Outcome::Committed(vec![value(), value()]));
    }
}
