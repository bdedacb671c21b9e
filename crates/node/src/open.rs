//! Opening.
/// Who has a file open.
#[derive(Default)]
pub struct Opens {}
