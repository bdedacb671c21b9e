//! What others did in the backing store, as opens, listings and looks at attributes meet it: nobody is
//! given another's file, nor told that nothing is there where something can be made.

mod rig;

use std::sync::Arc;
use std::time::Duration;

use forebay_node::{Ino, NewFile, NodeError};
use forebay_store::decorators::Transparent;
use rig::{CONTEXT, MIB, Rig, noise};
use rustix::io::Errno;

const NEVER: Duration = Duration::from_secs(3600);

fn rig(attr_timeout: Duration) -> Rig {
    Rig::new(&[16 * MIB], Arc::new(Transparent), |config| config.attr_timeout = attr_timeout)
}

fn posix<T>(result: Result<T, NodeError>) -> Option<Errno> {
    match result {
        Err(NodeError::Posix(errno)) => Some(errno),
        Err(NodeError::Meta(forebay_meta::Error::Stale(_))) => Some(Errno::STALE),
        _ => None,
    }
}

/// The kernel asks for the permissions of what a name means, but not of what it has made.
#[test]
fn open_that_is_to_make_a_file_when_one_is_there_then_the_kernel_has_to_look_it_up() {
    let rig = rig(NEVER);
    std::fs::write(rig.backing().join("file"), b"theirs").unwrap();
    let create = |flags: i32| {
        let new = NewFile { mode: 0o644, umask: 0 };
        let flags = libc::O_RDWR | libc::O_CREAT | flags;
        rig.node().create_and_open(&CONTEXT, Ino::ROOT, b"file", new, flags)
    };
    assert_eq!(posix(create(libc::O_TRUNC)), Some(Errno::STALE));
    assert_eq!(posix(create(libc::O_EXCL)), Some(Errno::EXIST));
    assert_eq!(rig.plain("file"), b"theirs");
    assert_eq!(rig.get("file"), b"theirs", "nothing has emptied it");
}

/// `ENOENT` would be told to a program that wants to make the file.
#[test]
fn open_of_a_file_that_others_removed_then_the_kernel_has_to_look_the_name_up() {
    for (attr_timeout, size) in [(Duration::ZERO, 100), (NEVER, 100), (NEVER, MIB)] {
        let rig = rig(attr_timeout);
        std::fs::write(rig.backing().join("file"), noise(1, size)).unwrap();
        let ino = rig.ino("file");
        std::fs::remove_file(rig.backing().join("file")).unwrap();
        let opened = rig.node().open(&CONTEXT, ino, libc::O_RDWR);
        assert_eq!(posix(opened), Some(Errno::STALE), "{attr_timeout:?}, {size}");
        let found = rig.node().lookup(&CONTEXT, Ino::ROOT, b"file").unwrap();
        assert!(found.is_none(), "{attr_timeout:?}, {size}: found again");
    }
}
