//! Whether following the hints pays: two shadows of the tier, one that believes them and one that
//! does not, and the bytes that each of them misses.
//!
//! Learning-augmented caching follows whichever of a predicting and a classical policy has done
//! better so far (Lykouris and Vassilvitskii, ICML 2018; Wei: "Better and simpler learning-augmented
//! online caching", APPROX 2020, after Fiat et al., "Competitive paging algorithms", 1991). Hints
//! that are right cost nothing, and wrong ones an additive amount: they are believed until the
//! believing shadow has missed [`EXCESS_LIMIT`] of the tier's bytes more than the other, and then not
//! until it is ahead by that, and by twice as much after every relapse. With a tier of C bytes and k
//! relapses the bytes missed exceed S3-FIFO's by no more than that limit and one refill, 1.5 C,
//! for each; and k grows only as the logarithm of what the hints had saved in between.
//!
//! The shadows hold numbers, not bytes. A tier of many objects is represented by a sample of them,
//! chosen by their hashes, in a proportionally smaller shadow (Waldspurger et al.: "Efficient MRC
//! construction with SHARDS", FAST 2015), so that time and memory stay bounded.

use super::min::{Outlook, TierOrder};
use super::next_use::NextUseOrder;
use super::slab::mix;
use super::{Access, Admission, Candidate, PolicyConfig, Room, Victim};
use crate::reference::References;

/// Most objects, ghosts included, that both shadows hold together.
const SAMPLE: u64 = 1 << 15;
/// The excess at which belief ends, as a part of the tier's bytes: one over this.
const EXCESS_LIMIT: i64 = 2;
/// Most that the hints can have to their credit, in such limits.
const CREDIT: i64 = 4;
/// Relapses after which the price of a return stays the same.
const RELAPSES: u32 = 16;

/// The two shadows.
#[derive(Debug)]
pub(super) struct Trial<O> {
    config: PolicyConfig,
    chunked: bool,
    make: fn(&PolicyConfig) -> O,
    /// One object in 2^shift is in the sample.
    shift: u32,
    believing: TierOrder<O>,
    doubting: TierOrder<O>,
    /// Bytes that the believing shadow missed more than the other, lately.
    excess: i64,
    believed: bool,
    relapses: u32,
    hinted: bool,
    out: Vec<Victim>,
}

impl<O: NextUseOrder> Trial<O> {
    pub fn new(config: PolicyConfig, chunked: bool, make: fn(&PolicyConfig) -> O) -> Self {
        let order = || shadow(&config, chunked, make);
        Self {
            believing: order(),
            doubting: order(),
            config,
            chunked,
            make,
            shift: 0,
            excess: 0,
            believed: true,
            relapses: 0,
            hinted: false,
            out: Vec::new(),
        }
    }

    /// Whether the hints are to be followed.
    pub fn believed(&self) -> bool {
        self.believed
    }

    fn is_sampled(&self, object: u64) -> bool {
        // Independent of the hash by which objects are found.
        self.shift == 0 || mix(object ^ 0x5bd1_e995_9d1b_8c35) >> (64 - self.shift) == 0
    }

    /// More is known of an object now.
    pub fn refile(&mut self, object: u64, references: &References) {
        self.hinted = true;
        if self.is_sampled(object) {
            self.believing.refile(object, Outlook { references, believed: true });
        }
    }

    /// Lets both shadows serve an access, and judges. Without any hint there is nothing to judge.
    pub fn watch(&mut self, access: &Access, references: &References) {
        if !self.hinted || !self.is_sampled(access.object) {
            return;
        }
        let mut missed = |order: &mut TierOrder<O>, believed| {
            let outlook = Outlook { references, believed };
            serve(order, access, self.config.capacity, outlook, &mut self.out) as i64
        };
        let excess = missed(&mut self.believing, true) - missed(&mut self.doubting, false);
        self.judge(excess);
        let (one, other) = (self.believing.books(), self.doubting.books());
        if one.objects + one.ghosts + other.objects + other.ghosts > SAMPLE {
            self.halve();
        }
    }

    fn judge(&mut self, excess: i64) {
        let limit = (self.config.capacity as i64 / EXCESS_LIMIT).max(1);
        self.excess = self.excess.saturating_add(excess);
        if self.believed {
            self.excess = self.excess.max(-CREDIT * limit);
            if self.excess > limit {
                self.believed = false;
                self.relapses = (self.relapses + 1).min(RELAPSES);
                self.excess = 0;
            }
        } else {
            self.excess = self.excess.min(0);
            if self.excess < -limit.saturating_mul(1 << self.relapses) {
                self.believed = true;
                self.excess = 0;
            }
        }
    }

    /// Halves the sample. Both shadows start again, empty: neither has an advantage.
    fn halve(&mut self) {
        self.shift += 1;
        self.excess /= 2;
        let PolicyConfig { capacity, chunk, .. } = self.config;
        self.config =
            PolicyConfig { capacity: capacity / 2, chunk: (chunk / 2).max(1), ..self.config };
        self.believing = shadow(&self.config, self.chunked, self.make);
        self.doubting = shadow(&self.config, self.chunked, self.make);
    }
}

fn shadow<O: NextUseOrder>(
    config: &PolicyConfig,
    chunked: bool,
    make: fn(&PolicyConfig) -> O,
) -> TierOrder<O> {
    TierOrder::new(config, chunked.then_some(config.chunk.max(1)), make(config))
}

/// One read of a whole object, as a tier of its own would serve it; returns the bytes missed.
fn serve<O: NextUseOrder>(
    order: &mut TierOrder<O>,
    access: &Access,
    capacity: u64,
    outlook: Outlook<'_>,
    out: &mut Vec<Victim>,
) -> u64 {
    let Access { object, size, .. } = *access;
    order.touch(access, outlook);
    let resident = order.bytes_of(object).unwrap_or(0).min(size);
    if resident == size {
        return 0;
    }
    out.clear();
    let candidate = Candidate { object, size, resident, prefetch: false };
    let busy = |other| other == object;
    let room = Room { capacity, used: order.books().bytes, limit: usize::MAX, busy: &busy };
    let bytes = match order.admit(&candidate, &room, outlook, out) {
        Admission::Whole => size,
        Admission::Head(bytes) => bytes.min(size),
        Admission::Bypass => resident,
    };
    if bytes > 0 {
        order.file(object, bytes, outlook);
    }
    size - resident
}
