//! Attributes of an inode, as rooms tell each other.

use forebay_meta::Attr;
use forebay_types::Ino;

/// Attributes of an inode as programs see them now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// The inode number.
    pub ino: Ino,
    /// The attributes.
    pub attr: Attr,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// The file is open: its attributes may change without a request that tells, for instance by a
    /// store into a mapping.
    pub open: bool,
    /// The alias of a file that is shown now ([`crate::node_id`]).
    pub alias: u8,
    /// Programs may change what is shown without a request that tells, and right now: they store into
    /// mappings of the file, or write it, through the kernel alone.
    pub is_fleeting: bool,
}
