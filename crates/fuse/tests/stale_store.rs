//! A backing store on a file system that remembers attributes, as those of networks do: what it remembers
//! does not count right before a removal or a replacement.

use std::ffi::OsStr;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_store::backing::{BackingStore, DirBacking, Known, Removed, RenameMode};
use fusewire::{
    Attr, Entry, Handler, Mount, Operation, Options, Reply, Request, Session, Timestamp, Transport,
};

/// How long the kernel believes what it was told.
const VALID: Duration = Duration::from_secs(3600);

/// A directory with the files `f` and `ours`. Others change `f`, of which the kernel hears nothing.
#[derive(Default)]
struct Remembered {
    changed: AtomicBool,
    deeds: AtomicU64,
}

impl Remembered {
    fn attr(&self, node: u64) -> Attr {
        let usual = Attr { ino: node, nlink: 1, mode: 0o100_644, size: 5, ..Attr::default() };
        match node {
            1 => Attr { mode: 0o40755, nlink: 2, ..usual },
            2 if self.changed.load(Ordering::SeqCst) => {
                Attr { size: 9, mtime: Timestamp::new(77, 0), ..usual }
            }
            _ => usual,
        }
    }
}

impl Handler for Remembered {
    fn handle(&self, request: Request, reply: Reply) {
        let node = request.header().node;
        match request.operation() {
            Ok(Operation::Getattr { .. }) => reply.attr(&self.attr(node), VALID),
            Ok(Operation::Lookup { name }) => {
                let node = match name {
                    b"f" => 2,
                    b"ours" => 3,
                    _ => return reply.error(libc::ENOENT),
                };
                let attr = self.attr(node);
                let (entry_valid, attr_valid) = (VALID, VALID);
                reply.entry(&Entry { node, generation: 0, attr, entry_valid, attr_valid });
            }
            // It can't exchange two files.
            Ok(Operation::Rename { flags, .. }) if flags != 0 => reply.error(libc::EINVAL),
            Ok(Operation::Unlink { .. } | Operation::Rename { .. }) => {
                self.deeds.fetch_add(1, Ordering::SeqCst);
                reply.ok();
            }
            _ => reply.error(libc::ENOSYS),
        }
    }

    fn forget(&self, _node: u64, _lookups: u64) {}
}

#[test]
fn file_when_others_changed_it_and_the_system_remembers_it_then_neither_removed_nor_replaced() {
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        eprintln!("skipped: /dev/fuse: {error}");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options { transport: Transport::Classic, ..Options::default() };
    let mount = Mount::new(dir.path(), &options).expect("mounted");
    let handler = Arc::new(Remembered::default());
    let running = Session::new(mount, &options, Arc::clone(&handler)).expect("negotiated");
    let running = running.spawn().expect("served");
    let store = DirBacking::open(dir.path(), "n").expect("opened");
    let (root, f, ours) = (store.root(), OsStr::new("f"), OsStr::new("ours"));
    let known = store.stat(&root, f).expect("there").fingerprint();
    handler.changed.store(true, Ordering::SeqCst);
    assert_eq!(store.stat(&root, f).expect("there").fingerprint(), known, "nothing is remembered");
    let removed = store.unlink_known(&root, f, &Known::Version(known)).expect("looked");
    assert_eq!(removed, Removed::Other);
    store.rename(&root, ours, &root, f, RenameMode::ReplaceVersion(known)).expect_err("replaced");
    assert_eq!(handler.deeds.load(Ordering::SeqCst), 0);
    // A handle in it keeps the mount.
    drop((root, store));
    running.unmount(true).expect("unmounted");
    running.join().expect("ended");
}
