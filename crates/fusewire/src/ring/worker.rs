//! The thread of one queue.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::{opcode, squeue, types::Fd};

use super::Ring;
use super::journal::Left;
use super::queue::{Queue, Slot};
use crate::abi::{self, UNIQUE_RESEND, Wire};
use crate::connection::{REQUEST_START, SMALL};
use crate::dispatch::Dispatch;
use crate::gate::{Gate, Leaving};
use crate::handler::Handler;
use crate::reader::{ODD_ERRORS, ODD_PAUSE};
use crate::reply::Reply;

/// The `user_data` of the read that waits for answers of other threads.
const WAKE: u64 = u64::MAX;
/// How often entries may be registered again, without a request in between, that the kernel has let
/// go of.
const RENEWALS: u32 = 10_000;
/// How often a resting thread commits what others have answered.
const REST: Duration = Duration::from_micros(500);

/// What the entries hold at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandedOver {
    /// The kernel does not know them yet.
    Nothing,
    /// Requests that nobody has begun.
    New,
    /// What another process was doing when it died.
    UnderWay,
}

/// A queue with its ring, served by the thread that owns it.
pub(crate) struct Worker<H> {
    dispatch: Dispatch<H>,
    gate: Arc<Gate>,
    /// Its number among the threads at the gate.
    index: usize,
    inherited: HandedOver,
    queue: Arc<Queue>,
    ring: Ring,
    /// What each entry's commit must name, and its request's number.
    commits: Vec<(u64, u64)>,
    /// Entries that the kernel has or that are being served.
    alive: usize,
    renewals: u32,
    /// The kernel has said that the connection has ended.
    ended: bool,
    woken: Box<[u8; 8]>,
    answered: Vec<u16>,
    completed: Vec<(u64, i32)>,
}

impl<H: Handler> Worker<H> {
    pub fn new(
        dispatch: Dispatch<H>,
        gate: Arc<Gate>,
        index: usize,
        inherited: HandedOver,
        queue: Arc<Queue>,
        ring: Ring,
    ) -> Self {
        let depth = queue.depth();
        Self {
            dispatch,
            gate,
            index,
            inherited,
            ring,
            commits: vec![(0, 0); depth],
            alive: 0,
            renewals: 0,
            ended: false,
            woken: Box::new([0; 8]),
            answered: Vec::with_capacity(depth),
            completed: Vec::with_capacity(depth + 1),
            queue,
        }
    }

    /// Registers the entries, says how that went, and serves until the file system is gone or the
    /// gate dismisses.
    pub fn run(mut self, registered: impl FnOnce(io::Result<()>)) {
        self.pin();
        self.gate.accept_signal(self.index);
        let mut held = Vec::new();
        let outcome = match self.inherited {
            HandedOver::Nothing => self.register_all(),
            HandedOver::New | HandedOver::UnderWay => self.take_over(&mut held),
        };
        let failed = outcome.is_err();
        if failed {
            self.refuse();
        }
        registered(outcome);
        for (entry, left) in held {
            self.serve_held(entry, &left);
        }
        if self.inherited != HandedOver::Nothing {
            self.dispatch.connection.catches_up();
        }
        let why = if failed { Leaving::Dismissed } else { self.serve_all() };
        self.queue.close();
        self.gate.leave_for_good(why, &self.dispatch);
    }

    /// To the CPU whose clients it serves. Fails for a CPU that is offline or not allowed; then it
    /// serves from wherever it is.
    fn pin(&self) {
        let mut set = rustix::thread::CpuSet::new();
        if self.queue.cpu < rustix::thread::CpuSet::MAX_CPU {
            set.set(self.queue.cpu);
            if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
                tracing::debug!(cpu = self.queue.cpu, %error, "a ring's thread is not pinned");
            }
        }
    }

    fn register_all(&mut self) -> io::Result<()> {
        for entry in 0..self.queue.depth() as u16 {
            self.register(entry)?;
        }
        self.listen()?;
        // A registration that succeeds completes with its first request.
        self.collect();
        match self.completed.iter().find(|(of, result)| *of != WAKE && *result < 0) {
            Some((_, result)) => Err(io::Error::from_raw_os_error(-result)),
            None => Ok(()),
        }
    }

    /// Takes up the entries as another process has left them; what is to be served goes to `held`.
    fn take_over(&mut self, held: &mut Vec<(u16, Left)>) -> io::Result<()> {
        for entry in 0..self.queue.depth() as u16 {
            // SAFETY: this process has given none to the kernel yet.
            match unsafe { self.queue.left(entry) } {
                Left::Nothing => self.register(entry)?,
                Left::Answer(commit_id) => {
                    // If the kernel has it already, the entry is gone and registered anew.
                    self.commits[usize::from(entry)] = (commit_id, commit_id);
                    self.alive += 1;
                    self.commit_entry(entry);
                }
                left => {
                    self.alive += 1;
                    held.push((entry, left));
                }
            }
        }
        self.ring.submit()?;
        self.listen()?;
        // Those that are gone, so that each queue has entries before anybody is told so.
        self.collect();
        self.settle();
        Ok(())
    }

    /// Serves a request that was in an entry from the start.
    fn serve_held(&mut self, entry: u16, left: &Left) {
        if matches!(left, Left::Damaged(_)) {
            // SAFETY: nobody else has the entry.
            let known = unsafe { fail_entry(&self.dispatch, &self.queue, entry) };
            self.commits[usize::from(entry)] = known;
            return;
        }
        let mark = if self.inherited == HandedOver::UnderWay { UNIQUE_RESEND } else { 0 };
        self.serve(entry, mark);
        self.commit();
    }

    /// Deals with all completions but those that bring a request.
    fn settle(&mut self) {
        let mut index = 0;
        while let Some(&(of, result)) = self.completed.get(index) {
            if of != WAKE && result >= 0 {
                index += 1;
                continue;
            }
            self.completed.swap_remove(index);
            self.complete(of, result);
        }
    }

    /// What is to be done while resting: answers of others are committed, and while the queue is
    /// being sealed, requests are left in the entries.
    fn rest(&mut self) {
        self.commit();
        if self.queue.is_sealing() {
            self.collect();
            self.settle();
            // What is completed now is a request each.
            if self.completed.len() == self.alive {
                self.queue.set_sealed();
            }
        }
    }

    /// Has the kernel go on by the device, for which it must see a registration fail; else the mount
    /// would wait for this queue for ever. Without effect on a connection that rings serve already.
    fn refuse(&mut self) {
        let request = abi::UringCommand { qid: self.queue.id(), ..Default::default() };
        let without_areas = self.command(abi::URING_REGISTER, request, None);
        if let Err(error) = self.push(without_areas.user_data(WAKE)).and_then(|()| {
            self.ring.submit()?;
            Ok(())
        }) {
            tracing::error!(%error, "the kernel waits for a ring");
        }
    }

    /// Gives an entry to the kernel.
    fn register(&mut self, entry: u16) -> io::Result<()> {
        let areas = self.queue.areas(entry);
        let request = abi::UringCommand { qid: self.queue.id(), ..Default::default() };
        let command = self.command(abi::URING_REGISTER, request, Some(&areas));
        self.push(command.user_data(u64::from(entry)))?;
        // The areas are read before this returns.
        self.ring.submit()?;
        self.alive += 1;
        Ok(())
    }

    fn command(
        &self,
        operation: u32,
        request: abi::UringCommand,
        areas: Option<&[libc::iovec; 2]>,
    ) -> squeue::Entry128 {
        let mut bytes = [0; 80];
        bytes[..size_of::<abi::UringCommand>()].copy_from_slice(request.as_bytes());
        let device = Fd(self.dispatch.connection.as_fd().as_raw_fd());
        let mut entry = opcode::UringCmd80::new(device, operation).cmd(bytes).build();
        if let Some(areas) = areas {
            set_areas(&mut entry, areas);
        }
        entry
    }

    fn push(&mut self, entry: squeue::Entry128) -> io::Result<()> {
        // SAFETY: what the entries point to (areas, the device, the counter) outlives them.
        if unsafe { self.ring.submission().push(&entry) }.is_ok() {
            return Ok(());
        }
        self.ring.submit()?;
        // SAFETY: as above.
        unsafe { self.ring.submission().push(&entry) }
            .map_err(|_| io::Error::other("the submission queue of a ring stays full"))
    }

    /// Waits for answers from other threads.
    fn listen(&mut self) -> io::Result<()> {
        let wake = Fd(self.queue.wake_fd().as_raw_fd());
        let read = opcode::Read::new(wake, self.woken.as_mut_ptr(), 8).build().user_data(WAKE);
        self.push(read.into())?;
        self.ring.submit().map(drop)
    }

    /// Takes what is completed.
    fn collect(&mut self) {
        let Self { ring, completed, .. } = self;
        completed.extend(ring.completion().map(|done| (done.user_data(), done.result())));
    }

    fn serve_all(&mut self) -> Leaving {
        let gate = Arc::clone(&self.gate);
        let mut odd = 0;
        loop {
            if gate.is_closed() && !gate.rest(REST, || self.rest()) {
                return Leaving::Dismissed;
            }
            self.commit();
            self.collect();
            while let Some((of, result)) = self.completed.pop() {
                self.complete(of, result);
            }
            if self.alive == 0 {
                return match self.ended {
                    true => Leaving::Ended(None),
                    false => Leaving::Failed(io::Error::other("all entries of a ring are lost")),
                };
            }
            if !self.ring.completion().is_empty() || !self.queue.fall_asleep() {
                continue;
            }
            let waited = gate.wait_in(self.index, || self.ring.submit_and_wait(1));
            self.queue.awake();
            match waited {
                Err(error) if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY)) => {
                    tracing::error!(%error, cpu = self.queue.cpu, "waiting at a ring failed");
                    odd += 1;
                    if odd > ODD_ERRORS {
                        return Leaving::Failed(error);
                    }
                    std::thread::sleep(ODD_PAUSE);
                }
                _ => odd = 0,
            }
        }
    }

    /// Gives answered entries back to the kernel, each for its next request.
    fn commit(&mut self) {
        let mut answered = std::mem::take(&mut self.answered);
        self.queue.take_answered(&mut answered);
        if !answered.is_empty() {
            for &entry in &answered {
                self.commit_entry(entry);
            }
            if let Err(error) = self.ring.submit() {
                tracing::error!(%error, "answers were not committed");
            }
            for &entry in &answered {
                let (_, unique) = self.commits[usize::from(entry)];
                self.dispatch.connection.in_flight_table().remove(unique);
            }
            answered.clear();
        }
        self.answered = answered;
    }

    fn commit_entry(&mut self, entry: u16) {
        let (commit_id, _) = self.commits[usize::from(entry)];
        let qid = self.queue.id();
        let request = abi::UringCommand { commit_id, qid, ..Default::default() };
        let command = self.command(abi::URING_COMMIT_AND_FETCH, request, None);
        if let Err(error) = self.push(command.user_data(u64::from(entry))) {
            tracing::error!(%error, "an answer was not committed");
        }
    }

    fn complete(&mut self, of: u64, result: i32) {
        if of == WAKE {
            if let Err(error) = self.listen() {
                tracing::error!(%error, "a ring cannot be woken any more");
            }
            return;
        }
        let entry = of as u16;
        match -result {
            0 => {
                self.renewals = 0;
                self.serve(entry, 0);
                // An answer must not wait for the next request's handler.
                self.commit();
            }
            libc::ENOTCONN | libc::ECANCELED | libc::ECONNABORTED => {
                self.alive -= 1;
                self.ended = true;
            }
            code => {
                self.alive -= 1;
                let error = io::Error::from_raw_os_error(code);
                // Its request was aborted. Whatever else it is, the kernel has let go of the entry.
                if !matches!(code, libc::ENOENT | libc::EINVAL) {
                    tracing::error!(%error, "the kernel has dropped an entry of a ring");
                }
                if self.renewals >= RENEWALS {
                    return tracing::error!(%error, "an entry of a ring is lost");
                }
                self.renewals += 1;
                if let Err(error) = self.register(entry) {
                    tracing::error!(%error, "an entry of a ring is lost");
                }
            }
        }
    }

    fn serve(&mut self, entry: u16, mark: u64) {
        // SAFETY: the entry was just completed, or was left by another process.
        self.commits[usize::from(entry)] =
            unsafe { serve_entry(&self.dispatch, &self.queue, entry, mark) };
    }
}

/// Hands the request in an entry to the handler, with `mark` added to its number. Returns what the
/// commit of the answer must name, and the request's number.
///
/// # Safety
/// The entry must belong to the caller, which it does no longer afterwards, and nobody else may take
/// answered entries of the queue meanwhile.
pub(super) unsafe fn serve_entry<H: Handler>(
    dispatch: &Dispatch<H>,
    queue: &Arc<Queue>,
    entry: u16,
    mark: u64,
) -> (u64, u64) {
    let connection = dispatch.connection.clone();
    // SAFETY: as the caller has promised.
    let (unique, commit_id, incoming) = unsafe { queue.incoming(entry) };
    let slot = Slot::new(Arc::clone(queue), entry);
    let Some(mut incoming) = incoming else {
        tracing::error!(unique, "a request whose lengths make no sense was refused");
        Reply::on_ring(connection, unique, slot).error(libc::EIO);
        return (commit_id, unique);
    };
    incoming.header.unique |= mark;
    let header = incoming.header;
    if header.opcode == abi::opcode::DESTROY {
        dispatch.guard(|| dispatch.destroy_once());
        Reply::on_ring(connection, unique, slot).ok();
        return (commit_id, unique);
    }
    let length = header.len as usize;
    // No more than entries, so their number needs no other limit.
    let mut buffer = if length <= SMALL {
        connection.small_pool().take()
    } else {
        connection.large_pool().take().starting_at(REQUEST_START)
    };
    // SAFETY: as above; what came with `incoming` says how much there is.
    unsafe { queue.copy_out(entry, &incoming, &mut buffer[..length]) };
    connection.in_flight_table().register(header.unique);
    dispatch.hand_over(buffer, length, Reply::on_ring(connection.clone(), unique, slot));
    (commit_id, unique)
}

/// Answers a request of which a part is overwritten. Returns as [`serve_entry`].
///
/// # Safety
/// As for [`serve_entry`].
pub(super) unsafe fn fail_entry<H: Handler>(
    dispatch: &Dispatch<H>,
    queue: &Arc<Queue>,
    entry: u16,
) -> (u64, u64) {
    // SAFETY: as the caller has promised.
    let (unique, commit_id, _) = unsafe { queue.incoming(entry) };
    tracing::error!(unique, "a request was half answered when its server died");
    let slot = Slot::new(Arc::clone(queue), entry);
    Reply::on_ring(dispatch.connection.clone(), unique, slot).error(libc::EIO);
    (commit_id, unique)
}

/// Sets address and length of the areas, which the builder of the entry does not offer both.
fn set_areas(entry: &mut squeue::Entry128, areas: &[libc::iovec; 2]) {
    const ADDRESS: usize = 16;
    const LENGTH: usize = 24;
    let bytes = std::ptr::from_mut(entry).cast::<u8>();
    let address = (std::ptr::from_ref(areas) as u64).to_ne_bytes();
    let count = (areas.len() as u32).to_ne_bytes();
    // SAFETY: an `Entry128` is a `struct io_uring_sqe` of 128 bytes, with `addr` and `len` there.
    unsafe {
        const { assert!(size_of::<squeue::Entry128>() == 128) };
        std::ptr::copy_nonoverlapping(address.as_ptr(), bytes.add(ADDRESS), address.len());
        std::ptr::copy_nonoverlapping(count.as_ptr(), bytes.add(LENGTH), count.len());
    }
}
