//! What goes over the socket: messages of a few fixed fields, each a packet of its own, numbers in
//! little endian.
//!
//! The client begins with [`Request::Hello`] and the versions that it speaks; the daemon chooses the
//! newest that both do. A later version may add messages, and never changes those of an earlier one.

/// The first bytes of a client.
pub const MAGIC: u64 = u64::from_le_bytes(*b"forebay\x01");
/// The versions that this code speaks.
pub const OLDEST: u32 = 1;
/// See [`OLDEST`].
pub const NEWEST: u32 = 1;
/// No message is longer.
pub const MESSAGE_MAX: usize = 256;
/// A group has no more members.
pub const MEMBERS_MAX: u32 = 1024;

/// A group that a process wants to be in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Join {
    /// What its members have agreed on, and nobody else can guess.
    pub token: [u8; 16],
    /// Bytes of its memory.
    pub bytes: u64,
    /// How many members it will have.
    pub members: u32,
    /// Which one this process is, from 0 on.
    pub member: u32,
    /// Under which number this process has the file open.
    pub descriptor: u32,
    /// Whether the members may write the file.
    pub writes: bool,
}

/// What a client says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// I speak these versions.
    Hello {
        /// From here on.
        oldest: u32,
        /// Up to this one.
        newest: u32,
    },
    /// Let me in.
    Join(Join),
    /// I leave the group.
    Leave,
}

/// What the daemon says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// We speak this version.
    Welcome {
        /// Which.
        version: u32,
    },
    /// You are in. The memory comes along as a descriptor.
    Joined {
        /// How large it is.
        bytes: u64,
    },
    /// You are out.
    Left,
    /// No.
    Refused(Refusal, String),
}

/// Why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Refusal {
    /// There is no version that both speak.
    Version = 1,
    /// That was no message, or not one for this moment.
    Message = 2,
    /// There are too many connections, or too many of this user.
    Connections = 3,
    /// There is not so much memory for groups, or not for this user.
    Memory = 4,
    /// The process does not have the file open as it says, or it is on another file system.
    File = 5,
    /// The group is another one, or complete.
    Group = 6,
}

const REFUSALS: [Refusal; 6] = [
    Refusal::Version,
    Refusal::Message,
    Refusal::Connections,
    Refusal::Memory,
    Refusal::File,
    Refusal::Group,
];

/// The version to speak with who speaks these.
#[must_use]
pub fn negotiate(oldest: u32, newest: u32) -> Option<u32> {
    let version = newest.min(NEWEST);
    (version >= oldest.max(OLDEST)).then_some(version)
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn end<T>(self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

impl Request {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::Hello { oldest, newest } => {
                bytes.extend(1u32.to_le_bytes());
                bytes.extend(MAGIC.to_le_bytes());
                bytes.extend(oldest.to_le_bytes());
                bytes.extend(newest.to_le_bytes());
            }
            Self::Join(join) => {
                bytes.extend(2u32.to_le_bytes());
                bytes.extend(join.token);
                bytes.extend(join.bytes.to_le_bytes());
                for number in [join.members, join.member, join.descriptor, u32::from(join.writes)] {
                    bytes.extend(number.to_le_bytes());
                }
            }
            Self::Leave => bytes.extend(3u32.to_le_bytes()),
        }
        bytes
    }

    /// From bytes, all of which belong to it.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let request = match fields.u32()? {
            1 => {
                if fields.u64()? != MAGIC {
                    return None;
                }
                Self::Hello { oldest: fields.u32()?, newest: fields.u32()? }
            }
            2 => Self::Join(Join {
                token: fields.array()?,
                bytes: fields.u64()?,
                members: fields.u32()?,
                member: fields.u32()?,
                descriptor: fields.u32()?,
                writes: match fields.u32()? {
                    0 => false,
                    1 => true,
                    _ => return None,
                },
            }),
            3 => Self::Leave,
            _ => return None,
        };
        fields.end(request)
    }
}

impl Reply {
    /// As bytes; a long text is cut.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::Welcome { version } => {
                bytes.extend(65u32.to_le_bytes());
                bytes.extend(version.to_le_bytes());
            }
            Self::Joined { bytes: size } => {
                bytes.extend(66u32.to_le_bytes());
                bytes.extend(size.to_le_bytes());
            }
            Self::Left => bytes.extend(67u32.to_le_bytes()),
            Self::Refused(refusal, text) => {
                bytes.extend(68u32.to_le_bytes());
                bytes.extend((*refusal as u32).to_le_bytes());
                bytes.extend(text.bytes().take(MESSAGE_MAX - bytes.len()));
            }
        }
        bytes
    }

    /// From bytes, all of which belong to it.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let reply = match fields.u32()? {
            65 => Self::Welcome { version: fields.u32()? },
            66 => Self::Joined { bytes: fields.u64()? },
            67 => Self::Left,
            68 => {
                let number = fields.u32()?;
                let refusal = REFUSALS.into_iter().find(|it| *it as u32 == number)?;
                let text = String::from_utf8_lossy(fields.0).into_owned();
                return Some(Self::Refused(refusal, text));
            }
            _ => return None,
        };
        fields.end(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn negotiate_when_ranges_meet_then_the_newest_of_both() {
        assert_eq!(negotiate(1, 1), Some(1));
        assert_eq!(negotiate(1, 9), Some(NEWEST));
        assert_eq!(negotiate(NEWEST + 1, NEWEST + 5), None);
        assert_eq!(negotiate(0, OLDEST - 1), None);
        assert_eq!(negotiate(1, 0), None);
    }

    #[test]
    fn replies_when_written_then_read_back_and_none_too_long() {
        let replies = [
            Reply::Welcome { version: 3 },
            Reply::Joined { bytes: 1 << 40 },
            Reply::Left,
            Reply::Refused(Refusal::Group, "it is complete".into()),
        ];
        for reply in replies {
            assert_eq!(Reply::decode(&reply.encode()), Some(reply));
        }
        let long = Reply::Refused(Refusal::File, "x".repeat(1000)).encode();
        assert_eq!(long.len(), MESSAGE_MAX);
        assert!(matches!(Reply::decode(&long), Some(Reply::Refused(Refusal::File, _))));
    }

    proptest! {
        #[test]
        fn requests_when_written_then_read_back_whole_only(
            token in any::<[u8; 16]>(),
            numbers in any::<(u64, u32, u32, u32, bool)>(),
            oldest in any::<u32>(),
            newest in any::<u32>(),
        ) {
            let (bytes, members, member, descriptor, writes) = numbers;
            let join = Join { token, bytes, members, member, descriptor, writes };
            for request in [Request::Join(join), Request::Hello { oldest, newest }, Request::Leave] {
                let mut bytes = request.encode();
                prop_assert!(bytes.len() <= MESSAGE_MAX);
                prop_assert_eq!(Request::decode(&bytes), Some(request));
                prop_assert_eq!(Request::decode(&bytes[..bytes.len() - 1]), None);
                bytes.push(0);
                prop_assert_eq!(Request::decode(&bytes), None);
            }
        }

        #[test]
        fn requests_of_arbitrary_bytes_then_what_is_understood_is_what_was_said(
            bytes in proptest::collection::vec(any::<u8>(), 0..80),
            kind in 0u8..5,
        ) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_chunk_mut() {
                *first = u32::from(kind).to_le_bytes();
            }
            if let Some(request) = Request::decode(&bytes) {
                prop_assert_eq!(request.encode(), bytes.clone());
            }
            let _ = Reply::decode(&bytes);
        }
    }
}
