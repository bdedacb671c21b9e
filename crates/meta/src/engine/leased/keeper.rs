//! What happens to leases beside requests: shipping, signs of life, giving back, and what an earlier
//! process left.

use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_core::cluster::lease::End;
use forebay_core::unit::Tick;

use super::Shared;
use super::journal::{Journal, Left};
use crate::engine::redis::Batch;
use crate::engine::{Engine, EngineError};

/// What is committed meanwhile is shipped together.
const GATHER: Duration = Duration::from_millis(5);
/// A server that did not answer is asked again after this.
const RETRY: Duration = Duration::from_millis(200);
/// Between two looks at all leases.
const LOOK: Duration = Duration::from_millis(100);

/// Ships what was committed, until the engine stops.
pub(super) fn ship(shared: &Shared) {
    while !shared.stopped.load(Ordering::Acquire) {
        let partitions = {
            let mut unshipped = shared.unshipped.lock();
            if unshipped.is_empty() {
                shared.ship.wait_for(&mut unshipped, LOOK);
            }
            std::mem::take(&mut *unshipped)
        };
        if partitions.is_empty() {
            continue;
        }
        for partition in partitions {
            let Some(part) = shared.part(partition) else { continue };
            match shared.ship_some(&part, u64::MAX) {
                Ok(true) if part.state.lock().as_ref().is_some_and(|held| held.log.len() > 0) => {
                    shared.unshipped.lock().insert(partition);
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(%error, partition, "changes are shipped later");
                    shared.unshipped.lock().insert(partition);
                    std::thread::sleep(RETRY);
                }
            }
        }
        std::thread::sleep(GATHER);
    }
}

/// Shows that this process lives, and gives leases back, until the engine stops.
pub(super) fn keep(shared: &Shared) {
    let mut looked = std::time::Instant::now();
    while !shared.stopped.load(Ordering::Acquire) {
        for partition in shared.below.wanted(LOOK) {
            if let Some(part) = shared.part(partition)
                && let Err(error) = shared.give_back(&part, End::Recalled)
            {
                tracing::debug!(%error, partition, "a lease that others want is given back later");
            }
        }
        if looked.elapsed() >= LOOK {
            shared.look_at_all();
            looked = std::time::Instant::now();
        }
    }
}

impl Shared {
    fn look_at_all(&self) {
        let now = self.now();
        let mut parts = self.all_parts();
        let mut memory: usize = parts.iter().map(|part| part.bytes.load(Ordering::Relaxed)).sum();
        // Those that take most go first.
        parts.sort_by_key(|part| std::cmp::Reverse(part.bytes.load(Ordering::Relaxed)));
        for part in &parts {
            if self.stopped.load(Ordering::Acquire) {
                return;
            }
            if part.stamp.load(Ordering::Acquire) == 0 {
                continue;
            }
            let used = Tick(part.used.load(Ordering::Relaxed));
            let end = if memory > self.options.memory {
                memory = memory.saturating_sub(part.bytes.load(Ordering::Relaxed));
                Some(End::TooLarge)
            } else if self.leases.lock().is_idle(Tick(now), used) {
                Some(End::Idle)
            } else if self.below.watch(part.partition).is_none() {
                // Nobody could ask for it.
                Some(End::Lost)
            } else {
                None
            };
            let is_used = now.saturating_sub(used.0) < self.validity();
            let left = part.valid.load(Ordering::Acquire).saturating_sub(now);
            let done = match end {
                Some(end) => self.give_back(part, end),
                // One that nobody uses shows that it lives when it is used again.
                None if is_used && left < self.validity() / 2 => {
                    self.ship_some(part, u64::MAX).map(drop)
                }
                None => Ok(()),
            };
            if let Err(error) = done {
                tracing::debug!(%error, partition = part.partition, "a lease is not renewed");
            }
        }
        self.release_strays();
    }

    fn release_strays(&self) {
        let strays = std::mem::take(&mut *self.strays.lock());
        for (at, (partition, id)) in strays.iter().enumerate() {
            if self.below.release(*partition, id).is_err() {
                self.strays.lock().extend_from_slice(&strays[at..]);
                return;
            }
        }
    }

    /// Gives all leases back, and takes no more.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for part in self.all_parts() {
            if let Err(error) = self.give_back(&part, End::Idle) {
                tracing::warn!(%error, "leases are left: the next daemon ships what they hold");
                // Each of the others would wait as long.
                break;
            }
        }
        self.release_strays();
        let journal = self.journal.lock().take();
        if let Some(journal) = journal {
            journal.close();
        }
    }

    /// Whether there is a journal, if one is wanted.
    pub(super) fn has_journal(&self) -> bool {
        match self.open_journal() {
            Ok(open) => open,
            Err(error) => {
                tracing::warn!(%error, "no leases are taken");
                false
            }
        }
    }

    /// Opens the journal, if it is not open, and ships what is found there. False if another process
    /// has it: the daemon before this one, which gives all back before it lets go of it.
    pub(super) fn open_journal(&self) -> Result<bool, EngineError> {
        let Some(dir) = &self.options.journal else { return Ok(true) };
        let mut journal = self.journal.lock();
        if journal.is_some() {
            return Ok(true);
        }
        let opened = Journal::open(dir).map_err(|error| EngineError::Io(Box::new(error)))?;
        let Some((mut opened, left)) = opened else { return Ok(false) };
        for (partition, left) in left {
            self.finish(partition, left, &mut opened)?;
        }
        *journal = Some(opened);
        Ok(true)
    }

    /// Ships what an earlier process left, and gives its lease back.
    fn finish(&self, partition: u16, left: Left, journal: &mut Journal) -> Result<(), EngineError> {
        let Left { lease, transactions, .. } = left;
        let arrived = self.below.shipped(partition, &lease)?;
        let mut rest = transactions;
        if let Some(mut arrived) = arrived {
            rest = rest.split_off(&(arrived + 1));
            let count = rest.len();
            while let Some((number, writes)) = rest.pop_first() {
                let batch = Batch { after: arrived, last: number, writes };
                if !self.below.ship(partition, &lease, &batch)? {
                    rest.insert(number, batch.writes);
                    break;
                }
                arrived = number;
            }
            tracing::info!(partition, changes = count - rest.len(), "shipped after a restart");
            self.below.release(partition, &lease)?;
        }
        if !rest.is_empty() {
            let count = rest.len();
            let kept = journal.refuse(partition, &lease, &Vec::from_iter(rest.into_values()));
            tracing::error!(
                partition,
                changes = count,
                kept = %kept.display(),
                "other nodes took this one for dead while it was away: its last changes of names \
                 and attributes in a directory are lost"
            );
        }
        journal.ended(partition, &lease);
        Ok(())
    }
}
