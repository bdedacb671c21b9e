//! What the texts of the settings mean.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use forebay_core::cluster::redundancy::Redundancy;
use forebay_core::streams::profile::BUILT_IN;

use super::settings::{Setting, Settings, Value};
use super::sources::nearest;
use crate::error::Error;
use crate::units::{parse_bytes, parse_duration, parse_percent};

/// An amount of space: absolute, or a part of something larger.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SpaceSize {
    /// This many bytes.
    Bytes(u64),
    /// This many hundredths: of the file system for a tier, of the tier for its reserve.
    Percent(f64),
}

impl Default for SpaceSize {
    fn default() -> Self {
        SpaceSize::Bytes(0)
    }
}

impl SpaceSize {
    /// Parses `4G` or `80%`.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.trim_end().ends_with('%') {
            parse_percent(text).map(SpaceSize::Percent)
        } else {
            parse_bytes(text).map(SpaceSize::Bytes)
        }
    }

    /// The bytes that this is of `whole` bytes.
    pub fn of(self, whole: u64) -> u64 {
        match self {
            SpaceSize::Bytes(bytes) => bytes,
            SpaceSize::Percent(percent) => (whole as f64 * percent / 100.0) as u64,
        }
    }

    /// Whether it is no space at all.
    pub fn is_zero(self) -> bool {
        self.of(u64::MAX) == 0
    }
}

impl fmt::Display for SpaceSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpaceSize::Bytes(bytes) => f.write_str(&crate::units::format_bytes(*bytes)),
            SpaceSize::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// One tier: a directory and how much of it may be used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TierConfig {
    /// The directory; absolute after [`MountConfig::from_settings`].
    pub dir: PathBuf,
    /// How much of it may be used.
    pub size: SpaceSize,
}

impl TierConfig {
    /// Parses `DIR=SIZE`; the last `=` counts, so that directories may contain one.
    pub fn parse(text: &OsStr) -> Result<Self, String> {
        let bytes = text.as_bytes();
        let shown = text.to_string_lossy();
        let explain =
            || format!("'{shown}' is not DIR=SIZE; write for example /dev/shm/forebay=4G");
        let at = bytes.iter().rposition(|byte| *byte == b'=').ok_or_else(explain)?;
        let size = std::str::from_utf8(&bytes[at + 1..]).map_err(|_| explain())?;
        if at == 0 || size.is_empty() {
            return Err(explain());
        }
        let size = SpaceSize::parse(size).map_err(|error| format!("size of {shown}: {error}"))?;
        Ok(Self { dir: OsStr::from_bytes(&bytes[..at]).into(), size })
    }
}

/// When dirty files are written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writeback {
    /// This long after the last close.
    After(Duration),
    /// Right at the last close, in the background.
    Close,
    /// Before close and fsync return.
    Through,
    /// Only to make room, on sync and at umount.
    Evict,
}

/// What acknowledged data survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The loss of the daemon, and of power where the tier keeps its data without it.
    Local,
    /// The loss of everything local.
    Backing,
}

/// Which opens the kernel may serve itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passthrough {
    /// None.
    Off,
    /// Those for reading, and those for writing where room for the growth is set aside.
    Read,
    /// All; a tier may be overfilled by it.
    ReadWrite,
}

const PASSTHROUGHS: &[(&str, Passthrough)] = &[
    ("readwrite", Passthrough::ReadWrite),
    ("read", Passthrough::Read),
    ("off", Passthrough::Off),
];

const COHERENCES: &[(&str, Coherence)] =
    &[("open", Coherence::Open), ("exclusive", Coherence::Exclusive)];

/// How requests come from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// By io_uring where that is possible.
    Auto,
    /// By reading `/dev/fuse`.
    Classic,
    /// By io_uring, or not at all.
    Uring,
}

const TRANSPORTS: &[(&str, Transport)] =
    &[("auto", Transport::Auto), ("classic", Transport::Classic), ("uring", Transport::Uring)];

/// Who else changes the backing store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coherence {
    /// Others may; look at each open.
    Open,
    /// Nobody; never look.
    Exclusive,
}

/// The form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines: one JSON object a line.
    Json,
}

/// How files are streamed.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamSettings {
    /// The device by which streams are admitted.
    pub profile: StreamDevice,
    /// Bytes of memory for what is read ahead.
    pub memory: u64,
    /// What may be kept of beginnings, of the fastest tier.
    pub beginnings: SpaceSize,
    /// What may be kept of popular files as a whole, of the fastest tier.
    pub titles: SpaceSize,
    /// The device that is emulated.
    pub emulate: Option<StreamDevice>,
}

/// How a device that streams are read from is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamDevice {
    /// It is one of those that the program knows.
    BuiltIn(String),
    /// By a file of `forebay stream profile`.
    File(PathBuf),
    /// It is measured.
    Measure,
}

impl StreamDevice {
    /// What the text of a setting says; nothing if it is empty. A file is as it was written.
    pub fn parse(text: &OsStr) -> Option<Self> {
        match text.to_str() {
            Some("") => None,
            Some("measure") => Some(Self::Measure),
            Some(name) if BUILT_IN.contains(&name) => Some(Self::BuiltIn(name.into())),
            _ => Some(Self::File(text.into())),
        }
    }
}

/// An artificial limit on the backing store, for tests and demonstrations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle {
    /// Bytes in a second, reads and writes each.
    pub bytes_per_second: u64,
    /// Operations in a second; nothing for no limit.
    pub iops: Option<u64>,
}

/// The cluster that a mount joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSettings {
    /// Its metadata servers, or the file that names them.
    pub address: String,
    /// Where to listen for the other nodes, with the transport in front; nothing for not at all.
    pub listen: Option<String>,
    /// The file with the secret of the cluster; nothing for no TLS.
    pub secret: Option<PathBuf>,
    /// The file with another secret that is believed, too.
    pub other_secret: Option<PathBuf>,
    /// Replicas of a metadata server that must have a change before it counts; nothing for what the
    /// cluster says.
    pub replicas: Option<u32>,
    /// Whether leases of directories are taken.
    pub leases: bool,
    /// What other nodes keep of what is written here; nothing for what the cluster says.
    pub redundancy: Option<Redundancy>,
    /// Bytes a second to make lost copies again.
    pub repair_rate: u64,
    /// Whether tasks of other nodes may go on here.
    pub host_tasks: bool,
    /// How often it is looked whether a task is to move by itself; nothing for never.
    pub auto_migrate: Option<Duration>,
}

/// Everything that a mount is told. Paths are absolute.
#[derive(Clone, Debug, PartialEq)]
pub struct MountConfig {
    /// The backing store.
    pub backing: PathBuf,
    /// Where to mount.
    pub mountpoint: PathBuf,
    /// The tiers, fastest first; at least one.
    pub tiers: Vec<TierConfig>,
    /// The cluster to join.
    pub cluster: Option<ClusterSettings>,
    /// Name of the replacement policy; one of those that the engine offers.
    pub policy: String,
    /// When dirty files are written back.
    pub writeback: Writeback,
    /// What acknowledged data survives.
    pub durability: Durability,
    /// The most that the kernel may serve itself; the engine falls back to what is possible.
    pub passthrough: Passthrough,
    /// Who else changes the backing store.
    pub coherence: Coherence,
    /// How long attributes may be cached.
    pub attr_timeout: Duration,
    /// How long names may be cached.
    pub entry_timeout: Duration,
    /// Percentage of a tier at which eviction starts.
    pub high_mark: f64,
    /// Percentage of a tier at which it stops.
    pub low_mark: f64,
    /// Bytes of an extent; a power of two.
    pub extent_size: u64,
    /// Space of each tier that files leave free.
    pub reserve: SpaceSize,
    /// What may be fetched ahead, of the fastest tier.
    pub prefetch: SpaceSize,
    /// How files are streamed; nothing for no streams.
    pub streams: Option<StreamSettings>,
    /// The longest wait for the backing store.
    pub backing_timeout: Duration,
    /// The longest drain at umount.
    pub drain_timeout: Duration,
    /// Threads that read requests; at least one.
    pub threads: usize,
    /// Bytes that programs may have in common; 0 for no socket for them.
    pub client_memory: u64,
    /// How requests come from the kernel.
    pub transport: Transport,
    /// Whether changes through the mount are refused.
    pub read_only: bool,
    /// Whether nothing changes in the backing store while it is mounted; it is read-only and exclusive then,
    /// without passthrough, and leaves access times as they are.
    pub dataset: bool,
    /// Whether the backing store must not be on the root file system.
    pub require_mounted: bool,
    /// Directories above tiers are made, and tiers anew that are not in their places any more.
    pub create_tier: bool,
    /// Whether reads leave access times as they are.
    pub noatime: bool,
    /// Whether other users may use the mount; nothing: if it is root's.
    pub allow_other: Option<bool>,
    /// Whether set-id bits count; nothing: as in the backing store.
    pub suid: Option<bool>,
    /// Whether device nodes count; nothing: as in the backing store.
    pub dev: Option<bool>,
    /// Whether programs may be executed; nothing: as in the backing store.
    pub exec: Option<bool>,
    /// Where index, backlog and log live.
    pub state_dir: PathBuf,
    /// Whether `state_dir` was named, and is not merely a place in the first tier.
    pub state_dir_given: bool,
    /// Address of the HTTP endpoint of metrics.
    pub metrics: Option<SocketAddr>,
    /// What is logged.
    pub log_level: String,
    /// The form of log lines.
    pub log_format: LogFormat,
    /// Where the log goes; nothing for standard error.
    pub log_file: Option<PathBuf>,
    /// Where the policy's events are recorded.
    pub event_log: Option<PathBuf>,
    /// Whether to stay in the foreground.
    pub foreground: bool,
    /// Whether nobody restarts the daemon when it dies.
    pub no_supervisor: bool,
    /// Restarts within a minute before the supervisor gives up.
    pub restart_limit: usize,
    /// An artificial limit on the backing store.
    pub throttle: Option<Throttle>,
}

fn restart_limit(text: &str) -> Result<usize, String> {
    let limit = text.parse().ok().filter(|limit| *limit <= 10_000);
    limit.ok_or_else(|| "needs a number from 0 to 10000".into())
}

/// The words of a switch.
const SWITCH: &[(&str, bool)] =
    &[("true", true), ("false", false), ("1", true), ("0", false), ("yes", true), ("no", false)];

/// Reads one setting after the other, with the origin in each error.
struct Reader<'a> {
    settings: &'a Settings,
    cwd: PathBuf,
}

impl<'a> Reader<'a> {
    fn value(&self, key: &str) -> Result<&'a Value, Error> {
        self.settings.get(key).ok_or_else(|| {
            Error::Usage(format!(
                "{} is missing; see `forebay mount --help`",
                match key {
                    "backing" => "the backing store (BACKING)",
                    "mountpoint" => "the mount point (MOUNTPOINT)",
                    "tier" => "--tier DIR=SIZE, the fast local directory to keep files in,",
                    other => other,
                }
            ))
        })
    }

    fn raw(&self, key: &str) -> Result<&'a OsStr, Error> {
        Ok(self.value(key)?.texts.first().map_or(OsStr::new(""), OsString::as_os_str))
    }

    fn parse<T>(&self, key: &str, f: impl FnOnce(&str) -> Result<T, String>) -> Result<T, Error> {
        let raw = self.raw(key)?;
        let result = raw.to_str().ok_or_else(|| "is not UTF-8".to_owned()).and_then(f);
        result.map_err(|message| self.wrong(key, message))
    }

    fn wrong(&self, key: &str, message: impl Into<String>) -> Error {
        let origin = self.settings.get(key).map(|value| value.origin.describe(key));
        Error::Setting { origin: origin.unwrap_or_else(|| key.into()), message: message.into() }
    }

    fn switch(&self, key: &str) -> Result<bool, Error> {
        self.word(key, SWITCH)
    }

    /// A switch that may be left to the machine.
    fn auto_switch(&self, key: &str) -> Result<Option<bool>, Error> {
        self.parse(key, |text| match text {
            "auto" => Ok(None),
            _ => choose(text, SWITCH).map(Some).map_err(|error| format!("{error}, or auto")),
        })
    }

    fn word<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Result<T, Error> {
        self.parse(key, |text| choose(text, words))
    }

    fn cluster(&self) -> Result<Option<ClusterSettings>, Error> {
        let address = self.parse("cluster", parse_cluster)?;
        let transport = self.word("cluster-transport", WAYS)?;
        let mut listen = self.parse("cluster-listen", |text| parse_listen(text, transport))?;
        let mut secret = self.path("cluster-secret")?;
        let other_secret = self.path("cluster-secret-also")?;
        let tls = self.word("cluster-tls", &[("on", true), ("off", false)])?;
        let replicas = self.parse("cluster-replicas", |text| match text.parse() {
            _ if text.is_empty() => Ok(None),
            Ok(replicas @ 0..=5) => Ok(Some(replicas)),
            _ => Err(format!("'{text}' is not a number of replicas from 0 to 5")),
        })?;
        let beside = address.as_deref().and_then(|address| self.secret_beside(address));
        if secret.is_none() && tls && self.raw("cluster-listen")? != NOWHERE {
            secret = beside;
            if listen.is_none() && secret.is_some() && ["tcp", "quic"].contains(&transport) {
                listen = Some(format!("{transport}://{ANYWHERE}"));
            }
        }
        let leases = self.word("cluster-leases", &[("on", true), ("off", false)])?;
        let redundancy = self.parse("redundancy", |text| match text {
            "" => Ok(None),
            _ => text.parse::<Redundancy>().map(Some).map_err(|error| error.to_string()),
        })?;
        if redundancy.is_some_and(|level| level != Redundancy::None) && listen.is_none() {
            return Err(self.wrong("redundancy", "needs --cluster-listen"));
        }
        let repair_rate = self.parse("repair-rate", |text| match parse_bytes(text)? {
            0 => Err(format!("'{text}' would repair nothing")),
            rate => Ok(rate),
        })?;
        let strangers = listen.is_none() || secret.is_none() || !tls;
        let (host_tasks, auto_migrate) = self.moving_tasks(strangers)?;
        let wrong = |why: &str| Err(self.wrong("cluster-listen", why));
        match (address, &listen) {
            (None, Some(_)) => wrong("needs --cluster"),
            (Some(_), Some(_)) if tls && secret.is_none() => {
                wrong("needs --cluster-secret FILE, or --cluster-tls off in a closed network")
            }
            (_, Some(at)) if tls && (at.starts_with("udp://") || at.starts_with("mpi://")) => {
                wrong("has no encryption: use quic, or --cluster-tls off in a closed network")
            }
            (_, Some(at)) if !tls && at.starts_with("quic://") => {
                wrong("is always encrypted: needs --cluster-secret FILE, not --cluster-tls off")
            }
            (_, Some(at)) if at.starts_with("mpi://") && !self.switch("foreground")? => {
                wrong("needs --foreground for MPI, as mpirun looks after the process")
            }
            (address, _) => {
                let secret = secret.filter(|_| tls);
                if other_secret.is_some() && secret.is_none() {
                    return Err(self.wrong("cluster-secret-also", "needs --cluster-secret"));
                }
                Ok(address.map(|address| ClusterSettings {
                    address,
                    listen,
                    secret,
                    other_secret,
                    replicas,
                    leases,
                    redundancy,
                    repair_rate,
                    host_tasks,
                    auto_migrate,
                }))
            }
        }
    }

    /// Whether tasks of others are taken, and how often it is looked whether one is to move.
    fn moving_tasks(&self, strangers: bool) -> Result<(bool, Option<Duration>), Error> {
        let host_tasks = self.word("host-tasks", &[("on", true), ("off", false)])?;
        let auto_migrate = self.parse("auto-migrate", parse_auto_migrate)?;
        for (key, is_set) in [("host-tasks", host_tasks), ("auto-migrate", auto_migrate.is_some())]
        {
            if is_set && strangers {
                return Err(self.wrong(key, NEEDS_SECRET));
            }
        }
        Ok((host_tasks, auto_migrate))
    }

    /// The secret that `cluster init` has made beside the file with the address, if it has.
    fn secret_beside(&self, address: &str) -> Option<PathBuf> {
        let path = self.cwd.join(address.strip_prefix("file:")?);
        Some(path.with_file_name(SECRET_FILE)).filter(|path| path.is_file())
    }

    fn path(&self, key: &str) -> Result<Option<PathBuf>, Error> {
        let raw = self.raw(key)?;
        Ok((!raw.is_empty()).then(|| self.cwd.join(raw)))
    }

    /// Whether nothing changes; with what that goes together.
    fn dataset(&self) -> Result<bool, Error> {
        if !self.switch("dataset")? {
            return Ok(false);
        }
        let others = [
            ("passthrough", "off"),
            ("coherence", "exclusive"),
            ("read-only", "true"),
            ("cluster", ""),
            ("stream-profile", ""),
        ];
        for (key, right) in others {
            let usual = Setting::find(key).and_then(|setting| setting.default);
            let fits =
                |text: &OsString| text == right || Some(text.as_os_str()) == usual.map(OsStr::new);
            if self.settings.get(key).is_some_and(|value| !value.texts.iter().all(fits)) {
                return Err(self.wrong(key, "can't be with --dataset; leave one of them out"));
            }
        }
        Ok(true)
    }

    fn streams(&self) -> Result<Option<StreamSettings>, Error> {
        let memory = self.parse("stream-memory", parse_bytes)?;
        let beginnings = self.parse("stream-beginnings", SpaceSize::parse)?;
        let titles = self.parse("stream-titles", SpaceSize::parse)?;
        let emulate = self.stream_device("stream-emulate", false)?;
        let profile = self.stream_device("stream-profile", true)?;
        let settings = |profile| StreamSettings { profile, memory, beginnings, titles, emulate };
        Ok(profile.map(settings))
    }

    fn stream_device(&self, key: &str, measured: bool) -> Result<Option<StreamDevice>, Error> {
        let raw = self.raw(key)?;
        Ok(match StreamDevice::parse(raw) {
            Some(StreamDevice::File(path)) => Some(StreamDevice::File(self.cwd.join(path))),
            Some(StreamDevice::Measure) if !measured => {
                Some(StreamDevice::File(self.cwd.join(raw)))
            }
            known => known,
        })
    }

    fn required_path(&self, key: &str) -> Result<PathBuf, Error> {
        self.path(key)?.ok_or_else(|| self.wrong(key, "must not be empty"))
    }

    fn duration(&self, key: &str) -> Result<Duration, Error> {
        self.parse(key, parse_duration)
    }

    fn limit(&self, key: &str) -> Result<Duration, Error> {
        self.parse(key, |text| match parse_duration(text)? {
            Duration::ZERO => Err("must be longer than 0".into()),
            duration => Ok(duration),
        })
    }

    fn tiers(&self) -> Result<Vec<TierConfig>, Error> {
        let tiers = self.value("tier")?.texts.iter().map(|text| {
            let tier = TierConfig::parse(text).map_err(|message| self.wrong("tier", message))?;
            Ok(TierConfig { dir: self.cwd.join(&tier.dir), size: tier.size })
        });
        let tiers = tiers.collect::<Result<Vec<_>, Error>>()?;
        if tiers.is_empty() {
            return Err(self.wrong("tier", "at least one tier is needed"));
        }
        Ok(tiers)
    }

    fn threads(&self) -> Result<usize, Error> {
        if self.switch("single-thread")? {
            return Ok(1);
        }
        self.parse("threads", |text| match text.parse::<usize>() {
            Ok(0) => Ok(std::thread::available_parallelism().map_or(1, usize::from)),
            Ok(threads @ 1..=256) => Ok(threads),
            _ => Err(format!("'{text}' is not a number of threads from 0 (one per CPU) to 256")),
        })
    }
}

/// The value of a word, or an error with all words and the nearest.
fn choose<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, String> {
    if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
        return Ok(*value);
    }
    Err(unknown_word(text, words.iter().map(|(word, _)| *word)))
}

/// The message for a word that is none of the known ones.
fn unknown_word<'a>(text: &str, words: impl Iterator<Item = &'a str> + Clone) -> String {
    let all = words.clone().collect::<Vec<_>>().join(", ");
    match nearest(text, words) {
        Some(near) => format!("'{text}' is none of {all}; did you mean '{near}'?"),
        None => format!("'{text}' is none of {all}"),
    }
}

fn parse_writeback(text: &str) -> Result<Writeback, String> {
    let words =
        [("close", Writeback::Close), ("through", Writeback::Through), ("evict", Writeback::Evict)];
    if let Ok(writeback) = choose(text, &words) {
        return Ok(writeback);
    }
    parse_duration(text).map(Writeback::After).map_err(|_| {
        format!("'{text}' is neither a duration such as 5s nor one of close, through, evict")
    })
}

fn parse_durability(text: &str) -> Result<Durability, String> {
    if text.starts_with("replicas") {
        return Err(
            "copies on other nodes need a cluster; one node offers local and backing".into()
        );
    }
    choose(text, &[("local", Durability::Local), ("backing", Durability::Backing)])
}

fn parse_extent_size(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    if bytes.is_power_of_two() && (64 << 10..=64 << 20).contains(&bytes) {
        Ok(bytes)
    } else {
        Err(format!("'{text}' is not a power of two from 64KiB to 64MiB"))
    }
}

fn parse_log_level(text: &str) -> Result<String, String> {
    let parsed = tracing_subscriber::EnvFilter::builder().parse(text);
    parsed.map(|_| text.to_owned()).map_err(|error| format!("'{text}': {error}"))
}

fn parse_address(text: &str) -> Result<Option<SocketAddr>, String> {
    let wrong = |_| format!("'{text}' is not ADDRESS:PORT, such as 127.0.0.1:9464");
    (!text.is_empty()).then(|| text.parse().map_err(wrong)).transpose()
}

fn parse_cluster(text: &str) -> Result<Option<String>, String> {
    (!text.is_empty()).then(|| cluster_address(text)).transpose()
}

/// The address of a cluster's metadata servers, as `--cluster` takes it.
///
/// # Errors
/// Says what an address looks like.
pub fn cluster_address(text: &str) -> Result<String, String> {
    let known = ["redis://", "rediss://", "file:"];
    match known.iter().any(|scheme| text.starts_with(scheme)) {
        true => Ok(text.to_owned()),
        // Not shown again: there may be a password in it.
        false => Err("is no address; write redis://HOST:PORT/NAME or file:PATH".into()),
    }
}

/// What `cluster init` calls the secret that it makes, beside the address.
pub const SECRET_FILE: &str = "secret";
/// Where a node listens whose secret lies beside the address, if it is not told.
const ANYWHERE: &str = "0.0.0.0:0";
/// In place of an address to listen at.
const NOWHERE: &str = "none";

/// Ways to other nodes.
const WAYS: &[(&str, &str)] =
    &[("tcp", "tcp"), ("quic", "quic"), ("udp", "udp"), ("udt", "udt"), ("mpi", "mpi")];

const NEEDS_SECRET: &str =
    "needs --cluster-listen and --cluster-secret: by them nodes know each other";

/// Between two looks whether a task is to move.
const SCAN: Duration = Duration::from_secs(30);

fn parse_auto_migrate(text: &str) -> Result<Option<Duration>, String> {
    match text {
        "off" => Ok(None),
        "on" => Ok(Some(SCAN)),
        _ => match parse_duration(text) {
            Ok(time) if time >= Duration::from_secs(1) => Ok(Some(time)),
            Ok(_) => Err(format!("'{text}' is shorter than a second")),
            Err(_) => Err(format!("'{text}' is neither on nor off, nor a time")),
        },
    }
}

fn parse_listen(text: &str, transport: &str) -> Result<Option<String>, String> {
    if text.is_empty() || text == NOWHERE {
        return Ok(None);
    }
    let address = match text.starts_with("unix:") || text.contains("://") {
        true => text.to_owned(),
        false => format!("{transport}://{text}"),
    };
    let port = |at: &str| at.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let known = match address.split_once("://") {
        Some((scheme, rest)) => WAYS.iter().any(|(name, _)| *name == scheme) && port(rest),
        None => address.starts_with("unix:/"),
    };
    match known {
        true => Ok(Some(address)),
        false => Err("is no address; write HOST:PORT or unix:/PATH".into()),
    }
}

fn parse_throttle(text: &str) -> Result<Option<Throttle>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let (rate, iops) = text.split_once('/').map_or((text, None), |(rate, iops)| (rate, Some(iops)));
    let bytes_per_second = parse_bytes(rate)?;
    let iops = iops
        .map(|iops| iops.parse::<u64>().map_err(|_| format!("'{iops}' is not a number of IOPS")))
        .transpose()?;
    if bytes_per_second == 0 || iops == Some(0) {
        return Err("a rate must be more than 0".into());
    }
    Ok(Some(Throttle { bytes_per_second, iops }))
}

impl MountConfig {
    /// Gives the settings their meaning. Relative paths start at the current directory; nothing
    /// is touched and no directory is looked at ([`super::validate`] does that).
    pub fn from_settings(settings: &Settings, policies: &[&str]) -> Result<Self, Error> {
        let cwd = std::env::current_dir().map_err(Error::io("current directory"))?;
        let reader = Reader { settings, cwd };
        let tiers = reader.tiers()?;
        let given = reader.path("state-dir")?;
        let state_dir_given = given.is_some();
        let state_dir = given.unwrap_or_else(|| tiers[0].dir.join("state"));
        let foreground = reader.switch("foreground")?;
        let usual_log = (!foreground).then(|| state_dir.join("forebay.log"));
        let log_file = reader.path("log-file")?.or(usual_log);
        let config = Self {
            backing: reader.required_path("backing")?,
            mountpoint: reader.required_path("mountpoint")?,
            cluster: reader.cluster()?,
            policy: reader.parse("policy", |text| {
                let known = policies.contains(&text);
                known
                    .then(|| text.to_owned())
                    .ok_or_else(|| unknown_word(text, policies.iter().copied()))
            })?,
            writeback: reader.parse("writeback", parse_writeback)?,
            durability: reader.parse("durability", parse_durability)?,
            passthrough: reader.word("passthrough", PASSTHROUGHS)?,
            coherence: reader.word("coherence", COHERENCES)?,
            attr_timeout: reader.duration("attr-timeout")?,
            entry_timeout: reader.duration("entry-timeout")?,
            high_mark: reader.parse("high-mark", parse_percent)?,
            low_mark: reader.parse("low-mark", parse_percent)?,
            extent_size: reader.parse("extent-size", parse_extent_size)?,
            reserve: reader.parse("reserve", SpaceSize::parse)?,
            prefetch: reader.parse("prefetch", SpaceSize::parse)?,
            streams: reader.streams()?,
            backing_timeout: reader.limit("backing-timeout")?,
            drain_timeout: reader.limit("drain-timeout")?,
            threads: reader.threads()?,
            client_memory: reader.parse("client-memory", parse_bytes)?,
            transport: reader.word("transport", TRANSPORTS)?,
            read_only: reader.switch("read-only")?,
            dataset: reader.dataset()?,
            require_mounted: reader.switch("require-mounted")?,
            create_tier: reader.switch("create-tier")?,
            noatime: reader.switch("noatime")?,
            allow_other: reader.auto_switch("allow-other")?,
            suid: reader.auto_switch("suid")?,
            dev: reader.auto_switch("dev")?,
            exec: reader.auto_switch("exec")?,
            metrics: reader.parse("metrics", parse_address)?,
            log_level: reader.parse("log-level", parse_log_level)?,
            log_format: reader
                .word("log-format", &[("text", LogFormat::Text), ("json", LogFormat::Json)])?,
            throttle: reader.parse("throttle", parse_throttle)?,
            tiers,
            state_dir,
            state_dir_given,
            log_file,
            event_log: reader.path("event-log")?,
            foreground,
            no_supervisor: reader.switch("no-supervisor")?,
            restart_limit: reader.parse("restart-limit", restart_limit)?,
        };
        if config.low_mark >= config.high_mark {
            return Err(reader.wrong(
                "low-mark",
                format!("must be below the high mark ({}%)", config.high_mark),
            ));
        }
        Ok(if config.dataset { config.of_dataset() } else { config })
    }

    /// With what goes together with a data set.
    fn of_dataset(self) -> Self {
        let (passthrough, coherence) = (Passthrough::Off, Coherence::Exclusive);
        Self { passthrough, coherence, read_only: true, noatime: true, ..self }
    }

    /// The name that the mount has in /proc/self/mountinfo: its backing store.
    pub fn source(&self) -> &OsStr {
        self.backing.as_os_str()
    }
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
