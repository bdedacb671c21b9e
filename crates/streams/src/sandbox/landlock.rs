//! Landlock: of the file system a process sees what it needs, and of the network nothing.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::number;

const EXECUTE: u64 = 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const CREATE_VERSION: libc::c_long = 1;
const RULE_PATH_BENEATH: libc::c_long = 1;
/// Where programs and their libraries are.
const LIBRARIES: [&str; 4] = ["/usr", "/lib", "/lib64", "/nix/store"];
/// What the dynamic linker and every C library look at.
const FILES: [&str; 4] = ["/etc/ld.so.cache", "/dev/null", "/dev/urandom", "/etc/localtime"];

/// `struct landlock_ruleset_attr`.
#[repr(C)]
struct Attributes {
    files: u64,
    network: u64,
    scoped: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct Beneath {
    allowed: u64,
    parent: i32,
}

/// The version of Landlock that the kernel has; 0 for none.
pub(super) fn abi() -> u32 {
    // SAFETY: no memory is passed.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<Attributes>(),
            0usize,
            CREATE_VERSION,
        )
    };
    u32::try_from(version).unwrap_or(0)
}

/// What a process may still do.
pub(super) struct Ruleset(OwnedFd);

impl Ruleset {
    /// To run a program that reads one file; `None` if the kernel has no Landlock.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(program: &Path, input: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        let abi = abi();
        if abi == 0 {
            return Ok(None);
        }
        // Rights to files came with versions 1, 2 (another directory), 3 (truncate) and 5 (devices).
        let rights = match abi {
            1 => 13,
            2 => 14,
            3 | 4 => 15,
            _ => 16,
        };
        let attributes = Attributes {
            files: (1 << rights) - 1,
            // Bind and connect.
            network: 0b11,
            // Signals, and sockets without a name in the file system.
            scoped: 0b11,
        };
        let bytes: usize = match abi {
            1..=3 => 8,
            4 | 5 => 16,
            _ => 24,
        };
        // SAFETY: the kernel reads `bytes` of the attributes, which are longer.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_landlock_create_ruleset,
                &raw const attributes,
                bytes,
                0 as libc::c_long,
            )
        };
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0);
        let fd = fd.ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the kernel has just given it to us.
        let ruleset = Self(unsafe { OwnedFd::from_raw_fd(fd) });
        for library in LIBRARIES {
            ruleset.allow_path(Path::new(library), EXECUTE | READ_FILE | READ_DIR)?;
        }
        for file in FILES {
            ruleset.allow_path(Path::new(file), READ_FILE)?;
        }
        ruleset.allow_path(program, EXECUTE | READ_FILE)?;
        ruleset.allow(input, READ_FILE)?;
        Ok(Some(ruleset))
    }

    /// Allows what is there.
    fn allow_path(&self, path: &Path, rights: u64) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => {
                let file = File::from(fd);
                let directory = file.metadata().is_ok_and(|found| found.is_dir());
                self.allow(file.as_fd(), if directory { rights } else { rights & !READ_DIR })
            }
            Err(_) => Ok(()),
        }
    }

    fn allow(&self, fd: BorrowedFd<'_>, allowed: u64) -> io::Result<()> {
        let beneath = Beneath { allowed, parent: fd.as_raw_fd() };
        // SAFETY: the kernel reads the structure, which outlives the call.
        let done = unsafe {
            libc::syscall(
                libc::SYS_landlock_add_rule,
                number(&self.0),
                RULE_PATH_BENEATH,
                &raw const beneath,
                0 as libc::c_long,
            )
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// This process may do no more than that from now on. One system call.
    pub fn enter(&self) -> io::Result<()> {
        // SAFETY: no memory is passed.
        let done = unsafe {
            libc::syscall(libc::SYS_landlock_restrict_self, number(&self.0), 0 as libc::c_long)
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}
