//! Open files.

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
pub struct Handle {}
