//! The deterministic guarantee, kept while the set of streams changes.
//!
//! *Invariant*: served from now on without a pause, in the order of this sweep and the next, each
//! visit taking the longest that it can (the longest way there, and a whole target of media to
//! read), and all of them together what the device is delayed by once, every stream with a running clock has its data before it runs dry.
//!
//! A visit in turn keeps it: until the stream's next visit every other one is visited once at most,
//! which takes `busy` of the plan, and the visit itself fills to the target (or all of the buffers of
//! a client that lags, which claims no more then), and admission has
//! `busy + budget <= (1 - margin) cycle = (1 - margin) (target - longest visit)`. Everything else is done only when
//! the invariant holds afterwards too, and is put off until then: first visits, clocks that start
//! (also after a pause or a seek), larger buffers for a longer cycle, pauses between visits,
//! best-effort reads. In a hurry, that is without pauses between visits, it comes to hold for each
//! of them within a few sweeps, since what is put off has been admitted before.
//!
//! *Memory*: each reader has a quota of chunks, the quotas together fit, and no visit goes beyond its
//! reader's. A stream that would make the others of its title hold more is separated from them.

use super::super::sweep::NEVER;
use super::dispatch::{Choice, grown};
use super::reader::State;
use super::{Actions, Machine, Scheme};
use crate::streams::admission::Assurance;
use crate::unit::Tick;

/// How often a target between the old and the new one is tried in a sweep.
const HALVINGS: u32 = 6;
/// A visit follows the last one of its stream after so small a part of a cycle at the earliest, unless
/// somebody suffers.
const SOONEST: u64 = 64;
/// And if that has read nothing, so many nanoseconds after it whoever suffers: it would read nothing
/// again.
const AGAIN: u64 = 1_000_000;
/// The part of a cycle by which visits that are in a hurry begin before the last moment at least: less if
/// there is best effort, which has what is left before it.
const BEFORE: u64 = 20;
const BEFORE_OTHERS: u64 = 128;

impl Machine {
    /// Whether the guarantee is deterministic.
    pub(super) fn sure(&self) -> bool {
        self.config.enforce
            && self.config.scheme == Scheme::Elastic
            && self.config.admission.assurance == Assurance::Deterministic
    }

    /// The longest that a visit can take without the ways between visits, which [`Self::latest_from`]
    /// has, if it reads a whole target: for a first one, from the start of the chunk that its stream is in.
    pub(super) fn whole_visit(&self, at: u32) -> i64 {
        let reader = &self.readers[at as usize];
        let offsets = reader.members.iter().map(|slot| self.member(*slot).offset);
        let first = offsets.max().filter(|_| reader.state == State::Starting);
        let before = first.map_or(0, |offset| offset.saturating_sub(reader.filled));
        self.visit_within(at, before, 0.0)
    }

    /// The same for every visit but the first. One that is over before its stream runs dry, after `t`,
    /// begins with `t` left at least, and reads what the target is more: `t <= access + c (target - t) / rate`.
    /// Who is not about to run dry, since his client has stopped, gets no more than that either.
    pub(super) fn longest_visit(&self, at: u32) -> i64 {
        let reader = &self.readers[at as usize];
        let share = reader.rate.peak() / reader.slowest * self.slowdown;
        self.visit_within(at, 0, if reader.rate.is_constant() { share } else { 0.0 })
    }

    /// Most bytes that a visit reads which [`Self::longest_visit`] is counted for.
    pub(super) fn longest_read(&self, at: u32) -> u64 {
        let reader = &self.readers[at as usize];
        if !self.sure() || reader.state == State::Starting || !reader.rate.is_constant() {
            return u64::MAX;
        }
        // A device that is slower than its profile holds no promise: whoever was capped by one could be
        // left with nothing to read at all.
        if self.slowdown > 1.0 {
            return u64::MAX;
        }
        reader.rate.most_in(self.target.saturating_sub(self.longest_visit(at) as u64))
    }

    fn visit_within(&self, at: u32, before: u64, share: f64) -> i64 {
        let reader = &self.readers[at as usize];
        let bytes = before + reader.rate.most_in(self.target) + self.config.admission.chunk;
        let read = bytes as f64 / reader.slowest * self.slowdown * 1e9;
        let access = self.admission.longest(1, 0) + reader.jumps;
        let visit = ((access as f64 + read) / (1.0 + share)).ceil() as u64;
        (visit.max(access) / u64::from(self.config.depth.max(1))) as i64
    }

    /// The longest way along the device from its start, visits not counted, in nanoseconds.
    fn along(&self, place: u64) -> i64 {
        self.admission.longest(0, place) as i64
    }

    /// The longest way from a place to the first of a sweep, beyond the way along the device up to there.
    fn back_to(&self, from: u64, sweep: usize) -> i64 {
        self.sweeps
            .start(sweep)
            .map_or(0, |start| self.admission.jump(from.abs_diff(start)) as i64 - self.along(start))
    }

    /// Puts a reader into a sweep of the ring, or there again when something of it has changed. For
    /// certain the way to it counts up to its own place and no further: those who come behind it
    /// later take nothing of its time.
    pub(super) fn enter(&mut self, sweep: usize, at: u32, order: u64, cost: i64, deadline: i64) {
        let way = if self.sure() && sweep < self.wheel { self.along(order) } else { 0 };
        self.sweeps.insert(sweep, at, order, cost, deadline.saturating_sub(way));
    }

    /// The latest moments at which the device can go on in order, if it is at `head` then: so that all
    /// of this sweep have their data in time, and all of the next.
    pub(super) fn latest_of_each(&self, head: u64) -> (i64, i64) {
        let (total, this) = self.sweeps.outlook(self.current);
        let (_, next) = self.sweeps.outlook(1 - self.current);
        if !self.sure() {
            return (this, next.saturating_sub(total));
        }
        let to_this = self.back_to(head, self.current);
        let (through, on) = match self.sweeps.end(self.current) {
            Some(end) => (to_this + self.along(end), end),
            None => (0, head),
        };
        let to_next = through + self.back_to(on, 1 - self.current);
        let delay = self.admission.delay() as i64;
        (this - to_this - delay, next.saturating_sub(total) - to_next - delay)
    }

    /// The latest moment at which the device can go on in order, if it is at `head` then.
    pub(super) fn latest_from(&self, head: u64) -> i64 {
        let (this, next) = self.latest_of_each(head);
        this.min(next)
    }

    /// The latest moment at which the sweep can go on in order.
    pub(super) fn latest(&self) -> i64 {
        self.latest_from(self.head)
    }

    /// Visits fill to another target from now on.
    pub(super) fn recost(&mut self, target: u64) {
        self.target = target;
        for at in 0..self.readers.len() as u32 {
            let Some(sweep) = self.sweeps.sweep_of(at).filter(|sweep| *sweep < self.wheel) else {
                continue;
            };
            let (cost, deadline) = (self.cost(at), self.deadline(at));
            self.enter(sweep, at, self.readers[at as usize].order, cost, deadline);
        }
    }

    /// Chunks that a reader may hold if visits fill to a target.
    pub(super) fn quota(&self, at: u32, target: u64) -> u64 {
        let chunk = self.config.admission.chunk;
        let reader = &self.readers[at as usize];
        let held = reader.demand.map_or(0, |demand| self.demands[demand as usize].held());
        // A visit ends at the end of a chunk, and clients tell when they are done with one.
        reader.rate.most_in(target).div_ceil(chunk) + 2 + held.div_ceil(chunk)
    }

    /// Chunks that a reader holds, or will when the visit under way is done.
    pub(super) fn holds(&self, at: u32) -> u64 {
        let reader = &self.readers[at as usize];
        let end = match reader.state {
            State::Flying => reader.visit_end.div_ceil(self.config.admission.chunk),
            _ => 0,
        };
        reader.ring.back().max(end) - reader.ring.front()
    }

    pub(super) fn set_quota(&mut self, at: u32, chunks: u64) {
        let old = std::mem::replace(&mut self.readers[at as usize].quota, chunks);
        self.reserved = self.reserved + chunks - old;
    }

    /// Before and after a visit: the quota is that of the target again. Admission counts with no more
    /// than that, or what buffers hold; a client that dawdles would fill an older, larger one.
    pub(super) fn settle_quota(&mut self, at: u32) {
        let held = self.holds(at);
        self.set_quota(at, self.quota(at, self.target).max(held));
    }

    /// Tells admission what buffers hold already: a client that stops or dawdles from now on keeps it.
    pub(super) fn tell_holdings(&mut self) {
        if !self.sure() {
            return;
        }
        let chunk = self.config.admission.chunk;
        for demand in 0..self.demands.len() {
            let holds = self.holds(self.owners[demand]);
            let own = (holds * chunk).saturating_sub(self.demands[demand].held());
            self.demands[demand].keep(own);
        }
    }

    pub(super) fn full(&self) -> u64 {
        self.plan.full()
    }

    /// Follows the plan: to a smaller target at once, to a larger one as far as nobody suffers, and no
    /// further than the first who waits needs, whom those behind him are not to delay.
    pub(super) fn grow(&mut self, now: Tick) {
        let needs = self.starters.front().map(|at| self.readers[*at as usize].needs);
        let full = self.full().min(needs.unwrap_or(u64::MAX).max(self.target));
        if self.target >= full {
            self.shrink();
            return;
        }
        let before = self.target;
        let quotas: Vec<u64> = self.readers.iter().map(|reader| reader.quota).collect();
        // As far as possible; the least is what the time that admission leaves unused suffices for.
        let least = grown(before, full, self.plan.margin);
        let steps = (0..HALVINGS).map(|halving| before + ((full - before) >> halving));
        for target in steps.filter(|target| *target > least).chain([least]) {
            self.recost(target);
            for at in 0..self.readers.len() as u32 {
                if quotas[at as usize] > 0 {
                    self.set_quota(at, self.quota(at, target).max(self.holds(at)));
                }
            }
            if self.latest() >= now.0 as i64 && self.reserved <= self.pool.total() {
                return;
            }
        }
        for (at, quota) in (0..).zip(quotas) {
            self.set_quota(at, quota);
        }
        self.recost(before);
    }

    /// Follows the plan to a smaller target, and gives back what buffers may no more hold.
    fn shrink(&mut self) {
        if self.target <= self.full() {
            return;
        }
        self.recost(self.full());
        for at in 0..self.readers.len() as u32 {
            if self.readers[at as usize].quota > 0
                && self.readers[at as usize].state != State::Doomed
            {
                self.settle_quota(at);
            }
        }
    }

    /// Starts clocks that wait, as far as nobody suffers.
    pub(super) fn wake_up(&mut self, now: Tick, out: &mut Actions) {
        for _ in 0..self.wakers.len() {
            let Some(slot) = self.wakers.pop_front() else { return };
            if !self.try_start(now, slot, out) {
                self.wakers.push_back(slot);
            }
        }
    }

    fn try_start(&mut self, now: Tick, slot: u32, out: &mut Actions) -> bool {
        let Some(at) = self.member(slot).reader else { return true };
        if self.readers[at as usize].state == State::Flying {
            return false;
        }
        let member = self.member_mut(slot);
        let media = member.rate.time_of(member.offset);
        member.clock.set(now, media);
        member.clock.running = true;
        self.choose_lead(now, at);
        self.reschedule(now, at);
        let dry = self.deadline(at) < now.0 as i64;
        if !dry && self.latest() >= now.0 as i64 {
            self.start(now, slot, out);
            return true;
        }
        self.member_mut(slot).clock.running = false;
        self.choose_lead(now, at);
        self.reschedule(now, at);
        false
    }

    /// The clock of this stream starts when nobody suffers.
    pub(super) fn start_when_safe(&mut self, slot: u32) {
        if !self.wakers.contains(&slot) {
            self.wakers.push_back(slot);
        }
    }

    /// Whether everything that is promised holds also if this reader has its first visit now.
    fn admits_first_visit(&mut self, now: Tick, at: u32) -> bool {
        if self.target < self.full().min(self.readers[at as usize].needs) {
            return false;
        }
        if self.reserved + self.quota(at, self.target) > self.pool.total() {
            return false;
        }
        let order = self.readers[at as usize].order;
        let first = self.sweeps.start(self.current);
        let in_turn = order >= self.progress && first.is_none_or(|first| order < first);
        let later = in_turn || order <= self.progress;
        let sweep = if later { 1 - self.current } else { self.current };
        let there = self.admission.jump(self.head.abs_diff(order)) as i64;
        let done = now.0 as i64 + self.whole_visit(at) + there;
        // Its clock starts when that is over, and no visit after it reads a whole target again.
        let dry = done + self.target as i64;
        self.enter(sweep, at, order, self.longest_visit(at), dry);
        let latest = self.latest_from(order);
        self.sweeps.remove(at);
        done <= latest
    }

    /// The next visit of a stream that is visited now comes then at the earliest, also if neither takes
    /// any time.
    pub(super) fn soonest(&self, now: Tick) -> u64 {
        now.0 + self.plan.cycle / SOONEST
    }

    /// What is next, so that the invariant holds.
    pub(super) fn choose_sure(&mut self, now: Tick) -> Choice {
        let clock = now.0 as i64;
        let latest = self.latest();
        let first = self.sweeps.first(self.current);
        self.shrink();
        if let Some(at) = self.starters.front().copied()
            && self.admits_first_visit(now, at)
        {
            self.set_quota(at, self.quota(at, self.target));
            self.in_place(at, first);
            return Choice::Visit(at);
        }
        let put_off = !self.starters.is_empty() || !self.wakers.is_empty();
        let busy = put_off || self.target < self.full();
        let mut begin = NEVER;
        if let Some(at) = first {
            let reader = &self.readers[at as usize];
            let (release, earliest) = (reader.release as i64, reader.earliest as i64);
            let others = !self.requests.is_empty() || !self.sweeps.is_empty(self.wheel);
            let part = if others { BEFORE_OTHERS } else { BEFORE };
            // Without best effort the device is kept ahead by a first visit: who comes then starts at once.
            let joins = if others { 0 } else { self.plan.headroom };
            let before = self.plan.budget.max(self.plan.cycle / part).max(joins) as i64;
            let hurry = (latest - before).max(reader.again as i64);
            begin = hurry.min(if busy { earliest } else { release });
            if begin <= clock {
                self.progress = self.readers[at as usize].order;
                return Choice::Visit(at);
            }
        }
        self.out_of_turn(now, latest - clock, begin)
    }

    /// Puts a visited reader where it comes next without anybody's harm. After its first visit, which
    /// may be out of turn, that is its place in this sweep, to be in step with its neighbours; else
    /// where it is now on the device in the next sweep. Behind all others nobody waits for it, and each
    /// of them is visited once before it.
    pub(super) fn requeue_sure(&mut self, now: Tick, at: u32, position: u64, release: u64) {
        let (cost, deadline) = (self.cost(at), self.deadline(at));
        let next = 1 - self.current;
        let behind = self.sweeps.end(next).map_or(position, |last| position.max(last + 1));
        let reader = &mut self.readers[at as usize];
        let first = std::mem::take(&mut reader.fresh);
        reader.release = if first { now.0 } else { release };
        reader.again = if reader.idle || reader.failed { now.0 + AGAIN } else { now.0 };
        let soonest = self.soonest(now);
        let in_this = first && position > self.progress;
        let places = [
            in_this.then_some((self.current, position, now.0)),
            Some((next, position, soonest)),
            Some((next, behind, soonest)),
        ];
        for (sweep, order, earliest) in places.into_iter().flatten() {
            let reader = &mut self.readers[at as usize];
            (reader.order, reader.earliest) = (order, earliest);
            self.enter(sweep, at, order, cost, deadline);
            if self.latest() >= now.0 as i64 {
                break;
            }
        }
        self.settle_quota(at);
    }

    /// Chunks that a reader may hold for all its streams. With a statistical guarantee no memory is set
    /// aside for it, so that clients may lag a little.
    fn allowed(&self, at: u32) -> u64 {
        let reader = &self.readers[at as usize];
        if self.sure() {
            return reader.quota;
        }
        let lag = reader.rate.most_in(self.config.lag) / self.config.admission.chunk;
        self.quota(at, self.full()) + 2 * lag + 2
    }

    /// Before a visit up to `end`: streams that are so far behind the first of their title that its
    /// reader would hold more than it may get a reader of their own, or none.
    pub(super) fn separate(&mut self, now: Tick, at: u32, end: u64, out: &mut Actions) {
        let chunk = self.config.admission.chunk;
        let mut tried = Vec::new();
        loop {
            let allowed = self.allowed(at);
            let reader = &self.readers[at as usize];
            // Nothing is to be read for one that has all of its file.
            let beyond = end.div_ceil(chunk).saturating_sub(reader.ring.front()) > allowed;
            if !beyond {
                return;
            }
            if let Some(behind) = reader.followed_by.filter(|_| !self.sure()) {
                // It takes too long to arrive.
                self.unfollow(behind);
                continue;
            }
            if reader.members.len() < 2 {
                return;
            }
            let members = reader.members.iter().copied();
            let Some(slot) = members.min_by_key(|slot| self.member(*slot).offset) else { return };
            let (stream, offset) = (self.member(slot).id, self.member(slot).offset);
            self.member_mut(slot).halt(now);
            self.detach(now, slot);
            // The same reader may hold more for it if there is memory. If that does not suffice, it is
            // not asked again.
            let again = !tried.contains(&slot);
            tried.push(slot);
            let shared = self.reader_within(slot, offset).filter(|other| again || *other != at);
            if let Err(refusal) = self.place_with(now, slot, offset, shared, out) {
                self.member_mut(slot).paused = true;
                self.refuse(stream, refusal, out);
            }
        }
    }
}
