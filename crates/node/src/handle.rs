//! Open files.
/// An open file.
pub struct Handle {}
