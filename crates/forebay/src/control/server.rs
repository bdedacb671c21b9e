//! The daemon's side of the control socket.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufReader};
use std::net::Shutdown as Half;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::wire::{Envelope, read_line, write_line};
use super::{
    Control, ControlError, ControlResult, ErrorKind, OnProgress, Outcome, PROTOCOL_VERSION,
    Progress, Reply, Request, Status, Upgraded, WorkStatus,
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

/// The control of the mount as it is served now; nothing while it changes hands.
#[derive(Default)]
pub struct Current(RwLock<Option<Arc<dyn Control>>>);

impl Current {
    /// Sets it.
    pub fn set(&self, control: Arc<dyn Control>) {
        *self.0.write() = Some(control);
    }

    /// Works with it; fails while there is none. It can't be taken away meanwhile.
    pub fn with<T>(&self, work: impl FnOnce(&dyn Control) -> T) -> ControlResult<T> {
        match &*self.0.read() {
            Some(control) => Ok(work(&**control)),
            None => Err(ControlError::new(
                ErrorKind::Busy,
                "the mount is just being taken over by another daemon; try again",
            )),
        }
    }

    /// Takes it away as soon as nobody works with it, or gives up at the limit.
    pub fn clear(&self, limit: Duration) -> ControlResult<()> {
        let cleared = self.0.try_write_for(limit).map(|mut control| drop(control.take()));
        cleared.ok_or_else(|| {
            ControlError::new(
                ErrorKind::Busy,
                "another command works on this mount; try again when it has ended",
            )
        })
    }
}

impl std::fmt::Debug for Current {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Current").finish_non_exhaustive()
    }
}

/// The wish that another daemon takes over, and who waits for what came of it.
#[derive(Debug)]
pub struct UpgradeCall {
    /// The program.
    pub program: PathBuf,
    /// How long the mount may take to come to rest.
    pub limit: Duration,
    /// Who waits.
    pub done: SyncSender<ControlResult<Upgraded>>,
}

/// Hears of the wish, and sees to it elsewhere: the call is answered through its `done`.
pub type OnUpgrade = Box<dyn Fn(UpgradeCall) + Send + Sync>;

/// Answers for a [`Control`] on a socket, with a thread for each connection.
pub struct Server {
    shared: Arc<ControlServerState>,
    listener: Arc<UnixListener>,
    acceptor: Option<Acceptor>,
}

/// The thread that accepts connections.
struct Acceptor {
    thread: JoinHandle<()>,
    /// Ends it when it is dropped.
    wake: OwnedFd,
}

/// What the threads of a control server have in common.
struct ControlServerState {
    control: Arc<Current>,
    upgrades: Option<OnUpgrade>,
    limits: ServerLimits,
    open: Mutex<HashMap<u64, UnixStream>>,
    closed: Condvar,
    next: AtomicU64,
    /// What commands do now, by their start.
    works: Mutex<BTreeMap<u64, RunningWork>>,
}

impl Server {
    /// Starts to answer.
    pub fn start(
        listener: UnixListener,
        control: Arc<dyn Control>,
        limits: ServerLimits,
    ) -> io::Result<Self> {
        let current = Arc::new(Current::default());
        current.set(control);
        Self::start_with(listener, current, limits, None)
    }

    /// Starts to answer for what is current; whoever wants an upgrade is told to `upgrades`.
    pub fn start_with(
        listener: UnixListener,
        control: Arc<Current>,
        limits: ServerLimits,
        upgrades: Option<OnUpgrade>,
    ) -> io::Result<Self> {
        let shared = Arc::new(ControlServerState {
            control,
            upgrades,
            limits,
            open: Mutex::default(),
            closed: Condvar::new(),
            next: AtomicU64::new(0),
            works: Mutex::default(),
        });
        listener.set_nonblocking(true)?;
        let mut server = Self { shared, listener: Arc::new(listener), acceptor: None };
        server.go_on()?;
        Ok(server)
    }

    /// The socket, for a successor.
    pub fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Accepts no more connections; who comes waits. Those that there are go on.
    pub fn pause(&mut self) {
        if let Some(Acceptor { thread, wake }) = self.acceptor.take() {
            drop(wake);
            let _ = thread.join();
        }
    }

    /// Accepts connections again.
    pub fn go_on(&mut self) -> io::Result<()> {
        let (ours, wake) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let (for_thread, socket) = (Arc::clone(&self.shared), Arc::clone(&self.listener));
        let thread = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || accept_all(&for_thread, &socket, &ours))?;
        self.acceptor = Some(Acceptor { thread, wake });
        Ok(())
    }

    /// Stops to listen, lets the requests that are being served end within the limit, and cuts
    /// off the rest. The socket itself may have passed to a successor and is not touched.
    pub fn stop(mut self) {
        self.close();
    }

    fn close(&mut self) {
        self.pause();
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

fn accept_all(shared: &Arc<ControlServerState>, listener: &UnixListener, stop: &OwnedFd) {
    loop {
        let mut polled =
            [PollFd::new(listener, PollFlags::IN), PollFd::new(stop, PollFlags::empty())];
        if rustix::event::poll(&mut polled, None).is_ok() && !polled[1].revents().is_empty() {
            return;
        }
        match listener.accept() {
            Ok((stream, _)) => admit(shared, stream),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                ) => {}
            Err(error) => {
                // Out of descriptors, mostly: others may give some back.
                tracing::warn!(%error, "control socket can't accept");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

/// Gives a connection a thread, if its user may ask and there is room.
fn admit(shared: &Arc<ControlServerState>, mut stream: UnixStream) {
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

fn leave(shared: &ControlServerState, id: u64) {
    shared.open.lock().remove(&id);
    shared.closed.notify_all();
}

/// Gives a connection's place back, however its thread ends.
struct Leave {
    shared: Arc<ControlServerState>,
    id: u64,
}

impl Drop for Leave {
    fn drop(&mut self) {
        leave(&self.shared, self.id);
    }
}

fn serve(shared: &ControlServerState, stream: UnixStream) -> io::Result<()> {
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

fn answer(shared: &ControlServerState, request: Request, stream: &mut UnixStream) -> Reply {
    if let Request::Upgrade { program, limit_ms } = request {
        let limit = Duration::from_millis(limit_ms);
        return upgrade(shared, program.0, limit).map_or_else(Reply::Error, Reply::Upgraded);
    }
    let answered = shared.control.with(|control| answer_from(shared, control, request, stream));
    answered.unwrap_or_else(Reply::Error)
}

fn upgrade(
    shared: &ControlServerState,
    program: PathBuf,
    limit: Duration,
) -> ControlResult<Upgraded> {
    let refused = || ControlError::new(ErrorKind::Unsupported, "this mount can't be handed over");
    let upgrades = shared.upgrades.as_ref().ok_or_else(refused)?;
    let (done, outcome) = std::sync::mpsc::sync_channel(1);
    upgrades(UpgradeCall { program, limit, done });
    outcome.recv().unwrap_or_else(|_| {
        Err(ControlError::new(
            ErrorKind::Locked,
            "before this upgrade had its turn another daemon took the mount over, or it was unmounted",
        ))
    })
}

fn answer_from(
    shared: &ControlServerState,
    control: &dyn Control,
    request: Request,
    stream: &mut UnixStream,
) -> Reply {
    let mut last: Option<Instant> = None;
    let mut gone = false;
    let work = request.work().map(|what| Work::begin(shared, what));
    let mut report = |progress: Progress| {
        if let Some(work) = &work {
            work.advance(&progress);
        }
        let due = last.is_none_or(|last| last.elapsed() >= shared.limits.progress_interval);
        if due && !gone {
            last = Some(Instant::now());
            gone = has_left(stream) || write_line(stream, &Reply::Progress(progress)).is_err();
        }
        !gone
    };
    let progress: OnProgress<'_> = &mut report;
    match request {
        Request::Status => {
            let works = shared.works.lock().values().map(RunningWork::told).collect();
            Reply::Status(Box::new(Status { works, ..control.status() }))
        }
        Request::Metrics => Reply::Text(control.metrics()),
        Request::Locate { paths } => match control.locate(&paths) {
            Ok(locations) => Reply::Locations(locations),
            Err(error) => Reply::Error(error),
        },
        Request::Warm { paths } => outcome(control.warm(&paths, progress).inspect(|warmed| {
            // Who has asked for it may have gone.
            let Outcome { files, bytes, failed, complete, .. } = *warmed;
            tracing::info!(files, bytes, failed, complete, "warmed");
        })),
        Request::Evict { paths } => outcome(control.evict(&paths, progress)),
        Request::Pin { paths } => outcome(control.pin(&paths, progress)),
        Request::Unpin { paths } => outcome(control.unpin(&paths, progress)),
        Request::Sync { paths } => outcome(control.sync(&paths, progress)),
        Request::Refresh { paths } => outcome(control.refresh(&paths, progress)),
        Request::Conflicts => Reply::Conflicts(control.conflicts()),
        Request::ForgetConflicts { paths } => {
            control.forget_conflicts(&paths).map_or_else(Reply::Error, Reply::Forgotten)
        }
        Request::Hint(part) => outcome(control.hint(&part, progress)),
        Request::Withdraw { job } => done(control.withdraw(&job)),
        Request::TraceStart => done(control.trace_start()),
        Request::TraceTake { most, stop } => {
            control.trace_take(most, stop).map_or_else(Reply::Error, Reply::Recorded)
        }
        Request::PatternsStart => done(control.patterns_start()),
        Request::Patterns => control.patterns().map_or_else(Reply::Error, Reply::Patterns),
        Request::PatternsStop => done(control.patterns_stop()),
        Request::Drain { limit_ms } => {
            outcome(control.drain(limit_ms.map(Duration::from_millis), progress))
        }
        Request::Shutdown { how } => done(control.shutdown(how)),
        Request::Cluster(request) => {
            control.cluster(&request).map_or_else(Reply::Error, Reply::Cluster)
        }
        Request::LogLevel { filter } => done(control.set_log_level(&filter)),
        Request::Upgrade { .. } => Reply::Error(ControlError::new(
            ErrorKind::Usage,
            "an upgrade is not for the control of the mount",
        )),
    }
}

/// Work on paths that a command waits for.
struct RunningWork {
    what: &'static str,
    since: Instant,
    progress: Progress,
}

impl RunningWork {
    fn told(&self) -> WorkStatus {
        WorkStatus {
            what: self.what.into(),
            age_s: self.since.elapsed().as_secs(),
            progress: self.progress.clone(),
        }
    }
}

/// Names such work in the status until it has ended.
struct Work<'a> {
    shared: &'a ControlServerState,
    id: u64,
}

impl<'a> Work<'a> {
    fn begin(shared: &'a ControlServerState, what: &'static str) -> Self {
        let id = shared.next.fetch_add(1, Ordering::Relaxed);
        let work = RunningWork { what, since: Instant::now(), progress: Progress::default() };
        shared.works.lock().insert(id, work);
        Work { shared, id }
    }

    fn advance(&self, progress: &Progress) {
        if let Some(work) = self.shared.works.lock().get_mut(&self.id) {
            work.progress = progress.clone();
        }
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.shared.works.lock().remove(&self.id);
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
