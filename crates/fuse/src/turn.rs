//! A request from when it is begun to when it is answered: on the stack of its own on which it is
//! carried out, and as what it waits by.

use std::cell::Cell;
use std::fmt;

use forebay_node::{AtOnce, NodeError, Result, Waiter};
use fusewire::{Interrupt, Operation, Request};
use rustix::io::Errno;

use crate::answer::Answer;
use crate::fiber::{Fiber, Pause, Refusal};
use crate::front::FrontState;
use crate::recovery_journal::Noted;
use crate::serve::{TimeLimits, timeout};

/// A request that is under way, or waits.
pub type UnderWay = Fiber<Wait, Ended>;

/// The wait of a request: for what, and for how long.
pub struct Wait {
    /// The open file that it reads.
    pub reads: Option<u64>,
    /// For how long it may take.
    pub limits: TimeLimits,
    /// Whether its program was hit by a signal.
    pub interrupt: Interrupt,
}

/// The end of a request.
pub struct Ended {
    /// What it is answered with.
    pub outcome: Result<Answer>,
    /// Where it is noted until it is answered.
    pub noted: Option<Noted>,
}

/// Whether a request may wait.
#[derive(Debug, Clone, Copy)]
enum State {
    /// Not on this thread, which has others to serve.
    NotYet,
    /// It does.
    Waits,
    /// It is to come to its end.
    Refused(Refusal),
}

/// A request while it is carried out.
pub struct Turn<'a> {
    shared: &'a FrontState,
    request: &'a Request,
    pause: Pause<'a, Wait>,
    state: Cell<State>,
    noted: Cell<Option<Noted>>,
}

impl<'a> Turn<'a> {
    /// Begins one: what must not be done twice is noted from here on.
    pub fn begin(shared: &'a FrontState, request: &'a Request, pause: Pause<'a, Wait>) -> Self {
        let noted = Cell::new(shared.note(request, &AtOnce));
        Turn { shared, request, pause, state: Cell::new(State::NotYet), noted }
    }

    /// Where it is noted, for who answers it.
    pub fn end(self) -> Option<Noted> {
        self.noted.take()
    }

    fn wait(&self) -> Result<Wait> {
        let operation = self.request.operation().map_err(|_| Errno::IO)?;
        let reads = match operation {
            Operation::Read { fh, .. } => Some(fh),
            _ => None,
        };
        let interrupt = self.request.interrupt_token();
        Ok(Wait { reads, limits: timeout(&operation), interrupt })
    }

    /// Leaves the thread to others. Nothing was changed yet; only of a request that comes again it is
    /// not known whether its first time has, and so that stays noted.
    fn leave(&self) -> Result<()> {
        let wait = self.wait()?;
        if !self.request.is_resent()
            && let Some(noted) = self.noted.take()
        {
            self.shared.forget(noted);
        }
        match self.pause.wait(wait) {
            Ok(()) => {
                self.state.set(State::Waits);
                if !self.request.is_resent() {
                    // Of what it finds now.
                    self.noted.set(self.shared.note(self.request, self));
                }
                Ok(())
            }
            Err(refusal) => {
                self.state.set(State::Refused(refusal));
                Err(error(refusal))
            }
        }
    }
}

fn error(refusal: Refusal) -> NodeError {
    match refusal {
        Refusal::Busy => NodeError::Busy,
        Refusal::GivenUp => Errno::INTR.into(),
    }
}

impl Waiter for Turn<'_> {
    fn wait(&self) -> Result<()> {
        match self.state.get() {
            State::NotYet => self.leave(),
            State::Waits => Ok(()),
            State::Refused(refusal) => Err(error(refusal)),
        }
    }

    fn may_wait(&self) -> bool {
        matches!(self.state.get(), State::Waits)
    }

    fn number(&self) -> u64 {
        if self.may_wait() { self.request.header().unique } else { 0 }
    }
}

impl fmt::Debug for Turn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("state", &self.state).finish_non_exhaustive()
    }
}
