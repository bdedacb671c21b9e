//! Real files by preadv(2) from a few threads, for where io_uring is forbidden.

use std::fs::File;
use std::time::Instant;

use crate::model::Layout;
use crossbeam_channel::{Sender, unbounded};

use super::{Device, Read};
use crate::extents::layout_of;
use crate::media::{Access, FileKey};
use crate::priority::ask_for_promptness;

/// Threads that are enough for the reads that are under way at once.
pub(super) const DEPTH: usize = 4;

/// Reads by threads, which end when this is dropped and the last read is done.
#[derive(Debug)]
pub struct Threads {
    queue: Sender<Read>,
}

impl Threads {
    /// Starts `threads` of them.
    pub fn start(threads: usize) -> Self {
        // Whoever submits keeps the number of reads small; see `Device`.
        let (queue, reads) = unbounded::<Read>();
        for index in 0..threads.max(1) {
            let reads = reads.clone();
            let work = move || {
                ask_for_promptness("reads");
                for mut read in reads {
                    let started = Instant::now();
                    let result = read.perform();
                    read.complete(result, started);
                }
            };
            let spawned =
                std::thread::Builder::new().name(format!("stream-io-{index}")).spawn(work);
            if let Err(error) = spawned {
                tracing::warn!(%error, "a thread for reads could not be started");
            }
        }
        Self { queue }
    }
}

impl Device for Threads {
    fn name(&self) -> String {
        "files by threads".into()
    }

    fn access(&self) -> Access {
        Access::Direct
    }

    fn layout(&self, file: &File, key: FileKey) -> Layout {
        layout_of(file, key.size())
    }

    fn submit(&self, read: Read) {
        if let Err(refused) = self.queue.send(read) {
            let error = std::io::Error::other("no thread could be started to read with");
            refused.into_inner().complete(Err(error), Instant::now());
        }
    }
}
