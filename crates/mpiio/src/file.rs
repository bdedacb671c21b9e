//! An open file: pointers, view and length, and what MPI's calls on it come to.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use forebay_coop::message::{Access, Extent, Request as Wanted};

use crate::Error;
use crate::flat::{Use, flatten};
use crate::group::{Buffer, Group};
use crate::mpi::{Handle, Mpi, RawAccess, Refused, Request};
use crate::post::{Post, lock};
use crate::settings::Settings;
use crate::view::{Flat, View, clip};
use crate::wire::Ask;

/// Which pointer an access uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pointer {
    Explicit,
    Individual,
    Shared,
    /// Shared, process by process.
    Ordered,
}

/// What changes while the file is open.
#[derive(Debug, Default)]
struct Changing {
    view: Arc<View>,
    /// In elementary types.
    position: i64,
    atomic: bool,
    /// Whether calls go to the file without the cache.
    bypass: bool,
    /// Bytes of a split collective call that has begun.
    split: Option<i64>,
}

/// What was done through all files of a process.
#[derive(Debug, Default)]
pub struct Tally {
    /// Reads.
    pub reads: AtomicU64,
    /// Writes.
    pub writes: AtomicU64,
    /// Bytes that were read.
    pub bytes_read: AtomicU64,
    /// Bytes that were written.
    pub bytes_written: AtomicU64,
    /// Nanoseconds that calls took.
    pub nanos: AtomicU64,
}

/// A file that is open through the cache.
pub struct Open {
    mpi: Mpi,
    group: Arc<Group>,
    comm: Handle,
    first: bool,
    reads: bool,
    writes: bool,
    /// How it is cached.
    pub settings: Settings,
    tally: Arc<Tally>,
    changing: Mutex<Changing>,
}

/// What an open needs beside the group.
pub struct Rights {
    /// Whether the program may read.
    pub reads: bool,
    /// Whether it may write.
    pub writes: bool,
    /// Whether pointers begin at the end.
    pub appends: bool,
}

impl Open {
    /// The file is open in the group. Collective over `comm`, which it frees in the end.
    pub fn new(
        group: Arc<Group>,
        post: &Post,
        comm: Handle,
        first: bool,
        rights: &Rights,
        settings: Settings,
        tally: &Arc<Tally>,
    ) -> Self {
        let end = if rights.appends { group.known() as i64 } else { 0 };
        if first {
            group.ask(Ask::Point { at: end });
        }
        let changing = Changing { position: end, ..Changing::default() };
        Self {
            mpi: post.mpi,
            group,
            comm,
            first,
            reads: rights.reads,
            writes: rights.writes,
            settings,
            tally: Arc::clone(tally),
            changing: Mutex::new(changing),
        }
    }

    /// The group.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// The communicator.
    pub fn comm(&self) -> Handle {
        self.comm
    }

    /// Whether calls go through the cache.
    pub fn cached(&self) -> bool {
        !lock(&self.changing).bypass
    }

    fn agree(&self, result: Result<(), Error>) -> Result<(), Error> {
        let code = result.map_or_else(|error| i64::from(-error.code()), |()| 0);
        match self.mpi.largest(self.comm, [code]) {
            Ok([0]) => Ok(()),
            Ok([code]) if code == i64::from(-Error::NoSpace.code()) => Err(Error::NoSpace),
            _ => Err(Error::Failed),
        }
    }

    /// Writes back and forgets all pages. Collective; nothing is cached until [`Open::reopen`].
    pub fn settle(&self, durable: bool) -> Result<(), Error> {
        self.group.finish();
        self.mpi.barrier(self.comm)?;
        let flushed = self.agree(self.group.flush(false, durable));
        self.group.synced();
        let closed = self.group.flush(true, false);
        self.mpi.barrier(self.comm)?;
        flushed.and(closed)
    }

    /// Caches again, whatever the file has become. Collective.
    pub fn reopen(&self) -> Result<(), Error> {
        let length = if self.first { length_of(&self.group)? } else { 0 };
        let length = u64::from_le_bytes(self.mpi.share(self.comm, length.to_le_bytes())?);
        self.group.open(length);
        self.mpi.barrier(self.comm)?;
        Ok(())
    }

    /// The length of the file.
    pub fn length(&self) -> u64 {
        self.group.length()
    }

    /// A view is set. Collective.
    pub fn set_view(
        &self,
        displacement: i64,
        types: Option<(Handle, Handle)>,
    ) -> Result<(), Error> {
        let view = types.and_then(|(etype, filetype)| {
            let describe = |datatype, then: Use| self.mpi.describe(datatype, then);
            let unit = flatten(etype, &describe)?.size;
            View::new(u64::try_from(displacement).ok()?, unit, flatten(filetype, &describe)?)
        });
        let [bypass] = self.mpi.largest(self.comm, [i64::from(view.is_none())])?;
        let (bypass, before) = (bypass != 0, !self.cached());
        if self.first {
            self.group.ask(Ask::Point { at: 0 });
        }
        if bypass && !before {
            self.settle(false)?;
        } else if !bypass && before {
            self.reopen()?;
        } else {
            self.mpi.barrier(self.comm)?;
        }
        let mut changing = lock(&self.changing);
        changing.view = Arc::new(view.unwrap_or_default());
        (changing.position, changing.bypass) = (0, bypass);
        Ok(())
    }

    /// Atomic mode is switched. Collective.
    pub fn set_atomic(&self, flag: bool) -> Result<(), Error> {
        self.mpi.barrier(self.comm)?;
        lock(&self.changing).atomic = flag;
        Ok(())
    }

    /// Reads or writes. Gives the bytes; with a request it begins to, and completes it later.
    pub fn access(&self, raw: &RawAccess, request: Option<Request>) -> Result<u64, Error> {
        let begin = Instant::now();
        let access = if raw.writes != 0 { Access::Write } else { Access::Read };
        let allowed = if access == Access::Write { self.writes } else { self.reads };
        if !allowed || raw.count < 0 || !self.cached() {
            return Err(Error::Pass);
        }
        let pointer = match raw.pointer {
            0 if raw.offset < 0 => return Err(Error::Pass),
            0 => Pointer::Explicit,
            1 => Pointer::Individual,
            2 => Pointer::Shared,
            _ => Pointer::Ordered,
        };
        let memory = flatten(raw.datatype, &|it, then: Use| self.mpi.describe(it, then));
        let memory = memory.ok_or(Error::Argument)?;
        let count = raw.count as u64;
        let bytes = memory.size.checked_mul(count).ok_or(Error::Failed)?;
        let (view, atomic) = {
            let changing = lock(&self.changing);
            (Arc::clone(&changing.view), changing.atomic)
        };
        let offset = self.place(pointer, raw.offset, bytes, &view)?;
        let mut extents = view.extents(offset, bytes).ok_or(Error::Failed)?;
        let moved = self.within_length(access, &mut extents, bytes);
        // Pieces of large calls would take as much memory again at the homes.
        let small = moved <= self.settings.pool_size() / 4;
        let collective = raw.collective != 0 && !atomic && small;
        let wanted = Wanted::Access { file: self.group.file(), access, collective, extents };
        self.count(access, moved);
        let memory = Memory::of(memory, count, raw.buffer.cast(), access, moved);
        let result = match request {
            Some(request) => {
                let (buffer, mpi) = (memory.buffer, self.mpi);
                self.group.begin(
                    wanted,
                    buffer,
                    Box::new(move |result| {
                        memory.spread();
                        mpi.complete(request, result.map(|()| moved));
                    }),
                );
                Ok(moved)
            }
            None => {
                let result = self.group.call(wanted, memory.buffer);
                memory.spread();
                result.map(|()| moved)
            }
        };
        let nanos = begin.elapsed().as_nanos() as u64;
        self.tally.nanos.fetch_add(nanos, Ordering::Relaxed);
        result
    }

    fn count(&self, access: Access, bytes: u64) {
        let (calls, sum) = match access {
            Access::Read => (&self.tally.reads, &self.tally.bytes_read),
            Access::Write => (&self.tally.writes, &self.tally.bytes_written),
        };
        calls.fetch_add(1, Ordering::Relaxed);
        sum.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Where an access begins, in elementary types. Moves the pointer that it uses.
    fn place(&self, pointer: Pointer, offset: i64, bytes: u64, view: &View) -> Result<u64, Error> {
        let units = (bytes / view.unit()) as i64;
        let at = match pointer {
            Pointer::Explicit => offset,
            Pointer::Individual => {
                let mut changing = lock(&self.changing);
                let at = changing.position;
                changing.position = at.saturating_add(units);
                at
            }
            Pointer::Shared => self.group.ask(Ask::Advance { by: units }),
            Pointer::Ordered => {
                let before = self.mpi.before(self.comm, units)?;
                let [all] = self.mpi.sum(self.comm, [units])?;
                let base = if self.first { self.group.ask(Ask::Advance { by: all }) } else { 0 };
                let base = self.mpi.share(self.comm, base.to_le_bytes())?;
                i64::from_le_bytes(base).saturating_add(before)
            }
        };
        u64::try_from(at).map_err(|_| Error::Failed)
    }

    /// Reads end where the file ends; writes move its end. Gives the bytes that are left.
    fn within_length(&self, access: Access, extents: &mut Vec<Extent>, bytes: u64) -> u64 {
        let end = extents.last().map_or(0, |last| last.offset + last.len);
        if end <= self.group.known() {
            return bytes;
        }
        if access == Access::Write {
            self.group.grow(end);
            return bytes;
        }
        clip(extents, self.group.length())
    }

    /// Moves a pointer. The shared one collectively.
    pub fn seek(&self, shared: bool, offset: i64, whence: i32) -> Result<(), Error> {
        if !self.cached() {
            return Err(Error::Pass);
        }
        if shared {
            // What others do with it before this call comes before.
            self.mpi.barrier(self.comm)?;
        }
        let base = match whence {
            0 => 0,
            1 if shared => self.group.ask(Ask::Advance { by: 0 }),
            1 => lock(&self.changing).position,
            _ => {
                let view = Arc::clone(&lock(&self.changing).view);
                view.end(self.length()) as i64
            }
        };
        let at = base.checked_add(offset).filter(|at| *at >= 0);
        if !shared {
            lock(&self.changing).position = at.ok_or(Error::Argument)?;
            return Ok(());
        }
        self.mpi.barrier(self.comm)?;
        if let Some(at) = at.filter(|_| self.first) {
            self.group.ask(Ask::Point { at });
        }
        self.mpi.barrier(self.comm)?;
        at.map(drop).ok_or(Error::Argument)
    }

    /// Where a pointer is.
    pub fn position(&self, shared: bool) -> Result<i64, Error> {
        if !self.cached() {
            return Err(Error::Pass);
        }
        if shared {
            return Ok(self.group.ask(Ask::Advance { by: 0 }));
        }
        Ok(lock(&self.changing).position)
    }

    /// A split collective call has begun, with this result.
    pub fn begin_split(&self, result: i64) {
        lock(&self.changing).split = Some(result);
    }

    /// The result of the one that has begun.
    pub fn end_split(&self) -> Option<i64> {
        lock(&self.changing).split.take()
    }
}

impl From<Refused> for Error {
    fn from(_: Refused) -> Self {
        Self::Failed
    }
}

/// The length of the file as the system knows it.
pub fn length_of(group: &Group) -> Result<u64, Error> {
    // SAFETY: an open file, and room for the answer.
    let (code, stat) = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        let code = libc::fstat(group.descriptor().as_raw_fd(), &raw mut stat);
        (code, stat)
    };
    if code == 0 { Ok(stat.st_size as u64) } else { Err(Error::Failed) }
}

/// The program's memory as one piece.
struct Memory {
    buffer: Buffer,
    /// Where the bytes belong: type, how many of it, origin.
    apart: Option<(Flat, u64, Buffer)>,
    reads: bool,
    /// Keeps the bytes of the buffer.
    _copy: Vec<u8>,
}

impl Memory {
    fn of(flat: Flat, count: u64, origin: *mut u8, access: Access, moved: u64) -> Self {
        let reads = access == Access::Read;
        if let Some(at) = flat.dense(count) {
            let at = origin.wrapping_offset(at as isize);
            let buffer = Buffer { at, len: moved };
            return Self { buffer, apart: None, reads, _copy: Vec::new() };
        }
        let mut copy = vec![0u8; moved as usize];
        let at = copy.as_mut_ptr();
        let place = Buffer { at: origin, len: 0 };
        if !reads {
            each(&flat, count, moved, |block, done, len| {
                // SAFETY: the program's type says that so many bytes are there.
                unsafe {
                    let from = origin.wrapping_offset(block as isize);
                    from.copy_to_nonoverlapping(at.add(done as usize), len as usize);
                }
            });
        }
        let buffer = Buffer { at, len: moved };
        Self { buffer, apart: Some((flat, count, place)), reads, _copy: copy }
    }

    /// Puts what was read where it belongs.
    fn spread(&self) {
        let Some((flat, count, origin)) = self.apart.as_ref().filter(|_| self.reads) else {
            return;
        };
        each(flat, *count, self.buffer.len, |block, done, len| {
            // SAFETY: the program's type says that there is room for so many bytes.
            unsafe {
                let to = origin.at.wrapping_offset(block as isize);
                self.buffer.at.add(done as usize).copy_to_nonoverlapping(to, len as usize);
            }
        });
    }
}

/// Each block until so many bytes are done: where it is, how many were done before, how long.
fn each(flat: &Flat, count: u64, most: u64, mut each: impl FnMut(i64, u64, u64)) {
    let mut done = 0;
    flat.each(count, |at, len| {
        let len = len.min(most - done);
        if len > 0 {
            each(at, done, len);
            done += len;
        }
    });
}
