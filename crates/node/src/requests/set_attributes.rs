//! Setting attributes, the length of a file among them.

use forebay_meta::Error as MetaError;
use forebay_types::{FileKind, Ino};
use rustix::io::Errno;

use crate::cluster::AccessMode;
use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::namespace::SetAttr;
use crate::namespace::attributes::BesideSize;
use crate::node::Node;
use crate::stat::Stat;

impl Node {
    /// Sets attributes and returns all of them.
    ///
    /// # Errors
    /// `EISDIR` and `EINVAL` for the length of something that is no file; what setting the length
    /// of a file meets.
    pub fn setattr(&self, context: &Context, ino: Ino, set: &SetAttr) -> Result<Stat> {
        let mut record = match self.fresh(context, ino) {
            Err(NodeError::Meta(MetaError::Stale(_))) => {
                return self.set_removed(context, ino, set);
            }
            record => record?,
        };
        if set.size.is_some() && record.attr.kind != FileKind::Regular {
            let directory = record.is_directory();
            return Err(if directory { Errno::ISDIR } else { Errno::INVAL }.into());
        }
        // All that may have to wait comes before the first change.
        let file = record.attr.kind == FileKind::Regular;
        let (mut pin, mut owner) = (None, None);
        if let Some(cluster) = &self.cluster
            && file
            && (set.size.is_some() || cluster.is_elsewhere(&record))
        {
            let mode;
            (record, mode) = cluster.newest(context, ino, true)?;
            match mode {
                AccessMode::Forwarded(node) => owner = Some(node),
                AccessMode::Pinned(held) => pin = Some(held),
                AccessMode::Read => {}
            }
            if owner.is_none() {
                cluster.match_version(context, &self.residency.files.get(ino), &record)?;
            }
        }
        if file && let Some(file) = self.residency.files.peek(ino) {
            // From here on what is noted of the object is what this makes of it.
            self.look_for_lost_set_ids(&file);
        }
        let list = match set.mode {
            Some(mode) => self.acl_after_chmod(context, &record, mode)?,
            None => None,
        };
        if let Some(size) = set.size {
            match owner {
                Some(_) => self.truncate_anywhere(context, ino, size)?,
                None => self.truncate(context, &record, size)?,
            }
            record = self.record_now(ino)?;
        }
        if !set.beside_size() {
            return Ok(self.stat(&record));
        }
        let changed = self.set_beside_size(context, &record, &BesideSize { set, list, owner })?;
        drop(pin);
        Ok(self.stat(&changed))
    }
}
