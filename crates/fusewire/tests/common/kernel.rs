//! The kernel's side of a connection, played over a socket pair that keeps message boundaries.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use fusewire::{Features, Handler, Negotiated, Options, Parts, Running, Session};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

pub struct Kernel {
    socket: OwnedFd,
}

/// Bytes in the order of the header file.
#[derive(Clone, Default)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }
    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }
    pub fn zeros(mut self, count: usize) -> Self {
        self.0.resize(self.0.len() + count, 0);
        self
    }
}

pub fn b() -> Bytes {
    Bytes::default()
}

/// A whole request: header of user 1000, group 100, process 4242, then the arguments.
pub fn message(opcode: u32, unique: u64, node: u64, body: &Bytes) -> Vec<u8> {
    let length = 40 + body.0.len() as u32;
    let header = b().u32(length).u32(opcode).u64(unique).u64(node).u32(1000).u32(100).u32(4242);
    header.u32(0).raw(&body.0).0
}

pub fn negotiated() -> Negotiated {
    Negotiated {
        minor: 45,
        kernel_minor: 45,
        features: Features::SETXATTR_EXT,
        offered: Features::NONE,
        max_write: 1 << 17,
        max_pages: 32,
        max_readahead: 0,
    }
}

/// A running session whose kernel is the returned one.
pub fn session<H: Handler>(options: &Options, handler: Arc<H>) -> (Kernel, Running) {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .expect("socket pair");
    let timeout = Some(Duration::from_secs(10));
    rustix::net::sockopt::set_socket_timeout(&ours, rustix::net::sockopt::Timeout::Recv, timeout)
        .expect("time-out");
    let parts = Parts { device: theirs, negotiated: negotiated(), mountpoint: None, rings: None };
    let session = Session::from_parts(parts, options, handler).expect("adopted");
    (Kernel { socket: ours }, session.spawn().expect("readers start"))
}

impl Kernel {
    pub fn send(&self, message: &[u8]) {
        rustix::net::send(&self.socket, message, SendFlags::NOSIGNAL).expect("sent");
    }

    /// Receives one message into `buffer`; its length.
    pub fn receive_into(&self, buffer: &mut [u8]) -> usize {
        rustix::net::recv(&self.socket, buffer, RecvFlags::empty()).expect("an answer").0
    }

    pub fn receive(&self) -> Vec<u8> {
        let mut buffer = vec![0; 1 << 18];
        let length = self.receive_into(&mut buffer);
        buffer.truncate(length);
        buffer
    }

    /// Whether nothing has been answered.
    pub fn is_silent(&self) -> bool {
        let mut byte = [0; 1];
        rustix::net::recv(&self.socket, &mut byte[..], RecvFlags::DONTWAIT | RecvFlags::PEEK)
            .is_err()
    }
}
