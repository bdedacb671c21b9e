//! Attributes of known directories: the mode and the owner that others give to one are taken over when
//! its own entries, or those of the directory above it, are looked at; its extended attributes, access
//! lists among them, and its time, with its own entries. What the backing
//! store refused is kept, as long as nobody changes there what it has in its place.

use std::ffi::OsStr;
use std::time::Duration;

use forebay_meta::{Found, Record, XattrState};
use forebay_store::{Attributes, Dir, ErrorClass};
use forebay_types::{FileKind, Ino};

use super::coherence::unlisted;
use super::is_unconfirmed;
use crate::error::Result;
use crate::writeback::Writeback;

/// Where it is noted what the backing store has in place of a mode and an owner that it did not take.
const INSTEAD: &str = "attributes-below.";

fn instead_setting(dir: Ino) -> String {
    format!("{INSTEAD}{:x}", dir.0)
}

fn encoded(mode: u32, uid: u32, gid: u32) -> Vec<u8> {
    [mode, uid, gid].into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Whether the listing shows the directory that is known, with its mode and owner. Its times tell of
/// its entries, which its own check looks at.
fn same_directory(record: &Record, found: &Found) -> bool {
    let (known, found_attr) = (&record.attr, &found.attr);
    is_same_one(record, found)
        && (known.perm, known.uid, known.gid) == (found_attr.perm, found_attr.uid, found_attr.gid)
}

fn is_same_one(record: &Record, found: &Found) -> bool {
    let known = record.backing.fingerprint;
    found.attr.kind == FileKind::Directory
        && known.is_none_or(|print| print.ino == 0 || print.same_inode(&found.fingerprint))
}

impl Writeback {
    /// Whether the backing store shows a directory as it is known: with the mode and owner that it has
    /// here, or with those that it had when it did not take these.
    pub(super) fn is_directory_as_known(&self, record: &Record, found: &Found) -> Result<bool> {
        if same_directory(record, found) {
            return Ok(true);
        }
        let attr = &found.attr;
        let instead = self.meta.setting(&instead_setting(record.ino))?;
        Ok(is_same_one(record, found)
            && instead.is_some_and(|noted| noted == encoded(attr.perm, attr.uid, attr.gid)))
    }

    /// Mode and owner of a directory were written: notes what the backing store has if that is not the
    /// same.
    pub(crate) fn note_attributes_below(&self, record: &Record, now: &Attributes) -> Result<()> {
        if !record.is_directory() || !self.residency.peers.changes_namespace_alone() {
            return Ok(());
        }
        let (attr, setting) = (&record.attr, instead_setting(record.ino));
        if (now.mode, now.uid, now.gid) != (attr.perm, attr.uid, attr.gid) {
            return Ok(self.meta.set_setting(&setting, &encoded(now.mode, now.uid, now.gid))?);
        }
        match self.meta.setting(&setting)? {
            Some(_) => Ok(self.meta.remove_setting(&setting)?),
            None => Ok(()),
        }
    }

    /// Takes over what others changed of a directory itself that is about to be listed. False if somebody
    /// is at it.
    pub(super) fn compare_listed_directory(&self, dir: Ino, handle: &Dir) -> Result<bool> {
        if !self.residency.peers.judges_store_alone() {
            return Ok(true);
        }
        let record = self.meta.get(dir)?;
        let found = self.found(handle, b"", &self.backing.stat(handle, OsStr::new(""))?)?;
        let is_another = !is_same_one(&record, &found);
        if record.differs() || is_another {
            return Ok(true);
        }
        self.take_over_set_time(dir, handle)?;
        match self.is_directory_as_known(&record, &found)? {
            true => self.take_over_xattrs(&record, &found),
            false => self.compare_directory(dir),
        }
    }

    /// False if somebody is at the directory.
    fn take_over_xattrs(&self, record: &Record, found: &Found) -> Result<bool> {
        let dir = record.ino;
        let known = record.backing.fingerprint;
        let was_changed = known.is_none_or(|known| known.ctime != found.fingerprint.ctime);
        let is_known = record.xattrs != XattrState::Unknown;
        if !was_changed || !is_known || self.is_something_refused(dir) {
            return Ok(true);
        }
        let Some(_owned) = self.own(dir, Duration::ZERO) else { return Ok(false) };
        if self.meta.forget_xattrs_of_directory(dir)? {
            self.residency.forget_object(dir, false);
        }
        Ok(true)
    }

    /// Others have made or replaced names in a directory: when they did it, if nothing was changed here
    /// since.
    pub(super) fn take_over_time(&self, dir: Ino, handle: &Dir) -> Result<()> {
        if !self.residency.peers.judges_store_alone() {
            return Ok(());
        }
        let below = self.backing.stat(handle, OsStr::new(""))?;
        if self.meta.advance_times(dir, below.mtime)? {
            self.residency.forget_object(dir, false);
        }
        Ok(())
    }

    /// Others have set the time of a directory, or changed it with its entries: it is theirs, unless it is
    /// another one here, or about to be set there again.
    fn take_over_set_time(&self, dir: Ino, handle: &Dir) -> Result<()> {
        if let Some((known, theirs)) = self.time_of_others(dir, handle)?
            && !self.is_time_due(dir)?
            && self.meta.replace_time(dir, known, &theirs)?
        {
            self.residency.forget_object(dir, false);
        }
        Ok(())
    }

    /// A directory seems to have other attributes, or to be another one: looks again with nobody at it.
    /// Its entries are looked at when they are wanted.
    pub(super) fn compare_directory(&self, dir: Ino) -> Result<bool> {
        let Some(_owned) = self.own(dir, Duration::ZERO) else { return Ok(false) };
        let record = self.meta.get(dir)?;
        if record.differs() || is_unconfirmed(&record) {
            return Ok(true);
        }
        let Some(way) = self.way_at_rest(dir)? else { return Ok(false) };
        let found = match record.backing.links.only() {
            Some(link) => self.look_under(link),
            None => self.look_at_root(),
        };
        let found = match found {
            Err(error) if error.class() == Some(ErrorClass::NotFound) => return Ok(false),
            found => found?,
        };
        if self.way_at_rest(dir)?.is_none_or(|now| now != way) {
            return Ok(false);
        }
        if found.attr.kind != FileKind::Directory || self.is_directory_as_known(&record, &found)? {
            return Ok(found.attr.kind == FileKind::Directory);
        }
        self.drop_handle(dir);
        self.refresh_directory(dir, found)?;
        self.doubt_directory(dir);
        self.residency.forget_object(dir, false);
        Ok(true)
    }

    fn look_at_root(&self) -> Result<Found> {
        let root = self.backing.root();
        let attributes = self.backing.stat(&root, OsStr::new(""))?;
        self.found(&root, b"", &attributes)
    }

    /// Takes the root's attributes from the backing store. To be called once at the start.
    pub(crate) fn import_root(&self) -> Result<()> {
        let record = self.meta.get(Ino::ROOT)?;
        let is_known = record.backing.fingerprint.is_some();
        if is_known && !self.residency.peers.judges_store_alone() {
            // Other nodes may be changing it right now.
            return Ok(());
        }
        let found = self.look_at_root()?;
        if is_known && self.is_directory_as_known(&record, &found)? {
            return Ok(());
        }
        self.refresh_directory(Ino::ROOT, found)
    }

    /// Takes over the attributes of a directory. Its fingerprint says which it is, and whether its
    /// entries are known, which this does not change: times that nothing has make the next check list it.
    pub(super) fn refresh_directory(&self, dir: Ino, mut found: Found) -> Result<()> {
        found.fingerprint = unlisted(found.fingerprint);
        self.meta.refresh(dir, &found, &|_| false)?;
        let setting = instead_setting(dir);
        if self.meta.setting(&setting)?.is_some() {
            self.meta.remove_setting(&setting)?;
        }
        Ok(())
    }
}
