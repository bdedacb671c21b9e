//! Where a trace comes from: a file or the standard input, plain or compressed.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTANDARD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// The whole content; `-` is the standard input. What is compressed is told by its first bytes.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    if path.as_os_str() == "-" {
        io::stdin().lock().read_to_end(&mut content)?;
    } else {
        content = std::fs::read(path)?;
    }
    unpack(content)
}

/// A file that is not compressed, read in parts.
pub(super) struct Parts {
    file: File,
    bytes: u64,
    part: Vec<u8>,
}

/// Bytes of a part: of whole records.
const PART: usize = 1 << 20;

/// What follows `magic` in a file that begins with it; none for others, pipes, and the standard input.
pub(super) fn plain_parts(path: &Path, magic: &[u8]) -> io::Result<Option<Parts>> {
    // What comes through a pipe is there once only.
    if path.as_os_str() == "-" || !std::fs::metadata(path)?.is_file() {
        return Ok(None);
    }
    let mut file = File::open(path)?;
    let mut begins = Vec::with_capacity(magic.len());
    file.by_ref().take(magic.len() as u64).read_to_end(&mut begins)?;
    let bytes = file.metadata()?.len().saturating_sub(magic.len() as u64);
    Ok((begins == magic).then(|| Parts { file, bytes, part: Vec::with_capacity(PART) }))
}

impl Parts {
    /// Bytes of all parts together, as the file was opened.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next part; all but the last have the same length.
    pub fn next_part(&mut self) -> io::Result<Option<&[u8]>> {
        self.part.clear();
        self.file.by_ref().take(PART as u64).read_to_end(&mut self.part)?;
        Ok((!self.part.is_empty()).then_some(&self.part[..]))
    }
}

fn unpack(content: Vec<u8>) -> io::Result<Vec<u8>> {
    let mut plain = Vec::new();
    if content.starts_with(GZIP) {
        MultiGzDecoder::new(&content[..]).read_to_end(&mut plain)?;
    } else if content.starts_with(ZSTANDARD) {
        // A file may be several frames, one after the other.
        let mut rest = &content[..];
        while !rest.is_empty() {
            let mut decoder = StreamingDecoder::new(&mut rest).map_err(io::Error::other)?;
            decoder.read_to_end(&mut plain)?;
        }
    } else {
        return Ok(content);
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(content).expect("memory");
        encoder.finish().expect("memory")
    }

    fn zstandard(content: &[u8]) -> Vec<u8> {
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        ruzstd::encoding::compress_to_vec(content, level)
    }

    #[test]
    fn content_of_any_kind_then_plain() {
        let text: Vec<u8> =
            (0..9_000u32).flat_map(|at| format!("{},7\n", at % 83).into_bytes()).collect();
        for packed in [text.clone(), gzip(&text), zstandard(&text)] {
            assert_eq!(unpack(packed).expect("sound"), text);
        }
        let twice = [text.clone(), text.clone()].concat();
        assert_eq!(unpack([gzip(&text), gzip(&text)].concat()).expect("sound"), twice);
        assert_eq!(unpack([zstandard(&text), zstandard(&text)].concat()).expect("sound"), twice);
    }

    #[test]
    fn compressed_content_when_cut_then_an_error() {
        for packed in [gzip(&[7; 5_000]), zstandard(&[7; 5_000])] {
            assert!(unpack(packed[..packed.len() - 3].to_vec()).is_err());
        }
    }
}
