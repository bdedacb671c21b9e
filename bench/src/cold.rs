//! First reads: what nobody has read before, with the page cache dropped.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::report::Report;
use crate::{Error, Plan, Subject};

/// How long a disk is left alone before a first byte is asked for.
const SETTLE: Duration = Duration::from_millis(500);

/// What is read by [`cold`], below each subject.
#[derive(Default)]
pub struct Files {
    /// Large files, one for each round.
    pub large: Vec<PathBuf>,
    /// Directories of small files, one for each round.
    pub small: Vec<PathBuf>,
    /// A directory of files of which only the first byte is read, each once.
    pub first: Option<PathBuf>,
}

/// Makes the kernel forget pages and names.
pub fn drop_caches() -> Result<(), Error> {
    // SAFETY: sync has no arguments and always succeeds.
    unsafe { libc::sync() };
    std::fs::write("/proc/sys/vm/drop_caches", "3")
        .map_err(Error::io("/proc/sys/vm/drop_caches (needs root)"))
}

/// The time to the first byte in milliseconds, and the speed of the whole file in MB/s.
fn large_file(path: &Path) -> Result<(f64, f64), Error> {
    let failed = || Error::io(path.display().to_string());
    let mut buffer = vec![0u8; 1 << 20];
    let start = Instant::now();
    let mut file = File::open(path).map_err(failed())?;
    file.read_exact(&mut buffer[..1]).map_err(failed())?;
    let first = start.elapsed().as_secs_f64() * 1e3;
    let mut bytes = 1u64;
    loop {
        match file.read(&mut buffer).map_err(failed())? {
            0 => break,
            moved => bytes += moved as u64,
        }
    }
    Ok((first, bytes as f64 / 1e6 / start.elapsed().as_secs_f64()))
}

/// The files of a directory, in the order of their names.
fn files_of(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = || Error::io(dir.display().to_string());
    let entries = std::fs::read_dir(dir).map_err(failed())?;
    let mut paths = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<PathBuf>, _>>()
        .map_err(failed())?;
    paths.retain(|path| path.is_file());
    paths.sort();
    Ok(paths)
}

/// The time to the first byte of a file on a disk that has nothing else to do, in milliseconds.
fn first_byte(path: &Path) -> Result<f64, Error> {
    drop_caches()?;
    // What the last file left to do, such as reading it ahead, is over by then.
    std::thread::sleep(SETTLE);
    let failed = || Error::io(path.display().to_string());
    let start = Instant::now();
    let mut file = File::open(path).map_err(failed())?;
    file.read_exact(&mut [0]).map_err(failed())?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

/// Reads all files of a directory, in the order of their names; files per second.
fn small_files(dir: &Path) -> Result<f64, Error> {
    let start = Instant::now();
    let paths = files_of(dir)?;
    for path in &paths {
        std::fs::read(path).map_err(Error::io(path.display().to_string()))?;
    }
    Ok(paths.len() as f64 / start.elapsed().as_secs_f64())
}

fn chilled(chill: Option<&str>) -> Result<(), Error> {
    if let Some(command) = chill {
        let status = Command::new("sh").arg("-c").arg(command).status();
        let status = status.map_err(Error::io(command))?;
        if !status.success() {
            return Err(Error::Usage(format!("--chill {command}: {status}")));
        }
    }
    drop_caches()
}

/// Reads each large file, each directory of small ones and each first byte once on every subject.
pub fn cold(
    subjects: &[Subject],
    plan: &Plan,
    files: &Files,
    chill: Option<&str>,
) -> Result<Report, Error> {
    let Files { large, small, first } = files;
    if large.is_empty() && small.is_empty() && first.is_none() {
        return Err(Error::Usage(
            "cold: name files with --large, or directories with --small or --first".into(),
        ));
    }
    let mut report = Report::new("First reads, cold");
    let of_round = |list: &[PathBuf], round: u32| -> Option<PathBuf> {
        list.get(round as usize % list.len().max(1)).cloned()
    };
    for round in 0..plan.rounds {
        for subject in subjects {
            if let Some(path) = of_round(large, round) {
                chilled(chill)?;
                let (first, speed) = large_file(&subject.dir.join(path))?;
                report.add("time to first byte", &subject.name, "ms", first);
                report.add("large file, sequential", &subject.name, "MB/s", speed);
            }
            if let Some(path) = of_round(small, round) {
                chilled(chill)?;
                let speed = small_files(&subject.dir.join(path))?;
                report.add("small files", &subject.name, "op/s", speed);
            }
        }
    }
    if let Some(dir) = first {
        chilled(chill)?;
        first_bytes(subjects, dir, &mut report)?;
    }
    Ok(report)
}

fn first_bytes(subjects: &[Subject], dir: &Path, report: &mut Report) -> Result<(), Error> {
    let of_first = |subject: &Subject| files_of(&subject.dir.join(dir));
    let names = subjects.first().map_or(Ok(Vec::new()), of_first)?;
    for name in names.iter().filter_map(|path| path.file_name()) {
        for subject in subjects {
            let took = first_byte(&subject.dir.join(dir).join(name))?;
            report.add("time to first byte, idle disk", &subject.name, "ms", took);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_when_files_exist_then_speeds_are_told() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..5 {
            std::fs::write(dir.path().join(n.to_string()), vec![1u8; 3 << 20]).unwrap();
        }
        let (first, speed) = large_file(&dir.path().join("0")).unwrap();
        assert!(first > 0.0 && speed > 0.0);
        assert!(small_files(dir.path()).unwrap() > 0.0);
        assert!(large_file(&dir.path().join("none")).is_err());
    }

    #[test]
    fn chilled_when_the_command_fails_then_so_does_the_run() {
        assert!(chilled(Some("exit 3")).unwrap_err().to_string().contains("exit status: 3"));
    }
}
