//! A task wherever it is: on this machine, or on another node.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::channel::{Saved, Written};
use super::coop::Cooperation;
use super::criu::Criu;
use super::refuse::Route;
use super::remote::Remote;
use super::source;
use super::task::{Printing, Task};
use crate::error::Error;

/// A task that can be migrated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looked {
    /// Bytes that it has in memory.
    pub bytes: u64,
    /// Whether it saves its state itself.
    pub by_itself: bool,
}

/// A task.
pub enum Body {
    /// On this machine.
    Here(Task),
    /// On another node.
    There(Remote),
}

/// A task that is stopped and written down.
pub enum Down {
    /// On this machine.
    Here(source::Down),
    /// On another node.
    There(Written),
}

impl Down {
    /// What is to be known of it, beside its image.
    pub fn written(&self) -> &Written {
        match self {
            Self::Here(down) => &down.written,
            Self::There(written) => written,
        }
    }
}

impl Body {
    /// How large it is, if it can be migrated. What it has written so far is brought to where other nodes
    /// see it.
    pub fn look(
        &mut self,
        route: &Route<'_>,
        below: &Path,
        cooperation: &Cooperation,
    ) -> Result<Looked, Error> {
        match self {
            Self::Here(task) => {
                let looked = source::look(task, route, cooperation)?;
                source::sync_ahead(task, below);
                Ok(looked)
            }
            Self::There(remote) => remote.look(),
        }
    }

    /// Stops it and writes it down, into this directory of this machine. If that fails, it goes on.
    pub fn write_down(
        &mut self,
        criu: Option<&Criu>,
        images: &Path,
        below: &Path,
    ) -> Result<Down, Error> {
        match self {
            Self::Here(task) => {
                let criu = criu.ok_or_else(|| Error::Failed("there is no CRIU".into()))?;
                source::write_down(task, criu, images, below).map(Down::Here)
            }
            Self::There(remote) => remote.write_down(images).map(Down::There),
        }
    }

    /// Has it save its state itself, after which it waits. If that fails, it goes on, unless it has ended.
    pub fn save(
        &mut self,
        cooperation: &Cooperation,
        route: &Route<'_>,
        below: &Path,
        within: Duration,
        stop: &AtomicBool,
    ) -> Result<Saved, Error> {
        match self {
            Self::Here(task) => source::save(task, cooperation, route, below, within, stop),
            Self::There(remote) => remote.save(within),
        }
    }

    /// It has saved its state, and goes on where it was.
    pub fn stay(&self, cooperation: &Cooperation) {
        match self {
            Self::Here(_) => cooperation.stay(),
            // If the connection is gone, so is the task, and that is heard of.
            Self::There(remote) => drop(remote.go_on()),
        }
    }

    /// It has saved its state, and ends. An error says that it was not told, or was lost.
    pub fn finish(&self, cooperation: &Cooperation) -> Result<(), Error> {
        match self {
            Self::Here(task) => source::finish(task, cooperation),
            Self::There(remote) => remote.finish(),
        }
    }

    /// Nothing came of it: it goes on where it was.
    pub fn go_on(&self, down: &Down) -> Result<(), Error> {
        match (self, down) {
            (Self::Here(task), Down::Here(down)) => down.go_on(task),
            (Self::Here(task), Down::There(_)) => task.go_on(),
            (Self::There(remote), _) => remote.go_on(),
        }
    }

    /// Whether it is lost with the way to its node, or has ended there.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Here(_) => false,
            Self::There(remote) => remote.is_gone(),
        }
    }

    /// One that was restored begins to run.
    pub fn begin(&self) -> Result<(), Error> {
        match self {
            Self::Here(task) => task.go_on(),
            Self::There(remote) => {
                remote.wait_until_going();
                Ok(())
            }
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        match self {
            Self::Here(task) => task.signal(signal),
            Self::There(remote) => remote.signal(signal),
        }
    }

    /// Has all of it ended by the kernel. Of one on another node, which is stopped, nothing runs any
    /// more without that.
    pub fn doom(&self) {
        if let Self::Here(task) = self {
            task.doom();
        }
    }

    /// Ends all of it. What it has printed is still to be read.
    pub fn kill(self) -> Printing {
        match self {
            Self::Here(task) => task.kill(),
            Self::There(remote) => remote.kill(),
        }
    }

    /// It has ended, on another node with this exit code: waits until what it has printed was read, and
    /// returns its exit code.
    pub fn ended(self, code: Option<i32>) -> i32 {
        match self {
            Self::Here(task) => {
                let (code, printing) = task.ended();
                printing.finish();
                code
            }
            Self::There(remote) => {
                remote.ended().wait();
                code.unwrap_or(1)
            }
        }
    }
}
