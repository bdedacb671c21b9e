//! What other nodes keep of files that the backing store lacks, and the change of hands when an owner
//! is gone.
//!
//! The copies of a file are one value beside its record, which says that there are some: it goes in the
//! transaction by which the record says that the backing store has all. A value counts only for the
//! owner that put it there or took it over, since both compare the record as well.

use std::sync::Arc;

use super::{Draft, MetaStore};
use crate::codec;
use crate::engine::{Expect, MiniTransaction, Write};
use crate::error::{Error, Result};
use crate::keys;
use crate::types::{Copies, Incarnation, Ino, Record};

/// What came of telling where copies are.
#[derive(Debug, Clone)]
pub enum CopiesMade {
    /// All know it.
    Done(Arc<Record>),
    /// What was known before is not so any more: this is.
    Changed(Option<Copies>),
    /// This node does not own the file any more.
    NotOwner,
}

impl MetaStore {
    /// What the caches say of an inode, however old; else as [`MetaStore::get`].
    ///
    /// # Errors
    /// As [`MetaStore::get`].
    pub fn get_believed(&self, ino: Ino) -> Result<Arc<Record>> {
        self.believed(ino).map_or_else(|| self.get(ino), Ok)
    }

    /// The copies of a file, as they are now.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn copies(&self, ino: Ino) -> Result<Option<Copies>> {
        let value = self.read_one(keys::copies(ino))?;
        value.map(|value| codec::decode_copies(ino, &value)).transpose()
    }

    /// As [`MetaStore::copies`], with the bytes of the value.
    fn copies_and_bytes(&self, ino: Ino) -> Result<(Option<Vec<u8>>, Option<Copies>)> {
        let value = self.read_one(keys::copies(ino))?;
        let copies = value.as_ref().map(|value| codec::decode_copies(ino, value)).transpose()?;
        Ok((value, copies))
    }

    /// The record of a file and its copies, as they are at one instant now; `None` if it is gone.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn record_and_copies(&self, ino: Ino) -> Result<Option<(Record, Option<Copies>)>> {
        let mut values = self.read(vec![keys::record(ino), keys::copies(ino)])?.into_iter();
        let (record, copies) = (values.next().flatten(), values.next().flatten());
        let Some(record) = record else { return Ok(None) };
        let copies = copies.map(|value| codec::decode_copies(ino, &value)).transpose()?;
        Ok(Some((self.with_names(codec::decode_record(ino, &record)?)?, copies)))
    }

    /// Says where the copies of a file are that this node owns, in place of `before`; the record
    /// follows with length and time. From the return on they count.
    ///
    /// # Errors
    /// `Stale` if the file is gone; if the engine fails: then it may have been done or not.
    pub fn put_copies(
        &self,
        ino: Ino,
        before: Option<&Copies>,
        after: &Copies,
    ) -> Result<CopiesMade> {
        let me = self.this_node()?;
        let (mut looks, mut changed, mut mine) = (false, None, true);
        let put = self.edit_one(ino, |draft, record| {
            mine = record.owner.is_some_and(|owner| owner.node == me.node);
            if !mine {
                return Ok(());
            }
            let mut known = before.map(codec::encode_copies);
            if std::mem::replace(&mut looks, true) {
                let (bytes, now) = self.copies_and_bytes(ino)?;
                if now.as_ref() != before {
                    changed = Some(now);
                    return Ok(());
                }
                known = bytes;
            }
            let value = value_after(known.as_deref(), after)?;
            compare_copies(draft, ino, known);
            draft.put(keys::copies(ino), value);
            draft.edit(ino)?.attr.mtime = after.mtime;
            follow(draft, ino, after)
        })?;
        Ok(match changed {
            _ if !mine => CopiesMade::NotOwner,
            Some(now) => CopiesMade::Changed(now),
            None => CopiesMade::Done(put),
        })
    }

    /// Says that copies have moved to other nodes, and nothing else.
    ///
    /// # Errors
    /// As [`MetaStore::put_copies`].
    pub fn move_copies(&self, ino: Ino, before: &Copies, after: &Copies) -> Result<bool> {
        let key = keys::copies(ino);
        let write = |found: &[u8]| Ok(Write::Put(key.clone(), value_after(Some(found), after)?));
        // Who takes the file over, or writes it back, changes this value, too.
        let is_same = |found: &[u8]| Ok(codec::decode_copies(ino, found)? == *before);
        self.swap_if_same(&key, codec::encode_copies(before), write, is_same)
    }

    /// Takes a file over from a node that is gone, with a copy that this node has; false if file or
    /// copies are not as they were any more.
    ///
    /// # Errors
    /// `Stale` if the file is gone; if the engine fails: then it may have been done or not.
    pub fn take_over(&self, ino: Ino, from: Incarnation, copies: &Copies) -> Result<bool> {
        let me = self.this_node()?;
        let after = Copies { writer: me, holders: copies.without(me.node), ..copies.clone() };
        let (mut looks, mut as_known) = (false, true);
        self.edit_one(ino, |draft, record| {
            as_known = record.owner == Some(from) && record.copied && !record.links.is_empty();
            let mut known = Some(codec::encode_copies(copies));
            if as_known && std::mem::replace(&mut looks, true) {
                let (bytes, now) = self.copies_and_bytes(ino)?;
                (as_known, known) = (now.as_ref() == Some(copies), bytes);
            }
            if !as_known {
                return Ok(());
            }
            let value = value_after(known.as_deref(), &after)?;
            compare_copies(draft, ino, known);
            draft.put(keys::copies(ino), value);
            draft.put(keys::taken(ino, from.node), codec::encode_incarnation(me));
            let record = draft.edit(ino)?;
            (record.owner, record.spilled) = (Some(me), false);
            if record.attr.size != copies.size {
                // Else a time that was set since then stays.
                record.attr.mtime = copies.mtime;
            }
            follow(draft, ino, copies)
        })?;
        Ok(as_known)
    }

    /// Whether a file was taken over from this node while it was gone, so that what it has of it
    /// does not count any more.
    ///
    /// # Errors
    /// If the engine fails; `Unsupported` if this process is no node.
    pub fn was_taken(&self, ino: Ino) -> Result<bool> {
        let key = keys::taken(ino, self.this_node()?.node);
        Ok(self.read_one(key)?.is_some())
    }

    /// Forgets that a file was taken over from this node.
    ///
    /// # Errors
    /// If the engine fails; `Unsupported` if this process is no node.
    pub fn forget_taken(&self, ino: Ino) -> Result<()> {
        let write = vec![Write::Delete(keys::taken(ino, self.this_node()?.node))];
        self.execute(&MiniTransaction { write, ..Default::default() }).map(drop)
    }

    /// As [`MetaStore::member`], of a process that must be one.
    pub(super) fn this_node(&self) -> Result<Incarnation> {
        self.member().ok_or(Error::Unsupported("this process is no node"))
    }
}

/// The value that takes the place of what is there; what this version does not know of that stays.
fn value_after(known: Option<&[u8]>, after: &Copies) -> Result<Vec<u8>> {
    let value = codec::encode_copies(after);
    match known {
        Some(known) => codec::keep_later(value, known, codec::COPIES_TAGS),
        None => Ok(value),
    }
}

/// `known`: the bytes of the value, which a newer version may have written.
fn compare_copies(draft: &mut Draft<'_>, ino: Ino, known: Option<Vec<u8>>) {
    draft.expect(&keys::copies(ino), known.map_or(Expect::Absent, Expect::Value));
}

/// The record says what the copies hold.
fn follow(draft: &mut Draft<'_>, ino: Ino, copies: &Copies) -> Result<()> {
    let record = draft.edit(ino)?;
    record.copied = true;
    record.mark_dirty();
    record.attr.size = copies.size;
    record.attr.ctime = record.attr.ctime.max(record.attr.mtime);
    record.change += 1;
    match record.links.is_empty() {
        true => Ok(()),
        false => draft.enqueue(ino),
    }
}
