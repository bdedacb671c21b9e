//! What a directory has, read once, to be compared with what it may have, or with what another one has.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::io::Errno;

use super::oracle::BLOCK;
use crate::os;

/// The extended attribute that workers set.
pub const MARK: &str = "user.mark";
/// What a mount makes for itself begins with this.
const ITS_OWN: &str = ".forebay";

/// What a name leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // They are what they say.
pub enum Kind {
    File(Vec<u8>),
    Dir(BTreeMap<String, Seen>),
    /// A symbolic link, and what it says.
    Way(String),
    /// Nobody can look at it, and why.
    Unseen(String),
}

/// A name's inode.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // They are what they say.
pub struct Seen {
    pub kind: Kind,
    pub ino: u64,
    pub links: u64,
    pub mode: u32,
    pub mark: Option<u64>,
}

/// Without what it leads to, for comparisons of two file systems.
type Told<'a> = (&'a Kind, u64, u32, Option<u64>);

impl Seen {
    /// All that a path leads to.
    pub fn read(path: &Path) -> Self {
        Self::try_read(path).unwrap_or_else(|why| Seen {
            kind: Kind::Unseen(why),
            ino: 0,
            links: 0,
            mode: 0,
            mark: None,
        })
    }

    fn try_read(path: &Path) -> Result<Self, String> {
        let told = |error: std::io::Error| error.to_string();
        let found = fs::symlink_metadata(path).map_err(told)?;
        let (kind, links) = if found.is_dir() {
            let names = os::names(path).map_err(|error| error.to_string())?;
            let names = names.iter().map(|name| name.to_string_lossy().into_owned());
            let theirs = names.filter(|name| !name.starts_with(ITS_OWN));
            let entries = theirs.map(|name| {
                let seen = Self::read(&path.join(&name));
                (name, seen)
            });
            (Kind::Dir(entries.collect()), 0)
        } else if found.is_symlink() {
            let says = fs::read_link(path).map_err(told)?;
            (Kind::Way(says.to_string_lossy().into_owned()), found.nlink())
        } else {
            (Kind::File(fs::read(path).map_err(told)?), found.nlink())
        };
        let mark = match os::getxattr(path, MARK) {
            Ok(value) => String::from_utf8_lossy(&value).parse().ok(),
            Err(Errno::NODATA) => None,
            Err(error) => return Err(error.to_string()),
        };
        let mode = found.permissions().mode() & 0o7777;
        Ok(Seen { kind, ino: found.ino(), links, mode, mark })
    }

    /// What it has, if it is a directory.
    pub fn entries(&self) -> impl Iterator<Item = (&String, &Seen)> {
        let entries = match &self.kind {
            Kind::Dir(entries) => Some(entries),
            _ => None,
        };
        entries.into_iter().flatten()
    }

    fn told(&self) -> Told<'_> {
        (&self.kind, self.links, self.mode, self.mark)
    }

    fn brief(&self) -> String {
        let what = match &self.kind {
            Kind::File(bytes) => format!("a file of {} bytes", bytes.len()),
            Kind::Dir(entries) => format!("a directory of {}", entries.len()),
            Kind::Way(says) => format!("a link to {says}"),
            Kind::Unseen(why) => why.clone(),
        };
        format!("{what}, {} names, mode {:o}, mark {:?}", self.links, self.mode, self.mark)
    }

    /// In what two trees differ: where, and how.
    pub fn differences(&self, other: &Seen) -> Vec<(String, String)> {
        let mut all = Vec::new();
        differ("", Some(self), Some(other), &mut all);
        all
    }
}

fn differ(path: &str, one: Option<&Seen>, other: Option<&Seen>, all: &mut Vec<(String, String)>) {
    let told = |seen: Option<&Seen>| seen.map_or("nothing".into(), Seen::brief);
    if let (Some(a), Some(b)) = (one, other)
        && let (Kind::Dir(first), Kind::Dir(second)) = (&a.kind, &b.kind)
    {
        if (a.mode, a.mark) != (b.mode, b.mark) {
            all.push((path.into(), format!("{} and {}", told(one), told(other))));
        }
        let names: std::collections::BTreeSet<_> = first.keys().chain(second.keys()).collect();
        for name in names {
            let below = format!("{path}{}{name}", if path.is_empty() { "" } else { "/" });
            differ(&below, first.get(name), second.get(name), all);
        }
        return;
    }
    if one.map(Seen::told) != other.map(Seen::told) {
        let blocks = differing_blocks(one, other);
        all.push((path.into(), format!("{} and {}{blocks}", told(one), told(other))));
    }
}

fn differing_blocks(one: Option<&Seen>, other: Option<&Seen>) -> String {
    let (Some(Kind::File(one)), Some(Kind::File(other))) =
        (one.map(|seen| &seen.kind), other.map(|seen| &seen.kind))
    else {
        return String::new();
    };
    let blocks = one.chunks(BLOCK).zip(other.chunks(BLOCK)).enumerate();
    let differ: Vec<_> = blocks.filter(|(_, (a, b))| a != b).map(|it| it.0).collect();
    format!(", blocks {differ:?}")
}
