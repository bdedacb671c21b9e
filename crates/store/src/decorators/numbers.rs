//! A backing store that gives the number of a removed object to the next one that is made, as many
//! file systems on disks do. The file systems that tests run on (tmpfs) never use a number twice.
//!
//! On request it also has a clock of its own: the times that the store below sets by itself are shown
//! as the time of that clock at which they were first seen. So a test says how coarse they are, and
//! they do not depend on the machine.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::backing::{
    Access, BackingEntry, Cleaned, FileSystemUsage, Known, Node, Removed, RenameMode,
    SetAttributes, XattrMode,
};
use crate::{
    Attributes, BackingFile, BackingStore, Believed, Commit, Dir, Expect, FileKind, Fingerprint,
    Group, Presence, Result, Synced, Temporary, Timestamp,
};

thread_local! {
    /// The store below is at work on this thread, which knows its own numbers only.
    static PLAIN: Cell<bool> = const { Cell::new(false) };
}

/// Which object has which number.
#[derive(Default)]
struct Numbers {
    shown: HashMap<u64, u64>,
    free: BTreeSet<u64>,
    next: u64,
    shows_births: bool,
    clock: Option<Arc<dyn Fn() -> Timestamp + Send + Sync>>,
    /// The times of each object that the store below has set, as they are shown.
    times: HashMap<u64, HashMap<Timestamp, Timestamp>>,
    births: HashMap<u64, Timestamp>,
}

impl Numbers {
    fn present(&mut self, found: Attributes) -> Attributes {
        let ino = self.show(found.ino);
        let (ctime, mtime) = self.show_times(found.ino, found.ctime, found.mtime);
        let birth = self.births.get(&found.ino).copied().unwrap_or(found.btime);
        let btime = if self.shows_births { birth } else { Timestamp::default() };
        Attributes { ino, btime, ctime, mtime, ..found }
    }

    fn present_print(&mut self, print: Fingerprint) -> Fingerprint {
        let ino = self.show(print.ino);
        let (ctime, mtime) = self.show_times(print.ino, print.ctime, print.mtime);
        let birth = self.births.get(&print.ino).copied().unwrap_or(print.born);
        let born = if self.shows_births { birth } else { Timestamp::default() };
        Fingerprint { ino, born, ctime, mtime, ..print }
    }

    /// A change time is always set by the store below, another time perhaps by whoever asked for it:
    /// then it was never seen as a change time.
    fn show_times(
        &mut self,
        real: u64,
        ctime: Timestamp,
        mtime: Timestamp,
    ) -> (Timestamp, Timestamp) {
        let Some(clock) = &self.clock else { return (ctime, mtime) };
        let times = self.times.entry(real).or_default();
        let shown = *times.entry(ctime).or_insert_with(|| clock());
        (shown, times.get(&mtime).copied().unwrap_or(mtime))
    }

    fn show(&mut self, real: u64) -> u64 {
        if let Some(shown) = self.shown.get(&real) {
            return *shown;
        }
        if let Some(clock) = &self.clock {
            self.births.insert(real, clock());
        }
        let shown = self.free.pop_first().unwrap_or_else(|| {
            self.next += 1;
            self.next
        });
        self.shown.insert(real, shown);
        shown
    }

    fn free(&mut self, real: u64) {
        if let Some(shown) = self.shown.remove(&real) {
            self.free.insert(shown);
            self.times.remove(&real);
            self.births.remove(&real);
        }
    }
}

/// Shows the objects of a backing store under numbers of its own, and each new one under the lowest
/// that is free.
pub struct RenumberedBacking {
    inner: Arc<dyn BackingStore>,
    numbers: Arc<Mutex<Numbers>>,
}

impl RenumberedBacking {
    /// Puts other numbers before a backing store.
    pub fn new(inner: Arc<dyn BackingStore>) -> Self {
        Self { inner, numbers: Arc::default() }
    }

    /// The same, of a store that knows when its objects were made.
    pub fn with_births(inner: Arc<dyn BackingStore>) -> Self {
        let renumbered = Self::new(inner);
        renumbered.numbers.lock().shows_births = true;
        renumbered
    }

    /// The same with times by a clock of the test's.
    pub fn with_clock(self, clock: Arc<dyn Fn() -> Timestamp + Send + Sync>) -> Self {
        self.numbers.lock().clock = Some(clock);
        self
    }

    /// The version below that is shown as `version`; one that there is not if none is.
    fn version_below(&self, dir: &Dir, name: &OsStr, version: Fingerprint) -> Fingerprint {
        match self.inner.stat(dir, name) {
            Ok(found) if self.shown(found).fingerprint() == version => found.fingerprint(),
            _ => Fingerprint { ino: u64::MAX, ..version },
        }
    }

    fn shown(&self, found: Attributes) -> Attributes {
        self.numbers.lock().present(found)
    }

    /// What is removed or replaced when an operation under this name succeeds.
    fn leaving(&self, dir: &Dir, name: &OsStr) -> Option<u64> {
        let found = self.inner.stat(dir, name).ok()?;
        (found.nlink < 2 || found.kind == FileKind::Directory).then_some(found.ino)
    }

    fn left(&self, leaving: Option<u64>) {
        if let Some(real) = leaving {
            self.numbers.lock().free(real);
        }
    }

    fn wrap(&self, inner: Arc<dyn BackingFile>) -> Arc<dyn BackingFile> {
        Arc::new(RenumberedFile { inner, numbers: Arc::clone(&self.numbers) })
    }

    fn wrap_temporary(&self, temporary: Temporary) -> Temporary {
        Temporary { file: self.wrap(temporary.file), ..temporary }
    }
}

struct RenumberedFile {
    inner: Arc<dyn BackingFile>,
    numbers: Arc<Mutex<Numbers>>,
}

impl crate::Bytes for RenumberedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.inner.read_at(buffer, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        self.inner.write_at(data, offset)
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        self.inner.sync(data_only)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.inner.set_len(len)
    }

    fn stat(&self) -> Result<Attributes> {
        let found = self.inner.stat()?;
        if PLAIN.get() {
            return Ok(found);
        }
        Ok(self.numbers.lock().present(found))
    }

    fn allocate(&self, at: u64, len: u64, mode: crate::AllocateMode) -> Result<()> {
        self.inner.allocate(at, len, mode)
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.punch(offset, len)
    }

    fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        self.inner.seek_data(offset)
    }

    fn seek_hole(&self, offset: u64) -> Result<Option<u64>> {
        self.inner.seek_hole(offset)
    }

    fn set_times(
        &self,
        atime: Option<crate::Timestamp>,
        mtime: Option<crate::Timestamp>,
    ) -> Result<()> {
        self.inner.set_times(atime, mtime)
    }

    fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    fn label(&self) -> &std::path::Path {
        self.inner.label()
    }
}

impl BackingFile for RenumberedFile {
    fn set_attributes(&self, attributes: &SetAttributes) -> Result<()> {
        self.inner.set_attributes(attributes)
    }

    fn set_xattr(&self, attribute: &OsStr, value: &[u8]) -> Result<()> {
        self.inner.set_xattr(attribute, value)
    }

    fn start_writing_out(&self) {
        self.inner.start_writing_out();
    }

    fn reopened(&self) -> Result<Arc<dyn BackingFile>> {
        let inner = self.inner.reopened()?;
        Ok(Arc::new(RenumberedFile { inner, numbers: Arc::clone(&self.numbers) }))
    }
}

/// Methods that pass the call on.
macro_rules! pass_on {
    ($(fn $method:ident(&self $(, $arg:ident: $type:ty)*) -> $result:ty;)*) => {
        $(fn $method(&self $(, $arg: $type)*) -> $result {
            self.inner.$method($($arg),*)
        })*
    };
}

type Batch<'a> = &'a mut dyn FnMut(&[BackingEntry]) -> ControlFlow<()>;

impl BackingStore for RenumberedBacking {
    pass_on! {
        fn root(&self) -> Dir;
        fn open_dir(&self, parent: &Dir, name: &OsStr) -> Result<Dir>;
        fn list(&self, dir: &Dir, batch: Batch<'_>) -> Result<()>;
        fn readlink(&self, dir: &Dir, name: &OsStr) -> Result<OsString>;
        fn mkdir(&self, dir: &Dir, name: &OsStr, mode: u32) -> Result<()>;
        fn symlink(&self, target: &OsStr, dir: &Dir, name: &OsStr) -> Result<()>;
        fn mknod(&self, dir: &Dir, name: &OsStr, node: Node, mode: u32) -> Result<()>;
        fn link(&self, dir: &Dir, name: &OsStr, to_dir: &Dir, to_name: &OsStr) -> Result<()>;
        fn hold(&self, dir: &Dir, name: &OsStr) -> Result<Dir>;
        fn set_attributes(&self, dir: &Dir, name: &OsStr, attributes: &SetAttributes) -> Result<()>;
        fn get_xattr(&self, dir: &Dir, name: &OsStr, attribute: &OsStr) -> Result<Vec<u8>>;
        fn set_xattr(&self, dir: &Dir, name: &OsStr, attribute: &OsStr, value: &[u8], mode: XattrMode) -> Result<()>;
        fn list_xattrs(&self, dir: &Dir, name: &OsStr) -> Result<Vec<OsString>>;
        fn remove_xattr(&self, dir: &Dir, name: &OsStr, attribute: &OsStr) -> Result<()>;
        fn statfs(&self) -> Result<FileSystemUsage>;
        fn sync_held(&self, held: &[Dir]) -> Result<()>;
        fn sync(&self) -> Result<()>;
        fn begin_group(&self) -> Option<Group>;
        fn sync_group(&self, group: &Group) -> Result<Synced>;
        fn spill_map(&self, ino: u64, extent_size: u64, size: u64) -> Result<Presence>;
        fn open_spill_map(&self, ino: u64, believed: Believed) -> Result<Option<Presence>>;
        fn remove_spill(&self, ino: u64) -> Result<()>;
        fn list_spills(&self) -> Result<Vec<u64>>;
        fn park(&self, dir: &Dir, name: &OsStr, key: u64) -> Result<()>;
        fn park_link(&self, dir: &Dir, name: &OsStr, key: u64) -> Result<()>;
        fn unpark(&self, key: u64, dir: &Dir, name: &OsStr) -> Result<()>;
        fn list_parked(&self) -> Result<Vec<u64>>;
        fn set_parked_aside(&self, key: u64) -> Result<Option<PathBuf>>;
        fn parked_name(&self, key: u64) -> OsString;
        fn last_place(&self, object: &Dir) -> Option<PathBuf>;
        fn has_links(&self) -> Result<bool>;
        fn keeps_ends(&self) -> Result<bool>;
        fn set_spill_aside(&self, ino: u64) -> Result<Option<PathBuf>>;
        fn list_set_aside(&self) -> Result<Vec<PathBuf>>;
        fn clean_temporaries(&self, owner: &str) -> Result<Cleaned>;
        fn remove_strays(&self) -> Result<Cleaned>;
        fn tidy(&self) -> Result<()>;
    }

    fn list_plus(&self, dir: &Dir, batch: Batch<'_>) -> Result<()> {
        self.inner.list_plus(dir, &mut |entries| {
            let shown = |entry: &BackingEntry| BackingEntry {
                attributes: entry.attributes.map(|found| self.shown(found)),
                ..entry.clone()
            };
            batch(&entries.iter().map(shown).collect::<Vec<_>>())
        })
    }

    fn stat(&self, dir: &Dir, name: &OsStr) -> Result<Attributes> {
        Ok(self.shown(self.inner.stat(dir, name)?))
    }

    fn open_file(&self, dir: &Dir, name: &OsStr, access: Access) -> Result<Arc<dyn BackingFile>> {
        Ok(self.wrap(self.inner.open_file(dir, name, access)?))
    }

    fn rename(
        &self,
        dir: &Dir,
        name: &OsStr,
        to_dir: &Dir,
        to_name: &OsStr,
        mode: RenameMode,
    ) -> Result<()> {
        let source = self.inner.stat(dir, name).ok().map(|found| found.ino);
        let leaving = self.leaving(to_dir, to_name).filter(|real| Some(*real) != source);
        let replaces = matches!(mode, RenameMode::Replace | RenameMode::ReplaceVersion(_));
        let below = match mode {
            RenameMode::ReplaceVersion(version) => {
                RenameMode::ReplaceVersion(self.version_below(to_dir, to_name, version))
            }
            other => other,
        };
        PLAIN.set(true);
        let done = self.inner.rename(dir, name, to_dir, to_name, below);
        PLAIN.set(false);
        done?;
        self.left(leaving.filter(|_| replaces));
        Ok(())
    }

    fn unlink(&self, dir: &Dir, name: &OsStr) -> Result<()> {
        let leaving = self.leaving(dir, name);
        self.inner.unlink(dir, name)?;
        self.left(leaving);
        Ok(())
    }

    fn rmdir(&self, dir: &Dir, name: &OsStr) -> Result<()> {
        let leaving = self.leaving(dir, name);
        self.inner.rmdir(dir, name)?;
        self.left(leaving);
        Ok(())
    }

    fn unlink_known(&self, dir: &Dir, name: &OsStr, known: &Known) -> Result<Removed> {
        let leaving = self.leaving(dir, name);
        let found = self.inner.stat(dir, name)?;
        let print = match known.is(&self.shown(found)) {
            true => found.fingerprint(),
            false => Fingerprint { ino: u64::MAX, ..found.fingerprint() },
        };
        let below = match known {
            Known::Version(_) => Known::Version(print),
            Known::Object(_) => Known::Object(print),
        };
        let removed = self.inner.unlink_known(dir, name, &below)?;
        self.left(leaving.filter(|_| removed == Removed::Done));
        Ok(removed)
    }

    fn rmdir_known(&self, dir: &Dir, name: &OsStr, known: &Fingerprint) -> Result<Removed> {
        let leaving = self.leaving(dir, name);
        let found = self.inner.stat(dir, name)?;
        if !self.shown(found).same_inode(known) {
            return Ok(Removed::Other);
        }
        let removed = self.inner.rmdir_known(dir, name, &found.fingerprint())?;
        self.left(leaving.filter(|_| removed == Removed::Done));
        Ok(removed)
    }

    fn temporary(&self, ino: u64) -> Result<Temporary> {
        Ok(self.wrap_temporary(self.inner.temporary(ino)?))
    }

    fn temporary_beside(&self, ino: u64, dir: &Dir) -> Result<Temporary> {
        Ok(self.wrap_temporary(self.inner.temporary_beside(ino, dir)?))
    }

    fn spill(&self, ino: u64) -> Result<Temporary> {
        Ok(self.wrap_temporary(self.inner.spill(ino)?))
    }

    fn open_spill(&self, ino: u64) -> Result<Option<Temporary>> {
        Ok(self.inner.open_spill(ino)?.map(|spill| self.wrap_temporary(spill)))
    }

    fn commit(
        &self,
        temporary: &mut Temporary,
        dir: &Dir,
        name: &OsStr,
        expect: Expect,
    ) -> Result<Commit> {
        let leaving = match expect {
            Expect::Absent => None,
            Expect::Version(_) | Expect::Any => self.leaving(dir, name),
        };
        let expect = match expect {
            Expect::Version(print) => Expect::Version(self.version_below(dir, name, print)),
            other => other,
        };
        PLAIN.set(true);
        let done = self.inner.commit(temporary, dir, name, expect);
        PLAIN.set(false);
        Ok(match done? {
            Commit::Done(print) => {
                self.left(leaving);
                Commit::Done(self.numbers.lock().present_print(print))
            }
            Commit::Conflict(found) => Commit::Conflict(found.map(|found| self.shown(found))),
        })
    }
}
