//! Bytes on tiers and in the backing store.
