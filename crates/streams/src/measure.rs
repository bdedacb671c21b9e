//! Measuring a device into a profile: read-only, in bounded time, without scratch files.
//!
//! Access times are taken at queue depth one: a small read brings the head to a place, a second one
//! at a given distance is timed, less the time that its bytes take. Rates are those of sequential
//! reads at places spread over the device. What throttles a device lets short runs of reads pass, so
//! longer ones follow, of the sizes that streams are read with (`sustained`).

mod sustained;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::model::{AccessTime, DeviceProfile, PROFILE_VERSION, Throttle, Zone};
use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::device::{Completion, Device, Read};
use crate::error::Error;
use crate::media::Media;
use crate::pool::{ALIGNMENT, Pool};

/// Bytes of a read whose access time is measured.
const SMALL: usize = ALIGNMENT;
/// Bytes of a read whose rate is measured.
const LARGE: usize = 1 << 20;
/// Files below this size say little about a device.
const FILE_LEAST: u64 = 4 << 20;
/// Files that are measured in, the largest ones.
const FILES_MAX: usize = 64;
/// Entries of a directory tree that are looked at.
const ENTRIES_MAX: usize = 100_000;
/// Places at which the rate is measured.
const ZONES: usize = 16;
/// No device is waited for longer than this.
const READ_LIMIT: Duration = Duration::from_secs(30);

/// How far a measurement is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// What is being measured.
    pub phase: &'static str,
    /// Of the time allowed, from 0 to 1.
    pub done: f64,
}

/// What was measured, and in what.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The result.
    pub profile: DeviceProfile,
    /// What was done, in sentences for people.
    pub notes: Vec<String>,
}

/// A part of the device that may be read, and where it is in which file.
#[derive(Clone, Copy, Debug)]
struct Segment {
    file: usize,
    logical: u64,
    physical: u64,
    bytes: u64,
}

/// What is measured.
struct Targets {
    medias: Vec<Arc<Media>>,
    /// In the order of the device; each holds at least one large read.
    segments: Vec<Segment>,
    total: u64,
}

/// Measures a block device, a large file, or the device below a directory inside the large files
/// there, in about `limit`.
///
/// # Errors
/// If the target can't be read, or a directory holds no file that is large enough.
pub fn measure(
    device: &dyn Device,
    target: &Path,
    limit: Duration,
    progress: &mut dyn FnMut(Progress),
) -> Result<Measurement, Error> {
    let mut notes = Vec::new();
    let (targets, capacity) = survey(device, target, &mut notes)?;
    let mut bench = Bench::new(device, targets, limit, progress)?;
    let zones = bench.zones(capacity)?;
    let access = bench.access_times(&zones)?;
    let parallel = bench.parallel()?;
    let throttle = bench.throttle()?;
    let (version, name, delay) = (PROFILE_VERSION, target.display().to_string(), 0.0);
    let profile =
        DeviceProfile { version, name, capacity, access, zones, throttle, delay, parallel };
    let profile = bench.sustained(profile, &mut notes)?;
    notes.push(format!("{} reads, {} s", bench.reads, bench.begun.elapsed().as_secs()));
    if bench.targets.medias.iter().any(|media| !media.is_direct()) {
        notes.push("no direct I/O here: times may be those of a cache".into());
    }
    profile.check().map_err(|error| Error::Profile(error.to_string()))?;
    Ok(Measurement { profile, notes })
}

/// Finds out what there is to read.
fn survey(
    device: &dyn Device,
    target: &Path,
    notes: &mut Vec<String>,
) -> Result<(Targets, u64), Error> {
    let at = |source| Error::File { path: target.to_path_buf(), source };
    let kind = std::fs::metadata(target).map_err(at)?;
    let paths =
        if kind.is_dir() { largest_files(target).map_err(at)? } else { vec![target.into()] };
    if paths.is_empty() {
        return Err(Error::Profile(format!(
            "{}: no file of at least 4 MiB to measure in; put a large file there (1 GiB or more is \
             best), or name the block device",
            target.display()
        )));
    }
    let mut targets = Targets { medias: Vec::new(), segments: Vec::new(), total: 0 };
    for path in &paths {
        let at = |source| Error::File { path: path.clone(), source };
        let file = File::open(path).map_err(at)?;
        let bytes =
            rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(|e| at(e.into()))?;
        let mut key = Media::key_of(&file).map_err(at)?;
        key.size = bytes;
        let layout = if kind.file_type().is_block_device() {
            crate::model::Layout::contiguous(0, bytes.max(1)).expect("from byte 0 on")
        } else {
            device.layout(&file, key)
        };
        for extent in layout.extents() {
            // Direct reads begin on the grid, of the file and of the device alike.
            let logical = extent.logical.next_multiple_of(ALIGNMENT as u64);
            let skipped = logical - extent.logical;
            let bytes = extent.bytes.saturating_sub(skipped);
            if bytes >= LARGE as u64 {
                let (file, physical) = (targets.medias.len(), extent.physical + skipped);
                targets.segments.push(Segment { file, logical, physical, bytes });
                targets.total += bytes;
            }
        }
        targets.medias.push(Arc::new(Media::new(file, device.access(), layout).map_err(at)?));
    }
    if targets.segments.is_empty() {
        return Err(Error::Profile(format!(
            "{}: no piece of 1 MiB to measure in",
            target.display()
        )));
    }
    targets.segments.sort_by_key(|segment| segment.physical);
    let last = targets.segments.iter().map(|s| s.physical + s.bytes).max().unwrap_or(1);
    let whole = if kind.is_dir() { device_bytes(target) } else { None };
    let capacity = whole.unwrap_or(0).max(last);
    notes.push(format!(
        "measured in {} file(s), {} MiB in {} piece(s)",
        targets.medias.len(),
        targets.total >> 20,
        targets.segments.len()
    ));
    Ok((targets, capacity))
}

/// Bytes of the block device that a directory is on, if the kernel tells.
pub(crate) fn device_bytes(directory: &Path) -> Option<u64> {
    let device = rustix::fs::stat(directory).ok()?.st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let text = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/size")).ok()?;
    Some(text.trim().parse::<u64>().ok()? * 512)
}

/// The largest regular files below a directory, on the same file system.
fn largest_files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let device = rustix::fs::stat(dir)?.st_dev;
    let (mut found, mut waiting, mut seen) = (Vec::new(), vec![dir.to_path_buf()], 0);
    while let Some(dir) = waiting.pop() {
        for entry in std::fs::read_dir(&dir)?.flatten() {
            seen += 1;
            if seen > ENTRIES_MAX {
                break;
            }
            let Ok(kind) = entry.metadata() else { continue };
            if std::os::unix::fs::MetadataExt::dev(&kind) != device {
                continue;
            }
            if kind.is_dir() {
                waiting.push(entry.path());
            } else if kind.is_file() && kind.len() >= FILE_LEAST {
                found.push((kind.len(), entry.path()));
            }
        }
    }
    found.sort_by(|a, b| b.cmp(a));
    found.truncate(FILES_MAX);
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

struct Bench<'a> {
    device: &'a dyn Device,
    targets: Targets,
    small: Arc<Pool>,
    large: Arc<Pool>,
    reply: Sender<Completion>,
    replies: Receiver<Completion>,
    begun: Instant,
    limit: Duration,
    random: u64,
    reads: u64,
    progress: &'a mut dyn FnMut(Progress),
}

impl<'a> Bench<'a> {
    fn new(
        device: &'a dyn Device,
        targets: Targets,
        limit: Duration,
        progress: &'a mut dyn FnMut(Progress),
    ) -> Result<Self, Error> {
        let small = Pool::new(16 * SMALL as u64, SMALL).map_err(Error::Memory)?;
        let large = Pool::new(2 * LARGE as u64, LARGE / 16).map_err(Error::Memory)?;
        // As many replies as reads are under way, which is a few.
        let (reply, replies) = unbounded();
        let begun = Instant::now();
        let (random, reads) = (42, 0);
        Ok(Self {
            device,
            targets,
            small,
            large,
            reply,
            replies,
            begun,
            limit,
            random,
            reads,
            progress,
        })
    }

    fn passed(&self) -> f64 {
        self.begun.elapsed().as_secs_f64() / self.limit.as_secs_f64()
    }

    fn show(&mut self, phase: &'static str) {
        let done = self.passed().min(1.0);
        (self.progress)(Progress { phase, done });
    }

    fn draw(&mut self, below: u64) -> u64 {
        // Numerical Recipes' 64-bit linear congruence; its high bits are good enough for places.
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.random) * u128::from(below.max(1))) >> 64) as u64
    }

    fn submit(&mut self, file: usize, offset: u64, bytes: usize) -> Result<(), Error> {
        let pool = if bytes <= SMALL { &self.small } else { &self.large };
        let chunks = bytes.div_ceil(pool.chunk_bytes());
        let chunks: Option<Vec<_>> = (0..chunks).map(|_| pool.take()).collect();
        let chunks = chunks.ok_or_else(|| Error::Profile("reads do not come back".into()))?;
        let (media, reply) = (Arc::clone(&self.targets.medias[file]), self.reply.clone());
        self.device.submit(Read { token: 0, media, offset, chunks, reply });
        self.reads += 1;
        Ok(())
    }

    fn wait(&mut self) -> Result<(Instant, Instant), Error> {
        let completion = self.replies.recv_timeout(READ_LIMIT).map_err(|_| {
            Error::Profile(format!("the device has not answered for {} s", READ_LIMIT.as_secs()))
        })?;
        completion.result.map_err(Error::Device)?;
        Ok((completion.started, completion.ended))
    }

    fn timed(&mut self, file: usize, offset: u64, bytes: usize) -> Result<Duration, Error> {
        self.submit(file, offset, bytes)?;
        let (started, ended) = self.wait()?;
        Ok(ended - started)
    }

    /// What can be read at a place of the device, or nearest to it, and `bytes` after it.
    fn near(&self, position: u64, bytes: u64) -> (usize, u64, u64) {
        let segments = &self.targets.segments;
        let at = segments.partition_point(|segment| segment.physical + segment.bytes <= position);
        let Segment { file, logical, physical, bytes: room } = segments[at.min(segments.len() - 1)];
        let within = position.saturating_sub(physical).min(room.saturating_sub(bytes));
        let within = within / ALIGNMENT as u64 * ALIGNMENT as u64;
        (file, logical + within, physical + within)
    }

    /// A random place among what can be read.
    fn anywhere(&mut self) -> u64 {
        let mut left = self.draw(self.targets.total);
        for segment in &self.targets.segments {
            if left < segment.bytes {
                return segment.physical + left;
            }
            left -= segment.bytes;
        }
        self.targets.segments[0].physical
    }

    /// The rate at places spread over the device: until a tenth of the time is over, but each at
    /// least once.
    fn zones(&mut self, capacity: u64) -> Result<Vec<Zone>, Error> {
        let last = self.targets.segments.iter().map(|s| s.physical + s.bytes).max().unwrap_or(1);
        let first = self.targets.segments[0].physical;
        let width = ((last - first) / ZONES as u64).max(LARGE as u64);
        let mut rates: Vec<Vec<f64>> = vec![Vec::new(); ((last - first).div_ceil(width)) as usize];
        while rates[0].is_empty() || self.passed() < 0.1 {
            for (zone, rates) in rates.iter_mut().enumerate() {
                self.show("transfer rate");
                let start = first + zone as u64 * width + self.draw(width / 2);
                let (file, offset, _) = self.near(start, 3 * LARGE as u64);
                // The first read gets there; those that follow it directly are timed.
                self.timed(file, offset, LARGE)?;
                let room = self.targets.medias[file].size();
                for part in 1..3 {
                    let offset = offset + part * LARGE as u64;
                    if offset + LARGE as u64 <= room {
                        let took = self.timed(file, offset, LARGE)?;
                        rates.push(LARGE as f64 / took.as_secs_f64().max(1e-9));
                    }
                }
                if rates.is_empty() {
                    let took = self.timed(file, offset, LARGE)?;
                    rates.push(LARGE as f64 / took.as_secs_f64().max(1e-9));
                }
            }
        }
        let mut zones: Vec<Zone> = Vec::new();
        for (at, mut rates) in rates.into_iter().enumerate() {
            rates.sort_by(f64::total_cmp);
            // The median: neither a hiccup nor a cache decides.
            let rate = rates[rates.len() / 2];
            zones.push(Zone { end: first + (at as u64 + 1) * width, rate });
        }
        if let Some(last) = zones.last_mut() {
            last.end = last.end.max(capacity);
        }
        Ok(zones)
    }

    /// Access times by distance, from the shortest to across all targets, until half of the time
    /// is over.
    fn access_times(&mut self, zones: &[Zone]) -> Result<Vec<AccessTime>, Error> {
        let first = self.targets.segments[0].physical;
        let last = self.targets.segments.iter().map(|s| s.physical + s.bytes).max().unwrap_or(1);
        let mut distances = vec![];
        let mut distance = 1u64 << 20;
        while distance < last - first {
            distances.push(distance);
            distance *= 4;
        }
        if distances.is_empty() {
            distances.push((last - first) / 2);
        }
        let mut samples: Vec<Vec<f64>> = vec![Vec::new(); distances.len()];
        while samples[0].len() < 3 || self.passed() < 0.5 {
            for (distance, samples) in distances.iter().zip(&mut samples) {
                self.show("access time");
                let from = self.anywhere();
                let forth = from + distance < last;
                let aim = if forth { from + distance } else { from.saturating_sub(*distance) };
                let (file, offset, _) = self.near(from, SMALL as u64);
                self.timed(file, offset, SMALL)?;
                let (file, offset, at) = self.near(aim, SMALL as u64);
                let took = self.timed(file, offset, SMALL)?.as_secs_f64();
                let zone = zones.partition_point(|zone| zone.end <= at).min(zones.len() - 1);
                samples.push((took - SMALL as f64 / zones[zone].rate).max(0.0));
            }
            if self.passed() > 3.0 {
                break;
            }
        }
        Ok(summarise(&distances, samples))
    }

    /// How many reads it serves at once without loss: what four at once gain over one.
    fn parallel(&mut self) -> Result<u32, Error> {
        const AT_ONCE: usize = 4;
        let (mut alone, mut together) = (Duration::ZERO, Duration::ZERO);
        for round in 0..8 {
            self.show("reads at once");
            for _ in 0..AT_ONCE {
                let place = self.anywhere();
                let (file, offset, _) = self.near(place, SMALL as u64);
                alone += self.timed(file, offset, SMALL)?;
            }
            // By the times of the device: how busy this host is must not look like a second head.
            let mut span: Option<(Instant, Instant)> = None;
            for _ in 0..AT_ONCE {
                let place = self.anywhere();
                let (file, offset, _) = self.near(place, SMALL as u64);
                self.submit(file, offset, SMALL)?;
            }
            for _ in 0..AT_ONCE {
                let (started, ended) = self.wait()?;
                let (first, last) = span.unwrap_or((started, ended));
                span = Some((first.min(started), last.max(ended)));
            }
            together += span.map_or(Duration::ZERO, |(first, last)| last - first);
            if round > 1 && self.passed() > 1.0 {
                break;
            }
        }
        let gain = alone.as_secs_f64() / together.as_secs_f64().max(1e-9);
        // A disk that sorts what waits gains a little as well; that is no second head.
        Ok(if gain < 2.0 { 1 } else { (gain as u32).clamp(1, AT_ONCE as u32) })
    }

    /// Whether a long sequential read slows down for good: a token bucket. Until six tenths of the
    /// time are over.
    fn throttle(&mut self) -> Result<Option<Throttle>, Error> {
        let mut points = vec![(0.0, 0u64)];
        let mut at = self.targets.segments[0].physical;
        while points.len() < 8 || self.passed() < 0.6 && points.len() < 1 << 20 {
            self.show("throttle");
            let (file, offset, place) = self.near(at, LARGE as u64);
            let took = self.timed(file, offset, LARGE)?;
            at = place + LARGE as u64;
            if at >= self.targets.segments.last().map_or(0, |s| s.physical + s.bytes - LARGE as u64)
            {
                at = self.targets.segments[0].physical;
            }
            // Time of the device: that this host is busy is no throttle.
            let (time, bytes) = points.last().copied().unwrap_or_default();
            points.push((time + took.as_secs_f64(), bytes + LARGE as u64));
        }
        Ok(knee(&points))
    }
}

/// A token bucket, if the second half of (seconds, bytes) was clearly slower than the first tenth.
fn knee(points: &[(f64, u64)]) -> Option<Throttle> {
    let (end, total) = *points.last()?;
    let rate = |from: usize, to: usize| {
        let (t0, b0) = points[from];
        let (t1, b1) = points[to];
        (b1 - b0) as f64 / (t1 - t0).max(1e-9)
    };
    let by_time = |share: f64| points.partition_point(|(time, _)| *time < end * share);
    let last = points.len() - 1;
    let (early, late) =
        (rate(0, by_time(0.1).clamp(1, last)), rate(by_time(0.5).min(last - 1), last));
    // Zones alone halve the rate of a disk from its start to its end.
    (late < 0.4 * early && points.len() > 16)
        .then(|| Throttle { rate: late, burst: (total as f64 - late * end).max(0.0) })
}

/// Quantiles of each distance; longest times never fall with distance, as seeks don't.
fn summarise(distances: &[u64], samples: Vec<Vec<f64>>) -> Vec<AccessTime> {
    let mut longest = 0.0f64;
    let mut times = Vec::new();
    for (distance, mut samples) in distances.iter().zip(samples) {
        samples.sort_by(f64::total_cmp);
        let count = samples.len();
        let at = |share: f64| samples[((count as f64 * share) as usize).min(count - 1)];
        let mean = samples.iter().sum::<f64>() / count as f64;
        let variance = samples.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / count as f64;
        longest = longest.max(at(0.999)).max(mean);
        times.push(AccessTime {
            distance: *distance,
            mean,
            variance,
            least: samples[0].min(mean),
            median: at(0.5),
            q99: at(0.99),
            worst: longest,
        });
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Emulated, Model};
    use crate::model::Disk;

    /// A disk ten times as fast as that of Table 1, so that a short test sees many accesses.
    fn disk() -> Disk {
        let mut disk = Disk::table_1();
        disk.seek.root = (disk.seek.root.0 / 10.0, disk.seek.root.1 / 10.0);
        disk.seek.line = (disk.seek.line.0 / 10.0, disk.seek.line.1 / 10.0);
        disk.revolution /= 10.0;
        (disk.outer_rate, disk.inner_rate) = (disk.outer_rate * 10.0, disk.inner_rate * 10.0);
        disk
    }

    #[test]
    fn emulated_disk_when_measured_then_its_seeks_zones_and_single_head_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("all");
        File::create(&path).unwrap().set_len(disk().capacity / 4096 * 4096).unwrap();
        let device = Emulated::start(Model::Disk(disk()), 1).unwrap();
        let mut shown = 0;
        let limit = Duration::from_secs(6);
        let Measurement { profile, notes } =
            measure(&device, &path, limit, &mut |_| shown += 1).unwrap();
        assert!(shown > 100 && !notes.is_empty());
        let truth = DeviceProfile::of_disk("truth", &disk());
        for distance in [1 << 24, 1 << 28, 1 << 31, 1 << 33] {
            let (found, true_) = (profile.access(distance), truth.access(distance));
            let error = (found.mean - true_.mean).abs();
            // The thread wakes late by some tenths of a millisecond on a busy machine.
            assert!(error < 0.25 * true_.mean + 5e-4, "{distance}: {found:?} {true_:?}");
        }
        let (outer, inner) = (profile.rate_at(0), profile.rate_at(disk().capacity - 1));
        assert!(outer > 1.2 * inner, "{outer} {inner}");
        assert_eq!((profile.parallel, profile.throttle, profile.delay), (1, None, 0.0));
    }

    #[test]
    fn device_whose_time_comes_in_slices_when_measured_then_what_reads_take_in_the_long_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("all");
        File::create(&path).unwrap().set_len(1 << 30).unwrap();
        // As a control group with 20 MB/s and some 200 reads a second has it: whatever is read at the
        // beginning of a slice takes nothing, until its time is used up.
        let mut truth = DeviceProfile::built_in("ssd").unwrap();
        (truth.capacity, truth.parallel, truth.delay) = (1 << 30, 1, 0.1);
        truth.zones = vec![Zone { end: 1 << 30, rate: 20e6 }];
        let time =
            AccessTime { least: 4e-3, mean: 4e-3, median: 4e-3, q99: 4e-3, ..truth.access[0] };
        truth.access = vec![AccessTime { worst: 4e-3, ..time }];
        let device = Emulated::start(Model::Profile(truth.clone()), 1).unwrap();
        let found = measure(&device, &path, Duration::from_secs(8), &mut |_| ()).unwrap().profile;
        assert!((0.03..0.4).contains(&found.delay), "{found:?}");
        assert_eq!(found.parallel, 1);
        for bytes in [64 << 10, 1 << 20] {
            let true_ = truth.access(1 << 29).worst + bytes as f64 / 20e6;
            let long = found.access(1 << 29).worst + bytes as f64 / found.rate_at(1 << 29);
            // A busy machine makes it longer.
            assert!((0.85..20.0).contains(&(long / true_)), "{bytes}: {long} {true_} {found:?}");
        }
    }

    #[test]
    fn knee_when_a_bucket_runs_dry_then_its_rate_and_burst() {
        let mut points = vec![(0.0, 0)];
        for step in 1..100u64 {
            let seconds =
                if step <= 40 { step as f64 * 0.01 } else { 0.4 + (step - 40) as f64 * 0.1 };
            points.push((seconds, step << 20));
        }
        let found = knee(&points).unwrap();
        assert!((found.rate / (10.0 * 1048576.0) - 1.0).abs() < 0.01, "{found:?}");
        assert!((found.burst / (36.0 * 1048576.0) - 1.0).abs() < 0.02, "{found:?}");
        let steady: Vec<(f64, u64)> = (0..100).map(|s| (s as f64 * 0.1, s << 20)).collect();
        assert_eq!(knee(&steady), None);
    }

    #[test]
    fn directory_without_large_files_when_measured_then_told_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("small"), "x").unwrap();
        let device = Emulated::start(Model::Disk(disk()), 1).unwrap();
        let error = measure(&device, dir.path(), Duration::from_secs(1), &mut |_| ()).unwrap_err();
        assert!(error.to_string().contains("put a large file there"), "{error}");
    }
}
