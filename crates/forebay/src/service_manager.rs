//! The service manager (systemd): what it is told, and what it keeps for a daemon that has no
//! supervisor.
//!
//! Its descriptor store does what a supervisor does: it holds the connection to the kernel, the
//! journal, the address's lock and socket, and the settings, and gives them to the process that it
//! starts when this one has died. The words are those of sd_notify(3) and sd_listen_fds(3); each is
//! one datagram, and they are read in their order.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

use crate::config::MountConfig;
use crate::descriptors::{self, words_in_memory, words_out_of_memory};
use crate::engine::CrashState;
use crate::supervisor::PreservedMount;

/// The first descriptor that a service manager passes.
const FIRST: RawFd = 3;
/// What all names in the store begin with.
const OURS: &str = "forebay-";
const DEVICE: &str = "forebay-device";
const LOCK: &str = "forebay-lock";
const LISTENER: &str = "forebay-listener";
const RINGS: &str = "forebay-rings";
/// These two are each daemon's own. The number of the daemon follows. The names are those that
/// earlier daemons have left their descriptors under.
const JOURNAL: &str = "forebay-journal-";
const SETTINGS: &str = "forebay-settings-";
/// Descriptors that are looked at; a store has at most seven of ours at a time.
const MAX: RawFd = 64;
/// How long the manager may take to read what it was told.
const BARRIER_LIMIT: Duration = Duration::from_secs(10);

/// Tells the service manager, if one started this process with `Type=notify`.
pub fn notify(state: &str) {
    if let Err(error) = send(state, None) {
        tracing::warn!(%error, "the service manager can't be told");
    }
}

fn send(state: &str, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddrUnix::new_abstract_name(name)?,
        None => SocketAddrUnix::new(path.as_os_str())?,
    };
    let (family, kind) = (AddressFamily::UNIX, SocketType::DGRAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    let passed: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !passed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&passed)) {
        return Err(io::Error::other("too many descriptors"));
    }
    let text = [IoSlice::new(state.as_bytes())];
    rustix::net::sendmsg_addr(socket, &address, &text, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Has the manager keep a descriptor, however often daemons change. It does not look whether the
/// descriptor is still good for something: that is found out by whoever gets it.
fn put(name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    send(&format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0\n"), Some(descriptor))
}

fn remove(name: &str) {
    notify(&format!("FDSTOREREMOVE=1\nFDNAME={name}\n"));
}

/// Returns when the manager has read all that it was told, or after a while.
fn barrier() -> io::Result<()> {
    let (ours, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    send("BARRIER=1\n", Some(theirs.as_fd()))?;
    drop(theirs);
    let limit = Timespec { tv_sec: BARRIER_LIMIT.as_secs().cast_signed(), tv_nsec: 0 };
    poll(&mut [PollFd::new(&ours, PollFlags::IN)], Some(&limit))?;
    Ok(())
}

/// The manager's descriptor store, as one daemon uses it.
#[derive(Debug)]
pub struct Store {
    /// The number of the last daemon that has left something.
    number: AtomicU64,
    /// Whether there is anything of this daemon's.
    used: AtomicBool,
}

impl Store {
    /// The store of the service that this process is, if it is one; `number` is that of the daemon
    /// before, 0 without one. A service has no store unless its unit says so: what is left then is
    /// closed at once, which does no harm.
    pub fn of_service(config: &MountConfig, number: u64) -> Option<Self> {
        // A node of a cluster is mounted again instead.
        let alone = config.foreground && config.cluster.is_none();
        let managed = std::env::var_os("NOTIFY_SOCKET").is_some_and(|path| !path.is_empty());
        (alone && managed).then(|| Self::after(number))
    }

    fn after(number: u64) -> Self {
        Self { number: AtomicU64::new(number), used: AtomicBool::new(false) }
    }

    /// The number of the last daemon that has left something.
    pub fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    /// Another daemon may have left something under the next number.
    pub fn skip(&self) {
        self.number.fetch_add(1, Ordering::Relaxed);
    }

    /// Leaves what the next daemon needs, and takes away what only the last one needed. What makes it
    /// complete comes last: until then the next daemon goes on from what the last one had left.
    pub fn leave(
        &self,
        settings: &[OsString],
        [device, journal, lock, listener]: [BorrowedFd<'_>; 4],
        rings: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let last = self.number.fetch_add(1, Ordering::Relaxed);
        self.used.store(true, Ordering::Relaxed);
        for (name, descriptor) in [(DEVICE, device), (LOCK, lock), (LISTENER, listener)] {
            put(name, descriptor)?;
        }
        if let Some(rings) = rings {
            put(RINGS, rings)?;
        }
        let settings = words_in_memory(settings)?;
        put(&format!("{SETTINGS}{}", last + 1), settings.as_fd())?;
        put(&format!("{JOURNAL}{}", last + 1), journal)?;
        for number in [last, last.saturating_sub(1)] {
            remove_of_daemon(number);
        }
        Ok(())
    }

    /// Nobody shall go on with the mount: it has ended.
    pub fn clear(&self) {
        if self.used.swap(false, Ordering::Relaxed) {
            remove_of_daemon(self.number());
            for name in [DEVICE, LOCK, LISTENER, RINGS] {
                remove(name);
            }
        }
    }
}

fn remove_of_daemon(number: u64) {
    for name in [JOURNAL, SETTINGS] {
        remove(&format!("{name}{number}"));
    }
}

/// What a daemon of this service had left when it died.
#[derive(Debug)]
pub struct Stored {
    /// What it had in use.
    pub preserved: PreservedMount,
    /// Its settings, as [`settings_from`](crate::daemon::settings_from) reads them.
    pub settings: Vec<OsString>,
    /// The store that all this came from.
    pub store: Store,
}

/// What the service manager has kept for this process. Nothing if it kept nothing, or what is of no
/// use: a mount that is gone, or not all that is needed. That is thrown away.
pub fn stored() -> Option<Stored> {
    let passed = passed();
    if passed.is_empty() {
        return None;
    }
    let names: Vec<String> = passed.iter().map(|(name, _)| name.clone()).collect();
    let outcome = sort(passed);
    match &outcome {
        Ok(stored) => {
            for name in names.iter().filter(|name| is_of_other(name, stored.store.number())) {
                remove(name);
            }
        }
        Err(reason) => {
            crate::commands::tell(&format!("{reason}: mounting anew"));
            names.iter().for_each(|name| remove(name));
            // The manager's copies keep the old mount alive, and its users waiting.
            let _ = barrier();
        }
    }
    outcome.ok()
}

/// Whether the name is that of something that only another daemon needs.
fn is_of_other(name: &str, number: u64) -> bool {
    [JOURNAL, SETTINGS]
        .into_iter()
        .any(|of| numbered(name, of).is_some_and(|found| found != number))
}

fn numbered(name: &str, prefix: &str) -> Option<u64> {
    name.strip_prefix(prefix)?.parse().ok()
}

/// The descriptors that the service manager has given to this process, and that are ours.
fn passed() -> Vec<(String, OwnedFd)> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<RawFd>().ok());
    let own = number("LISTEN_PID") == i32::try_from(std::process::id()).ok();
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let count = number("LISTEN_FDS").filter(|count| own && (0..=MAX).contains(count)).unwrap_or(0);
    let ours =
        (FIRST..FIRST + count).zip(names.split(':')).filter(|(_, name)| name.starts_with(OURS));
    let take = |(number, name): (RawFd, &str)| {
        // This is called once, before anything else is opened.
        descriptors::take(number).ok().map(|passed| (name.to_owned(), passed))
    };
    ours.filter_map(take).collect()
}

/// Makes sense of what was kept.
fn sort(passed: Vec<(String, OwnedFd)>) -> Result<Stored, &'static str> {
    let newest = passed.iter().filter_map(|(name, _)| numbered(name, JOURNAL)).max();
    let newest = newest.ok_or("the last daemon had not left all that is needed")?;
    let mut found: Vec<(String, Option<OwnedFd>)> =
        passed.into_iter().map(|(name, fd)| (name, Some(fd))).collect();
    let mut take = |name: &str| {
        found.iter_mut().find(|(of, fd)| of == name && fd.is_some()).and_then(|(_, fd)| fd.take())
    };
    let missing = "a part of what the last daemon left is missing";
    let device = take(DEVICE).ok_or(missing)?;
    let lock = take(LOCK).ok_or(missing)?;
    let listener = take(LISTENER).ok_or(missing)?;
    let journal = take(&format!("{JOURNAL}{newest}")).ok_or(missing)?;
    let settings = take(&format!("{SETTINGS}{newest}")).ok_or(missing)?;
    let settings = words_out_of_memory(&File::from(settings))
        .map_err(|_| "the last daemon's settings can't be read")?;
    if is_dead(device.as_fd()) {
        return Err("the mount that the last daemon served is gone");
    }
    let crash_state = CrashState { device, journal, rings: take(RINGS) };
    let store = Store::after(newest);
    store.used.store(true, Ordering::Relaxed);
    Ok(Stored { preserved: PreservedMount { crash_state, lock, listener }, settings, store })
}

/// Whether the connection has ended.
fn is_dead(device: BorrowedFd<'_>) -> bool {
    let mut state = [PollFd::new(&device, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut state, Some(&at_once)).is_err()
        || state[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptors::{in_memory, out_of_memory};

    /// What a whole mount leaves, with two daemons' own parts; the device is alive.
    fn kept() -> (Vec<(String, OwnedFd)>, OwnedFd) {
        let (device, kernel) = rustix::pipe::pipe().unwrap();
        let memory = |text: &[u8]| OwnedFd::from(in_memory(text).unwrap());
        let words = |words: &[OsString]| OwnedFd::from(words_in_memory(words).unwrap());
        let all = vec![
            ("forebay-journal-9".into(), memory(b"older")),
            ("forebay-settings-9".into(), words(&["tier=/old".into()])),
            (DEVICE.into(), device),
            (LOCK.into(), memory(b"")),
            (LISTENER.into(), memory(b"")),
            ("forebay-settings-11".into(), memory(b"")),
            ("forebay-settings-10".into(), words(&["tier=/a b=1G".into(), "log-file=".into()])),
            ("forebay-journal-10".into(), memory(b"newer")),
        ];
        (all, kernel)
    }

    #[test]
    fn kept_when_a_daemon_died_while_it_left_then_the_newest_that_is_complete_counts() {
        let (all, _kernel) = kept();
        let names: Vec<String> = all.iter().map(|(name, _)| name.clone()).collect();
        let stored = sort(all).unwrap();
        assert_eq!(stored.store.number(), 10);
        assert_eq!(stored.settings, ["tier=/a b=1G", "log-file="]);
        assert_eq!(out_of_memory(&stored.preserved.crash_state.journal.into()).unwrap(), b"newer");
        assert!(stored.preserved.crash_state.rings.is_none());
        let others: Vec<&String> = names.iter().filter(|name| is_of_other(name, 10)).collect();
        assert_eq!(others, ["forebay-journal-9", "forebay-settings-9", "forebay-settings-11"]);
    }

    #[test]
    fn kept_when_a_part_is_missing_or_the_mount_is_gone_then_of_no_use() {
        let (all, kernel) = kept();
        drop(all);
        drop(kernel);
        for gone in [DEVICE, LOCK, LISTENER, "forebay-settings-10"] {
            let (all, _kernel) = kept();
            assert!(sort(all.into_iter().filter(|(name, _)| name != gone).collect()).is_err());
        }
        let (all, kernel) = kept();
        // The other end of the pipe is closed, as the kernel's is when a mount ends.
        drop(kernel);
        assert_eq!(sort(all).unwrap_err(), "the mount that the last daemon served is gone");
    }

    #[test]
    fn passed_when_the_variables_are_not_for_this_process_then_nothing() {
        // Those of a service that runs the tests, if any, are not ours by name.
        assert!(passed().is_empty());
    }
}
