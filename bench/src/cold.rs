//! First reads: what nobody has read before, with the page cache dropped.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::report::Report;
use crate::{Error, Plan, Subject};

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

/// Reads all files of a directory, in the order of their names; files per second.
fn small_files(dir: &Path) -> Result<f64, Error> {
    let failed = || Error::io(dir.display().to_string());
    let start = Instant::now();
    let entries = std::fs::read_dir(dir).map_err(failed())?;
    let mut paths = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<PathBuf>, _>>()
        .map_err(failed())?;
    paths.sort();
    let mut files = 0u64;
    for path in paths.iter().filter(|path| path.is_file()) {
        std::fs::read(path).map_err(Error::io(path.display().to_string()))?;
        files += 1;
    }
    Ok(files as f64 / start.elapsed().as_secs_f64())
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

/// Reads each large file and each directory of small ones once on every subject.
pub fn cold(
    subjects: &[Subject],
    plan: &Plan,
    large: &[PathBuf],
    small: &[PathBuf],
    chill: Option<&str>,
) -> Result<Report, Error> {
    if large.is_empty() && small.is_empty() {
        return Err(Error::Usage(
            "cold: name files with --large or directories with --small".into(),
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
    Ok(report)
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
