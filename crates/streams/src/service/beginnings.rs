//! The beginnings of popular titles in memory: whoever opens one starts at once, and his stream goes
//! on where the beginning ends. They are copied from what streams read anyway.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_core::streams::popular::{Change, Opening, Popular};
use forebay_core::unit::Tick;
use parking_lot::Mutex;

use crate::media::FileKey;

/// Opens count half after so long.
const HALF_LIFE: u64 = 3_600 * Tick::SECOND;

/// What is kept of one version of a file.
struct Beginning {
    /// So much is wanted of it.
    wanted: usize,
    /// What there is, from its first byte on.
    there: Vec<u8>,
    /// The same when it is all.
    whole: Option<Bytes>,
}

/// The beginnings that are kept, and which are worth it.
struct BeginningCache {
    popular: Popular<FileKey>,
    titles: HashMap<FileKey, Beginning>,
    used: u64,
}

/// The beginnings that a service keeps.
pub(super) struct Beginnings {
    begun: Instant,
    cache: Mutex<BeginningCache>,
}

impl Beginnings {
    /// Keeps at most `budget` bytes.
    pub fn new(budget: u64, chunk: u64) -> Arc<Self> {
        let popular = Popular::new(budget, chunk, HALF_LIFE);
        let cache = BeginningCache { popular, titles: HashMap::new(), used: 0 };
        Arc::new(Self { begun: Instant::now(), cache: Mutex::new(cache) })
    }

    /// The beginning of a file from byte `start` on, if it is there; it ends before byte `end`, which is
    /// not 0.
    pub fn of(&self, key: FileKey, start: u64, end: u64) -> Option<Bytes> {
        let cache = self.cache.lock();
        let whole = cache.titles.get(&key)?.whole.as_ref()?;
        // A byte at least is left to the stream.
        let until = usize::try_from(end - 1).unwrap_or(usize::MAX).min(whole.len());
        let from = usize::try_from(start).ok().filter(|from| *from < until)?;
        Some(whole.slice(from..until))
    }

    /// A file was opened at its start or close to it; its stream starts within `startup`.
    pub fn opened(&self, key: FileKey, rate: u64, startup: Duration, with_beginning: bool) {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let now = Tick(nanos(self.begun.elapsed()));
        let startup = nanos(startup);
        let mut changes = Vec::new();
        let mut cache = self.cache.lock();
        cache.used += u64::from(with_beginning);
        let opening = Opening { title: key, size: key.size(), rate, startup };
        cache.popular.opened(now, opening, &mut changes);
        for change in changes {
            match change {
                Change::Drop { title } => drop(cache.titles.remove(&title)),
                Change::Keep { title, bytes } => {
                    let wanted = usize::try_from(bytes).unwrap_or(usize::MAX);
                    let there = Vec::new();
                    let fresh = Beginning { wanted, there, whole: None };
                    let beginning = cache.titles.entry(title).or_insert(fresh);
                    if let Some(whole) = beginning.whole.take_if(|whole| whole.len() < wanted) {
                        // Whoever plays with it keeps it; it goes on from there.
                        beginning.there = whole.to_vec();
                    }
                    beginning.wanted = wanted;
                }
            }
        }
    }

    /// Somebody has read these bytes of a file.
    pub fn saw(&self, key: FileKey, offset: u64, bytes: &[u8]) {
        let mut cache = self.cache.lock();
        let Some(beginning) = cache.titles.get_mut(&key) else { return };
        let done = beginning.there.len();
        let Some(skip) = (done as u64).checked_sub(offset) else { return };
        if beginning.whole.is_some() || skip >= bytes.len() as u64 {
            return;
        }
        let more = &bytes[skip as usize..];
        beginning.there.extend_from_slice(&more[..more.len().min(beginning.wanted - done)]);
        if beginning.there.len() == beginning.wanted {
            beginning.whole = Some(std::mem::take(&mut beginning.there).into());
        }
    }

    /// Whether bytes from `offset` on may still be wanted of a file.
    pub fn wants(&self, key: FileKey, offset: u64) -> bool {
        let cache = self.cache.lock();
        let beginning = cache.titles.get(&key);
        beginning.is_some_and(|it| it.whole.is_none() && offset < it.wanted as u64)
    }

    /// Bytes that are there, and streams that have begun with them.
    pub fn counts(&self) -> (u64, u64) {
        let cache = self.cache.lock();
        let lengths = cache.titles.values();
        let there = |it: &Beginning| it.whole.as_ref().map_or(it.there.len(), Bytes::len) as u64;
        (lengths.map(there).sum(), cache.used)
    }
}

/// Shows the beginnings what a stream reads, as long as they want it.
pub(super) struct Copier {
    pub beginnings: Arc<Beginnings>,
    pub key: FileKey,
    /// The next byte of the file.
    pub at: u64,
}

impl Copier {
    /// The stream gave these bytes; whether further ones may be wanted.
    pub fn saw(&mut self, bytes: &[u8]) -> bool {
        self.beginnings.saw(self.key, self.at, bytes);
        self.at += bytes.len() as u64;
        self.beginnings.wants(self.key, self.at)
    }
}
