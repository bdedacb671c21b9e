//! A rebuild gives objects and spill files their names back, under new inode numbers.
//!
//! # Invariants
//! - Only bytes count of which something says that they do: a map, a header that says whole, the replaced
//!   index. What is cut, or lacks a part that was elsewhere, is nobody's file: the caller sets it aside, and
//!   nothing of it is left in the namespace (`tests/rebuild_vouches.rs`).
//! - The source goes when the new one is durable, and not before (`tests/rebuild_again.rs`).

use std::collections::HashSet;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_meta::{NewInode, Record};
use forebay_store::backing::Access;
use forebay_store::{Bytes, Header, Object, Presence, Temporary};
use forebay_types::{FileKind, Ino};
use rustix::io::Errno;

use crate::clock;
use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::failpoints::fail_at;
use crate::lifecycle::former::Known;
use crate::lifecycle::trust::Trust;
use crate::node::Node;
use crate::residency::doubt;
use crate::residency::room::write_all;
use crate::residency::synced::{counts, is_announced, surely_there};

/// What there is of a file that waits to be brought back.
pub(crate) struct Found<'f> {
    pub(crate) header: &'f Header,
    /// The map of its object, if it is not whole.
    pub(crate) map: Option<&'f Presence>,
    /// What the replaced index says of it.
    pub(crate) known: Option<&'f Known>,
    /// What is believed of its object.
    pub(crate) trust: Trust,
    /// What is believed of the spill files.
    pub(crate) spills: Trust,
    /// What was made of files that an interrupted rebuild had brought back.
    pub(crate) again: &'f HashSet<u64>,
}

/// Where something was brought back.
pub(crate) struct Brought {
    pub(crate) path: String,
    pub(crate) ino: Ino,
}

/// What lies under an object.
enum Rest {
    /// It lacks nothing.
    Nothing,
    /// The version of the backing store that it was laid over.
    Published,
    /// The version that its spill file was to become.
    Announced,
    Spilled(Box<Below>),
}

/// A spill file, with what tells which of its bytes count: all of them without a map.
struct Below {
    file: Temporary,
    map: Option<Presence>,
}

impl Below {
    /// Whether the published version shows through it somewhere in these runs.
    fn shows_published(&self, runs: &[Range<u64>]) -> bool {
        let mut absent = Vec::new();
        if let Some(map) = &self.map {
            runs.iter().for_each(|run| map.missing_runs(run.clone(), &mut absent));
        }
        !absent.is_empty()
    }
}

/// The file that something is brought back as.
struct Target {
    record: Arc<Record>,
    /// It was made for that.
    made_in: Option<(Ino, Vec<u8>)>,
}

/// How a name may be taken.
#[derive(Clone, Copy)]
struct Claim {
    /// Only as a newer version of what has it: the rest comes from there.
    needs_version: bool,
    /// And only of the version that was announced.
    needs_announced: bool,
    /// Not from a version that is known: after a crash of the machine it may be less than that.
    is_doubtful: bool,
}

fn bad(why: &str) -> NodeError {
    NodeError::BadState(why.into())
}

/// A length that nobody vouches for is not brought back.
fn vouch_for_length(found: &Found<'_>, len: u64) -> Result<()> {
    let header = found.header;
    let wanted = match found.known {
        Some(known) if found.trust.lengths => known.header.size,
        // What was not synced is gone.
        Some(_) => 0,
        None => found.map.map_or(0, Presence::size),
    };
    let said = header.synced || header.covered && header.size > 0;
    if len < wanted || said && len < header.size { Err(bad("its end is missing")) } else { Ok(()) }
}

/// Whether an object may be less than the version that it was written over: after a crash of the machine
/// that is so if no program was told that it lasts, and some of it is not there.
fn is_doubtful(found: &Found<'_>, old: &dyn Object, len: u64) -> Result<bool> {
    let header = found.header;
    if found.trust.unsynced || counts(header, old, len)? {
        return Ok(false);
    }
    Ok(len == 0 || surely_there(header, old)? < len)
}

impl Node {
    /// Gives a dirty object its name back, under a new inode number; the old object goes when the
    /// new one is durable, or counts no more.
    pub(crate) fn readopt(&self, on: u8, found: &Found<'_>) -> Result<Option<Brought>> {
        let (tier, header) = (&*self.residency.tiers[usize::from(on)].tier, found.header);
        let path = PathBuf::from(&header.path);
        let (Some(name), Some(parent)) = (path.file_name(), path.parent()) else {
            return Ok(None);
        };
        let old = tier.open(header.ino)?;
        let stat = old.stat()?;
        vouch_for_length(found, stat.size)?;
        let mut missing = Vec::new();
        if let Some(map) = found.map {
            map.missing_runs(0..stat.size, &mut missing);
        }
        let present = complement(&missing, stat.size);
        if let Some(before) = self.brought_back_before(found, name.as_bytes(), &*old, &present)? {
            self.backing.remove_spill(header.ino)?;
            self.residency.give_up_object(on, Ino(header.ino))?;
            return Ok(Some(before));
        }
        let rest = self.rest_of(found, &missing)?;
        let claim = Claim {
            needs_version: match &rest {
                Rest::Nothing => false,
                Rest::Published | Rest::Announced => true,
                Rest::Spilled(below) => below.shows_published(&missing),
            },
            needs_announced: matches!(rest, Rest::Announced),
            is_doubtful: is_doubtful(found, &*old, stat.size)?,
        };
        let target = self.target_for(parent, name.as_bytes(), header, found.known, claim)?;
        let record = &target.record;
        let fill = |fresh: &dyn Object| self.fill(record, fresh, &missing, &rest);
        let brought = self.residency.readopt_object(tier, record, &*old, header, &fill);
        if let Err(error) = brought {
            drop(tier.remove(record.ino.0));
            self.undo(&target);
            return Err(error);
        }
        fail_at!("node.rebuild.copied");
        self.residency.found_newer(record.ino, stat.size, stat.mtime, None)?;
        self.meta.sync()?;
        fail_at!("node.rebuild.durable");
        if found.map.is_some() {
            // What it had there is in the new object.
            self.backing.remove_spill(header.ino)?;
            fail_at!("node.rebuild.spill_gone");
        }
        self.residency.give_up_object(on, Ino(header.ino))?;
        self.brought(record.ino).map(Some)
    }

    /// Gives a spill file its name back, under a new inode number, complete; the old one goes when the
    /// new one is durable.
    pub(crate) fn readopt_spill(
        &self,
        ino: u64,
        known: &Known,
        trust: Trust,
        again: &HashSet<u64>,
    ) -> Result<Option<Brought>> {
        let header = &known.header;
        let path = PathBuf::from(&header.path);
        let (Some(name), Some(parent)) = (path.file_name(), path.parent()) else {
            return Ok(None);
        };
        let known = Some(known);
        let found = Found { header, map: None, known, trust, spills: trust, again };
        let Some(old) = self.spill_below(&found)? else { return Ok(None) };
        let stat = old.file.file().stat()?;
        let size = old.map.as_ref().map_or(stat.size, |map| map.size().min(stat.size));
        if trust.lengths && size < header.size {
            return Err(bad("its end is missing"));
        }
        let all = 0..size;
        let mut absent = Vec::new();
        if let Some(map) = &old.map {
            map.missing_runs(all.clone(), &mut absent);
        }
        let present = complement(&absent, size);
        let bytes = old.file.file();
        if let Some(before) =
            self.brought_back_before(&found, name.as_bytes(), &**bytes, &present)?
        {
            self.backing.remove_spill(ino)?;
            return Ok(Some(before));
        }
        // What shows through must be the version that it was laid over.
        let needs_version = old.map.is_some();
        let claim = Claim { needs_version, needs_announced: false, is_doubtful: false };
        let target = self.target_for(parent, name.as_bytes(), header, known, claim)?;
        self.meta.sync()?;
        if let Err(error) = self.copy_spill(&target.record, &old, size) {
            drop(self.backing.remove_spill(target.record.ino.0));
            self.undo(&target);
            return Err(error);
        }
        // It may have been.
        self.residency.note_acknowledged(target.record.ino)?;
        self.residency.found_newer(target.record.ino, size, stat.mtime, None)?;
        self.meta.sync()?;
        fail_at!("node.rebuild.spill_durable");
        self.backing.remove_spill(ino)?;
        self.brought(target.record.ino).map(Some)
    }

    fn copy_spill(&self, record: &Arc<Record>, old: &Below, size: u64) -> Result<()> {
        let file = self.residency.files.get(record.ino);
        let mut location = file.location.write();
        let spill = self.residency.begin_spill_anew(&file, &mut location)?;
        fail_at!("node.rebuild.spill_begun");
        self.copy_below(record, old, &**spill.file(), 0..size)?;
        spill.set_len(size)?;
        spill.file().set_times(None, Some(old.file.file().stat()?.mtime))?;
        Ok(spill.sync(false)?)
    }

    fn brought(&self, ino: Ino) -> Result<Brought> {
        let path = self.meta.path(ino)?.unwrap_or_default();
        Ok(Brought { path: String::from_utf8_lossy(&path).into_owned(), ino })
    }

    /// Of what could not be brought back after all no file is left.
    fn undo(&self, target: &Target) {
        let Some((dir, name)) = &target.made_in else { return };
        if let Err(error) = self.meta.unlink(*dir, name, clock::wall_time(), false) {
            tracing::error!(%error, "an empty file that a rebuild has made stays");
        }
    }

    /// Where an interrupted rebuild has brought a file back completely, and had not removed what it was
    /// made of: the path, if that has nothing that the new one lacks.
    fn brought_back_before(
        &self,
        found: &Found<'_>,
        name: &[u8],
        old: &dyn Bytes,
        present: &[Range<u64>],
    ) -> Result<Option<Brought>> {
        if found.again.is_empty() {
            return Ok(None);
        }
        let ino = found.header.ino;
        let path = PathBuf::from(&found.header.path);
        let Some(dir) = path.parent().map(|dir| self.directory_at(dir)).transpose()?.flatten()
        else {
            return Ok(None);
        };
        for name in [name.to_vec(), recovered_name(name, ino)] {
            let Some(record) = self.meta.lookup(dir, &name)? else { continue };
            if !found.again.contains(&record.ino.0) {
                continue;
            }
            let same = |new: &dyn Bytes| -> Result<bool> {
                let mut same = new.len()? == old.len()?;
                for run in present {
                    same = same && doubt::is_equal(old, new, run.clone())?;
                }
                Ok(same)
            };
            let objects = self.residency.tiers.iter().map(|slot| slot.tier.open(record.ino.0));
            for object in objects.flatten() {
                if same(&*object)? {
                    return self.brought(record.ino).map(Some);
                }
            }
            if let Some(spill) = self.backing.open_spill(record.ino.0)?
                && same(&**spill.file())?
            {
                return self.brought(record.ino).map(Some);
            }
        }
        Ok(None)
    }

    /// Where the bytes are that an object lacks, if they can be vouched for.
    fn rest_of(&self, found: &Found<'_>, missing: &[Range<u64>]) -> Result<Rest> {
        let header = found.header;
        if missing.is_empty() {
            return Ok(Rest::Nothing);
        }
        if let Some(below) = self.spill_below(found)? {
            check_spilled(found, &below, missing)?;
            return Ok(Rest::Spilled(Box::new(below)));
        }
        let spilled = header.spilled || found.known.is_some_and(|known| known.spill.is_some());
        // The spill file may have become the version that was announced.
        match (spilled, header.pending) {
            (true, None) => Err(bad("the spill file that had the rest of it is gone")),
            (true, Some(_)) => Ok(Rest::Announced),
            (false, _) => Ok(Rest::Published),
        }
    }

    /// The spill file of a file.
    fn spill_below(&self, found: &Found<'_>) -> Result<Option<Below>> {
        let ino = found.header.ino;
        let Some(file) = self.backing.open_spill(ino)? else { return Ok(None) };
        let map = self.backing.open_spill_map(ino, found.spills.believed())?;
        let has_map = found.known.and_then(|known| known.spill).is_some_and(|note| note.has_map);
        if map.is_none() && has_map {
            return Err(bad("the map of its spill file is gone"));
        }
        Ok(Some(Below { file, map }))
    }

    /// The directory at a path, if there is one.
    fn directory_at(&self, path: &Path) -> Result<Option<Ino>> {
        let mut at = Ino::ROOT;
        for part in path.components() {
            let name = part.as_os_str().as_bytes();
            match self.writeback.find(&Context::DAEMON, at, name)? {
                Some(record) if record.is_directory() => at = record.ino,
                _ => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    /// The directory at a path, made where it is missing.
    fn directory_for(&self, path: &Path) -> Result<Ino> {
        let mut at = Ino::ROOT;
        for part in path.components() {
            let name = part.as_os_str().as_bytes();
            at = match self.writeback.find(&Context::DAEMON, at, name)? {
                Some(record) if record.is_directory() => record.ino,
                Some(_) => return Err(bad("something else has the name of its directory")),
                None => {
                    let new = NewInode::new(FileKind::Directory, 0o755, 0, 0);
                    self.meta.create(at, name, new, clock::wall_time())?.ino
                }
            };
        }
        Ok(at)
    }

    /// The file that an object belongs to: what has its name, if the object says that it is a newer
    /// version of that. Else something was renamed or made under this name since, and both are
    /// kept.
    fn target_for(
        &self,
        parent: &Path,
        name: &[u8],
        header: &Header,
        known: Option<&Known>,
        claim: Claim,
    ) -> Result<Target> {
        let there = match self.directory_at(parent)? {
            Some(dir) => self.writeback.find(&Context::DAEMON, dir, name)?,
            None => None,
        };
        if let Some(record) = &there {
            // The same inode alone may have been written by others.
            let version = record.backing.fingerprint;
            let is_newer = version.is_some_and(|version| is_announced(header, &version));
            let announced = header.pending.zip(version);
            let is_announced = announced.is_some_and(|(pending, at)| pending.same_content(&at));
            let fits = match claim.needs_announced || claim.is_doubtful {
                true => is_announced,
                false => is_newer,
            };
            if fits && record.attr.kind == FileKind::Regular && !record.is_dirty() {
                return Ok(Target { record: record.clone(), made_in: None });
            }
        }
        if claim.needs_announced {
            return Err(bad("the spill file that had the rest of it is gone"));
        }
        if claim.needs_version {
            return Err(bad("others have replaced or removed the version that had the rest of it"));
        }
        let dir = self.directory_for(parent)?;
        let mut name = match there {
            Some(_) => recovered_name(name, header.ino),
            None => name.to_vec(),
        };
        let first = name.clone();
        for number in 1.. {
            if self.writeback.find(&Context::DAEMON, dir, &name)?.is_none() {
                break;
            }
            name = with_suffix(&first, &format!("-{number}"));
        }
        // The object says what they were when it was made.
        let now = known.map_or(header, |known| &known.header);
        let new = NewInode::new(FileKind::Regular, now.mode, now.uid, now.gid);
        let record = self.meta.create(dir, &name, new, clock::wall_time())?;
        Ok(Target { record, made_in: Some((dir, name)) })
    }

    /// What a partly resident object lacks is taken from the backing store, or from its spill file.
    fn fill(
        &self,
        record: &Record,
        fresh: &dyn Object,
        missing: &[Range<u64>],
        rest: &Rest,
    ) -> Result<()> {
        for run in missing {
            match rest {
                Rest::Nothing => {}
                Rest::Spilled(below) => self.copy_below(record, below, fresh, run.clone())?,
                Rest::Published | Rest::Announced => {
                    let mut read = |at, part: &mut [u8]| self.read_published(record, at, part);
                    copy_run(fresh, run.clone(), &mut read)?;
                }
            }
        }
        fail_at!("node.rebuild.filled");
        Ok(())
    }

    /// Copies what a spill file has, and what shows through it.
    fn copy_below(
        &self,
        record: &Record,
        below: &Below,
        to: &dyn Bytes,
        run: Range<u64>,
    ) -> Result<()> {
        let upper = |at: u64, part: &mut [u8]| -> Result<()> {
            let read = read_full(&**below.file.file(), at, part)?;
            part[read..].fill(0);
            Ok(())
        };
        copy_run(to, run, &mut |at, part| {
            let Some(map) = &below.map else { return upper(at, part) };
            let mut absent = Vec::new();
            map.missing_runs(at..at + part.len() as u64, &mut absent);
            crate::residency::overlay::compose(&absent, at, part, upper, |at, part: &mut [u8]| {
                self.read_published(record, at, part)
            })
        })
    }

    /// Of the version that has the rest: what it lacks of that is no zeros.
    fn read_published(&self, record: &Record, at: u64, part: &mut [u8]) -> Result<()> {
        let published = self.writeback.open_backing(record, Access::Read)?;
        let read = read_full(&*published, at, part)?;
        let size = record.backing.fingerprint.map_or(0, |version| version.size);
        if at + (read as u64) < size.min(at + part.len() as u64) {
            return Err(bad("the version that has the rest of it is shorter than it was"));
        }
        part[read..].fill(0);
        Ok(())
    }
}

/// What a spill file must have of what lies over it.
fn check_spilled(found: &Found<'_>, below: &Below, missing: &[Range<u64>]) -> Result<()> {
    let file = below.file.file();
    let len = file.len()?;
    for run in missing {
        let mut absent = Vec::new();
        if let Some(map) = &below.map {
            map.missing_runs(run.clone(), &mut absent);
        }
        let last = complement(&absent, run.end).pop();
        if last.is_some_and(|last| last.end > len.max(run.start)) {
            return Err(bad("the end of its spill file is missing"));
        }
    }
    // A version that shows through needs a map. Whether there was one only the index can say.
    if below.map.is_none() && found.known.is_none() && found.header.base.is_some() {
        for run in missing {
            if file.seek_hole(run.start)?.is_some_and(|hole| hole < run.end) {
                return Err(bad("nobody knows whether its spill file had a map"));
            }
        }
    }
    Ok(())
}

/// What of a file of this length is in none of these runs, which are in order.
fn complement(runs: &[Range<u64>], len: u64) -> Vec<Range<u64>> {
    let mut rest = Vec::new();
    let mut at = 0;
    for run in runs.iter().cloned().chain(std::iter::once(len..len)) {
        if at < run.start {
            rest.push(at..run.start);
        }
        at = run.end;
    }
    rest
}

/// Beside a file of the same name.
fn recovered_name(name: &[u8], ino: u64) -> Vec<u8> {
    with_suffix(name, &format!(".forebay-recovered-{ino:x}"))
}

fn with_suffix(name: &[u8], suffix: &str) -> Vec<u8> {
    let mut name = name.to_vec();
    name.truncate(255 - suffix.len());
    name.extend_from_slice(suffix.as_bytes());
    name
}

fn copy_run(
    to: &dyn Bytes,
    run: Range<u64>,
    read: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut at = run.start;
    while at < run.end {
        let want = usize::try_from(run.end - at).unwrap_or(usize::MAX).min(buffer.len());
        read(at, &mut buffer[..want])?;
        write_all(to, &buffer[..want], at)?.ok_or(Errno::NOSPC)?;
        at += want as u64;
    }
    Ok(())
}

/// Reads until the buffer is full or the file ends.
fn read_full(from: &dyn Bytes, at: u64, buffer: &mut [u8]) -> Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match from.read_at(&mut buffer[done..], at + done as u64)? {
            0 => break,
            read => done += read,
        }
    }
    Ok(done)
}
