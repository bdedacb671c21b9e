//! What Forebay keeps on tiers and in the backing store, found and damaged by tests.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Rig;

/// The files below a directory.
pub fn files_below(dir: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|it| it.path());
    let (dirs, mut files): (Vec<_>, Vec<_>) = paths.partition(|path| path.is_dir());
    files.extend(dirs.iter().flat_map(|dir| files_below(dir)));
    files.sort();
    files
}

pub fn is_map(path: &Path) -> bool {
    path.extension().is_some_and(|it| it == "map")
}

/// The only file below a directory that is a map, or none.
pub fn only(dir: &Path, map: bool) -> PathBuf {
    let mut found = files_below(dir);
    found.retain(|path| is_map(path) == map);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

pub fn objects(rig: &Rig) -> PathBuf {
    rig.dir.join("tier0/objects")
}

pub fn spills(rig: &Rig) -> PathBuf {
    rig.backing().join(".forebay/spill")
}

pub fn cut(path: &Path, len: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    assert!(file.metadata().unwrap().len() > len, "nothing to cut");
    file.set_len(len).unwrap();
}

pub fn lose_index(rig: &Rig) {
    std::fs::remove_dir_all(rig.dir.join("tier0/state")).unwrap();
}

/// Ends in order, with all that is dirty left where it is.
pub fn end(rig: &mut Rig) {
    assert!(rig.node().stop(Duration::from_secs(10)));
    rig.crash();
}
