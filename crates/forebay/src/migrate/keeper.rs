//! `forebay run-task`: the process that `forebay run` starts for a task that can be migrated. It has
//! the task wherever it is, prints what it prints, and ends as it ends.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

use super::body::{Body, Down, Looked};
use super::channel::Written;
use super::coop::{self, Cooperation};
use super::criu::Criu;
use super::images::Images;
use super::mounts;
use super::protocol::{Answer, Ask, Caller, HOME, Moved, Spot, TaskRecord};
use super::refuse::Route;
use super::remote::{End, Remote};
use super::restart;
use super::targets;
use super::task::{Gate, Image, Sink, Start, Stream, Task, wait_for_end};
use super::transfer::Sending;
use crate::control::{ControlError, ErrorKind, WirePath};
use crate::error::Error;
use crate::mountinfo;
use crate::run::record::{began, now_ms};
use crate::signals;

/// What it is started with.
pub struct Settings {
    /// The run.
    pub run: String,
    /// The job.
    pub job: String,
    /// The mount that has its files.
    pub mount: Option<PathBuf>,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Where it runs.
    pub dir: PathBuf,
}

impl Settings {
    /// How the task is started at first.
    pub(super) fn start(&self) -> Start {
        Start {
            command: self.command.clone(),
            dir: self.dir.clone(),
            // What another run says of a task is nothing of this one.
            env: std::env::vars_os().filter(|(name, _)| !restart::is_own(name)).collect(),
            mount: None,
        }
    }
}

/// What it hears of.
enum Event {
    /// The tree of this generation has ended; with an exit code, on another node.
    Ended(u64, Option<i32>),
    /// The node that had the tree of this generation is gone, and the tree with it.
    Lost(u64, String),
    /// A signal for the task.
    Signal(i32),
    /// Something was mounted or unmounted on this machine.
    Mounts,
    /// Somebody wants it to be elsewhere.
    Ask(Caller, Ask),
}

/// Prints where this process does.
struct Print;

impl Sink for Print {
    fn put(&self, stream: Stream, bytes: &[u8]) -> bool {
        let written = match stream {
            Stream::Out => {
                let mut out = io::stdout().lock();
                out.write_all(bytes).and_then(|()| out.flush())
            }
            Stream::Err => io::stderr().lock().write_all(bytes),
        };
        written.is_ok()
    }
}

/// Where a task is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TaskLocation {
    /// Where it was started.
    Home,
    /// On this machine, with another mount in the place of its own.
    Mount(PathBuf),
    /// On another node of the cluster.
    Node {
        /// Its number.
        number: u16,
        /// The machine.
        host: String,
    },
}

impl TaskLocation {
    /// Whether other files of this machine may not be there.
    fn is_elsewhere(&self) -> bool {
        matches!(self, Self::Node { .. })
    }
}

impl std::fmt::Display for TaskLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Home => f.write_str(HOME),
            Self::Mount(path) => write!(f, "{}", path.display()),
            Self::Node { number, host } => write!(f, "node {number} ({host})"),
        }
    }
}

pub(super) struct Keeper {
    pub(super) settings: Settings,
    spot: Spot,
    record: TaskRecord,
    sink: Arc<dyn Sink>,
    events: Sender<Event>,
    pub(super) location: TaskLocation,
    /// Which attempt has made the tree that is the task.
    pub(super) generation: u64,
    pub(super) attempts: u64,
    /// Where it registers, if it saves its state itself.
    pub(super) cooperation: Cooperation,
    /// Whether a signal for the task waits to be heard.
    pub(super) wanted: Arc<AtomicBool>,
    /// How often it was started from a state that it had saved.
    pub(super) restarts: u64,
    /// Whether an event of mounts waits to be heard.
    told_of_mounts: Arc<AtomicBool>,
}

/// Keeps a task until it has ended, and returns its exit code.
pub fn run(settings: Settings) -> Result<u8, Error> {
    // Before any thread is started: signals are for the one that waits for them.
    signals::block_ends()?;
    let spot = Spot::of(&settings.run, &settings.job);
    let (events, heard) = mpsc::channel();
    let listener = spot.listen()?;
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let record = TaskRecord {
        run: settings.run.clone(),
        job: settings.job.clone(),
        pid: own,
        process_began: began(own).unwrap_or(0),
        mount: settings.mount.clone().map(Into::into),
        ..TaskRecord::default()
    };
    let sink: Arc<dyn Sink> = Arc::new(Print);
    let cooperation = Cooperation::listen(spot.save_socket())?;
    let mut start = settings.start();
    start.set(coop::VARIABLE, cooperation.socket());
    let task = Task::start(&start, &sink);
    let task = task.inspect_err(|_| spot.clear())?;
    // Before it begins, and can register.
    cooperation.expect(task.init);
    let (location, told_of_mounts) = (TaskLocation::Home, Arc::new(AtomicBool::new(false)));
    let mut keeper = Keeper {
        settings,
        spot,
        record,
        sink,
        events,
        location,
        generation: 0,
        attempts: 0,
        cooperation,
        wanted: Arc::new(AtomicBool::new(false)),
        restarts: 0,
        told_of_mounts,
    };
    let code = keeper.keep(Body::Here(task), &heard, listener);
    keeper.spot.clear();
    code
}

impl Keeper {
    fn keep(
        &mut self,
        task: Body,
        heard: &Receiver<Event>,
        listener: std::os::unix::net::UnixListener,
    ) -> Result<u8, Error> {
        self.watch(&task)?;
        // Before it begins: whoever sees what it does may want it elsewhere.
        self.spot.note(&self.record)?;
        let events = self.events.clone();
        thread("asked", move || hear_asks(&listener, &events))?;
        let (events, wanted) = (self.events.clone(), Arc::clone(&self.wanted));
        thread("signals", move || {
            while let Ok(signal) = signals::wait_for_end() {
                wanted.store(true, Ordering::Release);
                if events.send(Event::Signal(signal)).is_err() {
                    return;
                }
            }
        })?;
        let events = self.events.clone();
        let told_of = Arc::clone(&self.told_of_mounts);
        thread("mounts", move || {
            // Of many changes that follow on one another it is told once.
            let tell =
                || told_of.swap(true, Ordering::AcqRel) || events.send(Event::Mounts).is_ok();
            let told = mounts::tell_of_changes(tell);
            if let Err(error) = told {
                crate::commands::warn(&format!("mounts of this machine are not watched: {error}"));
            }
        })?;
        task.begin()?;
        let mut task = Some(task);
        while let Ok(event) = heard.recv() {
            let Some(now) = task.as_mut() else { break };
            match event {
                Event::Ended(generation, code) if generation == self.generation => {
                    let code = task.take().map_or(1, |task| task.ended(code));
                    return Ok(u8::try_from(code).unwrap_or(1));
                }
                Event::Lost(generation, why) if generation == self.generation => {
                    let _ = task.take().map(|task| task.ended(None));
                    let location = &self.location;
                    return Err(Error::Failed(format!(
                        "the task was at {location}, which is gone: {why}"
                    )));
                }
                Event::Ended(..) | Event::Lost(..) => {}
                Event::Signal(signal) => {
                    self.heed();
                    now.signal(signal);
                }
                Event::Mounts => self.let_go(now),
                Event::Ask(mut caller, ask) => {
                    let moved = self.migrate(&mut task, &ask, &mut |text| {
                        caller.answer(&Answer::Doing(text.into()));
                    });
                    caller.answer(&match moved {
                        Ok(moved) => Answer::Moved(moved),
                        Err(error) => Answer::Failed(told(&error)),
                    });
                    let Some(now) = &task else {
                        return Err(Error::Failed(
                            "the task has saved its state and ended, and could not be started again".into(),
                        ));
                    };
                    // It has a copy of what was mounted when it was restored.
                    self.let_go(now);
                }
            }
        }
        Err(Error::Failed("nobody waits for the task any more".into()))
    }

    /// What is not mounted on this machine any more the task lets go of. If that fails, `umount` says who
    /// has it.
    fn let_go(&self, task: &Body) {
        self.told_of_mounts.store(false, Ordering::Release);
        if let Body::Here(task) = task {
            let _ = mounts::let_go(task.init, self.settings.mount.as_deref());
        }
    }

    /// Has the end of this tree be heard of.
    pub(super) fn watch(&self, task: &Body) -> Result<(), Error> {
        // Of one on another node the connection tells.
        let Body::Here(task) = task else { return Ok(()) };
        let (init, generation, events) = (task.init, self.generation, self.events.clone());
        thread("watch", move || {
            wait_for_end(init);
            let _ = events.send(Event::Ended(generation, None));
        })
    }

    /// What a migration needs, while the task still runs.
    fn set_out(&mut self, body: &mut Body, ask: &Ask) -> Result<Journey, Error> {
        let target = self.target(&ask.target.0)?;
        let mount = self.settings.mount.as_deref();
        let below = mount.unwrap_or(Path::new("/")).to_owned();
        let same_machine = !self.location.is_elsewhere() && !target.is_elsewhere();
        let looked = body.look(&Route { mount, same_machine }, &below, &self.cooperation)?;
        let Looked { bytes, by_itself } = looked;
        if target == self.location && (!by_itself || ask.also.is_empty()) {
            return Err(Error::Usage(format!("the task is at {target} already")));
        }
        if !by_itself && !ask.also.is_empty() {
            return Err(Error::Usage(
                "several nodes are for a task that has registered to save its state itself".into(),
            ));
        }
        let nodes = match (by_itself, mount) {
            (true, Some(mount)) => nodes(mount, &ask.target.0, &ask.also)?,
            _ => Vec::new(),
        };
        let images = ask.images.as_ref().map(WirePath::as_path);
        let images = (!by_itself).then(|| Images::make(images, bytes)).transpose();
        let images = images.map_err(|error| match &ask.images {
            None => Error::Failed(format!("{error}; --images names another directory")),
            Some(_) => error,
        })?;
        let criu = match (&self.location, &target) {
            _ if by_itself => None,
            // What they have there they look for there.
            (TaskLocation::Node { .. }, TaskLocation::Node { .. }) => None,
            _ => Some(Criu::find().and_then(|criu| criu.check().map(|()| criu))?),
        };
        let gate = Gate::new(&self.sink);
        self.attempts += 1;
        let host = match &target {
            TaskLocation::Node { number, .. } => Some(self.reach(*number, &below, looked, &gate)?),
            _ => None,
        };
        Ok(Journey { target, criu, below, images, gate, host, nodes, same_machine, bytes })
    }

    /// The whole of a migration. Whatever fails, the task is where it was, and runs.
    fn migrate(
        &mut self,
        slot: &mut Option<Body>,
        ask: &Ask,
        doing: &mut dyn FnMut(&str),
    ) -> Result<Moved, Error> {
        let Some(body) = slot.as_mut() else { return Err(ended()) };
        let mut journey = self.set_out(body, ask)?;
        if journey.images.is_none() {
            return self.restart(slot, journey, ask, doing);
        }
        doing("stopping the task and writing it down");
        let stopped = Instant::now();
        let (down, sending) = journey.write_down(body)?;
        let dumped = stopped.elapsed();
        doing("restoring it at the target");
        let Journey { target, criu, images, gate, host, .. } = journey;
        let images = images.ok_or_else(ended)?;
        let restored = match (host, sending) {
            (Some(host), Some(sending)) => restore_there(host, sending, down.written()),
            _ => self.restore_here(criu.as_ref(), &images, down.written(), &target, &gate),
        };
        let new = match restored {
            Ok(new) => new,
            Err(error) => {
                body.go_on(&down)?;
                return Err(Error::Failed(format!(
                    "the task goes on where it was, it can't be restored at {target}: {error}"
                )));
            }
        };
        let all = stopped.elapsed();
        // From here on the new one is the task.
        let Some(old) = slot.replace(new) else { return Err(ended()) };
        self.generation = self.attempts;
        old.doom();
        let going = slot.as_ref().map_or(Ok(()), |body| {
            if let Body::Here(task) = body {
                self.cooperation.expect(task.init);
            }
            self.watch(body)?;
            body.begin()
        });
        let downtime = stopped.elapsed();
        gate.open_after(old.kill());
        going?;
        let from = std::mem::replace(&mut self.location, target);
        self.note();
        Ok(Moved {
            task: format!("{}/{}", self.settings.run, self.settings.job),
            from: from.to_string(),
            to: self.location.to_string(),
            downtime_ms: ms(downtime),
            dump_ms: ms(dumped),
            restore_ms: ms(all.saturating_sub(dumped)),
            bytes: images.bytes(),
            processes: down.written().processes,
            files: down.written().files,
            by_itself: false,
        })
    }

    /// The stopped task as it is to be on this machine, stopped.
    fn restore_here(
        &self,
        criu: Option<&Criu>,
        images: &Images,
        written: &Written,
        target: &TaskLocation,
        gate: &Arc<Gate>,
    ) -> Result<Body, Error> {
        let criu = criu.ok_or_else(ended)?;
        let mount = match (target, self.settings.mount.as_deref()) {
            (TaskLocation::Mount(real), Some(seen)) => Some((seen, real.as_path())),
            _ => None,
        };
        let Written { pipes, stopped, .. } = written.clone();
        let image = Image { dir: images.dir(), pipes, stopped, mount };
        let sink: Arc<dyn Sink> = Arc::clone(gate) as Arc<dyn Sink>;
        Task::restore(criu, &image, &sink).map(Body::Here)
    }

    /// A node that is ready for the task.
    fn reach(
        &self,
        node: u16,
        seen: &Path,
        looked: Looked,
        gate: &Arc<Gate>,
    ) -> Result<Remote, Error> {
        let mounts = mountinfo::read().map_err(Error::io("/proc/self/mountinfo"))?;
        let host = targets::host(seen, &mounts, node)?;
        let (attempt, events) = (self.attempts, self.events.clone());
        let end = Box::new(move |end| {
            let event = match end {
                End::Code(code) => Event::Ended(attempt, Some(code)),
                End::Lost(why) => Event::Lost(attempt, why),
            };
            let _ = events.send(event);
        });
        Remote::reach(&host, seen, looked, Arc::clone(gate) as Arc<dyn Sink>, end)
    }

    /// Where somebody wants the task to be.
    fn target(&self, name: &Path) -> Result<TaskLocation, Error> {
        let own = self.settings.mount.as_deref();
        let mounts = mountinfo::read().map_err(Error::io("/proc/self/mountinfo"))?;
        let target = match name {
            name if name == Path::new(HOME) || own == Some(name) => TaskLocation::Home,
            name if name.is_absolute() => TaskLocation::Mount(name.to_owned()),
            name => match own {
                None => return Err(no_mount()),
                Some(own) => match targets::node(own, &mounts, &name.to_string_lossy())? {
                    None => TaskLocation::Home,
                    Some((number, host)) => TaskLocation::Node { number, host },
                },
            },
        };
        let own = own.ok_or_else(no_mount)?;
        // What is on other nodes belongs to the cluster of the mount that the task was started with.
        let at = |location: &TaskLocation| match location {
            TaskLocation::Mount(path) => path.clone(),
            TaskLocation::Home | TaskLocation::Node { .. } => own.to_owned(),
        };
        let (from, to) = (at(&self.location), at(&target));
        match from == to {
            true => targets::check_one(own, &mounts)?,
            false => targets::check(&from, &to, &mounts)?,
        }
        Ok(target)
    }

    pub(super) fn note(&mut self) {
        self.record.migrations += 1;
        self.record.moved_ms = Some(now_ms());
        self.record.node = match &self.location {
            TaskLocation::Node { number, .. } => Some(*number),
            TaskLocation::Home | TaskLocation::Mount(_) => None,
        };
        self.record.place =
            (self.location != TaskLocation::Home).then(|| self.location.to_string());
        if let Err(error) = self.spot.note(&self.record) {
            crate::commands::warn(&format!("`forebay jobs` shows an old place: {error}"));
        }
    }
}

/// A migration on its way.
pub(super) struct Journey {
    pub(super) target: TaskLocation,
    criu: Option<Criu>,
    /// Where the task's files are, as it sees them.
    pub(super) below: PathBuf,
    /// Where its image goes, if it does not save its state itself.
    images: Option<Images>,
    pub(super) gate: Arc<Gate>,
    pub(super) host: Option<Remote>,
    /// The machines that it shall use from then on, if it saves its state itself.
    pub(super) nodes: Vec<String>,
    pub(super) same_machine: bool,
    /// Bytes that it has in memory.
    pub(super) bytes: u64,
}

impl Journey {
    /// Stops the task and writes it down; meanwhile the image goes to the node that waits for it. If that
    /// fails, the task goes on.
    fn write_down(&mut self, body: &mut Body) -> Result<(Down, Option<Sending>), Error> {
        let dir = self.images.as_ref().ok_or_else(ended)?.dir();
        let sending = self.host.as_ref().map(|host| host.send(dir)).transpose()?;
        match body.write_down(self.criu.as_ref(), dir, &self.below) {
            Ok(down) => Ok((down, sending)),
            Err(error) => {
                // Before the rest of the image would be sent.
                self.host = None;
                let fate = match body.is_gone() {
                    true => "the task has ended, or is lost with the way to its node",
                    false => "the task goes on where it was",
                };
                Err(Error::Failed(format!("{fate}, it can't be written down: {error}")))
            }
        }
    }
}

/// The machines of nodes, the one where the task itself goes before the others.
fn nodes(mount: &Path, target: &Path, also: &[String]) -> Result<Vec<String>, Error> {
    let mounts = mountinfo::read().map_err(Error::io("/proc/self/mountinfo"))?;
    let target = if target.is_absolute() { HOME.into() } else { target.to_string_lossy() };
    let names = [target.into_owned()].into_iter().chain(also.iter().cloned());
    targets::machines(mount, &mounts, &names.collect::<Vec<_>>())
}

/// The stopped task on another node: stopped, and told to go on. If this fails, that node never runs it.
fn restore_there(host: Remote, sending: Sending, written: &Written) -> Result<Body, Error> {
    host.restore(sending, written)?;
    host.go()?;
    Ok(Body::There(host))
}

fn hear_asks(listener: &std::os::unix::net::UnixListener, events: &Sender<Event>) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            std::thread::sleep(std::time::Duration::from_millis(100));
            continue;
        };
        let Ok((caller, ask)) = Caller::hear(stream) else { continue };
        if events.send(Event::Ask(caller, ask)).is_err() {
            return;
        }
    }
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(run);
    thread.map(drop).map_err(Error::io("starting a thread"))
}

pub(super) fn told(error: &Error) -> ControlError {
    let kind = match error {
        Error::Usage(_) => ErrorKind::Usage,
        Error::Unsupported(_) => ErrorKind::Unsupported,
        Error::NotMounted(_) => ErrorKind::NotMounted,
        _ => ErrorKind::Failed,
    };
    ControlError::new(kind, error.to_string())
}

pub(super) fn ended() -> Error {
    Error::Failed("it has ended".into())
}

fn no_mount() -> Error {
    Error::Usage(
        "the task has no files on a mount, and is to go to one: start it with --mount".into(),
    )
}

pub(super) fn ms(time: std::time::Duration) -> f64 {
    (time.as_secs_f64() * 10_000.0).round() / 10.0
}
