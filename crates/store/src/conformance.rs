//! Suites that every [`crate::Tier`] and [`crate::BackingStore`] must pass. They panic where one does not.
//!
//! They are part of the library so that other implementations can run them from their tests.

mod backing;
mod tier;

pub use backing::backing;
pub use tier::tier;

use crate::{AllocateMode, Bytes, ErrorClass, Result, Timestamp};

/// The error class of a result that must have failed.
fn class_of<T>(result: Result<T>) -> ErrorClass {
    match result {
        Ok(_) => panic!("the call succeeded"),
        Err(e) => e.class(),
    }
}

/// What holds for every file of bytes. `file` is empty and open for writing.
fn bytes(file: &dyn Bytes) {
    let ok = "a plain operation on a new file works";
    let mut buffer = [9; 8];
    assert_eq!(file.read_at(&mut buffer, 0).expect(ok), 0);
    assert_eq!(file.write_at(b"hello", 3).expect(ok), 5);
    assert_eq!(file.read_at(&mut buffer, 0).expect(ok), 8);
    assert_eq!(&buffer, b"\0\0\0hello");
    assert_eq!(file.read_at(&mut buffer, 6).expect(ok), 2);
    assert_eq!(file.len().expect(ok), 8);
    file.set_len(5).expect(ok);
    file.set_len(8).expect(ok);
    assert_eq!(file.read_at(&mut buffer, 0).expect(ok), 8);
    assert_eq!(&buffer, b"\0\0\0he\0\0\0");
    file.sync(true).expect(ok);
    file.sync(false).expect(ok);

    let far = 8 << 20;
    file.set_len(0).expect(ok);
    file.write_at(&[7; 4096], far).expect(ok);
    assert_eq!(file.seek_data(0).expect(ok), Some(far));
    assert_eq!(file.seek_hole(far).expect(ok), Some(far + 4096));
    assert_eq!(file.seek_data(far + 4096).expect(ok), None);
    file.sync(false).expect(ok);
    assert!(file.allocated_bytes().expect(ok) < far);
    file.punch(far, 4096).expect(ok);
    assert_eq!(file.len().expect(ok), far + 4096);
    assert_eq!(file.seek_data(0).expect(ok), None);

    file.allocate(far, 8192, AllocateMode::KeepSize).expect(ok);
    assert_eq!(file.len().expect(ok), far + 4096);
    file.allocate(far, 8192, AllocateMode::Extend).expect(ok);
    assert_eq!(file.len().expect(ok), far + 8192);
    assert!(file.allocated_bytes().expect(ok) >= 8192);
    file.write_at(&[5; 8192], far).expect(ok);
    file.allocate(far + 1, 4096, AllocateMode::Zero).expect(ok);
    let mut two = [1; 4098];
    file.read_at(&mut two, far).expect(ok);
    assert_eq!((two[0], two[4097]), (5, 5));
    assert!(two[1..4097].iter().all(|byte| *byte == 0));

    let times = [Timestamp::new(1_000_000, 3), Timestamp::new(2, 999)];
    file.set_times(Some(times[0]), Some(times[1])).expect(ok);
    file.set_times(None, None).expect(ok);
    let stat = file.stat().expect(ok);
    assert_eq!([stat.atime, stat.mtime], times);
}
