//! Opening and closing: which way the bytes of an open file go.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_core::steward::Event;
use forebay_meta::{Error as MetaError, Record};
use forebay_store::backing::Access;
use forebay_types::{FileKind, Ino};
use rustix::io::Errno;

use crate::cluster::{AccessMode, Cluster, Seen};
use crate::config::{Durability, Passthrough, WritebackPolicy};
use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::failpoints::fail_at;
use crate::handles::{Handle, Keys, OpenMode, Opened};
use crate::metrics::RefusalReason;
use crate::namespace::{Found, NewFile, NewName};
use crate::node::Node;
use crate::requests::in_use::{Announced, InUse};
use crate::residency::Residency;
use crate::residency::data_location::{DataLocation, TierObject, Underlay};
use crate::residency::files::{File, FileRef};
use crate::residency::inode_alias::{Opens, Registered, Use as Shown, object_id, version_id};
use crate::residency::shares::Share;
use crate::stat::Stat;
use crate::stream::OpenStream;

impl Node {
    /// Opens a regular file, under whatever alias it has now.
    ///
    /// # Errors
    /// Whatever the tier or the backing store says.
    pub fn open(&self, context: &Context, ino: Ino, flags: i32) -> Result<Opened> {
        self.open_as(context, ino, None, flags)
    }

    /// As [`Node::open`], for somebody who knows the file under one of its aliases.
    ///
    /// # Errors
    /// As [`Node::open`]; `ESTALE` if it has another alias now: it is to be looked up once more.
    pub fn open_alias(&self, context: &Context, ino: Ino, alias: u8, flags: i32) -> Result<Opened> {
        self.open_as(context, ino, Some(alias), flags)
    }

    fn open_as(
        &self,
        context: &Context,
        ino: Ino,
        alias: Option<u8>,
        flags: i32,
    ) -> Result<Opened> {
        fail_at!("node.open.begin");
        let changes = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0;
        let (mut record, mode) = match &self.cluster {
            Some(cluster) => cluster.newest(context, ino, changes)?,
            None => (self.meta.get(ino)?, AccessMode::Read),
        };
        if record.attr.kind != FileKind::Regular {
            let is_dir = record.attr.kind == FileKind::Directory;
            return Err(if is_dir { Errno::ISDIR } else { Errno::NXIO }.into());
        }
        if !record.is_dirty() && !record.links.is_empty() {
            self.writeback.revalidate(context, record)?;
        }
        let file = self.residency.files.get(ino);
        // Counted before anything is decided, so that an eviction that comes now gives way.
        let in_use = InUse::new(&file);
        // And before the record counts: who removes a file asks for openers with its lock held, and
        // either sees this one or has removed it when the record comes.
        record = match self.meta.get_settled(ino) {
            Ok(record) => record,
            Err(error) => {
                drop(in_use);
                // Any other failure says nothing of the file.
                if matches!(error, MetaError::Stale(_)) && !file.is_open() {
                    self.residency.discard_missing(ino);
                }
                return Err(error.into());
            }
        };
        let how = Use { flags, alias, uid: context.uid, pid: context.pid };
        let open_here = |record: &Arc<Record>| {
            let waited = context.may_wait();
            self.in_cluster(|cluster| cluster.match_version(context, &file, record))?;
            let waits = waited != context.may_wait();
            let newer = waits.then(|| self.meta.get_settled(ino)).transpose()?;
            let record = self.residency.as_seen_here(newer.as_ref().unwrap_or(record));
            self.open_known(context, &file, record, how)
        };
        let opened = match &mode {
            AccessMode::Forwarded(owner) => self.open_forwarded(context, &file, *owner, how),
            _ => match open_here(&record) {
                Err(error) if self.writeback.takes_newer_version(&file, &error) => {
                    self.meta.get_settled(ino).map_err(Into::into).and_then(|now| open_here(&now))
                }
                Err(error) if self.writeback.finds_gone(&file, &error) => Err(Errno::STALE.into()),
                opened => opened,
            },
        };
        self.keep_pin(mode, &opened, flags);
        drop(in_use);
        // Removed meanwhile, it was left to this open to let go of it.
        let is_unknown = |error| matches!(error, MetaError::Stale(_));
        if opened.is_err() && self.meta.get(ino).map_or_else(is_unknown, |record| record.orphan) {
            self.last_close(&file);
        }
        opened
    }

    /// Opens a file of which this open counts as a user already.
    fn open_known(
        &self,
        context: &Context,
        file: &FileRef,
        mut record: Arc<Record>,
        how: Use,
    ) -> Result<Opened> {
        drop(file.location_for(context)?);
        if (0..self.residency.tiers.len()).any(|tier| self.residency.tier_failure(tier).is_some()) {
            context.wait()?;
            self.residency.leave_failed_tier(file)?;
        }
        if how.flags & libc::O_TRUNC == 0 {
            self.look_at_rest(context, file)?;
            self.writeback.tell_rest_gone(context, file.ino)?;
        }
        if how.writes() {
            self.writeback.check_writable_below(context, &record)?;
        }
        let empties = how.flags & libc::O_TRUNC != 0;
        if !context.may_wait() && !empties && self.waits_for_bytes(context, file, &record, how)? {
            context.wait()?;
            // Anything may have become of it meanwhile.
            record = self.residency.as_seen_here(&self.meta.get_settled(file.ino)?);
            self.in_cluster(|cluster| cluster.match_version(context, file, &record))?;
        }
        // Who is refused one more open file has not emptied it.
        let share = self.handles.shares.take(how.uid)?;
        if empties {
            self.truncate(context, &record, 0)?;
            record = self.meta.get(file.ino)?;
        }
        let stream = self.prepare(context, file, &record, how.writes())?;
        if how.writes() && (how.durably() || self.needs_sync_to_pass(file)) {
            context.wait()?;
        }
        let opened = self.attach(file, &record, how, share, stream)?;
        if how.writes() && opened.mode.passes() {
            self.residency.before_unseen_writes(file, how.durably()).inspect_err(|_| {
                if let Some(handle) = self.handles.get(opened.fh) {
                    // The write pin is the caller's still, who drops it.
                    handle.held.store(false, Ordering::Release);
                }
                self.release(opened.fh);
            })?;
        }
        Ok(opened)
    }

    /// Whether an open of a file has to wait until its bytes are where it wants them.
    fn waits_for_bytes(
        &self,
        context: &Context,
        file: &FileRef,
        record: &Record,
        how: Use,
    ) -> Result<bool> {
        self.residency.load(context, file)?;
        let is_here = {
            let location = file.location_for(context)?;
            let zeros = record.attr.size == 0 || !matches!(location.base(), Underlay::Backing(_));
            zeros || location.place().is_some()
        };
        Ok(!is_here || !how.writes() && self.stream_rate(context, record)?.is_some())
    }

    /// Before an open of a file of which only a part is here: whether the rest goes with it.
    fn look_at_rest(&self, context: &Context, file: &FileRef) -> Result<()> {
        let partly = |location: &DataLocation| {
            location.place().is_some_and(|place| self.writeback.needs_rest_below(place))
        };
        self.residency.load(context, file)?;
        if !partly(&*file.location_for(context)?) {
            return Ok(());
        }
        context.wait()?;
        let location = file.location.read();
        match location.place() {
            Some(place) => self.writeback.check_rest_below(file, &location, place),
            None => Ok(()),
        }
    }

    /// Whether an open of a file whose writes nobody will see has to wait for its tier's device.
    fn needs_sync_to_pass(&self, file: &File) -> bool {
        let location = file.location.read();
        let Some(place) = location.place() else { return false };
        self.residency.passthrough_refusal().is_none()
            && place.is_marked_whole()
            && (!self.meta.is_surely_kept(file.ino)
                || !place.is_dirty()
                || place.has_unsynced_header())
            && place.bytes().len().is_ok_and(|len| len > 0)
    }

    /// A handle that may write keeps the file on this node for as long as it lives.
    fn keep_pin(&self, mode: AccessMode<'_>, opened: &Result<Opened>, flags: i32) {
        let write = flags & libc::O_ACCMODE != libc::O_RDONLY;
        match mode {
            AccessMode::Pinned(pin) if write && opened.is_ok() => pin.keep(),
            other => drop(other),
        }
    }

    /// `open` with `O_CREAT`: makes the file. The kernel asks for this only of a name that it believes to
    /// mean nothing, and takes what it is given for a file that was made for the caller, whose
    /// permissions it does not check.
    ///
    /// # Errors
    /// `EEXIST` with `O_EXCL`; else `ESTALE` if there is something: it is to be looked up once more, and
    /// opened by what it is. As [`Node::open`].
    pub fn create_and_open(
        &self,
        context: &Context,
        dir: Ino,
        name: &[u8],
        new: NewFile,
        flags: i32,
    ) -> Result<(Stat, Opened)> {
        // Before the file is made: it would stay if it could not be opened.
        let share = self.handles.shares.take(context.uid)?;
        // Others may find the file, and remove it, before it is open: it is in use from the start.
        let mut made = None;
        let announce = &mut |ino| made = Some(Announced::new(self.residency.files.get(ino)));
        let new = NewName::file(new.mode, new.umask);
        let owned = flags & libc::O_ACCMODE != libc::O_RDONLY;
        match self.find_or_make(context, dir, name, &new, owned, announce)? {
            Found::Created(record) => {
                let opened = self.open_new(context, &record, flags, share);
                drop(made);
                let opened = opened.map_err(|error| {
                    self.last_close(&self.residency.files.get(record.ino));
                    match error {
                        // At this the kernel would make the call once more, and find its own file.
                        NodeError::Posix(Errno::STALE) => Errno::IO.into(),
                        error => error,
                    }
                })?;
                Ok((self.stat(&record), opened))
            }
            Found::Existing if flags & libc::O_EXCL != 0 => Err(Errno::EXIST.into()),
            Found::Existing => Err(Errno::STALE.into()),
        }
    }

    /// `open` with `O_TMPFILE`: a file without a name.
    ///
    /// # Errors
    /// As [`Node::open`].
    pub fn tmpfile_and_open(
        &self,
        context: &Context,
        dir: Ino,
        new: NewFile,
        flags: i32,
    ) -> Result<(Stat, Opened)> {
        let share = self.handles.shares.take(context.uid)?;
        let record = self.make_unnamed(context, dir, new)?;
        let opened = self.open_new(context, &record, flags, share).inspect_err(|_| {
            self.last_close(&self.residency.files.get(record.ino));
        })?;
        Ok((self.stat(&record), opened))
    }

    /// Opens a file that was made just now.
    fn open_new(
        &self,
        context: &Context,
        record: &Arc<Record>,
        flags: i32,
        share: Share,
    ) -> Result<Opened> {
        let write = flags & libc::O_ACCMODE != libc::O_RDONLY;
        // It is owned already.
        let mode = match &self.cluster {
            Some(cluster) if write => cluster.pin_for_writing(&Context::DAEMON, record.ino)?,
            _ => AccessMode::Read,
        };
        if matches!(mode, AccessMode::Forwarded(_)) {
            // Given up and taken by another in no time.
            return Err(Errno::BUSY.into());
        }
        let file = self.residency.files.get(record.ino);
        self.residency.load(&Context::DAEMON, &file)?;
        self.tracer.note(file.ino, 0, true);
        let how = Use { flags, alias: None, uid: context.uid, pid: context.pid };
        let opened = self.attach(&file, record, how, share, None);
        self.keep_pin(mode, &opened, flags);
        opened
    }

    /// Sees to it that the bytes are where this open wants them: small files on a tier, large ones
    /// begun, those that are played admitted as streams.
    pub(crate) fn prepare(
        &self,
        context: &Context,
        file: &FileRef,
        record: &Arc<Record>,
        write: bool,
    ) -> Result<Option<Arc<OpenStream>>> {
        fail_at!("node.open.prepare");
        self.residency.load(context, file)?;
        let size = record.attr.size;
        let (resident, whole, nothing) = {
            let location = file.location.read();
            let zeros = size == 0 || !matches!(location.base(), Underlay::Backing(_));
            let place = location.place();
            (place.is_some(), place.is_some_and(TierObject::has_all_bytes), zeros)
        };
        let rate = if write || nothing { None } else { self.stream_rate(context, record)? };
        // Who opens it has waited for that; it may have left the tier since.
        if !resident && !nothing || rate.is_some() {
            context.wait()?;
        }
        self.residency.decide(Event::Access {
            object: file.ino,
            size: forebay_core::unit::Bytes(size),
            write,
        });
        self.tracer.note(file.ino, size, write);
        // Of a file that is there in part, reads may have to wait for the backing store.
        if whole {
            self.metrics.hits.add(1);
        } else if resident || !nothing {
            self.metrics.misses.add(1);
        }
        if let Some(rate) = rate
            && let Some(stream) = self.admit_stream(file, rate)?
        {
            return Ok(Some(stream));
        }
        if resident || nothing {
            return Ok(None);
        }
        if size <= self.config.fetch_on_open_bytes {
            self.residency.fetch_whole(file, record)?;
        } else {
            self.residency.begin_partial(file, record)?;
        }
        Ok(None)
    }

    /// Enters the open into the file and picks its mode.
    fn attach(
        &self,
        file: &FileRef,
        record: &Record,
        how: Use,
        share: Share,
        stream: Option<Arc<OpenStream>>,
    ) -> Result<Opened> {
        fail_at!("node.open.attach");
        let write = how.writes();
        let copied = write && self.is_synced_elsewhere(file, record);
        let location = file.location.read();
        let mut opens = file.opens.lock();
        self.residency.turn_if_replaced(&mut opens, location.place(), record)?;
        check_alias(&mut opens, how)?;
        self.busiest.count(file.ino.0);
        let (mut mode, promised) =
            self.choose_mode(file, &location, &mut opens, record, how, copied);
        let (alias, mut seen) = (opens.now.number, Seen::default());
        if let OpenMode::Cached { keep } = &mut mode {
            let shown = |cluster: &Cluster| cluster.keeps_pages(file, record, alias);
            (*keep, seen) = self.cluster().map_or((true, Seen::default()), shown);
            *keep &= !self.residency.has_old_pages(file.ino, alias);
            if *keep && opens.count == 0 && record.attr.size > 0 {
                // Nobody knows how it came to those that it has.
                file.note_pages_in_kernel();
            }
        }
        let mut handle = Handle::new(file.clone(), write, mode, promised);
        (handle.alias, handle.seen) = (alias, seen);
        handle.append = self.appends_itself(how);
        handle.durably = how.durably();
        handle.keeps_set_ids = how.uid == 0;
        handle.share = Some(share);
        if let Some(stream) = stream
            && matches!(mode, OpenMode::Cached { .. } | OpenMode::Direct)
        {
            // The kernel's cache and its readahead would hide from the stream where its reader is.
            mode = OpenMode::Direct;
            (handle.mode, handle.stream) = (mode, stream.into());
        }
        let Some(fh) = self.handles.insert(handle) else {
            if let Some((tier, bytes)) = promised {
                self.residency.tiers[usize::from(tier)].room.unpromise(bytes);
            }
            self.residency.unregister_unused(&mut opens);
            return Err(NodeError::Posix(Errno::NFILE));
        };
        self.patterns.opened(fh, file.ino.0, how.pid);
        opens.count += 1;
        opens.writers += u32::from(write);
        opens.handles.push(fh);
        opens.now.enter(Shown { cached: matches!(mode, OpenMode::Cached { .. }), remote: false });
        if let Some(registered) = opens.now.registered.as_mut().filter(|_| mode.passes()) {
            registered.opens += 1;
            if write {
                file.stored_unseen.count();
            }
            self.metrics.passthrough_opens.add(1);
        }
        let mut marked = Ok(());
        if write {
            file.count_write();
            let to_object = mode.passes() && opens.passes_to_object();
            if let Some(place) = location.place().filter(|_| to_object) {
                // From here on the kernel writes, or maps to be stored into, without asking: dirty
                // before the reply.
                marked = self.residency.mark_dirty_for_passthrough(file, place);
            }
        }
        if opens.count == 1 {
            self.residency.decide(Event::Busy { object: file.ino });
        }
        drop((opens, location));
        let dir = record.links.first().map(|link| link.parent);
        let opened = Opened { fh, mode, alias, dir };
        marked.map(|()| opened).inspect_err(|_| {
            if let Some(handle) = self.handles.get(fh) {
                // The write pin is the caller's still, who drops it.
                handle.held.store(false, Ordering::Release);
            }
            self.release(fh);
        })
    }

    /// Whether a sync of a file, which a writer may be handed to the kernel for, waits for more than the
    /// tier.
    fn is_synced_elsewhere(&self, file: &File, record: &Record) -> bool {
        if self.config.durability == Durability::Backing {
            return true;
        }
        let may_pass = || {
            self.residency.passthrough_refusal().is_none()
                && file.location.read().place().is_some_and(TierObject::is_marked_whole)
        };
        // What can't be found out counts as so: the daemon serves the open then.
        self.cluster().is_some_and(|cluster| {
            may_pass() && cluster.copies_what_is_synced(record).unwrap_or(true)
        })
    }

    /// Whether writes of an open go to the end of the file as the daemon knows it. The kernel may have
    /// another length in mind, as other nodes may write the file through this one; and what it
    /// appends by itself would not take turns with what they do.
    fn appends_itself(&self, how: Use) -> bool {
        self.is_clustered() && how.writes() && how.flags & libc::O_APPEND != 0
    }

    /// The mode of a new open beside those that live. The kernel's rules: cached and passthrough
    /// opens of one inode exclude each other; all passthrough opens share one registration; direct
    /// opens go with everything that was there before them, except passthrough, beside which only
    /// another passthrough (also with direct reads and writes) may come. `copied` says of a writer that
    /// what is synced must reach other nodes first: what the kernel makes durable without asking does not.
    fn choose_mode(
        &self,
        file: &File,
        location: &DataLocation,
        opens: &mut Opens,
        record: &Record,
        how: Use,
        copied: bool,
    ) -> (OpenMode, Option<(u8, u64)>) {
        let write = how.writes();
        if let Some(registered) = &opens.now.registered {
            let id = registered.id;
            if !write {
                return (OpenMode::Passthrough { id }, None);
            }
            if registered.bypass || copied || self.appends_itself(how) {
                return (OpenMode::PassthroughDirect { id }, None);
            }
            return match self.promise_to_writer(file, location, record) {
                Ok(promised) => (OpenMode::Passthrough { id }, Some(promised)),
                Err(_) => (OpenMode::PassthroughDirect { id }, None),
            };
        }
        if self.appends_itself(how) {
            return (OpenMode::Direct, None);
        }
        if self.patterns.is_on() {
            // What the kernel reads by itself, or has in its cache, nobody could record.
            return (OpenMode::Direct, None);
        }
        if let Some(reason) = self.residency.passthrough_refusal() {
            return (self.served(reason, false, write), None);
        }
        if opens.now.cached > 0 {
            return (self.served(RefusalReason::MixedOpen, true, write), None);
        }
        if copied {
            return (self.served(RefusalReason::Durability, true, true), None);
        }
        // A daemon that writes may have to move extents away from under a passthrough reader.
        let serves_writer = opens.writers > 0;
        match location.place() {
            Some(place) if place.is_marked_whole() && !serves_writer => {
                let promised = match write.then(|| self.promise_to_writer(file, location, record)) {
                    None => None,
                    Some(Ok(promised)) => Some(promised),
                    Some(Err(reason)) => return (self.served(reason, true, true), None),
                };
                match place.bytes().fd().map(|fd| self.register(fd)) {
                    Some(Ok(id)) => {
                        place.note_passed();
                        let object = object_id(place.bytes().fd());
                        opens.now.registered = Some(Registered::new(id, false, object));
                        (OpenMode::Passthrough { id }, promised)
                    }
                    _ => {
                        if let Some((tier, bytes)) = promised {
                            self.residency.tiers[usize::from(tier)].room.unpromise(bytes);
                        }
                        (OpenMode::Direct, None)
                    }
                }
            }
            None if !write && !serves_writer && record.attr.size > 0 => {
                self.bypass(location, opens, record)
            }
            _ if serves_writer => (self.served(RefusalReason::MixedOpen, true, true), None),
            _ => (self.served(RefusalReason::NotResident, true, write), None),
        }
    }

    /// Passthrough straight to the backing file, for what no tier admitted. The kernel reads that version
    /// until its last close, so only where nobody can write another one through this mount: what is
    /// written goes to a tier or past them, never into a published file, and readers have to see it.
    fn bypass(
        &self,
        location: &DataLocation,
        opens: &mut Opens,
        record: &Record,
    ) -> (OpenMode, Option<(u8, u64)>) {
        let refused = || (self.served(RefusalReason::NotResident, true, false), None);
        let unseen = self.config.throttle.is_none() && self.streams.is_none();
        let unseen = unseen && self.config.read_only && self.residency.peers.judges_store_alone();
        if !matches!(location.base(), Underlay::Backing(_)) || !unseen {
            return refused();
        }
        let Ok(backing) = self.writeback.open_backing(record, Access::Read) else {
            return refused();
        };
        match backing.fd().map(|fd| self.register(fd)) {
            Some(Ok(id)) => {
                opens.now.registered = Some(Registered::new(id, true, version_id(record)));
                (OpenMode::Passthrough { id }, None)
            }
            // Counted already, with the kernel's own reason.
            _ => (OpenMode::Cached { keep: true }, None),
        }
    }

    /// The mode of an open that the daemon serves. Where passthrough may come later, direct leaves
    /// the way open for it; elsewhere the kernel's page cache serves readers better.
    fn served(&self, reason: RefusalReason, passthrough_able: bool, write: bool) -> OpenMode {
        self.metrics.passthrough_refusals.of(reason).inc();
        if write && passthrough_able { OpenMode::Direct } else { OpenMode::Cached { keep: true } }
    }

    /// Whether an object that is empty now would give way to an older version of its file after a power
    /// cut unless all of it is there. Only whoever is told of each sync knows then what was acknowledged.
    fn may_be_older_after_a_cut(&self, file: &File, record: &Record, place: &TierObject) -> bool {
        let backing = &record.backing;
        let has_older = record.replaces
            || backing.fingerprint.is_some()
            || backing.pending.is_some()
            || file.writeback.flush_begun.load(Ordering::Acquire);
        has_older && place.is_marked_whole() && place.bytes().len().is_ok_and(|len| len == 0)
    }

    /// Room for a passthrough writer to grow into, if there is plenty.
    fn promise_to_writer(
        &self,
        file: &File,
        location: &DataLocation,
        record: &Record,
    ) -> std::result::Result<(u8, u64), RefusalReason> {
        let place = location.place().ok_or(RefusalReason::NotResident)?;
        if self.may_be_older_after_a_cut(file, record, place) {
            return Err(RefusalReason::Emptied);
        }
        if file.set_ids.may_be_set() {
            return Err(RefusalReason::SetId);
        }
        if self.config.writeback == WritebackPolicy::Through {
            return Err(RefusalReason::WriteThrough);
        }
        let slot = &self.residency.tiers[usize::from(place.tier())];
        if self.config.passthrough == Passthrough::ReadWrite {
            return Ok((place.tier(), 0));
        }
        let bytes = self.config.passthrough_reserve_bytes;
        let physically = slot.tier.usage().is_ok_and(|usage| usage.free >= 2 * bytes);
        if physically && slot.room.promise(bytes) {
            return Ok((place.tier(), bytes));
        }
        Err(RefusalReason::NoReservation)
    }

    fn register(&self, fd: BorrowedFd<'_>) -> Result<u32> {
        let kernel = self.kernel.get().ok_or(NodeError::Posix(Errno::NOTCONN))?;
        kernel.register(fd).map_err(|error| {
            let reason = match error.raw_os_error() {
                Some(libc::EPERM) => RefusalReason::NoPrivilege,
                Some(libc::ELOOP) => RefusalReason::StackDepth,
                _ => RefusalReason::Refused,
            };
            self.metrics.passthrough_refusals.of(reason).inc();
            tracing::debug!(%error, "the kernel refused a passthrough registration");
            error.into()
        })
    }

    /// Closes a handle: the kernel's last use of it.
    pub fn release(&self, fh: u64) {
        let Some(handle) = self.handles.take(fh) else { return };
        self.tell_cluster(|cluster| cluster.note_pages(&handle));
        self.patterns.closed(fh, &handle);
        let file = handle.file.clone();
        if handle.mode.passes() && handle.write {
            // Its writes were not seen: a flush that began before may not have them.
            file.count_write();
            // Neither are those of a mapping that outlasts it.
            file.stored_unseen.count();
        }
        let (last, last_writer) = {
            let mut opens = file.opens.lock();
            opens.count -= 1;
            opens.writers -= u32::from(handle.write);
            opens.handles.retain(|other| *other != fh);
            let cached = matches!(handle.mode, OpenMode::Cached { .. });
            opens.leave(handle.alias, cached, handle.mode.registration());
            self.residency.unregister_unused(&mut opens);
            if opens.count == 0 {
                // Without an open there are no mappings of them.
                file.pages_in_kernel.store(false, Ordering::Release);
            }
            (opens.count == 0, handle.write && opens.writers == 0)
        };
        if let Some((tier, bytes)) = handle.promised {
            self.residency.tiers[usize::from(tier)].room.unpromise(bytes);
        }
        if handle.held.load(Ordering::Acquire) {
            self.tell_cluster(|cluster| cluster.unpin(file.ino));
        }
        fail::fail_point!("node.release.before_settle");
        if handle.write && handle.mode.passes() {
            self.look_for_lost_set_ids(&file);
        }
        if last_writer {
            self.writeback.settle_closed(&file);
        }
        if last {
            self.residency.decide(Event::Idle { object: file.ino });
            self.last_close(&file);
        }
    }

    /// What is due when nobody has the file open any more.
    pub(crate) fn last_close(&self, file: &FileRef) {
        // After a removal under way, which has counted this user and leaves the file to it.
        let record = self.meta.get_settled(file.ino);
        // Opened again since: the record that counts was read before, and whoever opened it comes
        // by here too.
        if file.is_open() {
            return;
        }
        let record = match record {
            Ok(record) => record,
            Err(MetaError::Stale(_)) => {
                return self.discard_at_hand(file, Residency::discard_missing);
            }
            Err(error) => {
                // If it was removed, the next start finds what is left of it.
                tracing::warn!(
                    ino = file.ino.0,
                    %error,
                    "the record of a closed file can't be read: if the file was removed, the next \
                     start drops its bytes"
                );
                return;
            }
        };
        if !record.orphan {
            return self.note_access_time(file, &record);
        }
        if self.names.unlink_grace.has(file.ino) {
            return;
        }
        if self.let_orphan_go(&record) {
            self.residency.note_removed(file.ino);
            if !file.is_open() {
                self.discard_at_hand(file, Residency::discard_data);
            }
        }
    }

    /// Drops the bytes of a file; on another thread if one of those that wait has it in hand.
    fn discard_at_hand(&self, file: &FileRef, discard: fn(&Residency, Ino)) {
        let ino = file.ino;
        if file.location.try_write().is_some()
            || !self.later(move |node| discard(&node.residency, ino))
        {
            discard(&self.residency, ino);
        }
    }

    /// Access times follow reads as `relatime` does: when older than the last change or a day.
    fn note_access_time(&self, file: &File, record: &Record) {
        const DAY: i64 = 24 * 3600;
        if self.config.keep_access_times {
            return;
        }
        // Whoever has it in hand for long waits for a slow device; an access time is not worth that.
        let Some(location) = file.location.try_read() else { return };
        let Some(place) = location.place() else { return };
        let Ok(stat) = place.bytes().stat() else { return };
        let (known, seen) = (record.attr.atime, stat.atime);
        let stale =
            known <= record.attr.mtime || known <= record.attr.ctime || seen.sec - known.sec >= DAY;
        if seen > known && stale {
            self.residency.note_access(file.ino, known, seen);
        }
    }

    pub(crate) fn file_of(&self, fh: u64) -> Result<FileRef> {
        Ok(self.handle(fh)?.file.clone())
    }

    pub(crate) fn handle(&self, fh: u64) -> Result<sharded_slab::Entry<'_, Handle, Keys>> {
        self.handles.get(fh).ok_or(NodeError::Posix(Errno::BADF))
    }
}

/// How a file is opened.
#[derive(Clone, Copy)]
pub(crate) struct Use {
    /// Those of open(2).
    pub flags: i32,
    /// Under which alias whoever opens it knows the file, if he does.
    pub alias: Option<u8>,
    /// By whom.
    pub uid: u32,
    /// By which process.
    pub pid: u32,
}

/// Whether whoever opens a file knows it under the alias that it has now. If it is not open, it has
/// whichever he knows.
pub(crate) fn check_alias(opens: &mut Opens, how: Use) -> Result<()> {
    match how.alias {
        Some(known) if known != opens.now.number => {
            if opens.count > 0 {
                return Err(Errno::STALE.into());
            }
            opens.now.number = known;
            Ok(())
        }
        _ => Ok(()),
    }
}

impl Use {
    pub(crate) fn writes(self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_RDONLY
    }

    /// Whether each of its writes is to be durable, by `O_SYNC` or `O_DSYNC`.
    pub(crate) fn durably(self) -> bool {
        self.flags & libc::O_DSYNC != 0
    }
}
