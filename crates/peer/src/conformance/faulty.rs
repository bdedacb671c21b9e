//! Connections that fail on command, over any transport.

use parking_lot::Mutex;
use std::io::{self, IoSlice, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use crate::address::Address;
use crate::error::Result;
use crate::transport::{Closer, Listener, Sink, Source, TimeLimits, Transport, Wire};

/// What goes wrong with the connections of a [`Faulty`] transport.
#[derive(Default)]
pub struct Switches {
    silent: AtomicBool,
    /// How many bytes are received until one is changed; none if negative.
    until_change: AtomicI64,
    wires: Mutex<Vec<Arc<dyn Closer>>>,
}

impl Switches {
    /// Cuts all connections that there are.
    pub fn cut(&self) {
        for wire in self.wires.lock().drain(..) {
            wire.close();
        }
    }

    /// Changes one bit of what is received, after `bytes` bytes.
    pub fn change_after(&self, bytes: i64) {
        self.until_change.store(bytes, Ordering::Release);
    }

    /// Lets nothing come in any more, or everything again.
    pub fn silence(&self, silent: bool) {
        self.silent.store(silent, Ordering::Release);
    }
}

/// A transport whose connections fail on command, on the side that connects.
pub struct Faulty {
    inner: Arc<dyn Transport>,
    switches: Arc<Switches>,
}

impl Faulty {
    /// `inner`, and nothing goes wrong yet.
    pub fn around(inner: Arc<dyn Transport>) -> Faulty {
        let switches = Arc::new(Switches::default());
        switches.change_after(-1);
        Faulty { inner, switches }
    }

    /// What makes it fail.
    pub fn switches(&self) -> Arc<Switches> {
        self.switches.clone()
    }
}

impl Transport for Faulty {
    fn connect(&self, address: &Address, timeout: TimeLimits) -> Result<Wire> {
        let Wire { source, sink, closer } = self.inner.connect(address, timeout)?;
        self.switches.wires.lock().push(closer.clone());
        let switches = self.switches.clone();
        let source = FaultySource { inner: source, switches, timeout: timeout.stall };
        Ok(Wire { source: Box::new(source), sink: Box::new(Plain(sink)), closer })
    }

    fn listen(&self, address: &Address) -> Result<Box<dyn Listener>> {
        self.inner.listen(address)
    }
}

struct FaultySource {
    inner: Box<dyn Source>,
    switches: Arc<Switches>,
    timeout: Duration,
}

impl Read for FaultySource {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let end = Instant::now() + self.timeout;
        while self.switches.silent.load(Ordering::Acquire) {
            if Instant::now() >= end {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let read = self.inner.read(buffer)?;
        let left = self.switches.until_change.load(Ordering::Acquire);
        if left >= 0 {
            let after = left - read as i64;
            self.switches.until_change.store(after.max(-1), Ordering::Release);
            if after < 0 {
                buffer[left as usize] ^= 4;
            }
        }
        Ok(read)
    }
}

impl Source for FaultySource {
    fn set_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.timeout = timeout;
        self.inner.set_timeout(timeout)
    }
}

/// A sink that sends files by reading them, as transports without `sendfile` do.
struct Plain(Box<dyn Sink>);

impl Sink for Plain {
    fn send(&mut self, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        self.0.send(parts)
    }

    fn end_frame(&mut self) -> io::Result<()> {
        self.0.end_frame()
    }
}
