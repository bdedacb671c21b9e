//! Connections to one server, shared by many threads.
//!
//! Whoever finds a connection free sends its own request together with all that wait, reads the
//! replies and hands them out (flat combining: Hendler, Incze, Shavit and Tzafrir, SPAA 2010). So a
//! lone request costs no hand-over between threads, many are pipelined onto few connections without
//! a thread or a runtime for them, and one `WAIT` confirms all of a batch.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use redis::{
    Client, Cmd, Connection, ConnectionAddr, IntoConnectionInfo, RedisError, TlsCertificates, Value,
};

use super::topology;
use super::url::{Address, Url};

/// Requests sent in one go, at most.
const BATCH: usize = 128;

/// A change of nothing, which goes to the replicas and not to the log.
const MARK: &str =
    "redis.set_repl(redis.REPL_REPLICA) redis.call('SET',KEYS[1],'') redis.call('DEL',KEYS[1])";
/// A change of nothing.
const LOGGED_MARK: &str = "redis.call('SET',KEYS[1],'') redis.call('DEL',KEYS[1])";
/// From this version on (also of Valkey, which says so of itself) `WAIT` confirms what was changed by
/// its own connection, and nothing of what that has only seen.
const WAIT_FOR_OWN: (u32, u32) = (7, 2);

/// A connection.
pub(super) struct Link {
    pub connection: Connection,
    /// Something has to be changed before `WAIT` says anything of what was read.
    wants_mark: bool,
}

/// What a server says of itself.
struct About {
    version: Option<(u32, u32)>,
}

/// How to reach servers.
pub(super) struct Dial {
    pub url: Url,
    pub tls: TlsCertificates,
    /// The longest that a server may take to accept or to answer.
    pub timeout: Duration,
    /// Whom to believe.
    pub whom: Mutex<Whom>,
}

/// What servers must be, so that none is taken for one of ours that has come to its address.
#[derive(Debug, Clone, Default)]
pub(super) enum Whom {
    /// Not known yet.
    #[default]
    Anybody,
    /// One server that is no cluster, and a primary.
    Single,
    /// It answers this command so, too.
    Knows(Vec<u8>, Value),
    /// Those that know one of these.
    Cluster(BTreeSet<String>),
}

impl Dial {
    /// Whether a server is whom we mean. It may become it: that is no reason to give up.
    fn check(&self, connection: &mut Connection, to: &Address) -> Result<(), LinkError> {
        let whom = self.whom.lock().clone();
        let command = match &whom {
            Whom::Anybody => return Ok(()),
            Whom::Single | Whom::Knows(..) => redis::cmd("INFO").arg("replication").clone(),
            Whom::Cluster(_) => redis::cmd("CLUSTER").arg("NODES").clone(),
        };
        let failed = |error: RedisError| LinkError::NotSent(format!("{to}: {error}"));
        let mut ask = |packed: &[u8]| {
            connection.send_packed_command(packed).map_err(failed)?;
            connection.recv_response().map_err(failed)
        };
        let not_it = |why: &str| Err(LinkError::NotSent(format!("{to} {why}")));
        let said = ask(&command.get_packed_command())?;
        let text = text_of(&said).unwrap_or_default();
        match &whom {
            Whom::Anybody => Ok(()),
            Whom::Cluster(known) if topology::ids(&text).is_disjoint(known) => {
                not_it("is not a server of the cluster that was there when it was mounted")
            }
            Whom::Cluster(_) => Ok(()),
            _ if text.contains("role:slave") => not_it("is a replica: only primaries are asked"),
            Whom::Single => Ok(()),
            Whom::Knows(packed, answer) => match ask(packed)? {
                found if found == *answer || is_leased(&found) => Ok(()),
                Value::ServerError(error) if error.code() == "LOADING" => not_it("is loading"),
                _ => not_it(
                    "is another server than when it was mounted, or has lost what it had: give it its \
                     data back (its append-only log), or unmount and mount again",
                ),
            },
        }
    }

    /// A new connection, logged in; `resp3` for one that takes pushes.
    pub fn connect(&self, to: &Address, resp3: bool) -> Result<Link, LinkError> {
        let refused = |error: RedisError| LinkError::NotSent(format!("{to}: {error}"));
        let (host, port) = (to.host.clone(), to.port);
        let client = if self.url.tls {
            let tls = ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None };
            let info = tls.into_connection_info().map_err(refused)?;
            Client::build_with_tls(info, self.tls.clone())
        } else {
            Client::open(ConnectionAddr::Tcp(host, port))
        };
        let client = client.map_err(refused)?;
        let info = client.get_connection_info().clone();
        let settings = info.tcp_settings().clone().set_nodelay(true);
        // The library sends its greeting without a time limit, so it is left to us.
        let quiet = info.redis_settings().clone().set_skip_set_lib_name();
        let client = Client::open(info.set_tcp_settings(settings).set_redis_settings(quiet));
        let client = client.map_err(refused)?;
        let mut connection = client.get_connection_with_timeout(self.timeout).map_err(refused)?;
        connection.set_read_timeout(Some(self.timeout)).map_err(refused)?;
        connection.set_write_timeout(Some(self.timeout)).map_err(refused)?;
        self.greet(&mut connection, to, resp3)?;
        let about = ask_about(&mut connection, to)?;
        self.check(&mut connection, to)?;
        // One that does not say is taken for a newer one.
        let wants_mark = about.version.is_none_or(|version| version >= WAIT_FOR_OWN);
        Ok(Link { connection, wants_mark })
    }

    fn greet(
        &self,
        connection: &mut Connection,
        to: &Address,
        resp3: bool,
    ) -> Result<(), LinkError> {
        let Some(greeting) = self.greeting(resp3) else { return Ok(()) };
        let refused = |error: RedisError| LinkError::NotSent(format!("{to}: {error}"));
        connection.send_packed_command(&greeting.get_packed_command()).map_err(refused)?;
        match connection.recv_response().map_err(refused)? {
            Value::ServerError(error) => {
                let reason = format!("{} {}", error.code(), error.details().unwrap_or_default());
                match error.code() {
                    "LOADING" | "MASTERDOWN" => Err(LinkError::NotSent(format!("{to}: {reason}"))),
                    _ => Err(LinkError::Refused(reason)),
                }
            }
            _ => Ok(()),
        }
    }

    fn greeting(&self, resp3: bool) -> Option<Cmd> {
        let password = self.url.password.as_ref();
        if resp3 {
            let mut hello = redis::cmd("HELLO");
            hello.arg(3);
            if let Some(password) = password {
                hello.arg("AUTH").arg(self.url.user.as_deref().unwrap_or("default")).arg(password);
            }
            return Some(hello);
        }
        let mut auth = redis::cmd("AUTH");
        auth.arg(self.url.user.as_deref()).arg(password?);
        Some(auth)
    }
}

/// Asks a server what it is, and refuses one that drops keys when its memory is full.
fn ask_about(connection: &mut Connection, to: &Address) -> Result<About, LinkError> {
    let failed = |error: RedisError| LinkError::NotSent(format!("{to}: {error}"));
    let packed = redis::cmd("INFO").arg("server").arg("memory").get_packed_command();
    connection.send_packed_command(&packed).map_err(failed)?;
    let said = connection.recv_response().map_err(failed)?;
    let text = text_of(&said).unwrap_or_default();
    match evicts(&text) {
        Some(policy) => Err(LinkError::Refused(format!(
            "it drops metadata when its memory is full (maxmemory-policy {policy}): set \
             maxmemory-policy to noeviction there"
        ))),
        None => Ok(About { version: version_of(&text) }),
    }
}

/// The version of Redis that a server is, or is like, in what it says of itself.
pub(super) fn version_of(text: &str) -> Option<(u32, u32)> {
    let said = text.lines().find_map(|line| line.strip_prefix("redis_version:"))?;
    let mut numbers = said.trim().split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// Whether a server can be asked to wait for its log (`WAITAOF`).
pub(super) fn waits_for_its_log(version: Option<(u32, u32)>) -> bool {
    version.is_some_and(|version| version >= WAIT_FOR_OWN)
}

/// Changes nothing under a key, so that what waits for the last change waits for all that was before it;
/// `logged` if it is to be in the log as well.
pub(super) fn mark(key: &str, logged: bool) -> Cmd {
    let mut mark = redis::cmd("EVAL");
    mark.arg(if logged { LOGGED_MARK } else { MARK }).arg(1).arg(key);
    mark
}

/// By which policy a server drops keys, if it does, in what it says of its memory.
fn evicts(memory: &str) -> Option<&str> {
    let field = |name: &str| {
        memory.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    let policy = field("maxmemory_policy").filter(|policy| *policy != "noeviction")?;
    field("maxmemory").filter(|most| *most != "0").map(|_| policy)
}

/// The text of an answer that is one.
pub(super) fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

/// Whether it is the refusal of somebody's lease, which an empty server has not.
pub(super) fn is_leased(value: &Value) -> bool {
    matches!(value, Value::Array(values) if values.first() == Some(&Value::Int(-2)))
}

/// Why no reply came.
#[derive(Debug, Clone)]
pub(super) enum LinkError {
    /// Nothing was sent.
    NotSent(String),
    /// It may have been executed.
    Lost(String),
    /// The login failed.
    Refused(String),
}

/// A reply, and by how many replicas all that was written before it is confirmed.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    pub value: Value,
    pub replicas: u32,
}

/// Commands that follow each other on one connection. Several give their replies as one array.
#[derive(Debug, Clone)]
pub(super) struct Request {
    packed: Vec<u8>,
    count: usize,
    /// Goes first, if a migration sent us here.
    pub asking: bool,
    /// If replicas must confirm: a key of the same server, under which nothing is.
    pub confirm: Option<String>,
}

impl Request {
    pub fn new(command: &Cmd, confirm: Option<&str>) -> Self {
        let (packed, confirm) = (command.get_packed_command(), confirm.map(str::to_owned));
        Request { packed, count: 1, asking: false, confirm }
    }

    /// Several commands, of which no replica has to confirm anything.
    pub fn several(commands: &[&Cmd]) -> Self {
        let mut packed = Vec::new();
        commands.iter().for_each(|command| command.write_packed_command(&mut packed));
        Request { packed, count: commands.len(), asking: false, confirm: None }
    }
}

struct Call {
    request: Request,
    answer: Mutex<Option<Result<Reply, LinkError>>>,
    /// Rung when there is an answer, or a connection to be taken; waits with the lock of the state.
    bell: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Arc<Call>>,
    idle: Vec<Link>,
    open: usize,
}

/// One server.
pub(super) struct Server {
    pub address: Address,
    dial: Arc<Dial>,
    connections: usize,
    /// Replicas that must confirm, and how long they may take.
    replicas: u32,
    confirm_within: Duration,
    state: Mutex<State>,
}

impl Server {
    pub fn new(
        address: Address,
        dial: Arc<Dial>,
        connections: usize,
        replicas: u32,
        confirm_within: Duration,
    ) -> Self {
        let state = Mutex::default();
        Server { address, dial, connections, replicas, confirm_within, state }
    }

    /// Sends a request and waits for its reply: no longer than a few times the time limit of
    /// [`Dial`], as every batch ahead of it ends within that.
    pub fn call(&self, request: Request) -> Result<Reply, LinkError> {
        let (answer, bell) = (Mutex::new(None), Condvar::new());
        let call = Arc::new(Call { request, answer, bell });
        let mut state = self.state.lock();
        state.waiting.push_back(call.clone());
        loop {
            if let Some(answer) = call.answer.lock().take() {
                return answer;
            }
            match self.lead(&mut state, &call) {
                Some((batch, connection)) => {
                    drop(state);
                    self.run(&batch, connection);
                    state = self.state.lock();
                }
                None => call.bell.wait(&mut state),
            }
        }
    }

    /// The first waiting requests and a connection for them, if there is one and `mine` waits.
    fn lead(&self, state: &mut State, mine: &Arc<Call>) -> Option<(Vec<Arc<Call>>, Option<Link>)> {
        if !state.waiting.iter().any(|call| Arc::ptr_eq(call, mine)) {
            return None;
        }
        let connection = state.idle.pop();
        if connection.is_none() {
            if state.open >= self.connections {
                return None;
            }
            state.open += 1;
        }
        let many = state.waiting.len().min(BATCH);
        Some((state.waiting.drain(..many).collect(), connection))
    }

    fn run(&self, batch: &[Arc<Call>], connection: Option<Link>) {
        let connection = match connection {
            Some(connection) => Ok(connection),
            None => self.dial.connect(&self.address, false),
        };
        let kept = match connection {
            Ok(mut link) => {
                let end = self.exchange(&mut link, batch);
                end.is_ok().then_some(link)
            }
            Err(error) => {
                batch.iter().for_each(|call| call.settle(Err(error.clone())));
                None
            }
        };
        let mut state = self.state.lock();
        match kept {
            Some(connection) => state.idle.push(connection),
            None => state.open -= 1,
        }
        let next = state.waiting.front().cloned();
        drop(state);
        // Whoever looked for an answer before the lock was taken waits for the bell by now.
        batch.iter().chain(&next).for_each(|call| {
            call.bell.notify_one();
        });
    }

    /// Sends a batch and settles every call of it. An error makes the connection useless.
    fn exchange(&self, link: &mut Link, batch: &[Arc<Call>]) -> Result<(), ()> {
        let mut bytes = Vec::new();
        for call in batch {
            if call.request.asking {
                redis::cmd("ASKING").write_packed_command(&mut bytes);
            }
            bytes.extend_from_slice(&call.request.packed);
        }
        let mut keys = batch.iter().filter_map(|call| call.request.confirm.as_ref());
        let key = keys.next().filter(|_| self.replicas > 0);
        let mut tail = 0;
        if let Some(key) = key {
            if link.wants_mark {
                mark(key, false).write_packed_command(&mut bytes);
                tail += 1;
            }
            tail += 1;
            let mut wait = redis::cmd("WAIT");
            wait.arg(self.replicas).arg(self.confirm_within.as_millis() as u64);
            wait.write_packed_command(&mut bytes);
        }
        let mut values = Vec::with_capacity(batch.len());
        let outcome = Self::receive(&mut link.connection, &bytes, batch, tail, &mut values);
        let replicas = *outcome.as_ref().unwrap_or(&0);
        let mut values = values.into_iter();
        for call in batch {
            let lost = |error: &String| LinkError::Lost(format!("{}: {error}", self.address));
            call.settle(match (values.next(), &outcome) {
                (Some(value), _) => Ok(Reply { value, replicas }),
                (None, Err(error)) => Err(lost(error)),
                (None, Ok(_)) => Err(lost(&"no reply".to_string())),
            });
        }
        outcome.map(|_| ()).map_err(|_| ())
    }

    /// The replies go into `values`; the number of replicas that confirmed is returned. `tail`: replies
    /// after those, to a mark if there are two, and to `WAIT`.
    fn receive(
        connection: &mut Connection,
        bytes: &[u8],
        batch: &[Arc<Call>],
        tail: usize,
        values: &mut Vec<Value>,
    ) -> Result<u32, String> {
        connection.send_packed_command(bytes).map_err(|error| error.to_string())?;
        for call in batch {
            if call.request.asking {
                connection.recv_response().map_err(|error| error.to_string())?;
            }
            let mut replies = Vec::with_capacity(call.request.count);
            for _ in 0..call.request.count {
                replies.push(connection.recv_response().map_err(|error| error.to_string())?);
            }
            values.push(match call.request.count {
                1 => replies.remove(0),
                _ => Value::Array(replies),
            });
        }
        let mut marked = true;
        let mut replicas = 0;
        for _ in 0..tail {
            match connection.recv_response().map_err(|error| error.to_string())? {
                Value::Int(confirmed) => replicas = u32::try_from(confirmed).unwrap_or(0),
                Value::ServerError(error) => {
                    tracing::debug!(
                        code = error.code(),
                        detail = error.details().unwrap_or_default(),
                        "nothing is confirmed"
                    );
                    marked = false;
                }
                _ => {}
            }
        }
        Ok(if marked { replicas } else { 0 })
    }

    /// Closes what is idle, so that the next request meets the server as it is now.
    pub fn drop_idle(&self) {
        let mut state = self.state.lock();
        state.open -= state.idle.len();
        state.idle.clear();
    }
}

impl Call {
    fn settle(&self, answer: Result<Reply, LinkError>) {
        *self.answer.lock() = Some(answer);
    }
}

/// When to give up, and how long to pause between attempts.
pub(super) struct TimeLimits {
    until: Instant,
    pause: Duration,
}

impl TimeLimits {
    const FIRST: Duration = Duration::from_millis(2);
    const LONGEST: Duration = Duration::from_millis(100);

    pub fn until(until: Instant) -> Self {
        TimeLimits { until, pause: Self::FIRST }
    }

    /// Pauses, longer each time. False if the time is up.
    pub fn pause(&mut self) -> bool {
        let now = Instant::now();
        if now >= self.until {
            return false;
        }
        std::thread::sleep(self.pause.min(self.until - now));
        self.pause = (self.pause * 2).min(Self::LONGEST);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_when_said_then_found_also_of_what_is_like_it() {
        let valkey =
            "# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.1\r\n";
        assert_eq!(version_of(valkey), Some((7, 2)));
        assert_eq!(version_of("redis_version:7.0.15\r\n"), Some((7, 0)));
        assert_eq!(version_of("nothing"), None);
        assert!(waits_for_its_log(Some((8, 0))) && !waits_for_its_log(Some((7, 0))));
    }
}
