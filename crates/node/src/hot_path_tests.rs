//! The hot path takes no lock that files share: it goes on while every such lock is held.

use std::sync::mpsc;
use std::time::Duration;

use forebay_types::Ino;

use crate::config::{NodeConfig, TierConfig};
use crate::context::{AtOnce, Context};
use crate::namespace::NewFile;
use crate::node::Node;

#[test]
fn reads_and_writes_go_on_while_shared_locks_are_held() {
    go_on_while_shared_locks_are_held(false);
}

#[test]
fn reads_and_writes_when_recorded_then_go_on_while_shared_locks_are_held() {
    go_on_while_shared_locks_are_held(true);
}

fn go_on_while_shared_locks_are_held(recorded: bool) {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a temporary directory");
    let backing = dir.path().join("backing");
    std::fs::create_dir(&backing).expect("backing");
    let tier = TierConfig { dir: dir.path().join("tier"), size_bytes: 64 << 20 };
    let node = Node::start(NodeConfig::new(backing, vec![tier])).expect("node");
    if recorded {
        node.start_patterns().expect("nobody records yet");
    }
    let daemon = Context::DAEMON;
    let open = |name: &[u8]| {
        let made = node.create_and_open(
            &daemon,
            Ino::ROOT,
            name,
            NewFile { mode: 0o644, umask: 0 },
            libc::O_RDWR,
        );
        let (stat, opened) = made.expect("create");
        node.write(&daemon, opened.fh, 0, &[1; 8192]).expect("fill");
        (stat.ino, opened.fh)
    };
    let (busy, busy_fh) = open(b"busy");
    let (_, free_fh) = open(b"free");

    let busy_file = node.residency.files.get(busy);
    let of_another_file = busy_file.location.write();
    let of_the_steward = node.residency.steward.lock();
    let of_the_table = node.residency.files.lock_all();
    let of_the_patterns = node.patterns.lock_books();
    let (send, receive) = mpsc::channel();
    let program = node.clone();
    let reader = std::thread::spawn(move || {
        let context = Context { waiter: Some(&AtOnce), ..Context::DAEMON };
        let mut buffer = [0; 4096];
        for _ in 0..100 {
            program.read(&context, free_fh, 4096, &mut buffer).expect("read");
            program.write(&context, free_fh, 0, &[2; 4096]).expect("write");
        }
        send.send(()).expect("the test waits");
    });
    let went_on = receive.recv_timeout(Duration::from_secs(20));
    drop(of_the_patterns);
    drop(of_the_table);
    drop(of_the_steward);
    drop(of_another_file);
    drop(busy_file);
    reader.join().expect("reader");
    node.release(busy_fh);
    node.release(free_fh);
    node.stop(Duration::from_secs(10));
    went_on.expect("reads and writes of one file waited for a lock of others");
}
