//! Names: create, stat, open, rename, unlink, list.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

use crate::hit::Workplace;
use crate::procs::{Tally, rate, run};
use crate::report::Report;
use crate::{Error, Plan, Subject};

/// One operation on a file of a process, given its path and a second one.
type Step = fn(&CString, &CString) -> io::Result<()>;

/// The operations in the order in which they can follow each other.
const STEPS: [(&str, Step); 7] = [
    ("create+close", create),
    ("stat cached", stat),
    ("stat uncached", stat),
    ("open+read+close", read),
    ("open+close", open),
    ("rename", rename),
    ("unlink", unlink),
];

fn checked(code: libc::c_int) -> io::Result<libc::c_int> {
    if code < 0 { Err(io::Error::last_os_error()) } else { Ok(code) }
}

fn close(descriptor: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor was opened by the caller and is used nowhere else.
    checked(unsafe { libc::close(descriptor) }).map(drop)
}

fn create(path: &CString, _: &CString) -> io::Result<()> {
    // SAFETY: the path ends with NUL.
    let opened =
        unsafe { libc::open(path.as_ptr(), libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, 0o644) };
    close(checked(opened)?)
}

fn stat(path: &CString, _: &CString) -> io::Result<()> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the path ends with NUL and the buffer is of the right size.
    checked(unsafe { libc::lstat(path.as_ptr(), stat.as_mut_ptr()) }).map(drop)
}

fn open(path: &CString, _: &CString) -> io::Result<()> {
    // SAFETY: the path ends with NUL.
    let opened = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY) };
    close(checked(opened)?)
}

fn read(path: &CString, _: &CString) -> io::Result<()> {
    let mut buffer = [0u8; 4096];
    // SAFETY: the path ends with NUL.
    let descriptor = checked(unsafe { libc::open(path.as_ptr(), libc::O_RDONLY) })?;
    // SAFETY: the buffer has as many bytes as it is said to have.
    let moved = unsafe { libc::read(descriptor, buffer.as_mut_ptr().cast(), buffer.len()) };
    close(descriptor)?;
    if moved < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn rename(path: &CString, other: &CString) -> io::Result<()> {
    // SAFETY: both paths end with NUL.
    checked(unsafe { libc::rename(path.as_ptr(), other.as_ptr()) }).map(drop)
}

fn unlink(_: &CString, other: &CString) -> io::Result<()> {
    // SAFETY: the path ends with NUL.
    checked(unsafe { libc::unlink(other.as_ptr()) }).map(drop)
}

/// The paths of a process's file `number`, before and after its renaming.
fn paths(dir: &Path, process: usize, number: usize) -> Result<(CString, CString), Error> {
    let path = |letter: char| {
        let path = dir.join(format!("{process}")).join(format!("{letter}{number:07}"));
        CString::new(path.as_os_str().as_bytes())
            .map_err(|_| Error::Usage("a path with NUL".into()))
    };
    Ok((path('f')?, path('r')?))
}

fn all(dir: &Path, process: usize, files: usize, step: Step) -> Result<Tally, Error> {
    let list = (0..files).map(|n| paths(dir, process, n)).collect::<Result<Vec<_>, _>>()?;
    let start = Instant::now();
    for (path, other) in &list {
        step(path, other).map_err(Error::io(path.to_string_lossy()))?;
    }
    Ok(Tally { ops: files as u64, bytes: 0, elapsed: start.elapsed(), ..Tally::default() })
}

/// Fills each file, so that reading it reads something.
fn fill(dir: &Path, processes: usize, files: usize) -> Result<(), Error> {
    for process in 0..processes {
        for number in 0..files {
            let path = dir.join(process.to_string()).join(format!("f{number:07}"));
            std::fs::write(&path, [7u8; 4096]).map_err(Error::io(path.display().to_string()))?;
        }
    }
    Ok(())
}

/// Whether the kernel let itself be told to forget names and attributes. Only root may.
fn forget_names() -> bool {
    std::fs::write("/proc/sys/vm/drop_caches", "2").is_ok()
}

fn round(
    report: &mut Report,
    subjects: &[Subject],
    clients: usize,
    files: usize,
) -> Result<(), Error> {
    let places = subjects.iter().map(Workplace::new).collect::<Result<Vec<_>, _>>()?;
    for place in &places {
        for process in 0..clients {
            let dir = place.path().join(process.to_string());
            std::fs::create_dir(&dir).map_err(Error::io(dir.display().to_string()))?;
        }
    }
    for (name, step) in STEPS {
        for (subject, place) in subjects.iter().zip(&places) {
            if name == "stat uncached" && !forget_names() {
                continue;
            }
            let tallies = run(clients, &|process| all(place.path(), process, files, step))?;
            let test = format!("{name} x{clients}");
            report.add(&test, &subject.name, "op/s", rate(&tallies, |tally| tally.ops));
            if name == "create+close" {
                fill(place.path(), clients, files)?;
            }
        }
    }
    Ok(())
}

/// The time to read the names of a directory, and to look at each as `ls -l` does.
fn list(dir: &Path, look: bool) -> Result<f64, Error> {
    let start = Instant::now();
    let failed = || Error::io(dir.display().to_string());
    for entry in std::fs::read_dir(dir).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        if look {
            entry.metadata().map_err(failed())?;
        }
    }
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

fn listings(
    report: &mut Report,
    subjects: &[Subject],
    plan: &Plan,
    entries: usize,
) -> Result<(), Error> {
    let places = subjects.iter().map(Workplace::new).collect::<Result<Vec<_>, _>>()?;
    for place in &places {
        for number in 0..entries {
            let path = place.path().join(format!("entry{number:07}"));
            std::fs::File::create(&path).map_err(Error::io(path.display().to_string()))?;
        }
    }
    for _ in 0..plan.rounds {
        for (subject, place) in subjects.iter().zip(&places) {
            let mut add = |name: &str, look: bool| -> Result<(), Error> {
                let time = list(place.path(), look)?;
                report.add(&format!("{name} of {entries}"), &subject.name, "ms", time);
                Ok(())
            };
            let cold = forget_names();
            add(if cold { "ls -l cold" } else { "ls -l" }, true)?;
            add("ls -l warm", true)?;
            add("readdir", false)?;
        }
    }
    Ok(())
}

/// All operations with one client and four, then listings of a large directory.
pub fn meta(
    subjects: &[Subject],
    plan: &Plan,
    files: usize,
    entries: usize,
) -> Result<Report, Error> {
    let mut report = Report::new("Names: operations per second, and listings");
    for clients in [1, 4] {
        for _ in 0..plan.rounds {
            round(&mut report, subjects, clients, files)?;
        }
    }
    if entries > 0 {
        listings(&mut report, subjects, plan, entries)?;
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn round_when_run_by_one_client_then_every_step_succeeds_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let subjects = [Subject { name: "a".into(), dir: dir.path().into() }];
        let mut report = Report::new("t");
        round(&mut report, &subjects, 1, 20).unwrap();
        let plan = Plan { rounds: 2, burst: Duration::ZERO, procs: vec![1] };
        listings(&mut report, &subjects, &plan, 30).unwrap();
        assert!(report.tests().len() >= 8, "{:?}", report.tests());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn steps_when_the_file_is_missing_then_they_fail() {
        let (path, other) = paths(Path::new("/nowhere"), 0, 0).unwrap();
        for (name, step) in STEPS {
            assert!(step(&path, &other).is_err(), "{name}");
        }
    }
}
