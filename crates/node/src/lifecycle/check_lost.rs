//! fsck of dirty files: which of them have nothing left, and what brings them back.

use std::collections::HashSet;

use forebay_meta::{Record, Seq};
use forebay_store::recover::{self, Aside};
use forebay_store::tier::DirTier;
use forebay_store::{DirBacking, Header, StoreError, Tier};
use forebay_types::FileKind;

use crate::error::{NodeError, Result, is_undecodable};
use crate::lifecycle::check::{Check, header_of, is_newer, is_unreadable, path_of};
use crate::lifecycle::which_counts::Newest;
use crate::residency::doubt;
use crate::residency::spill::{noted_inode, spill_setting};
use crate::writeback::reconcile::is_pending;

/// Entries of the backlog that are looked at at once.
const PAGE: usize = 1000;

impl Check<'_> {
    /// Dirty files of which nothing is left.
    pub(super) fn dirty_records(&mut self) -> Result<()> {
        // What can't be seen is not gone.
        if self.seen.store().is_none() {
            return Ok(());
        }
        let mut lost = Vec::new();
        let mut after = Seq(0);
        loop {
            let page = self.meta.backlog(after, PAGE)?;
            let Some((last, _)) = page.last() else { break };
            after = *last;
            for (_, ino) in page {
                match self.meta.get(ino) {
                    Ok(record) if self.is_lost(&record) => lost.push(record),
                    Ok(_) | Err(forebay_meta::Error::Stale(_)) => {}
                    Err(error) if is_undecodable(&error) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        let backing = if lost.is_empty() { None } else { self.backing()? };
        for record in lost {
            let path = path_of(self.meta, record.ino);
            let published = backing.as_ref().map(|backing| self.is_published(backing, &record));
            match published.transpose() {
                // The last thing that the daemon did: the next mount finds it there.
                Ok(Some(true)) => continue,
                Ok(_) => {}
                Err(error) => {
                    self.checked.problem(false, format!("{path}: what the backing store has of it can't be looked at: {error}. See to that and run this again"));
                    continue;
                }
            }
            if let Some((tier, aside, header)) = self.to_put_back(&record)? {
                let kept = aside.path.display();
                let put_back = self.repairs().then(|| -> Result<()> {
                    // Under its name is what counts no more, or a note says so of what is put back.
                    self.left_behind.clear(record.ino, tier)?;
                    Ok(recover::put_back(tier, &aside, record.ino.0, &header)?)
                });
                let repaired = matches!(put_back, Some(Ok(())));
                self.checked.problem(repaired, match put_back {
                    Some(Ok(())) => format!("{path}: its object was set aside as {kept}, and is put back"),
                    Some(Err(error)) => format!("{path}: its object was set aside as {kept}, and can't be put back: {error}"),
                    None => format!("{path}: its object was set aside as {kept}; `forebay fsck --repair` puts it back"),
                });
                continue;
            }
            if let Some(kept) = self.aside_with(&record, StoreError::is_no_answer)? {
                self.checked.problem(false, format!("{path}: its object was set aside as {kept}, and can't be looked at: see to its rights and run this again"));
            } else if self.request.accept_loss {
                crate::residency::aside::give_up_lost(self.meta, record.ino)?;
                self.checked
                    .problem(true, format!("{path}: what was written and is gone is given up"));
            } else if let Some(kept) = self.aside_with(&record, is_unreadable)? {
                self.checked.problem(false, format!("{path}: its object was set aside as {kept}, and the device does not give its header; `forebay fsck --repair` puts it back when the device is well, and `forebay fsck --accept-loss` gives it up"));
            } else if let Some(kept) = self.aside_with(&record, is_newer)? {
                self.checked.problem(false, format!("{path}: its object was set aside as {kept}, and a newer version of Forebay wrote it; `forebay fsck --repair` of that version puts it back, and `forebay fsck --accept-loss` gives it up"));
            } else if let Some(why) = self.unusable_spills.get(&record.ino.0) {
                self.checked.problem(false, format!("{path}: it is newer than the backing store, and its spill file can't be used ({why}); `forebay fsck --accept-loss` sets it aside and gives it up"));
            } else {
                self.checked.problem(false, format!("{path}: it is newer than the backing store, and its bytes are gone (neither object nor spill file); `forebay fsck --accept-loss` gives it up"));
            }
        }
        Ok(())
    }

    fn is_lost(&self, record: &Record) -> bool {
        if record.attr.kind != FileKind::Regular || record.links.is_empty() {
            return false;
        }
        match record.spilled {
            true => !self.spills.contains(&record.ino.0),
            false => {
                let known = |set: &HashSet<u64>| set.contains(&record.ino.0);
                // Of what no start has judged, the next one says what there is.
                record.is_dirty()
                    && record.attr.size > 0
                    && !self.left_behind.unseen.has_any(record.ino)
                    && !known(&self.usable)
                    && !known(&self.damaged)
            }
        }
    }

    /// Whether the backing store has a file as it was about to appear there.
    fn is_published(&self, backing: &DirBacking, record: &Record) -> Result<bool> {
        let spill = self.meta.setting(&spill_setting(record.ino)).ok().flatten();
        let spill = spill.as_deref().and_then(noted_inode).filter(|_| record.spilled);
        for link in record.links.iter().chain(&record.backing.links) {
            let dirs = [self.meta.path(link.parent), self.meta.backing_path(link.parent)];
            for mut path in dirs.into_iter().flatten().flatten() {
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(&link.name);
                let found = match doubt::stat_below(backing, &path) {
                    Ok(Some(found)) => found,
                    // What is not seen for such a reason may be there.
                    Err(NodeError::Store(error)) if error.is_no_answer() => {
                        return Err(error.into());
                    }
                    Ok(None) | Err(_) => continue,
                };
                if is_pending(record, &found)
                    || spill.is_some_and(|spill| spill.same_inode(&found.fingerprint()))
                {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// The object of a dirty file that was set aside, and of whose header this can be said.
    fn aside_with(
        &self,
        record: &Record,
        fault: impl Fn(&StoreError) -> bool,
    ) -> Result<Option<String>> {
        for tier in self.tiers {
            for aside in recover::set_aside(tier.path())? {
                if aside.ino == Some(record.ino.0)
                    && recover::header_of(&aside).as_ref().is_err_and(&fault)
                {
                    return Ok(Some(aside.path.display().to_string()));
                }
            }
        }
        Ok(None)
    }

    /// The object that was set aside of a dirty file and has all that is needed to use it again: with
    /// its map, or without one if it can't have had holes where an older version shows through.
    fn to_put_back(&self, record: &Record) -> Result<Option<(&DirTier, Aside, Header)>> {
        for tier in self.tiers {
            for aside in recover::set_aside(tier.path())? {
                if aside.ino != Some(record.ino.0) || record.spilled {
                    continue;
                }
                if std::fs::metadata(&aside.path)?.len() < record.attr.size {
                    continue;
                }
                let header = recover::header_of(&aside);
                if Newest::of(record).is_after(&aside, header.as_ref().ok())? {
                    continue;
                }
                let full = recover::is_full(&aside.path).unwrap_or(false);
                let whole = match (&header, aside.map) {
                    (Ok(header), _) if header.dirty => header.whole,
                    // It says that it is a copy.
                    (Ok(_), _) => continue,
                    // No other one can be put in its place either, until the device is well.
                    // Nor in that of one whose format nobody knows here: its bytes may be another's.
                    (Err(error), _) if is_unreadable(error) || is_newer(error) => continue,
                    (Err(_), map) => !map,
                };
                let sound = match whole {
                    true => full || record.backing.fingerprint.is_none(),
                    false => recover::has_sound_map(&aside, record.ino.0),
                };
                if sound {
                    let header = Header {
                        whole,
                        dirty: true,
                        writing: true,
                        ..header.unwrap_or_else(|_| header_of(self.meta, record))
                    };
                    return Ok(Some((tier, aside, header)));
                }
            }
        }
        Ok(None)
    }
}
