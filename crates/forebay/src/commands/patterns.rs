//! `patterns`: who reads and writes which pieces of which files, in the terminal and as a picture.

use std::fmt::Write;
use std::time::{Duration, Instant};

use super::{print, print_json};
use crate::cli::run::PatternsArgs;
use crate::control::{Client, PatternRow, PatternTask, Patterns, Request};
use crate::error::Error;
use crate::printable::one_line;
use crate::signals;
use crate::units::{format_bytes, format_count};

/// Tasks and rows that are printed.
const TASKS_MAX: usize = 8;
const ROWS_MAX: usize = 32;
/// From nothing to the greatest count.
const SHADES: &[u8] = b" .:-=+*#%@";

const ORDER: Duration = Duration::from_secs(10);

/// Carries the command out.
pub fn run(args: &PatternsArgs) -> Result<(), Error> {
    if args.for_time.is_some() {
        signals::block_ends()?;
    }
    let mut client = Client::for_path(&args.mountpoint)?;
    if args.start || args.for_time.is_some() {
        client.order(Request::PatternsStart, ORDER)?;
    }
    if args.start {
        return Ok(());
    }
    if let Some(time) = args.for_time {
        wait(time)?;
    }
    let patterns = client.patterns()?;
    if args.stop || args.for_time.is_some() {
        client.order(Request::PatternsStop, ORDER)?;
    }
    if let Some(path) = &args.svg {
        std::fs::write(path, svg(&patterns)).map_err(Error::io(path.display().to_string()))?;
    }
    if args.json { print_json(&patterns) } else { print(&text(&patterns)) }
}

/// Waits, or until somebody asks the command to end: then it shows what there is.
fn wait(time: Duration) -> Result<(), Error> {
    let until = Instant::now().checked_add(time);
    let left =
        || until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
    while !left().is_zero() {
        let heard = signals::end_within(left()).map_err(Error::io("waiting"))?;
        if heard.is_some() {
            break;
        }
    }
    Ok(())
}

fn shade(count: u64, greatest: u64) -> char {
    let steps = SHADES.len() as u64 - 1;
    let step = if count == 0 { 0 } else { 1 + (count - 1) * steps / greatest.max(1) };
    char::from(SHADES[usize::try_from(step.min(steps)).unwrap_or(0)])
}

fn greatest(task: &PatternTask) -> u64 {
    task.rows.iter().flat_map(|row| row.reads.iter().chain(&row.writes)).copied().max().unwrap_or(0)
}

fn name(row: &PatternRow) -> String {
    let path = row.path.to_string();
    let path = if path.is_empty() { "(removed)".into() } else { path };
    format!("{path} +{}", format_bytes(row.offset))
}

fn text(patterns: &Patterns) -> String {
    let mut out = String::new();
    let seconds = (patterns.to_ms - patterns.from_ms.min(patterns.to_ms)) as f64 / 1000.0;
    let _ = writeln!(
        out,
        "recorded for {:.1} s: {} accesses to blocks, {} of them served from tiers here; {} of nobody, \
         {} lost",
        patterns.recorded_ms as f64 / 1000.0,
        format_count(patterns.here + patterns.elsewhere),
        format_count(patterns.here),
        format_count(patterns.unattributed),
        format_count(patterns.lost)
    );
    for task in patterns.tasks.iter().take(TASKS_MAX) {
        let _ = writeln!(
            out,
            "\n{}  pid {}  {} reads, {} writes of blocks\n  [reads ] [writes] of {seconds:.1} s",
            one_line(&task.label),
            task.pid,
            format_count(task.reads),
            format_count(task.writes)
        );
        let greatest = greatest(task);
        for row in task.rows.iter().take(ROWS_MAX) {
            let cells = |counts: &[u64]| -> String {
                counts.iter().map(|count| shade(*count, greatest)).collect()
            };
            let _ =
                writeln!(out, "  |{}| |{}|  {}", cells(&row.reads), cells(&row.writes), name(row));
        }
        if task.rows_total > ROWS_MAX as u64 {
            let _ = writeln!(out, "  and {} more rows", task.rows_total - ROWS_MAX as u64);
        }
    }
    if patterns.tasks_total > TASKS_MAX as u64 {
        let _ = writeln!(out, "\nand {} more tasks", patterns.tasks_total - TASKS_MAX as u64);
    }
    for pair in &patterns.similar {
        let (a, b) = (one_line(&pair.a), one_line(&pair.b));
        let _ = writeln!(out, "similar ({:.3}): {a} and {b}", pair.similarity);
    }
    out
}

/// Pixels of a cell, of the column of names, of a margin.
const CELL: (usize, usize) = (18, 12);
const NAMES: usize = 360;
const MARGIN: usize = 12;
/// Tasks in a picture.
const PICTURE_TASKS: usize = 64;

/// A heat map: reads in blue, writes in red, one panel of each task.
fn svg(patterns: &Patterns) -> String {
    let intervals = patterns.tasks.iter().flat_map(|task| &task.rows).map(|row| row.reads.len());
    let intervals = intervals.max().unwrap_or(8);
    let panel = intervals * CELL.0;
    let width = NAMES + 2 * panel + 4 * MARGIN;
    let mut body = String::new();
    let mut y = MARGIN + 14;
    for task in patterns.tasks.iter().take(PICTURE_TASKS) {
        let label = escape(&one_line(&task.label));
        let counts = format!("{} reads, {} writes", task.reads, task.writes);
        let _ = writeln!(
            body,
            "<text x='{MARGIN}' y='{y}' font-weight='bold'>{label}: {counts}</text>"
        );
        y += 6;
        let greatest = greatest(task).max(1);
        for row in &task.rows {
            for (cells, left, colour) in [
                (&row.reads, NAMES + MARGIN, "#08519c"),
                (&row.writes, NAMES + 2 * MARGIN + panel, "#a50f15"),
            ] {
                let _ = writeln!(
                    body,
                    "<rect x='{left}' y='{y}' width='{panel}' height='{}' fill='#f2f2f2'/>",
                    CELL.1
                );
                for (at, count) in cells.iter().enumerate().filter(|(_, count)| **count > 0) {
                    let opacity = 0.15 + 0.85 * *count as f64 / greatest as f64;
                    let _ = writeln!(
                        body,
                        "<rect x='{}' y='{y}' width='{}' height='{}' fill='{colour}' \
                         fill-opacity='{opacity:.3}'><title>{count}</title></rect>",
                        left + at * CELL.0,
                        CELL.0,
                        CELL.1
                    );
                }
            }
            let name = escape(&name(row));
            let _ = writeln!(body, "<text x='{MARGIN}' y='{}' font-size='9'>{name}</text>", y + 9);
            y += CELL.1 + 1;
        }
        y += 2 * MARGIN;
    }
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{y}' font-family='sans-serif' \
         font-size='11'>\n<rect width='{width}' height='{y}' fill='white'/>\n{body}</svg>\n"
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns() -> Patterns {
        let row = PatternRow {
            path: "a<b".into(),
            offset: 2 << 20,
            reads: vec![0, 1, 5, 10, 0, 0, 0, 0],
            writes: vec![0; 8],
        };
        let task = PatternTask {
            label: "sort & co".into(),
            pid: 7,
            reads: 16,
            writes: 0,
            rows: vec![row],
            rows_total: 1,
        };
        Patterns { tasks: vec![task], tasks_total: 1, here: 16, ..Patterns::default() }
    }

    #[test]
    fn patterns_in_the_terminal_then_darker_where_more_was_accessed() {
        let text = text(&patterns());
        assert!(text.contains("  | .=@    | |        |  a<b +2.00 MiB"), "{text}");
    }

    #[test]
    fn patterns_as_a_picture_then_names_are_escaped_and_cells_drawn() {
        let svg = svg(&patterns());
        assert!(svg.contains("sort &amp; co: 16 reads") && svg.contains("a&lt;b"), "{svg}");
        assert_eq!(svg.matches("<title>").count(), 3);
        assert!(svg.contains("fill-opacity='1.000'"));
    }
}
