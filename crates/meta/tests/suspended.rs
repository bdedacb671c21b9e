//! A machine that was suspended may have been taken for dead meanwhile: what it was promised for a time
//! has run out when it wakes. A program of its own, as all of a process sleeps at once.

mod servers;

use std::sync::Arc;
use std::time::Duration;

use forebay_meta::{
    BootInstant, Engine, EngineError, Key, LeaseOptions, Leased, MiniTransaction, RedisOptions,
    Write,
};
use servers::{Servers, eager};

fn put(number: u8) -> MiniTransaction {
    let write = Write::Put(Key::new(3, &[b'k', number]), vec![number]);
    MiniTransaction { write: vec![write], ..Default::default() }
}

#[test]
fn machine_when_it_was_suspended_then_neither_its_leases_nor_its_caches_count_on_waking() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let redis = RedisOptions {
        timeout: Duration::from_millis(200),
        give_up: Duration::from_millis(600),
        ..RedisOptions::default()
    };
    let below = Arc::new(servers.open("t", &redis));
    servers.wait("changes are heard", |_| below.watch(3).is_some());
    let options = LeaseOptions { timeout: Duration::from_secs(12), ..eager() };
    let engine = Leased::open(below, options).unwrap();
    engine.execute(&put(0)).unwrap();
    assert_eq!(engine.held(), 1);
    servers.freeze(0, true);
    assert!(
        engine.watch(3).is_some() && engine.below().watch(4).is_some(),
        "it was heard just now"
    );
    BootInstant::sleep_for(Duration::from_secs(3600));
    assert!(engine.watch(3).is_none() && engine.tenure(3).is_none(), "the lease may be broken");
    assert!(engine.below().watch(4).is_none(), "changes may have gone unnoticed");
    let error = engine.execute(&put(1)).unwrap_err();
    assert!(matches!(error, EngineError::Unreachable { .. } | EngineError::Unknown { .. }));
    servers.freeze(0, false);
    servers.wait("it goes on", |_| engine.execute(&put(2)).is_ok());
}
