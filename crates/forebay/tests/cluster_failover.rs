//! A metadata server dies under mounts that write.

mod acknowledged;
mod site;

use std::fs;
use std::path::PathBuf;

use acknowledged::{LIMIT, Load};
use rustix::process::Signal;
use site::{Site, alive, can_mount, outcome, signal, wait_for};

/// Servers of `cluster init` and mounts; ended with the value.
struct Cluster {
    site: Site,
}

impl Cluster {
    /// The process that serves a port, as long as it is a server.
    fn server(&self, port: &str) -> Option<i32> {
        let pid = fs::read_to_string(self.site.path("meta").join(port).join("pid")).ok()?;
        let pid = pid.trim();
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        pid.parse().ok().filter(|_| name.starts_with("redis-server"))
    }

    fn ports(&self) -> Vec<String> {
        let dirs = fs::read_dir(self.site.path("meta")).into_iter().flatten().flatten();
        let names = dirs.filter(|entry| entry.path().is_dir()).map(|entry| entry.file_name());
        let mut ports: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        ports.sort();
        ports
    }

    fn run(&self, args: &[&str]) {
        let (code, text) = self.site.run(args);
        assert_eq!(code, 0, "{args:?}: {text}");
    }

    fn mount(&self, node: usize, more: &[&str], fail_points: &str) -> PathBuf {
        let mnt = self.site.text(&format!("mnt{node}"));
        fs::create_dir_all(&mnt).unwrap();
        let tier = format!("{}=64M", self.site.text(&format!("tier{node}")));
        let (backing, address) =
            (self.site.text("backing"), format!("file:{}", self.site.text("meta/address")));
        let args = ["mount", &backing, &mnt, "--tier", &tier, "--cluster", &address];
        let mut command = self.site.command(env!("CARGO_BIN_EXE_forebay"));
        let (code, text) = outcome(command.args(args).args(more).env("FAILPOINTS", fail_points));
        assert_eq!(code, 0, "{text}");
        mnt.into()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in 0..2 {
            if std::thread::panicking() {
                let log = self.site.path(&format!("tier{node}")).join("state/forebay.log");
                eprintln!(
                    "--- log of node {node}\n{}",
                    fs::read_to_string(log).unwrap_or_default()
                );
            }
            let mnt = self.site.text(&format!("mnt{node}"));
            let _ = outcome(self.site.command("fusermount3").args(["-uz", &mnt]));
        }
        for pid in self.ports().iter().filter_map(|port| self.server(port)) {
            signal(pid, Signal::KILL);
        }
    }
}

fn can_cluster() -> bool {
    let version = std::process::Command::new("redis-server").arg("--version").output();
    if version.is_err() {
        eprintln!("skipped: redis-server is not installed");
    }
    version.is_ok() && can_mount()
}

#[test]
fn file_when_read_between_its_publication_and_the_report_then_shows_what_was_written() {
    if !can_cluster() {
        return;
    }
    let cluster = Cluster { site: Site::new() };
    cluster.run(&["cluster", "init", &cluster.site.text("meta")]);
    // Without fail points the moment is too short to be met.
    let late = "node.reconcile.before_report=sleep(700)";
    let mount = cluster.mount(0, &["--writeback", "close"], late);
    let (here, there) = (mount.join("f"), cluster.site.path("backing/f"));
    for round in 1..=3 {
        let contents = vec![b'0' + round; 10_000 * usize::from(round)];
        fs::write(&here, &contents).unwrap();
        let published = || fs::read(&there).is_ok_and(|found| found == contents);
        let came = wait_for(LIMIT, || {
            assert!(fs::read(&here).unwrap() == contents, "round {round}, before");
            published()
        });
        assert!(came, "round {round} does not come to the backing store");
        for _ in 0..20 {
            assert!(fs::read(&here).unwrap() == contents, "round {round}, after");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
    cluster.run(&["umount", mount.to_str().unwrap()]);
}

#[test]
fn primary_when_killed_under_mounts_then_answers_stay_right_and_work_goes_on() {
    if !can_cluster() {
        return;
    }
    let cluster = Cluster { site: Site::new() };
    let init = ["cluster", "init", &cluster.site.text("meta"), "--replicas", "1"];
    cluster.run(&init);
    let talking =
        ["--cluster-replicas", "1", "--cluster-listen", "127.0.0.1:0", "--cluster-tls", "off"];
    let mounts: Vec<_> = (0..2).map(|node| cluster.mount(node, &talking, "")).collect();
    let mut load = Load::start(mounts.clone());
    let all_work = || {
        let marks: Vec<u64> = (0..2).map(|node| load.written(node)).collect();
        let reads: Vec<u64> = (0..4).map(|at| load.read(at / 2, at % 2)).collect();
        // Enough that all directories, and so all servers, had their turn.
        load.wait("work on both nodes", || {
            (0..2).all(|node| load.written(node) > marks[node] + 6)
                && (0..4).all(|at| load.read(at / 2, at % 2) > reads[at])
        });
    };
    all_work();
    assert!((0..2).all(|node| load.write_errors(node).is_empty()), "{}", load.told());
    // The first servers have the slots, the last are their replicas.
    let ports = cluster.ports();
    let killed = cluster.server(&ports[1]).unwrap();
    signal(killed, Signal::KILL);
    assert!(wait_for(LIMIT, || !alive(killed)));
    load.wait("a failure, as no replica confirms", || {
        (0..2).all(|node| !load.write_errors(node).is_empty())
    });
    // It comes back as the replica of the one that took over.
    cluster.run(&init[..3]);
    all_work();
    load.stop();
    for node in 0..2 {
        load.verify(node, &mounts[1 - node]);
    }
    for mount in &mounts {
        cluster.run(&["umount", mount.to_str().unwrap()]);
    }
    for node in 0..2 {
        load.verify(node, &cluster.site.path("backing"));
    }
    load.check();
}
