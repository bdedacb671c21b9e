//! Whose a directory is. What a daemon keeps in a directory that others can change may be exchanged
//! by them: root's files for theirs, a file for a symbolic link to any other one.

use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::backing::{Dir, PRIVATE, TEMPORARY_PREFIX};
use crate::dir_backing::{DirBacking, open_beneath};
use crate::dir_tier::random;
use crate::local::retry;
use crate::private::Area;
use crate::{Result, StoreError};

/// Bits of a mode by which others than the owner can make and exchange names.
const WRITABLE: u32 = 0o022;
/// Bits of a mode that others than the owner have.
const OTHERS: u32 = 0o077;

/// Owner and permission bits.
type Held = (u32, u32);

fn held(file: impl AsFd) -> rustix::io::Result<Held> {
    let found = fs::fstat(file)?;
    Ok((found.st_uid, found.st_mode & 0o7777))
}

fn this_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A path by which something can be changed through a handle that only names it.
fn by_handle(handle: impl AsFd) -> String {
    format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd())
}

fn set_mode(handle: impl AsFd, mode: Mode) -> rustix::io::Result<()> {
    fs::chmod(by_handle(handle), mode)
}

/// The access lists that something new has from the directory in which it was made.
const INHERITED: [&str; 2] = ["system.posix_acl_default", "system.posix_acl_access"];

/// Takes the access lists away that a directory, or a file in it, has got from the one above: they
/// would go on to what is published from there, and give its bytes to whom they name.
pub(crate) fn shed_access_lists(handle: impl AsFd) -> rustix::io::Result<()> {
    let path = by_handle(handle);
    for list in INHERITED {
        // Most file systems say that there is none, or that they have no lists, each in its way.
        if let Err(e) = fs::removexattr(&path, list)
            && fs::getxattr(&path, list, &mut [0_u8; 0]).is_ok()
        {
            return Err(e);
        }
    }
    Ok(())
}

impl DirBacking {
    /// Makes the private area and checks whose it is. A store in whose root this user may make
    /// nothing has none.
    ///
    /// # Errors
    /// [`StoreError::Untrusted`] when it is somebody else's, or others can write in it.
    pub fn claim_private_area(&self) -> Result<()> {
        let private = match self.private_area() {
            Ok(private) => private,
            Err(e @ StoreError::Untrusted { .. }) => return Err(e),
            Err(error) => {
                tracing::debug!(%error, "no private area in the backing store");
                return Ok(());
            }
        };
        // An older daemon may have left them.
        self.shed_lists(&private)?;
        Area::ALL.iter().try_for_each(|area| match self.open_area(&private, area.name()) {
            Err(e) if e.errno() == libc::ENOENT => Ok(()),
            other => self.shed_lists(&other?),
        })
    }

    /// The private area, made if need be. That is nobody's change of the root, which keeps its time.
    pub(crate) fn private_area(&self) -> Result<Dir> {
        match self.open_area(&self.root, PRIVATE) {
            Err(error) if error.errno() == libc::ENOENT => {}
            opened => return opened,
        }
        let before =
            fs::fstat(&self.root).map_err(|e| self.err("stat", &self.root, "".as_ref(), e))?;
        let made = self.make_area(&self.root, PRIVATE)?;
        let omit = fs::Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT };
        let mtime = fs::Timespec { tv_sec: before.st_mtime, tv_nsec: before.st_mtime_nsec as _ };
        let times = fs::Timestamps { last_access: omit, last_modification: mtime };
        // A root that belongs to others takes the time of the change.
        let _ = fs::utimensat(&self.root, ".", &times, fs::AtFlags::empty());
        Ok(made)
    }

    /// Makes a directory of the private area if need be, and opens it.
    pub(crate) fn make_area(&self, parent: &Dir, name: &str) -> Result<Dir> {
        let made = match fs::mkdirat(parent, name, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(e) => return Err(self.err("make directory", parent, name.as_ref(), e)),
        };
        let area = self.open_area(parent, name)?;
        if made {
            self.shed_lists(&area)?;
        }
        Ok(area)
    }

    fn shed_lists(&self, area: &Dir) -> Result<()> {
        match shed_access_lists(area) {
            // Nothing is made there then, either.
            Ok(()) | Err(Errno::ROFS) => Ok(()),
            Err(e) => Err(self.err("take inherited access lists from", area, "".as_ref(), e)),
        }
    }

    /// Opens a directory of the private area, which must be this user's alone: what is written back
    /// stands there under a name before it is published.
    pub(crate) fn open_area(&self, parent: &Dir, name: &str) -> Result<Dir> {
        let untrusted = |why: String| StoreError::Untrusted {
            path: self.describe(parent, name.as_ref()),
            why: format!(
                "{why}, so that others could exchange what is written back; look at what is in it \
                 and remove it, or move it away"
            ),
        };
        let dir =
            match open_beneath(parent.as_fd(), name.as_ref(), OFlags::PATH | OFlags::DIRECTORY) {
                Ok(fd) => Dir(Arc::new(fd)),
                Err(Errno::LOOP | Errno::NOTDIR) => {
                    return Err(untrusted("is not a directory".into()));
                }
                Err(e) => return Err(self.err("open directory", parent, name.as_ref(), e)),
            };
        let err = |e: Errno| self.err("look at", parent, name.as_ref(), e);
        let (owner, mode) = held(&dir).map_err(err)?;
        if owner != this_user() {
            // A server may take this user for another one (root_squash), or keep no owners.
            let me = self.probe(&dir).map_or(this_user(), |(me, _)| me);
            if owner != me {
                return Err(untrusted(format!("belongs to user {owner} and not to user {me}")));
            }
        }
        if mode & WRITABLE != 0 && self.probe(&dir).map_err(err)?.1 & WRITABLE == 0 {
            return Err(untrusted(format!("can be written by others (mode {mode:o})")));
        }
        if mode & OTHERS != 0 {
            // Where the file system keeps no modes there is nothing to be won.
            let _ = set_mode(&dir, Mode::RWXU);
        }
        Ok(dir)
    }

    /// Whose a file is that this process makes in a directory for itself alone, and with which mode.
    fn probe(&self, dir: &Dir) -> rustix::io::Result<Held> {
        let mode = Mode::RUSR | Mode::WUSR;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match retry(|| {
            fs::openat(dir, ".", flags.difference(OFlags::NOFOLLOW) | OFlags::TMPFILE, mode)
        }) {
            Ok(file) => return held(&file),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOSYS | Errno::INVAL) => {}
            Err(e) => return Err(e),
        }
        let random = random().map_err(|e| Errno::from_raw_os_error(e.errno()))?;
        let name = format!("{TEMPORARY_PREFIX}{}.0.{:x}", self.owner, u64::from_le_bytes(random));
        let flags = flags | OFlags::CREATE | OFlags::EXCL;
        let file = retry(|| fs::openat(dir, &name, flags, mode))?;
        let found = held(&file);
        fs::unlinkat(dir, &name, AtFlags::empty())?;
        found
    }
}

/// What a file system makes by itself in its root.
const LOST_AND_FOUND: &str = "lost+found";

fn untrusted(path: &Path, why: String) -> StoreError {
    StoreError::Untrusted {
        path: path.to_owned(),
        why: format!(
            "{why}, so that others could exchange what is kept there; name another directory, or look \
             at what is in it, then make it yours (`chown -R` and `chmod 700`)"
        ),
    }
}

/// Checks that a directory in which a daemon keeps its own things, and what is directly in it, is
/// this user's, without touching it. One that is not there is.
///
/// # Errors
/// [`StoreError::Untrusted`], and what the file system says.
pub fn check_own(path: &Path) -> Result<()> {
    match open_dir(path) {
        Ok(dir) => sweep(&dir, path, false),
        Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(StoreError::io("open", path, e)),
    }
}

/// Makes a directory in which a daemon keeps its own things, if need be, checks that it is this
/// user's, and keeps others out of it.
///
/// # Errors
/// As [`check_own`].
pub fn make_own(path: &Path) -> Result<OwnedFd> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|e| StoreError::io("create directory", path, e))?;
    let dir = open_dir(path).map_err(|e| StoreError::io("open", path, e))?;
    sweep(&dir, path, true)?;
    Ok(dir)
}

fn open_dir(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    retry(|| fs::open(path, flags, Mode::empty()))
}

/// Checks a directory and what is directly in it; also what is below, where others could have made
/// names until now.
fn sweep(dir: &OwnedFd, path: &Path, tighten: bool) -> Result<()> {
    let err = |e: Errno| StoreError::io("look at", path, e);
    let me = this_user();
    let (owner, mode) = held(dir).map_err(err)?;
    if owner != me {
        return Err(untrusted(path, format!("belongs to user {owner} and not to user {me}")));
    }
    if tighten && mode & OTHERS != 0 {
        let shut = set_mode(dir, Mode::RWXU).and_then(|()| held(dir));
        if mode & WRITABLE != 0 && !shut.is_ok_and(|(_, mode)| mode & WRITABLE == 0) {
            return Err(untrusted(path, format!("can be written by others (mode {mode:o})")));
        }
    }
    for entry in fs::Dir::read_from(dir).map_err(err)? {
        let entry = entry.map_err(err)?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." || name == LOST_AND_FOUND {
            continue;
        }
        let found = match fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => continue,
            other => other.map_err(err)?,
        };
        let below = path.join(name);
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Symlink => {
                return Err(untrusted(&below, "is a symbolic link".into()));
            }
            _ if found.st_uid != me => {
                let owner = found.st_uid;
                return Err(untrusted(
                    &below,
                    format!("belongs to user {owner} and not to user {me}"),
                ));
            }
            FileType::Directory if found.st_mode & WRITABLE != 0 => {
                let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let child = retry(|| fs::openat(dir, name, flags, Mode::empty()))
                    .map_err(|e| StoreError::io("open", &below, e))?;
                sweep(&child, &below, tighten)?;
            }
            _ => {}
        }
    }
    Ok(())
}
