//! The check of every rule (fsck): one sweep over all keys, each compared with those that must
//! agree with it. Memory stays bounded, whatever the size of the tree.

use smallvec::SmallVec;

use super::draft::Draft;
use super::{COUNTS, Counts, MetaStore, Report, Violation, compare};
use crate::codec;
use crate::engine::{Expect, Key, MiniTransaction, Write};
use crate::error::{Error, Result};
use crate::keys;
use crate::types::{Ino, Link, Record, Seq, Spread, Touched, XattrState};

/// Keys per step of the sweep.
const STEP: usize = 4096;
/// Passes of a repair at most.
const PASSES: usize = 3;
/// Violations listed in a report, per pass.
const LISTED: usize = 10_000;

struct Check<'a> {
    store: &'a MetaStore,
    repair: bool,
    report: Report,
    counts: Counts,
    /// A newer version has written some of it.
    is_newer: bool,
}

/// Why nothing is repaired.
const NEWER: &str = "a newer Forebay has written a part of the metadata: none of it is repaired but by that version";

impl MetaStore {
    /// Checks every rule: each entry has its record and each record its entries, directories'
    /// link counts, stale names, the backlog, orphans, hard links, extended attributes, counts. Repairs
    /// what can be repaired without loss, if asked. What can't be read is named. Where that is because a newer
    /// version has written it, nothing is repaired: what seems to be too much may be that version's. Nothing
    /// else may use the store meanwhile.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn check(&self, repair: bool) -> Result<Report> {
        let (mut report, is_newer) = self.check_once(false)?;
        if report.is_clean() || !repair {
            return Ok(report);
        }
        if is_newer {
            report.violations.push(Violation { what: NEWER.into(), repaired: false });
            return Ok(report);
        }
        (report, _) = self.check_once(true)?;
        // A repair may uncover what a later look at its neighbours would have found.
        for _ in 1..PASSES {
            if report.is_clean() {
                break;
            }
            let (again, _) = self.check_once(true)?;
            let clean = again.is_clean();
            (report.inodes, report.entries) = (again.inodes, again.entries);
            report.omitted += again.omitted;
            report.violations.extend(again.violations);
            if clean {
                break;
            }
        }
        Ok(report)
    }

    /// Says as well whether a newer version has written some of it.
    fn check_once(&self, repair: bool) -> Result<(Report, bool)> {
        // What is cached must not hide what is stored.
        self.records.clear();
        self.dentries.clear();
        // Nor must half of a transaction be taken for damage: it is finished, or undone.
        self.engine.recover()?;
        if self.is_gathered() {
            self.finish_splits()?;
        }
        let (report, counts) = (Report::default(), Counts::default());
        let mut check = Check { store: self, repair, report, counts, is_newer: false };
        let mut after: Option<Key> = None;
        loop {
            let step = self.engine.sweep(after.as_ref(), STEP)?;
            let Some((last, _)) = step.last() else { break };
            after = Some(last.clone());
            for (key, value) in &step {
                check.key(key, value)?;
            }
        }
        check.counts()?;
        if repair && self.is_gathered() {
            self.collect()?;
        }
        Ok((check.report, check.is_newer))
    }
}

impl Check<'_> {
    fn violation(&mut self, what: String, repaired: bool) {
        if self.report.violations.len() < LISTED {
            self.report.violations.push(Violation { what, repaired });
        } else {
            self.report.omitted += 1;
        }
    }

    fn write(&self, write: Write) -> Result<bool> {
        if self.repair {
            let transaction = MiniTransaction { write: vec![write], ..MiniTransaction::default() };
            self.store.execute(&transaction)?;
        }
        Ok(self.repair)
    }

    /// Reports a mark (a derived key) that no record justifies; its removal loses nothing.
    fn stray(&mut self, key: &Key, what: String) -> Result<()> {
        let repaired = self.write(Write::Delete(key.clone()))?;
        self.violation(what, repaired);
        Ok(())
    }

    /// Reports a mark whose value can't be read. It may have been repaired since the sweep read it:
    /// then it stays.
    fn unreadable(&mut self, key: &Key, value: &[u8]) -> Result<()> {
        if self.repair {
            let mut transaction = MiniTransaction::default();
            transaction.compare.push(compare(key.clone(), Expect::Value(value.to_vec())));
            transaction.write.push(Write::Delete(key.clone()));
            self.store.execute(&transaction)?;
        }
        self.violation(format!("mark {key:?} can't be read"), self.repair);
        Ok(())
    }

    fn record(&mut self, ino: Ino) -> Result<Option<Record>> {
        // Kept in the cache, for a file with many names is asked for with each of them.
        match self.store.get(ino) {
            Ok(record) => Ok(Some((*record).clone())),
            Err(Error::Stale(_)) => Ok(None),
            // What speaks of one that can't be decoded is reported with it, and kept.
            Err(error) => Err(error),
        }
    }

    fn key(&mut self, key: &Key, value: &[u8]) -> Result<()> {
        let bytes = key.bytes();
        let checked = match (bytes.first().copied(), keys::number(bytes)) {
            (Some(keys::SETTING | keys::MEMBER | keys::WORK | keys::RECALL), _)
            | (Some(keys::NODE_STATUS | keys::ORDER | keys::TAKEN | keys::WAITING), _) => Ok(()),
            (Some(tag), Some(number)) => match tag {
                keys::RECORD => self.check_record(Ino(number), key, value),
                keys::ENTRY => self.check_entry(Ino(number), key, value),
                keys::NAME => self.check_name(Ino(number), key),
                keys::XATTR => self.check_xattr(Ino(number), key),
                keys::STALE_NAME => self.check_stale_name(Ino(number), key),
                keys::QUEUE => self.check_queue(Seq(number), key, value),
                keys::ORPHAN => self.check_orphan(Ino(number), key),
                keys::HARD_LINK => self.check_hard_link(number, key, value),
                keys::LOCKS => self.check_locks(Ino(number), key),
                keys::COPIES => self.check_copies(Ino(number), key),
                keys::TIMES | keys::IMPORTS => self.check_times(Ino(number), key),
                keys::SPLIT => self.stray(key, format!("directory {number} is not being split")),
                _ => self.stray(key, format!("unknown key {key:?}")),
            },
            _ => self.stray(key, format!("unknown key {key:?}")),
        };
        match checked {
            Err(error) if error.is_undecodable() => {
                self.undecodable("", &error);
                Ok(())
            }
            checked => checked,
        }
    }

    /// Reports what can't be read; `of` is what it is about, if that is known.
    fn undecodable(&mut self, of: &str, error: &Error) {
        self.is_newer |= matches!(error, Error::NewerFormat { .. });
        self.violation(format!("{of}{error}"), false);
    }

    fn check_record(&mut self, ino: Ino, key: &Key, value: &[u8]) -> Result<()> {
        let record = self.store.with_names(codec::decode_record(ino, value)?)?;
        self.report.inodes += 1;
        self.counts.inodes += 1;
        self.counts.queued += u64::from(record.queued.is_some());
        self.counts.orphans += u64::from(record.orphan);
        self.counts.stale_names += record.stale_names().len() as u64;
        if *key != keys::record(ino) {
            self.violation(format!("inode {ino} lies in the wrong partition"), false);
        }
        if record.is_dead() {
            let what = format!("inode {ino} is needed by nobody");
            let dead = |draft: &mut Draft<'_>| draft.edit(ino).map(|record| record.queued = None);
            return self.repair_record(ino, what, dead);
        }
        for link in &record.links {
            self.check_link(&record, link)?;
        }
        self.check_names(&record)?;
        self.check_marks(&record)?;
        if record.is_directory() {
            self.check_directory(&record)?;
            self.check_buckets(&record)?;
        }
        Ok(())
    }

    /// Reports; repairs by an edit of the record.
    fn repair_record(
        &mut self,
        ino: Ino,
        what: String,
        edit: impl Fn(&mut Draft<'_>) -> Result<()>,
    ) -> Result<()> {
        if self.repair {
            let mut draft = Draft::new(self.store);
            draft.edit(ino)?;
            edit(&mut draft)?;
            draft.commit()?;
        }
        self.violation(what, self.repair);
        Ok(())
    }

    fn check_link(&mut self, record: &Record, link: &Link) -> Result<()> {
        let ino = record.ino;
        let name = link.name.escape_ascii();
        match self.record(link.parent)? {
            Some(parent) if parent.is_directory() => {}
            _ => {
                let what = format!("inode {ino}: its directory {} does not exist", link.parent);
                return self.rescue(record, link, what);
            }
        }
        let place = keys::entry(self.partitions(link)?[0], link.parent, &link.name);
        let entry = self.store.read_one(place.clone())?;
        let entry = entry.map(|value| codec::decode_entry(&link.name, &value)).transpose()?;
        match entry {
            Some(entry) if entry == (ino, record.attr.kind) => {}
            Some((other, kind)) if other != ino => {
                let what = format!("inode {ino}: its name {name} leads to {other} ({kind:?})");
                self.rescue(record, link, what)?;
            }
            _ => {
                let value = codec::encode_entry(ino, record.attr.kind);
                let repaired = self.write(Write::Put(place, value))?;
                self.violation(format!("inode {ino}: its entry {name} is missing"), repaired);
            }
        }
        Ok(())
    }

    /// A name that leads nowhere is taken from an inode. If something may be here that the backing
    /// store lacks, the inode gets a name in the root instead, by which it is found.
    fn rescue(&mut self, record: &Record, link: &Link, what: String) -> Result<()> {
        if !self.repair {
            self.violation(what, false);
            return Ok(());
        }
        let (ino, kind) = (record.ino, record.attr.kind);
        let entry = |partition| keys::entry(partition, link.parent, &link.name);
        let places: Vec<Key> = self.partitions(link)?.into_iter().map(entry).collect();
        let published = record.backing.fingerprint.is_some() && record.backing.links.contains(link);
        let clean = !record.is_directory() && !record.is_behind() && published;
        let last = record.links.len() == 1;
        let mut draft = Draft::new(self.store);
        let own = codec::encode_entry(ino, kind);
        for place in places {
            if self.store.read_one(place.clone())?.as_ref() == Some(&own) {
                draft.delete(place);
            }
        }
        let edited = draft.edit(ino)?;
        edited.links.remove(link);
        edited.backing.links.remove(link);
        edited.change += 1;
        let mut what = what;
        if last && !clean {
            let name = recovered_name(&link.name, ino);
            edited.links.push(Link::new(Ino::ROOT, name.clone()));
            edited.listed |= record.is_directory();
            if edited.backing.links.is_empty() {
                edited.backing.fingerprint = None;
                edited.backing.attrs_differ = true;
                edited.backing.xattrs_differ = true;
            }
            draft.edit_directory(Ino::ROOT)?;
            if record.is_directory() {
                draft.add_subdirs(Ino::ROOT, 1)?;
            }
            draft.add_entry(Ino::ROOT, &name, ino, kind);
            draft.enqueue(ino)?;
            what = format!("{what}; it is /{} now", name.escape_ascii());
        } else {
            let links = u32::try_from(edited.links.len()).unwrap_or(u32::MAX);
            edited.attr.nlink = edited.attr.nlink.saturating_sub(1).max(links);
            draft.settle(ino)?;
        }
        draft.commit()?;
        self.violation(what, true);
        Ok(())
    }

    /// The keys derived from a record.
    fn check_marks(&mut self, record: &Record) -> Result<()> {
        let ino = record.ino;
        let layout = self.store.layout;
        let mut marks: Vec<(Key, &str)> = Vec::new();
        marks.extend(record.queued.map(|seq| (layout.queue(ino, seq), "place in the backlog")));
        marks.extend(record.orphan.then(|| (layout.orphan(ino), "orphan mark")));
        if self.store.is_gathered() {
            let number = record.hard_link;
            marks.extend(number.map(|number| (keys::hard_link(number), "hard-link mark")));
        }
        for link in record.stale_names() {
            marks.push((self.stale_name(ino, link)?, "stale name"));
        }
        let values = match marks.is_empty() {
            true => Vec::new(),
            false => self.store.read_each(marks.iter().map(|(key, _)| key.clone()).collect())?,
        };
        for ((key, what), value) in marks.into_iter().zip(values) {
            if value != Some(codec::encode_ino(ino)) {
                let repaired = self.write(Write::Put(key, codec::encode_ino(ino)))?;
                self.violation(format!("inode {ino}: its {what} is missing"), repaired);
            }
        }
        if record.namespace_differs() && record.queued.is_none() {
            let what = format!("inode {ino} differs from the backing store but is not queued");
            self.repair_record(ino, what, |draft| draft.enqueue(ino))?;
        }
        Ok(())
    }

    fn check_directory(&mut self, record: &Record) -> Result<()> {
        let ino = record.ino;
        let (mut subdirs, mut cursor) = (0, 0);
        loop {
            let entries = self.store.entries(ino, cursor, STEP)?;
            let Some(last) = entries.last() else { break };
            cursor = last.cursor;
            let kinds = entries.iter().map(|entry| entry.kind);
            subdirs += kinds.filter(|kind| *kind == crate::FileKind::Directory).count() as u32;
        }
        let removed = record.links.is_empty() && ino != Ino::ROOT;
        let nlink = match (removed, record.listed) {
            (true, _) => 0,
            (false, true) => subdirs.saturating_add(2),
            (false, false) => record.attr.nlink,
        };
        if record.subdirs != subdirs || record.attr.nlink != nlink {
            let what = format!(
                "directory {ino} counts {} subdirectories and {} links, but has {subdirs} and {nlink}",
                record.subdirs, record.attr.nlink
            );
            self.repair_record(ino, what, |draft| {
                let record = draft.edit(ino)?;
                record.subdirs = subdirs;
                record.attr.nlink = nlink;
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Names that are keys of their own are counted in the record.
    fn check_names(&mut self, record: &Record) -> Result<()> {
        let ino = record.ino;
        let names = self.store.scan(&keys::names(ino), None, usize::MAX)?.items.len() as u64;
        if record.apart == 0 || record.apart == names {
            return Ok(());
        }
        let what = format!("inode {ino} counts {} names, but has {names}", record.apart);
        self.repair_record(ino, what, |draft| {
            // None is not a count: then the names go back into the record.
            draft.edit(ino)?.apart = names;
            Ok(())
        })
    }

    fn check_name(&mut self, ino: Ino, key: &Key) -> Result<()> {
        match self.record(ino)?.is_some_and(|record| record.apart > 0) {
            true => Ok(()),
            false => self.stray(key, format!("{key:?} is a name of no inode")),
        }
    }

    /// Where the entry of a name, and its stale name, may be; first where one is put.
    fn partitions(&mut self, link: &Link) -> Result<SmallVec<[u16; 2]>> {
        let spread = self.record(link.parent)?.map(|record| record.spread);
        let hash = keys::name_hash(&link.name);
        Ok(self.store.layout.possible_partitions(link.parent, spread, hash))
    }

    /// The key of a stale name: where it is, else where it is put.
    fn stale_name(&mut self, ino: Ino, link: &Link) -> Result<Key> {
        let partitions = self.partitions(link)?;
        let key = |partition| keys::stale_name(partition, link.parent, &link.name, ino);
        if let [_, other] = partitions[..]
            && self.store.read_one(key(other))?.is_some()
        {
            return Ok(key(other));
        }
        Ok(key(partitions[0]))
    }

    fn check_times(&mut self, dir: Ino, key: &Key) -> Result<()> {
        let partitions = match self.record(dir)? {
            Some(record) if record.is_directory() && !record.is_removed() => {
                self.store.layout.entries_partitions(dir, record.spread)
            }
            _ => Vec::new(),
        };
        match partitions.contains(&key.partition()) {
            true => Ok(()),
            false => self.stray(key, format!("{key:?} are times of no entries")),
        }
    }

    /// The buckets of a split directory are open.
    fn check_buckets(&mut self, record: &Record) -> Result<()> {
        if record.spread != Spread::Split || record.is_removed() {
            return Ok(());
        }
        let dir = record.ino;
        for partition in self.store.layout.entries_partitions(dir, record.spread) {
            let key = keys::times(partition, dir);
            if self.store.read_one(key.clone())?.is_none() {
                let open = Touched { times: None, nonce: self.store.nonce() };
                let repaired = self.write(Write::Put(key, codec::encode_touched(open)))?;
                self.violation(format!("a bucket of directory {dir} is closed"), repaired);
            }
        }
        let moved = keys::moved(dir.partition(), dir);
        if self.store.read_one(moved.clone())?.is_none() {
            let value = codec::encode_entry(dir, crate::FileKind::Directory);
            let repaired = self.write(Write::Put(moved, value))?;
            self.violation(format!("directory {dir} does not say that it is split"), repaired);
        }
        Ok(())
    }

    /// What stands in for the entries of a split directory.
    fn check_moved(&mut self, dir: Ino, key: &Key) -> Result<()> {
        let split = |record: Record| record.spread == Spread::Split && !record.is_removed();
        match *key == keys::moved(dir.partition(), dir) && self.record(dir)?.is_some_and(split) {
            true => Ok(()),
            false => self.stray(key, format!("directory {dir} is not split")),
        }
    }

    fn check_entry(&mut self, dir: Ino, key: &Key, value: &[u8]) -> Result<()> {
        let (hash, name) = keys::entry_name(key.bytes()).unwrap_or((0, b""));
        if hash == u64::MAX && name.is_empty() {
            return self.check_moved(dir, key);
        }
        self.report.entries += 1;
        let shown = name.escape_ascii().to_string();
        let partitions = self.partitions(&Link::new(dir, name))?;
        if hash != keys::name_hash(name) || !partitions.contains(&key.partition()) {
            self.violation(format!("entry {shown} of {dir} lies in the wrong place"), false);
            return Ok(());
        }
        let decoded = codec::decode_entry(name, value);
        let found = decoded.and_then(|(ino, kind)| Ok((ino, kind, self.record(ino)?)));
        let (ino, kind, record) = match found {
            Err(error) if error.is_undecodable() => {
                let above = self.store.path(dir).ok().flatten().filter(|path| !path.is_empty());
                let above = above.map(|path| format!("{}/", path.escape_ascii()));
                self.undecodable(&format!("{}{shown}: ", above.unwrap_or_default()), &error);
                return Ok(());
            }
            found => found?,
        };
        match record {
            None => {
                self.stray(key, format!("entry {shown} of {dir} leads to no inode ({ino})"))?;
                self.doubt_listing(dir)
            }
            Some(record) if !record.links.has(dir, name) => {
                // What was read may be older than a repair of the inode, which took the entry away.
                if self.repair && self.store.read_one(key.clone())?.as_deref() != Some(value) {
                    return Ok(());
                }
                let what = format!("inode {ino} does not know its entry {shown} of {dir}");
                if record.is_directory() && !record.links.is_empty() {
                    self.violation(what, false);
                    return Ok(());
                }
                self.repair_record(ino, what, |draft| {
                    draft.edit(ino)?.links.push(Link::new(dir, name));
                    draft.settle(ino)
                })
            }
            Some(record) if record.attr.kind != kind => {
                let value = codec::encode_entry(ino, record.attr.kind);
                let repaired = self.write(Write::Put(key.clone(), value))?;
                self.violation(format!("entry {shown} of {dir} has the wrong type"), repaired);
                Ok(())
            }
            Some(_) => Ok(()),
        }
    }

    /// What an entry stood for may be in the backing store still, and be shown from there: the next use of
    /// the directory lists it anew.
    fn doubt_listing(&mut self, dir: Ino) -> Result<()> {
        let is_there = |record: &Record| record.listed && record.backing.fingerprint.is_some();
        if self.repair && self.record(dir)?.is_some_and(|record| is_there(&record)) {
            let mut draft = Draft::new(self.store);
            draft.edit(dir)?.listed = false;
            draft.commit()?;
        }
        Ok(())
    }

    fn check_xattr(&mut self, ino: Ino, key: &Key) -> Result<()> {
        let what = format!("extended attribute {key:?}");
        match self.record(ino)? {
            None => self.stray(key, format!("{what} of no inode")),
            Some(record) if record.xattrs != XattrState::Some => {
                let what = format!("{what} is not known to its inode");
                self.repair_record(ino, what, |draft| {
                    draft.edit(ino)?.xattrs = XattrState::Some;
                    Ok(())
                })
            }
            Some(_) => Ok(()),
        }
    }

    fn check_stale_name(&mut self, dir: Ino, key: &Key) -> Result<()> {
        let (name, ino) = keys::stale_name_parts(key.bytes()).unwrap_or((b"", Ino(0)));
        let record = self.record(ino)?;
        let partitions = self.partitions(&Link::new(dir, name))?;
        let justified = partitions.contains(&key.partition())
            && record.is_some_and(|record| {
                record.backing.links.has(dir, name) && !record.links.has(dir, name)
            });
        let what = || format!("stale name {} of {dir} is not held by {ino}", name.escape_ascii());
        if justified { Ok(()) } else { self.stray(key, what()) }
    }

    fn check_queue(&mut self, seq: Seq, key: &Key, value: &[u8]) -> Result<()> {
        let Ok(ino) = codec::decode_ino("the backlog", value) else {
            return self.unreadable(key, value);
        };
        let queued = self.record(ino)?.is_some_and(|record| record.queued == Some(seq));
        let justified = queued && *key == self.store.layout.queue(ino, seq);
        let what = || format!("place {} of the backlog is not that of inode {ino}", seq.0);
        if justified { Ok(()) } else { self.stray(key, what()) }
    }

    fn check_orphan(&mut self, ino: Ino, key: &Key) -> Result<()> {
        let is_orphan = self.record(ino)?.is_some_and(|record| record.orphan);
        let justified = is_orphan && *key == self.store.layout.orphan(ino);
        if justified { Ok(()) } else { self.stray(key, format!("inode {ino} is no orphan")) }
    }

    /// Locks of a file that is gone, by a node that died.
    fn check_locks(&mut self, ino: Ino, key: &Key) -> Result<()> {
        match self.record(ino)? {
            Some(_) => Ok(()),
            None => self.stray(key, format!("locks of {ino}, which does not exist")),
        }
    }

    fn check_copies(&mut self, ino: Ino, key: &Key) -> Result<()> {
        match self.record(ino)?.is_some_and(|record| record.copied) {
            true => Ok(()),
            false => self.stray(key, format!("copies of {ino}, which has none")),
        }
    }

    fn check_hard_link(&mut self, number: u64, key: &Key, value: &[u8]) -> Result<()> {
        let Ok(ino) = codec::decode_ino("a hard link", value) else {
            return self.unreadable(key, value);
        };
        let justified = self
            .record(ino)?
            .is_some_and(|record| self.store.backing_number(&record) == Some(number));
        let what = || format!("hard-link mark {number} does not belong to inode {ino}");
        if justified { Ok(()) } else { self.stray(key, what()) }
    }

    fn counts(&mut self) -> Result<()> {
        let kept = self.store.counts();
        if !self.report.is_clean() {
            // The sweep counted what it repaired: count again.
            if !self.repair {
                return Ok(());
            }
            self.counts = self.store.recount()?;
        }
        if self.store.is_gathered() {
            // Each process has its own, which know nothing of what others did.
            *self.store.counts.lock() = self.counts;
            self.store.shown.show(&self.counts);
        } else if kept != self.counts {
            let value = codec::encode_counts(&self.counts, self.store.places.next());
            let repaired = self.write(Write::Put(keys::setting(COUNTS), value))?;
            if repaired {
                *self.store.counts.lock() = self.counts;
                self.store.shown.show(&self.counts);
            }
            self.violation(
                format!("counts are {kept:?}, but there are {:?}", self.counts),
                repaired,
            );
        }
        Ok(())
    }
}

impl MetaStore {
    /// Counts everything, however much there is.
    pub(super) fn recount(&self) -> Result<Counts> {
        let mut counts = Counts::default();
        let mut after: Option<Key> = None;
        loop {
            let step = self.engine.sweep(after.as_ref(), STEP)?;
            let Some((last, _)) = step.last() else { return Ok(counts) };
            after = Some(last.clone());
            for (key, _) in &step {
                match key.bytes().first().copied() {
                    Some(keys::RECORD) => counts.inodes += 1,
                    Some(keys::QUEUE) => counts.queued += 1,
                    Some(keys::ORPHAN) => counts.orphans += 1,
                    Some(keys::STALE_NAME) => counts.stale_names += 1,
                    _ => {}
                }
            }
        }
    }
}

/// The name in the root of an inode that was cut off.
fn recovered_name(name: &[u8], ino: Ino) -> Vec<u8> {
    let suffix = format!(".forebay-recovered-{:x}", ino.0);
    let room = 255 - suffix.len();
    [&name[..name.len().min(room)], suffix.as_bytes()].concat()
}
