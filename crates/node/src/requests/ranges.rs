//! Operations on ranges of open files: allocation, holes, copies.

use std::ops::Range;
use std::sync::atomic::Ordering;

use forebay_store::Presence;
use parking_lot::RwLockWriteGuard;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::clock;
use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::failpoints::fail_at;
use crate::node::Node;
use crate::residency::Residency;
use crate::residency::data_location::{DataLocation, Underlay};
use crate::residency::files::{File, FileRef};
use crate::residency::spill::is_no_room;
use crate::writeback::in_place::Cut;

/// Bytes copied at a time between files that the kernel can't copy between.
const PIECE: usize = 1 << 20;
/// Bytes that one call copies at most; the program calls again for more. A call can't be interrupted, and
/// its time is limited.
const MAX_COPIED: u64 = 64 << 20;

/// A place in an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilePosition {
    /// The file's handle.
    pub fh: u64,
    /// In bytes.
    pub offset: u64,
}

/// Where `seek` looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seek {
    /// For the next data.
    Data,
    /// For the next hole.
    Hole,
}

impl Node {
    /// `fallocate(2)`: allocation, holes and zeros. Room is charged as for a write; where no tier
    /// has it, the file is only made longer, if the backing store has the room at present.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for modes other than allocation, holes and zeros; `ENOSPC` when
    /// neither the tiers nor the backing store have room.
    pub fn fallocate(
        &self,
        context: &Context,
        fh: u64,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> Result<()> {
        let handle = self.handle(fh)?;
        let _writing = handle.writing();
        match self.fallocate_once(context, fh, offset, length, mode) {
            Err(error) if self.writeback.takes_newer_version(&*self.file_of(fh)?, &error) => {
                self.fallocate_once(context, fh, offset, length, mode)
            }
            done => done,
        }
    }

    fn fallocate_once(
        &self,
        context: &Context,
        fh: u64,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> Result<()> {
        let flags = FallocateFlags::from_bits_retain(u32::try_from(mode).unwrap_or(u32::MAX));
        let keep = flags.contains(FallocateFlags::KEEP_SIZE);
        let end = offset.checked_add(length).ok_or(NodeError::Posix(Errno::FBIG))?;
        self.residency.check_length(end)?;
        let rest = flags - FallocateFlags::KEEP_SIZE;
        let zero = rest == FallocateFlags::ZERO_RANGE;
        let punch = rest == FallocateFlags::PUNCH_HOLE && keep;
        if !(rest.is_empty() || zero || punch) {
            return Err(NodeError::Posix(Errno::OPNOTSUPP));
        }
        let handle = self.handle(fh)?;
        if handle.remote.is_on() {
            return Err(NodeError::Posix(Errno::OPNOTSUPP));
        }
        let durably = handle.durably;
        if durably {
            context.wait()?;
        }
        let file = handle.file.clone();
        drop(handle);
        if !context.may_wait() && file.location.try_write().is_none() {
            context.wait()?;
        }
        self.drop_privileges(context, &file)?;
        let record = self.meta.get(file.ino)?;
        let simple = {
            let location = file.location.read();
            match location.place() {
                Some(place) => place.is_marked_whole() && !Residency::needs_sync_to_change(place),
                None => self.residency.begins_empty(file.ino, &location)?,
            }
        };
        if !simple {
            context.wait()?;
        }
        let (absent, new) = {
            let location = file.location.read();
            (location.place().is_none(), self.residency.begins_empty(file.ino, &location)?)
        };
        if absent && new {
            self.residency.ensure_place(&file)?;
        } else if absent && matches!(file.location.read().base(), Underlay::Backing(_)) {
            self.residency.begin_partial(&file, &record)?;
        }
        if file.location.read().place().is_none() {
            context.wait()?;
        }
        fail_at!("node.range.begin");
        {
            let mut location = self.location_to_change(context, &file, false)?;
            self.given_up.check(context)?;
            if punch || zero {
                location =
                    self.zero_or_punch(context, &file, location, offset..end, keep, punch)?;
            } else {
                location = self.allocate_range(context, &file, location, offset..end, keep)?;
            }
            if let Some(place) = location.place() {
                place.bytes().set_times(None, Some(clock::wall_time()))?;
            }
        }
        if !file.is_open() {
            self.residency.settle(&file)?;
        }
        if durably { self.fsync(context, fh, false) } else { Ok(()) }
    }

    /// Makes zeros of a range; where there is no room for that, a hole in the backing store itself, if a hole
    /// is wanted. That is not done with the file in hand: it is given back as it is then.
    fn zero_or_punch<'a>(
        &self,
        context: &Context,
        file: &'a FileRef,
        mut location: RwLockWriteGuard<'a, DataLocation>,
        range: Range<u64>,
        keep: bool,
        punch: bool,
    ) -> Result<RwLockWriteGuard<'a, DataLocation>> {
        match self.zero_range(file, &mut location, range.clone(), keep) {
            Ok(()) => Ok(location),
            Err(error) if punch && is_no_room(&error) => {
                drop(location);
                match self.writeback.cut_below(context, file, &Cut::Hole(range))? {
                    true => Ok(file.location.write()),
                    false => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    fn zero_range(
        &self,
        file: &FileRef,
        location: &mut DataLocation,
        Range { start: offset, end }: Range<u64>,
        keep: bool,
    ) -> Result<()> {
        file.count_write();
        let len = self.length_in(file, location)?;
        let to = if keep { end.min(len) } else { end };
        let fits = match location.place() {
            None => false,
            Some(place) => {
                self.writeback.check_rest_below(file, location, place)?;
                place.is_marked_whole()
                    || self.residency.fetch_edges(file, location, place, offset, to)?
            }
        };
        let Some(place) = location.place().filter(|_| fits) else {
            let past = offset < to;
            return if past {
                self.residency.zero_around(file, location, offset..to)
            } else {
                Ok(())
            };
        };
        let longer = (end > len && !keep).then_some(end);
        self.residency.punch(file, place, offset..to, longer)
    }

    /// Allocates on the tier; where that has no room, only makes the file longer, if the backing store has
    /// it. That is not waited for with the file in hand: it is given back as it is then.
    fn allocate_range<'a>(
        &self,
        context: &Context,
        file: &'a FileRef,
        mut location: RwLockWriteGuard<'a, DataLocation>,
        range: Range<u64>,
        keep: bool,
    ) -> Result<RwLockWriteGuard<'a, DataLocation>> {
        if self.residency.allocate_on_tier(file, &location, range.clone(), keep)? {
            return Ok(location);
        }
        if self.is_backing_room_needed(file, &location, &range)? {
            let room = match self.statfs_at_once() {
                Some(room) => room,
                None => {
                    drop(location);
                    let room = self.statfs(context)?;
                    location = self.location_to_change(context, file, false)?;
                    self.given_up.check(context)?;
                    room
                }
            };
            let needed =
                range.end.saturating_sub(range.start.max(self.length_in(file, &location)?));
            if room.blocks_available.saturating_mul(room.block_size) < needed {
                return Err(NodeError::Posix(Errno::NOSPC));
            }
        }
        if !keep && range.end > self.length_in(file, &location)? {
            file.count_write();
            self.residency.resize(file, &mut location, range.end)?;
        }
        Ok(location)
    }

    /// Whether the backing store must have room for a range that the tier has not given any. What lies
    /// within the file may be there already; asking for holes would take long.
    fn is_backing_room_needed(
        &self,
        file: &FileRef,
        location: &DataLocation,
        range: &Range<u64>,
    ) -> Result<bool> {
        let whole = location.place().filter(|place| place.is_marked_whole());
        let is_paid = whole.is_some_and(|place| place.unpaid(range.clone()) == 0);
        Ok(!is_paid && range.end > range.start.max(self.length_in(file, location)?))
    }

    /// The next data or hole at or after `offset`. What is not on a tier counts as the base says.
    ///
    /// # Errors
    /// `ENXIO` beyond the end, or when only a hole follows.
    pub fn seek(&self, context: &Context, fh: u64, offset: u64, whence: i32) -> Result<u64> {
        let what = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return Err(NodeError::Posix(Errno::INVAL)),
        };
        let handle = self.handle(fh)?;
        if let Some(len) = self.length_forwarded(context, &handle)? {
            return all_is_data(len, offset, what);
        }
        let file = handle.file.clone();
        drop(handle);
        match self.seek_here(context, &file, offset, what) {
            Err(error) if self.writeback.takes_newer_version(&file, &error) => {
                self.seek_here(context, &file, offset, what)
            }
            found => found,
        }
    }

    fn seek_here(&self, context: &Context, file: &FileRef, offset: u64, what: Seek) -> Result<u64> {
        let mut location = file.location_for(context)?;
        if location.place().is_none() && !matches!(location.base(), Underlay::Zeros) {
            location = file.wait_with(context, location)?;
        }
        if may_be_stored_into(file) {
            // What is in the kernel's pages only must not pass for a hole.
            return all_is_data(self.length_in(file, &location)?, offset, what);
        }
        let Some(place) = location.place() else {
            let found = match location.base() {
                Underlay::Zeros => None,
                Underlay::Spill(spill) => {
                    let (len, bytes) = (spill.size_and_mtime().0, &**spill.file());
                    spill.with_map(|map| match map {
                        Some(has) => seek_in_parts(has, bytes, offset..len, what),
                        None => seek_in(bytes, offset, what),
                    })?
                }
                Underlay::Backing(opened) => {
                    seek_in(&*self.residency.opened_base(file, opened)?, offset, what)?
                }
            };
            return found.ok_or(NodeError::Posix(Errno::NXIO));
        };
        let len = place.bytes().len()?;
        if offset >= len {
            return Err(NodeError::Posix(Errno::NXIO));
        }
        let Some(map) = place.map() else {
            return seek_in(place.bytes(), offset, what)?.ok_or(NodeError::Posix(Errno::NXIO));
        };
        seek_in_parts(&map, place.bytes(), offset..len, what)?.ok_or(NodeError::Posix(Errno::NXIO))
    }

    /// Copies between open files; returns the bytes copied, fewer at the end of the source, or where
    /// there are more than one call copies.
    ///
    /// # Errors
    /// As [`Node::read`] and [`Node::write`].
    pub fn copy_range(
        &self,
        context: &Context,
        mut from: FilePosition,
        mut to: FilePosition,
        length: u64,
    ) -> Result<u64> {
        context.wait()?;
        let length = length.min(MAX_COPIED);
        // A copy within one file may overlap piece by piece only if the ranges do not.
        let mut buffer = vec![0; PIECE.min(usize::try_from(length).unwrap_or(PIECE))];
        let mut done = 0;
        while done < length {
            let want = buffer.len().min(usize::try_from(length - done).unwrap_or(PIECE));
            let piece = &mut buffer[..want];
            let written = match self.copy_piece(context, from, to, piece) {
                // What was copied before is, and the program is told how much that was.
                Err(_) if done > 0 && self.given_up.check(context).is_ok() => break,
                copied => copied? as u64,
            };
            if written == 0 {
                break;
            }
            from.offset += written;
            to.offset += written;
            done += written;
        }
        if self.handle(to.fh)?.durably {
            self.fsync(context, to.fh, false)?;
        }
        Ok(done)
    }

    fn copy_piece(
        &self,
        context: &Context,
        from: FilePosition,
        to: FilePosition,
        piece: &mut [u8],
    ) -> Result<usize> {
        let read = self.read(context, from.fh, from.offset, piece)?;
        if read == 0 {
            return Ok(0);
        }
        fail_at!("node.range.copy");
        self.given_up.check(context)?;
        self.write(context, to.fh, to.offset, &piece[..read])
    }
}

/// As [`seek_in`], up to the end of a range, in a file that has only some extents. Those that are absent
/// count as data: nobody asks the slow store for its holes.
fn seek_in_parts(
    presence: &Presence,
    bytes: &(impl forebay_store::Bytes + ?Sized),
    Range { start, end: len }: Range<u64>,
    what: Seek,
) -> Result<Option<u64>> {
    let extent = presence.extent_size();
    let mut at = start;
    while at < len {
        let stop = (at - at % extent + extent).min(len);
        if !presence.is_present(at..stop) {
            if what == Seek::Data {
                return Ok(Some(at));
            }
        } else if let Some(found) = seek_in(bytes, at, what)?
            && found < stop
        {
            return Ok(Some(found));
        }
        at = stop;
    }
    Ok((what == Seek::Hole && start < len).then_some(len))
}

/// Whether a mapping may live into which programs store without anybody hearing of it: of a file that the
/// kernel may have pages of, and that somebody may write. Another node's are looked at there.
fn may_be_stored_into(file: &File) -> bool {
    file.pages_in_kernel.load(Ordering::Acquire) && file.opens.lock().writers > 0
}

/// The next data or hole where all holes count as data.
fn all_is_data(len: u64, offset: u64, what: Seek) -> Result<u64> {
    match what {
        _ if offset >= len => Err(NodeError::Posix(Errno::NXIO)),
        Seek::Data => Ok(offset),
        Seek::Hole => Ok(len),
    }
}

fn seek_in(
    bytes: &(impl forebay_store::Bytes + ?Sized),
    offset: u64,
    what: Seek,
) -> Result<Option<u64>> {
    Ok(match what {
        Seek::Data => bytes.seek_data(offset)?,
        Seek::Hole => bytes.seek_hole(offset)?,
    })
}
