//! Whoever is least worth the room leaves, by how long others like it were not used: the Gittins index
//! of the time until the next use (Gittins: "Bandit processes and dynamic allocation indices", Journal
//! of the Royal Statistical Society B 41(2), 1979; for caches Beckmann, Sanchez: "Maximizing cache
//! performance under uncertainty", HPCA 2017, and Beckmann, Chen, Cidon: "LHD: improving cache hit rate
//! by maximizing hit density", NSDI 2018).
//!
//! Objects are in classes: how often they were used, and how far apart. For each class it is counted
//! after how many requests they are used again, whether resident or remembered only, so that what was
//! evicted too soon is known as well. An object that was used `a` requests ago is worth
//!
//! `max over T of P(used again within T) / E[requests until then, T at most]`
//!
//! given that it was not used since: uses for the room and the time that it takes. In a loop those are
//! worth most that come next, in a scan nobody is worth anything, and what has been used as often as
//! its like ever are is worth nothing, without any rule for one of these. A byte of a small object is
//! worth as much as one of a large one: what counts is the bytes that are missed.
//!
//! The least worth of a few residents leaves, drawn by a fixed sequence. A newcomer competes.

use super::order::admit_what_fits;
use super::queues::Queues;
use super::slab::mix;
use super::{Access, Admission, Candidate, Order, Room, Snapshot, Victim};

const RESIDENT: u8 = 0;
const GHOST: u8 = 1;

/// Residents that are compared to find one that leaves.
const DRAWN: usize = 32;
/// Objects that are remembered, besides as many as twice the residents.
const GHOSTS: u64 = 256;

/// Buckets of ages in each octave, as a power of two.
const FINE: u32 = 3;
/// Ages up to 2^32 requests.
const BUCKETS: usize = (33 - FINE as usize) << FINE;
/// Classes of objects that were used equally often, by the octave of how far apart.
const OCTAVES: usize = 32;
const CLASSES: usize = 4 * OCTAVES;

/// Requests until the first reckoning; each next one takes twice as many, up to this or as many as
/// objects are known.
const FIRST: u32 = 128;
const USUAL: u32 = 256;
/// What was counted before a reckoning counts so much at the next.
const FADE: f32 = 0.8;

/// The bucket of an age.
fn bucket(age: u32) -> usize {
    let octave = age.max(1).ilog2();
    if octave < FINE {
        return age as usize;
    }
    let within = (age >> (octave - FINE)) as usize - (1 << FINE);
    ((octave - FINE + 1) as usize) << FINE | within
}

/// The youngest age of a bucket.
fn youngest(bucket: usize) -> f64 {
    let (octave, within) = (bucket >> FINE, bucket & ((1 << FINE) - 1));
    if octave == 0 {
        return within as f64;
    }
    ((1u64 << FINE | within as u64) << (octave - 1)) as f64
}

/// What is known of an object, in twelve bytes.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// The request that used it last.
    last: u32,
    /// Where it is among the residents.
    place: u32,
    /// Requests between uses, the last ones foremost, below uses, as far as they are counted.
    apart_and_uses: u32,
}

impl Seen {
    const APART: u32 = 29;
    /// All that is counted of uses, and of requests between them.
    const MAX_USES: u32 = u32::MAX >> Self::APART;
    const FURTHEST: u32 = (1 << Self::APART) - 1;

    fn first(now: u32) -> Self {
        Self { last: now, place: 0, apart_and_uses: 1 << Self::APART }
    }

    fn uses(self) -> u32 {
        self.apart_and_uses >> Self::APART
    }

    fn apart(self) -> u32 {
        self.apart_and_uses & Self::FURTHEST
    }

    fn again(self, now: u32) -> Self {
        let age = now.wrapping_sub(self.last);
        let apart = if self.uses() == 1 { age } else { self.apart() / 2 + age / 2 };
        let uses = (self.uses() + 1).min(Self::MAX_USES);
        let apart_and_uses = uses << Self::APART | apart.min(Self::FURTHEST);
        Self { last: now, apart_and_uses, ..self }
    }

    fn class(self) -> usize {
        let often = match self.uses() {
            0 | 1 => return 0,
            2 => 1,
            3..=6 => 2,
            _ => 3,
        };
        often * OCTAVES + self.apart().max(1).ilog2() as usize
    }
}

/// How the classes are used again.
#[derive(Debug)]
struct Law {
    /// Uses that put an object into a class.
    entered: Vec<f32>,
    /// By class and bucket: at which ages objects of it were used again.
    reused: Vec<f32>,
    /// By class and bucket: what an object is worth.
    worth: Vec<f32>,
    /// Requests until the next reckoning.
    due: u32,
    pause: u32,
}

impl Law {
    fn new() -> Self {
        // Until something is known of a class: as LRU.
        let lru = |at: usize| (1.0 / (1.0 + youngest(at % BUCKETS))) as f32;
        Self {
            entered: vec![0.0; CLASSES],
            reused: vec![0.0; CLASSES * BUCKETS],
            worth: (0..CLASSES * BUCKETS).map(lru).collect(),
            due: FIRST,
            pause: FIRST,
        }
    }

    fn worth(&self, seen: Seen, now: u32) -> f32 {
        self.worth[seen.class() * BUCKETS + bucket(now.wrapping_sub(seen.last))]
    }

    /// An object of this class has been used again at this age, and is of another one now.
    fn reuse(&mut self, seen: Seen, now: u32) {
        self.reused[seen.class() * BUCKETS + bucket(now.wrapping_sub(seen.last))] += 1.0;
    }

    /// Says that a request is over, of so many objects known; reckons when it is time.
    fn pass(&mut self, known: u64) {
        self.due -= 1;
        if self.due == 0 {
            let most = u32::try_from(known).unwrap_or(u32::MAX).max(USUAL);
            self.pause = self.pause.saturating_mul(2).min(most);
            self.due = self.pause;
            self.reckon();
        }
    }

    fn reckon(&mut self) {
        for class in 0..CLASSES {
            let row = class * BUCKETS..(class + 1) * BUCKETS;
            if self.entered[class] > 0.0 {
                let reused = &mut self.reused[row.clone()];
                indices(self.entered[class], reused, &mut self.worth[row]);
                reused.iter_mut().for_each(|count| *count *= FADE);
                self.entered[class] *= FADE;
            }
        }
    }
}

/// The worth at each age, of objects of which so many were seen and so many were used again at each.
///
/// With `H` the uses up to an age and `W` the requests that all who were alive waited for them, it is the
/// steepest slope from the point of an age to that of a later one: that to the next corner of the upper
/// convex hull of the later points.
fn indices(entered: f32, reused: &[f32], worth: &mut [f32]) {
    let mut points = [(0.0f64, 0.0f64); BUCKETS];
    // More can be used again than were seen, as what was seen fades.
    let total: f64 = reused.iter().map(|count| f64::from(*count)).sum();
    let mut alive = f64::from(entered).max(total) + 0.01;
    for at in 0..BUCKETS - 1 {
        let (uses, width) = (f64::from(reused[at]), youngest(at + 1) - youngest(at));
        alive -= uses;
        let (waited, used) = points[at];
        points[at + 1] = (waited + width * (alive + uses / 2.0), used + uses);
    }
    let slope = |from: (f64, f64), to: (f64, f64)| (to.1 - from.1) / (to.0 - from.0);
    // The corners of the hull, the nearest last.
    let mut corners = [0usize; BUCKETS];
    let mut count = 1;
    (corners[0], worth[BUCKETS - 1]) = (BUCKETS - 1, 0.0);
    for at in (0..BUCKETS - 1).rev() {
        let to = |corner: usize| slope(points[at], points[corner]);
        while count > 1 && to(corners[count - 2]) >= to(corners[count - 1]) {
            count -= 1;
        }
        worth[at] = to(corners[count - 1]) as f32;
        corners[count] = at;
        count += 1;
    }
}

/// The least worth leaves, or for the time being the least recently used.
#[derive(Debug)]
pub struct Gittins {
    queues: Queues<1, 2, Seen, ()>,
    /// The slots of the residents, in no order.
    residents: Vec<u32>,
    now: u32,
    law: Law,
    by_recency: bool,
    dice: u64,
    /// Slots of those that have to leave for a newcomer.
    chosen: Vec<u32>,
}

impl Default for Gittins {
    fn default() -> Self {
        let (queues, law) = (Queues::default(), Law::new());
        let (residents, chosen) = (Vec::new(), Vec::new());
        Self { queues, residents, now: 0, law, by_recency: false, dice: 0, chosen }
    }
}

impl Gittins {
    /// From now on the least recently used leaves, as with LRU, and what is seen is learnt all the same;
    /// or the least worth again.
    pub(super) fn lead_by_recency(&mut self, by_recency: bool) {
        self.by_recency = by_recency;
    }

    fn worth(&self, slot: u32) -> f32 {
        self.law.worth(self.queues.node(slot).tag, self.now)
    }

    fn enlist(&mut self, slot: u32) {
        self.queues.tag(slot).place = self.residents.len() as u32;
        if self.residents.len() == self.residents.capacity() {
            // As the slots grow.
            self.residents.reserve_exact(self.residents.len() / 4 + 16);
        }
        self.residents.push(slot);
    }

    fn delist(&mut self, slot: u32) {
        let place = self.queues.tag(slot).place;
        self.residents.swap_remove(place as usize);
        if let Some(&moved) = self.residents.get(place as usize) {
            self.queues.tag(moved).place = place;
        }
    }

    /// The least worth of a few that are not busy; of equals the one that was not used for longest.
    fn least(&mut self, busy: &dyn Fn(u64) -> bool) -> Option<(f32, u32)> {
        let mut least: Option<(f32, u32, u32)> = None;
        let count = self.residents.len();
        for at in 0..count.min(DRAWN) {
            let mut drawn = at;
            if count > DRAWN {
                self.dice = self.dice.wrapping_add(1);
                drawn = (mix(self.dice) % count as u64) as usize;
            }
            let slot = self.residents[drawn];
            let (worth, age) = (self.worth(slot), self.age(slot));
            let less = |(lowest, oldest, _)| worth < lowest || worth == lowest && age > oldest;
            if least.is_none_or(less) && !busy(self.queues.object(slot)) {
                least = Some((worth, age, slot));
            }
        }
        let drawn = least.map(|(worth, _, slot)| (worth, slot));
        drawn.or_else(|| self.idle(busy).map(|slot| (self.worth(slot), slot)))
    }

    fn age(&self, slot: u32) -> u32 {
        self.now.wrapping_sub(self.queues.node(slot).tag.last)
    }

    /// The least recently used that is not busy and not chosen.
    fn idle(&self, busy: &dyn Fn(u64) -> bool) -> Option<u32> {
        let listed = |slot: u32| {
            let place = self.queues.node(slot).tag.place;
            self.residents.get(place as usize) == Some(&slot)
        };
        let mut next = self.queues.oldest(RESIDENT);
        while let Some(slot) = next {
            if listed(slot) && !busy(self.queues.object(slot)) {
                return Some(slot);
            }
            next = self.queues.newer(slot);
        }
        None
    }

    /// The same, of which those that are busy are the most recent from now on.
    fn stalest(&mut self, busy: &dyn Fn(u64) -> bool) -> Option<u32> {
        for _ in 0..self.queues.len(RESIDENT) {
            let slot = self.queues.oldest(RESIDENT)?;
            if !busy(self.queues.object(slot)) {
                return Some(slot);
            }
            self.queues.shift(slot, RESIDENT);
        }
        None
    }

    /// Chooses those who leave for a newcomer of so much worth, and says whether that is enough.
    fn choose(&mut self, worth: f64, need: u64, room: &Room<'_>) -> bool {
        let (mut freed, mut lost) = (0, 0.0);
        while freed < need {
            if self.chosen.len() >= room.limit {
                return false;
            }
            let Some((least, slot)) = self.least(room.busy) else { return false };
            let bytes = self.queues.node(slot).bytes;
            self.delist(slot);
            self.chosen.push(slot);
            freed += bytes;
            lost += f64::from(least) * bytes as f64;
            if lost > worth {
                return false;
            }
        }
        true
    }
}

impl Order for Gittins {
    fn name(&self) -> &'static str {
        "gittins"
    }

    fn warm(&self, objects: &[u64]) {
        self.queues.warm(objects);
    }

    fn number(&mut self, objects: usize) {
        self.queues.number(objects);
    }

    fn touch(&mut self, access: &Access) {
        self.now = self.now.wrapping_add(1);
        let now = self.now;
        let seen = if let Some(slot) = self.queues.find(access.object) {
            let before = *self.queues.tag(slot);
            self.law.reuse(before, now);
            *self.queues.tag(slot) = before.again(now);
            let queue = self.queues.node(slot).queue;
            self.queues.shift(slot, queue);
            before.again(now)
        } else {
            self.queues.add(GHOST, access.object, access.size, Seen::first(now));
            Seen::first(now)
        };
        self.law.entered[seen.class()] += 1.0;
        let residents = self.queues.len(RESIDENT);
        while self.queues.len(GHOST) > 2 * residents + GHOSTS {
            let Some(slot) = self.queues.oldest(GHOST) else { break };
            self.queues.remove(slot);
        }
        self.law.pass(residents + self.queues.len(GHOST));
    }

    fn insert(&mut self, object: u64, bytes: u64) {
        if self.queues.resize(object, bytes) {
            return;
        }
        let slot = match self.queues.find(object) {
            Some(slot) => {
                self.queues.shift(slot, RESIDENT);
                self.queues.resize(object, bytes);
                slot
            }
            None => self.queues.add(RESIDENT, object, bytes, Seen::first(self.now)),
        };
        self.enlist(slot);
    }

    fn resize(&mut self, object: u64, bytes: u64) {
        self.queues.resize(object, bytes);
    }

    fn remove(&mut self, object: u64) {
        if let Some(slot) = self.queues.find_resident(object) {
            self.delist(slot);
            self.queues.remove(slot);
        }
    }

    fn evict(&mut self, busy: &dyn Fn(u64) -> bool) -> Option<Victim> {
        let slot = if self.by_recency { self.stalest(busy)? } else { self.least(busy)?.1 };
        let victim = self.queues.victim(slot);
        self.delist(slot);
        self.queues.shift(slot, GHOST);
        Some(victim)
    }

    fn admit(
        &mut self,
        candidate: &Candidate,
        room: &Room<'_>,
        out: &mut Vec<Victim>,
    ) -> Admission {
        if self.by_recency {
            return admit_what_fits(self, candidate, room, out);
        }
        if candidate.size > room.capacity {
            return Admission::Bypass;
        }
        let worth = match self.queues.find(candidate.object) {
            Some(slot) => self.worth(slot),
            // Fetched ahead: as whatever is used for the first time.
            None => self.law.worth(Seen::first(self.now), self.now),
        };
        let incoming = candidate.incoming();
        let comes = self.choose(f64::from(worth) * incoming as f64, room.lacking(incoming), room);
        let mut chosen = std::mem::take(&mut self.chosen);
        for slot in chosen.drain(..) {
            if comes {
                out.push(self.queues.victim(slot));
                self.queues.shift(slot, GHOST);
            } else {
                self.enlist(slot);
            }
        }
        self.chosen = chosen;
        if comes { Admission::Whole } else { Admission::Bypass }
    }

    fn books(&self) -> Snapshot {
        self.queues.books()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Ordered;
    use crate::policy::replay::Cache;

    fn hits(cache: &mut Cache, objects: impl Iterator<Item = u64>) -> u64 {
        let before = cache.counts().hits;
        objects.for_each(|object| _ = cache.request(object, 1));
        cache.counts().hits - before
    }

    fn cache(objects: u64) -> Cache {
        Cache::with(Box::new(Ordered::new(Gittins::default())), objects)
    }

    #[test]
    fn buckets_of_all_ages_then_in_order_and_within_an_eighth() {
        let mut ages: Vec<u32> = (0..40).chain((3..32).map(|bit| (1 << bit) + 5)).collect();
        ages.push(u32::MAX);
        ages.sort_unstable();
        let mut before = 0;
        for age in ages {
            let at = bucket(age);
            assert!(at >= before && at < BUCKETS, "{age}: {at}");
            let (from, until) = (youngest(at), youngest(at + 1));
            assert!(from <= f64::from(age) && f64::from(age) < until, "{age}: {from} to {until}");
            assert!(until - from <= (from / 8.0).max(1.0), "{age}");
            before = at;
        }
    }

    #[test]
    fn worth_at_each_age_then_that_of_the_best_time_to_wait() {
        // In any order of ages that are used again: the definition itself.
        let mut dice = 0;
        for _ in 0..50 {
            let mut reused = vec![0.0f32; BUCKETS];
            for _ in 0..1 + dice % 7 {
                dice += 1;
                reused[(mix(dice) % 90) as usize] += (mix(dice) >> 60) as f32;
            }
            let entered = reused.iter().sum::<f32>() + (mix(dice) >> 61) as f32;
            let mut worth = vec![-1.0; BUCKETS];
            indices(entered, &reused, &mut worth);
            let mut alive = f64::from(entered) + 0.01;
            for at in 0..100 {
                let (mut uses, mut waited, mut left, mut best) = (0.0, 0.0, alive, 0.0f64);
                for (until, now) in reused.iter().enumerate().take(BUCKETS - 1).skip(at) {
                    let now = f64::from(*now);
                    left -= now;
                    uses += now;
                    waited += (youngest(until + 1) - youngest(until)) * (left + now / 2.0);
                    best = best.max(uses / waited);
                }
                assert!((f64::from(worth[at]) - best).abs() <= 1e-5 * best, "{at}: {best}");
                alive -= f64::from(reused[at]);
            }
        }
    }

    #[test]
    fn loop_larger_than_the_tier_then_as_many_hits_as_can_be() {
        let mut cache = cache(100);
        hits(&mut cache, (0..30_000).map(|at| at % 150));
        let hits = hits(&mut cache, (0..15_000).map(|at| at % 150));
        // Two thirds of each round, of which LRU has none.
        assert!(hits >= 9_500, "{hits} of 15,000");
    }

    #[test]
    fn scan_beside_what_is_used_often_then_the_scan_displaces_nothing() {
        let mut cache = cache(100);
        let mixed = |at: u64| if at.is_multiple_of(2) { mix(at) % 90 } else { 1_000 + at };
        hits(&mut cache, (0..20_000).map(mixed));
        let hits = hits(&mut cache, (20_000..30_000).map(mixed));
        assert!(hits >= 4_900, "{hits} of 5,000");
    }

    #[test]
    fn twice_used_and_never_again_then_gone_before_what_comes_again() {
        let mut cache = cache(60);
        // Pairs of uses 40 requests apart, beside a few that stay.
        let mixed = |at: u64| match at % 4 {
            0 => 1_000_000 + at,
            1 if at > 40 => 1_000_000 + at - 41,
            _ => mix(at) % 40,
        };
        hits(&mut cache, (0..40_000).map(mixed));
        let hits = hits(&mut cache, (40_000..60_000).map(mixed));
        // Ten wait for their second use at a time, and there are no third ones.
        assert!(hits >= 14_500, "{hits} of 15,000");
    }

    #[test]
    fn residents_when_all_but_one_are_busy_then_it_leaves() {
        let mut policy = Gittins::default();
        (0..500).for_each(|object| policy.insert(object, 1));
        let gone = policy.evict(&|object| object != 321);
        assert_eq!(gone, Some(Victim::whole(321, 1)));
        assert_eq!(policy.evict(&|_| true), None);
        assert_eq!((policy.books().objects, policy.books().ghosts), (499, 1));
    }

    #[test]
    fn by_recency_then_as_lru() {
        let mut by_recency = Gittins::default();
        by_recency.lead_by_recency(true);
        let mut ours = Cache::with(Box::new(Ordered::new(by_recency)), 1_000);
        let mut lru = Cache::with(Box::new(Ordered::new(crate::policy::Lru::default())), 1_000);
        for at in 0..20_000 {
            let object = mix(at) % 1_000 * (mix(at) >> 32) % 700;
            let size = 1 + object * 37 % 90;
            assert_eq!(ours.request(object, size), lru.request(object, size), "{at}");
        }
    }
}
