//! Tasks that save their state themselves, where that can't be done for them: they register at a socket
//! of whoever has them, and are told by a signal.
//!
//! What is said are lines. The task: `register 1 SIGNAL`, and when it was asked `saved N STATE` or
//! `refused N REASON`. The other side: `ok` or `no REASON`, `save N` with the signal, and what becomes of it,
//! `end N` or `stay N`. N counts the requests: what comes late for one that was given up fits no other.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal};

use super::protocol::is_ours;
use crate::error::Error;

/// The variable that says where a task registers.
pub const VARIABLE: &str = "FOREBAY_CHECKPOINT";
/// The longest line.
const MAX_LINE: u64 = 8 << 10;
/// How long somebody who has connected may take to register, and a line to be sent.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Between two looks whether somebody does not want to wait any longer.
const LOOK: Duration = Duration::from_millis(20);
/// Connections at a time: there is one that counts.
const MAX: usize = 8;

/// Where a task registers, and who has.
pub struct Cooperation {
    socket: PathBuf,
    shared: Arc<Registrations>,
}

/// Who has registered, for the threads that ask and answer.
#[derive(Default)]
struct Registrations {
    state: Mutex<State>,
    changed: Condvar,
    connections: AtomicUsize,
}

#[derive(Default)]
struct State {
    /// The first process of the task.
    init: i32,
    who: Option<Registered>,
    /// How many have registered so far.
    registered: u64,
    /// Requests so far.
    asked: u64,
    /// What was said to one.
    answer: Option<(u64, Said)>,
}

struct Registered {
    number: u64,
    out: UnixStream,
    process: OwnedFd,
    signal: Signal,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    Saved(String),
    Refused(String),
}

impl Registrations {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cooperation {
    /// Listens there, for the task of which this process is the first.
    pub fn listen(socket: PathBuf) -> Result<Self, Error> {
        let failed = || Error::io(socket.display().to_string());
        match std::fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed()(error)),
            _ => {}
        }
        let listener = UnixListener::bind(&socket).map_err(failed())?;
        std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o600))
            .map_err(failed())?;
        let shared = Arc::new(Registrations::default());
        let for_thread = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("checkpoint".into())
            .spawn(move || accept(&listener, &for_thread))
            .map_err(Error::io("starting a thread"))?;
        Ok(Self { socket, shared })
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// From now on this is the first process of the task. Nobody has registered of that.
    pub fn expect(&self, init: i32) {
        let mut state = self.shared.state();
        (state.init, state.who) = (init, None);
        self.shared.changed.notify_all();
    }

    /// Whether the task saves its state itself.
    pub fn is_registered(&self) -> bool {
        self.shared.state().who.is_some()
    }

    /// Has the task save its state, and returns what it says of that. Then it waits for [`Self::end`] or
    /// [`Self::stay`]. If this fails, it goes on, unless it has ended; `stop` says that nobody waits any more.
    pub fn save(&self, within: Duration, stop: &AtomicBool) -> Result<String, Error> {
        let until = Instant::now() + within;
        let mut state = self.shared.state();
        state.asked += 1;
        let asked = state.asked;
        state.answer = None;
        let who = state.who.as_mut().ok_or_else(gone)?;
        let number = who.number;
        who.say(&format!("save {asked}"))?;
        who.wake()?;
        loop {
            if let Some((_, said)) = state.answer.take_if(|(answered, _)| *answered == asked) {
                let why = match said {
                    Said::Saved(text) => return Ok(text),
                    Said::Refused(why) => why,
                };
                let _ = state.tell("stay");
                return Err(Error::Failed(format!("it refuses: {why}")));
            }
            if state.who.as_ref().is_none_or(|who| who.number != number) {
                return Err(Error::Failed(
                    "the process that saves its state has ended, or let go of that".into(),
                ));
            }
            let why = match (stop.load(Ordering::Acquire), Instant::now() < until) {
                (true, _) => Some("somebody else wants something of it".to_owned()),
                (_, false) => {
                    Some(format!("it has not saved its state within {:.1} s", within.as_secs_f64()))
                }
                _ => None,
            };
            if let Some(why) = why {
                // If it hears that late, it has lost nothing but time.
                let _ = state.tell("stay");
                return Err(Error::Failed(why));
            }
            let waited = self.shared.changed.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The saved task goes on where it is.
    pub fn stay(&self) {
        let _ = self.shared.state().tell("stay");
    }

    /// The saved task is to end: it goes on elsewhere. An error says that it was not told.
    pub fn end(&self) -> Result<(), Error> {
        self.shared.state().tell("end")
    }
}

impl Drop for Cooperation {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl State {
    fn tell(&mut self, what: &str) -> Result<(), Error> {
        let asked = self.asked;
        self.who.as_mut().ok_or_else(gone)?.say(&format!("{what} {asked}"))
    }
}

impl Registered {
    fn say(&mut self, line: &str) -> Result<(), Error> {
        let said = self.out.write_all(format!("{line}\n").as_bytes());
        said.map_err(Error::io("telling the task"))
    }

    fn wake(&self) -> Result<(), Error> {
        rustix::process::pidfd_send_signal(&self.process, self.signal)
            .map_err(|error| Error::io("telling the task by a signal")(error.into()))
    }
}

fn gone() -> Error {
    Error::Failed("no process of it is registered to save its state".into())
}

fn accept(listener: &UnixListener, shared: &Arc<Registrations>) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if shared.connections.fetch_add(1, Ordering::AcqRel) >= MAX {
            shared.connections.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        let for_thread = Arc::clone(shared);
        let serve = move || {
            // Whoever does not keep to the rules is let go of; the task hears that.
            let _ = serve(stream, &for_thread);
            for_thread.connections.fetch_sub(1, Ordering::AcqRel);
        };
        if std::thread::Builder::new().name("checkpoint".into()).spawn(serve).is_err() {
            shared.connections.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

fn serve(stream: UnixStream, shared: &Registrations) -> io::Result<()> {
    is_ours(&stream)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut out = stream.try_clone()?;
    let pid = rustix::net::sockopt::socket_peercred(&stream)?.pid;
    let mut lines = BufReader::new(stream);
    let Some(line) = line_of(&mut lines)? else { return Ok(()) };
    let number = match register(&line, pid, &out, shared) {
        Ok(number) => number,
        Err(why) => return out.write_all(format!("no {why}\n").as_bytes()),
    };
    lines.get_ref().set_read_timeout(None)?;
    let ended = hear(&mut lines, shared);
    let mut state = shared.state();
    if state.who.as_ref().is_some_and(|who| who.number == number) {
        state.who = None;
    }
    shared.changed.notify_all();
    ended
}

/// Takes a process for the one that saves the task's state, and says so to it before anything else.
fn register(line: &str, pid: Pid, out: &UnixStream, shared: &Registrations) -> Result<u64, String> {
    let number = line.strip_prefix("register 1 ").and_then(|signal| signal.parse().ok());
    let number: i32 = number.ok_or("this is no version of the protocol that is known here")?;
    let usable = |signal: &Signal| ![Signal::KILL, Signal::STOP, Signal::CONT].contains(signal);
    let signal = Signal::from_named_raw(number).filter(usable);
    let signal = signal.ok_or("this signal can't be used for it")?;
    let process = rustix::process::pidfd_open(pid, PidfdFlags::empty());
    let process = process.map_err(|error| error.to_string())?;
    let mut state = shared.state();
    let namespace = |pid: i32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let theirs = namespace(pid.as_raw_nonzero().get());
    if theirs.is_none() || theirs != namespace(state.init) {
        return Err("the process is not part of this task".into());
    }
    if state.who.is_some() {
        return Err("another process of this task is registered already".into());
    }
    let mut out = out.try_clone().map_err(|error| error.to_string())?;
    out.write_all(b"ok\n").map_err(|error| error.to_string())?;
    state.registered += 1;
    let number = state.registered;
    state.who = Some(Registered { number, out, process, signal });
    Ok(number)
}

fn hear(lines: &mut impl BufRead, shared: &Registrations) -> io::Result<()> {
    while let Some(line) = line_of(lines)? {
        let mut words = line.splitn(3, ' ');
        let (what, asked) = (words.next(), words.next().and_then(|word| word.parse().ok()));
        let rest = words.next().unwrap_or_default().to_owned();
        let said = match what {
            Some("saved") => Said::Saved(rest),
            Some("refused") => Said::Refused(rest),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        shared.state().answer = Some((asked.ok_or(io::ErrorKind::InvalidData)?, said));
        shared.changed.notify_all();
    }
    Ok(())
}

/// The next line, without its end; nothing at the end.
fn line_of(lines: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    lines.take(MAX_LINE).read_until(b'\n', &mut line)?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => String::from_utf8(line)
            .map(Some)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)),
        Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "a line is too long")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocked here, so that the test's own process can be told by it.
    const SIGNAL: i32 = libc::SIGURG;

    fn listening(dir: &Path) -> Cooperation {
        let cooperation = Cooperation::listen(dir.join("s")).unwrap();
        cooperation.expect(rustix::process::getpid().as_raw_nonzero().get());
        cooperation
    }

    struct Program(UnixStream, BufReader<UnixStream>);

    impl Program {
        fn connect(to: &Cooperation, line: &str) -> (Self, String) {
            let stream = UnixStream::connect(to.socket()).unwrap();
            let mut program = Self(stream.try_clone().unwrap(), BufReader::new(stream));
            program.say(line);
            let answer = program.hear();
            (program, answer)
        }

        fn say(&mut self, line: &str) {
            writeln!(self.0, "{line}").unwrap();
        }

        fn hear(&mut self) -> String {
            line_of(&mut self.1).unwrap().unwrap_or_default()
        }
    }

    fn register() -> String {
        format!("register 1 {SIGNAL}")
    }

    #[test]
    fn task_when_asked_then_saves_and_hears_what_becomes_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let cooperation = listening(dir.path());
        assert!(!cooperation.is_registered());
        let (mut program, ok) = Program::connect(&cooperation, &register());
        assert_eq!(ok, "ok");
        assert!(cooperation.is_registered());
        let (_other, refused) = Program::connect(&cooperation, &register());
        assert_eq!(refused, "no another process of this task is registered already");
        let save =
            |limit: u64| cooperation.save(Duration::from_millis(limit), &AtomicBool::new(false));
        std::thread::scope(|scope| {
            let saved = scope.spawn(|| save(60_000));
            assert_eq!(program.hear(), "save 1");
            program.say("saved 1 /a state/of it");
            assert_eq!(saved.join().unwrap().unwrap(), "/a state/of it");
            cooperation.stay();
            assert_eq!(program.hear(), "stay 1");
            let saved = scope.spawn(|| save(60_000));
            assert_eq!(program.hear(), "save 2");
            program.say("refused 2 not now");
            assert!(saved.join().unwrap().unwrap_err().to_string().contains("not now"));
            assert_eq!(program.hear(), "stay 2");
            // Too late, and then in step again.
            assert!(save(50).unwrap_err().to_string().contains("within 0.1 s"));
            assert_eq!((program.hear(), program.hear()), ("save 3".into(), "stay 3".into()));
            let saved = scope.spawn(|| save(60_000));
            assert_eq!(program.hear(), "save 4");
            program.say("saved 3 late");
            program.say("saved 4 in time");
            assert_eq!(saved.join().unwrap().unwrap(), "in time");
            cooperation.end().unwrap();
            assert_eq!(program.hear(), "end 4");
            let saved = scope.spawn(|| save(60_000));
            assert_eq!(program.hear(), "save 5");
            drop(program);
            assert!(saved.join().unwrap().unwrap_err().to_string().contains("has ended"));
        });
        assert!(!cooperation.is_registered());
        assert!(cooperation.end().is_err());
    }

    #[test]
    fn process_when_not_of_the_task_or_of_another_version_then_refused() {
        let dir = tempfile::tempdir().unwrap();
        let cooperation = listening(dir.path());
        for (line, part) in [
            ("register 2 10".to_owned(), "version"),
            (format!("register 1 {}", libc::SIGKILL), "signal"),
            ("hello".to_owned(), "version"),
        ] {
            let (_program, answer) = Program::connect(&cooperation, &line);
            assert!(answer.starts_with("no ") && answer.contains(part), "{answer}");
        }
        cooperation.expect(0);
        let (_program, answer) = Program::connect(&cooperation, &register());
        assert_eq!(answer, "no the process is not part of this task");
    }

    #[test]
    fn save_when_somebody_wants_something_else_then_given_up_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let cooperation = listening(dir.path());
        let (mut program, _) = Program::connect(&cooperation, &register());
        let error = cooperation.save(Duration::from_secs(600), &AtomicBool::new(true)).unwrap_err();
        assert!(error.to_string().contains("somebody else"));
        assert_eq!((program.hear(), program.hear()), ("save 1".into(), "stay 1".into()));
    }
}
