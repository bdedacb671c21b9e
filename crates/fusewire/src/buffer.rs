//! Page-aligned memory from bounded free lists.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

pub(crate) const PAGE: usize = 4096;

/// An owned, zero-initialised, page-aligned block. Pages are touched only when written.
struct Block {
    pointer: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a block is plain memory with one owner.
unsafe impl Send for Block {}
// SAFETY: shared access only reads.
unsafe impl Sync for Block {}

impl Block {
    fn new(size: usize) -> Self {
        let layout = Layout::from_size_align(size.max(PAGE), PAGE).expect("sizes are validated");
        // SAFETY: the size is not 0.
        let pointer = unsafe { alloc_zeroed(layout) };
        let pointer = NonNull::new(pointer).unwrap_or_else(|| handle_alloc_error(layout));
        Self { pointer, layout }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`, freed once.
        unsafe { dealloc(self.pointer.as_ptr(), self.layout) };
    }
}

impl Deref for Block {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `layout.size()` initialised bytes that this block owns.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.layout.size()) }
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.layout.size()) }
    }
}

/// Blocks of one size. At most `retain` unused ones are kept.
pub(crate) struct Pool {
    size: usize,
    start: usize,
    retain: usize,
    state: Mutex<PoolState>,
    returned: Condvar,
}

#[derive(Default)]
struct PoolState {
    free: Vec<Block>,
    in_use: usize,
}

impl Pool {
    /// Buffers whose visible part begins `start` bytes into the block and is `size` bytes long.
    pub fn new(start: usize, size: usize, retain: usize) -> Arc<Self> {
        let free = Vec::with_capacity(retain);
        let state = Mutex::new(PoolState { free, in_use: 0 });
        Arc::new(Self { size, start, retain, state, returned: Condvar::new() })
    }

    /// A buffer, kept or new. Its content is whatever was in it.
    pub fn take(self: &Arc<Self>) -> Buffer {
        let mut state = self.state.lock();
        state.in_use += 1;
        let kept = state.free.pop();
        drop(state);
        self.wrap(kept)
    }

    /// As [`Pool::take`], but only while fewer than `limit` are in use; waits up to `timeout`.
    pub fn take_within(self: &Arc<Self>, limit: usize, timeout: Duration) -> Option<Buffer> {
        let mut state = self.state.lock();
        if state.in_use >= limit {
            self.returned.wait_for(&mut state, timeout);
        }
        if state.in_use >= limit {
            return None;
        }
        state.in_use += 1;
        let kept = state.free.pop();
        drop(state);
        Some(self.wrap(kept))
    }

    fn wrap(self: &Arc<Self>, kept: Option<Block>) -> Buffer {
        let block = kept.unwrap_or_else(|| Block::new(self.start + self.size));
        Buffer { block: Some(block), start: self.start, pool: Arc::clone(self) }
    }
}

/// Page-aligned memory of a session's pool; returned to it when dropped.
///
/// As a slice it is at least the session's `max_write` bytes long, with unspecified content.
pub struct Buffer {
    block: Option<Block>,
    start: usize,
    pool: Arc<Pool>,
}

impl Buffer {
    /// Moves the visible part to `start`.
    pub(crate) fn starting_at(mut self, start: usize) -> Self {
        self.start = start;
        self
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.block.as_ref().expect("present until dropped")[self.start..]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.block.as_mut().expect("present until dropped")[self.start..]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        state.in_use -= 1;
        let surplus = match self.block.take() {
            Some(block) if state.free.len() < self.pool.retain => {
                state.free.push(block);
                None
            }
            surplus => surplus,
        };
        drop(state);
        drop(surplus);
        self.pool.returned.notify_one();
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_when_returned_then_reused_and_surplus_freed() {
        let pool = Pool::new(PAGE, 2 * PAGE, 1);
        let (mut first, second) = (pool.take(), pool.take());
        first[0] = 7;
        let address = first.as_ptr();
        assert_eq!(address.align_offset(PAGE), 0);
        assert_eq!(first.len(), 2 * PAGE);
        drop(first);
        drop(second);
        assert_eq!(pool.state.lock().free.len(), 1);
        assert_eq!(pool.take().as_ptr(), address);
    }

    #[test]
    fn take_within_when_limit_reached_then_waits_for_a_return() {
        let pool = Pool::new(0, PAGE, 4);
        let held = pool.take();
        assert!(pool.take_within(1, Duration::from_millis(5)).is_none());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| pool.take_within(1, Duration::from_secs(20)).is_some());
            std::thread::sleep(Duration::from_millis(10));
            drop(held);
            assert!(waiter.join().expect("no panic"));
        });
    }
}
