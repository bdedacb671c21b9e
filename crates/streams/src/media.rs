//! Files that are streamed: opened safely below a root, by direct I/O where the store allows it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::model::{Extent, Layout};
use rustix::fs::{Advice, FileType, Mode, OFlags, ResolveFlags, fadvise, fcntl_getfl, fcntl_setfl};
use serde::{Deserialize, Serialize};

use crate::pool::ALIGNMENT;

/// What tells one version of a file from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileKey {
    device: u64,
    inode: u64,
    pub(crate) size: u64,
    modified_ns: i128,
}

/// What of a [`FileKey`] stays the same over restarts of the machine, after which devices may have
/// other numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Version {
    pub inode: u64,
    pub size: u64,
    pub modified_ns: i64,
}

impl FileKey {
    /// What stays the same over restarts.
    pub(crate) fn lasting(&self) -> Version {
        let modified_ns = i64::try_from(self.modified_ns).unwrap_or(i64::MAX);
        Version { inode: self.inode, size: self.size, modified_ns }
    }

    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// When it was last modified, in whole seconds since 1970.
    pub fn modified_s(&self) -> i64 {
        i64::try_from(self.modified_ns.div_euclid(1_000_000_000)).unwrap_or(0)
    }

    /// A number that differs for different versions, as far as 64 bits can.
    pub fn version(&self) -> u64 {
        mix(self.spread() ^ self.modified_ns as u64)
    }

    /// A number that spreads well, for what must be placed the same way each time.
    pub fn spread(&self) -> u64 {
        mix(self.inode ^ mix(self.size) ^ mix(self.device).rotate_left(1))
    }
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Something in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LibraryEntry {
    /// Its name.
    pub name: OsString,
    /// Bytes of a file; none of a directory.
    pub bytes: Option<u64>,
}

/// The directory whose files may be streamed.
#[derive(Debug)]
pub struct Library {
    root: OwnedFd,
    path: PathBuf,
}

impl Library {
    /// Opens the directory.
    ///
    /// # Errors
    /// If it is not there, is no directory or may not be read.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let root = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Self { root, path: path.to_path_buf() })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a regular file below the root. Nothing outside of it is ever opened, whatever the
    /// path says and wherever symbolic links point.
    ///
    /// # Errors
    /// `NotFound` for what is not there, is not a regular file or lies outside; else what the
    /// system says.
    pub fn file(&self, relative: &Path) -> io::Result<File> {
        let outside = || io::Error::from(io::ErrorKind::NotFound);
        let plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
        if !plain || relative.as_os_str().is_empty() {
            return Err(outside());
        }
        // Without O_NONBLOCK the open of a FIFO would wait for a writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let opened = match rustix::fs::openat2(&self.root, relative, flags, Mode::empty(), resolve)
        {
            // Not known to this kernel, or not allowed to this process.
            Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => self.walk(relative, flags),
            other => other,
        };
        let file = match opened {
            Ok(fd) => File::from(fd),
            Err(rustix::io::Errno::XDEV | rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => {
                return Err(outside());
            }
            Err(error) => return Err(error.into()),
        };
        if file.metadata()?.is_file() { Ok(file) } else { Err(outside()) }
    }

    /// Names in a directory below the root, which is the root itself if the path is empty, in order:
    /// regular files and directories, but none that begins with a dot; `most` of them.
    ///
    /// # Errors
    /// As [`Library::file`].
    pub(crate) fn list(&self, relative: &Path, most: usize) -> io::Result<Vec<LibraryEntry>> {
        let plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
        let at = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
        if !plain {
            return Err(io::ErrorKind::NotFound.into());
        }
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let opened = match rustix::fs::openat2(&self.root, at, flags, Mode::empty(), resolve) {
            Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => self.walk(relative, flags),
            other => other,
        };
        let dir = opened.map_err(|error| match error {
            rustix::io::Errno::XDEV | rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR => {
                io::ErrorKind::NotFound.into()
            }
            error => io::Error::from(error),
        })?;
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::read_from(&dir)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
            if name.as_bytes().starts_with(b".") {
                continue;
            }
            let no_follow = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
            let Ok(stat) = rustix::fs::statat(&dir, &name, no_follow) else { continue };
            let bytes = match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => Some(stat.st_size as u64),
                FileType::Directory => None,
                // What it leads to, if that is a file of the library.
                FileType::Symlink => match self.file(&relative.join(&name)) {
                    Ok(file) => Some(file.metadata()?.len()),
                    Err(_) => continue,
                },
                _ => continue,
            };
            entries.push(LibraryEntry { name, bytes });
            if entries.len() >= most {
                break;
            }
        }
        entries.sort_unstable();
        Ok(entries)
    }

    /// Opens name by name, following no symbolic link.
    fn walk(&self, relative: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let mut at = self.root.try_clone().map_err(|_| rustix::io::Errno::MFILE)?;
        let mut parts = relative.components().peekable();
        while let Some(part) = parts.next() {
            let flags = flags | OFlags::NOFOLLOW;
            let flags = if parts.peek().is_some() { flags | OFlags::DIRECTORY } else { flags };
            at = rustix::fs::openat(&at, part.as_os_str(), flags, Mode::empty())?;
        }
        Ok(at)
    }
}

/// How a file's bytes are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Past the page cache if the store allows it.
    Direct,
    /// Through the page cache.
    Buffered,
}

/// A file that is being streamed.
#[derive(Debug)]
pub struct Media {
    file: File,
    direct: AtomicBool,
    key: FileKey,
    size: u64,
    layout: Layout,
}

impl Media {
    /// What tells this version of a file from others.
    ///
    /// # Errors
    /// What fstat(2) says.
    pub fn key_of(file: &File) -> io::Result<FileKey> {
        let stat = rustix::fs::fstat(file)?;
        Ok(FileKey {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: stat.st_size as u64,
            modified_ns: i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec),
        })
    }

    /// Takes an open file. Where the store refuses direct I/O it is read through the page cache,
    /// without the kernel's readahead, and dropped from it afterwards.
    ///
    /// # Errors
    /// What the system says of the file.
    pub fn new(file: File, access: Access, layout: Layout) -> io::Result<Self> {
        let key = Self::key_of(&file)?;
        let status = fcntl_getfl(&file)? - OFlags::NONBLOCK;
        let direct =
            access == Access::Direct && fcntl_setfl(&file, status | OFlags::DIRECT).is_ok();
        if !direct {
            fcntl_setfl(&file, status)?;
            fadvise(&file, 0, None, Advice::Random)?;
        }
        // Of a block device only seeking to its end tells the size.
        let size = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))?;
        Ok(Self { file, direct: direct.into(), key, size, layout })
    }

    /// Bytes of the file when it was opened.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// What tells this version of the file from others.
    pub fn key(&self) -> FileKey {
        self.key
    }

    /// Where it lies on its device.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Where the bytes before `end` lie; none if there are none.
    pub fn layout_until(&self, end: u64) -> Option<Layout> {
        let kept: Vec<Extent> = self
            .layout
            .extents()
            .iter()
            .filter(|extent| extent.logical < end)
            .map(|extent| Extent { bytes: extent.bytes.min(end - extent.logical), ..*extent })
            .collect();
        Layout::new(&kept).ok()
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Whether reads go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    /// Judges how a read ended: whether it is to be done again because the store turned out to
    /// refuse direct I/O only when read.
    pub(crate) fn refused_direct(&self, error: &io::Error) -> bool {
        let refused = error.raw_os_error() == Some(libc::EINVAL) && self.is_direct();
        if refused {
            self.direct.store(false, Ordering::Relaxed);
            let status = fcntl_getfl(&self.file).unwrap_or(OFlags::empty()) - OFlags::DIRECT;
            let _ = fcntl_setfl(&self.file, status);
            tracing::info!("direct I/O refused at the first read; the page cache is used");
        }
        refused
    }

    /// Lets go of what a buffered read has left in the page cache: each title is read once by the
    /// service, which keeps for itself what is worth keeping.
    pub(crate) fn forget(&self, offset: u64, length: usize) {
        if !self.is_direct() {
            let length = std::num::NonZeroU64::new(length.next_multiple_of(ALIGNMENT) as u64);
            let _ = fadvise(self.file.as_fd(), offset, length, Advice::DontNeed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn file_when_the_path_leads_outside_then_not_found() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("sub")).unwrap();
        std::fs::write(dir.path().join("secret"), "s").unwrap();
        std::fs::write(root.join("sub/a"), "a").unwrap();
        symlink("../secret", root.join("out")).unwrap();
        symlink("/etc/passwd", root.join("absolute")).unwrap();
        symlink("sub/a", root.join("in")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            root.join("fifo"),
            rustix::fs::FileType::Fifo,
            Mode::RWXU,
            0,
        )
        .unwrap();
        let library = Library::open(&root).unwrap();
        for outside in
            ["../secret", "sub/../../secret", "/etc/passwd", "out", "absolute", "", "sub", "fifo"]
        {
            let error = library.file(Path::new(outside)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{outside}");
        }
        assert!(library.file(Path::new("sub/a")).is_ok() && library.file(Path::new("in")).is_ok());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        assert!(library.walk(Path::new("sub/a"), flags).is_ok());
        assert!(library.walk(Path::new("in"), flags).is_err());
    }
}
