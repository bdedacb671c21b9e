//! `run --via slurm`: jobs on the nodes of a cluster. Slurm runs them; which node each should get
//! follows from where the cluster has its files.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_schedule::queue::Queue;

use super::run::{Work, exit_code, is_batch, record, show_plan};
use super::{print_json, tell, warn};
use crate::cli::run::RunArgs;
use crate::control::{Client, ClusterReply, ClusterRequest, ClusterStatus, Reply, Request};
use crate::error::Error;
use crate::run::files::{self, Known};
use crate::run::job::{followers, waiting_for};
use crate::run::plan::{self, ComputeNode};
use crate::run::record::{Keeper, State, now_ms};
use crate::run::slurm::{self, Seen, SlurmNode, Submission};
use crate::signals;

/// How often Slurm is asked.
const PAUSE: Duration = Duration::from_secs(1);
/// A job whose node was lost is handed over again as often, beside its retries.
const LOST_NODES: u32 = 3;
/// Bytes of a job's output that are read at a time.
const PIECE: usize = 1 << 20;

struct Via<'a> {
    args: &'a RunArgs,
    work: Work,
    nodes: Vec<SlurmNode>,
    compute_nodes: Vec<ComputeNode>,
    queue: Queue,
    /// Which jobs wait for each one.
    after: Vec<Vec<usize>>,
    keeper: Keeper,
    dir: PathBuf,
    /// Jobs by their numbers with Slurm.
    running: BTreeMap<u64, usize>,
    lost_nodes: BTreeMap<usize, u32>,
    shown: BTreeMap<(usize, bool), u64>,
    last_code: i32,
}

/// Carries the command out.
pub(super) fn run(args: &RunArgs, mut work: Work) -> Result<u8, Error> {
    let nodes = slurm::nodes()?;
    let cluster = work.client.as_mut().and_then(cluster_of);
    let compute_nodes = slurm::compute_nodes(&nodes, cluster.as_ref());
    if compute_nodes.is_empty() {
        return Err(Error::Failed("Slurm has no node that takes jobs; see sinfo".into()));
    }
    if compute_nodes.iter().all(|compute_node| compute_node.number.is_none()) {
        warn("no node of Slurm is a node of the mount's cluster: jobs run wherever Slurm likes");
    }
    let queue = plan::queue(&work.jobs, &work.before, &work.inputs, &work.known, &compute_nodes)?;
    if args.dry_run {
        let placement = queue.placement();
        let names: Vec<String> = (0..work.jobs.len() as u64)
            .map(|job| placement.get(&job).map_or("-".into(), |at| compute_nodes[*at].host.clone()))
            .collect();
        let order: Vec<usize> = (0..compute_nodes.len())
            .flat_map(|node| queue.line(node))
            .map(|job| job as usize)
            .collect();
        return show_plan(args, &work, &order, Some(&names));
    }
    signals::block_ends()?;
    let keeper = Keeper::new(record(&work, "slurm"))?;
    let dir =
        args.logs.clone().unwrap_or_else(|| format!("forebay-run-{}", keeper.record.run).into());
    let dir = std::path::absolute(&dir).map_err(Error::io(dir.display().to_string()))?;
    std::fs::create_dir_all(&dir).map_err(Error::io(dir.display().to_string()))?;
    let after = followers(&work.before);
    let mut via = Via {
        args,
        work,
        nodes,
        compute_nodes,
        queue,
        after,
        keeper,
        dir,
        running: BTreeMap::new(),
        lost_nodes: BTreeMap::new(),
        shown: BTreeMap::new(),
        last_code: 0,
    };
    let signal = via.all();
    let record = via.keeper.end();
    let signal = signal?;
    if args.json {
        print_json(&record)?;
    }
    Ok(exit_code(&record, via.last_code, signal, is_batch(args)))
}

/// The nodes of the mount's cluster; nothing if it is in none.
fn cluster_of(client: &mut Client) -> Option<ClusterStatus> {
    let limit = Some(Duration::from_secs(10));
    match client.call(Request::Cluster(ClusterRequest::Status), limit, &mut |_| {}) {
        Ok(Reply::Cluster(ClusterReply::Status(status))) => Some(status),
        _ => None,
    }
}

impl Via<'_> {
    /// Hands all jobs over, those that wait for others when these have ended, and waits for the last;
    /// the signal, if one has ended the run.
    fn all(&mut self) -> Result<Option<i32>, Error> {
        let zero = Instant::now();
        loop {
            for (job, node) in self.queue.start(zero.elapsed().as_secs_f64()) {
                self.submit(job as usize, node);
            }
            self.keeper.write_soon();
            if self.running.is_empty() {
                return Ok(None);
            }
            let asked = signals::end_within(PAUSE).map_err(Error::io("waiting for jobs"))?;
            if let Some(signal) = asked {
                self.end();
                return Ok(Some(signal));
            }
            let numbers: Vec<u64> = self.running.keys().copied().collect();
            match slurm::look(&numbers) {
                Ok(seen) => seen.into_iter().for_each(|(number, seen)| self.take(number, seen)),
                // Its controller may be away for a moment; the jobs are not.
                Err(error) => warn(&error.to_string()),
            }
        }
    }

    fn submit(&mut self, at: usize, node: usize) {
        match self.submitted(at, node) {
            Ok(number) => {
                self.running.insert(number, at);
                let host = self.compute_nodes[node].host.clone();
                let record = self.keeper.job(at);
                (record.state, record.tries) = (State::Running, record.tries + 1);
                (record.pid, record.node) = (i64::try_from(number).ok(), Some(host.clone()));
                (record.began_ms, record.ended_ms, record.exit) = (Some(now_ms()), None, None);
                record.reason = None;
                let name = &self.work.jobs[at].name;
                self.say(&format!("{name}: job {number} of Slurm, meant for {host}"));
            }
            Err(error) => self.failed(at, 1, &error.to_string()),
        }
    }

    fn submitted(&mut self, at: usize, node: usize) -> Result<u64, Error> {
        let job = &self.work.jobs[at];
        let known = files::whereabouts(self.work.client.as_mut(), &job.inputs)?;
        let prefer = self.preferred(node, &known);
        let mut comment = None;
        if let Some(mountpoint) = self.work.client.as_ref().map(Client::mountpoint)
            && !self.args.no_hints
            && !job.inputs.is_empty()
        {
            let list = self.dir.join(format!("{}.list", job.name));
            write_list(&list, mountpoint, &job.inputs)?;
            write_list(&list.with_extension("made"), mountpoint, &job.outputs)?;
            comment = slurm::comment(mountpoint, &list);
        }
        let run = &self.keeper.record.run;
        Submission { job, run, dir: &self.dir, prefer: &prefer, comment }.submit()
    }

    /// The node that a job was placed on, and those that have all of its files as well.
    fn preferred(&self, node: usize, known: &[Known]) -> Vec<String> {
        let on_cluster: Vec<&Known> = known.iter().filter(|file| file.by_daemon).collect();
        let anywhere = on_cluster.iter().any(|file| !file.nodes.is_empty());
        let has_all = |compute_node: &ComputeNode| {
            compute_node.number.is_some_and(|number| {
                anywhere && on_cluster.iter().all(|file| file.nodes.contains(&number))
            })
        };
        let own = &self.compute_nodes[node];
        let others = self
            .compute_nodes
            .iter()
            .filter(|compute_node| compute_node.host != own.host && has_all(compute_node));
        let preferable =
            |name: &String| self.nodes.iter().any(|node| node.name == *name && node.preferable);
        let placed = Some(own).filter(|own| own.number.is_some());
        placed
            .into_iter()
            .chain(others)
            .map(|compute_node| compute_node.host.clone())
            .filter(preferable)
            .collect()
    }

    fn take(&mut self, number: u64, seen: Seen) {
        let Some(&at) = self.running.get(&number) else { return };
        self.show(at, !matches!(seen, Seen::Pending(_) | Seen::Running(_)));
        match seen {
            Seen::Pending(reason) => {
                let record = self.keeper.job(at);
                record.reason = (!reason.is_empty() && reason != "None").then_some(reason);
            }
            Seen::Running(node) => {
                let record = self.keeper.job(at);
                record.reason = None;
                if !node.is_empty() {
                    record.node = Some(node);
                }
            }
            Seen::Ended(code) => self.ended(number, at, code, None),
            Seen::Stopped(why) => self.ended(number, at, 1, Some(why)),
            Seen::NodeLost(why) => {
                let lost = self.lost_nodes.entry(at).or_default();
                *lost += 1;
                if *lost > LOST_NODES {
                    return self.ended(number, at, 1, Some(why));
                }
                self.running.remove(&number);
                self.say(&format!("{}: {why}, again", self.work.jobs[at].name));
                self.keeper.job(at).state = State::Waiting;
                self.queue.requeue(at as u64);
            }
        }
    }

    fn ended(&mut self, number: u64, at: usize, code: i32, stopped: Option<String>) {
        self.running.remove(&number);
        self.last_code = code;
        let record = self.keeper.job(at);
        (record.ended_ms, record.exit, record.pid) = (Some(now_ms()), Some(code), None);
        let job = &self.work.jobs[at];
        let missing = job.outputs.iter().find(|path| std::fs::symlink_metadata(path).is_err());
        let why = match (code, stopped, missing) {
            (0, None, None) => {
                self.keeper.job(at).state = State::Done;
                self.queue.finish(at as u64);
                let (done, total) = (self.keeper.record.count(State::Done), self.work.jobs.len());
                let node = self.keeper.record.jobs[at].node.clone().unwrap_or_default();
                return self.say(&format!("[{done}/{total}] {} done on {node}", job.name));
            }
            (_, Some(why), _) => why,
            (0, None, Some(path)) => format!("did not make {}", path.display()),
            (code, ..) => format!("exit code {code}"),
        };
        let tries = self.keeper.record.jobs[at].tries - self.lost_nodes.get(&at).unwrap_or(&0);
        if tries <= job.retries {
            self.say(&format!("{}: {why} (try {tries} of {}), again", job.name, job.retries + 1));
            let record = self.keeper.job(at);
            (record.state, record.reason) = (State::Waiting, Some(why));
            return self.queue.requeue(at as u64);
        }
        self.failed(at, if code == 0 { 1 } else { code }, &why);
    }

    fn failed(&mut self, at: usize, code: i32, why: &str) {
        self.say(&format!("{} failed: {why}", self.work.jobs[at].name));
        let record = self.keeper.job(at);
        (record.state, record.ended_ms) = (State::Failed, Some(now_ms()));
        (record.exit, record.reason) = (Some(code), Some(why.to_owned()));
        self.last_code = code;
        for waits in waiting_for(&self.after, at) {
            let reason = format!("waited for {}, which failed", self.work.jobs[at].name);
            let record = self.keeper.job(waits);
            (record.state, record.reason) = (State::Skipped, Some(reason));
            self.queue.finish(waits as u64);
        }
        self.queue.finish(at as u64);
        if self.args.fail_fast {
            let waiting: Vec<u64> = self.queue.placement().into_keys().collect();
            for job in waiting {
                let record = self.keeper.job(job as usize);
                (record.state, record.reason) =
                    (State::Cancelled, Some("another job failed".into()));
                self.queue.finish(job);
            }
        }
    }

    /// Prints what a job has written since the last time, if it does not go to files that were asked
    /// for. A line is shown when it is whole, or the job has ended.
    fn show(&mut self, at: usize, ended: bool) {
        if self.args.logs.is_some() {
            return;
        }
        let name = &self.work.jobs[at].name;
        for err in [false, true] {
            let path = self.dir.join(format!("{name}.{}", if err { "err" } else { "out" }));
            let from = self.shown.entry((at, err)).or_default();
            while let Ok(bytes) = read_from(&path, *from) {
                let last = bytes.iter().rposition(|byte| *byte == b'\n').map(|last| last + 1);
                let whole =
                    last.unwrap_or(if ended || bytes.len() == PIECE { bytes.len() } else { 0 });
                if whole == 0 {
                    break;
                }
                *from += whole as u64;
                let mut text = Vec::new();
                for line in bytes[..whole].split(|byte| *byte == b'\n').filter(|l| !l.is_empty()) {
                    text.extend_from_slice(format!("{name}: ").as_bytes());
                    text.extend_from_slice(line);
                    text.push(b'\n');
                }
                let _ = match err || self.args.json {
                    true => std::io::stderr().lock().write_all(&text),
                    false => std::io::stdout().lock().write_all(&text),
                };
            }
        }
    }

    /// The run is asked to end.
    fn end(&mut self) {
        self.say("ending the jobs");
        let numbers: Vec<u64> = self.running.keys().copied().collect();
        slurm::cancel(&numbers);
        for at in 0..self.work.jobs.len() {
            if matches!(self.keeper.record.jobs[at].state, State::Waiting | State::Running) {
                let record = self.keeper.job(at);
                (record.state, record.reason) =
                    (State::Cancelled, Some("the run was ended".into()));
            }
        }
    }

    fn say(&self, text: &str) {
        if !self.args.quiet {
            tell(text);
        }
    }
}

fn read_from(path: &Path, from: u64) -> std::io::Result<Vec<u8>> {
    let mut file = std::fs::File::open(path)?;
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(PIECE as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Files of a job below the mount, one path a line, for what is done on its node.
fn write_list(list: &Path, mountpoint: &Path, files: &[PathBuf]) -> Result<(), Error> {
    use std::os::unix::ffi::OsStrExt;
    let mut text = Vec::new();
    for path in files.iter().filter_map(|path| path.strip_prefix(mountpoint).ok()) {
        text.extend_from_slice(path.as_os_str().as_bytes());
        text.push(b'\n');
    }
    std::fs::write(list, text).map_err(Error::io(list.display().to_string()))
}
