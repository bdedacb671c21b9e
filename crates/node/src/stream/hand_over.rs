//! Streams that another daemon had admitted, for programs that still play them.
//!
//! They are asked for again before any other, in the order in which they were admitted, and nobody
//! waits for the answer: what is read until it comes is read without. What was at hand in the memory of
//! the other daemon is lost, and read again.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_streams::{Class, OpenError, Rejected, StreamRequest};
use forebay_types::Ino;
use prost::Message;

use crate::context::Context;
use crate::error::Result;
use crate::hand_over_state::HandOverState;
use crate::node::Node;

use super::admission::own_description;
use super::{OpenStream, RefusedStream};

/// What is handed on of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CarriedStream {
    /// Bytes a second; 0 where only the file knows it.
    #[prost(uint64, tag = "1")]
    pub rate: u64,
    /// The next byte that its program takes.
    #[prost(uint64, tag = "2")]
    pub at: u64,
    /// Grows in the order of admission.
    #[prost(uint64, tag = "3")]
    pub order: u64,
    /// When what was at hand is used up: nanoseconds of `CLOCK_MONOTONIC`; 0 if it was lost.
    #[prost(uint64, tag = "4")]
    pub dry_at: u64,
}

/// The time that all processes agree on, in nanoseconds.
pub(super) fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let (seconds, nanos) = (now.tv_sec.cast_unsigned(), now.tv_nsec.cast_unsigned());
    seconds.wrapping_mul(1_000_000_000).wrapping_add(nanos)
}

/// A moment of [`monotonic`]; now, if nobody knows it.
fn instant(moment: u64) -> Instant {
    let (now, here) = (monotonic(), Instant::now());
    if moment == 0 {
        return here;
    }
    match moment.checked_sub(now) {
        Some(ahead) => here + Duration::from_nanos(ahead).min(Duration::from_secs(3600)),
        None => here.checked_sub(Duration::from_nanos(now - moment)).unwrap_or(here),
    }
}

impl Node {
    /// Asks for all streams that another daemon had admitted.
    pub(crate) fn take_over_streams(&self, handed_over: &HandOverState) {
        let carried = |open: &crate::hand_over_state::OpenHandle| {
            open.stream.map(|stream| (stream.order, open.fh, Ino(open.ino), stream))
        };
        let mut streams: Vec<_> = handed_over.handles.iter().filter_map(carried).collect();
        streams.sort_by_key(|stream| stream.0);
        for (_, fh, ino, stream) in streams {
            if let Err(error) = self.take_over_stream(fh, ino, stream) {
                tracing::warn!(
                    %ino,
                    %error,
                    "a stream of the daemon before could not be admitted again: it goes on without \
                     a guarantee"
                );
            }
        }
    }

    fn take_over_stream(&self, fh: u64, ino: Ino, carried: CarriedStream) -> Result<()> {
        let file = self.residency.files.get(ino);
        let rate = match carried.rate {
            0 => self.stream_rate(&Context::DAEMON, &*self.meta.get(ino)?)?,
            rate => Some(rate),
        };
        let (Some(streams), Some(rate)) = (&self.streams, rate) else { return Ok(()) };
        // Whole on a tier by now, it needs none.
        let Some((backing, _)) = self.source_of_stream(&file)? else { return Ok(()) };
        let size = backing.len()?;
        // A program that has read all of it may begin anew.
        let start = if carried.at < size { carried.at } else { 0 };
        let shown = self.residency.path_of(ino);
        let path = PathBuf::from(String::from_utf8_lossy(&shown).into_owned());
        let (here, this) = (Arc::clone(streams), self.this.clone());
        let refuse = move |why: Rejected| {
            tracing::warn!(
                %ino,
                reason = %why.reason,
                why = %why.message,
                "a stream of the daemon before could not be admitted again: it goes on without a \
                 guarantee"
            );
            here.tell_refused(ino.0, RefusedStream { path: shown.clone(), rate, why });
        };
        let Some(permit) = streams.enter() else {
            refuse(Rejected::of_places(super::MAX));
            return Ok(());
        };
        let own = match own_description(&*backing) {
            Ok(own) => own,
            Err(why) => {
                refuse(why);
                return Ok(());
            }
        };
        let class = Class::Guaranteed { rate };
        let request = StreamRequest { class, start, length: None, max_startup_ms: None };
        let refused = refuse.clone();
        let done = move |answer: std::result::Result<forebay_streams::Stream, Rejected>| {
            let stream = match answer {
                Ok(stream) => stream,
                Err(why) => return refused(why),
            };
            let Some(node) = this.upgrade() else { return };
            let stream = OpenStream::new(permit, stream, ino, rate, backing, size, start);
            // Closed meanwhile, it is closed here, too.
            if let Some(handle) = node.handles.get(fh) {
                let _ = handle.stream.set(Arc::new(stream));
            }
        };
        match streams.service.take_over(own, &path, &request, instant(carried.dry_at), done) {
            Ok(()) => {}
            Err(OpenError::Rejected(why)) => refuse(why),
            Err(OpenError::Failed(error)) => refuse(Rejected::senseless(error.to_string())),
        }
        Ok(())
    }
}
