//! All leases of a process are kept or lost together: what was done in one directory never outlives
//! what was done before in another.

mod servers;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_meta::{
    Engine, Key, LeaseOptions, Leased, MiniTransaction, Outcome, RedisOptions, Write,
};
use servers::{Servers, eager, installed, leased};

fn put(partition: u16, number: u32) -> MiniTransaction {
    let key = Key::new(partition, &[&b"k"[..], &number.to_be_bytes()].concat());
    MiniTransaction { write: vec![Write::Put(key, vec![1])], ..Default::default() }
}

fn numbers(engine: &dyn Engine, partition: u16) -> Vec<u32> {
    let page = engine.scan(partition, b"k", None, usize::MAX).unwrap();
    let number = |key: &[u8]| u32::from_be_bytes(key[1..].try_into().unwrap());
    page.items.iter().map(|(key, _)| number(key)).collect()
}

fn commit(engine: &dyn Engine, partition: u16, number: u32) {
    let done = engine.execute(&put(partition, number)).unwrap();
    assert_eq!(done, Outcome::Committed(vec![]));
}

/// Requests of this one fail soon.
fn hasty() -> RedisOptions {
    RedisOptions {
        timeout: Duration::from_millis(200),
        give_up: Duration::from_millis(600),
        ..RedisOptions::default()
    }
}

fn kept_in(dir: &Path, timeout: u64) -> LeaseOptions {
    let timeout = Duration::from_secs(timeout);
    LeaseOptions { journal: Some(dir.to_path_buf()), timeout, ..eager() }
}

#[test]
fn effects_when_a_process_dies_at_any_moment_then_never_without_their_causes() {
    if !installed() {
        return;
    }
    let servers = Servers::cluster(3, 0, &[]);
    let round = |round: u32| {
        let name = format!("t{round}");
        let options = LeaseOptions { timeout: Duration::from_secs(1), ..eager() };
        let holder = leased(&servers, &name, &options);
        // The first three are leased, the last one never stays so, as others want it.
        let shared = servers.open(&name, &RedisOptions::default());
        for n in 0..300 + 37 * round {
            for partition in [9, 6, 3, 12] {
                commit(&*holder, partition, n);
            }
            if n % 8 == 0 {
                numbers(&shared, 12);
            }
        }
        Arc::into_inner(holder).unwrap().die();
        let other = servers.open(&name, &RedisOptions::default());
        let counts = [12, 3, 6, 9].map(|partition| numbers(&other, partition).len());
        assert!(counts.is_sorted(), "an effect has survived its cause: {counts:?}");
    };
    std::thread::scope(|scope| {
        for number in 0..6 {
            scope.spawn(move || round(number));
        }
    });
}

#[test]
fn leases_when_another_has_changed_one_directory_then_what_was_done_later_anywhere_is_lost_too() {
    if !installed() {
        return;
    }
    let mut servers = Servers::single(&["--appendonly", "yes", "--appendfsync", "always"]);
    let state = tempfile::tempdir_in("/dev/shm").unwrap();
    let options = kept_in(state.path(), 6);
    let below = Arc::new(servers.open("t", &hasty()));
    servers.wait("changes are heard", |_| below.watch(3).is_some());
    let holder = Leased::open(below, options.clone()).unwrap();
    for partition in [3, 4, 5] {
        commit(&holder, partition, 0);
        holder.arrive(partition).unwrap();
    }
    servers.kill(0);
    // Acknowledged by the process alone: before, in, and after the directory that others change.
    for partition in [4, 3, 5] {
        commit(&holder, partition, 1);
    }
    holder.die();
    servers.restart(0);
    let other = servers.open("t", &RedisOptions::default());
    commit(&other, 3, 7);
    let back = leased(&servers, "t", &options);
    assert_eq!(numbers(&*back, 4), [0, 1], "nothing that it depends on is lost");
    assert_eq!(numbers(&*back, 3), [0, 7]);
    assert_eq!(numbers(&*back, 5), [0], "it was done after what is lost");
    assert!(state.path().join("refused").exists());
    let losses = back.losses().unwrap().report();
    assert_eq!(losses.changes, 2);
}

#[test]
fn leases_when_a_process_is_silent_then_all_of_them_are_broken_at_once() {
    if !installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let options = LeaseOptions { timeout: Duration::from_secs(3), ..eager() };
    let holder = leased(&servers, "t", &options);
    for partition in 0..40 {
        commit(&*holder, partition, 0);
    }
    assert_eq!(holder.held(), 40);
    Arc::into_inner(holder).unwrap().die();
    let other = servers.open("t", &RedisOptions::default());
    let begun = std::time::Instant::now();
    for partition in 0..40 {
        assert_eq!(numbers(&other, partition), [0]);
    }
    assert!(begun.elapsed() >= Duration::from_secs(2), "it might have lived");
    assert!(begun.elapsed() < Duration::from_secs(7), "{:?}", begun.elapsed());
}
