//! What a process has once: the post office, its threads, and the files that are open.

use std::collections::HashMap;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;

use forebay_coop::Counts;

use crate::Error;
use crate::bell::Bell;
use crate::file::{Open, Rights, Tally, length_of};
use crate::group::Group;
use crate::lanes::{Lanes, Wanted};
use crate::mpi::{Handle, Mpi, Opening, slice};
use crate::post::{Post, lock};
use crate::settings::{Settings, yes};

/// The library in a process.
pub struct Runtime {
    post: Arc<Post>,
    rank: i32,
    world: Handle,
    files: RwLock<HashMap<u64, Arc<Open>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    tally: Arc<Tally>,
    /// What files that are closed have counted.
    counts: Mutex<Counts>,
    opened: Mutex<u32>,
}

impl Runtime {
    /// Starts the threads. Collective over the node, as the bells are.
    pub fn start(
        mpi: Mpi,
        rank: i32,
        size: usize,
        world: Handle,
        bell: Option<Bell>,
    ) -> Option<Self> {
        let post = Arc::new(Post::new(mpi, bell, size));
        let spawn = |name: &str, body: fn(&Post)| {
            let post = Arc::clone(&post);
            let builder = std::thread::Builder::new().name(name.into());
            builder.spawn(move || body(&post)).ok()
        };
        let threads = vec![spawn("forebay-post", Post::serve)?, spawn("forebay-disk", Post::work)?];
        Some(Self {
            post,
            rank,
            world,
            files: RwLock::default(),
            threads: Mutex::new(threads),
            tally: Arc::default(),
            counts: Mutex::default(),
            opened: Mutex::default(),
        })
    }

    /// An open file.
    pub fn file(&self, handle: u64) -> Option<Arc<Open>> {
        self.files.read().unwrap_or_else(PoisonError::into_inner).get(&handle).cloned()
    }

    /// A file was opened by all processes of a communicator: collective. All of them get the same
    /// answer.
    pub fn open(&self, handle: u64, opening: &Opening) -> Result<(), Error> {
        let mpi = self.post.mpi;
        let settings = settings(opening);
        let descriptor = if opening.ranks.is_null() || !settings.cache || opening.sequential != 0 {
            None
        } else {
            descriptor(opening)
        };
        if mpi.largest(opening.comm, [i64::from(descriptor.is_none())])? != [0] {
            return Err(Error::Pass);
        }
        let descriptor = descriptor.ok_or(Error::Pass)?;
        let comm = mpi.duplicate(opening.comm)?;
        // SAFETY: the shim gives as many ranks as the communicator has.
        let ranks = unsafe { slice(opening.ranks, opening.size as usize) }.to_vec();
        let made = self.make(opening, comm, ranks, descriptor, settings);
        let failed = mpi.largest(comm, [i64::from(made.is_err())])?;
        match made {
            Ok(open) if failed == [0] => {
                self.post.register(open.group());
                let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
                files.insert(handle, Arc::new(open));
                drop(files);
                mpi.barrier(comm)?;
                Ok(())
            }
            _ => {
                mpi.release(comm);
                Err(Error::Pass)
            }
        }
    }

    /// The first process says how all have it.
    fn make(
        &self,
        opening: &Opening,
        comm: Handle,
        ranks: Vec<i32>,
        descriptor: OwnedFd,
        settings: Settings,
    ) -> Result<Open, Error> {
        let number = {
            let mut opened = lock(&self.opened);
            *opened += 1;
            *opened
        };
        let mut said = [0u8; 33];
        said[..4].copy_from_slice(&self.rank.to_le_bytes());
        said[4..8].copy_from_slice(&number.to_le_bytes());
        said[8..12].copy_from_slice(&settings.page_size.to_le_bytes());
        said[12..16].copy_from_slice(&settings.slots.to_le_bytes());
        said[16] = u8::from(settings.paper);
        let drawn = rustix::rand::getrandom(&mut said[17..], rustix::rand::GetRandomFlags::empty());
        let drawn = drawn.is_ok_and(|count| count == 16);
        let said = self.post.mpi.share(comm, said)?;
        let number = |at: usize| said[at..].first_chunk().map_or(0, |it| u32::from_le_bytes(*it));
        let id = u64::from(number(0)) << 32 | u64::from(number(4));
        let settings =
            Settings { page_size: number(8), slots: number(12), paper: said[16] != 0, ..settings };
        let (me, first) = (opening.rank as usize, opening.rank == 0);
        let token = said[17..].first_chunk().filter(|_| !first || drawn).copied();
        let lanes = self.lanes(opening, comm, &ranks, &descriptor, settings, token)?;
        let options = settings.options(lanes.is_some());
        let group = Group::new(&self.post, id, me, ranks, descriptor, lanes, &options);
        let group = Arc::new(group.ok_or(Error::Failed)?);
        let length = if first { length_of(&group)? } else { 0 };
        let length = u64::from_le_bytes(self.post.mpi.share(comm, length.to_le_bytes())?);
        group.open(length);
        let rights = Rights {
            reads: opening.reads != 0,
            writes: opening.writes != 0,
            appends: opening.appends != 0,
        };
        Ok(Open::new(group, &self.post, comm, first, &rights, settings, &self.tally))
    }

    /// The memory in common, if all processes have it: collective.
    fn lanes(
        &self,
        opening: &Opening,
        comm: Handle,
        ranks: &[i32],
        descriptor: &OwnedFd,
        settings: Settings,
        token: Option<[u8; 16]>,
    ) -> Result<Option<Lanes>, Error> {
        let (me, pool) = (opening.rank as u32, settings.pool_size());
        let wanted = |token| Wanted {
            token,
            me,
            ranks: ranks.len() as u32,
            pool,
            writes: opening.writes != 0,
        };
        let lanes = if !settings.memory {
            Err("FOREBAY_MPIIO_TRANSPORT says so".into())
        } else if settings.paper {
            Err("the paper's scheme has it so".into())
        } else if ranks.len() == 1 {
            Err("the process is alone".into())
        } else if !self.post.reaches(ranks) {
            Err("not all processes are on one node".into())
        } else {
            let token = token.ok_or_else(|| "no random number".to_owned());
            token.and_then(|token| Lanes::join(&wanted(token), descriptor))
        };
        let failed = self.post.mpi.largest(comm, [i64::from(lanes.is_err())])? != [0];
        if me == 0 && wants_report() {
            let way = match &lanes {
                Ok(_) if !failed => "lie in the memory of this node's daemon".into(),
                Ok(_) => "go by messages: a process could not join the others".into(),
                Err(reason) => format!("go by messages: {reason}"),
            };
            crate::say(&format!("MPI-IO pages {way}"));
        }
        Ok(lanes.ok().filter(|_| !failed))
    }

    /// A file is closed: collective.
    pub fn close(&self, handle: u64) -> Result<(), Error> {
        let file = {
            let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
            files.remove(&handle).ok_or(Error::Pass)?
        };
        let settled = if file.cached() { file.settle(false) } else { Ok(()) };
        self.post.forget(file.group().id);
        self.post.mpi.release(file.comm());
        let counts = file.group().counts();
        let mut all = lock(&self.counts);
        all.local += counts.local;
        all.remote += counts.remote;
        all.missed += counts.missed;
        all.evicted += counts.evicted;
        all.moved += counts.moved;
        settled
    }

    /// Ends the threads, after a report if it is asked for: collective over the world.
    pub fn stop(&self) {
        if wants_report() {
            self.report();
        }
        let _ = self.post.mpi.barrier(self.world);
        self.post.stop();
        for thread in lock(&self.threads).drain(..) {
            let _ = thread.join();
        }
        // All have sent what they had to send: what is still on its way is of no use to anybody.
        let _ = self.post.mpi.barrier(self.world);
        while self.post.mpi.receive().is_some() {}
    }

    fn report(&self) {
        let counts = *lock(&self.counts);
        let load = |it: &std::sync::atomic::AtomicU64| it.load(Ordering::Relaxed) as i64;
        let sums = self.post.mpi.sum(
            self.world,
            [
                load(&self.tally.reads),
                load(&self.tally.writes),
                load(&self.tally.bytes_read),
                load(&self.tally.bytes_written),
                counts.local as i64,
                counts.remote as i64,
                counts.missed as i64,
                counts.evicted as i64,
                load(&self.tally.nanos) / 1_000_000,
            ],
        );
        let Ok([reads, writes, read, written, local, remote, missed, evicted, millis]) = sums
        else {
            return;
        };
        if self.rank == 0 {
            crate::say(&format!(
                "MPI-IO: {reads} reads of {read} bytes, {writes} writes of {written} bytes, \
                 {millis} ms in them; pages: {local} found here, {remote} at others, {missed} \
                 nowhere, {evicted} left for lack of room"
            ));
        }
    }
}

/// Whether the user wants to know what the library does.
fn wants_report() -> bool {
    std::env::var("FOREBAY_MPIIO_STATS").ok().and_then(|text| yes(&text)) == Some(true)
}

fn text(at: *const std::ffi::c_char) -> Option<String> {
    // SAFETY: the shim gives nothing or a text that ends with zero.
    (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned())
}

fn settings(opening: &Opening) -> Settings {
    let hint = |name: &str| match name {
        "forebay_cache" => text(opening.cache),
        "forebay_page_size" => text(opening.page_size),
        "forebay_pool_size" => text(opening.pool_size),
        _ => None,
    };
    Settings::of(hint, |name| std::env::var(name).ok())
}

/// The file for the cache's own use: it reads pages that are written in part. `None` if it can't.
fn descriptor(opening: &Opening) -> Option<OwnedFd> {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: the shim gives a text that ends with zero.
    let path = unsafe { CStr::from_ptr(opening.path) }.to_bytes();
    // ROMIO's names of file systems that are used by system calls anyway.
    let path = [b"ufs:".as_slice(), b"nfs:"]
        .iter()
        .find_map(|prefix| path.strip_prefix(*prefix))
        .unwrap_or(path);
    let path = std::ffi::OsStr::from_bytes(path);
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(opening.writes != 0).custom_flags(libc::O_NONBLOCK);
    let file = options.open(path).ok()?;
    let regular = file.metadata().is_ok_and(|metadata| metadata.is_file());
    let descriptor = OwnedFd::from(file);
    (regular && descriptor.as_raw_fd() >= 0).then_some(descriptor)
}
