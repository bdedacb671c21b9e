//! What goes beyond the paper, in every order in small groups.

mod world;

use forebay_coop::Options;
use world::{Mutation, Op, World, found, read, sound, write};

/// Pages of two bytes.
fn paper(slots: u32) -> Options {
    Options::paper(2, slots)
}

fn copies(slots: u32) -> Options {
    Options { read_copies: Some(1), ..paper(slots) }
}

fn readers_and_a_writer() -> Vec<Vec<Op>> {
    vec![
        vec![read(0, 4), write(0, 4, 1), read(0, 4), Op::Close],
        vec![read(0, 4), read(0, 4), Op::Close],
    ]
}

#[test]
fn read_copies_beside_a_writer_in_any_order_then_atomic_and_coherent() {
    sound("a writer", World::new(&copies(2), 4, readers_and_a_writer()));
    let scripts = vec![
        vec![write(0, 2, 1), Op::Close],
        vec![read(0, 2), read(0, 2), Op::Close],
        vec![write(1, 1, 2), Op::Close],
    ];
    sound("two writers", World::new(&copies(2), 4, scripts));
}

#[test]
fn read_copies_under_eviction_pressure_in_any_order_then_atomic_and_coherent() {
    let scripts = vec![
        vec![read(0, 2), write(2, 2, 1), read(0, 2), Op::Close],
        vec![read(0, 2), write(0, 2, 2), read(2, 2), Op::Close],
    ];
    sound("one slot", World::new(&copies(1), 4, scripts));
    sound("past the pool", World::new(&copies(1), 4, readers_and_a_writer()));
}

fn shared(slots: u32) -> Options {
    Options { shared_pools: true, ..paper(slots) }
}

#[test]
fn shared_pools_in_any_order_then_pages_are_read_where_they_are_and_atomic() {
    let scripts = vec![
        vec![write(0, 4, 1), read(0, 4), Op::Close],
        vec![read(0, 4), write(1, 2, 2), read(0, 4), Op::Close],
    ];
    sound("two writers", World::new(&shared(2), 4, scripts.clone()));
    let copies = |slots| Options { shared_pools: true, ..copies(slots) };
    sound("copies", World::new(&copies(2), 4, scripts));
    sound("readers and a writer", World::new(&copies(2), 4, readers_and_a_writer()));
    let three = vec![
        vec![write(0, 4, 1), Op::Close],
        vec![read(0, 4), Op::Close],
        vec![write(1, 2, 2), Op::Close],
    ];
    sound("three", World::new(&shared(2), 4, three));
}

#[test]
fn shared_pools_under_eviction_pressure_in_any_order_then_no_slot_is_read_that_has_another_page() {
    let scripts = vec![
        vec![write(0, 2, 1), write(2, 2, 2), read(0, 2), Op::Close],
        vec![read(0, 4), write(0, 2, 3), read(0, 2), Op::Close],
    ];
    let options = |slots| Options { shared_pools: true, ..copies(slots) };
    sound("one slot", World::new(&shared(1), 4, scripts.clone()));
    sound("one slot, copies", World::new(&options(1), 4, scripts.clone()));
    let migrates = Options { migrate: Some(1), write_behind: Some(0), ..options(2) };
    sound("migration", World::new(&migrates, 4, scripts));
}

#[test]
fn shared_pools_with_collective_calls_in_any_order_then_each_page_atomic() {
    let options = Options { ship: true, ..shared(2) };
    let scripts = vec![
        vec![write(0, 2, 1), Op::ReadAll(vec![(0, 4)]), Op::Close],
        vec![write(2, 2, 2), Op::ReadAll(vec![(1, 2)]), Op::Close],
    ];
    sound("collective", World::new(&options, 4, scripts));
}

#[test]
fn explorer_when_unlocks_name_another_slot_then_finds_it() {
    let scripts = vec![
        vec![write(0, 2, 1), write(2, 2, 3), Op::Close],
        vec![read(0, 4), write(0, 2, 2), Op::Close],
    ];
    found(Mutation::OtherSlot, World::new(&shared(2), 4, scripts));
}

#[test]
fn migration_in_any_order_then_atomic_and_one_copy() {
    let options = |slots| Options { migrate: Some(1), ..paper(slots) };
    let scripts = vec![
        vec![write(0, 4, 1), write(1, 2, 2), Op::Close],
        vec![write(0, 4, 3), write(0, 2, 4), read(0, 4), Op::Close],
    ];
    sound("two slots", World::new(&options(2), 4, scripts.clone()));
    sound("one slot", World::new(&options(1), 4, scripts));
}

#[test]
fn migration_with_write_behind_in_any_order_then_no_write_is_overtaken() {
    let options = Options { migrate: Some(1), write_behind: Some(0), ..paper(2) };
    let scripts = vec![
        vec![write(0, 2, 1), write(2, 2, 2), Op::Close],
        vec![write(0, 2, 3), write(0, 2, 4), Op::Close],
    ];
    sound("migration, write-behind", World::new(&options, 4, scripts));
}

#[test]
fn collective_calls_by_the_homes_of_pages_in_any_order_then_each_page_atomic() {
    let options = Options { ship: true, ..paper(2) };
    let all = |at, value| Op::WriteAll(vec![(at, 2)], value);
    let scripts = vec![
        vec![all(0, 1), Op::ReadAll(vec![(0, 4)]), write(0, 4, 5), Op::Close],
        vec![all(1, 2), Op::ReadAll(vec![(0, 4)]), Op::Close],
    ];
    sound("collective", World::new(&options, 4, scripts));
}

#[test]
fn read_ahead_in_any_order_then_atomic() {
    let options = Options { read_ahead: 1, coalesce_reads: true, ..copies(3) };
    let scripts = vec![
        vec![read(0, 2), read(2, 2), read(4, 2), Op::Close],
        vec![write(3, 2, 1), write(4, 2, 2), Op::Close],
    ];
    sound("read-ahead", World::new(&options, 6, scripts));
}

#[test]
fn everything_together_in_any_order_then_atomic_and_coherent() {
    let full = |slots| Options {
        read_copies: Some(1),
        migrate: Some(1),
        read_ahead: 1,
        write_behind: Some(0),
        ..Options::full(2, slots)
    };
    let scripts = vec![
        vec![read(0, 2), write(2, 3, 1), read(2, 2), Op::Close],
        vec![write(0, 4, 2), write(1, 2, 3), Op::Close],
    ];
    sound("two slots", World::new(&full(2), 4, scripts.clone()));
    sound("one slot", World::new(&full(1), 4, scripts.clone()));
    sound("a new file", World::new(&full(2), 0, scripts));
}

#[test]
fn explorer_when_a_defect_of_copies_is_put_in_then_finds_it() {
    found(Mutation::InvalidationLost, World::new(&copies(2), 4, readers_and_a_writer()));
}
