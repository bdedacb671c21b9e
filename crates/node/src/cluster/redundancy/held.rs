//! Copies that this node keeps for others: files beside the objects of its tiers.
//!
//! A copy is a file under the number of the inode and that of its version, and a fragment also under that
//! of its place among the fragments, from 1 on. What was acknowledged of it
//! is never changed; a later version of the same file may only add to its end. So who makes it may stop
//! at any moment, and the metadata say how much of it counts. Nothing evicts it: it goes when its maker
//! says so, or when the metadata do not know it any more.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use forebay_core::cluster::redundancy::Redundancy;
use forebay_peer::message::{Fault, ObjectId, Put};
use forebay_types::Ino;
use parking_lot::Mutex;
use rustix::fs::Advice;

use super::aside::{self, Aside};
use crate::error::Result;
use crate::residency::Residency;

/// Where a tier keeps them.
const DIR: &str = "copies";
/// Where a tier keeps what was taken over from it by others.
const ASIDE: &str = "aside";
const GRAIN: u64 = 4096;
/// More fragments no code has.
const MAX_PARTS: u32 = Redundancy::MAX as u32 + Redundancy::MAX_DATA as u32;

/// A copy.
#[derive(Debug, Clone, Copy)]
struct Copy {
    tier: u8,
    charged: u64,
    /// When something was last added, or when it was found.
    touched: Instant,
}

/// What tells a copy from others: inode, version, and 0 or the number of a fragment.
pub(super) type Key = (u64, u64, u32);

/// The copies of this node.
pub(super) struct Held {
    residency: Arc<Residency>,
    copies: Mutex<BTreeMap<Key, Copy>>,
    pub(super) aside: Aside,
}

/// How much there is of something.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileTotals {
    /// Files.
    pub files: u64,
    /// Bytes.
    pub bytes: u64,
}

fn name((ino, version, part): Key) -> String {
    match part {
        0 => format!("{ino:016x}.{version:016x}"),
        part => format!("{ino:016x}.{version:016x}.{part:02x}"),
    }
}

fn parse(name: &str) -> Option<Key> {
    let number = |text: &str, digits: usize| {
        u64::from_str_radix(text, 16).ok().filter(|_| text.len() == digits)
    };
    let mut fields = name.split('.');
    let (ino, version) = (number(fields.next()?, 16)?, number(fields.next()?, 16)?);
    let part = match fields.next() {
        Some(text) => number(text, 2).filter(|part| *part > 0)?,
        None => 0,
    };
    fields.next().is_none().then_some((ino, version, u32::try_from(part).ok()?))
}

fn failed(error: &std::io::Error) -> Fault {
    Fault::Io { errno: error.raw_os_error().unwrap_or(libc::EIO) }
}

fn sync_dir(dir: &Path) -> std::io::Result<()> {
    File::open(dir)?.sync_all()
}

impl Held {
    /// Knows of none yet.
    pub fn new(residency: Arc<Residency>) -> Self {
        Held { residency, copies: Mutex::default(), aside: Aside::default() }
    }

    /// How much is held for others.
    pub fn totals(&self) -> FileTotals {
        let copies = self.copies.lock();
        let bytes = copies.values().map(|copy| copy.charged).sum();
        FileTotals { files: copies.len() as u64, bytes }
    }

    /// Some copies after one, with how long they were not touched.
    pub fn after(&self, last: Option<Key>, most: usize) -> Vec<(Key, std::time::Duration)> {
        use std::ops::Bound;
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        let copies = self.copies.lock();
        let some = copies.range((from, Bound::Unbounded)).take(most);
        some.map(|(key, copy)| (*key, copy.touched.elapsed())).collect()
    }
}

impl Held {
    fn copy_path(&self, tier: u8, key: Key) -> PathBuf {
        let tier = self.residency.tiers[usize::from(tier)].tier.path();
        tier.join(DIR).join(name(key))
    }

    /// Finds the copies that an earlier start has left, and charges them.
    pub(super) fn find_copies(&self) -> Result<()> {
        for (index, slot) in self.residency.tiers.iter().enumerate() {
            let tier = u8::try_from(index).unwrap_or(u8::MAX);
            for sub in [DIR, ASIDE] {
                let dir = slot.tier.path().join(sub);
                match fs::DirBuilder::new().mode(0o700).create(&dir) {
                    Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                        return Err(error.into());
                    }
                    _ => {}
                }
                for entry in fs::read_dir(&dir)? {
                    let entry = entry?;
                    let charged = entry.metadata()?.blocks() * 512;
                    slot.room.force(charged);
                    let copy = Copy { tier, charged, touched: Instant::now() };
                    match entry.file_name().to_str().and_then(parse).filter(|_| sub == DIR) {
                        Some(key) => drop(self.copies.lock().insert(key, copy)),
                        None => {
                            self.aside.add(entry.path(), tier, charged);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether all that counts of a copy is here.
    pub(super) fn has_copy(&self, key: Key, size: u64) -> bool {
        let copy = self.copies.lock().get(&key).copied();
        copy.is_some_and(|copy| {
            let path = self.copy_path(copy.tier, key);
            fs::metadata(path).is_ok_and(|found| found.len() >= size)
        })
    }

    /// Bytes of a copy, fewer where it ends.
    ///
    /// # Errors
    /// `NotFound` if it is not here; what the tier says.
    pub(super) fn read_copy(&self, key: Key, offset: u64, len: u64) -> std::io::Result<Vec<u8>> {
        let copy = self.copies.lock().get(&key).copied().ok_or(ErrorKind::NotFound)?;
        let file = File::open(self.copy_path(copy.tier, key))?;
        let there = file.metadata()?.len().saturating_sub(offset).min(len);
        let mut bytes = vec![0; usize::try_from(there).unwrap_or(0)];
        file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// Stores a part of a copy; after the last one it is durable.
    pub(super) fn put_copy(&self, put: &Put, bytes: &[u8]) -> Result<(), Fault> {
        let ObjectId { ino, version, part } = put.object;
        let end = put.offset.checked_add(bytes.len() as u64).filter(|end| *end <= put.total);
        let end = end.ok_or_else(|| Fault::Invalid("a part beyond the end".into()))?;
        if part > MAX_PARTS {
            return Err(Fault::Invalid("no code has so many fragments".into()));
        }
        let key = (ino, version, part);
        let tier = self.charge_copy(key, put.offset, end)?;
        let path = self.copy_path(tier, key);
        let file = OpenOptions::new().write(true).create(put.offset == 0).mode(0o600).open(&path);
        let file = file.map_err(|error| match error.kind() {
            ErrorKind::NotFound => Fault::NotHere,
            _ => failed(&error),
        })?;
        let store = || {
            file.write_all_at(bytes, put.offset)?;
            if put.last {
                if file.metadata()?.len() < put.total {
                    file.set_len(put.total)?;
                }
                file.sync_all()?;
                sync_dir(path.parent().unwrap_or(&path))?;
            } else if let Some(len) = std::num::NonZeroU64::new(bytes.len() as u64) {
                // The device begins now, as somebody will wait for it; nobody is going to read these
                // bytes soon. What can't be begun is done at the end.
                let _ = rustix::fs::fadvise(&file, put.offset, Some(len), Advice::DontNeed);
            }
            Ok(())
        };
        store().map_err(|error: std::io::Error| failed(&error))
    }

    /// Sees to it that a copy is charged for its bytes up to `end`; on which tier it is.
    fn charge_copy(&self, key: Key, offset: u64, end: u64) -> Result<u8, Fault> {
        let wanted = end.next_multiple_of(GRAIN).max(GRAIN);
        for attempt in 0..2 {
            let known = {
                let mut copies = self.copies.lock();
                let (known, new) = match copies.get(&key) {
                    Some(copy) => (*copy, false),
                    None if offset == 0 => {
                        let tier = self.tier_for_copy(wanted);
                        (Copy { tier, charged: 0, touched: Instant::now() }, true)
                    }
                    None => return Err(Fault::NotHere),
                };
                let more = wanted.saturating_sub(known.charged);
                let taken = match new {
                    true => self.residency.take_room_for_file(known.tier, more),
                    false => self.residency.take_room(known.tier, more),
                };
                if taken {
                    let charged = known.charged + more;
                    copies.insert(key, Copy { charged, touched: Instant::now(), ..known });
                    return Ok(known.tier);
                }
                debug_assert!(new || known.charged > 0, "a copy without a charge");
                known
            };
            // Clean files make way, but nobody is waited for here.
            if attempt == 0 && !self.residency.free_room_at_once(known.tier, wanted - known.charged)
            {
                break;
            }
        }
        Err(Fault::NoSpace)
    }

    /// The first tier that has the room; if none has, the largest.
    fn tier_for_copy(&self, bytes: u64) -> u8 {
        let rooms = || self.residency.tiers.iter().enumerate();
        let free = rooms().find(|(_, slot)| slot.room.free() >= bytes);
        let largest = || rooms().max_by_key(|(_, slot)| slot.room.size());
        let chosen = free.or_else(largest).map_or(0, |(index, _)| index);
        u8::try_from(chosen).unwrap_or(0)
    }

    /// Removes a copy; one that is not there is removed already.
    pub(super) fn drop_copy_held(&self, key: Key) -> std::io::Result<()> {
        let Some(copy) = self.copies.lock().remove(&key) else { return Ok(()) };
        self.residency.tiers[usize::from(copy.tier)].room.give_all(copy.charged);
        match fs::remove_file(self.copy_path(copy.tier, key)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Takes a whole copy out of those that are held, to make an object of it: its tier, file and
    /// charge.
    pub(super) fn take_copy(&self, ino: Ino, version: u64) -> Option<(u8, PathBuf, u64)> {
        let key = (ino.0, version, 0);
        let copy = self.copies.lock().remove(&key)?;
        Some((copy.tier, self.copy_path(copy.tier, key), copy.charged))
    }

    /// Puts it back.
    pub(super) fn return_copy(&self, ino: Ino, version: u64, tier: u8, charged: u64) {
        let copy = Copy { tier, charged, touched: Instant::now() };
        self.copies.lock().insert((ino.0, version, 0), copy);
    }

    /// Moves an object aside whose file others have taken over: what it has does not count any more,
    /// and may hold what nobody was told is safe.
    pub(super) fn move_aside(&self, ino: Ino, tier: u8) -> Result<PathBuf> {
        let slot = &self.residency.tiers[usize::from(tier)];
        let dir = slot.tier.path().join(ASIDE);
        let free = |number: &u32| !dir.join(aside::name(ino, *number)).exists();
        let number = (0..u32::MAX).find(free).unwrap_or(u32::MAX);
        let to = dir.join(aside::name(ino, number));
        slot.tier.detach(ino.0, &to)?;
        sync_dir(&dir)?;
        let bytes = fs::metadata(&to)?.blocks() * 512;
        slot.room.force(bytes);
        self.aside.add(to.clone(), tier, bytes);
        Ok(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_copy_when_read_then_inode_and_version_and_others_are_no_copies() {
        for key in [(7, u64::MAX, 0), (u64::MAX, 0, 1), (1, 2, 24)] {
            assert_eq!(parse(&name(key)), Some(key));
        }
        let whole = name((1, 2, 0));
        let others = ["", "7.8", "0000000000000007", "0000000000000007.new", &whole[1..]];
        for other in others.map(str::to_owned).into_iter().chain([
            format!("{whole}.00"),
            format!("{whole}.1"),
            format!("{whole}.01.01"),
        ]) {
            assert_eq!(parse(&other), None, "{other}");
        }
    }
}
