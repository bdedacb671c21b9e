//! Requests and their answers.

use std::io::IoSlice;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::service::{IN_FILE, SHORT_FILE, SLOW, VERSION, bytes};
use super::{LONG, Stage, Way, eventually, identity, quick_limits};
use crate::body::Body;
use crate::client::{Client, ClientConfig};
use crate::codec::Encoder;
use crate::error::Error;
use crate::limits::Limits;
use crate::message::{
    Answer, CallId, Fault, LockKind, LockOp, LockSpace, ObjectId, Position, Put, Read, ReadMap,
    Recall, RecallKind, Request, Sync, Truncate, Write, WriteBack,
};
use crate::server::Identity;
use crate::transport::TimeLimits;
use crate::version::Versions;
use crate::wire::{FrameSink, FrameSource, Head, Kind, Received};

pub(super) fn read(ino: u64, offset: u64, len: u32) -> Read {
    Read { ino, version: Some(VERSION), offset, len }
}

fn fault<T>(result: Result<T, Error>) -> Fault {
    match result {
        Err(Error::Fault(fault)) => fault,
        Err(other) => panic!("not a fault: {other}"),
        Ok(_) => panic!("it was done"),
    }
}

pub(super) fn every_request(way: &Way) {
    let stage = Stage::set(way, quick_limits());
    let client = stage.client(quick_limits());
    assert_eq!(client.ping(LONG).unwrap().free, 5);
    let (version, got) = client.read(read(3, 10, 20), LONG).unwrap();
    assert_eq!((version, &got[..]), (VERSION, &bytes(3, 10, 20)[..]));
    assert_eq!(fault(client.read(read(0, 0, 1), LONG)), Fault::NotHere);
    let other = Read { version: Some(1), ..read(3, 0, 1) };
    assert_eq!(fault(client.read(other, LONG)), Fault::Stale { version: VERSION });
    let map = client.read_map(ReadMap { ino: 3, version: None, from: 50 }, LONG).unwrap();
    assert_eq!((map.runs.len(), map.next), (3, Some(300)));
    assert!(map.covers(151, 9) && !map.covers(151, 10) && !map.covers(0, 1));
    client.write_back(WriteBack { ino: 3, epoch: 1 }, LONG).unwrap();
    let write = |at| Write { ino: 3, epoch: 1, at, sync: true, turn: CallId::default() };
    let body = Body::Bytes(b"hello".to_vec());
    let written = client.write(write(Position::At(2)), &body, LONG).unwrap();
    assert_eq!((written.offset, written.size), (2, 7));
    let written = client.write(write(Position::End), &body, LONG).unwrap();
    assert_eq!((written.offset, written.size), (7, 12));
    client.truncate(Truncate { ino: 3, epoch: 1, size: 1, turn: CallId::default() }, LONG).unwrap();
    let nobody =
        client.truncate(Truncate { ino: 4, epoch: 1, size: 1, turn: CallId::default() }, LONG);
    assert_eq!(fault(nobody), Fault::NotOwner { owner: Some(9) });
    client.sync(Sync { ino: 3, epoch: 1, data_only: true }, LONG).unwrap();
    let old = client.sync(Sync { ino: 3, epoch: 0, data_only: false }, LONG);
    assert_eq!(fault(old), Fault::WrongEpoch { epoch: 1 });
    for kind in [RecallKind::Copy, RecallKind::Ownership, RecallKind::Lease] {
        client.recall(Recall { ino: 3, epoch: 1, kind }, LONG).unwrap();
    }
    locks(&client);
    objects(&client, &stage);
    let echo = client.other(1, &body, 5, LONG).unwrap();
    assert_eq!(&echo[..], b"hello");
    assert!(matches!(fault(client.other(1, &body, 4, LONG)), Fault::Io { .. }));
    assert!(matches!(fault(client.other(2, &body, 5, LONG)), Fault::Io { .. }));
    assert_eq!(fault(client.other(3, &body, 5, LONG)), Fault::Unsupported);
    client.ping(LONG).unwrap();
}

fn locks(client: &Client) {
    let lock = |kind, space| LockOp {
        ino: 3,
        epoch: 1,
        owner: 77,
        pid: 5,
        start: 6,
        end: u64::MAX,
        kind,
        space,
        wait: false,
    };
    let held = client.lock(lock(LockKind::Test, LockSpace::Posix), LONG).unwrap().unwrap();
    assert_eq!((held.node, held.pid, held.start, held.end), (4, 5, 6, u64::MAX));
    assert_eq!(client.lock(lock(LockKind::Unlock, LockSpace::Flock), LONG).unwrap(), None);
    assert_eq!(fault(client.lock(lock(LockKind::Shared, LockSpace::Flock), LONG)), Fault::Locked);
}

fn objects(client: &Client, stage: &Stage) {
    let object = ObjectId { ino: 3, version: 1, part: 2 };
    for (offset, last) in [(0, false), (4, true)] {
        let put = Put { object, offset, total: 8, last };
        client.put(put, &Body::Bytes(vec![offset as u8 + 1; 4]), LONG).unwrap();
    }
    assert_eq!(stage.service.object(&object).unwrap(), [1, 1, 1, 1, 5, 5, 5, 5]);
    client.drop_object(object, LONG).unwrap();
    assert_eq!(stage.service.object(&object), None);
    client.drop_object(object, LONG).unwrap();
}

pub(super) fn bodies(way: &Way) {
    let stage = Stage::set(way, quick_limits());
    let client = stage.client(quick_limits());
    for len in [0, 1, 15, 4096, 65_535, 65_537, (1 << 20) + 1, 6 << 20] {
        let (_, got) = client.read(read(5, 1, len), LONG).unwrap();
        assert!(got[..] == bytes(5, 1, len)[..], "a read of {len}");
        let sent = bytes(6, 2, len);
        let echo = client.other(1, &Body::Bytes(sent.clone()), len, LONG).unwrap();
        assert!(echo[..] == sent[..], "an echo of {len}");
    }
    let too_long = Limits::default().body + 1;
    let answer = client.read(read(5, 0, too_long), LONG);
    assert!(matches!(answer, Err(Error::TooLarge { .. })), "{answer:?}");
    client.ping(LONG).unwrap();
}

pub(super) fn files(way: &Way) {
    let stage = Stage::set(way, quick_limits());
    let client = stage.client(quick_limits());
    for len in [0, 1, 4096, (1 << 20) + 3, 3 << 20] {
        let (_, got) = client.read(read(IN_FILE, 50, len), LONG).unwrap();
        assert!(got[..] == bytes(IN_FILE, 50, len)[..], "a file's {len} bytes");
    }
    for len in [2, 1 << 20, 3 << 20] {
        let answer = client.read(read(SHORT_FILE, 0, len), LONG);
        assert!(matches!(answer, Err(Error::Corrupt(_))), "{answer:?}");
    }
    client.ping(LONG).unwrap();
}

pub(super) fn many(way: &Way) {
    let stage = Stage::set(way, quick_limits());
    let client = stage.client(Limits { calls: 8, ..quick_limits() });
    std::thread::scope(|scope| {
        for caller in 1..=8_u64 {
            let client = &client;
            scope.spawn(move || {
                for round in 0..40_u64 {
                    let len = (round * 977 + caller) as u32 % 9000;
                    let (_, got) = client.read(read(caller, round, len), LONG).unwrap();
                    assert!(got[..] == bytes(caller, round, len)[..]);
                }
            });
        }
    });
    assert_eq!(stage.server.connections(), 1, "all of it went over one connection");
}

pub(super) fn overtaking(way: &Way) {
    let stage = Stage::set(way, quick_limits());
    let client = stage.client(quick_limits());
    let deadline = Instant::now() + LONG;
    let slow = Request::Read(read(SLOW + 300, 0, 10));
    let slow = client.start(&slow, &Body::Empty, deadline).unwrap();
    eventually("the slow call runs", || stage.service.waiting.load(Ordering::Acquire) == 1);
    client.read(read(1, 0, 10), LONG).unwrap();
    assert!(slow.wait_until(Instant::now()).is_none(), "it was overtaken");
    let (_, got) = slow.wait().unwrap();
    assert!(got[..] == bytes(SLOW + 300, 0, 10)[..]);
}

pub(super) fn strangers(way: &Way) {
    let stage = Stage::set(way, quick_limits());
    let client = |me: Identity, expected| {
        let config = ClientConfig { expected, limits: quick_limits(), ..ClientConfig::new(me) };
        Client::new(stage.transport.clone(), stage.address.clone(), config)
    };
    let elsewhere = Identity { cluster: "elsewhere".into(), ..identity(2) };
    let fenced = Identity { epoch: 0, ..identity(2) };
    for (me, expected) in [(elsewhere, None), (fenced, None), (identity(2), Some(5))] {
        let answer = client(me, expected).ping(LONG);
        assert!(matches!(answer, Err(Error::Refused { .. })), "{answer:?}");
    }
    client(identity(2), Some(1)).ping(LONG).unwrap();
}

pub(super) fn versions(way: &Way) {
    let now = Versions::default().newest;
    let old = Versions::only(now);
    let new = Versions { oldest: now, newest: now + 1 };
    let only_new = Versions::only(now + 1);
    let of = |node, versions| Identity { versions, ..identity(node) };
    for (asks, answers, outcome) in [
        (old, old, Ok(now)),
        (old, new, Ok(now)),
        (new, old, Ok(now)),
        (new, new, Ok(now + 1)),
        (only_new, new, Ok(now + 1)),
        (old, only_new, Err("upgrade node 2")),
        (only_new, old, Err("upgrade node 1")),
    ] {
        let stage = Stage::set_as(way, quick_limits(), of(1, answers));
        let config = ClientConfig { limits: quick_limits(), ..ClientConfig::new(of(2, asks)) };
        let client = Client::new(stage.transport.clone(), stage.address.clone(), config);
        match (client.read(read(1, 0, 10), LONG), outcome) {
            (Ok((_, got)), Ok(version)) => {
                assert!(got[..] == bytes(1, 0, 10)[..]);
                let spoken = stage.service.version.load(Ordering::Acquire);
                assert_eq!(spoken, u64::from(version), "{asks:?} asks {answers:?}");
            }
            (Err(Error::Refused { why, .. }), Err(named)) => {
                assert!(why.ends_with(named), "{asks:?} asks {answers:?}: {why}");
            }
            (other, _) => panic!("{asks:?} asks {answers:?}: {other:?}"),
        }
    }
}

/// As programs said hello that knew no range of versions: nothing in the head.
pub(super) fn single_version(way: &Way) {
    let (now, limits) = (Versions::default().newest, quick_limits());
    let me = Identity { versions: Versions { oldest: now, newest: now + 3 }, ..identity(1) };
    let stage = Stage::set_as(way, quick_limits(), me);
    let timeout = TimeLimits { connect: LONG, handshake: LONG, stall: Duration::from_secs(2) };
    let ask = |version| {
        let hello = Identity { versions: Versions::only(version), ..identity(2) }.hello(&limits);
        let mut fields = Encoder::default();
        hello.encode(&mut fields);
        let wire = stage.transport.connect(&stage.address, timeout).unwrap();
        let mut sink = FrameSink::new(wire.sink, true);
        let head = Head { kind: Kind::Request, code: 1, id: 0, body: 0, timeout: LONG, newest: 0 };
        sink.send(head, &fields.0, &Body::Empty).unwrap();
        let (mut source, mut fields) = (FrameSource::new(wire.source, 0), Vec::new());
        source.set_timeout(LONG).unwrap();
        let Received::Frame(head) = source.head(&mut fields).unwrap() else {
            panic!("no answer");
        };
        wire.closer.close();
        (head, fields)
    };
    let (head, fields) = ask(now);
    // What such a program reads: its own version, and not a byte more than it expects.
    match Answer::decode(head.code, &fields) {
        Ok(Answer::Hello(them)) if head.kind == Kind::Answer => {
            assert_eq!(them.versions, Versions::only(now));
            assert_eq!(head.newest, now + 3);
        }
        other => panic!("{other:?}"),
    }
    let (head, fields) = ask(now - 1);
    match Fault::decode(head.code, &fields) {
        Ok(Fault::Refused(why)) => assert!(why.ends_with("upgrade node 2"), "{why}"),
        other => panic!("{:?}: {other:?}", head.kind),
    }
}

pub(super) fn nonsense(way: &Way) {
    let stage = Stage::set(way, quick_limits());
    let timeout = TimeLimits { connect: LONG, handshake: LONG, stall: Duration::from_millis(400) };
    let huge = [b"FBP\x01\x01\0\x01\0".as_slice(), &[0xff; 24]].concat();
    let unknown = [b"FBP\x01\x63\0\x01\0".as_slice(), &[0; 24]].concat();
    let unsummed = [b"FBP\x01\x01\0\x02\0".as_slice(), &[0; 32]].concat();
    for nonsense in [b"GET / HTTP/1.1\r\n\r\n".repeat(4), huge, unknown, unsummed] {
        let mut wire = stage.transport.connect(&stage.address, timeout).unwrap();
        wire.sink.send(&mut [IoSlice::new(&nonsense)]).unwrap();
        wire.sink.end_frame().unwrap();
        let mut answer = [0; 64];
        wire.source.set_timeout(LONG).unwrap();
        let answered = wire.source.read(&mut answer);
        assert!(matches!(answered, Ok(0) | Err(_)), "{answered:?}");
    }
    stage.client(quick_limits()).ping(LONG).unwrap();
}
