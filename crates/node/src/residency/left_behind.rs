//! Objects that count no more and that their tier does not give up.
//!
//! What is given up goes at once. Where its tier refuses that, it is noted durably (`left-behind` in the
//! state directory, a file for each, which says what the object was: `left_note.rs`): a start takes no such
//! object for what its file is, whatever its header says, and looks no further at it. It goes later: at a
//! start, before the file gets an object on that tier again, or when that is tried now and then. Another
//! object that has the name then counts; one that may be another is set aside.
//!
//! # Invariants
//! - Nothing newer of a file comes to be before it is durable that the older object counts no more, or that
//!   it is gone (`keep_out_left_behind`).
//! - A note goes when it is durable that its object is gone, and before there is another one of the same
//!   name.
//!
//! Tests: `tests/left_behind.rs`, `tests/moves.rs`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_store::{ErrorClass, Header, StoreError, Tier};
use forebay_types::Ino;
use parking_lot::{Condvar, Mutex};

use crate::error::{NodeError, Result};
use crate::residency::Residency;
use crate::residency::left_note::{IsLeft, LeftNote, ObjectFile};
use crate::residency::unseen::{Unseen, UnseenNotes};
use crate::state_files;

/// Where a state directory has the notes.
const NOTES: &str = "left-behind";
/// So many are tried at a time.
const TRIED: usize = 100;

/// An object that is left behind.
#[derive(Clone)]
struct Left {
    note: LeftNote,
    /// Whether it is durable.
    noted: bool,
}

/// An inode number, and the identity of a tier.
pub(super) type Which = (u64, String);

/// All of them.
pub(crate) struct LeftBehind {
    /// Whether there are any, so that nobody has to take the lock as long as no tier refuses anything.
    any: AtomicBool,
    of: Mutex<BTreeMap<Which, Left>>,
    /// Which had its turn last when all were tried again.
    tried: Mutex<Option<Which>>,
    notes: PathBuf,
    /// Those that are being removed: another object may get the name right after. Each for itself, as a device
    /// in trouble may keep whoever asks it waiting.
    busy: Mutex<HashSet<Which>>,
    free: Condvar,
    pub(crate) unseen: UnseenNotes,
}

/// One of them, in hand to be removed.
struct InHand<'l> {
    all: &'l LeftBehind,
    which: Which,
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        self.all.busy.lock().remove(&self.which);
        self.all.free.notify_all();
    }
}

impl LeftBehind {
    /// With those that were noted. Of one whose note can't be read it is known all the same: nothing gets its
    /// name before the note is gone.
    ///
    /// # Errors
    /// When it can't be told which there are: none of them must be taken for what its file is.
    pub(crate) fn load(state_dir: &Path) -> Result<Self> {
        let notes = state_dir.join(NOTES);
        let mut of = BTreeMap::new();
        for (which, note) in listed(&notes)? {
            let bytes = std::fs::read(&note).unwrap_or_else(|error| {
                tracing::warn!(
                    note = %note.display(),
                    %error,
                    "a note of an object that counts no more can't be read: if the object says that \
                     it is newer than the backing store, it is set aside"
                );
                Vec::new()
            });
            of.insert(which, Left { note: LeftNote::decode(&bytes), noted: true });
        }
        let any = AtomicBool::new(!of.is_empty());
        Ok(LeftBehind {
            any,
            of: Mutex::new(of),
            tried: Mutex::default(),
            notes,
            busy: Mutex::default(),
            free: Condvar::new(),
            unseen: UnseenNotes::load(state_dir)?,
        })
    }

    /// Takes one of them in hand if it is there, when nobody else has it.
    fn take(&self, which: Which) -> Option<InHand<'_>> {
        self.get(&which)?;
        let mut busy = self.busy.lock();
        while !busy.insert(which.clone()) {
            self.free.wait(&mut busy);
        }
        drop(busy);
        let taken = InHand { all: self, which };
        // Whoever had it may have removed it.
        self.get(&taken.which).is_some().then_some(taken)
    }

    fn get(&self, which: &Which) -> Option<Left> {
        let any = self.any.load(Ordering::Acquire);
        if any { self.of.lock().get(which).cloned() } else { None }
    }

    fn set(&self, which: Which, left: Left) {
        self.of.lock().insert(which, left);
        self.any.store(true, Ordering::Release);
    }

    /// Those whose turn it is to be tried again, of tiers that are there.
    fn next(&self, is_there: impl Fn(&str) -> bool) -> Vec<Which> {
        let mut after = self.tried.lock();
        let of = self.of.lock();
        let from = after.take().map_or(Bound::Unbounded, Bound::Excluded);
        let rest = of.range((from, Bound::Unbounded)).map(|(which, _)| which);
        let due: Vec<Which> =
            rest.filter(|(_, tier)| is_there(tier)).take(TRIED).cloned().collect();
        // From the first one again when all had their turn.
        *after = due.get(TRIED - 1).cloned();
        due
    }

    fn note(&self, which: &Which, note: &LeftNote) -> std::io::Result<()> {
        put(&self.notes, which, &note.encode())
    }

    /// Whether an object that a tier has is one that was left behind there, by the header that it has, if
    /// that can be read; `None` if none of its name was.
    pub(crate) fn look(
        &self,
        ino: Ino,
        tier: &dyn Tier,
        header: Option<&Header>,
    ) -> Option<IsLeft> {
        // No allocation as long as there are none.
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let left = self.get(&which(ino, tier))?;
        Some(left.note.is_of(header, object_file(tier, ino)))
    }

    /// Whether an object that a tier has was left behind there, or may be that, and does not count.
    pub(crate) fn is_known(&self, ino: Ino, tier: &dyn Tier, header: Option<&Header>) -> bool {
        matches!(self.look(ino, tier, header), Some(IsLeft::Yes | IsLeft::Perhaps))
    }

    /// One of a tier that nobody uses goes, durably, and then its note.
    ///
    /// # Errors
    /// When the tier still keeps it.
    pub(crate) fn clear(&self, ino: Ino, tier: &dyn Tier) -> Result<()> {
        let which = which(ino, tier);
        if self.get(&which).is_none() {
            return Ok(());
        }
        match tier.remove(ino.0) {
            Err(error) if error.class() != ErrorClass::NotFound => return Err(error.into()),
            _ => tier.settle_removals(ino.0)?,
        }
        Ok(self.forget(&which)?)
    }

    fn forget(&self, which: &Which) -> std::io::Result<()> {
        state_files::remove(&self.notes, &name_of(which))?;
        let mut of = self.of.lock();
        of.remove(which);
        self.any.store(!of.is_empty(), Ordering::Release);
        Ok(())
    }
}

fn object_file(tier: &dyn Tier, ino: Ino) -> Option<ObjectFile> {
    tier.stat(ino.0).ok().and_then(|found| ObjectFile::of(&found))
}

fn which(ino: Ino, tier: &dyn Tier) -> Which {
    (ino.0, tier.id().to_string())
}

/// The notes in a directory.
///
/// # Errors
/// When it can't be told which there are.
pub(super) fn listed(notes: &Path) -> Result<Vec<(Which, PathBuf)>> {
    let unlisted = |error: std::io::Error| {
        NodeError::BadState(format!(
            "can't list the notes of objects in {}: {error}. See to its file system and mount again",
            notes.display()
        ))
    };
    let entries = match std::fs::read_dir(notes) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        entries => Some(entries.map_err(unlisted)?),
    };
    let mut found = Vec::new();
    for entry in entries.into_iter().flatten() {
        let entry = entry.map_err(unlisted)?;
        let which = entry.file_name().to_str().and_then(parse_name);
        found.extend(which.map(|which| (which, entry.path())));
    }
    Ok(found)
}

/// Puts a note into a directory, durably.
pub(super) fn put(notes: &Path, which: &Which, bytes: &[u8]) -> std::io::Result<()> {
    match std::fs::create_dir(notes) {
        Ok(()) => {
            if let Some(state_dir) = notes.parent() {
                state_files::sync(&std::fs::File::open(state_dir)?)?;
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    state_files::replace(notes, &name_of(which), bytes)
}

pub(super) fn name_of((ino, tier): &Which) -> String {
    format!("{ino:016x}.{tier}")
}

fn parse_name(name: &str) -> Option<Which> {
    let (ino, tier) = name.split_once('.')?;
    let which = (u64::from_str_radix(ino, 16).ok()?, tier.to_owned());
    (name_of(&which) == name && !tier.contains('.')).then_some(which)
}

impl Residency {
    fn which(&self, tier: usize, ino: Ino) -> Which {
        which(ino, &*self.tiers[tier].tier)
    }

    /// Whether an object that a tier has is one that was left behind there: [`LeftBehind::look`].
    pub(crate) fn is_left(&self, tier: usize, ino: Ino, header: Option<&Header>) -> Option<IsLeft> {
        self.left_behind.look(ino, &*self.tiers[tier].tier, header)
    }

    /// Whether an object that a tier has was left behind there, or may be that, and does not count.
    pub(crate) fn is_known_left_behind(
        &self,
        tier: usize,
        ino: Ino,
        header: Option<&Header>,
    ) -> bool {
        self.left_behind.is_known(ino, &*self.tiers[tier].tier, header)
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
        let note = LeftNote { header, file: object_file(&**slot, ino) };
        let which = self.which(usize::from(tier), ino);
        if self.left_behind.get(&which).is_some_and(|left| left.noted && left.note == note) {
            return Ok(());
        }
        tracing::warn!(
            %ino,
            tier = %slot.path().display(),
            error = %why,
            "an object that counts no more can't be removed from its tier: it is tried again later"
        );
        self.left_behind.set(which.clone(), Left { note: note.clone(), noted: false });
        self.left_behind.note(&which, &note)?;
        self.left_behind.set(which, Left { note, noted: true });
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

    /// What a tier has of an inode number is another object than was left behind: another file's, in a
    /// namespace that is made anew, or one that was made since by who knew no notes.
    pub(crate) fn forget_left_behind_on(&self, tier: &dyn Tier, ino: Ino) -> Result<()> {
        let which = which(ino, tier);
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
        self.forget_unseen(Unseen::Object(usize::from(tier)), ino)?;
        self.remove_left_behind_on(tier, ino)
    }

    fn remove_left_behind_on(&self, tier: u8, ino: Ino) -> Result<()> {
        if !self.left_behind.any.load(Ordering::Acquire) {
            return Ok(());
        }
        let Some(_one) = self.left_behind.take(self.which(usize::from(tier), ino)) else {
            return Ok(());
        };
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
            let which = self.which(index, ino);
            let is_open = || self.left_behind.get(&which).is_some_and(|left| !left.noted);
            if is_open()
                && let Some(_one) = self.left_behind.take(which.clone())
                && is_open()
            {
                self.give_up_object(u8::try_from(index).unwrap_or(u8::MAX), ino)?;
            }
        }
        Ok(())
    }

    /// What was left behind is gone or noted: somebody goes on who knows of the notes alone.
    ///
    /// # Errors
    /// When that is not so.
    pub(crate) fn note_all_left_behind(&self) -> Result<()> {
        let open: Vec<u64> = {
            let of = self.left_behind.of.lock();
            of.iter().filter(|(_, left)| !left.noted).map(|((ino, _), _)| *ino).collect()
        };
        open.into_iter().try_for_each(|ino| self.keep_out_left_behind(Ino(ino)))
    }

    /// Tries again to remove what was left behind on a tier. What is not for certain that stays, and the next
    /// start says what it is.
    fn try_left_behind_again(&self, tier: u8, ino: Ino) {
        let index = usize::from(tier);
        if self.left_behind.get(&self.which(index, ino)).is_none() {
            return;
        }
        let header = self.tiers[index].tier.open(ino.0).and_then(|object| object.header()).ok();
        if self.is_left(index, ino, header.as_ref()) != Some(IsLeft::Yes) {
            return;
        }
        if let Err(error) = self.remove_left_behind_on(tier, ino) {
            tracing::debug!(%ino, %error, "an object that counts no more stays");
        }
    }

    /// Tries again to remove what a file has left behind.
    pub(crate) fn remove_left_behind_of(&self, ino: Ino) {
        if !self.left_behind.any.load(Ordering::Acquire) {
            return;
        }
        for tier in (0..self.tiers.len()).filter_map(|tier| u8::try_from(tier).ok()) {
            self.try_left_behind_again(tier, ino);
        }
    }

    /// Tries again to remove what was left behind.
    pub fn remove_left_behind(&self) {
        if !self.left_behind.any.load(Ordering::Acquire) {
            return;
        }
        for (tier, ino) in self.next_left_behind() {
            self.try_left_behind_again(tier, ino);
        }
    }

    /// Those whose turn it is. A tier that is not of this mount any more keeps what it has.
    fn next_left_behind(&self) -> Vec<(u8, Ino)> {
        let tiers: HashMap<String, u8> = (0..u8::MAX)
            .zip(&self.tiers)
            .map(|(tier, slot)| (slot.tier.id().to_string(), tier))
            .collect();
        let due = self.left_behind.next(|id| tiers.contains_key(id));
        due.into_iter().filter_map(|(ino, id)| Some((*tiers.get(&id)?, Ino(ino)))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(of: impl Iterator<Item = Which>) -> LeftBehind {
        let all = LeftBehind::load(Path::new("/nowhere")).unwrap();
        of.for_each(|which| all.set(which, Left { note: LeftNote::default(), noted: true }));
        all
    }

    #[test]
    fn object_that_is_being_removed_when_others_get_theirs_then_they_do_not_wait() {
        let all = some([(1, "slow".to_owned()), (1, "fast".to_owned())].into_iter());
        let slow = all.take((1, "slow".to_owned()));
        assert!(slow.is_some());
        assert!(all.take((1, "fast".to_owned())).is_some());
        assert!(all.take((2, "slow".to_owned())).is_none(), "it was not left behind");
        drop(slow);
        assert!(all.take((1, "slow".to_owned())).is_some(), "it is still in hand");
    }

    #[test]
    fn objects_that_stay_when_tried_again_and_again_then_all_have_their_turn() {
        let gone = (0..1000).map(|ino| (ino, "gone".to_owned()));
        let all = some(gone.chain((0..250).map(|ino| (ino, "here".to_owned()))));
        let mut tried: Vec<u64> = Vec::new();
        for _ in 0..3 {
            let due = all.next(|tier| tier == "here");
            assert!(due.len() <= TRIED);
            tried.extend(due.iter().map(|(ino, _)| ino));
        }
        assert_eq!(tried, (0..250).collect::<Vec<u64>>());
        assert_eq!(all.next(|tier| tier == "here")[0].0, 0, "from the first one again");
    }
}
