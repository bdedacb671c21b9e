//! Keys of the namespace.
