//! Attributes and extended attributes.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use forebay_meta::{Error as MetaError, Record, XattrState, Xattrs};
use forebay_store::backing::{SetAttributes, XattrMode};
use forebay_store::{Attributes, BackingFile, Dir, ErrorClass, StoreError};
use forebay_types::{FileKind, Fingerprint, Ino, Timestamp};

use rustix::process::geteuid;

use super::identity::is_own;
use super::names::os;
use super::refused::is_refused_owner;
use super::work::Work;
use crate::after_refusal::again_after_refusal;
use crate::error::{NodeError, Result};
use crate::writeback::Writeback;
use crate::writeback::import::is_access_list_once_more;

/// So many directories whose times are to be set again do not wait for a quiet moment.
const MAX_ENTRIES_WRITTEN: usize = 10_000;

/// So many directories are held open, and share a sync, when their times are set again.
const MAX_SYNCED_AT_ONCE: usize = 256;

impl Writeback {
    /// Writes mode, owner, times and extended attributes where they differ.
    pub(super) fn write_attributes(&self, work: &mut Work<'_>) -> Result<()> {
        let (attributes, xattrs) =
            (work.record.backing.attrs_differ, work.record.backing.xattrs_differ);
        if !attributes && !xattrs {
            return Ok(());
        }
        // One handle for all: others may put another file under the name at any moment, and that is
        // none of ours.
        let object = self.standing_object(&work.record)?;
        let before = self.backing.stat(&object, OsStr::new(""))?;
        let known = work.record.backing.fingerprint;
        if known.is_none() && before.kind != work.record.attr.kind {
            // Others have put something there since it was made: the next pass looks what is where.
            return Err(NodeError::Busy);
        }
        if known.is_some() && !is_own(&work.record, &before) {
            self.leave_to_others(work);
            return Ok(());
        }
        let itself = match work.record.is_directory() {
            true => Some(self.backing_dir(work.ino())?),
            false => None,
        };
        let changed: Vec<(Ino, &Dir)> =
            itself.as_ref().map(|dir| (work.ino(), dir)).into_iter().collect();
        let record = work.record.clone();
        if itself.is_none() {
            // Also where no time is set: whatever is done moves the change time, and may be answered
            // with an error.
            self.intend_in_place(work)?;
            let mtime = record.attr.mtime;
            if record.attr.kind == FileKind::Regular && mtime != before.mtime {
                let version = Fingerprint { mtime, ..before.fingerprint() };
                self.announce_to_object(work.ino(), version)?;
            }
        }
        self.forget_refused(work.ino());
        self.own_change_of_attributes(&changed, || {
            self.set_where_they_differ(&record, &object, &before)
        })?;
        work.attributes_done();
        if xattrs {
            work.xattrs_done();
        }
        if let Some(dir) = itself {
            work.touched(work.ino(), &dir);
        } else {
            work.note_version(&before.fingerprint());
            let after = self.backing.stat(&object, OsStr::new(""))?.fingerprint();
            let is_file = record.attr.kind == FileKind::Regular;
            // Others may have written to it since its time was set.
            let is_as_set = !is_file
                || after.mtime == before.mtime
                || attributes && is_rounded(after.mtime, record.attr.mtime);
            if (after.ino, after.size) == (before.ino, before.size) && is_as_set {
                if is_file && !after.same_content(&before.fingerprint()) {
                    self.copy_has_other_times(work.ino(), before.fingerprint(), after);
                }
                work.note_change(&after);
                work.at_rest();
            }
            if !work.as_known {
                self.doubt_version(work.ino());
            }
            work.changed(object);
        }
        Ok(())
    }

    fn set_where_they_differ(
        &self,
        record: &Record,
        object: &Dir,
        before: &Attributes,
    ) -> Result<()> {
        let (attributes, xattrs) = (record.backing.attrs_differ, record.backing.xattrs_differ);
        // A plain user may give none to a file that is closed to him by then. A change of owner, which is
        // not for him to make, takes some of them away.
        let xattrs_come_first = !geteuid().is_root();
        if xattrs && xattrs_come_first {
            self.set_xattrs(record, object, before)?;
        }
        if attributes {
            self.set_owner_and_mode(record, object, before)?;
        }
        if xattrs && !xattrs_come_first {
            self.set_xattrs(record, object, before)?;
        }
        if attributes {
            // The time is what tells a change by others: none may be covered up.
            let now = self.backing.stat(object, OsStr::new(""))?;
            if !record.is_directory() && !is_same(before, &now) {
                return Err(NodeError::Busy);
            }
            self.set_times(record, object, true)?;
        }
        Ok(())
    }

    /// A handle on what the backing store has of an inode now.
    pub(super) fn standing_object(&self, record: &Record) -> Result<Dir> {
        let (dir, name) = self.backing_place(record)?;
        // Of the root: itself.
        if name.is_empty() { Ok(dir) } else { Ok(self.backing.hold(&dir, os(&name))?) }
    }

    /// Others have changed or replaced what attributes were set of here: theirs stays as it is, and
    /// what is known here follows it.
    fn leave_to_others(&self, work: &mut Work<'_>) {
        work.attributes_done();
        work.xattrs_done();
        work.theirs = !work.record.is_directory();
        if let Some(link) = work.record.links.first() {
            self.remember(&link.clone(), None, "attributes set here, changed by others");
        }
    }

    fn set_owner_and_mode(&self, record: &Record, object: &Dir, found: &Attributes) -> Result<()> {
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
        if set == SetAttributes::default() {
            return Ok(());
        }
        self.rights.may_change_store()?;
        match self.backing.set_attributes(object, OsStr::new(""), &set) {
            Err(error) if is_refused_owner(&error) => {
                self.note_refused(record.ino, "its owner or mode", &error);
            }
            set => set?,
        }
        let now = self.backing.stat(object, OsStr::new(""))?;
        self.note_attributes_below(record, &now)
    }

    /// Mode, owner, times and extended attributes of a file that is about to be published. What the
    /// backing store can't have of them is named.
    pub(crate) fn copy_attributes(
        &self,
        record: &Record,
        mtime: Timestamp,
        to: &dyn BackingFile,
    ) -> Result<()> {
        self.forget_refused(record.ino);
        if record.xattrs != XattrState::None {
            // Of an imported file nobody may have asked for them yet: the version that is about to be
            // replaced has them.
            let mut all = self.above.known_xattrs(record.ino)?;
            let found = to.stat()?;
            if !all.is_empty() && found.mode & 0o600 != 0o600 && !geteuid().is_root() {
                // A turn that came to nothing may have closed it to its owner already.
                let mode = Some(found.mode | 0o600);
                to.set_attributes(&SetAttributes { mode, ..SetAttributes::default() })?;
            }
            all.retain(|(name, _)| !is_access_list_once_more(name));
            // Access lists, which may close it, after those of the user.
            all.sort_unstable_by(|(one, _), (other, _)| other.cmp(one));
            for (name, value) in all {
                match to.set_xattr(OsStr::from_bytes(&name), &value) {
                    Err(error) if self.is_refused_attribute(&error) => {
                        self.note_refused(record.ino, &described(&name), &error);
                    }
                    set => set?,
                }
            }
        }
        let (attr, found) = (&record.attr, to.stat()?);
        let refused = |set: &SetAttributes, what| -> Result<bool> {
            match to.set_attributes(set) {
                Err(error) if is_refused_owner(&error) => {
                    self.note_refused(record.ino, what, &error);
                    Ok(true)
                }
                set => Ok(set.map(|()| false)?),
            }
        };
        let uid = (found.uid != attr.uid).then_some(attr.uid);
        let gid = (found.gid != attr.gid).then_some(attr.gid);
        let owner = SetAttributes { uid, gid, ..SetAttributes::default() };
        let owner_differs = uid.or(gid).is_some();
        let others = owner_differs && refused(&owner, "its owner")?;
        // Not with the rights of somebody else.
        let perm = if others { attr.perm & 0o1777 } else { attr.perm };
        if owner_differs || found.mode != perm {
            let mode = SetAttributes { mode: Some(perm), ..SetAttributes::default() };
            refused(&mode, "its mode")?;
        }
        let times = SetAttributes {
            atime: Some(attr.atime),
            mtime: Some(mtime),
            ..SetAttributes::default()
        };
        match to.set_attributes(&times) {
            // Of a file of somebody else they say when it was written here.
            Err(error) if is_refused_owner(&error) => Ok(()),
            set => Ok(set?),
        }
    }

    fn set_times(&self, record: &Record, object: &Dir, wanted: bool) -> Result<()> {
        let set = SetAttributes {
            atime: Some(record.attr.atime),
            mtime: Some(record.attr.mtime),
            ..SetAttributes::default()
        };
        self.rights.may_change_store()?;
        match self.backing.set_attributes(object, OsStr::new(""), &set) {
            Err(error) if is_refused_owner(&error) => {
                // Those of a directory that others own follow from its entries.
                if wanted {
                    self.note_refused(record.ino, "its times", &error);
                }
                Ok(())
            }
            set => Ok(set?),
        }
    }

    fn set_xattrs(&self, record: &Record, object: &Dir, at: &Attributes) -> Result<()> {
        // Closed to its owner only, to whom it will be opened.
        let is_closed = at.uid == geteuid().as_raw() && at.mode & 0o600 != 0o600;
        let is_refused = |error: &StoreError| {
            self.is_refused_attribute(error) && !(is_closed && error.errno() == libc::EACCES)
        };
        // Of those that nobody has asked for none was changed here.
        let Some(wanted) = self.known_xattrs(record)? else { return Ok(()) };
        let here = OsStr::new("");
        let is_its_own = |(name, _): &(Vec<u8>, Vec<u8>)| !is_access_list_once_more(name);
        let wanted: BTreeMap<_, _> = wanted.into_iter().filter(is_its_own).collect();
        let found: BTreeMap<_, _> = self.read_xattrs(object, b"")?.into_iter().collect();
        // Access lists, which may close it, after those of the user.
        for (attribute, value) in wanted.iter().rev() {
            if found.get(attribute) == Some(value) {
                continue;
            }
            self.rights.may_change_store()?;
            match self.backing.set_xattr(object, here, os(attribute), value, XattrMode::Any) {
                Err(error) if is_refused(&error) => {
                    self.note_refused(record.ino, &described(attribute), &error);
                }
                set => set?,
            }
        }
        let gone =
            found.keys().filter(|name| !wanted.contains_key(*name) && is_ours_to_remove(name));
        for attribute in gone {
            match self.backing.remove_xattr(object, here, os(attribute)) {
                Err(error) if error.class() == ErrorClass::NotFound => {}
                Err(error) if is_refused(&error) => {
                    self.note_refused(record.ino, &described(attribute), &error);
                }
                removed => removed?,
            }
        }
        Ok(())
    }

    /// The extended attributes if they are known here.
    fn known_xattrs(&self, record: &Record) -> Result<Option<Xattrs>> {
        match self.meta.xattr_all(record.ino) {
            Err(MetaError::XattrsUnknown(_)) => Ok(None),
            all => Ok(Some(all?)),
        }
    }

    /// A worker changed entries of directories, and with them their times.
    pub(super) fn entries_written(&self, dirs: impl Iterator<Item = u64>) {
        if self.times_are_due(dirs) {
            // Where more is to come, it says so again.
            self.restore_directory_times();
        }
    }

    /// A name went that the backing store does not have, or one came back that it has still: no worker will
    /// change the directory there, whose times are other ones now.
    pub(crate) fn entries_changed_here_alone(&self, dir: Ino) {
        self.times_are_due([dir.0].into_iter());
    }

    /// Whether the time that a directory has here is yet to be set in the backing store. The note is there until
    /// it is, also while somebody is at it, and where that has failed.
    pub(crate) fn is_time_due(&self, dir: Ino) -> Result<bool> {
        Ok(self.reconciler.entries_written.lock().contains(&dir.0)
            || self.meta.setting(&written_setting(dir.0))?.is_some())
    }

    /// Notes directories whose times are to be set. Says whether there are many of them by now.
    pub(crate) fn times_are_due(&self, dirs: impl Iterator<Item = u64>) -> bool {
        let (new, many) = {
            let mut written = self.reconciler.entries_written.lock();
            let new: Vec<u64> = dirs.filter(|dir| written.insert(*dir)).collect();
            (new, written.len() >= MAX_ENTRIES_WRITTEN)
        };
        // For the daemon that comes after this one. Between nodes it would be a round trip each.
        for dir in new.into_iter().filter(|_| self.residency.peers.changes_namespace_alone()) {
            tracing::debug!(dir, "the time of a directory is to be set");
            if let Err(error) = self.meta.set_setting(&written_setting(dir), &[]) {
                tracing::debug!(dir, %error, "the times of a directory may stay wrong");
            }
        }
        many
    }

    /// Gives directories whose entries were written the times that programs see, now that no more
    /// is to come.
    pub(crate) fn restore_directory_times(&self) {
        // Who finds nothing to do waits for the one who is at it.
        let _one_at_a_time = self.reconciler.restoring.lock();
        let dirs = std::mem::take(&mut *self.reconciler.entries_written.lock());
        let dirs: Vec<Ino> = dirs.into_iter().map(Ino).collect();
        for some in dirs.chunks(MAX_SYNCED_AT_ONCE) {
            if let Err(error) = self.restore_times_of_some(some) {
                tracing::debug!(%error, "the times of directories may not be durable");
            }
        }
    }

    fn restore_times_of_some(&self, dirs: &[Ino]) -> Result<()> {
        let mut changed = Vec::new();
        let mut restored = Vec::with_capacity(dirs.len());
        for &dir in dirs {
            match self.restore_times_of(dir) {
                Ok(handle) => {
                    changed.extend(handle);
                    restored.push(dir);
                }
                Err(error) => {
                    tracing::debug!(%dir, %error, "the times of a directory stay as they are");
                }
            }
        }
        if !changed.is_empty() {
            self.backing.sync_held(&changed)?;
        }
        let written_again = |dir: &Ino| self.reconciler.entries_written.lock().contains(&dir.0);
        for dir in restored.iter().filter(|dir| !written_again(dir)) {
            if self.residency.peers.changes_namespace_alone() {
                self.meta.remove_setting(&written_setting(dir.0))?;
            }
        }
        Ok(())
    }

    /// Takes over the directories whose times an earlier daemon could not restore.
    pub(crate) fn take_up_written_entries(&self) -> Result<()> {
        if !self.residency.peers.changes_namespace_alone() {
            return Ok(());
        }
        let left = self.meta.settings_like(ENTRIES_WRITTEN)?;
        let dirs = left.iter().filter_map(|dir| u64::from_str_radix(dir, 16).ok());
        self.reconciler.entries_written.lock().extend(dirs);
        Ok(())
    }

    /// Returns the directory if its times were changed in the backing store.
    fn restore_times_of(&self, dir: Ino) -> Result<Option<Dir>> {
        let Some(record) = self.known(dir)? else { return Ok(None) };
        if !record.is_directory() || dir != Ino::ROOT && record.backing.links.is_empty() {
            return Ok(None);
        }
        let look = || -> Result<_> {
            let handle = self.backing_dir(dir)?;
            let found = self.backing.stat(&handle, os(b""))?;
            Ok((handle, found))
        };
        let (handle, found) = again_after_refusal(look, || self.open_closed_dirs(&record))?;
        if found.mtime == record.attr.mtime {
            return Ok(None);
        }
        self.own_change_of_attributes(&[(dir, &handle)], || {
            self.set_times(&record, &handle, false)
        })?;
        self.settle_directory(dir)?;
        Ok(Some(handle))
    }
}

/// Where it is noted that a worker has changed entries of a directory since its times were set.
const ENTRIES_WRITTEN: &str = "entries-written.";

fn written_setting(dir: u64) -> String {
    format!("{ENTRIES_WRITTEN}{dir:x}")
}

/// Whether nobody has changed the contents of an object between two looks at it.
fn is_same(before: &Attributes, now: &Attributes) -> bool {
    before.fingerprint().same_content(&now.fingerprint())
}

/// An extended attribute, for people.
pub(crate) fn described(attribute: &[u8]) -> String {
    format!("its extended attribute {}", attribute.escape_ascii())
}

/// Labels that the system itself puts on files are left alone.
fn is_ours_to_remove(attribute: &[u8]) -> bool {
    const OURS: [&[u8]; 4] = [b"user.", b"trusted.", b"system.posix_acl_", b"security.capability"];
    let attribute = os(attribute).as_bytes();
    OURS.iter().any(|prefix| attribute.starts_with(prefix))
}

/// Whether a time is what a store makes of one that is set: some keep every other second only.
fn is_rounded(found: Timestamp, set: Timestamp) -> bool {
    found <= set && set.sec - found.sec <= 2
}
