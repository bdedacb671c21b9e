//! Names as keys of their own: of a file that has many, so that to give it one or to take one from
//! it costs the same however many there are.

use super::{Draft, MetaStore, corrupt};
use crate::codec;
use crate::engine::Write;
use crate::error::{Error, Result};
use crate::keys;
use crate::links::{FEW, Links};
use crate::types::{Backing, Link, NAME_CLAIMED, NAME_HERE, NAME_THERE, Record};

/// Reads of names that changed meanwhile, before an operation gives up.
const ATTEMPTS: u32 = 16;

impl MetaStore {
    /// A record as it is decoded, with its names.
    pub(super) fn with_names(&self, mut record: Record) -> Result<Record> {
        if record.apart == 0 {
            return Ok(record);
        }
        let ino = record.ino;
        for _ in 0..ATTEMPTS {
            self.read_names(&mut record)?;
            // Every change of a name is one of the record, too.
            let now = self.read_one(keys::record(ino))?.ok_or(Error::Stale(ino))?;
            let now = codec::decode_record(ino, &now)?;
            if now.revision == record.revision {
                return Ok(record);
            }
            record = now;
            if record.apart == 0 {
                return Ok(record);
            }
        }
        Err(Error::Conflict(ATTEMPTS))
    }

    fn read_names(&self, record: &mut Record) -> Result<()> {
        let ino = record.ino;
        let (mut both, mut here, mut there) = (Links::new(), Vec::new(), Vec::new());
        let mut claimed = Links::new();
        for (key, value) in self.scan(&keys::names(ino), None, usize::MAX)?.items {
            let link = keys::name_of(&key).ok_or_else(|| corrupt("a name", "short key"))?;
            let bits = codec::decode_name(ino, &value)?;
            if bits & NAME_CLAIMED != 0 {
                claimed.push(link.clone());
            }
            match (bits & NAME_HERE != 0, bits & NAME_THERE != 0) {
                (true, true) => both.push(link),
                (true, false) => here.push(link),
                (false, _) => there.push(link),
            }
        }
        // What is equal shares memory: then it is seen at once that it is.
        record.links = both.clone();
        record.backing.links = both;
        here.into_iter().for_each(|link| record.links.push(link));
        there.into_iter().for_each(|link| record.backing.links.push(link));
        record.backing.claimed = claimed;
        Ok(())
    }
}

impl Draft<'_> {
    /// Adds what follows from a change of names that are, or become, keys of their own.
    pub(super) fn derive_names(&mut self, before: Option<&Record>, after: &mut Record) {
        let was_apart = before.is_some_and(|before| before.apart > 0);
        let names = after.links.len().max(after.backing.links.len());
        let few = if was_apart { FEW / 2 } else { FEW };
        let is_apart = names > few;
        if !was_apart && !is_apart {
            return;
        }
        let Record { links, backing, .. } = after;
        backing.links.share(links);
        if !was_apart {
            // What was claimed of a few is not told apart.
            backing.claimed.clone_from(&backing.links);
        } else if !is_apart {
            backing.claimed = Links::new();
        }
        let Backing { links: there, claimed, .. } = backing;
        if let Some(before) = before {
            before.backing.links.without(there, &mut |gone| {
                claimed.remove(gone);
                true
            });
        }
        let from = before.filter(|_| was_apart);
        let to = is_apart.then_some(&*after);
        let mut count = if was_apart && is_apart { after.apart } else { 0 };
        let mut writes = Vec::new();
        let bits = |record: Option<&Record>, link: &Link| record.map_or(0, |r| r.name_bits(link));
        for link in changed_names(from, to) {
            let key = keys::name(after.ino, &link);
            match (bits(from, &link), bits(to, &link)) {
                (was, now) if was == now => {}
                (_, 0) => {
                    count = count.saturating_sub(1);
                    writes.push(Write::Delete(key));
                }
                (was, now) => {
                    count += u64::from(was == 0);
                    writes.push(Write::Put(key, codec::encode_name(now)));
                }
            }
        }
        after.apart = if is_apart { count } else { 0 };
        self.write_all(writes);
    }
}

/// The names whose state changed between two records of an inode: what has changed is looked at, not
/// all.
pub(super) fn changed_names(before: Option<&Record>, after: Option<&Record>) -> Links {
    let none = Links::new();
    let (before, after) = (sets(before, &none), sets(after, &none));
    let mut changed = Links::new();
    for (before, after) in before.into_iter().zip(after) {
        let mut add = |link: &Link| {
            changed.push(link.clone());
            true
        };
        before.without(after, &mut add);
        after.without(before, &mut add);
    }
    changed
}

fn sets<'a>(record: Option<&'a Record>, none: &'a Links) -> [&'a Links; 3] {
    record
        .map_or([none; 3], |record| [&record.links, &record.backing.links, &record.backing.claimed])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Memory, MiniTransaction};
    use crate::keys::Layout;
    use crate::store::{FORMAT, NewInode, Options};
    use crate::types::{FileKind, Ino, Timestamp};

    fn many(store: &MetaStore) -> Ino {
        let new = NewInode::new(FileKind::Regular, 0o644, 1, 2);
        let now = Timestamp::new(1, 0);
        let ino = store.create(Ino::ROOT, b"file", new, now).unwrap().ino;
        (0..19_u32).for_each(|n| {
            store.link(ino, Ino::ROOT, n.to_string().as_bytes(), now).unwrap();
        });
        ino
    }

    /// Writes the record of a file as programs did that knew no names of their own.
    fn as_before(store: &MetaStore, ino: Ino) {
        let record = Record { apart: 0, ..(*store.get(ino).unwrap()).clone() };
        let mut write = vec![Write::Put(keys::record(ino), codec::encode_record(&record))];
        for (bytes, _) in store.scan(&keys::names(ino), None, usize::MAX).unwrap().items {
            write.push(Write::Delete(crate::engine::Key::new(ino.partition(), &bytes)));
        }
        store.execute(&MiniTransaction { write, ..Default::default() }).unwrap();
        store.records.clear();
    }

    #[test]
    fn record_of_an_earlier_format_with_many_names_then_read_and_taken_apart_at_its_next_change() {
        for engine in [Memory::new(), Memory::partitioned()] {
            let store = MetaStore::open(Box::new(engine), &Options::default()).unwrap();
            let ino = many(&store);
            as_before(&store, ino);
            let record = store.get(ino).unwrap();
            assert_eq!((record.links.len(), record.apart), (20, 0));
            assert!(store.check(false).unwrap().is_clean());
            let now = Timestamp::new(2, 0);
            let record = store.link(ino, Ino::ROOT, b"more", now).unwrap();
            assert_eq!((record.links.len(), record.apart), (21, 21));
            store.records.clear();
            assert_eq!(store.get(ino).unwrap().links.len(), 21);
            assert!(store.check(false).unwrap().is_clean());
        }
    }

    #[test]
    fn store_of_an_earlier_format_when_opened_then_is_of_this_one() {
        for (engine, layout, earlier) in
            [(Memory::new(), Layout::Central, 1_u32), (Memory::partitioned(), Layout::Gathered, 3)]
        {
            let store = MetaStore::open(Box::new(engine), &Options::default()).unwrap();
            let ino = many(&store);
            as_before(&store, ino);
            let earlier = codec::encode_bytes(&earlier.to_be_bytes());
            let write = vec![Write::Put(keys::setting(FORMAT), earlier)];
            store.execute(&MiniTransaction { write, ..Default::default() }).unwrap();
            store.begin().unwrap();
            let format = store.setting(FORMAT).unwrap().unwrap();
            assert_eq!(format, layout.version().to_be_bytes());
            assert_eq!(store.get(ino).unwrap().links.len(), 20);
        }
    }
}
