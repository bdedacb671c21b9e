//! Transactions over several partitions, above an engine that commits only within one.
//!
//! The scheme is two-phase commit in a fixed order with an intent record, by which whoever meets a
//! transaction that stands still finishes it (Aguilera et al., *Sinfonia*, SOSP 2007, sections 4.2
//! and 4.3: the two-phase protocol and its recovery; the commit point in one record is that of Peng
//! and Dabek, *Percolator*, OSDI 2010):
//!
//! 1. In every partition but the smallest, the *home*, from the greatest down: compare, read, and
//!    lock the partition for the transaction.
//! 2. At home, in one mini-transaction: compare, read, write, and put the intent, which holds all
//!    the other writes. This is the moment at which the transaction happens.
//! 3. In every locked partition: write and unlock.
//! 4. At home: remove the intent.
//!
//! Every transaction and scan meets the lock of its partition as a comparison, in the same round
//! trip. Whoever is stopped by it looks for the intent: if there is one, the writes of step 3 are
//! done for the other; if there is none for longer than the timeout, a tombstone is put in its
//! place, with which step 2 can't happen, and the lock is taken away. So nobody sees one half of a
//! transaction without the other, a dead process stops others for no longer than the timeout, and
//! no step relies on a clock.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prost::Message;

use super::{
    Compare, Engine, EngineError, Expect, Key, LeaseObserver, MiniTransaction, Outcome, Page,
    Stamp, Tenure, Write,
};

/// Keys of a partition that begin with this are ours; no others may.
const LOCK: &[u8] = b"\0L";
const INTENT: &[u8] = b"\0T";
const OURS: u8 = 0;

const FIRST_PAUSE: Duration = Duration::from_micros(100);
const MAX_PAUSE: Duration = Duration::from_millis(20);
/// A call that is stopped by locks for so long fails.
const GIVE_UP: Duration = Duration::from_secs(30);

/// What a lock says: which transaction, and where its intent is.
#[derive(Clone, PartialEq, Eq, Message)]
struct PbLock {
    #[prost(bytes = "vec", tag = "1")]
    transaction: Vec<u8>,
    #[prost(uint32, tag = "2")]
    home: u32,
}

/// The intent: what remains to be done after the commit.
#[derive(Clone, PartialEq, Message)]
struct PbIntent {
    #[prost(message, repeated, tag = "1")]
    parts: Vec<PbPart>,
    /// The transaction was given up.
    #[prost(bool, tag = "2")]
    tombstone: bool,
}

#[derive(Clone, PartialEq, Message)]
struct PbPart {
    #[prost(uint32, tag = "1")]
    partition: u32,
    #[prost(message, repeated, tag = "2")]
    writes: Vec<PbWrite>,
}

#[derive(Clone, PartialEq, Message)]
struct PbWrite {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    /// Absent for a removal.
    #[prost(bytes = "vec", optional, tag = "2")]
    value: Option<Vec<u8>>,
}

/// An engine whose transactions may span partitions, made of one whose can't.
pub struct Spanning<E> {
    engine: E,
    /// By which transactions of different processes differ.
    process: [u8; 16],
    count: AtomicU64,
    timeout: Duration,
}

/// A transaction's share in one partition, and where its reads go.
#[derive(Default)]
struct Part {
    transaction: MiniTransaction,
    places: Vec<usize>,
}

impl<E: Engine> Spanning<E> {
    /// `timeout` is how long a transaction without an intent may hold a lock before others give it
    /// up: longer than any honest pause between two steps, as a slower one is only made to begin
    /// anew.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn new(engine: E, timeout: Duration) -> Result<Self, EngineError> {
        let mut process = [0; 16];
        let fill = rustix::rand::getrandom(&mut process, rustix::rand::GetRandomFlags::empty());
        fill.map_err(|error| EngineError::Io(Box::new(std::io::Error::from(error))))?;
        Ok(Spanning { engine, process, count: AtomicU64::new(0), timeout })
    }

    /// The engine below.
    pub fn below(&self) -> &E {
        &self.engine
    }

    fn execute_in_one(&self, transaction: &MiniTransaction) -> Result<Outcome, EngineError> {
        let Some(partition) = transaction.partition() else {
            return Ok(Outcome::Committed(Vec::new()));
        };
        let lock = lock_key(partition);
        let mut guarded = transaction.clone();
        guarded.compare.push(Compare { key: lock.clone(), expect: Expect::Absent });
        let mut wait = Wait::new(self.timeout);
        loop {
            if let done @ Outcome::Committed(_) = self.engine.execute(&guarded)? {
                return Ok(done);
            }
            // Was it the lock, or what the caller compares? One look tells, at one moment.
            let mut look = MiniTransaction::reading(vec![lock.clone()]);
            look.read.extend(transaction.compare.iter().map(|compare| compare.key.clone()));
            let Outcome::Committed(found) = self.engine.execute(&look)? else { continue };
            match &found[0] {
                Some(held) => self.meet(partition, held, &mut wait)?,
                None => {
                    let mut pairs = transaction.compare.iter().zip(&found[1..]);
                    if pairs.any(|(compare, found)| !compare.expect.holds(found.as_deref())) {
                        return Ok(Outcome::Conflict);
                    }
                }
            }
            wait.check()?;
        }
    }

    /// Somebody's lock is in the way: finishes or gives up what it belongs to, or waits.
    fn meet(&self, partition: u16, held: &[u8], wait: &mut Wait) -> Result<(), EngineError> {
        let lock = decode::<PbLock>(held)?;
        let home = u16::try_from(lock.home).map_err(|_| damaged("a lock"))?;
        let intent = intent_key(home, &lock.transaction);
        match self.read_one(&intent)? {
            Some(found) => {
                let found = decode::<PbIntent>(&found)?;
                match found.tombstone {
                    true => self.unlock(partition, held, Vec::new()),
                    false => self.roll_forward(&intent, held, &found),
                }
            }
            None if wait.is_over(held) => {
                let tombstone = PbIntent { parts: Vec::new(), tombstone: true };
                let bury = MiniTransaction {
                    compare: vec![Compare { key: intent.clone(), expect: Expect::Absent }],
                    write: vec![Write::Put(intent, tombstone.encode_to_vec())],
                    ..MiniTransaction::default()
                };
                match self.engine.execute(&bury)? {
                    Outcome::Committed(_) => self.unlock(partition, held, Vec::new()),
                    Outcome::Conflict => Ok(()),
                }
            }
            None => {
                wait.pause();
                Ok(())
            }
        }
    }

    /// Steps 3 and 4.
    fn roll_forward(&self, intent: &Key, held: &[u8], what: &PbIntent) -> Result<(), EngineError> {
        for part in &what.parts {
            let partition = u16::try_from(part.partition).map_err(|_| damaged("an intent"))?;
            let writes = part.writes.iter().map(|write| {
                let key = Key::new(partition, &write.key);
                match &write.value {
                    Some(value) => Write::Put(key, value.clone()),
                    None => Write::Delete(key),
                }
            });
            self.unlock(partition, held, writes.collect())?;
        }
        self.engine.execute(&writing(vec![Write::Delete(intent.clone())]))?;
        Ok(())
    }

    /// Writes and unlocks, unless that was done.
    fn unlock(
        &self,
        partition: u16,
        held: &[u8],
        mut write: Vec<Write>,
    ) -> Result<(), EngineError> {
        let key = lock_key(partition);
        let compare = vec![Compare { key: key.clone(), expect: Expect::Value(held.to_vec()) }];
        write.push(Write::Delete(key));
        self.engine.execute(&MiniTransaction { compare, write, ..MiniTransaction::default() })?;
        Ok(())
    }

    fn read_one(&self, key: &Key) -> Result<Option<Vec<u8>>, EngineError> {
        match self.engine.execute(&MiniTransaction::reading(vec![key.clone()]))? {
            Outcome::Committed(mut values) => Ok(values.pop().flatten()),
            Outcome::Conflict => Ok(None),
        }
    }

    fn execute_spanning(&self, transaction: &MiniTransaction) -> Result<Outcome, EngineError> {
        let mut parts = split(transaction);
        let Some((home, home_part)) = parts.pop_first() else {
            return Ok(Outcome::Committed(Vec::new()));
        };
        let wait = Wait::new(self.timeout);
        loop {
            if let Some(outcome) = self.attempt(transaction, home, &home_part, &parts)? {
                return Ok(outcome);
            }
            wait.check()?;
        }
    }

    /// The four steps; `None` if others gave it up.
    fn attempt(
        &self,
        transaction: &MiniTransaction,
        home: u16,
        home_part: &Part,
        parts: &BTreeMap<u16, Part>,
    ) -> Result<Option<Outcome>, EngineError> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let id = [self.process.as_slice(), &number.to_be_bytes()].concat();
        let held = PbLock { transaction: id.clone(), home: home.into() }.encode_to_vec();
        let mut values = vec![None; transaction.read.len()];
        let mut locked = Vec::new();
        for (partition, part) in parts.iter().rev() {
            match self.prepare(*partition, part, &held)? {
                Outcome::Committed(found) => fill(&mut values, part, found),
                Outcome::Conflict => {
                    self.release(&locked, &held)?;
                    return Ok(Some(Outcome::Conflict));
                }
            }
            locked.push(*partition);
        }
        let intent = intent_of(parts);
        let key = intent_key(home, &id);
        let mut commit = home_part.transaction.clone();
        commit.compare.push(Compare { key: key.clone(), expect: Expect::Absent });
        commit.write.push(Write::Put(key.clone(), intent.encode_to_vec()));
        let Outcome::Committed(found) = self.execute_in_one(&commit)? else {
            self.release(&locked, &held)?;
            let mut clear = writing(vec![Write::Delete(key.clone())]);
            clear.compare.push(Compare { key, expect: Expect::Present });
            let given_up = self.engine.execute(&clear)? != Outcome::Conflict;
            return Ok((!given_up).then_some(Outcome::Conflict));
        };
        fill(&mut values, home_part, found);
        // It has happened. If this fails, whoever comes next does it.
        if let Err(error) = self.roll_forward(&key, &held, &intent) {
            tracing::debug!("a transaction over partitions is left to others to finish: {error}");
        }
        Ok(Some(Outcome::Committed(values)))
    }

    /// Step 1 in one partition.
    fn prepare(&self, partition: u16, part: &Part, held: &[u8]) -> Result<Outcome, EngineError> {
        let lock = Write::Put(lock_key(partition), held.to_vec());
        let prepare = MiniTransaction {
            compare: part.transaction.compare.clone(),
            read: part.transaction.read.clone(),
            write: vec![lock],
        };
        self.execute_in_one(&prepare)
    }

    fn release(&self, locked: &[u16], held: &[u8]) -> Result<(), EngineError> {
        locked.iter().try_for_each(|partition| self.unlock(*partition, held, Vec::new()))
    }

    /// An intent that was left, or a tombstone. Of locks that name it there are none, or they are
    /// met later.
    fn finish(&self, key: &Key, value: &[u8]) -> Result<(), EngineError> {
        let intent = decode::<PbIntent>(value)?;
        if intent.tombstone {
            self.engine.execute(&writing(vec![Write::Delete(key.clone())]))?;
            return Ok(());
        }
        let transaction = key.bytes()[INTENT.len()..].to_vec();
        let held = PbLock { transaction, home: key.partition().into() }.encode_to_vec();
        self.roll_forward(key, &held, &intent)
    }
}

impl<E: Engine> Engine for Spanning<E> {
    fn execute(&self, transaction: &MiniTransaction) -> Result<Outcome, EngineError> {
        match transaction.in_one_partition() {
            true => self.execute_in_one(transaction),
            false => self.execute_spanning(transaction),
        }
    }

    fn scan(
        &self,
        partition: u16,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Page, EngineError> {
        let lock = lock_key(partition);
        // What is ours comes before all else, so only a scan of everything meets it.
        let from = match prefix.is_empty() && after.is_none_or(|after| after < &[OURS + 1][..]) {
            true => Some(&[OURS, u8::MAX][..]),
            false => after,
        };
        let mut wait = Wait::new(self.timeout);
        loop {
            if let Some(page) = self.engine.scan_unless(&lock, prefix, from, limit)? {
                return Ok(page);
            }
            if let Some(held) = self.read_one(&lock)? {
                self.meet(partition, &held, &mut wait)?;
            }
            wait.check()?;
        }
    }

    fn sweep(&self, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, Vec<u8>)>, EngineError> {
        let mut after = after.cloned();
        loop {
            let step = self.engine.sweep(after.as_ref(), limit)?;
            after = step.last().map(|(key, _)| key.clone());
            let theirs: Vec<_> = step.into_iter().filter(|(key, _)| !is_ours(key)).collect();
            if after.is_none() || !theirs.is_empty() || limit == 0 {
                return Ok(theirs);
            }
        }
    }

    fn spans_partitions(&self) -> bool {
        true
    }

    fn prefers_one_partition(&self) -> bool {
        self.engine.prefers_one_partition()
    }

    fn next_partition(&self, from: u16) -> Result<Option<u16>, EngineError> {
        self.engine.next_partition(from)
    }

    fn partitions(&self, range: Range<u16>) -> Result<Vec<u16>, EngineError> {
        self.engine.partitions(range)
    }

    /// Of keys that others are about to change, it may be the number before or after.
    fn count(&self, partition: u16, prefix: &[u8]) -> Result<u64, EngineError> {
        self.engine.count(partition, prefix)
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.engine.sync()
    }

    fn close(&self) {
        self.engine.close();
    }

    fn release_memory(&self) {
        self.engine.release_memory();
    }

    fn watch(&self, partition: u16) -> Option<Stamp> {
        self.engine.watch(partition)
    }

    fn tenure(&self, partition: u16) -> Option<Tenure> {
        self.engine.tenure(partition)
    }

    fn identify(&self, key: &Key) -> Result<(), EngineError> {
        self.engine.identify(key)
    }

    fn arrive(&self, partition: u16) -> Result<(), EngineError> {
        self.engine.arrive(partition)
    }

    fn losses(&self) -> Option<&super::Losses> {
        self.engine.losses()
    }

    fn rely(&self, observer: Arc<dyn LeaseObserver>) {
        self.engine.rely(observer);
    }

    fn recover(&self) -> Result<u64, EngineError> {
        const STEP: usize = 4096;
        let mut recovered = 0;
        let mut after: Option<Key> = None;
        loop {
            let step = self.engine.sweep(after.as_ref(), STEP)?;
            let Some((last, _)) = step.last() else { return Ok(recovered) };
            after = Some(last.clone());
            for (key, value) in step.iter().filter(|(key, _)| is_ours(key)) {
                if key.bytes().starts_with(LOCK) {
                    recovered += 1;
                    let mut wait = Wait::new(Duration::ZERO);
                    while self.read_one(key)?.as_ref() == Some(value) {
                        self.meet(key.partition(), value, &mut wait)?;
                        wait.check()?;
                    }
                } else {
                    self.finish(key, value)?;
                }
            }
        }
    }
}

/// How long a lock stands already, and when to give up.
struct Wait {
    timeout: Duration,
    begun: Instant,
    pause: Duration,
    seen: Option<(Vec<u8>, Instant)>,
}

impl Wait {
    fn new(timeout: Duration) -> Self {
        Wait { timeout, begun: Instant::now(), pause: FIRST_PAUSE, seen: None }
    }

    /// Whether this lock has been in the way for as long as timeout lasts.
    fn is_over(&mut self, held: &[u8]) -> bool {
        match &self.seen {
            Some((seen, since)) if seen == held => since.elapsed() >= self.timeout,
            _ => {
                self.pause = FIRST_PAUSE;
                self.seen = Some((held.to_vec(), Instant::now()));
                self.timeout.is_zero()
            }
        }
    }

    fn pause(&mut self) {
        std::thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(MAX_PAUSE);
    }

    fn check(&self) -> Result<(), EngineError> {
        match self.begun.elapsed() < GIVE_UP {
            true => Ok(()),
            false => Err(EngineError::Unreachable {
                reason: "others hold the partition all the time".to_string(),
            }),
        }
    }
}

fn split(transaction: &MiniTransaction) -> BTreeMap<u16, Part> {
    let mut parts: BTreeMap<u16, Part> = BTreeMap::new();
    for compare in &transaction.compare {
        let part = parts.entry(compare.key.partition()).or_default();
        part.transaction.compare.push(compare.clone());
    }
    for (place, key) in transaction.read.iter().enumerate() {
        let part = parts.entry(key.partition()).or_default();
        part.transaction.read.push(key.clone());
        part.places.push(place);
    }
    for write in &transaction.write {
        let part = parts.entry(write.key().partition()).or_default();
        part.transaction.write.push(write.clone());
    }
    parts
}

fn fill(values: &mut [Option<Vec<u8>>], part: &Part, found: Vec<Option<Vec<u8>>>) {
    for (place, value) in part.places.iter().zip(found) {
        values[*place] = value;
    }
}

fn intent_of(parts: &BTreeMap<u16, Part>) -> PbIntent {
    let write = |write: &Write| match write {
        Write::Put(key, value) => PbWrite { key: key.bytes().to_vec(), value: Some(value.clone()) },
        Write::Delete(key) => PbWrite { key: key.bytes().to_vec(), value: None },
    };
    let part = |(partition, part): (&u16, &Part)| PbPart {
        partition: (*partition).into(),
        writes: part.transaction.write.iter().map(write).collect(),
    };
    PbIntent { parts: parts.iter().map(part).collect(), tombstone: false }
}

fn writing(write: Vec<Write>) -> MiniTransaction {
    MiniTransaction { write, ..MiniTransaction::default() }
}

fn lock_key(partition: u16) -> Key {
    Key::new(partition, LOCK)
}

fn intent_key(home: u16, transaction: &[u8]) -> Key {
    let mut key = Key::new(home, INTENT);
    key.push(transaction);
    key
}

fn is_ours(key: &Key) -> bool {
    key.bytes().first() == Some(&OURS)
}

fn decode<T: Message + Default>(value: &[u8]) -> Result<T, EngineError> {
    T::decode(value).map_err(|_| damaged("an intent or a lock"))
}

fn damaged(what: &str) -> EngineError {
    EngineError::Io(format!("{what} of the metadata store is damaged").into())
}
