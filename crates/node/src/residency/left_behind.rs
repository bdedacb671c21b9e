//! Objects that count no more and that their tier does not give up.
//!
//! What is given up goes at once. Where its tier refuses that, it is noted durably (`left-behind` in the
//! state directory, a file for each, with the header that the object had): a start takes no such object for
//! what its file is, whatever its header says, and looks no further at it. It goes later: at a start, before
//! the file gets an object on that tier again, or when that is tried now and then.
//!
//! # Invariants
//! - Nothing newer of a file comes to be before it is durable that the older object counts no more, or that
//!   it is gone (`keep_out_left_behind`).
//! - A note goes when it is durable that its object is gone, and before there is another one of the same
//!   name.
//!
//! Tests: `tests/left_behind.rs`, `tests/moves.rs`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_store::{Header, StoreError, Tier};
use forebay_types::Ino;
use parking_lot::Mutex;

use crate::error::{NodeError, Result};
use crate::residency::Residency;
use crate::state_files;

/// Where a state directory has the notes.
const NOTES: &str = "left-behind";
/// So many are tried at a time.
const TRIED: usize = 100;

/// An object that is left behind.
#[derive(Clone)]
struct Left {
    /// Its header, encoded; empty if that could not be read.
    header: Vec<u8>,
    /// Whether a note of it is durable.
    noted: bool,
}

/// An inode number, and the identity of a tier.
type Which = (u64, String);

/// All of them.
pub(crate) struct LeftBehind {
    /// Whether there are any, so that nobody has to take the lock as long as no tier refuses anything.
    any: AtomicBool,
    of: Mutex<HashMap<Which, Left>>,
    notes: PathBuf,
    /// Held while one of them is removed: another object may get its name right after.
    removing: Mutex<()>,
}

impl LeftBehind {
    /// With those that were noted.
    ///
    /// # Errors
    /// When the notes can't be read: what they say must not be taken for what files are.
    pub(crate) fn load(state_dir: &Path) -> std::io::Result<Self> {
        let notes = state_dir.join(NOTES);
        let mut of = HashMap::new();
        match std::fs::read_dir(&notes) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(entries) => {
                for entry in entries {
                    let entry = entry?;
                    let name = entry.file_name();
                    if let Some(which) = name.to_str().and_then(parse_name) {
                        let header = std::fs::read(entry.path())?;
                        of.insert(which, Left { header, noted: true });
                    }
                }
            }
        }
        let any = AtomicBool::new(!of.is_empty());
        Ok(LeftBehind { any, of: Mutex::new(of), notes, removing: Mutex::default() })
    }

    fn get(&self, which: &Which) -> Option<Left> {
        let any = self.any.load(Ordering::Acquire);
        if any { self.of.lock().get(which).cloned() } else { None }
    }

    fn set(&self, which: Which, left: Left) {
        self.of.lock().insert(which, left);
        self.any.store(true, Ordering::Release);
    }

    fn note(&self, which: &Which, header: &[u8]) -> std::io::Result<()> {
        match std::fs::create_dir(&self.notes) {
            Ok(()) => {
                if let Some(state_dir) = self.notes.parent() {
                    std::fs::File::open(state_dir)?.sync_all()?;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        state_files::replace(&self.notes, &name_of(which), header)
    }

    fn forget(&self, which: &Which) -> std::io::Result<()> {
        state_files::remove(&self.notes, &name_of(which))?;
        let mut of = self.of.lock();
        of.remove(which);
        self.any.store(!of.is_empty(), Ordering::Release);
        Ok(())
    }
}

fn name_of((ino, tier): &Which) -> String {
    format!("{ino:016x}.{tier}")
}

fn parse_name(name: &str) -> Option<Which> {
    let (ino, tier) = name.split_once('.')?;
    let which = (u64::from_str_radix(ino, 16).ok()?, tier.to_owned());
    (name_of(&which) == name && !tier.contains('.')).then_some(which)
}

impl Residency {
    fn which(&self, tier: usize, ino: Ino) -> Which {
        (ino.0, self.tiers[tier].tier.id().to_string())
    }

    /// Whether an object that a tier has was left behind there, by the header that it has, if that can be
    /// read.
    pub(crate) fn is_known_left_behind(
        &self,
        tier: usize,
        ino: Ino,
        header: Option<&Header>,
    ) -> bool {
        if !self.left_behind.any.load(Ordering::Acquire) {
            return false;
        }
        let known = self.left_behind.get(&self.which(tier, ino));
        known.is_some_and(|left| {
            left.header.is_empty() || header.is_none_or(|found| found.encode() == left.header)
        })
    }

    /// An object of a file counts no more, and goes. What its tier does not give up counts no more for that.
    ///
    /// # Errors
    /// When it is neither gone nor noted: nothing newer of the file comes to be as long as that is so.
    pub(crate) fn give_up_object(&self, tier: u8, ino: Ino) -> Result<()> {
        match self.remove_object(tier, ino) {
            Ok(()) => self.forget_left_behind(tier, ino),
            Err(error) => {
                if let NodeError::Store(error) = &error {
                    // Nothing new goes to a tier that has failed, and there is no end of such notes.
                    self.is_tiers_failure(tier, error);
                }
                self.leave_behind(tier, ino, &error)
            }
        }
    }

    /// As [`Residency::give_up_object`], of one that can't be removed for a reason.
    pub(crate) fn leave_behind(
        &self,
        tier: u8,
        ino: Ino,
        why: &dyn std::fmt::Display,
    ) -> Result<()> {
        let slot = &self.tiers[usize::from(tier)].tier;
        let header = slot.open(ino.0).and_then(|object| object.header());
        let header = header.map_or_else(|_: StoreError| Vec::new(), |header| header.encode());
        let which = self.which(usize::from(tier), ino);
        if self.left_behind.get(&which).is_some_and(|left| left.noted && left.header == header) {
            return Ok(());
        }
        tracing::warn!(
            %ino,
            tier = %slot.path().display(),
            error = %why,
            "an object that counts no more can't be removed from its tier: it is tried again later"
        );
        self.left_behind.set(which.clone(), Left { header: header.clone(), noted: false });
        self.left_behind.note(&which, &header)?;
        self.left_behind.set(which, Left { header, noted: true });
        Ok(())
    }

    /// It is gone.
    fn forget_left_behind(&self, tier: u8, ino: Ino) -> Result<()> {
        if !self.left_behind.any.load(Ordering::Acquire) {
            return Ok(());
        }
        let which = self.which(usize::from(tier), ino);
        if self.left_behind.get(&which).is_none() {
            return Ok(());
        }
        self.tiers[usize::from(tier)].tier.settle_removals(ino.0)?;
        Ok(self.left_behind.forget(&which)?)
    }

    /// What a tier has of an inode number is another file's, in a namespace that is made anew.
    pub(crate) fn forget_left_behind_on(&self, tier: &dyn Tier, ino: Ino) -> Result<()> {
        let which = (ino.0, tier.id().to_string());
        match self.left_behind.get(&which) {
            Some(_) => Ok(self.left_behind.forget(&which)?),
            None => Ok(()),
        }
    }

    /// A file is about to get an object on a tier: one that was left behind there goes first.
    ///
    /// # Errors
    /// When the tier still keeps it.
    pub(crate) fn clear_left_behind(&self, tier: u8, ino: Ino) -> Result<()> {
        if !self.left_behind.any.load(Ordering::Acquire) {
            return Ok(());
        }
        let _one = self.left_behind.removing.lock();
        if self.left_behind.get(&self.which(usize::from(tier), ino)).is_none() {
            return Ok(());
        }
        self.remove_object(tier, ino)?;
        self.forget_left_behind(tier, ino)
    }

    /// Something newer of a file than what it may have left behind is about to come to be.
    ///
    /// # Errors
    /// When something that was left behind is neither noted nor gone.
    pub(crate) fn keep_out_left_behind(&self, ino: Ino) -> Result<()> {
        if !self.left_behind.any.load(Ordering::Acquire) {
            return Ok(());
        }
        for (index, _) in self.tiers.iter().enumerate() {
            let known = self.left_behind.get(&self.which(index, ino));
            if known.is_some_and(|left| !left.noted) {
                let tier = u8::try_from(index).unwrap_or(u8::MAX);
                let _one = self.left_behind.removing.lock();
                self.give_up_object(tier, ino)?;
            }
        }
        Ok(())
    }

    /// Tries again to remove what a file has left behind.
    pub(crate) fn remove_left_behind_of(&self, ino: Ino) {
        if !self.left_behind.any.load(Ordering::Acquire) {
            return;
        }
        for tier in (0..self.tiers.len()).filter_map(|tier| u8::try_from(tier).ok()) {
            if let Err(error) = self.clear_left_behind(tier, ino) {
                tracing::debug!(%ino, %error, "an object that counts no more stays");
            }
        }
    }

    /// Tries again to remove what was left behind.
    pub(crate) fn remove_left_behind(&self) {
        if !self.left_behind.any.load(Ordering::Acquire) {
            return;
        }
        let known: Vec<Which> = self.left_behind.of.lock().keys().take(TRIED).cloned().collect();
        for (number, id) in known {
            let tier = self.tiers.iter().position(|slot| slot.tier.id().to_string() == id);
            // A tier that is not of this mount any more keeps what it has.
            let Some(tier) = tier.and_then(|tier| u8::try_from(tier).ok()) else { continue };
            if let Err(error) = self.clear_left_behind(tier, Ino(number)) {
                tracing::debug!(ino = number, %error, "an object that counts no more stays");
            }
        }
    }
}
