//! Progress on standard error: one line that is redrawn on a terminal, else a line now and then.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::control::Progress;
use crate::printable::one_line;
use crate::render;

/// Shows how far an operation is.
#[derive(Debug)]
pub struct Meter {
    quiet: bool,
    terminal: bool,
    started: Instant,
    shown: Option<Instant>,
    drawn: bool,
    /// The failure that was told last.
    failure: Option<String>,
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

    /// What holds the work up is said at once, on a line of its own, and once.
    fn tell_failure(&mut self, error: Option<&String>) {
        let Some(error) = error.filter(|error| Some(*error) != self.failure.as_ref()) else {
            return;
        };
        if self.quiet {
            return;
        }
        self.failure = Some(error.clone());
        let clear = if self.drawn { "\r\x1b[K" } else { "" };
        let _ =
            writeln!(io::stderr(), "{clear}not written: {}; it is tried again", one_line(error));
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
