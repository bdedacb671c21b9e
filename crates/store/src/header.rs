//! The header that every object carries in the extended attribute `user.forebay`.
//!
//! All numbers are little-endian; `docs/reference/format.md` gives the layout byte by byte.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use xxhash_rust::xxh3::xxh3_64;

use crate::{Fingerprint, Timestamp};

const MAGIC: &[u8; 8] = b"FBAYOBJ\0";
const CHECKSUM_AT: usize = 144;
const PATH_AT: usize = 152;

const DIRTY: u16 = 1 << 0;
const WHOLE: u16 = 1 << 1;
const WRITING: u16 = 1 << 2;
const SPILLED: u16 = 1 << 3;
const HAS_BASE: u16 = 1 << 4;
const HAS_PENDING: u16 = 1 << 5;
const PATH_TRUNCATED: u16 = 1 << 6;
const SYNCED: u16 = 1 << 7;
const COVERED: u16 = 1 << 8;

/// What an object says about itself, so that a tier can be understood without any index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Forebay's inode number.
    pub ino: u64,
    /// How often the file's object was moved to another tier: of two complete objects of one file,
    /// which an interrupted move leaves, the one that was moved more often counts.
    pub moves: u64,
    /// The object holds bytes that the backing store has not.
    pub dirty: bool,
    /// All bytes are resident; without it a presence map stands beside the object.
    pub whole: bool,
    /// Open for writing: after a crash take size and times from the object and treat it as dirty.
    pub writing: bool,
    /// Part of the bytes stands in the backing store's spill area.
    pub spilled: bool,
    /// A program has had the file synced since the object was last clean: after a crash of the machine
    /// the object counts, however short it is.
    pub synced: bool,
    /// Nothing was cut off what was durable when the object was last clean, or empty: after a crash of
    /// the machine the object counts if it has any bytes.
    pub covered: bool,
    /// Length of the file in bytes when the object was made; once it is dirty, how many of its first bytes
    /// it had without a hole when it was changed first or synced first, less what was cut off since. With
    /// `covered` at least 1, unless the object was empty.
    pub size: u64,
    /// The version in the backing store that the clean bytes are a copy of; `None` for a file that
    /// the backing store does not have yet.
    pub base: Option<Fingerprint>,
    /// The version that a commit in progress is about to publish (its ctime is not yet known and
    /// is ignored). After a crash a backing file with the same content is this object's own.
    pub pending: Option<Fingerprint>,
    /// Permission bits for a rebuild.
    pub mode: u32,
    /// Owner for a rebuild.
    pub uid: u32,
    /// Group for a rebuild.
    pub gid: u32,
    /// Modification time for a rebuild.
    pub mtime: Timestamp,
    /// Path below the root of the backing store, for people and for a rebuild. Set it with
    /// [`Header::set_path`].
    pub path: OsString,
    /// The path was longer than [`Header::PATH_MAX`] bytes and only its end is kept.
    pub path_truncated: bool,
}

/// Why bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderFault {
    /// Too short, wrong magic or wrong checksum.
    Damaged,
    /// A version that this program does not know.
    Version(u16),
}

impl Header {
    /// Longest path kept, in bytes: with it the attribute fits into one 4 KiB block of ext4.
    pub const PATH_MAX: usize = 2048;

    /// Newest version of the layout.
    pub const VERSION: u16 = 1;

    /// Longest encoded header in bytes.
    pub const ENCODED_MAX: usize = PATH_AT + Self::PATH_MAX;

    /// Sets the path, keeping the end of one that is too long.
    pub fn set_path(&mut self, path: &OsStr) {
        let bytes = path.as_bytes();
        self.path_truncated = bytes.len() > Self::PATH_MAX;
        let start = bytes.len().saturating_sub(Self::PATH_MAX);
        self.path = OsStr::from_bytes(&bytes[start..]).to_owned();
    }

    /// The bytes of the attribute.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let path = self.path.as_bytes();
        let start = path.len().saturating_sub(Self::PATH_MAX);
        let path = &path[start..];
        let mut out = Vec::with_capacity(PATH_AT + path.len());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&Self::VERSION.to_le_bytes());
        out.extend_from_slice(&self.flags(start > 0).to_le_bytes());
        out.extend_from_slice(&(path.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.base.map_or(0, |base| base.edition).to_le_bytes());
        out.extend_from_slice(&self.ino.to_le_bytes());
        out.extend_from_slice(&self.moves.to_le_bytes());
        out.extend_from_slice(&self.size.to_le_bytes());
        put_fingerprint(&mut out, self.base.unwrap_or_default());
        put_fingerprint(&mut out, self.pending.unwrap_or_default());
        out.extend_from_slice(&self.mode.to_le_bytes());
        out.extend_from_slice(&self.uid.to_le_bytes());
        out.extend_from_slice(&self.gid.to_le_bytes());
        out.extend_from_slice(&self.mtime.nsec.to_le_bytes());
        out.extend_from_slice(&self.mtime.sec.to_le_bytes());
        debug_assert_eq!(out.len(), CHECKSUM_AT);
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(path);
        let sum = checksum(&mut out);
        out[CHECKSUM_AT..PATH_AT].copy_from_slice(&sum.to_le_bytes());
        out
    }

    fn flags(&self, cut: bool) -> u16 {
        [
            (self.dirty, DIRTY),
            (self.whole, WHOLE),
            (self.writing, WRITING),
            (self.spilled, SPILLED),
            (self.base.is_some(), HAS_BASE),
            (self.pending.is_some(), HAS_PENDING),
            (self.path_truncated || cut, PATH_TRUNCATED),
            (self.synced, SYNCED),
            (self.covered, COVERED),
        ]
        .iter()
        .filter(|(set, _)| *set)
        .fold(0, |flags, (_, bit)| flags | bit)
    }

    /// Reads the bytes of the attribute.
    pub fn decode(bytes: &[u8]) -> Result<Self, HeaderFault> {
        if bytes.len() < PATH_AT || &bytes[..8] != MAGIC {
            return Err(HeaderFault::Damaged);
        }
        // Every version has its checksum there: what only claims to be of another one is damaged.
        if checksum(&mut bytes.to_vec()) != u64_at(bytes, CHECKSUM_AT) {
            return Err(HeaderFault::Damaged);
        }
        let version = u16_at(bytes, 8);
        if version != Self::VERSION {
            return Err(HeaderFault::Version(version));
        }
        let path_len = usize::from(u16_at(bytes, 12));
        if bytes.len() != PATH_AT + path_len {
            return Err(HeaderFault::Damaged);
        }
        let flags = u16_at(bytes, 10);
        let has = |bit| flags & bit != 0;
        Ok(Self {
            ino: u64_at(bytes, 16),
            moves: u64_at(bytes, 24),
            dirty: has(DIRTY),
            whole: has(WHOLE),
            writing: has(WRITING),
            spilled: has(SPILLED),
            synced: has(SYNCED),
            covered: has(COVERED),
            size: u64_at(bytes, 32),
            base: has(HAS_BASE)
                .then(|| Fingerprint { edition: u16_at(bytes, 14), ..fingerprint_at(bytes, 40) }),
            pending: has(HAS_PENDING).then(|| fingerprint_at(bytes, 80)),
            mode: u32_at(bytes, 120),
            uid: u32_at(bytes, 124),
            gid: u32_at(bytes, 128),
            mtime: Timestamp::new(u64_at(bytes, 136) as i64, u32_at(bytes, 132)),
            path: OsString::from_vec(bytes[PATH_AT..].to_vec()),
            path_truncated: has(PATH_TRUNCATED),
        })
    }
}

/// XXH3-64 of the whole with the checksum's own bytes as zeros.
fn checksum(bytes: &mut [u8]) -> u64 {
    bytes[CHECKSUM_AT..PATH_AT].fill(0);
    xxh3_64(bytes)
}

fn put_fingerprint(out: &mut Vec<u8>, version: Fingerprint) {
    out.extend_from_slice(&version.ino.to_le_bytes());
    out.extend_from_slice(&version.size.to_le_bytes());
    out.extend_from_slice(&version.mtime.sec.to_le_bytes());
    out.extend_from_slice(&version.ctime.sec.to_le_bytes());
    out.extend_from_slice(&version.mtime.nsec.to_le_bytes());
    out.extend_from_slice(&version.ctime.nsec.to_le_bytes());
}

fn fingerprint_at(bytes: &[u8], at: usize) -> Fingerprint {
    Fingerprint {
        ino: u64_at(bytes, at),
        size: u64_at(bytes, at + 8),
        mtime: Timestamp::new(u64_at(bytes, at + 16) as i64, u32_at(bytes, at + 32)),
        ctime: Timestamp::new(u64_at(bytes, at + 24) as i64, u32_at(bytes, at + 36)),
        ..Fingerprint::default()
    }
}

pub(crate) fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Header {
        let stamp = |sec, nsec| Timestamp::new(sec, nsec);
        let mut header = Header {
            ino: 0x0102_0304_0506_0708,
            moves: 3,
            dirty: true,
            writing: true,
            size: 4097,
            base: Some(Fingerprint {
                ino: 11,
                size: 4096,
                mtime: stamp(1_700_000_000, 5),
                ctime: stamp(-1, 6),
                ..Fingerprint::default()
            }),
            mode: 0o640,
            uid: 1000,
            gid: 100,
            mtime: stamp(1_700_000_001, 7),
            ..Header::default()
        };
        header.set_path(OsStr::new("a/b"));
        header
    }

    #[test]
    fn encode_of_a_known_header_gives_the_golden_bytes() {
        let hex: String = sample().encode().iter().map(|b| format!("{b:02x}")).collect();
        let golden = include_str!("golden_header.txt").split_whitespace().collect::<String>();
        assert_eq!(hex, golden);
    }

    #[test]
    fn newer_header_when_decoded_is_refused_and_one_that_only_claims_to_be_one_is_damaged() {
        let mut newer = sample().encode();
        newer[8] = 9;
        assert_eq!(Header::decode(&newer), Err(HeaderFault::Damaged));
        let sum = checksum(&mut newer.clone());
        newer[CHECKSUM_AT..PATH_AT].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(Header::decode(&newer), Err(HeaderFault::Version(9)));
    }

    #[test]
    fn edition_of_the_base_then_comes_back_and_is_unknown_in_headers_from_before_there_was_one() {
        let mut header = sample();
        let edition =
            |header: &Header| Header::decode(&header.encode()).unwrap().base.unwrap().edition;
        assert_eq!(edition(&header), 0);
        header.base.as_mut().unwrap().edition = 0x0708;
        assert_eq!(edition(&header), 0x0708);
    }

    #[test]
    fn decode_of_a_header_with_any_byte_changed_fails() {
        let bytes = sample().encode();
        for at in 0..bytes.len() {
            let mut torn = bytes.clone();
            torn[at] ^= 0x10;
            assert!(Header::decode(&torn).is_err(), "byte {at}");
        }
        for len in 0..bytes.len() {
            assert_eq!(Header::decode(&bytes[..len]), Err(HeaderFault::Damaged));
        }
    }

    #[test]
    fn set_path_of_a_long_path_keeps_its_end_and_says_so() {
        let mut header = sample();
        let long = "d/".repeat(3000) + "name";
        header.set_path(OsStr::new(&long));
        let read = Header::decode(&header.encode()).unwrap();
        assert!(read.path_truncated);
        assert_eq!(read.path.len(), Header::PATH_MAX);
        assert!(read.path.to_str().unwrap().ends_with("/name"));
    }

    proptest! {
        #[test]
        fn decode_of_any_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = Header::decode(&bytes);
        }

        #[test]
        fn decode_of_an_encoded_header_gives_it_back(
            ino: u64, size: u64, flags in 0u8..64, seconds: i64, path in ".{0,40}",
        ) {
            let mut header = sample();
            header.ino = ino;
            header.size = size;
            header.whole = flags & 1 != 0;
            header.dirty = flags & 2 != 0;
            header.spilled = flags & 4 != 0;
            header.synced = flags & 16 != 0;
            header.covered = flags & 32 != 0;
            header.pending = (flags & 8 != 0).then(|| Fingerprint { ino: size, ..Fingerprint::default() });
            header.base = None;
            header.mtime.sec = seconds;
            header.set_path(OsStr::new(&path));
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
    }
}
