//! How the view looks.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Gauge, Paragraph, Row, Sparkline, Table};

use super::history::History;
use crate::control::TierStatus;
use crate::units::{format_bytes, format_count, format_seconds};

/// Everything that is on the screen.
pub struct Screen<'a> {
    /// What was seen.
    pub history: &'a History,
    /// How often it looks.
    pub interval: Duration,
    /// Whether it stands still.
    pub paused: bool,
}

impl Screen<'_> {
    /// Draws all of it.
    pub fn draw(&self, frame: &mut Frame<'_>) {
        let tiers = self.history.status().tiers.len().clamp(1, 8) as u16;
        let [title, tier_area, middle, state, files, footer] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(tiers + 2),
            Constraint::Length(7),
            Constraint::Length(4),
            Constraint::Min(3),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let [ratio, throughput] = Layout::horizontal([Constraint::Fill(1); 2]).areas(middle);
        self.title(frame, title);
        self.tiers(frame, tier_area);
        self.hit_ratio(frame, ratio);
        self.throughput(frame, throughput);
        self.state(frame, state);
        self.files(frame, files);
        self.footer(frame, footer);
    }

    fn title(&self, frame: &mut Frame<'_>, area: Rect) {
        let status = self.history.status();
        let text = format!(
            "forebay  {}  over  {}  up {}  memory {}",
            status.mountpoint,
            status.backing,
            format_seconds(status.uptime_s),
            format_bytes(status.rss_bytes)
        );
        frame.render_widget(Line::from(text).style(Modifier::BOLD), area);
    }

    fn tiers(&self, frame: &mut Frame<'_>, area: Rect) {
        let block = Block::bordered().title(" tiers ");
        let inner = block.inner(area);
        frame.render_widget(block, area);
        for (tier, row) in self.history.status().tiers.iter().zip(inner.rows()) {
            let [name, gauge] =
                Layout::horizontal([Constraint::Percentage(30), Constraint::Fill(1)]).areas(row);
            frame.render_widget(Line::from(tier.dir.to_string()), name);
            frame.render_widget(tier_gauge(tier), gauge);
        }
    }

    fn hit_ratio(&self, frame: &mut Frame<'_>, area: Rect) {
        let newest = self.history.newest();
        let title = format!(" hits {:.0} %  opens {:.0}/s ", newest.hit_percent, newest.opens);
        let block = Block::bordered().title(title);
        let data = self.history.series(block.inner(area).width.into(), |sample| sample.hit_percent);
        let line = Sparkline::default().block(block).data(data).max(100).style(Color::Green);
        frame.render_widget(line, area);
    }

    fn throughput(&self, frame: &mut Frame<'_>, area: Rect) {
        let bytes = self.history.newest().bytes;
        let row = |name: &'static str, rate: u64, color: Color| {
            Row::new([name.to_owned(), format!("{}/s", format_bytes(rate))]).style(color)
        };
        let rows = [
            row("from and to tiers", bytes.tier, Color::Green),
            row("backing store, waited for", bytes.backing, Color::Yellow),
            row("spilled past full tiers", bytes.spill, Color::Red),
            row("filled into tiers", bytes.filled, Color::Cyan),
            row("written back", bytes.flushed, Color::Blue),
        ];
        let widths = [Constraint::Fill(1), Constraint::Length(14)];
        let block = Block::bordered().title(" throughput (without passthrough) ");
        frame.render_widget(Table::new(rows, widths).block(block), area);
    }

    fn state(&self, frame: &mut Frame<'_>, area: Rect) {
        let status = self.history.status();
        let dirty = if status.is_drained() {
            Line::from(Span::styled("nothing; the backing store has everything", Color::Green))
        } else {
            Line::from(format!(
                "{} files, {}, oldest {}; backlog {}",
                format_count(status.dirty.files),
                format_bytes(status.dirty.bytes),
                format_seconds(status.dirty.oldest_s.max(status.backlog.oldest_s)),
                format_count(status.backlog.entries)
            ))
        };
        let troubles = [
            (status.errors, "errors"),
            (status.conflicts.len() as u64, "conflicts"),
            (status.stuck.len() as u64, "stuck"),
            (u64::from(status.backlog.last_error.is_some()), "write-back failing"),
        ];
        let mut spans = vec![Span::raw(format!(
            "passthrough {} ({} opens)",
            status.passthrough.mode,
            format_count(status.passthrough.opens)
        ))];
        for (count, name) in troubles.into_iter().filter(|(count, _)| *count > 0) {
            spans.push(Span::styled(format!("  {count} {name}"), Color::Red));
        }
        let block = Block::bordered().title(" not yet in the backing store ");
        frame.render_widget(Paragraph::new(vec![dirty, Line::from(spans)]).block(block), area);
    }

    fn files(&self, frame: &mut Frame<'_>, area: Rect) {
        let rows = self.history.status().busiest.iter().map(|file| {
            let place = if file.resident { "resident" } else { "backing" };
            Row::new([
                file.path.to_string(),
                format_count(file.opens),
                format_bytes(file.bytes),
                place.into(),
            ])
        });
        let widths = [
            Constraint::Fill(1),
            Constraint::Length(12),
            Constraint::Length(10),
            Constraint::Length(9),
        ];
        let header = Row::new(["file", "opens", "size", "where"]).style(Modifier::BOLD);
        let block = Block::bordered().title(" busiest files ");
        frame.render_widget(Table::new(rows, widths).header(header).block(block), area);
    }

    fn footer(&self, frame: &mut Frame<'_>, area: Rect) {
        let state = if self.paused { "  PAUSED" } else { "" };
        let text = format!(
            "q quit  p pause  + slower  - faster   every {}{state}",
            crate::units::format_duration(self.interval)
        );
        frame.render_widget(Line::from(text).style(Modifier::DIM), area);
    }
}

fn tier_gauge(tier: &TierStatus) -> Gauge<'static> {
    let part =
        |bytes: u64| if tier.size_bytes == 0 { 0.0 } else { bytes as f64 / tier.size_bytes as f64 };
    let used = part(tier.used_bytes).min(1.0);
    let color = if used > 0.97 { Color::Yellow } else { Color::Green };
    let label = format!(
        "{:.0} %  {} of {}, dirty {}",
        used * 100.0,
        format_bytes(tier.used_bytes),
        format_bytes(tier.size_bytes),
        format_bytes(tier.dirty_bytes)
    );
    Gauge::default()
        .ratio(used)
        .label(label)
        .gauge_style(Style::new().fg(color).bg(Color::DarkGray))
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
