//! What is looked at during a soak, over time: as a table, a drawing, and a judgement.

use std::fmt::Write as _;

/// What is looked at.
struct Curve {
    name: &'static str,
    /// It may grow by this share of itself, and this much besides, before it counts as rising.
    share: f64,
    slack: f64,
}

const fn curve(name: &'static str, share: f64, slack: f64) -> Curve {
    Curve { name, share, slack }
}

const CURVES: [Curve; 5] = [
    // A daemon begins with what the log of the metadata has, which grows to 16 MiB before it is written
    // to a table.
    curve("rss_mib", 0.15, 24.0),
    curve("descriptors", 0.10, 10.0),
    curve("threads", 0.10, 10.0),
    curve("private_files", 0.10, 10.0),
    curve("tier_files", 0.10, 20.0),
];

/// Rests at the beginning that don't count: caches are empty.
const WARM_UP: usize = 2;

/// One look.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Since the beginning.
    pub seconds: f64,
    /// The number of the era.
    pub era: usize,
    /// Whether nothing was left to be done.
    pub at_rest: bool,
    /// As [`CURVES`] has them.
    pub values: [f64; 5],
}

/// All looks, in their order.
#[derive(Debug, Default)]
pub struct Curves(Vec<Sample>);

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

impl Curves {
    /// Adds a look.
    pub fn add(&mut self, sample: Sample) {
        self.0.push(sample);
    }

    /// Eras that came to rest.
    pub fn eras(&self) -> usize {
        self.0.iter().filter(|sample| sample.at_rest).count()
    }

    fn at_rest(&self, curve: usize) -> Vec<f64> {
        let rests = self.0.iter().filter(|sample| sample.at_rest);
        let values: Vec<f64> = rests.map(|sample| sample.values[curve]).collect();
        values[WARM_UP.min(values.len() / 3)..].to_vec()
    }

    /// The medians of the first and of the last third of all rests.
    fn ends(&self, curve: usize) -> (f64, f64) {
        let values = self.at_rest(curve);
        let third = values.len().div_ceil(3);
        let last = values.len() - third;
        (median(values[..third].to_vec()), median(values[last..].to_vec()))
    }

    /// The curves that rise, each in words.
    pub fn rising(&self) -> Vec<String> {
        let mut rising = Vec::new();
        for (at, curve) in CURVES.iter().enumerate() {
            let (first, last) = self.ends(at);
            let most = first * (1.0 + curve.share) + curve.slack;
            if last > most {
                let name = curve.name;
                rising.push(format!(
                    "{name} rises from {first:.0} to {last:.0}, more than {most:.0}"
                ));
            }
        }
        rising
    }

    /// For people: each curve at rest, at its ends and at most.
    pub fn table(&self) -> String {
        let mut text = String::from("at rest            first third   last third   most ever\n");
        for (at, curve) in CURVES.iter().enumerate() {
            let (first, last) = self.ends(at);
            let most = self.0.iter().map(|sample| sample.values[at]).fold(0.0, f64::max);
            let _ = writeln!(text, "{:16} {first:12.1} {last:12.1} {most:11.1}", curve.name);
        }
        text
    }

    /// For programs.
    pub fn to_csv(&self) -> String {
        let names: Vec<&str> = CURVES.iter().map(|curve| curve.name).collect();
        let mut text = format!("seconds,era,at_rest,{}\n", names.join(","));
        for Sample { seconds, era, at_rest, values } in &self.0 {
            let values: Vec<String> = values.iter().map(|value| format!("{value:.1}")).collect();
            let at_rest = u8::from(*at_rest);
            let _ = writeln!(text, "{seconds:.1},{era},{at_rest},{}", values.join(","));
        }
        text
    }

    /// One panel for each curve: all looks as a line, rests as discs.
    pub fn to_svg(&self) -> String {
        const WIDTH: f64 = 860.0;
        const PANEL: f64 = 150.0;
        const LEFT: f64 = 60.0;
        let height = PANEL * CURVES.len() as f64 + 20.0;
        let end = self.0.last().map_or(1.0, |sample| sample.seconds.max(1.0));
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" \
             fill=\"white\"/>\n"
        );
        for (at, curve) in CURVES.iter().enumerate() {
            let (top, foot) = (PANEL * at as f64 + 25.0, PANEL * (at as f64 + 1.0));
            let most = self.0.iter().map(|sample| sample.values[at]).fold(1.0, f64::max);
            let place = |sample: &Sample| {
                let x = LEFT + sample.seconds / end * (WIDTH - LEFT - 20.0);
                (x, foot - sample.values[at] / most * (foot - top))
            };
            let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{}\">{}</text>", top - 8.0, curve.name);
            let right = WIDTH - 20.0;
            for (y, value) in [(foot, 0.0), (top, most)] {
                let text = y + 4.0;
                let _ = writeln!(
                    svg,
                    "<path d=\"M{LEFT} {y}H{right}\" stroke=\"#ccc\"/>\
                     <text x=\"{}\" y=\"{text}\" text-anchor=\"end\">{value:.0}</text>",
                    LEFT - 6.0
                );
            }
            let points = self.0.iter().map(|sample| {
                let (x, y) = place(sample);
                format!("{x:.1},{y:.1}")
            });
            let points: Vec<String> = points.collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"#56b4e9\"/>",
                points.join(" ")
            );
            for (x, y) in self.0.iter().filter(|sample| sample.at_rest).map(place) {
                let _ =
                    writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"#d55e00\"/>");
            }
        }
        let _ = writeln!(
            svg,
            "<text x=\"{WIDTH}\" y=\"{}\" text-anchor=\"end\">{end:.0} s; discs: at rest</text>\n</svg>",
            height - 4.0
        );
        svg
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curves(rss: impl Fn(usize) -> f64) -> Curves {
        let mut curves = Curves::default();
        for era in 0..12 {
            // Under work it may be anything.
            for (at_rest, more) in [(false, 500.0), (true, 0.0)] {
                let values = [rss(era) + more, 40.0, 20.0, 0.0, 3.0];
                curves.add(Sample { seconds: era as f64 * 10.0, era, at_rest, values });
            }
        }
        curves
    }

    #[test]
    fn curve_when_it_is_level_or_rises_in_the_beginning_only_then_all_is_well() {
        assert_eq!(curves(|_| 40.0).rising(), Vec::<String>::new());
        assert_eq!(curves(|era| if era < 2 { 20.0 } else { 60.0 }).rising(), Vec::<String>::new());
        assert_eq!(curves(|era| 50.0 + (era % 3) as f64).rising(), Vec::<String>::new());
    }

    #[test]
    fn curve_when_it_rises_then_found_by_name() {
        let rising = curves(|era| 40.0 + 6.0 * era as f64).rising();
        assert_eq!(rising.len(), 1);
        assert!(rising[0].starts_with("rss_mib rises"), "{rising:?}");
    }

    #[test]
    fn results_when_written_then_have_every_look() {
        let curves = curves(|_| 40.0);
        assert_eq!(curves.to_csv().lines().count(), 25);
        let svg = curves.to_svg();
        assert_eq!(svg.matches("<polyline").count(), CURVES.len());
        assert_eq!(svg.matches("<circle").count(), 12 * CURVES.len());
    }
}
