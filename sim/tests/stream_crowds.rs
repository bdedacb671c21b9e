//! Streams that come together, or behind each other, under simulated devices and clients.

mod players;

use forebay_core::streams::admission::Assurance;
use forebay_core::streams::layout::Layout;
use forebay_core::streams::machine::{Config, Event, StreamId, Title};
use forebay_core::streams::rate::Rate;
use forebay_core::unit::Tick;
use forebay_sim::streams::device::DeviceKind;
use forebay_sim::streams::driver::Driver;
use players::{MB, driver, elastic, seconds, titles};

#[test]
fn crowd_that_comes_at_once_with_a_statistical_guarantee_then_as_many_as_start_soon_are_taken() {
    // Milliseconds between 90 requests, and the fewest who are taken: all would fit.
    for (apart, fewest) in [(0, 70), (30, 80), (125, 90)] {
        let config = elastic(256 * MB, Assurance::Statistical(4.0));
        let mut driver = driver(config, DeviceKind::Disk, 1);
        let rate = Rate::constant(1_000_000).expect("a rate");
        let files = titles(90, 60 * MB, DeviceKind::Disk);
        for at in 0..90 {
            // In no order.
            let layout = &files[at as usize * 37 % 90];
            driver.join_at(Tick(at * apart * 1_000_000), at, at, &rate, layout);
        }
        driver.run_until(seconds(50));
        let outcome = &driver.outcome;
        assert!(outcome.glitches.is_empty(), "{apart}: {:?}", outcome.glitches);
        assert!(outcome.admitted >= fewest, "{apart}: {} taken", outcome.admitted);
        let longest = outcome.startups.iter().map(|start| start.2).max().expect("some start");
        assert!(longest <= 3 * Tick::SECOND, "{apart}: {longest} ns");
        assert_eq!(driver.waiting(), 0, "{apart}");
    }
}

#[test]
fn crowd_on_a_slow_disk_in_any_memory_then_it_starts_within_three_seconds() {
    // Megabytes, milliseconds between 60 requests, and the fewest who are taken.
    for (memory, apart, fewest) in [
        (4, 0, 31),
        (16, 0, 36),
        (16, 125, 44),
        (64, 0, 36),
        (64, 10, 34),
        (64, 25, 35),
        (64, 125, 40),
    ] {
        for seed in 1..4 {
            let config = elastic(memory * MB, Assurance::Statistical(4.0));
            let mut driver = driver(config, DeviceKind::Table1, seed);
            let rate = Rate::constant(250_000).expect("a rate");
            let files = titles(60, 50 * MB, DeviceKind::Table1);
            for at in 0..60 {
                let layout = &files[at as usize * 37 % 60];
                driver.join_at(Tick(at * apart * 1_000_000), at, at, &rate, layout);
            }
            driver.run_until(seconds(60));
            let outcome = &driver.outcome;
            let longest = outcome.startups.iter().map(|start| start.2).max().expect("some start");
            println!("{memory} MB, {apart} ms: {} taken, {longest} ns", outcome.admitted);
            assert!(outcome.glitches.is_empty(), "{memory}, {apart}: {:?}", outcome.glitches);
            assert!(outcome.admitted >= fewest, "{memory}, {apart}: {} taken", outcome.admitted);
            assert!(longest <= 3 * Tick::SECOND, "{memory}, {apart}: {longest} ns");
            assert_eq!(driver.waiting(), 0, "{memory}, {apart}");
        }
    }
}

#[test]
fn crowd_with_a_statistical_guarantee_then_who_would_wait_long_is_refused_and_the_others_start() {
    let started = |startup| {
        let mut config = elastic(64 * MB, Assurance::Statistical(4.0));
        config.admission.startup = startup;
        let mut driver = driver(config, DeviceKind::Table1, 1);
        let rate = Rate::constant(250_000).expect("a rate");
        for (at, layout) in titles(60, 50 * MB, DeviceKind::Table1).iter().enumerate() {
            driver.join_at(Tick(at as u64 * Tick::SECOND / 8), at as u64, at as u64, &rate, layout);
        }
        driver.run_until(seconds(120));
        assert!(driver.outcome.glitches.is_empty(), "{:?}", driver.outcome.glitches);
        let longest = driver.outcome.startups.iter().map(|(_, _, nanos)| *nanos).max();
        (driver.outcome.refused, longest.expect("some start"))
    };
    let (unlimited, limited) = (started(u64::MAX), started(3 * Tick::SECOND));
    assert!(limited.0 > unlimited.0, "{unlimited:?} {limited:?}");
    assert!(limited.1 <= 4 * Tick::SECOND && limited.1 < unlimited.1, "{unlimited:?} {limited:?}");
}

#[test]
fn client_that_says_how_long_it_waits_then_it_is_admitted_or_refused_by_that() {
    let admitted = |max_startup| {
        let mut config = elastic(64 * MB, Assurance::Statistical(4.0));
        config.admission.startup = 3 * Tick::SECOND;
        let mut driver = driver(config, DeviceKind::Table1, 1);
        let rate = Rate::constant(250_000).expect("a rate");
        for (at, layout) in titles(60, 50 * MB, DeviceKind::Table1).iter().enumerate() {
            let (stream, title) = (StreamId(at as u64), Title(at as u64));
            let (rate, layout) = (rate.clone(), layout.clone());
            let join = Event::Join { stream, title, rate, layout, offset: 0, max_startup };
            driver.at(Tick(at as u64 * Tick::SECOND / 8), join);
        }
        driver.run_until(seconds(60));
        driver.outcome.admitted
    };
    let [short, usual, long] =
        [Some(Tick::SECOND / 5), None, Some(60 * Tick::SECOND)].map(admitted);
    assert!(short <= usual && usual < long, "{short} {usual} {long}");
}

#[test]
fn stream_that_comes_to_share_what_is_read_to_the_end_then_it_has_the_end_too() {
    let mut ended = 0;
    // The end of the file is read before the second arrives where the first was when it came.
    for tenths in 9..40 {
        let config =
            Config { interval: 30 * Tick::SECOND, ..elastic(20 * MB, Assurance::Statistical(4.0)) };
        let mut driver = driver(config, DeviceKind::Table1, 1);
        let rate = Rate::constant(250_000).expect("a rate");
        let layout = Layout::contiguous(100 * MB, tenths * 25_000).expect("a layout");
        driver.join_at(Tick(0), 0, 7, &rate, &layout);
        driver.join_at(Tick(Tick::SECOND * 3 / 4), 1, 7, &rate, &layout);
        driver.run_until(seconds(30));
        assert_eq!(driver.outcome.ended, 2, "{tenths}: both have played to the end");
        assert!(driver.outcome.glitches.is_empty(), "{:?}", driver.outcome.glitches);
        ended += driver.machine.counters().shared;
    }
    assert!(ended >= 20, "{ended} came to share");
}

#[test]
fn stream_without_a_guarantee_that_takes_nothing_then_others_without_one_are_read_on() {
    for silent in [false, true] {
        let mut driver = driver(elastic(40 * MB, Assurance::Deterministic), DeviceKind::Table1, 3);
        let rate = Rate::constant(250_000).expect("a rate");
        for (at, layout) in titles(36, 290 * MB, DeviceKind::Table1).iter().enumerate() {
            driver.join_at(seconds(at as u64), at as u64, at as u64, &rate, layout);
        }
        driver.run_until(seconds(120));
        driver.device.slowdown = 1.6;
        driver.run_until(seconds(200));
        let lost = driver.outcome.degraded.clone();
        assert!(lost.len() > 2, "{lost:?}");
        let status = |driver: &Driver, stream: StreamId| driver.machine.status(stream);
        let stops = lost
            .iter()
            .copied()
            .max_by_key(|stream| status(&driver, *stream).and_then(|status| status.dry_at));
        let stops = stops.expect("one");
        if silent {
            driver.stall(stops.0);
        } else {
            driver.at(seconds(200), Event::Pause(stops));
        }
        let filled = |driver: &Driver| -> u64 {
            let others = lost.iter().filter(|stream| **stream != stops);
            others.filter_map(|stream| status(driver, *stream)).map(|status| status.filled).sum()
        };
        driver.run_until(seconds(220));
        let before = filled(&driver);
        driver.run_until(seconds(240));
        assert!(filled(&driver) > before, "{silent}: {lost:?} wait behind {stops:?}");
    }
}
