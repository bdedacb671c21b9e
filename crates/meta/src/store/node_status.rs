//! What nodes have that the backing store lacks, what they are told to do, and what becomes of it
//! when one is gone for good.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use super::gathered::PROCESSES;
use super::{MetaStore, corrupt};
use crate::codec;
use crate::engine::{Key, MiniTransaction, Write};
use crate::error::{Error, Result};
use crate::keys;
use crate::types::{FileKind, Incarnation, Ino, Record, Seq, Timestamp};

/// Keys per step of a look at everything.
const STEP: usize = 4096;

/// What a node has to bring to the backing store, as it says itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeStatus {
    /// Files of which the backing store lacks bytes.
    pub files: u64,
    /// Those bytes.
    pub bytes: u64,
    /// Inodes in its backlog.
    pub backlog: u64,
    /// Bytes that it keeps for other nodes.
    pub held: u64,
    /// Bytes of its tiers; 0 from a node that does not say.
    pub room: u64,
    /// Bytes of copies of its files that are about to move to other nodes.
    pub moving: u64,
    /// Changes that it acknowledged and that are lost.
    pub lost: u64,
}

/// What has become of the order to leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaveOrder {
    /// The node is to leave.
    Pending,
    /// It stays, and why.
    Refused(String),
}

const REFUSED: u8 = b'R';

/// A file that a node could write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owned {
    /// The inode.
    pub ino: Ino,
    /// A path of it, if a name leads there.
    pub path: Option<Vec<u8>>,
    /// Its size.
    pub size: u64,
    /// The node had bytes of it that the backing store lacks. If not, it may have written what it
    /// told nobody of: what no close had followed yet.
    pub behind: bool,
    /// The backing store has a version of it.
    pub published: bool,
}

impl MetaStore {
    /// Says what this node has to bring to the backing store; whether it is told to leave.
    ///
    /// # Errors
    /// If the engine fails; `Unsupported` if this process is no node.
    pub fn report_node_status(&self, status: &NodeStatus) -> Result<bool> {
        let me = self.member().ok_or(Error::Unsupported("this process is no node"))?;
        let NodeStatus { files, bytes, backlog, held, room, moving, lost } = *status;
        let numbers = [files, bytes, backlog, held, room, moving, lost];
        let numbers = numbers.map(u64::to_be_bytes).concat();
        let mut transaction = MiniTransaction::reading(vec![keys::order(me.node)]);
        let value = codec::encode_bytes(&numbers);
        transaction.write.push(Write::Put(keys::node_status(me.node), value));
        let order = self.execute(&transaction)?.and_then(|mut reads| reads.pop().flatten());
        Ok(match order {
            Some(value) => decode_order(&value)? == LeaveOrder::Pending,
            None => false,
        })
    }

    /// What each node has said that it has.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn node_statuses(&self) -> Result<HashMap<u16, NodeStatus>> {
        self.scans.fetch_add(1, Ordering::Relaxed);
        super::outside::node_statuses_of(&*self.engine)
    }

    /// The orders to leave that nodes were given.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn leave_orders(&self) -> Result<HashMap<u16, LeaveOrder>> {
        let page = self.scan(&keys::orders(), None, usize::MAX)?;
        page.items.iter().map(|(key, value)| Ok((node_of(key)?, decode_order(value)?))).collect()
    }

    /// Tells a node to leave.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn order_to_leave(&self, node: u16) -> Result<()> {
        self.put_order(node, Some(&LeaveOrder::Pending))
    }

    /// Answers the order to leave: this node stays.
    ///
    /// # Errors
    /// If the engine fails; `Unsupported` if this process is no node.
    pub fn refuse_to_leave(&self, why: &str) -> Result<()> {
        let me = self.member().ok_or(Error::Unsupported("this process is no node"))?;
        self.put_order(me.node, Some(&LeaveOrder::Refused(why.into())))
    }

    /// Forgets the order that an earlier incarnation of this node was given.
    ///
    /// # Errors
    /// If the engine fails; `Unsupported` if this process is no node.
    pub fn forget_order(&self) -> Result<()> {
        let me = self.member().ok_or(Error::Unsupported("this process is no node"))?;
        self.put_order(me.node, None)
    }

    fn put_order(&self, node: u16, order: Option<&LeaveOrder>) -> Result<()> {
        let key = keys::order(node);
        let write = vec![match order {
            None => Write::Delete(key),
            Some(LeaveOrder::Pending) => Write::Put(key, codec::encode_bytes(&[])),
            Some(LeaveOrder::Refused(why)) => {
                Write::Put(key, codec::encode_bytes(&[&[REFUSED], why.as_bytes()].concat()))
            }
        }];
        self.execute(&MiniTransaction { write, ..Default::default() }).map(drop)
    }

    /// Calls `each` for all files that a node could write. Looks at the whole namespace.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn owned_by(&self, node: u16, each: &mut dyn FnMut(Owned)) -> Result<()> {
        self.concerning(node, &mut |record| {
            let kept = record.copied || record.attr.kind != FileKind::Regular;
            if is_owner(&record, node) && !kept {
                each(Owned {
                    ino: record.ino,
                    path: self.path(record.ino).unwrap_or_default(),
                    size: record.attr.size,
                    behind: record.dirty || record.spilled,
                    published: record.backing.fingerprint.is_some(),
                });
            }
            Ok(())
        })
    }

    /// Fences a node that never comes back; its last start. Whoever calls knows that it is dead.
    ///
    /// # Errors
    /// `NotFound` if there is no such node; if the engine fails: then call it again.
    pub fn depose(&self, node: u16) -> Result<Incarnation> {
        self.retry(|| {
            let members = self.members()?;
            let before = members.iter().find(|member| member.node == node);
            let before = before.ok_or(Error::NotFound)?;
            let mut after = before.clone();
            (after.epoch, after.left) = (before.epoch + 1, true);
            self.replace_member(before, codec::encode_member(before), &after)?;
            Ok(Incarnation { node, epoch: before.epoch })
        })
    }

    /// Gives up all that a node had, after [`MetaStore::depose`]: nobody owns
    /// its files, which are as the backing store has them or, if it has nothing of what they held,
    /// are removed; and what it had to do is this process's.
    ///
    /// # Errors
    /// If the engine fails: then call it again.
    pub fn remove_node(&self, node: u16, now: Timestamp) -> Result<()> {
        let mut nowhere = Vec::new();
        self.concerning(node, &mut |record| {
            let behind = record.dirty || record.spilled;
            let lost = is_owner(&record, node)
                && behind
                && !record.copied
                && record.attr.kind == FileKind::Regular;
            if lost && record.backing.fingerprint.is_none() {
                nowhere.push(record.ino);
            }
            match self.take_from(record.ino, node) {
                Err(Error::Stale(_)) => Ok(()),
                taken => taken,
            }
        })?;
        for ino in nowhere {
            let links = match self.get_now(ino) {
                Ok(record) => record.links.clone(),
                Err(Error::Stale(_)) => continue,
                Err(error) => return Err(error),
            };
            for link in links {
                match self.unlink(link.parent, &link.name, now, false) {
                    Ok(_) | Err(Error::NotFound | Error::Stale(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    fn take_from(&self, ino: Ino, node: u16) -> Result<()> {
        self.edit_one(ino, |draft, before| {
            if is_owner(before, node) && before.copied {
                // Others have it, and take it over.
                return Ok(());
            }
            let record = draft.edit(ino)?;
            if is_owner(before, node) {
                record.owner = None;
                if before.dirty || before.spilled {
                    record.spilled = false;
                    record.mark_clean();
                    let there = before.backing.fingerprint;
                    record.attr.size = there.map_or(0, |print| print.size);
                    record.attr.mtime = there.map_or(before.attr.mtime, |print| print.mtime);
                    record.change += 1;
                }
            }
            if is_queued_by(before, node) {
                record.queued = None;
            }
            if before.orphan && before.orphan_of == node {
                record.orphan = false;
            }
            draft.settle(ino)
        })
        .map(drop)
    }

    /// Calls `each` for all records that concern a node.
    fn concerning(&self, node: u16, each: &mut dyn FnMut(Record) -> Result<()>) -> Result<()> {
        let mut after: Option<Key> = None;
        loop {
            let step = self.engine.sweep(after.as_ref(), STEP)?;
            let Some((last, _)) = step.last() else { return Ok(()) };
            after = Some(last.clone());
            for (key, value) in &step {
                let number = keys::number(key.bytes());
                let (Some(&keys::RECORD), Some(ino)) = (key.bytes().first(), number) else {
                    continue;
                };
                let record = codec::decode_record(Ino(ino), value)?;
                let orphan = record.orphan && record.orphan_of == node;
                if orphan || is_owner(&record, node) || is_queued_by(&record, node) {
                    each(record)?;
                }
            }
        }
    }
}

fn is_owner(record: &Record, node: u16) -> bool {
    record.owner.is_some_and(|owner| owner.node == node)
}

fn is_queued_by(record: &Record, node: u16) -> bool {
    record.queued.is_some_and(|Seq(seq)| seq % PROCESSES == u64::from(node))
}

/// What a node has said that it has.
pub(super) fn status_from(value: &[u8]) -> Result<NodeStatus> {
    let bytes = codec::decode_bytes("a node's status", value)?;
    let number = |at: usize| {
        let part = bytes.get(8 * at..8 * at + 8).and_then(|part| part.try_into().ok());
        part.map(u64::from_be_bytes).ok_or_else(|| corrupt("a node's status", "short"))
    };
    // Nodes of earlier versions say three numbers, or six.
    let later = |at: usize| if bytes.len() > 8 * at { number(at) } else { Ok(0) };
    Ok(NodeStatus {
        files: number(0)?,
        bytes: number(1)?,
        backlog: number(2)?,
        held: later(3)?,
        room: later(4)?,
        moving: later(5)?,
        lost: later(6)?,
    })
}

pub(super) fn node_of(key: &[u8]) -> Result<u16> {
    let number = keys::number(key).and_then(|number| u16::try_from(number).ok());
    number.ok_or_else(|| corrupt("a node", "no number"))
}

fn decode_order(value: &[u8]) -> Result<LeaveOrder> {
    let bytes = codec::decode_bytes("an order to leave", value)?;
    Ok(match bytes.split_first() {
        Some((&REFUSED, why)) => LeaveOrder::Refused(String::from_utf8_lossy(why).into_owned()),
        _ => LeaveOrder::Pending,
    })
}
