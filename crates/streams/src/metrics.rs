//! Metrics for Prometheus, in the same text format as those of a mount.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::service::{Histogram, Status};

/// Every cause of a glitch, so that each is shown from the start.
pub const CAUSES: [&str; 7] =
    ["daemon-change", "degraded", "device-slow", "host-busy", "late", "memory", "read-error"];
/// Everything for which a server turns clients away.
pub const AWAY: [&str; 5] =
    ["client-connections", "client-rate", "client-streams", "stalled", "token"];
/// Every reason of a refusal.
pub const REASONS: [&str; 6] = ["device", "memory", "places", "rate", "startup", "throttle"];

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn number(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.head(name, kind, help);
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn family(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        all: &[&str],
        of: &BTreeMap<String, u64>,
    ) {
        self.head(name, "counter", help);
        for value in all {
            let count = of.get(*value).copied().unwrap_or(0);
            let _ = writeln!(self.0, "{name}{{{label}=\"{value}\"}} {count}");
        }
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let (last, bounded) = histogram.buckets.split_last().expect("it has buckets");
        let mut total = 0;
        for (index, count) in bounded.iter().enumerate() {
            total += count;
            let bound = (1u64 << index) as f64 / 1e3;
            let _ = writeln!(self.0, "{name}_bucket{{le=\"{bound}\"}} {total}");
        }
        total += last;
        let _ = writeln!(self.0, "{name}_bucket{{le=\"+Inf\"}} {total}");
        let _ = writeln!(self.0, "{name}_sum {}\n{name}_count {total}", histogram.sum_seconds);
    }
}

/// All metrics of a service.
pub fn render(status: &Status) -> String {
    let mut page = Page(String::new());
    gauges(&mut page, status);
    refusals_and_glitches(&mut page, status);
    work(&mut page, status);
    times(&mut page, status);
    page.0
}

fn gauges(page: &mut Page, s: &Status) {
    let gauge = "gauge";
    page.number(
        "forebay_stream_guaranteed",
        gauge,
        "Streams with a guaranteed rate.",
        s.guaranteed,
    );
    page.number(
        "forebay_stream_guaranteed_bytes_per_second",
        gauge,
        "What they need together.",
        s.guaranteed_rate,
    );
    page.number(
        "forebay_stream_degraded",
        gauge,
        "Streams that have lost their guarantee at the moment.",
        s.degraded,
    );
    page.number(
        "forebay_stream_joining",
        gauge,
        "Streams that wait for the first of those that ask for the same.",
        s.joining,
    );
    page.number("forebay_stream_best_effort", gauge, "Streams without a guarantee.", s.best_effort);
    page.number(
        "forebay_stream_idle",
        gauge,
        "Streams that have given their places back, since nobody reads them.",
        s.idle,
    );
    page.number(
        "forebay_stream_cycle_seconds",
        gauge,
        "Time between visits of a stream.",
        s.cycle_seconds,
    );
    page.number(
        "forebay_stream_load_ratio",
        gauge,
        "Share of a cycle that the admitted streams may take.",
        s.load,
    );
    page.number(
        "forebay_stream_slowdown_ratio",
        gauge,
        "Observed service times over those of the profile.",
        s.slowdown,
    );
    page.number(
        "forebay_stream_memory_used_bytes",
        gauge,
        "Memory in use for what is read ahead.",
        s.memory_used,
    );
    page.number(
        "forebay_stream_memory_peak_bytes",
        gauge,
        "The most memory that was ever in use.",
        s.memory_peak,
    );
    page.number(
        "forebay_stream_memory_limit_bytes",
        gauge,
        "The limit of the memory.",
        s.memory_limit,
    );
}

fn refusals_and_glitches(page: &mut Page, s: &Status) {
    let counter = "counter";
    page.number("forebay_stream_opened_total", counter, "Streams that were opened.", s.opened);
    page.family(
        "forebay_stream_refused_total",
        "Streams that were refused, by reason.",
        "reason",
        &REASONS,
        &s.refused,
    );
    page.family(
        "forebay_stream_glitches_total",
        "Times a stream had nothing when it should have had, by cause.",
        "cause",
        &CAUSES,
        &s.glitches,
    );
    page.family(
        "forebay_stream_turned_away_total",
        "Clients that were turned away or cut off.",
        "why",
        &AWAY,
        &s.turned_away,
    );
    page.number(
        "forebay_stream_probed_total",
        counter,
        "Files that were looked at for their rates.",
        s.probed,
    );
    page.number(
        "forebay_stream_without_rate_total",
        counter,
        "Those of them of which none was found.",
        s.without_rate,
    );
    page.number(
        "forebay_stream_glitch_seconds_total",
        counter,
        "How long streams were late.",
        s.glitch_seconds,
    );
    page.number(
        "forebay_stream_degradations_total",
        counter,
        "Guarantees that were taken away.",
        s.degradations,
    );
    page.number(
        "forebay_stream_restorations_total",
        counter,
        "Guarantees that were given back.",
        s.restorations,
    );
    page.number(
        "forebay_stream_broken_total",
        counter,
        "Streams that broke off because their file could not be read.",
        s.broken,
    );
}

fn work(page: &mut Page, s: &Status) {
    let counter = "counter";
    page.number(
        "forebay_stream_read_bytes_total",
        counter,
        "Bytes read from the device for streams.",
        s.bytes_read,
    );
    page.number(
        "forebay_stream_taken_bytes_total",
        counter,
        "Bytes that readers took.",
        s.bytes_taken,
    );
    page.number(
        "forebay_stream_best_effort_bytes_total",
        counter,
        "Bytes read for streams without a guarantee.",
        s.bytes_best_effort,
    );
    page.number(
        "forebay_stream_turns_total",
        counter,
        "Turns of the device that others had, for what is no stream.",
        s.turns,
    );
    page.number(
        "forebay_stream_parked_total",
        counter,
        "Times that an idle stream gave its place back.",
        s.parked,
    );
    page.number(
        "forebay_stream_beginnings_bytes",
        "gauge",
        "Bytes of beginnings of popular files that are at hand.",
        s.beginnings_bytes,
    );
    page.number(
        "forebay_stream_beginnings_used_total",
        counter,
        "Streams that have begun with one.",
        s.beginnings_used,
    );
    page.number(
        "forebay_stream_visits_total",
        counter,
        "Visits of streams by the device.",
        s.visits,
    );
    page.number(
        "forebay_stream_early_visits_total",
        counter,
        "Visits out of order, to meet a deadline.",
        s.early_visits,
    );
    page.number(
        "forebay_stream_shared_total",
        counter,
        "Streams that came to share what another one reads.",
        s.shared,
    );
    page.number(
        "forebay_stream_behind_total",
        counter,
        "Times that a stream fell behind the others of its title and lost its place among them.",
        s.behind,
    );
    page.number("forebay_stream_read_errors_total", counter, "Reads that failed.", s.read_errors);
}

fn times(page: &mut Page, s: &Status) {
    let counter = "counter";
    page.histogram(
        "forebay_stream_startup_seconds",
        "Time from the wish for a stream to its first bytes.",
        &s.startup,
    );
    page.histogram(
        "forebay_stream_handover_seconds",
        "Time from the end of a read until the driver has seen it.",
        &s.hand_over,
    );
    page.histogram(
        "forebay_stream_service_seconds",
        "Time of the device for one read.",
        &s.service,
    );
    page.number(
        "forebay_stream_driver_seconds_total",
        counter,
        "Processor time of the thread that decides.",
        s.driver_seconds,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_when_rendered_then_every_line_is_a_comment_or_a_number() {
        let mut status = Status { opened: 7, ..Status::default() };
        status.glitches.insert("late".into(), 3);
        status.startup.buckets[2] = 5;
        let text = render(&status);
        for line in text.lines().filter(|line| !line.starts_with("# ")) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(name.starts_with("forebay_stream_"), "{line}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
        for expected in [
            "forebay_stream_opened_total 7\n",
            "forebay_stream_glitches_total{cause=\"late\"} 3\n",
            "forebay_stream_glitches_total{cause=\"memory\"} 0\n",
            "forebay_stream_startup_seconds_bucket{le=\"0.004\"} 5\n",
            "forebay_stream_startup_seconds_count 5\n",
        ] {
            assert!(text.contains(expected), "{expected}");
        }
    }
}
