//! No test may hang: a guard that is not dropped in time unmounts what is mounted, kills the
//! daemons that were registered, unmounts the disks that lay below them, and aborts the process.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::process::{eventually, spawn};

/// Longer than any single operation of a suite may take on the slowest subject.
pub const OPERATION_LIMIT: Duration = Duration::from_secs(60);

/// Longer than what is looked at after an operation: that starts commands, each of which has a limit of its
/// own, and says which one it was.
pub const LOOK_LIMIT: Duration = Duration::from_secs(600);

struct State {
    guards: Mutex<BTreeMap<u64, (Instant, String)>>,
    mounts: Mutex<BTreeMap<PathBuf, i32>>,
    disks: Mutex<BTreeSet<PathBuf>>,
}

impl State {
    const fn new() -> Self {
        Self {
            guards: Mutex::new(BTreeMap::new()),
            mounts: Mutex::new(BTreeMap::new()),
            disks: Mutex::new(BTreeSet::new()),
        }
    }

    /// Takes down all that is mounted.
    fn take_down(&self) {
        for (mountpoint, daemon) in std::mem::take(&mut *self.mounts.lock()) {
            unmount_lazily(&mountpoint);
            kill(daemon);
        }
        for disk in std::mem::take(&mut *self.disks.lock()) {
            // It is still in use until the daemon has ended: the kernel takes it apart then.
            let _ = rustix::mount::unmount(&disk, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

static STATE: OnceLock<State> = OnceLock::new();
static NEXT: AtomicU64 = AtomicU64::new(0);

fn state() -> &'static State {
    STATE.get_or_init(|| {
        std::thread::Builder::new()
            .name("watchdog".into())
            .spawn(watch)
            .expect("the first thread of a test process can be started");
        State::new()
    })
}

fn watch() {
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let now = Instant::now();
        let late = {
            let guards = state().guards.lock();
            guards.values().find(|(deadline, _)| *deadline < now).map(|(_, what)| what.clone())
        };
        if let Some(what) = late {
            eprintln!("watchdog: {what} exceeded its time limit; unmounting and aborting");
            state().take_down();
            std::process::abort();
        }
    }
}

/// Aborts the process when it still exists after the limit.
pub struct Guard(u64);

/// Starts a limit for `what`, which ends when the guard is dropped.
pub fn guard(limit: Duration, what: impl Into<String>) -> Guard {
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    state().guards.lock().insert(id, (Instant::now() + limit, what.into()));
    Guard(id)
}

impl Guard {
    /// Starts the limit anew, for another step of the same work.
    pub fn renew(&self, limit: Duration) {
        if let Some((deadline, _)) = state().guards.lock().get_mut(&self.0) {
            *deadline = Instant::now() + limit;
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        state().guards.lock().remove(&self.0);
    }
}

/// Names a mount and its daemon, to be taken down when a limit passes.
pub fn register(mountpoint: &Path, daemon: i32) {
    state().mounts.lock().insert(mountpoint.to_owned(), daemon);
}

/// Forgets a mount that its owner has taken down.
pub fn unregister(mountpoint: &Path) {
    state().mounts.lock().remove(mountpoint);
}

/// Names a disk that tests have mounted, to be unmounted when a limit passes.
pub fn register_disk(dir: &Path) {
    state().disks.lock().insert(dir.to_owned());
}

/// Forgets a disk that its owner has unmounted.
pub fn unregister_disk(dir: &Path) {
    state().disks.lock().remove(dir);
}

/// `fusermount3 -uz`, within five seconds. A mount that is gone already is no error.
pub fn unmount_lazily(mountpoint: &Path) {
    let mut command = Command::new("fusermount3");
    command.arg("-uz").arg(mountpoint).stdout(Stdio::null()).stderr(Stdio::null());
    if let Ok(mut child) = spawn(&mut command)
        && !eventually(Duration::from_secs(5), || !matches!(child.try_wait(), Ok(None)))
    {
        // A stuck helper must not hold up the process that is being taken down.
        let _ = child.kill();
    }
}

fn kill(pid: i32) {
    // SAFETY: a plain call on numbers; the pid is a child that this process started and not reaped.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::is_mounted;

    #[test]
    fn disk_when_a_limit_has_passed_then_it_is_unmounted() {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "none"]).arg(dir.path()).output();
        if !mounted.as_ref().is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: no tmpfs here: {mounted:?}");
            return;
        }
        assert!(is_mounted(dir.path()));
        let state = State::new();
        state.disks.lock().insert(dir.path().to_owned());
        state.take_down();
        assert!(!is_mounted(dir.path()));
    }
}
