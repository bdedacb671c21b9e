//! How long it takes: a cache device, a disk below it with one fetch channel, a program that
//! computes between its reads, and prefetch along the reference sequence.

use std::collections::HashMap;

use forebay_core::policy::UnknownPolicy;
use forebay_core::policy::replay::Cache;

use super::run::{Options, Oracle};
use super::trace::{Request, Trace};

/// The devices and the program.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Device {
    /// Bytes a second that the cache gives.
    pub cache_bandwidth: f64,
    /// Bytes a second that the disk gives.
    pub disk_bandwidth: f64,
    /// Seconds that a request to the disk costs besides its bytes.
    pub request_time: f64,
    /// Times that an evicted byte goes to the disk: 1 where eviction writes back, 0 if it is free.
    pub write_back: f64,
    /// Seconds for which the program computes on each byte that it has read.
    pub compute: f64,
    /// Bytes that may be fetched and not yet used. 0 fetches on demand only.
    pub prefetch: u64,
}

/// Devices with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Model {
    /// RAM disk above one hard disk: 10 GB/s; 100 MB/s, 5 ms a request (HyCache+, section III-B).
    Disk,
    /// NVMe above a parallel file system shared by many: 3 GB/s; 500 MB/s, 1 ms a request.
    Parallel,
    /// NVMe above an object store: 3 GB/s; 200 MB/s, 50 ms a request.
    Objects,
    /// RAM disk above NVMe: 10 GB/s; 3 GB/s, 0.1 ms a request.
    Nvme,
}

impl Model {
    /// The device: cache and disk bandwidth in bytes a second, seconds a request.
    #[must_use]
    pub fn device(self) -> Device {
        let (cache_bandwidth, disk_bandwidth, request_time) = match self {
            Self::Disk => (10e9, 100e6, 0.005),
            Self::Parallel => (3e9, 500e6, 0.001),
            Self::Objects => (3e9, 200e6, 0.05),
            Self::Nvme => (10e9, 3e9, 0.0001),
        };
        Device { cache_bandwidth, disk_bandwidth, request_time, ..Device::default() }
    }
}

impl Default for Device {
    /// 10 GB/s above 100 MB/s, 5 ms a request, as HyCache+ assumes of its times (section III-B).
    fn default() -> Self {
        Self {
            cache_bandwidth: 10e9,
            disk_bandwidth: 100e6,
            request_time: 0.005,
            write_back: 0.0,
            compute: 0.0,
            prefetch: 0,
        }
    }
}

/// What a timed run comes to.
#[derive(Debug, Default, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Timing {
    /// Seconds from the first request to the end of the last computation.
    pub elapsed: f64,
    /// Of these, seconds in which the program waited for the disk.
    pub stalled: f64,
    /// Bytes read from the disk, for the program or ahead of it.
    pub disk_bytes: u64,
    /// Requests to the disk.
    pub disk_requests: u64,
}

/// The state of a timed run.
struct Run<'a> {
    trace: &'a Trace,
    device: &'a Device,
    cache: Cache,
    timing: Timing,
    /// When the disk is free again.
    free: f64,
    /// When the last fetch of a file is complete.
    arrival: HashMap<u64, f64>,
    /// Files fetched ahead that the policy did not admit, with their bytes.
    bounce: HashMap<u64, u64>,
    bounced: u64,
    /// The next request to look at for prefetch, and the bytes between it and the program.
    ahead: usize,
    outstanding: u64,
}

/// Plays a trace against the clock.
///
/// # Errors
/// [`UnknownPolicy`].
pub fn play(trace: &Trace, options: &Options, device: &Device) -> Result<Timing, UnknownPolicy> {
    let mut run = Run {
        trace,
        device,
        cache: Cache::new(&options.policy, &options.config)?.numbered(trace.numbers().ids.len()),
        timing: Timing::default(),
        free: 0.0,
        arrival: HashMap::new(),
        bounce: HashMap::new(),
        bounced: 0,
        ahead: 0,
        outstanding: 0,
    };
    let mut oracle = Oracle::new(trace, options);
    let known = options.window.map_or(usize::MAX, |window| window as usize);
    // Data that pass the cache by wait here for the program: an eighth more memory.
    let room = options.config.capacity / 8;
    let mut now = 0.0;
    for t in 0..trace.requests.len() {
        oracle.tell(&mut run.cache, t as u64);
        now = run.serve(t, now);
        let computed = now + trace.requests[t].size as f64 * device.compute;
        run.fetch_ahead(t, known, now, computed, room);
        now = computed;
    }
    run.timing.elapsed = now;
    Ok(run.timing)
}

impl Run<'_> {
    /// A request, with the number of its file for its id.
    fn request(&self, t: usize) -> Request {
        Request { id: self.trace.numbers().of[t].into(), size: self.trace.requests[t].size }
    }

    /// One fetch from the disk; returns when it is complete.
    fn fetch(&mut self, now: f64, bytes: u64, evicted: u64) -> f64 {
        let moved = bytes as f64 + evicted as f64 * self.device.write_back;
        let start = self.free.max(now);
        self.free = start + self.device.request_time + moved / self.device.disk_bandwidth;
        self.timing.disk_bytes += bytes;
        self.timing.disk_requests += 1;
        self.free
    }

    /// Serves request `t`; returns when the program has its bytes.
    fn serve(&mut self, t: usize, now: f64) -> f64 {
        let request = self.request(t);
        if self.ahead <= t {
            self.ahead = t + 1;
        } else {
            self.outstanding -= request.size.min(self.outstanding);
        }
        let evicted = self.cache.counts().evicted_bytes;
        let outcome = self.cache.request(request.id, request.size);
        let evicted = self.cache.counts().evicted_bytes - evicted;
        let mut ready = now;
        if let Some(bytes) = self.bounce.remove(&request.id) {
            self.bounced -= bytes;
            ready = self.arrival.get(&request.id).copied().unwrap_or(now);
        } else if outcome.miss_bytes > 0 {
            ready = self.fetch(now, outcome.miss_bytes, evicted);
        } else if let Some(&arrives) = self.arrival.get(&request.id) {
            ready = arrives;
        }
        self.arrival.remove(&request.id);
        let ready = ready.max(now);
        self.timing.stalled += ready - now;
        ready + outcome.hit_bytes as f64 / self.device.cache_bandwidth
    }

    /// Fetches along the sequence while the program computes, in the order of the references.
    fn fetch_ahead(&mut self, t: usize, known: usize, now: f64, until: f64, room: u64) {
        let last = t.saturating_add(known).min(self.trace.requests.len() - 1);
        while self.free.max(now) < until && self.ahead <= last {
            let request = self.request(self.ahead);
            if self.outstanding + request.size > self.device.prefetch {
                break;
            }
            if !self.bounce.contains_key(&request.id) {
                let evicted = self.cache.counts().evicted_bytes;
                let mut bytes = self.cache.prefetch(request.id, request.size);
                let resident = self.cache.resident(request.id) >= request.size;
                if !resident {
                    // Not (wholly) admitted: all that is lacking waits in the bounce buffer, or
                    // prefetch ends here, as what follows would only come sooner than it.
                    let lacking = request.size - self.cache.resident(request.id);
                    if self.bounced + lacking > room {
                        break;
                    }
                    self.bounce.insert(request.id, lacking);
                    self.bounced += lacking;
                    bytes += lacking;
                }
                if bytes > 0 {
                    let evicted = self.cache.counts().evicted_bytes - evicted;
                    let arrives = self.fetch(now, bytes, evicted);
                    self.arrival.insert(request.id, arrives);
                }
            }
            self.outstanding += request.size;
            self.ahead += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::generate::{Kind, generate};
    use crate::cache::run::count;

    fn device(prefetch: u64) -> Device {
        // As fast to compute on a byte as 0.6 of the time to read it.
        Device { compute: 0.6 / 100e6, request_time: 0.0, prefetch, ..Device::default() }
    }

    #[test]
    fn without_prefetch_then_the_disk_reads_what_was_missed() {
        let trace = generate(Kind::Workflow, 100, 2_000, 3);
        let options = Options::new("lru", trace.footprint() / 10);
        let timing = play(&trace, &options, &device(0)).expect("a policy");
        assert_eq!(timing.disk_bytes, count(&trace, &options).expect("a policy").miss_bytes);
        let transfer = timing.disk_bytes as f64 / 100e6;
        assert!((timing.stalled - transfer).abs() < 1e-6 * transfer);
    }

    #[test]
    fn deeper_prefetch_then_faster_and_hardly_more_bytes() {
        for kind in [Kind::Epochs, Kind::Workflow] {
            let trace = generate(kind, 200, 4_000, 3);
            let capacity = trace.footprint() / 10;
            let options = Options::new("min", capacity);
            let [demand, shallow, deep] = [0, capacity / 8, capacity / 2]
                .map(|bytes| play(&trace, &options, &device(bytes)).expect("a policy"));
            assert!(shallow.elapsed < demand.elapsed, "{kind:?}: {shallow:?} {demand:?}");
            assert!(deep.elapsed <= shallow.elapsed * 1.001, "{kind:?}: {deep:?} {shallow:?}");
            assert!(deep.elapsed < 0.9 * demand.elapsed, "{kind:?}: {deep:?} {demand:?}");
            let more = deep.disk_bytes as f64 / demand.disk_bytes as f64;
            assert!(more < 1.15, "{kind:?}: {more}");
        }
    }
}
