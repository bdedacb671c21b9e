//! An engine on Redis that takes leases of partitions: while this process alone changes one, it
//! commits there on its own and ships what it committed in batches.
//!
//! **Taking.** After some changes in a row ([`Leases`]) the lease is taken by a mark in the partition,
//! with which the servers refuse everybody else there, and all that the partition holds is read. From
//! then on mini-transactions are executed in memory, noted in a [`Journal`] before they are
//! acknowledged, and brought to the servers within milliseconds, as many as there are in one request.
//!
//! **The session.** All leases of a process hang on one [`Session`]: what was committed under any of
//! them comes to the session's record first, in the order in which it was committed, and from there to
//! the partitions (`redis/session.rs`). What is committed without a lease waits until all that was
//! committed before has come. So what the servers have of a process is always a beginning of what it
//! has done, and nothing outlives what it was built upon.
//!
//! **Giving back.** Whoever is refused asks for the lease by changing a key that the holder watches
//! ([`Redis::meet`]). The holder ships what it has, takes the mark away, and the other goes on. So no
//! one needs to know how to reach the holder, and it makes no difference who asks: a node, `fsck`, or
//! a tool.
//!
//! **Death.** The holder gives signs of life, in the session's record, and acknowledges nothing when
//! the last one that was answered was sent longer than a twelfth of the timeout ago. Whoever is stopped
//! by a lease and has seen that record unchanged for the whole timeout on its own clock ends the
//! session, if it is still unchanged, and with it all its leases. So clocks need not agree. A process
//! that comes back finds the journal and ships it, transaction after transaction, up to the first one
//! in a partition that others have changed meanwhile: that one and all after it are refused, reported
//! and kept in a file.
//!
//! **At once.** Some changes are acted upon outside of the partition: locks and intents of
//! transactions over several partitions, copies on other nodes, the right to work in the backing
//! store. They count when they have arrived at the servers, with all that was committed before.

mod arrival;
mod journal;
mod keeper;
mod losses;
mod part;
mod session;

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_core::cluster::lease::{End, Leases, Terms};
use forebay_core::unit::Tick;
use parking_lot::{Condvar, Mutex, RwLock};

use super::redis::{Answer, Stopped, Taken};
use super::{
    Engine, EngineError, Key, LeaseObserver, MiniTransaction, Outcome, Page, Redis, Stamp, Tenure,
    Write, sweep,
};
use crate::clock::BootInstant;
use crate::keys;
use journal::Journal;
pub use losses::{LossReport, Losses, Teller};
use part::{Held, Image, Part};
use session::{Entry, Session};

/// Records read in one go when a lease is taken.
const PAGE: usize = 2000;
/// Transactions that wait to be shipped; whoever adds more ships some first.
const BACKLOG: usize = 4096;
/// Nobody waits longer for a lease, however patient its holder wants others to be.
const MAX_RELIANCE: Duration = Duration::from_secs(60);
/// For so long after a loss, in nanoseconds, nobody is told that what he committed has arrived.
const LATELY: u64 = 30 * Tick::SECOND;
/// Stamps of leases differ from all others by this.
const LEASED: u64 = 1 << 63;

/// How leases are used.
#[derive(Debug, Clone)]
pub struct LeaseOptions {
    /// Others break a lease that has shown no sign of life for so long.
    pub timeout: Duration,
    /// Where this process runs, for people.
    pub who: String,
    /// Where the journal is kept; without it, the death of the process loses what was not shipped.
    pub journal: Option<PathBuf>,
    /// The most records of a partition that is leased.
    pub records: usize,
    /// Memory for all leased partitions, in bytes.
    pub memory: usize,
    /// When leases are taken and given back.
    pub terms: Terms,
    /// Others may go by what an earlier process of this journal has told them: a kernel that has
    /// outlived it. Its leases are gone on with.
    pub outlived: bool,
}

impl Default for LeaseOptions {
    fn default() -> Self {
        LeaseOptions {
            timeout: Duration::from_secs(12),
            who: "somebody".to_string(),
            journal: None,
            records: 50_000,
            memory: 128 << 20,
            terms: Terms::default(),
            outlived: false,
        }
    }
}

/// The engine. See the module's documentation.
pub struct Leased {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What came of a transaction in memory.
enum Local {
    /// Done, if the transaction of this number has arrived at the servers.
    Done(Outcome, Option<u64>),
    /// The lease must show a sign of life first.
    Silent,
    /// There is no lease any more.
    Gone,
}

/// A mark that is to be taken away, not before others have let go of what it meant.
#[derive(Clone)]
struct Stray {
    partition: u16,
    id: String,
    not_before: u64,
}

struct Shared {
    below: Arc<Redis>,
    options: LeaseOptions,
    started: BootInstant,
    /// The same moment by the clock of the kernel's caches, which stands still while the machine sleeps.
    awake_since: Instant,
    /// Partitions that are leased, or about to be.
    parts: RwLock<HashMap<u16, Arc<Part>>>,
    leases: Mutex<Leases>,
    /// Locked after the state of a partition.
    session: Mutex<Session>,
    /// Held by whoever brings something to the session's record. Locked after the state of a partition,
    /// before `session`.
    appending: Mutex<()>,
    /// As in `session`: the last transaction, the last one that has come, whether the session is lost.
    last: AtomicU64,
    arrived: AtomicU64,
    is_lost: AtomicBool,
    /// Up to when this process may act on its leases, in nanoseconds since the engine's start.
    valid: AtomicU64,
    /// Leases of a lost session, until all is seen to. Locked before all else.
    settling: Mutex<Vec<(Arc<Part>, String)>>,
    /// Locked after `session`.
    journal: Mutex<Option<Journal>>,
    /// Marks that may stand although nobody knows of them here any more.
    strays: Mutex<Vec<Stray>>,
    /// Partitions of which there is something to ship.
    unshipped: Mutex<BTreeSet<u16>>,
    ship: Condvar,
    stamps: AtomicU64,
    /// Who is told before a lease ends.
    observer: OnceLock<Arc<dyn LeaseObserver>>,
    /// What was acknowledged and is lost.
    losses: Losses,
    /// When something was last lost with the lease of a partition.
    lost_at: Mutex<HashMap<u16, u64>>,
    /// Leases that were lost, of which the observer has not let go yet.
    forsaken: Mutex<Vec<(u16, u64)>>,
    /// Tells leases of one session from each other, also from those that an earlier process took.
    salt: u32,
    /// No more leases are taken.
    closed: AtomicBool,
    stopped: AtomicBool,
}

impl Leased {
    /// Puts leases on an engine. What an earlier process left in the journal is shipped first. As
    /// long as the journal can't be used, no leases are taken.
    ///
    /// # Errors
    /// If the system has no random numbers or threads.
    pub fn open(below: Arc<Redis>, options: LeaseOptions) -> Result<Self, EngineError> {
        let shared = Arc::new(Shared {
            below,
            leases: Mutex::new(Leases::new(options.terms)),
            losses: Losses::open(options.journal.as_deref()),
            lost_at: Mutex::default(),
            options,
            started: BootInstant::now(),
            awake_since: Instant::now(),
            parts: RwLock::default(),
            session: Mutex::new(Session::new(random_name()?, (0, 0))),
            appending: Mutex::default(),
            last: AtomicU64::new(0),
            arrived: AtomicU64::new(0),
            is_lost: AtomicBool::new(false),
            valid: AtomicU64::new(0),
            settling: Mutex::default(),
            journal: Mutex::default(),
            strays: Mutex::default(),
            unshipped: Mutex::default(),
            ship: Condvar::new(),
            stamps: AtomicU64::new(LEASED),
            observer: OnceLock::new(),
            forsaken: Mutex::default(),
            salt: random()?,
            closed: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
        });
        shared.has_journal();
        let mut threads = Vec::new();
        for (name, work) in [
            ("meta-ship", keeper::ship as fn(&Shared)),
            ("meta-lease", keeper::keep),
            ("meta-doubt", keeper::doubt),
        ] {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name(name.into());
            let thread = thread.spawn(move || work(&shared));
            threads.push(thread.map_err(|error| EngineError::Io(Box::new(error)))?);
        }
        Ok(Leased { shared, threads: Mutex::new(threads) })
    }

    /// Leases held now.
    #[must_use]
    pub fn held(&self) -> usize {
        self.shared.leases.lock().held()
    }

    /// The engine below.
    #[must_use]
    pub fn below(&self) -> &Redis {
        &self.shared.below
    }

    /// Stops as the death of the process would, for tests: nothing more is shipped or given back.
    pub fn die(self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.stop();
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
        // The journal's lock goes, its files stay.
        drop(self.shared.journal.lock().take());
        self.shared.parts.write().clear();
        self.shared.session.lock().is_begun = false;
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        self.close();
        self.shared.stop();
        for thread in self.threads.lock().drain(..) {
            // A thread that panicked has nothing to tell any more.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Nanoseconds since the start, also those in which the machine slept.
    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// As [`Shared::now`], without the time in which the machine slept.
    fn awake(&self) -> u64 {
        u64::try_from(self.awake_since.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// For how long after a sign of life this process may act, in nanoseconds.
    fn validity(&self) -> u64 {
        u64::try_from(self.options.timeout.as_nanos() / 12).unwrap_or(u64::MAX)
    }

    /// For how long after a sign of life others may rely on what they were told, in nanoseconds:
    /// they can't be told if this process dies, so long before anybody breaks the lease.
    fn reliance(&self) -> u64 {
        let timeout = self.options.timeout.min(MAX_RELIANCE);
        u64::try_from(timeout.as_nanos() / 3 * 2).unwrap_or(u64::MAX)
    }

    /// Whether this process may act on its leases.
    fn is_valid(&self, now: u64) -> bool {
        now < self.valid.load(Ordering::Acquire)
    }

    fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// Whether nobody relies on a lease any more that is about to be given back.
    fn is_let_go(&self, part: &Part) -> bool {
        part.leaving.store(true, Ordering::Release);
        let lease = part.stamp.load(Ordering::Acquire);
        if lease != 0 && !self.let_go(part.partition, lease, true) {
            return false;
        }
        part.is_let_go.store(true, Ordering::Release);
        self.awake() >= part.inherited
    }

    fn let_go(&self, partition: u16, lease: u64, for_good: bool) -> bool {
        let observer = self.observer.get();
        observer.is_none_or(|observer| observer.let_go(partition, lease, for_good))
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.ship.notify_all();
        self.below.wake();
    }

    fn part(&self, partition: u16) -> Option<Arc<Part>> {
        self.parts.read().get(&partition).cloned()
    }

    fn all_parts(&self) -> Vec<Arc<Part>> {
        self.parts.read().values().cloned().collect()
    }

    fn execute(
        &self,
        partition: u16,
        transaction: &MiniTransaction,
    ) -> Result<Outcome, EngineError> {
        let mut stopped = Stopped::new(self.below.give_up());
        loop {
            if self.is_lost() {
                self.settle()?;
            }
            if let Some(part) = self.part(partition) {
                match self.execute_leased(&part, transaction)? {
                    Some(outcome) => return Ok(outcome),
                    None => continue,
                }
            }
            // It must not outlive what was done before it under leases.
            if keys::may_be_leased(partition)
                && !transaction.write.is_empty()
                && !self.append_up_to(self.last.load(Ordering::Acquire))?
            {
                continue;
            }
            match self.below.try_execute(partition, transaction, "")? {
                Answer::Done(outcome) => {
                    let changed = outcome != Outcome::Conflict && !transaction.write.is_empty();
                    if self.is_to_be_taken(partition, changed) {
                        self.take(partition);
                    }
                    return Ok(outcome);
                }
                // Another thread has taken it meanwhile.
                Answer::Leased(lease) if self.is_mine(&lease) => {
                    if self.part(partition).is_none() {
                        self.below.meet(partition, &lease, &mut stopped)?;
                    }
                }
                Answer::Leased(lease) => self.below.meet(partition, &lease, &mut stopped)?,
                Answer::Lost => return Err(EngineError::Io("a lease that nobody has".into())),
            }
        }
    }

    fn is_mine(&self, lease: &[u8]) -> bool {
        lease.starts_with(self.session.lock().name.as_bytes())
    }

    /// `None` if the lease is gone.
    fn execute_leased(
        &self,
        part: &Arc<Part>,
        transaction: &MiniTransaction,
    ) -> Result<Option<Outcome>, EngineError> {
        let begun = Instant::now();
        loop {
            match self.execute_in_memory(part, transaction)? {
                Local::Done(outcome, None) => return Ok(Some(outcome)),
                Local::Done(outcome, Some(number)) => {
                    return match self.append_up_to(number).map_err(unknown)? {
                        true => Ok(Some(outcome)),
                        false => Err(lost()),
                    };
                }
                Local::Gone => return Ok(None),
                Local::Silent if begun.elapsed() > self.below.give_up() => {
                    let reason = "signs of life take too long".to_string();
                    return Err(EngineError::Unreachable { reason });
                }
                Local::Silent if self.is_lost() => self.settle()?,
                Local::Silent => drop(self.append_some(u64::MAX)?),
            }
        }
    }

    fn execute_in_memory(
        &self,
        part: &Arc<Part>,
        transaction: &MiniTransaction,
    ) -> Result<Local, EngineError> {
        let now = self.now();
        let mut state = part.state.lock();
        let Some(held) = state.as_mut() else { return Ok(Local::Gone) };
        if !self.is_valid(now) {
            return Ok(Local::Silent);
        }
        part.used.store(now, Ordering::Relaxed);
        let outcome = held.image.outcome(transaction);
        if outcome == Outcome::Conflict || transaction.write.is_empty() {
            return Ok(Local::Done(outcome, None));
        }
        let Some((number, must_come)) = self.note(part.partition, &held.id, &transaction.write)
        else {
            return Ok(Local::Silent);
        };
        held.image.apply(&transaction.write);
        held.last = number;
        part.bytes.store(held.image.bytes(), Ordering::Relaxed);
        drop(state);
        self.to_be_shipped(part.partition);
        // The right to acknowledge it must not have ended meanwhile.
        let must_come = must_come
            || transaction.write.iter().any(keys::is_for_others)
            || !self.is_valid(self.now());
        Ok(Local::Done(outcome, must_come.then_some(number)))
    }

    /// Notes a transaction in the session and the journal, in the same order; its number, and whether
    /// it must come to the servers before it counts. `None` if the session is lost. The caller has the
    /// lock of the partition's state.
    fn note(&self, partition: u16, lease: &str, writes: &[Write]) -> Option<(u64, bool)> {
        let mut session = self.session.lock();
        if session.is_lost {
            return None;
        }
        let number = session.next();
        let noted = match self.journal.lock().as_mut() {
            None => true,
            Some(journal) => {
                let noted = journal.commit(partition, lease, number, writes);
                noted.map_err(|error| tracing::debug!(%error, "no journal of leases")).is_ok()
            }
        };
        let (lease, writes) = (lease.to_string(), writes.to_vec());
        session.push(Entry { number, partition, lease, writes }, noted);
        self.last.store(number, Ordering::Release);
        // Those after one that was not noted would come without it after a death.
        Some((number, !session.is_noted() || session.waiting() > BACKLOG))
    }

    fn to_be_shipped(&self, partition: u16) {
        let mut unshipped = self.unshipped.lock();
        if unshipped.is_empty() {
            self.ship.notify_one();
        }
        unshipped.insert(partition);
    }

    /// Looks at a partition that is leased; `None` if it is not.
    fn look<T>(
        &self,
        partition: u16,
        look: &dyn Fn(&Image) -> T,
    ) -> Result<Option<T>, EngineError> {
        loop {
            if self.is_lost() {
                self.settle()?;
            }
            let Some(part) = self.part(partition) else { return Ok(None) };
            let now = self.now();
            if self.is_valid(now) {
                let state = part.state.lock();
                part.used.store(now, Ordering::Relaxed);
                return Ok(state.as_ref().map(|held| look(&held.image)));
            }
            self.append_some(u64::MAX)?;
        }
    }

    fn is_to_be_taken(&self, partition: u16, changed: bool) -> bool {
        keys::may_be_leased(partition)
            && !self.closed.load(Ordering::Acquire)
            && self.leases.lock().used(Tick(self.now()), partition, changed)
    }

    /// Takes the lease of a partition if it is to be had.
    fn take(&self, partition: u16) {
        // Without news from the primary nobody could ask for it.
        if self.below.watch(partition).is_none() || !self.has_journal() {
            return;
        }
        let begun = self.is_valid(self.now()) || self.append_some(u64::MAX).unwrap_or(false);
        if !begun {
            return;
        }
        let number = self.stamps.fetch_add(1, Ordering::Relaxed) + 1;
        let name = self.session.lock().name.clone();
        let id = format!("{name}{:08x}", (number as u32).wrapping_add(self.salt));
        self.take_as(Part::new(partition, 0), id, number);
    }

    /// Goes on with the lease `id` that an earlier process had.
    fn resume(&self, partition: u16, id: String) {
        let number = self.stamps.fetch_add(1, Ordering::Relaxed) + 1;
        let inherited = self.awake().saturating_add(self.reliance());
        let part = Part::new(partition, inherited);
        match self.below.shipped(partition, &id) {
            Ok(arrived) => part.arrived.store(arrived.unwrap_or(0), Ordering::Release),
            Err(error) => {
                tracing::debug!(%error, partition, "a lease is not gone on with");
                self.strays.lock().push(self.stray(&part, id));
                return;
            }
        }
        self.take_as(part, id, number);
    }

    fn take_as(&self, part: Part, id: String, number: u64) {
        let (partition, part) = (part.partition, Arc::new(part));
        let mut state = part.state.lock();
        match self.parts.write().entry(partition) {
            std::collections::hash_map::Entry::Occupied(_) => return,
            std::collections::hash_map::Entry::Vacant(place) => place.insert(part.clone()),
        };
        let taken = self.take_and_read(&part, &id);
        let now = Tick(self.now());
        match taken {
            // Others have ended the session meanwhile.
            Ok(Ok(_)) if self.is_lost() || !self.is_mine(id.as_bytes()) => {
                self.strays.lock().push(self.stray(&part, id.clone()));
                self.end(&part, &id, End::Lost);
            }
            Ok(Ok(image)) => {
                part.bytes.store(image.bytes(), Ordering::Relaxed);
                part.used.store(now.0, Ordering::Relaxed);
                *state = Some(Held { id, image, last: 0 });
                part.stamp.store(number, Ordering::Release);
                self.leases.lock().took(now, partition);
            }
            Ok(Err(end)) => self.end(&part, &id, end),
            Err(error) => {
                tracing::debug!(%error, partition, "no lease");
                self.strays.lock().push(self.stray(&part, id.clone()));
                self.end(&part, &id, End::Lost);
            }
        }
        self.below.touch(partition);
    }

    fn stray(&self, part: &Part, id: String) -> Stray {
        Stray { partition: part.partition, id, not_before: part.inherited }
    }

    fn take_and_read(&self, part: &Part, id: &str) -> Result<Result<Image, End>, EngineError> {
        let LeaseOptions { timeout, who, records, .. } = &self.options;
        if let Some(journal) = self.journal.lock().as_mut() {
            let io = |error| EngineError::Io(Box::new(error));
            journal.take(part.partition, id).map_err(io)?;
        }
        match self.below.take(part.partition, id, *timeout, who, *records)? {
            Taken::Yes => {}
            Taken::TooLarge => return Ok(Err(End::TooLarge)),
            Taken::No => return Ok(Err(End::Recalled)),
        }
        let (mut image, mut after) = (Image::default(), None);
        loop {
            let page = self.below.scan_leased(part.partition, after.as_deref(), PAGE, id)?;
            let Some(page) = page else { return Ok(Err(End::Lost)) };
            let more = page.more;
            after = image.load(page);
            if image.bytes() > self.options.memory / 2 {
                self.strays.lock().push(self.stray(part, id.to_string()));
                return Ok(Err(End::TooLarge));
            }
            if !more {
                return Ok(Ok(image));
            }
        }
    }

    /// Ships what is left, and lets others in.
    fn give_back(&self, part: &Arc<Part>, end: End) -> Result<(), EngineError> {
        // Most of it while programs go on.
        self.append_up_to(self.last.load(Ordering::Acquire))?;
        let _shipping = part.shipping.lock();
        let mut state = part.state.lock();
        let Some(last) = state.as_ref().map(|held| held.last) else { return Ok(()) };
        // What others do when they have seen this must not outlive what was done before it.
        if !self.bring_all(part, last)? {
            return Ok(());
        }
        let Some(held) = state.take() else { return Ok(()) };
        self.invalidate(part);
        if let Err(error) = self.below.release(part.partition, &held.id) {
            tracing::debug!(%error, "a lease is given back later");
            self.strays.lock().push(self.stray(part, held.id.clone()));
        }
        // Not before: should this process die in between, the next one has to know of the mark, or it
        // waits for it as for that of somebody else.
        self.end(part, &held.id, end);
        self.below.touch(part.partition);
        Ok(())
    }

    /// Whether something was lost in a partition that somebody may have committed who waits for it to
    /// arrive.
    fn has_lost_lately(&self, partition: u16) -> bool {
        let (now, mut lost_at) = (self.now(), self.lost_at.lock());
        lost_at.retain(|_, at| now.saturating_sub(*at) < LATELY);
        lost_at.contains_key(&partition)
    }

    /// The lease does not count from here on. The caller has the lock of the state.
    fn invalidate(&self, part: &Part) {
        let lease = part.stamp.swap(0, Ordering::AcqRel);
        if lease != 0 && !part.is_let_go.load(Ordering::Acquire) && self.observer.get().is_some() {
            // Too late to be told before, but not for nothing: this process may be alone in it.
            self.forsaken.lock().push((part.partition, lease));
            self.below.wake();
        }
    }

    /// The lease is over, but for its mark, if that is a stray. The caller has the lock of the state.
    fn end(&self, part: &Part, id: &str, end: End) {
        self.invalidate(part);
        self.parts.write().remove(&part.partition);
        let stands = self.strays.lock().iter().any(|stray| stray.id == id);
        if !stands {
            self.mark_is_gone(part.partition, id);
        }
        self.leases.lock().ended(Tick(self.now()), part.partition, end);
    }
}

impl Shared {
    /// Nobody has to look for the mark of a lease any more.
    fn mark_is_gone(&self, partition: u16, id: &str) {
        if let Some(journal) = self.journal.lock().as_mut() {
            journal.ended(partition, id);
        }
    }
}

fn random() -> Result<u32, EngineError> {
    let mut number = [0u8; 4];
    let fill = rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty());
    fill.map_err(|error| EngineError::Io(Box::new(std::io::Error::from(error))))?;
    Ok(u32::from_ne_bytes(number))
}

/// A name for a session.
fn random_name() -> Result<String, EngineError> {
    Ok(format!("{:08x}", random()?))
}

fn unknown(error: EngineError) -> EngineError {
    EngineError::Unknown { reason: error.to_string() }
}

fn lost() -> EngineError {
    EngineError::Unknown { reason: "other nodes took this one for dead".into() }
}

impl Engine for Leased {
    fn execute(&self, transaction: &MiniTransaction) -> Result<Outcome, EngineError> {
        let Some(partition) = transaction.partition() else {
            return Ok(Outcome::Committed(Vec::new()));
        };
        if !transaction.in_one_partition() {
            return Err(EngineError::SpansPartitions);
        }
        self.shared.execute(partition, transaction)
    }

    fn scan(
        &self,
        partition: u16,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Page, EngineError> {
        let found = self.shared.look(partition, &|image| image.scan(prefix, after, limit))?;
        match found {
            Some(page) => Ok(page),
            None => self.shared.below.scan(partition, prefix, after, limit),
        }
    }

    fn scan_unless(
        &self,
        guard: &Key,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Option<Page>, EngineError> {
        let look = |image: &Image| match image.has(guard) {
            true => None,
            false => Some(image.scan(prefix, after, limit)),
        };
        match self.shared.look(guard.partition(), &look)? {
            Some(page) => Ok(page),
            None => self.shared.below.scan_unless(guard, prefix, after, limit),
        }
    }

    fn sweep(&self, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, Vec<u8>)>, EngineError> {
        sweep(self, after, limit)
    }

    fn spans_partitions(&self) -> bool {
        false
    }

    fn next_partition(&self, from: u16) -> Result<Option<u16>, EngineError> {
        self.shared.below.next_partition(from)
    }

    fn partitions(&self, range: Range<u16>) -> Result<Vec<u16>, EngineError> {
        self.shared.below.partitions(range)
    }

    fn count(&self, partition: u16, prefix: &[u8]) -> Result<u64, EngineError> {
        match self.shared.look(partition, &|image| image.count(prefix))? {
            Some(count) => Ok(count),
            None => self.shared.below.count(partition, prefix),
        }
    }

    /// Ships all, and then as [`Redis`] does.
    fn sync(&self) -> Result<(), EngineError> {
        let last = self.shared.last.load(Ordering::Acquire);
        if self.shared.is_lost() || !self.shared.append_up_to(last)? {
            return Err(lost());
        }
        self.shared.below.sync()
    }

    fn watch(&self, partition: u16) -> Option<Stamp> {
        let Some(part) = self.shared.part(partition) else {
            return self.shared.below.watch(partition);
        };
        let generation = part.stamp.load(Ordering::Acquire);
        let counts = generation != 0 && self.shared.is_valid(self.shared.now());
        counts.then_some(Stamp { generation, change: 0 })
    }

    fn tenure(&self, partition: u16) -> Option<Tenure> {
        let shared = &self.shared;
        let part = shared.part(partition)?;
        let (now, lease) = (shared.now(), part.stamp.load(Ordering::Acquire));
        if lease == 0 || part.leaving.load(Ordering::Acquire) || !shared.is_valid(now) {
            return None;
        }
        let sent = shared.valid.load(Ordering::Acquire).saturating_sub(shared.validity());
        let until = sent.saturating_add(shared.reliance());
        let left = until.saturating_sub(now);
        part.relied.fetch_max(shared.awake().saturating_add(left), Ordering::AcqRel);
        let left = Duration::from_nanos(left);
        (!left.is_zero()).then_some(Tenure { lease, left })
    }

    fn identify(&self, key: &Key) -> Result<(), EngineError> {
        // A server that this process has a lease from is known by the mark of that.
        match self.shared.part(key.partition()) {
            Some(_) => Ok(()),
            None => self.shared.below.identify(key),
        }
    }

    fn arrive(&self, partition: u16) -> Result<(), EngineError> {
        let part = self.shared.part(partition);
        let last = part.and_then(|part| part.state.lock().as_ref().map(|held| held.last));
        let arrived = match last {
            Some(last) => self.shared.append_up_to(last).map_err(unknown)?,
            // Of a lease that was given back all has arrived.
            None => !self.shared.is_lost() && !self.shared.has_lost_lately(partition),
        };
        if arrived { Ok(()) } else { Err(lost()) }
    }

    fn losses(&self) -> Option<&Losses> {
        Some(&self.shared.losses)
    }

    fn rely(&self, observer: Arc<dyn LeaseObserver>) {
        if self.shared.observer.set(observer).is_err() {
            tracing::error!("a second observer of leases was given; it is ignored");
        }
    }

    /// Gives all leases back and takes no more. It goes on without.
    fn close(&self) {
        self.shared.close();
    }
}
