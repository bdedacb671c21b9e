//! Values: a version byte, then Protocol Buffers.
