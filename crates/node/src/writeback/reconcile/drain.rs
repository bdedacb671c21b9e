//! Bringing everything in line, or everything below a directory, while somebody waits.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_meta::{Record, Seq};
use forebay_types::{FileKind, Ino, Timestamp};
use parking_lot::{Condvar, Mutex};

use super::closed_to_owner::MAX_REOPENED;
use super::data_side::RemovedFiles;
use super::queue::{Turn, Wanted, batch_size};
use super::{MAX_PARENTS, Remaining};
use crate::defects::Step;
use crate::error::{NodeError, Result, is_undecodable};
use crate::pool::Urgency;
use crate::residency::files::File;
use crate::writeback::Writeback;

const PAGE: usize = 1000;
const TELL_EVERY: Duration = Duration::from_millis(100);

/// Files that programs keep changing are given up after this long without any progress.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// Why a sync has left something that nobody changes, and at which nothing failed.
const NOT_ITS_TURN: &str = "it waits for other work of the write-back, as on its directory, or on what has \
its name in the backing store, and that was not done in time; try again";

/// Why a sync has left a file of which the backlog knows nothing, and what can be done.
const UNSETTLED: &str = "what was written to it is on the tier, and can't be noted so that it is written \
back";
const UNSETTLED_ADVICE: &str =
    "Forebay tries it again every few seconds; see to what fails, and sync again";

const REPAIR: &str = "`forebay umount --no-drain`, repair its file system, and mount again";

/// Inodes of one pass that are remembered as left, and those that are told with a reason.
const MAX_LEFT: usize = 10_000;
const MAX_TOLD: usize = 50;

/// Hears what remains; false stops.
pub type Progress<'a> = &'a mut dyn FnMut(Remaining) -> bool;

#[derive(Default)]
struct Tally {
    running: usize,
    done: u64,
    busy: u64,
    failed: u64,
    refused: u64,
    /// Removed ones that go with those that have their names now, and have not gone.
    left_to_heirs: u64,
}

impl Tally {
    /// Whether to try again at once would not change anything.
    fn is_at_an_end(&self) -> bool {
        self.done + self.busy + self.failed == 0
    }

    /// How many the store can't have, and how many go with those only: where nothing else is left, those
    /// that have the names of the removed ones are among them.
    fn refused_with_heirs(&self) -> u64 {
        let with_them = self.refused > 0 && self.is_at_an_end();
        self.refused + if with_them { self.left_to_heirs } else { 0 }
    }
}

/// So often one sync brings an inode in line that is queued again at once.
const MAX_TURNS: u32 = 8;

#[derive(Default)]
struct DrainState {
    tally: Mutex<Tally>,
    ended: Condvar,
    /// What the last pass left, and whether it was busy.
    left: Mutex<Vec<(Ino, bool)>>,
    /// Files that were brought in line, and their bytes.
    written: Mutex<(u64, u64)>,
    /// How often each inode was brought in line.
    in_line: Mutex<HashMap<Ino, u32>>,
    /// Of a sync, which need not wait until nobody can change a file any more: those that are written as they
    /// were at the call or after it.
    as_at_call: Option<Mutex<HashSet<Ino>>>,
}

/// What became of a sync.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Synced {
    /// What is left: inodes below the one that was asked for, bytes on the whole node.
    pub left: Remaining,
    /// Whether all that was written before the call is in the backing store.
    pub complete: bool,
    /// Whether it ended before everything had had its turn.
    pub cut_short: bool,
    /// Files that this sync has brought in line.
    pub files: u64,
    /// Their lengths in bytes.
    pub bytes: u64,
    /// Files that programs may be changing: what they had at the call is in the backing store.
    pub in_use: u64,
    /// Inodes that could not be brought in line.
    pub failed: u64,
    /// Some of them, each by a path and with the reason.
    pub failures: Vec<(Vec<u8>, String)>,
}

/// Why passes ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Nothing more is to be done.
    Done,
    /// The backing store can't have the rest.
    Refused,
    /// Programs may be changing the rest.
    InUse,
    /// The time was over, or nobody waits any more.
    Over,
}

/// Batches in the hands of the flushers that one caller waits for.
struct Sweep<'a, 'p> {
    node: &'a Writeback,
    shared: Arc<DrainState>,
    pending: Vec<(Ino, u32)>,
    batch: usize,
    until: Instant,
    told: Instant,
    progress: Progress<'p>,
    stopped: bool,
    /// Of this pass, those that may come once more by another name.
    seen: HashSet<Ino>,
    /// Files whose bytes are lost: no waiting helps.
    lost: BTreeMap<Ino, String>,
    /// What the index has and can't be decoded, by path, and why.
    undecodable: BTreeMap<Vec<u8>, String>,
}

impl<'a, 'p> Sweep<'a, 'p> {
    fn new(node: &'a Writeback, until: Instant, progress: Progress<'p>) -> Self {
        let told = Instant::now() - TELL_EVERY;
        let shared = Arc::default();
        let backlog = usize::try_from(node.meta.backlog_len()).unwrap_or(usize::MAX);
        let batch = batch_size(backlog, node.config.flush_threads);
        let (pending, seen, stopped) = (Vec::new(), HashSet::new(), false);
        let (lost, undecodable) = (BTreeMap::new(), BTreeMap::new());
        Sweep {
            node,
            shared,
            pending,
            batch,
            until,
            told,
            progress,
            stopped,
            seen,
            lost,
            undecodable,
        }
    }

    /// As [`Sweep::new`], where it is enough that what files had at the call is written.
    fn as_at_call(node: &'a Writeback, until: Instant, progress: Progress<'p>) -> Self {
        let as_at_call = Some(Mutex::default());
        let shared = Arc::new(DrainState { as_at_call, ..DrainState::default() });
        Sweep { shared, ..Sweep::new(node, until, progress) }
    }

    fn over(&self) -> bool {
        self.stopped || Instant::now() >= self.until
    }

    fn add(&mut self, ino: Ino) {
        self.pending.push((ino, 0));
        if self.pending.len() >= self.batch {
            self.submit();
        }
    }

    fn submit(&mut self) {
        let due = std::mem::take(&mut self.pending);
        if due.is_empty() {
            return;
        }
        self.wait_for(2 * self.node.config.flush_threads.max(1) - 1);
        if self.over() {
            return;
        }
        self.shared.tally.lock().running += 1;
        let (this, shared, again) = (self.node.this.clone(), self.shared.clone(), due.clone());
        let job = move || {
            if let Some(node) = this.upgrade() {
                work_through(&node, &shared, &due);
            }
            shared.tally.lock().running -= 1;
            shared.ended.notify_all();
        };
        if self.node.flushers.run(Urgency::Demand, job).is_err() {
            work_through(self.node, &self.shared, &again);
            self.shared.tally.lock().running -= 1;
        }
    }

    /// Waits until no more than `most` batches run, telling how it goes.
    fn wait_for(&mut self, most: usize) {
        loop {
            self.tell();
            let shared = self.shared.clone();
            let mut tally = shared.tally.lock();
            if tally.running <= most || self.over() {
                return;
            }
            shared.ended.wait_until(&mut tally, (self.told + TELL_EVERY).min(self.until));
        }
    }

    fn tell(&mut self) {
        if self.told.elapsed() >= TELL_EVERY {
            self.told = Instant::now();
            self.stopped |= !(self.progress)(self.node.remaining());
        }
    }

    /// Waits for all that was submitted. What became of it.
    fn end(&mut self) -> Tally {
        self.submit();
        self.wait_for(0);
        self.seen.clear();
        let mut tally = self.shared.tally.lock();
        let running = tally.running;
        std::mem::replace(&mut *tally, Tally { running, ..Tally::default() })
    }

    fn is_written_as_at_call(&self, ino: Ino) -> bool {
        let as_at_call = self.shared.as_at_call.as_ref();
        as_at_call.is_some_and(|written| written.lock().contains(&ino))
    }

    /// How many files are written as they were at the call, and may have changed since.
    fn written_as_at_call(&self) -> u64 {
        let as_at_call = self.shared.as_at_call.as_ref();
        as_at_call.map_or(0, |written| written.lock().len() as u64)
    }

    /// A pause between two passes.
    fn pause(&mut self, pause: Duration) {
        let end = (Instant::now() + pause).min(self.until);
        while !self.stopped && Instant::now() < end {
            std::thread::sleep((end - Instant::now()).min(TELL_EVERY));
            self.tell();
        }
    }
}

fn work_through(node: &Writeback, shared: &DrainState, due: &[(Ino, u32)]) {
    let wanted = match shared.as_at_call {
        Some(_) => Wanted::AllAsAtCall,
        None => Wanted::All,
    };
    node.take_turns(due, wanted, &mut |ino, turn| {
        if turn == Turn::AsAtCall
            && let Some(written) = &shared.as_at_call
        {
            written.lock().insert(ino);
        }
        if turn == Turn::Done {
            *shared.in_line.lock().entry(ino).or_default() += 1;
            let record = node.known(ino).ok().flatten();
            if let Some(record) = record.filter(|record| record.attr.kind == FileKind::Regular) {
                let mut written = shared.written.lock();
                *written = (written.0 + 1, written.1.saturating_add(record.attr.size));
            }
        } else if !matches!(turn, Turn::NotYet | Turn::AsAtCall | Turn::LeftToHeir) {
            let mut left = shared.left.lock();
            if left.len() < MAX_LEFT {
                left.push((ino, turn == Turn::Busy));
            }
        }
        let mut tally = shared.tally.lock();
        match turn {
            Turn::Done | Turn::AsAtCall => tally.done += 1,
            Turn::Busy => tally.busy += 1,
            Turn::Failed => tally.failed += 1,
            Turn::Refused => tally.refused += 1,
            Turn::LeftToHeir => tally.left_to_heirs += 1,
            Turn::NotYet => {}
        }
    });
}

impl Writeback {
    /// What is not in the backing store yet.
    pub fn remaining(&self) -> Remaining {
        let (entries, bytes) = (self.meta.backlog_len(), self.unwritten_bytes());
        Remaining { entries, bytes, ..Remaining::default() }
    }

    /// Brings everything in line until nothing remains or `until` has passed. `progress` is told
    /// what remains, about ten times a second, and may stop it by returning false. Files that
    /// programs keep changing remain.
    pub fn drain(
        &self,
        until: Instant,
        progress: &mut dyn FnMut(Remaining) -> bool,
    ) -> Result<Remaining> {
        let _alone = self.reconciler.queue.pause();
        self.above.let_go_of_replaced();
        self.residency.discard_removed();
        self.settle_unsettled();
        // Their bytes remain.
        let _unsettled = self.residency.settle_all(until);
        let mut sweep = Sweep::new(self, until, progress);
        let swept = sweep.run(|node, sweep| {
            let mut after = Seq(0);
            let mut kept = 0;
            loop {
                let page = node.meta.backlog(after, PAGE)?;
                let Some((last, _)) = page.last() else { return Ok(kept) };
                after = *last;
                for (_, ino) in page {
                    let known = match node.known(ino) {
                        // It remains, and says so; all others can be written.
                        Err(NodeError::Meta(error)) if is_undecodable(&error) => continue,
                        known => known?,
                    };
                    match known {
                        Some(record) if node.keeps_hidden(&record) => kept += 1,
                        // No waiting helps; it remains.
                        Some(_) if node.residency.troubles.is_lost(ino) => {}
                        Some(_) if !sweep.over() => sweep.add(ino),
                        Some(_) => {}
                        None => node.rights.doubt_place(ino),
                    }
                }
                if sweep.over() {
                    return Ok(kept);
                }
            }
        });
        self.residency.drop_spills(until);
        Ok(swept?.0)
    }

    /// The last drain of the mount has left something that could not be written back: it is noted on the
    /// tiers when it ends.
    pub fn note_left_behind(&self) {
        self.reconciler.left_behind.store(true, Ordering::Release);
    }

    /// As [`Writeback::drain`], for an inode and all below it. Of files that programs may be changing it
    /// is enough that what they had at the call is written.
    pub fn sync_subtree(
        &self,
        root: Ino,
        until: Instant,
        progress: &mut dyn FnMut(Remaining) -> bool,
    ) -> Result<Synced> {
        let unsettled = self.settle_for_sync(root, until)?;
        let mut elsewhere = 0;
        let mut sweep = Sweep::as_at_call(self, until, progress);
        let (left, end) = sweep.run(|node, sweep| {
            elsewhere = node.add_if_behind(root, sweep)?;
            let mut way = vec![(root, 0)];
            while let Some((dir, after)) = way.pop() {
                if sweep.over() {
                    break;
                }
                let record = node.known_if_decodable(dir, sweep)?;
                if !record.is_some_and(|record| record.is_directory()) {
                    continue;
                }
                if after == 0 {
                    for (_, stale_name) in node.meta.stale_names(dir)? {
                        elsewhere += node.add_if_behind(stale_name, sweep)?;
                    }
                }
                let Some((next, page)) = node.page_below(dir, after, sweep)? else { continue };
                way.push((dir, next));
                for record in &page {
                    elsewhere += node.add_behind(record, sweep);
                    if record.is_directory() {
                        way.push((record.ino, 0));
                    }
                }
            }
            Ok(u64::MAX)
        })?;
        let mut synced = Synced { left: Remaining { elsewhere, ..left }, ..Synced::default() };
        (synced.files, synced.bytes) = *sweep.shared.written.lock();
        synced.in_use = sweep.written_as_at_call();
        let rest = std::mem::take(&mut *sweep.shared.left.lock());
        synced.cut_short = end == End::Over || rest.len() >= MAX_LEFT;
        let any_left = !rest.is_empty();
        self.judge_rest(rest, until, &mut synced);
        if any_left {
            self.settle_directories(until)?;
        }
        // Also one that could be settled since: perhaps no pass has met it.
        let unsettled = unsettled
            .into_iter()
            .map(|(ino, why)| (ino, format!("{UNSETTLED}: {why}; {UNSETTLED_ADVICE}")));
        let lost = unsettled.chain(std::mem::take(&mut sweep.lost));
        let lost = lost.map(|(ino, why)| (self.shown(ino), why));
        for failure in lost.chain(std::mem::take(&mut sweep.undecodable)) {
            synced.failed += 1;
            if synced.failures.len() < MAX_TOLD {
                synced.failures.push(failure);
            }
        }
        synced.complete = !synced.cut_short && synced.failed == 0;
        Ok(synced)
    }

    /// Has the records say what was written to the files below an inode. Those of which they can't: nothing
    /// has them written back, and no pass over the backlog meets them.
    fn settle_for_sync(&self, root: Ino, until: Instant) -> Result<Vec<(Ino, String)>> {
        self.settle_unsettled();
        let mut left: HashMap<Ino, String> = self.residency.settle_all(until).into_iter().collect();
        let closed = self.residency.unsettled.all().into_iter();
        left.extend(closed.map(|told| (told.ino, told.why)));
        let mut below = Vec::new();
        for (ino, why) in left {
            let is_below = match self.known(ino) {
                // Where it is, and whether its record knows of its bytes, is not known.
                Err(NodeError::Meta(error)) if is_undecodable(&error) => true,
                known => known?.is_some_and(|record| {
                    !(record.is_dirty() || record.spilled) && self.is_within(&record, root)
                }),
            };
            if is_below {
                below.push((ino, why));
            }
        }
        below.sort_unstable();
        Ok(below)
    }

    /// Whether an inode is another one, or has a name below it here; also if that can't be told.
    fn is_within(&self, record: &Record, above: Ino) -> bool {
        if record.ino == above {
            return true;
        }
        for link in &record.links {
            let mut at = link.parent;
            for _ in 0..MAX_PARENTS {
                if at == above {
                    return true;
                }
                let parent = if at == Ino::ROOT { Ok(None) } else { self.known(at) };
                let Ok(parent) = parent else { return true };
                let Some(link) = parent.and_then(|parent| parent.links.first().cloned()) else {
                    break;
                };
                at = link.parent;
            }
        }
        false
    }

    /// The record of an inode, if it still exists and can be decoded.
    fn known_if_decodable(
        &self,
        ino: Ino,
        sweep: &mut Sweep<'_, '_>,
    ) -> Result<Option<Arc<Record>>> {
        match self.known(ino) {
            Err(NodeError::Meta(error)) if is_undecodable(&error) => {
                sweep.undecodable.insert(self.shown(ino), error.to_string());
                Ok(None)
            }
            known => known,
        }
    }

    /// A page of what is in a directory, and from where on the next one is. Of records of which one can't be
    /// decoded each is read by itself.
    fn page_below(
        &self,
        dir: Ino,
        after: u64,
        sweep: &mut Sweep<'_, '_>,
    ) -> Result<Option<(u64, Vec<Arc<Record>>)>> {
        match self.meta.entries_plus(dir, after, PAGE) {
            Err(error) if is_undecodable(&error) => {}
            page => {
                let page = page?;
                let next = page.last().map(|last| last.entry.cursor);
                return Ok(next.map(|next| (next, page.into_iter().map(|it| it.record).collect())));
            }
        }
        let entries = match self.meta.entries(dir, after, PAGE) {
            // One of its names is it: nobody can list it either.
            Err(error) if is_undecodable(&error) => {
                sweep.undecodable.insert(self.shown(dir), error.to_string());
                return Ok(None);
            }
            entries => entries?,
        };
        let Some(next) = entries.last().map(|last| last.cursor) else { return Ok(None) };
        let mut page = Vec::with_capacity(entries.len());
        for entry in entries {
            match self.known(entry.ino) {
                Err(NodeError::Meta(error)) if is_undecodable(&error) => {
                    let mut path = self.shown(dir);
                    path.extend((!path.is_empty()).then_some(b'/'));
                    path.extend_from_slice(&entry.name);
                    sweep.undecodable.insert(path, error.to_string());
                }
                known => page.extend(known?),
            }
        }
        Ok(Some((next, page)))
    }

    /// What the last pass of a sync left: bytes that are written though their file may change again
    /// are no failure.
    fn judge_rest(&self, rest: Vec<(Ino, bool)>, until: Instant, synced: &mut Synced) {
        for (ino, busy) in rest {
            let file = self.residency.files.get(ino);
            let before = self.changes_of(&file);
            let written = match busy && Instant::now() < until {
                true => self.reconcile_as_it_is(ino),
                false => Err(NodeError::Busy),
            };
            if written.is_ok() {
                // What is no file is just in line now.
                let record = self.known(ino).ok().flatten();
                let is_file = record.is_some_and(|record| record.attr.kind == FileKind::Regular);
                synced.in_use += u64::from(is_file);
                continue;
            }
            synced.failed += 1;
            if synced.failures.len() < MAX_TOLD {
                let why = match written {
                    _ if !busy => self.write_error(ino),
                    Err(NodeError::Busy) if self.changes_of(&file) != before => {
                        Some("programs keep changing it; try again".into())
                    }
                    Err(NodeError::Busy) | Ok(()) => None,
                    Err(error) => Some(error.to_string()),
                };
                let why = why.unwrap_or_else(|| NOT_ITS_TURN.into());
                synced.failures.push((self.shown(ino), why));
            }
        }
    }

    /// What programs move when they change a file.
    fn changes_of(&self, file: &File) -> (u64, Option<Timestamp>) {
        let record = self.known(file.ino).ok().flatten();
        (file.writes.load(Ordering::Acquire), record.map(|record| record.attr.ctime))
    }

    fn add_if_behind(&self, ino: Ino, sweep: &mut Sweep<'_, '_>) -> Result<u64> {
        let record = self.known_if_decodable(ino, sweep)?;
        Ok(record.map_or(0, |record| self.add_behind(&record, sweep)))
    }

    /// Why no waiting brings a file to the backing store, if so.
    fn out_of_reach(&self, ino: Ino) -> Option<String> {
        if self.residency.troubles.is_lost(ino) {
            return Some(self.residency.troubles.error_of(ino).to_string());
        }
        let there = self.residency.residents.get(ino.0).filter(|resident| resident.dirty)?;
        let tier = usize::from(there.tier);
        let why = self.residency.tier_failure(tier)?;
        let path = self.residency.tiers[tier].tier.path().display();
        Some(format!("its tier {path} has failed ({why}): {REPAIR}"))
    }

    /// Has an inode brought in line if it is this node's to do; else 1.
    fn add_behind(&self, record: &Record, sweep: &mut Sweep<'_, '_>) -> u64 {
        if record.queued.is_none() || self.keeps_hidden(record) {
            return 0;
        }
        // What it was at the call is there, unless it had to make way for another one since. Of a file that
        // is mapped it may never be said that it stays in line.
        if sweep.shared.in_line.lock().get(&record.ino).is_some_and(|turns| *turns >= MAX_TURNS)
            || sweep.is_written_as_at_call(record.ino)
        {
            return 0;
        }
        if self.rights.is_others_work(record) {
            return 1;
        }
        if let Some(why) = self.out_of_reach(record.ino) {
            sweep.lost.insert(record.ino, why);
            return 0;
        }
        // One turn is for all names of an inode.
        if record.attr.nlink < 2 || record.is_directory() || sweep.seen.insert(record.ino) {
            sweep.add(record.ino);
        }
        0
    }
}

impl<'a> Sweep<'a, '_> {
    /// Passes over what `select` adds until a pass leaves nothing behind. `select` says how many
    /// entries of the whole backlog count as done, or `u64::MAX` when it selects a part of it. Of the
    /// whole, also the bytes of removed files are to go: a close is told of later than it returns.
    fn run(
        &mut self,
        mut select: impl FnMut(&Writeback, &mut Self) -> Result<u64>,
    ) -> Result<(Remaining, End)> {
        let node = self.node;
        let mut pause = Duration::from_millis(20);
        let mut progressed = Instant::now();
        let mut last_removed = 0;
        let mut reopened = 0;
        loop {
            let outside = {
                self.shared.left.lock().clear();
                select(node, self)?
            };
            let tally = self.end();
            let whole = outside != u64::MAX;
            let left = match whole {
                false => tally.busy + tally.failed + tally.refused,
                true => node.meta.backlog_len().saturating_sub(outside),
            };
            let removed =
                if whole && left == 0 { node.let_removed_go() } else { RemovedFiles::default() };
            let bytes = node.unwritten_bytes();
            let in_use = removed.are_all_open();
            let refused = tally.refused_with_heirs().min(left);
            let remaining =
                Remaining { entries: left, bytes, in_use, refused, ..Remaining::default() };
            let nothing_selected = tally.done + tally.busy + tally.failed + tally.refused == 0;
            // A pass that was cut short may have left things that nobody has looked at.
            let nothing_left = whole || nothing_selected && !self.over();
            if left == 0 && removed.files == 0 && nothing_left {
                if node.restore_times_by_opening() && reopened < MAX_REOPENED && !self.over() {
                    reopened += 1;
                    continue;
                }
                (self.progress)(remaining);
                return Ok((remaining, End::Done));
            }
            // To try again at once would not change what the store can have.
            if refused > 0 && refused == left && tally.is_at_an_end() {
                node.keep_up(Step::Times);
                return Ok((remaining, End::Refused));
            }
            if self.over() {
                return Ok((remaining, End::Over));
            }
            let fewer = std::mem::replace(&mut last_removed, removed.files) > removed.files;
            if tally.done > 0 || fewer {
                progressed = Instant::now();
                pause = Duration::from_millis(20);
            } else {
                let only_busy = tally.failed == 0;
                if only_busy && progressed.elapsed() > BUSY_TIMEOUT {
                    // In a cluster, what is busy may be another node's to do.
                    let in_use = tally.busy > 0 && !node.rights.shares_work();
                    let in_use = remaining.in_use || in_use;
                    return Ok((Remaining { in_use, ..remaining }, End::InUse));
                }
                self.pause(pause);
                pause = (pause * 2).min(MAX_PAUSE);
                if self.over() {
                    // What the last pass has left, and why, is told.
                    return Ok((remaining, End::Over));
                }
            }
        }
    }
}
