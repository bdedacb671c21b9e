//! Bursts of work in several processes that start together.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::Error;

/// What one process did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Operations.
    pub ops: u64,
    /// Bytes.
    pub bytes: u64,
    /// Time of its own loop.
    pub elapsed: Duration,
    /// When its loop ended, since the processes were made.
    pub end: Duration,
}

/// Words that a process leaves: operations, bytes, time of its loop, its end.
const WORDS: usize = 4;

/// Memory that forked processes share with their parent.
struct Shared {
    words: *mut AtomicU64,
    count: usize,
}

impl Shared {
    fn new(count: usize) -> io::Result<Self> {
        // SAFETY: a new anonymous mapping; nothing that exists is touched.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                count * 8,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { words: address.cast(), count })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count);
        // SAFETY: within the mapping, zeroed by the kernel, aligned to a page, and every process
        // accesses it only as an atomic.
        unsafe { &*self.words.add(index) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` and nobody refers to it any more.
        unsafe { libc::munmap(self.words.cast(), self.count * 8) };
    }
}

/// Runs `body(index)` in `count` processes that start together. Fails if one of them does. With
/// one process, no process is made. The program has no threads, so forking is safe.
pub fn run(
    count: usize,
    body: &dyn Fn(usize) -> Result<Tally, Error>,
) -> Result<Vec<Tally>, Error> {
    if count == 1 {
        let tally = body(0)?;
        return Ok(vec![Tally { end: tally.elapsed, ..tally }]);
    }
    let shared = Shared::new(2 + count * WORDS).map_err(Error::io("shared memory"))?;
    let made = Instant::now();
    let mut children = Vec::new();
    for index in 0..count {
        // SAFETY: the process has a single thread, so the child may do what the parent may.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => {
                let error = io::Error::last_os_error();
                shared.word(1).store(2, Ordering::SeqCst);
                reap(&children);
                return Err(Error::io("fork")(error));
            }
            0 => child(&shared, index, made, body),
            pid => children.push(pid),
        }
    }
    while shared.word(0).load(Ordering::SeqCst) < count as u64 {
        std::thread::sleep(Duration::from_micros(100));
    }
    shared.word(1).store(1, Ordering::SeqCst);
    if !reap(&children) {
        return Err(Error::Usage("a process of the benchmark failed; see above".into()));
    }
    let word = |index: usize| shared.word(index).load(Ordering::SeqCst);
    let tally = |index: usize| Tally {
        ops: word(2 + index * WORDS),
        bytes: word(3 + index * WORDS),
        elapsed: Duration::from_nanos(word(4 + index * WORDS)),
        end: Duration::from_nanos(word(5 + index * WORDS)),
    };
    Ok((0..count).map(tally).collect())
}

/// The rest of a child's life. Its clock is the parent's, also after a fork.
fn child(
    shared: &Shared,
    index: usize,
    made: Instant,
    body: &dyn Fn(usize) -> Result<Tally, Error>,
) -> ! {
    shared.word(0).fetch_add(1, Ordering::SeqCst);
    let store = |place: usize, value: u64| {
        shared.word(2 + index * WORDS + place).store(value, Ordering::SeqCst);
    };
    let code = loop {
        match shared.word(1).load(Ordering::SeqCst) {
            0 => std::thread::sleep(Duration::from_micros(50)),
            1 => match body(index) {
                Ok(tally) => {
                    store(3, made.elapsed().as_nanos() as u64);
                    store(0, tally.ops);
                    store(1, tally.bytes);
                    store(2, tally.elapsed.as_nanos() as u64);
                    break 0;
                }
                Err(error) => {
                    eprintln!("forebay-bench: process {index}: {error}");
                    break 1;
                }
            },
            _ => break 1,
        }
    };
    // SAFETY: ends this child without running the parent's clean-up.
    unsafe { libc::_exit(code) }
}

/// Waits for all children; whether all ended well.
fn reap(children: &[libc::pid_t]) -> bool {
    let mut well = true;
    for &pid in children {
        let mut status = 0;
        // SAFETY: `status` is valid for the call.
        let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
        well &= waited == pid && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
    }
    well
}

/// What all processes did together, over the time from the first start to the last end. Adding up
/// each one's own speed would count time-sharing on few processors as parallel work.
pub fn rate(tallies: &[Tally], amount: impl Fn(&Tally) -> u64) -> f64 {
    let end = tallies.iter().map(|tally| tally.end).max().unwrap_or_default();
    let start = tallies.iter().map(|tally| tally.end.saturating_sub(tally.elapsed)).min();
    let span = end.saturating_sub(start.unwrap_or_default());
    tallies.iter().map(amount).sum::<u64>() as f64 / span.as_secs_f64().max(1e-9)
}

/// Repeats `step`, which tells the bytes it moved, until the time is over.
pub fn repeat(time: Duration, mut step: impl FnMut(u64) -> io::Result<u64>) -> io::Result<Tally> {
    let start = Instant::now();
    let mut tally = Tally::default();
    loop {
        // The clock is read every few steps only: on small I/O it would cost a few per cent.
        for _ in 0..8 {
            tally.bytes += step(tally.ops)?;
            tally.ops += 1;
        }
        tally.elapsed = start.elapsed();
        if tally.elapsed >= time {
            return Ok(tally);
        }
    }
}

/// A small random number generator (xorshift64*, Vigna 2016): cheap enough not to be measured.
pub struct Random(u64);

impl Random {
    /// A generator with its own sequence for each seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % bound.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeat_when_time_is_over_then_the_sums_are_right() {
        let tally = repeat(Duration::from_millis(5), |_| Ok(10)).unwrap();
        assert_eq!(tally.bytes, tally.ops * 10);
        assert!(tally.elapsed >= Duration::from_millis(5));
    }

    #[test]
    fn rate_when_processes_take_turns_then_their_speeds_do_not_add_up() {
        let ms = Duration::from_millis;
        let tally = |end, elapsed| Tally { ops: 100, bytes: 0, elapsed: ms(elapsed), end: ms(end) };
        assert_eq!(rate(&[tally(1000, 1000), tally(1000, 500)], |t| t.ops), 200.0);
        assert_eq!(rate(&[tally(500, 500), tally(1000, 500)], |t| t.ops), 200.0);
        assert_eq!(rate(&[tally(700, 500)], |t| t.ops), 200.0);
    }

    #[test]
    fn random_when_bounded_then_it_spreads_and_stays_below() {
        let mut random = Random::new(7);
        let mut seen = [0u32; 10];
        for _ in 0..10_000 {
            seen[random.below(10) as usize] += 1;
        }
        assert!(seen.iter().all(|count| (700..1300).contains(count)), "{seen:?}");
    }
}
