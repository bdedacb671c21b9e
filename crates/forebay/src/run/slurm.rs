//! Slurm, as its commands show and take it: nodes, jobs, states. Nothing is linked; whatever `sbatch`,
//! `squeue`, `scontrol`, `sinfo` and `scancel` are in the path are called.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::job::{Job, Machine};
use super::plan::ComputeNode;
use crate::control::{ClusterStatus, NodeState};
use crate::error::Error;

/// A node of Slurm may have a feature of this name with its own name behind it: then jobs can prefer
/// it, and run elsewhere when it is busy.
pub const FEATURE: &str = "forebay_";

/// A node as `sinfo` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmNode {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: String,
    /// What it has for jobs.
    pub machine: Machine,
    /// Whether it takes jobs.
    pub usable: bool,
    /// Whether jobs can prefer it.
    pub preferable: bool,
}

/// Runs a command of Slurm and gives what it prints.
fn call(program: &str, args: &[&str], input: Option<&[u8]>) -> Result<String, Error> {
    let failed = |why: &dyn std::fmt::Display| Error::Failed(format!("{program}: {why}"));
    let mut child = Command::new(program)
        .args(args)
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(&format!("{error}; is Slurm installed here?")))?;
    if let (Some(input), Some(mut to)) = (input, child.stdin.take()) {
        to.write_all(input).map_err(|error| failed(&error))?;
    }
    let output = child.wait_with_output().map_err(|error| failed(&error))?;
    if !output.status.success() {
        return Err(failed(&String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The nodes that Slurm has.
pub fn nodes() -> Result<Vec<SlurmNode>, Error> {
    Ok(parse_nodes(&call("sinfo", &["-h", "-N", "-o", "%N|%o|%c|%m|%T|%f"], None)?))
}

fn parse_nodes(text: &str) -> Vec<SlurmNode> {
    let mut nodes: Vec<SlurmNode> = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.trim().split('|').collect();
        let [name, address, cores, memory_mb, state, features] = fields[..] else { continue };
        let (Ok(cores), Ok(memory_mb)) = (cores.parse(), memory_mb.parse::<u64>()) else {
            continue;
        };
        // A node is listed once for each partition.
        if nodes.iter().any(|node| node.name == name) {
            continue;
        }
        let usable = ["idle", "mixed", "allocated", "completing"]
            .iter()
            .any(|good| state.trim_end_matches(['*', '~', '#', '+', '-']) == *good);
        let own = format!("{FEATURE}{name}");
        nodes.push(SlurmNode {
            name: name.to_owned(),
            address: address.to_owned(),
            machine: Machine { cores, memory_bytes: memory_mb << 20 },
            usable: usable && !state.ends_with('*'),
            preferable: features.split(',').any(|feature| feature == own),
        });
    }
    nodes
}

/// The host of an address such as `tls://10.0.0.1:4000`.
fn host_of(address: &str) -> &str {
    let at = address.rsplit_once("//").map_or(address, |(_, at)| at);
    let host = at.rsplit_once(':').map_or(at, |(host, _)| host);
    host.trim_matches(['[', ']'])
}

/// The nodes of Slurm with the numbers that they have in the cluster of the mount, by their addresses
/// and names.
pub fn compute_nodes(slurm: &[SlurmNode], cluster: Option<&ClusterStatus>) -> Vec<ComputeNode> {
    let number = |node: &SlurmNode| {
        let there: Vec<_> =
            cluster?.nodes.iter().filter(|one| one.state == NodeState::Up).collect();
        let own = |host: &str| [&node.address, &node.name].iter().any(|name| *name == host);
        let found = there.iter().find(|one| own(host_of(&one.reach)));
        // By the name of its machine, if no other node runs there.
        let named = || {
            let mut named = there.iter().filter(|one| own(&one.host));
            named.next().filter(|_| named.next().is_none())
        };
        found.or_else(named).map(|one| one.node)
    };
    let usable = slurm.iter().filter(|node| node.usable && node.machine.cores > 0);
    usable
        .map(|node| ComputeNode {
            number: number(node),
            host: node.name.clone(),
            machine: node.machine,
        })
        .collect()
}

/// What is handed to `sbatch` of a job beside its script.
pub struct Submission<'a> {
    /// The job.
    pub job: &'a Job,
    /// The run that it is of.
    pub run: &'a str,
    /// Where lists and outputs are, which all nodes see.
    pub dir: &'a Path,
    /// Nodes that have its files; the first is the one that it was placed on.
    pub prefer: &'a [String],
    /// What the prolog and epilog are told.
    pub comment: Option<String>,
}

impl Submission<'_> {
    fn arguments(&self) -> Vec<String> {
        let job = self.job;
        let memory_mb = job.memory_bytes.div_ceil(1 << 20);
        let file = |end: &str| format!("{}/{}.{end}", self.dir.display(), job.name);
        let mut args = vec![
            "--parsable".into(),
            "--requeue".into(),
            "--ntasks=1".into(),
            "--open-mode=append".into(),
            format!("--job-name={}", job.name),
            format!("--cpus-per-task={}", job.cores),
            format!("--chdir={}", job.dir.display()),
            // A percent sign stands for something in these.
            format!("--output={}", file("out").replace('%', "%%")),
            format!("--error={}", file("err").replace('%', "%%")),
        ];
        if memory_mb > 0 {
            args.push(format!("--mem={memory_mb}M"));
        }
        if !self.prefer.is_empty() {
            let features: Vec<String> =
                self.prefer.iter().map(|node| format!("{FEATURE}{node}")).collect();
            args.push(format!("--prefer={}", features.join("|")));
        }
        args.extend(self.comment.as_ref().map(|comment| format!("--comment={comment}")));
        args
    }

    fn script(&self) -> Vec<u8> {
        let mut script = b"#!/bin/sh\n".to_vec();
        let mut set = |name: &str, value: &OsStr| {
            script.extend_from_slice(format!("export {name}=").as_bytes());
            script.extend_from_slice(&quoted(value));
            script.push(b'\n');
        };
        set("FOREBAY_RUN", self.run.as_ref());
        set("FOREBAY_JOB", self.job.name.as_ref());
        for (name, value) in &self.job.env {
            set(name, value.as_ref());
        }
        script.extend_from_slice(b"exec");
        for word in &self.job.command {
            script.push(b' ');
            script.extend_from_slice(&quoted(word));
        }
        script.push(b'\n');
        script
    }

    /// Hands the job over; its number with Slurm.
    pub fn submit(&self) -> Result<u64, Error> {
        let args = self.arguments();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let said = call("sbatch", &args, Some(&self.script()))?;
        let number = said.trim().split(';').next().unwrap_or_default();
        number.parse().map_err(|_| Error::Failed(format!("sbatch: no number of a job: {said:?}")))
    }
}

/// A word that a shell takes as it is.
fn quoted(word: &OsStr) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for byte in word.as_bytes() {
        match byte {
            b'\'' => quoted.extend_from_slice(b"'\\''"),
            byte => quoted.push(*byte),
        }
    }
    quoted.push(b'\'');
    quoted
}

/// How a job is with Slurm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It waits, with the reason.
    Pending(String),
    /// It runs on this node.
    Running(String),
    /// It has ended with this exit code, as shells have it.
    Ended(i32),
    /// Its node was lost, or it was stopped for others: it has not ended by itself.
    NodeLost(String),
    /// It has not ended by itself otherwise: cancelled, too much memory or time.
    Stopped(String),
}

/// How jobs are, by number.
pub fn look(numbers: &[u64]) -> Result<Vec<(u64, Seen)>, Error> {
    let list: Vec<String> = numbers.iter().map(u64::to_string).collect();
    let args = ["-h", "-t", "all", "-o", "%i|%T|%N|%r", "-j", &list.join(",")];
    // It fails if one of them is not known any more.
    let listed = call("squeue", &args, None).unwrap_or_default();
    let mut seen = Vec::new();
    for &number in numbers {
        let line = listed.lines().find(|line| {
            line.split_once('|').is_some_and(|(id, _)| id.trim().parse() == Ok(number))
        });
        let state = line.and_then(parse_line);
        let state = match state {
            Some(state) => state,
            None => {
                parse_ended(&call("scontrol", &["show", "job", "-o", &number.to_string()], None)?)
            }
        };
        seen.push((number, state));
    }
    Ok(seen)
}

/// A line of `squeue`; nothing for a job that has ended, of which it does not say how.
fn parse_line(line: &str) -> Option<Seen> {
    let mut fields = line.split('|').skip(1);
    let (state, node) = (fields.next()?.trim(), fields.next().unwrap_or_default().trim());
    let reason = fields.next().unwrap_or_default().trim();
    match state {
        "PENDING" | "CONFIGURING" | "REQUEUED" | "REQUEUE_HOLD" | "REQUEUE_FED" | "STAGE_IN" => {
            Some(Seen::Pending(reason.to_owned()))
        }
        "RUNNING" | "COMPLETING" | "SUSPENDED" | "SIGNALING" | "STAGE_OUT" | "RESIZING"
        | "STOPPED" => Some(Seen::Running(node.to_owned())),
        _ => None,
    }
}

/// What `scontrol show job -o` says of one that has ended.
fn parse_ended(line: &str) -> Seen {
    let value = |key: &str| {
        let mut words = line.split_whitespace();
        words.find_map(|word| word.strip_prefix(key)?.strip_prefix('=')).unwrap_or_default()
    };
    let (code, signal) = value("ExitCode").split_once(':').unwrap_or(("1", "0"));
    let code: i32 = code.parse().unwrap_or(1);
    let signal: i32 = signal.parse().unwrap_or(0);
    match value("JobState") {
        "COMPLETED" => Seen::Ended(0),
        "FAILED" if signal > 0 => Seen::Ended(128 + signal),
        "FAILED" => Seen::Ended(code.max(1)),
        "" => Seen::Stopped("Slurm does not know it any more".into()),
        state @ ("NODE_FAIL" | "PREEMPTED" | "BOOT_FAIL") => Seen::NodeLost(state.to_lowercase()),
        "PENDING" => Seen::Pending(value("Reason").to_owned()),
        "RUNNING" | "COMPLETING" => Seen::Running(value("NodeList").to_owned()),
        state => Seen::Stopped(state.to_lowercase()),
    }
}

/// Ends jobs.
pub fn cancel(numbers: &[u64]) {
    let list: Vec<String> = numbers.iter().map(u64::to_string).collect();
    let list: Vec<&str> = list.iter().map(String::as_str).collect();
    if let Err(error) = call("scancel", &list, None) {
        crate::commands::warn(&format!("jobs may go on: {error}"));
    }
}

/// What prolog and epilog of `dist/slurm` are told: the mount, and the file with the list of inputs.
pub fn comment(mountpoint: &Path, list: &Path) -> Option<String> {
    let text = OsString::from(format!("forebay {} {}", mountpoint.display(), list.display()));
    let plain = |byte: &u8| byte.is_ascii_graphic();
    let both = [mountpoint, list];
    let fit = both.iter().all(|path| path.as_os_str().as_bytes().iter().all(plain));
    fit.then(|| text.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::ClusterNode;

    #[test]
    fn nodes_of_slurm_when_parsed_then_once_each_with_their_numbers_in_the_cluster() {
        let text = "n1|10.77.0.1|4|2000|idle|forebay_n1,ds_a\nn1|10.77.0.1|4|2000|idle|forebay_n1\n\
                    n2|10.77.0.2|8|2000|mixed|(null)\nn3|10.77.0.3|8|2000|down*|(null)\n\
                    n4|n4|2|1000|idle|forebay_n5\nn6|n6|2|1000|idle|(null)\n";
        let nodes = parse_nodes(text);
        assert_eq!(nodes.len(), 5);
        assert!(nodes[0].preferable && !nodes[1].preferable && !nodes[3].preferable);
        assert_eq!(nodes[1].machine, Machine { cores: 8, memory_bytes: 2000 << 20 });
        let node = |node, reach: &str, host: &str, state| ClusterNode {
            node,
            reach: reach.into(),
            host: host.into(),
            state,
            ..ClusterNode::default()
        };
        let status = ClusterStatus {
            nodes: vec![
                node(1, "tls://10.77.0.2:4000", "vm", NodeState::Up),
                node(2, "tcp://10.77.0.1:4001", "vm", NodeState::Up),
                node(3, "", "n4", NodeState::Dead),
                node(5, "", "n6", NodeState::Up),
            ],
            ..ClusterStatus::default()
        };
        let compute_nodes = compute_nodes(&nodes, Some(&status));
        let numbers: Vec<_> =
            compute_nodes.iter().map(|one| (one.host.as_str(), one.number)).collect();
        let expected = [("n1", Some(2)), ("n2", Some(1)), ("n4", None), ("n6", Some(5))];
        assert_eq!(numbers, expected);
    }

    #[test]
    fn submission_then_arguments_and_a_script_that_a_shell_takes_as_it_is() {
        let job = Job {
            name: "a%b".into(),
            command: vec!["echo".into(), "it's $HOME".into()],
            dir: "/d".into(),
            cores: 3,
            memory_bytes: (5 << 20) + 1,
            ..Job::default()
        };
        let prefer = ["n2".to_owned(), "n3".to_owned()];
        let submission = Submission {
            job: &job,
            run: "r",
            dir: Path::new("/shared"),
            prefer: &prefer,
            comment: comment(Path::new("/mnt/x"), Path::new("/shared/a.list")),
        };
        let args = submission.arguments();
        for wanted in [
            "--cpus-per-task=3",
            "--mem=6M",
            "--prefer=forebay_n2|forebay_n3",
            "--output=/shared/a%%b.out",
            "--comment=forebay /mnt/x /shared/a.list",
        ] {
            assert!(args.iter().any(|arg| arg == wanted), "{wanted}: {args:?}");
        }
        let script = String::from_utf8(submission.script()).unwrap();
        assert!(script.ends_with("exec 'echo' 'it'\\''s $HOME'\n"), "{script}");
        assert_eq!(comment(Path::new("/mnt/a b"), Path::new("/x")), None);
    }

    #[test]
    fn states_of_slurm_when_parsed_then_what_became_of_the_job() {
        assert_eq!(parse_line("7|RUNNING|n2|None"), Some(Seen::Running("n2".into())));
        assert_eq!(parse_line("7|PENDING||Resources"), Some(Seen::Pending("Resources".into())));
        assert_eq!(parse_line("7|COMPLETED|n2|None"), None);
        let ended = |state: &str, code: &str| {
            parse_ended(&format!(
                "JobId=7 JobName=x JobState={state} Reason=None ExitCode={code} NodeList=n1"
            ))
        };
        assert_eq!(ended("COMPLETED", "0:0"), Seen::Ended(0));
        assert_eq!(ended("FAILED", "3:0"), Seen::Ended(3));
        assert_eq!(ended("FAILED", "0:9"), Seen::Ended(137));
        assert_eq!(ended("NODE_FAIL", "1:0"), Seen::NodeLost("node_fail".into()));
        assert_eq!(ended("TIMEOUT", "0:1"), Seen::Stopped("timeout".into()));
    }
}
