//! Which bytes of a file are on its device.

use std::os::fd::AsRawFd;

use crate::bytes::Bytes;

/// Extents that are looked at; of a file that has more, some are taken to be on the device.
const MOST: usize = 32;

/// `FS_IOC_FIEMAP` and its flags, from `linux/fiemap.h`.
const FIEMAP: libc::c_ulong = 0xc020_660b;
const LAST: u32 = 1;
const DELAYED: u32 = 4;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

#[repr(C)]
struct Request {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Extent; MOST],
}

/// Whether any byte of a file may be on its device. Of one that was written a moment ago and that nobody
/// has synced, file systems that allocate late (ext4, XFS, Btrfs) know that none is. True where the file
/// system does not say.
pub fn may_be_on_device(file: &dyn Bytes) -> bool {
    let Some(fd) = file.fd() else { return true };
    let mut request = Request {
        start: 0,
        length: u64::MAX,
        flags: 0,
        mapped: 0,
        count: MOST as u32,
        reserved: 0,
        extents: [Extent::default(); MOST],
    };
    // SAFETY: the descriptor is borrowed and hence open; the kernel reads and writes the request, which
    // has room for as many extents as it says, and lives until the call returns.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), FIEMAP, &raw mut request) };
    let Some(found) = request.extents.get(..request.mapped as usize).filter(|_| done == 0) else {
        return true;
    };
    let all_looked_at = found.last().is_none_or(|last| last.flags & LAST != 0);
    !all_looked_at || found.iter().any(|extent| extent.flags & DELAYED == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dir_tier::DirTier;
    use crate::header::Header;
    use crate::tier::Tier as _;

    /// `EXT4_SUPER_MAGIC`, `XFS_SUPER_MAGIC` and `BTRFS_SUPER_MAGIC` of `linux/magic.h`.
    const ALLOCATE_LATE: [i64; 3] = [0xef53, 0x5846_5342, 0x9123_683e];

    #[test]
    fn file_when_it_was_just_written_then_not_on_the_device_and_after_a_sync_perhaps() {
        // Beside this program, for `/tmp` may be in memory.
        let program = std::env::current_exe().unwrap();
        let dir = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
        let kind = rustix::fs::statfs(dir.path()).unwrap().f_type;
        let tier = DirTier::open(dir.path().join("tier")).unwrap();
        let object = tier.create(5, &Header::default()).unwrap();
        object.write_at(&[7; 8192], 0).unwrap();
        if ALLOCATE_LATE.contains(&(kind as i64)) {
            assert!(!may_be_on_device(&*object), "nobody has synced it");
        }
        object.sync(true).unwrap();
        assert!(may_be_on_device(&*object));
    }
}
