//! What must outlive the death of a daemon, in memory that its supervisor keeps: what was agreed
//! with the kernel, which files are open, which calls are under way that must not be done twice,
//! and removed inodes that may still be somebody's working directory.
//!
//! The memory is a file without a name, mapped by one daemon after the other. Everything in it is
//! an atomic number, so a daemon can die at any instruction: an entry counts when its last word is
//! written, which comes after all others. Its layout has the version of [`STATE_VERSION`].

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use forebay_node::{
    BackgroundWork, CarriedStream, HandOverState, HandleMode, LockOwner, OpenHandle, RemovedInode,
    Timestamp,
};
use parking_lot::Mutex;
use prost::Message;
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::hand_over::{STATE_VERSION, State, StateError};
use crate::lock_notes::{LOCKS, LockPlaces, LockSlot};

const MAGIC: u32 = u32::from_le_bytes(*b"FBLG");
/// Open files that are remembered; of more, the rest is lost with the daemon.
const HANDLES: usize = 1 << 20;
/// Calls that are under way at one time at most: more than threads that carry them out.
const CALLS: usize = 512;
/// Calls that are remembered as the end of a daemon.
const FATAL: usize = 64;
/// Removed directories that are remembered, and as many of all else.
const MAX_REMOVED: usize = 4096;
/// Background work that is remembered as the end of a daemon.
const WORKS: usize = 64;
const STATE_BYTES: usize = 2048;
const MAX_REMOVED_BYTES: usize = 124;

/// Bits of [`HandleSlot::bits`].
const USED: u32 = 1 << 31;
const WRITE: u32 = 1 << 30;
const BYPASS: u32 = 1 << 29;
const PROMISED: u32 = 1 << 28;
const STREAM: u32 = 1 << 27;
const APPEND: u32 = 1 << 26;
/// Used through another node: its number and its start take the words of what such a handle does not
/// have, a registration and a promise.
const REMOTE: u32 = 1 << 25;
const KEEPS_SET_IDS: u32 = 1 << 24;
const DURABLY: u32 = 1 << 23;
const MODE: u32 = 0xff;
/// The alias of the file has 8 bits from here.
const FACE_SHIFT: u32 = 8;

#[repr(C)]
struct Layout {
    magic: AtomicU32,
    version: AtomicU32,
    generation: AtomicU32,
    state_length: AtomicU32,
    /// A [`State`] without handles.
    state: [AtomicU8; STATE_BYTES],
    calls: [CallSlot; CALLS],
    /// Numbers of calls that panicked; 0: none.
    fatal: [AtomicU64; FATAL],
    removed_inodes: [[RemovedSlot; MAX_REMOVED]; 2],
    locks: [LockSlot; LOCKS],
    handles: [HandleSlot; HANDLES],
    /// A journal of an older program ends here.
    works: [WorkSlot; WORKS],
}

/// The length of a journal without background work.
const WITHOUT_WORKS: u64 = std::mem::offset_of!(Layout, works) as u64;

/// Background work that ended a daemon.
#[repr(C)]
struct WorkSlot {
    /// 0: none.
    kind: AtomicU32,
    taken: AtomicU32,
    number: AtomicU64,
}

#[repr(C, align(64))]
struct CallSlot {
    /// 0: free.
    unique: AtomicU64,
    ino: AtomicU64,
    seconds: AtomicU64,
    nanos: AtomicU32,
    /// Whether the other words are those of `unique`.
    ready: AtomicU32,
}

#[repr(C)]
struct RemovedSlot {
    /// 0: none.
    length: AtomicU32,
    bytes: [AtomicU8; MAX_REMOVED_BYTES],
}

#[repr(C, align(64))]
struct HandleSlot {
    fh: AtomicU64,
    ino: AtomicU64,
    unique: AtomicU64,
    promised: AtomicU64,
    registration: AtomicU32,
    bits: AtomicU32,
    object: AtomicU64,
}

/// A call that a daemon had begun and not answered when it died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The inode that had the name in question right before; 0 if none.
    pub ino: u64,
    /// When it was begun.
    pub since: Timestamp,
}

/// What the last daemon left.
#[derive(Debug, Default)]
pub struct Before {
    /// Calls under way, by their number in the protocol.
    pub calls: HashMap<u64, Call>,
    /// Handles by the number of the call that opened them.
    pub opened: HashMap<u64, u64>,
    /// Numbers of calls in which a daemon died by a defect.
    pub fatal: HashSet<u64>,
}

/// Where a panic in the background is noted: the journal that the next daemon will read.
static NOTES: Mutex<Option<Arc<Mapping>>> = Mutex::new(None);

/// A thread that panics waits for others no longer than this.
const NOTES_WAIT: Duration = Duration::from_millis(100);

/// Notes that background work ends this daemon by a defect: the next one must not try it again.
pub(crate) fn note_work(work: BackgroundWork) {
    if let Some(notes) = NOTES.try_lock_for(NOTES_WAIT)
        && let Some(map) = &*notes
    {
        map.note_work(work);
    }
}

/// The journal of a served mount.
pub struct RecoveryJournal {
    map: Arc<Mapping>,
    file: File,
    places: Mutex<Places>,
    removed_inodes: [AtomicU64; 2],
    locks: LockPlaces,
}

#[derive(Default)]
struct Places {
    of: HashMap<u64, u32>,
    free: Vec<u32>,
    next: u32,
}

struct Mapping(NonNull<Layout>);

// SAFETY: the memory is reached through shared references to atomic numbers only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: &File) -> io::Result<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping; the file has the length of the layout, and nobody shortens it.
        let at = unsafe { mmap(std::ptr::null_mut(), size_of::<Layout>(), prot, flags, file, 0)? };
        NonNull::new(at.cast()).map(Mapping).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }
}

impl Layout {
    fn note_work(&self, work: BackgroundWork) {
        let Ok(kind) = u32::try_from(work.kind) else { return };
        if self.works.iter().any(|slot| slot.read() == Some(work)) {
            return;
        }
        // Of more than there is room for, the others end daemons as before.
        let free = self.works.iter().find(|slot| slot.taken.swap(1, Ordering::AcqRel) == 0);
        if let Some(slot) = free {
            slot.number.store(work.number, Ordering::Relaxed);
            slot.kind.store(kind, Ordering::Release);
        }
    }
}

impl std::ops::Deref for Mapping {
    type Target = Layout;
    fn deref(&self) -> &Layout {
        // SAFETY: the mapping is that long, aligned to a page, lives as long as `self`, and any bytes
        // are valid atomic numbers.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by mmap with this length; no reference is left. It can't fail for these.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), size_of::<Layout>()) };
    }
}

impl RecoveryJournal {
    /// A journal that begins with this state, and with what the last daemon left.
    ///
    /// # Errors
    /// When the system lacks memory or descriptors.
    pub fn new(state: &State, before: &Before) -> io::Result<Self> {
        let file = File::from(rustix::fs::memfd_create("forebay-journal", MemfdFlags::CLOEXEC)?);
        file.set_len(size_of::<Layout>() as u64)?;
        let journal = RecoveryJournal {
            map: Arc::new(Mapping::new(&file)?),
            file,
            places: Mutex::default(),
            removed_inodes: Default::default(),
            locks: LockPlaces::default(),
        };
        let membership = state.node.membership.clone();
        let bare = HandOverState { membership, ..HandOverState::default() };
        let bare = State { negotiated: state.negotiated, node: bare, listings: None }.encode();
        let length = u32::try_from(bare.len()).map_err(io::Error::other)?;
        if bare.len() > STATE_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        store_bytes(&journal.map.state, &bare);
        journal.map.state_length.store(length, Ordering::Relaxed);
        journal.map.generation.store(state.node.generation, Ordering::Relaxed);
        for removed_inodes in &state.node.removed_inodes {
            journal.note_removed(removed_inodes);
        }
        for owner in &state.node.locks {
            journal.note_lock_owner(owner);
        }
        let openers: HashMap<u64, u64> =
            before.opened.iter().map(|(unique, fh)| (*fh, *unique)).collect();
        for handle in &state.node.handles {
            journal.note_open(handle, openers.get(&handle.fh).copied().unwrap_or(0));
        }
        for (unique, call) in &before.calls {
            // Until it comes again and is answered.
            let _place = journal.begin(*unique, *call, false);
        }
        for unique in &before.fatal {
            journal.note_fatal(*unique);
        }
        for work in &state.node.defects {
            journal.map.note_work(*work);
        }
        journal.map.version.store(STATE_VERSION, Ordering::Relaxed);
        journal.map.magic.store(MAGIC, Ordering::Release);
        Ok(journal)
    }

    /// What the journal of a dead daemon says.
    ///
    /// # Errors
    /// When its version is unknown, or it is no journal.
    pub fn read(journal: &OwnedFd) -> Result<(State, Before), StateError> {
        let damaged = |what: &str| StateError::Damaged(format!("the journal: {what}"));
        let file = journal.try_clone().map(File::from).map_err(|e| damaged(&e.to_string()))?;
        let length = file.metadata().map_err(|e| damaged(&e.to_string()))?.len();
        if length < 8 {
            return Err(damaged("too short"));
        }
        let notes_work = length == size_of::<Layout>() as u64;
        if !notes_work && length != WITHOUT_WORKS {
            return Err(damaged("it has another length"));
        }
        let map = Arc::new(Mapping::new(&file).map_err(|e| damaged(&e.to_string()))?);
        if map.magic.load(Ordering::Acquire) != MAGIC {
            return Err(damaged("it is something else"));
        }
        let found = map.version.load(Ordering::Relaxed);
        if found != STATE_VERSION {
            return Err(StateError::Version { found });
        }
        let length = map.state_length.load(Ordering::Relaxed) as usize;
        let bytes = map.state.get(..length).ok_or_else(|| damaged("its state is too long"))?;
        let mut state = State::decode(&load_bytes(bytes))?;
        state.node.generation = map.generation.load(Ordering::Relaxed);
        let mut before = Before::default();
        for slot in &map.handles {
            if let Some((handle, unique)) = slot.read() {
                state.node.handles.push(handle);
                if unique != 0 {
                    before.opened.insert(unique, handle.fh);
                }
            }
        }
        before.calls = map.calls.iter().filter_map(CallSlot::read).collect();
        let fatal = map.fatal.iter().map(|slot| slot.load(Ordering::Acquire));
        before.fatal = fatal.filter(|unique| *unique != 0).collect();
        state.node.locks = map.locks.iter().filter_map(LockSlot::read).collect();
        if notes_work {
            state.node.defects = map.works.iter().filter_map(WorkSlot::read).collect();
            // Until there is a journal of this daemon: it may die before.
            *NOTES.lock() = Some(Arc::clone(&map));
        }
        state.node.removed_inodes =
            map.removed_inodes.iter().flatten().filter_map(RemovedSlot::read).collect();
        Ok((state, before))
    }

    /// The next daemon will read this one: panics are noted here from now on.
    pub(crate) fn is_kept(&self) {
        *NOTES.lock() = Some(Arc::clone(&self.map));
    }

    /// The file, for the supervisor.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Notes an open file, before its opener is told. `unique` is the number of the call that
    /// opened it, 0 if that was answered.
    pub fn note_open(&self, handle: &OpenHandle, unique: u64) {
        let mut places = self.places.lock();
        let place = match places.free.pop() {
            Some(place) => place,
            None if (places.next as usize) < HANDLES => {
                places.next += 1;
                places.next - 1
            }
            None => return,
        };
        places.of.insert(handle.fh, place);
        drop(places);
        if let Some(slot) = self.map.handles.get(place as usize) {
            slot.write(handle, unique);
        }
    }

    /// Forgets an open file.
    pub fn note_closed(&self, fh: u64) {
        let mut places = self.places.lock();
        let Some(place) = places.of.remove(&fh) else { return };
        if let Some(slot) = self.map.handles.get(place as usize) {
            slot.bits.store(0, Ordering::Release);
        }
        places.free.push(place);
    }

    /// Notes a removed inode.
    pub fn note_removed(&self, removed_inodes: &RemovedInode) {
        let bytes = removed_inodes.encode_to_vec();
        let Ok(length) = u32::try_from(bytes.len()) else { return };
        let kind = usize::from(removed_inodes.mode & libc::S_IFMT == libc::S_IFDIR);
        let index =
            self.removed_inodes[kind].fetch_add(1, Ordering::Relaxed) as usize % MAX_REMOVED;
        let slot = &self.map.removed_inodes[kind][index];
        if bytes.len() <= MAX_REMOVED_BYTES {
            slot.length.store(0, Ordering::Release);
            store_bytes(&slot.bytes, &bytes);
            slot.length.store(length, Ordering::Release);
        }
    }

    /// Notes who is about to lock; false if there are too many.
    pub fn note_lock_owner(&self, owner: &LockOwner) -> bool {
        self.locks.note(&self.map.locks, owner)
    }

    /// Forgets an owner who has no locks of a file any more.
    pub fn forget_lock_owner(&self, owner: &LockOwner) {
        self.locks.forget(&self.map.locks, owner);
    }

    /// Notes that a call ends this daemon by a defect: the next one must not try it again.
    pub fn note_fatal(&self, unique: u64) {
        let (set, fetch) = (Ordering::AcqRel, Ordering::Relaxed);
        let take = |slot: &AtomicU64| slot.compare_exchange(0, unique, set, fetch).is_ok();
        if !self.map.fatal.iter().any(take) {
            // As many defects as that: the first of them is not sent any more.
            self.map.fatal[0].store(unique, Ordering::Release);
        }
    }

    /// Notes that a call is begun, until [`RecoveryJournal::end`]; `None` if too many are. `again` says
    /// that it may be noted already.
    pub fn begin(&self, unique: u64, call: Call, again: bool) -> Option<Noted> {
        let start = (unique >> 1) as usize % CALLS;
        let mut places = (start..CALLS).chain(0..start);
        let noted = |&at: &usize| again && self.call(at).unique.load(Ordering::Acquire) == unique;
        let at = places.clone().find(noted).or_else(|| {
            places.find(|&at| {
                let (set, fetch) = (Ordering::Acquire, Ordering::Relaxed);
                self.call(at).unique.compare_exchange(0, unique, set, fetch).is_ok()
            })
        })?;
        let slot = self.call(at);
        slot.ino.store(call.ino, Ordering::Relaxed);
        slot.seconds.store(call.since.sec.cast_unsigned(), Ordering::Relaxed);
        slot.nanos.store(call.since.nsec, Ordering::Relaxed);
        slot.ready.store(1, Ordering::Release);
        Some(Noted(at))
    }

    /// Notes that a call is answered: to be called after that, for one that is not under way is carried
    /// out when it comes again.
    pub fn end(&self, Noted(at): Noted) {
        let slot = self.call(at);
        slot.ready.store(0, Ordering::Release);
        slot.unique.store(0, Ordering::Release);
    }

    fn call(&self, at: usize) -> &CallSlot {
        &self.map.calls[at]
    }
}

/// The place of a call that is noted as under way.
#[derive(Debug)]
#[must_use = "it is under way until it is ended"]
pub struct Noted(usize);

impl WorkSlot {
    fn read(&self) -> Option<BackgroundWork> {
        let kind = i32::try_from(self.kind.load(Ordering::Acquire)).ok()?;
        (kind != 0).then(|| BackgroundWork { kind, number: self.number.load(Ordering::Relaxed) })
    }
}

impl CallSlot {
    fn read(&self) -> Option<(u64, Call)> {
        let unique = self.unique.load(Ordering::Acquire);
        if unique == 0 || self.ready.load(Ordering::Acquire) == 0 {
            return None;
        }
        let sec = self.seconds.load(Ordering::Relaxed).cast_signed();
        let since = Timestamp { sec, nsec: self.nanos.load(Ordering::Relaxed) };
        Some((unique, Call { ino: self.ino.load(Ordering::Relaxed), since }))
    }
}

impl HandleSlot {
    fn write(&self, handle: &OpenHandle, unique: u64) {
        self.fh.store(handle.fh, Ordering::Relaxed);
        self.ino.store(handle.ino, Ordering::Relaxed);
        self.unique.store(unique, Ordering::Relaxed);
        let remote = handle.owner_node != 0;
        let (registration, promised) = match remote {
            true => (handle.owner_node, handle.owner_epoch),
            false => (handle.registration, handle.promised.unwrap_or(0)),
        };
        self.promised.store(promised, Ordering::Relaxed);
        self.registration.store(registration, Ordering::Relaxed);
        self.object.store(handle.object, Ordering::Relaxed);
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let bits = USED
            | flag(handle.write, WRITE)
            | flag(handle.bypass, BYPASS)
            | flag(handle.promised.is_some() && !remote, PROMISED)
            | flag(handle.append, APPEND)
            | flag(remote, REMOTE)
            | flag(handle.keeps_set_ids, KEEPS_SET_IDS)
            | flag(handle.durably, DURABLY)
            | flag(handle.stream.is_some(), STREAM)
            | u32::from(handle.alias()) << FACE_SHIFT
            | (handle.mode.cast_unsigned() & MODE);
        self.bits.store(bits, Ordering::Release);
    }

    fn read(&self) -> Option<(OpenHandle, u64)> {
        let bits = self.bits.load(Ordering::Acquire);
        let mode = HandleMode::try_from((bits & MODE).cast_signed()).ok()?;
        let promised = self.promised.load(Ordering::Relaxed);
        let registration = self.registration.load(Ordering::Relaxed);
        let remote = bits & REMOTE != 0;
        let handle = OpenHandle {
            fh: self.fh.load(Ordering::Relaxed),
            ino: self.ino.load(Ordering::Relaxed),
            write: bits & WRITE != 0,
            mode: mode.into(),
            registration: if remote { 0 } else { registration },
            bypass: bits & BYPASS != 0,
            promised: (bits & PROMISED != 0).then_some(promised),
            // Where it is now, it did not say; its rate is the file's.
            stream: (bits & STREAM != 0).then(CarriedStream::default),
            append: bits & APPEND != 0,
            owner_node: if remote { registration } else { 0 },
            owner_epoch: if remote { promised } else { 0 },
            alias: bits >> FACE_SHIFT & 0xff,
            object: self.object.load(Ordering::Relaxed),
            keeps_set_ids: bits & KEEPS_SET_IDS != 0,
            durably: bits & DURABLY != 0,
        };
        (bits & USED != 0).then(|| (handle, self.unique.load(Ordering::Relaxed)))
    }
}

impl RemovedSlot {
    fn read(&self) -> Option<RemovedInode> {
        let length = self.length.load(Ordering::Acquire) as usize;
        let bytes = self.bytes.get(..length).filter(|bytes| !bytes.is_empty())?;
        RemovedInode::decode(&load_bytes(bytes)[..]).ok()
    }
}

fn store_bytes(to: &[AtomicU8], bytes: &[u8]) {
    for (to, byte) in to.iter().zip(bytes) {
        to.store(*byte, Ordering::Relaxed);
    }
}

fn load_bytes(from: &[AtomicU8]) -> Vec<u8> {
    from.iter().map(|byte| byte.load(Ordering::Relaxed)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fusewire::{Features, Negotiated};

    fn state() -> State {
        let negotiated = Negotiated {
            minor: 45,
            kernel_minor: 45,
            features: Features::PASSTHROUGH,
            offered: Features::NONE,
            max_write: 1 << 20,
            max_pages: 256,
            max_readahead: 131_072,
        };
        let node = HandOverState { generation: 5, ..HandOverState::default() };
        State { negotiated, node, listings: None }
    }

    fn handle(fh: u64) -> OpenHandle {
        OpenHandle {
            fh,
            ino: fh + 100,
            write: fh.is_multiple_of(2),
            mode: HandleMode::Passthrough.into(),
            registration: 9,
            bypass: fh.is_multiple_of(3),
            promised: fh.is_multiple_of(2).then_some(fh),
            stream: fh.is_multiple_of(5).then(CarriedStream::default),
            append: fh.is_multiple_of(7),
            alias: (fh % 256) as u32,
            object: fh << 33,
            keeps_set_ids: fh.is_multiple_of(11),
            durably: fh.is_multiple_of(13),
            ..OpenHandle::default()
        }
    }

    #[test]
    fn journal_when_background_work_ended_a_daemon_then_all_later_ones_know_it() {
        use forebay_node::BackgroundKind::{Listing, WriteBack};
        let work = |kind: forebay_node::BackgroundKind, number| BackgroundWork {
            kind: kind.into(),
            number,
        };
        let journal = RecoveryJournal::new(&state(), &Before::default()).unwrap();
        for work in [work(WriteBack, u64::MAX), work(Listing, 0), work(WriteBack, u64::MAX)] {
            journal.map.note_work(work);
        }
        let (found, before) = left(&journal);
        assert_eq!(found.node.defects, [work(WriteBack, u64::MAX), work(Listing, 0)]);
        let next = RecoveryJournal::new(&found, &before).unwrap();
        for number in 0..1000 {
            next.map.note_work(work(Listing, number));
        }
        let (found, _) = left(&next);
        assert_eq!(found.node.defects.len(), WORKS);
        assert_eq!(found.node.defects[..2], [work(WriteBack, u64::MAX), work(Listing, 0)]);
    }

    #[test]
    fn journal_of_a_program_that_notes_no_background_work_when_read_then_there_is_none() {
        let journal = RecoveryJournal::new(&state(), &Before::default()).unwrap();
        journal.note_open(&handle(3), 0);
        journal.file.set_len(WITHOUT_WORKS).unwrap();
        let (found, _) = left(&journal);
        assert_eq!((found.node.handles.len(), found.node.defects), (1, vec![]));
    }

    fn left(journal: &RecoveryJournal) -> (State, Before) {
        RecoveryJournal::read(&journal.file().try_clone_to_owned().unwrap()).unwrap()
    }

    #[test]
    fn journal_when_its_daemon_is_gone_then_says_what_was_open_and_under_way() {
        let removed_inodes = RemovedInode { ino: 77, mode: 0o40755, ..RemovedInode::default() };
        let mut begin = state();
        begin.node.handles = vec![handle(0), handle(1)];
        begin.node.removed_inodes = vec![removed_inodes.clone()];
        let journal = RecoveryJournal::new(&begin, &Before::default()).unwrap();
        for fh in 2..8 {
            journal.note_open(&handle(fh), 1000 + fh);
        }
        for fh in [0, 3, 3, 99] {
            journal.note_closed(fh);
        }
        journal.note_open(&handle(u64::MAX - 100), 0);
        let call = Call { ino: 8, since: Timestamp { sec: -3, nsec: 4 } };
        let begun = journal.begin(44, call, false).unwrap();
        journal.end(journal.begin(46, call, true).unwrap());
        let (found, before) = left(&journal);
        let mut open: Vec<u64> = found.node.handles.iter().map(|handle| handle.fh).collect();
        open.sort_unstable();
        assert_eq!(open, [1, 2, 4, 5, 6, 7, u64::MAX - 100]);
        assert!(found.node.handles.iter().all(|known| *known == handle(known.fh)));
        assert_eq!((found.negotiated, found.node.generation), (begin.negotiated, 5));
        assert_eq!(
            (&found.node.removed_inodes, found.node.at_rest),
            (&vec![removed_inodes], false)
        );
        assert_eq!(before.calls, HashMap::from([(44, call)]));
        assert_eq!(before.opened.get(&1002), Some(&2));
        assert_eq!(before.opened.len(), 5);
        // The daemon dies once more before any of them has come again.
        let next = RecoveryJournal::new(&found, &before).unwrap();
        let (found_again, before_again) = left(&next);
        assert_eq!(found_again.node.handles.len(), 7);
        assert_eq!((before_again.calls, before_again.opened), (before.calls, before.opened));
        next.end(next.begin(44, call, true).unwrap());
        assert!(left(&next).1.calls.is_empty());
        journal.end(begun);
        assert!(left(&journal).1.calls.is_empty());
    }

    #[test]
    fn journal_of_a_node_of_a_cluster_when_its_daemon_is_gone_then_who_it_was_and_who_has_locks() {
        let membership = forebay_node::Membership { node: 3, epoch: 9, ..Default::default() };
        let owner = |fh, owner| LockOwner { ino: 50, fh, owner, whole: owner == 2 };
        let by_way = OpenHandle { fh: 5, owner_node: 4, owner_epoch: u64::MAX, ..handle(5) };
        let by_way = OpenHandle { registration: 0, promised: None, ..by_way };
        let mut begin = state();
        begin.node.membership = Some(membership.clone());
        begin.node.locks = vec![owner(1, 1)];
        let journal = RecoveryJournal::new(&begin, &Before::default()).unwrap();
        journal.note_open(&by_way, 0);
        assert!(journal.note_lock_owner(&owner(2, 2)) && journal.note_lock_owner(&owner(3, 3)));
        journal.forget_lock_owner(&owner(0, 3));
        let (found, _) = left(&journal);
        assert_eq!(found.node.membership, Some(membership));
        assert_eq!(
            (found.node.handles, found.node.locks),
            (vec![by_way], vec![owner(1, 1), owner(2, 2)])
        );
    }

    #[test]
    fn journal_when_full_of_calls_then_more_are_not_noted_and_room_comes_back() {
        let journal = RecoveryJournal::new(&state(), &Before::default()).unwrap();
        let call = Call { ino: 0, since: Timestamp::default() };
        let begun: Vec<_> =
            (1..=CALLS as u64 + 10).filter_map(|n| journal.begin(2 * n, call, false)).collect();
        assert_eq!((left(&journal).1.calls.len(), begun.len()), (CALLS, CALLS));
        begun.into_iter().for_each(|noted| journal.end(noted));
        let _one = journal.begin(2, call, false);
        assert_eq!(left(&journal).1.calls.len(), 1);
    }

    #[test]
    fn read_when_it_is_newer_or_no_journal_then_refused() {
        let journal = RecoveryJournal::new(&state(), &Before::default()).unwrap();
        journal.map.version.store(STATE_VERSION + 1, Ordering::Relaxed);
        let file = journal.file().try_clone_to_owned().unwrap();
        let newer = StateError::Version { found: STATE_VERSION + 1 };
        assert_eq!(RecoveryJournal::read(&file).unwrap_err(), newer);
        journal.map.magic.store(1, Ordering::Relaxed);
        assert!(matches!(RecoveryJournal::read(&file), Err(StateError::Damaged(_))));
        let empty = rustix::fs::memfd_create("empty", MemfdFlags::CLOEXEC).unwrap();
        assert!(matches!(RecoveryJournal::read(&empty), Err(StateError::Damaged(_))));
    }
}
