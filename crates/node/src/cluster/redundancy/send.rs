//! Sending copies and fragments of a file to the nodes that are to keep them.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_erasure::fragments::{Encoder, Layout};
use forebay_meta::Copies;
use forebay_peer::message::{Fault, ObjectId, Put, Request};
use forebay_peer::{Body, Client, Error as PeerError, FileRange, Started};
use forebay_types::Ino;
use rustix::io::Errno;

use super::super::Cluster;
use super::level::Level;
use crate::error::{NodeError, Result};
use crate::residency::files::File;

/// Bytes of a file that are sent at a time, or coded together.
pub(super) const PIECE: u64 = 2 << 20;
/// Pieces under way to a node.
const WINDOW: usize = 3;
/// How long another node may take for one.
pub(super) const WITHIN: Duration = Duration::from_secs(10);

/// Why something could not be sent to anybody.
pub(super) enum Failed {
    /// This node is at fault.
    Here(NodeError),
    /// The bytes went elsewhere meanwhile.
    Moved,
}

impl From<NodeError> for Failed {
    fn from(error: NodeError) -> Self {
        Failed::Here(error)
    }
}

/// What is to be sent, and under which name.
pub(super) struct Cargo<'a> {
    pub file: &'a File,
    pub version: u64,
    pub level: Level,
    /// Where pieces lie, of fragments; up to the end of what is sent.
    pub layout: Option<Layout>,
    /// Bytes of the file.
    pub range: Range<u64>,
    /// Whether it is all that the copies have, which are to be durable then.
    pub last: bool,
}

/// A node that something is sent to.
struct Lane {
    node: u16,
    object: ObjectId,
    client: Arc<Client>,
    under_way: VecDeque<(Started, Put, Body)>,
    failed: bool,
}

impl Lane {
    /// The other side works on several pieces at a time: the first makes the copy, and the last has it
    /// be durable, so that these two are alone.
    fn send(&mut self, put: Put, body: Body) {
        let (first, last) = (put.offset == 0, put.last);
        let most = if last { 1 } else { WINDOW };
        while self.under_way.len() >= most && !self.failed {
            self.wait();
        }
        if self.failed {
            return;
        }
        match self.client.start(&Request::Put(put.clone()), &body, Instant::now() + WITHIN) {
            Ok(started) => self.under_way.push_back((started, put, body)),
            Err(error) => self.again(&error, put, &body),
        }
        if first {
            self.finish();
        }
    }

    /// Waits for the first answer.
    fn wait(&mut self) {
        let Some((started, put, body)) = self.under_way.pop_front() else { return };
        if let Err(error) = started.wait() {
            self.again(&error, put, &body);
        }
    }

    /// The same piece twice does no harm.
    fn again(&mut self, error: &PeerError, put: Put, body: &Body) {
        let node = self.node;
        let full = matches!(error, PeerError::Fault(Fault::NoSpace | Fault::NotHere));
        let passes = !full && error.passes();
        self.failed = match passes.then(|| self.client.put(put, body, WITHIN)) {
            Some(Ok(())) => false,
            Some(Err(error)) => {
                tracing::debug!(node, %error, "another node does not take a copy");
                true
            }
            None => {
                tracing::debug!(node, %error, "another node does not take a copy");
                true
            }
        };
        if self.failed {
            self.under_way.clear();
        }
    }

    fn finish(&mut self) {
        while !self.under_way.is_empty() && !self.failed {
            self.wait();
        }
    }
}

impl Cluster {
    /// Sends a range of a file to nodes, each for its place among the holders; which of them have it.
    /// With `last` it is durable there.
    pub(super) fn send_to(
        &self,
        cargo: &Cargo<'_>,
        to: &[(usize, u16)],
    ) -> Result<Vec<bool>, Failed> {
        let part = |place: usize| match cargo.level {
            Level::Copies(_) => 0,
            Level::Fragments { .. } => u32::try_from(place + 1).unwrap_or(u32::MAX),
        };
        let mut lanes = Vec::with_capacity(to.len());
        for (place, node) in to {
            let object =
                ObjectId { ino: cargo.file.ino.0, version: cargo.version, part: part(*place) };
            let lane = |client| Lane {
                node: *node,
                object,
                client,
                under_way: VecDeque::new(),
                failed: false,
            };
            lanes.push(self.peer(*node).map(lane));
        }
        let sent = match (&cargo.layout, cargo.level) {
            (Some(layout), Level::Fragments { data, count }) => {
                let places: Vec<usize> = to.iter().map(|(place, _)| *place).collect();
                self.send_fragments(cargo, layout, data, count, &places, &mut lanes)
            }
            _ => self.send_whole(cargo, &mut lanes),
        };
        for lane in lanes.iter_mut().flatten() {
            lane.finish();
        }
        sent?;
        Ok(lanes.iter().map(|lane| lane.as_ref().is_some_and(|lane| !lane.failed)).collect())
    }

    fn send_whole(&self, cargo: &Cargo<'_>, lanes: &mut [Option<Lane>]) -> Result<(), Failed> {
        let Range { start: mut at, end: to } = cargo.range.clone();
        let open = self.object_of(cargo.file)?;
        loop {
            if lanes.iter().flatten().all(|lane| lane.failed) {
                return Ok(());
            }
            let end = to.min(at + PIECE);
            let len = end - at;
            // From the object itself where it has all: while bytes are read they are summed and sent.
            let bytes = match &open {
                Some(_) => Vec::new(),
                None => self.piece(cargo.file, at, end)?,
            };
            for lane in lanes.iter_mut().flatten() {
                let body = match &open {
                    _ if len == 0 => Body::Empty,
                    Some(file) => {
                        let file = file.clone();
                        Body::File(FileRange { file, offset: at, len: len as u32 })
                    }
                    None => Body::Bytes(bytes.clone()),
                };
                let last = cargo.last && end == to;
                lane.send(Put { object: lane.object, offset: at, total: end, last }, body);
                self.metrics.bytes_copied.add(len);
            }
            if end == to {
                return Ok(());
            }
            at = end;
        }
    }

    fn send_fragments(
        &self,
        cargo: &Cargo<'_>,
        layout: &Layout,
        data: usize,
        count: usize,
        places: &[usize],
        lanes: &mut [Option<Lane>],
    ) -> Result<(), Failed> {
        let wrong = |error: forebay_erasure::Error| {
            tracing::error!(
                %error,
                "a file can't be cut into fragments, so it has no copies on other nodes. Please \
                 report this as a defect"
            );
            Failed::Here(Errno::IO.into())
        };
        let mut encoder = Encoder::new(data, count, places).map_err(wrong)?;
        // It makes them in the order of the fragments.
        let mut order: Vec<usize> = (0..places.len()).collect();
        order.sort_unstable_by_key(|at| places[*at]);
        let stripes = layout.stripes(cargo.range.clone());
        let step = usize::try_from((PIECE / layout.stripe_bytes()).max(1)).unwrap_or(1);
        let mut rest = stripes.chunks(step).peekable();
        // An empty file has empty fragments, and what follows the last whole stripes may be nothing.
        if rest.peek().is_none() && cargo.last {
            for (place, lane) in places.iter().zip(lanes) {
                let total = layout.fragment_bytes(*place);
                lane.iter_mut().for_each(|lane| {
                    let object = lane.object;
                    lane.send(Put { object, offset: total, total, last: true }, Body::Empty);
                });
            }
            return Ok(());
        }
        while let Some(some) = rest.next() {
            if lanes.iter().flatten().all(|lane| lane.failed) {
                return Ok(());
            }
            let last = cargo.last && rest.peek().is_none();
            let read = |at: u64, bytes: &mut [u8]| self.read_piece(cargo.file, at, bytes);
            let made = encoder.encode(cargo.version, layout, some, read)?;
            for (at, bytes) in order.iter().zip(made) {
                let Some(lane) = lanes[*at].as_mut().filter(|_| last || !bytes.is_empty()) else {
                    continue;
                };
                let offset = layout.piece(&some[0], places[*at]).at;
                let total = offset + bytes.len() as u64;
                self.metrics.bytes_copied.add(bytes.len() as u64);
                lane.send(Put { object: lane.object, offset, total, last }, Body::from(bytes));
            }
        }
        Ok(())
    }

    /// The file behind an object that has all bytes of a file.
    fn object_of(&self, file: &File) -> Result<Option<Arc<std::fs::File>>, Failed> {
        let location = file.location.read();
        let whole =
            location.place().filter(|place| place.is_marked_whole() && !location.is_spilled());
        let Some(fd) = whole.and_then(|place| place.bytes().fd()) else { return Ok(None) };
        let fd = fd.as_fd().try_clone_to_owned().map_err(NodeError::from)?;
        Ok(Some(Arc::new(fd.into())))
    }

    /// A piece of a file as it is now; what was cut off meanwhile is zeros.
    fn piece(&self, file: &File, from: u64, to: u64) -> Result<Vec<u8>, Failed> {
        let mut bytes = vec![0; usize::try_from(to - from).unwrap_or(0)];
        self.read_piece(file, from, &mut bytes)?;
        Ok(bytes)
    }

    fn read_piece(&self, file: &File, from: u64, bytes: &mut [u8]) -> Result<(), Failed> {
        if bytes.is_empty() {
            return Ok(());
        }
        let location = file.location.read();
        if location.place().is_none() || location.is_spilled() {
            return Err(Failed::Moved);
        }
        let read = self.residency.read_with_gaps(file, &location, from, bytes)?;
        bytes[read..].fill(0);
        Ok(())
    }

    /// Has nodes drop what they have of a version, sometime.
    pub(super) fn drop_elsewhere(&self, ino: Ino, version: u64, parts: Vec<(u16, u32)>) {
        self.later(move |cluster| {
            for (holder, part) in parts.into_iter().filter(|(node, _)| !cluster.is_silent(*node)) {
                let Some(client) = cluster.peer(holder) else { continue };
                // Who does not hear it finds out by itself.
                let object = ObjectId { ino: ino.0, version, part };
                if let Err(error) = client.drop_object(object, WITHIN) {
                    tracing::debug!(%ino, holder, %error, "a copy stays for a while");
                }
            }
        });
    }

    /// As [`Cluster::drop_elsewhere`], of all that is known of a version.
    pub(super) fn drop_copies(&self, ino: Ino, copies: &Copies) {
        self.drop_elsewhere(ino, copies.version, copies.parts());
    }
}
