//! Small disks that can be cut off, and a daemon above them.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::points::{self, Stand};
use crate::failure::{Failure, Outcome};
use crate::process::eventually;
use crate::random::Random;
use crate::subject::{binary, is_mounted, run_checked, run_command};

/// The logs of the last daemons, the latest first.
const LOGS: [&str; 6] = ["log", "log.1", "log.2", "log.3", "log.4", "log.5"];
const LIMIT: Duration = Duration::from_secs(60);
/// `EXT4_IOC_SHUTDOWN` and `XFS_IOC_GOINGDOWN`; 2 is without writing the log out.
const SHUTDOWN: libc::c_ulong = 0x8004_587d;
const WITHOUT_LOG: u32 = 2;
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A file system in a file.
struct Disk {
    name: &'static str,
    xfs: bool,
}

/// The file systems that disks have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinds {
    /// Each ext4 or XFS, by the seed.
    Drawn,
    /// All ext4.
    Ext4,
    /// All XFS.
    Xfs,
}

impl Kinds {
    fn is_xfs(self, random: &mut Random) -> bool {
        // Drawn in any case: all else is as without a choice.
        let drawn = random.one_in(2);
        match self {
            Kinds::Drawn => drawn,
            Kinds::Ext4 => false,
            Kinds::Xfs => true,
        }
    }
}

/// Which parts of a mount lie on disks of their own.
pub const DISKS: [&str; 4] = ["tier0", "tier1", "state", "backing"];
/// And where nothing is chosen.
pub const DEFAULT_DISKS: [&str; 2] = ["tier0", "backing"];

/// What lies where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Two tiers, the state and the backing store, each on a disk of its own.
    Apart,
    /// As without any choice: one tier, which the state is in, and the backing store.
    Default,
}

impl Layout {
    /// The disks that there are.
    pub fn disks(self) -> &'static [&'static str] {
        match self {
            Layout::Apart => &DISKS,
            Layout::Default => &DEFAULT_DISKS,
        }
    }
}

/// How the daemon is run until it is drained the next time.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // They are settings.
pub struct MountSettings {
    pub passthrough: &'static str,
    pub writeback: &'static str,
    pub policy: &'static str,
    pub durability: &'static str,
    pub coherence: &'static str,
    /// The sizes of the tiers; the second one is there only if the tiers lie apart.
    pub tiers: [&'static str; 2],
}

impl MountSettings {
    /// One of all.
    pub fn choose(random: &mut Random) -> Self {
        MountSettings {
            passthrough: random.pick::<&str>(&["off", "read", "readwrite", "readwrite"]),
            writeback: random.pick::<&str>(&["20ms", "200ms", "close", "1h", "1h", "evict"]),
            policy: random.pick::<&str>(&["lru", "lru", "min", "s3fifo"]),
            durability: if random.one_in(10) { "backing" } else { "local" },
            coherence: if random.one_in(6) { "exclusive" } else { "open" },
            ..Self::of("off", "1h")
        }
    }

    /// These, and else what most mounts have.
    pub fn of(passthrough: &'static str, writeback: &'static str) -> Self {
        MountSettings {
            passthrough,
            writeback,
            policy: "lru",
            durability: "local",
            coherence: "open",
            tiers: ["3M", "4M"],
        }
    }

    /// With tiers that a few files fill.
    pub fn with_small_tiers(self) -> Self {
        Self { tiers: ["600K", "600K"], ..self }
    }
}

/// Disks, a mount, and its daemon.
pub struct Site {
    place: tempfile::TempDir,
    layout: Layout,
    disks: Vec<Disk>,
    daemon: Option<Child>,
    /// Where the daemon is to stand.
    stand: Option<Stand>,
    boots: u64,
}

impl Site {
    /// Fresh disks. The process gets mounts of its own, which nobody else sees.
    pub fn new(random: &mut Random, layout: Layout, kinds: Kinds) -> Outcome<Self> {
        if !crate::os::is_root() {
            return Err(Failure::Skipped("power cuts need root".into()));
        }
        for tool in ["mkfs.ext4", "mkfs.xfs"] {
            if Command::new(tool).arg("-V").output().is_err() {
                return Err(Failure::Skipped(format!("power cuts need {tool}")));
            }
        }
        // SAFETY: a plain call; this process has no other thread that would keep the old mounts.
        if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
            return Err(Failure::Skipped("power cuts need a mount namespace".into()));
        }
        run_checked(Command::new("mount").args(["--make-rslave", "/"]), LIMIT)?;
        let_others_mounts_go()?;
        let place = tempfile::Builder::new().prefix("forebay-power-").tempdir_in("/dev/shm")?;
        let disks = layout.disks().iter().map(|name| Disk { name, xfs: kinds.is_xfs(random) });
        let mut site =
            Self { place, layout, disks: disks.collect(), daemon: None, stand: None, boots: 0 };
        for dir in layout.disks().iter().chain(&["mnt", "run"]) {
            fs::create_dir(site.path(dir))?;
        }
        fs::write(site.path("boot"), "")?;
        let boot = site.path("boot");
        run_checked(Command::new("mount").arg("--bind").arg(boot).arg(BOOT_ID), LIMIT)?;
        for disk in &site.disks {
            site.format(disk)?;
        }
        site.boot()?;
        fs::create_dir(site.path("backing/data"))?;
        Ok(site)
    }

    /// A file or directory of the site.
    pub fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// What lies below the mount.
    pub fn home(&self, worker: usize) -> PathBuf {
        self.path(&format!("mnt/worker{worker}"))
    }

    fn format(&self, disk: &Disk) -> Outcome {
        let image = self.path(&format!("{}.img", disk.name));
        // XFS takes no less.
        File::create(&image)?.set_len(if disk.xfs { 320 << 20 } else { 192 << 20 })?;
        let mut command = match disk.xfs {
            true => Command::new("mkfs.xfs"),
            false => Command::new("mkfs.ext4"),
        };
        match disk.xfs {
            true => command.args(["-q", "-f"]),
            false => command
                .args(["-q", "-F", "-b", "4096", "-E"])
                .arg("lazy_itable_init=0,lazy_journal_init=0"),
        };
        Ok(run_checked(command.arg(image), LIMIT).map(drop)?)
    }

    /// The machine starts: another boot id, and all disks are mounted.
    pub fn boot(&mut self) -> Outcome {
        self.boots += 1;
        fs::write(self.path("boot"), format!("00000000-0000-4000-8000-{:012x}\n", self.boots))?;
        for disk in &self.disks {
            let image = self.path(&format!("{}.img", disk.name));
            let dir = self.path(disk.name);
            let mut command = Command::new("mount");
            let mounted = run_checked(command.args(["-o", "loop"]).arg(image).arg(dir), LIMIT);
            if let Err(error) = mounted {
                let text = error.to_string();
                let no_loop = self.boots == 1 && text.contains("loop");
                return Err(if no_loop { Failure::Skipped(text) } else { error.into() });
            }
        }
        Ok(())
    }

    /// Mounts Forebay.
    pub fn mount(&mut self, settings: &MountSettings) -> Outcome {
        // There is none before the first mount.
        for (newer, older) in LOGS.iter().zip(&LOGS[1..]).rev() {
            let _ = fs::rename(self.path(newer), self.path(older));
        }
        let log = File::create(self.path("log"))?;
        let text = |name: &str| self.path(name).display().to_string();
        let mut command = Command::new(binary()?);
        command
            .arg("mount")
            .args([text("backing/data"), text("mnt")])
            .args(["--tier", &format!("{}={}", text("tier0/tier"), settings.tiers[0])]);
        if self.layout == Layout::Apart {
            let second = format!("{}={}", text("tier1/tier"), settings.tiers[1]);
            command.args(["--tier", &second, "--state-dir", &text("state/state")]);
        }
        command
            .args(["--extent-size", "64KiB", "--foreground"])
            .args(["--passthrough", settings.passthrough, "--writeback", settings.writeback])
            .args(["--durability", settings.durability, "--coherence", settings.coherence])
            .args(["--policy", settings.policy])
            .args(["--log-level", &std::env::var("FOREBAY_LOG_LEVEL").unwrap_or("info".into())])
            .env("FOREBAY_RUNTIME_DIR", text("run"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        if let Some(stand) = &self.stand {
            command.env("FAILPOINTS", stand.setting());
        }
        let mut daemon = command.spawn()?;
        let deadline = Instant::now() + LIMIT;
        let why = loop {
            if is_mounted(&self.path("mnt")) {
                self.daemon = Some(daemon);
                return Ok(());
            }
            if let Some(status) = daemon.try_wait()? {
                break format!("the daemon ended: {status}");
            }
            if self.stand.is_some() && points::is_at_one(daemon.id()) {
                // The start itself comes by the point.
                self.stand = None;
                self.daemon = Some(daemon);
                self.kill();
                return self.mount(settings);
            }
            if Instant::now() > deadline {
                self.daemon = Some(daemon);
                break "no mount in time".into();
            }
            std::thread::sleep(Duration::from_millis(3));
        };
        Err(Failure::at(format_args!("no mount: {why}\n{}", self.log())))
    }

    /// Mounts, for a daemon that is to stand at a point.
    pub fn mount_to_stand(&mut self, settings: &MountSettings, stand: Stand) -> Outcome {
        self.stand = Some(stand);
        self.mount(settings)
    }

    /// Where the daemon is to stand. The next one is not.
    pub fn take_stand(&mut self) -> Option<Stand> {
        self.stand.take()
    }

    /// Whether the daemon stands at a fail point.
    pub fn is_at_point(&self) -> bool {
        self.daemon.as_ref().is_some_and(|daemon| points::is_at_one(daemon.id()))
    }

    /// The end of the daemon's log.
    pub fn log(&self) -> String {
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        let told = log.lines().filter(|line| !line.contains(" INFO "));
        told.take(20).collect::<Vec<_>>().join("\n")
    }

    /// Copies the logs of the last daemons below `FOREBAY_KEEP_LOGS`, if that is set, with what programs
    /// did.
    pub fn keep_logs(&self, cut: usize, steps: &str) {
        let Some(dir) = std::env::var_os("FOREBAY_KEEP_LOGS") else { return };
        for name in LOGS {
            let _ = fs::copy(self.path(name), Path::new(&dir).join(format!("cut{cut}.{name}")));
        }
        let _ = fs::write(Path::new(&dir).join(format!("cut{cut}.steps")), steps);
    }

    /// Has a disk fail at once, with all that was not written to it.
    pub fn cut(&self, disk: &str) -> Outcome {
        let dir = File::open(self.path(disk))?;
        let how = WITHOUT_LOG;
        // SAFETY: the descriptor is open, and the kernel reads the number, which outlives the call.
        let done = unsafe { libc::ioctl(dir.as_raw_fd(), SHUTDOWN, &raw const how) };
        ensure!(done == 0, "no cut of {disk}: {}", std::io::Error::last_os_error());
        Ok(())
    }

    /// kill -9 of the daemon.
    pub fn kill(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        detach(&self.path("mnt"));
    }

    /// `forebay umount`, which drains.
    pub fn drain(&mut self) -> Outcome {
        self.command("umount")?;
        self.kill();
        Ok(())
    }

    /// `forebay sync` of all.
    pub fn sync(&self) -> Outcome {
        self.command("sync")
    }

    /// `forebay refresh` of all.
    pub fn refresh(&self) -> Outcome {
        self.command("refresh")
    }

    fn command(&self, what: &str) -> Outcome {
        let mut command = Command::new(binary()?);
        command.arg(what).arg(self.path("mnt")).env("FOREBAY_RUNTIME_DIR", self.path("run"));
        let output = run_command(&mut command, LIMIT)?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "no {what}: {text}\n{}", self.log());
        Ok(())
    }

    /// Why the kernel can't read and write files past the daemon here, if it can't, and how many opens
    /// it took.
    pub fn passthrough(&self) -> Outcome<(Option<String>, u64)> {
        let told = self.status()?;
        let of = &told["passthrough"];
        let opens = of["opens"].as_u64();
        let opens = opens.ok_or_else(|| Failure::at("status tells no passthrough"))?;
        Ok((of["reason"].as_str().map(str::to_owned), opens))
    }

    fn status(&self) -> Outcome<serde_json::Value> {
        let mut command = Command::new(binary()?);
        command.args(["status", "--json"]).arg(self.path("mnt"));
        command.env("FOREBAY_RUNTIME_DIR", self.path("run"));
        serde_json::from_str(&run_checked(&mut command, LIMIT)?)
            .map_err(|error| Failure::at(format_args!("status is no JSON: {error}")))
    }

    /// What the mount reports as lost, if there is any.
    pub fn lost(&self) -> Outcome<Option<String>> {
        let lost = &self.status()?["lost"];
        Ok((lost["files"].as_u64() != Some(0)).then(|| format!("files are lost: {lost}")))
    }

    /// Stops the daemon where it is.
    pub fn freeze(&self) -> Outcome {
        if let Some(daemon) = &self.daemon {
            let pid = rustix::process::Pid::from_child(daemon);
            rustix::process::kill_process(pid, rustix::process::Signal::STOP)?;
        }
        Ok(())
    }

    /// `forebay fsck` of the tiers: whether it finds nothing, and what it says.
    pub fn check(&self) -> Outcome<(bool, String)> {
        let mut command = Command::new(binary()?);
        command.arg("fsck").arg(self.path("tier0/tier"));
        if self.layout == Layout::Apart {
            command.arg(self.path("tier1/tier")).arg("--state-dir").arg(self.path("state/state"));
        }
        let output = run_command(&mut command, LIMIT)?;
        let text = [output.stdout, output.stderr].concat();
        let told = format!("{}: {}", output.status, String::from_utf8_lossy(&text));
        Ok((output.status.success(), told))
    }

    /// All disks are unmounted.
    pub fn halt(&self) -> Outcome {
        for disk in &self.disks {
            let dir = self.path(disk.name);
            let gone = || {
                !is_mounted(&dir)
                    || rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::empty()).is_ok()
            };
            ensure!(eventually(Duration::from_secs(20), gone), "{} is busy", disk.name);
        }
        Ok(())
    }

    /// What kinds of disks these are.
    pub fn kinds(&self) -> String {
        let kind = |disk: &Disk| format!("{} {}", disk.name, if disk.xfs { "xfs" } else { "ext4" });
        self.disks.iter().map(kind).collect::<Vec<_>>().join(", ")
    }
}

/// What no daemon without others comes by, nor one that is not upgraded.
const NOT_HERE: [&str; 4] = ["node.cluster.", "node.peers.", "node.copies.", "node.resumed"];

/// The fail points that the binary was built with, and that a daemon may come by here.
pub fn fail_points() -> Outcome<Vec<String>> {
    let told = run_checked(Command::new(binary()?).args(["debug", "failpoints"]), LIMIT)?;
    let is_here = |point: &&str| !NOT_HERE.iter().any(|not| point.starts_with(not));
    let points: Vec<String> = told.split_whitespace().filter(is_here).map(str::to_owned).collect();
    match points.is_empty() {
        true => Err(Failure::at(
            "the binary has no fail points: build it with its feature `failpoints`",
        )),
        false => Ok(points),
    }
}

fn detach(mnt: &Path) {
    for _ in 0..10 {
        if !is_mounted(mnt) {
            return;
        }
        let _ = rustix::mount::unmount(mnt, rustix::mount::UnmountFlags::DETACH);
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.kill();
        let _ = rustix::mount::unmount(BOOT_ID, rustix::mount::UnmountFlags::DETACH);
        for disk in &self.disks {
            let _ =
                rustix::mount::unmount(self.path(disk.name), rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// The new mount namespace has copies of all mounts. Those of file systems that daemons serve, other
/// tests' among them, could not end as long as they are here.
fn let_others_mounts_go() -> Outcome {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let served = mounts.lines().filter(|line| line.contains(" - fuse"));
    for point in served.filter_map(|line| line.split(' ').nth(4)) {
        // Its path has no blanks, or it is none of a test.
        let _gone_or_in_use = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
    }
    Ok(())
}
