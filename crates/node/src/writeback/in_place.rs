//! Changes of files that others know already, piece by piece: a node that was stopped in the middle, and
//! taken for dead, must not go on with them. Whoever publishes by a rename is shut out by the store
//! itself; here it is the node that asks, right before each piece, whether it still may. What the
//! kernel had taken of a piece before the stop comes all the same.

use std::ops::Range;
use std::sync::Arc;

use forebay_store::copy::{self, Cancel, Limits, Permit, Priority};
use forebay_store::{BackingFile, Bytes, StoreError};

use super::Writeback;
use super::seams::WorkRights;
use crate::error::{NodeError, Result};

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
