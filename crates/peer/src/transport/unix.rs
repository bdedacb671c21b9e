//! Unix sockets between daemons of one machine. Both sides ask the kernel who the other is: only
//! processes of the same user, or of root, are talked to.

use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::process::{Uid, geteuid};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::socket::Socket;
use super::tcp::plain;
use super::{Arrival, Listener, TimeLimits, Transport, Wire};
use crate::address::Address;
use crate::error::{Error, Result};

/// How long it is tried whether somebody still listens on a socket that is in the way.
const PROBE: Duration = Duration::from_millis(500);

/// Unix sockets.
#[derive(Clone, Debug)]
pub struct Unix {
    us: Uid,
}

impl Default for Unix {
    fn default() -> Unix {
        Unix { us: geteuid() }
    }
}

impl Unix {
    /// For processes of the user `uid`, and of root.
    pub fn of_user(uid: u32) -> Unix {
        Unix { us: Uid::from_raw(uid) }
    }

    fn check(&self, socket: impl AsFd) -> io::Result<()> {
        let them = socket_peercred(socket)?.uid;
        match them == self.us || them.is_root() {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("the process at the other end belongs to user {}", them.as_raw()),
            )),
        }
    }

    fn wire(&self, stream: UnixStream, timeout: TimeLimits) -> io::Result<Wire> {
        self.check(&stream)?;
        stream.set_nonblocking(false)?;
        let socket = Socket::new(stream.into());
        socket.write_timeout(timeout.stall)?;
        Ok(plain(socket, true))
    }
}

impl Transport for Unix {
    fn connect(&self, address: &Address, timeout: TimeLimits) -> Result<Wire> {
        let failed = |error: io::Error| Error::Connect {
            address: address.to_string(),
            why: error.to_string(),
        };
        let Address::Unix(path) = address else {
            return Err(failed(io::ErrorKind::Unsupported.into()));
        };
        let stream = connect(path, timeout.connect).map_err(failed)?;
        self.wire(stream, timeout).map_err(failed)
    }

    fn listen(&self, address: &Address) -> Result<Box<dyn Listener>> {
        let failed = |error: io::Error| Error::Listen {
            address: address.to_string(),
            why: error.to_string(),
        };
        let Address::Unix(path) = address else {
            return Err(failed(io::ErrorKind::Unsupported.into()));
        };
        let abandoned = fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
            && connect(path, PROBE)
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        if abandoned {
            fs::remove_file(path).map_err(failed)?;
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        let (path, rules) = (path.clone(), self.clone());
        Ok(Box::new(UnixDoor { listener, path, rules, closed: AtomicBool::new(false) }))
    }
}

/// Connects, and waits no longer than `within` for a listener whose queue is full.
fn connect(path: &Path, within: Duration) -> io::Result<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
    let flags = SocketFlags::CLOEXEC;
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let within = within.max(Duration::from_millis(1));
    set_socket_timeout(&fd, Timeout::Send, Some(within))?;
    rustix::net::connect(&fd, &SocketAddrUnix::new(path)?)?;
    Ok(fd.into())
}

struct UnixDoor {
    listener: UnixListener,
    path: PathBuf,
    rules: Unix,
    closed: AtomicBool,
}

impl Listener for UnixDoor {
    fn accept(&self) -> io::Result<Box<dyn Arrival>> {
        let accepted = self.listener.accept();
        if self.closed.load(Ordering::Acquire) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(Box::new(UnixArrival { stream: accepted?.0, rules: self.rules.clone() }))
    }

    fn address(&self) -> Address {
        Address::Unix(self.path.clone())
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        let _ = fs::remove_file(&self.path);
    }
}

struct UnixArrival {
    stream: UnixStream,
    rules: Unix,
}

impl Arrival for UnixArrival {
    fn admit(self: Box<Self>, timeout: TimeLimits) -> Result<Wire> {
        let refused = |error: io::Error| Error::Refused {
            address: "a Unix socket".into(),
            why: error.to_string(),
        };
        self.rules.wire(self.stream, timeout).map_err(refused)
    }
}
