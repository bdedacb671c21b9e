//! The round machine under simulated devices and clients.

mod players;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use forebay_core::streams::admission::Assurance;
use forebay_core::streams::layout::Layout;
use forebay_core::streams::machine::{Config, Event, Rounds, Scheme, StreamId, Title};
use forebay_core::streams::rate::Rate;
use forebay_core::unit::Tick;
use forebay_sim::streams::device::DeviceKind;
use forebay_sim::streams::driver::Driver;
use forebay_sim::streams::{StreamsArgs, admitted, figures, ring, truth};
use players::{MB, driver, elastic, seconds, titles};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

#[test]
fn deterministic_maximum_on_table_1_then_no_glitch_even_with_the_longest_access_times() {
    for worst in [false, true] {
        let mut driver = driver(elastic(40 * MB, Assurance::Deterministic), DeviceKind::Table1, 1);
        driver.device.worst = worst;
        let rate = Rate::constant(250_000).expect("a rate");
        for (at, layout) in titles(60, 180 * MB, DeviceKind::Table1).iter().enumerate() {
            driver.join_at(seconds(at as u64), at as u64, at as u64, &rate, layout);
        }
        driver.run_until(seconds(300));
        let outcome = &driver.outcome;
        assert!(outcome.glitches.is_empty(), "{:?}", outcome.glitches);
        assert!(outcome.admitted >= 25 && outcome.refused > 0);
        assert!(driver.waiting() == 0, "{}", driver.waiting());
        assert!(outcome.broken_promises.is_empty(), "{:?}", outcome.broken_promises);
        assert_eq!(driver.machine.counters().early, 0);
    }
}

#[test]
fn sweep_on_the_toy_numbers_then_starts_within_two_rounds() {
    let rounds = Rounds::sweep(Tick::SECOND, 25);
    let mut config = elastic(40 * MB, Assurance::Deterministic);
    config.scheme = Scheme::Rounds(rounds);
    let mut driver = driver(config, DeviceKind::Table1, 1);
    let rate = Rate::constant(250_000).expect("a rate");
    for (at, layout) in titles(25, 20 * MB, DeviceKind::Table1).iter().enumerate() {
        driver.join_at(Tick(at as u64 * 370_000_000), at as u64, at as u64, &rate, layout);
    }
    driver.run_until(seconds(120));
    let outcome = &driver.outcome;
    assert!(outcome.glitches.is_empty(), "{:?}", outcome.glitches);
    assert_eq!((outcome.admitted, outcome.ended), (25, 25));
    let longest = outcome.startups.iter().map(|start| start.2).max().expect("some");
    assert!(longest <= 2 * Tick::SECOND, "{longest}");
}

#[test]
fn last_visit_of_a_sweep_in_several_reads_then_the_next_sweep_has_its_stream_too() {
    let config = Config { request: 64 << 10, ..elastic(40 * MB, Assurance::Statistical(4.0)) };
    let mut driver = driver(config, DeviceKind::Table1, 1);
    let rate = Rate::constant(250_000).expect("a rate");
    for (at, layout) in titles(60, 180 * MB, DeviceKind::Table1).iter().enumerate() {
        driver.join_at(seconds(at as u64), at as u64, at as u64, &rate, layout);
    }
    driver.run_until(seconds(200));
    assert!(driver.outcome.glitches.is_empty(), "{:?}", driver.outcome.glitches);
    assert!(driver.outcome.admitted >= 30);
    let (counters, cycle) = (driver.machine.counters(), driver.machine.plan().cycle);
    // Whoever is left out of a sweep runs late and has to be visited out of order.
    assert!(counters.early <= 2, "{counters:?}");
    // Another visit in each sweep would be as wrong.
    assert!(counters.sweeps <= 60 * Tick::SECOND / 250_000_000 + 140 * Tick::SECOND / cycle + 2);
}

#[test]
fn ring_with_38_streams_in_7_mb_and_46_in_17_mb_then_no_underflow_in_five_placements() {
    for seed in 1..=5 {
        for (streams, memory) in [(38, 7 * MB), (46, 17 * MB)] {
            let trial = ring::Trial {
                device: DeviceKind::Table1,
                streams,
                rate: 250_000,
                cycle: 0,
                memory,
                sweeps: 100,
                seed,
            };
            let verdict = ring::run(&trial).expect("a trial");
            assert_eq!((verdict.playing, verdict.underflows), (streams, 0), "{seed}: {verdict:?}");
            assert!(verdict.memory <= memory);
        }
    }
}

#[test]
fn admission_when_it_speaks_then_what_it_admits_plays_and_little_is_refused_in_vain() {
    let args = arguments("x --figure truth --memory 17e6 --placements 1");
    let table = truth::table(&args, 60).expect("a table");
    let number = |row: &[String], column: usize| row[column].parse::<f64>().expect("one");
    for row in &table.rows {
        assert_eq!(row[2], "0", "glitches: {table:?}");
    }
    // Each by its own measure.
    for (row, judge) in [(0, 7), (1, 5)] {
        assert!(number(&table.rows[row], judge) < 10.0, "{table:?}");
    }
    assert!(number(&table.rows[1], 1) > number(&table.rows[0], 1), "{table:?}");
}

fn arguments(words: &str) -> StreamsArgs {
    <Arguments as clap::Parser>::parse_from(words.split(' ')).streams
}

#[test]
fn admission_for_certain_in_4_to_64_mb_then_as_many_as_gpmp_no_glitch_and_quick_starts() {
    for memory in [4e6, 7e6, 12e6, 17e6, 64e6] {
        let args = arguments("x --placements 2");
        let mut sums = admitted::sums(&args, memory, false, 30).expect("sums");
        assert_eq!((sums.glitches, sums.late), (0, 0), "{memory}: {sums}");
        let gpmp = figures::gpmp_most(args.stream_rate(), memory) as f64;
        assert!(sums.mean() >= gpmp, "{memory}: {sums}, GPMP {gpmp}");
        // The last of them wait for the time that the others leave.
        let limit = if memory < 20e6 { 3.0 } else { 12.0 };
        assert!(sums.startup_p99() <= limit, "{memory}: {sums}, {}", sums.startup_p99());
    }
}

#[test]
fn statistical_admission_then_a_seventh_more_than_gpmp_no_glitch_quick_starts_and_memory_in_use() {
    for (memory, unequal) in [(2e6, true), (7e6, false), (17e6, true)] {
        let args = arguments("x --placements 5 --statistical 4");
        let mut sums = admitted::sums(&args, memory, unequal, 60).expect("sums");
        assert_eq!(sums.glitches, 0, "{memory}: {sums}");
        let gpmp = figures::gpmp_most(args.stream_rate(), memory) as f64;
        assert!(sums.mean() >= gpmp * 8.0 / 7.0, "{memory}: {sums}, GPMP {gpmp}");
        assert!(sums.startup_p99() <= 3.0 && sums.used() > 0.8, "{memory}: {sums}");
    }
}

#[test]
fn stream_that_plays_when_it_seeks_and_would_wait_for_long_then_it_keeps_its_place() {
    let mut config = elastic(64 * MB, Assurance::Statistical(4.0));
    config.admission.startup = 0;
    let mut driver = driver(config, DeviceKind::Table1, 1);
    let rate = Rate::constant(250_000).expect("a rate");
    for (at, layout) in titles(44, 50 * MB, DeviceKind::Table1).iter().enumerate() {
        // Each waits as long as it must.
        let (stream, title) = (StreamId(at as u64), Title(at as u64));
        let (rate, layout, max_startup) = (rate.clone(), layout.clone(), Some(u64::MAX));
        let join = Event::Join { stream, title, rate, layout, offset: 0, max_startup };
        driver.at(seconds(at as u64), join);
    }
    driver.run_until(seconds(60));
    let before = driver.outcome.refused;
    for at in 0..8 {
        driver.at(seconds(61), Event::Seek { stream: StreamId(at), offset: 40 * MB });
    }
    driver.run_until(seconds(120));
    assert_eq!(driver.outcome.refused, before, "who has a place may go elsewhere");
    assert_eq!(driver.waiting(), 0, "all play");
}

#[derive(clap::Parser)]
struct Arguments {
    #[command(flatten)]
    streams: StreamsArgs,
}

#[test]
fn slow_device_then_guarantees_are_taken_one_for_each_sweep_and_given_back() {
    let mut driver = driver(elastic(40 * MB, Assurance::Deterministic), DeviceKind::Table1, 3);
    let rate = Rate::constant(250_000).expect("a rate");
    for (at, layout) in titles(36, 290 * MB, DeviceKind::Table1).iter().enumerate() {
        driver.join_at(seconds(at as u64), at as u64, at as u64, &rate, layout);
    }
    driver.run_until(seconds(120));
    assert!(driver.outcome.admitted >= 30 && driver.outcome.degraded.is_empty());
    driver.device.slowdown = 1.6;
    let sweeps = driver.machine.counters().sweeps;
    driver.run_until(seconds(240));
    let lost = driver.outcome.degraded.clone();
    assert!(!lost.is_empty() && (lost.len() as u64) < driver.outcome.admitted);
    assert!(lost.len() as u64 <= driver.machine.counters().sweeps - sweeps);
    // Who came last loses first.
    assert!(lost.windows(2).all(|pair| pair[0].0 > pair[1].0), "{lost:?}");
    driver.device.slowdown = 1.0;
    driver.run_until(seconds(600));
    let back = &driver.outcome.restored;
    assert!(!back.is_empty() && back.windows(2).all(|pair| pair[0].0 < pair[1].0), "{back:?}");
}

#[test]
fn clients_that_pause_with_full_buffers_under_statistical_admission_then_the_others_play_on() {
    for silent in [false, true] {
        let mut config = elastic(17 * MB, Assurance::Statistical(4.0));
        config.admission.chunk = 4096;
        let mut driver = driver(config, DeviceKind::Table1, 1);
        let rate = Rate::constant(250_000).expect("a rate");
        for (at, layout) in titles(60, 150 * MB, DeviceKind::Table1).iter().enumerate() {
            driver.join_at(seconds(at as u64), at as u64, at as u64, &rate, layout);
        }
        driver.run_until(seconds(120));
        let admitted = driver.outcome.admitted;
        assert!(admitted >= 43 && driver.outcome.glitches.is_empty(), "{admitted}");
        for (at, stream) in (0..5).map(|at| (at, 8 * at)) {
            if silent {
                driver.stall_at(seconds(120 + at), stream, 60 * Tick::SECOND);
            } else {
                driver.at(seconds(120 + at), Event::Pause(StreamId(stream)));
                driver.at(seconds(180 + at), Event::Resume(StreamId(stream)));
            }
        }
        driver.run_until(seconds(300));
        let others = driver
            .outcome
            .glitches
            .iter()
            .filter(|glitch| glitch.stream.0 >= 40 || glitch.stream.0 % 8 != 0);
        assert_eq!(others.count(), 0, "{silent}: {:?}", driver.outcome.glitches);
        assert!(driver.outcome.degraded.is_empty() && driver.put_off() == 0, "{silent}");
    }
}

/// What a client does, and when.
#[derive(Debug, Clone, Copy)]
enum Deed {
    Join(u64, u64),
    Leave(u64),
    Pause(u64),
    Park(u64),
    Resume(u64),
    /// To so many per mille of the file.
    Seek(u64, u64),
    /// To so many bytes a second.
    Rate(u64, u64),
    /// Takes nothing for so many milliseconds, and does not say so.
    Stall(u64, u64),
}

fn deeds() -> impl Strategy<Value = Vec<(u64, Deed)>> {
    let stream = 0..60u64;
    let deed = prop_oneof![
        6 => (stream.clone(), 0..20u64).prop_map(|(s, t)| Deed::Join(s, t)),
        1 => stream.clone().prop_map(Deed::Leave),
        1 => stream.clone().prop_map(Deed::Pause),
        1 => stream.clone().prop_map(Deed::Park),
        3 => stream.clone().prop_map(Deed::Resume),
        1 => (stream.clone(), 0..1_000u64).prop_map(|(s, to)| Deed::Seek(s, to)),
        1 => (stream.clone(), 50_000..1_500_000u64).prop_map(|(s, rate)| Deed::Rate(s, rate)),
        1 => (stream.clone(), 1..300u64).prop_map(|(s, millis)| Deed::Stall(s, millis)),
        1 => (stream, 1..20_000u64).prop_map(|(s, millis)| Deed::Stall(s, millis)),
    ];
    let seldom = prop::collection::vec((0..2_000u64, deed.clone()), 1..90);
    let often = prop::collection::vec((0..500u64, deed.clone()), 1..200);
    let busy = prop::collection::vec((0..100u64, deed.clone()), 1..200);
    prop_oneof![seldom, often, busy, prop::collection::vec((0..20u64, deed), 1..400)]
}

/// Plans them, on so many titles; when the last one is done, in milliseconds.
fn plan_deeds(driver: &mut Driver, deeds: &[(u64, Deed)], popular: u64) -> u64 {
    let files = titles(20, 60 * MB, DeviceKind::Table1);
    let mut playing = [0; 60];
    let mut now = 0;
    for (wait, deed) in deeds {
        now += wait;
        let at = Tick(now * 1_000_000);
        let event = match *deed {
            Deed::Join(stream, title) => {
                let title = title % popular;
                let rate = Rate::constant(100_000 + title * 40_000).expect("a rate");
                driver.join_at(at, stream, title, &rate, &files[title as usize]);
                playing[stream as usize] = title;
                continue;
            }
            Deed::Leave(stream) => Event::Leave(StreamId(stream)),
            Deed::Pause(stream) => Event::Pause(StreamId(stream)),
            Deed::Park(stream) => Event::Park(StreamId(stream)),
            Deed::Resume(stream) => Event::Resume(StreamId(stream)),
            Deed::Seek(stream, to) => {
                let bytes = files[playing[stream as usize] as usize].bytes();
                Event::Seek { stream: StreamId(stream), offset: bytes / 1_000 * to }
            }
            Deed::Stall(stream, millis) => {
                driver.stall_at(at, stream, millis * 1_000_000);
                continue;
            }
            Deed::Rate(stream, rate) => {
                let rate = Rate::constant(rate).expect("a rate");
                Event::SetRate { stream: StreamId(stream), rate }
            }
        };
        driver.at(at, event);
    }
    now
}

/// Plays deeds, and a minute more; the most bytes of buffers.
fn play(driver: &mut Driver, deeds: &[(u64, Deed)], popular: u64) -> u64 {
    let now = plan_deeds(driver, deeds, popular);
    let mut most = 0;
    driver.run_checked(Tick((now + 60_000) * 1_000_000), |driver| {
        let counters = driver.machine.counters();
        // What several streams share is read once and consumed by each.
        assert!(counters.shared > 0 || counters.consumed <= counters.bytes);
        most = most.max(driver.machine.memory().0);
    });
    most
}

/// That everything held that deterministic admission promises.
fn kept(driver: &Driver) -> Result<(), TestCaseError> {
    let outcome = &driver.outcome;
    prop_assert!(outcome.glitches.is_empty(), "{:?}", outcome.glitches);
    prop_assert!(outcome.degraded.is_empty(), "{:?}", outcome.degraded);
    prop_assert_eq!(driver.machine.counters().early, 0);
    prop_assert_eq!(driver.put_off(), 0);
    prop_assert!(outcome.broken_promises.is_empty(), "{:?}", outcome.broken_promises);
    Ok(())
}

/// Which histories are tried: others each time, or those of `FOREBAY_SEED` again. What is printed is
/// shown when a test fails.
fn histories() -> u64 {
    let given = std::env::var("FOREBAY_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| RandomState::new().build_hasher().finish());
    println!("these histories again: FOREBAY_SEED={seed}");
    seed
}

/// More of them by `PROPTEST_CASES`.
fn histories_at_a_time() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(80)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: histories_at_a_time(),
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(histories()),
        ..ProptestConfig::default()
    })]
    #[test]
    fn admitted_streams_whatever_their_clients_do_then_no_glitch_and_bounded_memory(
        deeds in deeds(),
        worst in any::<bool>(),
        seed in any::<u64>(),
        memory in prop_oneof![4..24u64, 24..100u64],
        sharing in any::<bool>(),
        popular in 1..=20u64,
    ) {
        let limit = memory * MB;
        let mut config = elastic(limit, Assurance::Deterministic);
        config.interval = if sharing { 30 * Tick::SECOND } else { 0 };
        let mut driver = driver(config, DeviceKind::Table1, seed);
        driver.device.worst = worst;
        let most = play(&mut driver, &deeds, popular);
        prop_assert!(most <= limit, "{most} bytes");
        kept(&driver)?;
    }
}

/// Streams somewhere on the device at some rate, which ask one after the other.
fn crowd() -> impl Strategy<Value = Vec<(u64, u64, u64)>> {
    let rate = prop_oneof![Just(250_000u64), 40_000..1_000_000u64];
    prop::collection::vec((0..2_000u64, 0..600_000u64, rate), 20..70)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: histories_at_a_time() / 4,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(histories()),
        ..ProptestConfig::default()
    })]
    #[test]
    fn streams_anywhere_at_any_rates_when_admitted_for_certain_then_no_glitch(
        crowd in crowd(),
        worst in any::<bool>(),
        seed in any::<u64>(),
        memory in prop_oneof![2..10u64, 10..64u64],
    ) {
        let limit = memory * MB;
        let mut config = elastic(limit, Assurance::Deterministic);
        config.admission.chunk = 4096;
        let mut driver = driver(config, DeviceKind::Table1, seed);
        driver.device.worst = worst;
        let most = play_crowd(&mut driver, &crowd);
        prop_assert!(most <= limit, "{most} bytes");
        kept(&driver)?;
    }
}

/// Plays a crowd, and a minute more; the most bytes of buffers.
fn play_crowd(driver: &mut Driver, crowd: &[(u64, u64, u64)]) -> u64 {
    let (mut now, mut most) = (0, 0);
    for (stream, (wait, place, rate)) in (0..).zip(crowd) {
        now += wait;
        let layout = Layout::contiguous(place * 16_384, 120 * rate).expect("a layout");
        let rate = Rate::constant(*rate).expect("a rate");
        driver.join_at(Tick(now * 1_000_000), stream, stream, &rate, &layout);
    }
    let end = Tick((now + 60_000) * 1_000_000);
    driver.run_checked(end, |driver| most = most.max(driver.machine.memory().0));
    most
}

#[test]
fn stream_that_starts_out_of_turn_then_those_who_come_in_behind_it_take_none_of_its_time()
-> Result<(), TestCaseError> {
    let crowd = [
        (0, 400_000, 250_000),
        (0, 580_000, 250_000),
        (1400, 180_000, 250_000),
        (0, 500_000, 250_000),
        (0, 500_000, 500_000),
        (1100, 200_000, 250_000),
        (1133, 300_000, 250_000),
        // It comes before all others, and the device is on its way to them.
        (1404, 0, 600_000),
    ];
    let mut config = elastic(38 * MB, Assurance::Deterministic);
    config.admission.chunk = 4096;
    let mut driver = driver(config, DeviceKind::Table1, 0);
    driver.device.worst = true;
    play_crowd(&mut driver, &crowd);
    prop_assert_eq!(driver.outcome.admitted, 8);
    kept(&driver)
}

#[test]
fn stream_that_comes_last_in_the_order_when_the_device_is_full_then_it_starts()
-> Result<(), TestCaseError> {
    // The last of them needs the longest visits, and what the others leave is just enough.
    #[rustfmt::skip]
    let crowd = [
        (235_207, 487_707), (482_717, 713_092), (288_857, 250_000), (351_147, 250_000),
        (423_819, 250_000), (434_201, 250_000), (351_254, 250_000), (538_018, 250_000),
        (0, 192_651), (205_803, 250_000), (527_636, 250_000), (100_381, 469_140),
        (459_000, 250_000), (465_346, 250_000), (309_620, 250_000), (289_000, 250_000),
        (224_000, 758_000), (230_000, 462_691), (0, 250_000), (60_000, 325_253), (63_000, 250_000),
        (450_000, 250_000), (40_000, 250_000), (220_000, 250_000), (280_000, 45_131),
        (510_000, 61_814), (39_000, 84_150), (160_000, 943_806), (300_000, 250_000),
        (10_000, 250_000), (210_000, 250_000), (310_000, 250_000), (72_000, 250_000),
        (163_000, 696_291), (581_848, 977_000),
    ];
    let mut config = elastic(50 * MB, Assurance::Deterministic);
    config.admission.chunk = 4096;
    let mut driver = driver(config, DeviceKind::Table1, 0);
    driver.device.worst = true;
    play_crowd(&mut driver, &crowd.map(|(place, rate)| (0, place, rate)));
    prop_assert_eq!(driver.outcome.admitted, 35);
    kept(&driver)
}

/// Plays deeds that once broke a promise, with the longest access times.
fn replay(deeds: &[(u64, Deed)], memory: u64, popular: u64) -> Result<(), TestCaseError> {
    let config = Config { interval: 0, ..elastic(memory, Assurance::Deterministic) };
    let mut driver = driver(config, DeviceKind::Table1, 0);
    driver.device.worst = true;
    let most = play(&mut driver, deeds, popular);
    prop_assert!(most <= memory, "{most} bytes");
    kept(&driver)
}

#[test]
fn device_that_always_takes_its_longest_then_no_guarantee_is_taken_away()
-> Result<(), TestCaseError> {
    use Deed::{Join, Leave, Pause, Rate};
    let deeds = [
        (0, Join(12, 14)),
        (0, Join(16, 15)),
        (1110, Join(0, 5)),
        (228, Join(1, 12)),
        (0, Join(13, 0)),
        (328, Rate(12, 737_381)),
        (70, Join(2, 11)),
        (894, Leave(3)),
        (203, Leave(12)),
        (1960, Join(3, 5)),
        (518, Join(4, 10)),
        (375, Pause(5)),
        (1063, Join(5, 8)),
        (851, Join(17, 7)),
        (994, Join(0, 0)),
        (707, Join(18, 0)),
        (413, Join(19, 19)),
    ];
    replay(&deeds, 9 * MB, 20)
}

#[test]
fn stream_that_overtakes_others_then_they_are_not_visited_twice_before_it()
-> Result<(), TestCaseError> {
    use Deed::{Join, Rate};
    let deeds = [
        (0, Join(28, 7)),
        (67, Join(20, 18)),
        (10, Join(53, 5)),
        (0, Join(21, 15)),
        (1, Join(7, 6)),
        (1002, Join(33, 18)),
        (88, Join(24, 15)),
        (84, Join(50, 13)),
        (93, Join(56, 5)),
        (0, Join(31, 11)),
        (100, Join(34, 1)),
        (458, Rate(34, 817_621)),
    ];
    replay(&deeds, 22 * MB, 1)
}

#[test]
fn client_that_stops_taking_then_others_start_in_time() -> Result<(), TestCaseError> {
    use Deed::{Join, Stall};
    let deeds = [
        (0, Join(26, 10)),
        (25_970, Join(50, 7)),
        (860, Join(15, 12)),
        (1921, Stall(26, 19_698)),
        (0, Join(24, 18)),
        (0, Join(18, 15)),
        (1000, Join(6, 11)),
    ];
    replay(&deeds, 4 * MB, 6)
}

#[test]
fn client_that_stops_taking_then_it_does_not_run_dry_when_it_goes_on() -> Result<(), TestCaseError>
{
    use Deed::{Join, Stall};
    let deeds = [
        (0, Join(10, 15)),
        (0, Join(23, 14)),
        (87, Join(32, 17)),
        (227, Stall(32, 4057)),
        (203, Join(30, 10)),
        (39, Join(16, 14)),
        (54, Join(28, 17)),
    ];
    replay(&deeds, 68 * MB, 9)
}

#[test]
fn client_that_stops_taking_then_it_fills_no_more_than_admission_counts_with()
-> Result<(), TestCaseError> {
    use Deed::{Join, Rate, Stall};
    // The last one shortens the cycle while stream 11 takes nothing.
    let deeds = [
        (0, Join(12, 2)),
        (0, Join(28, 9)),
        (400, Join(23, 15)),
        (0, Join(15, 11)),
        (0, Join(52, 13)),
        (29, Join(6, 18)),
        (0, Join(37, 3)),
        (214, Join(35, 4)),
        (17, Join(45, 9)),
        (226, Join(17, 12)),
        (110, Join(32, 17)),
        (0, Join(41, 0)),
        (0, Join(34, 7)),
        (205, Join(43, 8)),
        (1, Join(11, 7)),
        (0, Join(39, 10)),
        (0, Join(5, 18)),
        (360, Join(27, 1)),
        (150, Join(53, 10)),
        (200, Join(55, 6)),
        (80, Join(59, 11)),
        (33, Join(26, 12)),
        (183, Join(1, 6)),
        (143, Stall(11, 17_951)),
        (23, Rate(6, 385_842)),
        (219, Join(47, 12)),
        (54, Join(33, 8)),
        (79, Join(48, 1)),
        (2346, Join(7, 0)),
        (54, Join(24, 6)),
    ];
    let config = Config { interval: 0, ..elastic(22 * MB, Assurance::Deterministic) };
    let mut driver = driver(config, DeviceKind::Table1, 0);
    let most = play(&mut driver, &deeds, 15);
    prop_assert!(most <= 22 * MB, "{most} bytes");
    kept(&driver)
}

#[test]
fn seek_into_the_middle_of_a_chunk_then_its_first_visit_is_counted_from_the_start_of_it()
-> Result<(), TestCaseError> {
    use Deed::{Join, Leave, Park, Pause, Rate, Seek, Stall};
    #[rustfmt::skip]
    let deeds = [
        (10, Join(34, 7)), (34, Join(32, 12)), (18, Join(17, 11)), (24, Join(35, 3)),
        (18, Join(33, 8)), (16, Join(1, 16)), (39, Join(27, 6)), (22, Join(11, 0)),
        (51, Join(5, 18)), (17, Join(30, 2)), (19, Join(56, 7)), (18, Join(20, 5)),
        (29, Seek(34, 653)), (2, Park(32)), (7, Join(58, 1)), (11, Rate(17, 624_961)),
        (2, Join(51, 11)), (66, Join(16, 11)), (37, Join(54, 2)), (19, Join(47, 3)),
        (1, Join(18, 10)), (71, Join(39, 18)), (5, Join(15, 0)), (24, Join(28, 8)),
        (17, Join(45, 6)), (79, Park(17)), (20, Park(56)), (28, Park(51)), (78, Rate(34, 237_046)),
        (18, Rate(28, 162_714)), (26, Park(35)), (47, Seek(1, 639)), (70, Leave(54)),
        (3, Join(7, 18)), (43, Join(12, 0)), (43, Join(25, 12)), (25, Join(14, 11)),
        (12, Join(36, 16)), (30, Leave(45)), (92, Join(23, 17)), (1, Join(50, 12)),
        (40, Join(31, 17)), (11, Join(4, 14)), (6, Leave(12)), (12, Park(15)), (2, Park(1)),
        (16, Stall(27, 242)), (21, Join(2, 8)), (32, Pause(25)), (9, Leave(18)), (12, Join(13, 3)),
        (125, Join(12, 10)), (48, Join(22, 2)), (33, Join(38, 14)), (19, Join(24, 8)),
        (18, Join(53, 13)), (27, Seek(33, 253)), (8, Park(7)), (63, Join(6, 17)),
        (18, Seek(39, 961)), (129, Join(44, 17)), (0, Join(8, 13)), (19, Join(19, 15)),
        (29, Join(29, 6)), (38, Park(47)),
    ];
    let sharing = 30 * Tick::SECOND;
    let config = Config { interval: sharing, ..elastic(10 * MB, Assurance::Deterministic) };
    let mut driver = driver(config, DeviceKind::Table1, 0);
    driver.device.worst = true;
    play(&mut driver, &deeds, 10);
    kept(&driver)
}

#[test]
fn memory_that_is_no_multiple_of_a_chunk_then_what_is_admitted_has_room()
-> Result<(), TestCaseError> {
    let titles = [11, 18, 19, 15, 5, 16, 16, 18, 4, 11, 14, 13, 17, 9];
    let deeds: Vec<_> =
        (0..).zip(titles).map(|(stream, title)| (10, Deed::Join(stream, title))).collect();
    replay(&deeds, 4 * MB, 17)
}

#[test]
fn reader_that_is_followed_arrives_at_the_one_it_follows_then_its_follower_goes_on_behind_both() {
    use Deed::{Join, Leave, Rate};
    let deeds = [
        (0, Join(18, 5)),
        (208, Join(6, 2)),
        (0, Join(0, 14)),
        (140, Join(7, 4)),
        (796, Leave(0)),
        (2987, Join(0, 12)),
        (404, Rate(8, 55_562)),
        (1732, Join(54, 4)),
    ];
    let config =
        Config { interval: 30 * Tick::SECOND, ..elastic(11 * MB, Assurance::Statistical(4.0)) };
    let mut driver = driver(config, DeviceKind::Table1, 15_842_703_020_470_296_356);
    let most = play(&mut driver, &deeds, 4);
    assert!(most <= 11 * MB && driver.put_off() == 0, "{most} {}", driver.put_off());
    assert!(driver.machine.counters().shared > 1 && driver.outcome.glitches.is_empty());
}

#[test]
fn clients_that_take_what_is_there_at_once_then_memory_is_no_reason_to_refuse_others() {
    let play = |hasty| {
        let config = elastic(8 * MB, Assurance::Statistical(4.0));
        let mut driver = driver(config, DeviceKind::Table1, 1);
        driver.hasty = hasty;
        let rate = Rate::constant(250_000).expect("a rate");
        for (at, layout) in titles(60, 60 * MB, DeviceKind::Table1).iter().enumerate() {
            driver.join_at(seconds(at as u64), at as u64, at as u64, &rate, layout);
        }
        driver.run_until(seconds(180));
        assert!(driver.outcome.glitches.is_empty(), "{:?}", driver.outcome.glitches);
        driver.outcome.admitted
    };
    let (by_the_clock, at_once) = (play(false), play(true));
    assert!(at_once >= by_the_clock * 9 / 8, "{by_the_clock} {at_once}");
}

#[test]
fn device_that_is_slower_than_its_profile_then_streams_are_read_on_all_the_same() {
    let mut driver = driver(elastic(20 * MB, Assurance::Deterministic), DeviceKind::Table1, 1);
    let rate = Rate::constant(250_000).expect("a rate");
    let layout = Layout::contiguous(0, 10 * MB).expect("a layout");
    driver.join_at(Tick(0), 0, 0, &rate, &layout);
    driver.run_until(seconds(3));
    driver.device.slowdown = 40.0;
    driver.run_until(seconds(20));
    let read = driver.machine.counters().bytes;
    driver.run_until(seconds(60));
    assert!(driver.machine.counters().bytes > read + MB, "{:?}", driver.machine.counters());
    driver.device.slowdown = 1.0;
    driver.run_until(seconds(200));
    assert_eq!(driver.outcome.ended, 1);
}

#[test]
fn full_buffers_of_a_client_that_stops_when_the_cycle_is_shorter_then_nobody_waits_behind_them() {
    let mut driver = driver(elastic(60 * MB, Assurance::Statistical(4.0)), DeviceKind::Table1, 1);
    let rate = Rate::constant(250_000).expect("a rate");
    for (at, layout) in titles(42, 150 * MB, DeviceKind::Table1).iter().enumerate() {
        driver.join_at(seconds(at as u64), at as u64, at as u64, &rate, layout);
    }
    driver.run_until(seconds(300));
    let before = driver.machine.plan().cycle;
    // The first in the order takes nothing, and most of the others leave.
    driver.stall_at(seconds(300), 0, 20 * Tick::SECOND);
    for stream in 12..42 {
        driver.at(seconds(301), Event::Leave(StreamId(stream)));
    }
    driver.run_until(seconds(340));
    assert!(driver.machine.plan().cycle < before / 5 * 3, "{before} {:?}", driver.machine.plan());
    assert!(driver.outcome.glitches.is_empty(), "{:?}", driver.outcome.glitches);
}

#[test]
fn stream_that_falls_behind_and_finds_the_same_reader_then_it_is_not_asked_for_ever() {
    use Deed::{Join, Leave, Park, Rate, Seek, Stall};
    let deeds = [
        (0, Join(55, 13)),
        (10, Join(50, 8)),
        (30, Join(59, 16)),
        (13, Join(45, 0)),
        (3, Join(29, 5)),
        (0, Join(12, 17)),
        (22, Join(36, 6)),
        (53, Join(46, 12)),
        (11, Seek(45, 697)),
        (6, Join(47, 12)),
        (43, Join(26, 8)),
        (8, Join(53, 4)),
        (0, Join(18, 13)),
        (12, Join(9, 12)),
        (7, Join(22, 11)),
        (4, Join(56, 1)),
        (22, Join(0, 0)),
        (22, Join(33, 16)),
        (26, Join(30, 11)),
        (29, Join(39, 6)),
        (210, Join(34, 1)),
        (3, Rate(12, 466_842)),
        (70, Join(3, 13)),
        (42, Join(28, 18)),
        (42, Join(16, 1)),
        (5, Join(25, 7)),
        (20, Park(29)),
        (50, Join(2, 4)),
        (19, Leave(9)),
        (8, Join(38, 3)),
        (60, Join(11, 13)),
        (63, Join(43, 14)),
        (0, Rate(11, 1_204_345)),
        (0, Rate(53, 760_189)),
        (8, Rate(16, 993_782)),
        (49, Join(48, 4)),
        (0, Join(17, 8)),
        (0, Stall(28, 18_635)),
        (6, Join(20, 6)),
        (0, Seek(26, 74)),
    ];
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let admission = elastic(46 * MB, Assurance::Statistical(4.0));
        let config = Config { interval: 30 * Tick::SECOND, ..admission };
        let mut driver = driver(config, DeviceKind::Table1, 0);
        let most = play(&mut driver, &deeds, 6);
        // Buffers grow for those who wait.
        driver.run_until(driver.now().after(300 * Tick::SECOND));
        done.send((most, driver.put_off()))
    });
    let (most, put_off) = ended.recv_timeout(Duration::from_secs(120)).expect("an end");
    assert!(most <= 46 * MB && put_off == 0, "{most} {put_off}");
}

#[test]
fn slow_client_of_a_shared_title_then_separated_and_the_others_unharmed() {
    for slow in [0, 1] {
        let mut config = elastic(20 * MB, Assurance::Deterministic);
        config.interval = 30 * Tick::SECOND;
        let mut driver = driver(config, DeviceKind::Table1, 1);
        driver.device.worst = true;
        let files = titles(6, 60 * MB, DeviceKind::Table1);
        let rate = Rate::constant(500_000).expect("a rate");
        // Stream 1 shares what has been read for stream 0.
        driver.join_at(Tick(0), 0, 0, &rate, &files[0]);
        driver.join_at(Tick(20_000_000), 1, 0, &rate, &files[0]);
        for at in 2..6u64 {
            driver.join_at(seconds(at), at, at, &rate, &files[at as usize]);
        }
        driver.run_until(seconds(10));
        assert_eq!((driver.machine.counters().shared, driver.outcome.admitted), (1, 6));
        assert_eq!(driver.machine.population(), (6, 5));
        let before = driver.machine.memory().1;
        driver.stall(slow);
        driver.run_until(seconds(40));
        let outcome = &driver.outcome;
        assert!(outcome.glitches.is_empty(), "{:?}", outcome.glitches);
        assert_eq!((outcome.admitted, outcome.refused), (7, 0), "it has a place of its own");
        assert_eq!(driver.machine.population(), (6, 6));
        assert!(
            driver.machine.memory().1 < before + 2 * MB,
            "{before} {:?}",
            driver.machine.memory()
        );
    }
}
