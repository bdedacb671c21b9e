//! What is looked after every few seconds, on a thread that may wait: a backing store that is not where
//! it was, and what its faults have left.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::node::Node;

/// How often.
const EVERY: Duration = Duration::from_secs(2);

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
}

impl Node {
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
            node.look_after_backing_place();
            node.remove_strays();
            node.set_missing_aside();
            node.upkeep.under_way.store(false, Ordering::Release);
        });
        if !begun {
            self.upkeep.under_way.store(false, Ordering::Release);
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

fn identity(path: &Path) -> std::io::Result<Identity> {
    std::fs::metadata(path).map(|found| (found.dev(), found.ino()))
}
