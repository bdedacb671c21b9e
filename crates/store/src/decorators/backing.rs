use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Interceptor, Operation, Verdict, ask, ask_about, ask_and, intercept_bytes};
use crate::backing::{
    Access, BackingEntry, Cleaned, FileSystemUsage, Known, Node, Removed, RenameMode,
    SetAttributes, XattrMode,
};
use crate::{
    Attributes, BackingFile, BackingStore, Believed, Commit, Dir, Expect, Fingerprint, Group,
    Presence, Result, StoreError, Synced, Temporary,
};

/// A backing store whose operations an [`Interceptor`] decides about.
pub struct InterceptedBacking {
    inner: Arc<dyn BackingStore>,
    by: Arc<dyn Interceptor>,
}

impl InterceptedBacking {
    /// Puts an interceptor in front of a backing store.
    pub fn new(inner: Arc<dyn BackingStore>, by: Arc<dyn Interceptor>) -> Self {
        Self { inner, by }
    }

    fn ask(&self, operation: Operation, name: &OsStr) -> Result<()> {
        ask(&self.by, operation, Path::new(name))
    }

    fn wrap(&self, inner: Arc<dyn BackingFile>) -> Arc<dyn BackingFile> {
        Arc::new(InterceptedFile { inner, by: Arc::clone(&self.by) })
    }

    fn wrap_temporary(&self, temporary: Temporary) -> Temporary {
        Temporary { file: self.wrap(temporary.file), ..temporary }
    }
}

struct InterceptedFile {
    inner: Arc<dyn BackingFile>,
    by: Arc<dyn Interceptor>,
}

intercept_bytes!(InterceptedFile);

impl BackingFile for InterceptedFile {
    fn set_attributes(&self, attributes: &SetAttributes) -> Result<()> {
        ask_and(&self.by, Operation::SetAttributes, self.inner.label(), || {
            self.inner.set_attributes(attributes)
        })
    }

    fn set_xattr(&self, attribute: &OsStr, value: &[u8]) -> Result<()> {
        let (bytes, label) = (value.len() as u64, self.inner.label());
        ask_about(&self.by, Operation::Xattr, bytes, label, || {
            self.inner.set_xattr(attribute, value)
        })
    }

    fn start_writing_out(&self) {
        self.inner.start_writing_out();
    }

    fn reopened(&self) -> Result<Arc<dyn BackingFile>> {
        let opened =
            ask_and(&self.by, Operation::Open, self.inner.label(), || self.inner.reopened());
        Ok(Arc::new(InterceptedFile { inner: opened?, by: Arc::clone(&self.by) }))
    }
}

/// Methods that ask and then pass the call on; the last argument named is the name for messages.
macro_rules! pass_on {
    ($($kind:ident: fn $method:ident(&self $(, $arg:ident: $type:ty)*) -> $result:ty, $name:expr;)*) => {
        $(fn $method(&self $(, $arg: $type)*) -> $result {
            let label = Path::new::<OsStr>($name.as_ref());
            ask_and(&self.by, Operation::$kind, label, || self.inner.$method($($arg),*))
        })*
    };
}

type Batch<'a> = &'a mut dyn FnMut(&[BackingEntry]) -> ControlFlow<()>;

impl BackingStore for InterceptedBacking {
    fn root(&self) -> Dir {
        self.inner.root()
    }

    pass_on! {
        Open: fn open_dir(&self, parent: &Dir, name: &OsStr) -> Result<Dir>, name;
        List: fn list(&self, dir: &Dir, batch: Batch<'_>) -> Result<()>, "";
        List: fn list_plus(&self, dir: &Dir, batch: Batch<'_>) -> Result<()>, "";
        Stat: fn stat(&self, dir: &Dir, name: &OsStr) -> Result<Attributes>, name;
        Stat: fn readlink(&self, dir: &Dir, name: &OsStr) -> Result<OsString>, name;
        Create: fn mkdir(&self, dir: &Dir, name: &OsStr, mode: u32) -> Result<()>, name;
        Create: fn symlink(&self, target: &OsStr, dir: &Dir, name: &OsStr) -> Result<()>, name;
        Create: fn mknod(&self, dir: &Dir, name: &OsStr, node: Node, mode: u32) -> Result<()>, name;
        Link: fn link(&self, dir: &Dir, name: &OsStr, to_dir: &Dir, to_name: &OsStr) -> Result<()>, name;
        Rename: fn rename(&self, dir: &Dir, name: &OsStr, to_dir: &Dir, to_name: &OsStr, mode: RenameMode) -> Result<()>, name;
        Remove: fn unlink(&self, dir: &Dir, name: &OsStr) -> Result<()>, name;
        Remove: fn unlink_known(&self, dir: &Dir, name: &OsStr, known: &Known) -> Result<Removed>, name;
        Remove: fn rmdir_known(&self, dir: &Dir, name: &OsStr, known: &Fingerprint) -> Result<Removed>, name;
        Remove: fn rmdir(&self, dir: &Dir, name: &OsStr) -> Result<()>, name;
        Open: fn hold(&self, dir: &Dir, name: &OsStr) -> Result<Dir>, name;
        SetAttributes: fn set_attributes(&self, dir: &Dir, name: &OsStr, attributes: &SetAttributes) -> Result<()>, name;
        Xattr: fn get_xattr(&self, dir: &Dir, name: &OsStr, attribute: &OsStr) -> Result<Vec<u8>>, name;
        Xattr: fn list_xattrs(&self, dir: &Dir, name: &OsStr) -> Result<Vec<OsString>>, name;
        Xattr: fn remove_xattr(&self, dir: &Dir, name: &OsStr, attribute: &OsStr) -> Result<()>, name;
        Usage: fn statfs(&self) -> Result<FileSystemUsage>, "";
        Sync: fn sync_held(&self, held: &[Dir]) -> Result<()>, "";
        Sync: fn sync(&self) -> Result<()>, "";
        Create: fn spill_map(&self, ino: u64, extent_size: u64, size: u64) -> Result<Presence>, "";
        Open: fn open_spill_map(&self, ino: u64, believed: Believed) -> Result<Option<Presence>>, "";
        Sync: fn sync_group(&self, group: &Group) -> Result<Synced>, "";
        Remove: fn remove_spill(&self, ino: u64) -> Result<()>, "";
        Rename: fn set_spill_aside(&self, ino: u64) -> Result<Option<PathBuf>>, "";
        List: fn list_set_aside(&self) -> Result<Vec<PathBuf>>, "";
        List: fn list_spills(&self) -> Result<Vec<u64>>, "";
        Commit: fn commit(&self, temporary: &mut Temporary, dir: &Dir, name: &OsStr, expect: Expect) -> Result<Commit>, name;
        Limbo: fn park(&self, dir: &Dir, name: &OsStr, key: u64) -> Result<()>, name;
        Link: fn park_link(&self, dir: &Dir, name: &OsStr, key: u64) -> Result<()>, name;
        Limbo: fn unpark(&self, key: u64, dir: &Dir, name: &OsStr) -> Result<()>, name;
        Limbo: fn list_parked(&self) -> Result<Vec<u64>>, "";
        Rename: fn set_parked_aside(&self, key: u64) -> Result<Option<PathBuf>>, "";
        Clean: fn clean_temporaries(&self, owner: &str) -> Result<Cleaned>, "";
        Clean: fn remove_strays(&self) -> Result<Cleaned>, "";
        Clean: fn tidy(&self) -> Result<()>, "";
    }

    fn set_xattr(
        &self,
        dir: &Dir,
        name: &OsStr,
        attribute: &OsStr,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let (bytes, label) = (value.len() as u64, Path::new(name));
        ask_about(&self.by, Operation::Xattr, bytes, label, || {
            self.inner.set_xattr(dir, name, attribute, value, mode)
        })
    }

    fn has_links(&self) -> Result<bool> {
        match self.ask(Operation::Link, "".as_ref()) {
            Err(error) if error.errno() == libc::EPERM => Ok(false),
            asked => asked.and_then(|()| self.inner.has_links()),
        }
    }

    fn keeps_ends(&self) -> Result<bool> {
        self.inner.keeps_ends()
    }

    fn last_place(&self, object: &Dir) -> Option<PathBuf> {
        self.inner.last_place(object)
    }

    fn parked_name(&self, key: u64) -> OsString {
        self.inner.parked_name(key)
    }

    fn begin_group(&self) -> Option<Group> {
        self.inner.begin_group()
    }

    fn open_file(&self, dir: &Dir, name: &OsStr, access: Access) -> Result<Arc<dyn BackingFile>> {
        self.ask(Operation::Open, name)?;
        Ok(self.wrap(self.inner.open_file(dir, name, access)?))
    }

    fn temporary(&self, ino: u64) -> Result<Temporary> {
        self.ask(Operation::Create, "".as_ref())?;
        Ok(self.wrap_temporary(self.inner.temporary(ino)?))
    }

    fn temporary_beside(&self, ino: u64, dir: &Dir) -> Result<Temporary> {
        self.ask(Operation::Create, "".as_ref())?;
        Ok(self.wrap_temporary(self.inner.temporary_beside(ino, dir)?))
    }

    fn spill(&self, ino: u64) -> Result<Temporary> {
        self.ask(Operation::Create, "".as_ref())?;
        Ok(self.wrap_temporary(self.inner.spill(ino)?))
    }

    fn open_spill(&self, ino: u64) -> Result<Option<Temporary>> {
        self.ask(Operation::Open, "".as_ref())?;
        Ok(self.inner.open_spill(ino)?.map(|spill| self.wrap_temporary(spill)))
    }
}
