//! A user-level caching file system for compute nodes.
fn main() {}
