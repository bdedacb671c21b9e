//! From which node, or from the backing store, an extent is read, so that N nodes that want the same
//! read it from the backing store once.
//!
//! Each file has a directory node among the nodes that listen: the one that comes first by a hash of both
//! (rendezvous hashing: Thaler and Ravishankar, 1998). It keeps who has which extent, and who reads
//! it from the backing store for the others ([`forebay_core::cluster::source`]). What a directory node does not
//! know of a file that it is asked about for the first time, it asks the other nodes. All of it is
//! advice, in memory: without a directory node that answers, each node reads the backing store for itself.

use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, Instant};

use forebay_core::cluster::NodeId;
use forebay_core::cluster::source::{Extent, Peers as Nodes, Source, SourceConfig, Sources};
use forebay_core::unit::Tick;
use forebay_peer::Body;
use forebay_peer::message::{Answer, Fault, Presence, ReadMap, Request};
use forebay_types::Ino;
use parking_lot::Mutex;
use prost::Message;
use xxhash_rust::xxh3::xxh3_64;

use super::Cluster;
use super::peer_cache::version_of;
use crate::error::Result;
use crate::residency::seams::Extents;

/// Where are extents to be read?
pub(crate) const WANT: u32 = 1;
/// Extents are here now.
pub(crate) const HAVE: u32 = 2;
/// Extents could not be read where that was said.
pub(crate) const FAILED: u32 = 3;

/// How long somebody may take to read an extent before another one does.
const LEASE: Duration = Duration::from_secs(20);
/// How long a directory node may take to answer. One that is gone is noticed sooner, by its connection.
const WITHIN: Duration = Duration::from_secs(10);
/// The longest answer of a directory node, in bytes.
const ANSWER: u32 = 64 << 10;
/// Extents that are asked about at a time.
pub(super) const AT_A_TIME: usize = 16;
/// Nodes that are asked what they have of a file that its directory node does not know.
const ASKED: usize = 16;
/// Copies that are named to who wants an extent.
const NAMED: usize = 4;
/// Files of which a directory node remembers to have asked.
const REMEMBERED: usize = 1 << 16;

impl Extents {
    /// Where an extent lies in the file.
    pub(super) fn range(&self, index: u64) -> std::ops::Range<u64> {
        let start = index.saturating_mul(self.unit).min(self.size);
        start..start.saturating_add(self.unit).min(self.size)
    }

    fn key(&self, index: u64) -> Extent {
        // Nodes that cut files into other extents talk about other things.
        let version = xxh3_64(&[self.version, self.unit].map(u64::to_le_bytes).concat());
        Extent { ino: Ino(self.ino), version, index }
    }
}

/// The same in an answer.
#[derive(Clone, PartialEq, Message)]
struct Told {
    /// 0 the backing store for all, 1 the nodes named, 2 nowhere yet, 3 the backing store for oneself.
    #[prost(uint32, tag = "1")]
    source: u32,
    /// Who has it, the best one first.
    #[prost(uint32, repeated, tag = "2")]
    nodes: Vec<u32>,
}

/// Where an extent is to be read, to whoever wants it.
pub(super) enum SourceAt {
    /// In the backing store.
    Backing,
    /// At these nodes, the best one first.
    Nodes(Vec<u16>),
    /// Nowhere yet: ask again.
    Wait,
}

#[derive(Clone, PartialEq, Message)]
struct Answers {
    #[prost(message, repeated, tag = "1")]
    sources_of: Vec<Told>,
}

/// All nodes are equally near and loaded: nobody has said otherwise.
struct Alike;

impl Nodes for Alike {
    fn domain(&self, _: NodeId) -> u32 {
        0
    }
    fn load(&self, _: NodeId) -> u32 {
        0
    }
}

/// The claims and copies of the files whose directory node is here.
pub(super) struct DirectoryNode {
    sources: Mutex<Sources>,
    asked: Mutex<HashSet<(u64, u64)>>,
    begun: Instant,
}

impl Default for DirectoryNode {
    fn default() -> Self {
        let config = SourceConfig {
            lease: u64::try_from(LEASE.as_nanos()).unwrap_or(u64::MAX),
            readers: 4,
            extents: 1 << 18,
            waiting: 1 << 10,
        };
        DirectoryNode {
            sources: Mutex::new(Sources::new(config)),
            asked: Mutex::default(),
            begun: Instant::now(),
        }
    }
}

impl DirectoryNode {
    fn now(&self) -> Tick {
        Tick(u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn want(&self, asker: u16, wanted: &Extents) -> Vec<Told> {
        let (now, node) = (self.now(), NodeId(asker.into()));
        let mut sources = self.sources.lock();
        // Nobody is told of what is granted here: who waits asks again.
        sources.step(now, &Alike, &mut Vec::new());
        let each = wanted.indexes.iter().map(|index| {
            let extent = wanted.key(*index);
            let source = match sources.want(now, node, extent, &Alike) {
                // It would not ask if it still had it.
                Source::Own => {
                    sources.evicted(now, node, extent, &Alike);
                    sources.want(now, node, extent, &Alike)
                }
                source => source,
            };
            let first = match source {
                Source::Backing => return Told { source: 0, nodes: Vec::new() },
                Source::Wait => return Told { source: 2, nodes: Vec::new() },
                Source::Own | Source::Uncoordinated => {
                    return Told { source: 3, nodes: Vec::new() };
                }
                Source::Peer(first) => first,
            };
            let more = sources.copies(extent).filter(|other| *other != first && *other != node);
            let nodes = std::iter::once(first).chain(more).take(NAMED).map(|node| node.0);
            Told { source: 1, nodes: nodes.collect() }
        });
        each.collect()
    }

    fn note(&self, asker: u16, what: &Extents, have: bool) {
        let (now, node) = (self.now(), NodeId(asker.into()));
        let mut sources = self.sources.lock();
        for index in &what.indexes {
            let extent = what.key(*index);
            match have {
                true => sources.fetched(now, node, extent, &Alike, &mut Vec::new()),
                false => sources.failed(now, node, extent, &Alike, &mut Vec::new()),
            }
        }
    }

    /// Whether the other nodes have to be asked what they have of a file.
    fn knows(&self, wanted: &Extents) -> bool {
        self.asked.lock().contains(&(wanted.ino, wanted.version))
    }

    fn learn(&self, wanted: &Extents, copies: &[(u16, Presence)]) {
        for (node, presence) in copies {
            let count = wanted.size.div_ceil(wanted.unit.max(1));
            let has = |index: &u64| {
                let range = wanted.range(*index);
                presence.covers(range.start, range.end - range.start)
            };
            let indexes = (0..count).filter(has).collect();
            self.note(*node, &Extents { indexes, ..wanted.clone() }, true);
        }
        let mut asked = self.asked.lock();
        if asked.len() >= REMEMBERED {
            asked.clear();
        }
        asked.insert((wanted.ino, wanted.version));
    }
}

/// The directory node of a file among some nodes.
fn directory_node_of(ino: u64, nodes: &[u16]) -> Option<u16> {
    let weight = |node: u16| xxh3_64(&[ino, node.into()].map(u64::to_le_bytes).concat());
    nodes.iter().copied().max_by_key(|node| weight(*node))
}

impl Cluster {
    /// Another node asks the directory node of a file.
    pub(crate) fn answer_about_sources(
        &self,
        asker: u16,
        kind: u32,
        bytes: &[u8],
    ) -> Result<Body, Fault> {
        let what = Extents::decode(bytes).map_err(|error| Fault::Invalid(error.to_string()))?;
        if what.indexes.len() > AT_A_TIME || what.unit == 0 {
            return Err(Fault::Invalid("too many extents, or none".into()));
        }
        let Some(sources_of) = self.at_directory_node(asker, kind, &what) else {
            return Err(Fault::Unsupported);
        };
        Ok(Body::Bytes(Answers { sources_of }.encode_to_vec()))
    }

    fn at_directory_node(&self, asker: u16, kind: u32, what: &Extents) -> Option<Vec<Told>> {
        let directory_node = &self.peers.get()?.directory_node;
        if kind != WANT {
            directory_node.note(asker, what, kind == HAVE);
            return Some(Vec::new());
        }
        if !directory_node.knows(what) {
            directory_node.learn(what, &self.who_has(asker, what));
        }
        Some(directory_node.want(asker, what))
    }

    /// Asks the nodes what they have of a file.
    fn who_has(&self, asker: u16, what: &Extents) -> Vec<(u16, Presence)> {
        let Some(peers) = self.peers.get() else { return Vec::new() };
        let deadline = Instant::now() + WITHIN;
        let map = ReadMap { ino: what.ino, version: Some(what.version), from: 0 };
        let mut found = Vec::new();
        // Who asks may have other parts of it, from when it knew of nobody to tell.
        let concerns = |node: u16| node != asker || what.size > what.unit;
        if concerns(self.me.node)
            && let Ok(presence) = self.presence_for_peer(Ino(what.ino), what.version, 0)
        {
            found.push((self.me.node, presence));
        }
        let reached = self.within_reach(peers).into_iter();
        let others = reached.filter(|node| *node != self.me.node && concerns(*node));
        let calls: Vec<_> = others
            .take(ASKED)
            .filter_map(|node| {
                let request = Request::ReadMap(map.clone());
                let started = peers.client(node)?.start(&request, &Body::Empty, deadline);
                Some((node, started.ok()?))
            })
            .collect();
        for (node, call) in calls {
            if let Ok((Answer::Presence(presence), _)) = call.wait() {
                found.push((node, presence));
            }
        }
        found
    }

    /// Numbers of the nodes that have the whole of a file as it is now; none without a cluster. Asks the
    /// others what they have.
    ///
    /// # Errors
    /// When the inode is gone.
    pub fn nodes_with(&self, ino: Ino) -> Result<Vec<u16>> {
        let record = self.meta.get(ino)?;
        let mut nodes = BTreeSet::new();
        if self.residency.residents.get(ino.0).is_some_and(|resident| resident.whole) {
            nodes.insert(self.me.node);
        }
        if record.is_dirty() {
            nodes.extend(record.owner.map(|owner| owner.node));
        } else if let Some(print) = record.backing.fingerprint.filter(|print| print.size > 0) {
            let (version, size) = (version_of(&print), print.size);
            let what = Extents { ino: ino.0, version, size, unit: 1, indexes: Vec::new() };
            let whole = |presence: &Presence| presence.runs == [(0, size)];
            let having = self.who_has(self.me.node, &what).into_iter();
            nodes.extend(having.filter(|(_, presence)| whole(presence)).map(|(node, _)| node));
        }
        Ok(nodes.into_iter().collect())
    }

    /// Asks the directory node of a file where extents of it are to be read; `None` if it does not answer.
    pub(super) fn sources_of(&self, wanted: &Extents) -> Option<Vec<SourceAt>> {
        let sources_of = self.ask_directory_node(WANT, wanted)?;
        let each = sources_of.into_iter().map(|sources_of| match sources_of.source {
            1 => SourceAt::Nodes(
                sources_of.nodes.iter().filter_map(|n| u16::try_from(*n).ok()).collect(),
            ),
            2 => SourceAt::Wait,
            _ => SourceAt::Backing,
        });
        let each: Vec<SourceAt> = each.collect();
        (each.len() == wanted.indexes.len()).then_some(each)
    }

    /// Tells the directory node of a file that extents are here, or could not be read where it said.
    pub(super) fn tell_directory_node(&self, kind: u32, what: &Extents) {
        if !what.indexes.is_empty() && self.ask_directory_node(kind, what).is_none() {
            tracing::debug!(
                ino = what.ino,
                "the directory node of a file is not told what is here"
            );
        }
    }

    fn ask_directory_node(&self, kind: u32, what: &Extents) -> Option<Vec<Told>> {
        let peers = self.peers.get()?;
        let directory_node = directory_node_of(what.ino, &self.within_reach(peers))?;
        if directory_node == self.me.node {
            return self.at_directory_node(directory_node, kind, what);
        }
        let client = peers.client(directory_node)?;
        let body = Body::Bytes(what.encode_to_vec());
        let answer = client.other(kind, &body, ANSWER, WITHIN);
        let answer = answer
            .inspect_err(|error| {
                tracing::debug!(ino = what.ino, directory_node, %error, "the directory node of a file does not answer");
            })
            .ok()?;
        Answers::decode(&*answer).ok().map(|answers| answers.sources_of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extents(indexes: Vec<u64>) -> Extents {
        Extents { ino: 7, version: 1, size: 2500, unit: 1000, indexes }
    }

    #[test]
    fn home_when_a_node_joins_then_files_move_only_to_it() {
        let (before, after) = ([1, 2, 3], [1, 2, 3, 4]);
        let mut moved = 0;
        for ino in 0..1000 {
            let (old, new) = (directory_node_of(ino, &before), directory_node_of(ino, &after));
            assert!(new == old || new == Some(4));
            moved += usize::from(new == Some(4));
        }
        assert!((150..350).contains(&moved), "{moved}");
    }

    #[test]
    fn home_when_two_want_an_extent_then_one_reads_the_backing_store_and_the_other_asks_it() {
        let directory_node = DirectoryNode::default();
        let sources =
            |node| directory_node.want(node, &extents(vec![0, 2])).iter().map(|w| w.source).sum();
        let (first, second): (u32, u32) = (sources(1), sources(2));
        assert_eq!((first, second), (0, 4));
        directory_node.note(1, &extents(vec![0]), true);
        let told = directory_node.want(2, &extents(vec![0, 2]));
        assert_eq!((told[0].source, &told[0].nodes[..], told[1].source), (1, &[1][..], 2));
        // Gone from there: the next one reads the backing store again.
        directory_node.note(2, &extents(vec![0]), false);
        assert_eq!(directory_node.want(2, &extents(vec![0]))[0].source, 0);
    }

    #[test]
    fn home_when_it_hears_of_copies_then_only_whole_extents_count() {
        let directory_node = DirectoryNode::default();
        let presence =
            Presence { version: 1, size: 2500, runs: vec![(0, 1500), (2000, 500)], next: None };
        assert!(!directory_node.knows(&extents(vec![])));
        directory_node.learn(&extents(vec![]), &[(3, presence)]);
        assert!(directory_node.knows(&extents(vec![])));
        let told = directory_node.want(1, &extents(vec![0, 1, 2]));
        assert_eq!(told.iter().map(|w| w.source).collect::<Vec<_>>(), [1, 0, 1]);
    }
}
