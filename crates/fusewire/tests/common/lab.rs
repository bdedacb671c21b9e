//! The ramfs with some names that behave in special ways, mounted, and taken away whatever
//! happens.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fusewire::{
    Attr, Connection, Entry, Handler, Mount, Opened, Operation, Options, Reply, Request, Running,
    Session,
};
use parking_lot::Mutex;

use crate::ramfs::Ramfs;

/// Node of the file named "backed".
const BACKED: u64 = 1 << 40;
const LIMIT: Duration = Duration::from_secs(45);

#[derive(Default)]
pub struct Lab {
    ram: Ramfs,
    /// What "backed" passes through to, and its id.
    pub backing: Mutex<Option<(File, u32)>>,
    pub lookups: AtomicU64,
    pub reads: AtomicU64,
    pub interrupts: AtomicU64,
    pub destroyed: AtomicU64,
    /// Requests are read and then forgotten, as by a process that dies.
    pub swallow: AtomicBool,
    pub swallowed: AtomicU64,
    pub resent: AtomicU64,
    /// What NOTIFY_RETRIEVE brought.
    pub retrieved: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl Lab {
    fn special(&self, request: Request, reply: Reply) -> Option<(Request, Reply)> {
        let node = request.header().node;
        match request.operation() {
            Ok(Operation::Lookup { name: b"stuck" }) => {
                std::thread::spawn(move || {
                    let start = Instant::now();
                    while !request.interrupted() && start.elapsed() < Duration::from_secs(20) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    reply.error(libc::EINTR);
                });
            }
            Ok(Operation::Lookup { name }) if name.starts_with(b"slow") => {
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(500));
                    drop(request);
                    reply.error(libc::ENOENT);
                });
            }
            Ok(Operation::Lookup { name: b"oversized" }) => reply.data(&[0; 5000]),
            Ok(Operation::Lookup { name: b"dropped" }) => drop(reply),
            Ok(Operation::Lookup { name: b"panics" }) => panic!("expected by the test"),
            Ok(Operation::Lookup { name: b"backed" }) => match self.backed_attr() {
                Some(attr) => reply.entry(&Entry { node: BACKED, attr, ..Entry::default() }),
                None => reply.error(libc::ENOENT),
            },
            Ok(Operation::Getattr { .. }) if node == BACKED => match self.backed_attr() {
                Some(attr) => reply.attr(&attr, Duration::ZERO),
                None => reply.error(libc::ESTALE),
            },
            Ok(Operation::Open { .. }) if node == BACKED => {
                let backing_id = self.backing.lock().as_ref().map(|backing| backing.1);
                reply.open(&Opened { backing_id, ..Opened::default() });
            }
            Ok(_) if node == BACKED => reply.ok(),
            Ok(Operation::NotifyReply { data, .. }) => {
                self.retrieved.lock().push((request.header().unique, data.to_vec()));
            }
            _ => return Some((request, reply)),
        }
        None
    }

    fn backed_attr(&self) -> Option<Attr> {
        let metadata = self.backing.lock().as_ref()?.0.metadata().ok()?;
        let (ino, size, mode) = (metadata.ino(), metadata.size(), metadata.mode());
        Some(Attr { ino, size, mode, nlink: 1, ..Attr::default() })
    }
}

impl Handler for Lab {
    fn init(&self, connection: &Connection) {
        if let Some((file, id)) = &mut *self.backing.lock() {
            *id = connection.backing_open(file.as_fd()).unwrap_or(0);
        }
    }
    fn handle(&self, request: Request, reply: Reply) {
        match request.operation() {
            Ok(Operation::Lookup { .. }) => self.lookups.fetch_add(1, Ordering::SeqCst),
            Ok(Operation::Read { .. }) => self.reads.fetch_add(1, Ordering::SeqCst),
            _ => 0,
        };
        if self.swallow.load(Ordering::SeqCst) {
            std::mem::forget(reply);
            self.swallowed.fetch_add(1, Ordering::SeqCst);
            return;
        }
        self.resent.fetch_add(u64::from(request.is_resent()), Ordering::SeqCst);
        if let Some((request, reply)) = self.special(request, reply) {
            self.ram.handle(request, reply);
        }
    }
    fn forget(&self, node: u64, lookups: u64) {
        self.ram.forget(node, lookups);
    }
    fn interrupt(&self, _unique: u64) {
        self.interrupts.fetch_add(1, Ordering::SeqCst);
    }
    fn destroy(&self) {
        self.destroyed.fetch_add(1, Ordering::SeqCst);
    }
}

/// A mounted lab. Dropped, it is unmounted; after [`LIMIT`] a watchdog aborts it, so that no test
/// hangs and no mount stays.
pub struct Served {
    pub running: Option<Running>,
    pub lab: Arc<Lab>,
    done: Arc<AtomicBool>,
    directory: tempfile::TempDir,
}

impl Served {
    /// `None`, with the reason printed, where there is no FUSE at all.
    pub fn start(options: &Options, lab: Lab) -> Option<Self> {
        if !Path::new("/dev/fuse").exists() {
            println!("skipped: there is no /dev/fuse");
            return None;
        }
        let directory = tempfile::tempdir().expect("mount point");
        let mount = Mount::new(directory.path(), options).expect("mounts");
        let lab = Arc::new(lab);
        let session = Session::new(mount, options, Arc::clone(&lab)).expect("negotiates");
        let running = session.spawn().expect("readers start");
        let done = Arc::new(AtomicBool::new(false));
        watch(directory.path().to_owned(), Arc::clone(&done));
        Some(Self { running: Some(running), lab, done, directory })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn running(&self) -> &Running {
        self.running.as_ref().expect("running")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.running.take());
        self.done.store(true, Ordering::SeqCst);
    }
}

fn watch(path: PathBuf, done: Arc<AtomicBool>) {
    let device = path.metadata().expect("mounted").dev();
    std::thread::spawn(move || {
        let start = Instant::now();
        while !done.load(Ordering::SeqCst) {
            if start.elapsed() > LIMIT {
                eprintln!("aborting the mount: the test took longer than {LIMIT:?}");
                let minor = libc::minor(device);
                let _ = std::fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1");
                let _ = std::process::Command::new("fusermount3").arg("-uz").arg(&path).status();
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    });
}
