//! Popular files on the tier. Of some the beginnings: whoever opens one starts at once, and his stream
//! begins where they end. Of others all: they need no stream, and the device has the time for others.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_core::streams::popular::{Opening, Popular};
use forebay_core::unit::Tick;
use forebay_types::Ino;

use crate::context::Context;
use crate::error::Result;
use crate::node::Node;
use crate::pool::Urgency;
use crate::residency::fetch::FetchMode;
use crate::residency::files::FileRef;

/// Opens count half after so long.
const HALF_LIFE: u64 = 3_600 * Tick::SECOND;

/// What is worth keeping, and what is on its way.
pub(super) struct KeptTitles {
    begun: Instant,
    popular: Popular<u64>,
    /// Those that are kept whole.
    whole: Popular<u64>,
    fetched: HashSet<u64>,
}

impl KeptTitles {
    pub fn new(beginnings: u64, titles: u64, extent: u64) -> Self {
        let popular = Popular::new(beginnings, extent, HALF_LIFE);
        let whole = Popular::new(titles, extent, HALF_LIFE);
        KeptTitles { begun: Instant::now(), popular, whole, fetched: HashSet::new() }
    }
}

/// So many nanoseconds.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Node {
    /// A file was opened as a stream that goes from byte `start` on, the first that no tier has. Brings
    /// its beginning to a tier if it is worth that. What is not worth it any more leaves as everything
    /// does that nobody uses.
    pub(super) fn keep_beginning(&self, opening: Opening<u64>, start: u64) {
        let Some(kept) = self.streams.as_ref().and_then(|streams| streams.kept.as_ref()) else {
            return;
        };
        let title = opening.title;
        let bytes = {
            let mut kept = kept.lock();
            let now = Tick(nanos(kept.begun.elapsed()));
            // Those that are let go need no help to leave.
            kept.popular.opened(now, opening, &mut Vec::new());
            let bytes = kept.popular.kept(title);
            if bytes <= start || !kept.fetched.insert(title) {
                return;
            }
            bytes
        };
        self.bring(Ino(title), bytes);
    }

    /// A file that has a rate was opened, be it on a tier or not. Brings all of it to a tier if it is
    /// among those that are opened most.
    pub(super) fn keep_title(&self, file: &FileRef, size: u64) {
        let Some(kept) = self.streams.as_ref().and_then(|streams| streams.kept.as_ref()) else {
            return;
        };
        {
            let mut kept = kept.lock();
            let now = Tick(nanos(kept.begun.elapsed()));
            // All of it, and what a byte of it saves each time is a byte of the device: worth is what
            // is opened most, whatever its size.
            let opening = Opening { title: file.ino.0, size, rate: Tick::SECOND, startup: size };
            kept.whole.opened(now, opening, &mut Vec::new());
            let there = file.location.read().place().is_some_and(|place| {
                // Nothing is missing of one without a map.
                place.is_marked_whole()
            });
            let wanted = kept.whole.kept(file.ino.0) >= size;
            if !wanted || there || !kept.fetched.insert(file.ino.0) {
                return;
            }
        }
        self.bring(file.ino, size);
    }

    /// Brings the first bytes of a file to a tier, in the time that streams leave.
    fn bring(&self, ino: Ino, bytes: u64) {
        let started = self.this.upgrade().is_some_and(|node| {
            let job = move || {
                if let Err(error) = node.bring_beginning(ino, bytes) {
                    tracing::debug!(%ino, %error, "a popular file was not brought to a tier");
                }
                node.beginning_ended(ino);
            };
            self.slow.run(Urgency::Background, job).is_ok()
        });
        if !started {
            self.beginning_ended(ino);
        }
    }

    fn beginning_ended(&self, ino: Ino) {
        if let Some(kept) = self.streams.as_ref().and_then(|streams| streams.kept.as_ref()) {
            kept.lock().fetched.remove(&ino.0);
        }
    }

    fn bring_beginning(&self, ino: Ino, bytes: u64) -> Result<()> {
        let file = self.residency.files.get(ino);
        let record = self.meta.get(ino)?;
        if record.is_dirty() || record.orphan {
            return Ok(());
        }
        // Who opened it may have closed it meanwhile, and what was known of its place is forgotten.
        self.residency.load(&Context::DAEMON, &file)?;
        self.residency.begin_partial(&file, &record)?;
        let extent = self.config.extent_bytes;
        let mut buffer = vec![0; usize::try_from(extent).unwrap_or(1 << 20)];
        let mut at = 0;
        while at < bytes.min(record.attr.size) && !self.stopping.load(Ordering::Relaxed) {
            if !self.residency.fill_extent(&file, at..at + extent, &mut buffer, FetchMode::Now)? {
                break;
            }
            at += extent;
        }
        self.residency.finish_if_whole(&file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::residency::data_location::TierObject;
    use crate::{NodeConfig, TierConfig};

    #[test]
    fn title_when_closed_before_its_turn_then_it_comes_to_the_tier_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let (backing, tier) = (dir.path().join("backing"), dir.path().join("tier"));
        std::fs::create_dir(&backing).unwrap();
        std::fs::create_dir(&tier).unwrap();
        let content = vec![7; 300_000];
        std::fs::write(backing.join("title"), &content).unwrap();
        let tier = TierConfig { dir: tier, size_bytes: 256 << 20 };
        let mut config = NodeConfig::new(backing, vec![tier]);
        (config.fetch_on_open_bytes, config.extent_bytes) = (64 << 10, 64 << 10);
        let node = Node::start(config).unwrap();
        let ino = node.lookup(&Context::DAEMON, Ino::ROOT, b"title").unwrap().unwrap().ino;

        // Nobody has it open, and nothing is known of where its bytes are.
        node.bring_beginning(ino, content.len() as u64).unwrap();

        let file = node.residency.files.get(ino);
        node.residency.load(&Context::DAEMON, &file).unwrap();
        let whole = file.location.read().place().map(TierObject::is_marked_whole);
        assert_eq!(whole, Some(true), "all of it is on the tier");
        node.stop(Duration::from_secs(10));
    }
}
