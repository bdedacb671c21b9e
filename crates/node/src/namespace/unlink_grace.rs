//! Files that a rename has replaced, for the moment in which somebody may still open them.
//!
//! On a local file system, whoever has looked a name up can open what he found, also when the name
//! means another file by then. Here the kernel looks up and opens by two requests, and repeats the
//! pair only once when the file is gone in between: a program that reads a file which another
//! replaces all the time would see `ESTALE` now and then. So a replaced file lives on for a
//! second, as an orphan, whoever closes it meanwhile; a crash leaves it to the recovery of orphans.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use forebay_meta::{Error as MetaError, Record};
use forebay_types::Ino;
use parking_lot::Mutex;

use crate::clock;
use crate::error::Result;
use crate::node::Node;
use crate::waits;

/// How long a replaced file can still be opened.
const GRACE: Duration = Duration::from_secs(1);
/// How many live on at once; the oldest go first.
const MAX: usize = 1024;
const TICK: Duration = Duration::from_millis(100);

/// Replaced files, oldest first.
#[derive(Default)]
pub(crate) struct UnlinkGrace(Mutex<ReplacedFiles>);

/// Files that can still be opened, and who sees to them.
#[derive(Default)]
struct ReplacedFiles {
    files: VecDeque<(Instant, Ino)>,
    /// A thread sees to them.
    attended: bool,
    /// It is letting go of some that are not among the files any more.
    going: bool,
}

impl ReplacedFiles {
    fn take_due(&mut self, now: Instant) -> Vec<Ino> {
        let due = self.files.iter().take_while(|(since, _)| now - *since >= GRACE).count();
        self.going = due > 0;
        self.files.drain(..due).map(|(_, ino)| ino).collect()
    }
}

impl UnlinkGrace {
    /// Whether somebody who has looked the file up may still open it.
    pub fn has(&self, ino: Ino) -> bool {
        self.0.lock().files.iter().any(|(_, other)| *other == ino)
    }

    /// Takes all of them, for somebody else to let go, once nobody is at it here: else an object
    /// would count as there that goes at this moment. `None` if that takes longer than `until`.
    pub fn take(&self, until: Instant) -> Option<Vec<Ino>> {
        loop {
            {
                let mut replaced = self.0.lock();
                if !replaced.going {
                    return Some(replaced.files.drain(..).map(|(_, ino)| ino).collect());
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
        let mut replaced = self.names.unlink_grace.0.lock();
        replaced.files.push_back((clock::now(), ino));
        let oldest = if replaced.files.len() > MAX { replaced.files.pop_front() } else { None };
        let start = !std::mem::replace(&mut replaced.attended, true);
        drop(replaced);
        if let Some((_, oldest)) = oldest {
            self.let_go(oldest);
        }
        if start && !self.attend() {
            self.names.unlink_grace.0.lock().attended = false;
        }
    }

    /// Lets go of all replaced files at once.
    pub(crate) fn let_go_of_replaced(&self) {
        let replaced = std::mem::take(&mut self.names.unlink_grace.0.lock().files);
        for (_, ino) in replaced {
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
        // Its last close does the same: the file waits here no longer.
        let orphan = self.meta.get(ino).ok().filter(|record| record.orphan);
        let Some(record) = orphan.filter(|_| !self.residency.is_open(ino)) else { return };
        // Opened at the last moment: whoever did has its record, and closes it.
        if self.let_orphan_go(&record) {
            self.residency.note_removed(ino);
            if !self.residency.is_open(ino) {
                self.residency.discard_data(ino);
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
                self.begin_unlink_grace(ino);
                return false;
            }
        }
        if let Err(error) = self.meta.release_orphan(ino, clock::wall_time()) {
            tracing::warn!(
                %ino,
                %error,
                "a removed file can't be released in the namespace; the next start does it"
            );
        }
        match self.meta.get(ino) {
            Ok(record) => {
                self.queue(&record);
                record.links.is_empty() && !record.is_owed_to_unseen_names()
            }
            Err(error) => matches!(error, MetaError::Stale(_)),
        }
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
        replaced.files.push_back((begin, Ino(5)));
        replaced.files.push_back((begin + GRACE, Ino(6)));
        assert!(replaced.take_due(begin).is_empty());
        assert_eq!(replaced.take_due(begin + GRACE), [Ino(5)]);
        assert_eq!(replaced.take_due(begin + 2 * GRACE), [Ino(6)]);
        assert!(replaced.take_due(begin + 2 * GRACE).is_empty() && !replaced.going);
    }

    #[test]
    fn replaced_files_when_one_is_going_then_taken_only_after_it() {
        let grace = UnlinkGrace::default();
        let begin = Instant::now();
        {
            let mut replaced = grace.0.lock();
            replaced.files.push_back((begin, Ino(5)));
            replaced.files.push_back((begin + GRACE, Ino(6)));
            assert_eq!(replaced.take_due(begin + GRACE), [Ino(5)]);
        }
        assert_eq!(grace.take(Instant::now()), None);
        grace.0.lock().going = false;
        assert_eq!(grace.take(Instant::now()), Some(vec![Ino(6)]));
    }
}
