//! New files are sent to other nodes while they are written, so that `close` waits for the rest alone.
//!
//! Only what lies well behind the end of a file that grows is sent, and what was sent counts only if
//! nothing before its end was written since it was begun to be read: each write notes how far before
//! the end it was ([`File::lowest_write`](crate::residency::files::File)). Where anything else happens, copies are
//! made at `close` as if nothing had been sent.

use std::sync::atomic::Ordering;

use forebay_meta::Copies;
use forebay_types::Ino;

use super::super::Cluster;
use super::level::{Level, Snapshot};
use super::make::new_version;
use super::send::{Cargo, Failed};
use crate::error::Result;
use crate::residency::files::{File, FileRef};

/// Files are sent ahead in steps of about so many bytes, and as much stays behind the end.
const STEP: u64 = 4 << 20;

/// What was sent of a version that nobody knows yet.
pub(crate) struct Begun {
    version: u64,
    level: Level,
    holders: Vec<u16>,
    /// The nodes have so many bytes of the file.
    sent: u64,
}

impl Begun {
    /// How many bytes of the file the nodes have.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// What the nodes have got.
    fn parts(&self, cluster: &Cluster) -> Copies {
        let now = Snapshot { size: self.sent, mtime: forebay_meta::Timestamp::default() };
        self.level.made(self.version, cluster.me, &now, self.holders.clone())
    }

    /// Whether nothing of what was sent was written again since.
    fn is_sound(&self, file: &File) -> bool {
        file.cluster.lowest_write.swap(u64::MAX, Ordering::AcqRel) >= self.sent
    }
}

/// How much of a file is sent whose end is at `size`: whole stripes.
fn due(level: Level, size: u64) -> Result<u64> {
    let stripe = level.layout(size)?.map_or(1, |layout| layout.stripe_bytes());
    Ok(size.saturating_sub(STEP) / STEP * STEP / stripe * stripe)
}

impl Cluster {
    /// Bytes were written to a file: sends what lies behind them if it is time.
    pub(crate) fn consider_ahead(&self, file: &FileRef, offset: u64, end: u64) {
        if end < 2 * STEP || end / STEP == offset / STEP {
            return;
        }
        let able = self.peers.get().is_some_and(|peers| !peers.is_alone())
            && !file.cluster.ahead_refused.load(Ordering::Acquire);
        if !able || file.cluster.ahead_queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let ino = file.ino;
        if !self.later(move |cluster| cluster.send_ahead(ino)) {
            file.cluster.ahead_queued.store(false, Ordering::Release);
        }
    }

    fn send_ahead(&self, ino: Ino) {
        let Some(file) = self.residency.files.peek(ino) else { return };
        let sent = self.send_what_is_due(&file);
        file.cluster.ahead_queued.store(false, Ordering::Release);
        match sent {
            Ok(true) => {}
            Ok(false) => file.cluster.ahead_refused.store(true, Ordering::Release),
            Err(error) => {
                tracing::debug!(%ino, %error, "a file is not sent ahead");
                file.cluster.ahead_refused.store(true, Ordering::Release);
            }
        }
    }

    /// Sends what has come; false if there is no use in sending more of this file ahead.
    fn send_what_is_due(&self, file: &FileRef) -> Result<bool> {
        // Copies of what was there before are being made, or have been: this is more of it.
        let Some(mut copying) = file.cluster.copying.try_lock() else { return Ok(true) };
        let wanted = self.redundancy_of(&*self.meta.get_believed(file.ino)?)?;
        let Some(level) = Level::of(wanted) else { return Ok(false) };
        // It would take from the writer what it does not save it afterwards.
        if !wanted.waits() {
            return Ok(false);
        }
        let mut begun = match copying.take() {
            Some(begun) => begun,
            // What is added to copies is sent as a whole, and the rest of the file stays.
            None if file.cluster.changed_from.load(Ordering::Acquire) > 0 => return Ok(false),
            None => match self.begin_ahead(file, level)? {
                Some(begun) => begun,
                None => return Ok(false),
            },
        };
        loop {
            if file.cluster.copies_wanted.load(Ordering::Acquire) > 0 {
                break;
            }
            let size = file.location.read().place().map(|place| place.bytes().len());
            let due = due(begun.level, size.transpose()?.unwrap_or(0))?;
            if due <= begun.sent {
                break;
            }
            let due = due.min(begun.sent + 2 * STEP);
            if !begun.is_sound(file) || !self.send_more(file, &mut begun, due)? {
                self.drop_copies(file.ino, &begun.parts(self));
                return Ok(false);
            }
        }
        *copying = Some(begun);
        Ok(true)
    }

    fn begin_ahead(&self, file: &FileRef, level: Level) -> Result<Option<Begun>> {
        let mut holders = self.candidates(file.ino, level.nodes())?;
        holders.truncate(level.nodes());
        if holders.len() < level.nodes() {
            return Ok(None);
        }
        file.cluster.lowest_write.store(u64::MAX, Ordering::Release);
        Ok(Some(Begun { version: new_version()?, level, holders, sent: 0 }))
    }

    /// Whether all nodes have got more.
    fn send_more(&self, file: &FileRef, begun: &mut Begun, until: u64) -> Result<bool> {
        let stripe = begun.level.layout(until)?.map_or(1, |layout| layout.stripe_bytes());
        let until = until / stripe * stripe;
        let cargo = Cargo {
            file,
            version: begun.version,
            level: begun.level,
            layout: begun.level.layout(until)?,
            range: begun.sent..until,
            last: false,
        };
        let to: Vec<(usize, u16)> = begun.holders.iter().copied().enumerate().collect();
        match self.send_to(&cargo, &to) {
            Ok(sent) if sent.iter().all(|sent| *sent) => {
                begun.sent = until;
                Ok(true)
            }
            Ok(_) | Err(Failed::Moved) => Ok(false),
            Err(Failed::Here(error)) => Err(error),
        }
    }

    /// Nothing of what was begun is of use.
    pub(super) fn drop_ahead(&self, file: &File, begun: Option<Begun>) {
        if let Some(begun) = begun {
            self.drop_copies(file.ino, &begun.parts(self));
        }
    }

    /// Sends the rest of what was begun and has it count; false if that can't be done: then nothing
    /// of it counts.
    pub(super) fn end_ahead(
        &self,
        file: &FileRef,
        level: Level,
        begun: Begun,
        known: Option<&Copies>,
        now: &Snapshot,
    ) -> Result<bool> {
        let fits = level == begun.level
            && begun.sent <= now.size
            && begun.is_sound(file)
            && begun.holders.iter().all(|node| self.can_hold(*node));
        let cargo = Cargo {
            file,
            version: begun.version,
            level,
            layout: level.layout(now.size)?,
            range: begun.sent..now.size,
            last: true,
        };
        let to: Vec<(usize, u16)> = begun.holders.iter().copied().enumerate().collect();
        let sent = match fits {
            true => self.send_to(&cargo, &to),
            false => Ok(vec![false]),
        };
        match sent {
            Ok(sent) if sent.iter().all(|sent| *sent) => {}
            Err(Failed::Here(error)) => return Err(error),
            Ok(_) | Err(Failed::Moved) => {
                self.drop_copies(file.ino, &begun.parts(self));
                return Ok(false);
            }
        }
        let made = level.made(begun.version, self.me, now, begun.holders);
        self.tell_of_copies(file, known.cloned(), made)?;
        Ok(true)
    }
}
