//! Which streams a device carries: arithmetic on its profile and on where the files really are.
//!
//! The elastic ring visits every stream once in a sweep, in the order of position, and fills it up to
//! what it consumes in the cycle `P` and the headroom `H`. What is done out of turn takes `B` at most
//! in a cycle (a token bucket: the sporadic server of Sprunt, Sha, Lehoczky, "Aperiodic task
//! scheduling for hard-real-time systems", Real-Time Systems 1, 1989), and the longest visit takes
//! `V` until the data are there.
//!
//! *Deterministic*: visits follow each other whenever somebody needs it, so a stream that was filled
//! up to `P + H` is filled again after one sweep and what is out of turn, whatever happened before.
//! With `H = V` it never runs dry if
//!
//! `sum of (access + (bytes(P + H) + chunk) / rate) + return stroke + B <= (1 - margin) P`
//!
//! for the longest access times. That is also necessary, but for `B`, the margin and the chunk that a
//! visit may read more: without pauses the worst sweep takes `S = sum of (access + bytes(S) / rate)`,
//! and a stream with less than `S + V` runs dry in it. A visit that ends in time, after `t`, begins with
//! `t` of media left and reads `c (P + H - t)` only: at constant rates each of the terms of the sum is
//! divided by `1 + c / rate`, and no visit but the first reads more. Access times are those of a straight line above
//! the longest ones, so that the way of a sweep, there and back, counts as a whole wherever its visits
//! are (for a concave seek curve equal gaps are the worst: Oyang, "A tight upper bound of the lumped
//! disk seek time for the SCAN disk scheduling policy", IPL 54(6), 1995).
//!
//! *Statistical*: no visit begins before its stream is down to `H`, so visits of a stream are `P`
//! apart unless something delays them: the difference between a sweep and the one before, `J`, which
//! is `z` standard deviations of the sum of access times between the positions as they are, `B`, and
//! `V`. With `H = J + B + V`, `sum of (mean access + bytes(P) / rate) + J / 2 <= (1 - margin) P`, and the
//! reserve for best effort on the left side as well. `B` is a visit of one who joins, or that
//! reserve: it comes when all others have the `J` left. One that is late by `x` reads `c x` more, but
//! half of those deviations stays unused in every sweep on average, to make up for that and for who joins
//! (`OVERRUN`). A sweep takes longer as rarely as a normal variable exceeds `z` deviations (the sums of
//! many bounded access times have lighter tails): that is not yet a glitch, for which `H` must be used
//! up as well.
//!
//! A device whose reads are delayed in a lump now and then, by `D` at most in whatever run of them
//! ([`DeviceProfile::delay`]), has `D` on the left side of both: a stream waits for one sweep. For the
//! statistical headroom it counts as part of `J`.
//!
//! Memory: deterministic, all streams can be full at once, since clients may pause when they are:
//! `sum of c (P + H)`, and two chunks for each. Statistical: visits exclude each other, and when the
//! last stream has been filled, stream `i` has consumed for as long as the visits of the later ones
//! took, in whatever order: less `sum over pairs of c_i (mean visit of j)`, which is about half of what
//! all consume in a sweep; a chunk for each, of which half is taken at both ends on average; half of the
//! largest buffer more, for one client that stops when it is full; and a twentieth more, for what
//! differs from the mean. A visit that finds no
//! memory waits for it as long as nobody suffers, which puts the streams apart in time. Clients that take
//! what is there at once hold less: the share that all of them really hold is measured and counted with
//! ([`Admission::count_held`]).

use super::layout::Layout;
use super::profile::DeviceProfile;
use super::rate::Rate;
use crate::unit::Tick;

/// Most cycles to choose from.
pub const MAX_CYCLES: usize = 10;
/// Share of a throttle's rate that is given to streams.
const THROTTLE_SHARE: f64 = 0.9;
/// The part of what two sweeps can differ by that a statistical cycle leaves unused on average. Sweeps
/// that are `u` longer in turns use up a headroom of `h` as rarely as `exp(-2 u h / variance)` (Kingman,
/// "A martingale inequality in the theory of queues", Math. Proc. Cambridge Phil. Soc. 60, 1964): half
/// of the deviations, with all of them as headroom, makes that `exp(-z^2)`, below the normal tail.
const OVERRUN: f64 = 0.5;
const BISECTIONS: u32 = 16;
/// Share of the memory that streams hold on average; chance has them hold more at times.
const POOLED: f64 = 0.95;
/// However little streams hold, they are counted with this share of what they may hold.
const LEAST_HELD: f64 = 0.25;
/// Bytes of a read out of turn that a deterministic reserve allows for at least.
const OUT_OF_TURN: u64 = 64 << 10;

/// How sure admission is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Assurance {
    /// Never a glitch, as far as the profile is true.
    Deterministic,
    /// A sweep takes longer than allowed for as rarely as a normal variable exceeds its mean by so
    /// many standard deviations.
    Statistical(f64),
}

/// What admission keeps to.
#[derive(Debug, Clone, PartialEq)]
pub struct AdmissionConfig {
    /// How sure it is.
    pub assurance: Assurance,
    /// Cycles to choose from, in nanoseconds, shortest first; [`MAX_CYCLES`] at most. Cycles between
    /// them are taken only where the memory is too small for the longer one.
    pub cycles: Vec<u64>,
    /// Share of a cycle that stays unused.
    pub margin: f64,
    /// Share of a cycle for best-effort work.
    pub reserve: f64,
    /// Where a stream fits only without them, the reserve and the margin are given up, but for so much
    /// of the margin.
    pub least: f64,
    /// With a statistical guarantee, nanoseconds after which a stream must be expected to start at the
    /// latest, unless it says itself how long it waits: it is refused otherwise, until there is time.
    /// For certain it is told when it starts, and no cycle is longer than four thirds of this.
    pub startup: u64,
    /// Streams that can join in a cycle. Deterministic admission sets nothing aside for them: they
    /// join when the order comes to their place.
    pub joins: u32,
    /// Bytes of buffers on the host.
    pub memory: u64,
    /// Bytes of a chunk, the unit of buffers.
    pub chunk: u64,
}

impl Default for AdmissionConfig {
    /// Deterministic, cycles of 0.25 to 12 s, 5 % unused, 5 % for best effort, of which all but 1/512 is
    /// given up for streams that do not fit otherwise; 256 MiB.
    fn default() -> Self {
        let millis = [250, 500, 1_000, 1_500, 2_000, 3_000, 4_000, 6_000, 8_000, 12_000];
        let cycles = millis.map(|millis| millis * 1_000_000);
        Self {
            assurance: Assurance::Deterministic,
            cycles: cycles.to_vec(),
            margin: 0.05,
            reserve: 0.05,
            least: 1.0 / 512.0,
            startup: 3 * Tick::SECOND,
            joins: 1,
            memory: 256 << 20,
            chunk: 256 << 10,
        }
    }
}

/// What a stream needs in a cycle.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Need {
    most: u64,
    /// 0 unless the rate is constant.
    fewest: u64,
    boundaries: u64,
}

/// A stream as admission sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Demand {
    /// For each of the cycles to choose from.
    cycles: [u64; MAX_CYCLES],
    needs: [Need; MAX_CYCLES],
    /// Highest rate at any moment, in bytes a second.
    peak: f64,
    low: u64,
    high: u64,
    /// Where it reads next.
    position: u64,
    slowest: f64,
    jump: u64,
    /// Boundaries between extents in a byte, on average.
    density: f64,
    /// Bytes that are kept for followers.
    held: u64,
    /// Bytes that it has already.
    floor: u64,
}

impl Demand {
    /// What a file with this layout at this rate, read from `offset` on, needs of the device.
    #[must_use]
    pub fn new(
        rate: &Rate,
        layout: &Layout,
        offset: u64,
        profile: &DeviceProfile,
        config: &AdmissionConfig,
    ) -> Self {
        let (mut needs, mut cycles) = ([Need::default(); MAX_CYCLES], [u64::MAX; MAX_CYCLES]);
        for ((need, at), cycle) in needs.iter_mut().zip(&mut cycles).zip(&config.cycles) {
            *at = *cycle;
            let most = rate.most_in(*cycle);
            let fewest = if rate.is_constant() { rate.fewest_in(*cycle) } else { 0 };
            let boundaries = layout.most_boundaries_in(most.saturating_mul(2));
            *need = Need { most, fewest, boundaries };
        }
        let ends = layout.extents().iter().map(|extent| extent.physical + extent.bytes);
        let starts = layout.extents().iter().map(|extent| extent.physical);
        let slowest = layout
            .extents()
            .iter()
            .map(|extent| profile.slowest_in(extent.physical, extent.physical + extent.bytes - 1));
        Self {
            cycles,
            needs,
            peak: rate.peak(),
            low: starts.min().unwrap_or(0),
            high: ends.max().unwrap_or(0),
            position: layout.locate(offset).map_or(0, |place| place.0),
            slowest: slowest.fold(f64::INFINITY, f64::min),
            jump: layout.longest_jump(),
            density: (layout.extents().len() - 1) as f64 / layout.bytes() as f64,
            held: 0,
            floor: 0,
        }
    }

    /// What it needs in a cycle that is no longer than the longest to choose from.
    fn need(&self, cycle: u64) -> Need {
        let at = self.cycles.partition_point(|known| *known < cycle).min(MAX_CYCLES - 1);
        let next = self.needs[at];
        if self.cycles[at] == cycle || at == 0 {
            return next;
        }
        // No more than the longer cycle, and no more than its peak beyond the shorter one.
        let before = self.needs[at - 1];
        let beyond = (cycle - self.cycles[at - 1]) as f64 * self.peak / Tick::SECOND as f64;
        let most = next.most.min(before.most + beyond.ceil() as u64);
        let fewest = if before.fewest > 0 { before.fewest + beyond as u64 } else { 0 };
        Need { most, fewest, boundaries: next.boundaries }
    }

    /// Tells how many bytes are kept for those who follow it.
    pub fn hold(&mut self, bytes: u64) {
        self.held = bytes;
    }

    /// Bytes that are kept for those who follow it.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Tells how many bytes it has already and may keep for long, if its client stops.
    pub fn keep(&mut self, bytes: u64) {
        self.floor = bytes;
    }

    /// The slowest rate of the device within the file, in bytes a second.
    #[must_use]
    pub fn slowest(&self) -> f64 {
        self.slowest
    }

    /// The share of the device that it takes at its highest rate, without the ways there.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.peak / self.slowest
    }

    /// Tells where it reads next.
    pub fn moved(&mut self, position: u64) {
        self.position = position;
    }
}

/// How a set of streams is carried.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// Nanoseconds between visits of a stream.
    pub cycle: u64,
    /// Nanoseconds of media that a stream has left when it is visited.
    pub headroom: u64,
    /// Nanoseconds in a cycle for what is done out of turn.
    pub budget: u64,
    /// Nanoseconds of a sweep, with all that admission allows for.
    pub busy: u64,
    /// Share of the cycle that stays unused.
    pub margin: f64,
    /// Nanoseconds of media that buffers must be filled to; less than [`Self::full`] where the cycle is
    /// longer than it must be.
    pub needs: u64,
    /// Nanoseconds of a sweep in which nobody is waited for; less than the cycle where that is longer than
    /// it must be.
    pub hurried: u64,
    /// Nanoseconds by which two sweeps can differ; 0 where that is not what is allowed for.
    pub spread: u64,
    /// Nanoseconds of getting to a stream, on average.
    pub access: u64,
    /// Most bytes of buffers in use at once.
    pub memory: u64,
}

impl Plan {
    /// Nanoseconds of media that a visit fills up to.
    #[must_use]
    pub fn full(&self) -> u64 {
        self.cycle + self.headroom
    }
}

/// Shares of a cycle that are reserved, and not for streams.
#[derive(Debug, Clone, Copy, PartialEq)]
struct ReservedShares {
    margin: f64,
    reserve: f64,
}

/// What there is too little of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// Time of the device.
    Device,
    /// Buffers on the host.
    Memory,
    /// Rate of the throttle in front of the device.
    Throttle,
    /// Even alone it is too fast for the device or the memory.
    Alone,
    /// Places: too many streams, or too many that wait for their first data.
    Places,
}

/// Why a stream is not admitted, and what would help.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{}", self.explain())]
pub struct Refusal {
    /// What there is too little of.
    pub shortage: Shortage,
    /// Nanoseconds until the first of the streams ends; none if waiting does not help.
    pub retry_after: Option<u64>,
    /// The highest constant rate at which it would be admitted now, in bytes a second, if any.
    pub fitting_rate: Option<u64>,
    /// The least buffers with which it would be admitted now, in bytes, if nothing else is short.
    pub memory: Option<u64>,
}

impl Refusal {
    fn explain(&self) -> String {
        let reason = match self.shortage {
            Shortage::Device => "the device has no time left",
            Shortage::Memory => "the buffers are promised to others",
            Shortage::Throttle => "the throttle of the device lets no more through",
            Shortage::Alone => "the stream is too fast for the device even alone",
            Shortage::Places => "too many streams, or too many that wait to start",
        };
        let memory = self.memory.map(|bytes| format!("; {bytes} bytes of them would do"));
        let rate = self.fitting_rate.map(|rate| format!("; {rate} bytes a second would fit"));
        let retry = self
            .retry_after
            .map(|nanos| format!("; try again in {} s", nanos.div_ceil(Tick::SECOND).max(1)));
        let [memory, rate, retry] = [memory, rate, retry].map(Option::unwrap_or_default);
        format!("{reason}{memory}{rate}{retry}")
    }
}

/// Getting to all streams once, in seconds.
#[derive(Debug, Clone, Copy, Default)]
struct Approach {
    /// Allowed for; without the deviations of a statistical sweep.
    sum: f64,
    mean: f64,
    variance: f64,
}

/// A straight line that no longest access time exceeds: `seconds + per_byte * distance`. The ways of
/// a sweep add up to its span, in whatever parts, so with it the time of any part of a sweep is known
/// from the number of its visits. It touches the curve where it is tight for some 30 streams.
#[derive(Debug, Clone, Copy)]
struct Line {
    seconds: f64,
    per_byte: f64,
}

impl Line {
    const TOUCHES: u64 = 16;

    fn above(profile: &DeviceProfile) -> Self {
        let near = (profile.capacity / Self::TOUCHES).max(1);
        let worst = |distance| profile.access(distance).worst;
        let per_byte = ((worst(near + near / 8) - worst(near)) / (near / 8).max(1) as f64).max(0.0);
        let above = profile.access.iter().map(|at| at.worst - per_byte * at.distance as f64);
        Self { seconds: above.fold(0.0, f64::max), per_byte }
    }

    /// What a single jump takes at most beyond `seconds`: the curve is below the line.
    fn beyond(&self, profile: &DeviceProfile, distance: u64) -> f64 {
        (profile.access(distance).worst - self.seconds).max(0.0)
    }
}

/// Admission to one device.
#[derive(Debug, Clone)]
pub struct Admission {
    profile: DeviceProfile,
    config: AdmissionConfig,
    /// Observed service times over those of the profile.
    slowdown: f64,
    line: Line,
    positions: Vec<u64>,
    /// What streams really hold of what they would hold if they took by their clocks, as it was seen with
    /// so many nanoseconds of media in their buffers.
    held: f64,
    seen: u64,
}

fn nanos(seconds: f64) -> u64 {
    (seconds * Tick::SECOND as f64).ceil() as u64
}

impl Admission {
    /// Admission by this profile.
    #[must_use]
    pub fn new(profile: DeviceProfile, config: AdmissionConfig) -> Self {
        let line = Line::above(&profile);
        let (slowdown, positions, held, seen) = (1.0, Vec::new(), 1.0, 0);
        Self { profile, config, slowdown, line, positions, held, seen }
    }

    /// The device.
    #[must_use]
    pub fn profile(&self) -> &DeviceProfile {
        &self.profile
    }

    /// What it keeps to.
    #[must_use]
    pub fn config(&self) -> &AdmissionConfig {
        &self.config
    }

    /// What a stream needs of this device.
    #[must_use]
    pub fn demand(&self, rate: &Rate, layout: &Layout, offset: u64) -> Demand {
        Demand::new(rate, layout, offset, &self.profile, &self.config)
    }

    /// From now on the device takes so many times as long as its profile says; 1 at least.
    pub fn slow_down(&mut self, factor: f64) {
        self.slowdown = factor.max(1.0);
    }

    /// From now on streams hold this share of what they would hold if they took by their clocks: many
    /// take what is there at once. Counted with by statistical admission, for buffers of up to twice `media`
    /// nanoseconds, since nobody knows what clients do with more.
    pub fn count_held(&mut self, share: f64, media: u64) {
        (self.held, self.seen) = (share.clamp(LEAST_HELD, 1.0), media);
    }

    /// The longest time to get somewhere, for parts of a sweep: nanoseconds of each visit, and
    /// nanoseconds of a way, in bytes of the device, whatever the visits on it.
    #[must_use]
    pub fn longest(&self, visits: u64, way: u64) -> u64 {
        let seconds = visits as f64 * self.line.seconds + way as f64 * self.line.per_byte;
        nanos(seconds * self.slowdown)
    }

    /// The longest time of one jump of the head, beyond what [`Self::longest`] has for the visit at its
    /// end, in nanoseconds.
    #[must_use]
    pub fn jump(&self, distance: u64) -> u64 {
        nanos(self.line.beyond(&self.profile, distance) * self.slowdown)
    }

    /// Nanoseconds that a run of reads takes longer at most than its reads do one by one.
    #[must_use]
    pub fn delay(&self) -> u64 {
        nanos(self.profile.delay * self.slowdown)
    }

    /// Nanoseconds that the jumps within one visit of a stream take at most, that reads so many bytes.
    #[must_use]
    pub fn jumps(&self, layout: &Layout, bytes: u64) -> u64 {
        let longest = layout.longest_jump();
        if longest == 0 {
            return 0;
        }
        let often = layout.most_boundaries_in(bytes) as f64 + 1.0;
        nanos(often * self.profile.access(longest).worst * self.slowdown)
    }

    fn approach(&mut self, demands: &[Demand]) -> Approach {
        let count = demands.len() as u64;
        let low = demands.iter().map(|demand| demand.low).min().unwrap_or(0);
        let high = demands.iter().map(|demand| demand.high).max().unwrap_or(0);
        if count == 0 {
            return Approach::default();
        }
        let back = self.profile.access(high - low);
        if self.config.assurance == Assurance::Deterministic {
            let each = self.profile.access((high - low) / count);
            return Approach {
                // The ways there and back; what each visit takes for itself is added with its read.
                sum: (high - low) as f64 * self.line.per_byte
                    + self.line.beyond(&self.profile, high - low),
                mean: each.mean * count as f64 + back.mean,
                variance: 0.0,
            };
        }
        self.positions.clear();
        self.positions.extend(demands.iter().map(|demand| demand.position));
        self.positions.sort_unstable();
        let mut approach = Approach { sum: back.least, ..Approach::default() };
        let mut last = self.positions[0];
        for position in &self.positions {
            let access = self.profile.access(position - last);
            approach.sum += access.mean;
            approach.variance += access.variance;
            last = *position;
        }
        approach.mean = approach.sum;
        approach
    }

    /// What is kept of a cycle: as much as is wanted, and less where that does not suffice. On a device
    /// that is slower than its profile nothing of it is given up: nobody knows how slow it becomes.
    fn reserved_shares(&self) -> [ReservedShares; 3] {
        let AdmissionConfig { margin, reserve, least, .. } = self.config;
        if self.slowdown > 1.0 {
            return [ReservedShares { margin, reserve }; 3];
        }
        let none = ReservedShares { margin, reserve: 0.0 };
        [
            ReservedShares { margin, reserve },
            none,
            ReservedShares { margin: margin.min(least), ..none },
        ]
    }

    /// How these streams are carried: with a cycle that is longer than it must be, as far as the memory
    /// allows it, so that buffers need not grow when others join.
    ///
    /// # Errors
    /// What there is too little of, for the longest cycle that suffices otherwise.
    pub fn plan(&mut self, demands: &[Demand]) -> Result<Plan, Shortage> {
        let approach = self.approach(demands);
        let mut shortage = Shortage::Device;
        for reserved in self.reserved_shares() {
            match self.shortest(reserved, approach, demands) {
                Ok(plan) => return Ok(self.lengthened(plan, reserved, approach, demands)),
                Err(short) => shortage = short,
            }
        }
        Err(shortage)
    }

    /// The plan for the longest cycle, whether it suffices or not.
    #[must_use]
    pub fn unchecked(&mut self, demands: &[Demand]) -> Plan {
        let approach = self.approach(demands);
        let last = self.config.cycles.len().clamp(1, MAX_CYCLES) - 1;
        self.plan_cycle(self.config.cycles[last], self.reserved_shares()[0], approach, demands)
    }

    /// The plan for a cycle, if it suffices.
    fn try_cycle(
        &self,
        cycle: u64,
        reserved: ReservedShares,
        approach: Approach,
        demands: &[Demand],
    ) -> Result<Plan, Shortage> {
        let plan = self.plan_cycle(cycle, reserved, approach, demands);
        let cycle = plan.cycle as f64;
        if (plan.busy + plan.budget) as f64 > (1.0 - reserved.margin) * cycle {
            return Err(Shortage::Device);
        }
        if let Some(throttle) = self.profile.throttle {
            let bytes: f64 = demands.iter().map(|demand| demand.need(plan.cycle).most as f64).sum();
            if bytes * Tick::SECOND as f64 > THROTTLE_SHARE * throttle.rate * cycle {
                return Err(Shortage::Throttle);
            }
        }
        if plan.memory > self.config.memory { Err(Shortage::Memory) } else { Ok(plan) }
    }

    fn plan_cycle(
        &self,
        length: u64,
        reserved: ReservedShares,
        approach: Approach,
        demands: &[Demand],
    ) -> Plan {
        let config = &self.config;
        let cycle = length as f64 / Tick::SECOND as f64;
        let worst = config.assurance == Assurance::Deterministic;
        // With every access allowed for, the reads of a visit are no less than this.
        let (mut access, mut variance) = (approach.sum, approach.variance);
        let (mut transfer, mut peaks, mut mean) = (0.0, 0.0, approach.mean);
        let (mut largest, mut steepest, mut slowest) = (0.0f64, 0.0f64, f64::INFINITY);
        let furthest = self.profile.access(self.profile.capacity).worst;
        for demand in demands {
            let need = demand.need(length);
            let jump = self.profile.access(demand.jump);
            // A jump to another place in the order costs the way there and the way back.
            let often = 2.0 * demand.density * need.most as f64;
            let most = if demand.jump == 0 { 0.0 } else { need.boundaries as f64 + 1.0 };
            let jumps = if worst { most } else { often };
            let over = jumps * if worst { jump.worst } else { jump.mean };
            let read = need.most as f64 / demand.slowest;
            mean += often * jump.mean;
            variance += jumps * jump.variance;
            steepest = steepest.max(demand.peak / demand.slowest);
            slowest = slowest.min(demand.slowest);
            if worst {
                // Visits end at the end of a chunk.
                let chunk = config.chunk as f64 / demand.slowest;
                largest = largest.max(read + chunk + over + furthest);
                // A visit that is over in time takes a little less: `Machine::longest_visit`.
                let share = demand.peak / demand.slowest;
                let in_time = if need.fewest > 0 { 1.0 + share * self.slowdown } else { 1.0 };
                access += (self.line.seconds + chunk + over + read) / in_time;
                peaks += share / in_time;
            } else {
                (access, transfer) = (access + over, transfer + read);
                let far = demand.position.max(self.profile.capacity / 2);
                largest = largest.max(read + over + self.profile.access(far).mean);
            }
        }
        let spread = match config.assurance {
            Assurance::Deterministic => 0.0,
            Assurance::Statistical(z) => z * variance.sqrt(),
        };
        let budget = self.budget(cycle, reserved.reserve, slowest);
        if worst {
            // It fills the headroom, too, which is the visit itself.
            largest /= 1.0 - steepest.min(0.9);
        }
        let lump = self.profile.delay;
        // Those who join do so in the time that deviations leave unused, but the others wait for them.
        let visit = (mean + transfer) / demands.len().max(1) as f64;
        let joins = f64::from(config.joins) * visit;
        let delays = if worst { 0.0 } else { spread + lump + budget.max(joins) };
        let (budget, headroom) = (budget * self.slowdown, (delays + largest) * self.slowdown);
        // By and large a visit reads what one cycle takes. For certain, it may be late by all of the
        // headroom, and so may those after it.
        let late = if worst { peaks * headroom } else { 0.0 };
        let sweep = (access + OVERRUN * spread + transfer + late) * self.slowdown;
        let lanes = f64::from(self.profile.parallel.max(1));
        let busy = sweep / lanes + lump * self.slowdown + if lanes > 1.0 { largest } else { 0.0 };
        let each = mean * self.slowdown / demands.len().max(1) as f64 / lanes;
        Plan {
            cycle: length,
            headroom: nanos(headroom),
            budget: nanos(budget),
            busy: nanos(busy),
            margin: reserved.margin,
            needs: length + nanos(headroom),
            hurried: length,
            spread: if worst { 0 } else { nanos((spread + lump) * self.slowdown) },
            access: nanos(each),
            memory: self.memory(length, headroom, each, demands),
        }
    }

    /// Seconds in a cycle for what is done out of turn, of a device that is as its profile says.
    fn budget(&self, cycle: f64, reserve: f64, slowest: f64) -> f64 {
        let share = reserve * cycle;
        match self.config.assurance {
            // First visits come in turn. One read at least, from anywhere and back.
            Assurance::Deterministic if reserve > 0.0 => {
                let way = 2.0 * self.profile.capacity as f64 * self.line.per_byte;
                share.max(self.line.seconds + way + OUT_OF_TURN as f64 / slowest)
            }
            _ => share,
        }
    }

    /// Bytes of buffers for a cycle of so many nanoseconds, a headroom of so many seconds, and so many
    /// to get to a stream.
    fn memory(&self, length: u64, headroom: f64, access: f64, demands: &[Demand]) -> u64 {
        let cycle = length as f64 / Tick::SECOND as f64;
        let worst = self.config.assurance == Assurance::Deterministic;
        let chunk = self.config.chunk as f64;
        let (mut full, mut steady, mut sweep, mut own_visits) = (0.0, 0.0, 0.0, 0.0);
        let mut largest = 0.0f64;
        for demand in demands {
            let need = demand.need(length);
            let own = need.most as f64 + demand.peak * headroom;
            let fewest = need.fewest as f64;
            // Certain is what whole chunks hold.
            let whole = |bytes: f64| if worst { (bytes / chunk).ceil() * chunk } else { bytes };
            // Two bytes for what is rounded up in each of its parts.
            full += whole(own + 2.0).max(demand.floor as f64) + whole(demand.held as f64);
            largest = largest.max(own);
            let visit = access + fewest / demand.slowest * self.slowdown;
            steady += fewest;
            sweep += visit;
            own_visits += fewest * visit;
        }
        let chunks = self.config.chunk * demands.len() as u64;
        if worst {
            // No visit goes beyond its stream's own share.
            return full.ceil() as u64 + 2 * chunks;
        }
        let serial = self.profile.parallel == 1;
        let pairs = (steady * sweep - own_visits) / 2.0;
        let consumed = if serial { pairs / cycle } else { 0.0 };
        let proven = length.saturating_add(nanos(headroom)) / 2 <= self.seen;
        let held = (full - consumed) * if proven { self.held } else { 1.0 };
        // One client that stops keeps what others have consumed half of on average.
        ((held + largest / 2.0) / POOLED).ceil() as u64 + chunks
    }

    /// The plan with one stream more, which is then the last of `demands`, or why not and what would
    /// help. `ends` is when the first of the streams ends, in nanoseconds from now.
    ///
    /// # Errors
    /// [`Refusal`]; the demands are as before.
    pub fn admit(
        &mut self,
        demands: &mut Vec<Demand>,
        layout: &Layout,
        rate: &Rate,
        offset: u64,
        ends: Option<u64>,
    ) -> Result<Plan, Refusal> {
        let demand = Demand::new(rate, layout, offset, &self.profile, &self.config);
        demands.push(demand);
        let shortage = match self.plan(demands) {
            Ok(plan) => return Ok(plan),
            Err(shortage) => shortage,
        };
        let alone = self.plan(&demands[demands.len() - 1..]).is_err();
        let memory = (!alone && shortage == Shortage::Memory).then(|| self.sufficient(demands));
        demands.pop();
        Err(Refusal {
            shortage: if alone { Shortage::Alone } else { shortage },
            retry_after: if alone { None } else { ends },
            fitting_rate: self.fitting_rate(demands, layout, rate, offset),
            memory: memory.flatten(),
        })
    }

    /// The least bytes of buffers with which these streams are carried.
    fn sufficient(&mut self, demands: &[Demand]) -> Option<u64> {
        let approach = self.approach(demands);
        let [_, _, least] = self.reserved_shares();
        let memory = std::mem::replace(&mut self.config.memory, u64::MAX);
        let plan = self.shortest(least, approach, demands);
        self.config.memory = memory;
        plan.ok().map(|plan| plan.memory)
    }

    /// The highest constant rate that fits, to one part in 2^16.
    fn fitting_rate(
        &mut self,
        demands: &mut Vec<Demand>,
        layout: &Layout,
        rate: &Rate,
        offset: u64,
    ) -> Option<u64> {
        let (mut low, mut high) = (0, nanos(rate.peak()) / Tick::SECOND);
        for _ in 0..BISECTIONS {
            let middle = low + (high - low) / 2;
            let Ok(slower) = Rate::constant(middle) else { break };
            let demand = Demand::new(&slower, layout, offset, &self.profile, &self.config);
            demands.push(demand);
            let fits = self.plan(demands).is_ok();
            demands.pop();
            if fits {
                low = middle;
            } else {
                high = middle;
            }
        }
        (low > 0).then_some(low)
    }
}

mod cycles;
#[cfg(test)]
mod tests;
