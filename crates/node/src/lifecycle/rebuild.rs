//! The namespace made anew: the backing store's tree as it is, and over it what the dirty objects say
//! about themselves, and what the index that is replaced still says about spill files.
//!
//! Nothing that may be the only copy is removed before its bytes are durable elsewhere. What can't be
//! given a name is set aside.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_meta::{NewInode, Record, Seq};
use forebay_store::recover;
use forebay_store::{
    BackingStore, Believed, DirBacking, Header, Object, Presence, StoreError, Temporary, Tier,
};
use forebay_types::{FileKind, Ino};

use crate::clock;
use crate::config::{NodeConfig, TierConfig};
use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::lifecycle::check::{
    CheckRequest, Checked, header_of, is_newer, is_unreadable, open_meta, path_of,
};
use crate::lifecycle::members::StoreHas;
use crate::lifecycle::recover::RECOVERED;
use crate::lifecycle::trust::{Trust, Trusted};
use crate::node::Node;
use crate::residency::recovered::put_back_as_dirty;
use crate::residency::synced::is_announced;
use crate::writeback::parked;

/// What the replaced index says of files.
#[derive(Default)]
struct Former {
    /// Of those that do not say it themselves, as headers, by inode number.
    headers: HashMap<u64, Header>,
    /// The paths of dirty files of which nothing is left.
    gone: Vec<String>,
}

/// A tier, with what is known of it.
struct TierToRebuild<'r> {
    index: usize,
    trusted: &'r Trusted,
    former: &'r Former,
}

/// Inodes of the backlog that are looked at together.
const PAGE: usize = 1000;

/// Makes the namespace anew.
pub(crate) fn rebuild(
    request: &CheckRequest,
    meta_dir: &Path,
    mut checked: Checked,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<Checked> {
    let backing = request.backing.clone().ok_or_else(|| {
        NodeError::Config("a rebuild needs the backing store: add --backing DIR".into())
    })?;
    let former = if meta_dir.is_dir() {
        let former = former_names(request, &backing, meta_dir).unwrap_or_else(|error| {
            tracing::warn!(
                %error,
                "the old index can't be read: spill files whose names only it knows are set aside"
            );
            Former::default()
        });
        std::fs::rename(meta_dir, free_aside(meta_dir))?;
        former
    } else {
        Former::default()
    };
    let tiers = request
        .tiers
        .iter()
        .map(|dir| TierConfig { dir: dir.clone(), size_bytes: u64::MAX / 4 })
        .collect();
    let config =
        NodeConfig { state_dir: request.state_dir.clone(), ..NodeConfig::new(backing, tiers) };
    let node = Node::start_for_rebuild(config)?;
    let trusted = node.trusted();
    node.tell_spill_maps(&trusted)?;
    node.number_above_objects()?;
    node.rebuild_parked(&mut checked)?;
    let mut incomplete = HashSet::new();
    for index in 0..node.residency.tiers.len() {
        let place = TierToRebuild { index, trusted: &trusted, former: &former };
        node.rebuild_tier(&place, &mut incomplete, &mut checked, progress)?;
    }
    node.rebuild_spills(&former, &incomplete, &mut checked)?;
    for path in &former.gone {
        checked.problem(
            false,
            format!("{path}: it was newer than the backing store, and its bytes are gone"),
        );
    }
    node.meta.set_setting(RECOVERED, b"1")?;
    node.note_members(StoreHas::NotKnown)?;
    node.residency.count_set_aside();
    checked.set_aside = node.residency.set_aside().list;
    if !node.stop(std::time::Duration::from_secs(60)) {
        checked.problem(false, "the rebuild's last work did not end in time".into());
    }
    Ok(checked)
}

/// Where the replaced index goes. An earlier one stays: it may be the one that knew the names.
fn free_aside(meta_dir: &Path) -> PathBuf {
    let names = (0..).map(|number: u32| match number {
        0 => meta_dir.with_extension("before-rebuild"),
        number => meta_dir.with_extension(format!("before-rebuild-{number}")),
    });
    names.into_iter().find(|path| !path.exists()).unwrap_or_default()
}

/// What the index says of dirty files that have a spill file, or an object without a sound header, or
/// neither.
fn former_names(request: &CheckRequest, backing: &Path, meta_dir: &Path) -> Result<Former> {
    let (mut wanted, mut sound) = (HashSet::new(), HashSet::new());
    let mut owner = None;
    for dir in &request.tiers {
        let tier = forebay_store::tier::DirTier::open(dir)?;
        owner.get_or_insert_with(|| tier.id().to_string());
        tier.list(&mut |ino, header| {
            let known = if header.is_err() { &mut wanted } else { &mut sound };
            known.insert(ino);
            ControlFlow::Continue(())
        })?;
        wanted.extend(recover::set_aside(dir)?.iter().filter_map(|aside| aside.ino));
    }
    wanted.extend(DirBacking::open(backing, &owner.unwrap_or_default())?.list_spills()?);
    let meta = open_meta(meta_dir)?;
    let mut former = Former::default();
    for ino in &wanted {
        match meta.get(Ino(*ino)) {
            Ok(record) if record.is_dirty() || record.spilled => {
                let header = Header { spilled: record.spilled, ..header_of(&meta, &record) };
                former.headers.insert(*ino, header);
            }
            _ => {}
        }
    }
    let mut after = Seq(0);
    loop {
        let page = meta.backlog(after, PAGE)?;
        for (seq, ino) in &page {
            after = *seq;
            let there = wanted.contains(&ino.0) || sound.contains(&ino.0);
            let Some(record) = meta.get(*ino).ok().filter(|_| !there) else { continue };
            let bytes = record.attr.kind == FileKind::Regular && record.attr.size > 0;
            if bytes && record.is_dirty() && !record.links.is_empty() {
                former.gone.push(path_of(&meta, *ino));
            }
        }
        if page.len() < PAGE {
            break;
        }
    }
    Ok(former)
}

impl Node {
    /// The maps of spill files say from here on what is believed of them. What can't be read is said when
    /// it is wanted.
    fn tell_spill_maps(&self, trusted: &Trusted) -> Result<()> {
        for ino in self.backing.list_spills()? {
            match self.backing.open_spill_map(ino, Believed::Synced) {
                Ok(Some(mut map)) if !is_there(&map, trusted, trusted.spills)? => {
                    map.believe_what_was_synced(true)?;
                }
                Err(StoreError::Damaged { .. } | StoreError::Version { .. }) | Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// A new inode must not get the number of an object that waits to be brought back.
    fn number_above_objects(&self) -> Result<()> {
        let mut highest = 0;
        for slot in &self.residency.tiers {
            slot.tier.list(&mut |ino, _| {
                highest = highest.max(ino & 0xffff_ffff_ffff);
                ControlFlow::Continue(())
            })?;
        }
        for ino in self.backing.list_spills()?.into_iter().chain(self.backing.list_parked()?) {
            highest = highest.max(ino & 0xffff_ffff_ffff);
        }
        Ok(self.meta.number_above(Ino(highest))?)
    }

    /// What the replaced index had in limbo is set aside: nobody knows its name any more, and it may be
    /// the only copy of a file that was about to get another one.
    fn rebuild_parked(&self, checked: &mut Checked) -> Result<()> {
        for stray in parked::strays(&self.meta, &*self.backing)? {
            let name = self.backing.parked_name(stray.ino.0);
            if let Some(kept) = parked::settle(&self.meta, &*self.backing, &stray)? {
                let (name, kept) = (name.display(), kept.display());
                checked.problem(
                    true,
                    format!(".forebay/limbo/{name}: nobody knows its name: set aside as {kept}"),
                );
            }
        }
        Ok(())
    }

    fn rebuild_tier(
        &self,
        place: &TierToRebuild<'_>,
        incomplete: &mut HashSet<u64>,
        checked: &mut Checked,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        let index = place.index;
        let tier = self.residency.tiers[index].tier.clone();
        self.put_back_known(&*tier, place.former, checked)?;
        let mut known = Vec::new();
        tier.list(&mut |ino, header| {
            known.push((ino, header));
            ControlFlow::Continue(())
        })?;
        // Of several that were written under one name the latest gets it.
        let written = |header: &forebay_store::Result<Header>| {
            header.as_ref().map_or((0, 0), |header| (header.mtime.sec, header.mtime.nsec))
        };
        known.sort_by_key(|(_, header)| std::cmp::Reverse(written(header)));
        for (ino, header) in known {
            checked.objects += 1;
            if !progress(checked.objects) {
                break;
            }
            let readopted = match &header {
                Ok(header) if self.is_left_behind(index, Ino(ino), header) => {
                    tier.remove(ino)?;
                    continue;
                }
                Ok(header) if header.dirty => {
                    checked.dirty += 1;
                    let map = sound_map(&*tier, header, place.trusted, index);
                    map.and_then(|map| self.readopt(&*tier, map.as_ref(), header))
                }
                // Clean copies are in the backing store, too.
                Ok(_) => {
                    tier.remove(ino)?;
                    continue;
                }
                Err(error) if error.errno() == libc::ENODATA && tier.open(ino)?.is_empty()? => {
                    tier.remove(ino)?;
                    continue;
                }
                Err(error) => {
                    let why = error.to_string();
                    incomplete.insert(ino);
                    set_aside(&*tier, ino, &why, checked);
                    continue;
                }
            };
            match readopted {
                Ok(Some(path)) => {
                    checked.problem(true, format!("{path}: brought back from object {ino}"));
                }
                Ok(None) => {
                    incomplete.insert(ino);
                    set_aside(&*tier, ino, "it has no name", checked);
                }
                Err(error @ (NodeError::Store(_) | NodeError::BadState(_))) => {
                    incomplete.insert(ino);
                    set_aside(&*tier, ino, &error.to_string(), checked);
                }
                Err(error) => checked.problem(false, format!("object {ino}: {error}")),
            }
        }
        Ok(())
    }

    /// Gives objects a header again that have none which can be read, where the replaced index knows
    /// what they are, and can't be wrong about which of their bytes count.
    fn put_back_known(
        &self,
        tier: &dyn Tier,
        former: &Former,
        checked: &mut Checked,
    ) -> Result<()> {
        let mut damaged = Vec::new();
        tier.list(&mut |ino, header| {
            if header.is_err() && former.headers.contains_key(&ino) {
                damaged.push(ino);
            }
            ControlFlow::Continue(())
        })?;
        for ino in damaged {
            tier.set_aside(ino)?;
        }
        for aside in recover::set_aside(tier.path())? {
            let Some((ino, known)) =
                aside.ino.and_then(|ino| Some((ino, former.headers.get(&ino)?)))
            else {
                continue;
            };
            let header = recover::header_of(&aside);
            if header.as_ref().is_err_and(is_unreadable) {
                // Nor does the device take another one.
                let (path, kept) = (known.path.display(), aside.path.display());
                let what = format!(
                    "{path}: its object is set aside as {kept}, and the device does not give its header"
                );
                checked.problem(true, what);
                continue;
            }
            if header.as_ref().is_err_and(is_newer) {
                let (path, kept) = (known.path.display(), aside.path.display());
                let what = format!(
                    "{path}: its object is set aside as {kept}: a newer version of Forebay wrote it"
                );
                checked.problem(true, what);
                continue;
            }
            let header = header.ok().filter(|header| header.dirty);
            let whole = header.as_ref().map_or(!aside.map, |header| header.whole);
            let sound = match whole {
                true => known.base.is_none() || recover::is_full(&aside.path).unwrap_or(false),
                false => recover::has_sound_map(&aside, ino),
            };
            if sound && tier.open(ino).is_err() {
                let header = header.unwrap_or_else(|| Header { whole, ..known.clone() });
                put_back_as_dirty(tier, &aside, ino, header)?;
                checked.problem(true, format!("object {ino}: its header was made anew"));
            }
        }
        Ok(())
    }

    /// Spill files: what the replaced index knows the name of comes back, all else is set aside. So is one
    /// of a file of which what lies over it, on a tier, is set aside: it is not the file without that.
    fn rebuild_spills(
        &self,
        former: &Former,
        incomplete: &HashSet<u64>,
        checked: &mut Checked,
    ) -> Result<()> {
        for ino in self.backing.list_spills()? {
            if self.meta.get(Ino(ino)).is_ok_and(|record| record.spilled) {
                // Made right now.
                continue;
            }
            let known = former.headers.get(&ino).filter(|header| header.spilled);
            let readopted = match known {
                Some(header) if !incomplete.contains(&ino) => self.readopt_spill(ino, header),
                _ => Ok(None),
            };
            match readopted {
                Ok(Some(path)) => {
                    checked.problem(true, format!("{path}: brought back from spill file {ino:x}"));
                }
                other => {
                    let why = match other {
                        Err(error) => error.to_string(),
                        Ok(_) if known.is_some() => "it is not complete without more".into(),
                        Ok(_) => "nobody knows its name".into(),
                    };
                    let of = known.map_or_else(String::new, |header| {
                        format!(" of {}", header.path.to_string_lossy())
                    });
                    let kept = match self.backing.set_spill_aside(ino)? {
                        Some(kept) => format!("set aside as {}", kept.display()),
                        None => "there is only its map".into(),
                    };
                    checked.problem(false, format!("spill file {ino:x}{of}: {why}: {kept}"));
                }
            }
        }
        Ok(())
    }

    /// Gives a spill file its name back, under a new inode number, complete; the old one goes when the
    /// new one is durable.
    fn readopt_spill(&self, ino: u64, header: &Header) -> Result<Option<String>> {
        let path = PathBuf::from(&header.path);
        let (Some(name), Some(parent)) = (path.file_name(), path.parent()) else {
            return Ok(None);
        };
        let Some(old) = self.backing.open_spill(ino)? else { return Ok(None) };
        let map = self.backing.open_spill_map(ino, Believed::Synced)?;
        let dir = self.directory_for(parent)?;
        let name = name.as_bytes();
        if map.is_some() {
            // What shows through must be the version that it was laid over.
            let found = self.writeback.find(&Context::DAEMON, dir, name)?;
            let found = found.and_then(|record| record.backing.fingerprint);
            let same =
                header.base.zip(found).is_some_and(|(base, found)| base.same_content(&found));
            if !same {
                return Ok(None);
            }
        }
        let record = self.record_for(dir, name, header)?;
        let stat = old.file().stat()?;
        let size = map.as_ref().map_or(stat.size, |map| map.size().min(stat.size));
        self.meta.sync()?;
        let file = self.residency.files.get(record.ino);
        let mut location = file.location.write();
        let spill = self.residency.begin_spill_anew(&file, &mut location)?;
        let mut buffer = vec![0; 1 << 20];
        let mut at = 0;
        while at < size {
            let want = usize::try_from(size - at).unwrap_or(usize::MAX).min(buffer.len());
            self.read_spilled(&record, &old, map.as_ref(), at, &mut buffer[..want])?;
            crate::residency::room::write_all(&**spill.file(), &buffer[..want], at)?
                .ok_or(rustix::io::Errno::NOSPC)?;
            at += want as u64;
        }
        spill.set_len(size)?;
        spill.file().set_times(None, Some(stat.mtime))?;
        spill.sync(false)?;
        // It may have been.
        self.residency.note_acknowledged(record.ino)?;
        self.residency.found_newer(record.ino, size, stat.mtime, None)?;
        self.meta.sync()?;
        self.backing.remove_spill(ino)?;
        let found = self.meta.path(record.ino)?.unwrap_or_default();
        Ok(Some(String::from_utf8_lossy(&found).into_owned()))
    }

    /// Gives a dirty object its name back, under a new inode number; the old object goes when the
    /// new one is durable.
    fn readopt(
        &self,
        tier: &dyn Tier,
        map: Option<&Presence>,
        header: &Header,
    ) -> Result<Option<String>> {
        let ino = header.ino;
        let path = PathBuf::from(&header.path);
        let (Some(name), Some(parent)) = (path.file_name(), path.parent()) else {
            return Ok(None);
        };
        let old = tier.open(ino)?;
        let dir = self.directory_for(parent)?;
        let record = self.record_for(dir, name.as_bytes(), header)?;
        let found = self.meta.path(record.ino)?.unwrap_or_default();
        let stat = old.stat()?;
        if let Some(map) = map {
            self.fill_absent(&record, &*old, map, stat.size)?;
        }
        self.residency.readopt_object(tier, &record, &*old, header)?;
        self.residency.found_newer(record.ino, stat.size, stat.mtime, None)?;
        self.meta.sync()?;
        // What it had there is in the new object.
        self.backing.remove_spill(ino)?;
        tier.remove(ino)?;
        Ok(Some(String::from_utf8_lossy(&found).into_owned()))
    }

    /// The directory at a path, made where it is missing.
    fn directory_for(&self, path: &Path) -> Result<Ino> {
        let mut at = Ino::ROOT;
        for part in path.components() {
            let name = part.as_os_str().as_bytes();
            at = match self.writeback.find(&Context::DAEMON, at, name)? {
                Some(record) => record.ino,
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
    fn record_for(&self, dir: Ino, name: &[u8], header: &Header) -> Result<Arc<Record>> {
        let mut name = name.to_vec();
        if let Some(record) = self.writeback.find(&Context::DAEMON, dir, &name)? {
            let found = record.backing.fingerprint;
            // The same inode alone may have been written by others.
            let is_newer = found.is_some_and(|found| is_announced(header, &found));
            if is_newer && !record.is_dirty() && record.attr.kind == FileKind::Regular {
                return Ok(record);
            }
            if !header.whole && self.backing.open_spill(header.ino)?.is_none() {
                let why = "others have replaced the version that had the rest of it";
                return Err(NodeError::BadState(why.into()));
            }
            let suffix = format!(".forebay-recovered-{:x}", header.ino);
            name.truncate(255 - suffix.len());
            name.extend_from_slice(suffix.as_bytes());
        }
        let new = NewInode::new(FileKind::Regular, header.mode, header.uid, header.gid);
        Ok(self.meta.create(dir, &name, new, clock::wall_time())?)
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
        let map = self.backing.open_spill_map(old.ino(), Believed::Synced)?;
        let mut buffer = vec![0; 1 << 20];
        for run in missing {
            let mut at = run.start;
            while at < run.end {
                let want = usize::try_from(run.end - at).unwrap_or(usize::MAX).min(buffer.len());
                let part = &mut buffer[..want];
                match &spill {
                    None => self.read_published(record, at, part)?,
                    Some(spill) => self.read_spilled(record, spill, map.as_ref(), at, part)?,
                }
                crate::residency::room::write_all(old, part, at)?
                    .ok_or(rustix::io::Errno::NOSPC)?;
                at += want as u64;
            }
        }
        Ok(())
    }

    fn read_published(&self, record: &Record, at: u64, part: &mut [u8]) -> Result<()> {
        let published =
            self.writeback.open_backing(record, forebay_store::backing::Access::Read)?;
        let read = published.read_at(part, at)?;
        part[read..].fill(0);
        Ok(())
    }

    /// Reads what a spill file has, and what shows through it.
    fn read_spilled(
        &self,
        record: &Record,
        spill: &Temporary,
        map: Option<&Presence>,
        at: u64,
        part: &mut [u8],
    ) -> Result<()> {
        let upper = |at, part: &mut [u8]| -> Result<()> {
            let read = spill.file().read_at(part, at)?;
            part[read..].fill(0);
            Ok(())
        };
        let Some(map) = map else { return upper(at, part) };
        let mut absent = Vec::new();
        map.missing_runs(at..at + part.len() as u64, &mut absent);
        crate::residency::overlay::compose(&absent, at, part, upper, |at, part: &mut [u8]| {
            self.read_published(record, at, part)
        })
    }
}

/// Whether what a map marks is there, synced or not. Without a state directory the map alone tells.
fn is_there(map: &Presence, trusted: &Trusted, trust: Trust) -> Result<bool> {
    match trusted.known {
        true => Ok(trust.unsynced),
        false => Ok(map.is_of_this_boot()?),
    }
}

/// The map that tells which bytes of a dirty object count; none of a whole one, whatever lies beside it.
fn sound_map(
    tier: &dyn Tier,
    header: &Header,
    trusted: &Trusted,
    index: usize,
) -> Result<Option<Presence>> {
    if header.whole {
        return Ok(None);
    }
    let Some(mut map) = tier.open_map(header.ino, Believed::Synced)? else {
        return Err(NodeError::BadState("its map is gone".into()));
    };
    if is_there(&map, trusted, trusted.tier(index))? {
        // Then nothing may be missing in it.
        return Ok(tier.open_map(header.ino, Believed::Written)?);
    }
    map.believe_what_was_synced(true)?;
    Ok(Some(map))
}

/// An object that can't be brought back.
fn set_aside(tier: &dyn Tier, ino: u64, why: &str, checked: &mut Checked) {
    let path = tier.open(ino).and_then(|object| object.header()).map(|header| header.path);
    let of = path.map_or_else(|_| String::new(), |path| format!(" of {}", path.to_string_lossy()));
    let what = match tier.set_aside(ino) {
        Ok(kept) => format!("object {ino}{of}: {why}: set aside as {}", kept.display()),
        Err(error) => format!("object {ino}{of}: {why}; {error}"),
    };
    checked.problem(false, what);
}
