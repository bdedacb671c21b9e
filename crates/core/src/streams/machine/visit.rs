//! Visits: how far one reads, its reads, and what follows.

use super::super::sweep::NEVER;
use super::reader::{Member, State};
use super::{Action, Actions, GlitchCause, Machine, Read, ReadId, Rounds, Scheme};
use crate::unit::Tick;

/// Weight of a read in the moving averages.
const WEIGHT: f64 = 1.0 / 64.0;

impl Machine {
    /// Nanoseconds of a visit of average length, with all that admission allows for.
    pub(super) fn cost(&self, reader: u32) -> i64 {
        if self.sure() {
            return self.longest_visit(reader);
        }
        let (reader, horizon) = (&self.readers[reader as usize], self.horizon());
        let media = reader.rate.time_of(reader.filled);
        let bytes =
            reader.rate.bytes_at(media.saturating_add(horizon)) - reader.filled.min(reader.end());
        let read = bytes as f64 / reader.slowest / f64::from(self.config.depth.max(1));
        self.plan.access as i64 + (read * self.slowdown * 1e9) as i64
    }

    /// Nanoseconds of media that a visit reads on average.
    pub(super) fn horizon(&self) -> u64 {
        match self.config.scheme {
            // Less than the cycle while buffers grow.
            Scheme::Elastic => {
                let now = self.target.saturating_sub(self.plan.headroom).max(self.target / 2);
                self.plan.cycle.min(now)
            }
            Scheme::Rounds(rounds) => rounds.round * u64::from(rounds.depth + 1),
        }
    }

    /// When the first of a reader's streams runs dry.
    pub(super) fn deadline(&self, reader: u32) -> i64 {
        let reader = &self.readers[reader as usize];
        match reader.lead {
            Some(lead) if reader.filled < reader.end() => self.member(lead).dry_at(reader.filled),
            _ => NEVER,
        }
    }

    /// How far a visit that begins now reads.
    fn visit_end(&mut self, now: Tick, at: u32) -> u64 {
        let lag = self.config.lag;
        let members = std::mem::take(&mut self.readers[at as usize].members);
        for slot in &members {
            self.member_mut(*slot).forgive(now, lag);
        }
        self.readers[at as usize].members = members;
        self.choose_lead(now, at);
        let lead = self.readers[at as usize].lead;
        let reader = &self.readers[at as usize];
        let (chunk, rate) = (self.config.admission.chunk, &reader.rate);
        let media = match lead {
            Some(lead) => self.member(lead).clock.media(now),
            None => {
                let first = reader.members.iter().map(|slot| self.member(*slot).offset).max();
                rate.time_of(first.unwrap_or(reader.filled))
            }
        };
        let end = match self.config.scheme {
            Scheme::Elastic => {
                let end = rate.bytes_at(media.saturating_add(self.target.min(reader.most)));
                let most = reader.filled.saturating_add(self.longest_read(at));
                end.min(self.catching_up(now, at)).min(most).max(reader.filled)
            }
            Scheme::Rounds(rounds) => {
                let blocks = u64::from(self.blocks(rounds));
                let begun = self.boundary.0.saturating_sub(rounds.round);
                // Who plays has what it needs in this round; who does not starts with the next.
                let (from, rounds_ahead) = match lead {
                    Some(_) => (media.saturating_sub(now.0.saturating_sub(begun)), blocks + 1),
                    None => (media, blocks),
                };
                rate.bytes_at(from.saturating_add(rounds.round * rounds_ahead))
            }
        };
        let end = end.div_ceil(chunk).saturating_mul(chunk).min(reader.end());
        let end = match reader.follows {
            Some(ahead) => end.min(self.readers[ahead as usize].ring.front() * chunk),
            None => end,
        };
        self.within_quota(now, at, end)
    }

    /// With a statistical guarantee a visit reads no more than was counted with if there is little time:
    /// if all read what they are late by, the sweep would be longer by nearly as much, and the next one
    /// again. As they are visited sooner than a cycle after the last time, they catch up all the same.
    fn catching_up(&self, now: Tick, at: u32) -> u64 {
        let reader = &self.readers[at as usize];
        let slack = self.latest().saturating_sub(now.0 as i64);
        let enough = self.plan.spread.midpoint(self.plan.headroom) as i64;
        let first = reader.fresh || reader.lead.is_none();
        if self.sure() || !self.config.enforce || first || slack >= enough {
            return u64::MAX;
        }
        reader.rate.bytes_at(reader.rate.time_of(reader.filled).saturating_add(self.horizon()))
    }

    /// A client that takes less than its rate holds no more than its share. What is not read for that
    /// reason it cannot claim later: it runs dry as late as if it had come with an empty buffer.
    fn within_quota(&mut self, now: Tick, at: u32, end: u64) -> u64 {
        let reader = &self.readers[at as usize];
        let most = (reader.ring.front() + reader.quota) * self.config.admission.chunk;
        if reader.quota == 0 || reader.members.len() != 1 || end <= most {
            return end;
        }
        let latest = reader.rate.time_of(most).saturating_sub(self.target);
        let slot = reader.members[0];
        let member = self.member_mut(slot);
        if member.clock.running && member.clock.media(now) > latest {
            member.clock.set(now, latest);
        }
        most
    }

    /// Blocks that the next visit of this round reads.
    fn blocks(&self, rounds: Rounds) -> u32 {
        let streams = self.demands.len() as u32;
        let half = if rounds.half { streams.div_ceil(2) } else { u32::MAX };
        let prefetch = streams >= rounds.from && self.prefetched < rounds.prefetches.min(half);
        if prefetch { 1 + rounds.depth } else { 1 }
    }

    /// Whether the pool has what a visit of this reader needs.
    pub(super) fn has_room(&mut self, now: Tick, at: u32) -> bool {
        let end = self.visit_end(now, at);
        let back = end.div_ceil(self.config.admission.chunk);
        back.saturating_sub(self.readers[at as usize].ring.back()) <= self.pool.free()
    }

    /// Whether a visit would read anything.
    pub(super) fn hungry(&mut self, now: Tick, at: u32) -> bool {
        self.visit_end(now, at) > self.readers[at as usize].filled
    }

    /// Begins a visit; whether it reads anything.
    pub(super) fn begin(&mut self, now: Tick, at: u32, out: &mut Actions) -> bool {
        self.sweeps.remove(at);
        self.starters.retain(|starter| *starter != at);
        if self.sure() && self.readers[at as usize].quota > 0 {
            self.settle_quota(at);
        }
        let end = self.visit_end(now, at);
        if self.config.enforce && self.config.scheme == Scheme::Elastic {
            self.separate(now, at, end, out);
        }
        self.readers[at as usize].visit_end = self.visit_end(now, at);
        let reads = self.issue(at, out);
        self.readers[at as usize].idle = !reads;
        if reads {
            self.counters.visits += 1;
        } else {
            self.finish(now, at, out);
        }
        reads
    }

    /// Starts the next read of a visit; none if the visit is done or no chunk is free.
    pub(super) fn issue(&mut self, at: u32, out: &mut Actions) -> bool {
        let chunk = self.config.admission.chunk;
        let reader = &mut self.readers[at as usize];
        let Some((physical, contiguous)) = reader.layout.locate(reader.filled) else {
            return false;
        };
        let left = reader.visit_end.saturating_sub(reader.filled);
        let bytes = left.min(contiguous).min(self.config.request);
        if bytes == 0 {
            return false;
        }
        reader.ring.extend((reader.filled + bytes).div_ceil(chunk), &mut self.pool);
        let there = (reader.ring.back() * chunk).saturating_sub(reader.filled);
        let bytes = bytes.min(there);
        if bytes == 0 {
            reader.short = true;
            return false;
        }
        let first_chunk = out.chunks.len() as u32;
        for number in reader.filled / chunk..(reader.filled + bytes).div_ceil(chunk) {
            out.chunks.push(reader.ring.chunk(number).expect("the ring reaches that far"));
        }
        let read = Read {
            read: ReadId(at),
            title: reader.title,
            offset: reader.filled,
            physical,
            bytes,
            first_chunk,
            chunks: out.chunks.len() as u32 - first_chunk,
        };
        let distance = self.head.abs_diff(physical);
        reader.flying = bytes;
        reader.expected =
            (self.admission.profile().expected(distance, physical, bytes) * 1e9) as u64;
        let profile = self.admission.profile();
        let most = profile.access(distance).worst
            + bytes as f64 / profile.slowest_in(physical, physical + bytes)
            + profile.delay;
        reader.longest = (most * 1.01e9) as u64;
        reader.state = State::Flying;
        self.head = physical + bytes;
        self.flying += 1;
        out.push(Action::Read(read));
        true
    }

    fn landed(&mut self, read: ReadId, service: u64) -> Option<u32> {
        let reader = self.readers.get_mut(read.0 as usize)?;
        if !matches!(reader.state, State::Flying | State::Doomed) {
            return None;
        }
        let (expected, longest) = (reader.expected, reader.longest);
        self.flying = self.flying.saturating_sub(1);
        self.observed += (service as f64 - self.observed) * WEIGHT;
        self.expected += (expected as f64 - self.expected) * WEIGHT;
        self.overlong |= service > longest;
        let transfer = reader.flying as f64 / reader.slowest * 1e9;
        self.excess += service as i64 - self.plan.access as i64 - transfer as i64;
        if reader.state == State::Doomed {
            reader.state = State::Free;
            reader.ring.trim(&mut self.pool);
            self.free_readers.push(read.0);
            self.set_quota(read.0, 0);
            return None;
        }
        Some(read.0)
    }

    pub(super) fn read_done(&mut self, now: Tick, read: ReadId, service: u64, out: &mut Actions) {
        let Some(at) = self.landed(read, service) else { return };
        let reader = &mut self.readers[at as usize];
        let before = reader.filled;
        reader.filled += std::mem::take(&mut reader.flying);
        self.counters.bytes += reader.filled - before;
        let (filled, members) = (reader.filled, std::mem::take(&mut reader.members));
        for slot in &members {
            self.fed(now, *slot, before, filled, out);
        }
        let reader = &mut self.readers[at as usize];
        reader.members = members;
        (reader.failed, reader.short) = (false, false);
        reader.state = State::Waiting;
        self.choose_lead(now, at);
        if filled < self.readers[at as usize].visit_end {
            self.partial = Some(at);
        } else {
            self.finish(now, at, out);
        }
    }

    /// A stream has got data; says so if its client had to wait for them.
    fn fed(&mut self, now: Tick, slot: u32, before: u64, filled: u64, out: &mut Actions) {
        let member = self.member(slot);
        let Member { id, offset, clock, .. } = *member;
        let dry = member.dry_at(before);
        if clock.running && offset >= before && dry < now.0 as i64 {
            let late = now.0 - dry as u64;
            let cause = self.cause(slot, late);
            self.counters.glitches += 1;
            let member = self.member_mut(slot);
            let media = member.rate.time_of(before);
            member.clock.set(now, media);
            out.push(Action::Glitch { stream: id, cause, late });
        }
        out.push(Action::Filled { stream: id, up_to: filled });
    }

    fn cause(&self, slot: u32, late: u64) -> GlitchCause {
        let Some(reader) = self.member(slot).reader.map(|at| &self.readers[at as usize]) else {
            return GlitchCause::Late;
        };
        if reader.failed {
            GlitchCause::ReadError
        } else if reader.demand.is_none() {
            GlitchCause::Degraded
        } else if self.excess > late as i64 || self.slowdown() > super::dispatch::DRIFT {
            GlitchCause::SlowDevice
        } else if reader.short {
            GlitchCause::Memory
        } else {
            GlitchCause::Late
        }
    }

    pub(super) fn read_failed(&mut self, now: Tick, read: ReadId, service: u64) {
        let Some(at) = self.landed(read, service) else { return };
        self.counters.failed += 1;
        let reader = &mut self.readers[at as usize];
        (reader.flying, reader.failed, reader.state) = (0, true, State::Waiting);
        self.requeue(now, at);
    }

    /// Ends a visit: starts clocks, and puts the reader into the sweep of its next visit.
    pub(super) fn finish(&mut self, now: Tick, at: u32, out: &mut Actions) {
        self.partial = None;
        let members = std::mem::take(&mut self.readers[at as usize].members);
        for slot in &members {
            let member = self.member(*slot);
            let there = self.readers[at as usize].filled > member.offset;
            if there && !member.started {
                if self.sure() && self.readers[at as usize].fresh {
                    // It was found safe when the visit began.
                    self.start(now, *slot, out);
                } else {
                    self.start_or_queue(now, *slot, out);
                }
            }
        }
        self.readers[at as usize].members = members;
        self.choose_lead(now, at);
        if !self.merge(now, at, out) {
            self.requeue(now, at);
        }
    }

    /// The clock of a stream with its first data starts: now, or with the next round.
    pub(super) fn start_or_queue(&mut self, now: Tick, slot: u32, out: &mut Actions) {
        if self.sure() {
            self.start_when_safe(slot);
        } else if self.config.scheme == Scheme::Elastic {
            self.start(now, slot, out);
        } else if !self.to_start.contains(&slot) {
            self.to_start.push(slot);
        }
    }

    pub(super) fn start(&mut self, now: Tick, slot: u32, out: &mut Actions) {
        let member = self.member_mut(slot);
        let media = member.rate.time_of(member.offset);
        member.clock.set(now, media);
        (member.clock.running, member.started) = (!member.paused, true);
        let (stream, reader) = (member.id, member.reader);
        let paused = member.paused;
        if !paused {
            out.push(Action::Playing(stream));
        }
        if let Some(reader) = reader {
            self.choose_lead(now, reader);
            self.reschedule(now, reader);
        }
    }

    /// Puts a reader into the sweep of its next visit.
    pub(super) fn requeue(&mut self, now: Tick, at: u32) {
        let position = self.readers[at as usize].position();
        let (cost, deadline, sure) = (self.cost(at), self.deadline(at), self.sure());
        let reader = &mut self.readers[at as usize];
        reader.most = u64::MAX;
        if reader.filled >= reader.end() {
            reader.state = State::Done;
            self.sweeps.remove(at);
            return;
        }
        reader.state = State::Waiting;
        let first = if sure { reader.fresh } else { std::mem::take(&mut reader.fresh) };
        let demand = reader.demand;
        if let Some(demand) = demand {
            self.demands[demand as usize].moved(position);
        }
        match self.config.scheme {
            _ if demand.is_none() => self.enter_wheel(at),
            Scheme::Rounds(rounds) => {
                let blocks = self.blocks(rounds);
                self.stage(at, rounds, blocks);
                let sweep = (self.current + blocks as usize) % self.wheel;
                self.readers[at as usize].order = position;
                self.sweeps.insert(sweep, at, position, cost, deadline);
            }
            Scheme::Elastic => self.requeue_elastic(now, at, position, cost, deadline, first),
        }
    }

    fn requeue_elastic(
        &mut self,
        now: Tick,
        at: u32,
        position: u64,
        cost: i64,
        deadline: i64,
        first: bool,
    ) {
        let next = 1 - self.current;
        let headroom = self.plan.headroom;
        let release = if deadline == NEVER {
            now.0 + self.plan.cycle
        } else {
            // Later than now also while buffers are small yet.
            (deadline as u64).saturating_sub(headroom).max(now.0 + self.plan.cycle / 64)
        };
        if self.sure() {
            self.requeue_sure(now, at, position, release);
            return;
        }
        let soonest = self.soonest(now);
        let reader = &mut self.readers[at as usize];
        // After its first visit, which is out of turn, it is visited once at the place it has in the
        // order, to be in step with its neighbours.
        reader.release = if first { now.0 } else { release };
        reader.earliest = soonest;
        let old = std::mem::replace(&mut reader.order, position);
        let sweep = if first && position > self.progress { self.current } else { next };
        self.sweeps.insert(sweep, at, position, cost, deadline);
        if !first && position > old && self.latest() < now.0 as i64 {
            self.readers[at as usize].order = old;
            self.sweeps.insert(next, at, old, cost, deadline);
        }
    }

    /// Accounts for prefetched blocks, which wait in the device's buffer for their round.
    fn stage(&mut self, at: u32, rounds: Rounds, blocks: u32) {
        if blocks < 2 {
            return;
        }
        self.prefetched += 1;
        let reader = &self.readers[at as usize];
        let block = reader.rate.most_in(rounds.round);
        for ahead in 1..blocks as usize {
            let round = (self.current + ahead) % self.wheel;
            self.staged[round] += block;
            self.staged_now += block;
        }
        self.staged_peak = self.staged_peak.max(self.staged_now);
    }

    /// If a reader has arrived where the one ahead of it has kept its chunks for it, that one takes
    /// over its streams, which have all that it has from now on.
    fn merge(&mut self, now: Tick, at: u32, out: &mut Actions) -> bool {
        let Some(ahead) = self.readers[at as usize].follows else { return false };
        let chunk = self.config.admission.chunk;
        let front = self.readers[ahead as usize].ring.front();
        if self.readers[at as usize].filled < front * chunk {
            return false;
        }
        let reader = &mut self.readers[at as usize];
        let mut own = std::mem::take(&mut reader.ring);
        let members = std::mem::take(&mut reader.members);
        // Who follows this one follows the other from now on: the place that is kept for it is in the
        // chunks that move.
        let behind = (reader.followed_by.take(), std::mem::take(&mut reader.kept));
        if let Some(behind) = behind.0 {
            self.readers[behind as usize].follows = Some(ahead);
        }
        let other = &mut self.readers[ahead as usize];
        // The place that was kept is taken by the streams themselves.
        other.ring.prepend(&mut own);
        other.ring.leave(front);
        (other.followed_by, other.kept) = behind;
        other.ring.trim(&mut self.pool);
        let reader = &mut self.readers[at as usize];
        (reader.follows, reader.ring) = (None, own);
        self.counters.shared += members.len() as u64;
        let up_to = self.readers[ahead as usize].filled;
        for slot in &members {
            let member = self.member_mut(*slot);
            member.reader = Some(ahead);
            out.push(Action::Filled { stream: member.id, up_to });
        }
        self.readers[ahead as usize].members.extend(members);
        self.rehold(ahead);
        self.retire(at);
        self.replan();
        self.choose_lead(now, ahead);
        self.reschedule(now, ahead);
        true
    }
}
