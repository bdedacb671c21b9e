//! Files whose owner is gone: who has a copy takes them over.
//!
//! First the owner loses the right to write anything until it starts again, unless it has shown a sign
//! of life; then the record of the file changes hands, if file and copies are as they were; then the
//! copy becomes the object. A node that dies after the second step finds the copy at its next start, or
//! another one takes the file over in turn, as the other copies count on.

use std::path::PathBuf;

use forebay_meta::{Copies, Error as MetaError, Incarnation, Record};
use forebay_peer::message::Fault;
use forebay_peer::{Body, Error as PeerError};
use forebay_types::Ino;
use prost::Message;

use super::super::Cluster;
use super::super::forwarding::WITHIN;
use crate::error::Result;
use crate::residency::data_location::DataLocation;
use crate::residency::files::{File, FileRef};
use crate::residency::residents::Resident;

/// Take this file over, of which you have a copy.
pub(crate) const TAKE_OVER: u32 = 32;

/// Asks a node to take a file over.
#[derive(Clone, PartialEq, Message)]
struct Ask {
    #[prost(fixed64, tag = "1")]
    ino: u64,
    #[prost(uint32, tag = "2")]
    node: u32,
    #[prost(uint64, tag = "3")]
    epoch: u64,
}

impl Cluster {
    /// Has a file taken over whose owner is gone, here or by another node that has a copy; false if
    /// there is none that counts, or if the owner may be alive.
    ///
    /// # Errors
    /// If the metadata can't be read or changed.
    pub(in crate::cluster) fn have_taken_over(&self, ino: Ino, owner: Incarnation) -> Result<bool> {
        let Some((record, copies)) = self.meta.record_and_copies(ino)? else { return Ok(false) };
        if record.owner != Some(owner) {
            // Others were first.
            return Ok(true);
        }
        let Some(copies) = copies.filter(|_| record.copied) else { return Ok(false) };
        if self.take_over(&record, owner, &copies)? {
            return Ok(true);
        }
        let ask = Ask { ino: ino.0, node: owner.node.into(), epoch: owner.epoch };
        let body = Body::Bytes(ask.encode_to_vec());
        let others = copies.parts().into_iter().map(|(node, _)| node);
        let others = others.filter(|node| *node != self.me.node);
        for holder in others.filter(|node| !self.is_silent(*node)) {
            let Some(client) = self.peer(holder) else { continue };
            match client.other(TAKE_OVER, &body, 0, WITHIN) {
                Ok(_) => return Ok(true),
                // It is at it, perhaps.
                Err(PeerError::TimedOut { .. }) => return Ok(false),
                Err(error) => tracing::debug!(%ino, holder, %error, "a file is not taken over"),
            }
        }
        Ok(false)
    }

    /// Another node asks for it.
    pub(crate) fn take_over_for(&self, bytes: &[u8]) -> Result<(), Fault> {
        let ask = Ask::decode(bytes).map_err(|error| Fault::Invalid(error.to_string()))?;
        let node = u16::try_from(ask.node).map_err(|error| Fault::Invalid(error.to_string()))?;
        let (ino, owner) = (Ino(ask.ino), Incarnation { node, epoch: ask.epoch });
        let taken = || -> Result<bool> {
            match self.meta.record_and_copies(ino)? {
                Some((record, _)) if record.owner != Some(owner) => Ok(true),
                Some((record, Some(copies))) => self.take_over(&record, owner, &copies),
                _ => Ok(false),
            }
        };
        match taken() {
            Ok(true) => Ok(()),
            Ok(false) => Err(Fault::NotHere),
            Err(error) => Err(crate::cluster::faults::fault(error)),
        }
    }

    /// Takes a file over with the copy that this node has; false if it has none, or if the owner may
    /// be alive.
    pub(super) fn take_over(
        &self,
        record: &Record,
        owner: Incarnation,
        copies: &Copies,
    ) -> Result<bool> {
        let ino = record.ino;
        let able = !self.has_lost_its_lease()
            && !record.links.is_empty()
            && copies.holders.contains(&self.me.node)
            && self.has_whole(ino, owner, copies)?;
        if !able || !self.expel(owner)? {
            return Ok(false);
        }
        let file = self.residency.files.get(ino);
        let mut location = file.location.write();
        if self.meta.get_now(ino)?.owner != Some(owner) {
            return Ok(true);
        }
        // Nothing of another version may be in the way of a copy that becomes the object.
        self.clear(&file, &mut location)?;
        if !self.meta.take_over(ino, owner, copies)? {
            return Ok(true);
        }
        tracing::info!(%ino, %owner, size = copies.size, "a file of a node that is gone was taken over");
        self.metrics.taken_over.inc();
        self.residency.look_up(&file, &mut location)?;
        file.count_write();
        let holders = copies.without(self.me.node);
        let after = Copies { writer: self.me, holders, ..copies.clone() };
        drop(location);
        let level = self.level_of(ino);
        self.safety.note(self.me.node, &file, &after, false, level);
        self.residency.written_back_in(ino);
        Ok(true)
    }

    /// Whether this node has all bytes of a file whose owner is gone; of fragments it makes them.
    fn has_whole(&self, ino: Ino, owner: Incarnation, copies: &Copies) -> Result<bool> {
        let key = (ino.0, copies.version, 0);
        if self.safety.held.has_copy(key, copies.size) {
            return Ok(true);
        }
        if copies.code.is_none() || !self.is_surely_gone(owner)? {
            return Ok(false);
        }
        let Some(_one) = self.safety.begin_whole(ino) else { return Ok(false) };
        self.make_whole(ino, copies)
    }

    /// Whether a node that gave no sign of life for long has given none since either.
    fn is_surely_gone(&self, owner: Incarnation) -> Result<bool> {
        let members = self.meta.members()?;
        let member = members.iter().find(|member| member.node == owner.node);
        Ok(member.is_some_and(|member| {
            member.left
                || member.expelled
                || self.is_silent(owner.node) && self.was_last_seen_as(member)
        }))
    }

    /// Takes from a node that has shown no sign of life for long the right to write anything; false if
    /// it may be alive.
    pub(in crate::cluster) fn expel(&self, owner: Incarnation) -> Result<bool> {
        let members = self.look_at_members()?;
        let Some(member) = members.iter().find(|member| member.node == owner.node) else {
            return Ok(false);
        };
        if !member.left && !member.expelled {
            // As it was seen for so long, and not as it has beaten again since.
            if !self.is_silent(owner.node) || !self.meta.expel(member)? {
                return Ok(false);
            }
            tracing::warn!(
                node = owner.node,
                epoch = member.epoch,
                "a node that gave no sign of life may not write any more until it starts again"
            );
        }
        // Whoever has expelled it may have died before this.
        self.shut_out(owner)?;
        Ok(true)
    }

    /// Makes an object of the copy of a file that this node has taken over and of which no tier has
    /// anything yet: right after it, or after a death in between.
    pub(crate) fn adopt_copy(&self, record: &Record) -> Result<Option<Resident>> {
        let ino = record.ino;
        if !record.copied || !self.is_mine(record) || record.spilled {
            return Ok(None);
        }
        let Some(copies) = self.meta.copies(ino)? else { return Ok(None) };
        let held = &self.safety.held;
        if !held.has_copy((ino.0, copies.version, 0), copies.size) {
            return Ok(None);
        }
        let Some((tier, path, charged)) = held.take_copy(ino, copies.version) else {
            return Ok(None);
        };
        let adopted = self.make_object_of(record, &copies, tier, charged, &path);
        if adopted.is_err() {
            held.return_copy(ino, copies.version, tier, charged);
        }
        adopted.map(Some)
    }

    fn make_object_of(
        &self,
        record: &Record,
        copies: &Copies,
        tier: u8,
        charged: u64,
        path: &std::path::Path,
    ) -> Result<Resident> {
        // What does not count of it goes: it was sent and never acknowledged.
        let file = std::fs::OpenOptions::new().write(true).open(path)?;
        file.set_len(copies.size)?;
        file.sync_all()?;
        drop(file);
        self.residency.adopt_object(record, tier, path, charged)
    }

    /// What this node has of a file does not count any more: where it is kept, if it was changed here.
    fn clear(&self, file: &File, location: &mut DataLocation) -> Result<Option<PathBuf>> {
        self.pages_replaced(file);
        let aside = |tier| self.safety.held.move_aside(file.ino, tier);
        self.residency.make_way(file, location, aside)
    }

    /// Moves aside what this node has of a file that others have taken over from it, if that is so.
    /// Called with nothing of the file in hand.
    pub(in crate::cluster) fn yield_to_taker(&self, file: &FileRef) -> Result<()> {
        if !self.residency.is_unsettled(file.ino) {
            return Ok(());
        }
        let mut location = file.location.write();
        if !self.residency.is_unsettled(file.ino) {
            return Ok(());
        }
        let mine = match self.meta.get_now(file.ino) {
            Ok(record) => self.is_mine(&record),
            Err(MetaError::Stale(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if mine || !self.meta.was_taken(file.ino)? {
            return Ok(());
        }
        let kept = self.clear(file, &mut location)?.unwrap_or_default();
        self.meta.forget_taken(file.ino)?;
        tracing::warn!(ino = %file.ino, kept = %kept.display(), "another node has taken a file over: what this one had of it does not count any more, and is kept aside");
        Ok(())
    }

    /// As [`Cluster::yield_to_taker`], of what a start has found on a tier.
    pub(crate) fn yield_found(&self, ino: Ino, tier: u8) -> Result<bool> {
        if !self.meta.was_taken(ino)? {
            return Ok(false);
        }
        let to = self.safety.held.move_aside(ino, tier)?;
        self.meta.forget_taken(ino)?;
        tracing::warn!(%ino, kept = %to.display(), "another node took a file over while this one was gone: what this one had of it does not count any more, and is kept aside");
        Ok(true)
    }
}
