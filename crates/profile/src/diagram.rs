//! Access counting diagrams: how many accesses to which rows in which intervals.

use std::collections::{BTreeMap, BTreeSet};

use crate::pattern::{Pattern, Row};

/// How high a diagram is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grid {
    /// The rows that either task of a pair has touched, without gaps.
    Touched,
    /// So many rows of each file that either has touched; rows beyond begin again at the first.
    Rows(u64),
}

/// Counts by row and interval. Rows without any are not stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagram {
    rows: u64,
    intervals: usize,
    cells: BTreeMap<u64, Vec<u32>>,
}

impl Diagram {
    /// A diagram without accesses.
    #[must_use]
    pub fn empty(rows: u64, intervals: usize) -> Self {
        Self { rows, intervals, cells: BTreeMap::new() }
    }

    /// A diagram from its rows, all of them as long as the first.
    #[must_use]
    pub fn of(rows: &[Vec<u32>]) -> Self {
        let mut diagram = Self::empty(rows.len() as u64, rows.first().map_or(0, Vec::len));
        for (row, counts) in rows.iter().enumerate() {
            for (interval, count) in counts.iter().enumerate().take(diagram.intervals) {
                diagram.add(row as u64, interval, *count);
            }
        }
        diagram
    }

    fn add(&mut self, row: u64, interval: usize, count: u32) {
        if count == 0 {
            return;
        }
        let cells = self.cells.entry(row).or_insert_with(|| vec![0; self.intervals]);
        if let Some(cell) = cells.get_mut(interval) {
            *cell = cell.saturating_add(count);
        }
    }

    /// Rows, and intervals.
    #[must_use]
    pub fn size(&self) -> (u64, usize) {
        (self.rows, self.intervals)
    }

    /// The count of a cell.
    #[must_use]
    pub fn count(&self, row: u64, interval: usize) -> u32 {
        self.cells.get(&row).and_then(|cells| cells.get(interval)).copied().unwrap_or(0)
    }

    /// The scale (equation 2): all accesses.
    #[must_use]
    pub fn scale(&self) -> u64 {
        self.cells.values().flatten().map(|count| u64::from(*count)).sum()
    }

    /// Squares of `n` x `n` cells as one.
    #[must_use]
    pub fn compressed(&self, n: usize) -> Self {
        let n = n.max(1);
        let mut small = Self::empty(self.rows.div_ceil(n as u64), self.intervals.div_ceil(n));
        for (row, cells) in &self.cells {
            for (interval, count) in cells.iter().enumerate() {
                small.add(row / n as u64, interval / n, *count);
            }
        }
        small
    }

    fn greatest(&self) -> u32 {
        self.cells.values().flatten().copied().max().unwrap_or(0)
    }

    /// Equation 1: 1 less the mean difference of cells, as a share of the greatest count in either.
    /// 0 if either is empty, or they are of different sizes.
    #[must_use]
    pub fn similarity(&self, other: &Self) -> f64 {
        let greatest = self.greatest().max(other.greatest());
        let cells = self.rows as f64 * self.intervals as f64;
        if self.size() != other.size() || self.cells.is_empty() || other.cells.is_empty() {
            return 0.0;
        }
        let rows: BTreeSet<&u64> = self.cells.keys().chain(other.cells.keys()).collect();
        let differences = rows.into_iter().flat_map(|row| {
            (0..self.intervals)
                .map(|at| u64::from(self.count(*row, at).abs_diff(other.count(*row, at))))
        });
        1.0 - differences.sum::<u64>() as f64 / f64::from(greatest) / cells
    }
}

/// The diagrams of two patterns on one grid and one clock; `None` if either has no events.
#[must_use]
pub fn pair(a: &Pattern, b: &Pattern, grid: Grid, intervals: usize) -> Option<(Diagram, Diagram)> {
    let ((a_from, a_to), (b_from, b_to)) = a.bounds().zip(b.bounds())?;
    let (from, to) = (a_from.min(b_from), a_to.max(b_to));
    let entries = || a.entries.iter().chain(&b.entries);
    let (place, rows): (BTreeMap<Row, u64>, u64) = match grid {
        Grid::Touched => {
            let touched: BTreeSet<Row> = entries().map(|entry| entry.row).collect();
            let rows = touched.len() as u64;
            (touched.into_iter().zip(0..).collect(), rows)
        }
        Grid::Rows(height) => {
            let height = height.max(1);
            let files: BTreeSet<u64> = entries().map(|entry| entry.row.file).collect();
            let rows = height.saturating_mul(files.len() as u64);
            let first: BTreeMap<u64, u64> = files.into_iter().zip(0..).collect();
            let place = |row: Row| first[&row.file] * height + row.piece % height;
            (entries().map(|entry| (entry.row, place(entry.row))).collect(), rows)
        }
    };
    let draw = |pattern: &Pattern| {
        let mut diagram = Diagram::empty(rows, intervals);
        for entry in &pattern.entries {
            let since = u128::from(entry.at - from) * intervals as u128;
            let interval = (since / (u128::from(to - from) + 1)) as usize;
            let count = u32::try_from(entry.events()).unwrap_or(u32::MAX);
            diagram.add(place[&entry.row], interval, count);
        }
        diagram
    };
    Some((draw(a), draw(b)))
}

/// Both steps of the comparison: the compressed diagrams first, then the diagrams themselves. The
/// similarity of the diagrams, if both are above the threshold.
#[must_use]
pub fn similar(a: &Diagram, b: &Diagram, compress: usize, threshold: f64) -> Option<f64> {
    if a.compressed(compress).similarity(&b.compressed(compress)) <= threshold {
        return None;
    }
    Some(a.similarity(b)).filter(|similarity| *similarity > threshold)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 32 rows of 8 intervals.
    fn grid(cells: impl Fn(usize, usize) -> u32) -> Diagram {
        let row = |row| (0..8).map(|interval| cells(row, interval)).collect();
        Diagram::of(&(0..32).map(row).collect::<Vec<_>>())
    }

    fn near(value: f64, expected: f64) {
        assert!((value - expected).abs() < 5e-4, "{value} is not {expected}");
    }

    fn scores(a: &Diagram, b: &Diagram) -> (f64, f64) {
        (a.compressed(2).similarity(&b.compressed(2)), a.similarity(b))
    }

    #[test]
    fn compression_of_the_paper_s_figure_then_sums_of_squares() {
        let rows = [[1, 0, 2, 3], [0, 4, 1, 1], [5, 0, 0, 0], [1, 1, 0, 7]];
        let diagram = Diagram::of(&rows.map(Vec::from));
        assert_eq!(diagram.scale(), 26);
        let small = diagram.compressed(2);
        assert_eq!(small, Diagram::of(&[vec![5, 7], vec![7, 7]]));
        let odd = diagram.compressed(3);
        assert_eq!(odd, Diagram::of(&[vec![13, 4], vec![2, 7]]));
        assert_eq!(diagram.compressed(1), diagram);
        assert_eq!([small.scale(), odd.scale()], [26, 26]);
    }

    #[test]
    fn similarity_of_equal_and_of_empty_diagrams_then_1_and_0() {
        let some = grid(|row, interval| (row * interval % 5) as u32);
        near(some.similarity(&some), 1.0);
        let none = grid(|_, _| 0);
        near(some.similarity(&none), 0.0);
        near(none.similarity(&none), 0.0);
    }

    #[test]
    fn bursts_without_a_common_block_on_a_fixed_grid_then_similar_nevertheless() {
        let burst = |first: usize, at: usize| {
            grid(
                move |row, interval| {
                    if (first..first + 2).contains(&row) && interval == at { 128 } else { 0 }
                },
            )
        };
        let (coarse, fine) = scores(&burst(0, 0), &burst(16, 0));
        near(coarse, 0.969);
        near(fine, 0.984);
        // The same blocks one interval later look the same as blocks never shared.
        let (coarse, fine) = scores(&burst(0, 0), &burst(0, 1));
        near(coarse, 1.0);
        near(fine, 0.984);
        assert!(similar(&burst(0, 0), &burst(16, 0), 2, 0.9).is_some());
    }

    #[test]
    fn all_blocks_shared_but_counts_swapped_then_not_similar() {
        let a = grid(|row, interval| 1 + (row + interval) as u32 % 2);
        let b = grid(|row, interval| 1 + (row + interval + 1) as u32 % 2);
        near(a.similarity(&b), 0.5);
        let even = grid(|row, _| if row % 2 == 0 { 2 } else { 0 });
        let odd = grid(|row, _| if row % 2 == 1 { 2 } else { 0 });
        near(even.similarity(&odd), 0.0);
    }

    #[test]
    fn disjoint_scans_then_the_coarse_step_is_the_stricter_one() {
        let scan = |first: usize| {
            grid(move |row, interval| if row == first + 2 * interval { 32 } else { 0 })
        };
        let (coarse, fine) = scores(&scan(0), &scan(16));
        near(fine, 0.9375);
        near(coarse, 0.75);
        assert_eq!(similar(&scan(0), &scan(16), 2, 0.9), None);
    }

    #[test]
    fn threshold_when_just_reached_then_not_similar() {
        let a = Diagram::of(&[vec![10, 0, 0, 0, 0], vec![10, 10, 10, 10, 10]]);
        let b = Diagram::of(&[vec![0, 0, 0, 0, 0], vec![10, 10, 10, 10, 10]]);
        near(a.similarity(&b), 0.9);
        assert_eq!(similar(&a, &b, 1, a.similarity(&b)), None);
        assert!(similar(&a, &b, 1, 0.89).is_some());
    }
}
