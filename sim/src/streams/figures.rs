//! The paper's figures, with the elastic ring beside them.

use forebay_core::streams::closed_form;
use forebay_core::streams::disk::Disk;

use super::load::{self, Load};
use super::paper::{DEPTHS, Model, Variant};
use super::ring::{self, Trial};
use super::{Scheme, StreamsArgs, Table};
use crate::SimError;
use crate::plot::{Chart, Line};

const CACHES: [f64; 4] = [2e6, 4e6, 8e6, 12e6];
/// Parts of the memory that the ring's cycle is made for.
const PARTS: [f64; 3] = [1.0, 0.7, 0.5];
/// Sweeps and placements in which the ring's most streams are looked for.
const SEARCHED: (u64, u64) = (150, 3);
const ROUNDS: [f64; 6] = [0.5, 1.0, 1.5, 2.0, 3.0, 4.0];

/// The device of the paper's examples: 15 ms to get to a block, 10 MB/s, streams of 2 Mb/s.
fn simple(round: f64) -> closed_form::Model {
    closed_form::Model { overhead: 0.015, device_rate: 10e6, stream_rate: 250e3, round }
}

fn fields(values: &[f64]) -> Vec<String> {
    values.iter().map(|value| format!("{}", (value * 1000.0).round() / 1000.0)).collect()
}

fn chart(title: &str, x: &str, y: &str, lines: Vec<Line>) -> Option<Chart> {
    let (title, x_label, y_label) = (title.into(), x.into(), y.into());
    Some(Chart { title, x_label, y_label, log_x: false, log_y: false, lines }.by_span())
}

/// Figure 2, and the same for other rounds and caches.
///
/// # Errors
/// None; the numbers are fixed.
pub fn prefetch() -> Result<Table, SimError> {
    let mut rows = Vec::new();
    let mut lines: Vec<Line> = Vec::new();
    let mut add = |name: String, x: f64, y: f64| match lines.iter_mut().find(|l| l.name == name) {
        Some(line) => line.points.push((x, y)),
        None => lines.push(Line { name, points: vec![(x, y)] }),
    };
    for round in [0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0] {
        let sweep = simple(round).sweep()?;
        add("sweep".into(), round, sweep.streams as f64);
        for cache in CACHES {
            let found = simple(round).sweep_and_prefetch(1, Some(cache))?;
            add(format!("sp, {} MB", cache / 1e6), round, found.streams as f64);
            rows.push(fields(&[
                round,
                cache,
                sweep.streams as f64,
                found.streams as f64,
                found.v as f64,
                found.p as f64,
                found.memory_bytes,
            ]));
        }
    }
    let columns = vec!["round_s", "disk_cache_bytes", "sweep", "sp", "v", "p", "memory_bytes"];
    let notes = vec![
        "The paper: 25 streams with Sweep, 28 (v=20, p=8) with Sweep & Prefetch, at 1 s. 8 blocks \
         of 250 KB fit into 2 MB; with 3.5 MB the scheme carries 30 (v=16, p=14)."
            .into(),
    ];
    let chart = chart("Sweep & Prefetch, simple device", "round (s)", "streams", lines);
    Ok(Table { columns, rows, notes, chart })
}

/// Figure 3, and the same for other numbers of groups.
///
/// # Errors
/// None; the numbers are fixed.
pub fn groups() -> Result<Table, SimError> {
    let mut rows = Vec::new();
    let mut lines = [("equal groups", Vec::new()), ("unequal groups", Vec::new())];
    for k in 1..=12 {
        let (equal, unequal) = (simple(1.0).gpmp(k)?, simple(1.0).gpmp_unequal(k)?);
        lines[0].1.push((k as f64, equal.streams as f64));
        lines[1].1.push((k as f64, unequal.streams as f64));
        rows.push(fields(&[
            k as f64,
            equal.streams as f64,
            equal.v as f64,
            equal.p as f64,
            equal.memory_bytes,
            equal.startup_max_s,
            unequal.streams as f64,
            unequal.memory_bytes,
        ]));
    }
    let columns = vec![
        "k",
        "streams",
        "v",
        "p",
        "memory_bytes",
        "startup_max_s",
        "unequal",
        "unequal_memory_bytes",
    ];
    let lines = lines.map(|(name, points)| Line { name: name.into(), points }).to_vec();
    let notes = vec!["The paper: 36 streams with k=6 (v=6, u=5, p=30) at 1 s.".into()];
    let chart = chart("GPMP, simple device", "groups", "streams", lines);
    Ok(Table { columns, rows, notes, chart })
}

/// Whether the ring carries so many streams in all placements.
fn ring_holds(trial: &Trial, placements: u64) -> Result<bool, SimError> {
    for placement in 0..placements {
        let verdict = ring::run(&Trial { seed: trial.seed + placement, ..*trial })?;
        let fits = verdict.underflows == 0 && verdict.playing == trial.streams;
        if !fits || verdict.memory > trial.memory {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A trial of the ring on the figure's disk, for part of the memory.
fn ring_trial(args: &StreamsArgs, memory: f64, streams: u64) -> Trial {
    Trial {
        device: args.device,
        streams,
        rate: args.stream_rate() as u64,
        cycle: 0,
        memory: memory as u64,
        sweeps: args.sweeps,
        seed: args.seed,
    }
}

/// The most streams that the ring carries without underflow, and its cycle, looked for from `near` on:
/// the cycle that the memory allows, or that of a part of the memory, since a longer one is not always
/// better. Looked for in few placements and sweeps; what is found is tried in all of them, and so is
/// one less until it holds.
fn ring_most(args: &StreamsArgs, memory: f64, near: u64) -> Result<(u64, f64), SimError> {
    let mut found = Vec::new();
    for part in PARTS {
        let holds = |streams: u64| {
            let trial = ring_trial(args, memory * part, streams);
            let short = Trial { sweeps: args.sweeps.min(SEARCHED.0), ..trial };
            ring_holds(&short, args.placements.min(SEARCHED.1))
        };
        let best = found.iter().map(|(streams, _)| *streams).max().unwrap_or(0);
        let mut streams = near.max(best);
        if holds(streams)? {
            while holds(streams + 1)? {
                streams += 1;
            }
        } else {
            while streams > 0 && !holds(streams)? {
                streams -= 1;
            }
        }
        found.push((streams, part));
    }
    while let Some(at) = (0..found.len()).max_by_key(|at| found[*at].0) {
        let (streams, part) = found[at];
        if streams == 0 {
            break;
        }
        let trial = ring_trial(args, memory * part, streams);
        if ring_holds(&trial, args.placements)? {
            let cycle = ring::run(&Trial { sweeps: 1, ..trial })?.cycle;
            return Ok((streams, cycle as f64 / 1e9));
        }
        found[at].0 -= 1;
    }
    Ok((0, 0.0))
}

/// Fewer streams than the disk carries, if the memory is for fewer.
fn within(memory: f64, streams: u64, blocks: f64, model: &Model) -> u64 {
    streams.min((memory / (blocks * model.block())) as u64)
}

/// The most streams of GPMP in a memory, in the best number of groups.
fn gpmp_within(model: &Model, memory: f64) -> u64 {
    let streams = |k| within(memory, model.gpmp(k).streams, (k as f64 + 3.0) / 2.0, model);
    (1..=24).map(streams).max().unwrap_or(0)
}

/// The most streams of GPMP in a memory by arithmetic, on the disk of Table 1: at its best round, of those
/// of 0.1 to 8 s, in the best number of groups.
#[must_use]
pub fn gpmp_most(rate: f64, memory: f64) -> u64 {
    let model = |at| Model::new(&Disk::table_1(), Variant::default(), rate, f64::from(at) / 10.0);
    (1..=80).map(|at| gpmp_within(&model(at), memory)).max().unwrap_or(0)
}

/// More streams than GPMP's plan carries for certain in a memory on the disk of Table 1, if clients may
/// stop with full buffers: at its best round of 2 ms to 1 s.
#[must_use]
pub fn gpmp_at_best(rate: f64, memory: f64) -> u64 {
    let whole = Variant { full_rotation: true, ..Variant::default() };
    let model = |at| Model::new(&Disk::table_1(), whole, rate, f64::from(at) / 500.0);
    (1..=500).map(|at| model(at).gpmp_at_best(memory)).max().unwrap_or(0)
}

/// Figure 4: streams against memory on the disk of Table 1.
///
/// # Errors
/// [`SimError`] for numbers that make no machine.
pub fn throughput(args: &StreamsArgs) -> Result<Table, SimError> {
    let rate = args.stream_rate();
    let disk = Disk::table_1();
    let model = |round| Model::new(&disk, Variant::default(), rate, round);
    let rounds: Vec<f64> = (1..=80).map(|at| f64::from(at) / 10.0).collect();
    let models: Vec<Model> = rounds.iter().map(|round| model(*round)).collect();
    let mut rows = Vec::new();
    let mut lines =
        ["sweep", "sp", "gpmp", "ring"].map(|name| Line { name: name.into(), points: vec![] });
    for memory in [2e6, 4e6, 7e6, 12e6, 17e6, 24e6, 30e6, 40e6, 64e6] {
        let best = |streams: &dyn Fn(&Model) -> u64| models.iter().map(streams).max().unwrap_or(0);
        let within =
            |streams: u64, blocks: f64, model: &Model| within(memory, streams, blocks, model);
        let sweep = best(&|model| within(model.sweep(), 2.0, model));
        // The same host memory; the disk's cache of 2 MB comes on top.
        let prefetch = best(&|m| within(m.sweep_and_prefetch(1, 2e6).streams, 2.0, m));
        let gpmp = best(&|model| gpmp_within(model, memory));
        let (ring, cycle) = ring_most(args, memory, gpmp)?;
        eprintln!("{} MB: sweep {sweep}, sp {prefetch}, gpmp {gpmp}, ring {ring}", memory / 1e6);
        for (line, streams) in lines.iter_mut().zip([sweep, prefetch, gpmp, ring]) {
            line.points.push((memory / 1e6, streams as f64));
        }
        let ratio = |streams: u64| streams as f64 / gpmp.max(1) as f64;
        let bound = models.last().map_or(0, |model| model.bound(memory));
        rows.push(fields(&[
            memory,
            sweep as f64,
            prefetch as f64,
            gpmp as f64,
            ring as f64,
            cycle,
            ratio(ring),
            bound as f64,
            ratio(bound),
        ]));
    }
    let columns = vec![
        "memory_bytes",
        "sweep",
        "sp_2MB",
        "gpmp",
        "ring",
        "ring_cycle_s",
        "ring/gpmp",
        "bound",
        "bound/gpmp",
    ];
    let notes = vec![format!(
        "sweep, sp, gpmp: at the best round of 0.1 to 8 s, random places, four deviations. ring: \
             no underflow in {} placements of {} sweeps. bound: what no policy exceeds.",
        args.placements, args.sweeps
    )];
    let chart =
        chart("Streams and memory, disk of Table 1", "memory (MB)", "streams", lines.into());
    Ok(Table { columns, rows, notes, chart })
}

/// Figure 5: start-up latency against load on the disk of Table 1.
///
/// # Errors
/// [`SimError`] for numbers that make no machine.
pub fn startup(args: &StreamsArgs) -> Result<Table, SimError> {
    let rate = args.stream_rate();
    let deviations = Some(args.statistical.unwrap_or(4.0));
    let systems = [
        ("gpmp 0.25 s, k=4", Scheme::Gpmp, 0.25, 4, None),
        ("gpmp 0.25 s, k=12", Scheme::Gpmp, 0.25, 12, None),
        ("gpmp 0.5 s, k=8", Scheme::Gpmp, 0.5, 8, None),
        ("gpmp 1 s, k=6", Scheme::Gpmp, 1.0, 6, None),
        ("ring, statistical", Scheme::Ring, 1.0, 1, deviations),
        ("ring, deterministic", Scheme::Ring, 1.0, 1, None),
    ];
    let mut rows = Vec::new();
    let mut lines = Vec::new();
    for (name, scheme, round, k, statistical) in systems {
        let mut points = Vec::new();
        for share in [0.3, 0.6, 0.9, 1.1] {
            // A session lasts 105 minutes on average: so many play at a time.
            let arrivals = share * 30.0 / (105.0 * 60.0);
            let load = Load {
                device: args.device,
                scheme,
                rate,
                round,
                k,
                cache: f64::MAX,
                memory: args.memory,
                statistical,
                titles: (args.titles, args.zipf),
                arrivals,
                duration: args.hours * 3600.0,
                seed: args.seed,
            };
            let report = load::run(&load)?;
            points.push((share, report.mean()));
            let mut row = vec![name.replace(", ", " ")];
            row.extend(fields(&[
                share,
                report.places.unwrap_or(0) as f64,
                report.requests as f64,
                report.glitches as f64,
                report.mean(),
                report.quantile(0.5),
                report.quantile(0.95),
                report.memory as f64,
            ]));
            rows.push(row);
        }
        lines.push(Line { name: name.into(), points });
    }
    let columns = vec![
        "system",
        "load",
        "places",
        "requests",
        "glitches",
        "startup_mean_s",
        "startup_p50_s",
        "startup_p95_s",
        "memory_bytes",
    ];
    let notes = vec![
        "load: streams that would play at a time, as a share of 30; places 0: by admission.".into(),
    ];
    let chart = chart("Start-up latency, disk of Table 1", "load", "mean start-up (s)", lines);
    Ok(Table { columns, rows, notes, chart })
}

/// Gain of Sweep & Prefetch over Sweep on the disk of Table 1.
#[must_use]
pub fn gains() -> Table {
    let mut rows = Vec::new();
    let mut lines = Vec::new();
    for mbps in [0.375, 0.5, 1.0, 1.5, 2.0, 4.5] {
        let mut points = Vec::new();
        for round in ROUNDS {
            let model = Model::new(&Disk::table_1(), Variant::default(), mbps * 125e3, round);
            let sweep = model.sweep() as f64;
            for cache in CACHES {
                let gain = |deepest| {
                    let streams = model.sweep_and_prefetch(deepest, cache).streams as f64;
                    100.0 * (streams / sweep - 1.0)
                };
                if cache == 4e6 {
                    points.push((round, gain(1)));
                }
                rows.push(fields(&[mbps, round, cache, sweep, gain(1), gain(DEPTHS)]));
            }
        }
        lines.push(Line { name: format!("{mbps} Mb/s"), points });
    }
    let columns = vec!["mbps", "round_s", "disk_cache_bytes", "sweep", "gain_%", "gain_deep_%"];
    let notes = vec![
        "The paper has 20 to 70 % for rounds of 0.5 to 1.5 s and 2 to 12 MB, and does not state the \
         rate of its streams. One block ahead, that holds at 0.3 to 0.5 Mb/s (but for the longest \
         rounds with the smallest cache); at 2 Mb/s the gain is 2 to 25 %, at 4.5 Mb/s 0 to 6 %."
            .into(),
    ];
    let title = "Gain of Sweep & Prefetch, disk of Table 1, 4 MB";
    let chart = chart(title, "round (s)", "gain over Sweep (%)", lines);
    Table { columns, rows, notes, chart }
}
