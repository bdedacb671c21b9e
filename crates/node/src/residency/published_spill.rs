//! Spill files that have become versions in the backing store, of which the daemon that published them could
//! not say so any more.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use forebay_meta::{Link, Queue, Record};
use forebay_store::{Attributes, ErrorClass};
use forebay_types::Ino;

use crate::after_refusal::again_after_refusal;
use crate::error::Result;
use crate::residency::Residency;
use crate::residency::doubt::stat_below;
use crate::residency::spill::{noted_inode, spill_setting};

impl Residency {
    /// The version in the backing store that the spill file of a file has become, if its
    /// publication was the last thing that an earlier daemon did.
    pub(crate) fn published_spill(&self, record: &Record) -> Result<Option<Attributes>> {
        again_after_refusal(
            || self.find_published_spill(record),
            || self.above.open_closed_dirs(record),
        )
    }

    fn find_published_spill(&self, record: &Record) -> Result<Option<Attributes>> {
        let noted = self.meta.setting(&spill_setting(record.ino))?;
        let Some(noted) = noted.as_deref().and_then(noted_inode) else { return Ok(None) };
        for link in record.links.iter().chain(&record.backing.links) {
            let dir = match self.above.backing_dir(link.parent) {
                Err(error) if error.class() == Some(ErrorClass::Denied) => return Err(error),
                Err(_) => {
                    // Made for it, perhaps, and not reported: the inode is proof enough.
                    let found = self.stat_by_path(link);
                    match found.filter(|found| found.fingerprint().same_inode(&noted)) {
                        Some(found) => return Ok(Some(found)),
                        None => continue,
                    }
                }
                Ok(dir) => dir,
            };
            match self.backing.stat(&dir, OsStr::from_bytes(&link.name)) {
                Ok(found) if found.fingerprint().same_inode(&noted) => return Ok(Some(found)),
                Ok(_) => {}
                Err(error) if error.class() == ErrorClass::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    fn stat_by_path(&self, link: &Link) -> Option<Attributes> {
        let mut path = self.meta.backing_path(link.parent).ok().flatten()?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&link.name);
        stat_below(&*self.backing, &path).ok().flatten()
    }

    /// The record follows the publication of its spill file.
    pub(crate) fn note_published_spill(&self, ino: Ino, found: Attributes) -> Result<()> {
        let on_tier = self.residents.get(ino.0).is_some_and(|resident| resident.dirty);
        self.let_go_of_spill(ino)?;
        self.meta.update(ino, None, |record| {
            record.spilled = false;
            if on_tier {
                record.mark_dirty();
            } else {
                record.mark_clean();
                record.attr.size = found.size;
                record.attr.mtime = found.mtime;
            }
            record.backing.fingerprint = Some(found.fingerprint());
            Queue::Yes
        })?;
        // Its map stands where it stood.
        self.note_spill_due(ino);
        Ok(())
    }
}
