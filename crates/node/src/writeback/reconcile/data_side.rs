//! What the backlog asks of the data side, in one place, so that its tests can do without files on
//! tiers.

use std::sync::Arc;

use forebay_meta::{Error as MetaError, Record};
use forebay_store::Attributes;
use forebay_types::{Fingerprint, Ino};

use crate::context::Context;
use crate::error::Result;
use crate::residency::seams::Target;
use crate::writeback::Writeback;
use crate::writeback::flush::Flushed;

/// Stands for the data side in tests.
#[cfg(test)]
pub(crate) trait Stub: Send + Sync {
    fn is_open(&self, ino: Ino) -> bool;
    fn flush(&self, node: &Writeback, record: &Record, target: &Target<'_>) -> Result<Flushed>;
    fn drop_copy(&self, ino: Ino);
    fn discard(&self, ino: Ino);
}

/// Removed files whose bytes are still here.
#[derive(Default)]
pub(super) struct Kept {
    pub files: u64,
    /// Those of them that programs have open.
    pub open: u64,
}

impl Kept {
    pub fn are_all_open(&self) -> bool {
        self.files > 0 && self.open == self.files
    }
}

#[cfg_attr(not(test), allow(clippy::unused_self))]
impl Writeback {
    #[cfg(test)]
    fn stub(&self) -> Option<&Arc<dyn Stub>> {
        self.reconciler.stub.get()
    }

    pub(super) fn in_use(&self, ino: Ino) -> bool {
        #[cfg(test)]
        if let Some(stub) = self.stub() {
            return stub.is_open(ino);
        }
        self.residency.is_open(ino)
    }

    pub(super) fn flush_bytes(&self, record: &Arc<Record>, target: &Target<'_>) -> Result<Flushed> {
        #[cfg(test)]
        if let Some(stub) = self.stub() {
            return stub.flush(self, record, target);
        }
        self.flush_data(record, target)
    }

    /// Whether the file on a tier says that it made what stands in the backing store.
    pub(super) fn made_by(&self, ino: Ino, found: &Attributes) -> Result<bool> {
        #[cfg(test)]
        if self.stub().is_some() {
            return Ok(false);
        }
        self.is_own_version(ino, found)
    }

    /// The version in the backing store that a copy here equals was given other times by a worker: the
    /// copy is of the version that is there now. If that can't be noted, the copy counts as one of an
    /// older version, and is fetched again.
    pub(super) fn copy_has_other_times(&self, ino: Ino, before: Fingerprint, after: Fingerprint) {
        #[cfg(test)]
        if self.stub().is_some() {
            return;
        }
        if self.residency.residents.get(ino.0).is_none() {
            return;
        }
        let file = self.residency.files.get(ino);
        file.below_has_other_times(&before, after);
        let noted = self.residency.load(&Context::DAEMON, &file).and_then(|()| {
            let location = file.location.read();
            let Some(place) = &location.place else { return Ok(()) };
            self.residency.edit_header(place, |header| {
                if let Some(base) = header.base.filter(|base| base.same_content(&before)) {
                    header.base = Some(Fingerprint { edition: base.edition, ..after });
                }
                Ok(())
            })
        });
        if let Err(error) = noted {
            tracing::debug!(%ino, %error, "a copy will be taken for one of an older version");
        }
    }

    /// A version that has none of the object's bytes is about to appear under the name of a file that
    /// was written and is still open, or is taken over there. Its object knows the version durably
    /// before, or it would be taken for older than that after a power cut.
    pub(super) fn announce_to_object(&self, ino: Ino, version: Fingerprint) -> Result<()> {
        #[cfg(test)]
        if self.stub().is_some() {
            return Ok(());
        }
        if !self.residency.is_unsettled(ino) {
            return Ok(());
        }
        let file = self.residency.files.get(ino);
        self.residency.load(&Context::DAEMON, &file)?;
        self.residency.write_again(&file)?;
        let location = file.location.read();
        let Some(place) = &location.place else { return Ok(()) };
        self.residency.edit_header(place, |header| {
            header.pending = Some(version);
            Ok(())
        })?;
        self.residency.sync_object(&file, place, false)
    }

    /// The copy of a clean file is stale.
    pub(crate) fn copy_is_stale(&self, ino: Ino) {
        #[cfg(test)]
        if let Some(stub) = self.stub() {
            return stub.drop_copy(ino);
        }
        self.residency.drop_copy(ino);
    }

    pub(super) fn discard(&self, ino: Ino) {
        #[cfg(test)]
        if let Some(stub) = self.stub() {
            return stub.discard(ino);
        }
        self.residency.discard_data(ino);
    }

    /// Bytes that are to be written to the backing store.
    pub(super) fn unwritten_bytes(&self) -> u64 {
        #[cfg(test)]
        if self.stub().is_some() {
            return 0;
        }
        // Nobody will write the bytes of removed files that are still in use.
        let orphans = match self.meta.counts().orphans {
            // To find the orphans among all nodes' would take long: those that count are open here.
            _ if self.residency.peers.is_clustered() => self.orphans_in_use(),
            0 => Vec::new(),
            _ => self.meta.orphans().unwrap_or_default(),
        };
        let removed = orphans.iter().filter_map(|ino| self.residency.residents.get(ino.0));
        let removed: u64 = removed.filter(|found| found.dirty).map(|found| found.charged).sum();
        let (_, spilled) = self.residency.spilled_files();
        self.residency.dirty_bytes().saturating_sub(removed) + spilled
    }

    /// Lets go of removed files that no program uses and that have bytes here which nobody will write;
    /// what is kept for those who use theirs, or is going at this moment.
    pub(super) fn let_removed_go(&self) -> Kept {
        #[cfg(test)]
        if self.stub().is_some() {
            return Kept::default();
        }
        self.residency.discard_removed();
        let mut dirty = Vec::new();
        self.residency
            .residents
            .for_each(|ino, resident| dirty.extend(resident.dirty.then_some(Ino(ino))));
        let mut kept = Kept::default();
        for ino in dirty.into_iter().filter(|ino| self.is_removed(*ino)) {
            if !self.residency.is_open(ino) {
                // Its last close is at it, or was by another daemon, which has died.
                self.above.last_close(&self.residency.files.get(ino));
            }
            if self.residency.residents.get(ino.0).is_some() {
                kept.files += 1;
                kept.open += u64::from(self.residency.is_open(ino));
            }
        }
        kept
    }

    /// Whether nobody can find a file any more whose bytes are here.
    fn is_removed(&self, ino: Ino) -> bool {
        match self.meta.get(ino) {
            Ok(record) => record.orphan && self.residency.peers.may_have_written(&record),
            Err(MetaError::Stale(_)) => true,
            Err(_) => false,
        }
    }

    /// Files without a name that programs here have open, and whose bytes are dirty.
    fn orphans_in_use(&self) -> Vec<Ino> {
        let mut inos = self.residency.files.in_use();
        inos.retain(|ino| {
            self.residency.residents.get(ino.0).is_some_and(|found| found.dirty)
                && self.meta.get(*ino).is_ok_and(|record| record.orphan)
        });
        inos
    }
}
