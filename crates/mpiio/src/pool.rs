//! Memory for pages.

/// Slots of one size, in memory that is taken when it is first written.
#[derive(Debug)]
pub struct Pool {
    at: *mut u8,
    bytes: usize,
    slot: u64,
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
        (at != libc::MAP_FAILED).then(|| Self { at: at.cast(), bytes, slot: slot.into() })
    }

    /// Where bytes of a slot are, if they are within it.
    pub fn at(&self, slot: u32, at: u32, len: u64) -> Option<*mut u8> {
        let end = u64::from(at).checked_add(len)?;
        let start = u64::from(slot).checked_mul(self.slot)?;
        if end > self.slot || start.checked_add(end)? > self.bytes as u64 {
            return None;
        }
        Some(self.at.wrapping_add((start + u64::from(at)) as usize))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: it was mapped so, and nobody has it any more.
        unsafe { libc::munmap(self.at.cast(), self.bytes) };
    }
}
