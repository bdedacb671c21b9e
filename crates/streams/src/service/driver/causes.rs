//! Why a stream had nothing when it should have had something, in the words of metrics and status.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::Driver;
use crate::model::{GlitchCause, StreamId};

/// How long it is remembered that this host kept the device waiting.
const KEPT: Duration = Duration::from_secs(2);
/// Shorter waits are how a machine works; however many there are, they are no pause of it.
const LEAST: Duration = Duration::from_millis(1);
/// Less than this in that time is no reason for a glitch.
const NOTICEABLE: Duration = Duration::from_millis(20);
/// The cause of a glitch that comes of one daemon taking the streams of another over.
const DAEMON_CHANGE: &str = "daemon-change";

/// What the processors of this host have cost the device lately.
#[derive(Debug, Default)]
pub(super) struct Causes {
    /// When a delay was over, and how long it was.
    delays: VecDeque<(Instant, Duration)>,
    sum: Duration,
    /// What was before is accounted for: a pause of the machine is seen by each of its threads.
    seen: Option<Instant>,
}

impl Causes {
    /// From one moment to the other it was up to this host that the device went on.
    pub fn note(&mut self, from: Instant, to: Instant) {
        let from = self.seen.map_or(from, |seen| seen.max(from));
        let delay = to.saturating_duration_since(from);
        if delay >= LEAST {
            self.delays.push_back((to, delay));
            self.sum += delay;
            self.seen = Some(to);
        }
        while let Some((at, delay)) = self.delays.front().copied() {
            if to.saturating_duration_since(at) < KEPT {
                break;
            }
            self.delays.pop_front();
            self.sum -= delay;
        }
    }

    /// Whether this host explains most of what a stream was late by.
    fn explain(&self, late: Duration) -> bool {
        self.sum > (late / 2).max(NOTICEABLE)
    }
}

impl Driver {
    /// What the device has done was over at `ended`; this host has added `late` until then, and what
    /// has passed since.
    pub(super) fn delayed(&mut self, ended: Instant, late: Duration) {
        let now = (self.clock)();
        self.tally.hand_over.observe(late + now.saturating_duration_since(ended));
        self.causes.note(ended.checked_sub(late).unwrap_or(ended), now);
    }

    /// A stream had nothing for a while, which is over now.
    pub(super) fn glitch(&mut self, stream: StreamId, cause: GlitchCause, late: Duration) {
        if let Some(woken) = self.woken {
            self.causes.note(woken, (self.clock)());
        }
        let cause = self.cause(stream, cause, late);
        self.count_glitch(stream, cause, late);
    }

    fn count_glitch(&mut self, stream: StreamId, cause: &'static str, late: Duration) {
        *self.tally.glitches.entry(cause.into()).or_default() += 1;
        self.tally.glitch_seconds += late.as_secs_f64();
        if let Some(entry) = self.streams.get_mut(&stream) {
            entry.glitches += 1;
            let (path, late_ms) = (&entry.path, late.as_millis());
            tracing::warn!(
                stream = stream.0,
                %path,
                cause,
                late_ms,
                "data of a stream came after their deadline"
            );
        }
    }

    /// The cause of a glitch: the machine's, as far as it can know.
    fn cause(&self, stream: StreamId, cause: GlitchCause, late: Duration) -> &'static str {
        let entry = self.streams.get(&stream);
        let reading = entry.and_then(|entry| self.titles.get(&entry.title));
        let restored = entry.and_then(|entry| entry.restored);
        match cause {
            // It was not the device that refused.
            GlitchCause::ReadError if reading.is_some_and(|reading| reading.crowded) => {
                cause_word(GlitchCause::Memory)
            }
            GlitchCause::ReadError | GlitchCause::Degraded => cause_word(cause),
            // It ran dry without a guarantee, and is fed with one.
            _ if restored.is_some_and(|at| (self.clock)().saturating_duration_since(at) < late) => {
                cause_word(GlitchCause::Degraded)
            }
            GlitchCause::SlowDevice | GlitchCause::Late if self.causes.explain(late) => "host-busy",
            _ => cause_word(cause),
        }
    }

    /// A stream that began in an earlier service has its first bytes from this one: too late if what
    /// was at hand there is used up.
    pub(super) fn took_over(&mut self, stream: StreamId, dry_at: Instant) {
        let late = (self.clock)().saturating_duration_since(dry_at);
        if !late.is_zero() {
            self.count_glitch(stream, DAEMON_CHANGE, late);
        }
    }
}

/// A cause as metrics and status show it.
fn cause_word(cause: GlitchCause) -> &'static str {
    match cause {
        GlitchCause::ReadError => "read-error",
        GlitchCause::Degraded => "degraded",
        GlitchCause::SlowDevice => "device-slow",
        GlitchCause::Memory => "memory",
        GlitchCause::Late => "late",
    }
}
