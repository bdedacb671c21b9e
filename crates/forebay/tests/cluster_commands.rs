//! `forebay cluster`: servers for a job, who is there, who leaves, who never comes back.

mod ring;
mod site;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use ring::{Ring, can_cluster};
use rustix::process::Signal;
use serde_json::Value;
use site::{Site, alive, signal, wait_for};

/// Far more than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

/// Servers of `cluster init`; ended with the value.
struct Servers<'a> {
    site: &'a Site,
}

impl Servers<'_> {
    fn dir(&self) -> PathBuf {
        self.site.path("meta")
    }

    fn run(&self, verb: &str, more: &[&str]) -> (i32, String) {
        let dir = self.site.text("meta");
        self.site.run(&[&["cluster", verb, &dir], more].concat())
    }

    fn pids(&self) -> Vec<i32> {
        let dirs = fs::read_dir(self.dir()).into_iter().flatten().flatten();
        let pid = |dir: fs::DirEntry| fs::read_to_string(dir.path().join("pid")).ok();
        dirs.filter_map(pid).filter_map(|text| text.trim().parse().ok()).collect()
    }
}

impl Drop for Servers<'_> {
    fn drop(&mut self) {
        let pids = self.pids();
        self.run("stop", &[]);
        for pid in pids {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            if name.starts_with("redis-server") {
                signal(pid, Signal::KILL);
            }
        }
    }
}

fn mount(site: &Site, node: usize, more: &[&str]) {
    let (code, text) = try_mount(site, node, more);
    assert_eq!(code, 0, "{text}");
}

fn try_mount(site: &Site, node: usize, more: &[&str]) -> (i32, String) {
    let mnt = site.text(&format!("mnt{node}"));
    fs::create_dir_all(&mnt).unwrap();
    let tier = format!("{}=64M", site.text(&format!("tier{node}")));
    let (backing, address) = (site.text("backing"), format!("file:{}", site.text("meta/address")));
    let args = ["mount", &backing, &mnt, "--tier", &tier, "--cluster", &address];
    site.run(&[&args, more].concat())
}

/// Takes a mount away however the test ends.
struct Mounts<'a>(&'a Site, usize);

impl Drop for Mounts<'_> {
    fn drop(&mut self) {
        for node in 0..self.1 {
            let mnt = self.0.text(&format!("mnt{node}"));
            let _ = site::outcome(self.0.command("fusermount3").args(["-uz", &mnt]));
        }
    }
}

fn umount(site: &Site, node: usize) {
    let (code, text) = site.run(&["umount", &site.text(&format!("mnt{node}"))]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn sync_when_another_node_has_files_that_are_not_written_back_then_it_is_done_and_says_so() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    ring.mount_all(&["--writeback", "evict"]);
    let sync = |node: usize, path: &str| {
        let path = ring.at(node, path);
        let (code, text) = ring.site.run(&["sync", path.to_str().unwrap()]);
        assert_eq!(code, 0, "{text}");
        text
    };
    fs::create_dir(ring.at(0, "dir")).unwrap();
    fs::write(ring.at(0, "dir/mine"), b"of the first").unwrap();
    fs::write(ring.at(0, "other"), b"in another directory").unwrap();
    fs::write(ring.at(1, "dir/theirs"), b"of the second").unwrap();
    let text = sync(0, "dir");
    assert!(text.contains("1 file was written on other nodes"), "{text}");
    assert_eq!(fs::read(ring.backing("dir/mine")).unwrap(), b"of the first");
    assert!(!ring.backing("dir/theirs").exists() && !ring.backing("other").exists());
    let text = sync(1, "");
    assert!(text.contains("1 file was written on other nodes"), "{text}");
    assert_eq!(fs::read(ring.backing("dir/theirs")).unwrap(), b"of the second");
    let text = sync(0, "");
    assert!(!text.contains("other nodes"), "{text}");
    assert_eq!(fs::read(ring.backing("other")).unwrap(), b"in another directory");
    ring.umount_all();
}

/// What a Redis command answers, line by line.
fn redis(ring: &Ring, command: &[&str]) -> Vec<String> {
    let port = ring.server.port.to_string();
    let output = ring.site.command("redis-cli").args(["-p", &port]).args(command).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    // Keys are bytes: what is no text is shown in escapes, which are taken back in between.
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn fsck_of_a_cluster_when_mounted_refused_when_a_name_was_lost_then_said_and_repaired() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    ring.mount_all(&[]);
    fs::create_dir(ring.at(0, "dir")).unwrap();
    for number in 0..5 {
        fs::write(ring.at(number % 2, &format!("dir/file{number}")), b"something").unwrap();
    }
    let address = ring.address();
    let fsck =
        |more: &[&str]| ring.site.run(&[&["fsck", "--cluster", &address, "--json"], more].concat());
    let (code, text) = fsck(&[]);
    assert_eq!(code, 7, "{text}");
    assert!(text.contains("unmount all nodes first"), "{text}");
    ring.umount_all();
    let (code, text) = fsck(&[]);
    assert_eq!(code, 0, "{text}");
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(report["inodes"].as_u64() >= Some(7) && report["names"].as_u64() >= Some(6), "{text}");
    // A name goes, and its record stays.
    let lost = "local gone = 0
        local function lose(key, fields, command)
            for _, field in ipairs(fields) do
                if string.sub(field, -5) == 'file3' then
                    gone = gone + redis.call(command, key, field)
                end
            end
        end
        for _, key in ipairs(redis.call('KEYS', '*')) do
            local kind = redis.call('TYPE', key).ok
            if kind == 'hash' then lose(key, redis.call('HKEYS', key), 'HDEL') end
            if kind == 'zset' then lose(key, redis.call('ZRANGE', key, 0, -1), 'ZREM') end
        end
        return gone";
    assert_eq!(redis(&ring, &["EVAL", lost, "0"]), ["2"]);
    let (code, text) = fsck(&[]);
    assert_eq!(code, 6, "{text}");
    let (code, text) = fsck(&["--repair"]);
    assert_eq!(code, 0, "{text}");
    let (code, text) = fsck(&[]);
    assert_eq!(code, 0, "{text}");
    let (code, text) = ring.site.run(&["fsck", "--cluster", &format!("{address}-not")]);
    assert!(code != 0 && text.contains("nothing of that name"), "{code} {text}");
    ring.mount_all(&[]);
    for number in [0, 1, 2, 4] {
        let read = fs::read(ring.at(1 - number % 2, &format!("dir/file{number}"))).unwrap();
        assert_eq!(read, b"something");
    }
    ring.umount_all();
}

#[test]
fn servers_for_a_job_then_mounts_share_them_and_a_later_start_knows_all() {
    if !can_cluster() {
        return;
    }
    let site = Site::new();
    let servers = Servers { site: &site };
    let _mounts = Mounts(&site, 2);
    let (code, text) = servers.run("init", &[]);
    assert_eq!(code, 0, "{text}");
    let address = servers.dir().join("address");
    let mode = |path: &PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&address), mode(&servers.dir())), (0o600, 0o700));
    let secret = fs::read_to_string(&address).unwrap();
    let password = secret.split([':', '@']).nth(2).unwrap();
    assert!(password.len() >= 32 && !text.contains(password), "{text}");
    for node in 0..2 {
        mount(&site, node, &[]);
    }
    fs::write(site.path("mnt0/f"), b"shared").unwrap();
    assert_eq!(fs::read(site.path("mnt1/f")).unwrap(), b"shared");
    // One address is enough for nodes to know each other, and to be asked about without a mount.
    assert_eq!(mode(&servers.dir().join("secret")), 0o600);
    let from_outside = format!("file:{}", address.display());
    let (code, text) = site.run(&["cluster", "status", "--cluster", &from_outside, "--json"]);
    assert_eq!(code, 0, "{text}");
    let look: Value = serde_json::from_str(&text).unwrap();
    for node in look["nodes"].as_array().unwrap() {
        assert_eq!(node["state"], "up", "{text}");
        assert!(node["reach"].as_str().unwrap().starts_with("tcp://"), "{text}");
    }
    assert_eq!(look["nodes"].as_array().unwrap().len(), 2, "{text}");
    for node in 0..2 {
        umount(&site, node);
    }
    let pids = servers.pids();
    assert_eq!(pids.len(), 1);
    let (code, text) = servers.run("stop", &[]);
    assert_eq!(code, 0, "{text}");
    assert!(!alive(pids[0]));
    // They go on where they were.
    let (code, text) = servers.run("init", &[]);
    assert_eq!(code, 0, "{text}");
    mount(&site, 0, &[]);
    assert_eq!(fs::read(site.path("mnt0/f")).unwrap(), b"shared");
    let (code, text) = site.run(&["cluster", "status", "--json", &site.text("mnt0")]);
    assert_eq!(code, 0, "{text}");
    let status: Value = serde_json::from_str(&text).unwrap();
    let states: Vec<&str> =
        status["nodes"].as_array().unwrap().iter().map(|n| n["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["up", "left"], "{text}");
    umount(&site, 0);
}

#[test]
fn servers_with_replicas_then_changes_count_when_a_replica_has_them() {
    if !can_cluster() {
        return;
    }
    let site = Site::new();
    let servers = Servers { site: &site };
    let _mounts = Mounts(&site, 1);
    let (code, text) = servers.run("init", &["--replicas", "1", "--json"]);
    assert_eq!(code, 0, "{text}");
    let started: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((started["ports"].as_array().unwrap().len(), servers.pids().len()), (6, 6));
    // What can't keep what it acknowledges, or never would acknowledge anything, is refused.
    for (replicas, why) in [("0", "mount with --cluster-replicas 1"), ("2", "would ever count")] {
        let (code, text) = try_mount(&site, 0, &["--cluster-replicas", replicas]);
        assert!(code != 0 && text.contains(why), "{code} {text}");
    }
    // Who says nothing takes what was agreed on when the servers were made.
    mount(&site, 0, &[]);
    for number in 0..20 {
        fs::create_dir(site.path(&format!("mnt0/d{number}"))).unwrap();
    }
    fs::write(site.path("mnt0/d19/f"), b"spread").unwrap();
    umount(&site, 0);
    assert_eq!(fs::read(site.path("backing/d19/f")).unwrap(), b"spread");
    let pids = servers.pids();
    let (code, text) = servers.run("stop", &[]);
    assert!(code == 0 && pids.into_iter().all(|pid| !alive(pid)), "{text}");
}

#[test]
fn servers_with_two_replicas_when_one_dies_then_nothing_is_lost_and_work_goes_on() {
    if !can_cluster() {
        return;
    }
    let site = Site::new();
    let servers = Servers { site: &site };
    let _mounts = Mounts(&site, 1);
    let (code, text) = servers.run("init", &["--replicas", "2"]);
    assert_eq!(code, 0, "{text}");
    let address = format!("file:{}", site.text("meta/address"));
    let look = || site.run(&["cluster", "status", "--cluster", &address]);
    let (code, text) = look();
    assert!(code == 0 && text.contains("nothing is lost, and work goes on"), "{code} {text}");
    mount(&site, 0, &[]);
    // So many directories that each server has some.
    for number in 0..30 {
        fs::create_dir(site.path(&format!("mnt0/d{number}"))).unwrap();
        fs::write(site.path(&format!("mnt0/d{number}/before")), b"x").unwrap();
    }
    // The first ports are those of the primaries.
    let dirs = fs::read_dir(servers.dir()).unwrap().flatten();
    let mut ports: Vec<PathBuf> =
        dirs.map(|dir| dir.path()).filter(|dir| dir.join("pid").exists()).collect();
    ports.sort_by_key(|dir| dir.file_name().unwrap().to_str().unwrap().parse::<u16>().unwrap());
    let pid = fs::read_to_string(ports[1].join("pid")).unwrap().trim().parse().unwrap();
    signal(pid, Signal::KILL);
    assert!(wait_for(LIMIT, || !alive(pid)));
    // A call fails at most until another server has taken over.
    for number in 0..30 {
        let dir = site.path(&format!("mnt0/d{number}"));
        assert!(wait_for(LIMIT, || fs::write(dir.join("after"), b"y").is_ok()), "d{number}");
        assert_eq!(fs::read(dir.join("before")).unwrap(), b"x");
    }
    let dead = ports[1].file_name().unwrap().to_str().unwrap();
    let (code, text) = look();
    assert!(code == 0 && text.contains(dead), "{code} {text}");
    umount(&site, 0);
    assert_eq!(fs::read(site.path("backing/d29/after")).unwrap(), b"y");
}

fn status(ring: &Ring, node: usize) -> Vec<Value> {
    let mnt = ring.site.text(&format!("mnt{node}"));
    let (code, text) = ring.site.run(&["cluster", "status", "--json", &mnt]);
    assert_eq!(code, 0, "{text}");
    let status: Value = serde_json::from_str(&text).unwrap();
    status["nodes"].as_array().unwrap().clone()
}

#[test]
fn node_when_drained_then_it_has_written_all_back_and_left_and_one_in_use_stays() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(2);
    ring.mount_all(&["--writeback", "evict"]);
    fs::create_dir(ring.at(0, "d")).unwrap();
    fs::write(ring.at(0, "d/f"), vec![3; 300_000]).unwrap();
    let dirty = || status(&ring, 1)[0]["dirty_bytes"].as_u64().unwrap() >= 300_000;
    assert!(wait_for(LIMIT, dirty), "{:?}", status(&ring, 1));
    let (here, there) = (ring.site.text("mnt1"), ring.site.text("mnt0"));
    let (code, text) = ring.site.run(&["status", &here]);
    assert!(code == 0 && text.contains("peer         node 1 on"), "{text}");
    // In use: it says so, and goes on.
    let open = fs::File::open(ring.at(0, "d/f")).unwrap();
    let (code, text) = ring.site.run(&["cluster", "drain", "1", &here]);
    assert!(code != 0 && text.contains("node 1 stays"), "{code} {text}");
    fs::write(ring.at(0, "d/g"), b"still there").unwrap();
    drop(open);
    let (code, text) = ring.site.run(&["cluster", "drain", "1", &here]);
    assert_eq!(code, 0, "{text}{}", ring.log(0));
    assert_eq!(status(&ring, 1)[0]["state"], "left");
    assert_eq!(fs::read(ring.backing("d/f")).unwrap(), vec![3; 300_000]);
    assert_eq!(fs::read(ring.backing("d/g")).unwrap(), b"still there");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&format!(" {there} ")));
    // The last one may be told by itself.
    let (code, text) = ring.site.run(&["cluster", "drain", "2", &here]);
    assert_eq!(code, 0, "{text}{}", ring.log(1));
}

#[test]
fn dead_node_when_forgotten_then_its_files_are_usable_again_and_what_is_lost_is_named() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(2);
    fs::write(ring.backing("old"), b"version 1").unwrap();
    ring.mount_all(&["--writeback", "evict"]);
    fs::write(ring.at(0, "old"), b"version 2").unwrap();
    fs::create_dir(ring.at(0, "dir")).unwrap();
    fs::write(ring.at(0, "dir/new"), vec![7; 90_000]).unwrap();
    fs::write(ring.at(1, "other"), b"of the other").unwrap();
    let mnt = ring.site.text("mnt1");
    let forget = |more: &[&str]| ring.site.run(&[&["cluster", "forget", "1", &mnt], more].concat());
    let (code, text) = forget(&["--yes"]);
    assert!(code != 0 && text.contains("is not dead"), "{code} {text}");
    ring.kill(0);
    assert!(wait_for(LIMIT, || status(&ring, 1)[0]["state"] == "dead"));
    let (code, text) = forget(&[]);
    assert!(code == 2 && text.contains("old") && text.contains("dir/new"), "{code} {text}");
    let refused = OpenOptions::new().append(true).open(ring.at(1, "old")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EHOSTDOWN), "nothing was done yet");
    let (code, text) = forget(&["--yes"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("old") && text.contains("dir/new"), "{text}");
    assert_eq!(fs::read(ring.at(1, "old")).unwrap(), b"version 1");
    assert!(fs::metadata(ring.at(1, "dir/new")).is_err());
    fs::write(ring.at(1, "old"), b"version 3").unwrap();
    fs::write(ring.at(1, "dir/new"), b"anew").unwrap();
    assert_eq!(fs::read(ring.at(1, "other")).unwrap(), b"of the other");
    assert_eq!(status(&ring, 1)[0]["state"], "left");
    ring.umount(1);
    assert_eq!(fs::read(ring.backing("old")).unwrap(), b"version 3");
    assert_eq!(fs::read(ring.backing("dir/new")).unwrap(), b"anew");
    // What was given up does not come back with it, and is not thrown away either.
    ring.mount(0, &[]);
    assert_eq!(fs::read(ring.at(0, "old")).unwrap(), b"version 3");
    assert_eq!(fs::read(ring.at(0, "dir/new")).unwrap(), b"anew");
    assert_eq!(ring.status(0)["set_aside"]["files"], 2, "{}", ring.log(0));
    ring.umount(0);
}

#[test]
fn node_when_its_store_is_not_that_of_the_cluster_then_it_is_refused_until_it_is() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(2);
    ring.mount_all(&[]);
    fs::write(ring.at(0, "file"), b"something").unwrap();
    ring.umount_all();
    // An empty directory is in its place, as before its file system is mounted, and new tiers know
    // nothing of it.
    let (backing, away) = (ring.site.path("backing"), ring.site.path("away"));
    fs::rename(&backing, &away).unwrap();
    fs::create_dir(&backing).unwrap();
    let (mnt, tier) = (ring.site.text("new"), format!("{}=64M", ring.site.text("new-tier")));
    fs::create_dir(&mnt).unwrap();
    let address = ring.address();
    let backing_text = ring.site.text("backing");
    let args = ["mount", &backing_text, &mnt, "--tier", &tier, "--cluster", &address];
    let (code, text) = ring.site.run(&args);
    let mark = fs::read_to_string(away.join(".forebay/store")).unwrap();
    assert_eq!(code, 6, "{text}");
    assert!(text.contains(&backing_text) && text.contains(mark.trim()), "{text}");
    assert!(!backing.join(".forebay/store").exists(), "it is not marked as another one");
    fs::remove_dir_all(&backing).unwrap();
    fs::rename(&away, &backing).unwrap();
    ring.mount_all(&[]);
    assert_eq!(fs::read(ring.at(1, "file")).unwrap(), b"something");
    ring.umount_all();
}
