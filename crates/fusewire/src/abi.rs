//! Layouts of the FUSE kernel ABI, 7.31 to 7.45, as in `<linux/fuse.h>`.

/// Numbers of the requests.
#[allow(missing_docs)]
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const BMAP: u32 = 37;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const POLL: u32 = 40;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SETUPMAPPING: u32 = 48;
    pub const REMOVEMAPPING: u32 = 49;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;
}

/// Codes of the notifications, sent as the `error` of a message with unique 0.
pub(crate) mod notify {
    pub const POLL: i32 = 1;
    pub const INVAL_INODE: i32 = 2;
    pub const INVAL_ENTRY: i32 = 3;
    pub const STORE: i32 = 4;
    pub const RETRIEVE: i32 = 5;
    pub const DELETE: i32 = 6;
    pub const RESEND: i32 = 7;
    pub const INC_EPOCH: i32 = 8;
    pub const PRUNE: i32 = 9;
}

/// Set in the unique of a request that is sent again after RESEND.
pub(crate) const UNIQUE_RESEND: u64 = 1 << 63;
/// Type of the extension that carries supplementary groups.
pub(crate) const EXT_GROUPS: u32 = 32;
/// Extension types up to this one are the number of security contexts.
pub(crate) const MAX_NR_SECCTX: u32 = 31;

/// `FATTR_*`: which fields of SETATTR count.
pub(crate) mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const LOCKOWNER: u32 = 1 << 9;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// A type that is the same in memory and on the wire.
///
/// # Safety
/// The type is `repr(C)`, consists of integers only and has no padding bytes, so that any bytes
/// form a valid value and all its bytes may be read.
pub(crate) unsafe trait Wire: Copy {
    /// The value at the start of `bytes`, if there are enough.
    fn read(bytes: &[u8]) -> Option<Self> {
        (bytes.len() >= size_of::<Self>()).then(|| {
            // SAFETY: enough bytes (just checked), no alignment needed, any bytes are valid.
            unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() }
        })
    }

    /// The bytes of the value.
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: the value is initialised, without padding, and borrowed as long as the slice.
        unsafe {
            std::slice::from_raw_parts(std::ptr::from_ref(self).cast::<u8>(), size_of::<Self>())
        }
    }
}

macro_rules! wire {
    ($($name:ident = $size:literal { $($field:ident: $type:ty),* $(,)? })*) => {$(
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(crate) struct $name { $(pub $field: $type),* }

        // The size is the kernel's, and the fields fill it without padding.
        const _: () = assert!(size_of::<$name>() == $size);
        const _: () = assert!(0 $(+ size_of::<$type>())* == $size);

        // SAFETY: repr(C), integers (or structs and arrays of them), no padding as asserted.
        unsafe impl Wire for $name {}

        #[cfg(test)]
        impl $name {
            /// Size, and name and offset of each field.
            #[allow(dead_code)] // two shortened forms have no struct of their own in the header
            pub const LAYOUT: (usize, &'static [(&'static str, usize)]) = (
                $size,
                &[$((stringify!($field), std::mem::offset_of!($name, $field))),*],
            );
        }
    )*};
}

wire! {
    InHeader = 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
    OutHeader = 16 { len: u32, error: i32, unique: u64 }
    Attr = 88 {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    }
    SxTime = 16 { tv_sec: i64, tv_nsec: u32, reserved: i32 }
    StatxBody = 256 {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16,
        spare0: u16, ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: SxTime,
        btime: SxTime, ctime: SxTime, mtime: SxTime, rdev_major: u32, rdev_minor: u32,
        dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    Kstatfs = 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6],
    }
    FileLock = 24 { start: u64, end: u64, kind: u32, pid: u32 }
    EntryOut = 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr,
    }
    ForgetIn = 8 { nlookup: u64 }
    ForgetOne = 16 { nodeid: u64, nlookup: u64 }
    BatchForgetIn = 8 { count: u32, dummy: u32 }
    GetattrIn = 16 { getattr_flags: u32, dummy: u32, fh: u64 }
    AttrOut = 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    StatxIn = 24 { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    StatxOut = 288 {
        attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: StatxBody,
    }
    MknodIn = 16 { mode: u32, rdev: u32, umask: u32, padding: u32 }
    MkdirIn = 8 { mode: u32, umask: u32 }
    RenameIn = 8 { newdir: u64 }
    Rename2In = 16 { newdir: u64, flags: u32, padding: u32 }
    LinkIn = 8 { oldnodeid: u64 }
    SetattrIn = 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: i64, mtime: i64,
        ctime: i64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32,
        uid: u32, gid: u32, unused5: u32,
    }
    OpenIn = 8 { flags: u32, open_flags: u32 }
    CreateIn = 16 { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    OpenOut = 16 { fh: u64, open_flags: u32, backing_id: u32 }
    ReleaseIn = 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    FlushIn = 24 { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    ReadIn = 40 {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    WriteIn = 40 {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    WriteOut = 8 { size: u32, padding: u32 }
    FsyncIn = 16 { fh: u64, fsync_flags: u32, padding: u32 }
    SetxattrIn = 16 { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    SetxattrInCompat = 8 { size: u32, flags: u32 }
    GetxattrIn = 8 { size: u32, padding: u32 }
    GetxattrOut = 8 { size: u32, padding: u32 }
    LkIn = 48 { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32 }
    LkOut = 24 { lk: FileLock }
    AccessIn = 8 { mask: u32, padding: u32 }
    InitIn = 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11],
    }
    InitInCompat = 16 { major: u32, minor: u32, max_readahead: u32, flags: u32 }
    InitOut = 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16,
        map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16,
        unused: [u16; 11],
    }
    InterruptIn = 8 { unique: u64 }
    BmapIn = 16 { block: u64, blocksize: u32, padding: u32 }
    BmapOut = 8 { block: u64 }
    IoctlIn = 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    IoctlOut = 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    PollIn = 24 { fh: u64, kh: u64, flags: u32, events: u32 }
    PollOut = 8 { revents: u32, padding: u32 }
    FallocateIn = 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    Dirent = 24 { ino: u64, off: u64, namelen: u32, kind: u32 }
    LseekIn = 24 { fh: u64, offset: u64, whence: u32, padding: u32 }
    LseekOut = 8 { offset: u64 }
    CopyFileRangeIn = 56 {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    CopyFileRangeOut = 8 { bytes_copied: u64 }
    SetupMappingIn = 40 { fh: u64, foffset: u64, len: u64, flags: u64, moffset: u64 }
    RemoveMappingIn = 4 { count: u32 }
    RemoveMappingOne = 16 { moffset: u64, len: u64 }
    SyncFsIn = 8 { padding: u64 }
    SecctxHeader = 8 { size: u32, nr_secctx: u32 }
    Secctx = 8 { size: u32, padding: u32 }
    ExtHeader = 8 { size: u32, kind: u32 }
    NotifyPollOut = 8 { kh: u64 }
    NotifyInvalInodeOut = 24 { ino: u64, off: i64, len: i64 }
    NotifyInvalEntryOut = 16 { parent: u64, namelen: u32, flags: u32 }
    NotifyDeleteOut = 24 { parent: u64, child: u64, namelen: u32, padding: u32 }
    NotifyStoreOut = 24 { nodeid: u64, offset: u64, size: u32, padding: u32 }
    NotifyRetrieveOut = 32 {
        notify_unique: u64, nodeid: u64, offset: u64, size: u32, padding: u32,
    }
    NotifyRetrieveIn = 40 {
        dummy1: u64, offset: u64, size: u32, dummy2: u32, dummy3: u64, dummy4: u64,
    }
    NotifyPruneOut = 16 { count: u32, padding: u32, spare: u64 }
    BackingMap = 16 { fd: i32, flags: u32, padding: u64 }
    UringEntryInOut = 32 {
        flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64,
    }
    UringCommand = 24 { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6] }
}

/// Where `struct fuse_uring_ent_in_out` has the size of the payload.
pub(crate) const URING_PAYLOAD_SIZE_AT: usize = 16;
/// `FUSE_IO_URING_CMD_REGISTER`.
pub(crate) const URING_REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`.
pub(crate) const URING_COMMIT_AND_FETCH: u32 = 2;

/// `FUSE_DEV_IOC_BACKING_OPEN`: `_IOW(229, 1, struct fuse_backing_map)`.
pub(crate) const IOC_BACKING_OPEN: libc::c_ulong = 0x4010_e501;
/// `FUSE_DEV_IOC_BACKING_CLOSE`: `_IOW(229, 2, uint32_t)`.
pub(crate) const IOC_BACKING_CLOSE: libc::c_ulong = 0x4004_e502;

#[cfg(test)]
mod tests;
