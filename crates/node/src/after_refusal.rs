//! What the backing store refuses to a plain user who has closed it to himself is opened, and tried again.

use forebay_store::ErrorClass;

use crate::error::{NodeError, Result};

/// Attempts until the refusal counts. Others open and close the same at the same time.
const MAX_ATTEMPTS: usize = 8;

/// Whether the backing store refused something.
pub(crate) fn is_denied(error: &NodeError) -> bool {
    error.class() == Some(ErrorClass::Denied)
}

/// Does something, and once more after each refusal for which `open` says that it has opened something.
/// If it has not, another thread may have opened it since the refusal, which is found out once.
pub(crate) fn again_after_refusal<T>(
    mut attempt: impl FnMut() -> Result<T>,
    mut open: impl FnMut() -> Result<bool>,
) -> Result<T> {
    let mut may_be_open = true;
    for _ in 1..MAX_ATTEMPTS {
        match attempt() {
            Err(error) if is_denied(&error) => {
                if !open()? && !std::mem::take(&mut may_be_open) {
                    return Err(error);
                }
            }
            done => return done,
        }
    }
    attempt()
}
