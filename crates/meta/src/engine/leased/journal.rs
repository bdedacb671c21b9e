//! What was committed under leases and has not been shipped yet, in files: so that the death of the
//! process loses none of it. The next one finds it and ships it.
//!
//! A file is a sequence of frames: the length of the rest (4 bytes), its checksum (XXH3-64, 8 bytes),
//! and a message. A torn frame at the end was never acknowledged. When a file has grown, another one
//! is begun, and the old one is removed as soon as all in it has been shipped or given back.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use prost::Message;

use crate::engine::{Key, Write};

/// A file that has grown to this is followed by another.
const FILE_BYTES: u64 = 4 << 20;
/// What could not be shipped is kept up to this.
const REFUSED_BYTES: u64 = 64 << 20;
const LOCK: &str = "lock";
pub(super) const REFUSED: &str = "refused";
const HEADER: usize = 12;

/// One frame.
#[derive(Clone, PartialEq, Message)]
struct PbFrame {
    #[prost(uint32, tag = "1")]
    partition: u32,
    #[prost(string, tag = "2")]
    lease: String,
    /// A transaction, if `writes` are given; else so many have been shipped.
    #[prost(uint64, tag = "3")]
    number: u64,
    #[prost(message, repeated, tag = "4")]
    writes: Vec<PbWrite>,
    /// The lease was given back, or is known to be broken.
    #[prost(bool, tag = "5")]
    ended: bool,
}

#[derive(Clone, PartialEq, Message)]
struct PbWrite {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    /// Absent for a removal.
    #[prost(bytes = "vec", optional, tag = "2")]
    value: Option<Vec<u8>>,
}

impl PbWrite {
    fn of(write: &Write) -> Self {
        match write {
            Write::Put(key, value) => {
                PbWrite { key: key.bytes().to_vec(), value: Some(value.clone()) }
            }
            Write::Delete(key) => PbWrite { key: key.bytes().to_vec(), value: None },
        }
    }

    fn into_write(self, partition: u16) -> Write {
        let key = Key::new(partition, &self.key);
        match self.value {
            Some(value) => Write::Put(key, value),
            None => Write::Delete(key),
        }
    }
}

/// A lease that an earlier process had.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Left {
    pub lease: String,
    /// Transactions that had been shipped, as far as it knew.
    pub shipped: u64,
    /// Those after that, by number.
    pub transactions: BTreeMap<u64, Vec<Write>>,
}

/// The files of one process.
pub(super) struct Journal {
    dir: PathBuf,
    /// Keeps other processes away as long as it is open.
    _lock: File,
    number: u64,
    file: File,
    length: u64,
    /// The last transaction of each lease in the file.
    last: HashMap<u16, u64>,
    /// As `last`, of earlier files that are still needed.
    earlier: Vec<(PathBuf, HashMap<u16, u64>)>,
    leases: HashMap<u16, String>,
}

impl Journal {
    /// Opens the journal in a directory and reads what an earlier process left there; `None` if
    /// another process has it.
    pub fn open(dir: &Path) -> io::Result<Option<(Self, BTreeMap<u16, Left>)>> {
        std::fs::create_dir_all(dir)?;
        let mut options = OpenOptions::new();
        let lock = options.create(true).truncate(false).write(true).open(dir.join(LOCK))?;
        let taken = rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive);
        match taken {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let mut left = BTreeMap::new();
        let files = files_of(dir)?;
        for path in files.values() {
            read(&std::fs::read(path)?, &mut left);
        }
        let number = files.last_key_value().map_or(0, |(number, _)| *number) + 1;
        let file = create(dir, number)?;
        // They go once the caller has seen to what is in them.
        let earlier = files.into_values().map(|path| {
            let last = left.iter().map(|(partition, left): (&u16, &Left)| {
                let last = left.transactions.last_key_value().map_or(0, |(number, _)| *number);
                (*partition, last)
            });
            (path, last.collect())
        });
        let journal = Journal {
            earlier: earlier.collect(),
            dir: dir.to_path_buf(),
            _lock: lock,
            number,
            file,
            length: 0,
            last: HashMap::new(),
            leases: left.iter().map(|(at, left)| (*at, left.lease.clone())).collect(),
        };
        Ok(Some((journal, left)))
    }

    /// A lease is about to be taken.
    pub fn take(&mut self, partition: u16, lease: &str) -> io::Result<()> {
        self.append(&frame(partition, lease, 0))?;
        self.leases.insert(partition, lease.to_string());
        Ok(())
    }

    /// A transaction is about to be committed.
    pub fn commit(
        &mut self,
        partition: u16,
        lease: &str,
        number: u64,
        writes: &[Write],
    ) -> io::Result<()> {
        let writes = writes.iter().map(PbWrite::of).collect();
        self.append(&PbFrame { writes, ..frame(partition, lease, number) })?;
        self.last.insert(partition, number);
        if self.length >= FILE_BYTES {
            self.begin_another();
        }
        Ok(())
    }

    /// All up to a transaction has been shipped.
    pub fn shipped(&mut self, partition: u16, lease: &str, number: u64) {
        // Without it the next process asks the servers.
        let _ = self.append(&frame(partition, lease, number));
        self.forget(|at, last| at == partition && last <= number);
    }

    /// The lease was given back, or is known to be broken. Another one of its partition that was taken
    /// since goes on.
    pub fn ended(&mut self, partition: u16, lease: &str) {
        if self.leases.get(&partition).is_none_or(|known| known != lease) {
            return;
        }
        let _ = self.append(&PbFrame { ended: true, ..frame(partition, lease, 0) });
        self.leases.remove(&partition);
        self.forget(|at, _| at == partition);
        if self.leases.is_empty() && self.length >= FILE_BYTES / 4 {
            self.begin_another();
            self.forget(|_, _| false);
        }
    }

    /// Keeps what the servers do not take any more for people to look at; where.
    pub fn refuse(&self, partition: u16, lease: &str, transactions: &[Vec<Write>]) -> PathBuf {
        let path = self.dir.join(REFUSED);
        let keep = || -> io::Result<()> {
            let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
            for writes in transactions {
                if file.metadata()?.len() > REFUSED_BYTES {
                    break;
                }
                let writes = writes.iter().map(PbWrite::of).collect();
                file.write_all(&packed(&PbFrame { writes, ..frame(partition, lease, 0) }))?;
            }
            file.sync_all()
        };
        if let Err(error) = keep() {
            tracing::error!(%error, "can't keep a copy of changes that the servers refused");
        }
        path
    }

    /// Takes the files away, if nothing in them is needed.
    pub fn close(mut self) {
        if self.leases.is_empty() {
            self.forget(|_, _| true);
            // What stays is read once more by the next process, and found to be over.
            let _ = std::fs::remove_file(path_of(&self.dir, self.number));
        }
    }

    fn append(&mut self, frame: &PbFrame) -> io::Result<()> {
        let packed = packed(frame);
        match self.file.write_all(&packed) {
            Ok(()) => {
                self.length += packed.len() as u64;
                Ok(())
            }
            Err(error) => {
                // Half a frame would hide those after it.
                self.file.set_len(self.length)?;
                Err(error)
            }
        }
    }

    fn begin_another(&mut self) {
        let file = match create(&self.dir, self.number + 1) {
            Ok(file) => file,
            Err(error) => {
                tracing::warn!(%error, "the journal of leases goes on in its old file");
                return;
            }
        };
        let before = (path_of(&self.dir, self.number), std::mem::take(&mut self.last));
        self.earlier.push(before);
        self.number += 1;
        (self.file, self.length) = (file, 0);
        let known: Vec<_> = self.leases.iter().map(|(at, lease)| frame(*at, lease, 0)).collect();
        for frame in known {
            // If it is not known after a death, the lease is broken when its time has come.
            let _ = self.append(&frame);
        }
        self.forget(|_, _| false);
    }

    fn forget(&mut self, is_over: impl Fn(u16, u64) -> bool) {
        self.last.retain(|at, last| !is_over(*at, *last));
        self.earlier.retain_mut(|(path, needed)| {
            needed.retain(|at, last| !is_over(*at, *last));
            if needed.is_empty()
                && let Err(error) = std::fs::remove_file(&*path)
            {
                tracing::debug!(%error, "a journal of leases stays");
            }
            !needed.is_empty()
        });
    }
}

fn frame(partition: u16, lease: &str, number: u64) -> PbFrame {
    let lease = lease.to_string();
    PbFrame { partition: partition.into(), lease, number, ..PbFrame::default() }
}

fn packed(frame: &PbFrame) -> Vec<u8> {
    let mut packed = vec![0; HEADER];
    // A vector has room for all.
    let _ = frame.encode(&mut packed);
    let length = (packed.len() - HEADER) as u32;
    let checksum = xxhash_rust::xxh3::xxh3_64(&packed[HEADER..]);
    packed[..4].copy_from_slice(&length.to_le_bytes());
    packed[4..HEADER].copy_from_slice(&checksum.to_le_bytes());
    packed
}

fn path_of(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:016x}"))
}

fn create(dir: &Path, number: u64) -> io::Result<File> {
    let file = OpenOptions::new().create(true).append(true).open(path_of(dir, number))?;
    file.set_len(0)?;
    Ok(file)
}

/// The files that are there, by number.
fn files_of(dir: &Path) -> io::Result<BTreeMap<u64, PathBuf>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).filter(|name| name.len() == 16);
        if let Some(number) = name.and_then(|name| u64::from_str_radix(name, 16).ok()) {
            files.insert(number, path);
        }
    }
    Ok(files)
}

/// Reads frames up to the first that is not whole.
fn read(mut bytes: &[u8], into: &mut BTreeMap<u16, Left>) {
    while let Some((header, rest)) = bytes.split_at_checked(HEADER) {
        let length = u32::from_le_bytes(header[..4].try_into().unwrap_or_default()) as usize;
        let checksum = u64::from_le_bytes(header[4..].try_into().unwrap_or_default());
        let Some((message, after)) = rest.split_at_checked(length) else { return };
        if xxhash_rust::xxh3::xxh3_64(message) != checksum {
            return;
        }
        let Ok(frame) = PbFrame::decode(message) else { return };
        learn(frame, into);
        bytes = after;
    }
}

fn learn(frame: PbFrame, into: &mut BTreeMap<u16, Left>) {
    let Ok(partition) = u16::try_from(frame.partition) else { return };
    let left = into.entry(partition).or_default();
    if left.lease != frame.lease {
        *left = Left { lease: frame.lease, ..Left::default() };
    }
    if frame.ended {
        into.remove(&partition);
    } else if frame.writes.is_empty() {
        left.shipped = left.shipped.max(frame.number);
        left.transactions = left.transactions.split_off(&(left.shipped + 1));
    } else {
        let writes = frame.writes.into_iter().map(|write| write.into_write(partition)).collect();
        left.transactions.insert(frame.number, writes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(partition: u16, key: u8) -> Vec<Write> {
        vec![
            Write::Put(Key::new(partition, &[key]), vec![key; 100]),
            Write::Delete(Key::new(partition, &[key + 100])),
        ]
    }

    fn left_in(dir: &Path) -> BTreeMap<u16, Left> {
        Journal::open(dir).unwrap().unwrap().1
    }

    #[test]
    fn journal_when_the_process_dies_then_the_next_finds_what_was_not_shipped() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, left) = Journal::open(dir.path()).unwrap().unwrap();
        assert!(left.is_empty());
        assert!(Journal::open(dir.path()).unwrap().is_none(), "it is in use");
        for (partition, lease) in [(3, "a"), (4, "b"), (5, "c")] {
            journal.take(partition, lease).unwrap();
            for n in 1..=4u8 {
                journal.commit(partition, lease, n.into(), &put(partition, n)).unwrap();
            }
        }
        journal.shipped(3, "a", 2);
        journal.ended(4, "b");
        drop(journal);
        let expected = |lease: &str, partition, from: u8| Left {
            lease: lease.into(),
            shipped: u64::from(from) - 1,
            transactions: (from..=4).map(|n| (n.into(), put(partition, n))).collect(),
        };
        let all = BTreeMap::from([(3, expected("a", 3, 3)), (5, expected("c", 5, 1))]);
        assert_eq!(left_in(dir.path()), all);
        // One that dies before it has done anything leaves all as it was.
        assert_eq!(left_in(dir.path()), all);
        let (mut journal, _) = Journal::open(dir.path()).unwrap().unwrap();
        journal.ended(3, "a");
        journal.ended(5, "c");
        journal.close();
        assert!(left_in(dir.path()).is_empty());
    }

    #[test]
    fn journal_when_its_end_is_torn_then_all_before_counts() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(dir.path()).unwrap().unwrap();
        journal.take(3, "a").unwrap();
        journal.commit(3, "a", 1, &put(3, 1)).unwrap();
        let whole = journal.length;
        journal.commit(3, "a", 2, &put(3, 2)).unwrap();
        let (end, path) = (journal.length, path_of(dir.path(), journal.number));
        drop(journal);
        for length in (whole..end).rev().step_by(7) {
            File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
            let left = left_in(dir.path());
            assert_eq!(left[&3].transactions.keys().copied().collect::<Vec<_>>(), [1]);
        }
    }

    #[test]
    fn journal_when_much_is_shipped_then_its_files_stay_few() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(dir.path()).unwrap().unwrap();
        for partition in [3, 4] {
            journal.take(partition, "a").unwrap();
        }
        let used = || -> u64 {
            files_of(dir.path()).unwrap().values().map(|path| path.metadata().unwrap().len()).sum()
        };
        for n in 1..=150_000u64 {
            for partition in [3, 4] {
                journal.commit(partition, "a", n, &put(partition, 1)).unwrap();
                if n % 100 == 0 {
                    journal.shipped(partition, "a", n);
                }
            }
            assert!(n % 1000 > 0 || used() < 3 * FILE_BYTES);
        }
        drop(journal);
        let left = left_in(dir.path());
        assert_eq!(left.len(), 2);
        assert!(left.values().all(|left| left.transactions.is_empty() && left.lease == "a"));
    }
}
