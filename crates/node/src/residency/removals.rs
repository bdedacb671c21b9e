//! What removed files leave on the tiers, taken away behind the back of those who removed them.
//!
//! The namespace has forgotten such a file; to remove its object is housekeeping that grows with the
//! file. If the daemon dies before it is done, the next start finds objects without a record. A clean
//! one is a copy and goes. A dirty one goes only if it was noted (`removed` in the state directory, 8 bytes
//! a file) before the record went: without a note it may be that the namespace has lost its record, and it
//! is set aside. So is a spill file; of that the namespace itself notes the removal, with the
//! removal. A note of a file that has its record still says nothing, and is taken back. Bytes that the
//! backing store lacks stay until the namespace is durable: many files share one sync of it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_types::Ino;
use parking_lot::Mutex;

use crate::defects::{BackgroundKind, Step};
use crate::error::Result;
use crate::failpoints::fail_at;
use crate::residency::Residency;

/// Files that may wait; more are taken away by those who remove them.
const MAX: usize = 4096;
/// Pause in which others come together: to wake a thread for each costs more than the work.
const GATHER: Duration = Duration::from_millis(2);
/// After this those are looked at again that somebody had in hand.
const IN_HAND_PAUSE: Duration = Duration::from_millis(200);

/// Name of the file with the notes, in the state directory.
const NOTES: &str = "removed";
/// Notes that are done with are forgotten when there are so many bytes of them.
const MAX_NOTES: u64 = 1 << 20;

/// Removed files whose bytes are still there.
#[derive(Default)]
pub(crate) struct Removals(Mutex<RemovalQueue>, OnceLock<File>, Spills, Mutex<Tombs>);

/// In a cluster, dirty files of which the namespace has no record. One that this node has released was
/// removed; of any other it is not known that it was, as nobody else removes the record of a file
/// that this node owns: the metadata servers have lost it.
#[derive(Default)]
struct Tombs {
    removed: HashSet<u64>,
    missing: HashMap<u64, Instant>,
}

/// Whoever removes a file notes it right after its record has gone.
const NOTED_WITHIN: Duration = Duration::from_secs(2);

/// Spill files that nobody needs any more.
#[derive(Default)]
struct Spills {
    due: Mutex<DueSpills>,
    /// Held by whoever sees to those that are due.
    batch: Mutex<()>,
    /// Held while one of them is removed.
    removing: Mutex<()>,
}

#[derive(Default)]
struct DueSpills {
    /// By inode number, with the number of the call that said so: a file may let go of its spill file,
    /// get another one and let go of that, while a batch waits for the first to be durable.
    files: HashMap<u64, u64>,
    calls: u64,
}

impl DueSpills {
    fn add(&mut self, ino: u64) {
        self.calls += 1;
        self.files.insert(ino, self.calls);
    }
}

/// Files whose bytes are to be removed.
#[derive(Default)]
struct RemovalQueue {
    files: VecDeque<Ino>,
    /// A job sees to them.
    attended: bool,
    /// Removals that are noted, and of which no file waits here yet.
    announced: usize,
}

/// A removal that is noted before it is done. The note is not forgotten as long as this is there.
pub(crate) struct Announced<'a> {
    residency: &'a Residency,
    ino: Ino,
}

impl Announced<'_> {
    /// The file has its record still: its object is nobody's only if it is removed later.
    pub(crate) fn take_back(&self) {
        self.residency.write_note(!self.ino.0);
    }

    /// Whether it is about this inode.
    pub(crate) fn is_of(&self, ino: Ino) -> bool {
        self.ino == ino
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        self.residency.removals.0.lock().announced -= 1;
    }
}

impl Residency {
    /// Which files the last daemon had removed, by its notes; those of this one come after them.
    pub(crate) fn begin_removal_notes(&self) -> HashSet<u64> {
        let path = self.state_dir.join(NOTES);
        let noted = noted_removals(&self.state_dir);
        match OpenOptions::new().append(true).create(true).mode(0o600).open(&path) {
            Ok(file) => drop(self.removals.1.set(file)),
            Err(error) => tracing::warn!(
                %error,
                "removed files can't be noted: after a crash, what they leave on the tiers is set \
                 aside and not removed"
            ),
        }
        noted
    }

    /// All that was noted is gone.
    pub(crate) fn forget_removal_notes(&self) {
        if let Some(file) = self.removals.1.get() {
            drop(file.set_len(0));
        }
    }

    /// A file is about to be removed: notes it, if what it leaves would be taken for the only copy.
    pub(crate) fn announce_removal(&self, ino: Ino) -> Option<Announced<'_>> {
        if !self.residents.get(ino.0).is_some_and(|resident| resident.dirty) {
            return None;
        }
        self.removals.0.lock().announced += 1;
        self.note_removal(ino);
        Some(Announced { residency: self, ino })
    }

    /// Notes that a file was removed, if what it leaves would be taken for the only copy.
    pub(crate) fn note_removed(&self, ino: Ino) {
        if self.announce_removal(ino).is_some() {
            self.note_tomb(ino);
        }
    }

    fn note_tomb(&self, ino: Ino) {
        if !self.peers.changes_namespace_alone()
            && self.residents.get(ino.0).is_some_and(|resident| resident.dirty)
        {
            self.removals.3.lock().removed.insert(ino.0);
        }
    }

    /// As [`Residency::announce_removal`], whatever the file has on the tiers: that need not be known yet.
    pub(crate) fn note_removal(&self, ino: Ino) {
        self.write_note(ino.0);
    }

    fn write_note(&self, note: u64) {
        if let Some(mut file) = self.removals.1.get() {
            // Without a note it is set aside, should the daemon die now.
            drop(file.write_all(&note.to_le_bytes()));
        }
    }

    /// The namespace has no record of a file that nobody uses: its bytes go, if nothing speaks for that
    /// they are the only copy of what was written here.
    pub(crate) fn discard_missing(&self, ino: Ino) {
        let dirty = self.residents.get(ino.0).is_some_and(|resident| resident.dirty);
        let mut tombs = self.removals.3.lock();
        if self.peers.changes_namespace_alone() || !dirty || tombs.removed.contains(&ino.0) {
            drop(tombs);
            return self.discard_data(ino);
        }
        tombs.missing.entry(ino.0).or_insert_with(Instant::now);
    }

    /// The bytes of a file go: it is no longer missing.
    pub(crate) fn forget_tomb(&self, ino: Ino) {
        let mut tombs = self.removals.3.lock();
        tombs.removed.remove(&ino.0);
        tombs.missing.remove(&ino.0);
    }

    /// Sets aside the dirty objects of files whose records are missing, and names them.
    pub(crate) fn set_missing_aside(&self) {
        let due: Vec<u64> = {
            let tombs = self.removals.3.lock();
            let due = |since: &&Instant| since.elapsed() >= NOTED_WITHIN;
            tombs.missing.iter().filter(|(_, since)| due(since)).map(|(ino, _)| *ino).collect()
        };
        if due.is_empty() {
            return;
        }
        for number in due {
            let ino = Ino(number);
            let gone = matches!(self.meta.get_now(ino), Err(forebay_meta::Error::Stale(_)));
            let removed = self.removals.3.lock().removed.contains(&number);
            self.removals.3.lock().missing.remove(&number);
            if removed || !gone || self.is_open(ino) {
                // Whoever uses it comes by here again.
                continue;
            }
            let file = self.files.get(ino);
            let mut location = file.location.write();
            let Some(resident) = self.residents.get(number).filter(|found| found.dirty) else {
                continue;
            };
            let place = location.place.take();
            location.base = crate::residency::data_location::Underlay::default();
            location.loaded = true;
            let why = "the metadata servers have lost its record";
            self.set_object_aside(usize::from(resident.tier), ino, why);
            self.forget_resident(ino, place.as_ref());
        }
        self.count_set_aside();
    }

    /// Drops the bytes of a removed file that nobody uses, in a moment.
    pub(crate) fn discard_soon(&self, ino: Ino) {
        let _announced = self.announce_removal(ino);
        self.discard_announced(ino);
    }

    /// As [`Residency::discard_soon`], of a file whose removal was noted before.
    pub(crate) fn discard_announced(&self, ino: Ino) {
        self.note_tomb(ino);
        let mut queue = self.removals.0.lock();
        if queue.files.len() >= MAX {
            drop(queue);
            return self.discard_data(ino);
        }
        queue.files.push_back(ino);
        let start = !std::mem::replace(&mut queue.attended, true);
        drop(queue);
        if start && !self.later(Residency::attend_to_removals) {
            self.removals.0.lock().attended = false;
            self.discard_removed();
        }
    }

    /// Whether somebody has a removed file in hand, whose bytes go after that.
    pub(crate) fn waits_to_go(&self, ino: Ino) -> bool {
        self.removals.0.lock().files.contains(&ino)
    }

    /// Removes the spill file of a file that was removed or has let go of it, in a moment.
    pub(crate) fn drop_spill_soon(&self, ino: Ino) {
        self.note_spill_due(ino);
        self.drop_spills_later();
    }

    /// As [`Residency::drop_spill_soon`], with the next batch.
    pub(crate) fn note_spill_due(&self, ino: Ino) {
        self.removals.2.due.lock().add(ino.0);
    }

    /// A file is about to have a spill file again, which must not go with the one before. Waits for the
    /// removal of one file at most.
    pub(crate) fn keep_spill(&self, ino: Ino) {
        let _none_goes = self.removals.2.removing.lock();
        self.removals.2.due.lock().files.remove(&ino.0);
    }

    /// Has the spill files removed that are due, also those that the backing store did not give up
    /// before.
    pub(crate) fn drop_spills_later(&self) {
        if !self.removals.2.due.lock().files.is_empty() {
            // Without a thread for it: at the next tick.
            let _found_one = self.later(|this| {
                this.defects.attempt(BackgroundKind::Upkeep, Step::Spills as u64, || {
                    this.drop_spills(Instant::now());
                });
            });
        }
    }

    /// Removes the spill files that are due; waits for others who are at it `until` then at most. All of
    /// them share one sync of the namespace: a power cut that takes back what let go of a spill file needs
    /// that again.
    pub(crate) fn drop_spills(&self, until: Instant) {
        let spills = &self.removals.2;
        let Some(_batch) = spills.batch.try_lock_until(until) else { return };
        let due: Vec<(u64, u64)> =
            spills.due.lock().files.iter().map(|(&ino, &call)| (ino, call)).collect();
        if due.is_empty() {
            return;
        }
        if let Err(error) = self.sync_before_spills_go() {
            tracing::debug!(%error, "the spill files that nobody needs go later");
            return;
        }
        for (ino, call) in due {
            let _one = spills.removing.lock();
            // Unless the file has another one since, or has let go of that as well.
            if spills.due.lock().files.get(&ino) != Some(&call) {
                continue;
            }
            match self.drop_forgotten_spill(Ino(ino)) {
                Ok(()) => drop(spills.due.lock().files.remove(&ino)),
                Err(error) => {
                    tracing::debug!(ino, %error, "a spill file that nobody needs goes later");
                }
            }
        }
    }

    fn sync_before_spills_go(&self) -> Result<()> {
        fail_at!("node.spill.before_sync");
        Ok(self.meta.sync()?)
    }

    /// Removes what the backing store, or a tier, did not give up before.
    pub(crate) fn remove_strays(&self) {
        match self.backing.remove_strays() {
            Ok(cleaned) => tell_displaced(&cleaned.kept),
            Err(error) => tracing::debug!(%error, "what is left in the private area goes later"),
        }
        self.remove_left_behind();
    }

    fn attend_to_removals(&self) {
        let mut pause = GATHER;
        loop {
            std::thread::sleep(pause);
            pause = if self.discard_removed() > 0 { IN_HAND_PAUSE } else { GATHER };
            let mut queue = self.removals.0.lock();
            // A daemon that comes to rest does not wait for its users to pause.
            if queue.files.is_empty() || self.stopping.load(Ordering::Acquire) {
                queue.attended = false;
                let notes = self.removals.1.get().and_then(|file| file.metadata().ok());
                if queue.announced == 0 && notes.is_some_and(|notes| notes.len() > MAX_NOTES) {
                    self.forget_removal_notes();
                }
                return;
            }
        }
    }

    /// Drops the bytes of the removed files now: somebody needs their room, or the daemon ends. One that
    /// somebody has in hand, who may wait for the backing store without end, goes later. Says how many
    /// these are.
    pub(crate) fn discard_removed(&self) -> usize {
        let mut in_hand = Vec::new();
        loop {
            let files = std::mem::take(&mut self.removals.0.lock().files);
            // Else a removal that the power takes back would leave nothing of the file.
            let dirty = |ino: &Ino| {
                self.residents.get(ino.0).is_some_and(|found| found.dirty)
                    || !self.meta.is_surely_clean(*ino)
            };
            let durable = !files.iter().any(dirty) || self.meta.sync().is_ok();
            if files.is_empty() {
                break;
            }
            // Opened at the last moment: whoever did discards the data at the end.
            for ino in files.into_iter().filter(|ino| !self.is_open(*ino)) {
                // What is set aside is found by the next start.
                let gone = self.defects.attempt(BackgroundKind::Tiering, ino.0, || match durable {
                    true => self.discard_at_once(ino),
                    false => {
                        self.discard_data(ino);
                        true
                    }
                });
                in_hand.extend((gone == Some(false)).then_some(ino));
            }
        }
        let left = in_hand.len();
        if left > 0 {
            self.removals.0.lock().files.extend(in_hand);
        }
        left
    }
}

/// Which files were removed and may have left something on a tier, by the notes in a state directory. The
/// complement of a number takes one note of it back: several may have been about to remove the same file.
pub(crate) fn noted_removals(state_dir: &Path) -> HashSet<u64> {
    let bytes = std::fs::read(state_dir.join(NOTES)).unwrap_or_default();
    let mut noted: HashMap<u64, usize> = HashMap::new();
    for note in bytes.chunks_exact(8).filter_map(|note| note.try_into().ok()) {
        let note = u64::from_le_bytes(note);
        match noted.get_mut(&!note) {
            Some(times) => *times = times.saturating_sub(1),
            None => *noted.entry(note).or_default() += 1,
        }
    }
    noted.into_iter().filter(|(_, times)| *times > 0).map(|(ino, _)| ino).collect()
}

/// Files of others that commits have displaced.
pub(crate) fn tell_displaced(kept: &[std::ffi::OsString]) {
    for kept in kept {
        tracing::warn!(
            ?kept,
            "a file of others was displaced by an interrupted flush; it is in .forebay/limbo"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_of_a_removal_when_it_did_not_take_place_then_as_many_fewer_count() {
        let dir = forebay_testing::new_dir(forebay_testing::memory(), "forebay-removals");
        let notes = [1, 7, 9, !9, 9, !7, 5, 5, !5, 8, !1, !8];
        let bytes: Vec<u8> = notes.into_iter().flat_map(u64::to_le_bytes).collect();
        std::fs::write(dir.join(NOTES), bytes).unwrap();
        let noted = noted_removals(&dir);
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(noted, HashSet::from([5, 9]));
    }
}
