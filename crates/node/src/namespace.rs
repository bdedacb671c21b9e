//! The operations on names and attributes.
