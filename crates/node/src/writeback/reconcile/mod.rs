//! The backlog: brings the backing store in line with the namespace, inode by inode.
//!
//! The namespace is authoritative. Every record knows where its inode stands in the backing store;
//! to reconcile it means to make the backing store as the record says, and to report what was done
//! ([`forebay_meta::MetaStore::reconciled`]). There is no log of operations: what was created and
//! removed again before its turn is not there to be reconciled.
//!
//! A worker owns the inodes that it works on ([`Owned`]). Before it makes a name it claims it, and
//! it reports that an old name is gone only after the directories were synced, so that a crash at
//! any point leaves records that name every place where the inode may be; with more than one such
//! place the next worker looks which of them hold it.
//!
//! What remains hard is crashes and names that stand in each other's way:
//! - Who owns some inodes waits only for one with a larger number, so nobody waits in a circle. The
//!   ownership comes before all locks of files.
//! - Many inodes share one sync of a directory (`Batch` in `work.rs`).
//! - A wanted name that another inode of ours still has (a *stale name*): that inode is replaced if
//!   it was removed, else *parked* in `limbo/`, and goes on from there (`occupied.rs`). So any
//!   permutation of names resolves, cycles included.
//! - A wanted name that others have put something under: both are kept, ours under a conflict name
//!   (`conflict.rs`). So is what a crash of the machine has left of a file that was never synced
//!   (`unsynced.rs`).
//! - What the store says that it can't have is kept and named (`refused.rs`); a drain does not wait
//!   for it.
//! - What a plain user has closed to himself is opened in the store until the work there is done
//!   (`closed_to_owner.rs`).
//! - Names are due one second after their change, bytes after `--writeback`. A failure is tried
//!   again with growing pauses and shown by `forebay status`.
//!
//! # Invariants
//! All have their tests in `tests/stale.rs` and `tests/unseen.rs` of this module, and the last in
//! `crates/node/tests/unseen_names.rs`; `tests/interleaved.rs` looks for orders of events that
//! break one.
//! - What is there is never taken for gone because it moved while it was looked for: before a name
//!   is taken away, it is looked for again with its inode owned and nothing on the way to it on the
//!   move, and only that inode goes.
//! - A name that is only claimed never leads to what stands there: a directory is reached by the
//!   handle of its maker until its making is reported. Nor is a name in such a directory taken for
//!   gone because nobody can find the directory: a worker that meets that is busy until the
//!   directory has had its turn.
//! - What another inode of ours has under a name is never moved for the one that believes to stand
//!   there.
//! - What was claimed in a directory that is gone is gone.
//! - No file of others is replaced or removed of which nobody here knew: whoever looked at a name may have
//!   waited since, and what he looked at is looked for again where it goes (`tests/overtaken.rs`; in
//!   `tests/interleaved.rs` a witness watches the whole store for it).
//! - Nor is one moved: what was moved, linked or parked is looked at where it arrived (`moved.rs`).
//! - What is changed under a known name is kept until names that nobody has looked at show it
//!   (`Record::is_gone`).

mod attributes;
mod bytes;
mod closed_to_owner;
mod conflict;
mod conflict_list;
mod conflict_places;
mod data_side;
mod drain;
mod identity;
mod moved;
mod names;
mod occupied;
mod owned;
mod queue;
mod refused;
mod remove;
#[cfg(test)]
mod tests;
mod unsynced;
mod work;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use forebay_meta::Error as MetaError;
use forebay_store::{ErrorClass, StoreError};
use forebay_types::Ino;
use parking_lot::Mutex;

use crate::after_refusal::is_denied;
use crate::defects::{self, BackgroundKind};
use crate::error::{NodeError, Result, is_undecodable};
use crate::waits;
use crate::writeback::Writeback;

pub use conflict::Conflict;
pub use drain::Synced;
pub(crate) use identity::{is_own, is_pending, was_changed};
pub(crate) use queue::NAMES_DELAY;
pub use refused::Refused;
use refused::is_beyond_store;
use work::{Batch, Step, Work};

/// The state of the backlog's workers.
#[derive(Default)]
pub struct Reconciler {
    owners: owned::Owners,
    queue: queue::ReconcileQueue,
    conflicts: Mutex<conflict_list::Conflicts>,
    held: Mutex<conflict::Held>,
    /// At the end of the mount something could not be written back.
    pub(crate) left_behind: AtomicBool,
    /// The latest failure, with the inode that it is about.
    last_error: Mutex<Option<(Ino, String)>>,
    /// Why the last attempt failed, by inode.
    failures: Mutex<std::collections::HashMap<u64, String>>,
    warnings: Mutex<queue::Warnings>,
    /// What the backing store can't have.
    pub(crate) limits: refused::Limits,
    /// What was published and is not known to be durable, by inode.
    pub(crate) published: Mutex<std::collections::HashMap<u64, crate::writeback::flush::Published>>,
    /// What was published while a program had it open to write.
    pub(crate) published_open: crate::writeback::published_open::PublishedOpen,
    /// Files that must be written so that they can make room.
    pub(crate) wanted: Mutex<std::collections::HashSet<u64>>,
    /// Directories whose entries a worker changed since their times were set, or programs so that there is
    /// nothing to do for workers.
    entries_written: Mutex<BTreeSet<u64>>,
    /// Held by whoever sets them.
    restoring: Mutex<()>,
    /// How often a directory was opened to its owner.
    opened_dirs: AtomicU64,
    /// Files of which parts are gone, and nobody was told.
    pub(crate) rest_gone: crate::writeback::rest_gone::Untold,
    /// What has the bytes of files.
    data_side: Box<dyn data_side::DataSide>,
}

impl Reconciler {
    /// That of a mount with the conflicts that earlier daemons have noticed.
    pub fn load(state_dir: &Path) -> Self {
        let conflicts = Mutex::new(conflict_list::Conflicts::load(state_dir));
        Reconciler { conflicts, ..Reconciler::default() }
    }
}

/// What is not in the backing store yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Remaining {
    /// Inodes whose names, attributes or bytes differ.
    pub entries: u64,
    /// Bytes that only the tiers hold.
    pub bytes: u64,
    /// Of a drain that has given up before its time: all that remains are files that programs may
    /// be changing, by an open file or a mapping.
    pub in_use: bool,
    /// Files that other nodes have not written back; not counted above, as they are theirs to do.
    pub elsewhere: u64,
    /// Of the entries, those that the backing store can't have as they are ([`Writeback::refused`]): a
    /// drain does not wait for them.
    pub refused: u64,
}

/// What can be done where the device of a tier can't read what only it has.
const UNREADABLE: &str = "copy what can be read of the file and remove it; or, after \
    `forebay umount --no-drain`, `forebay fsck --repair TIER...` names all such files, and \
    `forebay fsck --accept-loss TIER...` sets what is left of them aside and gives them up";

/// What can be done where a tier does not give what it has.
const DENIED: &str = "that is the tier, not the backing store: see to the rights and attributes of the file \
    (`ls -l`, `lsattr`), or to the tier's file system if it is read-only; it is tried again every minute";

/// What can be done where the backing store has no room.
const FULL: &str = "the backing store is full: make room in it, or raise its quota; what it lacks stays \
    on the tiers and follows by itself";

/// A parent chain or a nest of removed directories deeper than this is not followed.
const MAX_PARENTS: usize = 2000;

/// Removed directories within removed directories that a worker goes down at a time: what lies deeper
/// goes before them.
const MAX_NESTED: usize = 32;

/// The parents of so many names are looked after, whether anything is to be done below them or not.
const FEW_NAMES: usize = 8;

/// Inodes whose last failure is remembered.
const MAX_FAILURES: usize = 1000;

/// Passes over one inode that changes all the time.
const MAX_PASSES: usize = 16;

/// How long a worker waits for another one that is at the same inode.
const OWNER_WAIT: Duration = Duration::from_secs(2);

impl Writeback {
    /// Brings the backing store in line with `ino` now, its parents first. On a thread that may
    /// wait.
    ///
    /// # Errors
    /// [`NodeError::Busy`] while programs change it all the time; what the backing store says.
    pub fn reconcile(&self, ino: Ino) -> Result<()> {
        self.reconcile_until(ino, false)
    }

    /// Writes a file back before its copy goes, for `forebay evict`; false if a program has it open, so
    /// that the copy stays.
    ///
    /// # Errors
    /// What the backing store says.
    pub fn write_back_unused(&self, ino: Ino) -> Result<bool> {
        let file = self.residency.files.get(ino);
        if file.is_open() {
            return Ok(false);
        }
        // It may be mapped still.
        self.reconcile_as_it_is(ino)?;
        Ok(true)
    }

    /// As [`Writeback::reconcile`], of an inode that programs may go on to change: what it is at the call is
    /// enough. A file that can still be written never counts as equal, but a turn that began after the call
    /// has all that the caller means.
    pub(crate) fn reconcile_as_it_is(&self, ino: Ino) -> Result<()> {
        self.reconcile_until(ino, true)
    }

    fn reconcile_until(&self, ino: Ino, as_it_is: bool) -> Result<()> {
        let begun = Instant::now();
        let until = begun + self.config.backing_timeout;
        loop {
            let mut batch = Batch::new(self);
            let done = match self.reconcile_in(ino, &mut batch) {
                Err(error) if self.gives_up_what_is_gone(ino, &batch, &error)? => {
                    Err(NodeError::Busy)
                }
                done => done,
            };
            // What was done is reported also when the rest failed.
            let outcome = match (done, batch.finish()) {
                (Err(NodeError::Busy), Ok(())) if as_it_is && batch.has_as_it_was(ino) => Ok(()),
                (done, finished) => done.and(finished),
            };
            match outcome {
                Err(NodeError::Busy) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                // Another worker may be moving, removing or making what is above it.
                Err(error) if is_not_found(&error) && begun.elapsed() < OWNER_WAIT => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => {
                    self.note_failure(ino, &error);
                    return Err(error);
                }
                Ok(()) => {
                    self.note_success(ino);
                    return Ok(());
                }
            }
        }
    }

    /// As [`Writeback::reconcile`], as part of a batch. What was done is reported when the batch is
    /// finished, whether this succeeded or not.
    fn reconcile_in<'a>(&'a self, ino: Ino, batch: &mut Batch<'a>) -> Result<()> {
        if let Some(record) = self.known(ino)? {
            // Of names that stand where they should the parents do.
            let parents: BTreeSet<Ino> = match record.links.len() {
                0..=FEW_NAMES => record.links.iter().map(|link| link.parent).collect(),
                _ => record.missing().into_iter().map(|link| link.parent).collect(),
            };
            for parent in parents {
                self.place_parents(parent, batch)?;
            }
        }
        self.reconcile_with_nested(ino, batch)?;
        while let Some(follower) = batch.next_follower() {
            // It stood in the way and was moved aside: its turn comes anyway if this fails.
            if let Err(error) = self.reconcile_alone(follower, batch, 0) {
                tracing::debug!(ino = %follower, %error, "what was moved aside waits for its turn");
                self.reconcile_later(follower, Duration::ZERO);
            }
        }
        Ok(())
    }

    /// Brings one inode in line. Of removed directories within each other so many go in one turn; those
    /// that lie deeper go first, each reported before what is above it is tried again.
    fn reconcile_with_nested<'a>(&'a self, ino: Ino, batch: &mut Batch<'a>) -> Result<()> {
        let mut way = vec![ino];
        let mut last = None;
        while let Some(&at) = way.last() {
            batch.take_too_deep();
            match self.reconcile_alone(at, batch, 0) {
                Ok(()) => {
                    way.pop();
                    if !way.is_empty() {
                        batch.finish()?;
                    }
                }
                Err(NodeError::Busy) => match batch.take_too_deep() {
                    // It is still there after its own turn.
                    Some(deeper) if last == Some(deeper) => return Err(NodeError::Busy),
                    Some(deeper) => {
                        batch.finish()?;
                        last = Some(deeper);
                        way.push(deeper);
                    }
                    None => return Err(NodeError::Busy),
                },
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Something was not found for the work on an inode. If others removed it, or a directory above
    /// it, that is taken over, and what would be lost with it is to be made anew. Says whether it was.
    fn gives_up_what_is_gone(
        &self,
        ino: Ino,
        batch: &Batch<'_>,
        error: &NodeError,
    ) -> Result<bool> {
        if !is_not_found(error) {
            return Ok(false);
        }
        let mut way = vec![ino];
        while let Some(record) = self.known(way[way.len() - 1])? {
            match record.links.first() {
                Some(link) if link.parent != Ino::ROOT && way.len() <= MAX_PARENTS => {
                    way.push(link.parent);
                }
                _ => break,
            }
        }
        // The highest takes with it what is below.
        for at in way.into_iter().rev() {
            let owned = if batch.has(at) { None } else { Some(self.own(at, Duration::ZERO)) };
            if !matches!(owned, Some(None)) && self.take_away_if_gone(at)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Sees to it that `dir` and all directories above it stand where they should.
    fn place_parents<'a>(&'a self, dir: Ino, batch: &mut Batch<'a>) -> Result<()> {
        let mut away = Vec::new();
        let mut at = dir;
        while at != Ino::ROOT {
            let Some(record) = self.known(at)? else { break };
            let Some(link) = record.links.first() else { break };
            let unconfirmed = record.queued.is_some() && record.backing.fingerprint.is_none();
            if record.links != record.backing.links || unconfirmed {
                away.push((at, unconfirmed));
            }
            at = link.parent;
            if away.len() > MAX_PARENTS {
                return Err(rustix::io::Errno::LOOP.into());
            }
        }
        for (dir, unconfirmed) in away.into_iter().rev() {
            // What the batch has made, and not reported, is reached by its maker's handle.
            if !batch.has_placed(dir) || unconfirmed && !self.has_handle(dir) {
                self.reconcile_alone(dir, batch, 0)?;
            }
        }
        Ok(())
    }

    /// Has what is above an inode made in the backing store, where that is not known to be so.
    pub(crate) fn place_above(&self, ino: Ino) -> Result<()> {
        let Some(record) = self.known(ino)? else { return Ok(()) };
        let mut batch = Batch::new(self);
        let mut parents = record.links.iter().map(|link| link.parent);
        let placed = parents.try_for_each(|parent| self.place_parents(parent, &mut batch));
        match (placed, batch.finish()) {
            // Another worker is at it.
            (Err(NodeError::Busy), Ok(())) => Ok(()),
            (placed, finished) => placed.and(finished),
        }
    }

    /// Brings one inode in line whose parents stand in place.
    fn reconcile_alone<'a>(&'a self, ino: Ino, batch: &mut Batch<'a>, depth: usize) -> Result<()> {
        self.residency.pace();
        if self.defects.is_set_aside(BackgroundKind::WriteBack, ino.0) {
            return Err(NodeError::SetAside { ino: ino.0 });
        }
        let _in_hand = defects::begin(BackgroundKind::WriteBack, ino.0);
        // After a refusal: another may have opened what was closed since then.
        let mut may_be_open = true;
        for _ in 0..MAX_PASSES {
            if batch.has(ino) {
                batch.finish()?;
            }
            let Some(owned) = self.own(ino, batch.timeout(ino)) else {
                return Err(NodeError::Busy);
            };
            let Some(record) = self.known(ino)? else {
                self.rights.doubt_place(ino);
                return Ok(());
            };
            if !record.differs() && record.queued.is_none() {
                self.rights.doubt_place(ino);
                return Ok(());
            }
            if self.rights.is_others_work(&record) {
                self.rights.doubt_place(ino);
                return Err(NodeError::Busy);
            }
            if self.rights.let_go_of_owned(&record)? {
                continue;
            }
            self.rights.list_before_removal(&record)?;
            if self.keeps_hidden(&record) {
                return Ok(());
            }
            match batch.with(owned, &record, |work| self.pass(work, depth)) {
                Err(error)
                    if is_denied(&error)
                        && (self.open_closed_dirs(&record)?
                            || self.open_closed_file(ino)?
                            || std::mem::take(&mut may_be_open)) =>
                {
                    batch.finish()?;
                }
                Ok(Step::Again) => batch.finish()?,
                done => return done.map(drop),
            }
        }
        Err(NodeError::Busy)
    }

    /// One pass over an inode: names, bytes, attributes, as far as the record says they differ.
    fn pass<'a>(&'a self, work: &mut Work<'a>, depth: usize) -> Result<Step> {
        if work.ino() != Ino::ROOT {
            if work.record.links.is_empty() {
                return self.remove(work, depth);
            }
            self.survey(work)?;
            self.look_before_move(work)?;
            match self.place(work, depth) {
                Ok(Step::Done) => {}
                Ok(Step::Again) => return Ok(Step::Again),
                // What it has reaches the store all the same, if it stands anywhere there.
                Err(error) if is_beyond_store(&error) && !work.record.backing.links.is_empty() => {
                    work.refused(error);
                }
                Err(error) => return Err(error),
            }
            self.look_after_move(work)?;
            if self.write_bytes(work, depth)? == Step::Again {
                return Ok(Step::Again);
            }
        }
        self.write_attributes(work)?;
        Ok(Step::Done)
    }

    /// The record of an inode, if it still exists.
    fn known(&self, ino: Ino) -> Result<Option<std::sync::Arc<forebay_meta::Record>>> {
        waits::step();
        match self.meta.get(ino) {
            Ok(record) => Ok(Some(record)),
            Err(MetaError::Stale(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The oldest inode whose changes are not in the backing store, as a path.
    pub fn oldest_unwritten(&self) -> Result<Option<Vec<u8>>> {
        Ok(self.unwritten(1)?.pop())
    }

    /// Up to `limit` paths whose changes are not in the backing store yet, oldest first.
    pub fn unwritten(&self, limit: usize) -> Result<Vec<Vec<u8>>> {
        let backlog = self.meta.backlog(forebay_meta::Seq(0), limit)?;
        Ok(backlog.into_iter().filter_map(|(_, ino)| self.path_anywhere(ino)).collect())
    }

    /// The path of an inode here, or of a removed one in the backing store; its number in place of one where
    /// that can't be decoded. `None` if it has no name.
    fn path_anywhere(&self, ino: Ino) -> Option<Vec<u8>> {
        let path = match self.meta.path(ino) {
            Ok(None) => self.meta.backing_path(ino),
            path => path,
        };
        match path {
            Err(error) if is_undecodable(&error) => Some(number_of(ino)),
            path => path.ok().flatten(),
        }
    }

    /// An inode, for people: its path, or its number where it has none.
    fn shown(&self, ino: Ino) -> Vec<u8> {
        self.path_anywhere(ino).unwrap_or_else(|| number_of(ino))
    }

    /// Inodes whose changes are not in the backing store.
    pub fn backlog_len(&self) -> u64 {
        self.meta.backlog_len()
    }

    /// Files without a name that count as in use.
    pub fn removed_in_use(&self) -> u64 {
        self.meta.counts().orphans
    }

    /// The latest failure to write to the backing store of those that are not made up for.
    pub fn last_backlog_error(&self) -> Option<String> {
        self.reconciler.last_error.lock().as_ref().map(|(_, told)| told.clone())
    }

    /// Conflicts with changes that others made in the backing store and that nobody has resolved or
    /// forgotten, oldest first, and the number of those that were noticed since the start.
    pub fn conflicts(&self) -> (u64, Vec<Conflict>) {
        self.reconciler.conflicts.lock().snapshot()
    }

    /// Forgets conflicts of which `is_done` says so. Returns how many they were.
    pub fn forget_conflicts(&self, is_done: &mut dyn FnMut(&Conflict) -> bool) -> usize {
        self.reconciler.conflicts.lock().forget(is_done)
    }

    /// What a failure is called, and what can be done about it.
    fn told_failure(&self, error: &NodeError) -> String {
        let on_a_tier = self.tier_at_fault(error).is_some();
        match error {
            NodeError::Store(StoreError::Io { operation: "read", source, .. })
                if source.raw_os_error() == Some(libc::EIO) && on_a_tier =>
            {
                format!("{error}; {UNREADABLE}")
            }
            _ if on_a_tier && error.class() == Some(ErrorClass::Denied) => {
                format!("{error}; {DENIED}")
            }
            // Not with the name that it was written under, which no user knows.
            NodeError::Store(StoreError::Io { source, .. })
                if error.class() == Some(ErrorClass::NoSpace) && !on_a_tier =>
            {
                format!("{source}; {FULL}")
            }
            _ => error.to_string(),
        }
    }

    fn note_failure(&self, ino: Ino, error: &NodeError) {
        let told = self.told_failure(error);
        // What the store can't have at all is told where it is told of each such file.
        if !is_beyond_store(error) {
            let told = self.told_of(ino, &told);
            *self.reconciler.last_error.lock() = Some((ino, told));
        }
        if self.meta.get(ino).is_ok_and(|record| record.is_dirty() || record.spilled) {
            self.metrics.flush_failures.inc();
        }
        let mut failures = self.reconciler.failures.lock();
        if failures.len() < MAX_FAILURES || failures.contains_key(&ino.0) {
            failures.insert(ino.0, told);
        }
    }

    /// A failure, with the path of what it is about.
    fn told_of(&self, ino: Ino, told: &str) -> String {
        format!("/{}: {told}", String::from_utf8_lossy(&self.shown(ino)))
    }

    fn note_success(&self, ino: Ino) {
        self.forget_refused_place(ino);
        let is_last = |last: &Option<(Ino, String)>| last.as_ref().is_some_and(|it| it.0 == ino);
        let was_told = is_last(&self.reconciler.last_error.lock());
        let other = {
            let mut failures = self.reconciler.failures.lock();
            failures.remove(&ino.0);
            failures.iter().next().map(|(&ino, told)| (Ino(ino), told.clone()))
        };
        if was_told {
            // What else has failed is told in its place. Its path is asked for with nothing locked.
            let other = other.map(|(ino, told)| (ino, self.told_of(ino, &told)));
            let mut last = self.reconciler.last_error.lock();
            if is_last(&last) {
                *last = other;
            }
        }
        self.let_go_of_rest(ino);
    }

    /// Why the last attempt to bring the backing store in line with `ino` failed.
    pub(crate) fn write_error(&self, ino: Ino) -> Option<String> {
        self.reconciler.failures.lock().get(&ino.0).cloned()
    }
}

fn number_of(ino: Ino) -> Vec<u8> {
    format!("inode {:x}", ino.0).into_bytes()
}

fn is_not_found(error: &NodeError) -> bool {
    error.class() == Some(ErrorClass::NotFound)
}
