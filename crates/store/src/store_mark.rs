//! Which directory a backing store is, whatever its path: the file system below a path may not be
//! mounted, or be another one.

use std::ffi::OsString;

use rustix::fs::{self, AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::backing::{Dir, PRIVATE};
use crate::dir_backing::DirBacking;
use crate::dir_tier::random;
use crate::local::{LocalFile, retry};
use crate::rename::rename_no_replace;
use crate::{BackingStore, Bytes, Result, StoreError};

/// Name of the mark in the private area.
const NAME: &str = "store";
/// What a mark begins with; 32 hexadecimal digits and a line end follow.
const PREFIX: &str = "forebay-store 1 ";
const DIGITS: usize = 32;

/// What tells one backing store from another. Empty is what is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreIdentity {
    /// The mark in its private area, at random.
    pub mark: String,
    /// Type and number of its file system, which may change when that is mounted again.
    pub file_system: String,
    /// Inode number and time of making of its root.
    pub root: String,
}

impl StoreIdentity {
    /// Whether a directory found later may be the same store. Where both have marks, these tell. One
    /// without a mark must be the very same directory if the known one had one; `moved` forgives
    /// another directory of the same file system.
    #[must_use]
    pub fn is_same(&self, found: &StoreIdentity, moved: bool) -> bool {
        if !self.mark.is_empty() && !found.mark.is_empty() {
            return self.mark == found.mark;
        }
        let same_file_system = self.file_system == found.file_system;
        if self.file_system.is_empty() || found.file_system.is_empty() {
            return true;
        }
        let same_root = self.root == found.root;
        if self.mark.is_empty() {
            // The number of its file system is all that may have changed.
            same_root || (moved && same_file_system)
        } else {
            same_file_system && (same_root || moved)
        }
    }
}

impl DirBacking {
    /// Which store this is, as far as it says so.
    ///
    /// # Errors
    /// What the file system says; [`StoreError::Untrusted`] as for
    /// [`claim_private_area`](Self::claim_private_area).
    pub fn identity(&self) -> Result<StoreIdentity> {
        let mark = self.read_mark()?.unwrap_or_default();
        Ok(StoreIdentity { mark, ..self.unmarked_identity()? })
    }

    /// The same but for its mark, which may be unreadable.
    ///
    /// # Errors
    /// What the file system says.
    pub fn unmarked_identity(&self) -> Result<StoreIdentity> {
        let root = self.root();
        let err = |e: Errno| self.err("look at", &root, "".as_ref(), e);
        let kind = fs::fstatfs(&root).map_err(err)?.f_type;
        let number = fs::fstatvfs(&root).map_err(err)?.f_fsid;
        let wanted = StatxFlags::INO | StatxFlags::BTIME;
        let found = fs::statx(&root, "", AtFlags::EMPTY_PATH, wanted).map_err(err)?;
        let born = found.stx_btime;
        let born = match found.stx_mask & StatxFlags::BTIME.bits() {
            0 => String::new(),
            _ => format!("{}.{:09}", born.tv_sec, born.tv_nsec),
        };
        Ok(StoreIdentity {
            mark: String::new(),
            file_system: format!("{kind:x} {number:x}"),
            root: format!("{} {born}", found.stx_ino),
        })
    }

    /// As [`identity`](Self::identity), after a mark was made where there is none and can be one.
    ///
    /// # Errors
    /// As [`identity`](Self::identity).
    pub fn marked_identity(&self) -> Result<StoreIdentity> {
        let found = self.identity()?;
        if !found.mark.is_empty() {
            return Ok(found);
        }
        match self.make_mark() {
            Ok(mark) => Ok(StoreIdentity { mark, ..found }),
            Err(e @ StoreError::Untrusted { .. }) => Err(e),
            Err(error) => {
                tracing::debug!(%error, "no mark in the backing store");
                Ok(found)
            }
        }
    }

    /// The mark, if there is a sound one.
    fn read_mark(&self) -> Result<Option<String>> {
        let private = match self.open_area(&self.root(), PRIVATE) {
            Ok(private) => private,
            // A mount of a user to whom it is closed has to do without.
            Err(e) if [libc::ENOENT, libc::EACCES].contains(&e.errno()) => return Ok(None),
            Err(e) => return Err(e),
        };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let fd = match retry(|| fs::openat(&private, NAME, flags, Mode::empty())) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::ACCESS | Errno::LOOP) => return Ok(None),
            Err(e) => return Err(self.err("open", &private, NAME.as_ref(), e)),
        };
        let mut bytes = [0; PREFIX.len() + DIGITS + 1];
        let length = LocalFile::new(fd, self.describe(&private, NAME.as_ref()))
            .read_at(&mut bytes, 0)
            .map_err(|e| e.or_damaged("mark of the backing store, which can't be read"))?;
        let text = std::str::from_utf8(&bytes[..length]).unwrap_or_default();
        let mark = text.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix('\n'));
        let sound =
            |mark: &&str| mark.len() == DIGITS && mark.bytes().all(|byte| byte.is_ascii_hexdigit());
        Ok(mark.filter(sound).map(str::to_owned))
    }

    /// Removes a mark that can't be read, so that the next mount makes one anew.
    ///
    /// # Errors
    /// As [`identity`](Self::identity).
    pub fn remove_mark(&self) -> Result<()> {
        let private = self.open_area(&self.root(), PRIVATE)?;
        fs::unlinkat(&private, NAME, AtFlags::empty())
            .map_err(|e| self.err("remove", &private, NAME.as_ref(), e))
    }

    /// Makes a mark, durably, unless another node was faster; the one that is there then.
    fn make_mark(&self) -> Result<String> {
        let root = self.root();
        let private = self.private_area()?;
        let err = |e: Errno| self.err("mark", &private, NAME.as_ref(), e);
        let number = u128::from_le_bytes(random()?);
        let new = OsString::from(format!("{NAME}.{number:032x}"));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let fd = retry(|| fs::openat(&private, &new, flags, mode)).map_err(err)?;
        let file = LocalFile::new(fd, self.describe(&private, &new));
        let made = file
            .write_at(format!("{PREFIX}{number:032x}\n").as_bytes(), 0)
            .and_then(|_| file.sync(false))
            .and_then(|()| self.place_mark(&private, &new));
        // Nothing is lost with it.
        let _ = fs::unlinkat(&private, &new, AtFlags::empty());
        made?;
        self.sync_now(&[private.clone(), root])?;
        self.read_mark()?.ok_or_else(|| err(Errno::IO))
    }

    fn place_mark(&self, private: &Dir, new: &OsString) -> Result<()> {
        let err = |e: Errno| self.err("mark", private, NAME.as_ref(), e);
        // A name that is there is that of another node, or of a mark that nobody can read.
        let unreadable = self.read_mark()?.is_none();
        match fs::linkat(private, new, private, NAME, AtFlags::empty()) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) if unreadable && self.read_mark()?.is_none() => {
                fs::renameat(private, new, private, NAME).map_err(err)
            }
            Err(Errno::EXIST) => Ok(()),
            Err(_) => match rename_no_replace(private, new, private, NAME.as_ref()) {
                Ok(()) | Err(Errno::EXIST) => Ok(()),
                Err(e) => Err(err(e)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(mark: &str, file_system: &str, root: &str) -> StoreIdentity {
        StoreIdentity { mark: mark.into(), file_system: file_system.into(), root: root.into() }
    }

    #[test]
    fn identity_when_compared_then_marks_tell_and_else_the_directory() {
        let known = identity("m", "ext4 1", "2 a");
        assert!(known.is_same(&identity("m", "ext4 7", "9 z"), false), "a copy with its mark");
        assert!(!known.is_same(&identity("n", "ext4 1", "2 a"), true), "made anew in its place");
        assert!(known.is_same(&identity("", "ext4 1", "2 a"), false), "the mark was removed");
        assert!(!known.is_same(&identity("", "ext4 1", "3 b"), false), "another directory there");
        assert!(known.is_same(&identity("", "ext4 1", "3 b"), true), "nothing is lost by it");
        assert!(!known.is_same(&identity("", "ext4 5", "2 a"), true), "the file system is away");
        let unmarked = identity("", "ext4 1", "2 a");
        assert!(unmarked.is_same(&identity("", "ext4 7", "2 a"), false));
        assert!(unmarked.is_same(&identity("m", "ext4 1", "2 a"), false));
        assert!(!unmarked.is_same(&identity("", "ext4 7", "3 b"), true));
        assert!(StoreIdentity::default().is_same(&known, false), "of an older version");
    }

    #[test]
    fn mark_when_made_by_many_at_once_then_all_have_the_same_and_a_damaged_one_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let store = || DirBacking::open(dir.path(), "n").unwrap();
        assert_eq!(store().identity().unwrap().mark, "");
        let marks: Vec<String> = std::thread::scope(|scope| {
            let makers: Vec<_> =
                (0..8).map(|_| scope.spawn(|| store().marked_identity().unwrap().mark)).collect();
            makers.into_iter().map(|maker| maker.join().unwrap()).collect()
        });
        assert!(marks[0].len() == DIGITS && marks.iter().all(|mark| *mark == marks[0]));
        let private = dir.path().join(PRIVATE);
        assert_eq!(std::fs::read_dir(&private).unwrap().count(), 1);
        std::fs::write(private.join(NAME), "forebay-store 1 zz\n").unwrap();
        assert_eq!(store().identity().unwrap().mark, "");
        let again = store().marked_identity().unwrap();
        assert!(again.mark.len() == DIGITS && again.mark != marks[0]);
        assert_eq!(store().identity().unwrap(), again);
    }
}
