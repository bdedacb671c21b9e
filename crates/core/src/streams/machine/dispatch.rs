//! What the device does next.

use super::super::sweep::NEVER;
use super::reader::State;
use super::{Action, Actions, Machine, Rounds, Scheme};
use crate::unit::Tick;

/// A device that takes so many times as long as its profile says has drifted.
pub(super) const DRIFT: f64 = 1.1;
/// The least part by which buffers grow in a sweep.
const GROWTH: f64 = 1.0 / 512.0;
/// How often a size between the old and the new one is tried in a sweep.
const GROWTHS: u32 = 8;
/// Of those who wait for their first visits, so many are looked at for whose turn it is.
const STARTERS: usize = 64;
/// Those who wait for their first visits are a crowd if they are one in so many of all streams.
const CROWD: usize = 8;
/// The part of the memory that visits leave alone which come sooner than they must.
const SPARE: u64 = 8;

/// Buffers that are filled to `target` grow so far in a sweep that it ends in time: by the part of
/// the cycle that admission leaves unused.
pub(super) fn grown(target: u64, full: u64, margin: f64) -> u64 {
    let step = (target as f64 * margin.max(GROWTH)) as u64;
    full.min(target.saturating_add(step.max(1)))
}

/// Sweeps until buffers that are filled to `target` are filled to `full`.
pub(super) fn ramp(target: u64, full: u64, margin: f64) -> u64 {
    if target == 0 || full <= target {
        return 0;
    }
    let growth = (1.0 + margin.max(GROWTH)).ln();
    ((full as f64 / target as f64).ln() / growth).ceil() as u64
}

/// What there is to do.
pub(super) enum Choice {
    Visit(u32),
    BestEffort,
    /// Nothing before that moment.
    Wait(i64),
}

impl Machine {
    /// Gives the device as much to do as it can do at a time.
    pub(super) fn dispatch(&mut self, now: Tick, out: &mut Actions) {
        self.wake = None;
        self.refill(now);
        self.look_at_memory(now);
        while self.flying < self.config.depth {
            let choice = match self.config.scheme {
                Scheme::Elastic => self.choose_elastic(now, out),
                Scheme::Rounds(rounds) => self.choose_in_round(now, rounds, out),
            };
            match choice {
                Choice::Visit(at) if self.partial == Some(at) => {
                    if !self.issue(at, out) {
                        self.finish(now, at, out);
                    }
                    self.partial = None;
                }
                Choice::Visit(at) => {
                    self.begin(now, at, out);
                }
                Choice::BestEffort => {
                    if let Some((id, physical, bytes)) = self.requests.pop_front() {
                        self.head = physical.saturating_add(bytes);
                        self.granted += 1;
                        self.flying += 1;
                        out.push(Action::BestEffort { id });
                    }
                }
                Choice::Wait(until) => {
                    self.wake = (until < NEVER).then_some(Tick(until.max(0) as u64));
                    break;
                }
            }
        }
        if let (Scheme::Rounds(_), None, false) = (self.config.scheme, self.wake, self.idle()) {
            self.wake = Some(self.boundary.max(now.after(1)));
        }
    }

    fn idle(&self) -> bool {
        self.streams.len() == 0
    }

    fn refill(&mut self, now: Tick) {
        let passed = now.0.saturating_sub(self.budget_at.0);
        let earned =
            u128::from(passed) * u128::from(self.plan.budget) / u128::from(self.plan.cycle.max(1));
        let earned = i64::try_from(earned).unwrap_or(NEVER);
        self.budget = self.budget.saturating_add(earned).min(self.plan.budget as i64);
        self.budget_at = now;
    }

    /// Who waits for his first visit, if it can be now: whose turn it is, or who waits longest.
    fn starter_that_fits(&mut self, now: Tick, full: u64) -> Option<u32> {
        let first = self.sweeps.first(self.current);
        let mut starters = self.starters.iter().copied().take(STARTERS);
        let in_turn = starters.find(|at| self.in_turn(*at, first));
        let longest = self.starters.front().copied();
        let mut fits = None;
        for at in [in_turn, longest].into_iter().flatten() {
            let grown = self.target >= self.readers[at as usize].needs.min(full);
            if fits.is_none() && grown && self.has_time(now, at, in_turn == Some(at)) {
                fits = Some(at).filter(|at| self.has_room(now, *at));
            }
        }
        fits
    }

    /// Whether all others have what a sweep may take longer than on average left after a first visit.
    /// Out of turn it reads for as long as it takes until the turn of its stream, which is in the sweep
    /// before the next reader that is there runs dry.
    fn has_time(&mut self, now: Tick, at: u32, in_turn: bool) -> bool {
        let clock = now.0 as i64;
        if !self.config.enforce {
            return self.latest().saturating_sub(clock) >= self.cost(at);
        }
        let order = self.readers[at as usize].order;
        let sweep = if order > self.progress { self.current } else { 1 - self.current };
        let next = self.sweeps.after(sweep, order);
        let next = next.or_else(|| self.sweeps.first(1 - sweep).filter(|_| sweep == self.current));
        let turn = next.map_or(NEVER, |next| self.deadline(next)).saturating_sub(clock).max(0);
        let least = self.plan.headroom.max(self.target / 8);
        let most = if in_turn { self.target } else { (turn as u64).max(least).min(self.target) };
        let reader = &mut self.readers[at as usize];
        reader.most = most;
        let read = reader.rate.most_in(most) as f64 / reader.slowest;
        let way = self.admission.profile().access(self.head.abs_diff(order)).mean;
        let way = if in_turn { way } else { 2.0 * way };
        let cost = ((way + read) * self.slowdown * 1e9) as i64;
        if !in_turn {
            let (turn, dry) = (self.cost(at), clock.saturating_add(most as i64));
            self.sweeps.insert(sweep, at, order, turn, dry);
        }
        let latest = self.latest();
        self.sweeps.remove(at);
        clock.saturating_add(cost).saturating_add(self.plan.spread as i64) <= latest
    }

    fn choose_elastic(&mut self, now: Tick, out: &mut Actions) -> Choice {
        let clock = now.0 as i64;
        if self.sure()
            && let Some(at) = self.partial
        {
            return Choice::Visit(at);
        }
        let over = self.sweeps.is_empty(self.current) && self.partial.is_none();
        if over && !self.sweeps.is_empty(1 - self.current) {
            self.current = 1 - self.current;
            self.new_sweep(now, out);
        } else if self.owners.is_empty() && !self.sweeps.is_empty(self.wheel) {
            // Nobody begins sweeps, and there is room for those who have lost their guarantee.
            self.adapt(now, out);
        }
        self.wake_up(now, out);
        let latest = self.latest();
        let slack = latest.saturating_sub(clock);
        if let Some(at) = self.partial {
            let Some(other) = (slack < 0).then(|| self.early(now)).flatten() else {
                return Choice::Visit(at);
            };
            // Its turn is not over.
            self.partial = None;
            let (cost, deadline) = (self.cost(at), self.deadline(at));
            let order = self.readers[at as usize].order;
            self.sweeps.insert(self.current, at, order, cost, deadline);
            self.counters.early += 1;
            return Choice::Visit(other);
        }
        let first = self.sweeps.first(self.current);
        if slack < 0
            && let Some(at) = self.early(now)
        {
            self.counters.early += u64::from(Some(at) != first);
            return Choice::Visit(at);
        }
        let full = self.full();
        if !self.config.enforce || self.sure() && first.is_none() {
            self.target = full;
        } else if first.is_none() {
            // Of a crowd that comes at once each reads what it needs, and the next one can start.
            self.target = self.wanted_by_starters(full);
        }
        if self.sure() {
            return self.choose_sure(now);
        }
        self.choose_likely(now, latest, full)
    }

    /// What is next in order with a statistical guarantee, or out of turn.
    fn choose_likely(&mut self, now: Tick, latest: i64, full: u64) -> Choice {
        let clock = now.0 as i64;
        let first = self.sweeps.first(self.current);
        if let Some(at) = self.starter_that_fits(now, full) {
            self.in_place(at, first);
            return Choice::Visit(at);
        }
        let mut begin = NEVER;
        if let Some(at) = first {
            let reader = &self.readers[at as usize];
            let (release, earliest) = (reader.release as i64, reader.earliest as i64);
            // What the sweep may take longer than on average is not waited for, nor the time for a first
            // visit: who comes then can start at once.
            let sure = latest.saturating_sub(self.plan.headroom as i64);
            // Whose client takes nothing has no need of a visit, but others wait behind it.
            let hurry = if self.hungry(now, at) { sure } else { sure.max(earliest) };
            // Nobody is waited for while buffers grow or somebody waits to start, if memory is there.
            let wanted = self.target < full || !self.starters.is_empty();
            let busy = wanted && self.pool.free() > self.pool.total() / SPARE;
            begin = hurry.min(if busy { earliest } else { release }).max(clock);
            let last_moment = latest <= clock && self.pool.free() > 0;
            if begin <= clock && self.pool.free() == 0 && self.hungry(now, at) {
                return Choice::Wait(NEVER);
            }
            if begin <= clock && (last_moment || self.has_room(now, at)) {
                self.progress = self.readers[at as usize].order;
                return Choice::Visit(at);
            }
            if begin <= clock {
                // A chunk that is given back, or the last moment for less than a whole visit.
                begin = latest.max(clock + 1);
            }
        }
        self.out_of_turn(now, latest.saturating_sub(clock), begin)
    }

    /// A first visit that comes just where the order has it is in turn.
    pub(super) fn in_place(&mut self, at: u32, first: Option<u32>) {
        if self.in_turn(at, first) {
            self.progress = self.readers[at as usize].order;
            self.readers[at as usize].fresh = false;
        }
    }

    fn in_turn(&self, at: u32, first: Option<u32>) -> bool {
        let order = self.readers[at as usize].order;
        let before_all = first.is_none_or(|first| order < self.readers[first as usize].order);
        before_all && order >= self.progress
    }

    /// The stream that misses its deadline first if the order is kept, if it helps to visit it now:
    /// when the others would be late for it, the order is the better choice.
    pub(super) fn early(&mut self, now: Tick) -> Option<u32> {
        let (this, next) = self.latest_of_each(self.head);
        let late = if this <= next { self.current } else { 1 - self.current };
        let at = self.sweeps.tightest(late)?;
        if self.pool.free() == 0 || !self.hungry(now, at) {
            return None;
        }
        let (cost, deadline) = (self.cost(at), self.deadline(at));
        // There, and back to where the order goes on.
        let away =
            self.admission.profile().access(self.head.abs_diff(self.readers[at as usize].order));
        let away = (2.0 * away.mean * self.slowdown * 1e9) as i64;
        self.sweeps.remove(at);
        let rest = self.latest();
        let order = self.readers[at as usize].order;
        self.enter(late, at, order, cost, deadline);
        (rest >= now.0 as i64 + cost + away).then_some(at)
    }

    /// Something without a guarantee, or nothing until `begin`.
    pub(super) fn out_of_turn(&mut self, now: Tick, slack: i64, begin: i64) -> Choice {
        if let Some((_, physical, bytes)) = self.requests.front().copied() {
            let profile = self.admission.profile();
            let distance = self.head.abs_diff(physical);
            let access = profile.access(distance).worst;
            let transfer = bytes as f64 / profile.rate_at(physical);
            let cost = ((access + transfer) * self.slowdown * 1e9) as i64;
            let slack = self.slack_after(now, physical.saturating_add(bytes), slack);
            if let Some(paid) = self.afford(cost, slack) {
                self.budget -= paid;
                return Choice::BestEffort;
            }
        }
        if let Some(at) = self.first_without_guarantee(now) {
            let place = self.readers[at as usize].position();
            let way = self.admission.jump(self.head.abs_diff(place)) as i64;
            let cost = if self.sure() { self.whole_visit(at) + way } else { self.cost(at) };
            let slack = self.slack_after(now, place, slack);
            if let Some(paid) = self.afford(cost, slack)
                && self.has_room(now, at)
            {
                self.budget -= paid;
                return Choice::Visit(at);
            }
        }
        let waiting =
            !self.wakers.is_empty() || !self.starters.is_empty() || !self.requests.is_empty();
        let waiting = waiting || !self.sweeps.is_empty(self.wheel);
        // What is out of turn waits for the budget, which grows all the time.
        let soon = now.0 as i64 + (self.plan.cycle / 64).max(1_000_000) as i64;
        Choice::Wait(if waiting { begin.min(soon) } else { begin })
    }

    /// Of those without a guarantee, who runs dry first. Whose client takes nothing has full buffers, and
    /// runs dry later than it seemed: nobody waits behind it.
    fn first_without_guarantee(&mut self, now: Tick) -> Option<u32> {
        for _ in 0..self.sweeps.len(self.wheel) {
            let at = self.sweeps.first(self.wheel)?;
            if self.hungry(now, at) {
                return Some(at);
            }
            self.enter_wheel(at);
            if self.sweeps.first(self.wheel) == Some(at) {
                return None;
            }
        }
        None
    }

    /// Puts a reader without a guarantee where it comes, in the order in which they run dry.
    pub(super) fn enter_wheel(&mut self, at: u32) {
        let (cost, deadline) = (self.cost(at), self.deadline(at));
        self.sweeps.insert(self.wheel, at, deadline.max(0) as u64, cost, deadline);
    }

    /// How much later the order can go on from this place of the device; with a statistical guarantee
    /// `slack`, wherever it is.
    fn slack_after(&self, now: Tick, place: u64, slack: i64) -> i64 {
        if self.sure() { self.latest_from(place).saturating_sub(now.0 as i64) } else { slack }
    }

    /// What something out of turn costs of the budget, if no deadline suffers: nothing in the time in
    /// which nobody is due, or nobody waits who comes first.
    fn afford(&self, cost: i64, slack: i64) -> Option<i64> {
        if slack < cost {
            return None;
        }
        let left = slack - cost;
        let free = left >= self.plan.headroom as i64 || !self.config.enforce;
        let nobody = self.starters.is_empty() && self.wakers.is_empty();
        if free || nobody && left >= self.plan.spread as i64 {
            return Some(0);
        }
        (self.budget >= cost).then_some(cost)
    }

    pub(super) fn new_sweep(&mut self, now: Tick, out: &mut Actions) {
        self.counters.sweeps += 1;
        (self.excess, self.progress) = (0, 0);
        let full = self.full();
        if self.sure() {
            self.adapt(now, out);
            self.grow(now);
            return;
        }
        if full <= self.target {
            self.target = full;
        } else {
            let full = self.wanted_by_starters(full).max(self.target);
            self.grow_likely(now, full);
        }
        self.adapt(now, out);
    }

    /// How far buffers are filled. While a crowd waits to start as far as one of them needs it, since what is
    /// read beyond that has all of them wait longer; if few wait, those who come after them start sooner
    /// when nothing has to grow.
    fn wanted_by_starters(&self, full: u64) -> u64 {
        if self.starters.len() * CROWD < self.owners.len() {
            return full;
        }
        let needs = self.starters.iter().map(|at| self.readers[*at as usize].needs);
        needs.max().map_or(full, |needs| needs.min(full))
    }

    /// Fills buffers further, as far as everybody has what a sweep may take longer than on average left.
    fn grow_likely(&mut self, now: Tick, full: u64) {
        let before = self.target;
        // Who has less than the headroom left reads more.
        let headroom = self.plan.spread.midpoint(self.plan.headroom);
        let latest = now.0.saturating_add(headroom) as i64;
        for halving in 0..GROWTHS {
            self.recost(before + ((full - before) >> halving));
            if self.latest() >= latest {
                return;
            }
        }
        self.recost(before);
    }

    /// Follows a device that has become slower or faster: one guarantee taken or given in a sweep.
    fn adapt(&mut self, now: Tick, out: &mut Actions) {
        let drift = self.slowdown();
        let seen = if drift > DRIFT { drift } else { 1.0 };
        self.overlong &= drift > DRIFT;
        let changed = (seen / self.slowdown - 1.0).abs() > 0.05;
        let degraded = !self.sweeps.is_empty(self.wheel);
        if !self.config.enforce || !(changed || degraded || self.slowdown > 1.0) {
            return;
        }
        if changed {
            self.slowdown = seen;
            self.admission.slow_down(seen);
            self.recost(self.target);
        }
        match self.admission.plan(&self.demands) {
            Ok(plan) => {
                self.plan = plan;
                self.restore(now, out);
            }
            Err(_) => self.degrade(now, out),
        }
    }

    fn seniority(&self, at: u32) -> u64 {
        let members = self.readers[at as usize].members.iter();
        members.map(|slot| self.member(*slot).since).min().unwrap_or(u64::MAX)
    }

    fn tell(&self, at: u32, action: fn(super::StreamId) -> Action, out: &mut Actions) {
        for slot in &self.readers[at as usize].members {
            out.push(action(self.member(*slot).id));
        }
    }

    fn degrade(&mut self, now: Tick, out: &mut Actions) {
        let started = self.owners.iter().copied();
        let started = started.filter(|at| self.readers[*at as usize].state == State::Waiting);
        let Some(at) = started.max_by_key(|at| self.seniority(*at)) else { return };
        self.revoke(at);
        self.requeue(now, at);
        self.tell(at, Action::Degraded, out);
    }

    fn restore(&mut self, now: Tick, out: &mut Actions) {
        let waiting = (0..self.readers.len() as u32)
            .filter(|at| self.sweeps.sweep_of(*at) == Some(self.wheel));
        let Some(at) = waiting.min_by_key(|at| self.seniority(*at)) else { return };
        let reader = &self.readers[at as usize];
        let (rate, layout, filled) = (reader.rate.clone(), reader.layout.clone(), reader.filled);
        if let Ok(plan) = self.admission.admit(&mut self.demands, &layout, &rate, filled, None) {
            self.plan = plan;
            self.grant(at);
            self.readers[at as usize].fresh = true;
            self.requeue(now, at);
            self.tell(at, Action::Restored, out);
        }
    }

    fn choose_in_round(&mut self, now: Tick, rounds: Rounds, out: &mut Actions) -> Choice {
        if let Some(at) = self.partial {
            return Choice::Visit(at);
        }
        let over = self.sweeps.is_empty(self.current) && self.flying == 0;
        let unused = (0..self.wheel).all(|sweep| self.sweeps.is_empty(sweep));
        if unused && over && self.to_start.is_empty() && now > self.boundary {
            // Rounds begin at multiples of their length, also after an idle time.
            self.boundary = Tick(now.0.div_ceil(rounds.round) * rounds.round);
        }
        if over && now >= self.boundary && !self.idle() {
            self.new_round(now, rounds, out);
        }
        if let Some(at) = self.sweeps.first(self.current) {
            return if self.pool.free() > 0 { Choice::Visit(at) } else { Choice::Wait(NEVER) };
        }
        let boundary = self.boundary.0 as i64;
        self.out_of_turn(now, boundary - now.0 as i64, if self.idle() { NEVER } else { boundary })
    }

    fn new_round(&mut self, now: Tick, rounds: Rounds, out: &mut Actions) {
        self.counters.sweeps += 1;
        self.excess = 0;
        self.current = (self.current + 1) % self.wheel;
        self.prefetched = 0;
        self.staged_now -= std::mem::take(&mut self.staged[self.current]);
        self.boundary = self.boundary.after(rounds.round);
        let mut starting = std::mem::take(&mut self.to_start);
        for slot in starting.drain(..) {
            self.start(now, slot, out);
        }
        self.to_start = starting;
        let mut visits = self.sweeps.len(self.current);
        while visits < rounds.visits {
            let Some(at) = self.starters.pop_front() else { break };
            let order = self.readers[at as usize].order;
            self.readers[at as usize].state = State::Waiting;
            let cost = self.cost(at);
            self.sweeps.insert(self.current, at, order, cost, NEVER);
            visits += 1;
        }
    }
}
