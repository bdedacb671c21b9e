//! What this node's kernel may keep of names and attributes, although others use them: what lies in
//! partitions whose leases this node has, as long as it has them. [`grants`] decides.
//!
//! [`grants`]: forebay_core::cluster::grants

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use forebay_core::cluster::grants::{Fact, Grants, Lease, Leave, Moving, Terms};
use forebay_core::unit::Tick;
use forebay_meta::{FileKind, Ino, Reliant, Tenure};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::error::Result;
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
        granted.then(|| Belief { beliefs, granted: Some((key, fact)), valid, moved: None })
    }

    /// The kernel is about to move what is under a name to another, in a directory that stands on such
    /// ground: what has to be kept until that was answered, and what is to be forgotten then.
    ///
    /// # Errors
    /// `ESTALE` if the kernel has to look the old name up before.
    fn rename(
        &self,
        (from_dir, from): (Ino, &[u8]),
        ground: Option<Ground>,
        (to_dir, to): (Ino, &[u8]),
    ) -> Result<(Option<Belief>, Option<Fact>)> {
        let lease = ground.map(|Ground { partition, tenure, since }| {
            let left = nanoseconds(tenure.left.saturating_sub(since.elapsed()));
            Lease { key: (partition, tenure.lease), left }
        });
        let old = (from_dir.partition(), (from_dir.0, from));
        let moving = self.grants.lock().rename(self.now(), old, (lease, (to_dir.0, to)));
        let (mut granted, mut valid, mut forget) = (None, Duration::ZERO, None);
        match moving {
            Moving::Free => {}
            Moving::Granted(fact, time) => {
                granted = lease.map(|lease| (lease.key, fact));
                valid = Duration::from_nanos(time);
            }
            // At this the kernel makes the whole call once more, and looks both names up then.
            Moving::Again => return Err(Errno::STALE.into()),
            Moving::Forget(fact) => forget = Some(fact),
        }
        let moved = Some((from_dir.0, from.into()));
        let belief = self.this.upgrade().map(|beliefs| Belief { beliefs, granted, valid, moved });
        Ok((belief, forget))
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
    granted: Option<((u16, u64), Fact)>,
    valid: Duration,
    /// Under which name the kernel had it.
    moved: Option<(u64, Box<[u8]>)>,
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
        let mut grants = self.beliefs.grants.lock();
        if let Some((key, fact)) = &self.granted {
            grants.sent(now, *key, fact, nanoseconds(self.valid));
        }
        if let Some((dir, name)) = &self.moved {
            grants.moved(*dir, name);
        }
    }
}

/// Names that the kernel is about to move.
#[derive(Default)]
pub struct Renaming {
    /// To be dropped when the kernel was told that it can.
    pub beliefs: [Option<Belief>; 2],
    forget: Vec<Fact>,
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

    /// Before a rename: the kernel takes what it keeps of names along to the new ones.
    ///
    /// # Errors
    /// `ESTALE` if it has to make the call again, with names that it looks up anew.
    pub fn before_rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        exchange: bool,
    ) -> Result<Renaming> {
        let Some(cluster) = &self.cluster else { return Ok(Renaming::default()) };
        let ground = |dir: Ino| self.ground(dir).filter(|_| self.meta.is_whole(dir));
        let mut renaming = Renaming::default();
        let moves = [Some((from, to)), exchange.then_some((to, from))];
        for (at, (old, new)) in moves.into_iter().flatten().enumerate() {
            let (belief, forget) = cluster.beliefs.rename(old, ground(new.0), new)?;
            renaming.beliefs[at] = belief;
            renaming.forget.extend(forget);
        }
        Ok(renaming)
    }

    /// After it: what the kernel may not keep of the new names is forgotten when it has moved them.
    pub fn after_rename(&self, renaming: &mut Renaming) {
        let forget = std::mem::take(&mut renaming.forget);
        if let Some(kernel) = self.kernel.get().filter(|_| !forget.is_empty()) {
            kernel.expire(forget, Box::new(|| {}));
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
