//! The start after an end of any kind: what lies on the tiers is compared with the namespace.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use forebay_meta::{Link, Record, Seq};
use forebay_store::{Attributes, Believed, ErrorClass, Header, Object, Presence, StoreError};
use forebay_types::{FileKind, Ino};

use crate::clock;
use crate::cluster::Cluster;
use crate::error::{NodeError, Result, is_undecodable};
use crate::failpoints::fail_at;
use crate::lifecycle::trust::{Trust, Trusted};
use crate::lifecycle::which_counts::Standing;
use crate::node::Node;
use crate::residency::aside::Evidence;
use crate::residency::doubt;
use crate::residency::left_note::IsLeft;
use crate::residency::removals::tell_displaced;
use crate::residency::residents::Resident;
use crate::residency::synced::is_announced;
use crate::residency::synced::{CLEAN_END, names_below};
use crate::residency::synced::{clear_beyond_base, counts, is_cut, surely_there};
use crate::residency::unseen::Unseen;
use crate::writeback::reconcile::{is_pending, was_changed};

/// What a recovery found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Objects that are in the residency index now.
    pub objects: u64,
    /// Those that the backing store lacks.
    pub dirty: u64,
    /// Objects removed: of files that are gone, stale, or not completely fetched.
    pub removed: u64,
    /// Objects set aside: they may be the only copy, and can't be used.
    pub set_aside: u64,
}

/// What becomes of an object.
enum Fate {
    /// It is in use.
    Resident(Resident),
    /// Nobody needs it: a copy, or of a file that is gone.
    Removed,
    /// It may be the only copy of its bytes and can't be used, for this reason.
    SetAside(String),
    /// It can't be told now what it is, for this reason. It stays where it is, and its file gives errors until
    /// a start can tell.
    Unseen(String),
    /// A copy that can't be looked at now: it stays where it is, and nobody uses it.
    PassedBy(String),
}

/// A look at an object whose header is sound.
struct Looked {
    object: std::sync::Arc<dyn Object>,
    stat: Attributes,
    map: Option<Presence>,
    charged: u64,
}

/// Inodes of the backlog that are looked at together.
const PAGE: usize = 1000;

/// Set when a namespace has seen its tiers.
pub(crate) const RECOVERED: &str = "recovered";

/// Whether nobody can reach a file any more. One without a name here may have others in directories
/// that are not imported.
pub(super) fn is_removed(record: &Record) -> bool {
    record.links.is_empty() && record.attr.nlink == 0 && !record.orphan
}

impl Node {
    /// Brings the residency index in line with the tiers, and the namespace with what was written.
    /// Files in `open` are in the hands of programs that were served by a daemon before.
    pub(crate) fn recover(&self, open: &HashSet<Ino>) -> Result<Recovered> {
        if !self.state_dir.join(CLEAN_END).exists() {
            self.settle_store()?;
        }
        let owner = self.residency.tiers[0].tier.id().to_string();
        tell_displaced(&self.backing.clean_temporaries(&owner)?.kept);
        let mut evidence = Evidence::default();
        evidence.removed.extend(self.residency.begin_removal_notes());
        evidence.removed.extend(self.release_orphans(open)?);
        self.in_cluster(Cluster::recover_copies)?;
        let trusted = self.begin_trust()?;
        let known = self.meta.setting(RECOVERED)?.is_some();
        if !known {
            self.number_above_objects()?;
        }
        let mut recovered = Recovered::default();
        for index in 0..self.residency.tiers.len() {
            if !known {
                self.refuse_orphaned_tier(index)?;
            }
            self.recover_tier(index, trusted.tier(index), &mut recovered, &mut evidence)?;
            // Not among those at which a mounted daemon dies: it is not mounted yet.
            fail_at!("node.recover.tier");
        }
        let spills = self.recover_spills(trusted.spills, &mut evidence)?;
        let unseen = self.residency.unseen_files();
        if !trusted.all_tiers() || !unseen.is_empty() {
            let distrusted = trusted.all_tiers().then_some(&unseen);
            self.recover_unsynced(distrusted, &mut evidence)?;
        }
        self.writeback.recover_parked()?;
        evidence.unseen.retain(|ino| !self.gives_up_older(Ino(*ino)));
        self.residency.find_lost(&evidence, &spills)?;
        self.residency.forget_removal_notes();
        self.residency.count_set_aside();
        if !known {
            self.meta.set_setting(RECOVERED, b"1")?;
            // Before anything is written: else a power cut leaves tiers without a namespace.
            self.meta.sync()?;
        }
        if !trusted.may_be_noted_at_once() {
            // Not before: a start that ends here must not have the next one believe what this did not.
            self.meta.sync()?;
            self.note_running()?;
        }
        if self.residency.has_unseen() {
            self.meta.sync()?;
            self.residency.forget_seen(&evidence.unjudged)?;
        }
        // Or the next start after a crash of the machine would see the clean end of this one.
        self.forget_clean_end(&trusted)?;
        tracing::info!(
            objects = recovered.objects,
            dirty = recovered.dirty,
            removed = recovered.removed,
            set_aside = recovered.set_aside,
            "tiers read"
        );
        Ok(recovered)
    }

    /// What a daemon that was killed has done in the backing store need not be durable there, and is
    /// believed from here on. A first failure may be of bytes of others.
    fn settle_store(&self) -> Result<()> {
        match self.backing.sync() {
            Err(error) if error.class() == ErrorClass::Unsupported => Ok(()),
            Err(error) => {
                tracing::warn!(%error, "the backing store can't be synced, and is tried once more");
                Ok(self.backing.sync()?)
            }
            Ok(()) => Ok(()),
        }
    }

    /// Files that were open without a name when the daemon ended are gone: which.
    pub(crate) fn release_orphans(&self, open: &HashSet<Ino>) -> Result<Vec<u64>> {
        let mut released = Vec::new();
        for ino in self.meta.orphans()?.into_iter().filter(|ino| !open.contains(ino)) {
            let is_unseen = self.meta.get(ino).is_ok_and(|record| record.has_unseen_names());
            if !is_unseen {
                // The next start knows it as well, should this one end half-way.
                self.residency.note_removal(ino);
            }
            match self.meta.release_orphan(ino, clock::wall_time()) {
                Ok(_) if is_unseen => {}
                Ok(_) => released.push(ino.0),
                Err(error) if is_undecodable(&error) => {
                    tracing::error!(%ino, %error, "a removed file stays: nothing is known of it");
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(released)
    }

    /// What is believed, by how the last daemon ended: what it was, until all is read.
    fn begin_trust(&self) -> Result<Trusted> {
        let trusted = self.trusted();
        if trusted.ended && !trusted.spills.unsynced {
            // Before the next start could not know any more.
            self.distrust_spills()?;
        }
        if trusted.may_be_noted_at_once() {
            self.note_running()?;
        }
        Ok(trusted)
    }

    /// Of spill files only that counts which was synced.
    fn distrust_spills(&self) -> Result<()> {
        for ino in self.residency.noted_spills()? {
            match self
                .residency
                .open_spilled_as(ino, Believed::Synced, &|map| map.believe_what_was_synced(true))
            {
                // Said when it is wanted. One that can't be told is told by the next start: its map does not
                // say that it is of this run of the machine.
                Ok(_) | Err(NodeError::Lost) => {}
                Err(error) if error.of_one_file().is_some() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// A namespace that has never seen this tier must not throw away what only the tier has.
    fn refuse_orphaned_tier(&self, index: usize) -> Result<()> {
        let tier = &self.residency.tiers[index].tier;
        let mut dirty = None;
        tier.list(&mut |ino, header| match header {
            Ok(header) if header.dirty => {
                dirty = Some((ino, header.path));
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        })?;
        let Some((_, path)) = dirty else { return Ok(()) };
        let tiers: Vec<_> = self
            .residency
            .tiers
            .iter()
            .map(|slot| slot.tier.path().display().to_string())
            .collect();
        Err(NodeError::BadState(format!(
            "the tier {} holds files that the backing store lacks ({} is one), but its metadata is \
             gone: bring them back with `forebay fsck --rebuild --backing {} {}`",
            tier.path().display(),
            path.display(),
            self.config.backing.display(),
            tiers.join(" ")
        )))
    }

    fn recover_tier(
        &self,
        index: usize,
        trust: Trust,
        recovered: &mut Recovered,
        evidence: &mut Evidence,
    ) -> Result<()> {
        let slot = &self.residency.tiers[index];
        let mut failed = None;
        slot.tier.list(&mut |ino, header| {
            let what = Unseen::Object(index);
            // One that an earlier start has not judged is judged as by that.
            let is_unseen = self.residency.is_unseen(what, Ino(ino));
            let trust = if is_unseen { Trust::default() } else { trust };
            let may_be_dirty = header.as_ref().map_or(true, |header| header.dirty);
            match self.fate_of_object(index, Ino(ino), header, trust, evidence) {
                Ok(Fate::Resident(resident)) => {
                    self.residency.found_on_tier(Ino(ino), resident);
                    recovered.objects += 1;
                    recovered.dirty += u64::from(resident.dirty);
                }
                Ok(Fate::Removed) => {
                    recovered.removed += 1;
                    self.remove_found(index, Ino(ino), may_be_dirty);
                }
                Ok(Fate::SetAside(why)) => {
                    match self.residency.set_object_aside(index, Ino(ino), &why) {
                        true => recovered.set_aside += 1,
                        // The next start judges it as this one, and does not believe it.
                        false if !trust.unsynced => {
                            failed = self.residency.note_unseen(what, Ino(ino)).err();
                            evidence.unjudged.insert((what, Ino(ino)));
                        }
                        false => {}
                    }
                }
                Ok(Fate::PassedBy(why)) => {
                    tracing::warn!(ino, why, "a copy can't be looked at, and is not used");
                    let tier = u8::try_from(index).unwrap_or(u8::MAX);
                    // The next start would believe it.
                    if !trust.copies && self.residency.leave_behind(tier, Ino(ino), &why).is_err() {
                        failed = self.leave_unseen(Ino(ino), what, trust, &why, evidence).err();
                    }
                }
                Ok(Fate::Unseen(why)) => {
                    failed = self.leave_unseen(Ino(ino), what, trust, &why, evidence).err();
                }
                Err(error) => match error.of_one_file() {
                    Some(why) => {
                        failed = self.leave_unseen(Ino(ino), what, trust, &why, evidence).err();
                    }
                    None => failed = Some(error),
                },
            }
            if failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        failed.map_or(Ok(()), Err)
    }

    /// It can't be told now what a file is here.
    ///
    /// # Errors
    /// When the next start would believe more of it, and that can't be noted.
    pub(super) fn leave_unseen(
        &self,
        ino: Ino,
        what: Unseen,
        trust: Trust,
        why: &str,
        evidence: &mut Evidence,
    ) -> Result<()> {
        tracing::error!(
            %ino,
            file = %String::from_utf8_lossy(&self.residency.path_of(ino)),
            why,
            "it can't be told what there is of a file: it gives errors, and what is there stays as it is. \
             Unmount with --no-drain and mount again when the cause is gone"
        );
        evidence.unseen.insert(ino.0);
        evidence.set_aside.insert(ino.0);
        if !trust.unsynced {
            self.residency.note_unseen(what, ino)?;
            evidence.unjudged.insert((what, ino));
        }
        Ok(())
    }

    /// An object that nobody needs goes. One that its tier keeps would be looked at again by the next start,
    /// which may not know any more what is known now.
    fn remove_found(&self, index: usize, ino: Ino, may_be_dirty: bool) {
        let tier = u8::try_from(index).unwrap_or(u8::MAX);
        let is_known = self.residency.is_known_left_behind(index, ino, None);
        let removed = match may_be_dirty || is_known {
            true => self.residency.give_up_object(tier, ino),
            false => self.residency.remove_object(tier, ino),
        };
        if let Err(error) = removed {
            tracing::warn!(%ino, %error, "can't remove an object");
        }
    }

    /// The record of an object's file; if there is none, what becomes of the object.
    fn known_or_fate(
        &self,
        ino: Ino,
        header: &Header,
        evidence: &Evidence,
    ) -> Result<std::result::Result<Arc<Record>, Fate>> {
        Ok(match self.meta.get(ino) {
            Ok(record) if !is_removed(&record) => Ok(record),
            Err(forebay_meta::Error::Stale(_))
                if header.dirty && !evidence.removed.contains(&ino.0) =>
            {
                let path = header.path.display();
                Err(Fate::SetAside(format!("the index does not know its file, {path}")))
            }
            Ok(_) | Err(forebay_meta::Error::Stale(_)) => Err(Fate::Removed),
            Err(error) => return Err(error.into()),
        })
    }

    /// One object: what it is to the namespace, and what becomes of it.
    fn fate_of_object(
        &self,
        index: usize,
        ino: Ino,
        header: forebay_store::Result<Header>,
        trust: Trust,
        evidence: &mut Evidence,
    ) -> Result<Fate> {
        let tier = &*self.residency.tiers[index].tier;
        match self.residency.is_left(index, ino, header.as_ref().ok()) {
            Some(IsLeft::Yes) => return Ok(Fate::Removed),
            Some(IsLeft::Perhaps) if header.is_ok() => {
                return Ok(Fate::SetAside("it may be older than what its file is".into()));
            }
            // Nothing may take it for the one that was noted when it counts.
            Some(IsLeft::No) => self.residency.forget_left_behind_on(tier, ino)?,
            Some(IsLeft::Perhaps) | None => {}
        }
        let header = match evidence.patience.again(header, || tier.open(ino.0)?.header()) {
            Ok(header) => header,
            Err(error) if error.is_no_answer() => return Ok(Fate::Unseen(error.to_string())),
            Err(error) => return self.fate_without_header(index, ino, &error, evidence),
        };
        let record = match self.known_or_fate(ino, &header, evidence)? {
            Ok(record) => record,
            Err(fate) => return Ok(fate),
        };
        let record = self.residency.as_seen_here(&record);
        let looked = self.standing(index, &header, &record);
        let standing =
            match evidence.patience.again(looked, || self.standing(index, &header, &record)) {
                Ok(standing) => standing,
                Err(error) => return Ok(Fate::Unseen(error.to_string())),
            };
        let has_one = self.residency.residents.get(ino.0).is_some();
        match standing {
            // Moved between tiers, and the daemon ended before the old one was removed.
            Standing::Older => return Ok(Fate::Removed),
            Standing::Counts if has_one && !header.dirty => return Ok(Fate::Removed),
            Standing::Counts if !has_one => {}
            Standing::Doubtful | Standing::Counts => {
                return Ok(Fate::SetAside("another object of its file counts".into()));
            }
        }
        let looked = look_at(tier, ino, &header, trust);
        let looked = match evidence.patience.again(looked, || look_at(tier, ino, &header, trust)) {
            Ok(Some(looked)) => looked,
            Ok(None) if !header.dirty => return Ok(Fate::Removed),
            Ok(None) => {
                let why = "its map is gone".into();
                return self.without_map(index, &record, &header, why, trust, evidence);
            }
            Err(error) if error.is_no_answer() => {
                return Ok(match header.dirty || record.is_dirty() {
                    true => Fate::Unseen(error.to_string()),
                    false => Fate::PassedBy(error.to_string()),
                });
            }
            Err(error) if !header.dirty && !record.is_dirty() => {
                tracing::warn!(%ino, %error, "a copy can't be read, and is dropped");
                return Ok(Fate::Removed);
            }
            Err(error) => {
                let why = error.to_string();
                return self.without_map(index, &record, &header, why, trust, evidence);
            }
        };
        let is_dirty = header.dirty || looked.map.as_ref().is_some_and(Presence::is_dirty);
        if !is_dirty && !header.whole && header.spilled {
            // Begun beside a spill file, which has all: the daemon ended before it saw that.
            return Ok(Fate::Removed);
        }
        if trust.lengths && is_cut(&record, &header, looked.stat.size) {
            return self.unusable(index, &record, "its end is missing".into(), evidence);
        }
        self.fate_of_sound_object(index, &record, &header, looked, trust)
    }

    /// An object whose header can't be read is nobody's if it is empty: its creation was cut short.
    /// Any other may have what nobody else has, whatever the record says.
    fn fate_without_header(
        &self,
        index: usize,
        ino: Ino,
        error: &StoreError,
        evidence: &mut Evidence,
    ) -> Result<Fate> {
        let tier = &*self.residency.tiers[index].tier;
        let empty = || tier.open(ino.0).and_then(|object| object.len()).is_ok_and(|len| len == 0);
        if error.errno() == libc::ENODATA && empty() {
            return Ok(Fate::Removed);
        }
        evidence.set_aside.insert(ino.0);
        let record = match self.meta.get(ino) {
            Ok(record) if !is_removed(&record) && doubt::is_in_doubt(&record) => record,
            Ok(_) | Err(forebay_meta::Error::Stale(_)) => {
                return Ok(Fate::SetAside(error.to_string()));
            }
            Err(error) => return Err(error.into()),
        };
        // A move that ended early: what can be read is the same, or newer.
        let elsewhere = self.residency.tiers.iter().enumerate().any(|(other, slot)| {
            other != index
                && slot.tier.open(ino.0).and_then(|object| object.header()).is_ok_and(|header| {
                    header.whole
                        || matches!(slot.tier.open_map(ino.0, Believed::Synced), Ok(Some(_)))
                })
        });
        if elsewhere || !self.residency.peers.may_have_written(&record) {
            return Ok(Fate::SetAside(error.to_string()));
        }
        if let Some(found) = doubt::copied_version(&self.meta, &*self.backing, tier, &record) {
            tracing::warn!(%ino, %error, "a copy with a damaged header is dropped");
            if record.is_dirty() {
                self.residency.revert_to(ino, found)?;
            }
            return Ok(Fate::Removed);
        }
        self.unusable(index, &record, error.to_string(), evidence)
    }

    /// An object with a sound header of which nothing tells which bytes it has. If no program was told
    /// before a crash of the machine that its changes last, none of them needs to: the map of a file that
    /// is changed for the first time may not have come to its device. The file is then as what lies under
    /// the object has it.
    fn without_map(
        &self,
        index: usize,
        record: &Record,
        header: &Header,
        why: String,
        trust: Trust,
        evidence: &mut Evidence,
    ) -> Result<Fate> {
        if trust.unsynced || header.synced {
            return self.unusable(index, record, why, evidence);
        }
        Ok(Fate::SetAside(why))
    }

    /// An object that can't be used, and may have what the backing store lacks. If a part of its file is
    /// in a spill file, that is set aside, too: without the other part it is not the file.
    fn unusable(
        &self,
        index: usize,
        record: &Record,
        why: String,
        evidence: &mut Evidence,
    ) -> Result<Fate> {
        let tier = &*self.residency.tiers[index].tier;
        if self.residency.peers.may_have_written(record) {
            doubt::note_doubt(&self.meta, tier, record)?;
            evidence.set_aside.insert(record.ino.0);
            if record.spilled {
                self.residency.set_spill_aside(record.ino, "the rest of its file can't be used")?;
            }
        }
        Ok(Fate::SetAside(why))
    }

    fn fate_of_sound_object(
        &self,
        index: usize,
        record: &Record,
        header: &Header,
        looked: Looked,
        trust: Trust,
    ) -> Result<Fate> {
        let ino = record.ino;
        let Looked { object, stat, mut map, charged } = looked;
        let tier = u8::try_from(index).unwrap_or(u8::MAX);
        let mut dirty = header.dirty || map.as_ref().is_some_and(Presence::is_dirty);
        let mut current = record.backing.fingerprint;
        if dirty && !self.residency.peers.may_have_written(record) {
            let taken = self.in_cluster(|cluster| cluster.yield_found(ino, tier))?;
            if taken || Cluster::has_nothing_newer(record, header) {
                return Ok(Fate::Removed);
            }
            let why = "the metadata servers do not know that this node has changed its file";
            return Ok(Fate::SetAside(why.into()));
        }
        if !dirty && record.is_dirty() {
            // It was flushed, but that was not reported any more. Or the power failed: the mark that
            // it was written is lost, and with it what was written, which nobody has synced.
            match (self.published_meanwhile(record, header)?, header.base) {
                (Some(found), _) => {
                    self.residency.follow_version(ino, found, trust.unsynced)?;
                    current = Some(found);
                }
                // What others made of it since is seen when it is looked at.
                (None, Some(base)) if trust.unsynced && !record.spilled => {
                    self.residency.follow_version(ino, base, true)?;
                    current = Some(base);
                }
                (None, _) if trust.unsynced && self.is_from_before_its_spill(record, header)? => {
                    return Ok(Fate::Removed);
                }
                // Fetched again, and not even whole: nothing in it is newer than what is below, and
                // its length is not the file's.
                (None, _) if !header.whole && !trust.unsynced => return Ok(Fate::Removed),
                (None, _) => dirty = true,
            }
        }
        tracing::debug!(index, ?header, len = stat.size, ?stat.mtime, ?record, "an object is looked at");
        if dirty {
            // A change of length was interrupted; its object was marked dirty before it was changed.
            if let Some(map) = &mut map {
                map.set_len(stat.size)?;
                clear_beyond_base(map, &*object, stat.mtime)?;
            }
            let cut = !trust.unsynced
                && !counts(header, &*object, record.attr.size)?
                && surely_there(header, &*object)? < record.attr.size;
            if !trust.unsynced
                && let Some(found) =
                    self.residency.superseded_by(record, header, cut && !record.is_dirty())?
            {
                tracing::info!(%ino, "an object is older than what was written back of the file");
                self.residency.revert_to(ino, found)?;
                return Ok(Fate::Removed);
            }
            if cut
                && record.is_dirty()
                && let Some(found) = self.version_elsewhere(record)?
                && !self.writeback.would_empty_its_name(record, &found)?
            {
                tracing::warn!(%ino, "a file that was moved was not synced since: it is as the backing store has it");
                self.residency.revert_to(ino, found)?;
                return Ok(Fate::Removed);
            }
            self.recover_dirty(record, header, &*object, trust.unsynced)?;
        } else {
            let same = match (header.base, current) {
                (Some(base), Some(current)) => base.same_content(&current),
                _ => false,
            };
            // Of a fetch that had not come to give it its length nothing counts.
            let complete = current.is_some_and(|current| current.size == stat.size)
                && map.is_none_or(|map| map.size() == stat.size);
            if !same || !complete || !trust.copies {
                return Ok(Fate::Removed);
            }
        }
        Ok(Fate::Resident(Resident { tier, whole: header.whole, dirty, charged }))
    }

    /// Whether the file of a clean object was written past the tiers since: the object was left, and nobody has
    /// noted that.
    fn is_from_before_its_spill(&self, record: &Record, header: &Header) -> Result<bool> {
        let spilled = record.spilled && !header.spilled;
        Ok(spilled && self.backing.open_spill(record.ino.0)?.is_some())
    }

    /// What stands under a name of a file, as far as that can be seen before the backlog has begun. In a
    /// directory that a killed daemon may have made, and could not say so, there is nothing yet: the
    /// worker that brings the directory in line looks again.
    pub(crate) fn found_at_start(
        &self,
        record: &Record,
        link: &Link,
    ) -> Result<Option<Attributes>> {
        match self.writeback.found_under(record, link) {
            Err(NodeError::Busy) => Ok(None),
            found => found,
        }
    }

    /// The version that the backing store has of a file, if it stands there under none of the names that
    /// the file should have: what has these names there is what the file has replaced, or nothing. It may
    /// not have been reported yet.
    fn version_elsewhere(&self, record: &Record) -> Result<Option<forebay_meta::Fingerprint>> {
        let known = record.backing.fingerprint;
        for link in &record.backing.links {
            let its_own = |found: &Attributes| {
                known.is_some_and(|known| found.same_inode(&known)) || is_pending(record, found)
            };
            if let Some(found) = self.found_at_start(record, link)?.filter(its_own) {
                let here = record.links.contains(link);
                return Ok((!here).then_some(found.fingerprint()));
            }
        }
        Ok(None)
    }

    /// After a crash of the machine: files whose bytes nobody has synced, and of which no tier has
    /// anything any more, are what the backing store has of them, or empty.
    /// Only those `of` these, if that is given: of the others all that was written is there.
    fn recover_unsynced(&self, of: Option<&HashSet<u64>>, evidence: &mut Evidence) -> Result<()> {
        let (mut after, mut lost) = (Seq(0), 0);
        loop {
            let page = self.meta.backlog(after, PAGE)?;
            for (seq, ino) in &page {
                after = *seq;
                let Ok(record) = self.meta.get(*ino) else { continue };
                let gone = of.is_none_or(|of| of.contains(&ino.0))
                    && record.attr.kind == FileKind::Regular
                    && record.is_dirty()
                    && !record.spilled
                    && record.attr.size > 0
                    && self.residency.residents.get(ino.0).is_none()
                    && !evidence.set_aside.contains(&ino.0)
                    && self.residency.peers.may_have_written(&record);
                if gone {
                    match self.forget_unsynced(&record) {
                        Ok(()) => lost += 1,
                        Err(error) => match error.of_one_file() {
                            Some(why) => {
                                let (what, trust) = (Unseen::Below, Trust::default());
                                self.leave_unseen(*ino, what, trust, &why, evidence)?;
                            }
                            None => return Err(error),
                        },
                    }
                }
            }
            if page.len() < PAGE {
                break;
            }
        }
        if lost > 0 {
            tracing::warn!(
                files = lost,
                "the machine went down before these files were synced: they are as the backing store has them, or empty"
            );
        }
        Ok(())
    }

    pub(super) fn forget_unsynced(&self, record: &Record) -> Result<()> {
        tracing::debug!(?record, "nothing is left of what was not synced");
        for link in &names_below(record) {
            let Some(found) = self.found_at_start(record, link)? else { continue };
            // Not that of a file which this one has replaced.
            let known = record.backing.fingerprint.is_some_and(|known| found.same_inode(&known));
            let print = found.fingerprint();
            if (known || is_pending(record, &found))
                && !self.writeback.would_empty_its_name(record, &print)?
            {
                self.meta.claim_found(record.ino, link)?;
                return self.residency.revert_to(record.ino, print);
            }
        }
        // It must not take the place of a version that it was to replace.
        self.writeback.set_aside_if_cut(record, 0)?;
        self.residency.nothing_is_left(record.ino)
    }

    /// An object that was being written: its size and times count, and it goes to the backlog. If a
    /// flush was interrupted right after it was published, what stands in the backing store is its
    /// own work.
    fn recover_dirty(
        &self,
        record: &Record,
        header: &Header,
        object: &dyn Object,
        trusted: bool,
    ) -> Result<()> {
        if !trusted && !counts(header, object, record.attr.size)? {
            self.writeback.set_aside_if_cut(record, surely_there(header, object)?)?;
        }
        // With the name that it has now.
        let record = &*self.residency.as_seen_here(&self.meta.get(record.ino)?);
        let published = self.published_meanwhile(record, header)?;
        self.residency.found_dirty(record.ino, header, object, published)
    }

    /// The version in the backing store that a flush of this object made, if it is there: the one
    /// about to appear, or the last one that did.
    pub(crate) fn published_meanwhile(
        &self,
        record: &Record,
        header: &Header,
    ) -> Result<Option<forebay_meta::Fingerprint>> {
        for link in &names_below(record) {
            let Some(found) = self.found_at_start(record, link)? else { continue };
            let print = found.fingerprint();
            if was_changed(record, &found) {
                continue;
            }
            if is_announced(header, &print) || is_pending(record, &found) {
                self.meta.claim_found(record.ino, link)?;
                return Ok(Some(print));
            }
        }
        Ok(None)
    }
}

/// Opens an object and its map; `None` if the map that it needs is not there. Of a map that may not
/// have been synced only that is believed which was.
fn look_at(
    tier: &dyn forebay_store::Tier,
    ino: Ino,
    header: &Header,
    trust: Trust,
) -> forebay_store::Result<Option<Looked>> {
    let object = tier.open(ino.0)?;
    let stat = object.stat()?;
    let mut map = if header.whole { None } else { tier.open_map(ino.0, trust.believed())? };
    match &mut map {
        None if !header.whole => return Ok(None),
        None => {}
        Some(map) => trust.believe(map, header.dirty)?,
    }
    let map_bytes = map.as_ref().map_or(0, Presence::sidecar_bytes);
    let charged = object.allocated_bytes()? + map_bytes;
    Ok(Some(Looked { object, stat, map, charged }))
}
