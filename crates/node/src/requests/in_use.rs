//! Files that are about to be opened or changed: nobody evicts them meanwhile.

use std::sync::atomic::Ordering;

use crate::residency::files::{File, FileRef};

/// An open that is being made, or a change by name: counts as an open, so that nobody evicts under it.
pub(crate) struct InUse<'a>(&'a File);

impl<'a> InUse<'a> {
    pub(crate) fn new(file: &'a File) -> Self {
        file.opening.fetch_add(1, Ordering::AcqRel);
        InUse(file)
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.0.opening.fetch_sub(1, Ordering::AcqRel);
    }
}

/// As [`InUse`], of a file that is being made.
pub(super) struct Announced(FileRef);

impl Announced {
    pub(super) fn new(file: FileRef) -> Self {
        file.opening.fetch_add(1, Ordering::AcqRel);
        Announced(file)
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        self.0.opening.fetch_sub(1, Ordering::AcqRel);
    }
}
