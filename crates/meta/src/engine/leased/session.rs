//! What was committed under all leases of this process and has not come to the servers yet, in the
//! order in which it was committed.

use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::engine::redis::{Append, Share};
use crate::engine::{Key, Write};

/// Writes and bytes of them that are sent in one go: a server does nothing else meanwhile.
const BATCH_WRITES: usize = 1000;
const BATCH_BYTES: usize = 1 << 20;
/// What the servers keep for partitions that can't be reached, in requests; beyond that nothing comes.
const MAX_KEPT: usize = 64;

/// A transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub number: u64,
    pub partition: u16,
    pub lease: String,
    pub writes: Vec<Write>,
}

/// The session of this process. Transactions are numbered from 1, over all its leases.
#[derive(Default)]
pub(super) struct Session {
    /// The leases of the session begin with it.
    pub name: String,
    /// The servers know it.
    pub is_begun: bool,
    /// It was ended by others, or something that it had is gone from the servers: nothing is committed
    /// under it any more.
    pub is_lost: bool,
    /// The last transaction.
    last: u64,
    /// The last one that has come to the servers.
    arrived: u64,
    /// The last one that is not in the journal.
    unnoted: u64,
    /// Those that have not come, as far as is known.
    entries: VecDeque<Entry>,
    /// Sent, perhaps, and not known to have come: it is sent again as it is.
    under_way: Option<Append>,
    /// What came and not all partitions have: the last transaction, and partitions.
    kept: VecDeque<(u64, BTreeSet<u16>)>,
    /// Nothing of these is needed on the servers any more.
    unneeded: Vec<u64>,
}

impl Session {
    /// One that goes on after so many transactions, of which so many have come.
    pub fn new(name: String, (arrived, last): (u64, u64)) -> Self {
        Session { name, arrived, last, ..Session::default() }
    }

    pub fn last(&self) -> u64 {
        self.last
    }

    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// The number of the next transaction.
    pub fn next(&self) -> u64 {
        self.last + 1
    }

    /// Those that wait, or are under way.
    pub fn waiting(&self) -> usize {
        self.entries.len()
    }

    /// A transaction was committed; whether it is in the journal. Its number is [`Session::next`].
    pub fn push(&mut self, entry: Entry, is_noted: bool) {
        self.last = entry.number;
        if !is_noted {
            self.unnoted = entry.number;
        }
        self.entries.push_back(entry);
    }

    /// Whether all that has not come is in the journal.
    pub fn is_noted(&self) -> bool {
        self.unnoted <= self.arrived
    }

    /// Whether the servers keep as much as they should, so that nothing comes before partitions have
    /// some of it.
    pub fn is_full(&self) -> bool {
        self.kept.len() >= MAX_KEPT
    }

    /// What is to be sent next: several transactions as one, of which the last write of a key counts.
    /// Without any it is a sign of life.
    pub fn append(&mut self) -> Append {
        if let Some(append) = &self.under_way {
            return append.clone();
        }
        let arrived = std::mem::take(&mut self.unneeded);
        let mut append =
            Append { after: self.arrived, last: self.arrived, arrived, ..Append::default() };
        let mut shares: HashMap<u16, usize> = HashMap::new();
        let mut places: HashMap<Key, usize> = HashMap::new();
        let (mut writes, mut bytes) = (0, 0);
        let room = !self.is_full();
        for entry in self.entries.iter().take_while(|_| room) {
            if writes >= BATCH_WRITES || bytes >= BATCH_BYTES {
                break;
            }
            append.last = entry.number;
            let at = *shares.entry(entry.partition).or_insert_with(|| {
                let (partition, lease) = (entry.partition, entry.lease.clone());
                append.shares.push(Share { partition, lease, last: 0, writes: Vec::new() });
                append.shares.len() - 1
            });
            let share = &mut append.shares[at];
            share.last = entry.number;
            for write in &entry.writes {
                if let Write::Put(_, value) = write {
                    bytes += value.len();
                }
                match places.get(write.key()) {
                    Some(at) => share.writes[*at] = write.clone(),
                    None => {
                        places.insert(write.key().clone(), share.writes.len());
                        share.writes.push(write.clone());
                        writes += 1;
                    }
                }
            }
        }
        self.under_way = Some(append.clone());
        append
    }

    /// It has come.
    pub fn confirm(&mut self) -> Option<Append> {
        let append = self.under_way.take()?;
        self.arrived = append.last;
        while self.entries.front().is_some_and(|entry| entry.number <= append.last) {
            self.entries.pop_front();
        }
        let partitions: BTreeSet<u16> = append.shares.iter().map(|share| share.partition).collect();
        if !partitions.is_empty() {
            self.kept.push_back((append.last, partitions));
        }
        Some(append)
    }

    /// A partition has its share of what came up to `last`.
    pub fn brought(&mut self, last: u64, partition: u16) {
        let unneeded = &mut self.unneeded;
        self.kept.retain_mut(|(number, partitions)| {
            if *number == last && partitions.remove(&partition) && partitions.is_empty() {
                unneeded.push(last);
            }
            !partitions.is_empty()
        });
    }

    /// Those of its transactions that have not come, if `arrived` is the last that has.
    pub fn rest(&self, arrived: u64) -> Vec<Entry> {
        self.entries.iter().filter(|entry| entry.number > arrived).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::part::Image;
    use super::*;

    fn put(partition: u16, key: u8, value: u8) -> Write {
        Write::Put(Key::new(partition, &[key]), vec![value])
    }

    fn push(session: &mut Session, partition: u16, writes: Vec<Write>, is_noted: bool) {
        let (number, lease) = (session.next(), format!("{partition:016x}"));
        session.push(Entry { number, partition, lease, writes }, is_noted);
    }

    proptest! {
        /// Whatever is committed between whichever requests, they bring the same state in the same order.
        #[test]
        fn session_any_history_then_requests_bring_all_once_and_in_order(
            history in proptest::collection::vec((0u16..3, 0u8..6, any::<u8>(), 0u8..10), 1..200),
        ) {
            let mut session = Session::default();
            let (mut here, mut there) = ([(); 3].map(|()| Image::default()), [(); 3].map(|()| Image::default()));
            let mut arrived = 0;
            let mut send = |session: &mut Session, there: &mut [Image; 3]| {
                let append = session.append();
                // Sent twice, counted once.
                assert_eq!(session.append(), append);
                assert_eq!(append.after, arrived);
                arrived = append.last;
                for share in &append.shares {
                    there[usize::from(share.partition)].apply(&share.writes);
                }
                assert_eq!(session.confirm(), Some(append.clone()));
                for share in &append.shares {
                    session.brought(append.last, share.partition);
                }
                assert_eq!((session.arrived(), session.kept.len()), (arrived, 0));
            };
            for (partition, key, value, what) in history {
                let write = if what < 3 {
                    Write::Delete(Key::new(partition, &[key]))
                } else {
                    put(partition, key, value)
                };
                let writes = vec![write, put(partition, 100 + key, value)];
                here[usize::from(partition)].apply(&writes);
                push(&mut session, partition, writes, true);
                if what == 9 {
                    send(&mut session, &mut there);
                }
            }
            send(&mut session, &mut there);
            prop_assert_eq!((session.waiting(), session.arrived()), (0, session.last()));
            for (here, there) in here.iter().zip(&there) {
                prop_assert_eq!(here.scan(b"", None, usize::MAX), there.scan(b"", None, usize::MAX));
                prop_assert_eq!(here.bytes(), there.bytes());
            }
        }
    }

    #[test]
    fn session_when_one_could_not_be_noted_then_none_counts_as_noted_until_that_has_come() {
        let mut session = Session::default();
        push(&mut session, 1, vec![put(1, 1, 1)], true);
        assert!(session.is_noted());
        push(&mut session, 2, vec![put(2, 1, 2)], false);
        push(&mut session, 1, vec![put(1, 1, 3)], true);
        assert!(!session.is_noted(), "the journal has a gap: the third would come without it");
        session.append();
        session.confirm();
        assert!(session.is_noted());
        push(&mut session, 1, vec![put(1, 1, 4)], true);
        assert!(session.is_noted());
    }

    #[test]
    fn session_when_long_then_sent_in_bounded_requests_and_not_beyond_what_partitions_take() {
        let mut session = Session::default();
        for n in 0..10_000u32 {
            let write = Write::Put(Key::new(5, &n.to_be_bytes()), vec![0; 10]);
            push(&mut session, 5, vec![write], true);
        }
        for _ in 0..10 {
            let append = session.append();
            assert!(append.shares[0].writes.len() <= BATCH_WRITES);
            session.confirm();
        }
        assert_eq!((session.waiting(), session.arrived()), (0, 10_000));
        for _ in 0..MAX_KEPT {
            push(&mut session, 5, vec![put(5, 1, 1)], true);
            session.append();
            session.confirm();
        }
        assert!(session.is_full() && session.waiting() > 0);
        let beat = session.append();
        assert!(beat.shares.is_empty() && beat.last == session.arrived(), "a sign of life");
        session.confirm();
        session.brought(session.kept[0].0, 5);
        let append = session.append();
        assert!(!append.shares.is_empty() && append.arrived.len() == 1);
    }
}
