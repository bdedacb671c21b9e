//! What readers want of their streams: to go elsewhere, to stop, another rate; and readers that take
//! nothing at all. The machine gives the memory of a stream that does one of these to somebody else,
//! so it is told only when the reader is done with all that it was given.

use std::time::Duration;

use super::{Answer, Asked, Driver};
use crate::model::{Event, Rate, StreamId};
use crate::service::Rejected;

/// What waits until the reader has nothing left.
pub(super) enum Wanted {
    Seek(u64, Answer),
    Rate(Rate, Answer),
    Pause,
    /// To give its place back, since nobody reads.
    Park,
}

impl Driver {
    /// Takes back what the reader has not taken out of its queue.
    pub(super) fn take_back(&mut self, stream: StreamId) {
        let Some(entry) = self.streams.get_mut(&stream) else { return };
        let Some(core) = entry.core.upgrade() else { return };
        core.update(|queue| {
            let lengths = queue.ready.drain(..).map(|piece| piece.len() as u64);
            entry.given -= lengths.sum::<u64>();
            queue.ended = false;
        });
    }

    fn want(&mut self, stream: StreamId, wanted: Wanted) {
        self.take_back(stream);
        if let Some(entry) = self.streams.get_mut(&stream) {
            entry.wanted = Some(wanted);
        }
        self.go_on_if_idle(stream);
    }

    /// Tells the machine what is wanted if the reader is done with all that it was given.
    pub(super) fn go_on_if_idle(&mut self, stream: StreamId) {
        let Some(entry) = self.streams.get_mut(&stream) else { return };
        if entry.given != entry.consumed {
            return;
        }
        let Some(wanted) = entry.wanted.take() else { return };
        let event = match wanted {
            Wanted::Seek(offset, reply) => {
                self.asked.insert(stream, Asked::Seek { offset, reply });
                Event::Seek { stream, offset }
            }
            Wanted::Rate(rate, reply) => {
                self.asked.insert(stream, Asked::Other { reply, rate: Some(rate.clone()) });
                Event::SetRate { stream, rate }
            }
            Wanted::Pause => {
                entry.paused = true;
                Event::Pause(stream)
            }
            Wanted::Park => {
                entry.parked = true;
                // Whoever reads a paused stream waits until it resumes.
                let asks = !entry.paused;
                if let Some(core) = entry.core.upgrade() {
                    core.update(|queue| queue.parked = asks);
                }
                self.tally.parked += 1;
                tracing::info!(
                    stream = stream.0,
                    path = %entry.path,
                    "nobody reads a stream: its place goes to others until somebody does"
                );
                Event::Park(stream)
            }
        };
        self.events.push_back(event);
    }

    pub(super) fn seek(&mut self, stream: StreamId, offset: u64, reply: Answer) {
        let Some(entry) = self.streams.get(&stream) else {
            let answer = if self.best_effort.seek(stream, offset) {
                Ok(Duration::ZERO)
            } else {
                Err(Rejected::senseless("no such place in the stream".into()))
            };
            let _ = reply.send(answer);
            return;
        };
        if offset >= entry.end || entry.wanted.is_some() {
            let why = if offset >= entry.end { "beyond the end" } else { "it is changing already" };
            let _ = reply.send(Err(Rejected::senseless(why.into())));
            return;
        }
        self.want(stream, Wanted::Seek(offset, reply));
    }

    pub(super) fn set_rate(&mut self, stream: StreamId, rate: Rate, reply: Answer) {
        match self.streams.get(&stream).map(|entry| entry.wanted.is_some()) {
            None => refuse(&reply, "a stream without a guarantee has no rate to change"),
            Some(true) => refuse(&reply, "it is changing already"),
            Some(false) => self.want(stream, Wanted::Rate(rate, reply)),
        }
    }

    pub(super) fn pause(&mut self, stream: StreamId) {
        let free = |entry: &super::Guaranteed| entry.wanted.is_none() && !entry.paused;
        if self.streams.get(&stream).is_some_and(free) {
            self.want(stream, Wanted::Pause);
        }
    }

    pub(super) fn resume(&mut self, stream: StreamId, reply: Answer) {
        let Some(entry) = self.streams.get_mut(&stream) else {
            refuse(&reply, "a stream without a guarantee does not pause");
            return;
        };
        if matches!(entry.wanted, Some(Wanted::Pause)) {
            // It was not told to the machine yet.
            entry.wanted = None;
            let _ = reply.send(Ok(Duration::ZERO));
            self.deliver(stream);
        } else {
            self.asked.insert(stream, Asked::Other { reply, rate: None });
            self.events.push_back(Event::Resume(stream));
        }
    }

    /// Somebody reads a stream again that has given its place back.
    pub(super) fn wake(&mut self, stream: StreamId) {
        if self.streams.get(&stream).is_some_and(|entry| entry.parked && !entry.paused) {
            self.asked.insert(stream, Asked::Wake);
            self.events.push_back(Event::Resume(stream));
        }
    }

    /// Takes their places from streams of which nobody has taken anything for so long, though there
    /// was something to take, or which have been paused for so long.
    pub(super) fn park_idle(&mut self) {
        let now = (self.clock)();
        if now < self.idle_looked_at + self.idle / 8 {
            return;
        }
        self.idle_looked_at = now;
        let idle = self.streams.iter().filter(|(_, entry)| {
            let still = entry.paused || entry.given > entry.consumed;
            let free = entry.wanted.is_none() && !entry.parked && !entry.failed;
            still && free && now.duration_since(entry.touched) >= self.idle
        });
        // Memory that the reader has in hand can't be given to others.
        let all_queued = idle.filter(|(_, entry)| {
            entry.core.upgrade().is_some_and(|core| {
                core.look(|queue| queue.ready.iter().map(|piece| piece.len() as u64).sum::<u64>())
                    == entry.given - entry.consumed
            })
        });
        for stream in all_queued.map(|(stream, _)| *stream).collect::<Vec<_>>() {
            self.want(stream, Wanted::Park);
        }
    }
}

fn refuse(reply: &Answer, why: &str) {
    let _ = reply.send(Err(Rejected::senseless(why.into())));
}
