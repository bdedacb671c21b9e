//! The patterns of all tasks.

use std::collections::{BTreeMap, VecDeque};

use crate::access::{Access, Kind};
use crate::diagram::Grid;
use crate::pattern::{Pattern, Row, RowAccesses};

/// What is recorded, and how it is compared. The defaults are the paper's.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Events of a window.
    pub window: u32,
    /// Blocks of a row.
    pub row_blocks: u64,
    /// Intervals of a diagram.
    pub intervals: usize,
    /// N of the compressed diagrams.
    pub compress: usize,
    /// What similarities must be larger than.
    pub threshold: f64,
    /// How high diagrams are.
    pub grid: Grid,
    /// Patterns that are kept of each task.
    pub patterns: usize,
    /// Memory that patterns may take up in all.
    pub memory_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window: 256,
            row_blocks: 32,
            intervals: 8,
            compress: 2,
            threshold: 0.90,
            grid: Grid::Touched,
            patterns: 3,
            memory_bytes: 64 << 20,
        }
    }
}

impl Config {
    /// Tasks that the memory suffices for.
    #[must_use]
    pub fn most_tasks(&self) -> usize {
        let windows = self.patterns.saturating_add(1);
        let each =
            (self.window as usize).saturating_mul(windows).saturating_mul(size_of::<RowAccesses>());
        self.memory_bytes / each.saturating_add(1024)
    }
}

/// A task.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Where it runs.
    pub node: u32,
    /// What moving it would carry.
    pub image_bytes: u64,
    /// Processors that it keeps busy.
    pub cpu: f64,
    /// When it last moved.
    pub moved_at: Option<u64>,
    open: Pattern,
    kept: VecDeque<Pattern>,
    since_scan: u64,
}

impl Task {
    /// Its patterns, the newest first.
    pub fn patterns(&self) -> impl ExactSizeIterator<Item = &Pattern> {
        self.kept.iter()
    }

    /// Its patterns, the newest first, with the window that is not full yet before them.
    pub fn recent(&self) -> impl Iterator<Item = &Pattern> {
        std::iter::once(&self.open).chain(&self.kept)
    }

    /// All that it did in the newest whole window (equation 2); 0 if there is none.
    #[must_use]
    pub fn scale(&self) -> u64 {
        self.kept.front().map_or(0, Pattern::scale)
    }
}

/// Events in, patterns out.
#[derive(Debug, Clone)]
pub struct Profiler {
    config: Config,
    tasks: BTreeMap<u64, Task>,
    handles: BTreeMap<(u32, u64), u64>,
    unattributed: u64,
    left_out: u64,
}

/// Handles that are remembered for each task that there is room for.
const HANDLES: usize = 64;

impl Profiler {
    /// Nothing recorded yet.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let (tasks, handles) = (BTreeMap::new(), BTreeMap::new());
        Self { config, tasks, handles, unattributed: 0, left_out: 0 }
    }

    /// How it records and compares.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// A task is on a node, now or again; what is known of it stays. False if there is no room for
    /// it, and nothing of it is recorded.
    pub fn task(&mut self, task: u64, node: u32, image_bytes: u64, cpu: f64) -> bool {
        if let Some(known) = self.tasks.get_mut(&task) {
            (known.node, known.image_bytes, known.cpu) = (node, image_bytes, cpu);
            return true;
        }
        if self.tasks.len() >= self.config.most_tasks() {
            self.left_out += 1;
            return false;
        }
        let (open, kept) = (Pattern::default(), VecDeque::new());
        let new = Task { node, image_bytes, cpu, moved_at: None, open, kept, since_scan: 0 };
        self.tasks.insert(task, new);
        true
    }

    /// A task has moved.
    pub fn moved(&mut self, task: u64, to: u32, at: u64) {
        if let Some(task) = self.tasks.get_mut(&task) {
            (task.node, task.moved_at) = (to, Some(at));
        }
    }

    /// A task is gone.
    pub fn ended(&mut self, task: u64) {
        self.tasks.remove(&task);
        self.handles.retain(|_, owner| *owner != task);
    }

    /// A task has opened a file. What comes by this handle is its, also when nobody says so.
    pub fn opened(&mut self, node: u32, handle: u64, task: u64) {
        if self.handles.len() < self.config.most_tasks().saturating_mul(HANDLES) {
            self.handles.insert((node, handle), task);
        }
    }

    /// A handle is closed.
    pub fn closed(&mut self, node: u32, handle: u64) {
        self.handles.remove(&(node, handle));
    }

    /// Something was accessed. A task that was not told of is one from now on.
    pub fn record(&mut self, access: &Access) {
        let origin = access.origin;
        let owner =
            origin.task.or_else(|| self.handles.get(&(origin.node, origin.handle)).copied());
        let Some(task) = owner else {
            self.unattributed = self.unattributed.saturating_add(u64::from(access.count));
            return;
        };
        if !self.tasks.contains_key(&task) && !self.task(task, origin.node, 0, 1.0) {
            return;
        }
        let (window, patterns) = (self.config.window.max(1), self.config.patterns.max(1));
        let Some(known) = self.tasks.get_mut(&task) else { return };
        let piece = access.block / self.config.row_blocks.max(1);
        let row = Row { file: access.file, piece };
        known.since_scan = known.since_scan.saturating_add(u64::from(access.count));
        // Of very many hits only what fills all patterns matters.
        let most = u64::from(window).saturating_mul(patterns as u64 + 1);
        let mut left = u64::from(access.count).min(most);
        while left > 0 {
            let room = u64::from(window) - known.open.events;
            let count = left.min(room) as u32;
            left -= u64::from(count);
            let (reads, writes) = match access.kind {
                Kind::Read => (count, 0),
                Kind::Write => (0, count),
            };
            known.open.add(RowAccesses { at: access.at, row, reads, writes });
            if known.open.events >= u64::from(window) {
                known.kept.truncate(patterns - 1);
                known.kept.push_front(std::mem::take(&mut known.open));
            }
        }
    }

    /// The tasks, by number.
    pub fn tasks(&self) -> impl Iterator<Item = (u64, &Task)> {
        self.tasks.iter().map(|(number, task)| (*number, task))
    }

    /// A task.
    #[must_use]
    pub fn get(&self, task: u64) -> Option<&Task> {
        self.tasks.get(&task)
    }

    /// Events of nobody, and tasks that there was no room for.
    #[must_use]
    pub fn lost(&self) -> (u64, u64) {
        (self.unattributed, self.left_out)
    }

    /// Whether two tasks have had two windows of events since the last scan.
    #[must_use]
    pub fn due(&self) -> bool {
        let enough = 2 * u64::from(self.config.window.max(1));
        self.tasks.values().filter(|task| task.since_scan >= enough).take(2).count() == 2
    }

    /// A scan was made.
    pub fn scanned(&mut self) {
        self.tasks.values_mut().for_each(|task| task.since_scan = 0);
    }
}
