//! `trace`: records what programs open on a mount, and shows it.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::{print, print_json};
use crate::cli::{TraceCommand, TraceRecordArgs, TraceShowArgs};
use crate::control::{Client, Request, WirePath};
use crate::error::Error;
use crate::units::{format_bytes, format_count, format_duration};
use crate::{signals, trace_file};

/// How often the daemon is asked.
const POLL: Duration = Duration::from_millis(200);
/// Opens in one answer.
const BATCH: usize = 8192;
/// Files listed by `show`.
const LISTED: usize = 10;

/// Carries the command out.
pub fn run(command: &TraceCommand) -> Result<(), Error> {
    match command {
        TraceCommand::Record(args) => record(args),
        TraceCommand::Show(args) => show(args),
    }
}

/// Records until the time is over or a signal comes.
fn record(args: &TraceRecordArgs) -> Result<(), Error> {
    let mut client = Client::for_path(&args.mountpoint)?;
    signals::block()?;
    let failed = |source| Error::File { path: args.output.clone(), source };
    let mut file = File::create(&args.output).map_err(failed)?;
    client.order(Request::TraceStart, Duration::from_secs(10))?;
    let until = args
        .seconds
        .and_then(|seconds| Instant::now().checked_add(Duration::try_from_secs_f64(seconds).ok()?));
    let mut text = format!("{}\n", trace_file::HEADING);
    let (mut opens, mut lost, mut ending) = (0u64, 0u64, false);
    loop {
        let recorded = client.trace(BATCH, ending)?;
        opens += recorded.opens.len() as u64;
        lost += recorded.lost;
        for open in &recorded.opens {
            trace_file::write_line(open, &mut text);
        }
        file.write_all(text.as_bytes()).map_err(failed)?;
        text.clear();
        if recorded.opens.len() == BATCH {
            continue;
        }
        if ending {
            break;
        }
        let left = until.map_or(POLL, |until| until.saturating_duration_since(Instant::now()));
        let asked = signals::wait_for(left.min(POLL)).map_err(Error::io("waiting"))?;
        ending = asked || until.is_some_and(|until| Instant::now() >= until);
    }
    if lost > 0 {
        super::warn(&format!(
            "{} opens were lost: they came faster than they could be fetched",
            format_count(lost)
        ));
    }
    if args.json {
        print_json(&serde_json::json!({ "opens": opens, "lost": lost, "file": args.output }))
    } else {
        print(&format!("{} opens in {}\n", format_count(opens), args.output.display()))
    }
}

#[derive(Default)]
struct OneFile {
    opens: u64,
    size: u64,
    path: WirePath,
}

/// What a trace says in short.
#[derive(Debug, Default, Serialize)]
struct Summary {
    opens: u64,
    reads: u64,
    writes: u64,
    files: u64,
    /// Bytes of all files that were opened, each once.
    distinct_bytes: u64,
    /// Bytes of all opens, if each reads its file.
    opened_bytes: u64,
    /// Opens of files that were opened before.
    repeated: u64,
    duration_ns: u64,
    busiest: Vec<(WirePath, u64)>,
}

fn show(args: &TraceShowArgs) -> Result<(), Error> {
    if args.paths {
        return trace_file::read(&args.trace, &mut |open| print(&format!("{}\n", open.path)));
    }
    let summary = summarise(&args.trace)?;
    if args.json {
        return print_json(&summary);
    }
    let count = format_count;
    let mut text = format!(
        "{} opens ({} for reading, {} for writing) in {}\n{} files, {}; {} if each open reads all \
         of its file\n{} opens of a file that was opened before\n",
        count(summary.opens),
        count(summary.reads),
        count(summary.writes),
        format_duration(Duration::from_nanos(summary.duration_ns)),
        count(summary.files),
        format_bytes(summary.distinct_bytes),
        format_bytes(summary.opened_bytes),
        count(summary.repeated)
    );
    for (path, opens) in &summary.busiest {
        text.push_str(&format!("  {:>8}  {path}\n", count(*opens)));
    }
    print(&text)
}

fn summarise(path: &Path) -> Result<Summary, Error> {
    let mut summary = Summary::default();
    let mut files: HashMap<u64, OneFile> = HashMap::new();
    trace_file::read(path, &mut |open| {
        summary.opens += 1;
        *if open.write { &mut summary.writes } else { &mut summary.reads } += 1;
        summary.opened_bytes += open.size;
        summary.duration_ns = summary.duration_ns.max(open.at_ns);
        let file = files.entry(open.ino).or_default();
        file.opens += 1;
        file.size = file.size.max(open.size);
        file.path = open.path;
        Ok(())
    })?;
    summary.files = files.len() as u64;
    summary.repeated = summary.opens - summary.files;
    summary.distinct_bytes = files.values().map(|file| file.size).sum();
    let mut busiest: Vec<OneFile> = files.into_values().filter(|file| file.opens > 1).collect();
    busiest.sort_by(|one, other| {
        (std::cmp::Reverse(one.opens), &one.path)
            .cmp(&(std::cmp::Reverse(other.opens), &other.path))
    });
    busiest.truncate(LISTED);
    summary.busiest = busiest.into_iter().map(|file| (file.path, file.opens)).collect();
    Ok(summary)
}
