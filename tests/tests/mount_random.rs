//! The random suites on a mount, in every passthrough mode, also with a tier that is too small.

use forebay_tests::random::seed_from_env;
use forebay_tests::subject::{ForebayMount, MountOptions, NativeDir, Passthrough, Subject};
use forebay_tests::{fsx, model};

const MODES: [Passthrough; 3] = [Passthrough::Off, Passthrough::Read, Passthrough::ReadWrite];

fn mounted(passthrough: Passthrough, writeback: &str, tier_sizes: &[u64]) -> ForebayMount {
    let options = MountOptions {
        passthrough: Some(passthrough),
        writeback: Some(writeback.into()),
        tier_sizes: tier_sizes.to_vec(),
        ..MountOptions::default()
    };
    ForebayMount::new(options).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn fsx_when_run_in_every_mode_then_the_file_equals_its_model() {
    for passthrough in MODES {
        for writeback in ["5s", "1ms"] {
            let mut mount = mounted(passthrough, writeback, &[]);
            let seed = seed_from_env("FOREBAY_SEED");
            fsx::run(mount.dir(), seed, 3000, 300_000)
                .unwrap_or_else(|failure| panic!("{} {writeback}: {failure}", mount.name()));
            mount.unmount().unwrap();
        }
    }
}

#[test]
fn model_when_run_in_every_mode_then_mount_and_native_directory_stay_equal() {
    for passthrough in MODES {
        for writeback in ["5s", "1ms"] {
            let mut mount = mounted(passthrough, writeback, &[]);
            let reference = NativeDir::on_disk().unwrap();
            let seed = seed_from_env("FOREBAY_SEED");
            model::run(mount.dir(), reference.dir(), seed, 4000)
                .unwrap_or_else(|failure| panic!("{} {writeback}: {failure}", mount.name()));
            mount.unmount().unwrap();
        }
    }
}

/// One tier and two that do not hold what the suites write: files are evicted, demoted, flushed
/// and spilled all the time.
const SMALL: [&[u64]; 2] = [&[8 << 20], &[3 << 20, 5 << 20]];

/// Runs that each combination gets; more by `FOREBAY_ROUNDS`.
fn rounds() -> u64 {
    std::env::var("FOREBAY_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

#[test]
fn fsx_when_the_tiers_are_small_then_the_file_equals_its_model() {
    let first = seed_from_env("FOREBAY_SEED");
    for (round, passthrough) in (0..rounds()).flat_map(|round| MODES.map(|mode| (round, mode))) {
        for sizes in SMALL {
            let mut mount = mounted(passthrough, "20ms", sizes);
            let seed = first.wrapping_add(round);
            fsx::run(mount.dir(), seed, 1000, 24 << 20)
                .unwrap_or_else(|failure| panic!("{} {sizes:?}: {failure}", mount.name()));
            mount.unmount().unwrap();
        }
    }
}

#[test]
fn model_when_the_tiers_are_small_then_mount_and_native_directory_stay_equal() {
    let first = seed_from_env("FOREBAY_SEED");
    for (round, passthrough) in (0..rounds()).flat_map(|round| MODES.map(|mode| (round, mode))) {
        for sizes in [&[600 << 10][..], &[300 << 10, 400 << 10]] {
            let mut mount = mounted(passthrough, "20ms", sizes);
            let reference = NativeDir::on_disk().unwrap();
            let seed = first.wrapping_add(round);
            model::run(mount.dir(), reference.dir(), seed, 2000)
                .unwrap_or_else(|failure| panic!("{} {sizes:?}: {failure}", mount.name()));
            mount.unmount().unwrap();
        }
    }
}
