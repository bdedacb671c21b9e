//! One connection over datagrams: what is under way in both directions.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, ErrorKind, IoSlice, Read};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::socket::stalled;
use super::super::{Closer, Sink, Source, TimeLimits, Wire};
use super::Datagrams;
use super::assembly::{Assembly, Unfit};
use super::endpoint::CLOSE_TIMEOUT;
use super::packet::{BEFORE_DATA, BITS, PACKET, Packet};
use crate::limits::Limits;

/// Bytes that a packet carries.
const DATA: usize = PACKET - BEFORE_DATA;
/// Bytes of whole messages that wait for their reader; beyond that nothing is acknowledged.
const UNREAD: usize = 4 << 20;
/// Bounds of the time after which a packet is sent again.
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Packets that overtake another before that one counts as lost.
const OVERTAKEN: u64 = 3;

/// One side of a connection.
pub(super) struct Connection {
    pub id: u64,
    pub peer: SocketAddr,
    socket: Arc<dyn Datagrams>,
    state: Mutex<State>,
    /// A message is whole, or nothing will come any more.
    readable: Condvar,
    /// Packets were acknowledged, or the other side accepted, or nothing will be sent any more.
    writable: Condvar,
}

struct State {
    outgoing: Outgoing,
    incoming: Incoming,
    accepted: bool,
    /// Nothing comes any more, and nothing can be sent.
    ended: bool,
    /// Closed on this side; the moment when the last acknowledgements are waited for no longer.
    closing: Option<Instant>,
    /// How long nothing may be heard while something is under way.
    silence: Duration,
    heard: Instant,
}

struct Outgoing {
    next: u64,
    under_way: BTreeMap<u64, Sent>,
    /// Packets that may be under way.
    window: f64,
    /// Above it the window grows by one for each round trip only.
    threshold: f64,
    /// Losses of packets before this one have been taken into account.
    recovered: u64,
    round_trip: Option<(Duration, Duration)>,
    progress: Instant,
}

struct Sent {
    bytes: Vec<u8>,
    at: Instant,
    tries: u32,
}

struct Incoming {
    /// All packets below have come.
    below: u64,
    beyond: BTreeSet<u64>,
    assembly: Assembly,
    ready: VecDeque<Vec<u8>>,
    unread: usize,
    acknowledge: bool,
    /// When the last new packet came.
    progress: Instant,
}

impl Connection {
    pub fn new(id: u64, peer: SocketAddr, socket: Arc<dyn Datagrams>) -> Connection {
        let now = Instant::now();
        let largest = (Limits::MAX_BODY + Limits::MAX_FIELDS) as usize + PACKET * BITS as usize;
        let outgoing = Outgoing {
            next: 0,
            under_way: BTreeMap::new(),
            window: 16.0,
            threshold: BITS as f64,
            recovered: 0,
            round_trip: None,
            progress: now,
        };
        let incoming = Incoming {
            below: 0,
            beyond: BTreeSet::new(),
            assembly: Assembly::new(largest),
            ready: VecDeque::new(),
            unread: 0,
            acknowledge: false,
            progress: now,
        };
        let state = State {
            outgoing,
            incoming,
            accepted: false,
            ended: false,
            closing: None,
            silence: Duration::from_secs(10),
            heard: now,
        };
        let (readable, writable) = (Condvar::new(), Condvar::new());
        Connection { id, peer, socket, state: Mutex::new(state), readable, writable }
    }

    /// The two directions, for those who send and receive frames.
    pub fn wire(self: Arc<Self>, timeout: TimeLimits) -> Wire {
        self.state.lock().silence = (timeout.stall * 4).max(Duration::from_secs(1));
        let source = UdpSource {
            connection: self.clone(),
            message: Vec::new(),
            at: 0,
            timeout: timeout.stall,
        };
        let sink = UdpSink {
            connection: self.clone(),
            message: 0,
            packet: 0,
            bytes: Vec::with_capacity(DATA),
            timeout: timeout.stall,
        };
        Wire { source: Box::new(source), sink: Box::new(sink), closer: self }
    }

    /// Sends a packet that nobody waits for. Whether it gets lost shows later.
    pub fn send(&self, packet: &Packet<'_>) {
        let mut bytes = Vec::with_capacity(64);
        packet.encode(self.id, &mut bytes);
        let _ = self.socket.send_to(&bytes, self.peer);
    }

    /// Asks to be let in until that is answered.
    pub fn handshake(&self, within: Duration) -> io::Result<()> {
        let end = Instant::now() + within;
        let mut state = self.state.lock();
        while !state.accepted && !state.ended {
            if Instant::now() >= end {
                return Err(ErrorKind::TimedOut.into());
            }
            self.send(&Packet::Connect);
            let again = (Instant::now() + Duration::from_millis(50)).min(end);
            self.writable.wait_until(&mut state, again);
        }
        match state.accepted {
            true => Ok(()),
            false => Err(ErrorKind::ConnectionRefused.into()),
        }
    }

    /// Takes a packet that arrived.
    pub fn take(&self, packet: &Packet<'_>, now: Instant) {
        let mut state = self.state.lock();
        state.heard = now;
        match packet {
            Packet::Connect => self.send(&Packet::Accept),
            Packet::Accept => {
                state.accepted = true;
                self.writable.notify_all();
            }
            Packet::Data { number, message, packet, last, bytes } => {
                state.accepted = true;
                let taken = state.incoming.take(*number, *message, *packet, *last, bytes, now);
                match taken {
                    Ok(true) => {
                        self.readable.notify_all();
                    }
                    Ok(false) | Err(Unfit::Full) => {}
                    Err(Unfit::Contradiction) => self.end(&mut state),
                }
            }
            Packet::Acknowledgement { below, beyond } => {
                let State { outgoing, .. } = &mut *state;
                for lost in outgoing.acknowledged(*below, beyond, now) {
                    self.send_again(outgoing, lost, now);
                }
                self.writable.notify_all();
            }
            Packet::Bye => self.end(&mut state),
        }
    }

    /// Acknowledges what came since the last time.
    pub fn acknowledge(&self) {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.incoming.acknowledge) {
            let (below, beyond) = state.incoming.acknowledgement();
            self.send(&Packet::Acknowledgement { below, beyond });
        }
    }

    /// Sends again what is overdue; `true` if the connection is over.
    pub fn tick(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        let State { outgoing, .. } = &mut *state;
        let overdue = outgoing.overdue(now);
        for number in overdue {
            self.send_again(outgoing, number, now);
        }
        let quiet = now.saturating_duration_since(state.heard);
        let waits = !state.outgoing.under_way.is_empty() && quiet >= state.silence;
        let silence = state.silence;
        // A sender that acknowledges or sends nothing any more has crashed; so what it left
        // unfinished is an orphan.
        let orphans = quiet >= silence && state.incoming.assembly.collect_orphans(now, silence) > 0;
        if waits || orphans {
            self.end(&mut state);
        }
        let State { outgoing, closing, ended, .. } = &mut *state;
        let done = closing.is_some_and(|end| outgoing.under_way.is_empty() || now >= end);
        if done && !*ended {
            self.send(&Packet::Bye);
        }
        done || *ended
    }

    fn send_again(&self, outgoing: &mut Outgoing, number: u64, now: Instant) {
        if let Some(sent) = outgoing.under_way.get_mut(&number) {
            (sent.at, sent.tries) = (now, sent.tries + 1);
            let _ = self.socket.send_to(&sent.bytes, self.peer);
        }
    }

    fn end(&self, state: &mut State) {
        state.ended = true;
        self.readable.notify_all();
        self.writable.notify_all();
    }
}

impl Closer for Connection {
    fn close(&self) {
        let mut state = self.state.lock();
        state.closing.get_or_insert_with(|| Instant::now() + CLOSE_TIMEOUT);
        self.readable.notify_all();
        self.writable.notify_all();
    }
}

impl Outgoing {
    fn has_room(&self) -> bool {
        // The receiver can't speak of packets farther ahead than its bitmap.
        let first = self.under_way.first_key_value().map_or(self.next, |(number, _)| *number);
        (self.under_way.len() as f64) < self.window && self.next < first + BITS
    }

    /// Notes what has arrived, and tells what has not although later ones have.
    fn acknowledged(&mut self, below: u64, beyond: &[u64; 4], now: Instant) -> Vec<u64> {
        let arrived = |number: u64| {
            number < below
                || number > below && number - below <= BITS && {
                    let bit = number - below - 1;
                    beyond[(bit / 64) as usize] >> (bit % 64) & 1 == 1
                }
        };
        let mut newest = None;
        let before = self.under_way.len();
        self.under_way.retain(|number, sent| {
            if arrived(*number) {
                newest = Some((*number, sent.at, sent.tries));
            }
            !arrived(*number)
        });
        let Some((newest, at, tries)) = newest else { return Vec::new() };
        self.progress = now;
        // Of a packet sent twice nobody knows which of the two was acknowledged (Karn's rule).
        if tries == 1 {
            self.measure(now.saturating_duration_since(at));
        }
        let count = (before - self.under_way.len()) as f64;
        let growth = if self.window < self.threshold { count } else { count / self.window };
        self.window = (self.window + growth).min(BITS as f64);
        let trip = self.round_trip.map_or(RETRY.0, |(mean, deviation)| mean + deviation);
        let lost = self.under_way.range(..newest.saturating_sub(OVERTAKEN - 1));
        // One that was sent again is given the time of a round trip.
        let lost = lost
            .filter(|(_, sent)| sent.tries == 1 || now.saturating_duration_since(sent.at) > trip);
        let lost: Vec<u64> = lost.map(|(number, _)| *number).collect();
        if let Some(last) = lost.last() {
            self.shrink(*last, 0.5);
        }
        lost
    }

    /// Fewer packets may be under way after a loss, once for each window.
    fn shrink(&mut self, lost: u64, factor: f64) {
        if lost >= self.recovered {
            self.recovered = self.next;
            self.threshold = (self.window * factor).max(4.0);
            self.window = self.threshold;
        }
    }

    /// RFC 6298, section 2.
    fn measure(&mut self, trip: Duration) {
        self.round_trip = Some(match self.round_trip {
            None => (trip, trip / 2),
            Some((mean, deviation)) => {
                (mean * 7 / 8 + trip / 8, deviation * 3 / 4 + mean.abs_diff(trip) / 4)
            }
        });
    }

    /// What was not acknowledged in time, a few at a go.
    fn overdue(&mut self, now: Instant) -> Vec<u64> {
        let (mean, deviation) = self.round_trip.unwrap_or((RETRY.0 * 2, RETRY.0));
        let wait = (mean + deviation * 4).clamp(RETRY.0, RETRY.1);
        let late = |sent: &Sent| {
            let wait = (wait * (1 << (sent.tries - 1).min(6))).min(RETRY.1);
            now.saturating_duration_since(sent.at) >= wait
        };
        let late: Vec<u64> = self
            .under_way
            .iter()
            .filter(|(_, sent)| late(sent))
            .map(|(n, _)| *n)
            .take(16)
            .collect();
        if let Some(last) = late.last() {
            self.shrink(*last, 0.25);
        }
        late
    }
}

impl Incoming {
    /// Takes a data packet; `true` if a message is whole now. What is not taken is not acknowledged,
    /// and will come again.
    fn take(
        &mut self,
        number: u64,
        message: u64,
        packet: u32,
        last: bool,
        bytes: &[u8],
        now: Instant,
    ) -> Result<bool, Unfit> {
        self.acknowledge = true;
        if number < self.below || self.beyond.contains(&number) {
            return Ok(false);
        }
        if number - self.below > BITS || self.unread > UNREAD {
            return Err(Unfit::Full);
        }
        let whole = self.assembly.take(message, packet, last, bytes, now)?;
        self.progress = now;
        self.beyond.insert(number);
        while self.beyond.remove(&self.below) {
            self.below += 1;
        }
        let Some(whole) = whole else { return Ok(false) };
        self.unread += whole.len();
        self.ready.push_back(whole);
        Ok(true)
    }

    fn acknowledgement(&self) -> (u64, [u64; 4]) {
        let mut bits = [0; 4];
        for number in &self.beyond {
            let bit = number - self.below - 1;
            if bit < BITS {
                bits[(bit / 64) as usize] |= 1 << (bit % 64);
            }
        }
        (self.below, bits)
    }
}

/// What comes in: messages, read one after the other.
struct UdpSource {
    connection: Arc<Connection>,
    message: Vec<u8>,
    at: usize,
    timeout: Duration,
}

impl Read for UdpSource {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        while self.at == self.message.len() {
            self.message = self.next_message()?;
            self.at = 0;
            if self.message.is_empty() {
                return Ok(0);
            }
        }
        let len = buffer.len().min(self.message.len() - self.at);
        buffer[..len].copy_from_slice(&self.message[self.at..self.at + len]);
        self.at += len;
        Ok(len)
    }
}

impl UdpSource {
    /// The next message; an empty one at the end.
    fn next_message(&self) -> io::Result<Vec<u8>> {
        let begun = Instant::now();
        let mut state = self.connection.state.lock();
        loop {
            if state.closing.is_some() {
                return Err(ErrorKind::ConnectionAborted.into());
            }
            while let Some(message) = state.incoming.ready.pop_front() {
                state.incoming.unread -= message.len();
                if !message.is_empty() {
                    return Ok(message);
                }
            }
            if state.ended {
                return Ok(Vec::new());
            }
            // Who is sending a long message is not silent.
            let end = state.incoming.progress.max(begun) + self.timeout;
            if Instant::now() >= end {
                return Err(ErrorKind::WouldBlock.into());
            }
            self.connection.readable.wait_until(&mut state, end);
        }
    }
}

impl Source for UdpSource {
    fn set_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.timeout = timeout;
        Ok(())
    }
}

/// What goes out: a message for each frame, cut into packets as its bytes come.
struct UdpSink {
    connection: Arc<Connection>,
    message: u64,
    packet: u32,
    bytes: Vec<u8>,
    timeout: Duration,
}

impl UdpSink {
    fn transmit(&mut self, last: bool) -> io::Result<()> {
        let mut state = self.room()?;
        let outgoing = &mut state.outgoing;
        let number = outgoing.next;
        let (message, packet) = (self.message, self.packet);
        let data = Packet::Data { number, message, packet, last, bytes: &self.bytes };
        let mut bytes = Vec::with_capacity(BEFORE_DATA + self.bytes.len());
        data.encode(self.connection.id, &mut bytes);
        outgoing.next += 1;
        // What can't be sent now is sent again like what gets lost.
        let _ = self.connection.socket.send_to(&bytes, self.connection.peer);
        outgoing.under_way.insert(number, Sent { bytes, at: Instant::now(), tries: 1 });
        drop(state);
        self.bytes.clear();
        (self.message, self.packet) = match last {
            true => (self.message + 1, 0),
            false => (self.message, self.packet + 1),
        };
        Ok(())
    }

    /// Waits until one more packet may be under way.
    fn room(&self) -> io::Result<MutexGuard<'_, State>> {
        let begun = Instant::now();
        let mut state = self.connection.state.lock();
        loop {
            if state.ended || state.closing.is_some() {
                return Err(ErrorKind::BrokenPipe.into());
            }
            if state.outgoing.has_room() {
                return Ok(state);
            }
            let end = state.outgoing.progress.max(begun) + self.timeout;
            if Instant::now() >= end {
                return Err(stalled());
            }
            self.connection.writable.wait_until(&mut state, end);
        }
    }
}

impl Sink for UdpSink {
    fn send(&mut self, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        for part in parts {
            let mut rest = &part[..];
            while !rest.is_empty() {
                if self.bytes.len() == DATA {
                    self.transmit(false)?;
                }
                let (now, later) = rest.split_at(rest.len().min(DATA - self.bytes.len()));
                self.bytes.extend_from_slice(now);
                rest = later;
            }
        }
        Ok(())
    }

    fn end_frame(&mut self) -> io::Result<()> {
        self.transmit(true)
    }
}
