//! What holds a copy back: rates, more urgent copies, buffers.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::copy::{Cancel, Priority};
use crate::{Result, StoreError};

/// Somebody who has the first call on the device that is written to.
pub trait Turns: Send + Sync {
    /// Bytes that may be written at a time; none if there is nobody to wait for.
    fn piece(&self) -> Option<u64>;

    /// Waits until so many bytes can be written to a file at an offset. The turn ends when what is
    /// returned is dropped.
    fn turn(&self, file: Option<BorrowedFd<'_>>, offset: u64, bytes: u64) -> Box<dyn Any>;
}

/// Longest sleep between two looks at the cancel flag.
const SLICE: Duration = Duration::from_millis(20);

/// A token bucket shared by all copies of a class. Who takes more than there is goes into debt and
/// sleeps it off, so that large requests are neither starved nor split.
#[derive(Debug)]
pub struct RateLimiter(Mutex<Bucket>);

#[derive(Debug)]
struct Bucket {
    /// Tokens per second; infinite when unlimited.
    rate: f64,
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    fn fill(&mut self) {
        let now = Instant::now();
        let gained = now.duration_since(self.filled).as_secs_f64() * self.rate;
        // A tenth of a second's worth may be saved up.
        self.tokens = (self.tokens + gained).min(self.rate / 10.0);
        self.filled = now;
    }
}

impl RateLimiter {
    /// `rate` in units (bytes, operations) per second; 0 means no limit.
    #[must_use]
    pub fn new(rate: u64) -> Self {
        Self(Mutex::new(Bucket { rate: rate_of(rate), tokens: 0.0, filled: Instant::now() }))
    }

    /// Changes the rate for what is taken from now on.
    pub fn set_rate(&self, rate: u64) {
        let mut bucket = self.0.lock();
        if bucket.rate.is_finite() {
            bucket.fill();
        }
        bucket.rate = rate_of(rate);
        bucket.filled = Instant::now();
    }

    /// Takes tokens, sleeping as long as the rate demands.
    pub fn take(&self, units: u64, cancel: &Cancel) -> Result<()> {
        let wait = {
            let mut bucket = self.0.lock();
            if bucket.rate.is_infinite() {
                return Ok(());
            }
            bucket.fill();
            bucket.tokens -= units as f64;
            Duration::from_secs_f64((-bucket.tokens / bucket.rate).clamp(0.0, 3600.0))
        };
        sleep(wait, cancel)
    }
}

fn rate_of(rate: u64) -> f64 {
    if rate == 0 { f64::INFINITY } else { rate as f64 }
}

/// Sleeps, in slices short enough to notice a cancel.
pub(crate) fn sleep(wait: Duration, cancel: &Cancel) -> Result<()> {
    let end = Instant::now() + wait;
    loop {
        if cancel.is_cancelled() {
            return Err(StoreError::Cancelled);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(SLICE));
    }
}

/// Lets urgent work on one device go first: a less urgent copy waits before each chunk while
/// more urgent work is under way, but never longer than a bound, so that it always advances.
#[derive(Debug)]
pub struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
    longest_wait: Duration,
}

#[derive(Debug, Default)]
struct GateState {
    active: [usize; Priority::COUNT],
    /// When a program last had what it waited for.
    demand_ended: Option<Instant>,
    /// Until when what nobody asked for has had its share of a busy device.
    spent_until: Option<Instant>,
}

/// A program that asks again within this time is still at it.
const QUIET: Duration = Duration::from_millis(20);

/// What nobody asked for may take this part of the time of a device that is never quiet.
const SHARE: u32 = 32;

/// Work under way in a class; ends on drop.
#[derive(Debug)]
pub struct Pass<'a> {
    gate: &'a Gate,
    priority: Priority,
}

impl Gate {
    /// `longest_wait` bounds the wait before each chunk.
    #[must_use]
    pub fn new(longest_wait: Duration) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), longest_wait }
    }

    /// Does something that nobody asked for, which may or may not pay off: when no program has
    /// waited for the device for a while, or else if what was done before took no more than a
    /// small share of the time since. Waits for such a moment, at most the gate's bound; `None` if
    /// there was none.
    pub fn speculate<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let end = Instant::now() + self.longest_wait;
        let quiet = loop {
            let mut state = self.state.lock();
            let now = Instant::now();
            let quiet = state.quiet_from().is_some_and(|from| from <= now);
            let has_share = state.spent_until.is_none_or(|until| until <= now);
            if quiet || has_share {
                break quiet;
            }
            if now >= end {
                return None;
            }
            let soon = [state.quiet_from(), state.spent_until].into_iter().flatten().min();
            self.changed.wait_until(&mut state, soon.unwrap_or(end).clamp(now, end));
        };
        let began = Instant::now();
        let done = work();
        if !quiet {
            let now = Instant::now();
            self.state.lock().spent_until = Some(now + (now - began) * SHARE);
        }
        Some(done)
    }

    /// Announces work of a class. Never blocks.
    #[must_use]
    pub fn enter(&self, priority: Priority) -> Pass<'_> {
        self.state.lock().active[priority as usize] += 1;
        Pass { gate: self, priority }
    }
}

impl GateState {
    /// From when on the device counts as quiet; `None` while a program waits for it.
    fn quiet_from(&self) -> Option<Instant> {
        let waiting = self.active[Priority::Demand as usize] > 0;
        (!waiting).then(|| self.demand_ended.map_or_else(Instant::now, |ended| ended + QUIET))
    }
}

impl Pass<'_> {
    /// Waits while more urgent work is under way, at most the gate's bound. Returns whether it is
    /// free (as opposed to the bound having passed).
    pub fn wait(&self, cancel: &Cancel) -> Result<bool> {
        let end = Instant::now() + self.gate.longest_wait;
        let mut state = self.gate.state.lock();
        while state.active[..self.priority as usize].iter().any(|count| *count > 0) {
            if cancel.is_cancelled() {
                return Err(StoreError::Cancelled);
            }
            let now = Instant::now();
            if now >= end {
                return Ok(false);
            }
            self.gate.changed.wait_until(&mut state, end.min(now + SLICE));
        }
        Ok(true)
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.state.lock();
        state.active[self.priority as usize] -= 1;
        if self.priority == Priority::Demand {
            state.demand_ended = Some(Instant::now());
        }
        drop(state);
        self.gate.changed.notify_all();
    }
}

/// Page-aligned buffers for copies, at most a fixed number of a fixed size.
pub struct BufferPool {
    size: usize,
    state: Mutex<Pool>,
    returned: Condvar,
}

struct Pool {
    free: Vec<Vec<u8>>,
    left: usize,
}

/// A buffer on loan; goes back on drop.
pub struct Buffer<'a> {
    pool: &'a BufferPool,
    bytes: Vec<u8>,
    start: usize,
}

const PAGE: usize = 4096;

impl BufferPool {
    /// A pool of at most `count` buffers of `size` bytes (rounded up to pages, 64 KiB to 16 MiB),
    /// allocated when first needed.
    #[must_use]
    pub fn new(size: usize, count: usize) -> Self {
        let size = size.clamp(64 << 10, 16 << 20).next_multiple_of(PAGE);
        let state = Mutex::new(Pool { free: Vec::new(), left: count.max(1) });
        Self { size, state, returned: Condvar::new() }
    }

    /// Bytes per buffer.
    #[must_use]
    pub fn buffer_size(&self) -> usize {
        self.size
    }

    /// Borrows a buffer, waiting for one if all are out.
    pub fn take(&self) -> Buffer<'_> {
        let mut state = self.state.lock();
        let bytes = loop {
            if let Some(bytes) = state.free.pop() {
                break bytes;
            }
            if state.left > 0 {
                state.left -= 1;
                break vec![0; self.size + PAGE];
            }
            self.returned.wait(&mut state);
        };
        let start = bytes.as_ptr().align_offset(PAGE).min(PAGE);
        Buffer { pool: self, bytes, start }
    }
}

impl Buffer<'_> {
    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.pool.size]
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        self.pool.state.lock().free.push(std::mem::take(&mut self.bytes));
        self.pool.returned.notify_one();
    }
}
