//! The operations that every file of bytes has, whether on a tier or in the backing store.

use std::os::fd::BorrowedFd;

use crate::{Attributes, Result, Timestamp};

/// What [`Bytes::allocate`] does to the length of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Grow the file if the range ends beyond it.
    Extend,
    /// Reserve blocks only; the length stays.
    KeepSize,
    /// Make the range read as zeros, growing the file if needed.
    Zero,
    /// Make the range read as zeros without growing the file.
    ZeroKeepSize,
}

/// A random-access file. `Box<dyn Bytes>` is what the copy engine works on.
pub trait Bytes: Send + Sync {
    /// Reads at `offset` until `buffer` is full or the file ends; returns the bytes read. Never
    /// allocates on success.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize>;

    /// Writes at `offset`; returns the bytes written. That is all of `data`, or fewer only when an
    /// error (for example a full disk) came after some were written: the next call reports it.
    /// Never allocates on success.
    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize>;

    /// Makes the bytes durable; with `data_only` as `fdatasync`.
    fn sync(&self, data_only: bool) -> Result<()>;

    /// Sets the length.
    fn set_len(&self, len: u64) -> Result<()>;

    /// Attributes of the file.
    fn stat(&self) -> Result<Attributes>;

    /// Length in bytes.
    fn len(&self) -> Result<u64> {
        Ok(self.stat()?.size)
    }

    /// Whether the length is zero.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Bytes allocated on the device (`st_blocks` * 512), with the file system's own blocks for
    /// this file where it counts them.
    fn allocated_bytes(&self) -> Result<u64> {
        Ok(self.stat()?.blocks * 512)
    }

    /// Allocates blocks for `len` bytes at `offset`. `Unsupported` where the file system has no
    /// `fallocate`.
    fn allocate(&self, offset: u64, len: u64, mode: AllocateMode) -> Result<()>;

    /// Frees the blocks of a range; it reads as zeros afterwards, the length stays.
    fn punch(&self, offset: u64, len: u64) -> Result<()>;

    /// First byte of data at or after `offset`; `None` when only a hole follows.
    fn seek_data(&self, offset: u64) -> Result<Option<u64>>;

    /// First byte of a hole at or after `offset` (the end of the file counts as one); `None` when
    /// `offset` is at or beyond the end.
    fn seek_hole(&self, offset: u64) -> Result<Option<u64>>;

    /// Sets access and modification time; `None` leaves one as it is.
    fn set_times(&self, atime: Option<Timestamp>, mtime: Option<Timestamp>) -> Result<()>;

    /// The descriptor, opened for reading and writing where the file was opened so, for passthrough
    /// and for copies inside the kernel. `None` from decorators that must see every byte.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// What to call the file in messages: its path when it was opened.
    fn label(&self) -> &std::path::Path;
}

/// Implements [`Bytes`] for a type by passing every call to one of its fields.
macro_rules! delegate_bytes {
    ($type:ty, $field:tt) => {
        impl Bytes for $type {
            fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
                self.$field.read_at(buffer, offset)
            }
            fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
                self.$field.write_at(data, offset)
            }
            fn sync(&self, data_only: bool) -> Result<()> {
                self.$field.sync(data_only)
            }
            fn set_len(&self, len: u64) -> Result<()> {
                self.$field.set_len(len)
            }
            fn stat(&self) -> Result<Attributes> {
                self.$field.stat()
            }
            fn allocate(&self, offset: u64, len: u64, mode: AllocateMode) -> Result<()> {
                self.$field.allocate(offset, len, mode)
            }
            fn punch(&self, offset: u64, len: u64) -> Result<()> {
                self.$field.punch(offset, len)
            }
            fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
                self.$field.seek_data(offset)
            }
            fn seek_hole(&self, offset: u64) -> Result<Option<u64>> {
                self.$field.seek_hole(offset)
            }
            fn set_times(&self, atime: Option<Timestamp>, mtime: Option<Timestamp>) -> Result<()> {
                self.$field.set_times(atime, mtime)
            }
            fn fd(&self) -> Option<BorrowedFd<'_>> {
                self.$field.fd()
            }
            fn label(&self) -> &Path {
                self.$field.label()
            }
        }
    };
}

pub(crate) use delegate_bytes;
