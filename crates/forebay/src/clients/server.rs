//! The socket for clients, and the one thread that serves all of them. It waits for nobody: messages
//! come whole, answers are sent at once or not at all, and what a client says is looked up in memory
//! and in /proc.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags};

use forebay_client::address::{CLIENTS, SOCKET_PATH_MAX};
use forebay_client::protocol::{Join, NEWEST, OLDEST, Refusal, Reply, Request, negotiate};
use forebay_client::{mountinfo, socket};

use super::groups::{Bounds, Groups, Membership, Refused};
use super::proof::Peer;

/// How long a connection may be in no group.
const IDLE: Duration = Duration::from_secs(60);
/// How long nobody is let in when there are no descriptors left.
const BREATH: Duration = Duration::from_millis(100);
/// How long the end waits for the thread.
const END: Duration = Duration::from_secs(1);

/// Serves clients until it is dropped.
#[derive(Debug)]
pub struct Clients {
    path: PathBuf,
    thread: Option<JoinHandle<()>>,
    /// Ends the thread when it is dropped.
    wake: Option<OwnedFd>,
    /// Whether the path is still ours to remove.
    kept: bool,
}

impl Clients {
    /// Listens beside the control socket of a mount, in place of what a daemon before may have left.
    pub fn start(control: &Path, mountpoint: &Path, bounds: Bounds) -> io::Result<Self> {
        let path = control.with_extension(CLIENTS);
        if path.as_os_str().len() > SOCKET_PATH_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path is too long"));
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = socket::open()?;
        rustix::io::ioctl_fionbio(&listener, true)?;
        socket::refuse_descriptors(&listener);
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path)?)?;
        // Who may come as far as this may connect; what for is asked then.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
        rustix::net::listen(&listener, 128)?;
        let (stop, wake) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let (mountpoint, connections) = (mountpoint.to_owned(), Vec::new());
        let server =
            Server { listener, stop, mountpoint, groups: Groups::new(bounds), connections };
        let thread =
            std::thread::Builder::new().name("clients".into()).spawn(move || server.serve())?;
        Ok(Self { path, thread: Some(thread), wake: Some(wake), kept: true })
    }

    /// Ends, and leaves the path to a successor, who listens there by now. Members keep their memory.
    pub fn leave(mut self) {
        self.kept = false;
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        if self.kept {
            let _ = fs::remove_file(&self.path);
        }
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            // A client can keep it for long on kernels without the refusal of descriptors; the end of the
            // process ends it.
            let until = Instant::now() + END;
            while !thread.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
    }
}

struct Server {
    listener: OwnedFd,
    stop: OwnedFd,
    mountpoint: PathBuf,
    groups: Arc<Groups>,
    connections: Vec<Connection>,
}

/// A client.
struct Connection {
    socket: OwnedFd,
    peer: Peer,
    since: Instant,
    /// Whether it has said hello.
    welcome: bool,
    membership: Option<Membership>,
}

impl Server {
    fn serve(mut self) {
        // Until when nobody is let in.
        let mut closed: Option<Instant> = None;
        loop {
            let now = Instant::now();
            closed = closed.filter(|until| *until > now);
            let Some(ready) = self.wait(now, closed) else { return };
            // From the last one on, so that those before keep their places.
            for (at, (said, ended)) in ready.clients.into_iter().enumerate().rev() {
                let stays = !ended && (!said || self.hear(at)) && !self.connections[at].is_late();
                if !stays {
                    self.connections.swap_remove(at);
                }
            }
            if ready.listener && !self.accept() {
                closed = Some(Instant::now() + BREATH);
            }
        }
    }

    /// Waits until there is something to do. Nothing at the end.
    fn wait(&self, now: Instant, closed: Option<Instant>) -> Option<Ready> {
        let mut polled = Vec::with_capacity(2 + 2 * self.connections.len());
        polled.push(PollFd::new(&self.stop, PollFlags::IN));
        let listens = if closed.is_none() { PollFlags::IN } else { PollFlags::empty() };
        polled.push(PollFd::new(&self.listener, listens));
        for connection in &self.connections {
            polled.push(PollFd::new(&connection.socket, PollFlags::IN));
            polled.push(PollFd::new(connection.peer.handle(), PollFlags::IN));
        }
        let idle = self.connections.iter().filter(|it| it.membership.is_none());
        let next = idle.map(|it| it.since + IDLE).chain(closed).min();
        let limit = next.map(|next| {
            let rest = next.saturating_duration_since(now) + Duration::from_millis(1);
            Timespec {
                tv_sec: rest.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: rest.subsec_nanos().into(),
            }
        });
        match rustix::event::poll(&mut polled, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "clients are not served any more");
                return None;
            }
        }
        let is = |at: usize| !polled[at].revents().is_empty();
        if is(0) {
            return None;
        }
        let clients =
            (0..self.connections.len()).map(|at| (is(2 + 2 * at), is(3 + 2 * at))).collect();
        Some(Ready { listener: is(1), clients })
    }

    /// Lets one in. Whether more can be.
    fn accept(&mut self) -> bool {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match rustix::net::accept_with(&self.listener, flags) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return true,
            Err(error) => {
                // Out of descriptors, mostly: others may give some back.
                tracing::warn!(%error, "the socket for clients can't accept");
                return false;
            }
        };
        let Some(peer) = Peer::of(&socket) else {
            let text = "the process can't be seen from here".into();
            answer(&socket, &Reply::Refused(Refusal::File, text));
            return true;
        };
        let most = self.groups.bounds().connections;
        let own = self.connections.iter().filter(|it| it.peer.user == peer.user).count();
        if self.connections.len() >= most || own >= most / 2 {
            let text = "too many connections of clients".into();
            answer(&socket, &Reply::Refused(Refusal::Connections, text));
            return true;
        }
        let since = Instant::now();
        let connection = Connection { socket, peer, since, welcome: false, membership: None };
        self.connections.push(connection);
        true
    }

    /// Takes a message of a client and answers it. Whether it stays.
    fn hear(&mut self, at: usize) -> bool {
        let received = match socket::receive(&self.connections[at].socket, false) {
            Ok(Some(received)) => received,
            Ok(None) => return false,
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        };
        let request = received.bytes.as_deref().and_then(Request::decode);
        let connection = &mut self.connections[at];
        let reply = match request {
            Some(Request::Hello { oldest, newest }) if !connection.welcome => {
                match negotiate(oldest, newest) {
                    Some(version) => {
                        connection.welcome = true;
                        Ok(Reply::Welcome { version })
                    }
                    None => Err((
                        Refusal::Version,
                        format!("this daemon speaks versions {OLDEST} to {NEWEST}"),
                    )),
                }
            }
            Some(Request::Join(join)) if connection.welcome && connection.membership.is_none() => {
                return self.join(at, &join);
            }
            Some(Request::Leave) if connection.membership.is_some() => {
                connection.membership = None;
                connection.since = Instant::now();
                Ok(Reply::Left)
            }
            _ => Err((Refusal::Message, "that is not understood here".into())),
        };
        let stays = reply.is_ok();
        let reply = reply.unwrap_or_else(|(refusal, text)| Reply::Refused(refusal, text));
        answer(&connection.socket, &reply) && stays
    }

    /// A client that is refused may ask for another group.
    fn join(&mut self, at: usize, join: &Join) -> bool {
        let connection = &mut self.connections[at];
        match membership(&self.groups, &self.mountpoint, &connection.peer, join) {
            Ok(membership) => {
                let (memory, bytes) = membership.memory();
                let reply = Reply::Joined { bytes }.encode();
                let sent = socket::send(&connection.socket, &reply, Some(memory)).is_ok();
                connection.membership = Some(membership);
                sent
            }
            Err((refusal, text)) => {
                tracing::debug!(user = connection.peer.user, ?refusal, text, "refused a client");
                answer(&connection.socket, &Reply::Refused(refusal, text))
            }
        }
    }
}

impl Connection {
    /// Whether it has been in no group for too long.
    fn is_late(&self) -> bool {
        self.membership.is_none() && self.since.elapsed() >= IDLE
    }
}

/// What poll has found.
struct Ready {
    listener: bool,
    /// Of each client: whether it has said something, and whether its process has ended.
    clients: Vec<(bool, bool)>,
}

fn membership(
    groups: &Arc<Groups>,
    mountpoint: &Path,
    peer: &Peer,
    join: &Join,
) -> Result<Membership, Refused> {
    let mounts = mountinfo::read().unwrap_or_default();
    let mount = mountinfo::at(&mounts, mountpoint).filter(|mount| mount.is_forebay());
    let device = mount.map(|mount| mount.device.as_str());
    let device = device.ok_or_else(|| (Refusal::File, "the mount has ended".to_owned()))?;
    let opened = peer.opened(join.descriptor, device).map_err(|text| (Refusal::File, text))?;
    groups.join(peer.user, opened, join)
}

/// Sends an answer; who does not take answers is not spoken to any more.
fn answer(socket: impl AsFd, reply: &Reply) -> bool {
    socket::send(socket, &reply.encode(), None).is_ok()
}
