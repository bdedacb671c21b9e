//! Fetching ahead, judged from outside: a program that follows its sequence or departs from it, a
//! tier, and the steward between them.

use std::collections::{HashMap, VecDeque};

use forebay_core::policy::NAMES;
use forebay_core::steward::{
    Action, Event, HintChange, Reference, Steward, StewardConfig, TierConfig,
};
use forebay_core::unit::{Bytes, Ino, Tick, Tier};
use proptest::prelude::*;

/// What an object counts for besides its bytes.
const OVERHEAD: u64 = 4096;
const TIER: Tier = Tier(0);

/// A node with one tier that does at once whatever it is asked to.
struct Node {
    steward: Steward,
    now: Tick,
    budget: u64,
    resident: HashMap<u64, u64>,
    sizes: HashMap<u64, u64>,
    /// Fetched ahead, or being, and neither used nor gone.
    outstanding: HashMap<u64, u64>,
    fetched: u64,
    fetches: u64,
    /// What the program will access, and how far it is; only while it follows the sequence.
    future: Option<(Vec<u64>, usize)>,
    /// Fetches that have not ended yet, as many as are held back.
    pending: Vec<(u64, u64)>,
    held_back: usize,
}

impl Node {
    fn new(policy: &str, capacity: u64, budget: u64) -> Self {
        let capacity = Bytes(capacity);
        // A step between mark and capacity lets newcomers in while victims leave.
        let room = Bytes(capacity.0 + capacity.0 / 4);
        let tier = TierConfig { capacity: room, high: capacity, low: capacity };
        let mut config = StewardConfig::new(vec![tier], policy);
        config.prefetch = Bytes(budget);
        config.options.chunk = 1;
        Self {
            steward: Steward::new(&config).expect("sound"),
            now: Tick(0),
            budget,
            resident: HashMap::new(),
            sizes: HashMap::new(),
            outstanding: HashMap::new(),
            fetched: 0,
            fetches: 0,
            future: None,
            pending: Vec::new(),
            held_back: 0,
        }
    }

    fn hint(&mut self, job: u64, sequence: &[(u64, u64)]) {
        self.sizes.extend(sequence.iter().copied());
        let reference = |&(object, size)| Reference { object: Ino(object), size: Bytes(size) };
        let references = sequence.iter().map(reference).collect();
        self.tell(&Event::Hint { job, change: HintChange::Append(references) });
        self.tell(&Event::Hint { job, change: HintChange::Close });
    }

    /// When the program needs an object next, in accesses from now.
    fn next_use(&self, object: u64) -> Option<usize> {
        let (sequence, at) = self.future.as_ref()?;
        sequence[*at..].iter().position(|other| *other == object)
    }

    fn tell(&mut self, event: &Event) {
        let demand = matches!(event, Event::Wanted { .. });
        let mut events = VecDeque::from([event.clone()]);
        while let Some(event) = events.pop_front() {
            self.now = self.now.after(1);
            let mut actions = Vec::new();
            self.steward.step(self.now, &event, &mut actions);
            if !demand {
                self.judge(&actions);
            }
            for action in actions {
                self.act(action, &mut events);
            }
            let known: u64 = self.steward.jobs().iter().map(|job| job.outstanding.0).sum();
            let counted: u64 = self.outstanding.values().map(|bytes| bytes + OVERHEAD).sum();
            assert!(known <= self.budget, "{known} of {}", self.budget);
            // Where nothing is given up, both books agree.
            assert!(
                self.future.is_none() || !events.is_empty() || counted == known,
                "{counted}, {known}"
            );
            if self.pending.len() > self.held_back {
                let (object, bytes) = self.pending.remove(0);
                self.resident.insert(object, bytes);
                let object = Ino(object);
                events.push_back(Event::Resident { object, tier: TIER, bytes: Bytes(bytes) });
                events.push_back(Event::Fetched { object });
            }
        }
    }

    /// Whatever leaves without a demand leaves for something that is needed sooner.
    fn judge(&self, actions: &[Action]) {
        let Some((sequence, at)) = &self.future else { return };
        for action in actions {
            let (Action::Evict { object, .. } | Action::Truncate { object, .. }) = *action else {
                continue;
            };
            let Some(needed) = self.next_use(object.0) else { continue };
            let lacking = |other: &u64| self.resident.get(other) < self.sizes.get(other);
            let first = sequence[*at..].iter().position(lacking);
            let held = first.is_some_and(|first| first < needed);
            assert!(held, "{object} is needed in {needed}, what it leaves for in {first:?}");
        }
    }

    fn act(&mut self, action: Action, events: &mut VecDeque<Event>) {
        match action {
            Action::Evict { object, .. } => {
                self.resident.remove(&object.0);
                self.outstanding.remove(&object.0);
                events.push_back(Event::Removed { object });
            }
            Action::Truncate { object, keep, .. } => {
                self.resident.insert(object.0, keep.0);
                events.push_back(Event::Resident { object, tier: TIER, bytes: keep });
            }
            Action::Fetch { object, bytes, .. } => {
                let before = self.resident.get(&object.0).copied().unwrap_or(0);
                self.fetched += bytes.0.saturating_sub(before);
                self.fetches += 1;
                self.outstanding.insert(object.0, bytes.0.saturating_sub(before));
                self.pending.push((object.0, bytes.0));
            }
            Action::Place { object, bytes, .. } => {
                self.resident.insert(object.0, bytes.0);
                events.push_back(Event::Resident { object, tier: TIER, bytes });
                // Who waits fetches it now; the fetch ahead has nothing left to do.
                let before = self.pending.len();
                self.pending.retain(|(fetching, _)| *fetching != object.0);
                if self.pending.len() < before {
                    events.push_back(Event::Fetched { object });
                }
            }
            Action::Cancel { .. } | Action::Bypass { .. } => {}
            other => panic!("not on one clean tier: {other:?}"),
        }
    }

    /// The program opens a file, reads it and closes it; says whether it was resident.
    fn access(&mut self, object: u64) -> bool {
        let size = Bytes(*self.sizes.entry(object).or_insert(1_000));
        if let Some((sequence, at)) = &mut self.future {
            assert_eq!(sequence[*at], object, "the test departs from what it told");
            *at += 1;
        }
        self.outstanding.remove(&object);
        let object = Ino(object);
        self.tell(&Event::Access { object, size, write: false });
        let hit = self.resident.get(&object.0).is_some_and(|bytes| *bytes >= size.0);
        if !hit {
            self.tell(&Event::Wanted { object, size, prefetch: false });
        }
        self.tell(&Event::Busy { object });
        self.tell(&Event::Idle { object });
        hit
    }
}

/// Epochs over `files` files in different orders.
fn epochs(files: u64, count: u64) -> Vec<u64> {
    let mut sequence = Vec::new();
    for epoch in 0..count {
        let mut order: Vec<u64> = (1..=files).collect();
        order.sort_by_key(|file| {
            (file * 0x9e37_79b9 + epoch).wrapping_mul(0xff51_afd7_ed55_8ccd) >> 20
        });
        sequence.extend(order);
    }
    sequence
}

fn sized(sequence: &[u64], size: u64) -> Vec<(u64, u64)> {
    sequence.iter().map(|object| (*object, size)).collect()
}

#[test]
fn epochs_over_twice_the_tier_then_every_file_is_there_before_its_open() {
    let sequence = epochs(100, 6);
    let mut node = Node::new("min", 500_000, 100_000);
    node.hint(1, &sized(&sequence, 10_000));
    node.future = Some((sequence.clone(), 0));
    let hits = sequence.iter().filter(|object| node.access(**object)).count();
    assert_eq!(hits, sequence.len());
    // And what stays from epoch to epoch is most of what the best policy would keep.
    let moved = node.fetched / 10_000;
    assert!(moved <= 600 - 5 * 35, "{moved} of 600 were fetched");
}

#[test]
fn hints_that_never_come_true_then_silence_after_a_budget_and_no_action_more() {
    for policy in ["min", "lru", "sieve"] {
        let mut node = Node::new(policy, 500_000, 100_000);
        node.hint(1, &sized(&(1..=5_000).collect::<Vec<_>>(), 5_000));
        for object in 10_000..12_000 {
            node.access(object);
        }
        assert!(node.fetched <= 100_000, "{policy}: {} bytes for nothing", node.fetched);
        let fetches = node.fetches;
        for object in 10_000..12_000 {
            node.access(object);
        }
        assert_eq!(node.fetches, fetches, "{policy}");
    }
}

#[test]
fn job_that_leaves_out_nearly_all_then_falls_silent_and_comes_back_when_followed() {
    let sequence: Vec<u64> = (1..=20_000).collect();
    let mut node = Node::new("min", 2_000_000, 200_000);
    node.hint(1, &sized(&sequence, 5_000));
    // One in forty: hardly anything that is fetched is used.
    for object in (1..=10_000).step_by(40) {
        node.access(object);
    }
    let job = node.steward.jobs()[0];
    let silent = job.silent || !job.progress.trusted;
    assert!(silent, "{job:?}");
    assert!(node.fetched <= 3 * 200_000, "{} bytes for nothing", node.fetched);
    let hits = (10_001..=11_000).filter(|object| node.access(*object)).count();
    assert!(hits > 800, "{hits} of 1000");
}

#[test]
fn program_that_skips_a_part_then_the_fetches_catch_up() {
    let sequence: Vec<u64> = (1..=10_000).collect();
    for to in [200, 4_000] {
        let mut node = Node::new("min", 500_000, 100_000);
        node.hint(1, &sized(&sequence, 5_000));
        for object in 1..=100 {
            assert!(node.access(object));
        }
        let mut hits = Vec::new();
        for object in to..to + 100 {
            hits.push(node.access(object));
        }
        assert!(hits[20..].iter().all(|hit| *hit), "from {to} on: {hits:?}");
    }
}

#[test]
fn program_that_repeats_and_reorders_then_nearly_all_is_there() {
    let sequence = epochs(200, 4);
    let mut node = Node::new("min", 1_000_000, 400_000);
    node.hint(1, &sized(&sequence, 10_000));
    let (mut hits, mut opens) = (0, 0);
    for batch in sequence.chunks(8) {
        for object in batch.iter().rev() {
            // As a program does that looks at the head first.
            for _ in 0..2 {
                hits += u64::from(node.access(*object));
                opens += 1;
            }
        }
    }
    assert!(hits * 100 >= opens * 97, "{hits} of {opens}");
}

#[test]
fn two_jobs_one_idle_then_the_other_is_fetched_for() {
    let mut node = Node::new("min", 1_000_000, 200_000);
    node.hint(1, &sized(&(1..=500).collect::<Vec<_>>(), 5_000));
    node.hint(2, &sized(&(1_001..=1_500).collect::<Vec<_>>(), 5_000));
    let hits = (1_001..=1_500).filter(|object| node.access(*object)).count();
    assert_eq!(hits, 500);
}

#[test]
fn withdrawn_job_then_its_fetches_are_cancelled_and_its_budget_is_free() {
    let mut node = Node::new("min", 1_000_000, 100_000);
    node.held_back = 100;
    node.hint(1, &sized(&(1..=500).collect::<Vec<_>>(), 5_000));
    assert!(node.fetches > 2);
    let mut actions = Vec::new();
    let withdraw = Event::Hint { job: 1, change: HintChange::Withdraw };
    node.steward.step(Tick(99), &withdraw, &mut actions);
    let cancelled = actions.iter().filter(|a| matches!(a, Action::Cancel { .. })).count();
    assert_eq!(cancelled as u64, node.fetches);
    assert!(node.steward.jobs().is_empty());
    let counts = node.steward.fetches_ahead();
    assert_eq!((counts.fetched, counts.used), (node.fetches, 0));
}

#[test]
fn open_of_what_is_being_fetched_then_takes_the_room_over() {
    let mut node = Node::new("min", 1_000_000, 100_000);
    node.held_back = 100;
    node.hint(1, &sized(&[1, 2, 3], 5_000));
    let mut actions = Vec::new();
    let (object, size) = (Ino(1), Bytes(5_000));
    node.steward.step(Tick(50), &Event::Access { object, size, write: false }, &mut actions);
    node.steward.step(Tick(51), &Event::Wanted { object, size, prefetch: false }, &mut actions);
    assert!(actions.contains(&Action::Place { object, tier: TIER, bytes: size }), "{actions:?}");
    let arrives = Event::Resident { object, tier: TIER, bytes: size };
    for event in [arrives, Event::Fetched { object }] {
        node.steward.step(Tick(52), &event, &mut actions);
    }
    let counts = node.steward.fetches_ahead();
    assert_eq!((counts.used, counts.late, counts.wasted), (1, 1, 0));
    assert_eq!(node.steward.snapshot()[0].used, size);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// The judge in `Node::tell` fails if anything leaves for what is needed later, or the budget is
    /// exceeded.
    #[test]
    fn fetches_ahead_any_policy_and_sequence_then_no_harm_within_the_budget(
        policy in prop::sample::select(NAMES),
        sizes in prop::collection::vec(1..60_000u64, 2..40),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 1..200),
        budget in 0..150_000u64,
        held_back in 0..6usize,
    ) {
        let sequence: Vec<u64> = picks.iter().map(|pick| pick.index(sizes.len()) as u64).collect();
        let sized: Vec<_> = sequence.iter().map(|&o| (o, sizes[o as usize])).collect();
        let mut node = Node::new(policy, 200_000, budget);
        node.held_back = held_back;
        node.future = Some((sequence.clone(), 0));
        node.hint(1, &sized);
        for object in sequence {
            node.access(object);
        }
        let job = node.steward.jobs()[0];
        prop_assert_eq!(job.progress.followed as usize, picks.len());
        prop_assert_eq!(job.outstanding, Bytes(0));
        prop_assert!(budget > 0 || node.fetches == 0);
    }
}
