//! Which opens become streams. An open of a file with a rate asks for one; if the device has no room
//! for it, the open works all the same, without a guarantee, and the reason is remembered.

use std::fs::File as StdFile;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_core::streams::popular::Opening;
use forebay_meta::{Record, XattrState};
use forebay_store::BackingFile;
use forebay_streams::{Class, OpenError, Rejected, StreamRequest};
use forebay_types::{FileKind, Ino};
use rustix::io::Errno;

use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::node::Node;
use crate::residency::data_location::Underlay;
use crate::residency::files::FileRef;

use super::keeping::nanos;
use super::{OpenStream, RefusedStream, StreamsReport};

/// The extended attribute that makes streams of a file's opens: bytes a second.
pub(crate) const RATE: &[u8] = b"user.forebay.stream.rate";
/// The one that says what became of its last open.
pub(crate) const STATE: &[u8] = b"user.forebay.stream.state";

/// Parses the value of [`RATE`]: bytes a second, with a decimal point if wanted (`250K`, `2.5M`),
/// and with `B` or `B/s` behind it.
pub(crate) fn parse_rate(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?.trim();
    let text = text.strip_suffix("/s").unwrap_or(text);
    let text = text.strip_suffix('B').unwrap_or(text);
    let (number, factor) = match text.char_indices().last()? {
        (at, 'k' | 'K') => (&text[..at], 1e3),
        (at, 'M') => (&text[..at], 1e6),
        (at, 'G') => (&text[..at], 1e9),
        _ => (text, 1.0),
    };
    if !number.chars().all(|c| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let rate = (number.parse::<f64>().ok()? * factor).ceil();
    (1.0..=1e12).contains(&rate).then_some(rate as u64)
}

/// A description of a stream's own: direct I/O and advice are properties of it.
pub(super) fn own_description(backing: &dyn BackingFile) -> std::result::Result<StdFile, Rejected> {
    let Some(fd) = backing.fd() else {
        return Err(Rejected::senseless("the backing store gives no descriptor".into()));
    };
    StdFile::open(format!("/proc/self/fd/{}", fd.as_raw_fd()))
        .map_err(|error| Rejected::senseless(format!("opening it again: {error}")))
}

impl Node {
    /// The rate at which this open would be a stream, if it may be one: files that are fetched whole
    /// when opened need none.
    ///
    /// # Errors
    /// What the backing store says to who reads the attributes.
    pub(crate) fn stream_rate(&self, context: &Context, record: &Record) -> Result<Option<u64>> {
        let plain = record.attr.kind == FileKind::Regular
            && record.attr.size > self.config.fetch_on_open_bytes
            && !record.spilled;
        if self.streams.is_none() || !plain || record.xattrs == XattrState::None {
            return Ok(None);
        }
        self.writeback.import_xattrs(context, record.ino)?;
        let value = self.meta.xattr_get(record.ino, RATE)?;
        Ok(value.and_then(|value| parse_rate(&value)))
    }

    /// Asks for a stream of a file that is being opened; none if it has to do without.
    ///
    /// # Errors
    /// What the backing store says.
    pub(crate) fn admit_stream(
        &self,
        file: &FileRef,
        rate: u64,
    ) -> Result<Option<Arc<OpenStream>>> {
        let Some(streams) = &self.streams else { return Ok(None) };
        self.keep_title(file, self.meta.get(file.ino)?.attr.size);
        let Some((backing, start)) = self.source_of_stream(file)? else { return Ok(None) };
        let refuse = |why: Rejected| {
            let path = self.residency.path_of(file.ino);
            tracing::info!(
                ino = %file.ino,
                reason = %why.reason,
                why = %why.message,
                "an open of a file with a rate got no stream: it is read without a guarantee"
            );
            streams.tell_refused(file.ino.0, RefusedStream { path, rate, why });
            Ok(None)
        };
        let Some(permit) = streams.enter() else {
            return refuse(Rejected::of_places(super::MAX));
        };
        let own = match own_description(&*backing) {
            Ok(own) => own,
            Err(why) => return refuse(why),
        };
        let path =
            PathBuf::from(String::from_utf8_lossy(&self.residency.path_of(file.ino)).into_owned());
        let class = Class::Guaranteed { rate };
        let request = StreamRequest { class, start, length: None, max_startup_ms: None };
        match streams.service.open_file(own, Path::new(&path), &request) {
            Ok(stream) => {
                let size = backing.len()?;
                let startup = nanos(stream.first_byte_within());
                self.keep_beginning(Opening { title: file.ino.0, size, rate, startup }, start);
                let stream = OpenStream::new(permit, stream, file.ino, rate, backing, size, start);
                Ok(Some(Arc::new(stream)))
            }
            Err(OpenError::Rejected(why)) => refuse(why),
            Err(OpenError::Failed(error)) => refuse(Rejected::senseless(error.to_string())),
        }
    }

    /// Where a file's stream is read from, and the first byte that no tier has; `None` of a file that
    /// needs no stream.
    ///
    /// # Errors
    /// What the backing store says.
    pub(super) fn source_of_stream(
        &self,
        file: &FileRef,
    ) -> Result<Option<(Arc<dyn BackingFile>, u64)>> {
        let location = file.location.read();
        let Underlay::Backing(opened) = location.base() else { return Ok(None) };
        let missing = match location.place() {
            None => Some(0),
            // Nothing is missing of a whole one.
            Some(place) => place.absent(0..u64::MAX).first().map(|run| run.start),
        };
        let Some(start) = missing else { return Ok(None) };
        Ok(Some((self.residency.opened_base(file, opened)?, start)))
    }

    /// What became of the last open of a file that has a rate, for people and programs: one line.
    ///
    /// # Errors
    /// `ENODATA` if there is nothing to tell.
    pub(crate) fn stream_state(&self, ino: Ino) -> Result<Vec<u8>> {
        let nothing = NodeError::Posix(Errno::NODATA);
        let Some(streams) = &self.streams else { return Err(nothing) };
        let told = streams.told.lock();
        if let Some(open) = told.open.get(&ino.0) {
            let within = open.first_byte_within.as_millis();
            let (streams, rate) = (open.streams, open.rate);
            return Ok(format!(
                "admitted rate={rate} streams={streams} first-byte-within-ms={within}"
            )
            .into_bytes());
        }
        let refused = told.refused.iter().find(|(refused, _)| *refused == ino.0);
        let (_, RefusedStream { rate, why, .. }) = refused.ok_or(nothing)?;
        let Rejected { reason, message, retry_after_ms, .. } = why;
        let mut text = format!("refused {reason} rate={rate} retry-after-ms={retry_after_ms}");
        if let Some(rate) = why.suggested_rate {
            text += &format!(" suggested-rate={rate}");
        }
        Ok(format!("{text}: {message}").into_bytes())
    }

    /// Checks a rate that a program gives to a file.
    ///
    /// # Errors
    /// `EOPNOTSUPP` on a mount without streams, `EINVAL` for what is no rate and no regular file.
    pub(crate) fn check_stream_rate(&self, record: &Record, value: &[u8]) -> Result<()> {
        if self.streams.is_none() {
            return Err(Errno::OPNOTSUPP.into());
        }
        if record.attr.kind != FileKind::Regular || parse_rate(value).is_none() {
            return Err(Errno::INVAL.into());
        }
        Ok(())
    }

    /// What the streams are doing; nothing on a node without.
    pub fn streams_report(&self) -> Option<StreamsReport> {
        self.streams.as_ref().map(|streams| streams.report())
    }

    /// Streams that are open.
    pub fn open_streams(&self) -> usize {
        self.streams.as_ref().map_or(0, |streams| streams.open())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_when_written_in_any_usual_way_then_bytes_a_second() {
        for (text, rate) in [
            ("250000", 250_000),
            ("250K", 250_000),
            ("250kB/s", 250_000),
            (" 2.5M ", 2_500_000),
            ("1GB", 1_000_000_000),
            ("0.5", 1),
        ] {
            assert_eq!(parse_rate(text.as_bytes()), Some(rate), "{text}");
        }
        for text in ["", "0", "-1", "M", "1e6", "fast", "2Mbit", "2T", "inf", "1000G0", "\u{fc}"] {
            assert_eq!(parse_rate(text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse_rate(b"\xff"), None);
    }
}
