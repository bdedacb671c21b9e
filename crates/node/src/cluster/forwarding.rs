//! Files that another node owns and whose programs may write them: read and written by way of that
//! node, so that nobody loses what somebody else wrote.
//!
//! A handle of such a file keeps in mind who the owner is. The owner carries out each read, write and
//! change of length as if one of its own programs had asked. When it says that it does not own the
//! file any more, or can't be asked, the record tells who does: perhaps nobody, and then this node
//! takes the file over and the handle goes on as one of a file that is here.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_meta::{Attr, Error as MetaError, Incarnation, RecallAim, Record};
use forebay_peer::message::{
    Fault, Position, Read, Recall, RecallKind, Sync, Truncate, Write, WriteBack,
};
use forebay_peer::{Body, Client, Error as PeerError};
use forebay_types::{Ino, Timestamp};
use parking_lot::Mutex;
use prost::Message;
use rustix::io::Errno;

use super::replay_cache::Asking;
use super::{AccessMode, Cluster};
use crate::config::{Durability, WritebackPolicy};
use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::failpoints::fail_at;
use crate::namespace::perm_after_write;
use crate::node::Node;
use crate::requests::handle::{Handle, OpenMode, Opened};
use crate::requests::open::{Use, check_alias};
use crate::residency::files::FileRef;
use crate::residency::inode_alias::Use as Shown;

/// How is the file now?
pub(super) const LOOK: u32 = 16;
/// The longest answer to that, in bytes.
const LOOKED: u32 = 4096;
/// The longest that a call of another node may take.
pub(super) const WITHIN: Duration = Duration::from_secs(15);
/// The shortest: what is left of a caller's timeout may be less than a round trip.
const LEAST: Duration = Duration::from_millis(500);
/// Between two attempts to find out who owns a file.
const PAUSE: Duration = Duration::from_millis(10);
/// Attempts of an owner at what others change in the metadata at the same time.
const ATTEMPTS: u32 = 8;

/// Asks the owner how a file is.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Look {
    #[prost(fixed64, tag = "1")]
    pub ino: u64,
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// All are to see what was written until now.
    #[prost(bool, tag = "3")]
    pub settle: bool,
    /// The record has times that were set: the bytes follow.
    #[prost(bool, tag = "4")]
    pub atime: bool,
    #[prost(bool, tag = "5")]
    pub mtime: bool,
    /// What was written is to be as safe as after a close.
    #[prost(bool, tag = "6")]
    pub safe: bool,
}

/// How a file is at its owner.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Looked {
    #[prost(uint64, tag = "1")]
    pub size: u64,
    #[prost(int64, tag = "2")]
    pub mtime: i64,
    #[prost(uint32, tag = "3")]
    pub mtime_nsec: u32,
    #[prost(int64, tag = "4")]
    pub ctime: i64,
    #[prost(uint32, tag = "5")]
    pub ctime_nsec: u32,
    /// The backing store does not have all of it.
    #[prost(bool, tag = "6")]
    pub behind: bool,
}

/// By way of whom an open file is read and written, if not here.
#[derive(Default)]
pub(crate) struct Remote {
    on: AtomicBool,
    owner: Mutex<Option<Incarnation>>,
}

impl Remote {
    pub(super) fn by(owner: Incarnation) -> Self {
        Remote { on: AtomicBool::new(true), owner: Mutex::new(Some(owner)) }
    }

    /// By way of whom the file is read and written, if not here.
    pub(crate) fn owner(&self) -> Option<Incarnation> {
        if self.is_on() { *self.owner.lock() } else { None }
    }

    /// Whether the file is read and written by way of another node. If not now, never again.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }
}

/// What another node asks an owner for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Service {
    /// To see how the file is.
    Look,
    /// The same, and that it keeps the file meanwhile.
    Keep,
    /// To change it.
    Change,
}

/// What came of asking an owner to give a file up.
pub(super) enum Recalled {
    /// It has.
    Given,
    /// Its programs can write it.
    InUse,
    /// It can't be asked at the moment.
    Away,
    /// It can't be asked.
    Unknown,
}

/// Whether a failure may be over in a moment: nobody was there, or was about to leave.
fn passes(error: &PeerError) -> bool {
    let fault = matches!(error, PeerError::Fault(Fault::Closing));
    fault
        || matches!(
            error,
            PeerError::Lost { .. } | PeerError::Connect { .. } | PeerError::Resting { .. }
        )
}

pub(super) fn errno(raw: i32) -> NodeError {
    Errno::from_raw_os_error(raw).into()
}

/// What a failed call means that may be made again at any time: that it is, perhaps of another owner,
/// or an error.
fn judge<T>(answer: Result<T, PeerError>) -> Result<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(PeerError::Fault(Fault::Io { errno: raw })) => Err(errno(raw)),
        Err(PeerError::Fault(Fault::NoSpace)) => Err(Errno::NOSPC.into()),
        Err(PeerError::Lost { .. } | PeerError::TimedOut { .. }) => Ok(None),
        Err(error) if error.not_done() => Ok(None),
        Err(error) => {
            tracing::warn!(%error, "the owner of a file has not answered as it should");
            Err(Errno::IO.into())
        }
    }
}

/// How long a call may take of somebody who waits until a moment.
pub(super) fn within(until: Instant) -> Duration {
    WITHIN.min(until.saturating_duration_since(Instant::now())).max(LEAST)
}

/// Does for another node what changes the metadata, and does no harm if it is done twice; again if others
/// changed the same at that moment.
fn steadily<T>(mut work: impl FnMut() -> Result<T>) -> Result<T> {
    let mut attempt = 1;
    loop {
        let done = (|| {
            fail::fail_point!("node.owner.attempt", |_| Err(MetaError::Conflict(1).into()));
            work()
        })();
        match done {
            Err(NodeError::Meta(MetaError::Conflict(_))) if attempt < ATTEMPTS => {
                std::thread::sleep(PAUSE * attempt);
                attempt += 1;
            }
            done => return done,
        }
    }
}

impl Node {
    /// Asks the owner of a file for something that may be done any number of times; `None` if it does
    /// not own it, or can't be asked.
    fn call_owner<T>(
        &self,
        owner: Incarnation,
        call: impl FnOnce(&Client) -> Result<T, PeerError>,
    ) -> Result<Option<T>> {
        let client = self.cluster.as_ref().and_then(|cluster| self.peer(cluster, owner.node));
        client.map_or(Ok(None), |client| judge(call(&client)))
    }

    /// Whether a node that can't be asked may be back in a moment: its daemon is being replaced, or was
    /// started again.
    pub(super) fn may_come_back(&self, who: Incarnation) -> bool {
        let talks = |cluster: &Cluster| self.peer(cluster, who.node).is_some();
        self.cluster.as_ref().is_some_and(|cluster| !cluster.is_dead(who) && talks(cluster))
    }

    /// Asks the owner to give a file up.
    pub(super) fn recall(
        &self,
        cluster: &Cluster,
        ino: Ino,
        owner: Incarnation,
    ) -> Result<Recalled> {
        let Some(client) = self.peer(cluster, owner.node) else { return Ok(Recalled::Unknown) };
        let recall = Recall { ino: ino.0, epoch: owner.epoch, kind: RecallKind::Ownership };
        match client.recall(recall, cluster.config.timeout) {
            Ok(()) => Ok(Recalled::Given),
            Err(error) if passes(&error) && self.may_come_back(owner) => Ok(Recalled::Away),
            Err(PeerError::Fault(Fault::Locked)) => Ok(Recalled::InUse),
            Err(PeerError::Fault(Fault::Io { errno: raw })) => Err(errno(raw)),
            Err(error) => {
                tracing::debug!(%ino, %owner, %error, "the owner of a file can't be asked");
                Ok(Recalled::Unknown)
            }
        }
    }

    /// How a file is at its owner; `None` if that one can't be asked.
    pub(super) fn look_forwarded(&self, owner: Incarnation, look: &Look) -> Option<Looked> {
        let look = Look { epoch: owner.epoch, ..look.clone() };
        let body = Body::Bytes(look.encode_to_vec());
        let timeout = self.cluster.as_ref().map_or(WITHIN, |cluster| cluster.config.timeout);
        let until = Instant::now() + timeout;
        loop {
            let call = |client: &Client| client.other(LOOK, &body, LOOKED, within(until));
            match self.call_owner(owner, call).ok()? {
                Some(looked) => return Looked::decode(&*looked).ok(),
                None if !self.is_still_owned(Ino(look.ino), owner) || Instant::now() >= until => {
                    return None;
                }
                None => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Whether an owner that was not there is one still, and may be back in a moment.
    fn is_still_owned(&self, ino: Ino, owner: Incarnation) -> bool {
        self.may_come_back(owner)
            && self.meta.get_now(ino).is_ok_and(|record| record.owner == Some(owner))
    }

    /// Opens a file by way of its owner.
    pub(crate) fn open_forwarded(
        &self,
        context: &Context,
        file: &FileRef,
        owner: Incarnation,
        how: Use,
    ) -> Result<Opened> {
        if how.flags & libc::O_TRUNC != 0 {
            self.truncate_anywhere(context, file.ino, 0)?;
        }
        let write = how.writes();
        // What is written must come here at once; what is read may stay until the next open.
        let mode = if write { OpenMode::Direct } else { OpenMode::Cached { keep: false } };
        let mut handle = Handle::new(file.clone(), write, mode, None);
        handle.append = write && how.flags & libc::O_APPEND != 0;
        handle.held = AtomicBool::new(false);
        handle.remote = Remote::by(owner);
        let mut opens = file.opens.lock();
        // What those see who read it here is not what the owner has.
        if !opens.now.remote {
            opens.turn()?;
        }
        check_alias(&mut opens, how)?;
        let alias = opens.now.number;
        handle.alias = alias;
        let fh = self.handles.insert(handle).ok_or(NodeError::Posix(Errno::NFILE))?;
        opens.count += 1;
        opens.writers += u32::from(write);
        opens.now.enter(Shown { cached: !write, remote: true });
        opens.handles.push(fh);
        file.remote_opens.fetch_add(1, Ordering::AcqRel);
        if opens.count == 1 {
            let object = file.ino;
            self.residency.decide(forebay_core::steward::Event::Busy { object });
        }
        self.pages_replaced(file);
        Ok(Opened { fh, mode, alias, dir: None })
    }

    /// Has the owner do something to an open file that may be done any number of times; `None` if the
    /// file is here now.
    fn by_owner<T>(
        &self,
        context: &Context,
        handle: &Handle,
        call: impl Fn(&Client, Incarnation, Duration) -> Result<T, PeerError>,
    ) -> Result<Option<T>> {
        self.ask_owners(context, handle, |owner, until| {
            let cluster = self.cluster.as_ref();
            let told = |cluster| self.tell_given_up(cluster, owner, handle.file.ino, until);
            match cluster.is_none_or(told) {
                true => self.call_owner(owner, |client| call(client, owner, within(until))),
                false => Ok(None),
            }
        })
    }

    /// Asks whoever owns an open file until he answers; `None` if the file is here now.
    fn ask_owners<T>(
        &self,
        context: &Context,
        handle: &Handle,
        mut ask: impl FnMut(Incarnation, Instant) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        if !handle.remote.is_on() {
            return Ok(None);
        }
        context.wait()?;
        let timeout = self.cluster.as_ref().map_or(WITHIN, |cluster| cluster.config.timeout);
        let until = Instant::now() + timeout;
        loop {
            let Some(owner) = *handle.remote.owner.lock() else { return Ok(None) };
            if let Some(done) = ask(owner, until)? {
                return Ok(Some(done));
            }
            if !self.is_still_owned(handle.file.ino, owner) {
                self.find_owner(context, handle, owner)?;
            }
            if Instant::now() >= until {
                return Err(Errno::HOSTDOWN.into());
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The owner that a handle knew is not it any more, perhaps: finds out who is.
    fn find_owner(&self, context: &Context, handle: &Handle, before: Incarnation) -> Result<()> {
        let file = &handle.file;
        let mut owner = handle.remote.owner.lock();
        if *owner != Some(before) {
            return Ok(());
        }
        let hold = match self.newest(context, file.ino, handle.write)? {
            (_, AccessMode::Forwarded(now)) => {
                *owner = Some(now);
                return Ok(());
            }
            (_, AccessMode::Pinned(hold)) => Some(hold),
            (_, AccessMode::Read) => None,
        };
        let record = self.meta.get_settled(file.ino)?;
        if self.is_out_of_reach(&record) {
            // Another node has got it since: it is asked for once more.
            return Ok(());
        }
        self.match_version(context, file, &record)?;
        self.prepare(context, file, &self.residency.as_seen_here(&record), handle.write)?;
        if let Some(hold) = hold {
            hold.keep();
            handle.held.store(true, Ordering::Release);
        }
        *owner = None;
        handle.remote.on.store(false, Ordering::Release);
        Ok(())
    }

    /// [`Node::read`] by way of the owner.
    pub(crate) fn read_forwarded(
        &self,
        context: &Context,
        handle: &Handle,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<Option<usize>> {
        if let Some(read) = self.read_by_fragments(context, handle, offset, buffer)? {
            return Ok(Some(read));
        }
        let ino = handle.file.ino.0;
        let len = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
        let read = self.by_owner(context, handle, |client, _, within| {
            client.read(Read { ino, version: None, offset, len }, within)
        })?;
        Ok(read.map(|(_, bytes)| {
            let read = bytes.len().min(buffer.len());
            buffer[..read].copy_from_slice(&bytes[..read]);
            self.metrics.bytes.of(crate::metrics::Source::Owner).add(read as u64);
            read
        }))
    }

    /// [`Node::write`] by way of the owner.
    pub(crate) fn write_forwarded(
        &self,
        context: &Context,
        handle: &Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<Option<usize>> {
        if !handle.remote.is_on() {
            return Ok(None);
        }
        context.wait()?;
        let ino = handle.file.ino;
        if context.uid != 0 {
            let record = self.meta.get(ino)?;
            if perm_after_write(context, &record.attr) != record.attr.perm {
                self.kill_set_ids(context, ino)?;
            }
        }
        let at = if handle.append { Position::End } else { Position::At(offset) };
        let body = Body::Bytes(data.to_vec());
        // Should the owner forget what it has done, a write at a place may be made twice; at the end it
        // would be there twice.
        let mut asking = Asking::new(self, ino, handle.append);
        let written = self.ask_owners(context, handle, |owner, until| {
            asking.ask(owner, until, |client, turn, within| {
                let write = Write { ino: ino.0, epoch: owner.epoch, at, sync: false, turn };
                client.write(write, &body, within)
            })
        });
        let written = asking.close(written)?;
        Ok(written.map(|_| {
            self.metrics.bytes.of(crate::metrics::Source::Owner).add(data.len() as u64);
            data.len()
        }))
    }

    /// [`Node::fsync`] by way of the owner; false if the file is here.
    pub(crate) fn sync_forwarded(
        &self,
        context: &Context,
        handle: &Handle,
        data_only: bool,
    ) -> Result<bool> {
        let ino = handle.file.ino.0;
        let synced = self.by_owner(context, handle, |client, owner, within| {
            client.sync(Sync { ino, epoch: owner.epoch, data_only }, within)
        })?;
        let back = self.config.durability == Durability::Backing
            || self.config.writeback == WritebackPolicy::Through;
        Ok(synced.is_some() && (!back || self.write_back_forwarded(context, handle)?))
    }

    fn write_back_forwarded(&self, context: &Context, handle: &Handle) -> Result<bool> {
        let ino = handle.file.ino.0;
        let timeout = self.cluster.as_ref().map_or(WITHIN, |cluster| cluster.config.timeout);
        let written = self.by_owner(context, handle, |client, owner, _| {
            client.write_back(WriteBack { ino, epoch: owner.epoch }, timeout)
        })?;
        Ok(written.is_some())
    }

    /// [`Node::flush`] by way of the owner; false if the file is here.
    pub(crate) fn flush_forwarded(&self, context: &Context, handle: &Handle) -> Result<bool> {
        let ino = handle.file.ino.0;
        let look = Look { ino, settle: true, safe: true, ..Look::default() };
        let looked = self.by_owner(context, handle, |client, owner, within| {
            let look = Look { epoch: owner.epoch, ..look.clone() };
            client.other(LOOK, &Body::Bytes(look.encode_to_vec()), LOOKED, within)
        })?;
        let through = self.config.writeback == WritebackPolicy::Through;
        Ok(looked.is_some() && (!through || self.write_back_forwarded(context, handle)?))
    }

    /// How long a file is that is open by way of its owner; `None` if it is here.
    pub(crate) fn length_forwarded(
        &self,
        context: &Context,
        handle: &Handle,
    ) -> Result<Option<u64>> {
        let look = Look { ino: handle.file.ino.0, ..Look::default() };
        let looked = self.by_owner(context, handle, |client, owner, within| {
            let look = Look { epoch: owner.epoch, ..look.clone() };
            client.other(LOOK, &Body::Bytes(look.encode_to_vec()), LOOKED, within)
        })?;
        let Some(bytes) = looked else { return Ok(None) };
        Looked::decode(&*bytes).map(|looked| Some(looked.size)).map_err(|_| Errno::IO.into())
    }

    /// Sets the length of a file, here or by way of its owner.
    pub(crate) fn truncate_anywhere(&self, context: &Context, ino: Ino, size: u64) -> Result<()> {
        context.wait()?;
        let mut asking = Asking::new(self, ino, false);
        let done = self.truncate_asking(context, size, ino, &mut asking);
        asking.close(done.map(Some)).map(drop)
    }

    fn truncate_asking(
        &self,
        context: &Context,
        size: u64,
        ino: Ino,
        asking: &mut Asking<'_>,
    ) -> Result<()> {
        let timeout = self.cluster.as_ref().map_or(WITHIN, |cluster| cluster.config.timeout);
        let until = Instant::now() + timeout;
        loop {
            let (record, right) = self.newest(context, ino, true)?;
            let AccessMode::Forwarded(owner) = right else {
                self.match_version(context, &self.residency.files.get(ino), &record)?;
                return self.truncate(context, &record, size);
            };
            let done = asking.ask(owner, until, |client, turn, within| {
                client.truncate(Truncate { ino: ino.0, epoch: owner.epoch, size, turn }, within)
            })?;
            if done.is_some() {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(Errno::HOSTDOWN.into());
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The owner learns that times of a file were set.
    ///
    /// # Errors
    /// `EHOSTDOWN` if it can't be told, and would put its own over them.
    pub(crate) fn times_forwarded(
        &self,
        owner: Incarnation,
        ino: Ino,
        (atime, mtime): (bool, bool),
    ) -> Result<()> {
        let look = Look { ino: ino.0, atime, mtime, ..Look::default() };
        if !atime && !mtime
            || self.look_forwarded(owner, &look).is_some()
            || self.meta.get_now(ino)?.owner != Some(owner)
        {
            return Ok(());
        }
        Err(Errno::HOSTDOWN.into())
    }

    /// The attributes of a file that a program has open here by way of its owner, as they are there.
    ///
    /// # Errors
    /// `EHOSTDOWN` if the owner does not answer: the record may be of before what was written by way of
    /// it.
    pub(crate) fn attr_forwarded(
        &self,
        context: &Context,
        record: &Record,
    ) -> Result<Option<Attr>> {
        let Some(cluster) = &self.cluster else { return Ok(None) };
        let elsewhere = |record: &Record| record.owner.filter(|_| self.is_elsewhere(record));
        let Some(mut owner) = elsewhere(record) else { return Ok(None) };
        let ino = record.ino;
        let through = |file: &FileRef| file.remote_opens.load(Ordering::Acquire) > 0;
        if !self.residency.files.peek(ino).is_some_and(|file| through(&file)) {
            return Ok(None);
        }
        context.wait()?;
        let until = Instant::now() + cluster.config.timeout;
        let look = Look { ino: ino.0, ..Look::default() };
        loop {
            if let Some(looked) = self.look_forwarded(owner, &look) {
                return Ok(Some(Attr {
                    size: looked.size,
                    mtime: Timestamp::new(looked.mtime, looked.mtime_nsec),
                    ctime: Timestamp::new(looked.ctime, looked.ctime_nsec),
                    ..record.attr.clone()
                }));
            }
            let now = self.meta.get_now(ino)?;
            match elsewhere(&now) {
                None => return Ok(Some(self.residency.live_attr(&now).0)),
                Some(same) if same == owner => {
                    if self.is_read_by_fragments(cluster, ino, owner)? {
                        return Ok(Some(now.attr.clone()));
                    }
                    let silent = cluster.is_silent(owner.node);
                    if silent && self.have_taken_over(cluster, ino, owner)? {
                        continue;
                    }
                    let waits = now.copied || self.may_come_back(owner);
                    if Instant::now() >= until || !waits {
                        return Err(Errno::HOSTDOWN.into());
                    }
                }
                Some(next) if Instant::now() < until => owner = next,
                Some(_) => return Err(Errno::HOSTDOWN.into()),
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Whether another node has to be asked to write a file back before it is opened for reading
    /// here; else by way of whom it is read, if not here.
    pub(super) fn read_right(
        &self,
        cluster: &Cluster,
        ino: Ino,
        owner: Incarnation,
        until: Instant,
    ) -> Result<AccessMode<'_>> {
        let look = Look { ino: ino.0, settle: true, ..Look::default() };
        match self.look_forwarded(owner, &look) {
            Some(looked) if looked.behind => Ok(AccessMode::Forwarded(owner)),
            Some(_) => Ok(AccessMode::Read),
            None if self.is_read_by_fragments(cluster, ino, owner)? => {
                Ok(AccessMode::Forwarded(owner))
            }
            None => self
                .ask_owner(cluster, ino, owner, RecallAim::Bytes, until)
                .map(|()| AccessMode::Read),
        }
    }
}

/// What the owner does for others.
impl Node {
    /// The record of a file that this node owns, as it is `now` or was a moment ago.
    fn owned(
        &self,
        cluster: &Cluster,
        ino: Ino,
        now: bool,
    ) -> Result<std::sync::Arc<Record>, Fault> {
        match if now { self.meta.get_now(ino) } else { self.meta.get(ino) } {
            Ok(record) if cluster.is_mine(&record) => Ok(record),
            Ok(record) => {
                let owner = record.owner.map(|owner| owner.node.into());
                Err(Fault::NotOwner { owner })
            }
            Err(MetaError::Stale(_)) => Err(Fault::NotOwner { owner: None }),
            Err(error) => Err(super::serve::fault(error.into())),
        }
    }

    /// Carries out what another node asks for about a file that this one owns.
    fn as_owner<T>(
        &self,
        cluster: &Cluster,
        (ino, epoch): (Ino, u64),
        kind: Service,
        work: impl FnOnce(&FileRef, &std::sync::Arc<Record>) -> Result<T>,
    ) -> Result<T, Fault> {
        if epoch != cluster.me.epoch {
            return Err(Fault::WrongEpoch { epoch: cluster.me.epoch });
        }
        let change = kind == Service::Change;
        let hold = match kind {
            Service::Look => None,
            Service::Keep | Service::Change => {
                // What is cached may be from before it was given up.
                let is_mine = || self.owned(cluster, ino, true).map(drop);
                Some(self.hold_owned(cluster, ino, is_mine)?)
            }
        };
        let record = self.owned(cluster, ino, false)?;
        let file = self.residency.files.get(ino);
        let in_use = crate::requests::open::InUse::new(&file);
        let ready = steadily(|| {
            self.match_version(&Context::DAEMON, &file, &record)?;
            self.residency.load(&Context::DAEMON, &file)
        });
        let done = ready.and_then(|()| work(&file, &record));
        drop(in_use);
        let unused = change && file.opens.lock().writers == 0;
        let closed = if unused { steadily(|| self.settle_unused(&file)) } else { Ok(()) };
        if change {
            self.pages_replaced(&file);
            // Also without anybody who has it open the kernel may know its length and times.
            self.residency.forget_object(ino, file.is_open());
        }
        drop(hold);
        done.and_then(|done| closed.map(|()| done)).map_err(super::serve::fault)
    }

    /// What is due after another node has changed a file that no program here has open.
    fn settle_unused(&self, file: &FileRef) -> Result<()> {
        match self.meta.get(file.ino) {
            Ok(record) if record.orphan => {
                self.last_close(file);
                Ok(())
            }
            _ => self.residency.settle(file),
        }
    }

    pub(super) fn read_as_owner(&self, cluster: &Cluster, read: &Read) -> Result<Vec<u8>, Fault> {
        let about = (Ino(read.ino), cluster.me.epoch);
        self.as_owner(cluster, about, Service::Look, |file, _| {
            fail_at!("node.owner.read");
            let mut bytes = vec![0; read.len as usize];
            let location = file.location.read();
            let got = self.read_with_gaps(file, &location, read.offset, &mut bytes)?;
            bytes.truncate(got);
            Ok(bytes)
        })
    }

    pub(super) fn write_as_owner(
        &self,
        cluster: &Cluster,
        write: &Write,
        bytes: &[u8],
    ) -> Result<(u64, u64), Fault> {
        self.as_owner(cluster, (Ino(write.ino), write.epoch), Service::Change, |file, record| {
            if file.location.read().place.is_none() {
                steadily(|| self.prepare(&Context::DAEMON, file, record, true))?;
            }
            let write_to = |at| self.write_to(&Context::DAEMON, file, at, bytes);
            let (offset, _) = match write.at {
                Position::At(offset) => steadily(|| write_to(Some(offset)))?,
                // It would be there twice.
                Position::End => write_to(None)?,
            };
            if write.sync {
                steadily(|| self.residency.sync_file(file, false))?;
            }
            fail::fail_point!("node.owner.written");
            Ok((offset, self.length_now(&Context::DAEMON, file)?))
        })
    }

    pub(super) fn truncate_as_owner(
        &self,
        cluster: &Cluster,
        truncate: &Truncate,
    ) -> Result<(), Fault> {
        let about = (Ino(truncate.ino), truncate.epoch);
        self.as_owner(cluster, about, Service::Change, |_, record| {
            steadily(|| self.truncate(&Context::DAEMON, record, truncate.size))
        })
    }

    pub(super) fn sync_as_owner(&self, cluster: &Cluster, sync: &Sync) -> Result<(), Fault> {
        self.as_owner(cluster, (Ino(sync.ino), sync.epoch), Service::Keep, |file, _| {
            steadily(|| {
                self.residency.settle(file)?;
                self.safeguard(file)?;
                self.residency.sync_file(file, sync.data_only)
            })
        })
    }

    pub(super) fn look_as_owner(&self, cluster: &Cluster, bytes: &[u8]) -> Result<Looked, Fault> {
        let look = Look::decode(bytes).map_err(|error| Fault::Invalid(error.to_string()))?;
        let ino = Ino(look.ino);
        // Copies are made of a file that is owned until they are known.
        let kind = if look.safe { Service::Keep } else { Service::Look };
        self.as_owner(cluster, (ino, look.epoch), kind, |file, record| {
            if look.atime || look.mtime {
                let now = self.meta.get_now(ino)?;
                let times = forebay_meta::Times {
                    atime: look.atime.then_some(now.attr.atime),
                    mtime: look.mtime.then_some(now.attr.mtime),
                    ..Default::default()
                };
                let one_at_a_time = file.times.lock();
                self.residency.set_object_times(file, times);
                drop(one_at_a_time);
                self.attributes_changed(&now);
                self.residency.forget_object(ino, false);
            }
            if look.settle {
                steadily(|| self.residency.settle(file))?;
            }
            if look.safe {
                steadily(|| self.safeguard(file))?;
            }
            let (attr, _) = self.residency.live_attr(record);
            let record = self.meta.get(ino)?;
            let dirty = self.residency.residents.get(ino.0).is_some_and(|resident| resident.dirty);
            let behind =
                dirty || record.dirty || record.spilled || record.backing.fingerprint.is_none();
            let (mtime, ctime) = (attr.mtime, attr.ctime);
            Ok(Looked {
                size: attr.size,
                mtime: mtime.sec,
                mtime_nsec: mtime.nsec,
                ctime: ctime.sec,
                ctime_nsec: ctime.nsec,
                behind,
            })
        })
    }
}
