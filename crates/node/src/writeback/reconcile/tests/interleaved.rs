//! Names and the backlog in one thread at a time: a program, two workers, another reader, and on
//! request somebody who changes the backing store behind their backs, interleaved from a seed at
//! every operation of the backing store, which uses its inode numbers again at once.
//!
//! What must hold: the program sees nothing that a plain directory would not show it; nothing
//! conflicts where nobody else changes anything; nothing of others is lost that was not known here, and
//! nothing that was written here but by the program itself or by others; the backlog empties; the check finds nothing; and the backing store equals the namespace in the end.

mod ledger;
mod program;
mod witness;

use std::collections::HashSet;

use forebay_meta::{Engine, EngineError, Key, MiniTransaction, Outcome, Page};
use forebay_store::decorators::RenumberedBacking;
use ledger::Ledger;
use program::{Made, NAMES, Program};
use witness::{OTHERS, Witness};

use super::*;
use crate::lockstep::{self, Clock, ClockStops, Lockstep};
use crate::namespace::NewName;

/// The last lines that are told of a run that failed; all of one that was asked for.
const TOLD: usize = 300;

#[derive(Default)]
pub(super) struct Trace(Mutex<std::collections::VecDeque<String>>);

impl Trace {
    fn add(&self, line: String) {
        let mut lines = self.0.lock();
        lines.push_back(line);
        if lines.len() > TOLD && !is_one_seed() {
            lines.pop_front();
        }
    }
}

thread_local! {
    static ROLE: std::cell::Cell<&'static str> = const { std::cell::Cell::new("") };
    static TRACE: std::cell::RefCell<Option<Arc<Trace>>> = const { std::cell::RefCell::new(None) };
}

/// The calling thread is this part of a run from now on.
fn begin(role: &'static str, trace: &Arc<Trace>) {
    ROLE.set(role);
    TRACE.set(Some(trace.clone()));
}

/// Whether one run was asked for, to be looked at.
fn is_one_seed() -> bool {
    std::env::var_os("FOREBAY_SEED").is_some()
}

/// Has what the code says of itself told among the steps.
struct Log;

impl tracing::Subscriber for Log {
    fn enabled(&self, of: &tracing::Metadata<'_>) -> bool {
        *of.level() <= tracing::Level::DEBUG && of.target().starts_with("forebay_node")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Line(String);
        impl tracing::field::Visit for Line {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0.push_str(&format!(" {}={value:?}", field.name()));
            }
        }
        let mut line = Line(format!("{} SAYS:", ROLE.get()));
        event.record(&mut line);
        TRACE.with_borrow(|trace| trace.iter().for_each(|trace| trace.add(line.0.clone())));
    }
}

/// Gives the turn away before and after each operation, some of which fail for workers, half of these
/// after the deed.
struct Steps {
    trace: Arc<Trace>,
    faults: Mutex<Random>,
    per_mille: std::sync::atomic::AtomicUsize,
    witness: Witness,
}

impl Steps {
    fn fault(&self) -> Verdict {
        let per_mille = self.per_mille.load(Ordering::Acquire);
        if per_mille == 0 || !ROLE.get().starts_with("worker") {
            return Verdict::Pass;
        }
        let mut random = self.faults.lock();
        match (random.below(1000) < per_mille, random.below(2)) {
            (false, _) => Verdict::Pass,
            (true, 0) => Verdict::Fail(libc::EIO),
            (true, _) => Verdict::Lost(libc::EIO),
        }
    }
}

impl Interceptor for Steps {
    fn before(&self, _: Operation, _: u64) -> Verdict {
        lockstep::step();
        Verdict::Pass
    }

    fn before_at(&self, operation: Operation, bytes: u64, label: &Path) -> Verdict {
        let verdict = self.fault();
        if !ROLE.get().is_empty() {
            let wrong = if verdict == Verdict::Pass { "" } else { " FAULT" };
            let what = format!("{}: {operation:?} {}{wrong}", ROLE.get(), label.display());
            self.trace.add(what);
        }
        let _passed = self.before(operation, bytes);
        self.witness.before(operation);
        verdict
    }

    fn after(&self, operation: Operation) {
        self.witness.after(operation);
        lockstep::step();
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most.max(1)
    }
}

/// Takes from the backlog, a few at a time.
fn work(node: &Node, mut random: Random, over: &std::sync::atomic::AtomicBool, trace: &Arc<Trace>) {
    begin(if random.0.is_multiple_of(2) { "worker 0" } else { "worker 1" }, trace);
    while !over.load(Ordering::Acquire) {
        let queued = node.meta.backlog(forebay_meta::Seq(0), 1000).expect("the backlog");
        let first = random.below(queued.len());
        let many = 1 + random.below(6);
        let due: Vec<(Ino, u32)> =
            queued.iter().skip(first).take(many).map(|(_, ino)| (*ino, 0)).collect();
        if !due.is_empty() && random.below(3) > 0 {
            node.writeback.take_turns(&due, Wanted::All, &mut |_, _| {});
        }
        lockstep::blocked();
    }
}

/// Looks at names, and at files as if to open them.
fn look(node: &Node, mut random: Random, over: &std::sync::atomic::AtomicBool) {
    while !over.load(Ordering::Acquire) {
        let mut at = Ino::ROOT;
        for _ in 0..4 {
            let context = Context::DAEMON;
            match random.below(4) {
                0 => drop(node.writeback.ensure_listed(&context, at)),
                1 => node.writeback.drop_handle(at),
                _ => {}
            }
            let name = NAMES[random.below(NAMES.len())].as_bytes();
            let Ok(Some(record)) = node.writeback.find(&context, at, name) else { break };
            if record.is_directory() {
                at = record.ino;
            } else {
                drop(node.writeback.revalidate(&context, record));
                break;
            }
        }
        lockstep::blocked();
    }
}

/// Changes the backing store behind everybody's back; but not between the two looks by which a change
/// of a directory is known to be our own, where nobody could tell.
fn meddle(
    root: &Path,
    mut random: Random,
    over: &std::sync::atomic::AtomicBool,
    trace: &Trace,
    ledger: &Ledger,
) {
    let life = random.below(1 << 30);
    for number in 0.. {
        if over.load(Ordering::Acquire) {
            return;
        }
        let mut at = root.to_owned();
        match (random.below(3), ledger.latest_path()) {
            (0, Some(path)) => at.push(path),
            _ => (0..=random.below(3)).for_each(|_| at.push(NAMES[random.below(NAMES.len())])),
        }
        let other = root.join(NAMES[random.below(NAMES.len())]);
        lockstep::until_watched();
        let deed = random.below(12);
        let what = ["write", "mkdir", "unlink", "rm -r", "rename", "link", "chmod"].get(deed);
        trace.add(format!(
            "others: {} {}, or from there to {}",
            what.unwrap_or(&"nothing"),
            at.display(),
            other.display()
        ));
        ledger.others_do(root, &[&at, &other], || match deed {
            // No two of one length: a kernel's clock may not tell them apart.
            0 => drop(fs::write(&at, format!("{OTHERS}{life} {}", "x".repeat(number)))),
            1 => drop(fs::create_dir(&at)),
            2 => drop(fs::remove_file(&at)),
            3 => drop(fs::remove_dir_all(&at)),
            4 => drop(fs::rename(&at, &other)),
            5 => drop(fs::hard_link(&at, &other)),
            6 => drop(fs::set_permissions(&at, fs::Permissions::from_mode(0o711))),
            _ => {}
        });
        for _ in 0..random.below(100) {
            lockstep::blocked();
        }
    }
}

#[derive(Clone, Copy)]
struct Scene {
    coherence: Coherence,
    others: bool,
    /// Of each thousand operations of workers so many fail.
    faults: usize,
    actions: usize,
    /// So often the daemon is killed and started again.
    kills: u64,
    /// Some files were not synced when the machine stopped: they have lost their bytes.
    cuts: bool,
}

const PLAIN: Scene = Scene {
    coherence: Coherence::Open,
    others: false,
    faults: 0,
    actions: 40,
    kills: 0,
    cuts: false,
};

/// What outlasts a daemon of the metadata.
struct SharedEngine(Arc<Memory>);

impl Engine for SharedEngine {
    fn execute(&self, transaction: &MiniTransaction) -> std::result::Result<Outcome, EngineError> {
        self.0.execute(transaction)
    }

    fn scan(
        &self,
        partition: u16,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> std::result::Result<Page, EngineError> {
        self.0.scan(partition, prefix, after, limit)
    }

    fn sweep(
        &self,
        after: Option<&Key>,
        limit: usize,
    ) -> std::result::Result<Vec<(Key, Vec<u8>)>, EngineError> {
        self.0.sweep(after, limit)
    }

    fn spans_partitions(&self) -> bool {
        self.0.spans_partitions()
    }

    fn sync(&self) -> std::result::Result<(), EngineError> {
        lockstep::step();
        self.0.sync()
    }
}

fn tree_of(node: &Node, dir: Ino, path: &Path, tree: &mut BTreeMap<PathBuf, String>) {
    for item in node.meta.entries_plus(dir, 0, 1000).expect("entries") {
        let record = &item.record;
        let path = path.join(super::super::names::os(&item.entry.name));
        tree.insert(path.clone(), format!("{:?} {:o}", record.attr.kind, record.attr.perm));
        if record.is_directory() {
            tree_of(node, record.ino, &path, tree);
        }
    }
}

fn tree_below(root: &Path, path: &Path, tree: &mut BTreeMap<PathBuf, String>) {
    for entry in fs::read_dir(root.join(path)).expect("a directory") {
        let entry = entry.expect("an entry");
        let below = path.join(entry.file_name());
        if below == Path::new(".forebay") {
            continue;
        }
        let found = fs::symlink_metadata(entry.path()).expect("there");
        let kind = if found.is_dir() { FileKind::Directory } else { FileKind::Regular };
        tree.insert(below.clone(), format!("{kind:?} {:o}", found.permissions().mode() & 0o7777));
        if found.is_dir() {
            tree_below(root, &below, tree);
        }
    }
}

fn run(seed: u64, scene: &Scene) {
    let trace = Arc::new(Trace::default());
    if is_one_seed() {
        tracing::subscriber::set_global_default(Log).ok();
    }
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| act(seed, scene, &trace)));
    if let Err(panic) = ran {
        for line in &*trace.0.lock() {
            eprintln!("{line}");
        }
        eprintln!("seed {seed} failed; it alone, with all its steps: FOREBAY_SEED={seed}");
        std::panic::resume_unwind(panic);
    }
}

/// What outlasts the daemons of one run.
struct World {
    seed: u64,
    scene: Scene,
    trace: Arc<Trace>,
    root: PathBuf,
    contents: Arc<Contents>,
    steps: Arc<Steps>,
    backing: Arc<dyn BackingStore>,
    engine: Arc<Memory>,
    made: Made,
    xattrs: BTreeMap<u64, Vec<u8>>,
    ledger: Arc<Ledger>,
    _scratch: Scratch,
}

impl World {
    fn new(seed: u64, scene: &Scene, trace: &Arc<Trace>, clock: &Arc<Clock>) -> Self {
        let scratch = Scratch::new();
        let root = scratch.0.join("backing");
        fs::create_dir_all(&root).expect("made");
        let inner = Arc::new(DirBacking::open(&root, "test").expect("opens"));
        let numbered = match seed % 2 {
            0 => RenumberedBacking::new(inner),
            _ => RenumberedBacking::with_births(inner),
        };
        // Others can't be told from ourselves within one tick.
        let tick_ns = if scene.others || (seed / 15).is_multiple_of(2) { 1 } else { 4_000_000 };
        let clock = clock.clone();
        let numbered = numbered.with_clock(Arc::new(move || {
            let (seconds, nanos) = clock.file_time(tick_ns);
            forebay_types::Timestamp::new(seconds, nanos)
        }));
        let numbered = Arc::new(numbered);
        let ledger = Arc::new(Ledger::default());
        let steps = Arc::new(Steps {
            trace: trace.clone(),
            faults: Mutex::new(Random(seed ^ 0x0bad_cafe)),
            per_mille: 0.into(),
            witness: Witness::of(&root, scene.others.then(|| numbered.clone() as _), &ledger),
        });
        World {
            seed,
            scene: *scene,
            trace: trace.clone(),
            root,
            contents: Arc::default(),
            backing: Arc::new(InterceptedBacking::new(numbered, steps.clone())),
            steps,
            engine: Arc::new(Memory::new()),
            made: Made::new(),
            xattrs: BTreeMap::new(),
            ledger,
            _scratch: scratch,
        }
    }

    fn random(&self, number: u64) -> Random {
        Random(self.seed.wrapping_mul(1000).wrapping_add(number) ^ 0x5dee_ce66)
    }

    /// A daemon that continues what was there, as far as it concerns names.
    fn start(&mut self, life: u64) -> Arc<Node> {
        self.trace.add(format!("START {life}"));
        let engine = Box::new(SharedEngine(self.engine.clone()));
        let meta = MetaStore::open(engine, &Options::default()).expect("opens");
        let change = |config: &mut NodeConfig| config.coherence = self.scene.coherence;
        let node = node_on(self.backing.clone(), meta, &self.contents, change);
        self.steps.witness.follow(&node);
        // Nobody works but those who take turns.
        let closed = node.slow.close(Duration::from_secs(5));
        assert!(closed && node.writeback.flushers.close(Duration::from_secs(5)));
        if life > 0 {
            self.backing.clean_temporaries("test").expect("cleaned");
            node.writeback.take_up_written_entries().expect("taken up");
            node.release_orphans(&HashSet::new()).expect("released");
            self.recover_bytes(&node, life);
        }
        node.writeback.import_root().expect("the root is there");
        node.writeback.ensure_listed(&Context::DAEMON, Ino::ROOT).expect("listed");
        if self.scene.cuts {
            // Some have another name now, beside which an older version shows again.
            self.made = Made::new();
            made_below(&node, Ino::ROOT, "", &mut self.made);
        }
        node
    }

    /// As the recovery does with what lies on the tiers.
    fn recover_bytes(&mut self, node: &Node, life: u64) {
        let mut random = self.random(100 + life);
        let lengths: BTreeMap<u64, u64> = {
            let bytes = self.contents.bytes.lock();
            bytes.iter().map(|(ino, bytes)| (*ino, bytes.len() as u64)).collect()
        };
        for (ino, len) in lengths {
            let Ok(record) = node.meta.get(Ino(ino)) else { continue };
            if self.scene.cuts && record.is_dirty() && random.below(3) == 0 {
                self.trace.add(format!("CUT {ino}"));
                self.ledger.cut(ino);
                self.contents.bytes.lock().insert(ino, Vec::new());
                node.writeback.set_aside_if_cut(&record, 0).expect("set aside");
                let update = |record: &mut Record| {
                    record.attr.size = 0;
                    Queue::Yes
                };
                node.meta.update(Ino(ino), None, update).expect("it is there");
            } else if record.attr.size != len && !self.contents.stale.lock().contains(&ino) {
                let update = |record: &mut Record| {
                    record.attr.size = len;
                    record.mark_dirty();
                    Queue::Yes
                };
                node.meta.update(Ino(ino), None, update).expect("it is there");
            }
        }
    }

    /// What programs do until their daemon ends or is killed.
    fn live(&mut self, node: &Arc<Node>, life: u64) {
        let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let program = Arc::new(Mutex::new(Program {
            node: node.clone(),
            contents: self.contents.clone(),
            random: self.random(10 * life),
            made: std::mem::take(&mut self.made),
            xattrs: std::mem::take(&mut self.xattrs),
            trace: self.trace.clone(),
            in_flight: false,
            ledger: self.ledger.clone(),
            // After a cut older versions show again where nobody looks for them.
            lenient: self.scene.others || self.scene.cuts,
        }));
        let mut parts: Vec<Box<dyn FnOnce() + Send>> = Vec::new();
        let (ended, acting, actions) = (over.clone(), program.clone(), self.scene.actions);
        let trace = self.trace.clone();
        parts.push(Box::new(move || {
            begin("program", &trace);
            let mut program = acting.lock();
            for _ in 0..actions {
                program.act();
            }
            ended.store(true, Ordering::Release);
        }));
        for number in 1..3 {
            let (node, random, over) =
                (node.clone(), self.random(10 * life + number), over.clone());
            let trace = self.trace.clone();
            parts.push(Box::new(move || work(&node, random, &over, &trace)));
        }
        let (reading, chance, ending) = (node.clone(), self.random(10 * life + 3), over.clone());
        let trace = self.trace.clone();
        parts.push(Box::new(move || {
            begin("reader", &trace);
            look(&reading, chance, &ending);
        }));
        let (keeper, ending) = (node.clone(), over.clone());
        parts.push(Box::new(move || {
            while !ending.load(Ordering::Acquire) {
                keeper.let_go_of_due();
                lockstep::blocked();
            }
        }));
        if self.scene.others {
            let (root, random) = (self.root.clone(), self.random(10 * life + 4));
            let (over, trace, ledger) = (over, self.trace.clone(), self.ledger.clone());
            parts.push(Box::new(move || meddle(&root, random, &over, &trace, &ledger)));
        }
        self.steps.per_mille.store(self.scene.faults, Ordering::Release);
        let killed_at = match life < self.scene.kills {
            true => 200 + self.random(10 * life + 5).below(4000) as u64,
            false => u64::MAX,
        };
        Lockstep::run(self.seed.wrapping_add(life << 32), killed_at, parts);
        self.steps.per_mille.store(0, Ordering::Release);
        let mut program = program.lock();
        self.made = std::mem::take(&mut program.made);
        self.xattrs = std::mem::take(&mut program.xattrs);
        if killed_at != u64::MAX {
            self.ledger.look_at_conflicts(node, &self.scene);
            self.look_what_is_done(node, program.in_flight);
        }
    }

    /// What was under way when the daemon was killed may be done or not.
    fn look_what_is_done(&mut self, node: &Node, in_flight: bool) {
        let mut made = Made::new();
        made_below(node, Ino::ROOT, "", &mut made);
        if !in_flight && !self.scene.others && !self.scene.cuts {
            assert_eq!(made, self.made, "as it was when the daemon was killed");
        }
        self.made = made;
        if in_flight {
            let known =
                |ino: &u64| node.meta.xattr_get(Ino(*ino), b"user.test").unwrap_or_default();
            let inos = self.made.values().map(|(_, ino)| ino.0);
            let found: Vec<_> = inos.filter_map(|ino| Some((ino, known(&ino)?))).collect();
            self.xattrs.extend(found);
        }
    }

    /// Brings all in line and compares.
    fn end(&mut self, node: &Arc<Node>) {
        begin("drain", &self.trace);
        drain(node);
        let report = node.meta.check(false).expect("a check");
        let violations: Vec<&String> = report.violations.iter().map(|found| &found.what).collect();
        assert!(violations.is_empty(), "{violations:?}");
        if self.scene.others || self.scene.cuts {
            // What others did last, and older versions, become known by another look.
            node.walk(Ino::ROOT, &mut |record| {
                node.writeback.doubt_directory(record.ino);
                node.writeback.revalidate(&Context::DAEMON, record.clone()).ok();
                true
            })
            .expect("walked");
            drain(node);
        } else {
            self.compare_all(node);
        }
        let (mut logical, mut physical) = (BTreeMap::new(), BTreeMap::new());
        tree_of(node, Ino::ROOT, Path::new(""), &mut logical);
        tree_below(&self.root, Path::new(""), &mut physical);
        if self.scene.others {
            // A mode that others set is noticed with the next change of the entries beside it.
            for tree in [&mut logical, &mut physical] {
                tree.values_mut().for_each(|what| what.truncate(4));
            }
        }
        assert_eq!(physical, logical);
        self.ledger.look_at_conflicts(node, &self.scene);
        self.ledger.check(node, &self.root, &self.contents);
        assert_eq!(node.backing.list_parked().expect("limbo"), Vec::<u64>::new());
        let counts = node.meta.counts();
        assert_eq!((counts.queued, counts.stale_names, counts.orphans), (0, 0, 0));
    }

    /// Where nobody else changes anything: all that the program has made is there, as it was made.
    fn compare_all(&mut self, node: &Arc<Node>) {
        assert_eq!(node.writeback.conflicts().0, 0, "{:?}", node.writeback.conflicts());
        let mut program = Program {
            node: node.clone(),
            contents: self.contents.clone(),
            random: self.random(9),
            made: self.made.clone(),
            xattrs: BTreeMap::new(),
            trace: self.trace.clone(),
            in_flight: false,
            ledger: self.ledger.clone(),
            lenient: false,
        };
        program.compare("");
        for (path, (kind, _)) in program.made.clone() {
            if kind == FileKind::Directory {
                program.compare(&path);
            }
        }
        for (path, (kind, ino)) in &self.made {
            if *kind == FileKind::Regular {
                let bytes = self.contents.bytes.lock().get(&ino.0).cloned().unwrap_or_default();
                let written = fs::read(self.root.join(path)).expect("it is there");
                assert_eq!(String::from_utf8_lossy(&written), String::from_utf8_lossy(&bytes));
            }
            if let Some(value) = self.xattrs.get(&ino.0) {
                let mut found = [0; 64];
                let below = self.root.join(path);
                let len = rustix::fs::lgetxattr(below, "user.test", &mut found[..]);
                let found = len.map(|len| found[..len].to_vec()).ok();
                assert_eq!(found.as_ref(), Some(value), "{path} ({ino})");
            }
        }
    }
}

fn made_below(node: &Node, dir: Ino, path: &str, made: &mut Made) {
    for item in node.meta.entries_plus(dir, 0, 1000).expect("entries") {
        let name = String::from_utf8_lossy(&item.entry.name).into_owned();
        let below = if path.is_empty() { name } else { format!("{path}/{name}") };
        made.insert(below.clone(), (item.record.attr.kind, item.record.ino));
        if item.record.is_directory() {
            made_below(node, item.record.ino, &below, made);
        }
    }
}

fn drain(node: &Node) {
    let until = Instant::now() + Duration::from_secs(30);
    let remaining = node.writeback.drain(until, &mut |_| true).expect("drained");
    let left: Vec<String> = node.writeback.unwritten(9).map_or_else(
        |error| vec![error.to_string()],
        |paths| paths.iter().map(|path| path.escape_ascii().to_string()).collect(),
    );
    assert_eq!(
        remaining,
        Remaining::default(),
        "{:?} {left:?}",
        node.writeback.last_backlog_error()
    );
}

fn act(seed: u64, scene: &Scene, trace: &Arc<Trace>) {
    let clock = Clock::start(seed);
    let _stops = ClockStops;
    let mut world = World::new(seed, scene, trace, &clock);
    for life in 0..scene.kills {
        let node = world.start(life);
        world.live(&node, life);
    }
    let node = world.start(scene.kills);
    world.live(&node, scene.kills);
    world.end(&node);
}

/// The seeds of a test: `FOREBAY_SEED` alone, or `FOREBAY_MODEL_CASES` of them, else 24 (the
/// tests that take long run many more: xtask/src/test/slow.rs), from `FOREBAY_MODEL_FIRST` on.
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("FOREBAY_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("FOREBAY_MODEL_FIRST").unwrap_or(0);
            first..first + number("FOREBAY_MODEL_CASES").unwrap_or(24)
        }
    }
}

#[test]
fn trees_removed_and_made_again_while_written_back_when_interleaved_then_as_a_plain_directory() {
    for seed in seeds() {
        run(seed, &PLAIN);
    }
}

#[test]
fn trees_removed_and_made_again_by_a_sole_user_when_interleaved_then_as_a_plain_directory() {
    for seed in seeds() {
        run(seed, &Scene { coherence: Coherence::Exclusive, ..PLAIN });
    }
}

#[test]
fn names_when_others_change_the_backing_store_at_any_moment_then_the_backlog_empties() {
    for seed in seeds() {
        run(seed, &Scene { others: true, actions: 30, ..PLAIN });
    }
}

#[test]
fn trees_removed_and_made_again_when_the_store_fails_now_and_then_then_as_a_plain_directory() {
    for seed in seeds() {
        let faults = [5, 30, 100][seed as usize % 3];
        run(seed, &Scene { faults, ..PLAIN });
    }
}

#[test]
fn names_when_others_change_a_store_that_fails_now_and_then_then_the_backlog_empties() {
    for seed in seeds() {
        let faults = [5, 30, 100][seed as usize % 3];
        run(seed, &Scene { others: true, faults, actions: 30, ..PLAIN });
    }
}

#[test]
fn names_when_the_daemon_is_killed_at_any_moment_then_as_a_plain_directory() {
    for seed in seeds() {
        let faults = [0, 0, 30][seed as usize % 3];
        run(seed, &Scene { kills: 1 + seed % 3, faults, ..PLAIN });
    }
}

#[test]
fn names_when_the_daemon_is_killed_while_others_change_the_store_then_the_backlog_empties() {
    for seed in seeds() {
        run(seed, &Scene { others: true, kills: 1 + seed % 3, actions: 30, ..PLAIN });
    }
}

#[test]
fn names_when_unsynced_files_are_cut_by_a_crash_then_the_backlog_empties() {
    for seed in seeds() {
        let faults = [0, 0, 30][seed as usize % 3];
        run(seed, &Scene { cuts: true, kills: 1 + seed % 3, faults, ..PLAIN });
    }
}
