//! A write as bytes.

use prost::Message;

use super::{Key, Write};

/// A write without its partition.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PbWrite {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    /// Absent for a removal.
    #[prost(bytes = "vec", optional, tag = "2")]
    value: Option<Vec<u8>>,
}

impl PbWrite {
    pub fn of(write: &Write) -> Self {
        match write {
            Write::Put(key, value) => {
                PbWrite { key: key.bytes().to_vec(), value: Some(value.clone()) }
            }
            Write::Delete(key) => PbWrite { key: key.bytes().to_vec(), value: None },
        }
    }

    pub fn into_write(self, partition: u16) -> Write {
        let key = Key::new(partition, &self.key);
        match self.value {
            Some(value) => Write::Put(key, value),
            None => Write::Delete(key),
        }
    }
}
