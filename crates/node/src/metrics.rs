//! Metrics of a node: one table of all of them, updated without locks or allocation, rendered in
//! the Prometheus text format. `docs/reference/metrics.md` is made from the same table.

use std::fmt::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// What a metric's number does over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts observations in buckets of doubling width.
    Histogram,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// What a user may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    /// Keeps name and meaning until the next major version.
    Stable,
    /// May change with any version.
    Experimental,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// Its name, with the unit last.
    pub name: &'static str,
    /// What its number does.
    pub kind: Kind,
    /// The unit of its number.
    pub unit: &'static str,
    /// Its label and all values of it, if it has one.
    pub label: Option<(&'static str, &'static [&'static str])>,
    /// What a user may rely on.
    pub stability: Stability,
    /// What it counts.
    pub help: &'static str,
}

/// A number that only grows, alone on its cache line so that threads do not slow each other.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to it.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes over what was counted elsewhere; never goes back.
    pub fn raise(&self, value: u64) {
        self.0.fetch_max(value, Ordering::Relaxed);
    }
}

/// A number that goes up and down.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Sets it.
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Adds to it; negative amounts take away.
    pub fn add(&self, amount: i64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Upper bounds of a histogram's buckets double from one microsecond to about 33 seconds.
const BUCKETS: usize = 26;

/// Counts of durations in buckets of doubling width.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    above: AtomicU64,
    sum_nanos: AtomicU64,
}

impl Histogram {
    /// Counts one duration.
    pub fn observe(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        // The bucket of n microseconds, rounded up, is the number of bits of n - 1.
        let above_micro = nanos.div_ceil(1000).saturating_sub(1);
        let index = (u64::BITS - above_micro.leading_zeros()) as usize;
        self.buckets.get(index).unwrap_or(&self.above).fetch_add(1, Ordering::Relaxed);
        self.sum_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Number of observations.
    pub fn count(&self) -> u64 {
        let within: u64 = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum();
        within + self.above.load(Ordering::Relaxed)
    }

    fn render(&self, out: &mut String, name: &str, labels: &str) {
        let mut total = 0;
        let comma = if labels.is_empty() { "" } else { "," };
        for (index, bucket) in self.buckets.iter().enumerate() {
            total += bucket.load(Ordering::Relaxed);
            let bound = (1u64 << index) as f64 / 1e6;
            let _ = writeln!(out, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {total}");
        }
        total += self.above.load(Ordering::Relaxed);
        let sum = self.sum_nanos.load(Ordering::Relaxed) as f64 / 1e9;
        let braces = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = writeln!(out, "{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {total}");
        let _ = writeln!(out, "{name}_sum{braces} {sum}");
        let _ = writeln!(out, "{name}_count{braces} {total}");
    }
}

/// Something that a row of the table can hold.
trait Cell {
    const KIND: Kind;
    fn render(&self, out: &mut String, name: &str, labels: &str);
}

/// Writes a name, its labels if any, and its value.
fn render_number(out: &mut String, name: &str, labels: &str, value: impl std::fmt::Display) {
    let _ = if labels.is_empty() {
        writeln!(out, "{name} {value}")
    } else {
        writeln!(out, "{name}{{{labels}}} {value}")
    };
}

impl Cell for Counter {
    const KIND: Kind = Kind::Counter;
    fn render(&self, out: &mut String, name: &str, labels: &str) {
        render_number(out, name, labels, self.get());
    }
}

impl Cell for Gauge {
    const KIND: Kind = Kind::Gauge;
    fn render(&self, out: &mut String, name: &str, labels: &str) {
        render_number(out, name, labels, self.get());
    }
}

impl Cell for Histogram {
    const KIND: Kind = Kind::Histogram;
    fn render(&self, out: &mut String, name: &str, labels: &str) {
        Histogram::render(self, out, name, labels);
    }
}

/// A fixed set of label values.
pub trait Label: Copy {
    /// All values as shown, in the order of the variants.
    const VALUES: &'static [&'static str];
    /// The name of the label.
    const NAME: &'static str;
    /// The place of this value in [`Label::VALUES`].
    fn index(self) -> usize;
}

macro_rules! label {
    ($(#[$doc:meta])* $name:ident = $label:literal { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }
        impl $name {
            /// All variants in order.
            pub const ALL: &'static [$name] = &[$($name::$variant,)+];
            /// The value as shown.
            pub const fn as_str(self) -> &'static str {
                Self::VALUES_OF[self as usize]
            }
            const VALUES_OF: &'static [&'static str] = &[$($text,)+];
        }
        impl Label for $name {
            const VALUES: &'static [&'static str] = Self::VALUES_OF;
            const NAME: &'static str = $label;
            fn index(self) -> usize { self as usize }
        }
    };
}

label! {
    /// Where bytes came from or went to.
    Source = "source" {
        /// A tier, through the daemon; what the kernel passes through is not seen.
        Tier = "tier",
        /// The backing store, while a program waited.
        Backing = "backing",
        /// The backing store, because no tier had room.
        Spill = "spill",
        /// Copied from the backing store into a tier.
        Fill = "fill",
        /// Copied from another node's tier into a tier.
        Peer = "peer",
        /// Read and written through the node that owns the file.
        Owner = "owner",
        /// Copied from a tier to the backing store.
        Flush = "flush",
    }
}

label! {
    /// An operation that programs wait for.
    Op = "op" {
        /// Look a name up.
        Lookup = "lookup",
        /// Get attributes.
        Getattr = "getattr",
        /// Set attributes, truncate.
        Setattr = "setattr",
        /// Open a file.
        Open = "open",
        /// Create a file.
        Create = "create",
        /// Read.
        Read = "read",
        /// Write.
        Write = "write",
        /// Flush at close.
        Flush = "flush",
        /// Synchronise.
        Fsync = "fsync",
        /// Last close.
        Release = "release",
        /// List a directory.
        Readdir = "readdir",
        /// Make a directory, node or link.
        Make = "make",
        /// Remove a name.
        Remove = "remove",
        /// Rename.
        Rename = "rename",
        /// Extended attributes.
        Xattr = "xattr",
        /// Everything else.
        Other = "other",
    }
}

label! {
    /// Why the daemon served an open that the kernel could not be given.
    RefusalReason = "reason" {
        /// Passthrough is off for this mount.
        Off = "off",
        /// The daemon has no CAP_SYS_ADMIN.
        NoPrivilege = "no-privilege",
        /// The kernel can not.
        NoKernel = "no-kernel",
        /// The file is not wholly resident.
        NotResident = "not-resident",
        /// No space is promised for a writer.
        NoReservation = "no-reservation",
        /// Another open of the same file is served by the daemon.
        MixedOpen = "mixed-open",
        /// The file has set-id bits or capabilities that writing must clear.
        SetId = "set-id",
        /// Writers wait for the backing store at close.
        WriteThrough = "write-through",
        /// What is synced must be in the backing store, or with other nodes, before the answer.
        Durability = "durability",
        /// The file was emptied, and the backing store has an older version of it: which of its bytes the
        /// kernel makes durable, nobody could tell from those that it does not.
        Emptied = "emptied",
        /// The tier's file system lies too deep in a stack of file systems.
        StackDepth = "stack-depth",
        /// The kernel refused for another reason.
        Refused = "refused",
    }
}

label! {
    /// A class of errors given to programs.
    ErrorClass = "class" {
        /// The backing store failed.
        Backing = "backing",
        /// A tier failed.
        Tier = "tier",
        /// The backing store did not answer in time.
        BackingTimeout = "backing-timeout",
        /// Neither tier nor backing store has room.
        NoSpace = "no-space",
        /// The metadata engine failed.
        Meta = "meta",
        /// Stored state was found damaged.
        Corrupt = "corrupt",
        /// Too much waits for the backing store, too many files are open.
        Busy = "busy",
    }
}

label! {
    /// What the worker pools do.
    Queue = "queue" {
        /// Somebody waits for it.
        Demand = "demand",
        /// Writing back.
        WriteBack = "write-back",
        /// Reading ahead, evictions and the like.
        Background = "background",
    }
}

/// One cell for each value of a label.
#[derive(Debug)]
pub struct Family<L, C, const N: usize> {
    cells: [C; N],
    label: std::marker::PhantomData<fn(L)>,
}

impl<L: Label, C: Default, const N: usize> Default for Family<L, C, N> {
    fn default() -> Self {
        const { assert!(N == L::VALUES.len()) };
        Self { cells: std::array::from_fn(|_| C::default()), label: std::marker::PhantomData }
    }
}

impl<L: Label, C, const N: usize> Family<L, C, N> {
    /// The cell of a value.
    pub fn of(&self, label: L) -> &C {
        &self.cells[label.index()]
    }
}

/// A field of [`Metrics`].
trait Field {
    const KIND: Kind;
    const LABEL: Option<(&'static str, &'static [&'static str])>;
    fn render(&self, out: &mut String, name: &str);
}

impl<C: Cell> Field for C {
    const KIND: Kind = C::KIND;
    const LABEL: Option<(&'static str, &'static [&'static str])> = None;
    fn render(&self, out: &mut String, name: &str) {
        Cell::render(self, out, name, "");
    }
}

impl<L: Label, C: Cell, const N: usize> Field for Family<L, C, N> {
    const KIND: Kind = C::KIND;
    const LABEL: Option<(&'static str, &'static [&'static str])> = Some((L::NAME, L::VALUES));
    fn render(&self, out: &mut String, name: &str) {
        for (cell, value) in self.cells.iter().zip(L::VALUES) {
            cell.render(out, name, &format!("{}=\"{value}\"", L::NAME));
        }
    }
}

impl Metrics {
    /// Operations of programs so far.
    pub(crate) fn operations(&self) -> u64 {
        Op::ALL.iter().map(|op| self.op_seconds.of(*op).count()).sum()
    }
}

macro_rules! metrics {
    ($($field:ident: $type:ty = $name:literal, $unit:literal, $stability:ident, $help:literal;)+) => {
        /// All metrics of a node.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $(#[doc = $help] pub $field: $type,)+
        }

        /// Every metric, in the order of the rendering.
        pub const TABLE: &[Description] = &[
            $(Description {
                name: $name,
                kind: <$type as Field>::KIND,
                unit: $unit,
                label: <$type as Field>::LABEL,
                stability: Stability::$stability,
                help: $help,
            },)+
        ];

        impl Metrics {
            fn render_fields(&self, out: &mut String) {
                $(
                    header(out, $name, <$type as Field>::KIND, $help);
                    Field::render(&self.$field, out, $name);
                )+
            }
        }
    };
}

metrics! {
    hits: Counter = "forebay_hits_total", "opens", Stable,
        "Opens that found the whole file resident.";
    misses: Counter = "forebay_misses_total", "opens", Stable,
        "Opens that found the file resident in part, or not at all.";
    bytes: Family<Source, Counter, 7> = "forebay_bytes_total", "bytes", Stable,
        "Bytes moved, by where they came from or went to; passthrough is not seen.";
    op_seconds: Family<Op, Histogram, 16> = "forebay_op_seconds", "seconds", Stable,
        "Time from a request of a program to its answer, by operation.";
    tier_used_bytes: Gauge = "forebay_tier_used_bytes", "bytes", Stable,
        "Bytes that resident files take on all tiers.";
    tier_size_bytes: Gauge = "forebay_tier_size_bytes", "bytes", Stable,
        "Configured size of all tiers.";
    tier_reserved_bytes: Gauge = "forebay_tier_reserved_bytes", "bytes", Experimental,
        "Bytes promised to writers on all tiers.";
    resident_files: Gauge = "forebay_resident_files", "files", Stable,
        "Files that are resident wholly or in part.";
    dirty_bytes: Gauge = "forebay_dirty_bytes", "bytes", Stable,
        "Bytes that are not yet in the backing store.";
    dirty_files: Gauge = "forebay_dirty_files", "files", Stable,
        "Files that are not yet in the backing store.";
    dirty_oldest_seconds: Gauge = "forebay_dirty_oldest_seconds", "seconds", Stable,
        "Age of the oldest file that is not yet in the backing store.";
    backlog_entries: Gauge = "forebay_backlog_entries", "entries", Stable,
        "Files, directories and links of which names, attributes or data are not yet in the backing store.";
    backlog_oldest_seconds: Gauge = "forebay_backlog_oldest_seconds", "seconds", Stable,
        "Age of the oldest entry of the backlog.";
    evictions: Counter = "forebay_evictions_total", "files", Stable,
        "Files removed from the tiers to make room.";
    vain_waits: Counter = "forebay_vain_waits_total", "waits", Experimental,
        "Waits of writers for room on a tier that ended without any.";
    demotions: Counter = "forebay_demotions_total", "files", Stable,
        "Files moved to a slower tier to make room.";
    evicted_bytes: Counter = "forebay_evicted_bytes_total", "bytes", Stable,
        "Bytes removed from the tiers to make room.";
    flushes: Counter = "forebay_flushes_total", "files", Stable,
        "Files written back to the backing store.";
    flush_failures: Counter = "forebay_flush_failures_total", "files", Stable,
        "Attempts to write a file back that failed; each is tried again.";
    flush_seconds: Histogram = "forebay_flush_seconds", "seconds", Experimental,
        "Time to write one file back.";
    conflicts: Counter = "forebay_conflicts_total", "files", Stable,
        "Files that were changed on both sides and kept in both versions.";
    passthrough_opens: Counter = "forebay_passthrough_opens_total", "opens", Stable,
        "Opens that were handed to the kernel.";
    passthrough_refusals: Family<RefusalReason, Counter, 12> = "forebay_passthrough_refusals_total", "opens", Stable,
        "Opens that the daemon served itself, by reason.";
    errors: Family<ErrorClass, Counter, 7> = "forebay_errors_total", "errors", Stable,
        "Errors given to programs that were not their own doing, by class.";
    pool_queued: Family<Queue, Gauge, 3> = "forebay_pool_queued", "jobs", Experimental,
        "Jobs that wait for a worker, by purpose.";
    hint_jobs: Gauge = "forebay_hint_jobs", "jobs", Stable,
        "Jobs that have given reference sequences.";
    hint_references: Gauge = "forebay_hint_references", "references", Stable,
        "References of all jobs that are still ahead.";
    prefetched: Counter = "forebay_prefetched_files_total", "files", Stable,
        "Files fetched ahead along hints.";
    prefetched_bytes: Counter = "forebay_prefetched_bytes_total", "bytes", Stable,
        "Bytes fetched ahead along hints.";
    prefetch_used: Counter = "forebay_prefetch_used_total", "files", Stable,
        "Files fetched ahead that were opened afterwards.";
    prefetch_late: Counter = "forebay_prefetch_late_total", "files", Stable,
        "Files fetched ahead that were opened before they had arrived.";
    prefetch_wasted: Counter = "forebay_prefetch_wasted_total", "files", Stable,
        "Files fetched ahead for nothing.";
    prefetch_wasted_bytes: Counter = "forebay_prefetch_wasted_bytes_total", "bytes", Stable,
        "Bytes fetched ahead for nothing.";
    prefetch_waiting_bytes: Gauge = "forebay_prefetch_waiting_bytes", "bytes", Stable,
        "Bytes fetched ahead, or being fetched, that are not used yet.";
    bytes_copied: Counter = "forebay_copied_bytes_total", "bytes", Stable,
        "Bytes sent to other nodes, so that they are not lost with this one.";
    copies_repaired: Counter = "forebay_repaired_copies_total", "copies", Stable,
        "Copies on other nodes that were made again elsewhere.";
    copies_moved: Counter = "forebay_moved_copies_total", "copies", Stable,
        "Copies and fragments on other nodes that were moved to nodes with more room.";
    read_by_fragments: Counter = "forebay_fragment_read_bytes_total", "bytes", Stable,
        "Bytes of files whose owner is gone that were read by their fragments, before another node had taken them over.";
    written_through: Counter = "forebay_written_through_total", "files", Stable,
        "Files that were written back at fsync or close, as too few nodes could take copies.";
    taken_over: Counter = "forebay_taken_over_total", "files", Stable,
        "Files that were taken over from nodes that are gone.";
    stuck: Gauge = "forebay_stuck_operations", "operations", Stable,
        "Operations that wait for the backing store longer than they should.";
}

fn header(out: &mut String, name: &str, kind: Kind, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}");
    let _ = writeln!(out, "# TYPE {name} {}", kind.word());
}

impl Metrics {
    /// All metrics in the Prometheus text format, version 0.0.4.
    pub fn render(&self) -> String {
        let mut out = String::with_capacity(32 << 10);
        self.render_fields(&mut out);
        out
    }
}

/// The table as the document for users.
pub fn document() -> String {
    let mut out = String::from(
        "# Metrics\n\nServed at `--metrics ADDR` under `/metrics` and by `forebay debug metrics \
         MOUNTPOINT`, in the Prometheus text format. Stable metrics keep name and meaning until \
         the next major version. Buckets of histograms double from 1 microsecond to 33 seconds. \
         This file is generated from the table in `crates/node/src/metrics.rs`.\n\n\
         | name | kind | unit | label | stability | meaning |\n|---|---|---|---|---|---|\n",
    );
    for row in TABLE {
        let label = row
            .label
            .map_or(String::new(), |(name, values)| format!("{name}: {}", values.join(", ")));
        let stability = match row.stability {
            Stability::Stable => "stable",
            Stability::Experimental => "experimental",
        };
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | {label} | {stability} | {} |",
            row.name,
            row.kind.word(),
            row.unit,
            row.help
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str, line_start: &str) -> f64 {
        let line = text.lines().find(|line| line.starts_with(line_start));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).expect(line_start)
    }

    #[test]
    fn render_when_updated_then_values_are_in_the_text() {
        let metrics = Metrics::default();
        metrics.hits.add(3);
        metrics.bytes.of(Source::Spill).add(4096);
        metrics.dirty_bytes.add(10);
        metrics.dirty_bytes.add(-4);
        metrics.op_seconds.of(Op::Read).observe(Duration::from_micros(3));
        let text = metrics.render();
        assert_eq!(value(&text, "forebay_hits_total "), 3.0);
        assert_eq!(value(&text, "forebay_bytes_total{source=\"spill\"}"), 4096.0);
        assert_eq!(value(&text, "forebay_dirty_bytes "), 6.0);
        assert_eq!(value(&text, "forebay_op_seconds_bucket{op=\"read\",le=\"0.000002\"}"), 0.0);
        assert_eq!(value(&text, "forebay_op_seconds_bucket{op=\"read\",le=\"0.000004\"}"), 1.0);
        assert_eq!(value(&text, "forebay_op_seconds_count{op=\"read\"}"), 1.0);
    }

    #[test]
    fn render_when_read_as_prometheus_does_then_each_line_is_well_formed() {
        let text = Metrics::default().render();
        for line in text.lines() {
            let sample = line.starts_with("# ") || {
                let (name, value) = line.rsplit_once(' ').unwrap();
                value.parse::<f64>().is_ok() && name.starts_with("forebay_")
            };
            assert!(sample, "{line}");
        }
        for row in TABLE {
            assert!(text.contains(&format!("# TYPE {} {}\n", row.name, row.kind.word())));
        }
    }

    #[test]
    fn observe_when_durations_are_extreme_then_the_right_bucket_counts() {
        let histogram = Histogram::default();
        let cases = [(0, 0), (1, 0), (1_000, 0), (1_001, 1), (2_000, 1), (2_001, 2), (4_000, 2)];
        for (nanos, index) in cases {
            let before = histogram.buckets[index].load(Ordering::Relaxed);
            histogram.observe(Duration::from_nanos(nanos));
            assert_eq!(histogram.buckets[index].load(Ordering::Relaxed), before + 1, "{nanos}");
        }
        histogram.observe(Duration::from_secs(100_000));
        histogram.observe(Duration::MAX);
        assert_eq!(histogram.above.load(Ordering::Relaxed), 2);
        assert_eq!(histogram.count(), cases.len() as u64 + 2);
    }

    #[test]
    fn table_when_checked_then_names_follow_the_conventions() {
        for (index, row) in TABLE.iter().enumerate() {
            assert!(TABLE[index + 1..].iter().all(|other| other.name != row.name), "{}", row.name);
            assert_eq!(row.kind == Kind::Counter, row.name.ends_with("_total"), "{}", row.name);
            assert!(row.help.ends_with('.'), "{}", row.name);
        }
    }

    #[test]
    fn document_when_compared_then_the_file_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/metrics.md");
        if std::env::var_os("FOREBAY_BLESS").is_some() {
            std::fs::write(path, document()).unwrap();
        }
        let text = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            text == document(),
            "docs/reference/metrics.md is old: run the tests with FOREBAY_BLESS=1"
        );
    }

    #[test]
    fn dashboard_when_it_names_metrics_then_they_exist() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/grafana/forebay.json");
        let text = std::fs::read_to_string(path).unwrap();
        let mut named = 0;
        for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            if let Some(rest) = word.strip_prefix("forebay_") {
                let known = TABLE.iter().any(|row| {
                    let name = row.name.strip_prefix("forebay_").unwrap();
                    rest == name
                        || row.kind == Kind::Histogram
                            && rest
                                .strip_prefix(name)
                                .is_some_and(|end| ["_bucket", "_sum", "_count"].contains(&end))
                });
                assert!(known, "the dashboard names {word}");
                named += 1;
            }
        }
        assert!(named > 10, "the dashboard shows next to nothing");
    }
}
