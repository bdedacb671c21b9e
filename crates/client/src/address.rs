//! Where the sockets of a mount's daemon are, and how to find them from a file on the mount.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, StatxFlags};

use crate::mountinfo::{self, Mount};

/// The longest path that a Unix socket can have (`sun_path` of unix(7), less its final NUL).
pub const SOCKET_PATH_MAX: usize = 107;
/// How the name of the socket for clients ends, behind the mount's [`mount_id`].
pub const CLIENTS: &str = "clients";

/// The name of a mount in the runtime directory: a hash of the absolute path of its mount point.
#[must_use]
pub fn mount_id(mountpoint: &Path) -> String {
    let hash = xxhash_rust::xxh3::xxh3_64(mountpoint.as_os_str().as_encoded_bytes());
    format!("{hash:016x}")
}

/// Where the sockets of a user's daemons are: `FOREBAY_RUNTIME_DIR` if set, `/run/forebay` for
/// root, else `forebay` in `XDG_RUNTIME_DIR`, else `/tmp/forebay-UID`.
#[must_use]
pub fn runtime_dir(uid: u32) -> PathBuf {
    let own = uid == rustix::process::geteuid().as_raw();
    let variable = |name| std::env::var_os(name).filter(|value| own && !value.is_empty());
    if let Some(dir) = std::env::var_os("FOREBAY_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        return dir.into();
    }
    if uid == 0 {
        return "/run/forebay".into();
    }
    match variable("XDG_RUNTIME_DIR") {
        Some(dir) => Path::new(&dir).join("forebay"),
        None if own => format!("/tmp/forebay-{uid}").into(),
        None => {
            let dir = PathBuf::from(format!("/run/user/{uid}/forebay"));
            if dir.exists() { dir } else { format!("/tmp/forebay-{uid}").into() }
        }
    }
}

/// Where the sockets of a user's daemons may be, whatever the variables were when they were started;
/// the likeliest first. What others may have put there is left out.
#[must_use]
pub fn runtime_dirs(uid: u32) -> Vec<PathBuf> {
    let mut dirs = vec![runtime_dir(uid)];
    if uid != 0 {
        let owner = |dir: &PathBuf| fs::symlink_metadata(dir).ok().map(|found| found.uid());
        dirs.retain(|dir| owner(dir).is_none_or(|owner| owner == uid || owner == 0));
        let usual = [format!("/run/user/{uid}/forebay"), format!("/tmp/forebay-{uid}")];
        dirs.extend(usual.into_iter().map(PathBuf::from).filter(|dir| owner(dir) == Some(uid)));
    }
    dirs
}

/// Where the sockets of a mount's daemon may be, the likeliest first.
#[must_use]
pub fn dirs_of(mount: &Mount) -> Vec<PathBuf> {
    let euid = rustix::process::geteuid().as_raw();
    let mut dirs: Vec<PathBuf> = Vec::new();
    for dir in [mount.user_id().unwrap_or(0), euid, 0].into_iter().flat_map(runtime_dirs) {
        if !dirs.contains(&dir) {
            dirs.push(dir);
        }
    }
    dirs
}

/// The names that a mount may have there. A bind mount has another path but the same device as the
/// mount that the daemon made.
pub fn ids_of<'a>(mount: &'a Mount, mounts: &'a [Mount]) -> impl Iterator<Item = String> + 'a {
    let same = |other: &&Mount| other.is_forebay() && other.device == mount.device;
    [mount].into_iter().chain(mounts.iter().filter(same)).map(|it| mount_id(&it.mountpoint))
}

/// The mount that an open file lies on, as this process sees it: found without asking the mount's
/// daemon. Nothing if it is none of ours.
pub fn mount_of(file: impl AsFd) -> io::Result<Option<(Mount, Vec<Mount>)>> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(file, "", flags, StatxFlags::TYPE)?;
    let device = format!("{}:{}", found.stx_dev_major, found.stx_dev_minor);
    let mounts = mountinfo::read()?;
    let ours = |mount: &&Mount| mount.is_forebay() && mount.device == device;
    Ok(mounts.iter().find(ours).cloned().map(|mount| (mount, mounts)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_id_when_paths_differ_then_ids_differ_and_are_stable() {
        assert_eq!(mount_id(Path::new("/mnt/a")), mount_id(Path::new("/mnt/a")));
        assert_ne!(mount_id(Path::new("/mnt/a")), mount_id(Path::new("/mnt/b")));
        assert_eq!(mount_id(Path::new("/mnt/a")).len(), 16);
    }

    #[test]
    fn mount_of_a_file_elsewhere_then_nothing() {
        assert_eq!(mount_of(tempfile::tempfile().unwrap()).unwrap(), None);
    }

    #[test]
    fn ids_of_a_bind_mount_then_that_of_the_mount_itself_is_among_them() {
        let mounts = mountinfo::parse(
            b"61 22 0:52 / /mnt/a rw - fuse.forebay /slow rw\n\
              62 22 0:52 /in /mnt/b rw - fuse.forebay /slow rw\n\
              63 22 0:53 / /mnt/c rw - fuse.forebay /slow rw\n",
        );
        let ids: Vec<String> = ids_of(&mounts[1], &mounts).collect();
        assert!(ids.contains(&mount_id(Path::new("/mnt/a"))));
        assert!(!ids.contains(&mount_id(Path::new("/mnt/c"))));
    }
}
