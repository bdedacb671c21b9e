//! Open files, by the numbers that the kernel knows them by.
//!
//! Owns: the open files of programs and the numbers of those. Must not know: what is done with an
//! open file; each room keeps in [`Handle`] what it has of one.
//!
//! # Invariants
//! - A number means the same file as long as it is open, over any number of daemons, and never
//!   another one: each daemon gives numbers of its own generation (tests of this file).
//! - To find a handle takes no lock that files share (`hot_path_tests.rs`).
//! - A handle that is not forwarded to another node any more never is again ([`Remote::is_on`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use forebay_meta::Incarnation;
use forebay_types::Ino;
use parking_lot::Mutex;
use sharded_slab::{Entry, Slab};

use crate::cluster::Seen;
use crate::patterns::Tally;
use crate::residency::files::FileRef;
use crate::residency::shares::{Share, Shares};
use crate::stream::OpenStream;

/// The node that reads and writes of an open file are forwarded to, if they are.
#[derive(Default)]
pub(crate) struct Remote {
    pub on: AtomicBool,
    pub owner: Mutex<Option<Incarnation>>,
}

impl Remote {
    pub(crate) fn by(owner: Incarnation) -> Self {
        Remote { on: AtomicBool::new(true), owner: Mutex::new(Some(owner)) }
    }

    /// The node that reads and writes are forwarded to, if they are.
    pub(crate) fn owner(&self) -> Option<Incarnation> {
        if self.is_on() { *self.owner.lock() } else { None }
    }

    /// Whether reads and writes are forwarded to another node. If not now, never again.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }
}

/// How the kernel treats an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// Reads and writes go to the registered file without the daemon.
    Passthrough {
        /// The registration.
        id: u32,
    },
    /// Reads and writes come to the daemon, mappings go to the registered file.
    PassthroughDirect {
        /// The registration.
        id: u32,
    },
    /// Through the kernel's page cache.
    Cached {
        /// Whether pages cached before may stay.
        keep: bool,
    },
    /// Every read and write comes to the daemon.
    Direct,
}

impl OpenMode {
    /// The registration of the file that the kernel was given to read, write or map by itself.
    pub(crate) fn registration(self) -> Option<u32> {
        match self {
            OpenMode::Passthrough { id } | OpenMode::PassthroughDirect { id } => Some(id),
            OpenMode::Cached { .. } | OpenMode::Direct => None,
        }
    }

    /// Whether there is one.
    pub(crate) fn passes(self) -> bool {
        self.registration().is_some()
    }
}

/// A file that was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// The handle for later calls.
    pub fh: u64,
    /// How the kernel shall treat it.
    pub mode: OpenMode,
    /// The alias of the file that was opened ([`crate::node_id`]).
    pub alias: u8,
    /// The directory of its first name.
    pub dir: Option<Ino>,
}

/// An open file.
pub struct Handle {
    pub(crate) file: FileRef,
    pub(crate) write: bool,
    pub(crate) mode: OpenMode,
    /// Every write goes to the end of the file, wherever the kernel takes that to be.
    pub(crate) append: bool,
    /// Whatever changes the file through it is durable when it returns, by `O_SYNC` or `O_DSYNC`. Writes
    /// say so each by itself.
    pub(crate) durably: bool,
    /// Set-id bits stay over its writes, as over those of whoever has all rights.
    pub(crate) keeps_set_ids: bool,
    /// Under which alias of the file it was opened.
    pub(crate) alias: u8,
    /// Whether something was written through it since its writes were last told to those who keep pages.
    pub(crate) wrote: AtomicBool,
    /// What its open has shown.
    pub(crate) seen: Seen,
    /// Whether it keeps the file on this node ([`crate::cluster::WritePin`]), as it may write it.
    pub(crate) held: AtomicBool,
    /// The node that reads and writes are forwarded to, if the file is not here.
    pub(crate) remote: Remote,
    /// What its reader reads along, if it is a stream; of one that was another daemon's, once it is
    /// admitted here.
    pub(crate) stream: OnceLock<Arc<OpenStream>>,
    /// Room promised to a passthrough writer: tier and bytes.
    pub(crate) promised: Option<(u8, u64)>,
    /// Accesses that are recorded and have not been told yet.
    pub(crate) tally: Tally,
    /// Where a sequential reader reads next.
    expected: AtomicU64,
    /// Bytes read since it last jumped.
    run: AtomicU64,
    /// It counts among the open files of its user; if a predecessor opened it, among all alone.
    pub(crate) share: Option<Share>,
}

/// A write under way: whoever closes after it knows of it.
pub(crate) struct Writing<'a>(&'a Handle);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.wrote.store(true, Ordering::Release);
    }
}

impl Handle {
    /// To be kept for as long as bytes are written through the handle.
    pub(crate) fn writing(&self) -> Writing<'_> {
        Writing(self)
    }

    pub(crate) fn new(
        file: FileRef,
        write: bool,
        mode: OpenMode,
        promised: Option<(u8, u64)>,
    ) -> Self {
        let append = false;
        Handle {
            file,
            write,
            mode,
            append,
            durably: false,
            keeps_set_ids: false,
            alias: 0,
            seen: Seen::default(),
            // Nobody knows what a predecessor has written.
            wrote: AtomicBool::new(write),
            held: AtomicBool::new(write),
            remote: Remote::default(),
            stream: OnceLock::new(),
            promised,
            tally: Tally::default(),
            expected: AtomicU64::new(0),
            run: AtomicU64::new(0),
            share: None,
        }
    }

    /// Notes a read and says how many bytes its reader has read in sequence: 0 for a read that
    /// stands alone. Reads of a read-ahead come out of order; those that come close to where the
    /// reader is count, too, but only a number of them makes a sequence, as random ones do so by
    /// chance.
    pub(crate) fn sequence(&self, offset: u64, len: u64) -> u64 {
        const WINDOW: u64 = 2 << 20;
        const CONVINCING: u64 = 128 << 10;
        let expected = self.expected.load(Ordering::Relaxed);
        let near = offset <= expected + WINDOW && expected <= offset + WINDOW;
        if !near {
            self.expected.store(offset + len, Ordering::Relaxed);
            self.run.store(len, Ordering::Relaxed);
            return 0;
        }
        self.expected.store(expected.max(offset + len), Ordering::Relaxed);
        let run = self.run.fetch_add(len, Ordering::Relaxed) + len;
        if offset == expected || run >= CONVINCING { run } else { 0 }
    }
}

/// How many generations of daemons are told apart by the numbers of their handles.
pub(crate) const GENERATIONS: u16 = 1 << GENERATION_BITS;
const GENERATION_BITS: u32 = 12;
const KEY_BITS: u32 = u64::BITS - GENERATION_BITS;

/// The layout of the slab's keys: the top bits stay free for the generation.
pub(crate) struct Keys;

impl sharded_slab::Config for Keys {
    const MAX_PAGES: usize = 24;
    const RESERVED_BITS: usize = GENERATION_BITS as usize;
}

/// The open handles by their numbers, which the kernel keeps over a change of daemons: those that
/// a predecessor gave out mean the same files as before, and never anything else.
pub(crate) struct Handles {
    slab: Slab<Handle, Keys>,
    generation: u16,
    /// How many there may be.
    pub shares: Arc<Shares>,
    /// Where the handles of predecessors are.
    adopted: OnceLock<HashMap<u64, usize>>,
}

impl Handles {
    /// No handle yet. New ones get numbers of this generation.
    pub fn new(generation: u16) -> Self {
        let generation = generation % GENERATIONS;
        let (slab, shares) = (Slab::new_with_config::<Keys>(), Arc::new(Shares::of_process()));
        Handles { slab, generation, shares, adopted: OnceLock::new() }
    }

    /// The generation of new numbers.
    pub fn generation(&self) -> u16 {
        self.generation
    }

    /// The generation that a number is of.
    pub fn generation_of(fh: u64) -> u16 {
        u16::try_from(fh >> KEY_BITS).expect("12 bits are left")
    }

    /// Enters a handle; its number, or `None` when there are too many.
    pub fn insert(&self, handle: Handle) -> Option<u64> {
        let key = self.slab.insert(handle)? as u64;
        Some(u64::from(self.generation) << KEY_BITS | key)
    }

    /// Enters the handles of predecessors under the numbers that they have. At most once.
    pub fn adopt(&self, handles: Vec<(u64, Handle)>) {
        let place = |(fh, handle)| Some((fh, self.slab.insert(handle)?));
        let adopted = handles.into_iter().filter_map(place).collect();
        if self.adopted.set(adopted).is_err() {
            tracing::error!("handles were adopted twice");
        }
    }

    fn key(&self, fh: u64) -> Option<usize> {
        if Self::generation_of(fh) == self.generation {
            return Some((fh & (u64::MAX >> GENERATION_BITS)) as usize);
        }
        self.adopted.get()?.get(&fh).copied()
    }

    /// The handle with this number.
    pub fn get(&self, fh: u64) -> Option<Entry<'_, Handle, Keys>> {
        self.slab.get(self.key(fh)?)
    }

    /// Removes a handle.
    pub fn take(&self, fh: u64) -> Option<Handle> {
        self.slab.take(self.key(fh)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::residency::files::Files;

    fn handle(files: &Arc<Files>, ino: u64) -> Handle {
        Handle::new(files.get(forebay_meta::Ino(ino)), false, OpenMode::Direct, None)
    }

    #[test]
    fn handles_when_adopted_over_generations_then_numbers_keep_their_meaning() {
        let files = Arc::new(Files::default());
        let first = Handles::new(0);
        let one = first.insert(handle(&files, 1)).expect("room");
        let second = Handles::new(1);
        second.adopt(vec![(one, handle(&files, 1))]);
        let two = second.insert(handle(&files, 2)).expect("room");
        assert_ne!(one, two);
        let third = Handles::new(2);
        third.adopt(vec![(one, handle(&files, 1)), (two, handle(&files, 2))]);
        let three = third.insert(handle(&files, 3)).expect("room");
        let ino = |fh| third.get(fh).map(|handle| handle.file.ino.0);
        assert_eq!([one, two, three].map(ino), [Some(1), Some(2), Some(3)]);
        assert!(third.take(two).is_some());
        let four = third.insert(handle(&files, 4)).expect("room");
        assert_eq!([one, two, three, four].map(ino), [Some(1), None, Some(3), Some(4)]);
        assert!(third.take(two).is_none());
        assert!(third.get(u64::MAX).is_none());
    }
}
