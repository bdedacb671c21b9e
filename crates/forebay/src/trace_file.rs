//! Recorded opens in a file: a line of comma-separated values for each, which `forebay sim cache` and
//! spreadsheets read too.
//!
//! ```text
//! id,size,ns,kind,path
//! 4711,65536,1203344,read,set/file-17
//! ```
//! `kind` is `read`, `write` or `create`. In paths, `%`, control characters and what is no UTF-8 stand
//! as `%` and two hexadecimal digits.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use crate::control::{Opening, WirePath};
use crate::error::Error;

/// The first line.
pub const HEADING: &str = "id,size,ns,kind,path";

/// Appends an open as a line.
pub fn write_line(open: &Opening, out: &mut String) {
    let kind = match (open.write, open.size) {
        (false, _) => "read",
        (true, 0) => "create",
        (true, _) => "write",
    };
    // Writing to a String does not fail.
    let _ = write!(out, "{},{},{},{kind},", open.ino, open.size, open.at_ns);
    for chunk in open.path.as_path().as_os_str().as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '%' || c.is_control() {
                let mut bytes = [0; 4];
                for byte in c.encode_utf8(&mut bytes).bytes() {
                    let _ = write!(out, "%{byte:02x}");
                }
            } else {
                out.push(c);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "%{byte:02x}");
        }
    }
    out.push('\n');
}

/// Reads a line back; nothing if it is none.
fn parse_line(line: &str) -> Option<Opening> {
    let mut fields = line.splitn(5, ',');
    let mut number = || fields.next()?.parse().ok();
    let (ino, size, at_ns) = (number()?, number()?, number()?);
    let write = match fields.next()? {
        "read" => false,
        "write" | "create" => true,
        _ => return None,
    };
    let path = decode(fields.next()?)?;
    Some(Opening { at_ns, ino, size, write, path })
}

fn decode(text: &str) -> Option<WirePath> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &rest[2..];
    }
    Some(std::path::PathBuf::from(std::ffi::OsString::from_vec(bytes)).into())
}

/// Calls `take` with every open of a trace.
pub fn read(path: &Path, take: &mut dyn FnMut(Opening) -> Result<(), Error>) -> Result<(), Error> {
    let open: Box<dyn io::Read> = if path == Path::new("-") {
        Box::new(io::stdin())
    } else {
        let file = File::open(path);
        Box::new(file.map_err(|source| Error::File { path: path.to_owned(), source })?)
    };
    let wrong = |line: usize, what: &str| {
        Error::Usage(format!(
            "{}: line {line}: {what}; is it from `forebay trace record`?",
            path.display()
        ))
    };
    for (at, line) in BufReader::new(open).lines().enumerate() {
        let line = line.map_err(|source| match source.kind() {
            io::ErrorKind::InvalidData => wrong(at + 1, "not text"),
            _ => Error::File { path: path.to_owned(), source },
        })?;
        if at == 0 {
            if line != HEADING {
                return Err(wrong(1, "not the heading of a trace"));
            }
            continue;
        }
        take(parse_line(&line).ok_or_else(|| wrong(at + 1, "not an open"))?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_when_written_and_read_then_equal_even_with_odd_names() {
        for name in
            [&b"plain/x,y"[..], b"100%", b"new\nline", b"\xff\xfe", "\u{e9}".as_bytes(), b""]
        {
            let path: std::path::PathBuf = std::ffi::OsStr::from_bytes(name).into();
            let open = Opening { at_ns: 5, ino: 7, size: 9, write: true, path: path.into() };
            let mut line = String::new();
            write_line(&open, &mut line);
            assert_eq!(line.lines().count(), 1, "{line:?}");
            assert_eq!(parse_line(line.trim_end_matches('\n')), Some(open));
        }
        for wrong in
            ["", "1,2,3", "1,2,3,read,%zz", "1,2,3,open,x", "a,2,3,read,x", "1,2,3,read,%a"]
        {
            assert_eq!(parse_line(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn read_when_the_file_is_no_trace_then_the_message_says_where() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        for (text, part) in [
            (&b"x\n"[..], "line 1: not the heading"),
            (b"id,size,ns,kind,path\n1,2,3,read,a\nfoo\n", "line 3: not an open"),
            (b"\xff\n", "line 1: not text"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = read(&path, &mut |_| Ok(())).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
