//! What a write takes up of its tier's room: it is charged before the bytes are written.

use std::sync::atomic::Ordering;

use forebay_store::Presence;

use crate::residency::Residency;
use crate::residency::data::BLOCK;
use crate::residency::data_location::TierObject;

/// Charges of growing files grow by this much at a time.
pub(crate) const STEP: u64 = 1 << 20;
/// Files below this length are charged by the block.
const SMALL: u64 = 256 << 10;

impl Residency {
    /// Charges the growth of a write to the tier. In charged bytes it costs one load.
    pub(crate) fn pay(&self, place: &TierObject, offset: u64, end: u64) -> bool {
        let charge = &place.charge;
        if end <= charge.paid_end.load(Ordering::Acquire) {
            return true;
        }
        let _growing = charge.growing.lock();
        let paid = charge.paid_end.load(Ordering::Acquire);
        if end <= paid {
            return true;
        }
        if offset > paid || place.presence.is_some() {
            let bytes = blocks_of_gap_write(place, offset, end);
            let taken = self.take_room(place.tier, bytes);
            if taken {
                charge.bytes.fetch_add(bytes, Ordering::AcqRel);
            }
            return taken;
        }
        let step = if end <= SMALL { BLOCK } else { STEP };
        let wanted = end.next_multiple_of(step);
        let grow_to = if self.take_room(place.tier, wanted - paid) {
            wanted
        } else {
            let least = end.next_multiple_of(BLOCK);
            if !self.take_room(place.tier, least - paid) {
                return false;
            }
            least
        };
        charge.bytes.fetch_add(grow_to - paid, Ordering::AcqRel);
        charge.paid_end.store(grow_to, Ordering::Release);
        true
    }
}

/// What a write beyond the paid bytes of an object, or into one with a map, is charged: its blocks,
/// unless the object has them all, and what the map grows by. One that is repeated before its bytes
/// are there is charged again; the excess goes when the charge is trued up.
pub(crate) fn blocks_of_gap_write(place: &TierObject, offset: u64, end: u64) -> u64 {
    let map = place.presence.as_ref().map_or(0, |presence| {
        let presence = presence.read();
        let grown = Presence::sidecar_bytes_for(presence.extent_size(), end.max(presence.size()));
        grown - presence.sidecar_bytes()
    });
    if place.has_blocks(offset, end) {
        return map;
    }
    map + end.next_multiple_of(BLOCK) - offset / BLOCK * BLOCK
}
