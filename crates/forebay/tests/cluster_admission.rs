//! Who may join a cluster, and what a mount that is refused leaves behind: nothing.

mod ring;
mod site;

use std::fs;

use ring::{Ring, can_cluster};
use serde_json::Value;

/// What a Redis command answers.
fn redis(ring: &Ring, command: &[&str]) -> String {
    let port = ring.server.port.to_string();
    let output = ring.site.command("redis-cli").args(["-p", &port]).args(command).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Mounts a node's tier without a cluster.
fn mount_alone(ring: &Ring, node: usize) {
    let mnt = ring.site.text(&format!("mnt{node}"));
    let tier = format!("{}=64M", ring.site.text(&format!("tier{node}")));
    let backing = ring.site.text("backing");
    let (code, text) = ring.site.run(&["mount", &backing, &mnt, "--tier", &tier]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn new_tier_when_its_first_cluster_refuses_it_then_it_can_be_mounted_alone() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(2);
    redis(&ring, &["CONFIG", "SET", "appendonly", "no"]);
    let (code, text) = ring.mount_with(0, &[]);
    assert!(code != 0 && text.contains("it keeps no log"), "{code} {text}");
    mount_alone(&ring, 0);
    fs::write(ring.at(0, "f"), b"alone").unwrap();
    ring.umount(0);
    assert_eq!(fs::read(ring.backing("f")).unwrap(), b"alone");
    // Refused at the very end: where it is to listen, somebody else does.
    redis(&ring, &["CONFIG", "SET", "appendonly", "yes"]);
    let taken = format!("127.0.0.1:{}", ring.server.port);
    let (code, text) = ring.mount_with(1, &["--cluster-listen", &taken, "--cluster-tls", "off"]);
    assert!(code != 0 && text.contains("--cluster-listen"), "{code} {text}");
    mount_alone(&ring, 1);
    assert_eq!(fs::read(ring.at(1, "f")).unwrap(), b"alone");
    ring.umount(1);
}

/// A file with a secret of its own.
fn secret(ring: &Ring, name: &str, bytes: &[u8]) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = ring.site.path(name);
    fs::write(&path, bytes).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    ring.site.text(name)
}

/// A cluster without a mount, as JSON.
fn look(ring: &Ring) -> Value {
    let (_, text) = ring.site.run(&["cluster", "status", "--cluster", &ring.address(), "--json"]);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn node_when_its_secret_is_not_that_of_the_others_then_the_mount_is_refused_and_says_so() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(2);
    let (one, other) = (secret(&ring, "one", &[1; 32]), secret(&ring, "other", &[2; 32]));
    let listen = ["--cluster-listen", "127.0.0.1:0"];
    let with = |node, more: &[&str]| ring.mount_with(node, &[&listen[..], more].concat());
    assert_eq!(with(0, &["--cluster-secret", &one]).0, 0);
    for (more, why) in [
        (&["--cluster-secret", &*other][..], "not the secret that the other nodes"),
        (&["--cluster-tls", "off"], "this one has none"),
    ] {
        let (code, text) = with(1, more);
        assert!(code == 6 && text.contains(why), "{code} {text}");
        assert!(!text.contains("\u{1}"), "{text}");
    }
    assert_eq!(look(&ring)["nodes"].as_array().unwrap().len(), 1, "who is refused is no node");
    assert_eq!(with(1, &["--cluster-secret", &one]).0, 0);
    ring.umount_all();
    // Nobody is left who could miss it: the cluster has another one from here on.
    assert_eq!(with(1, &["--cluster-secret", &other]).0, 0);
    let (code, text) = with(0, &["--cluster-secret", &one]);
    assert!(code == 6 && text.contains("not the secret"), "{code} {text}");
    ring.umount(1);
}

#[test]
fn settings_when_stored_once_then_mounts_take_them_unless_told_otherwise() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    let address = ring.address();
    let init = |more: &[&str]| ring.site.run(&[&["cluster", "init", &address], more].concat());
    let (code, text) = init(&["--cluster-replicas", "1"]);
    assert!(code != 0 && text.contains("no change would ever count"), "{code} {text}");
    let own = ring.site.text("secret");
    let (code, text) = init(&["--redundancy", "replicas=1", "--cluster-secret", &own]);
    assert!(code == 0 && text.contains("redundancy replicas=1"), "{code} {text}");
    let terms = look(&ring)["terms"].clone();
    assert_eq!((&terms["redundancy"], &terms["replicas"]), (&"replicas=1".into(), &Value::Null));
    assert_eq!(terms["secret"].as_str().unwrap().len(), 16, "{terms}");
    ring.mount_all(&[]);
    fs::write(ring.at(0, "f"), b"kept twice").unwrap();
    let mnt = ring.site.text("mnt0");
    let (code, text) = ring.site.run(&["cluster", "status", "--json", &mnt]);
    assert_eq!(code, 0, "{text}");
    let status: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(status["safety"]["wanted_nodes"], 1, "{text}");
    ring.umount_all();
    ring.mount(1, &["--redundancy", "none"]);
    ring.umount(1);
    // Whoever can't do what was agreed on is told so.
    let tier = format!("{}=64M", ring.site.text("quiet"));
    let (backing, mnt) = (ring.site.text("backing"), ring.site.text("mnt1"));
    let args = ["mount", &backing, &mnt, "--tier", &tier, "--cluster", &address];
    let (code, text) = ring.site.run(&args);
    assert!(code != 0 && text.contains("give --cluster-listen"), "{code} {text}");
}

#[test]
fn cluster_when_looked_at_without_a_mount_then_servers_nodes_and_what_it_survives_are_told() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(2);
    ring.mount_all(&[]);
    ring.umount(1);
    let address = ring.address();
    let seen = look(&ring);
    let server = &seen["servers"][0];
    assert_eq!(server["address"], format!("127.0.0.1:{}", ring.server.port), "{seen}");
    assert_eq!((&server["log"], &server["primary"]), (&"always".into(), &true.into()), "{seen}");
    let version = server["version"].as_str().unwrap();
    assert!(version.starts_with("Redis ") || version.starts_with("Valkey "), "{version}");
    assert_eq!(seen["nodes"][0]["state"], "up", "{seen}");
    assert_eq!(seen["nodes"][1]["state"], "left", "{seen}");
    assert_eq!(seen["terms"]["backing"].as_str().unwrap(), ring.site.text("backing"), "{seen}");
    let (code, text) = ring.site.run(&["cluster", "status", "--cluster", &address]);
    assert!(code == 0 && text.contains("stands still until it is back"), "{code} {text}");
    // A doctor for whoever wants to join.
    let doctor = |backing: &str| {
        let args = ["doctor", "--cluster", &address, "--json", backing];
        let (_, text) = ring.site.run(&args);
        let checks: Value = serde_json::from_str(&text).unwrap();
        let shared = |check: &&Value| check["what"] == "shared store";
        checks.as_array().unwrap().iter().find(shared).unwrap()["verdict"].clone()
    };
    assert_eq!(doctor(&ring.site.text("backing")), "ok");
    fs::create_dir(ring.site.path("elsewhere")).unwrap();
    assert_eq!(doctor(&ring.site.text("elsewhere")), "missing");
    ring.umount(0);
    redis(&ring, &["CONFIG", "SET", "appendonly", "no"]);
    let (code, text) = ring.site.run(&["doctor", "--cluster", &address]);
    assert!(code == 5 && text.contains("keeps no log"), "{code} {text}");
    ring.server.kill();
    let (code, text) = ring.site.run(&["cluster", "status", "--cluster", &address]);
    assert!(code == 1 && text.contains("the names can't be used"), "{code} {text}");
}
