//! fsck: tiers that no daemon uses are compared with the namespace, and the namespace with itself;
//! or built anew from what the objects say about themselves.

use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_meta::{
    Embedded, EmbeddedOptions, FileKind, Ino, MetaStore, NewInode, Options, Queue, Record,
};
use forebay_store::copy::{self, Cancel, Limits, Priority};
use forebay_store::tier::DirTier;
use forebay_store::{ErrorClass, Header, Object, Tier};

use crate::config::{NodeConfig, TierConfig};
use crate::context::Context;
use crate::convert;
use crate::error::{NodeError, Result};
use crate::node::Node;
use crate::recover::RECOVERED;

/// What to check.
#[derive(Debug, Clone, Default)]
pub struct CheckRequest {
    /// The tiers, fastest first.
    pub tiers: Vec<PathBuf>,
    /// The backing store; needed for a rebuild.
    pub backing: Option<PathBuf>,
    /// Where the state is, if not in the first tier.
    pub state_dir: Option<PathBuf>,
    /// Build the namespace anew from the objects.
    pub rebuild: bool,
    /// Repair what can be repaired without loss.
    pub repair: bool,
}

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    /// Objects that were looked at.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that the backing store lacks.
    pub dirty: u64,
    /// Problems found.
    pub problems: u64,
    /// Problems repaired.
    pub repaired: u64,
    /// Of the namespace of a cluster: inodes that were looked at.
    pub inodes: u64,
    /// Their names.
    pub names: u64,
    /// Objects that the next mount removes by itself: what a daemon that was killed left.
    pub leftovers: u64,
    /// Some of the problems, in words.
    pub details: Vec<String>,
}

/// Problems that are told in words; more are only counted.
const TOLD: usize = 100;

impl Checked {
    pub(crate) fn problem(&mut self, repaired: bool, what: String) {
        self.problems += 1;
        self.repaired += u64::from(repaired);
        if self.details.len() < TOLD {
            self.details.push(if repaired { format!("{what} (repaired)") } else { what });
        }
    }
}

/// Checks tiers that are not mounted. `progress` is told the number of objects seen.
///
/// # Errors
/// A tier in use, state that can't be read, or a rebuild without a backing store.
pub fn check(request: &CheckRequest, progress: &mut dyn FnMut(u64) -> bool) -> Result<Checked> {
    let mut tiers = Vec::new();
    for dir in &request.tiers {
        if !dir.join("forebay-tier").exists() {
            return Err(NodeError::Config(format!("{} is not a Forebay tier", dir.display())));
        }
        let tier = DirTier::open(dir)?;
        let lock = tier.lock()?;
        tiers.push((tier, lock));
    }
    let Some((first, _)) = tiers.first() else {
        return Err(NodeError::Config("name at least one tier".into()));
    };
    let state_dir = request.state_dir.clone().unwrap_or_else(|| first.path().join("state"));
    crate::cluster::bind_to_namespace(&state_dir, None)?;
    let state_dir = state_dir.join(crate::node::METADATA);
    if request.rebuild {
        drop(tiers);
        return rebuild(request, &state_dir, progress);
    }
    let meta = open_meta(&state_dir)?;
    let mut checked = Checked::default();
    let report = meta.check(request.repair)?;
    for violation in report.violations {
        checked.problem(violation.repaired, violation.what);
    }
    checked.problems += report.omitted;
    for (tier, _) in &tiers {
        check_tier(tier, &meta, request.repair, &mut checked, progress)?;
    }
    Ok(checked)
}

fn open_meta(dir: &Path) -> Result<MetaStore> {
    if !dir.is_dir() {
        return Err(NodeError::Config(format!(
            "there is no metadata in {}: `forebay fsck --rebuild` makes it anew from the tiers",
            dir.display()
        )));
    }
    let engine =
        Embedded::open(dir, &EmbeddedOptions::default()).map_err(forebay_meta::Error::from)?;
    Ok(MetaStore::open(Box::new(engine), &Options::default())?)
}

fn check_tier(
    tier: &DirTier,
    meta: &MetaStore,
    repair: bool,
    checked: &mut Checked,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<()> {
    let mut failed = None;
    tier.list(&mut |ino, header| {
        checked.objects += 1;
        if checked.objects.is_multiple_of(256) && !progress(checked.objects) {
            return ControlFlow::Break(());
        }
        match check_object(tier, meta, Ino(ino), header, checked) {
            Ok(None) => {}
            Ok(Some(what)) => {
                // Without a record or a header nobody can ever read it again.
                let repaired = repair && tier.remove(ino).is_ok();
                checked.problem(repaired, what);
            }
            Err(error) => {
                failed = Some(error);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    })?;
    failed.map_or(Ok(()), Err)
}

/// What is wrong with an object that may be removed, if anything.
fn check_object(
    tier: &DirTier,
    meta: &MetaStore,
    ino: Ino,
    header: forebay_store::Result<Header>,
    checked: &mut Checked,
) -> Result<Option<String>> {
    let header = match header {
        Ok(header) => header,
        Err(error) => {
            // Made, and not yet given its header.
            if error.class() == ErrorClass::NotFound && tier.open(ino.0)?.len()? == 0 {
                checked.leftovers += 1;
                return Ok(None);
            }
            return Ok(Some(format!("object {ino}: {error}")));
        }
    };
    let object = tier.open(ino.0)?;
    checked.bytes += object.allocated_bytes()?;
    checked.dirty += u64::from(header.dirty);
    if header.ino != ino.0 {
        return Ok(Some(format!("object {ino} says that it is {}", header.ino)));
    }
    let path = header.path.to_string_lossy().into_owned();
    let record = match meta.get(ino) {
        Ok(record) => record,
        Err(forebay_meta::Error::Stale(_)) if meta.setting(RECOVERED)?.is_some() => {
            // Removed from the namespace, and the daemon ended before it was from the tier.
            checked.leftovers += 1;
            return Ok(None);
        }
        Err(forebay_meta::Error::Stale(_)) if header.dirty => {
            // The namespace was lost.
            checked.problem(
                false,
                format!("object {ino} ({path}) is newer than the backing store but the metadata was lost: `forebay fsck --rebuild` brings it back"),
            );
            return Ok(None);
        }
        Err(forebay_meta::Error::Stale(_)) => {
            return Ok(Some(format!("object {ino} ({path}) belongs to no file")));
        }
        Err(error) => return Err(error.into()),
    };
    if !header.whole && tier.open_map(ino.0, header.dirty)?.is_none() {
        // Not completely fetched.
        checked.leftovers += 1;
        return Ok(None);
    }
    let current = record.backing.fingerprint.map(convert::store_fingerprint);
    // A change of attributes or of the name makes another change time, not another version.
    let same = match (header.base, current) {
        (Some(base), Some(current)) => base.same_content(&current),
        (base, current) => base == current,
    };
    if !header.dirty && !record.dirty && !same {
        // A copy of an older version.
        checked.leftovers += 1;
    }
    Ok(None)
}

/// Makes the namespace anew: the backing store's tree as it is, and over it what the dirty objects
/// say about themselves.
fn rebuild(
    request: &CheckRequest,
    state_dir: &Path,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<Checked> {
    let backing = request.backing.clone().ok_or_else(|| {
        NodeError::Config("a rebuild needs the backing store: add --backing DIR".into())
    })?;
    if state_dir.is_dir() {
        let aside = state_dir.with_extension("before-rebuild");
        drop(std::fs::remove_dir_all(&aside));
        std::fs::rename(state_dir, &aside)?;
    }
    let tiers = request
        .tiers
        .iter()
        .map(|dir| TierConfig { dir: dir.clone(), size_bytes: u64::MAX / 4 })
        .collect();
    let config =
        NodeConfig { state_dir: request.state_dir.clone(), ..NodeConfig::new(backing, tiers) };
    let node = Node::start_for_rebuild(config)?;
    let mut checked = Checked::default();
    node.number_above_objects()?;
    for index in 0..node.tiers.len() {
        node.rebuild_tier(index, &mut checked, progress)?;
    }
    node.meta.set_setting(RECOVERED, b"1")?;
    if !node.stop(std::time::Duration::from_secs(60)) {
        checked.problem(false, "the rebuild's last work did not end in time".into());
    }
    Ok(checked)
}

impl Node {
    /// A new inode must not get the number of an object that waits to be brought back.
    fn number_above_objects(&self) -> Result<()> {
        let mut highest = 0;
        for slot in &self.tiers {
            slot.tier.list(&mut |ino, _| {
                highest = highest.max(ino & 0xffff_ffff_ffff);
                ControlFlow::Continue(())
            })?;
        }
        Ok(self.meta.number_above(Ino(highest))?)
    }

    fn rebuild_tier(
        &self,
        index: usize,
        checked: &mut Checked,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        let tier = self.tiers[index].tier.clone();
        let mut known = Vec::new();
        tier.list(&mut |ino, header| {
            known.push((ino, header));
            ControlFlow::Continue(())
        })?;
        // Of several that were written under one name the latest gets it.
        let written = |header: &forebay_store::Result<Header>| {
            header.as_ref().map_or((0, 0), |header| (header.mtime.seconds, header.mtime.nanos))
        };
        known.sort_by_key(|(_, header)| std::cmp::Reverse(written(header)));
        for (ino, header) in known {
            checked.objects += 1;
            if !progress(checked.objects) {
                break;
            }
            let readopted = match &header {
                Ok(header) if header.dirty => {
                    checked.dirty += 1;
                    self.readopt(&*tier, ino, header)
                }
                // Clean copies are in the backing store, too.
                _ => Ok(None),
            };
            match readopted {
                Ok(Some(path)) => {
                    checked.problem(true, format!("{path}: brought back from object {ino}"));
                }
                Ok(None) => tier.remove(ino)?,
                Err(error) => checked.problem(false, format!("object {ino}: {error}")),
            }
        }
        Ok(())
    }

    /// Gives a dirty object its name back, under a new inode number; the old object goes when the
    /// new one is durable.
    fn readopt(&self, tier: &dyn Tier, ino: u64, header: &Header) -> Result<Option<String>> {
        let path = PathBuf::from(&header.path);
        let (Some(name), Some(parent)) = (path.file_name(), path.parent()) else {
            return Ok(None);
        };
        let old = tier.open(ino)?;
        let dir = self.directory_for(parent)?;
        let record = self.record_for(dir, name.as_bytes(), header)?;
        let found = self.meta.path(record.ino)?.unwrap_or_default();
        let stat = old.stat()?;
        self.adopt_bytes(tier, &record, &*old, header)?;
        self.meta.update(record.ino, None, |record| {
            record.attr.size = stat.size;
            record.attr.mtime = convert::time(stat.mtime);
            record.dirty = true;
            Queue::Yes
        })?;
        self.meta.sync()?;
        tier.remove(ino)?;
        Ok(Some(String::from_utf8_lossy(&found).into_owned()))
    }

    /// The directory at a path, made where it is missing.
    fn directory_for(&self, path: &Path) -> Result<Ino> {
        let mut at = Ino::ROOT;
        for part in path.components() {
            let name = part.as_os_str().as_bytes();
            at = match self.find(&Context::DAEMON, at, name)? {
                Some(record) => record.ino,
                None => {
                    let new = NewInode::new(FileKind::Directory, 0o755, 0, 0);
                    self.meta.create(at, name, new, convert::now())?.ino
                }
            };
        }
        Ok(at)
    }

    /// The file that an object belongs to: what has its name, if the object says that it is a newer
    /// version of that. Else something was renamed or made under this name since, and both are
    /// kept.
    fn record_for(&self, dir: Ino, name: &[u8], header: &Header) -> Result<Arc<Record>> {
        let mut name = name.to_vec();
        if let Some(record) = self.find(&Context::DAEMON, dir, &name)? {
            let found = record.backing.fingerprint.map(convert::store_fingerprint);
            let own = [header.base, header.pending];
            let is_newer =
                own.iter().flatten().any(|own| found.is_some_and(|found| own.ino == found.ino));
            if is_newer && !record.dirty && record.attr.kind == FileKind::File {
                return Ok(record);
            }
            let suffix = format!(".forebay-recovered-{:x}", header.ino);
            name.truncate(255 - suffix.len());
            name.extend_from_slice(suffix.as_bytes());
        }
        let new = NewInode::new(FileKind::File, header.mode, header.uid, header.gid);
        Ok(self.meta.create(dir, &name, new, convert::now())?)
    }

    fn adopt_bytes(
        &self,
        tier: &dyn Tier,
        record: &Record,
        old: &dyn Object,
        header: &Header,
    ) -> Result<()> {
        let len = old.len()?;
        let mut fresh = header.clone();
        fresh.ino = record.ino.0;
        fresh.whole = false;
        drop(tier.remove(record.ino.0));
        let object = tier.create(record.ino.0, &fresh)?;
        if let Some(presence) = tier.open_map(header.ino, true)? {
            self.fill_absent(record, old, &presence, len)?;
        }
        let limits = Limits::plain(Priority::Rebalance);
        copy::copy_range(old, &*object, 0..len, &limits, &Cancel::default())?;
        object.set_len(len)?;
        let stat = old.stat()?;
        object.set_times(Some(stat.atime), Some(stat.mtime))?;
        object.sync(false)?;
        fresh.whole = true;
        fresh.base = record.backing.fingerprint.map(convert::store_fingerprint);
        object.set_header(&fresh)?;
        Ok(object.sync(false)?)
    }

    /// What a partly resident object lacks is taken from the backing store, or from its spill file.
    fn fill_absent(
        &self,
        record: &Record,
        old: &dyn Object,
        presence: &forebay_store::Presence,
        len: u64,
    ) -> Result<()> {
        let mut missing = Vec::new();
        presence.missing_runs(0..len, &mut missing);
        if missing.is_empty() {
            return Ok(());
        }
        let spill = self.backing.open_spill(old.ino())?;
        let map = self.backing.open_spill_map(old.ino())?;
        let published = || self.open_backing(record, forebay_store::backing::Access::Read);
        let read = |from: &dyn forebay_store::BackingFile, at: u64, part: &mut [u8]| {
            let read = from.read_at(part, at)?;
            part[read..].fill(0);
            Ok(())
        };
        let mut buffer = vec![0; 1 << 20];
        for run in missing {
            let mut at = run.start;
            while at < run.end {
                let want = usize::try_from(run.end - at).unwrap_or(usize::MAX).min(buffer.len());
                let part = &mut buffer[..want];
                match (&spill, &map) {
                    (None, _) => read(&*published()?, at, part)?,
                    (Some(spill), None) => read(&**spill.file(), at, part)?,
                    (Some(spill), Some(map)) => {
                        let mut absent = Vec::new();
                        map.missing_runs(at..at + want as u64, &mut absent);
                        let upper = |at, part: &mut [u8]| read(&**spill.file(), at, part);
                        let lower = |at, part: &mut [u8]| read(&*published()?, at, part);
                        crate::io::compose(&absent, at, part, upper, lower)?;
                    }
                }
                crate::spill::write_all(old, part, at)?;
                at += want as u64;
            }
        }
        Ok(())
    }
}
