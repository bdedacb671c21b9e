//! What the backing store can't have: it is kept here and named, and is in nobody's way.
//!
//! | what | what becomes of it |
//! |---|---|
//! | an extended attribute, an owner, a mode | known here alone; the rest of the file is written |
//! | a further name, a move | the bytes are written where the file stands |
//! | a forbidden name, or one that others must not make | the bytes wait on the tier |
//! | nothing: its tier does not let them be read | they wait there, for whoever sees to the tier |
//!
//! The last three stay in the backlog and are tried again now and then; a drain does not wait for them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_meta::{Attr, Record};
use forebay_store::backing::{Access, SetAttributes};
use forebay_store::{ErrorClass, StoreError};
use forebay_types::Ino;
use parking_lot::Mutex;
use rustix::process::{getegid, geteuid};

use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::residency::doubt::open_below;
use crate::writeback::Writeback;

/// Inodes whose refusals are remembered; more are only counted.
const MAX_REMEMBERED: usize = 1000;

/// Owners of whom it is remembered whether files can be given to them.
const MAX_OWNERS: usize = 256;

/// What is refused where it is no attribute.
const PLACE: &str = "its place";
const LENGTH: &str = "its length";
/// What a tier does not give.
const BYTES: &str = "its bytes";

/// Extended attributes up to this size are not asked about before they are set.
const SMALL_ATTRIBUTE: usize = 1024;
/// The longest that there can be (`XATTR_SIZE_MAX`).
const LARGEST_ATTRIBUTE: usize = 65_536;

/// Something that the backing store does not take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The path concerned.
    pub path: Vec<u8>,
    /// What of it.
    pub what: String,
    /// Why.
    pub error: String,
    /// Whether it is the tier that does not give it, not the backing store that does not take it.
    pub by_tier: bool,
}

/// What was refused, and what is known of the backing store's limits.
#[derive(Default)]
pub(crate) struct Limits {
    refused: Mutex<BTreeMap<u64, (String, String)>>,
    /// Whether files can be given to a user and a group.
    gives: Mutex<BTreeMap<(u32, u32), bool>>,
    /// The largest extended attribute, name and value, and what a larger one is refused with.
    attribute: Mutex<Option<(usize, i32)>>,
    no_links: AtomicBool,
    /// The store drops dots and blanks at the ends of names.
    drops_ends: AtomicBool,
    /// This mount can't give files away at all.
    keeps_owners: AtomicBool,
}

/// Whether the backing store says that it can't do something, not that it failed at it: to try
/// again helps only if somebody changes the store.
pub(crate) fn is_beyond_store(error: &NodeError) -> bool {
    use libc::{
        E2BIG, EACCES, EFBIG, EILSEQ, EINVAL, EMLINK, ENAMETOOLONG, ENOSYS, EOPNOTSUPP, EOVERFLOW,
        EPERM, EXDEV,
    };
    const BEYOND: [i32; 12] = [
        E2BIG,
        EACCES,
        EFBIG,
        EILSEQ,
        EINVAL,
        EMLINK,
        ENAMETOOLONG,
        ENOSYS,
        EOPNOTSUPP,
        EOVERFLOW,
        EPERM,
        EXDEV,
    ];
    let source = match error {
        NodeError::Store(StoreError::Io { source, .. }) => source,
        // Nor is it tried again.
        NodeError::SetAside { .. } => return true,
        _ => return false,
    };
    source.raw_os_error().is_some_and(|errno| BEYOND.contains(&errno))
}

/// Whether the backing store can't give a file this owner, mode or time.
pub(crate) fn is_refused_owner(error: &StoreError) -> bool {
    matches!(
        error.errno(),
        libc::EPERM | libc::EACCES | libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL
    )
}

impl Writeback {
    /// Whether the backing store can't be changed, and the mount was made in the knowledge of that: what an
    /// earlier one has left on the tiers waits for another one.
    pub(super) fn is_read_only_for_good(&self, error: &NodeError) -> bool {
        let errno = match error {
            NodeError::Store(error) => error.errno(),
            _ => 0,
        };
        self.config.read_only && errno == libc::EROFS
    }

    /// The tier that an error is of, if it is of one.
    pub(super) fn tier_at_fault(&self, error: &NodeError) -> Option<usize> {
        let NodeError::Store(StoreError::Io { path, .. }) = error else { return None };
        let of = |slot: &crate::residency::TierSlot| path.starts_with(slot.tier.path());
        self.residency.tiers.iter().position(of)
    }

    /// Whether a tier does not let its bytes be read, or can't note any more what becomes of them: to try
    /// again helps only if somebody sees to it.
    pub(super) fn is_denied_by_tier(&self, tier: usize, error: &NodeError) -> bool {
        let NodeError::Store(error) = error else { return false };
        // Found out now, if nobody has yet.
        let _failed = self.residency.is_tiers_failure(u8::try_from(tier).unwrap_or(u8::MAX), error);
        error.class() == ErrorClass::Denied
    }

    /// What the backing store does not take, by inode.
    pub fn refused(&self) -> Vec<Refused> {
        let refused = self.reconciler.limits.refused.lock().clone();
        let described = refused.into_iter().filter_map(|(ino, (what, error))| {
            let path = self.meta.path(Ino(ino)).ok().flatten()?;
            let by_tier = what == BYTES;
            Some(Refused { path, what, error, by_tier })
        });
        described.collect()
    }

    pub(crate) fn note_refused(&self, ino: Ino, what: &str, error: &impl std::fmt::Display) {
        let mut refused = self.reconciler.limits.refused.lock();
        if refused.len() >= MAX_REMEMBERED && !refused.contains_key(&ino.0) {
            return;
        }
        let noted = (what.to_owned(), error.to_string());
        if refused.insert(ino.0, noted.clone()).as_ref() != Some(&noted) {
            drop(refused);
            match what == BYTES {
                true => {
                    tracing::warn!(%ino, %error, "a tier does not give the bytes of a file: they wait there");
                }
                false => {
                    tracing::warn!(%ino, what, %error, "the backing store does not take this: it is kept here");
                }
            }
        }
    }

    /// A name that the store can't have, or bytes under it.
    pub(super) fn note_refused_place(&self, ino: Ino, error: &NodeError) {
        if matches!(error, NodeError::SetAside { .. }) {
            // That is no fault of the store.
            return;
        }
        let what = match error {
            _ if self.tier_at_fault(error).is_some() => BYTES,
            NodeError::Store(error) if error.errno() == libc::EFBIG => LENGTH,
            _ => PLACE,
        };
        self.note_refused(ino, what, error);
    }

    /// It has them; what it refused of the attributes whoever has set them has noted.
    pub(super) fn forget_refused_place(&self, ino: Ino) {
        let mut refused = self.reconciler.limits.refused.lock();
        if refused.get(&ino.0).is_some_and(|(what, _)| [PLACE, LENGTH, BYTES].contains(&&**what)) {
            refused.remove(&ino.0);
        }
    }

    /// Whether the backing store lacks something of an inode that it did not take.
    pub(crate) fn is_something_refused(&self, ino: Ino) -> bool {
        self.reconciler.limits.refused.lock().contains_key(&ino.0)
    }

    pub(crate) fn forget_refused(&self, ino: Ino) {
        self.reconciler.limits.refused.lock().remove(&ino.0);
    }

    /// Whether an extended attribute is one that the backing store can't have. One for which there
    /// is no room on the device is another matter.
    pub(crate) fn is_refused_attribute(&self, error: &StoreError) -> bool {
        match error.errno() {
            libc::EOPNOTSUPP | libc::ENOSYS | libc::EPERM | libc::EACCES => true,
            libc::E2BIG | libc::ERANGE | libc::EINVAL => true,
            libc::ENOSPC => {
                self.backing.statfs().is_ok_and(|room| room.blocks_available > SPARE_BLOCKS)
            }
            _ => false,
        }
    }

    /// Refuses an extended attribute that the backing store can't have. Of small ones it is taken for
    /// granted that they fit.
    ///
    /// # Errors
    /// What the backing store says to such a one.
    pub(crate) fn check_attribute_fits(
        &self,
        context: &crate::Context,
        name: &[u8],
        value: &[u8],
    ) -> Result<()> {
        let size = name.len() + value.len();
        if size <= SMALL_ATTRIBUTE {
            return Ok(());
        }
        let known = *self.reconciler.limits.attribute.lock();
        let (most, errno) = match known {
            Some(known) => known,
            None => {
                context.wait()?;
                // A store that fails now is asked again.
                let Ok(found) = self.probe_attributes() else { return Ok(()) };
                *self.reconciler.limits.attribute.lock() = Some(found);
                found
            }
        };
        if size > most {
            return Err(rustix::io::Errno::from_raw_os_error(errno).into());
        }
        Ok(())
    }

    /// The largest extended attribute that a file of the backing store can have.
    fn probe_attributes(&self) -> Result<(usize, i32)> {
        let name = std::ffi::OsStr::new("user.forebay.probe");
        let temporary = self.backing.temporary(0)?;
        let mut errno = 0;
        let mut fits = |size: usize| -> Result<bool> {
            match temporary.file().set_xattr(name, &vec![0; size - name.len()]) {
                Ok(()) => Ok(true),
                Err(error) if self.is_refused_attribute(&error) => {
                    errno = error.errno();
                    Ok(false)
                }
                Err(error) => Err(error.into()),
            }
        };
        if !fits(SMALL_ATTRIBUTE)? || fits(LARGEST_ATTRIBUTE + name.len())? {
            // None at all is another rule: they are kept here.
            return Ok((usize::MAX, 0));
        }
        let (mut least, mut most) = (SMALL_ATTRIBUTE, LARGEST_ATTRIBUTE + name.len());
        while most - least > 16 {
            let middle = least.midpoint(most);
            if fits(middle)? {
                least = middle;
            } else {
                most = middle;
            }
        }
        Ok((least, errno))
    }

    /// Whether this mount can give files to a user and a group. Asked once for each.
    pub(crate) fn may_give(&self, attr: &Attr) -> Result<bool> {
        let owner = (attr.uid, attr.gid);
        if let Some(known) = self.reconciler.limits.gives.lock().get(&owner) {
            return Ok(*known);
        }
        let gives = self.try_to_give(attr.uid, attr.gid)?;
        let mut known = self.reconciler.limits.gives.lock();
        if known.len() >= MAX_OWNERS {
            known.clear();
        }
        known.insert(owner, gives);
        Ok(gives)
    }

    /// Whether a file can be given to a user and a group, by one that is made for it.
    fn try_to_give(&self, uid: u32, gid: u32) -> Result<bool> {
        let temporary = self.backing.temporary(0)?;
        let found = temporary.file().stat()?;
        let set = SetAttributes {
            uid: (found.uid != uid).then_some(uid),
            gid: (found.gid != gid).then_some(gid),
            ..SetAttributes::default()
        };
        match temporary.file().set_attributes(&set) {
            Ok(()) => Ok(true),
            Err(error) if is_refused_owner(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// At the start: whether the mount can give files away. A plain user's can't, nor can that of root
    /// where the store gives it no rights.
    pub(crate) fn look_at_rights(&self) {
        // Any user but the one that it is.
        let other = u32::from(geteuid().as_raw() != 1);
        match self.try_to_give(other, getegid().as_raw()) {
            Ok(gives) => self.reconciler.limits.keeps_owners.store(!gives, Ordering::Release),
            Err(error) => tracing::warn!(
                %error,
                "can't find out whether files in the backing store can be given to others; they \
                 are taken to be. Check that the mount may write there"
            ),
        }
    }

    /// At the start: whether the store has names as they are given.
    pub(crate) fn look_at_names(&self) {
        match self.backing.keeps_ends() {
            Ok(keeps) => self.reconciler.limits.drops_ends.store(!keeps, Ordering::Release),
            Err(error) => tracing::warn!(
                %error,
                "can't find out whether the backing store keeps dots and blanks at the ends of \
                 names; it is taken to. Check that the mount may write there"
            ),
        }
    }

    /// Whether the store is known to make another name of this one.
    pub(crate) fn store_alters(&self, name: &[u8]) -> bool {
        self.reconciler.limits.drops_ends.load(Ordering::Acquire)
            && matches!(name.last(), Some(b'.' | b' '))
    }

    /// Before a file is changed that can't be given back to its owner: it is written in place, so it
    /// must be writable there. What could never get there is refused at once.
    ///
    /// # Errors
    /// `EACCES`.
    pub(crate) fn check_writable_below(&self, context: &Context, record: &Record) -> Result<()> {
        let is_given = !self.reconciler.limits.keeps_owners.load(Ordering::Acquire)
            || record.attr.uid == geteuid().as_raw();
        if is_given || record.backing.fingerprint.is_none() {
            return Ok(());
        }
        context.wait()?;
        let Some(path) = self.meta.backing_path(record.ino)? else { return Ok(()) };
        match open_below(&*self.backing, &path, Access::ReadWrite) {
            Err(NodeError::Store(error)) if is_refused_owner(&error) => {
                Err(rustix::io::Errno::ACCESS.into())
            }
            // What ails the store otherwise is told when the bytes come to it.
            _ => Ok(()),
        }
    }

    /// After a hard link was refused: whether the store has none at all.
    pub(super) fn doubt_links(&self) {
        if self.backing.has_links().is_ok_and(|has| !has) {
            self.reconciler.limits.no_links.store(true, Ordering::Release);
        }
    }

    /// Whether the backing store is known to have no hard links.
    pub(crate) fn store_lacks_links(&self) -> bool {
        self.reconciler.limits.no_links.load(Ordering::Acquire)
    }
}

/// A device with more free blocks than this is not full.
const SPARE_BLOCKS: u64 = 64;
