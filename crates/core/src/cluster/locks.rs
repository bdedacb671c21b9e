//! Locks of programs on files (`flock`, `fcntl`) that hold over all nodes.
//!
//! A [`Locks`] is all that is locked of one file, and who waits. It is changed as a whole by
//! compare-and-swap: read, decide here, write if it is still what was read. A lock belongs to an
//! incarnation of a node, so that those of a dead one can be told and dropped.
//!
//! The rules are those of POSIX.1-2017, `fcntl`: a lock of an owner replaces what the same owner had
//! in that range, splits what reaches beyond it, and joins what touches it. Whoever waits is served
//! in order as far as nothing that is held is in the way; who is *first* in the queue keeps nobody
//! else from what is free, so that none can wait for a waiter.
//!
//! # Invariants
//! - No two programs have conflicting locks, and nobody waits for what is free (tests of this
//!   file).

use super::ownership::Incarnation;

/// Locks and waiters of one file at most.
pub const MAX: usize = 4096;

/// The two families of locks, which know nothing of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Of ranges, by `fcntl`.
    Ranges,
    /// Of whole files, by `flock`.
    Whole,
}

/// Who has a lock: as the kernel of a node tells owners apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    /// By which call.
    pub family: Family,
    /// On which node.
    pub incarnation: Incarnation,
    /// The kernel's number of the process or the open file.
    pub owner: u64,
}

/// Bytes of a file; both ends belong to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The first.
    pub first: u64,
    /// The last.
    pub last: u64,
}

impl Span {
    /// The whole file, whatever its size.
    pub const ALL: Span = Span { first: 0, last: u64::MAX };

    fn overlaps(self, other: Span) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    fn touches(self, other: Span) -> bool {
        self.first <= other.last.saturating_add(1) && other.first <= self.last.saturating_add(1)
    }
}

/// Who else may have a lock at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Whoever is content with the same.
    Shared,
    /// Nobody.
    Exclusive,
}

/// A lock, held or wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lock {
    /// By whom.
    pub holder: Holder,
    /// Of what.
    pub span: Span,
    /// How.
    pub mode: Mode,
    /// The process, for people.
    pub pid: u32,
}

impl Lock {
    fn conflicts(&self, other: &Lock) -> bool {
        self.holder.family == other.holder.family
            && self.holder != other.holder
            && self.span.overlaps(other.span)
            && (self.mode == Mode::Exclusive || other.mode == Mode::Exclusive)
    }
}

/// Somebody who waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Waiter {
    /// For what.
    pub wanted: Lock,
    /// Tells it from all other waiters of its node's incarnation.
    pub ticket: u64,
}

/// Too many locks of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a file has {MAX} locks and waiters already")]
pub struct TooMany;

/// What came of asking for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is held.
    Held,
    /// This is in the way, among others perhaps.
    Blocked(Lock),
}

/// What is locked of a file, and who waits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Locks {
    held: Vec<Lock>,
    waiting: Vec<Waiter>,
}

impl Locks {
    /// Locks as they were written down, in the order of [`Locks::held`] and [`Locks::waiting`].
    #[must_use]
    pub fn from_parts(mut held: Vec<Lock>, waiting: Vec<Waiter>) -> Self {
        held.sort_unstable();
        Self { held, waiting }
    }

    /// What is held, in order.
    #[must_use]
    pub fn held(&self) -> &[Lock] {
        &self.held
    }

    /// Who waits, the longest first.
    #[must_use]
    pub fn waiting(&self) -> &[Waiter] {
        &self.waiting
    }

    /// Whether nobody has anything and nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.waiting.is_empty()
    }

    /// What keeps somebody from a lock.
    #[must_use]
    pub fn blocker(&self, wanted: &Lock) -> Option<Lock> {
        self.blockers(wanted).next()
    }

    /// All that keeps somebody from a lock.
    pub fn blockers(&self, wanted: &Lock) -> impl Iterator<Item = Lock> {
        self.held.iter().filter(|held| held.conflicts(wanted)).copied()
    }

    /// Whether all of this is held, as it is wanted or more.
    #[must_use]
    pub fn covers(&self, wanted: &Lock) -> bool {
        // Locks of one holder neither overlap nor touch in the same mode, and are in order.
        let mut next = Some(wanted.span.first);
        for held in self.held.iter().filter(|held| held.holder == wanted.holder) {
            let Some(from) = next else { return true };
            if from > wanted.span.last {
                return true;
            }
            if held.span.first <= from && from <= held.span.last && held.mode >= wanted.mode {
                next = held.span.last.checked_add(1);
            }
        }
        next.is_none_or(|from| from > wanted.span.last)
    }

    /// Takes a lock if nothing is in the way. What the holder gives up by it may let others in.
    ///
    /// # Errors
    /// [`TooMany`]; nothing was changed.
    pub fn acquire(&mut self, wanted: Lock) -> Result<Outcome, TooMany> {
        if let Some(blocker) = self.blocker(&wanted) {
            return Ok(Outcome::Blocked(blocker));
        }
        if self.is_full() {
            return Err(TooMany);
        }
        self.put(wanted);
        self.serve_waiters();
        Ok(Outcome::Held)
    }

    /// Takes a lock, or queues for it. A lock of the whole file that is to be another is given up
    /// first, as `flock` says: two who have it shared and want it alone would wait for each other.
    ///
    /// # Errors
    /// [`TooMany`]; nothing was changed.
    pub fn acquire_or_wait(&mut self, wanted: Lock, ticket: u64) -> Result<Outcome, TooMany> {
        let outcome = self.acquire(wanted)?;
        if outcome != Outcome::Held {
            if self.is_full() {
                return Err(TooMany);
            }
            self.waiting.push(Waiter { wanted, ticket });
            if wanted.holder.family == Family::Whole {
                self.release(wanted.holder, Span::ALL);
            }
        }
        Ok(outcome)
    }

    /// A waiter gives up; whether it was waiting still.
    pub fn cancel(&mut self, incarnation: Incarnation, ticket: u64) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|w| w.wanted.holder.incarnation != incarnation || w.ticket != ticket);
        self.waiting.len() < before
    }

    /// Whether somebody waits under this ticket.
    #[must_use]
    pub fn is_waiting(&self, incarnation: Incarnation, ticket: u64) -> bool {
        let is = |w: &Waiter| w.wanted.holder.incarnation == incarnation && w.ticket == ticket;
        self.waiting.iter().any(is)
    }

    /// Gives up what a holder has of a span, and lets in who waited for it.
    pub fn release(&mut self, holder: Holder, span: Span) {
        self.cut(holder, span);
        self.serve_waiters();
    }

    /// Drops all that dead incarnations have or wait for; whether there was anything.
    pub fn fence(&mut self, is_dead: impl Fn(Incarnation) -> bool) -> bool {
        let before = (self.held.len(), self.waiting.len());
        self.held.retain(|held| !is_dead(held.holder.incarnation));
        self.waiting.retain(|waiter| !is_dead(waiter.wanted.holder.incarnation));
        let fenced = before != (self.held.len(), self.waiting.len());
        if fenced {
            self.serve_waiters();
        }
        fenced
    }

    /// A lock may split two others.
    fn is_full(&self) -> bool {
        self.held.len() + self.waiting.len() + 2 > MAX
    }

    fn serve_waiters(&mut self) {
        // Who is let in may give up a part of what it had, so that it begins anew.
        while let Some(at) =
            self.waiting.iter().position(|waiter| self.blocker(&waiter.wanted).is_none())
        {
            let waiter = self.waiting.remove(at);
            self.put(waiter.wanted);
        }
    }

    fn cut(&mut self, holder: Holder, span: Span) {
        let of_holder = |lock: &Lock| lock.holder == holder && lock.span.overlaps(span);
        let cut: Vec<Lock> = self.held.iter().filter(|lock| of_holder(lock)).copied().collect();
        self.held.retain(|lock| !of_holder(lock));
        for lock in cut {
            if lock.span.first < span.first {
                let last = span.first - 1;
                self.insert(Lock { span: Span { last, ..lock.span }, ..lock });
            }
            if lock.span.last > span.last {
                let first = span.last + 1;
                self.insert(Lock { span: Span { first, ..lock.span }, ..lock });
            }
        }
    }

    fn put(&mut self, mut lock: Lock) {
        self.cut(lock.holder, lock.span);
        self.held.retain(|other| {
            let joins = other.holder == lock.holder
                && other.mode == lock.mode
                && other.span.touches(lock.span);
            if joins {
                lock.span.first = lock.span.first.min(other.span.first);
                lock.span.last = lock.span.last.max(other.span.last);
            }
            !joins
        });
        self.insert(lock);
    }

    fn insert(&mut self, lock: Lock) {
        let at = self.held.partition_point(|other| *other < lock);
        self.held.insert(at, lock);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Epoch, NodeId};
    use super::*;

    const BYTES: u64 = 12;

    fn incarnation(node: u32, epoch: u64) -> Incarnation {
        Incarnation { node: NodeId(node), epoch: Epoch(epoch) }
    }

    fn ranges(node: u32, owner: u64) -> Holder {
        Holder { family: Family::Ranges, incarnation: incarnation(node, 1), owner }
    }

    fn lock(holder: Holder, first: u64, last: u64, mode: Mode) -> Lock {
        Lock { holder, span: Span { first, last }, mode, pid: 1 }
    }

    /// The same rules, byte by byte: slow, and plain to see. The last byte stands for all from there
    /// on.
    #[derive(Default, Clone)]
    struct Model {
        /// Of each byte who has it, and how.
        bytes: Vec<Vec<(Holder, Mode)>>,
        waiting: Vec<Waiter>,
    }

    impl Model {
        fn new() -> Self {
            Self { bytes: vec![Vec::new(); BYTES as usize], waiting: Vec::new() }
        }

        fn of(&self, span: Span) -> impl Iterator<Item = &Vec<(Holder, Mode)>> {
            (span.first..=span.last.min(BYTES - 1)).map(|at| &self.bytes[at as usize])
        }

        fn is_blocked(&self, wanted: &Lock) -> bool {
            self.of(wanted.span).flatten().any(|(holder, mode)| {
                *holder != wanted.holder
                    && holder.family == wanted.holder.family
                    && (*mode == Mode::Exclusive || wanted.mode == Mode::Exclusive)
            })
        }

        fn set(&mut self, holder: Holder, span: Span, mode: Option<Mode>) {
            for at in span.first..=span.last.min(BYTES - 1) {
                let byte = &mut self.bytes[at as usize];
                byte.retain(|(other, _)| *other != holder);
                byte.extend(mode.map(|mode| (holder, mode)));
                byte.sort_unstable();
            }
        }

        fn serve(&mut self) {
            while let Some(at) = self.waiting.iter().position(|w| !self.is_blocked(&w.wanted)) {
                let Waiter { wanted, .. } = self.waiting.remove(at);
                self.set(wanted.holder, wanted.span, Some(wanted.mode));
            }
        }
    }

    /// What a [`Locks`] says of each byte.
    fn by_bytes(locks: &Locks) -> Vec<Vec<(Holder, Mode)>> {
        let of = |at: u64| {
            let at = Span { first: at, last: at };
            let mut byte: Vec<_> = locks.held.iter().filter(|l| l.span.overlaps(at)).collect();
            byte.sort_unstable_by_key(|lock| (lock.holder, lock.mode));
            byte.into_iter().map(|lock| (lock.holder, lock.mode)).collect()
        };
        (0..BYTES).map(of).collect()
    }

    fn check_sound(locks: &Locks) {
        assert!(locks.held.is_sorted());
        for (at, one) in locks.held.iter().enumerate() {
            for other in &locks.held[at + 1..] {
                assert!(!one.conflicts(other), "{one:?} and {other:?}");
                let same = one.holder == other.holder;
                assert!(!same || !one.span.overlaps(other.span), "twice");
                let joined = same && one.mode == other.mode && one.span.touches(other.span);
                assert!(!joined, "not joined: {one:?}, {other:?}");
            }
        }
        for waiter in &locks.waiting {
            assert!(locks.blocker(&waiter.wanted).is_some(), "{waiter:?} waits for nothing");
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Try(Lock),
        Wait(Lock),
        Unlock(Holder, Span),
        Cancel(u64),
        Die(u32),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let holder = (0u32..3, 0u64..2, any::<bool>()).prop_map(|(node, owner, whole)| {
            let family = if whole { Family::Whole } else { Family::Ranges };
            Holder { family, ..ranges(node, owner) }
        });
        let span = (0..BYTES, 0..BYTES).prop_map(|(one, other)| {
            let last = Some(one.max(other)).filter(|last| *last < BYTES - 1);
            Span { first: one.min(other), last: last.unwrap_or(u64::MAX) }
        });
        let mode = prop_oneof![Just(Mode::Shared), Just(Mode::Exclusive)];
        let wanted = (holder.clone(), span.clone(), mode).prop_map(|(holder, span, mode)| {
            let span = if holder.family == Family::Whole { Span::ALL } else { span };
            Lock { holder, span, mode, pid: 1 }
        });
        let step = prop_oneof![
            3 => wanted.clone().prop_map(Step::Try),
            4 => wanted.prop_map(Step::Wait),
            4 => (holder, span).prop_map(|(holder, span)| Step::Unlock(holder, span)),
            1 => (0u64..40).prop_map(Step::Cancel),
            1 => (0u32..3).prop_map(Step::Die),
        ];
        proptest::collection::vec(step, 1..60)
    }

    proptest! {
        #[test]
        fn locks_any_history_then_as_a_model_byte_by_byte(steps in steps()) {
            let (mut locks, mut model) = (Locks::default(), Model::new());
            for (ticket, step) in steps.into_iter().enumerate() {
                let ticket = ticket as u64;
                match step {
                    Step::Try(wanted) => {
                        let blocked = model.is_blocked(&wanted);
                        let outcome = locks.acquire(wanted).expect("few");
                        prop_assert_eq!(outcome == Outcome::Held, !blocked);
                        if !blocked {
                            model.set(wanted.holder, wanted.span, Some(wanted.mode));
                        }
                    }
                    Step::Wait(wanted) => {
                        let blocked = model.is_blocked(&wanted);
                        let outcome = locks.acquire_or_wait(wanted, ticket).expect("few");
                        prop_assert_eq!(outcome == Outcome::Held, !blocked);
                        if blocked {
                            model.waiting.push(Waiter { wanted, ticket });
                            if wanted.holder.family == Family::Whole {
                                model.set(wanted.holder, Span::ALL, None);
                            }
                        } else {
                            model.set(wanted.holder, wanted.span, Some(wanted.mode));
                        }
                    }
                    Step::Unlock(holder, span) => {
                        locks.release(holder, span);
                        model.set(holder, span, None);
                    }
                    Step::Cancel(ticket) => {
                        let found = model.waiting.iter().position(|w| w.ticket == ticket);
                        if let Some(at) = found {
                            let waiter = model.waiting.remove(at);
                            let of = waiter.wanted.holder.incarnation;
                            prop_assert!(locks.is_waiting(of, ticket));
                            prop_assert!(locks.cancel(of, ticket));
                        }
                        prop_assert!(!locks.cancel(incarnation(0, 1), ticket));
                    }
                    Step::Die(node) => {
                        let dead = |who: Incarnation| who == incarnation(node, 1);
                        let had = model.bytes.iter().flatten().any(|(h, _)| dead(h.incarnation))
                            || model.waiting.iter().any(|w| dead(w.wanted.holder.incarnation));
                        prop_assert_eq!(locks.fence(dead), had);
                        for byte in &mut model.bytes {
                            byte.retain(|(holder, _)| !dead(holder.incarnation));
                        }
                        model.waiting.retain(|w| !dead(w.wanted.holder.incarnation));
                    }
                }
                model.serve();
                check_sound(&locks);
                prop_assert_eq!(&locks.waiting, &model.waiting);
                prop_assert_eq!(by_bytes(&locks), model.bytes.clone());
                let copy = Locks::from_parts(locks.held.clone(), locks.waiting.clone());
                prop_assert_eq!(&copy, &locks);
            }
        }

        #[test]
        fn covers_any_locks_then_as_byte_by_byte(steps in steps(), first in 0..BYTES, len in 0..BYTES) {
            let mut locks = Locks::default();
            for step in steps {
                if let Step::Try(wanted) = step {
                    locks.acquire(wanted).expect("few");
                }
            }
            for mode in [Mode::Shared, Mode::Exclusive] {
                let last = Some(first + len).filter(|last| *last < BYTES - 1);
                let wanted = lock(ranges(0, 0), first, last.unwrap_or(u64::MAX), mode);
                let has = |byte: &Vec<(Holder, Mode)>| {
                    byte.iter().any(|(holder, how)| *holder == wanted.holder && *how >= mode)
                };
                let bytes = by_bytes(&locks);
                let last = wanted.span.last.min(BYTES - 1);
                let all = (wanted.span.first..=last).all(|at| has(&bytes[at as usize]));
                prop_assert_eq!(locks.covers(&wanted), all);
            }
        }
    }

    #[test]
    fn waiter_of_the_whole_file_when_upgrading_then_gives_up_what_it_had_first() {
        let whole = |node| Holder { family: Family::Whole, ..ranges(node, 1) };
        let all = |holder, mode| Lock { holder, span: Span::ALL, mode, pid: 1 };
        let mut locks = Locks::default();
        for node in 0..2 {
            locks.acquire(all(whole(node), Mode::Shared)).expect("few");
        }
        let blocked = locks.acquire_or_wait(all(whole(0), Mode::Exclusive), 9).expect("few");
        assert_eq!(blocked, Outcome::Blocked(all(whole(1), Mode::Shared)));
        assert_eq!(locks.held, [all(whole(1), Mode::Shared)]);
        let upgraded = locks.acquire_or_wait(all(whole(1), Mode::Exclusive), 9).expect("few");
        assert_eq!(upgraded, Outcome::Held);
        locks.release(whole(1), Span::ALL);
        assert_eq!(locks.held, [all(whole(0), Mode::Exclusive)]);
    }

    #[test]
    fn locks_when_too_many_then_refused_and_nothing_changed() {
        let mut locks = Locks::default();
        let mut at = 0;
        while locks.acquire(lock(ranges(0, 1), 2 * at, 2 * at, Mode::Exclusive)).is_ok() {
            at += 1;
        }
        assert_eq!(locks.held.len(), MAX - 1);
        let before = locks.clone();
        let one = lock(ranges(1, 1), 0, 0, Mode::Shared);
        assert_eq!(locks.acquire_or_wait(one, 1), Err(TooMany));
        assert_eq!(locks, before);
        locks.release(ranges(0, 1), Span::ALL);
        assert!(locks.is_empty());
    }
}
