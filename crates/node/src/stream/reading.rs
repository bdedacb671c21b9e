//! The bytes of a stream on their way to the program: from the memory of the streams, and from the
//! tier where that has them.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_store::BackingFile;
use forebay_streams::{Bytes, Stream};
use forebay_types::Ino;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::context::Context;
use crate::error::Result;
use crate::metrics::Source;
use crate::node::Node;
use crate::residency::files::FileRef;
use crate::residency::overlay::compose;

use super::StreamPermit;
use super::hand_over::{self, CarriedStream};
use super::window::{Way, Window};

/// A stream as the handle has it that reads along it.
pub struct OpenStream {
    ino: Ino,
    /// The version that it reads.
    backing: Arc<dyn BackingFile>,
    size: u64,
    rate: u64,
    held: Mutex<Held>,
    permit: StreamPermit,
}

struct Held {
    stream: Stream,
    window: Window,
    /// What the last read has left of what the stream gave.
    rest: Bytes,
}

impl OpenStream {
    pub(super) fn new(
        permit: StreamPermit,
        stream: Stream,
        ino: Ino,
        rate: u64,
        backing: Arc<dyn BackingFile>,
        size: u64,
        start: u64,
    ) -> Self {
        // What is on a tier is there at once.
        let within = if start > 0 { Duration::ZERO } else { stream.first_byte_within() };
        permit.0.tell_open(ino.0, rate, within);
        let held = Held { stream, window: Window::new(start), rest: Bytes::new() };
        OpenStream { ino, backing, size, rate, held: Mutex::new(held), permit }
    }

    /// What a daemon that goes on with it must know.
    pub(crate) fn carried(&self) -> CarriedStream {
        let held = self.held.lock();
        let ahead = held.rest.len() as u64 + held.stream.ready();
        let lasts = u128::from(ahead) * 1_000_000_000 / u128::from(self.rate.max(1));
        let dry_at = hand_over::monotonic() + u64::try_from(lasts).unwrap_or(u64::MAX / 2);
        let (rate, at, order) = (self.rate, held.window.next(), held.stream.id());
        CarriedStream { rate, at, order, dry_at }
    }

    /// Whether a read can be answered at once.
    fn is_ready(&self, runs: &[Range<u64>]) -> bool {
        let ([run], Some(held)) = (runs, self.held.try_lock()) else { return runs.is_empty() };
        let there = held.rest.len() as u64 + held.stream.ready();
        held.window.next() == run.start && there >= run.end - run.start
    }

    /// Fills `part` with the bytes at `offset`; false if they do not come this way, or not in time.
    fn read(&self, offset: u64, part: &mut [u8], until: Instant) -> bool {
        // A second reader beside the first one is not along the stream.
        let Some(mut held) = self.held.try_lock() else { return false };
        let mut skip = match held.window.way(offset, part.len() as u64) {
            Way::Along { skip } => skip,
            Way::Seek if held.seek(offset) => 0,
            Way::Seek | Way::Aside => return false,
        };
        let mut done = 0;
        while done < part.len() {
            if held.rest.is_empty() {
                match held.stream.read(until.saturating_duration_since(Instant::now())) {
                    // What is left for the next read is no memory of the stream's: a stream whose
                    // memory somebody has in hand can't give its place back.
                    Ok(Some(bytes)) if bytes.len() as u64 > skip + (part.len() - done) as u64 => {
                        held.rest = Bytes::copy_from_slice(&bytes);
                    }
                    Ok(Some(bytes)) => held.rest = bytes,
                    // The file has become shorter, the device fails, it takes too long: whoever
                    // reads without the stream sees which. Or it has given its place back, and the
                    // device has none for it now.
                    Ok(None) | Err(_) => return false,
                }
            }
            let passed = skip.min(held.rest.len() as u64);
            let _ = held.take(passed as usize);
            skip -= passed;
            let bytes = held.take(part.len() - done);
            part[done..done + bytes.len()].copy_from_slice(&bytes);
            done += bytes.len();
        }
        true
    }
}

impl Held {
    /// Up to `most` bytes of what the stream gave last. The memory is its again when they are
    /// dropped.
    fn take(&mut self, most: usize) -> Bytes {
        let bytes = self.rest.split_to(most.min(self.rest.len()));
        if self.rest.is_empty() {
            self.rest = Bytes::new();
        }
        self.window.advance(bytes.len() as u64);
        bytes
    }

    /// Has the stream go on elsewhere, if the device has the time.
    fn seek(&mut self, offset: u64) -> bool {
        let unread = std::mem::take(&mut self.rest).len() as u64;
        if self.stream.seek(offset).is_ok() {
            self.window.moved(offset);
            return true;
        }
        // It goes on where it was, but for what was dropped.
        self.window.advance(unread);
        false
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.permit.0.tell_closed(self.ino.0);
    }
}

impl Node {
    /// Reads along a stream; `None` if the bytes have to be read without it.
    ///
    /// # Errors
    /// What the tier says.
    pub(crate) fn read_streamed(
        &self,
        context: &Context,
        file: &FileRef,
        stream: &OpenStream,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<Option<usize>> {
        let Some(absent) = self.absent_of_stream(context, file, stream, offset, buffer.len())?
        else {
            return Ok(None);
        };
        let (want, runs) = absent;
        let buffer = &mut buffer[..want];
        if !context.may_wait() && !stream.is_ready(&runs) {
            context.wait()?;
        }
        // Well before whoever watches over requests takes it for lost.
        let timeout = (self.config.backing_timeout / 2).max(Duration::from_secs(1));
        let until = Instant::now() + if context.may_wait() { timeout } else { Duration::ZERO };
        for run in &runs {
            let part = (run.start - offset) as usize..(run.end - offset) as usize;
            if !stream.read(run.start, &mut buffer[part], until) {
                return Ok(None);
            }
        }
        // Nobody waited for the stream with the file in hand. What was written or evicted meanwhile
        // is read anew.
        if self.absent_of_stream(context, file, stream, offset, want)? != Some((want, runs.clone()))
        {
            return Ok(None);
        }
        let location = file.location_for(context)?;
        let whole = std::slice::from_ref(&(offset..offset + want as u64)) == &*runs;
        if location.place().is_none() && !whole {
            // It has left the tier between the two looks.
            return Ok(None);
        }
        let from_tier = |from: u64, part: &mut [u8]| {
            let Some(place) = location.place() else { return Err(Errno::IO.into()) };
            let read = place.bytes().read_at(part, from)?;
            part[read..].fill(0);
            self.metrics.bytes.of(Source::Tier).add(part.len() as u64);
            Ok(())
        };
        let streamed = |_: u64, part: &mut [u8]| {
            self.metrics.bytes.of(Source::Backing).add(part.len() as u64);
            Ok(())
        };
        compose(&runs, offset, buffer, from_tier, streamed)?;
        Ok(Some(want))
    }

    /// How many bytes there are of a read, and which of them the tier lacks; `None` if the file is
    /// not the one any more that the stream reads.
    fn absent_of_stream(
        &self,
        context: &Context,
        file: &FileRef,
        stream: &OpenStream,
        offset: u64,
        len: usize,
    ) -> Result<Option<(usize, Vec<Range<u64>>)>> {
        let location = file.location_for(context)?;
        if !location.base().is_opened_as(&stream.backing) {
            return Ok(None);
        }
        let size = match location.place() {
            Some(place) => place.bytes().len()?,
            None => stream.size,
        };
        let end = (offset + len as u64).min(size);
        if offset >= end {
            return Ok(Some((0, Vec::new())));
        }
        let mut absent = match location.place() {
            None => std::iter::once(offset..end).collect(),
            Some(place) => place.absent(offset..end),
        };
        for run in &mut absent {
            *run = run.start.max(offset)..run.end.min(end);
        }
        // What lies beyond the end of the version that is read are zeros, which only the other way
        // knows.
        let beyond = absent.last().is_some_and(|run| run.end > stream.size);
        Ok((!beyond).then(|| ((end - offset) as usize, absent)))
    }
}
