//! Reads: from the machine's wishes to the device, and back.

use std::sync::Arc;

use super::{Driver, FAILURES_MAX, Flying, Holding, StreamError};
use crate::device::{Completion, Read};
use crate::media::Media;
use crate::model::{ChunkId, Event, ReadId, Title};
use crate::pool::{ALIGNMENT, Chunk};

impl Driver {
    /// Starts a read for the machine.
    pub(super) fn read(&mut self, read: crate::model::machine::Read, chunks: Vec<ChunkId>) {
        if !self.titles.contains_key(&read.title) {
            // All its streams have left.
            self.events.push_back(Event::ReadFailed { read: read.read, service: 0 });
            return;
        }
        let chunk_bytes = self.pool.chunk_bytes() as u64;
        let grid = ALIGNMENT as u64;
        let first = read.offset / chunk_bytes;
        let end = (read.offset + read.bytes).next_multiple_of(grid);
        let holding = self.holdings[chunks[0].0 as usize];
        let same = holding.title == Some(read.title) && holding.number == first;
        let held = if same { first * chunk_bytes + holding.filled as u64 } else { 0 };
        // What was read beyond the last request, up to the grid, is not written again: somebody may
        // be reading right before it.
        let start = (read.offset / grid * grid).max(held.min(read.offset.next_multiple_of(grid)));
        for (at, chunk) in chunks.iter().enumerate() {
            let number = first + at as u64;
            let goes_on = at == 0 && same && start >= held;
            if !goes_on && !self.unread(*chunk) {
                self.no_memory(&read);
                return;
            }
            let holding = &mut self.holdings[chunk.0 as usize];
            if holding.title != Some(read.title) || holding.number != number {
                *holding = Holding { title: Some(read.title), number, filled: 0 };
            }
        }
        let windows = chunks.iter().enumerate().filter_map(|(at, chunk)| {
            let base = (first + at as u64) * chunk_bytes;
            let from = start.max(base) - base;
            let to = end.min(base + chunk_bytes).saturating_sub(base);
            let place = self.places[chunk.0 as usize];
            // SAFETY: the machine gave these bytes to this read alone; spans end before them, and a
            // chunk that is written anew has none.
            (from < to)
                .then(|| unsafe { Chunk::window(&self.pool, place, from as usize, to as usize) })
        });
        let windows: Vec<Chunk> = windows.collect();
        if windows.is_empty() {
            self.events.push_back(Event::ReadDone { read: read.read, service: 0 });
            return;
        }
        let Some(reading) = self.titles.get(&read.title) else { return };
        let media = Arc::clone(&reading.media);
        self.submit(media, start, windows, Flying::Machine { read, chunks, start });
    }

    pub(in crate::service) fn submit(
        &mut self,
        media: Arc<Media>,
        offset: u64,
        chunks: Vec<Chunk>,
        flying: Flying,
    ) {
        let token = self.next_token;
        self.next_token += 1;
        self.flying.insert(token, (flying, (self.clock)()));
        let reply = self.done.clone();
        self.device.submit(Read { token, media, offset, chunks, reply });
    }

    pub(super) fn complete(&mut self, completion: Completion) {
        // What this host has added is not the device's.
        let took = completion.ended.saturating_duration_since(completion.started);
        let took = took.saturating_sub(completion.late);
        let service = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.tally.service.observe(took);
        let flying = self.flying.remove(&completion.token);
        if let Some((_, submitted)) = &flying {
            // The device was free.
            self.causes.note(*submitted, completion.started);
        }
        self.delayed(completion.ended, completion.late);
        match flying.map(|(flying, _)| flying) {
            Some(Flying::Machine { read, chunks, start }) => {
                let (id, title, end) = (read.read, read.title, read.offset + read.bytes);
                // The windows go before the machine may give the memory to somebody else.
                drop(completion.chunks);
                self.machine_read_ended(id, title, &chunks, start..end, completion.result, service);
            }
            Some(Flying::BestEffort { stream, offset }) => {
                self.events.push_back(Event::BestEffortDone { service });
                let came = self.best_effort.came(stream, offset, completion);
                self.tally.bytes_best_effort += came;
            }
            None => {}
        }
    }

    fn machine_read_ended(
        &mut self,
        read: ReadId,
        title: Title,
        chunks: &[ChunkId],
        range: std::ops::Range<u64>,
        result: std::io::Result<usize>,
        service: u64,
    ) {
        let why = match result {
            Ok(bytes) if range.start + bytes as u64 >= range.end => {
                let chunk_bytes = self.pool.chunk_bytes() as u64;
                let got = range.start + bytes as u64;
                for chunk in chunks {
                    let holding = &mut self.holdings[chunk.0 as usize];
                    let base = holding.number * chunk_bytes;
                    let filled = got.saturating_sub(base).min(chunk_bytes) as usize;
                    holding.filled = holding.filled.max(filled);
                }
                if let Some(reading) = self.titles.get_mut(&title) {
                    reading.failures = 0;
                }
                self.events.push_back(Event::ReadDone { read, service });
                return;
            }
            Ok(_) => "the file has become shorter".to_owned(),
            Err(error) => error.to_string(),
        };
        self.tally.read_errors += 1;
        self.events.push_back(Event::ReadFailed { read, service });
        let Some(reading) = self.titles.get_mut(&title) else { return };
        reading.failures += 1;
        reading.crowded = false;
        tracing::warn!(
            offset = range.start,
            %why,
            failures = reading.failures,
            "a read for streams failed: after a few in a row the streams of the file are broken \
             off"
        );
        if reading.failures >= FAILURES_MAX {
            self.break_off(title, &StreamError::Device(why));
        }
    }
}
