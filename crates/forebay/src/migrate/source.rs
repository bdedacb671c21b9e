//! The half of a migration that happens where the task is: it is looked at, stopped and written down.

use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::body::Looked;
use super::channel::{Saved, Written};
use super::coop::Cooperation;
use super::criu::Criu;
use super::refuse::{self, Route};
use super::task::{Task, wait_for_end};
use super::tree::{Remaps, Tree};
use crate::error::Error;

/// How long a task that has saved its state and is told to end may take, before it is killed.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// How large a task is, if it can be migrated.
pub fn look(task: &Task, route: &Route<'_>, cooperation: &Cooperation) -> Result<Looked, Error> {
    let tree = tree_of(task)?;
    if cooperation.is_registered() {
        return Ok(Looked { bytes: tree.bytes(), by_itself: true });
    }
    let reasons = refuse::reasons(&tree, route);
    if reasons.is_empty() {
        return Ok(Looked { bytes: tree.bytes(), by_itself: false });
    }
    Err(Error::Unsupported(format!("the task can't be migrated: {}", reasons.join("; "))))
}

/// Brings what the running task has written to where other nodes see it: what is written once more when
/// it is stopped is little then.
pub fn sync_ahead(task: &Task, below: &Path) {
    if let Ok(tree) = tree_of(task) {
        let _ = tree.sync(below);
    }
}

/// A task that is stopped and written down.
pub struct Down {
    /// What is to be known of it, beside its image.
    pub written: Written,
    remaps: Remaps,
}

impl Down {
    /// It goes on where it was.
    pub fn go_on(&self, task: &Task) -> Result<(), Error> {
        self.remaps.remove_new();
        task.go_on()
    }

    /// It goes on nowhere: what CRIU has added to its files is removed.
    pub fn give_up(&self) {
        self.remaps.remove_new();
    }
}

/// Stops a task and writes it down, with its files at rest. If that fails, it goes on.
pub fn write_down(
    task: &mut Task,
    criu: &Criu,
    images: &Path,
    below: &Path,
) -> Result<Down, Error> {
    let tree = tree_of(task)?;
    let remaps = Remaps::of(&tree);
    task.freeze(criu, &tree, images).inspect_err(|_| remaps.remove_new())?;
    let down = Down { written: Written::default(), remaps };
    match at_rest(task, below) {
        Ok(files) => {
            let (pipes, stopped) = (task.pipes, task.stopped.clone());
            let written = Written { pipes, stopped, processes: tree.processes.len(), files };
            Ok(Down { written, ..down })
        }
        Err(error) => {
            down.go_on(task)?;
            Err(error)
        }
    }
}

/// Has a task save its state itself, after which it waits, with its files at rest. If that fails, it goes
/// on, unless it has ended.
pub fn save(
    task: &Task,
    cooperation: &Cooperation,
    route: &Route<'_>,
    below: &Path,
    within: Duration,
    stop: &AtomicBool,
) -> Result<Saved, Error> {
    let state = cooperation.save(within, stop)?;
    let at_rest = || {
        let path = Path::new(&state);
        let away = path.is_absolute() && !route.mount.is_some_and(|mount| path.starts_with(mount));
        if away && !route.same_machine {
            return Err(Error::Failed(format!(
                "its state, {state}, is not on the mount and so not at the target"
            )));
        }
        let failed = || Error::io("writing the task's files");
        let tree = tree_of(task)?;
        let mut files = tree.sync(below).map_err(failed())?;
        if path.is_absolute() && path.starts_with(below) {
            files += sync_below(&root_of(task).join(below_root(path))).map_err(failed())?;
        }
        Ok(Saved { processes: tree.processes.len(), files, state: state.clone() })
    };
    at_rest().inspect_err(|_| cooperation.stay())
}

/// Has a task that has saved its state end; what does not end in time is ended with the task.
pub fn finish(task: &Task, cooperation: &Cooperation) -> Result<(), Error> {
    if task.ends_within(Duration::ZERO) {
        return Err(Error::Failed("it has ended by itself".into()));
    }
    cooperation.end()?;
    if !task.ends_within(ENDS_WITHIN) {
        task.doom();
        // However long that takes: before nothing of it is left the other one does not begin.
        wait_for_end(task.init);
    }
    Ok(())
}

fn root_of(task: &Task) -> PathBuf {
    PathBuf::from(format!("/proc/{}/root", task.init))
}

fn below_root(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

/// Syncs a file, or all files below a directory. How many.
fn sync_below(path: &Path) -> io::Result<usize> {
    let found = std::fs::symlink_metadata(path)?;
    if found.is_dir() {
        let mut files = 0;
        for entry in std::fs::read_dir(path)? {
            files += sync_below(&entry?.path())?;
        }
        std::fs::File::open(path)?.sync_all()?;
        return Ok(files);
    }
    if !found.is_file() {
        return Ok(0);
    }
    // What others have put there meanwhile may be a pipe.
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_NOCTTY;
    std::fs::File::options().read(true).custom_flags(flags).open(path)?.sync_all()?;
    Ok(1)
}

/// Of a stopped task: so many files of it were brought to where other nodes see them.
fn at_rest(task: &Task, below: &Path) -> Result<usize, Error> {
    let tree = tree_of(task)?;
    if let Some(path) = tree.locked(below).map_err(Error::io("looking for locks"))? {
        return Err(Error::Failed(format!(
            "{}: locks on files can't be moved, and there is one, the task's or somebody else's",
            path.display()
        )));
    }
    tree.sync(below).map_err(Error::io("writing the task's files"))
}

fn tree_of(task: &Task) -> Result<Tree, Error> {
    Tree::of(task.init).map_err(Error::io("looking at the task"))
}
