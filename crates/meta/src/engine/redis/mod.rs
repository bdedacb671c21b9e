//! An engine on Redis or Valkey, one server or a cluster: the namespace of many nodes.
//!
//! A partition is one hash tag, hence one slot, hence at any time on one primary. A
//! mini-transaction is one server-side function ([`library`]) and takes one round trip. Keys and
//! values of a partition are a hash; a sorted set of the keys gives their order. (A hash alone
//! takes about 240 bytes a record and can't be scanned in order; one sorted set of keys with their
//! values takes less than both, but every change would have to find and replace a member.)
//!
//! Of the client libraries `redis` is the one that can be used without an asynchronous runtime,
//! which Forebay doesn't have. Only its connections and its parser are used: routing, retries and
//! tracking are written here, since after a fail-over its cluster client may go on asking the dead
//! primary for pipelines, and its tracking stays silent until it is asked for again.

mod health;
mod lease;
mod link;
mod route;
mod topology;
mod url;
mod watch;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::{Cmd, TlsCertificates, Value};

use super::{
    Engine, EngineError, Expect, Key, MiniTransaction, Outcome, Page, Stamp, Write, successor,
    sweep,
};
pub use health::{ServerLog, ServerReport, look_at_servers};
pub(in crate::engine) use lease::{Answer, Batch, Stopped, Taken};
use link::{Dial, TimeLimits};
use route::Cluster;
use url::Url;
use watch::Tracker;

/// The version of the library of server-side functions. One that differs in what it does must have
/// another: old and new programs then work side by side.
const LIBRARY: &str = "forebay_2";

/// Transactions that one client may have under way.
const LANES: usize = 256;
/// Partitions asked at once whether there is anything in them.
const PROBES: u16 = 512;
const MAX_PROBES: usize = 4096;

/// How to use a cluster.
#[derive(Debug, Clone)]
pub struct RedisOptions {
    /// Replicas that must confirm before a transaction counts as done. With 0, a fail-over may lose
    /// what was acknowledged right before it. With 1 or more, a primary without so many replicas
    /// can't be used: transactions end as [`EngineError::Unknown`].
    pub replicas: u32,
    /// How long replicas may take to confirm.
    pub confirm_within: Duration,
    /// The longest that a server may take to accept a connection or to answer.
    pub timeout: Duration,
    /// After so long without success a call fails.
    pub give_up: Duration,
    /// Connections to each server, for all threads together.
    pub connections: usize,
    /// Whether a cluster that keeps nothing on disk will do: [`Engine::sync`] then says nothing
    /// about a loss of power of all servers at once.
    pub memory_only: bool,
    /// The certificate of the authority that signed the servers', in PEM; the system's if `None`.
    pub tls_root: Option<Vec<u8>>,
    /// Certificate and key by which servers know this client, in PEM.
    pub tls_client: Option<(Vec<u8>, Vec<u8>)>,
    /// How long what is cached may be believed without a sign of life from its primary.
    pub lease: Duration,
}

impl Default for RedisOptions {
    fn default() -> Self {
        RedisOptions {
            replicas: 0,
            confirm_within: Duration::from_millis(500),
            timeout: Duration::from_secs(1),
            give_up: Duration::from_secs(15),
            connections: 2,
            memory_only: false,
            tls_root: None,
            tls_client: None,
            lease: Duration::from_secs(1),
        }
    }
}

/// The engine. See the module's documentation.
///
/// Within a partition transactions are linearizable as long as no acknowledged write is lost, which
/// is so with [`RedisOptions::replicas`] of 1 or more (reads wait for the confirmation of what they
/// saw, too). One exception remains: a primary that is cut off from its replicas and from the other
/// primaries, with nothing written since, answers reads with old values until it notices, for at
/// most the cluster's `cluster-node-timeout`.
pub struct Redis {
    cluster: Arc<Cluster>,
    options: RedisOptions,
    name: String,
    client: String,
    lanes: Mutex<Lanes>,
    lane_freed: parking_lot::Condvar,
    tracker: Tracker,
    /// Who did not give leases back.
    silent: Mutex<lease::SilentProcesses>,
}

/// Transactions under way: each has a lane, so that a partition must remember only the newest
/// transaction of each lane to know any that is repeated.
struct Lanes {
    free: Vec<usize>,
    sequence: u64,
}

struct Lane<'a> {
    engine: &'a Redis,
    number: usize,
    sequence: u64,
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        self.engine.lanes.lock().free.push(self.number);
        self.engine.lane_freed.notify_one();
    }
}

impl Redis {
    /// Connects to `redis://[user:password@]host[:port][,host...][/name]` (`rediss` for TLS): a
    /// cluster, of which any servers are named, or one server. `name` keeps the file systems of
    /// one cluster apart.
    ///
    /// # Errors
    /// If the address is wrong, no server answers in time, or one refuses.
    pub fn open(address: &str, options: &RedisOptions) -> Result<Self, EngineError> {
        let url = Url::parse(address)?;
        let name = url.name.clone();
        let tls_client = options.tls_client.clone();
        let tls = TlsCertificates {
            client_tls: tls_client.map(|(client_cert, client_key)| redis::ClientTlsConfig {
                client_cert,
                client_key,
            }),
            root_cert: options.tls_root.clone(),
        };
        // A server that waits for replicas answers after that.
        let timeout = options.timeout + options.confirm_within;
        let cluster = Arc::new(Cluster::open(
            Dial { url, tls, timeout, whom: Mutex::default() },
            options.clone(),
        )?);
        let tracker = Tracker::start(cluster.clone(), value_prefix(&name), options.lease);
        Ok(Redis {
            cluster,
            options: options.clone(),
            client: random_name()?,
            lanes: Mutex::new(Lanes { free: (0..LANES).rev().collect(), sequence: 0 }),
            lane_freed: parking_lot::Condvar::new(),
            name,
            tracker,
            silent: Mutex::default(),
        })
    }

    /// Requests sent to servers so far, repetitions included.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.cluster.requests()
    }

    fn lane(&self) -> Lane<'_> {
        let mut lanes = self.lanes.lock();
        loop {
            if let Some(number) = lanes.free.pop() {
                lanes.sequence += 1;
                return Lane { engine: self, number, sequence: lanes.sequence };
            }
            self.lane_freed.wait(&mut lanes);
        }
    }

    fn values_key(&self, partition: u16) -> String {
        format!("{}{partition:04x}}}", value_prefix(&self.name))
    }

    fn order_key(&self, partition: u16) -> String {
        format!("fbk:{}:{{{partition:04x}}}", self.name)
    }

    /// A key of a partition under which nothing is, if replicas must confirm.
    fn confirm(&self, partition: u16) -> Option<String> {
        (self.options.replicas > 0).then(|| self.mark_key(partition))
    }

    fn mark_key(&self, partition: u16) -> String {
        format!("fbt:{}:{{{partition:04x}}}:mark", self.name)
    }

    /// Whether the servers have what it takes to keep what is acknowledged: replicas that take over must
    /// have confirmed it, and there must be so many. Those that are about to come are waited for.
    ///
    /// # Errors
    /// `Refused`, and what to do; if no server answers.
    pub fn check_replicas(&self) -> Result<(), EngineError> {
        let mut timeout = TimeLimits::until(Instant::now() + self.options.give_up);
        loop {
            let found = self.cluster.replicas()?;
            match found.judge(self.options.replicas) {
                Ok(()) => {
                    found.warn_of_fewer(self.options.replicas);
                    return self.try_to_mark();
                }
                Err((server, why)) if self.options.replicas == 0 || !timeout.pause() => {
                    return Err(route::refused(&server, why));
                }
                Err(_) => {}
            }
        }
    }

    /// Whether the login may do what a confirmation takes.
    fn try_to_mark(&self) -> Result<(), EngineError> {
        if self.options.replicas > 0 {
            for primary in &self.cluster.topology().primaries {
                if let Some(key) = self.any_key_of(primary) {
                    self.cluster.may(primary, &link::mark(&key, false))?;
                }
            }
        }
        Ok(())
    }

    fn scan_command(
        &self,
        partition: u16,
        bounds: &Bounds,
        guard: Option<&Key>,
        lease: &str,
    ) -> Cmd {
        let mut command =
            function("scan", &[self.values_key(partition), self.order_key(partition)]);
        command.arg(&bounds.low).arg(&bounds.high).arg(bounds.limit);
        command.arg(guard.map_or(&[][..], Key::bytes)).arg(lease);
        command
    }

    fn scan_guarded(
        &self,
        partition: u16,
        bounds: &Bounds,
        guard: Option<&Key>,
    ) -> Result<Option<Page>, EngineError> {
        let mut stopped = Stopped::new(self.options.give_up);
        loop {
            match self.try_scan(partition, bounds, guard, "")? {
                Answer::Done(page) => return Ok(page),
                Answer::Leased(lease) => self.meet(partition, &lease, &mut stopped)?,
                Answer::Lost => return Err(nonsense()),
            }
        }
    }

    /// One attempt of a scan, by whoever has `lease`.
    fn try_scan(
        &self,
        partition: u16,
        bounds: &Bounds,
        guard: Option<&Key>,
        lease: &str,
    ) -> Result<Answer<Option<Page>>, EngineError> {
        let command = self.scan_command(partition, bounds, guard, lease);
        let confirm = self.confirm(partition);
        let confirm = confirm.as_deref();
        let value = self.cluster.call(slot_of(partition), confirm, &|_| command.clone())?;
        match lease::refusal(&value)? {
            Some(refusal) => Ok(refusal),
            None => page(value).map(Answer::Done),
        }
    }

    /// One attempt of a transaction within `partition`, by whoever has `lease`.
    pub(in crate::engine) fn try_execute(
        &self,
        partition: u16,
        transaction: &MiniTransaction,
        lease: &str,
    ) -> Result<Answer<Outcome>, EngineError> {
        let mut keys = vec![self.values_key(partition), self.order_key(partition)];
        let lane = (!transaction.write.is_empty()).then(|| self.lane());
        let name = if lane.is_some() { "execute" } else { "read" };
        if let Some(Lane { number, .. }) = lane {
            keys.push(format!("fbt:{}:{{{partition:04x}}}:{}:{number}", self.name, self.client));
        }
        let sequence = lane.as_ref().map_or(0, |lane| lane.sequence);
        let confirm = self.confirm(partition);
        let value = self.cluster.call(slot_of(partition), confirm.as_deref(), &|again| {
            let mut command = function(name, &keys);
            command.arg(sequence).arg(i32::from(again)).arg(lease);
            add_arguments(&mut command, transaction);
            command
        })?;
        if let Some(refusal) = lease::refusal(&value)? {
            return Ok(refusal);
        }
        let Value::Array(mut values) = value else { return Err(nonsense()) };
        match values.first() {
            Some(Value::Int(0)) => Ok(Answer::Done(Outcome::Conflict)),
            Some(Value::Int(_)) => {
                let reads = values.drain(1..).map(bytes).collect::<Result<Vec<_>, _>>()?;
                match reads.len() == transaction.read.len() {
                    true => Ok(Answer::Done(Outcome::Committed(reads))),
                    false => Err(nonsense()),
                }
            }
            _ => Err(nonsense()),
        }
    }
}

impl Engine for Redis {
    fn execute(&self, transaction: &MiniTransaction) -> Result<Outcome, EngineError> {
        let Some(partition) = transaction.partition() else {
            return Ok(Outcome::Committed(Vec::new()));
        };
        if !transaction.in_one_partition() {
            return Err(EngineError::SpansPartitions);
        }
        let mut stopped = Stopped::new(self.options.give_up);
        loop {
            match self.try_execute(partition, transaction, "")? {
                Answer::Done(outcome) => return Ok(outcome),
                Answer::Leased(lease) => self.meet(partition, &lease, &mut stopped)?,
                Answer::Lost => return Err(nonsense()),
            }
        }
    }

    fn scan(
        &self,
        partition: u16,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Page, EngineError> {
        let bounds = Bounds::new(prefix, after, limit);
        Ok(self.scan_guarded(partition, &bounds, None)?.unwrap_or_default())
    }

    fn scan_unless(
        &self,
        guard: &Key,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Option<Page>, EngineError> {
        self.scan_guarded(guard.partition(), &Bounds::new(prefix, after, limit), Some(guard))
    }

    fn sweep(&self, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, Vec<u8>)>, EngineError> {
        sweep(self, after, limit)
    }

    fn spans_partitions(&self) -> bool {
        false
    }

    fn next_partition(&self, from: u16) -> Result<Option<u16>, EngineError> {
        let mut from = from;
        loop {
            let end = from.saturating_add(PROBES);
            if let Some(first) = self.partitions(from..end)?.first() {
                return Ok(Some(*first));
            }
            if end == u16::MAX {
                return Ok(self.present(&[end])?.pop());
            }
            from = end;
        }
    }

    fn partitions(&self, range: Range<u16>) -> Result<Vec<u16>, EngineError> {
        let all: Vec<u16> = range.collect();
        let mut found = Vec::new();
        for part in all.chunks(MAX_PROBES) {
            found.extend(self.present(part)?);
        }
        Ok(found)
    }

    fn count(&self, partition: u16, prefix: &[u8]) -> Result<u64, EngineError> {
        let bounds = Bounds::new(prefix, None, 0);
        let mut count = redis::cmd("ZLEXCOUNT");
        count.arg(self.order_key(partition)).arg(&bounds.low).arg(&bounds.high);
        let confirm = self.confirm(partition);
        match self.cluster.call(slot_of(partition), confirm.as_deref(), &|_| count.clone())? {
            Value::Int(count) => Ok(u64::try_from(count).unwrap_or(0)),
            _ => Err(nonsense()),
        }
    }

    /// What this can promise depends on how the servers keep their log:
    /// - `appendfsync always`: all that was acknowledged is on the primaries' disks already;
    /// - `everysec`: waits until every primary has written and synced its log: a second at most where the
    ///   server can be asked for it (`WAITAOF`, from Redis 7.2 on), else one to three;
    /// - no log: an error, unless [`RedisOptions::memory_only`].
    ///
    /// With replicas it says nothing about *their* disks: a fail-over that follows a loss of power
    /// of the primary alone relies on the replica's memory, as `WAIT` does.
    fn sync(&self) -> Result<(), EngineError> {
        for primary in &self.cluster.topology().primaries {
            self.sync_one(primary)?;
        }
        Ok(())
    }

    fn identify(&self, key: &Key) -> Result<(), EngineError> {
        // Whoever has a lease there gives it back.
        let read = MiniTransaction::reading(vec![key.clone()]);
        self.execute(&read)?;
        let partition = key.partition();
        let mut command =
            function("read", &[self.values_key(partition), self.order_key(partition)]);
        command.arg(0).arg(0).arg("");
        add_arguments(&mut command, &read);
        self.cluster.identify(slot_of(partition), &command)
    }

    fn watch(&self, partition: u16) -> Option<Stamp> {
        self.tracker.stamp(partition, slot_of(partition))
    }
}

impl Redis {
    /// Which of these partitions have keys: one request for each server.
    fn present(&self, partitions: &[u16]) -> Result<Vec<u16>, EngineError> {
        let probe = |partition: &u16| {
            let mut exists = redis::cmd("EXISTS");
            exists.arg(self.values_key(*partition));
            (slot_of(*partition), exists)
        };
        let probes: Vec<(u16, Cmd)> = partitions.iter().map(probe).collect();
        let found = self.cluster.call_each(&probes)?;
        let there = partitions.iter().zip(found).filter(|(_, value)| *value == Value::Int(1));
        Ok(there.map(|(partition, _)| *partition).collect())
    }

    /// A key of a server under which nothing is, if it has any slot.
    fn any_key_of(&self, primary: &url::Address) -> Option<String> {
        let topology = self.cluster.topology();
        let theirs = |partition: &u16| topology.owner(slot_of(*partition)) == Some(primary);
        (0..=u16::MAX).find(theirs).map(|partition| self.mark_key(partition))
    }

    /// Waits until what the server has written to its log is on its disk.
    fn sync_one(&self, primary: &url::Address) -> Result<(), EngineError> {
        let mut timeout = TimeLimits::until(Instant::now() + self.options.give_up);
        let mut since = None;
        loop {
            let log = self.cluster.log_state(primary)?;
            if !log.enabled {
                return match self.options.memory_only {
                    true => Ok(()),
                    false => Err(route::refused(primary, "it keeps no log (appendonly no)".into())),
                };
            }
            if log.failing {
                return Err(route::refused(primary, "it can't write its log".into()));
            }
            if log.synced_at_once {
                return Ok(());
            }
            if link::waits_for_its_log(log.version)
                && let Some(key) = self.any_key_of(primary)
            {
                // All that was written before comes before the mark in the log.
                if self.cluster.has_logged(primary, &link::mark(&key, true))? {
                    return Ok(());
                }
                if !timeout.pause() {
                    let reason = format!("{primary} did not sync its log");
                    return Err(EngineError::Unknown { reason });
                }
                continue;
            }
            // Nothing waits to be written now; the sync that is due within a second of that has
            // begun once its clock, of whole seconds, shows two more, and has ended if none runs.
            match since {
                None if log.unwritten == 0 => since = Some(log.clock),
                Some(from) if log.clock >= from + 2 && log.syncing == 0 => return Ok(()),
                _ => {}
            }
            if !timeout.pause() {
                let reason = format!("{primary} did not sync its log");
                return Err(EngineError::Unknown { reason });
            }
        }
    }
}

/// The bounds of a scan, as `ZRANGEBYLEX` wants them.
struct Bounds {
    low: Vec<u8>,
    high: Vec<u8>,
    /// -1 for none.
    limit: i64,
}

impl Bounds {
    fn new(prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Self {
        let low = match after {
            Some(after) if after >= prefix => [b"(", after].concat(),
            _ => [b"[", prefix].concat(),
        };
        let high = match successor(prefix) {
            Some(end) => [b"(", end.as_slice()].concat(),
            None => b"+".to_vec(),
        };
        // Beyond this no partition can be held in memory anyway.
        let limit = i64::try_from(limit).ok().filter(|limit| *limit < 1 << 32).unwrap_or(-1);
        Bounds { low, high, limit }
    }
}

/// The server-side functions.
fn library() -> String {
    include_str!("library.lua").replace("@LIBRARY@", LIBRARY)
}

fn function(name: &str, keys: &[String]) -> Cmd {
    let reads = matches!(name, "read" | "scan" | "lease");
    let mut command = redis::cmd(if reads { "FCALL_RO" } else { "FCALL" });
    command.arg(format!("{LIBRARY}_{name}")).arg(keys.len()).arg(keys);
    command
}

fn add_arguments(command: &mut Cmd, transaction: &MiniTransaction) {
    command.arg(transaction.compare.len());
    for compare in &transaction.compare {
        let (kind, value): (&str, &[u8]) = match &compare.expect {
            Expect::Absent => ("A", &[]),
            Expect::Present => ("P", &[]),
            Expect::Value(value) => ("V", value),
            Expect::Prefix(value) => ("S", value),
        };
        command.arg(compare.key.bytes()).arg(kind).arg(value);
    }
    command.arg(transaction.read.len());
    for key in &transaction.read {
        command.arg(key.bytes());
    }
    add_writes(command, &transaction.write);
}

fn add_writes(command: &mut Cmd, writes: &[Write]) {
    command.arg(writes.len());
    for write in writes {
        match write {
            Write::Put(key, value) => command.arg(key.bytes()).arg("P").arg(value.as_slice()),
            Write::Delete(key) => command.arg(key.bytes()).arg("D").arg(""),
        };
    }
}

/// Keys that hold values begin with this, up to the partition in the hash tag.
fn value_prefix(name: &str) -> String {
    format!("fbv:{name}:{{")
}

fn slot_of(partition: u16) -> u16 {
    topology::slot(format!("{partition:04x}").as_bytes())
}

fn bytes(value: Value) -> Result<Option<Vec<u8>>, EngineError> {
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => Ok(Some(bytes)),
        // The library turns the word OK into this, wherever it stands alone.
        Value::Okay => Ok(Some(b"OK".to_vec())),
        Value::SimpleString(text) => Ok(Some(text.into_bytes())),
        _ => Err(nonsense()),
    }
}

/// The answer to a scan; `None` if the guard was there.
fn page(value: Value) -> Result<Option<Page>, EngineError> {
    let Value::Array(values) = value else { return Err(nonsense()) };
    let mut values = values.into_iter();
    let more = match values.next() {
        Some(Value::Int(-1)) => return Ok(None),
        Some(Value::Int(more)) => more == 1,
        _ => return Err(nonsense()),
    };
    let mut items = Vec::with_capacity(values.len() / 2);
    while let Some(key) = values.next() {
        let (key, value) = (bytes(key)?, bytes(values.next().unwrap_or(Value::Nil))?);
        items.push(key.zip(value).ok_or_else(nonsense)?);
    }
    Ok(Some(Page { items, more }))
}

fn nonsense() -> EngineError {
    EngineError::Io("the metadata server answers nonsense".into())
}

/// By what the servers tell clients apart.
fn random_name() -> Result<String, EngineError> {
    let mut number = [0u8; 8];
    let fill = rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty());
    fill.map_err(|error| EngineError::Io(Box::new(std::io::Error::from(error))))?;
    Ok(format!("{:016x}", u64::from_ne_bytes(number)))
}
