//! Samples, their medians and ratios, and the forms in which they are written.

use std::fmt::Write;
use std::path::Path;

use serde::Serialize;

use crate::{Error, svg};

/// All samples of one measurement of one subject.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// What was measured, such as `read 1 MiB x2`.
    pub test: String,
    /// On which subject.
    pub subject: String,
    /// The unit of the samples.
    pub unit: &'static str,
    /// Whether a smaller number is better: times, and bytes moved.
    pub less_is_better: bool,
    /// One sample for each round.
    pub samples: Vec<f64>,
}

impl Series {
    /// Smallest, median and largest sample.
    pub fn spread(&self) -> (f64, f64, f64) {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        (quantile(&sorted, 0.0), quantile(&sorted, 0.5), quantile(&sorted, 1.0))
    }
}

/// The value at a part of a sorted list, between two values by interpolation.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let place = part * last as f64;
    let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    low + (high - low) * place.fract()
}

/// All measurements of a run, in order; the first subject of each test is its reference.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// What was run.
    pub title: String,
    /// The measurements.
    pub series: Vec<Series>,
}

impl Report {
    /// An empty report.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), series: Vec::new() }
    }

    /// Adds one sample.
    pub fn add(&mut self, test: &str, subject: &str, unit: &'static str, sample: f64) {
        let found = self.series.iter_mut().find(|s| s.test == test && s.subject == subject);
        match found {
            Some(series) => series.samples.push(sample),
            None => self.series.push(Series {
                test: test.into(),
                subject: subject.into(),
                unit,
                less_is_better: ["ms", "s", "MiB"].contains(&unit),
                samples: vec![sample],
            }),
        }
    }

    /// The names of the tests in order.
    pub fn tests(&self) -> Vec<&str> {
        let mut tests: Vec<&str> = Vec::new();
        for series in &self.series {
            if !tests.contains(&series.test.as_str()) {
                tests.push(&series.test);
            }
        }
        tests
    }

    /// The measurements of one test, the reference first.
    pub fn of<'a>(&'a self, test: &'a str) -> impl Iterator<Item = &'a Series> {
        self.series.iter().filter(move |series| series.test == test)
    }

    /// How many times faster than the reference a series is: the median, smallest and largest of
    /// the ratios of samples of the same round, as (min, median, max).
    pub fn ratio(&self, series: &Series) -> (f64, f64, f64) {
        let Some(reference) = self.of(&series.test).next() else { return (0.0, 0.0, 0.0) };
        let pairs = reference.samples.iter().zip(&series.samples);
        let mut ratios: Vec<f64> = pairs
            .map(|(base, own)| if series.less_is_better { base / own } else { own / base })
            .filter(|ratio| ratio.is_finite())
            .collect();
        ratios.sort_by(f64::total_cmp);
        (quantile(&ratios, 0.0), quantile(&ratios, 0.5), quantile(&ratios, 1.0))
    }

    /// The table for people.
    pub fn table(&self) -> String {
        let width = self.series.iter().map(|s| s.test.len()).max().unwrap_or(4).max(4);
        let names = self.series.iter().map(|s| s.subject.len()).max().unwrap_or(7).max(7);
        let mut out = format!(
            "{}\n{:width$}  {:names$}  {:>12} {:>12} {:>12}  {:5}  {:>7} {:>15}\n",
            self.title, "test", "subject", "min", "median", "max", "unit", "ratio", "(min..max)"
        );
        for test in self.tests() {
            for series in self.of(test) {
                let (min, median, max) = series.spread();
                let (low, ratio, high) = self.ratio(series);
                let range = format!("({low:.2}..{high:.2})");
                let _ = writeln!(
                    out,
                    "{test:width$}  {:names$}  {:>12} {:>12} {:>12}  {:5}  {ratio:>7.2} {range:>15}",
                    series.subject,
                    short(min),
                    short(median),
                    short(max),
                    series.unit
                );
            }
        }
        out
    }

    /// One line for each sample.
    pub fn csv(&self) -> String {
        let mut out = String::from("test,subject,unit,round,value\n");
        for series in &self.series {
            for (round, sample) in series.samples.iter().enumerate() {
                let (test, subject) = (&series.test, &series.subject);
                let _ = writeln!(out, "\"{test}\",\"{subject}\",{},{round},{sample}", series.unit);
            }
        }
        out
    }

    /// Reads what [`Report::csv`] wrote; quotes are optional.
    pub fn from_csv(title: &str, text: &str) -> Result<Self, Error> {
        let mut report = Self::new(title);
        for (number, line) in text.lines().enumerate().skip(1) {
            let wrong =
                || Error::Usage(format!("line {}: not test,subject,unit,round,value", number + 1));
            let fields: Vec<&str> = line.rsplitn(4, ',').collect();
            let [value, _, unit, names] = fields[..] else { return Err(wrong()) };
            let (test, subject) = two_names(names).ok_or_else(wrong)?;
            let unit = ["s", "ms", "op/s", "MB/s", "MiB"].into_iter().find(|known| *known == unit);
            report.add(test, subject, unit.ok_or_else(wrong)?, value.parse().map_err(|_| wrong())?);
        }
        Ok(report)
    }

    /// Writes PREFIX.csv, PREFIX.json and PREFIX.svg.
    pub fn write(&self, prefix: &Path) -> Result<(), Error> {
        let json = serde_json::to_string_pretty(self).map_err(|e| Error::Usage(e.to_string()))?;
        for (ending, text) in [("csv", self.csv()), ("json", json), ("svg", svg::bars(self))] {
            let mut name = prefix.as_os_str().to_owned();
            name.push(".");
            name.push(ending);
            std::fs::write(&name, text).map_err(Error::io(name.display().to_string()))?;
        }
        Ok(())
    }
}

/// Test and subject as they stand in a line: in quotes, or the second without a comma.
fn two_names(text: &str) -> Option<(&str, &str)> {
    let quoted = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    quoted.and_then(|rest| rest.split_once("\",\"")).or_else(|| {
        let (test, subject) = text.rsplit_once(',')?;
        Some((test.trim_matches('"'), subject.trim_matches('"')))
    })
}

/// A number in at most seven characters, with k or M where it is large.
pub fn short(number: f64) -> String {
    match number {
        n if n >= 1e7 => format!("{:.1}M", n / 1e6),
        n if n >= 1e5 => format!("{:.0}k", n / 1e3),
        n if n >= 100.0 => format!("{n:.0}"),
        n if n >= 1.0 => format!("{n:.2}"),
        n => format!("{n:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::new("t");
        for (native, mount) in [(100.0, 50.0), (200.0, 150.0), (100.0, 90.0)] {
            report.add("read", "native", "MB/s", native);
            report.add("read", "mount", "MB/s", mount);
            report.add("list", "native", "ms", native);
            report.add("list", "mount", "ms", mount);
        }
        report
    }

    #[test]
    fn ratio_when_rounds_alternate_then_pairs_are_compared_and_times_inverted() {
        let report = report();
        let read = report.of("read").nth(1).unwrap();
        assert_eq!(report.ratio(read), (0.5, 0.75, 0.9));
        let list = report.of("list").nth(1).unwrap();
        assert_eq!(report.ratio(list).1, 200.0 / 150.0);
        assert_eq!(report.ratio(report.of("list").next().unwrap()), (1.0, 1.0, 1.0));
    }

    #[test]
    fn csv_when_written_then_every_sample_is_a_line() {
        let csv = report().csv();
        assert_eq!(csv.lines().count(), 1 + 12);
        assert!(csv.contains("\"read\",\"mount\",MB/s,1,150\n"), "{csv}");
    }

    #[test]
    fn from_csv_when_written_by_us_then_equal_and_else_refused() {
        let report = report();
        let back = Report::from_csv("t", &report.csv()).unwrap();
        assert_eq!(back.table(), report.table());
        assert!(Report::from_csv("t", "head\nread,native,parsecs,0,1\n").is_err());
        assert!(Report::from_csv("t", "head\nread,1\n").is_err());
    }

    #[test]
    fn quantile_when_even_then_between_the_middle_two() {
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 10.0], 0.5), 2.5);
        assert_eq!(quantile(&[], 0.5), 0.0);
    }

    #[test]
    fn csv_when_names_have_commas_then_read_back_as_they_were() {
        let mut report = Report::new("t");
        report.add("a, b", "c,d", "s", 1.0);
        let read = Report::from_csv("t", &report.csv()).unwrap();
        assert_eq!(read.csv(), report.csv());
        let bare = Report::from_csv("t", "\na, b,c,s,0,1\n").unwrap();
        assert_eq!((&*bare.series[0].test, &*bare.series[0].subject), ("a, b", "c"));
    }

    #[test]
    fn write_when_asked_then_three_files_appear() {
        let dir = tempfile::tempdir().unwrap();
        report().write(&dir.path().join("r")).unwrap();
        for ending in ["csv", "json", "svg"] {
            assert!(dir.path().join(format!("r.{ending}")).metadata().unwrap().len() > 100);
        }
    }
}
