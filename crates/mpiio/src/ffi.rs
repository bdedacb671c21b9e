//! What the shim calls. See `shim/forebay_mpiio.h`.

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, OnceLock};

use crate::Error;
use crate::bell::Bell;
use crate::file::Open;
use crate::mpi::{Handle, Mpi, Opening, RawAccess, Request, slice};
use crate::runtime::Runtime;

static RUNTIME: OnceLock<Runtime> = OnceLock::new();

fn code(result: Result<(), Error>) -> c_int {
    result.map_or_else(Error::code, |()| 0)
}

fn number(result: Result<i64, Error>) -> i64 {
    result.unwrap_or_else(|error| error.code().into())
}

fn with<T>(file: Handle, body: impl FnOnce(&Arc<Open>) -> Result<T, Error>) -> Result<T, Error> {
    let file = RUNTIME.get().and_then(|runtime| runtime.file(file)).ok_or(Error::Pass)?;
    body(&file)
}

/// Starts the library in this process.
///
/// # Safety
/// The shim gives its functions, and as many members of the node as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_start(
    mpi: *const Mpi,
    rank: c_int,
    size: c_int,
    world: Handle,
    node: Handle,
    members: *const c_int,
    member_count: c_int,
    member: c_int,
) -> c_int {
    // SAFETY: as the caller says.
    let (mpi, members) = unsafe { (*mpi, slice(members, member_count as usize)) };
    let bell = Bell::make(&mpi, node, members, member as usize);
    let Some(runtime) = Runtime::start(mpi, rank, size as usize, world, bell) else {
        return Error::Failed.code();
    };
    // A process starts MPI once.
    RUNTIME.get_or_init(|| runtime);
    0
}

/// Ends it: collective over the world.
#[unsafe(no_mangle)]
pub extern "C" fn fb_stop() {
    if let Some(runtime) = RUNTIME.get() {
        runtime.stop();
    }
}

/// A file was opened: collective.
///
/// # Safety
/// What is said of it holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_open(file: Handle, opening: *const Opening) -> c_int {
    let Some(runtime) = RUNTIME.get() else { return Error::Pass.code() };
    // SAFETY: as the caller says.
    code(runtime.open(file, unsafe { &*opening }))
}

/// A file is closed: collective.
#[unsafe(no_mangle)]
pub extern "C" fn fb_close(file: Handle) -> c_int {
    code(RUNTIME.get().ok_or(Error::Pass).and_then(|runtime| runtime.close(file)))
}

/// Writes back and forgets what is cached: collective.
#[unsafe(no_mangle)]
pub extern "C" fn fb_settle(file: Handle, durable: c_int) -> c_int {
    code(with(
        file,
        |file| if file.cached() { file.settle(durable != 0) } else { Err(Error::Pass) },
    ))
}

/// Caches again: collective.
#[unsafe(no_mangle)]
pub extern "C" fn fb_reopen(file: Handle) -> c_int {
    code(with(file, |file| file.reopen()))
}

/// The view was set: collective.
#[unsafe(no_mangle)]
pub extern "C" fn fb_view(
    file: Handle,
    displacement: i64,
    etype: Handle,
    filetype: Handle,
    native: c_int,
) -> c_int {
    let types = (native != 0).then_some((etype, filetype));
    code(with(file, |file| file.set_view(displacement, types)))
}

/// Atomic mode was switched: collective.
#[unsafe(no_mangle)]
pub extern "C" fn fb_atomic(file: Handle, flag: c_int) -> c_int {
    code(with(file, |file| file.set_atomic(flag != 0)))
}

/// Whether calls on a file go through the cache.
#[unsafe(no_mangle)]
pub extern "C" fn fb_cached(file: Handle) -> c_int {
    with(file, |file| Ok(file.cached())).is_ok_and(|cached| cached).into()
}

/// The length of a file.
#[unsafe(no_mangle)]
pub extern "C" fn fb_length(file: Handle) -> i64 {
    let length = |file: &Arc<Open>| file.cached().then(|| file.length() as i64).ok_or(Error::Pass);
    number(with(file, length))
}

/// The sizes of pages and of the pool.
///
/// # Safety
/// There is room for the numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_sizes(file: Handle, page_size: *mut i64, pool_size: *mut i64) -> c_int {
    code(with(file, |file| {
        // SAFETY: as the caller says.
        unsafe {
            page_size.write(file.settings.page_size.into());
            pool_size.write(file.settings.pool_size() as i64);
        }
        Ok(())
    }))
}

/// Reads or writes.
///
/// # Safety
/// The program has memory as it says, until the call or the request is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_access(
    file: Handle,
    access: *const RawAccess,
    request: *mut c_void,
) -> i64 {
    let request = (!request.is_null()).then_some(Request(request));
    // SAFETY: as the caller says.
    let access = unsafe { &*access };
    number(with(file, |file| file.access(access, request).map(|bytes| bytes as i64)))
}

/// Moves a pointer.
#[unsafe(no_mangle)]
pub extern "C" fn fb_seek(file: Handle, shared: c_int, offset: i64, whence: c_int) -> c_int {
    code(with(file, |file| file.seek(shared != 0, offset, whence)))
}

/// Where a pointer is.
#[unsafe(no_mangle)]
pub extern "C" fn fb_position(file: Handle, shared: c_int) -> i64 {
    number(with(file, |file| file.position(shared != 0)))
}

/// A split collective call has begun.
#[unsafe(no_mangle)]
pub extern "C" fn fb_split_begin(file: Handle, result: i64) {
    let _ = with(file, |file| {
        file.begin_split(result);
        Ok(())
    });
}

/// The result of a split collective call.
#[unsafe(no_mangle)]
pub extern "C" fn fb_split_end(file: Handle) -> i64 {
    number(with(file, |file| file.end_split().ok_or(Error::Pass)))
}

/// Says a line to the user.
///
/// # Safety
/// It ends with zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_say(line: *const c_char) {
    // SAFETY: as the caller says.
    crate::say(&unsafe { std::ffi::CStr::from_ptr(line) }.to_string_lossy());
}
