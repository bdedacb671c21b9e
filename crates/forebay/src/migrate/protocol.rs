//! How a task that can be migrated is found, and asked: a record and a socket in the runtime directory,
//! for its owner alone.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::control::{ControlError, WirePath, make_private_dir, runtime_dir};
use crate::error::Error;
use crate::run::record::began;

/// The longest line of the protocol, and the longest record.
const MAX_BYTES: u64 = 64 << 10;
/// How long somebody who has connected may take to say what he wants.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What is noted of a task while it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskRecord {
    /// The run that it is part of.
    pub run: String,
    /// The job.
    pub job: String,
    /// The process that keeps it.
    pub pid: i32,
    /// When that process began, as the kernel counts.
    pub process_began: u64,
    /// Where it is; nothing where it was started.
    pub place: Option<String>,
    /// How often it was migrated.
    pub migrations: u64,
    /// The mount of its files.
    pub mount: Option<WirePath>,
    /// The node where it is, if that is another one than where it was started.
    pub node: Option<u16>,
    /// When it was last migrated, in milliseconds since 1970.
    pub moved_ms: Option<u64>,
}

/// What a task is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// Where it shall go: [`HOME`], a mount point, or a node.
    pub target: WirePath,
    /// Further nodes that one which saves its state itself shall use from then on.
    #[serde(default)]
    pub also: Vec<String>,
    /// How long that may take, in milliseconds.
    #[serde(default = "save_within_ms")]
    pub save_within_ms: u64,
    /// Where its image goes in between.
    pub images: Option<WirePath>,
}

impl Ask {
    /// To go to this node, as if nothing else had been said.
    pub fn to(node: String) -> Self {
        Self {
            target: node.into(),
            also: Vec::new(),
            save_within_ms: save_within_ms(),
            images: None,
        }
    }
}

/// How long a task may take to save its state unless somebody says otherwise.
const SAVE_WITHIN: Duration = Duration::from_secs(60);

fn save_within_ms() -> u64 {
    u64::try_from(SAVE_WITHIN.as_millis()).unwrap_or(u64::MAX)
}

/// The target that stands for where a task was started.
pub const HOME: &str = "home";

/// What it answers: any number of the first, then one of the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// What is being done.
    Doing(String),
    /// It was migrated.
    Moved(Moved),
    /// It was not, and goes on where it was.
    Failed(ControlError),
}

/// What a migration came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Moved {
    /// The task: run and job.
    pub task: String,
    /// Where it was.
    pub from: String,
    /// Where it is.
    pub to: String,
    /// Milliseconds for which nothing of it ran.
    pub downtime_ms: f64,
    /// Of these, until all of it was written down.
    pub dump_ms: f64,
    /// Until it was there again.
    pub restore_ms: f64,
    /// Bytes of its image.
    pub bytes: u64,
    /// Its processes.
    pub processes: usize,
    /// Files that were open for writing, and brought to where the target sees them.
    pub files: usize,
    /// Whether it saved its state itself, and was started anew.
    pub by_itself: bool,
}

/// Where the record and the socket of a task are.
#[derive(Clone, Debug)]
pub struct Spot {
    record: PathBuf,
    socket: PathBuf,
}

/// Where a task registers that this process has for another node.
pub fn host_socket() -> Result<PathBuf, Error> {
    let parent = dir();
    make_private_dir(&parent, rustix::process::geteuid().as_raw())?;
    remove_sockets_of_dead_hosts(&parent);
    Ok(parent.join(format!("{HOST}{}.save", std::process::id())))
}

/// How the names of the sockets of hosts begin.
const HOST: &str = "host-";

fn remove_sockets_of_dead_hosts(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(HOST)?.strip_suffix(".save"));
        let pid = pid.and_then(|pid| pid.parse::<i32>().ok());
        if pid.is_some_and(|pid| began(pid).is_none()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn dir() -> PathBuf {
    runtime_dir(rustix::process::geteuid().as_raw()).join("tasks")
}

impl Spot {
    /// That of this job.
    pub fn of(run: &str, job: &str) -> Self {
        let hash = xxhash_rust::xxh3::xxh3_64(format!("{run}/{job}").as_bytes());
        let at = dir().join(format!("{hash:016x}"));
        Self { record: at.with_extension("json"), socket: at.with_extension("sock") }
    }

    /// Listens there.
    pub fn listen(&self) -> Result<UnixListener, Error> {
        let parent = dir();
        make_private_dir(&parent, rustix::process::geteuid().as_raw())?;
        let failed = || Error::io(self.socket.display().to_string());
        match fs::remove_file(&self.socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed()(error)),
            _ => {}
        }
        let listener = UnixListener::bind(&self.socket).map_err(failed())?;
        fs::set_permissions(&self.socket, fs::Permissions::from_mode(0o600)).map_err(failed())?;
        Ok(listener)
    }

    /// Notes how the task is.
    pub fn note(&self, record: &TaskRecord) -> Result<(), Error> {
        let failed = || Error::io(self.record.display().to_string());
        let text = serde_json::to_vec(record).map_err(|error| failed()(error.into()))?;
        let new = self.record.with_extension("new");
        let mut options = File::options();
        let mut file = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)
            .map_err(failed())?;
        file.write_all(&text).map_err(failed())?;
        fs::rename(&new, &self.record).map_err(failed())
    }

    /// Where its task registers to save its state.
    pub fn save_socket(&self) -> PathBuf {
        self.socket.with_extension("save")
    }

    /// Takes all of it away.
    pub fn clear(&self) {
        let _ = fs::remove_file(self.save_socket());
        let _ = fs::remove_file(&self.record);
        let _ = fs::remove_file(&self.socket);
    }
}

/// The tasks of this user that can be migrated. What dead ones have left is removed.
pub fn all() -> Vec<(TaskRecord, Spot)> {
    let entries = fs::read_dir(dir()).into_iter().flatten().flatten().map(|entry| entry.path());
    let records = entries.filter(|path| path.extension().is_some_and(|end| end == "json"));
    let mut found = Vec::new();
    for path in records {
        let Some(record) = read(&path) else { continue };
        let spot = Spot { socket: path.with_extension("sock"), record: path };
        match began(record.pid) == Some(record.process_began) {
            true => found.push((record, spot)),
            false => spot.clear(),
        }
    }
    found.sort_by(|a, b| (&a.0.run, &a.0.job).cmp(&(&b.0.run, &b.0.job)));
    found
}

fn read(path: &Path) -> Option<TaskRecord> {
    let found = fs::symlink_metadata(path).ok()?;
    let own = found.uid() == rustix::process::geteuid().as_raw();
    if !found.is_file() || !own || found.len() > MAX_BYTES {
        return None;
    }
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// The task that somebody means: `RUN/JOB`, or a run or a job if that is one task alone.
pub fn choose(tasks: Vec<(TaskRecord, Spot)>, name: &str) -> Result<(TaskRecord, Spot), Error> {
    let is = |task: &TaskRecord| {
        task.run == name || task.job == name || format!("{}/{}", task.run, task.job) == name
    };
    let (mut found, others): (Vec<_>, Vec<_>) = tasks.into_iter().partition(|(task, _)| is(task));
    let list = |tasks: &[(TaskRecord, Spot)]| {
        let names = tasks.iter().take(10).map(|(task, _)| format!("{}/{}", task.run, task.job));
        names.collect::<Vec<_>>().join(", ")
    };
    match found.len() {
        1 => Ok(found.remove(0)),
        0 if others.is_empty() => Err(Error::Failed(format!(
            "no task {name}: none of yours runs on this machine that was started with `forebay run \
             --migratable`"
        ))),
        0 => Err(Error::Failed(format!("no task {name}; there are {}", list(&others)))),
        _ => Err(Error::Usage(format!("{name} may be each of {}: name one", list(&found)))),
    }
}

impl Spot {
    /// Asks the task, and hears what is said meanwhile.
    pub fn ask(&self, ask: &Ask, doing: &mut dyn FnMut(&str)) -> Result<Moved, Error> {
        let mut stream = UnixStream::connect(&self.socket)
            .map_err(Error::io(self.socket.display().to_string()))?;
        is_ours(&stream).map_err(Error::io("the task's socket"))?;
        send(&mut stream, ask).map_err(Error::io("asking the task"))?;
        let mut reader = BufReader::new(stream);
        loop {
            let answer = receive(&mut reader).map_err(Error::io("waiting for the task"))?;
            match answer {
                Some(Answer::Doing(text)) => doing(&text),
                Some(Answer::Moved(moved)) => return Ok(moved),
                Some(Answer::Failed(error)) => return Err(error.into()),
                None => return Err(Error::Failed("the task ended before it was migrated".into())),
            }
        }
    }
}

/// Somebody who has connected to a task, and what he asks.
pub struct Caller(UnixStream);

impl Caller {
    /// Hears what he wants.
    pub fn hear(stream: UnixStream) -> io::Result<(Self, Ask)> {
        is_ours(&stream)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let mut reader = BufReader::new(stream);
        let ask = receive(&mut reader)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok((Self(reader.into_inner()), ask))
    }

    /// Answers. Whoever does not listen any more is not waited for.
    pub fn answer(&mut self, answer: &Answer) {
        let _ = send(&mut self.0, answer);
    }
}

/// Only processes of the same user, or of root, are talked to.
pub(super) fn is_ours(stream: &UnixStream) -> io::Result<()> {
    let them = rustix::net::sockopt::socket_peercred(stream)?.uid;
    match them == rustix::process::geteuid() || them.is_root() {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("the process at the other end belongs to user {}", them.as_raw()),
        )),
    }
}

fn send(stream: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.write_all(&line)
}

fn receive<T: DeserializeOwned>(reader: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    reader.take(MAX_BYTES).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&line)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(run: &str, job: &str) -> (TaskRecord, Spot) {
        let record = TaskRecord { run: run.into(), job: job.into(), ..TaskRecord::default() };
        (record, Spot::of(run, job))
    }

    #[test]
    fn task_when_named_in_full_or_by_what_is_its_own_then_found() {
        let tasks = || vec![task("r1", "a"), task("r1", "b"), task("r2", "b"), task("r2", "c")];
        let of = |name: &str| choose(tasks(), name).map(|(task, _)| (task.run, task.job));
        assert_eq!(of("r1/b").unwrap(), ("r1".into(), "b".into()));
        assert_eq!(of("a").unwrap(), ("r1".into(), "a".into()));
        assert!(of("b").unwrap_err().to_string().contains("r1/b, r2/b"));
        assert!(of("z").unwrap_err().to_string().contains("there are r1/a"));
        let none = choose(vec![], "z").unwrap_err().to_string();
        assert!(none.contains("--migratable"), "{none}");
        assert_eq!(choose(vec![task("r3", "x")], "r3").unwrap().0.job, "x");
    }

    #[test]
    fn lines_when_sent_then_received_and_too_long_ones_refused() {
        let target = "/mnt/b".into();
        let ask = Ask { target, also: vec!["n2".into()], save_within_ms: 7, images: None };
        let mut line = Vec::new();
        send(&mut line, &ask).unwrap();
        assert_eq!(receive::<Ask>(&mut &line[..]).unwrap(), Some(ask));
        assert_eq!(receive::<Ask>(&mut &b""[..]).unwrap(), None);
        let long = vec![b'x'; 100 << 10];
        assert!(receive::<Ask>(&mut &long[..]).is_err());
    }
}
