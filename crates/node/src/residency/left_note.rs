//! What is noted of an object that was left behind, and whether an object is that one.
//!
//! A note has the file of the object (its inode number and the time at which it was made, where the tier's
//! file system knows that) and the header that it had, as far as they could be read. Older notes have the
//! header alone, or nothing.
//!
//! # Invariants
//! - Nothing that may be newer is taken for what was left behind because it has its name: of an object that
//!   says that it is dirty the note must say more than that (`tests/left_behind.rs`).

use forebay_store::{Attributes, Header};
use forebay_types::Timestamp;

/// What a note begins with that has more than a header.
const MAGIC: &[u8; 8] = b"FBAYLEFT";
const VERSION: u32 = 1;
/// Magic, version, nanoseconds, inode number, seconds.
const LEN: usize = 32;

/// The file of an object, on the file system of its tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ObjectFile {
    ino: u64,
    born: Timestamp,
}

impl ObjectFile {
    /// By its attributes; `None` where another one may look the same.
    pub(super) fn of(found: &Attributes) -> Option<Self> {
        let born = Some(found.btime).filter(|born| *born != Timestamp::default())?;
        Some(ObjectFile { ino: found.ino, born })
    }
}

/// What was noted of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LeftNote {
    /// Its header, encoded; empty if that could not be read.
    pub(super) header: Vec<u8>,
    /// Its file, if that is known.
    pub(super) file: Option<ObjectFile>,
}

/// Whether an object is the one that was noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IsLeft {
    /// It is, or has nothing that the backing store lacks.
    Yes,
    /// It can't be told: it may be newer.
    Perhaps,
    /// It has the name of the one that was noted, and that is gone.
    No,
}

impl LeftNote {
    /// As it is written.
    pub(super) fn encode(&self) -> Vec<u8> {
        let Some(file) = self.file else { return self.header.clone() };
        let mut bytes = Vec::with_capacity(LEN + self.header.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&file.born.nsec.to_le_bytes());
        bytes.extend_from_slice(&file.ino.to_le_bytes());
        bytes.extend_from_slice(&file.born.sec.to_le_bytes());
        bytes.extend_from_slice(&self.header);
        bytes
    }

    /// Of one of a newer version, or that was cut, nothing is known but that it is there.
    pub(super) fn decode(bytes: &[u8]) -> Self {
        if !bytes.starts_with(MAGIC) {
            return LeftNote { header: bytes.to_vec(), file: None };
        }
        let Some((fixed, header)) = bytes.split_at_checked(LEN) else { return Self::default() };
        let four = |at: usize| <[u8; 4]>::try_from(&fixed[at..at + 4]).unwrap_or_default();
        let eight = |at: usize| <[u8; 8]>::try_from(&fixed[at..at + 8]).unwrap_or_default();
        if u32::from_le_bytes(four(8)) != VERSION {
            return Self::default();
        }
        let born = Timestamp::new(i64::from_le_bytes(eight(24)), u32::from_le_bytes(four(12)));
        let file = Some(ObjectFile { ino: u64::from_le_bytes(eight(16)), born });
        LeftNote { header: header.to_vec(), file }
    }

    /// Whether an object with this header, if that can be read, and this file is the one that was noted.
    pub(super) fn is_of(&self, header: Option<&Header>, file: Option<ObjectFile>) -> IsLeft {
        let same_file = self.file.zip(file).map(|(noted, found)| noted == found);
        if same_file == Some(true) {
            return IsLeft::Yes;
        }
        match header {
            // A tier that was copied has other files.
            Some(found) if found.encode() == self.header => IsLeft::Yes,
            Some(_) if !self.header.is_empty() => IsLeft::No,
            Some(found) if found.dirty => IsLeft::Perhaps,
            Some(_) => IsLeft::Yes,
            None => IsLeft::Perhaps,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(ino: u64) -> Option<ObjectFile> {
        Some(ObjectFile { ino, born: Timestamp::new(-5, 7) })
    }

    fn header(moves: u64, dirty: bool) -> Header {
        Header { ino: 9, moves, dirty, ..Header::default() }
    }

    #[test]
    fn note_when_written_and_read_then_the_same_and_of_others_nothing_is_believed() {
        for header in [Vec::new(), header(1, true).encode()] {
            for file in [None, file(3)] {
                let note = LeftNote { header: header.clone(), file };
                assert_eq!(LeftNote::decode(&note.encode()), note);
            }
        }
        let mut newer = LeftNote { header: vec![1], file: file(3) }.encode();
        newer[8] = 2;
        assert_eq!(LeftNote::decode(&newer), LeftNote::default());
        assert_eq!(LeftNote::decode(MAGIC), LeftNote::default());
    }

    #[test]
    fn object_under_the_name_of_a_note_when_it_may_be_newer_then_it_is_not_taken_for_the_noted_one()
    {
        let (old, new) = (header(1, true), header(2, true));
        let noted = LeftNote { header: old.encode(), file: file(3) };
        assert_eq!(noted.is_of(Some(&new), file(3)), IsLeft::Yes);
        assert_eq!(noted.is_of(Some(&old), file(4)), IsLeft::Yes);
        assert_eq!(noted.is_of(Some(&new), file(4)), IsLeft::No);
        assert_eq!(noted.is_of(None, file(4)), IsLeft::Perhaps);
        assert_eq!(noted.is_of(None, None), IsLeft::Perhaps);
        let unread = LeftNote { header: Vec::new(), file: file(3) };
        assert_eq!(unread.is_of(Some(&new), file(3)), IsLeft::Yes);
        assert_eq!(unread.is_of(Some(&new), file(4)), IsLeft::Perhaps);
        assert_eq!(unread.is_of(Some(&header(2, false)), file(4)), IsLeft::Yes);
        let nothing = LeftNote::default();
        assert_eq!(nothing.is_of(Some(&new), file(4)), IsLeft::Perhaps);
        assert_eq!(nothing.is_of(Some(&header(2, false)), file(4)), IsLeft::Yes);
        assert_eq!(nothing.is_of(None, file(4)), IsLeft::Perhaps);
    }
}
