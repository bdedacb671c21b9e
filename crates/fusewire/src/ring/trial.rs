//! Ring entries without a ring: what decodes them is fed with any bytes, for fuzzers.

use std::sync::Arc;

use super::journal::{Left, PLACE};
use super::memory::Memory;
use super::queue::{HEADER_SIZE, Queue};
use super::worker::{fail_entry, serve_entry};
use crate::abi::{self, UNIQUE_RESEND, Wire};
use crate::dispatch::Dispatch;
use crate::handler::Handler;

/// Bytes of the journal that an input has.
pub(crate) const JOURNAL: usize = 24;
/// Bytes of an input before the payload.
pub(crate) const BEFORE_PAYLOAD: usize = HEADER_SIZE + JOURNAL;

/// A queue with one entry.
pub(crate) struct Trial {
    memory: Arc<Memory>,
    queue: Arc<Queue>,
}

impl Trial {
    /// With so many bytes of payload.
    pub fn new(payload: usize) -> std::io::Result<Self> {
        let memory = Arc::new(Memory::anywhere(1, 1, payload)?);
        Ok(Self { queue: Arc::new(Queue::new(0, Arc::clone(&memory))?), memory })
    }

    /// Writes an entry: its header, the beginning of its journal, its payload. What is missing is
    /// zero.
    fn fill(&self, bytes: &[u8]) {
        let (header, rest) = bytes.split_at(bytes.len().min(HEADER_SIZE));
        let (journal, payload) = rest.split_at(rest.len().min(JOURNAL));
        let payload = &payload[..payload.len().min(self.memory.payload_size())];
        let (page, at) = (self.memory.header(0, 0), self.memory.payload(0, 0));
        // SAFETY: a page for the header with its journal, and a payload of that size; nobody else has
        // the entry.
        unsafe {
            page.write_bytes(0, super::memory::HEADERS);
            at.write_bytes(0, self.memory.payload_size());
            page.copy_from_nonoverlapping(header.as_ptr(), header.len());
            page.add(PLACE).copy_from_nonoverlapping(journal.as_ptr(), journal.len());
            at.copy_from_nonoverlapping(payload.as_ptr(), payload.len());
        }
    }

    /// Serves the entry as if the kernel had just given it, or as what a dead process has left.
    /// `release` makes the handler answer whatever it still holds. Each must be answered once.
    pub fn serve<H: Handler>(
        &self,
        dispatch: &Dispatch<H>,
        bytes: &[u8],
        is_left: bool,
        release: impl FnOnce(),
    ) {
        self.fill(bytes);
        let mark = if is_left { UNIQUE_RESEND } else { 0 };
        // SAFETY: nobody else has the entry.
        let left = match is_left {
            // SAFETY: as above.
            true => unsafe { self.queue.left(0) },
            false => Left::Request(0),
        };
        let (commit_id, unique) = match left {
            Left::Nothing | Left::Answer(_) => return,
            // SAFETY: as above; it is taken back below.
            Left::Request(_) => unsafe { serve_entry(dispatch, &self.queue, 0, mark) },
            // SAFETY: as above.
            Left::Damaged(_) => unsafe { fail_entry(dispatch, &self.queue, 0) },
        };
        release();
        let mut answered = Vec::new();
        self.queue.take_answered(&mut answered);
        assert_eq!(answered, [0], "an entry is answered once");
        dispatch.connection.in_flight_table().remove(unique);
        self.check_answer(commit_id, unique);
    }

    /// What the kernel, and a successor, find in the entry.
    fn check_answer(&self, commit_id: u64, unique: u64) {
        let page = self.memory.header(0, 0);
        // SAFETY: within the header, which nobody else has.
        let bytes = unsafe { std::slice::from_raw_parts(page, HEADER_SIZE) };
        let out = abi::OutHeader::read(bytes).expect("long enough");
        let about = abi::UringEntryInOut::read(&bytes[256..]).expect("long enough");
        assert_eq!(out.unique, unique, "the answer to another request");
        assert_eq!(out.len as usize, size_of::<abi::OutHeader>() + about.payload_sz as usize);
        assert!(about.payload_sz as usize <= self.memory.payload_size(), "longer than the entry");
        assert_eq!(about.commit_id, commit_id, "what the kernel wrote has changed");
        // SAFETY: nobody else has the entry.
        let left = unsafe { self.queue.left(0) };
        let expected = if commit_id == 0 { Left::Nothing } else { Left::Answer(commit_id) };
        assert_eq!(left, expected, "a successor finds the answer");
    }
}
