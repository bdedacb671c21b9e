//! Requests as values: decoding of the arguments.

use crate::abi::{self, Wire, fattr, opcode};
use crate::error::DecodeError;
use crate::flags::{IoctlFlags, OpenInFlags, PollFlags, ReleaseFlags, SetxattrFlags, WriteFlags};
use crate::types::{Lock, SetAttributes, SetTime, Timestamp};

/// What a request asks for. The node it concerns (the parent directory for operations on names)
/// is in the request's [`Header`](crate::Header). Names are without the terminating zero byte;
/// `flags` of open files are those of open(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are those of the system calls and of <linux/fuse.h>
#[non_exhaustive]
pub enum Operation<'a> {
    /// Resolve a name. Answer: `entry`.
    Lookup { name: &'a [u8] },
    /// Answer: `attr`.
    Getattr { fh: Option<u64> },
    /// Answer: `statx`.
    Statx { fh: Option<u64>, flags: u32, mask: u32 },
    /// Answer: `attr`.
    Setattr(SetAttributes),
    /// Answer: `readlink`.
    Readlink,
    /// Answer: `entry`.
    Symlink { name: &'a [u8], target: &'a [u8] },
    /// Answer: `entry`.
    Mknod { name: &'a [u8], mode: u32, rdev: u32, umask: u32 },
    /// Answer: `entry`.
    Mkdir { name: &'a [u8], mode: u32, umask: u32 },
    /// Answer: `ok`.
    Unlink { name: &'a [u8] },
    /// Answer: `ok`.
    Rmdir { name: &'a [u8] },
    /// `flags` are those of renameat2. Answer: `ok`.
    Rename { old: &'a [u8], new_parent: u64, new: &'a [u8], flags: u32 },
    /// A new name for `node` in the header's directory. Answer: `entry`.
    Link { node: u64, name: &'a [u8] },
    /// Answer: `open`.
    Open { flags: u32, open_flags: OpenInFlags },
    /// Answer: `created`.
    Create { name: &'a [u8], flags: u32, mode: u32, umask: u32, open_flags: OpenInFlags },
    /// A file without a name in the header's directory. Answer: `created`.
    Tmpfile { flags: u32, mode: u32, umask: u32, open_flags: OpenInFlags },
    /// Answer: `data` of at most `size` bytes; fewer mean the end of the file.
    Read { fh: u64, offset: u64, size: u32, flags: u32, lock_owner: Option<u64> },
    /// Answer: `written`. Data of a page or more start on a page boundary.
    Write {
        fh: u64,
        offset: u64,
        data: &'a [u8],
        write_flags: WriteFlags,
        flags: u32,
        lock_owner: Option<u64>,
    },
    /// Answer: `statfs`.
    Statfs,
    /// The last close of an open file. Answer: `ok`.
    Release { fh: u64, flags: u32, release_flags: ReleaseFlags, lock_owner: u64 },
    /// Answer: `ok`.
    Fsync { fh: u64, datasync: bool },
    /// Answer: `ok`.
    Setxattr { name: &'a [u8], value: &'a [u8], flags: u32, setxattr_flags: SetxattrFlags },
    /// Answer: `xattr_size` if `size` is 0, else `data` or `ERANGE`.
    Getxattr { name: &'a [u8], size: u32 },
    /// Answer as for `Getxattr`; names each end with a zero byte.
    Listxattr { size: u32 },
    /// Answer: `ok`.
    Removexattr { name: &'a [u8] },
    /// A descriptor of the open file is closed. Answer: `ok`.
    Flush { fh: u64, lock_owner: u64 },
    /// Answer: `open`.
    Opendir { flags: u32 },
    /// Answer: `directory` with plain entries, starting after the cookie `offset`.
    Readdir { fh: u64, offset: u64, size: u32 },
    /// Answer: `directory` with full entries.
    Readdirplus { fh: u64, offset: u64, size: u32 },
    /// Answer: `ok`.
    Releasedir { fh: u64, flags: u32 },
    /// Answer: `ok`.
    Fsyncdir { fh: u64, datasync: bool },
    /// Answer: `lock` (kind `F_UNLCK` if nothing is in the way).
    Getlk { fh: u64, owner: u64, lock: Lock, flock: bool },
    /// Answer: `ok` or `EAGAIN`.
    Setlk { fh: u64, owner: u64, lock: Lock, flock: bool },
    /// As `Setlk`, but waits. Answer: `ok`, or `EINTR` when interrupted.
    Setlkw { fh: u64, owner: u64, lock: Lock, flock: bool },
    /// Answer: `ok` or `EACCES`.
    Access { mask: u32 },
    /// Answer: `bmap`.
    Bmap { block: u64, blocksize: u32 },
    /// Answer: `ioctl`.
    Ioctl { fh: u64, flags: IoctlFlags, cmd: u32, arg: u64, input: &'a [u8], out_size: u32 },
    /// `kernel_handle` is for `notify_poll`. Answer: `poll`.
    Poll { fh: u64, kernel_handle: u64, flags: PollFlags, events: u32 },
    /// Answer: `ok`.
    Fallocate { fh: u64, offset: u64, length: u64, mode: u32 },
    /// Answer: `lseek`.
    Lseek { fh: u64, offset: u64, whence: u32 },
    /// Answer: `written` (at most `u32::MAX` bytes).
    CopyFileRange(CopyRange),
    /// Answer: `copied`.
    CopyFileRange64(CopyRange),
    /// Answer: `ok`.
    SyncFs,
    /// What [`notify_retrieve`](crate::Connection::notify_retrieve) asked for; the header's
    /// unique is the one given there. No answer: the reply is mute.
    NotifyReply { offset: u64, data: &'a [u8] },
    /// DAX (virtiofs). Answer: `ok`.
    SetupMapping { fh: u64, file_offset: u64, length: u64, flags: u64, window_offset: u64 },
    /// DAX (virtiofs). Answer: `ok`.
    RemoveMapping { ranges: MappingRanges<'a> },
    /// An opcode that this crate does not know. Answer `ENOSYS`.
    Unknown(u32),
}

/// Arguments of COPY_FILE_RANGE. The source is the header's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRange {
    /// Open source file.
    pub fh_in: u64,
    /// Offset in the source.
    pub offset_in: u64,
    /// Destination node.
    pub node_out: u64,
    /// Open destination file.
    pub fh_out: u64,
    /// Offset in the destination.
    pub offset_out: u64,
    /// Bytes to copy.
    pub length: u64,
    /// As in copy_file_range(2).
    pub flags: u64,
}

/// A range of the DAX window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingRange {
    /// Offset in the window.
    pub window_offset: u64,
    /// Bytes.
    pub length: u64,
}

/// The ranges of a `RemoveMapping`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingRanges<'a>(&'a [u8]);

impl MappingRanges<'_> {
    /// The ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = MappingRange> + '_ {
        self.0
            .chunks_exact(size_of::<abi::RemoveMappingOne>())
            .filter_map(abi::RemoveMappingOne::read)
            .map(|one| MappingRange { window_offset: one.moffset, length: one.len })
    }
}

/// Size of the fixed arguments of `opcode`, which names and data follow.
///
/// Kept apart from the decoder since a transport may deliver the two parts separately, as
/// FUSE over io_uring does.
pub(crate) fn fixed_size(opcode: u32, setxattr_ext: bool) -> usize {
    use opcode::*;
    match opcode {
        FORGET => size_of::<abi::ForgetIn>(),
        GETATTR => size_of::<abi::GetattrIn>(),
        STATX => size_of::<abi::StatxIn>(),
        SETATTR => size_of::<abi::SetattrIn>(),
        MKNOD => size_of::<abi::MknodIn>(),
        MKDIR => size_of::<abi::MkdirIn>(),
        RENAME => size_of::<abi::RenameIn>(),
        RENAME2 => size_of::<abi::Rename2In>(),
        LINK => size_of::<abi::LinkIn>(),
        OPEN | OPENDIR => size_of::<abi::OpenIn>(),
        READ | READDIR | READDIRPLUS => size_of::<abi::ReadIn>(),
        WRITE => size_of::<abi::WriteIn>(),
        RELEASE | RELEASEDIR => size_of::<abi::ReleaseIn>(),
        FSYNC | FSYNCDIR => size_of::<abi::FsyncIn>(),
        SETXATTR if setxattr_ext => size_of::<abi::SetxattrIn>(),
        SETXATTR => size_of::<abi::SetxattrInCompat>(),
        GETXATTR | LISTXATTR => size_of::<abi::GetxattrIn>(),
        FLUSH => size_of::<abi::FlushIn>(),
        INIT => size_of::<abi::InitInCompat>(),
        GETLK | SETLK | SETLKW => size_of::<abi::LkIn>(),
        ACCESS => size_of::<abi::AccessIn>(),
        CREATE | TMPFILE => size_of::<abi::CreateIn>(),
        INTERRUPT => size_of::<abi::InterruptIn>(),
        BMAP => size_of::<abi::BmapIn>(),
        IOCTL => size_of::<abi::IoctlIn>(),
        POLL => size_of::<abi::PollIn>(),
        NOTIFY_REPLY => size_of::<abi::NotifyRetrieveIn>(),
        BATCH_FORGET => size_of::<abi::BatchForgetIn>(),
        FALLOCATE => size_of::<abi::FallocateIn>(),
        LSEEK => size_of::<abi::LseekIn>(),
        COPY_FILE_RANGE | COPY_FILE_RANGE_64 => size_of::<abi::CopyFileRangeIn>(),
        SETUPMAPPING => size_of::<abi::SetupMappingIn>(),
        REMOVEMAPPING => size_of::<abi::RemoveMappingIn>(),
        SYNCFS => size_of::<abi::SyncFsIn>(),
        _ => 0,
    }
}

/// The arguments of one request: the fixed part and what follows it.
pub(crate) struct Arguments<'a> {
    opcode: u32,
    fixed: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Arguments<'a> {
    /// Splits contiguous arguments (all of the request between header and extensions).
    pub fn split(opcode: u32, body: &'a [u8], setxattr_ext: bool) -> Result<Self, DecodeError> {
        let need = fixed_size(opcode, setxattr_ext);
        let (fixed, payload) = body.split_at_checked(need).ok_or(DecodeError::Truncated {
            opcode,
            need,
            have: body.len(),
        })?;
        Ok(Self { opcode, fixed, payload })
    }

    /// The fixed part as `T`.
    pub fn fixed<T: Wire>(&self) -> Result<T, DecodeError> {
        T::read(self.fixed).ok_or(DecodeError::Truncated {
            opcode: self.opcode,
            need: size_of::<T>(),
            have: self.fixed.len(),
        })
    }

    /// `length` bytes of what follows the fixed part.
    pub fn bytes(&mut self, length: u64) -> Result<&'a [u8], DecodeError> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let (bytes, rest) =
            self.payload.split_at_checked(length).ok_or(DecodeError::Truncated {
                opcode: self.opcode,
                need: self.fixed.len().saturating_add(length),
                have: self.fixed.len() + self.payload.len(),
            })?;
        self.payload = rest;
        Ok(bytes)
    }

    fn name(&mut self) -> Result<&'a [u8], DecodeError> {
        let end = self
            .payload
            .iter()
            .position(|&byte| byte == 0)
            .ok_or(DecodeError::Unterminated { opcode: self.opcode })?;
        let name = &self.payload[..end];
        self.payload = &self.payload[end + 1..];
        Ok(name)
    }

    /// Decodes; the caller has dealt with the opcodes that are not operations.
    pub fn decode(mut self) -> Result<Operation<'a>, DecodeError> {
        match self.opcode {
            opcode::LOOKUP
            | opcode::SYMLINK
            | opcode::MKNOD
            | opcode::MKDIR
            | opcode::UNLINK
            | opcode::RMDIR
            | opcode::RENAME
            | opcode::RENAME2
            | opcode::LINK
            | opcode::CREATE
            | opcode::TMPFILE => self.decode_name_operation(),
            opcode::GETATTR | opcode::STATX | opcode::SETATTR | opcode::ACCESS => {
                self.decode_attribute_operation()
            }
            opcode::SETXATTR | opcode::GETXATTR | opcode::LISTXATTR | opcode::REMOVEXATTR => {
                self.decode_xattr_operation()
            }
            opcode::OPENDIR
            | opcode::READDIR
            | opcode::READDIRPLUS
            | opcode::RELEASEDIR
            | opcode::FSYNCDIR => self.decode_directory_operation(),
            opcode::GETLK | opcode::SETLK | opcode::SETLKW => self.decode_lock_operation(),
            opcode::OPEN
            | opcode::READ
            | opcode::WRITE
            | opcode::FLUSH
            | opcode::RELEASE
            | opcode::FSYNC
            | opcode::FALLOCATE
            | opcode::LSEEK
            | opcode::COPY_FILE_RANGE
            | opcode::COPY_FILE_RANGE_64 => self.decode_file_operation(),
            _ => self.decode_other_operation(),
        }
    }

    fn decode_name_operation(&mut self) -> Result<Operation<'a>, DecodeError> {
        Ok(match self.opcode {
            opcode::LOOKUP => Operation::Lookup { name: self.name()? },
            opcode::SYMLINK => Operation::Symlink { name: self.name()?, target: self.name()? },
            opcode::MKNOD => {
                let abi::MknodIn { mode, rdev, umask, .. } = self.fixed()?;
                Operation::Mknod { name: self.name()?, mode, rdev, umask }
            }
            opcode::MKDIR => {
                let abi::MkdirIn { mode, umask } = self.fixed()?;
                Operation::Mkdir { name: self.name()?, mode, umask }
            }
            opcode::UNLINK => Operation::Unlink { name: self.name()? },
            opcode::RMDIR => Operation::Rmdir { name: self.name()? },
            opcode::RENAME => {
                let abi::RenameIn { newdir: new_parent } = self.fixed()?;
                Operation::Rename { old: self.name()?, new_parent, new: self.name()?, flags: 0 }
            }
            opcode::RENAME2 => {
                let abi::Rename2In { newdir: new_parent, flags, .. } = self.fixed()?;
                Operation::Rename { old: self.name()?, new_parent, new: self.name()?, flags }
            }
            opcode::LINK => {
                let abi::LinkIn { oldnodeid: node } = self.fixed()?;
                Operation::Link { node, name: self.name()? }
            }
            opcode::CREATE => {
                let abi::CreateIn { flags, mode, umask, open_flags } = self.fixed()?;
                let open_flags = OpenInFlags::from_bits(open_flags);
                Operation::Create { name: self.name()?, flags, mode, umask, open_flags }
            }
            _ => {
                let abi::CreateIn { flags, mode, umask, open_flags } = self.fixed()?;
                let open_flags = OpenInFlags::from_bits(open_flags);
                Operation::Tmpfile { flags, mode, umask, open_flags }
            }
        })
    }

    fn decode_attribute_operation(&mut self) -> Result<Operation<'a>, DecodeError> {
        Ok(match self.opcode {
            opcode::GETATTR => {
                let abi::GetattrIn { getattr_flags, fh, .. } = self.fixed()?;
                Operation::Getattr { fh: (getattr_flags & 1 != 0).then_some(fh) }
            }
            opcode::STATX => {
                let abi::StatxIn { getattr_flags, fh, sx_flags, sx_mask, .. } = self.fixed()?;
                let fh = (getattr_flags & 1 != 0).then_some(fh);
                Operation::Statx { fh, flags: sx_flags, mask: sx_mask }
            }
            opcode::SETATTR => Operation::Setattr(set_attributes(&self.fixed()?)),
            _ => {
                let abi::AccessIn { mask, .. } = self.fixed()?;
                Operation::Access { mask }
            }
        })
    }

    fn decode_xattr_operation(&mut self) -> Result<Operation<'a>, DecodeError> {
        Ok(match self.opcode {
            opcode::SETXATTR => {
                // The extended form begins with the compatible one.
                let abi::SetxattrInCompat { size, flags } = self.fixed()?;
                let extra = abi::SetxattrIn::read(self.fixed).map_or(0, |long| long.setxattr_flags);
                let setxattr_flags = SetxattrFlags::from_bits(extra);
                let name = self.name()?;
                let value = self.bytes(u64::from(size))?;
                Operation::Setxattr { name, value, flags, setxattr_flags }
            }
            opcode::GETXATTR => {
                let abi::GetxattrIn { size, .. } = self.fixed()?;
                Operation::Getxattr { name: self.name()?, size }
            }
            opcode::LISTXATTR => {
                let abi::GetxattrIn { size, .. } = self.fixed()?;
                Operation::Listxattr { size }
            }
            _ => Operation::Removexattr { name: self.name()? },
        })
    }

    fn decode_directory_operation(&mut self) -> Result<Operation<'a>, DecodeError> {
        Ok(match self.opcode {
            opcode::OPENDIR => {
                let abi::OpenIn { flags, .. } = self.fixed()?;
                Operation::Opendir { flags }
            }
            opcode::READDIR => {
                let abi::ReadIn { fh, offset, size, .. } = self.fixed()?;
                Operation::Readdir { fh, offset, size }
            }
            opcode::READDIRPLUS => {
                let abi::ReadIn { fh, offset, size, .. } = self.fixed()?;
                Operation::Readdirplus { fh, offset, size }
            }
            opcode::RELEASEDIR => {
                let abi::ReleaseIn { fh, flags, .. } = self.fixed()?;
                Operation::Releasedir { fh, flags }
            }
            _ => {
                let abi::FsyncIn { fh, fsync_flags, .. } = self.fixed()?;
                Operation::Fsyncdir { fh, datasync: fsync_flags & 1 != 0 }
            }
        })
    }

    fn decode_lock_operation(&mut self) -> Result<Operation<'a>, DecodeError> {
        let abi::LkIn { fh, owner, lk, lk_flags, .. } = self.fixed()?;
        let abi::FileLock { start, end, kind, pid } = lk;
        let lock = Lock { start, end, kind: kind.cast_signed(), pid };
        let flock = lk_flags & 1 != 0;
        Ok(match self.opcode {
            opcode::GETLK => Operation::Getlk { fh, owner, lock, flock },
            opcode::SETLK => Operation::Setlk { fh, owner, lock, flock },
            _ => Operation::Setlkw { fh, owner, lock, flock },
        })
    }

    fn decode_file_operation(&mut self) -> Result<Operation<'a>, DecodeError> {
        Ok(match self.opcode {
            opcode::OPEN => {
                let abi::OpenIn { flags, open_flags } = self.fixed()?;
                Operation::Open { flags, open_flags: OpenInFlags::from_bits(open_flags) }
            }
            opcode::READ => {
                const READ_LOCKOWNER: u32 = 1 << 1;
                let abi::ReadIn { fh, offset, size, read_flags, lock_owner, flags, .. } =
                    self.fixed()?;
                let lock_owner = (read_flags & READ_LOCKOWNER != 0).then_some(lock_owner);
                Operation::Read { fh, offset, size, flags, lock_owner }
            }
            opcode::WRITE => {
                let abi::WriteIn { fh, offset, size, write_flags, lock_owner, flags, .. } =
                    self.fixed()?;
                let write_flags = WriteFlags::from_bits(write_flags);
                let lock_owner = write_flags.contains(WriteFlags::LOCKOWNER).then_some(lock_owner);
                let data = self.bytes(u64::from(size))?;
                Operation::Write { fh, offset, data, write_flags, flags, lock_owner }
            }
            opcode::FLUSH => {
                let abi::FlushIn { fh, lock_owner, .. } = self.fixed()?;
                Operation::Flush { fh, lock_owner }
            }
            opcode::RELEASE => {
                let abi::ReleaseIn { fh, flags, release_flags, lock_owner } = self.fixed()?;
                let release_flags = ReleaseFlags::from_bits(release_flags);
                Operation::Release { fh, flags, release_flags, lock_owner }
            }
            opcode::FSYNC => {
                let abi::FsyncIn { fh, fsync_flags, .. } = self.fixed()?;
                Operation::Fsync { fh, datasync: fsync_flags & 1 != 0 }
            }
            opcode::FALLOCATE => {
                let abi::FallocateIn { fh, offset, length, mode, .. } = self.fixed()?;
                Operation::Fallocate { fh, offset, length, mode }
            }
            opcode::LSEEK => {
                let abi::LseekIn { fh, offset, whence, .. } = self.fixed()?;
                Operation::Lseek { fh, offset, whence }
            }
            opcode::COPY_FILE_RANGE => Operation::CopyFileRange(copy_range(&self.fixed()?)),
            _ => Operation::CopyFileRange64(copy_range(&self.fixed()?)),
        })
    }

    fn decode_other_operation(&mut self) -> Result<Operation<'a>, DecodeError> {
        Ok(match self.opcode {
            opcode::READLINK => Operation::Readlink,
            opcode::STATFS => Operation::Statfs,
            opcode::SYNCFS => Operation::SyncFs,
            opcode::BMAP => {
                let abi::BmapIn { block, blocksize, .. } = self.fixed()?;
                Operation::Bmap { block, blocksize }
            }
            opcode::IOCTL => {
                let abi::IoctlIn { fh, flags, cmd, arg, in_size, out_size } = self.fixed()?;
                let flags = IoctlFlags::from_bits(flags);
                let input = self.bytes(u64::from(in_size))?;
                Operation::Ioctl { fh, flags, cmd, arg, input, out_size }
            }
            opcode::POLL => {
                let abi::PollIn { fh, kh: kernel_handle, flags, events } = self.fixed()?;
                Operation::Poll { fh, kernel_handle, flags: PollFlags::from_bits(flags), events }
            }
            opcode::NOTIFY_REPLY => {
                let abi::NotifyRetrieveIn { offset, size, .. } = self.fixed()?;
                Operation::NotifyReply { offset, data: self.bytes(u64::from(size))? }
            }
            opcode::SETUPMAPPING => {
                let abi::SetupMappingIn { fh, foffset, len, flags, moffset } = self.fixed()?;
                Operation::SetupMapping {
                    fh,
                    file_offset: foffset,
                    length: len,
                    flags,
                    window_offset: moffset,
                }
            }
            opcode::REMOVEMAPPING => {
                let abi::RemoveMappingIn { count } = self.fixed()?;
                let one = size_of::<abi::RemoveMappingOne>() as u64;
                Operation::RemoveMapping {
                    ranges: MappingRanges(self.bytes(u64::from(count) * one)?),
                }
            }
            unknown => Operation::Unknown(unknown),
        })
    }
}

fn copy_range(raw: &abi::CopyFileRangeIn) -> CopyRange {
    CopyRange {
        fh_in: raw.fh_in,
        offset_in: raw.off_in,
        node_out: raw.nodeid_out,
        fh_out: raw.fh_out,
        offset_out: raw.off_out,
        length: raw.len,
        flags: raw.flags,
    }
}

fn set_attributes(raw: &abi::SetattrIn) -> SetAttributes {
    let has = |bit: u32| raw.valid & bit != 0;
    let time = |bit, now, seconds, nanoseconds| {
        has(bit).then(|| match has(now) {
            true => SetTime::Now,
            false => SetTime::At(Timestamp { seconds, nanoseconds }),
        })
    };
    SetAttributes {
        fh: has(fattr::FH).then_some(raw.fh),
        mode: has(fattr::MODE).then_some(raw.mode),
        uid: has(fattr::UID).then_some(raw.uid),
        gid: has(fattr::GID).then_some(raw.gid),
        size: has(fattr::SIZE).then_some(raw.size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, raw.atime, raw.atimensec),
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, raw.mtime, raw.mtimensec),
        ctime: has(fattr::CTIME).then(|| Timestamp::new(raw.ctime, raw.ctimensec)),
        lock_owner: has(fattr::LOCKOWNER).then_some(raw.lock_owner),
        kill_suidgid: has(fattr::KILL_SUIDGID),
    }
}

#[cfg(test)]
mod tests;
