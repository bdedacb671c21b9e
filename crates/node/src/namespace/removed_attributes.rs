//! Attributes, also extended ones, of inodes that have no name and no record any more, but perhaps still a user: a
//! removed directory that is somebody's working directory, a removed file held by `O_PATH`.

use std::collections::{BTreeMap, HashMap, VecDeque};

use forebay_meta::Attr;
use forebay_types::{FileKind, Ino};
use parking_lot::Mutex;
use rustix::io::Errno;

/// How many directories are remembered, and how many of all else; the oldest are forgotten first.
const MAX: usize = 4096;

/// Bytes of extended attributes that are remembered.
const MAX_XATTR_BYTES: usize = 4 << 20;

/// Extended attributes by name.
pub type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// The attributes that removed inodes had last. Directories apart: who empties a large tree removes
/// its files by the thousands, and those hardly anybody asks for.
#[derive(Default)]
pub struct RemovedAttributes {
    directories: Mutex<Inner>,
    others: Mutex<Inner>,
    /// Those of directories that have any.
    xattrs: Mutex<HashMap<u64, Xattrs>>,
}

#[derive(Default)]
struct Inner {
    attrs: HashMap<u64, Attr>,
    order: VecDeque<u64>,
}

impl RemovedAttributes {
    /// Remembers an inode that lost its last name.
    pub fn remember(&self, ino: Ino, attr: Attr) {
        let attr = Attr { nlink: 0, ..attr };
        let directory = attr.kind == FileKind::Directory;
        let mut inner = if directory { &self.directories } else { &self.others }.lock();
        if inner.attrs.insert(ino.0, attr).is_none() {
            inner.order.push_back(ino.0);
        }
        if inner.order.len() > MAX
            && let Some(oldest) = inner.order.pop_front()
        {
            inner.attrs.remove(&oldest);
            if directory {
                self.xattrs.lock().remove(&oldest);
            }
        }
    }

    /// Remembers the extended attributes of a directory that is remembered, as far as there is room.
    pub fn remember_xattrs(&self, ino: Ino, xattrs: Xattrs) {
        let mut all = self.xattrs.lock();
        if !xattrs.is_empty() && bytes_of(all.values().chain([&xattrs])) <= MAX_XATTR_BYTES {
            all.insert(ino.0, xattrs);
        }
    }

    /// The extended attributes of a removed directory; `None` if there is no such directory.
    pub fn xattrs(&self, ino: Ino) -> Option<Xattrs> {
        let known = self.has_directory(ino);
        known.then(|| self.xattrs.lock().get(&ino.0).cloned().unwrap_or_default())
    }

    /// Changes the extended attributes of a removed directory. What `change` says; `Ok(None)` if there
    /// is no such directory.
    ///
    /// # Errors
    /// What `change` says; `ENOSPC` if too many would be remembered.
    pub fn change_xattrs<T>(
        &self,
        ino: Ino,
        change: impl FnOnce(&mut Xattrs) -> Result<T, Errno>,
    ) -> Result<Option<T>, Errno> {
        if !self.has_directory(ino) {
            return Ok(None);
        }
        let mut all = self.xattrs.lock();
        let before = all.get(&ino.0).cloned().unwrap_or_default();
        let mut after = before.clone();
        let done = change(&mut after)?;
        if after.is_empty() {
            all.remove(&ino.0);
            return Ok(Some(done));
        }
        let grows = bytes_of([&after]) > bytes_of([&before]);
        all.insert(ino.0, after);
        if grows && bytes_of(all.values()) > MAX_XATTR_BYTES {
            all.insert(ino.0, before);
            return Err(Errno::NOSPC);
        }
        Ok(Some(done))
    }

    /// Calls `each` for all that is remembered, oldest first, directories before all else.
    pub fn for_each(&self, mut each: impl FnMut(u64, &Attr)) {
        for inner in [&self.directories, &self.others] {
            let inner = inner.lock();
            for ino in &inner.order {
                if let Some(attr) = inner.attrs.get(ino) {
                    each(*ino, attr);
                }
            }
        }
    }

    /// Changes what is remembered of an inode; false if nothing is.
    pub fn change(&self, ino: Ino, change: impl FnOnce(&mut Attr)) -> bool {
        for inner in [&self.directories, &self.others] {
            if let Some(attr) = inner.lock().attrs.get_mut(&ino.0) {
                change(attr);
                attr.nlink = 0;
                return true;
            }
        }
        false
    }

    /// Whether a directory of this number was removed a short while ago.
    pub fn has_directory(&self, ino: Ino) -> bool {
        self.directories.lock().attrs.contains_key(&ino.0)
    }

    /// What the inode's attributes were, with no link left.
    pub fn recall(&self, ino: Ino) -> Option<Attr> {
        let recall = |inner: &Mutex<Inner>| inner.lock().attrs.get(&ino.0).cloned();
        recall(&self.directories).or_else(|| recall(&self.others))
    }
}

fn bytes_of<'a>(xattrs: impl IntoIterator<Item = &'a Xattrs>) -> usize {
    xattrs.into_iter().flatten().map(|(name, value)| name.len() + value.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_meta::Timestamp;

    fn attr(kind: FileKind) -> Attr {
        let time = Timestamp::default();
        Attr {
            kind,
            perm: 0o755,
            uid: 0,
            gid: 0,
            nlink: 2,
            rdev: 0,
            size: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
        }
    }

    #[test]
    fn removed_when_too_many_then_the_oldest_are_forgotten() {
        for kind in [FileKind::Directory, FileKind::Regular] {
            let removed_inodes = RemovedAttributes::default();
            for ino in 0..MAX as u64 + 10 {
                removed_inodes.remember(Ino(ino), attr(kind));
                removed_inodes.remember(Ino(ino), attr(kind));
            }
            assert_eq!(removed_inodes.recall(Ino(9)), None);
            assert_eq!(removed_inodes.recall(Ino(10)).map(|attr| attr.nlink), Some(0));
            let inner = [&removed_inodes.directories, &removed_inodes.others].map(|inner| {
                let inner = inner.lock();
                (inner.attrs.len(), inner.order.len())
            });
            assert!(inner.contains(&(MAX, MAX)) && inner.contains(&(0, 0)), "{inner:?}");
        }
    }

    #[test]
    fn removed_directory_when_its_mode_is_changed_then_shown_so_and_still_removed() {
        let removed_inodes = RemovedAttributes::default();
        removed_inodes.remember(Ino(1), attr(FileKind::Directory));
        assert!(removed_inodes.change(Ino(1), |attr| (attr.perm, attr.nlink) = (0o700, 2)));
        assert_eq!(
            removed_inodes.recall(Ino(1)).map(|attr| (attr.perm, attr.nlink)),
            Some((0o700, 0))
        );
        assert!(removed_inodes.has_directory(Ino(1)) && !removed_inodes.change(Ino(2), |_| {}));
    }

    #[test]
    fn removed_directory_when_its_files_are_removed_by_the_thousands_then_remembered() {
        let removed_inodes = RemovedAttributes::default();
        removed_inodes.remember(Ino(1), attr(FileKind::Directory));
        for ino in 2..2 * MAX as u64 {
            removed_inodes.remember(Ino(ino), attr(FileKind::Regular));
        }
        assert!(removed_inodes.recall(Ino(1)).is_some());
    }
}
