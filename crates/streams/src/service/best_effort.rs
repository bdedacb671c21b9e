//! Streams without a guarantee: one read at a time each, in the slack that the machine finds.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::model::{Event, StreamId};
use crossbeam_channel::Sender;

use super::driver::{Driver, Flying};
use super::status::StreamLine;
use super::stream::{Core, Piece, StreamError};
use crate::device::Completion;
use crate::media::Media;
use crate::pool::{ALIGNMENT, Chunk, Pool};

/// Reads of a stream that may fail one after the other before it breaks off.
const FAILURES_MAX: u32 = 3;

/// A stream without a guarantee.
struct Idle {
    core: Weak<Core>,
    media: Arc<Media>,
    path: String,
    start: u64,
    end: u64,
    next: u64,
    failures: u32,
    failed: bool,
}

/// A read that the machine was asked for.
struct Asked {
    stream: StreamId,
    chunk: Chunk,
}

/// A read that somebody else wants to do.
struct Foreign {
    physical: u64,
    bytes: u64,
    granted: Sender<Instant>,
}

/// All streams without a guarantee.
pub(super) struct BestEffort {
    pub memory: Arc<Pool>,
    streams: HashMap<StreamId, Idle>,
    /// Whose reader has nothing, in the order in which they ran out.
    hungry: VecDeque<StreamId>,
    asked: HashMap<u64, Asked>,
    /// Turns that the machine was not asked for yet.
    turns: VecDeque<Foreign>,
    /// Those that it was asked for.
    turns_asked: HashMap<u64, Foreign>,
    next_id: u64,
}

impl BestEffort {
    pub fn new(memory: Arc<Pool>) -> Self {
        let (streams, asked) = (HashMap::new(), HashMap::new());
        Self {
            memory,
            streams,
            hungry: VecDeque::new(),
            asked,
            turns: VecDeque::new(),
            turns_asked: HashMap::new(),
            next_id: 0,
        }
    }

    /// Somebody wants to read by his own means when there is time for it.
    pub fn ask_for_turn(&mut self, physical: u64, bytes: u64, granted: Sender<Instant>) {
        self.turns.push_back(Foreign { physical, bytes, granted });
    }

    pub fn count(&self) -> usize {
        self.streams.len()
    }

    pub fn open(
        &mut self,
        core: &Arc<Core>,
        media: Arc<Media>,
        path: String,
        start: u64,
        end: u64,
    ) {
        let (failures, failed) = (0, false);
        let core_ = Arc::downgrade(core);
        let idle = Idle { core: core_, media, path, start, end, next: start, failures, failed };
        self.streams.insert(core.id, idle);
        self.hungry.push_back(core.id);
    }

    pub fn leave(&mut self, stream: StreamId) {
        self.streams.remove(&stream);
    }

    /// The reader is done with what it was given.
    pub fn consumed(&mut self, stream: StreamId, bytes: u64) {
        let more = self.streams.get(&stream).is_some_and(|idle| idle.next < idle.end);
        if more && bytes > 0 {
            self.hungry.push_back(stream);
        }
    }

    /// Goes on elsewhere; false if there is no such stream or place. The reader has nothing left.
    pub fn seek(&mut self, stream: StreamId, offset: u64) -> bool {
        let Some(idle) = self.streams.get_mut(&stream).filter(|idle| offset < idle.end) else {
            return false;
        };
        idle.next = offset;
        if let Some(core) = idle.core.upgrade() {
            core.update(|queue| {
                queue.ready.clear();
                queue.ended = false;
            });
        }
        let waits = self.hungry.contains(&stream)
            || self.asked.values().any(|asked| asked.stream == stream);
        if !waits {
            self.hungry.push_back(stream);
        }
        true
    }

    /// The machine has too much to do; later.
    pub fn declined(&mut self, id: u64) {
        if let Some(asked) = self.asked.remove(&id) {
            self.hungry.push_back(asked.stream);
        }
        self.turns.extend(self.turns_asked.remove(&id));
    }

    /// A read from this place has ended; returns the bytes that came.
    pub fn came(&mut self, stream: StreamId, from: u64, mut completion: Completion) -> u64 {
        let Some(idle) = self.streams.get_mut(&stream) else { return 0 };
        let Some(core) = idle.core.upgrade() else { return 0 };
        let aligned = idle.next / ALIGNMENT as u64 * ALIGNMENT as u64;
        if from != aligned {
            // The reader has gone elsewhere meanwhile, and has asked for what is there.
            return 0;
        }
        let skip = (idle.next - aligned) as usize;
        let came = completion.result.as_ref().map_or(0, |bytes| *bytes);
        let end = came.min((idle.end - aligned) as usize);
        if end > skip
            && let Some(chunk) = completion.chunks.pop()
        {
            idle.failures = 0;
            idle.next = aligned + end as u64;
            let ended = idle.next >= idle.end;
            core.update(|queue| {
                queue.ready.push_back(Piece::BestEffort(chunk, skip..end));
                queue.ended = ended;
            });
            return (end - skip) as u64;
        }
        idle.failures += 1;
        if idle.failures < FAILURES_MAX {
            self.hungry.push_back(stream);
        } else {
            idle.failed = true;
            let why = completion
                .result
                .err()
                .map_or("the file has become shorter".into(), |error| error.to_string());
            core.update(|queue| queue.failed = Some(StreamError::Device(why)));
        }
        0
    }

    pub fn break_off_all(&mut self, error: &StreamError) {
        for idle in self.streams.values() {
            if let Some(core) = idle.core.upgrade() {
                core.update(|queue| queue.failed = Some(error.clone()));
            }
        }
    }

    pub fn lines(&self) -> impl Iterator<Item = StreamLine> {
        self.streams.iter().map(|(id, idle)| StreamLine {
            id: id.0,
            path: idle.path.clone(),
            rate: 0,
            state: if idle.failed { "failed" } else { "best-effort" }.into(),
            done: (idle.next - idle.start.min(idle.next)) as f64
                / (idle.end - idle.start).max(1) as f64,
            glitches: 0,
        })
    }
}

impl Driver {
    /// Asks the machine for reads, as far as there is memory for them.
    pub(super) fn best_effort_requests(&mut self) {
        while let Some(turn) = self.best_effort.turns.pop_front() {
            let streams = &mut self.best_effort;
            let id = streams.next_id;
            streams.next_id += 1;
            let Foreign { physical, bytes, .. } = turn;
            streams.turns_asked.insert(id, turn);
            self.tell(Event::BestEffort { id, physical, bytes });
        }
        while !self.best_effort.hungry.is_empty() {
            let streams = &mut self.best_effort;
            let Some(chunk) = streams.memory.take() else { return };
            let Some(stream) = streams.hungry.pop_front() else { return };
            let Some(idle) = streams.streams.get(&stream) else { continue };
            let id = streams.next_id;
            streams.next_id += 1;
            let bytes = (streams.memory.chunk_bytes() as u64).min(idle.end - idle.next);
            let physical = idle.media.layout().locate(idle.next).map_or(0, |place| place.0);
            streams.asked.insert(id, Asked { stream, chunk });
            self.tell(Event::BestEffort { id, physical, bytes });
        }
    }

    /// The machine has found time for a read.
    pub(super) fn best_effort_turn(&mut self, id: u64) {
        if let Some(turn) = self.best_effort.turns_asked.remove(&id) {
            if turn.granted.send(Instant::now()).is_err() {
                // Whoever asked has gone.
                self.tell(Event::BestEffortDone { service: 0 });
            }
            return;
        }
        let asked = self.best_effort.asked.remove(&id);
        let found = asked.and_then(|Asked { stream, chunk }| {
            let idle = self.best_effort.streams.get(&stream)?;
            Some((stream, chunk, Arc::clone(&idle.media), idle.next))
        });
        match found {
            Some((stream, chunk, media, next)) => {
                let offset = next / ALIGNMENT as u64 * ALIGNMENT as u64;
                self.submit(media, offset, vec![chunk], Flying::BestEffort { stream, offset });
            }
            None => self.tell(Event::BestEffortDone { service: 0 }),
        }
    }
}
