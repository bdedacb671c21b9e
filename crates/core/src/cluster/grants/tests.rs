use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;
const TTL: u64 = 500 * MS;

fn name(n: u8) -> Fact {
    Fact::Name(1, Arc::new([b'a' + n]))
}

/// Grants one fact.
fn grant(grants: &mut Grants, now: Tick, key: (u16, u64), fact: Fact, looked_up: bool) -> bool {
    grants.grant(now, key, &mut [(fact, TTL)], looked_up)
}

fn sent(grants: &mut Grants, now: Tick, key: (u16, u64), fact: Fact) {
    grants.sent(now, key, &[(fact, TTL)]);
}

fn at(ms: u64) -> Tick {
    Tick(ms * MS)
}

/// The kernel, the lease and the other node, as they are in the world.
struct World {
    grants: Grants,
    now: u64,
    lease: u64,
    held: bool,
    wanted: bool,
    /// Answers on their way: the facts with their times, and of which lease.
    answers: Vec<(Vec<(Fact, u64)>, u64)>,
    /// Until when the kernel keeps each fact.
    kernel: std::collections::BTreeMap<Fact, u64>,
    /// What the kernel has not been told to forget yet.
    notices: Vec<(u64, Vec<Fact>)>,
}

impl World {
    /// The answer reaches the kernel.
    fn deliver(&mut self) {
        if self.answers.is_empty() {
            return;
        }
        let (facts, lease) = self.answers.remove(0);
        for (fact, time) in facts.iter().filter(|(_, time)| *time > 0) {
            self.kernel.insert(fact.clone(), self.now + time);
        }
        self.grants.sent(Tick(self.now), (7, lease), &facts);
    }

    fn forget(&mut self, facts: &[Fact]) {
        for fact in facts {
            self.kernel.remove(fact);
        }
    }

    /// The notices reach the kernel.
    fn listen(&mut self) {
        for (number, facts) in std::mem::take(&mut self.notices) {
            self.forget(&facts);
            self.grants.told(7, number);
        }
    }

    /// The holder of the lease looks whether it can go.
    fn leave(&mut self) {
        if !self.wanted || !self.held {
            return;
        }
        match self.grants.leave(Tick(self.now), (7, self.lease), true) {
            Leave::Wait => {}
            Leave::Tell(number, facts) => self.notices.push((number, facts)),
            Leave::Force(number, facts) => {
                self.forget(&facts);
                self.grants.told(7, number);
            }
            Leave::Free => {
                let live: Vec<_> = self.kernel.iter().filter(|(_, end)| **end > self.now).collect();
                assert!(live.is_empty() && self.answers.is_empty(), "{live:?} {:?}", self.answers);
                (self.held, self.wanted) = (false, false);
            }
        }
    }
}

proptest! {
    /// Whatever is late, when a lease goes the kernel has nothing of it, nor will get anything.
    #[test]
    fn grants_any_history_then_the_kernel_has_nothing_when_a_lease_goes(
        history in proptest::collection::vec((0u8..8, 0u8..5, 0u64..120), 1..300),
        most in 2usize..6,
    ) {
        let terms = Terms { most, most_each: 4, ..Terms::default() };
        let mut world = World {
            grants: Grants::new(terms),
            now: MS,
            lease: 1,
            held: true,
            wanted: false,
            answers: Vec::new(),
            kernel: Default::default(),
            notices: Vec::new(),
        };
        for (what, which, pause) in history {
            world.now += pause * MS;
            match what {
                0..=2 => {
                    let (now, lease) = (Tick(world.now), world.lease);
                    let mut facts = match (what, which) {
                        // A listing.
                        (2, 3) => (0..6).map(|n| (name(n), TTL + u64::from(n) * MS)).collect(),
                        (_, 4) => vec![(Fact::Attributes(9), TTL)],
                        _ => vec![(name(which), TTL)],
                    };
                    let granted = world.grants.grant(now, (7, lease), &mut facts, which < 2);
                    prop_assert!(!granted || world.held, "granted without a lease");
                    prop_assert_eq!(granted, facts.iter().any(|(_, time)| *time > 0));
                    if granted {
                        world.answers.push((facts, lease));
                    }
                }
                3 => world.deliver(),
                4 => world.listen(),
                5 => world.wanted = world.held,
                6 => world.leave(),
                _ if !world.held => (world.lease, world.held) = (world.lease + 1, true),
                _ => {}
            }
            prop_assert!(world.grants.facts <= terms.most);
            let counted: usize = world.grants.parts.values().map(|part| part.facts.len()).sum();
            prop_assert_eq!(world.grants.facts, counted);
        }
        // Once answers are through, a lease that is wanted goes, whether the kernel listens or not.
        world.wanted = world.held;
        while !world.answers.is_empty() {
            world.deliver();
        }
        let end = world.now + terms.settle + 2 * terms.patience;
        while world.held {
            world.leave();
            world.now += 5 * MS;
            prop_assert!(world.now < end, "it is not given up");
        }
    }
}

#[test]
fn lease_when_wanted_then_the_kernel_is_told_once_and_nothing_is_granted_any_more() {
    let mut grants = Grants::new(Terms::default());
    let key = (7, 3);
    assert_eq!(grants.leave(at(1), (7, 2), true), Leave::Free, "nothing was granted");
    assert!(!grant(&mut grants, at(1), (7, 2), name(0), false), "of a lease that was left");
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
    assert!(grant(&mut grants, at(7), (7, 4), name(0), false), "the next lease");
}

#[test]
fn directory_when_it_was_looked_up_a_moment_ago_then_is_taken_back_a_moment_later() {
    let mut grants = Grants::new(Terms::default());
    let key = (7, 1);
    assert!(grant(&mut grants, at(0), key, name(0), true));
    sent(&mut grants, at(30), key, name(0));
    assert_eq!(grants.leave(at(279), key, true), Leave::Wait);
    assert!(matches!(grants.leave(at(280), key, true), Leave::Tell(_, facts) if facts.len() == 1));
}

#[test]
fn kernel_when_it_does_not_listen_then_is_told_by_other_means_and_at_last_time_tells() {
    let mut grants = Grants::new(Terms { patience: 100 * MS, ..Terms::default() });
    let key = (7, 1);
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
    let key = (7, 1);
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
            let granted = grant(&mut grants, at(0), (partition, 1), name(n), false);
            assert_eq!(granted, n < 4 && u64::from(partition) * 4 + u64::from(n) < 10);
            if granted {
                sent(&mut grants, at(0), (partition, 1), name(n));
            }
        }
    }
    assert!(!grant(&mut grants, at(700), (3, 1), name(0), false));
    assert!(grant(&mut grants, at(900), (3, 1), name(0), false));
    assert_eq!(grants.facts, 1);
}

#[test]
fn listing_when_not_all_of_it_fits_then_the_rest_is_refused_and_what_is_known_is_kept_on() {
    let mut grants = Grants::new(Terms { most: 10, most_each: 4, ..Terms::default() });
    let key = (7, 1);
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
