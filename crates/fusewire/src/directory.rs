//! Encoding of directory listings.

use crate::abi::{self, Wire};
use crate::buffer::Buffer;
use crate::connection::Connection;
use crate::types::{Entry, FileKind};

/// Directory entries in the form of a READDIR or READDIRPLUS reply, filled up to the size that
/// the request allows. Its memory comes from the session's pool.
#[derive(Debug)]
pub struct DirectoryBuffer {
    buffer: Buffer,
    limit: usize,
    used: usize,
}

impl DirectoryBuffer {
    /// Empty, for a request of `size` bytes.
    pub fn new(connection: &Connection, size: u32) -> Self {
        let buffer = connection.buffer();
        let limit = buffer.len().min(size as usize);
        Self { buffer, limit, used: 0 }
    }

    /// Adds an entry for READDIR. `offset` is the cookie from which reading continues *after*
    /// this entry; it must not be 0. Returns false if the entry does not fit any more.
    #[must_use]
    pub fn add(&mut self, ino: u64, offset: u64, kind: FileKind, name: &[u8]) -> bool {
        self.push(None, ino, offset, kind, name)
    }

    /// Adds an entry for READDIRPLUS. It counts as one lookup of `entry.node`; with node 0 (for
    /// "." and "..") it is only listed. Returns false if the entry does not fit any more.
    #[must_use]
    pub fn add_plus(&mut self, entry: &Entry, offset: u64, name: &[u8]) -> bool {
        let kind = FileKind::from_mode(entry.attr.mode);
        self.push(Some(&entry.to_wire()), entry.attr.ino, offset, kind, name)
    }

    /// Where the next entry goes, for [`DirectoryBuffer::set_entry`].
    pub fn end(&self) -> usize {
        self.used
    }

    /// Changes what was added by [`DirectoryBuffer::add_plus`] at a place.
    ///
    /// # Panics
    /// If nothing was added there.
    pub fn set_entry(&mut self, at: usize, entry: &Entry) {
        let entry = entry.to_wire();
        let bytes = entry.as_bytes();
        self.buffer[..self.used][at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn push(
        &mut self,
        entry: Option<&abi::EntryOut>,
        ino: u64,
        off: u64,
        kind: FileKind,
        name: &[u8],
    ) -> bool {
        let Ok(namelen) = u32::try_from(name.len()) else { return false };
        let entry = entry.map_or(&[][..], |entry| entry.as_bytes());
        let dirent = abi::Dirent { ino, off, namelen, kind: kind.to_dirent() };
        let plain = entry.len() + size_of::<abi::Dirent>() + name.len();
        let padded = plain.next_multiple_of(8);
        if self.used + padded > self.limit {
            return false;
        }
        for part in [entry, dirent.as_bytes(), name, &[0; 8][..padded - plain]] {
            self.buffer[self.used..self.used + part.len()].copy_from_slice(part);
            self.used += part.len();
        }
        true
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// The encoded entries.
    pub fn as_bytes(&self) -> &[u8] {
        &self.buffer[..self.used]
    }
}
