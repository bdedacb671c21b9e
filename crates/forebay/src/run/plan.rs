//! The order of the jobs of a run, and where each runs: by `forebay-schedule`, from what is known of
//! where bytes are.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use forebay_schedule::queue::{Queue, Refused, Task};
use forebay_schedule::{Effort, Node, Policy};

use super::files::Known;
use super::job::{Job, Machine};
use crate::error::Error;

/// What the backing store is taken to give a node, in bytes a second: it only decides between jobs
/// that take long to fetch and jobs that take long to compute.
const STORE_RATE: f64 = 500e6;

/// A node that jobs may run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComputeNode {
    /// Its number in the cluster; none without one.
    pub number: Option<u16>,
    /// Its host.
    pub host: String,
    /// What it has for jobs.
    pub machine: Machine,
}

/// All inputs of the jobs, each once, in the order in which they are named first.
pub fn inputs_of(jobs: &[Job]) -> Vec<PathBuf> {
    let mut seen = std::collections::HashSet::new();
    let inputs = jobs.iter().flat_map(|job| &job.inputs);
    inputs.filter(|path| seen.insert(path.as_path())).cloned().collect()
}

/// The queue of a run, with all of its jobs placed and in order; `known` is of [`inputs_of`] them.
pub fn queue(
    jobs: &[Job],
    before: &[Vec<usize>],
    inputs: &[PathBuf],
    known: &[Known],
    compute_nodes: &[ComputeNode],
) -> Result<Queue, Error> {
    let alone = compute_nodes.len() == 1;
    let node = |compute_node: &ComputeNode| Node {
        slots: compute_node.machine.cores,
        memory_bytes: compute_node.machine.memory_bytes,
        store: STORE_RATE,
        ..Node::with_rate(if alone { f64::INFINITY } else { 2.0 * STORE_RATE })
    };
    let nodes = compute_nodes.iter().map(node).collect();
    let mut queue = Queue::new(nodes, f64::INFINITY).map_err(unsound)?;
    let mut numbers: HashMap<&PathBuf, u64> = HashMap::new();
    for (at, path) in inputs.iter().enumerate() {
        numbers.insert(path, at as u64);
        let (size, holders) = location(&known[at], compute_nodes);
        queue.file(at as u64, size, &holders);
    }
    for path in jobs.iter().flat_map(|job| &job.outputs) {
        let next = numbers.len() as u64;
        numbers.entry(path).or_insert(next);
    }
    for job in in_order(jobs, before)? {
        let spec = &jobs[job];
        let of = |paths: &[PathBuf]| paths.iter().map(|path| numbers[path]).collect();
        let task = Task {
            compute_s: spec.seconds,
            reads: of(&spec.inputs),
            writes: of(&spec.outputs),
            after: before[job].iter().map(|earlier| *earlier as u64).collect(),
            slots: spec.cores,
            memory_bytes: spec.memory_bytes,
        };
        queue.arrive(0.0, job as u64, task).map_err(|error| refused(&error, &spec.name))?;
    }
    queue.replan(0.0, Policy::EctLs, Effort::default()).map_err(|error| refused(&error, "?"))?;
    queue.order_for_fetching();
    Ok(queue)
}

/// The bytes of a file that are to be brought, and to which nodes they need not be. Of a file that is
/// there in part, on a single node the rest alone counts.
fn location(known: &Known, compute_nodes: &[ComputeNode]) -> (u64, Vec<usize>) {
    if let [_] = compute_nodes {
        let missing = known.size - known.resident;
        // What the daemon knows nothing of is read where it is.
        let there = missing == 0 || !known.by_daemon;
        return (missing, if there { vec![0] } else { vec![] });
    }
    let has = |compute_node: &ComputeNode| {
        compute_node.number.is_some_and(|number| known.nodes.contains(&number))
    };
    let holders = compute_nodes.iter().enumerate().filter(|(_, compute_node)| has(compute_node));
    (known.size, holders.map(|(at, _)| at).collect())
}

/// The jobs so that each comes after those that it waits for.
fn in_order(jobs: &[Job], before: &[Vec<usize>]) -> Result<Vec<usize>, Error> {
    let mut waits: Vec<usize> = before.iter().map(Vec::len).collect();
    let mut after: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (job, earlier) in before.iter().enumerate() {
        earlier.iter().for_each(|other| after.entry(*other).or_default().push(job));
    }
    let mut ready: std::collections::VecDeque<usize> =
        (0..jobs.len()).filter(|job| waits[*job] == 0).collect();
    let mut order = Vec::with_capacity(jobs.len());
    while let Some(job) = ready.pop_front() {
        order.push(job);
        for &next in after.get(&job).into_iter().flatten() {
            waits[next] -= 1;
            if waits[next] == 0 {
                ready.push_back(next);
            }
        }
    }
    match waits.iter().position(|waits| *waits > 0) {
        Some(job) => {
            let name = &jobs[job].name;
            Err(Error::Usage(format!("job {name:?} waits for itself, directly or through others")))
        }
        None => Ok(order),
    }
}

fn refused(error: &Refused, name: &str) -> Error {
    Error::Usage(format!("job {name:?}: {error}"))
}

fn unsound(error: forebay_schedule::Unsound) -> Error {
    Error::Usage(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, inputs: &[&str], outputs: &[&str]) -> Job {
        Job {
            name: name.into(),
            command: vec!["true".into()],
            inputs: inputs.iter().map(PathBuf::from).collect(),
            outputs: outputs.iter().map(PathBuf::from).collect(),
            cores: 1,
            ..Job::default()
        }
    }

    fn compute_node(number: Option<u16>, cores: u32) -> ComputeNode {
        let machine = Machine { cores, memory_bytes: u64::MAX };
        ComputeNode { number, host: format!("n{number:?}"), machine }
    }

    fn known(size: u64, resident: u64, nodes: &[u16]) -> Known {
        Known { size, resident, by_daemon: true, nodes: nodes.to_vec() }
    }

    #[test]
    fn order_on_one_node_then_what_is_resident_and_shared_comes_first() {
        let jobs = [
            job("cold", &["/c"], &[]),
            job("shares", &["/c", "/d"], &[]),
            job("half", &["/h"], &[]),
            job("warm", &["/w"], &[]),
            job("elsewhere", &["/e"], &[]),
        ];
        let inputs = inputs_of(&jobs);
        let files = [
            known(900, 0, &[]),
            known(10, 0, &[]),
            known(1000, 600, &[]),
            known(5000, 5000, &[]),
            Known { size: 9000, ..Known::default() },
        ];
        let before = vec![vec![]; jobs.len()];
        let queue = queue(&jobs, &before, &inputs, &files, &[compute_node(None, 2)]).unwrap();
        let order: Vec<&str> = queue.line(0).map(|job| jobs[job as usize].name.as_str()).collect();
        assert_eq!(order, ["warm", "elsewhere", "half", "cold", "shares"]);
    }

    #[test]
    fn jobs_of_a_cluster_then_they_go_to_the_nodes_that_have_their_files() {
        let jobs = [job("a", &["/a"], &["/x"]), job("b", &["/b"], &[]), job("c", &["/x"], &[])];
        let before = [vec![], vec![], vec![0]];
        let inputs = inputs_of(&jobs);
        let files = [known(1 << 30, 0, &[7]), known(1 << 30, 0, &[4]), Known::default()];
        let compute_nodes = [compute_node(Some(4), 1), compute_node(Some(7), 1)];
        let queue = queue(&jobs, &before, &inputs, &files, &compute_nodes).unwrap();
        let placed = queue.placement();
        assert_eq!((placed[&0], placed[&1]), (1, 0));
    }

    #[test]
    fn jobs_that_wait_for_each_other_then_one_is_named() {
        let jobs = [job("a", &["/y"], &["/x"]), job("b", &["/x"], &["/y"])];
        let error = in_order(&jobs, &[vec![1], vec![0]]).unwrap_err().to_string();
        assert!(error.contains("job \"a\" waits for itself"), "{error}");
    }
}
