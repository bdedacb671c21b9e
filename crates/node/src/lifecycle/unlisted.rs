//! Directories of objects that a start can't list, as a power cut or a bad sector may leave them.
//!
//! What is in such a directory is not seen, and stays as it is. It may be newer than what the backing store
//! has of its file, and the file is lost until a start can list it: each that the records call newer, and if
//! these do not tell, as after a kill, each that has its place there. The others are served, and so is the
//! mount, unless nothing of a tier can be listed.
//!
//! Tests: `tests/unlisted.rs`.

use std::ops::ControlFlow;

use forebay_store::tier::part_path;
use forebay_store::{Header, StoreError};
use forebay_types::Ino;

use crate::error::Result;
use crate::lifecycle::trust::{Trust, Trusted};
use crate::node::Node;
use crate::residency::aside::{Evidence, Unlisted};
use crate::residency::unseen::Unseen;

/// What a start does with an object.
type Each<'e> =
    dyn FnMut(u64, forebay_store::Result<Header>, &mut Evidence) -> ControlFlow<()> + 'e;

impl Node {
    /// Lists the objects of a tier, as far as it can be listed.
    ///
    /// # Errors
    /// When nothing of it can be, when that passes by itself, or when what was not seen can't be noted.
    pub(super) fn list_for_start(
        &self,
        index: usize,
        trust: Trust,
        evidence: &mut Evidence,
        each: &mut Each<'_>,
    ) -> Result<()> {
        let tier = &self.residency.tiers[index].tier;
        let mut unlisted: Vec<(u8, StoreError)> = Vec::new();
        for part in 0..=u8::MAX {
            let mut each = |ino, header| each(ino, header, evidence);
            match tier.list_part(part, &mut each) {
                Ok(ControlFlow::Break(())) => return Ok(()),
                Ok(ControlFlow::Continue(())) => {}
                Err(error) if error.is_passing() => return Err(error.into()),
                Err(error) => unlisted.push((part, error)),
            }
        }
        if unlisted.len() > usize::from(u8::MAX)
            && let Some((_, error)) = unlisted.pop()
        {
            return Err(error.into());
        }
        for (part, error) in unlisted {
            tracing::error!(
                directory = %part_path(tier.path(), part).display(),
                %error,
                "a directory of objects can't be listed: the files that may have one there give errors, and \
                 what is there stays as it is. Unmount with --no-drain, see to the tier's file system, and \
                 mount again"
            );
            evidence.unlisted.insert(part);
            let what = (Unseen::Part(index), Ino(part.into()));
            if !trust.unsynced || self.residency.is_unseen(what.0, what.1) {
                self.residency.note_unseen(what.0, what.1)?;
                evidence.unjudged.insert(what);
            }
        }
        Ok(())
    }

    /// Which files may have an object that was not seen. After an end in order with all files settled the
    /// records tell, and [`find_lost`](crate::residency::Residency::find_lost) has found them.
    pub(super) fn tell_unlisted(&self, trusted: &Trusted, evidence: &Evidence) -> Result<()> {
        let records_tell = (0..self.residency.tiers.len()).all(|index| {
            let trust = trusted.tier(index);
            trust.durable && trust.lengths
        });
        if !records_tell && !evidence.unlisted.is_empty() {
            let parts = evidence.unlisted.iter().copied();
            let unlisted = Unlisted::new(parts, self.meta.end_of_numbers()?);
            self.residency.troubles.set_unlisted(unlisted);
        }
        Ok(())
    }
}
