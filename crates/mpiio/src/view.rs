//! What of a file a process sees, and where the bytes of its calls lie in memory and in the file.

use forebay_coop::message::Extent;

/// A datatype without its structure: blocks of bytes in the order of the type map.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flat {
    /// First byte from the origin, and length. None is empty, and none begins where another ends.
    pub blocks: Vec<(i64, u64)>,
    /// From one to the next of several.
    pub extent: i64,
    /// Bytes in all.
    pub size: u64,
}

impl Flat {
    /// Bytes one after the other.
    #[must_use]
    pub fn bytes(size: u64) -> Self {
        let blocks = if size > 0 { vec![(0, size)] } else { Vec::new() };
        Self { blocks, extent: size as i64, size }
    }

    /// Appends a block.
    pub fn push(&mut self, at: i64, len: u64) {
        if len == 0 {
            return;
        }
        self.size += len;
        match self.blocks.last_mut() {
            Some((start, before)) if *start + *before as i64 == at => *before += len,
            _ => self.blocks.push((at, len)),
        }
    }

    /// Whether several of them lie one after the other without a gap, and where the first begins.
    #[must_use]
    pub fn dense(&self, count: u64) -> Option<i64> {
        match self.blocks.as_slice() {
            [] => Some(0),
            [(at, len)] if count <= 1 || *len as i64 == self.extent => Some(*at),
            _ => None,
        }
    }

    /// Whether no block lies before the end of the one before it, in several of them.
    #[must_use]
    pub fn ascends(&self) -> bool {
        let apart = |pair: &[(i64, u64)]| pair[0].0 + pair[0].1 as i64 <= pair[1].0;
        let (Some(first), Some(last)) = (self.blocks.first(), self.blocks.last()) else {
            return true;
        };
        first.0 >= 0
            && self.blocks.windows(2).all(apart)
            && last.0 + last.1 as i64 <= first.0 + self.extent
    }

    /// Calls `each` with the first byte and the length of each block of several of them.
    pub fn each(&self, count: u64, mut each: impl FnMut(i64, u64)) {
        for number in 0..count {
            for (at, len) in &self.blocks {
                each(number as i64 * self.extent + at, *len);
            }
        }
    }
}

/// A view of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    displacement: u64,
    tile: Flat,
    /// Bytes of the tile before each block.
    before: Vec<u64>,
    /// Bytes of the elementary type.
    unit: u64,
}

impl Default for View {
    fn default() -> Self {
        Self { displacement: 0, tile: Flat::bytes(1), before: vec![0], unit: 1 }
    }
}

impl View {
    /// A view. `None` if the cache can't have it: no bytes in it, or blocks that do not ascend.
    #[must_use]
    pub fn new(displacement: u64, unit: u64, tile: Flat) -> Option<Self> {
        if unit == 0 || tile.size == 0 || !tile.ascends() || tile.extent <= 0 {
            return None;
        }
        let mut sum = 0;
        let before = tile.blocks.iter().map(|(_, len)| {
            sum += len;
            sum - len
        });
        let before = before.collect();
        Some(Self { displacement, tile, before, unit })
    }

    /// Bytes of the elementary type.
    #[must_use]
    pub fn unit(&self) -> u64 {
        self.unit
    }

    /// Where so many bytes from an offset in elementary types on lie in the file, ascending.
    #[must_use]
    pub fn extents(&self, offset: u64, len: u64) -> Option<Vec<Extent>> {
        let mut extents: Vec<Extent> = Vec::new();
        let first = offset.checked_mul(self.unit)?;
        let (mut tile, inside) = (first / self.tile.size, first % self.tile.size);
        let mut block = self.before.partition_point(|before| *before <= inside) - 1;
        let mut skip = inside - self.before[block];
        let mut rest = len;
        while rest > 0 {
            let (at, length) = self.tile.blocks[block];
            let base = tile.checked_mul(self.tile.extent as u64)?;
            let start = self.displacement.checked_add(base)?.checked_add(at as u64 + skip)?;
            let one = (length - skip).min(rest);
            // A view that is dense is one extent, and not one for each tile.
            let whole = self.tile.blocks.len() == 1 && length == self.tile.extent as u64;
            let one = if whole { rest } else { one };
            start.checked_add(one)?;
            match extents.last_mut() {
                Some(last) if last.offset + last.len == start => last.len += one,
                _ => extents.push(Extent { offset: start, len: one }),
            }
            rest -= one;
            skip = 0;
            block += 1;
            if block == self.tile.blocks.len() {
                (block, tile) = (0, tile + 1);
            }
        }
        Some(extents)
    }

    /// The offset in elementary types of the first that lies at or beyond a length.
    #[must_use]
    pub fn end(&self, length: u64) -> u64 {
        let Some(length) = length.checked_sub(self.displacement) else { return 0 };
        let extent = self.tile.extent as u64;
        let first = self.tile.blocks.first().map_or(0, |(at, _)| *at as u64);
        // Bytes of a tile lie within an extent from its first block on.
        let full = length.saturating_sub(first) / extent;
        let seen =
            |(at, len): &(i64, u64)| length.saturating_sub(full * extent + *at as u64).min(*len);
        let bytes = full * self.tile.size + self.tile.blocks.iter().map(seen).sum::<u64>();
        bytes.div_ceil(self.unit)
    }
}

/// Cuts extents off where the file ends. Gives the bytes that are left.
pub fn clip(extents: &mut Vec<Extent>, length: u64) -> u64 {
    extents.retain_mut(|extent| {
        extent.len = extent.len.min(length.saturating_sub(extent.offset));
        extent.len > 0
    });
    extents.iter().map(|extent| extent.len).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The file offset of each byte that a view has, one by one.
    fn naive(displacement: u64, tile: &Flat, count: u64) -> Vec<u64> {
        let mut places = Vec::new();
        tile.each(count, |at, len| {
            places.extend((0..len).map(|byte| (displacement as i64 + at) as u64 + byte));
        });
        places
    }

    fn tiles() -> impl Strategy<Value = Flat> {
        let blocks = proptest::collection::vec((0u64..5, 1u64..6), 1..5);
        (blocks, 0u64..4).prop_map(|(blocks, tail)| {
            let (mut tile, mut at) = (Flat::default(), 0);
            for (gap, len) in blocks {
                at += gap;
                tile.push(at as i64, len);
                at += len;
            }
            tile.extent = (at + tail) as i64;
            tile
        })
    }

    proptest! {
        #[test]
        fn extents_of_any_view_then_those_of_each_byte(
            tile in tiles(), displacement in 0u64..9, offset in 0u64..30, len in 0u64..60,
        ) {
            let view = View::new(displacement, 1, tile.clone()).unwrap();
            let all = naive(displacement, &tile, offset + len + 1);
            let found: Vec<u64> = view.extents(offset, len).unwrap().iter()
                .flat_map(|it| it.offset..it.offset + it.len).collect();
            prop_assert_eq!(&found[..], &all[offset as usize..(offset + len) as usize]);
        }

        #[test]
        fn end_of_any_view_then_the_bytes_below_it(
            tile in tiles(), displacement in 0u64..9, length in 0u64..80, unit in 1u64..4,
        ) {
            let view = View::new(displacement, unit, tile.clone()).unwrap();
            let below = naive(displacement, &tile, 90).iter().filter(|it| **it < length).count();
            prop_assert_eq!(view.end(length), (below as u64).div_ceil(unit));
        }

        #[test]
        fn clip_at_any_length_then_what_is_below_is_left(tile in tiles(), length in 0u64..80) {
            let mut extents = View::new(0, 1, tile).unwrap().extents(0, 40).unwrap();
            let bytes = |extents: &[Extent]| -> Vec<u64> {
                extents.iter().flat_map(|it| it.offset..it.offset + it.len).collect()
            };
            let wanted: Vec<u64> =
                bytes(&extents).into_iter().filter(|place| *place < length).collect();
            let left = clip(&mut extents, length);
            prop_assert_eq!(left, wanted.len() as u64);
            prop_assert_eq!(bytes(&extents), wanted);
        }
    }

    #[test]
    fn view_when_blocks_go_back_then_refused() {
        let mut tile = Flat { extent: 8, ..Flat::default() };
        tile.push(4, 2);
        tile.push(0, 2);
        assert_eq!(View::new(0, 1, tile), None);
        assert_eq!(View::new(0, 1, Flat { extent: 4, ..Flat::default() }), None);
    }

    #[test]
    fn view_when_offset_is_beyond_all_files_then_refused() {
        let view = View::new(0, 8, Flat::bytes(8)).unwrap();
        assert_eq!(view.extents(u64::MAX / 4, 8), None);
        assert_eq!(view.extents(1 << 40, 8).unwrap()[0].offset, 1 << 43);
    }
}
