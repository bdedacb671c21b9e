//! What happens to leases beside requests: shipping, signs of life, giving back, and what an earlier
//! process left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_core::cluster::lease::End;
use forebay_core::unit::Tick;

use super::journal::{Journal, Left};
use super::part::Part;
use super::session::{Entry, Session};
use super::{Shared, Stray};
use crate::engine::redis::Append;
use crate::engine::{Engine, EngineError};

/// What is committed meanwhile is shipped together.
const GATHER: Duration = Duration::from_millis(5);
/// A server that did not answer is asked again after this.
const RETRY: Duration = Duration::from_millis(200);
/// Between two looks at all leases.
const LOOK: Duration = Duration::from_millis(100);
/// Between two looks at those that others have to let go of.
pub(super) const STEP: Duration = Duration::from_millis(1);
/// Between two looks for those that can't be relied on.
const DOUBT: Duration = Duration::from_millis(50);
/// What the leases of a session begin with.
const SESSION: usize = 8;
/// The longest that the end of the engine waits for others to let go.
const LET_GO: Duration = Duration::from_secs(2);

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
        if let Err(error) = shared.ship_all(&partitions) {
            tracing::debug!(%error, "changes are shipped later");
            shared.unshipped.lock().extend(partitions);
            std::thread::sleep(RETRY);
        }
        std::thread::sleep(GATHER);
    }
}

/// Shows that this process lives, and gives leases back, until the engine stops.
pub(super) fn keep(shared: &Shared) {
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
        if shared.is_lost()
            && let Err(error) = shared.settle()
        {
            tracing::debug!(%error, "the leases of this process are lost, which is settled later");
        }
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
pub(super) fn doubt(shared: &Shared) {
    while !shared.stopped.load(Ordering::Acquire) {
        std::thread::sleep(DOUBT);
        let now = shared.now();
        for part in shared.all_parts() {
            let lease = part.stamp.load(Ordering::Acquire);
            let is_relied_on = lease != 0 && part.relied.load(Ordering::Acquire) > shared.awake();
            if is_relied_on && !shared.is_valid(now) && shared.let_go(part.partition, lease, false)
            {
                part.relied.store(0, Ordering::Release);
            }
        }
    }
}

/// Leases that are to be given back, and why.
type Leaving = BTreeMap<u16, (Arc<Part>, End)>;

impl Shared {
    /// Brings what was committed until now to the session, then to its partitions.
    fn ship_all(&self, partitions: &BTreeSet<u16>) -> Result<(), EngineError> {
        // One that can't be reached keeps nothing from the others.
        let mut failed = match self.append_up_to(self.last.load(Ordering::Acquire)) {
            Ok(true) => None,
            Ok(false) => return self.settle(),
            Err(error) => Some(error),
        };
        for part in partitions.iter().filter_map(|partition| self.part(*partition)) {
            match self.bring(&part) {
                Ok(true) => {}
                Ok(false) => return self.settle(),
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Tells those who rely on leases that were lost.
    pub(super) fn forsake(&self) {
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
        }
        let left = self.valid.load(Ordering::Acquire).saturating_sub(now);
        if !parts.is_empty()
            && left < self.validity() / 2
            && let Err(error) = self.append_some(u64::MAX)
        {
            tracing::debug!(%error, "leases are not renewed");
        }
        self.release_strays();
    }

    pub(super) fn release_strays(&self) {
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
                tracing::warn!("a lease is left: what was read under it may still be relied on");
                continue;
            }
            if let Err(error) = self.give_back(&part, End::Idle) {
                tracing::warn!(%error, "leases are left: the next daemon ships what they hold");
                // Each of the others would wait as long.
                break;
            }
        }
        self.release_strays();
        self.close_session();
        let journal = self.journal.lock().take();
        if let Some(journal) = journal {
            journal.close();
        }
    }

    /// Has the servers forget a session that nothing hangs on any more.
    fn close_session(&self) {
        let mut session = self.session.lock();
        let is_needed = session.waiting() > 0 || !self.strays.lock().is_empty();
        if !session.is_begun || session.is_lost || is_needed || !self.parts.read().is_empty() {
            return;
        }
        session.is_begun = false;
        if let Err(error) = self.below.close_session(&session.name) {
            tracing::debug!(%error, "a session without leases stays on the servers");
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
        let leases = self.finish(left, &mut opened)?;
        *journal = Some(opened);
        drop(journal);
        for (partition, lease) in leases {
            self.resume(partition, lease);
        }
        Ok(true)
    }

    /// Ships what an earlier process left, and gives its leases back, unless others rely on them: then
    /// its session is gone on with; its leases.
    fn finish(
        &self,
        left: BTreeMap<u16, Left>,
        journal: &mut Journal,
    ) -> Result<Vec<(u16, String)>, EngineError> {
        let mut sessions: BTreeMap<String, Vec<(u16, Left)>> = BTreeMap::new();
        for (partition, left) in left {
            let name = left.lease.chars().take(SESSION).collect();
            sessions.entry(name).or_default().push((partition, left));
        }
        let (one, mut leases) = (sessions.len() == 1, Vec::new());
        for (name, left) in sessions {
            let known: Vec<_> =
                left.iter().map(|(partition, left)| (*partition, left.lease.clone())).collect();
            if self.finish_session(&name, left, one && self.options.outlived, journal)? {
                leases = known;
                continue;
            }
            for (partition, lease) in known {
                if self.options.outlived {
                    // The kernel may go by what was read under it.
                    let not_before = self.awake().saturating_add(self.reliance());
                    self.strays.lock().push(Stray { partition, id: lease, not_before });
                    continue;
                }
                self.below.release(partition, &lease)?;
                journal.ended(partition, &lease);
            }
        }
        Ok(leases)
    }

    /// Ships what was left under the leases of a session; whether it is gone on with.
    fn finish_session(
        &self,
        name: &str,
        left: Vec<(u16, Left)>,
        outlived: bool,
        journal: &mut Journal,
    ) -> Result<bool, EngineError> {
        // A sign of life shows whether it counts.
        let goes_on = outlived && self.below.append(name, &Append::default())?;
        let arrived = match goes_on {
            true => self.below.settle_session(name, false)?,
            false => self.below.end_session(name, None)?,
        };
        let (rest, beyond) = rest_of(left, arrived);
        let count = rest.len() + beyond.len();
        let last = rest.last().map_or(0, |entry| entry.number).max(arrived.unwrap_or(0));
        let mut refused = self.bring_in_order(rest)?;
        refused.extend(beyond);
        tracing::info!(changes = count - refused.len(), "shipped after a restart");
        if let Some((changes, directories)) = self.keep_refused(Some(journal), &refused) {
            tracing::error!(
                changes,
                directories,
                "other nodes took this one for dead while it was away: its last changes of names \
                 and attributes are lost"
            );
        }
        if goes_on && refused.is_empty() {
            let beat = Append { after: arrived.unwrap_or(0), last, ..Append::default() };
            if self.below.append(name, &beat)? {
                let mut session = Session::new(name.to_string(), (last, last));
                session.is_begun = true;
                self.go_on_as(session);
                return Ok(true);
            }
        }
        self.below.end_session(name, None)?;
        Ok(false)
    }
}

/// What was left under leases and is not on the servers, in order, if `arrived` is the last
/// transaction that came to their session; and what is beyond a gap. One that is missing was not
/// noted: what was built upon it must not arrive without it.
fn rest_of(left: Vec<(u16, Left)>, arrived: Option<u64>) -> (Vec<Entry>, Vec<Entry>) {
    let mut rest = Vec::new();
    for (partition, Left { lease, transactions, .. }) in left {
        rest.extend(transactions.into_iter().map(|(number, writes)| Entry {
            number,
            partition,
            lease: lease.clone(),
            writes,
        }));
    }
    rest.retain(|entry| arrived.is_none_or(|arrived| entry.number > arrived));
    rest.sort_unstable_by_key(|entry| entry.number);
    let Some(arrived) = arrived else { return (rest, Vec::new()) };
    let expected = arrived + 1..;
    let whole = rest.iter().zip(expected).take_while(|(entry, number)| entry.number == *number);
    let beyond = rest.split_off(whole.count());
    (rest, beyond)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_when_one_is_missing_then_those_after_it_are_not_shipped() {
        let left = |lease: &str, numbers: &[u64]| Left {
            lease: lease.into(),
            transactions: numbers.iter().map(|number| (*number, Vec::new())).collect(),
            ..Left::default()
        };
        let numbers = |entries: &[Entry]| entries.iter().map(|entry| entry.number).collect();
        let all = || vec![(3, left("a", &[4, 7, 9])), (5, left("b", &[2, 5, 6, 10]))];
        let (rest, beyond) = rest_of(all(), Some(3));
        let found: [Vec<u64>; 2] = [numbers(&rest), numbers(&beyond)];
        assert_eq!(found, [vec![4, 5, 6, 7], vec![9, 10]]);
        let (rest, beyond) = rest_of(all(), Some(2));
        assert!(rest.is_empty());
        assert_eq!(beyond.len(), 6);
        // Of an older program, which numbered the transactions of each lease.
        assert_eq!(rest_of(all(), None).0.len(), 7);
    }
}
