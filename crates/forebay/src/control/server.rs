//! The daemon's side of the control socket.

use std::collections::HashMap;
use std::io::{self, BufReader};
use std::net::Shutdown as Half;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::wire::{Envelope, read_line, write_line};
use super::{
    Control, ControlError, ControlResult, ErrorKind, OnProgress, Outcome, PROTOCOL_VERSION,
    Progress, Reply, Request,
};

/// Bounds of what clients may take.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// Connections at one time.
    pub connections: usize,
    /// Bytes of one request.
    pub request_bytes: usize,
    /// How long a connection may be silent between requests.
    pub idle: Duration,
    /// How long a client may leave a reply unread.
    pub write: Duration,
    /// The least time between two progress replies.
    pub progress_interval: Duration,
    /// How long [`Server::stop`] waits for requests that are being served.
    pub stop: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: 32,
            request_bytes: 1 << 20,
            idle: Duration::from_secs(300),
            write: Duration::from_secs(10),
            progress_interval: Duration::from_millis(100),
            stop: Duration::from_secs(5),
        }
    }
}

/// Answers for a [`Control`] on a socket, with a thread for each connection.
pub struct Server {
    shared: Arc<Shared>,
    listener: Arc<UnixListener>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    control: Arc<dyn Control>,
    limits: ServerLimits,
    open: Mutex<HashMap<u64, UnixStream>>,
    closed: Condvar,
    next: AtomicU64,
}

impl Server {
    /// Starts to answer.
    pub fn start(
        listener: UnixListener,
        control: Arc<dyn Control>,
        limits: ServerLimits,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            control,
            limits,
            open: Mutex::default(),
            closed: Condvar::new(),
            next: AtomicU64::new(0),
        });
        let listener = Arc::new(listener);
        let (for_thread, socket) = (Arc::clone(&shared), Arc::clone(&listener));
        let acceptor = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || accept_all(&for_thread, &socket))?;
        Ok(Self { shared, listener, acceptor: Some(acceptor) })
    }

    /// Stops to listen, lets the requests that are being served end within the limit, and cuts
    /// off the rest.
    pub fn stop(mut self) {
        self.close();
    }

    fn close(&mut self) {
        let Some(acceptor) = self.acceptor.take() else { return };
        // Wakes the accepting thread: accept(2) on a socket that was shut down fails at once.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        let _ = acceptor.join();
        let mut open = self.shared.open.lock();
        for stream in open.values() {
            let _ = stream.shutdown(Half::Read);
        }
        let deadline = Instant::now() + self.shared.limits.stop;
        while !open.is_empty() {
            if self.shared.closed.wait_until(&mut open, deadline).timed_out() {
                for stream in open.values() {
                    let _ = stream.shutdown(Half::Both);
                }
                return;
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
    }
}

fn accept_all(shared: &Arc<Shared>, listener: &UnixListener) {
    loop {
        match listener.accept() {
            Ok((stream, _)) => admit(shared, stream),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            Err(error) => {
                // Out of descriptors, mostly: others may give some back.
                tracing::warn!(%error, "control socket can't accept");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

/// Gives a connection a thread, if its user may ask and there is room.
fn admit(shared: &Arc<Shared>, mut stream: UnixStream) {
    let own = rustix::process::geteuid().as_raw();
    let peer = rustix::net::sockopt::socket_peercred(&stream).map(|peer| peer.uid.as_raw());
    let _ = stream.set_write_timeout(Some(shared.limits.write));
    let _ = stream.set_read_timeout(Some(shared.limits.idle));
    let refuse = |stream: &mut UnixStream, kind, message: &str| {
        let _ = write_line(stream, &Reply::Error(ControlError::new(kind, message)));
    };
    if !peer.is_ok_and(|uid| may_control(uid, own)) {
        refuse(
            &mut stream,
            ErrorKind::Unsupported,
            "only root and the user who mounted it may control a mount",
        );
        return;
    }
    let Ok(second) = stream.try_clone() else { return };
    let id = shared.next.fetch_add(1, Ordering::Relaxed);
    {
        let mut open = shared.open.lock();
        if open.len() >= shared.limits.connections {
            drop(open);
            refuse(&mut stream, ErrorKind::Failed, "too many control connections; try again");
            return;
        }
        open.insert(id, second);
    }
    let for_thread = Arc::clone(shared);
    let spawned = std::thread::Builder::new().name("control-client".into()).spawn(move || {
        let _leave = Leave { shared: Arc::clone(&for_thread), id };
        if let Err(error) = serve(&for_thread, stream) {
            tracing::debug!(%error, "control connection ended");
        }
    });
    if spawned.is_err() {
        leave(shared, id);
    }
}

/// Whether a user may control a daemon that runs as `own`.
fn may_control(peer: u32, own: u32) -> bool {
    peer == 0 || peer == own
}

fn leave(shared: &Shared, id: u64) {
    shared.open.lock().remove(&id);
    shared.closed.notify_all();
}

/// Gives a connection's place back, however its thread ends.
struct Leave {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for Leave {
    fn drop(&mut self) {
        leave(&self.shared, self.id);
    }
}

fn serve(shared: &Shared, stream: UnixStream) -> io::Result<()> {
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    loop {
        let line = match read_line(&mut reader, shared.limits.request_bytes) {
            Ok(Some(line)) => line,
            Ok(None) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                let error = ControlError::new(ErrorKind::Usage, error.to_string());
                return write_line(&mut writer, &Reply::Error(error));
            }
            Err(error) => return Err(error),
        };
        let reply = match serde_json::from_slice::<Envelope>(&line) {
            Ok(Envelope { v: PROTOCOL_VERSION, request }) => answer(shared, request, &mut writer),
            Ok(Envelope { v, .. }) => Reply::Error(ControlError::new(
                ErrorKind::Usage,
                format!(
                    "this daemon speaks version {PROTOCOL_VERSION} of the control protocol, not {v}; use the forebay that mounted"
                ),
            )),
            Err(error) => Reply::Error(ControlError::new(
                ErrorKind::Usage,
                format!("request not understood: {error}"),
            )),
        };
        write_line(&mut writer, &reply)?;
    }
}

fn answer(shared: &Shared, request: Request, stream: &mut UnixStream) -> Reply {
    let control = &*shared.control;
    let mut last: Option<Instant> = None;
    let mut gone = false;
    let mut report = |progress: Progress| {
        let due = last.is_none_or(|last| last.elapsed() >= shared.limits.progress_interval);
        if due && !gone {
            last = Some(Instant::now());
            gone = has_left(stream) || write_line(stream, &Reply::Progress(progress)).is_err();
        }
        !gone
    };
    let progress: OnProgress<'_> = &mut report;
    match request {
        Request::Status => Reply::Status(Box::new(control.status())),
        Request::Metrics => Reply::Text(control.metrics()),
        Request::Locate { paths } => match control.locate(&paths) {
            Ok(locations) => Reply::Locations(locations),
            Err(error) => Reply::Error(error),
        },
        Request::Warm { paths } => outcome(control.warm(&paths, progress)),
        Request::Evict { paths } => outcome(control.evict(&paths, progress)),
        Request::Pin { paths } => outcome(control.pin(&paths, progress)),
        Request::Unpin { paths } => outcome(control.unpin(&paths, progress)),
        Request::Sync { paths } => outcome(control.sync(&paths, progress)),
        Request::Hint(part) => outcome(control.hint(&part, progress)),
        Request::Withdraw { job } => done(control.withdraw(&job)),
        Request::TraceStart => done(control.trace_start()),
        Request::TraceTake { most, stop } => {
            control.trace_take(most, stop).map_or_else(Reply::Error, Reply::Recorded)
        }
        Request::Drain { limit_ms } => {
            outcome(control.drain(limit_ms.map(Duration::from_millis), progress))
        }
        Request::Shutdown { how } => done(control.shutdown(how)),
        Request::LogLevel { filter } => done(control.set_log_level(&filter)),
    }
}

fn outcome(result: ControlResult<Outcome>) -> Reply {
    result.map_or_else(Reply::Error, Reply::Outcome)
}

fn done(result: ControlResult<()>) -> Reply {
    result.map_or_else(Reply::Error, |()| Reply::Done)
}

/// Whether the client has closed the connection; one that only ended its requests still listens.
fn has_left(stream: &UnixStream) -> bool {
    let mut polled = [PollFd::new(stream, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut polled, Some(&now)).is_err()
        || polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

#[cfg(test)]
mod tests {
    use super::may_control;

    #[test]
    fn may_control_when_a_stranger_asks_then_not() {
        assert!(may_control(0, 1000) && may_control(1000, 1000));
        assert!(!may_control(1001, 1000) && !may_control(1000, 0));
    }
}
