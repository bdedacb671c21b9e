//! Full tiers and backing stores, in every passthrough mode.

use forebay_tests::subject::Passthrough;
use forebay_tests::{Failure, Outcome, space};

fn in_every_mode(test: fn(Passthrough) -> Outcome) {
    for passthrough in [Passthrough::Off, Passthrough::Read, Passthrough::ReadWrite] {
        match test(passthrough) {
            Ok(()) => {}
            Err(Failure::Skipped(why)) => println!("skipped: {why}"),
            Err(failure) => panic!("{passthrough:?}: {failure}"),
        }
    }
}

#[test]
fn file_larger_than_the_tier_when_written_then_it_is_whole_and_the_tier_keeps_its_size() {
    in_every_mode(space::file_larger_than_the_tier);
}

#[test]
fn sixteen_writers_when_they_exceed_the_tier_then_nobody_sees_enospc() {
    in_every_mode(space::sixteen_writers_exceed_the_tier);
}

#[test]
fn tier_when_filled_by_somebody_else_then_writers_go_on() {
    in_every_mode(space::tier_filled_by_somebody_else);
}

#[test]
fn backing_store_when_full_then_enospc_is_clean_and_nothing_is_lost() {
    in_every_mode(space::backing_store_full);
}

#[test]
fn quota_of_the_backing_store_when_used_up_then_edquot_is_clean_and_nothing_is_lost() {
    in_every_mode(space::quota_used_up);
}

#[test]
fn two_tiers_when_they_fill_then_objects_move_down_and_each_keeps_its_size() {
    in_every_mode(space::two_tiers_fill_and_demote);
}

#[test]
fn file_when_it_grows_on_a_full_tier_under_a_reader_then_no_enospc_and_the_reader_sees_it() {
    in_every_mode(space::file_grows_under_a_reader);
}
