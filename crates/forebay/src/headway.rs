//! Whether a drain gets on, so that a service manager is asked for more time while it does, and only
//! then.
//!
//! That something has changed is no headway: programs go on writing while their mount is drained, and
//! a store that fails makes the same bytes come and go. Headway is that less is left than ever before;
//! and, as a large file is left until all of it is copied, that bytes are copied, but no more of them
//! than were left when there was last less.

use crate::control::Progress;

/// What a drain has got to; nothing before the first look.
#[derive(Debug, Default)]
pub struct Headway(Option<Mark>);

#[derive(Debug)]
struct Mark {
    /// The fewest entries and bytes that were ever left.
    entries: u64,
    bytes: u64,
    /// What was copied by then, and how much there was to copy.
    copied_then: u64,
    budget: u64,
    /// What was copied by the last look.
    copied: u64,
}

impl Headway {
    /// Whether it has got on since the last look.
    pub fn made(&mut self, now: &Progress) -> bool {
        let (entries, copied) = (now.backlog_left, now.bytes_copied);
        let bytes = now.bytes_total.saturating_sub(now.bytes_done);
        let Some(mark) = &mut self.0 else {
            let (copied_then, budget) = (copied, bytes);
            self.0 = Some(Mark { entries, bytes, copied_then, budget, copied });
            return false;
        };
        let more = copied > std::mem::replace(&mut mark.copied, copied);
        if entries < mark.entries || bytes < mark.bytes {
            mark.entries = mark.entries.min(entries);
            mark.bytes = mark.bytes.min(bytes);
            (mark.copied_then, mark.budget) = (copied, bytes);
            return true;
        }
        more && copied - mark.copied_then <= mark.budget
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(entries: u64, bytes: u64, copied: u64) -> Progress {
        Progress {
            backlog_left: entries,
            bytes_total: bytes,
            bytes_copied: copied,
            ..Progress::default()
        }
    }

    #[test]
    fn drain_when_less_is_left_then_gets_on() {
        let mut headway = Headway::default();
        assert!(!headway.made(&left(10, 1000, 0)), "the time for the beginning is the unit's");
        assert!(headway.made(&left(9, 1000, 0)));
        assert!(headway.made(&left(9, 900, 100)));
        assert!(!headway.made(&left(9, 900, 100)), "it stands still");
    }

    #[test]
    fn drain_when_programs_write_as_fast_then_does_not_get_on() {
        let mut headway = Headway::default();
        headway.made(&left(10, 1000, 5));
        for more in 1..100 {
            assert!(!headway.made(&left(10 + more, 1000 + more, 5)));
        }
    }

    #[test]
    fn drain_when_one_file_is_copied_over_and_over_then_gets_on_once() {
        let mut headway = Headway::default();
        headway.made(&left(1, 1000, 7));
        let looks = (1..100).filter(|look| headway.made(&left(1, 1000, 7 + look * 100))).count();
        assert_eq!(looks, 10, "as long as a whole copy takes");
        assert!(headway.made(&left(1, 999, 20_000)), "and again when less is left");
    }
}
