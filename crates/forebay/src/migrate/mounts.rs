//! Mounts that a task has a copy of in its mount namespace. Where mounts are not shared, as in many
//! containers, what is unmounted on the machine stays there, and its daemon serves it on for as long as
//! the task runs: the keeper unmounts it there, too.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags};

use super::tree::parent_of;
use crate::mountinfo::{self, Mount};

/// A mount that a task is to have in the place of the one that it knows, in a mount namespace of its own.
#[derive(Default)]
pub struct Instead {
    bind: Option<(CString, CString)>,
    /// Whether what was mounted there is let go of, so that it can be unmounted on the machine.
    unmounts: bool,
}

impl Instead {
    /// Where the task sees it, and where it is. Nothing changes nothing.
    pub fn of(mount: Option<(&Path, &Path)>) -> io::Result<Self> {
        let Some((seen, real)) = mount else { return Ok(Self::default()) };
        let text = |path: &Path| {
            let text = CString::new(path.as_os_str().as_bytes());
            text.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
        };
        let mounts = mountinfo::read().unwrap_or_default();
        let ours = mountinfo::at(&mounts, seen).is_some_and(Mount::is_forebay);
        // What is mounted below it would be lost with it.
        let unmounts = ours && !real.starts_with(seen);
        Ok(Self { bind: Some((text(seen)?, text(real)?)), unmounts })
    }

    /// Puts it there; system calls only.
    pub fn put(&self) -> bool {
        let Some((seen, real)) = &self.bind else { return true };
        let (at, null) = (seen.as_ptr(), std::ptr::null());
        let lazy = libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW;
        // SAFETY: the strings end with NUL and outlive the calls.
        unsafe {
            (!self.unmounts || libc::umount2(at, lazy) == 0)
                && libc::mount(real.as_ptr(), at, null, libc::MS_BIND, null.cast()) == 0
        }
    }
}

/// Tells of each change of this process's mounts, until nobody listens any more.
pub fn tell_of_changes(mut tell: impl FnMut() -> bool) -> io::Result<()> {
    let list = File::open("/proc/self/mountinfo")?;
    loop {
        let mut polled = [PollFd::new(&list, PollFlags::PRI)];
        match rustix::event::poll(&mut polled, None) {
            Ok(_) if !tell() => return Ok(()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Unmounts in the namespace of a child of this process what is not mounted here any more; but not the
/// task's own mount, at `own`, nor what it has in use.
pub fn let_go(init: i32, own: Option<&Path>) -> io::Result<()> {
    let namespace = File::open(format!("/proc/{init}/ns/mnt"))?;
    let there = mountinfo::parse(&fs::read(format!("/proc/{init}/mountinfo"))?);
    // What was opened is the child's: its number is nobody else's until it was waited for.
    if parent_of(init) != Some(std::process::id()) {
        return Ok(());
    }
    let gone = gone(&mountinfo::read()?, &there, own);
    if gone.is_empty() {
        return Ok(());
    }
    let paths: Vec<CString> =
        gone.iter().filter_map(|path| CString::new(path.as_os_str().as_bytes()).ok()).collect();
    // A thread of its own, which stays in that namespace until it ends.
    std::thread::scope(|scope| {
        let there = scope.spawn(|| {
            // SAFETY: system calls on a descriptor that is open and strings that end with NUL.
            unsafe {
                if libc::unshare(libc::CLONE_FS) != 0
                    || libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNS) != 0
                {
                    return Err(io::Error::last_os_error());
                }
                for path in &paths {
                    // What is in use stays.
                    libc::umount2(path.as_ptr(), libc::UMOUNT_NOFOLLOW);
                }
            }
            Ok(())
        });
        there.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    })
}

/// Mount points of Forebay that are there and not here, the last one first. What another mount hides
/// can't be reached.
fn gone(here: &[Mount], there: &[Mount], own: Option<&Path>) -> Vec<PathBuf> {
    let ours = |mount: &&Mount| mount.is_forebay();
    let here: BTreeSet<&str> = here.iter().filter(ours).map(|mount| &mount.device[..]).collect();
    let left = there.iter().filter(ours).filter(|mount| {
        !here.contains(&mount.device[..])
            && own != Some(&mount.mountpoint)
            && mountinfo::at(there, &mount.mountpoint).is_some_and(|top| top == *mount)
    });
    left.rev().map(|mount| mount.mountpoint.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(at: &str, device: &str, kind: &str) -> Mount {
        let (device, kind) = (device.into(), kind.into());
        Mount { mountpoint: at.into(), device, kind, ..Mount::default() }
    }

    #[test]
    fn mounts_when_gone_here_then_named_last_first_but_for_the_own_one_and_hidden_ones() {
        const OURS: &str = mountinfo::FILE_SYSTEM_TYPE;
        let here = [mount("/", "8:1", "ext4"), mount("/a", "0:1", OURS)];
        let there = [
            mount("/", "8:1", "ext4"),
            mount("/a", "0:1", OURS),
            mount("/b", "0:2", OURS),
            mount("/b/in", "0:3", OURS),
            mount("/t", "0:4", "tmpfs"),
            mount("/own", "0:5", OURS),
            mount("/hidden", "0:6", OURS),
            mount("/hidden", "0:7", "tmpfs"),
        ];
        let found = gone(&here, &there, Some(Path::new("/own")));
        assert_eq!(found, [PathBuf::from("/b/in"), PathBuf::from("/b")]);
        assert!(gone(&there, &there, None).is_empty());
    }
}
