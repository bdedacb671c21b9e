//! A process that sends notices to the kernel.
//!
//! A notice may wait in the kernel for a lock whose holder waits for an answer of the daemon, and
//! nothing ends such a wait: a daemon that is killed meanwhile stays, as a process that can't end, and
//! with it the locks of its tiers, so that no other daemon can take its place and answer. So notices are
//! sent by a process of their own, which has nothing but the device. Where no other daemon comes, it
//! ends the connection when its daemon is gone, or who waits would wait for ever.

use std::fs::{self, File};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::descriptors;
use crate::error::Error;

/// The longest notice: a name of 255 bytes, and what comes before it.
const LONGEST: usize = 4096;
/// Where the kernel lists the connections.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// For a notice that is about to end when its daemon does.
const GRACE: Duration = Duration::from_secs(1);

/// Starts one for a connection; where notices are to be sent to. `kept`: another daemon takes the place
/// of this one when it dies.
///
/// # Errors
/// When there can be no process or no socket.
pub fn start(device: BorrowedFd<'_>, mountpoint: &Path, kept: bool) -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (ours, theirs) = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("forebay").arg("notices").arg(mountpoint);
    if kept {
        command.arg("--kept");
    }
    let device = device.try_clone_to_owned()?;
    command.stdin(Stdio::from(theirs)).stdout(Stdio::from(device)).stderr(Stdio::null());
    let mut child = command.current_dir("/").spawn()?;
    // It ends with this process, or before it, and somebody has to take note of that.
    thread::Builder::new().name("notices".into()).spawn(move || drop(child.wait()))?;
    Ok(ours)
}

/// Sends what comes by standard input to the device at standard output, until the daemon is gone.
///
/// # Errors
/// When this was not started by a daemon.
pub fn run(mountpoint: &Path, kept: bool) -> Result<(), Error> {
    descriptors::name_process(c"forebay-notices");
    let socket = descriptors::take_stdin().map_err(Error::io("notices"))?;
    let device = rustix::io::fcntl_dupfd_cloexec(io::stdout(), 3)
        .map_err(|error| Error::io("the connection")(error.into()))?;
    let null = File::options().write(true).open("/dev/null").map_err(Error::io("/dev/null"))?;
    rustix::stdio::dup2_stdout(&null).map_err(|error| Error::io("/dev/null")(error.into()))?;
    // What ends a session or a service is meant for the daemon, with which this one ends.
    let _ = rustix::process::setsid();
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGPIPE] {
        // SAFETY: a disposition of this process, which has one thread.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    if !kept {
        let connection = connection_of(mountpoint);
        let socket = socket.try_clone().map_err(Error::io("notices"))?;
        let watch = move || end_with_daemon(&socket, connection);
        thread::Builder::new().spawn(watch).map_err(Error::io("starting a thread"))?;
    }
    let mut notice = [0; LONGEST];
    loop {
        let length = match rustix::net::recv(&socket, &mut notice, RecvFlags::empty()) {
            Ok((0, _)) => return Ok(()),
            Ok((length, _)) => length,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return Ok(()),
        };
        let errno = send(&device, &notice[..length]);
        if rustix::net::send(&socket, &errno.to_ne_bytes(), SendFlags::NOSIGNAL).is_err() {
            return Ok(());
        }
    }
}

fn send(device: &OwnedFd, notice: &[u8]) -> i32 {
    loop {
        match rustix::io::write(device, notice) {
            Ok(_) => return 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return error.raw_os_error(),
        }
    }
}

/// Ends the connection and this process when the daemon is gone, also while a notice waits.
fn end_with_daemon(socket: &OwnedFd, connection: Option<String>) {
    loop {
        let mut polled = [PollFd::new(socket, PollFlags::RDHUP)];
        let polled = poll(&mut polled, None).map(|_| polled[0].revents());
        if polled.is_ok_and(|events| events.intersects(PollFlags::HUP | PollFlags::RDHUP)) {
            break;
        }
    }
    thread::sleep(GRACE);
    if let Some(connection) = connection {
        // Without the right to it there is nothing to be done.
        let _ = abort(&connection);
    }
    std::process::exit(0);
}

/// The number of the connection of a mount, which itself must not be touched.
fn connection_of(mountpoint: &Path) -> Option<String> {
    let mounts = crate::mountinfo::read().ok()?;
    let (_, minor) = crate::mountinfo::at(&mounts, mountpoint)?.device.split_once(':')?;
    Some(minor.to_owned())
}

/// Ends a connection: whoever waits for it gets an error.
fn abort(connection: &str) -> io::Result<()> {
    let file = Path::new(CONNECTIONS).join(connection).join("abort");
    if !file.exists() {
        // Where that file system is not mounted, for this process alone.
        // SAFETY: this process uses no paths but absolute ones.
        if unsafe { libc::unshare(libc::CLONE_NEWNS) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private)?;
        mount("fusectl", CONNECTIONS, "fusectl", MountFlags::empty(), None)?;
    }
    fs::write(file, "1")
}
