//! A kernel that passes reads, writes and mappings of open files to their objects without the daemon,
//! and what programs do through it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use forebay_node::{Ino, Kernel, Node, NodeError, OpenMode, Passthrough};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

use super::{CONTEXT, Rig};

/// Keeps open what is registered.
#[derive(Default)]
pub struct Passing {
    registered: Mutex<Vec<Option<OwnedFd>>>,
}

impl Kernel for Passing {
    fn passthrough(&self) -> bool {
        true
    }

    fn register(&self, fd: BorrowedFd<'_>) -> io::Result<u32> {
        let kept = fd.try_clone_to_owned()?;
        let mut registered = self.registered.lock().unwrap();
        registered.push(Some(kept));
        Ok(u32::try_from(registered.len() - 1).unwrap())
    }

    fn unregister(&self, id: u32) {
        self.registered.lock().unwrap()[id as usize] = None;
    }

    fn forget_inode(&self, _: u64) {}
    fn forget_attributes(&self, _: u64) {}
    fn forget_entry(&self, _: u64, _: &[u8]) {}
}

/// A rig whose files are passed through, for reading and writing.
pub struct PassingRig {
    pub rig: Rig,
    kernel: Arc<Passing>,
}

impl std::ops::Deref for PassingRig {
    type Target = Rig;
    fn deref(&self) -> &Rig {
        &self.rig
    }
}

impl PassingRig {
    /// Over a rig that is not started, or was not used yet.
    pub fn over(rig: Rig) -> Self {
        Self::passing(rig, Passthrough::ReadWrite)
    }

    /// The same, with another kind of passthrough.
    pub fn passing(mut rig: Rig, how: Passthrough) -> Self {
        if let Some(node) = rig.node.take() {
            node.stop(std::time::Duration::from_secs(5));
        }
        rig.config.passthrough = how;
        rig.start();
        let kernel = Arc::new(Passing::default());
        rig.node().attach_kernel(kernel.clone());
        PassingRig { rig, kernel }
    }

    /// Opens a file as a program does.
    pub fn program(&self, name: &str, flags: i32) -> Program {
        let open = || self.node().open(&CONTEXT, self.ino(name), flags);
        let opened = match open() {
            // The kernel looks the name up again then, and opens what it finds.
            Err(NodeError::Posix(Errno::STALE)) => open().unwrap(),
            opened => opened.unwrap(),
        };
        let id = match opened.mode {
            OpenMode::Passthrough { id } | OpenMode::PassthroughDirect { id } => Some(id),
            OpenMode::Cached { .. } | OpenMode::Direct => None,
        };
        let direct = matches!(opened.mode, OpenMode::PassthroughDirect { .. });
        let object = id.map(|id| {
            let registered = self.kernel.registered.lock().unwrap();
            let kept = registered[id as usize].as_ref().unwrap();
            let write = flags & libc::O_ACCMODE != libc::O_RDONLY;
            // The same file, whatever has its name now.
            let path = format!("/proc/self/fd/{}", kept.as_raw_fd());
            File::options().read(true).write(write).open(path).unwrap()
        });
        Program { node: self.node().clone(), ino: self.ino(name), fh: opened.fh, object, direct }
    }
}

/// A program with a file open. The kernel closes it when it is dropped.
pub struct Program {
    node: Arc<Node>,
    pub ino: Ino,
    pub fh: u64,
    object: Option<File>,
    direct: bool,
}

impl Program {
    /// Whether the kernel reads and writes by itself.
    pub fn passes(&self) -> bool {
        self.object.is_some() && !self.direct
    }

    /// Whether mappings go to the object.
    pub fn maps_object(&self) -> bool {
        self.object.is_some()
    }

    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        let read = match &self.object {
            Some(object) if !self.direct => object.read_at(&mut data, at).unwrap(),
            _ => self.node.read(&CONTEXT, self.fh, at, &mut data).unwrap(),
        };
        data.truncate(read);
        data
    }

    pub fn write(&self, at: u64, data: &[u8]) {
        match &self.object {
            Some(object) if !self.direct => object.write_all_at(data, at).unwrap(),
            _ => assert_eq!(self.node.write(&CONTEXT, self.fh, at, data).unwrap(), data.len()),
        }
    }

    pub fn fsync(&self) {
        self.node.fsync(&CONTEXT, self.fh, false).unwrap();
    }

    /// Maps the first bytes, shared and to be stored into.
    pub fn map(&self, len: usize) -> Map {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let object = self.object.as_ref().unwrap();
        // SAFETY: the kernel chooses a fresh range, nothing existing is replaced.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, object, 0).unwrap() };
        Map { start: start.cast(), len }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The kernel has let go of the object when it tells.
        self.object.take();
        self.node.release(self.fh);
    }
}

/// A mapping that programs store into.
pub struct Map {
    start: *mut u8,
    pub len: usize,
}

impl Map {
    pub fn load(&self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: in bounds by the assertion.
        unsafe { self.start.add(at).read_volatile() }
    }

    /// Loads every page, so that none needs a fault any more where loads map for stores as well.
    pub fn load_all(&self) {
        for at in (0..self.len).step_by(4096) {
            self.load(at);
        }
    }

    pub fn store(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        for (index, byte) in bytes.iter().enumerate() {
            // SAFETY: in bounds by the assertion.
            unsafe { self.start.add(at + index).write_volatile(*byte) };
        }
    }

    pub fn sync(&self) {
        // SAFETY: the range is the mapping's own.
        unsafe { rustix::mm::msync(self.start.cast(), self.len, MsyncFlags::SYNC).unwrap() };
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping's own and not used afterwards.
        unsafe { rustix::mm::munmap(self.start.cast(), self.len).unwrap() };
    }
}
