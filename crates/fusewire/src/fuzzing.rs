//! What decodes bytes from outside, to be fed by fuzzers: `fuzz/` and `tests/fuzzing.rs`. No part of
//! the interface; behind the feature `fuzzing`.
//!
//! Everything runs as it does in a session, from `Dispatch::serve` to the reply, but for the
//! device: answers go to `/dev/null`. What must never happen is a panic, an access out of bounds
//! (which a sanitizer sees), or a request that stays in flight after its reply is gone.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::abi::{self, Wire, opcode};
use crate::connection::{Connection, HEADROOM, REQUEST_START};
use crate::directory::DirectoryBuffer;
use crate::dispatch::Dispatch;
use crate::flags::Features;
use crate::handler::Handler;
use crate::negotiate::{self, Negotiated};
use crate::operation::{Operation, fixed_size};
use crate::options::Options;
use crate::reply::Reply;
use crate::request::Request;
use crate::ring::trial::{BEFORE_PAYLOAD, JOURNAL, Trial};
use crate::types::{Entry, FileKind};

/// The longest request.
const MAX_WRITE: u32 = 8192;
/// Replies that wait at most, so that interrupts find their requests.
const HELD: usize = 8;

/// A handler that looks at all of a request, and answers in one of several ways.
#[derive(Default)]
struct Consumer {
    held: Mutex<Vec<(Request, Reply)>>,
    panicked: AtomicBool,
}

impl Consumer {
    fn digest(&self, request: Request, reply: Reply) {
        let header = *request.header();
        let operation = request.operation();
        // Reads every byte that the operation refers to.
        std::hint::black_box(format!("{operation:?}"));
        if let Ok(extensions) = request.extensions() {
            std::hint::black_box(extensions.supplementary_group());
            std::hint::black_box(
                extensions.security_contexts().map(|c| c.value.len()).sum::<usize>(),
            );
        }
        std::hint::black_box(request.interrupted());
        match operation {
            Err(_) => reply.error(libc::EIO),
            Ok(Operation::Setlkw { .. }) => {
                let mut held = self.held.lock();
                if held.len() == HELD {
                    drop(held.remove(0));
                }
                held.push((request, reply));
            }
            Ok(Operation::Readdir { size, .. } | Operation::Readdirplus { size, .. }) => {
                let mut list = DirectoryBuffer::new(reply.connection(), size);
                let entry = Entry { node: header.node, ..Entry::default() };
                let mut offset = 0;
                while list.add(7, offset + 1, FileKind::Regular, b"name")
                    && list.add_plus(&entry, offset + 2, b"another name")
                {
                    offset += 2;
                }
                assert!(list.as_bytes().len() <= size as usize, "a listing is too long");
                reply.directory(list);
            }
            Ok(Operation::RemoveMapping { ranges }) => {
                std::hint::black_box(ranges.iter().map(|range| range.length).max());
                reply.ok();
            }
            Ok(Operation::Lookup { name } | Operation::Unlink { name }) => {
                assert!(!name.contains(&0), "a name ends at its first zero");
                drop(reply);
            }
            Ok(Operation::Write { data, .. }) => {
                assert!(data.len() <= MAX_WRITE as usize + HEADROOM, "more than was sent");
                reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX));
            }
            Ok(_) => reply.ok(),
        }
    }
}

impl Handler for Consumer {
    fn handle(&self, request: Request, reply: Reply) {
        // The session survives panics; here they are findings.
        self.panicked.store(true, Ordering::SeqCst);
        self.digest(request, reply);
        self.panicked.store(false, Ordering::SeqCst);
    }
    fn forget(&self, node: u64, lookups: u64) {
        std::hint::black_box((node, lookups));
    }
}

fn negotiated(features: Features) -> Negotiated {
    Negotiated {
        minor: 45,
        kernel_minor: 45,
        features,
        offered: Features::NONE,
        max_write: MAX_WRITE,
        max_pages: 2,
        max_readahead: 0,
    }
}

fn dispatch(features: Features) -> (Dispatch<Consumer>, Arc<Consumer>) {
    // What the test can't do without is there on every system that has FUSE.
    let null = File::options().write(true).open("/dev/null").expect("/dev/null");
    let connection = Connection::new(OwnedFd::from(null), negotiated(features), 4);
    let handler = Arc::new(Consumer::default());
    let destroyed = Arc::new(AtomicBool::new(false));
    (Dispatch { handler: Arc::clone(&handler), connection, destroyed }, handler)
}

fn session(features: Features, messages: &[&[u8]]) {
    let (dispatch, handler) = dispatch(features);
    let connection = &dispatch.connection;
    for message in messages {
        let mut buffer = connection.large_pool().take().starting_at(REQUEST_START);
        let length = message.len().min(buffer.len());
        buffer[..length].copy_from_slice(&message[..length]);
        drop(dispatch.serve(buffer, length));
        assert!(!handler.panicked.load(Ordering::SeqCst), "the decoder panicked");
    }
    handler.held.lock().clear();
    assert_eq!(connection.in_flight(), 0, "a request is in flight, but nobody can answer it");
}

/// One request, as it is read from the device, under both layouts of SETXATTR.
pub fn request(bytes: &[u8]) {
    for features in [Features::NONE, Features::SETXATTR_EXT] {
        session(features, &[bytes]);
    }
}

/// Several requests on one connection, each after two bytes with its length. Its own length is put
/// into each, and the number of its opcode is kept small, so that not most of them are refused for
/// that alone.
pub fn requests(mut bytes: &[u8]) {
    let mut messages = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<2>() {
        let (message, rest) =
            rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
        let mut message = message.to_vec();
        if message.len() >= size_of::<abi::InHeader>() {
            let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
            message[..4].copy_from_slice(&length.to_ne_bytes());
            message[5..8].fill(0);
        }
        messages.push(message);
        bytes = rest;
    }
    let messages: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
    session(Features::SETXATTR_EXT, &messages);
}

/// An entry of a ring, served as if the kernel had just given it, and as if the process that had it
/// was dead: its header (288 bytes), the first 24 bytes of its journal, its payload.
pub fn entry(bytes: &[u8]) {
    thread_local! {
        static TRIAL: Trial = Trial::new(MAX_WRITE as usize).expect("memory for one entry");
    }
    let (dispatch, handler) = dispatch(Features::SETXATTR_EXT);
    TRIAL.with(|trial| {
        for is_left in [false, true] {
            trial.serve(&dispatch, bytes, is_left, || handler.held.lock().clear());
            assert!(!handler.panicked.load(Ordering::SeqCst), "the decoder panicked");
            assert_eq!(dispatch.connection.in_flight(), 0, "a request stays in flight");
        }
    });
}

/// The arguments of INIT.
pub fn init(bytes: &[u8]) {
    for max_write in [4096, 1 << 20, 16 << 20] {
        let options = Options { max_write, ..Options::default() };
        let Ok((out, Some(negotiated))) = negotiate::answer(bytes, &options) else { continue };
        assert!(negotiated.minor >= negotiate::MINIMUM_MINOR);
        assert!(negotiated.minor <= negotiate::MAXIMUM_MINOR);
        assert!(negotiated.max_write <= max_write && out.max_write == negotiated.max_write);
        assert!(u32::from(negotiated.max_pages) * 4096 >= negotiated.max_write);
        let agreed = negotiated.features.bits();
        assert_eq!(agreed & negotiated.offered.bits(), agreed, "more than was offered");
    }
}

/// A well-formed request for every opcode from 1 to 60.
pub fn seeds() -> Vec<Vec<u8>> {
    (1..=60).map(seed).collect()
}

fn seed(number: u32) -> Vec<u8> {
    // All numbers are 1, lengths and counts among them; what they count follows.
    let words = fixed_size(number, true).div_ceil(4);
    let mut body: Vec<u8> = (0..words).flat_map(|_| 1_u32.to_ne_bytes()).collect();
    if number == opcode::INIT {
        body = abi::InitIn {
            major: 7,
            minor: 45,
            max_readahead: 1 << 17,
            flags: u32::MAX,
            flags2: u32::MAX,
            unused: [0; 11],
        }
        .as_bytes()
        .to_vec();
    }
    body.extend(b"name\0other\0");
    body.extend([0; 21]);
    let header = abi::InHeader {
        len: u32::try_from(size_of::<abi::InHeader>() + body.len()).unwrap_or(u32::MAX),
        opcode: number,
        unique: 2 * u64::from(number),
        nodeid: 1,
        uid: 0,
        gid: 0,
        pid: 1,
        total_extlen: 0,
        padding: 0,
    };
    [header.as_bytes(), &body].concat()
}

/// Where the arguments begin in a request.
pub const ARGUMENTS: usize = size_of::<abi::InHeader>();

/// `messages` as [`requests`] takes them.
pub fn joined(messages: &[Vec<u8>]) -> Vec<u8> {
    let with_length = |message: &Vec<u8>| {
        let length = u16::try_from(message.len()).unwrap_or(u16::MAX);
        [&length.to_le_bytes()[..], message].concat()
    };
    messages.iter().flat_map(with_length).collect()
}

/// Well-formed entries as [`entry`] takes them: each seed as the kernel gives it, and as a process
/// leaves it that dies before it has begun to answer, while it answers, after too long an answer to
/// keep all that it overwrites, and when it has answered.
pub fn entry_seeds() -> Vec<Vec<u8>> {
    let journals = |unique: u64| {
        [(0, 0, 0, 0), (unique, 0, 32, 32), (unique, 0, 9000, 4000), (unique, unique, 0, 0)]
    };
    let mut entries = Vec::new();
    for message in seeds() {
        let header = abi::InHeader::read(&message).expect("a whole header");
        let body = &message[ARGUMENTS..];
        let (fixed, payload) = body.split_at(fixed_size(header.opcode, true).min(body.len()));
        let size = u32::try_from(payload.len()).expect("a few bytes");
        let about = abi::UringEntryInOut {
            commit_id: header.unique,
            payload_sz: size,
            ..Default::default()
        };
        for (begun, answered, size, kept) in journals(header.unique) {
            let mut entry = vec![0; BEFORE_PAYLOAD];
            entry[..ARGUMENTS].copy_from_slice(header.as_bytes());
            entry[128..128 + fixed.len()].copy_from_slice(fixed);
            entry[256..288].copy_from_slice(about.as_bytes());
            let journal = &mut entry[BEFORE_PAYLOAD - JOURNAL..];
            journal[..8].copy_from_slice(&u64::to_ne_bytes(begun));
            journal[8..16].copy_from_slice(&u64::to_ne_bytes(answered));
            journal[16..20].copy_from_slice(&u32::to_ne_bytes(size));
            journal[20..].copy_from_slice(&u32::to_ne_bytes(kept));
            entry.extend(payload);
            entries.push(entry);
        }
    }
    entries
}
