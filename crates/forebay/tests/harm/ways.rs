//! Ways of damage.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use forebay_meta::Key;

use super::case::Case;
use super::{HEADER, files_below, values};

/// Ways of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Damage {
    Deleted,
    Halved,
    Flipped,
    /// The disk can't read it.
    Unreadable,
    /// The same for the header in the extended attribute.
    HeaderDeleted,
    HeaderFlipped,
    HeaderNewer,
    HeaderUnreadable,
    /// It says that a newer Forebay wrote it.
    Newer,
}

pub const ALL: [Damage; 9] = [
    Damage::Deleted,
    Damage::Halved,
    Damage::Flipped,
    Damage::Unreadable,
    Damage::HeaderDeleted,
    Damage::HeaderFlipped,
    Damage::HeaderNewer,
    Damage::HeaderUnreadable,
    Damage::Newer,
];

impl Damage {
    /// Whether it is a disk that does it, and can be well again.
    pub fn is_of_the_disk(self) -> bool {
        matches!(self, Self::Unreadable | Self::HeaderUnreadable)
    }
}

/// How what was damaged is as it was.
pub enum Undo {
    File(PathBuf, Vec<u8>),
    Value(PathBuf, (Key, Vec<u8>)),
}

impl Undo {
    pub fn carry_out(&self) {
        match self {
            Self::File(path, bytes) => fs::write(path, bytes).unwrap(),
            Self::Value(index, value) => values::put_back(index, value.clone()),
        }
    }
}

/// Where a file says which version of its format it has: after a magic of eight bytes, or as text.
fn version_at(bytes: &[u8]) -> Option<usize> {
    let (magic, index, text) = (&b"FBAY"[..], &b"FJL"[..], &b"forebay-"[..]);
    let word = bytes.starts_with(text).then(|| bytes.iter().position(|byte| *byte == b' '));
    match word.flatten() {
        Some(end) if bytes.get(end + 1).is_some_and(u8::is_ascii_digit) => Some(end + 1),
        _ if bytes.starts_with(magic) && bytes.len() >= 12 => Some(8),
        _ if bytes.starts_with(index) && bytes.len() == 4 => Some(3),
        _ => None,
    }
}

fn header(path: &Path) -> Option<Vec<u8>> {
    let mut header = vec![0; 4096];
    let len = rustix::fs::getxattr(path, HEADER, &mut header[..]).ok()?;
    header.truncate(len);
    Some(header)
}

fn set_header(path: &Path, header: &[u8]) -> bool {
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(path, HEADER, header, flags).unwrap();
    true
}

impl Case {
    /// Whether a file has what is to be damaged.
    pub fn can_damage(&self, path: &Path, how: Damage) -> bool {
        if values::is_value(path) {
            return how == Damage::Newer;
        }
        let path = self.site.path("").join(path);
        let len = fs::metadata(&path).unwrap().len();
        match how {
            Damage::Deleted => true,
            Damage::Halved => len > 1,
            Damage::Flipped | Damage::Unreadable => len > 0,
            Damage::Newer => version_at(&fs::read(&path).unwrap()).is_some(),
            Damage::HeaderDeleted
            | Damage::HeaderFlipped
            | Damage::HeaderNewer
            | Damage::HeaderUnreadable => header(&path).is_some(),
        }
    }

    /// Damages it, if that can be done.
    pub fn damage(&self, path: &Path, how: Damage) -> Option<Undo> {
        if values::is_value(path) {
            let index = self.site.path(self.scene.state()).join("meta");
            let was = values::make_newer(&index, path)?;
            return Some(Undo::Value(index, was));
        }
        let path = self.site.path("").join(path);
        let bytes = fs::read(&path).unwrap();
        self.damage_file(&path, how).then_some(Undo::File(path, bytes))
    }

    fn is_noted_as_unseen(&self, object: &Path) -> bool {
        let notes = files_below(&self.site.path(self.scene.state()).join("unseen"));
        let of = |note: &Path| note.file_stem().map(OsStr::to_owned);
        notes.iter().any(|note| of(note).as_deref() == object.file_name())
    }

    fn damage_file(&self, path: &Path, how: Damage) -> bool {
        let len = fs::metadata(path).unwrap().len();
        // No record speaks of what was written to a file before its close, nor of what was durable of an object
        // that no start has seen since a crash of the machine: if it is gone altogether, nothing tells of it.
        let told_by_nothing_else = || {
            let is_held = |header: Vec<u8>| header.windows(10).any(|part| part == b"dirty-held");
            header(path).is_some_and(is_held) || self.is_noted_as_unseen(path)
        };
        match how {
            Damage::Deleted if told_by_nothing_else() => false,
            Damage::Deleted => fs::remove_file(path).is_ok(),
            Damage::Halved if len > 1 => {
                let file = fs::OpenOptions::new().write(true).open(path).unwrap();
                file.set_len(len / 2).is_ok()
            }
            Damage::Flipped if len > 0 => {
                let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
                let mut byte = [0];
                let at = (len / 2).min(9);
                file.read_exact_at(&mut byte, at).unwrap();
                file.write_all_at(&[byte[0] ^ 2], at).is_ok()
            }
            Damage::Unreadable => self.disk.as_ref().is_some_and(|disk| disk.spoil(path)),
            Damage::HeaderDeleted => rustix::fs::removexattr(path, HEADER).is_ok(),
            Damage::HeaderFlipped => header(path).is_some_and(|mut header| {
                header[20] ^= 8;
                set_header(path, &header)
            }),
            Damage::HeaderNewer => header(path).is_some_and(|mut header| {
                // As that version would: what is not sealed is merely damaged.
                header[8] = 9;
                header[144..152].fill(0);
                let sum = xxhash_rust::xxh3::xxh3_64(&header);
                header[144..152].copy_from_slice(&sum.to_le_bytes());
                set_header(path, &header)
            }),
            Damage::HeaderUnreadable => {
                self.disk.as_ref().is_some_and(|disk| disk.spoil_attributes(path))
            }
            Damage::Newer => {
                let mut bytes = fs::read(path).unwrap();
                version_at(&bytes).is_some_and(|at| {
                    // A digit, where the version is one.
                    bytes[at] = if bytes[at].is_ascii_digit() { b'9' } else { 9 };
                    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
                    file.write_all_at(&bytes, 0).is_ok()
                })
            }
            Damage::Halved | Damage::Flipped => false,
        }
    }
}
