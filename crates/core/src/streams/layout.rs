//! Where the bytes of a file are on its device.

use std::sync::Arc;

/// Most extents of a layout.
pub const MAX_EXTENTS: usize = 1 << 20;

/// A contiguous piece of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First byte in the file.
    pub logical: u64,
    /// First byte on the device.
    pub physical: u64,
    /// Bytes.
    pub bytes: u64,
}

/// The extents of a file, in the order of the file and without holes. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    extents: Arc<[Extent]>,
}

/// Extents that make no file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("extents must follow each other from byte 0 on, none empty, {MAX_EXTENTS} at most")]
pub struct BadLayout;

impl Layout {
    /// The layout of these extents. Neighbours that are contiguous also on the device become one.
    ///
    /// # Errors
    /// [`BadLayout`] if they do not follow each other from byte 0 on, one is empty, or there are too
    /// many or none.
    pub fn new(extents: &[Extent]) -> Result<Self, BadLayout> {
        let mut merged: Vec<Extent> = Vec::new();
        let mut end = 0u64;
        for extent in extents {
            let fits = extent.physical.checked_add(extent.bytes).is_some();
            if extent.logical != end || extent.bytes == 0 || !fits {
                return Err(BadLayout);
            }
            end = end.checked_add(extent.bytes).ok_or(BadLayout)?;
            match merged.last_mut() {
                Some(last) if last.physical + last.bytes == extent.physical => {
                    last.bytes += extent.bytes;
                }
                _ => merged.push(*extent),
            }
        }
        if merged.is_empty() || merged.len() > MAX_EXTENTS {
            return Err(BadLayout);
        }
        Ok(Self { extents: merged.into() })
    }

    /// A file in one piece.
    ///
    /// # Errors
    /// [`BadLayout`] if it is empty or goes beyond 2^64.
    pub fn contiguous(physical: u64, bytes: u64) -> Result<Self, BadLayout> {
        Self::new(&[Extent { logical: 0, physical, bytes }])
    }

    /// Bytes of the file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.extents.last().map_or(0, |last| last.logical + last.bytes)
    }

    /// The extents.
    #[must_use]
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Where a byte of the file is, and how many follow it contiguously (itself included).
    #[must_use]
    pub fn locate(&self, offset: u64) -> Option<(u64, u64)> {
        let at = self.extents.partition_point(|extent| extent.logical <= offset).checked_sub(1)?;
        let extent = self.extents[at];
        let within = offset - extent.logical;
        (within < extent.bytes).then(|| (extent.physical + within, extent.bytes - within))
    }

    /// Largest distance on the device between the end of an extent and the start of the next.
    #[must_use]
    pub fn longest_jump(&self) -> u64 {
        let jumps = self
            .extents
            .windows(2)
            .map(|pair| pair[1].physical.abs_diff(pair[0].physical + pair[0].bytes));
        jumps.max().unwrap_or(0)
    }

    /// Most boundaries between extents in any `bytes` bytes of the file.
    #[must_use]
    pub fn most_boundaries_in(&self, bytes: u64) -> u64 {
        let mut from = 1;
        let mut most = 0;
        for at in 1..self.extents.len() {
            // A window that ends just after the start of this extent still meets those.
            while self.extents[at].logical - self.extents[from].logical >= bytes.max(1) {
                from += 1;
            }
            most = most.max(at - from + 1);
        }
        most as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(logical: u64, physical: u64, bytes: u64) -> Extent {
        Extent { logical, physical, bytes }
    }

    #[test]
    fn new_of_contiguous_neighbours_then_one_extent() {
        let layout = Layout::new(&[extent(0, 50, 10), extent(10, 60, 5), extent(15, 10, 5)]);
        let layout = layout.expect("a layout");
        assert_eq!(layout.extents(), [extent(0, 50, 15), extent(15, 10, 5)]);
        assert_eq!((layout.bytes(), layout.longest_jump()), (20, 55));
        assert_eq!(layout.locate(14), Some((64, 1)));
        assert_eq!(layout.locate(15), Some((10, 5)));
        assert_eq!(layout.locate(20), None);
    }

    #[test]
    fn new_of_holes_or_nothing_then_refused() {
        for extents in [
            &[][..],
            &[extent(1, 0, 5)],
            &[extent(0, 0, 5), extent(6, 0, 5)],
            &[extent(0, 0, 0)],
            &[extent(0, u64::MAX, 5)],
        ] {
            assert_eq!(Layout::new(extents), Err(BadLayout), "{extents:?}");
        }
    }

    #[test]
    fn most_boundaries_then_of_the_densest_window() {
        let extents: Vec<Extent> = (0..5).map(|at| extent(at * 10, 1_000 - at * 100, 10)).collect();
        let layout = Layout::new(&extents).expect("a layout");
        assert_eq!(layout.most_boundaries_in(1), 1);
        assert_eq!(layout.most_boundaries_in(10), 1);
        assert_eq!(layout.most_boundaries_in(11), 2);
        assert_eq!(layout.most_boundaries_in(1_000), 4);
    }
}
