//! What a client does on its connection: whether it takes what is there for it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Limits;

/// What buffers between us and a client may hold without anybody reading, about twice.
const IN_BUFFERS: u64 = 512 << 10;

/// When something last happened on a connection, and how far its client is.
#[derive(Debug, Default)]
pub(super) struct Activity {
    /// Milliseconds since the server's start.
    last: AtomicU64,
    /// Bytes of the present answer that its client has asked for.
    taken: AtomicU64,
    /// So many of them are its beginning.
    beginning: AtomicU64,
    /// Whether it is our turn: the client waits for bytes.
    ours: AtomicBool,
}

impl Activity {
    fn note(&self, begun: Instant) {
        self.last.store(begun.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// A request is being answered.
    pub fn begin_answer(&self, begun: Instant) {
        self.note(begun);
        self.ours.store(false, Ordering::Relaxed);
        self.beginning.store(0, Ordering::Relaxed);
    }

    /// The answer is a stream of `bytes` at `rate`; its beginning is two seconds of it, but at least
    /// what buffers hold, and half of it at most.
    pub fn begin_stream(&self, rate: u64, bytes: u64) {
        let beginning = (2 * rate).max(IN_BUFFERS).min(bytes / 2);
        self.taken.store(0, Ordering::Relaxed);
        self.beginning.store(beginning, Ordering::Relaxed);
    }

    /// The client asks for more, and gets so many bytes, or waits for them.
    pub fn took(&self, begun: Instant, bytes: Option<u64>) {
        self.note(begun);
        self.ours.store(bytes.is_none(), Ordering::Relaxed);
        self.taken.fetch_add(bytes.unwrap_or(0), Ordering::Relaxed);
    }

    /// Whether the client has taken nothing for too long of what is there for it: at its beginning
    /// that is sooner, for a player that pauses has its first seconds.
    pub fn is_stuck(&self, limits: &Limits, begun: Instant) -> bool {
        let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
        let starts = self.taken.load(Ordering::Relaxed) < self.beginning.load(Ordering::Relaxed);
        let limit = if starts { limits.stall.min(limits.idle) } else { limits.idle };
        !self.ours.load(Ordering::Relaxed) && begun.elapsed().saturating_sub(last) > limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_when_it_takes_nothing_then_stuck_sooner_at_its_beginning_and_not_while_it_waits() {
        let (stall, idle) = (Duration::from_secs(10), Duration::from_secs(100));
        let limits = Limits { stall, idle, ..Limits::default() };
        let after = |seconds| Instant::now() - Duration::from_secs(seconds);
        let activity = Activity::default();
        activity.begin_stream(1_000_000, 100_000_000);
        assert!(!activity.is_stuck(&limits, after(9)) && activity.is_stuck(&limits, after(12)));
        activity.took(Instant::now(), None);
        assert!(!activity.is_stuck(&limits, after(1000)), "the device is waited for");
        activity.took(Instant::now(), Some(2_000_000));
        assert!(!activity.is_stuck(&limits, after(90)) && activity.is_stuck(&limits, after(110)));
        activity.begin_answer(Instant::now());
        assert!(!activity.is_stuck(&limits, after(90)), "the next request");
    }
}
