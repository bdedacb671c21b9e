//! The mount of a history and its twin.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Settings;
use super::steps::{End, NAMES};
use crate::failure::{Failure, Outcome};
use crate::model::apply::World;
use crate::model::tree::{self, Epochs};
use crate::os::{self, XattrFlags};
use crate::process::eventually;
use crate::random::{Random, pattern};
use crate::subject::{ForebayMount, MountOptions, NativeDir, Subject, binary};

/// Longer than any history takes.
pub const LIMIT: Duration = Duration::from_secs(600);
/// The longest that workers may take until they have nothing left to do.
const REST: Duration = Duration::from_secs(60);
/// The directory that is compared: the private area is not in it.
const TREE: &str = "tree";
/// Directories that are there at first.
const DIRS: [&str; 6] = ["d0", "d1", "d2", "d3", "d0/d1", "d1/d2"];

/// A mount and a native directory with the same files.
pub struct Site {
    mount: ForebayMount,
    twin: NativeDir,
    user: Option<u32>,
    known: BTreeSet<String>,
}

impl Site {
    /// Fills a backing store and a twin alike, and mounts.
    ///
    /// # Errors
    /// [`Failure::Skipped`] for a user who may not mount.
    pub fn new(settings: &Settings, seed: u64) -> Outcome<Self> {
        if as_user(settings.user, || os::access("/dev/fuse", 6)).is_err() {
            return Err(Failure::Skipped("plain users may not use /dev/fuse".into()));
        }
        let binary = binary()?;
        if as_user(settings.user, || os::access(&binary, 1)).is_err() {
            let why = format!("another user can not run {}", binary.display());
            return Err(Failure::Skipped(why));
        }
        let options = MountOptions {
            tier_sizes: vec![settings.tier_bytes],
            writeback: Some(settings.writeback.clone()),
            user: settings.user,
            ..MountOptions::default()
        };
        let mut mount = ForebayMount::prepare(options)?;
        let twin = NativeDir::in_memory()?;
        let roots = [mount.backing(), twin.dir()].map(|dir| dir.join(TREE));
        for root in &roots {
            os::mkdir(root, 0o755)?;
            os::chown(root, settings.user, settings.user)?;
        }
        let known = as_user(settings.user, || fill(&roots, seed))?;
        mount.mount()?;
        Ok(Self { mount, twin, user: settings.user, known })
    }

    /// The directory on the mount and its twin.
    pub fn roots(&self) -> [PathBuf; 2] {
        [self.mount.mountpoint(), self.twin.dir()].map(|dir| dir.join(TREE))
    }

    /// The paths that programs know of at first. There are others.
    pub fn known(&self) -> BTreeSet<String> {
        self.known.clone()
    }

    /// Runs what programs do, as the user whose mount it is.
    pub fn as_user<T: Send>(&self, work: impl FnOnce(&Self) -> T + Send) -> T {
        as_user(self.user, || work(self))
    }

    /// `forebay evict`. What is not there, or in use, stays.
    pub fn evict(&self, path: &str) -> Outcome {
        Ok(self.mount.evict(&self.mount.mountpoint().join(TREE).join(path))?)
    }

    /// Ends a phase and compares. After it the mount is there again.
    pub fn finish_phase(&mut self, end: End, world: &mut World<'_>, epochs: &Epochs) -> Outcome {
        match end {
            End::Umount => {
                world.close_all();
                self.mount.unmount()?;
                self.same_store(epochs)?;
                self.mount.fsck_tiers()?;
                self.mount.mount()?;
            }
            End::Kill => {
                self.mount.kill_daemon();
                world.close_all();
                self.mount.fsck_tiers()?;
                self.mount.mount()?;
            }
            End::Sync => {
                self.mount.sync(self.mount.mountpoint())?;
                self.same_store(epochs)?;
            }
            End::Worker => {
                world.close_all();
                ensure!(eventually(REST, || self.is_at_rest()), "not all is written back");
                // The times of directories come last.
                let mut same = Ok(());
                eventually(Duration::from_secs(10), || {
                    same = self.same_store(epochs);
                    same.is_ok()
                });
                same?;
            }
        }
        let roots = self.roots();
        self.as_user(|_| tree::compare(&roots[0], &roots[1], epochs))
            .map_err(|why| Failure::Failed(format!("the mount: {why}")))
    }

    fn is_at_rest(&self) -> bool {
        let status = self.mount.status().unwrap_or_default();
        status["backlog"]["entries"] == 0 && status["dirty"]["files"] == 0
    }

    fn same_store(&self, epochs: &Epochs) -> Outcome {
        tree::compare(&self.mount.backing().join(TREE), &self.twin.dir().join(TREE), epochs)
            .map_err(|why| Failure::Failed(format!("the backing store: {why}")))
    }

    /// A last clean unmount, after which nothing is left in the private area.
    pub fn end(mut self) -> Outcome {
        self.mount.unmount()?;
        for name in os::names(self.mount.backing().join(".forebay"))? {
            ensure!(name == "store", ".forebay/{} is left", name.display());
        }
        Ok(())
    }

    /// The end of the daemon's log.
    pub fn log_tail(&self) -> String {
        self.mount.log_tail()
    }

    /// As [`ForebayMount::keep_state`].
    pub fn keep_state(&self) -> Option<PathBuf> {
        self.mount.keep_state()
    }
}

/// Runs `work` on a thread that is this user's, as all that it starts.
fn as_user<T: Send>(user: Option<u32>, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if let Some(user) = user {
                become_user(user);
            }
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Makes the calling thread this user's for good. The C library would do that to all threads.
fn become_user(user: u32) {
    let (user, none) = (libc::c_long::from(user), std::ptr::null::<libc::gid_t>());
    // SAFETY: these calls change ids of the calling thread only; an empty list of groups is not read.
    let failed = unsafe {
        libc::syscall(libc::SYS_setgroups, 0, none)
            | libc::syscall(libc::SYS_setresgid, user, user, user)
            | libc::syscall(libc::SYS_setresuid, user, user, user)
    };
    assert_eq!(failed, 0, "root can become any user");
}

/// Makes the same files in both directories. Gives the paths that programs know of: further names of some
/// files are not among them.
fn fill(roots: &[PathBuf; 2], seed: u64) -> Outcome<BTreeSet<String>> {
    let mut known = BTreeSet::new();
    for root in roots {
        let mut random = Random::new(!seed);
        for dir in DIRS {
            os::mkdir(root.join(dir), 0o755)?;
            known.insert(dir.to_owned());
        }
        for dir in DIRS {
            for name in NAMES.iter().filter(|name| name.starts_with('f')) {
                let path = format!("{dir}/{name}");
                if random.below(3) > 0 {
                    fill_file(root, &path, &mut random)?;
                    known.insert(path);
                }
            }
        }
        for dir in DIRS.iter().rev() {
            let mode = *random.pick(&[0o755, 0o755, 0o755, 0o700, 0o500, 0o300]);
            set_time(&root.join(dir), &mut random)?;
            os::chmod(root.join(dir), mode)?;
        }
        set_time(root, &mut random)?;
    }
    Ok(known)
}

/// Makes one file, if it is not a further name of an earlier one.
fn fill_file(root: &Path, path: &str, random: &mut Random) -> Outcome {
    let full = root.join(path);
    if os::exists(&full)? {
        return Ok(());
    }
    os::write_file(&full, &pattern(random.bits(), random.below(60_000) as usize))?;
    if random.one_in(4) {
        let value = pattern(random.bits(), 20);
        os::setxattr(&full, "user.one", &value, XattrFlags::empty())?;
    }
    // Further names, which nobody has looked at: of some, programs know by chance.
    for _ in 0..random.below(3) {
        let dir = random.pick(&DIRS);
        let further = match random.one_in(2) {
            true => format!("{dir}/unseen{}", random.below(100)),
            false => format!("{dir}/{}", random.pick(&NAMES[4..])),
        };
        if !os::exists(root.join(&further))? {
            rustix::fs::link(&full, root.join(&further))?;
        }
    }
    set_time(&full, random)?;
    let mode = *random.pick(&[0o644, 0o644, 0o644, 0o600, 0o400, 0o200, 0]);
    Ok(os::chmod(&full, mode)?)
}

/// A time from before the run, which is compared exactly.
fn set_time(path: &Path, random: &mut Random) -> Outcome {
    let time = (1_000_000_000 + random.below(1000) as i64, 0);
    Ok(os::utimens(path, &os::times(time, time))?)
}
