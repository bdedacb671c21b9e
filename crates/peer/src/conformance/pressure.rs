//! Bounds, time-outs and ends.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::answers::read;
use super::service::SLOW;
use super::{LONG, Stage, Way, eventually, quick_limits};
use crate::body::Body;
use crate::error::Error;
use crate::limits::Limits;
use crate::message::{Fault, Request, WriteBack};

fn slow(milliseconds: u64) -> Request {
    Request::WriteBack(WriteBack { ino: SLOW + milliseconds, epoch: 1 })
}

pub(super) fn window(way: &Way) {
    let two = Limits { calls: 2, bytes: 1 << 20, ..quick_limits() };
    let stage = Stage::set(way, two);
    let client = stage.client(quick_limits());
    let deadline = Instant::now() + LONG;
    let first = client.start(&slow(300), &Body::Empty, deadline).unwrap();
    let second = client.start(&slow(300), &Body::Empty, deadline).unwrap();
    let soon = Instant::now() + Duration::from_millis(50);
    let third = client.start(&slow(0), &Body::Empty, soon);
    assert!(matches!(third, Err(Error::TimedOut { sent: false })));
    // With more time it has its turn.
    client.call(&slow(0), &Body::Empty, LONG).unwrap();
    first.wait().unwrap();
    second.wait().unwrap();
    let too_many = client.read(read(1, 0, (1 << 20) + 1), LONG);
    assert!(matches!(too_many, Err(Error::TooLarge { .. })), "{too_many:?}");
    // A caller's own bounds hold as well, whatever the other side would take.
    let modest = stage.client(Limits { calls: 1, bytes: 1000, ..quick_limits() });
    let _first = modest.start(&slow(300), &Body::Empty, Instant::now() + LONG).unwrap();
    let second = modest.start(&slow(0), &Body::Empty, Instant::now() + Duration::from_millis(20));
    assert!(matches!(second, Err(Error::TimedOut { sent: false })));
    assert!(matches!(modest.read(read(1, 0, 1001), LONG), Err(Error::TooLarge { .. })));
}

pub(super) fn overload(way: &Way) {
    let few = Limits { queue: 1, slow_threads: 1, ..quick_limits() };
    let stage = Stage::set(way, few);
    let client = stage.client(quick_limits());
    let deadline = Instant::now() + LONG;
    let calls: Vec<_> =
        (0..8).map(|_| client.start(&slow(150), &Body::Empty, deadline).unwrap()).collect();
    let (mut done, mut busy) = (0, 0);
    for call in calls {
        match call.wait() {
            Ok(_) => done += 1,
            Err(Error::Fault(Fault::Busy { .. })) => busy += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!((1..=3).contains(&done) && done + busy == 8, "{done} done, {busy} busy");
    client.call(&slow(0), &Body::Empty, LONG).unwrap();
}

pub(super) fn time_out(way: &Way) {
    let stage = Stage::set(way, quick_limits());
    let client = stage.client(quick_limits());
    client.ping(LONG).unwrap();
    let begun = Instant::now();
    let answer = client.call(&slow(9000), &Body::Empty, Duration::from_millis(100));
    assert!(matches!(answer, Err(Error::TimedOut { sent: true })), "{answer:?}");
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    eventually("the call is cancelled", || stage.service.cancelled.load(Ordering::Acquire) == 1);
    client.ping(LONG).unwrap();
    assert_eq!(stage.server.connections(), 1);
}

pub(super) fn dropped(way: &Way) {
    let stage = Stage::set(way, quick_limits());
    let client = stage.client(Limits { calls: 1, ..quick_limits() });
    for round in 1..=3 {
        let call = client.start(&slow(9000), &Body::Empty, Instant::now() + LONG).unwrap();
        eventually("the call runs", || stage.service.waiting.load(Ordering::Acquire) == 1);
        drop(call);
        let cancelled = || stage.service.cancelled.load(Ordering::Acquire) == round;
        eventually("the call is cancelled", cancelled);
    }
    client.ping(LONG).unwrap();
}

pub(super) fn vanished(way: &Way) {
    let stage = Stage::set(way, quick_limits());
    let (client, switches) = stage.faulty_client(quick_limits());
    let call = client.start(&slow(9000), &Body::Empty, Instant::now() + LONG).unwrap();
    eventually("the call runs", || stage.service.waiting.load(Ordering::Acquire) == 1);
    switches.cut();
    eventually("the call is cancelled", || stage.service.cancelled.load(Ordering::Acquire) == 1);
    eventually("its end is told", || stage.service.connection_ended.load(Ordering::Acquire) == 1);
    assert!(matches!(call.wait(), Err(Error::Lost { sent: true, .. })));
}

pub(super) fn clean_end(way: &Way) {
    let mut stage = Stage::set(way, quick_limits());
    let client = stage.client(quick_limits());
    let call = client.start(&slow(200), &Body::Empty, Instant::now() + LONG).unwrap();
    eventually("the call runs", || stage.service.waiting.load(Ordering::Acquire) == 1);
    let begun = Instant::now();
    stage.server.close(LONG);
    assert!(begun.elapsed() < LONG, "the end did not wait for more than the call");
    call.wait().unwrap();
    eventually("no connection is left", || stage.server.connections() == 0);
    assert!(client.ping(LONG).is_err());
    let again = stage.server.listen(&*way.transport, &way.address);
    assert!(matches!(again, Err(Error::Closed)));
}
