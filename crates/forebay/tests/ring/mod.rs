//! A cluster of one test: a metadata server, a backing store, and mounts with tiers of their own.
#![allow(dead_code, missing_docs, reason = "each user of this module needs a part of it")]

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use forebay_testing::stop_process;

use crate::site::{Site, alive, can_mount, outcome, signal, wait_for};

/// Says so and gives false where no cluster can be made.
pub fn can_cluster() -> bool {
    let version = Command::new("redis-server").arg("--version").stdout(Stdio::null()).status();
    let able = version.is_ok_and(|status| status.success());
    if !able {
        eprintln!("skipped: redis-server is not installed");
    }
    able && can_mount()
}

/// A number for each call: xorshift (Marsaglia, 2003).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    /// One of so many.
    pub fn pick(&mut self, many: usize) -> usize {
        self.below(many as u64) as usize
    }
}

/// The names in a directory, in order. The private area of a backing store, which stays, shows with
/// what is in it besides the mark of the store.
pub fn names(dir: &Path) -> Vec<String> {
    const PRIVATE: &str = ".forebay";
    let list = |dir: &Path| -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let mut names = list(dir);
    if let Some(at) = names.iter().position(|name| name == PRIVATE) {
        names.swap_remove(at);
        let own = list(&dir.join(PRIVATE)).into_iter().filter(|name| name != "store");
        names.extend(own.map(|name| format!("{PRIVATE}/{name}")));
    }
    names.sort_unstable();
    names
}

/// What the nodes of a test share.
pub const SECRET: &[u8] = b"a secret of thirty-two bytes....";

/// The metadata server; ended with the value.
pub struct Server {
    child: Mutex<Child>,
    dir: PathBuf,
    pub port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let spread = (std::process::id() as u16).wrapping_mul(41);
        let port = 30_000 + step.wrapping_add(spread) % 2_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Server {
    pub fn start(dir: &Path) -> Server {
        let port = free_port();
        let child = Mutex::new(Self::spawn(dir, port));
        let server = Server { child, dir: dir.to_owned(), port };
        server.wait_until_up();
        server
    }

    fn spawn(dir: &Path, port: u16) -> Child {
        let text = port.to_string();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "redis-server", "--port", &text]);
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"]);
        command.args(["--appendfsync", "always", "--dir"]).arg(dir);
        command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
    }

    fn wait_until_up(&self) {
        let up = || std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok();
        assert!(wait_for(Duration::from_secs(60), up), "the metadata server does not come up");
    }

    /// Ends it; what it has stays in its directory.
    pub fn kill(&self) {
        let mut child = self.child.lock().unwrap();
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Has it stop, or go on.
    pub fn freeze(&self, frozen: bool) {
        let pid = self.child.lock().unwrap().id().cast_signed();
        match frozen {
            true => stop_process(pid),
            false => signal(pid, rustix::process::Signal::CONT),
        }
    }

    /// Starts it again, with what is in `dir` now.
    pub fn restart(&self) {
        *self.child.lock().unwrap() = Self::spawn(&self.dir, self.port);
        self.wait_until_up();
    }

    /// Where it keeps what it has.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

pub struct Ring {
    // Dropped after the mounts have ended, which need it to.
    pub site: Site,
    pub server: Server,
    nodes: usize,
    /// What each mount is told beside.
    talk: Vec<String>,
    /// Whether a supervisor starts dead daemons again.
    pub supervised: bool,
}

impl Ring {
    pub fn new(nodes: usize) -> Ring {
        let site = Site::new();
        fs::create_dir(site.path("redis")).unwrap();
        for node in 0..nodes {
            fs::create_dir(site.path(&format!("mnt{node}"))).unwrap();
        }
        let server = Server::start(&site.path("redis"));
        Ring { site, server, nodes, talk: Vec::new(), supervised: false }
    }

    /// Nodes that talk to each other.
    pub fn talking(nodes: usize) -> Ring {
        use std::os::unix::fs::PermissionsExt;
        let mut ring = Ring::new(nodes);
        let secret = ring.site.path("secret");
        fs::write(&secret, SECRET).unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        let secret = ring.site.text("secret");
        ring.talk = ["--cluster-listen", "127.0.0.1:0", "--cluster-secret", &secret]
            .map(str::to_owned)
            .to_vec();
        ring
    }

    pub fn address(&self) -> String {
        format!("redis://127.0.0.1:{}/test", self.server.port)
    }

    pub fn at(&self, node: usize, path: &str) -> PathBuf {
        self.site.path(&format!("mnt{node}")).join(path)
    }

    pub fn backing(&self, path: &str) -> PathBuf {
        self.site.path("backing").join(path)
    }

    pub fn mount_with(&self, node: usize, more: &[&str]) -> (i32, String) {
        outcome(&mut self.mount_command(node, more))
    }

    /// Mounts with a variable in the daemon's environment.
    pub fn mount_knowing(&self, node: usize, variable: (&str, &Path), more: &[&str]) {
        let mut command = self.mount_command(node, more);
        let (code, text) = outcome(command.env(variable.0, variable.1));
        assert_eq!(code, 0, "{text}");
    }

    /// Mounts with fail points, as the crate `fail` writes them.
    pub fn mount_failing(&self, node: usize, fail_points: &str, more: &[&str]) {
        let mut command = self.mount_command(node, more);
        let (code, text) = outcome(command.env("FAILPOINTS", fail_points));
        assert_eq!(code, 0, "{text}");
    }

    fn mount_command(&self, node: usize, more: &[&str]) -> Command {
        let tier = format!("{}=64M", self.site.text(&format!("tier{node}")));
        let mnt = self.site.text(&format!("mnt{node}"));
        let (backing, address) = (self.site.text("backing"), self.address());
        let mut args = vec!["mount", &backing, &mnt, "--tier", &tier, "--cluster", &address];
        if !self.supervised {
            args.push("--no-supervisor");
        }
        args.extend(self.talk.iter().map(String::as_str));
        args.extend(more);
        let mut command = self.site.command(env!("CARGO_BIN_EXE_forebay"));
        command.args(args);
        command
    }

    pub fn mount(&self, node: usize, more: &[&str]) {
        let (code, text) = self.mount_with(node, more);
        assert_eq!(code, 0, "{text}");
    }

    pub fn mount_all(&self, more: &[&str]) {
        for node in 0..self.nodes {
            self.mount(node, more);
        }
    }

    pub fn umount(&self, node: usize) {
        let (code, text) = self.site.run(&["umount", &self.site.text(&format!("mnt{node}"))]);
        assert_eq!(code, 0, "{text}\n{}", self.log(node));
    }

    pub fn umount_all(&self) {
        for node in 0..self.nodes {
            self.umount(node);
        }
    }

    pub fn log(&self, node: usize) -> String {
        let log = self.site.path(&format!("tier{node}")).join("state/forebay.log");
        fs::read_to_string(log).unwrap_or_default()
    }

    pub fn status(&self, node: usize) -> serde_json::Value {
        let mnt = self.site.text(&format!("mnt{node}"));
        let (code, text) = self.site.run(&["status", "--json", &mnt]);
        assert_eq!(code, 0, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Bytes that a node has moved from or to a source, as its status calls that.
    pub fn bytes(&self, node: usize, source: &str) -> u64 {
        self.status(node)["bytes"][source].as_u64().unwrap_or_else(|| panic!("no {source}"))
    }

    /// Bytes that a node has read from the backing store.
    pub fn bytes_from_backing(&self, node: usize) -> u64 {
        self.bytes(node, "backing") + self.bytes(node, "filled")
    }

    /// The process that serves a mount.
    pub fn daemon(&self, node: usize) -> i32 {
        self.status(node)["pid"].as_i64().unwrap().try_into().unwrap()
    }

    /// Kills a daemon at once, and takes its dead mount away.
    pub fn kill(&self, node: usize) {
        let pid = self.daemon(node);
        signal(pid, rustix::process::Signal::KILL);
        assert!(wait_for(Duration::from_secs(60), || !alive(pid)));
        self.detach(node);
    }

    /// Kills a daemon and its supervisor at once, and takes the dead mount away.
    pub fn end(&self, node: usize) {
        let daemon = self.daemon(node);
        let stat = fs::read_to_string(format!("/proc/{daemon}/stat")).unwrap();
        let after = stat.rsplit(')').next().unwrap().split_whitespace();
        let parent: i32 = after.clone().nth(1).unwrap().parse().unwrap();
        let line = fs::read(format!("/proc/{parent}/cmdline")).unwrap_or_default();
        let own = String::from_utf8_lossy(&line).contains(&self.site.text(&format!("mnt{node}")));
        if parent > 1 && own {
            signal(parent, rustix::process::Signal::KILL);
        }
        signal(daemon, rustix::process::Signal::KILL);
        assert!(wait_for(Duration::from_secs(60), || !alive(daemon)));
        self.detach(node);
    }

    /// Takes a mount away, whether its daemon lives or not.
    pub fn detach(&self, node: usize) {
        let mnt = self.site.text(&format!("mnt{node}"));
        let _ = outcome(self.site.command("fusermount3").args(["-uz", &mnt]));
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        for node in 0..self.nodes {
            if std::thread::panicking() {
                eprintln!("--- log of node {node}\n{}", self.log(node));
            }
            self.detach(node);
        }
        // Their daemons end by themselves, but not without the metadata: the site sees to the rest.
    }
}
