//! What the daemon does for programs that know it: memory in common for processes of this node that
//! have a file of the mount open. docs/design/client.md says who is believed; the other side is
//! `forebay-client`.

mod groups;
mod proof;
mod server;

pub use groups::Bounds;
pub use server::Clients;
