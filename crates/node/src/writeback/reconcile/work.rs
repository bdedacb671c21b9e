//! Work in hand: what was done to inodes in the backing store, until it is durable and reported.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use forebay_meta::{Error as MetaError, Link, Links, Record};
use forebay_store::{Dir, StoreError};
use forebay_types::{FileKind, Fingerprint, Ino};

use super::OWNER_WAIT;
use super::identity::UNKNOWN;
use super::owned::Owned;
use super::queue::NAMES_DELAY;
use crate::defects::{self, BackgroundKind};
use crate::error::{NodeError, Result};
use crate::failpoints::fail_at;
use crate::residency::written_back::record_written_back;
use crate::writeback::Writeback;

/// No record has this count of changes: one that is reported with it stays in the backlog.
const NEVER: u64 = u64::MAX;

/// How a pass over an inode ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The backing store is as the record said.
    Done,
    /// Something was moved out of the way, or the record changed: report and look again.
    Again,
}

/// What a worker did to one inode. Applied to the record as it is when it is reported, so it says
/// what went and what came, never how all is.
#[derive(Debug, Default)]
struct Facts {
    gone: Links,
    came: Links,
    fingerprint: Option<Fingerprint>,
    /// That is what a worker intended, or what it found: nothing is under way.
    settled: bool,
    /// Its names were changed, and what that made of the change time could not be looked at.
    change_time_unknown: bool,
    /// The object under the old names is not this inode's any more.
    disowned: bool,
    /// An object was made that has none of the attributes which it should have but its type.
    made: bool,
    attributes: bool,
    xattrs: bool,
    bytes: bool,
    /// No name stands, and by its version a copy on a tier is known that may be the only one.
    keeps_version: bool,
}

impl Facts {
    fn apply(&self, record: &mut Record, seen_change: u64) {
        for link in &self.gone {
            record.backing.links.remove(link);
        }
        record.claims_made(&self.came);
        let is_nowhere = record.backing.links.is_empty() && record.ino != Ino::ROOT;
        if self.disowned || is_nowhere && !self.keeps_version {
            record.backing.fingerprint = None;
        }
        if self.fingerprint.is_some() {
            record.backing.fingerprint = self.fingerprint;
        }
        if let Some(known) = &mut record.backing.fingerprint
            && self.change_time_unknown
        {
            known.ctime = UNKNOWN;
        }
        if self.settled {
            record.backing.pending = None;
        }
        if self.made {
            // Until they are known to be written: whoever made it may have failed, or died, before.
            record.backing.attrs_differ = true;
            record.backing.xattrs_differ = true;
        }
        if record.change == seen_change {
            record.backing.attrs_differ &= !self.attributes;
            record.backing.xattrs_differ &= !self.xattrs;
        }
        if self.bytes && !record.bytes_changed_since(seen_change) {
            record_written_back(record);
        }
    }
}

impl Facts {
    /// What can be said if it is not known to be durable: a power cut may bring the version back that
    /// was known before. The one that was announced is known beside it, as long as it is not reported.
    fn without_a_sync(&self, record: Option<&Record>) -> Facts {
        let &Facts { mut fingerprint, mut settled, mut change_time_unknown, made, .. } = self;
        let keeps_version = self.keeps_version;
        let known = record.map(|record| &record.backing);
        let is = |print: Option<Fingerprint>| fingerprint.zip(print);
        let announced = is(known.and_then(|known| known.pending))
            .is_some_and(|(now, pending)| now.same_content(&pending) || now.same_inode(&pending));
        let moved = is(known.and_then(|known| known.fingerprint))
            .is_some_and(|(now, known)| now.same_content(&known) && now.ctime != known.ctime);
        if announced {
            (fingerprint, settled) = (None, false);
        } else if moved && record.is_some_and(|record| !record.is_directory()) {
            change_time_unknown = true;
        }
        Facts { fingerprint, settled, change_time_unknown, made, keeps_version, ..Facts::default() }
    }
}

/// So many objects are held open until their attributes are durable.
const MAX_HELD: usize = 32;

/// The work on one inode. `record` follows what was done.
pub(super) struct Work<'a> {
    pub(super) record: Record,
    seen_change: u64,
    facts: Facts,
    dirs: Vec<(Ino, Dir)>,
    /// The object itself, if it is no directory and has other attributes now.
    changed: Option<Dir>,
    /// Other inodes that stood in the way, and what was done to them.
    others: Vec<(Owned<'a>, Work<'a>)>,
    /// Those, and whom something was done to for their sake.
    taken: HashSet<Ino>,
    /// Names under which the backing store has something of others.
    foreign: Vec<Link>,
    /// Names that were claimed in this turn, and under which the inode is not known to be.
    claimed: Links,
    /// Inodes that were moved aside and want to go on.
    pub(super) followers: Vec<Ino>,
    /// A name that the backing store does not take; the rest is done.
    pub(super) refused: Option<NodeError>,
    /// Others changed it: it is taken over as it is after the report.
    pub(super) theirs: bool,
    /// Names changed, and with them the change time of the backing store's object, which nobody has
    /// looked at since.
    pub(super) moved: bool,
    /// Whether the object was the version that was known, right before that.
    pub(super) as_known: bool,
    /// Who wants the name of this one, and has claimed it in this turn only: whatever stands there is
    /// not its own.
    pub(super) wanted_by: Option<Ino>,
    /// A removed directory within removed ones that lies too deep for this turn, and has to go first.
    pub(super) too_deep: Option<Ino>,
    /// It was removed, and left a name to the inode that has it here, which replaces it there.
    pub(super) left_to_heir: bool,
    /// The backing store has its bytes as they were in this turn, and those who have it open may change them.
    pub(super) stays_open: bool,
    was_kept: bool,
    was_spilled: bool,
}

impl<'a> Work<'a> {
    pub(super) fn new(record: &Arc<Record>) -> Self {
        Work {
            record: (**record).clone(),
            seen_change: record.change,
            facts: Facts::default(),
            dirs: Vec::new(),
            changed: None,
            others: Vec::new(),
            taken: HashSet::new(),
            foreign: Vec::new(),
            claimed: Links::new(),
            followers: Vec::new(),
            refused: None,
            theirs: false,
            moved: false,
            as_known: false,
            wanted_by: None,
            too_deep: None,
            left_to_heir: false,
            stays_open: false,
            was_kept: record.has_unseen_names(),
            was_spilled: false,
        }
    }

    pub(super) fn ino(&self) -> Ino {
        self.record.ino
    }

    /// The inode may be under `link` from now on, even if it was found not to be before: whatever
    /// becomes of it, that is not reported any more.
    pub(super) fn claimed(&mut self, link: &Link) {
        self.facts.gone.remove(link);
        self.claimed.push(link.clone());
    }

    /// The backing store does not take a name, and nothing was done to make it: it stands where it stood,
    /// and nowhere else. With a claim left, the record would say that it has the name.
    pub(super) fn refused(&mut self, error: NodeError) {
        for link in std::mem::take(&mut self.claimed) {
            self.went(&link);
        }
        self.refused = Some(error);
    }

    /// No name stands, and it can't be told now whether a copy on a tier counts: the version stays known, by
    /// which a later turn, and a start, know that copy again. A claim that stayed alone would pass for a name
    /// that stands.
    pub(super) fn awaits_its_copy(&mut self) {
        for link in std::mem::take(&mut self.claimed) {
            self.went(&link);
        }
        self.facts.keeps_version = true;
        // Nothing of it is there whose change time could be another one now.
        self.moved = false;
    }

    /// Whether all that it was in this turn is in the backing store, though its bytes may be changed.
    fn is_as_it_was(&self) -> bool {
        // One that has no name here any more is written for those that nobody has looked at: its others go when
        // it is closed.
        let links = &self.record.links;
        let names = links.is_empty() || links.same(&self.record.backing.links);
        self.stays_open && names && self.refused.is_none()
    }

    /// The backing store has the inode under `link` now; it was claimed before.
    pub(super) fn came(&mut self, link: &Link, dir: &Dir) {
        self.claimed.remove(link);
        self.record.backing.links.push(link.clone());
        self.facts.came.push(link.clone());
        self.touched(link.parent, dir);
        self.moved = true;
    }

    /// The backing store has the inode under `link`, which was in doubt.
    pub(super) fn confirmed(&mut self, link: &Link) {
        self.facts.came.push(link.clone());
    }

    /// The backing store has the inode under `link` no longer.
    pub(super) fn went(&mut self, link: &Link) {
        self.claimed.remove(link);
        self.record.backing.links.remove(link);
        self.facts.came.remove(link);
        self.facts.gone.push(link.clone());
        self.moved = true;
    }

    /// The entries of `dir` changed.
    pub(super) fn touched(&mut self, ino: Ino, dir: &Dir) {
        if !self.dirs.iter().any(|(known, _)| *known == ino) {
            self.dirs.push((ino, dir.clone()));
        }
    }

    /// The attributes of the object of something else than a directory changed.
    pub(super) fn changed(&mut self, object: Dir) {
        self.changed = Some(object);
    }

    /// What stands in the backing store is this version, and nothing is under way.
    pub(super) fn settled(&mut self, print: Fingerprint) {
        self.print(print);
        self.record.backing.pending = None;
        self.facts.settled = true;
    }

    /// Nothing is under way; what stands in the backing store has to be looked at.
    pub(super) fn at_rest(&mut self) {
        self.record.backing.pending = None;
        self.facts.settled = true;
    }

    /// Another version is about to be made.
    pub(super) fn unsettled(&mut self) {
        self.facts.settled = false;
    }

    pub(super) fn print(&mut self, print: Fingerprint) {
        self.record.backing.fingerprint = Some(print);
        self.facts.fingerprint = Some(print);
        self.as_known = true;
        self.moved = false;
    }

    /// What the backing store has is another's now.
    pub(super) fn disowned(&mut self) {
        self.record.backing.fingerprint = None;
        self.facts.fingerprint = None;
        self.facts.disowned = true;
    }

    pub(super) fn attributes_done(&mut self) {
        self.record.backing.attrs_differ = false;
        self.facts.attributes = true;
    }

    pub(super) fn xattrs_done(&mut self) {
        self.record.backing.xattrs_differ = false;
        self.facts.xattrs = true;
    }

    /// The backing store has an object for the inode that was made just now, or may have been by a
    /// worker that was interrupted: mode, owner, times and extended attributes are to be written.
    pub(super) fn made(&mut self) {
        self.record.backing.attrs_differ = true;
        self.record.backing.xattrs_differ = true;
        self.facts.made = true;
    }

    /// What was done to another inode, to be reported together with this one.
    ///
    /// That was not all there is to do for it: a name that it claims may not be there, so that it
    /// must not leave the backlog before its own turn.
    pub(super) fn also(&mut self, owned: Owned<'a>, mut other: Work<'a>) {
        other.seen_change = NEVER;
        self.taken.insert(owned.ino);
        self.taken.extend(other.taken.drain());
        self.too_deep = self.too_deep.or(other.too_deep);
        self.others.push((owned, other));
    }

    /// Whether something was done to `ino` for the sake of this one.
    pub(super) fn has_other(&self, ino: Ino) -> bool {
        self.taken.contains(&ino)
    }

    /// Whether an inode, for all that was done to it for the sake of this one, has a name still.
    pub(super) fn leaves_name(&self, ino: Ino, link: &Link) -> bool {
        self.others.iter().any(|(owned, other)| {
            owned.ino == ino && other.record.backing.links.contains(link)
                || other.leaves_name(ino, link)
        })
    }

    /// The backing store has something of others under `link`: it is imported after the report.
    pub(super) fn foreign(&mut self, link: &Link) {
        self.foreign.push(link.clone());
    }

    pub(super) fn bytes_done(&mut self) {
        record_written_back(&mut self.record);
        self.facts.bytes = true;
    }
}

struct Finished<'a> {
    owned: Owned<'a>,
    seen_change: u64,
    /// The pass came to its end: names that were missing are there.
    placed: bool,
    /// It had no name here, and others that nobody has looked at: its bytes were kept until now.
    was_kept: bool,
    /// It was removed here, and its record says that it has a spill file.
    was_spilled: bool,
    left_to_heir: bool,
    facts: Facts,
}

/// The work of one thread between two syncs of names and attributes: many inodes share one sync.
pub(super) struct Batch<'a> {
    node: &'a Writeback,
    dirs: BTreeMap<u64, Dir>,
    /// Objects whose attributes changed and may not be durable.
    changed: Vec<Dir>,
    /// That could not be made durable.
    unsynced: Option<StoreError>,
    finished: Vec<Finished<'a>>,
    followers: Vec<Ino>,
    foreign: Vec<Link>,
    theirs: Vec<Ino>,
    too_deep: Option<Ino>,
    /// Inodes whose last turn left nothing to do but what those who have them open may do.
    as_they_were: HashSet<Ino>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(node: &'a Writeback) -> Self {
        Batch {
            node,
            dirs: BTreeMap::new(),
            changed: Vec::new(),
            unsynced: None,
            finished: Vec::new(),
            followers: Vec::new(),
            foreign: Vec::new(),
            theirs: Vec::new(),
            too_deep: None,
            as_they_were: HashSet::new(),
        }
    }

    /// Whether work on `ino` waits for the sync.
    pub(super) fn has(&self, ino: Ino) -> bool {
        self.finished.iter().any(|finished| finished.owned.ino == ino)
    }

    /// Whether `ino` stands where it should, by work that waits for the sync.
    pub(super) fn has_placed(&self, ino: Ino) -> bool {
        self.finished.iter().any(|finished| finished.owned.ino == ino && finished.placed)
    }

    /// Whether `ino` was removed and is still there for the one that has its name here, by work that waits
    /// for the sync.
    pub(super) fn has_left_to_heir(&self, ino: Ino) -> bool {
        self.finished.iter().any(|finished| finished.owned.ino == ino && finished.left_to_heir)
    }

    /// Whether all that `ino` was in its last turn, which ended as busy, is in the backing store.
    pub(super) fn has_as_it_was(&mut self, ino: Ino) -> bool {
        self.as_they_were.remove(&ino)
    }

    /// How long to wait for the owner of `ino`; see [`Writeback::own`].
    pub(super) fn timeout(&self, ino: Ino) -> Duration {
        let last = self.finished.iter().all(|finished| finished.owned.ino < ino);
        if last { OWNER_WAIT } else { Duration::ZERO }
    }

    /// Does the work on one inode and keeps what was done for the report, also if it failed.
    pub(super) fn with(
        &mut self,
        owned: Owned<'a>,
        record: &Arc<Record>,
        pass: impl FnOnce(&mut Work<'a>) -> Result<Step>,
    ) -> Result<Step> {
        let mut work = Work::new(record);
        work.was_spilled = record.spilled
            && record.links.is_empty()
            && self.node.residency.peers.may_have_written(record);
        self.as_they_were.remove(&record.ino);
        let done = pass(&mut work);
        // Also where its move was refused: what is below it goes on where it stands.
        let placed = matches!(done, Ok(Step::Done));
        if !placed {
            tracing::debug!(record = ?work.record, ?done, "not in line yet");
            // A name may be claimed and not there: the record must not leave the backlog, as it
            // would with nothing left that differs.
            work.seen_change = NEVER;
        }
        if matches!(done, Err(NodeError::Busy)) && work.is_as_it_was() {
            self.as_they_were.insert(record.ino);
        }
        let is_file = record.attr.kind == FileKind::Regular;
        let stands_nowhere = work.record.backing.links.is_empty() && !work.record.links.is_empty();
        if done.is_err() && !is_file && stands_nowhere {
            // The next turn looks for what is only claimed.
            work.disowned();
        }
        let refused = work.refused.take();
        self.too_deep = self.too_deep.or(work.too_deep);
        self.keep(owned, work, placed);
        if self.changed.len() >= MAX_HELD && self.unsynced.is_none() {
            self.unsynced = self.node.backing.sync_held(&std::mem::take(&mut self.changed)).err();
        }
        match (done, refused) {
            (Ok(Step::Done) | Err(NodeError::Busy), Some(refused)) => Err(refused),
            (done, _) => done,
        }
    }

    fn keep(&mut self, owned: Owned<'a>, mut work: Work<'a>, placed: bool) {
        // Also if no name was changed after all: the next pass must find the version as this one left it.
        let known = work.record.backing.fingerprint;
        let given_up = known.is_some_and(|known| known.ctime == UNKNOWN);
        work.facts.change_time_unknown = (work.moved || given_up) && !work.record.is_directory();
        for (owned, other) in work.others {
            self.keep(owned, other, false);
        }
        self.foreign.extend(work.foreign);
        self.theirs.extend(work.theirs.then_some(work.record.ino));
        self.dirs.extend(work.dirs.into_iter().map(|(ino, dir)| (ino.0, dir)));
        self.changed.extend(work.changed);
        self.followers.extend(work.followers);
        let Work { seen_change, was_kept, was_spilled, left_to_heir, facts, .. } = work;
        self.finished.push(Finished {
            owned,
            seen_change,
            placed,
            was_kept,
            was_spilled,
            left_to_heir,
            facts,
        });
    }

    /// An inode that was moved aside for one of this batch.
    pub(super) fn next_follower(&mut self) -> Option<Ino> {
        self.followers.pop()
    }

    /// A removed directory that has to go before the one that was in hand.
    pub(super) fn take_too_deep(&mut self) -> Option<Ino> {
        self.too_deep.take()
    }

    /// Makes what was done durable, reports it and gives the inodes back.
    ///
    /// # Errors
    /// If the sync fails, only what identifies the objects made is reported, so that the next
    /// worker knows them again; it looks which names are there, and which version.
    pub(super) fn finish(&mut self) -> Result<()> {
        let finished = std::mem::take(&mut self.finished);
        let dirs = std::mem::take(&mut self.dirs);
        // Before the report: whoever sees by it that nothing is left to do restores their times.
        self.node.entries_written(dirs.keys().copied());
        let mut held = std::mem::take(&mut self.changed);
        held.extend(dirs.values().cloned());
        let unsynced = self.unsynced.take();
        if !held.is_empty() || unsynced.is_some() {
            fail_at!("node.reconcile.before_sync");
            let synced = unsynced.map_or_else(|| self.node.backing.sync_held(&held), Err);
            if let Err(error) = synced {
                self.as_they_were.clear();
                for done in &finished {
                    self.node.doubt_published(done.owned.ino);
                    let known = self.node.known(done.owned.ino)?;
                    self.node.report(
                        &done.owned,
                        NEVER,
                        &done.facts.without_a_sync(known.as_deref()),
                    )?;
                }
                return Err(error.into());
            }
        }
        drop(held);
        fail_at!("node.reconcile.before_report");
        let mut failed = None;
        for done in &finished {
            let _in_hand = defects::begin(BackgroundKind::WriteBack, done.owned.ino.0);
            // The names are durable: from here on the tiers need not have what is under them.
            let settled = self.node.settle_published(done.owned.ino);
            if let Err(error) = settled.and_then(|()| self.report(done)) {
                failed.get_or_insert(error);
            }
        }
        fail_at!("node.reconcile.after_report");
        for dir in dirs.into_keys() {
            let settled = self
                .node
                .defects
                .attempt(BackgroundKind::WriteBack, dir, || self.node.settle_directory(Ino(dir)));
            if let Some(Err(error)) = settled {
                failed.get_or_insert(error);
            }
        }
        drop(finished);
        for link in std::mem::take(&mut self.foreign) {
            let imported =
                self.node.defects.attempt(BackgroundKind::Listing, link.parent.0, || {
                    self.node.import_foreign(&link)
                });
            if let Some(Err(error)) = imported {
                tracing::debug!(%error, "what others made is imported later");
            }
        }
        for ino in std::mem::take(&mut self.theirs) {
            let taken = self
                .node
                .defects
                .attempt(BackgroundKind::WriteBack, ino.0, || self.node.take_theirs(ino));
            if let Some(Err(error)) = taken {
                tracing::debug!(%ino, %error, "what others made is taken over later");
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn report(&self, done: &Finished<'a>) -> Result<()> {
        let ino = done.owned.ino;
        self.node.report(&done.owned, done.seen_change, &done.facts)?;
        if done.facts.bytes {
            self.node.residency.say_clean(ino);
        }
        if !(done.was_kept || done.was_spilled) || self.node.known(ino)?.is_some() {
            return Ok(());
        }
        if done.was_spilled {
            // With the record it was noted that it had one, which may have gone before.
            self.node.residency.drop_spill_soon(ino);
        }
        if done.was_kept && !self.node.residency.is_open(ino) {
            self.node.discard(ino);
        }
        Ok(())
    }
}

impl Writeback {
    fn report(&self, owned: &Owned<'_>, seen_change: u64, facts: &Facts) -> Result<()> {
        for link in &facts.gone {
            self.backing_name_gone(link);
        }
        let ino = owned.ino;
        tracing::debug!(%ino, ?facts, "reported");
        self.take_along(ino, facts)?;
        let apply = |record: &mut Record| facts.apply(record, seen_change);
        match self.meta.reconciled(ino, seen_change, apply) {
            Ok(true) => {
                if !self.known(ino)?.is_some_and(|record| self.keeps_hidden(&record)) {
                    self.reconcile_later(ino, NAMES_DELAY);
                }
            }
            // In line with the backing store, or gone: nobody has to compare.
            Ok(false) | Err(MetaError::Stale(_)) => self.reconciler.published_open.let_go(ino),
            // It looks for itself what was done.
            Err(MetaError::NotInHand(_)) => {
                tracing::info!(%ino, "another node works on what this one was to report about");
            }
            Err(error) => return Err(NodeError::Meta(error)),
        }
        Ok(())
    }

    /// A directory that had a place in the backing store was found to have none any more: what stood
    /// in it went with it. Before that is reported, since then nobody knows that it was ever there.
    fn take_along(&self, ino: Ino, facts: &Facts) -> Result<()> {
        if facts.gone.is_empty() || !facts.came.is_empty() {
            return Ok(());
        }
        let Some(record) = self.known(ino)? else { return Ok(()) };
        let backing = &record.backing;
        let stood = record.is_directory() && backing.fingerprint.is_some();
        let stays = backing.links.iter().any(|link| !facts.gone.contains(link));
        if stood && !stays && !record.links.is_empty() && ino != Ino::ROOT {
            self.take_away_below(ino)?;
        }
        Ok(())
    }
}
