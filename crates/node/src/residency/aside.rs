//! What a start can't use and must not throw away.
//!
//! A damaged object costs that object, never the mount: it is moved to `lost/` of its tier, a spill
//! file that the namespace does not know to `.forebay/lost`. Both are named in the log and in the
//! status until somebody has looked at them; nothing removes them. A file whose record says that it
//! is dirty, and of which neither an object nor a spill file is left, is *lost*: it reads as EIO and
//! stays dirty, for what the backing store has of it is an older version.
//!
//! Nothing that may be the only copy is unlinked because its name is not known or it is damaged
//! (`crates/forebay/tests/damage.rs`).

use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_meta::{MetaStore, Queue, Record, Seq};
use forebay_store::{DirBacking, Header, recover};
use forebay_types::{FileKind, Ino};
use parking_lot::RwLock;

use crate::clock;
use crate::error::{NodeError, Result};
use crate::residency::Residency;
use crate::residency::files::File;
use crate::residency::spill::{SpillNote, spill_setting};
use crate::residency::synced::is_acknowledged;
use crate::residency::unseen::Unseen;

/// Names that are told; more are only counted.
const TOLD: usize = 100;
/// Between two looks at what gave no answer.
const PAUSE: Duration = Duration::from_millis(10);
/// Entries of the backlog that are looked at at once.
const PAGE: usize = 1000;

/// Files by number and by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Named<T> {
    /// How many there are.
    pub files: u64,
    /// Some of them.
    pub list: Vec<T>,
}

impl<T> Named<T> {
    fn new(all: impl IntoIterator<Item = T>) -> Self {
        let mut named = Named { files: 0, list: Vec::new() };
        for one in all {
            named.files += 1;
            if named.list.len() < TOLD {
                named.list.push(one);
            }
        }
        named
    }
}

/// Changes that were acknowledged and are lost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LostChanges {
    /// How many.
    pub changes: u64,
    /// Some of the paths.
    pub paths: Vec<Vec<u8>>,
    /// The file that they are kept in. They are named as long as it is there.
    pub kept: Option<PathBuf>,
}

/// What a node knows of it.
#[derive(Default)]
pub(crate) struct Troubles {
    aside: RwLock<Named<PathBuf>>,
    lost: RwLock<BTreeSet<u64>>,
    /// Those of them of which it is not known that they are lost: they could not be looked at.
    unseen: RwLock<BTreeSet<u64>>,
    any_lost: AtomicBool,
    /// The backing store, if it has a note of this mount.
    pub(crate) noted: OnceLock<Arc<DirBacking>>,
}

impl Troubles {
    /// Whether a file is lost.
    pub(crate) fn is_lost(&self, ino: Ino) -> bool {
        self.any_lost.load(Ordering::Acquire) && self.lost.read().contains(&ino.0)
    }

    /// Why nothing of a file can be had that is lost, or was not seen.
    pub(crate) fn error_of(&self, ino: Ino) -> NodeError {
        if self.unseen.read().contains(&ino.0) { NodeError::Unseen } else { NodeError::Lost }
    }

    pub(crate) fn set_lost(
        &self,
        lost: impl IntoIterator<Item = u64>,
        unseen: impl IntoIterator<Item = u64>,
    ) {
        let mut lost: BTreeSet<u64> = lost.into_iter().collect();
        let unseen: BTreeSet<u64> = unseen.into_iter().collect();
        lost.extend(&unseen);
        *self.unseen.write() = unseen;
        self.any_lost.store(!lost.is_empty(), Ordering::Release);
        *self.lost.write() = lost;
    }

    /// A lost file was removed, or its bytes are there after all.
    pub(crate) fn forget_lost(&self, ino: Ino) {
        if self.any_lost.load(Ordering::Acquire) {
            self.lost.write().remove(&ino.0);
            self.unseen.write().remove(&ino.0);
        }
    }

    /// The inodes of all lost files, and of those that were not seen.
    pub(crate) fn lost(&self) -> Vec<u64> {
        self.lost.read().iter().copied().collect()
    }

    /// Of them, those that were not seen.
    pub(crate) fn unseen(&self) -> Vec<u64> {
        self.unseen.read().iter().copied().collect()
    }
}

/// What the objects on the tiers said of dirty files while they were read.
#[derive(Default)]
pub(crate) struct Evidence {
    /// Files that were removed, and may have left something.
    pub(crate) removed: HashSet<u64>,
    /// Files whose objects can't be read, and of which nothing says that they were not synced.
    pub(crate) set_aside: HashSet<u64>,
    /// Files of which it can't be told now what there is.
    pub(crate) unseen: HashSet<u64>,
    /// What of them no start has judged since a crash of the machine.
    pub(crate) unjudged: HashSet<(Unseen, Ino)>,
    pub(crate) patience: Patience,
}

/// How often a start looks again where it got no answer for a reason that passes, in all.
pub(crate) struct Patience(u32);

impl Default for Patience {
    fn default() -> Self {
        Patience(100)
    }
}

impl Patience {
    /// Looks again as long as the answer is an error that passes by itself.
    pub(crate) fn again<T>(
        &mut self,
        mut looked: forebay_store::Result<T>,
        look: impl Fn() -> forebay_store::Result<T>,
    ) -> forebay_store::Result<T> {
        while self.0 > 0 && looked.as_ref().is_err_and(forebay_store::StoreError::is_passing) {
            self.0 -= 1;
            std::thread::sleep(PAUSE);
            looked = look();
        }
        looked
    }
}

impl Residency {
    /// What was set aside on the tiers and in the backing store, as of the start.
    pub fn set_aside(&self) -> Named<PathBuf> {
        self.troubles.aside.read().clone()
    }

    /// Dirty files of which nothing is left, by their paths.
    pub fn lost_files(&self) -> Named<Vec<u8>> {
        let unseen = self.troubles.unseen();
        let lost = self.troubles.lost().into_iter();
        self.named(lost.filter(|ino| unseen.binary_search(ino).is_err()))
    }

    /// Files of which the start could not look at what there is, by their paths.
    pub fn unseen_here(&self) -> Named<Vec<u8>> {
        self.named(self.troubles.unseen())
    }

    /// Files by their paths; not those that were removed and have none any more.
    fn named(&self, inos: impl IntoIterator<Item = u64>) -> Named<Vec<u8>> {
        let paths = inos.into_iter().map(|ino| self.path_of(Ino(ino)));
        Named::new(paths.filter(|path| !path.is_empty()))
    }

    /// Changes of names and attributes that were acknowledged here and are lost, as other nodes took
    /// this one for dead.
    pub fn lost_changes(&self) -> LostChanges {
        let report = self.meta.losses();
        let mut paths = Vec::new();
        for (inode, names) in report.losses.into_iter().take(TOLD) {
            // What was made and is lost has no path any more, but a name in its directory.
            let Ok(Some(path)) = self.meta.path(Ino(inode)) else { continue };
            let below = |name: &Vec<u8>| match path.is_empty() {
                true => name.clone(),
                false => [&path, &b"/"[..], name].concat(),
            };
            paths.extend(names.iter().map(below));
            if names.is_empty() {
                paths.push(path);
            }
        }
        paths.truncate(TOLD);
        LostChanges { changes: report.changes, paths, kept: report.kept }
    }

    /// Moves an object that can't be used, and may be the only copy, out of the way. Says whether it did.
    pub(crate) fn set_object_aside(&self, index: usize, ino: Ino, why: &str) -> bool {
        let file = String::from_utf8_lossy(&self.path_of(ino)).into_owned();
        match self.tiers[index].tier.set_aside(ino.0) {
            Ok(kept) => {
                tracing::warn!(%ino, file, why, kept = %kept.display(), "an object is set aside");
                true
            }
            Err(error) => {
                tracing::error!(%ino, file, why, %error, "an object that can't be used stays where it is");
                false
            }
        }
    }

    /// Moves a spill file that can't be used, and may be the only copy, out of the way.
    pub(crate) fn set_spill_aside(&self, ino: Ino, why: &str) -> Result<()> {
        if let Some(kept) = self.backing.set_spill_aside(ino.0)? {
            tracing::warn!(%ino, why, kept = %kept.display(), "a spill file is set aside");
        }
        Ok(())
    }

    /// What a tier has of a file with a spill file is set aside, unless a program may have been told that a
    /// change of the file lasts, here or there: false then.
    ///
    /// # Errors
    /// What the tier says; [`NodeError::Unseen`] where it does not let go of the object.
    pub(crate) fn set_unacknowledged_object_aside(&self, ino: Ino, why: &str) -> Result<bool> {
        let note = self.meta.setting(&spill_setting(ino))?;
        if SpillNote::read(note.as_deref()).acknowledged {
            return Ok(false);
        }
        let Some(resident) = self.residents.get(ino.0) else { return Ok(true) };
        let index = usize::from(resident.tier);
        let object = self.tiers[index].tier.open(ino.0)?;
        let header = object.header()?;
        // What covers a part is what it had before it was changed: the kernel does not write parts by itself.
        if header.synced || header.whole && is_acknowledged(&header, object.len()?) {
            return Ok(false);
        }
        if !self.set_object_aside(index, ino, why) {
            // Where it is, it would be laid over the older version.
            return Err(NodeError::Unseen);
        }
        self.forget_resident(ino, None);
        Ok(true)
    }

    /// The record lets go of a spill file that can't be used, and it is moved out of the way.
    pub(crate) fn set_unused_spill_aside(&self, ino: Ino, why: &str) -> Result<()> {
        self.meta.update(ino, None, |record| {
            record.spilled = false;
            Queue::Yes
        })?;
        self.set_spill_aside(ino, why)?;
        self.note_spill_due(ino);
        Ok(())
    }

    /// Counts what was set aside, now and by earlier starts.
    pub(crate) fn count_set_aside(&self) {
        let mut found = Vec::new();
        for slot in &self.tiers {
            match recover::set_aside(slot.tier.path()) {
                Ok(files) => found.extend(files.into_iter().map(|file| file.path)),
                Err(error) => tracing::warn!(
                    %error,
                    "can't list what was set aside: `forebay status` may show too little"
                ),
            }
        }
        match self.backing.list_set_aside() {
            Ok(files) => found.extend(files),
            Err(error) => tracing::warn!(
                %error,
                "can't list what was set aside: `forebay status` may show too little"
            ),
        }
        *self.troubles.aside.write() = Named::new(found);
    }

    /// A lost file is emptied, to be written anew: nothing that is left of it counts any more.
    pub(crate) fn replace_lost(&self, file: &File) -> Result<()> {
        let mut location = file.location.write();
        if !self.troubles.is_lost(file.ino) {
            return Ok(());
        }
        let given_up = self.give_up_all_objects(file.ino);
        // Also one that is of use where what is lost is there: it may be gone by now.
        self.forget_resident(file.ino, location.place.take().as_ref());
        location.loaded = false;
        given_up?;
        self.let_go_of_emptied_spill(file.ino, Some(clock::wall_time()))?;
        self.troubles.forget_lost(file.ino);
        tracing::warn!(ino = %file.ino, "a lost file is written anew");
        Ok(())
    }

    /// Whatever the tiers have of a lost file, and did not tell, counts no more.
    pub(crate) fn give_up_all_objects(&self, ino: Ino) -> Result<()> {
        (0..self.tiers.len())
            .filter_map(|tier| u8::try_from(tier).ok())
            .try_for_each(|tier| self.give_up_object(tier, ino))?;
        self.forget_all_unseen(ino)
    }

    /// After all tiers and spill files were read: which dirty files have nothing left.
    pub(crate) fn find_lost(&self, evidence: &Evidence, spills: &HashSet<u64>) -> Result<()> {
        let unseen = evidence.unseen.iter().copied();
        let mut unseen: Vec<u64> = unseen.filter(|ino| !self.is_others(Ino(*ino))).collect();
        let mut lost = Vec::new();
        let mut after = Seq(0);
        loop {
            let page = self.meta.backlog(after, PAGE)?;
            let Some((last, _)) = page.last() else { break };
            after = *last;
            for (_, ino) in page {
                let record = match self.meta.get(ino) {
                    Ok(record) => record,
                    // Of one that can't be decoded nothing can be said, and nothing be shown.
                    Err(
                        forebay_meta::Error::Stale(_)
                        | forebay_meta::Error::Corrupt { .. }
                        | forebay_meta::Error::NewerFormat { .. },
                    ) => continue,
                    Err(error) => return Err(error.into()),
                };
                if evidence.unseen.contains(&ino.0) {
                    continue;
                }
                match self.has_nothing_left(&record, evidence, spills) {
                    Ok(false) => {}
                    Ok(true) => {
                        tracing::error!(
                            %ino,
                            file = %String::from_utf8_lossy(&self.path_of(ino)),
                            "the bytes of a dirty file are gone from the tiers: it reads as EIO until \
                             you decide what becomes of it. `forebay fsck` says what can be done"
                        );
                        lost.push(ino.0);
                    }
                    Err(error) => match error.of_one_file() {
                        Some(why) => {
                            tracing::error!(%ino, why, "the backing store does not say what it has");
                            unseen.push(ino.0);
                        }
                        None => return Err(error),
                    },
                }
            }
        }
        self.troubles.set_lost(lost, unseen);
        Ok(())
    }

    /// Whether what is here of a file counts for nothing: another node has it, or has written it.
    fn is_others(&self, ino: Ino) -> bool {
        let record = self.meta.get(ino);
        record.is_ok_and(|it| self.peers.is_elsewhere(&it) || !self.peers.may_have_written(&it))
    }

    fn has_nothing_left(
        &self,
        record: &Record,
        evidence: &Evidence,
        spills: &HashSet<u64>,
    ) -> Result<bool> {
        let ino = record.ino;
        let is_file = record.attr.kind == FileKind::Regular && !record.links.is_empty();
        if !is_file || self.peers.is_elsewhere(record) || !(record.is_dirty() || record.spilled) {
            return Ok(false);
        }
        if record.spilled {
            return Ok(!spills.contains(&ino.0) && self.published_spill(record)?.is_none());
        }
        // Of an empty file there is nothing to lose.
        if record.attr.size == 0 || self.residents.get(ino.0).is_some() {
            return Ok(false);
        }
        // What is set aside may be newer than a version that was published before.
        if evidence.set_aside.contains(&ino.0) {
            return Ok(true);
        }
        match self.above.published_meanwhile(record, &Header::default())? {
            Some(found) => {
                self.revert_to(ino, found)?;
                Ok(false)
            }
            None => Ok(true),
        }
    }
}

/// Gives up what is lost of a file: it shows what the backing store has of it, or is empty.
pub(crate) fn give_up_lost(meta: &MetaStore, ino: Ino) -> Result<()> {
    meta.update(ino, Some(clock::wall_time()), |record| {
        record.spilled = false;
        match record.backing.fingerprint {
            Some(found) => {
                record.mark_clean();
                record.attr.size = found.size;
                record.attr.mtime = found.mtime;
            }
            None => {
                record.mark_dirty();
                record.attr.size = 0;
            }
        }
        Queue::Yes
    })?;
    Ok(())
}
