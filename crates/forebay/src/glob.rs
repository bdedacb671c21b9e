//! Patterns of file names: `*`, `?`, `[a-z]` within a name, `**` for any number of directories.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Whether a path has anything special in it.
pub fn is_pattern(path: &Path) -> bool {
    path.as_os_str().as_bytes().iter().any(|byte| b"*?[".contains(byte))
}

/// Whether a name matches a pattern. A pattern that does not begin with a dot matches no name that
/// does.
pub fn matches(pattern: &OsStr, name: &OsStr) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let hidden = name.first() == Some(&b'.') && pattern.first() != Some(&b'.');
    !hidden && matches_bytes(pattern, name)
}

/// Backtracks to the last `*` only, so that no pattern takes more than the product of the lengths.
fn matches_bytes(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star = None;
    while n < name.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p + 1, n));
            p += 1;
        } else if let Some(used) = matches_one(&pattern[p..], name[n]) {
            p += used;
            n += 1;
        } else if let Some((after, from)) = star {
            star = Some((after, from + 1));
            (p, n) = (after, from + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// How many bytes of the pattern one byte of the name matches.
fn matches_one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern.first()? {
        b'?' => Some(1),
        b'[' => {
            let negated = matches!(pattern.get(1), Some(b'!' | b'^'));
            let first = if negated { 2 } else { 1 };
            // A bracket right at the start is one of the set.
            let end = first + 1 + pattern.get(first + 1..)?.iter().position(|b| *b == b']')?;
            let set = &pattern[first..end];
            (in_set(set, byte) != negated).then_some(end + 1)
        }
        literal => (*literal == byte).then_some(1),
    }
}

fn in_set(mut set: &[u8], byte: u8) -> bool {
    while let Some(&first) = set.first() {
        if let [_, b'-', last, ..] = *set {
            if (first..=last).contains(&byte) {
                return true;
            }
            set = &set[3..];
        } else {
            if first == byte {
                return true;
            }
            set = &set[1..];
        }
    }
    false
}

/// The regular files below a directory, in the order of their paths.
pub fn files_below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    descend(dir, &mut files)?;
    Ok(files)
}

fn descend(dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for (name, kind) in entries(dir)? {
        let path = dir.join(name);
        if kind.is_dir() {
            descend(&path, files)?;
        } else if kind.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

fn entries(dir: &Path) -> io::Result<Vec<(OsString, fs::FileType)>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        entries.push((entry.file_name(), entry.file_type()?));
    }
    entries.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    Ok(entries)
}

/// The regular files below `root` whose paths from there match the pattern, in the order of their
/// paths.
pub fn expand(root: &Path, pattern: &Path) -> io::Result<Vec<PathBuf>> {
    let parts: Vec<&OsStr> = pattern
        .components()
        .filter_map(|part| if let Component::Normal(name) = part { Some(name) } else { None })
        .collect();
    let mut files = Vec::new();
    follow(root, &parts, &mut files)?;
    files.sort_unstable();
    files.dedup();
    Ok(files)
}

fn follow(dir: &Path, parts: &[&OsStr], files: &mut Vec<PathBuf>) -> io::Result<()> {
    let Some((&part, rest)) = parts.split_first() else { return Ok(()) };
    if part == "**" {
        follow(dir, rest, files)?;
        for (name, kind) in entries(dir)? {
            let path = dir.join(&name);
            if kind.is_dir() {
                follow(&path, parts, files)?;
            } else if rest.is_empty() && kind.is_file() {
                files.push(path);
            }
        }
        return Ok(());
    }
    for (name, kind) in entries(dir)?.into_iter().filter(|(name, _)| matches(part, name)) {
        let path = dir.join(name);
        if rest.is_empty() && kind.is_file() {
            files.push(path);
        } else if !rest.is_empty() && kind.is_dir() {
            follow(&path, rest, files)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_when_patterns_are_special_then_as_a_shell_does() {
        for (pattern, name, expected) in [
            ("*.bin", "a.bin", true),
            ("*.bin", ".bin", false),
            (".*", ".bin", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]x]", "]", true),
            ("[a", "[a", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("*", "", true),
            ("plain", "plain", true),
        ] {
            assert_eq!(matches(pattern.as_ref(), name.as_ref()), expected, "{pattern} {name}");
        }
        let long = "a".repeat(5_000);
        assert!(!matches("*a*a*a*a*a*b".as_ref(), long.as_ref()), "and soon");
    }

    #[test]
    fn expand_when_directories_are_nested_then_files_in_order() {
        let dir = tempfile::tempdir().unwrap();
        for file in ["a/1.x", "a/2.y", "b/c/3.x", "4.x"] {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let found = |pattern: &str| -> Vec<String> {
            let paths = expand(dir.path(), Path::new(pattern)).unwrap();
            paths
                .iter()
                .map(|p| p.strip_prefix(dir.path()).unwrap().display().to_string())
                .collect()
        };
        assert_eq!(found("**/*.x"), ["4.x", "a/1.x", "b/c/3.x"]);
        assert_eq!(found("a/*"), ["a/1.x", "a/2.y"]);
        assert_eq!(found("*/c/3.x"), ["b/c/3.x"]);
        assert_eq!(found("**").len(), 4);
        assert_eq!(files_below(dir.path()).unwrap().len(), 4);
    }
}
