//! A bar chart as SVG: one group for each test, one bar for each subject, with its spread.

use std::fmt::Write;

use crate::report::{Report, Series, short};

/// Colours that remain apart for most people with colour blindness (Okabe and Ito 2008).
const COLOURS: [&str; 7] =
    ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#999999"];

const LABEL_WIDTH: f64 = 250.0;
const BAR_WIDTH: f64 = 460.0;
const BAR: f64 = 16.0;
const GAP: f64 = 14.0;
const TOP: f64 = 76.0;

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The chart. Bars of a test are drawn to the largest of that test, on a logarithmic scale where
/// they differ more than thirtyfold.
pub fn bars(report: &Report) -> String {
    let mut subjects: Vec<&str> = Vec::new();
    for series in &report.series {
        if !subjects.contains(&series.subject.as_str()) {
            subjects.push(&series.subject);
        }
    }
    let colour = |name: &str| {
        let index = subjects.iter().position(|subject| *subject == name).unwrap_or(0);
        COLOURS[index % COLOURS.len()]
    };
    let height = TOP
        + report.tests().iter().map(|t| report.of(t).count() as f64 * BAR + GAP).sum::<f64>()
        + 10.0;
    let width = LABEL_WIDTH + BAR_WIDTH + 230.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#222\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"16\" y=\"26\" font-size=\"17\" font-weight=\"bold\">{}</text>\n",
        escape(&report.title)
    );
    let mut x = 16.0;
    for subject in &subjects {
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"42\" width=\"12\" height=\"12\" rx=\"2\" fill=\"{}\"/>\
             <text x=\"{}\" y=\"52\">{}</text>",
            colour(subject),
            x + 17.0,
            escape(subject)
        );
        x += 40.0 + 7.2 * subject.len() as f64;
    }
    let mut y = TOP;
    for test in report.tests() {
        let group: Vec<&Series> = report.of(test).collect();
        let scale = Scale::of(&group);
        let note = if scale.logarithmic { " (log)" } else { "" };
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}{note}</text>",
            LABEL_WIDTH - 10.0,
            y + BAR * group.len() as f64 / 2.0 + 4.0,
            escape(test)
        );
        for series in group {
            bar(&mut out, report, series, &scale, colour(&series.subject), y);
            y += BAR;
        }
        y += GAP;
    }
    out.push_str("</svg>\n");
    out
}

struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Scale {
    fn of(group: &[&Series]) -> Self {
        let medians = || group.iter().map(|series| series.spread().1).filter(|m| *m > 0.0);
        let high = group.iter().map(|series| series.spread().2).fold(1e-12, f64::max);
        let low = medians().fold(high, f64::min);
        Self { low: low / 3.0, high, logarithmic: high / low > 30.0 }
    }

    fn length(&self, value: f64) -> f64 {
        let part = if self.logarithmic {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            value / self.high
        };
        part.clamp(0.0, 1.0) * BAR_WIDTH
    }
}

/// One bar to the median, a line from the least to the greatest sample, value and ratio.
fn bar(out: &mut String, report: &Report, series: &Series, scale: &Scale, fill: &str, y: f64) {
    let (min, median, max) = series.spread();
    let (from, to) = (LABEL_WIDTH + scale.length(min), LABEL_WIDTH + scale.length(max));
    let middle = y + BAR / 2.0;
    let _ = writeln!(
        out,
        "<rect x=\"{LABEL_WIDTH}\" y=\"{}\" width=\"{:.1}\" height=\"{}\" rx=\"2\" fill=\"{fill}\"/>\
         <path d=\"M{from:.1} {middle}H{to:.1}\" stroke=\"#222\" stroke-opacity=\"0.55\"/>\
         <text x=\"{}\" y=\"{}\">{} {}  x{:.2}</text>",
        y + 1.0,
        scale.length(median).max(1.0),
        BAR - 2.0,
        LABEL_WIDTH + BAR_WIDTH + 10.0,
        middle + 4.0,
        short(median),
        escape(series.unit),
        report.ratio(series).1
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_when_drawn_then_each_series_has_one_and_text_is_escaped() {
        let mut report = Report::new("a < b & c");
        report.add("read", "native", "MB/s", 100.0);
        report.add("read", "slow", "MB/s", 1.0);
        let svg = bars(&report);
        assert!(svg.contains("a &lt; b &amp; c") && svg.contains("read (log)"), "{svg}");
        assert_eq!(svg.matches("fill=\"#0072b2\"").count(), 2);
        assert_eq!(svg.matches("fill=\"#e69f00\"").count(), 2);
        assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count());
    }

    #[test]
    fn scale_when_values_are_zero_then_lengths_are_finite() {
        let mut report = Report::new("z");
        report.add("t", "a", "ms", 0.0);
        assert!(!bars(&report).contains("NaN"));
    }
}
