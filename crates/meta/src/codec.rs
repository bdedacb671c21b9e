//! Values: one byte of format version, then a Protocol Buffers message.
//!
//! A record has its revision (8 bytes, big-endian) between the two, so that a mini-transaction can
//! compare it as a prefix.
//!
//! Nodes of different versions change the same values. What an older one does not know of a value it
//! keeps: fields of the message with higher tags than the last one known here, and bits of a record's
//! flags. So new fields get ascending tags in the outermost message, and what must not outlive a change
//! by a node that does not know it needs a higher format of the namespace.
//!
//! No bytes make the decoder panic, and a newer version is refused, not guessed (`codec/tests.rs`).

use forebay_core::cluster::locks::{Family, Holder, Lock, Locks, Mode, Span, Waiter};
use forebay_core::cluster::ownership::Incarnation as Owner;
use forebay_core::cluster::{Epoch, NodeId};
use prost::Message;
use prost::encoding::{DecodeContext, decode_key, skip_field};

use crate::error::{Error, Result};
use crate::links::Links;
use crate::store::{Counts, Member};
use crate::types::{
    Attr, Backing, Coded, Copies, FileKind, Fingerprint, Incarnation, Ino, LIFE_BITS, Later, Link,
    Record, Seq, Spread, Timestamp, Touched, XattrState,
};

/// The version of all values.
pub(crate) const VERSION: u8 = 1;

#[derive(Clone, Copy, PartialEq, Message)]
struct PbTime {
    #[prost(sint64, tag = "1")]
    sec: i64,
    #[prost(uint32, tag = "2")]
    nsec: u32,
}

#[derive(Clone, PartialEq, Message)]
struct PbLink {
    #[prost(uint64, tag = "1")]
    parent: u64,
    #[prost(bytes = "vec", tag = "2")]
    name: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct PbFingerprint {
    #[prost(uint64, tag = "1")]
    size: u64,
    #[prost(message, optional, tag = "2")]
    mtime: Option<PbTime>,
    #[prost(message, optional, tag = "3")]
    ctime: Option<PbTime>,
    #[prost(uint64, tag = "4")]
    ino: u64,
    #[prost(message, optional, tag = "5")]
    born: Option<PbTime>,
    #[prost(uint32, tag = "6")]
    edition: u32,
}

/// The record, without what its key says. Times other than mtime are left out where equal to it;
/// backing links are left out where equal to the links (bit `SAME_LINKS`).
#[derive(Clone, PartialEq, Message)]
struct PbRecord {
    #[prost(uint32, tag = "1")]
    kind: u32,
    #[prost(uint32, tag = "2")]
    perm: u32,
    #[prost(uint32, tag = "3")]
    uid: u32,
    #[prost(uint32, tag = "4")]
    gid: u32,
    #[prost(uint32, tag = "5")]
    nlink: u32,
    #[prost(uint64, tag = "6")]
    rdev: u64,
    #[prost(uint64, tag = "7")]
    size: u64,
    #[prost(message, optional, tag = "8")]
    mtime: Option<PbTime>,
    #[prost(message, optional, tag = "9")]
    atime: Option<PbTime>,
    #[prost(message, optional, tag = "10")]
    ctime: Option<PbTime>,
    #[prost(message, optional, tag = "11")]
    btime: Option<PbTime>,
    #[prost(message, repeated, tag = "12")]
    links: Vec<PbLink>,
    #[prost(message, repeated, tag = "13")]
    backing_links: Vec<PbLink>,
    #[prost(bytes = "vec", optional, tag = "14")]
    target: Option<Vec<u8>>,
    #[prost(uint32, tag = "15")]
    flags: u32,
    #[prost(message, optional, tag = "16")]
    fingerprint: Option<PbFingerprint>,
    #[prost(uint32, tag = "17")]
    subdirs: u32,
    #[prost(uint64, tag = "18")]
    change: u64,
    #[prost(uint64, optional, tag = "19")]
    queued: Option<u64>,
    #[prost(uint64, optional, tag = "20")]
    hard_link: Option<u64>,
    #[prost(message, optional, tag = "21")]
    pending: Option<PbFingerprint>,
    /// Node and epoch; records of before there were clusters have none.
    #[prost(message, optional, tag = "22")]
    owner: Option<PbIncarnation>,
    #[prost(uint32, tag = "23")]
    orphan_of: u32,
    /// Names that are keys of their own; there are no `links` and `backing_links` then.
    #[prost(uint64, tag = "24")]
    apart: u64,
    #[prost(uint64, tag = "25")]
    dirtied: u64,
}

impl PbRecord {
    /// The count of changes with the last of the bytes. A version that does not know of it says nothing.
    fn bytes_changed_at(&self) -> u64 {
        match self.dirtied {
            0 if self.flags & (flag::DIRTY | flag::SPILLED) != 0 => self.change,
            dirtied => dirtied,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Message)]
struct PbIncarnation {
    #[prost(uint32, tag = "1")]
    node: u32,
    #[prost(uint64, tag = "2")]
    epoch: u64,
}

/// A node of a cluster.
#[derive(Clone, PartialEq, Message)]
struct PbMember {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(uint64, tag = "2")]
    epoch: u64,
    #[prost(uint64, tag = "3")]
    beat: u64,
    #[prost(bool, tag = "4")]
    left: bool,
    #[prost(string, tag = "5")]
    address: String,
    #[prost(string, tag = "9")]
    reach: String,
    #[prost(bool, tag = "10")]
    expelled: bool,
    /// Nodes from before there was this field say 0.
    #[prost(uint32, tag = "11")]
    knows: u32,
}

/// Copies of a file on other nodes.
#[derive(Clone, PartialEq, Message)]
struct PbCopies {
    #[prost(fixed64, tag = "1")]
    version: u64,
    #[prost(message, optional, tag = "2")]
    writer: Option<PbIncarnation>,
    #[prost(uint64, tag = "3")]
    size: u64,
    #[prost(message, optional, tag = "4")]
    mtime: Option<PbTime>,
    #[prost(uint32, repeated, tag = "5")]
    holders: Vec<u32>,
    /// Of a file that is coded; 0 for whole copies.
    #[prost(uint32, tag = "6")]
    data: u32,
    #[prost(uint64, repeated, tag = "7")]
    ends: Vec<u64>,
}

/// A lock of a program, or somebody who waits for it.
#[derive(Clone, Copy, PartialEq, Message)]
struct PbLock {
    #[prost(message, optional, tag = "1")]
    incarnation: Option<PbIncarnation>,
    #[prost(uint64, tag = "2")]
    owner: u64,
    #[prost(bool, tag = "3")]
    whole: bool,
    #[prost(uint64, tag = "4")]
    first: u64,
    #[prost(uint64, tag = "5")]
    last: u64,
    #[prost(bool, tag = "6")]
    exclusive: bool,
    #[prost(uint32, tag = "7")]
    pid: u32,
    /// Of somebody who waits.
    #[prost(uint64, optional, tag = "8")]
    ticket: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct PbLocks {
    #[prost(message, repeated, tag = "1")]
    locks: Vec<PbLock>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct PbCounts {
    #[prost(uint64, tag = "1")]
    inodes: u64,
    #[prost(uint64, tag = "2")]
    queued: u64,
    #[prost(uint64, tag = "3")]
    orphans: u64,
    #[prost(uint64, tag = "4")]
    stale_names: u64,
    #[prost(uint64, tag = "5")]
    next_seq: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct PbEntry {
    #[prost(uint64, tag = "1")]
    ino: u64,
    #[prost(uint32, tag = "2")]
    kind: u32,
}

/// When entries of a directory were last changed.
#[derive(Clone, Copy, PartialEq, Message)]
struct PbTouched {
    #[prost(message, optional, tag = "1")]
    mtime: Option<PbTime>,
    /// Absent where equal to mtime.
    #[prost(message, optional, tag = "2")]
    ctime: Option<PbTime>,
    #[prost(fixed64, tag = "3")]
    nonce: u64,
}

/// The last tags that are known of messages.
const RECORD_TAGS: u32 = 25;
pub(crate) const MEMBER_TAGS: u32 = 11;
pub(crate) const COPIES_TAGS: u32 = 7;
pub(crate) const LOCKS_TAGS: u32 = 1;

mod flag {
    pub const DIRTY: u32 = 1;
    pub const SPILLED: u32 = 1 << 1;
    pub const LISTED: u32 = 1 << 2;
    pub const PINNED: u32 = 1 << 3;
    pub const ORPHAN: u32 = 1 << 4;
    pub const ATTRS_DIFFER: u32 = 1 << 5;
    pub const XATTRS_DIFFER: u32 = 1 << 6;
    pub const XATTRS_UNKNOWN: u32 = 1 << 7;
    pub const XATTRS_SOME: u32 = 1 << 8;
    pub const SAME_LINKS: u32 = 1 << 9;
    pub const COPIED: u32 = 1 << 10;
    pub const SPLITTING: u32 = 1 << 11;
    pub const SPLIT: u32 = 1 << 12;
    pub const REPLACES: u32 = 1 << 13;
    /// All of them.
    pub const KNOWN: u32 = (1 << 14) - 1;
}

fn kind_number(kind: FileKind) -> u32 {
    match kind {
        FileKind::Regular => 1,
        FileKind::Directory => 2,
        FileKind::Symlink => 3,
        FileKind::Fifo => 4,
        FileKind::Socket => 5,
        FileKind::CharDevice => 6,
        FileKind::BlockDevice => 7,
    }
}

fn kind_of(number: u32) -> Option<FileKind> {
    Some(match number {
        1 => FileKind::Regular,
        2 => FileKind::Directory,
        3 => FileKind::Symlink,
        4 => FileKind::Fifo,
        5 => FileKind::Socket,
        6 => FileKind::CharDevice,
        7 => FileKind::BlockDevice,
        _ => return None,
    })
}

fn time_out(time: Timestamp) -> PbTime {
    PbTime { sec: time.sec, nsec: time.nsec }
}

fn time_in(time: PbTime) -> Timestamp {
    Timestamp { sec: time.sec, nsec: time.nsec }
}

fn print_out(print: Fingerprint) -> PbFingerprint {
    PbFingerprint {
        size: print.size,
        mtime: Some(time_out(print.mtime)),
        ctime: Some(time_out(print.ctime)),
        ino: print.ino,
        born: (print.born != Timestamp::default()).then(|| time_out(print.born)),
        edition: print.edition.into(),
    }
}

fn print_in(print: PbFingerprint) -> Fingerprint {
    Fingerprint {
        size: print.size,
        mtime: print.mtime.map_or(Timestamp::default(), time_in),
        ctime: print.ctime.map_or(Timestamp::default(), time_in),
        ino: print.ino,
        born: print.born.map_or(Timestamp::default(), time_in),
        edition: u16::try_from(print.edition).unwrap_or_default(),
    }
}

fn incarnation_out(incarnation: Incarnation) -> PbIncarnation {
    PbIncarnation { node: incarnation.node.into(), epoch: incarnation.epoch }
}

fn incarnation_in(what: &str, incarnation: PbIncarnation) -> Result<Incarnation> {
    let node = u16::try_from(incarnation.node).map_err(|error| corrupt(what, error))?;
    Ok(Incarnation { node, epoch: incarnation.epoch })
}

fn links_out(links: &Links) -> Vec<PbLink> {
    links.iter().map(|link| PbLink { parent: link.parent.0, name: link.name.to_vec() }).collect()
}

fn links_in(links: Vec<PbLink>) -> Links {
    links.into_iter().map(|link| Link::new(Ino(link.parent), link.name)).collect()
}

fn flags_of(record: &Record) -> u32 {
    let xattrs = match record.xattrs {
        XattrState::None => 0,
        XattrState::Unknown => flag::XATTRS_UNKNOWN,
        XattrState::Some => flag::XATTRS_SOME,
    };
    let bits = [
        (record.dirty, flag::DIRTY),
        (record.spilled, flag::SPILLED),
        (record.listed, flag::LISTED),
        (record.pinned, flag::PINNED),
        (record.orphan, flag::ORPHAN),
        (record.copied, flag::COPIED),
        (record.replaces, flag::REPLACES),
        (record.backing.attrs_differ, flag::ATTRS_DIFFER),
        (record.backing.xattrs_differ, flag::XATTRS_DIFFER),
        (record.links == record.backing.links, flag::SAME_LINKS),
        (record.spread == Spread::Splitting, flag::SPLITTING),
        (record.spread == Spread::Split, flag::SPLIT),
    ];
    let later = record.later.flags;
    bits.iter().filter(|(set, _)| *set).fold(xattrs | later, |flags, (_, bit)| flags | bit)
}

/// The bytes at the beginning of a record's value by which a transaction knows its revision.
pub(crate) fn record_prefix(revision: u64) -> Vec<u8> {
    let mut prefix = Vec::with_capacity(9);
    prefix.push(VERSION);
    prefix.extend_from_slice(&revision.to_be_bytes());
    prefix
}

/// As [`record_prefix`], of all revisions in which entries of a directory can be changed as in this
/// one.
pub(crate) fn life_prefix(revision: u64) -> Vec<u8> {
    let mut prefix = record_prefix(revision);
    prefix.truncate(1 + LIFE_BITS as usize / 8);
    prefix
}

pub(crate) fn encode_touched(touched: Touched) -> Vec<u8> {
    let message = PbTouched {
        mtime: touched.times.map(|(mtime, _)| time_out(mtime)),
        ctime: touched.times.filter(|(mtime, ctime)| ctime != mtime).map(|(_, c)| time_out(c)),
        nonce: touched.nonce,
    };
    let mut value = Vec::with_capacity(1 + message.encoded_len());
    value.push(VERSION);
    message.encode_raw(&mut value);
    value
}

pub(crate) fn decode_touched(dir: Ino, value: &[u8]) -> Result<Touched> {
    let what = || format!("times of {dir}");
    let message = PbTouched::decode(body(&what, value)?).map_err(|error| corrupt(what(), error))?;
    let times =
        message.mtime.map(|mtime| (time_in(mtime), time_in(message.ctime.unwrap_or(mtime))));
    Ok(Touched { times, nonce: message.nonce })
}

pub(crate) fn encode_record(record: &Record) -> Vec<u8> {
    let attr = &record.attr;
    let unlike_mtime = |time: Timestamp| (time != attr.mtime).then(|| time_out(time));
    let flags = flags_of(record);
    let none = Links::new();
    let links = if record.apart > 0 { &none } else { &record.links };
    let is_told = flags & flag::SAME_LINKS == 0 && record.apart == 0;
    let backing_links = if is_told { &record.backing.links } else { &none };
    let message = PbRecord {
        kind: kind_number(attr.kind),
        perm: attr.perm,
        uid: attr.uid,
        gid: attr.gid,
        nlink: attr.nlink,
        rdev: attr.rdev,
        size: attr.size,
        mtime: Some(time_out(attr.mtime)),
        atime: unlike_mtime(attr.atime),
        ctime: unlike_mtime(attr.ctime),
        btime: unlike_mtime(attr.btime),
        links: links_out(links),
        backing_links: links_out(backing_links),
        target: record.target.as_deref().map(<[u8]>::to_vec),
        flags,
        fingerprint: record.backing.fingerprint.map(print_out),
        subdirs: record.subdirs,
        change: record.change,
        queued: record.queued.map(|seq| seq.0),
        hard_link: record.hard_link,
        pending: record.backing.pending.map(print_out),
        owner: record.owner.map(incarnation_out),
        orphan_of: record.orphan_of.into(),
        apart: record.apart,
        dirtied: record.dirtied,
    };
    let later = &record.later.fields;
    let mut value = Vec::with_capacity(9 + message.encoded_len() + later.len());
    value.push(VERSION);
    value.extend_from_slice(&record.revision.to_be_bytes());
    message.encode_raw(&mut value);
    value.extend_from_slice(later);
    value
}

/// The fields of a message with higher tags than `last`, as they are.
fn later_fields(mut message: &[u8], last: u32) -> std::result::Result<Vec<u8>, prost::DecodeError> {
    let mut later = Vec::new();
    while !message.is_empty() {
        let field = message;
        let (tag, wire) = decode_key(&mut message)?;
        skip_field(wire, tag, &mut message, DecodeContext::default())?;
        if tag > last {
            later.extend_from_slice(&field[..field.len() - message.len()]);
        }
    }
    Ok(later)
}

/// A value in place of another of its kind, with the fields of that one whose tags are higher than
/// `last`.
pub(crate) fn keep_later(mut value: Vec<u8>, before: &[u8], last: u32) -> Result<Vec<u8>> {
    let what = || "a value that is changed".to_string();
    let later = later_fields(body(&what, before)?, last).map_err(|error| corrupt(what(), error))?;
    value.extend_from_slice(&later);
    Ok(value)
}

fn corrupt(key: impl Into<String>, reason: impl ToString) -> Error {
    Error::Corrupt { key: key.into(), reason: reason.to_string() }
}

/// The message after the version byte.
fn body<'a>(what: &dyn Fn() -> String, value: &'a [u8]) -> Result<&'a [u8]> {
    match value.split_first() {
        Some((&VERSION, rest)) => Ok(rest),
        Some((&version, _)) if version > VERSION => {
            Err(Error::NewerFormat { what: what(), found: version.into(), known: VERSION.into() })
        }
        _ => Err(corrupt(what(), "no valid version")),
    }
}

/// A record without the names that are keys of their own.
pub(crate) fn decode_record(ino: Ino, value: &[u8]) -> Result<Record> {
    let what = || format!("inode {ino}");
    let rest = body(&what, value)?;
    let (revision, rest) =
        rest.split_first_chunk::<8>().ok_or_else(|| corrupt(what(), "too short"))?;
    let later = later_fields(rest, RECORD_TAGS).map_err(|error| corrupt(what(), error))?;
    let message = PbRecord::decode(rest).map_err(|error| corrupt(what(), error))?;
    let kind = kind_of(message.kind).ok_or_else(|| corrupt(what(), "unknown type"))?;
    let mtime = message.mtime.map_or(Timestamp::default(), time_in);
    let or_mtime = |time: Option<PbTime>| time.map_or(mtime, time_in);
    let (flags, dirtied) = (message.flags, message.bytes_changed_at());
    let has = |bit: u32| flags & bit != 0;
    let links = links_in(message.links);
    let backing_links =
        if has(flag::SAME_LINKS) { links.clone() } else { links_in(message.backing_links) };
    Ok(Record {
        ino,
        attr: Attr {
            kind,
            perm: message.perm,
            uid: message.uid,
            gid: message.gid,
            nlink: message.nlink,
            rdev: message.rdev,
            size: message.size,
            atime: or_mtime(message.atime),
            mtime,
            ctime: or_mtime(message.ctime),
            btime: or_mtime(message.btime),
        },
        links,
        target: message.target.map(Vec::into_boxed_slice),
        xattrs: if has(flag::XATTRS_UNKNOWN) {
            XattrState::Unknown
        } else if has(flag::XATTRS_SOME) {
            XattrState::Some
        } else {
            XattrState::None
        },
        backing: Backing {
            links: backing_links,
            fingerprint: message.fingerprint.map(print_in),
            pending: message.pending.map(print_in),
            attrs_differ: has(flag::ATTRS_DIFFER),
            xattrs_differ: has(flag::XATTRS_DIFFER),
            claimed: Links::new(),
        },
        apart: message.apart,
        dirty: has(flag::DIRTY),
        dirtied,
        spilled: has(flag::SPILLED),
        listed: has(flag::LISTED),
        pinned: has(flag::PINNED),
        orphan: has(flag::ORPHAN),
        copied: has(flag::COPIED),
        replaces: has(flag::REPLACES),
        owner: message.owner.map(|owner| incarnation_in(&what(), owner)).transpose()?,
        orphan_of: u16::try_from(message.orphan_of).map_err(|error| corrupt(what(), error))?,
        subdirs: message.subdirs,
        change: message.change,
        queued: message.queued.map(Seq),
        hard_link: message.hard_link,
        spread: match (has(flag::SPLIT), has(flag::SPLITTING)) {
            (true, _) => Spread::Split,
            (false, true) => Spread::Splitting,
            (false, false) => Spread::Whole,
        },
        revision: u64::from_be_bytes(*revision),
        later: Later { flags: flags & !flag::KNOWN, fields: later.into() },
    })
}

pub(crate) fn encode_entry(ino: Ino, kind: FileKind) -> Vec<u8> {
    let message = PbEntry { ino: ino.0, kind: kind_number(kind) };
    let mut value = Vec::with_capacity(1 + message.encoded_len());
    value.push(VERSION);
    message.encode_raw(&mut value);
    value
}

pub(crate) fn decode_entry(name: &[u8], value: &[u8]) -> Result<(Ino, FileKind)> {
    let what = || format!("entry {}", name.escape_ascii());
    let message = PbEntry::decode(body(&what, value)?).map_err(|error| corrupt(what(), error))?;
    let kind = kind_of(message.kind).ok_or_else(|| corrupt(what(), "unknown type"))?;
    Ok((Ino(message.ino), kind))
}

/// What is known of one of many names of a file.
pub(crate) fn encode_name(bits: u8) -> Vec<u8> {
    vec![VERSION, bits]
}

pub(crate) fn decode_name(ino: Ino, value: &[u8]) -> Result<u8> {
    let what = || format!("a name of {ino}");
    match body(&what, value)? {
        [bits] => Ok(*bits),
        _ => Err(corrupt(what(), "not one byte")),
    }
}

/// Values that are one inode number: stale names, the backlog, hard links.
pub(crate) fn encode_ino(ino: Ino) -> Vec<u8> {
    encode_entry(ino, FileKind::Regular)
}

pub(crate) fn decode_ino(what: &str, value: &[u8]) -> Result<Ino> {
    Ok(decode_entry(what.as_bytes(), value)?.0)
}

/// The store's sizes and the next place in the backlog.
pub(crate) fn encode_counts(counts: &Counts, next_seq: u64) -> Vec<u8> {
    let message = PbCounts {
        inodes: counts.inodes,
        queued: counts.queued,
        orphans: counts.orphans,
        stale_names: counts.stale_names,
        next_seq,
    };
    let mut value = Vec::with_capacity(1 + message.encoded_len());
    value.push(VERSION);
    message.encode_raw(&mut value);
    value
}

pub(crate) fn decode_counts(value: &[u8]) -> Result<(Counts, u64)> {
    let what = || "counts".to_string();
    let message = PbCounts::decode(body(&what, value)?).map_err(|error| corrupt(what(), error))?;
    let PbCounts { inodes, queued, orphans, stale_names, next_seq } = message;
    Ok((Counts { inodes, queued, orphans, stale_names }, next_seq))
}

/// Who works on an inode: an incarnation.
pub(crate) fn encode_incarnation(incarnation: Incarnation) -> Vec<u8> {
    let message = incarnation_out(incarnation);
    let mut value = Vec::with_capacity(1 + message.encoded_len());
    value.push(VERSION);
    message.encode_raw(&mut value);
    value
}

pub(crate) fn decode_incarnation(what: &str, value: &[u8]) -> Result<Incarnation> {
    let message = PbIncarnation::decode(body(&|| what.to_string(), value)?)
        .map_err(|error| corrupt(what, error))?;
    incarnation_in(what, message)
}

pub(crate) fn encode_member(member: &Member) -> Vec<u8> {
    let message = PbMember {
        id: member.id.clone(),
        epoch: member.epoch,
        beat: member.beat,
        left: member.left,
        address: member.address.clone(),
        reach: member.reach.clone(),
        expelled: member.expelled,
        knows: member.knows,
    };
    let mut value = Vec::with_capacity(1 + message.encoded_len());
    value.push(VERSION);
    message.encode_raw(&mut value);
    value
}

pub(crate) fn decode_member(node: u16, value: &[u8]) -> Result<Member> {
    let what = || format!("node {node}");
    let message = PbMember::decode(body(&what, value)?).map_err(|error| corrupt(what(), error))?;
    let PbMember { id, epoch, beat, left, address, reach, expelled, knows } = message;
    Ok(Member { node, id, epoch, beat, left, address, reach, expelled, knows })
}

pub(crate) fn encode_copies(copies: &Copies) -> Vec<u8> {
    let message = PbCopies {
        version: copies.version,
        writer: Some(incarnation_out(copies.writer)),
        size: copies.size,
        mtime: Some(time_out(copies.mtime)),
        holders: copies.holders.iter().map(|node| u32::from(*node)).collect(),
        data: copies.code.as_ref().map_or(0, |code| code.data.into()),
        ends: copies.code.as_ref().map_or_else(Vec::new, |code| code.ends.clone()),
    };
    let mut value = Vec::with_capacity(1 + message.encoded_len());
    value.push(VERSION);
    message.encode_raw(&mut value);
    value
}

pub(crate) fn decode_copies(ino: Ino, value: &[u8]) -> Result<Copies> {
    let what = || format!("copies of {ino}");
    let message = PbCopies::decode(body(&what, value)?).map_err(|error| corrupt(what(), error))?;
    let holder = |node: &u32| u16::try_from(*node).map_err(|error| corrupt(what(), error));
    Ok(Copies {
        version: message.version,
        writer: incarnation_in(&what(), message.writer.unwrap_or_default())?,
        size: message.size,
        mtime: message.mtime.map_or(Timestamp::default(), time_in),
        holders: message.holders.iter().map(holder).collect::<Result<_>>()?,
        code: match u8::try_from(message.data).map_err(|error| corrupt(what(), error))? {
            0 => None,
            data => Some(Coded { data, ends: message.ends }),
        },
    })
}

fn lock_out(lock: &Lock, ticket: Option<u64>) -> PbLock {
    let Holder { family, incarnation, owner } = lock.holder;
    PbLock {
        incarnation: Some(PbIncarnation { node: incarnation.node.0, epoch: incarnation.epoch.0 }),
        owner,
        whole: family == Family::Whole,
        first: lock.span.first,
        last: lock.span.last,
        exclusive: lock.mode == Mode::Exclusive,
        pid: lock.pid,
        ticket,
    }
}

fn lock_in(message: &PbLock) -> Lock {
    let PbIncarnation { node, epoch } = message.incarnation.unwrap_or_default();
    let incarnation = Owner { node: NodeId(node), epoch: Epoch(epoch) };
    let family = if message.whole { Family::Whole } else { Family::Ranges };
    Lock {
        holder: Holder { family, incarnation, owner: message.owner },
        span: Span { first: message.first, last: message.last },
        mode: if message.exclusive { Mode::Exclusive } else { Mode::Shared },
        pid: message.pid,
    }
}

pub(crate) fn encode_locks(locks: &Locks) -> Vec<u8> {
    let held = locks.held().iter().map(|lock| lock_out(lock, None));
    let waiting = locks.waiting().iter();
    let waiting = waiting.map(|waiter| lock_out(&waiter.wanted, Some(waiter.ticket)));
    let message = PbLocks { locks: held.chain(waiting).collect() };
    let mut value = Vec::with_capacity(1 + message.encoded_len());
    value.push(VERSION);
    message.encode_raw(&mut value);
    value
}

pub(crate) fn decode_locks(ino: Ino, value: &[u8]) -> Result<Locks> {
    let what = || format!("locks of {ino}");
    let message = PbLocks::decode(body(&what, value)?).map_err(|error| corrupt(what(), error))?;
    let (mut held, mut waiting) = (Vec::new(), Vec::new());
    for lock in &message.locks {
        let wanted = lock_in(lock);
        match lock.ticket {
            None => held.push(wanted),
            Some(ticket) => waiting.push(Waiter { wanted, ticket }),
        }
    }
    Ok(Locks::from_parts(held, waiting))
}

/// Values that are bytes: extended attributes, settings.
pub(crate) fn encode_bytes(bytes: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(1 + bytes.len());
    value.push(VERSION);
    value.extend_from_slice(bytes);
    value
}

pub(crate) fn decode_bytes(what: &str, value: &[u8]) -> Result<Vec<u8>> {
    Ok(body(&|| what.to_string(), value)?.to_vec())
}

#[cfg(test)]
mod tests;
