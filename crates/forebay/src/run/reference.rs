//! The reference sequence of a run: which files its jobs will read, in the order in which they will
//! run, as the mount is given it. What is still needed is kept and what comes next is fetched ahead
//! (`forebay hint` does the same by hand).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::commands::portions;
use crate::control::{Client, HintPart, Request, WirePath};

/// When the mount forgets a run that says nothing any more.
const EXPIRES: Duration = Duration::from_secs(600);
/// How often the run says that it is still there.
const RENEW: Duration = Duration::from_secs(120);

/// The mount's side of a run.
pub struct Reference {
    client: Client,
    job: String,
    given: Option<Instant>,
    /// The mount does not take it, which was said.
    refused: bool,
}

impl Reference {
    /// For a run of this name.
    pub fn new(client: Client, job: String) -> Self {
        Self { client, job, given: None, refused: false }
    }

    /// Gives the sequence, in place of the one before. Files that are not there yet are left out, and
    /// `open` says that more will follow.
    pub fn give<'a>(&mut self, files: impl Iterator<Item = &'a PathBuf>, open: bool) {
        let inside = |path: &PathBuf| -> Option<WirePath> {
            Some(self.client.inside(path).filter(|_| is_file(path))?.into())
        };
        let parts = portions(files.filter_map(inside).collect());
        let last = parts.len() - 1;
        for (at, paths) in parts.into_iter().enumerate() {
            self.send(paths, at == 0, at == last && !open);
        }
    }

    /// Says that the run is still there.
    pub fn renew(&mut self) {
        if self.given.is_some_and(|given| given.elapsed() >= RENEW) {
            self.send(vec![], false, false);
        }
    }

    fn send(&mut self, paths: Vec<WirePath>, replace: bool, last: bool) {
        if self.refused {
            return;
        }
        let expires_ms = EXPIRES.as_millis() as u64;
        let part = HintPart { job: self.job.clone(), paths, replace, last, expires_ms };
        match self.client.work(Request::Hint(part), Some(EXPIRES), &mut |_| {}) {
            Ok(_) => self.given = Some(Instant::now()),
            Err(error) => {
                self.refused = true;
                crate::commands::warn(&format!("the jobs run without hints: {error}"));
            }
        }
    }

    /// The run has ended.
    pub fn withdraw(mut self) {
        if self.given.is_some() && !self.refused {
            let request = Request::Withdraw { job: self.job.clone() };
            let _ = self.client.order(request, Duration::from_secs(10));
        }
    }
}

fn is_file(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.is_file())
}
