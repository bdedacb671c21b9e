//! What a node's kernel was told of partitions whose leases the node has, and how it is taken back.
//!
//! While a node has the lease of a partition ([`super::lease`]), nobody else changes what is in it, so
//! its kernel may keep names and attributes of it: every fact is granted for a time that ends before
//! others may break the lease. Before the lease is given up the kernel is told to ask again, fact by
//! fact. That needs locks of the kernel which a request may hold that waits for another node; so if
//! the kernel does not listen in time, all names are taken back at once, which needs none.
//!
//! A fact counts as granted from before its answer is sent until its time is over. An answer may be
//! on its way to the kernel when the lease is wanted, and must not get there after the kernel was told
//! to forget: so answers that are on their way are waited for, and for directories a moment more, as
//! the program that asked may not have run yet. An answer may bring many facts, as a listing does. What
//! is remembered is bounded; beyond that nothing is granted.
//!
//! A rename takes what the kernel keeps of the old name along to the new one, without asking
//! ([`Grants::rename`]).
//!
//! # Invariants
//! - A lease goes only when the node's kernel keeps nothing of what it covered, and no answer that
//!   is on its way brings anything back (`grants/tests.rs`,
//!   `crates/forebay/tests/cluster_names.rs`).

use std::collections::HashMap;
use std::sync::Arc;

use crate::unit::Tick;

/// Names that are to be looked up again before they are moved.
const MAX_MOVING: usize = 1024;

/// Bounds and times of grants. Times are in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// The most facts that are remembered.
    pub most: usize,
    /// The most of them of one partition: so many are taken back when its lease is wanted.
    pub most_each: usize,
    /// The name of a directory is taken back so long after its answer was sent: the program that
    /// asked has brought it into the kernel's cache by then.
    pub settle: u64,
    /// If the kernel has not forgotten all by then, other means are used.
    pub timeout: u64,
    /// A fact counts for so much longer than was granted.
    pub slack: u64,
}

impl Default for Terms {
    fn default() -> Self {
        let ms = Tick::SECOND / 1000;
        Terms {
            most: 1 << 16,
            most_each: 1 << 14,
            settle: 250 * ms,
            timeout: 500 * ms,
            slack: 250 * ms,
        }
    }
}

/// What a kernel was told and may keep for a while.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fact {
    /// What a directory has under a name, other than a directory, or that it has nothing there. It is
    /// dropped from the cache, and what comes late has no effect there.
    Name(u64, Arc<[u8]>),
    /// The directory that a directory has under a name. It stays in the cache to be asked for again,
    /// as it may be somebody's working directory, or something may be mounted there.
    Directory(u64, Arc<[u8]>),
    /// The attributes of a node of the kernel.
    Attributes(u64),
}

/// What has to be done before a lease may be given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leave {
    /// Nothing: nobody goes by it any more.
    Free,
    /// To wait a moment and ask again.
    Wait,
    /// To have the kernel forget these facts, to say so by [`Grants::told`] with the number, and ask
    /// again.
    Tell(u64, Vec<Fact>),
    /// The same by means that never wait, since the kernel did not listen. All names are meant.
    Force(u64, Vec<Fact>),
}

/// Which lease of which partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseKey {
    /// The partition.
    pub partition: u16,
    /// Its lease: later ones have greater numbers.
    pub lease: u64,
}

/// A lease that a node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Which.
    pub key: LeaseKey,
    /// For how long it can be relied on yet, in nanoseconds.
    pub left: u64,
}

/// What has to be done about a name that the kernel is about to move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moving {
    /// Nothing: the kernel keeps nothing of it.
    Free,
    /// Nothing, as this is granted now, for so much longer, too; [`Grants::sent`] must follow when the
    /// answer was sent.
    Granted(Fact, u64),
    /// The new name can't be granted. The kernel has to look the old one up before, of which nothing is
    /// granted any more.
    Again,
    /// The new name can't be granted; the kernel has to be told to forget it once it has moved it.
    Forget(Fact),
}

/// A name in a directory, by the directory's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryName<'a> {
    /// The directory.
    pub dir: u64,
    /// The name in it.
    pub name: &'a [u8],
}

/// The same, to keep.
type Name = (u64, Arc<[u8]>);

/// Why nothing is granted of a name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Mark {
    /// It is being moved so many times.
    moves: u32,
    /// Until then it is to be looked up to be moved.
    looked_up: Tick,
}

/// How far a fact goes that was granted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Known {
    until: Tick,
    /// Answers with it that are on their way.
    sending: u32,
}

impl Known {
    fn is_live(self, now: Tick) -> bool {
        self.until > now || self.sending > 0
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Granting,
    /// Nothing is granted any more.
    Leaving,
    /// The kernel is being told under this number, since then.
    Telling(u64, Tick),
    /// It is told by other means.
    Forced(u64),
}

#[derive(Debug, Clone)]
struct Part {
    lease: u64,
    state: State,
    facts: HashMap<Fact, Known>,
    /// The end of the latest.
    until: Tick,
    /// Until when an answer may get into the cache.
    looked_up: Tick,
    /// Answers that are on their way.
    sending: u32,
}

impl Part {
    fn new(lease: u64) -> Self {
        Part {
            lease,
            state: State::Granting,
            facts: HashMap::new(),
            until: Tick(0),
            looked_up: Tick(0),
            sending: 0,
        }
    }

    /// A fact is on its way to the kernel, which may keep it until then; whether it is a new one. `None`
    /// if it would be and there is no room.
    fn note(&mut self, fact: &Fact, until: Tick, room: bool) -> Option<bool> {
        let is_new = !self.facts.contains_key(fact);
        if is_new && !room {
            return None;
        }
        let known = self.facts.entry(fact.clone()).or_default();
        // The kernel may not take the newer answer, and keep the older.
        *known = Known { until: until.max(known.until), sending: known.sending + 1 };
        self.until = self.until.max(until);
        Some(is_new)
    }

    /// Remembers facts of an answer, of those that are not known so many as there is room for, and lets
    /// the others have no time. Whether there are any, and how many are new.
    fn take(
        &mut self,
        now: Tick,
        slack: u64,
        facts: &mut [(Fact, u64)],
        room: usize,
    ) -> (bool, usize) {
        let (mut granted, mut added) = (false, 0);
        for (fact, time) in facts.iter_mut().filter(|(_, time)| *time > 0) {
            let until = now.after(time.saturating_add(slack));
            match self.note(fact, until, added < room) {
                Some(is_new) => {
                    added += usize::from(is_new);
                    granted = true;
                }
                None => *time = 0,
            }
        }
        self.sending += u32::from(granted);
        (granted, added)
    }
}

fn fact_of(at: EntryName<'_>, is_directory: bool) -> Fact {
    match is_directory {
        true => Fact::Directory(at.dir, at.name.into()),
        false => Fact::Name(at.dir, at.name.into()),
    }
}

/// The facts that a node's kernel may have, by partition.
#[derive(Debug, Clone)]
pub struct Grants {
    terms: Terms,
    parts: HashMap<u16, Part>,
    /// The last lease of each partition that was given up.
    left: HashMap<u16, u64>,
    /// Names of which nothing is granted, as they are moved.
    moving: HashMap<Name, Mark>,
    facts: usize,
    /// After it was full, not before.
    not_before: Tick,
    /// Numbers of what the kernel was told.
    told: u64,
}

impl Grants {
    /// No facts yet.
    #[must_use]
    pub fn new(terms: Terms) -> Self {
        Grants {
            terms,
            parts: HashMap::new(),
            left: HashMap::new(),
            moving: HashMap::new(),
            facts: 0,
            not_before: Tick(0),
            told: 0,
        }
    }

    /// Which facts of an answer, all read under a lease, not before it was asked for, may be kept by
    /// the kernel, each for its time: that of those which may not becomes 0. If any may,
    /// [`Grants::sent`] must follow when the answer was sent. `looked_up` says that they may get into
    /// the kernel's cache later than that, and have an effect there.
    pub fn grant(
        &mut self,
        now: Tick,
        key: LeaseKey,
        facts: &mut [(Fact, u64)],
        looked_up: bool,
    ) -> bool {
        if facts.iter().all(|(_, time)| *time == 0) {
            return false;
        }
        if !self.moving.is_empty() {
            let moved = facts.iter_mut().filter(|(fact, _)| self.is_moving(now, fact));
            moved.for_each(|(_, time)| *time = 0);
        }
        let Terms { slack, settle, .. } = self.terms;
        let room = self.room(now, key.partition, facts.len());
        let part = if self.is_left(key) { None } else { self.granting(now, key) };
        let Some(part) = part else {
            facts.iter_mut().for_each(|(_, time)| *time = 0);
            return false;
        };
        let (granted, added) = part.take(now, slack, facts, room);
        if granted && looked_up {
            part.looked_up = now.after(settle);
        }
        self.facts += added;
        granted
    }

    /// What is under a name is about to be moved to another, of a directory whose partition this node
    /// has a lease of, or has not. What the kernel keeps of the old
    /// name it will keep of the new one, so that must be granted before. Unless it is [`Moving::Again`],
    /// nothing is granted of the old name until [`Grants::moved`], which must follow when the answer was sent.
    pub fn rename(
        &mut self,
        now: Tick,
        partition: u16,
        from: EntryName<'_>,
        lease: Option<Lease>,
        to: EntryName<'_>,
    ) -> Moving {
        let name: Name = (from.dir, from.name.into());
        let known = |grants: &Grants, is_directory| {
            let part = grants.parts.get(&partition)?;
            part.facts.get(&fact_of(from, is_directory)).copied().filter(|known| known.is_live(now))
        };
        let (file, directory) = (known(self, false), known(self, true));
        let Some(known) = directory.or(file) else {
            self.mark(name);
            return Moving::Free;
        };
        let until = known.until.max(file.unwrap_or_default().until);
        let fact = fact_of(to, directory.is_some());
        // An answer that is on its way would be kept longer than is known by now.
        let is_known = known.sending == 0 && file.unwrap_or_default().sending == 0;
        if is_known && let Some(time) = self.grant_also(now, lease, &fact, until) {
            self.mark(name);
            return Moving::Granted(fact, time);
        }
        if self.moving.len() >= MAX_MOVING {
            self.moving.retain(|_, mark| mark.moves > 0 || mark.looked_up > now);
        }
        let is_marked = self.moving.get(&name).is_some_and(|mark| mark.looked_up > Tick(0));
        if is_marked || self.moving.len() >= MAX_MOVING {
            // It was looked up, or whoever moves it does not do that.
            self.mark(name);
            return Moving::Forget(fact);
        }
        self.moving.entry(name).or_default().looked_up = now.after(self.terms.timeout);
        Moving::Again
    }

    fn mark(&mut self, name: Name) {
        let mark = self.moving.entry(name).or_default();
        *mark = Mark { moves: mark.moves + 1, looked_up: Tick(0) };
    }

    /// The kernel has moved what is under a name, or has not: it was answered.
    pub fn moved(&mut self, dir: u64, name: &[u8]) {
        let name: Name = (dir, name.into());
        if let Some(mark) = self.moving.get_mut(&name) {
            mark.moves = mark.moves.saturating_sub(1);
            if *mark == Mark::default() {
                self.moving.remove(&name);
            }
        }
    }

    /// Grants a fact that the kernel will have until then as it had another; for how much longer.
    fn grant_also(
        &mut self,
        now: Tick,
        lease: Option<Lease>,
        fact: &Fact,
        until: Tick,
    ) -> Option<u64> {
        let time = until.0.saturating_sub(now.0).saturating_sub(self.terms.slack).max(1);
        // Both times count from before the answers were sent.
        let fits = |valid: u64| time <= valid.saturating_add(self.terms.slack);
        let key = lease.filter(|lease| fits(lease.left))?.key;
        if self.is_left(key) {
            return None;
        }
        let room = self.room(now, key.partition, 1);
        let part = self.granting(now, key)?;
        let is_new = part.note(fact, until, room > 0)?;
        part.sending += 1;
        self.facts += usize::from(is_new);
        Some(time)
    }

    /// Whether a lease was given up, or a later one of its partition.
    fn is_left(&self, LeaseKey { partition, lease }: LeaseKey) -> bool {
        self.left.get(&partition).is_some_and(|left| *left >= lease)
    }

    fn is_moving(&self, now: Tick, fact: &Fact) -> bool {
        match fact {
            Fact::Name(dir, name) | Fact::Directory(dir, name) => {
                let mark = self.moving.get(&(*dir, name.clone()));
                mark.is_some_and(|mark| mark.moves > 0 || mark.looked_up > now)
            }
            Fact::Attributes(_) => false,
        }
    }

    /// The part of a partition under a lease, if something can be granted there.
    fn granting(&mut self, now: Tick, key: LeaseKey) -> Option<&mut Part> {
        let LeaseKey { partition, lease } = key;
        let is_over = |part: &Part| part.lease < lease && part.until <= now && part.sending == 0;
        if self.parts.get(&partition).is_some_and(is_over) {
            self.free(partition);
        }
        let part = self.parts.entry(partition).or_insert_with(|| Part::new(lease));
        // Else of an earlier lease, of which not all is taken back yet, or of an earlier look.
        (part.lease == lease && part.state == State::Granting).then_some(part)
    }

    /// The answer with facts that were granted under a lease was sent: the kernel counts from now.
    pub fn sent(&mut self, now: Tick, key: LeaseKey, facts: &[(Fact, u64)]) {
        let (Terms { slack, settle, .. }, LeaseKey { partition, lease }) = (self.terms, key);
        if let Some(part) = self.parts.get_mut(&partition).filter(|part| part.lease == lease) {
            part.sending = part.sending.saturating_sub(1);
            for (fact, time) in facts.iter().filter(|(_, time)| *time > 0) {
                let until = now.after(time.saturating_add(slack));
                part.until = part.until.max(until);
                if let Some(known) = part.facts.get_mut(fact) {
                    known.sending = known.sending.saturating_sub(1);
                    known.until = until.max(known.until);
                }
            }
            if part.looked_up > Tick(0) {
                part.looked_up = part.looked_up.max(now.after(settle));
            }
        }
    }

    /// A lease is about to be given up, `for_good`, or can't be relied on for the moment: what is to
    /// be done before. Until [`Leave::Free`] nothing more is granted under it, and after a lease was
    /// left for good never.
    pub fn leave(&mut self, now: Tick, key: LeaseKey, for_good: bool) -> Leave {
        let LeaseKey { partition, lease } = key;
        if for_good {
            let left = self.left.entry(partition).or_default();
            *left = lease.max(*left);
        }
        let timeout = self.terms.timeout;
        let number = self.told + 1;
        let Some(part) = self.parts.get_mut(&partition).filter(|part| part.lease <= lease) else {
            return Leave::Free;
        };
        if part.sending > 0 {
            if part.state == State::Granting {
                part.state = State::Leaving;
            }
            return Leave::Wait;
        }
        let live = |part: &Part| -> Vec<Fact> {
            let live = part.facts.iter().filter(|(_, known)| known.until > now);
            let mut live: Vec<Fact> = live.map(|(fact, _)| fact.clone()).collect();
            live.sort_unstable();
            live
        };
        match part.state {
            _ if part.until <= now => self.free(partition),
            State::Granting | State::Leaving if part.looked_up > now => {
                part.state = State::Leaving;
                return Leave::Wait;
            }
            State::Granting | State::Leaving => {
                part.state = State::Telling(number, now);
                self.told = number;
                return Leave::Tell(number, live(part));
            }
            State::Telling(_, since) if now.0.saturating_sub(since.0) >= timeout => {
                part.state = State::Forced(number);
                self.told = number;
                return Leave::Force(number, live(part));
            }
            State::Telling(..) | State::Forced(_) => return Leave::Wait,
        }
        Leave::Free
    }

    /// The kernel has forgotten all that it was told to under a number.
    pub fn told(&mut self, partition: u16, number: u64) {
        let is_it = |part: &Part| match part.state {
            State::Telling(told, _) | State::Forced(told) => told == number,
            State::Granting | State::Leaving => false,
        };
        if self.parts.get(&partition).is_some_and(is_it) {
            self.free(partition);
        }
    }

    /// Whether the kernel may have a fact of a partition.
    #[must_use]
    pub fn has(&self, now: Tick, partition: u16, fact: &Fact) -> bool {
        let known = self.parts.get(&partition).and_then(|part| part.facts.get(fact));
        known.is_some_and(|known| known.until > now)
    }

    /// The leases under which something was granted.
    #[must_use]
    pub fn leases(&self) -> Vec<LeaseKey> {
        let key = |(partition, part): (&u16, &Part)| LeaseKey {
            partition: *partition,
            lease: part.lease,
        };
        self.parts.iter().map(key).collect()
    }

    fn free(&mut self, partition: u16) {
        if let Some(part) = self.parts.remove(&partition) {
            self.facts -= part.facts.len();
        }
    }

    /// How many more facts can be remembered of a partition. If fewer than are wanted, those whose time
    /// is over are forgotten, at most so often that it costs little.
    fn room(&mut self, now: Tick, partition: u16, wanted: usize) -> usize {
        let Terms { most, most_each, .. } = self.terms;
        let room = |grants: &Grants| {
            let each = grants.parts.get(&partition).map_or(0, |part| part.facts.len());
            most.saturating_sub(grants.facts).min(most_each.saturating_sub(each))
        };
        let found = room(self);
        if found >= wanted || now < self.not_before {
            return found;
        }
        self.not_before = now.after(Tick::SECOND / 10);
        // Facts whose answers are on their way count from when they arrive.
        for part in self.parts.values_mut().filter(|part| part.sending == 0) {
            let before = part.facts.len();
            part.facts.retain(|_, known| known.until > now);
            self.facts -= before - part.facts.len();
        }
        room(self)
    }
}

#[cfg(test)]
mod tests;
