//! Which of several objects of one file counts at a start.
//!
//! More than one tier has an object of a file when a move between them was cut short, when a power cut has
//! undone its last step, or when a tier did not give up what it was to remove. What was left behind and
//! noted counts no more ([`crate::residency::left_behind`]). Of others their headers tell. A clean object can
//! be had again from the backing store, so that it never comes before a dirty one, unless the version that
//! it is a copy of is what the dirty one has become. A dirty object is removed only if it is surely
//! older than another one, and else set aside.
//!
//! Of objects that were set aside, perhaps long ago, none counts again for a file that has become something
//! else since.
//!
//! Tests: below, `tests/left_behind.rs`, `tests/moves.rs`, `tests/older_aside.rs`.

use std::os::unix::fs::MetadataExt;

use forebay_meta::Record;
use forebay_store::recover::Aside;
use forebay_store::{Believed, ErrorClass, Header, StoreError};
use forebay_types::{Fingerprint, Ino, Timestamp};

use crate::node::Node;
use crate::residency::left_note::IsLeft;
use crate::residency::synced::is_announced;

/// What an object is beside others of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// None of them is newer.
    Counts,
    /// Another one has what it has, or newer.
    Older,
    /// Another one counts, and it may have what that has not.
    Doubtful,
}

/// How an object stands beside another one of its file, which is complete.
fn standing_beside(header: &Header, other: &Header, known: &[Fingerprint]) -> Standing {
    let moved_less = other.moves > header.moves;
    match (header.dirty, other.dirty) {
        (true, true) | (false, false) if moved_less => Standing::Older,
        (true, false) if has_become(header, other, known) => match moved_less {
            true => Standing::Older,
            false => Standing::Doubtful,
        },
        (false, true) if !has_become(other, header, known) => Standing::Older,
        _ => Standing::Counts,
    }
}

/// Whether a clean object is a copy of a version that was made of a dirty one since, or of something newer:
/// its record knows that version (one of `known`), and the dirty one has never heard of it. Whatever object its file had when
/// that was published was told of it before.
fn has_become(dirty: &Header, clean: &Header, known: &[Fingerprint]) -> bool {
    let Some(version) = clean.base else { return false };
    known.iter().any(|known| known.same_content(&version)) && !is_announced(dirty, &version)
}

impl Node {
    /// How an object of a tier stands beside those that other tiers have of its file.
    ///
    /// # Errors
    /// When a tier does not answer: what it has may be newer.
    pub(crate) fn standing(
        &self,
        index: usize,
        header: &Header,
        record: &Record,
    ) -> forebay_store::Result<Standing> {
        let known = [record.backing.fingerprint, record.backing.pending];
        let known: Vec<Fingerprint> = known.into_iter().flatten().collect();
        let mut standing = Standing::Counts;
        for other in (0..self.residency.tiers.len()).filter(|other| *other != index) {
            let Some(found) = self.complete_object(other, record.ino)? else { continue };
            match standing_beside(header, &found, &known) {
                Standing::Older => return Ok(Standing::Older),
                Standing::Doubtful => standing = Standing::Doubtful,
                Standing::Counts => {}
            }
        }
        Ok(standing)
    }

    /// Looks once more at a file of which a start has found what counts and could not tell what else there is:
    /// whether all of that is surely older, and counts no more.
    pub(crate) fn gives_up_older(&self, ino: Ino) -> bool {
        let (resident, record) = (self.residency.residents.get(ino.0), self.meta.get(ino));
        let (Some(resident), Ok(record)) = (resident, record) else { return false };
        let record = self.residency.as_seen_here(&record);
        let others = (0..).zip(&self.residency.tiers).filter(|(other, _)| *other != resident.tier);
        !record.spilled
            && others.into_iter().all(|(other, slot)| {
                let index = usize::from(other);
                let header = match slot.tier.open(ino.0).and_then(|object| object.header()) {
                    Ok(header) => header,
                    Err(error) => return error.class() == ErrorClass::NotFound,
                };
                let counts_no_more = self.residency.is_known_left_behind(index, ino, Some(&header))
                    || matches!(self.standing(index, &header, &record), Ok(Standing::Older));
                counts_no_more && self.residency.give_up_object(other, ino).is_ok()
            })
    }

    /// For a rebuild: whether an object may be one that was left behind, and nothing tells.
    pub(crate) fn may_be_left_behind(&self, index: usize, ino: Ino, header: &Header) -> bool {
        self.residency.is_left(index, ino, Some(header)) == Some(IsLeft::Perhaps)
    }

    /// For a rebuild, which knows no record: whether another tier has what an object has become: it was moved there, completely, and what was
    /// done to the file since was done there. A move that ended early, or whose last step a power cut
    /// has undone, leaves both.
    pub(crate) fn is_left_behind(&self, index: usize, ino: Ino, header: &Header) -> bool {
        if self.residency.is_known_left_behind(index, ino, Some(header)) {
            return true;
        }
        let others = self.residency.tiers.iter().enumerate().filter(|(other, _)| *other != index);
        others.map(|(_, slot)| &slot.tier).any(|tier| {
            let Ok(other) = tier.open(ino.0).and_then(|object| object.header()) else {
                return false;
            };
            // Of a dirty object and a clean one the backing store tells which is older.
            other.moves > header.moves
                && (other.dirty || !header.dirty)
                && (other.whole || matches!(tier.open_map(ino.0, Believed::Synced), Ok(Some(_))))
        })
    }

    /// The header of the object that a tier has of a file, if it has one that can count.
    fn complete_object(&self, index: usize, ino: Ino) -> forebay_store::Result<Option<Header>> {
        let tier = &self.residency.tiers[index].tier;
        let header = match tier.open(ino.0).and_then(|object| object.header()) {
            Ok(header) => header,
            Err(error) if is_answer(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        if self.residency.is_known_left_behind(index, ino, Some(&header)) {
            return Ok(None);
        }
        let complete = header.whole
            || match tier.open_map(ino.0, Believed::Synced) {
                Ok(map) => map.is_some(),
                Err(error) if is_answer(&error) => false,
                Err(error) => return Err(error),
            };
        Ok(complete.then_some(header))
    }
}

/// What a record knows of the newest version of its file.
pub(crate) struct Newest {
    /// Versions that the backing store has or is about to have.
    pub(crate) known: Vec<Fingerprint>,
    /// When it was written last, as far as was noted.
    pub(crate) mtime: Timestamp,
}

impl Newest {
    /// By the record of the file.
    pub(crate) fn of(record: &Record) -> Self {
        let known = [record.backing.fingerprint, record.backing.pending];
        Newest { known: known.into_iter().flatten().collect(), mtime: record.attr.mtime }
    }

    /// Whether an object that was set aside is from before that: it was written last before the file was, or
    /// was neither made from a version that is known nor became one. (Its header, if it can be read.)
    ///
    /// # Errors
    /// When it can't be looked at.
    pub(crate) fn is_after(&self, aside: &Aside, header: Option<&Header>) -> std::io::Result<bool> {
        let found = std::fs::metadata(&aside.path)?;
        let nsec = u32::try_from(found.mtime_nsec()).unwrap_or_default();
        if Timestamp::new(found.mtime(), nsec) < self.mtime {
            return Ok(true);
        }
        let Some(header) = header.filter(|_| !self.known.is_empty()) else { return Ok(false) };
        let is_known = |version: Fingerprint| self.known.iter().any(|it| it.same_content(&version));
        Ok(![header.base, header.pending].into_iter().flatten().any(is_known))
    }
}

/// Whether an error says what there is: nothing, or what can't be used.
fn is_answer(error: &StoreError) -> bool {
    error.class() == ErrorClass::NotFound
        || matches!(error, StoreError::Damaged { .. } | StoreError::Version { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(number: u64) -> Fingerprint {
        Fingerprint { ino: number, size: 8192, ..Fingerprint::default() }
    }

    fn header(moves: u64, dirty: bool, base: Option<u64>) -> Header {
        Header { ino: 7, moves, dirty, whole: true, base: base.map(version), ..Header::default() }
    }

    #[test]
    fn two_objects_when_both_are_clean_or_both_are_dirty_then_the_one_that_moved_more_often_counts()
    {
        for dirty in [false, true] {
            let (old, new) = (header(1, dirty, Some(1)), header(2, dirty, Some(1)));
            assert_eq!(standing_beside(&old, &new, &[version(1)]), Standing::Older);
            assert_eq!(standing_beside(&new, &old, &[version(1)]), Standing::Counts);
        }
    }

    #[test]
    fn dirty_object_and_a_copy_when_the_copy_is_of_what_it_has_become_then_the_copy_counts() {
        for known in [&[version(2)][..], &[version(1), version(2)]] {
            let (dirty, copy) = (header(0, true, Some(1)), header(2, false, Some(2)));
            assert_eq!(standing_beside(&dirty, &copy, known), Standing::Older);
            assert_eq!(standing_beside(&copy, &dirty, known), Standing::Counts);
            // The copy was fetched anew.
            let dirty = header(5, true, Some(1));
            assert_eq!(standing_beside(&dirty, &copy, known), Standing::Doubtful);
            assert_eq!(standing_beside(&copy, &dirty, known), Standing::Counts);
        }
    }

    #[test]
    fn dirty_object_and_a_copy_when_nothing_proves_that_the_copy_is_newer_then_the_dirty_one_counts()
     {
        let announced = Header { pending: Some(version(2)), ..header(0, true, Some(1)) };
        let known: &[Fingerprint] = &[version(2)];
        for (dirty, copy, known) in [
            // Of the same version as the copy, and changed since.
            (header(0, true, Some(2)), header(2, false, Some(2)), known),
            (announced, header(2, false, Some(2)), known),
            // A copy of a version that nobody knows.
            (header(0, true, None), header(2, false, Some(3)), known),
            (header(0, true, None), header(2, false, None), &[]),
        ] {
            assert_eq!(standing_beside(&dirty, &copy, known), Standing::Counts);
            assert_eq!(standing_beside(&copy, &dirty, known), Standing::Older);
        }
    }
}
