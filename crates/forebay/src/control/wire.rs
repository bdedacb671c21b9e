//! The control protocol: one JSON object a line, in both directions.
//!
//! A client sends a [`Request`]; the daemon sends any number of [`Reply::Progress`] and then one
//! other reply. A connection serves any number of requests, one after the other. Closing it
//! cancels the request that is being served.

use std::io::{self, BufRead, Read, Write};

use serde::{Deserialize, Serialize};

use super::{
    ClusterReply, ClusterRequest, ControlError, Location, Outcome, Patterns, Progress, Recorded,
    Shutdown, Status, WirePath,
};

/// The version that both sides must speak.
pub const PROTOCOL_VERSION: u32 = 1;

/// One part of the reference sequence of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HintPart {
    /// Name of the job.
    pub job: String,
    /// Paths below the mount point, in the order of their use.
    pub paths: Vec<WirePath>,
    /// Whether what the job was given before is forgotten first.
    pub replace: bool,
    /// Whether nothing follows, so that what was named and is past is not needed any more.
    pub last: bool,
    /// When the job is forgotten by itself, in milliseconds from now.
    pub expires_ms: u64,
}

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum Request {
    /// [`super::Control::status`].
    Status,
    /// [`super::Control::metrics`].
    Metrics,
    /// [`super::Control::locate`].
    Locate {
        /// Paths below the mount point.
        paths: Vec<WirePath>,
    },
    /// [`super::Control::warm`].
    Warm {
        /// Paths below the mount point.
        paths: Vec<WirePath>,
    },
    /// [`super::Control::evict`].
    Evict {
        /// Paths below the mount point.
        paths: Vec<WirePath>,
    },
    /// [`super::Control::pin`].
    Pin {
        /// Paths below the mount point.
        paths: Vec<WirePath>,
    },
    /// [`super::Control::unpin`].
    Unpin {
        /// Paths below the mount point.
        paths: Vec<WirePath>,
    },
    /// [`super::Control::sync`].
    Sync {
        /// Paths below the mount point.
        paths: Vec<WirePath>,
    },
    /// [`super::Control::refresh`].
    Refresh {
        /// Paths below the mount point.
        paths: Vec<WirePath>,
    },
    /// [`super::Control::conflicts`].
    Conflicts,
    /// [`super::Control::forget_conflicts`].
    ForgetConflicts {
        /// Paths below the mount point.
        paths: Vec<WirePath>,
    },
    /// [`super::Control::hint`].
    Hint(HintPart),
    /// [`super::Control::withdraw`].
    Withdraw {
        /// Name of the job.
        job: String,
    },
    /// [`super::Control::trace_start`].
    TraceStart,
    /// [`super::Control::trace_take`].
    TraceTake {
        /// The most opens that are wanted.
        most: usize,
        /// Whether to end the recording.
        stop: bool,
    },
    /// [`super::Control::patterns_start`].
    PatternsStart,
    /// [`super::Control::patterns`].
    Patterns,
    /// [`super::Control::patterns_stop`].
    PatternsStop,
    /// [`super::Control::drain`].
    Drain {
        /// The time limit in milliseconds; nothing for the mount's own.
        limit_ms: Option<u64>,
    },
    /// [`super::Control::shutdown`].
    Shutdown {
        /// How to end.
        how: Shutdown,
    },
    /// [`super::Control::set_log_level`].
    LogLevel {
        /// The filter.
        filter: String,
    },
    /// [`super::Control::cluster`].
    Cluster(ClusterRequest),
    /// Another daemon shall take over.
    Upgrade {
        /// The program that it runs.
        program: WirePath,
        /// How long the mount may take to come to rest, in milliseconds.
        limit_ms: u64,
    },
}

impl Request {
    /// What a status calls the work on files that it asks for; nothing for what is short.
    pub(super) fn work(&self) -> Option<&'static str> {
        match self {
            Request::Warm { .. } => Some("warm"),
            Request::Evict { .. } => Some("evict"),
            Request::Pin { .. } => Some("pin"),
            Request::Sync { .. } => Some("sync"),
            Request::Refresh { .. } => Some("refresh"),
            Request::Drain { .. } => Some("umount"),
            _ => None,
        }
    }
}

/// What came of an upgrade.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Upgraded {
    /// Process id of the daemon that serves the mount now.
    pub pid: u32,
    /// The version of its program.
    pub version: String,
    /// For how long requests of programs waited, in microseconds.
    pub pause_us: u64,
    /// Open files that were handed on.
    pub open_files: u64,
}

/// What a daemon answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", content = "body", rename_all = "kebab-case")]
pub enum Reply {
    /// The request goes on.
    Progress(Progress),
    /// The request ended, perhaps with failures of single files.
    Outcome(Outcome),
    /// To [`Request::Status`].
    Status(Box<Status>),
    /// To [`Request::Locate`].
    Locations(Vec<Location>),
    /// To [`Request::TraceTake`].
    Recorded(Recorded),
    /// To [`Request::Patterns`].
    Patterns(Patterns),
    /// To [`Request::Conflicts`].
    Conflicts(Vec<super::Conflict>),
    /// To [`Request::ForgetConflicts`]: how many.
    Forgotten(u64),
    /// To [`Request::Upgrade`].
    Upgraded(Upgraded),
    /// To [`Request::Cluster`].
    Cluster(ClusterReply),
    /// To [`Request::Metrics`].
    Text(String),
    /// The request was carried out and has no other answer.
    Done,
    /// The request failed.
    Error(ControlError),
}

/// A request with the version of the protocol.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Envelope {
    pub v: u32,
    #[serde(flatten)]
    pub request: Request,
}

/// Reads one line of at most `max` bytes; nothing at the end of the stream.
pub(super) fn read_line(stream: &mut impl BufRead, max: usize) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    stream.take(max as u64 + 1).read_until(b'\n', &mut line)?;
    if line.last() == Some(&b'\n') {
        line.pop();
        return Ok(Some(line));
    }
    if line.len() > max {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a line is longer than {max} bytes"),
        ));
    }
    if line.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Writes one value as a line.
pub(super) fn write_line(stream: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn request_when_sent_and_read_then_equal_even_with_odd_names() {
        let odd = WirePath(OsStr::from_bytes(b"a\xff\n").into());
        let paths = vec!["x/y".into(), odd];
        let part = HintPart { job: "j".into(), paths, last: true, ..HintPart::default() };
        let request = Request::Hint(part);
        let mut line = Vec::new();
        write_line(&mut line, &Envelope { v: 1, request: request.clone() }).unwrap();
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        let back: Envelope = serde_json::from_slice(&line).unwrap();
        assert_eq!(back.request, request);
    }

    #[test]
    fn read_line_when_too_long_or_cut_off_then_error() {
        assert_eq!(read_line(&mut &b"abc\ndef\n"[..], 3).unwrap(), Some(b"abc".to_vec()));
        assert_eq!(read_line(&mut &b""[..], 3).unwrap(), None);
        assert_eq!(
            read_line(&mut &b"abcd\n"[..], 3).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
        assert_eq!(read_line(&mut &b"ab"[..], 3).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn status_when_fields_are_unknown_or_missing_then_it_is_still_read() {
        let status: Status = serde_json::from_str(r#"{"hits": 3, "of_the_future": [1]}"#).unwrap();
        assert_eq!(status.hits, 3);
    }
}
