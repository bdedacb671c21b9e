//! Mounting a node.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_node::{Node, Passthrough};
use fusewire::{
    Connection, End, Error, Features, Mount, Options, Result, Running, Session, Transport,
};

use rustix::fs::StatVfsMountFlags;

use crate::deferred::Stuck;
use crate::front::Front;

/// How a node is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// The source that `mount(8)` and `df(1)` show; by default the backing store's path.
    pub fs_name: Option<String>,
    /// Others than the mounting user may use the mount.
    pub allow_other: bool,
    /// Mount read-only.
    pub read_only: bool,
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
            suid: false,
            dev: false,
            noexec: false,
            threads: 0,
            transport: Transport::Auto,
        }
    }
}

/// Mounts `node` on `mountpoint` and starts to serve it.
///
/// # Errors
/// When the mount point can't be used, `/dev/fuse` is out of reach, or the kernel is too old.
pub fn mount(
    node: Arc<Node>,
    mountpoint: impl AsRef<Path>,
    options: &MountOptions,
) -> Result<Mounted> {
    let options = transport_options(&node, options);
    let front =
        Front::new(node).map_err(|source| Error::Io { what: "starting a thread", source })?;
    let front = Arc::new(front);
    let mount = Mount::new(mountpoint, &options)?;
    let running = Session::new(mount, &options, Arc::clone(&front))?.spawn()?;
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
        read_only: options.read_only,
        nosuid: !options.suid,
        nodev: !options.dev,
        noexec: options.noexec,
        threads: options.threads,
        transport: options.transport,
        features: features(config.passthrough),
        max_stack_depth: 1,
        ..Options::default()
    }
}

/// What is asked of the kernel. Listings always come with attributes: the kernel's own guess asks for
/// them in one request of several only, and each entry of the others costs a lookup in `ls -l`. No write-back cache: it excludes passthrough, and acknowledges
/// writes that the daemon has not seen. No locks: the kernel keeps those of one node by itself.
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

    /// Operations that have been waiting for a slow device for at least `least`, longest first.
    pub fn stuck(&self, least: Duration) -> Vec<Stuck> {
        self.front.stuck(least)
    }
}
