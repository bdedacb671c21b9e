//! Handing a served mount on: to another process, or to the next attempt of this one.
//!
//! The connection to the kernel lives as long as any copy of its descriptor. Whoever takes it over
//! must know what was agreed at INIT, which never comes again, and what the node had in memory.

use fusewire::{Features, Negotiated};
use prost::Message;

use forebay_node::HandOverState;

use crate::listings::Held;

/// The newest version of the state that is taken over. It grows when an older program could not go
/// on correctly with what a newer one writes; what merely adds to it does not need that. What is
/// written is the oldest version that will do: [`State::version`].
pub const STATE_VERSION: u32 = 4;
/// Requests come by the device.
const ON_DEVICE: u32 = 1;
/// Requests come by io_uring, and what holds them is handed on too.
const ON_RINGS: u32 = 2;
/// The node is one of a cluster: handles may be used through other nodes, programs have locks, and
/// files several aliases (the last since 4).
const CLUSTERED: u32 = 4;

const MAGIC: &[u8; 4] = b"FBHO";

/// Why a state can't be taken over.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// Written by a program that knows more.
    #[error(
        "the state has version {found}, this program reads up to {STATE_VERSION}: use a program of \
         the same release or a newer one"
    )]
    Version {
        /// Its version.
        found: u32,
    },
    /// Not a state at all.
    #[error("what was handed on is damaged: {0}")]
    Damaged(String),
}

/// What a served mount hands on, apart from its descriptor.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// What was agreed with the kernel.
    pub negotiated: Negotiated,
    /// What the node had in memory.
    pub node: HandOverState,
    /// Opens of directories that may use what the kernel keeps of them; `None` if they are not known,
    /// as after the death of a daemon.
    pub listings: Option<Vec<Held>>,
}

#[derive(Clone, PartialEq, Message)]
struct PbState {
    #[prost(message, optional, tag = "1")]
    negotiated: Option<PbNegotiated>,
    #[prost(message, optional, tag = "2")]
    node: Option<HandOverState>,
    #[prost(message, optional, tag = "3")]
    listings: Option<PbListings>,
}

/// Directories and the numbers of their opens, in the same order.
#[derive(Clone, PartialEq, Message)]
struct PbListings {
    #[prost(fixed64, repeated, tag = "1")]
    dirs: Vec<u64>,
    #[prost(fixed64, repeated, tag = "2")]
    opens: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct PbNegotiated {
    #[prost(uint32, tag = "1")]
    minor: u32,
    #[prost(uint32, tag = "2")]
    kernel_minor: u32,
    #[prost(fixed64, tag = "3")]
    features: u64,
    #[prost(fixed64, tag = "4")]
    offered: u64,
    #[prost(uint32, tag = "5")]
    max_write: u32,
    #[prost(uint32, tag = "6")]
    max_pages: u32,
    #[prost(uint32, tag = "7")]
    max_readahead: u32,
}

impl State {
    /// The version that a program must understand to go on with a connection of this kind.
    #[must_use]
    pub fn version(negotiated: &Negotiated, clustered: bool) -> u32 {
        match negotiated.features.contains(Features::OVER_IO_URING) {
            _ if clustered => CLUSTERED,
            true => ON_RINGS,
            false => ON_DEVICE,
        }
    }

    /// As bytes: a mark, the version (4 bytes, little-endian), a Protocol Buffers message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Negotiated {
            minor,
            kernel_minor,
            features,
            offered,
            max_write,
            max_pages,
            max_readahead,
        } = self.negotiated;
        let negotiated = PbNegotiated {
            minor,
            kernel_minor,
            features: features.bits(),
            offered: offered.bits(),
            max_write,
            max_pages: max_pages.into(),
            max_readahead,
        };
        let listings = self.listings.as_ref().map(|held| {
            let (dirs, opens) = held.iter().map(|held| (held.dir, held.fh)).unzip();
            PbListings { dirs, opens }
        });
        let (negotiated, node) = (Some(negotiated), Some(self.node.clone()));
        let message = PbState { negotiated, node, listings }.encode_to_vec();
        let version = State::version(&self.negotiated, self.node.membership.is_some());
        [&MAGIC[..], &version.to_le_bytes(), &message].concat()
    }

    /// From bytes.
    ///
    /// # Errors
    /// When the version is newer, or the bytes are no state.
    pub fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        let damaged = |what: &str| StateError::Damaged(what.into());
        let (magic, rest) = bytes.split_first_chunk().ok_or_else(|| damaged("too short"))?;
        if magic != MAGIC {
            return Err(damaged("it is something else"));
        }
        let (version, message) = rest.split_first_chunk().ok_or_else(|| damaged("too short"))?;
        let found = u32::from_le_bytes(*version);
        if !(ON_DEVICE..=STATE_VERSION).contains(&found) {
            return Err(StateError::Version { found });
        }
        let PbState { negotiated, node, listings } =
            PbState::decode(message).map_err(|error| damaged(&error.to_string()))?;
        let known = negotiated.ok_or_else(|| damaged("nothing is said of the connection"))?;
        let max_pages = u16::try_from(known.max_pages).map_err(|_| damaged("max_pages"))?;
        // Buffers are made as large as that.
        if !(4096..=16 << 20).contains(&known.max_write) {
            return Err(damaged("max_write"));
        }
        let negotiated = Negotiated {
            minor: known.minor,
            kernel_minor: known.kernel_minor,
            features: Features::from_bits(known.features),
            offered: Features::from_bits(known.offered),
            max_write: known.max_write,
            max_pages,
            max_readahead: known.max_readahead,
        };
        let listings = listings.map(|PbListings { dirs, opens }| {
            dirs.into_iter().zip(opens).map(|(dir, fh)| Held { dir, fh }).collect()
        });
        Ok(State { negotiated, node: node.unwrap_or_default(), listings })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_node::{LockOwner, Membership, OpenHandle};

    fn state() -> State {
        State {
            negotiated: Negotiated {
                minor: 45,
                kernel_minor: 45,
                features: Features::PASSTHROUGH,
                offered: Features::from_bits(u64::MAX),
                max_write: 1 << 20,
                max_pages: 256,
                max_readahead: 131_072,
            },
            node: HandOverState {
                handles: vec![OpenHandle { fh: u64::MAX, ino: 7, ..OpenHandle::default() }],
                generation: 3,
                at_rest: true,
                ..HandOverState::default()
            },
            listings: None,
        }
    }

    #[test]
    fn state_when_encoded_and_decoded_then_equal() {
        assert_eq!(State::decode(&state().encode()), Ok(state()));
        for held in [vec![], vec![Held { dir: 1, fh: 7 }, Held { dir: u64::MAX, fh: 1 }]] {
            let state = State { listings: Some(held), ..state() };
            assert_eq!(State::decode(&state.encode()), Ok(state));
        }
    }

    #[test]
    fn state_when_newer_or_damaged_then_refused_with_the_reason() {
        let mut newer = state().encode();
        newer[4] = 5;
        assert_eq!(State::decode(&newer), Err(StateError::Version { found: 5 }));
        let whole = state().encode();
        for len in 0..whole.len() {
            // Cut anywhere it is refused, or says less; it never panics.
            if let Ok(less) = State::decode(&whole[..len]) {
                assert!(less.node.handles.is_empty(), "cut to {len} bytes");
            }
        }
        assert!(matches!(State::decode(b"ELF?????"), Err(StateError::Damaged(_))));
    }

    #[test]
    fn state_when_on_rings_then_programs_that_know_none_refuse_it() {
        let mut on_rings = state();
        on_rings.negotiated.features = Features::OVER_IO_URING;
        let bytes = on_rings.encode();
        assert_eq!((state().encode()[4], bytes[4]), (1, 2));
        assert_eq!(State::decode(&bytes), Ok(on_rings));
    }

    #[test]
    fn state_of_a_node_of_a_cluster_then_programs_that_know_none_refuse_it() {
        let mut clustered = state();
        let membership = Membership {
            node: 3,
            epoch: 9,
            listens: "tcp://[::1]:7".into(),
            replicas: Some(1),
            redundancy: "ec=2+1".into(),
        };
        clustered.node.membership = Some(membership);
        clustered.node.handles[0].owner_node = 4;
        clustered.node.locks = vec![LockOwner { ino: 7, fh: 1, owner: u64::MAX, whole: true }];
        clustered.node.waiters = 2;
        let bytes = clustered.encode();
        assert_eq!(bytes[4], 4);
        assert_eq!(State::decode(&bytes), Ok(clustered));
    }

    #[test]
    fn state_of_this_version_when_read_from_fixed_bytes_then_as_ever() {
        // Written by version 1: if this fails, the version must grow.
        let bytes = [
            70, 66, 72, 79, 1, 0, 0, 0, 10, 33, 8, 45, 16, 45, 25, 0, 0, 0, 0, 32, 0, 0, 0, 33,
            255, 255, 255, 255, 255, 255, 255, 255, 40, 128, 128, 64, 48, 128, 2, 56, 128, 128, 8,
            18, 19, 10, 13, 8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 16, 7, 16, 3, 24, 1,
        ];
        assert_eq!(State::decode(&bytes), Ok(state()));
        assert_eq!(state().encode(), bytes);
    }
}
