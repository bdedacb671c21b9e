//! Which extents of a partly resident object are there.

use std::ops::Range;

use crate::Result;

/// Which extents of an object are present and which of them are dirty.
///
/// Ranges are in bytes. Not synchronised: put it behind the inode's lock. Changes reach the sidecar
/// file by `pwrite` at once, so they survive a kill of the daemon.
pub struct Presence {
    #[allow(dead_code)]
    size: u64,
}

/// Dirty runs taken for a flush; give it back to [`Presence::finish_flush`] or
/// [`Presence::abort_flush`].
#[derive(Debug)]
#[must_use = "a flush must be finished or aborted"]
pub struct Flush {
    runs: Vec<Range<u64>>,
}

impl Flush {
    /// The runs to write, in ascending order, within the file.
    #[must_use]
    pub fn runs(&self) -> &[Range<u64>] {
        &self.runs
    }
}

impl Presence {
    /// Extent size in bytes.
    #[must_use]
    pub fn extent_size(&self) -> u64 {
        todo!()
    }

    /// Length of the file in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        todo!()
    }

    /// Bytes of the base version at or after this offset are no longer part of the file (it was
    /// shortened since): absent extents read as the base up to here and as zeros beyond.
    #[must_use]
    pub fn base_limit(&self) -> u64 {
        todo!()
    }

    /// Whether every byte of the range (clipped to the file) is present.
    #[must_use]
    pub fn is_present(&self, _range: Range<u64>) -> bool {
        todo!()
    }

    /// Appends the runs of absent extents that the range touches: what must be fetched from the
    /// base version for the range to be present. Extent aligned, clipped to the file and to
    /// [`Self::base_limit`], so that a fetch never overwrites bytes beyond it.
    pub fn missing_runs(&self, _range: Range<u64>, _runs: &mut Vec<Range<u64>>) {
        todo!()
    }

    /// Appends the runs that must be fetched before `range` may be written: absent extents that it
    /// covers only in part.
    pub fn fill_before_write(&self, _range: Range<u64>, _runs: &mut Vec<Range<u64>>) {
        todo!()
    }

    /// Marks fetched extents. Only extents that lie in the range as a whole count (the last one up
    /// to the end of the file or to the base limit); dirty extents stay dirty.
    pub fn mark_clean(&mut self, _range: Range<u64>) -> Result<()> {
        todo!()
    }

    /// Marks written extents: every extent that the range touches. Grows the file if need be.
    pub fn mark_dirty(&mut self, _range: Range<u64>) -> Result<()> {
        todo!()
    }

    /// Takes dirty runs of up to `max_bytes` (at least one extent) for a flush; `None` when nothing
    /// is dirty or all of it is being flushed. What is written during the flush is dirty again.
    pub fn take_flush(&mut self, _max_bytes: u64) -> Option<Flush> {
        todo!()
    }

    /// The flush reached the backing store: its runs are clean, save where written meanwhile.
    pub fn finish_flush(&mut self, _flush: Flush) -> Result<()> {
        todo!()
    }

    /// The flush failed: its runs are dirty again.
    pub fn abort_flush(&mut self, _flush: Flush) {
        todo!()
    }

    /// Sets the length. Shrinking forgets extents beyond; growing adds extents that are present and
    /// dirty (holes).
    pub fn set_len(&mut self, _len: u64) -> Result<()> {
        todo!()
    }

    /// Forgets clean extents that lie in the range as a whole and returns their runs, durably, so
    /// that the caller may punch them.
    pub fn clear(&mut self, _range: Range<u64>) -> Result<Vec<Range<u64>>> {
        todo!()
    }

    /// Bytes present.
    #[must_use]
    pub fn present_bytes(&self) -> u64 {
        todo!()
    }

    /// Bytes dirty or being flushed.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        todo!()
    }

    /// Whether all is present.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        todo!()
    }

    /// Makes the map durable: call after the object's own sync, and with the writers of the object
    /// held off between the two; the extents present now survive a crash of the machine.
    pub fn sync(&mut self) -> Result<()> {
        todo!()
    }
}
