//! Keys of the namespace. All numbers are big-endian, so that keys sort like numbers.
//!
//! ```text
//! partition of    key                                  value
//! inode           I ino                                record
//! inode           X ino name                           extended attribute
//! inode           F ino dir name                       one of many names of a file
//! entries         D dir hash(name) name                entry: inode, type
//! entries         B dir hash(name) name ino            stale name: inode
//! entries         W dir                                when entries were last changed
//! entries         V dir                                which import was the last
//! 0               P dir                                a split is under way
//! 0 or inode      Q seq                                backlog: inode
//! 0 or inode      O ino                                orphan
//! 0               H backing-inode-number               inode
//! 0               S name                               setting
//! 2^15            N number                             node of the cluster
//! 2^15            E number                             what a node has to bring to the backing store
//! 2^15            C number                             the order to leave
//! 2^15            Y number inode                       programs of a node wait for locks of it
//! inode           L ino                                who works on the inode
//! inode           K ino                                locks of programs
//! inode           R ino                                copies on other nodes
//! inode           T ino number                         the file was taken over from a node
//! node            M number ino asker                   what a node is asked for
//! ```
//!
//! The partitions of directories' entries and of marks are a matter of [`Layout`]. Where a split
//! directory's entries were before, an entry without a name stays ([`moved`]).

use smallvec::{SmallVec, smallvec};

use crate::engine::{Key, Write};
use crate::types::{FileKind, Ino, Link, Seq, Spread};

/// The partition of what belongs to no inode.
pub(crate) const GLOBAL: u16 = 0;

/// The partition of what nodes say of themselves every second, beyond those of directories and
/// Recall queues: others than these change rarely.
pub(crate) const NODES: u16 = 1 << 15;

/// Partitions of [`Layout::Gathered`]: as many as a cluster has slots, as more would spread nothing
/// further.
pub(crate) const GATHERED: u16 = 1 << 14;

/// Partitions over which the entries of a split directory are spread, by the highest bits of their
/// names' hashes: then a listing that goes from one to the next is in the order of hashes.
pub(crate) const BUCKETS: u16 = 16;
const BUCKET_SHIFT: u32 = 62 - BUCKETS.trailing_zeros();

/// Up to this number no directory is ever removed: the root, and a place beside the tree in which users
/// of the store note names that are in no directory. No inode is given a number up to it.
pub(crate) const LAST_FIXED: Ino = Ino(2);

/// Cursors below this are left to callers (for `.` and `..`).
pub(crate) const MIN_HASH: u64 = 16;

pub(crate) const RECORD: u8 = b'I';
pub(crate) const XATTR: u8 = b'X';
pub(crate) const ENTRY: u8 = b'D';
pub(crate) const NAME: u8 = b'F';
pub(crate) const STALE_NAME: u8 = b'B';
pub(crate) const QUEUE: u8 = b'Q';
pub(crate) const ORPHAN: u8 = b'O';
pub(crate) const HARD_LINK: u8 = b'H';
pub(crate) const SETTING: u8 = b'S';
pub(crate) const MEMBER: u8 = b'N';
pub(crate) const WORK: u8 = b'L';
pub(crate) const RECALL: u8 = b'M';
pub(crate) const LOCKS: u8 = b'K';
pub(crate) const COPIES: u8 = b'R';
pub(crate) const TAKEN: u8 = b'T';
pub(crate) const NODE_STATUS: u8 = b'E';
pub(crate) const ORDER: u8 = b'C';
pub(crate) const TIMES: u8 = b'W';
pub(crate) const IMPORTS: u8 = b'V';
pub(crate) const SPLIT: u8 = b'P';
pub(crate) const WAITING: u8 = b'Y';

/// Whether a partition belongs to directories, so that one node may have it for itself for a while.
pub(crate) fn may_be_leased(partition: u16) -> bool {
    partition < GATHERED
}

/// Whether a change is acted upon outside of its partition: by other nodes, or in the backing store.
/// Then all that was committed before must have arrived at the servers.
pub(crate) fn is_for_others(write: &Write) -> bool {
    match write.key().bytes().first() {
        // What begins with a zero belongs to transactions over several partitions.
        None | Some(&(0 | COPIES | TAKEN)) => true,
        Some(&WORK) => matches!(write, Write::Put(..)),
        // With these a directory's entries come to be elsewhere, or are gone.
        Some(&TIMES) => matches!(write, Write::Delete(_)),
        Some(_) => false,
    }
}

/// Where keys lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// For an engine that commits over any partitions at no more cost: the backlog and all marks in
    /// partition 0, the entries of a directory, with the inodes created in it, in a partition by
    /// the hash of its number.
    Central,
    /// For an engine to which one partition is one round trip: a directory has a partition of its
    /// own with its record, its entries and the files created in it, and marks lie beside the
    /// records from which they follow. Then what is done to a file concerns one partition.
    Gathered,
}

impl Layout {
    /// The version of the store's format.
    pub fn version(self) -> u32 {
        match self {
            Layout::Central => 4,
            Layout::Gathered => 5,
        }
    }

    /// Whether a store of an earlier version is one of this as it stands.
    pub fn takes(self, version: u32) -> bool {
        match self {
            // What came with 4 are names as keys of their own, which programs before it do not see.
            Layout::Central => version == 1,
            // What came with 3 are leases and splits of directories, likewise, and `NODES`; with 5
            // what came with 4.
            Layout::Gathered => matches!(version, 2 | 3),
        }
    }

    /// The partition in which a directory's entry of this hash, and the file created under its name,
    /// live.
    pub fn entry_partition(self, dir: Ino, spread: Spread, hash: u64) -> u16 {
        match (self, spread) {
            (Layout::Central, _) => xxhash_rust::xxh3::xxh3_64(&dir.0.to_be_bytes()) as u16,
            (Layout::Gathered, Spread::Split) => bucket_partition(dir, bucket_of(hash)),
            (Layout::Gathered, _) => dir.partition(),
        }
    }

    /// All partitions with entries of a directory, in the order of the entries' hashes.
    pub fn entries_partitions(self, dir: Ino, spread: Spread) -> Vec<u16> {
        match spread {
            Spread::Split => (0..BUCKETS).map(|bucket| bucket_partition(dir, bucket)).collect(),
            _ => vec![self.entry_partition(dir, spread, 0)],
        }
    }

    /// The partitions in which an entry or a stale name of this hash may lie. While the directory has a
    /// record it is one; of a directory without one nobody knows whether it was split.
    pub fn possible_partitions(
        self,
        dir: Ino,
        spread: Option<Spread>,
        hash: u64,
    ) -> SmallVec<[u16; 2]> {
        let at = |spread| self.entry_partition(dir, spread, hash);
        match spread {
            Some(spread) => smallvec![at(spread)],
            None if self.may_have_been_split(dir) => {
                smallvec![at(Spread::Whole), at(Spread::Split)]
            }
            None => smallvec![at(Spread::Whole)],
        }
    }

    /// As [`Layout::possible_partitions`], those of all names.
    pub fn all_possible_partitions(self, dir: Ino, spread: Option<Spread>) -> Vec<u16> {
        let mut partitions = self.entries_partitions(dir, spread.unwrap_or(Spread::Whole));
        if spread.is_none() && self.may_have_been_split(dir) {
            partitions.extend(self.entries_partitions(dir, Spread::Split));
        }
        partitions
    }

    fn may_have_been_split(self, dir: Ino) -> bool {
        self == Layout::Gathered && dir > LAST_FIXED
    }

    /// The partition of a new inode whose entry lies in `beside`.
    pub fn birthplace(self, beside: u16, kind: FileKind, sequence: u64) -> u16 {
        match (self, kind) {
            (Layout::Gathered, FileKind::Directory) => {
                xxhash_rust::xxh3::xxh3_64(&sequence.to_be_bytes()) as u16 % GATHERED
            }
            _ => beside,
        }
    }

    fn marks_partition(self, ino: Ino) -> u16 {
        match self {
            Layout::Central => GLOBAL,
            Layout::Gathered => ino.partition(),
        }
    }

    pub fn queue(self, ino: Ino, seq: Seq) -> Key {
        numbered(self.marks_partition(ino), QUEUE, seq.0)
    }

    pub fn orphan(self, ino: Ino) -> Key {
        numbered(self.marks_partition(ino), ORPHAN, ino.0)
    }
}

/// In which bucket of a split directory a name of this hash is.
pub(crate) fn bucket_of(hash: u64) -> u16 {
    ((hash >> BUCKET_SHIFT) as u16).min(BUCKETS - 1)
}

/// The partition of a bucket: never that of the directory's record, and no two are the same. At this
/// distance their slots are spread evenly over 2 or 4 servers.
pub(crate) fn bucket_partition(dir: Ino, bucket: u16) -> u16 {
    const DISTANCE: u16 = GATHERED / BUCKETS;
    (dir.partition() % GATHERED + DISTANCE / 2 + bucket * DISTANCE) % GATHERED
}

/// An entry of a directory.
pub(crate) fn entry(partition: u16, dir: Ino, name: &[u8]) -> Key {
    let mut key = entries(partition, dir);
    key.push(&name_hash(name).to_be_bytes());
    key.push(name);
    key
}

/// The prefix of a directory's entries in a partition.
pub(crate) fn entries(partition: u16, dir: Ino) -> Key {
    numbered(partition, ENTRY, dir.0)
}

/// Comes after all entries of a directory, and says that they are elsewhere.
pub(crate) fn moved(partition: u16, dir: Ino) -> Key {
    let mut key = entries(partition, dir);
    key.push(&u64::MAX.to_be_bytes());
    key
}

/// Several inodes may claim one backing name while workers are at it, so the key ends with the
/// inode.
pub(crate) fn stale_name(partition: u16, dir: Ino, name: &[u8], ino: Ino) -> Key {
    let mut key = stale_inodes_of_name(partition, dir, name);
    key.push(&ino.0.to_be_bytes());
    key
}

/// The prefix of the stale names of one name (and of longer names of the same hash).
pub(crate) fn stale_inodes_of_name(partition: u16, dir: Ino, name: &[u8]) -> Key {
    let mut key = stale_names(partition, dir);
    key.push(&name_hash(name).to_be_bytes());
    key.push(name);
    key
}

/// The prefix of a directory's stale names in a partition.
pub(crate) fn stale_names(partition: u16, dir: Ino) -> Key {
    numbered(partition, STALE_NAME, dir.0)
}

/// When entries of a directory in this partition were last changed.
pub(crate) fn times(partition: u16, dir: Ino) -> Key {
    numbered(partition, TIMES, dir.0)
}

/// Which import into this partition of a directory was the last.
pub(crate) fn imports(partition: u16, dir: Ino) -> Key {
    numbered(partition, IMPORTS, dir.0)
}

/// A directory whose split is under way.
pub(crate) fn split(dir: Ino) -> Key {
    numbered(GLOBAL, SPLIT, dir.0)
}

/// The prefix of all splits under way.
pub(crate) fn splits() -> Key {
    Key::new(GLOBAL, &[SPLIT])
}

/// The stable 62-bit hash (XXH3) by which a directory's entries are ordered.
pub(crate) fn name_hash(name: &[u8]) -> u64 {
    (xxhash_rust::xxh3::xxh3_64(name) >> 2).max(MIN_HASH)
}

fn numbered(partition: u16, tag: u8, number: u64) -> Key {
    let mut bytes = [0; 9];
    bytes[0] = tag;
    bytes[1..].copy_from_slice(&number.to_be_bytes());
    Key::new(partition, &bytes)
}

pub(crate) fn record(ino: Ino) -> Key {
    numbered(ino.partition(), RECORD, ino.0)
}

pub(crate) fn xattr(ino: Ino, name: &[u8]) -> Key {
    let mut key = numbered(ino.partition(), XATTR, ino.0);
    key.push(name);
    key
}

/// One of many names of a file.
pub(crate) fn name(ino: Ino, link: &Link) -> Key {
    let mut key = names(ino);
    key.push(&link.parent.0.to_be_bytes());
    key.push(&link.name);
    key
}

/// The prefix of the names of a file that has many.
pub(crate) fn names(ino: Ino) -> Key {
    numbered(ino.partition(), NAME, ino.0)
}

/// The name in the bytes of such a key.
pub(crate) fn name_of(bytes: &[u8]) -> Option<Link> {
    let parent = u64::from_be_bytes(bytes.get(9..17)?.try_into().ok()?);
    Some(Link::new(Ino(parent), bytes.get(17..)?))
}

pub(crate) fn hard_link(backing_ino: u64) -> Key {
    numbered(GLOBAL, HARD_LINK, backing_ino)
}

pub(crate) fn member(node: u16) -> Key {
    numbered(NODES, MEMBER, node.into())
}

/// The prefix of all nodes.
pub(crate) fn members() -> Key {
    Key::new(NODES, &[MEMBER])
}

/// What a node has to bring to the backing store.
pub(crate) fn node_status(node: u16) -> Key {
    numbered(NODES, NODE_STATUS, node.into())
}

/// The prefix of that of all nodes.
pub(crate) fn node_statuses() -> Key {
    Key::new(NODES, &[NODE_STATUS])
}

/// The order to leave.
pub(crate) fn order(node: u16) -> Key {
    numbered(NODES, ORDER, node.into())
}

/// The prefix of the orders of all nodes.
pub(crate) fn orders() -> Key {
    Key::new(NODES, &[ORDER])
}

/// Programs of a node wait for locks of a file.
pub(crate) fn waiting(node: u16, ino: Ino) -> Key {
    let mut key = waiting_on(node);
    key.push(&ino.0.to_be_bytes());
    key
}

/// The prefix of the files for which programs of a node wait.
pub(crate) fn waiting_on(node: u16) -> Key {
    numbered(NODES, WAITING, node.into())
}

/// The prefix of those of all nodes.
pub(crate) fn all_waiting() -> Key {
    Key::new(NODES, &[WAITING])
}

/// The inode in the bytes of such a key.
pub(crate) fn waiting_for(bytes: &[u8]) -> Option<Ino> {
    Some(Ino(u64::from_be_bytes(bytes.get(9..17)?.try_into().ok()?)))
}

/// Who works on an inode.
pub(crate) fn work(ino: Ino) -> Key {
    numbered(ino.partition(), WORK, ino.0)
}

/// What programs have locked of a file.
pub(crate) fn locks(ino: Ino) -> Key {
    numbered(ino.partition(), LOCKS, ino.0)
}

/// What other nodes keep of a file.
pub(crate) fn copies(ino: Ino) -> Key {
    numbered(ino.partition(), COPIES, ino.0)
}

/// Says that a file was taken over from a node, whose bytes of it do not count any more.
pub(crate) fn taken(ino: Ino, node: u16) -> Key {
    let mut key = numbered(ino.partition(), TAKEN, ino.0);
    key.push(&node.to_be_bytes());
    key
}

/// The prefix of what a node is asked for. Each node has a partition to itself for that, beyond
/// those of directories, so that its stamp tells whether there are requests.
pub(crate) fn recall_queue(node: u16) -> Key {
    numbered(GATHERED | (node % GATHERED), RECALL, node.into())
}

/// What `asker` asks a node for about an inode.
pub(crate) fn recall(node: u16, ino: Ino, asker: u16) -> Key {
    let mut key = recall_queue(node);
    key.push(&ino.0.to_be_bytes());
    key.push(&asker.to_be_bytes());
    key
}

/// The inode and the asker, in the bytes of a recall's key.
pub(crate) fn recall_parts(bytes: &[u8]) -> Option<(Ino, u16)> {
    let ino = u64::from_be_bytes(bytes.get(9..17)?.try_into().ok()?);
    Some((Ino(ino), u16::from_be_bytes(bytes.get(17..19)?.try_into().ok()?)))
}

pub(crate) fn setting(name: &str) -> Key {
    let mut key = Key::new(GLOBAL, &[SETTING]);
    key.push(name.as_bytes());
    key
}

/// The number after the tag, in the bytes of a key.
pub(crate) fn number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(1..9)?.try_into().ok()?))
}

/// The hash and the name, in the bytes of an entry's key.
pub(crate) fn entry_name(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let hash = u64::from_be_bytes(bytes.get(9..17)?.try_into().ok()?);
    Some((hash, bytes.get(17..)?))
}

/// The name and the inode, in the bytes of a stale name's key.
pub(crate) fn stale_name_parts(bytes: &[u8]) -> Option<(&[u8], Ino)> {
    let (rest, ino) = bytes.split_last_chunk::<8>()?;
    Some((rest.get(17..)?, Ino(u64::from_be_bytes(*ino))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_hash_leaves_room_for_dots_and_fits_62_bits() {
        for n in 0..10_000u32 {
            let hash = name_hash(&n.to_le_bytes());
            assert!((MIN_HASH..1 << 62).contains(&hash));
        }
    }

    #[test]
    fn entry_key_when_taken_apart_gives_directory_hash_and_name() {
        let key = entry(9, Ino(77), b"a name");
        assert_eq!(number(key.bytes()), Some(77));
        assert_eq!(entry_name(key.bytes()), Some((name_hash(b"a name"), &b"a name"[..])));
        assert!(key.raw().starts_with(entries(9, Ino(77)).raw()));
    }

    #[test]
    fn buckets_then_follow_each_other_in_the_order_of_hashes_and_never_share_a_partition() {
        for home in [0, 511, 512, 1024, 9000, GATHERED - 1] {
            let dir = Ino(u64::from(home) << Ino::SEQUENCE_BITS | 7);
            let partitions = Layout::Gathered.entries_partitions(dir, Spread::Split);
            let mut distinct = partitions.clone();
            distinct.push(home);
            distinct.sort_unstable();
            distinct.dedup();
            assert_eq!(distinct.len(), usize::from(BUCKETS) + 1);
            assert!(distinct.iter().all(|partition| *partition < GATHERED));
            for n in 0..1000u32 {
                let hash = name_hash(&n.to_le_bytes());
                let at = Layout::Gathered.entry_partition(dir, Spread::Split, hash);
                assert_eq!(at, partitions[(hash >> 58) as usize]);
            }
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn keys_of_different_things_never_meet() {
        let dir = Ino(5);
        for layout in [Layout::Central, Layout::Gathered] {
            let at = layout.entry_partition(dir, Spread::Whole, 0);
            let all = [
                record(dir),
                xattr(dir, b""),
                name(dir, &Link::new(dir, *b"")),
                entry(at, dir, b""),
                stale_name(at, dir, b"", dir),
                moved(at, dir),
                times(at, dir),
                imports(at, dir),
                split(dir),
                layout.queue(dir, Seq(5)),
                layout.orphan(dir),
                hard_link(5),
                setting("5"),
                member(5),
                work(dir),
                locks(dir),
                copies(dir),
                taken(dir, 5),
                node_status(5),
                order(5),
                waiting(5, dir),
                recall(5, dir, 5),
            ];
            for (i, a) in all.iter().enumerate() {
                assert!(all[i + 1..].iter().all(|b| a != b));
            }
        }
    }
}
