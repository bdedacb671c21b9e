//! Attributes of inodes that have no name and no record any more, but perhaps still a user: a
//! removed directory that is somebody's working directory, a removed file held by `O_PATH`.

use std::collections::{HashMap, VecDeque};

use forebay_meta::{Attr, Ino};
use parking_lot::Mutex;

/// How many are remembered; the oldest are forgotten first.
const MOST: usize = 4096;

/// The attributes that departed inodes had last.
#[derive(Default)]
pub struct Departed(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    attrs: HashMap<u64, Attr>,
    order: VecDeque<u64>,
}

impl Departed {
    /// Remembers an inode that lost its last name.
    pub fn remember(&self, ino: Ino, attr: Attr) {
        let attr = Attr { nlink: 0, ..attr };
        let mut inner = self.0.lock();
        if inner.attrs.insert(ino.0, attr).is_none() {
            inner.order.push_back(ino.0);
        }
        if inner.order.len() > MOST
            && let Some(oldest) = inner.order.pop_front()
        {
            inner.attrs.remove(&oldest);
        }
    }

    /// Calls `each` for all that is remembered, oldest first.
    pub fn for_each(&self, mut each: impl FnMut(u64, &Attr)) {
        let inner = self.0.lock();
        for ino in &inner.order {
            if let Some(attr) = inner.attrs.get(ino) {
                each(*ino, attr);
            }
        }
    }

    /// What the inode's attributes were, with no link left.
    pub fn recall(&self, ino: Ino) -> Option<Attr> {
        self.0.lock().attrs.get(&ino.0).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_meta::{FileKind, Timestamp};

    #[test]
    fn departed_when_too_many_then_the_oldest_are_forgotten() {
        let time = Timestamp::default();
        let attr = Attr {
            kind: FileKind::Directory,
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
        };
        let departed = Departed::default();
        for ino in 0..MOST as u64 + 10 {
            departed.remember(Ino(ino), attr.clone());
            departed.remember(Ino(ino), attr.clone());
        }
        assert_eq!(departed.recall(Ino(9)), None);
        assert_eq!(departed.recall(Ino(10)).map(|attr| attr.nlink), Some(0));
        assert_eq!(departed.0.lock().attrs.len(), MOST);
        assert_eq!(departed.0.lock().order.len(), MOST);
    }
}
