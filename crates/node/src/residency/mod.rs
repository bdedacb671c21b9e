//! Where the bytes of files are: tiers and the objects on them, what they may take up, how they come in,
//! are spilled past the tiers, moved and evicted, and what drives the steward.
//!
//! [`Residency`] owns the tiers, the objects and what is known of files in use, and only it says that a
//! file is clean, dirty or resident. It knows no requests, no names, no streams and no other nodes: what
//! it has to ask of those who stand on it is in [`seams`].
//!
//! - `state.rs`: whether a file is clean, dirty or resident, with the table of all transitions;
//!   `changes.rs`, `written_back.rs`, `taken_over.rs`, `recovered.rs`: those by programs, by
//!   write-back, between nodes and daemons, and at a start.
//! - `data_location.rs`, `data.rs`, `residents.rs`: where the bytes of a file are, and what lies on
//!   the tiers; `files.rs`: files in use.
//! - `room.rs`, `charge.rs`, `shares.rs`: what objects are charged, and what users may take.
//! - `fetch.rs`, `spill.rs`, `overlay.rs`, `evict.rs`, `prefetch.rs`: how bytes come in, go past
//!   the tiers, are moved and leave; `steward.rs` drives the steward.
//! - `unwritten.rs`: what proves that a file is clean; `unsettled.rs`: closed files whose records do not
//!   say yet what was written; `synced.rs`: what is durable;
//!   `failed_syncs.rs`: what a device has not written; `doubt.rs`, `aside.rs`: what is damaged, and
//!   what can't be used and must not be thrown away; `failed.rs`: tiers that fail; `left_behind.rs`, `left_note.rs`:
//!   what a tier does not give up; `unseen.rs`: what no start could look at since a crash.
//! - `inode_alias.rs`: what the kernel has open of a file; `published_spill.rs`: spill files that a
//!   daemon published right before it died; `removals.rs`, `access.rs`: what follows a removal or a
//!   read and nobody waits for.
//!
//! # Invariants
//! - On disk, bytes come before what says that they are there, each durable before the next is
//!   relied on, and the source goes last: a header that says dirty or whole follows its bytes, an
//!   object is clean when its name in the backing store is durable, a version is announced durably
//!   before it appears, and the only copy of anything goes when what forgets it is durable
//!   (`tests/tests/mount_power.rs`).
//! - A file counts as dirty from its first write on. Whoever judges it by its record asks for its
//!   object as well, with the inode locked (`tests/foreign_changes.rs`).
//! - An object counts as clean only with its length in the record: the close that would have
//!   settled it finds nothing to do then.
//! - What was looked at without the location's lock (a record's length, the base, an absent extent)
//!   is looked at again under it before anything is built on it: a publication, a write past the
//!   tier or an eviction may have come between (`tests/races.rs`).
//! - Of two objects of one file the one that was moved more often between tiers counts: it is made
//!   whole before the other goes, and nobody writes in between (`tests/moves.rs`).
//! - A time that a program sets stays, whatever is settled or written back at that moment
//!   (`tests/races.rs`, `tests/clean.rs`).

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use forebay_core::steward::{Action, Steward};
use forebay_meta::{MetaStore, Record, Seq};
use forebay_store::backing::BackingStore;
use forebay_store::copy::{Gate, Limits, Priority, Progress};
use forebay_store::{BackingFile, Bytes, Tier, TierLock};
use forebay_types::Ino;
use parking_lot::Mutex;

use crate::config::{Durability, NodeConfig};
use crate::context::GivenUp;
use crate::defects::Defects;
use crate::error::Result;
use crate::kernel::Kernel;
use crate::metrics::{Metrics, RefusalReason};
use crate::pool::Pool;
use crate::trace::EventLog;

pub(crate) mod access;
pub(crate) mod aside;
mod changes;
pub(crate) mod charge;
pub(crate) mod data;
pub(crate) mod data_location;
pub(crate) mod doubt;
pub(crate) mod evict;
#[cfg(test)]
mod evict_tests;
pub(crate) mod failed;
pub(crate) mod failed_syncs;
pub(crate) mod fetch;
pub(crate) mod files;
mod holes;
mod in_use;
pub(crate) mod inode_alias;
pub(crate) mod left_behind;
pub(crate) mod left_note;
pub(crate) mod overlay;
mod place;
pub(crate) mod prefetch;
mod published_spill;
pub(crate) mod recovered;
pub(crate) mod removals;
pub(crate) mod residents;
pub(crate) mod room;
pub(crate) mod seams;
pub(crate) mod shares;
pub(crate) mod spill;
mod state;
pub(crate) mod steward;
pub(crate) mod synced;
pub(crate) mod taken_over;
pub(crate) mod unseen;
pub(crate) mod unsettled;
pub(crate) mod unwritten;
pub(crate) mod written_back;

/// Files looked at for those that are dirty longest; more are only counted.
pub(crate) const LOOKED_AT: usize = 2000;

/// One tier in use.
pub struct TierSlot {
    /// The tier.
    pub tier: Arc<dyn Tier>,
    /// Its room.
    pub room: room::Room,
    pub(crate) health: failed::Health,
    pub(crate) in_use: Mutex<in_use::InUse>,
    pub(crate) lock: Mutex<Option<TierLock>>,
}

/// Copies that nobody waits for stand back this long at most for those that somebody waits for.
const GATE_WAIT: Duration = Duration::from_millis(100);

/// Where the bytes of files are.
///
/// Holds: an object, a resident and a location agree whenever nobody has the file's location in hand;
/// what is resident is charged to its tier's room; what is clean equals the backing store's version.
pub struct Residency {
    // What it was given, and others have as well.
    pub(crate) config: Arc<NodeConfig>,
    pub(crate) meta: Arc<MetaStore>,
    pub(crate) backing: Arc<dyn BackingStore>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) kernel: Arc<OnceLock<Arc<dyn Kernel>>>,
    /// Threads that wait for slow devices.
    pub(crate) slow: Arc<Pool>,
    pub(crate) stopping: Arc<AtomicBool>,
    pub(crate) given_up: Arc<GivenUp>,
    pub(crate) defects: Arc<Defects>,
    pub(crate) state_dir: PathBuf,
    pub(crate) started: Instant,
    // Who stands on it.
    pub(crate) peers: Box<dyn seams::Peers>,
    pub(crate) above: Box<dyn seams::AboveResidency>,
    /// Streams that are played from the same device, if there are any.
    pub(crate) cold: Option<Arc<dyn seams::ColdReads>>,
    // Its own.
    pub(crate) this: Weak<Residency>,
    pub(crate) tiers: Vec<TierSlot>,
    pub(crate) files: Arc<files::Files>,
    pub(crate) residents: residents::Residents,
    /// What was set aside, and what is lost.
    pub(crate) troubles: aside::Troubles,
    pub(crate) removals: removals::Removals,
    /// Objects that count no more and could not be removed.
    left_behind: left_behind::LeftBehind,
    pub(crate) failed_syncs: failed_syncs::FailedSyncs,
    pub(crate) unsettled: unsettled::Unsettled,
    pub(crate) accesses: access::Accesses,
    /// A spill file has been noted, now or by an earlier daemon.
    pub(crate) spills_noted: AtomicBool,
    pub(crate) steward: Mutex<Steward>,
    /// Decisions of the steward for which the pool had no place.
    pub(crate) put_off: Mutex<Vec<Action>>,
    /// Fetches ahead that the steward waits for.
    pub(crate) fetches: prefetch::Fetches,
    /// Where the steward's decisions are recorded.
    pub(crate) event_log: Option<EventLog>,
    pub(crate) copies: Limits,
    /// Counts what is copied to the backing store.
    pub(crate) written_back: Arc<Progress>,
}

/// What a residency is made of, and others have as well.
pub(crate) struct Given {
    pub(crate) config: Arc<NodeConfig>,
    pub(crate) meta: Arc<MetaStore>,
    pub(crate) backing: Arc<dyn BackingStore>,
    pub(crate) slow: Arc<Pool>,
    pub(crate) defects: Arc<Defects>,
    pub(crate) state_dir: PathBuf,
    pub(crate) left_behind: left_behind::LeftBehind,
    pub(crate) failed_syncs: failed_syncs::FailedSyncs,
    pub(crate) peers: Box<dyn seams::Peers>,
    pub(crate) above: Box<dyn seams::AboveResidency>,
    pub(crate) cold: Option<Arc<dyn seams::ColdReads>>,
}

/// Who decides what moves, and the log of what was decided.
pub(crate) struct Decider {
    pub(crate) steward: Steward,
    pub(crate) event_log: Option<EventLog>,
}

impl Residency {
    /// Looks at nothing yet.
    pub(crate) fn new(
        given: Given,
        tiers: Vec<TierSlot>,
        Decider { steward, event_log }: Decider,
        spills_noted: bool,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Residency {
            config: given.config,
            meta: given.meta,
            backing: given.backing,
            metrics: Arc::default(),
            kernel: Arc::default(),
            slow: given.slow,
            stopping: Arc::default(),
            given_up: Arc::default(),
            defects: given.defects,
            failed_syncs: given.failed_syncs,
            unsettled: Default::default(),
            state_dir: given.state_dir,
            started: Instant::now(),
            peers: given.peers,
            above: given.above,
            cold: given.cold,
            this: this.clone(),
            tiers,
            files: Arc::default(),
            residents: Default::default(),
            troubles: Default::default(),
            removals: Default::default(),
            left_behind: given.left_behind,
            accesses: Default::default(),
            spills_noted: AtomicBool::new(spills_noted),
            steward: Mutex::new(steward),
            put_off: Mutex::default(),
            fetches: Default::default(),
            event_log,
            copies: Limits {
                gate: Some(Arc::new(Gate::new(GATE_WAIT))),
                ..Limits::plain(Priority::Demand)
            },
            written_back: Arc::default(),
        })
    }

    /// Whether the tiers are this daemon's still.
    pub(crate) fn has_tiers(&self) -> bool {
        self.tiers.iter().all(|slot| slot.lock.lock().is_some())
    }

    /// The files whose bytes lie in spill files and on no tier, and how many bytes these are.
    pub fn spilled_files(&self) -> (u64, u64) {
        if !self.spills_noted.load(Ordering::Acquire) {
            return (0, 0);
        }
        let backlog = self.meta.backlog(Seq(0), LOOKED_AT).unwrap_or_default().into_iter();
        let records = backlog.filter_map(|(_, ino)| self.meta.get(ino).ok());
        let spilled = records.filter(|record| {
            record.spilled && !record.links.is_empty() && !self.is_unsettled(record.ino)
        });
        spilled.fold((0, 0), |(files, bytes), record| (files + 1, bytes + record.attr.size))
    }

    /// A record as this node may use it: what another node has not written back is not there.
    pub(crate) fn as_seen_here(&self, record: &Arc<Record>) -> Arc<Record> {
        if !self.peers.is_elsewhere(record) {
            return record.clone();
        }
        let mut seen = (**record).clone();
        seen.spilled = false;
        seen.mark_clean();
        seen.attr.size = record.backing.fingerprint.map_or(0, |print| print.size);
        Arc::new(seen)
    }

    /// An opened backing file must be of the version that is known, in a cluster of that which lies on
    /// the tier beside it.
    pub(crate) fn check_version(&self, ino: Ino, opened: &dyn BackingFile) -> Result<()> {
        if self.peers.judges_store_alone() {
            return self.above.check_known_version(ino, opened);
        }
        let clean = self.residents.get(ino.0).filter(|resident| !resident.dirty);
        let Some(resident) = clean else { return Ok(()) };
        let base = self.tiers[usize::from(resident.tier)].tier.open(ino.0)?.header()?.base;
        let found = opened.stat()?.fingerprint();
        if base.is_some_and(|base| base.same_content(&found)) {
            return Ok(());
        }
        tracing::debug!(%ino, "another node has written the file since it was opened");
        Err(rustix::io::Errno::STALE.into())
    }

    /// Why the kernel can't be handed files for passthrough; `None` when it can.
    pub fn passthrough_refusal(&self) -> Option<RefusalReason> {
        if self.config.passthrough == crate::Passthrough::Off {
            return Some(RefusalReason::Off);
        }
        // What the kernel makes durable without asking, for `O_DSYNC` and by `msync`, is so on the tier
        // alone. A reader's registration would let the kernel map the object for writers, too.
        if self.config.durability == Durability::Backing && !self.config.read_only {
            return Some(RefusalReason::Durability);
        }
        match self.kernel.get() {
            None => Some(RefusalReason::NoKernel),
            Some(kernel) => (!kernel.passthrough()).then(|| kernel.refusal()),
        }
    }

    /// The path of an inode, empty if it has none.
    pub(crate) fn path_of(&self, ino: Ino) -> Vec<u8> {
        self.meta.path(ino).ok().flatten().unwrap_or_default()
    }

    /// As [`seams::ColdReads::pace`].
    pub(crate) fn pace(&self) {
        if let Some(cold) = &self.cold {
            cold.pace();
        }
    }

    pub(crate) fn read_cold(
        &self,
        backing: &dyn BackingFile,
        buffer: &mut [u8],
        at: u64,
    ) -> Result<usize> {
        match &self.cold {
            Some(cold) => cold.read_cold(backing, buffer, at),
            None => Ok(backing.read_at(buffer, at)?),
        }
    }

    fn copied_cold(
        &self,
        backing: &dyn BackingFile,
        object: &dyn Bytes,
        size: u64,
    ) -> Result<bool> {
        self.cold.as_ref().map_or(Ok(false), |cold| cold.copied_cold(backing, object, size))
    }
}
