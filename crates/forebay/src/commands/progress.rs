//! Progress on standard error: one line that is redrawn on a terminal, else a line now and then.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::control::Progress;
use crate::printable::one_line;
use crate::render;

/// Of many failures one is told in such a time.
const FAILURES_APART: Duration = Duration::from_secs(5);

/// Shows how far an operation is.
#[derive(Debug)]
pub struct Meter {
    quiet: bool,
    terminal: bool,
    started: Instant,
    shown: Option<Instant>,
    drawn: bool,
    /// The failure that was told last, and when.
    failure: Option<(String, Instant)>,
}

impl Meter {
    /// A meter that says nothing if `quiet`.
    pub fn new(quiet: bool) -> Self {
        let terminal = io::stderr().is_terminal();
        let started = Instant::now();
        Self { quiet, terminal, started, shown: None, drawn: false, failure: None }
    }

    /// Shows the progress, if it is time to.
    pub fn show(&mut self, progress: &Progress) {
        let elapsed = self.started.elapsed().as_secs_f64().max(1e-3);
        let bytes = progress.bytes_done.max(progress.bytes_copied);
        self.tell_failure(progress.last_error.as_ref());
        self.show_line(|| render::progress(progress, bytes as f64 / elapsed));
    }

    /// What holds the work up is said at once, on a line of its own, and again only if it is another thing.
    fn tell_failure(&mut self, error: Option<&String>) {
        let Some(error) = error.filter(|_| !self.quiet) else { return };
        let told = self.failure.as_ref();
        if told.is_some_and(|(told, when)| told == error || when.elapsed() < FAILURES_APART) {
            return;
        }
        self.failure = Some((error.clone(), Instant::now()));
        let clear = if self.drawn { "\r\x1b[K" } else { "" };
        let error = one_line(error);
        let _ = writeln!(io::stderr(), "{clear}not written: {error}; it is tried again");
    }

    /// Shows a line, if it is time to.
    pub fn show_line(&mut self, line: impl FnOnce() -> String) {
        let interval =
            if self.terminal { Duration::from_millis(200) } else { Duration::from_secs(5) };
        if self.quiet || self.shown.unwrap_or(self.started).elapsed() < interval {
            return;
        }
        self.shown = Some(Instant::now());
        let line = one_line(&line());
        // Standard error that went away must not stop the work.
        let _ = if self.terminal {
            self.drawn = true;
            write!(io::stderr(), "\r\x1b[K{line}")
        } else {
            writeln!(io::stderr(), "{line}")
        };
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if self.drawn {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
