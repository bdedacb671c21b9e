//! The spill files at a start: whose they are, and which of them can be used.

use std::collections::HashSet;
use std::time::Instant;

use forebay_store::StoreError;
use forebay_types::Ino;

use crate::error::{NodeError, Result, is_undecodable};
use crate::lifecycle::recover::is_removed;
use crate::lifecycle::trust::Trust;
use crate::node::Node;
use crate::residency::aside::Evidence;
use crate::residency::synced::bytes_before_a_hole;
use crate::residency::unseen::Unseen;

impl Node {
    /// The files that have a spill file; those of others are removed, or set aside if they may be the
    /// only copy of anything.
    pub(crate) fn wanted_spills(&self) -> Result<Vec<Ino>> {
        let mut wanted = Vec::new();
        for ino in self.backing.list_spills()?.into_iter().map(Ino) {
            match self.meta.get(ino) {
                Ok(record) if record.spilled && !is_removed(&record) => wanted.push(ino),
                Ok(record) => self.dismiss_spill(ino, is_removed(&record))?,
                // Without a note of its removal its record is lost.
                Err(forebay_meta::Error::Stale(_)) => {
                    self.dismiss_spill(ino, self.residency.is_spill_of_removed(ino)?)?;
                }
                // Nothing says that nobody needs it.
                Err(error) if is_undecodable(&error) => {
                    tracing::error!(%ino, %error, "a spill file stays, and is not used");
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.dismiss_spill_notes()?;
        self.residency.drop_spills(Instant::now() + self.config.backing_timeout);
        Ok(wanted)
    }

    /// One that can't be dismissed is by the next start.
    fn dismiss_spill(&self, ino: Ino, is_removed: bool) -> Result<()> {
        match self.residency.dismiss_spill(ino, is_removed) {
            Err(error) if error.of_one_file().is_some() => {
                tracing::warn!(%ino, %error, "a spill file that nobody needs stays");
                Ok(())
            }
            dismissed => dismissed,
        }
    }

    /// What was noted of spill files goes with them. A daemon that is killed after it has removed one, and
    /// before that is noted, leaves the note. (In a cluster it may be of another node's.)
    fn dismiss_spill_notes(&self) -> Result<()> {
        if !self.residency.peers.changes_namespace_alone() {
            return Ok(());
        }
        for ino in self.residency.noted_spills()? {
            let needed = match self.meta.get(ino) {
                Ok(record) => record.spilled && !is_removed(&record),
                Err(forebay_meta::Error::Stale(_)) => false,
                Err(error) if is_undecodable(&error) => true,
                Err(error) => return Err(error.into()),
            };
            // Else it has been seen to, with the file.
            if !needed && matches!(self.backing.open_spill(ino.0), Ok(None)) {
                self.residency.note_spill_due(ino);
            }
        }
        Ok(())
    }

    /// Spill files: those of files that are gone or were flushed go; of a file that has nothing on a
    /// tier the spill file alone knows the size. The files whose spill files can be used.
    pub(super) fn recover_spills(
        &self,
        trust: Trust,
        evidence: &mut Evidence,
    ) -> Result<HashSet<u64>> {
        let mut usable = HashSet::new();
        for ino in self.wanted_spills()? {
            // One that an earlier start has not judged is judged as by that.
            let is_unseen = self.residency.is_unseen(Unseen::Spill, ino);
            let trust = if is_unseen { Trust::default() } else { trust };
            let (size, spill) =
                match self
                    .residency
                    .open_spilled_as(ino, trust.believed(), &|map| trust.believe(map, true))
                {
                    Ok(Some(spill)) => (spill.size_and_mtime().0, spill),
                    Ok(None) => continue,
                    Err(
                        error @ (NodeError::Lost
                        | NodeError::Store(
                            StoreError::Damaged { .. } | StoreError::Version { .. },
                        )),
                    ) => {
                        let is_newer =
                            matches!(error, NodeError::Store(StoreError::Version { .. }));
                        let may_be_nothing = !trust.unsynced && !is_newer;
                        let why = error.to_string();
                        match may_be_nothing
                            .then(|| self.forget_unacknowledged(ino, &why, evidence))
                        {
                            Some(Ok(true)) => {}
                            Some(Err(stuck)) => {
                                let why = stuck.of_one_file().ok_or(stuck)?;
                                self.leave_unseen(ino, Unseen::Spill, trust, &why, evidence)?;
                            }
                            Some(Ok(false)) | None => {
                                tracing::error!(%ino, why, "a spill file can't be used");
                            }
                        }
                        continue;
                    }
                    Err(error) => match error.of_one_file() {
                        Some(why) => {
                            self.leave_unseen(ino, Unseen::Spill, trust, &why, evidence)?;
                            continue;
                        }
                        None => return Err(error),
                    },
                };
            let record = self.meta.get(ino)?;
            // While bytes move to a spill file, the object has the length of the file.
            let counts = self.residency.residents.get(ino.0).is_none();
            if trust.lengths && counts && record.is_dirty() && size < record.attr.size {
                tracing::error!(%ino, size, wanted = record.attr.size, "a spill file has lost its end");
                continue;
            }
            usable.insert(ino.0);
            if self.residency.residents.get(ino.0).is_some() {
                continue;
            }
            if !trust.unsynced && !spill.has_map() && !spill.is_acknowledged() {
                self.writeback
                    .set_aside_if_cut(&record, bytes_before_a_hole(&**spill.file())?.min(size))?;
            }
            self.residency.found_spilled(&record, &spill)?;
        }
        if !trust.unsynced {
            self.forget_spills_that_are_gone(evidence)?;
        }
        Ok(usable)
    }

    /// A crash of the machine may leave a record that says that its file is in a spill file, and no spill file.
    fn forget_spills_that_are_gone(&self, evidence: &Evidence) -> Result<()> {
        for ino in self.residency.noted_spills()? {
            let record = match self.meta.get(ino) {
                Ok(record) if record.spilled && !is_removed(&record) => record,
                // One of which nothing can be said is told of elsewhere.
                Ok(_) | Err(_) => continue,
            };
            let look = || match self.backing.open_spill(ino.0)? {
                Some(_) => Ok(()),
                None if self.residency.published_spill(&record)?.is_some() => Ok(()),
                None => {
                    self.forget_unacknowledged(ino, "its spill file is gone", evidence).map(drop)
                }
            };
            match look() {
                Err(error) if error.of_one_file().is_none() => return Err(error),
                // Said when what is lost is looked for.
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// After a crash of the machine nothing tells which bytes a spill file has. If no program was told that any
    /// change of its file lasts, none of them needs to: the file is as the backing store has it, and what
    /// there is of the change is set aside. Says whether that is so. A start that ends here is followed by one
    /// that does the same.
    fn forget_unacknowledged(&self, ino: Ino, why: &str, evidence: &Evidence) -> Result<bool> {
        let record = self.meta.get(ino)?;
        if evidence.set_aside.contains(&ino.0)
            || !self.residency.peers.may_have_written(&record)
            || !self.residency.set_unacknowledged_object_aside(ino, why)?
        {
            return Ok(false);
        }
        tracing::warn!(
            %ino,
            file = %String::from_utf8_lossy(&self.residency.path_of(ino)),
            why,
            "the machine went down before a change of a file was synced: it is as the backing store has it"
        );
        self.forget_unsynced(&record)?;
        self.residency.set_unused_spill_aside(ino, why)?;
        Ok(true)
    }
}
