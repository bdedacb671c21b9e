//! The copy engine: by reference or inside the kernel where that works, through pooled buffers
//! elsewhere; holes stay holes.

use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::fs;
use rustix::io::Errno;

use crate::failpoints::fail_at;
use crate::local::retry;
use crate::{Bytes, ErrorClass, Result, StoreError};

pub use crate::limits::{Buffer, BufferPool, Gate, Pass, RateLimiter, Turns};

/// Classes of copies, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// A program waits for the bytes.
    Demand,
    /// Dirty bytes on their way to the backing store.
    WriteBack,
    /// Bytes that will be wanted.
    Prefetch,
    /// Moves between tiers and nodes.
    Rebalance,
}

impl Priority {
    /// Number of classes.
    pub const COUNT: usize = 4;
}

/// Stops a copy from another thread. Clones share one flag.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Asks the copy to stop; it returns `Cancelled` at its next step.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it was asked to.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Progress of one or several copies, readable at any time.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes of data moved (also those that the kernel cloned).
    pub bytes: AtomicU64,
    /// Bytes of holes passed over.
    pub holes: AtomicU64,
}

/// How a copy was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// Blocks are shared (reflink).
    Clone,
    /// Inside the kernel (`copy_file_range`).
    Kernel,
    /// Through this process.
    Buffers,
}

/// What a copy did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Bytes of data moved.
    pub bytes: u64,
    /// Bytes of holes passed over.
    pub holes: u64,
    /// How.
    pub means: Means,
}

/// The right to change the target of a copy, which may end meanwhile.
pub trait Permit: Send + Sync {
    /// Whether the next piece may be written.
    fn holds(&self) -> bool;
}

/// The conditions of a copy.
#[derive(Clone)]
pub struct Limits {
    /// Class.
    pub priority: Priority,
    /// Rate in bytes per second, if limited. What the kernel clones by reference is free.
    pub rate: Option<Arc<RateLimiter>>,
    /// One gate per device.
    pub gate: Option<Arc<Gate>>,
    /// Who has the first call on the device of the target, if anybody.
    pub turns: Option<Arc<dyn Turns>>,
    /// Asked right before each change of the target, if there is one. A copy without it any more ends
    /// as [`StoreError::Cancelled`].
    pub permit: Option<Arc<dyn Permit>>,
    /// Buffers; their size is also the size of a chunk.
    pub buffers: Arc<BufferPool>,
    /// Counters to add to.
    pub progress: Arc<Progress>,
}

impl Limits {
    /// No rate and no gate, with the process's common buffers (4 of 1 MiB).
    #[must_use]
    pub fn plain(priority: Priority) -> Self {
        static BUFFERS: OnceLock<Arc<BufferPool>> = OnceLock::new();
        let buffers = BUFFERS.get_or_init(|| Arc::new(BufferPool::new(1 << 20, 4)));
        Self {
            priority,
            rate: None,
            gate: None,
            turns: None,
            permit: None,
            buffers: Arc::clone(buffers),
            progress: Arc::default(),
        }
    }
}

/// Copies a range from `source` to the same offsets of `target`, blocking. Holes of the source stay
/// holes: what the target has there is punched. The target is at least `range.end` long afterwards.
/// Does not sync. Fails with `Shrunk` when the source ends before the range does; what was copied
/// until then (or until a cancel) stays copied.
pub fn copy_range(
    source: &dyn Bytes,
    target: &dyn Bytes,
    range: Range<u64>,
    limits: &Limits,
    cancel: &Cancel,
) -> Result<Copied> {
    let pass = limits.gate.as_ref().map(|gate| gate.enter(limits.priority));
    let mut copy = Copy { source, target, limits, cancel, pass, done: Copied::nothing() };
    if range.is_empty() {
        return Ok(copy.done);
    }
    let len = source.len()?;
    if len < range.end {
        return Err(copy.shrunk(len, range.end));
    }
    copy.step(0)?;
    if !copy.clone_range(&range, len)? {
        copy.extents(&range)?;
    }
    if target.len()? < range.end {
        copy.step(0)?;
        target.set_len(range.end)?;
    }
    Ok(copy.done)
}

/// One copy under way.
struct Copy<'a> {
    source: &'a dyn Bytes,
    target: &'a dyn Bytes,
    limits: &'a Limits,
    cancel: &'a Cancel,
    pass: Option<Pass<'a>>,
    done: Copied,
}

impl Copied {
    fn nothing() -> Self {
        Self { bytes: 0, holes: 0, means: Means::Kernel }
    }
}

impl Copy<'_> {
    fn shrunk(&self, at: u64, wanted: u64) -> StoreError {
        StoreError::Shrunk { path: self.source.label().to_owned(), at, wanted }
    }

    /// Waits for its turn before `bytes` more.
    fn step(&self, bytes: u64) -> Result<()> {
        if self.cancel.is_cancelled() {
            return Err(StoreError::Cancelled);
        }
        fail_at!("store.copy.before_chunk", self.source.label());
        if let Some(pass) = &self.pass {
            pass.wait(self.cancel)?;
        }
        if let Some(rate) = &self.limits.rate {
            rate.take(bytes, self.cancel)?;
        }
        match &self.limits.permit {
            Some(permit) if !permit.holds() => Err(StoreError::Cancelled),
            _ => Ok(()),
        }
    }

    fn count(&mut self, bytes: u64) {
        self.done.bytes += bytes;
        self.limits.progress.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Shares blocks where the file system can.
    fn clone_range(&mut self, range: &Range<u64>, len: u64) -> Result<bool> {
        const BLOCK: u64 = 4096;
        let (Some(from), Some(to)) = (self.source.fd(), self.target.fd()) else { return Ok(false) };
        let aligned = range.start.is_multiple_of(BLOCK)
            && (range.end.is_multiple_of(BLOCK) || range.end == len);
        if !aligned || self.source.stat()?.dev != self.target.stat()?.dev {
            return Ok(false);
        }
        let request = libc::file_clone_range {
            src_fd: from.as_raw_fd().into(),
            src_offset: range.start,
            src_length: range.end - range.start,
            dest_offset: range.start,
        };
        // SAFETY: both descriptors are borrowed and hence open; the kernel only reads the request,
        // which lives until the call returns.
        let result = unsafe { libc::ioctl(to.as_raw_fd(), libc::FICLONERANGE, &raw const request) };
        if result == 0 {
            self.done.means = Means::Clone;
            self.count(range.end - range.start);
        }
        // Whatever the reason of a refusal: copying decides whether it is an error.
        Ok(result == 0)
    }

    /// Copies data and passes over holes.
    fn extents(&mut self, range: &Range<u64>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let data = match self.source.seek_data(at) {
                Ok(Some(data)) => data.min(range.end),
                Ok(None) => {
                    let len = self.source.len()?;
                    if len < range.end {
                        return Err(self.shrunk(len, range.end));
                    }
                    range.end
                }
                Err(e) if is_unsupported(&e) => at,
                Err(e) => return Err(e),
            };
            if data > at {
                self.hole(at..data)?;
                at = data;
                continue;
            }
            let end = match self.source.seek_hole(at) {
                Ok(Some(hole)) => hole.min(range.end),
                Ok(None) => return Err(self.shrunk(at, range.end)),
                Err(e) if is_unsupported(&e) => range.end,
                Err(e) => return Err(e),
            };
            // A hole right here was made since the look before: go by it as by data.
            let end = end.max((at + 1).min(range.end));
            self.data(at..end, range.end)?;
            at = end;
        }
        Ok(())
    }

    fn hole(&mut self, range: Range<u64>) -> Result<()> {
        self.step(0)?;
        let end = range.end.min(self.target.len()?);
        if range.start < end {
            match self.target.punch(range.start, end - range.start) {
                Err(e) if is_unsupported(&e) => self.zeros(range.start..end)?,
                other => other?,
            }
        }
        self.done.holes += range.end - range.start;
        self.limits.progress.holes.fetch_add(range.end - range.start, Ordering::Relaxed);
        Ok(())
    }

    fn zeros(&mut self, range: Range<u64>) -> Result<()> {
        let buffers = Arc::clone(&self.limits.buffers);
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(buffers.buffer_size() as u64) as usize;
            self.step(len as u64)?;
            let mut buffer = buffers.take();
            let bytes = &mut buffer.bytes()[..len];
            bytes.fill(0);
            write_all(self.target, bytes, at)?;
            at += len as u64;
        }
        Ok(())
    }

    fn data(&mut self, range: Range<u64>, wanted: u64) -> Result<()> {
        let chunk = self.limits.buffers.buffer_size() as u64;
        let mut at = range.start;
        while at < range.end {
            let turns = self.limits.turns.as_ref().and_then(|turns| Some((turns, turns.piece()?)));
            let piece = turns.map_or(chunk, |(_, piece)| piece.clamp(1, chunk));
            let len = (range.end - at).min(piece);
            self.step(len)?;
            let turn = turns.map(|(turns, _)| turns.turn(self.target.fd(), at, len));
            let moved = match self.kernel(at, len)? {
                Some(moved) => moved,
                None => self.buffered(at, len as usize)?,
            };
            if turn.is_some() {
                self.write_out(at, moved);
            }
            drop(turn);
            if moved == 0 {
                return Err(self.shrunk(self.source.len()?.min(at), wanted));
            }
            self.count(moved);
            at += moved;
        }
        Ok(())
    }

    /// Has the device write now what is in the page cache of the target: later would be outside of the
    /// turn. Whether it has arrived is what a sync says at the end.
    fn write_out(&self, at: u64, bytes: u64) {
        let Some(to) = self.target.fd() else { return };
        let flags = libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        let (at, bytes) = (at as libc::off64_t, bytes as libc::off64_t);
        // SAFETY: the descriptor is borrowed and hence open, the rest are numbers. Some file systems
        // can't do it: then all works as without turns.
        unsafe { libc::sync_file_range(to.as_raw_fd(), at, bytes, flags) };
    }

    /// One `copy_file_range`; `None` where the kernel cannot, from then on for this copy.
    fn kernel(&mut self, at: u64, len: u64) -> Result<Option<u64>> {
        if self.done.means == Means::Buffers {
            return Ok(None);
        }
        let (Some(from), Some(to)) = (self.source.fd(), self.target.fd()) else {
            self.done.means = Means::Buffers;
            return Ok(None);
        };
        let (mut from_at, mut to_at) = (at, at);
        let moved = retry(|| {
            fs::copy_file_range(from, Some(&mut from_at), to, Some(&mut to_at), len as usize)
        });
        match moved {
            Ok(moved) if moved > 0 => Ok(Some(moved as u64)),
            Err(e @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => {
                Err(StoreError::io("copy to", self.target.label(), e))
            }
            // Some file systems refuse, others say that nothing could be copied: plain reads tell
            // an end of the file or a bad disk from that.
            Ok(_) | Err(_) => {
                self.done.means = Means::Buffers;
                Ok(None)
            }
        }
    }

    fn buffered(&self, at: u64, len: usize) -> Result<u64> {
        let mut buffer = self.limits.buffers.take();
        let bytes = &mut buffer.bytes()[..len];
        let read = self.source.read_at(bytes, at)?;
        write_all(self.target, &bytes[..read], at)?;
        Ok(read as u64)
    }
}

fn is_unsupported(error: &StoreError) -> bool {
    matches!(error.class(), ErrorClass::Unsupported | ErrorClass::Invalid)
}

fn write_all(target: &dyn Bytes, mut bytes: &[u8], mut at: u64) -> Result<()> {
    while !bytes.is_empty() {
        let written = target.write_at(bytes, at)?;
        bytes = &bytes[written..];
        at += written as u64;
    }
    Ok(())
}
