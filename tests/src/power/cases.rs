//! Single cuts after what was lost by one once, or could be.

use std::collections::BTreeSet;

use xxhash_rust::xxh3::xxh3_64;

use super::site::{DISKS, Layout, MountSettings};
use super::work::{Op, Place, RWF_DSYNC, RWF_SYNC, Sync};
use super::{found, product};
use crate::os::OFlags;
use crate::random::Random;

/// When the power fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    /// After the last step.
    AtTheEnd,
    /// In the last step, in which this file of the backing store is written in place. The first of the
    /// disks fails first, the backing store has all that it was given, and the others fail then.
    WhileWrittenBack {
        /// Its name.
        name: String,
    },
}

/// Steps of one worker, and the disks that are cut after them.
#[allow(missing_docs)] // They say what they are.
pub struct Case {
    pub what: String,
    pub layout: Layout,
    pub settings: MountSettings,
    /// Steps after which the daemon is killed, and another one goes on; none: it is not.
    pub first: Vec<Op>,
    pub ops: Vec<Op>,
    pub cut: &'static [&'static str],
    pub when: When,
    /// It is only a case if the kernel opens a file past the daemon.
    pub by_the_kernel: bool,
    /// It is tried whichever are drawn.
    pub always: bool,
}

impl Case {
    /// A case of the most usual kind.
    pub fn new(
        what: &str,
        settings: MountSettings,
        ops: Vec<Op>,
        cut: &'static [&'static str],
    ) -> Self {
        Self {
            what: what.into(),
            layout: Layout::Apart,
            settings,
            first: Vec::new(),
            ops,
            cut,
            when: When::AtTheEnd,
            by_the_kernel: false,
            always: false,
        }
    }
}

impl Case {
    /// What it is, and what is cut.
    pub fn told(&self) -> String {
        let (passthrough, cut) = (self.settings.passthrough, self.cut.join(" "));
        let killed = match self.first.len() {
            0 => String::new(),
            steps => format!(", killed after {steps} steps"),
        };
        format!("{}{killed}, passthrough {passthrough}, cut of {cut}", self.what)
    }

    /// The same, but for a kill of the daemon after one of its steps, if there is one after which nothing
    /// is open.
    pub fn killed_somewhere(&mut self, random: &mut Random) {
        let mut held = BTreeSet::new();
        let places = self.ops.iter().map(|op| {
            match op {
                Op::Hold { name, .. } | Op::HoldDir { name } => drop(held.insert(name)),
                Op::Release { name } => drop(held.remove(name)),
                _ => {}
            }
            held.is_empty()
        });
        let places: Vec<_> =
            places.enumerate().filter(|(_, is_one)| *is_one).map(|at| at.0).collect();
        let places = &places[..places.len().saturating_sub(1)];
        if self.first.is_empty() && !places.is_empty() {
            let after = random.pick(places) + 1;
            self.first = self.ops.drain(..after).collect();
            // The daemon that goes on may put files elsewhere, and has opened none of those before.
            self.ops.retain(|op| !matches!(op, Op::Look { .. }));
            self.by_the_kernel = false;
        }
    }
}

/// A write that has stamps of its own, whatever else is written to a file, if the version differs.
pub fn write_version(name: &str, version: u64, (at, count): (usize, usize), sync: Sync) -> Op {
    let stamp =
        (xxh3_64(name.as_bytes()) >> 32 << 32) + ((version + 1) << 24) + ((at as u64) << 13);
    Op::Write { name: name.into(), at, count, stamp, fresh: false, sync }
}

/// The name of one of several files that take room.
pub fn filler(of: &str, number: usize) -> String {
    format!("{of}-{number}")
}

const TIERS: &[&str] = &["tier0", "tier1"];
const D_SYNC: Sync = Sync::Open(OFlags::DSYNC);

fn write(name: &str, at: usize, count: usize, sync: Sync) -> Op {
    // No two writes of a file in these cases have the same place and length.
    let stamp =
        (xxh3_64(name.as_bytes()) >> 32 << 24) + ((at as u64) << 16) + ((count as u64) << 12);
    Op::Write { name: name.into(), at, count, stamp, fresh: false, sync }
}

fn drained(name: &str) -> Vec<Op> {
    vec![write(name, 0, 8, Sync::Fsync), Op::Drain { name: name.into() }]
}

/// It goes from the tiers, and the case goes on when it is gone.
pub fn evicted(name: &str) -> Vec<Op> {
    let look = Op::Look { name: name.into(), place: Place::Nowhere };
    vec![Op::Evict { name: name.into() }, look]
}

/// Makes durable what the disks' logs have, whoever it is of.
fn commit(name: &str) -> Op {
    write(&format!("beside-{name}"), 0, 1, Sync::Fsync)
}

/// Takes the name of a case, its `--writeback`, its steps, and what is cut.
type Add<'a> = dyn FnMut(&'static str, &'static str, Vec<Op>, &'static [&'static str]) + 'a;

/// Files, each of eight blocks, of which some number is more than the tiers have room for.
pub fn fillers(of: &str, number: usize) -> Vec<Op> {
    (0..number).map(|number| write(&filler(of, number), 0, 8, Sync::None)).collect()
}

/// More blocks than both tiers have room for.
const BEYOND: usize = 2000;

/// New files and copies, synced in every way.
fn synced(case: &mut Add<'_>, named: &dyn Fn(&str) -> String) {
    for (what, sync) in [
        ("O_DSYNC on a new file", D_SYNC),
        ("O_SYNC on a new file", Sync::Open(OFlags::SYNC)),
        ("fdatasync of a new file", Sync::Fdatasync),
    ] {
        case(what, "1h", vec![write(&named(what), 0, 3, sync)], &DISKS[..]);
    }
    for (what, sync) in [
        ("O_DSYNC on a copy", D_SYNC),
        ("RWF_DSYNC on a copy", RWF_DSYNC),
        ("RWF_SYNC on a copy", RWF_SYNC),
        ("fdatasync of a copy", Sync::Fdatasync),
        ("msync of a copy", Sync::Msync),
    ] {
        let name = named(what);
        let ops = [drained(&name), vec![write(&name, 2, 3, sync)]].concat();
        case(what, "1h", ops, &DISKS[..]);
    }
}

/// What is written past the tiers, to spill files.
fn past_the_tiers(case: &mut Add<'_>, named: &dyn Fn(&str) -> String) {
    for (what, sync) in [
        ("a new file past the tiers", Sync::Fsync),
        ("fdatasync of a new file past the tiers", Sync::Fdatasync),
        ("O_DSYNC of a new file past the tiers", D_SYNC),
    ] {
        case(what, "1h", vec![write(&named(what), 0, BEYOND, sync)], &DISKS[..]);
    }
    // Over a version that the backing store has, which shows through what was not written.
    let name = named("over");
    let mut ops = vec![write(&name, 0, BEYOND, Sync::Fsync), Op::Drain { name: name.clone() }];
    ops.push(write(&name, 40, BEYOND - 50, Sync::Fsync));
    case("a known file that is changed past the tiers", "1h", ops.clone(), &DISKS[..]);
    ops.push(write(&name, 10, 3, Sync::None));
    ops.push(commit(&name));
    case("a spilled file, changed and not synced", "1h", ops, TIERS);
    for (what, last) in [
        ("a removal of a spilled file that nobody has synced", None),
        ("a spilled file, emptied and not synced", Some(0)),
    ] {
        let name = named(what);
        let last = match last {
            None => Op::Remove { name: name.clone(), dir: false },
            Some(blocks) => Op::Truncate { name: name.clone(), blocks, sync: false },
        };
        let ops = vec![write(&name, 0, BEYOND, Sync::Fsync), last, Op::Pause { millis: 500 }];
        case(what, "1h", ops, &["state"]);
    }
    let name = named("published");
    let ops = vec![write(&name, 0, BEYOND, Sync::Fsync), Op::Pause { millis: 1500 }, commit(&name)];
    case("a write-back of a spilled file", "close", ops, &["state", "backing"]);
}

/// What was synced, and had to go from the tiers.
fn evictions(case: &mut Add<'_>, named: &dyn Fn(&str) -> String) {
    for (what, cut) in [
        ("eviction of what was synced", &["backing"][..]),
        ("eviction of what was synced, and all is cut", &DISKS[..]),
    ] {
        let name = named(what);
        let mut ops = vec![write(&name, 0, 8, Sync::Fsync)];
        ops.extend(fillers(&name, 300));
        ops.push(Op::Pause { millis: 300 });
        case(what, "1h", ops, cut);
    }
    let name = named("evicted");
    let mut ops = [drained(&name), evicted(&name)].concat();
    ops.push(write(&name, 3, 2, Sync::Fsync));
    case("a change of what was evicted", "1h", ops, &DISKS[..]);
    let name = named("fetched");
    let mut ops = [drained(&name), evicted(&name)].concat();
    ops.extend([Op::Read { name: name.clone() }, commit(&name)]);
    case("a copy that was evicted and fetched again", "1h", ops, TIERS);
}

/// All cases.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for passthrough in ["off", "readwrite"] {
        let mut case = |what, writeback, ops, cut| {
            let mut case = Case::new(what, MountSettings::of(passthrough, writeback), ops, cut);
            // The only one in which a file has to go because others need its room.
            case.always = passthrough == "readwrite" && what.ends_with("and all is cut");
            cases.push(case);
        };
        let named = |name: &str| format!("{name}-{passthrough}");
        synced(&mut case, &named);
        let name = named("unsynced");
        let ops = [drained(&name), vec![write(&name, 2, 3, Sync::None), commit(&name)]].concat();
        case("a change of a copy that nobody has synced", "1h", ops, TIERS);
        let ops = vec![Op::Read { name: "large0".into() }, commit(&named("read"))];
        case("a partly resident copy", "1h", ops, TIERS);
        let name = named("demoted");
        let mut ops = vec![write(&name, 0, 8, Sync::Fsync)];
        ops.extend(
            (0..150).map(|number| write(&named(&format!("fill{number}")), 0, 8, Sync::None)),
        );
        ops.push(Op::Pause { millis: 300 });
        case("demotion of what was synced", "1h", ops, TIERS);
        let name = named("removed");
        let ops = vec![
            write(&name, 0, 8, Sync::Fsync),
            Op::Remove { name: name.clone(), dir: false },
            Op::Pause { millis: 100 },
        ];
        case("a removal that nobody has synced", "1h", ops, &["state"]);
        past_the_tiers(&mut case, &named);
        evictions(&mut case, &named);
        let name = named("flushed");
        let ops = vec![
            write(&name, 0, 8, Sync::Fsync),
            Op::Pause { millis: 700 },
            write(&name, 1, 2, Sync::Fsync),
            Op::Pause { millis: 700 },
            commit(&name),
        ];
        case("a write-back", "close", ops, &["tier0", "tier1", "backing"]);
        for writeback in ["1h", "close"] {
            for what in ["a new file, not synced", "a known file, changed and not synced"] {
                let (old, new) =
                    (named(&format!("old {writeback}")), named(&format!("{what} {writeback}")));
                let mut ops = drained(&old);
                if what.starts_with("a known") {
                    ops.extend(drained(&new));
                }
                ops.push(write(&new, 0, 3, Sync::None));
                ops.push(Op::Move { from: new, to: old, dir: false });
                case(what, writeback, ops, TIERS);
            }
        }
    }
    let others = [replacements(), written_anew(), product::all(), found::all()];
    cases.into_iter().chain(others.into_iter().flatten()).collect()
}

/// Files that the backing store has, emptied and written anew with syncs of which the daemon need not be
/// told, and longer after that than anybody has synced.
fn written_anew() -> Vec<Case> {
    let mut cases = Vec::new();
    for passthrough in ["read", "readwrite"] {
        for sync in [RWF_DSYNC, Sync::Fsync] {
            for cut in [TIERS, &DISKS[..]] {
                let name = format!("anew {}", cases.len());
                let mut ops = drained(&name);
                ops.push(write_anew(&name, 3, sync));
                ops.push(write(&name, 3, 5, Sync::None));
                ops.push(write_anew(&name, 7, sync));
                ops.push(write(&name, 7, 2, Sync::None));
                let settings = MountSettings::of(passthrough, "1h");
                let what = "what is emptied, written with syncs, and grows";
                cases.push(Case::new(what, settings, ops, cut));
            }
        }
    }
    cases
}

fn write_anew(name: &str, count: usize, sync: Sync) -> Op {
    write(name, 0, count, sync).emptying()
}

/// Files that nobody has synced, and that replace what was durable in one way or other.
fn replacements() -> Vec<Case> {
    let mut cases = Vec::new();
    let ways = ["read", "readwrite"].iter().flat_map(|way| [(*way, "1h"), (*way, "200ms")]);
    for (passthrough, writeback) in ways {
        for cut in [TIERS, &DISKS[..], &["tier0"]] {
            let number = cases.len();
            let named = |what: &str| format!("{what} {number}");
            let mut case = |what, ops: Vec<Vec<Op>>| {
                let settings = MountSettings::of(passthrough, writeback);
                cases.push(Case::new(what, settings, ops.concat(), cut));
            };
            let name = named("synced");
            let ops = vec![write(&name, 0, 8, Sync::Fsync), replace(&name, 1), commit(&name)];
            case("a replacement of what is synced", vec![ops]);
            let name = named("drained");
            case(
                "a replacement of what is drained",
                vec![drained(&name), vec![replace(&name, 1), commit(&name)]],
            );
            let name = named("changed");
            let ops = vec![write(&name, 1, 2, Sync::Fdatasync), replace(&name, 1), commit(&name)];
            case("a replacement of what is drained and changed", vec![drained(&name), ops]);
            let name = named("twice");
            let ops = vec![
                write(&name, 0, 8, Sync::Fsync),
                replace(&name, 1),
                replace(&name, 2),
                commit(&name),
            ];
            case("two replacements of what is synced", vec![ops]);
            let (name, new) = (named("old"), named("new"));
            let ops = vec![
                write(&name, 0, 8, D_SYNC),
                write(&new, 0, 6, Sync::None),
                Op::Move { from: new, to: name.clone(), dir: true },
                commit(&name),
            ];
            case("a move over what is synced", vec![ops]);
            let (name, new) = (named("kept"), named("anew"));
            let anew = write_anew(&new, 3, Sync::None);
            let to = Op::Move { from: new.clone(), to: name.clone(), dir: true };
            let first = vec![write(&name, 0, 8, Sync::Fsync), write(&new, 0, 6, Sync::Fsync)];
            case(
                "a move of what is synced, emptied and written anew",
                vec![first, vec![anew, to, commit(&name)]],
            );
            let (name, new) = (named("full"), named("empty"));
            let to = Op::Move { from: new.clone(), to: name.clone(), dir: true };
            let emptied = Op::Truncate { name: new.clone(), blocks: 0, sync: true };
            let first =
                vec![write(&new, 0, 1, Sync::None), emptied, Op::Drain { name: new.clone() }];
            let then = vec![write(&new, 0, 3, Sync::None), to, commit(&name)];
            case("a move of what is drained empty", vec![drained(&name), first, then]);
        }
    }
    cases
}

/// A replacement that nobody syncs.
fn replace(name: &str, number: u64) -> Op {
    let stamp = (xxh3_64(name.as_bytes()) >> 32 << 24) + (number << 20);
    Op::Replace { name: name.into(), count: 4, stamp, sync: false, dir: true }
}
