//! Power cuts below a mount, in a process of their own, for it takes its mounts to itself.
//!
//! `FOREBAY_POWER_CUTS` asks for more cuts at random times, `FOREBAY_POWER_TREES` for more of those below
//! directories, `FOREBAY_POWER_POINTS` for more at fail points, `FOREBAY_POWER_CASES` for more directed cases.

use std::process::Command;
use std::time::Duration;

use forebay_tests::random::seed_from_env;
use forebay_tests::subject::{binary, run_command};

const CUTS: &str = "4";
const TREES: &str = "2";
/// Directed cases, of some six thousand, besides those that are always tried: each run draws others, and
/// where in each of them the daemon is killed.
const CASES: u64 = 6;
/// Not fewer than are always tried.
const FIXED: u64 = 33;
/// A cut takes a second or two.
const CUT_LIMIT_S: u64 = 10;
/// As long as so many take the cuts at a point to which the daemon comes for certain, if it stood at none of
/// those drawn.
const SURE: u64 = 12;

fn passes(arguments: &[&str], cuts: u64) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_posix-check"));
    let binary = binary().unwrap_or_else(|error| panic!("{error}"));
    command.arg("power").args(arguments).env("FOREBAY_BIN", binary);
    let limit = Duration::from_secs(60 + cuts * CUT_LIMIT_S);
    let output = run_command(&mut command, limit).unwrap_or_else(|error| panic!("{error}"));
    let text = String::from_utf8_lossy(&output.stdout);
    eprintln!("{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success());
}

#[test]
fn power_when_cut_after_what_was_lost_once_then_all_of_it_is_there() {
    let seed = seed_from_env("FOREBAY_SEED").to_string();
    let cases = std::env::var("FOREBAY_POWER_CASES").unwrap_or(CASES.to_string());
    let drawn: u64 = cases.parse().unwrap_or(0);
    passes(&["--cases", "--killed", "--cuts", &cases, "--seed", &seed], FIXED + drawn);
}

#[test]
fn power_when_cut_between_any_two_steps_of_the_daemon_then_everything_acknowledged_is_there() {
    let cuts = std::env::var("FOREBAY_POWER_POINTS").unwrap_or(CUTS.into());
    let seed = seed_from_env("FOREBAY_SEED").to_string();
    let drawn: u64 = cuts.parse().unwrap_or(0);
    passes(&["--at-points", "--cuts", &cuts, "--seed", &seed], drawn + SURE);
}

#[test]
fn power_when_cut_at_any_time_then_everything_acknowledged_is_there() {
    let cuts = std::env::var("FOREBAY_POWER_CUTS").unwrap_or(CUTS.into());
    let seed = seed_from_env("FOREBAY_SEED").to_string();
    passes(&["--cuts", &cuts, "--seed", &seed], cuts.parse().unwrap_or(0));
}

#[test]
fn power_when_cut_while_trees_change_then_every_name_acknowledged_is_there_and_none_is_invented() {
    let cuts = std::env::var("FOREBAY_POWER_TREES").unwrap_or(TREES.into());
    let seed = seed_from_env("FOREBAY_SEED").to_string();
    passes(&["--trees", "--cuts", &cuts, "--seed", &seed], cuts.parse().unwrap_or(0));
}
