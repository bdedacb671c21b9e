//! Where the socket of a mount is, and how to find it from the mount point.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_client::address::{SOCKET_PATH_MAX, dirs_of, ids_of, mount_id, runtime_dir};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use super::WirePath;
use crate::error::Error;
use crate::mountinfo::{self, Mount};

/// How long a daemon whose mount is gone is waited for.
const ENDING: Duration = Duration::from_secs(30);
/// How often it is looked whether it has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What a daemon leaves beside its socket, for those who see its mount under another path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Where it is mounted.
    pub mountpoint: WirePath,
    /// Its backing store, which is also the source of its mount.
    pub backing: WirePath,
    /// Process id of the daemon.
    pub pid: u32,
}

/// The record of a mount, if its daemon left one.
pub fn record_of(path: &Path) -> Option<Record> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// The socket of a mount, with the lock that makes sure that only one daemon serves it.
#[derive(Debug)]
pub struct Address {
    socket: PathBuf,
    record: PathBuf,
    lock: File,
    /// Whether it is still ours to remove.
    kept: bool,
}

impl Address {
    /// Takes the address for a daemon. Fails with [`Error::Locked`] while another daemon has it;
    /// what a dead one left is removed. A daemon whose mount is gone is about to end (`umount` of
    /// mount(8) does not wait for that) and is waited for, 30 seconds at most.
    pub fn claim(mountpoint: &Path, backing: &Path) -> Result<Self, Error> {
        let uid = rustix::process::geteuid().as_raw();
        let dir = runtime_dir(uid);
        make_private_dir(&dir, uid)?;
        let id = mount_id(mountpoint);
        let (socket, record) = (dir.join(format!("{id}.sock")), dir.join(format!("{id}.json")));
        if socket.as_os_str().len() > SOCKET_PATH_MAX {
            return Err(Error::Usage(format!(
                "{}: too long for a socket; set FOREBAY_RUNTIME_DIR to a shorter directory",
                socket.display()
            )));
        }
        let lock = lock_when_ended(mountpoint, &record, ENDING)?;
        let address = Self { socket, record, lock, kept: true };
        address.sign(mountpoint, backing)?;
        Ok(address)
    }

    /// Takes the address over from the daemon that had it until now, with its lock.
    pub fn inherit(mountpoint: &Path, lock: OwnedFd) -> Self {
        let dir = runtime_dir(rustix::process::geteuid().as_raw());
        let id = mount_id(mountpoint);
        let (socket, record) = (dir.join(format!("{id}.sock")), dir.join(format!("{id}.json")));
        Self { socket, record, lock: lock.into(), kept: true }
    }

    /// Notes that this process is the daemon.
    pub fn sign(&self, mountpoint: &Path, backing: &Path) -> Result<(), Error> {
        let content = Record {
            mountpoint: mountpoint.into(),
            backing: backing.into(),
            pid: std::process::id(),
        };
        let text = serde_json::to_vec(&content).map_err(io::Error::other);
        text.and_then(|text| write_all(&self.lock, &text))
            .map_err(Error::io(self.record.display().to_string()))
    }

    /// The lock, for a successor.
    pub fn lock(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }

    /// Leaves socket, record and lock to the successor, who has a copy of the lock.
    pub fn leave(mut self) {
        self.kept = false;
    }

    /// Starts to listen, in place of what a dead daemon may have left.
    pub fn listen(&self) -> Result<UnixListener, Error> {
        match fs::remove_file(&self.socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io(self.socket.display().to_string())(error));
            }
            _ => {}
        }
        UnixListener::bind(&self.socket).map_err(Error::io(self.socket.display().to_string()))
    }

    /// The path of the socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The sockets that may belong to a mount, the likeliest first.
    pub fn candidates(mount: &Mount, mounts: &[Mount]) -> Vec<PathBuf> {
        let dirs = dirs_of(mount);
        let ids: Vec<String> = ids_of(mount, mounts).collect();
        let mut found: Vec<PathBuf> = Vec::new();
        for dir in &dirs {
            found.extend(ids.iter().map(|id| dir.join(format!("{id}.sock"))));
        }
        // In another mount namespace paths and devices differ, but not the source.
        for dir in &dirs {
            found.extend(sockets_of_source(dir, mount, mounts));
        }
        let mut unique: Vec<PathBuf> = Vec::new();
        for path in found.into_iter().filter(|path| path.exists()) {
            if !unique.contains(&path) {
                unique.push(path);
            }
        }
        unique
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        // Whoever took the directory away may have had another daemon begin there: the names are its.
        if !self.kept || !is_named(&self.lock, &self.record) {
            return;
        }
        // The lock is held until the names are gone; a failure leaves a name that the next
        // daemon takes over.
        let _ = fs::remove_file(&self.socket);
        let _ = fs::remove_file(&self.record);
        let _ = rustix::fs::flock(&self.lock, FlockOperation::Unlock);
    }
}

/// The sockets in a directory whose record names the mount's source, if it is the only one. Nodes of a
/// cluster have their source in common: what is the daemon of another mount that is listed is not this
/// one's, also while this one's does not answer.
fn sockets_of_source(dir: &Path, mount: &Mount, mounts: &[Mount]) -> Option<PathBuf> {
    let of_another = |record: &Record| {
        mountinfo::at(mounts, &record.mountpoint.0)
            .is_some_and(|other| other.is_forebay() && other.device != mount.device)
    };
    let fits =
        |record: Record| record.backing.0.as_os_str() == mount.source && !of_another(&record);
    let mut matching = fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path()).filter(|path| {
        path.extension().is_some_and(|extension| extension == "json")
            && record_of(path).is_some_and(fits)
    });
    let only = matching.next()?;
    matching.next().is_none().then(|| only.with_extension("sock"))
}

/// The lock of a mount point, which a daemon holds until it has ended: as soon as it is free, if the
/// daemon has no mount there any more.
fn lock_when_ended(mountpoint: &Path, record: &Path, ending: Duration) -> Result<File, Error> {
    let begun = Instant::now();
    loop {
        if let Some(lock) = lock_file(record)? {
            return Ok(lock);
        }
        let mounts = mountinfo::read().map_err(Error::io("/proc/self/mountinfo"))?;
        let is_served = mountinfo::at(&mounts, mountpoint).is_some_and(Mount::is_forebay);
        if is_served || begun.elapsed() >= ending {
            let pid = record_of(record).map(|record| format!(" (process {})", record.pid));
            let pid = pid.unwrap_or_default();
            let place = mountpoint.display();
            return Err(Error::Locked(match is_served {
                true => format!("{place}: another daemon{pid} serves this mount point"),
                false => format!(
                    "{place}: another daemon{pid} begins or ends at this mount point; \
                     try again when it has ended"
                ),
            }));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Opens and locks a file that others may be removing; nothing if somebody else holds it.
fn lock_file(path: &Path) -> Result<Option<File>, Error> {
    let error = || Error::io(path.display().to_string());
    for _ in 0..100 {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            // Whoever may open it may lock it.
            .mode(0o600)
            .open(path)
            .map_err(error())?;
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(None);
        }
        if is_named(&file, path) {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

/// Whether an open file is the one that has a name.
fn is_named(file: &File, path: &Path) -> bool {
    let same = |named: fs::Metadata, held: fs::Metadata| {
        (named.ino(), named.dev()) == (held.ino(), held.dev())
    };
    fs::metadata(path).is_ok_and(|named| file.metadata().is_ok_and(|held| same(named, held)))
}

fn write_all(mut file: &File, text: &[u8]) -> io::Result<()> {
    use std::io::Seek;
    use std::io::Write;
    file.set_len(0)?;
    // A successor shares the position with its predecessor.
    file.rewind()?;
    file.write_all(text)
}

/// Makes the runtime directory, which must belong to the user and be closed to others: /tmp is
/// open to everybody.
pub(crate) fn make_private_dir(dir: &Path, uid: u32) -> Result<(), Error> {
    let mode = if uid == 0 { 0o755 } else { 0o700 };
    DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(dir)
        .map_err(Error::io(dir.display().to_string()))?;
    let metadata = fs::symlink_metadata(dir).map_err(Error::io(dir.display().to_string()))?;
    if !metadata.is_dir() || metadata.uid() != uid || metadata.mode() & 0o022 != 0 {
        return Err(Error::Usage(format!(
            "{}: must be a directory of user {uid} that nobody else can write; remove it or set FOREBAY_RUNTIME_DIR",
            dir.display()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_file_when_made_then_nobody_else_may_open_it() {
        let dir = tempfile::tempdir().unwrap();
        let lock = lock_file(&dir.path().join("id.json")).unwrap().unwrap();
        assert_eq!(lock.metadata().unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn lock_file_when_held_then_a_second_one_gets_nothing_until_it_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("id.json");
        let first = lock_file(&path).unwrap().unwrap();
        assert!(lock_file(&path).unwrap().is_none());
        drop(first);
        assert!(lock_file(&path).unwrap().is_some());
    }

    #[test]
    fn lock_when_a_daemon_without_a_mount_has_it_then_its_end_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("id.json");
        let ends = lock_file(&path).unwrap().unwrap();
        let wait = |ending| lock_when_ended(dir.path(), &path, ending);
        let refused = wait(Duration::from_millis(50)).unwrap_err().to_string();
        assert!(refused.contains("try again when it has ended"), "{refused}");
        std::thread::scope(|scope| {
            let next = scope.spawn(|| wait(Duration::from_secs(60)).unwrap());
            drop(ends);
            next.join().unwrap();
        });
    }

    #[test]
    fn make_private_dir_when_others_may_write_then_it_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let path = dir.path().join("forebay");
        make_private_dir(&path, uid).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(make_private_dir(&path, uid).is_err());
        assert!(make_private_dir(&path, uid + 1).is_err());
    }

    #[test]
    fn sockets_of_source_when_two_mounts_share_it_then_none_is_guessed() {
        let dir = tempfile::tempdir().unwrap();
        let mount = Mount { source: "/slow".into(), ..Mount::default() };
        let record = |name: &str| {
            let record = Record { mountpoint: name.into(), backing: "/slow".into(), pid: 1 };
            fs::write(dir.path().join(name), serde_json::to_vec(&record).unwrap()).unwrap();
        };
        record("a.json");
        assert_eq!(sockets_of_source(dir.path(), &mount, &[]), Some(dir.path().join("a.sock")));
        record("b.json");
        assert_eq!(sockets_of_source(dir.path(), &mount, &[]), None);
    }

    #[test]
    fn sockets_of_source_when_the_only_one_is_of_another_mount_that_is_listed_then_it_is_not_taken()
    {
        let dir = tempfile::tempdir().unwrap();
        let mount = |at: &str, device: &str| Mount {
            device: device.into(),
            root: "/".into(),
            mountpoint: at.into(),
            kind: mountinfo::FILE_SYSTEM_TYPE.into(),
            source: "/slow".into(),
            options: String::new(),
        };
        let (one, two) = (mount("/mnt/1", "0:41"), mount("/mnt/2", "0:42"));
        let record =
            Record { mountpoint: Path::new("/mnt/1").into(), backing: "/slow".into(), pid: 1 };
        fs::write(dir.path().join("1.json"), serde_json::to_vec(&record).unwrap()).unwrap();
        let mounts = [one.clone(), two.clone()];
        assert_eq!(sockets_of_source(dir.path(), &two, &mounts), None);
        assert_eq!(sockets_of_source(dir.path(), &one, &mounts), Some(dir.path().join("1.sock")));
        // In another mount namespace nothing is known of where it was made.
        let seen = [mount("/inside", "0:43")];
        let found = sockets_of_source(dir.path(), &seen[0], &seen);
        assert_eq!(found, Some(dir.path().join("1.sock")));
    }

    #[test]
    fn record_when_it_is_made_then_nobody_else_can_open_it_and_so_lock_it() {
        let dir = tempfile::tempdir().unwrap();
        let record = lock_file(&dir.path().join("id.json")).unwrap().unwrap();
        assert_eq!(record.metadata().unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn address_when_another_daemon_has_it_by_now_then_its_names_stay() {
        let dir = tempfile::tempdir().unwrap();
        let claim = || {
            let (socket, record) = (dir.path().join("id.sock"), dir.path().join("id.json"));
            let lock = lock_file(&record).unwrap().unwrap();
            Address { socket, record, lock, kept: true }
        };
        let first = claim();
        drop(first.listen().unwrap());
        fs::remove_file(&first.record).unwrap();
        fs::remove_file(&first.socket).unwrap();
        let second = claim();
        let _listener = second.listen().unwrap();
        drop(first);
        assert!(second.record.exists() && second.socket.exists());
        let names = [second.record.clone(), second.socket.clone()];
        drop(second);
        assert!(names.iter().all(|name| !name.exists()));
    }
}
