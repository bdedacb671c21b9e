//! Which version of a file a node shows: that of the last close anywhere, at every open.

use std::sync::Arc;
use std::time::Instant;

use forebay_meta::Record;
use forebay_store::ErrorClass;
use forebay_types::{FileKind, Fingerprint, Ino};
use rustix::io::Errno;

use super::{AccessMode, Cluster};
use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::residency::files::{File, FileRef};

/// What identifies a version of a file in the backing store; none if it is not there.
type Version = Option<Fingerprint>;

impl Cluster {
    /// The record of a file that is about to be opened, and how it is accessed. The newest bytes are
    /// here or in the backing store then, or calls are forwarded to the node that has them. A writer
    /// gets a write pin.
    ///
    /// # Errors
    /// As [`Cluster::pin_for_writing`].
    pub(crate) fn newest(
        &self,
        context: &Context,
        ino: Ino,
        write: bool,
    ) -> Result<(Arc<Record>, AccessMode<'_>)> {
        // What is cached will do for the type, which never changes.
        if write && self.meta.get(ino)?.attr.kind == FileKind::Regular {
            let mode = self.pin_for_writing(context, ino)?;
            return Ok((self.meta.get_now(ino)?, mode));
        }
        let record = self.meta.get_now(ino)?;
        if record.attr.kind != FileKind::Regular {
            return Ok((record, AccessMode::Read));
        }
        let Some(owner) = record.owner.filter(|owner| owner.node != self.me.node) else {
            return Ok((record, AccessMode::Read));
        };
        context.wait()?;
        let until = Instant::now() + self.config.timeout;
        let mut owner = owner;
        let record = loop {
            let mode = self.read_mode(ino, owner, until)?;
            let record = self.meta.get_now(ino)?;
            if matches!(mode, AccessMode::Forwarded(_)) {
                return Ok((record, mode));
            }
            // Perhaps it has changed hands, and the next one has not written it back either.
            match record.owner.filter(|now| *now != owner && now.node != self.me.node) {
                Some(now) if Instant::now() < until => owner = now,
                _ => break record,
            }
        };
        if self.is_out_of_reach(&record) {
            return Err(NodeError::Posix(Errno::BUSY));
        }
        Ok((record, AccessMode::Read))
    }

    /// Whether nothing of a file can be shown here: another node has it, and the backing store has no
    /// version of it.
    pub(crate) fn is_out_of_reach(&self, record: &Record) -> bool {
        let published = record.backing.fingerprint.is_some();
        self.is_elsewhere(record) && !published && record.is_behind()
    }

    /// Forgets what is here of another version of a file than the record's. To be called at each
    /// open, with the record as it is now.
    pub(crate) fn match_version(
        &self,
        context: &Context,
        file: &FileRef,
        record: &Record,
    ) -> Result<()> {
        if !self.is_mine(record) {
            self.yield_to_taker(file)?;
        }
        let version = |record: &Record| record.backing.fingerprint;
        let mut current = version(record);
        // Also what this node has published a moment ago and the record does not say yet: nobody else
        // can have, and the record's version is the one before.
        let unreported = record.is_dirty() && self.is_mine(record);
        if self
            .residency
            .residents
            .get(file.ino.0)
            .is_some_and(|resident| resident.dirty || unreported)
        {
            return Ok(());
        }
        let differs = |shown| self.is_of_another_version(file, shown, current);
        if !context.may_wait() && differs(*file.cluster.shown.lock())? {
            context.wait()?;
        }
        let mut shown = file.cluster.shown.lock();
        if self.is_of_another_version(file, *shown, current)? {
            // This node may have published what it has since the record was read.
            current = version(&*self.meta.get_now(file.ino)?);
            if self.is_of_another_version(file, *shown, current)? {
                self.forget_version(file)?;
            }
        }
        *shown = Some(current);
        Ok(())
    }

    /// Whether what is here of a clean file, or was shown of it, is not of a version.
    fn is_of_another_version(
        &self,
        file: &File,
        shown: Option<Version>,
        current: Version,
    ) -> Result<bool> {
        let same = |other: Version| match (current, other) {
            (Some(current), Some(other)) => current.same_content(&other),
            (current, other) => current.is_none() && other.is_none(),
        };
        match self.residency.residents.get(file.ino.0) {
            Some(resident) if resident.dirty => Ok(false),
            Some(resident) => {
                let tier = &self.residency.tiers[usize::from(resident.tier)].tier;
                match tier.open(file.ino.0).and_then(|object| object.header()) {
                    Ok(header) => Ok(!same(header.base)),
                    Err(error) if error.class() == ErrorClass::NotFound => Ok(false),
                    Err(error) => Err(error.into()),
                }
            }
            // Of a file that was looked up at its making, nobody has noted a version.
            None => {
                Ok(shown.map_or_else(|| file.location.read().is_loaded(), |shown| !same(shown)))
            }
        }
    }

    /// Drops the clean copy of a file, and where its bytes were read: programs that have it open go
    /// on with the version that counts now.
    fn forget_version(&self, file: &File) -> Result<()> {
        let mut location = file.location.write();
        if self.residency.is_changed_here(file.ino, &location) {
            return Ok(());
        }
        self.pages_replaced(file);
        self.residency.forget_copy(file, &mut location)
    }

    /// Whether what lies dirty on a tier of this node can be newer than what all know.
    pub(crate) fn may_have_written(&self, record: &Record) -> bool {
        self.is_mine(record)
    }

    /// Whether an object that says that it is dirty, of a file that is not this node's any more, has
    /// nothing that the backing store lacks: the version that was announced last is the one that all know.
    /// A node gives a file up only then. That the object was made from that version says nothing: the
    /// metadata may be older than what was written to it.
    pub(crate) fn has_nothing_newer(record: &Record, header: &forebay_store::Header) -> bool {
        let current = record.backing.fingerprint;
        current
            .zip(header.pending)
            .is_some_and(|(current, announced)| announced.same_content(&current))
    }
}
