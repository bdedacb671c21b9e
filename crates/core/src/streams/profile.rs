//! What a device can do: how long it takes to get to a place, how fast it reads there, and whether
//! something throttles it. Measured, or one of the built-in ones.

use serde::{Deserialize, Serialize};

use super::disk::Disk;

/// Version of the JSON form.
pub const VERSION: u32 = 1;
const MAX_ENTRIES: usize = 4_096;
/// Ratio between the distances of a modelled disk's entries: chords of the seek curve then stay
/// within 0.1 % of it.
const RATIO: f64 = 1.1;
const ZONES: u64 = 64;

/// Names of the built-in profiles.
pub const BUILT_IN: [&str; 4] = ["table1", "disk", "ssd", "object"];

/// Seconds until the first byte of a read that does not follow the last one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AccessTime {
    /// From the end of the last read, in bytes of the device.
    pub distance: u64,
    /// Mean.
    pub mean: f64,
    /// Variance, in seconds squared.
    pub variance: f64,
    /// Shortest.
    pub least: f64,
    /// Median.
    pub median: f64,
    /// 99 % take no longer.
    pub q99: f64,
    /// The longest there is by the model; of a measured device 99.9 % take no longer.
    pub worst: f64,
}

impl AccessTime {
    /// That of a device without geography, by mean, standard deviation and longest.
    fn anywhere(mean: f64, deviation: f64, worst: f64) -> Self {
        AccessTime {
            distance: 0,
            mean,
            variance: deviation * deviation,
            least: mean / 2.0,
            median: mean,
            q99: mean + 3.0 * deviation,
            worst,
        }
    }
}

/// A part of the device that reads at one rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Zone {
    /// First byte beyond it.
    pub end: u64,
    /// Bytes a second.
    pub rate: f64,
}

/// A token bucket in front of the device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Throttle {
    /// Bytes a second in the long run.
    pub rate: f64,
    /// Bytes that may pass at once.
    pub burst: f64,
}

/// A device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceProfile {
    /// [`VERSION`].
    pub version: u32,
    /// For people.
    pub name: String,
    /// Bytes.
    pub capacity: u64,
    /// In order of distance; between two entries a straight line holds.
    pub access: Vec<AccessTime>,
    /// In order of position, up to the capacity at least.
    pub zones: Vec<Zone>,
    /// What throttles it, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttle: Option<Throttle>,
    /// Seconds that a run of reads takes at most beyond what its reads take one by one, whichever they
    /// are and however many: what throttles a device gives its budget in slices, and whoever comes
    /// when one is used up waits for the next (the latency of a latency-rate server: Stiliadis, Varma,
    /// "Latency-rate servers", IEEE/ACM Transactions on Networking 6(5), 1998). 0 for most devices.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub delay: f64,
    /// Reads that it serves at the same time at no loss for each: 1 for a disk, the connections of an
    /// object store.
    pub parallel: u32,
}

// As serde wants it.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(seconds: &f64) -> bool {
    *seconds == 0.0
}

/// A profile that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// It is no JSON, or lacks something.
    #[error("the device profile is damaged, measure the device again: {0}")]
    Syntax(#[from] serde_json::Error),
    /// It was written by another version.
    #[error("the device profile has version {0}, this program reads {VERSION}; measure again")]
    Version(u32),
    /// Numbers that make no device.
    #[error("the device profile is wrong, measure the device again: {0}")]
    Values(&'static str),
}

fn positive(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

impl DeviceProfile {
    /// A built-in profile: `table1`, `disk`, `ssd` or `object`.
    #[must_use]
    pub fn built_in(name: &str) -> Option<Self> {
        match name {
            "table1" => Some(Self::of_disk("table1", &Disk::table_1())),
            "disk" => Some(Self::of_disk("disk", &Disk::modern())),
            "ssd" => Some(Self::uniform("ssd", AccessTime::anywhere(80e-6, 40e-6, 1e-3), 2e9, 4)),
            "object" => {
                Some(Self::uniform("object", AccessTime::anywhere(40e-3, 20e-3, 0.4), 80e6, 16))
            }
            _ => None,
        }
    }

    /// A device without geography, which takes as long to get anywhere.
    fn uniform(name: &str, access: AccessTime, rate: f64, parallel: u32) -> Self {
        let capacity = 4_000_000_000_000;
        let zones = vec![Zone { end: capacity, rate }];
        let (version, name, access) = (VERSION, name.to_owned(), vec![access]);
        Self { version, name, capacity, access, zones, throttle: None, delay: 0.0, parallel }
    }

    /// The profile of a modelled disk. Rotation is uniform over a revolution.
    #[must_use]
    pub fn of_disk(name: &str, disk: &Disk) -> Self {
        let turn = disk.revolution;
        let entry = |cylinders: f64| {
            let seek = disk.seek_cylinders(cylinders);
            AccessTime {
                distance: (cylinders / f64::from(disk.cylinders) * disk.capacity as f64) as u64,
                mean: seek + turn / 2.0,
                variance: turn * turn / 12.0,
                least: seek,
                median: seek + turn / 2.0,
                q99: seek + 0.99 * turn,
                worst: seek + turn,
            }
        };
        let mut access = vec![entry(0.0)];
        let mut cylinders = 1.0;
        while cylinders < f64::from(disk.cylinders) {
            access.push(entry(cylinders));
            cylinders *= RATIO;
        }
        access.push(entry(f64::from(disk.cylinders)));
        let zones = (1..=ZONES).map(|zone| {
            let end = (u128::from(disk.capacity) * u128::from(zone) / u128::from(ZONES)) as u64;
            Zone { end, rate: disk.rate_at(end) }
        });
        Self {
            version: VERSION,
            name: name.to_owned(),
            capacity: disk.capacity,
            access,
            zones: zones.collect(),
            throttle: None,
            delay: 0.0,
            parallel: 1,
        }
    }

    /// Reads a profile.
    ///
    /// # Errors
    /// [`ProfileError`] if it is damaged, of another version, or makes no sense.
    pub fn from_json(text: &str) -> Result<Self, ProfileError> {
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }
        let head: Head = serde_json::from_str(text)?;
        if head.version != VERSION {
            return Err(ProfileError::Version(head.version));
        }
        let profile: Self = serde_json::from_str(text)?;
        profile.check()?;
        Ok(profile)
    }

    /// The profile as JSON, for [`Self::from_json`].
    ///
    /// # Errors
    /// [`ProfileError::Values`] if it would not be read again.
    pub fn to_json(&self) -> Result<String, ProfileError> {
        self.check()?;
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Checks that the numbers make a device.
    ///
    /// # Errors
    /// [`ProfileError::Values`] says what is wrong.
    pub fn check(&self) -> Result<(), ProfileError> {
        let wrong = |what| Err(ProfileError::Values(what));
        if self.access.is_empty() || self.access.len() > MAX_ENTRIES {
            return wrong("it needs 1 to 4096 access times");
        }
        if self.zones.is_empty() || self.zones.len() > MAX_ENTRIES {
            return wrong("it needs 1 to 4096 zones");
        }
        if self.access.windows(2).any(|pair| pair[0].distance >= pair[1].distance) {
            return wrong("access times must be in order of distance");
        }
        if self.access.windows(2).any(|pair| pair[0].worst > pair[1].worst) {
            return wrong("the longest access time must not fall with distance");
        }
        let sound = |time: &AccessTime| {
            let ordered = 0.0 <= time.least && time.least <= time.mean && time.mean <= time.worst;
            ordered && time.variance >= 0.0 && time.worst.is_finite() && time.variance.is_finite()
        };
        if !self.access.iter().all(sound) {
            return wrong("an access time must have least <= mean <= worst, none negative");
        }
        if self.zones.windows(2).any(|pair| pair[0].end >= pair[1].end) {
            return wrong("zones must be in order of position");
        }
        if !self.zones.iter().all(|zone| positive(zone.rate)) {
            return wrong("a zone needs a rate");
        }
        if self.throttle.is_some_and(|t| !positive(t.rate) || t.burst.is_nan() || t.burst < 0.0) {
            return wrong("a throttle needs a rate and a burst");
        }
        if !self.delay.is_finite() || self.delay < 0.0 {
            return wrong("a delay must not be negative");
        }
        if self.parallel == 0 || self.parallel > 1_024 {
            return wrong("parallel must be 1 to 1024");
        }
        Ok(())
    }

    /// The access time over a distance.
    #[must_use]
    pub fn access(&self, distance: u64) -> AccessTime {
        let after = self.access.partition_point(|entry| entry.distance <= distance);
        let Some(low) = after.checked_sub(1).and_then(|at| self.access.get(at)) else {
            return AccessTime { distance, ..self.access[0] };
        };
        let Some(high) = self.access.get(after) else {
            return AccessTime { distance, ..*low };
        };
        let along = (distance - low.distance) as f64 / (high.distance - low.distance) as f64;
        let mix = |from: f64, to: f64| from + (to - from) * along;
        AccessTime {
            distance,
            mean: mix(low.mean, high.mean),
            variance: mix(low.variance, high.variance),
            least: mix(low.least, high.least),
            median: mix(low.median, high.median),
            q99: mix(low.q99, high.q99),
            worst: mix(low.worst, high.worst),
        }
    }

    /// The same for a larger device of this kind: getting across all of it takes as long, and its zones
    /// lie in proportion. A device that is not larger stays as it is.
    #[must_use]
    pub fn stretched(mut self, capacity: u64) -> Self {
        if capacity <= self.capacity {
            return self;
        }
        let stretch = |at: u64| {
            let far = u128::from(at) * u128::from(capacity) / u128::from(self.capacity.max(1));
            u64::try_from(far).unwrap_or(u64::MAX)
        };
        for entry in &mut self.access {
            entry.distance = stretch(entry.distance);
        }
        for zone in &mut self.zones {
            zone.end = stretch(zone.end);
        }
        self.capacity = capacity;
        self
    }

    fn zone(&self, position: u64) -> usize {
        let at = self.zones.partition_point(|zone| zone.end <= position);
        at.min(self.zones.len() - 1)
    }

    /// Bytes a second at a position.
    #[must_use]
    pub fn rate_at(&self, position: u64) -> f64 {
        self.zones[self.zone(position)].rate
    }

    /// The slowest rate between two positions, in bytes a second.
    #[must_use]
    pub fn slowest_in(&self, from: u64, to: u64) -> f64 {
        let zones = &self.zones[self.zone(from)..=self.zone(to.max(from))];
        zones.iter().map(|zone| zone.rate).fold(f64::INFINITY, f64::min)
    }

    /// The fastest rate anywhere, in bytes a second.
    #[must_use]
    pub fn fastest(&self) -> f64 {
        self.zones.iter().map(|zone| zone.rate).fold(0.0, f64::max)
    }

    /// Mean seconds to read `bytes` at `position` from `distance` bytes away; 0 away is contiguous.
    #[must_use]
    pub fn expected(&self, distance: u64, position: u64, bytes: u64) -> f64 {
        let access = if distance == 0 { 0.0 } else { self.access(distance).mean };
        access + bytes as f64 / self.rate_at(position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_profiles_then_sound_and_the_same_from_json() {
        for name in BUILT_IN {
            let profile = DeviceProfile::built_in(name).expect("built in");
            let text = profile.to_json().expect("sound");
            let again = DeviceProfile::from_json(&text).expect("readable");
            assert_eq!((&again.name, again.zones.len()), (&profile.name, profile.zones.len()));
            let far = |profile: &DeviceProfile| profile.expected(1 << 32, 1 << 33, 1 << 20);
            assert!((far(&again) - far(&profile)).abs() < 1e-9, "{name}");
        }
        assert!(DeviceProfile::built_in("drum").is_none());
    }

    #[test]
    fn access_of_a_disk_then_near_its_seek_curve() {
        let disk = Disk::table_1();
        let profile = DeviceProfile::of_disk("d", &disk);
        for cylinders in [1.5, 7.0, 177.0, 1_000.0, 5_000.0, 6_720.0] {
            let distance = (cylinders / 6_720.0 * disk.capacity as f64) as u64;
            let access = profile.access(distance);
            let exact = disk.seek(distance);
            assert!((access.least - exact).abs() < 0.004 * exact, "{cylinders}: {access:?}");
            assert!((access.worst - access.least - 6e-3).abs() < 1e-9);
        }
        let rate = profile.rate_at(disk.capacity / 2);
        assert!((13.7e6..14e6).contains(&rate), "{rate}");
        assert!(profile.slowest_in(0, disk.capacity) < 11e6);
    }

    #[test]
    fn stretched_to_a_larger_device_then_as_long_across_it_and_zones_in_proportion() {
        let small = DeviceProfile::built_in("table1").expect("built in");
        let large = small.clone().stretched(small.capacity * 100);
        assert!(large.check().is_ok());
        for distance in [small.capacity / 1_000, small.capacity / 3, small.capacity] {
            let (near, far) = (small.access(distance), large.access(distance * 100));
            assert!((near.worst - far.worst).abs() < 1e-5, "{distance}: {near:?} {far:?}");
            let (inner, outer) = (small.rate_at(distance), large.rate_at(distance * 100));
            assert!((inner - outer).abs() < 1.0, "{distance}");
        }
        assert_eq!(small.clone().stretched(5), small);
    }

    #[test]
    fn from_json_of_damaged_profiles_then_told_so() {
        let good = DeviceProfile::built_in("ssd").expect("built in").to_json().expect("sound");
        let other = good.replace("\"version\": 1", "\"version\": 9");
        assert!(matches!(DeviceProfile::from_json(&other), Err(ProfileError::Version(9))));
        let cut = &good[..good.len() / 2];
        assert!(matches!(DeviceProfile::from_json(cut), Err(ProfileError::Syntax(_))));
        let late = good.replace("\"parallel\": 4", "\"parallel\": 4, \"delay\": -1.0");
        assert!(matches!(DeviceProfile::from_json(&late), Err(ProfileError::Values(_))));
        let idle = good.replace("\"parallel\": 4", "\"parallel\": 0");
        assert!(matches!(DeviceProfile::from_json(&idle), Err(ProfileError::Values(_))));
    }
}
