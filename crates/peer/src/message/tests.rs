use super::*;
use crate::codec::Encoder;
use crate::version::Versions;
use proptest::prelude::*;
use std::time::Duration;

fn turns() -> impl Strategy<Value = CallId> {
    let fields = (any::<u64>(), any::<u16>(), any::<u64>());
    fields.prop_map(|(session, slot, number)| CallId { session, slot, number })
}

fn requests() -> impl Strategy<Value = Request> {
    let n = any::<u64>;
    let object =
        (n(), n(), any::<u32>()).prop_map(|(ino, version, part)| ObjectId { ino, version, part });
    prop_oneof![
        (any::<u16>(), "[a-z]{0,40}", n(), n(), 1..u32::MAX, 1..u32::MAX).prop_map(
            |(version, cluster, node, epoch, calls, bytes)| Request::Hello(Hello {
                versions: Versions::only(version),
                cluster,
                node,
                epoch,
                calls,
                bytes,
                body: 9
            })
        ),
        Just(Request::Ping),
        (n(), any::<Option<u64>>(), n(), any::<u32>()).prop_map(|(ino, version, offset, len)| {
            Request::Read(Read { ino, version, offset, len })
        }),
        (n(), any::<Option<u64>>(), n())
            .prop_map(|(ino, version, from)| { Request::ReadMap(ReadMap { ino, version, from }) }),
        (n(), n()).prop_map(|(ino, epoch)| Request::WriteBack(WriteBack { ino, epoch })),
        (n(), n(), any::<Option<u64>>(), any::<bool>(), turns()).prop_map(
            |(ino, epoch, at, sync, turn)| {
                let at = at.map_or(Position::End, Position::At);
                Request::Write(Write { ino, epoch, at, sync, turn })
            }
        ),
        (n(), n(), n(), turns()).prop_map(|(ino, epoch, size, turn)| Request::Truncate(Truncate {
            ino,
            epoch,
            size,
            turn
        })),
        (n(), n(), any::<bool>()).prop_map(|(ino, epoch, data_only)| Request::Sync(Sync {
            ino,
            epoch,
            data_only
        })),
        (n(), n()).prop_map(|(ino, epoch)| {
            let kind =
                [RecallKind::Copy, RecallKind::Ownership, RecallKind::Lease][(ino % 3) as usize];
            Request::Recall(Recall { ino, epoch, kind })
        }),
        (n(), n(), n(), any::<u32>(), n(), n(), any::<bool>()).prop_map(
            |(ino, epoch, owner, pid, start, end, wait)| {
                use LockKind::{Exclusive, Shared, Test, Unlock};
                let kind = [Shared, Exclusive, Unlock, Test][(ino % 4) as usize];
                let space = [LockSpace::Posix, LockSpace::Flock][(epoch % 2) as usize];
                Request::Lock(LockOp { ino, epoch, owner, pid, start, end, kind, space, wait })
            }
        ),
        (object.clone(), n(), n(), any::<bool>()).prop_map(|(object, offset, total, last)| {
            Request::Put(Put { object, offset, total, last })
        }),
        object.prop_map(Request::Drop),
        any::<(u32, u32)>().prop_map(|(kind, answer)| Request::Other { kind, answer }),
    ]
}

proptest! {
    #[test]
    fn request_when_encoded_and_decoded_then_the_same(request in requests()) {
        let mut fields = Encoder::default();
        request.encode(&mut fields);
        prop_assert_eq!(Request::decode(request.code(), &fields.0).unwrap(), request.clone());
        // Neither too short nor too long ones are taken.
        fields.0.push(0);
        prop_assert!(Request::decode(request.code(), &fields.0).is_err());
        let all = fields.0.len() - 1;
        for short in 0..all {
            prop_assert!(Request::decode(request.code(), &fields.0[..short]).is_err());
        }
    }

    #[test]
    fn any_bytes_when_decoded_then_an_error_or_a_value(
        code in 0u16..20,
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        // No outcome is wrong but a panic, or memory taken by a claim.
        let _ = Request::decode(code, &bytes);
        let _ = Answer::decode(code, &bytes);
        let _ = Fault::decode(code, &bytes);
    }

    #[test]
    fn presence_when_too_long_for_an_answer_then_says_where_to_go_on(extra in 0usize..300) {
        let runs: Vec<_> = (0..(Presence::RUNS + extra) as u64).map(|at| (at * 10, 5)).collect();
        let whole = Presence { version: 1, size: 9, runs, next: None };
        let mut fields = Encoder::default();
        Answer::Presence(whole.clone()).encode(&mut fields);
        let Answer::Presence(got) = Answer::decode(5, &fields.0).unwrap() else { panic!() };
        prop_assert_eq!(&got.runs[..], &whole.runs[..Presence::RUNS]);
        let next = whole.runs.get(Presence::RUNS).map(|run| run.0);
        prop_assert_eq!(got.next, next);
    }
}

#[test]
fn fault_when_encoded_and_decoded_then_the_same() {
    let faults = [
        Fault::NotHere,
        Fault::Stale { version: u64::MAX },
        Fault::WrongEpoch { epoch: 3 },
        Fault::NotOwner { owner: None },
        Fault::NotOwner { owner: Some(0) },
        Fault::Busy { pause: Duration::from_millis(7) },
        Fault::NoSpace,
        Fault::Io { errno: 28 },
        Fault::Locked,
        Fault::Unsupported,
        Fault::Invalid("why".into()),
        Fault::Corrupt,
        Fault::Closing,
        Fault::Refused(String::new()),
        Fault::Cancelled,
    ];
    for fault in faults {
        let mut fields = Encoder::default();
        fault.encode(&mut fields);
        assert_eq!(Fault::decode(fault.code(), &fields.0).unwrap(), fault);
    }
}
