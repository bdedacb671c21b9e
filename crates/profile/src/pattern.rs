//! What a task did during one window.

/// Consecutive blocks of a file: which file, and which piece of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Row {
    /// The file.
    pub file: u64,
    /// Blocks from `piece` times blocks of a row on.
    pub piece: u64,
}

/// Accesses to a row at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowAccesses {
    /// When.
    pub at: u64,
    /// Where.
    pub row: Row,
    /// How many reads.
    pub reads: u32,
    /// How many writes.
    pub writes: u32,
}

impl RowAccesses {
    /// Reads and writes.
    #[must_use]
    pub fn events(&self) -> u64 {
        u64::from(self.reads) + u64::from(self.writes)
    }
}

/// A window of events. It has at most as many entries as events.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pattern {
    pub(crate) entries: Vec<RowAccesses>,
    pub(crate) events: u64,
}

impl Pattern {
    /// Its entries, in the order in which they came.
    #[must_use]
    pub fn entries(&self) -> &[RowAccesses] {
        &self.entries
    }

    /// Reads and writes: the scale (equation 2).
    #[must_use]
    pub fn scale(&self) -> u64 {
        self.events
    }

    /// The times of its first and last event.
    #[must_use]
    pub fn bounds(&self) -> Option<(u64, u64)> {
        let times = self.entries.iter().map(|entry| entry.at);
        times.clone().min().zip(times.max())
    }

    pub(crate) fn add(&mut self, entry: RowAccesses) {
        self.events += entry.events();
        match self.entries.last_mut().filter(|last| (last.at, last.row) == (entry.at, entry.row)) {
            Some(last) => {
                last.reads = last.reads.saturating_add(entry.reads);
                last.writes = last.writes.saturating_add(entry.writes);
            }
            None => self.entries.push(entry),
        }
    }
}
