//! Memory for pages.

use std::sync::Arc;

use forebay_client::Memory;

use crate::lanes::Shape;

/// Slots of one size, in memory that is taken when it is first written.
#[derive(Debug)]
pub struct Pool {
    at: *mut u8,
    bytes: usize,
    slot: u64,
    /// The memory of all processes, if it is part of that.
    shared: Option<(Arc<Memory>, Shape)>,
}

// SAFETY: plain memory; who touches what is the machine's business.
unsafe impl Send for Pool {}

impl Pool {
    /// So many slots. `None` if there is no room for them.
    pub fn new(slots: u32, slot: u32) -> Option<Self> {
        let bytes = (slots as usize).checked_mul(slot as usize)?.max(1);
        let (read, write) = (libc::PROT_READ, libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: new memory, wherever the system likes.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, read | write, flags, -1, 0) };
        (at != libc::MAP_FAILED).then(|| Self {
            at: at.cast(),
            bytes,
            slot: slot.into(),
            shared: None,
        })
    }

    /// The pool of a process in the memory of all. `None` if it does not lie in it.
    pub fn shared(
        slots: u32,
        slot: u32,
        me: u32,
        memory: &Arc<Memory>,
        shape: Shape,
    ) -> Option<Self> {
        let bytes = (slots as usize).checked_mul(slot as usize)?;
        let at = memory.at(shape.pool(me), bytes as u64)?;
        let shared = Some((Arc::clone(memory), shape));
        Some(Self { at, bytes, slot: slot.into(), shared })
    }

    /// Where bytes of a slot are, if they are within it.
    pub fn at(&self, slot: u32, at: u32, len: u64) -> Option<*mut u8> {
        let start = self.offset(slot, at, len)?;
        Some(self.at.wrapping_add(start as usize))
    }

    /// The same in the pool of another process.
    pub fn of_other(&self, rank: u32, slot: u32, at: u32, len: u64) -> Option<*mut u8> {
        let (memory, shape) = self.shared.as_ref()?;
        let start = self.offset(slot, at, len)?;
        memory.at(shape.pool(rank).checked_add(start)?, len)
    }

    fn offset(&self, slot: u32, at: u32, len: u64) -> Option<u64> {
        let end = u64::from(at).checked_add(len)?;
        let start = u64::from(slot).checked_mul(self.slot)?;
        if end > self.slot || start.checked_add(end)? > self.bytes as u64 {
            return None;
        }
        Some(start + u64::from(at))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.shared.is_none() {
            // SAFETY: it was mapped so, and nobody has it any more.
            unsafe { libc::munmap(self.at.cast(), self.bytes) };
        }
    }
}
