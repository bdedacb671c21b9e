//! Tasks that can go on elsewhere: a process tree in namespaces of its own, which CRIU writes down
//! here and brings to life there.
//!
//! - [`init`], [`launch`]: the first process of such a tree, and its namespaces.
//! - [`mounts`]: what of the machine's mounts a tree has a copy of.
//! - [`tree`]: what the kernel says of a tree; [`refuse`]: what of that can't be migrated.
//! - [`targets`]: where a tree may go. [`criu`]: CRIU's commands. [`images`]: where what it writes lies. [`plan`]: where that is, and
//!   whether pages are copied ahead.
//! - [`body`]: a task wherever it is. [`task`]: a tree on this machine: started, frozen, thawed, ended, restored.
//! - [`keeper`]: the process `forebay run-task`, which has a task wherever it is. [`source`]: the half of a
//!   migration that happens where the task is.
//! - [`protocol`]: how `forebay migrate` finds and asks it.
//! - Tasks on other nodes: [`hosts`] has a daemon start the process `forebay host-task` ([`host`]), which
//!   has the task there; [`remote`] is the keeper's view of it. [`channel`] is what the two say to each
//!   other, [`transfer`] an image on its way.
//!
//! - [`auto`]: migrations that nobody asks for.
//! - Tasks that save their state themselves: [`coop`] has those who have registered, [`restart`] is their
//!   migration.
//!
//! A migration never has two copies of a task run. The one at the source is stopped before its image is
//! complete; the one at the target is restored stopped, and goes on only from there on, while the source
//! goes on no more and is killed: on this machine before the other goes on, with another node when that one
//! was told to. Whatever fails before has the source go on.

pub mod auto;
pub mod body;
pub mod channel;
pub mod coop;
pub mod criu;
pub mod host;
pub mod hosts;
pub mod images;
pub mod init;
pub mod keeper;
pub mod launch;
pub mod mounts;
pub mod plan;
pub mod protocol;
pub mod refuse;
pub mod remote;
pub mod restart;
pub mod source;
pub mod targets;
pub mod task;
pub mod transfer;
pub mod tree;
