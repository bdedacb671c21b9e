//! The service of a mount by a daemon: from the mount, or from the daemon before, to the end, or to
//! the daemon after.

use std::ffi::OsString;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::clients::{Bounds, Clients};
use crate::config::MountConfig;
use crate::control::{
    Address, Control, ControlError, ControlResult, Current, ErrorKind, Server, ServerLimits,
    Shutdown, UpgradeCall, Upgraded,
};
use crate::descriptors;
use crate::engine::{Ended, Engine, HandOver, Keeper, Mounted};
use crate::error::Error;
use crate::hand_over::{HandedOver, Predecessor, Successor};
use crate::headway::Headway;
use crate::metrics_http::Endpoint;
use crate::service_manager::{self, Store};
use crate::supervisor::{Link, PreservedMount};
use crate::{logging, metrics_http, signals};

/// How long an upgrade waits for other commands on the same mount.
const OTHERS_LIMIT: Duration = Duration::from_secs(2);
/// How long the old daemon goes on telling the kernel what it had not told yet.
const FAREWELL_LIMIT: Duration = Duration::from_secs(2);

/// What is to be served.
pub struct Plan<'a> {
    /// The settings, as words `KEY=VALUE`.
    pub settings: Vec<OsString>,
    /// Their meaning.
    pub config: &'a MountConfig,
    /// Who serves.
    pub engine: &'a dyn Engine,
    /// Who restarts the daemon when it dies.
    pub guard: Option<Guard>,
}

/// Who keeps what must outlive a daemon, and starts the next one when it has died.
#[derive(Debug)]
pub enum Guard {
    /// The process at the other end.
    Supervisor(Link),
    /// systemd.
    ServiceManager(Store),
}

impl Guard {
    fn leave(
        &self,
        settings: &[OsString],
        left: [BorrowedFd<'_>; 4],
        rings: Option<BorrowedFd<'_>>,
    ) {
        let left = match self {
            Guard::Supervisor(link) => link.leave(left, rings),
            Guard::ServiceManager(store) => store.leave(settings, left, rings),
        };
        // Serving goes on: whoever would restart a dead daemon is dead itself.
        if let Err(error) = left {
            tracing::error!(
                %error,
                "if this daemon dies it is not restarted: nobody keeps the mount; \
                 unmount and mount again to have it supervised"
            );
        }
    }

    fn store(&self) -> Option<&Store> {
        match self {
            Guard::Supervisor(_) => None,
            Guard::ServiceManager(store) => Some(store),
        }
    }
}

impl Plan<'_> {
    /// Calls `work` with somebody who keeps what must outlive this daemon, if there is anybody.
    fn kept<T>(
        &self,
        lock: BorrowedFd<'_>,
        listener: BorrowedFd<'_>,
        work: impl FnOnce(Option<Keeper<'_>>) -> T,
    ) -> T {
        let Some(guard) = &self.guard else { return work(None) };
        work(Some(&|device, journal, rings| {
            guard.leave(&self.settings, [device, journal, lock, listener], rings);
            Ok(())
        }))
    }

    fn store(&self) -> Option<&Store> {
        self.guard.as_ref().and_then(Guard::store)
    }
}

/// Mounts, serves until the mount is gone or somebody else's, and cleans up.
pub fn serve(plan: Plan<'_>, ready: &mut dyn FnMut() -> Result<(), Error>) -> Result<(), Error> {
    let config = plan.config;
    begin(config, plan.engine)?;
    let address = Address::claim(&config.mountpoint, &config.backing)?;
    let listener = address.listen()?;
    let metrics = config.metrics.map(metrics_http::listen).transpose()?;
    let mounted =
        plan.kept(address.lock(), listener.as_fd(), |keeper| plan.engine.mount(config, keeper))?;
    let service = Service::start(plan, address, listener, metrics, mounted)?;
    if let Err(error) = ready() {
        service.abandon();
        return Err(error);
    }
    tracing::info!(backing = %config.backing.display(), mountpoint = %config.mountpoint.display(), "mounted");
    service.run()
}

/// Goes on where another daemon ends.
pub fn serve_after(mut plan: Plan<'_>, predecessor: &Predecessor) -> Result<(), Error> {
    let config = plan.config;
    begin(config, plan.engine)?;
    let HandedOver { handed, lock, listener, supervisor, stored } = predecessor.take()?;
    plan.guard = match supervisor {
        Some(socket) => Some(Guard::Supervisor(Link::inherited(socket))),
        None => Store::of_service(config, stored).map(Guard::ServiceManager),
    };
    let mounted = plan.kept(lock.as_fd(), listener.as_fd(), |keeper| {
        plan.engine.adopt(config, &handed, keeper)
    })?;
    predecessor.serving();
    drop(handed);
    go_on(plan, lock, listener, mounted)
}

/// Goes on where a daemon of the same supervisor, or of the same service, died.
pub fn serve_revived(plan: Plan<'_>, preserved: PreservedMount) -> Result<(), Error> {
    begin(plan.config, plan.engine)?;
    let PreservedMount { crash_state, lock, listener } = preserved;
    let revived = plan.kept(lock.as_fd(), listener.as_fd(), |keeper| {
        let keeper = keeper.ok_or_else(|| {
            ControlError::new(ErrorKind::Usage, "only a supervisor revives a daemon")
        })?;
        plan.engine.revive(plan.config, crash_state, keeper)
    });
    let mounted = revived.inspect_err(|_| {
        // A service is started again and mounts anew: better than the same failure once more.
        if let Some(store) = plan.store() {
            store.clear();
        }
    })?;
    if plan.store().is_some() {
        service_manager::notify("READY=1\n");
    }
    go_on(plan, lock, listener.into(), mounted)
}

/// Serves a mount that was another daemon's.
fn go_on(
    plan: Plan<'_>,
    lock: OwnedFd,
    listener: UnixListener,
    mounted: Arc<dyn Mounted>,
) -> Result<(), Error> {
    let config = plan.config;
    // From here on a failure is that of a daemon that serves.
    let address = Address::inherit(&config.mountpoint, lock);
    address.sign(&config.mountpoint, &config.backing)?;
    // Clients ask the socket for the process that listens.
    rustix::net::listen(&listener, 128).map_err(|e| Error::io("control socket")(e.into()))?;
    let metrics = config.metrics.and_then(|address| {
        metrics_http::listen(address)
            .inspect_err(|error| tracing::error!(%error, "no metrics over HTTP: check --metrics"))
            .ok()
    });
    let service = Service::start(plan, address, listener, metrics, mounted)?;
    tracing::info!(mountpoint = %config.mountpoint.display(), "taken over");
    service.run()
}

fn begin(config: &MountConfig, engine: &dyn Engine) -> Result<(), Error> {
    // Before any thread exists, so that all threads inherit it and only one receives signals.
    signals::block()?;
    logging::start(config)?;
    logging::abort_on_panic(engine.die_of_panics());
    descriptors::raise_limit();
    Ok(())
}

/// What a serving daemon waits for.
enum Event {
    Ended,
    Upgrade(UpgradeCall),
}

/// A mount that is being served, with everything around it.
struct Service<'a> {
    plan: Plan<'a>,
    /// Before the address: who comes next under it has a socket of his own there.
    clients: Option<Clients>,
    address: Address,
    server: Server,
    metrics: Option<Endpoint>,
    mounted: Arc<dyn Mounted>,
    shared: Arc<ServiceState>,
    events: Receiver<Event>,
    sender: Sender<Event>,
}

/// What the threads of a service have in common.
struct ServiceState {
    current: Arc<Current>,
    /// The process that serves now, if it is not this one.
    successor: AtomicI32,
    signals: AtomicU32,
}

impl<'a> Service<'a> {
    /// Starts all threads; ends the mount if that fails.
    fn start(
        plan: Plan<'a>,
        address: Address,
        listener: UnixListener,
        metrics: Option<TcpListener>,
        mounted: Arc<dyn Mounted>,
    ) -> Result<Self, Error> {
        let shared = Arc::new(ServiceState {
            current: Arc::default(),
            successor: AtomicI32::new(0),
            signals: AtomicU32::new(0),
        });
        shared.current.set(mounted.control());
        let (sender, events) = channel();
        let for_server = sender.clone();
        let upgrades = Box::new(move |call| {
            // Not heard at the end: the caller is told by the drop of the call.
            let _ = for_server.send(Event::Upgrade(call));
        });
        let current = Arc::clone(&shared.current);
        let started =
            Server::start_with(listener, current, ServerLimits::default(), Some(upgrades))
                .map_err(Error::io("control socket"))
                .and_then(|server| {
                    let metrics =
                        metrics.map(|listener| endpoint(listener, &shared)).transpose()?;
                    end_on_signal(Arc::clone(&shared))?;
                    wait_for_end(&mounted, &sender)?;
                    Ok((server, metrics))
                });
        match started {
            Ok((server, metrics)) => {
                let clients = clients(plan.config, &address);
                Ok(Self {
                    plan,
                    address,
                    server,
                    clients,
                    metrics,
                    mounted,
                    shared,
                    events,
                    sender,
                })
            }
            Err(error) => {
                let _ = mounted.control().shutdown(Shutdown::Detach);
                mounted.wait();
                let _ = mounted.finish();
                Err(error)
            }
        }
    }

    /// Ends the mount, whoever uses it.
    fn abandon(self) {
        let _ = self.mounted.control().shutdown(Shutdown::Detach);
        self.mounted.wait();
        let _ = self.mounted.finish();
    }

    /// Serves to the end.
    fn run(mut self) -> Result<(), Error> {
        loop {
            match self.events.recv() {
                Ok(Event::Ended) | Err(_) => return self.end(),
                Ok(Event::Upgrade(call)) => {
                    if let Some(successor) = self.upgrade(&call)? {
                        drop(call);
                        return self.leave(successor);
                    }
                }
            }
        }
    }

    /// After the kernel has let go of the mount.
    fn end(self) -> Result<(), Error> {
        let finished = self.mounted.finish();
        if let Some(store) = self.plan.store() {
            store.clear();
        }
        drop((self.metrics, self.clients));
        self.server.stop();
        // The next mount waits for the address, and finds the tiers free then.
        drop(self.mounted);
        drop(self.address);
        tracing::info!("unmounted");
        Ok(finished?)
    }

    /// Has another daemon take over. Nothing if it did not, and this one serves on; an error if
    /// nobody does.
    fn upgrade(&mut self, call: &UpgradeCall) -> Result<Option<Successor>, Error> {
        tracing::info!(program = %call.program.display(), "an upgrade begins: another daemon is to take over");
        let taken = self.find_successor(&call.program).and_then(|mut successor| {
            self.server.pause();
            let outcome = self.hand_over(&mut successor, call.limit);
            if outcome.is_err()
                && let Err(error) = self.server.go_on()
            {
                tracing::error!(%error, "the control socket is not answered any more");
            }
            outcome.map(|upgraded| (successor, upgraded))
        });
        match taken {
            Ok((successor, upgraded)) => {
                tracing::info!(pid = upgraded.pid, pause_us = upgraded.pause_us, "handed over");
                let _ = call.done.send(Ok(upgraded));
                Ok(Some(successor))
            }
            Err(error) => {
                tracing::warn!(%error, "not handed over");
                let served = self.shared.current.with(|_| ());
                let _ = call.done.send(Err(error.clone()));
                served.map(|()| None).map_err(|_| error.into())
            }
        }
    }

    fn find_successor(&self, program: &Path) -> ControlResult<Successor> {
        let (settings, mountpoint) = (&self.plan.settings, &self.plan.config.mountpoint);
        Successor::start(program, settings, mountpoint, self.mounted.state_version())
    }

    fn hand_over(&mut self, successor: &mut Successor, limit: Duration) -> ControlResult<Upgraded> {
        self.shared.current.clear(OTHERS_LIMIT)?;
        // Before requests are parked: a client of the network must not make programs wait.
        self.metrics = None;
        let handed = match self.mounted.give_away(limit) {
            Ok(handed) => handed,
            Err(error) => {
                self.shared.current.set(self.mounted.control());
                self.answer_metrics();
                return Err(error);
            }
        };
        let supervisor = match &self.plan.guard {
            Some(Guard::Supervisor(link)) => Some(link.socket()),
            _ => None,
        };
        let stored = self.plan.store().map_or(0, Store::number);
        let (lock, listener) = (self.address.lock(), self.server.listener());
        if let Err(error) = successor.take(&handed, lock, listener, supervisor, stored) {
            if let Some(store) = self.plan.store() {
                store.skip();
            }
            self.take_back(&handed)?;
            return Err(error);
        }
        self.shared.successor.store(successor.pid().cast_signed(), Ordering::SeqCst);
        Ok(Upgraded {
            pid: successor.pid(),
            version: successor.version().into(),
            pause_us: u64::try_from(handed.since.elapsed().as_micros()).unwrap_or(u64::MAX),
            open_files: handed.open_files as u64,
        })
    }

    /// The successor failed: this daemon serves on.
    fn take_back(&mut self, handed: &HandOver) -> ControlResult<()> {
        let config = self.plan.config;
        let (lock, listener) = (self.address.lock(), self.server.listener());
        let engine = self.plan.engine;
        let adopted =
            self.plan.kept(lock, listener, |keeper| engine.take_back(config, handed, keeper));
        self.mounted = adopted.inspect_err(|error| {
            tracing::error!(%error, "the mount is lost: mount again to continue");
        })?;
        self.shared.current.set(self.mounted.control());
        if let Err(error) = wait_for_end(&self.mounted, &self.sender)
            .and_then(|()| self.address.sign(&config.mountpoint, &config.backing))
        {
            tracing::error!(%error, "serving on after a failed upgrade");
        }
        self.answer_metrics();
        Ok(())
    }

    /// Answers with metrics over HTTP again.
    fn answer_metrics(&mut self) {
        let metrics = self.plan.config.metrics.map(|address| {
            metrics_http::listen(address).and_then(|listener| endpoint(listener, &self.shared))
        });
        self.metrics = metrics.and_then(|metrics| {
            metrics
                .inspect_err(
                    |error| tracing::error!(%error, "no metrics over HTTP: check --metrics"),
                )
                .ok()
        });
    }

    /// After somebody else has taken over.
    fn leave(self, successor: Successor) -> Result<(), Error> {
        let managed = std::env::var_os("NOTIFY_SOCKET").is_some();
        service_manager::notify(&format!("MAINPID={}\n", successor.pid()));
        // Whoever wants another upgrade is told to turn to the one that serves now.
        drop(self.events);
        self.mounted.after_hand_over(FAREWELL_LIMIT);
        self.server.stop();
        if let Some(clients) = self.clients {
            clients.leave();
        }
        self.address.leave();
        let foreground = self.plan.config.foreground;
        drop(self.mounted);
        if !foreground || managed {
            return Ok(());
        }
        // Somebody watches this process: it ends with the one that serves.
        let status = successor.wait().map_err(Error::io("waiting for the new daemon"))?;
        match status.success() {
            true => Ok(()),
            false => Err(Error::Failed(format!("the daemon that took over ended: {status}"))),
        }
    }
}

/// A thread that tells when the mount is gone.
fn wait_for_end(mounted: &Arc<dyn Mounted>, events: &Sender<Event>) -> Result<(), Error> {
    let (mounted, events) = (Arc::clone(mounted), events.clone());
    let body = move || {
        if mounted.wait() == Ended::Unmounted {
            let _ = events.send(Event::Ended);
        }
    };
    std::thread::Builder::new()
        .name("mount-end".into())
        .spawn(body)
        .map(drop)
        .map_err(Error::io("a thread for the end"))
}

/// The socket for clients, if there is to be one. The mount does without it if there can't be.
fn clients(config: &MountConfig, address: &Address) -> Option<Clients> {
    let bounds = Bounds::of_memory(config.client_memory);
    let clients = (config.client_memory > 0)
        .then(|| Clients::start(address.socket(), &config.mountpoint, bounds));
    clients?.inspect_err(|error| tracing::error!(%error, "programs get no memory in common")).ok()
}

fn endpoint(listener: TcpListener, shared: &Arc<ServiceState>) -> Result<Endpoint, Error> {
    let current = Arc::clone(&shared.current);
    let render = move || current.with(|control| control.metrics()).unwrap_or_default();
    Endpoint::start(listener, render).map_err(Error::io("metrics endpoint"))
}

/// Starts the thread that ends the mount on SIGTERM or SIGINT, at once on the second one.
fn end_on_signal(shared: Arc<ServiceState>) -> Result<(), Error> {
    let body = move || {
        while signals::wait().is_ok() {
            let count = shared.signals.fetch_add(1, Ordering::SeqCst);
            let for_thread = Arc::clone(&shared);
            // The first may take long, and the second must be heard meanwhile.
            let handled = std::thread::Builder::new()
                .name("drain".into())
                .spawn(move || for_thread.obey(count));
            if handled.is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(body)
        .map(drop)
        .map_err(Error::io("signal thread"))
}

impl ServiceState {
    /// Does what the signal with this number, from 0 on, asks for.
    fn obey(&self, count: u32) {
        loop {
            if let Some(successor) = Pid::from_raw(self.successor.load(Ordering::SeqCst)) {
                let _ = kill_process(successor, Signal::TERM);
                return;
            }
            let obeyed = self.current.with(|control| match count {
                0 => drain_and_end(control, &self.signals),
                1 => {
                    tracing::warn!(
                        "second signal: leaving at once; what is dirty stays on the tiers"
                    );
                    end(control, Shutdown::Detach);
                }
                _ => {}
            });
            if obeyed.is_ok() {
                return;
            }
            // In the middle of an upgrade: it has an end.
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn drain_and_end(control: &dyn Control, received: &AtomicU32) {
    tracing::info!("signal: writing everything to the backing store");
    service_manager::notify("STOPPING=1\n");
    let mut headway = Headway::default();
    let drained = control.drain(None, &mut |progress| {
        // The service manager is asked for ten more seconds when there is progress.
        if headway.made(&progress) {
            service_manager::notify("EXTEND_TIMEOUT_USEC=10000000\n");
            tracing::debug!(?progress, "draining");
        }
        received.load(Ordering::SeqCst) < 2
    });
    match drained {
        Ok(outcome) if outcome.complete => tracing::info!(files = outcome.files, "drained"),
        Ok(outcome) => tracing::warn!(
            files = outcome.remaining_files,
            bytes = outcome.remaining_bytes,
            "not drained; the rest stays on the tiers for the next mount"
        ),
        Err(error) => {
            tracing::warn!(%error, "not drained; the rest stays on the tiers for the next mount");
        }
    }
    if received.load(Ordering::SeqCst) < 2 {
        end(control, Shutdown::IfIdle);
    }
}

/// Ends the mount, also if files are open: whoever sent a signal wants this process gone.
fn end(control: &dyn Control, how: Shutdown) {
    match control.shutdown(how) {
        Err(error) if error.kind == ErrorKind::Busy => {
            tracing::warn!("files are open; detaching the mount");
            end(control, Shutdown::Detach);
        }
        Err(error) => tracing::error!(
            %error,
            "the mount can't be ended: end what uses it, then run `forebay umount`"
        ),
        Ok(()) => {}
    }
}
