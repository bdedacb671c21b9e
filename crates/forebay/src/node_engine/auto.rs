//! The thread of a daemon by which tasks move to their data, and what it answers other nodes.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use forebay::config::MountConfig;
use forebay::control::AutoMigrations;
use forebay::migrate::auto::plan::{Planner, without_rank};
use forebay::migrate::auto::usage::Meter;
use forebay::migrate::auto::{History, KeptTask, Order, Question, SeenTask, Told, View};
use forebay::migrate::protocol::{self, Ask};
use forebay_node::Node;
use parking_lot::Mutex;

/// How long another node may take to say what it has seen.
const WITHIN: Duration = Duration::from_secs(10);
/// Between two looks whether the mount has ended.
const LOOK: Duration = Duration::from_millis(100);
/// Tasks of a node that are told of, the busiest.
const MAX_TASKS: usize = 128;
/// What was accessed longer ago than this is past.
const PAST: Duration = Duration::from_secs(60);

/// What this daemon knows of migrations that nobody asks for.
pub struct Auto {
    config: MountConfig,
    interval: Duration,
    zero: Instant,
    meter: Mutex<Meter>,
    history: Mutex<History>,
}

impl Auto {
    /// What it has done so far.
    pub fn report(&self) -> AutoMigrations {
        let history = self.history.lock();
        AutoMigrations {
            interval_ms: u64::try_from(self.interval.as_millis()).unwrap_or(u64::MAX),
            plans: history.plans,
            scans: history.scans,
            nodes: history.nodes as u64,
            migrations: history.migrations.iter().cloned().collect(),
        }
    }
}

/// Begins, if the mount was told so.
pub fn start(node: &Arc<Node>, config: &MountConfig) -> Option<Arc<Auto>> {
    let interval = config.cluster.as_ref()?.auto_migrate?;
    let (config, zero) = (config.clone(), Instant::now());
    let (meter, history) = (Mutex::default(), Mutex::default());
    let auto = Arc::new(Auto { config, interval, zero, meter, history });
    let (weak, answering) = (Arc::downgrade(node), Arc::clone(&auto));
    node.cluster()?.answer_about_tasks(Arc::new(move |asker, bytes| {
        let told = weak.upgrade().and_then(|node| answer(&node, &answering, asker, bytes));
        told.and_then(|told| serde_json::to_vec(&told).ok()).unwrap_or_default()
    }));
    let (weak, scanning) = (Arc::downgrade(node), Arc::clone(&auto));
    let scans = move || scan_again_and_again(&weak, &scanning);
    if let Err(error) = std::thread::Builder::new().name("auto-migrate".into()).spawn(scans) {
        tracing::error!(%error, "no task is migrated by itself");
    }
    Some(auto)
}

fn scan_again_and_again(node: &Weak<Node>, auto: &Arc<Auto>) {
    let mut planner = Planner::default();
    loop {
        let until = Instant::now() + auto.interval;
        while Instant::now() < until {
            if node.strong_count() == 0 {
                return;
            }
            std::thread::sleep(LOOK.min(auto.interval));
        }
        let Some(node) = node.upgrade() else { return };
        // It may be recorded already, or somebody has ended that.
        let _ = node.start_patterns();
        scan(&node, auto, &mut planner);
    }
}

/// One scan: by the node with the lowest number of those that take part.
fn scan(node: &Arc<Node>, auto: &Arc<Auto>, planner: &mut Planner) {
    let Some(cluster) = node.cluster() else { return };
    let this = cluster.number();
    let mut others: Vec<u16> =
        cluster.nodes().into_iter().map(|report| report.node).filter(|n| *n != this).collect();
    others.sort_unstable();
    let mut views = Vec::new();
    for other in others {
        let Some(Told::View(seen)) = ask(node, other, &Question::View) else { continue };
        if other < this {
            auto.history.lock().plans = false;
            return;
        }
        views.push(seen);
    }
    let Some(own) = view(node, auto) else { return };
    views.insert(0, own);
    let now = u64::try_from(auto.zero.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let order = planner.plan(&views, now);
    {
        let mut history = auto.history.lock();
        (history.plans, history.nodes) = (true, views.len());
        history.scans += 1;
    }
    let Some(order) = order else { return };
    tracing::info!(
        task = order.task(),
        from = order.from,
        to = order.to,
        with = order.with,
        worth_s = order.worth_s,
        "a task is to go where its data are"
    );
    if order.keeper == this {
        return carry_out(auto, order);
    }
    let keeper = order.keeper;
    if ask(node, keeper, &Question::Move(order)).is_none() {
        tracing::warn!(keeper, "the node where the task was started can't be told");
    }
}

fn ask(node: &Node, other: u16, question: &Question) -> Option<Told> {
    let body = serde_json::to_vec(question).ok()?;
    let answer = node.cluster()?.ask_about_tasks(other, body, WITHIN).ok()?;
    serde_json::from_slice(&answer).ok()
}

fn answer(node: &Arc<Node>, auto: &Arc<Auto>, asker: u16, bytes: &[u8]) -> Option<Told> {
    match serde_json::from_slice(bytes).ok()? {
        Question::View => view(node, auto).map(Told::View),
        Question::Move(order) => {
            tracing::info!(asker, task = order.task(), to = order.to, "a task is to go from here");
            carry_out(auto, order);
            Some(Told::Begun)
        }
    }
}

/// Has the keeper of a task do what `forebay migrate` would have it do.
fn carry_out(auto: &Arc<Auto>, order: Order) {
    {
        let mut history = auto.history.lock();
        if history.is_busy() {
            tracing::info!(task = order.task(), "another task is on its way; this one stays");
            return;
        }
        history.began(&order, now_ms());
    }
    let for_thread = Arc::clone(auto);
    let carries = move || {
        let task = order.task();
        let moved = migrate(&for_thread, &order);
        let outcome = match &moved {
            Ok(moved) => format!("stood still for {:.0} ms", moved.downtime_ms),
            Err(error) => error.to_string(),
        };
        match &moved {
            Ok(_) => tracing::info!(task, to = order.to, outcome, "a task was migrated"),
            Err(_) => tracing::warn!(task, to = order.to, outcome, "a task was not migrated"),
        }
        for_thread.history.lock().ended(&task, moved.is_ok(), outcome);
    };
    if let Err(error) = std::thread::Builder::new().name("auto-move".into()).spawn(carries) {
        tracing::error!(%error, "a task was not migrated");
    }
}

fn migrate(auto: &Auto, order: &Order) -> Result<protocol::Moved, forebay::Error> {
    let (record, spot) = protocol::choose(kept(auto), &order.task())?;
    // By its number the own node is where the task was started, too.
    let ask = Ask::to(order.to.to_string());
    tracing::debug!(run = record.run, job = record.job, "its keeper is asked");
    spot.ask(&ask, &mut |_| {})
}

/// Tasks of this mount that can be migrated.
fn kept(auto: &Auto) -> Vec<(protocol::TaskRecord, protocol::Spot)> {
    let mut tasks = protocol::all();
    let own = auto.config.mountpoint.as_path();
    tasks.retain(|(task, _)| task.mount.as_ref().is_some_and(|mount| mount.as_path() == own));
    tasks
}

/// What this node has seen.
fn view(node: &Arc<Node>, auto: &Auto) -> Option<View> {
    let number = node.cluster()?.number();
    let usage = auto.meter.lock().look();
    let mut recorded = node.recorded_tasks();
    recorded.retain(|task| task.age < PAST);
    recorded.sort_by_key(|task| std::cmp::Reverse(task.entries.len()));
    recorded.truncate(MAX_TASKS);
    let tasks = recorded.into_iter().map(|task| {
        let name = without_rank(&task.label);
        let used = usage.get(name).copied().unwrap_or_default();
        SeenTask {
            image_bytes: used.bytes,
            cpu: used.cpu,
            elsewhere: task.elsewhere,
            entries: task.entries,
            label: task.label,
        }
    });
    let now = now_ms();
    let kept = kept(auto).into_iter().map(|(task, _)| KeptTask {
        run: task.run,
        job: task.job,
        node: task.node,
        moved_ms_ago: task.moved_ms.map(|at| now.saturating_sub(at)),
    });
    let (memory_bytes, free_bytes) = memory();
    Some(View {
        node: number,
        at_ms: u64::try_from(auto.zero.elapsed().as_millis()).unwrap_or(u64::MAX),
        cores: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
        memory_bytes,
        free_bytes,
        hosts: auto.config.cluster.as_ref().is_some_and(|cluster| cluster.host_tasks),
        tasks: tasks.collect(),
        kept: kept.collect(),
    })
}

/// All of it, and what is free or could be at once.
fn memory() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    let bytes = |name: &str| field(name).unwrap_or(0).saturating_mul(1024);
    (bytes("MemTotal:"), bytes("MemAvailable:"))
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
