//! Spill files: bytes in the backing store for which no tier had room.
//!
//! Nothing is ever written to a published file for lack of room on a tier. What has no room goes to
//! a spill file in the private area; if the backing store has a version of the file, the spill file
//! is laid over it: a map beside it says which extents it has, and the published version shows
//! through where it has none. A write-back completes the spill file and publishes it at once. So a
//! name in the backing store shows the old version until it shows the new one, and a crash at any
//! point leaves either of these:
//!
//! | the last thing done | after a restart |
//! |---|---|
//! | the spill file and its map are made | the record does not say *spilled*: both are removed |
//! | the record says *spilled* | spill file, map and published version together are the base |
//! | extents written there, not marked in the map | the published version, or the object, has them still |
//! | the commit | the inode number noted before tells that the published file is the spill file |
//! | the record does not say *spilled* any more | the rest of the spill area's entry is removed |

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_meta::Attr;
use forebay_store::copy::{self, Cancel, Priority};
use forebay_store::{BackingFile, ErrorClass, Presence, Temporary};
use forebay_types::{Ino, Timestamp};
use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;

use crate::clock;
use crate::error::{NodeError, Result};
use crate::metrics::Source;
use crate::residency::Residency;
use crate::residency::data_location::{TierObject, Underlay};
use crate::residency::files::{File, FileRef};
use crate::residency::room::write_all_or_fail;

/// The spill file of a file in use.
pub struct Spill {
    file: Arc<Temporary>,
    over: Option<Over>,
    /// Length and modification time: nobody asks the slow store for them.
    seen: Mutex<(u64, Timestamp)>,
    /// A program may have been told that what is here lasts.
    acknowledged: AtomicBool,
    /// That is noted, durably.
    noted: AtomicBool,
    /// It may stand under the name of its file, and the record does not know yet: nobody may change it.
    published: AtomicBool,
    /// A change failed, and may have left something behind the end.
    overlong: AtomicBool,
}

/// What shows through a spill file that has only some of the extents.
struct Over {
    has: RwLock<Presence>,
    /// The published version, opened at the first use.
    below: Mutex<Option<Arc<dyn BackingFile>>>,
    /// It is gone: zeros show through.
    is_gone: AtomicBool,
}

impl Over {
    /// Where the version that shows through is kept open; none if it is gone.
    fn version(&self) -> Option<&Mutex<Option<Arc<dyn BackingFile>>>> {
        (!self.is_gone.load(Ordering::Acquire)).then_some(&self.below)
    }
}

impl Spill {
    /// A spill file as it is now. Without a map it has all bytes. Of one that is `acknowledged` it is noted
    /// that a program may have been told that its bytes last.
    ///
    /// # Errors
    /// What the backing store says.
    pub fn new(file: Temporary, map: Option<Presence>, acknowledged: bool) -> Result<Self> {
        let stat = file.file().stat()?;
        let mut size = stat.size;
        let mut map = map;
        if let Some(has) = &mut map {
            // A change of length was interrupted: what was cut is cut, and what a write added counts
            // only if it was marked.
            if has.size() > size {
                has.set_len(size)?;
            } else if has.size() < size {
                size = has.size();
                file.file().set_len(size)?;
            }
        }
        let over = map.map(|has| Over {
            has: RwLock::new(has),
            below: Mutex::new(None),
            is_gone: AtomicBool::new(false),
        });
        Ok(Spill {
            file: Arc::new(file),
            over,
            seen: Mutex::new((size, stat.mtime)),
            acknowledged: acknowledged.into(),
            noted: acknowledged.into(),
            published: AtomicBool::new(false),
            overlong: AtomicBool::new(false),
        })
    }

    /// Cuts off what a change that failed has left behind the end, before the file grows over it or is
    /// published with it. No writer may come between.
    ///
    /// # Errors
    /// What the backing store says: the next one that asks cuts it.
    pub fn cut_left_over(&self) -> Result<()> {
        if !self.is_overlong() {
            return Ok(());
        }
        let (len, _) = self.size_and_mtime();
        if self.file().len()? > len {
            self.file().set_len(len)?;
        }
        self.overlong.store(false, Ordering::Release);
        Ok(())
    }

    /// Whether something may lie behind the end that was never written.
    pub fn is_overlong(&self) -> bool {
        self.overlong.load(Ordering::Acquire)
    }

    /// A change failed.
    fn cut_after_failure(&self) {
        self.overlong.store(true, Ordering::Release);
        if let Err(error) = self.cut_left_over() {
            tracing::debug!(%error, "what a refused write left behind the end of a spill file is cut by the next one");
        }
    }

    /// Whether it may stand under the name of its file already.
    pub fn may_be_published(&self) -> bool {
        self.published.load(Ordering::Acquire)
    }

    /// It is about to be published, or turned out not to be. The caller has the location for itself.
    pub fn set_published(&self, published: bool) {
        self.published.store(published, Ordering::Release);
    }

    /// What is under a public name is never changed. Until the publication is noted, which the backing store
    /// has refused, who writes is told.
    fn check_not_published(&self) -> Result<()> {
        if self.may_be_published() { Err(Errno::IO.into()) } else { Ok(()) }
    }

    /// Whether a program may have been told that what is here lasts: whatever a crash of the machine
    /// leaves of it then, no older version takes its place.
    pub fn is_acknowledged(&self) -> bool {
        self.acknowledged.load(Ordering::Acquire)
    }

    /// A program is about to be told. Whether that has still to be noted.
    pub fn acknowledge(&self) -> bool {
        self.acknowledged.store(true, Ordering::Release);
        !self.noted.load(Ordering::Acquire)
    }

    /// The note is durable.
    pub fn acknowledgement_noted(&self) {
        self.noted.store(true, Ordering::Release);
    }

    /// The spill file itself.
    pub fn file(&self) -> &Arc<dyn BackingFile> {
        self.file.file()
    }

    /// Length in bytes and modification time, without asking the backing store.
    pub fn size_and_mtime(&self) -> (u64, Timestamp) {
        *self.seen.lock()
    }

    /// The modification time as programs know it, or have set it, which the record says if nothing was
    /// written since: the file itself has that of the last write.
    pub fn mtime_known_by(&self, attr: &Attr) -> Timestamp {
        let (size, written) = self.size_and_mtime();
        let is_known = attr.size == size && written <= attr.ctime;
        if is_known { attr.mtime } else { written }
    }

    /// A program has set the modification time.
    pub fn set_mtime(&self, mtime: Timestamp) {
        self.seen.lock().1 = mtime;
    }

    /// Sets the length; what is beyond the old one reads as zeros.
    ///
    /// # Errors
    /// What the backing store says.
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.check_not_published()?;
        self.cut_left_over()?;
        self.file().set_len(len)?;
        // After a failure that is so in memory.
        let noted = self.over.as_ref().map_or(Ok(()), |over| over.has.write().set_len(len));
        *self.seen.lock() = (len, clock::wall_time());
        Ok(noted?)
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// What the backing store says.
    pub fn sync(&self, data_only: bool) -> forebay_store::Result<()> {
        match &self.over {
            Some(over) => over.has.write().sync(&**self.file()),
            None => self.file().sync(data_only),
        }
    }

    /// Has the next sync write all that is here: one failed. The caller has the file for itself.
    ///
    /// # Errors
    /// What the backing store says.
    pub fn write_again(&self) -> Result<()> {
        let mtime = self.file().stat()?.mtime;
        forebay_store::write_again(&**self.file(), true)?;
        self.file().set_times(None, Some(mtime))?;
        match &self.over {
            Some(over) => Ok(over.has.write().save_all()?),
            None => Ok(()),
        }
    }

    /// Whether it is laid over a version, of which something may show through.
    pub fn has_map(&self) -> bool {
        self.over.is_some()
    }

    /// Looks at which extents it has; `None` if it has all bytes.
    pub fn with_map<T>(&self, look: impl FnOnce(Option<&Presence>) -> T) -> T {
        match &self.over {
            Some(over) => look(Some(&over.has.read())),
            None => look(None),
        }
    }

    /// Others have changed or removed what shows through, and it is not to be had any more.
    pub fn give_up_below(&self) {
        if let Some(over) = &self.over {
            over.is_gone.store(true, Ordering::Release);
        }
        self.close_below();
    }

    /// What shows through is opened anew when it is needed: there may be another version.
    pub fn close_below(&self) {
        if let Some(over) = &self.over {
            *over.below.lock() = None;
        }
    }

    /// Where the version that shows through is kept open, if one does.
    pub fn version_below(&self) -> Option<&Mutex<Option<Arc<dyn BackingFile>>>> {
        self.over.as_ref().and_then(Over::version)
    }

    /// Whether what shows through is open.
    pub fn is_below_open(&self) -> bool {
        self.over.as_ref().is_some_and(|over| over.below.lock().is_some())
    }

    /// Whether nothing shows through.
    pub fn is_complete(&self) -> bool {
        self.over.as_ref().is_none_or(|over| over.has.read().is_whole())
    }
}

impl Residency {
    /// Whether the spill file of a file in use may stand under its name already.
    pub(crate) fn spill_may_be_published(&self, ino: Ino) -> bool {
        let file = self.files.peek(ino);
        let location = file.as_ref().and_then(|file| file.location.try_read());
        location.is_some_and(
            |location| matches!(&location.base, Underlay::Spill(spill) if spill.may_be_published()),
        )
    }

    /// Reads from what lies under the object.
    pub(crate) fn read_base(
        &self,
        file: &File,
        base: &Underlay,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        match base {
            Underlay::Zeros => Ok(0),
            Underlay::Spill(spill) => {
                let read = self.read_spill(file, spill, offset, buffer)?;
                self.metrics.bytes.of(Source::Backing).add(read as u64);
                Ok(read)
            }
            Underlay::Backing(opened) => {
                let backing = self.opened_base(file, opened)?;
                let read = self.read_cold(&*backing, buffer, offset)?;
                if let Some(was) = file.gone.get() {
                    // Others may have moved it, and write into it where it is now.
                    let now = backing.stat()?;
                    if (now.size, now.mtime) != (was.size, was.mtime) {
                        return Err(Errno::STALE.into());
                    }
                }
                self.metrics.bytes.of(Source::Backing).add(read as u64);
                Ok(read)
            }
        }
    }

    /// As [`Self::read_base`], of bytes upon which something was written here, or will count as unchanged:
    /// they must be those of the version that is known.
    pub(crate) fn read_known_base(
        &self,
        file: &File,
        base: &Underlay,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        let Underlay::Backing(opened) = base else {
            return self.read_base(file, base, offset, buffer);
        };
        let read =
            self.in_known_version(file, opened, |version| self.read_cold(version, buffer, offset))?;
        self.metrics.bytes.of(Source::Backing).add(read as u64);
        Ok(read)
    }

    /// What a flush has to put together: whether no tier has bytes of the file, whether the backing
    /// store has, whether somebody may have it mapped, and its spill file. A published version that shows through is opened now, so that
    /// it can be read even if others put another one in its place.
    pub(crate) fn open_layers(
        &self,
        file: &FileRef,
    ) -> Result<(bool, bool, bool, Option<Arc<Spill>>)> {
        let location = file.location.read();
        let partial = location.place.as_ref().is_some_and(TierObject::lacks_bytes);
        let spill = match &location.base {
            Underlay::Spill(spill) => {
                self.check_below(file, spill)?;
                Some(spill.clone())
            }
            Underlay::Backing(opened) if partial => {
                self.in_known_version(file, opened, |_| Ok(()))?;
                None
            }
            Underlay::Backing(_) | Underlay::Zeros => None,
        };
        let beneath = matches!(location.base, Underlay::Backing(_));
        let mapped = location.place.as_ref();
        let mapped = mapped.is_some_and(|place| self.maybe_stored_into(file, place));
        Ok((location.place.is_none(), beneath, mapped, spill))
    }

    /// The version that what is here builds upon is gone: zeros stand for all that was not brought in.
    pub(crate) fn give_up_rest(&self, file: &FileRef) {
        let mut location = file.location.write();
        match &location.base {
            Underlay::Backing(_) if location.place.is_some() => location.base = Underlay::Zeros,
            Underlay::Spill(spill) => spill.give_up_below(),
            Underlay::Backing(_) | Underlay::Zeros => return,
        }
        // Whoever comes after this one would find it gone once more, until that is written.
        self.above.keep_open(file);
        self.above.note_rest_gone(file.ino);
        tracing::error!(
            ino = %file.ino,
            "others have changed or removed the version that a file changed here builds upon: what was not brought in of it is zeros from now on"
        );
    }

    /// What `look` finds in the version of a file that is kept open in `kept`, or else opened now. One that
    /// was opened before a write-back published another is not looked at again: that other shows through.
    ///
    /// # Errors
    /// [`NodeError::RestGone`] if others have changed, replaced or removed the version; what
    /// `look` and the backing store say.
    pub(crate) fn in_known_version<T>(
        &self,
        file: &File,
        kept: &Mutex<Option<Arc<dyn BackingFile>>>,
        mut look: impl FnMut(&dyn BackingFile) -> Result<T>,
    ) -> Result<T> {
        let before = kept.lock().clone();
        if let Some(version) = &before {
            let found = look(&**version)?;
            match self.check_version(file.ino, &**version) {
                Err(NodeError::RestGone) => {}
                checked => return checked.map(|()| found),
            }
            kept.lock().take_if(|now| Arc::ptr_eq(now, version));
        }
        let version = self.opened_base(file, kept)?;
        let found = look(&*version)?;
        self.check_version(file.ino, &*version)?;
        Ok(found)
    }

    /// Whether what shows through a spill file is still the version that was written over.
    ///
    /// # Errors
    /// [`NodeError::RestGone`] if it is not; what the backing store says.
    pub(crate) fn check_below(&self, file: &File, spill: &Spill) -> Result<()> {
        match spill.over.as_ref().filter(|_| !spill.is_complete()).and_then(Over::version) {
            Some(version) => self.in_known_version(file, version, |_| Ok(())),
            None => Ok(()),
        }
    }

    /// Reads what shows through a spill file, zeros where that ends. Others may change it in place
    /// meanwhile: then it is not what was written over.
    fn read_below(&self, file: &File, over: &Over, at: u64, part: &mut [u8]) -> Result<()> {
        let read = match over.version() {
            Some(version) => {
                self.in_known_version(file, version, |below| self.read_cold(below, part, at))?
            }
            None => 0,
        };
        part[read..].fill(0);
        Ok(())
    }

    /// Reads from a spill file and what shows through it.
    pub(crate) fn read_spill(
        &self,
        file: &File,
        spill: &Spill,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        let Some(over) = &spill.over else {
            return self.read_cold(&**spill.file(), buffer, offset);
        };
        let has = over.has.read();
        let left = has.size().saturating_sub(offset);
        let want = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let mut absent = Vec::new();
        has.missing_runs(offset..offset + want as u64, &mut absent);
        let upper = |at, part: &mut [u8]| {
            let read = self.read_cold(&**spill.file(), part, at)?;
            part[read..].fill(0);
            Ok(())
        };
        let lower = |at, part: &mut [u8]| self.read_below(file, over, at, part);
        compose(&absent, offset, &mut buffer[..want], upper, lower)?;
        Ok(want)
    }

    /// Writes to a spill file. The caller has the location for itself.
    ///
    /// # Errors
    /// `ENOSPC` or `EDQUOT` when the backing store has no room, as it says itself; what it says.
    pub(crate) fn write_spill(
        &self,
        file: &File,
        spill: &Spill,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        let end = offset + data.len() as u64;
        let write = || write_all_or_fail(&**spill.file(), data, offset);
        self.change_spill(file, spill, offset..end, write)
    }

    /// Makes zeros of a range of a spill file, holes where the store can have them. The caller has the
    /// location for itself.
    ///
    /// # Errors
    /// As [`Residency::write_spill`].
    pub(crate) fn zero_spill(&self, file: &File, spill: &Spill, range: Range<u64>) -> Result<()> {
        let Range { start, end } = range;
        self.change_spill(file, spill, start..end, || {
            let to = &**spill.file();
            if to.len()? < end {
                to.set_len(end)?;
            }
            match to.punch(start, end - start) {
                Err(error) if error.class() == ErrorClass::Unsupported => {}
                punched => return Ok(punched?),
            }
            let zeros = vec![0; 1 << 20];
            let mut at = start;
            while at < end {
                let most = usize::try_from(end - at).unwrap_or(usize::MAX).min(zeros.len());
                at += write_all_or_fail(to, &zeros[..most], at)? as u64;
            }
            Ok(())
        })
    }

    /// Changes a range of a spill file: what it covers only in part is brought in before.
    fn change_spill<T>(
        &self,
        file: &File,
        spill: &Spill,
        range: Range<u64>,
        change: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        spill.check_not_published()?;
        spill.cut_left_over()?;
        let changed = self.change_range(file, spill, range, change);
        if changed.is_err() {
            // What a device has taken of it before it refused the rest.
            spill.cut_after_failure();
        }
        changed
    }

    fn change_range<T>(
        &self,
        file: &File,
        spill: &Spill,
        range: Range<u64>,
        change: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let end = range.end;
        let mut has = spill.over.as_ref().map(|over| (over, over.has.write()));
        if let Some((over, has)) = &mut has {
            let mut runs = Vec::new();
            has.fill_before_write(range.clone(), &mut runs);
            for run in runs.into_iter().filter(|run| !run.is_empty()) {
                let mut bytes = vec![0; usize::try_from(run.end - run.start).unwrap_or(0)];
                self.read_below(file, over, run.start, &mut bytes)?;
                write_all_or_fail(&**spill.file(), &bytes, run.start)?;
                has.mark_clean(run)?;
            }
        }
        let changed = change()?;
        if let Some((_, has)) = &mut has {
            has.mark_dirty(range)?;
        }
        let mut seen = spill.seen.lock();
        *seen = (seen.0.max(end), clock::wall_time());
        Ok(changed)
    }

    /// Copies what shows through a spill file into it, piece by piece: a writer comes in between,
    /// and its bytes are newer.
    pub(crate) fn complete_spill(&self, file: &File, spill: &Spill, piece: u64) -> Result<()> {
        let Some(over) = &spill.over else { return Ok(()) };
        let limits = self.limits(Priority::WriteBack);
        let mut at = 0;
        loop {
            let _no_writer = file.location.read();
            let size = over.has.read().size();
            if at >= size {
                return Ok(());
            }
            let mut runs = Vec::new();
            over.has.read().missing_runs(at..at + piece, &mut runs);
            for run in runs.into_iter().filter(|run| !run.is_empty()) {
                if let Some(version) = over.version() {
                    self.in_known_version(file, version, |below| {
                        let there = run.start..run.end.min(below.len()?).max(run.start);
                        if !there.is_empty() {
                            let to = &**spill.file();
                            copy::copy_range(below, to, there, &limits, &Cancel::default())?;
                        }
                        Ok(())
                    })?;
                }
                over.has.write().mark_clean(run)?;
            }
            at += piece;
        }
    }
}

/// Fills `buffer`, which begins at `offset`, from two layers: the `absent` runs from the `lower`
/// one, the rest from the `upper` one.
pub(crate) fn compose(
    absent: &[Range<u64>],
    offset: u64,
    buffer: &mut [u8],
    mut upper: impl FnMut(u64, &mut [u8]) -> Result<()>,
    mut lower: impl FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let end = offset + buffer.len() as u64;
    let part = |from: u64, to: u64| (from - offset) as usize..(to - offset) as usize;
    let mut done = offset;
    for run in absent {
        let (from, to) = (run.start.max(offset), run.end.min(end));
        if from >= to {
            continue;
        }
        if done < from {
            upper(done, &mut buffer[part(done, from)])?;
        }
        lower(from, &mut buffer[part(from, to)])?;
        done = to;
    }
    if done < end {
        upper(done, &mut buffer[part(done, end)])?;
    }
    Ok(())
}
