//! Scanning a tier after a crash, or on `forebay fsck`: what each file is; and setting files aside, so
//! that nothing is lost.

use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::ops::ControlFlow;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};

use crate::dir_tier::{
    MAP_SUFFIX, OBJECTS, fan, object_name, parse_name, read_header_path, read_label,
};
use crate::presence::MapFile;
use crate::{Believed, Header, Presence, Result, StoreError, Tier};

/// Directory of a tier that takes files which the repair does not understand.
pub const LOST: &str = "lost";

/// What a file of a tier is.
#[derive(Debug)]
pub enum Class {
    /// An object with a sound header; `map` says whether a map stands beside it.
    Valid {
        /// The header.
        header: Box<Header>,
        /// Whether there is a map.
        map: bool,
    },
    /// An object whose header says that it is partly resident, without a map: what it holds of the
    /// base version is unknown.
    MapMissing {
        /// The header.
        header: Box<Header>,
    },
    /// An object without a header and without bytes: its creation was cut short.
    Unfinished,
    /// An object with bytes and without a header.
    HeaderMissing,
    /// An object with a header that does not decode.
    HeaderTorn,
    /// An object with a header of a newer version.
    HeaderNewer,
    /// An object whose header the device does not give.
    HeaderUnreadable,
    /// An object that could not be looked at, for a reason that says nothing of it.
    NoAnswer(StoreError),
    /// A map without an object: its removal was cut short.
    MapWithoutObject,
    /// A file, directory or device that the tier did not make, or an object in a wrong place.
    Foreign,
}

/// One file of a tier.
#[derive(Debug)]
pub struct Finding {
    /// The file.
    pub path: PathBuf,
    /// The inode in its name, if it has one.
    pub ino: Option<u64>,
    /// What it is.
    pub class: Class,
}

/// Scans a tier, one finding at a time, in bounded memory. The tier must be locked by the caller
/// (no daemon may work on it), or files in the making are taken for unfinished ones.
pub fn scan(tier: &Path, each: &mut dyn FnMut(Finding) -> ControlFlow<()>) -> Result<()> {
    if read_label(tier)?.is_none() {
        return Err(StoreError::Foreign { path: tier.to_owned() });
    }
    let objects = tier.join(OBJECTS);
    for fan_dir in entries(&objects)? {
        let path = fan_dir?;
        let index = fan_index(&path);
        let Some(index) = index.filter(|_| path.is_dir() && !path.is_symlink()) else {
            if each(Finding { path, ino: None, class: Class::Foreign }).is_break() {
                return Ok(());
            }
            continue;
        };
        for file in entries(&path)? {
            if let Some(finding) = classify(file?, index)?
                && each(finding).is_break()
            {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn entries(dir: &Path) -> Result<impl Iterator<Item = Result<PathBuf>>> {
    let err = |dir: &Path, e| StoreError::io("list", dir, e);
    let dir_path = dir.to_owned();
    let list = std::fs::read_dir(dir).map_err(|e| err(dir, e))?;
    Ok(list.map(move |entry| entry.map(|e| e.path()).map_err(|e| err(&dir_path, e))))
}

fn fan_index(path: &Path) -> Option<u8> {
    let name = path.file_name()?.to_str()?;
    let index = u8::from_str_radix(name, 16).ok()?;
    (format!("{index:02x}") == name).then_some(index)
}

fn classify(path: PathBuf, index: u8) -> Result<Option<Finding>> {
    let meta = match std::fs::symlink_metadata(&path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(StoreError::io("stat", path, e)),
    };
    let kind = meta.file_type();
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or("");
    let stem = name.strip_suffix(MAP_SUFFIX);
    let ino = parse_name(stem.unwrap_or(name)).filter(|ino| fan(*ino) == index);
    let plain = kind.is_file() && !kind.is_fifo();
    let Some(ino) = ino.filter(|_| plain) else {
        return Ok(Some(Finding { path, ino: None, class: Class::Foreign }));
    };
    if stem.is_some() {
        // Maps are found with their objects; alone they are left over.
        let alone = !path.with_file_name(object_name(ino)).exists();
        let class = Class::MapWithoutObject;
        return Ok(alone.then_some(Finding { path, ino: Some(ino), class }));
    }
    let map = path.with_file_name(format!("{name}{MAP_SUFFIX}")).exists();
    let class = match read_header_path(&path, ino) {
        Ok(header) if header.whole || map => Class::Valid { header: Box::new(header), map },
        Ok(header) => Class::MapMissing { header: Box::new(header) },
        Err(StoreError::Version { .. }) => Class::HeaderNewer,
        Err(StoreError::Damaged { .. }) => Class::HeaderTorn,
        Err(e) if e.errno() == libc::ENODATA && meta.len() == 0 => Class::Unfinished,
        Err(e) if e.errno() == libc::ENODATA => Class::HeaderMissing,
        Err(e) if e.is_no_answer() => Class::NoAnswer(e),
        Err(_) => Class::HeaderUnreadable,
    };
    Ok(Some(Finding { path, ino: Some(ino), class }))
}

/// A name in `lost/` that neither a file nor the map of one has; the directory is made if need be.
pub(crate) fn free_name(tier: &Path, name: &str) -> Result<PathBuf> {
    let lost = tier.join(LOST);
    match DirBuilder::new().mode(0o700).create(&lost) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(StoreError::io("create directory", &lost, e));
        }
        _ => {}
    }
    let taken = |path: &Path| path.symlink_metadata().is_ok();
    let mut candidates = (0..u32::MAX).map(|n| match n {
        0 => lost.join(name),
        n => lost.join(format!("{name}-{n}")),
    });
    candidates
        .find(|path| !taken(path) && !taken(&map_beside(path)))
        .ok_or_else(|| StoreError::errno_of("find a free name in", lost, libc::EEXIST))
}

fn map_beside(path: &Path) -> PathBuf {
    let mut map = path.as_os_str().to_owned();
    map.push(MAP_SUFFIX);
    map.into()
}

/// Moves a file, and the map of an object with it, to a free name in `lost/`.
///
/// # Errors
/// When it can't be moved.
pub fn move_to_lost(tier: &Path, path: &Path) -> Result<PathBuf> {
    let name = path.file_name().unwrap_or(OsStr::new("file")).to_string_lossy().into_owned();
    let target = free_name(tier, &name)?;
    std::fs::rename(path, &target).map_err(|e| StoreError::io("move", path, e))?;
    match std::fs::rename(map_beside(path), map_beside(&target)) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(StoreError::io("move", map_beside(path), e))
        }
        _ => Ok(target),
    }
}

/// An object that was set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aside {
    /// The file.
    pub path: PathBuf,
    /// The inode in its name, if it has one.
    pub ino: Option<u64>,
    /// Whether there is a map beside it.
    pub map: bool,
}

/// What lies in `lost/` of a tier.
///
/// # Errors
/// When the directory can't be read.
pub fn set_aside(tier: &Path) -> Result<Vec<Aside>> {
    let lost = tier.join(LOST);
    let paths = match entries(&lost) {
        Ok(paths) => paths.collect::<Result<Vec<_>>>()?,
        Err(e) if e.errno() == libc::ENOENT => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let is_map = |path: &PathBuf| {
        let text = path.to_string_lossy();
        text.strip_suffix(MAP_SUFFIX).is_some_and(|object| Path::new(object).exists())
    };
    let mut found: Vec<Aside> = paths
        .into_iter()
        .filter(|path| !is_map(path))
        .map(|path| {
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or("");
            let ino = parse_name(name.split_once('-').map_or(name, |(name, _)| name));
            Aside { ino, map: map_beside(&path).exists(), path }
        })
        .collect();
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// The header of an object that was set aside.
///
/// # Errors
/// When it has none that can be read.
pub fn header_of(aside: &Aside) -> Result<Header> {
    let missing = || StoreError::errno_of("read the header of", &aside.path, libc::ENODATA);
    read_header_path(&aside.path, aside.ino.ok_or_else(missing)?)
}

/// Whether a file has no holes, so that it holds all bytes of a file of its length.
///
/// # Errors
/// When it can't be looked at.
pub fn is_full(path: &Path) -> Result<bool> {
    let err = |e: std::io::Error| StoreError::io("look for holes in", path, e);
    let file = std::fs::File::open(path).map_err(err)?;
    let len = file.metadata().map_err(err)?.len();
    let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0));
    Ok(len > 0 && hole.map_err(|e| err(e.into()))? >= len)
}

/// The first byte of a file that its device can't read, if there is one. Reads all that it has.
///
/// # Errors
/// When it can't be opened or looked through.
pub fn first_unreadable(path: &Path) -> Result<Option<u64>> {
    let err = |e: std::io::Error| StoreError::io("read through", path, e);
    let file = std::fs::File::open(path).map_err(err)?;
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        // Past the holes.
        at = match rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => return Ok(None),
            Err(rustix::io::Errno::IO) => return Ok(Some(at)),
            Err(e) => return Err(err(e.into())),
        };
        match rustix::io::retry_on_intr(|| rustix::io::pread(&file, &mut buffer[..], at)) {
            Ok(0) => return Ok(None),
            Ok(read) => at += read as u64,
            Err(rustix::io::Errno::IO) => return Ok(Some(at)),
            Err(e) => return Err(err(e.into())),
        }
    }
}

/// Whether the map beside an object that was set aside can be used.
#[must_use]
pub fn has_sound_map(aside: &Aside, ino: u64) -> bool {
    let path = map_beside(&aside.path);
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path);
    file.is_ok_and(|file| {
        Presence::load(MapFile::new(file.into(), path), ino, Believed::Synced).is_ok()
    })
}

/// Puts an object that was set aside back in its place, with its map. A header that could not be read
/// is to be made anew by the caller before.
///
/// # Errors
/// `Exists` if there is an object of this inode.
pub fn put_back(tier: &dyn Tier, aside: &Aside, ino: u64, header: &Header) -> Result<()> {
    let objects = tier.path().join(OBJECTS);
    if aside.map {
        // Before the object, which would count as whole without it.
        let fan_dir = objects.join(format!("{:02x}", fan(ino)));
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&fan_dir)
            .map_err(|e| StoreError::io("create directory", &fan_dir, e))?;
        let to = map_beside(&fan_dir.join(object_name(ino)));
        std::fs::rename(map_beside(&aside.path), &to)
            .map_err(|e| StoreError::io("move", &aside.path, e))?;
    }
    tier.adopt(ino, &aside.path, header)?.sync(false)?;
    tier.sync_dir(ino)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::DirTier;
    use rustix::fs::XattrFlags;

    fn classes(tier: &Path) -> Vec<String> {
        let mut found = Vec::new();
        scan(tier, &mut |finding| {
            let class = format!("{:?}", finding.class);
            found.push(class.split([' ', '(']).next().unwrap().to_owned());
            ControlFlow::Continue(())
        })
        .unwrap();
        found.sort();
        found
    }

    #[test]
    fn scan_of_a_damaged_tier_then_each_damage_is_named_and_what_is_set_aside_keeps_its_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let tier = DirTier::open(dir.path()).unwrap();
        let header = |ino, whole| Header { ino, whole, ..Header::default() };
        let path = |ino: u64| dir.path().join(format!("objects/{:02x}/{ino:016x}", fan(ino)));
        for ino in 1..=8 {
            let object = tier.create(ino, &header(ino, ino != 2 && ino != 7)).unwrap();
            object.write_at(b"bytes", 0).unwrap();
        }
        tier.create_map(2, 4096, 5).unwrap();
        rustix::fs::lremovexattr(path(3), "user.forebay").unwrap();
        rustix::fs::lsetxattr(path(4), "user.forebay", b"torn", XattrFlags::empty()).unwrap();
        rustix::fs::lremovexattr(path(5), "user.forebay").unwrap();
        std::fs::write(path(5), "").unwrap();
        tier.create_map(6, 4096, 5).unwrap();
        std::fs::remove_file(path(6)).unwrap();
        let mut newer = header(8, true).encode();
        newer[8] = 2;
        newer[144..152].fill(0);
        let sum = xxhash_rust::xxh3::xxh3_64(&newer);
        newer[144..152].copy_from_slice(&sum.to_le_bytes());
        rustix::fs::lsetxattr(path(8), "user.forebay", &newer, XattrFlags::empty()).unwrap();
        std::fs::write(path(1).with_file_name("note.txt"), "mine").unwrap();
        std::fs::write(dir.path().join("objects/README"), "mine").unwrap();

        let expected = [
            "Foreign",
            "Foreign",
            "HeaderMissing",
            "HeaderNewer",
            "HeaderTorn",
            "MapMissing",
            "MapWithoutObject",
            "Unfinished",
            "Valid",
            "Valid",
        ];
        assert_eq!(classes(dir.path()), expected);

        let mut findings = Vec::new();
        scan(dir.path(), &mut |finding| {
            findings.push(finding);
            ControlFlow::Continue(())
        })
        .unwrap();
        let damaged = |class: &Class| {
            matches!(class, Class::HeaderMissing | Class::HeaderTorn | Class::Foreign)
        };
        for finding in findings.iter().filter(|finding| damaged(&finding.class)) {
            move_to_lost(dir.path(), &finding.path).unwrap();
        }
        let left =
            ["HeaderNewer", "MapMissing", "MapWithoutObject", "Unfinished", "Valid", "Valid"];
        assert_eq!(classes(dir.path()), left);
        let lost = |name: &str| std::fs::read(dir.path().join("lost").join(name)).unwrap();
        assert_eq!(lost(&object_name(3)), b"bytes");
        assert_eq!(lost(&object_name(4)), b"bytes");
        assert_eq!((lost("note.txt"), lost("README")), (b"mine".into(), b"mine".into()));
    }
}
