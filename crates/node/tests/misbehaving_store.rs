//! A backing store that fails, fails after it has done what it was asked, does half of it, or is
//! late: one fault at a time at each kind of operation, and many at random. What was acknowledged is
//! there all the while, or can't be read; and when the store is well again, everything drains and
//! the backing store has just what was acknowledged, under its names and nothing else.

mod rig;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_node::{Ino, NodeError, SetAttr};
use forebay_store::decorators::{Interceptor, Operation, Verdict};
use parking_lot::Mutex;
use rig::{CONTEXT, MIB, Rig, noise, random};

const NAMES: u64 = 4;
const STEPS: usize = 30;
/// Rounds at a time: they wait more than they work.
const AT_ONCE: usize = 8;
/// So often a step is repeated until it is acknowledged.
const TRIES: usize = 300;
/// Random histories; more by this variable.
const HISTORIES: u64 = 24;
const MORE: &str = "FOREBAY_HISTORIES";
const FIRST: &str = "FOREBAY_FIRST_SEED";
/// With it a history that fails is told.
const TELL: &str = "FOREBAY_TELL";

const KINDS: [Operation; 18] = [
    Operation::Read,
    Operation::Write,
    Operation::Sync,
    Operation::SetLen,
    Operation::Allocate,
    Operation::Stat,
    Operation::Seek,
    Operation::SetAttributes,
    Operation::Map,
    Operation::Create,
    Operation::Open,
    Operation::Remove,
    Operation::Rename,
    Operation::Link,
    Operation::List,
    Operation::Xattr,
    Operation::Commit,
    Operation::Limbo,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Error,
    /// Carried out, then an error.
    NoAnswer,
    Short,
    Late,
}

const FAULTS: [Fault; 4] = [Fault::Error, Fault::NoAnswer, Fault::Short, Fault::Late];

/// What the store does wrong.
#[derive(Clone, Copy, Debug)]
enum Plan {
    Nothing,
    /// One fault, at the operation of a kind after so many that pass.
    Once(Operation, Fault, u64),
    /// Of each thousand operations so many, from a seed.
    Often(u64, u64),
}

struct Misbehaving {
    plan: Mutex<Plan>,
    /// What was done to the store, and what the program did; told if it fails.
    told: Mutex<std::collections::VecDeque<String>>,
}

/// The last lines that are told of a history that failed.
const TOLD: usize = 400;

impl Misbehaving {
    fn tell(&self, line: String) {
        let mut told = self.told.lock();
        told.push_back(line);
        if told.len() > TOLD {
            told.pop_front();
        }
    }

    fn fault(&self, operation: Operation) -> Option<(Fault, u64)> {
        let mut plan = self.plan.lock();
        match &mut *plan {
            Plan::Nothing => None,
            Plan::Once(kind, fault, skip) => {
                if *kind != operation {
                    return None;
                }
                if *skip > 0 {
                    *skip -= 1;
                    return None;
                }
                let fault = *fault;
                *plan = Plan::Nothing;
                Some((fault, 100))
            }
            Plan::Often(per_mille, state) => {
                let drawn = random(state);
                let fault = FAULTS[(drawn >> 20) as usize % FAULTS.len()];
                (drawn % 1000 < *per_mille).then_some((fault, drawn >> 40))
            }
        }
    }
}

impl Interceptor for Misbehaving {
    fn before(&self, operation: Operation, bytes: u64) -> Verdict {
        self.before_at(operation, bytes, Path::new(""))
    }

    fn before_at(&self, operation: Operation, bytes: u64, label: &Path) -> Verdict {
        let fault = self.fault(operation);
        let name = label.file_name().unwrap_or_default().to_string_lossy();
        let wrong = fault.map_or_else(String::new, |(fault, _)| format!(": {fault:?}"));
        self.tell(format!("    {operation:?} {name}{wrong}"));
        match fault {
            None => Verdict::Pass,
            Some((Fault::Error, _)) => Verdict::Fail(libc::EIO),
            Some((Fault::NoAnswer, _)) => Verdict::Lost(libc::EIO),
            Some((Fault::Short, part)) => {
                Verdict::Torn { bytes: part % bytes.max(1), errno: libc::ENOSPC }
            }
            Some((Fault::Late, _)) => {
                std::thread::sleep(Duration::from_millis(20));
                Verdict::Pass
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Write { name: u64, at: u64, len: u64 },
    Truncate { name: u64, size: u64 },
    Mode { name: u64, mode: u32 },
    Open { name: u64 },
    Close { name: u64 },
    Sync { name: u64 },
    Flush { name: u64 },
    Evict { name: u64 },
    Unlink { name: u64 },
    Rename { from: u64, to: u64 },
    Link { from: u64, to: u64 },
}

fn plan(seed: u64) -> Vec<Step> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..STEPS)
        .map(|_| {
            let mut below = |most: u64| random(&mut state) % most;
            let (kind, name, other) = (below(100), below(NAMES), below(NAMES));
            match kind {
                0..34 => Step::Write { name, at: below(900_000), len: 1 + below(400_000) },
                34..42 => Step::Truncate { name, size: [0, below(1_000_000)][below(2) as usize] },
                42..46 => Step::Mode { name, mode: 0o600 + below(8) as u32 },
                46..52 => Step::Open { name },
                52..58 => Step::Close { name },
                58..62 => Step::Sync { name },
                62..78 => Step::Flush { name },
                78..84 => Step::Evict { name },
                84..88 => Step::Unlink { name },
                88..95 => Step::Rename { from: name, to: other },
                _ => Step::Link { from: name, to: other },
            }
        })
        .collect()
}

fn file_name(name: u64) -> String {
    format!("file{name}")
}

/// A history, and what was acknowledged in it.
struct Round {
    rig: Rig,
    by: Arc<Misbehaving>,
    what: String,
    names: BTreeMap<u64, usize>,
    files: Vec<(Vec<u8>, u32)>,
    open: BTreeMap<u64, u64>,
}

impl Round {
    fn new(what: String, plan: Plan) -> Self {
        let plan_of_start = Mutex::new(Plan::Nothing);
        let by = Arc::new(Misbehaving { plan: plan_of_start, told: Mutex::default() });
        let rig = Rig::new(&[MIB], by.clone(), |config| {
            config.backing_timeout = Duration::from_millis(60);
            config.attr_timeout = Duration::ZERO;
        });
        *by.plan.lock() = plan;
        Round { rig, by, what, names: BTreeMap::new(), files: Vec::new(), open: BTreeMap::new() }
    }

    /// Does something until it is acknowledged.
    fn again<T>(&self, step: impl Debug, mut work: impl FnMut() -> Result<T, NodeError>) -> T {
        let mut last = None;
        for _ in 0..TRIES {
            match work() {
                Ok(done) => return done,
                Err(error) => last = Some(error),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("{}: {step:?} never succeeds: {last:?}", self.what);
    }

    fn find(&self, name: u64) -> Option<Ino> {
        let bytes = file_name(name).into_bytes();
        let found =
            self.again(("look up", name), || self.rig.node().lookup(&CONTEXT, Ino::ROOT, &bytes));
        assert_eq!(found.is_some(), self.names.contains_key(&name), "{}: {name}", self.what);
        found.map(|found| found.ino)
    }

    /// The file behind a name, made if there is none, open.
    fn opened(&mut self, name: u64) -> (u64, bool) {
        if let Some(fh) = self.open.get(&name) {
            return (*fh, false);
        }
        let node = self.rig.node().clone();
        let fh = match self.find(name) {
            Some(ino) => self.again(("open", name), || node.open(&CONTEXT, ino, libc::O_RDWR)).fh,
            None => {
                let bytes = file_name(name).into_bytes();
                let made = self.again(("create", name), || {
                    node.create_and_open(&CONTEXT, Ino::ROOT, &bytes, (0o644, 0), libc::O_RDWR)
                });
                self.files.push((Vec::new(), 0o644));
                self.names.insert(name, self.files.len() - 1);
                made.1.fh
            }
        };
        (fh, true)
    }

    fn close(&mut self, name: u64) {
        if let Some(fh) = self.open.remove(&name) {
            self.rig.node().release(fh);
        }
    }

    fn step(&mut self, index: usize, step: Step) {
        self.by.tell(format!("{index} {step:?}"));
        let node = self.rig.node().clone();
        match step {
            Step::Write { name, at, len } => {
                let (fh, fresh) = self.opened(name);
                let data = noise(index as u64 + 7, len);
                self.again(step, || node.write(&CONTEXT, fh, at, &data));
                if fresh {
                    node.release(fh);
                }
                let content = &mut self.files[self.names[&name]].0;
                content.resize(content.len().max((at + len) as usize), 0);
                content[at as usize..][..data.len()].copy_from_slice(&data);
            }
            Step::Truncate { name, size } => {
                let Some(ino) = self.find(name) else { return };
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                self.again(step, || node.setattr(&CONTEXT, ino, &set));
                self.files[self.names[&name]].0.resize(size as usize, 0);
            }
            Step::Mode { name, mode } => {
                let Some(ino) = self.find(name) else { return };
                let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
                self.again(step, || node.setattr(&CONTEXT, ino, &set));
                self.files[self.names[&name]].1 = mode;
            }
            Step::Open { name } => {
                let (fh, fresh) = self.opened(name);
                if fresh {
                    self.open.insert(name, fh);
                }
            }
            Step::Close { name } => self.close(name),
            Step::Sync { name } => {
                if let Some(fh) = self.open.get(&name) {
                    self.again(step, || node.fsync(&CONTEXT, *fh, false));
                }
            }
            Step::Flush { name } => {
                if let Some(ino) = self.find(name) {
                    drop(node.reconcile(ino));
                }
            }
            Step::Evict { name } => {
                if let Some(ino) = self.find(name) {
                    drop(node.evict_file(ino));
                }
            }
            Step::Unlink { .. } | Step::Rename { .. } | Step::Link { .. } => self.name_step(step),
        }
    }

    fn name_step(&mut self, step: Step) {
        let node = self.rig.node().clone();
        match step {
            Step::Unlink { name } => {
                if self.find(name).is_none() {
                    return;
                }
                self.close(name);
                let bytes = file_name(name).into_bytes();
                self.again(step, || node.unlink(&CONTEXT, Ino::ROOT, &bytes));
                self.names.remove(&name);
            }
            Step::Rename { from, to } => {
                self.close(from);
                self.close(to);
                if self.find(from).is_none() {
                    return;
                }
                let (old, new) = (file_name(from), file_name(to));
                let (old, new) = ((Ino::ROOT, old.as_bytes()), (Ino::ROOT, new.as_bytes()));
                self.again(step, || node.rename(&CONTEXT, old, new, 0));
                if self.names.get(&from) != self.names.get(&to)
                    && let Some(file) = self.names.remove(&from)
                {
                    self.names.insert(to, file);
                }
            }
            Step::Link { from, to } => {
                let (Some(ino), None) = (self.find(from), self.find(to)) else { return };
                let bytes = file_name(to).into_bytes();
                self.again(step, || node.link(&CONTEXT, ino, Ino::ROOT, &bytes));
                self.names.insert(to, self.names[&from]);
            }
            _ => {}
        }
    }

    /// What can be read is what was acknowledged.
    fn look(&self, name: u64, after: impl Debug) {
        let Some(ino) = self.find(name) else { return };
        let Ok(opened) = self.rig.node().open(&CONTEXT, ino, libc::O_RDONLY) else { return };
        let wanted = &self.files[self.names[&name]].0;
        let mut found = vec![0; wanted.len() + 10];
        let mut at = 0;
        let whole = loop {
            let read = self.rig.node().read(&CONTEXT, opened.fh, at as u64, &mut found[at..]);
            match read {
                Ok(0) => break true,
                Ok(read) => at += read,
                Err(_) => break false,
            }
        };
        self.rig.node().release(opened.fh);
        if whole {
            self.same(&found[..at], wanted, (name, after));
        }
    }

    fn same(&self, found: &[u8], wanted: &[u8], when: impl Debug) {
        let first = found.iter().zip(wanted).position(|(a, b)| a != b);
        assert!(
            found == wanted,
            "{}: {when:?}: {} bytes, not {}, first difference at {first:?}",
            self.what,
            found.len(),
            wanted.len()
        );
    }

    /// The store is well again.
    fn end(mut self, dies: bool) {
        *self.by.plan.lock() = Plan::Nothing;
        self.by.tell("the end".into());
        for name in self.open.keys().copied().collect::<Vec<_>>() {
            self.close(name);
        }
        if dies {
            self.rig.crash();
            self.rig.start();
        }
        self.rig.drain();
        let node = self.rig.node();
        assert_eq!(node.conflicts().0, 0, "{}: {:?}", self.what, node.conflicts().1);
        assert!(node.refused().is_empty(), "{}: {:?}", self.what, node.refused());
        for (name, file) in &self.names {
            let (wanted, mode) = &self.files[*file];
            let plain = self.rig.backing().join(file_name(*name));
            let found = std::fs::read(&plain).unwrap_or_else(|error| {
                panic!("{}: {name} is not in the backing store: {error}", self.what)
            });
            self.same(&found, wanted, (name, "below"));
            let below = std::os::unix::fs::MetadataExt::mode(&plain.metadata().unwrap());
            assert_eq!(below & 0o7777, *mode, "{}: {name}", self.what);
            self.look(*name, "the end");
        }
        let left = std::fs::read_dir(self.rig.backing()).unwrap();
        let left = left.filter(|entry| entry.as_ref().unwrap().file_name() != ".forebay").count();
        assert_eq!(left, self.names.len(), "{}: names below", self.what);
        assert_eq!(spilled(&self.rig.backing()), 0, "{}: spill files", self.what);
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        if std::thread::panicking() && std::env::var_os(TELL).is_some() {
            let told: Vec<String> = self.by.told.lock().iter().cloned().collect();
            eprintln!("{}:\n{}", self.what, told.join("\n"));
        }
    }
}

/// Files in the spill area.
fn spilled(backing: &Path) -> usize {
    std::fs::read_dir(backing.join(".forebay/spill")).map_or(0, Iterator::count)
}

fn history(what: String, seed: u64, faults: Plan, dies: bool) {
    let mut round = Round::new(what, faults);
    for (index, step) in plan(seed).into_iter().enumerate() {
        round.step(index, step);
        match step {
            Step::Write { name, .. } | Step::Truncate { name, .. } | Step::Flush { name } => {
                round.look(name, (index, step));
            }
            _ => {}
        }
    }
    round.end(dies);
}

/// Does rounds, several at a time; all failures are told.
fn rounds<T: Sync>(all: &[T], work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome =
                        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(one)));
                    if let Err(why) = outcome {
                        let text = why.downcast_ref::<String>().cloned();
                        failed.lock().push(text.unwrap_or_else(|| "a panic".into()));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner();
    assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), all.len(), failed.join("\n"));
}

#[test]
fn store_with_one_fault_at_each_operation_when_well_again_then_has_what_was_acknowledged() {
    let mut all = Vec::new();
    for kind in KINDS {
        for fault in FAULTS {
            for skip in [0, 5] {
                all.push((kind, fault, skip));
            }
        }
    }
    rounds(&all, |&(kind, fault, skip)| {
        let plan = Plan::Once(kind, fault, skip);
        history(format!("{plan:?}"), 1 + skip % 4, plan, false);
    });
}

#[test]
fn store_with_many_faults_when_well_again_then_has_what_was_acknowledged() {
    let number = |name, or| std::env::var(name).map_or(or, |text| text.parse().unwrap());
    let first = number(FIRST, 0);
    let all: Vec<u64> = (first..first + number(MORE, HISTORIES)).collect();
    rounds(&all, |&seed| {
        let per_mille = [10, 50, 150][seed as usize % 3];
        let what = format!("seed {seed}, {per_mille} per mille");
        let plan = Plan::Often(per_mille, seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1);
        history(what, seed + 100, plan, seed % 4 == 3);
    });
}
