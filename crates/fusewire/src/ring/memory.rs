//! The memory that kernel and session share: a header and a payload for each entry.
//!
//! It is a file without a name, so that it can outlive the process, and it lies at the same address
//! in every process that serves the connection one after the other: the kernel remembers where an
//! entry is, and copies to and from there on behalf of whichever process commits it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::buffer::PAGE;

/// Bytes before each payload: `struct fuse_uring_req_header` and the entry's journal, on a page of
/// their own.
pub(crate) const HEADERS: usize = PAGE;
/// Bytes before the first entry: what the file says of itself.
const PREFACE: usize = PAGE;

/// Where the first memory of a process lies, if that is free. Programs, libraries, heaps and stacks
/// are elsewhere, on machines with 39 bits of address too.
const FIRST: usize = 16 << 30;
/// Further ones lie so much further on.
const STEP: usize = 256 << 20;
const TRIES: usize = 256;

const MAGIC: u32 = u32::from_le_bytes(*b"FWRM");
const VERSION: u32 = 1;
/// The words of the preface.
const WORDS: usize = 7;

/// All queues' entries. Pages are touched only when a request or an answer fills them.
#[derive(Debug)]
pub(crate) struct Memory {
    base: NonNull<u8>,
    bytes: usize,
    queues: usize,
    depth: usize,
    payload: usize,
    file: OwnedFd,
}

// SAFETY: the mapping belongs to this value and moves nowhere; who may touch an entry is decided by
// `Queue`.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// For `depth` entries with `payload` bytes each in `queues` queues.
    pub fn new(queues: usize, depth: usize, payload: usize) -> io::Result<Self> {
        let payload = payload.next_multiple_of(PAGE);
        let bytes = PREFACE + queues * depth * (HEADERS + payload);
        let file = memfd_create("fuse-ring", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, bytes as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mut found = Err(Errno::NOMEM);
        for index in 0..TRIES {
            found = map(&file, FIRST + index * STEP, bytes);
            if found != Err(Errno::EXIST) {
                break;
            }
        }
        let memory = Self { base: found?, bytes, queues, depth, payload, file };
        let number = |value: usize| u32::try_from(value).map_err(io::Error::other);
        let address = memory.base.as_ptr() as usize / PAGE;
        let words = [
            MAGIC,
            VERSION,
            number(address)?,
            number(queues)?,
            number(depth)?,
            number(payload / PAGE)?,
            0,
        ];
        for (index, word) in words.into_iter().enumerate() {
            memory.word(index).store(word, Ordering::Relaxed);
        }
        Ok(memory)
    }

    /// At any address, for a sanitizer that has the usual ones: not to be passed on.
    #[cfg(feature = "fuzzing")]
    pub fn anywhere(queues: usize, depth: usize, payload: usize) -> io::Result<Self> {
        let payload = payload.next_multiple_of(PAGE);
        let bytes = PREFACE + queues * depth * (HEADERS + payload);
        let file = memfd_create("fuse-ring", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, bytes as u64)?;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice; the file has that length.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, prot, flags, &file, 0)? };
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, bytes, queues, depth, payload, file })
    }

    /// The memory of another process, at the address where that one had it.
    ///
    /// # Errors
    /// It is something else, or the address is in use.
    pub fn adopt(file: OwnedFd) -> io::Result<Self> {
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "it is no memory of rings");
        let file = File::from(file);
        let mut words = [0; WORDS * 4];
        file.read_exact_at(&mut words, 0).map_err(|_| damaged())?;
        let word = |index: usize| {
            let bytes = words[index * 4..].first_chunk().copied();
            bytes.map_or(0, u32::from_ne_bytes) as usize
        };
        if word(0) != MAGIC as usize || word(1) != VERSION as usize {
            return Err(damaged());
        }
        let (address, queues, depth, payload) = (word(2) * PAGE, word(3), word(4), word(5) * PAGE);
        let bytes = queues
            .checked_mul(depth)
            .and_then(|entries| entries.checked_mul(HEADERS + payload))
            .and_then(|bytes| bytes.checked_add(PREFACE))
            .filter(|bytes| address > 0 && depth > 0 && *bytes > PREFACE)
            .ok_or_else(damaged)?;
        if file.metadata()?.len() != bytes as u64 {
            return Err(damaged());
        }
        let file = OwnedFd::from(file);
        let base = map(&file, address, bytes)?;
        Ok(Self { base, bytes, queues, depth, payload, file })
    }

    fn word(&self, index: usize) -> &AtomicU32 {
        assert!(index < WORDS, "no such word");
        // SAFETY: within the preface, aligned, and used as an atomic number only.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().cast::<u32>().add(index)) }
    }

    /// How many queues there are.
    pub fn queues(&self) -> usize {
        self.queues
    }

    /// Entries of a queue.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Bytes of an entry's payload.
    pub fn payload_size(&self) -> usize {
        self.payload
    }

    /// Notes whether what the entries hold was never begun, since the queues were sealed.
    pub fn set_sealed(&self, sealed: bool) {
        self.word(WORDS - 1).store(sealed.into(), Ordering::SeqCst);
    }

    /// Whether what the entries hold was never begun.
    pub fn is_sealed(&self) -> bool {
        self.word(WORDS - 1).load(Ordering::SeqCst) == 1
    }

    /// Where an entry's header is.
    pub fn header(&self, queue: usize, entry: usize) -> *mut u8 {
        let at = PREFACE + (queue * self.depth + entry) * (HEADERS + self.payload);
        assert!(entry < self.depth && at < self.bytes, "no such entry");
        // SAFETY: within the mapping, as just checked.
        unsafe { self.base.as_ptr().add(at) }
    }

    /// Where its payload is.
    pub fn payload(&self, queue: usize, entry: usize) -> *mut u8 {
        // SAFETY: an entry is a header followed by its payload.
        unsafe { self.header(queue, entry).add(HEADERS) }
    }
}

fn map(file: &OwnedFd, address: usize, bytes: usize) -> Result<NonNull<u8>, Errno> {
    let at = std::ptr::without_provenance_mut(address);
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    let flags = flags | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: a new mapping that replaces none; the file has that length, and is sealed to keep it.
    let base = unsafe { mmap(at, bytes, prot, flags, file, 0)? };
    NonNull::new(base.cast()).ok_or(Errno::NOMEM)
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by this value, and every user holds it. The kernel reaches it by its
        // address only for entries of a ring, which ended before.
        if let Err(error) = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) } {
            tracing::error!(%error, "unmapping the ring's memory failed");
        }
    }
}

/// The entries of a connection that io_uring serves, as one process passes them to another: without
/// them nobody can answer what they hold.
#[derive(Clone, Debug)]
pub struct RingParts(pub(crate) Arc<Memory>);

impl RingParts {
    /// What another process had; `file` must be what its [`RingParts::as_fd`] gave.
    ///
    /// # Errors
    /// It is something else, or this process uses the address at which it must lie.
    pub fn from_fd(file: OwnedFd) -> io::Result<Self> {
        Ok(Self(Arc::new(Memory::adopt(file)?)))
    }
}

impl AsFd for RingParts {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }
}

/// Held by tests that make or adopt such memory: an address that one lets go of another may take.
#[cfg(test)]
pub(crate) static ADDRESSES: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_when_adopted_then_at_the_same_address_with_what_was_in_it() {
        let _one_at_a_time = ADDRESSES.lock();
        let first = Memory::new(2, 3, 5000).expect("mapped");
        assert_eq!((first.queues(), first.depth(), first.payload_size()), (2, 3, 8192));
        let at = first.payload(1, 2) as usize;
        // SAFETY: within the mapping, and nobody else uses it.
        unsafe { first.payload(1, 2).write(7) };
        first.set_sealed(true);
        let file = first.file.try_clone().expect("duplicated");
        let in_use = Memory::adopt(file.try_clone().expect("duplicated")).expect_err("in use");
        assert_eq!(in_use.kind(), io::ErrorKind::AlreadyExists);
        drop(first);
        let second = Memory::adopt(file).expect("mapped");
        assert_eq!((second.queues(), second.depth(), second.payload_size()), (2, 3, 8192));
        assert_eq!(second.payload(1, 2) as usize, at);
        // SAFETY: as above.
        assert_eq!(unsafe { second.payload(1, 2).read() }, 7);
        assert!(second.is_sealed());
    }

    #[test]
    fn memory_when_several_in_a_process_then_each_has_its_place() {
        let _one_at_a_time = ADDRESSES.lock();
        let all: Vec<_> = (0..3).map(|_| Memory::new(1, 1, 4096).expect("mapped")).collect();
        let bases: std::collections::HashSet<_> = all.iter().map(|memory| memory.base).collect();
        assert_eq!(bases.len(), 3);
    }

    #[test]
    fn adopt_when_it_is_something_else_then_refused() {
        let _one_at_a_time = ADDRESSES.lock();
        let memory = Memory::new(1, 1, 4096).expect("mapped");
        memory.word(3).store(7, Ordering::Relaxed);
        let file = memory.file.try_clone().expect("duplicated");
        assert!(Memory::adopt(file).is_err(), "another length");
        let empty = memfd_create("empty", MemfdFlags::CLOEXEC).expect("made");
        assert!(Memory::adopt(empty).is_err());
    }
}
