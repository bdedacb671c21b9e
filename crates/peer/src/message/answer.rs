//! Answers.

use crate::codec::{Decoder, Encoder};
use crate::error::{Error, Result};

use super::request::Hello;

/// How busy a node is; who has a choice asks the less busy one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests that wait or are being carried out.
    pub calls: u32,
    /// Bytes under way to others, or about to be.
    pub bytes: u64,
    /// Free bytes of its tiers.
    pub free: u64,
}

/// What a write through an owner did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Where the bytes went.
    pub offset: u64,
    /// How long the file is now.
    pub size: u64,
    /// The file's version now.
    pub version: u64,
}

/// Which extents of a file are there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Presence {
    /// The version that they are of.
    pub version: u64,
    /// How long the file is, in bytes.
    pub size: u64,
    /// Offset and length of each, in bytes, ascending; at most [`Presence::RUNS`].
    pub runs: Vec<(u64, u64)>,
    /// Where to ask for more.
    pub next: Option<u64>,
}

impl Presence {
    /// So many runs fit in one answer.
    pub const RUNS: usize = 4000;

    /// Whether all bytes from `offset` on, `len` of them, are there.
    pub fn covers(&self, offset: u64, len: u64) -> bool {
        let Some(end) = offset.checked_add(len) else { return false };
        let after = self.runs.partition_point(|(start, _)| *start <= offset);
        let run = after.checked_sub(1).map(|at| self.runs[at]);
        len == 0 || run.is_some_and(|(start, len)| start.saturating_add(len) >= end)
    }
}

/// A lock that stands in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Node whose process holds it.
    pub node: u64,
    /// The process.
    pub pid: u32,
    /// Whether it is held alone.
    pub exclusive: bool,
    /// First byte of its range.
    pub start: u64,
    /// Last byte of its range, inclusive.
    pub end: u64,
}

/// What a node answers to a request that it carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To `Hello`: who I am.
    Hello(Hello),
    /// It is done.
    Done,
    /// To `Ping`.
    Load(Load),
    /// To `Read` (the version that the body is of) and `Other` (any number).
    Bytes {
        /// The version.
        version: u64,
    },
    /// To `ReadMap`.
    Presence(Presence),
    /// To `Write`.
    Written(Written),
    /// To `Lock`: nothing, or what stands in the way.
    Lock(Option<Conflict>),
}

impl Answer {
    /// What the head of a frame says of the versions of the protocol.
    pub(crate) fn newest(&self) -> u16 {
        match self {
            Answer::Hello(hello) => hello.versions.newest,
            _ => 0,
        }
    }

    pub(crate) fn code(&self) -> u16 {
        match self {
            Answer::Hello(_) => 1,
            Answer::Done => 2,
            Answer::Load(_) => 3,
            Answer::Bytes { .. } => 4,
            Answer::Presence(_) => 5,
            Answer::Written(_) => 6,
            Answer::Lock(_) => 7,
        }
    }

    pub(crate) fn encode(&self, to: &mut Encoder) {
        match self {
            Answer::Hello(hello) => hello.encode(to),
            Answer::Done => {}
            Answer::Load(load) => {
                to.u32(load.calls).u64(load.bytes).u64(load.free);
            }
            Answer::Bytes { version } => {
                to.u64(*version);
            }
            Answer::Presence(presence) => {
                let runs = &presence.runs[..presence.runs.len().min(Presence::RUNS)];
                let next = presence.runs.get(runs.len()).map(|(start, _)| *start);
                to.u64(presence.version).u64(presence.size).maybe(next.or(presence.next));
                to.u16(runs.len() as u16);
                for (start, len) in runs {
                    to.u64(*start).u64(*len);
                }
            }
            Answer::Written(written) => {
                to.u64(written.offset).u64(written.size).u64(written.version);
            }
            Answer::Lock(conflict) => {
                to.flag(conflict.is_some());
                if let Some(held) = conflict {
                    to.u64(held.node).u32(held.pid).flag(held.exclusive);
                    to.u64(held.start).u64(held.end);
                }
            }
        }
    }

    pub(crate) fn decode(code: u16, fields: &[u8]) -> Result<Answer> {
        let mut from = Decoder(fields);
        let f = &mut from;
        let answer = match code {
            1 => Answer::Hello(Hello::decode(f)?),
            2 => Answer::Done,
            3 => Answer::Load(Load { calls: f.u32()?, bytes: f.u64()?, free: f.u64()? }),
            4 => Answer::Bytes { version: f.u64()? },
            5 => Answer::Presence(presence(f)?),
            6 => Answer::Written(Written { offset: f.u64()?, size: f.u64()?, version: f.u64()? }),
            7 if !f.flag()? => Answer::Lock(None),
            7 => Answer::Lock(Some(Conflict {
                node: f.u64()?,
                pid: f.u32()?,
                exclusive: f.flag()?,
                start: f.u64()?,
                end: f.u64()?,
            })),
            other => return Err(Error::Protocol(format!("there is no answer {other}"))),
        };
        from.end()?;
        Ok(answer)
    }
}

fn presence(from: &mut Decoder<'_>) -> Result<Presence> {
    let (version, size, next) = (from.u64()?, from.u64()?, from.maybe()?);
    let count = usize::from(from.u16()?);
    if count > Presence::RUNS {
        return Err(Error::Protocol(format!("{count} runs are too many")));
    }
    let mut runs = Vec::with_capacity(count);
    for _ in 0..count {
        runs.push((from.u64()?, from.u64()?));
    }
    Ok(Presence { version, size, runs, next })
}
