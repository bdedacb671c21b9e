//! Leases of partitions: the requests of who has one, and the timeout of who meets another's.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use redis::{Cmd, Value};

use super::watch::WANT;
use super::{Bounds, Redis, add_writes, bytes, function, nonsense, slot_of};
use crate::engine::{EngineError, Page, Write};

/// Between two requests to give a lease back.
const ASK_AGAIN: Duration = Duration::from_millis(200);
const FIRST_PAUSE: Duration = Duration::from_micros(200);
const MAX_PAUSE: Duration = Duration::from_millis(20);
/// A lease that says it must be waited for longer is waited for so long.
const MAX_TIMEOUT: Duration = Duration::from_secs(60);
/// Whoever lives gives a lease back that he does not use within this, or shows that he lives.
const TO_ANSWER: Duration = Duration::from_secs(2);
/// For how long a process counts as silent whose lease was broken, for its other leases.
const STAYS_SILENT: Duration = Duration::from_secs(30);
/// Recalls at the beginning of a lease that all leases of a process have in common.
const PROCESS: usize = 8;
/// Processes that are remembered so.
const MAX_SILENT: usize = 64;
/// Time to break a lease and go on, after it was waited for.
const AFTERWARDS: Duration = Duration::from_secs(3);

/// What a request of a partition came to.
#[derive(Debug)]
pub(in crate::engine) enum Answer<T> {
    /// Done.
    Done(T),
    /// Nothing was done: somebody has this lease.
    Leased(Vec<u8>),
    /// Nothing was done: whoever asked has not got the lease any more.
    Lost,
}

/// What came of asking for a lease.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::engine) enum Taken {
    Yes,
    TooLarge,
    /// Another has it.
    No,
}

/// What a holder has committed: the transactions after `after` up to `last`, as one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::engine) struct Batch {
    pub after: u64,
    pub last: u64,
    pub writes: Vec<Write>,
}

/// The refusal that an answer is, if it is one.
pub(super) fn refusal<T>(value: &Value) -> Result<Option<Answer<T>>, EngineError> {
    let Value::Array(values) = value else { return Ok(None) };
    match values.first() {
        Some(Value::Int(-2)) => match values.get(1) {
            Some(Value::BulkString(lease)) => Ok(Some(Answer::Leased(lease.clone()))),
            _ => Err(nonsense()),
        },
        Some(Value::Int(-3)) => Ok(Some(Answer::Lost)),
        _ => Ok(None),
    }
}

/// For how long a lease that was met has stood as it is, and when to give up.
#[derive(Debug)]
pub(in crate::engine) struct Stopped {
    begun: Instant,
    give_up: Duration,
    seen: Option<(Vec<u8>, Instant)>,
    looked: Instant,
    asked: Option<Instant>,
    pause: Duration,
}

impl Stopped {
    pub fn new(give_up: Duration) -> Self {
        let now = Instant::now();
        Stopped { begun: now, give_up, seen: None, looked: now, asked: None, pause: FIRST_PAUSE }
    }

    /// A lease was met: since when it has stood as it is. Over a gap between two looks its holder may
    /// have been as unable to show a sign of life as others were to look.
    fn met(&mut self, now: Instant, lease: &[u8], timeout: Duration) -> Instant {
        let gap = now.saturating_duration_since(self.looked) > timeout / 3;
        self.looked = now;
        match &self.seen {
            Some((seen, since)) if seen == lease && !gap => *since,
            _ => {
                self.seen = Some((lease.to_vec(), now));
                now
            }
        }
    }
}

/// Processes whose leases were broken lately.
#[derive(Debug, Default)]
pub(super) struct SilentProcesses(Vec<(Vec<u8>, Instant)>);

impl SilentProcesses {
    fn note(&mut self, process: &[u8], now: Instant) {
        self.0.retain(|(other, at)| other != process && now.duration_since(*at) < STAYS_SILENT);
        if self.0.len() < MAX_SILENT {
            self.0.push((process.to_vec(), now));
        }
    }

    fn has(&self, process: &[u8], now: Instant) -> bool {
        let lately = |at: &Instant| now.saturating_duration_since(*at) < STAYS_SILENT;
        self.0.iter().any(|(other, at)| other == process && lately(at))
    }
}

impl Redis {
    /// Another's lease is in the way: asks for it, breaks it if its holder is dead, or waits a
    /// moment.
    pub(in crate::engine) fn meet(
        &self,
        partition: u16,
        lease: &[u8],
        stopped: &mut Stopped,
    ) -> Result<(), EngineError> {
        let now = Instant::now();
        let timeout = timeout_of(lease);
        if stopped.begun.elapsed() > stopped.give_up.max(timeout + AFTERWARDS) {
            let who = holder_of(lease);
            let reason = format!("{who} works in that directory and does not give way");
            return Err(EngineError::Unreachable { reason });
        }
        let since = stopped.met(now, lease, timeout);
        if self.is_silent(partition, lease, since, now) {
            let who = holder_of(lease);
            tracing::warn!(partition, "{who} is silent: its lease is broken");
            self.silent.lock().note(process_of(lease), now);
            let mut seize = function("seize", &[self.values_key(partition)]);
            seize.arg(lease);
            self.ask(partition, &seize)?;
            return Ok(());
        }
        if stopped.asked.is_none_or(|asked| now.duration_since(asked) >= ASK_AGAIN) {
            stopped.asked = Some(now);
            let key = format!("{}{WANT}", self.values_key(partition));
            self.ask(partition, &function("want", &[key]))?;
        }
        std::thread::sleep(stopped.pause);
        stopped.pause = (stopped.pause * 2).min(MAX_PAUSE);
        Ok(())
    }

    /// Whether the holder of a lease that was met first at `since` shows no sign of life any more. What
    /// was heard of the partition before counts, too: whoever has many leases and dies is not waited for
    /// as long for each of them. But one who does not use a lease shows no signs in it while he lives: he
    /// is asked for it first, unless he has not answered for another one either.
    fn is_silent(&self, partition: u16, lease: &[u8], since: Instant, now: Instant) -> bool {
        let heard = self.tracker.unchanged_since(partition, slot_of(partition));
        let silent = heard.map_or(since, |heard| heard.min(since));
        let asked = now.duration_since(since) > TO_ANSWER;
        now.saturating_duration_since(silent) > timeout_of(lease)
            && (asked || self.silent.lock().has(process_of(lease), now))
    }

    /// Asks for the lease of a partition. It stands until it is given back, or has shown no sign of
    /// life for as long as `timeout` to somebody whom it stopped.
    pub(in crate::engine) fn take(
        &self,
        partition: u16,
        id: &str,
        timeout: Duration,
        who: &str,
        records: usize,
    ) -> Result<Taken, EngineError> {
        let mut take = function("take", &self.both_keys(partition));
        let timeout = timeout.min(MAX_TIMEOUT).as_millis() as u64;
        take.arg(id).arg(timeout).arg(who).arg(records);
        match self.ask(partition, &take)?.first() {
            Some(Value::Int(1)) => Ok(Taken::Yes),
            Some(Value::Int(0)) => Ok(Taken::TooLarge),
            Some(Value::Int(-2)) => Ok(Taken::No),
            _ => Err(nonsense()),
        }
    }

    /// Brings what was committed under a lease; false if it is broken. Without anything to bring it
    /// is a sign of life.
    pub(in crate::engine) fn ship(
        &self,
        partition: u16,
        id: &str,
        batch: &Batch,
    ) -> Result<bool, EngineError> {
        let mut ship = function("ship", &self.both_keys(partition));
        ship.arg(id).arg(batch.after).arg(batch.last);
        add_writes(&mut ship, &batch.writes);
        match self.ask(partition, &ship)?.first() {
            Some(Value::Int(1)) => Ok(true),
            Some(Value::Int(-3)) => Ok(false),
            _ => Err(nonsense()),
        }
    }

    /// Gives a lease back.
    pub(in crate::engine) fn release(&self, partition: u16, id: &str) -> Result<(), EngineError> {
        let mut release = function("release", &[self.values_key(partition)]);
        release.arg(id);
        self.ask(partition, &release).map(drop)
    }

    /// How many transactions of the lease `id` have arrived; `None` if it does not count any more.
    pub(in crate::engine) fn shipped(
        &self,
        partition: u16,
        id: &str,
    ) -> Result<Option<u64>, EngineError> {
        let mut lease = function("lease", &[self.values_key(partition)]);
        let answer = self.ask(partition, lease.arg(id))?;
        let lease = answer.into_iter().nth(1).map(bytes).transpose()?.flatten();
        let Some(lease) = lease.filter(|lease| lease.starts_with(id.as_bytes())) else {
            return Ok(None);
        };
        number_of(&lease, 2).map(Some).ok_or_else(nonsense)
    }

    /// As a scan by whoever has the lease; `None` if it is broken.
    pub(in crate::engine) fn scan_leased(
        &self,
        partition: u16,
        after: Option<&[u8]>,
        limit: usize,
        id: &str,
    ) -> Result<Option<Page>, EngineError> {
        match self.try_scan(partition, &Bounds::new(b"", after, limit), None, id)? {
            Answer::Done(page) => Ok(page),
            Answer::Leased(_) | Answer::Lost => Ok(None),
        }
    }

    /// Waits until others want leases, no longer than `limit`; of which partitions.
    pub(in crate::engine) fn wanted(&self, limit: Duration) -> BTreeSet<u16> {
        self.tracker.wanted(limit)
    }

    /// Ends a wait of [`Redis::wanted`].
    pub(in crate::engine) fn wake(&self) {
        self.tracker.wake();
    }

    /// Stamps of a partition from before this do not hold any more.
    pub(in crate::engine) fn touch(&self, partition: u16) {
        self.tracker.touch(partition);
    }

    /// How long a call goes on before it fails.
    pub(in crate::engine) fn give_up(&self) -> Duration {
        self.options.give_up
    }

    fn both_keys(&self, partition: u16) -> [String; 2] {
        [self.values_key(partition), self.order_key(partition)]
    }

    fn ask(&self, partition: u16, command: &Cmd) -> Result<Vec<Value>, EngineError> {
        let confirm = self.confirm(partition);
        match self.cluster.call(slot_of(partition), confirm.as_deref(), &|_| command.clone())? {
            Value::Array(values) => Ok(values),
            _ => Err(nonsense()),
        }
    }
}

/// The lease's text is `id timeout shipped beat who`.
fn number_of(lease: &[u8], at: usize) -> Option<u64> {
    let word = lease.split(|byte| *byte == b' ').nth(at)?;
    std::str::from_utf8(word).ok()?.parse().ok()
}

fn timeout_of(lease: &[u8]) -> Duration {
    number_of(lease, 1).map_or(MAX_TIMEOUT, Duration::from_millis).min(MAX_TIMEOUT)
}

/// What the leases of one process have in common.
fn process_of(lease: &[u8]) -> &[u8] {
    &lease[..lease.len().min(PROCESS)]
}

fn holder_of(lease: &[u8]) -> String {
    let words = lease.splitn(5, |byte| *byte == b' ');
    words.last().map(|who| String::from_utf8_lossy(who).into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_when_nobody_could_look_for_long_then_its_silence_begins_anew() {
        let (begun, timeout) = (Instant::now(), Duration::from_secs(12));
        let at = |second| begun + Duration::from_secs(second);
        let mut stopped = Stopped::new(Duration::from_secs(15));
        for second in 0..=13 {
            assert_eq!(stopped.met(at(second), b"a 12000 0 7 x", timeout), at(0));
        }
        assert_eq!(stopped.met(at(14), b"a 12000 0 8 x", timeout), at(14), "a sign of life");
        assert_eq!(stopped.met(at(15), b"a 12000 0 8 x", timeout), at(14));
        assert_eq!(stopped.met(at(28), b"a 12000 0 8 x", timeout), at(28), "after an outage");
    }

    #[test]
    fn lease_when_read_then_gives_its_parts() {
        let lease = b"0123456789abcdef 12000 42 7 node two";
        assert_eq!(timeout_of(lease), Duration::from_secs(12));
        assert_eq!(number_of(lease, 2), Some(42));
        assert_eq!(holder_of(lease), "node two");
        assert_eq!(timeout_of(b"nonsense"), MAX_TIMEOUT);
        assert_eq!(timeout_of(b"id 99999999 0 0 x"), MAX_TIMEOUT);
    }
}
