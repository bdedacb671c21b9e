//! Everything else that is read from the backing store without being a stream, and what is written
//! back to it: while streams are open it takes turns in the time that they leave.

use std::any::Any;
use std::os::fd::BorrowedFd;

use forebay_store::copy::Turns;
use forebay_store::{BackingFile, Bytes};
use rustix::fs::Advice;

use super::Streams;
use crate::error::Result;
use crate::residency::seams::ColdReads;

/// Bytes of a turn. A read is not interrupted when a stream is due.
const TURN: usize = 64 << 10;
/// Bytes of names and attributes that are got at once.
const BLOCK: u64 = 4 << 10;

impl Turns for Streams {
    fn piece(&self) -> Option<u64> {
        (self.open() > 0).then_some(TURN as u64)
    }

    fn turn(&self, file: Option<BorrowedFd<'_>>, offset: u64, bytes: u64) -> Box<dyn Any> {
        // What has no place yet gets one when it is written: anywhere.
        let place = file.and_then(|file| forebay_streams::place_of(file, offset)).unwrap_or(0);
        Box::new(self.service.turn(place, bytes))
    }
}

impl ColdReads for Streams {
    fn pace(&self) {
        if self.open() > 0 {
            drop(self.service.turn(0, BLOCK));
        }
    }

    fn read_cold(
        &self,
        backing: &dyn BackingFile,
        buffer: &mut [u8],
        offset: u64,
    ) -> Result<usize> {
        if self.open() == 0 {
            return Ok(backing.read_at(buffer, offset)?);
        }
        if let Some(fd) = backing.fd() {
            // Nothing beside what there is a turn for. Without the advice all works, only worse.
            let _ = rustix::fs::fadvise(fd, 0, None, Advice::Random);
        }
        let mut done = 0;
        for part in buffer.chunks_mut(TURN) {
            let at = offset + done as u64;
            let place = backing.fd().and_then(|fd| forebay_streams::place_of(fd, at)).unwrap_or(0);
            let turn = self.service.turn(place, part.len() as u64);
            let read = backing.read_at(part, at)?;
            drop(turn);
            done += read;
            if read < part.len() {
                break;
            }
        }
        Ok(done)
    }

    fn copied_cold(
        &self,
        backing: &dyn BackingFile,
        object: &dyn Bytes,
        size: u64,
    ) -> Result<bool> {
        if self.open() == 0 {
            return Ok(false);
        }
        let mut buffer = vec![0; TURN];
        let mut at = 0;
        while at < size {
            let want = TURN.min(usize::try_from(size - at).unwrap_or(TURN));
            let read = self.read_cold(backing, &mut buffer[..want], at)?;
            if read == 0 {
                break;
            }
            let mut written = 0;
            while written < read {
                written += object.write_at(&buffer[written..read], at + written as u64)?;
            }
            at += read as u64;
        }
        Ok(at >= size)
    }
}
