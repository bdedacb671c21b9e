//! How a process of the same node wakes another one's thread, which then looks for messages: MPI
//! itself can only be polled, and a thread that polls takes a core from the program.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forebay_client::Doorbell;

use crate::mpi::{Handle, Mpi};

/// What one process has in the memory that all of a node share. On a cache line of its own.
#[repr(C, align(64))]
struct ProcessBell {
    /// Messages sent to it by processes of the node.
    announced: AtomicU32,
    /// At which its thread sleeps.
    door: Doorbell,
}

/// The bells of a node.
pub struct Bell {
    bells: *const ProcessBell,
    bytes: usize,
    /// By rank in the world.
    index: HashMap<i32, usize>,
    me: usize,
}

// SAFETY: the bells are shared memory of atomics, and the rest does not change.
unsafe impl Send for Bell {}
// SAFETY: as above.
unsafe impl Sync for Bell {}

const NAME: usize = 64;

impl Bell {
    /// Makes the bells of a node, `members` by their ranks in the world. Collective over the node;
    /// `None` for all of it if one of them can't.
    pub fn make(mpi: &Mpi, node: Handle, members: &[i32], me: usize) -> Option<Self> {
        let bytes = members.len() * size_of::<ProcessBell>();
        let mut name = [0u8; NAME];
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let nanos = time.map_or(0, |time| time.as_nanos());
        let text = format!("/dev/shm/forebay-mpiio-{}-{nanos:x}", std::process::id());
        name[..text.len()].copy_from_slice(text.as_bytes());
        let made = if me == 0 { map(&name, bytes, true) } else { None };
        let name = mpi.share(node, name).ok()?;
        // The first has made it before the others can know its name.
        let bells = if me == 0 { made } else { map(&name, bytes, false) };
        let failed = mpi.largest(node, [i64::from(bells.is_none())]);
        if me == 0 && bells.is_some() {
            let _ = std::fs::remove_file(&text);
        }
        let bell = bells.map(|bells| Self {
            bells,
            bytes,
            index: members.iter().enumerate().map(|(at, rank)| (*rank, at)).collect(),
            me,
        });
        bell.filter(|_| failed == Ok([0]))
    }

    /// Whether a process of this rank is on the node.
    pub fn reaches(&self, rank: i32) -> bool {
        self.index.contains_key(&rank)
    }

    /// How many processes are on the node.
    pub fn reach(&self) -> usize {
        self.index.len()
    }

    fn bell(&self, at: usize) -> &ProcessBell {
        // SAFETY: `at` is below the number of bells that were mapped, which is that of members.
        unsafe { &*self.bells.add(at) }
    }

    /// Says that a message was sent.
    pub fn announce(&self, rank: i32) {
        if let Some(at) = self.index.get(&rank) {
            self.bell(*at).announced.fetch_add(1, Ordering::SeqCst);
            self.bell(*at).door.ring();
        }
    }

    /// Wakes a process for something that is no message.
    pub fn ring(&self, rank: i32) {
        if let Some(at) = self.index.get(&rank) {
            self.bell(*at).door.ring();
        }
    }

    /// Wakes this process's own thread.
    pub fn wake(&self) {
        self.bell(self.me).door.ring();
    }

    /// Messages that were announced to this process.
    pub fn announced(&self) -> u32 {
        self.bell(self.me).announced.load(Ordering::SeqCst)
    }

    /// Sleeps until there is something to do, unless `awake` says that there is already. Only one
    /// thread of a process does so.
    pub fn sleep(&self, most: Duration, awake: impl Fn() -> bool) {
        self.bell(self.me).door.sleep(most, awake);
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        // SAFETY: nobody has a reference to a bell any more.
        unsafe { libc::munmap(self.bells.cast_mut().cast(), self.bytes) };
    }
}

/// Maps the file of this name, zeros to begin with.
fn map(name: &[u8], bytes: usize, make: bool) -> Option<*const ProcessBell> {
    let end = name.iter().position(|byte| *byte == 0)?;
    let name = CString::new(&name[..end]).ok()?;
    let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    let flags = if make { flags | libc::O_CREAT | libc::O_EXCL } else { flags };
    // SAFETY: a name that ends with zero; what is opened is closed, what is mapped is given back.
    unsafe {
        let fd = libc::open(name.as_ptr(), flags, 0o600);
        if fd < 0 {
            return None;
        }
        let length = bytes as libc::off_t;
        let sized = !make || libc::posix_fallocate(fd, 0, length) == 0;
        let all = libc::PROT_READ | libc::PROT_WRITE;
        let at = libc::mmap(std::ptr::null_mut(), bytes, all, libc::MAP_SHARED, fd, 0);
        libc::close(fd);
        (sized && at != libc::MAP_FAILED).then_some(at.cast_const().cast())
    }
}
