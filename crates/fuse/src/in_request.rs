//! Whether a thread is in the middle of a request. A daemon that dies of every panic
//! ([`die_of_panics`]) lets one in a request unwind to where the request was begun, so that its
//! number can be noted for the next daemon, and dies there.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    static SERVING: Cell<bool> = const { Cell::new(false) };
}

static DIES: AtomicBool = AtomicBool::new(false);

/// Has a panic in a request end the process once it is noted.
pub fn die_of_panics() {
    DIES.store(true, Ordering::Relaxed);
}

/// For the hook of panics: tells the next daemon what this thread is busy with that nobody asked for.
/// Returns whether it serves a request for which somebody notes a panic.
pub fn note_panic() -> bool {
    if let Some(work) = forebay_node::background_work_in_hand() {
        crate::recovery_journal::note_work(work);
        let (kind, number) = (work.kind(), work.number);
        tracing::error!(
            ?kind,
            number,
            "background work panicked; the next daemon does not begin this piece of it"
        );
    }
    SERVING.get()
}

/// While it lives, this thread serves a request.
pub(crate) struct Serving(());

pub(crate) fn enter() -> Serving {
    SERVING.set(true);
    Serving(())
}

impl Drop for Serving {
    fn drop(&mut self) {
        SERVING.set(false);
    }
}

/// Ends the process after a panic that was noted, if it dies of panics.
pub(crate) fn end_after_panic() {
    if DIES.load(Ordering::Relaxed) {
        std::process::abort();
    }
}
