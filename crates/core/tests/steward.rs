//! The steward against a naive model of a node: whatever programs and devices do, it never touches
//! what is in use, its books agree with the tiers, and the tiers stay within their capacity.

use std::collections::BTreeMap;

use forebay_core::steward::{
    Action, Event, HintChange, Placement, Reference, Steward, StewardConfig, TierConfig, log,
};
use forebay_core::unit::{Bytes, Ino, Tick, Tier};
use proptest::prelude::*;

const TIERS: [u64; 2] = [1_000, 4_000];

/// What may be fetched ahead: objects count with 4096 bytes more than they have.
const PREFETCH: u64 = 64 << 10;

#[derive(Debug, Clone, Copy, Default)]
struct File {
    home: Option<Tier>,
    bytes: u64,
    dirty: bool,
    busy: bool,
    pinned: bool,
}

/// What a node would be: the truth about residency, and the actions that it has not done yet.
struct Node {
    steward: Steward,
    now: Tick,
    files: BTreeMap<u64, File>,
    pending: Vec<Action>,
    log: String,
}

impl Node {
    fn new(policy: &str) -> Self {
        let tiers = TIERS.iter().map(|&capacity| TierConfig {
            capacity: Bytes(capacity),
            high: Bytes(capacity * 8 / 10),
            low: Bytes(capacity * 6 / 10),
        });
        let usual = StewardConfig::new(tiers.collect(), policy);
        let config = StewardConfig { batch: 8, prefetch: Bytes(PREFETCH), ..usual };
        let mut log = String::new();
        log::write_head(&config, &mut log);
        let steward = Steward::new(&config).expect("a sound configuration");
        Self { steward, now: Tick(0), files: BTreeMap::new(), pending: Vec::new(), log }
    }

    fn tell(&mut self, event: &Event) {
        let mut actions = Vec::new();
        self.steward.step(self.now, event, &mut actions);
        log::write_step(self.now, event, &actions, &mut self.log);
        for action in &actions {
            self.judge(*action);
        }
        // Nothing is owed for what is passed by or there already.
        actions.retain(|action| match *action {
            Action::Bypass { .. } | Action::Cancel { .. } => false,
            Action::Place { object, tier, bytes } => {
                let file = self.file(object);
                file.home != Some(tier) || file.bytes < bytes.0
            }
            _ => true,
        });
        self.pending.extend(actions);
        self.audit();
    }

    /// What an action may not be.
    fn judge(&self, action: Action) {
        let (object, from) = match action {
            Action::Evict { object, tier } | Action::Truncate { object, tier, .. } => {
                assert!(!self.file(object).dirty, "removes the only copy: {action:?}");
                (object, Some(tier))
            }
            Action::Demote { object, from, .. } | Action::Promote { object, from, .. } => {
                (object, Some(from))
            }
            Action::Flush { object } => {
                assert!(self.file(object).dirty, "flushes what is clean: {action:?}");
                (object, None)
            }
            Action::Place { object, tier, bytes } | Action::Fetch { object, tier, bytes } => {
                let here = self.file(object);
                let more = bytes.0 - if here.home == Some(tier) { here.bytes } else { 0 };
                let promised: u64 = self.pending.iter().map(|p| self.promised(*p, tier)).sum();
                let total = self.used(tier) + promised + more;
                assert!(more == 0 || total <= TIERS[tier.index()], "{action:?} overfills: {total}");
                return;
            }
            Action::Bypass { .. } | Action::Cancel { .. } => return,
        };
        let file = self.file(object);
        assert!(!file.busy && !file.pinned, "touches what is in use: {action:?} {file:?}");
        assert!(from.is_none() || file.home == from, "looks in the wrong place: {action:?}");
        let twice = self.pending.iter().any(|other| Self::object(*other) == object);
        assert!(!twice, "two things at once: {action:?} and {:?}", self.pending);
    }

    fn object(action: Action) -> Ino {
        match action {
            Action::Evict { object, .. }
            | Action::Truncate { object, .. }
            | Action::Demote { object, .. }
            | Action::Promote { object, .. }
            | Action::Flush { object }
            | Action::Place { object, .. }
            | Action::Fetch { object, .. }
            | Action::Cancel { object }
            | Action::Bypass { object } => object,
        }
    }

    fn promised(&self, action: Action, on: Tier) -> u64 {
        let file = self.file(Self::object(action));
        match action {
            Action::Demote { to, .. } | Action::Promote { to, .. } if to == on => file.bytes,
            Action::Place { tier, bytes, .. } | Action::Fetch { tier, bytes, .. } if tier == on => {
                bytes.0.saturating_sub(if file.home == Some(on) { file.bytes } else { 0 })
            }
            _ => 0,
        }
    }

    fn file(&self, object: Ino) -> File {
        self.files.get(&object.0).copied().unwrap_or_default()
    }

    fn used(&self, tier: Tier) -> u64 {
        self.files.values().filter(|f| f.home == Some(tier)).map(|f| f.bytes).sum()
    }

    fn audit(&self) {
        for (rank, tier) in self.steward.snapshot().iter().enumerate() {
            assert_eq!(tier.used.0, self.used(Tier(rank as u8)), "used bytes of tier {rank}");
            assert!(tier.leaving <= tier.used, "more leaves than there is: {tier:?}");
        }
    }

    /// Does one pending action, or fails at it.
    fn act(&mut self, which: usize, well: bool) {
        if self.pending.is_empty() {
            return;
        }
        let action = self.pending.remove(which % self.pending.len());
        let object = Self::object(action);
        let file = self.files.entry(object.0).or_default();
        let free = !file.busy && !file.pinned;
        let event = match action {
            Action::Bypass { .. } | Action::Cancel { .. } => return,
            Action::Fetch { tier, bytes, .. } => {
                if well {
                    (file.home, file.bytes) = (Some(tier), bytes.0);
                    self.tell(&Event::Resident { object, tier, bytes });
                }
                Event::Fetched { object }
            }
            Action::Place { tier, bytes, .. } if well => {
                file.home = Some(tier);
                file.bytes = bytes.0;
                Event::Resident { object, tier, bytes }
            }
            Action::Evict { .. } if well && free && !file.dirty => {
                file.home = None;
                file.bytes = 0;
                Event::Removed { object }
            }
            Action::Truncate { tier, keep, .. } if well && free && !file.dirty => {
                file.bytes = file.bytes.min(keep.0);
                Event::Resident { object, tier, bytes: Bytes(file.bytes) }
            }
            Action::Demote { to, .. } | Action::Promote { to, .. } if well && free => {
                file.home = Some(to);
                Event::Resident { object, tier: to, bytes: Bytes(file.bytes) }
            }
            Action::Flush { .. } if well => {
                file.dirty = false;
                Event::Clean { object }
            }
            Action::Flush { .. } => Event::Unflushed { object },
            _ => Event::Refused { object },
        };
        self.tell(&event);
    }

    /// A file that was removed takes its pending actions with it.
    fn unlink(&mut self, object: Ino) {
        let fetching = self.is_fetching(object);
        self.pending.retain(|action| Self::object(*action) != object);
        if let Some(file) = self.files.get_mut(&object.0) {
            (file.home, file.bytes, file.dirty) = (None, 0, false);
        }
        self.tell(&Event::Removed { object });
        if fetching {
            self.tell(&Event::Fetched { object });
        }
    }

    fn is_fetching(&self, object: Ino) -> bool {
        let fetches =
            |action: &Action| matches!(*action, Action::Fetch { object: of, .. } if of == object);
        self.pending.iter().any(fetches)
    }

    fn settle(&mut self) {
        for _ in 0..2_000 {
            while !self.pending.is_empty() {
                self.act(0, true);
            }
            let Some(due) = self.steward.next_deadline() else { return };
            if due > self.now.after(100 * Tick::SECOND) {
                return;
            }
            self.now = self.now.max(due);
            self.tell(&Event::Tick);
        }
        panic!("the steward does not come to rest");
    }
}

#[derive(Debug, Clone)]
enum Step {
    Want(u64, u64, bool),
    Access(u64, bool),
    Write(u64, u64),
    Busy(u64, bool),
    Pin(u64, bool),
    Flushed(u64),
    Unlink(u64),
    Pressure(u8, u64),
    Act(usize, bool),
    Sequence(u64, Vec<u64>),
    Sleep(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let object = 1..25u64;
    prop_oneof![
        4 => (object.clone(), 1..400u64, any::<bool>()).prop_map(|(o, s, p)| Step::Want(o, s, p)),
        4 => (object.clone(), any::<bool>()).prop_map(|(o, w)| Step::Access(o, w)),
        2 => (object.clone(), 1..300u64).prop_map(|(o, s)| Step::Write(o, s)),
        2 => (object.clone(), any::<bool>()).prop_map(|(o, b)| Step::Busy(o, b)),
        1 => (object.clone(), any::<bool>()).prop_map(|(o, b)| Step::Pin(o, b)),
        1 => object.clone().prop_map(Step::Flushed),
        1 => object.clone().prop_map(Step::Unlink),
        1 => (0..2u8, 1..500u64).prop_map(|(t, n)| Step::Pressure(t, n)),
        6 => (any::<usize>(), prop::bool::weighted(0.8)).prop_map(|(n, w)| Step::Act(n, w)),
        1 => (0..3u64, prop::collection::vec(object, 0..12)).prop_map(|(j, o)| Step::Sequence(j, o)),
        1 => (0..2 * Tick::SECOND).prop_map(Step::Sleep),
    ]
}

fn apply(node: &mut Node, step: Step) {
    node.now = node.now.after(1);
    match step {
        Step::Want(o, size, prefetch) => {
            let size = size.max(node.file(Ino(o)).bytes);
            if !node.pending.iter().any(|action| Node::object(*action) == Ino(o)) {
                node.tell(&Event::Wanted { object: Ino(o), size: Bytes(size), prefetch });
            }
        }
        Step::Access(o, write) => {
            let size = Bytes(node.file(Ino(o)).bytes);
            node.tell(&Event::Access { object: Ino(o), size, write });
        }
        Step::Write(o, bytes) => {
            // A writer grows what is there or creates on the first tier.
            let file = node.files.entry(o).or_default();
            let tier = file.home.unwrap_or(Tier(0));
            let arriving = node.pending.iter().any(|a| Node::object(*a) == Ino(o));
            if arriving && file.home.is_none() {
                return;
            }
            // Dirty first: between the two it must not look like a copy that may be dropped.
            file.dirty = true;
            node.tell(&Event::Dirty { object: Ino(o) });
            let file = node.files.entry(o).or_default();
            (file.home, file.bytes) = (Some(tier), bytes);
            let fetching = node.is_fetching(Ino(o));
            // What is said of its bytes answers what was asked about them.
            node.pending.retain(|action| match *action {
                Action::Place { object, .. } | Action::Fetch { object, .. } => object != Ino(o),
                Action::Truncate { object, keep, .. } => object != Ino(o) || bytes > keep.0,
                _ => true,
            });
            node.tell(&Event::Resident { object: Ino(o), tier, bytes: Bytes(bytes) });
            if fetching {
                node.tell(&Event::Fetched { object: Ino(o) });
            }
        }
        Step::Busy(o, busy) => {
            node.files.entry(o).or_default().busy = busy;
            let object = Ino(o);
            node.tell(&if busy { Event::Busy { object } } else { Event::Idle { object } });
        }
        Step::Pin(o, pin) => {
            node.files.entry(o).or_default().pinned = pin;
            let object = Ino(o);
            node.tell(&if pin { Event::Pinned { object } } else { Event::Unpinned { object } });
        }
        Step::Flushed(o) => {
            // The node's own write-back, not asked for by the steward.
            let flying = node.pending.contains(&Action::Flush { object: Ino(o) });
            if node.file(Ino(o)).dirty && !flying {
                node.files.entry(o).or_default().dirty = false;
                node.tell(&Event::Clean { object: Ino(o) });
            }
        }
        Step::Unlink(o) => node.unlink(Ino(o)),
        Step::Pressure(tier, need) => {
            node.tell(&Event::Pressure { tier: Tier(tier), need: Bytes(need) });
        }
        Step::Act(which, well) => node.act(which, well),
        Step::Sequence(job, objects) => {
            let reference = |object| Reference { object: Ino(object), size: Bytes(object * 13) };
            let references = objects.into_iter().map(reference).collect();
            node.tell(&Event::Hint { job, change: HintChange::Append(references) });
        }
        Step::Sleep(nanoseconds) => {
            node.now = node.now.after(nanoseconds);
            node.tell(&Event::Tick);
        }
    }
}

fn policies() -> impl Strategy<Value = &'static str> {
    prop::sample::select(forebay_core::policy::NAMES)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn steward_any_history_then_sound_and_at_rest_within_marks(
        policy in policies(),
        steps in prop::collection::vec(step(), 0..250),
    ) {
        let mut node = Node::new(policy);
        for step in steps {
            apply(&mut node, step);
        }
        // Let everybody go: what can leave must then have left down to the high mark.
        for object in node.files.keys().copied().collect::<Vec<_>>() {
            apply(&mut node, Step::Busy(object, false));
            apply(&mut node, Step::Pin(object, false));
        }
        node.settle();
        for (rank, tier) in node.steward.snapshot().iter().enumerate() {
            prop_assert!(tier.used.0 <= TIERS[rank] * 8 / 10, "tier {rank} is over: {tier:?}");
            prop_assert_eq!((tier.leaving, tier.incoming), (Bytes(0), Bytes(0)));
        }
        // And the log of it all gives the same actions again.
        let replay = log::replay(&node.log).expect("a log");
        prop_assert_eq!(replay.divergence, None);
    }
}

#[test]
fn eviction_of_a_dirty_file_then_flush_comes_first() {
    let config = StewardConfig::new(
        vec![TierConfig { capacity: Bytes(100), high: Bytes(80), low: Bytes(50) }],
        "lru",
    );
    let mut steward = Steward::new(&config).expect("sound");
    let mut actions = Vec::new();
    let object = Ino(1);
    let arrives = |object, bytes| Event::Resident { object, tier: Tier(0), bytes: Bytes(bytes) };
    steward.step(Tick(1), &arrives(object, 60), &mut actions);
    steward.step(Tick(2), &Event::Dirty { object }, &mut actions);
    steward.step(Tick(3), &arrives(Ino(2), 30), &mut actions);
    assert_eq!(actions, [Action::Flush { object }]);
    actions.clear();
    steward.step(Tick(4), &Event::Clean { object }, &mut actions);
    assert_eq!(actions, [Action::Evict { object, tier: Tier(0) }]);
}

#[test]
fn pressure_with_everything_open_then_room_is_made_at_the_last_close() {
    let config = StewardConfig::new(
        vec![TierConfig { capacity: Bytes(100), high: Bytes(100), low: Bytes(80) }],
        "lru",
    );
    let mut steward = Steward::new(&config).expect("sound");
    let mut actions = Vec::new();
    for object in [1, 2] {
        let object = Ino(object);
        steward.step(Tick(1), &Event::Busy { object }, &mut actions);
        let arrives = Event::Resident { object, tier: Tier(0), bytes: Bytes(50) };
        steward.step(Tick(1), &arrives, &mut actions);
    }
    steward.step(Tick(2), &Event::Pressure { tier: Tier(0), need: Bytes(10) }, &mut actions);
    assert_eq!(actions, []);
    assert_eq!(steward.next_deadline(), Some(Tick(2).after(Tick::SECOND)));
    steward.step(Tick(3), &Event::Idle { object: Ino(2) }, &mut actions);
    assert_eq!(actions, [Action::Evict { object: Ino(2), tier: Tier(0) }]);
    assert_eq!(steward.next_deadline(), None);
}

/// A tier of 100 bytes without marks, with objects of `bytes` each that nobody uses.
fn full_tier(bytes: &[u64]) -> Steward {
    let tier = TierConfig { capacity: Bytes(100), high: Bytes(100), low: Bytes(100) };
    let mut steward = Steward::new(&StewardConfig::new(vec![tier], "lru")).expect("sound");
    for (object, &bytes) in (1..).map(Ino).zip(bytes) {
        let arrives = Event::Resident { object, tier: Tier(0), bytes: Bytes(bytes) };
        assert_eq!(told(&mut steward, 1, &arrives), []);
    }
    steward
}

fn told(steward: &mut Steward, now: u64, event: &Event) -> Vec<Action> {
    let mut actions = Vec::new();
    steward.step(Tick(now), event, &mut actions);
    actions
}

const fn evict(object: u64) -> Action {
    Action::Evict { object: Ino(object), tier: Tier(0) }
}

const fn pressure(need: u64) -> Event {
    Event::Pressure { tier: Tier(0), need: Bytes(need) }
}

#[test]
fn victim_that_is_refused_when_it_is_clean_then_it_leaves_at_once_for_who_waits() {
    let mut steward = full_tier(&[100]);
    assert_eq!(told(&mut steward, 2, &pressure(10)), [evict(1)]);
    assert_eq!(told(&mut steward, 3, &Event::Refused { object: Ino(1) }), []);
    assert_eq!(told(&mut steward, 4, &Event::Clean { object: Ino(1) }), [evict(1)]);
    assert_eq!(told(&mut steward, 5, &Event::Removed { object: Ino(1) }), []);
    assert_eq!(steward.next_deadline(), None, "nothing is left of the pause");
}

#[test]
fn victim_that_is_refused_when_a_writer_waits_then_the_next_one_goes_at_once() {
    let mut steward = full_tier(&[50, 50]);
    assert_eq!(told(&mut steward, 2, &pressure(10)), [evict(1)]);
    assert_eq!(told(&mut steward, 3, &Event::Refused { object: Ino(1) }), [evict(2)]);
    assert_eq!(told(&mut steward, 4, &Event::Removed { object: Ino(2) }), []);
    assert_eq!(told(&mut steward, 2 * Tick::SECOND, &Event::Tick), [], "there is room");
}

#[test]
fn pressure_when_an_open_file_has_grown_without_a_word_then_others_leave_all_the_same() {
    let mut steward = full_tier(&[10, 10]);
    assert_eq!(told(&mut steward, 2, &pressure(15)), [evict(1), evict(2)]);
    assert_eq!(told(&mut steward, 3, &Event::Removed { object: Ino(1) }), []);
    assert_eq!(told(&mut steward, 4, &pressure(5)), [], "the other one is on its way");
}

#[test]
fn pressure_when_no_writer_waits_any_more_then_nothing_leaves_for_it() {
    let mut steward = full_tier(&[100]);
    told(&mut steward, 2, &Event::Busy { object: Ino(1) });
    assert_eq!(told(&mut steward, 3, &pressure(10)), []);
    assert_eq!(told(&mut steward, 4, &pressure(0)), []);
    assert_eq!(steward.next_deadline(), None);
    assert_eq!(told(&mut steward, 5, &Event::Idle { object: Ino(1) }), []);
}

#[test]
fn flush_that_fails_then_others_leave_and_it_is_not_asked_for_again_and_again() {
    let mut steward = full_tier(&[50, 50]);
    let object = Ino(1);
    told(&mut steward, 2, &Event::Dirty { object });
    assert_eq!(told(&mut steward, 3, &pressure(10)), [Action::Flush { object }]);
    assert_eq!(told(&mut steward, 4, &Event::Unflushed { object }), [evict(2)]);
    assert_eq!(told(&mut steward, 5, &Event::Refused { object: Ino(2) }), []);
    let mut flushes = 0;
    for second in 1..=55 {
        for action in told(&mut steward, second * Tick::SECOND, &Event::Tick) {
            match action {
                Action::Flush { .. } => flushes += 1,
                _ => drop(told(
                    &mut steward,
                    second * Tick::SECOND,
                    &Event::Refused { object: Ino(2) },
                )),
            }
        }
    }
    assert_eq!(flushes, 0);
    let now = 55 * Tick::SECOND + 1;
    assert_eq!(told(&mut steward, now, &Event::Unflushed { object }), [], "nobody asked for that");
    assert!(told(&mut steward, now, &Event::Clean { object }).contains(&evict(1)));
}

#[test]
fn promotion_whose_victims_would_evict_it_then_it_is_only_evicted() {
    let tier = |high| TierConfig { capacity: Bytes(500), high: Bytes(high), low: Bytes(high) };
    let config = StewardConfig::new(vec![tier(100), tier(120)], "lru");
    let mut steward = Steward::new(&config).expect("sound");
    let mut actions = Vec::new();
    for (object, on, bytes) in [(1, 0, 90), (2, 1, 100)] {
        let object = Ino(object);
        let arrives = Event::Resident { object, tier: Tier(on), bytes: Bytes(bytes) };
        steward.step(Tick(1), &arrives, &mut actions);
    }
    // The second access would take it up; for what would have to come down there is no room but its.
    for _ in 0..2 {
        let access = Event::Access { object: Ino(2), size: Bytes(100), write: false };
        steward.step(Tick(2), &access, &mut actions);
    }
    let moves = actions.iter().filter(|action| match **action {
        Action::Evict { object, .. } | Action::Promote { object, .. } => object == Ino(2),
        _ => false,
    });
    assert!(moves.count() <= 1, "{actions:?}");
}

/// A file's header and the rest of its last block are known when it has come, not when it asks. Were no
/// room made for them, every newcomer to a full tier would pass the high mark, and down to the low one
/// everything would leave.
#[test]
fn newcomers_that_take_a_block_more_than_they_ask_for_then_the_tier_stays_full() {
    const LARGEST: u64 = 128 << 10;
    let tier = TierConfig::new(Bytes(64 << 20));
    let (high, low) = (tier.high.0, tier.low.0);
    for policy in ["lru", "s3fifo", "auto"] {
        let config = StewardConfig::new(vec![tier.clone()], policy);
        let mut steward = Steward::new(&config).expect("a sound configuration");
        let mut held = BTreeMap::new();
        let mut least = u64::MAX;
        for at in 0..6_000u64 {
            let object = Ino(at);
            let size = LARGEST >> (at * at % 31 % 6);
            let mut events = vec![
                Event::Access { object, size: Bytes(size), write: false },
                Event::Wanted { object, size: Bytes(size), prefetch: false },
            ];
            let mut next = 0;
            while let Some(event) = events.get(next).cloned() {
                next += 1;
                let mut actions = Vec::new();
                steward.step(Tick(at), &event, &mut actions);
                for action in actions {
                    match action {
                        Action::Place { object, tier, .. } => {
                            held.insert(object, size + 4096);
                            let bytes = Bytes(size + 4096);
                            events.push(Event::Resident { object, tier, bytes });
                        }
                        Action::Evict { object, .. } => {
                            held.remove(&object);
                            events.push(Event::Removed { object });
                        }
                        other => panic!("{policy}: {other:?}"),
                    }
                }
            }
            let sum = held.values().sum::<u64>();
            assert!(sum <= high, "{policy}: {sum} of {high}");
            if at > 3_000 {
                least = least.min(sum);
            }
        }
        assert!(least > high - 3 * LARGEST && least > low, "{policy}: {least} of {low} to {high}");
    }
}

#[test]
fn admission_larger_than_the_first_tier_then_the_second_takes_it() {
    let tiers = vec![TierConfig::new(Bytes(100)), TierConfig::new(Bytes(1_000))];
    let mut steward = Steward::new(&StewardConfig::new(tiers, "lru")).expect("sound");
    let mut actions = Vec::new();
    let place = steward.admit(Tick(1), Ino(7), Bytes(500), false, &mut actions);
    assert_eq!(place, Placement::Tier(Tier(1), Bytes(500)));
    let place = steward.admit(Tick(1), Ino(8), Bytes(5_000), false, &mut actions);
    assert_eq!(place, Placement::Bypass);
}

#[test]
fn log_cut_or_foreign_then_an_error_that_names_the_line() {
    assert!(log::replay("").is_err());
    let mut text = String::new();
    let config = StewardConfig::new(vec![TierConfig::new(Bytes(100))], "lru");
    log::write_head(&config, &mut text);
    log::write_step(Tick(1), &Event::Tick, &[], &mut text);
    assert_eq!(log::replay(&text).expect("sound").events, 1);
    text.push_str("2 acce");
    let error = log::replay(&text).expect_err("a torn line");
    assert!(error.to_string().starts_with("line 5:"), "{error}");
}

#[test]
fn log_with_another_action_then_the_divergence_is_shown() {
    let mut text = String::new();
    let config = StewardConfig::new(vec![TierConfig::new(Bytes(100))], "lru");
    log::write_head(&config, &mut text);
    let wanted = Event::Wanted { object: Ino(1), size: Bytes(10), prefetch: false };
    log::write_step(Tick(1), &wanted, &[Action::Bypass { object: Ino(1) }], &mut text);
    let divergence = log::replay(&text).expect("a log").divergence.expect("another action");
    assert_eq!(divergence.recorded, "> bypass 1\n");
    assert_eq!(divergence.replayed, "> place 1 0 10\n");
}
