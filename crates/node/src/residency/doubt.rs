//! Objects that can't be read as what they are: a header or a map is damaged.
//!
//! Nothing says then whether the object has bytes that the backing store lacks, for a record need not
//! speak of what was written to a file that is open. So its file is taken for newer than the backing
//! store, and is lost until somebody has decided ([`crate::aside`]), unless all bytes of the object are
//! found in the version below.
//!
//! Tests: `tests/damaged.rs`, `crates/forebay/tests/damage.rs`.

use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

use forebay_meta::{MetaStore, Queue, Record};
use forebay_store::backing::{Access, Dir};
use forebay_store::{Attributes, BackingFile, BackingStore, Believed, Bytes, Tier};
use forebay_types::{FileKind, Fingerprint};

use crate::error::Result;

/// Larger objects are not compared: a start that reads them would take too long.
const MAX_COMPARED: u64 = 256 << 20;
/// Bytes compared at a time.
const PIECE: u64 = 1 << 20;

/// The version in the backing store of which a damaged object is nothing but a copy, if that is so for
/// certain.
pub(crate) fn copied_version(
    meta: &MetaStore,
    backing: &dyn BackingStore,
    tier: &dyn Tier,
    record: &Record,
) -> Option<Fingerprint> {
    if record.spilled {
        return None;
    }
    let compared = compare(meta, backing, tier, record);
    compared.unwrap_or_else(|error| {
        tracing::warn!(
            ino = %record.ino,
            %error,
            "a damaged object can't be compared with the backing store, so its file counts as \
             newer: `forebay fsck` says what can be done"
        );
        None
    })
}

fn compare(
    meta: &MetaStore,
    backing: &dyn BackingStore,
    tier: &dyn Tier,
    record: &Record,
) -> Result<Option<Fingerprint>> {
    let object = tier.open(record.ino.0)?;
    let len = object.len()?;
    let Some(path) = meta.backing_path(record.ino)?.filter(|_| len <= MAX_COMPARED) else {
        return Ok(None);
    };
    let Some(file) = open_below(backing, &path, Access::Read)? else { return Ok(None) };
    let found = file.stat()?.fingerprint();
    let mut known = [record.backing.fingerprint, record.backing.pending].into_iter().flatten();
    let is_known = known.any(|known| known.same_content(&found));
    if !is_known || found.size != len {
        return Ok(None);
    }
    let mut absent = Vec::new();
    match tier.open_map(record.ino.0, Believed::Synced) {
        Ok(Some(map)) => map.missing_runs(0..len, &mut absent),
        Ok(None) => {}
        Err(_) => return Ok(None),
    }
    let mut at = 0;
    for run in absent.into_iter().chain(std::iter::once(len..len)) {
        if !is_equal(&*object, &*file, at..run.start)? {
            return Ok(None);
        }
        at = run.end;
    }
    Ok(Some(found))
}

/// The file of the backing store that has a path, if there is one.
pub(crate) fn open_below(
    backing: &dyn BackingStore,
    path: &[u8],
    access: Access,
) -> Result<Option<std::sync::Arc<dyn BackingFile>>> {
    let Some((dir, name)) = place_below(backing, path)? else { return Ok(None) };
    Ok(Some(backing.open_file(&dir, name, access)?))
}

/// The attributes of what has a path in the backing store.
pub(crate) fn stat_below(backing: &dyn BackingStore, path: &[u8]) -> Result<Option<Attributes>> {
    let Some((dir, name)) = place_below(backing, path)? else { return Ok(None) };
    Ok(Some(backing.stat(&dir, name)?))
}

fn place_below<'p>(backing: &dyn BackingStore, path: &'p [u8]) -> Result<Option<(Dir, &'p OsStr)>> {
    let mut dir = backing.root();
    let mut parts: Vec<&OsStr> = path.split(|&byte| byte == b'/').map(OsStr::from_bytes).collect();
    let Some(name) = parts.pop() else { return Ok(None) };
    for part in parts {
        dir = backing.open_dir(&dir, part)?;
    }
    Ok(Some((dir, name)))
}

/// Whether an object has the bytes of a file in the backing store in a range.
pub(crate) fn is_equal(object: &dyn Bytes, file: &dyn Bytes, range: Range<u64>) -> Result<bool> {
    let mut at = range.start;
    let most = PIECE.min(range.end.saturating_sub(at)) as usize;
    let (mut ours, mut theirs) = (vec![0; most], vec![0; most]);
    while at < range.end {
        let len = most.min(usize::try_from(range.end - at).unwrap_or(most));
        let mut read = 0;
        while read < len {
            let here = object.read_at(&mut ours[read..len], at + read as u64)?;
            let there = file.read_at(&mut theirs[read..len], at + read as u64)?;
            let both = here.min(there);
            if both == 0 || ours[read..read + both] != theirs[read..read + both] {
                return Ok(false);
            }
            read += both;
        }
        at += len as u64;
    }
    Ok(true)
}

/// Whether a file may have more in a damaged object than its record says.
pub(crate) fn is_in_doubt(record: &Record) -> bool {
    record.attr.kind == FileKind::Regular
        && !(record.links.is_empty() && record.backing.links.is_empty())
}

/// Notes durably that a file is newer than the backing store, before its object is set aside. An empty
/// file, of which there is nothing to lose, is as long as the object.
pub(crate) fn note_doubt(meta: &MetaStore, tier: &dyn Tier, record: &Record) -> Result<()> {
    if record.is_dirty() && record.attr.size > 0 {
        return Ok(());
    }
    let len = tier.open(record.ino.0).and_then(|object| object.len()).unwrap_or(1);
    meta.update(record.ino, None, |record| {
        record.mark_dirty();
        if record.attr.size == 0 {
            record.attr.size = len;
        }
        Queue::Yes
    })?;
    Ok(meta.sync()?)
}
