//! Changes of files that others know already, piece by piece: a node that was stopped in the middle, and
//! taken for dead, must not go on with them. Whoever publishes by a rename is shut out by the store
//! itself; here it is the node that asks, right before each piece, whether it still may. What the
//! kernel had taken of a piece before the stop comes all the same.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use forebay_meta::Queue;
use forebay_store::backing::Access;
use forebay_store::copy::{self, Cancel, Limits, Permit, Priority};
use forebay_store::{Attributes, BackingFile, Bytes, ErrorClass, StoreError};

use super::Writeback;
use super::seams::WorkRights;
use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::failpoints::fail_at;
use crate::residency::files::FileRef;

/// How long whoever cuts a file waits for a worker that is at it.
const WORKER_TIMEOUT: Duration = Duration::from_secs(2);

/// A node's right to change the backing store.
struct MayChange(Arc<dyn WorkRights>);

impl Permit for MayChange {
    fn holds(&self) -> bool {
        self.0.may_change_store().is_ok()
    }
}

impl Writeback {
    /// The conditions of such a change.
    pub(super) fn limits_in_place(&self) -> Limits {
        let permit = Arc::new(MayChange(self.rights.clone()));
        Limits { permit: Some(permit), ..self.residency.limits(Priority::WriteBack) }
    }

    /// Nothing was written in place after all: what others have made of the file is not ours.
    pub(super) fn take_back_in_place(&self, file: &FileRef) -> Result<()> {
        self.meta.update(file.ino, None, |record| {
            record.backing.pending = None;
            Queue::Yes
        })?;
        match file.location.read().place() {
            Some(place) => self.residency.take_back_announcement(place),
            None => Ok(()),
        }
    }

    /// Copies as long as this node may change the backing store.
    pub(super) fn copy_in_place(
        &self,
        from: &dyn Bytes,
        to: &dyn BackingFile,
        range: Range<u64>,
        limits: &Limits,
    ) -> Result<()> {
        match copy::copy_range(from, to, range, limits, &Cancel::default()) {
            Err(StoreError::Cancelled) => {
                self.rights.may_change_store()?;
                // It may again: the file is looked at anew.
                Err(NodeError::Busy)
            }
            copied => Ok(copied.map(drop)?),
        }
    }
}

/// What others have made of a file since it was looked at: to note that it is about to be written takes
/// as long as a device does.
pub(super) fn changed_since(
    file: &dyn BackingFile,
    looked: &Attributes,
) -> Result<Option<Attributes>> {
    let now = file.stat()?;
    Ok(Some(now).filter(|now| !now.fingerprint().same_content(&looked.fingerprint())))
}

/// What needs no room, and gives some back.
pub(crate) enum Cut {
    /// The file gets this length.
    To(u64),
    /// A hole within the file.
    Hole(Range<u64>),
}

impl Writeback {
    /// Cuts a file in the backing store itself, for lack of room for anything else: no tier can take an object
    /// of it, and the store no spill file. False if the file is not only there, or not in line with it, or if
    /// that is no cut. A death in between leaves what others might have done, and is taken in as that.
    ///
    /// # Errors
    /// What the backing store and the namespace say; `ESTALE` if others have changed the file.
    pub(crate) fn cut_below(&self, context: &Context, file: &FileRef, cut: &Cut) -> Result<bool> {
        if file.location.read().place().is_some() {
            return Ok(false);
        }
        context.wait()?;
        let record = self.meta.get(file.ino)?;
        if record.namespace_differs() && !(record.is_dirty() || record.spilled) {
            // Its attributes and names, on their way there, need no room as a rule.
            if let Err(error) = self.reconcile(file.ino) {
                tracing::debug!(ino = %file.ino, %error, "a file can't be cut before it is in line");
            }
        }
        let Some(_owned) = self.own(file.ino, WORKER_TIMEOUT) else { return Ok(false) };
        let mut location = file.location.write();
        let record = self.meta.get(file.ino)?;
        let cuts = match cut {
            Cut::To(size) => *size < record.attr.size,
            Cut::Hole(range) => range.start < range.end.min(record.attr.size),
        };
        if !cuts || !self.residency.is_below_alone(&location, &record) {
            return Ok(false);
        }
        let below = self.open_backing(&record, Access::ReadWrite)?;
        self.residency.check_version(file.ino, &*below)?;
        self.rights.may_change_store()?;
        // A call that came later may have been answered since.
        self.residency.given_up.check(context)?;
        file.count_write();
        fail_at!("node.truncate.before_cut_below");
        let done = match cut {
            Cut::To(size) => below.set_len(*size),
            Cut::Hole(range) => {
                below.punch(range.start, range.end.min(record.attr.size) - range.start)
            }
        };
        match done {
            Err(error) if error.class() == ErrorClass::Unsupported => return Ok(false),
            done => done?,
        }
        fail_at!("node.truncate.cut_below");
        // A sync of the file has nothing else to write.
        below.sync(false)?;
        self.residency.was_cut_below(file.ino, &mut location, &below.stat()?)?;
        Ok(true)
    }
}
