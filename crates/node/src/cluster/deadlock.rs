//! Programs of several nodes that wait for each other's locks: the one that closes the circle is told.
//!
//! Each node notes in the metadata of which files its programs wait for locks, before they stand in
//! the queue. Who has queued reads the locks of all those files, and is the last of a circle exactly
//! if they say so and are the same when they are read again.

use std::collections::BTreeSet;

use forebay_core::cluster::deadlock::is_in_circle;
use forebay_core::cluster::locks::{Family, Holder, Locks};
use forebay_types::Ino;
use rustix::io::Errno;

use super::Cluster;
use super::locks::Waited;
use crate::error::Result;

/// Files that are looked at for a circle.
const MAX_FILES: usize = 1024;
/// Looks at files that change all the time: those who change them are in no circle, and those who
/// come later look as well.
const LOOKS: usize = 16;

impl Cluster {
    /// Lets others know that programs here wait for locks of a file, or are about to.
    pub(super) fn note_lock_waits(&self, ino: Ino) -> Result<()> {
        let mut noted = self.locks.noted.lock();
        if !noted.contains(&ino.0) {
            self.meta.note_lock_waits(ino, true)?;
            noted.insert(ino.0);
        }
        Ok(())
    }

    /// What earlier incarnations of this node have noted is true no longer; who waits still asks again.
    pub(super) fn begin_to_note_waits(&self) {
        let noted = self.locks.noted.lock();
        if noted.is_empty()
            && self.locks.waits.lock().by_ticket.is_empty()
            && let Err(error) = self.meta.forget_lock_waits()
        {
            tracing::debug!(%error, "old notes of who waits for locks stay");
        }
    }

    /// Takes back what was noted of files for which nobody waits any more.
    pub(super) fn forget_lock_waits(&self) {
        let mut noted = self.locks.noted.lock();
        if noted.is_empty() {
            return;
        }
        // Whoever notes a file is among those who wait already, or waits for this lock.
        let waits: BTreeSet<u64> =
            self.locks.waits.lock().by_ticket.values().map(|wait| wait.ino.0).collect();
        noted.retain(|ino| {
            waits.contains(ino) || self.meta.note_lock_waits(Ino(*ino), false).is_err()
        });
    }

    /// Somebody waits for a lock: if it is in the end for himself, he is told.
    pub(super) fn end_circle(&self, ino: Ino, holder: Holder, ticket: u64) {
        if holder.family != Family::Ranges {
            return;
        }
        match self.closes_circle(ino, holder) {
            Ok(false) => return,
            Ok(true) => {}
            Err(error) => {
                tracing::debug!(%ino, %error, "a circle of waiters may not be found out");
                return;
            }
        }
        let cancelled =
            self.lock_record(ino).change(|locks| locks.cancel(holder.incarnation, ticket));
        // If not, it has the lock, or nobody knows: the thread that looks after locks will.
        if matches!(cancelled, Ok(true))
            && let Some(done) = self.locks.take(ticket)
        {
            done(Waited::Ended(Err(Errno::DEADLK.into())));
        }
    }

    fn closes_circle(&self, ino: Ino, holder: Holder) -> Result<bool> {
        let mut before: Option<Vec<Locks>> = None;
        for _ in 0..LOOKS {
            let mut files = self.meta.lock_waits(MAX_FILES)?;
            if !files.contains(&ino) {
                files.push(ino);
            }
            let locks = files.into_iter().map(|file| Ok(self.meta.locks(file)?));
            let locks = locks.collect::<Result<Vec<Locks>>>()?;
            if !is_in_circle(holder, &locks) {
                return Ok(false);
            }
            if before.as_ref() == Some(&locks) {
                return Ok(true);
            }
            before = Some(locks);
        }
        Ok(false)
    }
}
