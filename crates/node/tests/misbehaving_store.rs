//! A backing store or a tier that fails, fails after it has done what it was asked, does half of it, is
//! late, hangs, or goes away and comes back: one fault at a time at each kind of operation, and many at
//! random. What was acknowledged is there all the while, or can't be read; and when all is well again,
//! everything drains and the backing store has just what was acknowledged, under its names and nothing
//! else.

mod rig;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_node::{Ino, NameIn, NewFile, NodeError, SetAttr, WritebackPolicy};
use forebay_store::decorators::{Flaky, Interceptor, Operation, Rule, Transparent, Verdict};
use forebay_testing::{LIMIT, wait_for};
use parking_lot::Mutex;
use rig::{CONTEXT, MIB, Rig, noise, random};

const NAMES: u64 = 6;
/// From this one on names are in a directory, which comes, goes and gets other names.
const IN_DIRECTORY: u64 = 4;
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

/// What a backing store is asked.
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

/// What a tier is asked.
const KINDS_OF_TIERS: [Operation; 14] = [
    Operation::Read,
    Operation::Write,
    Operation::Sync,
    Operation::SetLen,
    Operation::Allocate,
    Operation::Stat,
    Operation::Seek,
    Operation::SetAttributes,
    Operation::Header,
    Operation::Lock,
    Operation::Map,
    Operation::Create,
    Operation::Open,
    Operation::Remove,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Error,
    /// Carried out, then an error.
    NoAnswer,
    Short,
    Late,
    /// This and all that follows waits for a while.
    Hung,
    /// This and all that follows fails, until it is back.
    Gone,
}

const FAULTS: [Fault; 6] =
    [Fault::Error, Fault::NoAnswer, Fault::Short, Fault::Late, Fault::Hung, Fault::Gone];
/// Longer than the time limit of the rounds.
const HANGS: Duration = Duration::from_millis(100);
/// Operations that fail while it is gone.
const GONE_FOR: u64 = 12;
/// With what.
const GONE: [i32; 4] = [libc::ENOTCONN, libc::ESTALE, libc::EIO, libc::ENODEV];

/// What goes wrong.
#[derive(Clone, Copy, Debug)]
enum Plan {
    Nothing,
    /// One fault, at the operation of a kind after so many that pass.
    Once(Operation, Fault, u64),
    /// Of each thousand operations so many, from a seed.
    Often(u64, u64),
}

struct Misbehaving {
    who: &'static str,
    plan: Mutex<Plan>,
    hangs_until: Mutex<Instant>,
    gone_for: AtomicU64,
    /// What was done to the store, and what the program did; told if it fails.
    told: Mutex<std::collections::VecDeque<String>>,
}

/// The last lines that are told of a history that failed.
const TOLD: usize = 400;

impl Misbehaving {
    fn new(who: &'static str) -> Arc<Self> {
        Arc::new(Misbehaving {
            who,
            plan: Mutex::new(Plan::Nothing),
            hangs_until: Mutex::new(Instant::now()),
            gone_for: AtomicU64::new(0),
            told: Mutex::default(),
        })
    }

    fn is_well(&self) {
        *self.plan.lock() = Plan::Nothing;
        *self.hangs_until.lock() = Instant::now();
        self.gone_for.store(0, Ordering::Relaxed);
        self.tell("well again".into());
    }

    /// The error of an operation while it is gone.
    fn gone(&self) -> Option<i32> {
        let less = |left: u64| left.checked_sub(1);
        let left = self.gone_for.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok()?;
        Some(GONE[(left % 4) as usize])
    }

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
        let until = *self.hangs_until.lock();
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        let name = label.file_name().unwrap_or_default().to_string_lossy();
        if let Some(errno) = self.gone() {
            self.tell(format!("    {}: {operation:?} {name}: gone, {errno}", self.who));
            return Verdict::Fail(errno);
        }
        let fault = self.fault(operation);
        let wrong = fault.map_or_else(String::new, |(fault, _)| format!(": {fault:?}"));
        self.tell(format!("    {}: {operation:?} {name}{wrong}", self.who));
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
            Some((Fault::Hung, _)) => {
                *self.hangs_until.lock() = Instant::now() + HANGS;
                std::thread::sleep(HANGS);
                Verdict::Pass
            }
            Some((Fault::Gone, _)) => {
                self.gone_for.store(GONE_FOR, Ordering::Relaxed);
                Verdict::Fail(libc::ENOTCONN)
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Write {
        name: u64,
        at: u64,
        len: u64,
    },
    Truncate {
        name: u64,
        size: u64,
    },
    Mode {
        name: u64,
        mode: u32,
    },
    Open {
        name: u64,
    },
    Close {
        name: u64,
    },
    Sync {
        name: u64,
    },
    Flush {
        name: u64,
    },
    Evict {
        name: u64,
    },
    Unlink {
        name: u64,
    },
    Rename {
        from: u64,
        to: u64,
    },
    Link {
        from: u64,
        to: u64,
    },
    /// The directory is made, or removed if it is empty, or gets another name.
    Directory,
}

fn plan(seed: u64) -> Vec<Step> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..STEPS)
        .map(|_| {
            let mut below = |most: u64| random(&mut state) % most;
            let (kind, name, other) = (below(100), below(NAMES), below(NAMES));
            match kind {
                0..32 => Step::Write { name, at: below(900_000), len: 1 + below(400_000) },
                32..40 => Step::Truncate { name, size: [0, below(1_000_000)][below(2) as usize] },
                40..44 => Step::Mode { name, mode: 0o600 + below(8) as u32 },
                44..50 => Step::Open { name },
                50..56 => Step::Close { name },
                56..62 => Step::Sync { name },
                62..78 => Step::Flush { name },
                78..84 => Step::Evict { name },
                84..88 => Step::Unlink { name },
                88..93 => Step::Rename { from: name, to: other },
                93..96 => Step::Link { from: name, to: other },
                _ => Step::Directory,
            }
        })
        .collect()
}

fn file_name(name: u64) -> String {
    format!("file{name}")
}

fn directory_name(number: u64) -> String {
    format!("directory{number}")
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let names = entries.map(|name| name.into_string().unwrap());
    names.filter(|name| name != ".forebay").collect()
}

/// A history, and what was acknowledged in it.
struct Round {
    rig: Rig,
    /// The one that misbehaves.
    by: Arc<Misbehaving>,
    what: String,
    /// The name of the directory, if there is one.
    dir: Option<u64>,
    names: BTreeMap<u64, usize>,
    files: Vec<(Vec<u8>, u32)>,
    open: BTreeMap<u64, u64>,
}

/// Which device misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Device {
    BackingStore,
    Tier,
}

impl Round {
    fn new(what: String, device: Device, plan: Plan) -> Self {
        let (backing, tier) = (Misbehaving::new("store"), Misbehaving::new("tier"));
        let mut rig = Rig::unstarted(&[MIB], backing.clone(), |config| {
            config.backing_timeout = Duration::from_millis(60);
            config.attr_timeout = Duration::ZERO;
        });
        // Without one in front of it the kernel copies from the tier's files by itself.
        if device == Device::Tier {
            rig.by_tier = Some(tier.clone());
        }
        rig.start();
        let by = if device == Device::Tier { tier } else { backing };
        *by.plan.lock() = plan;
        let (names, open) = (BTreeMap::new(), BTreeMap::new());
        Round { rig, by, what, dir: None, names, files: Vec::new(), open }
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

    /// The directory that a name is in, if it is there, and the name in it.
    fn at(&self, name: u64) -> Option<(Ino, Vec<u8>)> {
        let bytes = file_name(name).into_bytes();
        if name < IN_DIRECTORY {
            return Some((Ino::ROOT, bytes));
        }
        let dir = directory_name(self.dir?);
        let look = || self.rig.node().lookup(&CONTEXT, Ino::ROOT, dir.as_bytes());
        let found = self.again(("look up", &dir), look);
        Some((found.unwrap_or_else(|| panic!("{}: {dir} is gone", self.what)).ino, bytes))
    }

    fn find(&self, name: u64) -> Option<Ino> {
        let (dir, bytes) = self.at(name)?;
        let look = || self.rig.node().lookup(&CONTEXT, dir, &bytes);
        let found = self.again(("look up", name), look);
        assert_eq!(found.is_some(), self.names.contains_key(&name), "{}: {name}", self.what);
        found.map(|found| found.ino)
    }

    /// The file behind a name, made if there is none, open; none without its directory.
    fn opened(&mut self, name: u64) -> Option<(u64, bool)> {
        if let Some(fh) = self.open.get(&name) {
            return Some((*fh, false));
        }
        let (dir, bytes) = self.at(name)?;
        let node = self.rig.node().clone();
        let fh = match self.find(name) {
            Some(ino) => self.again(("open", name), || node.open(&CONTEXT, ino, libc::O_RDWR)).fh,
            None => {
                let made = self.again(("create", name), || {
                    node.create_and_open(
                        &CONTEXT,
                        dir,
                        &bytes,
                        NewFile { mode: 0o644, umask: 0 },
                        libc::O_RDWR,
                    )
                });
                self.files.push((Vec::new(), 0o644));
                self.names.insert(name, self.files.len() - 1);
                made.1.fh
            }
        };
        Some((fh, true))
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
                let Some((fh, fresh)) = self.opened(name) else { return };
                let data = noise(index as u64 + 7, len);
                // As much as there is room for is written, as by any file system.
                let mut done = 0;
                while done < data.len() {
                    let (from, rest) = (at + done as u64, &data[done..]);
                    done += self.again(step, || node.write(&CONTEXT, fh, from, rest));
                }
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
                if let Some((fh, true)) = self.opened(name) {
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
                    drop(node.writeback().reconcile(ino));
                }
            }
            Step::Evict { name } => {
                if let Some(ino) = self.find(name) {
                    drop(node.residency().evict_file(ino));
                }
            }
            Step::Directory => self.directory_step(),
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
                let Some((dir, bytes)) = self.at(name) else { return };
                self.again(step, || node.unlink(&CONTEXT, dir, &bytes));
                self.names.remove(&name);
            }
            Step::Rename { from, to } => {
                self.close(from);
                self.close(to);
                if self.find(from).is_none() {
                    return;
                }
                let (Some(old), Some(new)) = (self.at(from), self.at(to)) else { return };
                let (old, new) = (NameIn::new(old.0, &old.1), NameIn::new(new.0, &new.1));
                self.again(step, || node.rename(&CONTEXT, old, new, 0));
                if self.names.get(&from) != self.names.get(&to)
                    && let Some(file) = self.names.remove(&from)
                {
                    self.names.insert(to, file);
                }
            }
            Step::Link { from, to } => {
                let (Some(ino), None) = (self.find(from), self.find(to)) else { return };
                let Some((dir, bytes)) = self.at(to) else { return };
                self.again(step, || node.link(&CONTEXT, ino, dir, &bytes));
                self.names.insert(to, self.names[&from]);
            }
            _ => {}
        }
    }

    fn directory_step(&mut self) {
        let node = self.rig.node().clone();
        let name = self.dir.map(directory_name);
        self.dir = match (self.dir, name) {
            (Some(number), Some(name)) if self.names.range(IN_DIRECTORY..).next().is_none() => {
                self.again(&name, || node.rmdir(&CONTEXT, Ino::ROOT, name.as_bytes()));
                assert_eq!(self.dir, Some(number));
                None
            }
            (Some(number), Some(name)) => {
                let new = directory_name(1 - number);
                let [old, new] = [&name, &new].map(|name| NameIn::new(Ino::ROOT, name.as_bytes()));
                self.again(&name, || node.rename(&CONTEXT, old, new, 0));
                Some(1 - number)
            }
            _ => {
                let name = directory_name(0);
                let make = || node.mkdir(&CONTEXT, Ino::ROOT, name.as_bytes(), 0o755, 0);
                let _made = self.again(&name, make);
                Some(0)
            }
        };
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
        self.by.is_well();
        for name in self.open.keys().copied().collect::<Vec<_>>() {
            self.close(name);
        }
        if dies {
            self.rig.crash();
            self.rig.start();
        }
        let node = self.rig.node();
        let until = Instant::now() + Duration::from_secs(20);
        let left = node.writeback().drain(until, &mut |_| true).unwrap();
        let left = (left.entries, left.bytes);
        assert_eq!(left, (0, 0), "{}: {:?}", self.what, node.writeback().last_backlog_error());
        assert_eq!(
            node.writeback().conflicts().0,
            0,
            "{}: {:?}",
            self.what,
            node.writeback().conflicts().1
        );
        assert!(
            node.writeback().refused().is_empty(),
            "{}: {:?}",
            self.what,
            node.writeback().refused()
        );
        for (name, file) in &self.names {
            let (wanted, mode) = &self.files[*file];
            let plain = self.plain(*name);
            let found = std::fs::read(&plain).unwrap_or_else(|error| {
                panic!("{}: {name} is not in the backing store: {error}", self.what)
            });
            self.same(&found, wanted, (name, "below"));
            let below = std::os::unix::fs::MetadataExt::mode(&plain.metadata().unwrap());
            assert_eq!(below & 0o7777, *mode, "{}: {name}", self.what);
            self.look(*name, "the end");
        }
        let mut below = names_in(&self.rig.backing());
        if let Some(dir) = self.dir {
            below.append(&mut names_in(&self.rig.backing().join(directory_name(dir))));
        }
        let mut wanted: Vec<String> = self.names.keys().copied().map(file_name).collect();
        wanted.extend(self.dir.map(directory_name));
        below.sort();
        wanted.sort();
        assert_eq!(below, wanted, "{}: names below", self.what);
        let spilled = spilled(&self.rig.backing());
        assert_eq!(spilled, Vec::<PathBuf>::new(), "{}: spill files", self.what);
    }
}

impl Round {
    /// Where a file lies in the backing store.
    fn plain(&self, name: u64) -> PathBuf {
        let dir = self.dir.filter(|_| name >= IN_DIRECTORY).map(directory_name);
        self.rig.backing().join(dir.unwrap_or_default()).join(file_name(name))
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
fn spilled(backing: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(backing.join(".forebay/spill")).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn history(what: String, seed: u64, (device, faults): (Device, Plan), dies: bool) {
    let mut round = Round::new(what, device, faults);
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

/// Each fault once at each kind of operation, after so many that pass.
fn one_at_a_time(device: Device, kinds: &[Operation], after: &[u64]) {
    let mut all = Vec::new();
    for kind in kinds {
        for fault in FAULTS {
            for skip in after {
                all.push((*kind, fault, *skip));
            }
        }
    }
    rounds(&all, |&(kind, fault, skip)| {
        let plan = Plan::Once(kind, fault, skip);
        history(format!("{device:?}: {plan:?}"), 1 + skip % 4, (device, plan), false);
    });
}

/// Histories with many faults; after some of them the daemon dies.
fn at_random(device: Device) {
    let number = |name, or| std::env::var(name).map_or(or, |text| text.parse().unwrap());
    let first = number(FIRST, 0);
    let all: Vec<u64> = (first..first + number(MORE, HISTORIES)).collect();
    rounds(&all, |&seed| {
        let per_mille = [10, 50, 150][seed as usize % 3];
        let what = format!("{device:?}: seed {seed}, {per_mille} per mille");
        let plan = Plan::Often(per_mille, seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1);
        history(what, seed + 100, (device, plan), seed % 4 == 3);
    });
}

#[test]
fn store_with_one_fault_at_each_operation_when_well_again_then_has_what_was_acknowledged() {
    one_at_a_time(Device::BackingStore, &KINDS, &[0, 5]);
}

#[test]
fn store_with_many_faults_when_well_again_then_has_what_was_acknowledged() {
    at_random(Device::BackingStore);
}

#[test]
fn tier_with_one_fault_at_each_operation_when_well_again_then_the_store_has_what_was_acknowledged()
{
    one_at_a_time(Device::Tier, &KINDS_OF_TIERS, &[3]);
}

#[test]
fn tier_with_many_faults_when_well_again_then_the_store_has_what_was_acknowledged() {
    at_random(Device::Tier);
}

#[test]
fn file_whose_tier_fails_at_its_close_when_well_again_then_written_back_by_itself() {
    let tier = Arc::new(Flaky::new(1));
    let mut rig = Rig::unstarted(&[MIB], Arc::new(Transparent), |config| {
        config.writeback = WritebackPolicy::After(Duration::from_millis(10));
    });
    rig.by_tier = Some(tier.clone());
    rig.start();
    rig.put("file", b"the first version");
    rig.drain();
    let fh = rig.open("file", libc::O_RDWR);
    rig.write(fh, 0, b"the next version, which is longer");
    tier.set_rules([Rule::always(Operation::Stat, libc::EIO)]);
    rig.node().release(fh);
    tier.set_rules([]);
    let is_below = || rig.plain("file") == b"the next version, which is longer";
    assert!(wait_for(LIMIT, is_below), "{:?}", rig.node().writeback().last_backlog_error());
    rig.drain();
}
