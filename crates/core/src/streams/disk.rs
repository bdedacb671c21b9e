//! A rotating disk as a formula: seek curve, rotation, zones. The simulator and the emulated device
//! take service times from it, the built-in profiles their quantiles.

/// Seek time over the distance in cylinders: a square root for short seeks, a line for long ones
/// (Ruemmler, Wilkes: "An Introduction to Disk Drive Modeling", IEEE Computer 27(3), 1994). Seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SeekCurve {
    /// Below `long` cylinders: `root.0 + root.1 * sqrt(d)`.
    pub root: (f64, f64),
    /// From `long` cylinders on: `line.0 + line.1 * d`.
    pub line: (f64, f64),
    /// Where the line begins, in cylinders.
    pub long: f64,
}

/// A disk. Cylinders hold equal numbers of bytes (positions on it are bytes); the transfer rate
/// falls linearly from the outermost, position 0, to the innermost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Disk {
    /// Bytes.
    pub capacity: u64,
    /// Cylinders.
    pub cylinders: u32,
    /// Seek times.
    pub seek: SeekCurve,
    /// Seconds a revolution.
    pub revolution: f64,
    /// Bytes a second at the start of the disk.
    pub outer_rate: f64,
    /// Bytes a second at its end.
    pub inner_rate: f64,
}

impl Disk {
    /// The disk of Table 1 of Harizopoulos, Harizakis, Triantafillou ("Hierarchical Caching and
    /// Prefetching for Continuous Media Servers with Smart Disks", IEEE Concurrency 8(3), 2000):
    /// 10,886 MB, 6,720 cylinders, 10,000 rpm, 140 to 220 sectors a track, 14 MB/s on average. The
    /// printed seek function, read in seconds.
    #[must_use]
    pub fn table_1() -> Self {
        Self {
            capacity: 10_886_000_000,
            cylinders: 6_720,
            seek: SeekCurve { root: (1.867e-3, 1.315e-4), line: (3.8635e-3, 2.1e-6), long: 1344.0 },
            revolution: 6e-3,
            outer_rate: 14e6 * 220.0 / 180.0,
            inner_rate: 14e6 * 140.0 / 180.0,
        }
    }

    /// A disk of today: 7,200 rpm, 8 TB, 250 to 120 MB/s, seeks of 1 to 14.5 ms.
    #[must_use]
    pub fn modern() -> Self {
        Self {
            capacity: 8_000_000_000_000,
            cylinders: 300_000,
            seek: SeekCurve {
                root: (1e-3, 2.2e-5),
                line: (4.5e-3, 1e-2 / 300_000.0),
                long: 41_000.0,
            },
            revolution: 60.0 / 7_200.0,
            outer_rate: 250e6,
            inner_rate: 120e6,
        }
    }

    /// Cylinders between two positions, as a real number.
    #[must_use]
    pub fn distance(&self, bytes: u64) -> f64 {
        bytes as f64 / self.capacity as f64 * f64::from(self.cylinders)
    }

    /// Seconds to move the head over so many bytes of the disk; none within the cylinder.
    #[must_use]
    pub fn seek(&self, bytes: u64) -> f64 {
        self.seek_cylinders(self.distance(bytes))
    }

    /// Seconds to move the head over so many cylinders; none below one.
    #[must_use]
    pub fn seek_cylinders(&self, distance: f64) -> f64 {
        if distance < 1.0 {
            0.0
        } else if distance < self.seek.long {
            self.seek.root.0 + self.seek.root.1 * distance.sqrt()
        } else {
            self.seek.line.0 + self.seek.line.1 * distance
        }
    }

    /// Bytes a second at a position.
    #[must_use]
    pub fn rate_at(&self, position: u64) -> f64 {
        let along = (position as f64 / self.capacity as f64).clamp(0.0, 1.0);
        self.outer_rate + (self.inner_rate - self.outer_rate) * along
    }

    /// Seconds to read `bytes` at `to` with the head at `from`, when the disk has to turn by
    /// `rotation` (0 to 1) of a revolution first. What follows the head's position directly needs
    /// neither seek nor rotation.
    #[must_use]
    pub fn service(&self, from: u64, to: u64, bytes: u64, rotation: f64) -> f64 {
        let transfer = bytes as f64 / self.rate_at(to);
        if from == to {
            return transfer;
        }
        self.seek(from.abs_diff(to)) + rotation * self.revolution + transfer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_1_then_average_seek_and_rate_as_printed() {
        let disk = Disk::table_1();
        // Over two random positions: distance with the density 2 (1 - x).
        let steps = 10_000;
        let mean: f64 = (0..steps)
            .map(|at| (f64::from(at) + 0.5) / f64::from(steps))
            .map(|x| 2.0 * (1.0 - x) * disk.seek_cylinders(x * 6_720.0) / f64::from(steps))
            .sum();
        assert!((7.5e-3..8.8e-3).contains(&mean), "{mean}");
        assert!((disk.rate_at(disk.capacity / 2) - 14e6).abs() < 1.0);
        let sequential = disk.service(5, 5, 14_000, 0.9);
        assert!(sequential < 1e-3, "{sequential}");
    }

    #[test]
    fn modern_then_seeks_of_1_to_15_ms() {
        let disk = Disk::modern();
        assert!((disk.seek_cylinders(1.0) - 1e-3).abs() < 1e-4);
        assert!((disk.seek(disk.capacity) - 14.5e-3).abs() < 1e-4);
        let (before, after) = (disk.seek_cylinders(40_999.0), disk.seek_cylinders(41_000.0));
        assert!(before <= after && after - before < 1e-3, "{before} {after}");
    }
}
