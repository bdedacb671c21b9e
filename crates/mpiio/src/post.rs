//! Envelopes between processes over MPI, and the two threads of a process: one takes envelopes, one
//! does what is to be done to files while no call waits.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use crate::bell::Bell;
use crate::group::Group;
use crate::lanes::Lanes;
use crate::mpi::{Mpi, Sending};
use crate::wire::{Envelope, Wire};

/// The longest message: MPI counts bytes with an int.
const MAX_BYTES: usize = 256 << 20;
/// How often the thread looks for messages that nobody on the node has announced: from other
/// nodes, and what MPI itself has kept back.
const NEAR: Duration = Duration::from_millis(5);
const FAR: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(1)];

/// Locks; who panicked meanwhile has ended the process.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The post office of a process.
pub struct Post {
    /// The MPI that it goes through.
    pub mpi: Mpi,
    bell: Option<Bell>,
    /// Whether all processes are on this node.
    alone: bool,
    sending: Mutex<Vec<Sending>>,
    groups: RwLock<HashMap<u64, Arc<Group>>>,
    /// Those whose envelopes go through memory.
    near: RwLock<Vec<Arc<Group>>>,
    work: Mutex<VecDeque<u64>>,
    worked: Condvar,
    stopped: AtomicBool,
}

impl Post {
    /// A post office in a world of so many processes.
    pub fn new(mpi: Mpi, bell: Option<Bell>, size: usize) -> Self {
        let alone = bell.as_ref().is_some_and(|bell| bell.reach() == size);
        Self {
            mpi,
            bell,
            alone,
            sending: Mutex::default(),
            groups: RwLock::default(),
            near: RwLock::default(),
            work: Mutex::default(),
            worked: Condvar::new(),
            stopped: AtomicBool::new(false),
        }
    }

    /// Messages for this group are handed to it from now on.
    pub fn register(&self, group: &Arc<Group>) {
        let mut groups = self.groups.write().unwrap_or_else(PoisonError::into_inner);
        groups.insert(group.id, Arc::clone(group));
        if group.lanes().is_some() {
            self.near.write().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(group));
        }
    }

    /// Messages for it are thrown away from now on.
    pub fn forget(&self, group: u64) {
        self.groups.write().unwrap_or_else(PoisonError::into_inner).remove(&group);
        self.near.write().unwrap_or_else(PoisonError::into_inner).retain(|it| it.id != group);
    }

    fn near(&self) -> Vec<Arc<Group>> {
        self.near.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the bells reach all of these.
    pub fn reaches(&self, ranks: &[i32]) -> bool {
        self.bell.as_ref().is_some_and(|bell| ranks.iter().all(|rank| bell.reaches(*rank)))
    }

    /// Wakes a process for what lies in memory.
    pub fn ring(&self, to: i32) {
        if let Some(bell) = &self.bell {
            bell.ring(to);
        }
    }

    /// Takes what has come through memory, and moves on what had no room there. Whether there was
    /// anything.
    fn sweep(&self) -> bool {
        let mut any = false;
        for group in self.near() {
            let Some(lanes) = group.lanes() else { continue };
            let (envelopes, wanted) = lanes.take();
            for to in wanted.into_iter().chain(lanes.flush()) {
                any = true;
                self.ring(group.ranks()[to]);
            }
            for (from, bytes) in envelopes {
                any = true;
                self.deliver(group.ranks()[from], &bytes);
            }
        }
        any
    }

    fn group(&self, id: u64) -> Option<Arc<Group>> {
        self.groups.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// How many bytes come before an envelope's own: whether more of it follows.
    pub const FLAG: usize = 1;

    /// The head of an envelope: what follows can be appended.
    pub fn head(group: u64, envelope: &Envelope) -> Vec<u8> {
        let mut bytes = vec![0];
        group.put(&mut bytes);
        envelope.put(&mut bytes);
        bytes
    }

    /// Sends an envelope to a process of the world. Those to one process arrive in order if they are
    /// sent in order.
    pub fn send(&self, to: i32, envelope: Vec<u8>) {
        if envelope.len() <= MAX_BYTES {
            return self.send_one(to, envelope);
        }
        let chunks = envelope[1..].chunks(MAX_BYTES - 1);
        let last = chunks.len() - 1;
        for (at, chunk) in chunks.enumerate() {
            let mut bytes = Vec::with_capacity(chunk.len() + 1);
            bytes.push(u8::from(at < last));
            bytes.extend_from_slice(chunk);
            self.send_one(to, bytes);
        }
    }

    fn send_one(&self, to: i32, bytes: Vec<u8>) {
        let sending = self.mpi.send(to, bytes);
        if let Some(sending) = sending.filter(|sending| !self.mpi.sent(sending)) {
            lock(&self.sending).push(sending);
            // It may need the thread's help to get on its way.
            if let Some(bell) = &self.bell {
                bell.wake();
            }
        }
        if let Some(bell) = &self.bell {
            bell.announce(to);
        }
    }

    /// Work of a group that no call of its own does.
    pub fn hand_over(&self, group: u64) {
        lock(&self.work).push_back(group);
        self.worked.notify_one();
    }

    /// Does the work of groups until the end.
    pub fn work(&self) {
        let mut work = lock(&self.work);
        while !self.stopped.load(Ordering::SeqCst) {
            if let Some(id) = work.pop_front() {
                drop(work);
                if let Some(group) = self.group(id) {
                    group.do_jobs();
                }
                work = lock(&self.work);
            } else {
                work = self.worked.wait(work).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Takes envelopes until the end.
    pub fn serve(&self) {
        let mut parts: HashMap<i32, Vec<u8>> = HashMap::new();
        let mut received = 0u32;
        let mut idle = 0u32;
        while !self.stopped.load(Ordering::SeqCst) {
            let swept = self.sweep();
            if let Some((from, bytes)) = self.mpi.receive() {
                let near = self.bell.as_ref().is_some_and(|bell| bell.reaches(from));
                received = received.wrapping_add(u32::from(near));
                idle = 0;
                self.assemble(&mut parts, from, bytes);
                continue;
            }
            if swept {
                idle = 0;
                continue;
            }
            let open = self.still_sending();
            let missing = || {
                self.bell
                    .as_ref()
                    .is_some_and(|it| it.announced().wrapping_sub(received) as i32 > 0)
            };
            idle = idle.saturating_add(1);
            if open || missing() {
                if idle < 1000 {
                    std::thread::yield_now();
                } else {
                    std::thread::sleep(FAR[0]);
                }
                continue;
            }
            let most = if self.alone { NEAR } else { FAR[usize::from(idle > 200)] };
            match &self.bell {
                Some(bell) => bell.sleep(most, || {
                    missing()
                        || self.near().iter().any(|it| it.lanes().is_some_and(Lanes::is_ready))
                        || self.stopped.load(Ordering::SeqCst)
                        || !lock(&self.sending).is_empty()
                }),
                None => std::thread::sleep(most),
            }
        }
    }

    fn assemble(&self, parts: &mut HashMap<i32, Vec<u8>>, from: i32, bytes: Vec<u8>) {
        let Some((more, rest)) = bytes.split_first() else { return };
        if *more != 0 {
            return parts.entry(from).or_default().extend_from_slice(rest);
        }
        match parts.remove(&from) {
            None => self.deliver(from, rest),
            Some(mut all) => {
                all.extend_from_slice(rest);
                self.deliver(from, &all);
            }
        }
    }

    fn deliver(&self, from: i32, mut bytes: &[u8]) {
        let Some(id) = u64::take(&mut bytes) else { return };
        // What comes after a close is of no use to anybody.
        let Some(group) = self.group(id) else { return };
        match Envelope::take(&mut bytes) {
            Some(envelope) => group.deliver(from, envelope, bytes),
            None => crate::say(&format!("process {from} sent what is no envelope")),
        }
    }

    fn still_sending(&self) -> bool {
        let mut sending = lock(&self.sending);
        sending.retain(|sending| !self.mpi.sent(sending));
        !sending.is_empty()
    }

    /// Ends the threads, once all that was to be sent is.
    pub fn stop(&self) {
        while !lock(&self.sending).is_empty() {
            std::thread::sleep(Duration::from_micros(100));
        }
        self.stopped.store(true, Ordering::SeqCst);
        drop(lock(&self.work));
        self.worked.notify_all();
        if let Some(bell) = &self.bell {
            bell.wake();
        }
    }
}
