//! SIGTERM and SIGINT as something that a thread can wait for.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

use crate::error::Error;

/// What asks a command to end.
const ENDS: [libc::c_int; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];

fn set() -> libc::sigset_t {
    set_of(&ENDS[..2])
}

fn set_of(signals: &[libc::c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set that it is given; the others only change it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    }
}

/// Blocks both signals in this thread and those that it will start; also ignores SIGHUP, which
/// the end of a terminal session sends.
pub fn block() -> Result<(), Error> {
    // SAFETY: the set is initialised and outlives the call; SIG_IGN is a valid disposition.
    let code = unsafe {
        libc::signal(libc::SIGHUP, libc::SIG_IGN);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set(), std::ptr::null_mut())
    };
    if code == 0 {
        Ok(())
    } else {
        Err(Error::io("blocking signals")(io::Error::from_raw_os_error(code)))
    }
}

/// Waits for one of them up to `limit`; says whether one came.
pub fn wait_for(limit: Duration) -> io::Result<bool> {
    Ok(wait_for_any(&set(), limit)?.is_some())
}

fn wait_for_any(set: &libc::sigset_t, limit: Duration) -> io::Result<Option<i32>> {
    let limit = libc::timespec {
        tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(limit.subsec_nanos()),
    };
    // SAFETY: the set and the limit are valid for the call; nobody wants to know more of the signal.
    let number = unsafe { libc::sigtimedwait(set, std::ptr::null_mut(), &limit) };
    if number > 0 {
        return Ok(Some(number));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR) => Ok(None),
        _ => Err(error),
    }
}

/// Waits for one of them.
pub fn wait() -> io::Result<()> {
    let mut number = 0;
    // SAFETY: both pointers are valid for the call.
    let code = unsafe { libc::sigwait(&set(), &mut number) };
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) }
}

/// Blocks what asks a command to end (SIGINT, SIGTERM, SIGHUP, SIGQUIT) in this thread and those that
/// it will start.
pub fn block_ends() -> Result<(), Error> {
    // SAFETY: the set is initialised and outlives the call.
    let code =
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set_of(&ENDS), std::ptr::null_mut()) };
    if code == 0 {
        Ok(())
    } else {
        Err(Error::io("blocking signals")(io::Error::from_raw_os_error(code)))
    }
}

/// Waits for one of those and says which.
pub fn wait_for_end() -> io::Result<i32> {
    let mut number = 0;
    // SAFETY: both pointers are valid for the call.
    let code = unsafe { libc::sigwait(&set_of(&ENDS), &mut number) };
    if code == 0 { Ok(number) } else { Err(io::Error::from_raw_os_error(code)) }
}

/// Waits for one of those up to `limit`; says which came, if one did.
pub fn end_within(limit: Duration) -> io::Result<Option<i32>> {
    wait_for_any(&set_of(&ENDS), limit)
}
