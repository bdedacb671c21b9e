//! What to fetch ahead of its use along the reference sequences of jobs.
//!
//! A machine without I/O or clock: told of hints, accesses, and what became of fetches, it names
//! the next object worth fetching. Rules (compare Cao, Felten, Karlin and Li: "A study of integrated
//! prefetching and caching strategies", SIGMETRICS 1995):
//! - *Optimal order*: objects are fetched in the order of their next references.
//! - *Do no harm*: nothing is replaced that is needed sooner than what is fetched
//!   ([`Prefetcher::harms`]; whoever asks a policy for room checks its victims by this).
//! - *A budget in bytes* for what was fetched, or is being fetched, and is not used yet. A job may have
//!   at most half of what the others leave, so that one that waits does not starve the next.
//! - *Silence*: a fetch that turns out to be for nothing costs the job credit, one that is used gives
//!   some back. Without credit, or with a budget wasted, or when its references do not come true, a
//!   job is not fetched for; it is again when enough of them have come true.
//!
//! # Invariants
//! - A fetch ahead never costs what is needed sooner, whatever the policy, and what was fetched and
//!   is not used yet stays within its budget (`tests/prefetch.rs`).
//! - Hints that do not come true cost a bounded number of bytes, then nothing (`tests/prefetch.rs`,
//!   `crates/node/tests/hints.rs`).

use std::collections::BTreeSet;

use crate::policy::{Hint, Map};
use crate::reference::{Future, Progress, References};
use crate::steward::{HintChange, Reference};
use crate::unit::{Bytes, Ino};

/// What an object takes up besides its bytes, at the least.
const OVERHEAD: u64 = 4096;

/// Fetches under way at one time.
pub const FLIGHTS: usize = 8;

/// References looked at in one call of [`Prefetcher::next`].
const LOOKED_AT: usize = 64;

/// Fetches for nothing, less those that were used, that silence a job.
pub const CREDIT: u32 = 16;

/// References that must come true after a job fell silent until it is fetched for again.
pub const REGAIN: u32 = 64;

/// An object that was fetched ahead, or is being, and is not used yet.
#[derive(Debug, Clone, Copy)]
struct Ahead {
    job: u64,
    position: u64,
    bytes: u64,
}

/// What is known of a job besides its references.
#[derive(Debug)]
struct Track {
    id: u64,
    /// References before this position need no further look.
    scan: u64,
    sizes: Map<u64>,
    /// What is fetched ahead for it, by the positions of the references that it is for.
    ahead: BTreeSet<(u64, u64)>,
    /// Its bytes.
    bytes: u64,
    credit: u32,
    /// Bytes fetched for nothing since it had full credit.
    wasted: u64,
    /// References that came true since it fell silent.
    regained: u32,
    counts: Counts,
}

/// Counts of fetches ahead.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Fetches begun.
    pub fetched: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Those whose object was accessed afterwards.
    pub used: u64,
    /// Those of the used ones that were still under way.
    pub late: u64,
    /// Those for nothing: the job went past the reference, or the object left its tier before.
    pub wasted: u64,
    /// Their bytes.
    pub wasted_bytes: u64,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.fetched += other.fetched;
        self.fetched_bytes += other.fetched_bytes;
        self.used += other.used;
        self.late += other.late;
        self.wasted += other.wasted;
        self.wasted_bytes += other.wasted_bytes;
    }
}

/// A job as status shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobSnapshot {
    /// The job.
    pub job: u64,
    /// How far it has come.
    pub progress: Progress,
    /// What was fetched ahead for it.
    pub counts: Counts,
    /// Bytes fetched ahead, or being fetched, that are not used yet.
    pub outstanding: Bytes,
    /// Whether nothing is fetched for it because too much of it was for nothing.
    pub silent: bool,
}

/// Something worth fetching.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchCandidate {
    /// The object.
    pub object: Ino,
    /// How many bytes more than it has on its tier, from its head.
    pub more: Bytes,
    job: u64,
    position: u64,
}

/// Decides what to fetch ahead. See the module's text.
#[derive(Debug)]
pub struct Prefetcher {
    budget: u64,
    references: References,
    tracks: Vec<Track>,
    outstanding: Map<Ahead>,
    bytes: u64,
    /// Objects being fetched, and whether somebody waits for them by now.
    flying: Map<bool>,
    cancelled: Vec<u64>,
    /// Something has changed since the last search found nothing.
    ready: bool,
    /// The job to look at first.
    turn: usize,
    /// Counts of jobs that are gone.
    gone: Counts,
}

impl Prefetcher {
    /// One that has at most `budget` bytes fetched ahead. With 0 it follows jobs and fetches nothing.
    #[must_use]
    pub fn new(budget: Bytes) -> Self {
        Self {
            budget: budget.0,
            references: References::new(),
            tracks: Vec::new(),
            outstanding: Map::default(),
            bytes: 0,
            flying: Map::default(),
            cancelled: Vec::new(),
            ready: false,
            turn: 0,
            gone: Counts::default(),
        }
    }

    /// Takes news about a job's sequence in.
    pub fn hint(&mut self, job: u64, change: &HintChange) {
        self.ready = true;
        match change {
            HintChange::Append(references) => self.append(job, references),
            HintChange::Close => self.references.hint(&Hint::Close { job }),
            HintChange::Advance(by) => {
                self.references.hint(&Hint::Advance { job, by: *by });
                self.sweep(job);
            }
            HintChange::Withdraw => self.withdraw(job),
        }
    }

    fn append(&mut self, job: u64, references: &[Reference]) {
        let at = match self.tracks.binary_search_by_key(&job, |track| track.id) {
            Ok(at) => at,
            Err(at) => {
                self.tracks.insert(at, Track::new(job));
                at
            }
        };
        for reference in references {
            self.tracks[at].sizes.insert(reference.object.0, reference.size.0);
        }
        let objects: Vec<u64> = references.iter().map(|reference| reference.object.0).collect();
        self.references.hint(&Hint::Append { job, objects: &objects });
    }

    fn withdraw(&mut self, job: u64) {
        self.references.hint(&Hint::Withdraw { job });
        let Ok(at) = self.tracks.binary_search_by_key(&job, |track| track.id) else { return };
        let track = self.tracks.remove(at);
        for (_, object) in &track.ahead {
            if let Some(ahead) = self.outstanding.remove(object) {
                self.bytes -= ahead.bytes;
            }
            self.cancel(*object);
        }
        self.gone.add(&track.counts);
    }

    /// A program opened the object, whose whole size is `size`.
    pub fn access(&mut self, object: Ino, size: Bytes) {
        if self.tracks.is_empty() {
            return;
        }
        let job = self.references.follow(object.0);
        if let Some(ahead) = self.release(object.0) {
            let late = self.flying.contains_key(&object.0);
            if let Some(track) = self.track(ahead.job) {
                track.counts.used += 1;
                track.counts.late += u64::from(late);
                if track.credit > 0 {
                    track.credit = (track.credit + 1).min(CREDIT);
                    track.wasted = track.wasted.saturating_sub(ahead.bytes);
                }
            }
            self.ready = true;
        }
        let Some(job) = job else { return };
        self.ready = true;
        let budget = self.budget;
        if let Some(track) = self.track(job) {
            if let Some(known) = track.sizes.get_mut(&object.0) {
                *known = size.0;
            }
            if track.is_silent(budget) {
                track.regained += 1;
                if track.regained >= REGAIN {
                    (track.credit, track.wasted, track.regained) = (CREDIT / 2, budget / 2, 0);
                }
            }
        }
        self.sweep(job);
    }

    /// Gives up what was fetched for references that the job has gone past.
    fn sweep(&mut self, job: u64) {
        let cursor = self.references.cursor(job);
        while let Some(&(position, object)) = self.track(job).and_then(|track| track.ahead.first())
            && position < cursor
        {
            self.waste(object);
        }
    }

    /// What was fetched was for nothing.
    fn waste(&mut self, object: u64) {
        let Some(ahead) = self.release(object) else { return };
        self.cancel(object);
        let budget = self.budget;
        let Some(track) = self.track(ahead.job) else { return };
        track.counts.wasted += 1;
        track.counts.wasted_bytes += ahead.bytes;
        track.credit = track.credit.saturating_sub(1);
        track.wasted += ahead.bytes;
        if track.is_silent(budget) {
            track.regained = 0;
            let flying: Vec<u64> = track.ahead.iter().map(|(_, object)| *object).collect();
            for object in flying {
                self.cancel(object);
            }
        }
    }

    /// Takes an object off the books of what is not used yet.
    fn release(&mut self, object: u64) -> Option<Ahead> {
        let ahead = self.outstanding.remove(&object)?;
        self.bytes -= ahead.bytes;
        if let Some(track) = self.track(ahead.job) {
            track.bytes -= ahead.bytes;
            track.ahead.remove(&(ahead.position, object));
        }
        Some(ahead)
    }

    /// Asks for the end of a fetch, unless somebody waits for it.
    fn cancel(&mut self, object: u64) {
        if self.flying.get(&object) == Some(&false) && !self.cancelled.contains(&object) {
            self.cancelled.push(object);
        }
    }

    /// The fetches that have become worthless since the last call.
    pub fn cancelled(&mut self) -> impl Iterator<Item = Ino> + '_ {
        self.cancelled.drain(..).map(Ino)
    }

    /// A fetch ended; `well` if the object is there.
    pub fn landed(&mut self, object: Ino, well: bool) {
        if self.flying.remove(&object.0).is_none() {
            return;
        }
        self.cancelled.retain(|cancelled| *cancelled != object.0);
        self.ready = true;
        if !well {
            self.waste(object.0);
        }
    }

    /// Whether the object is being fetched ahead.
    #[must_use]
    pub fn is_flying(&self, object: Ino) -> bool {
        self.flying.contains_key(&object.0)
    }

    /// Whether somebody waits for an object that is being fetched ahead.
    #[must_use]
    pub fn is_waited_for(&self, object: Ino) -> bool {
        self.flying.get(&object.0) == Some(&true)
    }

    /// Somebody waits for an object that is being fetched ahead: the room that was promised to it is
    /// the other's to use.
    pub fn overtaken(&mut self, object: Ino) {
        if let Some(waited_for) = self.flying.get_mut(&object.0) {
            *waited_for = true;
        }
    }

    /// The object has left its tier.
    pub fn left(&mut self, object: Ino) {
        if self.tracks.is_empty() {
            return;
        }
        // There is room now, for this or others.
        self.ready = true;
        if self.flying.contains_key(&object.0) {
            return;
        }
        if self.outstanding.contains_key(&object.0) {
            self.waste(object.0);
            return;
        }
        // It may be worth fetching again although the search has passed it by.
        for track in &mut self.tracks {
            if let Some(position) = self.references.position(track.id, object.0) {
                track.scan = track.scan.min(position);
            }
        }
    }

    /// What stood in the way may have changed: something can leave its tier again.
    pub fn stir(&mut self) {
        self.ready = true;
    }

    /// The next object worth fetching, in the order of the references of the job whose turn it is.
    /// `missing` says how many bytes of an object that has so many are not on its tier, 0 also for
    /// one that cannot be fetched now. Answered by [`Self::begun`] or [`Self::declined`]. Bounded
    /// work; nothing to do costs nothing.
    pub fn next(&mut self, missing: impl Fn(u64, u64) -> u64) -> Option<FetchCandidate> {
        if !self.ready || self.budget == 0 {
            return None;
        }
        let jobs = self.tracks.len();
        let mut left = LOOKED_AT;
        for turn in 0..jobs {
            let at = (self.turn + turn) % jobs;
            if let Some(wanted) = self.search(at, &mut left, &missing) {
                self.turn = (at + 1) % jobs;
                return Some(wanted);
            }
        }
        // With references unseen, the next event goes on.
        self.ready = left == 0;
        None
    }

    fn search(
        &mut self,
        at: usize,
        left: &mut usize,
        missing: &impl Fn(u64, u64) -> u64,
    ) -> Option<FetchCandidate> {
        let Self { budget, references, tracks, outstanding, flying, bytes, .. } = self;
        let track = &mut tracks[at];
        let job = track.id;
        let trusted = references.progress(job).is_some_and(|progress| progress.trusted);
        if track.is_silent(*budget) || !trusted || flying.len() >= FLIGHTS {
            return None;
        }
        let room = ((*budget + track.bytes).saturating_sub(*bytes) / 2).saturating_sub(track.bytes);
        track.scan = track.scan.max(references.whereabouts(job));
        while *left > 0 {
            *left -= 1;
            let position = track.scan;
            let (object, expected) = references.reference(job, position)?;
            let known = outstanding.contains_key(&object) || flying.contains_key(&object);
            let size = track.sizes.get(&object).copied().unwrap_or(0);
            let more = if expected && !known { missing(object, size) } else { 0 };
            if more == 0 {
                track.scan += 1;
                continue;
            }
            let more = more.min((*budget / 4).saturating_sub(OVERHEAD));
            if more == 0 || more + OVERHEAD > room {
                return None;
            }
            return Some(FetchCandidate { object: Ino(object), more: Bytes(more), job, position });
        }
        None
    }

    /// Whether replacing `victim` by `newcomer` would do harm: it is needed sooner.
    #[must_use]
    pub fn harms(&self, newcomer: Ino, victim: Ino) -> bool {
        match (self.references.future(victim.0), self.references.future(newcomer.0)) {
            (Future::At(sooner), Future::At(later)) => sooner <= later,
            (Future::At(_), _) => true,
            _ => false,
        }
    }

    /// A wanted object is being fetched: `more` bytes.
    pub fn begun(&mut self, wanted: &FetchCandidate, more: Bytes) {
        let (object, bytes) = (wanted.object.0, more.0 + OVERHEAD);
        let Ok(at) = self.tracks.binary_search_by_key(&wanted.job, |track| track.id) else {
            return;
        };
        let track = &mut self.tracks[at];
        track.scan = track.scan.max(wanted.position + 1);
        track.bytes += bytes;
        track.ahead.insert((wanted.position, object));
        track.counts.fetched += 1;
        track.counts.fetched_bytes += more.0;
        self.bytes += bytes;
        self.outstanding
            .insert(object, Ahead { job: wanted.job, position: wanted.position, bytes });
        self.flying.insert(object, false);
    }

    /// There is no room for a wanted object without harm. What is needed later would get none either,
    /// until something changes. One that can never have any is passed by.
    pub fn declined(&mut self, wanted: &FetchCandidate, never: bool) {
        if !never {
            self.ready = false;
        } else if let Some(track) = self.track(wanted.job) {
            track.scan = track.scan.max(wanted.position + 1);
        }
    }

    /// Bytes fetched ahead, or being fetched, that are not used yet, each object with what it takes
    /// up besides.
    #[must_use]
    pub fn outstanding(&self) -> Bytes {
        Bytes(self.bytes)
    }

    /// References and objects remembered: what memory grows with.
    #[must_use]
    pub fn remembered(&self) -> u64 {
        self.references.remembered()
    }

    /// Counts over all jobs, also those that are gone.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = self.gone;
        for track in &self.tracks {
            counts.add(&track.counts);
        }
        counts
    }

    /// The jobs, in the order of their numbers.
    #[must_use]
    pub fn jobs(&self) -> Vec<JobSnapshot> {
        let job = |track: &Track| JobSnapshot {
            job: track.id,
            progress: self.references.progress(track.id).unwrap_or_default(),
            counts: track.counts,
            outstanding: Bytes(track.bytes),
            silent: track.is_silent(self.budget),
        };
        self.tracks.iter().map(job).collect()
    }

    fn track(&mut self, job: u64) -> Option<&mut Track> {
        let at = self.tracks.binary_search_by_key(&job, |track| track.id).ok()?;
        self.tracks.get_mut(at)
    }
}

impl Track {
    fn new(id: u64) -> Self {
        Self {
            id,
            scan: 0,
            sizes: Map::default(),
            ahead: BTreeSet::new(),
            bytes: 0,
            credit: CREDIT,
            wasted: 0,
            regained: 0,
            counts: Counts::default(),
        }
    }

    fn is_silent(&self, budget: u64) -> bool {
        self.credit == 0 || self.wasted >= budget
    }
}
