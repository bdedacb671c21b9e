//! One CPU's queue: its entries, and the answers that wait to be committed.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use super::journal::{Journal, Left};
use super::memory::Memory;
use crate::abi::{self, Wire};

/// Where `struct fuse_uring_req_header` has the operation's fixed arguments.
const ARGUMENTS: usize = 128;
/// Where it has `struct fuse_uring_ent_in_out`.
const IN_OUT: usize = 256;
/// Its size.
pub(super) const HEADER_SIZE: usize = 288;

/// An entry belongs to the kernel, from its registration or commit to its completion; then to the
/// queue's thread while it copies the request out; then to the [`Slot`] until it has answered; then
/// to the thread again, which commits it. Nobody else touches its memory.
#[derive(Debug)]
pub(crate) struct Queue {
    pub cpu: usize,
    memory: Arc<Memory>,
    /// Entries that are answered and not yet committed.
    answered: Mutex<Vec<u16>>,
    /// The thread sleeps, or is about to: who answers must wake it.
    asleep: AtomicBool,
    wake: OwnedFd,
    /// The connection has ended; answers interest nobody.
    closed: AtomicBool,
    /// The thread shall let requests fill all entries and leave them there.
    sealing: AtomicBool,
    /// It has: no further request can come.
    sealed: AtomicBool,
    /// Its registrations name a CPU that no machine has.
    #[cfg(test)]
    pub spoilt: AtomicBool,
}

/// What an entry holds.
pub(crate) struct Incoming {
    pub header: abi::InHeader,
    /// Bytes of fixed arguments.
    pub fixed: usize,
    /// Bytes of payload.
    pub payload: usize,
}

impl Queue {
    pub fn new(cpu: usize, memory: Arc<Memory>) -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC)?;
        let answered = Mutex::new(Vec::with_capacity(memory.depth()));
        Ok(Self {
            cpu,
            memory,
            answered,
            asleep: AtomicBool::new(false),
            wake,
            closed: AtomicBool::new(false),
            sealing: AtomicBool::new(false),
            sealed: AtomicBool::new(false),
            #[cfg(test)]
            spoilt: AtomicBool::new(false),
        })
    }

    pub fn depth(&self) -> usize {
        self.memory.depth()
    }

    /// The number by which the kernel knows it.
    pub fn id(&self) -> u16 {
        #[cfg(test)]
        if self.spoilt.load(Ordering::SeqCst) {
            return u16::MAX;
        }
        self.cpu as u16
    }

    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// The two areas that REGISTER names.
    pub fn areas(&self, entry: u16) -> [libc::iovec; 2] {
        let (cpu, entry) = (self.cpu, usize::from(entry));
        let area = |base: *mut u8, len| libc::iovec { iov_base: base.cast(), iov_len: len };
        [
            area(self.memory.header(cpu, entry), HEADER_SIZE),
            area(self.memory.payload(cpu, entry), self.memory.payload_size()),
        ]
    }

    /// The entry's journal.
    fn journal(&self, entry: u16) -> Journal {
        let entry = usize::from(entry);
        let (header, payload) =
            (self.memory.header(self.cpu, entry), self.memory.payload(self.cpu, entry));
        // SAFETY: both are this entry's, and the memory lives as long as `self`.
        unsafe { Journal::new(header, payload) }
    }

    /// What the last process to serve this queue has left in an entry.
    ///
    /// # Safety
    /// The entry must not have been given to the kernel by this process yet.
    pub unsafe fn left(&self, entry: u16) -> Left {
        // SAFETY: until it is committed or registered nobody else touches the entry.
        unsafe {
            let about = self.read::<abi::UringEntryInOut>(entry, IN_OUT);
            self.journal(entry).left(about.commit_id, IN_OUT + abi::URING_PAYLOAD_SIZE_AT)
        }
    }

    /// Bytes of the entry's header.
    ///
    /// # Safety
    /// The entry must belong to the caller.
    unsafe fn read<T: Wire>(&self, entry: u16, at: usize) -> T {
        debug_assert!(at + size_of::<T>() <= HEADER_SIZE);
        let header = self.memory.header(self.cpu, usize::from(entry));
        // SAFETY: within the header, and nobody else writes there.
        let bytes = unsafe { std::slice::from_raw_parts(header.add(at), size_of::<T>()) };
        T::read(bytes).expect("as many bytes as the type has")
    }

    /// The request's number, what its commit must name, and what came; `None` if its lengths make no
    /// sense.
    ///
    /// # Safety
    /// The entry must be completed and not yet answered, and only its queue's thread may ask.
    pub unsafe fn incoming(&self, entry: u16) -> (u64, u64, Option<Incoming>) {
        // SAFETY: the entry is the caller's.
        let (header, about) = unsafe {
            (self.read::<abi::InHeader>(entry, 0), self.read::<abi::UringEntryInOut>(entry, IN_OUT))
        };
        let payload = about.payload_sz as usize;
        let fixed = (header.len as usize).checked_sub(size_of::<abi::InHeader>() + payload);
        let incoming = fixed
            .filter(|fixed| *fixed <= IN_OUT - ARGUMENTS && payload <= self.memory.payload_size())
            .map(|fixed| Incoming { header, fixed, payload });
        (header.unique, about.commit_id, incoming)
    }

    /// Copies the request to `to`, in the order in which the device delivers it.
    ///
    /// # Safety
    /// As for [`Queue::incoming`], which `incoming` must come from.
    pub unsafe fn copy_out(&self, entry: u16, incoming: &Incoming, to: &mut [u8]) {
        let (cpu, index) = (self.cpu, usize::from(entry));
        let header = self.memory.header(cpu, index);
        let (first, rest) = to.split_at_mut(size_of::<abi::InHeader>());
        let (fixed, payload) = rest.split_at_mut(incoming.fixed);
        first.copy_from_slice(incoming.header.as_bytes());
        // SAFETY: `incoming` has checked both lengths, and the entry is the caller's.
        unsafe {
            let arguments = std::slice::from_raw_parts(header.add(ARGUMENTS), incoming.fixed);
            fixed.copy_from_slice(arguments);
            let source = self.memory.payload(cpu, index);
            let data = std::slice::from_raw_parts(source, incoming.payload);
            payload[..incoming.payload].copy_from_slice(data);
        }
    }

    /// Moves the answered entries to `into`, which is empty.
    pub fn take_answered(&self, into: &mut Vec<u16>) {
        std::mem::swap(&mut *self.answered.lock(), into);
    }

    /// Announces that the thread will sleep; false if there is something to commit first.
    pub fn fall_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        let idle = self.answered.lock().is_empty();
        if !idle {
            self.awake();
        }
        idle
    }

    pub fn awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Has the thread, while it rests, leave requests in the entries until all are full; or no longer.
    pub fn set_sealing(&self, sealing: bool) {
        self.sealed.store(false, Ordering::SeqCst);
        self.sealing.store(sealing, Ordering::SeqCst);
    }

    pub fn is_sealing(&self) -> bool {
        self.sealing.load(Ordering::SeqCst)
    }

    pub fn set_sealed(&self) {
        self.sealed.store(true, Ordering::SeqCst);
    }

    /// Whether all entries hold requests that are not begun.
    pub fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::SeqCst)
    }
}

/// The right to answer one entry.
#[derive(Debug)]
pub(crate) struct Slot {
    queue: Arc<Queue>,
    entry: u16,
}

impl Slot {
    pub(super) fn new(queue: Arc<Queue>, entry: u16) -> Self {
        Self { queue, entry }
    }

    /// Fills in the answer and has it committed. Once it has succeeded the entry is gone.
    ///
    /// # Errors
    /// The answer is too long, or the connection has ended; nothing was done.
    pub fn answer(&self, unique: u64, error: i32, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let queue = &*self.queue;
        if queue.closed.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::ENOTCONN));
        }
        let body: usize = parts.iter().map(|part| part.len()).sum();
        if body > queue.memory.payload_size() {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        let len = (size_of::<abi::OutHeader>() + body) as u32;
        let header = abi::OutHeader { len, error, unique };
        let (cpu, entry) = (queue.cpu, usize::from(self.entry));
        let to = queue.memory.header(cpu, entry);
        let mut payload = queue.memory.payload(cpu, entry);
        let journal = queue.journal(self.entry);
        // SAFETY: the entry belongs to this slot until the answer is announced below, and the
        // lengths were checked.
        let commit_id = unsafe {
            let about = queue.read::<abi::UringEntryInOut>(self.entry, IN_OUT);
            journal.begin(about.commit_id, about.payload_sz, body);
            let copy = |from: &[u8], to: *mut u8| {
                std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len());
            };
            copy(header.as_bytes(), to);
            for part in parts {
                copy(part, payload);
                payload = payload.add(part.len());
            }
            copy(&(body as u32).to_ne_bytes(), to.add(IN_OUT + abi::URING_PAYLOAD_SIZE_AT));
            about.commit_id
        };
        journal.end(commit_id);
        queue.answered.lock().push(self.entry);
        if queue.asleep.swap(false, Ordering::SeqCst) {
            // Cannot fail: the counter never comes near its limit.
            let _ = rustix::io::write(&queue.wake, &1u64.to_ne_bytes());
        }
        Ok(())
    }
}
