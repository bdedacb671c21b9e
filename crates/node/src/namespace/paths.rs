//! Operations on whole subtrees: what the administrator asks for by path.

use std::path::Path;
use std::sync::Arc;

use forebay_core::steward::Event;
use forebay_meta::Record;
use forebay_types::{FileKind, Ino};

use crate::context::Context;
use crate::error::{Result, is_gone};
use crate::node::Node;

/// How much of a file is on the tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coverage {
    /// Nothing.
    Absent,
    /// Some extents.
    Partial,
    /// All.
    Whole,
}

/// Where the bytes of one path are.
#[derive(Debug, Clone)]
pub struct Whereabouts {
    /// Its type.
    pub kind: FileKind,
    /// Its size in bytes.
    pub size: u64,
    /// How much is resident.
    pub residency: Coverage,
    /// Bytes charged to a tier.
    pub resident_bytes: u64,
    /// Which tier, 0 the fastest.
    pub tier: Option<usize>,
    /// The tier has a newer version than the backing store.
    pub dirty: bool,
    /// It may not be evicted.
    pub pinned: bool,
    /// Its path in the backing store, if it is there.
    pub backing: Option<Vec<u8>>,
    /// The backing store has it under all names that it has here, and under no others.
    pub placed: bool,
}

/// Entries read from a directory at a time.
const PAGE: usize = 512;

impl Node {
    /// As [`crate::Writeback::find_path`].
    ///
    /// # Errors
    /// As there.
    pub fn find_path(&self, path: &Path) -> Result<Ino> {
        self.writeback.find_path(path)
    }

    /// Calls `visit` with every inode of a subtree, directories before what is in them, until it
    /// returns false. A file with several names is visited for each.
    ///
    /// # Errors
    /// What `visit` does not see: a directory that can't be listed.
    pub fn walk(&self, from: Ino, visit: &mut dyn FnMut(&Arc<Record>) -> bool) -> Result<()> {
        let record = self.meta.get(from)?;
        if !visit(&record) || record.attr.kind != FileKind::Directory {
            return Ok(());
        }
        // A stack of directories and how far each has been read: memory grows with the depth of the
        // tree, not with its size.
        let mut stack = vec![(from, 0)];
        while let Some((dir, cursor)) = stack.pop() {
            let listed = match cursor {
                0 => self.writeback.ensure_listed(&Context::DAEMON, dir).map(drop),
                _ => Ok(()),
            };
            let page = match listed.and_then(|()| Ok(self.meta.entries_plus(dir, cursor, PAGE)?)) {
                // Somebody has removed it meanwhile.
                Err(error) if dir != from && is_gone(&error) => continue,
                page => page?,
            };
            let Some(last) = page.last().map(|last| last.entry.cursor) else { continue };
            let mut below = Vec::new();
            for found in &page {
                if !visit(&found.record) {
                    return Ok(());
                }
                if found.record.attr.kind == FileKind::Directory {
                    below.push((found.record.ino, 0));
                }
            }
            stack.push((dir, last));
            stack.append(&mut below);
        }
        Ok(())
    }

    /// Where the bytes of an inode are.
    ///
    /// # Errors
    /// When the inode is gone.
    pub fn whereabouts(&self, ino: Ino) -> Result<Whereabouts> {
        let record = self.meta.get(ino)?;
        let (attr, _) = self.residency.live_attr(&record);
        let resident = self.residency.residents.get(ino.0);
        let residency = match resident {
            _ if attr.kind != FileKind::Regular => Coverage::Absent,
            Some(resident) if resident.whole => Coverage::Whole,
            Some(resident) if resident.charged > 0 => Coverage::Partial,
            _ if attr.size == 0 => Coverage::Whole,
            _ => Coverage::Absent,
        };
        Ok(Whereabouts {
            kind: attr.kind,
            size: attr.size,
            residency,
            resident_bytes: resident.map_or(0, |resident| resident.charged.min(attr.size)),
            tier: resident.map(|resident| usize::from(resident.tier)),
            dirty: record.is_dirty() || resident.is_some_and(|resident| resident.dirty),
            pinned: record.pinned,
            backing: self.meta.backing_path(ino)?,
            placed: record.links.same(&record.backing.links),
        })
    }

    /// Forbids or allows the eviction of a file, or of what will be made in a directory.
    ///
    /// # Errors
    /// When the inode is gone.
    pub fn pin(&self, ino: Ino, pinned: bool) -> Result<()> {
        self.meta.set_pinned(ino, pinned)?;
        let object = ino;
        self.residency.decide(if pinned {
            Event::Pinned { object }
        } else {
            Event::Unpinned { object }
        });
        Ok(())
    }

    /// The path of an inode from the root, without a leading slash.
    pub fn path_of(&self, ino: Ino) -> Vec<u8> {
        self.residency.path_of(ino)
    }
}
