//! Who is alive, by the heartbeats that each node counts in the metadata engine.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use forebay_core::cluster::silence::{Look, Sign, Silence};
use forebay_core::cluster::{Epoch, NodeId};
use forebay_core::unit::Tick;
use forebay_meta::{BootInstant, Incarnation, Member, Teller};
use forebay_types::Ino;
use rustix::io::Errno;

use super::Cluster;
use crate::context::Context;
use crate::error::{NodeError, Result};

/// Between two heartbeats.
pub(crate) const BEAT: Duration = Duration::from_secs(1);
/// Between two looks whether one is due.
const PULSE: Duration = Duration::from_millis(20);
/// Between two looks for recalls.
const LOOK: Duration = Duration::from_millis(4);
/// Between two looks for recalls when nobody tells whether there are any.
const LOOK_BLIND: Duration = Duration::from_millis(50);

/// What was last seen of the nodes.
pub(super) struct Seen {
    silence: Silence,
    /// Others have taken files of these over.
    expelled: HashMap<u16, u64>,
}

impl Seen {
    /// `lease`: nodes that are silent for longer count as dead.
    pub fn new(lease: Duration) -> Self {
        let gap = u64::try_from(lease.as_nanos() / 3).unwrap_or(u64::MAX);
        Seen { silence: Silence::new(gap), expelled: HashMap::new() }
    }

    fn sign(&self, node: u16) -> Option<Sign> {
        self.silence.sign(NodeId(node.into()))
    }
}

/// A sign of life, as the table of nodes has it.
fn sign_of(member: &Member) -> Sign {
    Sign { epoch: Epoch(member.epoch), beat: member.beat }
}

impl Cluster {
    /// Whether an incarnation counts as dead: another one has followed it, or there was no sign of
    /// life of it for long.
    pub(super) fn is_dead(&self, who: Incarnation) -> bool {
        self.has_followed(who) || self.is_silent(who.node)
    }

    /// Whether an incarnation must not write any more: files were taken over from it.
    pub(crate) fn is_expelled(&self, who: Incarnation) -> bool {
        self.seen.lock().expelled.get(&who.node) == Some(&who.epoch)
    }

    /// Whether another incarnation has followed one, as far as this node knows.
    pub(crate) fn has_followed(&self, who: Incarnation) -> bool {
        self.seen.lock().sign(who.node).is_some_and(|sign| sign.epoch.0 > who.epoch)
    }

    /// Whether a node has shown no sign of life for so long that it counts as dead.
    pub(super) fn is_silent(&self, node: u16) -> bool {
        let expelled = self.seen.lock().expelled.contains_key(&node);
        expelled || self.silence_of(node) > self.config.lease
    }

    pub(super) fn silence_of(&self, node: u16) -> Duration {
        Duration::from_nanos(self.seen.lock().silence.of(NodeId(node.into())))
    }

    /// Says no more that this node lives.
    pub(crate) fn end_heartbeat(&self, limit: Duration) {
        let until = Instant::now() + limit;
        self.ended.store(true, Ordering::Release);
        let heart = self.heart.lock().take();
        while heart.as_ref().is_some_and(|heart| !heart.is_finished()) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether a node is as it was last seen: it has given no sign of life since.
    pub(super) fn was_last_seen_as(&self, member: &Member) -> bool {
        self.seen.lock().sign(member.node) == Some(sign_of(member))
    }

    /// Whether this node knows that others may take it for dead.
    pub(crate) fn has_lost_its_lease(&self) -> bool {
        self.is_fenced() || self.beaten.lock().elapsed() > self.config.lease / 2
    }

    /// `asked`: before the members were read. What they said then they may have said for longer, but
    /// what is seen of them for the first time is new from the answer on.
    fn saw(&self, asked: BootInstant, members: &[Member]) {
        let tick = |at: BootInstant| {
            let since = at.since(self.started);
            Tick(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
        };
        let mut seen = self.seen.lock();
        let (answered, beaten) = (tick(BootInstant::now()), tick(*self.beaten.lock()));
        let look = Look { asked: tick(asked), answered, beaten };
        let signs = members.iter().map(|member| (NodeId(member.node.into()), sign_of(member)));
        seen.silence.look(look, signs);
        let expelled = members.iter().filter(|member| member.expelled);
        seen.expelled = expelled.map(|member| (member.node, member.epoch)).collect();
    }

    /// A thread that says that this node lives, and looks who else does: from the start on, for what
    /// lies on the tiers may take long to read, and while the node is handed on.
    pub(crate) fn start_heartbeat(&self) {
        if !self.resumed {
            self.forget_orders();
        }
        let this = self.this.clone();
        let live = move || {
            let mut beat = Instant::now();
            while let Some(cluster) = this.upgrade() {
                if cluster.ended.load(Ordering::Acquire) {
                    return;
                }
                if Instant::now() >= beat {
                    beat = Instant::now() + BEAT;
                    cluster.beat();
                    cluster.report_life();
                }
                drop(cluster);
                thread::sleep(PULSE);
            }
        };
        match thread::Builder::new().name("cluster-beat".into()).spawn(live) {
            Ok(thread) => *self.heart.lock() = Some(thread),
            Err(error) => tracing::error!(
                %error,
                "no thread for the heartbeat: the other nodes will take this one for dead. Raise \
                 the limit of threads, and mount again"
            ),
        }
    }

    /// A thread that takes recalls.
    pub(crate) fn start_cluster_life(&self) {
        let this = self.this.clone();
        let live = move || {
            let mut look = Instant::now();
            let mut stamp = None;
            while let Some(cluster) = this.upgrade() {
                if cluster.is_at_rest() {
                    return;
                }
                let now = Instant::now();
                let current = cluster.meta.recall_stamp();
                if (current.is_some() && current != stamp) || (current.is_none() && now >= look) {
                    // Taken before the look: what comes during it makes another one.
                    stamp = cluster.take_recalls().then_some(current).flatten();
                    look = now + LOOK_BLIND;
                }
                drop(cluster);
                thread::sleep(LOOK);
            }
        };
        match thread::Builder::new().name("cluster".into()).spawn(live) {
            Ok(thread) => self.threads.lock().push(thread),
            Err(error) => tracing::error!(
                %error,
                "no thread to answer other nodes: they wait in vain for files that this node owns. \
                 Raise the limit of threads, and mount again"
            ),
        }
    }

    /// Whether a node counts as dead, also after a look at what it says of itself at this moment: it
    /// may be back since the last one.
    pub(super) fn is_silent_now(&self, node: u16) -> Result<bool> {
        if !self.is_silent(node) {
            return Ok(false);
        }
        self.look_at_members()?;
        Ok(self.is_silent(node))
    }

    /// Whether an incarnation counts as dead, also after a look at what it says of itself at this
    /// moment. What it has may be taken only then.
    pub(super) fn is_dead_now(&self, who: Incarnation) -> Result<bool> {
        if !self.is_dead(who) {
            return Ok(false);
        }
        self.look_at_members()?;
        Ok(self.is_dead(who))
    }

    pub(super) fn look_at_members(&self) -> Result<Vec<Member>> {
        let asked = BootInstant::now();
        let members = self.meta.members()?;
        self.saw(asked, &members);
        Ok(members)
    }

    /// Refuses what is not this node's to do any more.
    pub(crate) fn check_fence(&self) -> Result<()> {
        match self.is_fenced() {
            true => Err(NodeError::Posix(Errno::STALE)),
            false => Ok(()),
        }
    }

    /// Refuses a change of the namespace that is not this node's to make any more.
    ///
    /// # Errors
    /// `ESTALE` if it is fenced. If it may be and does not know, as nobody has heard of it for long, it
    /// asks.
    pub fn may_change(&self, context: &Context) -> Result<()> {
        if !self.is_fenced() && self.has_lost_its_lease() {
            context.wait()?;
            self.say_alive()?;
        }
        self.check_fence()
    }

    /// Fails, once for each kind of call, if something of an inode is lost that was acknowledged.
    ///
    /// # Errors
    /// `Lost`.
    pub fn tell_losses(&self, ino: Ino, teller: Teller) -> Result<()> {
        Ok(self.meta.tell_losses(ino, teller)?)
    }

    /// Refuses a change of the backing store that is not this node's to make any more: a worker may
    /// have been stopped for long since it began. On a thread that may wait.
    ///
    /// # Errors
    /// `ESTALE` if this node is fenced; if it may be and can't find out, what the metadata say.
    pub(crate) fn may_change_store(&self) -> Result<()> {
        if !self.is_fenced() && self.has_lost_its_lease() {
            self.say_alive()?;
        }
        self.check_fence()
    }

    /// Says that this node lives, and hears whether it still counts.
    pub(super) fn say_alive(&self) -> Result<()> {
        let asked = BootInstant::now();
        if self.meta.beat()? {
            let mut beaten = self.beaten.lock();
            *beaten = asked.max(*beaten);
        } else if !self.fenced.swap(true, Ordering::AcqRel) {
            tracing::error!(
                "another daemon has taken this node's place in the cluster, or others have taken over \
                 its files: nothing is written here any more; unmount"
            );
        }
        Ok(())
    }

    fn beat(&self) {
        fail::fail_point!("node.cluster.beat");
        if let Err(error) = self.say_alive() {
            tracing::warn!(
                %error,
                "a heartbeat did not reach the metadata servers: if that goes on, the other nodes \
                 take this one for dead. Check the servers and the network"
            );
        }
        match self.look_at_members() {
            Ok(members) => {
                if let Some(peers) = self.peers.get() {
                    peers.learn(&members);
                }
                self.hear(members);
            }
            Err(error) => tracing::debug!(%error, "the other nodes are not known"),
        }
    }
}
