//! Operations of the protocol by their numbers: for the metrics and for people.

use forebay_node::metrics::Op;
use fusewire::opcode as code;

/// The class under which an operation's latency is counted.
pub fn class(opcode: u32) -> Op {
    match opcode {
        code::LOOKUP => Op::Lookup,
        code::GETATTR | code::STATX => Op::Getattr,
        code::SETATTR => Op::Setattr,
        code::OPEN => Op::Open,
        code::CREATE | code::TMPFILE => Op::Create,
        code::READ => Op::Read,
        code::WRITE | code::COPY_FILE_RANGE | code::COPY_FILE_RANGE_64 => Op::Write,
        code::FLUSH => Op::Flush,
        code::FSYNC | code::FSYNCDIR | code::SYNCFS => Op::Fsync,
        code::RELEASE => Op::Release,
        code::OPENDIR | code::READDIR | code::READDIRPLUS | code::RELEASEDIR => Op::Readdir,
        code::MKDIR | code::MKNOD | code::SYMLINK | code::LINK => Op::Make,
        code::UNLINK | code::RMDIR => Op::Remove,
        code::RENAME | code::RENAME2 => Op::Rename,
        code::SETXATTR | code::GETXATTR | code::LISTXATTR | code::REMOVEXATTR => Op::Xattr,
        _ => Op::Other,
    }
}

/// What a program would call an operation, by its number in the protocol ([`fusewire::opcode`]).
#[must_use]
pub fn operation_name(opcode: u32) -> &'static str {
    match opcode {
        code::LOOKUP => "lookup",
        code::GETATTR => "stat",
        code::STATX => "statx",
        code::SETATTR => "change of attributes",
        code::READLINK => "readlink",
        code::SYMLINK => "symlink",
        code::MKNOD => "mknod",
        code::MKDIR => "mkdir",
        code::UNLINK => "unlink",
        code::RMDIR => "rmdir",
        code::RENAME | code::RENAME2 => "rename",
        code::LINK => "link",
        code::OPEN => "open",
        code::CREATE => "create",
        code::TMPFILE => "open of a temporary file",
        code::READ => "read",
        code::WRITE => "write",
        code::STATFS => "statfs",
        code::RELEASE => "last close",
        code::FLUSH => "close",
        code::FSYNC | code::FSYNCDIR => "fsync",
        code::SYNCFS => "syncfs",
        code::SETXATTR => "setxattr",
        code::GETXATTR => "getxattr",
        code::LISTXATTR => "listxattr",
        code::REMOVEXATTR => "removexattr",
        code::OPENDIR | code::READDIR | code::READDIRPLUS => "readdir",
        code::FALLOCATE => "fallocate",
        code::LSEEK => "lseek",
        code::COPY_FILE_RANGE | code::COPY_FILE_RANGE_64 => "copy_file_range",
        _ => "operation",
    }
}
