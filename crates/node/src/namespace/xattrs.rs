//! Extended attributes, access control lists among them.

use std::fs;
use std::sync::LazyLock;

use forebay_meta::{Error as MetaError, Queue, Record, XattrFlags, XattrState};
use forebay_types::{FileKind, Ino, Timestamp};
use rustix::io::Errno;

use crate::clock;
use crate::cluster::{REDUNDANCY, check_redundancy};
use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::node::Node;
use crate::stream;
use crate::writeback::import::XATTRS_MAX;

use super::acl::{self, Acl, Malformed};
use super::removed_attributes::Xattrs;

/// The longest value (`XATTR_SIZE_MAX`) and the longest list of names (`XATTR_LIST_MAX`).
const VALUE_MAX: usize = 65_536;
const LIST_MAX: usize = 65_536;
/// So often those of an inode are read anew for one call, because others change it meanwhile.
const MAX_IMPORTS: usize = 16;
/// Attributes that Forebay computes; nobody else sets them.
const VIRTUAL: &[u8] = b"user.forebay.";

/// The label that SELinux gives to a file.
const LABEL: &[u8] = b"security.selinux";

/// What whoever asks for an attribute is told that a file has not. `ls -l` asks for the label of each
/// file, until it hears that there are none on this file system.
fn absent(name: &[u8]) -> Errno {
    static LABELS: LazyLock<bool> = LazyLock::new(|| {
        // Not there unless SELinux was enabled when the machine started.
        fs::read_to_string("/proc/filesystems").is_ok_and(|known| known.contains("selinuxfs"))
    });
    if name == LABEL && !*LABELS { Errno::OPNOTSUPP } else { Errno::NODATA }
}

impl Node {
    /// The value of an extended attribute.
    ///
    /// # Errors
    /// `ENODATA`, or `EOPNOTSUPP` for a label of SELinux where none runs; what the backing store
    /// says.
    pub fn get_xattr(&self, context: &Context, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        check_name(name)?;
        if name == stream::STATE {
            return self.stream_state(ino);
        }
        let value = match self.known_xattr(context, ino, name) {
            Err(error) => self.removed_xattrs(ino, error)?.remove(name),
            value => value?,
        };
        value.ok_or_else(|| absent(name).into())
    }

    pub(super) fn known_xattr(
        &self,
        context: &Context,
        ino: Ino,
        name: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        self.with_known_xattrs(context, ino, |any| match any {
            true => Ok(self.meta.xattr_get(ino, name)?),
            false => Ok(None),
        })
    }

    /// Does something for which the extended attributes of an inode must be known, and that hears
    /// whether there may be any. They may be forgotten at any time, when another version is taken in
    /// from the backing store: then they are read anew, and it is done again.
    pub(crate) fn with_known_xattrs<T>(
        &self,
        context: &Context,
        ino: Ino,
        mut operation: impl FnMut(bool) -> Result<T>,
    ) -> Result<T> {
        for _ in 0..MAX_IMPORTS {
            let any = self.import_if_unknown(context, ino)?;
            match operation(any) {
                Err(NodeError::Meta(MetaError::XattrsUnknown(_))) => {}
                done => return done,
            }
        }
        Err(Errno::BUSY.into())
    }

    /// Those of a removed directory that is somebody's still, where its record is gone.
    fn removed_xattrs(&self, ino: Ino, error: NodeError) -> Result<Xattrs> {
        match error {
            NodeError::Meta(MetaError::Stale(_)) => {
                self.names.removed_inodes.xattrs(ino).ok_or(error)
            }
            error => Err(error),
        }
    }

    /// Changes those of a removed directory where its record is gone.
    fn change_removed_xattrs(
        &self,
        ino: Ino,
        error: NodeError,
        change: impl FnOnce(&mut Xattrs) -> std::result::Result<(), Errno>,
    ) -> Result<()> {
        if !matches!(error, NodeError::Meta(MetaError::Stale(_))) {
            return Err(error);
        }
        let now = clock::wall_time();
        self.names.removed_inodes.change_xattrs(ino, change)?.ok_or(error)?;
        self.names.removed_inodes.change(ino, |attr| attr.ctime = now);
        Ok(())
    }

    /// The record of a removed directory goes at any time, and its users may stay.
    fn remember_xattr(&self, ino: Ino, name: &[u8], value: Option<&[u8]>) {
        if !self.names.removed_inodes.has_directory(ino) {
            return;
        }
        // What finds no room there is shown as long as the record is there.
        let _room = self.names.removed_inodes.change_xattrs(ino, |all| {
            match value {
                Some(value) => drop(all.insert(name.to_vec(), value.to_vec())),
                None => drop(all.remove(name)),
            }
            Ok(())
        });
    }

    /// What is to be remembered of an inode that loses its name.
    pub(super) fn xattrs_of_leaving(&self, record: &Record) -> Xattrs {
        if !record.is_directory() || record.xattrs != XattrState::Some {
            return Xattrs::new();
        }
        self.meta.xattr_all(record.ino).unwrap_or_default().into_iter().collect()
    }

    /// The names of the extended attributes, each with a zero byte at its end.
    ///
    /// # Errors
    /// What the backing store says.
    pub fn list_xattrs(&self, context: &Context, ino: Ino) -> Result<Vec<u8>> {
        let known = self.with_known_xattrs(context, ino, |any| match any {
            true => Ok(self.meta.xattr_list(ino)?),
            false => Ok(Vec::new()),
        });
        let names = match known {
            Err(error) => self.removed_xattrs(ino, error)?.into_keys().collect(),
            names => names?,
        };
        let mut list = Vec::new();
        for name in names {
            // trusted.* exists for the privileged only, and some that the backing store lists for nobody.
            let is_shown = context.uid == 0 || !name.starts_with(b"trusted.");
            if is_shown && check_name(&name).is_ok() {
                list.extend_from_slice(&name);
                list.push(0);
            }
        }
        Ok(list)
    }

    /// Whether there may be some. Reads them from the backing store if that was not done.
    fn import_if_unknown(&self, context: &Context, ino: Ino) -> Result<bool> {
        let state = self.record(ino)?.xattrs;
        if state == XattrState::Unknown {
            self.writeback.import_xattrs(context, ino)?;
        }
        Ok(state != XattrState::None)
    }

    /// Sets an extended attribute. `flags` are `XATTR_CREATE` and `XATTR_REPLACE`;
    /// `kill_setgid`: the caller may not keep the set-group-id bit when it sets an access list.
    ///
    /// # Errors
    /// `EEXIST` and `ENODATA` as the flags say, `E2BIG`, `ENOSPC` when the list of names would be
    /// too long or all attributes together too large, `EOPNOTSUPP` for a class of attributes that there is not, `EPERM` for
    /// `user.forebay.*` but the rate of a stream and the redundancy.
    pub fn set_xattr(
        &self,
        context: &Context,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: i32,
        kill_setgid: bool,
    ) -> Result<()> {
        check_settable(name)?;
        if value.len() > VALUE_MAX {
            return Err(Errno::TOOBIG.into());
        }
        let flags = match flags {
            0 => XattrFlags::Either,
            libc::XATTR_CREATE => XattrFlags::Create,
            libc::XATTR_REPLACE => XattrFlags::Replace,
            _ => return Err(Errno::INVAL.into()),
        };
        let set = self.with_known_xattrs(context, ino, |_| {
            self.set_known_xattr(context, ino, name, value, flags, kill_setgid)
        });
        match set {
            Err(error) => self.change_removed_xattrs(ino, error, |all| {
                match (flags, all.contains_key(name)) {
                    (XattrFlags::Create, true) => return Err(Errno::EXIST),
                    (XattrFlags::Replace, false) => return Err(Errno::NODATA),
                    _ => {}
                }
                all.insert(name.to_vec(), value.to_vec());
                Ok(())
            }),
            Ok(()) => {
                self.remember_xattr(ino, name, Some(value));
                Ok(())
            }
        }
    }

    fn set_known_xattr(
        &self,
        context: &Context,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
        kill_setgid: bool,
    ) -> Result<()> {
        let record = self.record(ino)?;
        if name == REDUNDANCY {
            check_redundancy(&record, value)?;
        }
        if name == stream::RATE {
            self.check_stream_rate(&record, value)?;
        }
        self.given_up.check(context)?;
        let now = clock::wall_time();
        match name {
            acl::ACCESS => return self.set_access(&record, value, flags, kill_setgid, now),
            acl::DEFAULT => match checked_default(&record, value)? {
                Some(()) => {}
                None => return self.drop_xattr(ino, name, now),
            },
            _ => {}
        }
        let others = self.meta.xattr_others(ino, name)?;
        if others.listed + name.len() + 1 > LIST_MAX
            || others.kept + name.len() + value.len() > XATTRS_MAX
        {
            return Err(Errno::NOSPC.into());
        }
        self.writeback.check_attribute_fits(context, name, value)?;
        // That may have taken long.
        self.given_up.check(context)?;
        let record = self.meta.xattr_set(ino, name, value, flags, now)?;
        self.xattrs_changed(&record);
        Ok(())
    }

    /// Sets the access list. What the mode can say goes there, and only what it can't is kept.
    fn set_access(
        &self,
        record: &Record,
        value: &[u8],
        flags: XattrFlags,
        kill_setgid: bool,
        now: Timestamp,
    ) -> Result<()> {
        if record.attr.kind == FileKind::Symlink {
            return Err(Errno::OPNOTSUPP.into());
        }
        let ino = record.ino;
        let Some(list) = parse(value)? else { return self.drop_xattr(ino, acl::ACCESS, now) };
        if list.is_minimal() {
            self.drop_xattr(ino, acl::ACCESS, now)?;
        } else {
            self.meta.xattr_set(ino, acl::ACCESS, &list.to_wire(), flags, now)?;
        }
        let record = self.meta.update(ino, Some(now), |record| {
            record.attr.perm = record.attr.perm & !0o777 | list.mode();
            if kill_setgid {
                record.attr.perm &= !libc::S_ISGID;
            }
            record.backing.attrs_differ = true;
            Queue::Yes
        })?;
        self.xattrs_changed(&record);
        Ok(())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `ENODATA`; as [`Node::set_xattr`].
    pub fn remove_xattr(&self, context: &Context, ino: Ino, name: &[u8]) -> Result<()> {
        check_settable(name)?;
        let removed = self.with_known_xattrs(context, ino, |any| {
            self.remove_known_xattr(context, ino, name, any)
        });
        match removed {
            Err(error) => self.change_removed_xattrs(ino, error, |all| {
                let acl = matches!(name, acl::ACCESS | acl::DEFAULT);
                let removed = all.remove(name).is_some() || acl;
                if removed { Ok(()) } else { Err(Errno::NODATA) }
            }),
            Ok(()) => {
                self.remember_xattr(ino, name, None);
                Ok(())
            }
        }
    }

    fn remove_known_xattr(
        &self,
        context: &Context,
        ino: Ino,
        name: &[u8],
        any: bool,
    ) -> Result<()> {
        let acl = matches!(name, acl::ACCESS | acl::DEFAULT);
        if !any {
            // To remove a list that there is not is no error.
            return if acl { Ok(()) } else { Err(Errno::NODATA.into()) };
        }
        self.given_up.check(context)?;
        if acl {
            return self.drop_xattr(ino, name, clock::wall_time());
        }
        let record = self.meta.xattr_remove(ino, name, clock::wall_time())?;
        self.xattrs_changed(&record);
        Ok(())
    }

    /// Removes an extended attribute if it is there.
    fn drop_xattr(&self, ino: Ino, name: &[u8], now: Timestamp) -> Result<()> {
        match self.meta.xattr_remove(ino, name, now) {
            Ok(record) => self.xattrs_changed(&record),
            Err(MetaError::NoXattr) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn xattrs_changed(&self, record: &Record) {
        self.attributes_changed(record);
        self.queue(record);
    }
}

fn parse(value: &[u8]) -> Result<Option<Acl>> {
    Acl::parse(value).map_err(|Malformed| NodeError::Posix(Errno::INVAL))
}

/// `None`: the list has no entries, which removes it.
fn checked_default(record: &Record, value: &[u8]) -> Result<Option<()>> {
    let list = parse(value)?;
    if list.is_some() && !record.is_directory() {
        return Err(Errno::ACCESS.into());
    }
    Ok(list.map(|_| ()))
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > super::NAME_MAX {
        return Err(Errno::RANGE.into());
    }
    let classes: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    let known = classes.iter().any(|class| name.starts_with(class) && name.len() > class.len());
    if known || matches!(name, acl::ACCESS | acl::DEFAULT) {
        Ok(())
    } else {
        Err(Errno::OPNOTSUPP.into())
    }
}

fn check_settable(name: &[u8]) -> Result<()> {
    check_name(name)?;
    if name.starts_with(VIRTUAL) && name != stream::RATE && name != REDUNDANCY {
        return Err(Errno::PERM.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno(result: Result<()>) -> Option<Errno> {
        match result {
            Err(NodeError::Posix(errno)) => Some(errno),
            _ => None,
        }
    }

    #[test]
    fn names_when_checked_then_only_known_classes_pass() {
        for name in [&b"user.a"[..], b"trusted.x", b"security.capability", acl::ACCESS] {
            assert!(check_settable(name).is_ok(), "{}", name.escape_ascii());
        }
        assert_eq!(errno(check_name(b"system.nfs4_acl")), Some(Errno::OPNOTSUPP));
        assert_eq!(errno(check_name(b"user.")), Some(Errno::OPNOTSUPP));
        assert_eq!(errno(check_name(&[b'u'; 256])), Some(Errno::RANGE));
        assert_eq!(errno(check_settable(b"user.forebay.residency")), Some(Errno::PERM));
        assert_eq!(errno(check_settable(stream::STATE)), Some(Errno::PERM));
        assert!(check_settable(stream::RATE).is_ok());
        assert!(check_settable(REDUNDANCY).is_ok());
        assert!(check_name(b"user.forebay.residency").is_ok());
    }
}
