//! Bit sets of the protocol.

macro_rules! flag_set {
    ($(#[$meta:meta])* $name:ident: $bits:ty { $($(#[$item:meta])* $flag:ident = $bit:expr;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name($bits);

        impl $name {
            $($(#[$item])* pub const $flag: Self = Self(1 << $bit);)*
            /// No flag.
            pub const NONE: Self = Self(0);

            /// The set with exactly these bits, known or not.
            pub const fn from_bits(bits: $bits) -> Self {
                Self(bits)
            }

            /// The bits as the protocol has them.
            pub const fn bits(self) -> $bits {
                self.0
            }

            /// Whether every flag of `other` is in this set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// This set and `other` together.
            #[must_use]
            pub const fn with(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// This set without the flags of `other`.
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                self.with(other)
            }
        }

        impl std::ops::BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                *self = self.with(other);
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let known: &[($bits, &str)] = &[$((1 << $bit, stringify!($flag))),*];
                let mut rest = self.0;
                let mut set = f.debug_set();
                for &(bit, name) in known {
                    if rest & bit != 0 {
                        set.entry(&format_args!("{name}"));
                        rest &= !bit;
                    }
                }
                if rest != 0 {
                    set.entry(&format_args!("{rest:#x}"));
                }
                set.finish()
            }
        }
    };
}

flag_set! {
    /// Capabilities that kernel and file system agree on at INIT (`FUSE_*` init flags; bits 32
    /// and up travel in `flags2`).
    Features: u64 {
        /// Several read requests of one file at once.
        ASYNC_READ = 0;
        /// POSIX (fcntl) locks come to the handler instead of being kept by the kernel.
        POSIX_LOCKS = 1;
        /// `O_TRUNC` comes with OPEN instead of as a SETATTR before it.
        ATOMIC_O_TRUNC = 3;
        /// The handler resolves "." and ".." in lookups (export over NFS).
        EXPORT_SUPPORT = 4;
        /// Writes above one page.
        BIG_WRITES = 5;
        /// The kernel does not apply the umask; the handler gets it and does.
        DONT_MASK = 6;
        /// BSD (flock) locks come to the handler.
        FLOCK_LOCKS = 10;
        /// ioctl on directories.
        HAS_IOCTL_DIR = 11;
        /// Cached pages are dropped when size or mtime of an attribute reply changed.
        AUTO_INVAL_DATA = 12;
        /// READDIRPLUS may be sent.
        DO_READDIRPLUS = 13;
        /// READDIRPLUS only where it seems to pay.
        READDIRPLUS_AUTO = 14;
        /// Asynchronous direct I/O.
        ASYNC_DIO = 15;
        /// The kernel caches writes and owns size and mtime. Excludes passthrough.
        WRITEBACK_CACHE = 16;
        /// OPEN answered `ENOSYS` means: no open and release at all from then on.
        NO_OPEN_SUPPORT = 17;
        /// Lookups and readdirs of one directory in parallel.
        PARALLEL_DIROPS = 18;
        /// The file system clears setuid and setgid bits itself (version 1).
        HANDLE_KILLPRIV = 19;
        /// POSIX ACLs are kept in xattrs and enforced by the kernel.
        POSIX_ACL = 20;
        /// Reading an aborted connection says `ECONNABORTED` instead of `ENODEV`.
        ABORT_ERROR = 21;
        /// Requests of more than 32 pages.
        MAX_PAGES = 22;
        /// Targets of symbolic links may be cached.
        CACHE_SYMLINKS = 23;
        /// As `NO_OPEN_SUPPORT`, for directories.
        NO_OPENDIR_SUPPORT = 24;
        /// Cached pages are dropped only on request.
        EXPLICIT_INVAL_DATA = 25;
        /// Directories may be submounts.
        SUBMOUNTS = 27;
        /// The file system clears setuid and setgid bits when told to (version 2).
        HANDLE_KILLPRIV_V2 = 28;
        /// SETXATTR carries extra flags.
        SETXATTR_EXT = 29;
        /// INIT carries flags beyond 32 bits.
        INIT_EXT = 30;
        /// Create requests carry security contexts.
        SECURITY_CTX = 32;
        /// Create requests carry the supplementary group that matters.
        CREATE_SUPP_GROUP = 34;
        /// Entries can be expired instead of invalidated.
        HAS_EXPIRE_ONLY = 35;
        /// mmap(MAP_SHARED) of files opened for direct I/O.
        DIRECT_IO_ALLOW_MMAP = 36;
        /// Reads and writes may go straight to a backing file.
        PASSTHROUGH = 37;
        /// The file system cannot be exported over NFS.
        NO_EXPORT_SUPPORT = 38;
        /// Unanswered requests can be sent again (after a crash).
        HAS_RESEND = 39;
        /// Idmapped mounts. Not implemented by this crate, never negotiated.
        ALLOW_IDMAP = 40;
        /// Requests through io_uring. Reserved: never negotiated by this version.
        OVER_IO_URING = 41;
        /// The kernel aborts the connection when a request takes too long.
        REQUEST_TIMEOUT = 42;
    }
}

flag_set! {
    /// What an OPEN, OPENDIR, CREATE or TMPFILE reply tells the kernel (`FOPEN_*`).
    OpenOutFlags: u32 {
        /// Bypass the page cache for this open file.
        DIRECT_IO = 0;
        /// Keep cached pages of earlier opens.
        KEEP_CACHE = 1;
        /// The file cannot be seeked.
        NONSEEKABLE = 2;
        /// The directory's listing may be cached.
        CACHE_DIR = 3;
        /// The file has no position.
        STREAM = 4;
        /// No FLUSH at close.
        NOFLUSH = 5;
        /// Several direct writes of one inode at once.
        PARALLEL_DIRECT_WRITES = 6;
        /// Set by the encoder when [`Opened::backing_id`](crate::Opened::backing_id) is given.
        PASSTHROUGH = 7;
    }
}

flag_set! {
    /// What an OPEN or CREATE request asks in addition (`FUSE_OPEN_*`).
    OpenInFlags: u32 {
        /// Clear setuid and setgid (the open truncates).
        KILL_SUIDGID = 0;
    }
}

flag_set! {
    /// Properties of a WRITE request (`FUSE_WRITE_*`).
    WriteFlags: u32 {
        /// Written back from the page cache; the handle is a guess.
        CACHE = 0;
        /// The lock owner is valid.
        LOCKOWNER = 1;
        /// Clear setuid and setgid.
        KILL_SUIDGID = 2;
    }
}

flag_set! {
    /// Properties of a RELEASE request (`FUSE_RELEASE_*`).
    ReleaseFlags: u32 {
        /// Flush first.
        FLUSH = 0;
        /// Drop the flock locks of `lock_owner`.
        FLOCK_UNLOCK = 1;
    }
}

flag_set! {
    /// Properties of a SETXATTR request.
    SetxattrFlags: u32 {
        /// Clear setgid, since the access ACL is being set.
        ACL_KILL_SGID = 0;
    }
}

flag_set! {
    /// Properties of an IOCTL request (`FUSE_IOCTL_*`).
    IoctlFlags: u32 {
        /// 32-bit caller on a 64-bit machine.
        COMPAT = 0;
        /// Not restricted to well-formed ioctls.
        UNRESTRICTED = 1;
        /// Retry with new vectors.
        RETRY = 2;
        /// 32-bit ioctl.
        IS_32BIT = 3;
        /// On a directory.
        DIR = 4;
        /// x32 caller.
        COMPAT_X32 = 5;
    }
}

flag_set! {
    /// Properties of a POLL request.
    PollFlags: u32 {
        /// The kernel wants [`notify_poll`](crate::Connection::notify_poll) later.
        SCHEDULE_NOTIFY = 0;
    }
}

flag_set! {
    /// Properties of an inode in an attribute reply (`FUSE_ATTR_*`).
    AttrFlags: u32 {
        /// Root of a submount.
        SUBMOUNT = 0;
        /// DAX for this file.
        DAX = 1;
    }
}
