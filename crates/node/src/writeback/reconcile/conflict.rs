//! Changes on both sides: nothing is overwritten, the version of this mount gets another name.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::PathBuf;

use forebay_meta::{Error as MetaError, Link, NameIn, Record};
use forebay_store::{Attributes, ErrorClass, StoreError};
use forebay_types::{Fingerprint, Ino, Timestamp};

use super::conflict_places::{Seen, join, split};
use super::identity::is_own;
use super::names::os;
use super::work::{Step, Work};
use crate::clock;
use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::residency::data_location::{DataLocation, TierObject, Underlay};
use crate::residency::files::FileRef;
use crate::writeback::Writeback;
use crate::writeback::import::{LIMBO, folded};

/// What the backing store can't do with a name that it takes for another one.
const SAME_NAME: &str = "tell the name, which differs in case or at its end only, from that of";

/// Entries of a directory that are looked at at a time.
const PAGE: usize = 1000;

/// Names tried for one conflict.
const MAX_NAMES: u32 = 1000;

/// A file or directory changed both here and, by others, in the backing store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The path concerned, in the directory where it was last found; it shows what the others made.
    pub path: Vec<u8>,
    /// The name of this mount's version in the same directory, if it has one.
    pub ours: Option<Vec<u8>>,
    /// When it was noticed.
    pub when: Timestamp,
    /// What happened.
    pub why: Cow<'static, str>,
    /// By what its directory is found again when it was moved.
    pub(super) seen: Seen,
    /// What others have there, by which this daemon knows that it has told of that already.
    pub(super) theirs: Option<Fingerprint>,
}

impl Conflict {
    /// The path of this mount's version; empty if it has none.
    pub fn kept_as(&self) -> Vec<u8> {
        let Some(ours) = &self.ours else { return Vec::new() };
        join(split(&self.path).0, ours)
    }

    /// Seconds since it was noticed.
    pub fn age_s(&self) -> u64 {
        u64::try_from(clock::wall_time().sec - self.when.sec).unwrap_or(0)
    }
}

/// Files whose versions below are held open at the same time.
const MAX_HELD: usize = 64;

/// Where the backing store has what is parked, for people.
const PARKED: &[u8] = b".forebay/limbo";

/// Why there is a conflict.
const BOTH: &str = "changed here and by others";
const GONE: &str = "moved here, removed or replaced by others: no tier has a copy of it that can be used \
(`forebay status` says what was set aside)";
const REST_GONE: &str =
    "changed here and by others; parts that were not here are gone, and zeros in the copy";

/// Versions that show through files in conflict, until these are written.
pub(super) type Held = HashMap<Ino, FileRef>;

impl Writeback {
    /// Others have something under a name that an inode with changes should have: leaves it to
    /// them and gives the inode another name beside it.
    pub(super) fn yield_name(
        &self,
        work: &mut Work<'_>,
        link: &Link,
        found: &Attributes,
    ) -> Result<Step> {
        self.refuse_other_spelling(work, link, found)?;
        if self.is_overtaken(work, link, found)? {
            return Err(NodeError::Busy);
        }
        tracing::debug!(ino = %work.ino(), ?link, ?found, record = ?work.record, "left to others");
        // Before the known version is forgotten.
        let why = self.hold_rest(&work.record)?;
        // What was its own object is now the others' version.
        for known in work.record.backing.links.clone() {
            let is_theirs = match work.record.backing.fingerprint {
                Some(print) => found.same_inode(&print),
                None => true,
            };
            if known.parent != LIMBO && (is_theirs || known == *link) {
                work.went(&known);
                work.foreign(&known);
            }
        }
        work.went(link);
        work.foreign(link);
        if work.record.backing.links.is_empty() {
            // Not of one that only wants the name, and stands elsewhere with all that is in it.
            if work.record.is_directory() && work.record.backing.fingerprint.is_some() {
                self.take_away_below(work.ino())?;
            }
            work.disowned();
        }
        if !work.record.links.contains(link) {
            return Ok(Step::Again);
        }
        let now = clock::wall_time();
        for attempt in 0..MAX_NAMES {
            let name = conflict_name(&link.name, now, attempt);
            let parent = link.parent;
            let from = NameIn::new(parent, &link.name);
            match self.meta.rename_inode(work.ino(), from, &name, now) {
                Ok(_) => {
                    self.forget_name(parent, &link.name);
                    self.forget_name(parent, &name);
                    self.remember(link, Some(name), why);
                    break;
                }
                Err(MetaError::Exists) => {}
                // Renamed or removed meanwhile: nothing to give up any more.
                Err(MetaError::NotFound | MetaError::Stale(_)) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Step::Again)
    }

    /// At the last close of a changed file of which only a part is here: the version that its writers saw
    /// beneath stays open until the file is written back, whatever others put in its place.
    pub(crate) fn hold_opened_rest(&self, file: &FileRef, location: &DataLocation) {
        let partial = location.place().is_some_and(TierObject::lacks_bytes);
        let is_open = match location.base() {
            Underlay::Backing(opened) => partial && opened.lock().is_some(),
            Underlay::Spill(spill) => spill.is_below_open(),
            Underlay::Zeros => false,
        };
        if is_open {
            self.keep_open(file);
        }
    }

    /// Keeps what a file has open; false if there are too many.
    pub(crate) fn keep_open(&self, file: &FileRef) -> bool {
        let kept = file.clone();
        let mut held = self.reconciler.held.lock();
        if held.contains_key(&file.ino) {
            return true;
        }
        let room = held.len() < MAX_HELD;
        if room {
            held.insert(file.ino, kept);
        }
        room
    }

    /// A file is written back, or gone.
    pub(crate) fn let_go_of_rest(&self, ino: Ino) {
        let held = self.reconciler.held.lock().remove(&ino);
        // Not with the table in hand: a file that goes closes what it has open.
        drop(held);
    }

    /// Of a changed file of which only a part is here, the rest is what shows through from the backing
    /// store: it is held open until the copy is written, if it is still the version that was written over.
    /// Why there is a conflict, and what it has cost.
    ///
    /// # Errors
    /// [`NodeError::Busy`] while too many are held; what the backing store says.
    fn hold_rest(&self, record: &Record) -> Result<&'static str> {
        let is_changed = record.is_dirty() || record.spilled;
        if !is_changed || record.backing.fingerprint.is_none() {
            return Ok(BOTH);
        }
        let file = self.residency.files.get(record.ino);
        if let Err(error) = self.residency.load(&Context::DAEMON, &file) {
            tracing::warn!(
                ino = %record.ino,
                %error,
                "a file in conflict can't be looked at on its tier: what only the backing store \
                 has of it may be missing in the version kept here"
            );
            return Ok(BOTH);
        }
        let location = file.location.read();
        let partial = location.place().is_some_and(TierObject::lacks_bytes);
        let looked = match location.base() {
            Underlay::Backing(opened) if partial => {
                self.residency.in_known_version(&file, opened, |_| Ok(()))
            }
            Underlay::Spill(spill) if !spill.is_complete() => {
                self.residency.check_below(&file, spill)
            }
            _ => return Ok(BOTH),
        };
        drop(location);
        match looked {
            Ok(()) if self.keep_open(&file) => Ok(BOTH),
            // When others are written, it can be held: until then the name stays its own.
            Ok(()) => Err(NodeError::Busy),
            Err(NodeError::RestGone) => {
                self.residency.give_up_rest(&file);
                Ok(REST_GONE)
            }
            Err(error) => Err(error),
        }
    }

    /// What was found under a name has another one, which the store takes for the same: the inode in
    /// hand can't have its own there.
    pub(super) fn refuse_other_spelling(
        &self,
        work: &mut Work<'_>,
        link: &Link,
        found: &Attributes,
    ) -> Result<()> {
        let spelled = match self.spelled_otherwise(link, found)? {
            Some(spelled) => spelled,
            None => match self.made_otherwise(work.ino(), link, found)? {
                Some(wanted) => wanted,
                None => return Ok(()),
            },
        };
        work.went(link);
        Err(StoreError::errno_of(SAME_NAME, spelled, libc::EINVAL).into())
    }

    /// What a store that does not tell all names apart (by case, by blanks or dots at their ends) has
    /// in place of a name: it lists the very file that it finds there, and under another name only.
    fn spelled_otherwise(&self, link: &Link, found: &Attributes) -> Result<Option<PathBuf>> {
        if link.parent == LIMBO {
            return Ok(None);
        }
        let dir = self.backing_dir(link.parent)?;
        let name = os(&link.name);
        let (mut listed, mut similar) = (false, Vec::new());
        self.backing.list(&dir, &mut |batch| {
            for entry in batch {
                listed |= entry.name == name;
                if folded(&entry.name) == folded(name) {
                    similar.push(entry.name.clone());
                }
            }
            if listed { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        for other in similar.into_iter().filter(|_| !listed) {
            match self.backing.stat(&dir, &other) {
                Ok(same) if (same.dev, same.ino) == (found.dev, found.ino) => {
                    return Ok(Some(other.into()));
                }
                Err(error) if error.class() != ErrorClass::NotFound => return Err(error.into()),
                _ => {}
            }
        }
        Ok(None)
    }

    /// Another name of this directory under which one of our own inodes was made that is found under
    /// this one: the store altered it, as those do that drop dots and blanks at the end.
    fn made_otherwise(&self, ino: Ino, link: &Link, found: &Attributes) -> Result<Option<PathBuf>> {
        if link.parent == LIMBO {
            return Ok(None);
        }
        let wanted = folded(os(&link.name));
        let made = |record: &Record| {
            let other = |other: &&Link| {
                other.parent == link.parent
                    && other.name != link.name
                    && folded(os(&other.name)) == wanted
            };
            let name = record.backing.links.iter().find(other).filter(|_| record.ino != ino)?;
            is_own(record, found).then(|| PathBuf::from(os(&name.name)))
        };
        for (_, stale_name) in self.meta.stale_names(link.parent)? {
            if let Some(name) = self.known(stale_name)?.and_then(|record| made(&record)) {
                return Ok(Some(name));
            }
        }
        let mut after = 0;
        loop {
            let page = match self.meta.entries_plus(link.parent, after, PAGE) {
                // The directory is gone, and the name with it.
                Err(MetaError::Stale(_) | MetaError::NotDirectory) => return Ok(None),
                page => page?,
            };
            let Some(last) = page.last() else { return Ok(None) };
            after = last.entry.cursor;
            if let Some(name) = page.iter().find_map(|item| made(&item.record)) {
                return Ok(Some(name));
            }
        }
    }

    /// Whether what was found under a name says nothing of others: it belongs to another inode of ours,
    /// or it has gone since, with what was known of it. Only what stands there still, when all who
    /// claim the name were asked, is somebody else's.
    pub(super) fn is_overtaken(
        &self,
        work: &Work<'_>,
        link: &Link,
        found: &Attributes,
    ) -> Result<bool> {
        if self.is_anothers(work, link, found)? {
            return Ok(true);
        }
        let now = self.found_under(&work.record, link)?;
        Ok(now.map(|now| now.fingerprint()) != Some(found.fingerprint()))
    }

    /// What others have under a name that was removed here stays and becomes visible again.
    pub(super) fn keep_foreign(
        &self,
        work: &mut Work<'_>,
        link: &Link,
        found: &Attributes,
        why: &'static str,
    ) {
        tracing::debug!(ino = %work.ino(), ?link, record = ?work.record, "theirs stays");
        work.foreign(link);
        self.list_conflict(link, None, Some(found.fingerprint()), why);
    }

    /// Others removed or replaced an unchanged file whose names were changed here, and no tier has it: there is
    /// nothing left of it.
    pub(super) fn lost(&self, work: &mut Work<'_>) -> Result<Step> {
        let in_use = self.in_use(work.ino());
        for link in std::mem::take(&mut work.record.links) {
            self.remember(&link, None, GONE);
            match self.meta.unlink(link.parent, &link.name, clock::wall_time(), in_use) {
                Ok(unlinked) if unlinked.gone => self.discard(work.ino()),
                Ok(_) | Err(MetaError::NotFound | MetaError::Stale(_)) => {}
                Err(error) => return Err(error.into()),
            }
            self.forget_name(link.parent, &link.name);
        }
        Ok(Step::Again)
    }

    pub(crate) fn remember(&self, link: &Link, ours: Option<Vec<u8>>, why: &'static str) {
        self.list_conflict(link, ours, None, why);
    }

    fn list_conflict(
        &self,
        link: &Link,
        ours: Option<Vec<u8>>,
        theirs: Option<Fingerprint>,
        why: &'static str,
    ) {
        let here = self.meta.path(link.parent).ok().flatten();
        // A directory that was removed here has a name in the store only.
        let dir = match link.parent {
            // Where it stood before it was parked is not known any more.
            LIMBO => Some(PARKED.into()),
            parent => here.or_else(|| self.meta.backing_path(parent).ok().flatten()),
        };
        let path = join(&dir.unwrap_or_default(), &link.name);
        let (when, seen) = (clock::wall_time(), self.seen_under(link));
        let conflict = Conflict {
            path: path.clone(),
            ours: ours.clone(),
            when,
            why: why.into(),
            seen,
            theirs,
        };
        if !self.reconciler.conflicts.lock().add(conflict) {
            return;
        }
        self.metrics.conflicts.inc();
        tracing::warn!(
            path = %path.escape_ascii(),
            kept_as = %ours.as_deref().unwrap_or_default().escape_ascii(),
            why,
            "conflict with a change made by others in the backing store"
        );
    }
}

/// What follows the name of a file in that of this mount's version.
const MARK: &str = ".forebay-conflict-";

/// Whether a name may be one that [`conflict_name`] made.
pub(super) fn is_conflict_name(name: &[u8]) -> bool {
    name.windows(MARK.len()).any(|part| part == MARK.as_bytes())
}

/// `NAME.forebay-conflict-HOST-TIME`, shortened where it would be too long for a name.
pub(super) fn conflict_name(name: &[u8], now: Timestamp, attempt: u32) -> Vec<u8> {
    let host = rustix::system::uname();
    let host: String = host.nodename().to_string_lossy().chars().take(64).collect();
    let host = host.replace('/', "_");
    let mut suffix = format!("{MARK}{host}-{}", utc(now));
    if attempt > 0 {
        suffix.push_str(&format!("-{attempt}"));
    }
    let room = 255 - suffix.len().min(255);
    [&name[..name.len().min(room)], suffix.as_bytes()].concat()
}

/// `YYYYMMDDTHHMMSSZ`. The calendar after Howard Hinnant, *chrono-Compatible Low-Level Date
/// Algorithms* (2021), `civil_from_days`.
fn utc(time: Timestamp) -> String {
    let (days, second) = (time.sec.div_euclid(86_400), time.sec.rem_euclid(86_400));
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{:02}Z", second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utc_when_given_known_seconds_then_the_calendar_agrees() {
        assert_eq!(utc(Timestamp::new(0, 0)), "19700101T000000Z");
        assert_eq!(utc(Timestamp::new(951_782_400, 0)), "20000229T000000Z");
        assert_eq!(utc(Timestamp::new(1_700_000_000, 5)), "20231114T221320Z");
        assert_eq!(utc(Timestamp::new(-1, 0)), "19691231T235959Z");
    }

    #[test]
    fn conflict_name_when_the_name_is_long_then_it_fits() {
        let name = conflict_name(&[b'x'; 255], Timestamp::new(0, 0), 3);
        assert_eq!(name.len(), 255);
        assert!(name.ends_with(b"-19700101T000000Z-3"));
    }
}
