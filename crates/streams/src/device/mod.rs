//! Devices that streams are read from: real ones by io_uring or threads, and an emulated disk.

mod emulated;
mod threads;
mod uring;

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::model::Layout;
use crossbeam_channel::Sender;

use crate::media::{Access, FileKey, Media};
use crate::pool::Chunk;

pub use emulated::{Control, Emulated, Model};
pub use threads::Threads;
pub use uring::Uring;

/// A read of consecutive chunks of one file.
#[derive(Debug)]
pub struct Read {
    /// Comes back with the completion.
    pub token: u64,
    /// The file.
    pub media: Arc<Media>,
    /// First byte, aligned to [`crate::pool::ALIGNMENT`].
    pub offset: u64,
    /// Where the bytes go, one chunk after the other; at most [`CHUNKS_MAX`].
    pub chunks: Vec<Chunk>,
    /// Where the completion goes.
    pub reply: Sender<Completion>,
}

/// Chunks of one read, at most.
pub const CHUNKS_MAX: usize = 65;

/// How a read ended.
#[derive(Debug)]
pub struct Completion {
    /// That of the read.
    pub token: u64,
    /// The chunks of the read, filled as far as bytes came.
    pub chunks: Vec<Chunk>,
    /// Bytes that came, fewer than asked for only at the end of the file; or what went wrong.
    pub result: io::Result<usize>,
    /// When the device took it up.
    pub started: Instant,
    /// When it was seen to have ended.
    pub ended: Instant,
    /// How much of that time went by since this host did not let the reading thread run.
    pub late: Duration,
}

impl Read {
    /// Tells its sender how it ended. A sender that is gone does not care.
    fn complete(self, result: io::Result<usize>, started: Instant) {
        self.complete_at(result, started, Instant::now(), Duration::ZERO);
    }

    fn complete_at(
        mut self,
        result: io::Result<usize>,
        started: Instant,
        ended: Instant,
        late: Duration,
    ) {
        let came = *result.as_ref().unwrap_or(&0);
        let mut left = came;
        for chunk in &mut self.chunks {
            let filled = left.min(chunk.room().len());
            chunk.set_len(filled);
            left -= filled;
        }
        if result.is_ok() {
            self.media.forget(self.offset, came);
        }
        let Self { token, chunks, reply, .. } = self;
        let _ = reply.send(Completion { token, chunks, result, started, ended, late });
    }

    /// Does it by preadv(2), until all has come or the file ends.
    pub(crate) fn perform(&mut self) -> io::Result<usize> {
        let mut done = 0;
        loop {
            let mut skip = done;
            let mut slices: Vec<io::IoSliceMut<'_>> = Vec::with_capacity(self.chunks.len());
            for chunk in &mut self.chunks {
                let room = chunk.room();
                let from = skip.min(room.len());
                skip -= from;
                if from < room.len() {
                    slices.push(io::IoSliceMut::new(&mut room[from..]));
                }
            }
            if slices.is_empty() {
                return Ok(done);
            }
            let at = self.offset + done as u64;
            match rustix::io::preadv(self.media.file(), &mut slices, at) {
                // A direct read that ends off the grid has met the end of the file.
                Ok(0) => return Ok(done),
                Ok(count) => {
                    done += count;
                    if self.media.is_direct() && !count.is_multiple_of(crate::pool::ALIGNMENT) {
                        return Ok(done);
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    let error = io::Error::from(error);
                    if !self.media.refused_direct(&error) {
                        return Err(error);
                    }
                }
            }
        }
    }
}

/// Something that files are read from. Reads are begun in the order in which they are handed in;
/// who hands them in keeps their number small.
pub trait Device: fmt::Debug + Send + Sync {
    /// What it is, for people.
    fn name(&self) -> String;

    /// How its files are to be opened.
    fn access(&self) -> Access;

    /// Where a file lies on it.
    fn layout(&self, file: &File, key: FileKey) -> Layout;

    /// Bytes of the device that a directory is on, if it is known and larger than a profile may say.
    fn capacity(&self, directory: &Path) -> Option<u64> {
        crate::measure::device_bytes(directory)
    }

    /// Begins a read and returns at once; the completion goes to [`Read::reply`].
    fn submit(&self, read: Read);

    /// Where on it a place is that the file system has named.
    fn place(&self, physical: u64) -> u64 {
        physical
    }

    /// Waits as long as the device is busy with a read that somebody else does by other means: not
    /// at all if it is a real one, which that read itself keeps busy. Returns by how much the wait was
    /// longer because this host was busy.
    fn occupy(&self, physical: u64, bytes: u64) -> Duration {
        let _ = (physical, bytes);
        Duration::ZERO
    }
}

/// The best way to read real files here: io_uring, or threads where the kernel or a sandbox
/// forbids it.
pub fn real() -> Arc<dyn Device> {
    match Uring::start() {
        Ok(device) => Arc::new(device),
        Err(error) => {
            tracing::info!(%error, "no io_uring; threads read instead");
            Arc::new(Threads::start(threads::DEPTH))
        }
    }
}

#[cfg(test)]
mod tests;
