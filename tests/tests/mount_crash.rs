//! kill -9 of the daemon, at random moments and at every fail point.

use forebay_tests::crash::{
    Tally, fail_point_round, fail_points, kill_rounds, rebuild_rounds, rounds,
};
use forebay_tests::random::seed_from_env;
use forebay_tests::subject::{ForebayMount, MountOptions, Passthrough};

use parking_lot::Mutex;

/// One mount at a time: the writers of one test would inherit the open files of another's mount and
/// keep it busy.
static ONE: Mutex<()> = Mutex::new(());

fn options(passthrough: Passthrough, writeback: &str) -> MountOptions {
    MountOptions {
        passthrough: Some(passthrough),
        writeback: Some(writeback.into()),
        ..MountOptions::default()
    }
}

/// Two tiers that a few large files overfill.
fn small(passthrough: Passthrough) -> MountOptions {
    MountOptions { tier_sizes: vec![3 << 20, 4 << 20], ..options(passthrough, "20ms") }
}

/// Whether the load reaches a point only where large files overfill the tiers.
fn needs_full_tiers(point: &str) -> bool {
    const PARTS: [&str; 7] =
        ["presence", "fetch", "partial", "fill", "spill", "evict", "node.move"];
    PARTS.iter().any(|part| point.contains(part))
}

/// Whether only a policy that takes the end of a file and leaves the rest comes by a point.
fn needs_partial_eviction(point: &str) -> bool {
    ["node.evict.tail", "store.presence.after_clear"].contains(&point)
}

fn options_for(point: &str, passthrough: Passthrough) -> MountOptions {
    let mut options =
        if needs_full_tiers(point) { small(passthrough) } else { options(passthrough, "20ms") };
    if needs_partial_eviction(point) {
        options.arguments.extend(["--policy".into(), "min".into()]);
    }
    options
}

/// Fail points that these rounds don't reach, or not for certain, and why.
const UNREACHED: &[(&str, &str)] = &[
    ("store.commit.before_copy_beside", "only with another mount inside the backing store"),
    ("store.presence.after_clear", "only for pieces that were synced before the rest arrived"),
    ("node.flush.half", "only for a file with two names that was written past full tiers"),
    ("node.flush.half_done", "only for a file with two names that was written past full tiers"),
    ("node.spill.evacuated", "only while a tier has not even room for the map of a file"),
];

fn survives(passthrough: Passthrough, writeback: &str) {
    let _one = ONE.lock();
    let seed = seed_from_env("FOREBAY_SEED");
    kill_rounds(options(passthrough, writeback), seed, rounds())
        .unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn kill_when_passthrough_is_off_then_everything_acknowledged_is_there() {
    survives(Passthrough::Off, "50ms");
}

#[test]
fn kill_when_passthrough_reads_and_writes_then_everything_acknowledged_is_there() {
    survives(Passthrough::ReadWrite, "50ms");
}

#[test]
fn kill_when_nothing_was_flushed_then_everything_acknowledged_is_there() {
    survives(Passthrough::Read, "1h");
}

#[test]
fn kill_when_tiers_are_full_then_everything_acknowledged_is_there() {
    let _one = ONE.lock();
    kill_rounds(small(Passthrough::Off), seed_from_env("FOREBAY_SEED"), rounds())
        .unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn kill_when_the_index_is_lost_then_a_rebuild_brings_all_contents_back() {
    let _one = ONE.lock();
    let seed = seed_from_env("FOREBAY_SEED");
    let rounds = rounds().div_ceil(2);
    for writeback in ["50ms", "1h"] {
        rebuild_rounds(&options(Passthrough::Read, writeback), seed, rounds)
            .unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn fail_points_when_each_kills_the_daemon_then_everything_acknowledged_is_there() {
    // All rounds take 20 minutes: without FOREBAY_FAIL_POINTS=all it is a tenth of them, another
    // one with each seed. Parts of names, separated by commas, choose points.
    let _one = ONE.lock();
    let seed = seed_from_env("FOREBAY_SEED");
    let mount = ForebayMount::new(MountOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let points = fail_points(&mount).unwrap_or_else(|failure| panic!("{failure}"));
    drop(mount);
    assert!(!points.is_empty(), "build the binary with its feature `failpoints` for this test");
    let wanted = std::env::var("FOREBAY_FAIL_POINTS").unwrap_or_default();
    let modes = [Passthrough::Off, Passthrough::ReadWrite];
    let mut tally = Tally::default();
    let mut failures = Vec::new();
    for (index, point) in points.iter().enumerate() {
        for (turn, passthrough) in modes.into_iter().enumerate() {
            let chosen = match wanted.as_str() {
                "" => (index + turn * 5) as u64 % 10 == seed % 10,
                "all" => true,
                names => names.split(',').any(|name| point.contains(name)),
            };
            if !chosen {
                continue;
            }
            let seed = seed.wrapping_add(index as u64);
            let began = std::time::Instant::now();
            let round = fail_point_round(options_for(point, passthrough), point, seed);
            eprintln!("{point} {} {round:?} {:?}", passthrough.as_str(), began.elapsed());
            match round {
                Ok(fired) => tally.count(point, fired),
                Err(failure) => failures.push(failure.to_string()),
            }
        }
    }
    let mut never = tally.never();
    never.retain(|point| UNREACHED.iter().all(|(known, _)| known != point));
    eprintln!("{} of {} points killed the daemon", tally.len() - never.len(), tally.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    // One round of a point may miss it; with all rounds each must have been met.
    assert!(wanted != "all" || never.is_empty(), "never reached: {never:?}");
}
