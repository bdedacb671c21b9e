use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;
const TTL: u64 = 500 * MS;

fn name(n: u8) -> Fact {
    Fact::Name(1, Arc::new([b'a' + n]))
}

fn key_of(partition: u16, lease: u64) -> LeaseKey {
    LeaseKey { partition, lease }
}

/// Grants one fact.
fn grant(grants: &mut Grants, now: Tick, key: LeaseKey, fact: Fact, looked_up: bool) -> bool {
    grants.grant(now, key, &mut [(fact, TTL)], looked_up)
}

fn sent(grants: &mut Grants, now: Tick, key: LeaseKey, fact: Fact) {
    grants.sent(now, key, &[(fact, TTL)]);
}

fn at(ms: u64) -> Tick {
    Tick(ms * MS)
}

/// A name in one of two directories, each in a partition of its own.
fn entry(n: u8) -> Fact {
    Fact::Name(7 + u64::from(n / 4), Arc::new([b'a' + n % 4]))
}

fn partition_of(fact: &Fact) -> u16 {
    match fact {
        Fact::Name(dir, _) => u16::try_from(*dir).unwrap(),
        _ => 7,
    }
}

fn name_in(dir: u64, name: &[u8]) -> EntryName<'_> {
    EntryName { dir, name }
}

fn name_of(fact: &Fact) -> EntryName<'_> {
    match fact {
        Fact::Name(dir, name) | Fact::Directory(dir, name) => EntryName { dir: *dir, name },
        Fact::Attributes(_) => panic!("no name"),
    }
}

/// What is on its way to the kernel.
enum Answer {
    /// Facts of a partition under a lease, with their times, each for something in the kernel's cache.
    Facts(LeaseKey, Vec<(Fact, u64)>, Vec<usize>),
    /// A rename, what was granted for it, and whether the new name is to be forgotten.
    Renamed(Fact, Fact, Option<(u64, Fact, u64)>, bool),
}

struct Leased {
    number: u64,
    held: bool,
    wanted: bool,
}

/// The kernel, the leases and the other node, as they are in the world.
struct World {
    grants: Grants,
    now: u64,
    leases: [Leased; 2],
    answers: Vec<Answer>,
    /// What the kernel's cache has under which name.
    kernel: std::collections::BTreeMap<Fact, usize>,
    /// Until when each is kept. What has no name in the cache is of no effect.
    ends: Vec<u64>,
    /// What the kernel has not been told to forget yet.
    notices: Vec<(u16, u64, Vec<Fact>)>,
}

impl World {
    fn lease(&mut self, partition: u16) -> &mut Leased {
        &mut self.leases[usize::from(partition - 7)]
    }

    /// What the cache has of a fact, from now on.
    fn cached(&mut self, fact: &Fact) -> usize {
        let ends = &mut self.ends;
        *self.kernel.entry(fact.clone()).or_insert_with(|| {
            ends.push(0);
            ends.len() - 1
        })
    }

    fn is_renaming(&self, fact: &Fact) -> bool {
        let is_it = |answer: &Answer| matches!(answer, Answer::Renamed(from, ..) if from == fact);
        self.answers.iter().any(is_it)
    }

    /// The kernel asks; true if it may keep something of what it is told.
    fn look(&mut self, mut facts: Vec<(Fact, u64)>, looked_up: bool) -> bool {
        let (now, partition) = (Tick(self.now), partition_of(&facts[0].0));
        let key = key_of(partition, self.lease(partition).number);
        let granted = self.grants.grant(now, key, &mut facts, looked_up);
        assert_eq!(granted, facts.iter().any(|(_, time)| *time > 0));
        if granted {
            let cached = facts.iter().map(|(fact, _)| self.cached(fact)).collect();
            self.answers.push(Answer::Facts(key, facts, cached));
        }
        granted
    }

    /// Somebody has the locks of the directories: who renames, or, shared, who lists.
    fn is_locked(&self, shared: bool) -> bool {
        self.answers.iter().any(|answer| match answer {
            Answer::Renamed(..) => true,
            Answer::Facts(_, facts, _) => !shared && facts.len() > 1,
        })
    }

    /// The kernel renames, with the locks of both directories.
    fn rename(&mut self, from: &Fact, to: &Fact) {
        if from == to || self.is_locked(false) {
            return;
        }
        for attempt in 0..2 {
            let under = partition_of(to);
            let (number, held) = (self.lease(under).number, self.lease(under).held);
            let lease = held.then_some(Lease { key: key_of(under, number), left: TTL });
            let (now, partition) = (Tick(self.now), partition_of(from));
            let (granted, forget) =
                match self.grants.rename(now, partition, name_of(from), lease, name_of(to)) {
                    Moving::Free => (None, false),
                    Moving::Granted(fact, time) => (Some((number, fact, time)), false),
                    Moving::Forget(fact) => {
                        assert_eq!(&fact, to);
                        (None, true)
                    }
                    Moving::Again => {
                        assert_eq!(attempt, 0, "it is not made a third time");
                        let looked = self.look(vec![(from.clone(), TTL)], false);
                        assert!(!looked, "granted before it is moved");
                        let cached = self.cached(from);
                        self.ends[cached] = 0;
                        continue;
                    }
                };
            self.answers.push(Answer::Renamed(from.clone(), to.clone(), granted, forget));
            return;
        }
    }

    /// An answer reaches the kernel.
    fn deliver(&mut self) {
        if self.answers.is_empty() {
            return;
        }
        match self.answers.remove(0) {
            Answer::Facts(key, facts, cached) => {
                for ((_, time), cached) in
                    facts.iter().zip(cached).filter(|((_, time), _)| *time > 0)
                {
                    self.ends[cached] = self.now + time;
                }
                self.grants.sent(Tick(self.now), key, &facts);
            }
            Answer::Renamed(from, to, granted, forget) => {
                match self.kernel.remove(&from).filter(|_| !forget) {
                    Some(cached) => self.kernel.insert(to.clone(), cached),
                    None => self.kernel.remove(&to),
                };
                if let Some((lease, fact, time)) = granted {
                    let key = key_of(partition_of(&fact), lease);
                    self.grants.sent(Tick(self.now), key, &[(fact, time)]);
                }
                let EntryName { dir, name } = name_of(&from);
                self.grants.moved(dir, name);
            }
        }
    }

    fn forget(&mut self, facts: &[Fact]) {
        for fact in facts {
            self.kernel.remove(fact);
        }
    }

    /// The notices reach the kernel, unless a rename has the locks of the directories.
    fn listen(&mut self) {
        if self.is_locked(false) {
            return;
        }
        for (partition, number, facts) in std::mem::take(&mut self.notices) {
            self.forget(&facts);
            self.grants.told(partition, number);
        }
    }

    /// The holder of the leases looks whether they can go.
    fn leave(&mut self, partition: u16) {
        let Leased { number: lease, held, wanted } = *self.lease(partition);
        if !wanted || !held {
            return;
        }
        match self.grants.leave(Tick(self.now), key_of(partition, lease), true) {
            Leave::Wait => {}
            Leave::Tell(number, facts) => self.notices.push((partition, number, facts)),
            Leave::Force(number, facts) => {
                self.kernel.retain(|fact, _| matches!(fact, Fact::Attributes(_)));
                self.forget(&facts);
                self.grants.told(partition, number);
            }
            Leave::Free => {
                let is_live = |(fact, cached): &(&Fact, &usize)| {
                    partition_of(fact) == partition && self.ends[**cached] > self.now
                };
                let live: Vec<_> = self.kernel.iter().filter(is_live).collect();
                let is_late = |answer: &&Answer| match answer {
                    Answer::Facts(key, ..) => key.partition == partition,
                    Answer::Renamed(_, _, granted, _) => {
                        granted.as_ref().is_some_and(|(_, fact, _)| partition_of(fact) == partition)
                    }
                };
                let late = self.answers.iter().filter(is_late).count();
                assert!(live.is_empty() && late == 0, "{partition}: {live:?}, {late} late");
                *self.lease(partition) = Leased { number: lease, held: false, wanted: false };
            }
        }
    }
}

proptest! {
    /// Whatever is late or renamed, when a lease goes the kernel has nothing of it, nor will get anything.
    #[test]
    fn grants_any_history_then_the_kernel_has_nothing_when_a_lease_goes(
        history in proptest::collection::vec((0u8..12, 0u8..9, 0u8..8, 0u64..120), 1..300),
        most in 2usize..9,
    ) {
        let terms = Terms { most, most_each: 5, ..Terms::default() };
        let lease = || Leased { number: 1, held: true, wanted: false };
        let mut world = World {
            grants: Grants::new(terms),
            now: MS,
            leases: [lease(), lease()],
            answers: Vec::new(),
            kernel: Default::default(),
            ends: Vec::new(),
            notices: Vec::new(),
        };
        for (what, which, other, pause) in history {
            world.now += pause * MS;
            let partition = 7 + u16::from(which % 2);
            match what {
                0..=3 => {
                    let facts = match (what, which) {
                        (0, 0..=3) if world.is_locked(true) => continue,
                        // A listing.
                        (0, 0..=3) => (0..4)
                            .map(|n| (entry(which % 2 * 4 + n), TTL + u64::from(n) * MS))
                            .collect(),
                        (_, 8) => vec![(Fact::Attributes(9), TTL)],
                        _ => vec![(entry(which), TTL)],
                    };
                    let held = world.lease(partition_of(&facts[0].0)).held;
                    let moves = facts.len() == 1 && world.is_renaming(&facts[0].0);
                    let granted = world.look(facts, which < 2);
                    prop_assert!(!granted || held, "granted without a lease");
                    prop_assert!(!granted || !moves, "granted while it is moved");
                }
                4 | 5 => world.deliver(),
                6 => world.listen(),
                7 => world.lease(partition).wanted = world.lease(partition).held,
                8 => world.leave(partition),
                9 | 10 => world.rename(&entry(which % 8), &entry(other)),
                _ if !world.lease(partition).held => {
                    let number = world.lease(partition).number + 1;
                    *world.lease(partition) = Leased { number, held: true, wanted: false };
                }
                _ => {}
            }
            prop_assert!(world.grants.facts <= terms.most);
            let counted: usize = world.grants.parts.values().map(|part| part.facts.len()).sum();
            prop_assert_eq!(world.grants.facts, counted);
        }
        // Once answers are through, a lease that is wanted goes, whether the kernel listens or not.
        while !world.answers.is_empty() {
            world.deliver();
        }
        prop_assert!(world.grants.moving.values().all(|mark| mark.moves == 0));
        for partition in [7, 8] {
            world.lease(partition).wanted = world.lease(partition).held;
            let end = world.now + terms.settle + 2 * terms.timeout;
            while world.lease(partition).held {
                world.leave(partition);
                world.now += 5 * MS;
                prop_assert!(world.now < end, "it is not given up");
            }
        }
    }
}

#[test]
fn name_when_moved_where_it_can_be_granted_then_granted_there_for_as_long() {
    let mut grants = Grants::new(Terms::default());
    assert_eq!(grants.rename(at(0), 7, name_in(7, b"a"), None, name_in(8, b"b")), Moving::Free);
    grants.moved(7, b"a");
    assert!(grant(&mut grants, at(0), key_of(7, 1), entry(0), false));
    sent(&mut grants, at(0), key_of(7, 1), entry(0));
    let lease = Some(Lease { key: key_of(8, 1), left: TTL });
    let moving = grants.rename(at(100), 7, name_in(7, b"a"), lease, name_in(8, b"b"));
    assert_eq!(moving, Moving::Granted(entry(5), 400 * MS));
    assert!(!grant(&mut grants, at(101), key_of(7, 1), entry(0), false), "it is being moved");
    grants.sent(at(102), key_of(8, 1), &[(entry(5), 400 * MS)]);
    grants.moved(7, b"a");
    assert!(grant(&mut grants, at(103), key_of(7, 1), entry(0), false));
    assert!(
        matches!(grants.leave(at(103), key_of(8, 1), true), Leave::Tell(_, facts) if facts == [entry(5)])
    );
}

#[test]
fn name_when_moved_where_it_cannot_be_granted_then_looked_up_before_and_else_forgotten_after() {
    let mut grants = Grants::new(Terms::default());
    let looked_up = |grants: &mut Grants, ms| {
        assert!(grant(grants, at(ms), key_of(7, 1), entry(0), false));
        sent(grants, at(ms), key_of(7, 1), entry(0));
    };
    looked_up(&mut grants, 0);
    let rename = |grants: &mut Grants, ms, left: Option<u64>| {
        let lease = left.map(|left| Lease { key: key_of(8, 1), left });
        grants.rename(at(ms), 7, name_in(7, b"a"), lease, name_in(8, b"b"))
    };
    // No lease, or one that ends before the kernel forgets.
    assert_eq!(rename(&mut grants, 1, None), Moving::Again);
    assert!(
        !grant(&mut grants, at(2), key_of(7, 1), entry(0), false),
        "else it would be kept again"
    );
    assert_eq!(rename(&mut grants, 3, Some(10 * MS)), Moving::Forget(entry(5)));
    grants.moved(7, b"a");
    looked_up(&mut grants, 4);
    // An answer that is on its way would be kept for longer than is known.
    assert!(grant(&mut grants, at(5), key_of(7, 1), entry(0), false));
    assert_eq!(rename(&mut grants, 6, Some(10 * TTL)), Moving::Again);
    sent(&mut grants, at(7), key_of(7, 1), entry(0));
    let Moving::Granted(..) = rename(&mut grants, 8, Some(10 * TTL)) else { panic!("not granted") };
}

#[test]
fn lease_when_wanted_then_the_kernel_is_told_once_and_nothing_is_granted_any_more() {
    let mut grants = Grants::new(Terms::default());
    let key = key_of(7, 3);
    assert_eq!(grants.leave(at(1), key_of(7, 2), true), Leave::Free, "nothing was granted");
    assert!(!grant(&mut grants, at(1), key_of(7, 2), name(0), false), "of a lease that was left");
    assert!(grant(&mut grants, at(1), key, name(0), false));
    assert!(grants.has(at(1), 7, &name(0)) && !grants.has(at(1), 7, &name(1)));
    assert_eq!(grants.leave(at(2), key, true), Leave::Wait, "its answer is on its way");
    assert!(!grant(&mut grants, at(2), key, name(1), false));
    sent(&mut grants, at(3), key, name(0));
    let Leave::Tell(number, facts) = grants.leave(at(3), key, true) else { panic!("not told") };
    assert_eq!(facts, [name(0)]);
    assert_eq!(grants.leave(at(4), key, true), Leave::Wait);
    grants.told(7, number + 1);
    assert_eq!(grants.leave(at(5), key, true), Leave::Wait, "that was another one");
    grants.told(7, number);
    assert_eq!(grants.leave(at(6), key, true), Leave::Free);
    assert!(!grant(&mut grants, at(7), key, name(0), false));
    assert!(grant(&mut grants, at(7), key_of(7, 4), name(0), false), "the next lease");
}

#[test]
fn directory_when_it_was_looked_up_a_moment_ago_then_is_taken_back_a_moment_later() {
    let mut grants = Grants::new(Terms::default());
    let key = key_of(7, 1);
    assert!(grant(&mut grants, at(0), key, name(0), true));
    sent(&mut grants, at(30), key, name(0));
    assert_eq!(grants.leave(at(279), key, true), Leave::Wait);
    assert!(matches!(grants.leave(at(280), key, true), Leave::Tell(_, facts) if facts.len() == 1));
}

#[test]
fn kernel_when_it_does_not_listen_then_is_told_by_other_means_and_at_last_time_tells() {
    let mut grants = Grants::new(Terms { timeout: 100 * MS, ..Terms::default() });
    let key = key_of(7, 1);
    assert!(grant(&mut grants, at(0), key, name(0), false));
    assert_eq!(grants.leases(), [key]);
    sent(&mut grants, at(0), key, name(0));
    assert!(matches!(grants.leave(at(1), key, true), Leave::Tell(..)));
    assert_eq!(grants.leave(at(100), key, true), Leave::Wait);
    let Leave::Force(_, facts) = grants.leave(at(101), key, true) else { panic!("not forced") };
    assert_eq!(facts, [name(0)]);
    assert_eq!(grants.leave(at(749), key, true), Leave::Wait);
    assert_eq!(grants.leave(at(750), key, true), Leave::Free, "the time and the slack are over");
}

#[test]
fn lease_when_doubted_and_confirmed_then_facts_are_granted_again() {
    let mut grants = Grants::new(Terms::default());
    let key = key_of(7, 1);
    assert!(grant(&mut grants, at(0), key, name(0), false));
    sent(&mut grants, at(0), key, name(0));
    let Leave::Tell(number, _) = grants.leave(at(1), key, false) else { panic!("not told") };
    assert!(!grant(&mut grants, at(2), key, name(1), false));
    grants.told(7, number);
    assert!(grant(&mut grants, at(3), key, name(0), false));
}

#[test]
fn grants_when_full_then_refused_until_some_are_over() {
    let terms = Terms { most: 10, most_each: 4, ..Terms::default() };
    let mut grants = Grants::new(terms);
    for partition in 0..4u16 {
        for n in 0..6 {
            let granted = grant(&mut grants, at(0), key_of(partition, 1), name(n), false);
            assert_eq!(granted, n < 4 && u64::from(partition) * 4 + u64::from(n) < 10);
            if granted {
                sent(&mut grants, at(0), key_of(partition, 1), name(n));
            }
        }
    }
    assert!(!grant(&mut grants, at(700), key_of(3, 1), name(0), false));
    assert!(grant(&mut grants, at(900), key_of(3, 1), name(0), false));
    assert_eq!(grants.facts, 1);
}

#[test]
fn listing_when_not_all_of_it_fits_then_the_rest_is_refused_and_what_is_known_is_kept_on() {
    let mut grants = Grants::new(Terms { most: 10, most_each: 4, ..Terms::default() });
    let key = key_of(7, 1);
    let listing = |from: u8| Vec::from_iter((from..from + 4).map(|n| (name(n), TTL)));
    let times = |facts: &[(Fact, u64)]| Vec::from_iter(facts.iter().map(|(_, time)| *time > 0));
    let mut facts = listing(0);
    facts[1].1 = 0;
    assert!(grants.grant(at(0), key, &mut facts, false));
    assert_eq!(times(&facts), [true, false, true, true]);
    let mut more = listing(2);
    assert!(grants.grant(at(100), key, &mut more, false));
    assert_eq!(times(&more), [true, true, true, false]);
    assert_eq!(grants.leave(at(101), key, true), Leave::Wait);
    grants.sent(at(102), key, &facts);
    assert_eq!(grants.leave(at(103), key, true), Leave::Wait, "the second is on its way");
    let mut late = listing(0);
    assert!(!grants.grant(at(104), key, &mut late, false));
    assert_eq!(times(&late), [false; 4]);
    grants.sent(at(105), key, &more);
    let Leave::Tell(_, told) = grants.leave(at(106), key, true) else { panic!("not told") };
    assert_eq!(told, [name(0), name(2), name(3), name(4)]);
}
