//! Traces: what was asked for, in order. Read from CSV, libCacheSim's oracleGeneral, our own binary
//! format, and the event log of a node, plain or compressed.

mod csv;
mod numbers;
mod source;

pub use csv::Columns;
pub use numbers::Numbers;

use std::path::Path;
use std::sync::OnceLock;

use crate::SimError;

/// One request for a whole file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The file.
    pub id: u64,
    /// Its size in bytes.
    pub size: u64,
}

/// Requests in their order.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// The requests.
    pub requests: Vec<Request>,
    by_id: OnceLock<Numbers>,
    by_arrival: OnceLock<Numbers>,
}

impl PartialEq for Trace {
    fn eq(&self, other: &Self) -> bool {
        self.requests == other.requests
    }
}

/// How a trace is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Lines `id,size`, or other [`Columns`]; a first line that is not numbers is a heading.
    Csv,
    /// libCacheSim's oracleGeneral: records of 24 bytes (u32 time, u64 id, u32 size, i64 next use).
    Oracle,
    /// Ours: the line `forebay-trace 1`, then records of 16 bytes (u64 id, u64 size).
    Forebay,
    /// A steward's event log: its accesses.
    Log,
}

const MAGIC: &[u8] = b"forebay-trace 1\n";
const LOG_MAGIC: &[u8] = b"forebay-steward ";

impl Format {
    /// What the content looks like, or the name if the content says nothing.
    #[must_use]
    pub fn guess(path: &Path, content: &[u8]) -> Self {
        if content.starts_with(MAGIC) {
            return Self::Forebay;
        }
        if content.starts_with(LOG_MAGIC) {
            return Self::Log;
        }
        let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase());
        let named = name.is_some_and(|name| name.contains("oraclegeneral"));
        if named || content.iter().take(4096).any(|byte| *byte == 0) {
            Self::Oracle
        } else {
            Self::Csv
        }
    }
}

impl Trace {
    /// A trace of these requests.
    #[must_use]
    pub fn new(requests: Vec<Request>) -> Self {
        Self { requests, by_id: OnceLock::new(), by_arrival: OnceLock::new() }
    }

    /// Its files numbered in the order of their ids; counted once, at the first call.
    pub fn numbers(&self) -> &Numbers {
        self.by_id.get_or_init(|| Numbers::by_id(&self.requests))
    }

    /// The same in the order in which they come first, which is faster to replay.
    pub fn arrivals(&self) -> &Numbers {
        self.by_arrival.get_or_init(|| Numbers::by_arrival(&self.requests))
    }

    /// The position of the next request for the same file, for each request; `None` if there is none.
    #[must_use]
    pub fn next_requests(&self) -> Vec<Option<usize>> {
        let numbers = self.arrivals();
        let mut later = vec![None; numbers.ids.len()];
        let mut next = vec![None; self.requests.len()];
        for (at, number) in numbers.of.iter().enumerate().rev() {
            next[at] = later[*number as usize].replace(at);
        }
        next
    }

    /// Reads a file, or the standard input for `-`; `columns` matter if it is CSV. What is compressed
    /// by gzip or Zstandard is unpacked.
    ///
    /// # Errors
    /// [`SimError::File`] if it cannot be read, [`SimError::Trace`] if it is not in the format.
    pub fn read(
        path: &Path,
        format: Option<Format>,
        columns: Option<Columns>,
    ) -> Result<Self, SimError> {
        let wrong = |what| SimError::Trace { what: format!("{}: {what}", path.display()) };
        if matches!(format, None | Some(Format::Forebay))
            && let Some(parts) = source::plain_parts(path, MAGIC).map_err(SimError::file(path))?
        {
            return Self::of_parts(parts, path)
                .and_then(|requests| checked(requests).map_err(wrong));
        }
        let content = source::read(path).map_err(SimError::file(path))?;
        let format = format.unwrap_or_else(|| Format::guess(path, &content));
        Self::parse(&content, format, columns).map_err(wrong)
    }

    /// The records of our own format, part by part: there is never all of the file in memory beside them.
    fn of_parts(mut parts: source::Parts, path: &Path) -> Result<Vec<Request>, SimError> {
        let mut requests = Vec::with_capacity(parts.bytes() as usize / RECORD);
        while let Some(part) = parts.next_part().map_err(SimError::file(path))? {
            let more = own_records(part);
            let more = more
                .map_err(|what| SimError::Trace { what: format!("{}: {what}", path.display()) })?;
            requests.extend(more);
        }
        Ok(requests)
    }

    /// Writes a file.
    ///
    /// # Errors
    /// [`SimError::File`] if it cannot be written, [`SimError::Trace`] if the format cannot hold it.
    pub fn write(&self, path: &Path, format: Format) -> Result<(), SimError> {
        let content = self
            .to_bytes(format)
            .map_err(|what| SimError::Trace { what: format!("{}: {what}", path.display()) })?;
        std::fs::write(path, content).map_err(SimError::file(path))
    }

    fn to_bytes(&self, format: Format) -> Result<Vec<u8>, String> {
        let mut content = Vec::new();
        match format {
            Format::Csv => {
                content.extend_from_slice(b"id,size\n");
                for Request { id, size } in &self.requests {
                    content.extend_from_slice(format!("{id},{size}\n").as_bytes());
                }
            }
            Format::Forebay => {
                content.extend_from_slice(MAGIC);
                for Request { id, size } in &self.requests {
                    content.extend_from_slice(&id.to_le_bytes());
                    content.extend_from_slice(&size.to_le_bytes());
                }
            }
            Format::Oracle => {
                let next = self.next_requests();
                for (at, (Request { id, size }, next)) in self.requests.iter().zip(next).enumerate()
                {
                    let short = u32::try_from(*size).map_err(|_| {
                        format!("request {at}: oracleGeneral holds sizes below 4 GiB, not {size}")
                    })?;
                    // The requests of a trace without times are one second apart.
                    content.extend_from_slice(&u32::try_from(at).unwrap_or(u32::MAX).to_le_bytes());
                    content.extend_from_slice(&id.to_le_bytes());
                    content.extend_from_slice(&short.to_le_bytes());
                    let next = next.map_or(-1, |next| next as i64);
                    content.extend_from_slice(&next.to_le_bytes());
                }
            }
            Format::Log => return Err("an event log is written by a node, not from a trace".into()),
        }
        Ok(content)
    }

    /// Reads the content of a file; the error says where it is wrong.
    fn parse(content: &[u8], format: Format, columns: Option<Columns>) -> Result<Self, String> {
        let requests = match format {
            Format::Csv => csv::parse(text(content)?, columns),
            Format::Log => accesses(text(content)?),
            Format::Oracle => oracle_general(content),
            Format::Forebay => {
                let body = content.strip_prefix(MAGIC).ok_or("not a forebay trace")?;
                own_records(body).map(Iterator::collect)
            }
        }?;
        checked(requests)
    }

    /// The same with the bytes that each file takes of a mount's tier: whole blocks, and one for the
    /// header.
    #[must_use]
    pub fn mounted(self) -> Self {
        const BLOCK: u64 = 4096;
        let taken = |request: Request| Request {
            size: request.size.div_ceil(BLOCK).saturating_add(1).saturating_mul(BLOCK),
            ..request
        };
        Self::new(self.requests.into_iter().map(taken).collect())
    }

    /// Bytes of the distinct files, each at its largest.
    #[must_use]
    pub fn footprint(&self) -> u64 {
        let numbers = self.arrivals();
        let mut sizes = vec![0; numbers.ids.len()];
        for (request, number) in self.requests.iter().zip(&numbers.of) {
            let size: &mut u64 = &mut sizes[*number as usize];
            *size = request.size.max(*size);
        }
        sizes.iter().sum()
    }
}

/// A trace of requests that were read; of none there is none.
fn checked(requests: Vec<Request>) -> Result<Trace, String> {
    if requests.is_empty() {
        return Err("there is no request in it".into());
    }
    Ok(Trace::new(requests))
}

/// Bytes of a record of our own format.
const RECORD: usize = 16;

fn own_records(content: &[u8]) -> Result<impl Iterator<Item = Request>, String> {
    let (records, rest) = content.as_chunks::<RECORD>();
    if !rest.is_empty() {
        return Err(format!("its length is not a multiple of {RECORD} bytes"));
    }
    let number = |bytes: &[u8]| little_endian(bytes);
    Ok(records
        .iter()
        .map(move |record| Request { id: number(&record[..8]), size: number(&record[8..]) }))
}

fn text(content: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(content).map_err(|error| format!("not text: {error}"))
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn records(
    content: &[u8],
    length: usize,
    read: impl Fn(&[u8]) -> Request,
) -> Result<Vec<Request>, String> {
    let records = content.chunks_exact(length);
    if !records.remainder().is_empty() {
        return Err(format!("its length is not a multiple of {length} bytes"));
    }
    Ok(records.map(read).collect())
}

/// The furthest request that a record may name as the next for its file: more than any trace has.
const FARTHEST: i64 = 1 << 48;

/// libCacheSim's oracleGeneral. The format has no mark of its own; but each record names the next
/// request for its file, which comes after it, and that tells it from other bytes.
fn oracle_general(content: &[u8]) -> Result<Vec<Request>, String> {
    for (at, record) in content.chunks_exact(24).enumerate() {
        let next = little_endian(&record[16..]) as i64;
        let none = next == -1 || next == i64::MAX;
        // Programs count from 0 or from 1, and a part of a trace keeps the numbers of the whole.
        if !none && !(at as i64..FARTHEST).contains(&next) {
            return Err(format!(
                "not oracleGeneral: record {at} has its file's next request at {next}"
            ));
        }
    }
    records(content, 24, |record| Request {
        id: little_endian(&record[4..12]),
        size: little_endian(&record[12..16]),
    })
}

fn accesses(text: &str) -> Result<Vec<Request>, String> {
    let mut requests = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let mut words = line.split_ascii_whitespace();
        if words.next().is_none_or(|first| first == ">") || words.next() != Some("access") {
            continue;
        }
        let mut number = || words.next().and_then(|word| word.parse().ok());
        let (Some(id), Some(size)) = (number(), number()) else {
            return Err(format!("line {}: an access without object and size", at + 1));
        };
        requests.push(Request { id, size });
    }
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(id: u64, size: u64) -> Request {
        Request { id, size }
    }

    #[test]
    fn oracle_general_then_the_requests() {
        let mut content = Vec::new();
        for (id, size) in [(7u64, 100u32), (1 << 40, 5)] {
            content.extend_from_slice(&9u32.to_le_bytes());
            content.extend_from_slice(&id.to_le_bytes());
            content.extend_from_slice(&size.to_le_bytes());
            content.extend_from_slice(&(-1i64).to_le_bytes());
        }
        assert_eq!(Format::guess(Path::new("t.oracleGeneral"), &content), Format::Oracle);
        let trace = Trace::parse(&content, Format::Oracle, None).expect("sound");
        assert_eq!(trace.requests, [request(7, 100), request(1 << 40, 5)]);
        assert!(Trace::parse(&content[1..], Format::Oracle, None).is_err());
    }

    #[test]
    fn bytes_that_are_no_trace_then_refused_in_every_format() {
        let mut rng = crate::rng::Rng::new(3);
        for length in [0, 16, 24, 48, 240, 24 * 400] {
            for _ in 0..20 {
                let content: Vec<u8> = (0..length).map(|_| rng.bits() as u8).collect();
                let guess = Format::guess(Path::new("t.bin"), &content);
                for format in [guess, Format::Oracle, Format::Csv, Format::Forebay, Format::Log] {
                    assert!(Trace::parse(&content, format, None).is_err(), "{length}, {format:?}");
                }
            }
        }
        assert!(Trace::parse(b"id,size\n", Format::Csv, None).is_err(), "a heading alone");
        assert!(Trace::parse(b"some text\n", Format::Csv, None).is_err());
        assert!(Trace::parse(&[0; 48], Format::Oracle, None).is_err(), "zeros name themselves");
    }

    #[test]
    fn own_format_written_and_read_then_equal() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("t.trace");
        let trace = Trace::new(vec![request(3, 9), request(u64::MAX, 1 << 50)]);
        trace.write(&path, Format::Forebay).expect("written");
        assert_eq!(Trace::read(&path, None, None).expect("read"), trace);
        let error = trace.write(&path, Format::Oracle).expect_err("too large for a u32");
        assert!(error.to_string().contains("request 1"), "{error}");
    }

    #[test]
    fn own_format_of_several_parts_then_equal_and_refused_when_cut() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("t.trace");
        let trace = Trace::new((0..150_000).map(|at| request(at * at, at)).collect());
        trace.write(&path, Format::Forebay).expect("written");
        for format in [None, Some(Format::Forebay)] {
            assert_eq!(Trace::read(&path, format, None).expect("read"), trace);
        }
        let file = std::fs::File::options().write(true).open(&path).expect("opened");
        for bytes in [16, 16 + 70_000 * 16 + 3] {
            file.set_len(bytes).expect("cut");
            let error = Trace::read(&path, None, None).expect_err("cut");
            assert!(matches!(error, SimError::Trace { .. }), "{error}");
        }
    }

    #[test]
    fn every_format_that_can_be_written_then_read_as_it_was() {
        let dir = tempfile::tempdir().expect("a directory");
        let requests = (0..500u64).map(|at| request((at * at % 37) << 35, 1 + at * at % 37));
        let trace = Trace::new(requests.collect());
        for format in [Format::Csv, Format::Forebay, Format::Oracle] {
            let path = dir.path().join("t.bin");
            trace.write(&path, format).expect("written");
            let content = std::fs::read(&path).expect("read");
            assert_eq!(Format::guess(&path, &content), format);
            assert_eq!(Trace::read(&path, None, None).expect("read"), trace);
        }
    }

    #[test]
    fn oracle_general_written_then_each_record_names_the_next_request() {
        let trace = Trace::new([7, 8, 7, 7].map(|id| request(id, 1)).to_vec());
        let content = trace.to_bytes(Format::Oracle).expect("small sizes");
        let next: Vec<i64> =
            content.chunks_exact(24).map(|record| little_endian(&record[16..]) as i64).collect();
        assert_eq!(next, [2, -1, 3, -1]);
    }

    #[test]
    fn event_log_then_its_accesses() {
        let log =
            b"forebay-steward 1\n17 access 12 4096 0\n> evict 9 0\n18 tick\n19 access 3 7 1\n";
        assert_eq!(Format::guess(Path::new("x"), log), Format::Log);
        let trace = Trace::parse(log, Format::Log, None).expect("sound");
        assert_eq!(trace.requests, [request(12, 4096), request(3, 7)]);
    }
}
