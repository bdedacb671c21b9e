//! The machine below: links, memory, a striped file system with tokens, a lock service.

use std::collections::{BTreeMap, HashMap, VecDeque};

/// Numbers of a machine. All are assumptions but those that docs/design/coop.md calls stated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hardware {
    /// Seconds of a message on its way, beside its bytes.
    pub latency: f64,
    /// Bytes a second of a node's link, each way.
    pub link: f64,
    /// Seconds that a process takes for an event of the cache.
    pub event: f64,
    /// Bytes a second that are copied in memory.
    pub memory: f64,
    /// Servers of the file system.
    pub servers: u32,
    /// Bytes a second that all of them read.
    pub read: f64,
    /// Bytes a second that all of them write.
    pub write: f64,
    /// Seconds that a server takes for a request, beside its bytes.
    pub request: f64,
    /// Bytes of a block that lies on one server.
    pub block: u64,
    /// Seconds to take the token of a block from another client.
    pub token: f64,
    /// Seconds that the lock service takes to lock or unlock a range.
    pub lock: f64,
}

/// A machine to model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Machine {
    /// The IBM SP with GPFS of the paper
    Sp,
    /// A cluster of today with a parallel file system
    Today,
}

impl Machine {
    /// Its numbers.
    #[must_use]
    pub fn hardware(self) -> Hardware {
        match self {
            Self::Sp => Hardware {
                latency: 18e-6,
                link: 350e6,
                event: 10e-6,
                memory: 1e9,
                servers: 12,
                read: 2.1e9,
                write: 1e9,
                request: 300e-6,
                block: 256 << 10,
                token: 1e-3,
                lock: 200e-6,
            },
            Self::Today => Hardware {
                latency: 2e-6,
                link: 11.5e9,
                event: 2e-6,
                memory: 8e9,
                servers: 32,
                read: 64e9,
                write: 32e9,
                request: 100e-6,
                block: 1 << 20,
                token: 200e-6,
                lock: 10e-6,
            },
        }
    }
}

/// Who may use a block of the file system.
#[derive(Debug, Clone, Copy, Default)]
struct Token {
    writer: Option<u32>,
    /// The reader, if there is one.
    reader: Option<u32>,
    /// Whether there are several.
    readers: bool,
    /// When it can be taken again.
    free: f64,
}

/// Links and the file system, each with the moment from which it is free.
pub struct Below {
    /// The numbers.
    pub hardware: Hardware,
    out: Vec<f64>,
    into: Vec<f64>,
    servers: Vec<f64>,
    tokens: HashMap<u64, Token>,
    /// How long the file is.
    end: u64,
    /// Requests that the file system got.
    pub requests: u64,
    /// Bytes that went to it or came from it.
    pub bytes: u64,
}

impl Below {
    /// An idle one, with a file of this length.
    #[must_use]
    pub fn new(hardware: Hardware, ranks: u32, end: u64) -> Self {
        Self {
            hardware,
            out: vec![0.0; ranks as usize],
            into: vec![0.0; ranks as usize],
            servers: vec![0.0; hardware.servers as usize],
            tokens: HashMap::new(),
            end,
            requests: 0,
            bytes: 0,
        }
    }

    /// When a message has arrived that is sent at `now`.
    pub fn send(&mut self, now: f64, from: u32, to: u32, bytes: u64) -> f64 {
        let time = (bytes + 64) as f64 / self.hardware.link;
        let out = &mut self.out[from as usize];
        *out = out.max(now) + time;
        let into = &mut self.into[to as usize];
        *into = (*out + self.hardware.latency).max(*into + time);
        *into
    }

    /// When a contiguous access to the file has ended that begins at `now`.
    pub fn access(&mut self, now: f64, rank: u32, writes: bool, offset: u64, len: u64) -> f64 {
        let Hardware { latency, link, request, block, token, .. } = self.hardware;
        let rate = if writes { self.hardware.write } else { self.hardware.read };
        let rate = rate / f64::from(self.hardware.servers);
        self.requests += 1;
        // Of what is beyond the end of the file nothing is read.
        let there = if writes { u64::MAX } else { self.end };
        self.bytes += len.min(there.saturating_sub(offset));
        let side = if writes { &mut self.out } else { &mut self.into };
        let own = &mut side[rank as usize];
        let (mut at, mut done) = (offset, now + 2.0 * latency);
        while at < offset + len {
            let number = at / block;
            let piece = ((number + 1) * block).min(offset + len) - at;
            let bytes = piece.min(there.saturating_sub(at)) as f64;
            let entry = self.tokens.entry(number).or_default();
            let taken = entry.writer.is_some_and(|writer| writer != rank)
                || writes && (entry.readers || entry.reader.is_some_and(|it| it != rank));
            let held = if taken { entry.free.max(now) + token } else { now };
            if writes {
                (entry.writer, entry.reader, entry.readers) = (Some(rank), None, false);
            } else {
                entry.writer = entry.writer.filter(|writer| *writer == rank);
                entry.readers |= entry.reader.is_some_and(|it| it != rank);
                entry.reader = Some(rank);
            }
            *own = own.max(held) + bytes / link;
            let server = &mut self.servers[(number % u64::from(self.hardware.servers)) as usize];
            let begin = server.max(if writes { *own } else { held } + latency);
            *server = begin + request + bytes / rate;
            let end = if writes { *server } else { server.max(*own) } + latency;
            entry.free = end;
            done = done.max(end);
            at += piece;
        }
        if writes {
            self.end = self.end.max(offset + len);
        }
        done
    }
}

/// Locks of ranges of the file, all at one server.
#[derive(Default)]
pub struct Locks {
    free: f64,
    held: BTreeMap<u64, (u64, u64, bool)>,
    waiting: VecDeque<(u32, u64, u64, bool)>,
    next: u64,
    numbers: BTreeMap<u32, u64>,
}

impl Locks {
    fn serve(&mut self, now: f64, hardware: &Hardware) -> f64 {
        self.free = self.free.max(now + hardware.latency) + hardware.lock;
        self.free + hardware.latency
    }

    fn conflicts(&self, start: u64, end: u64, writes: bool) -> bool {
        let mut held = self.held.values();
        held.any(|(from, to, wrote)| *from < end && start < *to && (writes || *wrote))
    }

    /// Asks for a range of bytes. Gives the moment of the answer, or `None`: it comes later.
    pub fn lock(
        &mut self,
        now: f64,
        hardware: &Hardware,
        (rank, start, end, writes): (u32, u64, u64, bool),
    ) -> Option<f64> {
        let answer = self.serve(now, hardware);
        let overtakes = self
            .waiting
            .iter()
            .any(|(_, from, to, wrote)| *from < end && start < *to && (writes || *wrote));
        if overtakes || self.conflicts(start, end, writes) {
            self.waiting.push_back((rank, start, end, writes));
            return None;
        }
        self.hold(rank, start, end, writes);
        Some(answer)
    }

    fn hold(&mut self, rank: u32, start: u64, end: u64, writes: bool) {
        self.next += 1;
        self.held.insert(self.next, (start, end, writes));
        self.numbers.insert(rank, self.next);
    }

    /// Gives back what a process has locked. Gives who gets a lock by that, and when.
    pub fn unlock(&mut self, now: f64, hardware: &Hardware, rank: u32) -> Vec<(u32, f64)> {
        let answer = self.serve(now, hardware);
        if let Some(number) = self.numbers.remove(&rank) {
            self.held.remove(&number);
        }
        let mut granted = Vec::new();
        let mut rest: VecDeque<(u32, u64, u64, bool)> = VecDeque::new();
        for (rank, start, end, writes) in std::mem::take(&mut self.waiting) {
            let behind = rest
                .iter()
                .any(|(_, from, to, wrote)| *from < end && start < *to && (writes || *wrote));
            if behind || self.conflicts(start, end, writes) {
                rest.push_back((rank, start, end, writes));
            } else {
                self.hold(rank, start, end, writes);
                granted.push((rank, answer));
            }
        }
        self.waiting = rest;
        granted
    }
}
