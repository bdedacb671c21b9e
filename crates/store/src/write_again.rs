//! Having the bytes of a file written to its device once more.
//!
//! The kernel takes what it could not write for written after the sync that says so: nothing of it is
//! tried again, and the next sync succeeds whatever became of the bytes. Only what is changed again is
//! written again.

use std::ops::Range;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::{Bytes, ErrorClass, Result, StoreError};

/// Bytes of which the kernel is told at a time; a multiple of every page size.
const WINDOW: u64 = 64 << 20;
/// Bytes that are read and written at a time where the kernel can't be told.
const PIECE: usize = 1 << 20;
/// A multiple of every page size, at which windows begin.
const PAGE: u64 = 64 << 10;

/// Has the next sync write all bytes of a file, as they are read now, whatever the kernel believes to be
/// on the device already. Writers that the kernel serves by itself may go on meanwhile, unless the kernel
/// can't be told (before Linux 5.14): then only a caller who is `alone` can have it done.
///
/// The modification time may move.
///
/// # Errors
/// EIO if others may write meanwhile and that can't be done; what reading and writing say.
pub fn write_again(file: &dyn Bytes, alone: bool) -> Result<()> {
    let len = file.len()?;
    let mut at = 0;
    while let Some(run) = next_data(file, at, len)? {
        at = run.end;
        if !marks_as_changed(file, &run)? {
            if !alone {
                return Err(StoreError::errno_of("write again", file.label(), libc::EIO));
            }
            copy_onto_itself(file, run)?;
        }
    }
    Ok(())
}

/// The first run of data from `at` on; all that is left where the file system can't tell.
fn next_data(file: &dyn Bytes, at: u64, len: u64) -> Result<Option<Range<u64>>> {
    let start = match file.seek_data(at) {
        Ok(Some(start)) => start,
        Ok(None) => return Ok(None),
        Err(error) if error.class() == ErrorClass::Unsupported => at,
        Err(error) => return Err(error),
    };
    let end = match file.seek_hole(start) {
        Ok(end) => end.unwrap_or(len),
        Err(error) if error.class() == ErrorClass::Unsupported => len,
        Err(error) => return Err(error),
    };
    Ok((start < len && start < end).then_some(start..end.min(len)))
}

/// Has the kernel take the pages of a run for changed, without a change: a writer beside this one can't
/// lose anything by it. Says whether it can do that.
fn marks_as_changed(file: &dyn Bytes, run: &Range<u64>) -> Result<bool> {
    let Some(fd) = file.fd() else { return Ok(false) };
    let err = |e: Errno| StoreError::io("write again", file.label(), e);
    let mut at = run.start - run.start % PAGE;
    while at < run.end {
        let len = (run.end - at).min(WINDOW) as usize;
        let (access, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice; nothing here reads or writes it.
        let window = match unsafe { mmap(std::ptr::null_mut(), len, access, kind, fd, at) } {
            Ok(window) => window,
            Err(Errno::NODEV | Errno::ACCESS | Errno::INVAL | Errno::PERM) => return Ok(false),
            Err(e) => return Err(err(e)),
        };
        // SAFETY: the range is the mapping made above. This advice brings pages in and changes none; what
        // can't be brought in is an error and no signal.
        let told = unsafe { madvise(window, len, Advice::LinuxPopulateWrite) };
        // SAFETY: the mapping made above, of which nobody else knows.
        unsafe { munmap(window, len) }.map_err(err)?;
        match told {
            Ok(()) => {}
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => return Ok(false),
            // The device does not give what should be written: that is a read that failed.
            Err(Errno::FAULT) => return Err(StoreError::io("read", file.label(), Errno::IO)),
            Err(e) => return Err(err(e)),
        }
        at += len as u64;
    }
    Ok(true)
}

fn copy_onto_itself(file: &dyn Bytes, run: Range<u64>) -> Result<()> {
    let mut buffer = vec![0; PIECE];
    let mut at = run.start;
    while at < run.end {
        let want = buffer.len().min((run.end - at) as usize);
        let read = file.read_at(&mut buffer[..want], at)?;
        if read == 0 {
            break;
        }
        let mut done = 0;
        while done < read {
            done += file.write_at(&buffer[done..read], at + done as u64)?;
        }
        at += read as u64;
    }
    Ok(())
}
