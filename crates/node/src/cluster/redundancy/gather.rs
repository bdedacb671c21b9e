//! The bytes of a file from its fragments: when its owner is gone, to take it over and meanwhile.

use std::collections::BTreeMap;
use std::ops::Range;
use std::thread;

use forebay_erasure::fragments::{Decoder, Layout, Stripe, unsealed};
use forebay_meta::{Copies, Incarnation};
use forebay_peer::Body;
use forebay_peer::message::{Fault, ObjectId, Put};
use forebay_types::Ino;
use prost::Message;
use rustix::io::Errno;

use super::super::Cluster;
use super::level;
use super::send::WITHIN;
use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::handles::Handle;

/// Bytes of a fragment that you have.
pub(crate) const FRAGMENT: u32 = 33;
/// Bytes of a file that are gathered at a time.
const STEP: u64 = 4 << 20;
/// Files up to this length are taken over before they are read.
const AT_ONCE: u64 = 8 << 20;
/// The most that is asked for at a time.
const MAX: u64 = 8 << 20;

/// Asks for bytes of a fragment.
#[derive(Clone, PartialEq, Message)]
struct Ask {
    #[prost(fixed64, tag = "1")]
    ino: u64,
    #[prost(fixed64, tag = "2")]
    version: u64,
    #[prost(uint32, tag = "3")]
    part: u32,
    #[prost(uint64, tag = "4")]
    offset: u64,
    #[prost(uint64, tag = "5")]
    len: u64,
}

/// Reads one version of a file by its fragments.
struct Gatherer<'a> {
    cluster: &'a Cluster,
    ino: Ino,
    copies: &'a Copies,
    layout: Layout,
    decoder: Decoder,
    /// Fragments that can't be had, or were found to be wrong.
    bad: Vec<bool>,
}

fn nonsense(error: &forebay_erasure::Error) -> NodeError {
    tracing::error!(
        %error,
        "the fragments of a file do not fit together: reads of it get EIO until its owner is back"
    );
    Errno::IO.into()
}

impl<'a> Gatherer<'a> {
    /// Nothing for a file that has no fragments.
    fn new(cluster: &'a Cluster, ino: Ino, copies: &'a Copies) -> Result<Option<Self>> {
        let (Some(layout), Some(code)) = (level::layout(copies)?, &copies.code) else {
            return Ok(None);
        };
        let count = copies.holders.len();
        let decoder = Decoder::new(code.data.into(), count).map_err(|error| nonsense(&error))?;
        let away = |node: &u16| *node == 0 || *node != cluster.me.node && cluster.is_silent(*node);
        let bad = copies.holders.iter().map(away).collect();
        Ok(Some(Gatherer { cluster, ino, copies, layout, decoder, bad }))
    }

    /// Whether enough nodes seem to be there.
    fn is_able(&self) -> bool {
        let needed = self.copies.code.as_ref().map_or(0, |code| usize::from(code.data));
        self.bad.iter().filter(|bad| !**bad).count() >= needed
    }

    /// The bytes of the stripes that a range touches, and where they begin.
    ///
    /// # Errors
    /// `EHOSTDOWN` if too few fragments can be had.
    fn read(&mut self, range: Range<u64>) -> Result<(u64, Vec<u8>)> {
        let stripes = self.layout.stripes(range);
        let (Some(first), Some(last)) = (stripes.first(), stripes.last()) else {
            return Ok((0, Vec::new()));
        };
        let (begin, end) = (first.start, last.end());
        let mut found: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        let mut bytes = vec![0; usize::try_from(end - begin).unwrap_or(0)];
        while !self.is_read(&stripes, &found, &mut bytes)? {
            let more = self.choose(&found);
            if more.is_empty() {
                tracing::warn!(
                    ino = %self.ino,
                    "too few fragments of a file can be reached: reads of it fail until its owner, \
                     or more nodes that have some, are back"
                );
                return Err(Errno::HOSTDOWN.into());
            }
            let run = |at: &usize| {
                let (begin, end) = (self.layout.piece(first, *at), self.layout.piece(last, *at));
                let from = begin.at;
                (*at, (from, (end.at + end.stored()).saturating_sub(from)))
            };
            let runs: Vec<(usize, (u64, u64))> = more.iter().map(run).collect();
            for (at, got) in self.fetch(&runs) {
                match got {
                    Some(got) => drop(found.insert(at, got)),
                    None => self.bad[at] = true,
                }
            }
        }
        Ok((begin, bytes))
    }

    /// The fragments to ask for next: as many as are lacking, those here first, then those that need
    /// no computation.
    fn choose(&self, found: &BTreeMap<usize, Vec<u8>>) -> Vec<usize> {
        let needed = self.copies.code.as_ref().map_or(0, |code| usize::from(code.data));
        let sound = found.keys().filter(|at| !self.bad[**at]).count();
        let open = |at: &usize| !self.bad[*at] && !found.contains_key(at);
        let mut all: Vec<usize> = (0..self.bad.len()).filter(open).collect();
        all.sort_by_key(|at| (self.copies.holders[*at] != self.cluster.me.node, *at));
        all.truncate(needed.saturating_sub(sound));
        all
    }

    /// Decodes what was found; false if more is needed. Fragments with wrong pieces become bad.
    fn is_read(
        &mut self,
        stripes: &[Stripe],
        found: &BTreeMap<usize, Vec<u8>>,
        bytes: &mut [u8],
    ) -> Result<bool> {
        let Some(first) = stripes.first() else { return Ok(true) };
        let mut out = bytes;
        for stripe in stripes {
            let (here, rest) = std::mem::take(&mut out).split_at_mut(stripe.len as usize);
            out = rest;
            let mut pieces: Vec<Option<&[u8]>> = vec![None; self.bad.len()];
            for (at, fragment) in found.iter().filter(|(at, _)| !self.bad[**at]) {
                let piece = self.layout.piece(stripe, *at);
                if piece.len == 0 {
                    pieces[*at] = Some(&[]);
                    continue;
                }
                let from =
                    usize::try_from(piece.at - self.layout.piece(first, *at).at).unwrap_or(0);
                let stored = fragment.get(from..from + piece.stored() as usize);
                pieces[*at] =
                    stored.and_then(|stored| unsealed(self.copies.version, stripe, *at, stored));
            }
            for at in found.keys().filter(|at| pieces[**at].is_none()) {
                if !std::mem::replace(&mut self.bad[*at], true) {
                    tracing::warn!(
                        ino = %self.ino,
                        fragment = at,
                        "a fragment of a file is damaged: others are used in its place"
                    );
                }
            }
            match self.decoder.decode(stripe, &pieces, here) {
                Ok(()) => {}
                Err(forebay_erasure::Error::TooFew { .. }) => return Ok(false),
                Err(error) => return Err(nonsense(&error)),
            }
        }
        Ok(true)
    }

    fn fetch(&self, runs: &[(usize, (u64, u64))]) -> Vec<(usize, Option<Vec<u8>>)> {
        let one = |at: usize, (offset, len): (u64, u64)| match len {
            0 => Some(Vec::new()),
            _ => self.fetch_one(at, offset, len),
        };
        thread::scope(|scope| {
            let one = &one;
            let begun: Vec<_> =
                runs.iter().map(|(at, run)| (*at, scope.spawn(move || one(*at, *run)))).collect();
            begun.into_iter().map(|(at, one)| (at, one.join().ok().flatten())).collect()
        })
    }

    fn fetch_one(&self, at: usize, offset: u64, len: u64) -> Option<Vec<u8>> {
        let holder = self.copies.holders[at];
        let (part, version) = (self.copies.part(at), self.copies.version);
        if holder == self.cluster.me.node {
            let key = (self.ino.0, version, part);
            let read = self.cluster.safety.held.read_copy(key, offset, len);
            return read
                .inspect_err(|error| tracing::warn!(%error, "a fragment kept here can't be read"))
                .ok();
        }
        let client = self.cluster.peer(holder)?;
        let ask = Ask { ino: self.ino.0, version, part, offset, len };
        let body = Body::Bytes(ask.encode_to_vec());
        let limit = u32::try_from(len).ok()?;
        match client.other(FRAGMENT, &body, limit, WITHIN) {
            Ok(bytes) => Some(bytes.into_vec()),
            Err(error) => {
                tracing::debug!(ino = %self.ino, holder, %error, "a fragment can't be had");
                None
            }
        }
    }
}

impl Cluster {
    /// Another node asks for bytes of a fragment.
    pub(crate) fn fragment_for(&self, bytes: &[u8]) -> Result<Body, Fault> {
        let ask = Ask::decode(bytes).map_err(|error| Fault::Invalid(error.to_string()))?;
        let key = (ask.ino, ask.version, ask.part);
        match self.safety.held.read_copy(key, ask.offset, ask.len.min(MAX)) {
            Ok(bytes) => Ok(Body::Bytes(bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Fault::NotHere),
            Err(error) => Err(Fault::Io { errno: error.raw_os_error().unwrap_or(libc::EIO) }),
        }
    }

    /// Makes a whole copy of a file here from its fragments, as if another node had sent it; whether
    /// that could be done.
    pub(super) fn make_whole(&self, ino: Ino, copies: &Copies) -> Result<bool> {
        let Some(mut gatherer) = Gatherer::new(self, ino, copies)? else {
            return Ok(false);
        };
        if !gatherer.is_able() {
            return Ok(false);
        }
        let object = ObjectId { ino: ino.0, version: copies.version, part: 0 };
        let held = &self.safety.held;
        let (size, mut at) = (copies.size, 0);
        loop {
            let (begin, bytes) = gatherer.read(at..size.min(at + STEP))?;
            let end = if bytes.is_empty() { size } else { begin + bytes.len() as u64 };
            let last = end == size;
            let put = Put { object, offset: at, total: end, last };
            if let Err(fault) = held.put_copy(&put, &bytes) {
                tracing::warn!(
                    %ino,
                    %fault,
                    "a file can't be put together here from its fragments, so this node does not \
                     take it over"
                );
                let _ = held.drop_copy_held((ino.0, copies.version, 0));
                return Ok(false);
            }
            if last {
                return Ok(true);
            }
            at = end;
        }
    }

    /// Whether a file of which the owner is gone can be read by its fragments until another node has
    /// taken it over, which is seen to.
    pub(in crate::cluster) fn is_read_by_fragments(
        &self,
        ino: Ino,
        owner: Incarnation,
    ) -> Result<bool> {
        if !self.is_silent(owner.node) {
            return Ok(false);
        }
        let Some((record, copies)) = self.meta.record_and_copies(ino)? else { return Ok(false) };
        let copies = copies.filter(|copies| record.copied && copies.size > AT_ONCE);
        let Some(copies) = copies.filter(|_| record.owner == Some(owner)) else {
            return Ok(false);
        };
        let gatherer = Gatherer::new(self, ino, &copies)?;
        if !gatherer.is_some_and(|gatherer| gatherer.is_able()) {
            return Ok(false);
        }
        self.later(move |cluster| {
            if let Err(error) = cluster.have_taken_over(ino, owner) {
                tracing::debug!(%ino, %error, "a file is not taken over yet");
            }
        });
        Ok(true)
    }

    /// Reads a file from its shards: its owner is gone, and no other node has it whole yet.
    pub(crate) fn read_by_fragments(
        &self,
        context: &Context,
        handle: &Handle,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<Option<usize>> {
        let Some(owner) = handle.remote.owner() else { return Ok(None) };
        if !self.is_silent(owner.node) {
            return Ok(None);
        }
        context.wait()?;
        let ino = handle.file.ino;
        let Some((record, copies)) = self.meta.record_and_copies(ino)? else { return Ok(None) };
        let Some(copies) = copies.filter(|_| record.copied && record.owner == Some(owner)) else {
            return Ok(None);
        };
        let Some(mut gatherer) = Gatherer::new(self, ino, &copies)? else {
            return Ok(None);
        };
        if !gatherer.is_able() || offset >= copies.size {
            return Ok(gatherer.is_able().then_some(0));
        }
        let end = copies.size.min(offset + buffer.len() as u64);
        let (begin, bytes) = gatherer.read(offset..end)?;
        let from = usize::try_from(offset - begin).unwrap_or(0);
        let len = usize::try_from(end - offset).unwrap_or(0);
        buffer[..len].copy_from_slice(&bytes[from..from + len]);
        self.metrics.read_by_fragments.add(len as u64);
        Ok(Some(len))
    }
}
