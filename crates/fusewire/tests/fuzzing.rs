//! The entry points of the fuzzers in `fuzz/`, fed with what every run can afford: well-formed
//! requests, what becomes of them when bytes are missing or wrong, and random bytes.

use fusewire::fuzzing::{ARGUMENTS, entry, entry_seeds, init, joined, request, requests, seeds};

const RANDOM_INPUTS: u64 = 20_000;

/// Vigna's xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 16) as usize % bound.max(1)
    }
}

fn feed(bytes: &[u8]) {
    request(bytes);
    init(bytes.get(ARGUMENTS..).unwrap_or(bytes));
}

#[test]
fn requests_when_well_formed_cut_short_or_damaged_then_nothing_panics() {
    for seed in seeds() {
        feed(&seed);
        for length in 0..seed.len() {
            feed(&seed[..length]);
            // The same, with a length that is no lie.
            requests(&joined(&[seed[..length].to_vec()]));
        }
        for place in 0..seed.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut damaged = seed.clone();
                damaged[place] ^= flip;
                feed(&damaged);
            }
        }
    }
    requests(&joined(&seeds()));
}

#[test]
fn requests_when_bytes_are_random_then_nothing_panics() {
    let seeds = seeds();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 0..RANDOM_INPUTS {
        let mut bytes: Vec<u8> = (0..random.below(400)).map(|_| random.next() as u8).collect();
        match round % 4 {
            0 => feed(&bytes),
            1 => requests(&bytes),
            // A seed's header before random arguments: the decoder gets further.
            2 => {
                let mut message = seeds[random.below(seeds.len())][..ARGUMENTS].to_vec();
                message.append(&mut bytes);
                requests(&joined(&[message]));
            }
            // Several seeds, each with some wrong bytes.
            _ => {
                let mut messages: Vec<Vec<u8>> =
                    (0..4).map(|_| seeds[random.below(seeds.len())].clone()).collect();
                for message in &mut messages {
                    for _ in 0..random.below(8) {
                        let place = random.below(message.len());
                        message[place] = random.next() as u8;
                    }
                }
                requests(&joined(&messages));
            }
        }
    }
}

#[test]
fn ring_entries_when_well_formed_cut_short_or_damaged_then_each_is_answered_once() {
    for seed in entry_seeds() {
        entry(&seed);
        for length in (0..seed.len()).step_by(7) {
            entry(&seed[..length]);
        }
        for place in 0..seed.len() {
            let mut damaged = seed.clone();
            damaged[place] ^= [0x01, 0x80, 0xff][place % 3];
            entry(&damaged);
        }
    }
}

#[test]
fn ring_entries_when_bytes_are_random_then_each_is_answered_once() {
    let seeds = entry_seeds();
    let mut random = Random(0x6a09_e667_f3bc_c909);
    for _ in 0..RANDOM_INPUTS {
        let mut bytes = seeds[random.below(seeds.len())].clone();
        for _ in 0..random.below(24) {
            let place = random.below(bytes.len());
            bytes[place] = random.next() as u8;
        }
        bytes.extend((0..random.below(64)).map(|_| random.next() as u8));
        entry(&bytes);
    }
}
