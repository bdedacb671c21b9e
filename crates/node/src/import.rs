//! Lazy import: the backing store's tree becomes known as it is walked, and outside changes to it
//! are noticed.

use std::sync::Arc;

use forebay_meta::{Ino, Record};
use forebay_store::backing::Access;
use forebay_store::{BackingFile, Dir};

use crate::context::Context;
use crate::error::Result;
use crate::node::Node;

/// What is known about the freshness of imported directories and files, and which listings are
/// under way.
#[derive(Default)]
pub struct Imports {}

impl Node {
    /// The record behind a name, imported from the backing store if it was not known, and compared
    /// with it when the directory's freshness has run out.
    pub(crate) fn find(
        &self,
        context: &Context,
        dir: Ino,
        name: &[u8],
    ) -> Result<Option<Arc<Record>>> {
        todo!()
    }

    /// Returns when all entries of `dir` are imported and fresh.
    pub(crate) fn ensure_listed(&self, context: &Context, dir: Ino) -> Result<()> {
        todo!()
    }

    /// Compares a clean object with the backing store when its freshness has run out; drops stale
    /// copies. The record that counts from now on.
    pub(crate) fn revalidate(&self, context: &Context, record: Arc<Record>) -> Result<Arc<Record>> {
        todo!()
    }

    /// Reads the extended attributes of an imported inode from the backing store if that was not
    /// done yet.
    pub(crate) fn import_xattrs(&self, context: &Context, ino: Ino) -> Result<()> {
        todo!()
    }

    /// A handle on a directory as it stands now in the backing store.
    pub(crate) fn backing_dir(&self, dir: Ino) -> Result<Dir> {
        todo!()
    }

    /// Opens the file that the backing store holds for `record`.
    pub(crate) fn open_backing(
        &self,
        record: &Record,
        access: Access,
    ) -> Result<Arc<dyn BackingFile>> {
        todo!()
    }

    pub(crate) fn import_root(&self) -> Result<()> {
        todo!()
    }
}
