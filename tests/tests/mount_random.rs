//! The random suites on a mount, in every passthrough mode, also with a tier that is too small.

use forebay_tests::random::seed_from_env;
use forebay_tests::subject::{ForebayMount, MountOptions, NativeDir, Passthrough, Subject};
use forebay_tests::{fsx, model};

const MODES: [Passthrough; 3] = [Passthrough::Off, Passthrough::Read, Passthrough::ReadWrite];

fn mounted(passthrough: Passthrough, writeback: &str) -> ForebayMount {
    let options = MountOptions {
        passthrough: Some(passthrough),
        writeback: Some(writeback.into()),
        ..MountOptions::default()
    };
    ForebayMount::new(options).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn fsx_when_run_in_every_mode_then_the_file_equals_its_model() {
    for passthrough in MODES {
        for writeback in ["5s", "1ms"] {
            let mut mount = mounted(passthrough, writeback);
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
            let mut mount = mounted(passthrough, writeback);
            let reference = NativeDir::on_disk().unwrap();
            let seed = seed_from_env("FOREBAY_SEED");
            model::run(mount.dir(), reference.dir(), seed, 4000)
                .unwrap_or_else(|failure| panic!("{} {writeback}: {failure}", mount.name()));
            mount.unmount().unwrap();
        }
    }
}
