//! Real files by io_uring: one thread, which sleeps in the kernel until a read ends or a new one
//! is handed in.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::model::Layout;
use crossbeam_channel::{Receiver, Sender, TryRecvError, unbounded};
use io_uring::{IoUring, opcode, types};
use rustix::event::{EventfdFlags, eventfd};

use super::{CHUNKS_MAX, Device, Read};
use crate::extents::layout_of;
use crate::media::{Access, FileKey};
use crate::pool::ALIGNMENT;
use crate::priority::ask_for_promptness;

/// Reads that the kernel is given at once.
const ENTRIES: usize = 32;
/// A thread that waits for reads wakes so often at the least. What it is late then, or when a read
/// wakes it, is not the device's time: the host did not let it run.
const TICK: Duration = Duration::from_millis(10);
/// The completion that says that something was handed in.
const WAKE: u64 = u64::MAX;

/// Reads by io_uring. The thread ends when this is dropped and the last read is done.
#[derive(Debug)]
pub struct Uring {
    queue: Option<Sender<Read>>,
    wake: Arc<OwnedFd>,
}

impl Uring {
    /// Starts the thread.
    ///
    /// # Errors
    /// What io_uring_setup(2) says: `ENOSYS` or `EPERM` where it is forbidden.
    pub fn start() -> io::Result<Self> {
        let ring = IoUring::new(ENTRIES as u32 * 2)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let wake = Arc::new(wake);
        let (queue, reads) = unbounded();
        let woken = Arc::clone(&wake);
        let work = move || Worker::new(ring, reads, woken).run();
        std::thread::Builder::new().name("stream-io".into()).spawn(work)?;
        Ok(Self { queue: Some(queue), wake })
    }

    fn wake(&self) {
        // Fails only when the counter is full, and then the thread is awake anyway.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.queue = None;
        self.wake();
    }
}

impl Device for Uring {
    fn name(&self) -> String {
        "files by io_uring".into()
    }

    fn access(&self) -> Access {
        Access::Direct
    }

    fn layout(&self, file: &File, key: FileKey) -> Layout {
        layout_of(file, key.size())
    }

    fn submit(&self, read: Read) {
        let queue = self.queue.as_ref().expect("taken only when dropped");
        match queue.send(read) {
            Ok(()) => self.wake(),
            Err(refused) => {
                let error = io::Error::other("the I/O thread has ended");
                refused.into_inner().complete(Err(error), Instant::now());
            }
        }
    }
}

/// A read that the kernel has.
struct Flying {
    read: Read,
    started: Instant,
    /// Of the time since, what the host has taken.
    late: Duration,
    done: usize,
    /// What the kernel reads from while the call is under way.
    vectors: Box<[libc::iovec; CHUNKS_MAX]>,
}

impl Flying {
    /// Fills the vectors with what is not read yet and returns how many there are.
    fn aim(&mut self) -> usize {
        let mut skip = self.done;
        let mut count = 0;
        for chunk in &mut self.read.chunks {
            let room = chunk.room();
            let from = skip.min(room.len());
            skip -= from;
            if from < room.len() {
                let base = room[from..].as_mut_ptr().cast();
                self.vectors[count] = libc::iovec { iov_base: base, iov_len: room.len() - from };
                count += 1;
            }
        }
        count
    }

    /// Takes the result of a call; true if the read goes on with another one.
    fn goes_on(&mut self, result: i32) -> Result<bool, io::Error> {
        if result < 0 {
            let error = io::Error::from_raw_os_error(-result);
            let again = matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN));
            return if again || self.read.media.refused_direct(&error) {
                Ok(true)
            } else {
                Err(error)
            };
        }
        let count = result as usize;
        self.done += count;
        let off_the_grid = self.read.media.is_direct() && !count.is_multiple_of(ALIGNMENT);
        Ok(count > 0 && !off_the_grid && self.aim() > 0)
    }
}

struct Worker {
    ring: IoUring,
    reads: Receiver<Read>,
    wake: Arc<OwnedFd>,
    flying: [Option<Flying>; ENTRIES],
    armed: bool,
    closed: bool,
}

impl Worker {
    fn new(ring: IoUring, reads: Receiver<Read>, wake: Arc<OwnedFd>) -> Self {
        let flying = std::array::from_fn(|_| None);
        Self { ring, reads, wake, flying, armed: false, closed: false }
    }

    fn run(mut self) {
        ask_for_promptness("io_uring");
        loop {
            self.take_up();
            let busy = self.flying.iter().any(Option::is_some);
            if self.closed && !busy {
                return;
            }
            if !self.armed && !self.closed {
                self.arm();
            }
            let woken = self.sleep(busy);
            let done: Vec<(u64, i32)> =
                self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
            for (token, result) in done {
                if token == WAKE {
                    self.armed = false;
                    // Empties the counter; what was handed in is looked for next.
                    let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
                } else {
                    self.land(token as usize, result, woken);
                }
            }
        }
    }

    /// Waits until something is done, or a tick has passed while reads are under way; returns when it
    /// woke.
    fn sleep(&mut self, busy: bool) -> Instant {
        let since = Instant::now();
        // Older kernels (before 5.11) have no such limit: there it is not known who was late.
        let ticks = busy && self.ring.params().is_feature_ext_arg();
        let waited = if ticks {
            let tick = types::Timespec::from(TICK);
            self.ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&tick))
        } else {
            self.ring.submit_and_wait(1)
        };
        match waited.map_err(|error| (error.raw_os_error(), error)) {
            Ok(_) | Err((Some(libc::EINTR | libc::ETIME), _)) => {}
            Err((_, error)) => tracing::error!(%error, "io_uring_enter"),
        }
        let woken = Instant::now();
        let late = woken.duration_since(since).saturating_sub(TICK);
        if ticks && !late.is_zero() {
            for flying in self.flying.iter_mut().flatten() {
                flying.late += late;
            }
        }
        woken
    }

    /// Hands to the kernel what was handed in, as far as there is room.
    fn take_up(&mut self) {
        while let Some(slot) = self.flying.iter().position(Option::is_none) {
            match self.reads.try_recv() {
                Ok(read) => {
                    let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
                    let vectors = Box::new([none; CHUNKS_MAX]);
                    let started = Instant::now();
                    self.flying[slot] =
                        Some(Flying { read, started, late: Duration::ZERO, done: 0, vectors });
                    self.launch(slot);
                }
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.closed = true;
                    return;
                }
            }
        }
    }

    fn launch(&mut self, slot: usize) {
        let flying = self.flying[slot].as_mut().expect("launched is what is there");
        let count = flying.aim() as u32;
        let fd = types::Fd(flying.read.media.file().as_raw_fd());
        let entry = opcode::Readv::new(fd, flying.vectors.as_ptr(), count)
            .offset(flying.read.offset + flying.done as u64)
            .build()
            .user_data(slot as u64);
        // SAFETY: vectors, chunks and file live in `flying` until the completion has come: the
        // thread ends only when nothing flies.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the ring has room for every slot and the wake-up");
    }

    fn arm(&mut self) {
        let fd = types::Fd(self.wake.as_raw_fd());
        let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32).build().user_data(WAKE);
        // SAFETY: the entry refers to no memory, and the descriptor lives as long as the worker.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the ring has room for every slot and the wake-up");
        self.armed = true;
    }

    fn land(&mut self, slot: usize, result: i32, woken: Instant) {
        let Some(mut flying) = self.flying[slot].take() else { return };
        match flying.goes_on(result) {
            Ok(true) => {
                self.flying[slot] = Some(flying);
                self.launch(slot);
            }
            Ok(false) => {
                let Flying { read, started, late, done, .. } = flying;
                read.complete_at(Ok(done), started, woken, late);
            }
            Err(error) => {
                let Flying { read, started, late, .. } = flying;
                read.complete_at(Err(error), started, woken, late);
            }
        }
    }
}
