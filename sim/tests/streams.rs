//! The round machine under simulated devices and clients.

use forebay_core::streams::admission::{AdmissionConfig, Assurance};
use forebay_core::streams::layout::Layout;
use forebay_core::streams::machine::{Config, Machine, Rounds, Scheme};
use forebay_core::streams::rate::Rate;
use forebay_core::unit::Tick;
use forebay_sim::streams::device::{Device, DeviceKind};
use forebay_sim::streams::driver::Driver;

const MB: u64 = 1_000_000;
const CHUNK: u64 = 16_384;

fn seconds(count: u64) -> Tick {
    Tick(count * Tick::SECOND)
}

fn elastic(memory: u64, assurance: Assurance) -> Config {
    let admission = AdmissionConfig { memory, chunk: CHUNK, assurance, ..Default::default() };
    Config { admission, request: 16 << 20, ..Default::default() }
}

fn driver(config: Config, kind: DeviceKind, seed: u64) -> Driver {
    let chunk = config.admission.chunk;
    let machine = Machine::new(kind.profile(), config).expect("a configuration");
    Driver::new(machine, Device::new(kind, seed), chunk)
}

/// So many titles over the whole device.
fn titles(count: u64, bytes: u64, kind: DeviceKind) -> Vec<Layout> {
    let step = kind.profile().capacity / count;
    (0..count).map(|at| Layout::contiguous(at * step, bytes).expect("a layout")).collect()
}

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
