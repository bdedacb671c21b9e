//! Waiting, for tests: for something that is bound to happen, and that nobody tells of.
//!
//! For tests alone, and without dependencies, so that every crate's tests can use it. A test that waits
//! does not say how long that takes on an idle machine: the limit only ends a test that would hang.

use std::time::{Duration, Instant};

/// A test that waits for longer has failed.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// Looks until `condition` holds, for at most `limit`; whether it does.
#[must_use]
pub fn wait_for(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + limit;
    while !condition() {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
    true
}

/// Looks until `condition` holds.
///
/// # Panics
/// With `what` if that takes longer than [`LIMIT`].
#[track_caller]
pub fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    assert!(wait_for(LIMIT, condition), "it does not come in {LIMIT:?}: {what}");
}

/// Looks until `look` finds something.
///
/// # Panics
/// With `what` if that takes longer than [`LIMIT`].
#[track_caller]
pub fn wait_until_found<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let mut found = None;
    wait_until(what, || {
        found = look();
        found.is_some()
    });
    found.expect("it was found")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_when_it_comes_or_does_not_then_says_so() {
        let mut looks = 0;
        let third = wait_until_found("the third look", || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(third, 3);
        assert!(!wait_for(Duration::from_millis(1), || false));
    }
}
