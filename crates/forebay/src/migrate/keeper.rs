//! `forebay run-task`: the process that `forebay run` starts for a task that can be migrated. It has
//! the task wherever it is, prints what it prints, and ends as it ends.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

use super::criu::Criu;
use super::images::Images;
use super::mounts;
use super::protocol::{Answer, Ask, Caller, HOME, Moved, Spot, TaskRecord};
use super::refuse::{self, Route};
use super::targets;
use super::task::{Gate, Image, Sink, Stream, Task, wait_for_end};
use super::tree::{Remaps, Tree};
use crate::control::{ControlError, ErrorKind, WirePath};
use crate::error::Error;
use crate::mountinfo;
use crate::run::record::began;
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
}

/// What it hears of.
enum Event {
    /// The tree of this generation has ended.
    Ended(u64),
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
enum Place {
    /// Where it was started.
    Home,
    /// On this machine, with another mount in the place of its own.
    Mount(PathBuf),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Home => f.write_str(HOME),
            Self::Mount(path) => write!(f, "{}", path.display()),
        }
    }
}

struct Keeper {
    settings: Settings,
    spot: Spot,
    record: TaskRecord,
    sink: Arc<dyn Sink>,
    events: Sender<Event>,
    place: Place,
    generation: u64,
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
        ..TaskRecord::default()
    };
    let sink: Arc<dyn Sink> = Arc::new(Print);
    let dir = std::env::current_dir().map_err(Error::io("the current directory"))?;
    let task = Task::start(&settings.command, &dir, &sink);
    let task = task.inspect_err(|_| spot.clear())?;
    let (place, told_of_mounts) = (Place::Home, Arc::new(AtomicBool::new(false)));
    let mut keeper =
        Keeper { settings, spot, record, sink, events, place, generation: 0, told_of_mounts };
    let code = keeper.keep(task, &heard, listener);
    keeper.spot.clear();
    code
}

impl Keeper {
    fn keep(
        &mut self,
        task: Task,
        heard: &Receiver<Event>,
        listener: std::os::unix::net::UnixListener,
    ) -> Result<u8, Error> {
        self.watch(&task)?;
        let events = self.events.clone();
        thread("asked", move || hear_asks(&listener, &events))?;
        let events = self.events.clone();
        thread("signals", move || {
            while let Ok(signal) = signals::wait_for_end() {
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
        self.spot.note(&self.record)?;
        let mut task = Some(task);
        while let Ok(event) = heard.recv() {
            let Some(now) = task.as_mut() else { break };
            match event {
                Event::Ended(generation) if generation == self.generation => {
                    let (code, printing) = task.take().map(Task::ended).unwrap_or_default();
                    printing.finish();
                    return Ok(u8::try_from(code).unwrap_or(1));
                }
                Event::Ended(_) => {}
                Event::Signal(signal) => now.signal(signal),
                Event::Mounts => self.let_go(now),
                Event::Ask(mut caller, ask) => {
                    let moved = self.migrate(&mut task, &ask, &mut |text| {
                        caller.answer(&Answer::Doing(text.into()));
                    });
                    caller.answer(&match moved {
                        Ok(moved) => Answer::Moved(moved),
                        Err(error) => Answer::Failed(told(&error)),
                    });
                    // It has a copy of what was mounted when it was restored.
                    if let Some(now) = &task {
                        self.let_go(now);
                    }
                }
            }
        }
        Err(Error::Failed("nobody waits for the task any more".into()))
    }

    /// What is not mounted on this machine any more the task lets go of. If that fails, `umount` says who
    /// has it.
    fn let_go(&self, task: &Task) {
        self.told_of_mounts.store(false, Ordering::Release);
        let _ = mounts::let_go(task.init, self.settings.mount.as_deref());
    }

    /// Has the end of this tree be heard of.
    fn watch(&self, task: &Task) -> Result<(), Error> {
        let (init, generation, events) = (task.init, self.generation, self.events.clone());
        thread("watch", move || {
            wait_for_end(init);
            let _ = events.send(Event::Ended(generation));
        })
    }

    /// The whole of a migration. Whatever fails, the task is where it was, and runs.
    fn migrate(
        &mut self,
        slot: &mut Option<Task>,
        ask: &Ask,
        doing: &mut dyn FnMut(&str),
    ) -> Result<Moved, Error> {
        let criu = Criu::find()?;
        criu.check()?;
        let target = self.target(&ask.target.0)?;
        let Some(task) = slot.as_mut() else { return Err(Error::Failed("it has ended".into())) };
        let tree = Tree::of(task.init).map_err(Error::io("looking at the task"))?;
        let mount = self.settings.mount.clone();
        let route = Route { mount: mount.as_deref(), same_machine: true };
        let reasons = refuse::reasons(&tree, &route);
        if !reasons.is_empty() {
            return Err(Error::Unsupported(format!(
                "the task can't be migrated: {}",
                reasons.join("; ")
            )));
        }
        let images = Images::make(ask.images.as_ref().map(WirePath::as_path), tree.bytes())?;
        // What is written once more while the task is stopped is little then.
        let below = mount.as_deref().unwrap_or(Path::new("/"));
        let _ = tree.sync(below);
        let tree = Tree::of(task.init).map_err(Error::io("looking at the task"))?;
        let remaps = Remaps::of(&tree);
        doing("stopping the task and writing it down");
        let stopped = Instant::now();
        task.freeze(&criu, &tree, images.dir()).map_err(|error| {
            remaps.remove_new();
            Error::Failed(format!(
                "the task goes on where it was, it can't be written down: {error}"
            ))
        })?;
        let dumped = stopped.elapsed();
        doing("restoring it at the target");
        let gate = Gate::new(&self.sink);
        let restored = self.restore(task, &criu, &images, &target, &gate, below);
        let (files, new) = match restored {
            Ok(restored) => restored,
            Err(error) => {
                remaps.remove_new();
                task.go_on()?;
                return Err(Error::Failed(format!(
                    "the task goes on where it was, it can't be restored at {target}: {error}"
                )));
            }
        };
        let all = stopped.elapsed();
        // From here on the new one is the task.
        let Some(old) = slot.replace(new) else { return Err(Error::Failed("it has ended".into())) };
        self.generation += 1;
        old.doom();
        let going = slot.as_ref().map_or(Ok(()), |task| {
            self.watch(task)?;
            task.go_on()
        });
        let downtime = stopped.elapsed();
        gate.open_after(old.kill());
        going?;
        let from = std::mem::replace(&mut self.place, target);
        self.note();
        Ok(Moved {
            task: format!("{}/{}", self.settings.run, self.settings.job),
            from: from.to_string(),
            to: self.place.to_string(),
            downtime_ms: ms(downtime),
            dump_ms: ms(dumped),
            restore_ms: ms(all.saturating_sub(dumped)),
            bytes: images.bytes(),
            processes: tree.processes.len(),
            files,
        })
    }

    /// The stopped task as it is to be at the target, stopped.
    fn restore(
        &self,
        task: &Task,
        criu: &Criu,
        images: &Images,
        target: &Place,
        gate: &Arc<Gate>,
        below: &Path,
    ) -> Result<(usize, Task), Error> {
        let tree = Tree::of(task.init).map_err(Error::io("looking at the task"))?;
        if let Some(path) = tree.locked(below).map_err(Error::io("looking for locks"))? {
            return Err(Error::Failed(format!(
                "{}: locks on files can't be moved, and there is one, the task's or somebody else's",
                path.display()
            )));
        }
        let files = tree.sync(below).map_err(Error::io("writing the task's files"))?;
        let mount = match (target, self.settings.mount.as_deref()) {
            (Place::Mount(real), Some(seen)) => Some((seen, real.as_path())),
            _ => None,
        };
        let image =
            Image { dir: images.dir(), pipes: task.pipes, stopped: task.stopped.clone(), mount };
        let sink: Arc<dyn Sink> = Arc::clone(gate) as Arc<dyn Sink>;
        Ok((files, Task::restore(criu, &image, &sink)?))
    }

    /// Where somebody wants the task to be.
    fn target(&self, name: &Path) -> Result<Place, Error> {
        let own = self.settings.mount.as_deref();
        let target = match name == Path::new(HOME) || own == Some(name) {
            true => Place::Home,
            false => Place::Mount(name.to_owned()),
        };
        if target == self.place {
            return Err(Error::Usage(format!("the task is at {target} already")));
        }
        let Some(own) = own else {
            return Err(Error::Usage(
                "the task has no files on a mount, and is to go to one: start it with --mount"
                    .into(),
            ));
        };
        let mounts = mountinfo::read().map_err(Error::io("/proc/self/mountinfo"))?;
        let at = |place: &Place| match place {
            Place::Home => own.to_owned(),
            Place::Mount(path) => path.clone(),
        };
        targets::check(&at(&self.place), &at(&target), &mounts)?;
        Ok(target)
    }

    fn note(&mut self) {
        self.record.migrations += 1;
        self.record.place = (self.place != Place::Home).then(|| self.place.to_string());
        if let Err(error) = self.spot.note(&self.record) {
            crate::commands::warn(&format!("`forebay jobs` shows an old place: {error}"));
        }
    }
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

fn told(error: &Error) -> ControlError {
    let kind = match error {
        Error::Usage(_) => ErrorKind::Usage,
        Error::Unsupported(_) => ErrorKind::Unsupported,
        Error::NotMounted(_) => ErrorKind::NotMounted,
        _ => ErrorKind::Failed,
    };
    ControlError::new(kind, error.to_string())
}

fn ms(time: std::time::Duration) -> f64 {
    (time.as_secs_f64() * 10_000.0).round() / 10.0
}
