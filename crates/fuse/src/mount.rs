//! Mounting a node.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_node::{Cluster, HandOverState, Node, Passthrough};
use fusewire::{
    Connection, End, Error, Features, Mount, Options, Parts, Result, RingParts, Running, Session,
    Transport,
};

use rustix::fs::StatVfsMountFlags;

use crate::deferred::Stuck;
use crate::front::Front;
use crate::hand_over::State;
use crate::listings::Held;
use crate::recovery_journal::{Before, RecoveryJournal};

/// How a node is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// The source that `mount(8)` and `df(1)` show; by default the backing store's path.
    pub fs_name: Option<String>,
    /// Others than the mounting user may use the mount.
    pub allow_other: bool,
    /// Mount read-only.
    pub read_only: bool,
    /// Say that reads leave access times as they are.
    pub noatime: bool,
    /// Honour set-id bits.
    pub suid: bool,
    /// Honour device nodes.
    pub dev: bool,
    /// Forbid execution.
    pub noexec: bool,
    /// Threads that read requests; 0: one for each CPU.
    pub threads: usize,
    /// How requests come from the kernel.
    pub transport: Transport,
}

impl MountOptions {
    /// What is right if nobody said otherwise: set-id bits, device nodes and execution as on the
    /// file system of the backing store, the first two only for root.
    #[must_use]
    pub fn like(backing: &Path) -> Self {
        let usual = MountOptions::default();
        // A store that can't be asked is trusted with nothing.
        let Ok(stat) = rustix::fs::statvfs(backing) else {
            return MountOptions { noexec: true, ..usual };
        };
        let root = rustix::process::geteuid().is_root();
        MountOptions {
            suid: root && !stat.f_flag.contains(StatVfsMountFlags::NOSUID),
            dev: root && !stat.f_flag.contains(StatVfsMountFlags::NODEV),
            noexec: stat.f_flag.contains(StatVfsMountFlags::NOEXEC),
            ..usual
        }
    }
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            fs_name: None,
            // What root mounts is meant for everybody; plain users have to be allowed by fuse.conf.
            allow_other: rustix::process::geteuid().is_root(),
            read_only: false,
            noatime: false,
            suid: false,
            dev: false,
            noexec: false,
            threads: 0,
            transport: Transport::Auto,
        }
    }
}

/// Mounts `node` on `mountpoint` and starts to serve it. With a keeper requests come by io_uring only
/// if `options` insist on it: what the kernel is giving to a ring when its daemon dies fails, while
/// what is read from the device can be had again.
///
/// # Errors
/// When the mount point can't be used, `/dev/fuse` is out of reach, or the kernel is too old.
pub fn mount(
    node: Arc<Node>,
    mountpoint: impl AsRef<Path>,
    options: &MountOptions,
    keeper: Option<Keeper<'_>>,
) -> Result<Mounted> {
    let mut options = transport_options(&node, options);
    if keeper.is_some() && options.transport == Transport::Auto {
        options.transport = Transport::Classic;
    }
    let handed_over = HandOverState {
        generation: node.handle_generation().into(),
        membership: node.cluster().map(Cluster::membership),
        ..HandOverState::default()
    };
    let front =
        Front::new(node).map_err(|source| Error::Io { what: "starting a thread", source })?;
    let front = Arc::new(front);
    let mount = Mount::new(mountpoint, &options)?;
    let session = Session::new(mount, &options, Arc::clone(&front))?;
    front.let_listings_be_kept(&[]);
    if let Some(keeper) = keeper {
        let negotiated = *session.connection().negotiated();
        let state = State { negotiated, node: handed_over, listings: None };
        let parts = session.rings();
        let rings = parts.as_ref().map(RingParts::as_fd);
        let device = session.connection().as_fd();
        keep(&front, device, rings, &state, Before::default(), keeper)?;
    }
    Ok(Mounted { running: session.spawn()?, front })
}

/// Takes what must outlive the daemon: the connection, the journal, and what holds the requests if they
/// come by io_uring. It answers when all are safe.
pub type Keeper<'a> =
    &'a dyn Fn(BorrowedFd<'_>, BorrowedFd<'_>, Option<BorrowedFd<'_>>) -> io::Result<()>;

fn keep(
    front: &Front,
    device: BorrowedFd<'_>,
    rings: Option<BorrowedFd<'_>>,
    state: &State,
    before: Before,
    keeper: Keeper<'_>,
) -> Result<()> {
    if !state.negotiated.features.contains(Features::HAS_RESEND) {
        tracing::warn!(
            "no restart after a crash: the kernel can't send requests again (Linux 6.9)"
        );
        return Ok(());
    }
    let failed = |source| Error::Io { what: "leaving the mount with the supervisor", source };
    let journal = RecoveryJournal::new(state, &before).map_err(failed)?;
    keeper(device, journal.file(), rings).map_err(failed)?;
    journal.is_kept();
    front.keep(Arc::new(journal), before);
    Ok(())
}

/// What another daemon has left of a mount.
pub struct Takeover<'a> {
    /// The connection to the kernel.
    pub device: OwnedFd,
    /// What holds the requests, if they come by io_uring.
    pub rings: Option<OwnedFd>,
    /// What was agreed, and what its node had in memory.
    pub state: &'a State,
    /// What it had begun, if it died.
    pub before: Before,
}

/// Goes on with a live mount that another daemon has given away; `node` has inherited what that
/// one's node left. If that one did not come to rest, the requests that it took and did not answer
/// come again.
///
/// # Errors
/// When threads can't be started. The mount stays and its users wait: the daemon before goes on with it, or
/// whoever keeps it starts another one.
pub fn adopt(
    node: Arc<Node>,
    mountpoint: &Path,
    Takeover { device, rings, state, before }: Takeover<'_>,
    options: &MountOptions,
    keeper: Option<Keeper<'_>>,
) -> Result<Mounted> {
    let options = transport_options(&node, options);
    let (generation, membership) =
        (node.handle_generation(), node.cluster().map(Cluster::membership));
    let front = Front::new(node.clone())
        .map_err(|source| Error::Io { what: "starting a thread", source })?;
    let front = Arc::new(front);
    let negotiated = state.negotiated;
    if let Some(held) = &state.listings {
        front.let_listings_be_kept(held);
    }
    let rings = rings.map(RingParts::from_fd).transpose().map_err(Error::Uring)?;
    if let Some(keeper) = keeper {
        let node = HandOverState {
            generation: generation.into(),
            handles: state.node.handles.clone(),
            removed_inodes: state.node.removed_inodes.clone(),
            locks: state.node.locks.clone(),
            membership,
            ..HandOverState::default()
        };
        let ring = rings.as_ref().map(RingParts::as_fd);
        keep(
            &front,
            device.as_fd(),
            ring,
            &State { negotiated, node, listings: None },
            before,
            keeper,
        )?;
    }
    node.before_what_is_kept_serves()
        .map_err(|error| Error::Io { what: "serving", source: io::Error::other(error) })?;
    let on_rings = rings.is_some();
    let parts = Parts { device, negotiated, mountpoint: Some(mountpoint.into()), rings };
    let session = Session::from_parts(parts, &options, Arc::clone(&front))?;
    // Before anything is read: what we have taken must not come twice. What rings hold is found there.
    let unanswered = !state.node.at_rest || state.node.waiters > 0;
    if unanswered
        && !on_rings
        && let Err(error) = session.connection().notify_resend()
    {
        tracing::error!(%error, "requests under way when the last daemon died stay unanswered");
    }
    let running = session.spawn()?;
    if on_rings && let Err(error) = front.look_after(&state.node.handles, running.connection()) {
        tracing::error!(%error, "files whose close was lost stay open");
    }
    Ok(Mounted { running, front })
}

fn transport_options(node: &Node, options: &MountOptions) -> Options {
    let config = node.config();
    let source = match &options.fs_name {
        Some(name) => name.clone(),
        None => config.backing.to_string_lossy().into_owned(),
    };
    Options {
        // What mount options can't carry.
        fs_name: source.replace([',', '\0', '\n', '\\'], "_"),
        subtype: "forebay".into(),
        allow_other: options.allow_other,
        default_permissions: true,
        read_only: options.read_only || config.dataset,
        noatime: options.noatime,
        nosuid: !options.suid,
        nodev: !options.dev,
        noexec: options.noexec,
        threads: options.threads,
        transport: options.transport,
        features: match node.is_clustered() {
            true => {
                features(config.passthrough).with(Features::FLOCK_LOCKS).with(Features::POSIX_LOCKS)
            }
            false => features(config.passthrough),
        },
        max_stack_depth: 1,
        ..Options::default()
    }
}

/// What is asked of the kernel. Listings always come with attributes: the kernel's own guess asks for
/// them in one request of several only, and each entry of the others costs a lookup in `ls -l`. No write-back cache: it excludes passthrough, and acknowledges
/// writes that the daemon has not seen. No locks but in a cluster: the kernel keeps those of one node
/// by itself.
fn features(passthrough: Passthrough) -> Features {
    let always = [
        Features::ASYNC_READ,
        Features::ASYNC_DIO,
        Features::ATOMIC_O_TRUNC,
        Features::BIG_WRITES,
        Features::DONT_MASK,
        Features::DO_READDIRPLUS,
        Features::PARALLEL_DIROPS,
        Features::HANDLE_KILLPRIV_V2,
        Features::POSIX_ACL,
        Features::AUTO_INVAL_DATA,
        Features::DIRECT_IO_ALLOW_MMAP,
        Features::MAX_PAGES,
        Features::CACHE_SYMLINKS,
        Features::SETXATTR_EXT,
        Features::INIT_EXT,
        Features::HAS_EXPIRE_ONLY,
        // File handles mean their files also when the kernel has forgotten those.
        Features::EXPORT_SUPPORT,
    ];
    let all = always.into_iter().fold(Features::NONE, Features::with);
    match passthrough {
        Passthrough::Off => all,
        Passthrough::Read | Passthrough::ReadWrite => all.with(Features::PASSTHROUGH),
    }
}

/// A mounted node. Dropping it unmounts lazily.
pub struct Mounted {
    running: Running,
    front: Arc<Front>,
}

impl Mounted {
    /// Waits until the file system is unmounted, by whomever.
    ///
    /// # Errors
    /// When requests could not be read any more.
    pub fn join(&self) -> Result<End> {
        self.running.join()
    }

    /// Unmounts; `lazy` even while it is in use. Requests under way are still answered.
    ///
    /// # Errors
    /// `EBUSY` while it is in use, unless `lazy`.
    pub fn unmount(&self, lazy: bool) -> Result<()> {
        self.running.unmount(lazy)
    }

    /// Where it is mounted.
    pub fn mountpoint(&self) -> Option<PathBuf> {
        self.running.mountpoint()
    }

    /// The connection to the kernel.
    pub fn connection(&self) -> &Connection {
        self.running.connection()
    }

    /// The session, to park it or to hand it on to a successor.
    pub fn running(&self) -> &Running {
        &self.running
    }

    /// Brings the front to rest: no request is under way afterwards, and new ones wait. Says since
    /// when. Users wait for a second at most in one go: requests that take longer are let out again,
    /// users get as much time as they have waited, and another attempt is made until `limit` has
    /// passed.
    ///
    /// # Errors
    /// How many requests were still waiting for the backing store; the front serves on.
    pub fn park(&self, limit: Duration) -> std::result::Result<Instant, usize> {
        const ATTEMPT: Duration = Duration::from_secs(1);
        const PAUSE: Duration = Duration::from_millis(200);
        self.front.set_at_rest(true);
        let until = Instant::now() + limit;
        loop {
            let since = Instant::now();
            let left = match self.running.park(ATTEMPT) {
                Ok(()) => self.drain(ATTEMPT.saturating_sub(since.elapsed())),
                Err(_) => self.running.connection().in_flight().max(1),
            };
            if left == 0 {
                self.front.close_unasked();
                return Ok(since);
            }
            self.running.resume();
            let pause = since.elapsed().max(PAUSE);
            if Instant::now() + pause + ATTEMPT >= until {
                self.front.set_at_rest(false);
                return Err(left);
            }
            std::thread::sleep(pause);
        }
    }

    /// Waits until no request is in flight but those that wait for locks, which may take for ever; how
    /// many others are left after `limit`.
    fn drain(&self, limit: Duration) -> usize {
        let until = Instant::now() + limit;
        loop {
            // In this order: one that begins to wait meanwhile is not counted as waiting only.
            let in_flight = self.running.connection().in_flight();
            let left = in_flight.saturating_sub(self.front.waiting_for_locks());
            if left == 0 || Instant::now() >= until {
                return left;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Whether requests that wait for locks can be left to a successor: it has to ask the kernel for
    /// them again. True if there are none.
    pub fn can_leave_waiters(&self) -> bool {
        let resends = self.connection().negotiated().features.contains(Features::HAS_RESEND);
        self.front.waiting_for_locks() == 0 || resends && self.running.rings().is_none()
    }

    /// Serves on after [`Mounted::park`].
    pub fn resume(&self) {
        self.running.resume();
        self.front.set_at_rest(false);
    }

    /// Waits up to `limit` until the kernel has been told of all invalidations.
    pub fn send_notices(&self, limit: Duration) {
        let until = Instant::now() + limit;
        while self.front.unsent_notices() > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// After [`Mounted::park`]: does what [`Mounted::release`] needs and may fail at.
    /// [`Mounted::resume`] undoes it.
    ///
    /// # Errors
    /// Why the connection can't be given away; the front stays parked.
    pub fn seal(&self, limit: Duration) -> Result<()> {
        self.running.seal(limit)
    }

    /// Copies of what must be passed to whoever takes the connection over: its descriptor, and that of
    /// what holds the requests if they come by io_uring.
    ///
    /// # Errors
    /// When the system lacks descriptors.
    pub fn descriptors(&self) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
        let device = self.running.connection().as_fd().try_clone_to_owned()?;
        let rings = self.running.rings().map(|rings| rings.as_fd().try_clone_to_owned());
        Ok((device, rings.transpose()?))
    }

    /// Gives the connection away after [`Mounted::seal`]. Requests wait for whoever takes it over, and
    /// the mount lives as long as its descriptor. Invalidations that were not sent yet still are.
    ///
    /// # Errors
    /// When the system lacks descriptors; the front then serves on.
    pub fn release(&self) -> Result<()> {
        self.running.release(Duration::from_secs(1)).map(drop)
    }

    /// After [`Mounted::park`]: opens of directories that may use what the kernel keeps of them, for
    /// [`State::listings`].
    pub fn held_listings(&self) -> Option<Vec<Held>> {
        self.front.held_listings()
    }

    /// Operations that have been waiting for a device for at least `least`, longest first: those that
    /// the slow pool has, and those that hold up a thread which reads requests.
    pub fn stuck(&self, least: Duration) -> Vec<Stuck> {
        self.front.stuck(least)
    }
}
