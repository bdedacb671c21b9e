//! Who may write a file's bytes, and who may change an inode in the backing store: rights that one
//! node of a cluster has at a time.

use std::sync::Arc;

use super::{Draft, MetaStore, compare};
use crate::codec;
use crate::engine::{Expect, LeaseObserver, MiniTransaction, Tenure, Write};
use crate::error::{Error, Result};
use crate::keys;
use crate::types::{FileKind, Incarnation, Ino, Record, Spread};

/// What came of asking for the ownership of a file.
#[derive(Debug, Clone)]
pub enum Ownership {
    /// This node has it.
    Mine(Arc<Record>),
    /// Another node has it.
    Other(Incarnation),
}

/// What came of asking for the right to change an inode in the backing store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeRight {
    /// This node has it.
    Mine,
    /// This node has it from another, of which it was said that it is dead: whatever that one began
    /// before may still be under way.
    From(Incarnation),
    /// Another node has it.
    Others,
}

/// What a name means now.
enum Look {
    /// Nothing.
    Nothing,
    /// The inode of this record.
    Record(Arc<Record>),
    /// An inode whose record was not read.
    Inode(Ino),
    /// The directory was split: its names are not where they were looked for.
    Elsewhere,
}

impl MetaStore {
    /// As [`MetaStore::get`], but as the engine has it now, whatever is cached: what others have
    /// reported before this call is seen.
    ///
    /// # Errors
    /// `Stale` if there is no such inode.
    pub fn get_now(&self, ino: Ino) -> Result<Arc<Record>> {
        let _shared = self.stripe(ino).read();
        self.reload_locked(ino)?.ok_or(Error::Stale(ino))
    }

    /// As [`MetaStore::lookup`], but as the engine has it now, whatever is cached. One round trip for
    /// a file whose name was looked up before, or for a name that is not there.
    ///
    /// # Errors
    /// As [`MetaStore::lookup`].
    pub fn lookup_now(&self, dir: Ino, name: &[u8]) -> Result<Option<Arc<Record>>> {
        for _ in 0..super::ATTEMPTS {
            let ino = match self.look(dir, name)? {
                Look::Nothing => return Ok(None),
                Look::Record(record) => return Ok(Some(record)),
                Look::Inode(ino) => ino,
                Look::Elsewhere => continue,
            };
            match self.get_now(ino) {
                Ok(record) => return Ok(Some(record)),
                // Removed between the two looks: look again.
                Err(Error::Stale(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Conflict(super::ATTEMPTS))
    }

    /// Reads a name, its directory, and the record that the name is believed to mean if it lies beside
    /// them, at one instant.
    fn look(&self, dir: Ino, name: &[u8]) -> Result<Look> {
        let spread = self.believed_spread(dir);
        let partition = self.layout.entry_partition(dir, spread, keys::name_hash(name));
        let beside = |ino: &Ino| *ino != dir && ino.partition() == partition;
        let file = self.believed_entry(dir, name).filter(|(_, kind)| *kind != FileKind::Directory);
        let guess = file.map(|(ino, _)| ino).filter(beside);
        let _shared = self.shared(dir, guess);
        let stamp = self.stamp(partition);
        // A bucket's times are there as long as the directory is.
        let mut wanted = vec![keys::entry(partition, dir, name), keys::times(partition, dir)];
        wanted.extend(Some(keys::record(dir)).filter(|_| spread != Spread::Split));
        wanted.extend(guess.map(keys::record));
        let mut values = self.read_each(wanted)?.into_iter();
        let (entry, times) = (values.next().flatten(), values.next().flatten());
        if spread != Spread::Split {
            let record = values.next().flatten();
            let parent = self.decode_record(dir, record, times)?.ok_or(Error::Stale(dir))?;
            self.cache_record(&parent, stamp.filter(|_| dir.partition() == partition));
            if !parent.is_directory() {
                return Err(Error::NotDirectory);
            }
            if parent.spread == Spread::Split {
                return Ok(Look::Elsewhere);
            }
        } else if times.is_none() {
            self.reload_locked(dir)?.ok_or(Error::Stale(dir))?;
        }
        let found = entry.map(|value| codec::decode_entry(name, &value)).transpose()?;
        self.cache_entry(dir, name, partition, found, stamp);
        let Some((ino, _)) = found else { return Ok(Look::Nothing) };
        match values.next().flatten() {
            Some(value) if guess == Some(ino) => {
                let record = Arc::new(self.with_names(codec::decode_record(ino, &value)?)?);
                self.cache_record(&record, stamp);
                Ok(Look::Record(record))
            }
            _ => Ok(Look::Inode(ino)),
        }
    }

    /// What the caches say of a name, however old: for those whose transaction compares it.
    #[must_use]
    pub fn lookup_believed(&self, dir: Ino, name: &[u8]) -> Option<Arc<Record>> {
        self.believed_entry(dir, name).and_then(|(ino, _)| self.believed(ino))
    }

    /// Whether all entries of a directory are known to be here. That never changes back.
    #[must_use]
    pub fn is_listed(&self, dir: Ino) -> bool {
        self.believed(dir).is_some_and(|record| record.is_directory() && record.listed)
    }

    /// Whether nobody but this process may change at present what is kept with an inode: its record, and
    /// of a directory that is not split its entries and their times.
    #[must_use]
    pub fn tenure(&self, ino: Ino) -> Option<Tenure> {
        self.engine.tenure(ino.partition())
    }

    /// Whether a directory has its entries and times with it, by what was just read of it.
    #[must_use]
    pub fn is_whole(&self, dir: Ino) -> bool {
        self.cached_record(dir).is_some_and(|record| record.is_whole())
    }

    /// Names who is to be told before what [`MetaStore::tenure`] said ends.
    pub fn rely(&self, observer: Arc<dyn LeaseObserver>) {
        self.engine.rely(observer);
    }

    /// Makes this node the owner of a file that nobody owns, or that an earlier incarnation of it
    /// did. From then on it may write the file's bytes.
    ///
    /// # Errors
    /// `Stale` if there is no such inode; `Unsupported` if this process is no node.
    pub fn take_ownership(&self, ino: Ino) -> Result<Ownership> {
        let me = self.this_node()?;
        // Whatever else of it is old: only this node gives up what it has, and then knows it.
        if let Some(record) = self.believed(ino).filter(|record| record.owner == Some(me)) {
            return Ok(Ownership::Mine(record));
        }
        let mut looked = false;
        loop {
            let mut other = None;
            let record = self.edit_one(ino, |draft, before| {
                other = before.owner.filter(|owner| owner.node != me.node);
                if other.is_none() && before.owner != Some(me) {
                    let record = draft.edit(ino)?;
                    record.owner = Some(me);
                    if !record.links.is_empty() {
                        draft.enqueue(ino)?;
                    }
                }
                Ok(())
            })?;
            match other {
                None => return Ok(Ownership::Mine(record)),
                Some(other) if looked => return Ok(Ownership::Other(other)),
                // That may be how it was.
                Some(_) => looked = self.get_now(ino).map(|_| true)?,
            }
        }
    }

    /// Gives a file up that this node owns, if the backing store has all of its bytes; whether it
    /// has it no longer.
    ///
    /// # Errors
    /// If the engine fails; `Unsupported` if this process is no node.
    pub fn give_up_ownership(&self, ino: Ino) -> Result<bool> {
        let me = self.this_node()?;
        let given = self.edit_one(ino, |draft, before| {
            let mine = before.owner.is_some_and(|owner| owner.node == me.node);
            let nameless = before.links.is_empty() && !before.orphan;
            if mine && (nameless || !before.dirty && !before.spilled) {
                let record = draft.edit(ino)?;
                record.owner = None;
                if !record.differs() {
                    record.queued = None;
                }
            }
            Ok(())
        });
        match given {
            Ok(record) => Ok(record.owner.is_none_or(|owner| owner.node != me.node)),
            Err(Error::Stale(_)) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Gets the sole right among all nodes to change an inode in the backing store, unless another
    /// has it of whom `is_dead` does not say that it is dead. The caller sees to it that only one
    /// thread of this process asks.
    ///
    /// # Errors
    /// If the engine fails; `Unsupported` if this process is no node.
    pub fn begin_work(
        &self,
        ino: Ino,
        is_dead: &dyn Fn(Incarnation) -> bool,
    ) -> Result<ChangeRight> {
        let me = self.this_node()?;
        let key = keys::work(ino);
        let mine = codec::encode_incarnation(me);
        let take = |expect| {
            let mut transaction = MiniTransaction::default();
            transaction.compare.push(compare(key.clone(), expect));
            transaction.write.push(Write::Put(key.clone(), mine.clone()));
            Ok::<_, Error>(self.execute(&transaction)?.is_some())
        };
        let right = |taken, right| if taken { right } else { ChangeRight::Others };
        if take(Expect::Absent)? {
            return Ok(ChangeRight::Mine);
        }
        let Some(value) = self.read_one(key.clone())? else {
            return Ok(right(take(Expect::Absent)?, ChangeRight::Mine));
        };
        let holder = codec::decode_incarnation("who works on an inode", &value)?;
        if holder.node == me.node {
            return Ok(right(take(Expect::Value(value))?, ChangeRight::Mine));
        }
        match is_dead(holder) {
            true => Ok(right(take(Expect::Value(value))?, ChangeRight::From(holder))),
            false => Ok(ChangeRight::Others),
        }
    }

    /// Has a commit of a node depend on that it has the right of [`MetaStore::begin_work`]. `looks` says
    /// whether a commit has failed before: then the reason is looked for.
    pub(super) fn expect_in_hand(
        &self,
        draft: &mut Draft<'_>,
        ino: Ino,
        looks: &mut bool,
    ) -> Result<()> {
        let Some(me) = self.member() else { return Ok(()) };
        let (key, mine) = (keys::work(ino), codec::encode_incarnation(me));
        if std::mem::replace(looks, true) && self.read_one(key.clone())?.as_ref() != Some(&mine) {
            return Err(Error::NotInHand(ino));
        }
        draft.expect(&key, Expect::Value(mine));
        Ok(())
    }

    /// Refuses what is done with the bytes of a file that another node owns and the backing store lacks.
    /// A commit depends on the whole record, so that it is so at that moment, too.
    pub(super) fn expect_own_bytes(&self, record: &Record) -> Result<()> {
        let Some(me) = self.member() else { return Ok(()) };
        let others = record.owner.is_some_and(|owner| owner.node != me.node);
        let lacks = record.dirty || record.spilled || record.backing.fingerprint.is_none();
        if others && lacks { Err(Error::NotInHand(record.ino)) } else { Ok(()) }
    }

    /// Gives the right of [`MetaStore::begin_work`] back.
    ///
    /// # Errors
    /// If the engine fails: then this node still has it, and gets it again when it asks.
    pub fn end_work(&self, ino: Ino) -> Result<()> {
        let me = self.this_node()?;
        let key = keys::work(ino);
        let mut transaction = MiniTransaction::default();
        transaction
            .compare
            .push(compare(key.clone(), Expect::Value(codec::encode_incarnation(me))));
        transaction.write.push(Write::Delete(key));
        self.execute(&transaction).map(drop)
    }

    /// A place of this process in the backlog may be there no longer, as others have changed the
    /// record: it is looked up before the backlog is next read.
    pub fn doubt_place(&self, ino: Ino) {
        if self.is_gathered() {
            self.marks.doubt(std::iter::once(ino));
        }
    }

    /// A file has lost a name: if it has none left, who keeps its bytes? The owner, if that is
    /// another node; else this one, if a program of it uses them.
    pub(super) fn note_holder(&self, draft: &mut Draft<'_>, ino: Ino) -> Result<()> {
        let Some(me) = self.member() else { return Ok(()) };
        let record = draft.edit(ino)?;
        if !record.links.is_empty() || record.is_directory() {
            return Ok(());
        }
        match record.owner.filter(|owner| owner.node != me.node) {
            Some(other) => (record.orphan, record.orphan_of) = (true, other.node),
            None if record.orphan => record.orphan_of = me.node,
            None => {}
        }
        Ok(())
    }

    /// Whether an orphan is in use by this process's programs, as far as the record says.
    pub(super) fn holds_orphan(&self, record: &Record) -> bool {
        self.member().is_none_or(|me| record.orphan_of == me.node || record.orphan_of == 0)
    }
}
