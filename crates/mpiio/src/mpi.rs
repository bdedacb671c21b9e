//! The MPI that the shim was compiled for. Mirrors `shim/forebay_mpiio.h`.

use std::ffi::{c_char, c_int, c_void};

use crate::flat::{Combiner, Node, Use};
use crate::view::Flat;

/// A handle of MPI's, as a number.
pub type Handle = u64;

/// How a datatype was made, as the shim says it.
#[repr(C)]
pub struct RawNode {
    combiner: c_int,
    extent: i64,
    size: i64,
    numbers: *mut i64,
    number_count: usize,
    addresses: *mut i64,
    address_count: usize,
    types: *mut u64,
    type_count: usize,
    constants: [i64; 5],
}

/// What the shim can do.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Mpi {
    send: extern "C" fn(c_int, *const c_void, usize) -> *mut c_void,
    sent: extern "C" fn(*mut c_void) -> c_int,
    probe: extern "C" fn(*mut c_int) -> i64,
    receive: extern "C" fn(*mut c_void, usize) -> c_int,
    describe: extern "C" fn(Handle, *mut RawNode) -> c_int,
    forget: extern "C" fn(*mut RawNode),
    complete: extern "C" fn(*mut c_void, i64, c_int),
    duplicate: extern "C" fn(Handle, *mut Handle) -> c_int,
    release: extern "C" fn(Handle),
    barrier: extern "C" fn(Handle) -> c_int,
    largest: extern "C" fn(Handle, *mut i64, c_int) -> c_int,
    sum: extern "C" fn(Handle, *mut i64, c_int) -> c_int,
    before: extern "C" fn(Handle, i64, *mut i64) -> c_int,
    share: extern "C" fn(Handle, *mut c_void, usize) -> c_int,
}

/// What the shim says of an open file.
#[repr(C)]
pub struct Opening {
    pub(crate) comm: Handle,
    pub(crate) path: *const c_char,
    pub(crate) ranks: *const c_int,
    pub(crate) rank: c_int,
    pub(crate) size: c_int,
    pub(crate) reads: c_int,
    pub(crate) writes: c_int,
    pub(crate) appends: c_int,
    pub(crate) sequential: c_int,
    pub(crate) cache: *const c_char,
    pub(crate) page_size: *const c_char,
    pub(crate) pool_size: *const c_char,
}

/// What a program wants to be read or written.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawAccess {
    pub(crate) writes: c_int,
    pub(crate) pointer: c_int,
    pub(crate) collective: c_int,
    pub(crate) offset: i64,
    pub(crate) buffer: *mut c_void,
    pub(crate) count: i64,
    pub(crate) datatype: Handle,
}

/// MPI refused something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused;

fn check(code: c_int) -> Result<(), Refused> {
    if code == 0 { Ok(()) } else { Err(Refused) }
}

/// A message that is being sent: the request and the bytes that it needs.
pub struct Sending {
    request: *mut c_void,
    _bytes: Vec<u8>,
}

// SAFETY: a request may be tested by any thread, one at a time.
unsafe impl Send for Sending {}

impl Mpi {
    /// Begins to send.
    pub fn send(&self, to: i32, bytes: Vec<u8>) -> Option<Sending> {
        let request = (self.send)(to, bytes.as_ptr().cast(), bytes.len());
        (!request.is_null()).then_some(Sending { request, _bytes: bytes })
    }

    /// Whether it is sent. It must not be asked again then.
    pub fn sent(&self, sending: &Sending) -> bool {
        (self.sent)(sending.request) != 0
    }

    /// A message that has come. For one thread only.
    pub fn receive(&self) -> Option<(i32, Vec<u8>)> {
        let mut from = 0;
        let len = usize::try_from((self.probe)(&raw mut from)).ok()?;
        let mut bytes = vec![0; len];
        check((self.receive)(bytes.as_mut_ptr().cast(), len)).ok()?;
        Some((from, bytes))
    }

    /// How a datatype was made, for as long as `then` takes: the types that it was made of are freed.
    pub fn describe(&self, datatype: Handle, then: Use) -> Option<Flat> {
        let mut raw = RawNode {
            combiner: 0,
            extent: 0,
            size: 0,
            numbers: std::ptr::null_mut(),
            number_count: 0,
            addresses: std::ptr::null_mut(),
            address_count: 0,
            types: std::ptr::null_mut(),
            type_count: 0,
            constants: [0; 5],
        };
        check((self.describe)(datatype, &raw mut raw)).ok()?;
        // SAFETY: the shim gives arrays of these lengths, which stay until they are forgotten.
        let copy = |at: *mut i64, count| unsafe { slice(at, count) }.to_vec();
        let node = Combiner::of(raw.combiner).map(|combiner| Node {
            combiner,
            extent: raw.extent,
            size: raw.size as u64,
            numbers: copy(raw.numbers, raw.number_count),
            addresses: copy(raw.addresses, raw.address_count),
            // SAFETY: as above.
            types: unsafe { slice(raw.types, raw.type_count) }.to_vec(),
            constants: raw.constants,
        });
        let flat = node.and_then(|node| then(&node));
        (self.forget)(&raw mut raw);
        flat
    }

    /// Ends a request of the program.
    pub fn complete(&self, request: Request, outcome: Result<u64, crate::Error>) {
        let bytes = outcome.unwrap_or(0) as i64;
        (self.complete)(request.0, bytes, outcome.map_or_else(crate::Error::code, |_| 0));
    }

    /// A communicator of the same processes.
    pub fn duplicate(&self, comm: Handle) -> Result<Handle, Refused> {
        let mut copy = 0;
        check((self.duplicate)(comm, &raw mut copy)).map(|()| copy)
    }

    /// Frees one.
    pub fn release(&self, comm: Handle) {
        (self.release)(comm);
    }

    /// Waits for all.
    pub fn barrier(&self, comm: Handle) -> Result<(), Refused> {
        check((self.barrier)(comm))
    }

    /// The largest of each number.
    pub fn largest<const N: usize>(
        &self,
        comm: Handle,
        mut numbers: [i64; N],
    ) -> Result<[i64; N], Refused> {
        check((self.largest)(comm, numbers.as_mut_ptr(), N as c_int)).map(|()| numbers)
    }

    /// The sum of each number.
    pub fn sum<const N: usize>(
        &self,
        comm: Handle,
        mut numbers: [i64; N],
    ) -> Result<[i64; N], Refused> {
        check((self.sum)(comm, numbers.as_mut_ptr(), N as c_int)).map(|()| numbers)
    }

    /// The sum of a number in the processes before this one.
    pub fn before(&self, comm: Handle, number: i64) -> Result<i64, Refused> {
        let mut sum = 0;
        check((self.before)(comm, number, &raw mut sum)).map(|()| sum)
    }

    /// The bytes of the first process.
    pub fn share<const N: usize>(
        &self,
        comm: Handle,
        mut bytes: [u8; N],
    ) -> Result<[u8; N], Refused> {
        check((self.share)(comm, bytes.as_mut_ptr().cast(), N)).map(|()| bytes)
    }
}

/// A request of the program that is completed later.
#[derive(Debug, Clone, Copy)]
pub struct Request(pub(crate) *mut c_void);

// SAFETY: the shim completes it from any thread.
unsafe impl Send for Request {}

/// An array of the shim's.
///
/// # Safety
/// There are so many, and they stay as they are meanwhile.
pub unsafe fn slice<'a, T>(at: *const T, count: usize) -> &'a [T] {
    if at.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: as the caller says.
    unsafe { std::slice::from_raw_parts(at, count) }
}
