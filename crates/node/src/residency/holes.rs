//! Holes of what is brought to a tier: they stay holes there, and in the backing store when the file is
//! written back.

use std::ops::Range;

use forebay_store::{ErrorClass, Object, Result};

/// So much is left out or written as one; shorter runs of zeros are written.
const PIECE: usize = 64 << 10;

/// Writes bytes to where an object has none yet, but for zeros. Says how many there are then.
///
/// # Errors
/// What the tier says.
pub(super) fn write_around_holes(object: &dyn Object, bytes: &[u8], offset: u64) -> Result<usize> {
    let write = |from: usize, to: usize| match from < to {
        true => object.write_at(&bytes[from..to], offset + from as u64),
        false => Ok(0),
    };
    let (mut begun, mut at) = (0, 0);
    for piece in bytes.chunks(PIECE) {
        let end = at + piece.len();
        if piece.iter().all(|byte| *byte == 0)
            && is_hole(object, offset + at as u64, offset + end as u64)
        {
            let written = write(begun, at)?;
            if written < at - begun {
                return Ok(begun + written);
            }
            begun = end;
        }
        at = end;
    }
    Ok(begun + write(begun, at)?)
}

/// The first data of an object in a range, by whole units from the beginning of the file on; at the end of
/// the range, empty, if there is none. Where the tier can't tell, all of it is data.
///
/// # Errors
/// What the tier says.
pub(super) fn next_data(object: &dyn Object, range: Range<u64>, unit: u64) -> Result<Range<u64>> {
    let start = match object.seek_data(range.start) {
        Ok(Some(start)) if start < range.end => start,
        Ok(_) => return Ok(range.end..range.end),
        Err(error) if error.class() == ErrorClass::Unsupported => return Ok(range),
        Err(error) => return Err(error),
    };
    let end = match object.seek_hole(start) {
        Ok(Some(end)) if end > start => end,
        Err(error) if error.class() != ErrorClass::Unsupported => return Err(error),
        _ => range.end,
    };
    let end = end.checked_next_multiple_of(unit).unwrap_or(range.end).min(range.end);
    Ok((start - start % unit).max(range.start)..end)
}

/// Whether an object has nothing there. Where that can't be told, it may have bytes from before.
fn is_hole(object: &dyn Object, from: u64, to: u64) -> bool {
    object.seek_data(from).is_ok_and(|data| data.is_none_or(|data| data >= to))
}
