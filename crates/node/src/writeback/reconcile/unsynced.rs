//! After a crash of the machine: objects that were never synced, and of which the device has less
//! than the namespace knows of.
//!
//! The log of the namespace and the objects reach their devices in any order. A program that writes
//! a new file and renames it over the old one without a sync (many editors do), or that empties a
//! file to write it anew, may leave a name that is durable and bytes that are not. What is left of
//! these must not take the place of the version that the backing store has.

use std::sync::Arc;

use forebay_meta::{Error as MetaError, Link, Links, NameIn, Queue, Record, RenameFlags, Xattrs};
use forebay_store::{Attributes, ErrorClass};
use forebay_types::{Fingerprint, Ino};

use super::conflict::conflict_name;
use super::identity::is_pending;
use super::names::os;
use crate::clock;
use crate::error::Result;
use crate::writeback::Writeback;
use crate::writeback::parked::parked_link;

/// No record has this count of changes: what is reported with it takes nothing from the backlog.
const NEVER: u64 = u64::MAX;

/// Names tried for what is left of a file.
const MAX_NAMES: u32 = 1000;

impl Writeback {
    /// Gives the version in the backing store its name back where the object of `record`, which is
    /// only `len` bytes long, is less than the namespace knows of; the object gets a name beside it.
    pub(crate) fn set_aside_if_cut(&self, record: &Record, len: u64) -> Result<()> {
        if !record.is_dirty() || len >= record.attr.size {
            return Ok(());
        }
        for link in &record.links {
            if let Some(found) = self.replaces_known(record, link)? {
                self.rename_aside(record, link, &found)?;
            }
        }
        Ok(())
    }

    /// Whether a file that was empty when the backing store got it last, has been written to since, and has
    /// taken the name of another file, would make that name empty if it became again what it was: neither
    /// the old file nor the new one would be seen there.
    pub(crate) fn would_empty_its_name(
        &self,
        record: &Record,
        version: &Fingerprint,
    ) -> Result<bool> {
        if version.size > 0 || record.attr.size == 0 {
            return Ok(false);
        }
        for link in &record.links {
            // Its own is there if a worker has moved it already, and not only claimed the name.
            let found = self.replaces_known(record, link)?;
            if found.is_some_and(|found| !found.fingerprint().same_inode(version)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What the backing store has of an older version of a file under a name: its own, or that of
    /// the file that it has replaced. What was removed or moved away before the name was given to this
    /// one does not come back.
    fn replaces_known(&self, record: &Record, link: &Link) -> Result<Option<Attributes>> {
        let own = record.backing.links.contains(link) && record.backing.fingerprint.is_some();
        let stale_names = self.meta.stale_inodes_at(link.parent, &link.name)?;
        let replaced = record.replaces && record.links.len() == 1 && !stale_names.is_empty();
        if !own && !replaced {
            return Ok(None);
        }
        let found = self
            .backing_dir(link.parent)
            .and_then(|dir| Ok(self.backing.stat(&dir, os(&link.name))?));
        let found = match found {
            Err(error) if error.class() == Some(ErrorClass::NotFound) => return Ok(None),
            found => found?,
        };
        if own && is_its_own(record, &found) {
            return Ok(Some(found));
        }
        if !replaced {
            // It is only claimed that the file stands there.
            return Ok(None);
        }
        for stale_name in stale_names {
            if self.known(stale_name)?.is_some_and(|record| !record.links.is_empty()) {
                return Ok(None);
            }
        }
        Ok(Some(found))
    }

    fn rename_aside(&self, record: &Record, link: &Link, found: &Attributes) -> Result<()> {
        let ino = record.ino;
        // Then none of its other claims is true, if it has one name there: what stands there is another's.
        let stood_here = record.links.len() == 1 && found.nlink < 2 && is_its_own(record, found);
        // First: a start that ends here leaves a change on both sides, of which nothing is lost.
        let stale_names = self.meta.stale_inodes_at(link.parent, &link.name)?;
        let claimants: Vec<Ino> = [ino].into_iter().chain(stale_names).collect();
        // Before a record goes that nobody claims a name by any more.
        let attributes = self.attributes_of_version(&claimants, found)?;
        for claimant in claimants.into_iter().rev() {
            let limbo = self.take_from_parked(claimant, found)?;
            let disown = |record: &mut Record| {
                record.backing.links.remove(link);
                if let Some(limbo) = &limbo {
                    record.backing.links.remove(limbo);
                }
                if claimant == ino && stood_here {
                    record.backing.links = Links::default();
                }
                if record.backing.links.is_empty() {
                    record.backing.fingerprint = None;
                    record.backing.pending = None;
                }
            };
            match self.meta.reconciled_at_start(claimant, NEVER, disown) {
                Ok(_) | Err(MetaError::Stale(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let now = clock::wall_time();
        for attempt in 0..MAX_NAMES {
            let name = conflict_name(&link.name, now, attempt);
            let flags = RenameFlags { noreplace: true, ..RenameFlags::default() };
            let parent = link.parent;
            match self.meta.rename(
                NameIn::new(parent, &link.name),
                NameIn::new(parent, &name),
                flags,
                now,
                &|_| true,
            ) {
                Ok(_) => {
                    self.remember(link, Some(name), "not wholly synced when the machine stopped");
                    break;
                }
                Err(MetaError::Exists) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match self.import_name(link.parent, &link.name)?.zip(attributes) {
            Some((back, (of, xattrs))) => self.keep_attributes(&of, xattrs.as_ref(), back.ino),
            None => Ok(()),
        }
    }

    /// Of which file the version below is that is to have its name back, with the extended attributes that have
    /// not reached the backing store: a sync of them holds for that version, too.
    fn attributes_of_version(
        &self,
        claimants: &[Ino],
        found: &Attributes,
    ) -> Result<Option<(Arc<Record>, Option<Xattrs>)>> {
        for claimant in claimants {
            let known = self.known(*claimant)?;
            if let Some(record) = known.filter(|record| is_its_own(record, found)) {
                let differ = record.backing.xattrs_differ;
                let xattrs = differ.then(|| self.meta.xattr_all(*claimant)).transpose()?;
                return Ok(Some((record, xattrs)));
            }
        }
        Ok(None)
    }

    fn keep_attributes(&self, of: &Record, xattrs: Option<&Xattrs>, back: Ino) -> Result<()> {
        if of.backing.attrs_differ {
            self.meta.update(back, None, |record| {
                let (attr, from) = (&mut record.attr, &of.attr);
                (attr.perm, attr.uid, attr.gid) = (from.perm, from.uid, from.gid);
                record.backing.attrs_differ = true;
                Queue::Yes
            })?;
        }
        if let Some(xattrs) = xattrs {
            self.meta.xattr_replace_all(back, xattrs)?;
            self.meta.update(back, None, |record| {
                record.backing.xattrs_differ = true;
                Queue::Yes
            })?;
        }
        Ok(())
    }
}

impl Writeback {
    /// What has its name back needs none in limbo: takes it away, if there is one, and says which.
    fn take_from_parked(&self, ino: Ino, found: &Attributes) -> Result<Option<Link>> {
        let limbo = parked_link(ino);
        let Some(record) = self.known(ino)?.filter(|record| record.backing.links.contains(&limbo))
        else {
            return Ok(None);
        };
        let Some((dir, name, kept)) = self.look_at(&record, &limbo)? else { return Ok(None) };
        if !kept.fingerprint().same_inode(&found.fingerprint()) {
            return Ok(None);
        }
        self.backing.unlink(&dir, os(&name))?;
        Ok(Some(limbo))
    }
}

/// Whether what was found under a name is the very object of this record, or the version of it that was
/// about to be published.
fn is_its_own(record: &Record, found: &Attributes) -> bool {
    is_pending(record, found)
        || record.backing.fingerprint.is_some_and(|known| found.same_inode(&known))
}
