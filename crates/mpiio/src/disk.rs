//! Reading and writing a file.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Bytes in memory and their place in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strip {
    /// The first byte in the file.
    pub offset: u64,
    /// The first byte in memory.
    pub at: *mut u8,
    /// How many.
    pub len: u64,
}

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// From the file; what is beyond its end is zeros.
    Read,
    /// To the file.
    Write,
    /// Makes durable.
    Sync,
}

/// An access to the file.
#[derive(Debug)]
pub struct Job {
    /// What is done.
    pub doing: Doing,
    /// Ascending in the file.
    pub strips: Vec<Strip>,
}

// SAFETY: the memory stays until the job has ended: slots are not given to others before, and
// buffers belong to calls that wait for it.
unsafe impl Send for Job {}

/// As many pieces as one system call takes.
const MAX_PIECES: usize = 512;

impl Job {
    /// Does it.
    pub fn run(&self, file: &OwnedFd) -> io::Result<()> {
        if self.doing == Doing::Sync {
            // SAFETY: an open file.
            return check(unsafe { libc::fsync(file.as_raw_fd()) } as isize).map(drop);
        }
        let mut rest = self.strips.as_slice();
        while let Some(first) = rest.first() {
            let mut end = first.offset;
            let beside = |strip: &&Strip| {
                let beside = strip.offset == end;
                end += strip.len;
                beside
            };
            let run = rest.iter().take(MAX_PIECES).take_while(beside).count();
            let (these, others) = rest.split_at(run);
            self.vector(file, these)?;
            rest = others;
        }
        Ok(())
    }

    /// Strips that lie beside each other in the file.
    fn vector(&self, file: &OwnedFd, strips: &[Strip]) -> io::Result<()> {
        let Some(mut offset) = strips.first().map(|strip| strip.offset) else { return Ok(()) };
        let piece =
            |strip: &Strip| libc::iovec { iov_base: strip.at.cast(), iov_len: strip.len as usize };
        let mut pieces: Vec<libc::iovec> = strips.iter().map(piece).collect();
        let mut first = 0;
        while let Some(rest) = pieces.get(first..).filter(|rest| !rest.is_empty()) {
            let (at, count, place) = (rest.as_ptr(), rest.len() as i32, offset as libc::off_t);
            // SAFETY: the pieces point to memory that stays, see above.
            let moved = check(unsafe {
                match self.doing {
                    Doing::Write => libc::pwritev(file.as_raw_fd(), at, count, place),
                    _ => libc::preadv(file.as_raw_fd(), at, count, place),
                }
            });
            let mut moved = match moved {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            if moved == 0 && self.doing == Doing::Write {
                return Err(io::ErrorKind::WriteZero.into());
            }
            if moved == 0 {
                for piece in &pieces[first..] {
                    // SAFETY: as above.
                    unsafe { piece.iov_base.cast::<u8>().write_bytes(0, piece.iov_len) };
                }
                return Ok(());
            }
            offset += moved as u64;
            while moved > 0 {
                let piece = &mut pieces[first];
                let part = moved.min(piece.iov_len);
                // SAFETY: within the piece.
                piece.iov_base = unsafe { piece.iov_base.cast::<u8>().add(part) }.cast();
                piece.iov_len -= part;
                moved -= part;
                first += usize::from(piece.iov_len == 0);
            }
        }
        Ok(())
    }
}

fn check(code: isize) -> io::Result<usize> {
    usize::try_from(code).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_over_gaps_and_the_end_when_written_then_read_back_with_zeros() {
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        let mut bytes: Vec<u8> = (1..=100).collect();
        let strip = |bytes: &mut [u8], offset: u64, from: usize, len: u64| Strip {
            offset,
            at: bytes[from..].as_mut_ptr(),
            len,
        };
        let strips = vec![
            strip(&mut bytes, 10, 0, 20),
            strip(&mut bytes, 30, 50, 10),
            strip(&mut bytes, 60, 90, 10),
        ];
        Job { doing: Doing::Write, strips }.run(&file).unwrap();
        let mut back = vec![0xee; 80];
        let strips = vec![strip(&mut back, 0, 0, 35), strip(&mut back, 35, 35, 45)];
        Job { doing: Doing::Read, strips }.run(&file).unwrap();
        let mut wanted = vec![0; 80];
        wanted[10..30].copy_from_slice(&bytes[..20]);
        wanted[30..40].copy_from_slice(&bytes[50..60]);
        wanted[60..70].copy_from_slice(&bytes[90..]);
        assert_eq!(back, wanted);
        Job { doing: Doing::Sync, strips: Vec::new() }.run(&file).unwrap();
    }

    #[test]
    fn job_that_the_system_refuses_then_an_error() {
        let file: OwnedFd = std::fs::File::open("/proc/self/exe").unwrap().into();
        let mut byte = [1u8];
        let strips = vec![Strip { offset: 0, at: byte.as_mut_ptr(), len: 1 }];
        assert!(Job { doing: Doing::Write, strips }.run(&file).is_err());
    }
}
