//! What the machine refuses: who can do with less asks for less, and who asks for what others have
//! beyond their needs (a burst at a start) asks again when they have given it back.

use std::time::{Duration, Instant};

use crate::model::Shortage;
use crossbeam_channel::bounded;

use super::{Asked, Driver, Joining};
use crate::model::{Refusal, StreamId};
use crate::service::Rejected;

/// How often somebody asks again, and for how long.
const AGAIN: Duration = Duration::from_millis(250);
const RETRY_TIMEOUT: Duration = Duration::from_secs(3);

/// A request for a stream that is made again when bursts have ended.
pub(super) struct Retry {
    joining: Joining,
    again: Instant,
    until: Instant,
}

impl Driver {
    /// Asks for less than was refused, if there is a way; gives it back if there is none.
    fn with_less(&mut self, mut joining: Joining, refusal: &Refusal) -> Option<Joining> {
        let wanted = &mut joining.wanted;
        let less = match wanted.burst.take() {
            Some(mut burst) => match burst.less.take() {
                Some(less) => {
                    wanted.burst = Some(burst);
                    Some(less)
                }
                None => Some(burst.base),
            },
            None => wanted.least.take(),
        };
        if let Some(less) = less {
            wanted.rate = Some(less);
            // Before anybody else.
            let before = self.events.len();
            self.join(joining);
            if self.events.len() > before {
                self.events.rotate_right(1);
            }
            return None;
        }
        let shortage =
            matches!(refusal.shortage, Shortage::Device | Shortage::Memory | Shortage::Throttle);
        let now = (self.clock)();
        let until = joining.until.unwrap_or(now + RETRY_TIMEOUT);
        if !shortage || now >= until || !self.end_bursts() {
            return Some(joining);
        }
        joining.until = Some(until);
        self.retries.push(Retry { joining, again: now + AGAIN, until });
        None
    }

    /// Ends all bursts; false if there is none, or only some whose ends were not granted.
    fn end_bursts(&mut self) -> bool {
        let all = self.streams.iter().filter(|(_, entry)| entry.burst.is_some());
        let all: Vec<StreamId> = all.map(|(stream, _)| *stream).collect();
        for stream in &all {
            self.end_burst(*stream);
        }
        // Those that were ended before, and whose readers are not done with what they have in hand.
        let ending = || self.streams.values().any(|entry| entry.slowing);
        !all.is_empty() || ending()
    }

    /// Makes the requests again whose time has come.
    pub(super) fn ask_again(&mut self) {
        let now = (self.clock)();
        let ready = self.retries.extract_if(.., |retry| now >= retry.again.min(retry.until));
        let ready: Vec<Retry> = ready.collect();
        for Retry { joining, .. } in ready {
            self.join(joining);
        }
    }

    /// Gives a stream the rate that it needs, once it has had its burst.
    pub(super) fn slow_down(&mut self, stream: StreamId) {
        let Some(entry) = self.streams.get(&stream) else { return };
        let had = |until: u64| entry.consumed >= until.min(entry.end);
        if entry.burst.as_ref().is_some_and(|burst| had(burst.until)) {
            self.end_burst(stream);
        }
    }

    fn end_burst(&mut self, stream: StreamId) {
        let Some(entry) = self.streams.get_mut(&stream) else { return };
        // Whoever is about to do something else is asked the next time.
        if entry.wanted.is_some() || entry.parked || entry.paused || entry.failed {
            return;
        }
        let Some(burst) = entry.burst.take() else { return };
        entry.slowing = true;
        // Nobody waits for the answer; if it is refused the stream is faster than it must be.
        let (reply, _) = bounded(1);
        self.set_rate(stream, burst.base, reply);
    }

    pub(super) fn refused(&mut self, stream: StreamId, asked: Asked, refusal: &Refusal) {
        let asked = match asked {
            Asked::Open(joining) => match self.with_less(joining, refusal) {
                Some(joining) => Asked::Open(joining),
                None => return,
            },
            asked => asked,
        };
        let rejected = Rejected::of(refusal);
        // Whoever waits in order is told nothing.
        if !matches!(asked, Asked::Behind) {
            self.count_refusal(&rejected);
        }
        match asked {
            Asked::Open(Joining { title, reply, .. }) => {
                self.dissolve(stream);
                self.release(title);
                reply(Err(rejected));
            }
            Asked::Seek { reply, .. } => {
                // Goes on where it was: what was taken out of the queue is given again.
                if let Some(entry) = self.streams.get_mut(&stream) {
                    entry.given = entry.consumed;
                }
                self.deliver(stream);
                let _ = reply.send(Err(rejected));
            }
            Asked::Other { reply, rate } => {
                if rate.is_some() {
                    if let Some(entry) = self.streams.get_mut(&stream) {
                        entry.slowing = false;
                    }
                    self.deliver(stream);
                }
                let _ = reply.send(Err(rejected));
            }
            Asked::Behind => {}
            Asked::Wake => {
                if let Some(core) = self.streams.get(&stream).and_then(|entry| entry.core.upgrade())
                {
                    core.update(|queue| (queue.parked, queue.refused) = (true, Some(rejected)));
                }
            }
        }
    }

    pub(super) fn count_refusal(&mut self, refusal: &Rejected) {
        *self.tally.refused.entry(refusal.reason.clone()).or_default() += 1;
        tracing::info!(reason = %refusal.reason, why = %refusal.message, "stream refused");
    }
}
