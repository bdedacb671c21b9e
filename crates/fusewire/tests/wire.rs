//! Whole messages through a running session, against bytes written down by hand.

#[path = "common/kernel.rs"]
mod kernel;

use std::io::IoSlice;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fusewire::{
    Attr, DirectoryBuffer, End, Entry, Features, FileKind, Handler, Lock, OpenOutFlags, Opened,
    Operation, Options, Parts, Reply, Request, Running, Session, Statfs, Statx, Timestamp, opcode,
};
use kernel::{Bytes, Kernel, b, message, session};
use parking_lot::Mutex;

type Script = Box<dyn Fn(Request, Reply) + Send + Sync>;

/// Does with requests what a test says; counts the rest.
struct Scripted {
    script: Script,
    forgotten: Mutex<Vec<(u64, u64)>>,
    interrupts: AtomicU64,
    destroyed: AtomicU64,
}

impl Handler for Scripted {
    fn handle(&self, request: Request, reply: Reply) {
        (self.script)(request, reply);
    }
    fn forget(&self, node: u64, lookups: u64) {
        self.forgotten.lock().push((node, lookups));
    }
    fn interrupt(&self, _unique: u64) {
        self.interrupts.fetch_add(1, Ordering::SeqCst);
    }
    fn destroy(&self) {
        self.destroyed.fetch_add(1, Ordering::SeqCst);
    }
}

fn scripted(
    options: &Options,
    script: impl Fn(Request, Reply) + Send + Sync + 'static,
) -> (Kernel, Running, Arc<Scripted>) {
    let handler = Arc::new(Scripted {
        script: Box::new(script),
        forgotten: Mutex::default(),
        interrupts: AtomicU64::new(0),
        destroyed: AtomicU64::new(0),
    });
    let (kernel, running) = session(options, Arc::clone(&handler));
    (kernel, running, handler)
}

fn attr() -> Attr {
    Attr {
        ino: 0x1122,
        size: 5,
        blocks: 1,
        atime: Timestamp::new(100, 1),
        mtime: Timestamp::new(-200, 2),
        ctime: Timestamp::new(300, 3),
        mode: 0o100_644,
        nlink: 1,
        uid: 1000,
        gid: 100,
        rdev: 0,
        blksize: 4096,
        ..Attr::default()
    }
}

fn attr_bytes(bytes: Bytes) -> Bytes {
    let times = bytes.u64(0x1122).u64(5).u64(1).u64(100).u64(200_u64.wrapping_neg()).u64(300);
    let rest = times.u32(1).u32(2).u32(3).u32(0o100_644).u32(1).u32(1000).u32(100);
    rest.u32(0).u32(4096).u32(0)
}

fn entry() -> Entry {
    Entry {
        node: 7,
        generation: 3,
        attr: attr(),
        entry_valid: Duration::new(1, 5),
        attr_valid: Duration::new(2, 6),
    }
}

fn entry_bytes(bytes: Bytes) -> Bytes {
    attr_bytes(bytes.u64(7).u64(3).u64(1).u64(2).u32(5).u32(6))
}

/// Sends LOOKUP 2 and expects the answer that `send` makes to have exactly this body.
fn expect_answer(send: impl Fn(Reply) + Send + Sync + 'static, body: &Bytes) {
    let (kernel, running, _) = scripted(&Options::default(), move |_, reply| send(reply));
    kernel.send(&message(opcode::LOOKUP, 2, 1, &b().raw(b"x\0")));
    let expected = b().u32(16 + body.0.len() as u32).u32(0).u64(2).raw(&body.0);
    assert_eq!(kernel.receive(), expected.0);
    drop(kernel);
    assert_eq!(running.join().expect("clean end"), End::Unmounted);
}

#[test]
fn replies_about_inodes_when_sent_then_bytes_are_the_protocols() {
    expect_answer(|reply| reply.entry(&entry()), &entry_bytes(b()));
    let valid = Duration::new(9, 8);
    expect_answer(move |reply| reply.attr(&attr(), valid), &attr_bytes(b().u64(9).u32(8).u32(0)));
    let negative = b().u64(0).u64(0).u64(3).u64(0).u32(0).u32(0).zeros(88);
    expect_answer(|reply| reply.entry(&Entry::negative(Duration::from_secs(3))), &negative);
    let statx = Statx {
        mask: 0x7ff,
        mode: 0o100_600,
        ino: 4,
        btime: Timestamp::new(50, 60),
        rdev: (8, 1),
        ..Statx::default()
    };
    let head = b().u64(1).u32(0).u32(0).zeros(16);
    let body = head.u32(0x7ff).u32(0).u64(0).u32(0).u32(0).u32(0).u32(0o100_600);
    let body = body.u64(4).u64(0).u64(0).u64(0).zeros(16).u64(50).u32(60).u32(0).zeros(32);
    let body = body.u32(8).u32(1).zeros(8 + 14 * 8);
    expect_answer(move |reply| reply.statx(&statx, Duration::from_secs(1)), &body);
}

#[test]
fn replies_about_open_files_when_sent_then_bytes_are_the_protocols() {
    let plain = Opened { fh: 9, flags: OpenOutFlags::KEEP_CACHE, backing_id: None };
    expect_answer(move |reply| reply.open(&plain), &b().u64(9).u32(2).u32(0));
    let passing = Opened { fh: 9, flags: OpenOutFlags::NOFLUSH, backing_id: Some(4) };
    expect_answer(
        move |reply| reply.created(&entry(), &passing),
        &entry_bytes(b()).u64(9).u32(0xa0).u32(4),
    );
    expect_answer(|reply| reply.data(b"hello"), &b().raw(b"hello"));
    expect_answer(
        |reply| reply.data_vectored(&[IoSlice::new(b"ab"); 20]),
        &b().raw("ab".repeat(20).as_bytes()),
    );
    expect_answer(|reply| reply.written(4096), &b().u32(4096).u32(0));
    expect_answer(|reply| reply.copied(1 << 40), &b().u64(1 << 40));
    expect_answer(|reply| reply.lseek(77), &b().u64(77));
    expect_answer(|reply| reply.xattr_size(12), &b().u32(12).u32(0));
    expect_answer(|reply| reply.ioctl(-3, b"out"), &b().u32(-3_i32 as u32).zeros(12).raw(b"out"));
    expect_answer(|reply| reply.poll(5), &b().u32(5).u32(0));
    expect_answer(|reply| reply.bmap(6), &b().u64(6));
    expect_answer(Reply::ok, &b());
    let lock = Lock { start: 1, end: 2, kind: libc::F_RDLCK, pid: 3 };
    expect_answer(move |reply| reply.lock(&lock), &b().u64(1).u64(2).u32(0).u32(3));
    let statfs = Statfs {
        blocks: 1,
        bfree: 2,
        bavail: 3,
        files: 4,
        ffree: 5,
        bsize: 6,
        namelen: 7,
        frsize: 8,
    };
    expect_answer(
        move |reply| reply.statfs(&statfs),
        &b().u64(1).u64(2).u64(3).u64(4).u64(5).u32(6).u32(7).u32(8).zeros(28),
    );
}

#[test]
fn directories_when_listed_then_entries_are_padded_and_end_at_the_size() {
    let plain = |reply: Reply| {
        let mut list = DirectoryBuffer::new(reply.connection(), 64);
        assert!(list.add(11, 1, FileKind::Regular, b"abc"));
        assert!(list.add(12, 2, FileKind::Directory, b"12345678"));
        assert!(!list.add(13, 3, FileKind::Symlink, b"x"), "the size is used up");
        reply.directory(list);
    };
    let expected = b().u64(11).u64(1).u32(3).u32(8).raw(b"abc\0\0\0\0\0");
    expect_answer(plain, &expected.u64(12).u64(2).u32(8).u32(4).raw(b"12345678"));
    let plus = |reply: Reply| {
        let mut list = DirectoryBuffer::new(reply.connection(), 4096);
        assert!(list.is_empty());
        assert!(list.add_plus(&entry(), 5, b"n"));
        reply.directory(list);
    };
    let one = |b| entry_bytes(b).u64(0x1122).u64(5).u32(1).u32(8).raw(b"n\0\0\0\0\0\0\0");
    expect_answer(plus, &one(b()));
    let changed = |reply: Reply| {
        let mut list = DirectoryBuffer::new(reply.connection(), 4096);
        assert!(list.add_plus(&entry(), 5, b"n"));
        let at = list.end();
        assert!(list.add_plus(&Entry { node: 99, ..entry() }, 5, b"n"));
        list.set_entry(at, &entry());
        reply.directory(list);
    };
    expect_answer(changed, &one(one(b())));
}

#[test]
fn errors_when_answered_then_negative_and_within_the_protocol() {
    let cases: [(fn(Reply), i32); 5] = [
        (|reply| reply.error(libc::ENOENT), -libc::ENOENT),
        (|reply| reply.error(-libc::ENOENT), -libc::EIO),
        (|reply| reply.error(4000), -libc::EIO),
        (drop, -libc::EIO),
        (|_| panic!("a handler may panic"), -libc::EIO),
    ];
    for (answer, error) in cases {
        let (kernel, running, _) = scripted(&Options::default(), move |_, reply| answer(reply));
        kernel.send(&message(opcode::GETATTR, 6, 1, &b().zeros(16)));
        assert_eq!(kernel.receive(), b().u32(16).u32(error as u32).u64(6).0);
        assert_eq!(running.drain(Duration::from_secs(5)), 0);
    }
}

#[test]
fn headers_when_read_then_tell_the_caller() {
    let (kernel, _running, _) = scripted(&Options::default(), |request, reply| {
        let header = request.header();
        assert_eq!((header.unique, header.opcode, header.node), (8 | 1 << 63, opcode::UNLINK, 33));
        assert_eq!((header.uid, header.gid, header.pid), (1000, 100, 4242));
        assert!(request.is_resent());
        assert_eq!(request.operation(), Ok(Operation::Unlink { name: b"gone" }));
        reply.ok();
    });
    kernel.send(&message(opcode::UNLINK, 8 | 1 << 63, 33, &b().raw(b"gone\0")));
    assert_eq!(kernel.receive(), b().u32(16).u32(0).u64(8 | 1 << 63).0);
}

#[test]
fn forgets_when_sent_then_counted_and_never_answered() {
    let (kernel, running, handler) = scripted(&Options::default(), |_, reply| reply.ok());
    kernel.send(&message(opcode::FORGET, 0, 5, &b().u64(2)));
    let batch = b().u32(2).u32(0).u64(6).u64(1).u64(7).u64(9);
    kernel.send(&message(opcode::BATCH_FORGET, 0, 0, &batch));
    kernel.send(&message(opcode::BATCH_FORGET, 0, 0, &b().u32(9).u32(0).u64(6).u64(1)));
    kernel.send(&message(opcode::NOTIFY_REPLY, 99, 5, &b().zeros(40)));
    kernel.send(&message(opcode::DESTROY, 10, 0, &b()));
    assert_eq!(kernel.receive(), b().u32(16).u32(0).u64(10).0, "DESTROY alone is answered");
    running.park(Duration::from_secs(5)).expect("parks");
    assert!(kernel.is_silent());
    let mut forgotten = handler.forgotten.lock().clone();
    forgotten.sort_unstable();
    assert_eq!(forgotten, [(5, 2), (6, 1), (7, 9)]);
    running.resume();
    drop(kernel);
    running.join().expect("clean end");
    assert_eq!(handler.destroyed.load(Ordering::SeqCst), 1);
}

#[test]
fn interrupt_when_request_waits_then_flag_is_set_and_when_unknown_then_remembered_and_requeued() {
    let (kernel, _running, handler) = scripted(&Options::default(), |request, reply| {
        let token = request.interrupt_token();
        assert_eq!(token.is_set(), request.header().unique == 18, "before it came");
        std::thread::spawn(move || {
            let deadline = Instant::now() + Duration::from_secs(10);
            while !token.is_set() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(request.interrupted());
            reply.error(libc::EINTR);
        });
    });
    kernel.send(&message(opcode::INTERRUPT, 19, 0, &b().u64(18)));
    assert_eq!(kernel.receive(), b().u32(16).u32(-libc::EAGAIN as u32).u64(19).0);
    // The kernel need not send it again: of a request that comes by a ring it does not.
    kernel.send(&message(opcode::LOOKUP, 18, 1, &b().raw(b"slow\0")));
    assert_eq!(kernel.receive(), b().u32(16).u32(-libc::EINTR as u32).u64(18).0);
    kernel.send(&message(opcode::LOOKUP, 20, 1, &b().raw(b"slow\0")));
    kernel.send(&message(opcode::LOOKUP, 22, 1, &b().raw(b"slow\0")));
    std::thread::sleep(Duration::from_millis(20));
    kernel.send(&message(opcode::INTERRUPT, 21, 0, &b().u64(20)));
    assert_eq!(kernel.receive(), b().u32(16).u32(-libc::EINTR as u32).u64(20).0);
    assert_eq!(handler.interrupts.load(Ordering::SeqCst), 1);
    assert!(kernel.is_silent(), "the other request waits on");
    kernel.send(&message(opcode::INTERRUPT, 23, 0, &b().u64(22)));
    assert_eq!(kernel.receive(), b().u32(16).u32(-libc::EINTR as u32).u64(22).0);
}

#[test]
fn notifications_when_sent_then_bytes_are_the_protocols() {
    let (kernel, running, _) = scripted(&Options::default(), |_, reply| reply.ok());
    let connection = running.connection();
    let expect = |code: u32, body: Bytes| {
        let expected = b().u32(16 + body.0.len() as u32).u32(code).u64(0).raw(&body.0);
        assert_eq!(kernel.receive(), expected.0, "notification {code}");
    };
    connection.notify_poll(5).expect("sent");
    expect(1, b().u64(5));
    connection.notify_inval_inode(7, -1, 0).expect("sent");
    expect(2, b().u64(7).u64(u64::MAX).u64(0));
    connection.notify_inval_entry(1, b"name", true).expect("sent");
    expect(3, b().u64(1).u32(4).u32(1).raw(b"name\0"));
    connection.notify_store(7, 4096, b"data").expect("sent");
    expect(4, b().u64(7).u64(4096).u32(4).u32(0).raw(b"data"));
    connection.notify_retrieve(99, 7, 4096, 10).expect("sent");
    expect(5, b().u64(99).u64(7).u64(4096).u32(10).u32(0));
    connection.notify_delete(1, 7, b"name").expect("sent");
    expect(6, b().u64(1).u64(7).u32(4).u32(0).raw(b"name\0"));
    connection.notify_resend().expect("sent");
    expect(7, b());
    connection.notify_inc_epoch().expect("sent");
    expect(8, b());
    connection.notify_prune(&[7, 8]).expect("sent");
    expect(9, b().u32(2).u32(0).u64(0).u64(7).u64(8));
    assert!(connection.notify_inval_entry(1, b"", false).is_err());
    assert!(connection.notify_delete(1, 2, b"a\0b").is_err());
}

#[test]
fn large_requests_when_held_up_to_the_limit_then_readers_wait_and_can_still_park() {
    let held: Arc<Mutex<Vec<(Request, Reply)>>> = Arc::default();
    let keep = Arc::clone(&held);
    let options = Options { threads: 1, large_requests: 2, ..Options::default() };
    let (kernel, running, _) = scripted(&options, move |request, reply| {
        if let Ok(Operation::Write { data, .. }) = request.operation() {
            assert_eq!(data.as_ptr().align_offset(4096), 0, "for direct I/O");
        }
        keep.lock().push((request, reply));
    });
    let write = b().u64(1).u64(0).u32(8192).u32(0).u64(0).u32(0).u32(0).zeros(8192);
    for unique in 1..=5 {
        kernel.send(&message(opcode::WRITE, unique * 2, 1, &write));
    }
    let wait_for = |count: usize| {
        let deadline = Instant::now() + Duration::from_secs(10);
        while held.lock().len() < count && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(60));
        assert_eq!(held.lock().len(), count);
    };
    // Two held by the handler and the reader's own.
    wait_for(3);
    running.park(Duration::from_secs(5)).expect("parks while waiting for a buffer");
    running.resume();
    let (request, reply) = held.lock().remove(0);
    drop(request);
    reply.written(8192);
    assert_eq!(kernel.receive(), b().u32(24).u32(0).u64(2).u32(8192).u32(0).0);
    wait_for(3);
    held.lock().clear();
}

#[test]
fn park_when_a_handler_blocks_then_times_out_and_goes_on() {
    let options = Options { threads: 2, features: Features::NONE, ..Options::default() };
    let (kernel, running, _) = scripted(&options, |_, reply| {
        std::thread::sleep(Duration::from_millis(300));
        reply.ok();
    });
    kernel.send(&message(opcode::STATFS, 2, 1, &b()));
    std::thread::sleep(Duration::from_millis(50));
    let error = running.park(Duration::from_millis(20)).expect_err("a handler sleeps");
    assert!(matches!(error, fusewire::Error::ParkTimeout { busy: 1, .. }), "{error}");
    kernel.receive();
    kernel.send(&message(opcode::STATFS, 4, 1, &b()));
    assert_eq!(kernel.receive(), b().u32(16).u32(0).u64(4).0);
}

/// A device that fails now and then: a reader of a UDP socket hears once that nobody was there.
#[test]
fn reader_when_it_has_an_odd_error_then_the_connection_goes_on_and_hears_of_its_real_end() {
    let kernel = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let device = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let (at, here) = (kernel.local_addr().expect("bound"), device.local_addr().expect("bound"));
    device.connect(at).expect("connected");
    let handler = Arc::new(Scripted {
        script: Box::new(|_, reply| reply.error(libc::ENOENT)),
        forgotten: Mutex::default(),
        interrupts: AtomicU64::new(0),
        destroyed: AtomicU64::new(0),
    });
    let parts = Parts {
        device: device.into(),
        negotiated: kernel::negotiated(),
        mountpoint: None,
        rings: None,
    };
    let options = Options { threads: 2, ..Options::default() };
    let session = Session::from_parts(parts, &options, Arc::clone(&handler)).expect("adopted");
    let running = session.spawn().expect("readers start");
    drop(kernel);
    for _ in 0..4 {
        let _ = running.connection().notify_inval_inode(1, 0, 0);
        std::thread::sleep(Duration::from_millis(50));
    }
    let kernel = UdpSocket::bind(at).expect("the same address");
    kernel.connect(here).expect("connected");
    kernel.set_read_timeout(Some(Duration::from_millis(300))).expect("a limit");
    let mut answer = [0; 64];
    let answered = (1..100_u64).any(|number| {
        kernel.send(&message(opcode::LOOKUP, 2 * number, 1, &b().raw(b"x\0"))).expect("sent");
        kernel.recv(&mut answer).is_ok()
    });
    assert!(answered, "others read on");
    assert!(!running.connection().has_ended(), "one error of one reader is no end");
    assert_eq!(handler.destroyed.load(Ordering::SeqCst), 0);
    // An empty message is the end.
    for _ in 0..2 {
        kernel.send(&[]).expect("sent");
    }
    assert_eq!(running.join().expect("an orderly end"), End::Unmounted);
    assert!(running.connection().has_ended());
    assert_eq!(handler.destroyed.load(Ordering::SeqCst), 1);
}
