//! What happens to leases beside requests: shipping, signs of life, giving back, and what an earlier
//! process left.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_core::cluster::lease::End;
use forebay_core::unit::Tick;

use super::LeasedState;
use super::journal::{Journal, Left};
use super::part::Part;
use crate::engine::redis::Batch;
use crate::engine::{Engine, EngineError, Write};

/// What is committed meanwhile is shipped together.
const GATHER: Duration = Duration::from_millis(5);
/// A server that did not answer is asked again after this.
const RETRY: Duration = Duration::from_millis(200);
/// Between two looks at all leases.
const LOOK: Duration = Duration::from_millis(100);
/// Between two looks at those that others have to let go of.
const STEP: Duration = Duration::from_millis(1);
/// Between two looks for those that can't be relied on.
const DOUBT: Duration = Duration::from_millis(50);
/// The longest that the end of the engine waits for others to let go.
const LET_GO: Duration = Duration::from_secs(2);

/// Ships what was committed, until the engine stops.
pub(super) fn ship(shared: &LeasedState) {
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
pub(super) fn keep(shared: &LeasedState) {
    let mut looked = Instant::now();
    let mut leaving = Leaving::default();
    while !shared.stopped.load(Ordering::Acquire) {
        let limit = if leaving.is_empty() { LOOK } else { STEP };
        for partition in shared.below.wanted(limit) {
            if let Some(part) = shared.part(partition) {
                leaving.entry(partition).or_insert((part, End::Recalled));
            }
        }
        shared.forsake();
        if looked.elapsed() >= LOOK {
            shared.look_at_all(&mut leaving);
            looked = Instant::now();
        }
        leaving.retain(|partition, (part, end)| {
            if !shared.is_let_go(part) {
                return true;
            }
            if let Err(error) = shared.give_back(part, *end) {
                tracing::debug!(%error, partition, "a lease is given back later");
            }
            false
        });
    }
}

/// Has nobody rely on leases that show no sign of life any more, until the engine stops. Apart from
/// whoever shows them, since that one may be waiting for a server.
pub(super) fn doubt(shared: &LeasedState) {
    while !shared.stopped.load(Ordering::Acquire) {
        std::thread::sleep(DOUBT);
        let now = shared.now();
        for part in shared.all_parts() {
            let lease = part.stamp.load(Ordering::Acquire);
            let is_relied_on = lease != 0 && part.relied.load(Ordering::Acquire) > shared.awake();
            if is_relied_on && !part.is_valid(now) && shared.let_go(part.partition, lease, false) {
                part.relied.store(0, Ordering::Release);
            }
        }
    }
}

/// Leases that are to be given back, and why.
type Leaving = BTreeMap<u16, (Arc<Part>, End)>;

impl LeasedState {
    /// Tells those who rely on leases that were lost.
    fn forsake(&self) {
        let forsaken = std::mem::take(&mut *self.forsaken.lock());
        for (partition, lease) in forsaken {
            if !self.let_go(partition, lease, true) {
                self.forsaken.lock().push((partition, lease));
            }
        }
    }

    fn look_at_all(&self, leaving: &mut Leaving) {
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
            if let Some(end) = end {
                leaving.entry(part.partition).or_insert((part.clone(), end));
            }
            let is_used = now.saturating_sub(used.0) < self.validity()
                || part.relied.load(Ordering::Acquire) > self.awake();
            let left = part.valid.load(Ordering::Acquire).saturating_sub(now);
            // One that nobody uses shows that it lives when it is used again.
            if is_used
                && left < self.validity() / 2
                && let Err(error) = self.ship_some(part, u64::MAX)
            {
                tracing::debug!(%error, partition = part.partition, "a lease is not renewed");
            }
        }
        self.release_strays();
    }

    fn release_strays(&self) {
        let now = self.awake();
        let mut strays = std::mem::take(&mut *self.strays.lock());
        let mut failed = false;
        strays.retain(|stray| {
            if failed || stray.not_before > now {
                return true;
            }
            failed = self.below.release(stray.partition, &stray.id).is_err();
            if !failed {
                self.mark_is_gone(stray.partition, &stray.id);
            }
            failed
        });
        self.strays.lock().extend(strays);
    }

    /// Gives all leases back, and takes no more.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let parts = self.all_parts();
        let until = Instant::now() + LET_GO;
        // All are told before any is waited for.
        while parts.iter().filter(|part| !self.is_let_go(part)).count() > 0
            && Instant::now() < until
        {
            std::thread::sleep(STEP);
        }
        for part in parts {
            if !self.is_let_go(&part) {
                tracing::warn!(
                    "a lease can't be given back, as the kernel may still rely on what was read \
                     under it: other nodes wait until it times out"
                );
                continue;
            }
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
                tracing::warn!(
                    %error,
                    "the journal of leases can't be opened, so none are taken: changes of names \
                     are slower. Check the device of the first tier"
                );
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
        let mut kept = Vec::new();
        for (partition, left) in left {
            kept.extend(self.finish(partition, left, &mut opened)?);
        }
        *journal = Some(opened);
        drop(journal);
        for (partition, lease, shipped) in kept {
            self.resume(partition, lease, shipped);
        }
        Ok(true)
    }

    /// Ships what an earlier process left, and gives its lease back, unless others rely on it: then
    /// with what it can be gone on, the lease and the last transaction.
    fn finish(
        &self,
        partition: u16,
        left: Left,
        journal: &mut Journal,
    ) -> Result<Option<(u16, String, u64)>, EngineError> {
        let Left { lease, transactions, .. } = left;
        let arrived = self.below.shipped(partition, &lease)?;
        let mut rest = transactions;
        if let Some(mut arrived) = arrived {
            rest = rest.split_off(&(arrived + 1));
            let count = rest.len();
            // One that is missing was not noted: what was built upon it must not arrive without it.
            while let Some((number, writes)) = next_after(&mut rest, arrived) {
                let batch = Batch { after: arrived, last: number, writes };
                if !self.below.ship(partition, &lease, &batch)? {
                    rest.insert(number, batch.writes);
                    break;
                }
                arrived = number;
            }
            tracing::info!(partition, changes = count - rest.len(), "shipped after a restart");
            // A sign of life brings it back if it was broken, and nobody has changed anything since.
            let alive = Batch { after: arrived, last: arrived, writes: Vec::new() };
            let goes_on = self.options.outlived && rest.is_empty();
            if goes_on && self.below.ship(partition, &lease, &alive)? {
                journal.shipped(partition, &lease, arrived);
                return Ok(Some((partition, lease, arrived)));
            }
            self.below.release(partition, &lease)?;
        }
        if !rest.is_empty() {
            let count = rest.len();
            let rest = Vec::from_iter(rest.into_values());
            let kept = journal.refuse(partition, &lease, &rest);
            self.losses.note(rest.len(), &rest);
            tracing::error!(
                partition,
                changes = count,
                kept = %kept.display(),
                "other nodes took this one for dead while it was away: its last changes of names \
                 and attributes in a directory are lost"
            );
        }
        journal.ended(partition, &lease);
        Ok(None)
    }
}

/// The transaction after one, if it is there.
fn next_after(
    transactions: &mut BTreeMap<u64, Vec<Write>>,
    number: u64,
) -> Option<(u64, Vec<Write>)> {
    transactions.remove_entry(&(number + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_when_one_is_missing_then_those_after_it_are_not_shipped() {
        let mut left: BTreeMap<u64, Vec<Write>> = [4, 5, 7, 8].map(|n| (n, Vec::new())).into();
        let mut arrived = 3;
        while let Some((number, _)) = next_after(&mut left, arrived) {
            arrived = number;
        }
        assert_eq!(arrived, 5);
        assert_eq!(left.into_keys().collect::<Vec<_>>(), [7, 8]);
    }
}
