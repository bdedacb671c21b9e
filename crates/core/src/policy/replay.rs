//! The plainest driver of a policy: one tier, one request after the other, everything at once.
//! The simulator and the golden tests share it.

use super::{
    Access, AccessKind, Admission, Candidate, Policy, PolicyConfig, Room, Slab, UnknownPolicy,
    Victim, by_name,
};

/// What a replay counts.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Requests for what was wholly resident.
    pub hits: u64,
    /// Other requests.
    pub misses: u64,
    /// Bytes served from the tier, parts of objects included.
    pub hit_bytes: u64,
    /// Bytes read from below.
    pub miss_bytes: u64,
    /// Bytes that left to make room.
    pub evicted_bytes: u64,
}

/// One request's outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes of the object that were resident.
    pub hit_bytes: u64,
    /// Bytes that were read from below.
    pub miss_bytes: u64,
}

impl Outcome {
    /// Whether all of it was resident.
    #[must_use]
    pub fn is_hit(&self) -> bool {
        self.miss_bytes == 0
    }
}

/// Bytes resident by object: a plain array for objects with small numbers, a table for others.
#[derive(Debug, Default)]
struct Residency {
    /// `NONE` or the bytes; an empty file may be resident.
    numbered: Vec<u64>,
    others: Slab<u64>,
}

const NONE: u64 = u64::MAX;

impl Residency {
    fn get(&self, object: u64) -> Option<u64> {
        match self.numbered.get(object as usize) {
            Some(&bytes) => (bytes != NONE).then_some(bytes),
            None => self.others.find(object).map(|slot| self.others[slot]),
        }
    }

    /// The bytes of an object with a small number, if it is resident; of another one any number.
    fn likely(&self, object: u64) -> u64 {
        match self.numbered.get(object as usize) {
            Some(&bytes) => bytes,
            None => self.others.near(self.others.likely(object)).copied().unwrap_or(0),
        }
    }

    fn set(&mut self, object: u64, bytes: Option<u64>) {
        if let Some(held) = self.numbered.get_mut(object as usize) {
            *held = bytes.unwrap_or(NONE);
            return;
        }
        match (self.others.find(object), bytes) {
            (Some(slot), Some(bytes)) => self.others[slot] = bytes,
            (Some(slot), None) => _ = self.others.remove(slot),
            (None, Some(bytes)) => _ = self.others.insert(object, bytes),
            (None, None) => {}
        }
    }
}

/// A tier and its policy.
#[derive(Debug)]
pub struct Cache {
    policy: Box<dyn Policy>,
    capacity: u64,
    used: u64,
    resident: Residency,
    victims: Vec<Victim>,
    /// Who will probably leave next.
    leaving: Vec<u64>,
    counts: Counts,
}

impl Cache {
    /// An empty tier of `config.capacity` bytes.
    ///
    /// # Errors
    /// [`UnknownPolicy`] if there is none of that name.
    pub fn new(policy: &str, config: &PolicyConfig) -> Result<Self, UnknownPolicy> {
        Ok(Self::with(by_name(policy, config)?, config.capacity))
    }

    /// An empty tier of `capacity` bytes with a policy made for it.
    #[must_use]
    pub fn with(policy: Box<dyn Policy>, capacity: u64) -> Self {
        Self {
            policy,
            capacity,
            used: 0,
            resident: Residency::default(),
            victims: Vec::new(),
            leaving: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// The same, made for objects numbered from 0 to below `objects`, which it finds fastest.
    #[must_use]
    pub fn numbered(mut self, objects: usize) -> Self {
        debug_assert_eq!(self.used, 0, "numbered before its first request");
        self.resident.numbered = vec![NONE; objects];
        self.policy.number(objects);
        self
    }

    /// The policy, to give it hints.
    pub fn policy(&mut self) -> &mut dyn Policy {
        &mut *self.policy
    }

    /// What was counted so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Bytes resident.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Bytes of an object that are resident.
    #[must_use]
    pub fn resident(&self, object: u64) -> u64 {
        self.resident.get(object).unwrap_or(0)
    }

    /// What left for the last request, whole objects and tails.
    #[must_use]
    pub fn departed(&self) -> &[Victim] {
        &self.victims
    }

    /// How many requests are best announced together by [`Cache::warm`].
    pub const TOGETHER: usize = super::TOGETHER;

    /// These objects will be requested soon: see [`Policy::warm`].
    pub fn warm(&mut self, objects: &[u64]) {
        self.policy.warm(objects);
        self.leaving.clear();
        self.policy.warm_leaving(objects.len() / 2, &mut self.leaving);
        let mut met = 0;
        for object in objects.iter().chain(&self.leaving) {
            met ^= self.resident.likely(*object);
        }
        std::hint::black_box(met);
    }

    /// Serves a read of a whole object.
    pub fn request(&mut self, object: u64, size: u64) -> Outcome {
        self.victims.clear();
        self.policy.observe(&[Access { object, size, kind: AccessKind::Read }]);
        let held = self.resident.get(object);
        let resident = held.unwrap_or(0).min(size);
        let outcome = Outcome { hit_bytes: resident, miss_bytes: size - resident };
        self.counts.hit_bytes += outcome.hit_bytes;
        self.counts.miss_bytes += outcome.miss_bytes;
        if held.is_some() && outcome.is_hit() {
            self.counts.hits += 1;
        } else {
            self.counts.misses += 1;
            self.bring(&Candidate { object, size, resident, prefetch: false });
        }
        outcome
    }

    /// Offers an object ahead of its use; returns the bytes fetched for it.
    pub fn prefetch(&mut self, object: u64, size: u64) -> u64 {
        self.victims.clear();
        let resident = self.resident(object).min(size);
        if resident == size {
            return 0;
        }
        self.bring(&Candidate { object, size, resident, prefetch: true });
        self.resident(object).saturating_sub(resident)
    }

    fn bring(&mut self, candidate: &Candidate) {
        // What is resident of the newcomer itself cannot make room for the rest of it.
        let busy = |object| object == candidate.object;
        let room =
            Room { capacity: self.capacity, used: self.used, limit: usize::MAX, busy: &busy };
        let admission = self.policy.admit(candidate, &room, &mut self.victims);
        for victim in &self.victims {
            // The newcomer itself may be the first to leave; nothing of it is there yet.
            let Some(bytes) = self.resident.get(victim.object) else { continue };
            let keep = victim.keep.min(bytes);
            self.used -= bytes - keep;
            self.counts.evicted_bytes += bytes - keep;
            self.resident.set(victim.object, (keep > 0).then_some(keep));
        }
        let bytes = match admission {
            Admission::Whole => candidate.size,
            Admission::Head(bytes) => bytes.min(candidate.size),
            Admission::Bypass => {
                // Passed over while it was busy: back into the order.
                if candidate.resident > 0 {
                    self.policy.inserted(candidate.object, candidate.resident);
                }
                return;
            }
        };
        self.used = self.used - self.resident(candidate.object) + bytes;
        self.resident.set(candidate.object, Some(bytes));
        debug_assert!(self.used <= self.capacity, "{} overfilled", self.policy.name());
        self.policy.inserted(candidate.object, bytes);
    }
}
