//! What a file may be after a cut: its bytes, its length and its attributes.

use super::traits::Traits;
use super::{BLOCK, block};

/// One inode.
#[derive(Clone, Debug, Default)]
pub(super) struct File {
    /// For each block the stamps that it may hold: first the durable one, then those since.
    pub(super) stamps: Vec<Vec<u64>>,
    /// The lengths in bytes that it may have: first the durable one, then those since.
    pub(super) lens: Vec<usize>,
    /// Somebody was told that it is durable.
    pub(super) synced: bool,
    /// Or that a part of it is.
    pub(super) synced_in_part: bool,
    /// It came by a rename over another one, and nobody had synced it before.
    pub(super) instead: Option<Instead>,
    /// What it is called where a rename of it is not durable: the same file, which may be in parts there.
    pub(super) was: Option<usize>,
    /// What it has besides.
    pub(super) traits: Traits,
    /// It must be there, under one of the names that it had lately: one of them was durable, and none was
    /// removed or replaced since.
    pub(super) is_kept: bool,
    /// It was given a second name.
    pub(super) is_linked: bool,
}

/// What a file replaced that nobody had synced. If any of that was durable, or is in the backing store,
/// the file must be whole, as ext4's `auto_da_alloc` has it; else it may be a part of itself.
#[derive(Clone, Debug)]
pub(super) struct Instead {
    /// The file that it has replaced.
    pub(super) of: usize,
    /// The name that it had before, if the backing store may have had it there.
    pub(super) from: Option<String>,
    /// It, if what it replaced was nowhere durable: the file around this one is what was there at the
    /// rename, and what was done since.
    pub(super) part: Box<File>,
}

impl File {
    pub(super) fn len(&self) -> usize {
        self.lens.last().copied().unwrap_or(0)
    }

    /// Somebody was told that it is durable as it is.
    pub(super) fn is_durable(&self) -> bool {
        self.synced && self.lens.len() == 1 && self.stamps.iter().all(|stamps| stamps.len() == 1)
    }

    /// Whatever is done to it is done to the part of it, too.
    pub(super) fn part(&mut self) -> Option<&mut File> {
        self.instead.as_mut().map(|instead| &mut *instead.part)
    }

    /// It took the place of another file by a rename, and must be whole. If it, or a part of it, was synced
    /// before, or has come by such a rename itself, what was written over since may be as it was then: ext4
    /// writes at such a rename only what has no place on the disk yet.
    pub(super) fn replace(&mut self, of: usize, from: Option<String>) {
        let part = Box::new(self.clone());
        let len = self.len();
        if self.synced || self.synced_in_part || self.instead.is_some() {
            self.lens.iter_mut().for_each(|known| *known = (*known).max(len));
        } else {
            self.stamps.iter_mut().for_each(|stamps| drop(stamps.drain(..stamps.len() - 1)));
            self.lens = vec![len];
            self.stamps.truncate(len.div_ceil(BLOCK));
        }
        self.instead = Some(Instead { of, from, part });
    }

    pub(super) fn write(&mut self, at: usize, count: usize, stamp: u64) {
        if let Some(part) = self.part() {
            part.write(at, count, stamp);
        }
        for number in 0..count {
            if self.stamps.len() <= at + number {
                self.stamps.resize(at + number + 1, vec![0]);
            }
            self.stamps[at + number].push(stamp + number as u64);
        }
        self.lens.push(self.len().max((at + count) * BLOCK));
    }

    pub(super) fn set_len(&mut self, blocks: usize) {
        if let Some(part) = self.part() {
            part.set_len(blocks);
        }
        let gone = self.stamps.iter_mut().skip(blocks);
        gone.for_each(|stamps| stamps.push(0));
        if self.stamps.len() < blocks {
            self.stamps.resize(blocks, vec![0]);
        }
        self.lens.push(blocks * BLOCK);
    }

    pub(super) fn punch(&mut self, at: usize, count: usize) {
        if let Some(part) = self.part() {
            part.punch(at, count);
        }
        self.stamps.iter_mut().skip(at).take(count).for_each(|stamps| stamps.push(0));
    }

    /// Somebody was told of at least one block that it is durable, and nobody has changed that block since.
    /// What a rename makes whole was told to nobody.
    pub(super) fn has_acknowledged(&self) -> bool {
        if let Some(instead) = &self.instead {
            return instead.part.has_acknowledged();
        }
        let least = self.lens.iter().min().map_or(0, |len| len / BLOCK);
        self.stamps.iter().take(least).any(|stamps| stamps.len() == 1)
    }

    pub(super) fn all_durable(&mut self) {
        (self.synced, self.instead) = (true, None);
        self.traits.durable();
        let len = self.len();
        self.lens = vec![len];
        self.stamps.truncate(len.div_ceil(BLOCK));
        self.part_durable(0, self.stamps.len());
    }

    pub(super) fn part_durable(&mut self, at: usize, count: usize) {
        if let Some(part) = self.part() {
            part.part_durable(at, count);
        }
        for stamps in self.stamps.iter_mut().skip(at).take(count) {
            stamps.drain(..stamps.len() - 1);
        }
    }

    /// Whether what is found of it can be told from what is found of any other file.
    pub(super) fn is_unmistakable(&self) -> bool {
        let first = self.stamps.first();
        self.instead.is_none()
            && self.lens.iter().all(|len| *len >= BLOCK)
            && first.is_some_and(|stamps| !stamps.contains(&0))
    }

    pub(super) fn at_least(&mut self, least: usize) {
        if let Some(part) = self.part() {
            part.at_least(least);
        }
        self.lens.iter_mut().for_each(|len| *len = (*len).max(least));
    }

    /// From here on it is as found, or as it was at any time since it was durable: that it was found does not
    /// say that it is on every disk. What came after what was found is gone.
    pub(super) fn settle(&mut self, len: usize, found: &[u64]) {
        if let Some(part) = self.part() {
            part.settle(len, found);
        }
        end_with(&mut self.lens, len);
        for (at, stamps) in self.stamps.iter_mut().enumerate() {
            end_with(stamps, found.get(at).copied().unwrap_or(0));
        }
    }

    /// The stamps of what was found, if it may be found.
    pub(super) fn matches(&self, found: &[u8]) -> Result<Vec<u64>, String> {
        let (least, most) = (self.lens.iter().min(), self.lens.iter().max());
        let (least, most) = (least.copied().unwrap_or(0), most.copied().unwrap_or(0));
        if found.len() < least || found.len() > most {
            return Err(format!("{} bytes instead of {least} to {most}", found.len()));
        }
        let zeros = vec![0];
        let stamps = found.chunks(BLOCK).enumerate().map(|(at, bytes)| {
            let may = self.stamps.get(at).unwrap_or(&zeros);
            may.iter().copied().find(|stamp| block(*stamp)[..bytes.len()] == *bytes).ok_or_else(
                || {
                    let zero = bytes.iter().all(|byte| *byte == 0);
                    let what = if zero { "zeros" } else { "something else" };
                    format!("block {at} of {} is {what}", found.len() / BLOCK)
                },
            )
        });
        stamps.collect()
    }
}

/// Takes away what came after this.
pub(super) fn end_with<T: PartialEq>(states: &mut Vec<T>, last: T) {
    let known = states.iter().rposition(|state| *state == last);
    states.truncate(known.unwrap_or(states.len()));
    states.push(last);
}
