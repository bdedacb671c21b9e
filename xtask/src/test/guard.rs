//! `xtask guard DIR PROGRAM ARGUMENT...`: one run of a program after which nothing of it is left.
//!
//! The guard runs the program in a session of its own, with `DIR` for its temporary files and with mounts
//! that nobody else has ([`super::own_mounts`]). Whatever
//! the program starts stays below the guard in the tree of processes, daemons too: a process whose
//! parent ends becomes a child of the guard. The run is over when the program has ended, or when
//! nobody holds the other end of the guard's standard input any more: whoever wanted the run then has
//! been interrupted, killed, or has waited for too long. In each case the guard kills what still runs,
//! ends the mounts and removes the files. A program that leaves processes or mounts although it ended
//! by itself has a defect, so that [`LEFT`] is then how the guard ends.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, WaitOptions};

use super::own_mounts;
use super::stuck::{Before, Mounts};

/// How the guard ends when the program left processes or mounts.
pub const LEFT: i32 = 97;
/// What a signal that ended the program is added to.
pub const SIGNAL: i32 = 128;
/// For what the program started to end by itself after it: a daemon whose mount was just ended.
const GRACE: Duration = Duration::from_secs(10);
/// For what was killed to be gone.
const KILLED: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(20);
/// Where tests keep files, beside the directory that is theirs.
const SHARED: [&str; 3] = ["/dev/shm", "/var/tmp", "/tmp"];

enum News {
    Ended(ExitStatus),
    Abandoned,
}

/// Runs what the arguments say.
pub fn run(arguments: &[String]) -> ExitCode {
    match guard(arguments) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("xtask guard: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn guard(arguments: &[String]) -> Result<u8> {
    let [directory, program, rest @ ..] = own_mounts::given(arguments)? else {
        anyhow::bail!("it takes a directory and a program")
    };
    let directory = PathBuf::from(directory);
    std::fs::create_dir_all(&directory).context("the directory for temporary files")?;
    // As /tmp: some tests change to another user.
    std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o1777))?;
    // Fails where this leads a session already, which is as good.
    let _ = rustix::process::setsid();
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let (before, shared) = (Before::look(), shared());
    let mut command = Command::new(program);
    command.args(rest).env("TMPDIR", &directory).stdin(Stdio::null());
    let child = command.spawn().with_context(|| program.clone())?;
    let (send, news) = channel();
    std::thread::spawn({
        let send = send.clone();
        move || wait_for_owner(&send)
    });
    std::thread::spawn(move || reap(child.id(), &send));
    let status = match news.recv().context("a thread of the guard ended")? {
        News::Ended(status) => Some(status),
        News::Abandoned => None,
    };
    let left = clean(&directory, status.is_some(), &before, &shared);
    let mut out = std::io::stdout().lock();
    for what in &left {
        // Who reads it may be gone.
        let _ = writeln!(out, "left behind: {what}");
    }
    Ok(match status {
        Some(status) if status.success() && !left.is_empty() => LEFT as u8,
        Some(status) => {
            status.code().unwrap_or_else(|| SIGNAL + status.signal().unwrap_or(0)) as u8
        }
        None => 2,
    })
}

/// Tells when the other end of the standard input is gone.
fn wait_for_owner(send: &Sender<News>) {
    let mut stdin = std::io::stdin().lock();
    while matches!(stdin.read(&mut [0; 64]), Ok(1..)) {}
    // Fails when the run is over anyway.
    let _ = send.send(News::Abandoned);
}

/// Takes note of the end of every child, also of those that were others' before.
fn reap(program: u32, send: &Sender<News>) {
    while let Ok(ended) = rustix::process::wait(WaitOptions::empty()) {
        let Some((pid, status)) = ended else { continue };
        if pid.as_raw_nonzero().get() as u32 == program {
            let status = ExitStatus::from_raw(status.as_raw());
            if send.send(News::Ended(status)).is_err() {
                return;
            }
        }
    }
}

/// Ends all that the program has left, and says what that was. Where it `ended` by itself its daemons
/// get a moment to do the same.
fn clean(
    directory: &Path,
    ended: bool,
    before: &Before,
    shared: &BTreeSet<PathBuf>,
) -> Vec<String> {
    if ended {
        wait_until(GRACE, || descendants().is_empty());
    }
    let mut places: BTreeSet<PathBuf> = BTreeSet::from([directory.to_owned()]);
    let mut left: Vec<String> = Vec::new();
    let gone = wait_until(KILLED, || {
        // Killing one may show others, whose parents they were not known to be.
        let all = descendants();
        for pid in &all {
            let what = format!("process {pid}: {}", command_line(*pid));
            if !left.contains(&what) {
                places.extend(places_of(*pid, shared));
                left.push(what);
            }
            kill(*pid);
        }
        all.is_empty()
    });
    left.extend(Mounts::below(&places).end());
    if !gone {
        before.abort_waiting();
        wait_until(KILLED, || descendants().is_empty());
        left.extend(
            descendants().iter().map(|pid| format!("process {pid}, which can't be killed")),
        );
    }
    for place in &places {
        if Mounts::below(&BTreeSet::from([place.clone()])).is_empty() {
            // What can't be removed is left to whoever cleans /tmp.
            let _ = std::fs::remove_dir_all(place);
        }
    }
    // Goes with the last run; until then it has others in it.
    let _ = directory.parent().map(std::fs::remove_dir);
    left
}

fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        // It may be gone.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

/// Calls `probe` until it is true, or until `limit` is over. Whether it was.
fn wait_until(limit: Duration, mut probe: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + limit;
    loop {
        if probe() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(LOOK);
    }
}

/// The processes below this one that run, or wait in the kernel.
fn descendants() -> Vec<i32> {
    let all: Vec<Process> = processes().collect();
    let mut found = vec![rustix::process::getpid().as_raw_nonzero().get()];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        next += 1;
        found.extend(all.iter().filter(|it| it.parent == parent).map(|it| it.pid));
    }
    let dead = |pid: &i32| all.iter().any(|it| it.pid == *pid && it.is_dead);
    found.into_iter().skip(1).filter(|pid| !dead(pid)).collect()
}

struct Process {
    pid: i32,
    parent: i32,
    is_dead: bool,
}

fn processes() -> impl Iterator<Item = Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| process(pid, &std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?))
}

fn process(pid: i32, stat: &str) -> Option<Process> {
    // The name before may have blanks and brackets.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let is_dead = matches!(fields.next()?, "Z" | "X");
    Some(Process { pid, parent: fields.next()?.parse().ok()?, is_dead })
}

fn command_line(pid: i32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ").trim().to_owned()
}

/// What is in the directories that all programs share.
fn shared() -> BTreeSet<PathBuf> {
    let entries = SHARED.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten();
    entries.flatten().map(|entry| entry.path()).collect()
}

/// The entries of shared directories that a process has something open in and that were not there
/// before: those that the tests have made.
fn places_of(pid: i32, before: &BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = links.map(|entry| entry.path()).chain([format!("/proc/{pid}/cwd").into()]);
    let open = links.filter_map(|link| std::fs::read_link(link).ok());
    open.filter_map(|path| place(&path)).filter(|it| !before.contains(it) && it.is_dir()).collect()
}

fn place(path: &Path) -> Option<PathBuf> {
    SHARED.iter().find_map(|shared| {
        let inside = path.strip_prefix(shared).ok()?;
        Some(Path::new(shared).join(inside.components().next()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_when_its_name_has_brackets_then_parent_and_state_are_found() {
        let found = process(7, "7 (a) b) S 12 7 7 0").expect("a process");
        assert!(found.pid == 7 && found.parent == 12 && !found.is_dead);
        assert!(process(7, "7 (x) Z 1 7").expect("a process").is_dead);
    }

    #[test]
    fn place_when_a_path_is_in_a_shared_directory_then_its_first_name_there() {
        assert_eq!(place(Path::new("/dev/shm/.tmpA/t/1")), Some("/dev/shm/.tmpA".into()));
        assert_eq!(place(Path::new("/tmp/x")), Some("/tmp/x".into()));
        assert_eq!(place(Path::new("/tmp")), None);
        assert_eq!(place(Path::new("/home/me/x")), None);
    }
}
