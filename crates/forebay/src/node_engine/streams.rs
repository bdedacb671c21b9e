//! Streams of a mount: the device by which they are admitted, and what status says of them.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

use forebay::config::{MountConfig, StreamDevice};
use forebay::control::{ControlError, ControlResult, ErrorKind, RefusedStream, Streams};
use forebay_core::streams::profile::DeviceProfile;
use forebay_node::{Node, StreamsConfig};
use forebay_streams::device::{self, Model};
use forebay_streams::measure::measure;

use super::convert::wire_path;

/// How long a device is measured that has no profile.
const MEASUREMENT: Duration = Duration::from_secs(5);
/// Where the measurement is kept, in the state directory.
const KEPT: &str = "stream-profile.json";

fn wrong(what: &str, why: impl std::fmt::Display) -> ControlError {
    ControlError::new(ErrorKind::Usage, format!("{what}: {why}"))
}

/// How the node shall serve streams, with so many bytes of its fastest tier.
pub fn config(config: &MountConfig, fastest: u64) -> ControlResult<Option<StreamsConfig>> {
    let Some(settings) = &config.streams else { return Ok(None) };
    if config.throttle.is_some() {
        return Err(wrong("--stream-profile", "can't be given together with --throttle"));
    }
    let emulate = match &settings.emulate {
        None => None,
        Some(StreamDevice::BuiltIn(name)) => Model::named(name),
        Some(StreamDevice::File(path)) => Some(Model::Profile(from_file(path)?)),
        Some(StreamDevice::Measure) => None,
    };
    let profile = match &settings.profile {
        StreamDevice::BuiltIn(name) => DeviceProfile::built_in(name)
            .ok_or_else(|| wrong("--stream-profile", format!("no device '{name}' is known")))?,
        StreamDevice::File(path) => from_file(path)?,
        StreamDevice::Measure => measured(config)?,
    };
    let beginnings = settings.beginnings.of(fastest).min(fastest);
    let titles = settings.titles.of(fastest).min(fastest);
    let (memory, idle) = (settings.memory, forebay_streams::IDLE);
    Ok(Some(StreamsConfig { profile, memory, beginnings, titles, idle, emulate }))
}

fn from_file(path: &Path) -> ControlResult<DeviceProfile> {
    let name = path.display().to_string();
    let text = fs::read_to_string(path).map_err(|error| wrong(&name, error))?;
    DeviceProfile::from_json(&text).map_err(|error| wrong(&name, error))
}

/// What was measured at the first mount; then it is measured.
fn measured(config: &MountConfig) -> ControlResult<DeviceProfile> {
    let kept = config.state_dir.join(KEPT);
    if kept.exists() {
        return from_file(&kept);
    }
    let seconds = MEASUREMENT.as_secs();
    tracing::info!(seconds, kept = %kept.display(), "measuring the device of the backing store");
    let device = device::real();
    let measured = measure(device.as_ref(), &config.backing, MEASUREMENT, &mut |_| ());
    let what = "--stream-profile measure";
    let profile = measured.map_err(|error| wrong(what, error))?.profile;
    let text = profile.to_json().map_err(|error| wrong(what, error))?;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&config.state_dir)
        .and_then(|()| fs::write(&kept, text))
        .map_err(|error| wrong(&kept.display().to_string(), error))?;
    Ok(profile)
}

/// What the streams of a node are doing.
pub fn status(node: &Node) -> Option<Streams> {
    let report = node.streams_report()?;
    let refused = report.refused.into_iter().map(|refused| RefusedStream {
        path: wire_path(refused.path),
        rate: refused.rate,
        why: refused.why,
    });
    Some(Streams { service: report.status, refused: refused.collect() })
}
