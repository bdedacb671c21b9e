//! What a thread has changed that lasts or that others see, counted in debug builds: a request that is
//! handed to another thread, as it has to wait, is begun there as it came, and must not have changed
//! anything before.
//!
//! Whoever changes records, objects, maps of extents or the table of open files says so by [`note`].
//! The front compares [`noted`] before a request with what it is when the request is handed over.

use std::cell::Cell;

thread_local! {
    static EFFECTS: Cell<u64> = const { Cell::new(0) };
}

/// This thread is about to change something.
pub fn note() {
    if cfg!(debug_assertions) {
        EFFECTS.set(EFFECTS.get() + 1);
    }
}

/// How often this thread has said so; always 0 in a release build.
#[must_use]
pub fn noted() -> u64 {
    EFFECTS.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_of_a_thread_then_counted_for_it_alone() {
        let before = noted();
        note();
        assert_eq!(noted(), before + 1);
        std::thread::spawn(|| assert_eq!(noted(), 0)).join().unwrap();
    }
}
