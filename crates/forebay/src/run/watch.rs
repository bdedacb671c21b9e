//! A small process that ends the jobs of a run when the run is killed.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};

use super::children::signal_group;
use crate::error::Error;

/// How often, and with which pauses, it looks for who is left.
const ROUNDS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(20);

/// The run's side of it.
#[derive(Debug)]
pub struct Watch {
    child: Child,
    to: Option<ChildStdin>,
}

impl Watch {
    /// Starts it for a run of this name.
    pub fn start(run: &str) -> io::Result<Self> {
        let mut child = Command::new("/proc/self/exe")
            .arg0("forebay")
            .args(["run-watch", run])
            .process_group(0)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let to = child.stdin.take();
        Ok(Self { child, to })
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap_or(0)
    }

    /// A job's group has begun.
    pub fn began(&mut self, group: i32) {
        self.tell(&format!("+{group}\n"));
    }

    /// A job's group is gone.
    pub fn ended(&mut self, group: i32) {
        self.tell(&format!("-{group}\n"));
    }

    fn tell(&mut self, line: &str) {
        let told = self.to.as_mut().map(|to| to.write_all(line.as_bytes()));
        if let Some(Err(_)) = told {
            self.to = None;
        }
    }
}

/// The process: listens until the run is gone. Then it ends the groups that are left, and whoever has
/// left them for a group or session of his own, as his environment says.
pub fn run(name: &str) -> Result<(), Error> {
    crate::signals::block()?;
    let mut groups = BTreeSet::new();
    for line in BufReader::new(io::stdin()).lines().map_while(Result::ok) {
        let (sign, group) = line.split_at(line.len().min(1));
        match (sign, group.parse::<i32>()) {
            ("+", Ok(group)) => drop(groups.insert(group)),
            ("-", Ok(group)) => drop(groups.remove(&group)),
            _ => {}
        }
    }
    for group in groups.into_iter().filter(|group| *group > 1) {
        signal_group(group, Signal::KILL);
    }
    for _ in 0..ROUNDS {
        let left = of_run(name);
        if left.is_empty() {
            break;
        }
        for pid in left.into_iter().filter_map(Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Processes that have the variable of a run. Not those that watch other runs, which end by themselves.
fn of_run(name: &str) -> Vec<i32> {
    let variable = format!("FOREBAY_RUN={name}");
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let is_of = |pid: &i32| {
        let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let has = |text: &[u8], word: &[u8]| text.split(|byte| *byte == 0).any(|one| one == word);
        has(&read("environ"), variable.as_bytes()) && !has(&read("cmdline"), b"run-watch")
    };
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| *pid != own).filter(is_of).collect()
}
