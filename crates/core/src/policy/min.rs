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
//! (farthest next use first). What is unknown never displaces what is known.
//!
//! The whole-file variant takes the farthest until there is room, then gives back what was not
//! needed, nearest use first, and passes the newcomer by if there is no room among those used later.
//! Where requests cost time besides their bytes, it follows [`Weighted::by_cost`].
//!
//! Sequences may be wrong. A job that departs from its own loses its credit ([`crate::reference`]),
//! and what is left of the danger the [`Trial`] bounds: if following the hints costs more than
//! S3-FIFO without them would, nothing is known until that changes.

use super::next_use::{Farthest, Known, NEVER, NextUseOrder, Weighted};
use super::s3fifo::S3Fifo;
use super::trial::Trial;
use super::{
    Access, Admission, Candidate, Demand, Hint, Order, Ordered, Policy, PolicyConfig, Room,
    Snapshot, Victim,
};
use crate::reference::{Future, References};

/// Stale places that one search for a victim corrects; more come right in later searches.
const CORRECTIONS: usize = 32;

/// Partial residency in chunks of `config.chunk` bytes.
#[must_use]
pub fn min(config: &PolicyConfig) -> Box<dyn Policy> {
    Box::new(Ordered::new(Min::new(*config, Some(config.chunk.max(1)), |_| Farthest::default())))
}

/// Whole files only; weighs what requests cost if `config.request_cost` says so.
#[must_use]
pub fn min_whole(config: &PolicyConfig) -> Box<dyn Policy> {
    if config.request_cost > 0 {
        Box::new(Ordered::new(Min::new(*config, None, Weighted::by_cost)))
    } else {
        Box::new(Ordered::new(Min::new(*config, None, |_| Farthest::default())))
    }
}

/// What is known of the future: the references, unless they are not believed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outlook<'a> {
    pub references: &'a References,
    pub believed: bool,
}

impl Outlook<'_> {
    fn next_use(&self, object: u64) -> Option<u64> {
        if !self.believed {
            return None;
        }
        match self.references.future(object) {
            Future::At(at) => Some(at),
            Future::Dead => Some(NEVER),
            Future::Unknown => None,
        }
    }

    /// The reference being served has been consumed; distances count from it.
    fn now(&self) -> u64 {
        self.references.now().saturating_sub(1)
    }
}

/// The residents of one tier, by what is known of them, and the decisions among them.
#[derive(Debug)]
pub(super) struct TierOrder<O> {
    known: O,
    unknown: S3Fifo,
    /// Grain of partial residency; `None` keeps files whole.
    chunk: Option<u64>,
    later: Vec<Known>,
}

impl<O: NextUseOrder> TierOrder<O> {
    pub fn new(config: &PolicyConfig, chunk: Option<u64>, known: O) -> Self {
        let unknown = S3Fifo::new(&PolicyConfig { admit_large: true, ..*config });
        Self { known, unknown, chunk, later: Vec::new() }
    }

    pub fn bytes_of(&self, object: u64) -> Option<u64> {
        self.known.bytes_of(object).or_else(|| self.unknown.bytes_of(object))
    }

    /// These objects will be looked for soon.
    pub fn warm(&self, objects: &[u64]) {
        self.known.warm(objects);
        self.unknown.warm(objects);
    }

    pub fn books(&self) -> Snapshot {
        let (known, unknown) = (self.known.books(), self.unknown.books());
        Snapshot {
            objects: known.objects + unknown.objects,
            bytes: known.bytes + unknown.bytes,
            ..unknown
        }
    }

    /// An object was accessed; a resident one changes its class if more or less is known of it now.
    pub fn touch(&mut self, access: &Access, outlook: Outlook<'_>) {
        let object = access.object;
        let next = outlook.next_use(object);
        if next.is_some_and(|next| self.known.reschedule(object, next)) {
            return;
        }
        if let Some(bytes) = self.known.remove(object) {
            // Nothing is known of it any more but that it was used while it was here.
            return self.unknown.insert_used(object, bytes);
        }
        self.unknown.touch(access);
        if let Some(next) = next
            && let Some(bytes) = self.unknown.bytes_of(object)
        {
            self.unknown.remove(object);
            self.known.set(Known { object, bytes, next });
        }
    }

    /// Puts a resident object into the class that its future says.
    pub fn file(&mut self, object: u64, bytes: u64, outlook: Outlook<'_>) {
        if let Some(next) = outlook.next_use(object) {
            self.unknown.remove(object);
            self.known.set(Known { object, bytes, next });
        } else {
            self.known.remove(object);
            // Where hints are not believed, S3-FIFO has the tier for itself again.
            self.unknown.set_refills(!outlook.believed);
            self.unknown.insert(object, bytes);
        }
    }

    /// Looks at the future of an object again, if it is resident.
    pub fn refile(&mut self, object: u64, outlook: Outlook<'_>) {
        if let Some(bytes) = self.bytes_of(object) {
            self.file(object, bytes, outlook);
        }
    }

    pub fn remove(&mut self, object: u64) {
        if self.known.remove(object).is_none() {
            self.unknown.remove(object);
        }
    }

    /// The known object that is the first to leave and not busy. Places that have gone stale since
    /// they were taken (another pace, a withdrawn job) are corrected on the way.
    fn first(&mut self, busy: &dyn Fn(u64) -> bool, outlook: Outlook<'_>) -> Option<Known> {
        let mut corrections = 0;
        loop {
            let first = self.known.first_free(outlook.now(), busy)?;
            let fresh = !outlook.believed || outlook.next_use(first.object) == Some(first.next);
            if fresh || corrections == CORRECTIONS {
                return Some(first);
            }
            corrections += 1;
            self.file(first.object, first.bytes, outlook);
        }
    }

    /// Takes what is of no use until `need` is met: the dead, and everything that was kept for hints
    /// which are not believed any more.
    fn bury(
        &mut self,
        need: u64,
        room: &Room<'_>,
        outlook: Outlook<'_>,
        out: &mut Vec<Victim>,
    ) -> u64 {
        let mut freed = 0;
        while freed < need && out.len() < room.limit {
            let Some(first) = self.first(room.busy, outlook) else { break };
            if first.next != NEVER && outlook.believed {
                break;
            }
            self.known.remove(first.object);
            out.push(first.victim());
            freed += first.bytes;
        }
        freed
    }

    /// Takes the unknown until `need` is met.
    fn take_unknown(&mut self, need: u64, room: &Room<'_>, out: &mut Vec<Victim>) -> u64 {
        let limit = room.limit.saturating_sub(out.len());
        self.unknown.make_room(&Demand { bytes: need, limit, busy: room.busy }, out)
    }

    /// Cuts the tails of what leaves before the newcomer (of anything, if there is none) until
    /// `need` is met.
    fn cut(
        &mut self,
        need: u64,
        newcomer: Option<&Known>,
        room: &Room<'_>,
        outlook: Outlook<'_>,
        out: &mut Vec<Victim>,
    ) -> u64 {
        let (mut freed, now) = (0, outlook.now());
        let chunk = self.chunk.unwrap_or(u64::MAX);
        while freed < need && out.len() < room.limit {
            let Some(first) = self.first(room.busy, outlook) else { break };
            if newcomer.is_some_and(|newcomer| !self.known.leaves_before(&first, newcomer, now)) {
                break;
            }
            let keep = first.bytes.saturating_sub(need - freed) / chunk * chunk;
            if keep == 0 {
                self.known.remove(first.object);
            } else {
                self.known.set(Known { bytes: keep, ..first });
            }
            let bytes = first.bytes - keep;
            out.push(Victim { object: first.object, bytes, keep, dead: false });
            freed += bytes;
        }
        freed
    }

    /// Takes whole files that leave before the newcomer until `need` is met, and gives back what was
    /// not needed; all of them if there are not enough.
    fn swap(
        &mut self,
        need: u64,
        newcomer: &Known,
        room: &Room<'_>,
        outlook: Outlook<'_>,
        out: &mut Vec<Victim>,
    ) -> bool {
        let (mut freed, now) = (0, outlook.now());
        self.later.clear();
        while freed < need && out.len() + self.later.len() < room.limit {
            let Some(first) = self.first(room.busy, outlook) else { break };
            if !self.known.leaves_before(&first, newcomer, now) {
                break;
            }
            self.known.remove(first.object);
            self.later.push(first);
            freed += first.bytes;
        }
        let enough = freed >= need;
        // The last to leave first. One pass is enough: what is needed now is needed when less is
        // left.
        self.later.reverse();
        let known = &mut self.known;
        self.later.retain(|one| {
            let needed = enough && freed - one.bytes < need;
            if !needed {
                freed -= one.bytes;
                known.set(*one);
            }
            needed
        });
        out.extend(self.later.iter().rev().map(Known::victim));
        enough
    }

    /// Decides on a newcomer: see [`Order::admit`].
    pub fn admit(
        &mut self,
        candidate: &Candidate,
        room: &Room<'_>,
        outlook: Outlook<'_>,
        out: &mut Vec<Victim>,
    ) -> Admission {
        let Candidate { object, size, resident, .. } = *candidate;
        let next = outlook.next_use(object);
        if next == Some(NEVER) || (self.chunk.is_none() && size > room.capacity) {
            return Admission::Bypass;
        }
        let need = room.lacking(candidate.incoming());
        if need == 0 {
            return Admission::Whole;
        }
        let freed = self.bury(need, room, outlook, out);
        let rest = need.saturating_sub(freed);
        let spare = self.unknown.books().bytes.min(rest);
        let Some(next) = next else {
            // The unknown would be taken for nothing if that does not make room for a whole file.
            let enough = size <= room.capacity && spare == rest;
            let done = enough && self.take_unknown(rest, room, out) >= rest;
            return if done { Admission::Whole } else { Admission::Bypass };
        };
        let newcomer = Known { object, bytes: size, next };
        let Some(chunk) = self.chunk else {
            let done = self.swap(rest - spare, &newcomer, room, outlook, out)
                && self.take_unknown(spare, room, out) >= spare;
            return if done { Admission::Whole } else { Admission::Bypass };
        };
        let mut freed = freed + self.take_unknown(rest, room, out);
        freed += self.cut(need.saturating_sub(freed), Some(&newcomer), room, outlook, out);
        if freed >= need {
            return Admission::Whole;
        }
        let head = size.saturating_sub(need - freed) / chunk * chunk;
        if head > resident { Admission::Head(head) } else { Admission::Bypass }
    }

    /// Makes room for nobody in particular: see [`Order::make_room`].
    fn make_room(
        &mut self,
        demand: &Demand<'_>,
        outlook: Outlook<'_>,
        out: &mut Vec<Victim>,
    ) -> u64 {
        let limit = demand.limit.saturating_add(out.len());
        let room = Room { capacity: 0, used: 0, limit, busy: demand.busy };
        let mut freed = self.bury(demand.bytes, &room, outlook, out);
        freed += self.take_unknown(demand.bytes.saturating_sub(freed), &room, out);
        freed + self.cut(demand.bytes.saturating_sub(freed), None, &room, outlook, out)
    }
}

/// Forebay-MIN.
#[derive(Debug)]
struct Min<O> {
    references: References,
    order: TierOrder<O>,
    trial: Trial<O>,
}

impl<O: NextUseOrder> Min<O> {
    fn new(config: PolicyConfig, chunk: Option<u64>, known: fn(&PolicyConfig) -> O) -> Self {
        Self {
            references: References::new(),
            order: TierOrder::new(&config, chunk, known(&config)),
            trial: Trial::new(config, chunk.is_some(), known),
        }
    }

    fn parts(&mut self) -> (&mut TierOrder<O>, Outlook<'_>) {
        let outlook = Outlook { references: &self.references, believed: self.trial.believed() };
        (&mut self.order, outlook)
    }
}

impl<O: NextUseOrder> Order for Min<O> {
    fn name(&self) -> &'static str {
        if self.order.chunk.is_some() { "min" } else { "min-whole" }
    }

    fn touch(&mut self, access: &Access) {
        self.references.observe(access.object);
        self.order.warm(self.references.soon());
        self.trial.watch(access, &self.references);
        let (order, outlook) = self.parts();
        order.touch(access, outlook);
    }

    fn looks_ahead(&self) -> bool {
        true
    }

    fn hint(&mut self, hint: &Hint<'_>) {
        let Self { references, order, trial } = self;
        references.hint_each(hint, |references, next| {
            order.warm(next);
            for &object in next {
                order.refile(object, Outlook { references, believed: trial.believed() });
                trial.refile(object, references);
            }
        });
    }

    fn insert(&mut self, object: u64, bytes: u64) {
        let (order, outlook) = self.parts();
        order.file(object, bytes, outlook);
    }

    fn resize(&mut self, object: u64, bytes: u64) {
        if self.order.bytes_of(object).is_some() {
            self.insert(object, bytes);
        }
    }

    fn remove(&mut self, object: u64) {
        self.order.remove(object);
    }

    fn evict(&mut self, busy: &dyn Fn(u64) -> bool) -> Option<Victim> {
        let mut out = Vec::new();
        self.make_room(&Demand { bytes: 1, limit: 1, busy }, &mut out);
        out.pop()
    }

    fn make_room(&mut self, demand: &Demand<'_>, out: &mut Vec<Victim>) -> u64 {
        let (order, outlook) = self.parts();
        order.make_room(demand, outlook, out)
    }

    fn admit(
        &mut self,
        candidate: &Candidate,
        room: &Room<'_>,
        out: &mut Vec<Victim>,
    ) -> Admission {
        let (order, outlook) = self.parts();
        order.admit(candidate, room, outlook, out)
    }

    fn books(&self) -> Snapshot {
        Snapshot { ahead: self.references.ahead(), ..self.order.books() }
    }
}
