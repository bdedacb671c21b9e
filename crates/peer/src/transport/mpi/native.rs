//! The calls of Open MPI that are used (MPI 3.1, sections 3.7, 3.8 and 8.7), by the binary interface
//! that its versions 2 to 5 share.

use libloading::os::unix::Library;
use std::ffi::{c_int, c_void};
use std::ptr;

use super::super::library::{open, symbol};
use crate::error::{Error, Result};

/// From any process.
const ANY_SOURCE: c_int = -1;
/// What marks messages of ours among those of the job.
const TAG: c_int = 0x4642;
/// Calls are made by one thread, which is the one that initialized the library.
const THREAD_FUNNELED: c_int = 1;

/// `MPI_Comm`, `MPI_Datatype`, `MPI_Request` and the like are pointers.
type Handle = *mut c_void;

/// `MPI_Status`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Status {
    source: c_int,
    tag: c_int,
    error: c_int,
    cancelled: c_int,
    count: usize,
}

/// A message that is being sent or received; its bytes stay where they are until it is done.
pub(super) struct UnderWay {
    request: Handle,
    pub rank: u16,
    pub bytes: Vec<u8>,
}

// SAFETY: a handle is a pointer that only the library looks at, and only the engine's thread calls
// the library.
unsafe impl Send for UnderWay {}

/// The library, initialized. All its methods are called by the thread that made it.
pub(super) struct Native {
    world: Handle,
    byte: Handle,
    size: unsafe extern "C" fn(Handle, *mut c_int) -> c_int,
    rank: unsafe extern "C" fn(Handle, *mut c_int) -> c_int,
    isend: Isend,
    improbe: Improbe,
    imrecv: Imrecv,
    count: unsafe extern "C" fn(*const Status, Handle, *mut c_int) -> c_int,
    test: unsafe extern "C" fn(*mut Handle, *mut c_int, *mut Status) -> c_int,
    finalize: unsafe extern "C" fn() -> c_int,
    /// Kept for as long as its functions are.
    _library: Library,
}

type Isend =
    unsafe extern "C" fn(*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle) -> c_int;
type Improbe =
    unsafe extern "C" fn(c_int, c_int, Handle, *mut c_int, *mut Handle, *mut Status) -> c_int;
type Imrecv = unsafe extern "C" fn(*mut c_void, c_int, Handle, *mut Handle, *mut Handle) -> c_int;

fn failed(call: &str, code: c_int) -> Error {
    Error::Settings(format!("mpi://: {call} fails ({code})"))
}

fn check(call: &str, code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(failed(call, code)),
    }
}

impl Native {
    /// Loads and initializes the library on this thread.
    ///
    /// # Errors
    /// The process was not started by `mpirun`, there is no library, somebody else in this process
    /// uses it already, or it fails.
    pub fn start() -> Result<Native> {
        // Without it the library would start a job of its own, or end the process.
        if std::env::var_os("OMPI_COMM_WORLD_SIZE").is_none() {
            return Err(Error::Settings(
                "mpi:// connects the processes of a job: start them by Open MPI's mpirun".into(),
            ));
        }
        let library = open(&["libmpi.so.40"], "mpi:// needs Open MPI (Debian: libopenmpi3)")?;
        // SAFETY: the types are those of Open MPI's `mpi.h`, where handles are pointers and the
        // predefined ones are the addresses of variables. `MPI_Init_thread` takes null for the
        // arguments of the program.
        let native = unsafe {
            let initialized: unsafe extern "C" fn(*mut c_int) -> c_int =
                symbol(&library, "MPI_Initialized")?;
            let init: unsafe extern "C" fn(Handle, Handle, c_int, *mut c_int) -> c_int =
                symbol(&library, "MPI_Init_thread")?;
            let on_error: unsafe extern "C" fn(Handle, Handle) -> c_int =
                symbol(&library, "MPI_Comm_set_errhandler")?;
            let errors_return = symbol(&library, "ompi_mpi_errors_return")?;
            let native = Native {
                world: symbol(&library, "ompi_mpi_comm_world")?,
                byte: symbol(&library, "ompi_mpi_byte")?,
                size: symbol(&library, "MPI_Comm_size")?,
                rank: symbol(&library, "MPI_Comm_rank")?,
                isend: symbol(&library, "MPI_Isend")?,
                improbe: symbol(&library, "MPI_Improbe")?,
                imrecv: symbol(&library, "MPI_Imrecv")?,
                count: symbol(&library, "MPI_Get_count")?,
                test: symbol(&library, "MPI_Test")?,
                finalize: symbol(&library, "MPI_Finalize")?,
                _library: library,
            };
            let (mut already, mut provided) = (0, 0);
            check("MPI_Initialized", initialized(&raw mut already))?;
            if already != 0 {
                return Err(Error::Settings("mpi://: this process uses MPI already".into()));
            }
            let none = ptr::null_mut();
            check("MPI_Init_thread", init(none, none, THREAD_FUNNELED, &raw mut provided))?;
            if provided < THREAD_FUNNELED {
                return Err(Error::Settings("mpi://: this MPI knows no threads at all".into()));
            }
            check("MPI_Comm_set_errhandler", on_error(native.world, errors_return))?;
            native
        };
        Ok(native)
    }

    /// The number of this process, and how many there are.
    pub fn rank_and_size(&self) -> Result<(u16, u16)> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: each writes a number to where it is told to.
        unsafe {
            check("MPI_Comm_rank", (self.rank)(self.world, &raw mut rank))?;
            check("MPI_Comm_size", (self.size)(self.world, &raw mut size))?;
        }
        let of = |number| u16::try_from(number).map_err(|_| failed("a job of so many", number));
        Ok((of(rank)?, of(size)?))
    }

    /// Begins to send.
    pub fn send(&self, rank: u16, bytes: Vec<u8>) -> Result<UnderWay> {
        let mut sent = UnderWay { request: ptr::null_mut(), rank, bytes };
        let len = c_int::try_from(sent.bytes.len()).map_err(|_| failed("MPI_Isend", c_int::MAX))?;
        // SAFETY: the bytes are on the heap and stay there until `is_done` says so, for `UnderWay`
        // is not dropped before.
        let code = unsafe {
            let (bytes, request) = (sent.bytes.as_ptr().cast(), &raw mut sent.request);
            (self.isend)(bytes, len, self.byte, rank.into(), TAG, self.world, request)
        };
        check("MPI_Isend", code).map(|()| sent)
    }

    /// Begins to receive the next message, if one is there.
    pub fn receive(&self) -> Result<Option<UnderWay>> {
        let (mut there, mut message, mut status) = (0, ptr::null_mut(), Status::default());
        let (mut count, mut request) = (0, ptr::null_mut());
        // SAFETY: all that is written to is as long as `mpi.h` says. The bytes stay where they are
        // until `is_done`, as in `send`.
        unsafe {
            let (at, what) = (&raw mut there, &raw mut message);
            let code = (self.improbe)(ANY_SOURCE, TAG, self.world, at, what, &raw mut status);
            check("MPI_Improbe", code)?;
            if there == 0 {
                return Ok(None);
            }
            check("MPI_Get_count", (self.count)(&raw const status, self.byte, &raw mut count))?;
            let mut bytes = vec![0; usize::try_from(count).unwrap_or(0)];
            let (to, request_at) = (bytes.as_mut_ptr().cast(), &raw mut request);
            let code = (self.imrecv)(to, count, self.byte, what, request_at);
            check("MPI_Imrecv", code)?;
            let rank = u16::try_from(status.source).unwrap_or(u16::MAX);
            Ok(Some(UnderWay { request, rank, bytes }))
        }
    }

    /// Whether a message was sent or received as a whole.
    pub fn is_done(&self, one: &mut UnderWay) -> Result<bool> {
        let (mut done, mut status) = (0, Status::default());
        // SAFETY: the request was given by the library; when it is done it is replaced by one that
        // is done for ever.
        let code = unsafe { (self.test)(&raw mut one.request, &raw mut done, &raw mut status) };
        check("MPI_Test", code).map(|()| done != 0)
    }

    /// Waits for the other processes to end as well.
    pub fn finalize(self) {
        // SAFETY: nothing is called after it, as `self` is gone.
        let code = unsafe { (self.finalize)() };
        if code != 0 {
            tracing::warn!(code, "MPI_Finalize fails");
        }
        // Its exit handlers are still in the process.
        std::mem::forget(self._library);
    }
}
