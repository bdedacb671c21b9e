//! What this node's kernel may keep of names and attributes, although others use them: what lies in
//! partitions whose leases this node has, as long as it has them. [`grants`] decides.
//!
//! [`grants`]: forebay_core::cluster::grants

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use forebay_core::cluster::grants::{
    EntryName, Fact, Grants, Lease, LeaseKey, Leave, Moving, Terms,
};
use forebay_core::unit::Tick;
use forebay_meta::{LeaseObserver, NameIn, Record, Tenure};
use forebay_types::{FileKind, Ino};
use parking_lot::Mutex;
use rustix::io::Errno;

use super::Cluster;
use crate::error::Result;
use crate::kernel::Kernel;
use crate::residency::inode_alias::node_id;
use crate::stat::Stat;

/// What the kernel may have.
pub(crate) struct KernelGrants {
    this: Weak<KernelGrants>,
    grants: Mutex<Grants>,
    started: Instant,
    kernel: OnceLock<Arc<dyn Kernel>>,
    /// Nothing is granted, as the node is about to be handed on. Changed with `grants` locked.
    stopped: AtomicBool,
}

/// The longest that the kernel is waited for before a node is handed on.
const LET_GO: Duration = Duration::from_secs(1);

impl KernelGrants {
    pub(super) fn new() -> Arc<Self> {
        Arc::new_cyclic(|this| KernelGrants {
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
            let is_left = |key: &&LeaseKey| !self.let_go(key.partition, key.lease, false);
            if leases.iter().filter(is_left).count() == 0 || Instant::now() >= until {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Takes [`KernelGrants::stop`] back.
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

    /// Has the kernel keep what it may of an answer. Facts of the lease `looked_up` may get into its
    /// cache later than with the answer.
    fn grant(&self, batches: Vec<Batch>, looked_up: Option<LeaseKey>) -> Vec<KernelGrant> {
        let Some(kernel_grants) = self.this.upgrade() else { return Vec::new() };
        let mut granted = Vec::with_capacity(batches.len());
        let mut grants = self.grants.lock();
        let is_stopped = self.stopped.load(Ordering::Acquire);
        for Batch { key, mut facts } in batches {
            let late = looked_up == Some(key);
            if !is_stopped && grants.grant(self.now(), key, &mut facts, late) {
                granted.push(KernelGrant {
                    kernel_grants: kernel_grants.clone(),
                    key,
                    facts,
                    moved: None,
                    noted: false,
                });
            }
        }
        granted
    }

    /// The kernel is about to move what is under a name to another, in a directory that stands on such
    /// basis: what has to be kept until that was answered, and what is to be forgotten then.
    ///
    /// # Errors
    /// `ESTALE` if the kernel has to look the old name up before.
    fn rename(
        &self,
        from: NameIn<'_>,
        basis: Option<LeaseBasis>,
        to: NameIn<'_>,
    ) -> Result<(Option<KernelGrant>, Option<Fact>)> {
        let lease = basis.map(|basis| Lease { key: basis.key(), left: basis.time(Duration::MAX) });
        let partition = from.dir.partition();
        let old = EntryName { dir: from.dir.0, name: from.name };
        let new = EntryName { dir: to.dir.0, name: to.name };
        let moving = self.grants.lock().rename(self.now(), partition, old, lease, new);
        let (mut facts, mut forget) = (Vec::new(), None);
        match moving {
            Moving::Free => {}
            Moving::Granted(fact, time) => facts.push((fact, time)),
            // At this the kernel makes the whole call once more, and looks both names up then.
            Moving::Again => return Err(Errno::STALE.into()),
            Moving::Forget(fact) => forget = Some(fact),
        }
        let none = LeaseKey { partition, lease: 0 };
        let key = lease.map_or(none, |lease| lease.key);
        let moved = Some((from.dir.0, from.name.into()));
        let grant = self.this.upgrade().map(|kernel_grants| KernelGrant {
            kernel_grants,
            key,
            facts,
            moved,
            noted: false,
        });
        Ok((grant, forget))
    }
}

impl LeaseObserver for KernelGrants {
    fn let_go(&self, partition: u16, lease: u64, for_good: bool) -> bool {
        let leave = self.grants.lock().leave(self.now(), LeaseKey { partition, lease }, for_good);
        match leave {
            Leave::Free => true,
            Leave::Wait => false,
            Leave::Tell(number, facts) => {
                let (Some(kernel), Some(kernel_grants)) = (self.kernel.get(), self.this.upgrade())
                else {
                    return false;
                };
                let told = move || kernel_grants.grants.lock().told(partition, number);
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
pub struct LeaseBasis {
    partition: u16,
    tenure: Tenure,
    since: Instant,
}

impl LeaseBasis {
    fn key(&self) -> LeaseKey {
        LeaseKey { partition: self.partition, lease: self.tenure.lease }
    }

    /// For how long something may be kept that could be for `limit`.
    fn time(&self, limit: Duration) -> u64 {
        nanoseconds(limit.min(self.tenure.left.saturating_sub(self.since.elapsed())))
    }
}

/// What the kernel is told of one partition and may keep, until [`KernelGrant::answered`].
#[must_use = "until it is answered nobody gets the lease"]
pub struct KernelGrant {
    kernel_grants: Arc<KernelGrants>,
    key: LeaseKey,
    facts: Vec<(Fact, u64)>,
    /// Under which name the kernel had it until now.
    moved: Option<(u64, Box<[u8]>)>,
    /// It was noted that the kernel was told.
    noted: bool,
}

impl KernelGrant {
    /// For how long it may keep one of its facts: not at all if that is not granted.
    fn valid(&self, at: usize) -> Duration {
        self.facts.get(at).map_or(Duration::ZERO, |(_, time)| Duration::from_nanos(*time))
    }

    /// For how long it may keep attributes.
    #[must_use]
    pub fn attributes_valid(&self) -> Duration {
        self.valid(0)
    }

    /// The answer was sent: from here on the kernel has it. Or it never will be; whether the kernel has
    /// it nobody asks then.
    pub fn answered(mut self) {
        self.note();
    }

    fn note(&mut self) {
        if std::mem::replace(&mut self.noted, true) {
            return;
        }
        let now = self.kernel_grants.now();
        let mut grants = self.kernel_grants.grants.lock();
        if !self.facts.is_empty() {
            grants.sent(now, self.key, &self.facts);
        }
        if let Some((dir, name)) = &self.moved {
            grants.moved(*dir, name);
        }
    }
}

impl Drop for KernelGrant {
    /// One that a panic has taken away must not keep the lease from others for ever.
    fn drop(&mut self) {
        if !self.noted {
            debug_assert!(std::thread::panicking(), "nobody said that it was answered");
            self.note();
        }
    }
}

/// A name in an answer, with the attributes of what it means, and for how long the kernel may keep
/// both: at first if nobody else changes them, after [`Cluster::keep_shown`] in the cluster.
#[derive(Debug, Clone)]
pub struct Shown {
    name: Arc<[u8]>,
    is_directory: bool,
    /// What the attributes stand on, and of which node of the kernel they are.
    attributes: Option<(LeaseBasis, u64)>,
    /// For how long the name may be kept.
    pub entry_valid: Duration,
    /// For how long the attributes may be.
    pub attr_valid: Duration,
}

impl Shown {
    /// A name, and the attributes with what those stand on, if they may be kept at all.
    #[must_use]
    pub fn new(
        name: &[u8],
        stat: Option<&Stat>,
        basis: Option<LeaseBasis>,
        entry_valid: Duration,
        attr_valid: Duration,
    ) -> Self {
        let attributes =
            basis.zip(stat).map(|(basis, stat)| (basis, node_id(stat.ino, stat.alias)));
        let is_directory = stat.is_some_and(|stat| stat.attr.kind == FileKind::Directory);
        Shown { name: name.into(), is_directory, attributes, entry_valid, attr_valid }
    }

    fn fact(&self, dir: Ino) -> Fact {
        match self.is_directory {
            true => Fact::Directory(dir.0, self.name.clone()),
            false => Fact::Name(dir.0, self.name.clone()),
        }
    }
}

/// Facts of one partition.
struct Batch {
    key: LeaseKey,
    facts: Vec<(Fact, u64)>,
}

/// The facts of an answer, and where those of each name are: of which partition, at which place.
#[derive(Default)]
struct Batches {
    all: Vec<Batch>,
    names: Vec<Option<usize>>,
    attributes: Vec<Option<(LeaseKey, usize)>>,
}

impl Batches {
    fn push(&mut self, key: LeaseKey, fact: Fact, time: u64) -> usize {
        let at = self.all.iter().position(|batch| batch.key == key).unwrap_or_else(|| {
            self.all.push(Batch { key, facts: Vec::new() });
            self.all.len() - 1
        });
        let facts = &mut self.all[at].facts;
        facts.push((fact, time));
        facts.len() - 1
    }

    fn add(&mut self, dir: Ino, basis: LeaseBasis, shown: &Shown, names: bool) {
        let time = if names { basis.time(shown.entry_valid) } else { 0 };
        let name = (time > 0).then(|| self.push(basis.key(), shown.fact(dir), time));
        let attributes = shown.attributes.map(|(behind, node)| {
            let time = behind.time(shown.attr_valid);
            // The kernel takes note of an inode that it does not know after the answer, with the
            // directory locked, and would miss an earlier call to forget its attributes. So it is
            // always told about a name first, which waits for that lock.
            if name.is_none() || behind.key() != basis.key() {
                self.push(behind.key(), Fact::Directory(dir.0, shown.name.clone()), time);
            }
            (behind.key(), self.push(behind.key(), Fact::Attributes(node), time))
        });
        self.names.push(name);
        self.attributes.push(attributes);
    }
}

/// Names that the kernel is about to move.
#[derive(Default)]
pub struct Renaming {
    /// To be answered when the kernel was told that it can.
    pub kernel_grants: Vec<KernelGrant>,
    forget: Vec<Fact>,
}

impl Renaming {
    /// They are not moved: the kernel is told of a failure.
    pub fn fails(self) {
        self.kernel_grants.into_iter().for_each(KernelGrant::answered);
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Cluster {
    /// Whether what is looked at from now on of an inode, and of the entries of a directory, can be
    /// kept by the kernel in a cluster. To be asked before the look.
    #[must_use]
    pub fn basis(&self, ino: Ino) -> Option<LeaseBasis> {
        let tenure = self.meta.tenure(ino)?;
        Some(LeaseBasis { partition: ino.partition(), tenure, since: Instant::now() })
    }

    /// As [`Cluster::basis`] for the inode that a name is believed to mean, if it is kept elsewhere
    /// than its directory.
    #[must_use]
    pub fn lease_basis_behind(&self, dir: Ino, name: &[u8]) -> Option<LeaseBasis> {
        let behind = self.meta.lookup_believed(dir, name)?;
        (behind.ino.partition() != dir.partition()).then(|| self.basis(behind.ino)).flatten()
    }

    /// Sets for how long the kernel may keep names of a directory, also of what is not there, and
    /// attributes of what they mean. `looked_up` says that they may have been asked for without the
    /// directory's lock.
    #[must_use]
    pub fn keep_shown(
        &self,
        dir: Ino,
        basis: LeaseBasis,
        shown: &mut [Shown],
        looked_up: bool,
    ) -> Vec<KernelGrant> {
        // Entries of a directory that was split are kept elsewhere.
        let names = basis.partition == dir.partition() && self.meta.is_whole(dir);
        let mut batches = Batches::default();
        for shown in &*shown {
            batches.add(dir, basis, shown, names);
        }
        let late = names && looked_up && shown.iter().any(|shown| shown.is_directory);
        let Batches { all, names, attributes } = batches;
        let kernel_grants = self.kernel_grants.grant(all, late.then(|| basis.key()));
        let valid = |key: LeaseKey, at: usize| {
            let grant = kernel_grants.iter().find(|grant| grant.key == key);
            grant.map_or(Duration::ZERO, |grant| grant.valid(at))
        };
        for (shown, (name, attributes)) in shown.iter_mut().zip(names.into_iter().zip(attributes)) {
            shown.entry_valid = name.map_or(Duration::ZERO, |at| valid(basis.key(), at));
            // The fact before them is about the name: not without that.
            let both = |(key, at): (LeaseKey, usize)| match at.checked_sub(1) {
                Some(before) if !valid(key, before).is_zero() => valid(key, at),
                _ => Duration::ZERO,
            };
            shown.attr_valid = attributes.map_or(Duration::ZERO, both);
        }
        kernel_grants
    }

    /// Before a rename: the kernel takes what it keeps of names along to the new ones.
    ///
    /// # Errors
    /// `ESTALE` if it has to make the call again, with names that it looks up anew.
    pub fn before_rename(
        &self,
        from: NameIn<'_>,
        to: NameIn<'_>,
        exchange: bool,
    ) -> Result<Renaming> {
        let basis = |dir: Ino| self.basis(dir).filter(|_| self.meta.is_whole(dir));
        let mut renaming = Renaming::default();
        let moves = [Some((from, to)), exchange.then_some((to, from))];
        for (old, new) in moves.into_iter().flatten() {
            match self.kernel_grants.rename(old, basis(new.dir), new) {
                Ok((grant, forget)) => {
                    renaming.kernel_grants.extend(grant);
                    renaming.forget.extend(forget);
                }
                Err(error) => {
                    renaming.fails();
                    return Err(error);
                }
            }
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

    /// Whether the kernel may keep attributes of an inode that it knows.
    #[must_use]
    pub fn keep_attributes(
        &self,
        basis: LeaseBasis,
        stat: &Stat,
        limit: Duration,
    ) -> Option<KernelGrant> {
        let basis = self.ground_of_attributes(basis, stat)?;
        let fact = Fact::Attributes(node_id(stat.ino, stat.alias));
        let batch = Batch { key: basis.key(), facts: vec![(fact, basis.time(limit))] };
        self.kernel_grants.grant(vec![batch], None).pop()
    }

    /// What attributes stand on that were read with a basis: nothing if others may change them.
    #[must_use]
    pub fn ground_of_attributes(&self, basis: LeaseBasis, stat: &Stat) -> Option<LeaseBasis> {
        if basis.partition != stat.ino.partition() {
            return None;
        }
        let record = self.meta.get(stat.ino).ok()?;
        self.is_known_here(&record).then_some(basis)
    }

    /// Whether nobody changes attributes without changing the record: another node has what its
    /// programs write, and a directory that was split its times elsewhere.
    pub(crate) fn is_known_here(&self, record: &Record) -> bool {
        match record.is_directory() {
            true => record.is_whole(),
            false => !record.links.is_empty() && !self.is_elsewhere(record),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn basis(partition: u16) -> LeaseBasis {
        let tenure = Tenure { lease: 3, left: Duration::from_secs(8) };
        LeaseBasis { partition, tenure, since: Instant::now() }
    }

    fn shown(name: &str, attributes: Option<(u16, u64)>) -> Shown {
        Shown {
            name: name.as_bytes().into(),
            is_directory: false,
            attributes: attributes.map(|(partition, node)| (basis(partition), node)),
            entry_valid: Duration::from_secs(5),
            attr_valid: Duration::from_secs(4),
        }
    }

    /// Facts of an answer about names of directory 1 in partition 7, by partition.
    fn facts(names: bool, shown: &[Shown]) -> Vec<(u16, Vec<Fact>)> {
        let mut batches = Batches::default();
        for shown in shown {
            batches.add(Ino(1), basis(7), shown, names);
        }
        let of = |batch: Batch| batch.facts.into_iter().map(|(fact, _)| fact).collect();
        batches.all.into_iter().map(|batch| (batch.key.partition, of(batch))).collect()
    }

    #[test]
    fn attributes_when_kept_then_the_kernel_is_told_about_their_name_before() {
        let (name, guard) = (
            |name: &str| Fact::Name(1, name.as_bytes().into()),
            |name: &str| Fact::Directory(1, name.as_bytes().into()),
        );
        let listing = [shown("a", Some((7, 11))), shown("b", Some((8, 12))), shown("c", None)];
        let here = vec![name("a"), Fact::Attributes(11), name("b"), name("c")];
        let behind = vec![guard("b"), Fact::Attributes(12)];
        assert_eq!(facts(true, &listing), [(7, here), (8, behind.clone())]);
        // The order in which it is told.
        assert!(behind.is_sorted() && name("b") < Fact::Attributes(0));
        // Of a directory that was split.
        let here = vec![guard("a"), Fact::Attributes(11)];
        assert_eq!(facts(false, &listing), [(7, here), (8, behind)]);
        assert_eq!(facts(false, &[shown("c", None)]), []);
    }
}
