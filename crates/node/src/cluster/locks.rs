//! Locks of programs on files, over all nodes: what the kernel asks for, and what it never says.
//!
//! A program that waits holds no thread: it stands in the file's record, and one thread looks
//! whether it has left the queue there. The kernel says when a process closes a file, not that
//! its locks of ranges go then, nor when an open file goes that has locks of its own (`F_OFD_SETLK`):
//! so it is kept here through which handles an owner has locked.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay_core::cluster::locks::{Family, Holder, Lock, Locks, Mode, Outcome, Span, TooMany};
use forebay_meta::Stamp;
use forebay_types::Ino;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use super::Cluster;
use super::lock_record::LockRecord;
use crate::context::Context;
use crate::error::{NodeError, Result};

/// Programs of this node that may wait for locks at once.
const MAX_WAITS: usize = 1 << 16;
/// Between two looks at stamps, which cost no round trip, while anybody waits.
const LOOK: Duration = Duration::from_millis(5);
/// Between two looks at a record of which nobody says whether it has changed.
const LOOK_BLIND: Duration = Duration::from_millis(50);
/// Between two looks at a record whatever its stamp says: a node may have died. Also the pause after
/// a failure.
const LOOK_ANYWAY: Duration = Duration::from_secs(1);
/// After so long every program that waited when the last daemon ended has asked this one.
const ALL_ASKED: Duration = Duration::from_secs(10);

/// A lock as a program asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRequest {
    /// The handle through which it asks.
    pub fh: u64,
    /// Who asks, by the kernel's number.
    pub owner: u64,
    /// By `fcntl` or by `flock`.
    pub family: Family,
    /// Of what.
    pub span: Span,
    /// How.
    pub mode: Mode,
    /// The process.
    pub pid: u32,
}

/// What is in the way of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InTheWay {
    /// Of what.
    pub span: Span,
    /// How.
    pub mode: Mode,
    /// The process if it runs on this node, else 0.
    pub pid: u32,
}

/// What came of waiting for a lock.
#[derive(Debug)]
pub enum Waited {
    /// It is held, or not to be had.
    Ended(Result<()>),
    /// The program waits on, and asks a daemon that takes over.
    HandedOn,
}

/// Hears what came of waiting for a lock.
pub type LockDone = Box<dyn FnOnce(Waited) + Send>;

/// The locks of this node's programs.
#[derive(Default)]
pub(super) struct FileLocks {
    pub(super) owners: Mutex<HashMap<u64, Vec<Owner>>>,
    /// Entries of `owners`, to be asked at each close.
    pub(super) files: AtomicUsize,
    pub(super) waits: Mutex<Waits>,
    /// Files of which others know that programs here wait for locks of ranges.
    pub(super) noted: Mutex<BTreeSet<u64>>,
    wake: Condvar,
}

/// Somebody who may have locks of a file.
pub(super) struct Owner {
    pub family: Family,
    pub owner: u64,
    /// Through these they were taken.
    pub handles: Vec<u64>,
    /// All of them are to go.
    pub leaving: bool,
}

#[derive(Default)]
pub(super) struct Waits {
    pub by_ticket: HashMap<u64, Wait>,
    /// Some owner is leaving.
    pub leavers: bool,
}

pub(super) struct Wait {
    pub ino: Ino,
    request: LockRequest,
    /// Nothing if it was told already, and the record may still have it.
    pub done: Option<LockDone>,
    cancelled: bool,
}

impl LockRequest {
    fn holder(&self, cluster: &Cluster) -> Holder {
        Holder { family: self.family, incarnation: cluster.as_holder(), owner: self.owner }
    }

    fn lock(&self, cluster: &Cluster) -> Lock {
        let LockRequest { span, mode, pid, .. } = *self;
        Lock { holder: self.holder(cluster), span, mode, pid }
    }
}

impl FileLocks {
    /// Ends the waiting of the thread that looks after locks.
    pub fn wake(&self) {
        let _waits = self.waits.lock();
        self.wake.notify_all();
    }

    /// Notes that an owner may have locks; whether earlier ones are to go first.
    fn enter(&self, ino: Ino, request: &LockRequest) -> bool {
        let mut owners = self.owners.lock();
        let file = owners.entry(ino.0).or_default();
        let is = |o: &&mut Owner| o.family == request.family && o.owner == request.owner;
        let leaving = match file.iter_mut().find(is) {
            Some(known) => {
                let leaving = std::mem::take(&mut known.leaving);
                if leaving {
                    known.handles.clear();
                }
                if !known.handles.contains(&request.fh) {
                    known.handles.push(request.fh);
                }
                leaving
            }
            None => {
                let LockRequest { family, owner, fh, .. } = *request;
                file.push(Owner { family, owner, handles: vec![fh], leaving: false });
                false
            }
        };
        self.files.store(owners.len(), Ordering::Release);
        leaving
    }

    /// Whether an owner may have locks of a file.
    fn has(&self, ino: Ino, family: Family, owner: u64) -> bool {
        let is = |o: &Owner| o.family == family && o.owner == owner;
        self.files.load(Ordering::Acquire) > 0
            && self.owners.lock().get(&ino.0).is_some_and(|file| file.iter().any(is))
    }

    /// Forgets an owner who has nothing any more.
    fn forget(&self, ino: Ino, family: Family, owner: u64) {
        let mut owners = self.owners.lock();
        if let Some(file) = owners.get_mut(&ino.0) {
            file.retain(|o| o.family != family || o.owner != owner);
            if file.is_empty() {
                owners.remove(&ino.0);
            }
        }
        self.files.store(owners.len(), Ordering::Release);
    }

    /// Marks the owners of which `leaves` says so; whether there are any.
    fn mark(&self, ino: Ino, mut leaves: impl FnMut(&mut Owner) -> bool) {
        let mut any = false;
        if let Some(file) = self.owners.lock().get_mut(&ino.0) {
            for owner in file {
                owner.leaving |= leaves(owner);
                any |= owner.leaving;
            }
        }
        if any {
            self.waits.lock().leavers = true;
            self.wake.notify_all();
        }
    }

    /// Whether an owner leaves still: the kernel gives the number of one who is gone to the next, who
    /// may have come since.
    fn leaves(&self, ino: Ino, family: Family, owner: u64) -> bool {
        let is = |o: &Owner| o.family == family && o.owner == owner && o.leaving;
        self.owners.lock().get(&ino.0).is_some_and(|file| file.iter().any(is))
    }

    fn leavers(&self) -> Vec<(Ino, Family, u64)> {
        let owners = self.owners.lock();
        let leaving = owners.iter().flat_map(|(ino, file)| {
            let leaving = file.iter().filter(|owner| owner.leaving);
            leaving.map(|owner| (Ino(*ino), owner.family, owner.owner))
        });
        leaving.collect()
    }

    /// Takes somebody's right to be told.
    pub(super) fn take(&self, ticket: u64) -> Option<LockDone> {
        self.waits.lock().by_ticket.remove(&ticket)?.done
    }
}

impl Cluster {
    /// Locks are given only while nobody else takes them away.
    fn check_lease_for_locks(&self) -> Result<()> {
        if !self.has_lost_its_lease() {
            return Ok(());
        }
        // Others may take away what this node would lock now, unless they get its heartbeat first, which
        // can be late on a machine that has much to do.
        if !self.is_fenced()
            && let Err(error) = self.say_alive()
        {
            tracing::debug!(%error, "no locks are given while the heartbeat of this node does not arrive");
        }
        match self.has_lost_its_lease() {
            true => Err(Errno::NOLCK.into()),
            false => Ok(()),
        }
    }

    /// What keeps a program from a lock, if anything.
    ///
    /// # Errors
    /// `ENOLCK` while this node may count as dead.
    pub fn find_lock(&self, ino: Ino, request: &LockRequest) -> Result<Option<InTheWay>> {
        self.check_lease_for_locks()?;
        let locks = self.lock_record(ino).look()?;
        let blocker = locks.blocker(&request.lock(self));
        Ok(blocker.map(|Lock { holder, span, mode, pid }| {
            let here = holder.incarnation == self.as_holder();
            InTheWay { span, mode, pid: if here { pid } else { 0 } }
        }))
    }

    /// Locks at once.
    ///
    /// # Errors
    /// `EAGAIN` if something is in the way, `ENOLCK` for too many locks of one file; as
    /// [`Cluster::find_lock`].
    pub fn try_lock(&self, ino: Ino, request: &LockRequest) -> Result<()> {
        self.check_lease_for_locks()?;
        let mut record = self.lock_record(ino);
        if !self.note_lock_owner(ino, request) {
            return Err(Errno::NOLCK.into());
        }
        let leaving = self.locks.enter(ino, request);
        let (holder, lock) = (request.holder(self), request.lock(self));
        let outcome = record.change(|locks| {
            if leaving {
                locks.release(holder, Span::ALL);
            }
            locks.acquire(lock)
        });
        match outcome? {
            Ok(Outcome::Held) => Ok(()),
            Ok(Outcome::Blocked(_)) => Err(Errno::AGAIN.into()),
            Err(TooMany) => Err(Errno::NOLCK.into()),
        }
    }

    /// Locks, now or when nothing is in the way any more; `done` hears of it. The ticket, of this
    /// node's own choice, is used once.
    pub fn lock(&self, ino: Ino, request: LockRequest, ticket: u64, done: LockDone) {
        if let Err(error) = self.check_lease_for_locks() {
            return done(Waited::Ended(Err(error)));
        }
        // Held until the record has it: who cancels, or is forgotten, comes before or after all of this.
        let mut record = self.lock_record(ino);
        if !self.note_lock_owner(ino, &request) {
            drop(record);
            return done(Waited::Ended(Err(Errno::NOLCK.into())));
        }
        let wait = Wait { ino, request, done: Some(done), cancelled: false };
        {
            let mut waits = self.locks.waits.lock();
            if waits.by_ticket.len() < MAX_WAITS {
                waits.by_ticket.insert(ticket, wait);
            } else if let Some(done) = wait.done {
                drop(waits);
                return done(Waited::Ended(Err(Errno::NOLCK.into())));
            }
        }
        let leaving = self.locks.enter(ino, &request);
        let (holder, lock) = (request.holder(self), request.lock(self));
        let mut attempt = |waits: bool| {
            record.change(|locks| {
                if leaving {
                    locks.release(holder, Span::ALL);
                }
                // One that comes again stands in the queue, or has left it with the lock.
                match locks.is_waiting(lock.holder.incarnation, ticket) {
                    true => Ok(Outcome::Blocked(lock)),
                    false if waits => locks.acquire_or_wait(lock, ticket),
                    false => locks.acquire(lock),
                }
            })
        };
        let mut outcome = attempt(request.family == Family::Whole);
        if request.family == Family::Ranges && matches!(outcome, Ok(Ok(Outcome::Blocked(_)))) {
            // Before it stands in the queue, so that who closes a circle finds all the others.
            if let Err(error) = self.note_lock_waits(ino) {
                tracing::debug!(%ino, %error, "a circle of waiters may not be found out");
            }
            outcome = attempt(true);
        }
        drop(record);
        let told = match outcome {
            Ok(Ok(Outcome::Blocked(_))) => {
                self.locks.wake();
                return self.end_circle(ino, holder, ticket);
            }
            Ok(Ok(Outcome::Held)) => Ok(()),
            Ok(Err(TooMany)) => Err(Errno::NOLCK.into()),
            Err(error) => return self.give_up_wait(ticket, error),
        };
        if let Some(done) = self.locks.take(ticket) {
            done(Waited::Ended(told));
        }
    }

    /// Whoever waits under this ticket waits no longer; `done` hears `EINTR` soon, unless the lock is
    /// held by then. Never waits itself.
    pub fn stop_waiting(&self, ticket: u64) {
        if let Some(wait) = self.locks.waits.lock().by_ticket.get_mut(&ticket) {
            wait.cancelled = true;
            self.locks.wake.notify_all();
        }
    }

    /// Unlocks what a program has of a span.
    ///
    /// # Errors
    /// If the metadata can't be changed: then it goes when the file is closed.
    pub fn unlock(&self, ino: Ino, request: &LockRequest) -> Result<()> {
        if !self.locks.has(ino, request.family, request.owner) {
            return Ok(());
        }
        self.release_locks(ino, request.holder(self), request.span)
    }

    fn release_locks(&self, ino: Ino, holder: Holder, span: Span) -> Result<()> {
        self.release_from(self.lock_record(ino), ino, holder, span)
    }

    fn release_from(
        &self,
        mut record: LockRecord<'_>,
        ino: Ino,
        holder: Holder,
        span: Span,
    ) -> Result<()> {
        let has_more = record.change(|locks| {
            locks.release(holder, span);
            has_any(locks, holder)
        })?;
        if !has_more {
            self.locks.forget(ino, holder.family, holder.owner);
            self.forget_lock_owner(ino, holder.family, holder.owner);
        }
        Ok(())
    }

    /// A process has closed a file: its locks of ranges go, whichever of its handles it was.
    ///
    /// # Errors
    /// As [`Context::wait`], if it has any.
    pub fn unlock_all(&self, context: &Context, ino: Ino, owner: u64) -> Result<()> {
        if !self.locks.has(ino, Family::Ranges, owner) {
            return Ok(());
        }
        context.wait()?;
        let incarnation = self.as_holder();
        let holder = Holder { family: Family::Ranges, incarnation, owner };
        if let Err(error) = self.release_locks(ino, holder, Span::ALL) {
            tracing::warn!(
                %ino,
                %error,
                "locks on a closed file can't be released yet and may keep others waiting; it is \
                 tried again. If this goes on, check the metadata servers"
            );
            self.locks.mark(ino, |known| (known.family, known.owner) == (Family::Ranges, owner));
        }
        Ok(())
    }

    /// An open file is gone: so are the locks that were taken through it alone.
    pub fn handle_is_gone(&self, ino: Ino, fh: u64) {
        if self.locks.files.load(Ordering::Acquire) > 0 {
            self.locks.mark(ino, |owner| {
                owner.handles.retain(|handle| *handle != fh);
                owner.handles.is_empty()
            });
        }
    }

    /// A thread that gives locks to those who wait, and takes them from those who are gone.
    pub(crate) fn start_cluster_locks(&self) {
        self.begin_to_note_waits();
        let this = self.this.clone();
        let look_after = move || {
            let mut looked = HashMap::new();
            let since = Instant::now();
            let mut strays = false;
            while let Some(cluster) = this.upgrade() {
                let stopping = cluster.is_at_rest();
                cluster.let_leavers_go();
                if stopping {
                    return;
                }
                cluster.serve_waits(&mut looked);
                if cluster.resumed && !strays && since.elapsed() > ALL_ASKED {
                    strays = cluster.drop_stray_waiters();
                }
                cluster.locks.rest();
            }
        };
        match thread::Builder::new().name("cluster-locks".into()).spawn(look_after) {
            Ok(thread) => self.threads.lock().push(thread),
            Err(error) => tracing::error!(
                %error,
                "no thread to hand out file locks: whoever waits here for a lock waits until it is \
                 interrupted. Raise the limit of threads, and mount again"
            ),
        }
    }

    fn let_leavers_go(&self) {
        if !std::mem::take(&mut self.locks.waits.lock().leavers) {
            return;
        }
        for (ino, family, owner) in self.locks.leavers() {
            let holder = Holder { family, incarnation: self.as_holder(), owner };
            // Whoever locks has this in hand as well.
            let record = self.lock_record(ino);
            if !self.locks.leaves(ino, family, owner) {
                continue;
            }
            if let Err(error) = self.release_from(record, ino, holder, Span::ALL) {
                tracing::warn!(
                    %ino,
                    %error,
                    "locks on a closed file can't be released yet and may keep others waiting; it \
                     is tried again. If this goes on, check the metadata servers"
                );
                self.locks.waits.lock().leavers = true;
                thread::sleep(LOOK_BLIND);
            }
        }
    }

    fn serve_waits(&self, looked: &mut HashMap<u64, Looked>) {
        let (mut files, mut cancelled) = (BTreeSet::new(), BTreeSet::new());
        for wait in self.locks.waits.lock().by_ticket.values() {
            files.insert(wait.ino.0);
            if wait.cancelled || wait.done.is_none() {
                cancelled.insert(wait.ino.0);
            }
        }
        looked.retain(|ino, _| files.contains(ino));
        self.forget_lock_waits();
        if self.has_lost_its_lease() {
            // What others have taken away meanwhile is asked for again when they hear us again.
            files.retain(|ino| cancelled.contains(ino));
        }
        for ino in files {
            let stamp = self.meta.locks_stamp(Ino(ino));
            let due = looked.get(&ino).is_none_or(|last| last.is_old(stamp));
            if (due || cancelled.contains(&ino)) && self.serve_waits_of(Ino(ino)) {
                looked.insert(ino, Looked { stamp, when: Instant::now() });
            }
        }
    }

    /// Tells those who wait for locks of a file and have them; whether all could be looked at.
    fn serve_waits_of(&self, ino: Ino) -> bool {
        let mut record = self.lock_record(ino);
        let of_file = |(ticket, wait): (&u64, &Wait)| {
            let cancelled = wait.cancelled || wait.done.is_none();
            (wait.ino == ino).then_some((*ticket, wait.request, cancelled, wait.done.is_none()))
        };
        let waits: Vec<_> = self.locks.waits.lock().by_ticket.iter().filter_map(of_file).collect();
        let me = self.as_holder();
        let outcome = record.change(|locks| {
            let step = |&(ticket, request, cancelled, told): &(u64, LockRequest, bool, bool)| {
                let wanted = request.lock(self);
                let waiting = locks.is_waiting(me, ticket);
                if cancelled {
                    locks.cancel(me, ticket);
                    let has = !waiting && locks.covers(&wanted);
                    if has && told {
                        // It was told that it has not.
                        locks.release(wanted.holder, wanted.span);
                    }
                    return Some((ticket, if has { Ok(()) } else { Err(Errno::INTR) }));
                }
                if waiting {
                    return None;
                }
                // Not there and not held: taken away while this node was silent.
                let held = locks.covers(&wanted)
                    || matches!(locks.acquire_or_wait(wanted, ticket), Ok(Outcome::Held));
                held.then_some((ticket, Ok(())))
            };
            waits.iter().filter_map(step).collect::<Vec<_>>()
        });
        drop(record);
        match outcome {
            Ok(ended) => {
                for (ticket, told) in ended {
                    if let Some(done) = self.locks.take(ticket) {
                        done(Waited::Ended(told.map_err(NodeError::from)));
                    }
                }
                true
            }
            Err(error) => {
                tracing::warn!(
                    %ino,
                    %error,
                    "the locks of a file can't be read or changed: whoever waits for one goes on \
                     waiting, and it is tried again. If this goes on, check the metadata servers"
                );
                for (ticket, _, cancelled, _) in waits {
                    if cancelled {
                        self.give_up_wait(ticket, Errno::INTR.into());
                    }
                }
                false
            }
        }
    }

    /// Tells a failure, and leaves it to the thread to see that the record says the same.
    fn give_up_wait(&self, ticket: u64, error: NodeError) {
        let done = match self.locks.waits.lock().by_ticket.get_mut(&ticket) {
            Some(wait) => wait.done.take(),
            None => None,
        };
        if let Some(done) = done {
            done(Waited::Ended(Err(error)));
        }
    }
}

impl FileLocks {
    /// Waits until there may be something to do.
    fn rest(&self) {
        let mut waits = self.waits.lock();
        let idle = waits.by_ticket.is_empty() && !waits.leavers;
        self.wake.wait_for(&mut waits, if idle { LOOK_ANYWAY } else { LOOK });
    }
}

/// When a file was last looked at, and what its stamp was before.
struct Looked {
    stamp: Option<Stamp>,
    when: Instant,
}

impl Looked {
    fn is_old(&self, stamp: Option<Stamp>) -> bool {
        let age = self.when.elapsed();
        match stamp.is_some() && stamp == self.stamp {
            true => age >= LOOK_ANYWAY,
            false if stamp.is_none() => age >= LOOK_BLIND,
            false => true,
        }
    }
}

fn has_any(locks: &Locks, holder: Holder) -> bool {
    locks.held().iter().any(|lock| lock.holder == holder)
        || locks.waiting().iter().any(|waiter| waiter.wanted.holder == holder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(fh: u64, owner: u64) -> LockRequest {
        let (family, mode, pid) = (Family::Whole, Mode::Exclusive, 1);
        LockRequest { fh, owner, family, span: Span::ALL, mode, pid }
    }

    #[test]
    fn owner_who_is_gone_when_another_comes_under_his_number_then_that_one_leaves_not() {
        let (locks, ino) = (FileLocks::default(), Ino(5));
        assert!(!locks.enter(ino, &request(1, 7)));
        let close = |fh| {
            locks.mark(ino, |owner| {
                owner.handles.retain(|handle| *handle != fh);
                owner.handles.is_empty()
            });
        };
        close(1);
        // The thread has seen who leaves, and is about to take his locks.
        assert_eq!(locks.leavers(), [(ino, Family::Whole, 7)]);
        assert!(locks.leaves(ino, Family::Whole, 7));
        // The next open file has his number: what the first had goes with its first lock.
        assert!(locks.enter(ino, &request(2, 7)));
        assert!(
            !locks.leaves(ino, Family::Whole, 7),
            "its locks would be taken and never be known"
        );
        assert!(locks.has(ino, Family::Whole, 7));
        close(1);
        assert!(!locks.leaves(ino, Family::Whole, 7));
        close(2);
        assert!(locks.leaves(ino, Family::Whole, 7));
    }
}
