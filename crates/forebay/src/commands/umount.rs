//! `umount`: drain, unmount, and wait until the daemon is gone.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};

use super::progress::Meter;
use super::warn;
use crate::cli::UmountArgs;
use crate::control::{Client, ErrorKind, Outcome, Request, Shutdown, WirePath, runtime_dir};
use crate::error::Error;
use crate::mountinfo::Mount;
use crate::{mountinfo, render};

/// Added to the daemon's own limit before its answer is given up.
const GRACE: Duration = Duration::from_secs(5);

/// How long unmounting and the daemon's end may take after the drain, each.
const END_LIMIT: Duration = Duration::from_secs(60);

/// How long a dead daemon's successor may take.
const SUCCESSOR_LIMIT: Duration = Duration::from_secs(30);

/// After this long it is looked whether others still have the mount. Most that begin with a copy of all
/// mounts are gone by then.
const OTHERS_LIMIT: Duration = Duration::from_secs(15);

/// After this long it is looked whether it is bound to other places.
const BOUND_LIMIT: Duration = Duration::from_secs(2);

/// For how long the unmount is tried again while the mount is busy and no process is seen to use it.
const BUSY_LIMIT: Duration = Duration::from_secs(3);

/// Unmounts.
pub fn run(args: &UmountArgs) -> Result<(), Error> {
    let path = mountinfo::resolve(&args.mountpoint)
        .map_err(Error::io(args.mountpoint.display().to_string()))?;
    let mounts = mountinfo::read().map_err(Error::io("/proc/self/mountinfo"))?;
    let mount = mountinfo::at(&mounts, &path).filter(|mount| mount.is_forebay());
    if mount.is_some_and(Mount::is_of_part) {
        return Err(Error::Usage(format!(
            "{} is a bind mount of a part of a mount, which would end everywhere; umount(8) removes it alone",
            WirePath::from(&path)
        )));
    }
    let client = match mount {
        Some(mount) => Client::for_mount(mount, &mounts),
        None => Client::for_path(&path).and_then(|client| {
            if client.mountpoint() == path {
                return Ok(client);
            }
            Err(Error::Usage(format!(
                "{} lies on the mount at {}, which can only be unmounted as a whole",
                WirePath::from(&path),
                WirePath::from(client.mountpoint())
            )))
        }),
    };
    match client {
        Ok(client) => end_daemon(client, args),
        Err(Error::NoDaemon { .. }) if mount.is_some() && is_served(&path) => {
            let looked_in = runtime_dir(rustix::process::geteuid().as_raw());
            Err(Error::NotFoundAlive { mountpoint: path, looked_in })
        }
        Err(Error::NoDaemon { reason, .. }) if mount.is_some() => {
            warn(&format!("the daemon is dead ({reason}); removing its mount"));
            remove_dead(&path)?;
            if args.no_drain {
                return Ok(());
            }
            Err(Error::NotDrained(format!(
                "{}: unmounted, but nobody could write anything back: what was not yet in the backing store waits on the tiers; mount again with the same tiers, and unmount, to bring it there",
                path.display()
            )))
        }
        Err(error) => Err(error),
    }
}

/// How long a step after the drain may take: what is left of the caller's time.
fn end_limit(began: Instant, args: &UmountArgs) -> Duration {
    let left = |limit: Duration| limit.saturating_sub(began.elapsed()).saturating_add(GRACE);
    args.timeout.map_or(END_LIMIT, left).min(END_LIMIT)
}

fn process(client: &Client) -> Option<OwnedFd> {
    rustix::process::pidfd_open(Pid::from_raw(client.pid())?, PidfdFlags::empty()).ok()
}

fn end_daemon(mut client: Client, args: &UmountArgs) -> Result<(), Error> {
    let began = Instant::now();
    // Taken first: a process id must not be looked up after its process may have ended.
    let mut daemon = process(&client);
    let mut lacking = None;
    if !args.no_drain {
        let outcome = loop {
            match drain(&mut client, args, began) {
                // What has ended it is set aside by the one that takes its place.
                Err(error @ Error::NoDaemon { .. }) => {
                    client = successor(&client).ok_or(error)?;
                    daemon = process(&client);
                    warn("the daemon died while it wrote everything back; the next one goes on");
                }
                outcome => break outcome?,
            }
        };
        let left = outcome.remaining_files > 0 || outcome.remaining_backlog > 0;
        // What programs may be changing can't be finished before the kernel has let go of it, which
        // it refuses while somebody has it open. The daemon writes it back when it has.
        let refused = outcome.refused > 0 && outcome.refused == outcome.remaining_backlog;
        if (!outcome.complete || left) && !outcome.in_use && !refused {
            return Err(Error::NotDrained(format!(
                "still mounted: the time limit passed or the backing store failed\n{}try again with a longer --timeout, or leave the rest on the tiers for the next mount with --no-drain",
                render::remaining(&outcome)
            )));
        }
        if outcome.hung > 0 && !args.detach {
            return Err(Error::NotDrained(format!(
                "still mounted: {} requests of programs wait for the backing store, which does not answer (`forebay status` names them); try again when it does, or leave them with --detach",
                outcome.hung
            )));
        }
        if left && refused {
            // The next mount has it, and tries again. Whoever removes the tiers now has to know.
            lacking = Some(format!(
                "unmounted, but not all of it could be brought to the backing store as it is; what it lacks stays on the tiers for the next mount with the same tiers\n{}",
                render::remaining(&outcome).trim_end()
            ));
        } else if left {
            warn(&format!(
                "files are in use; what they have is written back when they are unmounted\n{}",
                render::remaining(&outcome).trim_end()
            ));
        }
    }
    let mounts = mountinfo::read().unwrap_or_default();
    let mount = mountinfo::at(&mounts, client.mountpoint());
    let how = if args.detach { Shutdown::Detach } else { Shutdown::IfIdle };
    // Before: what is open of a mount that was detached does not show where it was.
    let served_on = if args.detach { holders(client.mountpoint()) } else { Vec::new() };
    let tiers = mount.filter(|_| !args.no_drain).map(|mount| own_tiers(mount, &mounts));
    shut_down(&mut client, how, end_limit(began, args))?;
    if !served_on.is_empty() {
        warn(&format!(
            "unmounted, and its daemon serves on those who have files of it open, until they have closed them:{}",
            as_lines(&served_on)
        ));
    } else if let Some(daemon) = daemon {
        wait_for_end(&daemon, mount, &mounts, end_limit(began, args))?;
        lacking = lacking.or_else(|| behind(&tiers.unwrap_or_default()));
    }
    lacking.map_or(Ok(()), |lacking| Err(Error::NotDrained(lacking)))
}

/// The tiers of a mount, if they are all that it may leave behind: the store of a cluster may have spill
/// files of other nodes. Asked by a connection of its own: an answer that comes late must not be taken for
/// one to what is asked next.
fn own_tiers(mount: &Mount, mounts: &[Mount]) -> Vec<WirePath> {
    let status = Client::for_mount(mount, mounts).and_then(|mut client| client.status());
    let alone = status.ok().filter(|status| status.peers.is_empty());
    alone.into_iter().flat_map(|status| status.tiers).map(|tier| tier.dir).collect()
}

/// What to say if a daemon has noted at its end that the backing store lacks something: of a file that was
/// in use, or was changed after the drain.
fn behind(tiers: &[WirePath]) -> Option<String> {
    let ahead = tiers.iter().any(|tier| forebay_node::is_ahead_of_store(&tier.0));
    ahead.then(|| {
        "unmounted, but what was in use or changed during the drain could not be written back afterwards, as the log says; it stays on the tiers for the next mount with the same tiers".into()
    })
}

/// Has the daemon end. If the mount is busy and no process is seen to use it, the one that does is most
/// often about to end: then this is tried again for a while.
fn shut_down(client: &mut Client, how: Shutdown, limit: Duration) -> Result<(), Error> {
    let until = Instant::now() + BUSY_LIMIT;
    loop {
        match client.order(Request::Shutdown { how }, limit) {
            Err(Error::Control(error)) if error.kind == ErrorKind::Busy => {
                let holders = holders(client.mountpoint());
                if !holders.is_empty() || Instant::now() >= until {
                    return Err(busy(client.mountpoint(), &holders));
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            // The daemon may be gone before its answer is; the caller waits for its end.
            Err(Error::NoDaemon { .. }) | Ok(()) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Which of the mounts that were there before a mount was removed still show its file system. (Later ones
/// may have got the number of its device.)
fn still_bound(gone: &Mount, before: &[Mount]) -> Vec<String> {
    let now = mountinfo::read().unwrap_or_default();
    let same = |mount: &&Mount| mount.shows_same(gone);
    let still = before.iter().filter(same).filter(|mount| now.contains(mount));
    still.take(8).map(|mount| WirePath::from(&mount.mountpoint).to_string()).collect()
}

/// Some of the processes in whose mount namespaces the file system of a mount still is that is not in
/// this one any more.
fn in_other_namespaces(gone: &Mount) -> Vec<String> {
    let has = |mounts: &[Mount]| mounts.iter().any(|mount| mount.shows_same(gone));
    let mut found = Vec::new();
    let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let own = namespace(Path::new("/proc/self"));
    // Mounted again.
    if has(&mountinfo::read().unwrap_or_default()) {
        return found;
    }
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let dir = process.path();
        if namespace(&dir) == own {
            continue;
        }
        let Ok(text) = fs::read(dir.join("mountinfo")) else { continue };
        if has(&mountinfo::parse(&text)) {
            let name = fs::read_to_string(dir.join("comm")).unwrap_or_default();
            found.push(format!("{} ({})", process.file_name().display(), name.trim()));
        }
        if found.len() == 8 {
            break;
        }
    }
    found
}

/// The daemon that has taken the place of one that died, if there is one. Its supervisor gives up after
/// some, so that this has an end.
fn successor(dead: &Client) -> Option<Client> {
    let deadline = Instant::now() + SUCCESSOR_LIMIT;
    while Instant::now() < deadline {
        let mounts = mountinfo::read().ok()?;
        let mount = mountinfo::at(&mounts, dead.mountpoint()).filter(|mount| mount.is_forebay())?;
        match Client::for_mount(mount, &mounts) {
            // It is the dead one's until the next one listens.
            Ok(client) if client.pid() != dead.pid() => return Some(client),
            Ok(_) => std::thread::sleep(Duration::from_millis(50)),
            Err(_) => return None,
        }
    }
    None
}

fn drain(client: &mut Client, args: &UmountArgs, began: Instant) -> Result<Outcome, Error> {
    let mut meter = Meter::new(args.quiet);
    let left = args.timeout.map(|limit| limit.saturating_sub(began.elapsed()));
    let limit_ms = left.map(|limit| limit.as_millis().try_into().unwrap_or(u64::MAX));
    let timeout = left.map(|limit| limit.saturating_add(GRACE));
    let request = Request::Drain { limit_ms };
    let result = client.work(request, timeout, &mut |progress| meter.show(progress));
    match result {
        Err(Error::Control(error)) if error.kind == ErrorKind::NotMounted => {
            Err(Error::NotDrained(format!(
                "still mounted: {error}; `forebay status` shows what is stuck"
            )))
        }
        other => other,
    }
}

fn as_lines(holders: &[String]) -> String {
    holders.iter().map(|holder| format!("\n  {holder}")).collect()
}

fn busy(mountpoint: &Path, holders: &[String]) -> Error {
    let list = as_lines(holders);
    if list.is_empty() {
        Error::Failed(format!(
            "{}: in use, but no process is to be seen that uses it: one that has just ended, another \
             mount below it, or somebody in another namespace; try again, or use --detach",
            mountpoint.display()
        ))
    } else {
        Error::Failed(format!("{}: in use; end them, or use --detach:{list}", mountpoint.display()))
    }
}

/// Some of the processes that have a file or their directory on a mount. Reads only links in
/// /proc, so that a stuck mount does not matter.
fn holders(mountpoint: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let own = std::process::id().to_string();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let dir = process.path();
        let name = process.file_name();
        // This command may have been started there; who started it is there as well.
        if !name.as_encoded_bytes().iter().all(u8::is_ascii_digit) || name == own.as_str() {
            continue;
        }
        let open =
            fs::read_dir(dir.join("fd")).into_iter().flatten().flatten().map(|entry| entry.path());
        let place = [dir.join("cwd"), dir.join("root")].into_iter().chain(open);
        let mut places = place.filter_map(|link| fs::read_link(link).ok());
        if let Some(place) = places.find(|place| place.starts_with(mountpoint)) {
            let name = fs::read_to_string(dir.join("comm")).unwrap_or_default();
            let pid = process.file_name();
            found.push(format!("{} ({}): {}", pid.display(), name.trim(), place.display()));
            if found.len() == 8 {
                break;
            }
        }
    }
    found
}

fn wait_for_end(
    daemon: &impl std::os::fd::AsFd,
    gone: Option<&Mount>,
    before: &[Mount],
    limit: Duration,
) -> Result<(), Error> {
    let deadline = Instant::now() + limit;
    let began = Instant::now();
    loop {
        let bound = match gone.filter(|_| began.elapsed() >= BOUND_LIMIT) {
            Some(gone) => still_bound(gone, before),
            None => Vec::new(),
        };
        if !bound.is_empty() {
            return Err(Error::Failed(format!(
                "unmounted here, but the mount is bound to other places as well, and its daemon serves it on until umount(8) has removed it from {}",
                bound.join(", ")
            )));
        }
        let others = match gone.filter(|_| began.elapsed() >= OTHERS_LIMIT) {
            Some(gone) => in_other_namespaces(gone),
            None => Vec::new(),
        };
        if !others.is_empty() {
            return Err(Error::Failed(format!(
                "unmounted here, but the mount is still there in other mount namespaces, as of containers or services, and its daemon serves it on until they have unmounted it or ended; some of who has it: {}",
                others.join(", ")
            )));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let mut polled = [PollFd::new(daemon, PollFlags::IN)];
        let left = left.min(BOUND_LIMIT);
        let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match rustix::event::poll(&mut polled, Some(&limit)) {
            Ok(0) if Instant::now() < deadline => {}
            Ok(0) => {
                return Err(Error::NotDrained(
                    "unmounted, but the daemon has not ended yet: it waits for the backing store, or for programs that have files of it mapped; see its log. What it could not write waits on the tiers for the next mount".into(),
                ));
            }
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::io("waiting for the daemon")(error.into())),
        }
    }
}

/// How long a mount may take to say that somebody serves it.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Whether somebody serves a mount. One that does not answer in time is served if a daemon for it is
/// to be seen: it may wait for the backing store.
fn is_served(mountpoint: &Path) -> bool {
    let (told, answer) = std::sync::mpsc::channel();
    let path = mountpoint.to_owned();
    // It may never come back; then nobody is told.
    std::thread::spawn(move || {
        let _ = told.send(rustix::fs::statfs(path).map(|_| ()));
    });
    match answer.recv_timeout(ANSWER_LIMIT) {
        Ok(answer) => !says_dead(answer),
        Err(_) => has_daemon(mountpoint),
    }
}

/// The second error is what a request gets that was under way when the daemon died.
fn says_dead<T>(answer: rustix::io::Result<T>) -> bool {
    matches!(answer, Err(rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED))
}

/// Whether one of the processes here is the daemon of a mount point, by its command line.
fn has_daemon(mountpoint: &Path) -> bool {
    let place = mountpoint.as_os_str().as_encoded_bytes();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.any(|line| {
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        words.get(1) == Some(&&b"daemon"[..]) && words[2..].contains(&place)
    })
}

/// Removes what a daemon that was killed left at a mount point, so that mounting again just works.
/// Does nothing while a daemon answers, or if the kernel does not say that the mount is dead.
pub fn clear_dead(mountpoint: &Path) -> Result<(), Error> {
    let Ok(path) = mountinfo::resolve(mountpoint) else { return Ok(()) };
    let mounts = mountinfo::read().map_err(Error::io("/proc/self/mountinfo"))?;
    let Some(mount) = mountinfo::at(&mounts, &path).filter(|mount| mount.is_forebay()) else {
        return Ok(());
    };
    if !matches!(Client::for_mount(mount, &mounts), Err(Error::NoDaemon { .. })) {
        return Ok(());
    }
    // Not the attributes, which the kernel may have cached.
    if says_dead(rustix::fs::statfs(&path)) {
        warn(&format!("{}: removing the mount of a daemon that died", path.display()));
        remove_dead(&path)?;
    }
    Ok(())
}

/// Removes a mount that nobody serves any more.
fn remove_dead(path: &Path) -> Result<(), Error> {
    let direct = rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH);
    if direct.is_ok() {
        return Ok(());
    }
    let helped = Command::new("fusermount3").arg("-uz").arg("--").arg(path).status();
    match helped {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Error::Failed(format!("fusermount3 -uz {}: {status}", path.display()))),
        Err(error) => Err(Error::io("fusermount3")(error)),
    }
}
