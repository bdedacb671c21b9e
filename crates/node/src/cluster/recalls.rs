//! Asking the owners of files, and doing what other nodes ask for.

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

use forebay_meta::{Answer, Error as MetaError, Incarnation, RecallAim, RecallRequest};
use forebay_types::Ino;
use parking_lot::Mutex;
use rustix::io::Errno;

use super::{Cluster, MAX_RECALLS};
use crate::error::{NodeError, Result};
use crate::pool::Urgency;

const STRIPES: usize = 1024;
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(20);

/// Recalls under way.
pub(super) struct Recalls {
    /// One asks about an inode at a time: a second request would replace the first.
    asking: Vec<Mutex<()>>,
    /// What others ask for and is being done.
    answering: Mutex<HashSet<(u64, u16, bool)>>,
}

impl Default for Recalls {
    fn default() -> Self {
        let asking = (0..STRIPES).map(|_| Mutex::new(())).collect();
        Recalls { asking, answering: Mutex::default() }
    }
}

impl Cluster {
    /// Asks the owner of a file for something and waits until it is done.
    ///
    /// # Errors
    /// `EHOSTDOWN` if the owner is dead; `EBUSY` if it does not do it in time; what it says.
    pub(crate) fn ask_owner(
        &self,
        ino: Ino,
        owner: Incarnation,
        aim: RecallAim,
        until: Instant,
    ) -> Result<()> {
        let _one = self.recalls.asking[ino.0 as usize % STRIPES].lock();
        // Nobody answers for it.
        if self.is_silent(owner.node) && self.have_taken_over(ino, owner)? {
            return Ok(());
        }
        // What an earlier one in this line was told may be all that is needed.
        if self.meta.get_now(ino)?.owner != Some(owner) {
            return Ok(());
        }
        self.meta.ask(owner.node, ino, aim)?;
        let answer = self.await_answer(ino, owner, until);
        if answer.is_err() {
            self.meta.retract(owner.node, ino)?;
        }
        answer
    }

    fn await_answer(&self, ino: Ino, owner: Incarnation, until: Instant) -> Result<()> {
        let mut pause = FIRST_PAUSE;
        loop {
            thread::sleep(pause);
            match self.meta.answered(owner.node, ino)? {
                Answer::Done => return Ok(()),
                Answer::Failed(errno) => return Err(Errno::from_raw_os_error(errno).into()),
                Answer::Pending => {}
            }
            if self.is_silent_now(owner.node)? && self.meta.get_now(ino)?.owner == Some(owner) {
                if self.have_taken_over(ino, owner)? {
                    return Ok(());
                }
                // To those that have copies it may not be gone yet.
                let waits = self.meta.get(ino)?.copied && Instant::now() < until;
                if !waits {
                    return Err(Errno::HOSTDOWN.into());
                }
            }
            if Instant::now() >= until {
                return Err(Errno::BUSY.into());
            }
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// Has what others ask for done; false if not all could be looked at.
    pub(super) fn take_recalls(&self) -> bool {
        let requests = match self.meta.recalls(MAX_RECALLS) {
            Ok(requests) => requests,
            Err(error) => {
                tracing::warn!(
                    %error,
                    "can't read what other nodes ask this one for: they wait until it can. If this \
                     goes on, check the metadata servers"
                );
                return false;
            }
        };
        let mut all = requests.len() < MAX_RECALLS;
        for request in requests {
            let key = (request.ino.0, request.asker, request.aim == RecallAim::Bytes);
            if !self.recalls.answering.lock().insert(key) {
                // Perhaps asked again while the last time was being answered.
                all = false;
                continue;
            }
            let this = self.this.clone();
            let job = move || {
                let Some(cluster) = this.upgrade() else { return };
                cluster.answer_recall(&request);
                cluster.recalls.answering.lock().remove(&key);
            };
            if self.workers.run(Urgency::Demand, job).is_err() {
                self.recalls.answering.lock().remove(&key);
                all = false;
            }
        }
        all
    }

    fn answer_recall(&self, request: &RecallRequest) {
        let done = self.handle_recall(request.ino, request.aim, true);
        let failed = match &done {
            Ok(()) => None,
            Err(NodeError::Meta(MetaError::Stale(_))) => None,
            // The next daemon of this node finds the request where it is.
            Err(NodeError::ShuttingDown) => return,
            Err(NodeError::Posix(errno)) => Some(errno.raw_os_error()),
            Err(NodeError::Busy) => Some(libc::EBUSY),
            Err(error) => {
                tracing::warn!(
                    ino = %request.ino,
                    %error,
                    "another node asked for a file that could not be written back or given up: it \
                     is told of an I/O error"
                );
                Some(libc::EIO)
            }
        };
        if let Err(error) = self.meta.answer(request, failed) {
            tracing::warn!(
                %error,
                "can't tell another node what came of its request for a file: it waits until its \
                 time is over. If this goes on, check the metadata servers"
            );
        }
    }

    /// As [`Cluster::handle_recall`] with the request for a file, but for one that programs here can write:
    /// false at once.
    pub(crate) fn give_up_unused(&self, ino: Ino) -> Result<bool> {
        match self.handle_recall(ino, RecallAim::Ownership, false) {
            Err(NodeError::Posix(Errno::BUSY)) => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// Writes a file back that another node wants, and gives it up if that is wanted; `EBUSY` if
    /// programs here can write it: at once, or with `waits` if they still can after the timeout.
    pub(crate) fn handle_recall(&self, ino: Ino, aim: RecallAim, waits: bool) -> Result<()> {
        let until = Instant::now() + self.config.timeout;
        loop {
            let file = self.residency.files.get(ino);
            self.residency.settle(&file)?;
            let record = self.meta.get_now(ino)?;
            if !self.is_mine(&record) {
                return Ok(());
            }
            if aim == RecallAim::Bytes {
                return match record.is_behind() {
                    true => self.writeback.reconcile_as_it_is(file.ino),
                    false => Ok(()),
                };
            }
            // Also by a mapping that outlasted its open file.
            let pinned = self.is_pinned_for_writing(ino)
                || record.is_behind() && self.residency.is_mapped_by_the_kernel(&file)?;
            if !pinned {
                if record.is_behind() {
                    self.writeback.reconcile(ino)?;
                }
                if self.give_up(ino)? {
                    return Ok(());
                }
            }
            if pinned && !waits || Instant::now() >= until {
                return Err(Errno::BUSY.into());
            }
            thread::sleep(LAST_PAUSE / 4);
        }
    }
}
