//! Operations on names and attributes: what POSIX leaves to the file system.
//!
//! The front's kernel checks permissions (`default_permissions`): read, write, execute, the sticky
//! bit, ownership for chmod and chown. What is done here is the rest: inheritance of groups and
//! access lists, set-id bits, times, and the order in which the namespace, the data and the
//! backlog learn of a change.
//!
//! Each operation first finds what it needs, which may have to wait for the backing store, and
//! only then changes something.
//!
//! Owns: what the namespace keeps in memory beside the records ([`Namespace`]): attributes of
//! removed inodes, files that a rename has just replaced, the size of the file system, listings
//! read ahead. Must not know: what requests do with bytes, who else serves them.
//!
//! # Invariants
//! - What was read ahead is shown as it is now (`tests/names.rs`), and what a slow reader of a
//!   listing costs is linear (`ahead.rs`, `tests/listings.rs`).
//! - A file that is replaced by a rename can still be opened for a moment by whoever looked it up
//!   before (`tests/open_races.rs`, `crates/fuse/tests/mount.rs`).
//! - An operation on a name waits for the backing store only where the name or its directory is not
//!   known yet (`reconcile/tests/imports.rs`).

mod acl;
mod ahead;
pub(crate) mod attributes;
mod groups;
mod listing;
mod names;
pub(crate) mod paths;
mod removed_attributes;
pub(crate) mod set_ids;
mod statfs;
mod unlink_grace;
mod xattrs;

use std::sync::Arc;
use std::time::Duration;

use forebay_meta::{Moment, Record};
use forebay_store::backing::is_reserved;
use forebay_types::Ino;
use rustix::io::Errno;

use crate::error::{NodeError, Result};
use crate::node::Node;
use crate::stat::Stat;

pub(crate) use attributes::perm_after_write;
pub use attributes::{SetAttr, SetTime};
pub use listing::DirEntry;
pub use names::NewFile;
pub use statfs::Statfs;

pub(crate) use names::{Found, NewName};

/// How long a change of the namespace waits for others to be brought to the backing store with it.
const RECONCILE_DELAY: Duration = Duration::from_secs(1);

/// The longest name, in bytes.
pub const NAME_MAX: usize = 255;

impl Stat {
    /// Type and permissions, as `st_mode`.
    #[must_use]
    pub fn mode(&self) -> u32 {
        self.attr.kind.mode_bits() | self.attr.perm
    }
}

/// What the namespace keeps in memory beside the records.
#[derive(Default)]
pub struct Namespace {
    pub(crate) removed_inodes: removed_attributes::RemovedAttributes,
    statfs: statfs::Cached,
    pub(crate) unlink_grace: unlink_grace::UnlinkGrace,
    ahead: ahead::Ahead,
}

impl Node {
    /// The attributes behind a record.
    pub(crate) fn stat(&self, record: &Record) -> Stat {
        self.stat_since(record, None)
    }

    /// As [`Node::stat`]; the record was read after the moment.
    fn stat_since(&self, record: &Record, moment: Option<Moment>) -> Stat {
        let (attr, blocks) = self.residency.live_attr_since(record, moment);
        let is_file = attr.kind == forebay_meta::FileKind::Regular;
        let file = is_file.then(|| self.residency.files.peek(record.ino)).flatten();
        let open = file.as_ref().is_some_and(|file| file.is_open());
        let (mut alias, mut is_fleeting) = (0, false);
        if let Some(file) = file {
            let opens = file.opens.lock();
            alias = opens.now.number;
            is_fleeting =
                opens.passes_to_object() && opens.writers > 0 || file.set_ids.are_watched();
        }
        Stat { ino: record.ino, attr, blocks, open, alias, is_fleeting }
    }

    /// The path of an inode from the root of the mount, without a leading slash; `None` if it has
    /// no name.
    ///
    /// # Errors
    /// If there is no such inode.
    pub fn path(&self, ino: Ino) -> Result<Option<Vec<u8>>> {
        Ok(self.meta.path(ino)?)
    }

    /// Has the backlog's workers look at a record that was changed.
    fn queue(&self, record: &Record) {
        if record.queued.is_some() {
            self.writeback.reconcile_later(record.ino, RECONCILE_DELAY);
        }
    }

    /// What the namespace knows about an inode.
    ///
    /// # Errors
    /// `ESTALE`.
    pub fn record(&self, ino: Ino) -> Result<Arc<Record>> {
        Ok(self.meta.get(ino)?)
    }
}

/// Refuses what can't be the name of anything.
fn check_name(name: &[u8]) -> Result<()> {
    match name {
        _ if name.len() > NAME_MAX => Err(Errno::NAMETOOLONG.into()),
        b"" => Err(Errno::NOENT.into()),
        b"." | b".." => Err(Errno::EXIST.into()),
        _ if name.iter().any(|&byte| byte == b'/' || byte == 0) => Err(Errno::INVAL.into()),
        _ => Ok(()),
    }
}

/// Whether the name is kept for Forebay's own files in the backing store.
fn reserved(dir: Ino, name: &[u8]) -> bool {
    let name = std::os::unix::ffi::OsStrExt::from_bytes(name);
    is_reserved(name, dir == Ino::ROOT)
}

impl Node {
    /// Refuses names that nothing may be given.
    fn check_new_name(&self, dir: Ino, name: &[u8]) -> Result<()> {
        check_name(name)?;
        if reserved(dir, name) {
            return Err(NodeError::Posix(Errno::PERM));
        }
        if self.writeback.store_alters(name) {
            return Err(NodeError::Posix(Errno::INVAL));
        }
        Ok(())
    }
}
