//! Files that a rename has replaced, for the moment in which somebody may still open them.
//!
//! On a local file system, whoever has looked a name up can open what he found, also when the name
//! means another file by then. Here the kernel looks up and opens by two requests, and repeats the
//! pair only once when the file is gone in between: a program that reads a file which another
//! replaces all the time would see `ESTALE` now and then. So a replaced file lives on for a
//! second, as an orphan, whoever closes it meanwhile; a crash leaves it to the recovery of orphans.
//!
//! A file that can't be let go of yet, as somebody has it in hand who waits for a slow device or as the
//! namespace fails, waits here as well, and is tried again after the same time.
//!
//! # Invariants
//! (`writeback/reconcile/tests/replaced.rs`)
//! - Each file waits here once, and to let go of one never begins with another: the stack does not grow
//!   with the number of files that can't go.
//! - None is forgotten while the node runs: it goes, is opened, or waits here.

use std::collections::{HashSet, VecDeque};
use std::thread;
use std::time::{Duration, Instant};

use forebay_meta::{Error as MetaError, Record};
use forebay_types::Ino;
use parking_lot::Mutex;

use crate::clock;
use crate::error::Result;
use crate::node::Node;
use crate::residency::removals::Announced;
use crate::waits;

/// How long a replaced file can still be opened.
const GRACE: Duration = Duration::from_secs(1);
/// How many live on at once; the oldest go first. Of those that can't go there may be more: each is an
/// orphan of the namespace.
const MAX: usize = 1024;
const TICK: Duration = Duration::from_millis(100);

/// Replaced files, oldest first.
#[derive(Default)]
pub(crate) struct UnlinkGrace(Mutex<ReplacedFiles>);

/// Files that can still be opened, and who sees to them.
#[derive(Default)]
struct ReplacedFiles {
    files: VecDeque<(Instant, Ino)>,
    /// The same without their order.
    waiting: HashSet<Ino>,
    /// Those of which it was said that the namespace does not release them.
    refused: HashSet<Ino>,
    /// A thread sees to them.
    attended: bool,
    /// It is letting go of some that are not among the files any more.
    going: bool,
}

impl ReplacedFiles {
    fn take_due(&mut self, now: Instant) -> Vec<Ino> {
        // No more at once, so that whoever waits for their end does not wait for long.
        let is_due = |(since, _): &&(Instant, Ino)| now - *since >= GRACE;
        let due = self.files.iter().take(MAX).take_while(is_due).count();
        self.going = due > 0;
        (0..due).map_while(|_| self.pop_oldest()).collect()
    }

    fn take_all(&mut self) -> Vec<Ino> {
        self.waiting.clear();
        std::mem::take(&mut self.files).into_iter().map(|(_, ino)| ino).collect()
    }

    /// Enters a file as the newest, unless it waits already.
    fn push(&mut self, now: Instant, ino: Ino) {
        if self.waiting.insert(ino) {
            self.files.push_back((now, ino));
        }
    }

    fn pop_oldest(&mut self) -> Option<Ino> {
        let (_, oldest) = self.files.pop_front()?;
        self.waiting.remove(&oldest);
        Some(oldest)
    }
}

impl UnlinkGrace {
    /// Whether somebody who has looked the file up may still open it.
    pub fn has(&self, ino: Ino) -> bool {
        self.0.lock().waiting.contains(&ino)
    }

    /// Takes all of them, for somebody else to let go, once nobody is at it here: else an object
    /// would count as there that goes at this moment. `None` if that takes longer than `until`.
    pub fn take(&self, until: Instant) -> Option<Vec<Ino>> {
        loop {
            {
                let mut replaced = self.0.lock();
                if !replaced.going {
                    return Some(replaced.take_all());
                }
            }
            if Instant::now() >= until {
                return None;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Node {
    /// Lets go of a replaced file in a while. It is an orphan; who has it open keeps it longer.
    pub(crate) fn begin_unlink_grace(&self, ino: Ino) {
        let oldest = {
            let mut replaced = self.names.unlink_grace.0.lock();
            replaced.push(clock::now(), ino);
            if replaced.files.len() > MAX { replaced.pop_oldest() } else { None }
        };
        if let Some(oldest) = oldest {
            self.let_go(oldest);
        }
        self.see_to_replaced();
    }

    /// Lets go later of a file that can't go now. None goes for it: perhaps that can't go either.
    fn let_go_later(&self, ino: Ino) {
        self.names.unlink_grace.0.lock().push(clock::now(), ino);
        self.see_to_replaced();
    }

    fn see_to_replaced(&self) {
        let start = !std::mem::replace(&mut self.names.unlink_grace.0.lock().attended, true);
        if start && !self.attend() {
            self.names.unlink_grace.0.lock().attended = false;
        }
    }

    /// Lets go of all replaced files at once.
    pub(crate) fn let_go_of_replaced(&self) {
        let replaced = self.names.unlink_grace.0.lock().take_all();
        for ino in replaced {
            self.let_go(ino);
        }
    }

    fn attend(&self) -> bool {
        let this = self.this.clone();
        let attend = move || {
            loop {
                thread::sleep(TICK);
                let Some(node) = this.upgrade() else { return };
                if !node.let_go_of_due() {
                    return;
                }
            }
        };
        waits::attend("replaced", attend)
    }

    /// Lets go of the replaced files whose time is over; says whether there are more.
    pub(crate) fn let_go_of_due(&self) -> bool {
        let mut replaced = self.names.unlink_grace.0.lock();
        let due = replaced.take_due(clock::now());
        if due.is_empty() && replaced.files.is_empty() {
            replaced.attended = false;
            return false;
        }
        drop(replaced);
        for ino in due {
            self.let_go(ino);
        }
        self.names.unlink_grace.0.lock().going = false;
        true
    }

    fn let_go(&self, ino: Ino) {
        let record = match self.meta.get(ino) {
            // Its last close does the same: the file waits here no longer.
            Ok(record) if !record.orphan || self.residency.is_open(ino) => return,
            Ok(record) => record,
            Err(MetaError::Stale(_)) => return,
            Err(error) => {
                tracing::debug!(%ino, %error, "a removed file is looked at later");
                return self.let_go_later(ino);
            }
        };
        // Opened at the last moment: whoever did has its record, and closes it.
        if self.let_orphan_go(&record) {
            match self.residency.is_open(ino) {
                true => self.residency.note_removed(ino),
                false => self.residency.discard_soon(ino),
            }
        }
    }

    /// A removed file is in use no more. Returns whether its bytes can go: not if names that are not known
    /// here are to show them.
    pub(crate) fn let_orphan_go(&self, record: &Record) -> bool {
        let ino = record.ino;
        match self.settle_for_unseen_names(record, Some(Instant::now())) {
            Ok(true) => {}
            settled => {
                // Whoever has it in hand waits for a slow device.
                tracing::debug!(%ino, ?settled, "a removed file is let go of later");
                self.let_go_later(ino);
                return false;
            }
        }
        let announced = self.residency.announce_removal(ino);
        if let Err(error) = self.meta.release_orphan(ino, clock::wall_time()) {
            announced.iter().for_each(Announced::take_back);
            if self.names.unlink_grace.0.lock().refused.insert(ino) {
                tracing::warn!(
                    %ino,
                    %error,
                    "a removed file can't be released in the namespace; it is tried again"
                );
            }
            self.let_go_later(ino);
            return false;
        }
        fail::fail_point!("node.orphan.released");
        self.names.unlink_grace.0.lock().refused.remove(&ino);
        let is_gone = match self.meta.get(ino) {
            Ok(record) => {
                self.queue(&record);
                record.links.is_empty() && !record.is_owed_to_unseen_names()
            }
            Err(error) => matches!(error, MetaError::Stale(_)),
        };
        announced.iter().filter(|_| !is_gone).for_each(Announced::take_back);
        is_gone
    }

    /// A file is about to lose its last known name, and perhaps has others in directories that are not
    /// imported: its record says what was written to it. False if that is not known at `deadline`.
    pub(crate) fn settle_for_unseen_names(
        &self,
        record: &Record,
        deadline: Option<Instant>,
    ) -> Result<bool> {
        let known = record.links.len() as u32;
        if record.is_directory()
            || known > 1
            || record.attr.nlink <= known
            || !self.residency.is_unsettled(record.ino)
        {
            return Ok(true);
        }
        self.residency.settle_by(&self.residency.files.get(record.ino), deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_when_the_grace_has_passed() {
        let begin = Instant::now();
        let mut replaced = ReplacedFiles::default();
        replaced.push(begin, Ino(5));
        replaced.push(begin + GRACE, Ino(6));
        replaced.push(begin + GRACE, Ino(5));
        assert!(replaced.take_due(begin).is_empty());
        assert_eq!(replaced.take_due(begin + GRACE), [Ino(5)]);
        assert_eq!(replaced.take_due(begin + 2 * GRACE), [Ino(6)]);
        assert!(replaced.take_due(begin + 2 * GRACE).is_empty() && !replaced.going);
        assert!(replaced.waiting.is_empty());
    }

    #[test]
    fn replaced_files_when_one_is_going_then_taken_only_after_it() {
        let grace = UnlinkGrace::default();
        let begin = Instant::now();
        {
            let mut replaced = grace.0.lock();
            replaced.push(begin, Ino(5));
            replaced.push(begin + GRACE, Ino(6));
            assert_eq!(replaced.take_due(begin + GRACE), [Ino(5)]);
        }
        assert_eq!(grace.take(Instant::now()), None);
        grace.0.lock().going = false;
        assert_eq!(grace.take(Instant::now()), Some(vec![Ino(6)]));
    }
}
