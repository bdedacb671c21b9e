//! Small files through the kernel's page cache.
//!
//! A registration for passthrough, and giving it back, cost more than the read of a small file, and
//! after such a read the kernel asks for the file's times. So small files that nobody writes are read
//! through the page cache, and their pages stay over opens for as long as they are known to be those of
//! the object.
//!
//! That is known once an open has had the kernel drop what it had before, and has returned: the kernel
//! has closed it. It is forgotten with the entry of the residency index, which is set anew before a byte of the
//! object changes, and whenever another object takes its place. What programs write through the mount
//! meanwhile, the kernel drops from its pages itself.
//!
//! When others have put another version of the file in the backing store, whoever reads the object that
//! was dropped for that keeps it, and the file gets another alias, as with passthrough
//! ([`super::inode_alias`]).
//!
//! Reads that the kernel answers leave no access time. Where a read is to move it (`relatime`), the pages
//! are dropped, so that the read comes here.

use std::sync::atomic::Ordering;

use forebay_meta::Record;
use forebay_types::Timestamp;

use crate::clock;
use crate::residency::Residency;
use crate::residency::data_location::{DataLocation, TierObject};

/// `relatime` moves an access time that is older than this.
const DAY_S: i64 = 24 * 3600;

/// Whether a read moves an access time, as `relatime` has it.
pub(crate) fn is_access_due(
    atime: Timestamp,
    (mtime, ctime): (Timestamp, Timestamp),
    now: Timestamp,
) -> bool {
    atime <= mtime || atime <= ctime || now.sec - atime.sec >= DAY_S
}

impl Residency {
    /// Whether a file is small enough to be read through the page cache where it could be passed through.
    /// In a cluster others may write it, and a stream has to see where its reader is.
    pub(crate) fn is_for_page_cache(&self, record: &Record) -> bool {
        let limit = self.config.page_cache_bytes;
        limit > 0
            && record.attr.size <= limit
            && !self.peers.is_clustered()
            && self.cold.is_none()
            && self.passthrough_refusal().is_none()
    }

    /// Whether readers of such a file are better served through the page cache as it is now.
    pub(crate) fn suits_page_cache(&self, location: &DataLocation, record: &Record) -> bool {
        let clean =
            |place: &TierObject| place.presence.is_none() && !place.dirty.load(Ordering::Acquire);
        self.is_for_page_cache(record) && location.place.as_ref().is_some_and(clean)
    }

    /// Whether the kernel may keep the pages that it has under an alias of a file that is being opened
    /// through the page cache; if not, the number of the open that has it drop them, if that is to be
    /// noted at the close.
    pub(crate) fn keeps_pages_of_object(
        &self,
        place: &TierObject,
        record: &Record,
        alias: u8,
    ) -> (bool, Option<u32>) {
        let ino = record.ino.0;
        if self.residents.has_pages(ino, alias) && !self.read_moves_access_time(place, record) {
            return (true, None);
        }
        (false, self.residents.drop_pages(ino, alias))
    }

    /// Whether a read of a file may show in its access time, by what is known of it.
    pub(crate) fn may_move_access_time(&self, record: &Record) -> bool {
        let attr = &record.attr;
        !self.config.keep_access_times
            && is_access_due(attr.atime, (attr.mtime, attr.ctime), clock::wall_time())
    }

    /// Whether a read of the object would show in the file's access time.
    fn read_moves_access_time(&self, place: &TierObject, record: &Record) -> bool {
        if !self.may_move_access_time(record)
            || !self.tiers[usize::from(place.tier)].tier.keeps_access_times()
        {
            return false;
        }
        let (now, stat) = (clock::wall_time(), place.object.stat());
        stat.is_ok_and(|stat| is_access_due(stat.atime, (stat.mtime, stat.ctime), now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_when_older_than_a_change_or_a_day_then_due() {
        let at = |sec| Timestamp::new(sec, 0);
        let due =
            |atime, mtime, ctime, now| is_access_due(at(atime), (at(mtime), at(ctime)), at(now));
        assert!(due(5, 5, 1, 6) && due(5, 1, 5, 6) && due(5, 6, 1, 7));
        assert!(!due(5, 4, 3, 6));
        assert!(!due(5, 4, 3, 5 + DAY_S - 1) && due(5, 4, 3, 5 + DAY_S));
    }
}
