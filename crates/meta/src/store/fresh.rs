//! What a power cut may take from what is known of files.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::MetaStore;
use crate::error::Result;
use crate::types::Ino;

/// Files of which something was noted since the last sync.
#[derive(Default)]
pub(super) struct Fresh(Mutex<Since>);

/// Each note has a number, so that a sync takes away those that came before it, when it is over.
struct Since {
    /// They got their records.
    files: HashMap<Ino, u64>,
    /// Their records say from then on that the backing store has all.
    clean: HashMap<Ino, u64>,
    /// At this note it may have been any file: there were too many, or they are of the process before.
    any: Option<u64>,
    notes: u64,
}

/// More than a directory has mostly; a sync is cheap beside what brought so many.
const MAX: usize = 1 << 16;

impl Default for Since {
    fn default() -> Self {
        Self { files: HashMap::new(), clean: HashMap::new(), any: Some(0), notes: 0 }
    }
}

impl Since {
    fn is_over(&mut self, before: u64) {
        self.files.retain(|_, note| *note > before);
        self.clean.retain(|_, note| *note > before);
        self.any = self.any.filter(|note| *note > before);
    }
}

impl Fresh {
    /// `files` get their records, and those of `clean` say that the backing store has all.
    pub(super) fn note(&self, files: &[Ino], clean: &[Ino]) {
        if files.is_empty() && clean.is_empty() {
            return;
        }
        let mut since = self.0.lock();
        since.notes += 1;
        let note = since.notes;
        if since.files.len() + since.clean.len() + files.len() + clean.len() > MAX {
            let (files, clean) = (HashMap::new(), HashMap::new());
            *since = Since { files, clean, any: Some(note), notes: note };
        } else {
            since.files.extend(files.iter().map(|ino| (*ino, note)));
            since.clean.extend(clean.iter().map(|ino| (*ino, note)));
        }
    }
}

impl MetaStore {
    /// Returns when all that was done before survives the loss of power.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn sync(&self) -> Result<()> {
        let before = self.fresh.0.lock().notes;
        self.engine.sync()?;
        self.fresh.0.lock().is_over(before);
        Ok(())
    }

    /// Whether a file is surely known after a power cut, under whatever name.
    pub fn is_surely_kept(&self, ino: Ino) -> bool {
        let since = self.fresh.0.lock();
        since.any.is_none() && !since.files.contains_key(&ino)
    }

    /// Whether a record that says that the backing store has all of a file says so after a power cut, too.
    pub fn is_surely_clean(&self, ino: Ino) -> bool {
        let since = self.fresh.0.lock();
        since.any.is_none() && !since.clean.contains_key(&ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_while_a_sync_is_under_way_then_stays_in_doubt_and_what_was_before_until_its_end()
     {
        let mut since = Since::default();
        since.is_over(0);
        let fresh = Fresh(Mutex::new(since));
        fresh.note(&[Ino(1)], &[Ino(2)]);
        let before = fresh.0.lock().notes;
        fresh.note(&[Ino(2)], &[Ino(1)]);
        let doubted = |fresh: &Fresh| {
            let since = fresh.0.lock();
            let has = |of: &HashMap<Ino, u64>| [1, 2].map(|ino| of.contains_key(&Ino(ino)));
            (has(&since.files), has(&since.clean), since.any)
        };
        assert_eq!(doubted(&fresh), ([true; 2], [true; 2], None));
        fresh.0.lock().is_over(before);
        assert_eq!(doubted(&fresh), ([false, true], [true, false], None));
    }

    #[test]
    fn files_when_more_than_are_remembered_then_all_are_in_doubt_until_a_sync() {
        let fresh = Fresh::default();
        assert_eq!(fresh.0.lock().any, Some(0));
        let files: Vec<Ino> = (0..=MAX as u64).map(Ino).collect();
        fresh.note(&files, &[]);
        let before = fresh.0.lock().notes;
        assert_eq!(fresh.0.lock().any, Some(before));
        fresh.0.lock().is_over(before);
        assert_eq!(fresh.0.lock().any, None);
    }
}
