//! The repository as the rules see it: its files, by path.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Larger files are listed, not read.
const MAX_READ: u64 = 4 << 20;

/// Directories that hold nothing of the project.
const SKIPPED: [&str; 2] = ["target", ".git"];

/// The files of the repository: those that git knows or would add, or, without git, all but build
/// output. Paths are relative to the root, with `/`.
#[derive(Debug, Default)]
pub struct Repository {
    files: BTreeMap<String, Option<String>>,
}

/// The root of the workspace that the current directory is in, wherever this program was built: it must
/// not judge another tree than the one that it is run in.
///
/// # Errors
/// When the current directory is in none.
pub fn root() -> Result<PathBuf> {
    let here = std::env::current_dir().context("the current directory")?;
    match root_above(&here) {
        Some(root) => Ok(root.to_path_buf()),
        None => bail!("{} is in no workspace: run this in the repository", here.display()),
    }
}

/// The nearest directory whose `Cargo.toml` is that of a workspace with this package (fuzzers have one of
/// their own).
fn root_above(dir: &Path) -> Option<&Path> {
    dir.ancestors().filter(|dir| dir.join("xtask/Cargo.toml").is_file()).find(|dir| {
        let manifest = std::fs::read_to_string(dir.join("Cargo.toml")).unwrap_or_default();
        manifest.lines().any(|line| line.trim() == "[workspace]")
    })
}

impl Repository {
    /// Reads all text files below `root`.
    pub fn read(root: &Path) -> Result<Self> {
        let paths = match tracked(root) {
            Some(paths) => paths,
            None => {
                let mut found = Vec::new();
                walk(root, root, &mut found)?;
                found
            }
        };
        let mut repository = Repository::default();
        for path in paths {
            let full = root.join(&path);
            // Listed by git, deleted in the work tree.
            let Ok(meta) = std::fs::symlink_metadata(&full) else { continue };
            let text = if meta.is_file() && meta.len() <= MAX_READ {
                let bytes = std::fs::read(&full).with_context(|| path.clone())?;
                String::from_utf8(bytes).ok()
            } else {
                None
            };
            repository.files.insert(path, text);
        }
        Ok(repository)
    }

    /// A repository of these files, for tests of rules.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Self {
        let own = |&(path, text): &(&str, &str)| (path.to_owned(), Some(text.to_owned()));
        Repository { files: files.iter().map(own).collect() }
    }

    /// All paths with their text; `None` for what is not UTF-8 or large.
    pub fn files(&self) -> &BTreeMap<String, Option<String>> {
        &self.files
    }

    /// The text of a file.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.as_deref()
    }

    /// Whether there is such a file, or a directory with files.
    pub fn contains(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let below = format!("{path}/");
        path.is_empty()
            || self.files.contains_key(path)
            || self.files.range(below.clone()..).next().is_some_and(|(p, _)| p.starts_with(&below))
    }

    /// Path and text of the files whose names end so.
    pub fn ending<'a>(&'a self, ends: &'a [&str]) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.files
            .iter()
            .filter(|(path, _)| ends.iter().any(|end| path.ends_with(end)))
            .filter_map(|(path, text)| Some((path.as_str(), text.as_deref()?)))
    }
}

fn tracked(root: &Path) -> Option<Vec<String>> {
    let output = Command::new("git")
        .arg("-C")
        .arg(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .ok()?;
    if !output.status.success() || output.stdout.is_empty() {
        return None;
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(text.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect())
}

fn walk(root: &Path, dir: &Path, found: &mut Vec<String>) -> Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            if !SKIPPED.iter().any(|skipped| entry.file_name() == *skipped) {
                walk(root, &path, found)?;
            }
        } else if let Some(path) = path.strip_prefix(root).ok().and_then(Path::to_str) {
            found.push(path.to_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_when_there_is_no_git_then_everything_but_build_output() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["a/b.rs", "target/x.rs", "c.bin"] {
            std::fs::create_dir_all(dir.path().join(path).parent().unwrap()).unwrap();
            std::fs::write(dir.path().join(path), if path == "c.bin" { "\u{e9}" } else { "x" })
                .unwrap();
        }
        std::fs::write(dir.path().join("c.bin"), [0xff, 0xfe]).unwrap();
        let mut found = Vec::new();
        walk(dir.path(), dir.path(), &mut found).unwrap();
        found.sort();
        assert_eq!(found, ["a/b.rs", "c.bin"]);
    }

    #[test]
    fn contains_when_asked_for_directories_then_those_with_files() {
        let repository = Repository::of(&[("a/b.rs", ""), ("ab/c.rs", "")]);
        assert!(repository.contains("a") && repository.contains("a/") && repository.contains(""));
        assert!(repository.contains("a/b.rs") && !repository.contains("a/c.rs"));
        assert!(!repository.contains("b"));
    }

    #[test]
    fn root_when_below_a_workspace_then_that_with_this_package() {
        let dir = tempfile::tempdir().unwrap();
        let manifests = [("xtask", "[package]\n"), ("crates/one/fuzz", "[workspace]\n")];
        for (package, manifest) in manifests {
            std::fs::create_dir_all(dir.path().join(package).join("src")).unwrap();
            std::fs::write(dir.path().join(package).join("Cargo.toml"), manifest).unwrap();
        }
        assert_eq!(root_above(&dir.path().join("xtask/src")), None);
        std::fs::write(dir.path().join("Cargo.toml"), "[workspace]\n").unwrap();
        for below in ["", "crates", "xtask/src", "crates/one/fuzz/src"] {
            assert_eq!(root_above(&dir.path().join(below)), Some(dir.path()), "{below}");
        }
    }

    #[test]
    fn read_when_run_here_then_this_file_is_found() {
        let repository = Repository::read(&root().unwrap()).unwrap();
        assert!(repository.text("xtask/src/repository.rs").is_some());
        assert!(!repository.files().keys().any(|path| path.starts_with("target/")));
    }
}
