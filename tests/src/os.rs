//! System calls as the checks want them: plain numbers for modes and ids, errno as the error, and
//! nothing between the check and the kernel that could hide what the kernel said.

use std::ffi::{CString, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{self, Gid, Mode, Timespec, Timestamps, Uid};
pub use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, OFlags, RenameFlags, Stat, XattrFlags,
};
pub use rustix::io::Errno;

/// The result of a system call.
pub type Call<T = ()> = Result<T, Errno>;

fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn checked(returned: libc::c_int) -> Call<libc::c_int> {
    if returned == -1 { Err(last_errno()) } else { Ok(returned) }
}

fn c_path(path: &Path) -> Call<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)
}

/// open(2), always with O_CLOEXEC; `mode` applies to what O_CREAT or O_TMPFILE makes.
pub fn open(path: impl AsRef<Path>, flags: OFlags, mode: u32) -> Call<OwnedFd> {
    fs::open(path.as_ref(), flags | OFlags::CLOEXEC, Mode::from_raw_mode(mode))
}

/// mkdir(2).
pub fn mkdir(path: impl AsRef<Path>, mode: u32) -> Call {
    fs::mkdir(path.as_ref(), Mode::from_raw_mode(mode))
}

/// mknod(2); `rdev` counts only for devices.
pub fn mknod(path: impl AsRef<Path>, kind: FileType, mode: u32, rdev: u64) -> Call {
    fs::mknodat(CWD, path.as_ref(), kind, Mode::from_raw_mode(mode), rdev)
}

/// chmod(2).
pub fn chmod(path: impl AsRef<Path>, mode: u32) -> Call {
    fs::chmod(path.as_ref(), Mode::from_raw_mode(mode))
}

/// fchmod(2).
pub fn fchmod(fd: impl AsFd, mode: u32) -> Call {
    fs::fchmod(fd, Mode::from_raw_mode(mode))
}

/// chown(2); `None` leaves an id as it is.
pub fn chown(path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Call {
    fs::chown(path.as_ref(), uid.map(Uid::from_raw), gid.map(Gid::from_raw))
}

/// fchown(2).
pub fn fchown(fd: impl AsFd, uid: Option<u32>, gid: Option<u32>) -> Call {
    fs::fchown(fd, uid.map(Uid::from_raw), gid.map(Gid::from_raw))
}

/// lchown(2): the link itself, never what it points to.
pub fn lchown(path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Call {
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    fs::chownat(CWD, path.as_ref(), uid, gid, AtFlags::SYMLINK_NOFOLLOW)
}

/// umask(2) of the whole process: only for forked children.
pub fn umask(mask: u32) {
    rustix::process::umask(Mode::from_raw_mode(mask));
}

/// The permission bits of a file, twelve of them.
pub fn permissions(path: impl AsRef<Path>) -> Call<u32> {
    Ok(fs::lstat(path.as_ref())?.st_mode & 0o7777)
}

/// The type of a file, without following a link.
pub fn file_type(path: impl AsRef<Path>) -> Call<FileType> {
    Ok(FileType::from_raw_mode(fs::lstat(path.as_ref())?.st_mode))
}

/// The size that stat(2) gives.
pub fn size(path: impl AsRef<Path>) -> Call<u64> {
    Ok(fs::stat(path.as_ref())?.st_size as u64)
}

/// True when lstat(2) finds something; an error other than ENOENT is an error.
pub fn exists(path: impl AsRef<Path>) -> Call<bool> {
    match fs::lstat(path.as_ref()) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(other) => Err(other),
    }
}

/// truncate(2), signed as in C so that a negative length can be tried.
pub fn truncate(path: impl AsRef<Path>, len: i64) -> Call {
    let path = c_path(path.as_ref())?;
    // SAFETY: `path` is a valid C string for the length of the call.
    checked(unsafe { libc::truncate(path.as_ptr(), len) }).map(drop)
}

/// Reads a whole file through read(2), without asking for its size.
pub fn read_all(path: impl AsRef<Path>) -> Call<Vec<u8>> {
    read_to_end(open(path, OFlags::RDONLY, 0)?)
}

/// Reads from the descriptor's position to the end.
pub fn read_to_end(fd: impl AsFd) -> Call<Vec<u8>> {
    let mut content = Vec::new();
    let mut buffer = vec![0; 65_536];
    loop {
        match rustix::io::read(&fd, &mut buffer[..])? {
            0 => return Ok(content),
            n => content.extend_from_slice(&buffer[..n]),
        }
    }
}

/// pread(2) until `len` bytes or the end of the file.
pub fn read_at(fd: impl AsFd, offset: u64, len: usize) -> Call<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut done = 0;
    while done < len {
        match rustix::io::pread(&fd, &mut bytes[done..], offset + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

/// pwrite(2) until all is written.
pub fn write_at(fd: impl AsFd, offset: u64, bytes: &[u8]) -> Call {
    let mut done = 0;
    while done < bytes.len() {
        done += rustix::io::pwrite(&fd, &bytes[done..], offset + done as u64)?;
    }
    Ok(())
}

/// write(2) until all is written.
pub fn write_all(fd: impl AsFd, bytes: &[u8]) -> Call {
    let mut done = 0;
    while done < bytes.len() {
        done += rustix::io::write(&fd, &bytes[done..])?;
    }
    Ok(())
}

/// Creates or truncates a file and writes `content`.
pub fn write_file(path: impl AsRef<Path>, content: &[u8]) -> Call {
    write_all(open(path, OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC, 0o644)?, content)
}

/// readlink(2).
pub fn readlink(path: impl AsRef<Path>) -> Call<OsString> {
    Ok(OsString::from_vec(fs::readlink(path.as_ref(), Vec::new())?.into_bytes()))
}

/// access(2) with R_OK=4, W_OK=2, X_OK=1 as in C, by the real ids.
pub fn access(path: impl AsRef<Path>, rights: u32) -> Call {
    fs::access(path.as_ref(), fs::Access::from_bits_retain(rights))
}

/// A pair of times for utimensat(2), each (seconds, nanoseconds).
pub fn times(atime: (i64, i64), mtime: (i64, i64)) -> Timestamps {
    let spec = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec: tv_nsec as _ };
    Timestamps { last_access: spec(atime), last_modification: spec(mtime) }
}

/// utimensat(2) following links.
pub fn utimens(path: impl AsRef<Path>, times: &Timestamps) -> Call {
    fs::utimensat(CWD, path.as_ref(), times, AtFlags::empty())
}

/// (seconds, nanoseconds) of the last access.
pub fn atime(stat: &Stat) -> (i64, i64) {
    (stat.st_atime, stat.st_atime_nsec as i64)
}

/// (seconds, nanoseconds) of the last change of content.
pub fn mtime(stat: &Stat) -> (i64, i64) {
    (stat.st_mtime, stat.st_mtime_nsec as i64)
}

/// (seconds, nanoseconds) of the last change of the inode.
pub fn ctime(stat: &Stat) -> (i64, i64) {
    (stat.st_ctime, stat.st_ctime_nsec as i64)
}

/// Sleeps longer than one tick of the kernel's coarse clock, so that times differ.
pub fn tick() {
    std::thread::sleep(Duration::from_millis(12));
}

/// lgetxattr(2) with a buffer that always suffices.
pub fn getxattr(path: impl AsRef<Path>, name: &str) -> Call<Vec<u8>> {
    let mut value = vec![0; 65_536];
    let len = fs::lgetxattr(path.as_ref(), name, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

/// lsetxattr(2).
pub fn setxattr(path: impl AsRef<Path>, name: &str, value: &[u8], flags: XattrFlags) -> Call {
    fs::lsetxattr(path.as_ref(), name, value, flags)
}

/// lremovexattr(2).
pub fn removexattr(path: impl AsRef<Path>, name: &str) -> Call {
    fs::lremovexattr(path.as_ref(), name)
}

/// llistxattr(2): the names, sorted.
pub fn listxattr(path: impl AsRef<Path>) -> Call<Vec<String>> {
    let mut buffer = vec![0; 65_536];
    let len = fs::llistxattr(path.as_ref(), &mut buffer[..])?;
    let names = buffer[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut names: Vec<String> = names.map(|n| String::from_utf8_lossy(n).into_owned()).collect();
    names.sort();
    Ok(names)
}

/// The names in a directory, sorted, without "." and "..".
pub fn names(dir: impl AsRef<Path>) -> Call<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in fs::Dir::new(open(dir, OFlags::RDONLY | OFlags::DIRECTORY, 0)?)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name));
        }
    }
    names.sort();
    Ok(names)
}

/// Which of the two families of record locks a call means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockOwner {
    /// Classic POSIX locks, owned by the process.
    Process,
    /// Open file description locks.
    Description,
}

/// The kind of a record lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
    /// No lock.
    Unlock,
}

/// A range of a record lock; `len` 0 reaches to the end of every possible file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRange {
    /// First byte.
    pub start: i64,
    /// Number of bytes.
    pub len: i64,
}

fn flock_record(kind: LockKind, range: LockRange) -> libc::flock {
    let l_type = match kind {
        LockKind::Read => libc::F_RDLCK,
        LockKind::Write => libc::F_WRLCK,
        LockKind::Unlock => libc::F_UNLCK,
    };
    libc::flock {
        l_type: l_type as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: range.start,
        l_len: range.len,
        l_pid: 0,
    }
}

/// fcntl(2) F_SETLK or F_SETLKW (and the OFD forms).
pub fn lock_record(
    fd: impl AsFd,
    owner: LockOwner,
    kind: LockKind,
    range: LockRange,
    wait: bool,
) -> Call {
    let record = flock_record(kind, range);
    let command = match (owner, wait) {
        (LockOwner::Process, false) => libc::F_SETLK,
        (LockOwner::Process, true) => libc::F_SETLKW,
        (LockOwner::Description, false) => libc::F_OFD_SETLK,
        (LockOwner::Description, true) => libc::F_OFD_SETLKW,
    };
    // SAFETY: the descriptor is open and `record` outlives the call.
    checked(unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), command, &raw const record) }).map(drop)
}

/// fcntl(2) F_GETLK: who stands in the way of such a lock, as (kind, range, pid); None if nobody.
pub fn query_record(
    fd: impl AsFd,
    owner: LockOwner,
    kind: LockKind,
    range: LockRange,
) -> Call<Option<(LockKind, LockRange, i32)>> {
    let mut record = flock_record(kind, range);
    let command = match owner {
        LockOwner::Process => libc::F_GETLK,
        LockOwner::Description => libc::F_OFD_GETLK,
    };
    // SAFETY: the descriptor is open and `record` outlives the call, which may write to it.
    checked(unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), command, &raw mut record) })?;
    let kind = match i32::from(record.l_type) {
        libc::F_UNLCK => return Ok(None),
        libc::F_RDLCK => LockKind::Read,
        _ => LockKind::Write,
    };
    Ok(Some((kind, LockRange { start: record.l_start, len: record.l_len }, record.l_pid)))
}

/// A directory stream of the C library, for telldir and seekdir as programs use them.
pub struct DirStream(*mut libc::DIR);

impl DirStream {
    /// opendir(3).
    pub fn open(path: impl AsRef<Path>) -> Call<Self> {
        let path = c_path(path.as_ref())?;
        // SAFETY: `path` is a valid C string for the length of the call.
        let stream = unsafe { libc::opendir(path.as_ptr()) };
        if stream.is_null() { Err(last_errno()) } else { Ok(Self(stream)) }
    }

    /// The next name, or None at the end.
    pub fn read(&mut self) -> Call<Option<OsString>> {
        Ok(self.read_entry()?.map(|(name, _, _)| name))
    }

    /// The next entry as (name, inode number, d_type), or None at the end.
    pub fn read_entry(&mut self) -> Call<Option<(OsString, u64, u8)>> {
        // SAFETY: errno is a thread local of the C library; the stream is open and only used here.
        let entry = unsafe {
            *libc::__errno_location() = 0;
            libc::readdir64(self.0)
        };
        if entry.is_null() {
            let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
            return if errno == 0 { Ok(None) } else { Err(Errno::from_raw_os_error(errno)) };
        }
        // SAFETY: readdir returned a record that stays valid until the next call on the stream,
        // with a name that ends in a zero byte.
        let (name, ino, kind) = unsafe {
            let name = std::ffi::CStr::from_ptr((&raw const (*entry).d_name).cast());
            (OsString::from_vec(name.to_bytes().to_vec()), (*entry).d_ino, (*entry).d_type)
        };
        Ok(Some((name, ino, kind)))
    }

    /// telldir(3).
    pub fn tell(&mut self) -> i64 {
        // SAFETY: the stream is open.
        unsafe { libc::telldir(self.0) }
    }

    /// seekdir(3).
    pub fn seek(&mut self, position: i64) {
        // SAFETY: the stream is open.
        unsafe { libc::seekdir(self.0, position) }
    }

    /// rewinddir(3).
    pub fn rewind(&mut self) {
        // SAFETY: the stream is open.
        unsafe { libc::rewinddir(self.0) }
    }
}

impl Drop for DirStream {
    fn drop(&mut self) {
        // SAFETY: the stream is open and not used afterwards.
        unsafe { libc::closedir(self.0) };
    }
}

/// A memory mapping of a file.
pub struct Map {
    start: *mut u8,
    len: usize,
}

// SAFETY: the mapping is owned; all access goes through volatile copies that tolerate change from
// outside, which a shared mapping must tolerate anyway.
unsafe impl Send for Map {}

impl Map {
    /// mmap(2) of `len` bytes from `offset`, writable or not, shared or private.
    pub fn new(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        writable: bool,
        shared: bool,
    ) -> Call<Self> {
        use rustix::mm::{MapFlags, ProtFlags};
        let mut protection = ProtFlags::READ;
        if writable {
            protection |= ProtFlags::WRITE;
        }
        let flags = if shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
        // SAFETY: the kernel chooses a fresh range, nothing existing is replaced.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, flags, fd, offset)? };
        Ok(Self { start: start.cast(), len })
    }

    /// Loads a byte of every page.
    pub fn load(&self) {
        (0..self.len).step_by(4096).for_each(|at| drop(self.read(at, 1)));
    }

    /// Copies `len` bytes at `at` out of the mapping; beyond the end of the file this raises SIGBUS.
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len, "read beyond the mapping");
        // SAFETY: in bounds by the assertion; volatile because others may change the bytes.
        (at..at + len).map(|i| unsafe { self.start.add(i).read_volatile() }).collect()
    }

    /// Copies `bytes` into the mapping at `at`.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len, "write beyond the mapping");
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: in bounds by the assertion.
            unsafe { self.start.add(at + i).write_volatile(*byte) };
        }
    }

    /// msync(2) with MS_SYNC over the whole mapping.
    pub fn sync(&self) -> Call {
        // SAFETY: the range is the mapping's own.
        unsafe { rustix::mm::msync(self.start.cast(), self.len, rustix::mm::MsyncFlags::SYNC) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping's own and not used afterwards. An error can only mean
        // a wrong range, which `new` excludes.
        let _ = unsafe { rustix::mm::munmap(self.start.cast(), self.len) };
    }
}

/// A buffer whose start is aligned for O_DIRECT (4096 bytes).
pub struct AlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    /// `len` zero bytes.
    pub fn new(len: usize) -> Self {
        let bytes = vec![0; len + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        Self { bytes, start, len }
    }

    /// The aligned bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// The aligned bytes, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// True for the superuser (effective id).
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Room for a batch of inotify events.
pub fn inotify_buffer() -> [MaybeUninit<u8>; 4096] {
    [MaybeUninit::uninit(); 4096]
}
