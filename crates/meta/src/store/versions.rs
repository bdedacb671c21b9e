//! Values that nodes of different versions change in turns, by compare-and-swap.
//!
//! A newer version may write fields that an older one does not know, so that the value which the older
//! one makes of what it has read is not the one that is there. What counts is that it *reads* the same:
//! if a swap fails, the value that is there is read once more, and if it means what was known, the swap
//! is made against its bytes.

use super::{MetaStore, compare};
use crate::engine::{Expect, Key, MiniTransaction, Write};
use crate::error::Result;

/// Swaps against bytes that others change meanwhile without another meaning.
const ATTEMPTS: u32 = 8;

impl MetaStore {
    /// Makes a change of the value of a key if it means what was known, which this version would write
    /// as `known`; false if it does not. `is_same` says whether other bytes mean that.
    pub(super) fn swap_if_same(
        &self,
        key: &Key,
        known: Vec<u8>,
        write: &Write,
        is_same: impl Fn(&[u8]) -> Result<bool>,
    ) -> Result<bool> {
        let mut expected = known;
        for _ in 0..ATTEMPTS {
            let mut transaction = MiniTransaction::default();
            let expect = Expect::Value(expected.clone());
            transaction.compare.push(compare(key.clone(), expect));
            transaction.write.push(write.clone());
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
    use crate::keys;
    use crate::store::{NewInode, NodeName, Options};
    use crate::types::{Copies, FileKind, Ino};

    /// A version to come has written a value: with a field more than this one knows.
    fn rewrite_as_newer(engine: &Memory, key: Key) {
        let read = MiniTransaction::reading(vec![key.clone()]);
        let crate::engine::Outcome::Committed(found) = engine.execute(&read).unwrap() else {
            panic!("a conflict");
        };
        let mut value = found[0].clone().expect("a value");
        // Field 1000, a number.
        value.extend([0xc0, 0x3e, 7]);
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

    /// A program has locked a byte.
    fn locked(at: u64) -> Locks {
        let incarnation = Owner { node: NodeId(1), epoch: Epoch(1) };
        let holder = Holder { family: Family::Ranges, incarnation, owner: 5 };
        let span = Span { first: at, last: at };
        Locks::from_parts(vec![Lock { holder, span, mode: Mode::Exclusive, pid: 1 }], Vec::new())
    }
}
