//! Who may join a cluster, and what a mount that is refused leaves behind: nothing.

mod ring;
mod site;

use std::fs;

use ring::{Ring, can_cluster};

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
