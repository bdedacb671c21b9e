//! The sole right among all nodes to change an inode in the backing store.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use forebay_meta::{ChangeRight, Error as MetaError, Incarnation, Record};
use forebay_store::DirBacking;
use forebay_types::Ino;

use super::Cluster;
use crate::error::{NodeError, Result};
use crate::residency::removals::{Announced, tell_displaced};
use crate::writeback::import::LIMBO;

const PAUSE: Duration = Duration::from_millis(5);

/// As [`Cluster::enter_store`].
pub(super) fn enter_store(store: Option<&DirBacking>, epoch: u64) -> Result<()> {
    let Some(store) = store else { return Ok(()) };
    store.act_as(epoch)?;
    tell_displaced(&store.shut_out_former()?.kept);
    Ok(())
}

impl Cluster {
    /// Publishes by a new directory in the backing store from now on; what this node's daemon had under
    /// way there before, or an earlier one, does not come any more.
    fn enter_store(&self) -> Result<()> {
        enter_store(self.store.as_deref(), self.me.epoch)
    }

    /// Gets the right for a thread that has it among those of this node. False if another node has it
    /// for longer than until `until`. Its record is then as the last one that had it left it.
    pub(crate) fn begin_work(&self, ino: Ino, until: Instant) -> bool {
        let begun = || -> Result<bool> {
            if self.has_lost_its_lease() || !self.enters_store(ino)? {
                return Ok(false);
            }
            let is_dead = |holder| match self.is_dead_now(holder) {
                Ok(dead) => dead,
                Err(error) => {
                    tracing::debug!(%ino, %error, "whether a node lives is not known");
                    false
                }
            };
            loop {
                match self.meta.begin_work(ino, &is_dead)? {
                    ChangeRight::Mine => break,
                    // Not before the right is here: what it begins from now on is refused.
                    ChangeRight::From(holder) => break self.shut_out(holder)?,
                    ChangeRight::Others if Instant::now() < until => thread::sleep(PAUSE),
                    ChangeRight::Others => return Ok(false),
                }
            }
            match self.meta.get_now(ino) {
                Ok(_) | Err(MetaError::Stale(_)) => Ok(true),
                Err(error) => Err(error.into()),
            }
        };
        begun().unwrap_or_else(|error| {
            tracing::debug!(%ino, %error, "work on an inode is put off");
            false
        })
    }

    /// Whether this node can publish at the moment. When others have shut it out of the backing store
    /// and it counts all the same, it enters anew once all work has ended that was begun before: of
    /// that others may have taken some.
    fn enters_store(&self, ino: Ino) -> Result<bool> {
        let mut works = self.works.lock();
        if self.store.as_ref().is_some_and(|store| store.is_shut_out()) {
            if !works.is_empty() {
                return Ok(false);
            }
            self.say_alive()?;
            if self.is_fenced() {
                return Ok(false);
            }
            tracing::warn!(
                "other nodes took this one for dead: what it was writing back is begun anew"
            );
            self.enter_store()?;
        }
        works.insert(ino.0);
        Ok(true)
    }

    /// Sees to it that nothing reaches the backing store any more of what a node has begun there that
    /// counts as dead, even if it is alive.
    ///
    /// # Errors
    /// If it can't be done: then nothing may be taken from it.
    pub(super) fn shut_out(&self, who: Incarnation) -> Result<()> {
        let Some(store) = &self.store else { return Ok(()) };
        let members = self.meta.members()?;
        let Some(member) = members.iter().find(|member| member.node == who.node) else {
            return Ok(());
        };
        tell_displaced(&store.shut_out(&member.id, Some(who.epoch))?.kept);
        Ok(())
    }

    /// Gives it back.
    pub(crate) fn end_work(&self, ino: Ino) {
        if let Err(error) = self.meta.end_work(ino) {
            tracing::debug!(%ino, %error, "the right to work on an inode stays with this node");
        }
        self.works.lock().remove(&ino.0);
    }

    /// Whether a worker has to leave an inode alone: the bytes of a file that another node
    /// owns and the backing store lacks.
    pub(crate) fn is_others_work(&self, record: &Record) -> bool {
        self.is_elsewhere(record)
            && (record.is_dirty() || record.spilled || record.backing.fingerprint.is_none())
    }

    /// Before names are taken from directories of the backing store, all nodes know what is in
    /// these: none may find a name later that is about to go.
    pub(crate) fn list_before_removal(&self, record: &Record) -> Result<()> {
        let stale_names = record.stale_names().into_iter().map(|link| link.parent);
        let dirs: BTreeSet<Ino> = stale_names.filter(|dir| *dir != LIMBO).collect();
        for dir in dirs {
            match self.writeback.list_directory(dir) {
                Ok(()) | Err(NodeError::Meta(MetaError::Stale(_))) => {}
                Err(error) if error.class() == Some(forebay_store::ErrorClass::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether another node removed a file that this one owns, and no program here uses it.
    pub(crate) fn is_left_orphan(&self, record: &Record) -> bool {
        self.is_mine(record)
            && record.orphan
            && record.links.is_empty()
            && !self.residency.is_open(record.ino)
    }

    /// What remains of an inode that is in line: a file is given up, an orphan that no program uses
    /// let go of. Whether anything was there to be done.
    ///
    /// # Errors
    /// `Busy` while programs may write the file.
    pub(crate) fn let_go_of_owned(&self, record: &Record) -> Result<bool> {
        if !self.is_mine(record) {
            return Ok(false);
        }
        let ino = record.ino;
        if self.is_left_orphan(record) {
            let announced = self.residency.announce_removal(ino);
            let released = self.meta.release_orphan(ino, crate::clock::wall_time());
            match released {
                Ok(true) => self.residency.discard_soon(ino),
                _ => announced.iter().for_each(Announced::take_back),
            }
            return Ok(released.map(|_| true)?);
        }
        if record.is_behind() {
            return Ok(false);
        }
        if self.give_up(ino)? { Ok(true) } else { Err(NodeError::Busy) }
    }

    /// An inode that was looked at is not in this node's backlog, perhaps no longer.
    pub(crate) fn doubt_place(&self, ino: Ino) {
        self.meta.doubt_place(ino);
    }
}
