//! How residency and write-back reach the cluster and the node that stand on them: this implements
//! the traits of `residency/seams.rs` and `writeback/seams.rs`.
//!
//! Owns nothing but weak references: a room below never keeps the node alive. Nothing is decided
//! here; each method is one call. Must not know: why it is called.
//!
//! # Invariants
//! - Once the node is gone, what must be done fails with `ShuttingDown`, and what is only told goes
//!   nowhere.

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use forebay_meta::{Attr, Fingerprint, Link, Record};
use forebay_store::backing::Dir;
use forebay_store::{Attributes, BackingFile, Header};
use forebay_types::Ino;

use crate::cluster::Cluster;
use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::node::Node;
use crate::residency::data_location::{DataLocation, TierObject};
use crate::residency::fetch::FetchMode;
use crate::residency::files::{File, FileRef};
use crate::residency::residents::Resident;
use crate::residency::seams::{AboveResidency, NoPeers, Peers};
use crate::residency::seams::{Deliver, SharedCopy};
use crate::writeback::seams::{AboveWriteback, WorkRights};

/// The node, which lives as long as anybody asks.
pub(crate) struct Upper(pub(crate) Weak<Node>);

impl Upper {
    fn node(&self) -> Result<Arc<Node>> {
        self.0.upgrade().ok_or(NodeError::ShuttingDown)
    }
}

/// The other nodes, as long as this one has a part in their cluster.
pub(crate) struct Others(pub(crate) Weak<Cluster>);

impl Others {
    fn cluster(&self) -> Result<Arc<Cluster>> {
        self.0.upgrade().ok_or(NodeError::ShuttingDown)
    }
}

impl Peers for Others {
    fn changes_namespace_alone(&self) -> bool {
        false
    }

    fn judges_store_alone(&self) -> bool {
        false
    }

    fn may_write_below(&self) -> bool {
        false
    }

    fn is_elsewhere(&self, record: &Record) -> bool {
        self.cluster()
            .map_or_else(|_| NoPeers.is_elsewhere(record), |cluster| cluster.is_elsewhere(record))
    }

    fn may_have_written(&self, record: &Record) -> bool {
        self.cluster().is_ok_and(|cluster| cluster.may_have_written(record))
    }

    fn adopt_copy(&self, record: &Record) -> Result<Option<Resident>> {
        self.cluster()?.adopt_copy(record)
    }

    fn pages_published(&self, ino: Ino, version: Fingerprint) {
        if let Ok(cluster) = self.cluster() {
            cluster.pages_published(ino, version);
        }
    }

    fn shared(&self, ino: Ino, print: &Fingerprint, unit: u64) -> Option<SharedCopy> {
        self.cluster().ok()?.shared(ino, print, unit)
    }

    fn fetch_from_peers(
        &self,
        shared: &SharedCopy,
        backing: &dyn BackingFile,
        indexes: &[u64],
        deliver: Deliver<'_>,
    ) -> Result<bool> {
        self.cluster()?.fetch_from_peers(shared, backing, indexes, deliver)
    }

    fn fill_shared(&self, file: &FileRef, range: Range<u64>, mode: FetchMode<'_>) -> Result<bool> {
        self.cluster()?.fill_shared(file, range, mode)
    }

    fn announce(&self, shared: &SharedCopy, indexes: Vec<u64>) {
        if let Ok(cluster) = self.cluster() {
            cluster.announce(shared, indexes);
        }
    }

    fn renounce(&self, shared: &SharedCopy, indexes: Vec<u64>) {
        if let Ok(cluster) = self.cluster() {
            cluster.renounce(shared, indexes);
        }
    }
}

impl AboveResidency for Upper {
    fn reconcile_later(&self, ino: Ino, delay: Duration) {
        if let Ok(node) = self.node() {
            node.writeback.reconcile_later(ino, delay);
        }
    }

    fn flush_soon(&self, ino: Ino) -> bool {
        self.node().is_ok_and(|node| node.writeback.flush_soon(ino))
    }

    fn is_wanted(&self, ino: Ino) -> bool {
        self.node().is_ok_and(|node| node.writeback.reconciler.wanted.lock().contains(&ino.0))
    }

    fn is_idle(&self) -> bool {
        self.node().map_or(true, |node| node.writeback.reconciler_is_idle())
    }

    fn backing_dir(&self, dir: Ino) -> Result<Dir> {
        self.node()?.writeback.backing_dir(dir)
    }

    fn open_closed_dirs(&self, record: &Record) -> Result<bool> {
        self.node()?.writeback.open_closed_dirs(record)
    }

    fn open_version(&self, ino: Ino) -> Result<Arc<dyn BackingFile>> {
        self.node()?.writeback.open_version(ino)
    }

    fn open_known_version(&self, ino: Ino) -> Result<Arc<dyn BackingFile>> {
        self.node()?.writeback.open_known_version(ino)
    }

    fn check_known_version(&self, ino: Ino, opened: &dyn BackingFile) -> Result<()> {
        self.node()?.writeback.check_known_version(ino, opened)
    }

    fn check_rest_below(
        &self,
        file: &File,
        location: &DataLocation,
        place: &TierObject,
    ) -> Result<()> {
        self.node()?.writeback.check_rest_below(file, location, place)
    }

    fn takes_newer_version(&self, file: &File, error: &NodeError) -> bool {
        self.node().is_ok_and(|node| node.writeback.takes_newer_version(file, error))
    }

    fn found_at_start(&self, record: &Record, link: &Link) -> Result<Option<Attributes>> {
        self.node()?.found_at_start(record, link)
    }

    fn published_meanwhile(&self, record: &Record, header: &Header) -> Result<Option<Fingerprint>> {
        self.node()?.published_meanwhile(record, header)
    }

    fn forget_half_written(&self, ino: Ino) -> Result<()> {
        self.node()?.writeback.forget_half_written(ino)
    }

    fn keep_open(&self, file: &FileRef) -> bool {
        self.node().is_ok_and(|node| node.writeback.keep_open(file))
    }

    fn hold_opened_rest(&self, file: &FileRef, location: &DataLocation) {
        if let Ok(node) = self.node() {
            node.writeback.hold_opened_rest(file, location);
        }
    }

    fn let_go_of_rest(&self, ino: Ino) {
        if let Ok(node) = self.node() {
            node.writeback.let_go_of_rest(ino);
            node.writeback.reconciler.published_open.let_go(ino);
        }
    }

    fn note_rest_gone(&self, ino: Ino) {
        if let Ok(node) = self.node() {
            node.writeback.note_rest_gone(ino);
        }
    }

    fn forget_rest_gone(&self, ino: Ino) -> bool {
        self.node().is_ok_and(|node| node.writeback.forget_rest_gone(ino))
    }

    fn look_for_lost_set_ids_later(&self, ino: Ino) {
        if let Ok(node) = self.node() {
            node.later(move |node| node.look_for_lost_set_ids(&node.residency.files.get(ino)));
        }
    }
}

impl WorkRights for Others {
    fn shares_work(&self) -> bool {
        true
    }

    fn begin_work(&self, ino: Ino, until: Instant) -> bool {
        self.cluster().is_ok_and(|cluster| cluster.begin_work(ino, until))
    }

    fn end_work(&self, ino: Ino) {
        if let Ok(cluster) = self.cluster() {
            cluster.end_work(ino);
        }
    }

    fn may_change_store(&self) -> Result<()> {
        self.cluster()?.may_change_store()
    }

    fn is_others_work(&self, record: &Record) -> bool {
        self.cluster().map_or(true, |cluster| cluster.is_others_work(record))
    }

    fn is_left_orphan(&self, record: &Record) -> bool {
        self.cluster().is_ok_and(|cluster| cluster.is_left_orphan(record))
    }

    fn let_go_of_owned(&self, record: &Record) -> Result<bool> {
        self.cluster()?.let_go_of_owned(record)
    }

    fn list_before_removal(&self, record: &Record) -> Result<()> {
        self.cluster()?.list_before_removal(record)
    }

    fn doubt_place(&self, ino: Ino) {
        if let Ok(cluster) = self.cluster() {
            cluster.doubt_place(ino);
        }
    }
}

impl AboveWriteback for Upper {
    fn known_xattrs(&self, ino: Ino) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let node = self.node()?;
        node.with_known_xattrs(&Context::DAEMON, ino, |_| Ok(node.meta.xattr_all(ino)?))
    }

    fn last_close(&self, file: &FileRef) {
        if let Ok(node) = self.node() {
            node.last_close(file);
        }
    }

    fn let_go_of_replaced(&self) {
        if let Ok(node) = self.node() {
            node.let_go_of_replaced();
        }
    }

    fn has_vanished(&self, ino: Ino, attr: Attr) {
        if let Ok(node) = self.node() {
            node.remember_removed(ino, attr);
        }
    }

    fn refresh_statfs(&self) {
        if let Ok(node) = self.node() {
            node.try_to_refresh_statfs();
        }
    }

    fn note_new_mounts(&self) -> Result<()> {
        self.node()?.note_new_mounts()
    }
}
