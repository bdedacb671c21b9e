//! What a client has open, by what the kernel says of it. The daemon takes no descriptor from a
//! client: to close one may take for ever, if it is of a file system that the client serves itself. (On
//! kernels before 6.16 the thread for clients closes what it was sent all the same.)

use std::fs;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use forebay_client::{mountinfo, socket};

/// How much of a list is read: a process may have as many mounts as it likes.
const PROC_MAX: u64 = 4 << 20;

/// A file of the mount, as a client has it open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its inode.
    pub inode: u64,
    /// Whether also for writing.
    pub writes: bool,
}

impl Opened {
    /// Whether both are of one file.
    pub fn is_of_file(&self, other: &Self) -> bool {
        self.inode == other.inode
    }
}

/// A process at the other end of a socket, which no other one is taken for.
#[derive(Debug)]
pub struct Peer {
    /// Its user.
    pub user: u32,
    pid: i32,
    handle: OwnedFd,
}

impl Peer {
    /// Who has connected. Nothing if it is gone already, or not visible from here.
    pub fn of(socket: &OwnedFd) -> Option<Self> {
        let (user, number) = socket::peer(socket).ok()?;
        let pid = Pid::from_raw(number)?;
        let handle = handle_of(socket).or_else(|| handle_by_number(pid, user))?;
        let peer = Self { user, pid: number, handle };
        peer.lives().then_some(peer)
    }

    /// What becomes readable when it ends.
    pub fn handle(&self) -> &OwnedFd {
        &self.handle
    }

    fn lives(&self) -> bool {
        let mut polled = [PollFd::new(&self.handle, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().is_empty()
    }

    /// What it has open under a number, if that is a file on this device and it may read it.
    pub fn opened(&self, descriptor: u32, device: &str) -> Result<Opened, String> {
        let read = |name: &str| {
            let path = format!("/proc/{}/{name}", self.pid);
            let mut bytes = Vec::new();
            let file = fs::File::open(&path);
            let read = file.and_then(|file| file.take(PROC_MAX).read_to_end(&mut bytes));
            read.map(|_| bytes).map_err(|error| format!("{path}: {error}"))
        };
        let info = read(&format!("fdinfo/{descriptor}"))?;
        let mounts = read("mountinfo")?;
        // Until here nobody else can have got its number.
        if !self.lives() {
            return Err("the process has ended".into());
        }
        let info = Info::parse(&String::from_utf8_lossy(&info)).ok_or("no such descriptor")?;
        let mount = mountinfo::device_of(&mounts, info.mount);
        if mount.as_deref() != Some(device) {
            return Err("it is not open on this mount".into());
        }
        info.opened().ok_or_else(|| "it is not open for reading".into())
    }
}

/// A handle of the peer itself (Linux 6.5).
fn handle_of(socket: &OwnedFd) -> Option<OwnedFd> {
    const SO_PEERPIDFD: libc::c_int = 77;
    let (mut handle, mut len) = (-1i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: an open socket; there is room for the number.
    let code = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut handle).cast(),
            &raw mut len,
        )
    };
    // SAFETY: a new descriptor that nobody else has.
    (code == 0 && handle >= 0).then(|| unsafe { OwnedFd::from_raw_fd(handle) })
}

/// A handle of the process that has the number now, if it is the user's.
fn handle_by_number(pid: Pid, user: u32) -> Option<OwnedFd> {
    let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let same = line.split_whitespace().all(|uid| uid.parse() == Ok(user));
    same.then_some(handle)
}

/// What /proc says of an open file (proc_pid_fdinfo(5)).
#[derive(Debug, PartialEq, Eq)]
struct Info {
    flags: OFlags,
    mount: u64,
    inode: u64,
}

impl Info {
    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.trim())
        };
        let flags = u32::from_str_radix(field("flags:")?, 8).ok()?;
        Some(Self {
            flags: OFlags::from_bits_retain(flags),
            mount: field("mnt_id:")?.parse().ok()?,
            inode: field("ino:")?.parse().ok()?,
        })
    }

    /// What may be done with it. A path without rights (O_PATH) proves nothing.
    fn opened(&self) -> Option<Opened> {
        let mode = self.flags & OFlags::RWMODE;
        let reads = mode == OFlags::RDONLY || mode == OFlags::RDWR;
        let usable = reads && !self.flags.contains(OFlags::PATH);
        usable.then_some(Opened { inode: self.inode, writes: mode == OFlags::RDWR })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

    fn info(file: &fs::File) -> Info {
        let path = format!("/proc/self/fdinfo/{}", file.as_raw_fd());
        Info::parse(&fs::read_to_string(path).unwrap()).unwrap()
    }

    #[test]
    fn files_open_in_several_ways_then_only_what_may_be_read_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "x").unwrap();
        let inode = fs::metadata(&path).unwrap().ino();
        let mut options = fs::File::options();
        let read = options.read(true).open(&path).unwrap();
        assert_eq!(info(&read).opened(), Some(Opened { inode, writes: false }));
        let both = options.write(true).open(&path).unwrap();
        assert_eq!(info(&both).opened(), Some(Opened { inode, writes: true }));
        let write = options.read(false).open(&path).unwrap();
        assert_eq!(info(&write).opened(), None);
        let named = fs::File::options().read(true).custom_flags(libc::O_PATH).open(&path).unwrap();
        assert_eq!(info(&named).opened(), None);
    }

    #[test]
    fn info_that_is_incomplete_then_nothing() {
        assert_eq!(Info::parse("pos:\t0\nflags:\t02\nmnt_id:\t24\n"), None);
        assert_eq!(Info::parse("flags:\t9\nmnt_id:\t24\nino:\t1\n"), None);
        assert_eq!(Info::parse(""), None);
    }
}
