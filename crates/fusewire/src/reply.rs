//! Answers: encoding and sending.

use std::io::{self, IoSlice};
use std::time::Duration;

use crate::abi::{self, Wire};
use crate::connection::Connection;
use crate::directory::DirectoryBuffer;
use crate::ring::Slot;
use crate::types::{Attr, Entry, Lock, Opened, Statfs, Statx};

/// The right and duty to answer one request, from any thread. Which method belongs to which
/// operation is said at [`Operation`](crate::Operation). Dropped unanswered, it answers `EIO`.
///
/// An answer that the kernel no longer waits for (the request was aborted) is discarded silently.
#[must_use = "dropping a reply answers EIO"]
#[derive(Debug)]
pub struct Reply {
    connection: Connection,
    unique: u64,
    state: State,
    /// Where the answer goes, if not to the device.
    slot: Option<Slot>,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// The kernel waits.
    Open,
    /// The request has no answer (NOTIFY_REPLY).
    Mute,
    Answered,
}

impl Reply {
    pub(crate) fn new(connection: Connection, unique: u64) -> Self {
        Self { connection, unique, state: State::Open, slot: None }
    }

    pub(crate) fn mute(connection: Connection, unique: u64) -> Self {
        Self { connection, unique, state: State::Mute, slot: None }
    }

    pub(crate) fn on_ring(connection: Connection, unique: u64, slot: Slot) -> Self {
        Self { connection, unique, state: State::Open, slot: Some(slot) }
    }

    /// The connection, for buffers, backing files and notifications.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    fn send(&mut self, error: i32, parts: &[IoSlice<'_>]) {
        let answered = std::mem::replace(&mut self.state, State::Answered);
        if answered != State::Open {
            return;
        }
        let mut taken = self.deliver(error, parts);
        if let Err(failure) = &taken {
            taken = self.refused(failure);
        }
        // Last, so that nothing in flight means that every answer has reached the kernel. A ring's
        // thread does it when it has committed the answer.
        if self.slot.is_none() || taken.is_err() {
            self.connection.in_flight_table().remove(self.unique);
        }
    }

    fn deliver(&self, error: i32, parts: &[IoSlice<'_>]) -> io::Result<()> {
        match &self.slot {
            Some(slot) => slot.answer(self.unique, error, parts),
            None => self.connection.send(self.unique, error, parts),
        }
    }

    fn refused(&self, failure: &io::Error) -> io::Result<()> {
        match failure.raw_os_error() {
            // Aborted meanwhile, or the file system is gone.
            Some(code @ (libc::ENOENT | libc::ENODEV | libc::ENOTCONN | libc::ECONNABORTED)) => {
                Err(io::Error::from_raw_os_error(code))
            }
            _ => {
                tracing::warn!(unique = self.unique, %failure, "the kernel refused a reply");
                // The client still waits for a proper answer.
                self.deliver(-libc::EIO, &[])
            }
        }
    }

    fn send_wire<T: Wire>(mut self, body: &T) {
        self.send(0, &[IoSlice::new(body.as_bytes())]);
    }

    /// The operation failed with `errno` (positive, as in `libc::ENOENT`; 0 means success without
    /// data; what the protocol cannot carry becomes `EIO`).
    pub fn error(mut self, errno: i32) {
        let errno = if (0..512).contains(&errno) { errno } else { libc::EIO };
        self.send(-errno, &[]);
    }

    /// Does not answer: the kernel still waits, and gives the request to whoever asks for what is
    /// unanswered ([`Connection::notify_resend`]), which this process must do or the one that takes the
    /// connection over. Not for requests that come by io_uring, which get `EIO`.
    pub fn leave_unanswered(mut self) {
        if self.slot.is_none() && self.state == State::Open {
            self.state = State::Answered;
            self.connection.in_flight_table().remove(self.unique);
        }
    }

    /// The operation succeeded and has no result.
    pub fn ok(mut self) {
        self.send(0, &[]);
    }

    /// A resolved or created name.
    pub fn entry(self, entry: &Entry) {
        self.send_wire(&entry.to_wire());
    }

    /// Attributes, which the kernel may cache for `valid`.
    pub fn attr(self, attr: &Attr, valid: Duration) {
        self.send_wire(&abi::AttrOut {
            attr_valid: valid.as_secs(),
            attr_valid_nsec: valid.subsec_nanos(),
            dummy: 0,
            attr: attr.to_wire(),
        });
    }

    /// Extended attributes of an inode, which the kernel may cache for `valid`.
    pub fn statx(self, statx: &Statx, valid: Duration) {
        self.send_wire(&abi::StatxOut {
            attr_valid: valid.as_secs(),
            attr_valid_nsec: valid.subsec_nanos(),
            flags: 0,
            spare: [0; 2],
            stat: statx.to_wire(),
        });
    }

    /// An opened file or directory.
    pub fn open(self, opened: &Opened) {
        self.send_wire(&opened.to_wire());
    }

    /// A created and opened file.
    pub fn created(mut self, entry: &Entry, opened: &Opened) {
        let (entry, opened) = (entry.to_wire(), opened.to_wire());
        self.send(0, &[IoSlice::new(entry.as_bytes()), IoSlice::new(opened.as_bytes())]);
    }

    /// Bytes: of a file, or the value of an xattr.
    pub fn data(mut self, data: &[u8]) {
        self.send(0, &[IoSlice::new(data)]);
    }

    /// Bytes gathered from several places; up to 15 without an allocation, 1000 at most.
    pub fn data_vectored(mut self, data: &[IoSlice<'_>]) {
        self.send(0, data);
    }

    /// The target of a symbolic link.
    pub fn readlink(self, target: &[u8]) {
        self.data(target);
    }

    /// Bytes written (or copied by COPY_FILE_RANGE).
    pub fn written(self, bytes: u32) {
        self.send_wire(&abi::WriteOut { size: bytes, padding: 0 });
    }

    /// Bytes copied by COPY_FILE_RANGE_64.
    pub fn copied(self, bytes: u64) {
        self.send_wire(&abi::CopyFileRangeOut { bytes_copied: bytes });
    }

    /// The state of the file system.
    pub fn statfs(self, statfs: &Statfs) {
        self.send_wire(&abi::Kstatfs {
            blocks: statfs.blocks,
            bfree: statfs.bfree,
            bavail: statfs.bavail,
            files: statfs.files,
            ffree: statfs.ffree,
            bsize: statfs.bsize,
            namelen: statfs.namelen,
            frsize: statfs.frsize,
            padding: 0,
            spare: [0; 6],
        });
    }

    /// The size of an xattr's value or of the list of names, when the request's size was 0.
    pub fn xattr_size(self, bytes: u32) {
        self.send_wire(&abi::GetxattrOut { size: bytes, padding: 0 });
    }

    /// The offset found.
    pub fn lseek(self, offset: u64) {
        self.send_wire(&abi::LseekOut { offset });
    }

    /// The lock that is in the way, or kind `F_UNLCK`.
    pub fn lock(self, lock: &Lock) {
        self.send_wire(&abi::LkOut {
            lk: abi::FileLock {
                start: lock.start,
                end: lock.end,
                kind: lock.kind.cast_unsigned(),
                pid: lock.pid,
            },
        });
    }

    /// Directory entries.
    pub fn directory(self, directory: DirectoryBuffer) {
        self.data(directory.as_bytes());
    }

    /// Result and output of an ioctl.
    pub fn ioctl(mut self, result: i32, output: &[u8]) {
        let header = abi::IoctlOut { result, flags: 0, in_iovs: 0, out_iovs: 0 };
        self.send(0, &[IoSlice::new(header.as_bytes()), IoSlice::new(output)]);
    }

    /// Events that are ready (`POLLIN` ...).
    pub fn poll(self, ready: u32) {
        self.send_wire(&abi::PollOut { revents: ready, padding: 0 });
    }

    /// The device block.
    pub fn bmap(self, block: u64) {
        self.send_wire(&abi::BmapOut { block });
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.state == State::Open {
            tracing::warn!(unique = self.unique, "a reply was dropped unanswered");
            self.send(-libc::EIO, &[]);
        }
    }
}
