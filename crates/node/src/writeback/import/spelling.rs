//! Stores that do not tell all names apart: those that ignore case, and those that drop dots and blanks
//! at the ends of names (vfat, servers of SMB).
//!
//! Such a store finds a file also under names that it does not list. Taken in under one of them, it would
//! be two inodes here: with bytes of their own, and each written over the other.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_meta::{Found, Link, Record};
use forebay_store::{Attributes, Dir, ErrorClass};
use forebay_types::{FileKind, Ino};
use parking_lot::Mutex;

use super::dirs::{MAX_LOOKS, let_workers_go_on};
use crate::error::Result;
use crate::writeback::Writeback;

/// Entries that are looked at at a time.
const PAGE: usize = 1000;

/// A name as stores see it that take some for the same.
pub(crate) fn folded(name: &OsStr) -> String {
    name.to_string_lossy().trim_end_matches(['.', ' ']).to_lowercase()
}

/// What is known of how the file systems of the backing store tell names apart.
#[derive(Default)]
pub(super) struct Spelling {
    /// By device. A directory of ext4 that ignores case by itself passes for what its device is.
    devices: Mutex<HashMap<u64, Apart>>,
    /// There is one that does not tell all apart.
    folds: AtomicBool,
}

/// Whether names are told apart that differ in this; unknown until something was seen that says so.
#[derive(Debug, Clone, Copy, Default)]
struct Apart {
    case: Option<bool>,
    ends: Option<bool>,
}

/// The inodes of a directory by the names that its backing store has, or is to have, as stores see them
/// that take some for the same. Filled at its first use.
#[derive(Default)]
pub(super) struct Made(OnceLock<HashMap<String, Vec<Ino>>>);

impl Writeback {
    /// Whether a name under which something was found is another spelling of its own, which the
    /// directory lists. Where all names are told apart, this costs nothing.
    ///
    /// # Errors
    /// What the backing store says.
    pub(super) fn is_other_spelling(
        &self,
        dir: &Dir,
        name: &[u8],
        found: &Attributes,
    ) -> Result<bool> {
        if self.tells_apart(dir, name, found) {
            return Ok(false);
        }
        let mut listed = false;
        self.backing.list(dir, &mut |batch| {
            listed = batch.iter().any(|entry| entry.name.as_bytes() == name);
            if listed { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(!listed)
    }

    /// Whether a file system tells all names apart: the first file that is found in it is looked for
    /// under two more names.
    pub(super) fn tells_apart(&self, dir: &Dir, name: &[u8], found: &Attributes) -> bool {
        let known = self.imports.spelling.devices.lock().get(&found.dev).copied();
        let Apart { case, ends } = known.unwrap_or_default();
        let now = Apart {
            case: case.or_else(|| self.is_another_name(dir, name, &other_case(name), found)),
            ends: ends.or_else(|| self.is_another_name(dir, name, &[name, b"."].concat(), found)),
        };
        if (now.case, now.ends) != (case, ends) {
            self.imports.spelling.devices.lock().insert(found.dev, now);
        }
        let apart = now.case != Some(false) && now.ends != Some(false);
        if !apart {
            self.imports.spelling.folds.store(true, Ordering::Release);
        }
        apart
    }

    /// Whether the store takes another name for another one than that under which it found something.
    /// `None` if that can't be said.
    fn is_another_name(
        &self,
        dir: &Dir,
        name: &[u8],
        other: &[u8],
        found: &Attributes,
    ) -> Option<bool> {
        // Of a file with several names, that may be one of them.
        if other == name || found.kind != FileKind::Directory && found.nlink > 1 {
            return None;
        }
        match self.backing.stat(dir, OsStr::from_bytes(other)) {
            Ok(same) => Some((same.dev, same.ino) != (found.dev, found.ino)),
            Err(error) if error.class() == ErrorClass::NotFound => Some(true),
            Err(_) => None,
        }
    }

    /// Leaves out what was made here under a name that the store has altered, and is found under what
    /// became of it. Says whether each of them is known to be that. Waits a moment for workers who may
    /// have made one, and have not reported it yet.
    ///
    /// # Errors
    /// What the namespace says.
    pub(super) fn leave_out_altered(
        &self,
        dir: Ino,
        made: &Made,
        found: &mut Vec<Found>,
    ) -> Result<bool> {
        if !self.imports.spelling.folds.load(Ordering::Acquire) {
            return Ok(true);
        }
        let mut looks = 0;
        let mut altered = Vec::with_capacity(found.len());
        for found in &*found {
            let mut origin = self.origin(dir, made, found)?;
            while origin == Origin::InHand && looks < MAX_LOOKS {
                looks += 1;
                let_workers_go_on();
                origin = self.origin(dir, made, found)?;
            }
            altered.push(origin);
        }
        let is_certain = !altered.contains(&Origin::InHand);
        let mut altered = altered.into_iter();
        found.retain(|_| altered.next().is_none_or(|origin| origin == Origin::Others));
        Ok(is_certain)
    }

    /// Who made what was found in a directory.
    fn origin(&self, dir: Ino, made: &Made, found: &Found) -> Result<Origin> {
        if found.attr.kind != FileKind::Directory && found.attr.nlink > 1
            || self.meta.lookup(dir, &found.name)?.is_some()
        {
            return Ok(Origin::Others);
        }
        let made = match made.0.get() {
            Some(made) => made,
            None => {
                let names = self.names_below(dir)?;
                made.0.get_or_init(|| names)
            }
        };
        let similar = made.get(&folded(OsStr::from_bytes(&found.name)));
        let mut origin = Origin::Others;
        for ino in similar.into_iter().flatten() {
            let Some(record) = self.record_if_any(*ino)? else { continue };
            match made_as(&record, dir, found) {
                Origin::Others => {}
                Origin::Here => return Ok(Origin::Here),
                Origin::InHand => origin = Origin::InHand,
            }
        }
        Ok(origin)
    }

    fn names_below(&self, dir: Ino) -> Result<HashMap<String, Vec<Ino>>> {
        let mut names: HashMap<String, Vec<Ino>> = HashMap::new();
        let mut add = |name: &[u8], ino| {
            names.entry(folded(OsStr::from_bytes(name))).or_default().push(ino);
        };
        for (name, ino) in self.meta.stale_names(dir)? {
            add(&name, ino);
        }
        let mut cursor = 0;
        loop {
            let page = self.meta.entries_plus(dir, cursor, PAGE)?;
            let Some(last) = page.last() else { return Ok(names) };
            cursor = last.entry.cursor;
            for item in &page {
                let links = item.record.backing.links.iter();
                for link in links.filter(|link| link.parent == dir) {
                    add(&link.name, item.record.ino);
                }
            }
        }
    }
}

/// Who made something that is found under a name of the backing store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Others,
    /// This mount did, under another spelling of the name.
    Here,
    /// A worker has something in hand that may stand there, and has not reported it yet.
    InHand,
}

/// Whether what is found in a directory is what this record's inode is there under a name that the
/// store has altered.
fn made_as(record: &Record, dir: Ino, found: &Found) -> Origin {
    let wanted = folded(OsStr::from_bytes(&found.name));
    let mut claims = record.backing.links.iter().filter(|link| link.parent == dir);
    let is_similar = |link: &Link| folded(OsStr::from_bytes(&link.name)) == wanted;
    if record.attr.kind != found.attr.kind
        || claims.clone().any(|link| link.name == found.name)
        || !claims.any(is_similar)
    {
        return Origin::Others;
    }
    if record.backing.pending.is_some_and(|pending| pending.same_inode(&found.fingerprint)) {
        // Published, and not reported yet.
        return Origin::Here;
    }
    match record.backing.fingerprint.filter(|print| print.ino != 0) {
        Some(known) if known.same_inode(&found.fingerprint) => Origin::Here,
        None if record.queued.is_some() => Origin::InHand,
        _ => Origin::Others,
    }
}

/// A name with its letters in the other case; the same if it has none, or others than those of ASCII.
fn other_case(name: &[u8]) -> Vec<u8> {
    let flip = |byte: &u8| match byte.is_ascii_lowercase() {
        true => byte.to_ascii_uppercase(),
        false => byte.to_ascii_lowercase(),
    };
    name.iter().map(flip).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_when_they_differ_in_case_or_at_the_end_then_they_are_one_when_folded() {
        let fold = |name: &str| folded(OsStr::new(name));
        assert_eq!(fold("ReadMe. ."), fold("readme"));
        assert_ne!(fold("read.me"), fold("readme"));
        assert_eq!(other_case(b"Read-1"), b"rEAD-1");
        assert_eq!(other_case(b"1-2"), b"1-2");
    }
}
