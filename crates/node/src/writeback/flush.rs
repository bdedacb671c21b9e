//! From a tier to the backing store: a file's bytes, put together under another name and published at
//! once, so that a name in the backing store shows the old or the new version at every moment. Only a
//! file with several names is written in place, for it must keep its inode.
//!
//! What makes a version in the backing store *ours* (all others are changes by others):
//! - it is the one in the record (`backing.fingerprint`), or the object's header knows it as `base`;
//! - it is what the header announces as `pending`: written durably right before the version appears,
//!   taken back when the object is clean;
//! - it is the inode that is being written in place: the version announced in the record, and in the
//!   header if there is one, is then of the inode that was known before. A spill file that is written
//!   in place notes the inode in `half.INO`.
//!
//! The record follows once the version is there durably, and the header's `base` with or before it.
//! A crash before the announcement leaves the old version; one after it either version, both known as
//! ours; one in the middle of writing in place a mixture, also known, and written again.
//!
//! No version of others is replaced unseen (`crates/store/tests/commit.rs`), and a death at any
//! point leaves the old or the new one (`tests/past_the_tier_faults.rs`,
//! `tests/full_tiers_faults.rs`).

use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_meta::Record;
use forebay_store::backing::Access;
use forebay_store::copy::{self, Cancel, Priority};
use forebay_store::{Attributes, BackingFile, Bytes, Commit, Dir, ErrorClass, Expect, Temporary};
use forebay_types::{Fingerprint, Ino};

use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::failpoints::fail_at;
use crate::metrics::Source;
use crate::residency::data_location::{TierObject, Underlay};
use crate::residency::files::{File, FileRef};
use crate::residency::overlay::Spill;
use crate::residency::seams::Target;
use crate::residency::spill::{inode_note, noted_inode};
use crate::residency::synced::is_announced;
use crate::residency::written_back::Announcement;
use crate::writeback::Writeback;
use crate::writeback::in_place::changed_since;
use crate::writeback::reconcile::{is_own, was_changed};

/// How a flush of a file's bytes ended.
pub(crate) enum Flushed {
    /// The backing store has them.
    Done {
        /// As this version.
        fingerprint: Fingerprint,
        /// Nothing was written meanwhile and nobody can write now: the file is clean.
        clean: bool,
    },
    /// The backing store had them before, so that nothing was published: no attribute either.
    Same {
        /// As this version.
        fingerprint: Fingerprint,
        /// As of [`Flushed::Done`].
        clean: bool,
    },
    /// Something else is there now (`None`: nothing). Nothing was overwritten.
    Conflict(Option<Attributes>),
    /// They changed during the copy: later.
    Busy,
}

/// Dirty extents are flushed this many bytes at a time.
const PIECE: u64 = 64 << 20;

/// A version that was published, and whose name is not known to be durable yet. Until it is, the
/// object is dirty: it may be the only copy that outlasts a power cut.
pub(crate) struct Published {
    file: FileRef,
    fingerprint: Fingerprint,
    /// [`File::writes`] when the object had exactly these bytes, and nobody could write.
    quiet: Option<u64>,
}

/// Where it is noted that a file in the backing store holds a part of a newer version.
fn half_setting(ino: Ino) -> String {
    format!("half.{:x}", ino.0)
}

/// How a copy of all bytes of a file ended.
enum Copied {
    /// There are none.
    Empty,
    /// All are there, of this modification time.
    As(forebay_meta::Timestamp),
    /// Some went elsewhere meanwhile.
    Overtaken,
}

/// After a publication without an answer the file is looked at again: who writes past the tiers is refused
/// until then.
const UNANSWERED: Duration = Duration::from_secs(1);

/// How a file was when its flush began: its count of writes, and whether programs may go on to write.
struct Began {
    writes: u64,
    kept_open: bool,
}

/// A file of the backing store that gets what the tier has, and what changes its length and makes it
/// durable.
struct InPlace<'a> {
    file: &'a dyn BackingFile,
    set_len: &'a dyn Fn(u64) -> Result<()>,
    sync: &'a dyn Fn() -> Result<()>,
}

/// Of what a temporary is a copy.
struct CopyOf<'a> {
    place: Option<&'a TierObject>,
    /// The count of writes when the copy began; `None` if nobody can have written since.
    began: Option<u64>,
}

impl Writeback {
    /// Copies a dirty file's bytes, mode, owner, times and extended attributes to the backing store
    /// and publishes them there. On a thread that may wait.
    ///
    /// The bytes are those at one moment: if a program wrote during the copy, nothing is published
    /// and the answer is `Busy`, except for a file that is kept open for writing (a drain takes it
    /// as it is, and it stays dirty).
    pub(crate) fn flush_data(&self, record: &Arc<Record>, target: &Target<'_>) -> Result<Flushed> {
        let began = Instant::now();
        let flushed = self.flush_now(record, target)?;
        if matches!(flushed, Flushed::Done { .. }) {
            self.metrics.flushes.inc();
            self.metrics.flush_seconds.observe(began.elapsed());
        }
        Ok(flushed)
    }

    fn flush_now(&self, record: &Arc<Record>, target: &Target<'_>) -> Result<Flushed> {
        let file = self.residency.files.get(record.ino);
        let _one = file.writeback.flushing.lock();
        self.residency.load(&Context::DAEMON, &file)?;
        self.residency.write_again(&file)?;
        file.writeback.flush_begun.store(true, Ordering::Release);
        let seen = file.writes.load(Ordering::Acquire);
        let kept_open = file.opens.lock().writers > 0;
        fail_at!("node.flush.begin");
        let now = self.meta.get(record.ino)?;
        let removed = now.links.is_empty() && !record.links.is_empty();
        let published = now.backing.fingerprint != record.backing.fingerprint;
        if removed || published || now.spilled != record.spilled {
            // What the caller decided upon was overtaken.
            return Ok(Flushed::Busy);
        }
        // What the backing store has under the name may be another file, which this one replaces.
        let own = target.expect.is_some() && target.expect == record.backing.fingerprint;
        let (absent, beneath, mapped, spill) = match self.residency.open_layers(&file) {
            Err(NodeError::RestGone) if own => {
                return Ok(Flushed::Conflict(self.found_at(target)?));
            }
            Err(NodeError::RestGone) => {
                self.residency.give_up_rest(&file);
                self.remember_rest_gone(target.parent, target.name);
                self.residency.open_layers(&file)?
            }
            layers => layers?,
        };
        if absent && spill.is_none() && record.attr.size > 0 && !(beneath && own) {
            tracing::error!(ino = %record.ino, "the bytes of a file are gone from the tiers");
            return Err(NodeError::Lost);
        }
        if own && let Some(fingerprint) = self.residency.equals_published(&file, record, target)? {
            file.writeback.staged.lock().take();
            let clean = self.settle_flush(&file, fingerprint, seen, mapped)?;
            return Ok(Flushed::Same { fingerprint, clean });
        }
        // What can't be given to its owner keeps its inode.
        let gives = !own || self.may_give(&record.attr)?;
        let in_place = target.in_place || beneath && absent || !gives;
        let flushed = match spill {
            Some(spill) if (target.in_place || !gives) && own => {
                self.flush_spill_in_place(&file, record, target, &spill)?
            }
            Some(spill) => self.flush_spilled(
                &file,
                record,
                target,
                &spill,
                Began { writes: seen, kept_open },
            )?,
            None if in_place && own => self.flush_in_place(&file, record, target)?,
            None => self.flush_anew(&file, record, target, Began { writes: seen, kept_open })?,
        };
        let Flushed::Done { fingerprint, .. } = flushed else { return Ok(flushed) };
        // As the record will have it when the worker reports it.
        let fingerprint = match self.meta.get(record.ino) {
            Ok(now) => now.backing.numbered(fingerprint),
            Err(forebay_meta::Error::Stale(_)) => fingerprint,
            Err(error) => return Err(error.into()),
        };
        fail_at!("node.flush.published");
        let clean = self.settle_flush(&file, fingerprint, seen, mapped)?;
        Ok(Flushed::Done { fingerprint, clean })
    }

    /// What stands where a file is to be published.
    fn found_at(&self, target: &Target<'_>) -> Result<Option<Attributes>> {
        match self.backing.stat(target.dir, OsStr::from_bytes(target.name)) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.class() == ErrorClass::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a version in the backing store is what a flush of the file made, and could not report.
    pub(crate) fn is_own_version(&self, ino: Ino, found: &Attributes) -> Result<bool> {
        let file = self.residency.files.get(ino);
        self.residency.load(&Context::DAEMON, &file)?;
        let location = file.location.read();
        // Done with the spill file, done with the writing.
        if location.is_spilled() && self.is_half_written(ino, found)? {
            return Ok(true);
        }
        let Some(place) = location.place() else { return Ok(false) };
        Ok(is_announced(&place.header()?, &found.fingerprint()))
    }

    /// Whether a file with a spill file was being written in place when the daemon died. Notes of
    /// earlier spill files say nothing: see [`Writeback::forget_half_written`].
    fn is_half_written(&self, ino: Ino, found: &Attributes) -> Result<bool> {
        let half = self.meta.setting(&half_setting(ino))?;
        let noted = half.as_deref().and_then(noted_inode);
        Ok(noted.is_some_and(|noted| noted.same_inode(&found.fingerprint())))
    }

    /// A daemon that died between the last two steps of [`Writeback::flush_spill_in_place`] left its note;
    /// the next spill file must not inherit it.
    pub(crate) fn forget_half_written(&self, ino: Ino) -> Result<()> {
        if self.meta.setting(&half_setting(ino))?.is_some() {
            self.meta.remove_setting(&half_setting(ino))?;
        }
        Ok(())
    }

    /// After the backing store has the bytes: says whether nobody has written since the copy began and
    /// nobody can. `mapped`: a mapping may have lived then; it may have gone since, and what it stored
    /// with it. The object follows when the name is durable.
    fn settle_flush(
        &self,
        file: &FileRef,
        fingerprint: Fingerprint,
        seen: u64,
        mapped: bool,
    ) -> Result<bool> {
        self.residency.sync_flushed(file)?;
        let location = file.location.write();
        // What was opened of the backing store may be the version that was replaced; also what shows
        // through a spill file that a writer has begun meanwhile.
        let is_written = file.opens.lock().writers > 0;
        if !is_written || !location.base().is_open_as_version(&fingerprint) {
            location.base().close_version();
        }
        let publish = |quiet| {
            let published = Published { file: file.clone(), fingerprint, quiet };
            self.reconciler.published.lock().insert(file.ino.0, published);
        };
        let Some(place) = location.place() else {
            publish(None);
            // Whoever has written since has begun another spill file.
            return Ok(!location.is_spilled());
        };
        let quiet = !mapped && self.residency.is_quiet(file, place, seen);
        publish(quiet.then_some(seen));
        Ok(quiet)
    }

    /// What was published of a file is not known to be durable in the backing store: all stays as if it had
    /// not been, and is done again.
    pub(crate) fn doubt_published(&self, ino: Ino) {
        self.reconciler.published.lock().remove(&ino.0);
    }

    /// What was published of a file is durable in the backing store.
    pub(crate) fn settle_published(&self, ino: Ino) -> Result<()> {
        let published = self.reconciler.published.lock().remove(&ino.0);
        let Some(Published { file, fingerprint, quiet }) = published else {
            return Ok(());
        };
        let file = &file;
        let location = file.location.write();
        if self.residency.become_published(file, &location, fingerprint, quiet)? {
            self.reconciler.published_open.let_go(ino);
        }
        Ok(())
    }

    /// Writes the whole file under a temporary name and publishes it.
    fn flush_anew(
        &self,
        file: &FileRef,
        record: &Arc<Record>,
        target: &Target<'_>,
        Began { writes: began, kept_open }: Began,
    ) -> Result<Flushed> {
        let mut temporary = match file.take_staged(record) {
            Some(staged) => staged,
            None => {
                let mut temporary = self.temporary_for(record, target.dir)?;
                let mtime = match self.copy_layers(file, &**temporary.file())? {
                    Copied::Empty => record.attr.mtime,
                    Copied::As(mtime) => mtime,
                    Copied::Overtaken => return Ok(Flushed::Busy),
                };
                fail_at!("node.flush.copied");
                self.copy_attributes(record, mtime, &**temporary.file())?;
                // Before the commit: the copy is long, and the moment between the check and the
                // rename short.
                temporary.seal()?;
                temporary
            }
        };
        if !kept_open && file.writes.load(Ordering::Acquire) != began {
            return Ok(Flushed::Busy);
        }
        fail_at!("node.flush.checked");
        let location = file.location.read();
        let copied = CopyOf { place: location.place(), began: Some(began) };
        self.publish_file(file, copied, &mut temporary, target)
    }

    /// Copies all bytes of a file: those on the tier from there, the others from the version that
    /// the backing store has. Piece by piece, for a writer may have to change what lies where; it
    /// begins by making a spill file.
    fn copy_layers(&self, file: &FileRef, to: &dyn BackingFile) -> Result<Copied> {
        let limits = self.residency.limits(Priority::WriteBack);
        let copy = |from: &dyn Bytes, range: Range<u64>| -> Result<()> {
            if !range.is_empty() {
                self.metrics.bytes.of(Source::Flush).add(range.end - range.start);
                copy::copy_range(from, to, range, &limits, &Cancel::default())?;
            }
            Ok(())
        };
        let mut at = 0;
        loop {
            let location = file.location.read();
            if location.is_spilled() {
                return Ok(Copied::Overtaken);
            }
            let Some(place) = location.place() else {
                return Ok(if at == 0 { Copied::Empty } else { Copied::Overtaken });
            };
            let stat = file.stat_with_time(place.bytes())?;
            if at >= stat.size {
                to.set_len(stat.size)?;
                return Ok(Copied::As(stat.mtime));
            }
            if at == 0 {
                // A store that has no such files says so before all is copied.
                to.set_len(stat.size)?;
            }
            if place.is_marked_whole() {
                // Holes cost nothing, however long they are.
                at = match place.bytes().seek_data(at) {
                    Ok(data) => data.map_or(stat.size, |data| data.min(stat.size)),
                    Err(error) if error.class() == ErrorClass::Unsupported => at,
                    Err(error) => return Err(error.into()),
                };
            }
            let end = stat.size.min(at + PIECE);
            for run in place.absent(at..end) {
                let run = run.start.max(at)..run.end.min(end);
                if run.is_empty() {
                    continue;
                }
                copy(place.bytes(), at..run.start)?;
                if let Underlay::Backing(opened) = location.base() {
                    let base = self.residency.opened_base(file, opened)?;
                    let there = run.start..run.end.min(base.len()?).max(run.start);
                    copy(&*base, there)?;
                }
                at = run.end;
            }
            copy(place.bytes(), at..end)?;
            at = end;
        }
    }

    /// Notes what is about to appear, and lets it.
    /// `began` is the number of writes of the file when its bytes began to be copied.
    fn publish_file(
        &self,
        file: &FileRef,
        CopyOf { place, began }: CopyOf<'_>,
        temporary: &mut Temporary,
        target: &Target<'_>,
    ) -> Result<Flushed> {
        let (ino, name) = (file.ino, OsStr::from_bytes(target.name));
        // An earlier flush may have got this far without being able to say so.
        let found = match self.backing.stat(target.dir, name) {
            Ok(found) => Some(found),
            Err(error) if error.class() == ErrorClass::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        let pending = temporary.pending()?;
        // Before this publication is announced.
        let now = self.meta.get(ino)?;
        let mut expect = self.intend(ino, target.expect, found.as_ref(), pending)?;
        let found = found.filter(|found| !was_changed(&now, found));
        let found = found.map(|found| found.fingerprint());
        let known = self.meta.get(ino)?.backing.fingerprint;
        if let Some(place) = place {
            let what = Announcement { pending, found, known, expect };
            let was_empty;
            (expect, was_empty) = self.residency.announce_version(place, &what)?;
            let is_newer = began.is_some_and(|began| file.writes.load(Ordering::Acquire) != began);
            if was_empty
                || is_newer
                || file.opens.lock().writers > 0
                || file.stored_unseen.pending().is_some()
            {
                // What was made durable since the copy began, or is by the kernel from now on, is newer
                // than this version: the header has to know it before the version is there.
                self.residency.sync_object(file, place, false)?;
            }
        }
        let expect = expect.map_or(Expect::Absent, Expect::Version);
        let version = self.to_be_held(file, temporary);
        fail_at!("node.flush.publish");
        let committed = self.own_change(&[(target.parent, target.dir)], || {
            Ok(self.backing.commit(temporary, target.dir, name, expect)?)
        })?;
        Ok(match committed {
            Commit::Done(fingerprint) => {
                self.reconciler.published_open.hold(file, version);
                Flushed::Done { fingerprint, clean: false }
            }
            Commit::Conflict(found) => Flushed::Conflict(found),
        })
    }

    /// A version that is about to be published, if a program has the file open to write.
    fn to_be_held(&self, file: &File, temporary: &Temporary) -> Option<Arc<dyn BackingFile>> {
        // In a cluster it may come to be another node's to write.
        let is_written = file.opens.lock().writers > 0 && self.residency.peers.may_write_below();
        is_written.then(|| temporary.file().reopened().ok()).flatten()
    }

    /// Completes a spill file with what shows through it and what is still on the tier, and
    /// publishes it.
    fn flush_spilled(
        &self,
        file: &FileRef,
        record: &Arc<Record>,
        target: &Target<'_>,
        spill: &Arc<Spill>,
        began: Began,
    ) -> Result<Flushed> {
        if self.was_published(file, record, target, spill)? {
            return Ok(Flushed::Busy);
        }
        let mtime = self.fill_spill(file, spill)?;
        fail_at!("node.flush.spill_filled");
        let Some(mut fresh) = self.backing.open_spill(record.ino.0)? else {
            return self.flushed_before(file, record, spill, target);
        };
        self.copy_attributes(record, mtime, &**fresh.file())?;
        self.residency.heeding(file, || fresh.file().sync(false))?;
        // From here on nobody may write to what is going to be a published file.
        let mut location = file.location.write();
        let same = matches!(location.base(), Underlay::Spill(now) if Arc::ptr_eq(now, spill));
        // What was written since may be here in part only: some of it on the tier, some in the spill file.
        let is_newer = !began.kept_open && file.writes.load(Ordering::Acquire) != began.writes;
        if !same || !spill.is_complete() || spill.is_overlong() || is_newer {
            return Ok(Flushed::Busy);
        }
        // Until the record knows: an error may come after the deed.
        spill.set_published(true);
        let published = self.publish_file(
            file,
            CopyOf { place: location.place(), began: None },
            &mut fresh,
            target,
        );
        let flushed = match published {
            // Whoever opens the directory begins anew.
            Err(error) if error.class() == Some(ErrorClass::Denied) => {
                spill.set_published(false);
                return Err(error);
            }
            Err(error) => match self.residency.published_spill(record) {
                Ok(Some(found)) => Flushed::Done { fingerprint: found.fingerprint(), clean: false },
                _ => {
                    let stays = matches!(self.backing.open_spill(record.ino.0), Ok(Some(_)));
                    spill.set_published(!stays);
                    self.reconcile_later(record.ino, UNANSWERED);
                    return Err(error);
                }
            },
            flushed => flushed?,
        };
        if let Flushed::Done { fingerprint, .. } = flushed {
            // Before the record lets go of the spill file: the next start would remove it.
            let synced = self.backing.sync_held(std::slice::from_ref(target.dir));
            synced.inspect_err(|_| self.reconcile_later(record.ino, UNANSWERED))?;
            fail_at!("node.flush.spill_published");
            self.residency.spill_published(file, &mut location, fingerprint)?;
            fail_at!("node.flush.spill_noted");
        } else {
            spill.set_published(false);
        }
        Ok(flushed)
    }

    /// Before anything is written to a spill file that may be published: whether it is, and that is noted now.
    /// What was written to the tier since is not in it, and comes next.
    fn was_published(
        &self,
        file: &FileRef,
        record: &Record,
        target: &Target<'_>,
        spill: &Arc<Spill>,
    ) -> Result<bool> {
        if !spill.may_be_published() {
            return Ok(false);
        }
        // Writers of the file wait for this: soon, also while they have it open.
        self.reconcile_later(record.ino, UNANSWERED);
        if self.backing.open_spill(record.ino.0)?.is_some() {
            spill.set_published(false);
            return Ok(false);
        }
        self.flushed_before(file, record, spill, target).map(|_| true)
    }

    /// The spill file is not in its place: an earlier flush has published it, and got no answer.
    fn flushed_before(
        &self,
        file: &FileRef,
        record: &Record,
        spill: &Arc<Spill>,
        target: &Target<'_>,
    ) -> Result<Flushed> {
        let mut location = file.location.write();
        if !matches!(location.base(), Underlay::Spill(now) if Arc::ptr_eq(now, spill)) {
            return Ok(Flushed::Busy);
        }
        let Some(found) = self.residency.published_spill(record)? else {
            tracing::error!(ino = %file.ino, "the file's spill file is gone from the backing store");
            return Err(rustix::io::Errno::IO.into());
        };
        let fingerprint = found.fingerprint();
        self.backing.sync_held(std::slice::from_ref(target.dir))?;
        self.residency.spill_published(file, &mut location, fingerprint)?;
        Ok(Flushed::Done { fingerprint, clean: false })
    }

    /// Gives a spill file all bytes of its file; their modification time.
    fn fill_spill(&self, file: &FileRef, spill: &Arc<Spill>) -> Result<forebay_meta::Timestamp> {
        {
            let _no_writer = file.location.read();
            spill.cut_left_over()?;
        }
        self.residency.complete_spill(file, spill, PIECE)?;
        let from_tier = self.flush_extents(
            file,
            &InPlace {
                file: &**spill.file(),
                set_len: &|len| spill.set_len(len),
                sync: &|| self.residency.heeding(file, || spill.file().sync(true)),
            },
        )?;
        Ok(from_tier.unwrap_or_else(|| spill.size_and_mtime().1))
    }

    /// Completes a spill file, and copies it into a file that must keep its inode.
    fn flush_spill_in_place(
        &self,
        file: &FileRef,
        record: &Arc<Record>,
        target: &Target<'_>,
        spill: &Arc<Spill>,
    ) -> Result<Flushed> {
        if self.was_published(file, record, target, spill)? {
            return Ok(Flushed::Busy);
        }
        let mtime = self.fill_spill(file, spill)?;
        // What showed through is about to change.
        self.residency.sync_spill(file, spill, false)?;
        let mut location = file.location.write();
        let same = matches!(location.base(), Underlay::Spill(now) if Arc::ptr_eq(now, spill));
        if !same || !spill.is_complete() || spill.is_overlong() {
            return Ok(Flushed::Busy);
        }
        let name = OsStr::from_bytes(target.name);
        let backing = self.backing.open_file(target.dir, name, Access::ReadWrite)?;
        let found = backing.stat()?;
        if !self.is_half_written(file.ino, &found)?
            && (was_changed(&*self.meta.get(file.ino)?, &found)
                || !target.expect.is_some_and(|print| print.same_content(&found.fingerprint())))
        {
            return Ok(Flushed::Conflict(Some(found)));
        }
        self.rights.may_change_store()?;
        self.meta.set_setting(&half_setting(file.ino), &inode_note(&found, false))?;
        // After a power cut nothing else tells what is half written from a change by others.
        self.meta.sync()?;
        fail_at!("node.flush.half");
        if let Some(changed) = changed_since(&*backing, &found)? {
            self.meta.remove_setting(&half_setting(file.ino))?;
            return Ok(Flushed::Conflict(Some(changed)));
        }
        let size = spill.file().len()?;
        let limits = self.limits_in_place();
        self.copy_in_place(&**spill.file(), &*backing, 0..size, &limits)?;
        self.metrics.bytes.of(Source::Flush).add(size);
        self.rights.may_change_store()?;
        backing.set_len(size)?;
        self.copy_attributes(record, mtime, &*backing)?;
        backing.sync(false)?;
        let fingerprint = backing.stat()?.fingerprint();
        // As one step for a restart: the spill file is not needed any more.
        self.residency.spill_published(file, &mut location, fingerprint)?;
        fail_at!("node.flush.half_done");
        self.meta.remove_setting(&half_setting(file.ino))?;
        Ok(Flushed::Done { fingerprint, clean: false })
    }

    /// Writes the changed bytes into the file that the backing store has. The tier keeps them until
    /// they are synced there: after a crash they are written again.
    fn flush_in_place(
        &self,
        file: &FileRef,
        record: &Arc<Record>,
        target: &Target<'_>,
    ) -> Result<Flushed> {
        let name = OsStr::from_bytes(target.name);
        let backing = self.backing.open_file(target.dir, name, Access::ReadWrite)?;
        let found = backing.stat()?;
        let expected = target.expect;
        let announced = match file.location.read().place() {
            Some(place) => is_announced(&place.header()?, &found.fingerprint()),
            None => false,
        };
        let now = self.meta.get(file.ino)?;
        let same = announced
            || expected.is_some_and(|print| print.same_content(&found.fingerprint()))
            || is_own(&now, &found);
        if !same || was_changed(&now, &found) {
            return Ok(Flushed::Conflict(Some(found)));
        }
        // Also for a file of which no tier has anything.
        self.intend(file.ino, expected, Some(&found), found.fingerprint())?;
        if let Some(place) = file.location.read().place() {
            self.residency.announce_in_place(place, found.fingerprint())?;
        }
        fail_at!("node.flush.in_place");
        if let Some(changed) = changed_since(&*backing, &found)? {
            self.take_back_in_place(file)?;
            return Ok(Flushed::Conflict(Some(changed)));
        }
        let set_len = |len| {
            self.rights.may_change_store()?;
            Ok(backing.set_len(len)?)
        };
        let to = InPlace { file: &*backing, set_len: &set_len, sync: &|| Ok(backing.sync(true)?) };
        let mtime = match self.flush_extents(file, &to)? {
            Some(mtime) => mtime,
            None => {
                if record.attr.size == 0 {
                    set_len(0)?;
                }
                record.attr.mtime
            }
        };
        fail_at!("node.flush.in_place_copied");
        self.rights.may_change_store()?;
        self.copy_attributes(record, mtime, &*backing)?;
        backing.sync(false)?;
        let fingerprint = backing.stat()?.fingerprint();
        Ok(Flushed::Done { fingerprint, clean: false })
    }

    /// Takes off what a truncation took from the file, before anything is put there anew. From then
    /// on the base has all of the file's length, with zeros where it was cut.
    fn cut_before_flush(&self, file: &FileRef, to: &InPlace<'_>) -> Result<()> {
        let location = file.location.read();
        let Some(place) = location.place() else { return Ok(()) };
        place.cut_below(|limit, size| {
            if to.file.len()? > limit {
                (to.set_len)(limit)?;
            }
            (to.set_len)(size)?;
            (to.sync)()
        })
    }

    /// Copies what the tier has and `to` lacks, and the length. The modification time, if there is
    /// an object.
    fn flush_extents(
        &self,
        file: &FileRef,
        to: &InPlace<'_>,
    ) -> Result<Option<forebay_meta::Timestamp>> {
        let limits = self.limits_in_place();
        self.cut_before_flush(file, to)?;
        let mut length = to.file.len()?;
        loop {
            let location = file.location.read();
            let Some(place) = location.place() else { return Ok(None) };
            let stat = file.stat_with_time(place.bytes())?;
            if place.is_marked_whole() {
                self.copy_in_place(place.bytes(), to.file, 0..stat.size, &limits)?;
                self.metrics.bytes.of(Source::Flush).add(stat.size);
                (to.set_len)(stat.size)?;
                return Ok(Some(stat.mtime));
            }
            let Some(flush) = place.take_changed(PIECE) else {
                (to.set_len)(stat.size)?;
                return Ok(Some(stat.mtime));
            };
            let copied = self.rights.may_change_store().and_then(|()| {
                // A restart takes what lies beyond the length of a spill file for nothing.
                let end = flush.runs().last().map_or(0, |run| run.end.min(stat.size));
                if end > length {
                    (to.set_len)(stat.size)?;
                    length = stat.size;
                }
                for run in flush.runs() {
                    let run = run.start..run.end.min(stat.size);
                    if !run.is_empty() {
                        self.metrics.bytes.of(Source::Flush).add(run.end - run.start);
                        self.copy_in_place(place.bytes(), to.file, run, &limits)?;
                    }
                }
                // Extents count as clean only once they are durable where they went.
                (to.sync)()
            });
            place.changed_copied(flush, copied)?;
        }
    }

    /// A new file for a version of a file: where it gets the owner that it should have.
    pub(crate) fn temporary_for(&self, record: &Record, dir: &Dir) -> Result<Temporary> {
        match self.may_give(&record.attr)? {
            true => Ok(self.backing.temporary(record.ino.0)?),
            // The group of a directory that hands it on need not be one of the user's.
            false => Ok(self.backing.temporary_beside(record.ino.0, dir)?),
        }
    }
}
