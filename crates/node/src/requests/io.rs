//! Reading and writing open files.

use std::sync::atomic::Ordering;

use forebay_meta::Teller;
use rustix::io::Errno;

use crate::cluster::Cluster;
use crate::config::{Durability, WritebackPolicy};
use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::handles::OpenMode;
use crate::metrics::Source;
use crate::node::Node;
use crate::patterns::Accessor;
use crate::residency::Residency;
use crate::residency::charge::STEP;
use crate::residency::data_location::{DataLocation, TierObject, Underlay};
use crate::residency::fetch::FetchMode;
use crate::residency::files::{File, FileRef};
use crate::stream::OpenStream;

/// What the kernel reads for its cache begins and ends at a multiple of it, wherever pages are larger.
const PAGE: u64 = 4096;

impl Node {
    /// Reads at `offset` into `buffer`; returns the bytes read, fewer only at the end of the file.
    ///
    /// # Errors
    /// What the tier, the backing store or another node says.
    pub fn read(
        &self,
        context: &Context,
        fh: u64,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        match self.read_here(context, fh, offset, buffer) {
            Err(error) if self.residency.may_try_again(&*self.file_of(fh)?, &error) => {
                self.read_here(context, fh, offset, buffer)
            }
            read => read,
        }
    }

    fn read_here(
        &self,
        context: &Context,
        fh: u64,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        let handle = self.handle(fh)?;
        let by = Accessor { fh, handle: &handle, pid: context.pid };
        if let Some(read) = self.read_forwarded(context, &handle, offset, buffer)? {
            self.patterns.note(by, offset, read, false, false);
            return Ok(read);
        }
        let file = &handle.file;
        if !handle.mode.passes()
            && offset.is_multiple_of(PAGE)
            && (buffer.len() as u64).is_multiple_of(PAGE)
        {
            file.note_pages_in_kernel();
        }
        if handle.mode == OpenMode::Direct {
            // What the kernel reads for its cache may be read ahead, and an error of that goes unseen.
            self.writeback.tell_rest_gone(context, file.ino)?;
        }
        let location = file.location_for(context)?;
        let end = offset + buffer.len() as u64;
        if let Some(place) = location.place() {
            if place.is_present(offset..end) {
                let read = place.bytes().read_at(buffer, offset)?;
                self.metrics.bytes.of(Source::Tier).add(read as u64);
                self.patterns.note(by, offset, read, false, true);
                return Ok(read);
            }
        } else if matches!(location.base(), Underlay::Zeros) {
            return Ok(0);
        }
        if let Some(stream) = handle.stream.get().cloned() {
            self.patterns.note(by, offset, buffer.len(), false, false);
            // Neither the file nor the handle is kept from others while the stream is waited for.
            let file = file.clone();
            drop(location);
            drop(handle);
            return self.read_of_stream(context, &file, &stream, offset, buffer);
        }
        let location = file.wait_with(context, location)?;
        let _demand = self.residency.demand_gate();
        let sequence = handle.sequence(offset, buffer.len() as u64);
        let whole = sequence > 0 || goes_on(&location, offset, self.config.extent_bytes);
        let location = match whole && self.cluster().is_some_and(Cluster::has_peers) {
            // What lies beside this will be wanted too, here and elsewhere: from other nodes if they
            // have it, and if not, once for all.
            true => {
                drop(location);
                if let Err(error) =
                    self.residency.peers.fill_shared(file, offset..end, FetchMode::Now)
                {
                    tracing::debug!(ino = %file.ino, %error, "an extent is read without a copy");
                }
                file.location_for(context)?
            }
            false => location,
        };
        let read = self.residency.read_with_gaps(file, &location, offset, buffer)?;
        drop(location);
        self.patterns.note(by, offset, read, false, false);
        self.residency.fill_after_miss(file, offset..offset + read as u64, sequence);
        Ok(read)
    }

    /// Reads along a stream, or beside it what it does not give.
    fn read_of_stream(
        &self,
        context: &Context,
        file: &FileRef,
        stream: &OpenStream,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        if let Some(read) = self.read_streamed(context, file, stream, offset, buffer)? {
            return Ok(read);
        }
        context.wait()?;
        let location = file.location.read();
        self.residency.read_with_gaps(file, &location, offset, buffer)
    }

    /// Writes `data` at `offset`; returns the bytes written: fewer than all of them only if there is room
    /// for no more.
    ///
    /// # Errors
    /// `ENOSPC` only when neither the tiers nor the backing store have room for anything of it.
    pub fn write(&self, context: &Context, fh: u64, offset: u64, data: &[u8]) -> Result<usize> {
        let handle = self.handle(fh)?;
        let _writing = handle.writing();
        let by = Accessor { fh, handle: &handle, pid: context.pid };
        if let Some(written) = self.write_forwarded(context, &handle, offset, data)? {
            self.patterns.note(by, offset, written, true, false);
            return Ok(written);
        }
        let at = (!handle.append).then_some(offset);
        let written = match self.write_to(context, &handle.file, at, data) {
            Err(error) if self.residency.may_try_again(&handle.file, &error) => {
                self.write_to(context, &handle.file, at, data)
            }
            written => written,
        };
        let (offset, written) = written?;
        self.patterns.note(by, offset, written, true, true);
        Ok(written)
    }

    /// As [`Node::write`], for `O_SYNC` and `O_DSYNC` (`data_only`): returns when it is durable.
    ///
    /// # Errors
    /// As [`Node::write`] and [`Node::fsync`].
    pub fn write_durably(
        &self,
        context: &Context,
        fh: u64,
        offset: u64,
        data: &[u8],
        data_only: bool,
    ) -> Result<usize> {
        context.wait()?;
        let written = self.write(context, fh, offset, data)?;
        self.fsync(context, fh, data_only)?;
        Ok(written)
    }

    /// Writes at an offset, or at the end of the file; returns where, and the bytes written.
    pub(crate) fn write_to(
        &self,
        context: &Context,
        file: &FileRef,
        at: Option<u64>,
        data: &[u8],
    ) -> Result<(u64, usize)> {
        self.in_cluster(Cluster::check_fence)?;
        if !context.may_wait() {
            if let Some(written) = self.write_at_once(context, file, at, data)? {
                return Ok(written);
            }
            context.wait()?;
        }
        let one_at_the_end = at.is_none().then(|| file.cluster.appending.lock());
        let offset = at.map_or_else(|| self.length_now(context, file), Ok)?;
        if let Some(written) = self.write_the_short_way(context, file, offset, data)? {
            return Ok((offset, written));
        }
        let written = self.residency.write_the_hard_way(context, file, offset, data)?;
        drop(one_at_the_end);
        self.metrics.bytes.of(Source::Tier).add(written as u64);
        Ok((offset, written))
    }

    /// Writes if nobody is to be waited for: neither for a device nor for who appends to the file or has
    /// it in hand. `None` if somebody is, and then nothing was written.
    fn write_at_once(
        &self,
        context: &Context,
        file: &FileRef,
        at: Option<u64>,
        data: &[u8],
    ) -> Result<Option<(u64, usize)>> {
        let (offset, _one_at_the_end) = match at {
            Some(offset) => (offset, None),
            None => {
                let Some(one_at_the_end) = file.cluster.appending.try_lock() else {
                    return Ok(None);
                };
                let Some(location) = file.location.try_read() else { return Ok(None) };
                (self.length_in(file, &location)?, Some(one_at_the_end))
            }
        };
        let written = self.write_the_short_way(context, file, offset, data)?;
        Ok(written.map(|written| (offset, written)))
    }

    /// Writes to the tier if that is all that is to be done.
    fn write_the_short_way(
        &self,
        context: &Context,
        file: &FileRef,
        offset: u64,
        data: &[u8],
    ) -> Result<Option<usize>> {
        let end = offset.checked_add(data.len() as u64).ok_or(NodeError::Posix(Errno::FBIG))?;
        self.residency.check_length(end)?;
        self.drop_privileges(context, file)?;
        let written = self.write_to_tier(context, file, offset, data)?;
        if let Some(written) = written {
            self.metrics.bytes.of(Source::Tier).add(written as u64);
            self.tell_cluster(|cluster| cluster.consider_ahead(file, offset, end));
        }
        Ok(written)
    }

    /// The length of an open file.
    pub(crate) fn length_now(&self, context: &Context, file: &File) -> Result<u64> {
        let location = file.location_for(context)?;
        self.length_in(file, &location)
    }

    /// The length of an open file whose location the caller has in hand.
    pub(crate) fn length_in(&self, file: &File, location: &DataLocation) -> Result<u64> {
        Ok(match (location.place(), location.base()) {
            (Some(place), _) => place.bytes().len()?,
            (None, Underlay::Spill(spill)) => spill.size_and_mtime().0,
            (None, Underlay::Zeros | Underlay::Backing(_)) => self.meta.get(file.ino)?.attr.size,
        })
    }

    /// The short way: the object is there with all extents concerned, and has or gets the room, and
    /// either nothing is to be waited for or the caller may wait.
    fn write_to_tier(
        &self,
        context: &Context,
        file: &FileRef,
        offset: u64,
        data: &[u8],
    ) -> Result<Option<usize>> {
        let waits = context.may_wait();
        let look = || match waits {
            true => Some(file.location.read()),
            false => file.location.try_read(),
        };
        let Some(mut location) = look() else { return Ok(None) };
        if location.place().is_none() {
            if !self.residency.begins_empty(file.ino, &location)? {
                return Ok(None);
            }
            drop(location);
            if !self.residency.ensure_place(file)? {
                return Ok(None);
            }
            let Some(again) = look() else { return Ok(None) };
            location = again;
        }
        let Some(place) = location.place() else { return Ok(None) };
        if !waits && Residency::needs_sync_to_change(place) {
            return Ok(None);
        }
        let end = offset + data.len() as u64;
        // A write needs nothing but present extents.
        if place.map().is_some_and(|map| !map.is_present(offset..end) || end > map.size()) {
            return Ok(None);
        }
        if self.writeback.needs_rest_below(place) {
            if !waits {
                return Ok(None);
            }
            self.writeback.check_rest_below(file, &location, place)?;
        }
        self.given_up.check(context)?;
        self.residency.write_placed(file, place, offset, data)
    }

    /// Makes what was written durable, as far as the mount's durability level says.
    ///
    /// # Errors
    /// What the tier, the metadata engine or the backing store says.
    pub fn fsync(&self, context: &Context, fh: u64, data_only: bool) -> Result<()> {
        context.wait()?;
        let ino = self.handle(fh)?.file.ino;
        let synced = self.sync_handle(context, fh, data_only);
        // After it: what is lost may have come to light meanwhile.
        self.in_cluster(|cluster| cluster.tell_losses(ino, Teller::Sync))?;
        self.writeback.tell_rest_gone(context, ino)?;
        synced
    }

    fn sync_handle(&self, context: &Context, fh: u64, data_only: bool) -> Result<()> {
        let handle = self.handle(fh)?;
        if self.sync_forwarded(context, &handle, data_only)? {
            return Ok(());
        }
        // The kernel may have written by itself what is none of this node's any more.
        self.in_cluster(Cluster::check_fence)?;
        let file = handle.file.clone();
        drop(handle);
        self.safeguard_and_sync(&file, data_only)?;
        if self.config.durability == Durability::Backing
            || self.config.writeback == WritebackPolicy::Through
        {
            self.residency.settle(&file)?;
            self.writeback.reconcile_as_it_is(file.ino)?;
        }
        Ok(())
    }

    /// What other nodes are sent and what this one's device has to do are done at the same time, if
    /// there is much of it.
    fn safeguard_and_sync(&self, file: &FileRef, data_only: bool) -> Result<()> {
        let Some(cluster) = &self.cluster else {
            return self.residency.sync_file(file, data_only);
        };
        let from = file.cluster.changed_from.load(Ordering::Acquire);
        let much =
            from < u64::MAX && self.length_now(&Context::DAEMON, file)?.saturating_sub(from) > STEP;
        if !much {
            cluster.safeguard(file)?;
            return self.residency.sync_file(file, data_only);
        }
        self.residency.write_again(file)?;
        std::thread::scope(|scope| {
            let begun = scope.spawn(|| {
                let location = file.location.read();
                let place = location.place();
                place.map_or(Ok(()), |place| self.residency.sync_object(file, place, true))
            });
            cluster.safeguard(file)?;
            begun.join().unwrap_or(Ok(()))?;
            self.residency.sync_file(file, data_only)
        })
    }

    /// Whether a close of this handle has nothing to settle: nobody writes through it.
    pub fn closes_freely(&self, fh: u64) -> bool {
        self.is_clustered() && self.handle(fh).is_ok_and(|handle| !handle.write)
    }

    /// Makes a directory's entries durable.
    ///
    /// # Errors
    /// What the metadata engine says.
    pub fn sync_directory(&self, context: &Context) -> Result<()> {
        context.wait()?;
        Ok(self.meta.sync()?)
    }

    /// A descriptor of the file is being closed; with `--writeback through` returns when the
    /// backing store has everything.
    ///
    /// # Errors
    /// What the backing store says.
    pub fn flush(&self, context: &Context, fh: u64) -> Result<()> {
        let through = self.config.writeback == WritebackPolicy::Through;
        if !through && !self.is_clustered() {
            return Ok(());
        }
        let handle = self.handle(fh)?;
        self.tell_cluster(|cluster| cluster.note_pages(&handle));
        if !handle.write {
            return Ok(());
        }
        context.wait()?;
        if self.flush_forwarded(context, &handle)? {
            return Ok(());
        }
        self.in_cluster(Cluster::check_fence)?;
        let file = handle.file.clone();
        drop(handle);
        // What other nodes are shown from now on.
        self.residency.settle(&file)?;
        self.in_cluster(|cluster| cluster.safeguard(&file))?;
        if !through {
            return Ok(());
        }
        self.writeback.reconcile_as_it_is(file.ino)
    }
}

/// Whether a read may be one of a sequence that nobody has seen: what lies before it is there, or it
/// is one of the first, which come in any order.
fn goes_on(location: &DataLocation, offset: u64, extent: u64) -> bool {
    let before = offset.saturating_sub(extent)..offset.saturating_sub(extent) + 1;
    let map = location.place().and_then(TierObject::map);
    offset < extent || map.is_some_and(|map| map.is_present(before))
}
