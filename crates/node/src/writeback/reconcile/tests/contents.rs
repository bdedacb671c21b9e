//! What stands for the data side in these tests.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use forebay_meta::Record;
use forebay_store::backing::Access;
use forebay_store::{Attributes, Commit, Expect};
use forebay_types::{Fingerprint, Ino};
use parking_lot::Mutex;

use crate::error::Result;
use crate::residency::seams::Target;
use crate::writeback::Writeback;
use crate::writeback::flush::Flushed;
use crate::writeback::reconcile::data_side::{DataSide, RemovedFiles};
use crate::writeback::reconcile::identity::{is_own, was_changed};
use crate::writeback::reconcile::names;

/// Contents of files that a program wrote and that no tier holds.
#[derive(Default)]
pub(crate) struct Contents {
    pub bytes: Mutex<HashMap<u64, Vec<u8>>>,
    pub open: Mutex<HashSet<u64>>,
    pub stale: Mutex<HashSet<u64>>,
}

impl DataSide for Arc<Contents> {
    fn is_open(&self, _: &Writeback, ino: Ino) -> bool {
        self.open.lock().contains(&ino.0)
    }

    fn flush(
        &self,
        node: &Writeback,
        record: &Arc<Record>,
        target: &Target<'_>,
    ) -> Result<Flushed> {
        let now = node.meta.get(record.ino)?;
        let removed = now.links.is_empty() && !record.links.is_empty();
        if removed || now.backing.fingerprint != record.backing.fingerprint {
            // As of real files: what the caller decided upon was overtaken.
            return Ok(Flushed::Busy);
        }
        let bytes = self.bytes.lock().get(&record.ino.0).cloned().unwrap_or_default();
        let name = names::os(target.name);
        if target.in_place
            && let Some(expect) = target.expect
        {
            let found = node.backing.stat(target.dir, name)?;
            let now = node.meta.get(record.ino)?;
            let own = expect.same_content(&found.fingerprint()) || is_own(&now, &found);
            if !own || was_changed(&now, &found) {
                return Ok(Flushed::Conflict(Some(found)));
            }
            let pending = Fingerprint { size: bytes.len() as u64, ..expect };
            node.intend(record.ino, Some(expect), Some(&found), pending)?;
            let file = node.backing.open_file(target.dir, name, Access::ReadWrite)?;
            file.set_len(bytes.len() as u64)?;
            file.write_at(&bytes, 0)?;
            node.copy_attributes(record, record.attr.mtime, &*file)?;
            return Ok(Flushed::Done { fingerprint: file.stat()?.fingerprint(), clean: true });
        }
        let mut temporary = node.backing.temporary(record.ino.0)?;
        temporary.file().write_at(&bytes, 0)?;
        node.copy_attributes(record, record.attr.mtime, &**temporary.file())?;
        let found = match node.backing.stat(target.dir, name) {
            Err(error) if error.class() == forebay_store::ErrorClass::NotFound => None,
            found => Some(found?),
        };
        let pending = temporary.pending()?;
        let expect = node.intend(record.ino, target.expect, found.as_ref(), pending)?;
        let expect = expect.map_or(Expect::Absent, Expect::Version);
        node.own_change(&[(target.parent, target.dir)], || {
            Ok(match node.backing.commit(&mut temporary, target.dir, name, expect)? {
                Commit::Done(fingerprint) => Flushed::Done { fingerprint, clean: true },
                Commit::Conflict(found) => Flushed::Conflict(found),
            })
        })
    }

    fn made_by(&self, _: &Writeback, _: Ino, _: &Attributes) -> Result<bool> {
        Ok(false)
    }

    fn copy_has_other_times(&self, _: &Writeback, _: Ino, _: Fingerprint, _: Fingerprint) {}

    fn announce(&self, _: &Writeback, _: Ino, _: Fingerprint) -> Result<()> {
        Ok(())
    }

    fn drop_copy(&self, _: &Writeback, ino: Ino) {
        self.stale.lock().insert(ino.0);
    }

    fn discard(&self, _: &Writeback, ino: Ino) {
        self.bytes.lock().remove(&ino.0);
    }

    fn unwritten_bytes(&self, _: &Writeback) -> u64 {
        0
    }

    fn let_removed_go(&self, _: &Writeback) -> RemovedFiles {
        RemovedFiles::default()
    }
}
