//! Open files.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::files::FileRef;

/// How the kernel treats an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// Reads and writes go to the registered file without the daemon.
    Passthrough {
        /// The registration.
        id: u32,
    },
    /// Reads and writes come to the daemon, mappings go to the registered file.
    PassthroughDirect {
        /// The registration.
        id: u32,
    },
    /// Through the kernel's page cache.
    Cached {
        /// Whether pages cached before may stay.
        keep: bool,
    },
    /// Every read and write comes to the daemon.
    Direct,
}

/// A file that was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// The handle for later calls.
    pub fh: u64,
    /// How the kernel shall treat it.
    pub mode: OpenMode,
}

/// An open file.
pub struct Handle {
    pub(crate) file: FileRef,
    pub(crate) write: bool,
    pub(crate) mode: OpenMode,
    /// Room promised to a passthrough writer: tier and bytes.
    pub(crate) promised: Option<(u8, u64)>,
    /// Where a sequential reader reads next.
    expected: AtomicU64,
    /// Bytes read since it last jumped.
    run: AtomicU64,
}

impl Handle {
    pub(crate) fn new(
        file: FileRef,
        write: bool,
        mode: OpenMode,
        promised: Option<(u8, u64)>,
    ) -> Self {
        Handle { file, write, mode, promised, expected: AtomicU64::new(0), run: AtomicU64::new(0) }
    }

    /// Notes a read and says how many bytes its reader has read in sequence: 0 for a read that
    /// stands alone. Reads of a read-ahead come out of order; those that come close to where the
    /// reader is count, too, but only a number of them makes a sequence, as random ones do so by
    /// chance.
    pub(crate) fn sequence(&self, offset: u64, len: u64) -> u64 {
        const WINDOW: u64 = 2 << 20;
        const CONVINCING: u64 = 128 << 10;
        let expected = self.expected.load(Ordering::Relaxed);
        let near = offset <= expected + WINDOW && expected <= offset + WINDOW;
        if !near {
            self.expected.store(offset + len, Ordering::Relaxed);
            self.run.store(len, Ordering::Relaxed);
            return 0;
        }
        self.expected.store(expected.max(offset + len), Ordering::Relaxed);
        let run = self.run.fetch_add(len, Ordering::Relaxed) + len;
        if offset == expected || run >= CONVINCING { run } else { 0 }
    }
}
