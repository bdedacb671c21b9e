//! The backing store: a directory of a large, slow file system, reached by handles only.

use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

pub use crate::dir_backing::DirBacking;
use crate::group::{Group, Synced};
pub use crate::removal::{Known, Removed};
use crate::{Attributes, Believed, Bytes, FileKind, Fingerprint, Presence, Result, Timestamp};

/// Name of the private area in the root of a backing store: reserved, to be hidden from programs.
pub const PRIVATE: &str = ".forebay";

/// Names with this prefix are temporaries that had to be made next to their target (mount points
/// inside the backing store): reserved, left out of listings.
pub const TEMPORARY_PREFIX: &str = ".forebay.tmp.";

/// Whether programs may not use this name: [`PRIVATE`] in the root, temporaries everywhere.
#[must_use]
pub fn is_reserved(name: &OsStr, in_root: bool) -> bool {
    (in_root && name == PRIVATE) || name.as_encoded_bytes().starts_with(TEMPORARY_PREFIX.as_bytes())
}

/// A directory of the backing store, or what [`BackingStore::hold`] gave: a handle (`O_PATH`) that stays
/// right when it is renamed. Clones share one descriptor.
#[derive(Clone, Debug)]
pub struct Dir(pub(crate) Arc<OwnedFd>);

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// One entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackingEntry {
    /// Name.
    pub name: OsString,
    /// Type, where the file system tells it with the name.
    pub kind: Option<FileKind>,
    /// Attributes, with [`BackingStore::list_plus`]; `None` there means that the entry vanished
    /// while the directory was read.
    pub attributes: Option<Attributes>,
}

/// How to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading.
    Read,
    /// Reading and writing.
    ReadWrite,
}

/// What to make with [`BackingStore::mknod`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// An empty regular file (fails if the name exists).
    Regular,
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
    /// A character device (`dev_t`).
    CharDevice(u64),
    /// A block device (`dev_t`).
    BlockDevice(u64),
}

/// What a rename does with an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces it.
    Replace,
    /// Replaces exactly this version of something that is no directory, as far as inode, size and mtime
    /// tell; fails with `Exists` if anything else stands there, which stays. If nothing does, this is a
    /// plain rename. Where the file system can't exchange names (NFS), a check is followed by a rename.
    ReplaceVersion(Fingerprint),
    /// Fails with `Exists`. Not atomic where the file system knows no such flag (NFS).
    NoReplace,
    /// Swaps the two.
    Exchange,
}

/// Attributes to set; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission bits (07777). Not for symbolic links.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Access time.
    pub atime: Option<Timestamp>,
    /// Modification time.
    pub mtime: Option<Timestamp>,
}

/// What `set_xattr` does with an existing attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Creates or replaces.
    Any,
    /// Fails with `Exists` if it exists.
    Create,
    /// Fails with `NotFound` (ENODATA) if it does not.
    Replace,
}

/// Size and room of the backing file system, as `statvfs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct FileSystemUsage {
    pub block_size: u64,
    pub blocks: u64,
    pub blocks_free: u64,
    pub blocks_available: u64,
    pub inodes: u64,
    pub inodes_free: u64,
    pub name_max: u64,
}

/// What a commit expects to find under the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Nothing.
    Absent,
    /// This version.
    Version(Fingerprint),
    /// Whatever there is, it is replaced.
    Any,
}

/// How a commit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// Published; the version that the name now shows.
    Done(Fingerprint),
    /// Something else is there (`None`: nothing), and stays there. The temporary is kept and can be
    /// committed under another name.
    Conflict(Option<Attributes>),
}

/// What became of the temporaries of a dead daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Temporaries removed.
    pub removed: u64,
    /// Spill files that a commit had in hand and that are back in the spill area, by inode.
    pub spills: Vec<u64>,
    /// Files of others that were displaced by an interrupted commit and are kept in
    /// `.forebay/limbo` under these names: tell the user.
    pub kept: Vec<OsString>,
}

/// A regular file of the backing store. Its descriptor has the access that it was opened with.
pub trait BackingFile: Bytes {
    /// Sets mode, owner and times.
    fn set_attributes(&self, attributes: &SetAttributes) -> Result<()>;

    /// Sets an extended attribute.
    fn set_xattr(&self, attribute: &OsStr, value: &[u8]) -> Result<()>;

    /// Begins to bring the bytes to the device and does not wait for it, so that the syncs of many
    /// files that follow share their commits. Says nothing about success: a sync does.
    fn start_writing_out(&self);

    /// The same file, opened once more, to be read only.
    ///
    /// # Errors
    /// If the caller may not read it.
    fn reopened(&self) -> Result<Arc<dyn BackingFile>>;
}

/// A file that is not published yet: in `.forebay/tmp` (removed on drop) or in `.forebay/spill`
/// (kept on drop: it may hold the only copy of its bytes).
pub struct Temporary {
    pub(crate) file: Arc<dyn BackingFile>,
    pub(crate) place: crate::private::TempPath,
    /// Synced, and not changed since.
    pub(crate) sealed: bool,
}

impl Temporary {
    /// The file: write it, and set all its attributes before the commit.
    #[must_use]
    pub fn file(&self) -> &Arc<dyn BackingFile> {
        &self.file
    }

    /// Syncs the file, so that its commit need not. It must not be changed afterwards.
    ///
    /// # Errors
    /// What the sync says. The file may then lack what was written: it must be given up.
    pub fn seal(&mut self) -> Result<()> {
        self.file.sync(false)?;
        self.sealed = true;
        Ok(())
    }

    /// As [`Self::seal`], for a file in `.forebay/tmp` that was made and written since a group
    /// began, which was synced now.
    pub fn seal_in(&mut self, _group: &Synced) {
        self.sealed = true;
    }

    /// The version that a commit will publish, but for the ctime. Store it (durably) as
    /// [`crate::Header::pending`] after the last change to the file and before the commit: with it
    /// a crash in the middle is told from a foreign change.
    pub fn pending(&self) -> Result<Fingerprint> {
        Ok(self.file.stat()?.fingerprint())
    }
}

/// A backing store. All calls block, and none follows a symbolic link or leaves the root.
///
/// A `name` is one component of at most 255 bytes. Where the documentation says so, the empty name
/// means the directory itself.
pub trait BackingStore: Send + Sync {
    /// The root.
    fn root(&self) -> Dir;

    /// Opens a directory. `NotFound` also when the name is no directory (ENOTDIR).
    fn open_dir(&self, parent: &Dir, name: &OsStr) -> Result<Dir>;

    /// Lists names in batches (without `.`, `..` and the reserved names of temporaries; [`PRIVATE`]
    /// is the caller's to hide). Bounded memory whatever the size of the directory.
    fn list(
        &self,
        dir: &Dir,
        batch: &mut dyn FnMut(&[BackingEntry]) -> ControlFlow<()>,
    ) -> Result<()>;

    /// As [`Self::list`], with attributes.
    fn list_plus(
        &self,
        dir: &Dir,
        batch: &mut dyn FnMut(&[BackingEntry]) -> ControlFlow<()>,
    ) -> Result<()>;

    /// Attributes of an entry, or of the directory (empty name).
    fn stat(&self, dir: &Dir, name: &OsStr) -> Result<Attributes>;

    /// Target of a symbolic link.
    fn readlink(&self, dir: &Dir, name: &OsStr) -> Result<OsString>;

    /// Opens a regular file; EISDIR, ELOOP or EINVAL for anything else.
    fn open_file(&self, dir: &Dir, name: &OsStr, access: Access) -> Result<Arc<dyn BackingFile>>;

    /// Makes a directory with exactly this mode.
    fn mkdir(&self, dir: &Dir, name: &OsStr, mode: u32) -> Result<()>;

    /// Makes a symbolic link.
    fn symlink(&self, target: &OsStr, dir: &Dir, name: &OsStr) -> Result<()>;

    /// Makes an empty file, pipe, socket or device with exactly this mode.
    fn mknod(&self, dir: &Dir, name: &OsStr, node: Node, mode: u32) -> Result<()>;

    /// Makes a hard link (to a symbolic link itself if that is what the name is), or one to what the
    /// handle is (empty name), which fails with `NotFound` if that has no name any more.
    fn link(&self, dir: &Dir, name: &OsStr, to_dir: &Dir, to_name: &OsStr) -> Result<()>;

    /// Whether there are hard links at all.
    fn has_links(&self) -> Result<bool>;

    /// Whether names keep the dots and blanks at their ends, which vfat and servers of SMB drop.
    fn keeps_ends(&self) -> Result<bool>;

    /// Renames.
    fn rename(
        &self,
        dir: &Dir,
        name: &OsStr,
        to_dir: &Dir,
        to_name: &OsStr,
        mode: RenameMode,
    ) -> Result<()>;

    /// Removes a name that is no directory.
    fn unlink(&self, dir: &Dir, name: &OsStr) -> Result<()>;

    /// Removes a name that is no directory if it shows what is known: a check, and then the removal.
    fn unlink_known(&self, dir: &Dir, name: &OsStr, known: &Known) -> Result<Removed>;

    /// Removes an empty directory if it is this one: a check, and then the removal.
    fn rmdir_known(&self, dir: &Dir, name: &OsStr, known: &Fingerprint) -> Result<Removed>;

    /// Removes an empty directory.
    fn rmdir(&self, dir: &Dir, name: &OsStr) -> Result<()>;

    /// A handle on an entry, whatever it is: what is asked or set with it and the empty name concerns
    /// that very inode, also if others put another one under its name.
    fn hold(&self, dir: &Dir, name: &OsStr) -> Result<Dir>;

    /// Where the system last had what a handle is, as far as it knows: others may have removed it since.
    fn last_place(&self, object: &Dir) -> Option<PathBuf>;

    /// Sets attributes of an entry, or of what the handle is (empty name). Owner first, then mode (a
    /// change of owner clears set-id bits), times last.
    fn set_attributes(&self, dir: &Dir, name: &OsStr, attributes: &SetAttributes) -> Result<()>;

    /// Value of an extended attribute of an entry or of the directory (empty name).
    fn get_xattr(&self, dir: &Dir, name: &OsStr, attribute: &OsStr) -> Result<Vec<u8>>;

    /// Sets an extended attribute.
    fn set_xattr(
        &self,
        dir: &Dir,
        name: &OsStr,
        attribute: &OsStr,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()>;

    /// Names of the extended attributes.
    fn list_xattrs(&self, dir: &Dir, name: &OsStr) -> Result<Vec<OsString>>;

    /// Removes an extended attribute.
    fn remove_xattr(&self, dir: &Dir, name: &OsStr, attribute: &OsStr) -> Result<()>;

    /// Size and room.
    fn statfs(&self) -> Result<FileSystemUsage>;

    /// Makes durable the entries and attributes of directories, and the attributes of whatever else
    /// is held by these handles.
    ///
    /// Of what can't be opened to be synced, such as a symbolic link, the whole file system is synced. If
    /// that is another one than the root's, its directory must be readable.
    fn sync_held(&self, held: &[Dir]) -> Result<()>;

    /// Makes the whole file system durable, and those that are mounted below its root.
    fn sync(&self) -> Result<()>;

    /// Begins a group of files that share one sync; `None` where each must be synced by itself.
    fn begin_group(&self) -> Option<Group>;

    /// Makes durable what was written to the group's file system since it began, by anybody.
    ///
    /// # Errors
    /// When something could not be written, perhaps to a file that is not the caller's: sync each
    /// file to know.
    fn sync_group(&self, group: &Group) -> Result<Synced>;

    /// A new file in `.forebay/tmp`, mode 0600.
    fn temporary(&self, ino: u64) -> Result<Temporary>;

    /// As [`Self::temporary`], but next to its target: for a directory on another mount than the root
    /// (its [`Attributes::dev`] differs), where a rename from `.forebay/tmp` cannot go. A commit
    /// across mounts copies the file first if need be, which changes [`Temporary::pending`].
    fn temporary_beside(&self, ino: u64, dir: &Dir) -> Result<Temporary>;

    /// The spill file of an inode, made if need be; it outlives the daemon.
    fn spill(&self, ino: u64) -> Result<Temporary>;

    /// The spill file of an inode if there is one.
    fn open_spill(&self, ino: u64) -> Result<Option<Temporary>>;

    /// A new map beside the spill file of an inode, all absent: the spill file has only the extents
    /// that are marked in it, and the version that the backing store has under the file's name has
    /// the others. Made before the spill file counts; one without a map has all bytes.
    fn spill_map(&self, ino: u64, extent_size: u64, size: u64) -> Result<Presence>;

    /// The map of an inode's spill file, as it is, if there is one.
    fn open_spill_map(&self, ino: u64, believed: Believed) -> Result<Option<Presence>>;

    /// Removes the spill file of an inode, and its map; no error if there is none.
    fn remove_spill(&self, ino: u64) -> Result<()>;

    /// Moves the spill file of an inode, which may be the only copy of its bytes and can't be used, to
    /// `.forebay/lost`, its map beside it. Where it is now, if there was one.
    fn set_spill_aside(&self, ino: u64) -> Result<Option<PathBuf>>;

    /// What lies in `.forebay/lost`, of all owners.
    fn list_set_aside(&self) -> Result<Vec<PathBuf>>;

    /// Inodes with a spill file of this owner, also one that a dead daemon was about to publish.
    fn list_spills(&self) -> Result<Vec<u64>>;

    /// Publishes a temporary or a spill file under a name: syncs it, then renames. The name shows
    /// either the old or the new version at every moment, also across a crash. The directory is not
    /// synced: do that for many at once with [`Self::sync_held`].
    ///
    /// `Version` swaps the two files (`RENAME_EXCHANGE`), looks at what came out, and swaps back if
    /// it is not what was expected, so that a change by others right before the swap is never lost.
    /// Where the file system has no such flags (NFS) it is a check and a rename with a small window
    /// between them. Readers that hold the old version keep it. Hard links to the old version stay
    /// with the old version: for files with more than one link write in place instead.
    fn commit(
        &self,
        temporary: &mut Temporary,
        dir: &Dir,
        name: &OsStr,
        expect: Expect,
    ) -> Result<Commit>;

    /// Moves an entry of any kind out of the way, for rename cycles; `key` finds it again.
    fn park(&self, dir: &Dir, name: &OsStr, key: u64) -> Result<()>;

    /// Gives a file another name in limbo, as [`BackingStore::park`] does, and leaves the one that it
    /// has.
    fn park_link(&self, dir: &Dir, name: &OsStr, key: u64) -> Result<()>;

    /// The name in limbo that [`BackingStore::park`] gives to what has this key.
    fn parked_name(&self, key: u64) -> OsString;

    /// Moves it to its place; `Exists` when the name is taken.
    #[allow(clippy::wrong_self_convention, reason = "moves from limbo, makes nothing")]
    fn unpark(&self, key: u64, dir: &Dir, name: &OsStr) -> Result<()>;

    /// Keys in limbo of this owner.
    fn list_parked(&self) -> Result<Vec<u64>>;

    /// Sets what stands in limbo under a key of this owner aside; where it is now.
    fn set_parked_aside(&self, key: u64) -> Result<Option<PathBuf>>;

    /// Removes what a dead daemon left in `.forebay/tmp`. `owner` is the name that it gave to
    /// [`DirBacking::open`]; only call it when that daemon is known to be gone.
    fn clean_temporaries(&self, owner: &str) -> Result<Cleaned>;

    /// Removes what this daemon itself has left in `.forebay` and beside files, as the store failed when
    /// it was to go: what nobody uses any more. It ends after some failures, and can be called again.
    fn remove_strays(&self) -> Result<Cleaned>;

    /// Removes the private area if it is empty.
    fn tidy(&self) -> Result<()>;
}
