//! The private area `.forebay` in the root of a backing store.
//!
//! - `tmp/t.OWNER.INO.RANDOM`: files being written, removed when their daemon is gone;
//! - `tmp/x.OWNER.INO.SELF.INODE.SIZE.SECONDS.NANOS`: a file that is about to be swapped with a
//!   published one. SELF is its own inode number in the backing file system and the rest tells the
//!   version that it replaces, so that a later daemon can tell which of the two it finds;
//! - `spill/y.` likewise for a file of the spill area, which must not be lost;
//! - `spill/OWNER.INO`, beside it `spill/OWNER.INO.map` where the spill file has only some of the
//!   extents, and `limbo/OWNER.KEY`;
//! - `lost/OWNER.INO` and `lost/OWNER.INO.map`, with `-1` and so on where that is taken: a spill file
//!   that no namespace knows;
//! - `nodes/OWNER.EPOCH.RANDOM/`: the same `t.`, `x.` and `y.`, and files (`d.`) and directories (`e.`) on their way
//!   out, of one start of a node that shares the store with others;
//! - `mounts/OWNER`: a note of a mount that may have what the backing store lacks.
//!
//! Numbers are hexadecimal.

use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::backing::{BackingStore, Cleaned, Dir, PRIVATE, TEMPORARY_PREFIX, Temporary};
use crate::dir_backing::DirBacking;
use crate::dir_file::DirFile;
use crate::dir_tier::random;
use crate::failpoints::fail_at;
use crate::incarnation::is_kept;
use crate::local::{LocalFile, retry};
use crate::ownership::shed_access_lists;
use crate::presence::{Believed, MapFile, Presence};
use crate::rename::rename_no_replace;
use crate::{Attributes, FileKind, Fingerprint, Result, StoreError, Timestamp};

/// What follows the name of a spill file in that of its map.
const MAP_SUFFIX: &str = ".map";

/// A subdirectory of the private area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Area {
    Tmp,
    Spill,
    Limbo,
    Lost,
    Mounts,
    Nodes,
}

impl Area {
    pub(crate) const ALL: [Self; 6] =
        [Self::Tmp, Self::Spill, Self::Limbo, Self::Lost, Self::Mounts, Self::Nodes];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tmp => "tmp",
            Self::Spill => "spill",
            Self::Limbo => "limbo",
            Self::Lost => "lost",
            Self::Mounts => "mounts",
            Self::Nodes => "nodes",
        }
    }
}

/// Handles of the subdirectories that have been used.
#[derive(Default)]
pub(crate) struct Areas([Option<Dir>; 6]);

/// Where a temporary stands.
pub(crate) struct TempPath {
    pub(crate) dir: Dir,
    pub(crate) name: OsString,
    pub(crate) ino: u64,
    /// Stays when dropped.
    pub(crate) spill: bool,
    /// Has its final name; nothing of it is left here.
    pub(crate) published: bool,
    /// Stands among the files of users, who may have exchanged it.
    pub(crate) beside: bool,
    /// Other names under which something may have been left, as the store gave no answer.
    unsettled: Mutex<Vec<OsString>>,
    strays: Arc<Strays>,
}

/// Where a temporary stands.
struct Stands {
    spill: bool,
    beside: bool,
}

impl Drop for TempPath {
    fn drop(&mut self) {
        if self.spill {
            return;
        }
        for name in self.unsettled.get_mut().drain(..) {
            self.strays.add(&self.dir, name);
        }
        if !self.published
            && let Err(e) = fs::unlinkat(&self.dir, &self.name, AtFlags::empty())
            && e != Errno::NOENT
        {
            self.strays.add(&self.dir, std::mem::take(&mut self.name));
        }
    }
}

/// Names that are remembered; what more there are the next daemon's clean-up removes.
const MAX_STRAYS: usize = 10_000;

/// One whose directory seems to be gone is tried so often.
const MAX_LOOKS: u32 = 5;
/// After so many failures in a row the store is left alone until the next time.
const MAX_FAILURES: usize = 8;

/// A file of this daemon that nobody uses any more and that could not be removed.
struct Stray {
    dir: Dir,
    name: OsString,
    /// How often its directory seemed to be gone.
    looks: u32,
}

/// Those, the next to be tried last.
#[derive(Default)]
pub(crate) struct Strays(Mutex<Vec<Stray>>);

impl Strays {
    pub(crate) fn add(&self, dir: &Dir, name: OsString) {
        let mut strays = self.0.lock();
        if strays.len() < MAX_STRAYS {
            strays.push(Stray { dir: dir.clone(), name, looks: 0 });
        }
    }
}

/// The name of a file that is about to be swapped. Among the files of users nobody sees it.
pub(crate) fn swap_name(
    place: &TempPath,
    owner: &str,
    own: u64,
    replaces: &Fingerprint,
) -> OsString {
    let hidden = if place.beside { TEMPORARY_PREFIX } else { "" };
    let kind = if place.spill { 'y' } else { 'x' };
    let Fingerprint { ino, size, mtime, .. } = replaces;
    let seconds = mtime.sec as u64;
    let nanos = mtime.nsec;
    let temporary = place.ino;
    format!("{hidden}{kind}.{owner}.{temporary:x}.{own:x}.{ino:x}.{size:x}.{seconds:x}.{nanos:x}")
        .into()
}

/// A name in `tmp/`, taken apart.
struct Swap {
    spill: bool,
    ino: u64,
    own: u64,
    replaces: Fingerprint,
}

fn parse_swap(name: &str) -> Option<Swap> {
    let mut parts = name.split('.');
    let spill = match parts.next()? {
        "x" => false,
        "y" => true,
        _ => return None,
    };
    let mut number = parts.skip(1).map(|part| u64::from_str_radix(part, 16).ok());
    let mut next = || number.next().flatten();
    let (ino, own, inode, size) = (next()?, next()?, next()?, next()?);
    let mtime = Timestamp::new(next()? as i64, u32::try_from(next()?).ok()?);
    let replaces = Fingerprint { ino: inode, size, mtime, ..Fingerprint::default() };
    Some(Swap { spill, ino, own, replaces })
}

impl DirBacking {
    /// The handle of a subdirectory, made if need be.
    pub(crate) fn area(&self, area: Area) -> Result<Dir> {
        let mut areas = self.areas.lock();
        let slot = &mut areas.0[area as usize];
        if let Some(dir) = slot {
            return Ok(dir.clone());
        }
        let dir = self.make_area(&self.private_area()?, area.name())?;
        *slot = Some(dir.clone());
        Ok(dir)
    }

    /// The handle of a subdirectory if it exists.
    pub(crate) fn existing_area(&self, area: Area) -> Result<Option<Dir>> {
        let found = self
            .open_area(&self.root, PRIVATE)
            .and_then(|private| self.open_area(&private, area.name()));
        match found {
            Ok(dir) => Ok(Some(dir)),
            Err(e) if e.errno() == libc::ENOENT => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Runs a step that makes a name in an area; again if another daemon tidied the area away, or its
    /// handle is out of date.
    pub(crate) fn in_area<T>(&self, area: Area, step: impl Fn(&Dir) -> Result<T>) -> Result<T> {
        let mut tries = 0;
        loop {
            match step(&self.area(area)?) {
                Err(e) if matches!(e.errno(), libc::ENOENT | libc::ESTALE) && tries < 3 => {
                    self.areas.lock().0[area as usize] = None;
                    tries += 1;
                }
                other => return other,
            }
        }
    }

    fn open_private_fd(&self, dir: &Dir, name: &OsStr, flags: OFlags) -> Result<OwnedFd> {
        let flags = flags | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        let open = || retry(|| fs::openat(dir, name, flags, mode));
        let opened = open().or_else(|error| {
            if error != Errno::ACCESS || flags.contains(OFlags::EXCL) {
                return Err(error);
            }
            // It has the mode already of the file that it was to become, which shuts its owner out.
            fs::chmodat(dir, name, mode, AtFlags::empty()).map_err(|_| error)?;
            open()
        });
        opened.map_err(|e| self.err("create", dir, name, e))
    }

    pub(crate) fn open_private(
        &self,
        dir: &Dir,
        name: &OsStr,
        flags: OFlags,
    ) -> Result<Arc<DirFile>> {
        let fd = self.open_private_fd(dir, name, flags)?;
        let file = LocalFile::with_births(fd, self.describe(dir, name), self.births);
        Ok(Arc::new(DirFile::new(file)))
    }

    fn new_temporary(&self, dir: &Dir, prefix: &str, ino: u64) -> Result<Temporary> {
        let beside = prefix == TEMPORARY_PREFIX;
        let random = u64::from_le_bytes(random()?);
        let name = OsString::from(format!("{prefix}{}.{ino:x}.{random:x}", self.owner));
        let flags = OFlags::CREATE | OFlags::EXCL;
        let fd = self.open_private_fd(dir, &name, flags).inspect_err(|e| {
            if e.errno() != libc::ENOENT {
                // It may have been made all the same.
                self.strays.add(dir, name.clone());
            }
        })?;
        // What is published has the access lists that are set, not those of where it was made.
        let shed = if beside { shed_access_lists(&fd) } else { Ok(()) };
        let file = LocalFile::with_births(fd, self.describe(dir, &name), self.births);
        let file = Arc::new(DirFile::new(file));
        let place = self.place(dir, name, ino, Stands { spill: false, beside });
        shed.map_err(|e| self.err("take access lists from", dir, &place.name, e))?;
        Ok(Temporary { file, place, sealed: false })
    }

    fn place(&self, dir: &Dir, name: OsString, ino: u64, stands: Stands) -> TempPath {
        let (dir, strays) = (dir.clone(), self.strays.clone());
        let Stands { spill, beside } = stands;
        let unsettled = Mutex::default();
        TempPath { dir, name, ino, spill, published: false, beside, unsettled, strays }
    }

    /// Removes what could not be removed before.
    pub(crate) fn clear_strays(&self) -> Result<Cleaned> {
        let mut cleaned = Cleaned::default();
        let mut due = std::mem::take(&mut *self.strays.0.lock());
        let (mut left, mut failed) = (Vec::new(), None);
        while left.len() < MAX_FAILURES
            && let Some(mut stray) = due.pop()
        {
            match self.clean_one(&stray.dir, &stray.name, &self.owner, &mut cleaned) {
                Ok(()) => {}
                // The directory itself is gone, unless the store says so by mistake.
                Err(e) if e.errno() == libc::ENOENT || e.errno() == libc::ESTALE => {
                    stray.looks += 1;
                    left.extend((stray.looks < MAX_LOOKS).then_some(stray));
                }
                Err(e) => {
                    failed.get_or_insert(e);
                    left.push(stray);
                }
            }
        }
        // One that stays must not keep the others: it comes last.
        left.append(&mut due);
        let mut strays = self.strays.0.lock();
        left.append(&mut strays);
        *strays = left;
        failed.map_or(Ok(cleaned), Err)
    }

    pub(crate) fn make_temporary(&self, ino: u64) -> Result<Temporary> {
        match self.own_dir() {
            None => self.in_area(Area::Tmp, |dir| self.new_temporary(dir, "t.", ino)),
            // Not made again: that it is gone says something.
            Some(own) => self.new_temporary(&own, "t.", ino).map_err(|e| self.or_shut_out(e)),
        }
    }

    pub(crate) fn make_temporary_in(&self, dir: &Dir, ino: u64) -> Result<Temporary> {
        self.new_temporary(dir, TEMPORARY_PREFIX, ino)
    }

    pub(crate) fn spill_name(&self, ino: u64) -> OsString {
        format!("{}.{ino:x}", self.owner).into()
    }

    fn spill_in(&self, dir: &Dir, ino: u64, flags: OFlags) -> Result<Temporary> {
        let name = self.spill_name(ino);
        let file = self.open_private(dir, &name, flags)?;
        let place = self.place(dir, name, ino, Stands { spill: true, beside: false });
        Ok(Temporary { file, place, sealed: false })
    }

    pub(crate) fn make_spill(&self, ino: u64) -> Result<Temporary> {
        self.in_area(Area::Spill, |dir| self.spill_in(dir, ino, OFlags::CREATE))
    }

    pub(crate) fn find_spill(&self, ino: u64) -> Result<Option<Temporary>> {
        let Some(dir) = self.existing_area(Area::Spill)? else { return Ok(None) };
        let find = || match self.spill_in(&dir, ino, OFlags::empty()) {
            Ok(found) => Ok(Some(found)),
            Err(e) if e.errno() == libc::ENOENT => Ok(None),
            Err(e) => Err(e),
        };
        if let Some(found) = find()? {
            return Ok(Some(found));
        }
        // A commit that got no answer may have left it under its other name.
        self.settle_swaps(&dir, ino)?;
        self.settle_own_swaps(ino)?;
        find()
    }

    /// An exchange of this file is not settled, and something may stand at `name`: whoever wants its
    /// spill file next has to look; of a temporary it is looked at later.
    pub(crate) fn leave_swapped(&self, place: &TempPath, name: &OsStr) {
        if place.spill {
            self.swapped.lock().insert(place.ino);
        } else {
            place.unsettled.lock().push(name.to_owned());
        }
    }

    fn settle_own_swaps(&self, ino: u64) -> Result<()> {
        match self.own_dir() {
            Some(own) => self.settle_swaps(&own, ino).map_err(|e| self.or_shut_out(e)),
            None => Ok(()),
        }
    }

    /// Ends what commits of a spill file that got no answer have left undone: the spill file gets its
    /// name back, and what it has replaced goes.
    fn settle_swaps(&self, dir: &Dir, ino: u64) -> Result<()> {
        let prefix = format!("y.{}.{ino:x}.", self.owner);
        let mut names = Vec::new();
        self.list(dir, &mut |batch| {
            let fits = batch.iter().map(|entry| &entry.name);
            let fits = fits.filter(|name| name.to_str().is_some_and(|n| n.starts_with(&prefix)));
            names.extend(fits.cloned());
            ControlFlow::Continue(())
        })?;
        let mut cleaned = Cleaned::default();
        for name in names {
            self.clean_one(dir, &name, &self.owner, &mut cleaned)?;
        }
        self.swapped.lock().remove(&ino);
        Ok(())
    }

    fn spill_map_name(&self, ino: u64) -> OsString {
        format!("{}.{ino:x}{MAP_SUFFIX}", self.owner).into()
    }

    pub(crate) fn make_spill_map(&self, ino: u64, extent_size: u64, size: u64) -> Result<Presence> {
        let name = self.spill_map_name(ino);
        self.in_area(Area::Spill, |dir| {
            let fd = self.open_private_fd(dir, &name, OFlags::CREATE | OFlags::TRUNC)?;
            Presence::create(MapFile::new(fd, self.describe(dir, &name)), ino, extent_size, size)
        })
    }

    pub(crate) fn find_spill_map(&self, ino: u64, believed: Believed) -> Result<Option<Presence>> {
        let Some(dir) = self.existing_area(Area::Spill)? else { return Ok(None) };
        let name = self.spill_map_name(ino);
        match self.open_private_fd(&dir, &name, OFlags::empty()) {
            Ok(fd) => {
                let file = MapFile::new(fd, self.describe(&dir, &name));
                Presence::load(file, ino, believed).map(Some)
            }
            Err(e) if e.errno() == libc::ENOENT => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub(crate) fn drop_spill(&self, ino: u64) -> Result<()> {
        let Some(dir) = self.existing_area(Area::Spill)? else { return Ok(()) };
        if self.swapped.lock().contains(&ino) {
            self.settle_own_swaps(ino)?;
            self.settle_swaps(&dir, ino)?;
        }
        // The file goes first: without its map it would count as complete.
        for name in [self.spill_name(ino), self.spill_map_name(ino)] {
            match fs::unlinkat(&dir, &name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => return Err(self.err("remove", &dir, &name, e)),
            }
        }
        Ok(())
    }

    /// Moves a spill file and its map to a free name in `lost/`.
    pub(crate) fn move_spill_aside(&self, ino: u64) -> Result<Option<PathBuf>> {
        let Some(spill) = self.existing_area(Area::Spill)? else { return Ok(None) };
        let own = self.spill_name(ino);
        if self.stat_if(&spill, &own)?.is_none() {
            return Ok(None);
        }
        let mut name = own.clone();
        for number in 1.. {
            let map = with_map_suffix(&name);
            let lost = self.area(Area::Lost)?;
            if self.stat_if(&lost, &name)?.is_none() && self.stat_if(&lost, &map)?.is_none() {
                break;
            }
            name = own.clone();
            name.push(format!("-{number}"));
        }
        self.in_area(Area::Lost, |lost| {
            // The map first: without it a spill file would count as complete.
            let maps = (self.spill_map_name(ino), with_map_suffix(&name));
            match rename_no_replace(&spill, &maps.0, lost, &maps.1) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => return Err(self.err("set aside", &spill, &maps.0, e)),
            }
            rename_no_replace(&spill, &own, lost, &name)
                .map_err(|e| self.err("set aside", &spill, &own, e))
        })?;
        Ok(Some(self.path.join(PRIVATE).join(Area::Lost.name()).join(name)))
    }

    /// Moves what stands in limbo under a key to a free name in `lost/`.
    pub(crate) fn move_parked_aside(&self, key: u64) -> Result<Option<PathBuf>> {
        let Some(limbo) = self.existing_area(Area::Limbo)? else { return Ok(None) };
        let own = self.name_when_parked(key);
        let mut first = OsString::from("limbo-");
        first.push(&own);
        let mut name = first.clone();
        for number in 1.. {
            let moved = self.in_area(Area::Lost, |lost| {
                match rename_no_replace(&limbo, &own, lost, &name) {
                    // Of the source: the area is there, or in_area makes it again.
                    Err(Errno::NOENT) if self.stat_if(&limbo, &own)?.is_none() => Ok(Some(false)),
                    Err(Errno::EXIST | Errno::NOTEMPTY) => Ok(None),
                    Err(e) => Err(self.err("set aside", &limbo, &own, e)),
                    Ok(()) => Ok(Some(true)),
                }
            })?;
            match moved {
                Some(false) => return Ok(None),
                Some(true) => break,
                None => name = first.clone(),
            }
            name.push(format!("-{number}"));
        }
        Ok(Some(self.path.join(PRIVATE).join(Area::Lost.name()).join(name)))
    }

    /// What was set aside: all in `lost/`, without maps, and in limbo what others had where a commit
    /// was interrupted, and what is of mounts that are nowhere noted any more.
    pub(crate) fn lost_files(&self) -> Result<Vec<PathBuf>> {
        let noted: Vec<String> = self.noted_mounts()?.into_iter().map(|(owner, _)| owner).collect();
        let is_aside = |area: Area, name: &OsStr| match (area, name.to_str()) {
            (Area::Lost, name) => !name.is_some_and(|name| name.ends_with(MAP_SUFFIX)),
            (_, Some(name)) => match name.split_once('.') {
                Some((owner, key)) if u64::from_str_radix(key, 16).is_ok() => {
                    owner != self.owner && !noted.iter().any(|noted| noted == owner)
                }
                _ => true,
            },
            (_, None) => true,
        };
        let mut found = Vec::new();
        for area in [Area::Lost, Area::Limbo] {
            let Some(dir) = self.existing_area(area)? else { continue };
            let place = self.path.join(PRIVATE).join(area.name());
            self.list(&dir, &mut |batch| {
                let names = batch.iter().map(|entry| &entry.name);
                let names = names.filter(|name| is_aside(area, name));
                found.extend(names.map(|name| place.join(name)));
                ControlFlow::Continue(())
            })?;
        }
        found.sort();
        Ok(found)
    }

    pub(crate) fn numbers_in(&self, area: Area) -> Result<Vec<u64>> {
        let mut numbers = Vec::new();
        let Some(dir) = self.existing_area(area)? else { return Ok(numbers) };
        let prefix = format!("{}.", self.owner);
        self.list(&dir, &mut |batch| {
            let names = batch.iter().filter_map(|entry| entry.name.to_str()?.strip_prefix(&prefix));
            let numbered = names.map(|name| name.strip_suffix(MAP_SUFFIX).unwrap_or(name));
            numbers.extend(numbered.filter_map(|hex| u64::from_str_radix(hex, 16).ok()));
            ControlFlow::Continue(())
        })?;
        numbers.sort_unstable();
        numbers.dedup();
        Ok(numbers)
    }

    /// Inodes with a spill file, under its own name or on its way.
    pub(crate) fn all_spills(&self) -> Result<Vec<u64>> {
        let mut all = self.numbers_in(Area::Spill)?;
        all.extend(self.spills_on_their_way()?);
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    /// Inodes whose spill file has the name that it has while it is exchanged with a published one, as a daemon
    /// leaves it that dies then. [`BackingStore::clean_temporaries`] gives it its name back, and so does whoever
    /// opens it.
    ///
    /// # Errors
    /// What the file system says.
    pub fn spills_on_their_way(&self) -> Result<Vec<u64>> {
        let (mut numbers, mut names) = (Vec::new(), Vec::new());
        let Some(dir) = self.existing_area(Area::Spill)? else { return Ok(numbers) };
        let prefix = format!("y.{}.", self.owner);
        self.list(&dir, &mut |batch| {
            let own = batch.iter().map(|entry| &entry.name);
            let own = own.filter(|name| name.to_str().is_some_and(|n| n.starts_with(&prefix)));
            names.extend(own.cloned());
            ControlFlow::Continue(())
        })?;
        for name in names {
            let Some(swap) = name.to_str().and_then(parse_swap) else { continue };
            // Else it is what was to be replaced, and the spill file is published.
            let stands = self.stat_if(&dir, &name)?.is_some_and(|found| found.ino == swap.own);
            numbers.extend((stands && swap.spill).then_some(swap.ino));
        }
        Ok(numbers)
    }

    pub(crate) fn name_when_parked(&self, key: u64) -> OsString {
        self.spill_name(key)
    }

    pub(crate) fn move_to_parked(&self, dir: &Dir, name: &OsStr, key: u64) -> Result<()> {
        fail_at!("store.limbo.before_move", &self.path);
        let kept = self.name_when_parked(key);
        // A missing source must not look like an area that was tidied away.
        self.stat(dir, name)?;
        self.in_area(Area::Limbo, |limbo| {
            rename_no_replace(dir, name, limbo, &kept)
                .map_err(|e| self.err("move to limbo", dir, name, e))
        })
    }

    pub(crate) fn link_to_parked(&self, dir: &Dir, name: &OsStr, key: u64) -> Result<()> {
        let kept = self.name_when_parked(key);
        self.stat(dir, name)?;
        self.in_area(Area::Limbo, |limbo| {
            fs::linkat(dir, name, limbo, &kept, AtFlags::empty())
                .map_err(|e| self.err("link in limbo", dir, name, e))
        })
    }

    pub(crate) fn move_from_parked(&self, key: u64, dir: &Dir, name: &OsStr) -> Result<()> {
        let kept = self.name_when_parked(key);
        let missing = || StoreError::errno_of("find in limbo", PathBuf::from(&kept), libc::ENOENT);
        let limbo = self.existing_area(Area::Limbo)?.ok_or_else(missing)?;
        let mut moved = rename_no_replace(&limbo, &kept, dir, name);
        if moved == Err(Errno::NOENT)
            && let Some(kept) = self.of_another_owner(&limbo, key)?
        {
            moved = rename_no_replace(&limbo, &kept, dir, name);
        }
        moved.map_err(|e| self.err("move from limbo to", dir, name, e))
    }

    /// What another owner, a node of the same cluster, has put into limbo under a key.
    fn of_another_owner(&self, limbo: &Dir, key: u64) -> Result<Option<OsString>> {
        let suffix = format!(".{key:x}");
        let mut found = Vec::new();
        self.list(limbo, &mut |batch| {
            let fits = batch.iter().map(|entry| &entry.name);
            let fits = fits.filter(|name| name.to_str().is_some_and(|n| n.ends_with(&suffix)));
            found.extend(fits.cloned());
            ControlFlow::Continue(())
        })?;
        // Of several nobody could tell which one is meant.
        Ok(found.pop().filter(|_| found.is_empty()))
    }

    pub(crate) fn clean(&self, owner: &str) -> Result<Cleaned> {
        let mut cleaned = Cleaned::default();
        // A spill file is swapped from where it stands.
        for area in [Area::Tmp, Area::Spill] {
            let Some(dir) = self.existing_area(area)? else { continue };
            let mut names = Vec::new();
            self.list(&dir, &mut |batch| {
                let own = batch.iter().filter(|entry| {
                    entry.name.to_str().is_some_and(|name| name.split('.').nth(1) == Some(owner))
                });
                names.extend(own.map(|entry| entry.name.clone()));
                ControlFlow::Continue(())
            })?;
            for name in names {
                self.clean_one(&dir, &name, owner, &mut cleaned)?;
            }
        }
        let more = self.shut_out(owner, None)?;
        cleaned.removed += more.removed;
        cleaned.spills.extend(more.spills);
        cleaned.kept.extend(more.kept);
        Ok(cleaned)
    }

    /// Decides about one name of an unfinished commit: the only bytes that nobody else has are a spill file's and
    /// those of a foreign file that a swap displaced.
    pub(crate) fn clean_one(
        &self,
        tmp: &Dir,
        name: &OsStr,
        owner: &str,
        cleaned: &mut Cleaned,
    ) -> Result<()> {
        let Some(found) = self.stat_if(tmp, name)? else { return Ok(()) };
        // As it is called in an area of its own.
        let prefix = TEMPORARY_PREFIX.as_bytes();
        let here = name.as_bytes().strip_prefix(prefix).map_or(name, OsStr::from_bytes);
        let swap = here.to_str().and_then(parse_swap);
        match swap {
            Some(swap) if found.ino == swap.own && swap.spill => {
                let back = OsString::from(format!("{owner}.{:x}", swap.ino));
                self.in_area(Area::Spill, |spill| {
                    rename_no_replace(tmp, name, spill, &back)
                        .map_err(|e| self.err("move back to the spill area", tmp, name, e))
                })?;
                cleaned.spills.push(swap.ino);
            }
            // An empty directory was about to be removed.
            _ if is_kept(here, found.kind)
                && fs::unlinkat(tmp, name, AtFlags::REMOVEDIR).is_ok() =>
            {
                cleaned.removed += 1;
            }
            swap if is_kept(here, found.kind) || is_foreign(swap.as_ref(), &found) => {
                self.in_area(Area::Limbo, |limbo| {
                    rename_no_replace(tmp, name, limbo, here)
                        .map_err(|e| self.err("keep in limbo", tmp, name, e))
                })?;
                cleaned.kept.push(here.to_owned());
            }
            _ => {
                fs::unlinkat(tmp, name, AtFlags::empty())
                    .map_err(|e| self.err("remove", tmp, name, e))?;
                cleaned.removed += 1;
            }
        }
        Ok(())
    }

    /// Removes areas in which nothing is left. The private area itself stays: what is not there
    /// another user could make first.
    pub(crate) fn remove_empty_areas(&self) -> Result<()> {
        *self.areas.lock() = Areas::default();
        let private = match self.open_area(&self.root, PRIVATE) {
            Ok(private) => private,
            Err(e) if e.errno() == libc::ENOENT => return Ok(()),
            Err(e) => return Err(e),
        };
        self.leave_own(&private);
        Area::ALL.iter().try_for_each(|area| {
            match fs::unlinkat(&private, area.name(), AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
                Err(e) => Err(self.err("remove directory", &private, area.name().as_ref(), e)),
            }
        })
    }
}

fn with_map_suffix(name: &OsStr) -> OsString {
    let mut map = name.to_owned();
    map.push(MAP_SUFFIX);
    map
}

/// Whether what a swap has left is a file of others that it displaced.
fn is_foreign(swap: Option<&Swap>, found: &Attributes) -> bool {
    swap.is_some_and(|swap| found.ino != swap.own && !displaced_is(found, &swap.replaces))
}

/// Whether a file is the version, but for the ctime, which the rename has changed.
pub(crate) fn displaced_is(found: &Attributes, version: &Fingerprint) -> bool {
    found.kind == FileKind::Regular && found.fingerprint().same_content(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_that_could_not_be_removed_when_the_store_is_well_again_then_goes_while_it_is_open()
    {
        let dir = tempfile::tempdir().expect("a directory");
        let store = DirBacking::open(dir.path(), "me").expect("opened");
        let names = |at: &str| -> Vec<String> {
            let found = std::fs::read_dir(dir.path().join(".forebay").join(at)).expect("listed");
            found.map(|entry| entry.expect("").file_name().to_string_lossy().into()).collect()
        };
        let temporary = store.make_temporary(7).expect("made");
        let path = dir.path().join(".forebay/tmp").join(&temporary.place.name);
        // What the store answers to the removal of this is an error.
        std::fs::remove_file(&path).expect("removed");
        std::fs::create_dir(&path).expect("in its place");
        drop(temporary);
        store.clear_strays().expect_err("still not");
        std::fs::remove_dir(&path).expect("removed");
        std::fs::write(&path, b"stray").expect("as before");
        // One that is in use stays.
        let used = store.make_temporary(8).expect("made");
        assert_eq!(store.clear_strays().expect("well again").removed, 1);
        assert_eq!(names("tmp"), [used.place.name.to_string_lossy()]);
        // Of an exchange without answer it is looked at what stands there.
        let place = &used.place;
        let own = used.file.stat().expect("there");
        let version = Fingerprint { ino: 1, ..Fingerprint::default() };
        let swapped = swap_name(place, "me", own.ino, &version);
        fs::renameat(&place.dir, &place.name, &place.dir, &swapped).expect("renamed");
        store.leave_swapped(place, &swapped);
        drop(used);
        store.clear_strays().expect("well");
        assert!(names("tmp").is_empty());
        // One that can't be removed keeps no other.
        let mut strays = [1, 2].map(|ino| Some(store.make_temporary(ino).expect("made")));
        let paths = [0, 1].map(|at: usize| {
            let name = &strays[at].as_ref().expect("there").place.name;
            dir.path().join(".forebay/tmp").join(name)
        });
        for path in &paths {
            std::fs::remove_file(path).expect("removed");
            std::fs::create_dir(path).expect("in its place");
        }
        strays.iter_mut().for_each(|stray| drop(stray.take()));
        std::fs::remove_dir(&paths[0]).expect("removed");
        std::fs::write(&paths[0], b"stray").expect("as before");
        store.clear_strays().expect_err("one of them still not");
        assert!(!paths[0].exists() && paths[1].exists());
        std::fs::remove_dir(&paths[1]).expect("removed");
        store.clear_strays().expect("all is well");
    }
}
