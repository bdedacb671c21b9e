//! What an object says of syncs that a start after a crash of the machine has to know.
//!
//! The namespace may know of a length that the object never had on its device. Was it synced before it
//! grew, then what was synced counts, for it was acknowledged. Was it not, then the version counts
//! that the backing store has: see `reconcile/unsynced.rs`. Two flags of the header tell these apart:
//!
//! - `synced`: a program was told that the file is durable. Written before the sync that makes both
//!   durable, never taken back before the object is clean.
//! - `covered`: as long as it has any bytes the object is no less than what was durable before: it was
//!   whole when it was changed first. Also of an empty one that the kernel writes without asking:
//!   the daemon is not told what it makes durable by itself. Taken back when the object is emptied, after that, and
//!   so before it grows again: the device gets changes of one inode's attributes in their order.
//!
//! Of what lies in a spill file alone a note in the namespace says the same as `synced`. A file that is
//! emptied hands that on to its object before it lets go of the spill file, and keeps it if it has none.

use std::path::Path;
use std::sync::atomic::Ordering;

use forebay_meta::Links;
use forebay_meta::{Link, Record};
use forebay_store::{Bytes, Header, Object, Presence};
use forebay_streams::may_be_on_device;
use forebay_types::Fingerprint;
use forebay_types::{FileKind, Ino, Timestamp};

use crate::context::Context;
use crate::error::Result;
use crate::failpoints::fail_at;
use crate::residency::Residency;
use crate::residency::data_location::{DataLocation, TierObject, Underlay};
use crate::residency::files::{File, FileRef};

/// Where a state directory notes that its node ended in good order.
pub(crate) const CLEAN_END: &str = "clean-end";
/// In that file, a word, if each record had the length of its object.
pub(crate) const SETTLED: &str = "settled";
/// In that file, if what is in spill files is durable.
pub(crate) const SPILLS: &str = "spills";
/// Where it notes for which start of the machine a node runs.
pub(crate) const RUNNING: &str = "running";

/// Whether an object that is so long after a crash of the machine has what was acknowledged of its file,
/// whatever length the namespace knows of.
pub(crate) fn is_acknowledged(header: &Header, len: u64) -> bool {
    header.synced || header.covered && len > 0
}

/// As [`is_acknowledged`], of an object that should be so long. What the kernel has written by itself to
/// an object that was empty is not whole merely because it is there: if not all of it is, no version that
/// is known gives way to it.
pub(crate) fn counts(
    header: &Header,
    object: &dyn Object,
    size: u64,
) -> forebay_store::Result<bool> {
    let was_empty = header.covered && header.size == 0;
    let acknowledged = is_acknowledged(header, object.len()?);
    Ok(acknowledged && (header.synced || !was_empty || surely_there(header, object)? >= size))
}

/// How much of something that nobody has synced is surely there after a crash of the machine: a file
/// system may have made its length durable before the bytes, which are holes then.
pub(crate) fn bytes_before_a_hole(of: &dyn Bytes) -> forebay_store::Result<u64> {
    let len = of.len()?;
    Ok(if len == 0 { 0 } else { of.seek_hole(0)?.unwrap_or(len).min(len) })
}

/// As [`bytes_before_a_hole`], of an object in use: what stands in a hole later is new, as an end is.
pub(crate) fn len_to_first_hole(place: &TierObject) -> Result<u64> {
    Ok(match place.presence {
        None => bytes_before_a_hole(&*place.object)?,
        Some(_) => place.object.len()?,
    })
}

/// As [`bytes_before_a_hole`], of an object. Of a part its map tells.
pub(crate) fn surely_there(header: &Header, object: &dyn Object) -> forebay_store::Result<u64> {
    if header.whole { bytes_before_a_hole(object) } else { object.len() }
}

/// What was written last behind the end of a base, in an extent that got no mark for it, goes: the object
/// shows through there.
pub(crate) fn clear_beyond_base(
    map: &Presence,
    object: &dyn Object,
    mtime: Timestamp,
) -> forebay_store::Result<()> {
    let Some(beyond) = map.beyond_base() else { return Ok(()) };
    object.punch(beyond.start, beyond.end - beyond.start)?;
    object.set_times(None, Some(mtime))
}

/// Which run of the machine this is; empty if the kernel does not say.
pub(crate) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

/// Whether the machine has not restarted since a daemon worked here.
pub(crate) fn is_same_boot(state_dir: &Path) -> bool {
    let (boot, last) = (boot_id(), std::fs::read_to_string(state_dir.join(RUNNING)));
    !boot.is_empty() && last.is_ok_and(|last| last.starts_with(&boot))
}

/// Whether an object that has what the backing store lacks has lost its end.
pub(crate) fn is_cut(record: &Record, header: &Header, len: u64) -> bool {
    (header.dirty || record.is_dirty()) && len < record.attr.size
}

/// Whether the backing store has the version that is known of a file under a name, durably. A worker
/// that is about to move it claims the new name first, and reports when only that is left.
fn surely_stands(record: &Record, at: &Link) -> bool {
    let backing = &record.backing;
    let is_only = backing.links.only() == Some(at);
    let was_made = backing.links.contains(at) && !record.claims().contains(at);
    backing.fingerprint.is_some() && (is_only || was_made)
}

/// A file that is about to take a name.
#[derive(Default)]
pub(crate) struct Replacing {
    /// The one that has the name, and how many syncs of it there were when that was decided.
    replaced: Option<(FileRef, u64)>,
    /// Whatever is done to the file later, what it replaces is not to come back: it was durable.
    durable: bool,
}

/// What has to be done to a file before it takes a name.
enum Readiness {
    /// Nothing: it is durable.
    Durable,
    /// Nothing: what it replaces comes back where it turns out that it is not whole.
    Guarded,
    /// It is made durable.
    Unsynced,
}

/// What a file has got since it was synced last.
#[derive(PartialEq, Eq)]
enum SinceSync {
    /// An end, or bytes where there was a hole, or all that it has.
    Grown,
    /// No more than it had then.
    Same,
    /// It was not synced, or that is not known.
    Unknown,
}

impl Residency {
    /// A header that knows the published version may come to its device before bytes that are in that
    /// version: after a power cut the object would count, without them. Before anybody is told that they
    /// are written back, they are on both. Of a part the map has to know them as well: what it was synced
    /// without is not looked for in the backing store behind the end that the file had there before.
    pub(crate) fn sync_flushed(&self, file: &File) -> Result<()> {
        self.write_again(file)?;
        let location = file.location.read();
        let Some(place) = &location.place else { return Ok(()) };
        let Some(presence) = &place.presence else { return self.sync_object(file, place, true) };
        self.sync_part(file, presence, &*place.object, true)
    }

    /// Makes durable what a file has here: its bytes, its header, its spill file and its names.
    pub(crate) fn sync_file(&self, file: &File, data_only: bool) -> Result<()> {
        self.write_again(file)?;
        let mut to_note = None;
        {
            let location = file.location.read();
            if let Some(place) = &location.place {
                // First: a start that finds a header which says that the file was synced looks for what
                // was synced in the map.
                if let Some(presence) = &place.presence {
                    self.sync_part(file, presence, &*place.object, false)?;
                }
                self.note_sync(file, place)?;
                // A sync of the data alone may leave out a header that says whose they are.
                let unsynced = place.headers.unsynced();
                if place.is_marked_whole() || unsynced.is_some() {
                    self.sync_object(file, place, data_only && unsynced.is_none())?;
                }
                if let Some(seen) = unsynced {
                    self.settle_object(file.ino, place.tier)?;
                    place.headers.synced(seen);
                }
            } else {
                // An object that was removed would come back, and hide the spill file.
                for slot in &self.tiers {
                    slot.tier.settle_removals(file.ino.0)?;
                }
            }
            match &location.base {
                Underlay::Spill(spill) => {
                    to_note = spill.acknowledge().then(|| spill.clone());
                    self.sync_spill(file, spill, data_only)?;
                    if to_note.is_some() {
                        self.note_acknowledged(file.ino)?;
                    }
                }
                Underlay::Backing(_) | Underlay::Zeros => {}
            }
        }
        // A name that is durable already needs no second journal write.
        // After a removal under way by others: what nobody finds any more is not kept.
        let change = self.meta.get_settled(file.ino)?.change + 1;
        if to_note.is_some() || file.durable_change.load(Ordering::Acquire) != change {
            if let Some(resident) = self.residents.get(file.ino.0) {
                self.tiers[usize::from(resident.tier)].tier.sync_dir(file.ino.0)?;
            }
            self.meta.sync()?;
            file.durable_change.store(change, Ordering::Release);
        }
        if let Some(spill) = to_note {
            spill.acknowledgement_noted();
        }
        *file.syncs.lock() += 1;
        Ok(())
    }

    /// Before the kernel writes a file without asking: whatever it makes durable by itself, also by
    /// `msync` or for `RWF_DSYNC`, is nothing without a header that says that the object is dirty, nor
    /// without a record of its file. An object without bytes can wait: what makes the first of them durable
    /// makes what was done to the object before durable as well, and the name of a new file is not what
    /// such calls promise. `durably` if each write is to last, and so the name, too.
    pub(crate) fn before_unseen_writes(&self, file: &File, durably: bool) -> Result<()> {
        if durably {
            return self.sync_file(file, false);
        }
        self.write_again(file)?;
        let location = file.location.read();
        let Some(place) = &location.place else { return Ok(()) };
        if place.object.len()? == 0 {
            return self.note_unseen_syncs(place);
        }
        if !self.meta.is_surely_kept(file.ino) {
            self.meta.sync()?;
        }
        self.note_sync(file, place)?;
        if let Some(seen) = place.headers.unsynced() {
            self.sync_object(file, place, false)?;
            self.settle_object(file.ino, place.tier)?;
            place.headers.synced(seen);
        }
        Ok(())
    }

    /// Makes it durable that a file has this object and no other one.
    pub(crate) fn settle_object(&self, ino: Ino, tier: u8) -> Result<()> {
        for (index, slot) in self.tiers.iter().enumerate() {
            if index == usize::from(tier) {
                slot.tier.sync_dir(ino.0)?;
            } else {
                // An older one that was removed would come back.
                slot.tier.settle_removals(ino.0)?;
            }
        }
        Ok(())
    }

    /// The version that the backing store has of a file, if the header of its object is older than
    /// the announcement of that version. After a crash of the machine a header, and the bytes with it,
    /// may be older than what was written back. Every header since the announcement knows the version,
    /// and whatever of the object was synced since was synced with one; what was synced before is in
    /// the version. So is what was never synced, if it is less than a version that is there (`cut`).
    pub(crate) fn superseded_by(
        &self,
        record: &Record,
        header: &Header,
        cut: bool,
    ) -> Result<Option<forebay_meta::Fingerprint>> {
        if record.spilled {
            // All of the file was in the spill file when that was published.
            let published = self.published_spill(record)?.map(|found| found.fingerprint());
            let newer = published.filter(|print| !is_announced(header, print));
            return Ok(newer);
        }
        // A header that says that its file is spilled may be from before the spill file was published.
        for link in &names_below(record) {
            let Some(found) = self.above.found_at_start(record, link)? else { continue };
            let print = found.fingerprint();
            let ours = [record.backing.fingerprint, record.backing.pending].into_iter().flatten();
            let mut ours = ours;
            let known = ours.any(|known| known.same_content(&print));
            if known && (cut || !is_announced(header, &print)) {
                self.meta.claim_found(record.ino, link)?;
                return Ok(Some(print));
            }
        }
        Ok(None)
    }

    /// The sync that follows is one of which a program will be told.
    pub(crate) fn note_sync(&self, file: &File, place: &TierObject) -> Result<()> {
        if place.headers.say_synced() || !place.is_dirty() {
            return Ok(());
        }
        let len = len_to_first_hole(place)?;
        let note = |header: &mut Header| {
            let change = header.dirty && !header.synced;
            if change {
                (header.synced, header.size) = (true, len);
            }
            place.headers.hear_synced(header.synced);
            change
        };
        self.keep_proof(file, place, || self.edit_header_if(place, note))
    }

    /// From here on the kernel may sync an object that is empty now without asking.
    pub(crate) fn note_unseen_syncs(&self, place: &TierObject) -> Result<()> {
        self.edit_header_if(place, |header| {
            let change = header.dirty && !header.synced && !header.covered;
            (header.covered, header.size) =
                (header.covered || change, if change { 0 } else { header.size });
            change
        })
    }

    /// What the kernel may have synced without asking counts after the object was emptied as well. What is
    /// written then is new since the last sync.
    pub(crate) fn note_syncs_before_emptying(&self, place: &TierObject) -> Result<()> {
        if !place.is_dirty() {
            return Ok(());
        }
        let len = place.object.len()?;
        self.edit_header_if(place, |header| {
            // What covers a copy was not empty, and an open by which it is written unseen syncs it.
            let unseen = header.covered && header.size == 0 && len > 0;
            let change = if header.synced { header.size > 0 } else { unseen };
            if change {
                (header.synced, header.size) = (true, 0);
            }
            change
        })
    }

    /// The object was cut to nothing: of what was durable before it has nothing any more.
    pub(crate) fn note_emptied(&self, place: &TierObject) -> Result<()> {
        if place.headers.say_synced() {
            return Ok(());
        }
        self.edit_header_if(place, |header| {
            let change = header.covered;
            (header.covered, header.size) = (false, 0);
            change
        })
    }

    /// A spilled file was emptied, and is about to let go of its spill file. That may have had what a
    /// program was told of (`acknowledged`), and the header must say so: the object is durable, empty,
    /// before the namespace knows of no spill file.
    pub(crate) fn settle_emptied(
        &self,
        ino: Ino,
        place: &TierObject,
        acknowledged: bool,
    ) -> Result<()> {
        self.edit_header_if(place, |header| {
            let change = acknowledged && !(header.synced && header.size == 0);
            if change {
                (header.synced, header.size) = (true, 0);
            }
            change
        })?;
        let unsynced = place.headers.unsynced();
        // There are no bytes that a failure could have taken from it.
        let synced = place.object.sync(false);
        synced.inspect_err(|_| self.failed_syncs.remember(ino))?;
        if let Some(seen) = unsynced {
            self.settle_object(ino, place.tier)?;
            place.headers.synced(seen);
        }
        Ok(())
    }

    /// What an object gets behind `len` from here on is new since the last sync: it is cut there, or gets a
    /// hole.
    pub(crate) fn note_cut(&self, place: &TierObject, len: u64) -> Result<()> {
        self.edit_header_if(place, |header| {
            let counts = header.synced || header.covered && header.size > 0;
            let change = header.dirty && counts && len < header.size;
            if change {
                // With size 0 what covers it would have been empty.
                header.size = len.max(u64::from(!header.synced));
            }
            change
        })
    }

    /// Makes a file durable that is to take the name `at` of another one, if need be.
    pub(crate) fn begin_replacing(
        &self,
        context: &Context,
        source: &Record,
        target: Option<&Record>,
        at: &Link,
    ) -> Result<Replacing> {
        let replaced = target.filter(|target| target.attr.kind == FileKind::Regular);
        let file = replaced.map(|target| self.files.get(target.ino));
        let seen = file.as_ref().map(|file| *file.syncs.lock());
        let replaces = target.is_some();
        let durable = match self.readiness_to_replace(context, source, (replaced, replaces), at)? {
            Readiness::Durable => true,
            Readiness::Guarded => false,
            Readiness::Unsynced => self.sync_to_replace(context, source)?,
        };
        Ok(Replacing { replaced: file.zip(seen), durable })
    }

    /// Has a file take that name, by a function that is told whether it is durable.
    pub(crate) fn replace<T>(
        &self,
        context: &Context,
        source: &Record,
        Replacing { replaced, mut durable }: Replacing,
        replace: impl FnOnce(bool) -> Result<T>,
    ) -> Result<T> {
        fail_at!("node.rename.decided");
        let mut syncs = replaced.as_ref().map(|(file, _)| file.syncs.lock());
        if syncs.as_deref() != replaced.as_ref().map(|(_, seen)| seen) {
            // Somebody was told since that what goes with the name is durable.
            drop(syncs);
            durable = self.sync_to_replace(context, source)?;
            syncs = replaced.as_ref().map(|(file, _)| file.syncs.lock());
        }
        // The sync may have taken long.
        self.given_up.check(context)?;
        let done = replace(durable);
        drop(syncs);
        done
    }

    /// Whether a file must be durable before it takes the name `at`, of another file `target` or of whatever it
    /// `replaces`. If that file was synced, and the backing store does not have it there, its bytes go with its
    /// name, or it is not found any more. A version that the backing store has under the name comes back by
    /// itself: see `reconcile/unsynced.rs`.
    fn readiness_to_replace(
        &self,
        context: &Context,
        source: &Record,
        (target, replaces): (Option<&Record>, bool),
        at: &Link,
    ) -> Result<Readiness> {
        let is_newer =
            |record: &Record| record.is_dirty() || record.spilled || self.is_unsettled(record.ino);
        if source.attr.kind != FileKind::Regular {
            return Ok(Readiness::Guarded);
        }
        if !is_newer(source) {
            return Ok(Readiness::Durable);
        }
        let kept = match target {
            // It goes on from a name that it took from another one, which is there no more.
            None => !source.replaces,
            // Which of several names is to be given back, and whether what was replaced is needed there, nobody
            // can tell later.
            Some(target) if source.attr.nlink > 1 || target.attr.nlink > 1 => false,
            // Of parts in several places nobody can tell later whether all of them are there.
            Some(_) if source.spilled || self.is_in_parts(context, source.ino)? => false,
            // What it was before its unsynced changes has to be found there as well, if it was anything.
            Some(target) if is_newer(target) => {
                // Of one that has claimed the name, nobody knows whether it or an older one is there.
                let stands = match target.backing.fingerprint {
                    None => !target.backing.links.contains(at),
                    Some(_) => surely_stands(target, at),
                };
                stands && !self.may_be_synced(context, target.ino)?
            }
            // After a move that is not written back yet what is below is an older one.
            Some(target) => surely_stands(target, at),
        };
        if !kept {
            return Ok(Readiness::Unsynced);
        }
        Ok(match self.changed_since_a_sync(context, source, replaces)? {
            SinceSync::Grown => Readiness::Unsynced,
            SinceSync::Same => Readiness::Durable,
            SinceSync::Unknown => Readiness::Guarded,
        })
    }

    /// A file is about to get one more name. If it has replaced another one, that could come back only as long
    /// as it has one.
    pub(crate) fn begin_link(&self, context: &Context, record: &Record) -> Result<()> {
        if record.replaces && (record.is_dirty() || record.spilled || self.is_unsettled(record.ino))
        {
            self.sync_to_replace(context, record)?;
            self.given_up.check(context)?;
        }
        Ok(())
    }

    /// What replaces another file is made durable, if it can be: whether it is.
    fn sync_to_replace(&self, context: &Context, source: &Record) -> Result<bool> {
        if source.attr.kind != FileKind::Regular {
            return Ok(false);
        }
        context.wait()?;
        let file = self.files.get(source.ino);
        match self.load(context, &file) {
            Ok(()) => self.sync_file(&file, true).map(|()| true),
            Err(error) => {
                tracing::debug!(ino = %source.ino, %error, "nothing to sync before it is renamed");
                Ok(false)
            }
        }
    }

    /// What `look` says of where the bytes of a file are; `None` if that can't be found out.
    fn look_where<T>(
        &self,
        context: &Context,
        ino: Ino,
        look: impl FnOnce(&DataLocation) -> Result<T>,
    ) -> Result<Option<T>> {
        let file = self.files.get(ino);
        if self.load(context, &file).is_err() {
            // Whoever may not wait has not found out.
            context.wait()?;
            return Ok(None);
        }
        let location = file.location_for(context)?;
        look(&location).map(Some)
    }

    /// Whether a file is more than one whole object.
    fn is_in_parts(&self, context: &Context, ino: Ino) -> Result<bool> {
        let parts = self.look_where(context, ino, |location| {
            let parts = location.place.as_ref().is_some_and(|place| place.presence.is_some());
            Ok(parts || location.is_spilled())
        })?;
        Ok(parts.unwrap_or(false))
    }

    /// Whether a file that counts after a crash of the machine, as it was synced once, would lack what it
    /// has got since: an end, also in place of one that was cut off, or bytes where there was a hole. Nobody
    /// could tell then that it is less than it was, and that what it has replaced is to come back. Nor where
    /// it `replaces` anything, and was emptied since the backing store got a version of it: it would be that
    /// again, also if that is its first one, of which only the announcement is recorded yet.
    fn changed_since_a_sync(
        &self,
        context: &Context,
        source: &Record,
        replaces: bool,
    ) -> Result<SinceSync> {
        let (ino, known) = (source.ino, [source.backing.fingerprint, source.backing.pending]);
        let has_version = replaces && known.into_iter().flatten().any(|version| version.size > 0);
        let changed = self.look_where(context, ino, |location| {
            let Some(place) = &location.place else { return Ok(SinceSync::Unknown) };
            let (header, len) = (place.object.header()?, place.object.len()?);
            let by_kernel = header.covered && header.size == 0;
            let counts = match by_kernel && !header.synced {
                true => self.may_be_synced_unseen(ino, place),
                false => header.synced || header.covered,
            };
            let was_emptied = !header.synced && (!header.covered || by_kernel);
            Ok(match header.dirty && counts && len > header.size {
                true => SinceSync::Grown,
                false if header.dirty && has_version && was_emptied => SinceSync::Grown,
                false if header.dirty && header.synced => SinceSync::Same,
                false => SinceSync::Unknown,
            })
        })?;
        Ok(changed.unwrap_or(SinceSync::Unknown))
    }

    /// Whether the kernel may have synced something, without asking, of a file that was empty when it began
    /// to write it, or may yet do so.
    fn may_be_synced_unseen(&self, ino: Ino, place: &TierObject) -> bool {
        let file = self.files.get(ino);
        let is_open = file.opens.lock().writers > 0;
        is_open
            || self.maybe_stored_into(&file, place)
            || place.object.fd().is_none_or(may_be_on_device)
    }

    /// Whether somebody may have been told that a file is durable. What was written past the tiers, or
    /// by another node, or can't be read, does not say.
    fn may_be_synced(&self, context: &Context, ino: Ino) -> Result<bool> {
        let synced = self.look_where(context, ino, |location| {
            let Some(place) = &location.place else { return Ok(true) };
            let says = place.object.header().and_then(|header| Ok((header, place.object.len()?)));
            // A clean one was written back a moment ago, and that is not reported yet: under which name is
            // not known.
            Ok(says.map_or(true, |(header, len)| !header.dirty || is_acknowledged(&header, len)))
        })?;
        Ok(synced.unwrap_or(true))
    }

    fn edit_header_if(
        &self,
        place: &TierObject,
        edit: impl FnOnce(&mut Header) -> bool,
    ) -> Result<()> {
        let _one_at_a_time = place.charge.growing.lock();
        let mut header = place.object.header()?;
        if edit(&mut header) { place.set_header(&header) } else { Ok(()) }
    }
}

/// The names under which the backing store may have a file. One whose publication was announced may be
/// there under its name although that was not claimed: the power may fail between the two, and take the
/// claim alone.
pub(crate) fn names_below(record: &Record) -> Links {
    let mut names = record.backing.links.clone();
    if record.backing.pending.is_some() {
        for link in record.links.iter().filter(|link| !record.backing.links.contains(link)) {
            names.push(link.clone());
        }
    }
    names
}

/// A file that was empty when the kernel began to write it unseen is about to get a version in the backing
/// store, to which it would give way after a power cut unless all of it was there: with the sync that
/// follows it counts as synced. Whether the header says that now.
pub(crate) fn may_get_an_older_version(header: &mut Header) -> bool {
    let change = header.dirty && header.covered && header.size == 0 && !header.synced;
    header.synced |= change;
    change
}

/// Whether the header of an object knows a version as its own: the last one, the announced one, or
/// the inode that is being written in place.
pub(crate) fn is_announced(header: &Header, found: &Fingerprint) -> bool {
    let in_place = |pending: &Fingerprint| {
        pending.same_inode(found) && header.base.is_some_and(|base| base.same_inode(pending))
    };
    header.base.is_some_and(|base| base.same_content(found))
        || header
            .pending
            .is_some_and(|announced| announced.same_content(found) || in_place(&announced))
}
