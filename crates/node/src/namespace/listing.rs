//! Listing directories.

use std::sync::Arc;

use forebay_meta::{Entry, Moment, Record};
use forebay_types::{FileKind, Ino};
use rustix::io::Errno;

use crate::cluster::LeaseBasis;
use crate::context::Context;
use crate::error::Result;
use crate::node::Node;

use crate::stat::Stat;

/// Offset after "." and "..": offsets of real entries begin at 16.
const AFTER_DOTS: u64 = 2;
const FIRST_CURSOR: u64 = 16;

/// An entry of a listing.
#[derive(Debug)]
pub struct DirEntry<'a> {
    /// Where a listing continues after this entry.
    pub offset: u64,
    /// The inode number.
    pub ino: Ino,
    /// The type.
    pub kind: FileKind,
    /// The name.
    pub name: &'a [u8],
    /// The attributes, if they were asked for; never for "." and "..".
    pub stat: Option<Stat>,
    /// What they stand on, if they are kept elsewhere than the directory.
    pub behind: Option<LeaseBasis>,
    /// Nobody changes them without changing what they stand on.
    pub is_known_here: bool,
}

/// A real entry, with its record where attributes were asked for, and a moment before that was read.
struct Listed {
    entry: Entry,
    record: Option<(Arc<Record>, Moment)>,
}

impl Node {
    /// Checks that an inode can be opened as a directory.
    ///
    /// # Errors
    /// `ENOTDIR`, `ESTALE`.
    pub fn opendir(&self, ino: Ino) -> Result<()> {
        match self.record(ino) {
            // Removed, and somebody's working directory: nothing is in it.
            Err(_) if self.names.removed_inodes.has_directory(ino) => Ok(()),
            Ok(record) if !record.is_directory() => Err(Errno::NOTDIR.into()),
            record => record.map(drop),
        }
    }

    /// The present moment, to be taken before a directory is listed.
    #[must_use]
    pub fn moment(&self) -> Moment {
        self.meta.moment()
    }

    /// Whether a directory may have other entries than those that were listed since a moment. Changes by
    /// others in the backing store count once they were seen ([`Node::look_at_entries`]).
    #[must_use]
    pub fn entries_changed_since(&self, dir: Ino, moment: Moment) -> bool {
        self.meta.changed_since(dir, moment)
    }

    /// Compares a directory's entries with the backing store, as a listing does, if that is due.
    ///
    /// # Errors
    /// As [`Node::read_dir`].
    pub fn look_at_entries(&self, context: &Context, dir: Ino) -> Result<()> {
        self.writeback.ensure_listed(context, dir)
    }

    /// Lists a directory from `offset` on (0 to begin, else that of the last entry seen), about
    /// `limit` entries at a time, until `emit` returns false because it has no room for the entry.
    /// With `plus`, entries come with attributes. An entry that is there throughout a whole listing
    /// appears in it once; one that comes or goes meanwhile may or may not.
    ///
    /// # Errors
    /// `ENOTDIR`, `ESTALE`; what the backing store says.
    pub fn read_dir(
        &self,
        context: &Context,
        ino: Ino,
        offset: u64,
        limit: usize,
        plus: bool,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let record = match self.record(ino) {
            Err(_) if self.names.removed_inodes.has_directory(ino) => return Ok(()),
            record => record?,
        };
        if !record.is_directory() {
            return Err(Errno::NOTDIR.into());
        }
        if record.links.is_empty() && ino != Ino::ROOT {
            // Removed: nothing is in it any more, nor a parent above it.
            return Ok(());
        }
        if offset == 0 || !record.listed {
            match self.writeback.ensure_listed(context, ino) {
                // Others have removed it, as is seen by this look.
                Err(_) if self.names.removed_inodes.has_directory(ino) => return Ok(()),
                listed => listed?,
            }
        }
        let parent = record.links.first().map_or(Ino::ROOT, |link| link.parent);
        let dots: [(u64, Ino, &[u8]); 2] = [(1, ino, b"."), (AFTER_DOTS, parent, b"..")];
        for (next, ino, name) in dots {
            let entry = DirEntry {
                offset: next,
                ino,
                kind: FileKind::Directory,
                name,
                stat: None,
                behind: None,
                is_known_here: false,
            };
            if offset < next && !emit(entry) {
                return Ok(());
            }
        }
        let mut after = if offset < FIRST_CURSOR { 0 } else { offset };
        loop {
            let page = self.page(context, ino, after, limit.max(1), plus)?;
            let Some(last) = page.last() else { return Ok(()) };
            let next = last.entry.cursor;
            if !self.emit_page(ino, &page, after, emit) {
                return Ok(());
            }
            after = next;
        }
    }

    fn page(
        &self,
        context: &Context,
        ino: Ino,
        after: u64,
        limit: usize,
        plus: bool,
    ) -> Result<Vec<Listed>> {
        if plus {
            let (page, moment) = self.page_plus(context, ino, after, limit)?;
            let with_record = page
                .into_iter()
                .map(|e| Listed { entry: e.entry, record: Some((e.record, moment)) });
            return Ok(with_record.collect());
        }
        let page = self.meta.entries(ino, after, limit)?;
        Ok(page.into_iter().map(|entry| Listed { entry, record: None }).collect())
    }

    fn emit_page(
        &self,
        dir: Ino,
        page: &[Listed],
        after: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> bool {
        let offsets = offsets(page.iter().map(|listed| listed.entry.cursor), after);
        for (Listed { entry, record }, offset) in page.iter().zip(offsets) {
            let (ino, kind, name) = (entry.ino, entry.kind, &*entry.name);
            let (mut stat, mut behind, mut is_known_here) = (None, None, false);
            if let Some((record, since)) = record {
                let newer = self.newer_elsewhere(dir, record);
                behind = newer.as_ref().map(|(_, basis)| *basis);
                let record = newer.as_ref().map_or(record, |(newer, _)| newer);
                is_known_here = self.cluster().is_some_and(|cluster| cluster.is_known_here(record));
                stat = Some(self.stat_since(record, Some(*since)));
            }
            if !emit(DirEntry { offset, ino, kind, name, stat, behind, is_known_here }) {
                return false;
            }
        }
        true
    }

    /// A record that is kept elsewhere than the directory, if nobody else changes it at present: read
    /// since that was asked for.
    fn newer_elsewhere(&self, dir: Ino, record: &Record) -> Option<(Arc<Record>, LeaseBasis)> {
        if record.ino.partition() == dir.partition() {
            return None;
        }
        let basis = self.cluster()?.basis(record.ino)?;
        Some((self.meta.get(record.ino).ok()?, basis))
    }
}

/// Where to continue after each entry of a page. Entries whose names have the same hash share a
/// cursor, and are only behind us when the last of them is: better one of them twice than never.
fn offsets(cursors: impl Iterator<Item = u64>, after: u64) -> impl Iterator<Item = u64> {
    let mut cursors = cursors.peekable();
    let mut behind = after.max(AFTER_DOTS);
    std::iter::from_fn(move || {
        let cursor = cursors.next()?;
        if cursors.peek() != Some(&cursor) {
            behind = cursor;
        }
        Some(behind)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_when_cursors_are_equal_then_only_the_last_passes_them() {
        let after: Vec<u64> = offsets([20, 30, 30, 30, 40].into_iter(), 0).collect();
        assert_eq!(after, [20, 20, 20, 30, 40]);
        let after: Vec<u64> = offsets([20, 20].into_iter(), 0).collect();
        assert_eq!(after, [AFTER_DOTS, 20]);
    }
}
