//! Lazy import: the backing store's tree becomes known as it is walked, and outside changes to it
//! are noticed.
//!
//! What the namespace knows is served at once. A name that it does not know in a directory that is
//! not listed yet costs one `stat`; the listing follows in the background. With
//! [`Coherence::Open`](crate::Coherence::Open) a directory is compared with the backing store when
//! the attribute time-out has passed since the last comparison, and a file at open.
//!
//! # Invariants
//! - No copy is ever taken for a version that may be another: the record knows the change time that
//!   our own last change left, a copy goes before the record follows what others did, and a change
//!   time that an interruption left unknown equals none (`reconcile/tests/times_kept.rs`).
//! - A part of a version that is resident never meets the rest of another one: what is opened below
//!   is compared with the record before it is read, and before the first change
//!   (`tests/foreign_changes.rs`).
//! - A directory counts as known only if each name in it could be compared. Where a worker was at
//!   one, or an inode of ours hides what stands there, the next look lists again
//!   (`reconcile/tests/unseen.rs`).

mod along;
mod coherence;
mod directory_attributes;
mod dirs;
mod freshness;
mod listing;
mod names_seen;
mod refresh;
mod spelling;

pub use refresh::Looked;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_meta::{Attr, Found, Link, Record, XattrState, Xattrs};
use forebay_store::backing::is_reserved;
use forebay_store::{Attributes, Dir, ErrorClass, StoreError};
use forebay_types::{FileKind, Ino};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::after_refusal::again_after_refusal;
use crate::config::Coherence;
use crate::context::Context;
use crate::defects::BackgroundKind;
use crate::error::{NodeError, Result};
use crate::pool::Urgency;
use crate::writeback::Writeback;

pub(crate) use dirs::LIMBO;
use dirs::{MAX_LOOKS, let_workers_go_on};
pub(crate) use spelling::folded;

/// Bytes of all extended attributes of a file, names and values: they are in memory at once, and in one change
/// of the namespace.
pub(crate) const XATTRS_MAX: usize = 1 << 20;

/// What is known about the freshness of imported directories and files, and which listings are
/// under way.
#[derive(Default)]
pub struct Imports {
    /// Directories whose entries were compared lately.
    directories: freshness::Freshness,
    /// Files whose contents were compared lately.
    files: freshness::Freshness,
    /// Operations of the backing store that requests wait for.
    pub(crate) health: freshness::Health,
    handles: dirs::Handles,
    own_changes: dirs::OwnChanges,
    reading: listing::Readings,
    in_flight: listing::Listings,
    /// Extended attributes that are read ahead along listings.
    along: along::Along,
    spelling: spelling::Spelling,
}

/// A backing store that has not answered for this long is not asked about freshness.
const UNRESPONSIVE: Duration = Duration::from_millis(1500);

impl Writeback {
    /// The inode at a path below the root. Symbolic links are not followed.
    ///
    /// # Errors
    /// `ENOENT`, or what the backing store says while the path is imported.
    pub fn find_path(&self, path: &Path) -> Result<Ino> {
        use std::os::unix::ffi::OsStrExt;
        let mut at = Ino::ROOT;
        for part in path.components() {
            let std::path::Component::Normal(name) = part else { continue };
            at = self
                .find(&Context::DAEMON, at, name.as_bytes())?
                .ok_or(NodeError::Posix(Errno::NOENT))?
                .ino;
        }
        Ok(at)
    }

    /// The record behind a name, imported from the backing store if it was not known, and compared
    /// with it when the directory's freshness has run out.
    pub(crate) fn find(
        &self,
        context: &Context,
        dir: Ino,
        name: &[u8],
    ) -> Result<Option<Arc<Record>>> {
        if is_reserved(OsStr::from_bytes(name), dir == Ino::ROOT) {
            return Ok(None);
        }
        let hit = match self.residency.peers.changes_namespace_alone() {
            true => self.meta.lookup(dir, name)?,
            false => self.meta.lookup_now(dir, name)?,
        };
        if hit.is_some() && self.directory_is_fresh(dir) {
            return Ok(hit);
        }
        let parent = self.meta.get(dir)?;
        if !parent.is_directory() {
            return Err(Errno::NOTDIR.into());
        }
        if self.is_not_in_backing(&parent) {
            return Ok(hit);
        }
        if parent.listed {
            if self.directory_is_fresh(dir) {
                return Ok(hit);
            }
            context.wait()?;
            self.check_directory(&parent)?;
            return Ok(self.meta.lookup(dir, name)?);
        }
        if hit.is_some() {
            // Imported a moment ago, by itself; the listing compares it.
            self.list_in_background(dir);
            return Ok(hit);
        }
        context.wait()?;
        let found = self.import_name(dir, name)?;
        self.list_in_background(dir);
        Ok(found)
    }

    /// Returns when all entries of `dir` are imported and fresh.
    pub(crate) fn ensure_listed(&self, context: &Context, dir: Ino) -> Result<()> {
        let record = self.meta.get(dir)?;
        if !record.is_directory() {
            return Err(Errno::NOTDIR.into());
        }
        if self.is_not_in_backing(&record) || record.listed && self.directory_is_fresh(dir) {
            return Ok(());
        }
        context.wait()?;
        if record.listed { self.check_directory(&record) } else { self.list_directory(dir) }
    }

    /// Reads the extended attributes of an imported inode from the backing store if that was not
    /// done yet.
    pub(crate) fn import_xattrs(&self, context: &Context, ino: Ino) -> Result<()> {
        if self.meta.get(ino)?.xattrs != XattrState::Unknown {
            return Ok(());
        }
        context.wait()?;
        for _ in 0..MAX_LOOKS {
            let (record, xattrs) = self.xattrs_at_rest(ino)?;
            if !self.residency.peers.changes_namespace_alone() {
                self.meta.xattr_replace_all(ino, &xattrs)?;
                return Ok(());
            }
            let mut found = vec![(record.clone(), xattrs)];
            self.read_xattrs_along(&record, &mut found)?;
            self.meta.xattrs_import(&found)?;
            // Gone meanwhile, or another version?
            if self.meta.get(ino)?.xattrs != XattrState::Unknown {
                return Ok(());
            }
        }
        Err(Errno::BUSY.into())
    }

    /// Those that the backing store has. A worker may be moving the inode or a directory above it: then
    /// it is not there for a moment, which must not be taken for having none; or another is there.
    fn xattrs_at_rest(&self, ino: Ino) -> Result<(Arc<Record>, Xattrs)> {
        let mut looks = 0;
        loop {
            let record = self.meta.get(ino)?;
            let read = again_after_refusal(
                || self.xattrs_in_backing(&record),
                || self.open_to_reader(ino),
            );
            match read {
                Err(error) if error.class() == Some(ErrorClass::NotFound) => {
                    if self.is_at_rest(&record)? {
                        // Others have removed it.
                        return Ok((record, Vec::new()));
                    }
                    looks += 1;
                    if looks > MAX_LOOKS {
                        return Err(error);
                    }
                    let_workers_go_on();
                }
                Ok(None) => {
                    looks += 1;
                    let rests = self.is_at_rest(&record)?;
                    if looks > MAX_LOOKS || rests && record.differs() {
                        // Others have put another in its place, and what it had went with it.
                        return Ok((record, Vec::new()));
                    }
                    if rests {
                        self.take_replaced(&record)?;
                    }
                    let_workers_go_on();
                }
                Ok(Some(xattrs)) => return Ok((record, xattrs)),
                Err(error) => return Err(error),
            }
        }
    }

    /// `None`: another inode is under its name.
    fn xattrs_in_backing(&self, record: &Record) -> Result<Option<Xattrs>> {
        if self.is_not_in_backing(record) || !record.is_directory() && is_unconfirmed(record) {
            // What stands under a name that it claims is another's.
            return Ok(Some(Vec::new()));
        }
        let (dir, name) = self.backing_place(record)?;
        let xattrs = self.read_xattrs(&dir, &name)?;
        let known = record.backing.fingerprint.filter(|print| print.ino != 0);
        if let Some(known) = known
            && self.residency.peers.judges_store_alone()
        {
            // They were read by name, and a worker or others may have moved what had it.
            let found = self.backing.stat(&dir, OsStr::from_bytes(&name))?;
            if !found.fingerprint().same_inode(&known) {
                return Ok(None);
            }
        }
        Ok(Some(xattrs))
    }

    /// Others have put another in the place of an unchanged inode: that is taken over, unless a worker is
    /// at it.
    fn take_replaced(&self, record: &Record) -> Result<()> {
        match record.is_directory() {
            _ if self.config.coherence == Coherence::Exclusive => Ok(()),
            true => self.compare_directory(record.ino).map(drop),
            false => self.take_theirs(record.ino),
        }
    }

    /// All extended attributes of an entry that the backing store lets us see.
    ///
    /// # Errors
    /// `EACCES` for an entry that its owner, whose this mount is, has closed to himself: it has those that
    /// can't be seen, and may be opened. `E2BIG` for one that has more than [`XATTRS_MAX`].
    pub(crate) fn read_xattrs(&self, dir: &Dir, name: &[u8]) -> Result<Xattrs> {
        let name = OsStr::from_bytes(name);
        let may_open = !self.config.read_only && !geteuid().is_root();
        let is_closed = || {
            let found = self.backing.stat(dir, name);
            found.is_ok_and(|found| found.uid == geteuid().as_raw() && found.mode & 0o400 == 0)
        };
        let refused = |error: &StoreError| {
            use ErrorClass::{Denied, NotFound, Unsupported};
            matches!(error.class(), Denied | NotFound | Unsupported)
        };
        let names = match self.backing.list_xattrs(dir, name) {
            Err(error) if error.class() == ErrorClass::Unsupported => return Ok(Vec::new()),
            names => names?,
        };
        let (mut all, mut size) = (Vec::with_capacity(names.len()), 0);
        for attribute in names.into_iter().filter(|name| !is_access_list_once_more(name.as_bytes()))
        {
            match self.backing.get_xattr(dir, name, &attribute) {
                Ok(value) => {
                    size += attribute.len() + value.len();
                    if size > XATTRS_MAX {
                        return Err(Errno::TOOBIG.into());
                    }
                    all.push((attribute.as_bytes().to_vec(), value));
                }
                Err(error) if error.errno() == libc::EACCES && may_open && is_closed() => {
                    return Err(error.into());
                }
                Err(error) if refused(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(all)
    }

    /// Imports one name that the namespace does not know.
    pub(crate) fn import_name(&self, dir: Ino, name: &[u8]) -> Result<Option<Arc<Record>>> {
        let _asked = self.imports.health.begin();
        let reading = self.imports.reading.begin(dir);
        let looked = self.in_directory(dir, |handle| {
            let attributes = self.backing.stat(handle, OsStr::from_bytes(name))?;
            match self.is_other_spelling(handle, name, &attributes)? {
                true => Ok(None),
                false => self.found(handle, name, &attributes).map(Some),
            }
        });
        match looked {
            Ok(Some(found)) => {
                reading.import(self, dir, vec![found])?;
            }
            Ok(None) => {}
            Err(error) if error.class() == Some(ErrorClass::NotFound) => {}
            Err(error) => return Err(error),
        }
        Ok(self.meta.lookup(dir, name)?)
    }

    /// What the namespace is told about an object of the backing store.
    pub(crate) fn found(&self, dir: &Dir, name: &[u8], attributes: &Attributes) -> Result<Found> {
        let target = match attributes.kind {
            FileKind::Symlink => {
                let _asked = self.imports.health.begin();
                let target = self.backing.readlink(dir, OsStr::from_bytes(name))?;
                Some(target.as_bytes().into())
            }
            _ => None,
        };
        Ok(Found {
            name: name.into(),
            attr: attr(attributes),
            target,
            fingerprint: attributes.fingerprint(),
        })
    }

    /// Lists `dir` when nobody needs the thread more urgently.
    fn list_in_background(&self, dir: Ino) {
        if !self.imports.in_flight.announce(dir) {
            return;
        }
        let this = self.this.clone();
        let job = move || {
            if let Some(node) = this.upgrade() {
                node.imports.in_flight.unannounce(dir);
                let listed =
                    node.defects.attempt(BackgroundKind::Listing, dir.0, || node.list_if_open(dir));
                if let Some(Err(error)) = listed {
                    tracing::debug!(%dir, %error, "a directory was not listed in the background");
                }
            }
        };
        if self.slow.run(Urgency::Background, job).is_err() {
            self.imports.in_flight.unannounce(dir);
        }
    }

    /// Whether a directory exists here only: there is nothing to import. Under a name that is only
    /// claimed for it another may still stand, and its entries must not be taken for those of this.
    fn is_not_in_backing(&self, record: &Record) -> bool {
        record.ino != Ino::ROOT
            && (record.backing.links.is_empty() || dirs::is_only_claimed(record))
    }

    fn directory_is_fresh(&self, dir: Ino) -> bool {
        self.config.coherence == Coherence::Exclusive || self.imports.directories.is_fresh(dir)
    }

    /// What is known of a directory may be out of date: the next who asks compares.
    pub(crate) fn doubt_directory(&self, dir: Ino) {
        self.imports.directories.expire(dir);
    }

    /// The version of a file that stands in the backing store may be another than the one that is
    /// known: the next open compares.
    pub(crate) fn doubt_version(&self, file: Ino) {
        self.imports.files.expire(file);
    }

    /// The kernel forgets a name.
    pub(crate) fn forget_name(&self, dir: Ino, name: &[u8]) {
        if let Some(kernel) = self.kernel.get() {
            kernel.forget_entry(dir.0, name);
        }
    }

    /// The backing store gave up `link`: a listing that is under way and has seen it must not
    /// import it again. To be called before the namespace is told.
    pub(crate) fn backing_name_gone(&self, link: &Link) {
        self.imports.reading.gone(link);
    }
}

impl NodeError {
    /// The class of an error of the backing store.
    pub(crate) fn class(&self) -> Option<ErrorClass> {
        match self {
            NodeError::Store(error) => Some(error.class()),
            NodeError::Posix(Errno::NOENT) => Some(ErrorClass::NotFound),
            _ => None,
        }
    }
}

/// The store's attributes as the namespace's. The time of birth is not known: the change of the
/// contents is the latest that it can have been.
fn attr(found: &Attributes) -> Attr {
    Attr {
        kind: found.kind,
        perm: found.mode,
        uid: found.uid,
        gid: found.gid,
        nlink: u32::try_from(found.nlink).unwrap_or(u32::MAX),
        rdev: found.rdev,
        size: found.size,
        atime: found.atime,
        mtime: found.mtime,
        ctime: found.ctime,
        btime: found.mtime,
    }
}

/// Whether a worker has claimed the names of an inode, and has not reported yet that it made it.
fn is_unconfirmed(record: &Record) -> bool {
    record.queued.is_some() && record.backing.fingerprint.is_none()
}

/// Whether a listing leaves this name out.
fn is_hidden(dir: Ino, name: &OsStr) -> bool {
    is_reserved(name, dir == Ino::ROOT)
}

/// Whether XFS shows (and takes) an access list by this extended attribute as well: it changes with the list,
/// and setting or removing it does so to the list.
pub(crate) fn is_access_list_once_more(attribute: &[u8]) -> bool {
    attribute.starts_with(b"trusted.SGI_ACL_")
}
