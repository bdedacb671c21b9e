//! What the tests of all crates share: waiting for something that is bound to happen and that nobody
//! tells of, and directories of their own.
//!
//! For tests alone, and without dependencies, so that every crate's tests can use it. A test that waits
//! does not say how long that takes on an idle machine: the limit only ends a test that would hang.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
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

/// Makes an empty directory of a name that begins with `name` below `base`. Whoever asks removes it: a
/// process that is killed leaves its own behind, and the next process of that number gets another.
///
/// # Panics
/// If it can't be made.
#[must_use]
#[track_caller]
pub fn new_dir(base: impl AsRef<Path>, name: &str) -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = base.as_ref().join(format!("{name}-{}-{number}", std::process::id()));
        match std::fs::create_dir(&dir) {
            Ok(()) => return dir,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => panic!("{}: {error}", dir.display()),
        }
    }
}

/// Where directories are made that need the speed of memory: `/dev/shm`, if there is one.
#[must_use]
pub fn memory() -> PathBuf {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() }
}

/// Stops the process `pid` and waits until none of its threads runs any more: a signal alone comes back
/// while some may still answer a request.
///
/// # Panics
/// If that takes longer than [`LIMIT`].
#[track_caller]
pub fn stop_process(pid: i32) {
    let stopped = std::process::Command::new("kill").args(["-STOP", &pid.to_string()]).status();
    assert!(stopped.is_ok_and(|status| status.success()), "{pid} can't be stopped");
    let is_stopped = |task: PathBuf| {
        // One that has ended since needs no waiting. The name, in brackets, may have brackets itself.
        let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['T', 't', 'Z', 'X']))
    };
    let tasks = PathBuf::from(format!("/proc/{pid}/task"));
    wait_until("no thread of the process runs", || {
        std::fs::read_dir(&tasks).is_ok_and(|tasks| tasks.flatten().all(|it| is_stopped(it.path())))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_when_a_process_of_this_number_left_one_then_is_another() {
        let base = new_dir(std::env::temp_dir(), "forebay-testing");
        let name = |number: u64| base.join(format!("it-{}-{number}", std::process::id()));
        (0..1000).for_each(|number| std::fs::create_dir(name(number)).expect("made"));
        let made = new_dir(&base, "it");
        assert_eq!(std::fs::read_dir(&made).expect("it is there").count(), 0);
        std::fs::remove_dir_all(base).expect("removed");
    }

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
