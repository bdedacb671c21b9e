//! Values read back, and what nodes of other versions wrote into them.

use super::*;
use proptest::prelude::*;

fn time() -> impl Strategy<Value = Timestamp> {
    (any::<i64>(), 0u32..1_000_000_000).prop_map(|(sec, nsec)| Timestamp { sec, nsec })
}

fn links() -> impl Strategy<Value = Links> {
    let link = (any::<u64>(), proptest::collection::vec(any::<u8>(), 1..20))
        .prop_map(|(parent, name)| Link::new(Ino(parent), name));
    proptest::collection::vec(link, 0..3).prop_map(|links| links.into_iter().collect())
}

prop_compose! {
    fn attr()(kind in 1u32..8, perm in 0u32..4096, uid: u32, gid: u32, nlink: u32, rdev: u64,
              size: u64, times in [time(), time(), time(), time()]) -> Attr {
        Attr { kind: kind_of(kind).unwrap(), perm, uid, gid, nlink, rdev, size,
               atime: times[0], mtime: times[1], ctime: times[2], btime: times[3] }
    }
}

prop_compose! {
    fn record()(ino: u64, attr in attr(), links in links(), backing_links in links(),
                same: bool, bits: u16, target: Option<Vec<u8>>, print: Option<(u64, u64)>,
                t in time(), numbers: (u64, u64, u32), queued: Option<u64>) -> Record {
        let bit = |n: u32| bits >> n & 1 == 1;
        Record {
            ino: Ino(ino), attr,
            backing: Backing {
                links: if same { links.clone() } else { backing_links },
                fingerprint: print.map(|(size, ino)| Fingerprint { size, mtime: t, ctime: t, ino, born: t, edition: bits }),
                pending: print.filter(|_| bit(7)).map(|(ino, size)| Fingerprint { size, mtime: t, ctime: t, ino, born: t, edition: bits }),
                attrs_differ: bit(0), xattrs_differ: bit(1), claimed: Links::new(),
            },
            apart: 0, links, target: target.map(Vec::into_boxed_slice),
            xattrs: [XattrState::Unknown, XattrState::None, XattrState::Some][bits as usize % 3],
            dirty: bit(2), dirtied: numbers.1.max(1), spilled: bit(3), listed: bit(4), pinned: bit(5), orphan: bit(6), copied: bit(9), orphan_of: bits, replaces: bit(10),
            owner: bit(8).then_some(Incarnation { node: bits, epoch: numbers.0 }),
            subdirs: numbers.2, change: numbers.0, queued: queued.map(Seq), hard_link: queued, revision: numbers.1,
            spread: [Spread::Whole, Spread::Splitting, Spread::Split][bits as usize / 3 % 3],
            later: Later { flags: numbers.2 & !flag::KNOWN, fields: if bit(11) { [0xc0, 0x3e, 7].into() } else { Box::default() } },
        }
    }
}

proptest! {
    #[test]
    fn record_when_encoded_and_decoded_is_the_same(record in record()) {
        let value = encode_record(&record);
        prop_assert!(value.starts_with(&record_prefix(record.revision)));
        prop_assert!(value.starts_with(&life_prefix(record.revision)));
        prop_assert_eq!(life_prefix(record.revision), &value[..3]);
        prop_assert_eq!(decode_record(record.ino, &value).unwrap(), record);
    }

    #[test]
    fn touched_when_encoded_and_decoded_is_the_same(times in proptest::option::of((time(), time())), nonce: u64) {
        let touched = Touched { times, nonce };
        prop_assert_eq!(decode_touched(Ino(2), &encode_touched(touched)).unwrap(), touched);
    }

    #[test]
    fn arbitrary_bytes_when_decoded_never_panic(bytes: Vec<u8>) {
        let _ = decode_record(Ino(2), &bytes);
        let _ = decode_entry(b"x", &bytes);
        let _ = decode_locks(Ino(2), &bytes);
        let _ = decode_copies(Ino(2), &bytes);
        let _ = decode_touched(Ino(2), &bytes);
    }

    #[test]
    fn locks_when_encoded_and_decoded_are_the_same(
        locks in prop::collection::vec(any::<(u32, u64, bool, u64, u64, bool, u32)>(), 0..9),
        tickets: Vec<u64>,
    ) {
        let lock = |&(node, owner, whole, first, last, exclusive, pid): &(_, _, _, _, _, _, _)| {
            let message = PbLock {
                incarnation: Some(PbIncarnation { node, epoch: owner }),
                owner, whole, first, last, exclusive, pid, ticket: None,
            };
            lock_in(&message)
        };
        let held: Vec<Lock> = locks.iter().map(lock).collect();
        let waiting = held.iter().zip(tickets);
        let waiting = waiting.map(|(&wanted, ticket)| Waiter { wanted, ticket }).collect();
        let locks = Locks::from_parts(held, waiting);
        prop_assert_eq!(decode_locks(Ino(2), &encode_locks(&locks)).unwrap(), locks);
    }
}

#[test]
fn newer_version_when_decoded_is_refused() {
    let mut value = encode_entry(Ino(7), FileKind::Directory);
    value[0] = VERSION + 1;
    let error = decode_entry(b"x", &value).unwrap_err();
    assert!(matches!(error, Error::NewerFormat { found: 2, known: 1, .. }), "{error}");
}
