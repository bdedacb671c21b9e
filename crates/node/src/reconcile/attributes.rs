//! Attributes and extended attributes.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;

use forebay_meta::{Error as MetaError, FileKind, Ino, Record};
use forebay_store::backing::{SetAttributes, XattrMode};
use forebay_store::{Attributes, Dir, ErrorClass, StoreError};

use super::identity::is_own;
use super::names::os;
use super::work::Work;
use crate::convert;
use crate::error::Result;
use crate::node::Node;

/// Directories whose times are to be set again, at most.
const MOST_ENTRIES_WRITTEN: usize = 10_000;

impl Node {
    /// Writes mode, owner, times and extended attributes where they differ.
    pub(super) fn write_attributes(&self, work: &mut Work<'_>) -> Result<()> {
        let (attributes, xattrs) =
            (work.record.backing.attrs_differ, work.record.backing.xattrs_differ);
        if !attributes && !xattrs {
            return Ok(());
        }
        let (dir, name) = self.backing_place(&work.record)?;
        let before = self.backing.stat(&dir, os(&name))?;
        let itself = match work.record.is_directory() {
            true => Some(self.backing_dir(work.ino())?),
            false => None,
        };
        let changed: Vec<(Ino, &Dir)> =
            itself.as_ref().map(|dir| (work.ino(), dir)).into_iter().collect();
        let record = work.record.clone();
        if attributes && itself.is_none() && convert::time(before.mtime) != record.attr.mtime {
            self.intend_in_place(work)?;
        }
        self.own_change(&changed, || {
            if attributes {
                self.set_owner_and_mode(&record, &dir, &name, &before)?;
            }
            if xattrs {
                self.set_xattrs(&record, &dir, &name)?;
            }
            if attributes {
                self.set_times(&record, &dir, &name)?;
            }
            Ok(())
        })?;
        let known = work.record.backing.fingerprint;
        let unchanged = known.is_none() || is_own(&work.record, &before);
        work.attributes_done();
        if xattrs {
            work.xattrs_done();
        }
        if let Some(dir) = itself {
            work.touched(work.ino(), &dir);
        } else if unchanged {
            let after = self.backing.stat(&dir, os(&name))?.fingerprint();
            if record.attr.kind == FileKind::File && !after.same_content(&before.fingerprint()) {
                self.copy_has_other_times(work.ino(), before.fingerprint(), after);
            }
            work.settled(convert::fingerprint(after));
        }
        Ok(())
    }

    fn set_owner_and_mode(
        &self,
        record: &Record,
        dir: &Dir,
        name: &[u8],
        found: &Attributes,
    ) -> Result<()> {
        let attr = &record.attr;
        let owner_differs = (found.uid, found.gid) != (attr.uid, attr.gid);
        // A change of owner clears the set-id bits.
        let mode_differs = found.mode != attr.perm || owner_differs && attr.perm & 0o6000 != 0;
        let set = SetAttributes {
            mode: (mode_differs && attr.kind != FileKind::Symlink).then_some(attr.perm),
            uid: (found.uid != attr.uid).then_some(attr.uid),
            gid: (found.gid != attr.gid).then_some(attr.gid),
            ..SetAttributes::default()
        };
        if set != SetAttributes::default() {
            self.backing.set_attributes(dir, os(name), &set)?;
        }
        Ok(())
    }

    fn set_times(&self, record: &Record, dir: &Dir, name: &[u8]) -> Result<()> {
        let set = SetAttributes {
            atime: Some(convert::store_time(record.attr.atime)),
            mtime: Some(convert::store_time(record.attr.mtime)),
            ..SetAttributes::default()
        };
        Ok(self.backing.set_attributes(dir, os(name), &set)?)
    }

    fn set_xattrs(&self, record: &Record, dir: &Dir, name: &[u8]) -> Result<()> {
        let wanted: BTreeMap<_, _> = self.known_xattrs(record)?.into_iter().collect();
        let found: BTreeMap<_, _> = self.read_xattrs(dir, name)?.into_iter().collect();
        for (attribute, value) in &wanted {
            if found.get(attribute) == Some(value) {
                continue;
            }
            match self.backing.set_xattr(dir, os(name), os(attribute), value, XattrMode::Any) {
                Err(error) if is_refused(&error) => warn_refused(record, attribute, &error),
                set => set?,
            }
        }
        let gone =
            found.keys().filter(|name| !wanted.contains_key(*name) && is_ours_to_remove(name));
        for attribute in gone {
            match self.backing.remove_xattr(dir, os(name), os(attribute)) {
                Err(error) if error.class() == ErrorClass::NotFound => {}
                Err(error) if is_refused(&error) => warn_refused(record, attribute, &error),
                removed => removed?,
            }
        }
        Ok(())
    }

    /// The extended attributes as far as they are known here.
    pub(super) fn known_xattrs(&self, record: &Record) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        match self.meta.xattr_all(record.ino) {
            Err(MetaError::XattrsUnknown(_)) => Ok(Vec::new()),
            all => Ok(all?),
        }
    }

    /// A worker changed entries of a directory, and with them its times.
    pub(super) fn entries_written(&self, dir: Ino) {
        let mut written = self.reconciler.entries_written.lock();
        if written.len() < MOST_ENTRIES_WRITTEN {
            written.insert(dir.0);
        }
    }

    /// Gives directories whose entries were written the times that programs see, now that no more
    /// is to come.
    pub(super) fn restore_directory_times(&self) {
        let dirs = std::mem::take(&mut *self.reconciler.entries_written.lock());
        for dir in dirs.into_iter().map(Ino) {
            if let Err(error) = self.restore_times_of(dir) {
                tracing::debug!(%dir, %error, "the times of a directory stay as they are");
            }
        }
    }

    fn restore_times_of(&self, dir: Ino) -> Result<()> {
        let Some(record) = self.known(dir)? else { return Ok(()) };
        if !record.is_directory() || dir != Ino::ROOT && record.backing.links.is_empty() {
            return Ok(());
        }
        let handle = self.backing_dir(dir)?;
        let found = self.backing.stat(&handle, os(b""))?;
        if convert::time(found.mtime) != record.attr.mtime {
            self.own_change(&[(dir, &handle)], || self.set_times(&record, &handle, b""))?;
            self.settle_directory(dir)?;
        }
        Ok(())
    }
}

/// Whether the backing store can't have this extended attribute: it stays known here alone.
pub(super) fn is_refused(error: &StoreError) -> bool {
    matches!(error.class(), ErrorClass::Unsupported | ErrorClass::Denied)
}

pub(super) fn warn_refused(record: &Record, attribute: &[u8], error: &StoreError) {
    tracing::warn!(
        ino = %record.ino,
        attribute = %attribute.escape_ascii(),
        %error,
        "the backing store does not take an extended attribute: it is lost with this node"
    );
}

/// Labels that the system itself puts on files are left alone.
fn is_ours_to_remove(attribute: &[u8]) -> bool {
    const OURS: [&[u8]; 4] = [b"user.", b"trusted.", b"system.posix_acl_", b"security.capability"];
    let attribute = os(attribute).as_bytes();
    OURS.iter().any(|prefix| attribute.starts_with(prefix))
}
