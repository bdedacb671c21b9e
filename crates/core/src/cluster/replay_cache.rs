//! Writes that one node asks another for: each is carried out once at most, also if its answer is lost
//! and it is asked for again, and none after it was given up.
//!
//! After the sessions and slots of NFS 4.1 (RFC 8881, section 2.10.6). The owner of files opens a
//! session for each node that asks, of a number that it never gives again. The asker has a fixed number
//! of slots in it, for a call at a time each, and counts the calls of each slot. The owner remembers of
//! each slot the last call and what came of it: a call that comes again gets the same answer, and one
//! of a lower number comes too late. A call that the asker has given up keeps its slot until the owner
//! has been told, and the owner says so only when the call is not under way: so nothing that is asked
//! for after that can be overtaken by it.
//!
//! An owner that has lost its memory knows no session, and refuses the call: whether it was carried out
//! can't be found out then, and the asker knows that.
//!
//! # Invariants
//! - A write through an owner is carried out once at most, and never after its node has given it up
//!   (tests of this file, `crates/forebay/tests/owners.rs`).

use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Calls of one asker that may be under way at a time.
pub const SLOTS: usize = 64;
/// Sessions that an owner keeps.
pub const SESSIONS: usize = 1024;

/// By what a call is known, however often it comes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId {
    /// The session, as the owner has called it.
    pub session: u64,
    /// The slot.
    pub slot: u16,
    /// The number of the call in its slot.
    pub number: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Free,
    Asked,
    /// Of a call about this file.
    GivenUp(u64),
}

/// What a node knows of its calls of one owner.
#[derive(Debug, Default)]
pub struct Asker {
    session: Option<u64>,
    slots: Vec<(u64, Slot)>,
}

impl Asker {
    /// Whether there is a session.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.session.is_some()
    }

    /// The owner has opened a session.
    pub fn opened(&mut self, session: u64) {
        (self.session, self.slots) = (Some(session), Vec::new());
    }

    /// The owner knows this session no more: whatever of it is still on its way is refused there.
    pub fn closed(&mut self, session: u64) {
        if self.session == Some(session) {
            (self.session, self.slots) = (None, Vec::new());
        }
    }

    /// A turn for a new call; `None` without a session, and while all slots are taken.
    pub fn take(&mut self) -> Option<CallId> {
        let session = self.session?;
        let free = self.slots.iter().position(|(_, slot)| *slot == Slot::Free);
        let at = match free {
            Some(at) => at,
            None if self.slots.len() < SLOTS => {
                self.slots.push((0, Slot::Free));
                self.slots.len() - 1
            }
            None => return None,
        };
        let (number, slot) = &mut self.slots[at];
        (*number, *slot) = (*number + 1, Slot::Asked);
        Some(CallId { session, slot: at as u16, number: *number })
    }

    fn asked(&mut self, turn: CallId) -> Option<&mut (u64, Slot)> {
        if self.session != Some(turn.session) {
            return None;
        }
        let slot = self.slots.get_mut(usize::from(turn.slot))?;
        (slot.0 == turn.number).then_some(slot)
    }

    /// The call was certainly not carried out, and is made anew in its slot.
    pub fn anew(&mut self, turn: CallId) -> Option<CallId> {
        let (number, _) = self.asked(turn)?;
        *number += 1;
        Some(CallId { number: *number, ..turn })
    }

    /// Nothing more is to come of the call: it was answered, or certainly never arrived.
    pub fn ended(&mut self, turn: CallId) {
        if let Some((_, slot)) = self.asked(turn) {
            *slot = Slot::Free;
        }
    }

    /// Nobody knows what became of the call about a file, and nobody waits for it any more.
    pub fn give_up(&mut self, turn: CallId, file: u64) {
        if let Some((_, slot)) = self.asked(turn) {
            *slot = Slot::GivenUp(file);
        }
    }

    /// The calls that were given up and of which the owner was not told: those about a file, or all.
    #[must_use]
    pub fn untold(&self, file: Option<u64>) -> Vec<CallId> {
        let Some(session) = self.session else { return Vec::new() };
        let wanted = |slot: &Slot| match slot {
            Slot::GivenUp(about) => file.is_none_or(|file| file == *about),
            Slot::Free | Slot::Asked => false,
        };
        let slots = self.slots.iter().enumerate().filter(|(_, (_, slot))| wanted(slot));
        slots
            .map(|(at, (number, _))| CallId { session, slot: at as u16, number: *number })
            .collect()
    }

    /// The owner was told that these were given up, and none of them is under way.
    pub fn told(&mut self, turns: &[CallId]) {
        for turn in turns {
            self.ended(*turn);
        }
    }
}

/// What is to be done with a call that has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begin<T> {
    /// It is to be carried out, and [`Owner::ended`] called.
    Go,
    /// It is under way: to be asked again when something has ended.
    Wait,
    /// It was carried out, and this came of it.
    Was(T),
    /// It comes too late: its asker has given it up, or gone on.
    Late,
    /// There is no such session.
    Unknown,
}

#[derive(Debug, Clone)]
enum Last<T> {
    None,
    UnderWay,
    Was(T),
    GivenUp,
}

#[derive(Debug)]
struct Session<T> {
    id: u64,
    used: u64,
    /// Another one is to take its place as soon as nothing is under way in it.
    closing: bool,
    slots: Vec<(u64, Last<T>)>,
}

impl<T> Session<T> {
    fn is_busy(&self) -> bool {
        self.slots.iter().any(|(_, last)| matches!(last, Last::UnderWay))
    }
}

/// What the owner of files remembers of those who ask it, by their nodes.
#[derive(Debug)]
pub struct Owner<T> {
    next: u64,
    uses: u64,
    sessions: BTreeMap<u32, Session<T>>,
}

impl<T: Clone> Owner<T> {
    /// Sessions get numbers from `first` on: no owner of this incarnation may have given them.
    #[must_use]
    pub fn new(first: u64) -> Self {
        Owner { next: first, uses: 0, sessions: BTreeMap::new() }
    }

    /// Opens a session for a node, in the place of the one that it has; `None` while something of that
    /// is under way.
    pub fn open(&mut self, node: u32) -> Option<u64> {
        if let Some(session) = self.sessions.get_mut(&node) {
            session.closing = true;
            if session.is_busy() {
                return None;
            }
        } else if self.sessions.len() >= SESSIONS {
            let idle = self.sessions.iter().filter(|(_, session)| !session.is_busy());
            let (&oldest, _) = idle.min_by_key(|(_, session)| session.used)?;
            self.sessions.remove(&oldest);
        }
        let id = self.next;
        self.next += 1;
        self.uses += 1;
        let session = Session { id, used: self.uses, closing: false, slots: Vec::new() };
        self.sessions.insert(node, session);
        Some(id)
    }

    fn session(&mut self, node: u32, id: u64) -> Option<&mut Session<T>> {
        self.uses += 1;
        let session = self.sessions.get_mut(&node).filter(|session| session.id == id)?;
        session.used = self.uses;
        Some(session)
    }

    fn slot(&mut self, node: u32, turn: CallId) -> Option<&mut (u64, Last<T>)> {
        let at = usize::from(turn.slot);
        let session = self.session(node, turn.session)?;
        if at >= SLOTS {
            return None;
        }
        if at >= session.slots.len() {
            session.slots.resize(at + 1, (0, Last::None));
        }
        session.slots.get_mut(at)
    }

    /// A call has come.
    pub fn begin(&mut self, node: u32, turn: CallId) -> Begin<T> {
        if self.session(node, turn.session).is_none_or(|session| session.closing) {
            return Begin::Unknown;
        }
        let Some((number, last)) = self.slot(node, turn) else { return Begin::Unknown };
        match (turn.number.cmp(number), &*last) {
            (Ordering::Less, _) => Begin::Late,
            (_, Last::UnderWay) => Begin::Wait,
            (Ordering::Equal, Last::Was(outcome)) => Begin::Was(outcome.clone()),
            (Ordering::Equal, Last::None | Last::GivenUp) => Begin::Late,
            (Ordering::Greater, _) => {
                (*number, *last) = (turn.number, Last::UnderWay);
                Begin::Go
            }
        }
    }

    /// A call that was begun has ended.
    pub fn ended(&mut self, node: u32, turn: CallId, outcome: T) {
        if let Some((number, last)) = self.slot(node, turn)
            && *number == turn.number
        {
            *last = Last::Was(outcome);
        }
    }

    /// The asker has given calls up; false while one of them is under way. True says that none of them
    /// is, nor ever will be.
    pub fn give_up(&mut self, node: u32, turns: &[CallId]) -> bool {
        let mut all = true;
        for turn in turns {
            let Some((number, last)) = self.slot(node, *turn) else { continue };
            match (turn.number.cmp(number), &*last) {
                (Ordering::Less, _) => {}
                (_, Last::UnderWay) => all = false,
                (Ordering::Equal, _) => {}
                (Ordering::Greater, _) => (*number, *last) = (turn.number, Last::GivenUp),
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const NODE: u32 = 7;

    fn pair() -> (Asker, Owner<u32>) {
        let (mut asker, mut owner) = (Asker::default(), Owner::new(100));
        assert_eq!(asker.take(), None);
        asker.opened(owner.open(NODE).unwrap());
        (asker, owner)
    }

    #[test]
    fn call_when_it_comes_again_then_gets_the_answer_of_the_first_time() {
        let (mut asker, mut owner) = pair();
        let turn = asker.take().unwrap();
        assert_eq!(owner.begin(NODE, turn), Begin::Go);
        assert_eq!(owner.begin(NODE, turn), Begin::Wait);
        owner.ended(NODE, turn, 5);
        assert_eq!(owner.begin(NODE, turn), Begin::Was(5));
        asker.ended(turn);
        let next = asker.take().unwrap();
        assert_eq!((next.slot, next.number), (turn.slot, turn.number + 1));
        assert_eq!(owner.begin(NODE, next), Begin::Go);
        assert_eq!(owner.begin(NODE, turn), Begin::Late);
    }

    #[test]
    fn call_when_given_up_then_is_never_begun_and_keeps_its_slot_until_the_owner_was_told() {
        let (mut asker, mut owner) = pair();
        let turn = asker.take().unwrap();
        asker.give_up(turn, 9);
        assert_ne!(asker.take().unwrap().slot, turn.slot);
        assert_eq!((asker.untold(Some(8)), asker.untold(Some(9))), (vec![], vec![turn]));
        assert!(owner.give_up(NODE, &[turn]));
        assert_eq!(owner.begin(NODE, turn), Begin::Late);
        asker.told(&[turn]);
        assert!(asker.untold(None).is_empty());
        assert_eq!(asker.take().unwrap().slot, turn.slot);
    }

    #[test]
    fn call_when_given_up_under_way_then_the_owner_says_so_only_at_its_end() {
        let (mut asker, mut owner) = pair();
        let turn = asker.take().unwrap();
        assert_eq!(owner.begin(NODE, turn), Begin::Go);
        assert!(!owner.give_up(NODE, &[turn]));
        owner.ended(NODE, turn, 1);
        assert!(owner.give_up(NODE, &[turn]));
    }

    #[test]
    fn session_when_another_takes_its_place_then_only_after_what_is_under_way_and_it_is_unknown() {
        let (mut asker, mut owner) = pair();
        let (first, second) = (asker.take().unwrap(), asker.take().unwrap());
        assert_eq!(owner.begin(NODE, first), Begin::Go);
        assert_eq!(owner.open(NODE), None);
        assert_eq!(owner.begin(NODE, second), Begin::Unknown);
        owner.ended(NODE, first, 1);
        let next = owner.open(NODE).unwrap();
        assert_ne!(next, first.session);
        for turn in [first, second] {
            assert_eq!(owner.begin(NODE, turn), Begin::Unknown);
        }
    }

    #[test]
    fn sessions_and_slots_when_too_many_then_refused_or_the_longest_unused_goes() {
        let (mut asker, mut owner) = pair();
        let turns: Vec<CallId> = std::iter::from_fn(|| asker.take()).collect();
        assert_eq!(turns.len(), SLOTS);
        let beyond = CallId { slot: SLOTS as u16, ..turns[0] };
        assert_eq!(owner.begin(NODE, beyond), Begin::Unknown);
        let mut owner = Owner::<u32>::new(0);
        let sessions: Vec<u64> =
            (0..SESSIONS as u32).map(|node| owner.open(node).unwrap()).collect();
        let of = |node: usize| CallId { session: sessions[node], slot: 0, number: 1 };
        // The first is busy, the second was used a moment ago.
        assert_eq!(owner.begin(0, of(0)), Begin::Go);
        assert_eq!(owner.begin(1, of(1)), Begin::Go);
        owner.ended(1, of(1), 1);
        owner.open(5000).unwrap();
        assert_eq!(owner.sessions.len(), SESSIONS);
        assert_eq!(owner.begin(2, of(2)), Begin::Unknown);
        assert_eq!(owner.begin(1, of(1)), Begin::Was(1));
    }

    /// What happens next: to which of the things that may happen, by number.
    #[derive(Debug, Clone)]
    enum Step {
        Ask(u64),
        /// A message arrives, and stays on its way as well: it may come again, at any time.
        Arrive(usize),
        /// What is under way ends; its answer is heard or not.
        End(usize, bool),
        Anew(usize),
        GiveUp(usize),
        Tell(Option<u64>),
        Restart,
        Reopen,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..3_u64).prop_map(Step::Ask),
            8 => (0..64_usize).prop_map(Step::Arrive),
            6 => (0..8_usize, any::<bool>()).prop_map(|(at, heard)| Step::End(at, heard)),
            1 => (0..8_usize).prop_map(Step::Anew),
            3 => (0..8_usize).prop_map(Step::GiveUp),
            3 => proptest::option::of(0..3_u64).prop_map(Step::Tell),
            1 => Just(Step::Restart),
            1 => Just(Step::Reopen),
        ];
        proptest::collection::vec(step, 1..200)
    }

    #[derive(Default)]
    struct World {
        /// Calls that somebody waits for: which one, and its file.
        waits: Vec<(CallId, u64)>,
        sent: Vec<(CallId, u64)>,
        under_way: Vec<CallId>,
        done: BTreeSet<CallId>,
        /// What can't be carried out any more.
        over: BTreeSet<CallId>,
        files: BTreeMap<CallId, u64>,
    }

    proptest! {
        #[test]
        fn calls_any_history_then_once_at_most_and_never_after_they_were_given_up(steps in steps()) {
            let (mut asker, mut owner) = pair();
            let mut world = World::default();
            let mut first = 1_000;
            for step in steps {
                match step {
                    Step::Ask(file) => {
                        // What was given up of the file is told before.
                        if asker.untold(Some(file)).is_empty() && let Some(turn) = asker.take() {
                            prop_assert!(!world.files.contains_key(&turn), "a turn given twice");
                            world.files.insert(turn, file);
                            world.waits.push((turn, file));
                            world.sent.push((turn, file));
                        }
                    }
                    Step::Arrive(at) if !world.sent.is_empty() => {
                        let (turn, _) = world.sent[at % world.sent.len()];
                        match owner.begin(NODE, turn) {
                            Begin::Go => {
                                prop_assert!(!world.done.contains(&turn), "carried out twice");
                                prop_assert!(!world.over.contains(&turn), "after it was given up");
                                world.done.insert(turn);
                                world.under_way.push(turn);
                            }
                            Begin::Was(number) => prop_assert_eq!(u64::from(number), turn.number),
                            Begin::Wait => prop_assert!(!world.under_way.is_empty()),
                            Begin::Late => {
                                // Nobody who waits is told that he comes too late.
                                prop_assert!(world.waits.iter().all(|(waits, _)| *waits != turn));
                            }
                            Begin::Unknown => {
                                asker.closed(turn.session);
                                let of = |t: &CallId| t.session == turn.session;
                                world.over.extend(world.files.keys().copied().filter(of));
                                world.waits.retain(|(waits, _)| !of(waits));
                            }
                        }
                    }
                    Step::End(at, heard) if !world.under_way.is_empty() => {
                        let turn = world.under_way.remove(at % world.under_way.len());
                        owner.ended(NODE, turn, turn.number as u32);
                        if heard && world.waits.iter().any(|(waits, _)| *waits == turn) {
                            asker.ended(turn);
                            world.waits.retain(|(waits, _)| *waits != turn);
                            world.over.insert(turn);
                        }
                    }
                    Step::Anew(at) if !world.waits.is_empty() => {
                        let at = at % world.waits.len();
                        let (turn, file) = world.waits[at];
                        // Only what is known not to have been carried out.
                        if owner.give_up(NODE, &[turn]) && !world.done.contains(&turn)
                            && let Some(next) = asker.anew(turn)
                        {
                            world.over.insert(turn);
                            world.waits[at] = (next, file);
                            world.files.insert(next, file);
                            world.sent.push((next, file));
                        }
                    }
                    Step::GiveUp(at) if !world.waits.is_empty() => {
                        let (turn, file) = world.waits.remove(at % world.waits.len());
                        asker.give_up(turn, file);
                    }
                    Step::Tell(file) => {
                        let turns = asker.untold(file);
                        if owner.give_up(NODE, &turns) {
                            asker.told(&turns);
                            let busy = |turn: &CallId| world.under_way.contains(turn);
                            prop_assert!(!turns.iter().any(busy), "it is under way");
                            world.over.extend(turns);
                        }
                    }
                    Step::Restart => {
                        first += 1_000;
                        owner = Owner::new(first);
                        world.under_way.clear();
                    }
                    Step::Reopen if !asker.is_open() => {
                        if let Some(session) = owner.open(NODE) {
                            asker.opened(session);
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}
