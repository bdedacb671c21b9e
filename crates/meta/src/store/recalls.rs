//! What nodes of a cluster ask each other for, put down where the other one sees it: a mark in the
//! recall queue of the node that is asked, which goes when it has done what it was asked for.

use super::{MetaStore, compare, corrupt};
use crate::codec;
use crate::engine::{Expect, Key, MiniTransaction, Stamp, Write};
use crate::error::{Error, Result};
use crate::keys;
use crate::types::Ino;

/// What the owner of a file is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecallAim {
    /// That the backing store gets all that was written up to now.
    Bytes,
    /// The same, and that it gives the file up as soon as none of its programs can write it.
    Ownership,
}

impl RecallAim {
    fn code(self) -> u8 {
        match self {
            RecallAim::Bytes => b'B',
            RecallAim::Ownership => b'O',
        }
    }
}

const FAILED: u8 = b'F';

/// What somebody asks this node for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecallRequest {
    /// The file.
    pub ino: Ino,
    /// The node that asks.
    pub asker: u16,
    /// What for.
    pub aim: RecallAim,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Not done yet.
    Pending,
    /// Done.
    Done,
    /// It could not be done, and why: an errno.
    Failed(i32),
}

impl MetaStore {
    fn recall_key(&self, node: u16, ino: Ino) -> Result<Key> {
        let me = self.member().ok_or(Error::Unsupported("this process is no node"))?;
        Ok(keys::recall(node, ino, me.node))
    }

    /// Asks a node for something. What it was asked before about the inode is forgotten.
    ///
    /// # Errors
    /// If the engine fails; `Unsupported` if this process is no node.
    pub fn ask(&self, node: u16, ino: Ino, aim: RecallAim) -> Result<()> {
        let value = codec::encode_bytes(&[aim.code()]);
        let write = vec![Write::Put(self.recall_key(node, ino)?, value)];
        self.execute(&MiniTransaction { write, ..Default::default() }).map(drop)
    }

    /// What became of what a node was asked for.
    ///
    /// # Errors
    /// As [`MetaStore::ask`].
    pub fn answered(&self, node: u16, ino: Ino) -> Result<Answer> {
        let Some(value) = self.read_one(self.recall_key(node, ino)?)? else {
            return Ok(Answer::Done);
        };
        let bytes = codec::decode_bytes("recall", &value)?;
        match bytes.split_first() {
            Some((&FAILED, errno)) => {
                let errno = errno.try_into().map_err(|_| corrupt("recall", "no errno"))?;
                Ok(Answer::Failed(i32::from_be_bytes(errno)))
            }
            _ => Ok(Answer::Pending),
        }
    }

    /// Takes back what a node was asked for, or its answer.
    ///
    /// # Errors
    /// As [`MetaStore::ask`].
    pub fn retract(&self, node: u16, ino: Ino) -> Result<()> {
        let write = vec![Write::Delete(self.recall_key(node, ino)?)];
        self.execute(&MiniTransaction { write, ..Default::default() }).map(drop)
    }

    /// Up to `limit` things that this node is asked for.
    ///
    /// # Errors
    /// As [`MetaStore::ask`].
    pub fn recalls(&self, limit: usize) -> Result<Vec<RecallRequest>> {
        let me = self.member().ok_or(Error::Unsupported("this process is no node"))?;
        let mut requests = Vec::new();
        for (key, value) in self.scan(&keys::recall_queue(me.node), None, limit)?.items {
            let (ino, asker) =
                keys::recall_parts(&key).ok_or_else(|| corrupt("recall", "short key"))?;
            let bytes = codec::decode_bytes("recall", &value)?;
            let aims = [RecallAim::Bytes, RecallAim::Ownership];
            let aim = aims.into_iter().find(|aim| bytes == [aim.code()]);
            requests.extend(aim.map(|aim| RecallRequest { ino, asker, aim }));
        }
        Ok(requests)
    }

    /// A stamp of this node's recall queue: while it stays the same there is nothing new.
    #[must_use]
    pub fn recall_stamp(&self) -> Option<Stamp> {
        self.stamp(keys::recall_queue(self.member()?.node).partition())
    }

    /// Answers: what was asked for is done, or failed with an errno. One that was asked anew or
    /// taken back meanwhile stays as it is.
    ///
    /// # Errors
    /// As [`MetaStore::ask`].
    pub fn answer(&self, request: &RecallRequest, failed: Option<i32>) -> Result<()> {
        let me = self.member().ok_or(Error::Unsupported("this process is no node"))?;
        let key = keys::recall(me.node, request.ino, request.asker);
        let mut transaction = MiniTransaction::default();
        let asked = codec::encode_bytes(&[request.aim.code()]);
        transaction.compare.push(compare(key.clone(), Expect::Value(asked)));
        transaction.write.push(match failed {
            None => Write::Delete(key),
            Some(errno) => {
                let value = [&[FAILED][..], &errno.to_be_bytes()].concat();
                Write::Put(key, codec::encode_bytes(&value))
            }
        });
        self.execute(&transaction).map(drop)
    }
}
