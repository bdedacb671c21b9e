//! What the node asks of the kernel.
//!
//! A registration for passthrough is a plain system call. A notification is not: it takes locks
//! in the kernel that a client may hold whose request waits for one of our threads. So all of them
//! are sent by a thread of their own, through a process of their own ([`send_notices_by`]).

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use forebay_node::metrics::RefusalReason;
use forebay_node::{Fact, Kernel, LockOwner, NodeConfig, Passthrough, RemovedInode};
use fusewire::{Connection, Features};
use parking_lot::Mutex;
use rustix::thread::CapabilitySet;

use crate::recovery_journal::RecoveryJournal;

/// Starts a process that sends notices by a connection; where they are to be sent to.
type StartCourier = Box<dyn Fn(BorrowedFd<'_>) -> io::Result<OwnedFd> + Send + Sync>;

/// How one is started for the mount of this process.
static COURIER: OnceLock<StartCourier> = OnceLock::new();

/// Has notices sent by a process that `start` makes for a connection: one that waits in the kernel can't
/// be ended, and a process of which a thread waits so does not end either. It answers each message with
/// an errno. Without it, and once it is gone, a thread of this process sends them.
pub fn send_notices_by(start: StartCourier) {
    // A daemon that takes a mount back which it has given away starts it as before.
    drop(COURIER.set(start));
}

/// Notifications that may wait to be sent.
const QUEUE: usize = 16 << 10;

/// Inodes with old pages that are remembered. Beyond that, pages go when their inode's attributes show a
/// change.
const MAX_OLD: usize = 256 << 10;

enum Notice {
    /// An inode, and when its pages became old.
    Inode(u64, u64),
    Attributes(u64),
    Entry(u64, Box<[u8]>),
    /// Facts that the kernel may keep no longer, and who is to know when it has been told.
    Expire(Vec<Fact>, Box<dyn FnOnce() + Send>),
}

/// Inodes of which the kernel may have pages of a former version: until it has dropped them, no open may
/// have it keep what it has.
#[derive(Default)]
struct OldPages {
    /// How many there are, for those who open files: mostly there are none.
    count: AtomicUsize,
    /// The number of the latest time at which those of each became old, and of the last of all.
    since: Mutex<(HashMap<u64, u64>, u64)>,
}

impl OldPages {
    /// The pages of an inode are old from now on.
    fn begin(&self, ino: u64) -> u64 {
        let mut since = self.since.lock();
        since.1 += 1;
        let now = since.1;
        if since.0.len() < MAX_OLD || since.0.contains_key(&ino) {
            since.0.insert(ino, now);
        }
        self.count.store(since.0.len(), Ordering::Release);
        now
    }

    /// The kernel has dropped what it had of an inode, after this time.
    fn end(&self, ino: u64, then: u64) {
        let mut since = self.since.lock();
        if since.0.get(&ino) == Some(&then) {
            since.0.remove(&ino);
        }
        self.count.store(since.0.len(), Ordering::Release);
    }

    fn has(&self, ino: u64) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.since.lock().0.contains_key(&ino)
    }
}

/// The kernel as the node sees it.
pub struct Notifier {
    connection: Connection,
    /// Why no file can be registered; `None` while one can.
    refusal: Mutex<Option<RefusalReason>>,
    passthrough: AtomicBool,
    notices: SyncSender<Notice>,
    journal: Option<Arc<RecoveryJournal>>,
    unsent: Arc<AtomicUsize>,
    overflowed: Arc<AtomicBool>,
    old_pages: Arc<OldPages>,
}

impl Notifier {
    /// Starts the thread; it ends with the notifier or the mount.
    pub fn new(
        connection: Connection,
        config: &NodeConfig,
        journal: Option<Arc<RecoveryJournal>>,
    ) -> io::Result<Self> {
        let negotiated = connection.negotiated().features.contains(Features::PASSTHROUGH);
        let refusal = if config.passthrough == Passthrough::Off {
            Some(RefusalReason::Off)
        } else if !negotiated {
            Some(RefusalReason::NoKernel)
        } else if !has_privilege() {
            Some(RefusalReason::NoPrivilege)
        } else {
            None
        };
        let passthrough = AtomicBool::new(refusal.is_none());
        let (notices, queue) = sync_channel(QUEUE);
        let overflowed = Arc::new(AtomicBool::new(false));
        let unsent = Arc::new(AtomicUsize::new(0));
        let old_pages = Arc::<OldPages>::default();
        let courier = COURIER.get().map(|start| start(connection.as_fd())).transpose();
        let courier = courier.unwrap_or_else(|error| {
            tracing::warn!(
                %error,
                "no process for notifications: if this daemon is killed while it sends one, no other \
                 can take its place"
            );
            None
        });
        let sender = Sender {
            connection: match courier {
                Some(courier) => connection.by_courier(courier),
                None => connection.clone(),
            },
            unsent: unsent.clone(),
            overflowed: overflowed.clone(),
            old_pages: old_pages.clone(),
        };
        thread::Builder::new().name("fuse-notify".into()).spawn(move || sender.run(&queue))?;
        let refusal = Mutex::new(refusal);
        Ok(Notifier {
            connection,
            refusal,
            passthrough,
            notices,
            journal,
            unsent,
            overflowed,
            old_pages,
        })
    }

    /// How many notices were not sent yet.
    pub fn unsent(&self) -> usize {
        self.unsent.load(Ordering::Acquire)
    }

    fn post(&self, notice: Notice) {
        self.unsent.fetch_add(1, Ordering::AcqRel);
        if self.notices.try_send(notice).is_err() {
            self.unsent.fetch_sub(1, Ordering::AcqRel);
            self.overflowed.store(true, Ordering::Release);
        }
    }
}

impl Kernel for Notifier {
    fn passthrough(&self) -> bool {
        self.passthrough.load(Ordering::Relaxed)
    }

    fn refusal(&self) -> RefusalReason {
        self.refusal.lock().unwrap_or(RefusalReason::NoKernel)
    }

    fn register(&self, fd: BorrowedFd<'_>) -> io::Result<u32> {
        let registered = self.connection.backing_open(fd);
        // The capability was there, but not where the kernel looks for it: in a container.
        if registered.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EPERM)) {
            *self.refusal.lock() = Some(RefusalReason::NoPrivilege);
            self.passthrough.store(false, Ordering::Relaxed);
        }
        registered
    }

    fn unregister(&self, id: u32) {
        if let Err(error) = self.connection.backing_close(id)
            && !self.connection.has_ended()
        {
            tracing::warn!(id, %error, "a passthrough registration could not be given back");
        }
    }

    fn forget_inode(&self, ino: u64) {
        let since = self.old_pages.begin(ino);
        self.post(Notice::Inode(ino, since));
    }

    fn pages_become_old(&self, ino: u64) {
        self.old_pages.begin(ino);
    }

    fn has_old_pages(&self, ino: u64) -> bool {
        self.old_pages.has(ino)
    }

    fn forget_attributes(&self, ino: u64) {
        self.post(Notice::Attributes(ino));
    }

    fn note_lock_owner(&self, owner: &LockOwner) -> bool {
        self.journal.as_ref().is_none_or(|journal| journal.note_lock_owner(owner))
    }

    fn forget_lock_owner(&self, owner: &LockOwner) {
        if let Some(journal) = &self.journal {
            journal.forget_lock_owner(owner);
        }
    }

    fn note_removed(&self, removed_inodes: &RemovedInode) {
        if let Some(journal) = &self.journal {
            journal.note_removed(removed_inodes);
        }
    }

    fn forget_entry(&self, parent: u64, name: &[u8]) {
        self.post(Notice::Entry(parent, name.into()));
    }

    fn expire(&self, facts: Vec<Fact>, done: Box<dyn FnOnce() + Send>) {
        match self.connection.has_ended() {
            true => done(),
            false => self.post(Notice::Expire(facts, done)),
        }
    }

    fn expire_at_once(&self, facts: &[Fact]) -> bool {
        if self.connection.has_ended() {
            return true;
        }
        for fact in facts {
            if let Fact::Attributes(node) = fact {
                told(self.connection.notify_inval_inode(*node, -1, 0));
            }
        }
        let names = facts.iter().any(|fact| !matches!(fact, Fact::Attributes(_)));
        !names || self.connection.notify_inc_epoch().is_ok()
    }
}

/// Whether this process has the capability that registrations need.
fn has_privilege() -> bool {
    rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Whether what the kernel was told was of use to it makes no difference.
fn told(sent: io::Result<()>) {
    match sent.map_err(|error| error.raw_os_error()) {
        // Not known to the kernel: nothing to forget.
        Ok(()) | Err(Some(libc::ENOENT | libc::ENOTDIR)) => {}
        Err(errno) => tracing::debug!(?errno, "the kernel did not take an invalidation"),
    }
}

struct Sender {
    connection: Connection,
    unsent: Arc<AtomicUsize>,
    overflowed: Arc<AtomicBool>,
    old_pages: Arc<OldPages>,
}

impl Sender {
    fn run(&self, queue: &Receiver<Notice>) {
        loop {
            match queue.recv_timeout(Duration::from_secs(1)) {
                Ok(notice) => {
                    self.send(notice);
                    self.unsent.fetch_sub(1, Ordering::AcqRel);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.connection.has_ended() {
                return;
            }
            if self.overflowed.swap(false, Ordering::AcqRel) {
                self.forget_all();
            }
        }
    }

    fn send(&self, notice: Notice) {
        match notice {
            Notice::Inode(ino, since) => {
                told(self.connection.notify_inval_inode(ino, 0, 0));
                self.old_pages.end(ino, since);
            }
            Notice::Attributes(ino) => told(self.connection.notify_inval_inode(ino, -1, 0)),
            Notice::Entry(parent, name) => {
                told(self.connection.notify_inval_entry(parent, &name, false));
            }
            Notice::Expire(facts, done) => {
                for fact in facts {
                    self.expire(&fact);
                }
                done();
            }
        }
    }

    fn expire(&self, fact: &Fact) {
        match fact {
            Fact::Attributes(node) => told(self.connection.notify_inval_inode(*node, -1, 0)),
            Fact::Name(parent, name) => {
                told(self.connection.notify_inval_entry(*parent, name, false));
            }
            Fact::Directory(parent, name) => {
                told(self.connection.notify_inval_entry(*parent, name, true));
            }
        }
    }

    /// More was to be forgotten than the queue holds. All names are looked up again, which brings
    /// new attributes; pages go when these show a change.
    fn forget_all(&self) {
        if let Err(error) = self.connection.notify_inc_epoch() {
            tracing::warn!(
                %error,
                "too many changes at once: names that are cached may be old until they time out"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fusewire::{Negotiated, Options, Parts, Session};
    use std::os::unix::net::UnixDatagram;

    /// Serves nobody.
    struct Nobody;

    impl fusewire::Handler for Nobody {
        fn handle(&self, _request: fusewire::Request, _reply: fusewire::Reply) {}

        fn forget(&self, _node: u64, _lookups: u64) {}
    }

    /// The kernel's end of a device, and a notifier at the other one.
    fn device() -> (UnixDatagram, Session<Nobody>, Notifier) {
        let (kernel, device) = UnixDatagram::pair().unwrap();
        kernel.set_nonblocking(true).unwrap();
        let negotiated = Negotiated {
            minor: 45,
            kernel_minor: 45,
            features: Features::NONE,
            offered: Features::NONE,
            max_write: 1 << 20,
            max_pages: 256,
            max_readahead: 1 << 17,
        };
        let parts = Parts { device: device.into(), negotiated, mountpoint: None, rings: None };
        let session = Session::from_parts(parts, &Options::default(), Arc::new(Nobody)).unwrap();
        let config = NodeConfig::new("/nowhere".into(), Vec::new());
        let notifier = Notifier::new(session.connection().clone(), &config, None).unwrap();
        (kernel, session, notifier)
    }

    /// What the kernel was told by now: codes, and the inode of each that has one.
    fn told(kernel: &UnixDatagram) -> Vec<(u32, Option<u64>)> {
        let mut found = Vec::new();
        let mut bytes = [0; 256];
        while let Ok(len) = kernel.recv(&mut bytes) {
            let code = u32::from_ne_bytes(bytes[4..8].try_into().unwrap());
            let node = (len >= 24).then(|| u64::from_ne_bytes(bytes[16..24].try_into().unwrap()));
            found.push((code, node));
        }
        found
    }

    const INVAL_INODE: u32 = 2;
    const INC_EPOCH: u32 = 8;

    #[test]
    fn names_when_they_expire_at_once_then_the_kernel_was_told_of_an_epoch_when_it_returns() {
        let (kernel, _session, notifier) = device();
        let name = Fact::Name(1, (*b"name").into());
        let directory = Fact::Directory(1, (*b"dir").into());
        assert!(notifier.expire_at_once(&[Fact::Attributes(7), name, directory.clone()]));
        // One for all names: to name them would wait for whoever holds their directory's lock.
        assert_eq!(told(&kernel), [(INVAL_INODE, Some(7)), (INC_EPOCH, None)]);
        assert!(notifier.expire_at_once(&[directory]));
        assert_eq!(told(&kernel), [(INC_EPOCH, None)]);
        assert!(notifier.expire_at_once(&[Fact::Attributes(8)]));
        assert_eq!(told(&kernel), [(INVAL_INODE, Some(8))], "no name was to be forgotten");
    }

    #[test]
    fn pages_of_a_former_version_when_the_kernel_was_told_then_count_as_dropped_and_not_before() {
        let (kernel, _session, notifier) = device();
        assert!(!notifier.has_old_pages(7));
        notifier.pages_become_old(7);
        std::thread::sleep(Duration::from_millis(20));
        assert!(notifier.has_old_pages(7) && !notifier.has_old_pages(8));
        notifier.forget_inode(7);
        while notifier.unsent() > 0 {
            std::thread::yield_now();
        }
        assert_eq!(told(&kernel), [(INVAL_INODE, Some(7))]);
        assert!(!notifier.has_old_pages(7));
        // Told of what was before, while they became old once more.
        let earlier = notifier.old_pages.begin(7);
        notifier.pages_become_old(7);
        notifier.old_pages.end(7, earlier);
        assert!(notifier.has_old_pages(7));
    }

    #[test]
    fn names_when_the_kernel_takes_no_epoch_then_they_do_not_count_as_forgotten() {
        let (kernel, _session, notifier) = device();
        drop(kernel);
        assert!(!notifier.expire_at_once(&[Fact::Name(1, (*b"name").into())]));
        assert!(notifier.expire_at_once(&[Fact::Attributes(7)]), "it does not know the inode");
    }
}
