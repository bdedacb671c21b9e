//! The cooperative page cache: processes that opened a file together keep its pages in their memory
//! and agree on who has which page.
//!
//! Each process is a [`Process`]: a machine without I/O, clock, threads or randomness. A driver puts
//! [`Event`]s into [`Process::step`] and carries out the [`Action`]s that come out, in their order.
//! The machine never holds bytes: it names slots of the pool, offsets in the caller's buffer and
//! bytes of messages, so that one driver can copy them and another can leave them in shared memory.
//!
//! docs/design/coop.md has the protocol, its invariants and the tests that show them.
//!
//! - [`Options`]: the scheme; [`Options::paper`] is that of Liao, Coloma, Choudhary and Ward.
//! - [`message`]: what goes in, what comes out, what processes say to each other.
//! - [`sizing`]: a page size from the accesses that were seen.
#![forbid(unsafe_code)]

mod ahead;
mod backing;
mod call;
mod death;
pub mod message;
mod options;
mod pool;
mod process;
mod serve;
mod ship;
pub mod sizing;
mod table;

pub use message::{Action, Event, Message};
pub use options::Options;
pub use process::{Counts, Process};
