//! An engine in memory, for tests.

use std::collections::BTreeMap;
use std::ops::Bound;

use parking_lot::Mutex;

use super::{Engine, EngineError, Key, MiniTransaction, Outcome, Page, Write};

/// Keeps everything in a sorted map under one lock; nothing survives.
#[derive(Debug, Default)]
pub struct Memory {
    map: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
    /// Refuses transactions over several partitions, as a cluster does.
    partitioned: bool,
}

impl Memory {
    /// An empty engine.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty engine that commits only within one partition.
    #[must_use]
    pub fn partitioned() -> Self {
        Memory { partitioned: true, ..Self::default() }
    }
}

impl Engine for Memory {
    fn execute(&self, transaction: &MiniTransaction) -> Result<Outcome, EngineError> {
        if self.partitioned && !transaction.in_one_partition() {
            return Err(EngineError::SpansPartitions);
        }
        let mut map = self.map.lock();
        for compare in &transaction.compare {
            let found = map.get(compare.key.raw()).map(Vec::as_slice);
            if !compare.expect.holds(found) {
                return Ok(Outcome::Conflict);
            }
        }
        let reads = transaction.read.iter().map(|key| map.get(key.raw()).cloned()).collect();
        for write in &transaction.write {
            match write {
                Write::Put(key, value) => {
                    map.insert(key.raw().to_vec(), value.clone());
                }
                Write::Delete(key) => {
                    map.remove(key.raw());
                }
            }
        }
        Ok(Outcome::Committed(reads))
    }

    fn scan(
        &self,
        partition: u16,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Page, EngineError> {
        let start = Key::new(partition, prefix);
        let from = match after {
            Some(after) if after >= prefix => {
                Bound::Excluded(Key::new(partition, after).raw().to_vec())
            }
            _ => Bound::Included(start.raw().to_vec()),
        };
        let map = self.map.lock();
        let mut page = Page::default();
        for (key, value) in map.range((from, Bound::Unbounded)) {
            if !key.starts_with(start.raw()) {
                break;
            }
            if page.items.len() == limit {
                page.more = true;
                break;
            }
            page.items.push((key[2..].to_vec(), value.clone()));
        }
        Ok(page)
    }

    fn sweep(&self, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, Vec<u8>)>, EngineError> {
        let from = match after {
            Some(key) => Bound::Excluded(key.raw().to_vec()),
            None => Bound::Unbounded,
        };
        let map = self.map.lock();
        let range = map.range((from, Bound::Unbounded)).take(limit);
        Ok(range.filter_map(|(key, value)| Some((Key::from_raw(key)?, value.clone()))).collect())
    }

    fn spans_partitions(&self) -> bool {
        !self.partitioned
    }

    fn sync(&self) -> Result<(), EngineError> {
        Ok(())
    }
}
