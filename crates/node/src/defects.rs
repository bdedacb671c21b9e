//! Work that nobody asked for, and that has ended a daemon by a defect of Forebay. What a thread is
//! busy with is known to whoever hears of its panic ([`background_work_in_hand`]) and is told to the
//! next daemon, which sets it aside: a second attempt would end that one as well.
//!
//! A panic in any thread ends the daemon, for one with a thread missing can't be trusted. What the
//! thread was busy with is in the recovery journal by then:
//!
//! | a panic in | is told to the next daemon as | which then |
//! |---|---|---|
//! | a request, on whatever thread | its number | answers `EIO` when it comes again |
//! | a turn of the backlog, staging, settling a closed file | write-back of an inode | leaves it dirty and names it |
//! | an eviction, a move, what a removed file leaves | tiering of an inode | refuses the steward; leaves the object to the next start |
//! | a fetch or a listing ahead | its inode | does without |
//! | a step of the upkeep, directory times, spill files, `statfs` | the step | leaves it out |
//! | metrics | metrics | renders none |
//! | anything else: the start, the steward, `backlog` itself, control, a cluster, streams, fjall | nothing | may die again; after `--restart-limit` within a minute the mount is given up |
//!
//! `in_request.rs` and `recovery_journal.rs` of `forebay-fuse` note both.

use std::cell::Cell;
use std::collections::HashSet;
use std::time::{Duration, Instant};

use prost::Message;

/// After such an end nothing is written back by itself for this long: should much of it end daemons,
/// there are never so many ends within a minute that the supervisor gives the mount up.
const CAUTION: Duration = Duration::from_secs(20);

/// Kinds of work that nobody asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
pub enum BackgroundKind {
    /// Something that a newer program does.
    Unknown = 0,
    /// Bringing the backing store in line with an inode.
    WriteBack = 1,
    /// Evicting an object, or moving it to another tier.
    Tiering = 2,
    /// Fetching a file ahead of its use.
    FetchAhead = 3,
    /// Listing a directory of the backing store ahead.
    Listing = 4,
    /// A step of what is looked after every few seconds.
    Upkeep = 5,
    /// Rendering metrics.
    Metrics = 6,
}

/// What a thread is busy with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct BackgroundWork {
    /// What is done.
    #[prost(enumeration = "BackgroundKind", tag = "1")]
    pub kind: i32,
    /// To which inode; of upkeep, which step.
    #[prost(fixed64, tag = "2")]
    pub number: u64,
}

/// Work that is not tried again before the next mount or upgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetAsideWork {
    /// The path of the inode; empty if it is about none.
    pub path: Vec<u8>,
    /// What is not done.
    pub what: &'static str,
}

/// What earlier daemons have left of this kind.
pub(crate) struct Defects {
    known: HashSet<BackgroundWork>,
    started: Instant,
}

/// What is looked after by itself ([`BackgroundKind::Upkeep`]). Each can be done without for a while.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    BackingPlace = 1,
    MountsBelow = 2,
    Strays = 3,
    Unsettled = 4,
    Memory = 5,
    Missing = 6,
    // By themselves, when there is something to do.
    Restamp = 7,
    Times = 8,
    Statfs = 9,
    Spills = 10,
}

impl Defects {
    /// Those that another daemon hands over.
    pub(crate) fn known_from(known: &[BackgroundWork]) -> Self {
        Defects { known: known.iter().copied().collect(), started: Instant::now() }
    }

    /// For another daemon.
    pub(crate) fn known(&self) -> impl Iterator<Item = &BackgroundWork> {
        self.known.iter()
    }

    /// Whether such work has ended a daemon.
    pub(crate) fn is_set_aside(&self, kind: BackgroundKind, number: u64) -> bool {
        !self.known.is_empty() && self.known.contains(&BackgroundWork { kind: kind.into(), number })
    }

    /// Does work that nobody asked for, unless it has ended a daemon.
    pub(crate) fn attempt<T>(
        &self,
        kind: BackgroundKind,
        number: u64,
        work: impl FnOnce() -> T,
    ) -> Option<T> {
        if self.is_set_aside(kind, number) {
            return None;
        }
        let _in_hand = begin(kind, number);
        Some(work())
    }

    /// Whether nothing is to be written back by itself yet.
    pub(crate) fn is_cautious(&self) -> bool {
        !self.known.is_empty() && self.started.elapsed() < CAUTION
    }
}

thread_local! {
    static IN_HAND: Cell<Option<BackgroundWork>> = const { Cell::new(None) };
}

/// What the calling thread is busy with; also for the hook of panics.
#[must_use]
pub fn background_work_in_hand() -> Option<BackgroundWork> {
    IN_HAND.get()
}

/// While it lives, the thread is busy with what it was made for.
pub(crate) struct InHand(Option<BackgroundWork>);

pub(crate) fn begin(kind: BackgroundKind, number: u64) -> InHand {
    InHand(IN_HAND.replace(Some(BackgroundWork { kind: kind.into(), number })))
}

impl Drop for InHand {
    fn drop(&mut self) {
        IN_HAND.set(self.0);
    }
}

impl BackgroundKind {
    /// What is not done if it is set aside.
    pub(crate) fn told(self) -> &'static str {
        match self {
            BackgroundKind::Unknown => "work in the background",
            BackgroundKind::WriteBack => "writing it back",
            BackgroundKind::Tiering => "evicting it or moving it to another tier",
            BackgroundKind::FetchAhead => "fetching it ahead",
            BackgroundKind::Listing => "listing it ahead",
            BackgroundKind::Upkeep => "a step of the regular upkeep",
            BackgroundKind::Metrics => "metrics",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_in_hand_when_one_is_within_another_then_the_inner_one_until_its_end() {
        assert_eq!(background_work_in_hand(), None);
        let outer = begin(BackgroundKind::WriteBack, 1);
        let seen = || background_work_in_hand().map(|work| (work.kind(), work.number));
        {
            let _inner = begin(BackgroundKind::Tiering, 2);
            assert_eq!(seen(), Some((BackgroundKind::Tiering, 2)));
        }
        assert_eq!(seen(), Some((BackgroundKind::WriteBack, 1)));
        drop(outer);
        assert_eq!(seen(), None);
    }
}
