//! The supervisor: a process that holds what must outlive a daemon, and starts the next one.
//!
//! It decides nothing about files. It keeps the connection to the kernel, the journal, the address's
//! lock and socket and the program as a daemon left them with it, waits for that daemon's end, and
//! runs the program again with these descriptors if it was not an orderly one. After too many
//! deaths within [`WINDOW`] (`--restart-limit`) it gives up: the connection closes with it, and programs get errors
//! instead of waiting. After its start it allocates nothing, so that it lives through a lack of
//! memory.

use std::ffi::{CString, c_char, c_int};
use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use crate::descriptors;
use crate::engine::CrashState;
use crate::error::Error;

/// The time within which deaths count.
pub const WINDOW: Duration = Duration::from_secs(60);
/// Pauses before the first and further starts within the time, at the usual limit.
const PAUSES_MS: [u64; 5] = [0, 100, 400, 1000, 2000];

/// Where the descriptors that daemons leave are kept, and found by the next one.
const KEPT: [RawFd; 5] = [100, 101, 102, 103, PROGRAM];
const PROGRAM: RawFd = 104;
/// Where what holds the requests is kept, if they come by io_uring.
const RINGS: RawFd = 105;
/// Where the settings are, for each daemon.
const SETTINGS: RawFd = 106;
/// The most descriptors of one message.
const MAX: usize = KEPT.len() + 1;
const MESSAGE: usize = 4;
/// The status of a process that has failed.
const DIED: c_int = 1 << 8;

/// The daemon's end of the socket to its supervisor.
#[derive(Debug)]
pub struct Link(OwnedFd);

/// What the last daemon left of its mount.
#[derive(Debug)]
pub struct PreservedMount {
    /// What the mount consists of.
    pub crash_state: CrashState,
    /// The lock of the address.
    pub lock: OwnedFd,
    /// The control socket.
    pub listener: OwnedFd,
}

impl Link {
    /// The supervisor that started this process.
    pub fn from_stdin() -> io::Result<Self> {
        let socket = descriptors::take_stdin()?;
        rustix::net::sockopt::socket_type(&socket)?;
        Ok(Self(socket))
    }

    /// A link that another daemon has handed on.
    pub fn inherited(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// The socket, for a successor.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Leaves with the supervisor what the next daemon needs: the connection, the journal, the lock of
    /// the address and its socket, and what holds the requests if they come by io_uring. From now on
    /// this process is the one whose end it waits for.
    pub fn leave(
        &self,
        [device, journal, lock, listener]: [BorrowedFd<'_>; 4],
        rings: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let program = File::open("/proc/self/exe")?;
        let mut left = vec![device, journal, lock, listener, program.as_fd()];
        left.extend(rings);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&left)) {
            return Err(io::Error::other("too many descriptors"));
        }
        let pid = std::process::id().to_ne_bytes();
        let flags = SendFlags::NOSIGNAL;
        rustix::net::sendmsg(&self.0, &[IoSlice::new(&pid)], &mut control, flags)?;
        Ok(())
    }
}

/// What the supervisor kept for this process.
///
/// # Errors
/// When a descriptor is missing: nobody kept anything.
pub fn preserved_mount() -> io::Result<PreservedMount> {
    let [device, journal, lock, listener, program] = KEPT.map(descriptors::take);
    drop(program);
    let rings = descriptors::take(RINGS).ok();
    let crash_state = CrashState { device: device?, journal: journal?, rings };
    Ok(PreservedMount { crash_state, lock: lock?, listener: listener? })
}

/// The settings that the supervisor has for this process, as [`run`] was given them.
///
/// # Errors
/// When no supervisor started this process.
pub fn settings() -> io::Result<OwnedFd> {
    descriptors::take(SETTINGS)
}

/// Runs the program as daemon with these settings, and again whenever it dies, but not more than
/// `limit` times within [`WINDOW`]. Does not return
/// but for a failure before the first start; ends with the daemon's exit code.
pub fn run(settings: &File, mountpoint: &Path, limit: usize) -> Result<(), Error> {
    let failed = |error: io::Error| Error::io("supervisor")(error);
    let words = |more: &[&str]| -> io::Result<Vec<CString>> {
        let fixed = ["forebay", "daemon"].iter().chain(more).map(|word| word.as_bytes());
        let words = fixed.chain([mountpoint.as_os_str().as_bytes()]);
        words.map(|word| CString::new(word).map_err(io::Error::from)).collect()
    };
    keep(settings.as_raw_fd(), SETTINGS).map_err(failed)?;
    let first = words(&["--supervised"]).map_err(failed)?;
    let again = words(&["--supervised", "--revived"]).map_err(failed)?;
    let pointers = |words: &[CString]| -> Vec<*const c_char> {
        words.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let no_more = words(&["--supervised", "--given-up"]).map_err(failed)?;
    let (first_words, again_words) = (pointers(&first), pointers(&again));
    let no_more_words = pointers(&no_more);
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (ours, theirs) = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None)
        .map_err(|error| failed(error.into()))?;
    let program = File::open("/proc/self/exe").map_err(failed)?;
    keep(program.as_raw_fd(), PROGRAM).map_err(failed)?;
    // Whose group leader this is fails, and is on its own already.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/").map_err(failed)?;
    let signals = take_signals().map_err(failed)?;
    let mut watch = Watch {
        socket: ours.as_raw_fd(),
        signals: signals.as_raw_fd(),
        child_end: theirs.as_raw_fd(),
        again: again_words.as_ptr(),
        no_more: no_more_words.as_ptr(),
        daemon: 0,
        has_left: false,
        deaths: vec![None; limit].into_boxed_slice(),
    };
    watch.start(first_words.as_ptr()).map_err(failed)?;
    // The report of the first daemon goes to whoever waits for it, and ends when it closes it.
    let null = File::options().read(true).write(true).open("/dev/null").map_err(failed)?;
    rustix::stdio::dup2_stdin(&null).map_err(|error| failed(error.into()))?;
    rustix::stdio::dup2_stdout(&null).map_err(|error| failed(error.into()))?;
    rustix::stdio::dup2_stderr(&null).map_err(|error| failed(error.into()))?;
    watch.run()
}

/// Signals come as bytes of a descriptor from now on. Daemons that lose their parent become
/// children of this process.
fn take_signals() -> io::Result<OwnedFd> {
    // SAFETY: plain calls on a local set; the descriptor is new and nobody else's.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT] {
            libc::sigaddset(&mut set, signal);
        }
        libc::signal(libc::SIGHUP, libc::SIG_IGN);
        let code = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        if code != 0 {
            return Err(io::Error::from_raw_os_error(code));
        }
        let on: libc::c_ulong = 1;
        if libc::prctl(libc::PR_SET_CHILD_SUBREAPER, on, 0, 0, 0) < 0 {
            return Err(io::Error::last_os_error());
        }
        let number = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if number < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(number)) }
    }
}

/// Copies a descriptor to a fixed number, closed by exec.
fn keep(from: RawFd, to: RawFd) -> io::Result<()> {
    // SAFETY: numbers only; what was at `to` is this module's own.
    if unsafe { libc::dup3(from, to, libc::O_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The loop's state: numbers and pointers to what [`run`] made.
struct Watch {
    socket: RawFd,
    signals: RawFd,
    child_end: RawFd,
    again: *const *const c_char,
    no_more: *const *const c_char,
    daemon: libc::pid_t,
    has_left: bool,
    deaths: Box<[Option<Instant>]>,
}

impl Watch {
    fn run(&mut self) -> ! {
        loop {
            let wanted = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut polled = [wanted(self.socket), wanted(self.signals)];
            // SAFETY: two valid entries. An interruption is as good as an event.
            unsafe { libc::poll(polled.as_mut_ptr(), 2, -1) };
            // First what a daemon has left: it may have died right after.
            while self.hear() {}
            self.forward_signals();
            self.reap();
        }
    }

    /// Takes one message of a daemon; false if there was none.
    fn hear(&mut self) -> bool {
        let mut pid = [0_u8; MESSAGE];
        let mut numbers = [0 as c_int; MAX];
        let Some(count) = receive(self.socket, &mut pid, &mut numbers) else { return false };
        let whole = count >= KEPT.len();
        if whole {
            // Of the last daemon; the next one need not have any.
            // SAFETY: a number of this module's own.
            unsafe { libc::close(RINGS) };
        }
        for (number, place) in numbers.iter().take(count).zip(KEPT.into_iter().chain([RINGS])) {
            if whole && keep(*number, place).is_err() {
                end(1);
            }
            // SAFETY: it came with the message and is ours.
            unsafe { libc::close(*number) };
        }
        if whole {
            self.daemon = libc::pid_t::from_ne_bytes(pid);
            self.has_left = true;
        }
        true
    }

    fn forward_signals(&self) {
        loop {
            let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
            let size = size_of::<libc::signalfd_siginfo>();
            // SAFETY: room for one record, read whole or not at all.
            let signal = unsafe {
                if libc::read(self.signals, info.as_mut_ptr().cast(), size) != size as isize {
                    return;
                }
                info.assume_init().ssi_signo.cast_signed()
            };
            if signal != libc::SIGCHLD {
                // SAFETY: no memory is involved.
                unsafe { libc::kill(self.daemon, signal) };
            }
        }
    }

    fn reap(&mut self) {
        loop {
            let mut status = 0;
            // SAFETY: a valid place for the status.
            let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
            match pid {
                0 => return,
                // Nobody is left, so the daemon neither: it was a successor that the daemon before had buried,
                // which has died at taking back what it had left here.
                ..0 => self.daemon_ended(DIED),
                _ if pid == self.daemon => self.daemon_ended(status),
                _ => {}
            }
        }
    }

    fn daemon_ended(&mut self, status: c_int) {
        let code = if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 1 };
        let orderly = libc::WIFEXITED(status) && code == 0;
        if orderly || !self.has_left {
            end(code);
        }
        let now = Instant::now();
        let recent = |death: &Option<Instant>| death.is_some_and(|at| now - at < WINDOW);
        let count = self.deaths.iter().filter(|death| recent(death)).count();
        let Some(place) = self.deaths.iter_mut().find(|death| !recent(death)) else {
            // Whoever logs it gets nothing of what keeps the mount alive.
            self.has_left = false;
            let _ = self.start(self.no_more);
            end(1)
        };
        *place = Some(now);
        // Where many deaths are expected, they are not slowed down.
        let timeout = self.deaths.len() == PAUSES_MS.len();
        let pause = PAUSES_MS.get(count).filter(|_| timeout).copied().unwrap_or(0);
        std::thread::sleep(Duration::from_millis(pause));
        if self.start(self.again).is_err() {
            end(1);
        }
    }

    /// Starts a daemon with these words.
    fn start(&mut self, words: *const *const c_char) -> io::Result<()> {
        // SAFETY: this process has one thread, so the child may call what it likes; it calls only
        // what is async-signal-safe, with pointers made before.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => return Err(io::Error::last_os_error()),
            0 => self.become_daemon(words),
            _ => self.daemon = pid,
        }
        Ok(())
    }

    fn become_daemon(&self, words: *const *const c_char) -> ! {
        unsafe extern "C" {
            static environ: *const *const c_char;
        }
        // SAFETY: numbers, a local set, and NUL-terminated arrays that outlive the call.
        unsafe {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
            libc::dup2(self.child_end, 0);
            let kept = KEPT.into_iter().chain([RINGS]);
            libc::fcntl(SETTINGS, libc::F_SETFD, 0);
            for number in kept.filter(|number| self.has_left && *number != PROGRAM) {
                libc::fcntl(number, libc::F_SETFD, 0);
            }
            libc::syscall(
                libc::SYS_execveat,
                PROGRAM,
                c"".as_ptr(),
                words,
                environ,
                libc::AT_EMPTY_PATH,
            );
            libc::_exit(127)
        }
    }
}

/// Ends this process. The descriptors close: a connection that nobody serves ends in errors.
fn end(code: c_int) -> ! {
    // SAFETY: never returns, touches nothing.
    unsafe { libc::_exit(code) }
}

/// Room for the descriptors of one message.
#[repr(C, align(8))]
struct ControlSpace([u8; 64]);

/// One message and its descriptors: how many came; `None` if there is no message.
fn receive(socket: RawFd, bytes: &mut [u8], numbers: &mut [c_int]) -> Option<usize> {
    let mut space = ControlSpace([0; 64]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: the header points to the local buffers with their lengths; the control messages are
    // walked as the kernel laid them out, and at most as many numbers are copied as there is room.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        header.msg_iov = &mut part;
        header.msg_iovlen = 1;
        header.msg_control = space.0.as_mut_ptr().cast();
        header.msg_controllen = space.0.len();
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        let length = libc::recvmsg(socket, &mut header, flags);
        if length <= 0 {
            return None;
        }
        let mut count = 0;
        let mut message = libc::CMSG_FIRSTHDR(&header);
        while !message.is_null() {
            let is_rights = (*message).cmsg_level == libc::SOL_SOCKET
                && (*message).cmsg_type == libc::SCM_RIGHTS;
            if is_rights {
                let data = libc::CMSG_DATA(message).cast::<c_int>();
                let bytes = (*message).cmsg_len - libc::CMSG_LEN(0) as usize;
                for index in 0..(bytes / size_of::<c_int>()) {
                    if let Some(place) = numbers.get_mut(count) {
                        *place = data.add(index).read_unaligned();
                        count += 1;
                    }
                }
            }
            message = libc::CMSG_NXTHDR(&header, message);
        }
        Some(count)
    }
}
