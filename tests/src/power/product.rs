//! Single cuts after every combination of how a file was made durable, what it was then, and what became
//! of it afterwards.

use super::cases::{Case, evicted, filler, fillers, write_version};
use super::site::{DISKS, Layout, MountSettings};
use super::work::{Op, Place, RWF_DSYNC, RWF_SYNC, Sync};
use crate::os::OFlags;

/// The file that is made durable.
const FILE: &str = "file";
/// Another one, which the backing store has, if something is done to both.
const OTHER: &str = "other";
/// What nobody has synced.
const UNSYNCED: &str = "unsynced";
const ONE_TIER: &[&str] = &["tier0"];
const BACKING: &[&str] = &["backing"];
const BOTH: &[&str] = &["tier0", "backing"];
const TIERS: &[&str] = &["tier0", "tier1"];
/// More blocks than small tiers have room for.
const BEYOND_SMALL: usize = 500;
/// Files that fill both small tiers while they are open.
const ALL_ROOM: usize = 50;

/// Tiers that have room for the file of which a part is brought in.
const PARTIAL_TIERS: [&str; 2] = ["900K", "900K"];

const SYNCS: [(&str, Sync); 8] = [
    ("fsync", Sync::Fsync),
    ("fdatasync", Sync::Fdatasync),
    ("O_SYNC", Sync::Open(OFlags::SYNC)),
    ("O_DSYNC", Sync::Open(OFlags::DSYNC)),
    ("RWF_DSYNC", RWF_DSYNC),
    ("RWF_SYNC", RWF_SYNC),
    ("msync", Sync::Msync),
    ("syncfs", Sync::Syncfs),
];

/// What the file is when it is made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    New,
    Whole,
    Partial,
    Spilled,
    OnlySpilled,
}

const KINDS: [Kind; 5] = [Kind::New, Kind::Whole, Kind::Partial, Kind::Spilled, Kind::OnlySpilled];

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Nothing,
    Demoted,
    Drained,
    WrittenBack,
    Evicted,
    ReplacedUnsynced,
    MovedOverAnother,
    ExchangedForAnother,
    ExchangedForUnsynced,
    LinkedAndUnlinked,
    Removed,
    RemovedUnsynced,
    Emptied,
    EmptiedAndRewritten,
}

const EVENTS: [Event; 14] = [
    Event::Nothing,
    Event::Demoted,
    Event::Drained,
    Event::WrittenBack,
    Event::Evicted,
    Event::ReplacedUnsynced,
    Event::MovedOverAnother,
    Event::ExchangedForAnother,
    Event::ExchangedForUnsynced,
    Event::LinkedAndUnlinked,
    Event::Removed,
    Event::RemovedUnsynced,
    Event::Emptied,
    Event::EmptiedAndRewritten,
];

fn file(version: u64, at: usize, count: usize, sync: Sync) -> Op {
    write_version(FILE, version, (at, count), sync)
}

fn anew(version: u64, count: usize, sync: Sync) -> Op {
    write_version(FILE, version, (0, count), sync).emptying()
}

fn look(place: Place) -> Op {
    Op::Look { name: FILE.into(), place }
}

/// `name` has this many blocks in the backing store.
pub(super) fn drained(name: &str, count: usize) -> Vec<Op> {
    vec![write_version(name, 0, (0, count), Sync::Fsync), Op::Drain { name: name.into() }]
}

/// Files that are open, and leave no room on small tiers.
pub(super) fn fill_and_hold() -> Vec<Op> {
    let mut ops = Vec::new();
    for number in 0..ALL_ROOM {
        let name = filler("room", number);
        ops.push(Op::Hold { name: name.clone(), fresh: false });
        ops.push(write_version(&name, 0, (0, 8), Sync::None));
    }
    ops
}

/// They give their room back.
pub(super) fn make_room() -> Vec<Op> {
    let emptied = (0..ALL_ROOM).map(|number| filler("room", number));
    emptied
        .flat_map(|name| {
            let emptied = Op::Truncate { name: name.clone(), blocks: 0, sync: false };
            [emptied, Op::Release { name }]
        })
        .collect()
}

/// Makes durable what the disks' logs have, whoever it is of.
fn commit() -> Op {
    write_version("beside", 0, (0, 1), Sync::Fsync)
}

impl Kind {
    /// Makes the file so, and durable. A mapping needs bytes that are there, so a file that would have
    /// none is first written with fsync. `RWF_DSYNC` and `RWF_SYNC` say nothing of a name, so that of a new
    /// file is made durable besides.
    fn acknowledged(self, sync: Sync) -> Vec<Op> {
        let (first, is_mapped) = match sync {
            Sync::Msync => (Sync::Fsync, true),
            _ => (sync, false),
        };
        let mut ops = match self {
            Kind::New => vec![file(1, 0, 8, first)],
            Kind::Whole => {
                let ops = [drained(FILE, 8), vec![look(Place::Tier(0)), file(1, 2, 3, sync)]];
                return ops.concat();
            }
            Kind::Partial => {
                // Smaller files would be fetched whole.
                let then = vec![file(1, 60, 3, sync), look(Place::Partial)];
                return [drained(FILE, 200), evicted(FILE), then].concat();
            }
            Kind::Spilled => {
                let spilled = vec![anew(1, BEYOND_SMALL, first), look(Place::Spilled)];
                [drained(FILE, BEYOND_SMALL), spilled].concat()
            }
            Kind::OnlySpilled => {
                let spilled = vec![anew(1, 8, first), look(Place::OnlySpilled)];
                [drained(FILE, 8), evicted(FILE), fill_and_hold(), spilled].concat()
            }
        };
        if is_mapped {
            ops.push(file(2, 2, 4, sync));
        }
        if self == Kind::New && matches!(sync, Sync::Each(_)) {
            ops.push(Op::SyncDir { name: FILE.into() });
        }
        ops
    }
}

impl Event {
    /// Whether it can happen. Only what is whole on a tier is demoted, and only if there is another tier;
    /// what is on no tier is not evicted.
    fn is_possible(self, kind: Kind, layout: Layout) -> bool {
        match self {
            Event::Demoted => matches!(kind, Kind::New | Kind::Whole) && layout == Layout::Apart,
            Event::Evicted => kind != Kind::OnlySpilled,
            _ => true,
        }
    }

    /// What is cut besides: each tier alone, where the file leaves one, or goes to another.
    fn cuts(self, layout: Layout) -> &'static [&'static [&'static str]] {
        let moves = matches!(self, Event::Demoted | Event::Evicted) && layout == Layout::Apart;
        if moves { &[ONE_TIER, &["tier1"]] } else { &[] }
    }

    /// What was before the file was made durable.
    fn before(self) -> Vec<Op> {
        match self {
            Event::MovedOverAnother | Event::ExchangedForAnother => drained(OTHER, 6),
            _ => Vec::new(),
        }
    }

    fn after(self, kind: Kind) -> Vec<Op> {
        let (name, dir) = (FILE.to_string(), true);
        let other = OTHER.to_string();
        let pause = |millis| Op::Pause { millis };
        let unsynced = write_version(UNSYNCED, 0, (0, 6), Sync::None);
        match self {
            Event::Nothing => Vec::new(),
            Event::Demoted => [fillers("fill", 25), vec![look(Place::Tier(1))]].concat(),
            Event::Evicted => evicted(FILE),
            Event::Drained => vec![Op::Drain { name }],
            Event::WrittenBack => vec![pause(1000), commit()],
            Event::ReplacedUnsynced => {
                let replace = Op::Move { from: UNSYNCED.into(), to: name, dir };
                vec![unsynced, replace, commit()]
            }
            Event::MovedOverAnother => {
                vec![Op::Move { from: name, to: other, dir }, pause(100), commit()]
            }
            Event::ExchangedForAnother => {
                vec![Op::Exchange { one: name, other, dir }, pause(100), commit()]
            }
            Event::ExchangedForUnsynced => {
                let exchange = Op::Exchange { one: UNSYNCED.into(), other: name, dir };
                vec![unsynced, exchange, commit()]
            }
            Event::LinkedAndUnlinked => {
                let link = Op::Link { from: name.clone(), to: "link".into(), dir: false };
                vec![link, Op::Remove { name, dir }, pause(100)]
            }
            Event::Removed => vec![Op::Remove { name, dir }, pause(100)],
            Event::RemovedUnsynced => vec![Op::Remove { name, dir: false }, pause(100), commit()],
            Event::Emptied => vec![Op::Truncate { name, blocks: 0, sync: false }, pause(200)],
            Event::EmptiedAndRewritten => {
                let mut ops = vec![Op::Truncate { name: name.clone(), blocks: 0, sync: false }];
                if kind == Kind::OnlySpilled {
                    ops.extend(make_room());
                }
                let sync_dir = Op::SyncDir { name };
                ops.extend([pause(300), file(3, 0, 4, Sync::None), pause(200), sync_dir]);
                ops
            }
        }
    }
}

/// Whether a case is tried each time, and not only when it is drawn: one of each kind of loss that there
/// was, or could be, at least cost.
fn is_always(case: &Case, (kind, sync, event): (Kind, Sync, Event)) -> bool {
    let is_all = case.cut.len() == case.layout.disks().len();
    let (is_tiers, is_fsync) = (case.cut == TIERS, sync == Sync::Fsync);
    if case.layout == Layout::Default {
        return is_all && is_fsync && matches!((kind, event), (Kind::New, Event::Evicted));
    }
    case.settings.passthrough == "readwrite"
        && match (kind, event) {
            (Kind::New, Event::Nothing) => is_all && matches!(sync, Sync::Open(_)),
            (Kind::New, Event::Demoted) => is_tiers && is_fsync,
            (Kind::New, Event::Evicted) | (Kind::Partial | Kind::Spilled, Event::Drained) => {
                is_all && is_fsync
            }
            (Kind::Spilled | Kind::OnlySpilled, Event::Emptied | Event::EmptiedAndRewritten) => {
                is_tiers && is_fsync
            }
            _ => false,
        }
}

/// All combinations that make sense.
pub fn all() -> Vec<Case> {
    let apart = ["off", "readwrite"].map(|passthrough| {
        (Layout::Apart, passthrough, [TIERS, &["state"], BACKING, &DISKS].as_slice())
    });
    // There the state is cut with the tier that it lies on.
    let default = (Layout::Default, "read", [ONE_TIER, BACKING, BOTH].as_slice());
    let mut cases = Vec::new();
    for (layout, passthrough, cuts) in apart.into_iter().chain([default]) {
        for kind in KINDS {
            for (how, sync) in SYNCS {
                for event in EVENTS.into_iter().filter(|event| event.is_possible(kind, layout)) {
                    let what = format!("{how} of a file: {kind:?}, {event:?}, {layout:?}");
                    let ops = [event.before(), kind.acknowledged(sync), event.after(kind)].concat();
                    for cut in cuts.iter().chain(event.cuts(layout)) {
                        let settings = settings(kind, event, passthrough);
                        let mut case = Case::new(&what, settings, ops.clone(), cut);
                        case.layout = layout;
                        case.always = is_always(&case, (kind, sync, event));
                        cases.push(case);
                    }
                }
            }
        }
    }
    cases
}

fn settings(kind: Kind, event: Event, passthrough: &'static str) -> MountSettings {
    let writeback = if event == Event::WrittenBack { "500ms" } else { "1h" };
    let settings = MountSettings::of(passthrough, writeback).with_small_tiers();
    match kind {
        Kind::Partial => MountSettings { tiers: PARTIAL_TIERS, ..settings },
        _ => settings,
    }
}
