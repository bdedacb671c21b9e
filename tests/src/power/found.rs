//! Single cuts after what a reader of the code found, and not a random run.

use super::cases::{Case, When, evicted, filler, fillers, write_version};
use super::product::drained;
use super::site::{DISKS, MountSettings};
use super::work::{Op, Place, RWF_DSYNC, Sync};

const TIERS: &[&str] = &["tier0", "tier1"];
/// A file that takes a while to copy.
const SLOW: usize = 8000;

/// All of them.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for cut in [TIERS, &DISKS] {
        let before = cases.len();
        cases.push(older_since_its_open(cut));
        for is_closed in [false, true] {
            for grows_late in [false, true] {
                cases.push(replacing_after_a_part_was_synced(cut, is_closed, grows_late));
            }
        }
        cases[before..].iter_mut().for_each(|case| case.always = cut == TIERS);
    }
    for passthrough in ["off", "readwrite"] {
        for cut in [TIERS, &DISKS] {
            let mut case = exchanged_after_a_replacement(passthrough, cut);
            case.always = passthrough == "readwrite" && cut == TIERS;
            cases.push(case);
        }
    }
    for (passthrough, is_empty) in [("off", true), ("readwrite", true), ("off", false)] {
        for cut in [TIERS, &DISKS] {
            cases.push(durable_as_it_took_a_name(passthrough, is_empty, cut));
        }
    }
    for second in Second::ALL {
        for cut in [TIERS, &DISKS] {
            cases.push(replaced_by_one_of_two_names(second, cut));
        }
    }
    for passthrough in ["off", "readwrite"] {
        for cut in [&["tier0"], TIERS, &DISKS] {
            let mut case = moved_since_it_was_written_back(passthrough, cut);
            case.always = passthrough == "readwrite" && cut == TIERS;
            cases.push(case);
        }
    }
    cases.extend(changed_after_a_kill());
    cases.push(written_back_in_place());
    cases.extend(evicted_from_a_new_directory());
    cases.extend(names_and_attributes());
    cases
}

fn by_the_kernel(what: &str, ops: Vec<Op>, cut: &'static [&'static str]) -> Case {
    let mut case = Case::new(what, MountSettings::of("readwrite", "1h"), ops, cut);
    case.by_the_kernel = true;
    case
}

/// A new file, opened so that the kernel writes it alone, of which the backing store gets a version only
/// then.
fn older_since_its_open(cut: &'static [&'static str]) -> Case {
    let name = || "file".to_string();
    let part = |version, at, count, sync| write_version("file", version, (at, count), sync);
    let ops = vec![
        part(0, 0, 1, Sync::None),
        Op::Pause { millis: 100 },
        Op::Hold { name: name(), fresh: true },
        part(1, 0, 4, Sync::None),
        Op::Drain { name: name() },
        part(2, 0, 1, RWF_DSYNC),
        part(2, 4, 4, Sync::None),
        Op::Release { name: name() },
        Op::Pause { millis: 200 },
        Op::SyncDir { name: name() },
    ];
    by_the_kernel("a file that got its older version while it was open", ops, cut)
}

/// A new file, opened so that the kernel writes it alone, that takes the name of a known one, and is longer
/// than anybody has synced.
fn replacing_after_a_part_was_synced(
    cut: &'static [&'static str],
    is_closed: bool,
    grows_late: bool,
) -> Case {
    let (name, old) = ("file".to_string(), "old".to_string());
    let mut ops = drained(&old, 4);
    ops.push(write_version(&name, 0, (0, 1), Sync::None));
    ops.push(Op::Pause { millis: 100 });
    ops.push(Op::Hold { name: name.clone(), fresh: true });
    ops.push(write_version(&name, 1, (0, 4), RWF_DSYNC));
    let grow = |name: &str| write_version(name, 2, (4, 4), Sync::None);
    if !grows_late {
        ops.push(grow(&name));
    }
    if is_closed {
        ops.extend([Op::Release { name: name.clone() }, Op::Pause { millis: 100 }]);
    }
    ops.push(Op::Move { from: name.clone(), to: old.clone(), dir: false });
    if grows_late {
        // By what is held under its first name, if it still is.
        ops.push(if is_closed {
            grow(&old)
        } else {
            Op::Renamed { name: name.clone(), to: old.clone() }
        });
        if !is_closed {
            ops.push(grow(&old));
        }
    }
    ops.extend([Op::Release { name: old.clone() }, Op::Release { name }]);
    ops.extend([Op::Pause { millis: 200 }, Op::SyncDir { name: old }]);
    let closed = if is_closed { "closed" } else { "open" };
    let grows = if grows_late { "after" } else { "before" };
    let what =
        format!("a {closed} file, a part of it synced, moved over another; grows {grows} it");
    by_the_kernel(&what, ops, cut)
}

/// A file that nobody has synced takes the name of a known one, and then that of another.
fn exchanged_after_a_replacement(passthrough: &'static str, cut: &'static [&'static str]) -> Case {
    let (one, other) = ("one".to_string(), "other".to_string());
    let new = write_version("new", 1, (0, 4), Sync::None);
    let replace = Op::Move { from: "new".into(), to: one.clone(), dir: true };
    let exchange = Op::Exchange { one: one.clone(), other: other.clone(), dir: true };
    let beside = write_version("beside", 0, (0, 1), Sync::Fsync);
    let ops = [drained(&one, 8), drained(&other, 6), vec![new, replace, exchange, beside]];
    let what = "an unsynced file that has replaced a known one, exchanged for another";
    Case::new(what, MountSettings::of(passthrough, "1h"), ops.concat(), cut)
}

/// A file that the backing store has under an earlier name is written anew, and takes the name of another one.
fn moved_since_it_was_written_back(
    passthrough: &'static str,
    cut: &'static [&'static str],
) -> Case {
    let (name, other, old) = ("file".to_string(), "other".to_string(), "old".to_string());
    let moved =
        |from: &String, to: &String| Op::Move { from: from.clone(), to: to.clone(), dir: true };
    let ops = vec![
        moved(&other, &name),
        write_version(&name, 2, (0, 6), Sync::None).emptying(),
        moved(&name, &old),
    ];
    let ops = [drained(&old, 8), drained(&other, 4), ops].concat();
    let what =
        "a file that was moved since it was written back, written anew and moved over another";
    Case::new(what, MountSettings::of(passthrough, "1h"), ops, cut)
}

/// A file that the backing store has takes the name of another one, and is written anew after that.
fn durable_as_it_took_a_name(
    passthrough: &'static str,
    is_empty: bool,
    cut: &'static [&'static str],
) -> Case {
    let (name, old) = ("file".to_string(), "old".to_string());
    let new = match is_empty {
        true => vec![
            Op::Hold { name: name.clone(), fresh: true },
            Op::Release { name: name.clone() },
            Op::Drain { name: name.clone() },
        ],
        false => drained(&name, 4),
    };
    // The backing store has an older version of what is replaced.
    let synced = write_version(&old, 1, (0, 4), Sync::Fsync);
    let moved = Op::Move { from: name, to: old.clone(), dir: true };
    let anew = [
        Op::Truncate { name: old.clone(), blocks: 0, sync: false },
        write_version(&old, 2, (0, 2), Sync::None),
        Op::Pause { millis: 200 },
        Op::SyncDir { name: old.clone() },
    ];
    let ops = [drained(&old, 8), new, vec![synced, moved], anew.to_vec()].concat();
    let file = if is_empty { "an empty file" } else { "a file" };
    let what = format!("{file} of the backing store, moved over a synced one and written anew");
    let mut case = Case::new(&what, MountSettings::of(passthrough, "1h"), ops, cut);
    case.always = passthrough == "off" && cut == TIERS;
    case
}

/// Which of two files has a second name as one replaces the other.
#[derive(Clone, Copy)]
enum Second {
    New,
    NewLater,
    Old,
}

impl Second {
    const ALL: [Second; 3] = [Second::New, Second::NewLater, Second::Old];
}

/// An unsynced file takes the name of a known one, and one of both has a second name.
fn replaced_by_one_of_two_names(second: Second, cut: &'static [&'static str]) -> Case {
    let link = |from: &str| Op::Link { from: from.into(), to: "second".into(), dir: false };
    let mut ops = drained("old", 8);
    ops.push(write_version("new", 1, (0, 4), Sync::None));
    let moved = Op::Move { from: "new".into(), to: "old".into(), dir: false };
    let (what, names) = match second {
        Second::New => ("a new file of two names, moved over", vec![link("new"), moved]),
        Second::NewLater => ("a new file, linked after it moved over", vec![moved, link("old")]),
        Second::Old => ("a new file, moved over one of two names,", vec![link("old"), moved]),
    };
    ops.extend(names);
    ops.extend([Op::Pause { millis: 200 }, Op::SyncDir { name: "old".into() }]);
    let settings = MountSettings::of("readwrite", "1h");
    let mut case = Case::new(&format!("{what} a known one, unsynced"), settings, ops, cut);
    case.always = cut == TIERS;
    case
}

/// A file goes from the second tier, and the daemon is killed. The next one, which knows nothing of that
/// removal, has the file on the first tier.
fn changed_after_a_kill() -> Vec<Case> {
    let name = || "file".to_string();
    let drain = |name: String| Op::Drain { name };
    let fill = fillers("fill", 25);
    let filled = (0..fill.len()).map(|number| drain(filler("fill", number)));
    let first = [
        vec![write_version("file", 0, (0, 8), Sync::Fsync)],
        fill.clone(),
        vec![Op::Look { name: name(), place: Place::Tier(1) }, drain(name())],
        filled.collect(),
        evicted("file"),
    ];
    let ops = vec![
        write_version("file", 1, (2, 3), Sync::Fsync),
        Op::Look { name: name(), place: Place::Tier(0) },
    ];
    let what = "a file that was on the second tier, changed on the first one";
    let cuts: [&[&str]; 2] = [&["tier1"], TIERS];
    let case = |cut| {
        let settings = MountSettings::of("off", "1h").with_small_tiers();
        let mut case = Case::new(what, settings, ops.clone(), cut);
        (case.first, case.always) = (first.concat(), true);
        case
    };
    cuts.map(case).into()
}

/// A file with two names is written back in place, and the power fails half-way.
fn written_back_in_place() -> Case {
    let (one, two) = ("one".to_string(), "two".to_string());
    let mut ops = drained(&one, SLOW);
    ops.push(Op::Link { from: one.clone(), to: two.clone(), dir: true });
    ops.push(Op::Drain { name: two });
    ops.push(write_version(&one, 1, (0, SLOW), Sync::Fsync));
    ops.push(Op::Look { name: one.clone(), place: Place::Spilled });
    ops.push(Op::Drain { name: one.clone() });
    let settings = MountSettings::of("off", "1h").with_small_tiers();
    let what = "a spilled file with two names, half written back";
    let mut case = Case::new(what, settings, ops, &["state", "backing", "tier0", "tier1"]);
    (case.when, case.always) = (When::WhileWrittenBack { name: one }, true);
    case
}

/// A synced file in new directories is written back, and goes from the tiers: the namespace may not have that
/// the backing store has the directories.
fn evicted_from_a_new_directory() -> Vec<Case> {
    let mut cases = Vec::new();
    let cuts: [&[&str]; 3] = [&["state"], TIERS, &DISKS];
    for passthrough in ["off", "readwrite"] {
        for cut in cuts {
            let name = "dir/below/file";
            let mut ops: Vec<_> =
                ["dir", "dir/below"].map(|name| Op::MakeDir { name: name.into() }).into();
            ops.push(write_version(name, 1, (0, 4), Sync::Fsync));
            ops.extend(evicted(name));
            let settings = MountSettings::of(passthrough, "1h");
            let mut case = Case::new("a new file of a new directory, evicted", settings, ops, cut);
            case.always = passthrough == "off" && cut == ["state"];
            cases.push(case);
        }
    }
    cases
}

/// What an fsync of a file or of a directory says of names and permissions.
fn names_and_attributes() -> Vec<Case> {
    let mut cases = Vec::new();
    let cuts: [&[&str]; 4] = [TIERS, &["state"], &["backing"], &DISKS];
    for passthrough in ["off", "readwrite"] {
        for cut in cuts {
            let file = |name: &str, sync| write_version(name, 1, (0, 4), sync);
            let sync_dir = |name: &str| Op::SyncDir { name: name.into() };
            let link = |to: &str, dir| Op::Link { from: "file".into(), to: to.into(), dir };
            let dir = || Op::MakeDir { name: "dir".into() };
            let mode = |mode, sync| Op::Mode { name: "file".into(), mode, sync };
            let known = drained("file", 8);
            let drain = Op::Drain { name: "file".into() };
            let moved = |dir| Op::Move { from: "file".into(), to: "dir/file".into(), dir };
            let all = [
                ("fsync of a file in a new directory", vec![dir(), file("dir/a", Sync::Fsync)]),
                (
                    "fsync of a directory with new files",
                    vec![dir(), file("dir/a", Sync::None), sync_dir("dir/a"), sync_dir("dir")],
                ),
                (
                    "fsync of a file with two names",
                    vec![file("file", Sync::None), link("link", false), file("link", Sync::Fsync)],
                ),
                (
                    "fsync of a directory with a link",
                    [known.clone(), vec![link("link", true)]].concat(),
                ),
                (
                    "fsync of both directories of a move",
                    [known.clone(), vec![dir(), moved(true), sync_dir("file")]].concat(),
                ),
                (
                    "fsync after new permissions of a new file",
                    vec![file("file", Sync::Fsync), mode(0o600, true), mode(0o640, false)],
                ),
                (
                    "fsync after new permissions of a known file",
                    [known.clone(), vec![mode(0o600, true)]].concat(),
                ),
                (
                    "drain after new permissions of an evicted file",
                    [known, evicted("file"), vec![mode(0o600, false), drain]].concat(),
                ),
            ];
            for (what, ops) in all {
                let mut case = Case::new(what, MountSettings::of(passthrough, "1h"), ops, cut);
                let is_chosen = what.contains("director") || what.contains("known");
                case.always = is_chosen && passthrough == "readwrite" && cut.len() == DISKS.len();
                cases.push(case);
            }
        }
    }
    cases
}
