//! Which task is to move, by what nodes have seen: a pure function of that and of a clock.

use std::collections::BTreeMap;

use forebay_profile::flow::{self, Terms};
use forebay_profile::{Access, Config, Kind, Migration, Node, Origin, Profiler};

use super::{KeptTask, Order, SeenEntry, View};

/// Blocks of a row, and bytes of a block, as nodes record them.
const ROW_BLOCKS: u64 = 32;
/// For so long a task that has moved, or was to, stays.
const COOL_DOWN_S: f64 = 60.0;

/// What moving costs and saves between real nodes: images move, and tasks stand still, as was measured
/// (docs/guide/jobs.md); what is read over the network is assumed to come at 100 MB/s.
pub fn terms() -> Terms {
    Terms {
        image: 100e6,
        downtime_s: 1.0,
        horizon_s: COOL_DOWN_S,
        cool_down_s: COOL_DOWN_S,
        exchange: false,
        ..Terms::default()
    }
}

/// Plans, and remembers what it needs for the next one.
pub struct Planner {
    terms: Terms,
    /// What tasks had got from elsewhere, and when, at the last scan.
    before: BTreeMap<(u16, String), (u64, u64)>,
    /// When tasks were told to move.
    told: BTreeMap<String, u64>,
}

/// A task of all views.
struct Known<'a> {
    node: u16,
    image_bytes: u64,
    cpu: f64,
    /// Accesses a second that came from elsewhere.
    elsewhere: f64,
    entries: Vec<SeenEntry>,
    kept: Option<(u16, &'a KeptTask)>,
}

impl Default for Planner {
    fn default() -> Self {
        Self::new(terms())
    }
}

impl Planner {
    /// One that has seen nothing yet.
    pub fn new(terms: Terms) -> Self {
        Self { terms, before: BTreeMap::new(), told: BTreeMap::new() }
    }

    /// The one move of a scan, if any pays. `now` is in nanoseconds of any clock.
    pub fn plan(&mut self, views: &[View], now: u64) -> Option<Order> {
        let tasks = self.tasks(views);
        let mut profiler = Profiler::new(Config::default());
        let names: Vec<&String> = tasks.keys().collect();
        for (number, (name, task)) in (0u64..).zip(&tasks) {
            record(&mut profiler, number, task);
            if let Some(at) = self.stays_since(name, task, now) {
                profiler.moved(number, u32::from(task.node), at);
            }
        }
        let nodes = nodes(views);
        let plan = flow::plan(&profiler, &nodes, &self.terms, now);
        let moves = plan.iter().filter(|moves| moves.len() == 1).flatten();
        let name_of = |number: u64| usize::try_from(number).ok().and_then(|at| names.get(at));
        let order = moves.filter_map(|moved| {
            let name = *name_of(moved.task)?;
            let task = &tasks[name];
            self.pays(task).then(|| order(moved, task, name_of(moved.with)?)).flatten()
        });
        let order = order.into_iter().next()?;
        self.told.insert(label(&order.run, &order.job), now);
        Some(order)
    }

    /// What each task is, and where.
    fn tasks<'a>(&mut self, views: &'a [View]) -> BTreeMap<String, Known<'a>> {
        let mut kept = BTreeMap::new();
        for view in views {
            for task in &view.kept {
                kept.insert(label(&task.run, &task.job), (view.node, task));
            }
        }
        let mut tasks: BTreeMap<String, Known<'a>> = BTreeMap::new();
        let mut seen = BTreeMap::new();
        for view in views {
            for task in &view.tasks {
                let key = (view.node, task.label.clone());
                let last = self.before.get(&key).copied();
                seen.insert(key, (view.at_ms, task.elsewhere));
                let name = without_rank(&task.label);
                let kept = kept.get(name).copied();
                let place = kept.map_or(view.node, |(at, kept)| kept.node.unwrap_or(at));
                if place != view.node {
                    // It was there, and what it did there is past.
                    continue;
                }
                let name = match kept {
                    Some(_) => name.to_owned(),
                    // Two machines may have processes of one name and number.
                    None => format!("{name} at node {}", view.node),
                };
                let known = tasks.entry(name).or_insert_with(|| Known {
                    node: view.node,
                    image_bytes: task.image_bytes,
                    cpu: task.cpu,
                    elsewhere: 0.0,
                    entries: Vec::new(),
                    kept,
                });
                known.entries.extend(&task.entries);
                known.elsewhere += rate(last, (view.at_ms, task.elsewhere));
            }
        }
        self.before = seen;
        tasks.values_mut().for_each(|task| task.entries.sort_by_key(|entry| entry.0));
        tasks
    }

    /// Since when a task must stay, if it must: one that nobody can move has only just come.
    fn stays_since(&self, name: &str, task: &Known<'_>, now: u64) -> Option<u64> {
        let Some((_, kept)) = task.kept else { return Some(now) };
        let ago = kept.moved_ms_ago.map(|ms| now.saturating_sub(ms.saturating_mul(1_000_000)));
        ago.max(self.told.get(name).copied())
    }

    /// Whether what the task gets from elsewhere is worth a move. What it reads again and again from the
    /// node's own tier is common to it and others, too, and moving would save nothing of that.
    fn pays(&self, task: &Known<'_>) -> bool {
        let terms = &self.terms;
        let bytes = task.elsewhere * terms.block_bytes as f64;
        let saved = bytes * (1.0 / terms.remote - 1.0 / terms.local) * terms.horizon_s;
        let cost = task.image_bytes as f64 / terms.image + terms.downtime_s;
        saved > terms.margin * cost
    }
}

fn rate(before: Option<(u64, u64)>, now: (u64, u64)) -> f64 {
    let Some(before) = before else { return 0.0 };
    // Of another recording the count begins anew.
    let passed_s = now.0.saturating_sub(before.0) as f64 / 1000.0;
    let count = now.1.saturating_sub(before.1) as f64;
    if passed_s > 0.0 { count / passed_s } else { 0.0 }
}

fn record(profiler: &mut Profiler, number: u64, task: &Known<'_>) {
    let node = u32::from(task.node);
    profiler.task(number, node, task.image_bytes, task.cpu);
    let origin = Origin { node, task: Some(number), handle: 0 };
    for &(at, file, piece, reads, writes) in &task.entries {
        let block = piece.saturating_mul(ROW_BLOCKS);
        for (kind, count) in [(Kind::Read, reads), (Kind::Write, writes)] {
            if count > 0 {
                profiler.record(&Access { at, origin, file, block, kind, count });
            }
        }
    }
}

/// All nodes by number; those that are not there, or take no tasks, have no slots.
fn nodes(views: &[View]) -> Vec<Node> {
    let last = views.iter().map(|view| usize::from(view.node)).max().unwrap_or(0);
    let none = Node { slots: 0, cores: 1.0, memory_bytes: 0, free_bytes: 0 };
    let mut nodes = vec![none; last + 1];
    for view in views {
        nodes[usize::from(view.node)] = Node {
            slots: if view.hosts { view.cores.max(1) * 2 } else { 0 },
            cores: f64::from(view.cores.max(1)),
            memory_bytes: view.memory_bytes,
            free_bytes: view.free_bytes,
        };
    }
    nodes
}

fn order(moved: &Migration, task: &Known<'_>, with: &str) -> Option<Order> {
    let (keeper, kept) = task.kept?;
    let number = |node: u32| u16::try_from(node).ok();
    Some(Order {
        run: kept.run.clone(),
        job: kept.job.clone(),
        keeper,
        from: number(moved.from)?,
        to: number(moved.to)?,
        with: with.to_owned(),
        worth_s: moved.worth,
    })
}

/// What a job of a run is called where accesses are recorded.
pub fn label(run: &str, job: &str) -> String {
    format!("{job} of run {run}")
}

/// The ranks of a job are one task.
pub fn without_rank(label: &str) -> &str {
    let Some((name, rank)) = label.rsplit_once(" rank ") else { return label };
    match rank.bytes().all(|byte| byte.is_ascii_digit()) && name.contains(" of run ") {
        true => name,
        false => label,
    }
}

#[cfg(test)]
mod tests {
    use super::super::SeenTask;
    use super::*;

    const S: u64 = 1_000_000_000;

    /// 1,200 blocks of a file within two seconds.
    fn entries(file: u64, write: bool) -> Vec<SeenEntry> {
        let entry =
            |at: u64| (at * S / 20, file, at, u32::from(!write) * 30, u32::from(write) * 30);
        (0..40).map(entry).collect()
    }

    fn seen(label: &str, file: u64, write: bool, elsewhere: u64) -> SeenTask {
        let (label, entries) = (label.into(), entries(file, write));
        SeenTask { label, image_bytes: 20 << 20, cpu: 0.2, elsewhere, entries }
    }

    fn kept(job: &str) -> KeptTask {
        KeptTask { run: "r".into(), job: job.into(), ..KeptTask::default() }
    }

    fn view(node: u16, at_ms: u64, tasks: Vec<SeenTask>, kept: Vec<KeptTask>) -> View {
        let (memory_bytes, free_bytes) = (8 << 30, 4 << 30);
        View { node, at_ms, cores: 2, memory_bytes, free_bytes, hosts: true, tasks, kept }
    }

    /// A reader at node 1 of what a task at node 2 writes.
    fn apart(at_ms: u64, elsewhere: u64) -> [View; 2] {
        let reader = seen("reader of run r", 7, false, elsewhere);
        let writer = seen("writer of run w", 7, true, 0);
        [view(1, at_ms, vec![reader], vec![kept("reader")]), view(2, at_ms, vec![writer], vec![])]
    }

    #[test]
    fn reader_when_what_it_reads_is_written_elsewhere_then_moves_there_once() {
        let mut planner = Planner::default();
        assert_eq!(planner.plan(&apart(0, 0), 0), None, "nobody knows yet what it gets from there");
        let order = planner.plan(&apart(10_000, 6000), 10 * S).expect("it pays");
        assert_eq!((order.task().as_str(), order.keeper), ("r/reader", 1));
        assert_eq!((order.from, order.to), (1, 2));
        assert_eq!(order.with, "writer of run w at node 2");
        // Whatever became of that, it is left alone for a while.
        assert_eq!(planner.plan(&apart(20_000, 12_000), 20 * S), None);
        assert!(planner.plan(&apart(80_000, 48_000), 80 * S).is_some());
    }

    #[test]
    fn tasks_when_nothing_would_be_saved_then_nobody_moves() {
        let plan = |views: &dyn Fn(u64, u64) -> Vec<View>| {
            let mut planner = Planner::default();
            let plans =
                (0..5).map(|scan| planner.plan(&views(scan * 10_000, scan * 6000), scan * 10 * S));
            plans.flatten().next()
        };
        assert!(plan(&|at, count| apart(at, count).to_vec()).is_some());
        // What both have read before is on the tiers of both.
        assert_eq!(plan(&|at, _| apart(at, 0).to_vec()), None);
        let change = |at: u64, count: u64, change: &dyn Fn(&mut [View; 2])| {
            let mut views = apart(at, count);
            change(&mut views);
            views.to_vec()
        };
        type Change<'a> = &'a dyn Fn(&mut [View; 2]);
        let unlike: &[(&str, Change<'_>)] = &[
            ("other files", &|views| views[1].tasks[0].entries = entries(8, true)),
            ("nobody keeps it", &|views| views[0].kept.clear()),
            ("it has just moved", &|views| views[0].kept[0].moved_ms_ago = Some(0)),
            ("no memory", &|views| views[1].free_bytes = 1 << 20),
            ("more than a quarter", &|views| views[1].memory_bytes = 40 << 20),
            ("takes no tasks", &|views| views[1].hosts = false),
            ("it is elsewhere", &|views| views[0].kept[0].node = Some(3)),
            ("too large to pay", &|views| views[0].tasks[0].image_bytes = 900 << 20),
        ];
        for (why, how) in unlike {
            assert_eq!(plan(&|at, count| change(at, count, how)), None, "{why}");
        }
    }

    #[test]
    fn ranks_when_of_one_job_then_one_task_and_other_names_stay() {
        assert_eq!(without_rank("a of run r rank 3"), "a of run r");
        assert_eq!(without_rank("mpi j rank 3"), "mpi j rank 3");
        assert_eq!(without_rank("a of run rank x"), "a of run rank x");
        assert_eq!(rate(Some((1000, 5)), (3000, 25)), 10.0);
        assert_eq!(rate(Some((1000, 5)), (1000, 25)), 0.0);
        assert_eq!(rate(None, (1000, 25)), 0.0);
    }
}
