//! What follows the fields of a message.

use std::fs::File;
use std::sync::Arc;

use crate::buffer::Buffer;

/// Bytes that a message carries.
#[derive(Debug, Default)]
pub enum Body {
    /// None.
    #[default]
    Empty,
    /// Bytes in memory.
    Bytes(Vec<u8>),
    /// Bytes in a buffer of a pool.
    Buffer(Buffer),
    /// Bytes of a file, which are read while they are sent.
    File(FileRange),
}

/// A range of an open file. A file that turns out to be shorter spoils the message: the receiver
/// notices and asks again or elsewhere.
#[derive(Clone, Debug)]
pub struct FileRange {
    /// The file, open for reading.
    pub file: Arc<File>,
    /// Where the range begins, in bytes.
    pub offset: u64,
    /// How long it is, in bytes.
    pub len: u32,
}

impl Body {
    /// How many bytes it has.
    pub fn len(&self) -> usize {
        match self {
            Body::Empty => 0,
            Body::Bytes(bytes) => bytes.len(),
            Body::Buffer(buffer) => buffer.len(),
            Body::File(range) => range.len as usize,
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, if they are in memory.
    pub(crate) fn in_memory(&self) -> Option<&[u8]> {
        match self {
            Body::Empty => Some(&[]),
            Body::Bytes(bytes) => Some(bytes),
            Body::Buffer(buffer) => Some(buffer),
            Body::File(_) => None,
        }
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Body {
        Body::Bytes(bytes)
    }
}

impl From<Buffer> for Body {
    fn from(buffer: Buffer) -> Body {
        Body::Buffer(buffer)
    }
}
