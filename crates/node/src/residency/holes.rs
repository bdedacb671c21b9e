//! Holes of what is brought to a tier: they stay holes there, and in the backing store when the file is
//! written back.

use forebay_store::{Object, Result};

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

/// Whether an object has nothing there. Where that can't be told, it may have bytes from before.
fn is_hole(object: &dyn Object, from: u64, to: u64) -> bool {
    object.seek_data(from).is_ok_and(|data| data.is_none_or(|data| data >= to))
}
