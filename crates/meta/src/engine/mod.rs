//! The narrow interface below the namespace: keys in partitions and mini-transactions on them.

mod ballast;
mod embedded;
mod leased;
mod memory;
mod redis;
mod spanning;

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

pub use embedded::{Embedded, EmbeddedOptions};
pub use leased::{LeaseOptions, Leased, LossReport, Losses, Teller};
pub use memory::Memory;
pub use redis::{Redis, RedisOptions, ServerLog, ServerReport, look_at_servers};
pub use spanning::Spanning;

/// Nearly no key is greater than one of so many bytes, all ones.
const KEY_MAX: usize = 64;

/// A key: a partition and bytes within it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(SmallVec<[u8; 48]>);

impl Key {
    /// The key `bytes` in `partition`.
    #[must_use]
    pub fn new(partition: u16, bytes: &[u8]) -> Self {
        let mut key = SmallVec::new();
        key.extend_from_slice(&partition.to_be_bytes());
        key.extend_from_slice(bytes);
        Key(key)
    }

    /// Takes a key apart again that [`Key::raw`] gave; `None` if it is too short.
    #[must_use]
    pub fn from_raw(raw: &[u8]) -> Option<Self> {
        (raw.len() >= 2).then(|| Key(SmallVec::from_slice(raw)))
    }

    /// The partition.
    #[must_use]
    pub fn partition(&self) -> u16 {
        u16::from_be_bytes([self.0[0], self.0[1]])
    }

    /// The bytes within the partition.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0[2..]
    }

    /// The partition (big-endian) followed by the bytes: an order over all partitions.
    #[must_use]
    pub fn raw(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{}", self.partition(), self.bytes().escape_ascii())
    }
}

/// What a key must hold for a mini-transaction to commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expect {
    /// Nothing.
    Absent,
    /// Something.
    Present,
    /// Exactly this value.
    Value(Vec<u8>),
    /// A value that begins with these bytes.
    Prefix(Vec<u8>),
}

impl Expect {
    /// Whether the value found fulfils the expectation.
    #[must_use]
    pub fn holds(&self, found: Option<&[u8]>) -> bool {
        match (self, found) {
            (Expect::Absent, found) => found.is_none(),
            (_, None) => false,
            (Expect::Present, Some(_)) => true,
            (Expect::Value(want), Some(found)) => want == found,
            (Expect::Prefix(want), Some(found)) => found.starts_with(want),
        }
    }
}

/// One comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compare {
    /// The key compared.
    pub key: Key,
    /// What it must hold.
    pub expect: Expect,
}

/// One write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Stores a value.
    Put(Key, Vec<u8>),
    /// Removes a key; it need not exist.
    Delete(Key),
}

impl Write {
    /// The key written.
    #[must_use]
    pub fn key(&self) -> &Key {
        match self {
            Write::Put(key, _) | Write::Delete(key) => key,
        }
    }
}

/// A mini-transaction (Aguilera et al., *Sinfonia: a new paradigm for building scalable
/// distributed systems*, SOSP 2007, section 3.2): if all comparisons hold, the reads are done on
/// the state before the writes, and the writes are applied, atomically.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MiniTransaction {
    /// Conditions.
    pub compare: Vec<Compare>,
    /// Keys to read.
    pub read: Vec<Key>,
    /// Changes. No key may occur twice.
    pub write: Vec<Write>,
}

impl MiniTransaction {
    /// A transaction that only reads.
    #[must_use]
    pub fn reading(keys: Vec<Key>) -> Self {
        MiniTransaction { read: keys, ..Self::default() }
    }

    /// Whether all keys lie in one partition.
    #[must_use]
    pub fn in_one_partition(&self) -> bool {
        let first = self.partition();
        self.keys().all(|key| Some(key.partition()) == first)
    }

    /// The partition of the first key; `None` if there are no keys.
    #[must_use]
    pub fn partition(&self) -> Option<u16> {
        self.keys().next().map(Key::partition)
    }

    fn keys(&self) -> impl Iterator<Item = &Key> {
        let compared = self.compare.iter().map(|compare| &compare.key);
        compared.chain(&self.read).chain(self.write.iter().map(Write::key))
    }
}

/// What became of a mini-transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Done; the values read, in the order asked for.
    Committed(Vec<Option<Vec<u8>>>),
    /// A comparison failed; nothing was done.
    Conflict,
}

/// One page of a scan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// Keys (bytes within the partition) and values, in key order.
    pub items: Vec<(Vec<u8>, Vec<u8>)>,
    /// Whether more may follow.
    pub more: bool,
}

/// Tells whether a partition may have been changed: what was read after a stamp was taken is still
/// so as long as [`Engine::watch`] gives an equal one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    pub(crate) generation: u64,
    pub(crate) change: u64,
}

/// A partition that nobody but this process may change at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenure {
    /// Which of the leases of the partition this is: later ones have greater numbers.
    pub lease: u64,
    /// For how long what is read under it can be relied on, also by those whom nobody can tell.
    pub left: Duration,
}

/// Who goes by what this process has read under a lease without asking it again, and has to be told
/// before others may change it.
pub trait LeaseObserver: Send + Sync {
    /// A lease of a partition is about to end, `for_good`, or can't be relied on for the moment. True
    /// if nobody goes by it; else it is asked again a moment later. Does not block.
    fn let_go(&self, partition: u16, lease: u64, for_good: bool) -> bool;
}

/// The smallest byte string greater than all that begin with `prefix`.
fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// As [`Engine::sweep`], of an engine that finds partitions.
fn sweep(
    engine: &dyn Engine,
    after: Option<&Key>,
    limit: usize,
) -> Result<Vec<(Key, Vec<u8>)>, EngineError> {
    let mut found = Vec::new();
    let mut at = Some(after.map_or(0, Key::partition));
    while let Some(from) = at.filter(|_| found.len() < limit) {
        let Some(partition) = engine.next_partition(from)? else { break };
        let behind = after.filter(|key| key.partition() == partition).map(Key::bytes);
        let page = engine.scan(partition, b"", behind, limit - found.len())?;
        found.extend(page.items.into_iter().map(|(key, value)| (Key::new(partition, &key), value)));
        at = partition.checked_add(1);
    }
    Ok(found)
}

/// Why the engine failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The store can't be opened.
    #[error("can't open the metadata store in {path}: {source}")]
    Open {
        /// Its directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Another process has the store open.
    #[error("the metadata store in {path} is in use by another daemon")]
    InUse {
        /// Its directory.
        path: PathBuf,
    },
    /// The store's files make no sense.
    #[error(
        "the metadata store in {path} is damaged ({source}); `forebay fsck --rebuild` makes it \
         anew from the tiers and the backing store"
    )]
    Damaged {
        /// Its directory.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Its file system has no room for changes; what is there can be read.
    #[error(
        "the file system that holds the metadata store is full: make room for {path}. A mount that is \
         there goes on by itself then; any other command is to be run again"
    )]
    NoSpace {
        /// Its directory.
        path: PathBuf,
    },
    /// Reading or writing failed.
    #[error("{0}; check the file system that holds the metadata store")]
    Io(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The address of a cluster can't be understood.
    #[error("not the address of a cluster: {0}; it is redis://[user:password@]host:port,.../name")]
    Address(&'static str),
    /// A server refuses the login, a command, or can't do what is needed.
    #[error("{server} refuses: {reason}")]
    Refused {
        /// The server.
        server: String,
        /// What it says.
        reason: String,
    },
    /// No server that could answer was reached in time; nothing was changed.
    #[error("the metadata cluster does not answer ({reason}); nothing was changed")]
    Unreachable {
        /// What was met last.
        reason: String,
    },
    /// The connection was lost, or too few replicas confirmed in time: the change may have been
    /// made, and may get lost.
    #[error(
        "the metadata cluster did not confirm in time ({reason}): the change may be made or not"
    )]
    Unknown {
        /// What was met last.
        reason: String,
    },
    /// A transaction over several partitions on an engine that can't do that.
    #[error("the transaction spans partitions, which this engine can't commit atomically")]
    SpansPartitions,
    /// The store was closed by [`Engine::close`].
    #[error("the metadata store is closed: another daemon goes on with it")]
    Closed,
}

/// A partitioned ordered key-value store with mini-transactions. All calls block.
///
/// Mini-transactions within a partition are linearizable: each takes effect at one instant
/// between its call and its return, and a return means that the change survives the death of the
/// process.
pub trait Engine: Send + Sync {
    /// Executes a mini-transaction: one round trip.
    ///
    /// # Errors
    /// When the engine fails; whether the transaction took effect is then unknown.
    fn execute(&self, transaction: &MiniTransaction) -> Result<Outcome, EngineError>;

    /// Up to `limit` keys of a partition that begin with `prefix` and are greater than `after`,
    /// in order, as they were at one instant.
    ///
    /// # Errors
    /// When the engine fails.
    fn scan(
        &self,
        partition: u16,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Page, EngineError>;

    /// As [`Engine::scan`] in the partition of `guard`; `None` if there is a key `guard`, now or at
    /// a moment since the call began, before which nothing of what would be returned changed.
    ///
    /// # Errors
    /// As [`Engine::scan`].
    fn scan_unless(
        &self,
        guard: &Key,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Option<Page>, EngineError> {
        match self.execute(&MiniTransaction::reading(vec![guard.clone()]))? {
            Outcome::Committed(values) if values.iter().all(Option::is_none) => {
                self.scan(guard.partition(), prefix, after, limit).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Up to `limit` keys over all partitions that are greater than `after`, in the order of
    /// [`Key::raw`]: for checks and recounts, never in the way of a request.
    ///
    /// # Errors
    /// When the engine fails.
    fn sweep(&self, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, Vec<u8>)>, EngineError>;

    /// Whether one transaction may touch several partitions.
    fn spans_partitions(&self) -> bool;

    /// Whether a transaction within one partition costs much less than one over several.
    fn prefers_one_partition(&self) -> bool {
        !self.spans_partitions()
    }

    /// The first partition from `from` on that has keys.
    ///
    /// # Errors
    /// When the engine fails.
    fn next_partition(&self, from: u16) -> Result<Option<u16>, EngineError> {
        let mut after = from.checked_sub(1).map(|before| Key::new(before, &[u8::MAX; KEY_MAX]));
        loop {
            let step = self.sweep(after.as_ref(), 1)?;
            match step.into_iter().next() {
                Some((key, _)) if key.partition() < from => after = Some(key),
                found => return Ok(found.map(|(key, _)| key.partition())),
            }
        }
    }

    /// The partitions of a range that have keys, in order.
    ///
    /// # Errors
    /// When the engine fails.
    fn partitions(&self, range: Range<u16>) -> Result<Vec<u16>, EngineError> {
        let mut found = Vec::new();
        let mut from = range.start;
        while let Some(next) = self.next_partition(from)?.filter(|next| range.contains(next)) {
            found.push(next);
            // It is less than the end.
            from = next + 1;
        }
        Ok(found)
    }

    /// How many keys of a partition begin with `prefix`.
    ///
    /// # Errors
    /// When the engine fails.
    fn count(&self, partition: u16, prefix: &[u8]) -> Result<u64, EngineError> {
        Ok(self.scan(partition, prefix, None, usize::MAX)?.items.len() as u64)
    }

    /// Whether nobody but the holder of this engine changes what it keeps. Then what was read under
    /// the holder's own locks is as it was, and comparing it again would only cost.
    fn exclusive(&self) -> bool {
        false
    }

    /// Returns when all that was committed before survives the loss of power.
    ///
    /// # Errors
    /// When the engine fails.
    fn sync(&self) -> Result<(), EngineError>;

    /// Finishes, or gives up, what dead processes left half done; returns how many transactions that
    /// concerned. It happens by itself where somebody meets it. Nobody else may use the store
    /// meanwhile.
    ///
    /// # Errors
    /// When the engine fails.
    fn recover(&self) -> Result<u64, EngineError> {
        Ok(0)
    }

    /// A stamp of a partition, by which what is cached of it can be checked without a round trip;
    /// `None` while changes by others might go unnoticed: then nothing that is cached may be
    /// believed. A change by others may be noticed a moment (less than a millisecond, usually)
    /// after it was acknowledged to them, and one at a primary that is cut off from us within the
    /// engine's lease.
    fn watch(&self, partition: u16) -> Option<Stamp> {
        // Nobody else can change what a process has for itself.
        let _ = partition;
        Some(Stamp { generation: 0, change: 0 })
    }

    /// Whether nobody else may change a partition at present. What is read after the answer can be
    /// relied on for as long as it says, unless who is named by [`Engine::rely`] is told otherwise.
    fn tenure(&self, partition: u16) -> Option<Tenure> {
        let _ = partition;
        None
    }

    /// What is under a key now never changes: where a server could be taken for another one, it is told by
    /// that from here on.
    ///
    /// # Errors
    /// If it can't be read.
    fn identify(&self, key: &Key) -> Result<(), EngineError> {
        let _ = key;
        Ok(())
    }

    /// Returns when all that was committed before in a partition has arrived where others see it, also
    /// after the death of this machine. Before something is done outside on the strength of it.
    ///
    /// # Errors
    /// If that is not known, or it is lost.
    fn arrive(&self, partition: u16) -> Result<(), EngineError> {
        let _ = partition;
        Ok(())
    }

    /// What was acknowledged here and is lost, where that can be.
    fn losses(&self) -> Option<&Losses> {
        None
    }

    /// Names who is to be told before a lease ends; once.
    fn rely(&self, observer: Arc<dyn LeaseObserver>) {
        drop(observer);
    }

    /// Lets go of the store for ever, so that another process can open it: waits for calls under
    /// way; all later ones fail. An engine that nobody else can open has nothing to do.
    fn close(&self) {}

    /// Nothing has been asked for a while: memory that is held for what was changed lately is given
    /// back. An engine that holds none has nothing to do.
    fn release_memory(&self) {}
}

impl<T: Engine + ?Sized> Engine for std::sync::Arc<T> {
    fn execute(&self, transaction: &MiniTransaction) -> Result<Outcome, EngineError> {
        (**self).execute(transaction)
    }

    fn scan(
        &self,
        partition: u16,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Page, EngineError> {
        (**self).scan(partition, prefix, after, limit)
    }

    fn scan_unless(
        &self,
        guard: &Key,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Option<Page>, EngineError> {
        (**self).scan_unless(guard, prefix, after, limit)
    }

    fn watch(&self, partition: u16) -> Option<Stamp> {
        (**self).watch(partition)
    }

    fn tenure(&self, partition: u16) -> Option<Tenure> {
        (**self).tenure(partition)
    }

    fn identify(&self, key: &Key) -> Result<(), EngineError> {
        (**self).identify(key)
    }

    fn arrive(&self, partition: u16) -> Result<(), EngineError> {
        (**self).arrive(partition)
    }

    fn losses(&self) -> Option<&Losses> {
        (**self).losses()
    }

    fn rely(&self, observer: Arc<dyn LeaseObserver>) {
        (**self).rely(observer);
    }

    fn recover(&self) -> Result<u64, EngineError> {
        (**self).recover()
    }

    fn prefers_one_partition(&self) -> bool {
        (**self).prefers_one_partition()
    }

    fn next_partition(&self, from: u16) -> Result<Option<u16>, EngineError> {
        (**self).next_partition(from)
    }

    fn partitions(&self, range: Range<u16>) -> Result<Vec<u16>, EngineError> {
        (**self).partitions(range)
    }

    fn count(&self, partition: u16, prefix: &[u8]) -> Result<u64, EngineError> {
        (**self).count(partition, prefix)
    }

    fn sweep(&self, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, Vec<u8>)>, EngineError> {
        (**self).sweep(after, limit)
    }

    fn spans_partitions(&self) -> bool {
        (**self).spans_partitions()
    }

    fn exclusive(&self) -> bool {
        // Others may hold it as well.
        false
    }

    fn sync(&self) -> Result<(), EngineError> {
        (**self).sync()
    }

    fn close(&self) {
        (**self).close();
    }

    fn release_memory(&self) {
        (**self).release_memory();
    }
}
