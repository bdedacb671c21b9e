//! What requests do with the bytes of files: open, read, write, punch, truncate, close.
//!
//! Owns: the way that the bytes of an open file take (`open.rs`), and the jobs whose hints were
//! given, by name (`hints.rs`). Stands on all rooms below, names and streams among them. Must not
//! know: who serves other nodes (`serving`), the start and the end (`lifecycle`), FUSE.
//!
//! # The way of an open
//! 1. The record comes from the namespace. If it is clean and its freshness has run out, it is
//!    compared with the backing store, and a stale copy is dropped. In a cluster its owner is asked
//!    first.
//! 2. `load` (`residency/data.rs`) looks up once where the bytes are. A file that is made by this
//!    open is found by nobody else yet and needs no look.
//! 3. The steward hears of the access. If nothing is resident it is asked for a tier, or says to
//!    bypass. A file up to 512 KiB is fetched before the open returns (`fetch_whole`), a larger one
//!    gets an empty object and is filled behind its readers (`begin_partial`).
//! 4. `choose_mode` picks the mode. The kernel's rules decide: all passthrough opens of an inode
//!    share one registration, and cached and passthrough opens exclude each other. So it is chosen
//!    for the inode as it is open now, not for the handle alone. The first row that fits counts:
//!
//! | the file is | opened to read | opened to write |
//! |---|---|---|
//! | open through passthrough | `Passthrough` | `Passthrough` if room is promised to it, else `PassthroughDirect` |
//! | appended to in a cluster, or its accesses are recorded | `Direct` | `Direct` |
//! | on a mount without passthrough | `Cached` | `Cached` |
//! | open through the page cache | `Cached` | `Direct` |
//! | in a cluster, and what is synced must reach other nodes | `Direct` | `Direct` |
//! | whole on a tier, and no writer is served | `Passthrough` | `Passthrough` if room is promised to it, else `Direct` |
//! | on no tier, not empty, and no writer is served | `Passthrough` to the file in the backing store on a read-only mount alone, elsewhere `Cached` | `Direct` |
//! | written by somebody whom the daemon serves | `Direct` | `Direct` |
//! | anything else: partly resident, new | `Cached` | `Direct` |
//!
//! An open that has become a stream is `Direct` whatever the table says, since the kernel's cache
//! would hide where its reader is. Through passthrough a writer's object is dirty before the open
//! returns.
//!
//! # The way of a read and of a write
//! A read takes present extents from the object, and the others from the base on a thread that may
//! wait, exactly the bytes asked for. Then the filler runs ahead of a sequential reader, and brings
//! in an extent that random readers miss for the second time. A file whose last extent has arrived
//! loses its map, and the next first open can be passthrough.
//!
//! A write is short where the object is there, so are the extents, and its growth is charged: the
//! header is marked dirty before the first byte changes, the extents are marked, the bytes are
//! written. Else it is `residency/spill.rs` that fetches what is partly covered, makes room, or
//! lets the bytes go to a spill file. Only a cut (a shorter length, a hole) of a file that is in
//! the backing store alone is made in the published file, if neither a tier nor the store has room
//! to note it anywhere else (`writeback/in_place.rs`).
//!
//! # Invariants
//! - Reads and writes of a resident file take no lock that files share and allocate nothing, also
//!   while they are recorded (`hot_path_tests.rs`, `tests/hot_path.rs`).
//! - A full tier is never the writer's problem (`tests/past_the_tier.rs`).
//! - The last close of a writer records what was written, or has a thread that may wait do it; where
//!   that fails it is tried again until it is done (`writeback/upkeep.rs`).

pub(crate) mod forwarded;
pub(crate) mod hints;
pub(crate) mod in_use;
pub(crate) mod io;
pub(crate) mod open;
pub(crate) mod ranges;
pub(crate) mod set_attributes;
pub(crate) mod truncate;
