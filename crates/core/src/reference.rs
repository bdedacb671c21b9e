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

use std::collections::VecDeque;

use crate::policy::{Hint, Slab};

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
const PATIENCE: u64 = 4096;

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

/// The references to one object in one sequence that are still ahead.
#[derive(Debug, Clone, Copy)]
struct Ahead {
    first: u64,
    last: u64,
    count: u64,
    /// Position of the last one that was struck off, or [`NONE`].
    used: u64,
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
        let fresh = Ahead { first: NONE, last: NONE, count: 0, used: NONE };
        let slot = self.named.find(object).unwrap_or_else(|| self.named.insert(object, fresh));
        let ahead = &mut self.named[slot];
        if ahead.count == 0 {
            ahead.first = position;
        } else {
            let last = (ahead.last - self.cursor) as usize;
            let gap = u32::try_from(position - ahead.last);
            self.sequence[last].gap = gap.expect("fewer than 2^32 references ahead");
        }
        ahead.last = position;
        ahead.count += 1;
        self.given += 1;
        let only = ahead.count == 1;
        self.sequence.push_back(Reference { object, gap: 0, done: false });
        only
    }

    /// Strikes off the object's first reference ahead; returns its position.
    fn consume(&mut self, object: u64) -> Option<u64> {
        let slot = self.named.find(object)?;
        let ahead = &mut self.named[slot];
        let first = ahead.first;
        let at = (ahead.first - self.cursor) as usize;
        self.sequence[at].done = true;
        ahead.used = ahead.first;
        ahead.first += u64::from(self.sequence[at].gap);
        ahead.count -= 1;
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
        let patience = (self.disorder / 2 + 32).min(SLACK);
        while let Some(front) = self.sequence.front() {
            let (object, late) = (front.object, self.place / 16 > self.cursor + patience);
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
            let fresh = ahead.used == NONE;
            ahead.count > 0
                && early <= SLACK
                && (fresh || 4 * early <= (ahead.first - ahead.used).max(self.disorder / 2))
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

    fn trusted(&self) -> bool {
        self.credit >= CREDIT.1 && self.strays <= PATIENCE.saturating_mul(self.pace) / UNIT
    }
}

/// The sequences of all jobs.
#[derive(Debug, Default)]
pub struct References {
    jobs: Vec<Job>,
    now: u64,
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

    /// References still ahead.
    #[must_use]
    pub fn ahead(&self) -> u64 {
        self.jobs.iter().map(|job| job.sequence.len() as u64).sum()
    }

    /// Takes news in.
    pub fn hint(&mut self, hint: &Hint<'_>) {
        self.hint_each(hint, |_, _, _| {});
    }

    /// Takes news in, and says after each appended reference which object it is to, and whether it is
    /// the job's next one to it: otherwise the object's next use is as it was.
    pub fn hint_each(&mut self, hint: &Hint<'_>, mut each: impl FnMut(&Self, u64, bool)) {
        match *hint {
            Hint::Append { job, objects } => {
                let at = self.place(job);
                for &object in objects {
                    let next = self.jobs[at].append(object);
                    each(self, object, next);
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

    /// How often an object is named from now on, over all jobs.
    #[must_use]
    pub fn uses(&self, object: u64) -> u64 {
        self.jobs.iter().filter_map(|job| job.ahead(object)).map(|ahead| ahead.count).sum()
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
mod tests {
    use super::*;

    fn references(objects: &[u64]) -> References {
        let mut references = References::new();
        references.hint(&Hint::Append { job: 1, objects });
        references.hint(&Hint::Close { job: 1 });
        references
    }

    #[test]
    fn future_along_the_sequence_then_exact_positions() {
        let mut references = references(&[1, 2, 1, 3]);
        assert_eq!(references.future(1), Future::At(0));
        assert!(references.observe(1));
        assert_eq!(references.future(1), Future::At(2));
        assert_eq!(references.uses(1), 1);
        assert!(references.observe(2));
        assert_eq!(references.future(2), Future::Dead);
        assert_eq!(references.future(9), Future::Unknown);
    }

    #[test]
    fn observe_out_of_order_then_struck_off_and_the_rest_still_expected() {
        let mut references = references(&[1, 2, 3, 4]);
        assert!(references.observe(3));
        assert_eq!(references.now(), 0);
        assert_eq!(references.future(1), Future::At(0));
        assert!(references.observe(1));
        assert!(references.observe(2));
        assert_eq!(references.now(), 3);
        assert_eq!(references.future(4), Future::At(3));
    }

    #[test]
    fn observe_what_no_job_named_then_a_stray_and_nothing_moves() {
        let mut references = references(&[1, 2]);
        assert!(!references.observe(77));
        assert_eq!(references.future(1), Future::At(0));
    }

    #[test]
    fn skipped_reference_then_given_up_soon_in_an_orderly_sequence() {
        let objects: Vec<u64> = (0..300).collect();
        let mut references = references(&objects);
        for object in 1..200 {
            assert!(references.observe(object), "{object}");
        }
        assert_eq!(references.future(0), Future::Dead);
        assert_eq!(references.now(), 200);
    }

    #[test]
    fn accesses_that_the_sequence_lacks_then_its_references_stay() {
        // Objects 0..100 in rounds; every tenth access is one more, of an object half a round away.
        let objects: Vec<u64> = (0..20).flat_map(|_| 0..100).collect();
        let mut references = references(&objects);
        for (at, &object) in objects.iter().take(1_000).enumerate() {
            assert!(references.observe(object), "{at}");
            if at % 10 == 5 && at > 100 {
                assert!(!references.observe((object + 50) % 100), "{at}");
            }
        }
        assert_eq!(references.now(), 1_000);
    }

    #[test]
    fn references_up_to_fifty_out_of_place_then_nearly_all_come_true() {
        let mut sequence: Vec<u64> = (0..40).flat_map(|_| 0..200).collect();
        let exact = sequence.clone();
        for block in sequence.chunks_mut(50) {
            block.reverse();
        }
        let mut references = references(&sequence);
        let matched = exact.iter().filter(|object| references.observe(**object)).count();
        assert!(matched > exact.len() * 95 / 100, "{matched} of {}", exact.len());
    }

    #[test]
    fn job_not_heard_of_then_without_credit_until_it_is() {
        let mut references = references(&[1, 2, 3]);
        for _ in 0..=PATIENCE {
            references.observe(77);
        }
        assert_eq!(references.future(2), Future::Unknown);
        references.observe(1);
        assert_eq!(references.future(2), Future::At(1));
    }

    #[test]
    fn two_jobs_interleaved_then_distances_follow_their_paces() {
        let mut references = References::new();
        let fast: Vec<u64> = (0..900).collect();
        let slow: Vec<u64> = (1000..1300).collect();
        references.hint(&Hint::Append { job: 1, objects: &fast });
        references.hint(&Hint::Append { job: 2, objects: &slow });
        for round in 0..200 {
            for step in 0..3 {
                references.observe(round * 3 + step);
            }
            references.observe(1000 + round);
        }
        let distance = |object| match references.future(object) {
            Future::At(at) => at - references.now(),
            other => panic!("{object}: {other:?}"),
        };
        // 30 references of the slow job take as long as 90 of the fast one: 120 in all.
        assert!((110..=125).contains(&distance(1230)), "{}", distance(1230));
        assert!((105..=130).contains(&distance(690)), "{}", distance(690));
    }

    #[test]
    fn advance_and_withdraw_then_the_references_are_gone() {
        let mut references = references(&[1, 2, 3, 1]);
        references.hint(&Hint::Advance { job: 1, by: 2 });
        assert_eq!((references.uses(1), references.uses(2)), (1, 0));
        assert_eq!(references.upcoming(1, 9).collect::<Vec<_>>(), [3, 1]);
        references.hint(&Hint::Withdraw { job: 1 });
        assert_eq!(references.future(3), Future::Unknown);
        assert_eq!(references.ahead(), 0);
    }

    #[test]
    fn job_that_leaps_far_ahead_then_is_followed_there_and_keeps_its_credit() {
        for (to, disorder) in [(300, 1), (5_000, 1), (5_000, 8)] {
            let objects: Vec<u64> = (0..10_000).collect();
            let mut references = references(&objects);
            for object in 0..100 {
                references.observe(object);
            }
            let mut after: Vec<u64> = (to..to + 200).collect();
            for block in after.chunks_mut(disorder) {
                block.reverse();
            }
            let followed = after.iter().filter(|object| references.observe(**object)).count();
            assert!(followed >= 190, "leap to {to}: {followed} of 200");
            let progress = references.progress(1).expect("a job");
            assert!(progress.trusted && progress.skipped >= to - 140, "{progress:?}");
            assert!(references.cursor(1) >= to + 100, "{}", references.cursor(1));
            assert_eq!(references.future(50), Future::Dead);
        }
    }

    #[test]
    fn two_readers_of_the_halves_of_a_sequence_then_neither_is_given_up() {
        let objects: Vec<u64> = (0..10_000).collect();
        let mut references = references(&objects);
        for object in 0..1_000 {
            references.observe(object);
            references.observe(object + 5_000);
        }
        assert_eq!(references.progress(1).expect("a job").skipped, 0);
    }

    #[test]
    fn accesses_far_ahead_here_and_there_then_no_leap() {
        let objects: Vec<u64> = (0..10_000).collect();
        let mut references = references(&objects);
        for object in 0..400 {
            references.observe(object);
            references.observe((object * 7_919) % 9_000 + 1_000);
        }
        let cursor = references.cursor(1);
        assert!((390..=400).contains(&cursor), "{cursor}");
    }

    #[test]
    fn progress_along_the_way_then_every_reference_is_counted_once() {
        let mut references = references(&[1, 2, 3, 4, 5]);
        references.observe(1);
        references.observe(3);
        references.hint(&Hint::Advance { job: 1, by: 3 });
        let progress = references.progress(1).expect("a job");
        let expected =
            Progress { given: 5, followed: 2, skipped: 2, ahead: 1, trusted: progress.trusted };
        assert_eq!(progress, expected);
        assert_eq!(references.reference(1, references.cursor(1)), Some((5, true)));
        assert_eq!((references.position(1, 5), references.position(1, 1)), (Some(4), None));
    }
}
