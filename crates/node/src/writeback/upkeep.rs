//! What is looked after every few seconds, on a thread that may wait: a backing store that is not where
//! it was, what its faults have left, closed files of which it is not noted yet what was written to
//! them, and memory that nobody needs.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_types::Ino;
use parking_lot::Mutex;

use crate::context::Context;
use crate::defects::{BackgroundKind, Step};
use crate::error::NodeError;
use crate::residency::files::FileRef;
use crate::residency::unsettled::IN_HAND;
use crate::writeback::Writeback;

/// How often.
const EVERY: Duration = Duration::from_secs(2);

const STEPS: [Step; 6] = [
    Step::BackingPlace,
    Step::MountsBelow,
    Step::Strays,
    Step::Unsettled,
    Step::Memory,
    Step::Missing,
];

/// Which directory it is: its device and inode number.
type Identity = (u64, u64);

/// When it was last done, and what was found.
#[derive(Default)]
pub(crate) struct Upkeep {
    last: Mutex<Option<Instant>>,
    under_way: AtomicBool,
    /// The directory that was at the backing store's path at the start.
    backing: OnceLock<Identity>,
    /// What is wrong with that path now.
    displaced: Mutex<Option<String>>,
    quiet: Mutex<Quiet>,
}

/// So many operations don't count as work: whoever watches a machine asks for something now and then.
const FEW: u64 = 1000;

/// Since when programs have asked for next to nothing.
struct Quiet {
    operations: u64,
    since: Instant,
    given_back: GivenBack,
}

impl Default for Quiet {
    fn default() -> Self {
        Quiet { operations: 0, since: Instant::now(), given_back: GivenBack::Nothing }
    }
}

/// What was given back of the memory since then.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GivenBack {
    Nothing,
    /// Caches; what they were in is on its way to the allocator.
    Caches,
    /// The allocator's free memory as well.
    Everything,
}

impl Writeback {
    /// From here on it is noticed if the backing store's path means another directory.
    pub(crate) fn note_backing_place(&self) {
        if let Ok(identity) = identity(&self.config.backing) {
            self.upkeep.backing.set(identity).ok();
        }
    }

    /// If the backing store's directory is not at its path any more: what was found there. Everything
    /// goes on with the directory that was there at the start.
    pub fn backing_displaced(&self) -> Option<String> {
        self.upkeep.displaced.lock().clone()
    }

    /// At every tick: begins the upkeep when it is time.
    pub(crate) fn upkeep_now_and_then(&self) {
        let mut last = self.upkeep.last.lock();
        if last.is_some_and(|last| last.elapsed() < EVERY)
            || self.upkeep.under_way.swap(true, Ordering::AcqRel)
        {
            return;
        }
        *last = Some(Instant::now());
        drop(last);
        let begun = self.later(|node| {
            STEPS.iter().for_each(|step| node.keep_up(*step));
            node.upkeep.under_way.store(false, Ordering::Release);
        });
        if !begun {
            self.upkeep.under_way.store(false, Ordering::Release);
        }
    }

    /// Does one step, unless it has ended a daemon.
    pub(crate) fn keep_up(&self, step: Step) {
        self.defects.attempt(BackgroundKind::Upkeep, step as u64, || match step {
            Step::BackingPlace => self.look_after_backing_place(),
            Step::MountsBelow => self.look_after_mounts_below(),
            Step::Strays => self.residency.remove_strays(),
            Step::Unsettled => self.settle_unsettled(),
            Step::Memory => self.give_memory_back(),
            Step::Missing => self.residency.set_missing_aside(),
            Step::Restamp => self.restamp_moved(),
            Step::Times => self.restore_directory_times(),
            Step::Statfs => self.above.refresh_statfs(),
            Step::Spills => self.residency.drop_spills(Instant::now()),
        });
    }

    /// The last writer has closed a file: its record says what was written to it. Where somebody waits
    /// for a slow device with the file in hand, another thread sees to it, and where a tier or the
    /// namespace fails, it is tried again until it is done.
    pub(crate) fn settle_closed(&self, file: &FileRef) {
        match self.residency.settle_by(file, Some(Instant::now())) {
            Ok(true) => {}
            Ok(false) => {
                let waiting = file.clone();
                let begun = self.later(move |node| {
                    let settled =
                        node.defects.attempt(BackgroundKind::WriteBack, waiting.ino.0, || {
                            node.residency.settle(&waiting)
                        });
                    if let Some(Err(error)) = settled {
                        node.settle_again(&waiting, &error);
                    }
                });
                if !begun {
                    self.residency.unsettled.enter(file.clone(), IN_HAND.into());
                }
            }
            Err(error) => self.settle_again(file, &error),
        }
    }

    fn settle_again(&self, file: &FileRef, error: &NodeError) {
        if self.residency.unsettled.enter(file.clone(), error.to_string()) {
            tracing::error!(
                ino = file.ino.0, %error,
                "can't record a closed file's size; will be tried again"
            );
        }
    }

    /// Tries again what could not be settled when it was closed, unless it was removed since.
    pub(crate) fn settle_unsettled(&self) {
        for told in self.residency.unsettled.all() {
            let file = self.residency.files.get(told.ino);
            let settle = || {
                self.residency.load(&Context::DAEMON, &file)?;
                self.residency.settle_by(&file, Some(Instant::now()))
            };
            match self.defects.attempt(BackgroundKind::WriteBack, told.ino.0, settle) {
                Some(Ok(true)) => self.residency.unsettled.leave(&told),
                Some(Err(_))
                    if matches!(self.meta.get(told.ino), Err(forebay_meta::Error::Stale(_))) =>
                {
                    self.residency.unsettled.leave(&told);
                }
                _ => {}
            }
        }
    }

    /// The closed files that still can't be settled, for the next daemon.
    pub(crate) fn unsettled(&self) -> Vec<u64> {
        self.settle_unsettled();
        self.residency.unsettled.all().into_iter().map(|told| told.ino.0).collect()
    }

    /// Those of the daemon before. They are in use from here on, so that a look at them shows what was
    /// written.
    pub(crate) fn take_over_unsettled(&self, unsettled: &[u64]) {
        for &ino in unsettled {
            let file = self.residency.files.get(Ino(ino));
            if let Err(error) = self.residency.load(&Context::DAEMON, &file) {
                tracing::warn!(%ino, %error, "a closed file's size can't be looked at yet");
            }
            self.residency.unsettled.enter(file, "an earlier daemon could not do it".into());
        }
    }

    /// When programs are quiet, or nearly so: caches, and then what the allocator holds of freed
    /// memory, which it keeps where many threads have had their share of it.
    fn give_memory_back(&self) {
        let operations = self.metrics.operations();
        let mut quiet = self.upkeep.quiet.lock();
        let since_then = operations.saturating_sub(quiet.operations);
        let begins_anew = quiet.given_back == GivenBack::Everything && since_then > 0;
        if since_then > FEW || begins_anew {
            *quiet = Quiet { operations, ..Quiet::default() };
        }
        if quiet.since.elapsed() < self.config.memory_idle {
            return;
        }
        quiet.given_back = match quiet.given_back {
            GivenBack::Nothing => {
                self.meta.release_memory();
                GivenBack::Caches
            }
            GivenBack::Caches => {
                release_free_memory();
                GivenBack::Everything
            }
            GivenBack::Everything => GivenBack::Everything,
        };
    }

    /// Records and names that are kept in memory, which are bounded, and read again when they are
    /// wanted.
    pub fn cached_records(&self) -> usize {
        self.meta.cached()
    }

    /// What is mounted below the backing store's root has to be there at the next start as well.
    fn look_after_mounts_below(&self) {
        if self.residency.has_tiers()
            && let Err(error) = self.above.note_new_mounts()
        {
            tracing::debug!(%error, "can't note what is mounted below the backing store");
        }
    }

    fn look_after_backing_place(&self) {
        let Some(wanted) = self.upkeep.backing.get() else { return };
        let found = match identity(&self.config.backing) {
            Ok(found) if found == *wanted => None,
            Ok(_) => Some("another directory is there now".to_owned()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Some("nothing is there any more".to_owned())
            }
            // The store may be out of order for a moment; that is told elsewhere.
            Err(_) => return,
        };
        let mut displaced = self.upkeep.displaced.lock();
        if *displaced == found {
            return;
        }
        let path = self.config.backing.display();
        match &found {
            Some(what) => tracing::error!(
                backing = %path, what,
                "the backing store was renamed, replaced or mounted over: what is written goes on to \
                 the directory that was there at the mount. Put it back, or unmount and mount again"
            ),
            None => tracing::info!(backing = %path, "the backing store is back at its path"),
        }
        *displaced = found;
    }
}

/// Gives freed memory back to the system.
fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes the allocator's own locks and touches nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

fn identity(path: &Path) -> std::io::Result<Identity> {
    std::fs::metadata(path).map(|found| (found.dev(), found.ino()))
}
