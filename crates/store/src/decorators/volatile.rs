//! A tier that loses on a crash what was not synced.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::{
    AllocateMode, Attributes, Believed, Bytes, Header, LeaseGuard, Object, Presence, Result, Tier,
    TierId, TierLock, TierUsage, Timestamp,
};

/// How to take back one change of an object.
enum Undo {
    /// These bytes stood here.
    Bytes(u64, Vec<u8>),
    /// The object had this length.
    Len(u64),
    /// This was the header.
    Header(Box<Header>),
}

type Log = Arc<Mutex<Vec<Undo>>>;

/// A tier that forgets, at [`VolatileTier::crash`], the changes to bytes, lengths and headers since
/// the last sync of each object (a sync of data only keeps bytes and lengths durable, not the
/// header). Keeps the bytes that were overwritten in memory until then: for tests with small
/// files. Creation and removal of objects and the presence maps are not volatile.
pub struct VolatileTier {
    inner: Arc<dyn Tier>,
    logs: Mutex<HashMap<u64, Log>>,
}

impl VolatileTier {
    /// Makes a tier forgetful.
    pub fn new(inner: Arc<dyn Tier>) -> Self {
        Self { inner, logs: Mutex::default() }
    }

    /// Takes back what was not synced. `survives` is asked for each change, latest first (by
    /// inode): a device may well have written some of it.
    pub fn crash(&self, survives: &mut dyn FnMut(u64) -> bool) -> Result<()> {
        for (ino, log) in self.logs.lock().drain() {
            let mut log = log.lock();
            let object = match self.inner.open(ino) {
                Ok(object) => object,
                Err(e) if e.errno() == libc::ENOENT => continue,
                Err(e) => return Err(e),
            };
            for undo in log.drain(..).rev().filter(|_| !survives(ino)) {
                match undo {
                    Undo::Bytes(offset, bytes) => write_all(&*object, &bytes, offset)?,
                    Undo::Len(len) => object.set_len(len)?,
                    Undo::Header(header) => object.set_header(&header)?,
                }
            }
        }
        Ok(())
    }

    fn wrap(&self, inner: Arc<dyn Object>) -> Arc<dyn Object> {
        let log = Arc::clone(self.logs.lock().entry(inner.ino()).or_default());
        Arc::new(VolatileObject { inner, log })
    }
}

fn write_all(object: &dyn Object, mut bytes: &[u8], mut offset: u64) -> Result<()> {
    while !bytes.is_empty() {
        let done = object.write_at(bytes, offset)?;
        bytes = &bytes[done..];
        offset += done as u64;
    }
    Ok(())
}

struct VolatileObject {
    inner: Arc<dyn Object>,
    log: Log,
}

impl VolatileObject {
    /// Remembers a range and the length, then changes them.
    fn change<T>(&self, offset: u64, len: u64, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut log = self.log.lock();
        let size = self.inner.len()?;
        let end = offset.saturating_add(len).min(size);
        let mut old = vec![0; end.saturating_sub(offset) as usize];
        let read = self.inner.read_at(&mut old, offset)?;
        old.truncate(read);
        let result = call();
        // Latest first: the length is restored before the bytes.
        log.push(Undo::Bytes(offset, old));
        log.push(Undo::Len(size));
        result
    }
}

impl Bytes for VolatileObject {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.inner.read_at(buffer, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        self.change(offset, data.len() as u64, || self.inner.write_at(data, offset))
    }
    fn sync(&self, data_only: bool) -> Result<()> {
        let mut log = self.log.lock();
        self.inner.sync(data_only)?;
        log.retain(|undo| data_only && matches!(undo, Undo::Header(_)));
        Ok(())
    }
    fn set_len(&self, len: u64) -> Result<()> {
        self.change(len, u64::MAX, || self.inner.set_len(len))
    }
    fn stat(&self) -> Result<Attributes> {
        self.inner.stat()
    }
    fn allocate(&self, offset: u64, len: u64, mode: AllocateMode) -> Result<()> {
        self.change(offset, len, || self.inner.allocate(offset, len, mode))
    }
    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.change(offset, len, || self.inner.punch(offset, len))
    }
    fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        self.inner.seek_data(offset)
    }
    fn seek_hole(&self, offset: u64) -> Result<Option<u64>> {
        self.inner.seek_hole(offset)
    }
    fn set_times(&self, atime: Option<Timestamp>, mtime: Option<Timestamp>) -> Result<()> {
        self.inner.set_times(atime, mtime)
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn label(&self) -> &Path {
        self.inner.label()
    }
}

impl Object for VolatileObject {
    fn ino(&self) -> u64 {
        self.inner.ino()
    }
    fn header(&self) -> Result<Header> {
        self.inner.header()
    }
    fn set_header(&self, header: &Header) -> Result<()> {
        let mut log = self.log.lock();
        let old = self.inner.header()?;
        self.inner.set_header(header)?;
        log.push(Undo::Header(Box::new(old)));
        Ok(())
    }
    fn exclusive(&self) -> Result<Option<LeaseGuard<'_>>> {
        self.inner.exclusive()
    }
}

impl Tier for VolatileTier {
    fn id(&self) -> TierId {
        self.inner.id()
    }
    fn path(&self) -> &Path {
        self.inner.path()
    }
    fn lock(&self) -> Result<TierLock> {
        self.inner.lock()
    }
    fn create(&self, ino: u64, header: &Header) -> Result<Arc<dyn Object>> {
        Ok(self.wrap(self.inner.create(ino, header)?))
    }
    fn adopt(&self, ino: u64, file: &Path, header: &Header) -> Result<Arc<dyn Object>> {
        Ok(self.wrap(self.inner.adopt(ino, file, header)?))
    }
    fn detach(&self, ino: u64, to: &Path) -> Result<()> {
        self.inner.detach(ino, to)?;
        self.logs.lock().remove(&ino);
        Ok(())
    }
    fn open(&self, ino: u64) -> Result<Arc<dyn Object>> {
        Ok(self.wrap(self.inner.open(ino)?))
    }
    fn stat(&self, ino: u64) -> Result<Attributes> {
        self.inner.stat(ino)
    }
    fn remove(&self, ino: u64) -> Result<()> {
        self.inner.remove(ino)?;
        self.logs.lock().remove(&ino);
        Ok(())
    }
    fn list(&self, each: &mut dyn FnMut(u64, Result<Header>) -> ControlFlow<()>) -> Result<()> {
        self.inner.list(each)
    }
    fn create_map(&self, ino: u64, extent_size: u64, size: u64) -> Result<Presence> {
        self.inner.create_map(ino, extent_size, size)
    }
    fn open_map(&self, ino: u64, believed: Believed) -> Result<Option<Presence>> {
        self.inner.open_map(ino, believed)
    }
    fn remove_map(&self, ino: u64) -> Result<()> {
        self.inner.remove_map(ino)
    }
    fn tells_stores(&self) -> bool {
        self.inner.tells_stores()
    }
    fn usage(&self) -> Result<TierUsage> {
        self.inner.usage()
    }
    fn sync_dir(&self, ino: u64) -> Result<()> {
        self.inner.sync_dir(ino)
    }
    fn settle_removals(&self, ino: u64) -> Result<()> {
        self.inner.settle_removals(ino)
    }
    fn sync(&self) -> Result<()> {
        let logs: Vec<Log> = self.logs.lock().values().cloned().collect();
        self.inner.sync()?;
        logs.iter().for_each(|log| log.lock().clear());
        Ok(())
    }
}
