//! Simulated devices with titles, and the players of them, for the tests of streams.

use forebay_core::streams::admission::{AdmissionConfig, Assurance};
use forebay_core::streams::layout::Layout;
use forebay_core::streams::machine::{Config, Machine};
use forebay_core::unit::Tick;
use forebay_sim::streams::device::{Device, DeviceKind};
use forebay_sim::streams::driver::Driver;

pub const MB: u64 = 1_000_000;
pub const CHUNK: u64 = 16_384;

pub fn seconds(count: u64) -> Tick {
    Tick(count * Tick::SECOND)
}

pub fn elastic(memory: u64, assurance: Assurance) -> Config {
    let admission = AdmissionConfig { memory, chunk: CHUNK, assurance, ..Default::default() };
    Config { admission, request: 16 << 20, interval: 0, ..Default::default() }
}

pub fn driver(config: Config, kind: DeviceKind, seed: u64) -> Driver {
    let chunk = config.admission.chunk;
    let machine = Machine::new(kind.profile(), config).expect("a configuration");
    Driver::new(machine, Device::new(kind, seed), chunk)
}

/// So many titles over the whole device.
pub fn titles(count: u64, bytes: u64, kind: DeviceKind) -> Vec<Layout> {
    let step = kind.profile().capacity / count;
    (0..count).map(|at| Layout::contiguous(at * step, bytes).expect("a layout")).collect()
}
