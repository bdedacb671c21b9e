//! Work on many files, with progress and without ending at the first failure.

use std::time::{Duration, Instant};

use forebay::control::{ControlResult, OnProgress, Outcome, Progress, WirePath};
use forebay_node::{FileKind, Ino, Node, NodeError};

use super::convert::{control_error, wire_path};

/// What came of one file.
pub enum Done {
    /// It was worked on, and so many bytes were moved.
    Bytes(u64),
    /// There was nothing to do.
    Nothing,
    /// It is a directory, and worked on.
    Directory,
    /// It can't be done now, for this reason.
    Refused(&'static str),
}

/// How often whoever waits is told how far it is, and may stop it.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// Failures that are listed; more are only counted.
const LISTED: usize = 50;

/// Which files are worked on, and what is told of it.
#[derive(Clone, Copy, Default)]
pub struct Scope {
    /// Directories as well.
    pub directories: bool,
    /// They are counted first, so that one can see how much is left.
    pub counted: bool,
}

/// How far work on files has come.
pub struct Headway<'a> {
    progress: OnProgress<'a>,
    told: Progress,
    last_told: Instant,
    go_on: bool,
}

/// A file is done of which so many bytes were moved. The others were there already, or can't be: they
/// count neither as done nor as to be done, or they would be taken for very fast work.
fn count_done(told: &mut Progress, size: u64, moved: u64) {
    told.files_done += 1;
    told.bytes_copied += moved;
    told.bytes_done += moved;
    told.bytes_total = told.bytes_total.saturating_sub(size.saturating_sub(moved));
}

impl Headway<'_> {
    /// So many bytes of the file in hand are done. False if it is to end.
    pub fn within_file(&mut self, node: &Node, ino: Ino, bytes: u64) -> bool {
        self.tell(node, ino, bytes);
        self.go_on
    }

    fn tell(&mut self, node: &Node, ino: Ino, bytes: u64) {
        if self.go_on && self.last_told.elapsed() >= TELL_EVERY {
            self.last_told = Instant::now();
            let mut told = self.told.clone();
            told.bytes_done += bytes;
            told.current = Some(wire_path(node.path_of(ino)));
            self.go_on = (self.progress)(told);
        }
    }
}

/// Calls `work` for every regular file (and directory, if asked) below the paths.
pub fn each_file(
    node: &Node,
    paths: &[WirePath],
    scope: Scope,
    progress: OnProgress<'_>,
    work: &mut dyn FnMut(Ino, &mut Headway<'_>) -> Result<Done, NodeError>,
) -> ControlResult<Outcome> {
    let mut outcome = Outcome { complete: true, ..Outcome::default() };
    let (told, last_told) = (Progress::default(), Instant::now());
    let mut headway = Headway { progress, told, last_told, go_on: true };
    let mut found = Vec::new();
    for path in paths {
        match node.find_path(path.as_path()) {
            Ok(ino) => found.push(ino),
            Err(error) => fail(&mut outcome, path.clone(), error.to_string()),
        }
    }
    if scope.counted {
        for ino in &found {
            count(node, *ino, &mut headway)?;
        }
    }
    for ino in found {
        let walked = node.walk(ino, &mut |record| {
            let is_file = record.attr.kind == FileKind::Regular;
            let wanted = is_file || scope.directories && record.attr.kind == FileKind::Directory;
            if !wanted || !headway.go_on {
                return headway.go_on;
            }
            let mut moved = 0;
            match work(record.ino, &mut headway) {
                Ok(Done::Bytes(bytes)) => {
                    outcome.files += 1;
                    outcome.bytes += bytes;
                    moved = bytes;
                }
                Ok(Done::Nothing) => outcome.skipped += 1,
                Ok(Done::Directory) => {}
                Ok(Done::Refused(why)) => {
                    fail(&mut outcome, wire_path(node.path_of(record.ino)), why.into());
                }
                Err(error) => {
                    fail(&mut outcome, wire_path(node.path_of(record.ino)), error.to_string());
                }
            }
            if is_file {
                count_done(&mut headway.told, record.attr.size, moved);
            }
            headway.tell(node, record.ino, 0);
            headway.go_on
        });
        walked.map_err(|error| control_error(&error))?;
    }
    outcome.complete &= headway.go_on;
    (headway.progress)(headway.told);
    Ok(outcome)
}

/// Adds what is below to what there is to do.
fn count(node: &Node, below: Ino, headway: &mut Headway<'_>) -> ControlResult<()> {
    let counted = node.walk(below, &mut |record| {
        if record.attr.kind == FileKind::Regular {
            headway.told.files_total += 1;
            headway.told.bytes_total += record.attr.size;
            headway.tell(node, record.ino, 0);
        }
        headway.go_on
    });
    counted.map_err(|error| control_error(&error))
}

fn fail(outcome: &mut Outcome, path: WirePath, why: String) {
    outcome.complete = false;
    outcome.failed += 1;
    if outcome.failures.len() < LISTED {
        outcome.failures.push((path, why));
    }
}

/// Adds what failed below one of several paths: so many, and these of them with reasons. What lies below two of
/// the paths counts once.
pub fn add_failures(outcome: &mut Outcome, failed: u64, told: Vec<(Vec<u8>, String)>) {
    outcome.failed += failed;
    for (path, why) in told {
        let path = wire_path(path);
        match outcome.failures.iter().any(|(known, _)| *known == path) {
            true => outcome.failed = outcome.failed.saturating_sub(1),
            false => outcome.failures.push((path, why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_when_a_file_is_below_two_of_the_paths_then_it_is_told_once() {
        let mut outcome = Outcome::default();
        let failures = |names: &[&str]| {
            names.iter().map(|name| (name.as_bytes().to_vec(), "why".to_owned())).collect()
        };
        add_failures(&mut outcome, 12, failures(&["dir/a", "dir/b"]));
        add_failures(&mut outcome, 2, failures(&["dir/a", "c"]));
        assert_eq!((outcome.failed, outcome.failures.len()), (13, 3));
    }

    #[test]
    fn progress_when_most_is_there_already_then_the_rate_and_the_rest_are_of_what_is_moved() {
        let mut told = Progress { files_total: 3, bytes_total: 30, ..Progress::default() };
        // One that is there, one of which a part is, and the next to be moved.
        count_done(&mut told, 10, 0);
        count_done(&mut told, 10, 4);
        assert_eq!((told.files_done, told.bytes_done, told.bytes_total), (2, 4, 14));
        count_done(&mut told, 10, 10);
        assert_eq!((told.files_done, told.bytes_done, told.bytes_total), (3, 14, 14));
    }
}
