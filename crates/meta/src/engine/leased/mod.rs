//! An engine on Redis that takes leases of partitions: while this process alone changes one, it
//! commits there on its own and ships what it committed in batches.
//!
//! **Taking.** After some changes in a row ([`Leases`]) the lease is taken by a mark in the partition,
//! with which the servers refuse everybody else there, and all that the partition holds is read. From
//! then on mini-transactions are executed in memory, noted in a [`Journal`] before they are
//! acknowledged, and shipped within milliseconds, as many as there are in one request.
//!
//! **Giving back.** Whoever is refused asks for the lease by changing a key that the holder watches
//! ([`Redis::meet`]). The holder ships what it has, takes the mark away, and the other goes on. So no
//! one needs to know how to reach the holder, and it makes no difference who asks: a node, `fsck`, or
//! a tool.
//!
//! **Death.** The holder gives signs of life, in the mark, and acknowledges nothing when the last one
//! that was answered was sent longer than a twelfth of the timeout ago. Whoever has seen the mark
//! unchanged for the whole timeout on its own clock breaks the lease, if it is still unchanged. So
//! clocks need not agree. A process that comes back finds the journal and ships it, unless others
//! have changed the partition meanwhile: then it is refused, reported and kept in a file.
//!
//! **At once.** Some changes are acted upon outside of the partition: locks and intents of
//! transactions over several partitions, copies on other nodes, the right to work in the backing
//! store. They count when they have arrived at the servers, with all that was committed before.

mod journal;
mod keeper;
mod losses;
mod part;

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

/// Records read in one go when a lease is taken.
const PAGE: usize = 2000;
/// Transactions that wait to be shipped; whoever adds more ships some first.
const BACKLOG: usize = 4096;
/// Nobody waits longer for a lease, whatever timeout its holder has set.
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
    shared: Arc<LeasedState>,
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

/// What the engine and its threads have in common.
struct LeasedState {
    below: Arc<Redis>,
    options: LeaseOptions,
    started: BootInstant,
    /// The same moment by the clock of the kernel's caches, which stands still while the machine sleeps.
    awake_since: Instant,
    /// Partitions that are leased, or about to be.
    parts: RwLock<HashMap<u16, Arc<Part>>>,
    leases: Mutex<Leases>,
    /// Locked after the state of a partition.
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
    /// Tells the leases of this process from those of others.
    name: String,
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
        let mut number = [0u8; 4];
        let fill = rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty());
        fill.map_err(|error| EngineError::Io(Box::new(std::io::Error::from(error))))?;
        let shared = Arc::new(LeasedState {
            below,
            leases: Mutex::new(Leases::new(options.terms)),
            losses: Losses::open(options.journal.as_deref()),
            lost_at: Mutex::default(),
            options,
            started: BootInstant::now(),
            awake_since: Instant::now(),
            parts: RwLock::default(),
            journal: Mutex::default(),
            strays: Mutex::default(),
            unshipped: Mutex::default(),
            ship: Condvar::new(),
            stamps: AtomicU64::new(LEASED),
            observer: OnceLock::new(),
            forsaken: Mutex::default(),
            name: format!("{:08x}", u32::from_ne_bytes(number)),
            closed: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
        });
        shared.has_journal();
        let mut threads = Vec::new();
        for (name, work) in [
            ("meta-ship", keeper::ship as fn(&LeasedState)),
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

impl LeasedState {
    /// Nanoseconds since the start, also those in which the machine slept.
    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// As [`LeasedState::now`], without the time in which the machine slept.
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
            if let Some(part) = self.part(partition) {
                match self.execute_leased(&part, transaction)? {
                    Some(outcome) => return Ok(outcome),
                    None => continue,
                }
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
        lease.starts_with(self.name.as_bytes())
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
                    return match self.ship_up_to(part, number).map_err(unknown)? {
                        true => Ok(Some(outcome)),
                        false => Err(lost()),
                    };
                }
                Local::Gone => return Ok(None),
                Local::Silent if begun.elapsed() > self.below.give_up() => {
                    let reason = "signs of life take too long".to_string();
                    return Err(EngineError::Unreachable { reason });
                }
                Local::Silent => drop(self.ship_some(part, u64::MAX)?),
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
        if !part.is_valid(now) {
            return Ok(Local::Silent);
        }
        part.used.store(now, Ordering::Relaxed);
        let outcome = held.image.outcome(transaction);
        if outcome == Outcome::Conflict || transaction.write.is_empty() {
            return Ok(Local::Done(outcome, None));
        }
        let number = held.log.next();
        let noted = match self.journal.lock().as_mut() {
            None => true,
            Some(journal) => {
                let writes = &transaction.write;
                let noted = journal.commit(part.partition, &held.id, number, writes);
                noted.map_err(|error| tracing::debug!(%error, "no journal of leases")).is_ok()
            }
        };
        held.image.apply(&transaction.write);
        held.log.push(transaction.write.clone(), noted);
        part.bytes.store(held.image.bytes(), Ordering::Relaxed);
        // Those after one that was not noted would be shipped without it after a death.
        let noted = held.log.is_noted();
        let waiting = held.log.len();
        drop(state);
        self.to_be_shipped(part.partition);
        // The right to acknowledge it must not have ended meanwhile.
        let must_arrive = !noted
            || waiting > BACKLOG
            || transaction.write.iter().any(keys::is_for_others)
            || !part.is_valid(self.now());
        Ok(Local::Done(outcome, must_arrive.then_some(number)))
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
        let Some(part) = self.part(partition) else { return Ok(None) };
        let now = self.now();
        if let Some(held) = part.state.lock().as_ref().filter(|_| part.is_valid(now)) {
            part.used.store(now, Ordering::Relaxed);
            return Ok(Some(look(&held.image)));
        }
        let _shipping = part.shipping.lock();
        let mut state = part.state.lock();
        self.ship_rest(&part, &mut state)?;
        Ok(state.as_ref().map(|held| look(&held.image)))
    }

    /// Sees to it that a transaction has arrived; false if it is lost.
    fn ship_up_to(&self, part: &Arc<Part>, number: u64) -> Result<bool, EngineError> {
        while part.arrived.load(Ordering::Acquire) < number {
            if !self.ship_some(part, number)? {
                return Ok(part.arrived.load(Ordering::Acquire) >= number);
            }
        }
        Ok(true)
    }

    /// Sends one batch, or a sign of life, unless a transaction has arrived; false if there is no
    /// lease any more.
    fn ship_some(&self, part: &Arc<Part>, unless: u64) -> Result<bool, EngineError> {
        let _shipping = part.shipping.lock();
        if part.arrived.load(Ordering::Acquire) >= unless {
            return Ok(true);
        }
        let (id, batch) = match part.state.lock().as_mut() {
            Some(held) => (held.id.clone(), held.log.batch()),
            None => return Ok(false),
        };
        let sent = self.now();
        let arrived = self.below.ship(part.partition, &id, &batch)?;
        let mut state = part.state.lock();
        match arrived {
            true => self.arrived(part, &mut state, sent),
            false => self.lose(part, &mut state),
        }
        Ok(arrived)
    }

    /// Sends all, and a sign of life if there is none that counts. The caller has both locks.
    fn ship_rest(&self, part: &Arc<Part>, state: &mut Option<Held>) -> Result<bool, EngineError> {
        loop {
            let Some(held) = state.as_mut() else { return Ok(false) };
            if held.log.len() == 0 && part.is_valid(self.now()) {
                return Ok(true);
            }
            let (batch, sent) = (held.log.batch(), self.now());
            match self.below.ship(part.partition, &held.id, &batch)? {
                true => self.arrived(part, state, sent),
                false => {
                    self.lose(part, state);
                    return Ok(false);
                }
            }
        }
    }

    fn arrived(&self, part: &Part, state: &mut Option<Held>, sent: u64) {
        let Some(held) = state else { return };
        held.log.confirm();
        part.arrived.store(held.log.arrived(), Ordering::Release);
        part.valid.fetch_max(sent.saturating_add(self.validity()), Ordering::AcqRel);
        if let Some(journal) = self.journal.lock().as_mut() {
            journal.shipped(part.partition, &held.id, held.log.arrived());
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
        let number = self.stamps.fetch_add(1, Ordering::Relaxed) + 1;
        let id = format!("{}{:08x}", self.name, number as u32);
        self.take_as(Part::new(partition, 0), id, number, part::Log::default());
    }

    /// Goes on with the lease `id` that an earlier process had, of which so many transactions have
    /// been shipped.
    fn resume(&self, partition: u16, id: String, shipped: u64) {
        let number = self.stamps.fetch_add(1, Ordering::Relaxed) + 1;
        let inherited = self.awake().saturating_add(self.reliance());
        self.take_as(Part::new(partition, inherited), id, number, part::Log::after(shipped));
    }

    fn take_as(&self, part: Part, id: String, number: u64, log: part::Log) {
        let (partition, part) = (part.partition, Arc::new(part));
        let mut state = part.state.lock();
        match self.parts.write().entry(partition) {
            std::collections::hash_map::Entry::Occupied(_) => return,
            std::collections::hash_map::Entry::Vacant(place) => place.insert(part.clone()),
        };
        let taken = self.take_and_read(&part, &id);
        let now = Tick(self.now());
        match taken {
            Ok(Ok(image)) => {
                part.bytes.store(image.bytes(), Ordering::Relaxed);
                part.used.store(now.0, Ordering::Relaxed);
                part.arrived.store(log.arrived(), Ordering::Release);
                *state = Some(Held { id, image, log });
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
        let sent = self.now();
        match self.below.take(part.partition, id, *timeout, who, *records)? {
            Taken::Yes => {}
            Taken::TooLarge => return Ok(Err(End::TooLarge)),
            Taken::No => return Ok(Err(End::Recalled)),
        }
        part.valid.store(sent.saturating_add(self.validity()), Ordering::Release);
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
        let _shipping = part.shipping.lock();
        let mut state = part.state.lock();
        while state.as_ref().is_some_and(|held| held.log.len() > 0) {
            if !self.ship_rest(part, &mut state)? {
                return Ok(());
            }
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

    /// The lease is broken: what was not shipped is refused.
    fn lose(&self, part: &Part, state: &mut Option<Held>) {
        let Some(mut held) = state.take() else { return };
        let count = held.log.len();
        self.refuse(part.partition, &held.id, count, held.log.rest());
        self.end(part, &held.id, End::Lost);
        self.below.touch(part.partition);
    }

    /// `count`: of the transactions, some of which may have been made one since.
    fn refuse(&self, partition: u16, id: &str, count: usize, rest: Vec<Vec<Write>>) {
        if count == 0 {
            return;
        }
        let journal = self.journal.lock();
        let kept = journal.as_ref().map(|journal| journal.refuse(partition, id, &rest));
        self.losses.note(count, &rest);
        self.lost_at.lock().insert(partition, self.now());
        tracing::error!(
            partition,
            changes = count,
            ?kept,
            "other nodes took this one for dead while it worked in a directory: its last changes of \
             names and attributes there are lost"
        );
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
        part.valid.store(0, Ordering::Release);
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

impl LeasedState {
    /// Nobody has to look for the mark of a lease any more.
    fn mark_is_gone(&self, partition: u16, id: &str) {
        if let Some(journal) = self.journal.lock().as_mut() {
            journal.ended(partition, id);
        }
    }
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
        for part in self.shared.all_parts() {
            let _shipping = part.shipping.lock();
            let mut state = part.state.lock();
            let has_more = state.as_ref().is_some_and(|held| held.log.len() > 0);
            if has_more && !self.shared.ship_rest(&part, &mut state)? {
                return Err(lost());
            }
        }
        self.shared.below.sync()
    }

    fn watch(&self, partition: u16) -> Option<Stamp> {
        let Some(part) = self.shared.part(partition) else {
            return self.shared.below.watch(partition);
        };
        let generation = part.stamp.load(Ordering::Acquire);
        let counts = generation != 0 && part.is_valid(self.shared.now());
        counts.then_some(Stamp { generation, change: 0 })
    }

    fn tenure(&self, partition: u16) -> Option<Tenure> {
        let shared = &self.shared;
        let part = shared.part(partition)?;
        let (now, lease) = (shared.now(), part.stamp.load(Ordering::Acquire));
        if lease == 0 || part.leaving.load(Ordering::Acquire) || !part.is_valid(now) {
            return None;
        }
        let sent = part.valid.load(Ordering::Acquire).saturating_sub(shared.validity());
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
        let held = part.as_ref().and_then(|part| {
            let last = part.state.lock().as_ref().map(|held| held.log.last());
            last.map(|last| (part, last))
        });
        let arrived = match held {
            Some((part, last)) => self.shared.ship_up_to(part, last).map_err(unknown)?,
            // Of a lease that was given back all has arrived.
            None => !self.shared.has_lost_lately(partition),
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
