//! What one process of a mount passes to another by descriptors, and not by its command line, which
//! every user of the machine can read.

use std::ffi::{CStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open files that a daemon asks for at its start.
const OPEN_FILES: u64 = 1 << 20;
/// The largest file that is read: the state of some ten million open files.
const LENGTH_MAX: u64 = 1 << 30;

/// Takes a descriptor that was passed to this program under an agreed number. It is closed by exec
/// from now on. Nobody else in this process may own it.
///
/// # Errors
/// When nothing was passed under this number.
pub fn take(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl on a number, which fails if it is no descriptor.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is one, it was passed to this program for this, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Takes what was passed to this program as standard input, which is /dev/null from now on.
///
/// # Errors
/// When there is no standard input.
pub fn take_stdin() -> io::Result<OwnedFd> {
    let passed = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(passed)
}

/// Names this process in lists of processes; at most 15 bytes are shown.
pub fn name_process(name: &CStr) {
    // SAFETY: the kernel copies a string that ends with NUL. A failure leaves the old name.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
}

/// Raises this process's limit of open files as far as it may: each open file of each user takes one
/// or two, and a process is usually allowed 1,024 at its start.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Root may go beyond what it was started with.
    let higher = Rlimit {
        current: Some(OPEN_FILES),
        maximum: Some(limit.maximum.map_or(OPEN_FILES, |most| most.max(OPEN_FILES))),
    };
    let raised = setrlimit(Resource::Nofile, higher).or_else(|_| {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
    });
    if let Err(error) = raised {
        tracing::warn!(%error, limit = ?limit.current, "the limit of open files can't be raised");
    }
}

/// Has every descriptor but the standard ones closed by exec: a program that is left behind must not
/// hold on to files, pipes and locks of whoever ran this one.
pub fn close_others_on_exec() {
    // SAFETY: a flag of descriptors is set, none is closed here. Kernels before 5.11 refuse the flag,
    // and the descriptors are inherited there.
    unsafe {
        let flag: libc::c_uint = libc::CLOSE_RANGE_CLOEXEC;
        libc::syscall(libc::SYS_close_range, 3 as libc::c_uint, libc::c_uint::MAX, flag);
    }
}

/// A file without a name that holds `bytes`, read from its beginning.
pub fn in_memory(bytes: &[u8]) -> io::Result<File> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::memfd_create("forebay-state", flags)?);
    file.write_all(bytes)?;
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
    Ok(file)
}

/// What a file without a name holds.
pub fn out_of_memory(file: &File) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    if length > LENGTH_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the state is too large"));
    }
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Words in a file without a name, each ended by a zero byte.
pub fn words_in_memory(words: &[OsString]) -> io::Result<File> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| [word.as_bytes(), &[0]].concat()).collect();
    in_memory(&bytes)
}

/// The words that [`words_in_memory`] wrote.
pub fn words_out_of_memory(file: &File) -> io::Result<Vec<OsString>> {
    let bytes = out_of_memory(file)?;
    let parts = bytes.split_inclusive(|byte| *byte == 0);
    Ok(parts
        .map(|part| OsString::from_vec(part.strip_suffix(&[0]).unwrap_or(part).to_vec()))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_when_put_into_memory_then_come_out_as_they_were() {
        let words: Vec<OsString> = ["tier=/a b=1G", "log-file=", "x\ny"].map(OsString::from).into();
        assert_eq!(words_out_of_memory(&words_in_memory(&words).unwrap()).unwrap(), words);
        assert!(words_out_of_memory(&in_memory(b"").unwrap()).unwrap().is_empty());
    }

    #[test]
    fn take_when_nothing_has_the_number_then_error() {
        assert!(take(9_999).is_err());
    }
}
