//! `stream`: serve, open, profile, status.

mod open;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::streams::admission::Assurance;
use forebay_core::streams::profile::DeviceProfile;
use forebay_streams::device::{self, Device, Emulated, Model};
use forebay_streams::http::{ClientLimits, Limits, Origins, ProbeConfig, Server, Tokens};
use forebay_streams::measure::{self, measure};
use forebay_streams::{Service, ServiceConfig, Status, metrics};

use super::{print, print_as_it_is, print_json, progress::Meter, tell, warn};
use crate::cli::stream::{
    Assurance as AssuranceChoice, StreamCommand, StreamProfileArgs, StreamServeArgs,
    StreamStatusArgs,
};
use crate::control::{make_private_dir, runtime_dir};
use crate::error::{Error, Exit};
use crate::printable::one_line;
use crate::{logging, metrics_http, signals, units};

/// How long a device is measured if it has no profile.
const SHORT_MEASUREMENT: Duration = Duration::from_secs(5);
/// How long a server or whoever asks it is waited for.
const STATUS_LIMIT: Duration = Duration::from_secs(5);
/// Standard deviations above the mean that statistical admission makes room for.
const DEVIATIONS: f64 = 4.0;

/// Runs one of them.
pub fn run(command: &StreamCommand) -> Result<u8, Error> {
    match command {
        StreamCommand::Serve(args) => serve(args).map(|()| Exit::Ok.code()),
        StreamCommand::Open(args) => open::run(args),
        StreamCommand::Profile(args) => profile(args).map(|()| Exit::Ok.code()),
        StreamCommand::Status(args) => status(args),
    }
}

fn failed(error: forebay_streams::Error) -> Error {
    Error::Failed(error.to_string())
}

/// A profile by name, or from a file.
fn named_profile(name: &str) -> Result<DeviceProfile, Error> {
    if let Some(profile) = DeviceProfile::built_in(name) {
        return Ok(profile);
    }
    let path = PathBuf::from(name);
    let text = fs::read_to_string(&path).map_err(|source| Error::File { path, source })?;
    DeviceProfile::from_json(&text).map_err(|error| Error::Usage(format!("{name}: {error}")))
}

fn profile(args: &StreamProfileArgs) -> Result<(), Error> {
    let device = device::real();
    let mut line = Meter::new(args.quiet);
    let mut show = |progress: measure::Progress| {
        line.show_line(|| format!("{}: {:.0} %", progress.phase, progress.done * 100.0));
    };
    let measured = measure(device.as_ref(), &args.target, args.time, &mut show).map_err(failed)?;
    drop(line);
    for note in measured.notes.iter().filter(|_| !args.quiet) {
        tell(note);
    }
    let text = measured.profile.to_json().map_err(|error| Error::Failed(error.to_string()))?;
    match &args.output {
        Some(path) => fs::write(path, text).map_err(Error::io(path.display().to_string())),
        None => print_as_it_is(&text),
    }
}

/// The device to read from, and by what its streams are admitted.
fn device_of(args: &StreamServeArgs) -> Result<(Arc<dyn Device>, DeviceProfile), Error> {
    let given = args.profile.as_deref().map(named_profile).transpose()?;
    if let Some(name) = &args.emulate {
        let model = match Model::named(name) {
            Some(model) => model,
            None => Model::Profile(named_profile(name)?),
        };
        let profile = given.unwrap_or_else(|| model.profile(name));
        let disk = Emulated::start(model, 1).map_err(Error::io("starting the emulated disk"))?;
        return Ok((Arc::new(disk), profile));
    }
    let device = device::real();
    let profile = match given {
        Some(profile) => profile,
        None => {
            tracing::info!(
                seconds = SHORT_MEASUREMENT.as_secs(),
                "measuring the device; `forebay stream profile` and --profile do it once for good"
            );
            let measured = measure(device.as_ref(), &args.dir, SHORT_MEASUREMENT, &mut |_| ());
            measured
                .map_err(|error| {
                    Error::Usage(format!("{error}; or say --profile disk, ssd or object"))
                })?
                .profile
        }
    };
    Ok((device, profile))
}

fn serve(args: &StreamServeArgs) -> Result<(), Error> {
    signals::block()?;
    logging::start_with(&args.log_level, crate::config::LogFormat::Text)?;
    logging::abort_on_panic(|| false);
    raise_descriptors(args.connections);
    let limits = limits(args)?;
    let listener = TcpListener::bind(args.listen).map_err(|error| {
        Error::Usage(format!(
            "--listen {}: {error}; choose a free address of this machine",
            args.listen
        ))
    })?;
    let metrics_listener = args.metrics.map(metrics_http::listen).transpose()?;
    let (device, profile) = device_of(args)?;
    let config = ServiceConfig {
        library: args.dir.clone(),
        memory: args.memory,
        chunk: usize::try_from(args.chunk).unwrap_or(usize::MAX),
        assurance: match args.assurance {
            AssuranceChoice::Deterministic => Assurance::Deterministic,
            AssuranceChoice::Statistical => Assurance::Statistical(DEVIATIONS),
        },
        beginnings: args.beginnings,
        idle: forebay_streams::IDLE,
    };
    let service = Service::start(config, device, profile).map_err(failed)?;
    let server = Server::start(service.clone(), listener, limits).map_err(failed)?;
    let endpoint = metrics_listener
        .map(|listener| {
            let status = server.reporter();
            metrics_http::Endpoint::start(listener, move || metrics::render(&status()))
        })
        .transpose()
        .map_err(Error::io("starting the metrics thread"))?;
    let socket = StatusSocket::start(server.address(), server.reporter())?;
    tracing::info!(address = %server.address(), directory = %args.dir.display(), "serving");
    print(&format!("serving {} at http://{}/\n", args.dir.display(), server.address()))?;
    signals::wait().map_err(Error::io("waiting for signals"))?;
    drop((socket, endpoint, server));
    service.stop();
    Ok(())
}

/// What clients may have, and who may be one.
fn limits(args: &StreamServeArgs) -> Result<Limits, Error> {
    let or_none = |limit: u32| if limit == 0 { u32::MAX } else { limit };
    let client = ClientLimits {
        connections: or_none(args.client_connections),
        streams: or_none(args.client_streams),
        rate: args.client_rate.map(|rate| if rate == 0 { u64::MAX } else { rate }),
        proxies: args.proxy.clone(),
    };
    let tokens = args.token_file.as_deref().map(Tokens::read).transpose();
    let tokens = tokens.map_err(|why| Error::Usage(format!("--token-file: {why}")))?;
    if tokens.is_none() && !args.listen.ip().is_loopback() {
        warn("everybody who reaches this address can play; see --token-file");
    }
    let origins = Origins::new(&args.cors).map_err(|why| Error::Usage(format!("--cors: {why}")))?;
    let kept = match state_dir(args) {
        Ok(dir) => Some(dir.join("stream-rates")),
        Err(error) if args.state_dir.is_some() => return Err(error),
        Err(error) => {
            tracing::warn!(%error, "rates that are found out are not kept; see --state-dir");
            None
        }
    };
    Ok(Limits {
        connections: args.connections as usize,
        idle: args.idle,
        default_rate: args.rate,
        stall: args.stall,
        client,
        tokens,
        probe: ProbeConfig { program: None, kept },
        origins,
        index: args.index,
        burst: args.burst,
    })
}

/// A directory of this user's that stays.
fn state_dir(args: &StreamServeArgs) -> Result<PathBuf, Error> {
    let user = rustix::process::geteuid();
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let usual = || match variable("STATE_DIRECTORY") {
        // systemd names all of a unit's, the first is as good as any.
        Some(dirs) => std::env::split_paths(&dirs).next(),
        None if user.is_root() => Some("/var/lib/forebay".into()),
        None => variable("XDG_STATE_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".local/state")))
            .map(|dir| dir.join("forebay")),
    };
    let dir = args.state_dir.clone().or_else(usual);
    let dir = dir.ok_or_else(|| Error::Usage("neither --state-dir nor HOME is there".into()))?;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&dir)
        .map_err(Error::io(dir.display().to_string()))?;
    let found = fs::symlink_metadata(&dir).map_err(Error::io(dir.display().to_string()))?;
    if !found.is_dir() || found.uid() != user.as_raw() || found.mode() & 0o022 != 0 {
        let user = user.as_raw();
        return Err(Error::Usage(format!(
            "{}: must be a directory of user {user} that nobody else can write; see --state-dir",
            dir.display()
        )));
    }
    Ok(dir)
}

/// Each connection takes a descriptor, and each stream one more.
fn raise_descriptors(connections: u32) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let wanted = u64::from(connections) * 2 + 256;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= wanted) {
        return;
    }
    let raised = maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum });
    if raised < wanted {
        warn(&format!("only {raised} open files allowed: fewer connections (see ulimit -n)"));
    }
}

fn socket_path(dir: &Path, address: SocketAddr) -> PathBuf {
    let name: String = address
        .to_string()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    dir.join(format!("stream-{name}.sock"))
}

/// Gives the status to whoever connects, and nothing else.
struct StatusSocket {
    path: PathBuf,
}

impl StatusSocket {
    fn start(
        address: SocketAddr,
        report: impl Fn() -> Status + Send + 'static,
    ) -> Result<Self, Error> {
        let uid = rustix::process::geteuid().as_raw();
        let dir = runtime_dir(uid);
        make_private_dir(&dir, uid)?;
        let path = socket_path(&dir, address);
        // The port is ours, so whoever left a socket for it is gone.
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).map_err(Error::io(path.display().to_string()))?;
        let answer = move || {
            for stream in listener.incoming().flatten() {
                let _ = stream.set_write_timeout(Some(STATUS_LIMIT));
                let status = Answer { listen: address, status: report() };
                let text = serde_json::to_vec(&status).unwrap_or_default();
                let _ = (&stream).write_all(&text);
            }
        };
        std::thread::Builder::new()
            .name("stream-status".into())
            .spawn(answer)
            .map_err(Error::io("starting the status thread"))?;
        Ok(Self { path })
    }
}

impl Drop for StatusSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// What a server says of itself.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Answer {
    listen: SocketAddr,
    #[serde(flatten)]
    status: Status,
}

fn ask(path: &Path) -> Result<Answer, Error> {
    let at = || Error::io(path.display().to_string());
    let mut stream = UnixStream::connect(path).map_err(at())?;
    stream.set_read_timeout(Some(STATUS_LIMIT)).map_err(at())?;
    let mut text = String::new();
    stream.read_to_string(&mut text).map_err(at())?;
    serde_json::from_str(&text).map_err(|error| Error::Protocol(error.to_string()))
}

fn status(args: &StreamStatusArgs) -> Result<u8, Error> {
    let dir = runtime_dir(rustix::process::geteuid().as_raw());
    let mut answers = Vec::new();
    if let Some(address) = args.listen {
        let path = socket_path(&dir, address);
        if !path.exists() {
            super::tell(&format!("no stream server at {address}"));
            return Ok(Exit::NotMounted.code());
        }
        answers.push(ask(&path)?);
    } else {
        let names = fs::read_dir(&dir)
            .map(|entries| entries.flatten().collect())
            .unwrap_or_else(|_| Vec::new());
        let is_ours = |name: &str| name.starts_with("stream-") && name.ends_with(".sock");
        let ours = names.iter().filter(|entry| entry.file_name().to_str().is_some_and(is_ours));
        // One that was killed leaves its socket behind.
        answers.extend(ours.filter_map(|entry| ask(&entry.path()).ok()));
    }
    if args.json {
        print_json(&answers)?;
    } else if answers.is_empty() {
        print("no stream servers\n")?;
    } else {
        let texts: Vec<String> = answers.iter().map(text_of).collect();
        print(&texts.join("\n"))?;
    }
    Ok(Exit::Ok.code())
}

/// The status for people.
fn text_of(answer: &Answer) -> String {
    let Answer { listen, status } = answer;
    let bytes = units::format_bytes;
    let mut text = format!(
        "http://{listen}/  {}\n  device   {} ({}), {:.2} times its profile's time\n",
        status.library, status.device, status.profile, status.slowdown
    );
    text += &format!("  priority {}\n", status.priority);
    text += &format!(
        "  streams  {} guaranteed ({}/s), {} of them idle, {} best effort; {} sessions; cycle {:.2} s\n",
        status.guaranteed,
        bytes(status.guaranteed_rate),
        status.idle,
        status.best_effort,
        status.sessions,
        status.cycle_seconds
    );
    text += &format!(
        "  memory   {} of {} in use, {} at most\n",
        bytes(status.memory_used),
        bytes(status.memory_limit),
        bytes(status.memory_peak)
    );
    let refused: Vec<String> =
        status.refused.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    text += &format!(
        "  opened   {}, refused {}\n",
        status.opened,
        if refused.is_empty() { "none".into() } else { refused.join(", ") }
    );
    if !status.turned_away.is_empty() {
        let counts = status.turned_away.iter();
        let away: Vec<String> = counts.map(|(why, count)| format!("{count} {why}")).collect();
        text += &format!("  away     {}\n", away.join(", "));
    }
    let glitches: Vec<String> =
        status.glitches.iter().map(|(cause, count)| format!("{count} {cause}")).collect();
    text += &format!(
        "  glitches {}\n",
        if glitches.is_empty() { "none".into() } else { glitches.join(", ") }
    );
    for stream in &status.streams {
        text += &format!(
            "    {:>6}  {:<12} {:>10}/s  {:>5.1} %  glitches {}  {}\n",
            stream.id,
            stream.state,
            bytes(stream.rate),
            stream.done * 100.0,
            stream.glitches,
            one_line(&stream.path)
        );
    }
    text
}
