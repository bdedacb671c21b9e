//! Stream sockets, whatever their family.

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recv, sendmsg, shutdown};
use std::fs::File;
use std::io::{self, IoSlice, Read};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::tls::Stream;
use super::{Closer, Sink, Source};

/// A connected stream socket, shared by those who read, write and close it.
#[derive(Clone, Debug)]
pub(crate) struct Socket(pub Arc<OwnedFd>);

impl Socket {
    pub fn new(fd: OwnedFd) -> Socket {
        Socket(Arc::new(fd))
    }

    /// How long a read may wait until it fails with `WouldBlock`.
    pub fn read_timeout(&self, timeout: Duration) -> io::Result<()> {
        // Zero would mean for ever.
        let timeout = timeout.max(Duration::from_millis(1));
        Ok(set_socket_timeout(&self.0, Timeout::Recv, Some(timeout))?)
    }

    /// How long a write may wait until it fails with `WouldBlock`.
    pub fn write_timeout(&self, timeout: Duration) -> io::Result<()> {
        let timeout = timeout.max(Duration::from_millis(1));
        Ok(set_socket_timeout(&self.0, Timeout::Send, Some(timeout))?)
    }

    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match recv(&self.0, &mut *buffer, RecvFlags::empty()) {
                Err(rustix::io::Errno::INTR) => {}
                other => return Ok(other?.1),
            }
        }
    }

    /// Sends everything.
    pub fn send_all(&self, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        let flags = SendFlags::NOSIGNAL;
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            match sendmsg(&self.0, parts, &mut SendAncillaryBuffer::default(), flags) {
                Ok(sent) => IoSlice::advance_slices(&mut parts, sent),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Err(stalled()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Why a write is given up.
pub(crate) fn stalled() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the other side takes nothing any more")
}

impl Stream for Socket {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Socket::receive(self, buffer)
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        self.send_all(&mut [IoSlice::new(bytes)])
    }

    fn read_timeout(&self, timeout: Duration) -> io::Result<()> {
        Socket::read_timeout(self, timeout)
    }
}

impl Closer for Socket {
    fn close(&self) {
        // Fails only for a socket that is not connected any more.
        let _ = shutdown(&self.0, Shutdown::Both);
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive(buffer)
    }
}

impl Source for Socket {
    fn set_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.read_timeout(timeout)
    }
}

/// What goes out of a socket in plain text.
#[derive(Debug)]
pub(crate) struct SocketSink {
    pub socket: Socket,
    /// Whether files are sent by `sendfile`.
    pub sends_files: bool,
}

impl Sink for SocketSink {
    fn send(&mut self, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        self.socket.send_all(parts)
    }

    fn sends_files(&self) -> bool {
        self.sends_files
    }

    fn send_file(
        &mut self,
        file: &File,
        offset: u64,
        len: usize,
        sent: &mut usize,
    ) -> io::Result<()> {
        let mut offset = offset;
        while *sent < len {
            match rustix::fs::sendfile(&self.socket.0, file, Some(&mut offset), len - *sent) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(more) => *sent += more,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Err(stalled()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn end_frame(&mut self) -> io::Result<()> {
        Ok(())
    }
}
