//! Tasks that are migrated by the real CRIU, and what they need on mounts.
#![allow(dead_code, missing_docs, reason = "each user of this module needs a part of it")]

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::ring::{Ring, can_cluster};
use crate::site::{outcome, signal, wait_for};

/// The program CRIU, if there is one that works here. Else it is said why not.
fn criu() -> Option<PathBuf> {
    let named = std::env::var_os("FOREBAY_CRIU").map(PathBuf::from).filter(|path| path.exists());
    let usual = ["/usr/sbin/criu", "/usr/local/sbin/criu", "/usr/bin/criu"].map(PathBuf::from);
    let found = named.or_else(|| usual.into_iter().find(|path| path.exists()));
    let Some(program) = found else {
        eprintln!("skipped: CRIU is not installed, and FOREBAY_CRIU names none");
        return None;
    };
    let run = |argument: &str| outcome(Command::new(&program).arg(argument));
    let (version, check) = (run("--version").1, run("check"));
    let new = version.contains("Version: 4.") && !version.contains("Version: 4.0");
    if !new || check.0 != 0 {
        eprintln!("skipped: CRIU can't be used here: {version}{}", check.1);
        return None;
    }
    Some(program)
}

pub fn can_migrate() -> Option<PathBuf> {
    if can_cluster() { criu() } else { None }
}

/// Lines that a step writes.
pub const LINES: usize = 1000;

/// Computes and writes in steps: each begins when its file is there.
const STEPS: &str = r#"
cd "$1" && h=1 && i=0 && step=0
exec 3>>out
while [ $step -lt $2 ]; do
    until [ -e go.$step ]; do sleep 0.02; done
    step=$((step + 1)) end=$((step * 1000))
    while [ $i -lt $end ]; do
        h=$(((h * 1103515245 + i) % 2147483648)) i=$((i + 1))
        echo $i $h >&3
        [ $((i % 500)) != 0 ] || echo at $i $h
    done
    echo step $step >&2
done
exit 7
"#;

/// A task; ended with the value.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        // `timeout` hands it on, and what `forebay run` started ends with it.
        if matches!(self.0.try_wait(), Ok(None)) {
            signal(self.0.id().cast_signed(), rustix::process::Signal::TERM);
            let _ = self.0.wait();
        }
    }
}

/// In seconds: a task lives for as long as its test.
const TASK_LIMIT: &str = "600";

/// Two mounts of the same files, and what tasks need on them.
pub struct Bed {
    pub ring: Ring,
    pub criu: PathBuf,
}

impl Bed {
    pub fn new() -> Option<Bed> {
        let criu = can_migrate()?;
        let ring = Ring::talking(2);
        ring.mount_all(&["--writeback", "evict"]);
        fs::create_dir(ring.at(0, "dir")).unwrap();
        Some(Bed { ring, criu })
    }

    /// So many nodes, all but the first of which take tasks of others.
    pub fn hosting(nodes: usize) -> Option<Bed> {
        let criu = can_migrate()?;
        let ring = Ring::talking(nodes);
        ring.mount(0, &["--writeback", "evict"]);
        let bed = Bed { ring, criu };
        for node in 1..nodes {
            // The daemon has the variable that it was started with: what this names can be changed.
            bed.put_criu(node, &bed.criu);
            let named = bed.named_criu(node);
            let more = ["--writeback", "evict", "--host-tasks", "on"];
            bed.ring.mount_knowing(node, ("FOREBAY_CRIU", &named), &more);
        }
        fs::create_dir(bed.ring.at(0, "dir")).unwrap();
        Some(bed)
    }

    /// So many nodes that take tasks, each with a supervisor, and no CRIU anywhere.
    pub fn cooperating(nodes: usize) -> Option<Bed> {
        if !can_cluster() {
            return None;
        }
        let mut ring = Ring::talking(nodes);
        ring.supervised = true;
        let criu = ring.site.path("no-criu");
        for node in 0..nodes {
            let more = ["--writeback", "evict", "--host-tasks", "on"];
            ring.mount_knowing(node, ("FOREBAY_CRIU", &criu), &more);
        }
        fs::create_dir(ring.at(0, "dir")).unwrap();
        Some(Bed { ring, criu })
    }

    fn named_criu(&self, node: usize) -> PathBuf {
        self.ring.site.path("home").join(format!("criu{node}"))
    }

    /// Has a node restore tasks by this program.
    pub fn put_criu(&self, node: usize, program: &Path) {
        let named = self.named_criu(node);
        let _ = fs::remove_file(&named);
        std::os::unix::fs::symlink(program, &named).unwrap();
    }

    /// The number by which `forebay migrate` knows a node.
    pub fn number(&self, node: usize) -> String {
        let (code, text) = self.ring.site.run(&["cluster", "status", "--json", &self.mount(node)]);
        assert_eq!(code, 0, "{text}");
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["this"].to_string()
    }

    /// The processes that have tasks at a mount.
    pub fn hosts(&self, node: usize) -> Vec<i32> {
        let mount = self.mount(node);
        let all = fs::read_dir("/proc").unwrap().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let hosts = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            words.contains(&&b"host-task"[..]) && words.contains(&mount.as_bytes())
        };
        pids.filter(hosts).collect()
    }

    pub fn mount(&self, node: usize) -> String {
        self.ring.at(node, "").to_str().unwrap().trim_end_matches('/').to_owned()
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let program = env!("CARGO_BIN_EXE_forebay");
        let mut command = self.ring.site.command_within(TASK_LIMIT, program);
        command.args(args).env("FOREBAY_CRIU", &self.criu);
        command
    }

    /// `forebay run --migratable` with this as its job `t`.
    pub fn start(&self, job: &[&str]) -> Running {
        self.start_in(Path::new("."), job)
    }

    /// The same with this as its working directory.
    pub fn start_in(&self, dir: &Path, job: &[&str]) -> Running {
        let mount = self.mount(0);
        let run = ["run", "--migratable", "--mount", &mount, "--name", "t", "--"];
        let mut command = self.command(&[&run, job].concat());
        command.current_dir(dir);
        Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    pub fn start_steps(&self, steps: usize) -> Running {
        self.start_steps_in(Path::new("."), steps)
    }

    pub fn start_steps_in(&self, within: &Path, steps: usize) -> Running {
        let (dir, steps) = (format!("{}/dir", self.mount(0)), steps.to_string());
        self.start_in(within, &["sh", "-c", STEPS, "steps", &dir, &steps])
    }

    pub fn go(&self, step: usize) {
        fs::write(self.ring.at(0, &format!("dir/go.{step}")), b"").unwrap();
    }

    pub fn migrate(&self, target: &str) -> (i32, String) {
        outcome(&mut self.command(&["migrate", "t", target, "--json"]))
    }

    /// A task ends as one that stays where it is, and what it wrote is the same at each of so many nodes
    /// and in the backing store.
    pub fn ends_as_unmigrated(&self, task: Running, steps: usize, nodes: usize) {
        let (code, out, err) = end_of(task);
        let (file, expected_out, expected_err) = unmigrated(steps);
        assert_eq!((code, out, err), (Some(7), expected_out, expected_err));
        for node in 0..nodes {
            assert!(fs::read(self.ring.at(node, "dir/out")).unwrap() == file, "node {node}");
        }
        self.ring.umount_all();
        assert!(fs::read(self.ring.backing("dir/out")).unwrap() == file);
    }

    /// Waits until the task has its file open.
    pub fn wait_for_begin(&self) {
        let out = self.ring.at(0, "dir/out");
        assert!(wait_for(Duration::from_secs(60), || out.exists()), "the task does not begin");
    }

    pub fn lines(&self, node: usize) -> usize {
        fs::read(self.ring.at(node, "dir/out")).unwrap_or_default().split(|b| *b == b'\n').count()
    }
}

/// What a run of the steps comes to that stays where it is: its file, its output, its complaints.
pub fn unmigrated(steps: usize) -> (Vec<u8>, String, String) {
    let dir = tempfile::tempdir().unwrap();
    (0..steps).for_each(|step| fs::write(dir.path().join(format!("go.{step}")), b"").unwrap());
    let mut command = Command::new("sh");
    let output = command.args(["-c", STEPS, "steps"]).arg(dir.path()).arg(steps.to_string());
    let output = output.output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (fs::read(dir.path().join("out")).unwrap(), text(output.stdout), text(output.stderr))
}

pub fn end_of(mut task: Running) -> (Option<i32>, String, String) {
    let child = &mut task.0;
    let (mut out, mut err) = (String::new(), String::new());
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    (child.wait().unwrap().code(), out, err)
}

/// The process that keeps a task, and its children, also those that nobody has waited for.
pub fn keeper(task: &Running) -> (i32, Vec<i32>) {
    let children = |pid: i32| -> Vec<i32> {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        text.unwrap_or_default().split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    };
    let mut below = children(task.0.id().cast_signed()).into_iter().flat_map(children);
    let keeps = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == b"run-task")
    };
    let keeper = below.find(keeps).unwrap();
    (keeper, children(keeper))
}

/// A program that does as CRIU does, except for one command.
pub fn failing(dir: &Path, criu: &Path, command: &str, instead: &str) -> PathBuf {
    let path = dir.join(format!("no-{command}"));
    let text = format!(
        "#!/bin/sh\nif [ \"$1\" = {command} ]; then {instead}; fi\nexec {} \"$@\"\n",
        criu.display()
    );
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}
