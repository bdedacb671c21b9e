//! Who should move, as the paper has it: similar tasks on different nodes.

use std::cmp::Reverse;

use crate::diagram;
use crate::profiler::{Config, Profiler, Task};
use crate::{Migration, Node, has_memory};

/// The similarity of two tasks: the greatest of their patterns, the newest with the newest and so
/// on, of those that pass both steps.
#[must_use]
pub fn similarity(config: &Config, a: &Task, b: &Task) -> Option<f64> {
    let pairs = a.patterns().zip(b.patterns());
    let similar = pairs.filter_map(|(a, b)| {
        let (a, b) = diagram::pair(a, b, config.grid, config.intervals)?;
        diagram::similar(&a, &b, config.compress, config.threshold)
    });
    similar.max_by(f64::total_cmp)
}

/// The one migration of a scan: the tasks by their scales, the largest first; each is compared with
/// those after it on other nodes; the first that is similar, whose image the larger one's node has
/// the memory for, and for which it has a slot, moves there.
#[must_use]
pub fn plan(profiler: &Profiler, nodes: &[Node]) -> Option<Migration> {
    let mut tasks: Vec<(u64, &Task)> =
        profiler.tasks().filter(|(_, task)| task.scale() > 0).collect();
    tasks.sort_by_key(|(number, task)| (Reverse(task.scale()), *number));
    let on = |node: u32| profiler.tasks().filter(|(_, task)| task.node == node).count();
    for (at, (with, larger)) in tasks.iter().enumerate() {
        let Some(node) = nodes.get(larger.node as usize) else { continue };
        if on(larger.node) >= node.slots as usize {
            continue;
        }
        for (task, smaller) in &tasks[at + 1..] {
            if smaller.node == larger.node || !has_memory(node, smaller.image_bytes) {
                continue;
            }
            if let Some(worth) = similarity(profiler.config(), larger, smaller) {
                let (from, to) = (smaller.node, larger.node);
                return Some(Migration { task: *task, from, to, with: *with, worth });
            }
        }
    }
    None
}
