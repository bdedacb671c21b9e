//! A backing store in a directory.

use std::collections::HashSet;
use std::ffi::{CString, OsStr, OsString};
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use rustix::fs::{
    self, AtFlags, FileType, Gid, Mode, OFlags, RawDir, ResolveFlags, Uid, XattrFlags,
};
use rustix::io::Errno;

use crate::attributes::Births;
use crate::backing::{
    Access, BackingEntry, BackingFile, BackingStore, Cleaned, Commit, Dir, Expect, FileSystemUsage,
    Node, RenameMode, SetAttributes, TEMPORARY_PREFIX, Temporary, XattrMode,
};
use crate::dir_file::DirFile;
use crate::failpoints::fail_at;
use crate::group::{Group, Synced};
use crate::local::{LocalFile, retry, sync_by, timestamps};
use crate::private::Areas;
use crate::removal::{Known, Removed};
use crate::{Attributes, Believed, Bytes, FileKind, Fingerprint, Result, StoreError, closing};

/// Entries per batch of a listing.
const BATCH: usize = 256;
/// Bytes of names that one system call of a listing returns.
const LIST_BUFFER: usize = 32 << 10;
/// Longest name of one component (NAME_MAX).
const NAME_MAX: usize = 255;

/// A [`BackingStore`] in a directory of any mounted file system.
pub struct DirBacking {
    pub(crate) path: PathBuf,
    pub(crate) owner: String,
    pub(crate) root: Dir,
    pub(crate) areas: Mutex<Areas>,
    /// Spill files whose exchange with a published file got no answer.
    pub(crate) swapped: Mutex<HashSet<u64>>,
    pub(crate) strays: Arc<crate::private::Strays>,
    /// By which it publishes as one node of several.
    pub(crate) own: RwLock<Option<crate::incarnation::Own>>,
    pub(crate) births: Births,
}

impl Drop for DirBacking {
    fn drop(&mut self) {
        // Whoever has let go of it may unmount what it lies on.
        closing::settle(closing::A_MOMENT);
    }
}

impl DirBacking {
    /// Opens a directory as a backing store. `owner` names this mount among all daemons that share
    /// the directory (ASCII letters, digits, `-` and `_`, at most 64); it must be the same after a
    /// restart, or what the daemon left behind is not found.
    pub fn open(path: impl AsRef<Path>, owner: &str) -> Result<Self> {
        let path = path.as_ref();
        let err = |e| StoreError::io("open backing store", path, e);
        check_owner(owner, path)?;
        let path = std::fs::canonicalize(path).map_err(err)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = retry(|| fs::open(&path, flags, Mode::empty()))
            .map_err(|e| StoreError::io("open backing store", &path, e))?;
        let root = Dir(Arc::new(fd));
        let births = Births::of(&root);
        Ok(Self {
            path,
            owner: owner.to_owned(),
            root,
            areas: Mutex::default(),
            swapped: Mutex::default(),
            strays: Arc::default(),
            own: RwLock::default(),
            births,
        })
    }

    /// Builds an error with a path for people: the directory's present path and the name.
    pub(crate) fn err(
        &self,
        operation: &'static str,
        dir: &Dir,
        name: &OsStr,
        source: impl Into<std::io::Error>,
    ) -> StoreError {
        StoreError::io(operation, self.describe(dir, name), source)
    }

    pub(crate) fn describe(&self, dir: &Dir, name: &OsStr) -> PathBuf {
        let link = format!("/proc/self/fd/{}", dir.0.as_raw_fd());
        let mut path = std::fs::read_link(link).unwrap_or_else(|_| self.path.clone());
        if !name.is_empty() {
            path.push(name);
        }
        path
    }

    pub(crate) fn stat_if(&self, dir: &Dir, name: &OsStr) -> Result<Option<Attributes>> {
        match self.stat(dir, name) {
            Ok(found) => Ok(Some(found)),
            Err(e) if e.errno() == libc::ENOENT => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub(crate) fn checked(&self, dir: &Dir, name: &OsStr) -> Result<()> {
        check_name(name).map_err(|e| self.err("use the name", dir, name, e))
    }

    /// A path for extended attributes. That of the handle itself (empty name) is to be followed: it ends
    /// at the very inode. Another one is not.
    fn xattr_path(&self, dir: &Dir, name: &OsStr) -> Result<CString> {
        let mut path = format!("/proc/self/fd/{}", dir.0.as_raw_fd()).into_bytes();
        if !name.is_empty() {
            self.checked(dir, name)?;
            path.push(b'/');
            path.extend_from_slice(name.as_bytes());
        }
        CString::new(path).map_err(|_| self.err("use the name", dir, name, Errno::INVAL))
    }

    fn list_entries(
        &self,
        dir: &Dir,
        plus: bool,
        batch: &mut dyn FnMut(&[BackingEntry]) -> ControlFlow<()>,
    ) -> Result<()> {
        let err = |e: Errno| self.err("list", dir, OsStr::new(""), e);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = retry(|| fs::openat(dir, ".", flags, Mode::empty())).map_err(err)?;
        let mut buffer = vec![MaybeUninit::uninit(); LIST_BUFFER];
        let mut reader = RawDir::new(&fd, &mut buffer);
        let mut entries = Vec::with_capacity(BATCH);
        while let Some(found) = reader.next() {
            let found = match found {
                Err(Errno::INTR) => continue,
                other => other.map_err(err)?,
            };
            let name = OsStr::from_bytes(found.file_name().to_bytes());
            let hidden = name.as_bytes().starts_with(TEMPORARY_PREFIX.as_bytes());
            if name == "." || name == ".." || hidden {
                continue;
            }
            let attributes = if plus { self.stat_if(dir, name)? } else { None };
            let kind = attributes.map(|found| found.kind).or_else(|| kind_of(found.file_type()));
            entries.push(BackingEntry { name: name.to_owned(), kind, attributes });
            if entries.len() == BATCH {
                if batch(&entries).is_break() {
                    return Ok(());
                }
                entries.clear();
            }
        }
        if !entries.is_empty() {
            let _ = batch(&entries);
        }
        Ok(())
    }

    fn set_times_and_owner(
        &self,
        dir: &Dir,
        name: &OsStr,
        attributes: &SetAttributes,
    ) -> rustix::io::Result<()> {
        let (path, empty) = at(name);
        let flags = AtFlags::SYMLINK_NOFOLLOW | empty;
        if attributes.uid.is_some() || attributes.gid.is_some() {
            let (uid, gid) = owner_of(attributes);
            fs::chownat(dir, path, uid, gid, flags)?;
        }
        if let Some(mode) = attributes.mode {
            // fchmodat2 is newer than many kernels in use; a path through /proc ends at the very
            // inode that the O_PATH handle has, and the handle is no symbolic link.
            let handle = self.path_handle(dir, name)?;
            let kind = FileKind::from_mode(fs::fstat(&handle)?.st_mode);
            if kind == Some(FileKind::Symlink) {
                return Err(Errno::OPNOTSUPP);
            }
            let link = format!("/proc/self/fd/{}", handle.as_raw_fd());
            fs::chmod(link, Mode::from_raw_mode(mode & 0o7777))?;
        }
        if attributes.atime.is_some() || attributes.mtime.is_some() {
            let times = timestamps(attributes.atime, attributes.mtime);
            fs::utimensat(dir, path, &times, flags)?;
        }
        Ok(())
    }

    /// Gives what was made right now its mode. What others have put in its place keeps its own, if it is of
    /// another kind: whoever looks at the name next finds that.
    fn set_mode_of_made(
        &self,
        (dir, name): (&Dir, &OsStr),
        kind: FileKind,
        mode: u32,
    ) -> Result<()> {
        fail_at!("store.make.before_mode", &self.path);
        let set = || {
            let handle = self.path_handle(dir, name)?;
            if FileKind::from_mode(fs::fstat(&handle)?.st_mode) != Some(kind) {
                return Ok(());
            }
            let link = format!("/proc/self/fd/{}", handle.as_raw_fd());
            fs::chmod(link, Mode::from_raw_mode(mode & 0o7777))
        };
        set().map_err(|e| self.err("set the mode of", dir, name, e))
    }

    /// Opens a file of which another program has a lease, once that has given it up; the system waits for
    /// that no longer than `/proc/sys/fs/lease-break-time`. Only a file can have one, and the handle is of
    /// one, so that nothing else makes the open wait.
    fn open_leased(&self, dir: &Dir, name: &OsStr, mode: OFlags) -> rustix::io::Result<OwnedFd> {
        let handle = self.path_handle(dir, name)?;
        if FileKind::from_mode(fs::fstat(&handle)?.st_mode) != Some(FileKind::Regular) {
            return Err(Errno::AGAIN);
        }
        let path = format!("/proc/self/fd/{}", handle.as_raw_fd());
        let flags = mode | OFlags::NOCTTY | OFlags::CLOEXEC;
        retry(|| fs::open(&path, flags, Mode::empty()))
    }

    fn path_handle(&self, dir: &Dir, name: &OsStr) -> rustix::io::Result<OwnedFd> {
        if name.is_empty() {
            return dir.0.try_clone().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO));
        }
        open_beneath(dir.as_fd(), name, OFlags::PATH)
    }
}

/// Name and flag for calls that take the directory itself under the empty name.
fn at(name: &OsStr) -> (&OsStr, AtFlags) {
    (name, if name.is_empty() { AtFlags::EMPTY_PATH } else { AtFlags::empty() })
}

pub(crate) fn owner_of(attributes: &SetAttributes) -> (Option<Uid>, Option<Gid>) {
    (attributes.uid.map(Uid::from_raw), attributes.gid.map(Gid::from_raw))
}

/// Owners are part of file names in the private area.
pub(crate) fn check_owner(owner: &str, path: &Path) -> Result<()> {
    let valid = (1..=64).contains(&owner.len())
        && owner.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if valid {
        return Ok(());
    }
    Err(StoreError::errno_of(
        "use an owner name other than 1 to 64 letters, digits, '-' and '_' in",
        path,
        libc::EINVAL,
    ))
}

/// One component and nothing else: what every call that makes or finds a name insists on.
pub(crate) fn check_name(name: &OsStr) -> rustix::io::Result<()> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes == b"." || bytes == b".." {
        return Err(Errno::INVAL);
    }
    if bytes.contains(&b'/') || bytes.contains(&0) {
        return Err(Errno::INVAL);
    }
    if bytes.len() > NAME_MAX { Err(Errno::NAMETOOLONG) } else { Ok(()) }
}

fn kind_of(kind: FileType) -> Option<FileKind> {
    FileKind::from_mode(kind.as_raw_mode())
}

/// Opens one component below a directory, following nothing.
pub(crate) fn open_beneath(
    dir: BorrowedFd<'_>,
    name: &OsStr,
    flags: OFlags,
) -> rustix::io::Result<OwnedFd> {
    check_name(name)?;
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    // NO_SYMLINKS would refuse to take a handle of a link itself; NOFOLLOW is what counts there.
    let resolve = if flags.contains(OFlags::PATH) && !flags.contains(OFlags::DIRECTORY) {
        ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS
    } else {
        resolve
    };
    match retry(|| fs::openat2(dir, name, flags, Mode::empty(), resolve)) {
        // Filters of containers refuse openat2; one checked component with O_NOFOLLOW is as safe.
        Err(Errno::NOSYS | Errno::PERM) => retry(|| fs::openat(dir, name, flags, Mode::empty())),
        other => other,
    }
}

impl DirBacking {
    /// [`BackingStore::sync_held`].
    pub(crate) fn sync_now(&self, held: &[Dir]) -> Result<()> {
        let group = (held.len() > 1).then(|| self.begin_group()).flatten();
        let together = |handle: &Dir| group.as_ref().is_some_and(|group| group.covers(handle));
        if let Some(group) = &group {
            group.sync()?;
        }
        let err = |handle: &Dir, e: Errno| self.err("sync", handle, OsStr::new(""), e);
        let mut left: Vec<(u64, &Dir)> = Vec::new();
        for handle in held.iter().filter(|handle| !together(handle)) {
            match sync_alone(handle) {
                // The last one: another program has a lease of it.
                Err(Errno::ACCESS | Errno::PERM | Errno::OPNOTSUPP | Errno::AGAIN) => {
                    left.push((fs::fstat(handle).map_err(|e| err(handle, e))?.st_dev, handle));
                }
                synced => synced.map_err(|e| err(handle, e))?,
            }
        }
        left.sort_by_key(|(device, _)| *device);
        left.dedup_by_key(|(device, _)| *device);
        for (device, handle) in left {
            self.sync_device_of(handle, device).map_err(|e| err(handle, e))?;
        }
        Ok(())
    }

    /// Makes durable the whole file system that something lies on which can't be opened to be synced: by
    /// the directory that it is in, if it is not the root's.
    fn sync_device_of(&self, handle: &Dir, device: u64) -> rustix::io::Result<()> {
        let sync = |dir: &Dir| with_readable(dir, |fd| sync_by(fd, |fd| fs::syncfs(fd)));
        if fs::fstat(&self.root)?.st_dev != device
            && let Some(parent) = directory_of(handle)
            && fs::fstat(&parent)?.st_dev == device
        {
            return sync(&parent);
        }
        sync(&self.root)
    }
}

impl BackingStore for DirBacking {
    fn root(&self) -> Dir {
        self.root.clone()
    }

    fn open_dir(&self, parent: &Dir, name: &OsStr) -> Result<Dir> {
        open_beneath(parent.as_fd(), name, OFlags::PATH | OFlags::DIRECTORY)
            .map(|fd| Dir(Arc::new(fd)))
            .map_err(|e| self.err("open directory", parent, name, e))
    }

    fn list(
        &self,
        dir: &Dir,
        batch: &mut dyn FnMut(&[BackingEntry]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.list_entries(dir, false, batch)
    }

    fn list_plus(
        &self,
        dir: &Dir,
        batch: &mut dyn FnMut(&[BackingEntry]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.list_entries(dir, true, batch)
    }

    fn stat(&self, dir: &Dir, name: &OsStr) -> Result<Attributes> {
        let (path, empty) = at(name);
        if !name.is_empty() {
            self.checked(dir, name)?;
        }
        retry(|| self.births.stat(dir, path, AtFlags::SYMLINK_NOFOLLOW | empty))
            .map_err(|e| self.err("stat", dir, name, e))
    }

    fn readlink(&self, dir: &Dir, name: &OsStr) -> Result<OsString> {
        self.checked(dir, name)?;
        fs::readlinkat(dir, name, Vec::new())
            .map(|target| OsString::from_vec(target.into_bytes()))
            .map_err(|e| self.err("read link", dir, name, e))
    }

    fn open_file(&self, dir: &Dir, name: &OsStr, access: Access) -> Result<Arc<dyn BackingFile>> {
        let err = |e: Errno| self.err("open", dir, name, e);
        self.checked(dir, name)?;
        // Opening a device may do something and opening a pipe may wait: look before.
        let kind = self.stat(dir, name)?.kind;
        match kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(err(Errno::ISDIR)),
            FileKind::Symlink => return Err(err(Errno::LOOP)),
            _ => return Err(err(Errno::INVAL)),
        }
        let mode = match access {
            Access::Read => OFlags::RDONLY,
            Access::ReadWrite => OFlags::RDWR,
        };
        let fd = match open_beneath(dir.as_fd(), name, mode | OFlags::NONBLOCK | OFlags::NOCTTY) {
            Err(Errno::AGAIN) => self.open_leased(dir, name, mode),
            fd => fd,
        };
        let fd = fd.map_err(err)?;
        let file = LocalFile::with_births(fd, self.describe(dir, name), self.births);
        if file.stat()?.kind != FileKind::Regular {
            return Err(err(Errno::INVAL));
        }
        Ok(Arc::new(DirFile::new(file)))
    }

    fn mkdir(&self, dir: &Dir, name: &OsStr, mode: u32) -> Result<()> {
        let err = |e| self.err("make directory", dir, name, e);
        self.checked(dir, name)?;
        fs::mkdirat(dir, name, Mode::RWXU).map_err(err)?;
        self.set_mode_of_made((dir, name), FileKind::Directory, mode)
    }

    fn symlink(&self, target: &OsStr, dir: &Dir, name: &OsStr) -> Result<()> {
        self.checked(dir, name)?;
        fs::symlinkat(target, dir, name).map_err(|e| self.err("make symbolic link", dir, name, e))
    }

    fn mknod(&self, dir: &Dir, name: &OsStr, node: Node, mode: u32) -> Result<()> {
        let err = |e| self.err("make", dir, name, e);
        self.checked(dir, name)?;
        let (kind, device) = match node {
            Node::Regular => (FileType::RegularFile, 0),
            Node::Fifo => (FileType::Fifo, 0),
            Node::Socket => (FileType::Socket, 0),
            Node::CharDevice(device) => (FileType::CharacterDevice, device),
            Node::BlockDevice(device) => (FileType::BlockDevice, device),
        };
        fs::mknodat(dir, name, kind, Mode::RUSR | Mode::WUSR, device).map_err(err)?;
        let made = kind_of(kind).unwrap_or(FileKind::Regular);
        self.set_mode_of_made((dir, name), made, mode)
    }

    fn link(&self, dir: &Dir, name: &OsStr, to_dir: &Dir, to_name: &OsStr) -> Result<()> {
        self.checked(to_dir, to_name)?;
        let made = if name.is_empty() {
            // The link of the system itself is followed, and what it leads to is not.
            let itself = format!("/proc/self/fd/{}", dir.0.as_raw_fd());
            fs::linkat(fs::CWD, itself, to_dir, to_name, AtFlags::SYMLINK_FOLLOW)
        } else {
            self.checked(dir, name)?;
            fs::linkat(dir, name, to_dir, to_name, AtFlags::empty())
        };
        made.map_err(|e| self.err("make hard link", to_dir, to_name, e))
    }

    fn has_links(&self) -> Result<bool> {
        let one = self.make_temporary(0)?;
        let mut other = one.place.name.clone();
        other.push(".link");
        match fs::linkat(&one.place.dir, &one.place.name, &one.place.dir, &other, AtFlags::empty())
        {
            Ok(()) => self.unlink(&one.place.dir, &other).map(|()| true),
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
            Err(e) => Err(self.err("make hard link", &one.place.dir, &other, e)),
        }
    }

    fn keeps_ends(&self) -> Result<bool> {
        let one = self.make_temporary(0)?;
        let (dir, mut short) = (&one.place.dir, one.place.name.clone());
        short.push(".ends");
        let mut long = short.clone();
        long.push(". ");
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        match fs::openat(dir, &long, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => drop(file),
            Err(Errno::INVAL) => return Ok(false),
            Err(e) => return Err(self.err("make file", dir, &long, e)),
        }
        let dropped = fs::statat(dir, &short, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        self.unlink(dir, if dropped { &short } else { &long }).map(|()| !dropped)
    }

    fn rename(
        &self,
        dir: &Dir,
        name: &OsStr,
        to_dir: &Dir,
        to_name: &OsStr,
        mode: RenameMode,
    ) -> Result<()> {
        self.checked(dir, name)?;
        self.checked(to_dir, to_name)?;
        self.rename_as(mode, (dir, name), (to_dir, to_name))
    }

    fn unlink(&self, dir: &Dir, name: &OsStr) -> Result<()> {
        self.checked(dir, name)?;
        if let Some(own) = self.own_dir() {
            return self.unlink_by_own(&own, dir, name);
        }
        fs::unlinkat(dir, name, AtFlags::empty()).map_err(|e| self.err("remove", dir, name, e))
    }

    fn rmdir(&self, dir: &Dir, name: &OsStr) -> Result<()> {
        // On NFS a file that is removed while it is open keeps a name.
        closing::settle(closing::A_MOMENT);
        self.checked(dir, name)?;
        if let Some(own) = self.own_dir() {
            return self.rmdir_by_own(&own, dir, name);
        }
        fs::unlinkat(dir, name, AtFlags::REMOVEDIR)
            .map_err(|e| self.err("remove directory", dir, name, e))
    }

    fn unlink_known(&self, dir: &Dir, name: &OsStr, known: &Known) -> Result<Removed> {
        self.checked(dir, name)?;
        self.remove_known(dir, name, known)
    }

    fn rmdir_known(&self, dir: &Dir, name: &OsStr, known: &Fingerprint) -> Result<Removed> {
        self.checked(dir, name)?;
        closing::settle(closing::A_MOMENT);
        self.remove_known_directory(dir, name, known)
    }

    fn hold(&self, dir: &Dir, name: &OsStr) -> Result<Dir> {
        self.checked(dir, name)?;
        let held = retry(|| open_beneath(dir.as_fd(), name, OFlags::PATH));
        held.map(|fd| Dir(Arc::new(fd))).map_err(|e| self.err("hold", dir, name, e))
    }

    fn last_place(&self, object: &Dir) -> Option<PathBuf> {
        let link = format!("/proc/self/fd/{}", object.0.as_raw_fd());
        let path = std::fs::read_link(link).ok()?.into_os_string().into_vec();
        let stood = path.strip_suffix(b" (deleted)").unwrap_or(&path);
        Some(OsStr::from_bytes(stood).into())
    }

    fn set_attributes(&self, dir: &Dir, name: &OsStr, attributes: &SetAttributes) -> Result<()> {
        if !name.is_empty() {
            self.checked(dir, name)?;
        }
        self.set_times_and_owner(dir, name, attributes)
            .map_err(|e| self.err("set attributes of", dir, name, e))
    }

    fn get_xattr(&self, dir: &Dir, name: &OsStr, attribute: &OsStr) -> Result<Vec<u8>> {
        let path = self.xattr_path(dir, name)?;
        let get = |buffer: &mut [u8]| match name.is_empty() {
            true => fs::getxattr(&path, attribute, buffer),
            false => fs::lgetxattr(&path, attribute, buffer),
        };
        read_growing(get).map_err(|e| self.err("read an extended attribute of", dir, name, e))
    }

    fn set_xattr(
        &self,
        dir: &Dir,
        name: &OsStr,
        attribute: &OsStr,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let path = self.xattr_path(dir, name)?;
        let flags = match mode {
            XattrMode::Any => XattrFlags::empty(),
            XattrMode::Create => XattrFlags::CREATE,
            XattrMode::Replace => XattrFlags::REPLACE,
        };
        let set = match name.is_empty() {
            true => fs::setxattr(&path, attribute, value, flags),
            false => fs::lsetxattr(&path, attribute, value, flags),
        };
        set.map_err(|e| self.err("set an extended attribute of", dir, name, e))
    }

    fn list_xattrs(&self, dir: &Dir, name: &OsStr) -> Result<Vec<OsString>> {
        let path = self.xattr_path(dir, name)?;
        let list = |buffer: &mut [u8]| match name.is_empty() {
            true => fs::listxattr(&path, buffer),
            false => fs::llistxattr(&path, buffer),
        };
        let names = read_growing(list)
            .map_err(|e| self.err("list the extended attributes of", dir, name, e))?;
        let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(|name| OsStr::from_bytes(name).to_owned()).collect())
    }

    fn remove_xattr(&self, dir: &Dir, name: &OsStr, attribute: &OsStr) -> Result<()> {
        let path = self.xattr_path(dir, name)?;
        let removed = match name.is_empty() {
            true => fs::removexattr(&path, attribute),
            false => fs::lremovexattr(&path, attribute),
        };
        removed.map_err(|e| self.err("remove an extended attribute of", dir, name, e))
    }

    fn statfs(&self) -> Result<FileSystemUsage> {
        let err = |e: Errno| self.err("statvfs", &self.root, OsStr::new(""), e);
        let room = fs::fstatvfs(&self.root).map_err(err)?;
        Ok(FileSystemUsage {
            block_size: room.f_frsize,
            blocks: room.f_blocks,
            blocks_free: room.f_bfree,
            blocks_available: room.f_bavail,
            inodes: room.f_files,
            inodes_free: room.f_ffree,
            name_max: room.f_namemax,
        })
    }

    fn sync_held(&self, held: &[Dir]) -> Result<()> {
        fail_at!("store.sync_held.before", &self.path);
        self.sync_now(held)
    }

    fn sync(&self) -> Result<()> {
        with_readable(&self.root, |fd| sync_by(fd, |fd| fs::syncfs(fd)))
            .map_err(|e| StoreError::io("sync", &self.path, e))?;
        for below in crate::identity::mounts_below(&self.path)? {
            let path = self.path.join(below);
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            match retry(|| fs::open(&path, flags, Mode::empty())) {
                Ok(dir) => sync_by(dir, |fd| fs::syncfs(fd)),
                // Nobody could have written there: a file, hidden by another mount, or not this user's.
                Err(Errno::NOTDIR | Errno::NOENT | Errno::ACCESS) => Ok(()),
                Err(error) => Err(error),
            }
            .map_err(|e| StoreError::io("sync", &path, e))?;
        }
        Ok(())
    }

    fn begin_group(&self) -> Option<Group> {
        Group::begin(&self.root)
    }

    fn sync_group(&self, group: &Group) -> Result<Synced> {
        group.sync()
    }

    fn temporary(&self, ino: u64) -> Result<Temporary> {
        self.make_temporary(ino)
    }

    fn temporary_beside(&self, ino: u64, dir: &Dir) -> Result<Temporary> {
        self.make_temporary_in(dir, ino)
    }

    fn spill(&self, ino: u64) -> Result<Temporary> {
        self.make_spill(ino)
    }

    fn open_spill(&self, ino: u64) -> Result<Option<Temporary>> {
        self.find_spill(ino)
    }

    fn spill_map(&self, ino: u64, extent_size: u64, size: u64) -> Result<crate::Presence> {
        self.make_spill_map(ino, extent_size, size)
    }

    fn open_spill_map(&self, ino: u64, believed: Believed) -> Result<Option<crate::Presence>> {
        self.find_spill_map(ino, believed)
    }

    fn remove_spill(&self, ino: u64) -> Result<()> {
        self.drop_spill(ino)
    }

    fn set_spill_aside(&self, ino: u64) -> Result<Option<PathBuf>> {
        self.move_spill_aside(ino)
    }

    fn list_set_aside(&self) -> Result<Vec<PathBuf>> {
        self.lost_files()
    }

    fn list_spills(&self) -> Result<Vec<u64>> {
        self.all_spills()
    }

    fn commit(
        &self,
        temporary: &mut Temporary,
        dir: &Dir,
        name: &OsStr,
        expect: Expect,
    ) -> Result<Commit> {
        self.checked(dir, name)?;
        self.publish(temporary, dir, name, expect)
    }

    fn park(&self, dir: &Dir, name: &OsStr, key: u64) -> Result<()> {
        self.checked(dir, name)?;
        self.move_to_parked(dir, name, key)
    }

    fn park_link(&self, dir: &Dir, name: &OsStr, key: u64) -> Result<()> {
        self.checked(dir, name)?;
        self.link_to_parked(dir, name, key)
    }

    fn parked_name(&self, key: u64) -> OsString {
        self.name_when_parked(key)
    }

    fn unpark(&self, key: u64, dir: &Dir, name: &OsStr) -> Result<()> {
        self.checked(dir, name)?;
        self.move_from_parked(key, dir, name)
    }

    fn set_parked_aside(&self, key: u64) -> Result<Option<PathBuf>> {
        self.move_parked_aside(key)
    }

    fn list_parked(&self) -> Result<Vec<u64>> {
        self.numbers_in(crate::private::Area::Limbo)
    }

    fn clean_temporaries(&self, owner: &str) -> Result<Cleaned> {
        check_owner(owner, &self.path)?;
        self.clean(owner)
    }

    fn remove_strays(&self) -> Result<Cleaned> {
        self.clear_strays()
    }

    fn tidy(&self) -> Result<()> {
        self.remove_empty_areas()
    }
}

/// Makes durable what one handle is of; `EOPNOTSUPP` for what is neither a file nor a directory.
fn sync_alone(handle: &Dir) -> rustix::io::Result<()> {
    let sync = |fd: &OwnedFd| sync_by(fd, |fd| fs::fsync(fd));
    match FileKind::from_mode(fs::fstat(handle)?.st_mode) {
        Some(FileKind::Directory) => with_readable(handle, sync),
        Some(FileKind::Regular) => {
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let path = format!("/proc/self/fd/{}", handle.0.as_raw_fd());
            sync(&retry(|| fs::open(&path, flags, Mode::empty()))?)
        }
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// The directory that the kernel says something is in; none if it is not to be reached from here.
fn directory_of(handle: &Dir) -> Option<Dir> {
    let link = format!("/proc/self/fd/{}", handle.0.as_raw_fd());
    let path = std::fs::read_link(link).ok()?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = path.parent()?;
    let found = retry(|| fs::open(parent, flags, Mode::empty())).ok()?;
    Some(Dir(Arc::new(found)))
}

/// O_PATH handles cannot be synced: opens the directory for reading for one call.
fn with_readable(
    dir: &Dir,
    call: impl Fn(&OwnedFd) -> rustix::io::Result<()>,
) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = retry(|| fs::openat(dir, ".", flags, Mode::empty()))?;
    match retry(|| call(&fd)) {
        // Some network file systems do not sync directories; their servers do it themselves.
        Err(Errno::INVAL) => Ok(()),
        other => other,
    }
}

/// Reads an attribute of unknown length: the kernel bounds it to 64 KiB.
fn read_growing(
    mut call: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Vec<u8>> {
    let mut buffer = vec![0; 1024];
    loop {
        match call(&mut buffer) {
            Ok(len) => {
                buffer.truncate(len);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if buffer.len() < 64 << 10 => buffer.resize(64 << 10, 0),
            Err(e) => return Err(e),
        }
    }
}
