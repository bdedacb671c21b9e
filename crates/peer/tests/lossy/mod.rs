//! Datagrams that get lost, doubled, reordered and changed, always in the same way.

use forebay_peer::Security;
use forebay_peer::transport::udp::{Datagrams, Udp, system_socket};
use parking_lot::Mutex;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What happens to datagrams, in percent of them, and what has happened.
#[derive(Debug, Default)]
pub struct Weather {
    pub lost: u64,
    pub doubled: u64,
    pub held: u64,
    pub changed: u64,
    /// After so many from now on all are lost; never if 0.
    pub until_dead: AtomicU64,
    pub sent: AtomicU64,
    pub harmed: AtomicU64,
}

struct Lossy {
    socket: Arc<dyn Datagrams>,
    weather: Arc<Weather>,
    chance: Mutex<u64>,
    held: Mutex<Option<(Vec<u8>, SocketAddr)>>,
}

/// UDP in such weather.
pub fn udp(weather: &Arc<Weather>) -> Udp {
    let weather = weather.clone();
    let bind = move |at| -> io::Result<Arc<dyn Datagrams>> {
        let socket = system_socket(at)?;
        let (chance, held) = (Mutex::new(0x9e37_79b9_7f4a_7c15), Mutex::new(None));
        Ok(Arc::new(Lossy { socket, weather: weather.clone(), chance, held }))
    };
    Udp::over(&Security::Off, Arc::new(bind)).unwrap()
}

impl Lossy {
    /// Whether something that happens to `percent` happens now (xorshift, Marsaglia 2003).
    fn happens(&self, percent: u64) -> bool {
        let mut chance = self.chance.lock();
        *chance ^= *chance << 13;
        *chance ^= *chance >> 7;
        *chance ^= *chance << 17;
        let happens = *chance % 100 < percent;
        if happens {
            self.weather.harmed.fetch_add(1, Ordering::Relaxed);
        }
        happens
    }

    fn is_dead(&self) -> bool {
        let left = self.weather.until_dead.load(Ordering::Acquire);
        if left > 1 {
            self.weather.until_dead.store(left - 1, Ordering::Release);
        }
        left == 1
    }
}

impl Datagrams for Lossy {
    fn send_to(&self, packet: &[u8], to: SocketAddr) -> io::Result<()> {
        self.weather.sent.fetch_add(1, Ordering::Relaxed);
        if self.is_dead() || self.happens(self.weather.lost) {
            return Ok(());
        }
        let mut packet = packet.to_vec();
        if self.happens(self.weather.changed) {
            let at = packet.len() / 2;
            packet[at] ^= 1;
        }
        if self.happens(self.weather.held) {
            let before = self.held.lock().replace((packet, to));
            return before
                .map_or(Ok(()), |(packet, to)| self.socket.send_to(&packet, to).map(|_| ()));
        }
        if self.happens(self.weather.doubled) {
            self.socket.send_to(&packet, to)?;
        }
        self.socket.send_to(&packet, to)?;
        // What was held back is overtaken by this one.
        if let Some((packet, to)) = self.held.lock().take() {
            self.socket.send_to(&packet, to)?;
        }
        Ok(())
    }

    fn receive(&self, packet: &mut [u8], timeout: Duration) -> io::Result<(usize, SocketAddr)> {
        self.socket.receive(packet, timeout)
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        self.socket.local_address()
    }
}
