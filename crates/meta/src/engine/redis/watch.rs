//! Learns what others change: one connection to each primary on which the server tells every key
//! of ours that changes (`CLIENT TRACKING ON BCAST`, RESP3).
//!
//! Tracking ends silently with its connection, and a primary that takes over knows nothing of it.
//! So nothing is believed without proof: a partition has a [`Stamp`] only while the primary of its
//! slot is tracked, has answered within the lease, and sees the same cluster as we do. Whenever a
//! connection is lost, made anew, or the cluster changes, the generation does, and with it every
//! stamp.
//!
//! What nodes say of themselves every second is not heard: if each of N nodes were told of each
//! heartbeat, the server would send N x N messages a second. Partitions of that kind have no stamp.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock};
use redis::{Connection, PushKind, Value};

use super::route::{self, Cluster};
use super::topology::Topology;
use super::url::Address;
use crate::clock::BootInstant;
use crate::engine::Stamp;
use crate::keys::NODES;

/// The key by whose changes the holder of a lease hears that others want it: that of the values, and
/// this. Nothing is kept under it.
pub(super) const WANT: &str = ":want";

const PARTITIONS: usize = 1 << 16;
/// Partitions are named by four hexadecimal digits; by the first of them it is told what is heard.
const DIGIT_SHIFT: u32 = 12;
/// A server that can't be tracked is asked again after this.
const RETRY: Duration = Duration::from_millis(50);

struct State {
    cluster: Arc<Cluster>,
    /// What the names of our keys begin with, up to the partition.
    prefix: String,
    lease: Duration,
    /// Counts whatever may have made us deaf.
    generation: AtomicU64,
    /// When something may last have made us deaf, in nanoseconds since the start.
    deaf: AtomicU64,
    started: Instant,
    /// Counts the changes of each partition.
    changes: Vec<AtomicU64>,
    /// When the last of them was heard, in nanoseconds since the start; 0 if none was.
    changed: Vec<AtomicU64>,
    tracked: RwLock<HashMap<Address, Tracked>>,
    /// Partitions whose leases somebody wants, until they are looked at.
    wanted: Mutex<BTreeSet<u16>>,
    want: Condvar,
    stop: AtomicBool,
}

/// Whether changes of a partition are heard.
fn is_heard(partition: u16) -> bool {
    partition >> DIGIT_SHIFT != NODES >> DIGIT_SHIFT
}

/// What the names of all keys begin with whose changes are heard.
fn heard_prefixes(prefix: &str) -> impl Iterator<Item = String> {
    let digits = (0..=u16::MAX >> DIGIT_SHIFT).filter(|digit| is_heard(digit << DIGIT_SHIFT));
    digits.map(move |digit| format!("{prefix}{digit:x}"))
}

/// A primary that tells us what changes there.
struct Tracked {
    /// It has told us all up to this moment at least.
    heard: BootInstant,
    /// The cluster as it saw it then.
    view: Arc<Topology>,
}

/// Tracks all primaries of a cluster, from threads of its own.
pub(super) struct Tracker {
    state: Arc<State>,
    threads: Arc<Mutex<Vec<std::thread::JoinHandle<()>>>>,
    overseer: Option<std::thread::JoinHandle<()>>,
}

impl Tracker {
    pub fn start(cluster: Arc<Cluster>, prefix: String, lease: Duration) -> Self {
        let state = Arc::new(State {
            cluster,
            prefix,
            lease,
            generation: AtomicU64::new(0),
            deaf: AtomicU64::new(0),
            started: Instant::now(),
            changes: (0..PARTITIONS).map(|_| AtomicU64::new(0)).collect(),
            changed: (0..PARTITIONS).map(|_| AtomicU64::new(0)).collect(),
            tracked: RwLock::default(),
            wanted: Mutex::default(),
            want: Condvar::new(),
            stop: AtomicBool::new(false),
        });
        let threads = Arc::new(Mutex::new(Vec::new()));
        let oversee = {
            let (state, threads) = (state.clone(), threads.clone());
            move || state.oversee(&threads)
        };
        let overseer = std::thread::Builder::new().name("meta-watch".into()).spawn(oversee);
        if let Err(error) = &overseer {
            tracing::warn!("changes by other nodes can't be watched, nothing is cached: {error}");
        }
        Tracker { state, threads, overseer: overseer.ok() }
    }

    pub fn stamp(&self, partition: u16, slot: u16) -> Option<Stamp> {
        self.state.stamp(partition, slot)
    }

    /// Since when nobody has changed a partition, nor shown in it that he lives, as far as is known for
    /// certain; `None` while something might go unnoticed.
    pub fn unchanged_since(&self, partition: u16, slot: u16) -> Option<Instant> {
        self.stamp(partition, slot)?;
        let state = &self.state;
        let changed = state.changed[usize::from(partition)].load(Ordering::Acquire);
        let since = changed.max(state.deaf.load(Ordering::Acquire));
        Some(state.started + Duration::from_nanos(since))
    }

    /// What is known of a partition does not hold any more, whatever was heard of it.
    pub fn touch(&self, partition: u16) {
        self.state.changes[usize::from(partition)].fetch_add(1, Ordering::AcqRel);
    }

    /// Waits until others want leases, no longer than `limit`; of which partitions.
    pub fn wanted(&self, limit: Duration) -> BTreeSet<u16> {
        let mut wanted = self.state.wanted.lock();
        if wanted.is_empty() {
            self.state.want.wait_for(&mut wanted, limit);
        }
        std::mem::take(&mut *wanted)
    }

    /// Ends a wait of [`Tracker::wanted`].
    pub fn wake(&self) {
        let _wanted = self.state.wanted.lock();
        self.state.want.notify_all();
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Release);
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in self.overseer.take().into_iter().chain(threads) {
            // A thread that panicked has nothing to tell any more.
            let _ = thread.join();
        }
    }
}

impl State {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn stamp(&self, partition: u16, slot: u16) -> Option<Stamp> {
        if !is_heard(partition) {
            return None;
        }
        // Read first: what happens after this makes the stamp differ from a later one.
        let generation = self.generation.load(Ordering::Acquire);
        let change = self.changes[usize::from(partition)].load(Ordering::Acquire);
        let known = self.cluster.topology();
        let owner = known.owner(slot)?;
        let tracked = self.tracked.read();
        let theirs = tracked.get(owner)?;
        let confirmed = theirs.heard.elapsed() < self.lease && *theirs.view == *known;
        confirmed.then_some(Stamp { generation, change })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Changes may have gone unnoticed.
    fn deafened(&self) {
        self.deaf.store(self.now(), Ordering::Release);
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    fn forget(&self, address: &Address) {
        self.tracked.write().remove(address);
        self.deafened();
    }

    /// Sees to it that every primary has its thread.
    fn oversee(self: &Arc<Self>, threads: &Mutex<Vec<std::thread::JoinHandle<()>>>) {
        let mut followed: HashMap<Address, Arc<AtomicBool>> = HashMap::new();
        while !self.stopped() {
            let topology = self.cluster.topology();
            followed.retain(|address, running| {
                running.load(Ordering::Acquire) && topology.primaries.contains(address)
            });
            for address in &topology.primaries {
                if followed.contains_key(address) {
                    continue;
                }
                let running = Arc::new(AtomicBool::new(true));
                let (state, address, flag) = (self.clone(), address.clone(), running.clone());
                followed.insert(address.clone(), running);
                let follow = move || {
                    state.follow(&address);
                    state.forget(&address);
                    flag.store(false, Ordering::Release);
                };
                let thread = std::thread::Builder::new().name("meta-track".into()).spawn(follow);
                let mut threads = threads.lock();
                threads.retain(|thread| !thread.is_finished());
                threads.extend(thread.ok());
            }
            std::thread::sleep(RETRY);
        }
    }

    /// Listens to a primary until the connection fails or it is a primary no longer.
    fn follow(&self, address: &Address) {
        if let Err(reason) = self.listen(address) {
            tracing::debug!("changes at {address} are not heard: {reason}");
            self.forget(address);
            // The primary may be gone: a new view tells who has its slots.
            self.cluster.refresh();
            std::thread::sleep(RETRY);
        }
    }

    fn listen(&self, address: &Address) -> Result<(), String> {
        let dial = &self.cluster.dial;
        let link = dial.connect(address, true).map_err(|error| format!("{error:?}"))?;
        let mut connection = link.connection;
        let mut track = redis::cmd("CLIENT");
        track.arg("TRACKING").arg("ON").arg("BCAST");
        for prefix in heard_prefixes(&self.prefix) {
            track.arg("PREFIX").arg(prefix);
        }
        if let Value::ServerError(error) = self.ask(&mut connection, &track.get_packed_command())? {
            return Err(format!("{} {}", error.code(), error.details().unwrap_or_default()));
        }
        // What was cached before this was not watched.
        self.deafened();
        let (mut ping, mut nodes) = (redis::cmd("PING"), redis::cmd("CLUSTER"));
        nodes.arg("NODES");
        let (ping, nodes) = (ping.arg("x").get_packed_command(), nodes.get_packed_command());
        let mut beat = nodes.clone();
        while !self.stopped() {
            let asked = BootInstant::now();
            let answer = self.ask(&mut connection, &beat)?;
            let view =
                route::view(&answer, address, dial.url.tls).map_err(|error| error.to_string())?;
            if !self.heard(address, asked, view) {
                return Ok(());
            }
            self.listen_for(&mut connection, self.lease / 4)?;
            // After a read that ran out of time the library skips the next reply, taking it for
            // the late one: this gives it one to skip.
            beat = [ping.as_slice(), &nodes].concat();
        }
        Ok(())
    }

    /// Notes a sign of life. False if the server is no primary any more.
    fn heard(&self, address: &Address, asked: BootInstant, view: Topology) -> bool {
        let known = self.cluster.topology();
        if view != *known {
            self.deafened();
            self.cluster.refresh();
        }
        let stays = view.primaries.contains(address) || view.single;
        let tracked = Tracked { heard: asked, view: Arc::new(view) };
        self.tracked.write().insert(address.clone(), tracked);
        stays
    }

    /// Sends and takes pushes until the reply comes.
    fn ask(&self, connection: &mut Connection, request: &[u8]) -> Result<Value, String> {
        connection
            .set_read_timeout(Some(self.cluster.dial.timeout))
            .and_then(|()| connection.send_packed_command(request))
            .map_err(|error| error.to_string())?;
        loop {
            match connection.recv_response().map_err(|error| error.to_string())? {
                Value::Push { kind, data } => self.pushed(&kind, &data),
                value => return Ok(value),
            }
        }
    }

    /// Takes pushes for a while.
    fn listen_for(&self, connection: &mut Connection, time: Duration) -> Result<(), String> {
        let until = Instant::now() + time;
        loop {
            let left =
                until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            connection.set_read_timeout(Some(left)).map_err(|error| error.to_string())?;
            match connection.recv_response() {
                Ok(Value::Push { kind, data }) => self.pushed(&kind, &data),
                Ok(_) => return Err("a reply that nobody asked for".to_string()),
                Err(error) if error.is_timeout() => return Ok(()),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    fn pushed(&self, kind: &PushKind, data: &[Value]) {
        if *kind != PushKind::Invalidate {
            return;
        }
        let Some(Value::Array(keys)) = data.first() else {
            // All of the server's keys are gone.
            self.deafened();
            return;
        };
        for key in keys {
            match self.partition_of(key) {
                Some((partition, true)) => {
                    self.wanted.lock().insert(partition);
                    self.want.notify_all();
                }
                Some((partition, false)) => {
                    self.changed[usize::from(partition)].store(self.now(), Ordering::Release);
                    self.changes[usize::from(partition)].fetch_add(1, Ordering::AcqRel);
                }
                None => {
                    self.deafened();
                }
            }
        }
    }

    /// Of which partition a key is, and whether it is the one by which its lease is wanted.
    fn partition_of(&self, key: &Value) -> Option<(u16, bool)> {
        let Value::BulkString(bytes) = key else { return None };
        let (digits, rest) = bytes.strip_prefix(self.prefix.as_bytes())?.split_at_checked(4)?;
        let partition = u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        Some((partition, rest.ends_with(WANT.as_bytes())))
    }
}
