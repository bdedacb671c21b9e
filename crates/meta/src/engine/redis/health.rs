//! How the servers of a cluster are, asked one by one: also when some of them do not answer, or when
//! they can't be used.

use std::time::Duration;

use parking_lot::Mutex;
use redis::{Cmd, TlsCertificates, Value};

use super::link::{Dial, Link, LinkError, text_of};
use super::route::{self, LogState};
use super::topology::{self, ListedServer};
use super::url::{Address, Url};
use super::{EngineError, Redis};

/// How long one server may take to accept a connection, and to answer.
const LIMIT: Duration = Duration::from_secs(2);

/// What a server keeps on its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerLog {
    /// Nothing.
    Nothing,
    /// All but the last second or two.
    EverySecond,
    /// All that it has acknowledged.
    Always,
}

/// What was found out of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerReport {
    /// Its host and port.
    pub address: String,
    /// Its version, and what it is if not Redis.
    pub version: Option<String>,
    /// It is one of a cluster.
    pub in_cluster: bool,
    /// It is asked, and no replica.
    pub primary: bool,
    /// It has a part of the names.
    pub serves: bool,
    /// Replicas that follow it.
    pub replicas: u32,
    /// What it keeps on its disk.
    pub log: Option<ServerLog>,
    /// Why it can't be used, if it can't.
    pub trouble: Option<String>,
}

impl Redis {
    /// Whether every primary keeps what it acknowledges on its disk.
    ///
    /// # Errors
    /// `Refused`, and what to do, if one does not; if one does not answer.
    pub fn check_logs(&self) -> Result<(), EngineError> {
        let topology = self.cluster.topology();
        for primary in topology.primaries.iter().filter(|primary| topology.has_slots(primary)) {
            let log = self.cluster.log_state(primary)?;
            if !log.enabled {
                return Err(route::refused(
                    primary,
                    "it keeps no log on its disk, so that its end would lose all names: set \
                     `appendonly yes` there (`redis-cli CONFIG SET appendonly yes`, and in its \
                     configuration)"
                        .into(),
                ));
            }
            if log.failing {
                return Err(route::refused(
                    primary,
                    "it can't write its log: is its disk full?".into(),
                ));
            }
        }
        Ok(())
    }
}

/// Asks all servers of a cluster, of which any are named, how they are.
///
/// # Errors
/// If the address makes no sense.
pub fn look_at_servers(address: &str) -> Result<Vec<ServerReport>, EngineError> {
    let url = Url::parse(address)?;
    let seeds = url.seeds.clone();
    let tls = TlsCertificates { client_tls: None, root_cert: None };
    let is_tls = url.tls;
    let dial = Dial { url, tls, timeout: LIMIT, whom: Mutex::default() };
    let listed = seeds.iter().find_map(|seed| {
        let said = ask(&mut dial.connect(seed, false).ok()?, redis::cmd("CLUSTER").arg("NODES"));
        let servers = topology::listed_servers(&text_of(&said.ok()?)?, seed, is_tls);
        (!servers.is_empty()).then_some(servers)
    });
    let servers =
        listed.unwrap_or_else(|| seeds.iter().cloned().map(ListedServer::alone).collect());
    Ok(servers.into_iter().map(|server| look_at(&dial, server)).collect())
}

fn look_at(dial: &Dial, server: ListedServer) -> ServerReport {
    let mut report = ServerReport {
        address: server.address.to_string(),
        version: None,
        in_cluster: server.in_cluster,
        primary: server.primary,
        serves: server.serves,
        replicas: 0,
        log: None,
        trouble: None,
    };
    if let Err(why) = fill(&mut report, dial, &server.address) {
        report.trouble = Some(why);
    } else if server.failed {
        report.trouble = Some("the others take it for dead".into());
    }
    report
}

/// Fills in what a server says of itself.
fn fill(report: &mut ServerReport, dial: &Dial, address: &Address) -> Result<(), String> {
    let told = |error: LinkError| match error {
        LinkError::NotSent(why) | LinkError::Lost(why) | LinkError::Refused(why) => why,
    };
    let mut link = dial.connect(address, false).map_err(told)?;
    let (mut info, mut config) = (redis::cmd("INFO"), redis::cmd("CONFIG"));
    info.arg("everything");
    config.arg("GET").arg("appendfsync");
    let said = ask(&mut link, &info).map_err(told)?;
    let text = text_of(&said).unwrap_or_default();
    let field = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    report.version = match field("valkey_version") {
        Some(version) => Some(format!("Valkey {version}")),
        None => field("redis_version").map(|version| format!("Redis {version}")),
    };
    report.primary = field("role") != Some("slave");
    report.replicas = field("connected_slaves").and_then(|n| n.parse().ok()).unwrap_or(0);
    let config = ask(&mut link, &config).map_err(told)?;
    let log = LogState::parse(&[said.clone(), config]).ok_or("it tells nothing of its log")?;
    report.log = Some(match (log.enabled, log.synced_at_once) {
        (false, _) => ServerLog::Nothing,
        (true, true) => ServerLog::Always,
        (true, false) => ServerLog::EverySecond,
    });
    if field("master_link_status") == Some("down") {
        return Err("it does not follow its primary at present".into());
    }
    if log.failing { Err("it can't write its log: is its disk full?".into()) } else { Ok(()) }
}

fn ask(link: &mut Link, command: &Cmd) -> Result<Value, LinkError> {
    let failed = |error: redis::RedisError| LinkError::NotSent(error.to_string());
    let packed = command.get_packed_command();
    redis::ConnectionLike::req_packed_command(&mut link.connection, &packed).map_err(failed)
}
