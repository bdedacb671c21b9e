//! Sessions: what all leases of one process hang on.
//!
//! What a process commits under its leases goes to one record of its session first, in the order in
//! which it was committed, and from there to the partitions. It counts as committed for good once it
//! is in that record: whoever ends a session, as its holder is silent, brings what is there to the
//! partitions. So there is one clock by which a process counts as silent, one place where it is shut
//! out, and what others find of its work is always a beginning of it.

use prost::Message;
use redis::Value;

use super::lease::Batch;
use super::{Redis, bytes, function, nonsense};
use crate::engine::{EngineError, PbWrite, Write};
use crate::keys;

/// A share that others bring to its partition at the same time is tried so often.
const TRIES: usize = 64;

/// What was committed in one partition in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) struct Share {
    pub partition: u16,
    pub lease: String,
    /// The last transaction.
    pub last: u64,
    pub writes: Vec<Write>,
}

/// What comes to a session in one request: the transactions after `after` up to `last`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::engine) struct Append {
    pub after: u64,
    pub last: u64,
    pub shares: Vec<Share>,
    /// The last transactions of requests before whose shares have all arrived.
    pub arrived: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct PbShare {
    #[prost(uint32, tag = "1")]
    partition: u32,
    #[prost(string, tag = "2")]
    lease: String,
    #[prost(uint64, tag = "3")]
    last: u64,
    #[prost(message, repeated, tag = "4")]
    writes: Vec<PbWrite>,
}

#[derive(Clone, PartialEq, Message)]
struct PbShares {
    #[prost(message, repeated, tag = "1")]
    shares: Vec<PbShare>,
}

fn encode(shares: &[Share]) -> Vec<u8> {
    let share = |share: &Share| PbShare {
        partition: share.partition.into(),
        lease: share.lease.clone(),
        last: share.last,
        writes: share.writes.iter().map(PbWrite::of).collect(),
    };
    PbShares { shares: shares.iter().map(share).collect() }.encode_to_vec()
}

fn decode(bytes: &[u8]) -> Result<Vec<Share>, EngineError> {
    let shares = PbShares::decode(bytes).map_err(|_| nonsense())?.shares;
    let share = |share: PbShare| {
        let partition = u16::try_from(share.partition).map_err(|_| nonsense())?;
        let writes = share.writes.into_iter().map(|write| write.into_write(partition)).collect();
        Ok(Share { partition, lease: share.lease, last: share.last, writes })
    };
    shares.into_iter().map(share).collect()
}

/// A session as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    /// `patience last beat who`.
    pub state: Vec<u8>,
    /// It was ended, and all that it had is where it belongs.
    pub is_settled: bool,
    pub is_ended: bool,
}

impl Redis {
    /// Begins a session, after so many transactions of the process; false if there is another of this
    /// name.
    pub(in crate::engine) fn begin_session(
        &self,
        name: &str,
        (patience, last, who): (std::time::Duration, u64, &str),
    ) -> Result<bool, EngineError> {
        let (partition, mut begin) = self.about(name, "begin");
        begin.arg(patience.as_millis() as u64).arg(last).arg(who);
        match self.ask(partition, &begin)?.first() {
            Some(Value::Int(done)) => Ok(*done == 1),
            _ => Err(nonsense()),
        }
    }

    /// Brings what was committed under leases; false if the session was ended. Without anything to
    /// bring it is a sign of life.
    pub(in crate::engine) fn append(&self, name: &str, what: &Append) -> Result<bool, EngineError> {
        let (partition, mut append) = self.about(name, "append");
        append.arg(what.after).arg(what.last);
        match what.shares.is_empty() {
            true => append.arg(""),
            false => append.arg(encode(&what.shares)),
        };
        append.arg(&what.arrived);
        match self.ask(partition, &append)?.first() {
            Some(Value::Int(1)) => Ok(true),
            Some(Value::Int(-3)) => Ok(false),
            _ => Err(nonsense()),
        }
    }

    /// A session as it is now, if there is one.
    pub(super) fn look_at_session(&self, name: &str) -> Result<Option<Seen>, EngineError> {
        let (partition, session) = self.about(name, "session");
        let mut answer = self.ask(partition, &session)?.into_iter().skip(1);
        let state = bytes(answer.next().unwrap_or(Value::Nil))?.unwrap_or_default();
        let Some(Value::Int(kept)) = answer.next() else { return Err(nonsense()) };
        let is_ended = state.starts_with(b"0 ");
        let seen = Seen { is_settled: is_ended && kept == 0, is_ended, state };
        Ok((!seen.state.is_empty()).then_some(seen))
    }

    /// Ends a session, if it is as it was `seen`, or however it is, and brings what it has to the
    /// partitions. The last transaction that had come to it, if it is ended now.
    pub(in crate::engine) fn end_session(
        &self,
        name: &str,
        seen: Option<&[u8]>,
    ) -> Result<Option<u64>, EngineError> {
        let (partition, mut finish) = self.about(name, "finish");
        self.ask(partition, finish.arg(seen.unwrap_or_default()))?;
        self.settle_session(name, true)
    }

    /// Brings what a session has to the partitions. The last transaction that has come to it, if there
    /// is such a session; `ended`: an ended one.
    pub(in crate::engine) fn settle_session(
        &self,
        name: &str,
        ended: bool,
    ) -> Result<Option<u64>, EngineError> {
        let (partition, contents) = self.about(name, "contents");
        let (mut last, mut kept) = (None, Vec::new());
        let mut values = self.ask(partition, &contents)?.into_iter();
        while let Some(field) = values.next() {
            let field = bytes(field)?.unwrap_or_default();
            let value = bytes(values.next().unwrap_or(Value::Nil))?.unwrap_or_default();
            match number(&field) {
                Some(number) => kept.push((number, value)),
                None => {
                    let mut words = value.split(|byte| *byte == b' ');
                    let is_ended = words.next() == Some(b"0");
                    last = words.next().and_then(number).filter(|_| is_ended || !ended);
                }
            }
        }
        if last.is_none() || kept.is_empty() {
            return Ok(last);
        }
        kept.sort_unstable();
        let (partition, mut forget) = self.about(name, "forget");
        for (number, shares) in kept {
            for share in decode(&shares)? {
                self.bring(share)?;
            }
            forget.arg(number);
        }
        self.ask(partition, &forget)?;
        Ok(last)
    }

    /// Brings a share to its partition, unless it is there, or the lease is there no more.
    fn bring(&self, share: Share) -> Result<(), EngineError> {
        let Share { partition, lease, last, writes } = share;
        let mut batch = Batch { after: 0, last, writes };
        for _ in 0..TRIES {
            match self.shipped(partition, &lease)? {
                Some(arrived) if arrived < last => batch.after = arrived,
                _ => return Ok(()),
            }
            if self.ship(partition, &lease, &batch)? {
                return Ok(());
            }
        }
        let reason = "others bring what was committed in a directory, too".to_string();
        Err(EngineError::Unreachable { reason })
    }

    /// A session without leases is forgotten.
    pub(in crate::engine) fn close_session(&self, name: &str) -> Result<(), EngineError> {
        let (partition, close) = self.about(name, "close");
        self.ask(partition, &close).map(drop)
    }

    /// A request about a session. Its record has a partition only so that sessions are spread.
    fn about(&self, name: &str, function_name: &str) -> (u16, redis::Cmd) {
        let hash = xxhash_rust::xxh3::xxh3_64(name.as_bytes());
        let partition = hash as u16 % keys::GATHERED;
        let key = format!("fbt:{}:{{{partition:04x}}}:session:{name}", self.name);
        (partition, function(function_name, &[key]))
    }
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Key;

    #[test]
    fn shares_when_packed_and_unpacked_then_the_same() {
        let share = |partition, last| Share {
            partition,
            lease: "0123456789abcdef".into(),
            last,
            writes: vec![
                Write::Put(Key::new(partition, b"a"), vec![0, 1, 255]),
                Write::Delete(Key::new(partition, b"b")),
            ],
        };
        let shares = vec![share(7, 12), share(9, 13)];
        assert_eq!(decode(&encode(&shares)).unwrap(), shares);
        assert!(decode(b"\xff\xff").is_err());
    }
}
