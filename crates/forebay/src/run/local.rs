//! Runs the jobs of a batch on this machine: as many at a time as cores and memory allow.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use forebay_schedule::queue::Queue;
use rustix::process::Signal;

use super::children::{Children, Started, command};
use super::job::{Job, followers, waiting_for};
use super::output::{self, Output};
use super::record::{Keeper, State, now_ms};
use super::reference::Reference;
use crate::commands::tell;
use crate::error::Error;
use crate::migrate::launch;

/// How long what a job has printed is waited for when it has ended: somebody may keep its output open.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How long jobs that were killed are waited for.
const STUCK: Duration = Duration::from_secs(30);
/// How often the mount is told another sequence at most.
const TELL: Duration = Duration::from_secs(1);

/// What a run hears of.
#[derive(Debug)]
pub enum Event {
    /// A job's process has ended.
    Ended {
        /// The job.
        number: usize,
        /// Its exit code.
        code: i32,
    },
    /// One of the two outputs of a job has ended.
    Silent {
        /// The job.
        number: usize,
    },
    /// The run is asked to end by a signal.
    End(i32),
}

/// How jobs are run.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// Where what they print goes.
    pub output: Output,
    /// No job begins any more when one has failed.
    pub fail_fast: bool,
    /// How long a job that is asked to end may take.
    pub grace: Duration,
    /// Nothing is said of jobs that begin and end.
    pub quiet: bool,
    /// Jobs can be migrated.
    pub migratable: Option<MigratableRun>,
}

/// How jobs are run that can be migrated: each by a process that keeps it (`forebay run-task`).
#[derive(Clone, Debug)]
pub struct MigratableRun {
    /// The mount of their files.
    pub mount: Option<PathBuf>,
}

impl MigratableRun {
    /// A job, as the process that keeps it is started.
    fn wrapped(&self, job: &Job, run: &str) -> std::io::Result<Job> {
        let mut command: Vec<OsString> = vec![launch::program()?.into()];
        command.extend(["run-task", "--run", run, "--job", &job.name].map(OsString::from));
        if let Some(mount) = &self.mount {
            command.extend(["--mount".into(), mount.into()]);
        }
        command.push("--".into());
        command.extend(job.command.iter().cloned());
        Ok(Job { command, ..job.clone() })
    }
}

struct Running {
    pid: i32,
    began: Instant,
    /// Outputs that are still read.
    outputs: u8,
    ended: Option<(Instant, i32)>,
}

/// A run on this machine.
pub struct Local<'a> {
    /// Its jobs.
    pub jobs: &'a [Job],
    /// What waits and runs.
    pub queue: Queue,
    /// What `forebay jobs` shows.
    pub keeper: Keeper,
    /// The mount's sequence.
    pub reference: Option<Reference>,
    /// How jobs are run.
    pub settings: RunSettings,
    /// Which jobs wait for each one.
    after: Vec<Vec<usize>>,
    done: usize,
    children: Children,
    events: Sender<Event>,
    running: BTreeMap<usize, Running>,
    zero: Instant,
    /// The signal that ended the run, and when jobs are killed.
    ending: Option<(i32, Instant)>,
    /// No job begins any more.
    closed: bool,
    told: Option<Instant>,
    to_tell: bool,
}

/// What a run came to.
pub struct Ended {
    /// The exit code of its last job, of interest if it is the only one.
    pub last_code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

/// What is to be run, and in which order.
pub struct Plan<'a> {
    /// The jobs.
    pub jobs: &'a [Job],
    /// Which jobs each one waits for.
    pub before: &'a [Vec<usize>],
    /// Which job begins where, and when.
    pub queue: Queue,
}

impl<'a> Local<'a> {
    /// A run that is about to begin.
    pub fn new(
        plan: Plan<'a>,
        keeper: Keeper,
        reference: Option<Reference>,
        settings: RunSettings,
        events: Sender<Event>,
    ) -> Result<Self, Error> {
        let children = Children::new(&keeper.record.run, events.clone())
            .map_err(Error::io("starting to watch jobs"))?;
        Ok(Self {
            jobs: plan.jobs,
            queue: plan.queue,
            keeper,
            reference,
            settings,
            after: followers(plan.before),
            done: 0,
            children,
            events,
            running: BTreeMap::new(),
            zero: Instant::now(),
            ending: None,
            closed: false,
            told: None,
            to_tell: true,
        })
    }

    /// Runs all jobs; returns when none runs any more.
    pub fn run(&mut self, heard: &Receiver<Event>) -> Result<Ended, Error> {
        let mut last_code = 0;
        loop {
            self.start();
            self.tell();
            let soon = self.keeper.write_soon();
            if self.running.is_empty() {
                break;
            }
            let limit = soon.unwrap_or(TELL).min(self.next_deadline()).min(TELL);
            match heard.recv_timeout(limit) {
                Ok(Event::Ended { number, code }) => {
                    if let Some(running) = self.running.get_mut(&number) {
                        running.ended = Some((Instant::now(), code));
                    }
                }
                Ok(Event::Silent { number }) => {
                    if let Some(running) = self.running.get_mut(&number) {
                        running.outputs = running.outputs.saturating_sub(1);
                    }
                }
                Ok(Event::End(signal)) => self.end(signal),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::Failed("nobody waits for jobs any more".into()));
                }
            }
            self.kill_late();
            if self.is_stuck() {
                self.say("jobs that were killed do not end: something that they wait for hangs");
                break;
            }
            for (number, code) in self.take_ended() {
                last_code = code;
                self.ended(number, code);
            }
        }
        self.children.end_leftovers();
        self.cancel_waiting();
        Ok(Ended { last_code, signal: self.ending.map(|(signal, _)| signal) })
    }

    fn next_deadline(&self) -> Duration {
        let words =
            self.running.values().filter_map(|job| job.ended.map(|(at, _)| at + LAST_WORDS));
        let kill = self.ending.map(|(_, kill)| kill);
        let next = words.chain(kill).map(|at| at.saturating_duration_since(Instant::now())).min();
        // A deadline that is past has been acted upon.
        next.unwrap_or(TELL).max(Duration::from_millis(10))
    }

    fn start(&mut self) {
        while !self.closed {
            let now = self.zero.elapsed().as_secs_f64();
            let started = self.queue.start(now);
            if started.is_empty() {
                return;
            }
            for (job, _) in started {
                self.start_one(job as usize);
            }
        }
    }

    fn start_one(&mut self, number: usize) {
        let (began, tries) = (Instant::now(), self.keeper.record.jobs[number].tries + 1);
        let record = self.keeper.job(number);
        (record.state, record.tries) = (State::Running, tries);
        (record.began_ms, record.ended_ms) = (Some(now_ms()), None);
        (record.exit, record.reason) = (None, None);
        match self.spawn(number, tries > 1) {
            Ok((pid, outputs)) => {
                self.keeper.job(number).pid = Some(i64::from(pid));
                self.running.insert(number, Running { pid, began, outputs, ended: None });
            }
            Err((code, why)) => {
                self.say(&format!("{}: {why}", self.jobs[number].name));
                self.failed(number, code, &why);
            }
        }
    }

    fn spawn(&mut self, number: usize, again: bool) -> Result<(i32, u8), (i32, String)> {
        let job = &self.jobs[number];
        let failed = |what: &dyn std::fmt::Display| (1, what.to_string());
        let migratable = self.settings.migratable.as_ref();
        let wrapped = migratable.map(|run| run.wrapped(job, &self.keeper.record.run)).transpose();
        let wrapped = wrapped.map_err(|error| failed(&error))?;
        let piped = matches!(self.settings.output, Output::Lines { .. });
        let mut command = command(wrapped.as_ref().unwrap_or(job), piped);
        command.env("FOREBAY_JOB", &job.name).env("FOREBAY_RUN", &self.keeper.record.run);
        if let Output::Files(dir) = &self.settings.output {
            let (out, err) =
                output::files(dir, &job.name, again).map_err(|error| failed(&error))?;
            command.stdin(std::process::Stdio::null()).stdout(out).stderr(err);
        }
        let Started { pid, stdout, stderr } =
            self.children.start(number, &mut command).map_err(|error| {
                let missing = error.kind() == std::io::ErrorKind::NotFound;
                let at = job.command[0].to_string_lossy();
                let where_ = if job.dir.is_dir() { at } else { job.dir.to_string_lossy() };
                (if missing { 127 } else { 126 }, format!("can't be started: {where_}: {error}"))
            })?;
        let mut outputs = 0;
        let Output::Lines { all_to_stderr } = self.settings.output else { return Ok((pid, 0)) };
        if let Some(out) = stdout {
            let to = self.events.clone();
            let followed = output::follow(out, job.name.clone(), number, all_to_stderr, to);
            outputs += u8::from(followed.is_ok());
        }
        if let Some(err) = stderr {
            let followed = output::follow(err, job.name.clone(), number, true, self.events.clone());
            outputs += u8::from(followed.is_ok());
        }
        Ok((pid, outputs))
    }

    /// Jobs that have ended and have nothing more to say.
    fn take_ended(&mut self) -> Vec<(usize, i32)> {
        let over = |job: &Running| {
            let (at, code) = job.ended?;
            (job.outputs == 0 || at.elapsed() >= LAST_WORDS).then_some(code)
        };
        let ended: Vec<(usize, i32)> =
            self.running.iter().filter_map(|(number, job)| Some((*number, over(job)?))).collect();
        ended
    }

    fn ended(&mut self, number: usize, code: i32) {
        let Some(running) = self.running.remove(&number) else { return };
        let job = &self.jobs[number];
        let took = format!("{:.1} s", running.began.elapsed().as_secs_f64());
        let record = self.keeper.job(number);
        record.ended_ms = Some(now_ms());
        (record.exit, record.pid) = (Some(code), None);
        let missing = job.outputs.iter().find(|path| std::fs::symlink_metadata(path).is_err());
        let why = match (code, missing) {
            (0, None) => {
                self.done(number);
                let (done, total) = (self.done, self.jobs.len());
                return self.say(&format!("[{done}/{total}] {} done in {took}", job.name));
            }
            (0, Some(path)) => format!("did not make {}", path.display()),
            (code, _) if code > 128 => format!("ended by signal {}", code - 128),
            (code, _) => format!("exit code {code}"),
        };
        let code = if code == 0 { 1 } else { code };
        if self.ending.is_some() {
            let record = self.keeper.job(number);
            (record.state, record.reason) = (State::Cancelled, Some(why));
            self.queue.finish(number as u64);
            return;
        }
        let tries = self.keeper.record.jobs[number].tries;
        if tries <= job.retries {
            self.say(&format!("{}: {why} (try {tries} of {}), again", job.name, job.retries + 1));
            let record = self.keeper.job(number);
            (record.state, record.reason) = (State::Waiting, Some(why));
            self.queue.requeue(number as u64);
            return;
        }
        self.say(&format!("{} failed after {took}: {why}", job.name));
        self.failed(number, code, &why);
    }

    fn done(&mut self, number: usize) {
        self.keeper.job(number).state = State::Done;
        self.done += 1;
        self.queue.finish(number as u64);
        // What it made can be fetched and kept for those that read it.
        self.to_tell |= !self.jobs[number].outputs.is_empty();
    }

    /// A job has failed for good: what waits for it never runs.
    fn failed(&mut self, number: usize, code: i32, why: &str) {
        let record = self.keeper.job(number);
        record.state = State::Failed;
        record.ended_ms = Some(now_ms());
        (record.exit, record.pid, record.reason) = (Some(code), None, Some(why.to_owned()));
        for job in waiting_for(&self.after, number) {
            let reason = format!("waited for {}, which failed", self.jobs[number].name);
            let record = self.keeper.job(job);
            (record.state, record.reason) = (State::Skipped, Some(reason));
            self.queue.finish(job as u64);
        }
        self.queue.finish(number as u64);
        if self.settings.fail_fast {
            self.closed = true;
        }
    }

    /// The run is asked to end: the first time kindly.
    fn end(&mut self, signal: i32) {
        self.closed = true;
        let kindly = self.ending.is_none();
        let kill = Instant::now() + if kindly { self.settings.grace } else { Duration::ZERO };
        self.ending = Some((signal, kill));
        if kindly {
            self.say("ending the jobs");
            let signal = Signal::from_named_raw(signal).unwrap_or(Signal::TERM);
            self.running.values().for_each(|job| self.children.signal(job.pid, signal));
        }
    }

    fn kill_late(&mut self) {
        if self.ending.is_some_and(|(_, kill)| Instant::now() >= kill) {
            self.running.values().for_each(|job| self.children.signal(job.pid, Signal::KILL));
        }
    }

    /// Jobs were killed long ago and are still there: the kernel does not let go of them.
    fn is_stuck(&self) -> bool {
        self.ending.is_some_and(|(_, kill)| kill.elapsed() >= STUCK)
    }

    fn cancel_waiting(&mut self) {
        let why = if self.ending.is_some() { "the run was ended" } else { "another job failed" };
        for number in 0..self.jobs.len() {
            if matches!(self.keeper.record.jobs[number].state, State::Waiting | State::Running) {
                let record = self.keeper.job(number);
                (record.state, record.reason) = (State::Cancelled, Some(why.into()));
            }
        }
    }

    /// Tells the mount what is going to be read, if that has changed.
    fn tell(&mut self) {
        let Some(reference) = &mut self.reference else { return };
        if !self.to_tell || self.told.is_some_and(|told| told.elapsed() < TELL) || self.closed {
            return reference.renew();
        }
        (self.to_tell, self.told) = (false, Some(Instant::now()));
        let running = self.running.keys().copied();
        let order: Vec<usize> = running.chain(self.queue.line(0).map(|job| job as usize)).collect();
        let files = || order.iter().flat_map(|job| &self.jobs[*job].inputs);
        let open = files().any(|path: &PathBuf| std::fs::symlink_metadata(path).is_err());
        reference.give(files(), open);
    }

    fn say(&self, text: &str) {
        if !self.settings.quiet {
            tell(text);
        }
    }
}
