//! The sole right among all nodes to change an inode in the backing store.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use forebay_meta::{Error as MetaError, Ino, Record};

use crate::error::{NodeError, Result};
use crate::import::LIMBO;
use crate::node::Node;

const PAUSE: Duration = Duration::from_millis(5);

impl Node {
    /// Gets the right for a thread that has it among those of this node; without a cluster that is
    /// enough. False if another node has it for longer than until `until`. Its record is then as
    /// the last one that had it left it.
    pub(crate) fn begin_work(&self, ino: Ino, until: Instant) -> bool {
        let Some(cluster) = &self.cluster else { return true };
        if cluster.has_lost_its_lease() {
            return false;
        }
        loop {
            match self.meta.begin_work(ino, &|holder| cluster.is_dead(holder)) {
                Ok(true) => break,
                Ok(false) if Instant::now() < until => thread::sleep(PAUSE),
                Ok(false) => return false,
                Err(error) => {
                    tracing::debug!(%ino, %error, "work on an inode is put off");
                    return false;
                }
            }
        }
        match self.meta.get_now(ino) {
            Ok(_) | Err(MetaError::Stale(_)) => true,
            Err(error) => {
                tracing::debug!(%ino, %error, "work on an inode is put off");
                false
            }
        }
    }

    /// Gives it back.
    pub(crate) fn end_work(&self, ino: Ino) {
        if self.cluster.is_some()
            && let Err(error) = self.meta.end_work(ino)
        {
            tracing::debug!(%ino, %error, "the right to work on an inode stays with this node");
        }
    }

    /// Whether a worker has to leave an inode alone: the bytes of a file that another node
    /// owns and the backing store lacks.
    pub(crate) fn is_others_work(&self, record: &Record) -> bool {
        self.is_elsewhere(record)
            && (record.dirty || record.spilled || record.backing.fingerprint.is_none())
    }

    /// Before names are taken from directories of the backing store, all nodes know what is in
    /// these: none may find a name later that is about to go.
    pub(crate) fn list_before_removal(&self, record: &Record) -> Result<()> {
        if self.cluster.is_none() {
            return Ok(());
        }
        let ghosts = record.ghosts().into_iter().map(|link| link.parent);
        let dirs: BTreeSet<Ino> = ghosts.filter(|dir| *dir != LIMBO).collect();
        for dir in dirs {
            match self.list_directory(dir) {
                Ok(()) | Err(NodeError::Meta(MetaError::Stale(_))) => {}
                Err(error) if error.class() == Some(forebay_store::ErrorClass::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether another node removed a file that this one owns, and no program here uses it.
    pub(crate) fn is_left_orphan(&self, record: &Record) -> bool {
        let mine = self.cluster.as_ref().is_some_and(|cluster| cluster.is_mine(record));
        mine && record.orphan && record.links.is_empty() && !self.is_open(record.ino)
    }

    /// What remains of an inode that is in line: a file is given up, an orphan that no program uses
    /// let go of. Whether anything was there to be done.
    ///
    /// # Errors
    /// `Busy` while programs may write the file.
    pub(crate) fn let_go_of_owned(&self, record: &Record) -> Result<bool> {
        let Some(cluster) = &self.cluster else { return Ok(false) };
        if !cluster.is_mine(record) {
            return Ok(false);
        }
        let ino = record.ino;
        if self.is_left_orphan(record) {
            self.meta.release_orphan(ino, crate::convert::now())?;
            self.discard_soon(ino);
            return Ok(true);
        }
        if record.is_behind() {
            return Ok(false);
        }
        if self.give_up(ino)? { Ok(true) } else { Err(NodeError::Busy) }
    }

    /// An inode that was looked at is not in this node's backlog, perhaps no longer.
    pub(crate) fn doubt_place(&self, ino: Ino) {
        if self.cluster.is_some() {
            self.meta.doubt_place(ino);
        }
    }
}
