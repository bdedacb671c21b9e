//! The store: the logical tree and where each inode stands in the backing store.

mod api;
mod attrs;
mod backlog;
mod cached;
mod changes;
mod check;
mod copies;
mod draft;
mod entries;
mod fresh;
mod gathered;
mod import;
mod locks;
mod members;
mod names;
mod names_apart;
mod node_status;
mod numbers;
mod outside;
mod ownership;
mod recalls;
mod rename;
mod split;
mod vanish;
mod versions;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use quick_cache::sync::Cache;
use smallvec::SmallVec;

pub use api::*;
pub use attrs::{XattrSizes, Xattrs};
pub use changes::Moment;
pub use copies::CopiesMade;
pub use members::{Member, NodeName};
pub use node_status::{LeaveOrder, NodeStatus, Owned};
pub use outside::{members_of, node_statuses_of, settings_of};
pub use ownership::{ChangeRight, Ownership};
pub use recalls::{Answer, RecallAim, RecallRequest};
pub use vanish::BytesHere;

use crate::codec;
use crate::engine::{
    Engine, Expect, Key, LossReport, Losses, MiniTransaction, Outcome, Page, Spanning, Stamp,
    Teller, Write,
};
use crate::error::{Error, Result};
use crate::keys::{self, Layout};
use crate::links::Links;
use crate::types::{
    Attr, Backing, FileKind, Incarnation, Ino, Later, Link, Record, Spread, Timestamp, Touched,
    XattrState,
};
use backlog::Places;
use cached::{Cached, Dentry};
use changes::Changes;
use draft::Draft;
use gathered::Marks;
use numbers::InoBlock;
use split::Growth;

/// Locks are striped by inode number.
const STRIPES: usize = 256;
/// Attempts of an operation before it fails with `Conflict`.
const ATTEMPTS: u32 = 32;
/// More ancestors than any path has.
const MAX_DEPTH: usize = 1 << 16;
/// Longest name in bytes.
const NAME_MAX: usize = 255;

/// How long another process's transaction over several partitions may stand still, with no sign that
/// it was committed, before it is given up.
const SPANNING_TIMEOUT: Duration = Duration::from_secs(1);

/// What the names of the settings begin with that [`spill_of_removed`] gives.
pub const SPILL_OF_REMOVED: &str = "spill.gone.";

/// The setting that says of an inode that it was removed while its record said that it has a spill file. It
/// comes with the removal, and goes with the spill file.
#[must_use]
pub fn spill_of_removed(ino: Ino) -> String {
    format!("{SPILL_OF_REMOVED}{:x}", ino.0)
}

const FORMAT: &str = "forebay.format";
const COUNTS: &str = "forebay.counts";

/// The namespace. See the crate's documentation. All methods block, take `&self` and may be called
/// from any thread; none reads a clock.
///
/// Every operation locks the inodes it changes (striped locks, always in the order of stripes), so
/// operations of one process never conflict in the engine. Comparisons in the mini-transactions
/// protect against other processes, where there can be any. The caches are filled only under a lock
/// and changed only by the holder of the exclusive lock, after its commit; what others changed
/// since, the engine's stamps tell.
pub struct MetaStore {
    engine: Box<dyn Engine>,
    layout: Layout,
    /// Nobody else changes what the engine keeps: names that are missing can be cached, and what was
    /// read under a lock need not be compared at the commit.
    exclusive: bool,
    records: Cache<Ino, Cached<Arc<Record>>>,
    dentries: Cache<(Ino, u64), Cached<Arc<Dentry>>>,
    stripes: Vec<RwLock<()>>,
    /// Held while a directory moves to another parent, so that ancestry can be checked.
    tree: Mutex<()>,
    inos: Mutex<InoBlock>,
    places: Places,
    /// Places in the backlog, where they lie scattered.
    marks: Marks,
    changes: Changes,
    growth: Growth,
    /// Times of buckets, with the stamps from before they were read.
    touched: Cache<(Ino, u16), (Touched, Option<Stamp>)>,
    xattr_sizes: attrs::KnownSizes,
    fresh: fresh::Fresh,
    /// Written with every transaction that changes it, hence locked over its commit.
    counts: Mutex<Counts>,
    /// As which node of a cluster to join.
    name: Option<NodeName>,
    /// The incarnation to go on as.
    resume: Option<Incarnation>,
    /// Which node this process is.
    member: OnceLock<Incarnation>,
    /// What it wrote last of itself; nothing if somebody else may have since.
    own_entry: Mutex<Option<Vec<u8>>>,
    /// A copy of `counts` for readers, who must not wait for a commit.
    shown: ShownCounts,
    executes: AtomicU64,
    scans: AtomicU64,
}

#[derive(Default)]
struct ShownCounts {
    inodes: AtomicU64,
    queued: AtomicU64,
    orphans: AtomicU64,
    stale_names: AtomicU64,
}

impl ShownCounts {
    fn show(&self, counts: &Counts) {
        self.inodes.store(counts.inodes, Ordering::Relaxed);
        self.queued.store(counts.queued, Ordering::Relaxed);
        self.orphans.store(counts.orphans, Ordering::Relaxed);
        self.stale_names.store(counts.stale_names, Ordering::Relaxed);
    }
}

type Guards<'a> = SmallVec<[RwLockWriteGuard<'a, ()>; 4]>;

impl MetaStore {
    /// Opens the namespace kept by an engine; one that commits only within a partition is put under
    /// [`Spanning`]. A new one gets a root directory (mode 0755, owner 0,
    /// neither listed nor queued); call [`MetaStore::refresh`] with the backing root's attributes.
    ///
    /// # Errors
    /// If the engine fails or holds a newer format.
    pub fn open(engine: Box<dyn Engine>, options: &Options) -> Result<Self> {
        let engine = match engine.spans_partitions() {
            true => engine,
            false => Box::new(Spanning::new(Arc::<dyn Engine>::from(engine), SPANNING_TIMEOUT)?),
        };
        let layout = match engine.prefers_one_partition() {
            true => Layout::Gathered,
            false => Layout::Central,
        };
        let store = MetaStore {
            exclusive: engine.exclusive(),
            engine,
            layout,
            records: Cache::new(options.cached_records.max(16)),
            dentries: Cache::new(options.cached_records.max(16)),
            stripes: (0..STRIPES).map(|_| RwLock::new(())).collect(),
            tree: Mutex::new(()),
            inos: Mutex::default(),
            places: Places::default(),
            marks: Marks::default(),
            changes: Changes::default(),
            growth: Growth::new(options.split_above)?,
            touched: Cache::new(split::CACHED_TIMES),
            counts: Mutex::default(),
            name: options.node.clone(),
            resume: options.resume,
            member: OnceLock::new(),
            xattr_sizes: attrs::KnownSizes::default(),
            fresh: fresh::Fresh::default(),
            own_entry: Mutex::default(),
            shown: ShownCounts::default(),
            executes: AtomicU64::new(0),
            scans: AtomicU64::new(0),
        };
        if options.node.is_some() && !store.is_gathered() {
            return Err(Error::Unsupported("it serves one node only"));
        }
        store.begin()?;
        Ok(store)
    }

    /// Checks the format, or writes a new store's first transaction.
    fn begin(&self) -> Result<()> {
        let Some(format) = self.setting(FORMAT)? else {
            return self.create_root();
        };
        let version = <[u8; 4]>::try_from(format.as_slice()).map(u32::from_be_bytes);
        match version {
            Ok(found) if found == self.layout.version() => {}
            Ok(found) if self.layout.takes(found) => self.raise_format(format)?,
            Ok(found) if found > Layout::Gathered.version() => {
                let (what, known) = ("the metadata store".into(), Layout::Gathered.version());
                return Err(Error::NewerFormat { what, found, known });
            }
            Ok(_) => return Err(Error::Unsupported("the store was made for another engine")),
            Err(_) => return Err(corrupt(FORMAT, "no valid version")),
        }
        if self.is_gathered() {
            self.join()?;
            return self.check_format_again();
        }
        let value = self.read_one(keys::setting(COUNTS))?;
        let value = value.ok_or_else(|| corrupt(COUNTS, "missing"))?;
        let (mut counts, mut next_seq) = codec::decode_counts(&value)?;
        if let Some(last) = self.last_queued_from(next_seq)? {
            // Or places would be given twice, and what is queued would not be seen.
            tracing::warn!("the counts of the namespace are older than its backlog: counted anew");
            (counts, next_seq) = (self.recount()?, last + 1);
        }
        self.places.start_at(next_seq);
        self.shown.show(&counts);
        *self.counts.lock() = counts;
        Ok(())
    }

    /// Keeps programs away that do not know what this one may do. Another may have been first.
    ///
    /// A node that joins writes that it is there and then looks at the format; here the format is
    /// written and then looked who is there. So one of the two sees the other.
    fn raise_format(&self, before: Vec<u8>) -> Result<()> {
        self.check_all_know_format()?;
        if !self.is_gathered() {
            self.mark_numbers()?;
        }
        for prefix in [keys::members(), keys::node_statuses(), keys::orders()] {
            // Where it was before.
            let old = Key::new(keys::GLOBAL, prefix.bytes());
            for (bytes, value) in self.scan(&old, None, usize::MAX)?.items {
                let mut transaction = MiniTransaction::default();
                let key = Key::new(prefix.partition(), &bytes);
                transaction.compare.push(compare(key.clone(), Expect::Absent));
                transaction.write.push(Write::Put(key, value));
                self.execute(&transaction)?;
                let write = vec![Write::Delete(Key::new(keys::GLOBAL, &bytes))];
                self.execute(&MiniTransaction { write, ..Default::default() })?;
            }
        }
        let mine = self.layout.version().to_be_bytes();
        if self.swap_format(&before, &mine)?
            && let Err(error) = self.check_all_know_format()
        {
            self.swap_format(&mine, &before)?;
            return Err(error);
        }
        Ok(())
    }

    fn swap_format(&self, before: &[u8], after: &[u8]) -> Result<bool> {
        let key = keys::setting(FORMAT);
        let mut transaction = MiniTransaction::default();
        let before = Expect::Value(codec::encode_bytes(before));
        transaction.compare.push(compare(key.clone(), before));
        transaction.write.push(Write::Put(key, codec::encode_bytes(after)));
        Ok(self.execute(&transaction)?.is_some())
    }

    /// Refuses to raise the format while a node is mounted, or may come back with what it has, that
    /// does not know this one's.
    fn check_all_know_format(&self) -> Result<()> {
        let known = self.layout.version();
        let me = self.name.as_ref().map(|name| &name.id);
        let prefix = keys::members();
        // Where nodes were noted before format 3, too.
        let places = [prefix.clone(), Key::new(keys::GLOBAL, prefix.bytes())];
        let mut nodes = Vec::new();
        for place in places {
            for (key, value) in self.scan(&place, None, usize::MAX)?.items {
                let member = codec::decode_member(node_status::node_of(&key)?, &value)?;
                if !member.left && member.knows < known && me != Some(&member.id) {
                    nodes.push(format!("node {} ({})", member.node, member.address));
                }
            }
        }
        match nodes.is_empty() {
            true => Ok(()),
            false => Err(Error::HeldBack { known, nodes: nodes.join(", ") }),
        }
    }

    /// Leaves again if the format was raised while this node joined.
    fn check_format_again(&self) -> Result<()> {
        let format = self.setting(FORMAT)?.unwrap_or_default();
        let found = <[u8; 4]>::try_from(format.as_slice()).map_or(0, u32::from_be_bytes);
        let known = self.layout.version();
        if self.name.is_none() || found == known {
            return Ok(());
        }
        self.leave()?;
        Err(Error::NewerFormat { what: "the metadata store".into(), found, known })
    }

    fn create_root(&self) -> Result<()> {
        let zero = Timestamp::default();
        let mut root =
            new_record(Ino::ROOT, &NewInode::new(FileKind::Directory, 0o755, 0, 0), zero);
        root.attr.nlink = 2;
        root.xattrs = XattrState::Unknown;
        let counts = Counts { inodes: 1, ..Counts::default() };
        let mut transaction = MiniTransaction::default();
        transaction.compare.push(compare(keys::setting(FORMAT), Expect::Absent));
        let put = |key, value| Write::Put(key, value);
        transaction.write.extend([
            put(keys::record(Ino::ROOT), codec::encode_record(&root)),
            put(keys::setting(FORMAT), codec::encode_bytes(&self.layout.version().to_be_bytes())),
        ]);
        if !self.is_gathered() {
            let counts = codec::encode_counts(&counts, 1);
            transaction.write.push(put(keys::setting(COUNTS), counts));
        }
        self.execute(&transaction)?;
        self.begin()
    }

    /// The record of an inode.
    ///
    /// # Errors
    /// `Stale` if there is none.
    pub fn get(&self, ino: Ino) -> Result<Arc<Record>> {
        if let Some(record) = self.cached_record(ino) {
            return Ok(record);
        }
        let _shared = self.stripe(ino).read();
        self.load_locked(ino)?.ok_or(Error::Stale(ino))
    }

    /// As [`MetaStore::get`], after all changes of the inode that are under way.
    ///
    /// # Errors
    /// `Stale` if there is none.
    pub fn get_settled(&self, ino: Ino) -> Result<Arc<Record>> {
        let _shared = self.stripe(ino).read();
        if let Some(record) = self.cached_record(ino) {
            return Ok(record);
        }
        self.load_locked(ino)?.ok_or(Error::Stale(ino))
    }

    /// The record behind a name, if any.
    ///
    /// # Errors
    /// `Stale` or `NotDirectory` for `dir`.
    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Option<Arc<Record>>> {
        for _ in 0..ATTEMPTS {
            let found = match self.cached_entry(dir, name) {
                Some(found) => found,
                None => {
                    let _shared = self.stripe(dir).read();
                    self.find_locked(dir, name)?
                }
            };
            let Some((ino, _)) = found else {
                let parent = self.believed(dir).map_or_else(|| self.get(dir), Ok)?;
                return if parent.is_directory() { Ok(None) } else { Err(Error::NotDirectory) };
            };
            match self.get(ino) {
                Ok(record) => return Ok(Some(record)),
                // Removed between the two looks: look again.
                Err(Error::Stale(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Err(corrupt(&format!("entry {}", name.escape_ascii()), "no such inode"))
    }

    /// The path from the root by first links, without a leading slash (empty for the root); `None`
    /// if no name leads there.
    ///
    /// # Errors
    /// `Stale` if there is no such inode.
    pub fn path(&self, ino: Ino) -> Result<Option<Vec<u8>>> {
        if ino == Ino::ROOT {
            return Ok(Some(Vec::new()));
        }
        match self.get(ino)?.links.first() {
            Some(link) => self.path_of(link, |record| record.links.first().cloned()),
            None => Ok(None),
        }
    }

    /// The path in the backing store by first backing links, relative to its root; `None` if it
    /// isn't there (yet).
    ///
    /// # Errors
    /// `Stale` if there is no such inode.
    pub fn backing_path(&self, ino: Ino) -> Result<Option<Vec<u8>>> {
        if ino == Ino::ROOT {
            return Ok(Some(Vec::new()));
        }
        match self.get(ino)?.backing.links.first() {
            Some(link) => self.backing_path_of(link),
            None => Ok(None),
        }
    }

    /// The backing path of one backing name.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn backing_path_of(&self, link: &Link) -> Result<Option<Vec<u8>>> {
        self.path_of(link, |record| record.backing.links.first().cloned())
    }

    fn path_of(
        &self,
        link: &Link,
        parent_link: impl Fn(&Record) -> Option<Link>,
    ) -> Result<Option<Vec<u8>>> {
        let mut links = vec![link.clone()];
        while let Some(parent) = links.last().map(|link| link.parent).filter(|p| *p != Ino::ROOT) {
            let next = self.load(parent)?.and_then(|record| parent_link(&record));
            match next {
                Some(next) if links.len() < MAX_DEPTH => links.push(next),
                _ => return Ok(None),
            }
        }
        let names: Vec<&[u8]> = links.iter().rev().map(|link| &*link.name).collect();
        Ok(Some(names.join(&b'/')))
    }

    /// Nothing has been asked for a while: what is cached is read again when it is wanted, and recent
    /// changes go to the disk.
    pub fn release_memory(&self) {
        self.records.clear();
        self.dentries.clear();
        self.touched.clear();
        self.engine.release_memory();
    }

    /// How many records and names are cached.
    #[must_use]
    pub fn cached(&self) -> usize {
        self.records.len() + self.dentries.len()
    }

    /// Sizes.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let shown = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            inodes: shown(&self.shown.inodes),
            queued: match self.member() {
                // Others take places away, too.
                Some(_) => self.marks.len(),
                None => shown(&self.shown.queued),
            },
            orphans: shown(&self.shown.orphans),
            stale_names: shown(&self.shown.stale_names),
        }
    }

    /// Engine calls so far.
    #[must_use]
    pub fn round_trips(&self) -> RoundTrips {
        RoundTrips {
            executes: self.executes.load(Ordering::Relaxed),
            scans: self.scans.load(Ordering::Relaxed),
        }
    }

    /// The engine that keeps it.
    #[must_use]
    pub fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    /// A free-form setting.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn setting(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let value = self.read_one(keys::setting(name))?;
        value.map(|value| codec::decode_bytes(name, &value)).transpose()
    }

    /// Whether there is a free-form setting whose name begins so.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn has_setting_like(&self, beginning: &str) -> Result<bool> {
        Ok(!self.scan(&keys::setting(beginning), None, 1)?.items.is_empty())
    }

    /// The free-form settings whose names begin so: what follows in their names.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn settings_like(&self, beginning: &str) -> Result<Vec<String>> {
        let prefix = keys::setting(beginning);
        let found = self.scan(&prefix, None, usize::MAX)?.items.into_iter();
        let names =
            found.filter_map(|(key, _)| key.get(prefix.bytes().len()..).map(<[u8]>::to_vec));
        Ok(names.map(|name| String::from_utf8_lossy(&name).into_owned()).collect())
    }

    /// Stores a free-form setting. Names that begin with `forebay.` belong to the store.
    ///
    /// # Errors
    /// `Invalid` for such a name.
    pub fn set_setting(&self, name: &str, value: &[u8]) -> Result<()> {
        if name.starts_with("forebay.") {
            return Err(Error::Invalid("setting names beginning with forebay. are reserved"));
        }
        let mut transaction = MiniTransaction::default();
        transaction.write.push(Write::Put(keys::setting(name), codec::encode_bytes(value)));
        self.execute(&transaction).map(|_| ())
    }

    /// A free-form setting; if there is none, it becomes this one. All processes get the same.
    ///
    /// # Errors
    /// As [`MetaStore::set_setting`].
    pub fn setting_or(&self, name: &str, value: &[u8]) -> Result<Vec<u8>> {
        if name.starts_with("forebay.") {
            return Err(Error::Invalid("setting names beginning with forebay. are reserved"));
        }
        let key = keys::setting(name);
        let mut transaction = MiniTransaction::default();
        transaction.compare.push(compare(key.clone(), Expect::Absent));
        transaction.write.push(Write::Put(key, codec::encode_bytes(value)));
        if self.execute(&transaction)?.is_some() {
            return Ok(value.to_vec());
        }
        self.setting(name)?.ok_or(Error::Conflict(1))
    }

    /// A free-form setting tells this namespace from all others, and never changes: from here on no
    /// server is believed that has another one.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn identify_by(&self, name: &str) -> Result<()> {
        Ok(self.engine.identify(&keys::setting(name))?)
    }

    /// Removes a free-form setting; no error if there is none.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn remove_setting(&self, name: &str) -> Result<()> {
        self.remove_settings(&[name])
    }

    /// Removes free-form settings, all of them or none; no error if one is not there.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn remove_settings(&self, names: &[&str]) -> Result<()> {
        let mut transaction = MiniTransaction::default();
        let writes = names.iter().map(|name| Write::Delete(keys::setting(name)));
        transaction.write.extend(writes);
        self.execute(&transaction).map(|_| ())
    }

    /// Fails if something that was acknowledged of an inode is lost and nobody has said so to a call of
    /// this kind yet: once for each.
    ///
    /// # Errors
    /// `Lost`.
    pub fn tell_losses(&self, ino: Ino, teller: Teller) -> Result<()> {
        match self.engine.losses() {
            Some(losses) if losses.tell(ino.0, teller) => Err(Error::Lost(ino)),
            _ => Ok(()),
        }
    }

    /// What was acknowledged here and is lost, as other nodes took this one for dead.
    pub fn losses(&self) -> LossReport {
        self.engine.losses().map(Losses::report).unwrap_or_default()
    }

    /// Lets go of the engine's files for ever, so that another process can open them. All later
    /// changes fail, and all reads of what is not cached.
    pub fn close(&self) {
        self.engine.close();
    }

    fn execute(&self, transaction: &MiniTransaction) -> Result<Option<Vec<Option<Vec<u8>>>>> {
        self.executes.fetch_add(1, Ordering::Relaxed);
        match self.engine.execute(transaction)? {
            Outcome::Committed(reads) => Ok(Some(reads)),
            Outcome::Conflict => Ok(None),
        }
    }

    /// Reads keys at one instant.
    fn read(&self, keys: Vec<Key>) -> Result<Vec<Option<Vec<u8>>>> {
        let reads = self.execute(&MiniTransaction::reading(keys))?;
        Ok(reads.expect("a transaction without comparisons has no conflicts"))
    }

    fn read_one(&self, key: Key) -> Result<Option<Vec<u8>>> {
        Ok(self.read(vec![key])?.pop().flatten())
    }

    fn scan(&self, prefix: &Key, after: Option<&[u8]>, limit: usize) -> Result<Page> {
        self.scans.fetch_add(1, Ordering::Relaxed);
        Ok(self.engine.scan(prefix.partition(), prefix.bytes(), after, limit)?)
    }

    fn stripe(&self, ino: Ino) -> &RwLock<()> {
        &self.stripes[stripe_of(ino)]
    }

    /// Keeps others from changing an inode, and another.
    fn shared(&self, one: Ino, other: Option<Ino>) -> SmallVec<[RwLockReadGuard<'_, ()>; 2]> {
        let both = [Some(one), other];
        let mut stripes: SmallVec<[usize; 2]> = both.into_iter().flatten().map(stripe_of).collect();
        stripes.sort_unstable();
        stripes.dedup();
        stripes.into_iter().map(|stripe| self.stripes[stripe].read()).collect()
    }

    /// Locks inodes against all others.
    fn lock(&self, inos: &[Ino]) -> Guards<'_> {
        let mut stripes: SmallVec<[usize; 4]> = inos.iter().map(|ino| stripe_of(*ino)).collect();
        stripes.sort_unstable();
        stripes.dedup();
        stripes.into_iter().map(|stripe| self.stripes[stripe].write()).collect()
    }

    /// Runs an operation until it meets no conflict.
    fn retry<T>(&self, mut operation: impl FnMut() -> Result<T>) -> Result<T> {
        for _ in 0..ATTEMPTS {
            match operation() {
                Err(Error::Conflict(_)) => {}
                done => return done,
            }
        }
        Err(Error::Conflict(ATTEMPTS))
    }
}

fn stripe_of(ino: Ino) -> usize {
    (ino.0 ^ ino.0 >> Ino::SEQUENCE_BITS) as usize % STRIPES
}

fn compare(key: Key, expect: Expect) -> crate::engine::Compare {
    crate::engine::Compare { key, expect }
}

fn corrupt(key: &str, reason: &str) -> Error {
    Error::Corrupt { key: key.to_string(), reason: reason.to_string() }
}

/// Refuses what can't be the name of an entry.
fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Error::NameTooLong);
    }
    if matches!(name, b"" | b"." | b"..") || name.iter().any(|byte| matches!(byte, b'/' | 0)) {
        return Err(Error::Invalid("not a file name"));
    }
    Ok(())
}

/// A record without names.
fn new_record(ino: Ino, new: &NewInode, now: Timestamp) -> Record {
    Record {
        ino,
        attr: Attr {
            kind: new.kind,
            perm: new.perm & 0o7777,
            uid: new.uid,
            gid: new.gid,
            nlink: 0,
            rdev: new.rdev,
            size: new.target.as_ref().map_or(0, |target| target.len() as u64),
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
        },
        links: Links::new(),
        target: new.target.clone(),
        xattrs: if new.xattrs.is_empty() { XattrState::None } else { XattrState::Some },
        backing: Backing::default(),
        dirty: false,
        dirtied: 0,
        spilled: false,
        listed: false,
        pinned: new.pinned,
        orphan: false,
        owner: None,
        copied: false,
        orphan_of: 0,
        replaces: false,
        subdirs: 0,
        change: 1,
        queued: None,
        hard_link: None,
        apart: 0,
        spread: Spread::Whole,
        revision: 0,
        later: Later::default(),
    }
}

impl Record {
    /// Adds to (or takes from) the subdirectories of a directory, hence its link count.
    fn add_subdirs(&mut self, count: i64) {
        let add =
            |number: u32| i64::from(number).saturating_add(count).clamp(0, 0xffff_ffff) as u32;
        self.subdirs = add(self.subdirs);
        self.attr.nlink = add(self.attr.nlink).max(2);
    }

    /// The entries of a directory changed.
    fn entries_changed(&mut self, now: Timestamp) {
        self.attr.mtime = now;
        self.attr.ctime = now;
    }

    /// As [`Record::entries_changed`], by others, at a time that may have passed: a time that a program
    /// has set here since stays. Says whether nothing was changed here since.
    fn entries_changed_by_others(&mut self, at: Timestamp) -> bool {
        let is_later = at > self.attr.ctime;
        if is_later {
            self.entries_changed(at);
        }
        is_later
    }
}
