//! Extents of one file from several nodes at a time.
//!
//! Each node that has copies gets a thread for the time of the fetch, which takes extents from a
//! common list and keeps a few of them under way, so that a fast node carries more than a slow one.
//! An extent that a node fails to deliver goes back to the list, for the others; a node that fails
//! too often is asked no more. What is left in the end is told to the caller, who has the backing
//! store.

use crossbeam_channel::{Receiver, Sender};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::body::Body;
use crate::buffer::Buffer;
use crate::client::{Client, Completed, Ticket};
use crate::error::{Error, Result};
use crate::message::{Answer, Fault, Presence, Read, Request};

/// A range of a file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Extent {
    /// Where it begins.
    pub offset: u64,
    /// How long it is.
    pub len: u32,
}

/// A node that has a copy of a file.
#[derive(Clone, Copy, Debug)]
pub struct Copy<'a> {
    /// The node.
    pub node: &'a Client,
    /// What it has of the file; `None` for all.
    pub presence: Option<&'a Presence>,
}

/// Judges the bytes of an extent.
pub type Verify<'a> = &'a (dyn Fn(Extent, &[u8]) -> bool + Sync);

/// What is to be fetched.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// The file's inode.
    pub ino: u64,
    /// The version: bytes of another one are not taken.
    pub version: u64,
    /// The extents; none may reach beyond the end of the file.
    pub extents: &'a [Extent],
    /// Judges bytes where more is known about them than the sender says, by checksums in the
    /// metadata for example. A node that sends what is judged false is asked no more.
    pub verify: Option<Verify<'a>>,
}

/// What became of a fetch.
#[derive(Debug, Default)]
pub struct Fetched {
    /// Extents that no node delivered, ascending.
    pub missing: Vec<Extent>,
    /// The last failure of each node that failed, by its place among the copies.
    pub failures: Vec<(usize, Error)>,
    /// How many extents each node delivered.
    pub delivered: Vec<u64>,
}

/// Fetches extents; holds only settings.
#[derive(Clone, Debug)]
pub struct Fetcher {
    /// Extents under way from one node.
    pub in_flight: usize,
    /// How long a node may take for one extent until it is asked of another one.
    pub timeout: Duration,
    /// Failures after which a node is asked no more in this fetch.
    pub strikes: u32,
    /// Nodes that are asked at a time; more copies than these wait in reserve.
    pub nodes: usize,
}

impl Default for Fetcher {
    fn default() -> Fetcher {
        Fetcher { in_flight: 4, timeout: Duration::from_secs(3), strikes: 2, nodes: 8 }
    }
}

impl Fetcher {
    /// Fetches what is wanted from those who have it (the first 64 of them), and gives each extent to `deliver` (on this
    /// thread, in any order, once). An error from `deliver` ends the fetch.
    ///
    /// # Errors
    /// Those of `deliver`. Nodes that fail are no error: see [`Fetched`].
    pub fn fetch<E>(
        &self,
        wanted: &Wanted<'_>,
        copies: &[Copy<'_>],
        mut deliver: impl FnMut(Extent, Buffer) -> Result<(), E>,
    ) -> Result<Fetched, E> {
        let table = Table::new(wanted.extents, copies.len());
        // Who delivers slowly slows the nodes down, not the memory up.
        let (to, delivered) = crossbeam_channel::bounded(self.in_flight.max(1));
        let mut failed = None;
        std::thread::scope(|scope| {
            for (place, copy) in copies.iter().take(64).enumerate() {
                let (to, table) = (to.clone(), &table);
                let thread = std::thread::Builder::new().name("peer-fetch".into());
                let run = move || {
                    if table.turn(self.nodes.max(1)) {
                        Asking { fetcher: self, wanted, copy, place, table }.run(&to);
                        table.next();
                    }
                };
                if let Err(error) = thread.spawn_scoped(scope, run) {
                    table.lock().failures.push((place, Error::Thread(error.to_string())));
                }
            }
            drop(to);
            for (extent, bytes) in &delivered {
                if let Err(error) = deliver(extent, bytes) {
                    failed = Some(error);
                    table.stop();
                    break;
                }
            }
            drop(delivered);
        });
        match failed {
            Some(error) => Err(error),
            None => Ok(table.outcome(wanted.extents)),
        }
    }
}

/// What all threads of a fetch know.
struct Table {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    todo: VecDeque<usize>,
    /// Extents that somebody has asked for, or delivered but not handed over yet.
    under_way: usize,
    /// Which nodes have failed to deliver an extent, as bits by their places.
    refused: Vec<u64>,
    done: Vec<bool>,
    delivered: Vec<u64>,
    failures: Vec<(usize, Error)>,
    asking: usize,
    stopped: bool,
}

impl Table {
    fn new(extents: &[Extent], nodes: usize) -> Table {
        let state = State {
            todo: (0..extents.len()).collect(),
            under_way: 0,
            refused: vec![0; extents.len()],
            done: vec![false; extents.len()],
            delivered: vec![0; nodes],
            failures: Vec::new(),
            asking: 0,
            stopped: false,
        };
        Table { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Waits until one more node may be asked; `false` if nothing is left to ask for.
    fn turn(&self, nodes: usize) -> bool {
        let mut state = self.lock();
        while state.asking >= nodes && !state.is_over() {
            self.changed.wait(&mut state);
        }
        state.asking += 1;
        !state.is_over()
    }

    fn next(&self) {
        self.lock().asking -= 1;
        self.changed.notify_all();
    }

    fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    /// The next extent for the node at `place`; none if there is nothing for it (any more). Waits,
    /// if asked to, while others may still fail.
    fn take(&self, place: usize, has: impl Fn(usize) -> bool, wait: bool) -> Option<usize> {
        let bit = 1_u64 << place;
        let mut state = self.lock();
        loop {
            if state.stopped {
                return None;
            }
            let fits = |at: &usize| state.refused[*at] & bit == 0 && has(*at);
            if let Some(found) = state.todo.iter().position(fits) {
                state.under_way += 1;
                return state.todo.remove(found);
            }
            if !wait || state.under_way == 0 {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    fn delivered(&self, place: usize, extent: usize) {
        let mut state = self.lock();
        state.done[extent] = true;
        state.delivered[place] += 1;
        state.under_way -= 1;
        self.changed.notify_all();
    }

    fn failed(&self, place: usize, extent: usize, why: Error) {
        {
            let mut state = self.lock();
            state.failures.retain(|(other, _)| *other != place);
            state.failures.push((place, why));
        }
        self.put_back(place, extent);
    }

    /// Leaves an extent to the others.
    fn put_back(&self, place: usize, extent: usize) {
        let mut state = self.lock();
        state.refused[extent] |= 1 << place;
        state.todo.push_front(extent);
        state.under_way -= 1;
        self.changed.notify_all();
    }

    fn outcome(self, extents: &[Extent]) -> Fetched {
        let State { done, delivered, failures, .. } = self.state.into_inner();
        let missing = extents.iter().zip(&done).filter(|(_, done)| !**done);
        let mut missing: Vec<_> = missing.map(|(extent, _)| *extent).collect();
        missing.sort_unstable();
        Fetched { missing, failures, delivered }
    }
}

impl State {
    fn is_over(&self) -> bool {
        self.stopped || self.todo.is_empty() && self.under_way == 0
    }
}

/// One node being asked.
struct Asking<'a> {
    fetcher: &'a Fetcher,
    wanted: &'a Wanted<'a>,
    copy: &'a Copy<'a>,
    place: usize,
    table: &'a Table,
}

type Asked = HashMap<u64, (usize, Ticket, Instant)>;

impl Asking<'_> {
    fn run(&self, to: &Sender<(Extent, Buffer)>) {
        let (answers_to, answers) = crossbeam_channel::unbounded();
        let mut asked: Asked = HashMap::new();
        let (mut next, mut strikes) = (0, 0);
        loop {
            while strikes < self.fetcher.strikes && asked.len() < self.fetcher.in_flight.max(1) {
                let wait = asked.is_empty();
                let Some(at) = self.table.take(self.place, |at| self.has(at), wait) else { break };
                let deadline = Instant::now() + self.fetcher.timeout;
                match self.ask(at, deadline, next, &answers_to) {
                    Ok(ticket) => {
                        asked.insert(next, (at, ticket, deadline));
                        next += 1;
                    }
                    Err(error) => strikes += self.strike(at, error),
                }
            }
            if asked.is_empty() {
                return;
            }
            match self.one_answer(&mut asked, &answers) {
                None => {}
                Some((at, Ok(bytes))) => {
                    // Nobody takes it only if the fetch is over.
                    let _ = to.send((self.wanted.extents[at], bytes));
                    self.table.delivered(self.place, at);
                }
                Some((at, Err(error))) => strikes += self.strike(at, error),
            }
            if strikes >= self.fetcher.strikes {
                for (_, (at, _, _)) in asked.drain() {
                    self.table.put_back(self.place, at);
                }
            }
        }
    }

    fn ask(
        &self,
        at: usize,
        deadline: Instant,
        tag: u64,
        to: &Sender<Completed>,
    ) -> Result<Ticket> {
        let Extent { offset, len } = self.wanted.extents[at];
        let version = Some(self.wanted.version);
        let read = Request::Read(Read { ino: self.wanted.ino, version, offset, len });
        self.copy.node.start_with(&read, &Body::Empty, deadline, tag, to)
    }

    /// Waits for the next answer, or until the first of those asked for is overdue.
    fn one_answer(
        &self,
        asked: &mut Asked,
        answers: &Receiver<Completed>,
    ) -> Option<(usize, Result<Buffer>)> {
        let due = asked.values().map(|(_, _, due)| *due).min()?;
        if let Ok(Completed { tag, result }) = answers.recv_deadline(due) {
            // What was given up just before is not among them any more.
            let (at, _, _) = asked.remove(&tag)?;
            return Some((at, self.judge(at, result)));
        }
        let late = *asked.iter().min_by_key(|(_, (_, _, due))| *due)?.0;
        let (at, ticket, _) = asked.remove(&late)?;
        ticket.cancel();
        Some((at, Err(Error::TimedOut { sent: true })))
    }

    fn judge(&self, at: usize, result: Result<(Answer, Buffer)>) -> Result<Buffer> {
        let extent = self.wanted.extents[at];
        let (answer, bytes) = result?;
        match answer {
            Answer::Bytes { version } if version == self.wanted.version => {}
            Answer::Bytes { version } => return Err(Error::Fault(Fault::Stale { version })),
            other => return Err(Error::Protocol(format!("an unfit answer ({})", other.code()))),
        }
        if bytes.len() != extent.len as usize {
            return Err(Error::Protocol(format!("{} bytes of {}", bytes.len(), extent.len)));
        }
        match self.wanted.verify {
            Some(verify) if !verify(extent, &bytes) => {
                Err(Error::Corrupt(self.copy.node.address().to_string()))
            }
            _ => Ok(bytes),
        }
    }

    fn has(&self, at: usize) -> bool {
        let Extent { offset, len } = self.wanted.extents[at];
        self.copy.presence.is_none_or(|presence| presence.covers(offset, len.into()))
    }

    /// Puts an extent back, and says how much that counts against the node.
    fn strike(&self, at: usize, error: Error) -> u32 {
        let counts = match &error {
            // It was honest, and may have others.
            Error::Fault(Fault::NotHere) => 0,
            // It lied, or has no version that could be of use, or is not there at all.
            Error::Protocol(_) | Error::Corrupt(_) | Error::Fault(Fault::Stale { .. }) => {
                self.fetcher.strikes
            }
            Error::Connect { .. } | Error::Resting { .. } | Error::Refused { .. } => {
                self.fetcher.strikes
            }
            _ => 1,
        };
        self.table.failed(self.place, at, error);
        counts
    }
}
