//! Handles of files that nobody has open any more.
//!
//! A close that the kernel was giving to a ring when its daemon died is lost: nobody waits for it, so
//! it is not repeated, and the file would count as open for as long as it is mounted. So the handles
//! that were taken over are looked after: an inode that the kernel does not know is open nowhere.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use forebay_node::{Node, OpenHandle};
use fusewire::Connection;
use parking_lot::Mutex;

use crate::recovery_journal::RecoveryJournal;

/// Between two rounds at first, and once the first ones are over.
const PAUSE: Duration = Duration::from_secs(1);
const LONG_PAUSE: Duration = Duration::from_secs(30);
const FIRST_ROUNDS: u32 = 30;
/// How many rounds in succession must find an inode unknown: somebody who is just being told of a new
/// file holds it before the kernel knows it.
const MISSES: u32 = 3;
/// Inodes in one message to the kernel.
const BATCH: usize = 256;

/// The handles that were taken over and not used to close a file since.
#[derive(Default)]
pub struct Orphans(Mutex<State>);

#[derive(Default)]
struct State {
    suspects: HashMap<u64, Suspect>,
    /// The node is at rest: nothing may be closed.
    paused: bool,
}

struct Suspect {
    /// The number under which the kernel knows the inode.
    ino: u64,
    misses: u32,
}

impl Orphans {
    /// Looks after these, too.
    pub fn suspect(&self, handles: &[OpenHandle]) {
        let suspects = handles.iter().map(|handle| {
            let ino = forebay_node::node_id(forebay_node::Ino(handle.ino), handle.alias());
            (handle.fh, Suspect { ino, misses: 0 })
        });
        self.0.lock().suspects.extend(suspects);
    }

    /// A request that comes again is being answered with this handle.
    pub fn claim(&self, fh: u64) {
        self.0.lock().suspects.remove(&fh);
    }

    /// Has nothing closed from now on, or no longer so.
    pub fn pause(&self, paused: bool) {
        self.0.lock().paused = paused;
    }

    fn inodes(&self) -> HashSet<u64> {
        self.0.lock().suspects.values().map(|suspect| suspect.ino).collect()
    }

    /// One round: closes by `close` the handles of inodes that were unknown long enough.
    fn round(&self, unknown: &HashSet<u64>, is_open: impl Fn(u64) -> bool, close: impl Fn(u64)) {
        let mut state = self.0.lock();
        if state.paused {
            return;
        }
        state.suspects.retain(|&fh, suspect| {
            if !is_open(fh) {
                return false;
            }
            suspect.misses = if unknown.contains(&suspect.ino) { suspect.misses + 1 } else { 0 };
            if suspect.misses >= MISSES {
                tracing::info!(ino = suspect.ino, fh, "closed a file whose close was lost");
                close(fh);
            }
            suspect.misses < MISSES
        });
    }
}

/// Starts the thread that looks after the handles; it ends when there are none left, or with the mount.
pub fn look_after(
    orphans: &Arc<Orphans>,
    node: &Arc<Node>,
    journal: Option<Arc<RecoveryJournal>>,
    connection: Connection,
) -> io::Result<()> {
    let (orphans, node) = (Arc::clone(orphans), Arc::downgrade(node));
    let body = move || {
        for round in 0_u32.. {
            thread::sleep(if round < FIRST_ROUNDS { PAUSE } else { LONG_PAUSE });
            let inodes = orphans.inodes();
            if inodes.is_empty() || connection.has_ended() {
                return;
            }
            // What is served only now may be about to give handles out.
            if !connection.is_caught_up() {
                continue;
            }
            let unknown = unknown_of(&connection, &inodes);
            let Some(node) = Weak::upgrade(&node) else { return };
            let close = |fh| {
                node.release(fh);
                if let Some(journal) = &journal {
                    journal.note_closed(fh);
                }
            };
            orphans.round(&unknown, |fh| node.open_handle(fh).is_some(), close);
        }
    };
    thread::Builder::new().name("fuse-orphans".into()).spawn(body).map(drop)
}

/// Those that the kernel does not know, after it has dropped those that nobody uses.
fn unknown_of(connection: &Connection, inodes: &HashSet<u64>) -> HashSet<u64> {
    let all: Vec<u64> = inodes.iter().copied().collect();
    for some in all.chunks(BATCH) {
        // Kernels before 6.18 refuse; there, files are found when memory is short.
        let _ = connection.notify_prune(some);
    }
    let unknown = |ino: &u64| {
        let told = connection.notify_inval_inode(*ino, -1, 0);
        told.is_err_and(|error| error.raw_os_error() == Some(libc::ENOENT))
    };
    all.into_iter().filter(unknown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(fh: u64, ino: u64) -> OpenHandle {
        OpenHandle { fh, ino, ..OpenHandle::default() }
    }

    fn round(orphans: &Orphans, unknown: &[u64]) -> Vec<u64> {
        let closed = Mutex::new(Vec::new());
        let unknown = unknown.iter().copied().collect();
        orphans.round(&unknown, |fh| fh != 99, |fh| closed.lock().push(fh));
        let mut closed = closed.into_inner();
        closed.sort_unstable();
        closed
    }

    #[test]
    fn handles_when_the_kernel_does_not_know_their_inode_for_long_then_closed_once() {
        let orphans = Orphans::default();
        orphans.suspect(&[handle(1, 10), handle(2, 10), handle(3, 11), handle(4, 12)]);
        assert!(round(&orphans, &[10, 12]).is_empty());
        assert!(round(&orphans, &[10]).is_empty(), "12 was there");
        assert_eq!(round(&orphans, &[10, 12]), [1, 2]);
        assert!(round(&orphans, &[10, 12]).is_empty());
        assert_eq!(round(&orphans, &[12]), [4]);
        assert_eq!(orphans.inodes(), HashSet::from([11]));
    }

    #[test]
    fn handles_when_claimed_closed_or_at_rest_then_left_alone() {
        let orphans = Orphans::default();
        orphans.suspect(&[handle(1, 10), handle(2, 10), handle(99, 10)]);
        orphans.claim(1);
        round(&orphans, &[10]);
        round(&orphans, &[10]);
        orphans.pause(true);
        assert!(round(&orphans, &[10]).is_empty());
        orphans.pause(false);
        assert_eq!(round(&orphans, &[10]), [2]);
        assert!(orphans.inodes().is_empty());
    }
}
