//! What is refused to a user who has his share of the open files is not begun.

mod rig;

use std::sync::Arc;

use forebay_node::{Context, Ino, NewFile, NodeError};
use forebay_store::decorators::Transparent;
use rig::{CONTEXT, MIB, Rig};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit, setrlimit};

const USER: Context = Context { uid: 1000, gid: 1000, ..CONTEXT };

#[test]
fn open_that_is_refused_as_the_share_is_used_up_then_nothing_is_emptied_or_made() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: Some(400), ..limit }).unwrap();
    let rig = Rig::new(&[16 * MIB], Arc::new(Transparent), |_| {});
    rig.put("file", b"what was there");
    rig.put("busy", b"x");
    let open = |name: &str, flags| rig.node().open(&USER, rig.ino(name), flags);
    let mut handles = Vec::new();
    let refused = loop {
        match open("busy", libc::O_RDONLY) {
            Ok(opened) => handles.push(opened.fh),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, NodeError::Posix(Errno::MFILE)), "{refused}");
    open("file", libc::O_WRONLY | libc::O_TRUNC).unwrap_err();
    assert_eq!(rig.get("file"), b"what was there");
    let flags = libc::O_RDWR;
    let make = || {
        rig.node().create_and_open(
            &USER,
            Ino::ROOT,
            b"new",
            NewFile { mode: 0o644, umask: 0 },
            flags,
        )
    };
    make().unwrap_err();
    assert!(rig.node().lookup(&CONTEXT, Ino::ROOT, b"new").unwrap().is_none());
    rig.node()
        .tmpfile_and_open(&USER, Ino::ROOT, NewFile { mode: 0o644, umask: 0 }, flags)
        .unwrap_err();
    rig.node().release(handles.pop().unwrap());
    rig.node().release(make().unwrap().1.fh);
    for fh in handles {
        rig.node().release(fh);
    }
    for number in 0..400 {
        rig.put(&number.to_string(), b"x");
    }
    let mut opened = (0..400).map(|number: u32| {
        rig.node().open(&CONTEXT, rig.ino(&number.to_string()), libc::O_RDWR).map(|open| open.fh)
    });
    let refused = opened.find_map(Result::err).expect("even root can't have more than there are");
    assert!(matches!(refused, NodeError::Posix(Errno::NFILE)), "{refused}");
    let taken = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(taken <= 310, "{taken} of 400: a quarter is kept for everything but open files");
}
