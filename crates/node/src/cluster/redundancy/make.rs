//! Making copies of a file on other nodes, by its owner.
//!
//! A copy that was acknowledged never changes, so a version is made in one of two ways: bytes behind the
//! end of the version before are added to its copies; anything else makes new copies, and the old ones
//! go when the metadata know the new. A program may go on writing meanwhile: what it writes then is in
//! the copies or not, as it is not acknowledged either.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use forebay_core::cluster::NodeId;
use forebay_meta::{Copies, CopiesMade, Ino, Timestamp};
use forebay_peer::message::{Fault, ObjectId, Put};
use forebay_peer::{Body, Client, Error as PeerError};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use super::super::{Cluster, Peers};
use crate::convert;
use crate::error::{NodeError, Result};
use crate::files::FileRef;
use crate::node::Node;
use crate::place::Base;

/// Bytes that are sent at a time.
const PIECE: u64 = 4 << 20;
/// How long another node may take for them.
const WITHIN: Duration = Duration::from_secs(10);
/// How often the metadata may turn out to be changed by others.
const ATTEMPTS: u32 = 8;

/// What came of making copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// As many nodes as wanted have all that was written before.
    Made,
    /// Too few nodes could take a copy, or the bytes are not all on the tier: nothing has changed.
    Impossible,
}

/// A file at the moment when copies of it are begun.
struct Snapshot {
    size: u64,
    mtime: Timestamp,
}

/// Why a copy could not be sent.
enum Failed {
    /// The other node is at fault.
    There(PeerError),
    /// This one is.
    Here(NodeError),
    /// The bytes went elsewhere meanwhile.
    Moved,
}

impl From<NodeError> for Failed {
    fn from(error: NodeError) -> Self {
        Failed::Here(error)
    }
}

/// A number that no version of any file had.
fn new_version(cluster: &Cluster) -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let parts = [u64::from(cluster.me.node), cluster.me.epoch, count];
    xxh3_64(&parts.map(u64::to_le_bytes).concat())
}

impl Node {
    /// Sees to it that `copies` other nodes have what was written to a file before the call.
    pub(super) fn make_copies(
        &self,
        cluster: &Cluster,
        file: &FileRef,
        copies: usize,
    ) -> Result<Outcome> {
        let _one = file.copying.lock();
        let changed = file.changed_from.swap(u64::MAX, Ordering::AcqRel);
        let made = self.make_since(cluster, file, copies, changed);
        if !matches!(made, Ok(Outcome::Made)) {
            file.changed_from.fetch_min(changed, Ordering::AcqRel);
        }
        made
    }

    fn make_since(
        &self,
        cluster: &Cluster,
        file: &FileRef,
        copies: usize,
        changed: u64,
    ) -> Result<Outcome> {
        let Some(now) = self.snapshot(file)? else { return Ok(Outcome::Impossible) };
        // The kernel may have written what nobody has noted.
        let passes_writers = {
            let opens = file.opens.lock();
            opens.now.registered.is_some() && opens.writers > 0
        };
        let changed = if passes_writers { 0 } else { changed };
        let known = cluster.safety.known(file.ino);
        if let Some((known, grows)) = &known {
            let reached =
                known.holders.iter().filter(|node| self.can_hold(cluster, **node)).count();
            let behind_the_end = changed >= known.size && now.size >= known.size;
            if behind_the_end && reached >= copies {
                if now.size == known.size {
                    return Ok(Outcome::Made);
                }
                if *grows && self.grow_copies(cluster, file, known, &now)? {
                    return Ok(Outcome::Made);
                }
            }
        }
        self.new_copies(cluster, file, copies, known.map(|(known, _)| known), &now)
    }

    /// How a file is whose bytes are on the tier, or in the backing store's version below it.
    fn snapshot(&self, file: &FileRef) -> Result<Option<Snapshot>> {
        let residence = file.residence.read();
        if matches!(residence.base, Base::Spill(_)) {
            return Ok(None);
        }
        let Some(place) = &residence.place else {
            // A file that was made and has no bytes, or that lost them all.
            let record = self.meta.get(file.ino)?;
            let empty = residence.loaded && matches!(residence.base, Base::Zeros);
            let snapshot = Snapshot { size: 0, mtime: record.attr.mtime };
            return Ok((empty && record.attr.size == 0).then_some(snapshot));
        };
        let stat = place.object.stat()?;
        Ok(Some(Snapshot { size: stat.size, mtime: convert::time(stat.mtime) }))
    }

    /// Adds what has come at the end to the copies that there are; false if that can't be done.
    fn grow_copies(
        &self,
        cluster: &Cluster,
        file: &FileRef,
        known: &Copies,
        now: &Snapshot,
    ) -> Result<bool> {
        // What is sent and not acknowledged may arrive at any later time: never again then.
        cluster.safety.grow_no_more(file.ino);
        let range = (known.size, now.size);
        for (_, sent) in self.send_to_all(cluster, file, &known.holders, known.version, range) {
            if !settle(sent)? {
                return Ok(false);
            }
        }
        let after =
            Copies { writer: cluster.me, size: now.size, mtime: now.mtime, ..known.clone() };
        match self.meta.put_copies(file.ino, Some(known), &after)? {
            CopiesMade::Done(_) => {
                let level = after.holders.len();
                cluster.safety.note(cluster.me.node, file, &after, (true, level));
                Ok(true)
            }
            CopiesMade::Changed(_) => Ok(false),
            CopiesMade::NotOwner => Err(Errno::STALE.into()),
        }
    }

    /// Makes copies of a new version.
    fn new_copies(
        &self,
        cluster: &Cluster,
        file: &FileRef,
        copies: usize,
        known: Option<Copies>,
        now: &Snapshot,
    ) -> Result<Outcome> {
        let version = new_version(cluster);
        let mut candidates = self.candidates(cluster, file.ino, copies)?.into_iter();
        let mut holders: Vec<u16> = Vec::new();
        let mut error = None;
        while holders.len() < copies && error.is_none() {
            let next: Vec<u16> = candidates.by_ref().take(copies - holders.len()).collect();
            if next.is_empty() {
                break;
            }
            for (node, sent) in self.send_to_all(cluster, file, &next, version, (0, now.size)) {
                match settle(sent) {
                    Ok(true) => holders.push(node),
                    Ok(false) => {}
                    Err(failed) => error = Some(failed),
                }
            }
        }
        let done = match error {
            Some(error) => Err(error),
            None if holders.len() < copies => Ok(Outcome::Impossible),
            None => {
                let (writer, size, mtime) = (cluster.me, now.size, now.mtime);
                let after = Copies { version, writer, size, mtime, holders: holders.clone() };
                self.tell_of_copies(cluster, file, known, after).map(|()| Outcome::Made)
            }
        };
        // Where the answer of the metadata is lost they stay, until the nodes that have them ask.
        if matches!(done, Ok(Outcome::Impossible) | Err(NodeError::Posix(_))) {
            self.drop_elsewhere(file.ino, version, holders);
        }
        done
    }

    /// Lets all know of complete copies of a new version.
    fn tell_of_copies(
        &self,
        cluster: &Cluster,
        file: &FileRef,
        mut known: Option<Copies>,
        after: Copies,
    ) -> Result<()> {
        for _ in 0..ATTEMPTS {
            match self.meta.put_copies(file.ino, known.as_ref(), &after)? {
                CopiesMade::Done(_) => {
                    let level = after.holders.len();
                    cluster.safety.note(cluster.me.node, file, &after, (true, level));
                    if let Some(old) = known {
                        self.drop_elsewhere(file.ino, old.version, old.holders);
                    }
                    return Ok(());
                }
                CopiesMade::Changed(now) => known = now,
                CopiesMade::NotOwner => return Err(Errno::STALE.into()),
            }
        }
        Err(Errno::AGAIN.into())
    }

    /// Whether a node may be given copies.
    pub(super) fn can_hold(&self, cluster: &Cluster, node: u16) -> bool {
        let listens = cluster.peers.get().is_some_and(|peers| peers.client(node).is_some());
        node != cluster.me.node
            && listens
            && !cluster.is_silent(node)
            && !cluster.nodes.is_told_to_leave(node)
    }

    /// The nodes that may be given copies of a file, the best first; if there seem to be fewer than
    /// are wanted, also those that have joined only now.
    fn candidates(&self, cluster: &Cluster, ino: Ino, wanted: usize) -> Result<Vec<u16>> {
        let Some(peers) = cluster.peers.get() else { return Ok(Vec::new()) };
        let known = self.candidates_among(cluster, peers, ino);
        if known.len() >= wanted {
            return Ok(known);
        }
        peers.learn(&self.meta.members()?);
        Ok(self.candidates_among(cluster, peers, ino))
    }

    fn candidates_among(&self, cluster: &Cluster, peers: &Peers, ino: Ino) -> Vec<u16> {
        let listening = peers.listening();
        let order = super::keep::topology(&listening).place(ino.0, listening.len(), &[]);
        let node = |id: &NodeId| u16::try_from(id.0).ok();
        order.iter().filter_map(node).filter(|node| self.can_hold(cluster, *node)).collect()
    }

    /// Sends a range of a file to several nodes at once.
    fn send_to_all(
        &self,
        cluster: &Cluster,
        file: &FileRef,
        nodes: &[u16],
        version: u64,
        range: (u64, u64),
    ) -> Vec<(u16, Result<(), Failed>)> {
        let send = |node: u16| {
            let Some(client) = self.peer(cluster, node) else {
                return (node, Err(Failed::There(PeerError::Closed)));
            };
            (node, self.send(file, &client, version, range))
        };
        match nodes {
            [one] => vec![send(*one)],
            nodes => thread::scope(|scope| {
                let send = &send;
                let sending: Vec<_> =
                    nodes.iter().map(|node| (*node, scope.spawn(move || send(*node)))).collect();
                let moved = |node| (node, Err(Failed::Moved));
                sending
                    .into_iter()
                    .map(|(node, one)| one.join().unwrap_or_else(|_| moved(node)))
                    .collect()
            }),
        }
    }

    /// Sends a range of a file to the copy of a version on another node, where it is durable then.
    pub(super) fn send_copy(
        &self,
        file: &FileRef,
        client: &Client,
        version: u64,
        range: (u64, u64),
    ) -> Result<bool> {
        settle(self.send(file, client, version, range))
    }

    fn send(
        &self,
        file: &FileRef,
        client: &Client,
        version: u64,
        (from, to): (u64, u64),
    ) -> Result<(), Failed> {
        let object = ObjectId { ino: file.ino.0, version, part: 0 };
        let mut at = from;
        loop {
            let end = to.min(at + PIECE);
            let bytes = self.piece(file, at, end)?;
            let last = end == to;
            let put = Put { object, offset: at, total: to, last };
            let count = bytes.len() as u64;
            client.put(put, &Body::Bytes(bytes), WITHIN).map_err(Failed::There)?;
            self.metrics.bytes_copied.add(count);
            if last {
                return Ok(());
            }
            at = end;
        }
    }

    /// A piece of a file as it is now; what was cut off meanwhile is zeros.
    fn piece(&self, file: &FileRef, from: u64, to: u64) -> Result<Vec<u8>, Failed> {
        if from == to {
            return Ok(Vec::new());
        }
        let residence = file.residence.read();
        if residence.place.is_none() || matches!(residence.base, Base::Spill(_)) {
            return Err(Failed::Moved);
        }
        let mut bytes = vec![0; usize::try_from(to - from).unwrap_or(0)];
        let read = self.read_with_gaps(file, &residence, from, &mut bytes)?;
        bytes[read..].fill(0);
        Ok(bytes)
    }

    /// Has nodes drop their copies of a version, sometime.
    pub(super) fn drop_elsewhere(&self, ino: Ino, version: u64, holders: Vec<u16>) {
        let object = ObjectId { ino: ino.0, version, part: 0 };
        self.later(move |node| {
            let Some(cluster) = &node.cluster else { return };
            for holder in holders.into_iter().filter(|holder| !cluster.is_silent(*holder)) {
                let Some(client) = node.peer(cluster, holder) else { continue };
                // Who does not hear it finds out by itself.
                if let Err(error) = client.drop_object(object, WITHIN) {
                    tracing::debug!(%ino, holder, %error, "a copy stays for a while");
                }
            }
        });
    }
}

/// Whether a copy was sent; an error if this node is at fault.
fn settle(sent: Result<(), Failed>) -> Result<bool> {
    match sent {
        Ok(()) => Ok(true),
        Err(Failed::There(error)) => {
            let full = matches!(error, PeerError::Fault(Fault::NoSpace));
            tracing::debug!(%error, full, "another node does not take a copy");
            Ok(false)
        }
        Err(Failed::Moved) => Ok(false),
        Err(Failed::Here(error)) => Err(error),
    }
}
