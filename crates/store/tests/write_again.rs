//! A file is written to its device once more: what the kernel has to write then.

use std::os::fd::AsRawFd;

use forebay_store::tier::DirTier;
use forebay_store::{Bytes, Header, Tier, write_again};

/// Pages of a file that the kernel has still to write; `None` before Linux 6.5.
fn changed_pages(file: &dyn Bytes) -> Option<u64> {
    const CACHESTAT: libc::c_long = 451;
    let (range, mut found) = ([0_u64; 2], [0_u64; 5]);
    let fd = file.fd().expect("it is a file").as_raw_fd();
    // SAFETY: the kernel reads two numbers and writes five, as <linux/mman.h> says.
    let result = unsafe { libc::syscall(CACHESTAT, fd, range.as_ptr(), found.as_mut_ptr(), 0_u32) };
    // Cached, dirty, being written, evicted, recently evicted.
    (result == 0).then_some(found[1])
}

#[test]
fn file_when_written_again_then_all_its_pages_are_to_be_written_and_no_byte_has_changed() {
    let dir = tempfile::tempdir().unwrap();
    let tier = DirTier::open(dir.path()).unwrap();
    let object = tier.create(1, &Header { ino: 1, ..Header::default() }).unwrap();
    let bytes: Vec<u8> = (0..80_000_u32).map(|at| at as u8).collect();
    object.write_at(&bytes, 0).unwrap();
    object.write_at(b"tail", 100 << 20).unwrap();
    object.sync(false).unwrap();
    if !tier.tells_stores() || changed_pages(&*object).is_none() {
        eprintln!("skipped: this kernel or file system does not tell what it has to write");
        return;
    }
    assert_eq!(changed_pages(&*object), Some(0), "all was written");
    let before = object.stat().unwrap();
    write_again(&*object, false).unwrap();
    let data = (bytes.len() as u64).div_ceil(4096) + 1;
    let changed = changed_pages(&*object).unwrap();
    assert!(changed >= data, "{changed} of {data} pages");
    let after = object.stat().unwrap();
    assert_eq!(after.size, before.size);
    assert!(after.blocks < 1 << 12, "a hole was filled");
    let mut found = vec![0; bytes.len()];
    object.read_at(&mut found, 0).unwrap();
    assert_eq!(found, bytes);
    object.sync(false).unwrap();
    assert_eq!(changed_pages(&*object), Some(0), "all was written once more");
}
