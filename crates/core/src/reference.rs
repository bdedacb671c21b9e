//! Reference sequences: what jobs are going to access, in which order, and what follows from it:
//! the next use of an object, its uses still ahead, and whether it is dead.
//!
//! Several jobs run at once. Each has a cursor into its own sequence; accesses are matched against
//! the cursors. A job may depart from its sequence: what it takes a little early is struck off, an
//! access far from the object's next reference is one that the sequence does not have, and what is
//! skipped is given up once it is farther behind than the job's references usually are. A job whose
//! references come true less often than not, or that is not heard of for long, has no credit until
//! that changes: its objects count as unknown. A job that leaps (it starts in the middle, or leaves a
//! part out) is found again by a run of accesses that lie close together, far ahead of where it was.
//!
//! Time is counted in references consumed, over all jobs. With one job it is its cursor, so that
//! next uses are exact positions; with several, a job's distance is stretched by its pace.
//!
//! # Invariants
//! - A job that departs from its sequence is found again: after a leap, a part left out,
//!   repetitions and another order (`reference/tests.rs`, `tests/prefetch.rs`).

use std::collections::VecDeque;

use crate::policy::{Hint, Slab, TOGETHER};

/// The most references that a job may run ahead of its oldest expected one, and the farthest that an
/// access out of order may be from its reference to count as this job's.
pub const SLACK: u64 = 1024;

/// An access that comes so many references early shows that the sequence is wrong.
const WRONG: u64 = 256;

/// Most that one reference out of order moves the estimate of a job's place by, times 8 and in 1/16.
const STRIDE: i64 = 4 * 16;

/// Credit of a new job, what it needs to be believed, and the most that it can have: one for each
/// reference that came true, less one for each that did not.
const CREDIT: (u32, u32, u32) = (64, 16, 128);

/// Accesses without one of a job's after which it loses its credit, at its usual pace.
const MAX_STRAYS: u64 = 4096;

/// Farther than this from a job's place, and farther than its references usually are, an access may be
/// part of a leap.
const NEAR: u64 = 64;

/// Accesses, and how far they may be from each other, that show that a job has leapt.
const LEAP: (u32, u64) = (8, 32);

/// The most credit that a leap costs.
const LEAP_COST: u32 = 40;

/// Pace 1, in the fixed point of [`Job::pace`].
const UNIT: u64 = 1 << 8;

/// No position.
const NONE: u64 = u64::MAX;

/// Nothing was struck off yet, or so long ago that it says nothing about what is due.
const FRESH: u32 = u32::MAX;

/// What is known of an object's future.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Future {
    /// Nothing.
    Unknown,
    /// Its next use is due then, on the clock of [`References::now`].
    At(u64),
    /// Named by a complete sequence, and not ahead in any.
    Dead,
}

#[derive(Debug, Clone, Copy)]
struct Reference {
    object: u64,
    /// How many positions on the object's next reference in the same sequence comes; 0 if none does.
    gap: u32,
    done: bool,
}

/// The references to one object in one sequence that are still ahead. Half a cache line with the
/// object's number: there is one for every object of a sequence, and each access looks for it.
#[derive(Debug, Clone, Copy)]
struct Ahead {
    /// The first one; the last that was struck off while there is none.
    first: u64,
    last: u64,
    count: u32,
    /// How many positions before `first` the last one was that was struck off; [`FRESH`] if none was.
    since: u32,
}

impl Ahead {
    /// Appends a reference at a position; returns the position of the last one before it that is
    /// still ahead.
    fn append(&mut self, position: u64) -> Option<u64> {
        let last = (self.count > 0).then_some(self.last);
        if last.is_none() {
            if self.since != FRESH {
                self.since = u32::try_from(position - self.first).unwrap_or(FRESH);
            }
            self.first = position;
        }
        self.last = position;
        self.count += 1;
        last
    }

    /// Strikes off the first one, after which the next comes so many positions on; 0 if none does.
    fn consume(&mut self, gap: u32) {
        self.first += u64::from(gap);
        self.since = gap;
        self.count -= 1;
    }
}

/// How a job goes along its sequence.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// References that it was given.
    pub given: u64,
    /// Those that came true.
    pub followed: u64,
    /// Those that were given up, because the job went past them.
    pub skipped: u64,
    /// Those that are still expected.
    pub ahead: u64,
    /// Whether enough of them come true that it is believed.
    pub trusted: bool,
}

/// A run of accesses far ahead of a job's place.
#[derive(Debug, Default, Clone, Copy)]
struct Leap {
    /// The position after the farthest of them.
    next: u64,
    run: u32,
}

#[derive(Debug)]
struct Job {
    id: u64,
    sequence: VecDeque<Reference>,
    /// Position of the front of `sequence`, which is the first reference still expected.
    cursor: u64,
    /// Where the job is, in 1/16 of a position: a filtered estimate, which one reference far out of
    /// order moves by half a position only.
    place: u64,
    /// How late references come, in 1/16 of a position: about their third quartile.
    disorder: u64,
    /// The references before this position were looked for ahead.
    looked: u64,
    named: Slab<Ahead>,
    closed: bool,
    /// Clock ticks for each of its references, in 1/256.
    pace: u64,
    /// The clock at its last match, and the accesses of any kind seen since.
    matched: u64,
    strays: u64,
    credit: u32,
    leap: Leap,
    given: u64,
    followed: u64,
    skipped: u64,
}

impl Job {
    fn new(id: u64, now: u64) -> Self {
        Self {
            id,
            sequence: VecDeque::new(),
            cursor: 0,
            place: 0,
            disorder: 0,
            looked: 0,
            named: Slab::default(),
            closed: false,
            pace: UNIT,
            matched: now,
            strays: 0,
            credit: CREDIT.0,
            leap: Leap::default(),
            given: 0,
            followed: 0,
            skipped: 0,
        }
    }

    fn ahead(&self, object: u64) -> Option<&Ahead> {
        self.named.find(object).map(|slot| &self.named[slot])
    }

    /// Appends a reference; whether it is the next to its object.
    fn append(&mut self, object: u64) -> bool {
        let position = self.cursor + self.sequence.len() as u64;
        let fresh = Ahead { first: NONE, last: NONE, count: 0, since: FRESH };
        let slot = self.named.find(object).unwrap_or_else(|| self.named.insert(object, fresh));
        let before = self.named[slot].append(position);
        if let Some(before) = before {
            let gap = u32::try_from(position - before);
            self.sequence[(before - self.cursor) as usize].gap =
                gap.expect("fewer than 2^32 references ahead");
        }
        self.given += 1;
        self.sequence.push_back(Reference { object, gap: 0, done: false });
        before.is_none()
    }

    /// Strikes off the object's first reference ahead; returns its position.
    fn consume(&mut self, object: u64) -> Option<u64> {
        let slot = self.named.find(object)?;
        let ahead = &mut self.named[slot];
        let first = ahead.first;
        let at = (ahead.first - self.cursor) as usize;
        self.sequence[at].done = true;
        ahead.consume(self.sequence[at].gap);
        // A complete sequence remembers what it named: it is dead now. Another may name it again.
        if ahead.count == 0 && !self.closed {
            self.named.remove(slot);
        }
        Some(first)
    }

    /// Strikes off the object's first reference ahead, as it came true.
    fn follow(&mut self, object: u64) {
        let Some(first) = self.consume(object) else { return };
        let expected = self.place + 16;
        let error = (16 * (first + 1)) as i64 - expected as i64;
        self.place = expected.saturating_add_signed(error.clamp(-STRIDE, STRIDE) / 8);
        // Only what comes late tells: what comes early may be an access that the sequence lacks.
        let late = error.min(0).unsigned_abs();
        let step = 4 + self.disorder / 32;
        self.disorder = if late > self.disorder {
            (self.disorder + 3 * step).min(16 * SLACK)
        } else {
            self.disorder.saturating_sub(step)
        };
        self.strays = 0;
        self.followed += 1;
        self.credit = (self.credit + 1).min(CREDIT.2);
    }

    /// Drops what is done or given up from the front; returns by how much the cursor moved.
    fn advance(&mut self) -> u64 {
        let before = self.cursor;
        let limit = (self.disorder / 2 + 32).min(SLACK);
        while let Some(front) = self.sequence.front() {
            let (object, late) = (front.object, self.place / 16 > self.cursor + limit);
            if !front.done {
                if !late {
                    break;
                }
                self.consume(object);
                self.skipped += 1;
                self.credit = self.credit.saturating_sub(1);
            }
            self.sequence.pop_front();
            self.cursor += 1;
        }
        self.place = self.place.max(16 * self.cursor);
        self.cursor - before
    }

    /// Drops so many references from the front, done or not; returns how many there were.
    fn skip(&mut self, by: u64) -> u64 {
        let by = by.min(self.sequence.len() as u64);
        for _ in 0..by {
            let front = self.sequence[0];
            if !front.done {
                self.consume(front.object);
                self.skipped += 1;
            }
            self.sequence.pop_front();
            self.cursor += 1;
        }
        self.place = self.place.max(16 * self.cursor);
        by
    }

    /// Looks whether an access is part of a run far ahead; if so many are that the job must have
    /// leapt, skips what lies between, at a bounded cost to its credit, and returns by how much its cursor
    /// moved.
    fn leap(&mut self, object: u64) -> u64 {
        let Some(first) = self.ahead(object).filter(|ahead| ahead.count > 0) else { return 0 };
        let first = first.first;
        let near = NEAR.max(self.disorder / 8);
        if first <= self.place / 16 + near {
            self.leap.run = self.leap.run.saturating_sub(2);
            return 0;
        }
        let close = first + LEAP.1 >= self.leap.next && first <= self.leap.next + LEAP.1;
        self.leap = if close && self.leap.run > 0 {
            Leap { next: self.leap.next.max(first + 1), run: self.leap.run + 1 }
        } else {
            Leap { next: first + 1, run: 1 }
        };
        if self.leap.run < LEAP.0 {
            return 0;
        }
        // What a run in some disorder has left out so far may still come.
        let to = (self.leap.next - 1).saturating_sub(LEAP.1);
        let by = self.skip(to.saturating_sub(self.cursor));
        // A job in good credit can afford one; who leaps again and again is not skipping, its sequence
        // has what is never accessed.
        self.credit =
            self.credit.saturating_sub(u32::try_from(by).unwrap_or(u32::MAX).min(LEAP_COST));
        self.place = self.place.max(16 * first);
        self.leap = Leap::default();
        by
    }

    /// Whether an access to the object is one of this job's: its next reference is due or overdue,
    /// as near as this job's usually come, or much nearer than the object's last one was.
    fn expects(&self, object: u64) -> bool {
        if self.sequence.front().is_some_and(|front| front.object == object) {
            return true;
        }
        self.ahead(object).is_some_and(|ahead| {
            let early = ahead.first.saturating_sub(self.place / 16);
            ahead.count > 0
                && early <= SLACK
                && 4 * early <= u64::from(ahead.since).max(self.disorder / 2)
        })
    }

    /// Takes note of an access that is not one of this job's.
    fn stray(&mut self, object: u64) {
        self.strays = self.strays.saturating_add(1);
        let wrong = WRONG.max(self.disorder / 2);
        let early = |ahead: &Ahead| ahead.first.saturating_sub(self.place / 16) > wrong;
        // Named for much later, or not any more.
        if self.ahead(object).is_some_and(|ahead| ahead.count == 0 || early(ahead)) {
            self.credit = self.credit.saturating_sub(1);
        }
    }

    /// Once in a few references, what the next few are to: so far the job has been looked ahead for.
    fn look_ahead(&mut self, soon: &mut Vec<u64>) {
        if self.cursor >= self.looked {
            soon.extend(self.sequence.iter().take(TOGETHER).map(|reference| reference.object));
            self.looked = self.cursor + TOGETHER as u64;
            self.named.warm(soon);
        }
    }

    fn trusted(&self) -> bool {
        self.credit >= CREDIT.1 && self.strays <= MAX_STRAYS.saturating_mul(self.pace) / UNIT
    }
}

/// The sequences of all jobs.
#[derive(Debug, Default)]
pub struct References {
    jobs: Vec<Job>,
    now: u64,
    soon: Vec<u64>,
}

impl References {
    /// None.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// References consumed so far.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// What the job whose reference came true last is going to access next. Tells of a few objects at
    /// once and each only once, and of none between, so that they can be looked for together.
    pub(crate) fn soon(&self) -> &[u64] {
        &self.soon
    }

    /// References still ahead.
    #[must_use]
    pub fn ahead(&self) -> u64 {
        self.jobs.iter().map(|job| job.sequence.len() as u64).sum()
    }

    /// Takes news in.
    pub fn hint(&mut self, hint: &Hint<'_>) {
        self.hint_each(hint, |_, _| {});
    }

    /// Takes news in, and says after every few appended references which objects they are the next
    /// ones to, in their order; the next uses of all others are as they were.
    pub fn hint_each(&mut self, hint: &Hint<'_>, mut each: impl FnMut(&Self, &[u64])) {
        match *hint {
            Hint::Append { job, objects } => {
                let at = self.place(job);
                for together in objects.chunks(TOGETHER) {
                    let (mut next, mut count) = ([0; TOGETHER], 0);
                    self.jobs[at].named.warm(together);
                    for &object in together {
                        if self.jobs[at].append(object) {
                            next[count] = object;
                            count += 1;
                        }
                    }
                    each(self, &next[..count]);
                }
            }
            Hint::Close { job } => {
                let at = self.place(job);
                self.jobs[at].closed = true;
            }
            Hint::Advance { job, by } => self.skip(job, by),
            Hint::Withdraw { job } => self.jobs.retain(|known| known.id != job),
        }
    }

    /// Matches an access against the sequences; returns whether a job expected it.
    pub fn observe(&mut self, object: u64) -> bool {
        self.follow(object).is_some()
    }

    /// Matches an access against the sequences; returns the job that expected it. One access is one
    /// reference: of several jobs that expect the object, the one that is nearest to it.
    pub fn follow(&mut self, object: u64) -> Option<u64> {
        for job in &mut self.jobs {
            if job.sequence.front().is_some_and(|front| front.object == object) {
                job.leap.run = job.leap.run.saturating_sub(2);
            } else {
                self.now += job.leap(object);
            }
        }
        let distance = |job: &&Job| {
            job.ahead(object).map_or(NONE, |ahead| ahead.first.abs_diff(job.place / 16))
        };
        let expecting = |job: &&Job| job.expects(object);
        let nearest = match &self.jobs[..] {
            // The common case, without looking for the reference once more.
            [only] => Some(only).filter(expecting),
            jobs => jobs.iter().filter(expecting).min_by_key(distance),
        };
        self.soon.clear();
        let Some(id) = nearest.map(|job| job.id) else {
            for job in &mut self.jobs {
                job.stray(object);
            }
            return None;
        };
        let alone = self.jobs.len() == 1;
        for job in &mut self.jobs {
            if job.id != id {
                job.strays = job.strays.saturating_add(1);
                continue;
            }
            job.follow(object);
            self.now += job.advance();
            job.look_ahead(&mut self.soon);
            if alone {
                job.pace = UNIT;
            } else {
                // A moving average over about sixteen references.
                let gap = (self.now - job.matched).clamp(1, 1 << 20) * UNIT;
                job.pace = (job.pace * 15 + gap) / 16;
            }
            job.matched = self.now;
        }
        Some(id)
    }

    /// What is known of an object's future.
    #[must_use]
    pub fn future(&self, object: u64) -> Future {
        let mut future = Future::Unknown;
        for job in &self.jobs {
            let Some(ahead) = job.ahead(object) else { continue };
            if !job.trusted() {
                continue;
            }
            let here = if ahead.count > 0 {
                let distance = (ahead.first - job.cursor).saturating_mul(job.pace) / UNIT;
                Future::At(self.now + distance)
            } else {
                Future::Dead
            };
            future = match (future, here) {
                (Future::At(one), Future::At(other)) => Future::At(one.min(other)),
                (Future::At(at), _) | (_, Future::At(at)) => Future::At(at),
                _ => here,
            };
        }
        future
    }

    /// How often an object is named from now on, over all jobs; nothing if no job that is believed
    /// names it.
    #[must_use]
    pub fn uses(&self, object: u64) -> Option<u64> {
        let (mut uses, mut known) = (0, false);
        for job in &self.jobs {
            if let Some(ahead) = job.ahead(object) {
                uses += u64::from(ahead.count);
                known |= job.trusted();
            }
        }
        known.then_some(uses)
    }

    /// The next `count` references of a job, in order.
    pub fn upcoming(&self, job: u64, count: usize) -> impl Iterator<Item = u64> + '_ {
        let job = self.jobs.iter().find(move |known| known.id == job);
        let sequence = job.map(|job| job.sequence.iter()).into_iter().flatten();
        sequence.filter(|reference| !reference.done).take(count).map(|reference| reference.object)
    }

    /// How far a job has come.
    #[must_use]
    pub fn progress(&self, job: u64) -> Option<Progress> {
        self.known(job).map(|job| Progress {
            given: job.given,
            followed: job.followed,
            skipped: job.skipped,
            ahead: job.given - job.followed - job.skipped,
            trusted: job.trusted(),
        })
    }

    /// The position of the first reference that a job is still expected to come to, counted from the
    /// first one that it was given.
    #[must_use]
    pub fn cursor(&self, job: u64) -> u64 {
        self.known(job).map_or(0, |job| job.cursor)
    }

    /// Where a job's next accesses are to be expected, counted as [`Self::cursor`] is: what it has left
    /// out before this position is hardly still to come.
    #[must_use]
    pub fn whereabouts(&self, job: u64) -> u64 {
        let known = self.known(job);
        known.map_or(0, |job| job.cursor.max(job.place.saturating_sub(job.disorder) / 16))
    }

    /// The object of a job's reference at a position from [`Self::cursor`] on, and whether it is
    /// still ahead; nothing past the end of its sequence.
    #[must_use]
    pub fn reference(&self, job: u64, position: u64) -> Option<(u64, bool)> {
        let job = self.known(job)?;
        let at = usize::try_from(position.checked_sub(job.cursor)?).ok()?;
        job.sequence.get(at).map(|reference| (reference.object, !reference.done))
    }

    /// The position of a job's next reference to an object.
    #[must_use]
    pub fn position(&self, job: u64, object: u64) -> Option<u64> {
        let ahead = self.known(job)?.ahead(object)?;
        (ahead.count > 0).then_some(ahead.first)
    }

    /// References and objects remembered, over all jobs: what memory grows with.
    #[must_use]
    pub fn remembered(&self) -> u64 {
        self.jobs.iter().map(|job| job.sequence.len() as u64 + job.named.len()).sum()
    }

    fn known(&self, id: u64) -> Option<&Job> {
        let at = self.jobs.binary_search_by_key(&id, |job| job.id).ok()?;
        self.jobs.get(at)
    }

    /// The place of a job, which may be new.
    fn place(&mut self, id: u64) -> usize {
        self.jobs.binary_search_by_key(&id, |job| job.id).unwrap_or_else(|at| {
            self.jobs.insert(at, Job::new(id, self.now));
            at
        })
    }

    fn skip(&mut self, id: u64, by: u64) {
        if let Some(job) = self.jobs.iter_mut().find(|job| job.id == id) {
            self.now += job.skip(by);
        }
    }
}

#[cfg(test)]
mod tests;
