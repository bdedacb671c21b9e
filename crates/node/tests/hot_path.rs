//! The hot path makes no allocation: reads and writes of an open file whose bytes are on a tier.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use forebay_node::{AtOnce, Context, Ino, NewFile, Node, NodeConfig, TierConfig};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is handed to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A program's request on a thread that may not wait.
const PROGRAM: Context = Context { uid: 1000, gid: 1000, pid: 0, waiter: Some(&AtOnce) };

#[test]
fn warm_reads_and_writes_allocate_nothing() {
    assert_eq!(allocations_of_warm_accesses(false), 0);
}

#[test]
fn warm_reads_and_writes_when_recorded_then_allocate_nothing() {
    assert_eq!(allocations_of_warm_accesses(true), 0);
}

/// Allocations of 2,000 warm operations.
fn allocations_of_warm_accesses(recorded: bool) -> u64 {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a temporary directory");
    let backing = dir.path().join("backing");
    std::fs::create_dir(&backing).expect("backing");
    let tier = TierConfig { dir: dir.path().join("tier"), size_bytes: 64 << 20 };
    let node = Node::start(NodeConfig::new(backing, vec![tier])).expect("node");
    if recorded {
        node.start_patterns().expect("nobody records yet");
    }
    let daemon = Context::DAEMON;
    let (_, opened) = node
        .create_and_open(
            &daemon,
            Ino::ROOT,
            b"file",
            NewFile { mode: 0o644, umask: 0 },
            libc::O_RDWR,
        )
        .expect("create");
    let block = vec![7; 64 << 10];
    let mut buffer = vec![0; 64 << 10];
    for index in 0..32 {
        node.write(&daemon, opened.fh, index * block.len() as u64, &block).expect("fill");
    }
    // Once more than counted, for what is made at the first use on this thread.
    let mut counted = 0;
    for round in 0..2 {
        let before = COUNT.with(Cell::get);
        for index in 0..1000 {
            let offset = (index % 32) * block.len() as u64;
            let read = node.read(&PROGRAM, opened.fh, offset, &mut buffer).expect("read");
            assert_eq!(read, buffer.len());
            let written = node.write(&PROGRAM, opened.fh, offset, &block).expect("write");
            assert_eq!(written, block.len());
        }
        if round == 1 {
            counted = COUNT.with(Cell::get) - before;
        }
    }
    assert_eq!(buffer, block);
    if recorded {
        let patterns = node.patterns().expect("recorded");
        let seen = patterns.here + patterns.elsewhere + patterns.lost;
        // What is in the handle has not been told yet.
        assert!((2000..=4032).contains(&seen), "{patterns:?}");
    }
    node.release(opened.fh);
    node.stop(Duration::from_secs(10));
    counted
}
