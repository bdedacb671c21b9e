//! What a machine is made for.

use super::super::admission::{AdmissionConfig, MAX_CYCLES};
use crate::unit::Tick;

/// How visits are ordered in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// The elastic ring: every stream once in a sweep, sweeps follow each other, buffers are pooled.
    Elastic,
    /// Rounds of fixed length (Harizopoulos, Harizakis, Triantafillou, 2000).
    Rounds(Rounds),
}

/// Rounds of fixed length. A visit reads what the stream consumes in one round, or in `1 + depth`
/// rounds if it prefetches; then the stream is visited again after as many rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rounds {
    /// Nanoseconds.
    pub round: u64,
    /// Most streams at all.
    pub streams: u32,
    /// Most visits in a round.
    pub visits: u32,
    /// Rounds ahead that a visit prefetches; 0 is Sweep.
    pub depth: u32,
    /// Most visits in a round that prefetch.
    pub prefetches: u32,
    /// Prefetching begins with so many streams.
    pub from: u32,
    /// Half of the streams prefetch, no more.
    pub half: bool,
}

impl Rounds {
    /// Sweep: so many streams, each visited in every round.
    #[must_use]
    pub fn sweep(round: u64, streams: u32) -> Self {
        Self { round, streams, visits: streams, depth: 0, prefetches: 0, from: 0, half: false }
    }

    /// Sweep & Prefetch: `visits` in a round, of which `prefetches` read `depth` blocks more. It
    /// begins to prefetch when the visits of a round are used up.
    #[must_use]
    pub fn sweep_and_prefetch(round: u64, visits: u32, prefetches: u32, depth: u32) -> Self {
        let streams = visits + prefetches * depth;
        Self { round, streams, visits, depth, prefetches, from: visits, half: false }
    }

    /// Gradual Prefetching: the same, but every second stream prefetches from the start.
    #[must_use]
    pub fn gradual(round: u64, visits: u32, prefetches: u32) -> Self {
        Self { from: 0, half: true, ..Self::sweep_and_prefetch(round, visits, prefetches, 1) }
    }

    /// GPMP: `groups` of `visits` streams, one group a round.
    #[must_use]
    pub fn gpmp(round: u64, visits: u32, groups: u32) -> Self {
        let depth = groups.saturating_sub(1);
        let streams = visits * groups;
        Self { round, streams, visits, depth, prefetches: visits, from: 0, half: false }
    }
}

/// What a machine is made for.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// How visits are ordered.
    pub scheme: Scheme,
    /// What admission keeps to; its memory and chunks are those of the machine.
    pub admission: AdmissionConfig,
    /// Whether the elastic ring refuses what admission does not allow. Without, it tries its best
    /// with the longest of the cycles: for experiments.
    pub enforce: bool,
    /// Most streams.
    pub streams: u32,
    /// Longest wait of a new stream behind others: so many streams without first data.
    pub starters: u32,
    /// Most bytes of one read.
    pub request: u64,
    /// Reads at the same time; 0 for as many as the device serves at no loss.
    pub depth: u32,
    /// Best-effort reads that wait.
    pub best_effort: u32,
    /// Nanoseconds of media by which a client may lag behind its rate and catch up later, as far as its
    /// buffers have room for it.
    pub lag: u64,
    /// Nanoseconds of media between streams of a title that are worth keeping in memory.
    pub interval: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            scheme: Scheme::Elastic,
            admission: AdmissionConfig::default(),
            enforce: true,
            streams: 100_000,
            starters: 1_000,
            request: 1 << 20,
            depth: 0,
            best_effort: 1_000,
            lag: Tick::SECOND / 4,
            interval: 30 * Tick::SECOND,
        }
    }
}

/// A configuration that cannot work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("streams cannot be served so: {0}")]
pub struct BadConfig(pub &'static str);

impl Config {
    /// Checks it.
    ///
    /// # Errors
    /// [`BadConfig`] says what is wrong.
    pub fn check(&self) -> Result<(), BadConfig> {
        let admission = &self.admission;
        let cycles = &admission.cycles;
        if cycles.is_empty() || cycles.len() > MAX_CYCLES || cycles.contains(&0) {
            return Err(BadConfig("give 1 to 10 cycles longer than 0"));
        }
        if cycles.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(BadConfig("give cycles in order, the shortest first"));
        }
        if admission.chunk == 0 || admission.memory / admission.chunk < 2 {
            return Err(BadConfig("give memory for two chunks at least"));
        }
        if admission.memory / admission.chunk >= u64::from(u32::MAX) {
            return Err(BadConfig("give less memory or larger chunks"));
        }
        if self.request < admission.chunk {
            return Err(BadConfig("a read must be a chunk at least"));
        }
        let share = 0.0..1.0;
        let shares = [admission.margin, admission.reserve, admission.least];
        if !shares.iter().all(|part| share.contains(part)) {
            return Err(BadConfig("margin and reserve are shares below 1"));
        }
        match self.scheme {
            Scheme::Rounds(rounds) if rounds.round == 0 || rounds.depth > 1_000 => {
                Err(BadConfig("give rounds longer than 0 and at most 1000 groups"))
            }
            _ => Ok(()),
        }
    }
}
