//! The daemon: how it is left behind by `mount`, how it ends.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::cli::DaemonArgs;
use crate::config::{MountConfig, Origin, Setting, Settings};
use crate::control::{ControlError, ErrorKind};
use crate::descriptors::{self, words_in_memory, words_out_of_memory};
use crate::engine::Engine;
use crate::error::{Error, Exit};
use crate::hand_over::Predecessor;
use crate::service::{Guard, Plan};
use crate::service_manager::{Store, Stored};
use crate::supervisor::Link;
use crate::{logging, service, service_manager, supervisor};

/// What a daemon tells the `mount` that waits for it.
#[derive(Debug, Serialize, Deserialize)]
struct Report {
    exit: u8,
    message: String,
}

/// Starts the daemon with these settings and waits until it can be used or has failed.
pub fn launch(settings: &Settings) -> Result<(), Error> {
    descriptors::close_others_on_exec();
    let given = words_in_memory(&pairs(settings)).map_err(Error::io("settings in memory"))?;
    let mountpoint = settings.get("mountpoint").and_then(|value| value.texts.first());
    let mut command = Command::new("/proc/self/exe");
    command.arg0("forebay").arg("daemon").arg(mountpoint.map_or(OsStr::new("-"), |path| path));
    let alone = settings.get("no-supervisor").is_some_and(|value| value.texts == ["true"]);
    if !alone {
        command.arg("--supervise");
    }
    command.stdin(Stdio::from(given)).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(Error::io("starting the daemon"))?;
    let mut text = String::new();
    if let Some(pipe) = child.stdout.take() {
        // The daemon closes the pipe after its report, and its death closes it too.
        pipe.take(1 << 20)
            .read_to_string(&mut text)
            .map_err(Error::io("waiting for the daemon"))?;
    }
    let report = match serde_json::from_str::<Report>(text.trim()) {
        Ok(report) => report,
        Err(_) => {
            let status = child.wait().map_err(Error::io("waiting for the daemon"))?;
            return Err(Error::Failed(format!(
                "the daemon ended before it was ready ({status}); see its log"
            )));
        }
    };
    match Exit::from_code(report.exit.into()) {
        Exit::Ok => Ok(()),
        Exit::Usage => Err(Error::Usage(report.message)),
        Exit::NotMounted | Exit::Failed => Err(Error::Failed(report.message)),
        Exit::NotDrained => Err(Error::NotDrained(report.message)),
        Exit::Unsupported => Err(Error::Unsupported(report.message)),
        Exit::BadState => Err(Error::BadState(report.message)),
        Exit::Locked => Err(Error::Locked(report.message)),
    }
}

/// The settings as words `KEY=VALUE`.
fn pairs(settings: &Settings) -> Vec<OsString> {
    let mut pairs = Vec::new();
    for (setting, value) in settings.iter() {
        for text in &value.texts {
            let mut pair = OsString::from(format!("{}=", setting.key));
            pair.push(text);
            pairs.push(pair);
        }
    }
    pairs
}

/// The settings that `pairs` made words of.
pub fn settings_from(pairs: &[OsString]) -> Result<Settings, Error> {
    let mut collected: Vec<(&'static Setting, Vec<OsString>)> = Vec::new();
    for pair in pairs {
        let bytes = pair.as_bytes();
        let at = bytes.iter().position(|byte| *byte == b'=').unwrap_or(bytes.len());
        let key = String::from_utf8_lossy(&bytes[..at]);
        let setting =
            Setting::find(&key).ok_or_else(|| Error::Usage(format!("unknown setting '{key}'")))?;
        let text = OsString::from_vec(bytes.get(at + 1..).unwrap_or_default().to_vec());
        match collected.iter_mut().find(|(other, _)| other.key == setting.key) {
            Some((_, texts)) => texts.push(text),
            None => collected.push((setting, vec![text])),
        }
    }
    let mut settings = Settings::default();
    for (setting, texts) in collected {
        settings.offer(setting, texts, Origin::Flag);
    }
    settings.fill_defaults();
    Ok(settings)
}

/// One of the processes of a mount in the background.
pub fn run(args: &DaemonArgs, engine: &dyn Engine) -> Result<(), Error> {
    descriptors::name_process(if args.supervise { c"forebay-superv" } else { c"forebay" });
    if args.successor {
        return run_successor(engine);
    }
    let stranger = || Error::Usage("only `forebay mount` and a supervisor start daemons".into());
    let (given, link) = if args.supervised {
        let link = Link::from_stdin().map_err(|_| stranger())?;
        (supervisor::settings().map_err(|_| stranger())?, Some(link))
    } else {
        (descriptors::take_stdin().map_err(|_| stranger())?, None)
    };
    let given = File::from(given);
    let settings = settings_from(&words_out_of_memory(&given).map_err(|_| stranger())?)?;
    if args.given_up {
        return log_given_up(&settings, engine);
    }
    if args.supervise {
        let config = MountConfig::from_settings(&settings, engine.policies())?;
        return supervisor::run(&given, &args.mountpoint, config.restart_limit);
    }
    run_detached(&settings, engine, link, args.revived)
}

/// Says in the log what a supervisor, which has none, has decided.
fn log_given_up(settings: &Settings, engine: &dyn Engine) -> Result<(), Error> {
    let config = MountConfig::from_settings(settings, engine.policies())?;
    prepare_foreground(&config, engine)?;
    logging::start(&config)?;
    tracing::error!(
        mountpoint = %config.mountpoint.display(),
        limit = config.restart_limit,
        within = ?supervisor::WINDOW,
        "daemons died too often: no other is started and programs get errors; mount again to continue"
    );
    Ok(())
}

/// The daemon process that `launch` started: leaves the terminal, serves, and reports on its
/// standard output whether it can be used.
fn run_detached(
    settings: &Settings,
    engine: &dyn Engine,
    supervisor: Option<Link>,
    revived: bool,
) -> Result<(), Error> {
    let mut told = false;
    let result = detach(settings, engine).and_then(|(config, mut pipe)| {
        let guard = supervisor.map(Guard::Supervisor);
        let plan = Plan { settings: pairs(settings), config: &config, engine, guard };
        if revived {
            let preserved =
                supervisor::preserved_mount().map_err(Error::io("what the last daemon left"))?;
            return service::serve_revived(plan, preserved);
        }
        service::serve(plan, &mut || {
            told = true;
            report(&mut pipe, Exit::Ok, String::new())
                .map_err(Error::io("whoever ran `forebay mount` went away"))?;
            // Closing the pipe is what lets `mount` return.
            pipe = File::open("/dev/null").map_err(Error::io("/dev/null"))?;
            Ok(())
        })
        .inspect_err(|error| {
            if !told {
                let _ = report(&mut pipe, error.exit(), error.to_string());
            }
        })
    });
    if let Err(error) = &result {
        tracing::error!(%error, "daemon ends");
    }
    result
}

fn report(pipe: &mut impl Write, exit: Exit, message: String) -> io::Result<()> {
    let mut line = serde_json::to_vec(&Report { exit: exit.code(), message })?;
    line.push(b'\n');
    pipe.write_all(&line)
}

/// Leaves session, directory and terminal; returns the configuration and the pipe to report on.
fn detach(settings: &Settings, engine: &dyn Engine) -> Result<(MountConfig, File), Error> {
    let pipe = rustix::io::fcntl_dupfd_cloexec(io::stdout(), 3)
        .map_err(|e| Error::io("report pipe")(e.into()))?;
    let mut pipe = File::from(pipe);
    let prepared = MountConfig::from_settings(settings, engine.policies()).and_then(|config| {
        // Before the log, which lies in a tier.
        engine.check_tiers(&config)?;
        let log = config.log_file.as_deref();
        let log = log.map(|path| logging::open_file(path, &config.state_dir)).transpose()?;
        let null = || File::options().write(true).open("/dev/null").map_err(Error::io("/dev/null"));
        let log = log.map_or_else(null, Ok)?;
        let dup = |e: rustix::io::Errno| Error::io("standard output")(e.into());
        rustix::stdio::dup2_stdout(&log).map_err(dup)?;
        rustix::stdio::dup2_stderr(&log).map_err(dup)?;
        // Fails only for a process group leader, which is on its own already.
        let _ = rustix::process::setsid();
        std::env::set_current_dir("/").map_err(Error::io("/"))?;
        Ok(config)
    });
    match prepared {
        Ok(config) => Ok((config, pipe)),
        Err(error) => {
            let told = report(&mut pipe, error.exit(), error.to_string());
            if let (Ok(()), Ok(null)) = (told, File::options().write(true).open("/dev/null")) {
                // Who waits at the pipe prints it.
                let _ = rustix::stdio::dup2_stderr(&null);
            }
            Err(error)
        }
    }
}

/// Serves in the foreground, and tells a waiting service manager when the mount can be used.
pub fn run_foreground(
    settings: &Settings,
    config: &MountConfig,
    engine: &dyn Engine,
) -> Result<(), Error> {
    prepare_foreground(config, engine)?;
    let guard = Store::of_service(config, 0).map(Guard::ServiceManager);
    let plan = Plan { settings: pairs(settings), config, engine, guard };
    service::serve(plan, &mut || {
        service_manager::notify("READY=1\n");
        Ok(())
    })
}

fn prepare_foreground(config: &MountConfig, engine: &dyn Engine) -> Result<(), Error> {
    engine.check_tiers(config)?;
    if let Some(path) = &config.log_file {
        let log = logging::open_file(path, &config.state_dir)?;
        rustix::stdio::dup2_stderr(&log).map_err(|e| Error::io("standard error")(e.into()))?;
    }
    Ok(())
}

/// Goes on, in the foreground, where a daemon of the same service died, with that one's settings.
/// Nothing here may touch the mount before it is served: who asks would wait for itself.
pub fn run_stored(stored: Stored, engine: &dyn Engine) -> Result<(), Error> {
    let Stored { preserved, settings, store } = stored;
    let config = settings_from(&settings)
        .and_then(|settings| MountConfig::from_settings(&settings, engine.policies()))
        .and_then(|config| prepare_foreground(&config, engine).map(|()| config));
    match config {
        Ok(config) => {
            let guard = Some(Guard::ServiceManager(store));
            let plan = Plan { settings, config: &config, engine, guard };
            service::serve_revived(plan, preserved)
        }
        Err(error) => {
            // The next start mounts anew.
            store.clear();
            Err(error)
        }
    }
}

/// The daemon that another one has started to take its mount over.
fn run_successor(engine: &dyn Engine) -> Result<(), Error> {
    let predecessor = Predecessor::from_stdin().map_err(|_| {
        Error::Usage("only a daemon starts a successor: use `forebay upgrade`".into())
    })?;
    let mut known = None;
    predecessor.accept(|given, version| {
        known = Some(suited(given, engine, version)?);
        Ok(())
    })?;
    let (settings, config) = known.ok_or_else(|| Error::Failed("no configuration".into()))?;
    if !config.foreground {
        // Fails only for a process group leader, which is on its own already.
        let _ = rustix::process::setsid();
    }
    let plan = Plan { settings: pairs(&settings), config: &config, engine, guard: None };
    let result = service::serve_after(plan, &predecessor);
    if let Err(error) = &result {
        tracing::error!(%error, "daemon ends");
        predecessor.refuse(&ControlError::new(ErrorKind::Failed, error.to_string()));
    }
    result
}

/// Whether this program can serve what another one hands on in this version with these settings.
fn suited(
    given: &[OsString],
    engine: &dyn Engine,
    version: u32,
) -> Result<(Settings, MountConfig), ControlError> {
    let own = engine.state_version();
    if version > own {
        return Err(ControlError::new(
            ErrorKind::Unsupported,
            format!(
                "the new program ({}) reads version {own} of the state that a daemon hands on, \
                 the running daemon writes version {version}: nothing was changed; unmount and \
                 mount with the new program instead",
                env!("CARGO_PKG_VERSION")
            ),
        ));
    }
    let unfit = |message: String| ControlError::new(ErrorKind::Usage, message);
    let settings = settings_from(given).map_err(|error| unfit(error.to_string()))?;
    let config = MountConfig::from_settings(&settings, engine.policies())
        .map_err(|error| unfit(error.to_string()))?;
    engine.check_tiers(&config)?;
    Ok((settings, config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_from_when_given_by_launch_then_lists_keep_their_order() {
        let pairs: Vec<OsString> =
            ["tier=/a=1G", "policy=lru", "tier=/b=2G", "metrics="].map(OsString::from).into();
        let settings = settings_from(&pairs).unwrap();
        assert_eq!(settings.get("tier").unwrap().texts, ["/a=1G", "/b=2G"]);
        assert_eq!(settings.get("metrics").unwrap().texts, [""]);
        assert!(settings_from(&["bogus=1".into()]).is_err());
    }
}
