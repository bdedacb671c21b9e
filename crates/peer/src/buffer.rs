//! Buffers for bodies, used again and again.

use parking_lot::Mutex;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::budget::Charge;

/// Keeps buffers that are not in use, up to a number of bytes.
#[derive(Debug)]
pub struct BufferPool {
    free: Mutex<Free>,
    keep: usize,
}

#[derive(Debug, Default)]
struct Free {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

impl BufferPool {
    /// A pool that keeps at most `keep` bytes for later.
    pub fn new(keep: usize) -> Arc<BufferPool> {
        Arc::new(BufferPool { free: Mutex::default(), keep })
    }

    /// A buffer of `len` bytes, whose content is arbitrary but initialized.
    pub fn take(self: &Arc<Self>, len: usize) -> Buffer {
        if len == 0 {
            return Buffer::default();
        }
        let mut bytes = {
            let mut free = self.free.lock();
            // The last one given back is the likeliest to be in the processor's cache.
            let fits = free.buffers.iter().rposition(|buffer| buffer.len() >= len);
            // If none is large enough, one goes to make room for what will come back.
            let taken = fits.map(|at| free.buffers.remove(at)).or_else(|| free.buffers.pop());
            free.bytes -= taken.as_ref().map_or(0, Vec::len);
            taken.unwrap_or_default()
        };
        if bytes.len() < len {
            // Zeroed memory from the system costs nothing until it is touched.
            bytes = vec![0; len];
        }
        Buffer { bytes, len, pool: Some(self.clone()), charge: None }
    }

    fn give_back(&self, bytes: Vec<u8>) {
        let mut free = self.free.lock();
        if free.bytes + bytes.len() <= self.keep {
            free.bytes += bytes.len();
            free.buffers.push(bytes);
        }
    }
}

/// Bytes of a body. Dropping it gives its memory back to where it came from.
#[derive(Default)]
pub struct Buffer {
    /// All that was allocated; the first `len` bytes are the body.
    bytes: Vec<u8>,
    len: usize,
    pool: Option<Arc<BufferPool>>,
    charge: Option<Charge>,
}

impl Buffer {
    /// The bytes as a vector of their own.
    pub fn into_vec(mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.truncate(self.len);
        bytes
    }

    /// Leaves the first `len` bytes, if there are more.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Ties a share of a budget to the life of this buffer.
    pub(crate) fn charged(mut self, charge: Charge) -> Buffer {
        self.charge = Some(charge);
        self
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Buffer {
        Buffer { len: bytes.len(), bytes, pool: None, charge: None }
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Buffer) -> bool {
        **self == **other
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            let bytes = std::mem::take(&mut self.bytes);
            if !bytes.is_empty() {
                pool.give_back(bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_when_dropped_then_its_memory_is_taken_again() {
        let pool = BufferPool::new(1 << 20);
        let first = pool.take(4096);
        let at = first.as_ptr();
        drop(first);
        let second = pool.take(100);
        assert_eq!((second.as_ptr(), second.len()), (at, 100));
        let mut third = pool.take(50);
        third.truncate(60);
        assert_eq!(third.len(), 50);
        third.truncate(20);
        assert_eq!(third.len(), 20);
    }

    #[test]
    fn pool_when_full_then_keeps_no_more() {
        let pool = BufferPool::new(100);
        drop((pool.take(60), pool.take(60)));
        assert_eq!(pool.free.lock().buffers.len(), 1);
        assert_eq!(pool.free.lock().bytes, 60);
        assert_eq!(pool.take(60).into_vec().len(), 60);
    }
}
