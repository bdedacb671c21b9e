//! How what was committed comes to the servers: to the session's record in the order of the commits,
//! then to the partitions. And what becomes of it if the session was lost.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use forebay_core::cluster::lease::End;

use super::part::Part;
use super::session::{Entry, Session};
use super::{Shared, random_name};
use crate::engine::EngineError;
use crate::engine::redis::Batch;

/// Names of sessions that are tried.
const NAMES: usize = 8;

impl Shared {
    /// Sees to it that a transaction, and all before it, has come to the servers; false if the session
    /// is lost.
    pub(super) fn append_up_to(&self, number: u64) -> Result<bool, EngineError> {
        while self.arrived.load(Ordering::Acquire) < number {
            if self.session.lock().is_full() {
                for part in self.all_parts() {
                    self.bring(&part)?;
                }
            }
            if !self.append_some(number)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// As [`Shared::append_up_to`], for who has the locks of a partition: partitions get nothing.
    fn append_only_up_to(&self, number: u64) -> Result<bool, EngineError> {
        while self.arrived.load(Ordering::Acquire) < number {
            if !self.append_some(number)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Brings the session and a partition all that was committed there. The caller has the partition's
    /// locks.
    pub(super) fn bring_all(&self, part: &Part, last: u64) -> Result<bool, EngineError> {
        Ok(self.append_only_up_to(last)? && self.bring_due(part)?)
    }

    /// Brings some of what was committed, or a sign of life, unless a transaction has come; false if the
    /// session is lost.
    pub(super) fn append_some(&self, unless: u64) -> Result<bool, EngineError> {
        let _appending = self.appending.lock();
        if self.arrived.load(Ordering::Acquire) >= unless {
            return Ok(true);
        }
        self.begin_session()?;
        let (name, append) = {
            let mut session = self.session.lock();
            if session.is_lost {
                return Ok(false);
            }
            (session.name.clone(), session.append())
        };
        let sent = self.now();
        if !self.below.append(&name, &append)? {
            self.lose_session();
            return Ok(false);
        }
        let mut session = self.session.lock();
        let Some(append) = session.confirm() else { return Ok(true) };
        for share in append.shares {
            // A lease that has ended in between has brought all that it had.
            if let Some(part) = self.part(share.partition) {
                part.due.lock().push_back((append.last, share));
            }
        }
        let stuck = session.is_full() && session.waiting() > 0 && session.arrived() < unless;
        self.arrived.store(session.arrived(), Ordering::Release);
        drop(session);
        self.valid.fetch_max(sent.saturating_add(self.validity()), Ordering::AcqRel);
        match stuck && unless != u64::MAX {
            true => {
                let reason = "some directories can't be reached".to_string();
                Err(EngineError::Unreachable { reason })
            }
            false => Ok(true),
        }
    }

    /// Has the servers know of the session. The caller has `appending`.
    fn begin_session(&self) -> Result<(), EngineError> {
        for _ in 0..NAMES {
            let (name, last) = {
                let session = self.session.lock();
                if session.is_begun {
                    return Ok(());
                }
                (session.name.clone(), session.arrived())
            };
            let what = (self.options.timeout, last, self.options.who.as_str());
            let begun = self.below.begin_session(&name, what)?;
            let mut session = self.session.lock();
            match begun {
                true => session.is_begun = true,
                // Nothing bears the name yet.
                false => session.name = random_name()?,
            }
        }
        Err(EngineError::Io("no name for a session".into()))
    }

    /// Brings a partition what it has not been brought yet; false if it does not take it.
    pub(super) fn bring(&self, part: &Part) -> Result<bool, EngineError> {
        let _shipping = part.shipping.lock();
        self.bring_due(part)
    }

    /// As [`Shared::bring`]. The caller has `shipping`.
    fn bring_due(&self, part: &Part) -> Result<bool, EngineError> {
        loop {
            let Some((came_with, share)) = part.due.lock().front().cloned() else {
                return Ok(true);
            };
            let after = part.arrived.load(Ordering::Acquire);
            let batch = Batch { after, last: share.last, writes: share.writes };
            if !self.below.ship(part.partition, &share.lease, &batch)? {
                // Servers have come back with less than they had.
                tracing::error!(partition = part.partition, "a lease is gone from the servers");
                self.lose_session();
                return Ok(false);
            }
            part.due.lock().pop_front();
            part.arrived.store(share.last, Ordering::Release);
            self.session.lock().brought(came_with, part.partition);
            if let Some(journal) = self.journal.lock().as_mut() {
                journal.shipped(part.partition, &share.lease, share.last);
            }
        }
    }

    /// Nothing is committed under the leases of this session any more.
    fn lose_session(&self) {
        self.session.lock().is_lost = true;
        self.is_lost.store(true, Ordering::Release);
        self.valid.store(0, Ordering::Release);
        self.below.wake();
    }

    /// The session is lost: all its leases end, and what was committed under them and is not on the
    /// servers is refused, from the first transaction on that can't be brought. Whoever calls has no
    /// locks.
    ///
    /// # Errors
    /// If servers do not answer; it is to be tried again.
    pub(super) fn settle(&self) -> Result<(), EngineError> {
        let mut leases = self.settling.lock();
        if !self.is_lost() {
            return Ok(());
        }
        for part in self.all_parts() {
            let _shipping = part.shipping.lock();
            if let Some(held) = part.state.lock().take() {
                self.invalidate(&part);
                leases.push((part.clone(), held.id));
            }
        }
        self.wait_until_let_go(&leases);
        let (name, last) = {
            let session = self.session.lock();
            (session.name.clone(), session.last())
        };
        let arrived = self.below.end_session(&name, None)?.unwrap_or(0);
        let rest = self.session.lock().rest(arrived);
        let refused = self.bring_in_order(rest)?;
        self.refuse(refused);
        for (part, id) in leases.drain(..) {
            let stray = self.stray(&part, id.clone());
            self.strays.lock().push(stray);
            self.end(&part, &id, End::Lost);
            self.below.touch(part.partition);
        }
        self.go_on_as(Session::new(random_name()?, (last, last)));
        drop(leases);
        self.release_strays();
        Ok(())
    }

    /// Another session takes the place of this one.
    pub(super) fn go_on_as(&self, next: Session) {
        let mut session = self.session.lock();
        self.last.store(next.last(), Ordering::Release);
        self.arrived.store(next.arrived(), Ordering::Release);
        *session = next;
        self.is_lost.store(false, Ordering::Release);
    }

    /// Waits until nobody goes by what was read under leases that were lost before their time.
    fn wait_until_let_go(&self, leases: &[(std::sync::Arc<Part>, String)]) {
        let relied = leases.iter().map(|(part, _)| part.relied.load(Ordering::Acquire)).max();
        while !self.stopped.load(Ordering::Acquire) && relied.is_some_and(|at| at > self.awake()) {
            self.forsake();
            if self.forsaken.lock().is_empty() {
                return;
            }
            std::thread::sleep(super::keeper::STEP);
        }
    }

    /// Brings transactions to their partitions, each when the one before has arrived. Those that are
    /// not taken, from the first one on.
    pub(super) fn bring_in_order(&self, entries: Vec<Entry>) -> Result<Vec<Entry>, EngineError> {
        let mut arrived: BTreeMap<u16, Option<u64>> = BTreeMap::new();
        let mut entries = entries.into_iter();
        while let Some(entry) = entries.next() {
            let Entry { number, partition, lease, writes } = entry;
            let known = match arrived.get(&partition) {
                Some(known) => *known,
                None => self.below.shipped(partition, &lease)?,
            };
            let batch = Batch { after: known.unwrap_or(0), last: number, writes };
            let taken = match known {
                Some(after) if after >= number => Some(after),
                Some(_) => self.below.ship(partition, &lease, &batch)?.then_some(number),
                None => None,
            };
            arrived.insert(partition, taken);
            if taken.is_none() {
                let first = Entry { number, partition, lease, writes: batch.writes };
                return Ok(std::iter::once(first).chain(entries).collect());
            }
        }
        Ok(Vec::new())
    }

    /// What was acknowledged and is lost is kept for people, and told to programs.
    fn refuse(&self, entries: Vec<Entry>) {
        let journal = self.journal.lock();
        let kept = self.keep_refused(journal.as_ref(), &entries);
        drop(journal);
        if let Some((changes, directories)) = kept {
            tracing::error!(
                changes,
                directories,
                "other nodes took this one for dead while it worked: its last changes of names and \
                 attributes are lost"
            );
        }
    }

    /// How many changes in how many directories were kept.
    pub(super) fn keep_refused(
        &self,
        journal: Option<&super::Journal>,
        entries: &[Entry],
    ) -> Option<(usize, usize)> {
        let mut partitions: BTreeMap<u16, Vec<&Entry>> = BTreeMap::new();
        for entry in entries {
            partitions.entry(entry.partition).or_default().push(entry);
        }
        for (partition, entries) in &partitions {
            let writes: Vec<_> = entries.iter().map(|entry| entry.writes.clone()).collect();
            if let Some(journal) = journal {
                journal.refuse(*partition, &entries[0].lease, &writes);
            }
            self.losses.note(writes.len(), &writes);
            self.lost_at.lock().insert(*partition, self.now());
        }
        (!entries.is_empty()).then_some((entries.len(), partitions.len()))
    }
}
