//! The FUSE front: requests of the kernel to the node, and its errors to errno.
//!
//! [`mount()`] serves a [`forebay_node::Node`] on a mount point. A reader thread decodes a request,
//! asks the node, and answers. A request that has to wait goes on in the node's slow pool, where it
//! stands (`fiber.rs`), and is watched there: whatever the backing store does, every request is
//! answered in time.
//!
//! # Invariants
//! - A thread that reads requests never waits for a slow device. A request that has to wait is not
//!   begun anew, each of its steps is taken once, and it holds no lock while it waits for a thread
//!   (`tests/waits.rs`).
//! - Every request is answered in time, also if the backing store hangs or the client is killed
//!   (`tests/mount.rs`).
//! - What a request has not done when it is given up it never does (`tests/waits.rs`,
//!   `crates/node/tests/late_requests.rs`).
//! - The kernel sends no request that could be spared (`tests/mount.rs`).
//! - Every failure has one errno, in one table (`errno.rs`).

mod answer;
mod dataset;
mod deferred;
mod errno;
mod fiber;
mod front;
mod hand_over;
mod in_request;
mod kernel;
mod listings;
mod lock_notes;
mod locks;
mod mount;
mod names;
mod orphans;
mod recovery_journal;
mod replayed_requests;
mod reply_builder;
mod request_log;
mod serve;
mod turn;
mod under_way;
mod wire;

pub use deferred::Stuck;
pub use errno::errno;
pub use fusewire::Transport;
pub use hand_over::{STATE_VERSION, State, StateError};
pub use in_request::{die_of_panics, note_panic};
pub use kernel::send_notices_by;
pub use listings::Held;
pub use mount::{Keeper, MountOptions, Mounted, Takeover, adopt, mount};
pub use names::operation_name;
pub use recovery_journal::{Before, Call, RecoveryJournal};
