//! Packets, byte by byte. All numbers are little-endian.
//!
//! | bytes | what |
//! |---|---|
//! | 0-3 | XXH3 of all that follows, its lower half |
//! | 4-5 | `F` `U` |
//! | 6 | 1, the version of this layout |
//! | 7 | kind: 1 connect, 2 accept, 3 data, 4 acknowledgement, 5 bye |
//! | 8-15 | the connection, a random number that the connecting side chose |
//!
//! Data goes on with the packet's number in the connection (8 bytes), `message_id` (8), `packet_id`
//! (4), 1 if it is the last one of its message (4), and the bytes. An acknowledgement goes on with
//! the number below which all packets are there (8) and 256 bits (32), the lowest of which stands
//! for the packet after that one.

use xxhash_rust::xxh3::xxh3_64;

/// Bytes of a packet, so that it fits an Ethernet frame with IPv6 and a tunnel or two.
pub(super) const PACKET: usize = 1400;
const COMMON: usize = 16;
/// Bytes in front of those that a data packet carries.
pub(super) const BEFORE_DATA: usize = COMMON + 24;
/// Packets that an acknowledgement's bitmap speaks of.
pub(super) const BITS: u64 = 256;

/// A packet that arrived.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Packet<'a> {
    Connect,
    Accept,
    Data { number: u64, message: u64, packet: u32, last: bool, bytes: &'a [u8] },
    Acknowledgement { below: u64, beyond: [u64; 4] },
    Bye,
}

fn begin(kind: u8, connection: u64, to: &mut Vec<u8>) {
    to.clear();
    to.extend_from_slice(&[0, 0, 0, 0, b'F', b'U', 1, kind]);
    to.extend_from_slice(&connection.to_le_bytes());
}

fn seal(packet: &mut [u8]) {
    let sum = xxh3_64(&packet[4..]) as u32;
    packet[..4].copy_from_slice(&sum.to_le_bytes());
}

impl Packet<'_> {
    pub fn encode(&self, connection: u64, to: &mut Vec<u8>) {
        match self {
            Packet::Connect => begin(1, connection, to),
            Packet::Accept => begin(2, connection, to),
            Packet::Data { number, message, packet, last, bytes } => {
                begin(3, connection, to);
                to.extend_from_slice(&number.to_le_bytes());
                to.extend_from_slice(&message.to_le_bytes());
                to.extend_from_slice(&packet.to_le_bytes());
                to.extend_from_slice(&u32::from(*last).to_le_bytes());
                to.extend_from_slice(bytes);
            }
            Packet::Acknowledgement { below, beyond } => {
                begin(4, connection, to);
                to.extend_from_slice(&below.to_le_bytes());
                for bits in beyond {
                    to.extend_from_slice(&bits.to_le_bytes());
                }
            }
            Packet::Bye => begin(5, connection, to),
        }
        seal(to);
    }

    /// The connection and the packet; `None` for what is none of ours, or was changed.
    pub fn decode(bytes: &[u8]) -> Option<(u64, Packet<'_>)> {
        let number = |at: usize| -> Option<u64> {
            Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
        };
        let sum = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?);
        if sum != xxh3_64(&bytes[4..]) as u32 || bytes.get(4..7)? != [b'F', b'U', 1] {
            return None;
        }
        let packet = match bytes.get(7)? {
            1 => Packet::Connect,
            2 => Packet::Accept,
            3 => {
                let small = number(32)?;
                Packet::Data {
                    number: number(16)?,
                    message: number(24)?,
                    packet: small as u32,
                    last: small >> 32 != 0,
                    bytes: &bytes[BEFORE_DATA..],
                }
            }
            4 => Packet::Acknowledgement {
                below: number(16)?,
                beyond: [number(24)?, number(32)?, number(40)?, number(48)?],
            },
            5 => Packet::Bye,
            _ => return None,
        };
        Some((number(8)?, packet))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn packet_when_encoded_and_decoded_then_the_same_and_any_change_is_noticed() {
        let packets = [
            Packet::Connect,
            Packet::Accept,
            Packet::Data { number: 1, message: 2, packet: 3, last: true, bytes: b"abc" },
            Packet::Data { number: 1, message: 2, packet: u32::MAX, last: false, bytes: b"" },
            Packet::Acknowledgement { below: 9, beyond: [1, 2, 3, u64::MAX] },
            Packet::Bye,
        ];
        let mut bytes = Vec::new();
        for packet in packets {
            packet.encode(77, &mut bytes);
            assert_eq!(Packet::decode(&bytes), Some((77, packet)));
            for at in 0..bytes.len() {
                bytes[at] ^= 0x10;
                assert_eq!(Packet::decode(&bytes), None, "byte {at}");
                bytes[at] ^= 0x10;
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_when_decoded_then_no_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            prop_assert_eq!(Packet::decode(&bytes), None);
            if bytes.len() >= 8 {
                bytes[4..7].copy_from_slice(&[b'F', b'U', 1]);
                bytes[7] %= 7;
                seal(&mut bytes);
                let _ = Packet::decode(&bytes);
            }
        }
    }
}
