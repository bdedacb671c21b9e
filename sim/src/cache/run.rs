//! One trace against one policy.

use forebay_core::policy::replay::{Cache, Counts};
use forebay_core::policy::{Hint, PolicyConfig, UnknownPolicy, by_name};

use super::trace::Trace;
use crate::rng::Rng;

/// The job under which the simulator announces a trace.
const JOB: u64 = 0;

/// What a run is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Name of the policy.
    pub policy: String,
    /// The policy's options, the capacity among them.
    pub config: PolicyConfig,
    /// Requests known ahead; `None` knows all.
    pub window: Option<u64>,
    /// Largest distance, in requests, by which a hinted reference is out of place.
    pub displaced: u64,
    /// Share of references that the hints leave out.
    pub missing: f64,
    /// Seed of what is displaced and left out.
    pub seed: u64,
}

impl Options {
    /// The policy with whole and correct knowledge, in `capacity` bytes.
    #[must_use]
    pub fn new(policy: &str, capacity: u64) -> Self {
        Self {
            policy: policy.to_owned(),
            config: PolicyConfig::new(capacity),
            window: None,
            displaced: 0,
            missing: 0.0,
            seed: 1,
        }
    }
}

/// What a policy is told of the future, as far as it may see it.
#[derive(Debug)]
pub struct Oracle {
    hinted: Vec<u64>,
    window: Option<u64>,
    told: usize,
}

impl Oracle {
    /// The hints for a trace, by the numbers of its files.
    #[must_use]
    pub fn new(trace: &Trace, options: &Options) -> Self {
        let numbers = &trace.numbers().of;
        if options.displaced == 0 && options.missing == 0.0 {
            let hinted = numbers.iter().map(|number| u64::from(*number)).collect();
            return Self { hinted, window: options.window, told: 0 };
        }
        let mut rng = Rng::new(options.seed);
        let mut places: Vec<(u64, u64)> = Vec::with_capacity(numbers.len());
        for (at, number) in numbers.iter().enumerate() {
            if options.missing > 0.0 && rng.unit() < options.missing {
                continue;
            }
            let moved = if options.displaced == 0 { 0 } else { rng.between(0, options.displaced) };
            places.push((at as u64 + moved, u64::from(*number)));
        }
        // Stable: references that are not displaced keep their order.
        places.sort_by_key(|(place, _)| *place);
        let hinted = places.into_iter().map(|(_, number)| number).collect();
        Self { hinted, window: options.window, told: 0 }
    }

    /// The hints for a trace, none for a policy that does not look ahead.
    fn wanted(trace: &Trace, options: &Options) -> Result<Self, UnknownPolicy> {
        let looks_ahead = by_name(&options.policy, &options.config)?.looks_ahead();
        Ok(if looks_ahead { Self::new(trace, options) } else { Self::of(Vec::new()) })
    }

    /// Hints of somebody's own making, all at once.
    #[must_use]
    pub fn of(hinted: Vec<u64>) -> Self {
        Self { hinted, window: None, told: 0 }
    }

    /// Tells the cache what may be known before request `t` is served.
    pub fn tell(&mut self, cache: &mut Cache, t: u64) {
        let known = match self.window {
            None => self.hinted.len(),
            Some(0) => 0,
            Some(window) => {
                (t.saturating_add(window).saturating_add(1) as usize).min(self.hinted.len())
            }
        };
        if known > self.told {
            let objects = &self.hinted[self.told..known];
            cache.policy().hint(&Hint::Append { job: JOB, objects });
            self.told = known;
            if known == self.hinted.len() {
                cache.policy().hint(&Hint::Close { job: JOB });
            }
        }
    }
}

/// What every request met.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// A digit for each request: '1' if the whole file was resident.
    pub hit_vector: String,
    /// Files that left for others: request (from 0) and file.
    pub evictions: Vec<(u64, u64)>,
}

/// Counts a trace.
///
/// # Errors
/// [`UnknownPolicy`].
pub fn count(trace: &Trace, options: &Options) -> Result<Counts, UnknownPolicy> {
    count_told(trace, options, &mut Oracle::wanted(trace, options)?)
}

/// Counts a trace and records every request.
///
/// # Errors
/// [`UnknownPolicy`].
pub fn record(trace: &Trace, options: &Options) -> Result<(Counts, Record), UnknownPolicy> {
    let mut record = Record::default();
    let mut oracle = Oracle::wanted(trace, options)?;
    let counts = run(trace, options, &mut oracle, |t, hit, cache, ids| {
        record.hit_vector.push(if hit { '1' } else { '0' });
        let gone = cache.departed().iter().filter(|victim| !victim.dead && victim.keep == 0);
        record.evictions.extend(gone.map(|victim| (t, ids[victim.object as usize])));
    })?;
    Ok((counts, record))
}

/// Counts a trace for a policy that is told what the oracle says.
///
/// # Errors
/// [`UnknownPolicy`].
pub fn count_told(
    trace: &Trace,
    options: &Options,
    oracle: &mut Oracle,
) -> Result<Counts, UnknownPolicy> {
    run(trace, options, oracle, |_, _, _, _| {})
}

fn run(
    trace: &Trace,
    options: &Options,
    oracle: &mut Oracle,
    mut each: impl FnMut(u64, bool, &Cache, &[u64]),
) -> Result<Counts, UnknownPolicy> {
    let policy = by_name(&options.policy, &options.config)?;
    let numbers = if policy.heeds_numbers() { trace.numbers() } else { trace.arrivals() };
    let mut cache = Cache::with(policy, options.config.capacity).numbered(numbers.ids.len());
    let mut soon = Vec::with_capacity(Cache::TOGETHER);
    for (t, (request, number)) in trace.requests.iter().zip(&numbers.of).enumerate() {
        if t % Cache::TOGETHER == 0 {
            soon.clear();
            soon.extend(numbers.of[t..].iter().take(Cache::TOGETHER).map(|n| u64::from(*n)));
            cache.warm(&soon);
        }
        oracle.tell(&mut cache, t as u64);
        let outcome = cache.request(u64::from(*number), request.size);
        each(t as u64, outcome.is_hit(), &cache, &numbers.ids);
    }
    Ok(cache.counts())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::bounds::foo as lower_bound;
    use crate::cache::generate::{Kind, generate};

    fn missed(trace: &Trace, options: &Options) -> f64 {
        count(trace, options).expect("a policy").miss_bytes as f64
    }

    #[test]
    fn every_policy_on_every_kind_then_never_below_the_bound() {
        for kind in [Kind::RoundRobin, Kind::Zipf, Kind::Epochs, Kind::Workflow] {
            let trace = generate(kind, 60, 1_500, 5);
            let capacity = trace.footprint() / 5;
            let bound = lower_bound(&trace, capacity);
            for policy in forebay_core::policy::NAMES {
                let counts = count(&trace, &Options::new(policy, capacity)).expect("a policy");
                let total: u64 = trace.requests.iter().map(|request| request.size).sum();
                assert_eq!(counts.hit_bytes + counts.miss_bytes, total, "{policy}");
                assert!(counts.miss_bytes >= bound, "{policy} on {kind:?}");
            }
            let min = missed(&trace, &Options::new("min", capacity));
            assert!(min <= 1.02 * bound as f64, "{kind:?}: {min} against {bound}");
        }
    }

    #[test]
    fn longer_windows_then_fewer_bytes_up_to_the_bound() {
        let trace = generate(Kind::Epochs, 200, 4_000, 5);
        let capacity = trace.footprint() / 3;
        let bound = lower_bound(&trace, capacity) as f64;
        let windowed = |window| {
            let options = Options { window: Some(window), ..Options::new("min", capacity) };
            missed(&trace, &options) / bound
        };
        let [none, short, long, whole] = [0, 50, 400, 4_000].map(windowed);
        assert!(none > short && short > long && long >= whole, "{none} {short} {long} {whole}");
        assert!(long < 1.03 && whole < 1.01, "{long} {whole}");
    }

    #[test]
    fn short_windows_then_hardly_worse_than_none() {
        for kind in [Kind::Zipf, Kind::Epochs, Kind::Workflow] {
            let trace = generate(kind, 400, 8_000, 5);
            for share in [30, 10, 3] {
                let capacity = trace.footprint() / share;
                let windowed = |window| {
                    let options = Options { window: Some(window), ..Options::new("min", capacity) };
                    missed(&trace, &options)
                };
                let none = windowed(0);
                for window in [3, 10, 30, 100, 300] {
                    let ratio = windowed(window) / none;
                    assert!(ratio <= 1.05, "{kind:?}, 1/{share}, {window}: {ratio}");
                }
            }
        }
    }

    #[test]
    fn wrong_hints_then_worse_than_right_ones_and_better_than_none() {
        for kind in [Kind::Zipf, Kind::Epochs, Kind::Workflow] {
            let trace = generate(kind, 300, 6_000, 5);
            let capacity = trace.footprint() / 10;
            let min = Options::new("min", capacity);
            let right = missed(&trace, &min);
            let lru = missed(&trace, &Options::new("lru", capacity));
            // Without hints it is S3-FIFO, which is behind LRU on the workflow.
            let alone = missed(&trace, &Options { window: Some(0), ..min.clone() });
            for (displaced, missing, limit) in [(20, 0.0, lru), (200, 0.0, alone), (0, 0.3, lru)] {
                let wrong = missed(&trace, &Options { displaced, missing, ..min.clone() });
                let what = format!("{kind:?}, {displaced}, {missing}: {right} {wrong} {limit}");
                assert!(0.99 * right <= wrong && wrong < limit, "{what}");
            }
        }
    }

    #[test]
    fn loops_over_few_files_then_the_portfolio_is_near_the_better_member() {
        let (mut sum, mut members) = (0.0, [0.0, 0.0]);
        for seed in 0..24 {
            let trace = generate(Kind::RoundRobin, 3 + seed % 4, 400, seed);
            let capacity = 256 * crate::cache::generate::MB;
            let bound = lower_bound(&trace, capacity) as f64;
            let of = |policy| missed(&trace, &Options::new(policy, capacity)) / bound / 24.0;
            sum += of("portfolio");
            members[0] += of("heuristic");
            members[1] += of("min-whole");
        }
        let better = members[0].min(members[1]);
        assert!(sum <= 1.02 * better, "{sum} against {members:?}");
    }

    #[test]
    fn request_cost_weighed_then_less_of_both_together() {
        let trace = generate(Kind::Zipf, 300, 6_000, 5);
        let capacity = trace.footprint() / 10;
        let request_cost = 500_000;
        let cost = |weighed: u64| {
            let mut options = Options::new("min-whole", capacity);
            options.config.request_cost = weighed;
            let counts = count(&trace, &options).expect("a policy");
            counts.miss_bytes + counts.misses * request_cost
        };
        let (plain, weighed) = (cost(0), cost(request_cost));
        assert!(weighed * 100 < plain * 95, "{weighed} against {plain}");
        // A cost too small to matter gives the order of bytes alone.
        let slightly = cost(1);
        assert!(slightly.abs_diff(plain) * 50 < plain, "{slightly} against {plain}");
    }
}
