//! How what is written to a file is kept from being lost: as it, its directory or the mount says.

use forebay_core::cluster::redundancy::Redundancy;
use forebay_meta::{Record, XattrState};
use forebay_types::{FileKind, Ino};
use rustix::io::Errno;

use super::Level;
use crate::cluster::Cluster;
use crate::error::Result;

/// The attribute of files and directories that says it; what is made in a directory inherits it.
pub(crate) const ATTRIBUTE: &[u8] = b"user.forebay.redundancy";

fn parse(value: &[u8]) -> Option<Redundancy> {
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

/// Refuses to set the attribute on what can't have it, or to what means nothing.
pub(crate) fn check_redundancy(record: &Record, value: &[u8]) -> Result<()> {
    let able = matches!(record.attr.kind, FileKind::Regular | FileKind::Directory);
    match able && parse(value).is_some() {
        true => Ok(()),
        false => Err(Errno::INVAL.into()),
    }
}

impl Cluster {
    /// What is kept of a file.
    pub(super) fn redundancy_of(&self, record: &Record) -> Result<Redundancy> {
        let said = match self.said_of(record)? {
            Some(said) => Some(said),
            // Of a file that is older than the attribute of its directory.
            None => match record.links.first() {
                Some(link) => self.said_of(&*self.meta.get_believed(link.parent)?)?,
                None => None,
            },
        };
        Ok(said.unwrap_or(self.config.redundancy))
    }

    /// Whether a sync of a file waits until other nodes have what was written.
    pub(crate) fn copies_what_is_synced(&self, record: &Record) -> Result<bool> {
        let asked = self.redundancy_of(record)?;
        Ok(asked.waits() || record.copied && Level::of(asked).is_none())
    }

    fn said_of(&self, record: &Record) -> Result<Option<Redundancy>> {
        match record.xattrs {
            XattrState::Some => {
                Ok(self.meta.xattr_get(record.ino, ATTRIBUTE)?.and_then(|value| parse(&value)))
            }
            XattrState::None | XattrState::Unknown => Ok(None),
        }
    }

    /// The attribute of a directory, for a directory that is made in it.
    pub(crate) fn inherited_redundancy(&self, dir: Ino) -> Result<Option<Vec<u8>>> {
        let parent = self.meta.get_believed(dir)?;
        match parent.xattrs == XattrState::Some {
            true => Ok(self.meta.xattr_get(dir, ATTRIBUTE)?),
            false => Ok(None),
        }
    }
}
