//! What a node hands on to the one that takes its place under the same programs.
//!
//! The namespace, the tiers and the backlog are durable and found by whoever opens them next. What
//! is handed on is what lives in memory alone: which files are open and how the kernel knows them,
//! removed files that somebody may still open, and, from a node that came to rest, what lies on the
//! tiers, so that they need not be read. A node that died leaves only its open files; the rest is
//! recovered from the tiers.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use forebay_core::steward::Event;
use forebay_meta::Attr;
use forebay_types::{FileKind, Ino, Timestamp};
use prost::Message;

use crate::cluster::{LockOwner, Membership};
use crate::context::Context;
use crate::defects::BackgroundWork;
use crate::error::{NodeError, Result};
use crate::node::Node;
use crate::requests::handle::{GENERATIONS, Handle, Handles, OpenMode};
use crate::residency::inode_alias::{Opens, Use as Shown, object_id};
use crate::residency::residents::Resident;
use crate::stream::CarriedStream;

/// What a node hands on. A Protocol Buffers message; `docs/reference/format.md` has its fields.
#[derive(Clone, PartialEq, Message)]
pub struct HandOverState {
    /// All open files.
    #[prost(message, repeated, tag = "1")]
    pub handles: Vec<OpenHandle>,
    /// The generation of the node's own handles.
    #[prost(uint32, tag = "2")]
    pub generation: u32,
    /// Whether the node came to rest: `residents` are all that lies on the tiers, and no work was
    /// interrupted.
    #[prost(bool, tag = "3")]
    pub at_rest: bool,
    /// What lies on the tiers.
    #[prost(message, repeated, tag = "4")]
    pub residents: Vec<ResidentObject>,
    /// Files that a rename has replaced a moment ago, by inode number.
    #[prost(uint64, repeated, tag = "5")]
    pub replaced: Vec<u64>,
    /// Attributes of removed inodes that may still be somebody's working directory.
    #[prost(message, repeated, tag = "6")]
    pub removed_inodes: Vec<RemovedInode>,
    /// Which node of a cluster it is.
    #[prost(message, optional, tag = "7")]
    pub membership: Option<Membership>,
    /// Who may have locks, in a cluster.
    #[prost(message, repeated, tag = "8")]
    pub locks: Vec<LockOwner>,
    /// Requests that wait for locks: the kernel is to give them to whoever takes over.
    #[prost(uint64, tag = "9")]
    pub waiters: u64,
    /// Dirty files of which nothing is left.
    #[prost(uint64, repeated, tag = "10")]
    pub lost: Vec<u64>,
    /// What ended the last daemon, or one before it, by a defect.
    #[prost(message, repeated, tag = "11")]
    pub defects: Vec<BackgroundWork>,
    /// How objects were when set-id bits were set that the next unseen write of a plain user takes away.
    #[prost(message, repeated, tag = "12")]
    pub set_ids: Vec<SetIdsSince>,
}

/// How the object of a file was when its set-id bits were set.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct SetIdsSince {
    /// The inode number.
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    /// Length of the object in bytes.
    #[prost(uint64, tag = "2")]
    pub size: u64,
    /// Its modification time: seconds since 1970.
    #[prost(sint64, tag = "3")]
    pub sec: i64,
    /// And nanoseconds.
    #[prost(uint32, tag = "4")]
    pub nsec: u32,
}

/// An open file.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct OpenHandle {
    /// The number by which the kernel knows it.
    #[prost(uint64, tag = "1")]
    pub fh: u64,
    /// The inode number.
    #[prost(uint64, tag = "2")]
    pub ino: u64,
    /// Whether it may be written through.
    #[prost(bool, tag = "3")]
    pub write: bool,
    /// How the kernel treats it.
    #[prost(enumeration = "HandleMode", tag = "4")]
    pub mode: i32,
    /// The registration, in a mode with passthrough.
    #[prost(uint32, tag = "5")]
    pub registration: u32,
    /// Whether the file in the backing store is registered, not the object.
    #[prost(bool, tag = "6")]
    pub bypass: bool,
    /// Bytes promised to a passthrough writer on the tier of its object.
    #[prost(uint64, optional, tag = "7")]
    pub promised: Option<u64>,
    /// Its stream, if it is one.
    #[prost(message, optional, tag = "8")]
    pub stream: Option<CarriedStream>,
    /// Whether writes go to the end of the file.
    #[prost(bool, tag = "9")]
    pub append: bool,
    /// By way of which node it is used, 0 if the file is here.
    #[prost(uint32, tag = "10")]
    pub owner_node: u32,
    /// That node's start.
    #[prost(uint64, tag = "11")]
    pub owner_epoch: u64,
    /// The alias of the file that it is of.
    #[prost(uint32, tag = "12")]
    pub alias: u32,
    /// Tells the registered object from others; 0 if it is not known.
    #[prost(fixed64, tag = "13")]
    pub object: u64,
    /// Whether set-id bits stay over its writes.
    #[prost(bool, tag = "14")]
    pub keeps_set_ids: bool,
    /// Whether whatever changes the file through it is durable when it returns.
    #[prost(bool, tag = "15")]
    pub durably: bool,
}

/// How the kernel treats an open file: [`OpenMode`] without its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
pub enum HandleMode {
    /// Every read and write comes to the daemon.
    Direct = 0,
    /// Through the kernel's page cache.
    Cached = 1,
    /// Reads and writes go to the registered file.
    Passthrough = 2,
    /// Reads and writes come to the daemon, mappings go to the registered file.
    PassthroughDirect = 3,
}

/// An object on a tier.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ResidentObject {
    /// The inode number.
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    /// Which tier, 0 the fastest.
    #[prost(uint32, tag = "2")]
    pub tier: u32,
    /// Whether every byte of the file is there.
    #[prost(bool, tag = "3")]
    pub whole: bool,
    /// Whether the backing store lacks some of it.
    #[prost(bool, tag = "4")]
    pub dirty: bool,
    /// Bytes charged to the tier.
    #[prost(uint64, tag = "5")]
    pub charged: u64,
}

/// The last attributes of a removed inode.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RemovedInode {
    /// The inode number.
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    /// The type as the upper bits of `st_mode`, and the permissions.
    #[prost(uint32, tag = "2")]
    pub mode: u32,
    /// Owner.
    #[prost(uint32, tag = "3")]
    pub uid: u32,
    /// Group.
    #[prost(uint32, tag = "4")]
    pub gid: u32,
    /// Device number.
    #[prost(uint64, tag = "5")]
    pub rdev: u64,
    /// Length.
    #[prost(uint64, tag = "6")]
    pub size: u64,
    /// Access, modification, change, birth: seconds since 1970 and nanoseconds of each.
    #[prost(sint64, repeated, tag = "7")]
    pub times: Vec<i64>,
    /// Extended attributes of a directory: names and values in turn.
    #[prost(bytes = "vec", repeated, tag = "8")]
    pub xattrs: Vec<Vec<u8>>,
}

impl HandOverState {
    /// A generation that no handle is of.
    pub(crate) fn next_generation(&self) -> u16 {
        let used: HashSet<u16> =
            self.handles.iter().map(|handle| Handles::generation_of(handle.fh)).collect();
        let last = u16::try_from(self.generation).unwrap_or_default();
        let free = (1..=GENERATIONS).map(|step| last.wrapping_add(step) % GENERATIONS);
        // All of them in use would need a file kept open over thousands of hand-overs by each.
        free.into_iter().find(|generation| !used.contains(generation)).unwrap_or_default()
    }

    fn open_inodes(&self) -> HashSet<Ino> {
        let open = self.handles.iter().map(|handle| handle.ino);
        open.chain(self.replaced.iter().copied()).map(Ino).collect()
    }
}

impl RemovedInode {
    pub(crate) fn new(ino: u64, attr: &Attr) -> Self {
        let times = [attr.atime, attr.mtime, attr.ctime, attr.btime];
        RemovedInode {
            ino,
            mode: attr.kind.mode_bits() | attr.perm,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            size: attr.size,
            times: times.iter().flat_map(|time| [time.sec, i64::from(time.nsec)]).collect(),
            xattrs: Vec::new(),
        }
    }

    fn attr(&self) -> Option<Attr> {
        let time = |index: usize| {
            let sec = self.times.get(2 * index).copied().unwrap_or_default();
            let nsec = self.times.get(2 * index + 1).copied().unwrap_or_default();
            Timestamp::new(sec, u32::try_from(nsec).unwrap_or_default())
        };
        Some(Attr {
            kind: FileKind::from_mode(self.mode)?,
            perm: self.mode & 0o7777,
            uid: self.uid,
            gid: self.gid,
            nlink: 0,
            rdev: self.rdev,
            size: self.size,
            atime: time(0),
            mtime: time(1),
            ctime: time(2),
            btime: time(3),
        })
    }
}

impl OpenHandle {
    fn new(fh: u64, handle: &Handle, opens: &mut Opens) -> Self {
        let (mode, registration) = match handle.mode {
            OpenMode::Direct => (HandleMode::Direct, 0),
            OpenMode::Cached { .. } => (HandleMode::Cached, 0),
            OpenMode::Passthrough { id } => (HandleMode::Passthrough, id),
            OpenMode::PassthroughDirect { id } => (HandleMode::PassthroughDirect, id),
        };
        let owner = handle.remote.owner();
        let registered = opens.registration(registration).filter(|_| handle.mode.passes());
        let (bypass, object) = registered.map_or((false, 0), |r| (r.bypass, r.object));
        OpenHandle {
            fh,
            ino: handle.file.ino.0,
            write: handle.write,
            mode: mode.into(),
            registration,
            bypass,
            promised: handle.promised.map(|(_, bytes)| bytes),
            stream: handle.stream.get().map(|stream| stream.carried()),
            append: handle.append,
            owner_node: owner.map_or(0, |owner| owner.node.into()),
            owner_epoch: owner.map_or(0, |owner| owner.epoch),
            alias: handle.alias.into(),
            object,
            keeps_set_ids: handle.keeps_set_ids,
            durably: handle.durably,
        }
    }

    /// The alias of the file that it is of.
    #[must_use]
    pub fn alias(&self) -> u8 {
        u8::try_from(self.alias).unwrap_or(0)
    }

    /// How the kernel treats it.
    #[must_use]
    pub fn open_mode(&self) -> OpenMode {
        let id = self.registration;
        match self.mode() {
            HandleMode::Direct => OpenMode::Direct,
            HandleMode::Cached => OpenMode::Cached { keep: true },
            HandleMode::Passthrough => OpenMode::Passthrough { id },
            HandleMode::PassthroughDirect => OpenMode::PassthroughDirect { id },
        }
    }
}

impl Node {
    /// Brings all work of the node's own to rest; requests are served on. [`Node::go_on`] takes it
    /// back. What is under way is waited for up to `limit`.
    ///
    /// # Errors
    /// [`NodeError::NotAtRest`] names what goes on; the node then goes on as before.
    pub fn rest(&self, limit: Duration) -> Result<()> {
        let until = Instant::now() + limit;
        self.stopping.store(true, Ordering::Release);
        self.writeback.stop_reconciler();
        let mut threads = std::mem::take(&mut *self.threads.lock());
        while threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < until {
            thread::sleep(Duration::from_millis(2));
        }
        threads.retain(|thread| !thread.is_finished());
        let ended = threads.is_empty();
        *self.threads.lock() = threads;
        let left = until.saturating_duration_since(Instant::now());
        let rested = ended && self.writeback.flushers.rest(left);
        let left = until.saturating_duration_since(Instant::now());
        if rested && self.slow.rest(left) {
            if let Some(cluster) = &self.cluster {
                cluster.kernel_grants.stop();
            }
            return Ok(());
        }
        let what = self.what_goes_on();
        self.go_on();
        Err(NodeError::NotAtRest { what, limit_s: limit.as_secs() })
    }

    /// Takes [`Node::rest`] back.
    pub fn go_on(&self) {
        let Some(node) = self.this.upgrade() else { return };
        self.stopping.store(false, Ordering::Release);
        self.writeback.restart_reconciler();
        node.writeback.start_reconciler();
        node.start_ticker();
        node.go_on_in_cluster();
    }

    fn what_goes_on(&self) -> String {
        let work = self.long_work(Duration::from_secs(1)).into_iter().next();
        let path = work.map(|work| String::from_utf8_lossy(&work.path).into_owned());
        match path {
            Some(path) => format!("the write-back of {path}"),
            None => "a transfer to or from the backing store".into(),
        }
    }

    /// Collects what a successor needs and lets go of the namespace and the tiers. To be called at
    /// rest and while no request is served: afterwards the node can do nothing any more.
    ///
    /// # Errors
    /// [`NodeError::NotAtRest`] if the last requests have left work that takes longer than `limit`;
    /// the node can still go on.
    pub fn hand_over_state(&self, limit: Duration) -> Result<HandOverState> {
        let until = Instant::now() + limit;
        let left = || until.saturating_duration_since(Instant::now());
        if !self.rest_in_cluster(left()) {
            let what = "what another node has asked for".into();
            return Err(NodeError::NotAtRest { what, limit_s: limit.as_secs() });
        }
        // Either may give the other something to do.
        while !(self.slow.rest(left())
            && self.writeback.flushers.rest(left())
            && self.slow.is_at_rest())
        {
            if Instant::now() >= until {
                let what = self.what_goes_on();
                return Err(NodeError::NotAtRest { what, limit_s: limit.as_secs() });
            }
        }
        let Some(replaced) = self.names.lingering.take(until) else {
            let what = "the removal of a file that was replaced".into();
            return Err(NodeError::NotAtRest { what, limit_s: limit.as_secs() });
        };
        self.residency.discard_removed();
        self.residency.write_accesses();
        let mut handed_over = HandOverState {
            handles: self.open_handles(),
            generation: self.handles.generation().into(),
            at_rest: true,
            membership: self.membership(),
            locks: self.lock_owners(),
            replaced: replaced.into_iter().map(|ino| ino.0).collect(),
            lost: self.residency.troubles.lost(),
            ..HandOverState::default()
        };
        self.residency.residents.for_each(|ino, resident| {
            let Resident { tier, whole, dirty, charged } = resident;
            handed_over.residents.push(ResidentObject {
                ino,
                tier: tier.into(),
                whole,
                dirty,
                charged,
            });
        });
        handed_over.set_ids = self.watched_set_ids(&handed_over.handles);
        self.names.removed_inodes.for_each(|ino, attr| {
            handed_over.removed_inodes.push(RemovedInode::new(ino, attr));
        });
        for removed_inodes in &mut handed_over.removed_inodes {
            let xattrs =
                self.names.removed_inodes.xattrs(Ino(removed_inodes.ino)).unwrap_or_default();
            removed_inodes.xattrs =
                xattrs.into_iter().flat_map(|(name, value)| [name, value]).collect();
        }
        if let Some(log) = &self.residency.event_log {
            log.write_out();
        }
        if let Some(streams) = &self.streams {
            // The device is the successor's.
            streams.stop();
        }
        handed_over.waiters = self.hand_waiters_on();
        self.let_go_of_state();
        Ok(handed_over)
    }

    /// An open file, as a successor must know it.
    #[must_use]
    pub fn open_handle(&self, fh: u64) -> Option<OpenHandle> {
        let handle = self.handles.get(fh)?;
        let mut opens = handle.file.opens.lock();
        Some(OpenHandle::new(fh, &handle, &mut opens))
    }

    /// The generation of the numbers of this node's own handles.
    #[must_use]
    pub fn handle_generation(&self) -> u16 {
        self.handles.generation()
    }

    /// The inode behind a name, as far as the namespace knows it. Asks nobody else.
    #[must_use]
    pub fn known_name(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        self.meta.lookup(dir, name).ok().flatten().map(|record| record.ino)
    }

    /// All open files as the kernel knows them.
    fn open_handles(&self) -> Vec<OpenHandle> {
        let mut open = Vec::new();
        for file in self
            .residency
            .files
            .in_use()
            .into_iter()
            .filter_map(|ino| self.residency.files.peek(ino))
        {
            let mut opens = file.opens.lock();
            let handles = opens.handles.clone();
            let known = |fh| Some(OpenHandle::new(fh, &*self.handles.get(fh)?, &mut opens));
            open.extend(handles.into_iter().filter_map(known));
        }
        open
    }

    /// Goes on where another node ended.
    pub(crate) fn resume(&self, handed_over: &HandOverState) -> Result<()> {
        let open = handed_over.open_inodes();
        if handed_over.at_rest {
            self.release_orphans(&open)?;
            self.residency.troubles.set_lost(handed_over.lost.iter().copied());
            self.residency.count_set_aside();
            self.residency.begin_removal_notes();
            for object in &handed_over.residents {
                self.take_over_object(object)?;
            }
        } else {
            // Removed files may still be opened by whoever has looked them up.
            let orphans = self.meta.orphans()?;
            self.recover(&orphans.iter().copied().collect())?;
            orphans.into_iter().filter(|ino| !open.contains(ino)).for_each(|ino| self.linger(ino));
        }
        let mut adopted = Vec::with_capacity(handed_over.handles.len());
        for open in &handed_over.handles {
            match self.take_over_handle(open) {
                Ok(handle) => adopted.push((open.fh, handle)),
                Err(error) if handed_over.at_rest => return Err(error),
                Err(error) => tracing::error!(ino = open.ino, %error, "an open file is lost"),
            }
        }
        tracing::info!(open = adopted.len(), at_rest = handed_over.at_rest, "taken over");
        self.handles.adopt(adopted);
        self.watch_taken_over(handed_over);
        self.take_over_locks(handed_over);
        self.take_over_streams(handed_over);
        for &ino in &handed_over.replaced {
            self.linger(Ino(ino));
        }
        for removed_inodes in &handed_over.removed_inodes {
            if let Some(attr) = removed_inodes.attr() {
                self.names.removed_inodes.remember(Ino(removed_inodes.ino), attr);
                let pairs = removed_inodes.xattrs.as_chunks::<2>().0.iter();
                let xattrs = pairs.map(|[name, value]| (name.clone(), value.clone())).collect();
                self.names.removed_inodes.remember_xattrs(Ino(removed_inodes.ino), xattrs);
            }
        }
        Ok(())
    }

    fn take_over_object(&self, object: &ResidentObject) -> Result<()> {
        let &ResidentObject { ino, tier, whole, dirty, charged } = object;
        let (Ok(index), Some(slot)) = (u8::try_from(tier), self.residency.tiers.get(tier as usize))
        else {
            return Err(NodeError::Config(format!("there is no tier number {tier}")));
        };
        slot.room.force(charged);
        let resident = Resident { tier: index, whole, dirty, charged };
        self.residency.residents.set(ino, resident);
        self.tell_steward(ino, resident);
        Ok(())
    }

    fn take_over_handle(&self, open: &OpenHandle) -> Result<Handle> {
        let file = self.residency.files.get(Ino(open.ino));
        if let Some(handle) = self.take_over_remote(&file, open)? {
            return Ok(handle);
        }
        self.residency.load(&Context::DAEMON, &file)?;
        let location = file.location.read();
        let mode = open.open_mode();
        let mut opens = file.opens.lock();
        opens.count += 1;
        opens.writers += u32::from(open.write);
        opens.handles.push(open.fh);
        let place = location.place.as_ref();
        let here = place.map_or(0, |place| object_id(place.object.fd()));
        let how = Shown { cached: matches!(mode, OpenMode::Cached { .. }), remote: false };
        let registered = mode.registration().map(|id| (id, open.bypass, open.object));
        opens.adopt(open.alias(), how, registered, here)?;
        if let (Some((_, false, _)), Some(place)) = (registered, place) {
            place.passed.store(true, Ordering::Release);
            if open.write {
                self.residency.mark_dirty(&file, place)?;
            }
        }
        if open.write {
            file.count_write();
        }
        let promised = location.place.as_ref().zip(open.promised).and_then(|(place, bytes)| {
            let room = &self.residency.tiers[usize::from(place.tier)].room;
            room.promise(bytes).then_some((place.tier, bytes))
        });
        if opens.count == 1 {
            self.residency.decide_later(Event::Busy { object: Ino(open.ino) });
        }
        drop((opens, location));
        let mut handle = Handle::new(file, open.write, mode, promised);
        handle.append = open.append;
        handle.durably = open.durably;
        handle.keeps_set_ids = open.keeps_set_ids;
        handle.alias = open.alias();
        Ok(handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_meta::FileKind;

    #[test]
    fn next_generation_when_handles_are_old_then_none_of_theirs() {
        let handle =
            |generation: u64| OpenHandle { fh: generation << 52 | 7, ..Default::default() };
        let handed_over = HandOverState {
            generation: u32::from(GENERATIONS) - 1,
            handles: vec![handle(0), handle(1), handle(3)],
            ..HandOverState::default()
        };
        assert_eq!(handed_over.next_generation(), 2);
        assert_eq!(HandOverState::default().next_generation(), 1);
    }

    #[test]
    fn departed_when_handed_on_then_all_attributes_are_there() {
        let time = |sec| Timestamp::new(sec, 999_999_999);
        let attr = Attr {
            kind: FileKind::Directory,
            perm: 0o1777,
            uid: 1,
            gid: 2,
            nlink: 0,
            rdev: 3,
            size: 4,
            atime: time(-5),
            mtime: time(6),
            ctime: time(7),
            btime: time(8),
        };
        let bytes = RemovedInode::new(9, &attr).encode_to_vec();
        let back = RemovedInode::decode(&bytes[..]).expect("decodes");
        assert_eq!((back.ino, back.attr()), (9, Some(attr)));
        assert_eq!(RemovedInode::default().attr(), None);
    }
}
