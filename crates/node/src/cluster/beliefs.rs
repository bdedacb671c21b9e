//! What this node's kernel may keep of names and attributes, although others use them: what lies in
//! partitions whose leases this node has, as long as it has them. [`grants`] decides.
//!
//! [`grants`]: forebay_core::cluster::grants

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use forebay_core::cluster::grants::{Fact, Grants, Leave, Terms};
use forebay_core::unit::Tick;
use forebay_meta::{FileKind, Ino, Reliant, Tenure};
use parking_lot::Mutex;

use crate::faces::node_id;
use crate::kernel::Kernel;
use crate::namespace::Stat;
use crate::node::Node;

/// What the kernel may have.
pub(crate) struct Beliefs {
    this: Weak<Beliefs>,
    grants: Mutex<Grants>,
    started: Instant,
    kernel: OnceLock<Arc<dyn Kernel>>,
    /// Nothing is granted, as the node is about to be handed on. Changed with `grants` locked.
    stopped: AtomicBool,
}

/// The longest that the kernel is waited for before a node is handed on.
const LET_GO: Duration = Duration::from_secs(1);

impl Beliefs {
    pub(super) fn new() -> Arc<Self> {
        Arc::new_cyclic(|this| Beliefs {
            this: this.clone(),
            grants: Mutex::new(Grants::new(Terms::default())),
            started: Instant::now(),
            kernel: OnceLock::new(),
            stopped: AtomicBool::new(false),
        })
    }

    /// Has the kernel ask for all that it keeps, and lets it keep nothing more, while its requests are
    /// still served: later it may not listen, as programs hold locks there that wait for the next
    /// daemon.
    pub(crate) fn stop(&self) {
        let until = Instant::now() + LET_GO;
        loop {
            let leases = {
                let grants = self.grants.lock();
                self.stopped.store(true, Ordering::Release);
                grants.leases()
            };
            let left = |(partition, lease): &(u16, u64)| !self.let_go(*partition, *lease, false);
            if leases.iter().filter(|lease| left(lease)).count() == 0 || Instant::now() >= until {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Takes [`Beliefs::stop`] back.
    pub(crate) fn go_on(&self) {
        let _grants = self.grants.lock();
        self.stopped.store(false, Ordering::Release);
    }

    pub(crate) fn attach(&self, kernel: Arc<dyn Kernel>) {
        // A second one is complained about elsewhere.
        let _ = self.kernel.set(kernel);
    }

    fn now(&self) -> Tick {
        Tick(nanoseconds(self.started.elapsed()))
    }

    fn grant(
        &self,
        ground: Ground,
        fact: Fact,
        limit: Duration,
        looked_up: bool,
    ) -> Option<Belief> {
        let Ground { partition, tenure, since } = ground;
        let valid = limit.min(tenure.left.saturating_sub(since.elapsed()));
        let (key, time) = ((partition, tenure.lease), nanoseconds(valid));
        let beliefs = self.this.upgrade()?;
        let mut grants = self.grants.lock();
        let granted = !self.stopped.load(Ordering::Acquire)
            && grants.grant(self.now(), key, fact.clone(), time, looked_up);
        drop(grants);
        granted.then(|| Belief { beliefs, key, fact, valid })
    }
}

impl Reliant for Beliefs {
    fn let_go(&self, partition: u16, lease: u64, for_good: bool) -> bool {
        let leave = self.grants.lock().leave(self.now(), (partition, lease), for_good);
        match leave {
            Leave::Free => true,
            Leave::Wait => false,
            Leave::Tell(number, facts) => {
                let (Some(kernel), Some(beliefs)) = (self.kernel.get(), self.this.upgrade()) else {
                    return false;
                };
                let told = move || beliefs.grants.lock().told(partition, number);
                kernel.expire(facts, Box::new(told));
                false
            }
            Leave::Force(number, facts) => {
                let done = self.kernel.get().is_some_and(|kernel| kernel.expire_at_once(&facts));
                if done {
                    self.grants.lock().told(partition, number);
                }
                done
            }
        }
    }
}

/// What a look that is about to be made can be relied on by.
#[derive(Debug, Clone, Copy)]
pub struct Ground {
    partition: u16,
    tenure: Tenure,
    since: Instant,
}

/// Something that the kernel is told and may keep. To be dropped when it was told.
pub struct Belief {
    beliefs: Arc<Beliefs>,
    key: (u16, u64),
    fact: Fact,
    valid: Duration,
}

impl Belief {
    /// For how long.
    #[must_use]
    pub fn valid(&self) -> Duration {
        self.valid
    }
}

impl Drop for Belief {
    fn drop(&mut self) {
        let now = self.beliefs.now();
        self.beliefs.grants.lock().sent(now, self.key, &self.fact, nanoseconds(self.valid));
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Node {
    /// Whether what is looked at from now on of an inode, and of the entries of a directory, can be
    /// kept by the kernel in a cluster. To be asked before the look.
    #[must_use]
    pub fn ground(&self, ino: Ino) -> Option<Ground> {
        self.cluster.as_ref()?;
        let tenure = self.meta.tenure(ino)?;
        Some(Ground { partition: ino.partition(), tenure, since: Instant::now() })
    }

    /// As [`Node::ground`] for the inode that a name is believed to mean, if it is kept elsewhere than
    /// its directory.
    #[must_use]
    pub fn ground_behind(&self, dir: Ino, name: &[u8]) -> Option<Ground> {
        self.cluster.as_ref()?;
        let behind = self.meta.lookup_believed(dir, name)?;
        (behind.ino.partition() != dir.partition()).then(|| self.ground(behind.ino)).flatten()
    }

    /// Whether the kernel may keep what a directory has under a name, or that it has nothing there.
    /// `looked_up` says that it may have been asked for without the directory's lock.
    #[must_use]
    pub fn keep_name(
        &self,
        ground: Ground,
        (dir, name): (Ino, &[u8]),
        stat: Option<&Stat>,
        limit: Duration,
        looked_up: bool,
    ) -> Option<Belief> {
        let cluster = self.cluster.as_ref()?;
        // Entries of a directory that was split are kept elsewhere.
        if ground.partition != dir.partition() || !self.meta.is_whole(dir) {
            return None;
        }
        match stat.is_some_and(|stat| stat.attr.kind == FileKind::Directory) {
            true => {
                let fact = Fact::Directory(dir.0, name.into());
                cluster.beliefs.grant(ground, fact, limit, looked_up)
            }
            false => {
                let fact = Fact::Name(dir.0, name.into());
                cluster.beliefs.grant(ground, fact, limit, false)
            }
        }
    }

    /// Whether the kernel may keep attributes.
    #[must_use]
    pub fn keep_attributes(&self, ground: Ground, stat: &Stat, limit: Duration) -> Option<Belief> {
        let cluster = self.cluster.as_ref()?;
        if ground.partition != stat.ino.partition() {
            return None;
        }
        let record = self.meta.get(stat.ino).ok()?;
        // Another node has what its programs write, and a directory that was split its times elsewhere.
        let is_here = match record.is_directory() {
            true => self.meta.is_whole(stat.ino),
            false => !record.links.is_empty() && !self.is_elsewhere(&record),
        };
        let fact = Fact::Attributes(node_id(stat.ino, stat.face));
        is_here.then(|| cluster.beliefs.grant(ground, fact, limit, false)).flatten()
    }
}
