//! GDSF (Cherkasova: "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching
//! Policy", HP Labs 1998): priority = inflation + uses / size; the inflation rises to the priority
//! of whatever leaves. The newcomer competes: it is put in before room is made, and may be the
//! first to leave.

use super::rank::Ranking;
use super::{Access, Admission, Candidate, Demand, Policy, Room, Snapshot, Tally, Victim};

/// Scales uses / size away from zero. The value is libCacheSim's, so that ties and roundings agree.
const SCALE: f64 = 1e6;

/// A priority, smallest first, then the older request. Non-negative floats order like their bits.
type Key = (u64, u64);

/// Greedy-dual-size-frequency.
#[derive(Debug)]
pub struct Gdsf {
    ranking: Ranking<Key, u32>,
    inflation: f64,
    now: u64,
    tally: Tally,
}

impl Gdsf {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self { ranking: Ranking::new(), inflation: 0.0, now: 0, tally: Tally::default() }
    }

    fn key(&self, uses: u32, bytes: u64) -> Key {
        let priority = self.inflation + f64::from(uses) * SCALE / bytes.max(1) as f64;
        (priority.to_bits(), self.now)
    }

    fn give_up(&mut self, demand: &Demand<'_>, out: &mut Vec<Victim>) -> u64 {
        let before = out.len();
        let inflation = &mut self.inflation;
        let freed =
            self.ranking.give_up(demand, out, |first| *inflation = f64::from_bits(first.key.0));
        self.tally.victims += (out.len() - before) as u64;
        freed
    }
}

impl Default for Gdsf {
    fn default() -> Self {
        Self::new()
    }
}

impl Policy for Gdsf {
    fn name(&self) -> &'static str {
        "gdsf"
    }

    fn observe(&mut self, accesses: &[Access]) {
        for access in accesses {
            self.now += 1;
            if let Some((bytes, uses)) = self.ranking.get(access.object) {
                let uses = uses.saturating_add(1);
                self.ranking.update(access.object, self.key(uses, bytes), uses);
            }
        }
    }

    fn inserted(&mut self, object: u64, bytes: u64) {
        match self.ranking.get(object) {
            Some((before, _)) if before == bytes && !self.ranking.is_aside(object) => {}
            known => {
                let uses = known.map_or(1, |(_, uses)| uses);
                self.ranking.set(object, bytes, self.key(uses, bytes), uses);
            }
        }
    }

    fn resized(&mut self, object: u64, bytes: u64) {
        if let Some((_, uses)) = self.ranking.get(object) {
            self.ranking.resize(object, bytes);
            self.ranking.update(object, self.key(uses, bytes), uses);
        }
    }

    fn removed(&mut self, object: u64) {
        self.ranking.remove(object);
    }

    fn admit(
        &mut self,
        candidate: &Candidate,
        room: &Room<'_>,
        out: &mut Vec<Victim>,
    ) -> Admission {
        let Candidate { object, size, resident, .. } = *candidate;
        if size > room.capacity {
            return self.tally.admission(Admission::Bypass);
        }
        let need = room.lacking(size.saturating_sub(resident));
        if need == 0 {
            return self.tally.admission(Admission::Whole);
        }
        // On the books before anything leaves, at the inflation of now: it competes.
        let first = out.len();
        self.inserted(object, size);
        let busy = |other: u64| other != object && (room.busy)(other);
        let freed = self.give_up(&Demand { busy: &busy, ..room.demand(need) }, out);
        let gone = out[first..].iter().any(|victim| victim.object == object);
        if gone || freed < need {
            self.removed(object);
            return self.tally.admission(Admission::Bypass);
        }
        self.tally.admission(Admission::Whole)
    }

    fn victims(&mut self, demand: &Demand<'_>, out: &mut Vec<Victim>) -> u64 {
        self.give_up(demand, out)
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            objects: self.ranking.len(),
            bytes: self.ranking.bytes(),
            ..self.tally.snapshot()
        }
    }
}
