//! The nodes of a cluster that share a namespace.
//!
//! A node keeps its number for ever; each start of its daemon is a new epoch, which fences the one
//! before. That a node lives it says by a heartbeat that counts: whoever has seen no change of the
//! count for a time *on its own clock* takes it for dead, so no clocks need to agree.

use std::sync::atomic::Ordering;

use super::{MetaStore, compare};
use crate::codec;
use crate::engine::{Expect, MiniTransaction, Write};
use crate::error::{Error, Result};
use crate::keys;
use crate::types::{Incarnation, Seq};

use super::gathered::PROCESSES;

/// Who wants to be a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeName {
    /// Tells it from all others, and stays the same over its restarts.
    pub id: String,
    /// Where it runs, for people.
    pub address: String,
}

/// A node as the namespace knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub node: u16,
    /// What tells it from others.
    pub id: String,
    /// Its latest start.
    pub epoch: u64,
    /// Counts its heartbeats.
    pub beat: u64,
    /// It has ended in good order, with nothing left to write back.
    pub left: bool,
    /// Where it runs, for people.
    pub address: String,
    /// Where it listens for other nodes; empty if it does not (yet).
    pub reach: String,
    /// Files were taken over from it, as it showed no sign of life: this start of it must not write
    /// any more.
    pub expelled: bool,
    /// The newest format of the namespace that it knows; 0 from a node of a version that does not say.
    pub knows: u32,
}

impl MetaStore {
    /// Who this process is in the cluster; `None` if the store was opened without a name.
    #[must_use]
    pub fn member(&self) -> Option<Incarnation> {
        self.member.get().copied()
    }

    /// All nodes that have ever joined, by number.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn members(&self) -> Result<Vec<Member>> {
        self.scans.fetch_add(1, Ordering::Relaxed);
        super::outside::members_of(&*self.engine)
    }

    /// Enters a new incarnation of a node; the one before is fenced from here on.
    pub(super) fn register(&self, name: &NodeName) -> Result<Incarnation> {
        let member = self.retry(|| {
            let members = self.members()?;
            let known = members.iter().find(|member| member.id == name.id);
            let free = || (1..u16::MAX).find(|node| members.iter().all(|m| m.node != *node));
            let node = match known {
                Some(known) => known.node,
                None => free().ok_or(Error::Unsupported("all 65534 node numbers are used up"))?,
            };
            let member = Member {
                node,
                id: name.id.clone(),
                epoch: known.map_or(1, |known| known.epoch + 1),
                beat: known.map_or(1, |known| known.beat + 1),
                left: false,
                address: name.address.clone(),
                reach: String::new(),
                expelled: false,
                knows: self.layout.version(),
            };
            self.begin_incarnation(known, &member)?;
            Ok(member)
        })?;
        Ok(Incarnation { node: member.node, epoch: member.epoch })
    }

    /// Goes on as an incarnation that another process was until now.
    pub(super) fn resume(&self, name: &NodeName, me: Incarnation) -> Result<Incarnation> {
        self.retry(|| {
            let members = self.members()?;
            let is_me = |m: &&Member| (m.node, m.epoch, &m.id) == (me.node, me.epoch, &name.id);
            let Some(known) = members.iter().find(is_me) else {
                return Err(Error::Unsupported("another daemon has taken this node's place"));
            };
            if known.expelled {
                return Err(Error::Unsupported("other nodes have taken over files of this node"));
            }
            let mut after = Member { left: false, knows: self.layout.version(), ..known.clone() };
            after.beat = after.beat.wrapping_add(1);
            self.begin_incarnation(Some(known), &after).map(|()| me)
        })
    }

    /// Enters what this program is. What another version of it said of the node before holds no more.
    fn begin_incarnation(&self, before: Option<&Member>, after: &Member) -> Result<()> {
        let key = keys::member(after.node);
        let write = Write::Put(key.clone(), codec::encode_member(after));
        let entered = match before {
            Some(before) => {
                let known = codec::encode_member(before);
                let is_same =
                    |found: &[u8]| Ok(codec::decode_member(after.node, found)? == *before);
                self.swap_if_same(&key, known, |_| Ok(write.clone()), is_same)?
            }
            None => {
                let mut transaction = MiniTransaction::default();
                transaction.compare.push(compare(key, Expect::Absent));
                transaction.write.push(write);
                self.execute(&transaction)?.is_some()
            }
        };
        if entered { Ok(()) } else { Err(Error::Conflict(1)) }
    }

    /// Changes what is noted of a node that is running, or was. `known`: the bytes that are there.
    /// Returns those that are there then.
    pub(super) fn replace_member(
        &self,
        before: &Member,
        known: Vec<u8>,
        after: &Member,
    ) -> Result<Vec<u8>> {
        let key = keys::member(after.node);
        let mut written = Vec::new();
        let write = |found: &[u8]| {
            let value = codec::encode_member(after);
            written = codec::keep_later(value, found, codec::MEMBER_TAGS)?;
            Ok(Write::Put(key.clone(), written.clone()))
        };
        let is_same = |found: &[u8]| Ok(codec::decode_member(after.node, found)? == *before);
        match self.swap_if_same(&key, known, write, is_same)? {
            true => Ok(written),
            false => Err(Error::Conflict(1)),
        }
    }

    /// Says that this node lives. False if another incarnation has taken its place: then it must
    /// not write any more.
    ///
    /// # Errors
    /// If the engine fails; `Unsupported` if this process is no node.
    pub fn beat(&self) -> Result<bool> {
        self.change_member(|member| member.beat = member.beat.wrapping_add(1))
    }

    /// Says where this node listens for others. False as for [`MetaStore::beat`].
    ///
    /// # Errors
    /// As [`MetaStore::beat`].
    pub fn listen_at(&self, reach: &str) -> Result<bool> {
        self.change_member(|member| member.reach = reach.to_owned())
    }

    /// Says that this node ends with nothing left to do. False as for [`MetaStore::beat`].
    ///
    /// # Errors
    /// As [`MetaStore::beat`].
    pub fn leave(&self) -> Result<bool> {
        self.change_member(|member| member.left = true)
    }

    /// Takes from a node, as it is known here, the right to write anything until it starts again;
    /// false if it is not so any more, perhaps as it has shown a sign of life.
    ///
    /// # Errors
    /// If the engine fails: then it may have been done or not.
    pub fn expel(&self, known: &Member) -> Result<bool> {
        let expelled = Member { expelled: true, ..known.clone() };
        match self.replace_member(known, codec::encode_member(known), &expelled) {
            Ok(_) => Ok(true),
            Err(Error::Conflict(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn change_member(&self, change: impl Fn(&mut Member)) -> Result<bool> {
        let me = self.member().ok_or(Error::Unsupported("this process is no node"))?;
        self.retry(|| {
            // As it was left here; if it is not so any more, the swap fails, and it is read.
            let left = self.own_entry.lock().take();
            let value = match left {
                Some(value) => value,
                None => match self.read_one(keys::member(me.node))? {
                    Some(value) => value,
                    None => return Ok(false),
                },
            };
            let before = codec::decode_member(me.node, &value)?;
            if before.epoch != me.epoch || before.expelled {
                return Ok(false);
            }
            let mut after = before.clone();
            change(&mut after);
            let written = self.replace_member(&before, value, &after)?;
            *self.own_entry.lock() = Some(written);
            Ok(true)
        })
    }

    /// Whether a place in the backlog is this process's to work on.
    pub(super) fn is_mine(&self, seq: Seq) -> bool {
        self.member().is_none_or(|me| seq.0 % PROCESSES == u64::from(me.node))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::{Engine, Key, Memory};
    use crate::store::{FORMAT, Options};

    #[test]
    fn file_when_it_is_the_first_of_a_cluster_then_has_no_number_that_means_something_else() {
        let store = MetaStore::open(Box::new(Memory::partitioned()), &Options::default()).unwrap();
        let new = crate::store::NewInode::new(crate::types::FileKind::Regular, 0o644, 0, 0);
        let made = store.create(crate::types::Ino::ROOT, b"first", new, Default::default());
        assert!(made.unwrap().ino > keys::LAST_FIXED);
    }

    #[test]
    fn nodes_of_a_store_of_the_format_before_then_are_known_after_it_is_opened() {
        let engine = Arc::new(Memory::partitioned());
        let open = || {
            let node = Some(NodeName { id: "one".into(), address: "here".into() });
            let options = Options { node, ..Options::default() };
            MetaStore::open(Box::new(engine.clone()), &options).unwrap()
        };
        let before = open().members().unwrap();
        // As it was in format 2.
        let key = keys::member(before[0].node);
        let write = vec![
            Write::Put(Key::new(keys::GLOBAL, key.bytes()), codec::encode_member(&before[0])),
            Write::Delete(key),
            Write::Put(keys::setting(FORMAT), codec::encode_bytes(&2u32.to_be_bytes())),
        ];
        for write in write {
            let transaction = MiniTransaction { write: vec![write], ..Default::default() };
            engine.execute(&transaction).unwrap();
        }
        let store = open();
        let after = store.members().unwrap();
        assert_eq!((after.len(), after[0].node), (1, before[0].node));
        assert_eq!(after[0].epoch, before[0].epoch + 1);
        assert_eq!(
            store.setting(FORMAT).unwrap().unwrap(),
            keys::Layout::Gathered.version().to_be_bytes()
        );
    }
}
