//! Who is due when, and the thread that hands those who are to the flushers.
//!
//! The namespace keeps the backlog; this keeps only when to look at whom, in bounded memory. What
//! finds no place here, and what a restart left behind, is found by looking through the backlog.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use forebay_meta::{EngineError, Error as MetaError, Record, Seq};
use forebay_store::ErrorClass;
use forebay_types::{FileKind, Ino};
use parking_lot::{Condvar, Mutex};

use super::refused::is_beyond_store;
use super::work::Batch;
use crate::clock;
use crate::config::WritebackPolicy;
use crate::defects::Step;
use crate::error::{NodeError, Result};
use crate::pool::Urgency;
use crate::writeback::Writeback;
use crate::writeback::import::LIMBO;

/// Names and attributes reach the backing store this long after their change, so that what is
/// temporary never gets there.
pub(crate) const NAMES_DELAY: Duration = Duration::from_secs(1);

/// Times are rounded up to this, so that what changes in quick succession is one batch.
const TICK: Duration = Duration::from_millis(250);

const MAX_WAITING: usize = 65_536;

/// Inodes that one worker brings in line with one sync of directories.
const MAX_IN_BATCH: usize = 256;
const LEAST_IN_BATCH: usize = 8;

/// A file larger than this does not keep others waiting for their report.
const LARGE_FILE: u64 = 1 << 20;

const SCAN_PAGE: usize = 1000;
const SCAN_INTERVAL: Duration = Duration::from_secs(5);

const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(60);
const LAST_RETRY_WHEN_BUSY: Duration = Duration::from_secs(5);

/// How often a few are tried while the disk of the metadata is full.
const PAUSE_WHEN_FULL: Duration = Duration::from_secs(1);

/// Failures of one kind are told at most once in this time.
const WARNING_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Clone, Copy)]
struct Due {
    at: Instant,
    first: Instant,
    failures: u32,
}

#[derive(Default)]
struct State {
    order: BTreeSet<(Instant, u64)>,
    waiting: HashMap<u64, Due>,
    /// Batches in the hands of the flushers.
    running: usize,
    /// Callers that go through the whole backlog themselves.
    paused: usize,
    first_tick: Option<Instant>,
    /// The disk of the metadata is full: when a few are tried again, to see whether it still is. All
    /// others rest, for no turn can be recorded, and each would only cost a processor.
    full_until: Option<Instant>,
    stopped: bool,
}

/// The inodes that wait for their turn.
#[derive(Default)]
pub(super) struct ReconcileQueue {
    state: Mutex<State>,
    wake: Condvar,
}

/// While it lives, nothing is handed out because its time has come.
pub(super) struct Paused<'a>(&'a ReconcileQueue);

impl ReconcileQueue {
    /// For a caller that goes through the whole backlog: two at it would spoil each other's
    /// batches.
    pub(super) fn pause(&self) -> Paused<'_> {
        self.state.lock().paused += 1;
        Paused(self)
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.0.state.lock().paused -= 1;
        self.0.wake.notify_all();
    }
}

impl State {
    fn tick_after(&mut self, at: Instant) -> Instant {
        let first = *self.first_tick.get_or_insert(at);
        let over = at.saturating_duration_since(first).as_nanos() % TICK.as_nanos();
        at + Duration::from_nanos(((TICK.as_nanos() - over) % TICK.as_nanos()) as u64)
    }

    fn set(&mut self, ino: Ino, due: Due) -> bool {
        let known = self.waiting.get(&ino.0).copied();
        if known.is_none() && self.waiting.len() >= MAX_WAITING {
            return false;
        }
        if let Some(known) = known {
            self.order.remove(&(known.at, ino.0));
        }
        let earliest = self.order.first().is_none_or(|(at, _)| due.at < *at);
        self.order.insert((due.at, ino.0));
        self.waiting.insert(ino.0, due);
        earliest
    }

    /// How many are to be taken by a thread that has room for so many batches.
    fn most_to_take(&mut self, room: usize, now: Instant) -> usize {
        match &mut self.full_until {
            None => room * MAX_IN_BATCH,
            Some(until) if now < *until => 0,
            Some(until) => {
                *until = now + PAUSE_WHEN_FULL;
                room.min(1) * LEAST_IN_BATCH
            }
        }
    }

    fn take_due(&mut self, most: usize) -> Vec<(Ino, u32)> {
        let now = Instant::now();
        let mut taken = Vec::new();
        while taken.len() < most {
            let Some(&(at, ino)) = self.order.first().filter(|(at, _)| *at <= now) else { break };
            self.order.remove(&(at, ino));
            let failures = self.waiting.remove(&ino).map_or(0, |due| due.failures);
            taken.push((Ino(ino), failures));
        }
        taken
    }
}

/// What became of one inode in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is in line.
    Done,
    /// It is in use, or not to be written yet.
    NotYet,
    /// Somebody else is at it, or it changes all the time.
    Busy,
    /// The backing store failed.
    Failed,
    /// The backing store can't have it.
    Refused,
    /// Programs may go on to change it; what it was at the call is there.
    AsAtCall,
    /// It was removed, and goes in the turn of the one that has its name now.
    LeftToHeir,
}

/// Which inodes have a turn in a batch, and when that is over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Those that may be written now; the others come again.
    Due,
    /// All, also those in use; the caller sees to what is left.
    All,
    /// All, and of those that are in use it is enough that what they were in their turn is there.
    AllAsAtCall,
}

impl Writeback {
    /// Tells the workers that `ino` has something for the backing store from `delay` on. Said
    /// again, the later time counts, but it is not put off for ever; no delay means at once.
    pub(crate) fn reconcile_later(&self, ino: Ino, delay: Duration) {
        let now = Instant::now();
        let mut state = self.reconciler.queue.state.lock();
        let known = state.waiting.get(&ino.0).copied();
        let first = known.map_or(now, |due| due.first);
        let latest = first + (delay * 10).max(Duration::from_secs(30));
        let at = match known {
            _ if delay.is_zero() => now,
            Some(due) => due.at.max(state.tick_after(now + delay)).min(latest.max(now)),
            None => state.tick_after(now + delay),
        };
        let failures = known.map_or(0, |due| due.failures);
        if state.set(ino, Due { at, first, failures }) {
            self.reconciler.queue.wake.notify_all();
        }
    }

    /// Has a file written back so that it makes room. One at which that has failed keeps its time: many that
    /// wait for a full store would keep it busy in vain.
    pub(crate) fn flush_soon(&self, ino: Ino) -> bool {
        self.reconciler.wanted.lock().insert(ino.0);
        let keeps_its_time = |due: &Due| due.failures > 0 && due.at > Instant::now();
        if self.reconciler.queue.state.lock().waiting.get(&ino.0).is_some_and(keeps_its_time) {
            return false;
        }
        self.reconcile_later(ino, Duration::ZERO);
        true
    }

    fn retry_later(&self, ino: Ino, failures: u32, longest: Duration) {
        let delay = pause_after(failures, longest);
        let now = Instant::now();
        let due = Due { at: now + delay, first: now, failures: failures + 1 };
        if self.reconciler.queue.state.lock().set(ino, due) {
            self.reconciler.queue.wake.notify_all();
        }
        let is_wanted = self.reconciler.wanted.lock().contains(&ino.0);
        if is_wanted {
            self.residency.flush_failed(ino);
        }
    }

    /// Starts the thread that hands the backlog to the flushers.
    pub(crate) fn start_reconciler(self: &Arc<Self>) {
        let node = Arc::downgrade(self);
        let run = move || {
            let mut scan = Scan::default();
            while let Some(node) = node.upgrade() {
                if !node.hand_out(&mut scan) {
                    break;
                }
            }
        };
        match thread::Builder::new().name("backlog".into()).spawn(run) {
            Ok(thread) => self.threads.lock().push(thread),
            Err(error) => tracing::error!(
                %error,
                "no thread for the backlog: changes reach the backing store only by sync and umount"
            ),
        }
    }

    /// Ends that thread. What is under way goes on.
    pub(crate) fn stop_reconciler(&self) {
        self.reconciler.queue.state.lock().stopped = true;
        self.reconciler.queue.wake.notify_all();
    }

    /// Lets that thread be started again.
    pub(crate) fn restart_reconciler(&self) {
        self.reconciler.queue.state.lock().stopped = false;
    }

    /// One round of the thread: false when it is to end.
    fn hand_out(&self, scan: &mut Scan) -> bool {
        let threads = self.config.flush_threads.max(1);
        let queue = &self.reconciler.queue;
        let due = {
            let mut state = queue.state.lock();
            if state.stopped || self.stopping.load(Ordering::Relaxed) {
                return false;
            }
            let paused = state.paused > 0;
            let room = if paused || self.defects.is_cautious() {
                0
            } else {
                (2 * threads).saturating_sub(state.running)
            };
            let most = state.most_to_take(room, Instant::now());
            let due = state.take_due(most);
            if due.is_empty() {
                let next = state.order.first().map(|(at, _)| *at).filter(|_| most > 0);
                let idle = Instant::now() + NAMES_DELAY;
                queue.wake.wait_until(&mut state, next.map_or(idle, |next| next.min(idle)));
            }
            due
        };
        if due.is_empty() {
            self.scan(scan);
            self.restore_times_when_idle();
            return true;
        }
        let each = batch_size(due.len(), threads);
        for batch in due.chunks(each) {
            self.hand_to_flushers(batch.to_vec());
        }
        true
    }

    fn hand_to_flushers(&self, due: Vec<(Ino, u32)>) {
        self.reconciler.queue.state.lock().running += 1;
        let this = self.this.clone();
        let again = due.clone();
        let job = move || {
            if let Some(node) = this.upgrade() {
                node.take_turns(&due, Wanted::Due, &mut |_, _| {});
                node.batch_ended();
            }
        };
        if self.flushers.run(Urgency::Demand, job).is_err() {
            for (ino, failures) in again {
                self.retry_later(ino, failures, LAST_RETRY_WHEN_BUSY);
            }
            self.batch_ended();
        }
    }

    fn batch_ended(&self) {
        self.reconciler.queue.state.lock().running -= 1;
        self.reconciler.queue.wake.notify_all();
    }

    fn restore_times_when_idle(&self) {
        let idle = {
            let state = self.reconciler.queue.state.lock();
            // What has failed may wait for long.
            state.running == 0 && state.waiting.values().all(|due| due.failures > 0)
        };
        if idle && !self.reconciler.entries_written.lock().is_empty() {
            let this = self.this.clone();
            let job = move || {
                if let Some(node) = this.upgrade() {
                    node.keep_up(Step::Times);
                }
            };
            // Refused: there is work again, and another time to be idle.
            self.flushers.run(Urgency::Background, job).ok();
        }
    }

    /// Brings several inodes in line with one sync of what was changed; `told` hears what became of
    /// each. Those that could not be brought in line are put into the queue again, unless all are
    /// wanted.
    pub(super) fn take_turns(
        &self,
        due: &[(Ino, u32)],
        wanted: Wanted,
        told: &mut dyn FnMut(Ino, Turn),
    ) {
        let all = wanted != Wanted::Due;
        let writable = due.iter().map(|(ino, _)| *ino).filter(|ino| self.has_turn(*ino, all));
        let _stage = self.stage(&writable.collect::<Vec<_>>());
        let mut batch = Batch::new(self);
        let mut done = Vec::with_capacity(due.len());
        let mut full = false;
        for &(ino, failures) in due {
            if full && !all {
                self.after_the_full_disk(ino, failures);
                continue;
            }
            let mut turn = self.take_turn(ino, all, &mut batch);
            if matches!(turn, Ok(Turn::Busy)) && batch.finish().is_ok() {
                turn = match wanted == Wanted::AllAsAtCall && batch.has_as_it_was(ino) {
                    true => Ok(Turn::AsAtCall),
                    false => self.take_turn(ino, all, &mut batch),
                };
            }
            match turn {
                Ok(Turn::Done) => {
                    let was_wanted = self.reconciler.wanted.lock().remove(&ino.0);
                    done.push((ino, failures, was_wanted));
                }
                Ok(turn) => {
                    if turn == Turn::AsAtCall {
                        self.note_success(ino);
                    }
                    if turn == Turn::NotYet && self.reconciler.wanted.lock().contains(&ino.0) {
                        // Somebody has opened it, perhaps for long.
                        self.residency.flush_failed(ino);
                    }
                    if turn == Turn::Busy && !all {
                        self.retry_later(ino, failures, LAST_RETRY_WHEN_BUSY);
                    }
                    told(ino, turn);
                }
                Err(error) => {
                    full |= self.rest_if_full(&error);
                    self.turn_failed(ino, failures, &error);
                    let refused = match self.tier_at_fault(&error) {
                        Some(tier) => self.is_denied_by_tier(tier, &error),
                        None => is_beyond_store(&error) || self.is_read_only_for_good(&error),
                    };
                    if refused {
                        self.note_refused_place(ino, &error);
                    }
                    told(ino, if refused { Turn::Refused } else { Turn::Failed });
                }
            }
        }
        let finished = batch.finish();
        match &finished {
            Ok(()) if !done.is_empty() => {
                self.reconciler.queue.state.lock().full_until = None;
                self.reconciler.last_error.lock().take_if(|_| self.meta.backlog_len() == 0);
            }
            Ok(()) => {}
            Err(error) => {
                self.rest_if_full(error);
            }
        }
        self.tell_done(done, finished, told);
    }

    /// What became of the inodes of a batch that have had their turn, by how that has `finished`.
    fn tell_done(
        &self,
        done: Vec<(Ino, u32, bool)>,
        finished: Result<()>,
        told: &mut dyn FnMut(Ino, Turn),
    ) {
        for (ino, failures, was_wanted) in done {
            match &finished {
                Ok(()) => {
                    self.note_success(ino);
                    if was_wanted {
                        // Also if there was nothing to be written.
                        self.residency.say_clean(ino);
                    }
                    told(ino, Turn::Done);
                }
                Err(error) => {
                    if was_wanted {
                        self.reconciler.wanted.lock().insert(ino.0);
                    }
                    self.turn_failed(ino, failures, error);
                    told(ino, Turn::Failed);
                }
            }
        }
    }

    /// Whether a turn has failed because the disk of the metadata is full: then the whole backlog rests.
    fn rest_if_full(&self, error: &NodeError) -> bool {
        let full = matches!(error, NodeError::Meta(MetaError::Engine(EngineError::NoSpace { .. })));
        if full {
            let until = Instant::now() + PAUSE_WHEN_FULL;
            self.reconciler.queue.state.lock().full_until = Some(until);
        }
        full
    }

    /// Puts an inode back whose turn can't be recorded now, as if it had not come.
    fn after_the_full_disk(&self, ino: Ino, failures: u32) {
        let now = Instant::now();
        self.reconciler.queue.state.lock().set(ino, Due { at: now, first: now, failures });
    }

    fn has_turn(&self, ino: Ino, all: bool) -> bool {
        matches!(self.known(ino), Ok(Some(record)) if self.may_be_written(&record, all))
    }

    fn take_turn<'a>(&'a self, ino: Ino, all: bool, batch: &mut Batch<'a>) -> Result<Turn> {
        let Some(record) = self.known(ino)? else { return Ok(Turn::Done) };
        if !self.may_be_written(&record, all) {
            return Ok(Turn::NotYet);
        }
        if record.is_dirty() && record.attr.size > LARGE_FILE {
            batch.finish()?;
        }
        match self.reconcile_in(ino, batch) {
            Ok(()) if batch.has_left_to_heir(ino) => Ok(Turn::LeftToHeir),
            Ok(()) => Ok(Turn::Done),
            Err(NodeError::Busy) => Ok(Turn::Busy),
            Err(error)
                if self.was_overtaken(&record, &error)?
                    || self.gives_up_what_is_gone(ino, batch, &error)? =>
            {
                Ok(Turn::Busy)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether a turn failed because of what happened meanwhile: the inode was removed or renamed,
    /// perhaps with the directory that it was to be written to, or the handle on a directory was
    /// one of another that is gone. Looking again tells what there is to do now.
    fn was_overtaken(&self, record: &Record, error: &NodeError) -> Result<bool> {
        let now = self.known(record.ino)?;
        if now.is_none_or(|now| now.links != record.links) {
            return Ok(true);
        }
        match error.class() {
            // The directory may still be there under its name.
            Some(ErrorClass::Stale) => return self.drops_stale_handles(record),
            Some(ErrorClass::NotFound) => {}
            _ => return Ok(false),
        }
        let mut gone = 0;
        let parents: BTreeSet<Ino> = record.links.iter().map(|link| link.parent).collect();
        for dir in parents {
            // Removed by others, it is made again for what it has.
            gone += usize::from(self.handle_is_dead(dir)? || self.directory_is_gone(dir)?);
        }
        Ok(gone > 0)
    }

    fn turn_failed(&self, ino: Ino, failures: u32, error: &NodeError) {
        self.note_failure(ino, error);
        let mut warnings = self.reconciler.warnings.lock();
        let told = (failures == 0).then(|| warnings.hear(error.class(), Instant::now())).flatten();
        drop(warnings);
        let set_aside = matches!(error, NodeError::SetAside { .. });
        if let Some(untold) = told.filter(|_| !set_aside) {
            tracing::warn!(
                %ino,
                %error,
                untold,
                "not written to the backing store; will be tried again"
            );
        } else {
            tracing::debug!(%ino, %error, failures, "not written to the backing store again");
        }
        if let Err(error) = self.meta.requeue_last(ino) {
            tracing::debug!(%ino, %error, "keeps its place in the backlog");
        }
        self.retry_later(ino, failures, LAST_RETRY);
    }

    /// Whether a removed file is to be left alone until its last close.
    pub(super) fn keeps_hidden(&self, record: &Record) -> bool {
        is_hidden_orphan(record)
            && !self.rights.is_left_orphan(record)
            && !(record.has_unseen_names() && self.residency.is_unsettled(record.ino))
    }

    /// Whether it is time for an inode, by the write-back rule and its users.
    fn may_be_written(&self, record: &Record, all: bool) -> bool {
        if self.keeps_hidden(record) {
            return false;
        }
        let has_bytes = record.attr.kind == FileKind::Regular
            && record.attr.nlink > 0
            && (record.is_dirty() || record.spilled);
        all || !has_bytes
            || self.is_due(record.ino) && !self.in_use(record.ino)
            || record.spilled && self.residency.spill_may_be_published(record.ino)
    }

    /// Whether a file's bytes are to be written when nobody asks: always, except that some mounts
    /// write only what must make room.
    fn is_due(&self, ino: Ino) -> bool {
        self.config.writeback != WritebackPolicy::OnEviction
            || self.reconciler.wanted.lock().contains(&ino.0)
    }

    /// Looks through a part of the backlog for inodes whose time has come and that nobody spoke of.
    fn scan(&self, scan: &mut Scan) {
        let now = Instant::now();
        if scan.next.is_some_and(|next| now < next) {
            return;
        }
        let page = match self.meta.backlog(scan.after, SCAN_PAGE) {
            Ok(page) => page,
            Err(error) => {
                tracing::error!(
                    %error,
                    "the backlog can't be read: what is due reaches the backing store later. Check \
                     the device of the first tier, or the metadata servers"
                );
                scan.next = Some(now + SCAN_INTERVAL);
                return;
            }
        };
        for (_, ino) in &page {
            let spoken_of = self.reconciler.queue.state.lock().waiting.contains_key(&ino.0);
            if !spoken_of
                && let Ok(record) = self.meta.get(*ino)
                && self.has_aged(&record)
                && self.may_be_written(&record, false)
            {
                self.reconcile_later(*ino, Duration::ZERO);
            }
        }
        scan.took += now.elapsed();
        match page.last() {
            Some((seq, _)) if page.len() == SCAN_PAGE => scan.after = *seq,
            _ => {
                scan.next = Some(Instant::now() + SCAN_INTERVAL.max(scan.took * 20));
                scan.after = Seq(0);
                scan.took = Duration::ZERO;
            }
        }
    }

    /// Whether the latest change is older than the write-back delay. A clock that was set back must
    /// not put things off: a change in the future counts as old.
    fn has_aged(&self, record: &Record) -> bool {
        let delay = match self.config.writeback {
            WritebackPolicy::After(delay) if record.is_dirty() => delay,
            _ => NAMES_DELAY,
        };
        let changed = record.attr.ctime.max(record.attr.mtime);
        let age = clock::wall_time().sec - changed.sec;
        age < 0 || age.unsigned_abs() > delay.as_secs()
    }
}

/// Which failures were told in the log lately: one that strikes thousands of files at once is told
/// once, with the number of those before that were not.
#[derive(Default)]
pub(super) struct Warnings(HashMap<Option<ErrorClass>, (Instant, u64)>);

impl Warnings {
    /// Whether a failure is to be told: then, how many of its kind were not since the last one.
    fn hear(&mut self, reason: Option<ErrorClass>, now: Instant) -> Option<u64> {
        if let Some((told, untold)) = self.0.get_mut(&reason)
            && now - *told < WARNING_INTERVAL
        {
            *untold += 1;
            return None;
        }
        let before = self.0.insert(reason, (now, 0));
        Some(before.map_or(0, |(_, untold)| untold))
    }
}

/// The pause before an inode is tried again that has failed so often before.
fn pause_after(failures: u32, longest: Duration) -> Duration {
    (FIRST_RETRY * 2_u32.pow(failures.min(12))).min(longest)
}

/// How many of so many inodes each of the threads takes at once: few enough to keep all of them
/// busy, and enough to be worth a sync.
pub(super) fn batch_size(inodes: usize, threads: usize) -> usize {
    inodes.div_ceil(threads.max(1)).clamp(LEAST_IN_BATCH, MAX_IN_BATCH)
}

/// A removed file that is in use: its bytes wait in limbo for the last close.
fn is_hidden_orphan(record: &Record) -> bool {
    record.orphan
        && record.links.is_empty()
        && !record.is_owed_to_unseen_names()
        && record.backing.links.iter().all(|link| link.parent == LIMBO)
}

/// How far the thread has looked through the backlog.
#[derive(Default)]
struct Scan {
    after: Seq,
    next: Option<Instant>,
    took: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(at: Instant) -> Due {
        Due { at, first: at, failures: 0 }
    }

    #[test]
    fn pause_when_failures_go_on_then_doubles_up_to_the_limit() {
        let pauses: Vec<u64> = [0, 1, 2, 9, 10, u32::MAX]
            .map(|n| pause_after(n, LAST_RETRY).as_millis() as u64)
            .into();
        assert_eq!(pauses, [100, 200, 400, 51_200, 60_000, 60_000]);
    }

    #[test]
    fn warnings_when_one_failure_strikes_many_then_told_once_and_counted() {
        let mut warnings = Warnings::default();
        let begin = Instant::now();
        let (missing, full) = (Some(ErrorClass::NotFound), Some(ErrorClass::NoSpace));
        assert_eq!(warnings.hear(missing, begin), Some(0));
        let told = (1..3000).filter_map(|_| warnings.hear(missing, begin)).count();
        assert_eq!(told, 0);
        assert_eq!(warnings.hear(full, begin), Some(0), "another reason is told");
        assert_eq!(warnings.hear(missing, begin + WARNING_INTERVAL), Some(2999));
        assert_eq!(warnings.hear(missing, begin + 2 * WARNING_INTERVAL), Some(0));
    }

    #[test]
    fn waiting_when_full_then_refuses_and_keeps_order() {
        let mut state = State::default();
        let now = Instant::now();
        for ino in 0..MAX_WAITING as u64 + 10 {
            state.set(Ino(ino), due(now - Duration::from_millis(ino % 100)));
        }
        assert_eq!(state.waiting.len(), MAX_WAITING);
        assert_eq!(state.order.len(), MAX_WAITING);
        assert!(state.set(Ino(7), due(now - Duration::from_secs(1))), "now the earliest");
        assert_eq!(state.order.len(), MAX_WAITING);
        assert_eq!(state.take_due(1)[0].0, Ino(7));
    }

    #[test]
    fn backlog_when_the_disk_of_the_metadata_is_full_then_a_few_are_tried_now_and_then() {
        let mut state = State::default();
        let now = Instant::now();
        assert_eq!(state.most_to_take(2, now), 2 * MAX_IN_BATCH);
        state.full_until = Some(now + PAUSE_WHEN_FULL);
        assert_eq!(state.most_to_take(2, now), 0);
        let later = now + PAUSE_WHEN_FULL;
        assert_eq!(state.most_to_take(2, later), LEAST_IN_BATCH);
        assert_eq!(state.most_to_take(2, later), 0, "not a few again and again");
        state.full_until = None;
        assert_eq!(state.most_to_take(0, later), 0);
    }

    #[test]
    fn take_due_when_the_time_has_not_come_then_takes_nothing() {
        let mut state = State::default();
        state.set(Ino(1), due(Instant::now() + Duration::from_secs(60)));
        assert!(state.take_due(10).is_empty());
        assert_eq!(state.waiting.len(), 1);
    }
}
