//! Between the types of the rooms: the store's, the namespace's and the core's.

use forebay_meta::{FileKind, Fingerprint, Timestamp};
use forebay_store as store;

/// The store's point in time as the namespace's.
pub fn time(time: store::Timestamp) -> Timestamp {
    Timestamp { sec: time.seconds, nsec: time.nanos }
}

/// The namespace's point in time as the store's.
pub fn store_time(time: Timestamp) -> store::Timestamp {
    store::Timestamp { seconds: time.sec, nanos: time.nsec }
}

/// The store's fingerprint as the namespace's.
pub fn fingerprint(print: store::Fingerprint) -> Fingerprint {
    Fingerprint {
        size: print.size,
        mtime: time(print.mtime),
        ctime: time(print.ctime),
        ino: print.ino,
        born: time(print.born),
    }
}

/// The namespace's fingerprint as the store's.
pub fn store_fingerprint(print: Fingerprint) -> store::Fingerprint {
    store::Fingerprint {
        size: print.size,
        mtime: store_time(print.mtime),
        ctime: store_time(print.ctime),
        ino: print.ino,
        born: store_time(print.born),
    }
}

/// Whether an object of the backing store is the one that is known.
pub fn is_inode(known: &Fingerprint, found: &store::Attributes) -> bool {
    store_fingerprint(*known).same_inode(&found.fingerprint())
}

/// The store's file type as the namespace's.
pub fn kind(kind: store::FileKind) -> FileKind {
    match kind {
        store::FileKind::Regular => FileKind::File,
        store::FileKind::Directory => FileKind::Directory,
        store::FileKind::Symlink => FileKind::Symlink,
        store::FileKind::Fifo => FileKind::Fifo,
        store::FileKind::Socket => FileKind::Socket,
        store::FileKind::CharDevice => FileKind::CharDevice,
        store::FileKind::BlockDevice => FileKind::BlockDevice,
    }
}

/// The `S_IFMT` bits of a file type.
pub fn mode_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::File => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
    }
}

/// The file type of `S_IFMT` bits; other bits do not matter.
pub fn kind_of_mode(mode: u32) -> Option<FileKind> {
    Some(match mode & libc::S_IFMT {
        libc::S_IFREG => FileKind::File,
        libc::S_IFDIR => FileKind::Directory,
        libc::S_IFLNK => FileKind::Symlink,
        libc::S_IFIFO => FileKind::Fifo,
        libc::S_IFSOCK => FileKind::Socket,
        libc::S_IFCHR => FileKind::CharDevice,
        libc::S_IFBLK => FileKind::BlockDevice,
        _ => return None,
    })
}

/// Now, by the wall clock.
pub fn now() -> Timestamp {
    #[cfg(test)]
    if let Some((sec, nsec)) = crate::lockstep::wall_now() {
        return Timestamp { sec, nsec };
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    Timestamp { sec: now.tv_sec, nsec: u32::try_from(now.tv_nsec).unwrap_or(0) }
}
