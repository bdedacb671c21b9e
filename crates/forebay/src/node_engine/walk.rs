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
    /// It can't be done now, for this reason.
    Refused(&'static str),
}

/// How often whoever waits is told how far it is, and may stop it.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// Failures that are listed; more are only counted.
const LISTED: usize = 50;

/// Calls `work` for every regular file (and directory, if asked) below the paths.
pub fn each_file(
    node: &Node,
    paths: &[WirePath],
    directories_too: bool,
    progress: OnProgress<'_>,
    work: &mut dyn FnMut(Ino) -> Result<Done, NodeError>,
) -> ControlResult<Outcome> {
    let mut outcome = Outcome { complete: true, ..Outcome::default() };
    let mut told = Progress::default();
    let mut go_on = true;
    let mut last_told = Instant::now();
    for path in paths {
        let ino = match node.find_path(path.as_path()) {
            Ok(ino) => ino,
            Err(error) => {
                fail(&mut outcome, path.clone(), error.to_string());
                continue;
            }
        };
        let walked = node.walk(ino, &mut |record| {
            let is_file = record.attr.kind == FileKind::File;
            let wanted = is_file || directories_too && record.attr.kind == FileKind::Directory;
            if !wanted {
                return true;
            }
            told.files_total += 1;
            told.bytes_total += if is_file { record.attr.size } else { 0 };
            match work(record.ino) {
                Ok(Done::Bytes(bytes)) => {
                    outcome.files += 1;
                    outcome.bytes += bytes;
                    told.bytes_done += bytes;
                }
                Ok(Done::Nothing) => outcome.skipped += 1,
                Ok(Done::Refused(why)) => {
                    fail(&mut outcome, wire_path(node.path_of(record.ino)), why.into());
                }
                Err(error) => {
                    fail(&mut outcome, wire_path(node.path_of(record.ino)), error.to_string());
                }
            }
            told.files_done += 1;
            if last_told.elapsed() >= TELL_EVERY {
                last_told = Instant::now();
                told.current = Some(wire_path(node.path_of(record.ino)));
                go_on = progress(told.clone());
            }
            go_on
        });
        walked.map_err(|error| control_error(&error))?;
        if !go_on {
            outcome.complete = false;
            break;
        }
    }
    progress(told);
    Ok(outcome)
}

fn fail(outcome: &mut Outcome, path: WirePath, why: String) {
    outcome.complete = false;
    outcome.failed += 1;
    if outcome.failures.len() < LISTED {
        outcome.failures.push((path, why));
    }
}
