//! Sealing: all entries of all queues are filled with requests that nobody begins, so that the rings
//! can be closed without losing one. An entry that is ready for a request when its ring closes can
//! be given one at that moment, which then fails; one that holds a request is found by whoever
//! commits an answer to it, from whatever ring. Further requests wait in the kernel meanwhile.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::client;
use super::queue::Queue;

/// How often to look whether all is full.
const PAUSE: Duration = Duration::from_micros(200);

/// Seals the queues, whose threads rest, within `limit`.
///
/// # Errors
/// The mount point cannot be reached, or this process must not run on all CPUs. The queues are as
/// before then.
pub(crate) fn seal(queues: &[Arc<Queue>], point: &Path, limit: Duration) -> io::Result<()> {
    let until = Instant::now() + limit;
    let queues = in_use(queues)?;
    let Some(depth) = queues.first().map(|queue| queue.depth()) else { return Ok(()) };
    let cpus: Vec<usize> = queues.iter().map(|queue| queue.cpu).collect();
    for queue in &queues {
        queue.set_sealing(true);
    }
    let mut outcome = client::ask(point, &cpus, depth);
    while outcome.is_ok() && !queues.iter().all(|queue| queue.is_sealed()) {
        if Instant::now() >= until {
            outcome = Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "requests at the mount point do not come through, or not from every CPU",
            ));
        }
        std::thread::sleep(PAUSE);
    }
    if outcome.is_err() {
        for queue in &queues {
            queue.set_sealing(false);
        }
    }
    outcome
}

/// Whether the queues are sealed.
pub(crate) fn are_sealed(queues: &[Arc<Queue>]) -> bool {
    in_use(queues).is_ok_and(|queues| queues.iter().all(|queue| queue.is_sealed()))
}

/// Requests come from CPUs that are online only.
fn in_use(queues: &[Arc<Queue>]) -> io::Result<Vec<&Arc<Queue>>> {
    let online = online_cpus()?;
    Ok(queues.iter().filter(|queue| online.contains(&queue.cpu)).collect())
}

/// Sees to it that requests which came while a queue had no entries are served: they wait for the
/// next one to be answered.
///
/// # Errors
/// No process can be started.
pub(crate) fn wake(queues: usize, point: &Path) -> io::Result<()> {
    let cpus: Vec<usize> = (0..queues).collect();
    client::ask(point, &cpus, 1)
}

fn online_cpus() -> io::Result<Vec<usize>> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
    Ok(list(text.trim()))
}

/// The members of a list like `0-3,5`.
fn list(text: &str) -> Vec<usize> {
    let mut members = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse()) {
            members.extend(first..=last);
        }
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_as_the_kernel_writes_it() {
        assert_eq!(list("0"), [0]);
        assert_eq!(list("0-2,5,7-8"), [0, 1, 2, 5, 7, 8]);
        assert_eq!(list(""), [0; 0]);
        assert!(!online_cpus().expect("readable").is_empty());
    }
}
