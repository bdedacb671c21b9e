//! Which of several policies suits what is asked for at the time: each of them is replayed in
//! a shadow of the tier, and the one whose shadow misses fewest bytes decides for the tier.
//!
//! A tier of many objects is represented by a sample of them, chosen by their hashes, in
//! proportionally smaller shadows (Waldspurger et al.: "Efficient MRC construction with SHARDS", FAST
//! 2015; Waldspurger et al.: "Cache modeling and optimization using miniature simulations", USENIX
//! ATC 2017), so that their time and memory stay bounded whatever the tier holds.
//!
//! It begins with LRU and goes back to it at the first sign that LRU does better, so that it is hardly
//! ever behind it; to leave LRU, and to go from one of the others to another, takes a lead, as a part
//! of the bytes missed and of the tier's, and a longer one after each return. What was missed long ago
//! counts less.
//!
//! At a switch nothing is moved but the books: from the former policy's to the next one's, a few
//! objects with each access, those first that would have left first; until then they are the first to
//! leave. LRU and the Gittins index have their books in common, so that the index has learnt while LRU
//! led, and nothing is moved between them.

use std::ops::{Deref, DerefMut};

use super::replay::Cache;
use super::slab::mix;
use super::{
    Access, Admission, Candidate, Demand, Policy, PolicyConfig, Room, Snapshot, Tally, Victim,
};
use super::{Arc, Gittins, Lru, Ordered, S3Fifo, Sieve, WTinyLfu};

/// The policies that it chooses from.
pub const CHOICES: [&str; 6] = ["lru", "sieve", "s3fifo", "arc", "wtinylfu", "gittins"];

/// Most objects, ghosts included, that all shadows hold together.
const SAMPLE: u64 = 1 << 15;
/// Objects that change books with an access.
const MOVES: usize = 32;
/// What was missed counts half when so many times the tier's bytes were asked for.
const HALF_LIFE: u64 = 32;
/// Returns to LRU after which the lead to leave it grows no more.
const RETURNS: u32 = 4;

/// What a policy must be ahead by: parts of the bytes missed, and of the tier's bytes.
#[derive(Debug, Clone, Copy)]
struct Lead {
    of_missed: f64,
    of_tier: f64,
}

const TO_LEAVE_LRU: Lead = Lead { of_missed: 0.04, of_tier: 0.1 };
const TO_CHANGE: Lead = Lead { of_missed: 0.02, of_tier: 0.05 };
/// From LRU to the Gittins index, which costs nothing.
const TO_LEARN: Lead = Lead { of_missed: 0.0, of_tier: 0.02 };
const TO_RETURN: Lead = Lead { of_missed: 0.0, of_tier: 0.01 };

const LRU: usize = 0;
const GITTINS: usize = 5;

fn make(choice: usize, config: &PolicyConfig) -> Box<dyn Policy> {
    match CHOICES[choice] {
        "sieve" => Box::new(Ordered::new(Sieve::default())),
        "s3fifo" => Box::new(Ordered::new(S3Fifo::new(config))),
        "arc" => Box::new(Ordered::new(Arc::new(config))),
        "wtinylfu" => Box::new(Ordered::new(WTinyLfu::new(config))),
        "gittins" => Box::new(Ordered::new(Gittins::default())),
        _ => Box::new(Ordered::new(Lru::default())),
    }
}

/// The policy that decides for the tier.
#[derive(Debug)]
enum Leader {
    /// LRU or the Gittins index.
    Common(Box<Ordered<Gittins>>),
    Other(Box<dyn Policy>),
}

impl Leader {
    fn new(choice: usize, config: &PolicyConfig) -> Self {
        match choice {
            LRU | GITTINS => {
                let mut order = Gittins::default();
                order.lead_by_recency(choice == LRU);
                Self::Common(Box::new(Ordered::new(order)))
            }
            other => Self::Other(make(other, config)),
        }
    }
}

impl Deref for Leader {
    type Target = dyn Policy;
    fn deref(&self) -> &(dyn Policy + 'static) {
        match self {
            Self::Common(policy) => &**policy,
            Self::Other(policy) => &**policy,
        }
    }
}

impl DerefMut for Leader {
    fn deref_mut(&mut self) -> &mut (dyn Policy + 'static) {
        match self {
            Self::Common(policy) => &mut **policy,
            Self::Other(policy) => &mut **policy,
        }
    }
}

/// One tier's worth of each policy, for a sample of the objects.
#[derive(Debug)]
struct Shadows {
    config: PolicyConfig,
    /// One object in 2^shift is in the sample.
    shift: u32,
    caches: [Cache; CHOICES.len()],
    /// Bytes that each missed lately.
    missed: [u64; CHOICES.len()],
    /// Bytes asked for since these last counted half.
    asked: u64,
}

impl Shadows {
    fn new(config: PolicyConfig) -> Self {
        Self {
            config,
            shift: 0,
            caches: Self::caches(&config),
            missed: [0; CHOICES.len()],
            asked: 0,
        }
    }

    fn caches(config: &PolicyConfig) -> [Cache; CHOICES.len()] {
        std::array::from_fn(|choice| Cache::with(make(choice, config), config.capacity))
    }

    fn has(&self, object: u64) -> bool {
        // Independent of the hash by which objects are found.
        self.shift == 0 || mix(object ^ 0x5bd1_e995_9d1b_8c35) >> (64 - self.shift) == 0
    }

    /// Lets every shadow serve an access; whether it was one of the sample.
    fn watch(&mut self, access: &Access) -> bool {
        if !self.has(access.object) {
            return false;
        }
        let mut held = 0;
        for (cache, missed) in self.caches.iter_mut().zip(&mut self.missed) {
            *missed += cache.request(access.object, access.size).miss_bytes;
            let books = cache.policy().snapshot();
            held += books.objects + books.ghosts;
        }
        self.asked = self.asked.saturating_add(access.size);
        if self.asked / HALF_LIFE >= self.config.capacity {
            self.asked = 0;
            self.missed = self.missed.map(|missed| missed / 2);
        }
        if held > SAMPLE {
            self.halve();
        }
        true
    }

    /// Whether one choice is ahead of another by so much.
    fn leads(&self, one: usize, other: usize, by: Lead) -> bool {
        let missed = self.missed[other] as f64;
        let lead = missed - self.missed[one] as f64;
        lead > missed * by.of_missed && lead > self.config.capacity as f64 * by.of_tier
    }

    /// Halves the sample. All shadows start again, empty: none has an advantage.
    fn halve(&mut self) {
        self.shift += 1;
        self.config.capacity = (self.config.capacity / 2).max(1);
        self.asked /= 2;
        self.missed = self.missed.map(|missed| missed / 2);
        self.caches = Self::caches(&self.config);
    }
}

/// Whichever of [`CHOICES`] does best.
#[derive(Debug)]
pub struct Auto {
    config: PolicyConfig,
    shadows: Shadows,
    choice: usize,
    leader: Leader,
    /// The policy before, while objects are still on its books.
    former: Option<Leader>,
    moving: Vec<Victim>,
    switches: u64,
    returns: u32,
    tally: Tally,
}

impl Auto {
    /// An empty one for a tier of `config.capacity` bytes.
    #[must_use]
    pub fn new(config: &PolicyConfig) -> Self {
        Self {
            config: *config,
            shadows: Shadows::new(*config),
            choice: LRU,
            leader: Leader::new(LRU, config),
            former: None,
            moving: Vec::with_capacity(MOVES),
            switches: 0,
            returns: 0,
            tally: Tally::default(),
        }
    }

    /// Follows another policy if it has the lead that it needs. One switch at a time.
    fn judge(&mut self) {
        if self.former.is_some() {
            return;
        }
        let missed = &self.shadows.missed;
        let best = (0..CHOICES.len()).min_by_key(|choice| missed[*choice]).unwrap_or(LRU);
        let longer = f64::from(1 << self.returns);
        let needed = match (self.choice, best) {
            (LRU, _) => Lead {
                of_missed: TO_LEAVE_LRU.of_missed * longer,
                of_tier: TO_LEAVE_LRU.of_tier * longer,
            },
            _ if self.shadows.leads(LRU, self.choice, TO_RETURN) => TO_RETURN,
            _ => TO_CHANGE,
        };
        if self.shadows.leads(best, self.choice, needed) {
            self.follow(best);
        } else if self.choice == LRU {
            let easily = Lead { of_tier: TO_LEARN.of_tier * longer, ..TO_LEARN };
            if self.shadows.leads(GITTINS, LRU, easily) {
                self.follow(GITTINS);
            }
        }
    }

    fn follow(&mut self, choice: usize) {
        if choice == LRU {
            self.returns = (self.returns + 1).min(RETURNS);
        }
        self.choice = choice;
        self.switches += 1;
        if let (Leader::Common(policy), LRU | GITTINS) = (&mut self.leader, choice) {
            policy.order().lead_by_recency(choice == LRU);
            return;
        }
        let next = Leader::new(choice, &self.config);
        self.former = Some(std::mem::replace(&mut self.leader, next));
    }

    /// Moves a few objects to the books of the leader.
    fn move_on(&mut self) {
        let Some(former) = &mut self.former else { return };
        self.moving.clear();
        let demand = Demand { bytes: u64::MAX, limit: MOVES, busy: &|_| false };
        former.victims(&demand, &mut self.moving);
        for victim in &self.moving {
            self.leader.inserted(victim.object, victim.bytes);
        }
        if self.moving.len() < MOVES {
            self.former = None;
        }
    }

    /// Victims from the books of the former policy; returns what they free.
    fn clear_out(&mut self, demand: &Demand<'_>, out: &mut Vec<Victim>) -> u64 {
        self.former.as_mut().map_or(0, |former| former.victims(demand, out))
    }
}

impl Policy for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn observe(&mut self, accesses: &[Access]) {
        for access in accesses {
            if self.shadows.watch(access) {
                self.judge();
            }
            self.move_on();
        }
        if let Some(former) = &mut self.former {
            former.observe(accesses);
        }
        self.leader.observe(accesses);
    }

    fn inserted(&mut self, object: u64, bytes: u64) {
        if let Some(former) = &mut self.former {
            former.removed(object);
        }
        self.leader.inserted(object, bytes);
    }

    fn resized(&mut self, object: u64, bytes: u64) {
        if let Some(former) = &mut self.former {
            former.resized(object, bytes);
        }
        self.leader.resized(object, bytes);
    }

    fn removed(&mut self, object: u64) {
        if let Some(former) = &mut self.former {
            former.removed(object);
        }
        self.leader.removed(object);
    }

    fn admit(
        &mut self,
        candidate: &Candidate,
        room: &Room<'_>,
        out: &mut Vec<Victim>,
    ) -> Admission {
        let before = out.len();
        let need =
            if candidate.size > room.capacity { 0 } else { room.lacking(candidate.incoming()) };
        let freed = if need > 0 { self.clear_out(&room.demand(need), out) } else { 0 };
        let limit = room.limit.saturating_sub(out.len() - before);
        let room = Room { used: room.used.saturating_sub(freed), limit, ..*room };
        let admission = self.leader.admit(candidate, &room, out);
        self.tally.decided(admission, out.len() - before)
    }

    fn victims(&mut self, demand: &Demand<'_>, out: &mut Vec<Victim>) -> u64 {
        let before = out.len();
        let mut freed = self.clear_out(demand, out);
        if freed < demand.bytes {
            let limit = demand.limit.saturating_sub(out.len() - before);
            let rest = Demand { bytes: demand.bytes - freed, limit, ..*demand };
            freed += self.leader.victims(&rest, out);
        }
        self.tally.victims += (out.len() - before) as u64;
        freed
    }

    fn switches(&self) -> u64 {
        self.switches
    }

    fn snapshot(&self) -> Snapshot {
        let own = self.leader.snapshot();
        let former = self.former.as_ref().map_or(Snapshot::default(), |former| former.snapshot());
        self.tally.with(Snapshot {
            objects: own.objects + former.objects,
            bytes: own.bytes + former.bytes,
            ghosts: own.ghosts + former.ghosts,
            follows: CHOICES[self.choice],
            switches: self.switches,
            ..own
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1_000;

    fn auto(objects: u64) -> Cache {
        let config = PolicyConfig { admit_large: true, ..PolicyConfig::new(objects * SIZE) };
        Cache::with(Box::new(Auto::new(&config)), objects * SIZE)
    }

    #[test]
    fn loop_larger_than_the_tier_then_leaves_lru_and_hits() {
        let mut cache = auto(100);
        for at in 0..30_000 {
            cache.request(at % 130, SIZE);
        }
        let snapshot = cache.policy().snapshot();
        assert_ne!(snapshot.follows, "lru");
        assert!(snapshot.switches >= 1);
        let before = cache.counts().hits;
        for at in 30_000..43_000 {
            cache.request(at % 130, SIZE);
        }
        assert!(cache.counts().hits - before > 6_000, "LRU has no hit at all");
    }

    #[test]
    fn lru_and_the_index_when_one_follows_the_other_then_the_books_stay() {
        let mut policy = Auto::new(&PolicyConfig::new(100 * SIZE));
        (0..100).for_each(|object| policy.inserted(object, SIZE));
        policy.follow(GITTINS);
        assert!(policy.former.is_none(), "nothing has to be moved");
        policy.follow(LRU);
        assert!(policy.former.is_none());
        assert_eq!((policy.snapshot().objects, policy.snapshot().follows), (100, "lru"));
        let mut out = Vec::new();
        let demand = Demand { bytes: 3 * SIZE, limit: 9, busy: &|_| false };
        policy.victims(&demand, &mut out);
        let gone: Vec<u64> = out.iter().map(|victim| victim.object).collect();
        assert_eq!(gone, [0, 1, 2], "those that were used least recently");
    }

    #[test]
    fn each_object_soon_used_again_then_stays_with_lru() {
        let mut cache = auto(100);
        for at in 0..30_000 {
            cache.request(at / 3 + at % 3 * 20, SIZE);
        }
        assert_eq!((cache.policy().snapshot().follows, cache.policy().switches()), ("lru", 0));
    }

    #[test]
    fn books_during_a_switch_then_every_resident_once() {
        let config = PolicyConfig { admit_large: true, ..PolicyConfig::new(500 * SIZE) };
        let mut policy = Auto::new(&config);
        (0..500).for_each(|object| policy.inserted(object, SIZE));
        for (step, choice) in [2, 3, 5, 0, 4, 1, 0].into_iter().enumerate() {
            policy.follow(choice);
            // Some are on the former books and some on the new ones now.
            let access = Access { object: 7, size: SIZE, kind: super::super::AccessKind::Read };
            (0..5).for_each(|_| policy.observe(&[access]));
            policy.inserted(9, SIZE);
            policy.resized(11, SIZE);
            assert_eq!((policy.snapshot().objects, policy.snapshot().bytes), (500, 500 * SIZE));
            (0..step).for_each(|_| policy.observe(&[access]));
            (0..20).for_each(|_| policy.observe(&[access]));
            assert!(policy.former.is_none());
            assert_eq!(policy.snapshot().objects, 500);
            assert_eq!(policy.snapshot().follows, CHOICES[choice]);
        }
        let mut out = Vec::new();
        policy.follow(2);
        let demand = Demand { bytes: 600 * SIZE, limit: 1_000, busy: &|object| object == 5 };
        assert_eq!(policy.victims(&demand, &mut out), 499 * SIZE);
        let mut gone: Vec<u64> = out.iter().map(|victim| victim.object).collect();
        gone.sort_unstable();
        gone.dedup();
        assert_eq!(gone.len(), 499);
    }

    #[test]
    fn tier_of_many_objects_then_shadows_of_a_sample() {
        let mut cache = auto(100_000);
        for at in 0..400_000 {
            cache.request(at % 130_000, SIZE);
        }
        // The policy cannot be reached through the driver; the same accesses to one of its own.
        let mut shadows = Shadows::new(PolicyConfig::new(100_000 * SIZE));
        for at in 0..400_000 {
            let kind = super::super::AccessKind::Read;
            shadows.watch(&Access { object: at % 130_000, size: SIZE, kind });
        }
        assert!(shadows.shift >= 4, "{}", shadows.shift);
        assert_eq!(shadows.config.capacity, (100_000 * SIZE) >> shadows.shift);
        assert_ne!(cache.policy().snapshot().follows, "lru", "the sample sees the loop too");
    }
}
