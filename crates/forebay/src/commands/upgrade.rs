//! `upgrade`: another program takes a mount over.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{print, print_json};
use crate::cli::UpgradeArgs;
use crate::config::{FileSource, Settings};
use crate::control::{Client, ErrorKind, Reply, Request};
use crate::error::Error;

/// Added to the time limit: both programs start and open what they need.
const GRACE: Duration = Duration::from_secs(120);

/// The daemon before is waited for so long at most: it may wait for the backing store.
const END_LIMIT: Duration = Duration::from_secs(10);

/// So many daemons are asked one after the other, if each is replaced before it can answer.
const MAX_TURNS: u32 = 8;

/// Upgrades.
pub fn run(args: &UpgradeArgs) -> Result<(), Error> {
    let program = match &args.program {
        Some(path) => path.clone(),
        None => std::env::current_exe().map_err(Error::io("finding this program"))?,
    };
    // The daemon has another working directory.
    let program = program.canonicalize().map_err(Error::io(program.display().to_string()))?;
    let limit_ms = u64::try_from(args.timeout.as_millis()).unwrap_or(u64::MAX);
    let request = Request::Upgrade { program: program.into(), limit_ms };
    let timeout = args.timeout.saturating_add(GRACE);
    match ask(&mountpoint(args)?, &request, timeout)? {
        Reply::Upgraded(upgraded) if args.json => print_json(&upgraded),
        Reply::Upgraded(upgraded) => print(&format!(
            "taken over by process {} (version {}) with {} open files; programs waited for {:.1} ms\n",
            upgraded.pid,
            upgraded.version,
            upgraded.open_files,
            upgraded.pause_us as f64 / 1000.0
        )),
        _ => Err(Error::Protocol("not an answer to an upgrade".into())),
    }
}

/// Asks the daemon of a mount for an upgrade. If another upgrade came first, its successor is asked.
fn ask(mountpoint: &Path, request: &Request, timeout: Duration) -> Result<Reply, Error> {
    let daemon = |client: &mut Client| client.status().ok().map(|status| status.pid);
    let mut turns = 1..MAX_TURNS;
    loop {
        let mut client = Client::for_path(mountpoint)?;
        let asked = daemon(&mut client);
        let process = Pid::from_raw(client.pid());
        let process = process.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let error = match client.call(request.clone(), Some(timeout), &mut |_| {}) {
            Err(error) if came_too_late(&error) && turns.next().is_some() => error,
            Err(error) => return Err(error),
            Ok(reply) => {
                drop(client);
                wait_for_end(process);
                return Ok(reply);
            }
        };
        let now = Client::for_path(mountpoint).ok().and_then(|mut client| daemon(&mut client));
        if now.is_none() || now == asked {
            return Err(error);
        }
    }
}

/// The daemon that was asked has nothing to do any more. Until it is gone it may still put away what it has in
/// the state directory, which whoever removes that next would stumble upon.
fn wait_for_end(process: Option<OwnedFd>) {
    let Some(process) = process else { return };
    let limit = Timespec { tv_sec: END_LIMIT.as_secs() as i64, tv_nsec: 0 };
    if let Ok(0) = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit)) {
        tracing::debug!("the daemon before has not ended yet");
    }
}

/// Whether the daemon that was asked may have been replaced meanwhile.
fn came_too_late(error: &Error) -> bool {
    match error {
        Error::Control(error) => error.kind == ErrorKind::Locked,
        // It ended while it was asked.
        Error::NoDaemon { .. } => true,
        _ => false,
    }
}

fn mountpoint(args: &UpgradeArgs) -> Result<PathBuf, Error> {
    let mut settings = Settings::default();
    if let Some(path) = &args.config {
        FileSource::read(path)?.offer(&mut settings)?;
    }
    let configured = settings.get("mountpoint").and_then(|value| value.texts.first());
    let found = args.mountpoint.clone().or_else(|| configured.map(PathBuf::from));
    found.ok_or_else(|| Error::Usage("name the mount point, or a --config that has it".into()))
}
