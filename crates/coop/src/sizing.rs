//! A page size from the accesses that were seen.
//!
//! Large pages cost fewer locks and messages for each byte; pages larger than what one process
//! accesses in one stretch are shared by processes that have nothing to do with each other. Where the
//! stretches are so short that no sensible page is private, sharing can't be helped and large pages
//! are right again.

use crate::message::Extent;

/// What is shorter goes on with the stretch before it. Longer accesses stand for themselves, as
/// others may come between two of them.
const SHORT: u64 = 64 << 10;

/// What was seen of a file. Those of all processes are added up by [`Observation::add`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Observation {
    /// Bytes by the logarithm of the length of their stretch.
    bytes: [u64; 64],
    /// The stretch that may still go on: its end and length.
    open: Option<(u64, u64)>,
}

impl Default for Observation {
    fn default() -> Self {
        Self { bytes: [0; 64], open: None }
    }
}

impl Observation {
    /// A call accesses these extents.
    pub fn see(&mut self, extents: &[Extent]) {
        for extent in extents.iter().filter(|extent| extent.len > 0) {
            match &mut self.open {
                Some((end, len)) if *end == extent.offset && extent.len < SHORT => {
                    *end = end.saturating_add(extent.len);
                    *len = len.saturating_add(extent.len);
                }
                open => {
                    if let Some((_, len)) =
                        open.replace((extent.offset.saturating_add(extent.len), extent.len))
                    {
                        count(&mut self.bytes, len);
                    }
                }
            }
        }
    }

    /// Adds what another process has seen.
    pub fn add(&mut self, other: &Self) {
        for (sum, bytes) in self.bytes.iter_mut().zip(other.closed()) {
            *sum = sum.saturating_add(bytes);
        }
    }

    fn closed(&self) -> [u64; 64] {
        let mut bytes = self.bytes;
        if let Some((_, len)) = self.open {
            count(&mut bytes, len);
        }
        bytes
    }

    /// A power of two from `least` to `most`, by the stretch that half of the bytes lie in or below.
    /// `None` if nothing was seen.
    #[must_use]
    pub fn page_size(&self, least: u32, most: u32) -> Option<u32> {
        let bytes = self.closed();
        let all = bytes.iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        if all == 0 {
            return None;
        }
        let mut below = 0u64;
        let median = bytes.iter().position(|bytes| {
            below = below.saturating_add(*bytes);
            below >= all.div_ceil(2)
        });
        let stretch = 1u64 << median.unwrap_or(0).min(31);
        Some(if stretch < u64::from(least) { most } else { stretch.min(u64::from(most)) as u32 })
    }
}

fn count(bytes: &mut [u64; 64], len: u64) {
    let at = len.max(1).ilog2() as usize;
    bytes[at] = bytes[at].saturating_add(len);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(extents: &[(u64, u64)]) -> Option<u32> {
        let mut seen = Observation::default();
        let extents: Vec<_> =
            extents.iter().map(|(offset, len)| Extent { offset: *offset, len: *len }).collect();
        seen.see(&extents);
        seen.page_size(4096, 1 << 20)
    }

    #[test]
    fn page_size_when_stretches_are_long_then_the_power_below_them() {
        assert_eq!(seen(&[(0, 300_000), (1_000_000, 300_000)]), Some(1 << 18));
        assert_eq!(seen(&[(0, 40_000), (40_000, 40_000), (80_000, 51_072)]), Some(1 << 17));
        assert_eq!(seen(&[(0, 1 << 40)]), Some(1 << 20));
    }

    #[test]
    fn page_size_when_no_page_can_be_private_then_the_largest() {
        assert_eq!(seen(&[(0, 640), (2000, 640), (4000, 640)]), Some(1 << 20));
        assert_eq!(seen(&[]), None);
    }
}
