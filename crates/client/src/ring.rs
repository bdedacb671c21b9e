//! A ring of messages from one process to another, in memory that both have.
//!
//! Offsets within the ring; all words are 32 bits, little endian as the machine is:
//!
//! | at | word | who writes it |
//! |---|---|---|
//! | 0 | `head`: bytes put in, modulo 2^32 | who sends |
//! | 64 | `tail`: bytes taken out, modulo 2^32 | who receives |
//! | 128 | `wanted`: 1 while who sends waits for room | both |
//! | 192 | the bytes, a power of two of them | who sends |
//!
//! A message is its length and its bytes, then up to 3 bytes so that the next one begins at a
//! multiple of 4. Either side believes nothing of the other: its own counter it keeps to itself, the
//! other one's is read once and compared with what is possible, and what was taken out is looked at
//! only after it was copied. Nonsense ends the ring with [`Corrupt`]; it never leads out of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Memory;

const HEAD: u64 = 0;
const TAIL: u64 = 64;
const WANTED: u64 = 128;
const BYTES: u64 = 192;

/// The other side has written what makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the ring's words make no sense")]
pub struct Corrupt;

/// How much memory a ring needs that has so many bytes for messages.
#[must_use]
pub fn size(capacity: u32) -> u64 {
    BYTES + u64::from(capacity)
}

/// The longest message that a ring of so many bytes takes.
#[must_use]
pub fn longest(capacity: u32) -> usize {
    capacity as usize / 2 - 4
}

/// The memory that a ring lies in.
#[derive(Debug)]
struct RingMemory {
    memory: Arc<Memory>,
    at: u64,
    capacity: u32,
}

impl RingMemory {
    fn new(memory: &Arc<Memory>, at: u64, capacity: u32) -> Option<Self> {
        let sound = at.is_multiple_of(64) && capacity.is_power_of_two() && capacity >= 64;
        let fits = capacity <= 1 << 30 && memory.at(at, size(capacity)).is_some();
        (sound && fits).then(|| Self { memory: Arc::clone(memory), at, capacity })
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        let at = self.memory.at(self.at + offset, 4).expect("looked at when it was made");
        // SAFETY: within the memory, which stays as long as this does, and aligned: memory begins at
        // a page, the ring at a multiple of 64.
        unsafe { AtomicU32::from_ptr(at.cast()) }
    }

    /// The two pieces of a range of the ring's bytes.
    fn pieces(&self, counter: u32, len: usize) -> [(*mut u8, usize); 2] {
        let start = counter & (self.capacity - 1);
        let first = len.min((self.capacity - start) as usize);
        let base = self.memory.at(self.at + BYTES, self.capacity.into());
        let base = base.expect("looked at when it was made");
        [(base.wrapping_add(start as usize), first), (base, len - first)]
    }

    fn put(&self, counter: u32, bytes: &[u8]) {
        let [(one, first), (other, second)] = self.pieces(counter, bytes.len());
        // SAFETY: both pieces are within the ring, as no more than its capacity is asked for. Who
        // receives does not look at them before `head` says so; if it does, it gets what it gets.
        unsafe {
            one.copy_from_nonoverlapping(bytes.as_ptr(), first);
            other.copy_from_nonoverlapping(bytes.as_ptr().wrapping_add(first), second);
        }
    }

    fn get(&self, counter: u32, bytes: &mut [u8]) {
        let [(one, first), (other, second)] = self.pieces(counter, bytes.len());
        // SAFETY: as above, the other way round.
        unsafe {
            one.copy_to_nonoverlapping(bytes.as_mut_ptr(), first);
            other.copy_to_nonoverlapping(bytes.as_mut_ptr().wrapping_add(first), second);
        }
    }
}

fn padded(len: usize) -> u32 {
    4 + (len as u32).next_multiple_of(4)
}

/// The side that sends.
#[derive(Debug)]
pub struct Sender {
    ring: RingMemory,
    head: u32,
}

impl Sender {
    /// For a ring that is all zeros yet. `None` if it does not fit.
    #[must_use]
    pub fn new(memory: &Arc<Memory>, at: u64, capacity: u32) -> Option<Self> {
        Some(Self { ring: RingMemory::new(memory, at, capacity)?, head: 0 })
    }

    /// Puts a message in, or says that there is no room for it now.
    pub fn send(&mut self, parts: &[&[u8]]) -> Result<bool, Corrupt> {
        let len = parts.iter().map(|part| part.len()).sum();
        if len > longest(self.ring.capacity) {
            return Err(Corrupt);
        }
        let used = self.head.wrapping_sub(self.ring.word(TAIL).load(Ordering::SeqCst));
        let room = self.ring.capacity.checked_sub(used).ok_or(Corrupt)?;
        if room < padded(len) {
            return Ok(false);
        }
        self.ring.put(self.head, &(len as u32).to_ne_bytes());
        let mut at = self.head.wrapping_add(4);
        for part in parts {
            self.ring.put(at, part);
            at = at.wrapping_add(part.len() as u32);
        }
        self.head = self.head.wrapping_add(padded(len));
        self.ring.word(HEAD).store(self.head, Ordering::SeqCst);
        Ok(true)
    }

    /// Whether a message of this length may have room now.
    #[must_use]
    pub fn has_room(&self, len: usize) -> bool {
        let used = self.head.wrapping_sub(self.ring.word(TAIL).load(Ordering::SeqCst));
        self.ring.capacity.saturating_sub(used) >= padded(len)
    }

    /// Says that it waits for room. It must try once more after that before it sleeps.
    pub fn want_room(&self) {
        self.ring.word(WANTED).store(1, Ordering::SeqCst);
    }
}

/// A message that was taken out.
#[derive(Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Whether who sends waits for room, and is to be woken.
    pub wanted: bool,
}

/// The side that receives.
#[derive(Debug)]
pub struct Receiver {
    ring: RingMemory,
    tail: u32,
}

impl Receiver {
    /// For a ring from which nothing was taken yet. `None` if it does not fit.
    #[must_use]
    pub fn new(memory: &Arc<Memory>, at: u64, capacity: u32) -> Option<Self> {
        Some(Self { ring: RingMemory::new(memory, at, capacity)?, tail: 0 })
    }

    /// Whether there may be something.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ring.word(HEAD).load(Ordering::SeqCst) != self.tail
    }

    /// Takes a message out, if there is one.
    pub fn take(&mut self) -> Result<Option<Taken>, Corrupt> {
        let there = self.ring.word(HEAD).load(Ordering::Acquire).wrapping_sub(self.tail);
        if there == 0 {
            return Ok(None);
        }
        if there > self.ring.capacity || there < 4 {
            return Err(Corrupt);
        }
        let mut len = [0; 4];
        self.ring.get(self.tail, &mut len);
        let len = u32::from_ne_bytes(len) as usize;
        if len > longest(self.ring.capacity) || padded(len) > there {
            return Err(Corrupt);
        }
        let mut bytes = vec![0; len];
        self.ring.get(self.tail.wrapping_add(4), &mut bytes);
        self.tail = self.tail.wrapping_add(padded(len));
        self.ring.word(TAIL).store(self.tail, Ordering::SeqCst);
        let wanted = self.ring.word(WANTED);
        let wanted = wanted.load(Ordering::SeqCst) != 0 && wanted.swap(0, Ordering::SeqCst) != 0;
        Ok(Some(Taken { bytes, wanted }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Doorbell, make};
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::time::Duration;

    fn memory(bytes: u64) -> Arc<Memory> {
        Arc::new(Memory::map(&make(bytes).unwrap(), bytes).unwrap())
    }

    fn ring(capacity: u32) -> (Sender, Receiver) {
        let memory = memory(size(capacity));
        let sender = Sender::new(&memory, 0, capacity).unwrap();
        (sender, Receiver::new(&memory, 0, capacity).unwrap())
    }

    #[test]
    fn ring_that_does_not_fit_or_is_not_aligned_then_none() {
        let memory = memory(size(128));
        assert!(Sender::new(&memory, 0, 128).is_some());
        assert!(Sender::new(&memory, 64, 128).is_none());
        assert!(Receiver::new(&memory, 0, 100).is_none());
        assert!(Receiver::new(&memory, 4, 64).is_none());
        assert!(Receiver::new(&memory, u64::MAX - 63, 64).is_none());
    }

    #[test]
    fn messages_between_threads_that_wait_for_each_other_then_all_in_order() {
        let (mut sender, mut receiver) = ring(256);
        let (full, empty) = (Doorbell::default(), Doorbell::default());
        let most = Duration::from_secs(60);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..20_000u32 {
                    let tail = vec![number as u8; number as usize % 90];
                    let parts: [&[u8]; 2] = [&number.to_le_bytes(), &tail];
                    while !sender.send(&parts).unwrap() {
                        sender.want_room();
                        let mut sent = false;
                        full.sleep(most, || {
                            sent = sender.send(&parts).unwrap();
                            sent
                        });
                        if sent {
                            break;
                        }
                    }
                    empty.ring();
                }
            });
            for number in 0..20_000u32 {
                let taken = loop {
                    if let Some(taken) = receiver.take().unwrap() {
                        break taken;
                    }
                    empty.sleep(most, || receiver.is_ready());
                };
                if taken.wanted {
                    full.ring();
                }
                let (first, rest) = taken.bytes.split_first_chunk().unwrap();
                assert_eq!(u32::from_le_bytes(*first), number);
                assert_eq!(rest, vec![number as u8; number as usize % 90]);
            }
        });
    }

    proptest! {
        #[test]
        fn ring_after_any_sends_and_takes_then_as_a_queue(
            steps in proptest::collection::vec((any::<bool>(), 0usize..70), 0..200),
        ) {
            let (mut sender, mut receiver) = ring(128);
            let mut model: VecDeque<Vec<u8>> = VecDeque::new();
            for (at, (sends, len)) in steps.into_iter().enumerate() {
                if sends {
                    let bytes = vec![at as u8; len];
                    match sender.send(&[&bytes]) {
                        Ok(true) => model.push_back(bytes),
                        Ok(false) => prop_assert!(!model.is_empty()),
                        Err(Corrupt) => prop_assert!(len > longest(128)),
                    }
                } else {
                    let taken = receiver.take().unwrap().map(|taken| taken.bytes);
                    prop_assert_eq!(taken, model.pop_front());
                }
            }
        }

        /// Whatever the other side writes, and whenever, each side stays within the ring: a page
        /// before and after it keeps what it has.
        #[test]
        fn words_that_change_under_either_side_then_an_error_at_most(
            steps in proptest::collection::vec((0u8..4, 0u64..320, any::<u32>()), 0..100),
        ) {
            let all = size(128) + 2 * 4096;
            let memory = memory(all);
            let byte = |at: u64| memory.at(at, 1).unwrap();
            for at in 0..all {
                // SAFETY: within the memory.
                unsafe { byte(at).write(if (4096..all - 4096).contains(&at) { 0 } else { 0xa5 }) };
            }
            let mut sender = Sender::new(&memory, 4096, 128).unwrap();
            let mut receiver = Receiver::new(&memory, 4096, 128).unwrap();
            for (what, at, value) in steps {
                match what {
                    0 => drop(sender.send(&[&[7; 50][..value as usize % 50]])),
                    1 => if let Ok(Some(taken)) = receiver.take() {
                        prop_assert!(taken.bytes.len() <= longest(128));
                    },
                    _ => {
                        let at = 4096 + (at & !3);
                        let word = memory.at(at.min(4096 + size(128) - 4), 4).unwrap();
                        let value = if what == 2 { value } else { value % 300 };
                        // SAFETY: within the memory, aligned.
                        unsafe { AtomicU32::from_ptr(word.cast()) }.store(value, Ordering::SeqCst);
                    }
                }
            }
            for at in (0..4096).chain(all - 4096..all) {
                // SAFETY: within the memory.
                prop_assert_eq!(unsafe { byte(at).read() }, 0xa5);
            }
        }
    }
}
