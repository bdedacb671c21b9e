//! A small process that ends the jobs of a run when the run is killed: the groups that it was told of
//! and that have not ended.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::process::Signal;

use super::children::signal_group;
use crate::error::Error;

/// The run's side of it.
#[derive(Debug)]
pub struct Watch {
    child: Child,
    to: Option<ChildStdin>,
}

impl Watch {
    /// Starts it.
    pub fn start() -> io::Result<Self> {
        let mut child = Command::new("/proc/self/exe")
            .arg0("forebay")
            .arg("run-watch")
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

/// The process: listens until the run is gone.
pub fn run() -> Result<(), Error> {
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
    Ok(())
}
