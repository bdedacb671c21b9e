//! Traces: what was asked for, in order. Read from CSV, libCacheSim's oracleGeneral, our own binary
//! format, and the event log of a node.

use std::path::Path;

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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    /// The requests.
    pub requests: Vec<Request>,
}

/// How a trace is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Lines `id,size`; a first line that is not numbers is a heading.
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
    /// Reads a file.
    ///
    /// # Errors
    /// [`SimError::File`] if it cannot be read, [`SimError::Trace`] if it is not in the format.
    pub fn read(path: &Path, format: Option<Format>) -> Result<Self, SimError> {
        let content = std::fs::read(path).map_err(SimError::file(path))?;
        let format = format.unwrap_or_else(|| Format::guess(path, &content));
        Self::parse(&content, format)
            .map_err(|what| SimError::Trace { what: format!("{}: {what}", path.display()) })
    }

    /// Writes a file in our own format.
    ///
    /// # Errors
    /// [`SimError::File`].
    pub fn write(&self, path: &Path) -> Result<(), SimError> {
        let mut content = MAGIC.to_vec();
        for request in &self.requests {
            content.extend_from_slice(&request.id.to_le_bytes());
            content.extend_from_slice(&request.size.to_le_bytes());
        }
        std::fs::write(path, content).map_err(SimError::file(path))
    }

    /// Reads the content of a file; the error says where it is wrong.
    fn parse(content: &[u8], format: Format) -> Result<Self, String> {
        let requests = match format {
            Format::Csv => csv(text(content)?),
            Format::Log => accesses(text(content)?),
            Format::Oracle => records(content, 24, |record| Request {
                id: little_endian(&record[4..12]),
                size: little_endian(&record[12..16]),
            }),
            Format::Forebay => {
                let body = content.strip_prefix(MAGIC).ok_or("not a forebay trace")?;
                records(body, 16, |record| Request {
                    id: little_endian(&record[..8]),
                    size: little_endian(&record[8..]),
                })
            }
        }?;
        Ok(Self { requests })
    }

    /// Bytes of the distinct files, each at its largest.
    #[must_use]
    pub fn footprint(&self) -> u64 {
        let mut sizes = std::collections::HashMap::new();
        for request in &self.requests {
            let size: &mut u64 = sizes.entry(request.id).or_default();
            *size = request.size.max(*size);
        }
        sizes.values().sum()
    }
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

fn csv(text: &str) -> Result<Vec<Request>, String> {
    let mut requests = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut fields = line.split(',').map(|field| field.trim().parse::<u64>());
        match (fields.next(), fields.next()) {
            (Some(Ok(id)), Some(Ok(size))) => requests.push(Request { id, size }),
            _ if at == 0 => {}
            _ => return Err(format!("line {}: expected id,size but found {line:?}", at + 1)),
        }
    }
    Ok(requests)
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
    fn csv_with_heading_and_spaces_then_the_requests() {
        let trace = Trace::parse(b"id,size\n1, 20\n\n2,30,extra\n", Format::Csv).expect("sound");
        assert_eq!(trace.requests, [request(1, 20), request(2, 30)]);
        let error = Trace::parse(b"1,2\nx,3\n", Format::Csv).expect_err("no number");
        assert!(error.starts_with("line 2"), "{error}");
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
        let trace = Trace::parse(&content, Format::Oracle).expect("sound");
        assert_eq!(trace.requests, [request(7, 100), request(1 << 40, 5)]);
        assert!(Trace::parse(&content[1..], Format::Oracle).is_err());
    }

    #[test]
    fn own_format_written_and_read_then_equal() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("t.trace");
        let trace = Trace { requests: vec![request(3, 9), request(u64::MAX, 1 << 50)] };
        trace.write(&path).expect("written");
        assert_eq!(Trace::read(&path, None).expect("read"), trace);
    }

    #[test]
    fn event_log_then_its_accesses() {
        let log =
            b"forebay-steward 1\n17 access 12 4096 0\n> evict 9 0\n18 tick\n19 access 3 7 1\n";
        assert_eq!(Format::guess(Path::new("x"), log), Format::Log);
        let trace = Trace::parse(log, Format::Log).expect("sound");
        assert_eq!(trace.requests, [request(12, 4096), request(3, 7)]);
    }
}
