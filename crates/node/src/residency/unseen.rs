//! What a start after a crash of the machine could not look at.
//!
//! Such a start believes only what was synced, and those after it believe what it has left as it is. An object
//! or a spill file that gave no answer is not judged yet: that is noted durably (`unseen` in the state
//! directory, an empty file for each) before anything says that a daemon works in this run of the machine.
//! The starts after it believe as little of it, until one of them has judged it; and so do fsck and a rebuild.
//!
//! # Invariants
//! - A note goes when what was made of its object is durable, or when nothing of its file counts any more, and
//!   before there is another object of the same name.
//!
//! Tests: `tests/unanswered.rs`.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_store::Tier;
use forebay_types::Ino;
use parking_lot::Mutex;

use crate::error::{NodeError, Result};
use crate::residency::Residency;
use crate::residency::left_behind::{Which, listed, name_of, put};
use crate::state_files;

/// Where a state directory has the notes.
const NOTES: &str = "unseen";
/// What stands in a note for a spill file.
const SPILL: &str = "spill";

/// What was not seen of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Unseen {
    /// Its object on the tier with this index.
    Object(usize),
    /// Its spill file.
    Spill,
    /// What the backing store has of it.
    Below,
}

/// All of it.
pub(crate) struct UnseenNotes {
    /// Whether there are any, so that nobody has to take the lock else.
    any: AtomicBool,
    of: Mutex<HashSet<Which>>,
    notes: PathBuf,
}

impl UnseenNotes {
    /// With those that were noted.
    ///
    /// # Errors
    /// When it can't be told which there are.
    pub(super) fn load(state_dir: &Path) -> Result<Self> {
        let notes = state_dir.join(NOTES);
        let of: HashSet<Which> = listed(&notes)?.into_iter().map(|(which, _)| which).collect();
        Ok(UnseenNotes { any: AtomicBool::new(!of.is_empty()), of: Mutex::new(of), notes })
    }

    /// Whether no start has judged the object that a tier has of a file.
    pub(crate) fn has_object(&self, ino: Ino, tier: &dyn Tier) -> bool {
        // No allocation as long as there are none.
        self.any.load(Ordering::Acquire) && self.has(&(ino.0, tier.id().to_string()))
    }

    /// Whether no start has judged the spill file of a file.
    pub(crate) fn has_spill(&self, ino: Ino) -> bool {
        self.any.load(Ordering::Acquire) && self.has(&(ino.0, SPILL.to_owned()))
    }

    /// Whether no start has judged something of a file.
    pub(crate) fn has_any(&self, ino: Ino) -> bool {
        self.any.load(Ordering::Acquire) && self.of.lock().iter().any(|(of, _)| *of == ino.0)
    }

    fn has(&self, which: &Which) -> bool {
        self.any.load(Ordering::Acquire) && self.of.lock().contains(which)
    }

    fn forget(&self, which: &Which) -> Result<()> {
        if self.has(which) {
            state_files::remove(&self.notes, &name_of(which))?;
            let mut of = self.of.lock();
            of.remove(which);
            self.any.store(!of.is_empty(), Ordering::Release);
        }
        Ok(())
    }
}

impl Residency {
    fn unseen_name(&self, what: Unseen, ino: Ino) -> Which {
        let place = match what {
            Unseen::Object(tier) => self.tiers[tier].tier.id().to_string(),
            Unseen::Spill => SPILL.to_owned(),
            Unseen::Below => "below".to_owned(),
        };
        (ino.0, place)
    }

    /// Whether no start has judged it since a crash of the machine.
    pub(crate) fn is_unseen(&self, what: Unseen, ino: Ino) -> bool {
        self.unseen().any.load(Ordering::Acquire) && self.unseen().has(&self.unseen_name(what, ino))
    }

    /// Whether anything was not seen.
    pub(crate) fn has_unseen(&self) -> bool {
        self.unseen().any.load(Ordering::Acquire)
    }

    /// The files of which something was not seen.
    pub(crate) fn unseen_files(&self) -> HashSet<u64> {
        self.unseen().of.lock().iter().map(|(ino, _)| *ino).collect()
    }

    /// Notes that it was not judged by a start that believes less than the next one would.
    ///
    /// # Errors
    /// When that can't be noted: the start must not go on.
    pub(crate) fn note_unseen(&self, what: Unseen, ino: Ino) -> Result<()> {
        let which = self.unseen_name(what, ino);
        if self.unseen().has(&which) {
            return Ok(());
        }
        let notes = &self.unseen().notes;
        put(notes, &which, b"").map_err(|error| {
            NodeError::BadState(format!(
                "a file can't be looked at after a crash of the machine, and that can't be noted in {}: \
                 {error}. Make room there, and mount again",
                notes.display()
            ))
        })?;
        self.unseen().of.lock().insert(which);
        self.unseen().any.store(true, Ordering::Release);
        Ok(())
    }

    /// Another object is about to have its name.
    pub(crate) fn forget_unseen(&self, what: Unseen, ino: Ino) -> Result<()> {
        match self.unseen().any.load(Ordering::Acquire) {
            true => self.unseen().forget(&self.unseen_name(what, ino)),
            false => Ok(()),
        }
    }

    /// Nothing that was there of a file counts any more.
    pub(crate) fn forget_all_unseen(&self, ino: Ino) -> Result<()> {
        let mut all: Vec<Which> = self.unseen().of.lock().iter().cloned().collect();
        all.retain(|(number, _)| *number == ino.0);
        all.iter().try_for_each(|which| self.unseen().forget(which))
    }

    /// A start has judged all but `still`, and that is durable.
    pub(crate) fn forget_seen(&self, still: &HashSet<(Unseen, Ino)>) -> Result<()> {
        if !self.unseen().any.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut places: Vec<Unseen> = (0..self.tiers.len()).map(Unseen::Object).collect();
        places.extend([Unseen::Spill, Unseen::Below]);
        for number in self.unseen_files() {
            for what in &places {
                if !still.contains(&(*what, Ino(number))) {
                    self.unseen().forget(&self.unseen_name(*what, Ino(number)))?;
                }
            }
        }
        Ok(())
    }

    fn unseen(&self) -> &UnseenNotes {
        &self.left_behind.unseen
    }
}
