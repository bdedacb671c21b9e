//! Values that nodes of different versions change in turns, by compare-and-swap.
//!
//! A newer version may write fields that an older one does not know, so that the value which the older
//! one makes of what it has read is not the one that is there. What counts is that it *reads* the same:
//! if a swap fails, the value that is there is read once more, and if it means what was known, the swap
//! is made against its bytes. What this version does not know of it stays.

use super::{MetaStore, compare};
use crate::engine::{Expect, Key, MiniTransaction, Write};
use crate::error::Result;

/// Swaps against bytes that others change meanwhile without another meaning.
const ATTEMPTS: u32 = 8;

impl MetaStore {
    /// Makes a change of the value of a key if it means what was known, which was found as `known`, or
    /// this version would write so; false if it does not. `write` is what takes the place of the bytes
    /// that it is given, `is_same` says whether other bytes mean what was known.
    pub(super) fn swap_if_same(
        &self,
        key: &Key,
        known: Vec<u8>,
        mut write: impl FnMut(&[u8]) -> Result<Write>,
        is_same: impl Fn(&[u8]) -> Result<bool>,
    ) -> Result<bool> {
        let mut expected = known;
        for _ in 0..ATTEMPTS {
            let mut transaction = MiniTransaction::default();
            let expect = Expect::Value(expected.clone());
            transaction.compare.push(compare(key.clone(), expect));
            transaction.write.push(write(&expected)?);
            if self.execute(&transaction)?.is_some() {
                return Ok(true);
            }
            match self.read_one(key.clone())? {
                Some(found) if found != expected && is_same(&found)? => expected = found,
                _ => return Ok(false),
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_core::cluster::locks::{Family, Holder, Lock, Locks, Mode, Span};
    use forebay_core::cluster::ownership::Incarnation as Owner;
    use forebay_core::cluster::{Epoch, NodeId};

    use super::*;
    use crate::engine::{Engine, Memory};
    use crate::store::{FORMAT, NewInode, NodeName, Options};
    use crate::types::{Copies, FileKind, Ino, NameIn};
    use crate::{codec, keys};

    /// Field 1000, a number.
    const LATER: [u8; 3] = [0xc0, 0x3e, 7];

    fn value_of(engine: &Memory, key: &Key) -> Vec<u8> {
        let read = MiniTransaction::reading(vec![key.clone()]);
        let crate::engine::Outcome::Committed(found) = engine.execute(&read).unwrap() else {
            panic!("a conflict");
        };
        found[0].clone().expect("a value")
    }

    fn keeps_what_is_newer(engine: &Memory, key: &Key) -> bool {
        let value = value_of(engine, key);
        assert!(value.windows(3).filter(|part| *part == LATER).count() <= 1, "{value:x?}");
        value.ends_with(&LATER)
    }

    /// A version to come has written a value: with a field more than this one knows.
    fn rewrite_as_newer(engine: &Memory, key: Key) {
        let mut value = value_of(engine, &key);
        if !value.ends_with(&LATER) {
            value.extend(LATER);
        }
        let write = vec![Write::Put(key, value)];
        engine.execute(&MiniTransaction { write, ..Default::default() }).unwrap();
    }

    #[test]
    fn values_when_a_newer_node_has_written_fields_more_then_an_older_one_changes_them() {
        let engine = Arc::new(Memory::partitioned());
        let open = |id: &str| {
            let node = Some(NodeName { id: id.into(), address: "here".into() });
            let options = Options { node, ..Options::default() };
            MetaStore::open(Box::new(engine.clone()), &options).unwrap()
        };
        let (old, newer) = (open("old"), open("newer"));
        let (me, them) = (old.member().unwrap(), newer.member().unwrap());

        let new = NewInode::new(FileKind::Regular, 0o644, 0, 0);
        let made = old.create(Ino::ROOT, b"f", new, Default::default()).unwrap();
        let ino = made.ino;
        old.take_ownership(ino).unwrap();
        let copies = |version, holders: &[u16]| Copies {
            version,
            writer: me,
            size: 3,
            mtime: Default::default(),
            holders: holders.to_vec(),
            code: None,
        };
        let (first, moved, last) = (copies(1, &[them.node]), copies(1, &[9]), copies(2, &[9]));
        old.put_copies(ino, None, &first).unwrap();
        rewrite_as_newer(&engine, keys::copies(ino));
        assert!(old.move_copies(ino, &first, &moved).unwrap(), "copies can't move");
        rewrite_as_newer(&engine, keys::copies(ino));
        let put = old.put_copies(ino, Some(&moved), &last).unwrap();
        assert!(matches!(put, crate::store::CopiesMade::Done(_)), "{put:?}");
        rewrite_as_newer(&engine, keys::copies(ino));
        assert!(newer.take_over(ino, me, &last).unwrap(), "nobody can take the file over");

        let (locks, changed) = (locked(1), locked(2));
        assert!(old.replace_locks(ino, &Locks::default(), &locks).unwrap());
        rewrite_as_newer(&engine, keys::locks(ino));
        assert_eq!(old.locks(ino).unwrap(), locks);
        assert!(old.replace_locks(ino, &locks, &changed).unwrap(), "nobody can lock or unlock");
        assert!(!old.replace_locks(ino, &locks, &changed).unwrap(), "they have changed");

        rewrite_as_newer(&engine, keys::member(them.node));
        let members = old.members().unwrap();
        let known = members.iter().find(|member| member.node == them.node).unwrap();
        assert!(old.expel(known).unwrap(), "a dead node can't be fenced");
        rewrite_as_newer(&engine, keys::member(me.node));
        assert!(old.beat().unwrap(), "it can't say that it lives");
    }

    #[test]
    fn fields_when_a_newer_node_has_written_them_then_they_stay_after_changes_by_an_older_one() {
        let engine = Arc::new(Memory::partitioned());
        let open = |id: &str| {
            let node = Some(NodeName { id: id.into(), address: "here".into() });
            let options = Options { node, ..Options::default() };
            MetaStore::open(Box::new(engine.clone()), &options).unwrap()
        };
        let (old, newer) = (open("old"), open("newer"));
        let me = old.member().unwrap();
        let new = NewInode::new(FileKind::Regular, 0o644, 0, 0);
        let ino = old.create(Ino::ROOT, b"f", new, Default::default()).unwrap().ino;
        old.take_ownership(ino).unwrap();
        let first = Copies {
            version: 1,
            writer: me,
            size: 3,
            mtime: Default::default(),
            holders: vec![7],
            code: None,
        };
        old.put_copies(ino, None, &first).unwrap();
        old.replace_locks(ino, &Locks::default(), &locked(1)).unwrap();
        let record = keys::record(ino);
        let all = [keys::copies(ino), keys::locks(ino), keys::member(me.node), record.clone()];
        for key in &all {
            rewrite_as_newer(&engine, key.clone());
        }
        // A bit of the flags (field 15) as well, which counts once more as the last one said.
        let mut value = value_of(&engine, &record);
        value.splice(value.len() - 3.., [0x78, 0x81, 0x80, 0x80, 0x40].into_iter().chain(LATER));
        let write = vec![Write::Put(record.clone(), value)];
        engine.execute(&MiniTransaction { write, ..Default::default() }).unwrap();

        let second = Copies { version: 2, ..first.clone() };
        let old = {
            drop(old);
            open("another of the old version")
        };
        assert!(old.move_copies(ino, &first, &second).unwrap());
        assert!(old.replace_locks(ino, &locked(1), &locked(2)).unwrap());
        let seen = old.members().unwrap().into_iter().find(|member| member.node == me.node);
        assert!(old.expel(&seen.unwrap()).unwrap());
        old.rename_inode(ino, NameIn::new(Ino::ROOT, b"f"), b"g", Default::default()).unwrap();
        for key in &all {
            assert!(keeps_what_is_newer(&engine, key), "{key:?} lost what a newer node wrote");
        }
        let flags = crate::codec::decode_record(ino, &value_of(&engine, &record)).unwrap().later;
        assert_eq!(flags.flags, 1 << 27);
        // The next start of a node says of itself what that one knows.
        drop(newer);
        let again = open("old");
        let key = keys::member(again.member().unwrap().node);
        assert!(!keeps_what_is_newer(&engine, &key));
        assert!(again.beat().unwrap());
    }

    #[test]
    fn format_when_an_older_node_is_mounted_then_not_raised_and_that_node_is_named() {
        let engine = Arc::new(Memory::partitioned());
        let open = |id: &str| {
            let node = Some(NodeName { id: id.into(), address: format!("host-{id}") });
            let options = Options { node, ..Options::default() };
            MetaStore::open(Box::new(engine.clone()), &options)
        };
        let set = |key: Key, value: Vec<u8>| {
            let write = vec![Write::Put(key, value)];
            engine.execute(&MiniTransaction { write, ..Default::default() }).unwrap();
        };
        let older = open("older").unwrap();
        let member = older.members().unwrap().remove(0);
        // As a program that knows format 3 and nothing newer has left it.
        let before = super::super::Member { knows: 0, ..member.clone() };
        let key = keys::member(member.node);
        let three = codec::encode_bytes(&3_u32.to_be_bytes());
        set(key.clone(), codec::encode_member(&before));
        set(keys::setting(FORMAT), three.clone());

        let refused = open("newer").err().expect("the format was raised").to_string();
        let named = format!("node {} (host-older)", member.node);
        assert!(refused.contains(&named), "{refused}");
        assert_eq!(value_of(&engine, &keys::setting(FORMAT)), three);
        assert_eq!(older.members().unwrap(), std::slice::from_ref(&before), "one has joined");
        // fsck and other processes that are no nodes do not raise it either.
        assert!(MetaStore::open(Box::new(engine.clone()), &Options::default()).is_err());

        // It has left, or is itself upgraded: then nothing holds the others back.
        set(
            key.clone(),
            codec::encode_member(&super::super::Member { left: true, ..before.clone() }),
        );
        open("newer").unwrap().leave().unwrap();
        set(key, codec::encode_member(&before));
        set(keys::setting(FORMAT), three);
        let upgraded = open("older").unwrap();
        assert_eq!(upgraded.member().unwrap().epoch, member.epoch + 1);
        let knows = upgraded.members().unwrap().into_iter().map(|member| member.knows);
        assert_eq!(knows.collect::<Vec<_>>(), [5, 5]);

        // Raised by others in the moment when a node joins: it leaves again.
        set(keys::setting(FORMAT), codec::encode_bytes(&6_u32.to_be_bytes()));
        let late = upgraded.check_format_again();
        assert!(matches!(late, Err(crate::Error::NewerFormat { found: 6, .. })), "{late:?}");
        let me = upgraded.member().unwrap().node;
        let gone = upgraded.members().unwrap().into_iter().find(|member| member.node == me);
        assert!(gone.unwrap().left);
    }

    /// A program has locked a byte.
    fn locked(at: u64) -> Locks {
        let incarnation = Owner { node: NodeId(1), epoch: Epoch(1) };
        let holder = Holder { family: Family::Ranges, incarnation, owner: 5 };
        let span = Span { first: at, last: at };
        Locks::from_parts(vec![Lock { holder, span, mode: Mode::Exclusive, pid: 1 }], Vec::new())
    }
}
