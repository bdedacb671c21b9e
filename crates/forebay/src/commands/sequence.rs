//! Reference sequences as users have them: lists of paths, recorded traces, permutations of samplers,
//! and paths and patterns on the command line.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use crate::cli::HintArgs;
use crate::control::WirePath;
use crate::error::Error;
use crate::{glob, trace_file};

/// The longest path in a list, beyond PATH_MAX.
const LIST_PATH_MAX: u64 = 16 << 10;

/// The most entries that a list of files for a permutation may have.
const FILES_MAX: usize = 1 << 24;

/// What is done with each entry of a sequence.
type Take<'a> = &'a mut dyn FnMut(WirePath) -> Result<(), Error>;

/// Calls `take` with each entry of the sequence that the arguments name, in order.
pub fn each(args: &HintArgs, mountpoint: &Path, take: Take<'_>) -> Result<(), Error> {
    let end = if args.null { 0 } else { b'\n' };
    if let Some(list) = &args.from {
        return from_list(list, end, mountpoint, take);
    }
    if let Some(trace) = &args.trace {
        return from_trace(trace, take);
    }
    if let (Some(permutation), Some(files)) = (&args.permutation, &args.files) {
        return from_permutation(permutation, files, end, mountpoint, take);
    }
    if let [only] = &args.paths[..]
        && is_list(only, mountpoint)
    {
        return from_list(only, end, mountpoint, take);
    }
    args.paths.iter().try_for_each(|path| from_argument(path, mountpoint, take))
}

/// Whether a path on the command line is a list rather than a file of the mount.
fn is_list(path: &Path, mountpoint: &Path) -> bool {
    let elsewhere = || std::fs::canonicalize(path).is_ok_and(|real| !real.starts_with(mountpoint));
    path == Path::new("-") || elsewhere() && !path.is_dir()
}

fn open(path: &Path) -> Result<BufReader<Box<dyn Read>>, Error> {
    if path == Path::new("-") {
        return Ok(BufReader::new(Box::new(io::stdin())));
    }
    let file = File::open(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
    Ok(BufReader::new(Box::new(file)))
}

fn from_list(list: &Path, end: u8, mountpoint: &Path, take: Take<'_>) -> Result<(), Error> {
    let mut reader = open(list)?;
    let mut number = 0;
    while let Some(path) = next_path(&mut reader, end, number + 1)? {
        number += 1;
        take(entry(&path, list, number, mountpoint)?)?;
    }
    Ok(())
}

fn entry(path: &Path, list: &Path, number: u64, mountpoint: &Path) -> Result<WirePath, Error> {
    below(path, mountpoint).map_err(|why| {
        Error::Usage(format!("{}: entry {number}: {}: {why}", list.display(), path.display()))
    })
}

/// What was opened while the trace was recorded, but for what was made then.
fn from_trace(trace: &Path, take: Take<'_>) -> Result<(), Error> {
    trace_file::read(trace, &mut |open| {
        let has_name = !open.path.as_path().as_os_str().is_empty();
        if has_name && open.size > 0 { take(open.path) } else { Ok(()) }
    })
}

/// The list's entries in the order of a permutation: numbers of entries from 0 on.
fn from_permutation(
    permutation: &Path,
    files: &Path,
    end: u8,
    mountpoint: &Path,
    take: Take<'_>,
) -> Result<(), Error> {
    let mut list = Vec::new();
    from_list(files, end, mountpoint, &mut |path| {
        if list.len() >= FILES_MAX {
            let most = format!("{}: more than {FILES_MAX} entries", files.display());
            return Err(Error::Usage(most));
        }
        list.push(path);
        Ok(())
    })?;
    let mut reader = open(permutation)?;
    each_number(&mut reader, &permutation.display().to_string(), &mut |place, number| {
        let found = usize::try_from(number).ok().and_then(|at| list.get(at));
        let path = found.ok_or_else(|| {
            Error::Usage(format!(
                "{}: number {place} is {number}, but {} has the entries 0 to {}",
                permutation.display(),
                files.display(),
                list.len().saturating_sub(1)
            ))
        })?;
        take(path.clone())
    })
}

/// Calls `take` with each number of a text and its place in it, from 1: between numbers there may be
/// blanks, commas and brackets, as JSON and Python write lists.
fn each_number(
    reader: &mut impl BufRead,
    name: &str,
    take: &mut dyn FnMut(u64, u64) -> Result<(), Error>,
) -> Result<(), Error> {
    let (mut number, mut place) = (None::<u64>, 0);
    let mut byte = [0];
    loop {
        let read = reader.read(&mut byte).map_err(Error::io(name.to_owned()))?;
        let digit = (read > 0 && byte[0].is_ascii_digit()).then(|| u64::from(byte[0] - b'0'));
        if let Some(digit) = digit {
            let longer = number.unwrap_or(0).checked_mul(10).and_then(|n| n.checked_add(digit));
            number = Some(longer.ok_or_else(|| {
                Error::Usage(format!("{name}: number {} is too large", place + 1))
            })?);
            continue;
        }
        if let Some(complete) = number.take() {
            place += 1;
            take(place, complete)?;
        }
        if read == 0 {
            return Ok(());
        }
        if !byte[0].is_ascii_whitespace() && !b",[]();".contains(&byte[0]) {
            let found = char::from(byte[0]).escape_default();
            return Err(Error::Usage(format!(
                "{name}: found '{found}' after {place} numbers; a permutation is a list of whole \
                 numbers from 0 on"
            )));
        }
    }
}

/// A path or pattern on the command line: as seen from here, or else from the mount point.
fn from_argument(path: &Path, mountpoint: &Path, take: Take<'_>) -> Result<(), Error> {
    let wrong = |why: &str| Error::Usage(format!("{}: {why}", path.display()));
    let here = match std::fs::canonicalize(path) {
        Ok(real) if real.starts_with(mountpoint) => Some(real),
        Ok(_) => {
            return Err(wrong("is not below the mount point; to read a list, use --from"));
        }
        Err(_) => None,
    };
    let inside = below(here.as_deref().unwrap_or(path), mountpoint).map_err(wrong)?;
    let on_mount = mountpoint.join(inside.as_path());
    let whole_directory = on_mount.is_dir();
    if on_mount.symlink_metadata().is_ok() && !whole_directory {
        return take(inside);
    }
    let found = if whole_directory {
        glob::files_below(&on_mount)
    } else if glob::is_pattern(inside.as_path()) {
        glob::expand(mountpoint, inside.as_path())
    } else {
        // The daemon says what is wrong with it, as it does for lists.
        return take(inside);
    };
    let found = found.map_err(Error::io(path.display().to_string()))?;
    if found.is_empty() {
        return Err(wrong("matches no file"));
    }
    for file in found {
        take(below(&file, mountpoint).map_err(wrong)?)?;
    }
    Ok(())
}

/// The next path of a list; empty ones are left out.
pub(crate) fn next_path(
    list: &mut impl BufRead,
    end: u8,
    number: u64,
) -> Result<Option<PathBuf>, Error> {
    loop {
        let mut text = Vec::new();
        let read = list.by_ref().take(LIST_PATH_MAX).read_until(end, &mut text);
        if read.map_err(Error::io("reading the list"))? == 0 {
            return Ok(None);
        }
        if text.last() == Some(&end) {
            text.pop();
        } else if text.len() as u64 == LIST_PATH_MAX {
            return Err(Error::Usage(format!(
                "entry {number} of the list is longer than a path can be; is it separated by NUL? then give -0"
            )));
        }
        if !text.is_empty() {
            return Ok(Some(OsString::from_vec(text).into()));
        }
    }
}

/// A path of a list as the daemon knows it.
pub(super) fn below(path: &Path, mountpoint: &Path) -> Result<WirePath, &'static str> {
    let inside = if path.is_absolute() {
        path.strip_prefix(mountpoint).map_err(|_| "is not below the mount point")?
    } else {
        path
    };
    let mut plain = PathBuf::new();
    for component in inside.components() {
        match component {
            Component::Normal(name) => plain.push(name),
            Component::CurDir => {}
            _ => return Err("must not contain '..'"),
        }
    }
    if plain.as_os_str().is_empty() { Err("is the mount point itself") } else { Ok(plain.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_when_absolute_or_relative_then_the_same_path() {
        let mount = Path::new("/mnt/x");
        assert_eq!(below(Path::new("/mnt/x/a/b"), mount), Ok("a/b".into()));
        assert_eq!(below(Path::new("./a//b"), mount), Ok("a/b".into()));
        assert!(below(Path::new("/mnt/xy/a"), mount).is_err());
        assert!(below(Path::new("../a"), mount).is_err());
        assert!(below(Path::new("/mnt/x"), mount).is_err());
    }

    #[test]
    fn next_path_when_separators_differ_then_both_are_read_and_long_ones_refused() {
        let mut list = &b"a\n\nb"[..];
        assert_eq!(next_path(&mut list, b'\n', 1).unwrap(), Some("a".into()));
        assert_eq!(next_path(&mut list, b'\n', 2).unwrap(), Some("b".into()));
        assert_eq!(next_path(&mut list, b'\n', 3).unwrap(), None);
        let mut list = &b"a\nb\0c\0"[..];
        assert_eq!(next_path(&mut list, 0, 1).unwrap(), Some("a\nb".into()));
        let long = vec![b'x'; 20 << 10];
        assert!(next_path(&mut &long[..], b'\n', 1).is_err());
    }

    #[test]
    fn each_number_when_written_as_text_json_or_python_then_the_same() {
        for text in ["3 1\n2\n", "[3, 1, 2]", "(3,1,2)\n"] {
            let mut found = Vec::new();
            each_number(&mut text.as_bytes(), "p", &mut |place, number| {
                found.push((place, number));
                Ok(())
            })
            .unwrap();
            assert_eq!(found, [(1, 3), (2, 1), (3, 2)], "{text}");
        }
        for (text, part) in
            [("1 -2", "found '-'"), ("1.5", "found '.'"), ("99999999999999999999", "too large")]
        {
            let error = each_number(&mut text.as_bytes(), "p", &mut |_, _| Ok(())).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn permutation_when_a_number_is_beyond_the_list_then_the_message_says_which() {
        let dir = tempfile::tempdir().unwrap();
        let (list, order) = (dir.path().join("list"), dir.path().join("order"));
        std::fs::write(&list, "a\nb\nc\n").unwrap();
        std::fs::write(&order, "2 0 1").unwrap();
        let mount = Path::new("/mnt/x");
        let mut found = Vec::new();
        let mut take = |path| {
            found.push(path);
            Ok(())
        };
        from_permutation(&order, &list, b'\n', mount, &mut take).unwrap();
        assert_eq!(found, ["c".into(), "a".into(), "b".into()]);
        std::fs::write(&order, "2 3").unwrap();
        let error = from_permutation(&order, &list, b'\n', mount, &mut |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains("number 2 is 3"), "{error}");
    }

    #[test]
    fn argument_when_a_list_elsewhere_then_read_and_when_on_the_mount_then_itself() {
        let dir = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(dir.path()).unwrap();
        let mount = root.join("mnt");
        std::fs::create_dir_all(mount.join("d")).unwrap();
        std::fs::write(mount.join("d/b"), "x").unwrap();
        std::fs::write(mount.join("d/a"), "x").unwrap();
        std::fs::write(root.join("list"), "d/b\n").unwrap();
        assert!(is_list(&root.join("list"), &mount) && is_list(Path::new("-"), &mount));
        assert!(!is_list(&mount.join("d/a"), &mount) && !is_list(Path::new("d/a"), &mount));
        let argument = |path: &Path| {
            let mut found = Vec::new();
            from_argument(path, &mount, &mut |path| {
                found.push(path.to_string());
                Ok(())
            })
            .map(|()| found)
        };
        assert_eq!(argument(&mount.join("d")).unwrap(), ["d/a", "d/b"]);
        assert_eq!(argument(Path::new("d/*")).unwrap(), ["d/a", "d/b"]);
        assert_eq!(argument(&mount.join("d/[b-z]")).unwrap(), ["d/b"]);
        assert_eq!(argument(Path::new("d/none")).unwrap(), ["d/none"]);
        assert!(argument(Path::new("d/*.x")).is_err() && argument(&root.join("list")).is_err());
    }
}
