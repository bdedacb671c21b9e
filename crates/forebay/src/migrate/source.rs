//! The half of a migration that happens where the task is: it is looked at, stopped and written down.

use std::path::Path;

use super::channel::Written;
use super::criu::Criu;
use super::refuse::{self, Route};
use super::task::Task;
use super::tree::{Remaps, Tree};
use crate::error::Error;

/// Bytes that a task has in memory, if it can be migrated.
pub fn look(task: &Task, route: &Route<'_>) -> Result<u64, Error> {
    let tree = tree_of(task)?;
    let reasons = refuse::reasons(&tree, route);
    if reasons.is_empty() {
        return Ok(tree.bytes());
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
