//! The start after an end of any kind: what lies on the tiers is compared with the namespace.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::Path;

use forebay_core::steward::Event;
use forebay_core::unit;
use forebay_meta::{FileKind, Ino, Queue, Record, Seq};
use forebay_store::{ErrorClass, Header, Object, Presence, StoreError};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::convert;
use crate::error::{NodeError, Result};
use crate::flush::is_announced;
use crate::node::Node;
use crate::overlay::Spill;
use crate::reconcile::is_pending;
use crate::residents::Resident;

/// What a recovery found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Objects that are in the residency index now.
    pub objects: u64,
    /// Those that the backing store lacks.
    pub dirty: u64,
    /// Objects removed: of files that are gone, stale, or not completely fetched.
    pub removed: u64,
}

/// What there is of the map of an object.
enum MapFound {
    /// It needs none.
    None,
    Map(Presence),
    /// Not even the object is of use.
    Useless,
}

/// Inodes of the backlog that are looked at together.
const PAGE: usize = 1000;

const CLEAN_END: &str = "clean-end";
/// Set when a namespace has seen its tiers.
pub(crate) const RECOVERED: &str = "recovered";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Whether nobody can reach a file any more. One without a name here may have others in directories
/// that are not imported.
fn is_removed(record: &Record) -> bool {
    record.links.is_empty() && record.attr.nlink == 0 && !record.orphan
}

/// The number of the mount that a file is in, which no other one gets until the machine restarts (Linux
/// 6.8 and later).
fn mount_number(path: &Path) -> Option<u64> {
    let unique = StatxFlags::from_bits_retain(0x4000);
    let found = statx(CWD, path, AtFlags::empty(), unique).ok()?;
    (found.stx_mask & unique.bits() != 0).then_some(found.stx_mnt_id)
}

impl Node {
    /// Brings the residency index in line with the tiers, and the namespace with what was written.
    /// Files in `open` are in the hands of programs that were served by a daemon before.
    pub(crate) fn recover(&self, open: &HashSet<Ino>) -> Result<Recovered> {
        let owner = self.tiers[0].tier.id().to_string();
        for kept in self.backing.clean_temporaries(&owner)?.kept {
            tracing::warn!(
                ?kept,
                "a file of others was displaced by an interrupted flush; it is in .forebay/limbo"
            );
        }
        self.release_orphans(open)?;
        self.recover_copies()?;
        let trusted = self.clean_copies_are_trusted()?;
        let known = self.meta.setting(RECOVERED)?.is_some();
        let mut recovered = Recovered::default();
        for index in 0..self.tiers.len() {
            if !known {
                self.refuse_orphaned_tier(index)?;
            }
            self.recover_tier(index, trusted, &mut recovered)?;
            // Not among those at which a mounted daemon dies: it is not mounted yet.
            fail::fail_point!("node.recover.tier");
        }
        self.recover_spills()?;
        if !trusted {
            self.recover_unsynced()?;
        }
        if !known {
            self.meta.set_setting(RECOVERED, b"1")?;
            // Before anything is written: else a power cut leaves tiers without a namespace.
            self.meta.sync()?;
        }
        tracing::info!(
            objects = recovered.objects,
            dirty = recovered.dirty,
            removed = recovered.removed,
            "tiers read"
        );
        Ok(recovered)
    }

    /// Files that were open without a name when the daemon ended are gone.
    pub(crate) fn release_orphans(&self, open: &HashSet<Ino>) -> Result<()> {
        for ino in self.meta.orphans()?.into_iter().filter(|ino| !open.contains(ino)) {
            self.meta.release_orphan(ino, convert::now())?;
        }
        Ok(())
    }

    /// After a crash of the machine, or of a tier's device, clean copies may hold less than was written:
    /// the backing store has them all, so they go.
    fn clean_copies_are_trusted(&self) -> Result<bool> {
        let clean_end = self.state_dir.join(CLEAN_END);
        let boot = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
        let now = self.machine_and_mounts(&boot);
        let ended = clean_end.exists();
        let running = self.state_dir.join("running");
        // The boot alone is what older versions noted.
        let same = std::fs::read_to_string(&running)
            .is_ok_and(|last| !boot.is_empty() && (last == now || last == boot));
        if ended {
            std::fs::remove_file(&clean_end)?;
        }
        if let Err(error) = std::fs::write(&running, &now) {
            // Without room for it: the next start trusts no clean copy.
            tracing::warn!(%error, "can't note the boot");
            drop(std::fs::remove_file(&running));
        }
        // Or the next start after a crash of the machine would see the clean end of this one.
        std::fs::File::open(&self.state_dir)?.sync_all()?;
        Ok(ended || same)
    }

    /// What is another one when the machine has restarted, or when a tier was mounted anew since: its
    /// device may have been away, and what the kernel had not written is gone.
    fn machine_and_mounts(&self, boot: &str) -> String {
        let mut text = boot.to_string();
        for slot in &self.tiers {
            let mount = mount_number(slot.tier.path()).unwrap_or(0);
            text.push_str(&format!("{} {mount}\n", slot.tier.id()));
        }
        text
    }

    /// A namespace that has never seen this tier must not throw away what only the tier has.
    fn refuse_orphaned_tier(&self, index: usize) -> Result<()> {
        let tier = &self.tiers[index].tier;
        let mut dirty = None;
        tier.list(&mut |ino, header| match header {
            Ok(header) if header.dirty => {
                dirty = Some((ino, header.path));
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        })?;
        let Some((_, path)) = dirty else { return Ok(()) };
        Err(NodeError::Config(format!(
            "the tier {} holds files that the backing store lacks ({} is one), but its metadata is \
             gone: bring them back with `forebay fsck --rebuild`",
            tier.path().display(),
            path.display()
        )))
    }

    /// The next start may trust all that lies on the tiers.
    pub(crate) fn note_clean_end(&self) -> Result<()> {
        for slot in &self.tiers {
            slot.tier.sync()?;
        }
        Ok(std::fs::write(self.state_dir.join(CLEAN_END), "")?)
    }

    fn recover_tier(&self, index: usize, trusted: bool, recovered: &mut Recovered) -> Result<()> {
        let slot = &self.tiers[index];
        let mut failed = None;
        slot.tier.list(&mut |ino, header| {
            match self.recover_object(index, Ino(ino), header, trusted) {
                Ok(Some(resident)) => {
                    slot.room.force(resident.charged);
                    self.residents.set(ino, resident);
                    recovered.objects += 1;
                    recovered.dirty += u64::from(resident.dirty);
                    self.tell_steward(ino, resident);
                }
                Ok(None) => {
                    recovered.removed += 1;
                    if let Err(error) = slot.tier.remove(ino)
                        && error.class() != ErrorClass::NotFound
                    {
                        tracing::warn!(ino, %error, "can't remove an object");
                    }
                }
                Err(error) => {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        })?;
        failed.map_or(Ok(()), Err)
    }

    /// Its decisions wait until all is read: an object that moves to a tier before that one is looked
    /// at would be taken for the rest of a move.
    pub(crate) fn tell_steward(&self, ino: u64, resident: Resident) {
        let object = unit::Ino(ino);
        let tier = unit::Tier(resident.tier);
        self.decide_later(Event::Resident { object, tier, bytes: unit::Bytes(resident.charged) });
        if resident.dirty {
            self.decide_later(Event::Dirty { object });
        }
        if self.meta.get(Ino(ino)).is_ok_and(|record| record.pinned) {
            self.decide_later(Event::Pinned { object });
        }
    }

    /// One object: its entry in the residency index, or `None` when it is to be removed.
    fn recover_object(
        &self,
        index: usize,
        ino: Ino,
        header: forebay_store::Result<Header>,
        trusted: bool,
    ) -> Result<Option<Resident>> {
        let slot = &self.tiers[index];
        let header = match header {
            Ok(header) => header,
            Err(error) => {
                tracing::warn!(%ino, %error, "an object without a readable header is dropped");
                return Ok(None);
            }
        };
        if self.residents.get(ino.0).is_some() {
            // Moved between tiers, and the daemon ended before the old one was removed.
            return Ok(None);
        }
        let record = match self.meta.get(ino) {
            Ok(record) if !is_removed(&record) => record,
            Ok(_) | Err(forebay_meta::Error::Stale(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let record = self.as_seen_here(&record);
        let object = slot.tier.open(ino.0)?;
        let tier = u8::try_from(index).unwrap_or(u8::MAX);
        let mut map = match self.map_found(index, ino, &header, trusted)? {
            MapFound::None => None,
            MapFound::Map(map) => Some(map),
            MapFound::Useless => return Ok(None),
        };
        if let Some(map) = &mut map {
            // The last change of length was interrupted, and is as far as the object says.
            map.set_len(object.len()?)?;
        }
        let map_bytes = map.as_ref().map_or(0, Presence::sidecar_bytes);
        let charged = object.allocated_bytes()? + map_bytes;
        let mut dirty = header.dirty || map.as_ref().is_some_and(Presence::is_dirty);
        let mut current = record.backing.fingerprint.map(convert::store_fingerprint);
        if dirty && !self.may_have_written(&record) {
            if !self.yield_found(ino, tier)? {
                self.check_overtaken(&record, &header, slot.tier.path())?;
            }
            return Ok(None);
        }
        if !dirty && record.dirty {
            // It was flushed, but that was not reported any more. Or the power failed: the mark that
            // it was written is lost, and with it what was written, which nobody has synced.
            match self.published_meanwhile(&record, &header)? {
                Some(found) => {
                    self.revert_to(ino, found)?;
                    current = Some(convert::store_fingerprint(found));
                }
                // Fetched again, and not even whole: nothing in it is newer than what is below, and
                // its length is not the file's.
                None if !header.whole => return Ok(None),
                None => dirty = true,
            }
        }
        if dirty {
            if !trusted && let Some(found) = self.superseded_by(&record, &header)? {
                tracing::info!(%ino, "an object is older than what was written back of the file");
                self.revert_to(ino, found)?;
                return Ok(None);
            }
            self.recover_dirty(&record, &header, &*object)?;
        } else {
            let same = match (header.base, current) {
                (Some(base), Some(current)) => base.same_content(&current),
                _ => false,
            };
            // Of a fetch that had not come to give it its length nothing counts.
            let complete = current.is_some_and(|current| current.size == object.len().unwrap_or(0));
            if !same || !complete || !trusted {
                return Ok(None);
            }
        }
        Ok(Some(Resident { tier, whole: header.whole, dirty, charged }))
    }

    /// The version that the backing store has of a file, if the header of its object is older than
    /// the announcement of that version. After a crash of the machine a header, and the bytes with it,
    /// may be older than what was written back. Every header since the announcement knows the version,
    /// and whatever of the object was synced since was synced with one; what was synced before is in
    /// the version.
    fn superseded_by(
        &self,
        record: &Record,
        header: &Header,
    ) -> Result<Option<forebay_meta::Fingerprint>> {
        if record.spilled || header.spilled {
            return Ok(None);
        }
        for link in &record.backing.links {
            let Some(found) = self.found_under(record, link)? else { continue };
            let print = found.fingerprint();
            let ours = [record.backing.fingerprint, record.backing.pending].into_iter().flatten();
            let mut ours = ours.map(convert::store_fingerprint);
            if ours.any(|known| known.same_content(&print)) && !is_announced(header, &print) {
                return Ok(Some(convert::fingerprint(print)));
            }
        }
        Ok(None)
    }

    /// The record of a file follows the version that the backing store has.
    fn revert_to(&self, ino: Ino, found: forebay_meta::Fingerprint) -> Result<()> {
        self.meta.update(ino, None, |record| {
            record.dirty = false;
            (record.attr.size, record.attr.mtime) = (found.size, found.mtime);
            record.backing.fingerprint = Some(found);
            Queue::Yes
        })?;
        Ok(())
    }

    /// After a crash of the machine: files whose bytes nobody has synced, and of which no tier has
    /// anything any more, are what the backing store has of them, or empty.
    fn recover_unsynced(&self) -> Result<()> {
        let (mut after, mut lost) = (Seq(0), 0);
        loop {
            let page = self.meta.backlog(after, PAGE)?;
            for (seq, ino) in &page {
                after = *seq;
                let Ok(record) = self.meta.get(*ino) else { continue };
                let gone = record.attr.kind == FileKind::File
                    && record.dirty
                    && !record.spilled
                    && record.attr.size > 0
                    && self.residents.get(ino.0).is_none()
                    && self.may_have_written(&record);
                if gone {
                    lost += 1;
                    self.forget_unsynced(&record)?;
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

    fn forget_unsynced(&self, record: &Record) -> Result<()> {
        for link in &record.backing.links {
            let Some(found) = self.found_under(record, link)? else { continue };
            // Not that of a file which this one has replaced.
            let known = record.backing.fingerprint.is_some_and(|known| known.ino == found.ino);
            if known || is_pending(record, &found) {
                return self.revert_to(record.ino, convert::fingerprint(found.fingerprint()));
            }
        }
        self.meta.update(record.ino, None, |record| {
            record.attr.size = 0;
            Queue::Yes
        })?;
        Ok(())
    }

    /// The map of an object that says that it is partly resident. One that was not synced may be
    /// missing or cut short after a crash of the machine. Without it nobody can say which bytes of the
    /// object are the file's: a copy goes, and what may be newer than the backing store is set aside.
    fn map_found(
        &self,
        index: usize,
        ino: Ino,
        header: &Header,
        trusted: bool,
    ) -> Result<MapFound> {
        if header.whole {
            return Ok(MapFound::None);
        }
        let tier = &self.tiers[index].tier;
        let why = match tier.open_map(ino.0, header.dirty) {
            Ok(Some(mut map)) => {
                if !trusted {
                    map.believe_what_was_synced(header.dirty)?;
                }
                return Ok(MapFound::Map(map));
            }
            Ok(None) => "its map is missing".to_string(),
            Err(error @ StoreError::Damaged { .. }) => error.to_string(),
            Err(error) => return Err(error.into()),
        };
        if header.dirty {
            let kept = forebay_store::recover::set_aside(&**tier, ino.0)?;
            let (path, kept) = (header.path.display(), kept.display());
            tracing::error!(%ino, %path, %kept, why, "an object that was being written is set aside: what was synced of it stands in the backing store, or nowhere else");
        }
        Ok(MapFound::Useless)
    }

    /// An object that was being written: its size and times count, and it goes to the backlog. If a
    /// flush was interrupted right after it was published, what stands in the backing store is its
    /// own work.
    fn recover_dirty(&self, record: &Record, header: &Header, object: &dyn Object) -> Result<()> {
        let stat = object.stat()?;
        let published = self.published_meanwhile(record, header)?;
        self.meta.update(record.ino, None, |record| {
            record.attr.size = stat.size;
            record.attr.mtime = convert::time(stat.mtime);
            record.attr.ctime = record.attr.ctime.max(record.attr.mtime);
            record.dirty = true;
            if let Some(fingerprint) = published {
                record.backing.fingerprint = Some(fingerprint);
            }
            Queue::Yes
        })?;
        if !header.dirty {
            object.set_header(&Header { dirty: true, writing: true, ..header.clone() })?;
        }
        Ok(())
    }

    /// The version in the backing store that a flush of this object made, if it is there: the one
    /// about to appear, or the last one that did.
    fn published_meanwhile(
        &self,
        record: &Record,
        header: &Header,
    ) -> Result<Option<forebay_meta::Fingerprint>> {
        for link in &record.backing.links {
            let Some(found) = self.found_under(record, link)? else { continue };
            let print = found.fingerprint();
            if is_announced(header, &print) || is_pending(record, &found) {
                return Ok(Some(convert::fingerprint(print)));
            }
        }
        Ok(None)
    }

    /// The files that have a spill file; spill files of others are removed.
    pub(crate) fn wanted_spills(&self) -> Result<Vec<Ino>> {
        let mut wanted = Vec::new();
        for ino in self.backing.list_spills()?.into_iter().map(Ino) {
            match self.meta.get(ino) {
                Ok(record) if record.spilled && !is_removed(&record) => wanted.push(ino),
                Ok(_) | Err(forebay_meta::Error::Stale(_)) => self.drop_spill(ino)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(wanted)
    }

    /// Spill files: those of files that are gone or were flushed go; of a file that has nothing on a
    /// tier the spill file alone knows the size.
    fn recover_spills(&self) -> Result<()> {
        for ino in self.wanted_spills()? {
            if self.residents.get(ino.0).is_some() {
                continue;
            }
            let Some(spill) = self.backing.open_spill(ino.0)? else { continue };
            let (size, mtime) =
                Spill::new(spill, self.backing.open_spill_map(ino.0)?)?.size_and_mtime();
            self.meta.update(ino, None, |record| {
                record.attr.size = size;
                record.attr.mtime = convert::time(mtime);
                record.attr.ctime = record.attr.ctime.max(record.attr.mtime);
                record.dirty = true;
                Queue::Yes
            })?;
        }
        Ok(())
    }
}
