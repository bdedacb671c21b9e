//! The death of the daemon at each point while a few files overfill two tiers: what was acknowledged
//! is there after the next start, under its names, and nothing is left over.
//!
//! The daemon that dies is a process of its own, this program started again: a process that ends at
//! a point leaves just what it has done until then, which an error that is handled does not.
#![cfg(feature = "failpoints")]

mod rig;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_node::{Ino, NameIn, NewFile, Node, NodeConfig, SetAttr};
use forebay_store::decorators::Transparent;
use parking_lot::Mutex;
use rig::{CONTEXT, KIB, MIB, Rig, noise, random};

const TIERS: [u64; 2] = [3 * MIB / 2, 2 * MIB];
const NAMES: u64 = 6;
const STEPS: usize = 60;

const DIR: &str = "FOREBAY_FAULTS_DIR";
const SEED: &str = "FOREBAY_FAULTS_SEED";
const POINT: &str = "FOREBAY_FAULTS_POINT";
const SKIPPED: &str = "FOREBAY_FAULTS_SKIPPED";
/// How the process ends at its point.
const DIED: i32 = 86;

/// Left out: in the backing store's directories, which these rounds leave alone.
const ELSEWHERE: [&str; 2] = ["store.commit.before_copy_beside", "node.reconcile.before_make"];

fn change(config: &mut NodeConfig) {
    config.backing_timeout = Duration::from_millis(60);
    config.fetch_on_open_bytes = 128 * KIB;
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Write { name: u64, at: u64, len: u64 },
    Truncate { name: u64, size: u64 },
    Read { name: u64 },
    Flush { name: u64 },
    Evict { name: u64 },
    Unlink { name: u64 },
    Rename { from: u64, to: u64 },
    Link { from: u64, to: u64 },
    Drain,
}

/// The steps of a seed.
fn plan(seed: u64) -> Vec<Step> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..STEPS)
        .map(|_| {
            let mut below = |most: u64| random(&mut state) % most;
            let (kind, name, other) = (below(100), below(NAMES), below(NAMES));
            match kind {
                0..45 => Step::Write { name, at: below(1_400_000), len: 1 + below(500_000) },
                45..55 => Step::Truncate { name, size: [0, below(1_500_000)][below(2) as usize] },
                55..65 => Step::Read { name },
                65..75 => Step::Flush { name },
                75..80 => Step::Evict { name },
                80..84 => Step::Unlink { name },
                84..90 => Step::Rename { from: name, to: other },
                90..94 => Step::Link { from: name, to: other },
                _ => Step::Drain,
            }
        })
        .collect()
}

fn file_name(name: u64) -> String {
    format!("file{name}")
}

/// What the names lead to, and what is in it.
#[derive(Clone, Default, PartialEq, Eq)]
struct Model {
    names: BTreeMap<u64, usize>,
    files: Vec<Vec<u8>>,
}

impl Model {
    fn content(&self, name: u64) -> Option<&Vec<u8>> {
        self.names.get(&name).map(|&file| &self.files[file])
    }

    /// The content of a name, made if there is none.
    fn made(&mut self, name: u64) -> &mut Vec<u8> {
        let next = self.files.len();
        let file = *self.names.entry(name).or_insert(next);
        if file == next {
            self.files.push(Vec::new());
        }
        &mut self.files[file]
    }

    fn apply(&mut self, index: usize, step: Step) {
        match step {
            Step::Write { name, at, len } => {
                let data = noise(index as u64 + 7, len);
                let content = self.made(name);
                content.resize(content.len().max((at + len) as usize), 0);
                content[at as usize..][..data.len()].copy_from_slice(&data);
            }
            Step::Truncate { name, size } if self.names.contains_key(&name) => {
                self.made(name).resize(size as usize, 0);
            }
            Step::Unlink { name } => drop(self.names.remove(&name)),
            Step::Rename { from, to } => {
                if self.names.get(&from) != self.names.get(&to)
                    && let Some(file) = self.names.remove(&from)
                {
                    self.names.insert(to, file);
                }
            }
            Step::Link { from, to } => {
                if let (Some(&file), false) = (self.names.get(&from), self.names.contains_key(&to))
                {
                    self.names.insert(to, file);
                }
            }
            _ => {}
        }
    }
}

/// Published files with which a round begins.
fn begin() -> Model {
    let mut model = Model::default();
    (0..2).for_each(|name| *model.made(name) = noise(name + 1, 900_000 + name));
    model
}

fn found(node: &Node, name: u64) -> Option<Ino> {
    let found = node.lookup(&CONTEXT, Ino::ROOT, file_name(name).as_bytes()).unwrap();
    found.map(|found| found.ino)
}

fn write(node: &Node, name: u64, at: u64, data: &[u8]) {
    let fh = match found(node, name) {
        Some(ino) => node.open(&CONTEXT, ino, libc::O_RDWR).unwrap().fh,
        None => {
            let (dir, name) = (Ino::ROOT, file_name(name));
            let made = node.create_and_open(
                &CONTEXT,
                dir,
                name.as_bytes(),
                NewFile { mode: 0o644, umask: 0o022 },
                libc::O_RDWR,
            );
            made.unwrap().1.fh
        }
    };
    for (index, piece) in data.chunks(128 * KIB as usize).enumerate() {
        let at = at + index as u64 * 128 * KIB;
        assert_eq!(node.write(&CONTEXT, fh, at, piece).unwrap(), piece.len());
    }
    node.release(fh);
}

fn read(rig: &Rig, ino: Ino) -> Vec<u8> {
    let fh = rig.node().open(&CONTEXT, ino, libc::O_RDONLY).unwrap().fh;
    let data = rig.read_all(fh);
    rig.node().release(fh);
    data
}

fn carry_out(rig: &Rig, model: &Model, index: usize, step: Step) {
    let node = rig.node();
    match step {
        Step::Write { name, at, len } => write(node, name, at, &noise(index as u64 + 7, len)),
        Step::Drain => {
            let _left = node
                .writeback()
                .drain(Instant::now() + Duration::from_secs(2), &mut |_| true)
                .unwrap();
        }
        Step::Truncate { name, .. }
        | Step::Read { name }
        | Step::Flush { name }
        | Step::Evict { name }
        | Step::Unlink { name }
        | Step::Rename { from: name, .. }
        | Step::Link { from: name, .. } => {
            let Some(ino) = found(node, name) else { return };
            let bytes = file_name(name);
            let bytes = (Ino::ROOT, bytes.as_bytes());
            match step {
                Step::Truncate { size, .. } => {
                    let set = SetAttr { size: Some(size), ..SetAttr::default() };
                    let _cut = node.setattr(&CONTEXT, ino, &set).unwrap();
                }
                Step::Read { .. } => {
                    let data = read(rig, ino);
                    rig::same(&data, model.content(name).unwrap(), &format!("step {index}"));
                }
                // Later is good enough for both.
                Step::Flush { .. } => drop(node.writeback().reconcile(ino)),
                Step::Evict { .. } => drop(node.residency().evict_file(ino)),
                Step::Unlink { .. } => node.unlink(&CONTEXT, bytes.0, bytes.1).unwrap(),
                Step::Rename { to, .. } => {
                    let to = file_name(to);
                    node.rename(
                        &CONTEXT,
                        NameIn::new(bytes.0, bytes.1),
                        NameIn::new(Ino::ROOT, to.as_bytes()),
                        0,
                    )
                    .unwrap();
                }
                Step::Link { to, .. } if found(node, to).is_none() => {
                    let to = file_name(to);
                    let _linked = node.link(&CONTEXT, ino, Ino::ROOT, to.as_bytes()).unwrap();
                }
                _ => {}
            }
        }
    }
}

/// The process that dies: says by a byte when it has begun or done a step. Ends by itself when it
/// has not come by the point.
#[test]
#[ignore = "started by the other tests of this file"]
fn doomed() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let seed = std::env::var(SEED).unwrap().parse().unwrap();
    let mut rig = Rig::at(dir.clone(), &TIERS, Arc::new(Transparent), change);
    rig.start();
    let passed = AtomicU64::new(0);
    let skipped: u64 = std::env::var(SKIPPED).unwrap().parse().unwrap();
    let die = move || {
        if passed.fetch_add(1, Ordering::AcqRel) == skipped {
            // SAFETY: the process ends as it is.
            unsafe { libc::_exit(DIED) }
        }
    };
    fail::cfg_callback(std::env::var(POINT).unwrap(), die).unwrap();
    let mut progress = std::fs::File::create(dir.join("progress")).unwrap();
    let mut model = begin();
    for (index, step) in plan(seed).into_iter().enumerate() {
        progress.write_all(b"b").unwrap();
        carry_out(&rig, &model, index, step);
        model.apply(index, step);
        progress.write_all(b"d").unwrap();
    }
    // SAFETY: as above.
    unsafe { libc::_exit(0) }
}

/// Lets a daemon die after `skipped` passages of a point, starts another and compares. Says whether
/// the point was reached.
fn round(point: &str, skipped: u64, seed: u64) -> bool {
    let what = format!("{point} after {skipped}, seed {seed}");
    let mut rig = Rig::new(&TIERS, Arc::new(Transparent), change);
    rig.crash();
    for name in 0..2 {
        let content = begin().content(name).unwrap().clone();
        std::fs::write(rig.backing().join(file_name(name)), content).unwrap();
    }
    let ended = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "doomed", "--include-ignored", "--nocapture"])
        .envs([(POINT, point), (SKIPPED, &skipped.to_string()), (SEED, &seed.to_string())])
        .env(DIR, &rig.dir)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let died = ended.status.code() == Some(DIED);
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(died || ended.status.success(), "{what}: {:?}: {said}", ended.status);
    let progress = std::fs::read(rig.dir.join("progress")).unwrap_or_default();
    let count = |byte| progress.iter().filter(|&&found| found == byte).count();
    let (begun, done) = (count(b'b'), count(b'd'));
    let steps = plan(seed);
    let mut before = begin();
    steps[..done].iter().enumerate().for_each(|(index, &step)| before.apply(index, step));
    let mut after = before.clone();
    if begun > done {
        after.apply(done, steps[done]);
    }
    let what = format!("{what}, {done} steps done, then {:?}", steps.get(done));
    rig.start();
    let seen = look(&rig, &before, &after, &what);
    rig.drain();
    assert_eq!(rig.node().writeback().conflicts().0, 0, "{what}");
    drained(&rig, &seen, &what);
    sound(&mut rig, &what);
    died
}

/// Compares what the names lead to with what may be there: the old or the new, and of a write that
/// was cut off any part.
fn look(rig: &Rig, before: &Model, after: &Model, what: &str) -> BTreeMap<u64, Vec<u8>> {
    let mut seen = BTreeMap::new();
    for name in 0..NAMES {
        let content = found(rig.node(), name).map(|ino| read(rig, ino));
        let (old, new) = (before.content(name), after.content(name));
        let mixed = || {
            let (got, new) = (content.as_ref()?, new?);
            let none = Vec::new();
            let old = old.unwrap_or(&none);
            let at = |index: usize| {
                let byte = got[index];
                Some(&byte) == new.get(index) || *old.get(index).unwrap_or(&0) == byte
            };
            let grows =
                got.len() >= old.len().min(new.len()) && got.len() <= new.len().max(old.len());
            Some(grows && new.len() >= old.len() && (0..got.len()).all(at))
        };
        let fine = content.as_ref() == old || content.as_ref() == new || mixed() == Some(true);
        let len = |of: Option<&Vec<u8>>| of.map(Vec::len);
        let first =
            content.iter().zip(old).find_map(|(a, b)| a.iter().zip(b).position(|(a, b)| a != b));
        assert!(
            fine,
            "{what}: file{name} has {:?} bytes, not {:?} or {:?}, first difference at {first:?}",
            len(content.as_ref()),
            len(old),
            len(new)
        );
        seen.extend(content.map(|content| (name, content)));
    }
    seen
}

/// Nor does the check find anything, once the daemon has ended: no problem, and nothing set aside.
fn sound(rig: &mut Rig, what: &str) {
    rig.node.take().unwrap().stop(Duration::from_secs(10));
    let checked = rig.check(false);
    assert_eq!(checked.problems, 0, "{what}: {:?}", checked.details);
    assert!(checked.set_aside.is_empty(), "{what}: {:?}", checked.set_aside);
}

/// The backing store has just that, and nothing else.
fn drained(rig: &Rig, seen: &BTreeMap<u64, Vec<u8>>, what: &str) {
    for (&name, content) in seen {
        rig::same(&rig.plain(&file_name(name)), content, &format!("{what}: file{name} below"));
    }
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        let mut left = BTreeSet::new();
        for area in ["", ".forebay/tmp", ".forebay/spill", ".forebay/limbo"] {
            let entries =
                std::fs::read_dir(rig.backing().join(area)).into_iter().flatten().flatten();
            left.extend(entries.map(|entry| entry.file_name().to_string_lossy().into_owned()));
        }
        let known = ["tmp", "spill", "limbo", ".forebay"].map(String::from);
        let named = seen.keys().map(|&name| file_name(name));
        known.into_iter().chain(named).for_each(|name| _ = left.remove(&name));
        if left.is_empty() {
            return;
        }
        // What nobody waits for goes a moment later.
        assert!(Instant::now() < until, "{what}: left over: {left:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Rounds of all points, a few of them at a time.
fn rounds(seed: u64, skipped: u64) {
    let only = std::env::var("FOREBAY_FAIL_POINTS").unwrap_or_default();
    let points: Vec<_> = forebay_node::fail_points()
        .into_iter()
        .filter(|point| !ELSEWHERE.contains(point) && point.contains(&only))
        .collect();
    let next = AtomicUsize::new(0);
    let died = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(point) = points.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match std::panic::catch_unwind(|| round(point, skipped, seed)) {
                        Ok(reached) => _ = died.fetch_add(usize::from(reached), Ordering::Relaxed),
                        Err(_) => failures.lock().push(*point),
                    }
                }
            });
        }
    });
    let (failures, died) = (failures.into_inner(), died.into_inner());
    eprintln!("{died} of {} points ended the process", points.len());
    assert!(failures.is_empty(), "{failures:?}");
    assert!(died > 0);
}

#[test]
fn full_tiers_when_the_daemon_dies_at_a_point_then_all_that_was_acknowledged_is_there() {
    let seed = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok());
    rounds(seed.unwrap_or(1), 0);
}

#[test]
fn full_tiers_when_the_daemon_dies_at_a_point_later_then_all_that_was_acknowledged_is_there() {
    let seed = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok());
    rounds(seed.unwrap_or(2), 3);
}
