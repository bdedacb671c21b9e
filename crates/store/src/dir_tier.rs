//! A tier in a directory of a local file system.

use std::fs::{DirBuilder, File};
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::fs::{self, AtFlags, FlockOperation, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use crate::attributes::Births;
use crate::failpoints::fail_at;
use crate::header::{HeaderFault, array_at, u32_at, u64_at};
use crate::local::{LocalFile, retry, sync_by};
use crate::ownership::{check_own, make_own};
use crate::presence::MapFile;
use crate::tier::{LeaseGuard, Object, Tier, TierId, TierLock, TierUsage};
use crate::{
    AllocateMode, Attributes, Believed, Bytes, Header, Presence, Result, StoreError, Timestamp,
};

/// Extended attribute that holds the header of an object.
pub(crate) const XATTR: &str = "user.forebay";
/// Name of the file that makes a directory a tier.
pub(crate) const LABEL: &str = "forebay-tier";
const LABEL_NEW: &str = "forebay-tier.new";
const LABEL_MAGIC: &[u8; 8] = b"FBAYTIER";
const LABEL_VERSION: u32 = 1;
const LABEL_LEN: usize = 40;
const LOCK: &str = "lock";
/// A daemon that has unmounted holds the lock until its process is gone: so long it is waited for.
const ENDING: Duration = Duration::from_secs(5);
/// How often it is tried meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
pub(crate) const OBJECTS: &str = "objects";
pub(crate) const MAP_SUFFIX: &str = ".map";
/// Object files belong to the daemon alone; programs reach them through the mount.
const OBJECT_MODE: Mode = Mode::from_raw_mode(0o600);

/// A tier in a directory: one sparse file per inode in `objects/xx/`.
pub struct DirTier {
    path: PathBuf,
    id: TierId,
    root: OwnedFd,
    objects: OwnedFd,
    /// The 256 fan-out directories, opened when first needed.
    fans: Vec<OnceLock<OwnedFd>>,
    tells_stores: bool,
    births: Births,
    /// It is only looked at: its file system takes no changes.
    only_looked_at: bool,
    /// Fan-out directories that have been opened, and perhaps made.
    fans_opened: Changes,
    /// Objects that were taken out of each fan-out directory, also by the daemon before this one.
    removals: Vec<Changes>,
}

/// Counts changes of a directory, and those of them that a sync has covered.
#[derive(Default)]
struct Changes {
    made: AtomicU64,
    durable: AtomicU64,
}

impl Changes {
    /// Of a daemon that was killed nobody knows which of its changes were synced.
    fn of_who_was_before() -> Self {
        Self { made: AtomicU64::new(1), durable: AtomicU64::new(0) }
    }

    fn made_one(&self) {
        self.made.fetch_add(1, Ordering::AcqRel);
    }

    /// Has `sync` done if there is something for it to do.
    fn settle(&self, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        let seen = self.made.load(Ordering::Acquire);
        if self.durable.load(Ordering::Acquire) < seen {
            sync()?;
            // Only now: others that come meanwhile must not take it for done.
            self.durable.fetch_max(seen, Ordering::AcqRel);
        }
        Ok(())
    }
}

/// File systems that write-protect pages of shared mappings, to be told of the first store into each,
/// by their numbers in statfs(2): ext2 to ext4, XFS, btrfs, f2fs.
const TELLING: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];

/// Fan-out directory of an inode. The numbers of one node often differ in few bits only, so that
/// they are spread by a multiplication (Knuth, TAOCP vol. 3, 6.4: Fibonacci hashing).
pub(crate) fn fan(ino: u64) -> u8 {
    (ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

pub(crate) fn object_name(ino: u64) -> String {
    format!("{ino:016x}")
}

/// The inode number in an object's name; only the canonical spelling counts.
pub(crate) fn parse_name(name: &str) -> Option<u64> {
    let canonical =
        name.len() == 16 && name.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    canonical.then(|| u64::from_str_radix(name, 16).ok()).flatten()
}

impl DirTier {
    /// Opens a tier, making it in an empty or missing directory. Refuses a directory with other
    /// files in it, and a tier of a newer version. Takes no lock: see [`Tier::lock`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let made = || {
            make_dir(path)?;
            let path = std::fs::canonicalize(path).map_err(|e| StoreError::io("open", path, e))?;
            let known = read_label(&path)?;
            let root = make_own(&path)?;
            let id = match known {
                Some(id) => id,
                None => format_tier(&path, TierId(random()?))?,
            };
            let objects = open_objects(&root, &path)?;
            Self::of(path, id, root, objects)
        };
        made().map_err(|error: StoreError| error.or_read_only(path))
    }

    /// Opens a tier whose file system takes no changes, to look at it.
    ///
    /// # Errors
    /// [`StoreError::Foreign`] where there is none, and what the file system says.
    pub fn open_to_look(path: &Path) -> Result<Self> {
        let id = read_label(path)?.ok_or_else(|| StoreError::Foreign { path: path.to_owned() })?;
        check_own(path)?;
        let objects = open_dir(&path.join(OBJECTS))?;
        let tier = Self::of(path.to_owned(), id, open_dir(path)?, objects)?;
        Ok(Self { only_looked_at: true, ..tier })
    }

    fn of(path: PathBuf, id: TierId, root: OwnedFd, objects: OwnedFd) -> Result<Self> {
        let fans = (0..256).map(|_| OnceLock::new()).collect();
        let removals = (0..256).map(|_| Changes::of_who_was_before()).collect();
        let fans_opened = Changes::default();
        let kind = fs::fstatfs(&objects).map_err(|e| StoreError::io("statfs", &path, e))?.f_type;
        let tells_stores = u64::try_from(kind).is_ok_and(|kind| TELLING.contains(&kind));
        Ok(Self {
            path,
            id,
            births: Births::of(&objects),
            root,
            objects,
            fans,
            only_looked_at: false,
            fans_opened,
            removals,
            tells_stores,
        })
    }

    fn object_path(&self, ino: u64) -> PathBuf {
        self.path.join(format!("{OBJECTS}/{:02x}/{ino:016x}", fan(ino)))
    }

    fn map_path(&self, ino: u64) -> PathBuf {
        self.path.join(format!("{OBJECTS}/{:02x}/{ino:016x}{MAP_SUFFIX}", fan(ino)))
    }

    /// The fan-out directory of an inode; made if `create`, else an ENOENT.
    fn fan_dir(&self, ino: u64, create: bool) -> rustix::io::Result<&OwnedFd> {
        let index = fan(ino);
        let slot = &self.fans[usize::from(index)];
        if let Some(fd) = slot.get() {
            return Ok(fd);
        }
        let name = format!("{index:02x}");
        if create {
            match fs::mkdirat(&self.objects, &name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(e),
            }
        }
        let fd = retry(|| {
            fs::openat(
                &self.objects,
                &name,
                OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                Mode::empty(),
            )
        })?;
        self.fans_opened.made_one();
        Ok(slot.get_or_init(|| fd))
    }

    fn open_at(&self, ino: u64, name: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let dir = self.fan_dir(ino, flags.contains(OFlags::CREATE))?;
        let how = if self.only_looked_at { OFlags::RDONLY } else { OFlags::RDWR };
        let flags = flags | how | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        retry(|| fs::openat(dir, name, flags, OBJECT_MODE))
    }

    fn unlink_at(&self, ino: u64, name: &str) -> rustix::io::Result<()> {
        fs::unlinkat(self.fan_dir(ino, false)?, name, AtFlags::empty())
    }

    fn removals_of(&self, ino: u64) -> &Changes {
        &self.removals[usize::from(fan(ino))]
    }

    fn object(&self, ino: u64, fd: OwnedFd) -> DirObject {
        DirObject { ino, file: LocalFile::new(fd, self.object_path(ino)) }
    }

    fn list_fan(
        &self,
        index: u8,
        each: &mut dyn FnMut(u64, Result<Header>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let path = self.path.join(format!("{OBJECTS}/{index:02x}"));
        let entries = match std::fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Ok(ControlFlow::Continue(()));
            }
            Err(e) => return Err(StoreError::io("list", path, e)),
        };
        for entry in entries {
            let entry = entry.map_err(|e| StoreError::io("list", &path, e))?;
            let name = entry.file_name();
            let Some(ino) = name.to_str().and_then(parse_name).filter(|ino| fan(*ino) == index)
            else {
                continue;
            };
            let header = match read_header_path(&entry.path(), ino) {
                Err(e) if e.errno() == libc::ENOENT => continue,
                other => other,
            };
            if each(ino, header).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

fn make_dir(path: &Path) -> Result<()> {
    match DirBuilder::new().recursive(true).mode(0o700).create(path) {
        Ok(()) => Ok(()),
        Err(e) => Err(StoreError::io("create directory", path, e)),
    }
}

/// The directory of the objects, made if need be. What was in it before belongs to this user, as was
/// checked with the tier.
fn open_objects(root: &OwnedFd, path: &Path) -> Result<OwnedFd> {
    let err = |e: Errno| StoreError::io("open", path.join(OBJECTS), e);
    match fs::mkdirat(root, OBJECTS, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(err(e)),
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let objects = retry(|| fs::openat(root, OBJECTS, flags, Mode::empty())).map_err(err)?;
    fs::fchmod(&objects, Mode::RWXU).map_err(err)?;
    Ok(objects)
}

fn open_dir(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    retry(|| fs::open(path, flags, Mode::empty())).map_err(|e| StoreError::io("open", path, e))
}

/// Checks that a directory is a tier or can become one, without touching it. A directory that is
/// not there can.
///
/// # Errors
/// [`StoreError::Foreign`], an unknown version, a damaged label.
pub fn check_dir(path: &Path) -> Result<()> {
    if path.exists() { read_label(path).map(drop) } else { Ok(()) }
}

/// The identity of a tier, without touching it; `None` if the directory is not one yet, or not there.
///
/// # Errors
/// As [`check_dir`].
pub fn identity(path: &Path) -> Result<Option<TierId>> {
    if path.exists() { read_label(path) } else { Ok(None) }
}

fn is_sound(label: &[u8]) -> bool {
    label.len() == LABEL_LEN && xxh3_64(&label[..32]) == u64_at(label, 32)
}

/// Whether a label that claims another version is merely damaged: a sound one has its checksum.
#[must_use]
pub fn is_label_torn(path: &Path) -> bool {
    std::fs::read(path.join(LABEL)).is_ok_and(|label| !is_sound(&label))
}

/// The identity of a tier, or `None` for a directory that may become one.
pub(crate) fn read_label(path: &Path) -> Result<Option<TierId>> {
    let label = path.join(LABEL);
    let mut bytes = Vec::new();
    match File::open(&label) {
        Ok(file) => {
            // One byte more than a label tells a longer file from a label.
            file.take(LABEL_LEN as u64 + 1).read_to_end(&mut bytes).map_err(|e| {
                StoreError::io("read", &label, e).or_damaged("tier label, which can't be read")
            })?;
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return if may_become_tier(path)? {
                Ok(None)
            } else if path.join(OBJECTS).is_dir() {
                Err(StoreError::Damaged { path: label, what: "tier label" })
            } else {
                Err(StoreError::Foreign { path: path.to_owned() })
            };
        }
        Err(e) => return Err(StoreError::io("open", &label, e)),
    }
    if bytes.len() < 12 || &bytes[..8] != LABEL_MAGIC {
        return Err(StoreError::Damaged { path: label, what: "tier label" });
    }
    let found = u32_at(&bytes, 8);
    if found != LABEL_VERSION {
        return Err(StoreError::Version { path: label, found, known: LABEL_VERSION });
    }
    if !is_sound(&bytes) {
        return Err(StoreError::Damaged { path: label, what: "tier label" });
    }
    Ok(Some(TierId(array_at(&bytes, 16))))
}

/// The daemon's own state (log, metadata), which may be there before the tier is.
const STATE_DIR: &str = "state";

fn may_become_tier(path: &Path) -> Result<bool> {
    let entries = std::fs::read_dir(path).map_err(|e| StoreError::io("list", path, e))?;
    for entry in entries {
        let name = entry.map_err(|e| StoreError::io("list", path, e))?.file_name();
        if name != LABEL_NEW && name != STATE_DIR && name != "lost+found" {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Writes the label: to a temporary name, synced, renamed, so that a crash leaves no half label.
fn format_tier(path: &Path, id: TierId) -> Result<TierId> {
    let label = path.join(LABEL_NEW);
    let err = |operation, e| StoreError::io(operation, &label, e);
    let mut bytes = Vec::with_capacity(LABEL_LEN);
    bytes.extend_from_slice(LABEL_MAGIC);
    bytes.extend_from_slice(&LABEL_VERSION.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&id.0);
    bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
    let mut file = File::create(&label).map_err(|e| err("create", e))?;
    // A tier needs room for headers: find out now rather than at the first file.
    if let Err(e) = fs::fsetxattr(&file, XATTR, &[0; Header::ENCODED_MAX], XattrFlags::empty()) {
        let _ = std::fs::remove_file(&label);
        return Err(if is_too_small(path, e) {
            StoreError::SmallAttributes { path: path.to_owned(), needed: Header::ENCODED_MAX }
        } else {
            err("set a user extended attribute (a tier needs them) on", e.into())
        });
    }
    fs::fremovexattr(&file, XATTR)
        .map_err(|e| err("remove the extended attribute of", e.into()))?;
    file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(|e| err("write", e))?;
    std::fs::rename(&label, path.join(LABEL)).map_err(|e| err("rename", e))?;
    fs::fsync(open_dir(path)?).map_err(|e| StoreError::io("sync", path, e))?;
    Ok(id)
}

/// Makes the label of a tier anew that has lost it, with the identity that others know it by, or a
/// new one.
///
/// # Errors
/// When it can't be written.
pub fn restore_label(path: &Path, id: Option<TierId>) -> Result<TierId> {
    let id = match id {
        Some(id) => id,
        None => TierId(random()?),
    };
    format_tier(path, id)
}

/// Whether an extended attribute was refused because the file system has no room for one of this
/// length in one file, and not because it is full.
fn is_too_small(path: &Path, error: Errno) -> bool {
    match error {
        Errno::TOOBIG | Errno::RANGE => true,
        Errno::NOSPC => fs::statvfs(path).is_ok_and(|room| {
            room.f_bavail.saturating_mul(room.f_frsize) > 16 * Header::ENCODED_MAX as u64
        }),
        _ => false,
    }
}

/// Random bytes from the kernel.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut done = 0;
    while done < N {
        let flags = rustix::rand::GetRandomFlags::empty();
        done += retry(|| rustix::rand::getrandom(&mut bytes[done..], flags))
            .map_err(|e| StoreError::io("read", "/dev/urandom", e))?;
    }
    Ok(bytes)
}

fn decode(ino: u64, path: &Path, got: rustix::io::Result<usize>, bytes: &[u8]) -> Result<Header> {
    let damaged = || StoreError::Damaged { path: path.to_owned(), what: "object header" };
    let len = match got {
        Ok(len) => len,
        Err(Errno::RANGE) => return Err(damaged()),
        Err(e) => return Err(StoreError::io("read the header of", path, e)),
    };
    match Header::decode(&bytes[..len]) {
        Ok(header) if header.ino == ino => Ok(header),
        Ok(_) | Err(HeaderFault::Damaged) => Err(damaged()),
        Err(HeaderFault::Version(found)) => Err(StoreError::Version {
            path: path.to_owned(),
            found: found.into(),
            known: Header::VERSION.into(),
        }),
    }
}

/// Reads the header of an object by path.
pub(crate) fn read_header_path(path: &Path, ino: u64) -> Result<Header> {
    let mut bytes = [0u8; Header::ENCODED_MAX];
    let got = fs::lgetxattr(path, XATTR, &mut bytes[..]);
    decode(ino, path, got, &bytes)
}

impl Tier for DirTier {
    fn id(&self) -> TierId {
        self.id
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn lock(&self) -> Result<TierLock> {
        let path = self.path.join(LOCK);
        let err = |operation, e| StoreError::io(operation, &path, e);
        let how = match self.only_looked_at {
            true => OFlags::RDONLY,
            false => OFlags::RDWR | OFlags::CREATE,
        };
        let flags = how | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = retry(|| fs::openat(&self.root, LOCK, flags, OBJECT_MODE))
            .map_err(|e| err("open", e.into()).or_read_only(&self.path))?;
        let file = File::from(fd);
        let begun = Instant::now();
        loop {
            match retry(|| fs::flock(&file, FlockOperation::NonBlockingLockExclusive)) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if begun.elapsed() < ENDING => {
                    std::thread::sleep(LOOK_AGAIN);
                }
                Err(Errno::WOULDBLOCK) => {
                    let mut text = [0; 16];
                    let len = file.read_at(&mut text, 0).unwrap_or(0);
                    let pid = std::str::from_utf8(&text[..len]).unwrap_or("").trim().parse();
                    return Err(StoreError::Locked {
                        path: self.path.clone(),
                        pid: pid.unwrap_or_default(),
                    });
                }
                Err(e) => return Err(err("lock", e.into())),
            }
        }
        if self.only_looked_at {
            return Ok(TierLock { fd: Some(file.into()) });
        }
        let pid = format!("{}\n", std::process::id());
        file.set_len(0)
            .and_then(|()| file.write_all_at(pid.as_bytes(), 0))
            .map_err(|e| err("write", e))?;
        Ok(TierLock { fd: Some(file.into()) })
    }

    fn create(&self, ino: u64, header: &Header) -> Result<Arc<dyn Object>> {
        let name = object_name(ino);
        let err = |e: Errno| StoreError::io("create", self.object_path(ino), e);
        let object = match self.open_at(ino, &name, OFlags::CREATE | OFlags::EXCL) {
            Ok(fd) => self.object(ino, fd),
            // What a crash left between the creation and the header is empty and nobody's.
            Err(Errno::EXIST) => {
                let object =
                    self.object(ino, self.open_at(ino, &name, OFlags::empty()).map_err(err)?);
                let ours = object.len()? == 0
                    && matches!(object.header(), Err(e) if e.errno() == libc::ENODATA);
                if !ours {
                    return Err(err(Errno::EXIST));
                }
                object
            }
            Err(e) => return Err(err(e)),
        };
        fail_at!("store.create.before_header", &self.path);
        if let Err(e) = object.set_header(header) {
            // The object is of no use without its header; the first error is the one to report.
            let _ = self.unlink_at(ino, &name);
            return Err(e);
        }
        Ok(Arc::new(object))
    }

    fn adopt(&self, ino: u64, file: &Path, header: &Header) -> Result<Arc<dyn Object>> {
        let err = |e: Errno| StoreError::io("make an object of", file, e);
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = retry(|| fs::open(file, flags, Mode::empty())).map_err(err)?;
        let object = self.object(ino, fd);
        object.set_header(header)?;
        let fan = self.fan_dir(ino, true).map_err(err)?;
        let (name, once) = (object_name(ino), fs::RenameFlags::NOREPLACE);
        retry(|| fs::renameat_with(fs::CWD, file, fan, &name, once)).map_err(err)?;
        Ok(Arc::new(object))
    }

    fn detach(&self, ino: u64, to: &Path) -> Result<()> {
        let err = |e: Errno| StoreError::io("move an object to", to, e);
        let fan = self.fan_dir(ino, false).map_err(err)?;
        let name = object_name(ino);
        let map = format!("{name}{MAP_SUFFIX}");
        let beside = to.with_extension("map");
        // The object goes first: see `remove`.
        retry(|| fs::renameat(fan, &name, fs::CWD, to)).map_err(err)?;
        self.removals_of(ino).made_one();
        match retry(|| fs::renameat(fan, &map, fs::CWD, &beside)) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(err(e)),
        }
    }

    fn open(&self, ino: u64) -> Result<Arc<dyn Object>> {
        let fd = self
            .open_at(ino, &object_name(ino), OFlags::empty())
            .map_err(|e| StoreError::io("open", self.object_path(ino), e))?;
        Ok(Arc::new(self.object(ino, fd)))
    }

    fn stat(&self, ino: u64) -> Result<Attributes> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let found = self.fan_dir(ino, false);
        let found = found.and_then(|fan| self.births.stat(fan, object_name(ino), flags));
        found.map_err(|e| StoreError::io("stat", self.object_path(ino), e))
    }

    fn remove(&self, ino: u64) -> Result<()> {
        // The object goes first: a map without an object is harmless, an object without its map
        // would count as whole.
        fail_at!("store.remove.before", &self.path);
        self.unlink_at(ino, &object_name(ino))
            .map_err(|e| StoreError::io("remove", self.object_path(ino), e))?;
        self.removals_of(ino).made_one();
        fail_at!("store.remove.before_map", &self.path);
        self.remove_map(ino)
    }

    fn list(&self, each: &mut dyn FnMut(u64, Result<Header>) -> ControlFlow<()>) -> Result<()> {
        for index in 0..=255 {
            if self.list_fan(index, each)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    fn create_map(&self, ino: u64, extent_size: u64, size: u64) -> Result<Presence> {
        let path = self.map_path(ino);
        let fd = self
            .open_at(ino, &format!("{ino:016x}{MAP_SUFFIX}"), OFlags::CREATE | OFlags::TRUNC)
            .map_err(|e| StoreError::io("create", &path, e))?;
        Presence::create(MapFile::new(fd, path), ino, extent_size, size)
    }

    fn open_map(&self, ino: u64, believed: Believed) -> Result<Option<Presence>> {
        let path = self.map_path(ino);
        match self.open_at(ino, &format!("{ino:016x}{MAP_SUFFIX}"), OFlags::empty()) {
            Ok(fd) => Presence::load(MapFile::new(fd, path), ino, believed).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(StoreError::io("open", path, e)),
        }
    }

    fn remove_map(&self, ino: u64) -> Result<()> {
        match self.unlink_at(ino, &format!("{ino:016x}{MAP_SUFFIX}")) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(StoreError::io("remove", self.map_path(ino), e)),
        }
    }

    fn tells_stores(&self) -> bool {
        self.tells_stores
    }

    fn usage(&self) -> Result<TierUsage> {
        let room =
            fs::fstatvfs(&self.root).map_err(|e| StoreError::io("statvfs", &self.path, e))?;
        Ok(TierUsage {
            total: room.f_blocks.saturating_mul(room.f_frsize),
            free: room.f_bavail.saturating_mul(room.f_frsize),
            free_inodes: if room.f_files == 0 { u64::MAX } else { room.f_favail },
        })
    }

    fn sync_dir(&self, ino: u64) -> Result<()> {
        let err = |e: Errno| StoreError::io("sync the directory of", self.object_path(ino), e);
        match self.fan_dir(ino, false) {
            Ok(dir) => sync_by(dir, |fd| fs::fsync(fd)).map_err(err)?,
            Err(Errno::NOENT) => {}
            Err(e) => return Err(err(e)),
        }
        self.fans_opened.settle(|| sync_by(&self.objects, |fd| fs::fsync(fd)).map_err(err))
    }

    fn settle_removals(&self, ino: u64) -> Result<()> {
        self.removals_of(ino).settle(|| self.sync_dir(ino))
    }

    fn sync(&self) -> Result<()> {
        sync_by(&self.root, |fd| fs::syncfs(fd)).map_err(|e| StoreError::io("sync", &self.path, e))
    }
}

/// An object in a [`DirTier`].
struct DirObject {
    ino: u64,
    file: LocalFile,
}

/// `<asm-generic/fcntl.h>`; the libc crate lacks it for glibc.
const F_SETSIG: i32 = 10;

/// `fcntl` with an integer argument; rustix has no leases.
fn fcntl(fd: BorrowedFd<'_>, command: i32, argument: i32) -> std::io::Result<i32> {
    // SAFETY: the descriptor is borrowed and hence open, and the commands used here (F_SETLEASE,
    // F_GETLEASE, F_SETSIG) take an integer and touch no memory of this process.
    match unsafe { libc::fcntl(fd.as_raw_fd(), command, argument) } {
        -1 => Err(std::io::Error::last_os_error()),
        value => Ok(value),
    }
}

impl LeaseGuard<'_> {
    /// Whether someone waits for the lease to end: stop the work and drop the guard.
    pub fn broken(&self) -> bool {
        self.held.is_some_and(|fd| {
            fcntl(fd, libc::F_GETLEASE, 0).map_or(true, |kind| kind != libc::F_WRLCK)
        })
    }
}

impl Drop for LeaseGuard<'_> {
    fn drop(&mut self) {
        if let Some(fd) = self.held {
            // Fails only when the kernel has already taken the lease back.
            let _ = fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK);
        }
    }
}

impl Object for DirObject {
    fn ino(&self) -> u64 {
        self.ino
    }

    fn header(&self) -> Result<Header> {
        let mut bytes = [0u8; Header::ENCODED_MAX];
        let got = fs::fgetxattr(self.file.descriptor(), XATTR, &mut bytes[..]);
        decode(self.ino, self.file.label(), got, &bytes)
    }

    fn set_header(&self, header: &Header) -> Result<()> {
        fail_at!("store.header.before_set", self.file.label());
        let bytes = header.encode();
        fs::fsetxattr(self.file.descriptor(), XATTR, &bytes, XattrFlags::empty())
            .map_err(|e| StoreError::io("set the header of", self.file.label(), e))?;
        fail_at!("store.header.after_set", self.file.label());
        Ok(())
    }

    fn exclusive(&self) -> Result<Option<LeaseGuard<'_>>> {
        let fd = self.file.descriptor();
        let err = |e| StoreError::io("take a lease on", self.file.label(), e);
        // The kernel tells a broken lease by a signal, SIGIO unless told otherwise, which would kill
        // the process; SIGURG is ignored by default.
        fcntl(fd, F_SETSIG, libc::SIGURG).map_err(err)?;
        match fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) {
            Ok(_) => Ok(Some(LeaseGuard { held: Some(fd) })),
            Err(e) => match e.raw_os_error() {
                Some(libc::EAGAIN | libc::EBUSY) => Ok(None),
                Some(libc::EINVAL | libc::ENOLCK) => {
                    Err(err(std::io::Error::from_raw_os_error(libc::EOPNOTSUPP)))
                }
                _ => Err(err(e)),
            },
        }
    }
}

crate::bytes::delegate_bytes!(DirObject, file);
