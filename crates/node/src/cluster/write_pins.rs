//! The files that this node owns and that have to stay with it, as programs of it can write them.

use std::collections::HashMap;
use std::time::Instant;

use forebay_meta::{Incarnation, Ownership, RecallAim};
use forebay_types::Ino;
use parking_lot::Mutex;
use rustix::io::Errno;

use super::Cluster;
use super::forwarding::Recalled;
use crate::context::Context;
use crate::error::{NodeError, Result};

const STRIPES: usize = 256;
/// Between two attempts to ask an owner that is not there at the moment.
const AWAY: std::time::Duration = std::time::Duration::from_millis(20);

/// Who needs which files here, by inode. A stripe is locked while the ownership of a file in it is taken or
/// given up, so that neither overtakes the other.
pub(super) struct WritePins([Mutex<HashMap<u64, u32>>; STRIPES]);

impl Default for WritePins {
    fn default() -> Self {
        WritePins(std::array::from_fn(|_| Mutex::default()))
    }
}

impl WritePins {
    pub(super) fn stripe(&self, ino: Ino) -> &Mutex<HashMap<u64, u32>> {
        &self.0[(ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % STRIPES]
    }
}

/// How a file may be used that is about to be opened.
pub(crate) enum AccessMode<'a> {
    /// Read, as it is here and in the backing store.
    Read,
    /// Written.
    Pinned(WritePin<'a>),
    /// Reads and writes are forwarded to its owner.
    Forwarded(Incarnation),
}

/// While it lives, no other node gets the file; it may be written here.
#[must_use]
pub(crate) struct WritePin<'a> {
    cluster: &'a Cluster,
    ino: Ino,
}

impl WritePin<'_> {
    /// Leaves the pin to a handle, which gives it back by [`Cluster::unpin`].
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for WritePin<'_> {
    fn drop(&mut self) {
        self.cluster.unpin(self.ino);
    }
}

impl Cluster {
    /// Pins a file that is to be written; without a cluster there is nothing to pin. If another node owns
    /// it, that one is asked to give it up, and this waits until it does, unless its programs can
    /// write it and writes can be forwarded to that node.
    ///
    /// # Errors
    /// `EBUSY` if its programs keep the file open for writing and nodes do not talk to each other;
    /// `EHOSTDOWN` if it does not answer; `ESTALE` if this node is fenced.
    pub(crate) fn pin_for_writing(&self, context: &Context, ino: Ino) -> Result<AccessMode<'_>> {
        let until = Instant::now() + self.config.timeout;
        loop {
            if self.is_fenced() {
                return Err(NodeError::Posix(Errno::STALE));
            }
            let other = {
                let mut pins = self.write_pins.stripe(ino).lock();
                if let Some(writers) = pins.get_mut(&ino.0) {
                    *writers += 1;
                    return Ok(AccessMode::Pinned(WritePin { cluster: self, ino }));
                }
                match self.meta.take_ownership(ino)? {
                    Ownership::Mine(_) => {
                        self.pages_of_former_term(ino);
                        pins.insert(ino.0, 1);
                        return Ok(AccessMode::Pinned(WritePin { cluster: self, ino }));
                    }
                    Ownership::Other(other) => other,
                }
            };
            context.wait()?;
            match self.recall(ino, other)? {
                Recalled::Given => {}
                Recalled::InUse => return Ok(AccessMode::Forwarded(other)),
                Recalled::Away if Instant::now() < until => std::thread::sleep(AWAY),
                Recalled::Away | Recalled::Unknown => {
                    match self.ask_owner(ino, other, RecallAim::Ownership, until) {
                        // It was slow, or its programs can write the file: as it can be talked to, that
                        // is no reason for nobody else to.
                        Err(NodeError::Posix(Errno::BUSY)) if self.may_come_back(other) => {
                            return Ok(AccessMode::Forwarded(other));
                        }
                        asked => asked?,
                    }
                }
            }
        }
    }

    /// Gets the pin for another node whose writes are forwarded to this one, the owner as `is_mine` says.
    pub(crate) fn pin_for_peer<E>(
        &self,
        ino: Ino,
        is_mine: impl FnOnce() -> Result<(), E>,
    ) -> Result<WritePin<'_>, E> {
        let mut pins = self.write_pins.stripe(ino).lock();
        if !pins.contains_key(&ino.0) {
            is_mine()?;
        }
        *pins.entry(ino.0).or_insert(0) += 1;
        Ok(WritePin { cluster: self, ino })
    }

    /// Gives back what a [`WritePin`] has left to a handle. The file stays owned until another node wants it or the
    /// backing store has its bytes.
    pub(crate) fn unpin(&self, ino: Ino) {
        let mut pins = self.write_pins.stripe(ino).lock();
        let Some(count) = pins.get_mut(&ino.0) else { return };
        *count -= 1;
        if *count == 0 {
            pins.remove(&ino.0);
        }
    }

    /// Whether something keeps the file on this node.
    pub(super) fn is_pinned_for_writing(&self, ino: Ino) -> bool {
        self.write_pins.stripe(ino).lock().contains_key(&ino.0)
    }

    /// Gives up a file that nothing keeps here and of which the backing store has all;
    /// whether this node has it no longer.
    pub(crate) fn give_up(&self, ino: Ino) -> Result<bool> {
        let pins = self.write_pins.stripe(ino).lock();
        let dirty = self.residency.residents.get(ino.0).is_some_and(|resident| resident.dirty);
        if dirty || pins.contains_key(&ino.0) {
            return Ok(false);
        }
        Ok(self.meta.give_up_ownership(ino)?)
    }
}
