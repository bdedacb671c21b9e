//! Redis servers of a test: on loopback, in a temporary directory, gone with the test.
#![allow(dead_code, reason = "each test uses a part")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use forebay_meta::{Engine, LeaseOptions, LeaseTerms, Leased, Redis, RedisOptions};
use forebay_testing::stop_process;

/// Leases that are taken at the first change, and soon again.
pub fn eager() -> LeaseOptions {
    let (first_pause, longest_pause) = (5_000_000, 5_000_000);
    let terms =
        LeaseTerms { changes: 1, looks: 8, first_pause, longest_pause, ..LeaseTerms::default() };
    LeaseOptions { terms, timeout: Duration::from_secs(3), ..LeaseOptions::default() }
}

/// An engine with leases, once it hears what others do.
pub fn leased(servers: &Servers, name: &str, options: &LeaseOptions) -> Arc<Leased> {
    let below = Arc::new(servers.open(name, &RedisOptions::default()));
    servers.wait("changes are heard", |_| (0..64).all(|at| below.watch(at).is_some()));
    Arc::new(Leased::open(below, options.clone()).unwrap())
}

pub const NODE_TIMEOUT_MS: u32 = 700;

/// The server that tests run: `redis-server`, or another one that is given to them.
fn program() -> String {
    std::env::var("FOREBAY_TEST_REDIS").unwrap_or_else(|_| "redis-server".into())
}

/// Says so and gives false where there are no servers to be had.
pub fn installed() -> bool {
    let runs = |program: &str| {
        let version = Command::new(program).arg("--version").stdout(Stdio::null()).status();
        version.is_ok_and(|status| status.success())
    };
    let all = runs(&program()) && runs("setpriv");
    if !all {
        eprintln!("SKIPPED: redis-server (package redis-server) is not installed");
    }
    all
}

struct Server {
    port: u16,
    child: Option<Child>,
}

pub struct Servers {
    directory: tempfile::TempDir,
    servers: Vec<Server>,
    extra: Vec<String>,
    pub password: Option<String>,
    pub tls: bool,
}

impl Drop for Servers {
    fn drop(&mut self) {
        for at in 0..self.servers.len() {
            self.kill(at);
        }
    }
}

/// A port that nobody has, outside the range from which the system takes them.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let step = NEXT
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add((std::process::id() as u16).wrapping_mul(37));
        let port = 10_000 + step % 20_000;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Servers {
    /// One server that is no cluster.
    pub fn single(extra: &[&str]) -> Self {
        let mut servers = Self::new(extra);
        servers.add(&[]);
        servers
    }

    fn new(extra: &[&str]) -> Self {
        Servers {
            directory: tempfile::tempdir_in("/dev/shm").unwrap(),
            servers: Vec::new(),
            extra: extra.iter().map(ToString::to_string).collect(),
            password: None,
            tls: false,
        }
    }

    /// One server that is no cluster, and a replica of it, which does not take over.
    pub fn with_replica(extra: &[&str]) -> Self {
        let mut servers = Self::single(extra);
        let port = servers.port(0).to_string();
        servers.add(&["--replicaof", "127.0.0.1", &port]);
        servers.wait("the replica follows", |servers| {
            let says = |at, what| {
                let said = servers.try_command(at, &["INFO", "replication"]);
                said.is_ok_and(|said| said.contains(what))
            };
            // The primary counts no replica that it has not heard of since it sent it everything.
            says(1, "master_link_status:up") && says(0, "state=online")
        });
        servers
    }

    /// A cluster of so many primaries, then their replicas in the same order, as often as asked.
    pub fn cluster(primaries: usize, replicas: usize, extra: &[&str]) -> Self {
        let mut servers = Self::new(extra);
        for _ in 0..primaries * (1 + replicas) {
            servers.add_node();
        }
        let ids: Vec<String> = (0..servers.servers.len())
            .map(|at| servers.command(at, &["CLUSTER", "MYID"]))
            .collect();
        for at in 0..primaries {
            let (first, last) = (16384 * at / primaries, 16384 * (at + 1) / primaries - 1);
            let (first, last) = (first.to_string(), last.to_string());
            servers.command(at, &["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            servers.command(at, &["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
        }
        let port = servers.servers[0].port.to_string();
        let bus = (servers.servers[0].port + BUS).to_string();
        for at in 1..ids.len() {
            servers.command(at, &["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        }
        let all = ids.len();
        servers.wait("the servers know each other", |servers| {
            (0..all).all(|at| servers.command(at, &["CLUSTER", "NODES"]).lines().count() == all)
        });
        for at in primaries..all {
            servers.wait("a replica follows", |servers| {
                servers.command(at, &["CLUSTER", "REPLICATE", &ids[at % primaries]]) == "OK"
            });
        }
        servers.wait_ready(replicas);
        servers
    }

    /// Every server says that all is well, and every primary has its replicas.
    pub fn wait_ready(&self, replicas: usize) {
        self.wait("the cluster is up", |servers| {
            servers.alive().all(|at| {
                let replication = servers.command(at, &["INFO", "replication"]);
                let online = replication.matches("state=online").count() >= replicas
                    || replication.contains("master_link_status:up");
                online && servers.command(at, &["CLUSTER", "INFO"]).contains("cluster_state:ok")
            })
        });
    }

    pub fn alive(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.servers.len()).filter(|at| self.servers[*at].child.is_some())
    }

    /// Adds a server of a cluster; it must still be met by the others.
    pub fn add_node(&mut self) -> usize {
        let timeout = NODE_TIMEOUT_MS.to_string();
        self.add(&[
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            &timeout,
            "--cluster-require-full-coverage",
            "no",
            "--repl-diskless-sync-delay",
            "0",
        ])
    }

    fn add(&mut self, more: &[&str]) -> usize {
        let port = loop {
            let port = free_port();
            if std::net::TcpListener::bind(("127.0.0.1", port + BUS)).is_ok() {
                break port;
            }
        };
        self.servers.push(Server { port, child: None });
        let at = self.servers.len() - 1;
        self.extra.extend(more.iter().map(ToString::to_string));
        self.start(at);
        self.extra.truncate(self.extra.len() - more.len());
        let arguments = more.iter().map(|word| format!("{word}\n")).collect::<String>();
        std::fs::write(self.path(at).join("arguments"), arguments).unwrap();
        at
    }

    pub fn path(&self, at: usize) -> PathBuf {
        self.directory.path().join(at.to_string())
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    fn start(&mut self, at: usize) {
        let path = self.path(at);
        std::fs::create_dir_all(&path).unwrap();
        let port = self.servers[at].port.to_string();
        let log = path.join("log");
        let (place, shown) = (path.to_str().unwrap(), log.to_str().unwrap());
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(program());
        command.args(["--port", &port, "--bind", "127.0.0.1", "--dir", place, "--logfile", shown]);
        command.args(["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]);
        command.args(&self.extra).stdout(Stdio::null()).stdin(Stdio::null());
        self.servers[at].child = Some(command.spawn().unwrap());
        self.wait("a server answers", |servers| servers.try_command(at, &["PING"]).is_ok());
    }

    /// Starts a server again that was killed.
    pub fn restart(&mut self, at: usize) {
        let arguments = std::fs::read_to_string(self.path(at).join("arguments")).unwrap();
        let before = self.extra.len();
        self.extra.extend(arguments.lines().map(ToString::to_string));
        self.start(at);
        self.extra.truncate(before);
    }

    pub fn kill(&mut self, at: usize) {
        if let Some(mut child) = self.servers[at].child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Stops a server as if it hung, or lets it go on.
    pub fn freeze(&self, at: usize, freeze: bool) {
        let child = self.servers[at].child.as_ref().unwrap();
        let pid = child.id();
        if freeze {
            return stop_process(pid.cast_signed());
        }
        assert!(Command::new("kill").args(["-CONT", &pid.to_string()]).status().unwrap().success());
    }

    pub fn unused_port(&self) -> u16 {
        free_port()
    }

    pub fn port(&self, at: usize) -> u16 {
        self.servers[at].port
    }

    /// The answer as text; panics on an error.
    pub fn command(&self, at: usize, words: &[&str]) -> String {
        self.try_command(at, words).unwrap()
    }

    pub fn try_command(&self, at: usize, words: &[&str]) -> redis::RedisResult<String> {
        let client = redis::Client::open(("127.0.0.1", self.servers[at].port))?;
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(2))?;
        connection.set_read_timeout(Some(Duration::from_secs(5)))?;
        if let Some(password) = &self.password {
            redis::cmd("AUTH").arg(password).exec(&mut connection)?;
        }
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| {
            command.arg(word);
        });
        let value: redis::Value = command.query(&mut connection)?;
        Ok(match value {
            redis::Value::Okay => "OK".to_string(),
            redis::Value::Int(number) => number.to_string(),
            redis::Value::Nil => String::new(),
            other => redis::from_redis_value(other).unwrap_or_default(),
        })
    }

    pub fn wait(&self, what: &str, done: impl Fn(&Self) -> bool) {
        forebay_testing::wait_until(what, || done(self));
    }

    /// The address of all servers, with a name for the file system.
    pub fn address(&self, name: &str) -> String {
        let hosts: Vec<String> =
            self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        let login = self.password.as_ref().map_or(String::new(), |word| format!(":{word}@"));
        let scheme = if self.tls { "rediss" } else { "redis" };
        format!("{scheme}://{login}{}/{name}", hosts.join(","))
    }

    pub fn open(&self, name: &str, options: &RedisOptions) -> Redis {
        Redis::open(&self.address(name), options).unwrap()
    }

    /// The server that has the slot of a partition now.
    pub fn owner(&self, partition: u16) -> usize {
        let key = format!("{{{partition:04x}}}");
        let slot: u32 = self
            .command(self.alive().next().unwrap(), &["CLUSTER", "KEYSLOT", &key])
            .parse()
            .unwrap();
        for line in self.command(self.alive().next().unwrap(), &["CLUSTER", "NODES"]).lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let has = words[8..].iter().filter(|word| !word.starts_with('[')).any(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                (first.parse().unwrap()..=last.parse().unwrap()).contains(&slot)
            });
            if has {
                let place = words[1].split('@').next().unwrap();
                let port: u16 = place.rsplit(':').next().unwrap().parse().unwrap();
                return self.servers.iter().position(|server| server.port == port).unwrap();
            }
        }
        panic!("slot {slot} has no owner");
    }
}

/// From a server's port to that of the cluster bus, the servers' own choice.
const BUS: u16 = 10_000;
