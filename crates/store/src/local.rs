//! Tiers in a local directory.

/// A tier in a directory of a local file system.
pub struct DirTier;
