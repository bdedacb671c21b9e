//! What the backlog asks of the data side, in one place, so that its tests can do without files on
//! tiers.

use std::sync::Arc;

use forebay_meta::{Error as MetaError, Record};
use forebay_store::Attributes;
use forebay_types::{Fingerprint, Ino};

use crate::error::Result;
use crate::residency::seams::Target;
use crate::writeback::Writeback;
use crate::writeback::flush::Flushed;

/// What the backlog asks of the data side: [`Tiers`], or what stands for them in tests.
pub(super) trait DataSide: Send + Sync {
    /// Whether a program has the file open.
    fn is_open(&self, writeback: &Writeback, ino: Ino) -> bool;

    /// Writes the dirty bytes of a file to the backing store.
    fn flush(
        &self,
        writeback: &Writeback,
        record: &Arc<Record>,
        target: &Target<'_>,
    ) -> Result<Flushed>;

    /// Whether the file on a tier says that it made what stands in the backing store.
    fn made_by(&self, writeback: &Writeback, ino: Ino, found: &Attributes) -> Result<bool>;

    /// The version in the backing store that a copy here equals was given other times by a worker: the
    /// copy is of the version that is there now. If that can't be noted, the copy counts as one of an
    /// older version, and is fetched again.
    fn copy_has_other_times(
        &self,
        writeback: &Writeback,
        ino: Ino,
        before: Fingerprint,
        after: Fingerprint,
    );

    /// A version that has none of the object's bytes is about to appear under the name of a file that
    /// was written and is still open, or is taken over there. Its object knows the version durably
    /// before, or it would be taken for older than that after a power cut.
    fn announce(&self, writeback: &Writeback, ino: Ino, version: Fingerprint) -> Result<()>;

    /// The copy of a clean file is stale.
    fn drop_copy(&self, writeback: &Writeback, ino: Ino);

    /// Lets go of the bytes of a file that is removed.
    fn discard(&self, writeback: &Writeback, ino: Ino);

    /// Bytes that are to be written to the backing store.
    fn unwritten_bytes(&self, writeback: &Writeback) -> u64;

    /// Lets go of removed files that no program uses and that have bytes here which nobody will write;
    /// what is kept for those who use theirs, or is going at this moment.
    fn let_removed_go(&self, writeback: &Writeback) -> RemovedFiles;
}

impl Default for Box<dyn DataSide> {
    fn default() -> Self {
        Box::new(Tiers)
    }
}

/// Removed files whose bytes are still here.
#[derive(Default)]
pub(super) struct RemovedFiles {
    pub files: u64,
    /// Those of them that programs have open.
    pub open: u64,
}

impl RemovedFiles {
    pub fn are_all_open(&self) -> bool {
        self.files > 0 && self.open == self.files
    }
}

/// The data side of a mount: what is on its tiers.
struct Tiers;

impl DataSide for Tiers {
    fn is_open(&self, writeback: &Writeback, ino: Ino) -> bool {
        writeback.residency.is_open(ino)
    }

    fn flush(
        &self,
        writeback: &Writeback,
        record: &Arc<Record>,
        target: &Target<'_>,
    ) -> Result<Flushed> {
        writeback.flush_data(record, target)
    }

    fn made_by(&self, writeback: &Writeback, ino: Ino, found: &Attributes) -> Result<bool> {
        writeback.is_own_version(ino, found)
    }

    fn copy_has_other_times(
        &self,
        writeback: &Writeback,
        ino: Ino,
        before: Fingerprint,
        after: Fingerprint,
    ) {
        let residency = &writeback.residency;
        if residency.residents.get(ino.0).is_none() {
            return;
        }
        let file = residency.files.get(ino);
        file.below_has_other_times(&before, after);
        if let Err(error) = residency.copy_has_other_times(&file, &before, after) {
            tracing::debug!(%ino, %error, "a copy will be taken for one of an older version");
        }
    }

    fn announce(&self, writeback: &Writeback, ino: Ino, version: Fingerprint) -> Result<()> {
        writeback.residency.announce_theirs(ino, version)
    }

    fn drop_copy(&self, writeback: &Writeback, ino: Ino) {
        writeback.residency.drop_copy(ino);
    }

    fn discard(&self, writeback: &Writeback, ino: Ino) {
        writeback.residency.discard_data(ino);
    }

    fn unwritten_bytes(&self, writeback: &Writeback) -> u64 {
        let residency = &writeback.residency;
        // Nobody will write the bytes of removed files that are still in use.
        let orphans = match writeback.meta.counts().orphans {
            // To find the orphans among all nodes' would take long: those that count are open here.
            _ if writeback.rights.shares_work() => writeback.orphans_in_use(),
            0 => Vec::new(),
            _ => writeback.meta.orphans().unwrap_or_default(),
        };
        let removed = orphans.iter().filter_map(|ino| residency.residents.get(ino.0));
        let removed: u64 = removed.filter(|found| found.dirty).map(|found| found.charged).sum();
        let (_, spilled) = residency.spilled_files();
        residency.dirty_bytes().saturating_sub(removed) + spilled
    }

    fn let_removed_go(&self, writeback: &Writeback) -> RemovedFiles {
        let residency = &writeback.residency;
        residency.discard_removed();
        let mut dirty = Vec::new();
        residency
            .residents
            .for_each(|ino, resident| dirty.extend(resident.dirty.then_some(Ino(ino))));
        let mut removed = RemovedFiles::default();
        for ino in dirty.into_iter().filter(|ino| writeback.is_removed(*ino)) {
            if !residency.is_open(ino) && !residency.waits_to_go(ino) {
                // Its last close is at it, or was by another daemon, which has died.
                writeback.above.last_close(&residency.files.get(ino));
            }
            if residency.residents.get(ino.0).is_some() {
                removed.files += 1;
                removed.open += u64::from(residency.is_open(ino));
            }
        }
        removed
    }
}

impl Writeback {
    /// [`DataSide::is_open`].
    pub(super) fn in_use(&self, ino: Ino) -> bool {
        self.reconciler.data_side.is_open(self, ino)
    }

    /// [`DataSide::flush`].
    pub(super) fn flush_bytes(&self, record: &Arc<Record>, target: &Target<'_>) -> Result<Flushed> {
        self.reconciler.data_side.flush(self, record, target)
    }

    /// [`DataSide::made_by`].
    pub(super) fn made_by(&self, ino: Ino, found: &Attributes) -> Result<bool> {
        self.reconciler.data_side.made_by(self, ino, found)
    }

    /// [`DataSide::copy_has_other_times`].
    pub(super) fn copy_has_other_times(&self, ino: Ino, before: Fingerprint, after: Fingerprint) {
        self.reconciler.data_side.copy_has_other_times(self, ino, before, after);
    }

    /// [`DataSide::announce`].
    pub(super) fn announce_to_object(&self, ino: Ino, version: Fingerprint) -> Result<()> {
        self.reconciler.data_side.announce(self, ino, version)
    }

    /// [`DataSide::drop_copy`].
    pub(crate) fn copy_is_stale(&self, ino: Ino) {
        self.reconciler.data_side.drop_copy(self, ino);
    }

    /// [`DataSide::discard`].
    pub(super) fn discard(&self, ino: Ino) {
        self.reconciler.data_side.discard(self, ino);
    }

    /// [`DataSide::unwritten_bytes`].
    pub(super) fn unwritten_bytes(&self) -> u64 {
        self.reconciler.data_side.unwritten_bytes(self)
    }

    /// [`DataSide::let_removed_go`].
    pub(super) fn let_removed_go(&self) -> RemovedFiles {
        self.reconciler.data_side.let_removed_go(self)
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
            self.residency.is_unsettled(*ino)
                && self.meta.get(*ino).is_ok_and(|record| record.orphan)
        });
        inos
    }
}
