//! Requests.

use crate::codec::{Decoder, Encoder};
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::version::Versions;

/// Who a node is. Both sides say it before anything else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The versions of the protocol that it understands.
    pub versions: Versions,
    /// Name of its cluster; nodes of another are refused.
    pub cluster: String,
    /// Its number in the cluster.
    pub node: u64,
    /// Its incarnation: grows with each start, so that an old one can be told from its successor.
    pub epoch: u64,
    /// Calls that it takes at a time on this connection.
    pub calls: u32,
    /// Bytes of bodies that it takes, or sends, at a time on this connection.
    pub bytes: u32,
    /// Bytes that one body may have.
    pub body: u32,
}

/// Asks for bytes of a file that the other node has a copy of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// The file's inode.
    pub ino: u64,
    /// The version that is wanted: a copy of another one is answered by `Stale`. `None` asks the
    /// owner of a file for what is there now.
    pub version: Option<u64>,
    /// Where to begin, in bytes.
    pub offset: u64,
    /// How many bytes; fewer are answered only where the file ends.
    pub len: u32,
}

/// Asks which extents of a file the other node has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadMap {
    /// The file's inode.
    pub ino: u64,
    /// The version that is wanted.
    pub version: Option<u64>,
    /// Where to begin, in bytes; an answer that does not fit says where to go on.
    pub from: u64,
}

/// Asks the owner of a file to write it back; it answers when the backing store has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteBack {
    /// The file's inode.
    pub ino: u64,
    /// The ownership's epoch that the caller knows.
    pub epoch: u64,
}

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// To this offset, in bytes.
    At(u64),
    /// To the end of the file, which the owner knows.
    End,
}

/// By what a call is known that must not be carried out twice, however often it comes. What the
/// numbers mean is up to the layer above.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallId {
    /// The session of asker and owner.
    pub session: u64,
    /// A slot of the session.
    pub slot: u16,
    /// The number of the call in its slot.
    pub number: u64,
}

/// Writes the message's body through the owner of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The file's inode.
    pub ino: u64,
    /// The ownership's epoch that the caller knows.
    pub epoch: u64,
    /// Where the body goes.
    pub at: Position,
    /// Whether it is to be durable before the answer.
    pub sync: bool,
    /// Which call it is.
    pub turn: CallId,
}

/// Changes the length of a file through its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Truncate {
    /// The file's inode.
    pub ino: u64,
    /// The ownership's epoch that the caller knows.
    pub epoch: u64,
    /// The new length in bytes.
    pub size: u64,
    /// Which call it is.
    pub turn: CallId,
}

/// Makes durable what was written through the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sync {
    /// The file's inode.
    pub ino: u64,
    /// The ownership's epoch that the caller knows.
    pub epoch: u64,
    /// Only the bytes and what is needed to find them, as in `fdatasync`.
    pub data_only: bool,
}

/// What is to be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecallKind {
    /// A copy: drop it, and what the kernel knows of it.
    Copy,
    /// The ownership: make it durable where others can take it over.
    Ownership,
    /// A lease on names or attributes: forget what is cached.
    Lease,
}

/// Asks a node to give something back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recall {
    /// The inode that it is about.
    pub ino: u64,
    /// The epoch under which it was given.
    pub epoch: u64,
    /// What is recalled.
    pub kind: RecallKind,
}

/// What is done to a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Take it together with others.
    Shared,
    /// Take it alone.
    Exclusive,
    /// Give it back.
    Unlock,
    /// Ask who stands in the way of an exclusive one.
    Test,
}

/// Which of the two kinds of locks that do not see each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockSpace {
    /// `fcntl`: ranges, owned by a process.
    Posix,
    /// `flock`: whole files, owned by an open file.
    Flock,
}

/// A lock operation on a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockOp {
    /// The file's inode.
    pub ino: u64,
    /// The epoch under which the lock's place is known.
    pub epoch: u64,
    /// Who locks, unique within the asking node.
    pub owner: u64,
    /// The process, as told to those who ask who holds a lock.
    pub pid: u32,
    /// First byte of the range.
    pub start: u64,
    /// Last byte of the range, inclusive; `u64::MAX` means all that follow.
    pub end: u64,
    /// What to do.
    pub kind: LockKind,
    /// Which locks.
    pub space: LockSpace,
    /// Whether to wait, as long as the call's deadline allows.
    pub wait: bool,
}

/// A replica, or a shard, of a version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ObjectId {
    /// The file's inode.
    pub ino: u64,
    /// Which version of it.
    pub version: u64,
    /// Which replica or shard.
    pub part: u32,
}

/// Stores the message's body as a part of a replica or shard. The same one twice does no harm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// Of which object.
    pub object: ObjectId,
    /// Where the body goes, in bytes.
    pub offset: u64,
    /// How long the object is as a whole, in bytes.
    pub total: u64,
    /// Whether this was the last one: the object is whole, and durable before the answer.
    pub last: bool,
}

/// What a node may ask another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Who are you?
    Hello(Hello),
    /// Are you there, and how busy?
    Ping,
    /// See [`Read`].
    Read(Read),
    /// See [`ReadMap`].
    ReadMap(ReadMap),
    /// See [`WriteBack`].
    WriteBack(WriteBack),
    /// See [`Write`].
    Write(Write),
    /// See [`Truncate`].
    Truncate(Truncate),
    /// See [`Sync`].
    Sync(Sync),
    /// See [`Recall`].
    Recall(Recall),
    /// See [`LockOp`].
    Lock(LockOp),
    /// See [`Put`].
    Put(Put),
    /// Removes a replica or shard; one that is not there is removed already.
    Drop(ObjectId),
    /// A request of the layer above, whose body and answer this crate does not interpret. It is
    /// never made twice.
    Other {
        /// Which one.
        kind: u32,
        /// The longest answer that is accepted, in bytes.
        answer: u32,
    },
}

impl Request {
    /// Whether it may be made again when nobody knows whether it was carried out.
    ///
    /// A write, a truncation or a lock operation is not among them: between its two executions
    /// somebody else's may lie, which the second one would undo.
    pub fn repeatable(&self) -> bool {
        match self {
            Request::Hello(_)
            | Request::Ping
            | Request::Read(_)
            | Request::ReadMap(_)
            | Request::WriteBack(_)
            | Request::Sync(_)
            | Request::Recall(_)
            | Request::Put(_)
            | Request::Drop(_) => true,
            Request::Write(_) | Request::Truncate(_) | Request::Lock(_) => false,
            Request::Other { .. } => false,
        }
    }

    /// Whether it may take long, for it waits for a device or for somebody else.
    pub(crate) fn slow(&self) -> bool {
        match self {
            Request::Hello(_) | Request::Ping | Request::Read(_) | Request::ReadMap(_) => false,
            Request::Put(_) | Request::Drop(_) => false,
            Request::Other { .. } | Request::WriteBack(_) | Request::Write(_) => true,
            Request::Truncate(_) | Request::Sync(_) | Request::Recall(_) | Request::Lock(_) => true,
        }
    }

    /// The longest body that its answer may have, in bytes.
    pub(crate) fn answer_limit(&self) -> u32 {
        match self {
            Request::Read(read) => read.len,
            Request::Other { answer, .. } => *answer,
            _ => 0,
        }
    }

    pub(crate) fn code(&self) -> u16 {
        match self {
            Request::Hello(_) => 1,
            Request::Ping => 2,
            Request::Read(_) => 3,
            Request::ReadMap(_) => 4,
            Request::WriteBack(_) => 5,
            Request::Write(_) => 6,
            Request::Truncate(_) => 7,
            Request::Sync(_) => 8,
            Request::Recall(_) => 9,
            Request::Lock(_) => 10,
            Request::Put(_) => 11,
            Request::Drop(_) => 12,
            Request::Other { .. } => 13,
        }
    }

    pub(crate) fn encode(&self, to: &mut Encoder) {
        match self {
            Request::Hello(hello) => hello.encode(to),
            Request::Ping => {}
            Request::Read(r) => {
                to.u64(r.ino).maybe(r.version).u64(r.offset).u32(r.len);
            }
            Request::ReadMap(r) => {
                to.u64(r.ino).maybe(r.version).u64(r.from);
            }
            Request::WriteBack(r) => {
                to.u64(r.ino).u64(r.epoch);
            }
            Request::Write(r) => {
                let at = match r.at {
                    Position::At(offset) => Some(offset),
                    Position::End => None,
                };
                to.u64(r.ino).u64(r.epoch).maybe(at).flag(r.sync);
                r.turn.encode(to);
            }
            Request::Truncate(r) => {
                to.u64(r.ino).u64(r.epoch).u64(r.size);
                r.turn.encode(to);
            }
            Request::Sync(r) => {
                to.u64(r.ino).u64(r.epoch).flag(r.data_only);
            }
            Request::Recall(r) => {
                to.u64(r.ino).u64(r.epoch).u8(r.kind as u8);
            }
            Request::Lock(r) => {
                to.u64(r.ino).u64(r.epoch).u64(r.owner).u32(r.pid).u64(r.start).u64(r.end);
                to.u8(r.kind as u8).u8(r.space as u8).flag(r.wait);
            }
            Request::Put(r) => {
                r.object.encode(to);
                to.u64(r.offset).u64(r.total).flag(r.last);
            }
            Request::Drop(object) => object.encode(to),
            Request::Other { kind, answer } => {
                to.u32(*kind).u32(*answer);
            }
        }
    }

    pub(crate) fn decode(code: u16, fields: &[u8]) -> Result<Request> {
        let mut from = Decoder(fields);
        let f = &mut from;
        let request = match code {
            1 => Request::Hello(Hello::decode(f)?),
            2 => Request::Ping,
            3 => Request::Read(Read {
                ino: f.u64()?,
                version: f.maybe()?,
                offset: f.u64()?,
                len: f.u32()?,
            }),
            4 => Request::ReadMap(ReadMap { ino: f.u64()?, version: f.maybe()?, from: f.u64()? }),
            5 => Request::WriteBack(WriteBack { ino: f.u64()?, epoch: f.u64()? }),
            6 => Request::Write(Write {
                ino: f.u64()?,
                epoch: f.u64()?,
                at: f.maybe()?.map_or(Position::End, Position::At),
                sync: f.flag()?,
                turn: CallId::decode(f)?,
            }),
            7 => Request::Truncate(Truncate {
                ino: f.u64()?,
                epoch: f.u64()?,
                size: f.u64()?,
                turn: CallId::decode(f)?,
            }),
            8 => Request::Sync(Sync { ino: f.u64()?, epoch: f.u64()?, data_only: f.flag()? }),
            9 => Request::Recall(Recall {
                ino: f.u64()?,
                epoch: f.u64()?,
                kind: one_of(f, &[RecallKind::Copy, RecallKind::Ownership, RecallKind::Lease])?,
            }),
            10 => Request::Lock(LockOp::decode(f)?),
            11 => Request::Put(Put {
                object: ObjectId::decode(f)?,
                offset: f.u64()?,
                total: f.u64()?,
                last: f.flag()?,
            }),
            12 => Request::Drop(ObjectId::decode(f)?),
            13 => Request::Other { kind: f.u32()?, answer: f.u32()? },
            other => return Err(Error::Protocol(format!("there is no request {other}"))),
        };
        from.end()?;
        Ok(request)
    }
}

/// One of some values, by its place among them.
fn one_of<T: Copy>(from: &mut Decoder<'_>, all: &[T]) -> Result<T> {
    let at = usize::from(from.u8()?);
    all.get(at).copied().ok_or_else(|| Error::Protocol(format!("{at} is none of the kinds")))
}

impl CallId {
    fn encode(&self, to: &mut Encoder) {
        to.u64(self.session).u16(self.slot).u64(self.number);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<CallId> {
        Ok(CallId { session: from.u64()?, slot: from.u16()?, number: from.u64()? })
    }
}

impl Hello {
    /// With the newest version as the head of its frame says it; programs that know only one say
    /// none there.
    pub(crate) fn up_to(mut self, newest: u16) -> Hello {
        self.versions.newest = newest.max(self.versions.oldest);
        self
    }

    pub(crate) fn encode(&self, to: &mut Encoder) {
        // The newest one is in the head of the frame: programs that know only one version expect no
        // further field.
        to.u16(self.versions.oldest).text(&self.cluster).u64(self.node).u64(self.epoch);
        to.u32(self.calls).u32(self.bytes).u32(self.body);
    }

    pub(crate) fn decode(from: &mut Decoder<'_>) -> Result<Hello> {
        let hello = Hello {
            versions: Versions::only(from.u16()?),
            cluster: from.text()?,
            node: from.u64()?,
            epoch: from.u64()?,
            calls: from.u32()?,
            bytes: from.u32()?,
            body: from.u32()?.min(Limits::MAX_BODY),
        };
        match hello.calls > 0 && hello.bytes > 0 {
            true => Ok(hello),
            false => Err(Error::Protocol("the other side takes no calls at all".into())),
        }
    }
}

impl LockOp {
    fn decode(from: &mut Decoder<'_>) -> Result<LockOp> {
        use LockKind::{Exclusive, Shared, Test, Unlock};
        Ok(LockOp {
            ino: from.u64()?,
            epoch: from.u64()?,
            owner: from.u64()?,
            pid: from.u32()?,
            start: from.u64()?,
            end: from.u64()?,
            kind: one_of(from, &[Shared, Exclusive, Unlock, Test])?,
            space: one_of(from, &[LockSpace::Posix, LockSpace::Flock])?,
            wait: from.flag()?,
        })
    }
}

impl ObjectId {
    fn encode(&self, to: &mut Encoder) {
        to.u64(self.ino).u64(self.version).u32(self.part);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<ObjectId> {
        Ok(ObjectId { ino: from.u64()?, version: from.u64()?, part: from.u32()? })
    }
}
