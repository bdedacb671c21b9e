//! Requests find the server that has their slot, whatever happens to the cluster meanwhile.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use redis::{Cmd, Value};

use super::link::{
    Dial, LinkError, Reply, Request, Server, TimeLimits, Whom, is_leased, text_of, version_of,
};
use super::topology::{self, Topology};
use super::url::Address;
use super::{RedisOptions, library};
use crate::engine::EngineError;

/// A view younger than this is not asked for again.
const FRESH: Duration = Duration::from_millis(20);
/// Redirections followed at once; after that every further one waits.
const HOPS: u32 = 3;

/// The servers of a cluster.
pub(super) struct Cluster {
    pub dial: Arc<Dial>,
    options: RedisOptions,
    topology: RwLock<Arc<Topology>>,
    servers: Mutex<HashMap<Address, Arc<Server>>>,
    /// When the view was refreshed last. Held while it is: all others wait and find it fresh.
    refreshed: Mutex<Instant>,
    /// Turns among those who are asked for their view, so that one that is cut off is left behind.
    turn: AtomicU64,
    requests: AtomicU64,
}

/// What to do after an attempt.
enum Next {
    Done(Reply),
    /// At once, to this server.
    Go(Address),
    /// At once, to this server, after `ASKING`.
    Ask(Address),
    /// After a pause, with a new view of the cluster.
    Pause(String),
    /// As `Pause`, and it may have been executed.
    PauseUnknown(String),
    Fail(EngineError),
}

impl Cluster {
    pub fn open(dial: Dial, options: RedisOptions) -> Result<Self, EngineError> {
        let first = dial.url.seeds[0].clone();
        let cluster = Cluster {
            dial: Arc::new(dial),
            options,
            topology: RwLock::new(Arc::new(Topology::single(first))),
            servers: Mutex::default(),
            refreshed: Mutex::new(Instant::now()),
            turn: AtomicU64::new(0),
            requests: AtomicU64::new(0),
        };
        let mut timeout = TimeLimits::until(Instant::now() + cluster.options.give_up);
        loop {
            let reason = match cluster.look(&mut cluster.refreshed.lock()) {
                Ok(()) if cluster.topology().is_complete() => break,
                Ok(()) => "not every slot has a primary".to_string(),
                Err(error @ EngineError::Refused { .. }) => return Err(error),
                Err(error) => error.to_string(),
            };
            if !timeout.pause() {
                return Err(EngineError::Unreachable { reason });
            }
        }
        let topology = cluster.topology();
        if topology.single {
            // From here on it stays a primary.
            *cluster.dial.whom.lock() = Whom::Single;
            cluster.be_primary(&topology.primaries[0])?;
        }
        for primary in &topology.primaries {
            cluster.load_library(&cluster.server(primary))?;
        }
        Ok(cluster)
    }

    /// Refuses a server without a cluster that is the replica of another one.
    fn be_primary(&self, address: &Address) -> Result<(), EngineError> {
        match self.dial.connect(address, false) {
            Err(LinkError::NotSent(reason)) if reason.contains("is a replica") => {
                Err(refused(address, "it is a replica: give the address of its primary".into()))
            }
            // What else may be is seen when it is asked for something.
            _ => {
                self.server(address).drop_idle();
                Ok(())
            }
        }
    }

    /// From now on a server without a cluster is believed only if it answers as it does now.
    pub fn identify(&self, slot: u16, command: &Cmd) -> Result<(), EngineError> {
        if self.topology().single {
            let answer = self.call(slot, None, &|_| command.clone())?;
            if !is_leased(&answer) {
                *self.dial.whom.lock() = Whom::Knows(command.get_packed_command(), answer);
            }
        }
        Ok(())
    }

    pub fn topology(&self) -> Arc<Topology> {
        self.topology.read().clone()
    }

    /// Requests sent so far, repetitions included.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    pub fn server(&self, address: &Address) -> Arc<Server> {
        let make = || {
            Arc::new(Server::new(
                address.clone(),
                self.dial.clone(),
                self.options.connections,
                self.options.replicas,
                self.options.confirm_within,
            ))
        };
        self.servers.lock().entry(address.clone()).or_insert_with(make).clone()
    }

    /// Sends a request to whoever has the slot, again and again until it succeeds or the time is
    /// up. `request` makes it anew for each attempt; it hears whether an earlier one may have been
    /// executed. `confirm`: a key of the slot under which nothing is, if replicas must confirm.
    pub fn call(
        &self,
        slot: u16,
        confirm: Option<&str>,
        request: &dyn Fn(bool) -> Cmd,
    ) -> Result<Value, EngineError> {
        let mut timeout = TimeLimits::until(Instant::now() + self.options.give_up);
        let (mut unknown, mut hops, mut ask) = (false, 0, None);
        loop {
            let asking = ask.is_some();
            let next = match ask.take().or_else(|| self.topology().owner(slot).cloned()) {
                Some(address) => {
                    self.requests.fetch_add(1, Ordering::Relaxed);
                    let mut request = Request::new(&request(unknown), confirm);
                    request.asking = asking;
                    let server = self.server(&address);
                    self.judge(&server, server.call(request), confirm.is_some())
                }
                None => Next::Pause(format!("slot {slot} has no primary")),
            };
            let reason = match next {
                Next::Done(reply) => return Ok(reply.value),
                Next::Fail(error) => return Err(error),
                Next::Go(to) | Next::Ask(to) if hops >= HOPS => format!("sent on to {to}, again"),
                Next::Go(to) => {
                    hops += 1;
                    self.refresh();
                    if self.topology().owner(slot) == Some(&to) {
                        continue;
                    }
                    format!("sent on to {to}")
                }
                Next::Ask(to) => {
                    hops += 1;
                    ask = Some(to);
                    continue;
                }
                Next::Pause(reason) => reason,
                Next::PauseUnknown(reason) => {
                    unknown = true;
                    reason
                }
            };
            hops = 0;
            if !timeout.pause() {
                return Err(match unknown {
                    true => EngineError::Unknown { reason },
                    false => EngineError::Unreachable { reason },
                });
            }
            self.refresh();
        }
    }

    fn judge(&self, server: &Server, reply: Result<Reply, LinkError>, confirm: bool) -> Next {
        let reply = match reply {
            Ok(reply) => reply,
            Err(LinkError::NotSent(reason)) => return Next::Pause(reason),
            Err(LinkError::Lost(reason)) => {
                server.drop_idle();
                return Next::PauseUnknown(reason);
            }
            Err(LinkError::Refused(reason)) => return Next::Fail(refused(&server.address, reason)),
        };
        let Value::ServerError(error) = &reply.value else {
            return match confirm && reply.replicas < self.options.replicas {
                true => Next::PauseUnknown(format!(
                    "{} of {} replicas of {} confirmed",
                    reply.replicas, self.options.replicas, server.address
                )),
                false => Next::Done(reply),
            };
        };
        let detail = error.details().unwrap_or_default();
        let said = format!("{}: {} {detail}", server.address, error.code());
        match error.code() {
            "MOVED" | "ASK" => match topology::redirection(detail, &server.address) {
                Some(to) if error.code() == "ASK" => Next::Ask(to),
                Some(to) => Next::Go(to),
                None => Next::Pause(said),
            },
            "TRYAGAIN" | "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | "READONLY" | "BUSY"
            | "NOREPLICAS" => Next::Pause(said),
            _ if detail.contains("unction not found") => match self.load_library(server) {
                Ok(()) => Next::Pause(said),
                Err(error) => Next::Fail(error),
            },
            _ => Next::Fail(refused(&server.address, format!("{} {detail}", error.code()))),
        }
    }

    /// Makes the server functions known to a primary, which tells its replicas. Others may do the
    /// same: the name of the library has its version, so whoever is first is right.
    fn load_library(&self, server: &Server) -> Result<(), EngineError> {
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg(library());
        match server.call(Request::new(&load, None)) {
            Ok(Reply { value: Value::ServerError(error), .. }) => {
                let detail = error.details().unwrap_or_default();
                let passing = ["LOADING", "READONLY", "MOVED", "CLUSTERDOWN", "BUSY", "MASTERDOWN"];
                if detail.contains("already exists") || passing.contains(&error.code()) {
                    return Ok(());
                }
                Err(refused(&server.address, format!("{} {detail}", error.code())))
            }
            Err(LinkError::Refused(reason)) => Err(refused(&server.address, reason)),
            // Whoever needs it there finds it missing, and comes here again.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Sees to it that the view is younger than the call, nearly.
    pub fn refresh(&self) {
        let mut refreshed = self.refreshed.lock();
        if refreshed.elapsed() >= FRESH
            && let Err(error) = self.look(&mut refreshed)
        {
            tracing::debug!("no view of the metadata cluster: {error}");
        }
    }

    /// Asks one server after the other for its view; the first that is not older than ours counts.
    fn look(&self, refreshed: &mut Instant) -> Result<(), EngineError> {
        let known = self.topology();
        let mut asked: Vec<Address> = known.primaries.clone();
        asked.extend(
            self.dial.url.seeds.iter().filter(|seed| !known.primaries.contains(seed)).cloned(),
        );
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) as usize;
        let first = turn % asked.len();
        asked.rotate_left(first);
        let mut failure = EngineError::Unreachable { reason: "no server has an address".into() };
        let begun = !matches!(*self.dial.whom.lock(), Whom::Anybody);
        for address in asked {
            match self.view_of(&address) {
                Ok((view, _)) if view.single && self.dial.url.seeds.len() > 1 && !begun => {
                    return Err(refused(
                        &address,
                        "it is no cluster, and the address names several servers, which would have \
                         different files: name one server, or make them a cluster"
                            .into(),
                    ));
                }
                Ok((view, ids))
                    if view.epoch >= known.epoch && (view.single == known.single || !begun) =>
                {
                    if !view.single {
                        *self.dial.whom.lock() = Whom::Cluster(ids);
                    }
                    *self.topology.write() = Arc::new(view);
                    *refreshed = Instant::now();
                    return Ok(());
                }
                Ok(_) => {}
                Err(error) => failure = error,
            }
        }
        *refreshed = Instant::now();
        Err(failure)
    }

    fn view_of(&self, address: &Address) -> Result<(Topology, BTreeSet<String>), EngineError> {
        let mut nodes = redis::cmd("CLUSTER");
        nodes.arg("NODES");
        let unreachable = |reason: String| EngineError::Unreachable { reason };
        match self.server(address).call(Request::new(&nodes, None)) {
            Ok(reply) => {
                let ids = topology::ids(&text_of(&reply.value).unwrap_or_default());
                Ok((view(&reply.value, address, self.dial.url.tls)?, ids))
            }
            Err(LinkError::Refused(reason)) => Err(refused(address, reason)),
            Err(LinkError::NotSent(reason) | LinkError::Lost(reason)) => Err(unreachable(reason)),
        }
    }

    /// How many replicas the primaries have.
    pub fn replicas(&self) -> Result<Replicas, EngineError> {
        let topology = self.topology();
        let mut info = redis::cmd("INFO");
        info.arg("replication");
        let mut of = Vec::new();
        for primary in topology.primaries.iter().filter(|primary| topology.has_slots(primary)) {
            // As it sees them itself: what servers tell each other may be of a moment ago.
            let said = self.ask_one(primary, &info)?;
            let connected = said.lines().find_map(|line| line.strip_prefix("connected_slaves:"));
            let many = connected.and_then(|many| many.trim().parse().ok()).unwrap_or(0);
            of.push((primary.clone(), many));
        }
        Ok(Replicas { of, fail_over: !topology.single })
    }

    fn ask_one(&self, address: &Address, command: &Cmd) -> Result<String, EngineError> {
        match self.server(address).call(Request::new(command, None)) {
            Ok(reply) => Ok(text_of(&reply.value).unwrap_or_default()),
            Err(LinkError::Refused(reason)) => Err(refused(address, reason)),
            Err(LinkError::NotSent(reason) | LinkError::Lost(reason)) => {
                Err(EngineError::Unreachable { reason })
            }
        }
    }

    /// Has a server do something that the login has to be allowed to do.
    pub fn may(&self, address: &Address, command: &Cmd) -> Result<(), EngineError> {
        match self.server(address).call(Request::new(command, None)) {
            Ok(Reply { value: Value::ServerError(error), .. }) if error.code() == "NOPERM" => {
                let detail = error.details().unwrap_or_default();
                Err(refused(address, format!("NOPERM {detail}")))
            }
            Err(LinkError::Refused(reason)) => Err(refused(address, reason)),
            // What else there may be is seen when it matters.
            _ => Ok(()),
        }
    }

    /// Has a server write a mark to its log and wait until that is on its disk; whether it is.
    pub fn has_logged(&self, address: &Address, mark: &Cmd) -> Result<bool, EngineError> {
        let mut wait = redis::cmd("WAITAOF");
        wait.arg(1).arg(0).arg(self.options.timeout.as_millis() as u64 / 2);
        match self.server(address).call(Request::several(&[mark, &wait])) {
            Ok(Reply { value: Value::Array(replies), .. }) => match replies.as_slice() {
                [Value::ServerError(error), _] | [_, Value::ServerError(error)] => {
                    let detail = error.details().unwrap_or_default();
                    match error.code() {
                        "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN" | "LOADING" => Ok(false),
                        code => Err(refused(address, format!("{code} {detail}"))),
                    }
                }
                [_, Value::Array(counts)] => Ok(matches!(counts.first(), Some(Value::Int(1..)))),
                _ => Err(refused(address, "WAITAOF makes no sense".into())),
            },
            Ok(_) => Err(refused(address, "WAITAOF makes no sense".into())),
            Err(LinkError::Refused(reason)) => Err(refused(address, reason)),
            Err(LinkError::NotSent(_) | LinkError::Lost(_)) => Ok(false),
        }
    }

    /// How a server's log stands.
    pub fn log_state(&self, address: &Address) -> Result<LogState, EngineError> {
        let (mut info, mut config) = (redis::cmd("INFO"), redis::cmd("CONFIG"));
        info.arg("everything");
        config.arg("GET").arg("appendfsync");
        let mut timeout = TimeLimits::until(Instant::now() + self.options.give_up);
        loop {
            let reason = match self.server(address).call(Request::several(&[&info, &config])) {
                Ok(Reply { value: Value::Array(replies), .. }) => match LogState::parse(&replies) {
                    Some(state) => return Ok(state),
                    None => return Err(refused(address, "INFO tells nothing of its log".into())),
                },
                Ok(_) => return Err(refused(address, "INFO makes no sense".into())),
                Err(LinkError::Refused(reason)) => return Err(refused(address, reason)),
                Err(LinkError::NotSent(reason) | LinkError::Lost(reason)) => reason,
            };
            if !timeout.pause() {
                return Err(EngineError::Unreachable { reason });
            }
        }
    }

    /// Sends commands that only read, each to the primary of its slot, in one go to each server, and
    /// gives the replies in order.
    pub fn call_each(&self, commands: &[(u16, Cmd)]) -> Result<Vec<Value>, EngineError> {
        let topology = self.topology();
        let mut replies = vec![None; commands.len()];
        for primary in &topology.primaries {
            let is_theirs = |at: &usize| topology.owner(commands[*at].0) == Some(primary);
            let theirs: Vec<usize> = (0..commands.len()).filter(is_theirs).collect();
            if theirs.len() < 2 {
                continue;
            }
            let several: Vec<&Cmd> = theirs.iter().map(|at| &commands[*at].1).collect();
            self.requests.fetch_add(1, Ordering::Relaxed);
            let answer = self.server(primary).call(Request::several(&several));
            let Ok(Reply { value: Value::Array(values), .. }) = answer else { continue };
            for (at, value) in theirs.into_iter().zip(values) {
                replies[at] = Some(value).filter(|value| !matches!(value, Value::ServerError(_)));
            }
        }
        let each = replies.into_iter().zip(commands).map(|(reply, (slot, command))| match reply {
            Some(value) => Ok(value),
            None => self.call(*slot, None, &|_| command.clone()),
        });
        each.collect()
    }
}

/// The primaries and how many replicas each has that follow it.
pub(super) struct Replicas {
    of: Vec<(Address, u32)>,
    /// They take over by themselves.
    fail_over: bool,
}

impl Replicas {
    /// Whether what `confirm` replicas have confirmed is kept when a server dies: else at which server
    /// not, why, and what to do.
    pub fn judge(&self, confirm: u32) -> Result<(), (Address, String)> {
        for (server, many) in &self.of {
            let many = *many;
            if confirm > many {
                return Err((
                    server.clone(),
                    format!(
                        "{many} replicas follow it, and --cluster-replicas {confirm} waits for \
                         {confirm}, so that no change would ever count: start what is missing, or \
                         give another number"
                    ),
                ));
            }
            if confirm == 0 && many > 0 && self.fail_over {
                return Err((
                    server.clone(),
                    format!(
                        "it has replicas, which take over when it dies, and may not have what was \
                         acknowledged before: mount with --cluster-replicas {many}"
                    ),
                ));
            }
        }
        Ok(())
    }
}

impl Replicas {
    /// Says so where one that has less may take over.
    pub fn warn_of_fewer(&self, confirm: u32) {
        for (server, many) in self.of.iter().filter(|(_, many)| confirm > 0 && *many > confirm) {
            tracing::warn!(
                %server,
                replicas = many,
                confirm,
                "one of the replicas may take over without what was acknowledged last, if those that \
                 have it are down or slow at that moment"
            );
        }
    }
}

/// How a server's append-only log stands.
pub(super) struct LogState {
    /// The version of the server, if it says so.
    pub version: Option<(u32, u32)>,
    pub enabled: bool,
    /// Synced before every answer.
    pub synced_at_once: bool,
    /// The last write failed.
    pub failing: bool,
    /// Bytes not written to it yet.
    pub unwritten: u64,
    /// Syncs under way.
    pub syncing: u64,
    /// The server's clock, in microseconds, made whole seconds.
    pub clock: u64,
}

impl LogState {
    pub fn parse(replies: &[Value]) -> Option<Self> {
        let [info, config] = replies else { return None };
        let text = match info {
            Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Value::VerbatimString { text, .. } => text.clone(),
            _ => return None,
        };
        let field = |name: &str| {
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
        };
        let number = |name| field(name).and_then(|value| value.parse::<u64>().ok());
        // A server that hides its configuration is taken for the usual one.
        let always = matches!(config, Value::Array(words)
            if words.get(1) == Some(&Value::BulkString(b"always".to_vec())));
        Some(LogState {
            version: version_of(&text),
            enabled: number("aof_enabled")? == 1,
            synced_at_once: always,
            failing: field("aof_last_write_status").is_some_and(|status| status != "ok"),
            unwritten: number("aof_buffer_length").unwrap_or(0),
            syncing: number("aof_pending_bio_fsync").unwrap_or(0),
            clock: number("server_time_usec")? / 1_000_000,
        })
    }
}

/// The answer to `CLUSTER NODES`.
pub(super) fn view(value: &Value, asked: &Address, tls: bool) -> Result<Topology, EngineError> {
    let unreachable = |reason: String| EngineError::Unreachable { reason };
    let text = match value {
        Value::ServerError(error) => {
            let detail = error.details().unwrap_or_default();
            return match error.code() {
                _ if detail.contains("cluster support disabled") => {
                    Ok(Topology::single(asked.clone()))
                }
                "NOAUTH" | "NOPERM" => Err(refused(asked, format!("{} {detail}", error.code()))),
                code => Err(unreachable(format!("{asked}: {code} {detail}"))),
            };
        }
        other => text_of(other).ok_or_else(|| unreachable(format!("{asked} answers nonsense")))?,
    };
    Topology::parse(&text, asked, tls)
        .ok_or_else(|| unreachable(format!("{asked}: its list of servers makes no sense")))
}

pub(super) fn refused(server: &Address, reason: String) -> EngineError {
    EngineError::Refused { server: server.to_string(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replicas(of: &[u32], fail_over: bool) -> Replicas {
        let address = |port| Address { host: "h".into(), port };
        let of = of.iter().zip(1..).map(|(many, port)| (address(port), *many));
        Replicas { of: of.collect(), fail_over }
    }

    #[test]
    fn replicas_when_they_take_over_then_so_many_confirm_as_there_are_at_most_and_one_at_least() {
        for (of, confirm, allowed) in [
            (&[1, 1, 1][..], 1, true),
            (&[2, 2, 2], 1, true),
            (&[2, 2, 2], 2, true),
            (&[2, 2, 2], 0, false),
            (&[1, 0, 1], 1, false),
            (&[1, 1, 1], 2, false),
            (&[0, 0, 0], 0, true),
        ] {
            assert_eq!(replicas(of, true).judge(confirm).is_ok(), allowed, "{of:?} {confirm}");
        }
        // Nobody takes over from a server that is no cluster.
        assert!(replicas(&[1], false).judge(0).is_ok());
        assert!(replicas(&[0], false).judge(1).is_err());
    }
}
