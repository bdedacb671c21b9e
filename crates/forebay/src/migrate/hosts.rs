//! What daemons do for tasks that go from one node to another: the one asks, the other starts the
//! process that will have the task.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

use super::{images, launch};
use crate::config::{ClusterSettings, MountConfig};
use crate::control::{ControlError, ControlResult, ErrorKind, TaskHost};

/// Bytes of the token that says for which task a connection is.
const TOKEN_BYTES: usize = 16;
/// How long a process may take to get ready: whoever asked waits no longer than 20 s.
const READY_WITHIN: Duration = Duration::from_secs(15);
/// The longest line that it says.
const MAX_LINE: usize = 1024;
/// So many get ready at once: each holds one of the threads that serve other nodes.
const MAX_AT_ONCE: usize = 4;
static GETTING_READY: AtomicUsize = AtomicUsize::new(0);

/// Where the node that is to host a task can be reached: what it says.
#[derive(Serialize, Deserialize)]
struct TaskEndpoint {
    port: u16,
    token: String,
}

/// Asks another node, by `ask`, to get ready for a task. `reach` is where it listens for other nodes.
pub fn ask(
    cluster: Option<&ClusterSettings>,
    reach: &str,
    ask: &dyn Fn(Vec<u8>) -> ControlResult<Vec<u8>>,
) -> ControlResult<TaskHost> {
    let unsupported = |why: &str| ControlError::new(ErrorKind::Unsupported, why);
    let secret = cluster.and_then(|cluster| cluster.secret.clone()).ok_or_else(|| {
        unsupported("tasks go only to nodes that know each other: mount with --cluster-secret")
    })?;
    let host = host_of(reach).ok_or_else(|| {
        unsupported("tasks go only to nodes that are reached by a host and a port")
    })?;
    let answer = ask(Vec::new())?;
    let answer: ControlResult<TaskEndpoint> = serde_json::from_slice(&answer).map_err(|error| {
        ControlError::new(ErrorKind::Failed, format!("the node's answer makes no sense: {error}"))
    })?;
    let endpoint = answer?;
    Ok(TaskHost {
        at: format!("{host}:{}", endpoint.port),
        token: endpoint.token,
        secret: secret.into(),
        other_secret: cluster.and_then(|cluster| cluster.other_secret.clone()).map(Into::into),
    })
}

/// The host of `scheme://host:port`.
fn host_of(reach: &str) -> Option<&str> {
    let (scheme, at) = reach.split_once("://")?;
    let (host, _) = at.rsplit_once(':')?;
    ["tcp", "quic"].contains(&scheme).then_some(host)
}

/// Another node asks for it: starts the process that will have its task, and says where it waits.
pub fn answer(config: &MountConfig) -> Vec<u8> {
    let answer: ControlResult<TaskEndpoint> = start(config);
    // Both are made of what JSON has.
    serde_json::to_vec(&answer).unwrap_or_default()
}

fn start(config: &MountConfig) -> ControlResult<TaskEndpoint> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        ControlError::new(ErrorKind::Failed, format!("{what}: {error}"))
    };
    let cluster = config.cluster.as_ref();
    let settings = cluster.and_then(|cluster| Some((cluster, cluster.listen.as_deref()?)));
    let given = settings.and_then(|(cluster, listen)| {
        Some((cluster, host_of(listen)?, cluster.secret.as_deref()?))
    });
    let (cluster, host, secret) = given.ok_or_else(|| {
        ControlError::new(ErrorKind::Unsupported, "it is not reached by a host and a port")
    })?;
    let _turn = Turn::take().ok_or_else(|| {
        ControlError::new(ErrorKind::Failed, "it gets ready for other tasks; try again")
    })?;
    let token = token().map_err(|error| failed("/dev/urandom", &error))?;
    let program = launch::program().map_err(|error| failed("starting a process", &error))?;
    let mut command = Command::new(program);
    command.arg("host-task").arg("--mount").arg(&config.mountpoint);
    command.arg("--listen").arg(host).arg("--secret").arg(secret);
    if let Some(other) = &cluster.other_secret {
        command.arg("--other-secret").arg(other);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).current_dir(PathBuf::from("/"));
    // SAFETY: what runs between fork and exec makes system calls and allocates nothing.
    unsafe {
        command.pre_exec(|| {
            // It outlives the daemon, and keeps nothing of it open.
            libc::setsid();
            let on_exec = libc::CLOSE_RANGE_CLOEXEC;
            libc::syscall(libc::SYS_close_range, 3, u32::MAX, on_exec);
            Ok(())
        });
    }
    let mut child = command.spawn().map_err(|error| failed("starting a process", &error))?;
    let said = talk(&mut child, &token, READY_WITHIN);
    if said.is_err() {
        end(&child);
    }
    let reap = move || {
        let _ = child.wait();
        // If it was killed, its image is as large as the task.
        images::remove_left_behind();
    };
    let _ = std::thread::Builder::new().name("host-task".into()).spawn(reap);
    let line = said.map_err(|error| failed("the process that would have the task", &error))?;
    match line.trim().parse() {
        Ok(port) => Ok(TaskEndpoint { port, token }),
        Err(_) if line.is_empty() => Err(ControlError::new(
            ErrorKind::Failed,
            "the process that would have the task ended at once; the daemon's log says why",
        )),
        Err(_) => Err(ControlError::new(ErrorKind::Unsupported, line.trim())),
    }
}

/// Gives the process its token, and returns the line by which it says where it waits, or what is in the way.
fn talk(child: &mut Child, token: &str, within: Duration) -> io::Result<String> {
    if let Some(mut stdin) = child.stdin.take() {
        writeln!(stdin, "{token}")?;
    }
    let Some(mut stdout) = child.stdout.take() else { return Ok(String::new()) };
    let until = Instant::now() + within;
    let mut line = Vec::new();
    while !line.contains(&b'\n') && line.len() < MAX_LINE {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut polled = [PollFd::new(&stdout, PollFlags::IN)];
        match rustix::event::poll(&mut polled, Some(&left)) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not get ready")),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let mut bytes = [0; 256];
        match stdout.read(&mut bytes)? {
            0 => break,
            read => line.extend_from_slice(&bytes[..read]),
        }
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// Ends a process and what it has started: they are a group of their own.
fn end(child: &Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
}

/// One of those who get ready at this moment.
struct Turn;

impl Turn {
    fn take() -> Option<Self> {
        let room = |now: usize| (now < MAX_AT_ONCE).then_some(now + 1);
        GETTING_READY.fetch_update(Ordering::AcqRel, Ordering::Acquire, room).ok().map(|_| Self)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        GETTING_READY.fetch_sub(1, Ordering::AcqRel);
    }
}

fn token() -> std::io::Result<String> {
    let mut bytes = [0; TOKEN_BYTES];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_when_it_does_not_get_ready_then_given_up_with_what_it_has_started() {
        let run = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).process_group(0);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
        };
        let mut well = run("read token; echo $token; sleep 100 >&-");
        assert_eq!(talk(&mut well, "47", Duration::from_secs(30)).unwrap(), "47\n");
        let mut hangs = run("sleep 100; echo late");
        let error = talk(&mut hangs, "47", Duration::from_millis(100)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        for child in [&mut well, &mut hangs] {
            end(child);
            assert!(!child.wait().unwrap().success());
        }
    }

    #[test]
    fn turns_when_all_are_taken_then_none_until_one_is_given_back() {
        let mut taken: Vec<Turn> = (0..MAX_AT_ONCE).map(|_| Turn::take().unwrap()).collect();
        assert!(Turn::take().is_none());
        taken.pop();
        assert!(Turn::take().is_some());
    }

    #[test]
    fn host_when_of_an_address_then_without_port_and_only_of_ways_with_hosts() {
        assert_eq!(host_of("tcp://n7:4711"), Some("n7"));
        assert_eq!(host_of("quic://[::1]:9"), Some("[::1]"));
        assert_eq!(host_of("unix:/run/f"), None);
        assert_eq!(host_of("mpi://3:1"), None);
        assert_eq!(token().unwrap().len(), 2 * TOKEN_BYTES);
        assert_ne!(token().unwrap(), token().unwrap());
    }
}
