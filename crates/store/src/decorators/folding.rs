//! A backing store that takes names that differ only in case for the same, as vfat and many servers
//! of SMB do, and may drop dots and blanks at the ends of names.

use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::backing::{
    Access, BackingEntry, BackingFile, BackingStore, Cleaned, Commit, Dir, Expect, FileSystemUsage,
    Known, Node, Removed, RenameMode, SetAttributes, Temporary, XattrMode,
};
use crate::group::{Group, Synced};
use crate::{Attributes, Believed, Fingerprint, Presence, Result};

/// Finds an entry under each spelling of its name, and keeps the one that it was made with.
pub struct FoldingBacking {
    inner: Arc<dyn BackingStore>,
    drops_ends: bool,
    says_so: bool,
}

impl FoldingBacking {
    /// Over another store.
    #[must_use]
    pub fn new(inner: Arc<dyn BackingStore>) -> Self {
        Self { inner, drops_ends: false, says_so: true }
    }

    /// Over another store, and without the dots and blanks at the end of each name.
    #[must_use]
    pub fn without_ends(inner: Arc<dyn BackingStore>) -> Self {
        Self { inner, drops_ends: true, says_so: true }
    }

    /// The same, of which nobody knows at the start.
    #[must_use]
    pub fn secretly_without_ends(inner: Arc<dyn BackingStore>) -> Self {
        Self { inner, drops_ends: true, says_so: false }
    }

    /// What the store makes of a name.
    fn kept<'a>(&self, name: &'a OsStr) -> &'a OsStr {
        let bytes = name.as_bytes();
        let is_end = |byte: &u8| self.drops_ends && matches!(byte, b'.' | b' ');
        let end = bytes.iter().rposition(|byte| !is_end(byte)).map_or(0, |at| at + 1);
        OsStr::from_bytes(if end == 0 { bytes } else { &bytes[..end] })
    }

    /// The name under which the store has what is asked for.
    fn spelled(&self, dir: &Dir, name: &OsStr) -> OsString {
        let name = self.kept(name);
        let mut found = None;
        let listed = self.inner.list(dir, &mut |batch| {
            let fits = batch.iter().find(|entry| entry.name.eq_ignore_ascii_case(name));
            found = fits.map(|entry| entry.name.clone());
            if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        found.filter(|_| listed.is_ok() && !name.is_empty()).unwrap_or_else(|| name.to_owned())
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

/// Methods about one name, which is spelled as it is in the store.
macro_rules! spell {
    ($(fn $method:ident(&self, dir: &Dir, name: &OsStr $(, $arg:ident: $type:ty)*) -> $result:ty;)*) => {
        $(fn $method(&self, dir: &Dir, name: &OsStr $(, $arg: $type)*) -> $result {
            self.inner.$method(dir, &self.spelled(dir, name) $(, $arg)*)
        })*
    };
}

type Batch<'a> = &'a mut dyn FnMut(&[BackingEntry]) -> ControlFlow<()>;

impl BackingStore for FoldingBacking {
    pass_on! {
        fn root(&self) -> Dir;
        fn list(&self, dir: &Dir, batch: Batch<'_>) -> Result<()>;
        fn list_plus(&self, dir: &Dir, batch: Batch<'_>) -> Result<()>;
        fn has_links(&self) -> Result<bool>;
        fn statfs(&self) -> Result<FileSystemUsage>;
        fn remove_strays(&self) -> Result<Cleaned>;
        fn sync_held(&self, held: &[Dir]) -> Result<()>;
        fn sync(&self) -> Result<()>;
        fn begin_group(&self) -> Option<Group>;
        fn sync_group(&self, group: &Group) -> Result<Synced>;
        fn temporary(&self, ino: u64) -> Result<Temporary>;
        fn temporary_beside(&self, ino: u64, dir: &Dir) -> Result<Temporary>;
        fn spill(&self, ino: u64) -> Result<Temporary>;
        fn open_spill(&self, ino: u64) -> Result<Option<Temporary>>;
        fn spill_map(&self, ino: u64, extent_size: u64, size: u64) -> Result<Presence>;
        fn open_spill_map(&self, ino: u64, believed: Believed) -> Result<Option<Presence>>;
        fn remove_spill(&self, ino: u64) -> Result<()>;
        fn set_spill_aside(&self, ino: u64) -> Result<Option<PathBuf>>;
        fn list_set_aside(&self) -> Result<Vec<PathBuf>>;
        fn list_spills(&self) -> Result<Vec<u64>>;
        fn parked_name(&self, key: u64) -> OsString;
        fn last_place(&self, object: &Dir) -> Option<PathBuf>;
        fn list_parked(&self) -> Result<Vec<u64>>;
        fn set_parked_aside(&self, key: u64) -> Result<Option<PathBuf>>;
        fn clean_temporaries(&self, owner: &str) -> Result<Cleaned>;
        fn tidy(&self) -> Result<()>;
    }

    fn keeps_ends(&self) -> Result<bool> {
        Ok(!(self.drops_ends && self.says_so))
    }

    spell! {
        fn open_dir(&self, dir: &Dir, name: &OsStr) -> Result<Dir>;
        fn stat(&self, dir: &Dir, name: &OsStr) -> Result<Attributes>;
        fn readlink(&self, dir: &Dir, name: &OsStr) -> Result<OsString>;
        fn open_file(&self, dir: &Dir, name: &OsStr, access: Access) -> Result<Arc<dyn BackingFile>>;
        fn mkdir(&self, dir: &Dir, name: &OsStr, mode: u32) -> Result<()>;
        fn mknod(&self, dir: &Dir, name: &OsStr, node: Node, mode: u32) -> Result<()>;
        fn unlink(&self, dir: &Dir, name: &OsStr) -> Result<()>;
        fn rmdir(&self, dir: &Dir, name: &OsStr) -> Result<()>;
        fn unlink_known(&self, dir: &Dir, name: &OsStr, known: &Known) -> Result<Removed>;
        fn rmdir_known(&self, dir: &Dir, name: &OsStr, known: &Fingerprint) -> Result<Removed>;
        fn hold(&self, dir: &Dir, name: &OsStr) -> Result<Dir>;
        fn set_attributes(&self, dir: &Dir, name: &OsStr, attributes: &SetAttributes) -> Result<()>;
        fn get_xattr(&self, dir: &Dir, name: &OsStr, attribute: &OsStr) -> Result<Vec<u8>>;
        fn set_xattr(&self, dir: &Dir, name: &OsStr, attribute: &OsStr, value: &[u8], mode: XattrMode) -> Result<()>;
        fn list_xattrs(&self, dir: &Dir, name: &OsStr) -> Result<Vec<OsString>>;
        fn remove_xattr(&self, dir: &Dir, name: &OsStr, attribute: &OsStr) -> Result<()>;
        fn park(&self, dir: &Dir, name: &OsStr, key: u64) -> Result<()>;
        fn park_link(&self, dir: &Dir, name: &OsStr, key: u64) -> Result<()>;
    }

    fn symlink(&self, target: &OsStr, dir: &Dir, name: &OsStr) -> Result<()> {
        self.inner.symlink(target, dir, &self.spelled(dir, name))
    }

    fn link(&self, dir: &Dir, name: &OsStr, to_dir: &Dir, to_name: &OsStr) -> Result<()> {
        let to_name = self.spelled(to_dir, to_name);
        let name = if name.is_empty() { OsString::new() } else { self.spelled(dir, name) };
        self.inner.link(dir, &name, to_dir, &to_name)
    }

    fn rename(
        &self,
        dir: &Dir,
        name: &OsStr,
        to_dir: &Dir,
        to_name: &OsStr,
        mode: RenameMode,
    ) -> Result<()> {
        let (name, to_name) = (self.spelled(dir, name), self.spelled(to_dir, to_name));
        self.inner.rename(dir, &name, to_dir, &to_name, mode)
    }

    fn commit(
        &self,
        temporary: &mut Temporary,
        dir: &Dir,
        name: &OsStr,
        expect: Expect,
    ) -> Result<Commit> {
        self.inner.commit(temporary, dir, &self.spelled(dir, name), expect)
    }

    fn unpark(&self, key: u64, dir: &Dir, name: &OsStr) -> Result<()> {
        self.inner.unpark(key, dir, &self.spelled(dir, name))
    }
}
