//! Access patterns: who read and wrote which pieces of which files, recorded where requests are
//! served, as long as somebody wants it.
//!
//! While nobody does, a request costs one load of a flag. While somebody does, accesses of an open
//! file to one row (32 blocks of 64 KiB) that this node serves from its tiers are added up in its
//! handle, and leave it as one count when the row, the kind or the tenth of a second changes; all
//! else leaves at once. What leaves goes into a queue of fixed size, without a lock or an allocation,
//! and what finds it full is only counted. A thread takes it from there, finds out who the processes
//! are, and keeps the patterns (`forebay_profile`).
//!
//! Owned here: the recording, its queue and its thread. The room knows handles and records; it must not know
//! what requests do with bytes, nor what anybody does with the patterns.
//!
//! # Invariants
//! - A request waits for nobody here, and allocates nothing.
//! - What is lost is counted, and what is recorded needs bounded memory (tests of this file,
//!   `crates/forebay/tests/patterns.rs`).

mod recorded;
mod report;
mod tasks;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use forebay_profile::{Access, Config, Kind, Origin, Profiler};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::process::{Pid, getpgid};

pub use recorded::RecordedTask;
pub use report::{PatternRow, PatternTask, Patterns, SimilarTasks};

use crate::error::{NodeError, Result};
use crate::handles::Handle;
use crate::node::Node;
use tasks::Tasks;

/// Bytes of a block, and blocks of a row.
const BLOCK: u64 = 64 << 10;
const ROW_BLOCKS: u64 = 32;
const ROW: u64 = BLOCK * ROW_BLOCKS;
/// Events that wait to be taken.
const WAITING: usize = 1 << 16;
/// How often they are taken.
const PAUSE: Duration = Duration::from_millis(50);
/// What patterns take up; with the queue it stays below 64 MiB.
const MEMORY: usize = 56 << 20;
/// Nanoseconds of a slot, in which accesses to a row are added up.
const SLOT: u64 = 100_000_000;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Opened,
    Closed,
    Read,
    Write,
}

#[derive(Debug, Clone, Copy)]
struct Event {
    /// Nanoseconds since the recording began.
    at: u64,
    fh: u64,
    ino: u64,
    /// The row, counted from the beginning of the file.
    piece: u64,
    count: u32,
    pid: u32,
    /// The process group of who opens.
    group: u32,
    what: What,
    /// Served from a tier of this node.
    here: bool,
}

/// What the requests see of a recording.
#[derive(Default)]
pub(crate) struct Recorder {
    on: AtomicBool,
    /// Recordings that began; tells the thread of an earlier one that it is over.
    number: AtomicU64,
    queue: OnceLock<SyncSender<Event>>,
    /// What found the queue full.
    lost: AtomicU64,
    zero: OnceLock<Instant>,
    /// When the recording began.
    since: AtomicU64,
    /// Who takes events; woken by opens, so that it sees who opens as long as that is there.
    taker: Mutex<Option<Thread>>,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    queue: Option<Receiver<Event>>,
    recording: Option<Recording>,
}

struct Recording {
    began: Instant,
    node: u32,
    profiler: Profiler,
    tasks: Tasks,
    here: u64,
    elsewhere: u64,
    /// Of these, those of each task.
    elsewhere_of: HashMap<u64, u64>,
}

/// Accesses of a handle to one row that have not left it: row (35 bits), write (1), slot (12), count
/// (16).
#[derive(Default)]
pub(crate) struct Tally(AtomicU64);

const COUNT_BITS: u32 = 16;
const SLOT_BITS: u32 = 12;
const MAX: u64 = (1 << COUNT_BITS) - 1;

impl Tally {
    fn key(piece: u64, write: bool, slot: u64) -> u64 {
        let row = (piece << 1 | u64::from(write)) << SLOT_BITS;
        (row | slot & ((1 << SLOT_BITS) - 1)) << COUNT_BITS
    }

    /// Adds blocks; what has to leave, as it was packed.
    fn add(&self, key: u64, count: u64) -> Option<u64> {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            let same = now & !MAX == key && (now & MAX) + count <= MAX;
            let new = if same { now + count } else { key | count.min(MAX) };
            match self.0.compare_exchange_weak(now, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return (!same && now & MAX > 0).then_some(now),
                Err(found) => now = found,
            }
        }
    }

    fn take(&self) -> Option<u64> {
        Some(self.0.swap(0, Ordering::Relaxed)).filter(|packed| packed & MAX > 0)
    }
}

/// Who reads or writes: a process, through an open file.
#[derive(Clone, Copy)]
pub(crate) struct Accessor<'a> {
    /// The number of the open file.
    pub fh: u64,
    /// The open file.
    pub handle: &'a Handle,
    /// The process.
    pub pid: u32,
}

impl Recorder {
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Holds what is recorded, for the test that no request waits for it.
    #[cfg(test)]
    pub(crate) fn lock_books(&self) -> impl Drop + '_ {
        self.books.lock()
    }

    fn now(&self) -> u64 {
        let zero = *self.zero.get_or_init(Instant::now);
        u64::try_from(zero.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn send(&self, event: Event) {
        let sent = self.queue.get().map(|queue| queue.try_send(event));
        if !matches!(sent, Some(Ok(()))) {
            self.lost.fetch_add(u64::from(event.count.max(1)), Ordering::Relaxed);
        }
    }

    /// What a handle had added up: at the last moment of its slot that is past.
    fn send_packed(&self, packed: u64, fh: u64, ino: u64, pid: u32, now: u64) {
        let slots = 1u64 << SLOT_BITS;
        let slot = packed >> COUNT_BITS & (slots - 1);
        let current = now / SLOT;
        let ago = (current % slots + slots - slot) % slots;
        let at = if ago == 0 { now } else { current.saturating_sub(ago) * SLOT + SLOT - 1 };
        if at < self.since.load(Ordering::Relaxed) {
            // Of an earlier recording, in which the handle did not say so any more.
            return;
        }
        let row = packed >> (COUNT_BITS + SLOT_BITS);
        let what = if row & 1 == 1 { What::Write } else { What::Read };
        let count = (packed & MAX) as u32;
        self.send(Event { at, fh, ino, piece: row >> 1, count, pid, group: 0, what, here: true });
    }

    /// A file was opened by a process.
    pub(crate) fn opened(&self, fh: u64, ino: u64, pid: u32) {
        if self.is_on() {
            let (at, what) = (self.now(), What::Opened);
            // A short-lived process may be gone when it is looked at; the head of its group, a job
            // of `forebay run` say, lives longer.
            let pid_of = i32::try_from(pid).ok().and_then(Pid::from_raw);
            let group = pid_of.and_then(|pid| getpgid(Some(pid)).ok());
            let group = group.map_or(0, |group| group.as_raw_nonzero().get().cast_unsigned());
            self.send(Event { at, fh, ino, piece: 0, count: 0, pid, group, what, here: true });
            if let Some(taker) = &*self.taker.lock() {
                taker.unpark();
            }
        }
    }

    /// A handle is gone.
    pub(crate) fn closed(&self, fh: u64, handle: &Handle) {
        if self.is_on() {
            let (at, ino) = (self.now(), handle.file.ino.0);
            if let Some(packed) = handle.tally.take() {
                self.send_packed(packed, fh, ino, 0, at);
            }
            let what = What::Closed;
            self.send(Event {
                at,
                fh,
                ino,
                piece: 0,
                count: 0,
                pid: 0,
                group: 0,
                what,
                here: true,
            });
        }
    }

    /// Bytes were read or written: from a tier of this node (`here`) or through anything slower.
    #[inline]
    pub(crate) fn note(&self, by: Accessor<'_>, offset: u64, len: usize, write: bool, here: bool) {
        if self.is_on() && len > 0 {
            self.note_rows(by, offset, len as u64, write, here);
        }
    }

    #[cold]
    fn note_rows(
        &self,
        Accessor { fh, handle, pid }: Accessor<'_>,
        offset: u64,
        len: u64,
        write: bool,
        here: bool,
    ) {
        let now = self.now();
        let ino = handle.file.ino.0;
        let last = offset.saturating_add(len - 1);
        let (first_block, last_block) = (offset / BLOCK, last / BLOCK);
        for piece in offset / ROW..=last / ROW {
            let from = first_block.max(piece * ROW_BLOCKS);
            let to = last_block.min(piece * ROW_BLOCKS + ROW_BLOCKS - 1);
            let count = to - from + 1;
            if here {
                let key = Tally::key(piece, write, now / SLOT);
                if let Some(packed) = handle.tally.add(key, count) {
                    self.send_packed(packed, fh, ino, pid, now);
                }
            } else {
                let what = if write { What::Write } else { What::Read };
                let count = count as u32;
                self.send(Event { at: now, fh, ino, piece, count, pid, group: 0, what, here });
            }
        }
    }
}

impl Node {
    /// Begins to record who accesses what. Files that are opened from now on are served by the daemon,
    /// request by request; those that the kernel reads by itself already are not seen.
    ///
    /// # Errors
    /// `EBUSY` while a recording is under way; what the system says if there is no thread.
    pub fn start_patterns(self: &Arc<Self>) -> Result<()> {
        let recorder = &self.patterns;
        let mut books = recorder.books.lock();
        if books.recording.is_some() {
            return Err(NodeError::Posix(Errno::BUSY));
        }
        if books.queue.is_none() {
            let (sender, receiver) = sync_channel(WAITING);
            let _ = recorder.queue.set(sender);
            books.queue = Some(receiver);
        }
        while books.queue.as_ref().is_some_and(|queue| queue.try_recv().is_ok()) {}
        let number = recorder.number.fetch_add(1, Ordering::AcqRel) + 1;
        let this = self.this.clone();
        let takes = move || {
            while let Some(node) = this.upgrade() {
                let over = node.patterns.number.load(Ordering::Acquire) != number
                    || node.stopping.load(Ordering::Acquire);
                if over || !node.take_patterns() {
                    return;
                }
                drop(node);
                std::thread::park_timeout(PAUSE);
            }
        };
        let thread = std::thread::Builder::new().name("patterns".into()).spawn(takes);
        let thread = thread
            .map_err(|error| NodeError::Config(format!("no thread for patterns: {error}")))?;
        *recorder.taker.lock() = Some(thread.thread().clone());
        let config = Config { memory_bytes: MEMORY, ..Config::default() };
        books.recording = Some(Recording {
            began: Instant::now(),
            node: self.cluster().map_or(0, |cluster| cluster.number().into()),
            tasks: Tasks::new(config.most_tasks()),
            profiler: Profiler::new(config),
            here: 0,
            elsewhere: 0,
            elsewhere_of: HashMap::new(),
        });
        recorder.lost.store(0, Ordering::Relaxed);
        recorder.since.store(recorder.now(), Ordering::Relaxed);
        recorder.on.store(true, Ordering::Release);
        Ok(())
    }

    /// Ends the recording and forgets what was recorded; false if there was none.
    pub fn stop_patterns(&self) -> bool {
        self.patterns.on.store(false, Ordering::Release);
        self.patterns.number.fetch_add(1, Ordering::AcqRel);
        if let Some(taker) = self.patterns.taker.lock().take() {
            taker.unpark();
        }
        self.patterns.books.lock().recording.take().is_some()
    }

    /// Takes what waits; false if nothing is recorded any more.
    fn take_patterns(&self) -> bool {
        let mut books = self.patterns.books.lock();
        let Books { queue: Some(queue), recording: Some(recording) } = &mut *books else {
            return false;
        };
        // What comes meanwhile is for the next time.
        for event in queue.try_iter().take(WAITING) {
            recording.take(&event);
        }
        true
    }

    /// What was recorded so far.
    ///
    /// # Errors
    /// `ENOENT` if nothing is recorded.
    pub fn patterns(&self) -> Result<Patterns> {
        if !self.take_patterns() {
            return Err(NodeError::Posix(Errno::NOENT));
        }
        let books = self.patterns.books.lock();
        let recording = books.recording.as_ref().ok_or(NodeError::Posix(Errno::NOENT))?;
        Ok(report::of(self, recording, self.patterns.lost.load(Ordering::Relaxed)))
    }
}

impl Recording {
    fn take(&mut self, event: &Event) {
        let kind = match event.what {
            What::Opened => {
                let task = self.tasks.opened(event.fh, event.pid, event.group);
                if let Some(task) = task {
                    self.profiler.task(task, self.node, 0, 1.0);
                }
                return;
            }
            What::Closed => return self.tasks.closed(event.fh),
            What::Read => Kind::Read,
            What::Write => Kind::Write,
        };
        let counted = if event.here { &mut self.here } else { &mut self.elsewhere };
        *counted += u64::from(event.count);
        let task = self.tasks.of(event.fh, event.pid);
        if let (Some(task), false) = (task, event.here) {
            *self.elsewhere_of.entry(task).or_default() += u64::from(event.count);
        }
        let origin = Origin { node: self.node, task, handle: event.fh };
        let block = event.piece * ROW_BLOCKS;
        let (at, file, count) = (event.at, event.ino, event.count);
        self.profiler.record(&Access { at, origin, file, block, kind, count });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tally_when_added_to_by_many_threads_then_nothing_is_lost_or_counted_twice() {
        let tally = Tally::default();
        let left = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (tally, left) = (&tally, &left);
                scope.spawn(move || {
                    for turn in 0..10_000 {
                        let key = Tally::key((thread + turn / 7) % 3, turn % 2 == 0, turn / 100);
                        if let Some(packed) = tally.add(key, 2) {
                            left.fetch_add(packed & MAX, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let rest = tally.take().map_or(0, |packed| packed & MAX);
        assert_eq!(left.into_inner() + rest, 4 * 10_000 * 2);
        assert_eq!(tally.take(), None);
    }

    #[test]
    fn tally_when_a_row_or_its_count_is_full_then_what_was_added_leaves() {
        let tally = Tally::default();
        let key = Tally::key(1 << 34, true, 5000);
        assert_eq!(tally.add(key, 3), None);
        assert_eq!(tally.add(key, MAX - 3), None);
        let packed = tally.add(key, 1).expect("full");
        assert_eq!(packed & MAX, MAX);
        assert_eq!(packed >> (COUNT_BITS + SLOT_BITS), (1 << 34) << 1 | 1);
        assert!(tally.add(Tally::key(0, true, 5000), 1).is_some());
    }
}
