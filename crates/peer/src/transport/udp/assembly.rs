//! Messages put together from packets that come in any order, twice, or never.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Messages of one sender that are not whole yet: sorted maps from `message_id` to the packets that
/// are there, sorted by `packet_id`. Nothing is allocated for what was only announced.
#[derive(Debug)]
pub struct Assembly {
    messages: BTreeMap<u64, Partial>,
    bytes: usize,
    limit: usize,
}

#[derive(Debug)]
struct Partial {
    packets: BTreeMap<u32, Vec<u8>>,
    /// The `packet_id` of the last one, once it came.
    last: Option<u32>,
    bytes: usize,
    heard: Instant,
}

/// Why a packet was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// There is no room for it now.
    #[error("no room for another packet")]
    Full,
    /// It contradicts an earlier one.
    #[error("a packet contradicts an earlier one")]
    Contradiction,
}

impl Assembly {
    /// Keeps at most `limit` bytes of messages that are not whole.
    pub fn new(limit: usize) -> Assembly {
        Assembly { messages: BTreeMap::new(), bytes: 0, limit }
    }

    /// Bytes of messages that are not whole.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes a packet, and gives the message if that made it whole. A packet that is there already
    /// changes nothing; one of a message that was given already begins it anew, so the caller must
    /// know which packets it has seen.
    ///
    /// # Errors
    /// `Unfit`; nothing has changed.
    pub fn take(
        &mut self,
        message: u64,
        packet: u32,
        last: bool,
        bytes: &[u8],
        now: Instant,
    ) -> Result<Option<Vec<u8>>, Unfit> {
        let alone = packet == 0 && last && !self.messages.contains_key(&message);
        if alone {
            return Ok(Some(bytes.to_vec()));
        }
        if let Some(partial) = self.messages.get(&message) {
            let beyond = partial.last.is_some_and(|end| packet > end || last && packet != end);
            let behind =
                last && partial.packets.last_key_value().is_some_and(|(at, _)| *at > packet);
            if beyond || behind {
                return Err(Unfit::Contradiction);
            }
            if partial.packets.contains_key(&packet) {
                return Ok(None);
            }
        }
        if self.bytes + bytes.len() > self.limit {
            return Err(Unfit::Full);
        }
        let partial = self.messages.entry(message).or_insert_with(|| Partial {
            packets: BTreeMap::new(),
            last: None,
            bytes: 0,
            heard: now,
        });
        partial.packets.insert(packet, bytes.to_vec());
        partial.bytes += bytes.len();
        partial.heard = now;
        self.bytes += bytes.len();
        if last {
            partial.last = Some(packet);
        }
        let whole = partial.last.is_some_and(|end| partial.packets.len() == end as usize + 1);
        if !whole {
            return Ok(None);
        }
        let partial = self.messages.remove(&message).expect("it was found above");
        self.bytes -= partial.bytes;
        let mut bytes = Vec::with_capacity(partial.bytes);
        partial.packets.values().for_each(|packet| bytes.extend_from_slice(packet));
        Ok(Some(bytes))
    }

    /// Gives up messages of which nothing came for `timeout`, and tells how many: their sender is
    /// not there any more.
    pub fn collect_orphans(&mut self, now: Instant, timeout: Duration) -> usize {
        let before = self.messages.len();
        let gone = |partial: &Partial| now.saturating_duration_since(partial.heard) >= timeout;
        self.messages.retain(|_, partial| !gone(partial));
        self.bytes = self.messages.values().map(|partial| partial.bytes).sum();
        before - self.messages.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn packets_when_their_sender_crashed_then_collected_and_others_are_kept() {
        let mut assembly = Assembly::new(100);
        let start = Instant::now();
        let later = start + Duration::from_secs(2);
        assembly.take(1, 0, false, &[1; 40], start).unwrap();
        assembly.take(2, 0, false, &[1; 40], later).unwrap();
        assert_eq!(assembly.take(3, 0, false, &[1; 40], later), Err(Unfit::Full));
        assert_eq!(assembly.collect_orphans(later, Duration::from_secs(1)), 1);
        assert_eq!(assembly.bytes(), 40);
        assembly.take(3, 0, false, &[1; 40], later).unwrap();
        let whole = assembly.take(2, 1, true, &[2; 1], later).unwrap().unwrap();
        assert_eq!((whole.len(), assembly.bytes()), (41, 40));
    }

    #[test]
    fn packets_when_they_contradict_each_other_then_refused() {
        let (mut assembly, now) = (Assembly::new(100), Instant::now());
        assembly.take(1, 5, true, &[1], now).unwrap();
        assert_eq!(assembly.take(1, 6, false, &[1], now), Err(Unfit::Contradiction));
        assert_eq!(assembly.take(1, 4, true, &[1], now), Err(Unfit::Contradiction));
        assembly.take(2, 5, false, &[1], now).unwrap();
        assert_eq!(assembly.take(2, 4, true, &[1], now), Err(Unfit::Contradiction));
    }

    proptest! {
        /// Against the messages themselves: however their packets come, each is given whole once.
        #[test]
        fn messages_when_packets_come_in_any_order_and_twice_then_each_is_whole_once(
            lens in prop::collection::vec(1usize..400, 1..6),
            order in prop::collection::vec(any::<prop::sample::Index>(), 0..200),
        ) {
            let messages: Vec<Vec<u8>> =
                lens.iter().map(|len| (0..*len).map(|at| (at * len) as u8).collect()).collect();
            let mut packets = Vec::new();
            for (message, bytes) in messages.iter().enumerate() {
                let count = bytes.chunks(64).count();
                for (packet, part) in bytes.chunks(64).enumerate() {
                    packets.push((message as u64, packet as u32, packet + 1 == count, part));
                }
            }
            for (at, with) in order.iter().enumerate() {
                let at = at % packets.len();
                let with = with.index(packets.len());
                packets.swap(at, with);
            }
            let (mut assembly, now) = (Assembly::new(1 << 20), Instant::now());
            let mut given = BTreeMap::new();
            for (message, packet, last, bytes) in packets {
                for _ in 0..2 {
                    if given.contains_key(&message) {
                        continue;
                    }
                    if let Some(whole) = assembly.take(message, packet, last, bytes, now).unwrap() {
                        given.insert(message, whole);
                    }
                }
            }
            prop_assert_eq!(given.into_values().collect::<Vec<_>>(), messages);
            prop_assert_eq!(assembly.bytes(), 0);
        }
    }
}
