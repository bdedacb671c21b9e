//! What a successor must know of an entry whose process died: the answer takes the place of the
//! request, so what it overwrites is noted before, and that it is whole after.
//!
//! The journal of an entry lies behind its header, in the same page. Its words are written in an
//! order that makes sense wherever a process dies: `begun` after the copy of what is about to be
//! overwritten, `answered` after the answer.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::queue::HEADER_SIZE;
use crate::abi;
use crate::buffer::PAGE;

/// Where in the page of the header it begins.
pub(crate) const PLACE: usize = 512;
/// Bytes of the payload that are kept at most. What is longer is answered with less: names and
/// small structures come, attributes go.
const KEPT: usize = 2048;
const IN_HEADER: usize = size_of::<abi::InHeader>();

const _: () = assert!(PLACE >= HEADER_SIZE && PLACE + size_of::<Layout>() <= PAGE);

#[repr(C)]
struct Layout {
    /// The request whose answer is about to be written.
    begun: AtomicU64,
    /// The request whose answer is whole.
    answered: AtomicU64,
    /// The size of its payload, and how much of that is kept.
    payload: u32,
    kept: u32,
    header: [u8; IN_HEADER],
    bytes: [u8; KEPT],
}

/// The journal of one entry.
#[derive(Clone, Copy)]
pub(crate) struct Journal {
    layout: *mut Layout,
    page: *mut u8,
    payload: *mut u8,
}

/// What a dead process left in an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nothing, ever.
    Nothing,
    /// The answer to this request, which the kernel may have or not have.
    Answer(u64),
    /// This request, unanswered.
    Request(u64),
    /// This request, of which a part is overwritten.
    Damaged(u64),
}

impl Journal {
    /// Of the entry with this header and this payload.
    ///
    /// # Safety
    /// Both must be those of an entry of a living `Memory` (a page for the header), for as long as
    /// the journal is used.
    pub unsafe fn new(page: *mut u8, payload: *mut u8) -> Self {
        // SAFETY: the layout lies within the page of the header, as asserted above.
        Self { layout: unsafe { page.add(PLACE).cast() }, page, payload }
    }

    fn begun(&self) -> &AtomicU64 {
        // SAFETY: aligned, and used as an atomic number only.
        unsafe { &(*self.layout).begun }
    }

    fn answered(&self) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { &(*self.layout).answered }
    }

    /// Keeps what an answer with a body of `body` bytes overwrites of the request `commit_id`.
    ///
    /// # Safety
    /// The entry must belong to the caller.
    pub unsafe fn begin(&self, commit_id: u64, payload: u32, body: usize) {
        let kept = body.min(payload as usize);
        // SAFETY: the entry is the caller's, and its journal with it; lengths are within bounds.
        unsafe {
            let layout = self.layout;
            (&raw mut (*layout).payload).write(payload);
            (&raw mut (*layout).kept).write(u32::try_from(kept).unwrap_or(u32::MAX));
            let header = (&raw mut (*layout).header).cast::<u8>();
            header.copy_from_nonoverlapping(self.page, IN_HEADER);
            let bytes = (&raw mut (*layout).bytes).cast::<u8>();
            bytes.copy_from_nonoverlapping(self.payload, kept.min(KEPT));
        }
        self.begun().store(commit_id, Ordering::Release);
        // The answer must not be written before.
        fence(Ordering::SeqCst);
    }

    /// Notes that the answer is whole.
    pub fn end(&self, commit_id: u64) {
        self.answered().store(commit_id, Ordering::Release);
    }

    /// What is in the entry; a request that an answer had begun to overwrite is put together again.
    /// `commit_id` is what the entry's header says, `payload_size` where it has the size.
    ///
    /// # Safety
    /// The entry must belong to the caller.
    pub unsafe fn left(&self, commit_id: u64, payload_size_at: usize) -> Left {
        if commit_id == 0 {
            return Left::Nothing;
        }
        if self.answered().load(Ordering::Acquire) == commit_id {
            return Left::Answer(commit_id);
        }
        if self.begun().load(Ordering::Acquire) != commit_id {
            return Left::Request(commit_id);
        }
        // SAFETY: the entry is the caller's; lengths are within bounds.
        unsafe {
            let layout = &*self.layout;
            let kept = layout.kept as usize;
            self.page.copy_from_nonoverlapping(layout.header.as_ptr(), IN_HEADER);
            if kept > KEPT {
                return Left::Damaged(commit_id);
            }
            let size = layout.payload.to_ne_bytes();
            self.page.add(payload_size_at).copy_from_nonoverlapping(size.as_ptr(), size.len());
            self.payload.copy_from_nonoverlapping(layout.bytes.as_ptr(), kept);
        }
        Left::Request(commit_id)
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::{ADDRESSES, Memory};
    use super::*;

    const SIZE_AT: usize = 272;

    /// An entry with a request of 100 bytes, all ones.
    fn entry(memory: &Memory) -> Journal {
        let (page, payload) = (memory.header(0, 0), memory.payload(0, 0));
        // SAFETY: within the mapping, and nobody else uses it.
        unsafe {
            page.write_bytes(1, HEADER_SIZE);
            payload.write_bytes(1, 4096);
            page.add(SIZE_AT).cast::<u32>().write(100);
            Journal::new(page, payload)
        }
    }

    fn bytes(at: *mut u8, count: usize) -> Vec<u8> {
        // SAFETY: of a living mapping.
        unsafe { std::slice::from_raw_parts(at, count).to_vec() }
    }

    #[test]
    fn left_when_a_process_dies_anywhere_then_the_request_or_its_whole_answer() {
        let _one_at_a_time = ADDRESSES.lock();
        let memory = Memory::new(1, 1, 8192).expect("mapped");
        let journal = entry(&memory);
        let (page, payload) = (memory.header(0, 0), memory.payload(0, 0));
        // SAFETY: the entry is this test's.
        let left = |commit_id| unsafe { journal.left(commit_id, SIZE_AT) };
        assert_eq!(left(0), Left::Nothing);
        assert_eq!(left(42), Left::Request(42));
        // SAFETY: as above.
        unsafe {
            journal.begin(42, 100, 128);
            page.write_bytes(9, 16);
            page.add(SIZE_AT).cast::<u32>().write(128);
            payload.write_bytes(9, 128);
        }
        assert_eq!(left(42), Left::Request(42));
        assert_eq!(bytes(page, IN_HEADER), [1; IN_HEADER]);
        assert_eq!(bytes(payload, 100), [1; 100]);
        assert_eq!(bytes(page.wrapping_add(SIZE_AT), 4), 100_u32.to_ne_bytes());
        journal.end(42);
        assert_eq!(left(42), Left::Answer(42));
        assert_eq!(left(44), Left::Request(44), "the next one");
    }

    #[test]
    fn left_when_more_is_overwritten_than_is_kept_then_only_remains() {
        let _one_at_a_time = ADDRESSES.lock();
        let memory = Memory::new(1, 1, 8192).expect("mapped");
        let journal = entry(&memory);
        // SAFETY: the entry is this test's.
        unsafe {
            journal.begin(7, 4000, 4000);
            assert_eq!(journal.left(7, SIZE_AT), Left::Damaged(7));
            journal.begin(9, 4000, 8);
            assert_eq!(journal.left(9, SIZE_AT), Left::Request(9));
        }
    }
}
