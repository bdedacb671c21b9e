//! Connections that break, and bytes that change.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::answers::read;
use super::service::{SLOW, bytes};
use super::{LONG, Stage, Way, eventually, quick_limits};
use crate::body::Body;
use crate::error::Error;
use crate::message::{CallId, Position, Write};
use crate::server::Server;

pub(super) fn cut(way: &Way) {
    let stage = Stage::set(way, quick_limits());
    let (client, switches) = stage.faulty_client(quick_limits());
    client.ping(LONG).unwrap();
    let running = || stage.service.waiting.load(Ordering::Acquire) == 1;
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| client.read(read(SLOW + 300, 0, 10), LONG));
        eventually("the read runs", running);
        switches.cut();
        let (_, got) = reading.join().unwrap().unwrap();
        assert!(got[..] == bytes(SLOW + 300, 0, 10)[..], "a read is made again");
    });
    eventually("the first read is over", || !running());
    std::thread::scope(|scope| {
        let write = Write {
            ino: SLOW + 300,
            epoch: 1,
            at: Position::End,
            sync: false,
            turn: CallId::default(),
        };
        let writing = scope.spawn(|| client.write(write, &Body::Bytes(vec![1]), LONG));
        eventually("the write runs", running);
        switches.cut();
        let lost = writing.join().unwrap();
        assert!(matches!(lost, Err(Error::Lost { sent: true, .. })), "{lost:?}");
    });
    assert_eq!(stage.service.writes.load(Ordering::Acquire), 1, "a write is not made again");
    client.ping(LONG).unwrap();
}

pub(super) fn reconnect(way: &Way) {
    let mut stage = Stage::set(way, quick_limits());
    let client = stage.client(quick_limits());
    client.ping(LONG).unwrap();
    stage.server.close(Duration::ZERO);
    // What was sent before the end was noticed may have been done, for all that is known.
    eventually("the end is noticed", || client.ping(Duration::from_millis(500)).is_err());
    let mut rested = 0;
    for _ in 0..20 {
        match client.ping(Duration::from_millis(500)) {
            Err(Error::Resting { .. }) => rested += 1,
            Err(error) => assert!(error.not_done(), "{error}"),
            Ok(_) => panic!("nobody is there"),
        }
    }
    assert!(rested > 10, "only {rested} of 20 calls found that it is no time to try");
    let service = stage.service.clone();
    let mut server = Server::start(service, super::identity(1), quick_limits()).unwrap();
    server.listen(&*way.transport, &stage.address).unwrap();
    eventually("it is reached again", || client.ping(LONG).is_ok());
}

pub(super) fn corruption(way: &Way) {
    let stage = Stage::set(way, quick_limits());
    let (client, switches) = stage.faulty_client(quick_limits());
    client.ping(LONG).unwrap();
    // In the head, in the fields, in the sum, in the body, in the trailer.
    for after in [0, 5, 9, 17, 20, 33, 41, 50, 900, 1049, 1058] {
        switches.change_after(after);
        let answer = client.read(read(4, 0, 1000), Duration::from_secs(3));
        if let Ok((_, got)) = &answer {
            assert!(got[..] == bytes(4, 0, 1000)[..], "changed byte {after} was believed");
        }
        switches.change_after(-1);
        eventually("it recovers", || client.read(read(4, 0, 1000), LONG).is_ok());
    }
    assert!(stage.service.reads.load(Ordering::Acquire) > 11 + 4, "some were made again");
}

pub(super) fn silence(way: &Way) {
    let stage = Stage::set(way, quick_limits());
    let (client, switches) = stage.faulty_client(quick_limits());
    client.ping(LONG).unwrap();
    switches.silence(true);
    let write = Write { ino: 1, epoch: 1, at: Position::End, sync: false, turn: CallId::default() };
    let answer = client.write(write, &Body::Bytes(vec![1]), LONG);
    // Before its time was over, that is.
    assert!(matches!(answer, Err(Error::Lost { sent: true, .. })), "{answer:?}");
    switches.silence(false);
    eventually("it recovers", || client.ping(LONG).is_ok());
    // A call that takes long is no silence.
    let (_, got) = client.read(read(SLOW + 2500, 0, 10), LONG).unwrap();
    assert!(got[..] == bytes(SLOW + 2500, 0, 10)[..]);
}
