//! Readers that fall behind the others of their title. The machine does not let those wait: it takes
//! the slow one's place away, and with it the memory of what was read for it, and finds another place
//! for it or none. Here is what the reader has of that: bytes that it has in hand stay what they are,
//! those that it has not taken yet are read again, and without a place it waits for one in order.

use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

use super::{Asked, Driver};
use crate::model::{ChunkId, Event, Refusal, StreamId, machine};
use crate::service::Rejected;

/// Whoever has waited so long for another place hears that there is none.
const PLACE_TIMEOUT: Duration = Duration::from_secs(20);
/// Those who wait are looked after so often, and whenever a stream leaves.
const OFTEN: Duration = Duration::from_millis(250);

/// A stream that has lost its place.
pub(super) struct DisplacedStream {
    pub stream: StreamId,
    since: Instant,
    why: Rejected,
}

impl Driver {
    /// Bytes that a reader is done with and the machine was not told of, as far as they are there for
    /// the machine: it may have put the stream back to the last byte that it knew of.
    pub(super) fn due(&self, stream: StreamId) -> u64 {
        let status = self.machine.status(stream);
        let entry = self.streams.get(&stream);
        status.zip(entry).map_or(0, |(status, entry)| {
            entry.consumed.min(status.filled).saturating_sub(status.offset)
        })
    }

    /// Tells the machine what a reader was done with before it was there again.
    pub(super) fn report_what_is_due(&mut self, stream: StreamId) {
        let bytes = self.due(stream);
        if bytes > 0 {
            self.tell(Event::Consumed { stream, bytes });
        }
    }

    /// The machine has found another place for a stream that did not ask for one.
    pub(super) fn moved(&mut self, stream: StreamId) {
        if !self.streams.contains_key(&stream) {
            return;
        }
        self.tally.behind += 1;
        self.take_back(stream);
        self.replaced(stream);
        self.go_on_if_idle(stream);
    }

    /// A stream that did not pause may have no place any more: it waits for one.
    pub(super) fn wait_for_a_place(&mut self, stream: StreamId, refusal: &Refusal) {
        let lost = self.machine.status(stream).is_some_and(|status| status.paused);
        let entry = self.streams.get_mut(&stream);
        let Some(entry) = entry.filter(|entry| lost && !entry.paused && !entry.parked) else {
            return;
        };
        entry.parked = true;
        let path = &entry.path;
        tracing::info!(
            stream = stream.0,
            %path,
            "a stream has fallen behind the others of its title, and the device has no place for \
             it alone: it waits for one"
        );
        self.tally.behind += 1;
        self.take_back(stream);
        let (since, why) = ((self.clock)(), Rejected::of(refusal));
        self.displaced.push_back(DisplacedStream { stream, since, why });
        self.go_on_if_idle(stream);
    }

    /// Room may have come free.
    pub(super) fn help_now(&mut self) {
        if let Some(before) = self.waiting_looked_at.checked_sub(OFTEN) {
            self.waiting_looked_at = before;
        }
    }

    /// Asks the machine for a place for whoever has waited longest, and sends away who has waited too
    /// long.
    pub(super) fn help_waiting(&mut self) {
        let now = (self.clock)();
        let Some(first) = self.displaced.front() else { return };
        if now.saturating_duration_since(self.waiting_looked_at) < OFTEN {
            return;
        }
        self.waiting_looked_at = now;
        let (stream, why) = (first.stream, first.why.clone());
        let goes_on = now.saturating_duration_since(first.since) < PLACE_TIMEOUT;
        let Some(entry) = self.streams.get(&stream).filter(|entry| entry.parked && !entry.paused)
        else {
            self.displaced.pop_front();
            return;
        };
        if goes_on {
            // Whatever else is asked for it comes first.
            if let Entry::Vacant(place) = self.asked.entry(stream) {
                place.insert(Asked::Behind);
                self.tell(Event::Resume(stream));
            }
            return;
        }
        self.displaced.pop_front();
        if let Some(core) = entry.core.upgrade() {
            // The next read after this one asks again.
            core.update(|queue| (queue.parked, queue.refused) = (true, Some(why)));
        }
    }

    /// Whether a chunk of the machine can be written anew: what readers still have of it in hand is
    /// left to them, and other memory takes its place, if there is some.
    pub(super) fn unread(&mut self, chunk: ChunkId) -> bool {
        let place = &mut self.places[chunk.0 as usize];
        if self.pool.is_read(*place) {
            let Some(other) = self.pool.exchange(*place) else { return false };
            *place = other;
            self.holdings[chunk.0 as usize] = super::Holding::default();
        }
        true
    }

    /// A read for which there is no memory, since readers that are behind have it in hand: later.
    pub(super) fn no_memory(&mut self, read: &machine::Read) {
        if let Some(reading) = self.titles.get_mut(&read.title)
            && !std::mem::replace(&mut reading.crowded, true)
        {
            tracing::warn!(
                offset = read.offset,
                "no memory to read on: slow readers still have it in hand. More memory for streams \
                 would help"
            );
        }
        // The machine may want the same at once.
        self.postponed.push(Event::ReadFailed { read: read.read, service: 0 });
    }
}
