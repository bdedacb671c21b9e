//! The memory that kernel and session share: a header and a payload for each entry.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::buffer::PAGE;

/// Bytes before each payload: `struct fuse_uring_req_header`, on a page of its own.
pub(crate) const HEADERS: usize = PAGE;

/// All queues' entries. Pages are touched only when a request or an answer fills them.
///
/// It is a shared file rather than private memory, since the kernel copies to and from the address
/// of an entry on behalf of whichever process commits it.
#[derive(Debug)]
pub(crate) struct Memory {
    base: NonNull<u8>,
    bytes: usize,
    depth: usize,
    payload: usize,
    _file: OwnedFd,
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
        let bytes = queues * depth * (HEADERS + payload);
        let file = memfd_create("fuse-ring", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, bytes as u64)?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                &file,
                0,
            )?
        };
        let base = NonNull::new(base.cast()).expect("mmap gives no null");
        Ok(Self { base, bytes, depth, payload, _file: file })
    }

    /// Entries of a queue.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Bytes of an entry's payload.
    pub fn payload_size(&self) -> usize {
        self.payload
    }

    /// Where an entry's header is.
    pub fn header(&self, queue: usize, entry: usize) -> *mut u8 {
        let at = (queue * self.depth + entry) * (HEADERS + self.payload);
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

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and every user holds this value. The kernel reaches it by its
        // address only for entries of a ring, which ended before.
        if let Err(error) = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) } {
            tracing::error!(%error, "unmapping the ring's memory failed");
        }
    }
}
