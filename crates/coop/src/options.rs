//! What a scheme does.

/// A scheme. All processes of a group must have the same one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Options {
    /// Bytes of a page, at least 1.
    pub page_size: u32,
    /// Pages that a process has memory for.
    pub slots: u32,
    /// Pages that one write to the file covers at most.
    pub run: u32,
    /// Whether the driver wraps a byte-range lock around each access to the file.
    pub range_locks: bool,
    /// Whether reads share locks, and from which read after a write on they keep copies, which the
    /// next writer has dropped before it goes on. Who keeps a page that nobody may write meanwhile
    /// reads it without asking.
    pub read_copies: Option<u8>,
    /// After how many more accesses than all others together a process gets a page moved to it.
    pub migrate: Option<u8>,
    /// Pages that are read ahead of a sequential reader.
    pub read_ahead: u32,
    /// Whether collective calls send their pieces to the homes of the pages, which access them.
    pub ship: bool,
    /// Whether pages that lie beside each other are read in one go.
    pub coalesce_reads: bool,
    /// Whether each process can read the pools of all: a page that another one has is read where it
    /// is, without asking who has it. The home says where, and the lock keeps it there.
    pub shared_pools: bool,
    /// Whether a page that the file never had is made of zeros instead of being read.
    pub skip_absent: bool,
    /// Whether the first dirty byte of a page is known, and not only the last.
    pub exact_dirty: bool,
    /// Dirty pages from which on they are written in the background.
    pub write_behind: Option<u32>,
}

impl Options {
    /// The scheme of the paper: one copy, exclusive locks, reads page by page.
    #[must_use]
    pub fn paper(page_size: u32, slots: u32) -> Self {
        Self {
            page_size: page_size.max(1),
            slots,
            run: 64,
            range_locks: false,
            read_copies: None,
            migrate: None,
            read_ahead: 0,
            ship: false,
            coalesce_reads: false,
            shared_pools: false,
            skip_absent: false,
            exact_dirty: false,
            write_behind: None,
        }
    }

    /// What goes beyond the paper, but for reading ahead: where processes share what they read, it
    /// brings pages to those who do not use them.
    #[must_use]
    pub fn full(page_size: u32, slots: u32) -> Self {
        Self {
            read_copies: Some(2),
            migrate: Some(4),
            ship: true,
            coalesce_reads: true,
            skip_absent: true,
            exact_dirty: true,
            write_behind: Some(slots / 2),
            ..Self::paper(page_size, slots)
        }
    }
}
