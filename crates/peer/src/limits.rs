//! How much of anything there may be, and how long anything may take.

use std::time::Duration;

/// Bounds of both sides. Each side keeps to its own, and tells the other how many calls and bytes
/// it takes at once.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Calls of one connection that may be unanswered at a time.
    pub calls: u32,
    /// Bytes of bodies, of requests and of expected answers, under way on one connection.
    pub bytes: u32,
    /// Bytes of the body of one message; at most [`Limits::MAX_BODY`].
    pub body: u32,
    /// Bytes of bodies of requests that a server keeps in memory, over all connections.
    pub memory: u64,
    /// Connections of a server.
    pub connections: usize,
    /// Connections of a server that have not said yet who they are.
    pub strangers: usize,
    /// How long a connection may take to come about.
    pub connect: Duration,
    /// How long both sides may take to know who the other is, from the connection on.
    pub handshake: Duration,
    /// How long nothing may move in the middle of a message before the connection is given up.
    pub stall: Duration,
    /// How long a connection may be without calls before the server closes it.
    pub idle: Duration,
    /// Threads for what is answered at once (reads, replicas).
    pub quick_threads: usize,
    /// Threads for what may wait for a device or for somebody (write-back, recall, locks).
    pub slow_threads: usize,
    /// Requests that may wait for a thread of each kind.
    pub queue: usize,
    /// Whether bodies that the kernel sends straight from a file have checksums as well, which
    /// takes reading them. Without, TCP's own sums are all that protects them on a plain connection.
    pub sum_files: bool,
}

impl Limits {
    /// No message has a longer body, whatever the settings.
    pub const MAX_BODY: u32 = 64 << 20;
    /// No message has more bytes of fields.
    pub const MAX_FIELDS: u32 = 64 << 10;
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            calls: 64,
            bytes: 64 << 20,
            body: 16 << 20,
            memory: 256 << 20,
            connections: 1024,
            strangers: 64,
            connect: Duration::from_secs(2),
            handshake: Duration::from_secs(5),
            stall: Duration::from_secs(5),
            idle: Duration::from_secs(300),
            quick_threads: 8,
            slow_threads: 16,
            queue: 256,
            sum_files: true,
        }
    }
}
