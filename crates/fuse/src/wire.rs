//! Between the node's types and the transport's.

use std::time::Duration;

use forebay_node::{
    Coherence, FileKind, Ino, NodeConfig, OpenMode, Opened, SetAttr, SetTime, Stat, Timestamp,
    WritebackPolicy,
};
use fusewire::{Attr, Entry, OpenOutFlags};

/// How long the kernel may trust what it was told, while nobody else changes the backing store.
const EXCLUSIVE: Duration = Duration::from_secs(3600);
/// The same for the attributes of files that are open.
const OPEN: Duration = Duration::from_secs(1);
/// Preferred I/O size of files: what programs that buffer by `st_blksize` read and write at once.
const FILE_BLOCK: u32 = 64 << 10;
const BLOCK: u32 = 4096;

/// How the mount presents what the node says.
#[derive(Debug, Clone, Copy)]
pub struct CachePolicy {
    /// How long attributes of files that are not open may be cached at most.
    attr_valid: Duration,
    /// How long names may be cached at most, also of what is not there.
    entry_valid: Duration,
    /// Other nodes may change all that: nothing may be cached, but what is known to be this node's.
    shared: bool,
    /// Something is done with written files before `close` returns.
    through: bool,
    /// Locks of programs are not the kernel's business, so it has to say who closes a file.
    locks: bool,
}

impl CachePolicy {
    pub fn new(config: &NodeConfig) -> Self {
        let (attr_valid, entry_valid) = match config.coherence {
            Coherence::Exclusive => (EXCLUSIVE, EXCLUSIVE),
            Coherence::Open => (config.attr_timeout, config.entry_timeout),
        };
        // Other nodes are shown at a close what was written.
        let locks = config.cluster.is_some();
        let through = config.writeback == WritebackPolicy::Through || locks;
        CachePolicy { attr_valid, entry_valid, shared: locks, through, locks }
    }

    /// How long attributes may be cached if nobody else changes them.
    pub fn attr_limit(&self, stat: &Stat) -> Duration {
        match stat.open {
            _ if stat.is_fleeting => Duration::ZERO,
            true => self.attr_valid.min(OPEN),
            false => self.attr_valid,
        }
    }

    /// How long names may be cached if nobody else changes them.
    pub fn entry_limit(&self) -> Duration {
        self.entry_valid
    }

    /// For how long the kernel may give out a listing that it has read: the names and attributes that
    /// came with it are good for as long again. Not at all where other nodes change directories.
    pub fn listing_valid(&self) -> Duration {
        if self.shared { Duration::ZERO } else { self.entry_valid.min(self.attr_valid) / 2 }
    }

    /// How long attributes may be cached. In a cluster the kernel asks each time, unless it was
    /// allowed to keep what it was told.
    pub fn attr_valid(&self, stat: &Stat) -> Duration {
        if self.shared { Duration::ZERO } else { self.attr_limit(stat) }
    }

    fn entry_valid(&self) -> Duration {
        if self.shared { Duration::ZERO } else { self.entry_valid }
    }

    /// A name with the inode behind it.
    pub fn entry(&self, stat: &Stat) -> Entry {
        Entry {
            node: forebay_node::node_id(stat.ino, stat.alias),
            // Inode numbers are never used twice.
            generation: 0,
            attr: attr(stat),
            entry_valid: self.entry_valid(),
            attr_valid: self.attr_valid(stat),
        }
    }

    /// A name that nothing has.
    pub fn negative(&self) -> Entry {
        Entry::negative(self.entry_valid())
    }

    /// An open file. `flags` are those of open(2).
    pub fn opened(&self, opened: Opened, flags: u32) -> fusewire::Opened {
        let writes = may_write(flags);
        let (mode, backing_id) = match opened.mode {
            OpenMode::Passthrough { id } => (OpenOutFlags::NONE, Some(id)),
            OpenMode::PassthroughDirect { id } => (OpenOutFlags::DIRECT_IO, Some(id)),
            OpenMode::Cached { keep: true } => (OpenOutFlags::KEEP_CACHE, None),
            OpenMode::Cached { keep: false } => (OpenOutFlags::NONE, None),
            OpenMode::Direct => {
                (OpenOutFlags::DIRECT_IO.with(OpenOutFlags::PARALLEL_DIRECT_WRITES), None)
            }
        };
        // Nothing is due at close but the write-through, and in a cluster the locks; else the kernel
        // is spared a round trip.
        let due = self.locks || writes && self.through;
        let flags = if due { mode } else { mode.with(OpenOutFlags::NOFLUSH) };
        fusewire::Opened { fh: opened.fh, flags, backing_id }
    }
}

/// Whether an open with these flags may write.
pub fn may_write(flags: u32) -> bool {
    flags & libc::O_ACCMODE.cast_unsigned() != libc::O_RDONLY.cast_unsigned()
}

/// The attributes of an inode.
pub fn attr(stat: &Stat) -> Attr {
    let attr = &stat.attr;
    Attr {
        ino: stat.ino.0,
        size: attr.size,
        blocks: stat.blocks,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
        mode: stat.mode(),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: device(attr.rdev),
        blksize: if attr.kind == FileKind::Regular { FILE_BLOCK } else { BLOCK },
        flags: fusewire::AttrFlags::NONE,
    }
}

/// "." or "..": merely listed, the kernel knows them.
pub fn dot_entry(ino: Ino) -> Entry {
    let attr = Attr { ino: ino.0, mode: libc::S_IFDIR, ..Attr::default() };
    Entry { attr, ..Entry::default() }
}

/// The transport's word for a type.
pub fn kind(kind: FileKind) -> fusewire::FileKind {
    match kind {
        FileKind::Regular => fusewire::FileKind::Regular,
        FileKind::Directory => fusewire::FileKind::Directory,
        FileKind::Symlink => fusewire::FileKind::Symlink,
        FileKind::Fifo => fusewire::FileKind::Fifo,
        FileKind::Socket => fusewire::FileKind::Socket,
        FileKind::CharDevice => fusewire::FileKind::CharDevice,
        FileKind::BlockDevice => fusewire::FileKind::BlockDevice,
    }
}

/// What SETATTR asks for.
pub fn set_attr(set: &fusewire::SetAttributes) -> SetAttr {
    let new_time = |set| match set {
        fusewire::SetTime::Now => SetTime::Now,
        fusewire::SetTime::At(at) => SetTime::At(Timestamp::new(at.seconds, at.nanoseconds)),
    };
    SetAttr {
        mode: set.mode.map(|mode| mode & 0o7777),
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: set.atime.map(new_time),
        mtime: set.mtime.map(new_time),
        kill_set_ids: set.kill_suidgid,
    }
}

/// Size and room. The protocol's block sizes have 32 bits.
pub fn statfs(statfs: &forebay_node::Statfs) -> fusewire::Statfs {
    let block = u32::try_from(statfs.block_size).unwrap_or(u32::MAX);
    fusewire::Statfs {
        blocks: statfs.blocks,
        bfree: statfs.blocks_free,
        bavail: statfs.blocks_available,
        files: statfs.inodes,
        ffree: statfs.inodes_free,
        bsize: block,
        namelen: u32::try_from(statfs.name_max).unwrap_or(u32::MAX),
        frsize: block,
    }
}

fn time(time: Timestamp) -> fusewire::Timestamp {
    fusewire::Timestamp::new(time.sec, time.nsec)
}

/// A device number as the kernel encodes it in 32 bits: 12 bits of major, 20 of minor.
fn device(rdev: u64) -> u32 {
    let (major, minor) = (libc::major(rdev), libc::minor(rdev));
    minor & 0xff | (major & 0xfff) << 8 | (minor & 0xfff00) << 12
}

/// The opposite of [`attr`]'s encoding of devices.
pub fn device_from_wire(rdev: u32) -> u64 {
    libc::makedev(rdev >> 8 & 0xfff, rdev & 0xff | rdev >> 12 & 0xfff00)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn opened(
        mode: OpenMode,
        flags: i32,
        writeback: WritebackPolicy,
    ) -> (OpenOutFlags, Option<u32>) {
        let mut config = NodeConfig::new(PathBuf::from("/b"), Vec::new());
        config.writeback = writeback;
        let cache_policy = CachePolicy::new(&config);
        let out =
            cache_policy.opened(Opened { fh: 3, mode, alias: 0, dir: None }, flags.cast_unsigned());
        assert_eq!(out.fh, 3);
        (out.flags, out.backing_id)
    }

    #[test]
    fn devices_when_encoded_then_decoded_again() {
        for (major, minor) in [(0, 0), (1, 3), (8, 17), (0xfff, 0xfffff), (259, 300)] {
            let rdev = libc::makedev(major, minor);
            assert_eq!(device_from_wire(device(rdev)), rdev, "{major}:{minor}");
        }
    }

    #[test]
    fn opened_in_each_mode_then_flags_as_the_kernel_accepts_them() {
        let later = WritebackPolicy::OnEviction;
        let read = libc::O_RDONLY;
        let flush_free = OpenOutFlags::NOFLUSH;
        let table = [
            (OpenMode::Passthrough { id: 9 }, flush_free, Some(9)),
            (
                OpenMode::PassthroughDirect { id: 9 },
                flush_free.with(OpenOutFlags::DIRECT_IO),
                Some(9),
            ),
            (OpenMode::Cached { keep: true }, flush_free.with(OpenOutFlags::KEEP_CACHE), None),
            (OpenMode::Cached { keep: false }, flush_free, None),
        ];
        for (mode, flags, id) in table {
            assert_eq!(opened(mode, read, later), (flags, id), "{mode:?}");
        }
        let (flags, _) = opened(OpenMode::Direct, libc::O_RDWR, later);
        let direct = OpenOutFlags::DIRECT_IO.with(OpenOutFlags::PARALLEL_DIRECT_WRITES);
        assert!(flags.contains(direct) && flags.contains(flush_free));
    }

    #[test]
    fn opened_when_writing_through_then_close_flushes() {
        let through = WritebackPolicy::Through;
        let (flags, _) = opened(OpenMode::Direct, libc::O_WRONLY, through);
        assert!(!flags.contains(OpenOutFlags::NOFLUSH));
        let (flags, _) = opened(OpenMode::Direct, libc::O_RDONLY, through);
        assert!(flags.contains(OpenOutFlags::NOFLUSH));
    }
}
