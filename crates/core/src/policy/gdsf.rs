//! GDSF (Cherkasova: "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching
//! Policy", HP Labs 1998): priority = inflation + uses / size; the inflation rises to the priority
//! of whatever leaves. The newcomer competes: it is put in before room is made, and may be the
//! first to leave.

use super::rank::Ranking;
use super::{Access, Admission, Candidate, Demand, Order, Room, Snapshot, Victim};

/// Scales uses / size away from zero. The value is libCacheSim's, so that ties and roundings agree.
const SCALE: f64 = 1e6;

/// A priority, smallest first, then the older request. Non-negative floats order like their bits.
type Key = (u64, u64);

/// Greedy-dual-size-frequency.
#[derive(Debug, Default)]
pub struct Gdsf {
    /// Accesses since it came in.
    ranking: Ranking<Key, u32>,
    inflation: f64,
    now: u64,
}

impl Gdsf {
    fn key(&self, uses: u32, bytes: u64) -> Key {
        let priority = self.inflation + f64::from(uses) * SCALE / bytes.max(1) as f64;
        (priority.to_bits(), self.now)
    }
}

impl Order for Gdsf {
    fn name(&self) -> &'static str {
        "gdsf"
    }

    fn touch(&mut self, access: &Access) {
        self.now += 1;
        if let Some(slot) = self.ranking.find(access.object) {
            let uses = self.ranking.tag(slot).saturating_add(1);
            self.ranking.rekey(slot, self.key(uses, self.ranking.bytes_at(slot)), uses);
        }
    }

    fn insert(&mut self, object: u64, bytes: u64) {
        match self.ranking.find(object) {
            Some(slot) => {
                self.resize(object, bytes);
                self.ranking.bring_back(slot, self.key(self.ranking.tag(slot), bytes));
            }
            None => self.ranking.add(object, bytes, self.key(1, bytes), 1),
        }
    }

    fn resize(&mut self, object: u64, bytes: u64) {
        if let Some(slot) = self.ranking.find(object)
            && self.ranking.bytes_at(slot) != bytes
        {
            let uses = self.ranking.tag(slot);
            self.ranking.resize(slot, bytes);
            self.ranking.rekey(slot, self.key(uses, bytes), uses);
        }
    }

    fn remove(&mut self, object: u64) {
        self.ranking.forget(object);
    }

    fn evict(&mut self, busy: &dyn Fn(u64) -> bool) -> Option<Victim> {
        let (victim, key) = self.ranking.evict(busy)?;
        self.inflation = f64::from_bits(key.0);
        Some(victim)
    }

    fn admit(
        &mut self,
        candidate: &Candidate,
        room: &Room<'_>,
        out: &mut Vec<Victim>,
    ) -> Admission {
        let Candidate { object, size, .. } = *candidate;
        let need = room.lacking(candidate.incoming());
        if size > room.capacity {
            return Admission::Bypass;
        }
        if need == 0 {
            return Admission::Whole;
        }
        // On the books before anything leaves, at the inflation of now: it competes.
        let first = out.len();
        self.insert(object, size);
        let busy = |other: u64| other != object && (room.busy)(other);
        let freed = self.make_room(&Demand { busy: &busy, ..room.demand(need) }, out);
        if freed < need || out[first..].iter().any(|victim| victim.object == object) {
            self.remove(object);
            return Admission::Bypass;
        }
        Admission::Whole
    }

    fn books(&self) -> Snapshot {
        self.ranking.books()
    }
}
