//! Mounting and unmounting.

use std::ffi::CString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::error::{Error, Result};
use crate::options::Options;

const FUSERMOUNT: &str = "fusermount3";
/// How long fusermount3 may take to hand over the device.
const FUSERMOUNT_TIMEOUT: Duration = Duration::from_secs(20);

/// A mounted file system whose requests nobody reads yet. Dropping it unmounts lazily.
#[derive(Debug)]
pub struct Mount {
    device: OwnedFd,
    point: MountPoint,
}

impl Mount {
    /// Mounts on `mountpoint`, an existing directory (or file): by mount(2) where the process may
    /// open `/dev/fuse` and mount, else through the setuid program fusermount3.
    ///
    /// Until a [`Session`](crate::Session) serves it, whoever touches the mount point waits.
    pub fn new(mountpoint: impl AsRef<Path>, options: &Options) -> Result<Self> {
        options.validate()?;
        let given = mountpoint.as_ref();
        let unusable = |source| Error::MountPoint { path: given.into(), source };
        let path = given.canonicalize().map_err(unusable)?;
        let root_mode = path.metadata().map_err(unusable)?.mode();
        let device = match mount_directly(&path, root_mode, options) {
            // Not privileged; the device itself may be closed to us, too.
            Err(Error::Mount { source, .. } | Error::Device(source))
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                mount_through_fusermount(&path, options)?
            }
            other => other?,
        };
        Ok(Self { device, point: MountPoint::new(path) })
    }

    /// Where it is mounted (absolute).
    pub fn path(&self) -> &Path {
        &self.point.path
    }

    /// Unmounts; with `lazy` even while it is in use (it then ends when the last user leaves).
    pub fn unmount(&mut self, lazy: bool) -> Result<()> {
        self.point.unmount(self.device.as_fd(), lazy)
    }

    pub(crate) fn split(self) -> Result<(OwnedFd, MountPoint)> {
        let mut this = self;
        let device = this.device.try_clone().map_err(Error::io("duplicating the device"))?;
        let path = std::mem::take(&mut this.point.path);
        this.point.mounted = false;
        Ok((device, MountPoint::new(path)))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.point.unmount_or_log(self.device.as_fd());
    }
}

/// The duty to unmount.
#[derive(Debug)]
pub(crate) struct MountPoint {
    pub path: PathBuf,
    mounted: bool,
}

impl MountPoint {
    pub fn new(path: PathBuf) -> Self {
        Self { path, mounted: true }
    }

    /// Unmounts, unless `device` shows that the file system is gone already: something else might
    /// be mounted there by now.
    pub fn unmount(&mut self, device: BorrowedFd<'_>, lazy: bool) -> Result<()> {
        if !self.mounted || is_disconnected(device) {
            self.mounted = false;
            return Ok(());
        }
        let failed = |source: io::Error| Error::Unmount { path: self.path.clone(), source };
        let mut flags = UnmountFlags::NOFOLLOW;
        flags.set(UnmountFlags::DETACH, lazy);
        match rustix::mount::unmount(&self.path, flags) {
            Err(Errno::PERM) => unmount_through_fusermount(&self.path, lazy).map_err(failed)?,
            other => other.map_err(|error| failed(error.into()))?,
        }
        self.mounted = false;
        Ok(())
    }

    pub fn unmount_or_log(&mut self, device: BorrowedFd<'_>) {
        if let Err(error) = self.unmount(device, true) {
            tracing::warn!(%error, "the mount point could not be unmounted: unmount it by hand");
        }
    }

    /// Gives up the duty.
    pub fn forget(&mut self) {
        self.mounted = false;
    }
}

fn is_disconnected(device: BorrowedFd<'_>) -> bool {
    let mut state = [PollFd::new(&device, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut state, Some(&at_once)).is_ok()
        && state[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

fn mount_directly(path: &Path, root_mode: u32, options: &Options) -> Result<OwnedFd> {
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| Error::Device(error.into()))?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&device);
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let mut data = format!(
        "fd={fd},rootmode={:o},user_id={},group_id={}",
        root_mode & libc::S_IFMT,
        user.as_raw(),
        group.as_raw()
    );
    for (wanted, name) in [
        (options.allow_other, ",allow_other"),
        (options.default_permissions, ",default_permissions"),
    ] {
        if wanted {
            data.push_str(name);
        }
    }
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOATIME, options.noatime);
    flags.set(MountFlags::NOSUID, options.nosuid);
    flags.set(MountFlags::NODEV, options.nodev);
    flags.set(MountFlags::NOEXEC, options.noexec);
    let kind = match options.subtype.as_str() {
        "" => "fuse".to_owned(),
        subtype => format!("fuse.{subtype}"),
    };
    let data = CString::new(data).expect("built from numbers and words");
    rustix::mount::mount(options.fs_name.as_str(), path, kind.as_str(), flags, data.as_c_str())
        .map_err(|error| Error::Mount { path: path.into(), source: error.into() })?;
    Ok(device)
}

/// Asks the setuid program fusermount3 to mount. It passes the open device back over a socket
/// whose number it finds in `_FUSE_COMMFD`; here that is its standard input.
fn mount_through_fusermount(path: &Path, options: &Options) -> Result<OwnedFd> {
    let failed =
        |message: String| Error::Fusermount { path: path.into(), message: message.trim().into() };
    let (ours, theirs) = UnixStream::pair().map_err(Error::io("making a socket pair"))?;
    ours.set_read_timeout(Some(FUSERMOUNT_TIMEOUT)).map_err(Error::io("setting a time-out"))?;
    let child = Command::new(FUSERMOUNT)
        .arg("-o")
        .arg(fusermount_options(options))
        .arg("--")
        .arg(path)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(format!("cannot run {FUSERMOUNT} (package fuse3): {error}")))?;
    let received = receive_descriptor(&ours);
    drop(ours);
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    let complaint = || String::from_utf8_lossy(&output.stderr).into_owned();
    match received {
        Ok(Some(device)) if output.status.success() => Ok(device),
        Ok(_) => Err(failed(complaint())),
        Err(error) => Err(failed(format!("{error} {}", complaint()))),
    }
}

fn fusermount_options(options: &Options) -> String {
    let mut list = format!("fsname={}", options.fs_name);
    if !options.subtype.is_empty() {
        list.push_str(",subtype=");
        list.push_str(&options.subtype);
    }
    for (wanted, name) in [
        (options.allow_other, "allow_other"),
        (options.default_permissions, "default_permissions"),
        (options.read_only, "ro"),
        (options.noatime, "noatime"),
        (options.nosuid, "nosuid"),
        (options.nodev, "nodev"),
        (options.noexec, "noexec"),
    ] {
        if wanted {
            list.push(',');
            list.push_str(name);
        }
    }
    list
}

/// One message with one descriptor; `None` when the other side closed without sending one.
fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut data = [IoSliceMut::new(&mut byte)];
    loop {
        match rustix::net::recvmsg(socket, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => break,
        }
    }
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

fn unmount_through_fusermount(path: &Path, lazy: bool) -> io::Result<()> {
    let output = Command::new(FUSERMOUNT)
        .args(["-u", "-q"])
        .args(lazy.then_some("-z"))
        .arg("--")
        .arg(path)
        .stdin(Stdio::null())
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    let message = if message.is_empty() { "fusermount3 -u failed".into() } else { message };
    Err(io::Error::other(message.trim().to_owned()))
}
