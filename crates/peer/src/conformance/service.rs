//! A service whose answers are known in advance.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::body::{Body, FileRange};
use crate::buffer::Buffer;
use crate::message::{
    Conflict, Fault, Hello, Load, LockKind, LockOp, ObjectId, Position, Presence, Put, Read,
    ReadMap, Recall, Sync, Truncate, Write, WriteBack, Written,
};
use crate::service::{Call, Found, Service};

/// Inodes from here on are answered after so many milliseconds as they are larger.
pub const SLOW: u64 = 1 << 32;
/// This inode's bytes come from a file.
pub const IN_FILE: u64 = 1 << 33;
/// This inode's bytes come from a file that is shorter than was promised.
pub const SHORT_FILE: u64 = (1 << 33) + 1;
/// All files are of this version.
pub const VERSION: u64 = 7;

/// Answers reads by a formula, and keeps in memory what it is given.
#[derive(Debug, Default)]
pub struct Known {
    /// Writes carried out.
    pub writes: AtomicU64,
    /// Reads carried out.
    pub reads: AtomicU64,
    /// Calls that were cancelled while they were slow.
    pub cancelled: AtomicU64,
    /// Connections that ended.
    pub connection_ended: AtomicU64,
    /// Calls that are slow at this moment.
    pub waiting: AtomicU64,
    /// The version of the protocol in which the last read came.
    pub version: AtomicU64,
    files: Mutex<BTreeMap<u64, Vec<u8>>>,
    objects: Mutex<BTreeMap<(u64, u32), Vec<u8>>>,
}

/// The byte of `ino` at `offset`.
pub fn byte(ino: u64, offset: u64) -> u8 {
    (ino.wrapping_mul(131) ^ offset.wrapping_mul(0x9e37_79b9) >> 7) as u8
}

/// The bytes of `ino` from `offset` on.
pub fn bytes(ino: u64, offset: u64, len: u32) -> Vec<u8> {
    (offset..offset + u64::from(len)).map(|at| byte(ino, at)).collect()
}

impl Known {
    /// What an object consists of.
    pub fn object(&self, object: &ObjectId) -> Option<Vec<u8>> {
        self.objects.lock().get(&(object.ino, object.part)).cloned()
    }

    fn delay(&self, call: &Call, ino: u64) -> Result<(), Fault> {
        if !(SLOW..IN_FILE).contains(&ino) {
            return Ok(());
        }
        let end = Instant::now() + Duration::from_millis(ino - SLOW);
        self.waiting.fetch_add(1, Ordering::AcqRel);
        while Instant::now() < end && !call.cancelled() {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        match call.cancelled() {
            true => {
                self.cancelled.fetch_add(1, Ordering::AcqRel);
                Err(Fault::Cancelled)
            }
            false => Ok(()),
        }
    }
}

fn file_of(read: &Read, len: u32) -> Result<Body, Fault> {
    let failed = |error: std::io::Error| Fault::Io { errno: error.raw_os_error().unwrap_or(5) };
    let path = std::env::temp_dir().join(format!(
        "forebay-peer-{}-{}-{}",
        std::process::id(),
        read.ino,
        read.offset
    ));
    let mut options = std::fs::OpenOptions::new();
    let mut file =
        options.read(true).write(true).create(true).truncate(true).open(&path).map_err(failed)?;
    std::fs::remove_file(&path).map_err(failed)?;
    let before = read.offset.min(100);
    file.write_all(&bytes(read.ino, read.offset - before, len + before as u32)).map_err(failed)?;
    Ok(Body::File(FileRange { file: Arc::new(file), offset: before, len: read.len }))
}

impl Service for Known {
    fn admit(&self, who: &Hello) -> Result<(), String> {
        match who.epoch {
            0 => Err("this incarnation is fenced".into()),
            _ => Ok(()),
        }
    }

    fn connection_ended(&self, _who: &Hello, _connection: u64) {
        self.connection_ended.fetch_add(1, Ordering::AcqRel);
    }

    fn load(&self) -> Load {
        Load { calls: 3, bytes: 4, free: 5 }
    }

    fn read(&self, call: &Call, read: &Read) -> Result<Found, Fault> {
        self.version.store(call.version.into(), Ordering::Release);
        self.delay(call, read.ino)?;
        self.reads.fetch_add(1, Ordering::AcqRel);
        if read.version.is_some_and(|wanted| wanted != VERSION) {
            return Err(Fault::Stale { version: VERSION });
        }
        let body = match read.ino {
            0 => return Err(Fault::NotHere),
            IN_FILE => file_of(read, read.len)?,
            SHORT_FILE => file_of(read, read.len / 2)?,
            ino => Body::Bytes(bytes(ino, read.offset, read.len)),
        };
        Ok(Found { version: VERSION, body })
    }

    fn read_map(&self, _call: &Call, map: &ReadMap) -> Result<Presence, Fault> {
        let runs = (0..3).map(|at| (map.from + at * 100, 10)).collect();
        Ok(Presence { version: VERSION, size: 1000, runs, next: Some(300) })
    }

    fn write_back(&self, call: &Call, what: &WriteBack) -> Result<(), Fault> {
        self.delay(call, what.ino)
    }

    fn write(&self, call: &Call, write: &Write, bytes: Buffer) -> Result<Written, Fault> {
        let done = self.writes.fetch_add(1, Ordering::AcqRel) + 1;
        let (offset, size) = {
            let mut files = self.files.lock();
            let file = files.entry(write.ino).or_default();
            let offset = match write.at {
                Position::At(offset) => offset as usize,
                Position::End => file.len(),
            };
            let end = offset + bytes.len();
            if file.len() < end {
                file.resize(end, 0);
            }
            file[offset..end].copy_from_slice(&bytes);
            (offset as u64, file.len() as u64)
        };
        self.delay(call, write.ino)?;
        Ok(Written { offset, size, version: done })
    }

    fn truncate(&self, _call: &Call, truncate: &Truncate) -> Result<(), Fault> {
        let mut files = self.files.lock();
        let file = files.get_mut(&truncate.ino).ok_or(Fault::NotOwner { owner: Some(9) })?;
        file.resize(truncate.size as usize, 0);
        Ok(())
    }

    fn sync(&self, _call: &Call, sync: &Sync) -> Result<(), Fault> {
        match sync.epoch {
            1 => Ok(()),
            _ => Err(Fault::WrongEpoch { epoch: 1 }),
        }
    }

    fn recall(&self, call: &Call, recall: &Recall) -> Result<(), Fault> {
        self.delay(call, recall.ino)
    }

    fn lock(&self, _call: &Call, lock: &LockOp) -> Result<Option<Conflict>, Fault> {
        match lock.kind {
            LockKind::Unlock => Ok(None),
            LockKind::Test => Ok(Some(Conflict {
                node: 4,
                pid: lock.pid,
                exclusive: true,
                start: lock.start,
                end: lock.end,
            })),
            LockKind::Shared | LockKind::Exclusive => Err(Fault::Locked),
        }
    }

    fn put(&self, _call: &Call, put: &Put, bytes: Buffer) -> Result<(), Fault> {
        let mut objects = self.objects.lock();
        let object = objects.entry((put.object.ino, put.object.part)).or_default();
        object.resize(put.total as usize, 0);
        object[put.offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        Ok(())
    }

    fn drop_object(&self, _call: &Call, object: &ObjectId) -> Result<(), Fault> {
        self.objects.lock().remove(&(object.ino, object.part));
        Ok(())
    }

    fn other(&self, _call: &Call, kind: u32, bytes: Buffer) -> Result<Body, Fault> {
        match kind {
            1 => Ok(Body::Buffer(bytes)),
            2 => panic!("a defect of the service, for the test of what becomes of it"),
            _ => Err(Fault::Unsupported),
        }
    }
}
