//! Replacement policies on traces: `forebay sim cache`.

pub mod bounds;
pub mod device;
pub mod generate;
pub mod run;
pub mod trace;

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_core::policy::PolicyConfig;
use forebay_core::policy::replay::Counts;
use serde::Serialize;

use crate::SimError;
use crate::plot::{Chart, Line};
use bounds::Bounds;
use device::{Device, Model, Timing};
use run::Options;
use trace::Trace;

/// What to simulate.
#[derive(Debug, Clone, clap::Args)]
pub struct CacheArgs {
    /// The trace: CSV lines `id,size`, libCacheSim oracleGeneral, our own, or a node's event log; also
    /// compressed by gzip or Zstandard. `-` is the standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "generate")]
    pub trace: Option<PathBuf>,
    /// The trace's format; guessed from its content if not given.
    #[arg(long)]
    pub format: Option<trace::Format>,
    /// The columns of a CSV trace, as libCacheSim takes them: obj-id-col=N,obj-size-col=N and also
    /// delimiter=CHARACTER, has-header=true; without it the heading decides, or they are id,size.
    #[arg(long, value_name = "LIST", requires = "trace")]
    pub csv_columns: Option<trace::Columns>,
    /// Make a trace up instead.
    #[arg(long, value_name = "KIND")]
    pub generate: Option<generate::Kind>,
    /// Files of a made-up trace.
    #[arg(long, default_value_t = 1_000)]
    pub files: u64,
    /// Requests of a made-up trace.
    #[arg(long, default_value_t = 100_000)]
    pub requests: u64,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write the trace to a file, and without --size do nothing else.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// The format of the saved trace.
    #[arg(long, value_name = "FORMAT", default_value = "forebay")]
    pub save_format: trace::Format,
    /// Bytes of the cache (K, M, G, T for powers of 1024); several for a curve.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = bytes)]
    pub size: Vec<u64>,
    /// Count as a mount does: --size is that of its tier, of which files may take what the reserve and
    /// the high mark leave (93.1 %), and each file takes whole blocks of 4 KiB and one for its header.
    #[arg(long)]
    pub mounted: bool,
    /// Policies to compare.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "lru")]
    pub policy: Vec<String>,
    /// Grain of partial residency in bytes (`min`); 1/256 of the cache if not given.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub chunk: Option<u64>,
    /// Requests that are known ahead; all if not given.
    #[arg(long, value_name = "N")]
    pub window: Option<u64>,
    /// What a request costs besides its bytes, in bytes that the disk reads in that time.
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = bytes)]
    pub request_cost: u64,
    /// Whether S3-FIFO admits files larger than its small queue, as mounts have it; its paper does not.
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1,
          default_missing_value = "true", action = clap::ArgAction::Set)]
    pub admit_large: bool,
    /// Put hinted references up to N requests out of place.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub displaced: u64,
    /// Leave this share of references out of the hints.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub missing: f64,
    /// Threads; as many as processors if not given.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Print JSON: one object for one run, a list for several.
    #[arg(long)]
    pub json: bool,
    /// Write all runs as CSV.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Draw the share of bytes missed over the cache's size, with the lower bound (SVG).
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Draw the miss ratio curve: the share of requests missed over the cache's size (SVG).
    #[arg(long, value_name = "FILE")]
    pub plot_misses: Option<PathBuf>,
    /// Draw the elapsed time over the cache's size; needs --time (SVG).
    #[arg(long, value_name = "FILE", requires = "time")]
    pub plot_time: Option<PathBuf>,
    /// Also compute PFOO-L and PFOO-U, and show them with FOO as rows of their own.
    #[arg(long)]
    pub bounds: bool,
    /// Leave the lower bound out, which takes longer than the policies on long traces.
    #[arg(long, conflicts_with = "bounds")]
    pub no_bound: bool,
    /// Devices, if elapsed time is wanted.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// The devices of a timed simulation.
#[derive(Debug, Clone, clap::Args)]
pub struct DeviceArgs {
    /// Also play the trace against the clock.
    #[arg(long)]
    pub time: bool,
    /// Devices to compare; what follows changes single figures of each.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "disk")]
    pub device: Vec<Model>,
    /// Bytes a second from the cache.
    #[arg(long, value_name = "RATE")]
    pub cache_bandwidth: Option<f64>,
    /// Bytes a second from the disk.
    #[arg(long, value_name = "RATE")]
    pub disk_bandwidth: Option<f64>,
    /// Seconds of a request to the disk besides its bytes.
    #[arg(long, value_name = "SECONDS")]
    pub request_time: Option<f64>,
    /// Times that an evicted byte is written to the disk: 1 where what is evicted is dirty.
    #[arg(long, value_name = "TIMES", default_value_t = 0.0)]
    pub write_back: f64,
    /// Seconds of computing on a byte.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    pub compute: f64,
    /// Bytes that may be fetched ahead of their use; several to compare.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "0", value_parser = bytes)]
    pub prefetch: Vec<u64>,
}

impl DeviceArgs {
    /// Every device with every depth of prefetch, and how a row is named after them.
    fn devices(&self) -> Vec<(String, Device)> {
        let mut devices = Vec::new();
        for model in &self.device {
            for &prefetch in &self.prefetch {
                let device = model.device();
                let device = Device {
                    cache_bandwidth: self.cache_bandwidth.unwrap_or(device.cache_bandwidth),
                    disk_bandwidth: self.disk_bandwidth.unwrap_or(device.disk_bandwidth),
                    request_time: self.request_time.unwrap_or(device.request_time),
                    write_back: self.write_back,
                    compute: self.compute,
                    prefetch,
                };
                let name = format!("{model:?}").to_lowercase();
                devices.push((format!("{name}+{prefetch}"), device));
            }
        }
        devices
    }
}

/// A number of bytes with an optional suffix.
fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().trim_end_matches("IB") {
        "" | "B" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(format!("{text}: give bytes, or a number with K, M, G or T")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text}: not a number of bytes"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text}: too many bytes"))
}

/// One run in full, as `--json` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Requests for what was wholly resident.
    pub hits: u64,
    /// Other requests.
    pub misses: u64,
    /// Bytes served from the cache.
    pub hit_bytes: u64,
    /// Bytes read from below.
    pub miss_bytes: u64,
    /// A digit for each request.
    pub hit_vector: String,
    /// Request (from 0) and file of each eviction.
    pub evictions: Vec<(u64, u64)>,
    /// Bytes that no cache of this size can avoid to read; none if it was not to be computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lower_bound_bytes: Option<u64>,
}

/// One run of several.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Policy.
    pub policy: String,
    /// Bytes of the cache.
    pub size: u64,
    /// Requests for what was wholly resident.
    pub hits: u64,
    /// Other requests.
    pub misses: u64,
    /// Bytes served from the cache.
    pub hit_bytes: u64,
    /// Bytes read from below.
    pub miss_bytes: u64,
    /// Bytes that no cache of this size can avoid to read; none if it was not to be computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lower_bound_bytes: Option<u64>,
    /// The device and the bytes fetched ahead, as `disk+0`, if the clock was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// What the clock said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timing: Option<Timing>,
}

/// Runs one trace against one policy and reports everything, the lower bound if it is wanted.
///
/// # Errors
/// [`SimError::Policy`] for a name that there is not.
pub fn report(trace: &Trace, options: &Options, bound: bool) -> Result<Report, SimError> {
    let (counts, record) = run::record(trace, options)?;
    let Counts { hits, misses, hit_bytes, miss_bytes, .. } = counts;
    Ok(Report {
        hits,
        misses,
        hit_bytes,
        miss_bytes,
        hit_vector: record.hit_vector,
        evictions: record.evictions,
        lower_bound_bytes: bound.then(|| bounds::foo(trace, options.config.capacity)),
    })
}

/// What the arguments ask for, done and printed.
///
/// # Errors
/// [`SimError`]; its text tells the user what to do.
pub fn run_cli(args: &CacheArgs, out: &mut dyn Write) -> Result<(), SimError> {
    let trace = match (&args.trace, args.generate) {
        (Some(path), _) => Trace::read(path, args.format, args.csv_columns)?,
        (None, Some(kind)) => generate::generate(kind, args.files, args.requests, args.seed),
        (None, None) => return Err(SimError::Usage("give --trace FILE or --generate KIND")),
    };
    let trace = if args.mounted { trace.mounted() } else { trace };
    if let Some(path) = &args.save {
        trace.write(path, args.save_format)?;
    }
    if args.size.is_empty() {
        if args.save.is_some() {
            return Ok(());
        }
        return Err(SimError::Usage("give --size BYTES, or several separated by commas"));
    }
    let single = args.size.len() == 1 && args.policy.len() == 1 && !args.device.time;
    if args.json && single {
        let options = options(args, &args.policy[0], args.size[0]);
        let report = report(&trace, &options, !args.no_bound)?;
        serde_json::to_writer(&mut *out, &report)?;
        writeln!(out)?;
        return Ok(());
    }
    let rows = rows(&trace, args)?;
    if args.json {
        serde_json::to_writer(&mut *out, &rows)?;
        writeln!(out)?;
    } else {
        print_table(&rows, out)?;
    }
    if let Some(path) = &args.csv {
        std::fs::write(path, to_csv(&rows)).map_err(SimError::file(path))?;
    }
    let charts = [
        (&args.plot, Axis::Bytes),
        (&args.plot_misses, Axis::Misses),
        (&args.plot_time, Axis::Time),
    ];
    for (path, axis) in charts {
        if let Some(path) = path {
            std::fs::write(path, chart(&rows, axis).to_svg()).map_err(SimError::file(path))?;
        }
    }
    Ok(())
}

/// What files may take of a cache: of a mount's tier what the defaults of `--reserve` (2 %) and
/// `--high-mark` (95 %) leave.
fn capacity(args: &CacheArgs, size: u64) -> u64 {
    if args.mounted { (size - size / 50) / 20 * 19 } else { size }
}

fn options(args: &CacheArgs, policy: &str, size: u64) -> Options {
    let mut config = PolicyConfig::new(capacity(args, size));
    config.chunk = args.chunk.unwrap_or(config.chunk);
    config.request_cost = args.request_cost;
    config.admit_large = args.admit_large;
    Options {
        policy: policy.to_owned(),
        config,
        window: args.window,
        displaced: args.displaced,
        missing: args.missing,
        seed: args.seed,
    }
}

/// All sizes against all policies and devices, on all threads.
fn rows(trace: &Trace, args: &CacheArgs) -> Result<Vec<Row>, SimError> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.unwrap_or(processors);
    let sizes = if args.no_bound { &[][..] } else { &args.size[..] };
    let bounds = parallel(threads, sizes, |size| {
        let capacity = capacity(args, *size);
        if args.bounds {
            Bounds::of(trace, capacity)
        } else {
            Bounds { pfoo_l: 0, foo: bounds::foo(trace, capacity), pfoo_u: 0 }
        }
    });
    let mut jobs = Vec::new();
    for (at, size) in args.size.iter().enumerate() {
        let bound = bounds.get(at).map(|bounds| bounds.foo);
        jobs.extend(args.policy.iter().map(|policy| (policy, *size, bound)));
    }
    let devices = if args.device.time { args.device.devices() } else { Vec::new() };
    let results = parallel(threads, &jobs, |&(policy, size, bound)| {
        let options = options(args, policy, size);
        let row = row(policy, size, run::count(trace, &options)?, bound);
        let timed = devices.iter().map(|(name, device)| {
            let timing = Some(device::play(trace, &options, device)?);
            Ok(Row { device: Some(name.clone()), timing, ..row.clone() })
        });
        let timed: Result<Vec<Row>, SimError> = timed.collect();
        timed.map(|timed| if timed.is_empty() { vec![row] } else { timed })
    });
    let mut rows = Vec::new();
    for result in results {
        rows.extend(result?);
    }
    if args.bounds {
        let total: u64 = trace.requests.iter().map(|request| request.size).sum();
        for (size, bounds) in args.size.iter().zip(bounds) {
            let named =
                [("(pfoo-l)", bounds.pfoo_l), ("(foo)", bounds.foo), ("(pfoo-u)", bounds.pfoo_u)];
            rows.extend(named.map(|(name, miss_bytes)| {
                let hit_bytes = total - miss_bytes;
                let counts = Counts { hit_bytes, miss_bytes, ..Counts::default() };
                row(name, *size, counts, Some(bounds.foo))
            }));
        }
    }
    Ok(rows)
}

fn row(policy: &str, size: u64, counts: Counts, lower_bound_bytes: Option<u64>) -> Row {
    let Counts { hits, misses, hit_bytes, miss_bytes, .. } = counts;
    let policy = policy.to_owned();
    let (device, timing) = (None, None);
    Row { policy, size, hits, misses, hit_bytes, miss_bytes, lower_bound_bytes, device, timing }
}

/// Does the jobs on so many threads; the results are in the order of the jobs.
pub(crate) fn parallel<J: Sync, R: Send>(
    threads: usize,
    jobs: &[J],
    work: impl Fn(&J) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        while let Some((at, job)) = Some(next.fetch_add(1, Ordering::Relaxed))
            .and_then(|at| jobs.get(at).map(|job| (at, job)))
        {
            done.push((at, work(job)));
        }
        done
    };
    let mut results: Vec<(usize, R)> = std::thread::scope(|scope| {
        let threads = threads.clamp(1, jobs.len().max(1));
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        let joined = handles.into_iter().map(|handle| match handle.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.flatten().collect()
    });
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn print_table(rows: &[Row], out: &mut dyn Write) -> Result<(), SimError> {
    writeln!(
        out,
        "{:<18} {:>16} {:>10} {:>10} {:>18} {:>8} {:>12} {:>12}  device",
        "policy", "size", "miss", "byte miss", "bytes missed", "/bound", "elapsed s", "stalled s"
    )?;
    for row in rows {
        let seconds = |of: fn(&Timing) -> f64| {
            row.timing.as_ref().map_or(String::from("-"), |timing| format!("{:.3}", of(timing)))
        };
        // The bounds are about bytes; they have no requests.
        let misses = match row.hits + row.misses {
            0 => String::from("-"),
            requests => format!("{:.4}", ratio(row.misses, requests)),
        };
        let above = row
            .lower_bound_bytes
            .map_or(String::from("-"), |bound| format!("{:.3}", ratio(row.miss_bytes, bound)));
        writeln!(
            out,
            "{:<18} {:>16} {misses:>10} {:>10.4} {:>18} {above:>8} {:>12} {:>12}  {}",
            row.policy,
            row.size,
            ratio(row.miss_bytes, row.hit_bytes + row.miss_bytes),
            row.miss_bytes,
            seconds(|timing| timing.elapsed),
            seconds(|timing| timing.stalled),
            row.device.as_deref().unwrap_or("-"),
        )?;
    }
    Ok(())
}

fn to_csv(rows: &[Row]) -> String {
    let mut csv = String::from(
        "policy,size,hits,misses,hit_bytes,miss_bytes,lower_bound_bytes,device,elapsed,\
         stalled,disk_bytes,disk_requests\n",
    );
    for row in rows {
        let device = row.device.as_deref().unwrap_or("");
        let timing = row.timing.map_or(String::from(",,,,"), |t| {
            format!("{device},{},{},{},{}", t.elapsed, t.stalled, t.disk_bytes, t.disk_requests)
        });
        let Row { policy, size, hits, misses, hit_bytes, miss_bytes, .. } = row;
        let bound = row.lower_bound_bytes.map_or(String::new(), |bound| bound.to_string());
        csv.push_str(&format!(
            "{policy},{size},{hits},{misses},{hit_bytes},{miss_bytes},{bound},{timing}\n"
        ));
    }
    csv
}

/// What a chart shows over the size of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Axis {
    Bytes,
    Misses,
    Time,
}

fn chart(rows: &[Row], axis: Axis) -> Chart {
    let mut lines: Vec<Line> = Vec::new();
    let mut add = |name: &str, size: u64, value: f64| {
        let point = (size as f64, value);
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) if line.points.last().is_some_and(|last| last.0 == point.0) => {}
            Some(line) => line.points.push(point),
            None => lines.push(Line { name: name.to_owned(), points: vec![point] }),
        }
    };
    for row in rows {
        let (bytes, requests) = (row.hit_bytes + row.miss_bytes, row.hits + row.misses);
        match axis {
            Axis::Bytes => {
                add(&row.policy, row.size, ratio(row.miss_bytes, bytes));
                if let Some(bound) = row.lower_bound_bytes {
                    add("lower bound", row.size, ratio(bound, bytes));
                }
            }
            Axis::Misses if requests > 0 => add(&row.policy, row.size, ratio(row.misses, requests)),
            Axis::Misses => {}
            Axis::Time => {
                if let (Some(device), Some(timing)) = (&row.device, &row.timing) {
                    add(&format!("{} {device}", row.policy), row.size, timing.elapsed);
                }
            }
        }
    }
    for line in &mut lines {
        line.points.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    let (title, y_label) = match axis {
        Axis::Bytes => ("Bytes missed", "bytes missed (share of all)"),
        Axis::Misses => ("Requests missed", "requests missed (share of all)"),
        Axis::Time => ("Elapsed time", "time (seconds)"),
    };
    let x_label = "cache size (bytes)".into();
    let (title, y_label) = (title.into(), y_label.into());
    Chart { title, x_label, y_label, log_x: true, log_y: false, lines }.by_span()
}
