//! One bounded pool of equal chunks of memory, aligned for direct I/O.

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Alignment that direct I/O asks of memory and offsets on every file system in use.
pub const ALIGNMENT: usize = 4096;

/// Of a chunk that becomes free when its last reader lets go of it.
const LEFT: u32 = 1 << 31;

/// Memory in equal chunks. It is mapped once and touched when first used, so that a limit that is
/// never reached costs nothing; huge pages are asked for. Some of the chunks may be set apart for
/// somebody who keeps account of them himself; the others are taken and given back.
pub struct Pool {
    base: NonNull<u8>,
    chunk_bytes: usize,
    chunks: usize,
    /// Chunks that somebody else keeps account of.
    apart: usize,
    free: Mutex<Vec<u32>>,
    /// Spans that there are of each chunk, and [`LEFT`].
    readers: Box<[AtomicU32]>,
    peak: AtomicUsize,
}

// SAFETY: the memory belongs to the pool, and each part of it to the one `Chunk` or the `Span`s that
// were handed out for it; the list of free ones is behind a lock.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("chunk_bytes", &self.chunk_bytes).finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool of at most `bytes`, in chunks of `chunk_bytes` (a multiple of [`ALIGNMENT`]).
    ///
    /// # Errors
    /// If not even one chunk fits, the chunk size is not aligned, or memory can not be mapped.
    pub fn new(bytes: u64, chunk_bytes: usize) -> io::Result<Arc<Self>> {
        Self::with_apart(bytes, chunk_bytes, 0)
    }

    /// The same, of which as many chunks as fill `apart` bytes, those with the lowest numbers, are not
    /// for [`Pool::take`].
    ///
    /// # Errors
    /// As [`Pool::new`], and if nothing is left then.
    pub(crate) fn with_apart(bytes: u64, chunk_bytes: usize, apart: u64) -> io::Result<Arc<Self>> {
        if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(ALIGNMENT) {
            return Err(io::Error::other(format!(
                "chunks of {chunk_bytes} bytes: must be a multiple of {ALIGNMENT}"
            )));
        }
        let chunks = usize::try_from(bytes / chunk_bytes as u64).unwrap_or(usize::MAX);
        let chunks = chunks.min(u32::MAX as usize);
        let apart = usize::try_from(apart / chunk_bytes as u64).unwrap_or(usize::MAX);
        if chunks <= apart {
            return Err(io::Error::other(format!(
                "{bytes} bytes of memory hold too few chunks of {chunk_bytes} bytes"
            )));
        }
        let length = chunks * chunk_bytes;
        let (protection, flags) = (
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
            rustix::mm::MapFlags::PRIVATE | rustix::mm::MapFlags::NORESERVE,
        );
        // SAFETY: a new anonymous mapping at an address that the kernel chooses.
        let base =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), length, protection, flags) }?;
        // SAFETY: the range was just mapped. Huge pages are a wish; without them all works.
        let _ = unsafe { rustix::mm::madvise(base, length, rustix::mm::Advice::LinuxHugepage) };
        let base = NonNull::new(base.cast()).expect("a successful mmap is not at address 0");
        let free = Mutex::new((apart as u32..chunks as u32).rev().collect());
        let readers = (0..chunks).map(|_| AtomicU32::new(0)).collect();
        Ok(Arc::new(Self { base, chunk_bytes, chunks, apart, free, readers, peak: 0.into() }))
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// Bytes of the whole pool.
    pub fn bytes(&self) -> u64 {
        self.chunks as u64 * self.chunk_bytes as u64
    }

    /// Chunks that are handed out, without those that are set apart.
    pub fn used(&self) -> usize {
        self.chunks - self.apart - self.free.lock().len()
    }

    /// Chunks that are set apart.
    pub(crate) fn apart(&self) -> usize {
        self.apart
    }

    /// Chunks that are free.
    pub fn free(&self) -> usize {
        self.free.lock().len()
    }

    /// The most chunks that were ever handed out at once.
    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// A chunk, if one is free. What is in it is left over from its last use.
    pub fn take(self: &Arc<Self>) -> Option<Chunk> {
        let index = self.take_index()?;
        let start = index as usize * self.chunk_bytes;
        let (pool, room) = (Arc::clone(self), self.chunk_bytes);
        Some(Chunk { pool, start, room, length: 0, index: Some(index) })
    }

    fn take_index(&self) -> Option<u32> {
        let mut free = self.free.lock();
        let index = free.pop()?;
        self.peak.fetch_max(self.chunks - self.apart - free.len(), Ordering::Relaxed);
        Some(index)
    }

    /// Whether there are spans of a chunk: then it must not be written where they are.
    pub(crate) fn is_read(&self, index: u32) -> bool {
        self.readers[index as usize].load(Ordering::Acquire) & !LEFT > 0
    }

    /// Another chunk in place of one that is set apart and is still read: that one is free as soon as
    /// its last span is gone. None if no chunk is free.
    pub(crate) fn exchange(&self, index: u32) -> Option<u32> {
        let other = self.take_index()?;
        if self.readers[index as usize].fetch_or(LEFT, Ordering::AcqRel) == 0 {
            self.readers[index as usize].store(0, Ordering::Release);
            self.free.lock().push(index);
        }
        Some(other)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let length = self.chunks * self.chunk_bytes;
        // SAFETY: the mapping was made with this length, and no chunk outlives its pool.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), length) };
    }
}

/// A part of the pool that one owner may write: a whole chunk, which goes back to the pool when
/// dropped, or a window of a chunk that somebody else keeps account of.
pub struct Chunk {
    pool: Arc<Pool>,
    start: usize,
    room: usize,
    length: usize,
    /// The chunk to give back.
    index: Option<u32>,
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({}, {} of {} bytes)", self.start, self.length, self.room)
    }
}

impl Chunk {
    /// Bytes from `from` to `to` of chunk `index` of a pool whose chunks are never taken by
    /// [`Pool::take`].
    ///
    /// # Safety
    /// As long as it lives, nobody else reads or writes these bytes.
    ///
    /// # Panics
    /// If they do not lie within the chunk.
    pub(crate) unsafe fn window(pool: &Arc<Pool>, index: u32, from: usize, to: usize) -> Self {
        assert!((index as usize) < pool.chunks && from <= to && to <= pool.chunk_bytes);
        let start = index as usize * pool.chunk_bytes + from;
        Self { pool: Arc::clone(pool), start, room: to - from, length: 0, index: None }
    }

    /// Its whole room.
    pub fn room(&mut self) -> &mut [u8] {
        // SAFETY: within the mapping, which is initialised (anonymous memory reads as zeros); this
        // is the only owner of these bytes.
        unsafe {
            std::slice::from_raw_parts_mut(self.pool.base.as_ptr().add(self.start), self.room)
        }
    }

    /// Says how many bytes of it are filled.
    ///
    /// # Panics
    /// If that is more than its room.
    pub fn set_len(&mut self, length: usize) {
        assert!(length <= self.room, "more bytes than the chunk has room for");
        self.length = length;
    }
}

impl AsRef<[u8]> for Chunk {
    /// What is filled.
    fn as_ref(&self) -> &[u8] {
        // SAFETY: as in `room`; writing needs the chunk to be borrowed mutably.
        unsafe { std::slice::from_raw_parts(self.pool.base.as_ptr().add(self.start), self.length) }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Some(index) = self.index {
            self.pool.free.lock().push(index);
        }
    }
}

/// Filled bytes of a pool: several may read them at once, and as long as somebody does, the pool says
/// so ([`Pool::is_read`]).
pub(crate) struct Span {
    pool: Arc<Pool>,
    index: u32,
    from: usize,
    length: usize,
}

impl Span {
    /// Bytes from `from` to `to` of chunk `index`.
    ///
    /// # Safety
    /// As long as it lives, nobody writes these bytes.
    ///
    /// # Panics
    /// If they do not lie within the chunk.
    pub(crate) unsafe fn new(pool: &Arc<Pool>, index: u32, from: usize, to: usize) -> Self {
        assert!((index as usize) < pool.chunks && from <= to && to <= pool.chunk_bytes);
        pool.readers[index as usize].fetch_add(1, Ordering::Relaxed);
        Self { pool: Arc::clone(pool), index, from, length: to - from }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        // Whoever writes the chunk next has seen this, and so comes after what was read.
        let readers = &self.pool.readers[self.index as usize];
        if readers.fetch_sub(1, Ordering::AcqRel) == LEFT | 1 {
            readers.store(0, Ordering::Release);
            self.pool.free.lock().push(self.index);
        }
    }
}

impl AsRef<[u8]> for Span {
    fn as_ref(&self) -> &[u8] {
        let start = self.index as usize * self.pool.chunk_bytes + self.from;
        // SAFETY: within the mapping, which is initialised; whoever made the span said that nobody
        // writes these bytes.
        unsafe { std::slice::from_raw_parts(self.pool.base.as_ptr().add(start), self.length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_when_empty_then_no_chunk_until_one_is_dropped() {
        let pool = Pool::new(3 * 8192 + 100, 8192).unwrap();
        let mut chunks: Vec<Chunk> = (0..3).map(|_| pool.take().unwrap()).collect();
        assert!(pool.take().is_none());
        for (index, chunk) in chunks.iter_mut().enumerate() {
            chunk.room().fill(index as u8);
            chunk.set_len(8192 - index);
        }
        for (index, chunk) in chunks.iter().enumerate() {
            assert_eq!(chunk.as_ref(), vec![index as u8; 8192 - index]);
            assert_eq!(chunk.as_ref().as_ptr() as usize % ALIGNMENT, 0);
        }
        chunks.pop();
        assert_eq!((pool.used(), pool.free(), pool.peak()), (2, 1, 3));
        assert!(pool.take().is_some());
    }

    #[test]
    fn chunk_set_apart_when_exchanged_while_read_then_free_after_its_last_reader() {
        let pool = Pool::with_apart(3 * 4096, 4096, 2 * 4096).unwrap();
        assert_eq!((pool.apart(), pool.free(), pool.used()), (2, 1, 0));
        // SAFETY: nobody writes.
        let span = |from, to| unsafe { Span::new(&pool, 1, from, to) };
        let (first, second) = (span(0, 10), span(5, 4096));
        assert!(pool.is_read(1) && !pool.is_read(0));
        assert_eq!(pool.exchange(1), Some(2));
        assert_eq!((pool.exchange(0), pool.used()), (None, 1), "none is free");
        drop(first);
        assert!(pool.is_read(1) && pool.free() == 0);
        drop(second);
        assert!(!pool.is_read(1));
        assert_eq!(pool.exchange(2), Some(1), "it is free again");
        assert_eq!((pool.free(), pool.peak()), (1, 1), "nobody reads the other");
        assert!(Pool::with_apart(8192, 4096, 8192).is_err());
    }

    #[test]
    fn pool_when_sizes_make_no_sense_then_an_error() {
        assert!(Pool::new(4095, 4096).is_err());
        assert!(Pool::new(1 << 20, 1000).is_err());
        assert!(Pool::new(1 << 20, 0).is_err());
    }
}
