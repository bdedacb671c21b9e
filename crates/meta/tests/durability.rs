//! What Redis and servers like it keep of what they acknowledge, and which of them are refused.

mod servers;

use std::time::{Duration, Instant};

use forebay_meta::{
    Compare, Engine, EngineError, Expect, Key, MiniTransaction, Outcome, Redis, RedisOptions, Write,
};
use servers::Servers;

fn put(partition: u16, key: &[u8], value: &[u8]) -> MiniTransaction {
    let write = vec![Write::Put(Key::new(partition, key), value.to_vec())];
    MiniTransaction { write, ..MiniTransaction::default() }
}

#[test]
fn read_when_no_replica_has_what_it_saw_then_it_is_not_answered() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::with_replica(&[]);
    let address = format!("redis://127.0.0.1:{}/t", servers.port(0));
    let open = |give_up| {
        let confirm_within = Duration::from_millis(100);
        let options =
            RedisOptions { replicas: 1, confirm_within, give_up, ..RedisOptions::default() };
        Redis::open(&address, &options).unwrap()
    };
    // Who may be waited for, and who has to give up.
    let (waiter, reader) = (open(Duration::from_secs(60)), open(Duration::from_millis(600)));
    let key = || MiniTransaction::reading(vec![Key::new(1, b"a")]);
    assert_eq!(waiter.execute(&key()).unwrap(), Outcome::Committed(vec![None]));
    servers.freeze(1, true);
    // Somebody else's change, which a fail-over would take back.
    let other = Redis::open(&address, &RedisOptions::default()).unwrap();
    other.execute(&put(1, b"a", b"1")).unwrap();
    let seen = reader.execute(&key());
    assert!(matches!(seen, Err(EngineError::Unknown { .. })), "{seen:?}");
    let seen = reader.scan(1, b"", None, 10);
    assert!(matches!(seen, Err(EngineError::Unknown { .. })), "{seen:?}");
    // A comparison that fails has seen it, too.
    let mut swap = put(1, b"a", b"2");
    swap.compare = vec![Compare { key: Key::new(1, b"a"), expect: Expect::Absent }];
    let seen = reader.execute(&swap);
    assert!(matches!(seen, Err(EngineError::Unknown { .. })), "{seen:?}");
    servers.freeze(1, false);
    assert_eq!(waiter.execute(&key()).unwrap(), Outcome::Committed(vec![Some(b"1".to_vec())]));
    assert_eq!(waiter.execute(&swap).unwrap(), Outcome::Conflict);
}

#[test]
fn replicas_when_too_few_or_none_need_to_confirm_then_the_servers_are_refused() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::cluster(3, 1, &[]);
    let check = |replicas| {
        let give_up = Duration::from_secs(1);
        let options = RedisOptions { replicas, give_up, ..RedisOptions::default() };
        servers.open("t", &options).check_replicas().map_err(|error| error.to_string())
    };
    assert_eq!(check(1), Ok(()));
    assert!(check(0).unwrap_err().contains("--cluster-replicas 1"));
    assert!(check(2).unwrap_err().contains("no change would ever count"));
    let servers = Servers::single(&[]);
    servers.open("t", &RedisOptions::default()).check_replicas().unwrap();
}

#[test]
fn sync_then_promises_no_more_than_the_log_does() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let engine = servers.open("t", &RedisOptions::default());
    engine.execute(&put(1, b"a", b"1")).unwrap();
    let begin = Instant::now();
    engine.sync().unwrap();
    // A server that can be asked says when it is done; else its next sync but one is waited for.
    let asked = !servers.command(0, &["INFO", "server"]).contains("redis_version:7.0");
    let least = Duration::from_millis(if asked { 0 } else { 900 });
    assert!(begin.elapsed() > least, "{:?}", begin.elapsed());
    servers.command(0, &["CONFIG", "SET", "appendfsync", "always"]);
    // All is synced already; the fastest of several is not held up by the machine.
    let took = |_| {
        let begin = Instant::now();
        engine.sync().unwrap();
        begin.elapsed()
    };
    let fastest = (0..10).map(took).min().unwrap();
    assert!(fastest < Duration::from_millis(500), "{fastest:?}");
    servers.command(0, &["CONFIG", "SET", "appendonly", "no"]);
    assert!(matches!(engine.sync(), Err(EngineError::Refused { .. })));
    let options = RedisOptions { memory_only: true, ..RedisOptions::default() };
    servers.open("t", &options).sync().unwrap();
}

#[test]
fn server_when_it_drops_keys_as_its_memory_is_full_then_it_is_refused() {
    if !servers::installed() {
        return;
    }
    let full = ["--maxmemory", "100mb", "--maxmemory-policy"];
    let servers = Servers::single(&[&full[..], &["allkeys-lru"]].concat());
    let error =
        Redis::open(&servers.address("t"), &RedisOptions::default()).err().expect("it is refused");
    assert!(error.to_string().contains("noeviction"), "{error}");
    servers.command(0, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    let engine = Redis::open(&servers.address("t"), &RedisOptions::default()).unwrap();
    engine.execute(&put(3, b"a", b"1")).unwrap();
    // A server without a limit drops nothing, whatever it is told.
    let servers = Servers::single(&["--maxmemory-policy", "allkeys-lru"]);
    Redis::open(&servers.address("t"), &RedisOptions::default()).unwrap();
}

#[test]
fn replica_when_missing_then_nothing_is_reported_as_done() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let options = RedisOptions {
        replicas: 1,
        confirm_within: Duration::from_millis(50),
        give_up: Duration::from_millis(300),
        ..RedisOptions::default()
    };
    let engine = servers.open("t", &options);
    let answer = engine.execute(&put(1, b"a", b"1"));
    assert!(matches!(answer, Err(EngineError::Unknown { .. })), "{answer:?}");
}
