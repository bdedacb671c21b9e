//! Boxes: a length, four letters, and what is inside. And tables of numbers in them.

/// A box.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found<'a> {
    pub kind: [u8; 4],
    /// With its head.
    pub whole: &'a [u8],
    pub inside: &'a [u8],
}

/// The head of a box of which at most `there` bytes exist: its kind, the length of the head, and of
/// all. `None` if it says more than exists, or is longer than itself.
pub(super) fn head(bytes: &[u8], there: u64) -> Option<([u8; 4], u64, u64)> {
    let mut cursor = Cursor::new(bytes);
    let short = cursor.u32()?;
    let kind = cursor.take(4)?.try_into().ok()?;
    let (head, length) = match short {
        0 => (8, there),
        1 => (16, cursor.u64()?),
        length => (8, length.into()),
    };
    (length >= head && length <= there).then_some((kind, head, length))
}

/// The boxes in these bytes, up to the first that is damaged.
pub(super) fn children(mut bytes: &[u8]) -> impl Iterator<Item = Found<'_>> {
    std::iter::from_fn(move || {
        let (kind, head, length) = head(bytes, bytes.len() as u64)?;
        let (whole, rest) = bytes.split_at(usize::try_from(length).ok()?);
        bytes = rest;
        Some(Found { kind, whole, inside: &whole[usize::try_from(head).ok()?..] })
    })
}

/// What is inside of a box, by the way to it.
pub(super) fn inside<'a>(bytes: &'a [u8], way: &[&[u8; 4]]) -> Option<&'a [u8]> {
    way.iter().try_fold(bytes, |bytes, kind| {
        children(bytes).find(|found| found.kind == **kind).map(|found| found.inside)
    })
}

/// Reads numbers, the most significant byte first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'a> {
    left: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub fn new(left: &'a [u8]) -> Self {
        Self { left }
    }

    pub fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, left) = self.left.split_at_checked(bytes)?;
        self.left = left;
        Some(taken)
    }

    pub fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    pub fn u64(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }

    /// A number of entries of `bytes` each, and the entries; `None` if there are fewer than it says.
    pub fn entries<T>(
        &mut self,
        bytes: usize,
        mut read: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let count = self.u32()? as usize;
        if count > self.left.len() / bytes {
            return None;
        }
        (0..count).map(|_| read(self)).collect()
    }
}

/// Builds a box.
pub(super) fn build(kind: &[u8; 4], inside: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend(kind);
    inside(&mut bytes);
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    bytes
}
