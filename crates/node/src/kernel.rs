//! What the node asks of the kernel, as a trait: registrations for passthrough, invalidations, and
//! notes of what must outlive the daemon. `forebay-fuse` implements it; without a front nothing is
//! registered.
//!
//! Owns nothing. Must not know: FUSE, how notices are sent.
//!
//! # Invariants
//! - No call waits for a program or for the kernel's locks: a registration is one system call,
//!   notices are queued, and [`Kernel::expire_at_once`] goes by means that never wait.
//! - What was noted ([`Kernel::note_removed`], [`Kernel::note_lock_owner`]) is found by the next
//!   daemon after a death of this one, where a supervisor or systemd keeps the recovery journal.

use std::io;
use std::os::fd::BorrowedFd;

use forebay_core::cluster::grants::Fact;

use crate::hand_over_state::LockOwner;
use crate::hand_over_state::RemovedInode;
use crate::metrics::RefusalReason;

/// The kernel as seen through the front.
pub trait Kernel: Send + Sync {
    /// Whether files can be registered for passthrough.
    fn passthrough(&self) -> bool;

    /// Why no file can be registered, where none can.
    fn refusal(&self) -> RefusalReason {
        RefusalReason::NoKernel
    }

    /// Registers a file for passthrough and returns its id.
    ///
    /// # Errors
    /// As the kernel says: no privilege (`EPERM`), a stacked file system (`ELOOP`), no room.
    fn register(&self, fd: BorrowedFd<'_>) -> io::Result<u32>;

    /// Gives a registration back.
    fn unregister(&self, id: u32);

    /// Drops the kernel's cached attributes and pages of an inode. It has those pages until somebody who
    /// may come later has told it ([`Kernel::has_old_pages`]).
    fn forget_inode(&self, ino: u64);

    /// Says that the pages which the kernel has of an inode are of a former version from now on.
    /// [`Kernel::forget_inode`] is to follow when there is none but the new one to be read.
    fn pages_become_old(&self, ino: u64) {
        let _ = ino;
    }

    /// Whether the kernel may have pages of an inode that it is to drop, so that an open must not let it
    /// keep what it has.
    fn has_old_pages(&self, ino: u64) -> bool {
        let _ = ino;
        false
    }

    /// Drops the kernel's cached attributes of an inode, not its pages.
    fn forget_attributes(&self, ino: u64);

    /// Hears of an inode that is about to be removed, or was, and that somebody may still use, so that
    /// its attributes outlive the daemon. Whether it was removed, its record says.
    fn note_removed(&self, removed_inodes: &RemovedInode) {
        let _ = removed_inodes;
    }

    /// Hears who is about to lock, so that it outlives the daemon; false if it can't be kept.
    fn note_lock_owner(&self, owner: &LockOwner) -> bool {
        let _ = owner;
        true
    }

    /// Hears of an owner who has no locks of a file any more, whichever handles he had them through.
    fn forget_lock_owner(&self, owner: &LockOwner) {
        let _ = owner;
    }

    /// Has the kernel ask again for what it was told and kept; `done` is called when it has listened,
    /// or has nothing. Does not wait for it.
    fn expire(&self, facts: Vec<Fact>, done: Box<dyn FnOnce() + Send>) {
        drop(facts);
        done();
    }

    /// The same for these facts, and for all names if there is one among them, at once, by means that
    /// never wait for anybody; false if there are none.
    fn expire_at_once(&self, facts: &[Fact]) -> bool {
        let _ = facts;
        true
    }

    /// Drops a name that the kernel cached.
    fn forget_entry(&self, parent: u64, name: &[u8]);
}
