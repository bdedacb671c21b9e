//! The files that jobs name: as one path each, and where the daemon says that their bytes are.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::commands::{next_path, portions};
use crate::control::{Client, WirePath};
use crate::error::Error;
use crate::{glob, mountinfo, trace_file};

/// Makes of each name that a job gives to a file the one path by which the file is known here, also
/// of files that are not there yet.
#[derive(Debug, Default)]
pub struct Names {
    mountpoint: Option<PathBuf>,
    real: RefCell<HashMap<PathBuf, PathBuf>>,
}

impl Names {
    /// For jobs whose files are on this mount, if they are on any.
    pub fn new(mountpoint: Option<PathBuf>) -> Self {
        Self { mountpoint, real: RefCell::default() }
    }

    /// The mount, if there is one.
    pub fn mountpoint(&self) -> Option<&Path> {
        self.mountpoint.as_deref()
    }

    /// A file: as seen from `dir`, or from the mount point if it is only there.
    pub fn path(&self, path: &Path, dir: &Path) -> PathBuf {
        let seen = lexical(&dir.join(path));
        let on_mount = self.mountpoint.as_ref().filter(|_| path.is_relative());
        let from_mount = on_mount.map(|mountpoint| lexical(&mountpoint.join(path)));
        match from_mount {
            Some(there) if !is_there(&seen) && is_there(&there) => self.without_links(there),
            _ => self.without_links(seen),
        }
    }

    fn without_links(&self, path: PathBuf) -> PathBuf {
        let is_link = std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink());
        if is_link && let Ok(real) = std::fs::canonicalize(&path) {
            return real;
        }
        match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => self.directory(parent).join(name),
            _ => path,
        }
    }

    fn directory(&self, dir: &Path) -> PathBuf {
        if let Some(known) = self.real.borrow().get(dir) {
            return known.clone();
        }
        let real = std::fs::canonicalize(dir).unwrap_or_else(|_| match dir.parent() {
            Some(parent) => self.directory(parent).join(dir.file_name().unwrap_or_default()),
            None => dir.to_owned(),
        });
        self.real.borrow_mut().insert(dir.to_owned(), real.clone());
        real
    }

    /// The files that a job reads: names, directories for all files below them, patterns, and `@LIST`
    /// for a file with one path a line.
    pub fn inputs<'a>(
        &self,
        given: impl Iterator<Item = &'a OsStr>,
        dir: &Path,
    ) -> Result<Vec<PathBuf>, Error> {
        let mut files = Vec::new();
        for given in given {
            match given.as_bytes().strip_prefix(b"@") {
                Some(list) => self.listed(&dir.join(OsStr::from_bytes(list)), dir, &mut files)?,
                None => self.named(Path::new(given), dir, &mut files)?,
            }
        }
        Ok(files)
    }

    fn listed(&self, list: &Path, dir: &Path, files: &mut Vec<PathBuf>) -> Result<(), Error> {
        let from_stdin = list.file_name() == Some(OsStr::new("-"));
        let source: Box<dyn std::io::Read> = if from_stdin {
            Box::new(std::io::stdin())
        } else {
            let wrong = |source| Error::File { path: list.to_owned(), source };
            Box::new(std::fs::File::open(list).map_err(wrong)?)
        };
        let mut reader = std::io::BufReader::new(source);
        let mut number = 1;
        while let Some(path) = next_path(&mut reader, b'\n', number)? {
            files.push(self.path(&path, dir));
            number += 1;
        }
        Ok(())
    }

    fn named(&self, given: &Path, dir: &Path, files: &mut Vec<PathBuf>) -> Result<(), Error> {
        let path = self.path(given, dir);
        let wrong = || Error::io(given.display().to_string());
        if path.is_dir() {
            files.extend(glob::files_below(&path).map_err(wrong())?);
        } else if glob::is_pattern(given) && !is_there(&path) {
            let fixed = |path: &&Path| !glob::is_pattern(path);
            let root = path.ancestors().find(fixed).unwrap_or(Path::new("/"));
            let pattern = path.strip_prefix(root).unwrap_or(&path);
            let found = glob::expand(root, pattern).map_err(wrong())?;
            if found.is_empty() {
                return Err(Error::Usage(format!("{}: matches no file", given.display())));
            }
            files.extend(found);
        } else {
            files.push(path);
        }
        Ok(())
    }

    /// What was opened while a trace was recorded on the mount, but for what was made then.
    pub fn traced(&self, trace: &Path) -> Result<Vec<PathBuf>, Error> {
        let Some(mountpoint) = &self.mountpoint else {
            let why = "a trace has paths of a mount: say by --mount which one";
            return Err(Error::Usage(why.into()));
        };
        let mut files = Vec::new();
        trace_file::read(trace, &mut |open| {
            let inside = open.path.as_path();
            if !inside.as_os_str().is_empty() && open.size > 0 {
                files.push(mountpoint.join(inside));
            }
            Ok(())
        })?;
        Ok(files)
    }
}

fn is_there(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok()
}

/// Without `.` and `..`, by the text alone.
fn lexical(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

/// The mount of which the first of these paths is below; none, if none is below any.
pub fn mount_of<'a>(paths: impl Iterator<Item = &'a Path>) -> Option<PathBuf> {
    let mounts = mountinfo::read().ok()?;
    let ours = |path: &Path| {
        let mount = mountinfo::containing(&mounts, path).filter(|mount| mount.is_forebay())?;
        Some(mount.mountpoint.clone())
    };
    paths.into_iter().find_map(ours)
}

/// What is known of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Its bytes.
    pub size: u64,
    /// Those that are on tiers of the node that was asked.
    pub resident: u64,
    /// Whether the daemon knows it.
    pub by_daemon: bool,
    /// Numbers of the nodes of a cluster that have it whole.
    pub nodes: Vec<u16>,
}

/// Where files are, in their order. Of what the daemon does not know, only the size is told.
pub fn whereabouts(client: Option<&mut Client>, files: &[PathBuf]) -> Result<Vec<Known>, Error> {
    let size = |path: &PathBuf| {
        let found = std::fs::metadata(path);
        found.ok().filter(std::fs::Metadata::is_file).map(|found| found.len())
    };
    let sizes: Vec<Option<u64>> = files.iter().map(size).collect();
    let mut known: Vec<Known> =
        sizes.iter().map(|size| Known { size: size.unwrap_or(0), ..Known::default() }).collect();
    let Some(client) = client else { return Ok(known) };
    let (mut asked, mut paths) = (Vec::new(), Vec::<WirePath>::new());
    for (at, path) in files.iter().enumerate() {
        if sizes[at].is_some()
            && let Some(inside) = client.inside(path)
        {
            asked.push(at);
            paths.push(inside.into());
        }
    }
    let mut asked = asked.into_iter();
    for portion in portions(paths) {
        let numbers: Vec<usize> = asked.by_ref().take(portion.len()).collect();
        // Of files that were removed meanwhile nothing is known: those around them are asked for alone.
        let located = match client.locate(portion.clone()) {
            Ok(located) => located.into_iter().map(Some).collect(),
            Err(Error::Control(_)) => {
                let one = |path| client.locate(vec![path]).ok().and_then(|mut one| one.pop());
                portion.into_iter().map(one).collect::<Vec<_>>()
            }
            Err(other) => return Err(other),
        };
        for (at, location) in numbers.into_iter().zip(located) {
            let Some(location) = location else { continue };
            known[at] = Known {
                size: location.size_bytes,
                resident: location.resident_bytes.min(location.size_bytes),
                by_daemon: true,
                nodes: location.nodes,
            };
        }
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_when_written_in_several_ways_then_one_path() {
        let dir = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(dir.path()).unwrap();
        std::fs::create_dir_all(root.join("real/in")).unwrap();
        std::os::unix::fs::symlink(root.join("real"), root.join("link")).unwrap();
        std::fs::write(root.join("real/in/1"), "x").unwrap();
        std::fs::write(root.join("real/in/2"), "x").unwrap();
        let names = Names::new(Some(root.join("real")));
        let one = names.path(Path::new("in/1"), &root.join("link"));
        assert_eq!(one, root.join("real/in/1"));
        assert_eq!(names.path(Path::new("in/1"), &root), one, "as seen from the mount point");
        let to_come = names.path(Path::new("link/new/dir/file"), &root);
        assert_eq!(to_come, root.join("real/new/dir/file"));
        assert_eq!(names.path(Path::new("./new/../new/dir/file"), &root.join("link")), to_come);
        std::fs::write(root.join("list"), "in/2\nin/1\n").unwrap();
        let inputs = |given: &[&str]| {
            let given = given.iter().map(OsStr::new);
            names.inputs(given, &root).map(|files| {
                let inside = |file: &PathBuf| file.strip_prefix(&root).unwrap().to_owned();
                files.iter().map(inside).collect::<Vec<_>>()
            })
        };
        let both = [Path::new("real/in/1"), Path::new("real/in/2")];
        assert_eq!(inputs(&["in"]).unwrap(), both);
        assert_eq!(inputs(&["link/in/*"]).unwrap(), both);
        assert_eq!(inputs(&["@list"]).unwrap(), [both[1], both[0]]);
        assert_eq!(inputs(&["real/none"]).unwrap(), [Path::new("real/none")]);
        assert!(inputs(&["real/*.x"]).unwrap_err().to_string().contains("matches no file"));
    }
}
