//! A fault or the death of the daemon at each point of a write past the tiers and of the write-back
//! that follows: what was acknowledged is there, and the backing store shows one of the versions that
//! the file has had.
#![cfg(feature = "failpoints")]

mod rig;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_node::{NodeError, SetAttr};
use forebay_store::decorators::Transparent;
use parking_lot::Mutex;
use rig::{CONTEXT, KIB, MIB, Rig, noise, same};

/// A round for a process of its own: fail points are the process's.
const ROUND: &str = "FOREBAY_FAULTS_ROUND";
/// Such processes at a time: they wait more than they work.
const AT_ONCE: usize = 6;

/// Parts of the names of points on the way of a write, of a cut and of the write-back.
const ON_THE_WAY: [&str; 10] = [
    ".dirty.",
    ".settle.",
    ".clean.",
    ".partial.",
    ".flush.",
    ".spill.",
    ".truncate.",
    ".header.",
    ".presence.",
    ".commit.",
];

#[derive(Clone, Copy)]
enum Step {
    Write { at: u64, len: u64 },
    Truncate(u64),
    Flush,
    Reopen,
}

/// Writes past the tier, cuts, write-backs while it is open and while it is not.
const STEPS: [Step; 16] = [
    Step::Write { at: 0, len: 300_000 },
    Step::Write { at: 700_000, len: 300_000 },
    Step::Write { at: 1_300_000, len: 300_000 },
    Step::Write { at: 500, len: 1000 },
    Step::Truncate(1_200_000),
    Step::Flush,
    Step::Write { at: 1_400_000, len: 200_000 },
    Step::Write { at: 100_000, len: 400_000 },
    Step::Reopen,
    Step::Flush,
    Step::Write { at: 600_000, len: 300_000 },
    Step::Truncate(0),
    Step::Write { at: 0, len: 800_000 },
    Step::Write { at: 900_000, len: 500_000 },
    Step::Reopen,
    Step::Flush,
];

struct Round {
    rig: Rig,
    what: String,
    fh: Option<u64>,
    content: Vec<u8>,
    /// All contents that the file has had.
    versions: Vec<Vec<u8>>,
}

impl Round {
    fn new(what: String, links: bool) -> Self {
        let rig = Rig::new(&[MIB], Arc::new(Transparent), |config| {
            // So long a write-back of a file that stays open is repeated.
            config.backing_timeout = Duration::from_millis(60);
        });
        let content = noise(9, 1_500_000);
        std::fs::write(rig.backing().join("file"), &content).unwrap();
        if links {
            std::fs::hard_link(rig.backing().join("file"), rig.backing().join("link")).unwrap();
            rig.ino("link");
        }
        rig.put("filler", &noise(1, MIB - 500 * KIB));
        let versions = vec![content.clone()];
        Round { rig, what, fh: None, content, versions }
    }

    fn open(&mut self) -> u64 {
        let rig = &self.rig;
        *self.fh.get_or_insert_with(|| {
            loop {
                // A fault may hit the open as well.
                if let Ok(opened) = rig.node().open(&CONTEXT, rig.ino("file"), libc::O_RDWR) {
                    break opened.fh;
                }
            }
        })
    }

    /// Does a step. Says whether it was acknowledged, and whether the fault has shown.
    fn step(&mut self, index: usize, step: Step) -> (bool, bool) {
        let fh = self.open();
        let node = self.rig.node().clone();
        let mut after = self.content.clone();
        let done = match step {
            Step::Write { at, len } => {
                let data = noise(index as u64 + 20, len);
                after.resize(after.len().max((at + len) as usize), 0);
                after[at as usize..][..data.len()].copy_from_slice(&data);
                node.write(&CONTEXT, fh, at, &data).is_ok()
            }
            Step::Truncate(size) => {
                after.resize(size as usize, 0);
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                node.setattr(&CONTEXT, self.rig.ino("file"), &set).is_ok()
            }
            Step::Flush => {
                let flushed = node.writeback().reconcile(self.rig.ino("file"));
                self.versions.push(after);
                // Busy: it is open.
                return (true, flushed.is_err_and(|error| !matches!(error, NodeError::Busy)));
            }
            Step::Reopen => {
                node.release(fh);
                self.fh = None;
                true
            }
        };
        if done {
            self.content = after.clone();
        }
        self.versions.push(after);
        (done, !done)
    }

    /// The contents; once more if the fault hits the reading, and after the death that the fault of
    /// another thread stands for.
    fn read(&mut self, dies: bool) -> Vec<u8> {
        for attempt in 0..3 {
            if attempt == 2 && dies {
                self.die();
            }
            let opened = self.rig.node().open(&CONTEXT, self.rig.ino("file"), libc::O_RDONLY);
            if let Ok(opened) = opened {
                let data = self.rig.read_all(opened.fh);
                self.rig.node().release(opened.fh);
                return data;
            }
        }
        panic!("{}: the file can't be opened", self.what);
    }

    fn die(&mut self) {
        self.fh = None;
        self.rig.crash();
        self.rig.start();
    }

    /// What was not acknowledged may be there in part.
    fn look(&mut self, acknowledged: bool, dies: bool) {
        let found = self.read(dies);
        if acknowledged {
            same(&found, &self.content, &self.what);
            return;
        }
        let last = self.versions.last().unwrap();
        let either = |at: usize| {
            let byte = found.get(at);
            byte == self.content.get(at)
                || byte == last.get(at)
                || byte == Some(&0) && at >= self.content.len()
                || byte.is_none() && (at >= self.content.len() || at >= last.len())
        };
        let most = found.len().max(last.len()).max(self.content.len());
        let wrong = (0..most).find(|&at| !either(at));
        assert!(wrong.is_none(), "{}: neither old nor new at {wrong:?}", self.what);
        self.content = found.clone();
        self.versions.push(found);
    }

    fn look_below(&self) {
        let shown = self.rig.plain("file");
        assert!(
            self.versions.contains(&shown),
            "{}: the name shows no version of the file, but {} bytes",
            self.what,
            shown.len()
        );
    }
}

/// Points at which a file has a name for the moment that only the next start knows: no step of the
/// program fails there, but the daemon may die.
const ONLY_DEATH: [&str; 2] = ["store.commit.before_exchange", "store.commit.after_exchange"];

/// Lets one fault come after `skipped` passages of a point; with `dies` the daemon ends there.
fn one_round(point: &str, skipped: u32, dies: bool, links: bool) {
    let what = format!("{point} after {skipped}, dies: {dies}, links: {links}");
    if !dies && ONLY_DEATH.contains(&point) {
        return;
    }
    eprintln!("{what}");
    let mut round = Round::new(what, links);
    fail::cfg(point, &format!("{skipped}*off->1*return->off")).unwrap();
    for (index, step) in STEPS.into_iter().enumerate() {
        let (done, fault) = round.step(index, step);
        if fault && dies {
            fail::remove(point);
            round.die();
        }
        round.look(done, dies);
        // In place a mixture may be seen until it is written again.
        if !links {
            round.look_below();
        }
    }
    fail::remove(point);
    if let Some(fh) = round.fh.take() {
        round.rig.node().release(fh);
    }
    round.rig.drain();
    same(&round.rig.plain("file"), &round.content, &round.what);
    assert_eq!(round.rig.node().writeback().conflicts().0, 0, "{}", round.what);
    let left: Vec<_> = std::fs::read_dir(round.rig.backing())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .filter(|name| name != ".forebay")
        .collect();
    assert_eq!(left.len(), if links { 3 } else { 2 }, "{}: {left:?}", round.what);
}

/// The process of one round.
#[test]
#[ignore = "started by the other tests of this file"]
fn one_round_alone() {
    let Ok(round) = std::env::var(ROUND) else { return };
    let words: Vec<&str> = round.split(' ').collect();
    let [point, skipped, dies, links] = words[..] else { panic!("{round}") };
    let (skipped, dies) = (skipped.parse().unwrap(), dies.parse().unwrap());
    one_round(point, skipped, dies, links.parse().unwrap());
}

/// Does the rounds of some points, several at a time.
fn rounds(choose: impl Fn(&str) -> bool, skipped: u32, dies: bool, links: bool) {
    let points: Vec<_> = forebay_node::fail_points()
        .into_iter()
        .filter(|point| ON_THE_WAY.iter().any(|part| point.contains(part)) && choose(point))
        .collect();
    assert!(!points.is_empty());
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(point) = points.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let ended = Command::new(std::env::current_exe().unwrap())
                        .args(["--exact", "one_round_alone", "--include-ignored", "--nocapture"])
                        .env(ROUND, format!("{point} {skipped} {dies} {links}"))
                        .output()
                        .unwrap();
                    let said = String::from_utf8_lossy(&ended.stdout);
                    // It has been one test that passed, not none.
                    if !ended.status.success() || !said.contains("1 passed") {
                        let why = String::from_utf8_lossy(&ended.stderr).into_owned();
                        failures.lock().push(why);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn write_past_the_tier_when_each_point_fails_once_then_nothing_is_lost_or_torn() {
    rounds(|_| true, 0, false, false);
}

#[test]
fn write_past_the_tier_when_each_point_fails_later_then_nothing_is_lost_or_torn() {
    rounds(|_| true, 2, false, false);
}

#[test]
fn write_past_the_tier_when_the_daemon_dies_then_nothing_is_lost_or_torn() {
    rounds(|_| true, 0, true, false);
}

#[test]
fn write_past_the_tier_of_a_file_with_two_names_when_the_daemon_dies_then_nothing_is_lost() {
    rounds(|point| point.starts_with("node.flush"), 0, true, true);
}

#[test]
fn write_past_the_tier_of_a_file_with_two_names_when_each_point_fails_then_nothing_is_lost() {
    rounds(|_| true, 0, false, true);
}
