//! Clean copies of files on the tiers: lent to other nodes, and got from them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use forebay_peer::fetch::{Copy, Extent, Wanted};
use forebay_peer::message::{Fault, Presence};
use forebay_peer::{Buffer, BufferPool, Fetcher};
use forebay_store::BackingFile;
use forebay_types::{Fingerprint, Ino};
use xxhash_rust::xxh3::xxh3_64;

use super::Cluster;
use super::faults::fault;
use super::sources::{self, AT_A_TIME, SourceAt};
use crate::error::Result;
use crate::metrics::Source;
use crate::residency::data_location::{AtRange, Gaps, TierObject};
use crate::residency::fetch::FetchMode;
use crate::residency::files::{File, FileRef};
use crate::residency::seams::{Deliver, Extents, SharedCopy};

/// How long another node may take for one extent. One that is gone is noticed sooner, by its
/// connection.
const EXTENT_TIMEOUT: Duration = Duration::from_secs(12);
/// Who waits for another node's read of the backing store does not wait longer.
const MAX_WAIT: Duration = Duration::from_secs(15);
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));
/// The longest extent that is asked for.
const MAX: u64 = 8 << 20;
/// Who waits for somebody who fetches looks as often whether what he wants is there.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// The directory node of a file is told of so many extents at once that came from other nodes.
const ANNOUNCED: usize = 4;
/// Other nodes are given up for an extent after so many of them have failed.
const FAILURES: u32 = 3;

/// The number by which nodes know a version of a file: whoever has the same bytes says the same.
pub(super) fn version_of(print: &Fingerprint) -> u64 {
    let seconds = print.mtime.sec as u64;
    let parts = [print.ino, print.size, seconds, u64::from(print.mtime.nsec)];
    let mut bytes = parts.map(u64::to_le_bytes).concat();
    if print.edition != 0 {
        bytes.extend_from_slice(&print.edition.to_le_bytes());
    }
    xxh3_64(&bytes)
}

impl SharedCopy {
    fn part(&self, indexes: Vec<u64>) -> Extents {
        Extents { indexes, ..self.of.clone() }
    }
}

impl Cluster {
    /// Whether files may be read from other nodes.
    pub(crate) fn has_peers(&self) -> bool {
        self.peers.get().is_some_and(|peers| !peers.is_alone())
    }

    /// A version of a file as nodes share it; `None` if there is nobody to share it with.
    pub(crate) fn shared(&self, ino: Ino, print: &Fingerprint, unit: u64) -> Option<SharedCopy> {
        let sharable = print.size > 0 && unit > 0 && unit.min(print.size) <= MAX;
        (sharable && self.has_peers()).then(|| {
            let (version, size) = (version_of(print), print.size);
            let of = Extents { ino: ino.0, version, size, unit, indexes: Vec::new() };
            SharedCopy { of, at_once: false }
        })
    }

    /// Gets extents of a file from where that costs the backing store the least, and announces them
    /// to others when `deliver` has taken them, if they are not to be had at once.
    ///
    /// # Errors
    /// What the backing store says, and `deliver`.
    pub(crate) fn fetch_from_peers(
        &self,
        shared: &SharedCopy,
        backing: &dyn BackingFile,
        indexes: &[u64],
        deliver: Deliver<'_>,
    ) -> Result<bool> {
        for some in indexes.chunks(AT_A_TIME) {
            let mut todo = some.to_vec();
            let done = self.fetch_some_from_peers(shared, backing, &mut todo, deliver);
            if !matches!(done, Ok(true)) {
                // Others must not wait for what is not read here.
                self.renounce(shared, todo);
                return done;
            }
        }
        Ok(true)
    }

    fn fetch_some_from_peers(
        &self,
        shared: &SharedCopy,
        backing: &dyn BackingFile,
        todo: &mut Vec<u64>,
        deliver: Deliver<'_>,
    ) -> Result<bool> {
        let (until, mut pause) = (Instant::now() + MAX_WAIT, PAUSES.0);
        let mut failures = 0;
        while !todo.is_empty() {
            let ends = self.stopping.load(Ordering::Relaxed);
            let late = ends || Instant::now() >= until || failures >= FAILURES;
            let sources_of = match late {
                false => self.sources_of(&shared.part(todo.clone())),
                true => None,
            };
            let Some(sources_of) = sources_of else {
                let rest = todo.clone();
                return self.read_extents(shared, backing, &rest, todo, deliver);
            };
            let (mut from_backing, mut from_nodes) = (Vec::new(), Vec::new());
            for (index, from) in todo.iter().copied().zip(sources_of) {
                match from {
                    SourceAt::Backing => from_backing.push(index),
                    SourceAt::Nodes(nodes) => from_nodes.push((index, nodes)),
                    SourceAt::Wait => {}
                }
            }
            let waits = from_backing.is_empty() && from_nodes.is_empty();
            if !self.read_nodes(shared, &from_nodes, todo, deliver)?
                || !self.read_extents(shared, backing, &from_backing, todo, deliver)?
            {
                return Ok(false);
            }
            // What could not be had from where it should be.
            let failed = |(index, _): &(u64, Vec<u16>)| todo.contains(index).then_some(*index);
            let failed: Vec<u64> = from_nodes.iter().filter_map(failed).collect();
            failures += u32::from(!failed.is_empty());
            self.renounce(shared, failed);
            if waits {
                thread::sleep(pause);
                pause = (pause * 2).min(PAUSES.1);
            }
        }
        Ok(true)
    }

    /// Reads extents from the backing store.
    fn read_extents(
        &self,
        shared: &SharedCopy,
        backing: &dyn BackingFile,
        indexes: &[u64],
        todo: &mut Vec<u64>,
        deliver: Deliver<'_>,
    ) -> Result<bool> {
        let mut buffer = Vec::new();
        for index in indexes {
            let range = shared.of.range(*index);
            buffer.resize(usize::try_from(range.end - range.start).unwrap_or(0), 0);
            let read = backing.read_at(&mut buffer, range.start)?;
            // Fewer than there should be: another version, which who delivers will find out.
            if !deliver(range, &buffer[..read], Source::Fill)? {
                return Ok(false);
            }
            self.got(shared, *index, todo);
        }
        Ok(true)
    }

    /// Reads extents from other nodes, from several at a time; those that none delivers stay in
    /// `todo`.
    fn read_nodes(
        &self,
        shared: &SharedCopy,
        wanted: &[(u64, Vec<u16>)],
        todo: &mut Vec<u64>,
        deliver: Deliver<'_>,
    ) -> Result<bool> {
        let Some(peers) = self.peers.get() else { return Ok(true) };
        let mut having: BTreeMap<u16, Vec<(u64, u64)>> = BTreeMap::new();
        let mut extents = Vec::new();
        for (index, nodes) in wanted {
            let range = shared.of.range(*index);
            let len = range.end - range.start;
            extents.push(Extent { offset: range.start, len: u32::try_from(len).unwrap_or(0) });
            for node in nodes {
                having.entry(*node).or_default().push((range.start, len));
            }
        }
        let Extents { ino, version, size, unit, .. } = shared.of;
        let have = |(node, runs)| {
            let presence = Presence { version, size, runs, next: None };
            Some((peers.client(node)?, presence))
        };
        let having: Vec<_> = having.into_iter().filter_map(have).collect();
        let copies: Vec<Copy<'_>> = having
            .iter()
            .map(|(client, presence)| Copy { node: client, presence: Some(presence) })
            .collect();
        if copies.is_empty() {
            return Ok(true);
        }
        let (mut room, mut came) = (true, Vec::new());
        let wanted = Wanted { ino, version, extents: &extents, verify: None };
        let fetcher = Fetcher { timeout: EXTENT_TIMEOUT, ..Fetcher::default() };
        let fetched = fetcher.fetch(&wanted, &copies, |extent, bytes| -> Result<()> {
            let range = extent.offset..extent.offset + u64::from(extent.len);
            room = room && deliver(range, &bytes, Source::Peer)?;
            if room {
                let index = extent.offset / unit;
                todo.retain(|other| *other != index);
                came.push(index);
            }
            if came.len() >= ANNOUNCED {
                self.announce_aside(shared, std::mem::take(&mut came));
            }
            Ok(())
        });
        self.announce_aside(shared, came);
        let fetched = fetched?;
        for (place, error) in &fetched.failures {
            let node = copies[*place].node;
            tracing::debug!(?node, %error, "another node does not deliver a file");
        }
        Ok(room)
    }

    fn got(&self, shared: &SharedCopy, index: u64, todo: &mut Vec<u64>) {
        todo.retain(|other| *other != index);
        self.announce_part(shared, vec![index]);
    }

    /// As [`Cluster::announce`], unless only the whole file can be lent.
    fn announce_part(&self, shared: &SharedCopy, indexes: Vec<u64>) {
        if !shared.at_once {
            self.announce(shared, indexes);
        }
    }

    /// As [`Cluster::announce_part`], by a thread of its own if there is one: what is on its way here
    /// does not wait for an answer that comes behind it.
    fn announce_aside(&self, shared: &SharedCopy, indexes: Vec<u64>) {
        if shared.at_once || indexes.is_empty() {
            return;
        }
        let part = shared.part(indexes.clone());
        let aside = self.later(move |cluster| cluster.tell_directory_node(sources::HAVE, &part));
        if !aside {
            self.announce(shared, indexes);
        }
    }

    /// Tells others that extents of a file are here.
    pub(crate) fn announce(&self, shared: &SharedCopy, indexes: Vec<u64>) {
        self.tell_directory_node(sources::HAVE, &shared.part(indexes));
    }

    /// Tells others that extents of a file did not come here.
    pub(crate) fn renounce(&self, shared: &SharedCopy, indexes: Vec<u64>) {
        self.tell_directory_node(sources::FAILED, &shared.part(indexes));
    }

    /// Bytes of a clean copy, for another node, in one of `buffers`.
    ///
    /// They are read while nobody can change them, not when they are sent: what is sent later, by
    /// `sendfile` say, may be of another version by then.
    pub(crate) fn read_for_peer(
        &self,
        ino: Ino,
        version: u64,
        offset: u64,
        len: u32,
        buffers: &Arc<BufferPool>,
    ) -> Result<Buffer, Fault> {
        self.with_copy(ino, version, |copy| {
            let end = offset.saturating_add(len.into()).min(copy.bytes().len()?);
            if offset >= end || !copy.is_present(offset..end) {
                return Ok(None);
            }
            let mut bytes = buffers.take(usize::try_from(end - offset).unwrap_or(0));
            let read = copy.bytes().read_at(&mut bytes, offset)?;
            bytes.truncate(read);
            Ok(Some(bytes))
        })
    }

    /// What there is of a clean copy, for another node.
    pub(crate) fn presence_for_peer(
        &self,
        ino: Ino,
        version: u64,
        from: u64,
    ) -> Result<Presence, Fault> {
        self.with_copy(ino, version, |copy| {
            let size = copy.bytes().len()?;
            let mut missing = copy.absent(from..size.max(from));
            let mut runs = Vec::new();
            let mut at = from;
            missing.push(size..size);
            for gap in missing {
                if at < gap.start && runs.len() < Presence::RUNS {
                    runs.push((at, gap.start - at));
                }
                at = gap.end;
            }
            let last = runs.last().map_or(from, |(start, len)| start + len);
            let next = (runs.len() == Presence::RUNS && last < size).then_some(last);
            Ok(Some(Presence { version, size, runs, next }))
        })
    }

    /// Looks at the clean copy of a version of a file, which nobody changes meanwhile.
    fn with_copy<T>(
        &self,
        ino: Ino,
        version: u64,
        look: impl FnOnce(&TierObject) -> Result<Option<T>>,
    ) -> Result<T, Fault> {
        let resident = self.residency.residents.get(ino.0).filter(|resident| !resident.dirty);
        if resident.is_none() {
            return Err(Fault::NotHere);
        }
        let file = self.residency.files.get(ino);
        // Keeps out who would evict it.
        let location = file.location.read();
        let opened;
        let place = match (location.place(), self.residency.residents.get(ino.0)) {
            (Some(place), _) => place,
            (None, Some(resident)) if !location.is_loaded() => {
                opened = self.residency.open_place_to_read(ino, resident).map_err(fault)?;
                opened.as_ref().ok_or(Fault::NotHere)?
            }
            _ => return Err(Fault::NotHere),
        };
        self.check_lent(place, version)?;
        let found = look(place).map_err(fault)?;
        // Who writes marks the object first, so what was read before no mark is of this version.
        self.check_lent(place, version)?;
        found.ok_or(Fault::NotHere)
    }

    fn check_lent(&self, place: &TierObject, version: u64) -> Result<(), Fault> {
        let header = place.header().map_err(fault)?;
        let found = header.base.as_ref().map_or(0, version_of);
        match found == version && !header.dirty && !place.is_dirty() {
            true => Ok(()),
            false => Err(Fault::Stale { version: found }),
        }
    }

    /// The version of a partly resident clean file, and which of its extents in a range are absent.
    pub(crate) fn absent_extents(
        &self,
        file: &File,
        range: Range<u64>,
    ) -> Result<Option<(SharedCopy, Vec<u64>)>> {
        let location = file.location.read();
        let Some(place) = location.place().filter(|p| !p.is_dirty()) else {
            return Ok(None);
        };
        let Some(map) = place.map() else { return Ok(None) };
        let (unit, size) = (map.extent_size(), map.size());
        drop(map);
        let Some(print) = place.header()?.base.filter(|print| print.size == size) else {
            return Ok(None);
        };
        let Some(shared) = self.shared(file.ino, &print, unit) else { return Ok(None) };
        let mut indexes = Vec::new();
        for index in range.start / unit..range.end.min(size).div_ceil(unit) {
            let extent = shared.of.range(index);
            if place.absent(extent.clone()) == [extent] {
                indexes.push(index);
            }
        }
        Ok(Some((shared, indexes)))
    }

    /// Brings the extents in a range of a large file to its tier, as far as other nodes have a part in
    /// that; false when there is no room. What is left is the caller's to read.
    pub(crate) fn fill_shared(
        &self,
        file: &FileRef,
        range: Range<u64>,
        mode: FetchMode<'_>,
    ) -> Result<bool> {
        if !self.has_peers() {
            return Ok(true);
        }
        // One at a time: two would read the same from the backing store. What another one brings of
        // many extents may be what is wanted here.
        let (_one, shared, indexes) = loop {
            let one = file.fetching.try_lock_for(LOOK_AGAIN);
            let Some((shared, indexes)) = self.absent_extents(file, range.clone())? else {
                return Ok(true);
            };
            match one {
                _ if indexes.is_empty() => return Ok(true),
                Some(one) => break (one, shared, indexes),
                None => {}
            }
        };
        let Some((tier, base)) = self.residency.base_to_fill_from(file)? else { return Ok(true) };
        self.fetch_from_peers(&shared, &*base, &indexes, &mut |range, bytes, source| {
            let gaps = Gaps { tier, base: &base };
            self.residency.install_extent(file, gaps, AtRange { range, bytes }, source, mode)
        })
    }
}
