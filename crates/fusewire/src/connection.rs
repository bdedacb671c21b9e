//! The live connection to the kernel: replies, notifications, backing files.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustix::net::{RecvFlags, SendFlags};

use crate::abi::{self, Wire, notify};
use crate::buffer::{Buffer, PAGE, Pool};
use crate::flags::Features;
use crate::inflight::InFlight;
use crate::negotiate::Negotiated;

/// Bytes of a request that are copied to a small buffer, so that the reader keeps its large one.
pub(crate) const SMALL: usize = 4096;
/// Room for headers and arguments beyond `max_write`.
pub(crate) const HEADROOM: usize = 8192;
/// Where in a block a request is read to: the data of a WRITE then begin on a page boundary.
pub(crate) const REQUEST_START: usize =
    PAGE - size_of::<abi::InHeader>() - size_of::<abi::WriteIn>();

/// A handle on the live connection; cheap to clone, usable from any thread.
#[derive(Clone)]
pub struct Connection(Arc<Inner>, Option<Arc<Courier>>);

/// Another process that writes notifications to the device.
struct Courier {
    /// Takes a message, answers with an errno.
    socket: Mutex<OwnedFd>,
    gone: AtomicBool,
}

impl Courier {
    /// What became of a message; `None` if there is nobody who would send it.
    fn send(&self, message: &[u8]) -> Option<io::Result<()>> {
        if self.gone.load(Ordering::Acquire) {
            return None;
        }
        let socket = self.socket.lock();
        let mut errno = [0; 4];
        let sent = rustix::net::send(&*socket, message, SendFlags::NOSIGNAL);
        let answered = sent.and_then(|_| {
            loop {
                match rustix::net::recv(&*socket, &mut errno, RecvFlags::empty()) {
                    Err(rustix::io::Errno::INTR) => {}
                    other => break other,
                }
            }
        });
        match answered {
            Ok((4, _)) => match i32::from_ne_bytes(errno) {
                0 => Some(Ok(())),
                errno => Some(Err(io::Error::from_raw_os_error(errno))),
            },
            _ => {
                self.gone.store(true, Ordering::Release);
                None
            }
        }
    }
}

struct Inner {
    device: OwnedFd,
    negotiated: Negotiated,
    /// The same without io_uring, which counts once the kernel has refused the rings.
    on_device: Negotiated,
    fallen_back: AtomicBool,
    in_flight: InFlight,
    small: Arc<Pool>,
    large: Arc<Pool>,
    ended: AtomicBool,
    /// Threads that have not come to the end of what another process was serving when it died.
    behind: AtomicUsize,
}

impl Connection {
    pub(crate) fn new(device: OwnedFd, negotiated: Negotiated, retain: usize) -> Self {
        let large = Pool::new(PAGE, negotiated.max_write as usize + HEADROOM, retain);
        let inner = Arc::new(Inner {
            device,
            in_flight: InFlight::default(),
            small: Pool::new(0, SMALL, 1024),
            large,
            on_device: Negotiated {
                features: negotiated.features.without(Features::OVER_IO_URING),
                ..negotiated
            },
            negotiated,
            fallen_back: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            behind: AtomicUsize::new(0),
        });
        Self(inner, None)
    }

    /// The same connection, whose notifications are written to the device by another process: each goes
    /// to `socket` (of the kind that keeps messages apart), which answers with an errno in 4 bytes, 0 for
    /// success. A thread that waits in the kernel for a lock can't be ended, and keeps its process from
    /// ending. Once nobody is at the other end they are written here.
    #[must_use]
    pub fn by_courier(&self, socket: OwnedFd) -> Self {
        let courier = Courier { socket: Mutex::new(socket), gone: AtomicBool::new(false) };
        Self(self.0.clone(), Some(Arc::new(courier)))
    }

    /// What was agreed at INIT; without io_uring if the kernel refused the rings after that.
    pub fn negotiated(&self) -> &Negotiated {
        match self.0.fallen_back.load(Ordering::Acquire) {
            false => &self.0.negotiated,
            true => &self.0.on_device,
        }
    }

    /// Requests come by the device after all.
    pub(crate) fn fall_back(&self) {
        self.0.fallen_back.store(true, Ordering::Release);
    }

    /// Requests read and not yet answered.
    pub fn in_flight(&self) -> usize {
        self.0.in_flight.len()
    }

    /// Whether the file system is gone: unmounted, or the connection aborted.
    pub fn has_ended(&self) -> bool {
        self.0.ended.load(Ordering::Acquire)
    }

    /// Whether the handler has been given all that rings held when the connection was adopted.
    pub fn is_caught_up(&self) -> bool {
        self.0.behind.load(Ordering::Acquire) == 0
    }

    pub(crate) fn falls_behind(&self) {
        self.0.behind.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn catches_up(&self) {
        self.0.behind.fetch_sub(1, Ordering::AcqRel);
    }

    /// A page-aligned buffer of at least `max_write` bytes, for instance to read a file's data
    /// into before [`Reply::data`](crate::Reply::data).
    pub fn buffer(&self) -> Buffer {
        self.0.large.take()
    }

    pub(crate) fn in_flight_table(&self) -> &InFlight {
        &self.0.in_flight
    }

    pub(crate) fn small_pool(&self) -> &Arc<Pool> {
        &self.0.small
    }

    pub(crate) fn large_pool(&self) -> &Arc<Pool> {
        &self.0.large
    }

    pub(crate) fn set_ended(&self) {
        self.0.ended.store(true, Ordering::Release);
    }

    /// Registers `file` for passthrough. The id can be used in [`Opened`](crate::Opened) until
    /// it is closed, and belongs to the connection: it survives a hand-over to another process.
    ///
    /// # Errors
    /// `EPERM`: no CAP_SYS_ADMIN in the initial user namespace, or passthrough was not
    /// negotiated. `ELOOP`: the file system of `file` is stacked deeper than `max_stack_depth`.
    pub fn backing_open(&self, file: BorrowedFd<'_>) -> io::Result<u32> {
        let map = abi::BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: the ioctl reads a fuse_backing_map, which `map` is.
        let id = unsafe { libc::ioctl(self.0.device.as_raw_fd(), abi::IOC_BACKING_OPEN, &map) };
        u32::try_from(id).map_err(|_| io::Error::last_os_error())
    }

    /// Ends a registration. Files that are open through it stay open.
    pub fn backing_close(&self, id: u32) -> io::Result<()> {
        // SAFETY: the ioctl reads a u32.
        let result = unsafe { libc::ioctl(self.0.device.as_raw_fd(), abi::IOC_BACKING_CLOSE, &id) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Sends one message: the header, then `parts`.
    pub(crate) fn send(&self, unique: u64, error: i32, parts: &[IoSlice<'_>]) -> io::Result<()> {
        const ON_STACK: usize = 16;
        let body: usize = parts.iter().map(|part| part.len()).sum();
        let too_long = || io::Error::from_raw_os_error(libc::EMSGSIZE);
        let len = u32::try_from(size_of::<abi::OutHeader>() + body).map_err(|_| too_long())?;
        let header = abi::OutHeader { len, error, unique };
        if len as usize <= SHORT {
            return self.send_short(&header, parts);
        }
        let mut stack = [IoSlice::new(&[]); ON_STACK];
        let mut heap = Vec::new();
        let slices = match stack.get_mut(..=parts.len()) {
            Some(slices) => slices,
            None => {
                heap.resize(parts.len() + 1, IoSlice::new(&[]));
                &mut heap[..]
            }
        };
        slices[0] = IoSlice::new(header.as_bytes());
        slices[1..].copy_from_slice(parts);
        loop {
            match rustix::io::writev(&self.0.device, slices) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends a short message from one place: the kernel pins the page of every part by itself, which
    /// costs more than to copy some bytes.
    fn send_short(&self, header: &abi::OutHeader, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let mut message = WithinPage([0; SHORT]);
        let mut len = size_of::<abi::OutHeader>();
        message.0[..len].copy_from_slice(header.as_bytes());
        for part in parts {
            message.0[len..len + part.len()].copy_from_slice(part);
            len += part.len();
        }
        loop {
            match rustix::io::write(&self.0.device, &message.0[..len]) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn notify(&self, code: i32, parts: &[IoSlice<'_>]) -> io::Result<()> {
        if let Some(courier) = &self.1 {
            let body: usize = parts.iter().map(|part| part.len()).sum();
            let len = u32::try_from(size_of::<abi::OutHeader>() + body).unwrap_or(u32::MAX);
            let header = abi::OutHeader { len, error: code, unique: 0 };
            let mut message = header.as_bytes().to_vec();
            parts.iter().for_each(|part| message.extend_from_slice(part));
            if let Some(sent) = courier.send(&message) {
                return sent;
            }
        }
        self.send(0, code, parts)
    }

    /// Drops the kernel's attributes of `node`, and its cached pages from `offset` for `length`
    /// bytes (0: to the end; a negative `offset`: attributes only).
    ///
    /// This and the other notifications take locks in the kernel that a request being handled
    /// may hold: never send one from within a request on the same node or directory.
    ///
    /// # Errors
    /// `ENOENT`: the kernel does not know the node; usually of no interest.
    pub fn notify_inval_inode(&self, node: u64, offset: i64, length: i64) -> io::Result<()> {
        let body = abi::NotifyInvalInodeOut { ino: node, off: offset, len: length };
        self.notify(notify::INVAL_INODE, &[IoSlice::new(body.as_bytes())])
    }

    /// Drops the kernel's knowledge of a name. With `expire_only` it is merely looked up again at
    /// its next use (needs [`Features::HAS_EXPIRE_ONLY`](crate::Features::HAS_EXPIRE_ONLY)).
    pub fn notify_inval_entry(
        &self,
        parent: u64,
        name: &[u8],
        expire_only: bool,
    ) -> io::Result<()> {
        let body = abi::NotifyInvalEntryOut {
            parent,
            namelen: name_length(name)?,
            flags: u32::from(expire_only),
        };
        let parts = [IoSlice::new(body.as_bytes()), IoSlice::new(name), IoSlice::new(&[0])];
        self.notify(notify::INVAL_ENTRY, &parts)
    }

    /// Tells that `child` was removed from `parent`, so that watchers learn of it.
    pub fn notify_delete(&self, parent: u64, child: u64, name: &[u8]) -> io::Result<()> {
        let namelen = name_length(name)?;
        let body = abi::NotifyDeleteOut { parent, child, namelen, padding: 0 };
        let parts = [IoSlice::new(body.as_bytes()), IoSlice::new(name), IoSlice::new(&[0])];
        self.notify(notify::DELETE, &parts)
    }

    /// Puts `data` at `offset` into the page cache of `node`.
    pub fn notify_store(&self, node: u64, offset: u64, data: &[u8]) -> io::Result<()> {
        let size =
            u32::try_from(data.len()).map_err(|_| io::Error::from_raw_os_error(libc::EMSGSIZE))?;
        let body = abi::NotifyStoreOut { nodeid: node, offset, size, padding: 0 };
        self.notify(notify::STORE, &[IoSlice::new(body.as_bytes()), IoSlice::new(data)])
    }

    /// Asks for what the page cache holds of `node`; the answer comes as
    /// [`Operation::NotifyReply`](crate::Operation::NotifyReply) with `unique` in its header.
    pub fn notify_retrieve(
        &self,
        unique: u64,
        node: u64,
        offset: u64,
        size: u32,
    ) -> io::Result<()> {
        let body = abi::NotifyRetrieveOut {
            notify_unique: unique,
            nodeid: node,
            offset,
            size,
            padding: 0,
        };
        self.notify(notify::RETRIEVE, &[IoSlice::new(body.as_bytes())])
    }

    /// Wakes pollers of the open file that `kernel_handle` came from.
    pub fn notify_poll(&self, kernel_handle: u64) -> io::Result<()> {
        let body = abi::NotifyPollOut { kh: kernel_handle };
        self.notify(notify::POLL, &[IoSlice::new(body.as_bytes())])
    }

    /// Has the kernel send again every request that was read but not answered, marked
    /// [`Request::is_resent`](crate::Request::is_resent). For the successor of a crashed process;
    /// needs Linux 6.9.
    pub fn notify_resend(&self) -> io::Result<()> {
        self.notify(notify::RESEND, &[])
    }

    /// Invalidates all cached names at once (Linux 6.16).
    pub fn notify_inc_epoch(&self) -> io::Result<()> {
        self.notify(notify::INC_EPOCH, &[])
    }

    /// Asks the kernel to drop these nodes from its cache if nothing uses them (Linux 6.18).
    pub fn notify_prune(&self, nodes: &[u64]) -> io::Result<()> {
        let count =
            u32::try_from(nodes.len()).map_err(|_| io::Error::from_raw_os_error(libc::EMSGSIZE))?;
        let body = abi::NotifyPruneOut { count, padding: 0, spare: 0 };
        let ids: Vec<u8> = nodes.iter().flat_map(|node| node.to_ne_bytes()).collect();
        self.notify(notify::PRUNE, &[IoSlice::new(body.as_bytes()), IoSlice::new(&ids)])
    }
}

/// Messages up to this size, all but data and listings, are sent from one place.
const SHORT: usize = 512;

/// Aligned to its size, so that it lies in one page.
#[repr(align(512))]
struct WithinPage([u8; SHORT]);

fn name_length(name: &[u8]) -> io::Result<u32> {
    if name.is_empty() || name.contains(&0) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    u32::try_from(name.len()).map_err(|_| io::Error::from_raw_os_error(libc::ENAMETOOLONG))
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.device.as_fd()
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("negotiated", self.negotiated())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}
