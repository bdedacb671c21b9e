//! Extended attributes, read along listings.
//!
//! `ls -l` asks for the access list of every file that it lists, one after the other. To read those of
//! one costs a way through a thread that may wait, and a transaction of the namespace: several times
//! what the backing store takes to answer. Inodes that were imported together are numbered in the
//! order in which they are listed, so whoever asks for those of one file after the other of a
//! directory gets those of the next ones with it, twice as many every time.

use std::sync::Arc;
use std::time::Duration;

use forebay_meta::{Record, XattrState, Xattrs};
use forebay_types::Ino;
use parking_lot::Mutex;

use crate::clock;
use crate::error::Result;
use crate::writeback::Writeback;
use crate::writeback::import::XATTRS_MAX;

/// Listings that are followed at once.
const MAX_RUNS: usize = 16;
/// Inodes that one request reads at most.
const MAX_AHEAD: usize = 64;
/// Other inodes may lie between two of a directory.
const GAP: u64 = 16;
/// A request does not wait longer than this for what it did not ask for.
const TIMEOUT: Duration = Duration::from_millis(20);

/// Listings along which extended attributes were asked for, the latest last.
#[derive(Default)]
pub(super) struct Along(Mutex<Vec<Run>>);

struct Run {
    dir: Ino,
    /// Up to here they are read.
    last: Ino,
    ahead: usize,
}

impl Along {
    /// How many inodes behind this one are worth reading.
    fn ahead(&self, dir: Ino, ino: Ino) -> usize {
        let mut runs = self.0.lock();
        let follows = |run: &Run| {
            run.dir == dir && ino > run.last && ino.0 - run.last.0 <= GAP + run.ahead as u64
        };
        match runs.iter().position(follows) {
            Some(at) => (runs.remove(at).ahead * 2).clamp(1, MAX_AHEAD),
            None => 0,
        }
    }

    fn note(&self, run: Run) {
        let mut runs = self.0.lock();
        runs.retain(|other| other.dir != run.dir || other.last != run.last);
        if runs.len() == MAX_RUNS {
            runs.remove(0);
        }
        runs.push(run);
    }
}

impl Writeback {
    /// Adds to `found` those of the inodes behind `record`, if whoever asked comes along a listing.
    pub(super) fn read_xattrs_along(
        &self,
        record: &Record,
        found: &mut Vec<(Arc<Record>, Xattrs)>,
    ) -> Result<()> {
        let Some(dir) = record.links.first().map(|link| link.parent) else { return Ok(()) };
        let ahead = self.imports.along.ahead(dir, record.ino);
        let mut last = record.ino;
        let until = clock::now() + TIMEOUT;
        let behind = match ahead {
            0 => Vec::new(),
            ahead => self.meta.records_after(record.ino, ahead)?,
        };
        let mut size = 0;
        for next in behind {
            if clock::now() >= until || size >= XATTRS_MAX {
                break;
            }
            let is_sibling = next.links.first().is_some_and(|link| link.parent == dir);
            if is_sibling && next.xattrs == XattrState::Unknown {
                // Whoever wants those of this one is told what is wrong with it.
                let Ok(Some(xattrs)) = self.xattrs_in_backing(&next) else { break };
                last = next.ino;
                size += xattrs.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
                found.push((next, xattrs));
            } else {
                last = next.ino;
            }
        }
        self.imports.along.note(Run { dir, last, ahead });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read for requests of these inodes, one after the other.
    fn asked(along: &Along, dir: Ino, inos: impl IntoIterator<Item = u64>) -> Vec<usize> {
        let mut known = 0;
        let mut read = Vec::new();
        for ino in inos {
            if ino <= known {
                continue;
            }
            let ahead = along.ahead(dir, Ino(ino));
            known = ino + ahead as u64;
            along.note(Run { dir, last: Ino(known), ahead });
            read.push(ahead);
        }
        read
    }

    #[test]
    fn listing_when_it_goes_on_then_more_is_read_every_time_up_to_a_bound() {
        let along = Along::default();
        let read = asked(&along, Ino(1), 100..1000);
        assert_eq!(read[..9], [0, 1, 2, 4, 8, 16, 32, 64, 64]);
        assert!(read.len() < 30, "{read:?}");
    }

    #[test]
    fn files_when_asked_for_here_and_there_then_nothing_is_read_for_them() {
        let along = Along::default();
        let read = asked(&along, Ino(1), (100..100_000).step_by(1000));
        assert!(read.iter().all(|ahead| *ahead == 0), "{read:?}");
        assert!(along.0.lock().len() <= MAX_RUNS);
    }

    #[test]
    fn listings_when_several_go_on_then_each_is_followed() {
        let along = Along::default();
        for round in 0..10 {
            for dir in 1..8 {
                let ino = Ino(dir * 10_000 + round);
                let ahead = along.ahead(Ino(dir), ino);
                assert_eq!(ahead > 0, round > 0, "directory {dir}, round {round}");
                along.note(Run { dir: Ino(dir), last: ino, ahead: 1 });
            }
        }
    }
}
