//! A backing store that lets the threads of the node wait, but not that of the test, and what others do there
//! meanwhile.

use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

use forebay_store::decorators::{Interceptor, Operation, Verdict};
use parking_lot::{Condvar, Mutex};

use super::Rig;

/// So long the others are kept waiting at most.
const LIMIT: Duration = Duration::from_secs(5);

/// The thread that alone is let through, while there is one.
#[derive(Default)]
pub struct Hold {
    alone: Mutex<Option<ThreadId>>,
    over: Condvar,
}

/// While it lives, all others wait.
pub struct Held(Arc<Hold>);

impl Hold {
    pub fn begin(self: &Arc<Self>) -> Held {
        *self.alone.lock() = Some(std::thread::current().id());
        Held(self.clone())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        *self.0.alone.lock() = None;
        self.0.over.notify_all();
    }
}

impl Interceptor for Hold {
    fn before(&self, _: Operation, _: u64) -> Verdict {
        let this = std::thread::current().id();
        let mut alone = self.alone.lock();
        // A worker may have something that the test waits for.
        self.over.wait_while_for(&mut alone, |alone| alone.is_some_and(|it| it != this), LIMIT);
        Verdict::Pass
    }
}

pub fn removed_by_others(rig: &Rig) {
    std::fs::remove_file(rig.backing().join("file")).unwrap();
}

pub fn replaced_by_others(rig: &Rig) {
    std::fs::write(rig.backing().join("new"), b"theirs").unwrap();
    std::fs::rename(rig.backing().join("new"), rig.backing().join("file")).unwrap();
}
