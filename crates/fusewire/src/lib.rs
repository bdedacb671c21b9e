//! A FUSE transport: wire codec and request loop, without a file system of its own.
