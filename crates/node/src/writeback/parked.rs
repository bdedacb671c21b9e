//! What stands in the backing store's limbo and no record says so: after the index was built anew, or
//! where an answer was lost. It may be the only copy of a file, or of a directory with all in it, and
//! nobody would ever look for it: a start and a check do.

use std::ffi::OsStr;
use std::path::PathBuf;

use forebay_meta::{Link, MetaStore, Record};
use forebay_store::backing::PRIVATE;
use forebay_store::{BackingStore, ErrorClass};
use forebay_types::Ino;

use crate::error::{Result, is_undecodable};
use crate::writeback::Writeback;
use crate::writeback::import::LIMBO;
use crate::writeback::reconcile::is_own;

/// The place of an inode in limbo.
pub(crate) fn parked_link(ino: Ino) -> Link {
    Link::new(LIMBO, ino.to_string().into_bytes())
}

/// Something in limbo that no record claims.
pub(crate) struct Stray {
    /// The inode that it was of when it was put there.
    pub(crate) ino: Ino,
    /// It is the very object that the backing store has of that inode.
    known: bool,
}

/// What a mount has in limbo without knowing it.
pub(crate) fn strays(meta: &MetaStore, backing: &dyn BackingStore) -> Result<Vec<Stray>> {
    let mut strays = Vec::new();
    for ino in backing.list_parked()?.into_iter().map(Ino) {
        let known = match meta.get(ino) {
            Ok(record) if record.backing.links.contains(&parked_link(ino)) => continue,
            Ok(record) => stands_there(backing, &record)?,
            Err(forebay_meta::Error::Stale(_)) => false,
            // It may claim it. fsck names the record.
            Err(error) if is_undecodable(&error) => {
                tracing::error!(%ino, %error, "what is in .forebay/limbo stays: nothing is known of its file");
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        strays.push(Stray { ino, known });
    }
    Ok(strays)
}

fn stands_there(backing: &dyn BackingStore, record: &Record) -> Result<bool> {
    if record.backing.fingerprint.is_none() {
        return Ok(false);
    }
    let name = backing.parked_name(record.ino.0);
    let found = backing
        .open_dir(&backing.root(), OsStr::new(PRIVATE))
        .and_then(|private| backing.open_dir(&private, OsStr::new("limbo")))
        .and_then(|limbo| backing.stat(&limbo, &name));
    match found {
        Ok(found) => Ok(is_own(record, &found)),
        Err(error) if error.class() == ErrorClass::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Has the backlog see to what is known, and sets the rest aside: where it is now.
pub(crate) fn settle(
    meta: &MetaStore,
    backing: &dyn BackingStore,
    stray: &Stray,
) -> Result<Option<PathBuf>> {
    if stray.known {
        meta.claim_found(stray.ino, &parked_link(stray.ino))?;
        return Ok(None);
    }
    Ok(backing.set_parked_aside(stray.ino.0)?)
}

impl Writeback {
    /// At a start, before the backlog has begun.
    pub(crate) fn recover_parked(&self) -> Result<()> {
        for stray in strays(&self.meta, &*self.backing)? {
            let ino = stray.ino;
            match settle(&self.meta, &*self.backing, &stray)? {
                Some(kept) => {
                    tracing::warn!(%ino, kept = %kept.display(), "a file in .forebay/limbo belongs to no known file and is set aside");
                }
                None => {
                    tracing::info!(%ino, "found another name of a known file in .forebay/limbo");
                }
            }
        }
        Ok(())
    }
}
