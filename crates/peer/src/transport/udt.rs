//! UDT (Gu and Grossman, *UDT: UDP-based data transfer for high-speed wide area networks*, Computer
//! Networks 51, 2007), by the library libudt 4: streams over datagrams for long fat networks.
//!
//! UDT itself neither encrypts nor asks who is there, so that TLS goes over it as over TCP. The
//! library is looked for at the first use; its C++ functions are called by their names in the
//! Itanium ABI, by which functions of numbers and pointers are those of C.

use rustix::net::AddressFamily;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::{self, ErrorKind, IoSlice, Read};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::socket::stalled;
use super::tls::{self, Stream};
use super::{
    Arrival, Closer, Listener, Sink, Source, TimeLimits, Transport, Wire, library, resolve,
};
use crate::address::Address;
use crate::error::{Error, Result};
use crate::secret::Security;

/// Listeners' queues.
const MAX_HANDSHAKES: c_int = 64;
/// How long the address of a listener that was closed may stay taken.
const FORGETS: Duration = Duration::from_secs(5);
/// The longest that a close waits for what was sent.
const LINGER_S: c_int = 1;

/// Options, as `enum UDTOpt` in `udt.h` counts them.
mod option {
    use std::ffi::c_int;
    pub const RECEIVE_BLOCKS: c_int = 2;
    pub const LINGER: c_int = 7;
    pub const SEND_TIMEOUT: c_int = 13;
    pub const RECEIVE_TIMEOUT: c_int = 14;
}

/// States, as `enum UDTSTATUS` counts them.
mod state {
    use std::ffi::c_int;
    pub const CONNECTING: c_int = 4;
    pub const CONNECTED: c_int = 5;
}

/// Codes of errors, as `CUDTException` has them.
mod code {
    use std::ffi::c_int;
    pub const LOST: c_int = 2001;
    pub const NOT_CONNECTED: c_int = 2002;
    pub const NO_SOCKET: c_int = 5004;
    pub const WOULD_BLOCK: c_int = 6002;
    pub const TIMED_OUT: c_int = 6003;
}

/// What is used of the library.
struct Udt4 {
    socket: unsafe extern "C" fn(c_int, c_int, c_int) -> c_int,
    bind: unsafe extern "C" fn(c_int, *const libc::sockaddr, c_int) -> c_int,
    listen: unsafe extern "C" fn(c_int, c_int) -> c_int,
    accept: unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut c_int) -> c_int,
    connect: unsafe extern "C" fn(c_int, *const libc::sockaddr, c_int) -> c_int,
    close: unsafe extern "C" fn(c_int) -> c_int,
    own_name: unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut c_int) -> c_int,
    set_option: unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, c_int) -> c_int,
    state: unsafe extern "C" fn(c_int) -> c_int,
    send: unsafe extern "C" fn(c_int, *const c_char, c_int, c_int) -> c_int,
    receive: unsafe extern "C" fn(c_int, *mut c_char, c_int, c_int) -> c_int,
    error_code: unsafe extern "C" fn() -> c_int,
    error_text: unsafe extern "C" fn() -> *const c_char,
}

impl Udt4 {
    /// The library, found at the first use and never let go, as it has threads of its own.
    fn get() -> Result<&'static Udt4> {
        static FOUND: OnceLock<Result<Udt4>> = OnceLock::new();
        FOUND.get_or_init(Udt4::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Udt4> {
        let names = ["libudt.so.0", "libudt.so"];
        let library = library::open(&names, "udt:// needs libudt (Debian: libudt0)")?;
        // SAFETY: the names have their parameters in them, and the types are those of `udt.h`;
        // enumerations are as wide as `int`.
        let found = unsafe {
            let start: unsafe extern "C" fn() -> c_int =
                library::symbol(&library, "_ZN3UDT7startupEv")?;
            let found = Udt4 {
                socket: library::symbol(&library, "_ZN3UDT6socketEiii")?,
                bind: library::symbol(&library, "_ZN3UDT4bindEiPK8sockaddri")?,
                listen: library::symbol(&library, "_ZN3UDT6listenEii")?,
                accept: library::symbol(&library, "_ZN3UDT6acceptEiP8sockaddrPi")?,
                connect: library::symbol(&library, "_ZN3UDT7connectEiPK8sockaddri")?,
                close: library::symbol(&library, "_ZN3UDT5closeEi")?,
                own_name: library::symbol(&library, "_ZN3UDT11getsocknameEiP8sockaddrPi")?,
                set_option: library::symbol(&library, "_ZN3UDT10setsockoptEii6UDTOptPKvi")?,
                state: library::symbol(&library, "_ZN3UDT12getsockstateEi")?,
                send: library::symbol(&library, "_ZN3UDT4sendEiPKcii")?,
                receive: library::symbol(&library, "_ZN3UDT4recvEiPcii")?,
                error_code: library::symbol(&library, "_ZN3UDT17getlasterror_codeEv")?,
                error_text: library::symbol(&library, "_ZN3UDT17getlasterror_descEv")?,
            };
            if start() < 0 {
                return Err(Error::Settings(format!("udt://: {}", found.error())));
            }
            found
        };
        std::mem::forget(library);
        Ok(found)
    }

    /// What went wrong on this thread last.
    fn error(&self) -> io::Error {
        // SAFETY: both read what the library keeps for this thread; the text lives until its next
        // call, and is copied before.
        let (code, text) = unsafe {
            let text = (self.error_text)();
            let text = match text.is_null() {
                true => String::new(),
                false => CStr::from_ptr(text).to_string_lossy().trim_end().to_owned(),
            };
            ((self.error_code)(), text)
        };
        let kind = match code {
            code::TIMED_OUT | code::WOULD_BLOCK => ErrorKind::WouldBlock,
            code::LOST | code::NOT_CONNECTED | code::NO_SOCKET => ErrorKind::NotConnected,
            // The first digit says which kind it is; 5011 is an address that somebody listens on.
            5011 => ErrorKind::AddrInUse,
            _ => ErrorKind::Other,
        };
        io::Error::new(kind, format!("{text} (UDT {code})"))
    }

    fn check(&self, result: c_int) -> io::Result<c_int> {
        match result {
            0.. => Ok(result),
            _ => Err(self.error()),
        }
    }
}

/// An address as the system's calls want it.
union Name {
    any: libc::sockaddr,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl Name {
    fn of(address: SocketAddr) -> (Name, c_int) {
        match address {
            SocketAddr::V4(at) => {
                let v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: at.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*at.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                (Name { v4 }, size_of::<libc::sockaddr_in>() as c_int)
            }
            SocketAddr::V6(at) => {
                let v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: at.port().to_be(),
                    sin6_flowinfo: at.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: at.ip().octets() },
                    sin6_scope_id: at.scope_id(),
                };
                (Name { v6 }, size_of::<libc::sockaddr_in6>() as c_int)
            }
        }
    }

    fn empty() -> (Name, c_int) {
        Name::of((Ipv6Addr::UNSPECIFIED, 0).into())
    }

    fn address(&self) -> SocketAddr {
        // SAFETY: all variants begin with the family, which says how the rest is to be read, and
        // all of it was initialized by `of`.
        unsafe {
            match c_int::from(self.any.sa_family) {
                libc::AF_INET6 => {
                    let ip = Ipv6Addr::from(self.v6.sin6_addr.s6_addr);
                    (ip, u16::from_be(self.v6.sin6_port)).into()
                }
                _ => {
                    let ip = Ipv4Addr::from(u32::from_be(self.v4.sin_addr.s_addr));
                    (ip, u16::from_be(self.v4.sin_port)).into()
                }
            }
        }
    }
}

/// A socket of the library, closed with the last of its clones.
#[derive(Clone)]
struct UdtSocket(Arc<Owned>);

struct Owned {
    udt: &'static Udt4,
    id: c_int,
    closed: AtomicBool,
}

impl Owned {
    /// Takes what a call of the library gave.
    fn take(udt: &'static Udt4, id: c_int) -> io::Result<UdtSocket> {
        let id = udt.check(id)?;
        let socket = UdtSocket(Arc::new(Owned { udt, id, closed: AtomicBool::new(false) }));
        let linger = libc::linger { l_onoff: 1, l_linger: LINGER_S };
        socket.set(option::LINGER, &linger)?;
        Ok(socket)
    }

    fn close(&self) {
        // Numbers are used again, so each is closed once.
        if !self.closed.swap(true, Ordering::AcqRel) {
            // SAFETY: a number goes in, and whoever waits on that socket is woken.
            unsafe { (self.udt.close)(self.id) };
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.close();
    }
}

impl UdtSocket {
    fn for_address(udt: &'static Udt4, address: SocketAddr) -> io::Result<UdtSocket> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        // SAFETY: only numbers go in.
        let id = unsafe { (udt.socket)(family.as_raw().into(), libc::SOCK_STREAM, 0) };
        Owned::take(udt, id)
    }

    fn set<T>(&self, option: c_int, value: &T) -> io::Result<()> {
        let (udt, size) = (self.0.udt, size_of::<T>() as c_int);
        // SAFETY: the library copies `size` bytes of `value`; each option here is given the type
        // that `udt.h` has for it.
        let set = unsafe {
            (udt.set_option)(self.0.id, 0, option, std::ptr::from_ref(value).cast(), size)
        };
        udt.check(set).map(|_| ())
    }

    fn connect(&self, to: SocketAddr, within: Duration) -> io::Result<()> {
        let udt = self.0.udt;
        let (name, len) = Name::of(to);
        // The library's own limit is three seconds, so it is not waited for there.
        self.set(option::RECEIVE_BLOCKS, &false)?;
        // SAFETY: `name` is an address of `len` bytes, which the library copies.
        udt.check(unsafe { (udt.connect)(self.0.id, &raw const name.any, len) })?;
        let end = Instant::now() + within;
        loop {
            // SAFETY: a number goes in.
            match unsafe { (udt.state)(self.0.id) } {
                state::CONNECTED => return self.set(option::RECEIVE_BLOCKS, &true),
                state::CONNECTING if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                state::CONNECTING => return Err(ErrorKind::TimedOut.into()),
                _ => return Err(ErrorKind::ConnectionRefused.into()),
            }
        }
    }

    fn own_address(&self) -> io::Result<SocketAddr> {
        let (mut name, mut len) = Name::empty();
        let udt = self.0.udt;
        // SAFETY: the largest address fits `name`; the library says how much of it it wrote.
        let told = unsafe { (udt.own_name)(self.0.id, &raw mut name.any, &raw mut len) };
        udt.check(told).map(|_| name.address())
    }

    fn wire(self, security: &Security, server: bool, timeout: TimeLimits) -> io::Result<Wire> {
        self.timeout(option::SEND_TIMEOUT, timeout.stall)?;
        match security {
            Security::Tls(us) if server => tls::accept(self, us, timeout.handshake),
            Security::Tls(us) => tls::connect(self, us, timeout.handshake),
            Security::Off => Ok(Wire {
                source: Box::new(self.clone()),
                sink: Box::new(UdtSink(self.clone())),
                closer: Arc::new(self),
            }),
        }
    }

    fn timeout(&self, option: c_int, timeout: Duration) -> io::Result<()> {
        let milliseconds = c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX);
        self.set(option, &milliseconds.max(1))
    }
}

impl Closer for UdtSocket {
    fn close(&self) {
        self.0.close();
    }
}

impl Stream for UdtSocket {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let len = c_int::try_from(buffer.len()).unwrap_or(c_int::MAX);
        // SAFETY: at most `len` bytes are written to `buffer`, which has them.
        let got = unsafe { (self.0.udt.receive)(self.0.id, buffer.as_mut_ptr().cast(), len, 0) };
        match self.0.udt.check(got) {
            // The library tells of an end as of an error.
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(0),
            other => other.map(|got| got as usize),
        }
    }

    fn send(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let len = c_int::try_from(bytes.len()).unwrap_or(c_int::MAX);
            // SAFETY: `bytes` has as many as `len` says; the library copies them.
            let sent = unsafe { (self.0.udt.send)(self.0.id, bytes.as_ptr().cast(), len, 0) };
            match self.0.udt.check(sent) {
                Ok(0) => return Err(stalled()),
                Ok(sent) => bytes = &bytes[sent as usize..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(stalled()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn read_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self.timeout(option::RECEIVE_TIMEOUT, timeout) {
            // The other side has closed; what it said before can still be read.
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(()),
            other => other,
        }
    }
}

impl Read for UdtSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive(buffer)
    }
}

impl Source for UdtSocket {
    fn set_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.read_timeout(timeout)
    }
}

/// What goes out in plain text.
struct UdtSink(UdtSocket);

impl Sink for UdtSink {
    fn send(&mut self, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        parts.iter().try_for_each(|part| self.0.send(part))
    }

    fn end_frame(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// UDT between nodes.
#[derive(Clone)]
pub struct Udt {
    security: Security,
    udt: &'static Udt4,
}

impl std::fmt::Debug for Udt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Udt")
    }
}

impl Udt {
    /// UDT that is protected so.
    ///
    /// # Errors
    /// [`Error::Settings`] if the library is not on this machine.
    pub fn new(security: Security) -> Result<Udt> {
        Ok(Udt { security, udt: Udt4::get()? })
    }

    fn bind(&self, at: SocketAddr) -> io::Result<UdtSocket> {
        let socket = UdtSocket::for_address(self.udt, at)?;
        let (name, len) = Name::of(at);
        // SAFETY: `name` is an address of `len` bytes, which the library copies.
        self.udt.check(unsafe { (self.udt.bind)(socket.0.id, &raw const name.any, len) })?;
        // SAFETY: only numbers go in.
        self.udt.check(unsafe { (self.udt.listen)(socket.0.id, MAX_HANDSHAKES) })?;
        Ok(socket)
    }

    fn try_listen(&self, address: &Address) -> io::Result<UdtDoor> {
        let Address::Udt(at) = address else { return Err(ErrorKind::Unsupported.into()) };
        let at = resolve(at)?;
        // The library forgets a predecessor that was closed a second or two later.
        let end = Instant::now() + FORGETS;
        let socket = loop {
            match self.bind(at) {
                Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                other => break other?,
            }
        };
        let address = Address::Udt(socket.own_address()?.to_string());
        Ok(UdtDoor { socket, address, security: self.security.clone() })
    }
}

impl Transport for Udt {
    fn connect(&self, address: &Address, timeout: TimeLimits) -> Result<Wire> {
        let connect = || {
            let Address::Udt(at) = address else { return Err(ErrorKind::Unsupported.into()) };
            let to = resolve(at)?;
            let socket = UdtSocket::for_address(self.udt, to)?;
            socket.connect(to, timeout.connect)?;
            socket.wire(&self.security, false, timeout)
        };
        connect().map_err(|error: io::Error| Error::Connect {
            address: address.to_string(),
            why: error.to_string(),
        })
    }

    fn listen(&self, address: &Address) -> Result<Box<dyn Listener>> {
        let door = self.try_listen(address).map_err(|error| Error::Listen {
            address: address.to_string(),
            why: error.to_string(),
        })?;
        Ok(Box::new(door))
    }
}

struct UdtDoor {
    socket: UdtSocket,
    address: Address,
    security: Security,
}

impl Listener for UdtDoor {
    fn accept(&self) -> io::Result<Box<dyn Arrival>> {
        let (mut name, mut len) = Name::empty();
        let owned = &self.socket.0;
        // SAFETY: the largest address fits `name`; the library says how much of it it wrote.
        let id = unsafe { (owned.udt.accept)(owned.id, &raw mut name.any, &raw mut len) };
        let accepted = Owned::take(owned.udt, id);
        if owned.closed.load(Ordering::Acquire) {
            return Err(ErrorKind::ConnectionAborted.into());
        }
        let (socket, from) = (accepted?, name.address());
        Ok(Box::new(UdtArrival { socket, from, security: self.security.clone() }))
    }

    fn address(&self) -> Address {
        self.address.clone()
    }

    fn close(&self) {
        self.socket.0.close();
    }
}

struct UdtArrival {
    socket: UdtSocket,
    from: SocketAddr,
    security: Security,
}

impl Arrival for UdtArrival {
    fn admit(self: Box<Self>, timeout: TimeLimits) -> Result<Wire> {
        let UdtArrival { socket, from, security } = *self;
        let wire = socket.clone().wire(&security, true, timeout);
        wire.inspect_err(|_| socket.0.close()).map_err(|error| Error::Connect {
            address: format!("udt://{from}"),
            why: error.to_string(),
        })
    }
}
