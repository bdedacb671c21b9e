//! Threads of a test that take steps one at a time, in an order that follows from a seed.
//!
//! Whoever takes part runs only while it has the turn, and gives it away at each [`step`]: before and
//! after every operation of the backing store, wherever the backlog looks at a record, and instead of
//! waiting for a lock that is held over such operations.
//!
//! Time is part of the test, too: it passes with the steps ([`Clock`]), some of which take long, and
//! all that the node asks a clock for it asks this one. So a seed gives the same run on any machine.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// More steps than this without an end are a standstill.
const MAX_STEPS: u64 = 2_000_000;

/// What the clock shows at the beginning, in seconds since 1970.
const EPOCH_S: i64 = 2_000_000_000;

/// The time of a test: it passes with the steps of its threads and stands still between them.
pub(crate) struct Clock {
    base: Instant,
    passed_ns: AtomicU64,
    pace: Pace,
}

/// How much time the steps of a test take.
#[derive(Debug, Clone, Copy)]
enum Pace {
    /// Microseconds: much happens between two ticks of a kernel's clock.
    Fast,
    /// Now and then milliseconds, as on a machine with other work.
    Loaded,
    /// Now and then seconds, so that what counts for a time expires at any moment.
    Stalling,
}

impl Clock {
    /// The clock of a test, from now on that of the calling thread.
    pub(crate) fn start(seed: u64) -> Arc<Self> {
        let pace = [Pace::Fast, Pace::Loaded, Pace::Stalling][(seed / 5 % 3) as usize];
        let clock = Arc::new(Clock { base: Instant::now(), passed_ns: AtomicU64::new(0), pace });
        CLOCK.set(Some(clock.clone()));
        clock
    }

    fn passed(&self) -> Duration {
        Duration::from_nanos(self.passed_ns.load(Ordering::Acquire))
    }

    /// The time at which a file is changed at this moment, by a clock that ticks so often.
    pub(crate) fn file_time(&self, tick_ns: u64) -> (i64, u32) {
        let passed = self.passed_ns.fetch_add(1, Ordering::AcqRel);
        let passed = Duration::from_nanos(passed - passed % tick_ns);
        (EPOCH_S + passed.as_secs() as i64, passed.subsec_nanos())
    }

    fn pass(&self, random: u64) {
        let short = 1_000 + random % 20_000;
        let long = match (self.pace, random / 32_768 % 4096) {
            (Pace::Fast, _) => 0,
            (_, 0..20) => 1_000_000 + random % 9_000_000,
            (Pace::Stalling, 20..24) => 200_000_000 + random % 3_000_000_000,
            _ => 0,
        };
        self.passed_ns.fetch_add(short + long, Ordering::AcqRel);
    }
}

/// Gives the calling thread the time of the machine back.
pub(crate) struct ClockStops;

impl Drop for ClockStops {
    fn drop(&mut self) {
        CLOCK.set(None);
    }
}

/// What the clock of the calling thread's test shows; `None` if it is in no such test.
pub(crate) fn now() -> Option<Instant> {
    CLOCK.with_borrow(|clock| clock.as_ref().map(|clock| clock.base + clock.passed()))
}

/// The same in seconds and nanoseconds since 1970, never twice the same.
pub(crate) fn wall_now() -> Option<(i64, u32)> {
    CLOCK.with_borrow(|clock| clock.as_ref().map(|clock| clock.file_time(1)))
}

struct State {
    random: u64,
    current: usize,
    alive: Vec<bool>,
    steps: u64,
    /// One in so many steps gives the turn to another.
    stay: u64,
    /// Parts that are between two looks which take all that happens for their own doing.
    unwatched: usize,
    failed: bool,
    /// At this step all parts end where they are, as if the process were killed.
    killed_at: u64,
}

/// With this a part ends whose process is killed.
struct Killed;

/// The threads of one test.
pub(crate) struct Lockstep {
    state: Mutex<State>,
    turn: Condvar,
}

thread_local! {
    static MINE: RefCell<Option<(Arc<Lockstep>, usize)>> = const { RefCell::new(None) };
    static CLOCK: RefCell<Option<Arc<Clock>>> = const { RefCell::new(None) };
}

impl State {
    fn random(&mut self) -> u64 {
        // xorshift64* (Vigna, 2016).
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn is_killed(&self) -> bool {
        self.steps >= self.killed_at
    }

    fn pass(&mut self) {
        let alive: Vec<usize> = (0..self.alive.len()).filter(|at| self.alive[*at]).collect();
        if !alive.is_empty() {
            let choice = self.random() as usize % alive.len();
            self.current = alive[choice];
        }
    }
}

/// Gives the turn on when its thread ends, however it does.
struct Leave(Arc<Lockstep>, usize);

impl Drop for Leave {
    fn drop(&mut self) {
        MINE.set(None);
        let mut state = self.0.state.lock();
        state.alive[self.1] = false;
        state.failed |= std::thread::panicking() && !state.is_killed();
        state.pass();
        self.0.turn.notify_all();
    }
}

impl Lockstep {
    /// Runs the parts in steps until all have ended, or until so many steps were taken: then they end
    /// where they are. Panics if one does, or if they get nowhere. Says whether all came to their end.
    pub(crate) fn run(seed: u64, killed_at: u64, parts: Vec<Box<dyn FnOnce() + Send>>) -> bool {
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut state = State {
            random,
            current: 0,
            alive: vec![true; parts.len()],
            steps: 0,
            stay: 1 << (seed % 5),
            unwatched: 0,
            failed: false,
            killed_at,
        };
        state.pass();
        let all = Arc::new(Lockstep { state: Mutex::new(state), turn: Condvar::new() });
        let clock = CLOCK.with_borrow(Clone::clone);
        let threads: Vec<_> = parts
            .into_iter()
            .enumerate()
            .map(|(at, part)| {
                let (all, clock) = (all.clone(), clock.clone());
                std::thread::spawn(move || {
                    let _leave = Leave(all.clone(), at);
                    MINE.set(Some((all.clone(), at)));
                    CLOCK.set(clock);
                    let state = all.state.lock();
                    all.wait(state, at);
                    part();
                })
            })
            .collect();
        let ended: Vec<_> = threads.into_iter().map(std::thread::JoinHandle::join).collect();
        let mut whole = true;
        for end in ended {
            match end {
                Err(panic) if panic.is::<Killed>() => whole = false,
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => {}
            }
        }
        whole
    }

    fn wait(&self, mut state: parking_lot::MutexGuard<'_, State>, at: usize) {
        while state.current != at && !state.failed && !state.is_killed() {
            self.turn.wait(&mut state);
        }
        let (failed, killed) = (state.failed, state.is_killed());
        drop(state);
        if failed {
            panic!("another part has failed");
        }
        if killed {
            std::panic::resume_unwind(Box::new(Killed));
        }
    }
}

/// Whether the calling thread takes part.
pub(crate) fn is_on() -> bool {
    MINE.with_borrow(Option::is_some)
}

/// Another thread may have the turn now.
pub(crate) fn step() {
    take_step(false);
}

/// This thread gets on only when another has done something.
pub(crate) fn blocked() {
    take_step(true);
}

fn take_step(blocked: bool) {
    if std::thread::panicking() {
        // What ends does the rest without waiting for its turn.
        return;
    }
    let clock = CLOCK.with_borrow(Clone::clone);
    let Some((all, at)) = MINE.with_borrow(Clone::clone) else {
        clock.inspect(|clock| clock.pass(0));
        return;
    };
    let mut state = all.state.lock();
    state.steps += 1;
    if let Some(clock) = clock {
        clock.pass(state.random());
    }
    if state.is_killed() {
        all.turn.notify_all();
    }
    if state.steps > MAX_STEPS {
        state.failed = true;
        all.turn.notify_all();
        drop(state);
        panic!("standstill");
    }
    if blocked || state.random() % state.stay == 0 {
        state.pass();
        if state.current != at {
            all.turn.notify_all();
        }
    }
    all.wait(state, at);
}

/// While it lives, what others do to a directory can't be told from what its thread does.
pub(crate) struct Unwatched(Option<Arc<Lockstep>>);

/// Begins what is described at [`Unwatched`].
pub(crate) fn unwatched() -> Unwatched {
    let all = MINE.with_borrow(|mine| mine.as_ref().map(|(all, _)| all.clone()));
    if let Some(all) = &all {
        all.state.lock().unwatched += 1;
    }
    Unwatched(all)
}

impl Drop for Unwatched {
    fn drop(&mut self) {
        if let Some(all) = &self.0 {
            all.state.lock().unwatched -= 1;
        }
    }
}

/// Lets the others go on until what happens now is noticed.
pub(crate) fn until_watched() {
    let Some((all, _)) = MINE.with_borrow(Clone::clone) else { return };
    while all.state.lock().unwatched > 0 {
        blocked();
    }
}

/// Locks what is held over operations of the backing store.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> parking_lot::MutexGuard<'_, T> {
    loop {
        match mutex.try_lock() {
            Some(locked) => return locked,
            None if is_on() => blocked(),
            None => return mutex.lock(),
        }
    }
}
