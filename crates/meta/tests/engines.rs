//! The conformance suite of engines: every engine passes the same tests.

mod servers;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_meta::{
    Compare, Embedded, EmbeddedOptions, Engine, EngineError, Expect, Key, Memory, MiniTransaction,
    Outcome, RedisOptions, Spanning, Write,
};
use proptest::prelude::*;
use servers::Servers;

/// Every engine, where a transaction may be refused for spanning partitions.
fn each_engine(test: impl Fn(Arc<dyn Engine>)) {
    test(Arc::new(Memory::new()));
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let options = EmbeddedOptions { write_buffer_mib: 1, ..EmbeddedOptions::default() };
    test(Arc::new(Embedded::open(&directory.path().join("meta"), &options).unwrap()));
    each_partitioned(&test);
    each_partitioned(|engine| test(spanning(engine)));
}

/// Every engine that commits over several partitions.
fn each_spanning(test: impl Fn(Arc<dyn Engine>)) {
    each_engine(|engine| {
        if engine.spans_partitions() {
            test(engine);
        }
    });
}

fn each_partitioned(test: impl Fn(Arc<dyn Engine>)) {
    test(Arc::new(Memory::partitioned()));
    if servers::installed() {
        let single = Servers::single(&[]);
        test(Arc::new(single.open("conformance", &RedisOptions::default())));
        let cluster = Servers::cluster(3, 0, &[]);
        test(Arc::new(cluster.open("conformance", &RedisOptions::default())));
        test(servers::leased(&cluster, "leased", &servers::eager()));
    }
}

fn spanning(engine: Arc<dyn Engine>) -> Arc<dyn Engine> {
    Arc::new(Spanning::new(engine, Duration::from_millis(200)).unwrap())
}

fn key(partition: u16, bytes: &str) -> Key {
    Key::new(partition, bytes.as_bytes())
}

fn put(key: &Key, value: &[u8]) -> MiniTransaction {
    MiniTransaction { write: vec![Write::Put(key.clone(), value.to_vec())], ..Default::default() }
}

fn read(engine: &dyn Engine, key: &Key) -> Option<Vec<u8>> {
    match engine.execute(&MiniTransaction::reading(vec![key.clone()])).unwrap() {
        Outcome::Committed(mut values) => values.pop().unwrap(),
        Outcome::Conflict => panic!("a read has no conflicts"),
    }
}

#[test]
fn comparison_when_it_fails_then_nothing_is_written() {
    each_engine(|engine| {
        let (a, b) = (key(1, "a"), key(1, "b"));
        engine.execute(&put(&a, b"one two")).unwrap();
        let cases = [
            (Expect::Absent, false),
            (Expect::Present, true),
            (Expect::Value(b"one".to_vec()), false),
            (Expect::Value(b"one two".to_vec()), true),
            (Expect::Prefix(b"one".to_vec()), true),
            (Expect::Prefix(b"two".to_vec()), false),
        ];
        for (expect, holds) in cases {
            let mut transaction = put(&b, b"written");
            transaction.compare.push(Compare { key: a.clone(), expect: expect.clone() });
            let outcome = engine.execute(&transaction).unwrap();
            assert_eq!(outcome != Outcome::Conflict, holds, "{expect:?}");
            assert_eq!(read(&*engine, &b).is_some(), holds, "{expect:?}");
            let undo =
                MiniTransaction { write: vec![Write::Delete(b.clone())], ..Default::default() };
            engine.execute(&undo).unwrap();
            // A transaction that only compares gives the same answer.
            let only = MiniTransaction {
                compare: vec![Compare { key: a.clone(), expect }],
                ..Default::default()
            };
            assert_eq!(engine.execute(&only).unwrap() != Outcome::Conflict, holds);
        }
    });
}

#[test]
fn reads_of_a_writing_transaction_then_show_the_state_before_it() {
    each_engine(|engine| {
        let a = key(3, "a");
        engine.execute(&put(&a, b"old")).unwrap();
        let mut transaction = put(&a, b"new");
        transaction.read = vec![a.clone(), key(3, "none")];
        let outcome = engine.execute(&transaction).unwrap();
        assert_eq!(outcome, Outcome::Committed(vec![Some(b"old".to_vec()), None]));
        assert_eq!(read(&*engine, &a), Some(b"new".to_vec()));
    });
}

#[test]
fn scan_then_keeps_to_partition_prefix_cursor_and_limit() {
    each_engine(|engine| {
        for (partition, name) in
            [(1, "a1"), (1, "a2"), (1, "a3"), (1, "b1"), (2, "a1"), (0, "a9"), (1, "a")]
        {
            engine.execute(&put(&key(partition, name), name.as_bytes())).unwrap();
        }
        let all = engine.scan(1, b"a", None, 10).unwrap();
        let names: Vec<&[u8]> = all.items.iter().map(|(key, _)| key.as_slice()).collect();
        assert_eq!(names, [&b"a"[..], b"a1", b"a2", b"a3"]);
        assert!(!all.more);
        let page = engine.scan(1, b"a", Some(b"a1"), 1).unwrap();
        assert_eq!(page.items, [(b"a2".to_vec(), b"a2".to_vec())]);
        assert!(page.more);
        assert!(engine.scan(1, b"a", Some(b"a3"), 1).unwrap().items.is_empty());
        assert_eq!(engine.scan(1, b"", None, 100).unwrap().items.len(), 5);
        let high = Key::new(1, &[0xff, 0xff, 1]);
        engine.execute(&put(&high, b"high")).unwrap();
        assert_eq!(engine.scan(1, &[0xff, 0xff], None, 9).unwrap().items.len(), 1);
    });
}

#[test]
fn sweep_then_visits_every_key_once_in_order() {
    each_engine(|engine| {
        let keys: Vec<Key> = (0..100u16).map(|n| key(n * 601, &format!("{n}"))).collect();
        for key in &keys {
            engine.execute(&put(key, b"x")).unwrap();
        }
        let mut seen = Vec::new();
        while let step @ [_, ..] = engine.sweep(seen.last(), 7).unwrap().as_slice() {
            seen.extend(step.iter().map(|(key, _)| key.clone()));
        }
        assert_eq!(seen, keys);
    });
}

/// Counters over two partitions that always must add up, raised by compare-and-swap from several
/// threads while readers watch: a history is linearizable only if no increment is lost, and no
/// reader sees one counter without the other or time going backwards.
#[test]
fn concurrent_increments_then_none_is_lost_and_no_reader_sees_half() {
    each_spanning(|engine| {
        let (a, b) = (key(1, "counter"), key(9, "counter"));
        let number = |value: &Option<Vec<u8>>| -> u64 {
            value.as_ref().map_or(0, |v| u64::from_be_bytes(v.as_slice().try_into().unwrap()))
        };
        let both = MiniTransaction::reading(vec![a.clone(), b.clone()]);
        let look = |engine: &dyn Engine| match engine.execute(&both).unwrap() {
            Outcome::Committed(values) => (number(&values[0]), number(&values[1])),
            Outcome::Conflict => panic!("a read has no conflicts"),
        };
        let done = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut mine = 0;
                    while mine < 200 {
                        let (old, _) = look(&*engine);
                        let expect = match old {
                            0 => Expect::Absent,
                            old => Expect::Value(old.to_be_bytes().to_vec()),
                        };
                        let value = (old + 1).to_be_bytes().to_vec();
                        let transaction = MiniTransaction {
                            compare: vec![Compare { key: a.clone(), expect }],
                            read: vec![],
                            write: vec![
                                Write::Put(a.clone(), value.clone()),
                                Write::Put(b.clone(), value),
                            ],
                        };
                        if engine.execute(&transaction).unwrap() != Outcome::Conflict {
                            mine += 1;
                            assert!(look(&*engine).0 > old, "an own write is not seen");
                        }
                    }
                    done.fetch_add(1, Ordering::SeqCst);
                });
            }
            scope.spawn(|| {
                let mut last = 0;
                while done.load(Ordering::SeqCst) < 3 {
                    let (x, y) = look(&*engine);
                    assert_eq!(x, y, "half a transaction is visible");
                    assert!(x >= last, "time goes backwards");
                    last = x;
                }
            });
        });
        assert_eq!(look(&*engine), (600, 600));
    });
}

/// A scan is of one instant: of pairs of keys always changed together, it never sees one alone.
#[test]
fn scan_beside_writers_then_shows_one_instant() {
    each_engine(|engine| {
        let stop = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..400 {
                    let value = vec![n as u8];
                    let keys = [key(5, "p1"), key(5, "p2")];
                    let write = match n % 3 {
                        2 => keys.map(Write::Delete),
                        _ => keys.map(|key| Write::Put(key, value.clone())),
                    };
                    let transaction =
                        MiniTransaction { write: write.to_vec(), ..Default::default() };
                    engine.execute(&transaction).unwrap();
                }
                stop.store(1, Ordering::SeqCst);
            });
            while stop.load(Ordering::SeqCst) == 0 {
                let page = engine.scan(5, b"p", None, 10).unwrap();
                let values: HashSet<Vec<u8>> = page.items.iter().map(|(_, v)| v.clone()).collect();
                assert!(page.items.len() != 1 && values.len() <= 1, "{page:?}");
            }
        });
    });
}

#[test]
fn transaction_over_partitions_when_the_engine_has_none_such_then_it_is_refused() {
    each_partitioned(|engine| {
        let mut transaction = put(&key(1, "a"), b"x");
        transaction.read.push(key(2, "a"));
        let refused = engine.execute(&transaction);
        assert!(matches!(refused, Err(EngineError::SpansPartitions)), "{refused:?}");
        assert_eq!(read(&*engine, &key(1, "a")), None);
    });
}

#[test]
fn values_of_any_bytes_then_come_back_as_they_were() {
    each_engine(|engine| {
        let all: Vec<u8> = (0..=255).collect();
        let large = vec![b'x'; 1 << 20];
        for value in [&b""[..], b"OK", b"\r\n", b"0", &all, &large] {
            let key = Key::new(7, &[&b"k"[..], &all[..value.len().min(200)]].concat());
            engine.execute(&put(&key, value)).unwrap();
            assert_eq!(read(&*engine, &key).as_deref(), Some(value));
            let page = engine.scan(7, key.bytes(), None, 1).unwrap();
            assert_eq!(page.items[0], (key.bytes().to_vec(), value.to_vec()));
        }
        // More keys than a server-side function can take at once.
        let keys: Vec<Key> = (0..3000).map(|n| key(8, &format!("n{n:05}"))).collect();
        let write = keys.iter().map(|key| Write::Put(key.clone(), key.bytes().to_vec())).collect();
        engine.execute(&MiniTransaction { write, ..Default::default() }).unwrap();
        let values = keys.iter().map(|key| Some(key.bytes().to_vec())).collect();
        let found = engine.execute(&MiniTransaction::reading(keys)).unwrap();
        assert_eq!(found, Outcome::Committed(values));
        assert_eq!(engine.scan(8, b"n", None, usize::MAX).unwrap().items.len(), 3000);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn embedded_when_given_the_same_transactions_as_memory_answers_the_same(
        steps in proptest::collection::vec((0u16..2, 0u8..6, 0u8..6, 0u8..4), 1..80)
    ) {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let options = EmbeddedOptions { workers: 1, ..EmbeddedOptions::default() };
        let embedded = Embedded::open(&directory.path().join("meta"), &options).unwrap();
        let memory = Memory::new();
        for (partition, a, b, what) in steps {
            let (a, b) = (Key::new(partition, &[a]), Key::new(partition, &[b, 1]));
            let transaction = MiniTransaction {
                compare: match what {
                    0 => vec![Compare { key: a.clone(), expect: Expect::Absent }],
                    1 => vec![Compare { key: b.clone(), expect: Expect::Present }],
                    _ => vec![],
                },
                read: vec![b.clone(), a.clone()],
                write: match what {
                    3 => vec![Write::Delete(a)],
                    _ => vec![Write::Put(a, vec![what]), Write::Put(b, vec![what])],
                },
            };
            prop_assert_eq!(
                embedded.execute(&transaction).unwrap(),
                memory.execute(&transaction).unwrap()
            );
        }
        prop_assert_eq!(embedded.sweep(None, 1000).unwrap(), memory.sweep(None, 1000).unwrap());
    }
}
