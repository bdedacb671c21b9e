//! Files of a mount whose contents do not change while it is mounted.
//!
//! The kernel opens and closes them, and directories, without asking: nothing that an open looks at can
//! be different. What it reads it keeps in its page cache, and the daemon sees only the reads of what is
//! not there. For these it opens the file itself, and keeps it open while they follow each other.
//!
//! Owns: the files that are open for such reads. It must never know who reads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_node::{Context, Ino, Node, Result};
use parking_lot::Mutex;

const SHARDS: usize = 16;
/// Files that are kept open at most, in each part.
const MAX: usize = 4;
/// A file that was not read for so long is opened anew: what was refreshed meanwhile shows.
const IDLE: Duration = Duration::from_secs(1);

/// A file that is open until nobody has this any more.
struct OpenFile {
    node: Arc<Node>,
    fh: u64,
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.node.release(self.fh);
    }
}

/// A file that stays open for later reads.
struct CachedOpenFile {
    ino: Ino,
    file: Arc<OpenFile>,
    used: Instant,
}

/// The files that are open for reads of the kernel.
pub struct Dataset {
    node: Arc<Node>,
    shards: [Mutex<Vec<CachedOpenFile>>; SHARDS],
}

impl Dataset {
    /// None is open.
    pub fn new(node: Arc<Node>) -> Self {
        Dataset { node, shards: std::array::from_fn(|_| Mutex::default()) }
    }

    /// Reads a file that no program has asked to open.
    ///
    /// # Errors
    /// As [`Node::open`] and [`Node::read`].
    pub fn read(
        &self,
        context: &Context,
        ino: Ino,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        let file = self.open(context, ino)?;
        let len = self.node.read(context, file.fh, offset, buffer)?;
        if len < buffer.len() {
            // Its end, after which nothing follows; most files are read by one request.
            self.close(ino);
        }
        Ok(len)
    }

    /// Looks for data or a hole.
    ///
    /// # Errors
    /// As [`Node::open`] and [`Node::seek`].
    pub fn seek(&self, context: &Context, ino: Ino, offset: u64, whence: i32) -> Result<u64> {
        let file = self.open(context, ino)?;
        self.node.seek(context, file.fh, offset, whence)
    }

    /// Closes all that no read has in hand.
    pub fn close_all(&self) {
        for shard in &self.shards {
            let closed = std::mem::take(&mut *shard.lock());
            drop(closed);
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Vec<CachedOpenFile>> {
        &self.shards[(ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % SHARDS]
    }

    fn open(&self, context: &Context, ino: Ino) -> Result<Arc<OpenFile>> {
        let mut shard = self.shard(ino).lock();
        if let Some(cached) = shard.iter_mut().find(|cached| cached.ino == ino)
            && cached.used.elapsed() < IDLE
        {
            cached.used = Instant::now();
            return Ok(cached.file.clone());
        }
        drop(shard);
        let fh = self.node.open(context, ino, libc::O_RDONLY)?.fh;
        let file = Arc::new(OpenFile { node: self.node.clone(), fh });
        let cached = CachedOpenFile { ino, file: file.clone(), used: Instant::now() };
        let mut closed = Vec::new();
        let mut shard = self.shard(ino).lock();
        closed.extend(
            shard.extract_if(.., |cached| cached.ino == ino || cached.used.elapsed() >= IDLE),
        );
        if shard.len() >= MAX {
            closed.push(shard.remove(0));
        }
        shard.push(cached);
        drop(shard);
        // To close a file can take long.
        drop(closed);
        Ok(file)
    }

    fn close(&self, ino: Ino) {
        let mut shard = self.shard(ino).lock();
        let closed: Vec<CachedOpenFile> =
            shard.extract_if(.., |cached| cached.ino == ino).collect();
        drop(shard);
        drop(closed);
    }
}
