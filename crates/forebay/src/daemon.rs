//! The daemon: how it is left behind by `mount`, how it ends.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Deserialize, Serialize};

use crate::config::{MountConfig, Origin, Setting, Settings};
use crate::control::{Address, Control, ErrorKind, Server, ServerLimits, Shutdown};
use crate::engine::Engine;
use crate::error::{Error, Exit};
use crate::{logging, metrics_http, signals};

/// What a daemon tells the `mount` that waits for it.
#[derive(Debug, Serialize, Deserialize)]
struct Report {
    exit: u8,
    message: String,
}

/// Starts the daemon with these settings and waits until it can be used or has failed.
pub fn launch(settings: &Settings) -> Result<(), Error> {
    let mut command = Command::new("/proc/self/exe");
    command.arg("daemon");
    for (setting, value) in settings.iter() {
        for text in &value.texts {
            let mut pair = OsString::from(format!("--set={}=", setting.key));
            pair.push(text);
            command.arg(pair);
        }
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped());
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

/// The settings that [`launch`] gave.
pub fn settings_from(pairs: &[OsString]) -> Result<Settings, Error> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
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

/// The daemon process that `launch` started: leaves the terminal, serves, and reports on its
/// standard output whether it can be used.
pub fn run_detached(settings: &Settings, engine: &dyn Engine) -> Result<(), Error> {
    let mut told = false;
    let result = detach(settings, engine).and_then(|(config, mut pipe)| {
        serve(&config, engine, &mut || {
            told = true;
            report(&mut pipe, Exit::Ok, String::new())
                .map_err(Error::io("whoever ran `forebay mount` went away"))?;
            // Closing the pipe is what lets `mount` return.
            pipe = std::fs::File::open("/dev/null").map_err(Error::io("/dev/null"))?;
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
fn detach(settings: &Settings, engine: &dyn Engine) -> Result<(MountConfig, std::fs::File), Error> {
    let pipe = rustix::io::fcntl_dupfd_cloexec(io::stdout(), 3)
        .map_err(|e| Error::io("report pipe")(e.into()))?;
    let mut pipe = std::fs::File::from(pipe);
    let prepared = MountConfig::from_settings(settings, engine.policies()).and_then(|config| {
        // Before the log, which lies in a tier.
        engine.check_tiers(&config)?;
        let log = config.log_file.as_deref().map(logging::open_file).transpose()?;
        let null = || {
            std::fs::File::options().write(true).open("/dev/null").map_err(Error::io("/dev/null"))
        };
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
            let _ = report(&mut pipe, error.exit(), error.to_string());
            Err(error)
        }
    }
}

/// Serves in the foreground, and tells a waiting service manager when the mount can be used.
pub fn run_foreground(config: &MountConfig, engine: &dyn Engine) -> Result<(), Error> {
    engine.check_tiers(config)?;
    if let Some(path) = &config.log_file {
        let log = logging::open_file(path)?;
        rustix::stdio::dup2_stderr(&log).map_err(|e| Error::io("standard error")(e.into()))?;
    }
    serve(config, engine, &mut || {
        notify_service_manager("READY=1\n");
        Ok(())
    })
}

/// Mounts, serves until the mount is gone, and cleans up.
fn serve(
    config: &MountConfig,
    engine: &dyn Engine,
    ready: &mut dyn FnMut() -> Result<(), Error>,
) -> Result<(), Error> {
    // Before any thread exists, so that all threads inherit it and only one receives signals.
    signals::block()?;
    logging::start(config)?;
    logging::abort_on_panic();
    let address = Address::claim(&config.mountpoint, &config.backing)?;
    let listener = address.listen()?;
    let metrics_listener = config.metrics.map(metrics_http::listen).transpose()?;
    let mounted = engine.mount(config)?;
    let control = mounted.control();
    let server = Server::start(listener, Arc::clone(&control), ServerLimits::default())
        .map_err(Error::io("control socket"));
    let started = server.and_then(|server| {
        let metrics = metrics_listener.map(|listener| {
            let control = Arc::clone(&control);
            metrics_http::Endpoint::start(listener, move || control.metrics())
        });
        let metrics = metrics.transpose().map_err(Error::io("metrics endpoint"))?;
        end_on_signal(Arc::clone(&control))?;
        ready()?;
        Ok((server, metrics))
    });
    match started {
        Ok((server, metrics)) => {
            tracing::info!(backing = %config.backing.display(), mountpoint = %config.mountpoint.display(), "mounted");
            let ended = mounted.wait();
            drop(metrics);
            server.stop();
            drop(address);
            tracing::info!("unmounted");
            Ok(ended?)
        }
        Err(error) => {
            let _ = control.shutdown(Shutdown::Detach);
            let _ = mounted.wait();
            Err(error)
        }
    }
}

/// Starts the thread that ends the mount on SIGTERM or SIGINT, at once on the second one.
fn end_on_signal(control: Arc<dyn Control>) -> Result<(), Error> {
    let received = Arc::new(AtomicU32::new(0));
    let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new().name(name.into()).spawn(body).map(drop)
    };
    let body = move || {
        while signals::wait().is_ok() {
            match received.fetch_add(1, Ordering::SeqCst) {
                0 => {
                    let (control, received) = (Arc::clone(&control), Arc::clone(&received));
                    let drain = move || drain_and_end(&*control, &received);
                    if spawn("drain", Box::new(drain)).is_err() {
                        return;
                    }
                }
                1 => {
                    tracing::warn!(
                        "second signal: leaving at once; what is dirty stays on the tiers"
                    );
                    end(&*control, Shutdown::Detach);
                }
                _ => {}
            }
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(body)
        .map(drop)
        .map_err(Error::io("signal thread"))
}

fn drain_and_end(control: &dyn Control, received: &AtomicU32) {
    tracing::info!("signal: writing everything to the backing store");
    notify_service_manager("STOPPING=1\n");
    let drained = control.drain(None, &mut |progress| {
        // The service manager is asked for ten more seconds as long as there is progress.
        notify_service_manager("EXTEND_TIMEOUT_USEC=10000000\n");
        tracing::debug!(?progress, "draining");
        received.load(Ordering::SeqCst) < 2
    });
    match drained {
        Ok(outcome) if outcome.complete => tracing::info!(files = outcome.files, "drained"),
        Ok(outcome) => tracing::warn!(
            files = outcome.remaining_files,
            bytes = outcome.remaining_bytes,
            "not drained; the rest stays on the tiers for the next mount"
        ),
        Err(error) => {
            tracing::warn!(%error, "not drained; the rest stays on the tiers for the next mount");
        }
    }
    if received.load(Ordering::SeqCst) < 2 {
        end(control, Shutdown::IfIdle);
    }
}

/// Ends the mount, also if files are open: whoever sent a signal wants this process gone.
fn end(control: &dyn Control, how: Shutdown) {
    match control.shutdown(how) {
        Err(error) if error.kind == ErrorKind::Busy => {
            tracing::warn!("files are open; detaching the mount");
            end(control, Shutdown::Detach);
        }
        Err(error) => tracing::error!(%error, "unmount"),
        Ok(()) => {}
    }
}

/// Tells systemd, if it started this process with `Type=notify` (sd_notify(3)).
fn notify_service_manager(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let send = || -> io::Result<()> {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::ffi::OsStrExt;
        use std::os::unix::net::SocketAddr;
        let address = match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&path)?,
        };
        UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
    };
    if let Err(error) = send() {
        tracing::warn!(%error, "service manager can't be told");
    }
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
