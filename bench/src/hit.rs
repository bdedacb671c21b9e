//! Data: resident files read and written in place, new files, random reads.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::procs::{Random, Tally, rate, repeat, run};
use crate::report::Report;
use crate::{Error, Plan, Subject};

/// A directory of the benchmark's own below a subject, removed at the end.
pub struct Workplace(PathBuf);

impl Workplace {
    /// Makes it.
    pub fn new(subject: &Subject) -> Result<Self, Error> {
        let dir = subject.dir.join(format!("bench.{}", std::process::id()));
        std::fs::create_dir(&dir).map_err(Error::io(dir.display().to_string()))?;
        Ok(Self(dir))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Read,
    RandomRead,
    Write,
}

/// One measurement of resident files.
struct Case {
    way: Way,
    block: usize,
}

impl Case {
    fn name(&self, procs: usize) -> String {
        let way = match self.way {
            Way::Read => "read",
            Way::RandomRead => "random read",
            Way::Write => "write in place",
        };
        let block = if self.block >= 1 << 20 {
            "1 MiB".into()
        } else {
            format!("{} KiB", self.block >> 10)
        };
        format!("{way} {block} x{procs}")
    }

    /// The unit and how many of it a tally has: operations for small blocks, else bytes.
    fn unit(&self) -> (&'static str, f64) {
        if self.block <= 4096 { ("op/s", self.block as f64) } else { ("MB/s", 1e6) }
    }
}

fn open(path: &Path, write: bool) -> Result<File, Error> {
    OpenOptions::new()
        .read(true)
        .write(write)
        .open(path)
        .map_err(Error::io(path.display().to_string()))
}

fn checked(moved: isize) -> io::Result<u64> {
    match moved {
        -1 => Err(io::Error::last_os_error()),
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        moved => Ok(moved as u64),
    }
}

/// Reads or writes blocks of a file for the time of a burst, by plain pread and pwrite.
fn burst(path: &Path, case: &Case, size: usize, plan: &Plan, seed: u64) -> Result<Tally, Error> {
    let file = open(path, case.way == Way::Write)?;
    let descriptor = file.as_raw_fd();
    let mut buffer = vec![0x5au8; case.block];
    let blocks = (size / case.block) as u64;
    let mut random = Random::new(seed);
    let tally = repeat(plan.burst, |index| {
        let place = if case.way == Way::RandomRead { random.below(blocks) } else { index % blocks };
        let offset = (place * case.block as u64) as libc::off_t;
        let (address, length) = (buffer.as_mut_ptr().cast::<libc::c_void>(), buffer.len());
        // SAFETY: the buffer has `length` bytes and the descriptor stays open.
        let moved = unsafe {
            if case.way == Way::Write {
                libc::pwrite(descriptor, address, length, offset)
            } else {
                libc::pread(descriptor, address, length, offset)
            }
        };
        checked(moved)
    });
    tally.map_err(Error::io(path.display().to_string()))
}

fn make_file(path: &Path, size: usize) -> Result<(), Error> {
    use std::io::Write;
    let mut file = File::create(path).map_err(Error::io(path.display().to_string()))?;
    let mut random = Random::new(size as u64);
    let block: Vec<u8> = (0..1 << 20).map(|_| random.below(256) as u8).collect();
    let mut left = size;
    while left > 0 {
        let part = left.min(block.len());
        file.write_all(&block[..part]).map_err(Error::io(path.display().to_string()))?;
        left -= part;
    }
    file.sync_all().map_err(Error::io(path.display().to_string()))
}

/// Makes a file for each process on each subject, and reads them once so that they are resident.
fn prepare(subjects: &[Subject], procs: usize, size: usize) -> Result<Vec<Workplace>, Error> {
    let mut places = Vec::new();
    for subject in subjects {
        let place = Workplace::new(subject)?;
        for index in 0..procs {
            make_file(&place.path().join(index.to_string()), size)?;
        }
        for index in 0..procs {
            let path = place.path().join(index.to_string());
            std::fs::read(&path).map_err(Error::io(path.display().to_string()))?;
        }
        places.push(place);
    }
    Ok(places)
}

/// Runs cases in alternation over all subjects.
fn alternate(
    report: &mut Report,
    subjects: &[Subject],
    places: &[Workplace],
    plan: &Plan,
    (case, procs, size): (&Case, usize, usize),
    before: &dyn Fn() -> Result<(), Error>,
) -> Result<(), Error> {
    let (unit, divisor) = case.unit();
    for round in 0..plan.rounds {
        for (subject, place) in subjects.iter().zip(places) {
            before()?;
            let tallies = run(procs, &|index| {
                let path = place.path().join(index.to_string());
                let seed = u64::from(round) * 1000 + index as u64;
                burst(&path, case, size, plan, seed)
            })?;
            report.add(
                &case.name(procs),
                &subject.name,
                unit,
                rate(&tallies, |t| t.bytes) / divisor,
            );
        }
    }
    Ok(())
}

/// Bytes of each file such that all processes together use no more than four files' worth.
fn share(size: usize, procs: usize) -> usize {
    (size * 4 / procs.max(4)).max(4 << 20) & !((1 << 20) - 1)
}

/// Resident files: all block sizes, ways and numbers of processes.
pub fn hit(subjects: &[Subject], plan: &Plan, size: usize) -> Result<Report, Error> {
    let mut report = Report::new("Resident files: throughput and operations");
    for &procs in &plan.procs {
        let size = share(size, procs);
        let places = prepare(subjects, procs, size)?;
        for (way, block) in [
            (Way::Read, 1 << 20),
            (Way::Read, 64 << 10),
            (Way::Read, 4 << 10),
            (Way::RandomRead, 4 << 10),
            (Way::Write, 1 << 20),
            (Way::Write, 64 << 10),
            (Way::Write, 4 << 10),
        ] {
            let case = Case { way, block };
            alternate(&mut report, subjects, &places, plan, (&case, procs, size), &|| Ok(()))?;
        }
    }
    Ok(report)
}

/// The two random reads of the caching literature: 4 KiB by one process, 64 KiB by twelve.
pub fn rand(subjects: &[Subject], plan: &Plan, size: usize, drop: bool) -> Result<Report, Error> {
    let mut report = Report::new("Random reads");
    let before = || if drop { crate::cold::drop_caches() } else { Ok(()) };
    for (block, procs) in [(4 << 10, 1), (64 << 10, 12)] {
        let size = share(size, procs);
        let places = prepare(subjects, procs, size)?;
        let case = Case { way: Way::RandomRead, block };
        alternate(&mut report, subjects, &places, plan, (&case, procs, size), &before)?;
    }
    Ok(report)
}

/// New files, written in 1 MiB blocks and closed.
pub fn newfile(subjects: &[Subject], plan: &Plan, size: usize) -> Result<Report, Error> {
    let mut report = Report::new("New files, written in 1 MiB blocks");
    for &procs in &plan.procs {
        let size = share(size, procs);
        for round in 0..plan.rounds {
            for subject in subjects {
                let place = Workplace::new(subject)?;
                let tallies = run(procs, &|index| {
                    write_new(&place.path().join(format!("{round}.{index}")), size)
                })?;
                report.add(
                    &format!("new file 1 MiB x{procs}"),
                    &subject.name,
                    "MB/s",
                    rate(&tallies, |t| t.bytes) / 1e6,
                );
            }
        }
    }
    Ok(report)
}

fn write_new(path: &Path, size: usize) -> Result<Tally, Error> {
    use std::io::Write;
    let block = vec![0x5au8; 1 << 20];
    let start = Instant::now();
    let mut file = File::create_new(path).map_err(Error::io(path.display().to_string()))?;
    for _ in 0..size >> 20 {
        file.write_all(&block).map_err(Error::io(path.display().to_string()))?;
    }
    drop(file);
    Ok(Tally {
        ops: (size >> 20) as u64,
        bytes: size as u64,
        elapsed: start.elapsed(),
        ..Tally::default()
    })
}

/// The seconds that random 4 KiB reads of an existing file take, always at the same places.
pub fn probe(path: &Path, reads: u64) -> Result<f64, Error> {
    use std::os::unix::fs::FileExt;
    let failed = || Error::io(path.display().to_string());
    let file = open(path, false)?;
    let blocks = file.metadata().map_err(failed())?.len() / 4096;
    if blocks == 0 {
        return Err(Error::Usage(format!("{}: smaller than 4 KiB", path.display())));
    }
    let mut random = Random::new(blocks);
    let mut buffer = [0; 4096];
    let start = Instant::now();
    for _ in 0..reads {
        file.read_exact_at(&mut buffer, random.below(blocks) * 4096).map_err(failed())?;
    }
    Ok(start.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn hit_when_run_on_one_directory_twice_then_every_case_has_all_samples_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let subject = |name: &str| Subject { name: name.into(), dir: dir.path().join(name) };
        let subjects = [subject("a"), subject("b")];
        for subject in &subjects {
            std::fs::create_dir(&subject.dir).unwrap();
        }
        let plan = Plan { rounds: 2, burst: Duration::from_millis(2), procs: vec![1] };
        for report in
            [hit(&subjects, &plan, 4 << 20).unwrap(), newfile(&subjects, &plan, 4 << 20).unwrap()]
        {
            assert!(report.series.iter().all(|s| s.samples.len() == 2 && s.spread().0 > 0.0));
        }
        assert_eq!(std::fs::read_dir(&subjects[0].dir).unwrap().count(), 0);
    }
}
