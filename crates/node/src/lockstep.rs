//! Threads of a test that take steps one at a time, in an order that follows from a seed.
//!
//! Whoever takes part runs only while it has the turn, and gives it away at each [`step`]: before and
//! after every operation of the backing store, wherever the backlog looks at a record, and instead of
//! waiting for a lock that is held over such operations.

use std::cell::RefCell;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// More steps than this without an end are a standstill.
const MOST_STEPS: u64 = 2_000_000;

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
}

/// The threads of one test.
pub(crate) struct Lockstep {
    state: Mutex<State>,
    turn: Condvar,
}

thread_local! {
    static MINE: RefCell<Option<(Arc<Lockstep>, usize)>> = const { RefCell::new(None) };
}

impl State {
    fn random(&mut self) -> u64 {
        // xorshift64* (Vigna, 2016).
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
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
        state.failed |= std::thread::panicking();
        state.pass();
        self.0.turn.notify_all();
    }
}

impl Lockstep {
    /// Runs the parts in steps until all have ended. Panics if one does, or if they get nowhere.
    pub(crate) fn run(seed: u64, parts: Vec<Box<dyn FnOnce() + Send>>) {
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut state = State {
            random,
            current: 0,
            alive: vec![true; parts.len()],
            steps: 0,
            stay: 1 << (seed % 5),
            unwatched: 0,
            failed: false,
        };
        state.pass();
        let all = Arc::new(Lockstep { state: Mutex::new(state), turn: Condvar::new() });
        let threads: Vec<_> = parts
            .into_iter()
            .enumerate()
            .map(|(at, part)| {
                let all = all.clone();
                std::thread::spawn(move || {
                    let _leave = Leave(all.clone(), at);
                    MINE.set(Some((all.clone(), at)));
                    let state = all.state.lock();
                    all.wait(state, at);
                    part();
                })
            })
            .collect();
        let ended: Vec<_> = threads.into_iter().map(std::thread::JoinHandle::join).collect();
        for end in ended {
            if let Err(panic) = end {
                std::panic::resume_unwind(panic);
            }
        }
    }

    fn wait(&self, mut state: parking_lot::MutexGuard<'_, State>, at: usize) {
        while state.current != at && !state.failed {
            self.turn.wait(&mut state);
        }
        let failed = state.failed;
        drop(state);
        if failed && !std::thread::panicking() {
            panic!("another part has failed");
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
    let Some((all, at)) = MINE.with_borrow(Clone::clone) else { return };
    let mut state = all.state.lock();
    state.steps += 1;
    if state.steps > MOST_STEPS {
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
