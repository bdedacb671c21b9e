//! Every order of deliveries, ends of file accesses, calls and deaths, in small groups.

mod world;

use forebay_coop::Options;
use world::{Mutation, Op, World, found, read, sound, write};

/// Pages of two bytes.
fn paper(slots: u32) -> Options {
    Options::paper(2, slots)
}

#[test]
fn paper_scheme_two_processes_write_across_two_pages_in_any_order_then_atomic() {
    let scripts = vec![
        vec![write(0, 4, 1), read(0, 4), Op::Close],
        vec![write(1, 2, 2), read(0, 4), Op::Close],
    ];
    sound("two writers", World::new(&paper(2), 4, scripts));
}

#[test]
fn paper_scheme_three_processes_on_three_pages_in_any_order_then_atomic() {
    let scripts = vec![
        vec![write(0, 4, 1), Op::Close],
        vec![write(2, 4, 2), Op::Close],
        vec![read(1, 4), Op::Close],
    ];
    sound("three processes", World::new(&paper(3), 6, scripts));
}

#[test]
fn paper_scheme_under_eviction_pressure_in_any_order_then_nothing_is_lost() {
    let scripts = vec![
        vec![write(0, 2, 1), write(2, 2, 2), read(0, 4), Op::Close],
        vec![write(1, 2, 3), read(4, 2), Op::Close],
    ];
    sound("one slot", World::new(&paper(1), 6, scripts.clone()));
    sound("two slots", World::new(&paper(2), 6, scripts));
}

#[test]
fn paper_scheme_with_requests_larger_than_the_pool_in_any_order_then_atomic() {
    let scripts = vec![
        vec![write(0, 6, 1), read(0, 6), Op::Close],
        vec![write(2, 2, 2), write(1, 4, 3), Op::Close],
    ];
    sound("past the pool", World::new(&paper(1), 6, scripts));
}

#[test]
fn paper_scheme_with_calls_of_several_extents_in_any_order_then_atomic() {
    let scripts = vec![
        vec![Op::Write(vec![(0, 1), (3, 2)], 1), Op::Read(vec![(0, 1), (3, 1)]), Op::Close],
        vec![Op::Write(vec![(0, 1), (3, 1)], 2), Op::Sync, Op::Close],
    ];
    let mut scripts = scripts;
    scripts[0].insert(2, Op::Sync);
    sound("extents", World::new(&paper(2), 2, scripts));
}

#[test]
fn explorer_when_a_defect_is_put_in_then_finds_it() {
    let crossing = || {
        let scripts = vec![
            vec![write(0, 4, 1), read(0, 4), Op::Close],
            vec![write(1, 2, 2), read(0, 4), Op::Close],
        ];
        World::new(&paper(2), 4, scripts)
    };
    for mutation in
        [Mutation::WriteBackLost, Mutation::PutLost, Mutation::LockAtOnce, Mutation::OwnerForgotten]
    {
        found(mutation, crossing());
    }
    let apart = |value| Op::Write(vec![(0, 1), (4, 1)], value);
    let three = || {
        let scripts = vec![vec![apart(1), Op::Close], vec![apart(2), Op::Close], vec![Op::Close]];
        World::new(&paper(2), 6, scripts)
    };
    for mutation in [Mutation::OtherOrder, Mutation::TwoHomes] {
        found(mutation, three());
    }
}
