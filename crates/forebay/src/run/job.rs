//! A job, and what must hold of the jobs of a run.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::units::format_bytes;

/// Jobs of one run.
pub const MAX_JOBS: usize = 100_000;

/// A command with what it needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Job {
    /// Its name, which no other job of the run has.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Where it runs.
    pub dir: PathBuf,
    /// Variables of its environment beside those of `forebay run`.
    pub env: BTreeMap<String, String>,
    /// Files that it reads, in the order of their use.
    pub inputs: Vec<PathBuf>,
    /// Files that it makes.
    pub outputs: Vec<PathBuf>,
    /// Names of jobs that must have ended well before.
    pub after: Vec<String>,
    /// Cores that it occupies.
    pub cores: u32,
    /// Memory that it occupies.
    pub memory_bytes: u64,
    /// Seconds that it computes, 0 if nobody knows.
    pub seconds: f64,
    /// How often it is tried again.
    pub retries: u32,
}

/// What a run may use of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Cores.
    pub cores: u32,
    /// Memory.
    pub memory_bytes: u64,
}

impl Machine {
    /// All of this one, as far as this process may use it.
    pub fn this() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let memory = std::fs::read_to_string("/proc/meminfo").ok();
        let memory = memory.as_deref().and_then(total_of);
        Self {
            cores: u32::try_from(cores).unwrap_or(u32::MAX),
            memory_bytes: memory.unwrap_or(u64::MAX),
        }
    }
}

fn total_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// For each job those that it waits for: which it names, and which make what it reads.
///
/// # Errors
/// A name that is there twice or not at all, two jobs that make one file, jobs that wait for each
/// other, a job that needs more than there is.
pub fn dependencies(jobs: &[Job], machine: Machine) -> Result<Vec<Vec<usize>>, Error> {
    if jobs.len() > MAX_JOBS {
        let many = format!("{} jobs; a run has at most {MAX_JOBS}: make several of it", jobs.len());
        return Err(Error::Usage(many));
    }
    let mut names = HashMap::new();
    let mut makers: HashMap<&Path, usize> = HashMap::new();
    for (at, job) in jobs.iter().enumerate() {
        check(job, machine)?;
        if names.insert(job.name.as_str(), at).is_some() {
            return Err(Error::Usage(format!("two jobs have the name {:?}", job.name)));
        }
        for output in &job.outputs {
            if let Some(other) = makers.insert(output, at).filter(|other| *other != at) {
                return Err(Error::Usage(format!(
                    "{} and {} both make {}",
                    jobs[other].name,
                    job.name,
                    output.display()
                )));
            }
        }
    }
    let mut all = Vec::with_capacity(jobs.len());
    for (at, job) in jobs.iter().enumerate() {
        let mut before = HashSet::new();
        for name in &job.after {
            let earlier = names.get(name.as_str()).ok_or_else(|| {
                Error::Usage(format!("{} is to run after {name:?}, which is no job", job.name))
            })?;
            before.insert(*earlier);
        }
        // A job may make a whole directory of which others read files.
        let paths = job.inputs.iter().flat_map(|input| input.ancestors());
        before.extend(paths.filter_map(|path| makers.get(path)).filter(|other| **other != at));
        let mut before: Vec<usize> = before.into_iter().collect();
        before.sort_unstable();
        all.push(before);
    }
    Ok(all)
}

/// For each job those that wait for it.
pub fn followers(before: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut after = vec![Vec::new(); before.len()];
    for (next, earlier) in before.iter().enumerate() {
        earlier.iter().for_each(|other| after[*other].push(next));
    }
    after
}

/// The jobs that wait for this one, directly or through others.
pub fn waiting_for(after: &[Vec<usize>], job: usize) -> BTreeSet<usize> {
    let mut waiting = BTreeSet::new();
    let mut found = vec![job];
    while let Some(next) = found.pop() {
        let next = after[next].iter().copied();
        found.extend(next.filter(|other| waiting.insert(*other)));
    }
    waiting
}

fn check(job: &Job, machine: Machine) -> Result<(), Error> {
    let wrong = |what: String| Err(Error::Usage(format!("job {:?}: {what}", job.name)));
    let printable = !job.name.is_empty()
        && job.name.len() <= 200
        && !job.name.contains('/')
        && !job.name.starts_with('.')
        && !job.name.chars().any(char::is_control);
    if !printable {
        return wrong("a name has 1 to 200 printable bytes, no '/' and no '.' in front".into());
    }
    if job.command.first().is_none_or(|program| program.is_empty()) {
        return wrong("has no command".into());
    }
    if job.cores == 0 {
        return wrong("needs at least one core".into());
    }
    if !job.seconds.is_finite() || job.seconds < 0.0 {
        return wrong(format!("computes for {} seconds, which is no time", job.seconds));
    }
    if job.cores > machine.cores {
        return wrong(format!("needs {} cores, but there are {}", job.cores, machine.cores));
    }
    if job.memory_bytes > machine.memory_bytes {
        let (needs, has) = (format_bytes(job.memory_bytes), format_bytes(machine.memory_bytes));
        return wrong(format!("needs {needs} of memory, but there are {has}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, inputs: &[&str], outputs: &[&str], after: &[&str]) -> Job {
        Job {
            name: name.into(),
            command: vec!["true".into()],
            inputs: inputs.iter().map(PathBuf::from).collect(),
            outputs: outputs.iter().map(PathBuf::from).collect(),
            after: after.iter().map(|name| (*name).to_owned()).collect(),
            cores: 1,
            ..Job::default()
        }
    }

    const MACHINE: Machine = Machine { cores: 4, memory_bytes: 1 << 30 };

    #[test]
    fn dependencies_when_files_and_names_say_so_then_both_count() {
        let jobs = [
            job("a", &[], &["/x/dir"], &[]),
            job("b", &["/x/dir/part/1"], &["/x/b"], &[]),
            job("c", &["/x/b", "/x/b"], &[], &["a", "b"]),
            job("d", &["/x/d"], &["/x/d"], &[]),
        ];
        let before = dependencies(&jobs, MACHINE).unwrap();
        assert_eq!(before, [vec![], vec![0], vec![0, 1], vec![]]);
        let after = followers(&before);
        let waiting = |job| waiting_for(&after, job).into_iter().collect::<Vec<_>>();
        assert_eq!((waiting(0), waiting(1), waiting(3)), (vec![1, 2], vec![2], vec![]));
    }

    #[test]
    fn dependencies_when_jobs_are_wrong_then_the_message_says_which() {
        let larger = Job { cores: 5, ..job("large", &[], &[], &[]) };
        let greedy = Job { memory_bytes: 2 << 30, ..job("greedy", &[], &[], &[]) };
        for (jobs, part) in [
            (
                vec![job("a", &[], &[], &[]), job("a", &[], &[], &[])],
                "two jobs have the name \"a\"",
            ),
            (vec![job("a", &[], &[], &["z"])], "\"z\", which is no job"),
            (
                vec![job("a", &[], &["/o"], &[]), job("b", &[], &["/o"], &[])],
                "a and b both make /o",
            ),
            (vec![job("a/b", &[], &[], &[])], "no '/'"),
            (vec![larger], "needs 5 cores, but there are 4"),
            (vec![greedy], "needs 2.00 GiB of memory"),
            (vec![Job { command: vec![], ..job("a", &[], &[], &[]) }], "has no command"),
        ] {
            let error = dependencies(&jobs, MACHINE).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn memory_of_the_machine_as_the_kernel_writes_it() {
        assert_eq!(total_of("MemTotal:       24000 kB\nMemFree: 1 kB\n"), Some(24_576_000));
        assert_eq!(total_of("MemFree: 1 kB\n"), None);
        assert!(Machine::this().cores > 0);
    }
}
