//! Closes files of a backing store. Where a server keeps them, close(2) waits for it, and may write out what is
//! left to be written: a thread of its own does that, so that nobody who drops a file waits for a server that
//! does not answer.
//!
//! Owns: the files that wait to be closed. It must never know which files these are.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, StatxFlags, statx};

/// So many files may wait. Whoever drops one more closes it.
const MOST: usize = 256;

/// How long to wait for those that are being closed, where that makes a difference.
pub(crate) const A_MOMENT: Duration = Duration::from_secs(1);

static CLOSER: OnceLock<Option<SyncSender<OwnedFd>>> = OnceLock::new();
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Closes a file, later if that may wait for a server.
pub(crate) fn close(file: OwnedFd) {
    if !is_at_a_server(&file) {
        return;
    }
    let Some(closer) = CLOSER.get_or_init(start) else { return };
    WAITING.fetch_add(1, Ordering::AcqRel);
    // A file that is handed back is closed here.
    if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = closer.try_send(file) {
        WAITING.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Waits until no file waits to be closed, but no longer than this.
pub(crate) fn settle(limit: Duration) {
    let until = Instant::now() + limit;
    while WAITING.load(Ordering::Acquire) > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a file lies on no block device of this machine, as all files of servers do, and some others. No
/// server is asked for that.
fn is_at_a_server(file: &OwnedFd) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    statx(file.as_fd(), c"", flags, StatxFlags::empty())
        .map_or(true, |found| found.stx_dev_major == 0)
}

fn start() -> Option<SyncSender<OwnedFd>> {
    let (closer, files) = sync_channel(MOST);
    let thread = std::thread::Builder::new().name("store-close".into());
    thread.spawn(move || close_all(&files)).ok().map(|_| closer)
}

fn close_all(files: &Receiver<OwnedFd>) {
    for file in files {
        drop(file);
        WAITING.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::backing::BackingStore;
    use crate::dir_backing::DirBacking;

    const LINGERS: Duration = Duration::from_secs(20);

    /// A file whose close waits for the other side of a connection, which is returned.
    fn that_waits() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("there");
        let (other, _) = listener.accept().expect("somebody");
        stream.set_nonblocking(true).expect("set");
        while stream.write(&[1; 1 << 16]).is_ok() {}
        stream.set_nonblocking(false).expect("set");
        rustix::net::sockopt::set_socket_linger(&stream, Some(LINGERS)).expect("set");
        (stream.into(), other)
    }

    #[test]
    fn directory_when_it_is_removed_then_files_are_closed_first_but_not_waited_for_without_end() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = DirBacking::open(dir.path(), "n").expect("a store");
        std::fs::create_dir(dir.path().join("dir")).expect("made");
        let (file, other) = that_waits();
        close(file);
        let begun = Instant::now();
        store.rmdir(&store.root(), "dir".as_ref()).expect("removed");
        assert!((A_MOMENT..LINGERS / 2).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        drop(other);
    }

    #[test]
    fn file_when_its_close_waits_for_a_server_then_nobody_else_waits() {
        let (file, mut other) = that_waits();
        let begun = Instant::now();
        close(file);
        settle(Duration::from_millis(300));
        assert!(begun.elapsed() < LINGERS / 2, "{:?}", begun.elapsed());
        assert!(WAITING.load(Ordering::Acquire) > 0, "its close does not wait: no such case");
        // It is closed, after all that it has sent.
        other.read_to_end(&mut Vec::new()).expect("read");
        settle(LINGERS / 2);
        assert_eq!(WAITING.load(Ordering::Acquire), 0);
    }
}
