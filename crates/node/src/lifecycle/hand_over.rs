//! What a node hands on to the one that takes its place under the same programs.
//!
//! The namespace, the tiers and the backlog are durable and found by whoever opens them next. What
//! is handed on is what lives in memory alone: which files are open and how the kernel knows them,
//! removed files that somebody may still open, and, from a node that came to rest, what lies on the
//! tiers, so that they need not be read. A node that died leaves only its open files; the rest is
//! recovered from the tiers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use forebay_core::steward::Event;
use forebay_meta::Error as MetaError;
use forebay_types::{Ino, Timestamp};

use crate::cluster::Cluster;
use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::failpoints::fail_at;
use crate::hand_over_state::{HandOverState, OpenHandle, RemovedInode, ResidentObject};
use crate::handles::{Handle, OpenMode};
use crate::node::Node;
use crate::residency::inode_alias::{Use as Shown, object_id};
use crate::residency::residents::Resident;
use crate::residency::synced::CLEAN_END;
use crate::serving::Serve;
use crate::state_files;

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
            self.tell_cluster(|cluster| cluster.kernel_grants.stop());
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
        node.tell_cluster(|cluster| {
            cluster.go_on_in_cluster(Arc::new(Serve::of(node.this.clone())));
        });
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
        if self.cluster.as_ref().is_some_and(|cluster| !cluster.rest_in_cluster(left())) {
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
        if let Err(error) = self.residency.note_all_left_behind() {
            let what = format!("the removal of an object that counts no more ({error})");
            return Err(NodeError::NotAtRest { what, limit_s: limit.as_secs() });
        }
        let Some(replaced) = self.names.unlink_grace.take(until) else {
            let what = "the removal of a file that was replaced".into();
            return Err(NodeError::NotAtRest { what, limit_s: limit.as_secs() });
        };
        self.residency.discard_removed();
        // A successor that finds everything at rest does not look for them.
        self.residency.drop_spills(until);
        self.residency.write_accesses();
        self.writeback.write_conflicts();
        let mut handed_over = HandOverState {
            handles: self.open_handles(),
            generation: self.handles.generation().into(),
            at_rest: true,
            membership: self.cluster().map(Cluster::membership),
            locks: self.cluster().map(Cluster::lock_owners).unwrap_or_default(),
            replaced: replaced.into_iter().map(|ino| ino.0).collect(),
            lost: self.residency.troubles.lost(),
            unseen: self.residency.troubles.unseen(),
            unsettled: self.writeback.unsettled(),
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
        handed_over.removed_inodes = self.removed_inodes();
        if let Some(log) = &self.residency.event_log {
            log.write_out();
        }
        if let Some(streams) = &self.streams {
            // The device is the successor's.
            streams.stop();
        }
        handed_over.waiters = self.cluster().map_or(0, Cluster::hand_waiters_on);
        self.let_go_of_state();
        Ok(handed_over)
    }

    /// Files that were removed and are still open.
    fn removed_inodes(&self) -> Vec<RemovedInode> {
        let mut removed = Vec::new();
        self.names.removed_inodes.for_each(|ino, attr| removed.push(RemovedInode::new(ino, attr)));
        for inode in &mut removed {
            let xattrs = self.names.removed_inodes.xattrs(Ino(inode.ino)).unwrap_or_default();
            inode.xattrs = xattrs.into_iter().flat_map(|(name, value)| [name, value]).collect();
        }
        removed
    }

    /// As [`Node::stop`] of a node that has gone on where another one ended, and can't serve: its files are
    /// still open, and somebody else goes on with them. So nothing is settled, and no end is noted.
    pub fn step_back(&self, limit: Duration) {
        let rested = self.rest(limit).and_then(|()| self.hand_over_state(limit).map(drop));
        if let Err(error) = rested {
            tracing::warn!(%error, "a node that can't serve still works");
            self.stopping.store(true, Ordering::Release);
            self.writeback.stop_reconciler();
            self.let_go_of_state();
        }
    }

    /// The last step before a mount is taken over.
    ///
    /// # Errors
    /// Where a test wants it to fail.
    pub fn before_it_serves(&self) -> Result<()> {
        fail_at!("node.resumed");
        Ok(())
    }

    /// After the mount was left with who keeps it, and before it is served.
    ///
    /// # Errors
    /// Where a test wants it to fail.
    pub fn before_what_is_kept_serves(&self) -> Result<()> {
        fail_at!("node.kept");
        Ok(())
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

    /// Whether an inode was made through the mount, and not by others in the backing store, if that can
    /// be told. The backing store makes what was made here later than it was; of what others have made
    /// the time of its contents counts, and that is never before.
    #[must_use]
    pub fn was_made_here(&self, ino: Ino) -> bool {
        let Ok(record) = self.meta.get(ino) else { return false };
        match record.backing.fingerprint {
            // Of a directory of others that nobody has listed, nothing more is known.
            None => record.listed || !record.is_directory(),
            Some(known) => known.born == Timestamp::default() || known.born > record.attr.btime,
        }
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
            // A successor that failed may have left it (older versions do), and a start after a power cut
            // would believe it.
            state_files::remove(&self.state_dir, CLEAN_END)?;
            self.residency.begin_removal_notes();
            self.release_orphans(&open)?;
            self.residency
                .troubles
                .set_lost(handed_over.lost.iter().copied(), handed_over.unseen.iter().copied());
            self.residency.count_set_aside();
            for object in &handed_over.residents {
                self.take_over_object(object)?;
            }
            self.writeback.take_over_unsettled(&handed_over.unsettled);
        } else {
            // Removed files may still be opened by whoever has looked them up.
            let orphans = self.meta.orphans()?;
            self.recover(&orphans.iter().copied().collect())?;
            orphans
                .into_iter()
                .filter(|ino| !open.contains(ino))
                .for_each(|ino| self.begin_unlink_grace(ino));
        }
        let mut adopted = Vec::with_capacity(handed_over.handles.len());
        for open in &handed_over.handles {
            match self.take_over_handle(open) {
                Ok(handle) => {
                    if !handle.mode.passes() {
                        // What was read through it is not handed over.
                        handle.file.note_pages_in_kernel();
                    }
                    adopted.push((open.fh, handle));
                }
                Err(error) if handed_over.at_rest => return Err(error),
                Err(error) => tracing::error!(ino = open.ino, %error, "an open file is lost"),
            }
        }
        tracing::info!(open = adopted.len(), at_rest = handed_over.at_rest, "taken over");
        self.handles.adopt(adopted);
        self.watch_taken_over(handed_over);
        self.tell_cluster(|cluster| cluster.take_over_locks(handed_over));
        self.take_over_streams(handed_over);
        for &ino in &handed_over.replaced {
            self.begin_unlink_grace(Ino(ino));
        }
        for removed_inodes in &handed_over.removed_inodes {
            // Noted before it is done: what has a name all the same was not removed.
            if self.meta.get(Ino(removed_inodes.ino)).is_ok_and(|record| !record.links.is_empty()) {
                continue;
            }
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
        let known = u8::try_from(tier).ok();
        let known = known.filter(|tier| usize::from(*tier) < self.residency.tiers.len());
        let Some(tier) = known else {
            return Err(NodeError::Config(format!("there is no tier number {tier}")));
        };
        self.residency.found_on_tier(Ino(ino), Resident { tier, whole, dirty, charged });
        Ok(())
    }

    fn take_over_handle(&self, open: &OpenHandle) -> Result<Handle> {
        let file = self.residency.files.get(Ino(open.ino));
        if let Some(handle) = self.in_cluster(|cluster| cluster.take_over_remote(&file, open))? {
            return Ok(handle);
        }
        match self.residency.load(&Context::DAEMON, &file) {
            Err(NodeError::Meta(MetaError::Stale(_))) => self.residency.load_vanished(&file)?,
            loaded => loaded?,
        }
        let location = file.location.read();
        let mode = open.open_mode();
        let mut opens = file.opens.lock();
        opens.count += 1;
        opens.writers += u32::from(open.write);
        opens.handles.push(open.fh);
        let place = location.place();
        let here = place.map_or(0, |place| object_id(place.bytes().fd()));
        let how = Shown { cached: matches!(mode, OpenMode::Cached { .. }), remote: false };
        let registered = mode.registration().map(|id| (id, open.bypass, open.object));
        opens.adopt(open.alias(), how, registered, here)?;
        if let (Some((_, false, _)), Some(place)) = (registered, place) {
            self.residency.take_over_passed(&file, place, open.write)?;
        }
        if open.write {
            file.count_write();
        }
        let promised = location.place().zip(open.promised).and_then(|(place, bytes)| {
            let room = &self.residency.tiers[usize::from(place.tier())].room;
            room.promise(bytes).then_some((place.tier(), bytes))
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
        handle.share = Some(self.handles.shares.taken_over());
        Ok(handle)
    }
}
