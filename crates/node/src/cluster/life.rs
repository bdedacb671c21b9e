//! Who is alive, by the heartbeats that each node counts in the metadata engine.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use forebay_meta::{Incarnation, Member};

use super::Cluster;
use crate::context::Context;
use crate::error::Result;
use crate::node::Node;

/// Between two heartbeats.
pub(super) const BEAT: Duration = Duration::from_secs(1);
/// Between two looks whether one is due.
const PULSE: Duration = Duration::from_millis(20);
/// Between two looks for letters.
const LOOK: Duration = Duration::from_millis(4);
/// Between two looks for letters when nobody tells whether there are any.
const LOOK_BLIND: Duration = Duration::from_millis(50);

/// What was last seen of a node.
pub(super) struct Seen {
    epoch: u64,
    beat: u64,
    /// Others have taken files of it over.
    expelled: bool,
    /// When it was first seen so.
    since: Instant,
    /// When it was last seen so: what this node has not looked at says nothing.
    until: Instant,
}

impl Cluster {
    /// Whether an incarnation counts as dead: another one has followed it, or there was no sign of
    /// life of it for long.
    pub(super) fn is_dead(&self, who: Incarnation) -> bool {
        self.has_followed(who) || self.is_silent(who.node)
    }

    /// Whether an incarnation must not write any more: files were taken over from it.
    pub(super) fn is_expelled(&self, who: Incarnation) -> bool {
        let seen = self.seen.lock();
        seen.get(&who.node).is_some_and(|seen| seen.expelled && seen.epoch == who.epoch)
    }

    /// Whether another incarnation has followed one, as far as this node knows.
    pub(super) fn has_followed(&self, who: Incarnation) -> bool {
        self.seen.lock().get(&who.node).is_some_and(|seen| seen.epoch > who.epoch)
    }

    /// Whether a node has shown no sign of life for so long that it counts as dead.
    pub(super) fn is_silent(&self, node: u16) -> bool {
        let expelled = self.seen.lock().get(&node).is_some_and(|seen| seen.expelled);
        expelled || self.silence_of(node) > self.config.lease
    }

    pub(super) fn silence_of(&self, node: u16) -> Duration {
        self.seen.lock().get(&node).map_or(Duration::ZERO, |seen| seen.until - seen.since)
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
        let seen = self.seen.lock();
        seen.get(&member.node)
            .is_some_and(|seen| (seen.epoch, seen.beat) == (member.epoch, member.beat))
    }

    /// Whether this node knows that others may take it for dead.
    pub(crate) fn has_lost_its_lease(&self) -> bool {
        self.is_fenced() || self.beaten.lock().elapsed() > self.config.lease / 2
    }

    /// `asked`: before the members were read. What they said then they may have said for longer, but
    /// what is seen of them for the first time is new from the answer on.
    fn saw(&self, asked: Instant, members: &[Member]) {
        let mut seen = self.seen.lock();
        let now = Instant::now();
        for Member { node, epoch, beat, expelled, .. } in members {
            let last = seen.get(node).filter(|last| (last.epoch, last.beat) == (*epoch, *beat));
            let since = last.map_or(now, |last| last.since);
            let until = asked.max(since);
            let now = Seen { epoch: *epoch, beat: *beat, expelled: *expelled, since, until };
            seen.insert(*node, now);
        }
    }
}

impl Node {
    /// A thread that says that this node lives, and looks who else does: from the start on, for what
    /// lies on the tiers may take long to read, and while the node is handed on.
    pub(crate) fn start_heartbeat(&self) {
        let Some(cluster) = &self.cluster else { return };
        if !cluster.resumed {
            self.forget_orders();
        }
        let this = self.this.clone();
        let live = move || {
            let mut beat = Instant::now();
            while let Some(node) = this.upgrade() {
                let Some(cluster) = &node.cluster else { return };
                if cluster.ended.load(Ordering::Acquire) {
                    return;
                }
                if Instant::now() >= beat {
                    beat = Instant::now() + BEAT;
                    node.beat(cluster);
                    node.report_life(cluster);
                }
                drop(node);
                thread::sleep(PULSE);
            }
        };
        match thread::Builder::new().name("cluster-beat".into()).spawn(live) {
            Ok(thread) => *cluster.heart.lock() = Some(thread),
            Err(error) => tracing::error!(%error, "other nodes will take this one for dead"),
        }
    }

    /// A thread that takes letters.
    pub(crate) fn start_cluster_life(&self) {
        let Some(cluster) = &self.cluster else { return };
        let this = self.this.clone();
        let live = move || {
            let mut look = Instant::now();
            let mut stamp = None;
            while let Some(node) = this.upgrade() {
                let Some(cluster) = &node.cluster else { return };
                if cluster.is_at_rest() {
                    return;
                }
                let now = Instant::now();
                let current = node.meta.mail_stamp();
                if (current.is_some() && current != stamp) || (current.is_none() && now >= look) {
                    // Taken before the look: what comes during it makes another one.
                    stamp = node.take_letters(cluster).then_some(current).flatten();
                    look = now + LOOK_BLIND;
                }
                drop(node);
                thread::sleep(LOOK);
            }
        };
        match thread::Builder::new().name("cluster".into()).spawn(live) {
            Ok(thread) => cluster.threads.lock().push(thread),
            Err(error) => tracing::error!(%error, "what other nodes ask for is not done"),
        }
    }

    /// Whether a node counts as dead, also after a look at what it says of itself at this moment: it
    /// may be back since the last one.
    pub(super) fn is_silent_now(&self, cluster: &Cluster, node: u16) -> Result<bool> {
        if !cluster.is_silent(node) {
            return Ok(false);
        }
        let asked = Instant::now();
        cluster.saw(asked, &self.meta.members()?);
        Ok(cluster.is_silent(node))
    }

    /// Refuses a change of the namespace that is not this node's to make any more.
    ///
    /// # Errors
    /// `ESTALE` if it is fenced. `MustWait` if it may be and does not know, as nobody has heard of it
    /// for long: then it has to ask.
    pub fn may_change(&self, context: &Context) -> Result<()> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        if !cluster.is_fenced() && cluster.has_lost_its_lease() {
            context.wait()?;
            self.say_alive(cluster)?;
        }
        self.check_fence()
    }

    /// Says that this node lives, and hears whether it still counts.
    fn say_alive(&self, cluster: &Cluster) -> Result<()> {
        let asked = Instant::now();
        if self.meta.beat()? {
            let mut beaten = cluster.beaten.lock();
            *beaten = asked.max(*beaten);
        } else if !cluster.fenced.swap(true, Ordering::AcqRel) {
            tracing::error!(
                "another daemon has taken this node's place in the cluster, or others have taken over \
                 its files: nothing is written here any more; unmount"
            );
        }
        Ok(())
    }

    fn beat(&self, cluster: &Cluster) {
        if let Err(error) = self.say_alive(cluster) {
            tracing::warn!(%error, "the metadata cluster did not hear this node");
        }
        let asked = Instant::now();
        match self.meta.members() {
            Ok(members) => {
                cluster.saw(asked, &members);
                if let Some(peers) = cluster.peers.get() {
                    peers.learn(&members);
                }
                self.hear(cluster, members);
            }
            Err(error) => tracing::debug!(%error, "the other nodes are not known"),
        }
    }
}
