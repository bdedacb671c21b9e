//! Line charts as SVG, small and plain.

use std::fmt::Write as _;

/// One line of a chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Points in order of x.
    pub points: Vec<(f64, f64)>,
}

/// A chart. A linear y axis begins at 0.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Above it.
    pub title: String,
    /// Below the x axis.
    pub x_label: String,
    /// Beside the y axis.
    pub y_label: String,
    /// Whether x is drawn by its logarithm.
    pub log_x: bool,
    /// Whether y is drawn by its logarithm; what is not above 0 is left out then.
    pub log_y: bool,
    /// The lines.
    pub lines: Vec<Line>,
}

/// Values that are so many times as large as others are drawn by their logarithms.
const DECADES: f64 = 30.0;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 170.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 55.0;

/// Distinct also to the colour-blind (Okabe, Ito, 2008), then the same dashed.
const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

const DASHES: [&str; 3] = ["none", "6 3", "2 3"];

/// What charts show again and again, and the colours of each: a policy looks the same in all of them,
/// and so does what moves tasks, shares pages or plans streams.
const KNOWN: [(&str, usize, usize); 28] = [
    ("lru", 0, 0),
    ("s3fifo", 1, 0),
    ("sieve", 2, 0),
    ("arc", 3, 0),
    ("wtinylfu", 4, 0),
    ("auto", 5, 0),
    ("lower", 6, 0),
    ("lfu", 0, 1),
    ("heuristic", 1, 1),
    ("gdsf", 2, 1),
    ("min", 3, 1),
    ("min-whole", 4, 1),
    ("portfolio", 5, 1),
    ("belady", 6, 1),
    ("belady-size", 0, 2),
    ("heuristic-printed", 1, 2),
    ("clock2q+", 2, 2),
    ("gittins", 3, 2),
    ("none", 6, 0),
    ("no", 6, 0),
    ("static", 0, 0),
    ("paper", 1, 0),
    ("paper-grid", 1, 1),
    ("ours", 2, 0),
    ("sweep", 0, 0),
    ("sp", 3, 0),
    ("gpmp", 1, 0),
    ("ring", 2, 0),
];

/// How a line is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Look {
    colour: usize,
    dashes: usize,
    marker: usize,
}

/// The looks of lines by their names. The first word says what a line is about, and has the colour;
/// further lines about the same differ in dashes and markers.
fn looks(lines: &[Line]) -> Vec<Look> {
    let subject = |line: &Line| line.name.split([' ', ',']).next().unwrap_or("").to_owned();
    let known = |name: &str| KNOWN.iter().find(|known| known.0 == name);
    let all_known = lines.iter().all(|line| known(&subject(line)).is_some());
    let look = |(at, line): (usize, &Line)| {
        let name = subject(line);
        match known(&name).filter(|_| all_known) {
            Some(&(_, colour, dashes)) => {
                let before = lines[..at].iter().filter(|other| subject(other) == name).count();
                Look { colour, dashes: (dashes + before) % DASHES.len(), marker: dashes + before }
            }
            None => {
                let round = at / COLOURS.len();
                Look { colour: at % COLOURS.len(), dashes: round % DASHES.len(), marker: round }
            }
        }
    };
    lines.iter().enumerate().map(look).collect()
}

/// A marker around a point: a disc, a square, a triangle, a diamond.
fn marker(kind: usize, x: f64, y: f64) -> String {
    match kind % 4 {
        0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>"),
        1 => format!("<path d=\"M{:.1} {:.1}h5.6v5.6h-5.6z\"/>", x - 2.8, y - 2.8),
        2 => format!("<path d=\"M{x:.1} {:.1}l3.4 6h-6.8z\"/>", y - 3.6),
        _ => format!("<path d=\"M{x:.1} {:.1}l3.6 3.6l-3.6 3.6l-3.6 -3.6z\"/>", y - 3.6),
    }
}

/// A round step that divides a span into about five.
fn step(span: f64) -> f64 {
    if span <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf((span / 5.0).log10().floor());
    let rough = span / 5.0 / power;
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| rough <= *factor).unwrap_or(10.0);
    factor * power
}

/// A number as short as it can be read.
fn short(value: f64) -> String {
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.into_iter().find(|(size, _)| value.abs() >= *size) {
        Some((size, unit)) => format!("{}{unit}", (value / size * 100.0).round() / 100.0),
        None => format!("{}", (value * 1000.0).round() / 1000.0),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

impl Chart {
    /// With y by its logarithm if the values span decades and none of them is 0, which has none.
    #[must_use]
    pub fn by_span(self) -> Self {
        let values = || self.lines.iter().flat_map(|line| &line.points).map(|point| point.1);
        let least = values().fold(f64::INFINITY, f64::min);
        let log_y = least > 0.0 && values().fold(0.0, f64::max) >= DECADES * least;
        Self { log_y, ..self }
    }

    /// The chart as an SVG document.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let mut svg = String::new();
        self.draw(&mut svg).expect("a String takes everything");
        svg
    }

    fn place(&self, x: f64) -> f64 {
        if self.log_x { x.max(f64::MIN_POSITIVE).log10() } else { x }
    }

    fn draw(&self, svg: &mut String) -> std::fmt::Result {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let low = points().map(|p| self.place(p.0)).fold(f64::INFINITY, f64::min);
        let high = points().map(|p| self.place(p.0)).fold(f64::NEG_INFINITY, f64::max);
        let most = points().map(|p| p.1).fold(0.0, f64::max);
        let least = points().map(|p| p.1).filter(|y| *y > 0.0).fold(f64::INFINITY, f64::min);
        let by_log = self.log_y && least.is_finite();
        let rise = |value: f64| if by_log { value.log10() } else { value };
        let foot = if by_log { least.log10().floor() } else { 0.0 };
        let top = match (by_log, most > 0.0) {
            (true, _) => (most.log10() + 0.05).max(foot + 1.0),
            (false, true) => most * 1.05,
            (false, false) => 1.0,
        };
        let across = (WIDTH - LEFT - RIGHT) / (high - low).max(1e-9);
        let down = (HEIGHT - TOP - BOTTOM) / (top - foot);
        let x = |value: f64| LEFT + (self.place(value) - low) * across;
        let y = |value: f64| HEIGHT - BOTTOM - (rise(value) - foot) * down;
        writeln!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>"
        )?;
        let (right, base) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let gap = if by_log { ((top - foot) / 8.0).ceil() } else { step(top) };
        let mut at = foot;
        while at <= top {
            let value = if by_log { 10f64.powf(at) } else { at };
            let line = y(value);
            writeln!(
                svg,
                "<path d=\"M{LEFT} {line:.1}H{right}\" stroke=\"#ddd\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                line + 4.0,
                short(value)
            )?;
            at += gap;
        }
        if low.is_finite() {
            self.draw_x_axis(svg, low, high, across)?;
        }
        writeln!(svg, "<path d=\"M{LEFT} {TOP}V{base}H{right}\" stroke=\"black\" fill=\"none\"/>")?;
        self.draw_lines(svg, by_log, &x, &y)?;
        self.draw_labels(svg)
    }

    /// The lines with their markers, and the key beside them; `x` and `y` are places of values.
    fn draw_lines(
        &self,
        svg: &mut String,
        by_log: bool,
        x: &dyn Fn(f64) -> f64,
        y: &dyn Fn(f64) -> f64,
    ) -> std::fmt::Result {
        let looks = looks(&self.lines);
        for (at, line) in self.lines.iter().enumerate() {
            let Look { colour, dashes, marker: kind } = looks[at];
            let (colour, dashes) = (COLOURS[colour], DASHES[dashes]);
            let style = format!("stroke=\"{colour}\" stroke-dasharray=\"{dashes}\"");
            let drawn = || line.points.iter().filter(|point| !by_log || point.1 > 0.0);
            let path: Vec<String> =
                drawn().map(|p| format!("{:.1},{:.1}", x(p.0), y(p.1))).collect();
            let (key, beside) = (WIDTH - RIGHT + 12.0, TOP + 16.0 * at as f64);
            let points = drawn().map(|p| marker(kind, x(p.0), y(p.1)));
            let markers: String = points.chain([marker(kind, key + 11.0, beside)]).collect();
            writeln!(svg, "<g fill=\"{colour}\">{markers}</g>")?;
            writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke-width=\"1.8\" {style}/>\
                 <path d=\"M{key} {beside}h22\" stroke-width=\"1.8\" {style}/>\
                 <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                path.join(" "),
                key + 28.0,
                beside + 4.0,
                escape(&line.name)
            )?;
        }
        Ok(())
    }

    fn draw_labels(&self, svg: &mut String) -> std::fmt::Result {
        let (right, base) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let (middle, side) = ((LEFT + right) / 2.0, (TOP + base) / 2.0);
        writeln!(
            svg,
            "<text x=\"{middle}\" y=\"22\" text-anchor=\"middle\" font-size=\"15\">{}</text>\n\
             <text x=\"{middle}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n\
             <text transform=\"translate(16 {side}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n\
             </svg>",
            escape(&self.title),
            HEIGHT - 12.0,
            escape(&self.x_label),
            escape(&self.y_label)
        )
    }

    /// Round values from `low` to `high`, which are places on the x axis.
    fn marks(&self, low: f64, high: f64) -> Vec<f64> {
        let evenly = |low: f64, high: f64| {
            let step = step(high - low);
            let (first, last) = ((low / step).ceil(), ((high / step) + 1e-9).floor());
            let mut marks = vec![];
            let mut at = first;
            while at <= last {
                marks.push(at * step);
                at += 1.0;
            }
            marks
        };
        if !self.log_x {
            return evenly(low, high);
        }
        for factors in [&[1.0][..], &[1.0, 2.0, 5.0], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]] {
            let decades = (low.floor() as i32)..=(high.ceil() as i32);
            let marks: Vec<f64> = decades
                .flat_map(|decade| factors.iter().map(move |factor| factor * 10f64.powi(decade)))
                .filter(|mark| (low - 1e-9..=high + 1e-9).contains(&mark.log10()))
                .collect();
            if (4..=10).contains(&marks.len()) {
                return marks;
            }
        }
        evenly(10f64.powf(low), 10f64.powf(high))
    }

    fn draw_x_axis(&self, svg: &mut String, low: f64, high: f64, across: f64) -> std::fmt::Result {
        for value in self.marks(low, high) {
            let mark = LEFT + (self.place(value) - low) * across;
            writeln!(
                svg,
                "<path d=\"M{mark:.1} {}v5\" stroke=\"black\"/>\
                 <text x=\"{mark:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                HEIGHT - BOTTOM,
                HEIGHT - BOTTOM + 19.0,
                short(value)
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chart_of_two_lines_then_both_are_drawn_and_named() {
        let line = |name: &str, y| Line { name: name.into(), points: vec![(1.0, y), (100.0, 0.2)] };
        let chart = Chart {
            title: "a < b".into(),
            x_label: "bytes".into(),
            y_label: "ratio".into(),
            log_x: true,
            log_y: false,
            lines: vec![line("lru", 0.9), line("min", 0.5)],
        };
        let svg = chart.to_svg();
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("a &lt; b") && svg.contains(">lru<") && svg.ends_with("</svg>\n"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn lines_about_policies_then_each_policy_has_its_colour_in_every_chart() {
        let of = |names: &[&str]| {
            let line = |name: &&str| Line { name: (*name).to_owned(), points: vec![(1.0, 1.0)] };
            looks(&names.iter().map(line).collect::<Vec<_>>())
        };
        let all = of(&["lru", "lower bound", "arc", "lfu"]);
        assert_eq!(of(&["arc"])[0], all[2]);
        let timed = of(&["lru disk+0", "lru disk+9", "arc disk+0"]);
        assert_eq!((timed[0].colour, timed[1].colour, timed[2]), (0, 0, all[2]));
        assert_ne!(timed[0], timed[1]);
        let streams = of(&["sweep", "sp, 2 MB", "sp, 4 MB", "gpmp 1 s, k = 6", "ring"]);
        assert_eq!((streams[1].colour, streams[3]), (streams[2].colour, of(&["gpmp"])[0]));
        assert_ne!(streams[1], streams[2]);
        let mut others = of(&["16 nodes", "32 nodes", "64 nodes"]);
        others.dedup_by_key(|look| look.colour);
        assert_eq!(others.len(), 3);
    }

    #[test]
    fn chart_with_logarithmic_y_then_decades_and_no_zero() {
        let points = vec![(1.0, 0.0), (2.0, 30.0), (4.0, 4e5)];
        let chart = Chart {
            title: "t".into(),
            x_label: "x".into(),
            y_label: "y".into(),
            log_x: true,
            log_y: true,
            lines: vec![Line { name: "l".into(), points }],
        };
        let svg = chart.to_svg();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        for mark in [">10<", ">100<", ">1k<", ">10k<", ">100k<"] {
            assert!(svg.contains(mark), "{mark} in {svg}");
        }
        let line = svg.split("<polyline points=\"").nth(1).and_then(|rest| rest.split('"').next());
        assert_eq!(line.map(|points| points.split(' ').count()), Some(2), "the zero is left out");
    }

    #[test]
    fn chart_by_its_span_then_logarithmic_over_decades_without_zero() {
        let of = |values: [f64; 3]| {
            let points = values.into_iter().map(|value| (1.0, value)).collect();
            let lines = vec![Line { name: "l".into(), points }];
            let none = String::new;
            let (title, x_label, y_label) = (none(), none(), none());
            let chart = Chart { title, x_label, y_label, log_x: false, log_y: false, lines };
            chart.by_span().log_y
        };
        assert!(of([0.03, 1.0, 1_943.0]) && of([1.0, 2.0, 30.0]));
        assert!(!of([15.0, 30.0, 52.0]) && !of([0.0, 1.0, 61.0]));
    }

    #[test]
    fn chart_without_points_then_still_a_document() {
        let none = String::new;
        let chart = Chart {
            title: none(),
            x_label: none(),
            y_label: none(),
            log_x: false,
            log_y: false,
            lines: vec![],
        };
        let svg = chart.to_svg();
        assert!(svg.starts_with("<svg") && !svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn marks_of_a_logarithmic_axis_then_round_values() {
        let none = String::new;
        let chart = Chart {
            title: none(),
            x_label: none(),
            y_label: none(),
            log_x: true,
            log_y: false,
            lines: vec![],
        };
        let places = |low: f64, high: f64| chart.marks(low.log10(), high.log10());
        assert_eq!(places(1.0, 1e5), [1.0, 1e1, 1e2, 1e3, 1e4, 1e5]);
        assert_eq!(places(1e8, 1e9), [1e8, 2e8, 5e8, 1e9]);
        assert_eq!(places(3.0, 7.0), [3.0, 4.0, 5.0, 6.0, 7.0]);
        let narrow: Vec<String> = places(100.0, 104.0).into_iter().map(short).collect();
        assert_eq!(narrow, ["100", "101", "102", "103", "104"]);
        assert_eq!(chart.marks(2.0, 2.0).len(), 1);
    }

    #[test]
    fn step_then_round_numbers() {
        assert_eq!([step(1.0), step(10.0), step(70.0)], [0.2, 2.0, 20.0]);
    }
}
