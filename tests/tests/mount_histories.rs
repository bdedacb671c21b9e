//! A short random history of a mount beside a native twin, of root and of a plain user.
//!
//! `FOREBAY_SEED` repeats one; `posix-check histories` runs many.

use std::process::Command;
use std::time::Duration;

use forebay_tests::random::seed_from_env;
use forebay_tests::subject::{binary, run_command};

/// What a history takes on a busy machine is much less.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs a command in mounts of its own, where everybody may use /dev/fuse.
const WITH_FUSE_FOR_ALL: &str = r#"
    dir=$(mktemp -d) && mknod "$dir/fuse" c 10 229 && chmod 666 "$dir/fuse" \
        && mount --bind "$dir/fuse" /dev/fuse || { echo "skipped: plain users may not use /dev/fuse"; exit 0; }
    rm -r "$dir"
    exec "$@""#;

fn run(more: &[&str]) {
    let root = rustix::process::geteuid().is_root();
    if !root || !std::path::Path::new("/dev/fuse").exists() {
        eprintln!("skipped: needs root and /dev/fuse");
        return;
    }
    let binary = binary().unwrap_or_else(|error| panic!("{error}"));
    let seed = seed_from_env("FOREBAY_SEED").to_string();
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", WITH_FUSE_FOR_ALL, "sh", env!("CARGO_BIN_EXE_posix-check")]);
    command.args(["histories", "--phases", "3", "--ops", "100", "--seed", &seed]).args(more);
    let output = run_command(command.env("FOREBAY_BIN", binary), LIMIT);
    let output = output.unwrap_or_else(|error| panic!("{error}"));
    eprintln!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success());
}

#[test]
fn history_of_root_when_phases_end_in_any_way_then_mount_and_store_equal_a_native_directory() {
    run(&[]);
}

#[test]
fn history_of_a_plain_user_when_he_unmounts_then_mount_and_store_equal_a_native_directory() {
    run(&["--user", "65534", "--end", "umount"]);
}
