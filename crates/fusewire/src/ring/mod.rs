//! FUSE over io_uring (Linux 6.14): requests come and answers go through rings, one for every
//! possible CPU, without a read and a write of the device for each.
//!
//! A request goes to the queue of the CPU that its client runs on, and the queue's thread is
//! pinned there: no other CPU is woken. An entry of a queue holds one request and then its answer;
//! committing the answer fetches the next request. Forgets and interrupts still come by the device,
//! so one reader goes on, and notifications go the old way too.
//!
//! The kernel takes the mount over only when every possible CPU's queue has an entry, and until then
//! every request waits. So rings and memory are made before INIT is answered, where failing is
//! still free; if registering fails after that, the kernel itself goes back to the device.
//!
//! Entries outlive the process that registered them as long as they hold a request: it is in memory
//! that is passed on ([`RingParts`]), and whoever commits an answer to it takes the entry over. So a
//! mount is handed on with all entries full (`seal.rs`), and after the death of a process the next one
//! finds in them what was under way (`journal.rs`).

mod client;
mod journal;
mod memory;
mod queue;
mod seal;
#[cfg(feature = "fuzzing")]
pub(crate) mod trial;
mod worker;

use std::io;
use std::sync::Arc;

use io_uring::{IoUring, squeue};

#[cfg(test)]
pub(crate) use memory::ADDRESSES;
pub use memory::RingParts;
pub(crate) use queue::{Queue, Slot};
pub(crate) use seal::{are_sealed, seal, wake};
pub(crate) use worker::{HandedOver, Worker};

use crate::options::Options;
use memory::Memory;

/// Requests that one CPU's clients can have in flight. More make nothing faster; slow work is
/// answered from elsewhere and holds its entry so long.
const DEPTH: usize = 8;
/// Below this many entries of a queue, smaller requests are the better use of the memory.
const SHALLOW: usize = 4;
/// Smaller requests than this are not worth a ring.
const SMALLEST_WRITE: u32 = 128 << 10;

/// A ring of large submission entries, as FUSE needs them.
pub(crate) type Ring = IoUring<squeue::Entry128>;

/// Rings and their memory, before the kernel knows of them.
pub(crate) struct Rings {
    queues: Vec<(Arc<Queue>, Ring)>,
    memory: Arc<Memory>,
    inherited: bool,
}

impl Rings {
    /// Rings for all possible CPUs, within the memory that `options` allow.
    ///
    /// # Errors
    /// The kernel has no FUSE over io_uring or does not allow it, or a limit is in the way.
    pub fn prepare(options: &Options) -> io::Result<Self> {
        if !is_enabled() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "it is off in the kernel; it needs Linux 6.14 and \
                 /sys/module/fuse/parameters/enable_uring set to Y",
            ));
        }
        Self::make(options)
    }

    /// As [`Rings::prepare`], without asking whether the administrator wants them.
    pub fn make(options: &Options) -> io::Result<Self> {
        let cpus = possible_cpus()?;
        let (depth, max_write) = shape(cpus, options.max_write, options.ring_memory);
        let memory = Arc::new(Memory::new(cpus, depth, max_write as usize)?);
        Self::over(memory, false)
    }

    /// Rings for the entries of another process.
    ///
    /// # Errors
    /// They are those of another machine, or a limit is in the way.
    pub fn adopt(RingParts(memory): RingParts) -> io::Result<Self> {
        if memory.queues() != possible_cpus()? {
            return Err(io::Error::other("there are not as many queues as possible CPUs"));
        }
        Self::over(memory, true)
    }

    fn over(memory: Arc<Memory>, inherited: bool) -> io::Result<Self> {
        let queues = (0..memory.queues()).map(|cpu| {
            // One more for the wake-up.
            let ring = Ring::builder().setup_submit_all().build(memory.depth() as u32 + 1)?;
            Ok((Arc::new(Queue::new(cpu, Arc::clone(&memory))?), ring))
        });
        Ok(Self { queues: queues.collect::<io::Result<_>>()?, memory, inherited })
    }

    /// The largest WRITE that fits an entry.
    pub fn max_write(&self) -> u32 {
        u32::try_from(self.memory.payload_size()).unwrap_or(u32::MAX)
    }

    /// Has the kernel refuse the rings of these CPUs.
    #[cfg(test)]
    pub fn spoil(&self, is_spoilt: impl Fn(usize) -> bool) {
        for (queue, _) in self.queues.iter().filter(|(queue, _)| is_spoilt(queue.cpu)) {
            queue.spoilt.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }

    /// What to pass on.
    pub fn parts(&self) -> RingParts {
        RingParts(Arc::clone(&self.memory))
    }

    /// The queues, and what they hold already. To be called once: from then on nobody can tell what
    /// was begun.
    pub fn into_queues(self) -> (Vec<(Arc<Queue>, Ring)>, HandedOver) {
        let inherited = match (self.inherited, self.memory.is_sealed()) {
            (false, _) => HandedOver::Nothing,
            (true, true) => HandedOver::New,
            (true, false) => HandedOver::UnderWay,
        };
        self.memory.set_sealed(false);
        (self.queues, inherited)
    }
}

/// Entries of a queue and largest WRITE, so that all of them together stay within `bytes`.
fn shape(cpus: usize, max_write: u32, bytes: usize) -> (usize, u32) {
    let mut max_write = max_write.max(8192);
    loop {
        let depth = bytes / (cpus * (max_write as usize + memory::HEADERS));
        if depth >= SHALLOW || max_write / 2 < SMALLEST_WRITE {
            return (depth.clamp(1, DEPTH), max_write);
        }
        max_write = (max_write / 2).next_multiple_of(4096);
    }
}

/// Whether the administrator has switched FUSE over io_uring on.
pub(crate) fn is_enabled() -> bool {
    let text = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    text.is_ok_and(|text| matches!(text.trim(), "Y" | "1"))
}

/// How many CPUs the machine may ever have: the kernel wants a queue for each.
fn possible_cpus() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit(['-', ',']).next().and_then(|last| last.parse::<usize>().ok());
    last.map(|last| last + 1).ok_or_else(|| io::Error::other("no list of possible CPUs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shape_whatever_the_machine_then_within_the_memory() {
        assert_eq!(shape(2, 1 << 20, 64 << 20), (8, 1 << 20));
        assert_eq!(shape(64, 1 << 20, 64 << 20), (7, 128 << 10));
        for cpus in [1, 2, 8, 64, 256] {
            let (depth, max_write) = shape(cpus, 1 << 20, 64 << 20);
            assert!(depth >= 1 && max_write >= SMALLEST_WRITE);
            let bytes = cpus * depth * (max_write as usize + memory::HEADERS);
            assert!(bytes <= 64 << 20 || depth == 1, "{cpus} CPUs take {bytes}");
        }
        assert_eq!(shape(1, 4096, 64 << 20).1, 8192);
    }

    #[test]
    fn possible_cpus_then_at_least_those_online() {
        let online = std::thread::available_parallelism().map_or(1, usize::from);
        assert!(possible_cpus().expect("known") >= online);
    }
}
