//! Reed-Solomon erasure code over GF(2^8): `k` data shards, `m` parity shards, any `k` of which
//! give all others back.
//!
//! - [`Code`]: encoding, and [`Recovery`], the plan that makes lost shards from present ones.
//! - [`Seal`]: the checksum by which a wrong shard is told from a right one. The code itself only
//!   knows which shards are lost; a changed byte must be made a loss first ([`Code::restore`]).
//! - [`fragments`]: files as stripes of sealed pieces, which grow without a change of what is there.
//! - [`Kernel`]: which instructions do the work: AVX2 or SSSE3 on x86-64, NEON on aarch64, tables
//!   elsewhere. All give the same bytes.
//!
//! The code is systematic: data shards are the data. Its parity rows are a Cauchy matrix (Blomer,
//! Kalfane, Karp, Karpinski, Luby, Zuckerman: "An XOR-based erasure-resilient coding scheme", ICSI
//! TR-95-048, 1995), scaled so that the first parity shard is the exclusive-or of the data.
//! Products by a constant take two table look-ups of four bits each, 16 or 32 bytes at a time
//! (Plank, Greenan, Miller: "Screaming fast Galois field arithmetic using Intel SIMD
//! instructions", FAST 2013).
//!
//! # Invariants
//! - Any losses within the parity are made good, and wrong shards are found (`tests/code.rs`).
//! - All kernels give the same shards (`tests/code.rs`).

mod code;
mod field;
pub mod fragments;
mod kernel;
mod seal;

pub use code::{Code, Recovery};
pub use kernel::Kernel;
pub use seal::Seal;

/// Why a code refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A code that cannot be.
    #[error(
        "{data}+{parity} is no code: give at least one data shard, one parity shard, 256 at most"
    )]
    Shape {
        /// Data shards asked for.
        data: usize,
        /// Parity shards asked for.
        parity: usize,
    },
    /// Another number of shards than the code has, or a shard that it does not have.
    #[error("the code has {expected} shards here, {given} were given")]
    Count {
        /// How many there are.
        expected: usize,
        /// How many were given, or the number of one that is not.
        given: usize,
    },
    /// Shards of one stripe differ in length.
    #[error("a shard has {given} bytes, the others have {expected}")]
    Length {
        /// Bytes of the first shard.
        expected: usize,
        /// Bytes of the other.
        given: usize,
    },
    /// Segments of a file that do not follow each other.
    #[error("the segments of the file are not in order, or one is empty")]
    Segments,
    /// More is lost than the code can bear.
    #[error("{present} sound shards of {needed} needed: wait for another node, or restore a copy")]
    TooFew {
        /// Sound shards.
        present: usize,
        /// Shards needed.
        needed: usize,
    },
}
