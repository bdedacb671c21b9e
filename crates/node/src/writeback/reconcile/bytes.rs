//! Bytes: publishing new files and new versions of files.

use std::sync::Arc;

use forebay_meta::{Link, Record};
use forebay_store::{Attributes, Commit, Dir, ErrorClass, Expect};
use forebay_types::{FileKind, Fingerprint};

use super::identity::{is_own, is_pending, may_be_ours, was_changed};
use super::names::os;
use super::occupied::Room;
use super::work::{Step, Work};
use crate::error::{NodeError, Result};
use crate::residency::seams::Target;
use crate::writeback::Writeback;
use crate::writeback::flush::Flushed;

impl Writeback {
    /// Publishes a file that the backing store does not have: complete, in one step.
    pub(super) fn publish<'a>(
        &'a self,
        work: &mut Work<'a>,
        at: &Link,
        depth: usize,
    ) -> Result<Step> {
        let has_bytes = work.record.is_dirty() || work.record.spilled;
        if !has_bytes && work.record.attr.size > 0 {
            if self.residency.settle_if_unsettled(work.ino())? {
                return Err(NodeError::Busy);
            }
            // Its name was acknowledged, and so it stays as long as its bytes are here.
            let counts = self.residency.whole_copy_counts(&work.record);
            if counts.is_err() {
                work.awaits_its_copy();
            }
            return match counts? {
                true => Ok(Step::Again),
                false => self.lost(work),
            };
        }
        let dir = self.backing_dir(at.parent)?;
        self.claim(work, at)?;
        let mut replaced = None;
        let mut expect = None;
        match self.clear_name(work, at, &dir, depth)? {
            Room::Free => {}
            // Only a file is exchanged for a file.
            Room::Replace(owned, other, found) if other.record.attr.kind != FileKind::Regular => {
                self.clear(work, at, &dir, (owned, other, found))?;
            }
            Room::Replace(owned, other, found) => {
                expect = Some(found);
                replaced = Some((owned, other));
            }
            Room::Unreported => return Ok(Step::Again),
        }
        let target =
            Target { parent: at.parent, dir: &dir, name: &at.name, expect, in_place: false };
        work.unsettled();
        let flushed = match has_bytes {
            true => self.flush_bytes(&Arc::new(work.record.clone()), &target)?,
            false => self.publish_empty(work, &target)?,
        };
        match flushed {
            Flushed::Done { fingerprint, clean } => {
                work.came(at, &dir);
                all_written(work, fingerprint, clean);
                if let Some((owned, mut other)) = replaced {
                    other.went(at);
                    work.also(owned, other);
                }
                if clean { Ok(Step::Done) } else { self.written_as_it_was(work, fingerprint) }
            }
            Flushed::Busy | Flushed::Same { .. } => Err(NodeError::Busy),
            Flushed::Conflict(None) => {
                work.disowned();
                if let Some((owned, mut other)) = replaced {
                    other.went(at);
                    work.also(owned, other);
                }
                Ok(Step::Again)
            }
            Flushed::Conflict(Some(found)) => {
                work.disowned();
                if let Some((owned, mut other)) = replaced {
                    other.went(at);
                    work.also(owned, other);
                }
                if has_bytes {
                    self.yield_name(work, at, &found)
                } else {
                    self.name_is_taken(work, at, &dir)
                }
            }
        }
    }

    /// An empty file appears with all its attributes at once, as one with bytes does.
    fn publish_empty(&self, work: &mut Work<'_>, target: &Target<'_>) -> Result<Flushed> {
        let record = &work.record;
        let mut temporary = self.temporary_for(record, target.dir)?;
        self.copy_attributes(record, record.attr.mtime, &**temporary.file())?;
        let name = os(target.name);
        let found = match self.backing.stat(target.dir, name) {
            Ok(found) => Some(found),
            Err(error) if error.class() == ErrorClass::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        let pending = temporary.pending()?;
        let expect = self.intend(work.ino(), target.expect, found.as_ref(), pending)?;
        self.announce_to_object(work.ino(), pending)?;
        let expect = expect.map_or(Expect::Absent, Expect::Version);
        let committed = self.own_change(&[(target.parent, target.dir)], || {
            Ok(self.backing.commit(&mut temporary, target.dir, name, expect)?)
        })?;
        Ok(match committed {
            Commit::Done(fingerprint) => Flushed::Done { fingerprint, clean: true },
            Commit::Conflict(found) => Flushed::Conflict(found),
        })
    }

    /// Writes the bytes of a file that the backing store has.
    pub(super) fn write_bytes<'a>(&'a self, work: &mut Work<'a>, depth: usize) -> Result<Step> {
        let record = &work.record;
        if record.attr.kind != FileKind::Regular || !(record.is_dirty() || record.spilled) {
            return Ok(Step::Done);
        }
        let standing = record.backing.links.iter().find(|link| record.links.contains(link));
        let Some(link) = standing.or_else(|| record.backing.links.newest_first().next()).cloned()
        else {
            return Ok(Step::Done);
        };
        if record.backing.fingerprint.is_none() && record.links.contains(&link) {
            // Claimed, and perhaps never made.
            return self.publish(work, &link, depth);
        }
        let (dir, name) = self.place_of_link(record, &link)?;
        let mut in_place = record.attr.nlink > 1 || record.links.len() > 1;
        if !in_place && let Some(known) = record.backing.fingerprint {
            // Others may have given it another name since.
            let found = self.backing.stat(&dir, os(&name));
            in_place = found.is_ok_and(|found| found.same_inode(&known) && found.nlink > 1);
        }
        let expect = record.backing.fingerprint;
        let target = Target { parent: link.parent, dir: &dir, name: &name, expect, in_place };
        let record = Arc::new(record.clone());
        work.unsettled();
        match self.flush_bytes(&record, &target)? {
            Flushed::Done { fingerprint, clean } => {
                work.touched(link.parent, &dir);
                all_written(work, fingerprint, clean);
                if clean { Ok(Step::Done) } else { self.written_as_it_was(work, fingerprint) }
            }
            Flushed::Same { fingerprint, clean } => {
                work.settled(fingerprint);
                if clean {
                    work.bytes_done();
                    return Ok(Step::Done);
                }
                self.written_as_it_was(work, fingerprint)
            }
            Flushed::Busy => Err(NodeError::Busy),
            Flushed::Conflict(Some(found))
                if is_empty_claim(&work.record, &found) || self.is_unreported(work, &found)? =>
            {
                work.touched(link.parent, &dir);
                work.settled(found.fingerprint());
                Ok(Step::Again)
            }
            Flushed::Conflict(found) => self.settle_conflict(work, &link, &dir, found),
        }
    }

    /// The bytes of a file are there that those who have it open may change: so are its attributes.
    fn written_as_it_was(&self, work: &mut Work<'_>, version: Fingerprint) -> Result<Step> {
        // The record may not have the time yet that the object has.
        work.record.attr.mtime = version.mtime;
        self.write_attributes(work)?;
        work.stays_open = true;
        Err(NodeError::Busy)
    }

    /// Whether what stands under a name is what an interrupted worker of the same inode made.
    fn is_unreported(&self, work: &Work<'_>, found: &Attributes) -> Result<bool> {
        // What was intended is noted in the record as it is now.
        let now = self.known(work.ino())?;
        // As it was before this turn announced anything.
        if was_changed(&work.record, found) {
            return Ok(false);
        }
        let own = now.is_some_and(|record| {
            record.backing.fingerprint.is_some() && is_own(&record, found)
                || is_pending(&record, found)
        });
        Ok(own || self.made_by(work.ino(), found)?)
    }

    fn settle_conflict(
        &self,
        work: &mut Work<'_>,
        link: &Link,
        dir: &Dir,
        found: Option<forebay_store::Attributes>,
    ) -> Result<Step> {
        // The name may have been moved, or moved aside, while the bytes were copied.
        let now = self.known(work.ino())?;
        if !now.is_some_and(|now| now.backing.links.contains(link)) {
            return Ok(Step::Again);
        }
        match found {
            Some(found)
                if !may_be_ours(&work.record, &found)
                    && self.is_anothers(work, link, &found)? =>
            {
                // It is not there after all, and the other one leaves the name to it: it is published
                // in its place. If each waited for the other, neither would ever be done.
                work.went(link);
                if work.record.backing.links.is_empty() {
                    work.disowned();
                }
                Ok(Step::Again)
            }
            Some(found) => self.yield_name(work, link, &found),
            None if self.is_as_published(work.ino()) && self.take_away_if_gone(work.ino())? => {
                Ok(Step::Again)
            }
            None => {
                // Removed by others, or with its directory: what is here is written anew.
                work.went(link);
                work.disowned();
                work.touched(link.parent, dir);
                Ok(Step::Again)
            }
        }
    }
}

/// Whether what stands under a claimed name is an empty file: that which was published when the
/// file had no bytes yet, and not reported because the daemon ended. Were it another's, nothing
/// would be lost with it.
fn is_empty_claim(record: &Record, found: &forebay_store::Attributes) -> bool {
    record.backing.fingerprint.is_none() && found.kind == FileKind::Regular && found.size == 0
}

/// The backing store has this version: bytes, attributes and extended attributes.
fn all_written(work: &mut Work<'_>, print: Fingerprint, clean: bool) {
    // A file that was written in place still has extended attributes that were removed here.
    let is_new = work.record.backing.fingerprint.is_none_or(|known| !known.same_inode(&print));
    work.settled(print);
    if clean {
        work.bytes_done();
    }
    work.attributes_done();
    if is_new {
        work.xattrs_done();
    }
}
