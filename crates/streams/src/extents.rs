//! Where the bytes of a file lie on its device, as the file system says (FIEMAP), else in the
//! order of the file.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::model::{Extent, Layout};

/// More extents than this are not asked for; the rest is taken to follow the last.
const EXTENTS_MAX: usize = 4096;

/// Where a file lies. Without an answer of the file system it is taken to lie in one piece at the
/// start of the device, which makes the order of the file that of the device.
pub fn layout_of(file: &File, bytes: u64) -> Layout {
    let extents = fiemap(file).unwrap_or_else(|error| {
        tracing::debug!(%error, "no physical extents; file order instead");
        Vec::new()
    });
    complete(&extents, bytes)
}

/// Where one byte of a file lies on its device, if the file system says so.
pub fn place_of(file: BorrowedFd<'_>, offset: u64) -> Option<u64> {
    let map = mapped(file, offset, 1, 0).ok()?;
    let extent = map.extents.first().filter(|_| map.mapped_extents > 0)?;
    let within = offset.checked_sub(extent.logical)?;
    (extent.flags & EXTENT_PLACELESS == 0).then_some(extent.physical + within)
}

/// Whether any byte of a file may be on its device. Of one that was written a moment ago and that nobody
/// has synced, file systems that allocate late (ext4, XFS, Btrfs) know that none is. True where the file
/// system does not say, and of a file in more extents than are asked for at once.
pub fn may_be_on_device(file: BorrowedFd<'_>) -> bool {
    let Ok(map) = mapped(file, 0, u64::MAX, 0) else { return true };
    let found = &map.extents[..(map.mapped_extents as usize).min(FIEMAP_BATCH)];
    let is_all = found.last().is_none_or(|last| last.flags & EXTENT_LAST != 0);
    !is_all || found.iter().any(|extent| extent.flags & EXTENT_DELAYED == 0)
}

/// A layout of exactly `bytes` bytes: what lies in a hole, or past the last extent, is taken to
/// follow what comes before it.
fn complete(extents: &[Extent], bytes: u64) -> Layout {
    let bytes = bytes.max(1);
    let mut whole: Vec<Extent> = Vec::with_capacity(extents.len() + 1);
    let (mut logical, mut physical) = (0, extents.first().map_or(0, |first| first.physical));
    for extent in extents {
        if extent.logical >= bytes {
            break;
        }
        if extent.logical > logical {
            let gap = extent.logical - logical;
            whole.push(Extent { logical, physical, bytes: gap });
        }
        let kept = extent.bytes.min(bytes - extent.logical);
        whole.push(Extent { bytes: kept, ..*extent });
        logical = extent.logical + kept;
        physical = extent.physical.saturating_add(kept);
    }
    if logical < bytes {
        whole.push(Extent { logical, physical, bytes: bytes - logical });
    }
    Layout::new(&whole)
        .or_else(|_| Layout::contiguous(0, bytes))
        .expect("one piece from byte 0 on is a layout")
}

const FIEMAP_BATCH: usize = 128;
/// `FS_IOC_FIEMAP`, which is `_IOWR('f', 11, struct fiemap)`.
const FS_IOC_FIEMAP: libc::c_ulong = 0xC020_660B;
const FIEMAP_FLAG_SYNC: u32 = 1;
const EXTENT_LAST: u32 = 0x1;
const EXTENT_DELAYED: u32 = 0x4;
/// Unknown or delayed allocation, encoded, inline: no place on the device that reads would go to.
const EXTENT_PLACELESS: u32 = 0x2 | EXTENT_DELAYED | 0x8 | 0x200 | 0x400;

/// `struct fiemap_extent` of `linux/fiemap.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FiemapExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap` of `linux/fiemap.h`, with room for a batch of extents.
#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [FiemapExtent; FIEMAP_BATCH],
}

/// The extents of a part of a file: where it starts, and its length.
fn mapped(file: BorrowedFd<'_>, start: u64, length: u64, flags: u32) -> io::Result<Fiemap> {
    let mut map = Fiemap {
        start,
        length,
        flags,
        mapped_extents: 0,
        extent_count: FIEMAP_BATCH as u32,
        reserved: 0,
        extents: [FiemapExtent::default(); FIEMAP_BATCH],
    };
    // SAFETY: the structure is laid out as the kernel's and has room for `extent_count`.
    let code = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP as _, &raw mut map) };
    if code < 0 { Err(io::Error::last_os_error()) } else { Ok(map) }
}

fn fiemap(file: &File) -> io::Result<Vec<Extent>> {
    let mut found: Vec<Extent> = Vec::new();
    let mut start = 0;
    while found.len() < EXTENTS_MAX {
        let flags = if start == 0 { FIEMAP_FLAG_SYNC } else { 0 };
        let map = mapped(file.as_fd(), start, u64::MAX - start, flags)?;
        let mapped = &map.extents[..(map.mapped_extents as usize).min(FIEMAP_BATCH)];
        let Some(last) = mapped.last() else { break };
        for extent in mapped.iter().filter(|extent| extent.flags & EXTENT_PLACELESS == 0) {
            let &FiemapExtent { logical, physical, length, .. } = extent;
            match found.last_mut() {
                Some(e) if e.logical + e.bytes == logical && e.physical + e.bytes == physical => {
                    e.bytes += length;
                }
                // Never reported, and senseless if it were.
                Some(e) if e.logical + e.bytes > logical => {}
                _ => found.push(Extent { logical, physical, bytes: length }),
            }
        }
        let next = last.logical.saturating_add(last.length);
        if last.flags & EXTENT_LAST != 0 || next <= start {
            break;
        }
        start = next;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// `EXT4_SUPER_MAGIC`, `XFS_SUPER_MAGIC` and `BTRFS_SUPER_MAGIC` of `linux/magic.h`.
    const ALLOCATE_LATE: [i64; 3] = [0xef53, 0x5846_5342, 0x9123_683e];

    #[test]
    fn file_when_it_was_just_written_then_not_on_the_device_and_after_a_sync_perhaps() {
        // Beside this program, for `/tmp` may be in memory.
        let program = std::env::current_exe().unwrap();
        let mut file = tempfile::tempfile_in(program.parent().unwrap()).unwrap();
        file.write_all(&[7; 8192]).unwrap();
        let kind = rustix::fs::fstatfs(&file).unwrap().f_type;
        if ALLOCATE_LATE.contains(&(kind as i64)) {
            assert!(!may_be_on_device(file.as_fd()), "nobody has synced it");
        }
        file.sync_all().unwrap();
        assert!(may_be_on_device(file.as_fd()));
    }

    fn extent(logical: u64, physical: u64, bytes: u64) -> Extent {
        Extent { logical, physical, bytes }
    }

    #[test]
    fn extents_with_holes_when_completed_then_every_byte_has_a_place() {
        let found = [extent(100, 5000, 50), extent(200, 7000, 100)];
        let layout = complete(&found, 260);
        assert_eq!(layout.bytes(), 260);
        let places = [0, 100, 149, 150, 200, 259].map(|at| layout.locate(at).unwrap().0);
        assert_eq!(places, [5000, 5000, 5049, 5050, 7000, 7059]);
    }

    #[test]
    fn extents_when_none_or_beyond_the_file_then_one_piece() {
        assert_eq!(complete(&[], 10), Layout::contiguous(0, 10).unwrap());
        assert_eq!(complete(&[extent(0, 64, 4096)], 10), Layout::contiguous(64, 10).unwrap());
        assert_eq!(complete(&[], 0).bytes(), 1);
    }

    #[test]
    fn layout_of_a_real_file_then_it_covers_the_file() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; 3 << 20]).unwrap();
        let layout = layout_of(&file, 3 << 20);
        assert_eq!(layout.bytes(), 3 << 20);
        assert_ne!(layout.locate(1 << 20), layout.locate(2 << 20));
        // Where the file system says it at all.
        let place = place_of(file.as_fd(), 2 << 20);
        assert!(place.is_none_or(|place| place == layout.locate(2 << 20).unwrap().0));
        assert_eq!(place_of(file.as_fd(), 1 << 40), None, "beyond the end");
    }
}
