//! The life of a session.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::connection::Connection;
use crate::dispatch::Dispatch;
use crate::error::{Error, Result};
use crate::flags::Features;
use crate::gate::{Gate, install_signal};
use crate::handler::Handler;
use crate::mount::{Mount, MountPoint};
use crate::negotiate::{Negotiated, handshake};
use crate::options::{Options, Transport};
use crate::reader::Reader;
use crate::ring::{self, HandedOver, Queue, Ring, RingParts, Rings, Worker};

/// A negotiated connection with its handler, not yet served. Dropping it unmounts lazily, unless it was
/// another process's.
pub struct Session<H: Handler> {
    handler: Arc<H>,
    options: Options,
    rings: Option<Rings>,
    /// Where it is mounted, if it was another process's: who has not served it must not unmount it.
    adopted: Option<MountPoint>,
    mounted: Mounted,
}

/// The connection with the duty to unmount: a mount that nobody serves would be dead, or make its
/// users wait for ever.
#[derive(Debug)]
struct Mounted {
    connection: Connection,
    point: Mutex<Option<MountPoint>>,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(point) = self.point.get_mut() {
            point.unmount_or_log(self.connection.as_fd());
        }
    }
}

/// A live connection, as one process passes it to another.
#[derive(Debug)]
pub struct Parts {
    /// The open `/dev/fuse`; the mount lives as long as any copy of it is open.
    pub device: OwnedFd,
    /// What was agreed at INIT.
    pub negotiated: Negotiated,
    /// Where it is mounted, if the session knows.
    pub mountpoint: Option<PathBuf>,
    /// What holds the requests, where they come by io_uring. A successor needs it.
    pub rings: Option<RingParts>,
}

impl<H: Handler> Session<H> {
    /// Negotiates with the kernel over a fresh mount.
    ///
    /// # Errors
    /// The mount is undone if the kernel is too old or does not answer.
    pub fn new(mount: Mount, options: &Options, handler: Arc<H>) -> Result<Self> {
        Self::greeted(mount, options, handler, Rings::prepare)
    }

    /// With rings that `prepare` makes, if they are wanted.
    fn greeted(
        mount: Mount,
        options: &Options,
        handler: Arc<H>,
        prepare: impl FnOnce(&Options) -> io::Result<Rings>,
    ) -> Result<Self> {
        options.validate()?;
        let (device, mut point) = mount.split()?;
        match greet(device.as_fd(), options, prepare) {
            Ok((negotiated, rings)) => {
                let session = Self::assemble(device, negotiated, Some(point), options, handler);
                Ok(Self { rings, ..session })
            }
            Err(error) => {
                point.unmount_or_log(device.as_fd());
                Err(error)
            }
        }
    }

    /// Adopts a live connection: no INIT takes place. With a mount point the running session can
    /// unmount, and does when dropped. `options` concern the readers only; what was agreed at
    /// INIT holds on, and so does the transport.
    ///
    /// Parts that a process has left by its death, not by [`Running::release`], will do too. What it
    /// was serving comes again, marked [`Request::is_resent`](crate::Request::is_resent): of itself
    /// where requests come by io_uring, else after
    /// [`Connection::notify_resend`](crate::Connection::notify_resend).
    ///
    /// # Errors
    /// Requests come by io_uring, and its rings cannot be made.
    ///
    /// The mount stays whatever fails, up to the end of [`Session::spawn`]: its process, or another one,
    /// may go on with it.
    ///
    /// The device may be anything that delivers one request per read and takes one reply per
    /// write, so that a handler can be tested over a socket pair (`SOCK_SEQPACKET`).
    pub fn from_parts(parts: Parts, options: &Options, handler: Arc<H>) -> Result<Self> {
        options.validate()?;
        let on_rings = parts.negotiated.features.contains(Features::OVER_IO_URING);
        let rings = match (on_rings, parts.rings) {
            (false, _) => None,
            (true, Some(rings)) => Some(Rings::adopt(rings).map_err(Error::Uring)?),
            (true, None) => {
                let missing = "what holds its requests was not handed over";
                return Err(Error::Uring(io::Error::other(missing)));
            }
        };
        let adopted = parts.mountpoint.map(MountPoint::new);
        let mut session = Self::assemble(parts.device, parts.negotiated, None, options, handler);
        (session.rings, session.adopted) = (rings, adopted);
        Ok(session)
    }

    fn assemble(
        device: OwnedFd,
        negotiated: Negotiated,
        point: Option<MountPoint>,
        options: &Options,
        handler: Arc<H>,
    ) -> Self {
        let retain = options.large_requests + options.reader_count();
        let connection = Connection::new(device, negotiated, retain);
        let mounted = Mounted { connection, point: Mutex::new(point) };
        Self { handler, options: options.clone(), rings: None, adopted: None, mounted }
    }

    /// The connection.
    pub fn connection(&self) -> &Connection {
        &self.mounted.connection
    }

    /// What holds the requests, where they come by io_uring: to be kept by whoever shall be able to
    /// start another process when this one dies.
    pub fn rings(&self) -> Option<RingParts> {
        self.rings.as_ref().map(Rings::parts)
    }

    /// Starts the threads. They take requests when all of them are there.
    ///
    /// # Errors
    /// A thread can't be started, or the kernel refuses rings that there must be. What is mounted is
    /// unmounted then, unless it was another process's.
    pub fn spawn(self) -> Result<Running> {
        let signal = libc::SIGRTMIN() + i32::from(self.options.park_signal);
        install_signal(signal).map_err(Error::io("installing the parking signal"))?;
        let readers = self.options.reader_count();
        let parts = self.rings();
        let (queues, inherited) =
            self.rings.map_or((Vec::new(), HandedOver::Nothing), Rings::into_queues);
        let gate = Gate::new(readers + queues.len(), signal);
        let connection = self.mounted.connection.clone();
        let dispatch = Dispatch {
            handler: Arc::clone(&self.handler),
            connection: connection.clone(),
            destroyed: Arc::new(AtomicBool::new(false)),
        };
        self.handler.init(&connection);
        let running = Running {
            mounted: self.mounted,
            gate: Arc::clone(&gate),
            threads: Mutex::new(Vec::with_capacity(readers + queues.len())),
            parking: Mutex::new(()),
            on_rings: AtomicBool::new(false),
            queues: Mutex::new(None),
        };
        let entries: usize = queues.iter().map(|(queue, _)| queue.depth()).sum();
        let buffer_limit = self.options.large_requests + readers + entries;
        // On failure `running` is dropped, which unmounts, if it is to, and ends the threads before.
        let on_rings = running.start_workers(&dispatch, readers, inherited, queues, parts)?;
        let must = self.options.transport == Transport::Uring || inherited != HandedOver::Nothing;
        if must && entries > 0 && !on_rings {
            let source = io::Error::other("the kernel refused the rings");
            return Err(Error::Uring(source));
        }
        if entries > 0 && !on_rings {
            tracing::warn!("the kernel refused the rings: requests are read from the device");
            connection.fall_back();
        }
        // Forgets and interrupts come by the device in any case.
        let readers = if on_rings { 1 } else { readers };
        for _ in 0..readers {
            gate.enter();
        }
        gate.hold();
        for index in 0..readers {
            let reader =
                Reader { dispatch: dispatch.clone(), gate: Arc::clone(&gate), index, buffer_limit };
            let started = running.start(format!("fuse-{index}"), move || reader.run());
            started.inspect_err(|_| gate.dismiss())?;
        }
        if let Some(point) = self.adopted {
            *running.mounted.point.lock() = Some(point);
        }
        gate.open();
        if inherited == HandedOver::UnderWay {
            running.wake_queues();
        }
        Ok(running)
    }

    /// Serves until the file system is unmounted.
    pub fn run(self) -> Result<End> {
        self.spawn()?.join()
    }
}

impl<H: Handler> fmt::Debug for Session<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("connection", &self.mounted.connection)
            .finish_non_exhaustive()
    }
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The file system was unmounted.
    Unmounted,
    /// The connection was aborted by force.
    Aborted,
    /// The connection was given away ([`Running::release`]).
    Released,
}

/// A session that is being served. Dropping it unmounts lazily; the readers then serve on until
/// the last user of the mount has left.
#[derive(Debug)]
pub struct Running {
    mounted: Mounted,
    gate: Arc<Gate>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    parking: Mutex<()>,
    /// Requests come by io_uring.
    on_rings: AtomicBool,
    /// How they do, until that is given away.
    queues: Mutex<Option<(Vec<Arc<Queue>>, RingParts)>>,
}

impl Running {
    fn start(&self, name: String, body: impl FnOnce() + Send + 'static) -> Result<()> {
        #[cfg(test)]
        tests::lack_threads().map_err(Error::io("starting a thread"))?;
        let thread = std::thread::Builder::new().name(name).spawn(body);
        self.threads.lock().push(thread.map_err(Error::io("starting a thread"))?);
        Ok(())
    }

    /// Starts the threads of the rings; whether the kernel took all of them. If it did not, requests
    /// come by the device, all of them.
    fn start_workers<H: Handler>(
        &self,
        dispatch: &Dispatch<H>,
        first: usize,
        inherited: HandedOver,
        queues: Vec<(Arc<Queue>, Ring)>,
        parts: Option<RingParts>,
    ) -> Result<bool> {
        let count = queues.len();
        let known: Vec<_> = queues.iter().map(|(queue, _)| Arc::clone(queue)).collect();
        let (sender, outcomes) = std::sync::mpsc::channel();
        for (cpu, (queue, ring)) in queues.into_iter().enumerate() {
            let (gate, sender) = (Arc::clone(&self.gate), sender.clone());
            let worker = Worker::new(dispatch.clone(), gate, first + cpu, inherited, queue, ring);
            self.gate.enter();
            if inherited != HandedOver::Nothing {
                dispatch.connection.falls_behind();
            }
            let body = move || worker.run(|outcome| _ = sender.send(outcome));
            self.start(format!("fuse-ring-{cpu}"), body)?;
        }
        drop(sender);
        let mut registered = 0;
        for outcome in outcomes.into_iter().take(count) {
            match outcome {
                Ok(()) => registered += 1,
                Err(error) => tracing::warn!(%error, "the kernel refused a ring"),
            }
        }
        let on_rings = count > 0 && registered == count;
        self.on_rings.store(on_rings, Ordering::SeqCst);
        if on_rings {
            *self.queues.lock() = parts.map(|parts| (known, parts));
        }
        Ok(on_rings)
    }

    /// Requests may have come while nobody served the rings.
    fn wake_queues(&self) {
        let count = self.queues.lock().as_ref().map_or(0, |(queues, _)| queues.len());
        let woken = match self.mountpoint() {
            Some(point) => ring::wake(count, &point),
            None => Err(io::Error::other("the mount point is not known")),
        };
        if let Err(error) = woken {
            tracing::error!(
                %error,
                "can't wake the readers: requests that came meanwhile may wait until the next one comes"
            );
        }
    }

    /// Whether requests come by io_uring.
    pub fn is_on_rings(&self) -> bool {
        self.on_rings.load(Ordering::SeqCst)
    }

    /// The connection.
    pub fn connection(&self) -> &Connection {
        &self.mounted.connection
    }

    /// What holds the requests, where they come by io_uring and were not given away.
    pub fn rings(&self) -> Option<RingParts> {
        self.queues.lock().as_ref().map(|(_, parts)| parts.clone())
    }

    /// Where it is mounted, if known.
    pub fn mountpoint(&self) -> Option<PathBuf> {
        self.mounted.point.lock().as_ref().map(|point| Path::to_owned(&point.path))
    }

    /// Brings all readers to rest without losing a request, within `limit`. Requests that were
    /// handed to other threads can still be answered: see [`Running::drain`].
    ///
    /// # Errors
    /// [`Error::ParkTimeout`]: a handler call blocks; the readers go on as before.
    pub fn park(&self, limit: Duration) -> Result<()> {
        let _one_at_a_time = self.parking.lock();
        self.gate.close(limit).map_err(|busy| Error::ParkTimeout { busy, limit })
    }

    /// Lets parked readers go on.
    pub fn resume(&self) {
        let _one_at_a_time = self.parking.lock();
        for queue in self.queues.lock().iter().flat_map(|(queues, _)| queues) {
            queue.set_sealing(false);
        }
        self.gate.open();
    }

    /// What [`Running::release`] cannot do without, and can fail: to be called while parked, by who
    /// wants to know that before there is no way back. Nothing to do without io_uring; with it every
    /// entry is filled with a request that nobody begins, for which the process must be able to reach
    /// the mount point from every CPU. [`Running::resume`] undoes it.
    ///
    /// # Errors
    /// Not done within `limit`, or requests in flight are not answered within it.
    pub fn seal(&self, limit: Duration) -> Result<()> {
        if !self.is_on_rings() || self.is_sealed() {
            return Ok(());
        }
        let until = Instant::now() + limit;
        // An entry belongs to its request until that is answered.
        let unanswered = self.drain(limit);
        if unanswered > 0 {
            return Err(Error::ParkTimeout { busy: unanswered, limit });
        }
        let queues: Vec<_> = match &*self.queues.lock() {
            Some((queues, _)) => queues.clone(),
            None => Vec::new(),
        };
        let point = self.mountpoint().ok_or_else(|| {
            Error::UringHandOver(io::Error::other("the mount point is not known"))
        })?;
        let left = until.saturating_duration_since(Instant::now());
        ring::seal(&queues, &point, left).map_err(Error::UringHandOver)
    }

    /// Whether [`Running::seal`] has succeeded, and nothing has changed since.
    fn is_sealed(&self) -> bool {
        self.queues.lock().as_ref().is_some_and(|(queues, _)| ring::are_sealed(queues))
    }

    /// Waits until every request that was read is answered, at most for `limit`; returns how
    /// many are not. Meaningful while parked.
    pub fn drain(&self, limit: Duration) -> usize {
        let deadline = Instant::now() + limit;
        loop {
            let left = self.mounted.connection.in_flight();
            if left == 0 || Instant::now() >= deadline {
                return left;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Unmounts; `lazy` even while it is in use. Must not be called by a reader.
    pub fn unmount(&self, lazy: bool) -> Result<()> {
        match &mut *self.mounted.point.lock() {
            Some(point) => point.unmount(self.mounted.connection.as_fd(), lazy),
            None => Ok(()),
        }
    }

    /// Gives the connection away while it lives: parks the readers, ends them and returns what
    /// [`Session::from_parts`] needs. Nothing is unmounted; requests of the kernel wait for the
    /// successor. Answers to requests still in flight can be sent on; with io_uring there are none.
    ///
    /// # Errors
    /// As [`Running::park`] and [`Running::seal`]; the session then goes on.
    pub fn release(&self, limit: Duration) -> Result<Parts> {
        let device = self.mounted.connection.as_fd().try_clone_to_owned();
        let device = device.map_err(Error::io("duplicating the device"))?;
        self.park(limit)?;
        self.seal(limit).inspect_err(|_| self.resume())?;
        let rings = self.queues.lock().take().map(|(_, parts)| parts);
        if let Some(rings) = &rings {
            rings.0.set_sealed(true);
        }
        self.gate.dismiss();
        self.join_threads();
        let mountpoint = self.mounted.point.lock().take().map(|mut point| {
            point.forget();
            std::mem::take(&mut point.path)
        });
        Ok(Parts { device, negotiated: *self.mounted.connection.negotiated(), mountpoint, rings })
    }

    fn join_threads(&self) {
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            // A reader guards against panics of the handler and has none of its own.
            let _ = thread.join();
        }
    }

    /// Waits until the file system is unmounted (by whomever) or released.
    ///
    /// # Errors
    /// Reading requests failed in a way that is not an end.
    pub fn join(&self) -> Result<End> {
        self.join_threads();
        self.gate.take_end().map_err(Error::io("reading requests"))
    }
}

/// Answers INIT, with rings if they are wanted and possible.
fn greet(
    device: BorrowedFd<'_>,
    options: &Options,
    prepare: impl FnOnce(&Options) -> io::Result<Rings>,
) -> Result<(Negotiated, Option<Rings>)> {
    let mut options = options.clone();
    options.features = options.features.without(Features::OVER_IO_URING);
    let mut rings = match options.transport {
        Transport::Classic => None,
        Transport::Uring => Some(prepare(&options).map_err(Error::Uring)?),
        Transport::Auto => prepare(&options)
            .inspect_err(|error| tracing::info!(%error, "requests are read from the device"))
            .ok(),
    };
    if let Some(rings) = &rings {
        options.features = options.features.with(Features::OVER_IO_URING);
        options.max_write = options.max_write.min(rings.max_write());
    }
    let negotiated = handshake(device, &options)?;
    if !negotiated.features.contains(Features::OVER_IO_URING) {
        if options.transport == Transport::Uring {
            return Err(Error::Uring(io::Error::other("the kernel does not offer it")));
        }
        rings = None;
    }
    Ok((negotiated, rings))
}

#[cfg(test)]
mod tests;
