//! Frames: how messages lie on a wire.
//!
//! All numbers are little-endian. A frame is a head of 32 bytes, its fields, a sum, and, if there
//! is a body, the body and its trailer:
//!
//! | bytes | what |
//! |---|---|
//! | 0-3 | `F` `B` `P` and 1, the version of this layout |
//! | 4 | kind: 1 request, 2 answer, 3 fault, 4 cancel, 5 goodbye |
//! | 5 | 0 |
//! | 6-7 | code of the request, answer or fault |
//! | 8-15 | id: an answer has that of its request; ids of requests are unique in a connection |
//! | 16-19 | length of the fields, at most 64 KiB |
//! | 20-23 | length of the body |
//! | 24-27 | request: milliseconds that the caller waits; else 0 |
//! | 28-29 | hello: the newest version of the protocol that the sender knows; else 0 |
//! | 30-31 | 0 |
//! | then | the fields |
//! | 8 bytes | XXH3 (64 bits) of head and fields |
//! | then | the body |
//! | 8 bytes | XXH3 of the body |
//! | 4 bytes | 0 the body is whole; 1 it is spoiled; 2 it is whole, and has no sum |
//! | 4 bytes | 0 |

use std::io::{ErrorKind, IoSlice};
use std::os::unix::fs::FileExt;
use std::time::Duration;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::body::{Body, FileRange};
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::transport::{Sink, Source};

const MAGIC: [u8; 4] = *b"FBP\x01";
pub(crate) const HEAD: usize = 32;
const TRAILER: usize = 16;
/// Bytes of a file that are summed and sent in one go: they stay in the processor's cache.
const PIECE: usize = 256 << 10;

const WHOLE: u32 = 0;
const SPOILED: u32 = 1;
const UNSUMMED: u32 = 2;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Request = 1,
    Answer = 2,
    Fault = 3,
    Cancel = 4,
    Goodbye = 5,
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub kind: Kind,
    pub code: u16,
    pub id: u64,
    pub body: u32,
    pub timeout: Duration,
    /// In a hello.
    pub newest: u16,
}

/// What arrived.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// A head; its fields were put where the caller wanted them. The body follows.
    Frame(Head),
    /// Nothing, for as long as the wire's timeout lasted.
    Idle,
    /// The other side will send nothing any more.
    End,
}

/// What the trailer says of a body, once its sum was compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    Whole,
    Unsummed,
    Bad,
}

fn encode_head(head: &Head, fields: &[u8], to: &mut Vec<u8>) {
    to.clear();
    to.extend_from_slice(&MAGIC);
    to.extend_from_slice(&[head.kind as u8, 0]);
    to.extend_from_slice(&head.code.to_le_bytes());
    to.extend_from_slice(&head.id.to_le_bytes());
    to.extend_from_slice(&(fields.len() as u32).to_le_bytes());
    to.extend_from_slice(&head.body.to_le_bytes());
    let timeout = u32::try_from(head.timeout.as_millis()).unwrap_or(u32::MAX);
    to.extend_from_slice(&timeout.to_le_bytes());
    to.extend_from_slice(&head.newest.to_le_bytes());
    to.extend_from_slice(&[0; 2]);
    to.extend_from_slice(fields);
    to.extend_from_slice(&xxh3_64(to).to_le_bytes());
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// The head and how long its fields are. Nothing is believed yet but the bounds of the lengths.
fn decode_head(bytes: &[u8; HEAD], max_body: u32) -> Result<(Head, usize)> {
    if bytes[..4] != MAGIC {
        return Err(Error::Protocol("the other side speaks another protocol".into()));
    }
    let kind = match bytes[4] {
        1 => Kind::Request,
        2 => Kind::Answer,
        3 => Kind::Fault,
        4 => Kind::Cancel,
        5 => Kind::Goodbye,
        other => return Err(Error::Protocol(format!("there is no kind {other} of frames"))),
    };
    let (fields, body) = (u32_at(bytes, 16), u32_at(bytes, 20));
    for (len, limit) in [(fields, Limits::MAX_FIELDS), (body, max_body)] {
        if len > limit {
            return Err(Error::TooLarge { len: len.into(), limit: limit.into() });
        }
    }
    let head = Head {
        kind,
        code: u16::from_le_bytes([bytes[6], bytes[7]]),
        id: u64_at(bytes, 8),
        body,
        timeout: Duration::from_millis(u32_at(bytes, 24).into()),
        newest: u16::from_le_bytes([bytes[28], bytes[29]]),
    };
    Ok((head, fields as usize))
}

/// Takes frames from a wire.
pub(crate) struct FrameSource {
    source: Box<dyn Source>,
    max_body: u32,
    sum: Xxh3,
}

impl FrameSource {
    pub fn new(source: Box<dyn Source>, max_body: u32) -> FrameSource {
        FrameSource { source, max_body, sum: Xxh3::new() }
    }

    /// How long to wait for the next bytes.
    pub fn set_timeout(&mut self, timeout: Duration) -> Result<()> {
        self.source.set_timeout(timeout).map_err(|error| Error::lost(&error))
    }

    /// The next head; its fields come into `fields`.
    pub fn head(&mut self, fields: &mut Vec<u8>) -> Result<Received> {
        let mut head = [0; HEAD];
        let first = loop {
            match self.source.read(&mut head) {
                Ok(0) => return Ok(Received::End),
                Ok(some) => break some,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_pause(error.kind()) => return Ok(Received::Idle),
                Err(error) => return Err(Error::lost(&error)),
            }
        };
        self.fill(&mut head[first..])?;
        let (decoded, len) = decode_head(&head, self.max_body)?;
        fields.clear();
        fields.resize(len + 8, 0);
        self.fill(fields)?;
        let claimed = u64_at(fields, len);
        fields.truncate(len);
        self.sum.reset();
        self.sum.update(&head);
        self.sum.update(fields);
        match self.sum.digest() == claimed {
            true => Ok(Received::Frame(decoded)),
            false => Err(Error::Protocol("the head of a frame does not have its sum".into())),
        }
    }

    /// The body that follows a head, as long as `buffer` is.
    pub fn body(&mut self, buffer: &mut [u8]) -> Result<Trust> {
        if buffer.is_empty() {
            return Ok(Trust::Whole);
        }
        self.sum.reset();
        for piece in buffer.chunks_mut(PIECE) {
            self.fill(piece)?;
            self.sum.update(piece);
        }
        self.trailer()
    }

    /// Passes over a body that nobody wants.
    pub fn skip(&mut self, len: u32) -> Result<Trust> {
        if len == 0 {
            return Ok(Trust::Whole);
        }
        self.sum.reset();
        let mut left = len as usize;
        let mut piece = vec![0; left.min(PIECE)];
        while left > 0 {
            let piece = &mut piece[..left.min(PIECE)];
            self.fill(piece)?;
            self.sum.update(piece);
            left -= piece.len();
        }
        self.trailer()
    }

    fn trailer(&mut self) -> Result<Trust> {
        let mut trailer = [0; TRAILER];
        self.fill(&mut trailer)?;
        let same = u64_at(&trailer, 0) == self.sum.digest();
        Ok(match u32_at(&trailer, 8) {
            WHOLE if same => Trust::Whole,
            UNSUMMED => Trust::Unsummed,
            _ => Trust::Bad,
        })
    }

    fn fill(&mut self, mut buffer: &mut [u8]) -> Result<()> {
        while !buffer.is_empty() {
            match self.source.read(buffer) {
                Ok(0) => return Err(Error::lost(&ErrorKind::UnexpectedEof.into())),
                Ok(some) => buffer = &mut buffer[some..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_pause(error.kind()) => {
                    let why = "nothing came in the middle of a message".to_owned();
                    return Err(Error::Lost { why, sent: true });
                }
                Err(error) => return Err(Error::lost(&error)),
            }
        }
        Ok(())
    }
}

fn is_pause(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Puts frames on a wire.
pub(crate) struct FrameSink {
    sink: Box<dyn Sink>,
    head: Vec<u8>,
    piece: Vec<u8>,
    /// Whether bodies from files are summed although that takes a copy of its own.
    sum_files: bool,
}

impl FrameSink {
    pub fn new(sink: Box<dyn Sink>, sum_files: bool) -> FrameSink {
        FrameSink { sink, head: Vec::with_capacity(256), piece: Vec::new(), sum_files }
    }

    /// Sends a frame, whose body's length is taken from `body`.
    pub fn send(&mut self, mut head: Head, fields: &[u8], body: &Body) -> Result<()> {
        let len = body.len() as u64;
        let limit = u64::from(Limits::MAX_BODY);
        if len > limit || fields.len() > Limits::MAX_FIELDS as usize {
            return Err(Error::TooLarge { len, limit });
        }
        head.body = len as u32;
        encode_head(&head, fields, &mut self.head);
        let sent = match body {
            Body::File(range) => self.send_file(range),
            other => self.send_memory(other.in_memory().unwrap_or_default()),
        };
        sent.and_then(|()| self.sink.end_frame()).map_err(|error| Error::lost(&error))
    }

    fn send_memory(&mut self, body: &[u8]) -> std::io::Result<()> {
        if body.is_empty() {
            return self.sink.send(&mut [IoSlice::new(&self.head)]);
        }
        let trailer = trailer(xxh3_64(body), WHOLE);
        let parts = [&self.head[..], body, &trailer];
        self.sink.send(&mut parts.map(IoSlice::new))
    }

    /// Bytes are read, summed, and sent while they are in the cache, by the kernel itself where that
    /// pays. Should the file change in between, the sum does not fit and the receiver asks again.
    fn send_file(&mut self, range: &FileRange) -> std::io::Result<()> {
        self.sink.send(&mut [IoSlice::new(&self.head)])?;
        let by_kernel = self.sink.sends_files();
        let summed = self.sum_files || !by_kernel;
        let mut sum = Xxh3::new();
        let (mut done, len) = (0, range.len as usize);
        let mut state = if summed { WHOLE } else { UNSUMMED };
        self.piece.resize(len.min(PIECE), 0);
        while done < len && state != SPOILED {
            let want = (len - done).min(PIECE);
            let offset = range.offset.saturating_add(done as u64);
            let piece = &mut self.piece[..want];
            if summed {
                if range.file.read_exact_at(piece, offset).is_err() {
                    state = SPOILED;
                    break;
                }
                sum.update(piece);
            }
            let mut sent = 0;
            if by_kernel {
                match self.sink.send_file(&range.file, offset, want, &mut sent) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::UnexpectedEof => state = SPOILED,
                    Err(error) => return Err(error),
                }
            } else {
                self.sink.send(&mut [IoSlice::new(piece)])?;
                sent = want;
            }
            done += sent;
        }
        // The length was promised; what is missing is made up, and said to be.
        self.piece.fill(0);
        while done < len {
            let want = (len - done).min(self.piece.len());
            self.sink.send(&mut [IoSlice::new(&self.piece[..want])])?;
            done += want;
        }
        match len {
            0 => Ok(()),
            _ => self.sink.send(&mut [IoSlice::new(&trailer(sum.digest(), state))]),
        }
    }
}

fn trailer(sum: u64, state: u32) -> [u8; TRAILER] {
    let mut bytes = [0; TRAILER];
    bytes[..8].copy_from_slice(&sum.to_le_bytes());
    bytes[8..12].copy_from_slice(&state.to_le_bytes());
    bytes
}
