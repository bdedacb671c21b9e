//! Stacks of their own for requests, so that one that has to wait goes on where it stands.
//!
//! A thread that takes requests has others to take, and must not sit in a call of a device that
//! hangs. So a request runs on a stack of its own, which costs two switches of stacks; when it has to
//! wait it is left there ([`Pause::wait`]), and a thread that has nothing else to do goes on with it
//! ([`Fiber::run`]). It is the request that changes threads, not the duty to take requests, since the
//! kernel completes an entry of io_uring on the very thread that has submitted it: whoever holds a
//! ring can't leave it to others while he waits.
//!
//! The compiler does not see that a stack changes threads. What is alive on it when it is left must
//! not belong to a thread:
//! - No guard of a lock. Whoever has one of the threads that may wait might want the lock, so that
//!   nobody could go on: [`forebay_node::Context::wait`] demands the same.
//! - No reference to a thread-local variable, and no use of one in a function that waits in between:
//!   the adapter sets those of its own around [`Fiber::run`], outside of the stack (`front.rs`).

use std::cell::Cell;
use std::io;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use parking_lot::Mutex;

/// As much as a thread has. Memory is taken only for what was used of it.
const STACK: usize = 2 << 20;
/// Stacks that are kept for requests to come, beside one for each thread that takes them.
const MAX_SPARE: usize = 64;

static SPARE: Mutex<Vec<DefaultStack>> = Mutex::new(Vec::new());

thread_local! {
    /// The stack of this thread's next request: no lock, and still in the processor's cache.
    static OWN: Cell<Option<DefaultStack>> = const { Cell::new(None) };
}

/// Why something that waits is not to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Too many wait.
    Busy,
    /// Its program was told that it failed.
    GivenUp,
}

/// What is told to something that waits.
pub type Verdict = Result<(), Refusal>;

/// By what something on a stack of its own leaves it.
pub struct Pause<'a, W>(&'a Yielder<Verdict, W>);

impl<W> Pause<'_, W> {
    /// Returns when somebody goes on with it, perhaps another thread.
    ///
    /// # Errors
    /// It is to come to its end at once.
    #[inline(never)]
    pub fn wait(&self, wait: W) -> Verdict {
        self.0.suspend(wait)
    }
}

/// Something that runs on a stack of its own.
pub struct Fiber<W, R>(Option<Coroutine<Verdict, W, R, DefaultStack>>);

// SAFETY: what it was made of is `Send`, as `Fiber::new` demands, and so is what goes in and comes
// out. What is alive on its stack when it is left is as the module says.
unsafe impl<W: Send, R: Send> Send for Fiber<W, R> {}

/// How far something has come.
pub enum Step<W, R> {
    /// To its end.
    Ended(R, Stack),
    /// It waits, for what it says.
    Waits(Fiber<W, R>, W),
}

/// A stack that is not needed any more.
pub struct Stack(DefaultStack);

impl Stack {
    /// Keeps it for what this thread begins next.
    pub fn keep_here(self) {
        OWN.set(Some(self.0));
    }

    /// Keeps it for whoever needs one.
    pub fn keep(self) {
        let mut spare = SPARE.lock();
        if spare.len() < MAX_SPARE {
            spare.push(self.0);
        }
    }

    fn take() -> io::Result<DefaultStack> {
        if let Some(own) = OWN.take() {
            return Ok(own);
        }
        let spare = SPARE.lock().pop();
        spare.map_or_else(|| DefaultStack::new(STACK), Ok)
    }
}

impl<W, R> Fiber<W, R> {
    /// Something that does not run yet. It must not panic.
    ///
    /// # Errors
    /// There is no memory for its stack.
    pub fn new(body: impl FnOnce(Pause<'_, W>) -> R + Send + 'static) -> io::Result<Self>
    where
        W: 'static,
        R: 'static,
    {
        let begin = move |yielder: &Yielder<Verdict, W>, _| body(Pause(yielder));
        Ok(Fiber(Some(Coroutine::with_stack(Stack::take()?, begin))))
    }

    /// Runs it until it waits or ends. `verdict` is what it waited for; the first time it is not heard.
    pub fn run(mut self, verdict: Verdict) -> Step<W, R> {
        let mut coroutine = self.0.take().expect("only this takes it, and does not put it back");
        match coroutine.resume(verdict) {
            CoroutineResult::Yield(wait) => Step::Waits(Fiber(Some(coroutine)), wait),
            CoroutineResult::Return(end) => Step::Ended(end, Stack(coroutine.into_stack())),
        }
    }
}

impl<W, R> Drop for Fiber<W, R> {
    /// What nobody goes on with comes to its end.
    fn drop(&mut self) {
        let Some(mut coroutine) = self.0.take().filter(Coroutine::started) else { return };
        while !coroutine.done() {
            drop(coroutine.resume(Err(Refusal::GivenUp)).as_return());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Counts its steps, and waits between them.
    fn counting(steps: &Arc<AtomicUsize>) -> Fiber<u32, Verdict> {
        let steps = Arc::clone(steps);
        let body = move |pause: Pause<'_, u32>| {
            steps.fetch_add(1, Ordering::SeqCst);
            let verdict = pause.wait(7);
            steps.fetch_add(10, Ordering::SeqCst);
            verdict
        };
        Fiber::new(body).expect("a stack")
    }

    #[test]
    fn fiber_that_waits_when_another_thread_goes_on_then_from_where_it_stood() {
        let steps = Arc::new(AtomicUsize::new(0));
        let Step::Waits(paused, wait) = counting(&steps).run(Ok(())) else { panic!("it waits") };
        assert_eq!((wait, steps.load(Ordering::SeqCst)), (7, 1));
        let ended = std::thread::spawn(move || match paused.run(Ok(())) {
            Step::Ended(verdict, stack) => {
                stack.keep();
                verdict
            }
            Step::Waits(..) => panic!("it waits once"),
        });
        assert_eq!(ended.join().expect("no panic"), Ok(()));
        assert_eq!(steps.load(Ordering::SeqCst), 11, "each step once");
    }

    #[test]
    fn fiber_that_waits_when_nobody_goes_on_then_comes_to_its_end() {
        let steps = Arc::new(AtomicUsize::new(0));
        let Step::Waits(paused, _) = counting(&steps).run(Ok(())) else { panic!("it waits") };
        drop(paused);
        assert_eq!(steps.load(Ordering::SeqCst), 11);
        drop(counting(&steps));
        assert_eq!(steps.load(Ordering::SeqCst), 11, "one that was not begun is not");
        assert_eq!(Arc::strong_count(&steps), 1, "and nothing is left of either");
    }
}
