//! Replacement policies, one file each, behind one trait that serves the live mount and the
//! simulator alike.
//!
//! # The contract between a driver and a policy
//! A driver (the steward of a node, or the simulator) owns the truth about residency and keeps
//! this order for each access:
//! 1. [`Policy::observe`] tells what was accessed, resident or not.
//! 2. For what is not (wholly) resident it may ask [`Policy::admit`], which also names who must
//!    leave to make room.
//! 3. It carries out the evictions, and says [`Policy::inserted`] for what came in, or
//!    [`Policy::removed`] for what was admitted and does not come after all.
//!
//! A victim handed out is off the policy's books at once. A driver that cannot evict it says
//! [`Policy::inserted`] again; one that can says nothing more ([`Policy::removed`] is harmless).
//! [`Policy::victims`] makes room without a newcomer (marks, pressure by writers).
//!
//! Objects are identified by `u64` (the inode number), sizes are bytes resident on the tier.
//!
//! # What a policy is made of
//! The trait `Order` (who leaves next, `order.rs`) with `Ordered` around it is all that most
//! policies need. Below lie `slab.rs` (objects in slots, found by one look-up), `queues.rs` (lists)
//! and `rank.rs` (a heap). `next_use.rs` orders objects by known next uses, `trial.rs` judges
//! whether hints pay, and `auto.rs` follows the policy whose shadow misses fewest bytes. With a
//! million objects an access waits for memory most of its time: what a sequence says comes next is
//! looked for sixteen objects at once (`Slab::warm`, `References::soon`), which changes no
//! decision.
//!
//! # Invariants
//! - A policy decides as its paper and independent implementations do: `tests/golden.rs` replays
//!   their traces, and `tests/naive.rs` compares with plain programs on traces of eight families.

mod arc;
mod auto;
mod belady;
mod clock2q;
mod gdsf;
mod ghost;
mod gittins;
mod heuristic;
mod index;
mod kinetic;
mod lfu;
mod lru;
mod min;
mod next_use;
mod order;
mod portfolio;
mod queues;
mod rank;
pub mod replay;
mod s3fifo;
mod sieve;
mod sketch;
pub(crate) mod slab;
mod trial;
mod wtinylfu;

pub use arc::Arc;
pub use auto::{Auto, CHOICES};
pub use belady::{belady, belady_size};
pub use clock2q::Clock2QPlus;
pub use gdsf::Gdsf;
pub use gittins::Gittins;
pub use heuristic::Heuristic;
pub(crate) use index::Map;
pub use lfu::Lfu;
pub use lru::Lru;
pub use min::{min, min_whole};
pub use order::{Order, Ordered};
pub use portfolio::Portfolio;
pub use s3fifo::S3Fifo;
pub use sieve::Sieve;
pub(crate) use slab::{Slab, TOGETHER};
pub use wtinylfu::WTinyLfu;

/// Names that [`by_name`] accepts, in the order in which documentation lists them.
pub const NAMES: &[&str] = &[
    "lru",
    "lfu",
    "heuristic",
    "heuristic-printed",
    "s3fifo",
    "sieve",
    "gdsf",
    "wtinylfu",
    "arc",
    "clock2q+",
    "gittins",
    "auto",
    "belady",
    "belady-size",
    "min",
    "min-whole",
    "portfolio",
];

/// What was done to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessKind {
    /// Opened for reading, or read.
    Read,
    /// Opened for writing, or written.
    Write,
}

/// One access to an object, resident or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// The object.
    pub object: u64,
    /// The object's whole size in bytes.
    pub size: u64,
    /// Read or write.
    pub kind: AccessKind,
}

/// Something that could be brought into the tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// The object.
    pub object: u64,
    /// Its whole size in bytes.
    pub size: u64,
    /// How many of these bytes (from the head) are resident already.
    pub resident: u64,
    /// Whether nobody waits for it: it would be fetched ahead of its use.
    pub prefetch: bool,
}

/// A call for room.
#[derive(Clone, Copy)]
pub struct Demand<'a> {
    /// Bytes to free.
    pub bytes: u64,
    /// Most victims to name, to bound the work of one call.
    pub limit: usize,
    /// Whether an object cannot leave now (open, mapped, pinned, already on its way out). What was
    /// found busy may be left out of the order until the driver says [`Policy::inserted`] again.
    pub busy: &'a dyn Fn(u64) -> bool,
}

impl std::fmt::Debug for Demand<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Demand")
            .field("bytes", &self.bytes)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

impl Candidate {
    /// Bytes that come in if all of it is kept.
    #[must_use]
    pub fn incoming(&self) -> u64 {
        self.size.saturating_sub(self.resident)
    }
}

/// The room there is: what the driver knows and the policy decides within.
#[derive(Clone, Copy)]
pub struct Room<'a> {
    /// Bytes that the tier may hold.
    pub capacity: u64,
    /// Bytes that it holds or has promised.
    pub used: u64,
    /// Most victims to name; a newcomer that would need more is passed by.
    pub limit: usize,
    /// Whether an object cannot leave now, as in [`Demand`]; true for the newcomer.
    pub busy: &'a dyn Fn(u64) -> bool,
}

impl std::fmt::Debug for Room<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Room")
            .field("capacity", &self.capacity)
            .field("used", &self.used)
            .finish_non_exhaustive()
    }
}

impl Room<'_> {
    /// The demand for so many bytes within this room.
    #[must_use]
    pub fn demand(&self, bytes: u64) -> Demand<'_> {
        Demand { bytes, limit: self.limit, busy: self.busy }
    }

    /// Bytes that must leave before `incoming` more bytes fit.
    #[must_use]
    pub fn lacking(&self, incoming: u64) -> u64 {
        self.used.saturating_add(incoming).saturating_sub(self.capacity)
    }
}

/// The answer to a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Keep all of it.
    Whole,
    /// Keep the first so many bytes (a count from the start of the object, resident ones included).
    Head(u64),
    /// Read it past the tier. What is resident of it stays.
    Bypass,
}

/// An object, or its tail, that is to leave the tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Victim {
    /// The object. May be the candidate itself when it would be the first to leave.
    pub object: u64,
    /// Bytes that this frees, as the policy's books have it.
    pub bytes: u64,
    /// Bytes that stay, from the head of the object: 0 when all of it leaves.
    pub keep: u64,
    /// The object is known never to be used again: it is dropped, not replaced.
    pub dead: bool,
}

impl Victim {
    /// All of an object.
    #[must_use]
    pub fn whole(object: u64, bytes: u64) -> Self {
        Self { object, bytes, keep: 0, dead: false }
    }
}

/// News about what jobs are going to access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint<'a> {
    /// The job will access these objects, in this order, after what was appended before.
    Append {
        /// The job.
        job: u64,
        /// What it will access.
        objects: &'a [u64],
    },
    /// The sequence is complete: what it named and has no further use in it is dead.
    Close {
        /// The job.
        job: u64,
    },
    /// The job has gone past `by` more references, whatever was observed.
    Advance {
        /// The job.
        job: u64,
        /// Number of references.
        by: u64,
    },
    /// Forget the job and all of its sequence.
    Withdraw {
        /// The job.
        job: u64,
    },
}

impl Hint<'_> {
    /// The objects that it names.
    #[must_use]
    pub fn objects(&self) -> &[u64] {
        match self {
            Hint::Append { objects, .. } => objects,
            Hint::Close { .. } | Hint::Advance { .. } | Hint::Withdraw { .. } => &[],
        }
    }
}

/// Counters of a policy for status and tests.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Snapshot {
    /// Objects on the policy's books.
    pub objects: u64,
    /// Bytes on the policy's books.
    pub bytes: u64,
    /// Objects remembered after they left (ghosts).
    pub ghosts: u64,
    /// Candidates admitted, whole or in part.
    pub admitted: u64,
    /// Candidates passed by.
    pub bypassed: u64,
    /// Victims handed out.
    pub victims: u64,
    /// References known and still ahead, over all jobs.
    pub ahead: u64,
    /// The policy that decides now, for one that chooses among others; else empty.
    pub follows: &'static str,
    /// How often that changed.
    pub switches: u64,
}

/// A replacement policy. Deterministic and single-threaded; never blocks; never allocates for an
/// access in the steady state.
pub trait Policy: Send + std::fmt::Debug {
    /// The name under which [`by_name`] finds it.
    fn name(&self) -> &'static str;

    /// Tells of accesses in their order, to resident and other objects alike.
    fn observe(&mut self, accesses: &[Access]);

    /// The object is resident with `bytes`: it came in, or a victim could not leave after all.
    fn inserted(&mut self, object: u64, bytes: u64);

    /// A resident object has another number of resident bytes now.
    fn resized(&mut self, object: u64, bytes: u64);

    /// The object is not resident any more, for a reason that is not the policy's. Unknown objects
    /// are no error.
    fn removed(&mut self, object: u64);

    /// Objects are numbered from 0 to below `objects`, most of them at least, so that they are found
    /// in arrays. Said before anything else, if at all; changes no decision.
    fn number(&mut self, _objects: usize) {}

    /// Whether the numbers of objects matter to what it decides, as where it breaks ties by them.
    fn heeds_numbers(&self) -> bool {
        true
    }

    /// Whether it looks ahead: what does not is served as well without hints.
    fn looks_ahead(&self) -> bool {
        false
    }

    /// News about reference sequences. Policies that do not look ahead ignore it.
    fn hint(&mut self, _hint: &Hint<'_>) {}

    /// Decides on a newcomer and appends to `out` what must leave for it; the victims leave
    /// whatever the answer is. Afterwards the admitted bytes fit into `room`.
    fn admit(&mut self, candidate: &Candidate, room: &Room<'_>, out: &mut Vec<Victim>)
    -> Admission;

    /// Appends victims to `out` until they free the bytes demanded; returns the bytes that they
    /// free: less only when nothing else can leave or the limit is reached.
    fn victims(&mut self, demand: &Demand<'_>, out: &mut Vec<Victim>) -> u64;

    /// Looks for objects that will be accessed soon, so that they are in the processor's cache then: a
    /// driver that knows a few accesses in advance is faster with it. Changes nothing.
    fn warm(&self, _objects: &[u64]) {}

    /// Appends up to `most` objects that will probably leave next, and looks for them likewise.
    fn warm_leaving(&self, _most: usize, _out: &mut Vec<u64>) {}

    /// How often it changed whom it follows, for one that chooses among others.
    fn switches(&self) -> u64 {
        0
    }

    /// Counters for status.
    fn snapshot(&self) -> Snapshot;
}

/// What policies can be told at their making.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyConfig {
    /// Bytes that the tier may hold (adaptive policies size their queues by it).
    pub capacity: u64,
    /// Grain of partial residency in bytes, for policies that keep a part of an object.
    pub chunk: u64,
    /// What a request costs besides its bytes, as the number of bytes that the device below moves
    /// in that time (latency x bandwidth). 0 counts bytes alone. Weighed by `min-whole`.
    pub request_cost: u64,
    /// Whether to admit objects larger than S3-FIFO's small queue. The published policy rejects
    /// them, which is useless where files are as large as a tenth of the tier.
    pub admit_large: bool,
}

impl PolicyConfig {
    /// The defaults of a tier of `capacity` bytes: grain of 1/256 of it, bytes alone count, and
    /// the published rules.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self { capacity, chunk: (capacity / 256).max(1), request_cost: 0, admit_large: false }
    }
}

/// There is no policy of that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy {name:?}; choose one of: {}", NAMES.join(", "))]
pub struct UnknownPolicy {
    /// The name that was asked for.
    pub name: String,
}

/// Makes the policy of that name.
///
/// # Errors
/// [`UnknownPolicy`] for a name that is not in [`NAMES`].
pub fn by_name(name: &str, config: &PolicyConfig) -> Result<Box<dyn Policy>, UnknownPolicy> {
    fn ordered(order: impl Order + 'static) -> Box<dyn Policy> {
        Box::new(Ordered::new(order))
    }
    Ok(match name {
        "lru" => ordered(Lru::default()),
        "lfu" => ordered(Lfu::default()),
        "heuristic" => ordered(Heuristic::corrected()),
        "heuristic-printed" => ordered(Heuristic::printed()),
        "s3fifo" => ordered(S3Fifo::new(config)),
        "sieve" => ordered(Sieve::default()),
        "gdsf" => ordered(Gdsf::default()),
        "gittins" => ordered(Gittins::default()),
        "wtinylfu" => ordered(WTinyLfu::new(config)),
        "arc" => ordered(Arc::new(config)),
        "clock2q+" => ordered(Clock2QPlus::new(config)),
        "auto" => Box::new(Auto::new(config)),
        "belady" => ordered(belady()),
        "belady-size" => ordered(belady_size()),
        "min" => min(config),
        "min-whole" => min_whole(config),
        "portfolio" => Box::new(Portfolio::new(config)),
        _ => return Err(UnknownPolicy { name: name.to_owned() }),
    })
}

/// The counters that every policy keeps alike.
#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    admitted: u64,
    bypassed: u64,
    victims: u64,
}

impl Tally {
    /// Counts an answer with its victims, and gives it back.
    fn decided(&mut self, admission: Admission, victims: usize) -> Admission {
        match admission {
            Admission::Bypass => self.bypassed += 1,
            Admission::Whole | Admission::Head(_) => self.admitted += 1,
        }
        self.victims += victims as u64;
        admission
    }

    /// The counters beside what is on the books.
    fn with(&self, books: Snapshot) -> Snapshot {
        let &Self { admitted, bypassed, victims } = self;
        Snapshot { admitted, bypassed, victims, ..books }
    }
}
