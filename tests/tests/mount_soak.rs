//! A short soak, in a process of its own.
//!
//! `FOREBAY_SOAK_MINUTES` asks for a longer one; `FOREBAY_SOAK_RESULTS` names a directory for its table
//! and drawing.

use std::process::Command;
use std::time::Duration;

use forebay_tests::random::seed_from_env;
use forebay_tests::subject::{binary, run_command};

const MINUTES: &str = "0.5";

#[test]
fn soak_with_faults_upgrades_and_kills_then_nothing_is_lost_and_no_curve_rises() {
    let root = rustix::process::geteuid().is_root();
    if !root || !std::path::Path::new("/dev/fuse").exists() {
        eprintln!("skipped: needs root and /dev/fuse");
        return;
    }
    let minutes = std::env::var("FOREBAY_SOAK_MINUTES").unwrap_or(MINUTES.into());
    let mut command = Command::new(env!("CARGO_BIN_EXE_posix-check"));
    let binary = binary().unwrap_or_else(|error| panic!("{error}"));
    let seed = seed_from_env("FOREBAY_SEED").to_string();
    command.args(["soak", "--minutes", &minutes, "--seed", &seed]).env("FOREBAY_BIN", binary);
    if let Ok(results) = std::env::var("FOREBAY_SOAK_RESULTS") {
        command.args(["--results", &results]);
    }
    let length = Duration::from_secs_f64(minutes.parse::<f64>().unwrap() * 60.0);
    let output = run_command(&mut command, 2 * length + Duration::from_secs(600));
    let output = output.unwrap_or_else(|error| panic!("{error}"));
    let text = String::from_utf8_lossy(&output.stdout);
    eprintln!("{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success());
}
