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
}

impl Handle {
    pub(crate) fn new(
        file: FileRef,
        write: bool,
        mode: OpenMode,
        promised: Option<(u8, u64)>,
    ) -> Self {
        Handle { file, write, mode, promised, expected: AtomicU64::new(0) }
    }

    /// Notes a read and says whether it goes on where the one before ended. Reads of a read-ahead
    /// that come out of order count as sequential within a window.
    pub(crate) fn is_sequential(&self, offset: u64, len: u64) -> bool {
        const WINDOW: u64 = 2 << 20;
        let expected = self.expected.load(Ordering::Relaxed);
        self.expected.store(expected.max(offset + len), Ordering::Relaxed);
        if offset + WINDOW < expected {
            self.expected.store(offset + len, Ordering::Relaxed);
            return false;
        }
        offset <= expected + WINDOW
    }
}
