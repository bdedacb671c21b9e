//! Buffers: a pool of chunks, and the run of chunks between the last of a title's streams and the
//! place up to which the title has been read for them.

use std::collections::VecDeque;

/// A chunk of the pool, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId(pub u32);

/// All chunks. Their number never changes.
#[derive(Debug, Clone)]
pub(crate) struct Pool {
    free: Vec<ChunkId>,
    total: usize,
    peak: usize,
}

impl Pool {
    pub fn new(chunks: u32) -> Self {
        let free: Vec<ChunkId> = (0..chunks).rev().map(ChunkId).collect();
        Self { total: free.len(), free, peak: 0 }
    }

    pub fn free(&self) -> u64 {
        self.free.len() as u64
    }

    pub fn total(&self) -> u64 {
        self.total as u64
    }

    pub fn used(&self) -> u64 {
        (self.total - self.free.len()) as u64
    }

    /// Most chunks ever used at once.
    pub fn peak(&self) -> u64 {
        self.peak as u64
    }

    fn take(&mut self) -> Option<ChunkId> {
        let chunk = self.free.pop()?;
        self.peak = self.peak.max(self.total - self.free.len());
        Some(chunk)
    }
}

#[derive(Debug, Clone, Copy)]
struct Held {
    chunk: ChunkId,
    /// Streams that are in it.
    cursors: u32,
}

/// Consecutive chunks of one file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ring {
    held: VecDeque<Held>,
    /// Number in the file of the first chunk.
    front: u64,
    /// Streams that are just behind the last chunk.
    ahead: u32,
}

impl Ring {
    /// An empty ring at a chunk of the file, for about so many chunks.
    pub fn reset(&mut self, front: u64, chunks: usize) {
        debug_assert!(self.held.is_empty(), "chunks of another file");
        self.held.reserve(chunks);
        (self.front, self.ahead) = (front, 0);
    }

    /// Number in the file of the first chunk.
    pub fn front(&self) -> u64 {
        self.front
    }

    /// Number in the file of the chunk behind the last.
    pub fn back(&self) -> u64 {
        self.front + self.held.len() as u64
    }

    pub fn chunk(&self, number: u64) -> Option<ChunkId> {
        self.held.get(number.checked_sub(self.front)? as usize).map(|held| held.chunk)
    }

    /// Takes chunks until `back` is reached or none is free.
    pub fn extend(&mut self, back: u64, pool: &mut Pool) {
        while self.back() < back {
            let Some(chunk) = pool.take() else { return };
            // Who was behind the last chunk is in this one.
            self.held.push_back(Held { chunk, cursors: std::mem::take(&mut self.ahead) });
        }
    }

    fn cursors(&mut self, number: u64) -> &mut u32 {
        match self.held.get_mut((number - self.front) as usize) {
            Some(held) => &mut held.cursors,
            None => &mut self.ahead,
        }
    }

    /// A stream is in this chunk, or just behind the last.
    pub fn enter(&mut self, number: u64) {
        debug_assert!((self.front..=self.back()).contains(&number));
        *self.cursors(number) += 1;
    }

    /// It is no more.
    pub fn leave(&mut self, number: u64) {
        *self.cursors(number) -= 1;
    }

    /// Gives back the chunks that no stream is in or before.
    pub fn trim(&mut self, pool: &mut Pool) {
        while let Some(held) = self.held.front().filter(|held| held.cursors == 0) {
            pool.free.push(held.chunk);
            self.held.pop_front();
            self.front += 1;
        }
    }

    /// Puts the chunks of an earlier part of the file, which ends where this one begins, before it.
    pub fn prepend(&mut self, earlier: &mut Self) {
        debug_assert_eq!(earlier.back(), self.front);
        let cursors = std::mem::take(&mut earlier.ahead);
        *self.cursors(self.front) += cursors;
        self.front = earlier.front;
        while let Some(held) = earlier.held.pop_back() {
            self.held.push_front(held);
        }
        earlier.front = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_that_move_then_chunks_behind_the_last_are_free() {
        let mut pool = Pool::new(4);
        let mut ring = Ring::default();
        ring.reset(10, 4);
        ring.enter(10);
        ring.enter(10);
        ring.extend(13, &mut pool);
        assert_eq!((ring.front(), ring.back(), pool.used()), (10, 13, 3));
        ring.leave(10);
        ring.enter(13);
        ring.trim(&mut pool);
        assert_eq!(pool.used(), 3, "the other one is still there");
        ring.leave(10);
        ring.enter(11);
        ring.trim(&mut pool);
        assert_eq!((ring.front(), pool.used()), (11, 2));
        ring.extend(20, &mut pool);
        assert_eq!((ring.back(), pool.free(), pool.peak()), (15, 0, 4));
        ring.leave(11);
        ring.trim(&mut pool);
        assert_eq!(ring.front(), 13, "who was behind the last chunk is in the next one");
    }

    #[test]
    fn prepend_then_one_ring_with_all_streams() {
        let mut pool = Pool::new(8);
        let (mut later, mut earlier) = (Ring::default(), Ring::default());
        later.reset(3, 4);
        later.enter(3);
        later.extend(5, &mut pool);
        earlier.reset(1, 4);
        earlier.enter(1);
        earlier.extend(3, &mut pool);
        earlier.enter(3);
        later.prepend(&mut earlier);
        assert_eq!((later.front(), later.back(), earlier.back()), (1, 5, 0));
        later.leave(1);
        later.trim(&mut pool);
        later.leave(3);
        later.trim(&mut pool);
        assert_eq!((later.front(), pool.used()), (3, 2));
        later.leave(3);
        later.trim(&mut pool);
        assert_eq!(pool.used(), 0);
    }
}
