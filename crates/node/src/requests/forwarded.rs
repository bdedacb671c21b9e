//! Requests about files that another node owns and whose programs may write them: they are carried out
//! by that node, so that nobody loses what somebody else wrote.
//!
//! A handle of such a file keeps in mind who the owner is. The owner carries out each read, write and
//! change of length as if one of its own programs had asked. When it says that it does not own the
//! file any more, or can't be asked, the record tells who does: perhaps nobody, and then this node
//! takes the file over and the handle goes on as one of a file that is here.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_meta::Incarnation;
use forebay_peer::message::{Position, Read, Sync, Truncate, Write, WriteBack};
use forebay_peer::{Body, Client, Error as PeerError};
use forebay_types::Ino;
use prost::Message;
use rustix::io::Errno;

use crate::cluster::forwarding::{LOOK, LOOKED, Look, Looked, PAUSE, WITHIN, within};
use crate::cluster::replay_cache::Asking;
use crate::cluster::{AccessMode, Cluster};
use crate::config::{Durability, WritebackPolicy};
use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::handles::{Handle, OpenMode, Opened, Remote};
use crate::namespace::perm_after_write;
use crate::node::Node;
use crate::requests::open::{Use, check_alias};
use crate::residency::files::FileRef;
use crate::residency::inode_alias::Use as Shown;

impl Node {
    /// Opens a file through its owner.
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
        (handle.durably, handle.keeps_set_ids) = (how.durably(), how.uid == 0);
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
        file.cluster.remote_opens.fetch_add(1, Ordering::AcqRel);
        if opens.count == 1 {
            let object = file.ino;
            self.residency.decide(forebay_core::steward::Event::Busy { object });
        }
        self.tell_cluster(|cluster| cluster.pages_replaced(file));
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
        let Some(cluster) = &self.cluster else { return Ok(None) };
        self.ask_owners(context, handle, |owner, until| {
            match cluster.tell_given_up(owner, handle.file.ino, until) {
                true => cluster.call_owner(owner, |client| call(client, owner, within(until))),
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
        let Some(cluster) = self.cluster.as_ref().filter(|_| handle.remote.is_on()) else {
            return Ok(None);
        };
        context.wait()?;
        let until = Instant::now() + cluster.timeout();
        loop {
            let Some(owner) = *handle.remote.owner.lock() else { return Ok(None) };
            if let Some(done) = ask(owner, until)? {
                return Ok(Some(done));
            }
            if !cluster.is_still_owned(handle.file.ino, owner) {
                self.find_owner(context, cluster, handle, owner)?;
            }
            if Instant::now() >= until {
                return Err(Errno::HOSTDOWN.into());
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The owner that a handle knew is not it any more, perhaps: finds out who is.
    fn find_owner(
        &self,
        context: &Context,
        cluster: &Cluster,
        handle: &Handle,
        before: Incarnation,
    ) -> Result<()> {
        let file = &handle.file;
        let mut owner = handle.remote.owner.lock();
        if *owner != Some(before) {
            return Ok(());
        }
        let pin = match cluster.newest(context, file.ino, handle.write)? {
            (_, AccessMode::Forwarded(now)) => {
                *owner = Some(now);
                return Ok(());
            }
            (_, AccessMode::Pinned(pin)) => Some(pin),
            (_, AccessMode::Read) => None,
        };
        let record = self.meta.get_settled(file.ino)?;
        if cluster.is_out_of_reach(&record) {
            // Another node has got it since: it is asked for once more.
            return Ok(());
        }
        cluster.match_version(context, file, &record)?;
        self.prepare(context, file, &self.residency.as_seen_here(&record), handle.write)?;
        if let Some(pin) = pin {
            pin.keep();
            handle.held.store(true, Ordering::Release);
        }
        *owner = None;
        handle.remote.on.store(false, Ordering::Release);
        Ok(())
    }

    /// [`Node::read`] through the owner.
    pub(crate) fn read_forwarded(
        &self,
        context: &Context,
        handle: &Handle,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<Option<usize>> {
        let Some(cluster) = &self.cluster else { return Ok(None) };
        if let Some(read) = cluster.read_by_fragments(context, handle, offset, buffer)? {
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

    /// [`Node::write`] through the owner.
    pub(crate) fn write_forwarded(
        &self,
        context: &Context,
        handle: &Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<Option<usize>> {
        let Some(cluster) = self.cluster.as_ref().filter(|_| handle.remote.is_on()) else {
            return Ok(None);
        };
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
        let mut asking = Asking::new(cluster, ino, handle.append);
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

    /// [`Node::fsync`] through the owner; false if the file is here.
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
        let timeout = self.cluster().map_or(WITHIN, Cluster::timeout);
        let written = self.by_owner(context, handle, |client, owner, _| {
            client.write_back(WriteBack { ino, epoch: owner.epoch }, timeout)
        })?;
        Ok(written.is_some())
    }

    /// [`Node::flush`] through the owner; false if the file is here.
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

    /// How long a file is that is open through its owner; `None` if it is here.
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

    /// Sets the length of a file, here or through its owner.
    pub(crate) fn truncate_anywhere(&self, context: &Context, ino: Ino, size: u64) -> Result<()> {
        let Some(cluster) = &self.cluster else {
            return self.truncate(context, &self.meta.get(ino)?, size);
        };
        context.wait()?;
        let mut asking = Asking::new(cluster, ino, false);
        let done = self.truncate_asking(context, cluster, size, ino, &mut asking);
        asking.close(done.map(Some)).map(drop)
    }

    fn truncate_asking(
        &self,
        context: &Context,
        cluster: &Cluster,
        size: u64,
        ino: Ino,
        asking: &mut Asking<'_>,
    ) -> Result<()> {
        let until = Instant::now() + cluster.timeout();
        loop {
            let (record, mode) = cluster.newest(context, ino, true)?;
            let AccessMode::Forwarded(owner) = mode else {
                cluster.match_version(context, &self.residency.files.get(ino), &record)?;
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
}
