//! Tiers that have failed as a whole, such as one whose file system was shut down after an error of its
//! device: nothing new goes there, and what the backing store has as well is served from there. What
//! only such a tier has stays dirty and gets errors.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_store::{BackingFile, ErrorClass, StoreError};
use forebay_types::Ino;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};

use crate::error::{NodeError, Result};
use crate::residency::Residency;
use crate::residency::data_location::Underlay;
use crate::residency::files::File;
use crate::residency::room::no_room;

/// How often a tier is tried.
const TRY_EVERY: Duration = Duration::from_secs(1);

/// Whether a tier can be used.
#[derive(Default)]
pub(crate) struct Health {
    /// What its file system said when it was found to have failed: until the daemon ends, as what is
    /// open there stays of no use.
    failed: OnceLock<String>,
    tried: Mutex<Option<Instant>>,
}

impl Residency {
    /// Why a tier can't be used, if so.
    pub(crate) fn tier_failure(&self, tier: usize) -> Option<&str> {
        self.tiers.get(tier)?.health.failed.get().map(String::as_str)
    }

    pub(crate) fn tier_has_failed(&self, tier: u8) -> bool {
        self.tier_failure(usize::from(tier)).is_some()
    }

    /// After an error of a tier: whether it has failed as a whole.
    pub(crate) fn is_tiers_failure(&self, tier: u8, error: &StoreError) -> bool {
        use libc::{EIO, ENODEV, ENOTCONN, ENXIO, EROFS, ESHUTDOWN, ESTALE};
        let telling = [EIO, EROFS, ENXIO, ENODEV, ESTALE, ENOTCONN, ESHUTDOWN];
        self.tier_has_failed(tier)
            || telling.contains(&error.errno()) && self.try_tier(usize::from(tier))
    }

    /// Looks whether a tier takes bytes; whether it has failed.
    pub(crate) fn try_tier(&self, tier: usize) -> bool {
        let Some(slot) = self.tiers.get(tier) else { return false };
        let mut tried = slot.health.tried.lock();
        if slot.health.failed.get().is_some() {
            return true;
        }
        if tried.is_some_and(|tried| tried.elapsed() < TRY_EVERY) {
            return false;
        }
        let path = slot.tier.path();
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let outcome = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
            .and_then(|file| rustix::io::write(&file, &[0; 4096]));
        *tried = Some(Instant::now());
        use rustix::io::Errno;
        let error = match outcome {
            // It works, is full, or has no files without names: that is known since the start.
            Ok(_) | Err(Errno::NOSPC | Errno::DQUOT | Errno::OPNOTSUPP | Errno::ISDIR) => {
                return false;
            }
            // That is this process's own trouble.
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR) => return false,
            Err(error) => error,
        };
        tracing::error!(
            tier = %path.display(), %error,
            "the tier's file system has failed: nothing goes there any more, and files that the \
             backing store has are served from there; what only this tier has gets errors. Repair \
             it, unmount with --no-drain, and mount again"
        );
        drop(slot.health.failed.set(error.to_string()));
        true
    }

    /// What could not be brought to a tier that has failed is served without it.
    pub(super) fn pass_by_failed(&self, tier: u8, done: Result<()>) -> Result<()> {
        match done {
            Err(error) if self.has_tier_failed_at(tier, &error) => Ok(()),
            done => done,
        }
    }

    /// After an error of work on a tier, of the tier or of what was noted of it.
    pub(super) fn has_tier_failed_at(&self, tier: u8, error: &NodeError) -> bool {
        match error {
            NodeError::Store(error) => self.is_tiers_failure(tier, error),
            NodeError::Posix(_) => self.tier_has_failed(tier),
            _ => false,
        }
    }

    /// Gives up an object that was begun and never counted. Of one that is neither gone nor noted nothing is
    /// made that is newer, so that its file can be served without the tier.
    pub(super) fn give_up_begun(&self, tier: u8, ino: Ino) {
        if let Err(error) = self.give_up_object(tier, ino) {
            tracing::debug!(%ino, %error, "an object that was begun stays");
        }
    }

    /// A fetch has come to nothing, perhaps before it has made an object.
    ///
    /// # Errors
    /// What the file can't be served without the tier for.
    pub(super) fn end_of_fetch(
        &self,
        tier: u8,
        ino: Ino,
        begun: bool,
        ended: Result<()>,
    ) -> Result<()> {
        // First of all: a tier that has failed is passed by, and of what it may have nothing is noted.
        if ended.as_ref().is_err_and(|error| self.has_tier_failed_at(tier, error)) {
            return ended;
        }
        if !begun {
            if let Err(error) = ended {
                tracing::debug!(%ino, %error, "a tier takes no copy of a file");
            }
            return Ok(());
        }
        self.give_up_begun(tier, ino);
        match ended {
            // It is served without the tier as long as that keeps an older one.
            Err(_) if self.is_known_left_behind(usize::from(tier), ino, None) => Ok(()),
            Err(NodeError::Store(error))
                if no_room(&error) || error.class() == ErrorClass::Stale =>
            {
                Ok(())
            }
            ended => ended,
        }
    }

    /// After an error: whether what caused it was gone around, so that it may be tried again.
    pub(crate) fn may_try_again(&self, file: &File, error: &NodeError) -> bool {
        self.leaves_failed_tier(file, error)
            || self.above.takes_newer_version(file, error)
            || error.class() == Some(ErrorClass::Stale) && self.drops_stale_base(file)
    }

    /// Closes what is open of the version beneath a file if its handle is out of date, as after a
    /// restart of a server; says whether it was. The next use opens it anew, and sees whether it is
    /// still that version.
    pub(crate) fn drops_stale_base(&self, file: &File) -> bool {
        let location = file.location.read();
        let opened = match &location.base {
            Underlay::Backing(opened) => opened,
            Underlay::Spill(spill) => match spill.version_below() {
                Some(opened) => opened,
                None => return false,
            },
            Underlay::Zeros => return false,
        };
        let mut opened = opened.lock();
        let is_stale = |base: &Arc<dyn BackingFile>| {
            base.stat().is_err_and(|error| error.class() == ErrorClass::Stale)
        };
        let stale = opened.as_ref().is_some_and(is_stale);
        if stale {
            *opened = None;
        }
        stale
    }

    /// After an error: whether a file had a clean copy on a tier that has failed, and is now served
    /// from the backing store, so that it may be tried again.
    fn leaves_failed_tier(&self, file: &File, error: &NodeError) -> bool {
        let NodeError::Store(error) = error else { return false };
        let tier = file.location.read().place.as_ref().map(|place| place.tier);
        tier.is_some_and(|tier| self.is_tiers_failure(tier, error))
            && self.leave_failed_tier(file).unwrap_or_default()
    }

    /// Has a file served from the backing store if its copy is on a tier that has failed.
    ///
    /// # Errors
    /// What looking for its bytes elsewhere says.
    pub(crate) fn leave_failed_tier(&self, file: &File) -> Result<bool> {
        let mut location = file.location.write();
        let clean = self.residents.get(file.ino.0).is_some_and(|resident| !resident.dirty);
        let there = |place: &crate::residency::data_location::TierObject| {
            self.tier_has_failed(place.tier) && !place.is_dirty()
        };
        if !clean || !location.place.as_ref().is_some_and(there) {
            return Ok(false);
        }
        let place = location.place.take();
        self.forget_resident(file.ino, place.as_ref());
        location.loaded = false;
        self.look_up(file, &mut location)?;
        Ok(true)
    }
}
