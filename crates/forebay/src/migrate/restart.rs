//! The migration of a task that saves its state itself: it is asked to, is started anew at the target, where
//! it does not run yet, ends where it was, and begins there. Until it has ended, whatever fails has it go
//! on where it was; what fails after that has it begin there again, from its state.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::body::Body;
use super::channel::{Beginning, Saved};
use super::coop;
use super::keeper::{Journey, Keeper, TaskLocation, ended, ms};
use super::protocol::{Ask, Moved};
use super::refuse::Route;
use super::remote::Remote;
use super::task::{Gate, Sink, Start, Task};
use crate::control::WirePath;
use crate::error::Error;

/// The variable that says how often a task was started from a state that it had saved.
pub const RESTARTS: &str = "FOREBAY_RESTARTS";
/// The one that has what the task said of its state.
pub const STATE: &str = "FOREBAY_STATE";
/// The one that has the machines that the task is to use, separated by commas.
pub const NODES: &str = "FOREBAY_NODES";

/// Whether a variable says something of a task that was started anew.
pub fn is_own(name: &OsStr) -> bool {
    [RESTARTS, STATE, NODES].iter().any(|own| name == *own)
}

/// How a task is started anew: what differs from its first start.
struct Again {
    saved: Saved,
    restarts: u64,
    nodes: Vec<String>,
}

impl Keeper {
    /// The whole of it.
    pub(super) fn restart(
        &mut self,
        slot: &mut Option<Body>,
        journey: Journey,
        ask: &Ask,
        doing: &mut dyn FnMut(&str),
    ) -> Result<Moved, Error> {
        let Journey { target, below, gate, host, nodes, same_machine, bytes, .. } = journey;
        let Some(body) = slot.as_mut() else { return Err(ended()) };
        doing("asking the task to save its state");
        let (asked, within) = (Instant::now(), Duration::from_millis(ask.save_within_ms));
        let mount = self.settings.mount.clone();
        let route = Route { mount: mount.as_deref(), same_machine };
        let saved = body.save(&self.cooperation, &route, &below, within, &self.wanted);
        let saved = saved.map_err(|error| {
            let fate = fate(body);
            Error::Failed(format!("{fate}, its state was not saved: {error}"))
        })?;
        let saving = asked.elapsed();
        let again = Again { saved, restarts: self.restarts + 1, nodes };
        doing("starting it at the target");
        let new = match self.start_again(&target, host, &again, &gate) {
            Ok(new) => new,
            Err(error) => {
                body.stay(&self.cooperation);
                return Err(Error::Failed(format!(
                    "the task goes on where it was, it can't be started at {target}: {error}"
                )));
            }
        };
        doing("having it end where it was");
        if let Err(error) = body.finish(&self.cooperation) {
            return Err(Error::Failed(format!("{}, it does not end: {error}", fate(body))));
        }
        self.begin_again(slot, new, &target, &again, &gate)?;
        let downtime = asked.elapsed();
        let from = std::mem::replace(&mut self.location, target);
        self.note();
        Ok(Moved {
            task: format!("{}/{}", self.settings.run, self.settings.job),
            from: from.to_string(),
            to: self.location.to_string(),
            downtime_ms: ms(downtime),
            dump_ms: ms(saving),
            restore_ms: ms(downtime.saturating_sub(saving)),
            bytes,
            processes: again.saved.processes,
            files: again.saved.files,
            by_itself: true,
        })
    }

    /// The task has ended where it was: the one that waits at the target begins. If that can't be told, it
    /// is gone there, and one begins where it was.
    fn begin_again(
        &mut self,
        slot: &mut Option<Body>,
        new: Body,
        target: &TaskLocation,
        again: &Again,
        gate: &Arc<Gate>,
    ) -> Result<(), Error> {
        let Some(mut old) = slot.take() else { return Err(ended()) };
        self.restarts = again.restarts;
        let told = match &new {
            Body::There(host) => host.go(),
            Body::Here(_) => Ok(()),
        };
        let Err(error) = told else {
            self.generation = self.attempts;
            self.take(slot, new)?;
            gate.open_after(old.kill());
            return Ok(());
        };
        drop(new);
        let location = self.location.clone();
        self.attempts += 1;
        let back = match &mut old {
            Body::There(host) => {
                self.beginning(again).and_then(|it| host.start(&it)).map(|()| None)
            }
            Body::Here(_) => self.start_here(&location, again, gate).map(Some),
        };
        let lost = |error: Error| {
            Error::Failed(format!("it can't be started at {location} again, either: {error}"))
        };
        match back.map_err(lost)? {
            // The one at the node has the number of the one before.
            None => {
                let Body::There(host) = &old else { return Err(ended()) };
                host.go().map_err(lost)?;
                gate.open();
                self.take(slot, old)?;
            }
            Some(new) => {
                self.generation = self.attempts;
                self.take(slot, Body::Here(new))?;
                gate.open_after(old.kill());
            }
        }
        Err(Error::Failed(format!(
            "the task goes on where it was, from the state that it has saved: it can't begin at \
             {target}: {error}"
        )))
    }

    /// This one is the task, and begins.
    fn take(&mut self, slot: &mut Option<Body>, new: Body) -> Result<(), Error> {
        if let Body::Here(task) = &new {
            self.cooperation.expect(task.init);
        }
        let new = slot.insert(new);
        self.watch(new)?;
        new.begin()
    }

    /// The task as it is to be at the target, where it waits.
    fn start_again(
        &self,
        target: &TaskLocation,
        host: Option<Remote>,
        again: &Again,
        gate: &Arc<Gate>,
    ) -> Result<Body, Error> {
        match host {
            Some(host) => {
                host.start(&self.beginning(again)?)?;
                Ok(Body::There(host))
            }
            None => self.start_here(target, again, gate).map(Body::Here),
        }
    }

    fn start_here(
        &self,
        at: &TaskLocation,
        again: &Again,
        gate: &Arc<Gate>,
    ) -> Result<Task, Error> {
        let mut start = self.start(again);
        start.mount = match (at, self.settings.mount.clone()) {
            (TaskLocation::Mount(real), Some(seen)) => Some((seen, real.clone())),
            _ => None,
        };
        start.set(coop::VARIABLE, self.cooperation.socket());
        let sink: Arc<dyn Sink> = Arc::clone(gate) as Arc<dyn Sink>;
        Task::start(&start, &sink)
    }

    fn start(&self, again: &Again) -> Start {
        let mut start = self.settings.start();
        start.set(RESTARTS, again.restarts.to_string());
        start.set(STATE, &again.saved.state);
        if !again.nodes.is_empty() {
            start.set(NODES, again.nodes.join(","));
        }
        start
    }

    fn beginning(&self, again: &Again) -> Result<Beginning, Error> {
        let start = self.start(again);
        let pair =
            |(name, value): (OsString, OsString)| (WirePath::from(name), WirePath::from(value));
        Ok(Beginning {
            command: start.command.into_iter().map(WirePath::from).collect(),
            dir: start.dir.into(),
            env: start.env.into_iter().map(pair).collect(),
        })
    }

    /// Nobody waits for a signal of the task any more.
    pub(super) fn heed(&self) {
        self.wanted.store(false, Ordering::Release);
    }
}

fn fate(body: &Body) -> &'static str {
    match body.is_gone() {
        true => "the task has ended, or is lost with the way to its node",
        false => "the task goes on where it was",
    }
}
