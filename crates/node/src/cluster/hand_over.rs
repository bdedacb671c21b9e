//! What one daemon of a node hands to the next, under the same programs: by an upgrade, or because it
//! died.
//!
//! The node stays the same incarnation, for its programs go on: what they have locked stays locked,
//! the owners that they write through know this node, and so do the nodes that write through it. A new one would
//! let others in between. The one before is gone when the next begins, or writes nothing any more: its
//! supervisor has seen its end, or it has handed over.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay_core::cluster::locks::Family;
use forebay_meta::{Incarnation, Ownership};
use forebay_peer::Service;
use forebay_types::Ino;

use super::locks::Owner;
use super::{Cluster, LockRequest, Waited};
use crate::error::Result;
use crate::hand_over_state::{HandOverState, LockOwner, Membership, OpenHandle};
use crate::handles::{Handle, OpenMode, Remote};
use crate::residency::files::FileRef;
use crate::residency::inode_alias::Use as Shown;

impl Cluster {
    /// Whether it does nothing for others at the moment.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.resting.load(Ordering::Acquire)
    }

    /// Ends the threads that work for others; whether they have.
    pub(super) fn end_threads(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        self.resting.store(true, Ordering::Release);
        self.locks.wake();
        let mut threads = self.threads.lock();
        while threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        threads.retain(|thread| !thread.is_finished());
        threads.is_empty()
    }

    /// Which node of a cluster this is.
    #[must_use]
    pub fn membership(&self) -> Membership {
        Membership {
            node: self.me.node.into(),
            epoch: self.me.epoch,
            listens: self.listens.lock().clone(),
            replicas: Some(self.config.replicas),
            redundancy: self.config.redundancy.to_string(),
        }
    }

    /// Programs of this node that wait for locks.
    #[must_use]
    pub fn waiting_for_locks(&self) -> usize {
        let waits = self.locks.waits.lock();
        waits.by_ticket.values().filter(|wait| wait.done.is_some()).count()
    }

    /// Does nothing for others any more; whether all that was under way has ended.
    pub(crate) fn rest_in_cluster(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let ended = self.end_threads(limit);
        self.close_to_peers();
        ended && self.workers.rest(until.saturating_duration_since(Instant::now()))
    }

    /// Takes [`Cluster::rest_in_cluster`] back; `service` does what other nodes ask.
    pub(crate) fn go_on_in_cluster(&self, service: Arc<dyn Service>) {
        self.kernel_grants.go_on();
        if self.resting.swap(false, Ordering::AcqRel) {
            if let Err(error) = self.start_peers(service) {
                tracing::error!(
                    %error,
                    "can't listen for other nodes any more: they get what this node has by way of \
                     the backing store. Unmount, and mount again"
                );
            }
            self.start_cluster_life();
            self.start_cluster_locks();
        }
    }

    /// Leaves those who wait for locks to a successor, whom the kernel asks again for them. They keep
    /// their places in the queues.
    pub(crate) fn hand_waiters_on(&self) -> u64 {
        let waits = std::mem::take(&mut self.locks.waits.lock().by_ticket);
        let done = waits.into_values().filter_map(|wait| wait.done);
        done.map(|done| done(Waited::HandedOn)).count() as u64
    }

    /// Who may have locks.
    pub(crate) fn lock_owners(&self) -> Vec<LockOwner> {
        let owners = self.locks.owners.lock();
        let mut all = Vec::new();
        for (ino, file) in &*owners {
            for Owner { family, owner, handles, .. } in file {
                let of = |fh: &u64| LockOwner::new(Ino(*ino), *fh, *family, *owner);
                all.extend(handles.iter().map(of));
            }
        }
        all
    }

    /// Knows again who may have locks. Those whose open files have gone lose theirs.
    pub(crate) fn take_over_locks(&self, handed_over: &HandOverState) {
        let open: std::collections::HashSet<u64> =
            handed_over.handles.iter().map(|handle| handle.fh).collect();
        let mut owners: HashMap<u64, Vec<Owner>> = HashMap::new();
        for known in &handed_over.locks {
            let (family, owner) = (known.family(), known.owner);
            let file = owners.entry(known.ino).or_default();
            let at = file.iter().position(|o| (o.family, o.owner) == (family, owner));
            let at = at.unwrap_or_else(|| {
                file.push(Owner { family, owner, handles: Vec::new(), leaving: false });
                file.len() - 1
            });
            if open.contains(&known.fh) {
                file[at].handles.push(known.fh);
            }
        }
        for owner in owners.values_mut().flatten() {
            owner.leaving = owner.handles.is_empty();
        }
        self.locks.files.store(owners.len(), Ordering::Release);
        *self.locks.owners.lock() = owners;
        self.locks.waits.lock().leavers = true;
    }

    /// Takes those of this node out of the queues for whom no program waits: their daemon died after it
    /// had told them that they have not got it, and before the record said so. Whether all were looked
    /// at.
    pub(super) fn drop_stray_waiters(&self) -> bool {
        let me = self.as_holder();
        let files: Vec<u64> = self.locks.owners.lock().keys().copied().collect();
        let mut all = true;
        for ino in files {
            let mut record = self.lock_record(Ino(ino));
            let looked = record.change(|locks| {
                let waits = self.locks.waits.lock();
                let is_stray = |ticket: &u64| !waits.by_ticket.contains_key(ticket);
                let mine = locks.waiting().iter().filter(|w| w.wanted.holder.incarnation == me);
                let strays: Vec<u64> = mine.map(|w| w.ticket).filter(is_stray).collect();
                for ticket in strays {
                    locks.cancel(me, ticket);
                }
            });
            all &= looked.is_ok();
        }
        all
    }

    /// The next daemon shall know who may have locks; false if that can't be.
    pub(super) fn note_lock_owner(&self, ino: Ino, request: &LockRequest) -> bool {
        let LockRequest { fh, owner, family, .. } = *request;
        let noted = LockOwner::new(ino, fh, family, owner);
        self.kernel.get().is_none_or(|kernel| kernel.note_lock_owner(&noted))
    }

    pub(super) fn forget_lock_owner(&self, ino: Ino, family: Family, owner: u64) {
        if let Some(kernel) = self.kernel.get() {
            kernel.forget_lock_owner(&LockOwner::new(ino, 0, family, owner));
        }
    }

    /// The handle of a file that was open through another node, or is by now.
    pub(crate) fn take_over_remote(
        &self,
        file: &FileRef,
        open: &OpenHandle,
    ) -> Result<Option<Handle>> {
        let Some(owner) = self.owner_of_handle(file.ino, open)? else { return Ok(None) };
        let mode = open.open_mode();
        let mut handle = Handle::new(file.clone(), open.write, mode, None);
        handle.append = open.append;
        (handle.durably, handle.keeps_set_ids) = (open.durably, open.keeps_set_ids);
        handle.held = AtomicBool::new(false);
        handle.remote = Remote::by(owner);
        handle.alias = open.alias();
        let mut opens = file.opens.lock();
        opens.count += 1;
        opens.writers += u32::from(open.write);
        let how = Shown { cached: matches!(mode, OpenMode::Cached { .. }), remote: true };
        opens.adopt(handle.alias, how, None, 0)?;
        opens.handles.push(open.fh);
        file.cluster.remote_opens.fetch_add(1, Ordering::AcqRel);
        if opens.count == 1 {
            let object = file.ino;
            self.residency.decide_later(forebay_core::steward::Event::Busy { object });
        }
        drop(opens);
        Ok(Some(handle))
    }

    /// The node that the calls of a handle are forwarded to; `None` if the file is here. A handle that
    /// can write it here keeps it here then.
    fn owner_of_handle(&self, ino: Ino, open: &OpenHandle) -> Result<Option<Incarnation>> {
        if let Some(node) = u16::try_from(open.owner_node).ok().filter(|node| *node != 0) {
            return Ok(Some(Incarnation { node, epoch: open.owner_epoch }));
        }
        if !open.write {
            return Ok(None);
        }
        let mut pins = self.write_pins.stripe(ino).lock();
        if !pins.contains_key(&ino.0)
            && let Ownership::Other(other) = self.meta.take_ownership(ino)?
        {
            return Ok(Some(other));
        }
        *pins.entry(ino.0).or_insert(0) += 1;
        Ok(None)
    }
}
