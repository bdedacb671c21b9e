//! TLS over a stream of bytes, for one thread that reads and one that writes.
//!
//! rustls keeps one state for both directions; it is locked only while bytes are encrypted or
//! decrypted, never while a thread waits for the network.

use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, ServerConnection};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Closer, Sink, Source, Wire};
use crate::secret::{NAME, TlsIdentity};

/// A stream of bytes below TLS; its clones are the same stream.
pub(crate) trait Stream: Closer + Clone + 'static {
    /// Waits for bytes; 0 says that none come any more.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Sends everything.
    fn send(&self, bytes: &[u8]) -> io::Result<()>;

    /// How long `receive` may wait until it fails with `WouldBlock`.
    fn read_timeout(&self, timeout: Duration) -> io::Result<()>;
}

/// Bytes that are encrypted, or received, in one go.
const CHUNK: usize = 128 << 10;

/// The side that came to us proves who it is, and we do.
pub(crate) fn accept<S: Stream>(socket: S, us: &TlsIdentity, within: Duration) -> io::Result<Wire> {
    let connection = ServerConnection::new(us.server.clone()).map_err(io::Error::other)?;
    shake_hands(socket, connection.into(), within)
}

/// The side that we came to proves who it is, and we do.
pub(crate) fn connect<S: Stream>(
    socket: S,
    us: &TlsIdentity,
    within: Duration,
) -> io::Result<Wire> {
    let name = ServerName::try_from(NAME).expect("a constant that is a name");
    let connection = ClientConnection::new(us.client.clone(), name).map_err(io::Error::other)?;
    shake_hands(socket, connection.into(), within)
}

fn shake_hands<S: Stream>(socket: S, mut tls: Connection, within: Duration) -> io::Result<Wire> {
    let deadline = Instant::now() + within;
    let mut raw = vec![0; CHUNK];
    let (mut at, mut end) = (0, 0);
    while tls.is_handshaking() || tls.wants_write() {
        flush(&mut tls, &socket, &mut Vec::new())?;
        if !tls.is_handshaking() {
            break;
        }
        if at == end {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            socket.read_timeout(left)?;
            (at, end) = (0, socket.receive(&mut raw)?);
            if end == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        at += tls.read_tls(&mut &raw[at..end])?;
        if let Err(error) = tls.process_new_packets() {
            // The other side is told why, if it still listens.
            let _ = flush(&mut tls, &socket, &mut Vec::new());
            return Err(io::Error::new(ErrorKind::InvalidData, error));
        }
    }
    let tls = Arc::new(Mutex::new(tls));
    let source = TlsSource { socket: socket.clone(), tls: tls.clone(), raw, at, end };
    let sink = TlsSink { socket: socket.clone(), tls, out: Vec::with_capacity(2 * CHUNK) };
    Ok(Wire { source: Box::new(source), sink: Box::new(sink), closer: Arc::new(socket) })
}

/// Sends what TLS itself has to say.
fn flush(tls: &mut Connection, socket: &impl Stream, out: &mut Vec<u8>) -> io::Result<()> {
    while tls.wants_write() {
        tls.write_tls(out)?;
    }
    socket.send(out)
}

struct TlsSource<S> {
    socket: S,
    tls: Arc<Mutex<Connection>>,
    /// What was received and not decrypted yet lies between `at` and `end`.
    raw: Vec<u8>,
    at: usize,
    end: usize,
}

impl<S: Stream> Read for TlsSource<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            {
                let mut tls = self.tls.lock();
                loop {
                    match tls.reader().read(buffer) {
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                        done => return done,
                    }
                    if self.at == self.end {
                        break;
                    }
                    self.at += tls.read_tls(&mut &self.raw[self.at..self.end])?;
                    let judged = tls.process_new_packets();
                    judged.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
                }
            }
            (self.at, self.end) = (0, self.socket.receive(&mut self.raw)?);
            if self.end == 0 {
                // Without TLS's close_notify anybody may have cut the connection.
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

impl<S: Stream> Source for TlsSource<S> {
    fn set_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.socket.read_timeout(timeout)
    }
}

struct TlsSink<S: Stream> {
    socket: S,
    tls: Arc<Mutex<Connection>>,
    /// Encrypted and not sent yet.
    out: Vec<u8>,
}

impl<S: Stream> TlsSink<S> {
    fn flush(&mut self) -> io::Result<()> {
        let sent = self.socket.send(&self.out);
        self.out.clear();
        sent
    }
}

impl<S: Stream> Sink for TlsSink<S> {
    fn send(&mut self, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        for part in parts {
            for chunk in part.chunks(CHUNK) {
                {
                    let mut tls = self.tls.lock();
                    let mut rest = chunk;
                    while !rest.is_empty() {
                        let taken = tls.writer().write(rest)?;
                        rest = &rest[taken..];
                        while tls.wants_write() {
                            tls.write_tls(&mut self.out)?;
                        }
                    }
                }
                if self.out.len() >= CHUNK {
                    self.flush()?;
                }
            }
        }
        Ok(())
    }

    fn end_frame(&mut self) -> io::Result<()> {
        self.flush()
    }
}

impl<S: Stream> Drop for TlsSink<S> {
    fn drop(&mut self) {
        let mut tls = self.tls.lock();
        tls.send_close_notify();
        // Nobody may be there any more to hear it.
        let _ = flush(&mut tls, &self.socket, &mut self.out);
    }
}
