//! Inode numbers: who gives them, and that none is given twice.

use crate::codec;
use crate::engine::{Expect, MiniTransaction, Write};
use crate::error::{Error, Result};
use crate::keys;
use crate::types::{FileKind, Ino};

use super::{MetaStore, compare, corrupt};

/// Inode numbers are taken from the engine in blocks of this size.
const INO_BLOCK: u64 = 4096;
const HIGH_WATER: &str = "forebay.ino-high-water";

/// Inode sequence numbers at hand.
#[derive(Default)]
pub(super) struct InoBlock {
    next: u64,
    end: u64,
}

impl MetaStore {
    /// A number for an inode whose entry lies in a partition.
    pub(super) fn new_ino(&self, beside: u16, kind: FileKind) -> Result<Ino> {
        let mut block = self.inos.lock();
        if block.next == block.end {
            *block = self.retry(|| self.next_block())?;
        }
        let sequence = block.next;
        block.next += 1;
        let partition = self.layout.birthplace(beside, kind, sequence);
        Ok(Ino(u64::from(partition) << Ino::SEQUENCE_BITS | sequence))
    }

    /// Sees to it that inode numbers given from now on have a higher sequence than this one's, for
    /// a namespace that is made anew beside objects of an earlier one. None is given again.
    pub fn number_above(&self, ino: Ino) -> Result<()> {
        let mut block = self.inos.lock();
        let sequence = ino.0 & ((1 << Ino::SEQUENCE_BITS) - 1);
        if block.next > sequence {
            return Ok(());
        }
        if block.end <= sequence {
            self.retry(|| self.raise_high_water(sequence + 1))?;
            *block = self.next_block()?;
        }
        block.next = block.next.max(sequence + 1);
        Ok(())
    }

    fn raise_high_water(&self, to: u64) -> Result<()> {
        let key = keys::setting(HIGH_WATER);
        let old = self.read_one(key.clone())?;
        let from = high_water(old.as_deref())?;
        if from >= to {
            return Ok(());
        }
        let mut transaction = MiniTransaction::default();
        transaction.compare.push(compare(key.clone(), old.map_or(Expect::Absent, Expect::Value)));
        transaction.write.push(Write::Put(key, codec::encode_bytes(&to.to_be_bytes())));
        self.execute(&transaction)?.ok_or(Error::Conflict(1)).map(drop)
    }

    fn next_block(&self) -> Result<InoBlock> {
        let key = keys::setting(HIGH_WATER);
        let old = self.read_one(key.clone())?;
        let next = high_water(old.as_deref())?;
        let end = next + INO_BLOCK;
        if end >> Ino::SPARE_SHIFT != 0 {
            return Err(Error::Unsupported("all 2^40 inode numbers are used up"));
        }
        let mut transaction = MiniTransaction::default();
        transaction.compare.push(compare(key.clone(), old.map_or(Expect::Absent, Expect::Value)));
        transaction.write.push(Write::Put(key, codec::encode_bytes(&end.to_be_bytes())));
        self.execute(&transaction)?.ok_or(Error::Conflict(1))?;
        Ok(InoBlock { next, end })
    }
}

/// The first sequence of an inode number that no block has.
fn high_water(value: Option<&[u8]>) -> Result<u64> {
    let Some(value) = value else { return Ok(keys::LAST_FIXED.0 + 1) };
    let bytes = codec::decode_bytes(HIGH_WATER, value)?;
    let bytes = bytes.try_into().map_err(|_| corrupt(HIGH_WATER, "no number"))?;
    Ok(u64::from_be_bytes(bytes))
}
