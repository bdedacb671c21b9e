//! Metadata servers for a test or for the time of a job: `redis-server` with a password and a log,
//! one alone or a cluster of them.
//!
//! A directory of `cluster init` has one directory for each server, named by its port, and the file
//! `address` with what `--cluster file:` takes. Whoever may read that may change the namespace: all
//! of it belongs to the user alone.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Connection, RedisError, cmd};

use super::super::{print, print_json, warn};
use crate::cli::cluster::ClusterInitArgs;
use crate::config::{SECRET_FILE, cluster_address};
use crate::engine::{ClusterSetUp, Engine};
use crate::error::Error;

const PROGRAM: &str = "redis-server";
const ADDRESS: &str = "address";
const CONFIGURATION: &str = "redis.conf";
const PID: &str = "pid";
/// Servers of a cluster speak to each other on ports so far above.
const BUS: u16 = 10_000;
/// Hash slots of a cluster.
const SLOTS: u16 = 16_384;
/// How long servers may take to come up, to find each other, or to end.
const LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);
/// Fewer servers than this could not agree that one of them is dead.
const QUORUM: u16 = 3;

/// Servers as they are to be.
struct Plan {
    dir: PathBuf,
    bind: IpAddr,
    password: String,
    ports: Vec<u16>,
}

#[derive(serde::Serialize)]
struct Started {
    address: PathBuf,
    ports: Vec<u16>,
}

/// Starts servers; those of an earlier start, if there are any.
///
/// What the nodes agree on is stored there; of servers of the site's own, which are named by their
/// address, nothing else is done.
pub fn init(args: &ClusterInitArgs, engine: &dyn Engine) -> Result<(), Error> {
    if let Some(address) = args.dir.to_str().and_then(|text| cluster_address(text).ok()) {
        return settle(args, &address, engine);
    }
    let plan = if args.dir.join(ADDRESS).exists() {
        let plan = known(&args.dir)?;
        start(&plan)?;
        let new = said(args);
        if new != ClusterSetUp::default() {
            engine.set_up_cluster(&plan.url(), &new)?;
        }
        plan
    } else {
        create(args, engine)?
    };
    let address = plan.dir.join(ADDRESS);
    if args.json {
        return print_json(&Started { address, ports: plan.ports });
    }
    let list: Vec<String> = plan.ports.iter().map(u16::to_string).collect();
    print(&format!(
        "metadata servers listen on {} port {}\n\
         mount with:  forebay mount BACKING MOUNTPOINT --tier DIR=SIZE --cluster file:{address}\n\
         end with:    forebay cluster stop {dir}\n",
        plan.bind,
        list.join(", "),
        address = address.display(),
        dir = plan.dir.display(),
    ))
}

fn counts(args: &ClusterInitArgs) -> Result<(u16, u16), Error> {
    let servers = args.servers.unwrap_or(if args.replicas > 0 { QUORUM } else { 1 });
    if servers == 0 || servers > 100 || args.replicas > 5 {
        return Err(Error::Usage("give 1 to 100 servers and at most 5 replicas of each".into()));
    }
    if servers == 2 || servers < QUORUM && args.replicas > 0 {
        return Err(Error::Usage(format!(
            "--servers {servers}: a cluster needs {QUORUM}, as fewer can't agree that one is dead; \
             without replicas 1 will do"
        )));
    }
    Ok((servers, servers * (1 + args.replicas)))
}

/// What the caller wants the nodes to agree on.
fn said(args: &ClusterInitArgs) -> ClusterSetUp {
    ClusterSetUp {
        replicas: args.cluster_replicas,
        redundancy: args.redundancy,
        secret: args.cluster_secret.clone(),
    }
}

/// Stores what the nodes agree on, on servers that somebody else looks after.
fn settle(args: &ClusterInitArgs, address: &str, engine: &dyn Engine) -> Result<(), Error> {
    if args.servers.is_some() || args.replicas > 0 || args.port.is_some() {
        let why =
            "--servers, --replicas and --port are for servers that are started, in a directory";
        return Err(Error::Usage(why.into()));
    }
    let terms = engine.set_up_cluster(address, &said(args))?;
    match args.json {
        true => print_json(&terms),
        false => print(&format!("agreed: {}\n", super::agreed(&terms))),
    }
}

fn create(args: &ClusterInitArgs, engine: &dyn Engine) -> Result<Plan, Error> {
    let (primaries, all) = counts(args)?;
    let version = Command::new(PROGRAM).arg("--version").stdout(Stdio::null()).status();
    if !version.is_ok_and(|status| status.success()) {
        return Err(Error::Unsupported(format!(
            "{PROGRAM} is not installed: on Debian, `apt-get install redis-server`"
        )));
    }
    private_dir(&args.dir)?;
    let dir = fs::canonicalize(&args.dir).map_err(Error::io(args.dir.display().to_string()))?;
    let ports = free_ports(args.bind, args.port, all)?;
    let plan = Plan { dir, bind: args.bind, password: password()?, ports };
    for port in &plan.ports {
        configure(&plan, *port)?;
    }
    let made = start(&plan).and_then(|()| match all {
        1 => Ok(()),
        _ => join(&plan, primaries),
    });
    let made = made.and_then(|()| {
        let mut new = said(args);
        // One less than there are, so that the rest goes on when one is dead.
        new.replicas = new.replicas.or((args.replicas > 0).then_some(1));
        if new.secret.is_none() {
            let path = plan.dir.join(SECRET_FILE);
            write_private(&path, &password()?)?;
            new.secret = Some(path);
        }
        engine.set_up_cluster(&plan.url(), &new).map(drop).map_err(Error::from)
    });
    // Last: with this file there, it is all there.
    let made =
        made.and_then(|()| write_private(&plan.dir.join(ADDRESS), &format!("{}\n", plan.url())));
    if let Err(error) = made {
        for port in &plan.ports {
            if let Err(also) = end(&plan, *port) {
                warn(&also.to_string());
            }
        }
        return Err(error);
    }
    Ok(plan)
}

impl Plan {
    fn url(&self) -> String {
        let host = |port: &u16| SocketAddr::new(self.bind, *port).to_string();
        let hosts: Vec<String> = self.ports.iter().map(host).collect();
        format!("redis://:{}@{}/forebay", self.password, hosts.join(","))
    }

    fn dir_of(&self, port: u16) -> PathBuf {
        self.dir.join(port.to_string())
    }

    fn connect(&self, port: u16) -> Result<Connection, RedisError> {
        let url = format!("redis://:{}@{}", self.password, SocketAddr::new(self.bind, port));
        let connection = redis::Client::open(url)?.get_connection_with_timeout(LIMIT)?;
        connection.set_read_timeout(Some(LIMIT))?;
        Ok(connection)
    }

    fn open(&self, port: u16) -> Result<Connection, Error> {
        self.connect(port).map_err(|error| self.failed(port, &error))
    }

    fn failed(&self, port: u16, error: &RedisError) -> Error {
        let log = self.dir_of(port).join("log");
        Error::Failed(format!("the server on port {port}: {error}; see {}", log.display()))
    }
}

fn private_dir(dir: &Path) -> Result<(), Error> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(Error::io(dir.display().to_string()))?;
    let mut entries = fs::read_dir(dir).map_err(Error::io(dir.display().to_string()))?;
    match entries.next() {
        None => Ok(()),
        Some(_) => Err(Error::Usage(format!("{}: is not empty", dir.display()))),
    }
}

fn write_private(path: &Path, text: &str) -> Result<(), Error> {
    let failed = || path.display().to_string();
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(Error::io(failed()))?;
    file.write_all(text.as_bytes()).map_err(Error::io(failed()))
}

fn password() -> Result<String, Error> {
    let mut bytes = [0; 24];
    let mut random = File::open("/dev/urandom").map_err(Error::io("/dev/urandom"))?;
    random.read_exact(&mut bytes).map_err(Error::io("/dev/urandom"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Ports on which nobody listens, each with its bus.
fn free_ports(bind: IpAddr, first: Option<u16>, count: u16) -> Result<Vec<u16>, Error> {
    let is_free = |port: u16| TcpListener::bind((bind, port)).is_ok();
    let both_free = |port: &u16| is_free(*port) && is_free(port + BUS);
    if let Some(first) = first {
        let last = first.checked_add(count - 1).filter(|last| *last <= u16::MAX - BUS);
        let last = last.ok_or_else(|| Error::Usage(format!("--port {first}: too high")))?;
        return match (first..=last).find(|port| !both_free(port)) {
            None => Ok((first..=last).collect()),
            Some(taken) => {
                Err(Error::Usage(format!("{bind} port {taken} or {}: not free", taken + BUS)))
            }
        };
    }
    // Below the ports that the system gives to clients; where to begin differs, as others look too.
    const LOW: u16 = 12_000;
    const RANGE: u16 = 10_000;
    // Processes that start together have numbers close to each other.
    let start = (u64::from(std::process::id()) * 7919 % u64::from(RANGE)) as u16;
    let ports = (0..RANGE).map(|step| LOW + (start + step) % RANGE);
    let free: Vec<u16> = ports.filter(both_free).take(count.into()).collect();
    match free.len() == usize::from(count) {
        true => Ok(free),
        false => Err(Error::Failed(format!("{bind}: no {count} ports are free; give --port"))),
    }
}

fn configure(plan: &Plan, port: u16) -> Result<(), Error> {
    let dir = plan.dir_of(port);
    let made = fs::DirBuilder::new().mode(0o700).create(&dir);
    made.map_err(Error::io(dir.display().to_string()))?;
    let path = |name: &str| dir.join(name).display().to_string();
    let cluster = match plan.ports.len() {
        1 => "",
        _ => "cluster-enabled yes\ncluster-node-timeout 5000\ncluster-require-full-coverage no\n",
    };
    let text = format!(
        "port {port}\nbind {bind}\nrequirepass {password}\nmasterauth {password}\n\
         dir \"{dir}\"\npidfile \"{pid}\"\nlogfile \"{log}\"\ndaemonize yes\n\
         save \"\"\nappendonly yes\nappendfsync always\nrepl-diskless-sync-delay 0\n{cluster}",
        bind = plan.bind,
        password = plan.password,
        dir = dir.display(),
        pid = path(PID),
        log = path("log"),
    );
    write_private(&dir.join(CONFIGURATION), &text)
}

/// Starts those that do not run.
fn start(plan: &Plan) -> Result<(), Error> {
    for port in &plan.ports {
        if plan.connect(*port).is_ok() {
            continue;
        }
        let configuration = plan.dir_of(*port).join(CONFIGURATION);
        let mut command = Command::new(PROGRAM);
        command.arg(configuration).stdin(Stdio::null()).stdout(Stdio::null());
        let status = command.stderr(Stdio::null()).status().map_err(Error::io(PROGRAM))?;
        if !status.success() {
            return Err(Error::Failed(format!("{PROGRAM} for port {port}: {status}")));
        }
    }
    for port in &plan.ports {
        wait(&format!("the server on port {port} does not come up"), || {
            let Ok(mut connection) = plan.connect(*port) else { return false };
            cmd("PING").query::<String>(&mut connection).is_ok()
        })?;
    }
    Ok(())
}

fn wait(what: &str, mut is_so: impl FnMut() -> bool) -> Result<(), Error> {
    let until = Instant::now() + LIMIT;
    while !is_so() {
        if Instant::now() >= until {
            return Err(Error::Failed(format!("{what} within {} s", LIMIT.as_secs())));
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// Makes one cluster of new servers: the first so many have the slots, the others are replicas.
fn join(plan: &Plan, primaries: u16) -> Result<(), Error> {
    let (first, count) = (plan.ports[0], u32::from(primaries));
    let bound = |n: u32| (u32::from(SLOTS) * n / count) as u16;
    for (number, port) in (0..).zip(&plan.ports) {
        let mut connection = plan.open(*port)?;
        let failed = |error: RedisError| plan.failed(*port, &error);
        // Apart from each other, so that nobody has to find out whose claims are newer.
        let mut epoch = cmd("CLUSTER");
        epoch.arg("SET-CONFIG-EPOCH").arg(number + 1);
        epoch.query::<()>(&mut connection).map_err(failed)?;
        if number < count {
            let mut slots = cmd("CLUSTER");
            slots.arg("ADDSLOTSRANGE").arg(bound(number)).arg(bound(number + 1) - 1);
            slots.query::<()>(&mut connection).map_err(failed)?;
        }
        if *port != first {
            let mut meet = cmd("CLUSTER");
            meet.arg("MEET").arg(plan.bind.to_string()).arg(first);
            meet.query::<()>(&mut connection).map_err(failed)?;
        }
    }
    let all = plan.ports.len();
    for port in &plan.ports {
        wait(&format!("the server on port {port} does not find the others"), || {
            info(plan, *port, "CLUSTER").is_some_and(|info| {
                info.contains(&format!("cluster_known_nodes:{all}\r"))
                    && info.contains("cluster_state:ok")
            })
        })?;
    }
    let mut ids = Vec::new();
    for port in &plan.ports[..primaries.into()] {
        let id = cmd("CLUSTER").arg("MYID").query::<String>(&mut plan.open(*port)?);
        ids.push(id.map_err(|error| plan.failed(*port, &error))?);
    }
    let replicas = &plan.ports[primaries.into()..];
    for (port, id) in replicas.iter().zip(ids.iter().cycle()) {
        let mut connection = plan.open(*port)?;
        let replicate = cmd("CLUSTER").arg("REPLICATE").arg(id).query::<()>(&mut connection);
        replicate.map_err(|error| plan.failed(*port, &error))?;
    }
    for port in replicas {
        wait(&format!("the replica on port {port} does not follow"), || {
            info(plan, *port, "replication").is_some_and(|info| {
                info.contains("role:slave") && info.contains("master_link_status:up")
            })
        })?;
    }
    Ok(())
}

fn info(plan: &Plan, port: u16, section: &str) -> Option<String> {
    let mut connection = plan.connect(port).ok()?;
    match section {
        "CLUSTER" => cmd("CLUSTER").arg("INFO").query(&mut connection).ok(),
        _ => cmd("INFO").arg(section).query(&mut connection).ok(),
    }
}

/// What an earlier start has left in a directory.
fn known(dir: &Path) -> Result<Plan, Error> {
    let path = dir.join(ADDRESS);
    let text =
        fs::read_to_string(&path).map_err(|source| Error::File { path: path.clone(), source })?;
    let strange = || Error::BadState(format!("{}: not as `cluster init` wrote it", path.display()));
    let rest = text.trim().strip_prefix("redis://:").ok_or_else(strange)?;
    let (password, rest) = rest.split_once('@').ok_or_else(strange)?;
    let (hosts, _) = rest.split_once('/').ok_or_else(strange)?;
    let hosts: Result<Vec<SocketAddr>, _> = hosts.split(',').map(str::parse).collect();
    let hosts = hosts.map_err(|_| strange())?;
    let bind = hosts.first().ok_or_else(strange)?.ip();
    let ports: Vec<u16> = hosts.iter().map(SocketAddr::port).collect();
    let dir = fs::canonicalize(dir).map_err(Error::io(dir.display().to_string()))?;
    Ok(Plan { dir, bind, password: password.into(), ports })
}

/// Ends the servers of a directory. Their data stay.
pub fn stop(dir: &Path) -> Result<(), Error> {
    let plan = known(dir)?;
    let mut outcome = Ok(());
    // Replicas first: none shall take over meanwhile.
    for port in plan.ports.iter().rev() {
        outcome = outcome.and(end(&plan, *port));
    }
    outcome
}

fn end(plan: &Plan, port: u16) -> Result<(), Error> {
    let pid = fs::read_to_string(plan.dir_of(port).join(PID)).ok();
    let pid = pid.and_then(|text| text.trim().parse::<i32>().ok());
    let Ok(mut connection) = plan.connect(port) else { return Ok(()) };
    // It has no answer but the end of the connection, if all goes well.
    let asked = cmd("SHUTDOWN").arg("NOSAVE").query::<()>(&mut connection);
    let runs = || match pid {
        Some(pid) => fs::read_to_string(format!("/proc/{pid}/comm"))
            .is_ok_and(|name| name.starts_with("redis-server")),
        None => plan.connect(port).is_ok(),
    };
    wait(&format!("the server on port {port} does not end"), || !runs())
        .map_err(|late| asked.err().map_or(late, |error| plan.failed(port, &error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(servers: Option<u16>, replicas: u16) -> ClusterInitArgs {
        let bind = IpAddr::from([127, 0, 0, 1]);
        ClusterInitArgs {
            dir: "x".into(),
            servers,
            replicas,
            bind,
            port: None,
            cluster_replicas: None,
            redundancy: None,
            cluster_secret: None,
            json: false,
        }
    }

    #[test]
    fn servers_and_replicas_then_as_many_as_can_agree() {
        assert_eq!(counts(&args(None, 0)).unwrap(), (1, 1));
        assert_eq!(counts(&args(None, 1)).unwrap(), (3, 6));
        assert_eq!(counts(&args(Some(4), 2)).unwrap(), (4, 12));
        for (servers, replicas) in [(Some(2), 0), (Some(1), 1), (Some(0), 0), (Some(3), 9)] {
            assert!(counts(&args(servers, replicas)).is_err(), "{servers:?} {replicas}");
        }
    }

    #[test]
    fn address_of_a_plan_when_read_again_then_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let bind = IpAddr::from([127, 0, 0, 1]);
        let ports = vec![7001, 7002, 7003, 7004];
        let plan = Plan { dir: dir.path().into(), bind, password: "00ff".into(), ports };
        write_private(&dir.path().join(ADDRESS), &format!("{}\n", plan.url())).unwrap();
        let again = known(dir.path()).unwrap();
        assert_eq!((again.url(), again.ports, again.bind), (plan.url(), plan.ports, plan.bind));
    }
}
