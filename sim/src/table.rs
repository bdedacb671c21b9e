//! Results as tables: printed, as CSV, as JSON, and with a chart.

use std::io::Write;
use std::path::Path;

use crate::SimError;
use crate::plot::Chart;

/// Rows under a heading, as they are printed, written and drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// Names of the columns.
    pub columns: Vec<&'static str>,
    /// As many fields as columns each.
    pub rows: Vec<Vec<String>>,
    /// What it says, in words.
    pub notes: Vec<String>,
    /// The same, drawn.
    pub chart: Option<Chart>,
}

impl Table {
    fn print(&self, out: &mut dyn Write) -> Result<(), SimError> {
        let width = |at: usize| {
            let fields = self.rows.iter().map(|row| row[at].len());
            fields.chain([self.columns[at].len()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let heading: Vec<String> = self.columns.iter().map(ToString::to_string).collect();
        for row in std::iter::once(&heading).chain(&self.rows) {
            let fields = row.iter().zip(&widths).map(|(field, width)| format!("{field:>width$}"));
            writeln!(out, "{}", fields.collect::<Vec<_>>().join("  "))?;
        }
        for note in &self.notes {
            writeln!(out, "{note}")?;
        }
        Ok(())
    }

    fn to_csv(&self) -> String {
        let mut csv = self.columns.join(",") + "\n";
        for row in &self.rows {
            csv.push_str(&(row.join(",") + "\n"));
        }
        csv
    }

    fn to_json(&self) -> serde_json::Value {
        let rows = self.rows.iter().map(|row| {
            let fields = self.columns.iter().zip(row).map(|(name, field)| {
                let number = field.parse::<f64>().ok().and_then(serde_json::Number::from_f64);
                let value = number.map_or_else(|| field.as_str().into(), Into::into);
                ((*name).to_owned(), value)
            });
            serde_json::Value::Object(fields.collect())
        });
        rows.collect()
    }

    /// Prints the table, as text or JSON, and writes the files asked for.
    pub(crate) fn show(
        &self,
        json: bool,
        csv: Option<&Path>,
        plot: Option<&Path>,
        out: &mut dyn Write,
    ) -> Result<(), SimError> {
        if json {
            writeln!(out, "{}", self.to_json())?;
        } else {
            self.print(out)?;
        }
        if let Some(path) = csv {
            std::fs::write(path, self.to_csv()).map_err(SimError::file(path))?;
        }
        if let Some(path) = plot {
            let none = "there is no chart of this; leave --plot out";
            let chart = self.chart.as_ref().ok_or(SimError::Usage(none))?;
            std::fs::write(path, chart.to_svg()).map_err(SimError::file(path))?;
        }
        Ok(())
    }
}
