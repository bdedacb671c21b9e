//! Devices by their models: how long a read takes.

use forebay_core::streams::disk::Disk;
use forebay_core::streams::profile::DeviceProfile;

use crate::rng::Rng;

/// The four devices, by the names of their built-in profiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum DeviceKind {
    /// The disk of the paper's Table 1
    Table1,
    /// A 7,200 rpm disk of today
    Disk,
    /// A solid-state disk
    Ssd,
    /// An object store over a network
    Object,
}

impl DeviceKind {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Table1 => "table1",
            Self::Disk => "disk",
            Self::Ssd => "ssd",
            Self::Object => "object",
        }
    }

    /// Its profile.
    #[must_use]
    pub fn profile(self) -> DeviceProfile {
        DeviceProfile::built_in(self.name()).expect("all four are built in")
    }
}

#[derive(Debug, Clone)]
enum Model {
    Disk(Disk),
    Uniform(DeviceProfile),
}

/// A device at work.
#[derive(Debug, Clone)]
pub struct Device {
    model: Model,
    head: u64,
    rng: Rng,
    /// Every read takes so many times as long as the model says.
    pub slowdown: f64,
    /// Every access takes the longest time that the profile has for it.
    pub worst: bool,
}

impl Device {
    /// A device; equal seeds give equal times.
    #[must_use]
    pub fn new(kind: DeviceKind, seed: u64) -> Self {
        let model = match kind {
            DeviceKind::Table1 => Model::Disk(Disk::table_1()),
            DeviceKind::Disk => Model::Disk(Disk::modern()),
            DeviceKind::Ssd | DeviceKind::Object => Model::Uniform(kind.profile()),
        };
        Self { model, head: 0, rng: Rng::new(seed), slowdown: 1.0, worst: false }
    }

    /// Nanoseconds of a read that begins now.
    pub fn read(&mut self, physical: u64, bytes: u64) -> u64 {
        let seconds = match &self.model {
            Model::Disk(disk) => {
                let rotation = if self.worst { 1.0 } else { self.rng.unit() };
                disk.service(self.head, physical, bytes, rotation)
            }
            Model::Uniform(profile) => {
                let access = profile.access(0);
                let drawn = access.mean + access.variance.sqrt() * self.rng.normal();
                let drawn = if self.worst { access.worst } else { drawn };
                drawn.clamp(access.least, access.worst) + bytes as f64 / profile.rate_at(physical)
            }
        };
        self.head = physical + bytes;
        (seconds * self.slowdown * 1e9) as u64
    }
}
