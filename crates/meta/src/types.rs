//! What the namespace is made of: inode numbers, attributes, links, records.

use std::fmt;

pub use forebay_types::{FileKind, Fingerprint, Ino, Timestamp};

use crate::links::Links;

/// A place in the backlog. Smaller is older.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Seq(pub u64);

/// The attributes of an inode, as `stat` shows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attr {
    /// The type.
    pub kind: FileKind,
    /// Permission bits: the lower 12 bits of the mode.
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names. For an imported file this is what the backing store said, which counts
    /// names in directories that are not imported yet: it may exceed `links.len()`.
    pub nlink: u32,
    /// Device number of a device node.
    pub rdev: u64,
    /// Length in bytes.
    pub size: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Birth.
    pub btime: Timestamp,
}

/// One name of an inode: a parent directory and the name in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Link {
    /// The directory that holds the name.
    pub parent: Ino,
    /// The name, any bytes but `/` and NUL.
    pub name: Box<[u8]>,
}

impl Link {
    /// The name `name` in the directory `parent`.
    pub fn new(parent: Ino, name: impl Into<Box<[u8]>>) -> Self {
        Link { parent, name: name.into() }
    }

    pub(crate) fn is(&self, parent: Ino, name: &[u8]) -> bool {
        self.parent == parent && *self.name == *name
    }
}

/// A name in a directory that something is to be done with, whether anything has it or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameIn<'a> {
    /// The directory.
    pub dir: Ino,
    /// The name in it.
    pub name: &'a [u8],
}

impl<'a> NameIn<'a> {
    /// The name `name` in the directory `dir`.
    pub fn new(dir: Ino, name: &'a [u8]) -> Self {
        NameIn { dir, name }
    }
}

/// One life of a node of a cluster: from a start of its daemon to the end of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Incarnation {
    /// The node, from 1; it keeps its number for ever.
    pub node: u16,
    /// Counts the starts of that node.
    pub epoch: u64,
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} (epoch {})", self.node, self.epoch)
    }
}

/// What other nodes keep of a file, so that it is not lost with its owner: the contents that the
/// last `fsync` or `close` found. They are there as long as the record says `copied`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copies {
    /// Under which number the nodes have them. Their first `size` bytes never change.
    pub version: u64,
    /// The owner that made them, or took the file over with one of them.
    pub writer: Incarnation,
    /// How long the file was, in bytes.
    pub size: u64,
    /// When it was last modified.
    pub mtime: Timestamp,
    /// The nodes that have a copy each, and did so durably when this was written. Of a file that is
    /// coded, each has the fragment of its place; 0 stands for nobody.
    pub holders: Vec<u16>,
    /// How the file is coded; `None` for whole copies.
    pub code: Option<Coded>,
}

/// How a file is divided into fragments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coded {
    /// So many fragments give the file back.
    pub data: u8,
    /// Where the segments end that were coded one after the other; the last at the end of the file.
    pub ends: Vec<u64>,
}

impl Copies {
    /// Under which number a node has what belongs to a place among the holders: 0 for a whole copy.
    #[must_use]
    pub fn part(&self, place: usize) -> u32 {
        match self.code {
            Some(_) => u32::try_from(place + 1).unwrap_or(u32::MAX),
            None => 0,
        }
    }

    /// Who has what.
    #[must_use]
    pub fn parts(&self) -> Vec<(u16, u32)> {
        let parts = self.holders.iter().enumerate().map(|(place, node)| (*node, self.part(place)));
        parts.filter(|(node, _)| *node != 0).collect()
    }

    /// Whether what a node has under a number counts.
    #[must_use]
    pub fn counts(&self, node: u16, part: u32) -> bool {
        self.parts().contains(&(node, part))
    }

    /// What other nodes have beside one that has the whole now.
    #[must_use]
    pub fn without(&self, node: u16) -> Vec<u16> {
        let others = self.holders.iter().copied();
        match self.code {
            Some(_) => others.map(|holder| if holder == node { 0 } else { holder }).collect(),
            None => others.filter(|holder| *holder != node).collect(),
        }
    }
}

/// What is known about an inode's extended attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrState {
    /// Imported and not read from the backing store yet.
    Unknown,
    /// There are none.
    None,
    /// There are some, and all are here.
    Some,
}

/// Where the entries of a directory are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spread {
    /// In one partition.
    Whole,
    /// As [`Spread::Whole`], but nobody changes them until they are copied to the buckets.
    Splitting,
    /// In buckets, partitions of their own. That never changes back.
    Split,
}

/// When entries of a directory were last changed, apart from the directory's record, so that those
/// who change different entries do not meet in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Touched {
    /// mtime and ctime; `None` if the record says them.
    pub times: Option<(Timestamp, Timestamp)>,
    /// Never the same twice: who finds it unchanged knows that no entry was changed.
    pub nonce: u64,
}

/// Where an inode stands now in the backing store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Backing {
    /// The names under which the backing store holds (or, while a worker is at it, may hold) the
    /// inode.
    pub links: Links,
    /// The backing object as it was when it was last known to be equal to the contents here.
    pub fingerprint: Option<Fingerprint>,
    /// The version that a worker is about to make and has not reported (its change time is not
    /// known yet). With the inode number of `fingerprint` it announces a change in place, of which
    /// any part may be done.
    pub pending: Option<Fingerprint>,
    /// Mode, owner or explicitly set times differ.
    pub attrs_differ: bool,
    /// Extended attributes differ.
    pub xattrs_differ: bool,
    /// Of an inode whose names are keys of their own: those of `links` that a worker has claimed and
    /// not reported.
    pub(crate) claimed: Links,
}

impl Backing {
    /// A version that was found or made in the backing store, with its edition if it has none: it is the
    /// one that was announced, or the one that is known, or the next one.
    #[must_use]
    pub fn numbered(&self, print: Fingerprint) -> Fingerprint {
        if print.edition != 0 {
            return print;
        }
        let same = |known: &Fingerprint| known.edition != 0 && known.same_content(&print);
        let known = self.pending.filter(same).or(self.fingerprint.filter(same));
        let edition = known.map_or_else(|| self.next_edition(), |known| known.edition);
        Fingerprint { edition, ..print }
    }

    /// Notes a version that is about to be made.
    pub(crate) fn announce(&mut self, pending: Fingerprint) {
        let edition = match pending.edition {
            0 => self.next_edition(),
            known => known,
        };
        self.pending = Some(Fingerprint { edition, ..pending });
    }

    fn next_edition(&self) -> u16 {
        self.fingerprint.unwrap_or_default().next_edition()
    }
}

/// All that the namespace knows about an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The inode number.
    pub ino: Ino,
    /// Attributes.
    pub attr: Attr,
    /// The known names in the logical tree. Empty for the root, for a removed file that is still
    /// in use or not reconciled yet, and for an `O_TMPFILE` file.
    pub links: Links,
    /// The target of a symbolic link.
    pub target: Option<Box<[u8]>>,
    /// What is known about the extended attributes.
    pub xattrs: XattrState,
    /// Where the inode stands in the backing store.
    pub backing: Backing,
    /// The bytes on the tier are newer than those in the backing store.
    pub(crate) dirty: bool,
    /// The count of changes with the last of the bytes.
    pub(crate) dirtied: u64,
    /// A part of the bytes lies in a spill file of the backing store.
    pub spilled: bool,
    /// A directory all of whose backing entries are imported.
    pub listed: bool,
    /// To be kept on the tier.
    pub pinned: bool,
    /// Has no name but is in use (open, or just created by `O_TMPFILE`).
    pub orphan: bool,
    /// In a cluster: the node that may write the file's bytes, and has the newest. What is `dirty`
    /// or `spilled` lies there.
    pub owner: Option<Incarnation>,
    /// In a cluster: other nodes have copies of what is dirty ([`Copies`]). Never without `dirty` or
    /// `spilled`.
    pub copied: bool,
    /// In a cluster: the node by whose programs an orphan is in use; 0 for none.
    pub(crate) orphan_of: u16,
    /// It came to its name by a rename over another inode that the backing store had there, or over
    /// one that had come to the name in that way, and was not durable then: what it has replaced may
    /// have to come back.
    pub replaces: bool,
    /// Number of subdirectories among the known entries of a directory.
    pub subdirs: u32,
    /// Counts logical changes. Changes of a directory's times and link count that follow from
    /// changes of its entries do not count: the backing store makes them by itself.
    pub change: u64,
    /// The place in the backlog, if any.
    pub queued: Option<Seq>,
    /// The inode number in the backing store of a file that had several names there when it was
    /// imported, by which its other names are recognised.
    pub(crate) hard_link: Option<u64>,
    /// How many names are keys of their own: all of them, or none.
    pub(crate) apart: u64,
    /// Of a directory: where its entries are.
    pub(crate) spread: Spread,
    /// Counts writes of this record, for optimistic comparison. The highest 16 bits count those of a
    /// directory after which entries can't be changed as before: its removal and the steps of its
    /// split.
    pub(crate) revision: u64,
    /// What a later version of this program has written.
    pub(crate) later: Later,
}

/// What this version does not know of a record, and keeps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Later {
    /// Bits of the flags.
    pub flags: u32,
    /// Fields as they are encoded.
    pub fields: Box<[u8]>,
}

impl Record {
    /// Whether the bytes on the tier are newer than those in the backing store.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// The bytes are newer than those in the backing store, by a change that is being noted.
    pub fn mark_dirty(&mut self) {
        self.dirty = true;
        self.dirtied = self.change + 1;
    }

    /// The backing store has the bytes.
    pub fn mark_clean(&mut self) {
        self.dirty = false;
    }

    /// Whether the bytes may have changed since the record had this count of changes. Attributes and
    /// names may have changed all the same.
    #[must_use]
    pub fn bytes_changed_since(&self, change: u64) -> bool {
        // A count that it never had is of nothing that is known.
        self.change < change || self.dirtied > change
    }

    /// True if the backing store is not in line with this record, or may at any time get out of it:
    /// names, attributes, extended attributes or bytes, or a node that may write them.
    #[must_use]
    pub fn differs(&self) -> bool {
        self.owner.is_some() || self.is_behind()
    }

    /// True if the backing store is not in line with this record.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.namespace_differs() || self.attr.nlink > 0 && (self.dirty || self.spilled)
    }

    /// As [`Record::differs`], leaving the bytes aside.
    #[must_use]
    pub fn namespace_differs(&self) -> bool {
        let has_names = !self.links.is_empty() || self.ino == Ino::ROOT || self.has_unseen_names();
        !self.links.same(&self.backing.links) || has_names && self.attributes_differ()
    }

    fn attributes_differ(&self) -> bool {
        self.backing.attrs_differ || self.backing.xattrs_differ
    }

    /// True for a file that has no name here, and by the count of its names has others in directories
    /// of the backing store that nobody has looked into.
    #[must_use]
    pub fn has_unseen_names(&self) -> bool {
        self.links.is_empty()
            && !self.is_directory()
            && self.attr.nlink > 0
            && !self.backing.links.is_empty()
    }

    /// True if such names are to show what was changed here: the file is written back before it goes.
    #[must_use]
    pub fn is_owed_to_unseen_names(&self) -> bool {
        self.has_unseen_names() && (self.dirty || self.spilled || self.attributes_differ())
    }

    /// True if nobody can reach the bytes of an inode any more.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.links.is_empty() && !self.orphan && !self.is_owed_to_unseen_names()
    }

    /// True for a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.attr.kind == FileKind::Directory
    }

    /// True for a directory that has its entries and their times with it: one that was not split.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.is_directory() && self.spread == Spread::Whole
    }

    /// True for what has no name any more.
    pub(crate) fn is_removed(&self) -> bool {
        self.links.is_empty() && self.ino != Ino::ROOT
    }

    /// The revision of this record, made of another.
    pub(crate) fn next_revision(&self, before: &Record) -> u64 {
        const LOW: u64 = u64::MAX >> LIFE_BITS;
        let removed = self.is_removed() && !before.is_removed();
        let life = before.revision & !LOW;
        let life = match self.is_directory() && (removed || self.spread != before.spread) {
            true => life.wrapping_add(LOW + 1),
            false => life,
        };
        life | before.revision.wrapping_add(1) & LOW
    }

    /// Takes the times of changes of entries that are kept apart from the record.
    pub(crate) fn take_times(&mut self, touched: impl Iterator<Item = Touched>) {
        let latest =
            touched.filter_map(|touched| touched.times).reduce(|a, b| (a.0.max(b.0), a.1.max(b.1)));
        if let Some((mtime, ctime)) = latest {
            self.attr.mtime = mtime;
            self.attr.ctime = self.attr.ctime.max(ctime);
        }
    }

    /// True if neither a name here, nor a user, nor the backing store needs the record.
    pub(crate) fn is_dead(&self) -> bool {
        self.links.is_empty()
            && self.backing.links.is_empty()
            && !self.orphan
            && self.ino != Ino::ROOT
    }

    /// The names in the backing store that the logical tree no longer has.
    #[must_use]
    pub fn stale_names(&self) -> Vec<&Link> {
        let mut stale_names = Vec::new();
        self.backing.links.without(&self.links, &mut |link| {
            stale_names.push(link);
            true
        });
        stale_names
    }

    /// The names that the backing store lacks.
    #[must_use]
    pub fn missing(&self) -> Vec<&Link> {
        let mut missing = Vec::new();
        self.links.without(&self.backing.links, &mut |link| {
            missing.push(link);
            true
        });
        missing
    }

    /// The names in the backing store that a worker may have claimed and never made.
    #[must_use]
    pub fn claims(&self) -> &Links {
        if self.apart > 0 { &self.backing.claimed } else { &self.backing.links }
    }

    /// A worker reports names that it has made.
    pub fn claims_made(&mut self, made: &Links) {
        if self.apart > 0 {
            for link in made {
                self.backing.claimed.remove(link);
            }
        }
    }

    /// How a name is kept as a key of its own; 0 if it is not.
    pub(crate) fn name_bits(&self, link: &Link) -> u8 {
        let there = self.backing.links.contains(link);
        let claimed = there && self.backing.claimed.contains(link);
        let bits =
            [(self.links.contains(link), NAME_HERE), (there, NAME_THERE), (claimed, NAME_CLAIMED)];
        bits.iter().filter(|(set, _)| *set).fold(0, |bits, (_, bit)| bits | bit)
    }
}

/// A name in the logical tree.
pub(crate) const NAME_HERE: u8 = 1;
/// A name in the backing store.
pub(crate) const NAME_THERE: u8 = 2;
/// A name in the backing store that is claimed.
pub(crate) const NAME_CLAIMED: u8 = 4;

/// The bits of a revision that say whether entries can be changed as before.
pub(crate) const LIFE_BITS: u32 = 16;
