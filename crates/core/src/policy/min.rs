//! Forebay-MIN: order by next use, with bypass and partial residency.
//!
//! What is used farthest in the future leaves first, and the newcomer competes (Belady's MIN with
//! bypass; McFarling, ISCA 1992). Residency by chunks makes the order optimal in bytes: only the
//! tail of a victim leaves that is needed, only the head of a newcomer comes in that fits. With
//! whole knowledge and chunks of a byte the bytes missed equal the fractional optimum, the
//! min-cost-flow bound (Berger, Beckmann, Harchol-Balter: "Practical bounds on optimal caching with
//! variable object sizes", SIGMETRICS 2018).
//!
//! Three classes of objects, in the order in which they leave: *dead* (a complete sequence named
//! them and is past them), *unknown* (no sequence names them; S3-FIFO among themselves), *known*
//! (farthest next use first). What is unknown never displaces what is known; a sequence that the
//! accesses do not follow loses its credit, and its objects become unknown.
//!
//! The whole-file variant takes the farthest until there is room, then gives back what was not
//! needed, nearest use first, and passes the newcomer by if there is no room among those used later.
//! Where requests cost time besides their bytes, see [`super::MinCost`].

use std::cmp::Reverse;

use super::rank::{Ranked, Ranking};
use super::s3fifo::S3Fifo;
use super::{
    Access, Admission, Candidate, Demand, Hint, Policy, PolicyConfig, Room, Snapshot, Tally, Victim,
};
use crate::reference::{Future, References};

/// The next use of what is dead.
const NEVER: u64 = u64::MAX;
/// Stale places that one search for a victim corrects; more come right in later searches.
const CORRECTIONS: usize = 32;

/// Forebay-MIN.
#[derive(Debug)]
pub struct Min {
    references: References,
    known: Ranking<Reverse<u64>, ()>,
    unknown: S3Fifo,
    /// Grain of partial residency; `None` keeps files whole.
    chunk: Option<u64>,
    later: Vec<Ranked<Reverse<u64>>>,
    tally: Tally,
}

impl Min {
    /// Partial residency in chunks of `config.chunk` bytes.
    #[must_use]
    pub fn chunked(config: &PolicyConfig) -> Self {
        Self { chunk: Some(config.chunk.max(1)), ..Self::whole(config) }
    }

    /// Whole files only.
    #[must_use]
    pub fn whole(config: &PolicyConfig) -> Self {
        Self {
            references: References::new(),
            known: Ranking::new(),
            unknown: S3Fifo::new(&PolicyConfig { admit_large: true, ..*config }),
            chunk: None,
            later: Vec::new(),
            tally: Tally::default(),
        }
    }

    fn next_use(&self, object: u64) -> Option<u64> {
        match self.references.future(object) {
            Future::At(at) => Some(at),
            Future::Dead => Some(NEVER),
            Future::Unknown => None,
        }
    }

    /// Puts a resident object into the class that its future says.
    fn file(&mut self, object: u64, bytes: u64) {
        if let Some(next) = self.next_use(object) {
            self.unknown.removed(object);
            self.known.set(object, bytes, Reverse(next), ());
        } else {
            self.known.remove(object);
            self.unknown.inserted(object, bytes);
        }
    }

    /// The known object of the farthest next use that is not busy. Places that have gone stale since
    /// they were taken (another pace, a withdrawn job) are corrected on the way.
    fn farthest(&mut self, busy: &dyn Fn(u64) -> bool) -> Option<Ranked<Reverse<u64>>> {
        let mut corrections = 0;
        loop {
            let first = self.known.first()?;
            if busy(first.object) {
                self.known.set_first_aside();
                continue;
            }
            let fresh = self.next_use(first.object).map(Reverse) == Some(first.key);
            if fresh || corrections == CORRECTIONS {
                return Some(first);
            }
            corrections += 1;
            self.file(first.object, first.bytes);
        }
    }

    /// Takes the dead until `need` is met.
    fn bury(&mut self, need: u64, room: &Room<'_>, out: &mut Vec<Victim>) -> u64 {
        let mut freed = 0;
        while freed < need && out.len() < room.limit {
            match self.farthest(room.busy) {
                Some(first) if first.key.0 == NEVER => {
                    self.known.pop();
                    out.push(Victim { dead: true, ..Victim::whole(first.object, first.bytes) });
                    freed += first.bytes;
                }
                _ => break,
            }
        }
        freed
    }

    /// Takes the unknown until `need` is met.
    fn unknown_victims(&mut self, need: u64, room: &Room<'_>, out: &mut Vec<Victim>) -> u64 {
        if need == 0 {
            return 0;
        }
        let limit = room.limit.saturating_sub(out.len());
        self.unknown.victims(&Demand { bytes: need, limit, busy: room.busy }, out)
    }

    /// Cuts the tails of what is used later than `next`, farthest first, until `need` is met.
    fn cut(
        &mut self,
        need: u64,
        next: u64,
        chunk: u64,
        room: &Room<'_>,
        out: &mut Vec<Victim>,
    ) -> u64 {
        let mut freed = 0;
        while freed < need && out.len() < room.limit {
            let Some(first) = self.farthest(room.busy) else { break };
            if first.key.0 <= next {
                break;
            }
            let keep = first.bytes.saturating_sub(need - freed) / chunk * chunk;
            if keep == 0 {
                self.known.pop();
            } else {
                self.known.resize(first.object, keep);
            }
            let bytes = first.bytes - keep;
            out.push(Victim { object: first.object, bytes, keep, dead: false });
            freed += bytes;
        }
        freed
    }

    /// Takes whole files used later than `next` until `need` is met, and gives back what was not
    /// needed; all of them if there are not enough.
    fn swap(&mut self, need: u64, next: u64, room: &Room<'_>, out: &mut Vec<Victim>) -> bool {
        let mut freed = 0;
        self.later.clear();
        while freed < need && out.len() + self.later.len() < room.limit {
            let Some(first) = self.farthest(room.busy) else { break };
            if first.key.0 <= next {
                break;
            }
            self.known.pop();
            self.later.push(first);
            freed += first.bytes;
        }
        let enough = freed >= need;
        // Nearest use first. One pass is enough: what is needed now is needed when less is left.
        self.later.reverse();
        let known = &mut self.known;
        self.later.retain(|one| {
            let needed = enough && freed - one.bytes < need;
            if !needed {
                freed -= one.bytes;
                known.set(one.object, one.bytes, one.key, ());
            }
            needed
        });
        out.extend(self.later.iter().rev().map(|gone| Victim::whole(gone.object, gone.bytes)));
        enough
    }

    fn decide(
        &mut self,
        candidate: &Candidate,
        room: &Room<'_>,
        out: &mut Vec<Victim>,
    ) -> Admission {
        let Candidate { object, size, resident, .. } = *candidate;
        let next = self.next_use(object);
        if next == Some(NEVER) || (self.chunk.is_none() && size > room.capacity) {
            return Admission::Bypass;
        }
        let incoming = size.saturating_sub(resident);
        let need = room.lacking(incoming);
        if need == 0 {
            return Admission::Whole;
        }
        let mut freed = self.bury(need, room, out);
        // The unknown would be taken for nothing if that does not make room for a whole file.
        let Some(next) = next else {
            let rest = need.saturating_sub(freed);
            let enough = size <= room.capacity && self.unknown.snapshot().bytes >= rest;
            let done = enough && self.unknown_victims(rest, room, out) >= rest;
            return if done { Admission::Whole } else { Admission::Bypass };
        };
        let rest = need.saturating_sub(freed);
        let Some(chunk) = self.chunk else {
            let spare = self.unknown.snapshot().bytes.min(rest);
            let done = self.swap(rest - spare, next, room, out)
                && self.unknown_victims(spare, room, out) >= spare;
            return if done { Admission::Whole } else { Admission::Bypass };
        };
        freed += self.unknown_victims(rest, room, out);
        freed += self.cut(need.saturating_sub(freed), next, chunk, room, out);
        if freed >= need {
            return Admission::Whole;
        }
        let head = size.saturating_sub(need - freed) / chunk * chunk;
        if head > resident { Admission::Head(head) } else { Admission::Bypass }
    }
}

impl Policy for Min {
    fn name(&self) -> &'static str {
        if self.chunk.is_some() { "min" } else { "min-whole" }
    }

    fn observe(&mut self, accesses: &[Access]) {
        for access in accesses {
            self.references.observe(access.object);
            self.unknown.observe(std::slice::from_ref(access));
            if let Some((bytes, ())) = self.known.get(access.object) {
                self.file(access.object, bytes);
            }
        }
    }

    fn hint(&mut self, hint: &Hint<'_>) {
        self.references.hint(hint);
        if let Hint::Append { objects, .. } = *hint {
            for &object in objects {
                let known = self.known.get(object).map(|(bytes, ())| bytes);
                if let Some(bytes) = known.or_else(|| self.unknown.bytes_of(object)) {
                    self.file(object, bytes);
                }
            }
        }
    }

    fn inserted(&mut self, object: u64, bytes: u64) {
        self.file(object, bytes);
    }

    fn resized(&mut self, object: u64, bytes: u64) {
        self.known.resize(object, bytes);
        self.unknown.resized(object, bytes);
    }

    fn removed(&mut self, object: u64) {
        self.known.remove(object);
        self.unknown.removed(object);
    }

    fn admit(
        &mut self,
        candidate: &Candidate,
        room: &Room<'_>,
        out: &mut Vec<Victim>,
    ) -> Admission {
        let before = out.len();
        let admission = self.decide(candidate, room, out);
        self.tally.victims += (out.len() - before) as u64;
        self.tally.admission(admission)
    }

    fn victims(&mut self, demand: &Demand<'_>, out: &mut Vec<Victim>) -> u64 {
        let before = out.len();
        let limit = demand.limit.saturating_add(before);
        let room = Room { capacity: 0, used: 0, limit, busy: demand.busy };
        let mut freed = self.bury(demand.bytes, &room, out);
        freed += self.unknown_victims(demand.bytes.saturating_sub(freed), &room, out);
        let chunk = self.chunk.unwrap_or(u64::MAX);
        freed += self.cut(demand.bytes.saturating_sub(freed), 0, chunk, &room, out);
        self.tally.victims += (out.len() - before) as u64;
        freed
    }

    fn snapshot(&self) -> Snapshot {
        let unknown = self.unknown.snapshot();
        Snapshot {
            objects: self.known.len() + unknown.objects,
            bytes: self.known.bytes() + unknown.bytes,
            ghosts: unknown.ghosts,
            ahead: self.references.ahead(),
            ..self.tally.snapshot()
        }
    }
}
