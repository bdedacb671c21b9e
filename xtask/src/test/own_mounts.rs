//! Mounts that a run has for itself: what else the machine does neither sees nor keeps them.
//!
//! Whoever makes a mount namespace while a test has something mounted (a container, a service, another
//! test) gets a copy of that mount, whose daemon then goes on when the test unmounts it. So a run has a
//! namespace of its own, which nobody copies by accident, and in it nothing of what others have mounted.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use rustix::mount::UnmountFlags;

/// The word by which a guard knows that it has mounts of its own.
const GIVEN: &str = "--own-mounts";

/// Goes on as the same command in a mount namespace of its own, and then gives its arguments. Where that
/// can't be had, it goes on as it is: plain users may not have one.
pub fn given(arguments: &[String]) -> Result<&[String]> {
    if let Some((word, rest)) = arguments.split_first()
        && word == GIVEN
    {
        let_mounts_of_others_go();
        return Ok(rest);
    }
    if !can_be_had() {
        return Ok(arguments);
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--"]).arg(this_program()?);
    Err(command.args(["guard", GIVEN]).args(arguments).exec()).context("unshare")
}

fn can_be_had() -> bool {
    let mut tried = Command::new("unshare");
    tried.args(["--mount", "true"]);
    tried.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    rustix::process::geteuid().is_root() && tried.status().is_ok_and(|status| status.success())
}

/// What it was started from, or what was built in its place since.
fn this_program() -> Result<PathBuf> {
    let path = std::env::current_exe()?;
    let text = path.to_string_lossy();
    Ok(text.strip_suffix(" (deleted)").map_or_else(|| path.clone(), PathBuf::from))
}

/// A copy here would keep the daemon of a mount that is unmounted elsewhere.
fn let_mounts_of_others_go() {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let home = std::env::current_dir().unwrap_or_default();
    for point in mounts.lines().filter_map(|line| forebay_at(line, &home)) {
        // Its path has no blanks, or it stays.
        let _ = rustix::mount::unmount(point, UnmountFlags::DETACH);
    }
}

/// Where a line of mountinfo says that Forebay is mounted, unless this runs there.
fn forebay_at<'a>(line: &'a str, home: &Path) -> Option<&'a str> {
    let point = line.contains(" - fuse.forebay ").then(|| line.split(' ').nth(4))??;
    (!home.starts_with(point)).then_some(point)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_others_when_they_are_of_forebay_and_not_where_this_runs_then_they_go() {
        let line = |kind: &str| format!("97 28 0:57 / /mnt/data rw,nosuid - {kind} forebay rw");
        let found =
            |kind: &str, home: &str| forebay_at(&line(kind), Path::new(home)).map(str::to_owned);
        assert_eq!(found("fuse.forebay", "/work").as_deref(), Some("/mnt/data"));
        assert_eq!(found("fuse.forebay", "/mnt/data/checkout"), None);
        assert_eq!(found("ext4", "/work"), None);
    }
}
