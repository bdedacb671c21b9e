//! The steady state allocates nothing: the whole path from the device to the device is counted.

#[path = "common/kernel.rs"]
#[allow(dead_code)]
mod kernel;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use fusewire::{Attr, Entry, Handler, Operation, Options, Reply, Request, opcode};
use kernel::{b, message, session};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn serve(request: &Request, reply: Reply) {
    match request.operation() {
        Ok(Operation::Lookup { name }) if name == b"name" => reply.entry(&Entry::default()),
        Ok(Operation::Getattr { .. }) => reply.attr(&Attr::default(), Duration::ZERO),
        Ok(Operation::Read { size, .. }) => {
            let buffer = reply.connection().buffer();
            reply.data(&buffer[..size as usize]);
        }
        Ok(Operation::Write { data, .. }) => reply.written(data.len() as u32),
        _ => reply.error(libc::ENOSYS),
    }
}

/// Answers at once.
struct Direct;

impl Handler for Direct {
    fn handle(&self, request: Request, reply: Reply) {
        serve(&request, reply);
    }
    fn forget(&self, _: u64, _: u64) {}
}

/// Hands everything to another thread.
struct Offloading(mpsc::SyncSender<(Request, Reply)>);

impl Handler for Offloading {
    fn handle(&self, request: Request, reply: Reply) {
        self.0.send((request, reply)).expect("the worker lives");
    }
    fn forget(&self, _: u64, _: u64) {}
}

/// Allocations of 500 rounds of the four requests, after 100 to warm up.
fn allocations_per_500_rounds<H: Handler>(threads: usize, handler: Arc<H>) -> u64 {
    let (kernel, _running) = session(&Options { threads, ..Options::default() }, handler);
    let read = b().u64(1).u64(0).u32(65536).u32(0).u64(0).u32(0).u32(0);
    let write = b().u64(1).u64(0).u32(16384).u32(0).u64(0).u32(0).u32(0).zeros(16384);
    let requests = [
        message(opcode::LOOKUP, 2, 1, &b().raw(b"name\0")),
        message(opcode::GETATTR, 4, 1, &b().zeros(16)),
        message(opcode::READ, 6, 1, &read),
        message(opcode::WRITE, 8, 1, &write),
    ];
    let answers = [144, 120, 16 + 65536, 24];
    let mut buffer = vec![0; 1 << 18];
    let mut before = 0;
    for round in 0..600 {
        if round == 100 {
            before = ALLOCATIONS.load(Ordering::Relaxed);
        }
        for (request, answer) in requests.iter().zip(answers) {
            kernel.send(request);
            assert_eq!(kernel.receive_into(&mut buffer), answer);
        }
    }
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

// One test, so that nothing else runs in this process meanwhile.
#[test]
fn requests_when_served_in_the_steady_state_then_nothing_is_allocated() {
    assert_eq!(allocations_per_500_rounds(1, Arc::new(Direct)), 0, "served by the reader");
    let (sender, receiver) = mpsc::sync_channel(16);
    std::thread::spawn(move || {
        receiver.iter().for_each(|(request, reply)| serve(&request, reply));
    });
    let offloaded = allocations_per_500_rounds(2, Arc::new(Offloading(sender)));
    // The channel allocates when a thread first waits on it, and the pools grow when more
    // requests than ever before are held at once: not per request.
    assert!(offloaded <= 8, "{offloaded} allocations by 2000 requests served by another thread");
}
