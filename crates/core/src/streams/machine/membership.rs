//! Streams that come, go, stop, and go elsewhere.

use super::super::admission::{Demand, Refusal, Shortage};
use super::super::layout::Layout;
use super::super::rate::Rate;
use super::super::sweep::NEVER;
use super::dispatch::ramp;
use super::reader::{Clock, Member, Reader, State};
use super::{Action, Actions, Machine, Scheme, StreamId, Title};
use crate::unit::Tick;

const NO_PLACE: Refusal =
    Refusal { shortage: Shortage::Places, retry_after: None, fitting_rate: None, memory: None };

/// What a client asks for.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub title: Title,
    pub rate: Rate,
    pub layout: Layout,
    /// From which byte of the file.
    pub offset: u64,
    /// The longest that it may be expected to wait for its first data, in nanoseconds.
    pub max_startup: u64,
}

impl Machine {
    pub(super) fn join(&mut self, now: Tick, stream: StreamId, wanted: Wanted, out: &mut Actions) {
        let Wanted { title, rate, layout, offset, max_startup } = wanted;
        let full = self.streams.len() >= u64::from(self.config.streams);
        if full || self.slot(stream).is_some() || offset >= layout.bytes() {
            self.refuse(stream, NO_PLACE, out);
            return;
        }
        let since = self.since;
        let mut clock = Clock::default();
        clock.set(now, rate.time_of(offset));
        let member = Member {
            id: stream,
            title,
            rate,
            layout,
            offset,
            clock,
            reader: None,
            started: false,
            paused: false,
            max_startup,
            since,
        };
        let slot = self.streams.insert(stream.0, ());
        if self.members.len() <= slot as usize {
            self.members.resize(slot as usize + 1, None);
        }
        self.members[slot as usize] = Some(member);
        self.since += 1;
        if self.somebody_is_degraded() && self.reader_within(slot, offset).is_none() {
            self.forget(slot);
            let retry_after = Some(self.plan.cycle);
            let refusal = Refusal { shortage: Shortage::Device, retry_after, ..NO_PLACE };
            self.refuse(stream, refusal, out);
            return;
        }
        if let Err(refusal) = self.place(now, slot, offset, out) {
            self.forget(slot);
            self.refuse(stream, refusal, out);
        }
    }

    /// Whether a stream has lost its guarantee and comes before all new ones, therefore.
    fn somebody_is_degraded(&self) -> bool {
        let lost = |reader: &Reader| {
            reader.demand.is_none() && matches!(reader.state, State::Waiting | State::Flying)
        };
        self.config.enforce
            && self.config.scheme == Scheme::Elastic
            && self.slowdown > 1.0
            && self.readers.iter().any(lost)
    }

    pub(super) fn refuse(&mut self, stream: StreamId, refusal: Refusal, out: &mut Actions) {
        self.counters.refused += 1;
        out.push(Action::Refused { stream, refusal });
    }

    fn forget(&mut self, slot: u32) {
        self.members[slot as usize] = None;
        self.streams.remove(slot);
    }

    /// Finds a reader for a stream from `offset` on: one that has it in its buffers, or a new one.
    pub(super) fn place(
        &mut self,
        now: Tick,
        slot: u32,
        offset: u64,
        out: &mut Actions,
    ) -> Result<(), Refusal> {
        let shared = self.reader_within(slot, offset);
        self.place_with(now, slot, offset, shared, out)
    }

    /// The same with this reader that has it, or with a new one.
    pub(super) fn place_with(
        &mut self,
        now: Tick,
        slot: u32,
        offset: u64,
        shared: Option<u32>,
        out: &mut Actions,
    ) -> Result<(), Refusal> {
        let stream = self.member(slot).id;
        let shared = match shared {
            Some(reader) => match self.share(reader, slot, offset) {
                Ok(()) => Some(reader),
                Err(refusal) if !self.sure() => return Err(refusal),
                // Those who share hold buffers that it does not need with a place of its own.
                Err(_) => None,
            },
            None => None,
        };
        let first_byte_by = if shared.is_some() {
            if self.sure() { now.after(2 * self.plan.hurried) } else { now }
        } else {
            let member = self.member(slot);
            let wanted = Wanted {
                title: member.title,
                rate: member.rate.clone(),
                layout: member.layout.clone(),
                offset,
                max_startup: member.max_startup,
            };
            let reader = self.new_reader(now, wanted)?;
            self.attach(reader, slot, offset);
            self.first_byte_by(now)
        };
        let counted = &mut self.counters;
        counted.admitted += 1;
        out.push(Action::Admitted { stream, first_byte_by });
        let reader = self.member(slot).reader.expect("it was just placed");
        let filled = self.readers[reader as usize].filled;
        let media = self.member(slot).rate.time_of(offset);
        let ready = filled > offset;
        let member = self.member_mut(slot);
        (member.offset, member.started) = (offset, false);
        // Who seeks, resumes or changes its rate has a place, which it does not lose for a long wait.
        member.max_startup = u64::MAX;
        member.clock.running = false;
        member.clock.set(now, media);
        if ready {
            out.push(Action::Filled { stream, up_to: filled });
            self.start_or_queue(now, slot, out);
        }
        self.choose_lead(now, reader);
        self.reschedule(now, reader);
        Ok(())
    }

    /// The latest start of a stream that is the last in the queue now.
    fn first_byte_by(&self, now: Tick) -> Tick {
        match self.config.scheme {
            Scheme::Elastic => {
                let sweeps = ramp(self.target, self.plan.needs, self.plan.margin);
                let waits = 2 * (self.starters.len() as u64 / self.joins() + 1) + sweeps;
                now.after(waits.saturating_mul(self.plan.hurried))
            }
            Scheme::Rounds(rounds) => {
                let groups = u64::from(rounds.depth) + 1;
                let ahead = self.starters.len() as u64 / u64::from(rounds.visits.max(1));
                now.after((groups * (ahead + 1) + 1).saturating_mul(rounds.round))
            }
        }
    }

    fn joins(&self) -> u64 {
        u64::from(self.config.admission.joins.max(1))
    }

    /// A reader of the same title at the same rate that has this byte in its buffers.
    pub(super) fn reader_within(&self, slot: u32, offset: u64) -> Option<u32> {
        let member = self.member(slot);
        if self.config.scheme != Scheme::Elastic || self.config.interval == 0 {
            return None;
        }
        let number = offset / self.config.admission.chunk;
        let readers = self.titles.get(&member.title)?;
        let fits = |reader: &&u32| {
            let reader = &self.readers[**reader as usize];
            let there = number >= reader.ring.front() && offset < reader.filled;
            let same = reader.rate == member.rate && reader.layout == member.layout;
            there && same && reader.followed_by.is_none() && reader.state != State::Doomed
        };
        readers.iter().find(fits).copied()
    }

    /// Bytes by which streams that share come to be further apart: what the later one takes to start,
    /// and the chunks that both are in.
    fn lateness(&self, rate: &Rate) -> u64 {
        let late = rate.most_in(self.config.lag) + 2 * self.config.admission.chunk;
        if self.sure() { late } else { 0 }
    }

    /// Adds a stream to a reader that has its data, if the memory for what lies between suffices.
    fn share(&mut self, reader: u32, slot: u32, offset: u64) -> Result<(), Refusal> {
        let Reader { filled, demand, ref rate, .. } = self.readers[reader as usize];
        let rate = rate.clone();
        if let Some(at) = demand {
            let lead = self.readers[reader as usize].lead;
            let ahead = lead.map_or(filled, |lead| self.member(lead).offset);
            let before = self.demands[at as usize].held();
            let apart = ahead.saturating_sub(offset) + self.lateness(&rate);
            self.tell_holdings();
            self.demands[at as usize].hold(before.max(apart));
            let plan = self.admission.plan(&self.demands);
            let quota = self.quota(reader, self.target).max(self.holds(reader));
            let own = self.readers[reader as usize].quota;
            let room = self.reserved - own + quota <= self.pool.total();
            let plan = if self.sure() && !room { Err(Shortage::Memory) } else { plan };
            match plan {
                Ok(plan) => {
                    self.plan = plan;
                    if self.sure() {
                        self.set_quota(reader, quota);
                    }
                }
                Err(shortage) if self.config.enforce => {
                    self.demands[at as usize].hold(before);
                    let retry_after = Some(self.plan.cycle);
                    return Err(Refusal { shortage, retry_after, ..NO_PLACE });
                }
                Err(_) => {}
            }
        }
        self.attach(reader, slot, offset);
        self.counters.shared += 1;
        Ok(())
    }

    /// The stream reads through this reader from now on.
    pub(super) fn attach(&mut self, reader: u32, slot: u32, offset: u64) {
        let number = offset / self.config.admission.chunk;
        let to = &mut self.readers[reader as usize];
        to.ring.enter(number);
        to.members.push(slot);
        let member = self.member_mut(slot);
        (member.reader, member.offset) = (Some(reader), offset);
    }

    fn new_reader(&mut self, now: Tick, wanted: Wanted) -> Result<u32, Refusal> {
        if self.starters.len() >= self.config.starters as usize {
            let retry_after = Some(self.plan.cycle);
            return Err(Refusal { retry_after, ..NO_PLACE });
        }
        let guaranteed = self.admit(now, &wanted)?;
        let Wanted { title, rate, layout, offset, .. } = wanted;
        let slot = self.free_readers.pop().unwrap_or_else(|| {
            self.readers.push(Reader::unused(layout.clone(), rate.clone()));
            self.sweeps.reserve(self.readers.len() as u32 - 1);
            self.readers.len() as u32 - 1
        });
        let chunk = self.config.admission.chunk;
        let ahead = self.full();
        let chunks = rate.most_in(ahead) / chunk + 3;
        let mut ring = std::mem::take(&mut self.readers[slot as usize].ring);
        ring.reset(offset / chunk, chunks.min(self.pool.free()) as usize);
        let filled = offset - offset % chunk;
        let order = layout.locate(filled).map_or(0, |place| place.0);
        let mut reader =
            Reader { state: State::Starting, ring, order, ..Reader::unused(layout, rate) };
        (reader.title, reader.filled, reader.visit_end) = (title, filled, filled);
        reader.needs = self.plan.needs;
        reader.jumps = self.admission.jumps(&reader.layout, 2 * reader.rate.most_in(ahead));
        self.readers[slot as usize] = reader;
        if guaranteed {
            self.grant(slot);
        }
        let demand = self.demands.last().map_or(1.0, Demand::slowest);
        self.readers[slot as usize].slowest = demand;
        self.starters.push_back(slot);
        self.follow(slot);
        self.titles.entry(title).or_default().push(slot);
        Ok(slot)
    }

    /// Adds a demand, which is the last one then, if there is room.
    fn admit(&mut self, now: Tick, wanted: &Wanted) -> Result<bool, Refusal> {
        let Wanted { rate, layout, offset, max_startup, .. } = wanted;
        if let Scheme::Rounds(rounds) = self.config.scheme
            && self.demands.len() >= rounds.streams as usize
        {
            let (shortage, retry_after) = (Shortage::Device, self.first_end(now));
            return Err(Refusal { shortage, retry_after, ..NO_PLACE });
        }
        if !self.config.enforce || self.config.scheme != Scheme::Elastic {
            self.demands.push(self.admission.demand(rate, layout, *offset));
            self.plan = self.admission.unchecked(&self.demands);
            return Ok(true);
        }
        self.tell_holdings();
        match self.admission.admit(&mut self.demands, layout, rate, *offset, None) {
            Ok(plan) => {
                let wait = self.expected_wait(now, &plan);
                if wait > *max_startup {
                    self.demands.pop();
                    return Err(Refusal { retry_after: Some(wait), ..NO_PLACE });
                }
                self.plan = plan;
                self.lower_needs();
                Ok(true)
            }
            Err(refusal) if refusal.shortage == Shortage::Alone => Err(refusal),
            Err(refusal) => Err(Refusal { retry_after: self.first_end(now), ..refusal }),
        }
    }

    /// The demand that was just added is this reader's.
    pub(super) fn grant(&mut self, reader: u32) {
        self.readers[reader as usize].demand = Some(self.demands.len() as u32 - 1);
        self.owners.push(reader);
    }

    /// Takes a reader's guarantee away.
    pub(super) fn revoke(&mut self, reader: u32) {
        let Some(at) = self.readers[reader as usize].demand.take() else { return };
        self.demands.swap_remove(at as usize);
        self.owners.swap_remove(at as usize);
        if let Some(moved) = self.owners.get(at as usize) {
            self.readers[*moved as usize].demand = Some(at);
        }
    }

    /// Nanoseconds until the first of the streams that play ends.
    fn first_end(&self, now: Tick) -> Option<u64> {
        let ends = self.members.iter().flatten().filter(|member| member.clock.running);
        let left = ends.map(|member| {
            member.rate.time_of(member.layout.bytes()).saturating_sub(member.clock.media(now))
        });
        left.min()
    }

    /// If another reader of the title is ahead within reach, it keeps its chunks for this one.
    fn follow(&mut self, slot: u32) {
        // What is kept until somebody arrives, who may start late or stop, has no bound.
        if self.sure() || self.config.scheme != Scheme::Elastic || self.config.interval == 0 {
            return;
        }
        let chunk = self.config.admission.chunk;
        let own = &self.readers[slot as usize];
        let Some(readers) = self.titles.get(&own.title) else { return };
        let from = own.filled;
        let reach = own.rate.most_in(self.config.interval);
        let nearest = readers.iter().copied().filter(|at| {
            let other = &self.readers[*at as usize];
            let apart = (other.ring.front() * chunk).checked_sub(from);
            let same = other.rate == own.rate && other.layout == own.layout;
            let free = other.followed_by.is_none() && other.state != State::Doomed;
            same && free && apart.is_some_and(|apart| apart > 0 && apart <= reach)
        });
        let nearest = nearest.min_by_key(|at| self.readers[*at as usize].ring.front());
        let Some(ahead) = nearest else { return };
        let Some(at) = self.readers[ahead as usize].demand else { return };
        let front = self.readers[ahead as usize].ring.front();
        let gap = front * chunk - from;
        let before = self.demands[at as usize].held();
        self.demands[at as usize].hold(before + gap);
        match self.admission.plan(&self.demands) {
            Ok(plan) => self.plan = plan,
            Err(_) => {
                self.demands[at as usize].hold(before);
                return;
            }
        }
        self.readers[ahead as usize].ring.enter(front);
        let other = &mut self.readers[ahead as usize];
        (other.followed_by, other.kept) = (Some(slot), gap);
        self.readers[slot as usize].follows = Some(ahead);
    }

    /// Ends the agreement that another reader keeps its chunks for this one.
    pub(super) fn unfollow(&mut self, slot: u32) {
        let Some(ahead) = self.readers[slot as usize].follows.take() else { return };
        let other = &mut self.readers[ahead as usize];
        other.followed_by = None;
        other.ring.leave(other.ring.front());
        other.ring.trim(&mut self.pool);
        other.kept = 0;
        self.rehold(ahead);
    }

    /// Tells admission what a reader keeps for those behind its first stream.
    pub(super) fn rehold(&mut self, at: u32) {
        let reader = &self.readers[at as usize];
        let offsets = || reader.members.iter().map(|slot| self.member(*slot).offset);
        let apart = offsets().max().unwrap_or(0) - offsets().min().unwrap_or(0);
        let late = if reader.members.len() > 1 { self.lateness(&reader.rate) } else { 0 };
        let bytes = apart + reader.kept + late;
        if let Some(demand) = reader.demand {
            self.demands[demand as usize].hold(bytes);
        }
    }

    /// Gives a reader back that no stream uses, once nothing is under way for it.
    pub(super) fn retire(&mut self, slot: u32) {
        self.unfollow(slot);
        if let Some(behind) = self.readers[slot as usize].followed_by {
            self.unfollow(behind);
        }
        self.revoke(slot);
        self.sweeps.remove(slot);
        self.starters.retain(|starter| *starter != slot);
        let reader = &mut self.readers[slot as usize];
        if let Some(readers) = self.titles.get_mut(&reader.title) {
            readers.retain(|other| *other != slot);
            if readers.is_empty() {
                self.titles.remove(&reader.title);
            }
        }
        if self.partial == Some(slot) {
            self.partial = None;
        }
        if reader.state == State::Flying {
            reader.state = State::Doomed;
            return;
        }
        reader.state = State::Free;
        reader.ring.trim(&mut self.pool);
        self.set_quota(slot, 0);
        self.free_readers.push(slot);
    }

    /// The stream reads through nobody any more.
    pub(super) fn detach(&mut self, now: Tick, slot: u32) {
        let number = self.member(slot).offset / self.config.admission.chunk;
        let Some(at) = self.member_mut(slot).reader.take() else { return };
        self.to_start.retain(|waiting| *waiting != slot);
        self.wakers.retain(|waiting| *waiting != slot);
        let reader = &mut self.readers[at as usize];
        reader.members.retain(|member| *member != slot);
        reader.ring.leave(number);
        if reader.members.is_empty() {
            self.retire(at);
            self.replan();
        } else {
            if reader.state != State::Flying {
                reader.ring.trim(&mut self.pool);
            }
            self.choose_lead(now, at);
            self.rehold(at);
            self.reschedule(now, at);
        }
    }

    /// Plans again for those that are left, or with a device that has changed.
    pub(super) fn replan(&mut self) {
        self.tell_holdings();
        if !self.config.enforce || self.config.scheme != Scheme::Elastic {
            self.plan = self.admission.unchecked(&self.demands);
        } else if let Ok(plan) = self.admission.plan(&self.demands) {
            self.plan = plan;
        }
        self.lower_needs();
    }

    /// Those who wait for their first visits need no larger buffers than any plan since their admission
    /// has: it would have done for them, and those behind them were promised their starts by it.
    fn lower_needs(&mut self) {
        for at in &self.starters {
            let needs = &mut self.readers[*at as usize].needs;
            *needs = self.plan.needs.min(*needs);
        }
    }

    pub(super) fn leave(&mut self, now: Tick, stream: StreamId) {
        if let Some(slot) = self.slot(stream) {
            self.detach(now, slot);
            self.forget(slot);
        }
    }

    pub(super) fn pause(&mut self, now: Tick, stream: StreamId) {
        let Some(slot) = self.slot(stream) else { return };
        let member = self.member_mut(slot);
        member.halt(now);
        member.paused = true;
        let reader = member.reader;
        self.wakers.retain(|waiting| *waiting != slot);
        let Some(reader) = reader else { return };
        if self.readers[reader as usize].members.len() > 1 {
            // The others cannot keep what it does not take.
            self.detach(now, slot);
        } else {
            self.choose_lead(now, reader);
            self.reschedule(now, reader);
        }
    }

    pub(super) fn park(&mut self, now: Tick, stream: StreamId) {
        let Some(slot) = self.slot(stream) else { return };
        let member = self.member_mut(slot);
        member.halt(now);
        member.paused = true;
        self.detach(now, slot);
    }

    pub(super) fn resume(&mut self, now: Tick, stream: StreamId, out: &mut Actions) {
        let Some(slot) = self.slot(stream).filter(|slot| self.member(*slot).paused) else { return };
        if let Some(reader) = self.member(slot).reader {
            let member = self.member_mut(slot);
            member.paused = false;
            if member.started {
                self.start_or_queue(now, slot, out);
            }
            self.choose_lead(now, reader);
            self.reschedule(now, reader);
            return;
        }
        let offset = self.member(slot).offset;
        self.member_mut(slot).paused = false;
        if let Err(refusal) = self.place(now, slot, offset, out) {
            self.member_mut(slot).paused = true;
            self.refuse(stream, refusal, out);
        }
    }

    pub(super) fn seek(&mut self, now: Tick, stream: StreamId, offset: u64, out: &mut Actions) {
        let Some(slot) = self.slot(stream) else { return };
        let member = self.member(slot);
        if offset >= member.layout.bytes() {
            self.refuse(stream, NO_PLACE, out);
            return;
        }
        let rate = member.rate.clone();
        if !self.move_within(now, slot, offset, out) {
            self.replace(now, slot, offset, rate, out);
        }
    }

    /// Moves a stream to a byte that its own reader has, if it has one to itself.
    fn move_within(&mut self, now: Tick, slot: u32, offset: u64, out: &mut Actions) -> bool {
        let chunk = self.config.admission.chunk;
        let Some(at) = self.member(slot).reader else { return false };
        let before = self.member(slot).offset;
        let reader = &mut self.readers[at as usize];
        let there = offset / chunk >= reader.ring.front() && offset < reader.filled;
        if reader.members.len() > 1 || !there || !self.member(slot).started {
            return false;
        }
        let reader = &mut self.readers[at as usize];
        reader.ring.enter(offset / chunk);
        reader.ring.leave(before / chunk);
        reader.ring.trim(&mut self.pool);
        let up_to = reader.filled;
        let first_byte_by = if self.sure() { now.after(2 * self.plan.hurried) } else { now };
        let member = self.member_mut(slot);
        let (stream, paused) = (member.id, member.paused);
        member.offset = offset;
        let media = member.rate.time_of(offset);
        member.clock.set(now, media);
        member.clock.running = false;
        self.counters.admitted += 1;
        out.push(Action::Admitted { stream, first_byte_by });
        out.push(Action::Filled { stream, up_to });
        if !paused {
            self.start_or_queue(now, slot, out);
        }
        self.choose_lead(now, at);
        self.reschedule(now, at);
        true
    }

    pub(super) fn set_rate(&mut self, now: Tick, stream: StreamId, rate: Rate, out: &mut Actions) {
        if let Some(slot) = self.slot(stream).filter(|slot| self.member(*slot).rate != rate) {
            let offset = self.member(slot).offset;
            self.replace(now, slot, offset, rate, out);
        }
    }

    /// Gives up the stream's place and takes another; the old one again if there is none.
    fn replace(&mut self, now: Tick, slot: u32, offset: u64, rate: Rate, out: &mut Actions) {
        let member = self.member(slot);
        let (stream, paused) = (member.id, member.paused);
        let old = (member.offset, member.rate.clone());
        // Would it be admitted? Asked before anything is given up.
        if let Err(refusal) = self.would_place(now, slot, offset, &rate) {
            self.refuse(stream, refusal, out);
            return;
        }
        self.detach(now, slot);
        self.member_mut(slot).rate = rate;
        let placed = self.place(now, slot, offset, out);
        if let Err(refusal) = placed {
            self.refuse(stream, refusal, out);
            self.member_mut(slot).rate = old.1;
            if self.place(now, slot, old.0, out).is_err() {
                self.member_mut(slot).paused = true;
                return;
            }
        }
        if paused {
            let member = self.member_mut(slot);
            member.halt(now);
            member.paused = true;
        }
    }

    /// Whether a stream would be admitted elsewhere if it gave its place up.
    fn would_place(
        &mut self,
        now: Tick,
        slot: u32,
        offset: u64,
        rate: &Rate,
    ) -> Result<(), Refusal> {
        if !self.config.enforce || self.config.scheme != Scheme::Elastic {
            return Ok(());
        }
        let member = self.member(slot);
        if *rate == member.rate && self.reader_within(slot, offset).is_some() {
            return Ok(());
        }
        let layout = member.layout.clone();
        let alone = member.reader.filter(|at| self.readers[*at as usize].members.len() == 1);
        let own = alone.and_then(|at| self.readers[at as usize].demand);
        let retry_after = self.first_end(now);
        self.tell_holdings();
        let demand = self.admission.demand(rate, &layout, offset);
        let at = own.map_or(self.demands.len(), |at| at as usize);
        if own.is_none() {
            self.demands.push(demand.clone());
        }
        let kept = std::mem::replace(&mut self.demands[at], demand);
        let plan = self.admission.plan(&self.demands);
        if own.is_some() {
            self.demands[at] = kept;
        } else {
            self.demands.pop();
        }
        plan.map(|_| ()).map_err(|shortage| Refusal { shortage, retry_after, ..NO_PLACE })
    }

    pub(super) fn consumed(&mut self, now: Tick, stream: StreamId, bytes: u64) {
        let Some(slot) = self.slot(stream) else { return };
        let (lag, chunk) = (self.config.lag, self.config.admission.chunk);
        let Some(at) = self.member(slot).reader else { return };
        let filled = self.readers[at as usize].filled;
        let member = self.member_mut(slot);
        let before = member.offset;
        member.offset = before.saturating_add(bytes).min(filled.max(before));
        let after = member.offset;
        member.forgive(now, lag);
        self.counters.consumed += after - before;
        if after / chunk != before / chunk {
            let reader = &mut self.readers[at as usize];
            reader.ring.leave(before / chunk);
            reader.ring.enter(after / chunk);
            reader.ring.trim(&mut self.pool);
        }
    }

    /// Finds the stream whose clock is furthest on.
    pub(super) fn choose_lead(&mut self, now: Tick, reader: u32) {
        let members = &self.readers[reader as usize].members;
        let running = members.iter().copied().filter(|slot| self.member(*slot).clock.running);
        let lead = running.max_by_key(|slot| self.member(*slot).clock.media(now));
        self.readers[reader as usize].lead = lead;
    }

    /// Its deadline has changed.
    pub(super) fn reschedule(&mut self, now: Tick, reader: u32) {
        let Some(sweep) = self.sweeps.sweep_of(reader) else {
            if self.readers[reader as usize].state == State::Done {
                self.requeue(now, reader);
            }
            return;
        };
        if sweep == self.wheel {
            self.enter_wheel(reader);
            return;
        }
        let (cost, deadline) = (self.cost(reader), self.deadline(reader));
        let order = self.readers[reader as usize].order;
        if deadline < NEVER {
            let release = (deadline as u64).saturating_sub(self.plan.headroom);
            let reader = &mut self.readers[reader as usize];
            reader.release = reader.release.min(release);
        }
        self.enter(sweep, reader, order, cost, deadline);
    }
}
