//! Checksums by which wrong shards are found.

use xxhash_rust::xxh3::Xxh3;

/// What a right shard must look like: kept beside it, or with the file's record.
///
/// The checksum covers the stripe's name and the shard's number as well, so that a sound shard of
/// another file, of an older version or in another place is found wrong too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seal {
    /// XXH3, 64 bits.
    pub checksum: u64,
    /// Bytes of the shard.
    pub length: u64,
}

impl Seal {
    /// The seal of shard `index` of the stripe named `stripe`: the name must change with the bytes
    /// (inode, version and offset, for example).
    #[must_use]
    pub fn of(stripe: u128, index: usize, bytes: &[u8]) -> Self {
        let mut hash = Xxh3::new();
        hash.update(&stripe.to_le_bytes());
        hash.update(&(index as u64).to_le_bytes());
        hash.update(bytes);
        Self { checksum: hash.digest(), length: bytes.len() as u64 }
    }

    /// Whether these bytes are shard `index` of the stripe.
    #[must_use]
    pub fn fits(&self, stripe: u128, index: usize, bytes: &[u8]) -> bool {
        *self == Self::of(stripe, index, bytes)
    }
}
