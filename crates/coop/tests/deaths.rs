//! A process dies at any moment, and the others hear of it at any moment after.

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

fn two() -> Vec<Vec<Op>> {
    vec![
        vec![write(0, 4, 1), Op::Sync, read(0, 4), Op::Close],
        vec![write(1, 2, 2), Op::Sync, write(0, 4, 3), Op::Close],
    ]
}

fn three() -> Vec<Vec<Op>> {
    vec![
        vec![write(0, 4, 1), Op::Close],
        vec![write(0, 4, 2), Op::Close],
        vec![read(1, 2), Op::Close],
    ]
}

#[test]
fn death_of_one_of_two_at_any_moment_then_nothing_is_stuck_and_what_was_synced_is_there() {
    for rank in [0, 1] {
        sound("two slots", World::new(&paper(2), 4, two()).mortal(&[rank]));
        sound("one slot", World::new(&paper(1), 4, two()).mortal(&[rank]));
        sound("copies", World::new(&copies(2), 4, two()).mortal(&[rank]));
    }
}

#[test]
fn death_of_one_of_three_at_any_moment_then_nothing_is_stuck_or_lost_unsaid() {
    for rank in [0, 2] {
        sound("three", World::new(&paper(2), 4, three()).mortal(&[rank]));
    }
}

/// The first writes to a page of the third, of which the second is the home and writes it, too.
fn late() -> Vec<Vec<Op>> {
    vec![
        vec![write(2, 2, 1), Op::Close],
        vec![write(2, 2, 2), read(2, 2), Op::Close],
        vec![write(2, 2, 3), Op::Close],
    ]
}

#[test]
fn death_of_a_writer_whose_bytes_are_on_their_way_then_they_come_before_all_later_calls() {
    sound("late", World::new(&paper(2), 4, late()).mortal(&[0]));
}

#[test]
fn explorer_when_a_defect_of_deaths_is_put_in_then_finds_it() {
    for mutation in [Mutation::DeathUntold, Mutation::LossUnsaid] {
        found(mutation, World::new(&paper(2), 4, three()).mortal(&[0]));
    }
    found(Mutation::FenceLost, World::new(&paper(2), 4, late()).mortal(&[0]));
}

#[test]
fn death_with_copies_among_three_at_any_moment_then_coherent() {
    let scripts = || {
        vec![
            vec![write(0, 2, 1), Op::Close],
            vec![read(0, 2), Op::Close],
            vec![read(0, 2), Op::Close],
        ]
    };
    for rank in [0, 1] {
        sound("copies", World::new(&copies(2), 4, scripts()).mortal(&[rank]));
    }
}

#[test]
fn death_with_everything_switched_on_at_any_moment_then_nothing_is_stuck_or_lost_unsaid() {
    let full = |slots| Options {
        read_copies: Some(1),
        migrate: Some(1),
        read_ahead: 1,
        write_behind: Some(0),
        ..Options::full(2, slots)
    };
    let scripts = || {
        vec![
            vec![write(0, 4, 1), Op::WriteAll(vec![(1, 2)], 2), Op::Close],
            vec![write(1, 2, 3), Op::ReadAll(vec![(0, 4)]), Op::Close],
        ]
    };
    for rank in [0, 1] {
        sound("full", World::new(&full(2), 4, scripts()).mortal(&[rank]));
        sound("full, one slot", World::new(&full(1), 4, scripts()).mortal(&[rank]));
    }
}
