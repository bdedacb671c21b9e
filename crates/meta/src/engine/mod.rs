//! The narrow interface below the namespace: keys in partitions and mini-transactions on them.

mod ballast;
mod embedded;
mod memory;

use std::fmt;
use std::path::PathBuf;

use smallvec::SmallVec;

pub use embedded::{Embedded, EmbeddedOptions};
pub use memory::Memory;

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
        let mut keys = (self.compare.iter().map(|c| &c.key)).chain(&self.read).chain(
            self.write.iter().map(|write| match write {
                Write::Put(key, _) | Write::Delete(key) => key,
            }),
        );
        let first = keys.next().map(Key::partition);
        keys.all(|key| Some(key.partition()) == first)
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
    /// Reading or writing failed.
    #[error("{0}; check the file system that holds the metadata store")]
    Io(#[source] Box<dyn std::error::Error + Send + Sync>),
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

    /// Up to `limit` keys over all partitions that are greater than `after`, in the order of
    /// [`Key::raw`]: for checks and recounts, never in the way of a request.
    ///
    /// # Errors
    /// When the engine fails.
    fn sweep(&self, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, Vec<u8>)>, EngineError>;

    /// Whether one transaction may touch several partitions.
    fn spans_partitions(&self) -> bool;

    /// Returns when all that was committed before survives the loss of power.
    ///
    /// # Errors
    /// When the engine fails.
    fn sync(&self) -> Result<(), EngineError>;

    /// Lets go of the store for ever, so that another process can open it: waits for calls under
    /// way; all later ones fail. An engine that nobody else can open has nothing to do.
    fn close(&self) {}
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

    fn sweep(&self, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, Vec<u8>)>, EngineError> {
        (**self).sweep(after, limit)
    }

    fn spans_partitions(&self) -> bool {
        (**self).spans_partitions()
    }

    fn sync(&self) -> Result<(), EngineError> {
        (**self).sync()
    }

    fn close(&self) {
        (**self).close();
    }
}
