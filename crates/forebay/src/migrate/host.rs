//! `forebay host-task`: the process that has a task of another node. Its keeper there says what is to be
//! done; when the keeper is gone, the task is ended.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_peer::Address;
use forebay_peer::transport::Listener;

use super::body::Looked;
use super::channel::{self, Beginning, Frame, Incoming, Message, Outgoing, Saved, Written};
use super::coop::{self, Cooperation};
use super::criu::Criu;
use super::images::Images;
use super::mounts;
use super::protocol;
use super::refuse::Route;
use super::source::{self, Down};
use super::task::{Image, Printing, Sink, Start, Stream, Task, wait_for_end};
use super::transfer::{Arriving, Sending};
use crate::control::{ControlError, WirePath};
use crate::error::Error;
use crate::mountinfo;

/// How long the keeper may take to come.
const COMES_WITHIN: Duration = Duration::from_secs(60);
/// How long it may take to leave when all is said.
const LEAVES_WITHIN: Duration = Duration::from_secs(10);
/// Bytes that are printed ahead of whoever reads them.
const AHEAD: usize = 1 << 20;
/// Frames that wait to be looked at.
const WAITING: usize = 32;

/// What it is started with.
pub struct Settings {
    /// The mount that has the task's files here.
    pub mount: PathBuf,
    /// The host to listen on.
    pub listen: String,
    /// The file with the secret of the cluster.
    pub secret: PathBuf,
    /// The file with another one that is believed, too.
    pub other_secret: Option<PathBuf>,
}

/// What it hears of.
enum Event {
    Heard(Frame),
    /// The keeper is gone.
    Gone,
    /// The tree of this generation has ended.
    Ended(u64),
    /// Something was mounted or unmounted on this machine.
    Mounts,
}

/// Hosts one task. What is in the way is printed in place of a port.
pub fn run(settings: &Settings) -> Result<u8, Error> {
    let ready = prepare(settings);
    let (criu, token, listener) = match ready {
        Ok(ready) => ready,
        Err(error) => {
            // One line in place of the port.
            let told = error.to_string().replace('\n', " ");
            let _ = writeln!(io::stdout(), "{told}");
            return Err(error);
        }
    };
    let Some((out, incoming, open)) = come_in(&*listener, &token, COMES_WITHIN)? else {
        return Ok(0);
    };
    listener.close();
    let Message::Open { seen, bytes, by_itself, .. } = open else { return Ok(0) };
    let ready = check(settings, seen.as_path())
        .and_then(|()| get_ready(bytes, (!by_itself).then_some(&criu)));
    let (images, cooperation) = match ready {
        Ok(ready) => ready,
        Err(error) => return refuse(&out, incoming, &error),
    };
    let forward = Arc::new(Forward::new(out.clone()));
    let (events, heard) = mpsc::sync_channel(WAITING);
    let wanted = Arc::new(AtomicBool::new(false));
    hear(incoming, &events, &forward, &wanted)?;
    let told_of_mounts = Arc::new(AtomicBool::new(false));
    watch_mounts(&events, &told_of_mounts)?;
    out.say(&Message::Ready).map_err(Error::io("talking to the keeper"))?;
    let arriving = images.as_ref().map(|images| Arriving::into(images.dir()));
    let host = Host {
        real: settings.mount.clone(),
        seen: seen.0,
        criu,
        out,
        forward,
        events,
        images,
        arriving,
        cooperation,
        wanted,
        told_of_mounts,
        task: None,
        generation: 0,
        last_words: Vec::new(),
        down: None,
    };
    host.serve(&heard)
}

/// CRIU, or why it is not there: what a task that saves its state itself can do without.
type Restorer = Result<Criu, Error>;

/// Room for an image, if one is to come, and where the task registers to save its state.
fn get_ready(bytes: u64, criu: Option<&Restorer>) -> Result<(Option<Images>, Cooperation), Error> {
    if let Some(Err(error)) = criu {
        return Err(told(error).into());
    }
    let images = criu.map(|_| Images::make(None, bytes)).transpose()?;
    Ok((images, Cooperation::listen(protocol::host_socket()?)?))
}

fn prepare(settings: &Settings) -> Result<(Restorer, String, Box<dyn Listener>), Error> {
    let mut token = String::new();
    io::stdin().read_line(&mut token).map_err(Error::io("standard input"))?;
    let criu = Criu::find().and_then(|criu| criu.check().map(|()| criu));
    let other = settings.other_secret.as_deref();
    let listener = channel::listen(&settings.listen, &settings.secret, other)?;
    let Address::Tcp(at) = listener.address() else {
        return Err(Error::Failed("it does not listen by TCP".into()));
    };
    let port = at.rsplit_once(':').map_or("", |(_, port)| port);
    writeln!(io::stdout(), "{port}").map_err(Error::io("standard output"))?;
    Ok((criu, token.trim().to_owned(), listener))
}

/// The keeper, when it has come; nothing if it does not.
fn come_in(
    listener: &dyn Listener,
    token: &str,
    within: Duration,
) -> Result<Option<(Outgoing, Incoming, Message)>, Error> {
    let (came, talking) = (AtomicBool::new(false), Mutex::new(None::<Outgoing>));
    let talking = || talking.lock().unwrap_or_else(PoisonError::into_inner);
    let until = Instant::now() + within;
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            while !came.load(Ordering::Acquire) {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    listener.close();
                    // One who has the secret and says nothing.
                    if let Some(out) = talking().take() {
                        out.close();
                    }
                    return;
                }
                std::thread::park_timeout(left);
            }
        });
        let found = loop {
            let wire = match channel::accept(listener) {
                Ok(Some(wire)) => wire,
                Ok(None) => continue,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => break None,
                Err(_) => {
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                }
            };
            let Ok((out, mut incoming)) = channel::ways(wire) else { continue };
            *talking() = Some(out.clone());
            if until <= Instant::now() {
                out.close();
            }
            match incoming.hear() {
                Ok(Frame::Message(open @ Message::Open { .. })) if is_for(&open, token) => {
                    break Some((out, incoming, open));
                }
                _ => out.close(),
            }
        };
        came.store(true, Ordering::Release);
        waits.thread().unpark();
        Ok(found)
    })
}

fn is_for(open: &Message, expected: &str) -> bool {
    matches!(open, Message::Open { token, .. } if token == expected && !expected.is_empty())
}

/// Whether a task that sees its files there can be restored here.
fn check(settings: &Settings, seen: &Path) -> Result<(), Error> {
    let mounts = mountinfo::read().map_err(Error::io("/proc/self/mountinfo"))?;
    if !mountinfo::at(&mounts, &settings.mount).is_some_and(mountinfo::Mount::is_forebay) {
        return Err(Error::NotMounted(settings.mount.clone()));
    }
    match std::fs::symlink_metadata(seen) {
        Ok(found) if found.is_dir() => Ok(()),
        _ => Err(Error::Usage(format!(
            "the task sees its files at {0}, and there is no directory {0} on the node: make one, the \
             mount {1} is bound to it for the task alone",
            seen.display(),
            settings.mount.display()
        ))),
    }
}

/// Says why the task can't come, and waits until that was heard.
fn refuse(out: &Outgoing, mut incoming: Incoming, error: &Error) -> Result<u8, Error> {
    let _ = out.say(&Message::Failed(told(error)));
    while incoming.hear().is_ok() {}
    Ok(1)
}

fn told(error: &Error) -> ControlError {
    super::keeper::told(error)
}

fn hear(
    mut incoming: Incoming,
    events: &SyncSender<Event>,
    forward: &Arc<Forward>,
    wanted: &Arc<AtomicBool>,
) -> Result<(), Error> {
    let (events, forward, wanted) = (events.clone(), Arc::clone(forward), Arc::clone(wanted));
    let run = move || loop {
        let event = match incoming.hear() {
            Ok(Frame::Message(Message::Printed(bytes))) => {
                forward.printed(bytes);
                continue;
            }
            Ok(Frame::Message(Message::Deaf { err })) => {
                forward.stop(err);
                continue;
            }
            Ok(frame) => {
                let urgent = matches!(frame, Frame::Message(Message::Signal(_) | Message::Kill));
                wanted.fetch_or(urgent, Ordering::AcqRel);
                Event::Heard(frame)
            }
            Err(_) => {
                wanted.store(true, Ordering::Release);
                forward.out.close();
                forward.stop(false);
                forward.stop(true);
                let _ = events.send(Event::Gone);
                return;
            }
        };
        if events.send(event).is_err() {
            return;
        }
    };
    thread("keeper", run)
}

fn watch_mounts(events: &SyncSender<Event>, told_of_mounts: &Arc<AtomicBool>) -> Result<(), Error> {
    let events = events.clone();
    let told = Arc::clone(told_of_mounts);
    // If they can't be watched, `umount` says who has a mount.
    thread("mounts", move || {
        // Of many changes that follow on one another it is told once.
        let tell = || told.swap(true, Ordering::AcqRel) || events.send(Event::Mounts).is_ok();
        drop(mounts::tell_of_changes(tell));
    })
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(run);
    thread.map(drop).map_err(Error::io("starting a thread"))
}

/// Has the keeper print what the task prints, no faster than that is read.
struct Forward {
    out: Outgoing,
    state: Mutex<Ahead>,
    room: Condvar,
}

#[derive(Default)]
struct Ahead {
    /// Bytes that were sent and not printed yet.
    bytes: usize,
    /// Whether nobody reads standard output, or standard error, any more.
    deaf: [bool; 2],
}

impl Forward {
    fn new(out: Outgoing) -> Self {
        Self { out, state: Mutex::default(), room: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, Ahead> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn printed(&self, bytes: usize) {
        let mut state = self.state();
        state.bytes = state.bytes.saturating_sub(bytes);
        self.room.notify_all();
    }

    fn stop(&self, err: bool) {
        self.state().deaf[usize::from(err)] = true;
        self.room.notify_all();
    }
}

impl Sink for Forward {
    fn put(&self, stream: Stream, bytes: &[u8]) -> bool {
        let deaf = usize::from(stream == Stream::Err);
        let mut state = self.state();
        while state.bytes >= AHEAD && !state.deaf[deaf] {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.deaf[deaf] {
            return false;
        }
        state.bytes += bytes.len();
        drop(state);
        self.out.print(stream, bytes).is_ok()
    }
}

/// What it has of the task.
struct Host {
    real: PathBuf,
    seen: PathBuf,
    criu: Restorer,
    out: Outgoing,
    forward: Arc<Forward>,
    events: SyncSender<Event>,
    images: Option<Images>,
    arriving: Option<Arriving>,
    cooperation: Cooperation,
    /// Whether the keeper wants something that can't wait until a task has saved its state.
    wanted: Arc<AtomicBool>,
    /// Whether an event of mounts waits to be heard.
    told_of_mounts: Arc<AtomicBool>,
    task: Option<Task>,
    /// Which of its trees the task is: one that was started anew is another one.
    generation: u64,
    /// Of those before it.
    last_words: Vec<Printing>,
    down: Option<Down>,
}

impl Host {
    /// Until the task has ended, here or as a whole. It is ended with the value.
    fn serve(mut self, heard: &Receiver<Event>) -> Result<u8, Error> {
        while let Ok(event) = heard.recv() {
            match event {
                Event::Heard(Frame::Piece(bytes)) => {
                    let arriving = self.arriving.as_mut();
                    let taken = arriving.map_or(Ok(()), |arriving| arriving.piece(&bytes));
                    taken.map_err(Error::io("writing the image"))?;
                }
                Event::Heard(Frame::Message(Message::Kill)) => {
                    self.last_words.extend(self.task.take().map(Task::kill));
                    self.last_words.into_iter().for_each(Printing::wait);
                    return Ok(0);
                }
                Event::Heard(Frame::Message(message)) => self.obey(message)?,
                Event::Heard(Frame::Print(..)) => {}
                Event::Gone => return Ok(1),
                Event::Ended(generation) if generation != self.generation => {}
                Event::Ended(_) => {
                    let Some(task) = self.task.take() else { continue };
                    let (code, printing) = task.ended();
                    printing.wait();
                    let said = self.out.say(&Message::Ended(code));
                    said.map_err(Error::io("talking to the keeper"))?;
                    // So that what was sent last is not lost with the connection.
                    while !matches!(heard.recv_timeout(LEAVES_WITHIN), Ok(Event::Gone) | Err(_)) {}
                    return Ok(0);
                }
                Event::Mounts => {
                    self.told_of_mounts.store(false, Ordering::Release);
                    if let Some(task) = &self.task {
                        let _ = mounts::let_go(task.init, Some(&self.seen));
                    }
                }
            }
        }
        Ok(1)
    }

    fn obey(&mut self, message: Message) -> Result<(), Error> {
        let answer = match message {
            Message::File(name) => {
                let arriving = self.arriving.as_mut();
                let made = arriving.map_or(Ok(()), |arriving| arriving.file(&name));
                return made.map_err(Error::io("writing the image"));
            }
            Message::Signal(signal) => {
                self.wanted.store(false, Ordering::Release);
                if let Some(task) = &self.task {
                    task.signal(signal);
                }
                return Ok(());
            }
            Message::Resume => return self.resume(),
            Message::Restore(written) => self.restore(written).map(|()| Message::Restored),
            Message::Go => {
                // If it fails, this process ends, and the task with it: of that the keeper hears.
                self.go()?;
                let said = self.out.say(&Message::Going);
                self.images = None;
                return said.map_err(Error::io("talking to the keeper"));
            }
            Message::Look => {
                self.look().map(|Looked { bytes, by_itself }| Message::Looked { bytes, by_itself })
            }
            Message::Start(beginning) => self.start(*beginning).map(|()| Message::Started),
            Message::Save { within_ms } => self.save(within_ms).map(Message::Saved),
            Message::Finish => self.finish().map(|()| Message::Finished),
            Message::Freeze => self.freeze().map(Message::Frozen),
            _ => Err(Error::Failed("the keeper says something that does not fit".into())),
        };
        let answer = answer.unwrap_or_else(|error| Message::Failed(told(&error)));
        self.out.say(&answer).map_err(Error::io("talking to the keeper"))
    }

    fn restore(&mut self, written: Written) -> Result<(), Error> {
        self.arriving = None;
        let images = self.images.as_ref().ok_or_else(no_task)?;
        let criu = self.criu.as_ref().map_err(|error| Error::from(told(error)))?;
        let mount = (self.seen != self.real).then_some((&*self.seen, &*self.real));
        let Written { pipes, stopped, .. } = written;
        let image = Image { dir: images.dir(), pipes, stopped, mount };
        let sink = Arc::clone(&self.forward) as Arc<dyn Sink>;
        let task = Task::restore(criu, &image, &sink)?;
        self.cooperation.expect(task.init);
        self.task = Some(task);
        Ok(())
    }

    /// Starts a task that has saved its state, so that it waits.
    fn start(&mut self, beginning: Beginning) -> Result<(), Error> {
        let Beginning { command, dir, env } = beginning;
        let word = |word: WirePath| OsString::from(word.0);
        let mut start = Start {
            command: command.into_iter().map(word).collect(),
            dir: dir.0,
            env: env.into_iter().map(|(name, value)| (word(name), word(value))).collect(),
            mount: (self.seen != self.real).then(|| (self.seen.clone(), self.real.clone())),
        };
        start.set(coop::VARIABLE, self.cooperation.socket());
        let sink = Arc::clone(&self.forward) as Arc<dyn Sink>;
        let task = Task::start(&start, &sink)?;
        self.cooperation.expect(task.init);
        self.task = Some(task);
        Ok(())
    }

    fn save(&mut self, within_ms: u64) -> Result<Saved, Error> {
        let task = self.task.as_ref().ok_or_else(no_task)?;
        let route = Route { mount: Some(&self.seen), same_machine: false };
        let within = Duration::from_millis(within_ms);
        source::save(task, &self.cooperation, &route, &self.seen, within, &self.wanted)
    }

    /// Has the task end, whose state is saved. What has the task's place stays: it may have to begin here
    /// again.
    fn finish(&mut self) -> Result<(), Error> {
        let task = self.task.as_ref().ok_or_else(no_task)?;
        source::finish(task, &self.cooperation)?;
        self.generation += 1;
        self.last_words.extend(self.task.take().map(Task::kill));
        Ok(())
    }

    fn go(&mut self) -> Result<(), Error> {
        let task = self.task.as_ref().ok_or_else(no_task)?;
        let (init, generation, events) = (task.init, self.generation, self.events.clone());
        thread("watch", move || {
            wait_for_end(init);
            let _ = events.send(Event::Ended(generation));
        })?;
        task.go_on()
    }

    fn look(&self) -> Result<Looked, Error> {
        let task = self.task.as_ref().ok_or_else(no_task)?;
        source::sync_ahead(task, &self.seen);
        let route = Route { mount: Some(&self.seen), same_machine: false };
        source::look(task, &route, &self.cooperation)
    }

    /// Stops the task and sends it. If that fails, it goes on here, unless the keeper is gone.
    fn freeze(&mut self) -> Result<Written, Error> {
        let task = self.task.as_mut().ok_or_else(no_task)?;
        let route = Route { mount: Some(&self.seen), same_machine: false };
        let criu = self.criu.as_ref().map_err(|error| Error::from(told(error)))?;
        let images = Images::make(None, source::look(task, &route, &self.cooperation)?.bytes)?;
        let sending = Sending::start(images.dir(), &self.out);
        let sending = sending.map_err(Error::io("starting a thread"))?;
        let down = source::write_down(task, criu, images.dir(), &self.seen);
        // Also if that failed: nothing of it may come after the answer.
        let sent = sending.finish();
        let down = down?;
        if let Err(error) = sent {
            if self.out.is_closed() {
                // Somebody may have begun it anew.
                down.give_up();
            } else {
                down.go_on(task)?;
            }
            return Err(Error::io("sending the image")(error));
        }
        let written = down.written.clone();
        self.down = Some(down);
        Ok(written)
    }

    /// Nothing came of it.
    fn resume(&mut self) -> Result<(), Error> {
        match (self.down.take(), &self.task) {
            (Some(down), Some(task)) => down.go_on(task),
            _ => {
                self.cooperation.stay();
                Ok(())
            }
        }
    }
}

fn no_task() -> Error {
    Error::Failed("there is no task".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn keeper_when_it_has_the_secret_and_says_nothing_then_not_waited_for_any_longer() {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        std::fs::write(&secret, [7; 32]).unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        let listener = channel::listen("127.0.0.1", &secret, None).unwrap();
        let Address::Tcp(at) = listener.address() else { panic!("not TCP") };
        let silent = std::thread::spawn(move || {
            let (_out, mut incoming) =
                channel::ways(channel::connect(&at, &secret, None).unwrap()).unwrap();
            assert!(incoming.hear().is_err());
        });
        assert!(come_in(&*listener, "abc", Duration::from_secs(1)).unwrap().is_none());
        silent.join().unwrap();
    }

    #[test]
    fn token_when_not_that_of_the_host_or_empty_then_not_let_in() {
        let open = |token: &str| {
            let (token, seen) = (token.into(), "/m".into());
            Message::Open { token, seen, bytes: 0, by_itself: false }
        };
        assert!(is_for(&open("abc"), "abc"));
        assert!(!is_for(&open("abd"), "abc") && !is_for(&open(""), ""));
        assert!(!is_for(&Message::Ready, "abc"));
    }
}
