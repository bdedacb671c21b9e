//! Which task a process belongs to.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;

/// Open files that are remembered.
const HANDLES: usize = 1 << 16;
/// Processes that are remembered.
const PROCESSES: usize = 1 << 16;
/// Bytes of an environment that are looked at.
const ENVIRONMENT: u64 = 256 << 10;

/// The tasks of a recording, and whose each open file is.
pub(super) struct Tasks {
    most: usize,
    labels: Vec<(String, u32)>,
    by_label: HashMap<String, u64>,
    /// By process: when it began, and its task.
    processes: HashMap<u32, (u64, u64)>,
    handles: HashMap<u64, u64>,
}

impl Tasks {
    pub fn new(most: usize) -> Self {
        Self {
            most,
            labels: Vec::new(),
            by_label: HashMap::new(),
            processes: HashMap::new(),
            handles: HashMap::new(),
        }
    }

    /// The name of a task, and the process that it was found by.
    pub fn label(&self, task: u64) -> Option<&(String, u32)> {
        self.labels.get(usize::try_from(task).ok()?)
    }

    /// A file was opened by this process, of the group that `head` leads. The task, if there is room for it.
    pub fn opened(&mut self, fh: u64, pid: u32, head: u32) -> Option<u64> {
        let task = self.of_process(pid, head)?;
        if self.handles.len() < HANDLES || self.handles.contains_key(&fh) {
            self.handles.insert(fh, task);
        }
        Some(task)
    }

    pub fn closed(&mut self, fh: u64) {
        self.handles.remove(&fh);
    }

    /// The task of who opened the file; of a file that was open before the recording began, of who
    /// accesses it.
    pub fn of(&mut self, fh: u64, pid: u32) -> Option<u64> {
        match self.handles.get(&fh) {
            Some(task) => Some(*task),
            None => self.opened(fh, pid, 0),
        }
    }

    fn of_process(&mut self, pid: u32, head: u32) -> Option<u64> {
        if pid == 0 {
            return None;
        }
        let (group, began) = identity(pid);
        if let Some((known, task)) = self.processes.get(&pid)
            && (*known == began || began == 0)
        {
            return Some(*task);
        }
        let label = label_of(group, began, head);
        let next = self.labels.len() as u64;
        let task = match self.by_label.get(&label) {
            Some(task) => *task,
            None if self.labels.len() >= self.most => return None,
            None => {
                self.labels.push((label.clone(), group));
                self.by_label.insert(label, next);
                next
            }
        };
        if self.processes.len() >= PROCESSES {
            self.processes.clear();
        }
        self.processes.insert(pid, (began, task));
        Some(task)
    }
}

/// The process that a thread belongs to, and when that began; 0 if it is gone.
fn identity(thread: u32) -> (u32, u64) {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let group = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    let group = group.and_then(|group| group.trim().parse().ok()).unwrap_or(thread);
    let stat = std::fs::read_to_string(format!("/proc/{group}/stat")).unwrap_or_default();
    let began = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(19));
    (group, began.and_then(|began| began.parse().ok()).unwrap_or(0))
}

/// What a process is part of: a job of `forebay run`, a rank of MPI, a task of Slurm, or itself. Of one
/// that is gone the head of its group says the former.
fn label_of(pid: u32, began: u64, head: u32) -> String {
    let heads = [pid, head].into_iter().filter(|pid| *pid != 0);
    heads.map(environment_of).find_map(|environment| label_from(&environment)).unwrap_or_else(
        || {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            let name = if name.is_empty() { "process" } else { name.trim_end() };
            // The number alone may be another process's later.
            if began == 0 { format!("{name} {pid}") } else { format!("{name} {pid}@{began}") }
        },
    )
}

fn environment_of(pid: u32) -> impl Fn(&str) -> Option<String> {
    let mut environment = Vec::new();
    if let Ok(file) = File::open(format!("/proc/{pid}/environ")) {
        let _ = file.take(ENVIRONMENT).read_to_end(&mut environment);
    }
    move |name| {
        let mut variables = environment.split(|byte| *byte == 0);
        let value = variables.find_map(|one| one.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        value.map(|value| String::from_utf8_lossy(value).into_owned()).filter(|v| !v.is_empty())
    }
}

fn label_from(value: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let rank = ["PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"];
    let rank = rank.iter().find_map(|name| value(name));
    let rank = rank.map_or(String::new(), |rank| format!(" rank {rank}"));
    if let (Some(run), Some(job)) = (value("FOREBAY_RUN"), value("FOREBAY_JOB")) {
        return Some(format!("{job} of run {run}{rank}"));
    }
    match value("SLURM_JOB_ID") {
        Some(job) => Some(format!("slurm {job}{rank}")),
        None if rank.is_empty() => None,
        None => value("PMIX_NAMESPACE")
            .or_else(|| value("PMI_JOBID"))
            .map(|job| format!("mpi {job}{rank}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_when_jobs_ranks_and_tasks_say_who_they_are_then_that() {
        let label = |pairs: &[(&str, &str)]| {
            let pairs: Vec<(String, String)> =
                pairs.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect();
            label_from(&move |name| {
                pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
            })
        };
        let run = [("FOREBAY_RUN", "r1"), ("FOREBAY_JOB", "sort"), ("SLURM_PROCID", "3")];
        assert_eq!(label(&run).as_deref(), Some("sort of run r1 rank 3"));
        let slurm = [("SLURM_JOB_ID", "77"), ("SLURM_PROCID", "0")];
        assert_eq!(label(&slurm).as_deref(), Some("slurm 77 rank 0"));
        let mpi = [("PMIX_RANK", "2"), ("PMIX_NAMESPACE", "j")];
        assert_eq!(label(&mpi).as_deref(), Some("mpi j rank 2"));
        assert_eq!(label(&[("HOME", "/")]), None);
    }

    #[test]
    fn tasks_when_there_are_too_many_then_the_rest_is_nobody_s() {
        let mut tasks = Tasks::new(1);
        let own = std::process::id();
        let task = tasks.opened(1, own, 0).expect("room for one");
        assert_eq!(tasks.of(1, 0), Some(task), "by who opened it");
        assert_eq!(tasks.of(2, own), Some(task));
        assert_eq!(tasks.of(3, 1), None, "another process");
        assert_eq!(tasks.of(4, 0), None, "the kernel itself");
        tasks.closed(1);
        assert_eq!(tasks.of(1, 0), None);
        assert!(tasks.label(task).is_some_and(|(_, pid)| *pid == own));
    }
}
